//! Makes an adapter from pairs: methods are compared on held-out pairs, and one is kept and fitted on all.
//! Its σ² is learned from its errors on pairs that it has not seen.

use std::collections::BTreeSet;

use rehang_core::adapter::Adapter;
use rehang_core::copies;
use rehang_core::finding::{Finding, FindingCode};
use rehang_core::statistics::SigmaQuality;
use rehang_core::{Error, Head, Pairs, Progress, Result};

use crate::candidate::{Candidate, closed_form_candidates, per_kind_candidate};
use crate::compare::{Compared, Selection, selection_findings};
use crate::fusion_choice::FusionChoice;
use crate::geometry::GeometryKind;
use crate::guards;
use crate::handicap::HandicapChoice;
use crate::head_fit::known_labels;
use crate::method::Method;
use crate::parameters::FitParameters;
use crate::pseudo_classes::pseudo_classes;
use crate::residuals;
use crate::retrieval::Criterion;
use crate::same;
use crate::task::{Finished, Task};
use crate::within::Deadline;

/// An adapter with everything that was learned about it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Fitted {
    /// Adapter that was fitted.
    pub adapter: Adapter,
    /// Comparison of the methods; `None` where there were too few pairs to hold any out, or no comparison was
    /// asked for.
    pub selection: Option<Selection>,
    /// Quality of σ² on pairs that it had not seen: those left out of folds. Where a method learns σ²
    /// together with the map, they are the pairs held out of the comparison, with the map that was fitted on
    /// the rest. `None` where there are too few pairs.
    pub sigma: Option<SigmaQuality>,
    /// Choice of [`Adapter::handicap`]; `None` (and a handicap of 0) where there was no out-of-fold evidence
    /// to choose on, as for the published recipe.
    pub handicap: Option<HandicapChoice>,
    /// Choice of [`Adapter::fusion`]; `None` (and no fusion) where the handicap is, and where too few pairs
    /// could be held out.
    pub fusion: Option<FusionChoice>,
    /// Findings of the guards.
    pub findings: Vec<Finding>,
}

/// Fits as [`crate::fit_adapter`] does, with the closed forms and `more` methods.
pub(crate) fn fit_with(
    pairs: &Pairs,
    head: Option<&Head>,
    parameters: &FitParameters,
    more: &[Candidate<'_>],
    progress: &Progress,
) -> Result<Fitted> {
    let mut closed = closed_form_candidates(parameters.seed);
    closed.push(per_kind_candidate(parameters.seed));
    let candidates: Vec<&Candidate<'_>> = closed.iter().chain(more).collect();
    let of_method = |method: Method| {
        candidates.iter().copied().find(|candidate| candidate.method == method).ok_or_else(|| {
            let names: Vec<&str> = candidates.iter().map(|candidate| candidate.method.name()).collect();
            Error::option("method", method, format!("one of {}", names.join(", ")))
        })
    };
    let deadline = Deadline::begin(parameters.within);
    if parameters.method != Method::Auto {
        of_method(parameters.method)?;
    }
    if let Some(queries) = &parameters.queries {
        queries.check(pairs)?;
    }
    Criterion::check_metric(parameters, pairs)?;
    let (unlabelled, idle) = without_idle_labels(pairs)?.unzip();
    let pairs = unlabelled.as_ref().unwrap_or(pairs);
    let of_head = head.map(|head| guards::head(pairs, head, parameters.seed)).transpose()?.flatten();
    let rows = copies::originals(&parameters.first_copies(pairs));
    let copies = pairs.len() - rows.len();
    let different = (copies > 0).then(|| pairs.select(&rows));
    let different = different.as_ref().unwrap_or(pairs);
    let mut findings = guards::pairs(different);
    findings.extend(idle);
    let (groups, direction) = rayon::join(
        || groups(pairs, parameters.seed, progress),
        || guards::direction(different, parameters.seed, progress),
    );
    let groups = groups?;
    findings.extend(direction?);
    findings.extend(copies::finding(copies, pairs.len(), "pairs"));
    findings.extend(of_head);
    findings.extend(guards::left_open(pairs, head.is_some()));

    let has_same = same::kinds(pairs).is_some();
    let kinds = if has_same { None } else { residuals::kinds_of_pairs(pairs, parameters.seed, progress)? };
    let task = Task { pairs, head, groups: &groups, parameters, kinds: kinds.as_ref(), deadline, progress };
    let is_auto = parameters.method == Method::Auto;
    let is_tried = |candidate: &&Candidate<'_>| {
        let has_kinds = has_same || kinds.as_ref().is_some_and(|kinds| kinds.small.is_some());
        let applies = candidate.method != Method::PerKind || has_kinds;
        candidate.method == parameters.method
            || (applies && (is_auto || (parameters.compare && !candidate.slow)))
    };
    let tried: Vec<&Candidate<'_>> = candidates.iter().copied().filter(is_tried).collect();
    let geometries = GeometryKind::options(pairs.new_vectors().space());
    let is_open = parameters.geometry.is_none() && geometries.len() > 1;
    let is_compared = is_auto || parameters.compare || is_open;
    let compared = if is_compared { task.compare(&tried)? } else { Compared::default() };
    let Compared { selection, seen_errors, is_any_found, mut fitted, mut made, calibration: of_own } =
        compared;
    let row = selection.as_ref().and_then(|selection| Some(&selection.rows[selection.kept?]));
    let method = match (parameters.method, row) {
        (Method::Auto, Some(row)) => row.method,
        // With too few pairs to compare on, the map that can do least harm is taken.
        (Method::Auto, None) => Method::Procrustes,
        (method, _) => method,
    };
    if let Some(selection) = &selection {
        findings.extend(selection_findings(selection, parameters.method));
        findings.extend(guards::useless(&seen_errors, is_any_found));
    }
    let kind = parameters.geometry.or_else(|| row.and_then(|row| row.geometry)).unwrap_or(geometries[0]);
    let candidate = of_method(method)?;
    let fitted = match fitted.remove(&method) {
        Some(fitted) => fitted,
        None => (candidate.fit)(pairs, &groups, progress)
            .map_err(|error| error.context(format!("fitting {method}")))?,
    };
    let Finished { adapter, calibration, handicap, fusion, finding, differing } =
        task.finish(candidate, fitted, kind, made.remove(&method).unwrap_or_default())?;
    findings.extend(finding);
    findings.extend(same::finding(pairs, differing, parameters.seed)?);
    let sigma = calibration.or(of_own);
    Ok(Fitted { adapter, selection, sigma, handicap, fusion, findings })
}

/// Returns the pairs without their labels, and a finding about it, where the labels tell no item from
/// another. With one class in all every ranking is right, and with as many classes as items none is. Nothing
/// can then be learned from labels, nor chosen by them.
pub(crate) fn without_idle_labels(pairs: &Pairs) -> Result<Option<(Pairs, Finding)>> {
    let Some(labels) = pairs.labels() else { return Ok(None) };
    let labelled_count = labels.iter().filter(|&&label| label >= 0).count();
    let classes: BTreeSet<i64> = labels.iter().copied().filter(|&label| label >= 0).collect();
    let tells_nothing = match classes.len() {
        0 => return Ok(None),
        1 => "one class in all",
        several if several == labelled_count => "no two items of a class",
        _ => return Ok(None),
    };
    let unlabelled =
        Pairs::new(pairs.old().clone(), pairs.new_vectors().clone(), None, pairs.side().cloned())?;
    let message = format!("The labels have {tells_nothing}.");
    let finding = Finding::warning(FindingCode::IdleLabels, message)
        .may_mean("They tell no item from another and are not looked at.")
        .evidence(&[("classes", classes.len() as f64), ("labelled", labelled_count as f64)]);
    Ok(Some((unlabelled, finding)))
}

/// Returns the class of every pair, or its cluster where there are no labels.
pub(crate) fn groups(pairs: &Pairs, seed: u64, progress: &Progress) -> Result<Vec<i64>> {
    if let Some(labels) = known_labels(pairs) {
        return Ok(labels.to_vec());
    }
    pseudo_classes(pairs.new_vectors().matrix(), seed, progress)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::seq::SliceRandom;
    use rand_chacha::ChaCha8Rng;
    use rehang_core::Matrix;
    use rehang_core::adapter::Uncertainty;

    use super::*;
    use crate::tests::test_data::{affine, pairs as make, random_matrix};

    /// Makes pairs with an exactly linear map and some noise, in ten classes.
    fn linear(n: usize, labelled: bool) -> Pairs {
        let labels: Vec<i64> = (0..n as i64).map(|item| item % 10).collect();
        let noise = random_matrix(n, 6, 1);
        let old = Matrix::from_fn(n, 6, |r, c| noise.row(r)[c] + 2.0 * ((r % 10 + c * 3) % 7) as f32);
        let clean = affine(&old, &random_matrix(4, 6, 2), &[0.5; 4]);
        let noise = random_matrix(n, 4, 3);
        let new = Matrix::from_fn(n, 4, |r, c| clean.row(r)[c] + 0.1 * noise.row(r)[c]);
        make(old, new, labelled.then_some(labels))
    }

    fn fit(
        pairs: &Pairs,
        head: Option<&Head>,
        parameters: &FitParameters,
        progress: &Progress,
    ) -> Result<Fitted> {
        fit_with(pairs, head, parameters, &[], progress)
    }

    fn with(method: Method) -> FitParameters {
        FitParameters { method, ..FitParameters::default() }
    }

    #[test]
    fn a_linear_relation_is_found_to_be_one() {
        for labelled in [false, true] {
            let fitted =
                fit(&linear(600, labelled), None, &with(Method::Auto), &Progress::default()).unwrap();
            let selection = fitted.selection.unwrap();
            assert_eq!(selection.criterion, if labelled { "mAP" } else { "agreement@10" });
            // Without labels, clusters are left out in place of classes.
            assert!(selection.held_out.0 > 0 && selection.held_out.1 > 0);
            let kept_row = &selection.rows[selection.kept.unwrap()];
            let best = &selection.rows[selection.best.unwrap()];
            assert!(selection.rows.iter().all(|row| row.area <= best.area));
            assert!(kept_row.behind <= kept_row.spread.unwrap());
            assert!(labelled || kept_row.relative_error < 0.01, "{kept_row:?}");
            assert!(kept_row.method != Method::DoNothing && kept_row.method != Method::Procrustes);
            let ratio = fitted.sigma.unwrap().calibration.ratio;
            assert!((0.9..1.1).contains(&ratio), "{ratio}");
        }
    }

    #[test]
    fn copies_ask_nothing_and_are_said_once() {
        let plain = linear(300, true);
        let twice = plain.select(&(0..600).map(|row| row / 2).collect::<Vec<_>>());
        let [alone, with_copies] = [&plain, &twice]
            .map(|pairs| fit(pairs, None, &with(Method::Ridge), &Progress::default()).unwrap());
        let count =
            |code: FindingCode| with_copies.findings.iter().filter(|finding| finding.code == code).count();
        assert_eq!((count(FindingCode::EqualSources), count(FindingCode::DuplicateVectors)), (1, 0));
        let measured = |fitted: &Fitted| {
            let selection = fitted.selection.as_ref().unwrap();
            (selection.do_nothing, selection.native, selection.held_out)
        };
        assert_eq!(measured(&with_copies), measured(&alone));
    }

    /// The time that the last method may take is said after the first one.
    #[test]
    fn methods_to_come_are_said_with_their_times_from_the_first_one_on() {
        let stages = std::sync::Mutex::new(Vec::new());
        let slow = |method, seconds: f64| Candidate {
            method,
            slow: true,
            fit: Box::new(|pairs, _, progress| {
                stages.lock().unwrap().push(progress.snapshot().stage);
                crate::closed_form::procrustes::fit(pairs, progress).map(Into::into)
            }),
            cost: Some(seconds * 3.3e11),
            leaves_out: false,
        };
        let more = [slow(Method::Fct, 90.0), slow(Method::Fastfill, 40.0)];
        fit_with(&linear(100, true), None, &with(Method::Auto), &more, &Progress::default()).unwrap();
        let first = |method: &str| {
            let of = format!("fitting {method}, ");
            stages.lock().unwrap().iter().find(|stage| stage.starts_with(&of)).cloned().unwrap()
        };
        assert_eq!(first("fct"), "fitting fct, about 90 s if it is kept; then, if kept, fastfill about 40 s");
        assert_eq!(first("fastfill"), "fitting fastfill, about 40 s if it is kept");
    }

    #[test]
    fn labels_that_tell_nothing_apart_are_no_labels() {
        let plain = linear(600, false);
        let relabelled = |label: fn(usize) -> i64| {
            let labels = (0..600).map(label).collect();
            Pairs::new(plain.old().clone(), plain.new_vectors().clone(), Some(labels), None).unwrap()
        };
        let (one_class, all_different) = (relabelled(|_| 3), relabelled(|item| item as i64));
        for pairs in [one_class, all_different] {
            let fitted = fit(&pairs, None, &with(Method::Auto), &Progress::default()).unwrap();
            let selection = fitted.selection.unwrap();
            assert_eq!(selection.criterion, "agreement@10");
            assert_ne!(selection.rows[selection.kept.unwrap()].method, Method::DoNothing);
            let has = |code: FindingCode| fitted.findings.iter().any(|finding| finding.code == code);
            assert!(has(FindingCode::IdleLabels), "{:?}", fitted.findings);
            // σ² and the order come from what they would come from without labels.
            let unlabelled = fit(&plain, None, &with(Method::Auto), &Progress::default()).unwrap();
            assert_eq!(fitted.adapter, unlabelled.adapter);
            assert!(!has(FindingCode::DoNothingWins) && !has(FindingCode::NoGain), "{:?}", fitted.findings);
        }
    }

    #[test]
    fn small_classes_are_judged_by_left_out_ones_and_rows_that_do_not_belong_together_are_still_noticed() {
        // Each class has five items; one of each is held out of the classes that stay.
        let small = |pairs: &Pairs| {
            let labels = (0..600).map(|item| item / 5).collect();
            Pairs::new(pairs.old().clone(), pairs.new_vectors().clone(), Some(labels), None).unwrap()
        };
        let fitted =
            |pairs: &Pairs| fit(&small(pairs), None, &with(Method::Auto), &Progress::default()).unwrap();
        let plain = linear(600, false);
        let right = fitted(&plain);
        assert_eq!(right.selection.unwrap().criterion, "mAP");
        let mut shuffled: Vec<usize> = (0..600).collect();
        shuffled.shuffle(&mut ChaCha8Rng::seed_from_u64(1));
        let new = plain.new_vectors().matrix().select(&shuffled);
        let wrong = fitted(&make(plain.old().matrix().clone(), new, None));
        let has = |findings: &[Finding]| {
            findings.iter().any(|finding| finding.code == FindingCode::NoBetterThanTheMean)
        };
        assert!(has(&wrong.findings) && !has(&right.findings));
    }

    #[test]
    fn the_same_seed_gives_the_same_adapter_for_any_number_of_threads() {
        let data = linear(300, true);
        let run = |threads| {
            rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .build()
                .unwrap()
                .install(|| fit(&data, None, &with(Method::Auto), &Progress::default()).unwrap())
        };
        assert_eq!(run(1).adapter, run(3).adapter);
    }

    #[test]
    fn a_named_method_is_kept_even_where_it_loses_and_that_is_said() {
        let fitted = fit(&linear(400, false), None, &with(Method::DoNothing), &Progress::default()).unwrap();
        assert_eq!(fitted.adapter.training.method, "do-nothing");
        assert!(fitted.findings.iter().any(|finding| finding.code == FindingCode::BetterMethod));
    }

    #[test]
    fn doing_nothing_is_kept_where_nothing_beats_it() {
        let rows = random_matrix(300, 5, 1);
        let fitted =
            fit(&make(rows.clone(), rows, None), None, &with(Method::Auto), &Progress::default()).unwrap();
        assert_eq!(fitted.adapter.training.method, "do-nothing");
        assert!(fitted.findings.iter().any(|finding| finding.code == FindingCode::DoNothingWins));
        assert!(fitted.findings.iter().any(|finding| finding.code == FindingCode::NoGain));
    }

    #[test]
    fn a_handful_of_pairs_is_fitted_and_said_to_be_too_few() {
        for n in [1, 2, 5, 12] {
            let fitted = fit(&linear(n, false), None, &with(Method::Auto), &Progress::default()).unwrap();
            assert!(fitted.selection.is_none());
            assert!(matches!(fitted.adapter.uncertainty, Uncertainty::Constant { .. }));
            assert!(fitted.findings.iter().any(|finding| finding.code == FindingCode::FewPairs));
        }
    }

    #[test]
    fn a_handicap_is_chosen_from_twenty_pairs_on_and_by_agreement_where_labels_tell_nothing() {
        let handicap = |n: usize, labels: Option<Vec<i64>>| {
            let pairs = linear(n, false);
            let pairs = Pairs::new(pairs.old().clone(), pairs.new_vectors().clone(), labels, None).unwrap();
            fit(&pairs, None, &with(Method::Ridge), &Progress::default()).unwrap().handicap
        };
        assert_eq!(handicap(19, None), None);
        let every_pair_its_own = (0..40).collect();
        let unknown = vec![-1; 40];
        let one_class_known = (0..40).map(|item| if item < 2 { 0 } else { -1 }).collect();
        for (labels, criterion) in [
            (None, "agreement@10"),
            (Some(every_pair_its_own), "agreement@10"),
            (Some(unknown), "agreement@10"),
            (Some(one_class_known), "agreement@10"),
            (Some((0..40).map(|item| item % 4).collect()), "mAP"),
        ] {
            assert_eq!(handicap(40, labels).unwrap().criterion, criterion);
        }
    }

    #[test]
    fn a_method_that_fails_stays_in_the_table_with_its_reason() {
        let failing = Candidate {
            method: Method::Fct,
            slow: true,
            fit: Box::new(|_, _, _| Err(Error::missing("courage", "this method"))),
            leaves_out: false,
            cost: None,
        };
        let data = linear(300, false);
        let more = [failing];
        let fitted = fit_with(&data, None, &with(Method::Auto), &more, &Progress::default()).unwrap();
        let rows = fitted.selection.unwrap().rows;
        let row = rows.iter().find(|row| row.method == Method::Fct).unwrap();
        assert!(row.failure.as_ref().unwrap().contains("courage"));
        assert!(fit_with(&data, None, &with(Method::Fct), &more, &Progress::default()).is_err());
        assert!(fit(&data, None, &with(Method::Fct), &Progress::default()).is_err());
    }

    #[test]
    fn a_stop_is_heard() {
        let progress = Progress::default();
        progress.cancel();
        let error = fit(&linear(300, false), None, &with(Method::Auto), &progress).unwrap_err();
        assert!(error.is_cancelled());
    }

    #[test]
    fn within_no_time_the_methods_that_harm_least_are_tried_and_the_others_named() {
        let no_time = FitParameters { within: Some("0s".parse().unwrap()), ..with(Method::Auto) };
        let fitted = fit(&linear(300, false), None, &no_time, &Progress::default()).unwrap();
        let selection = fitted.selection.unwrap();
        let tried = selection.rows.iter().filter(|row| row.failure.is_none());
        let mut tried: Vec<Method> = tried.map(|row| row.method).collect();
        tried.dedup();
        assert_eq!(tried, [Method::DoNothing, Method::Procrustes]);
        let ridge = selection.rows.iter().find(|row| row.method == Method::Ridge).unwrap();
        assert!(ridge.failure.as_ref().unwrap().contains("0 s of the time given are left"), "{ridge:?}");
        // A method that is asked for by name is fitted however long it takes.
        let named = FitParameters { method: Method::Ridge, ..no_time };
        let fitted = fit(&linear(300, false), None, &named, &Progress::default()).unwrap();
        assert_eq!(fitted.adapter.training.method, "ridge");
        // Enough time changes nothing.
        let enough = FitParameters { within: Some("1h".parse().unwrap()), ..with(Method::Auto) };
        let fitted = |parameters| fit(&linear(300, false), None, &parameters, &Progress::default()).unwrap();
        assert_eq!(fitted(enough).adapter, fitted(with(Method::Auto)).adapter);
    }
}
