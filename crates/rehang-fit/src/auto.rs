//! From pairs to an adapter: methods are compared on held-out pairs, one is kept and fitted on all, and its σ² is
//! learned from what it does on pairs that it has not seen.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use rehang::adapter::{
    Adapter, Geometry, InputScaling, InputStatistics, Map, RowSketch, Training, Uncertainty,
};
use rehang::finding::Finding;
use rehang::statistics::SigmaQuality;
use rehang::study::true_errors;
use rehang::{Error, Head, Matrix, Pairs, Progress, Result};
use serde::{Deserialize, Serialize};

use crate::closed_form::{ClosedForm, do_nothing, low_rank, procrustes, ridge};
use crate::folds::{HeldOut, folds, group_folds, hold_out, parted};
use crate::geometry::{self, GeometryKind};
use crate::guards;
use crate::handicap::{self, HandicapChoice};
use crate::head_fit::{class_numbers, known_labels};
use crate::kernel_ridge::fit_kernel_ridge;
use crate::method::Method;
use crate::outputs::{conformed, raw_outputs, relative_error};
use crate::pseudo_classes::{centroid_head, pseudo_classes};
use crate::retrieval::{AGREEMENT, Criterion, Quality};
use crate::uncertainty_fit::{self, Evidence, cross_fit};

/// What a method gives.
#[derive(Debug, Clone)]
pub(crate) struct FittedMap {
    /// The map.
    pub map: Map,
    /// Choices that were made, by name, for the adapter's record.
    pub choices: BTreeMap<String, String>,
    /// How outputs conform, where the method says so itself (the published recipe: raw); `None` measures it.
    pub geometry: Option<Geometry>,
    /// Out-of-fold outputs, where the method has them for free; `None` cross-fits.
    pub evidence: Option<OwnEvidence>,
    /// σ², where the method learns it together with the map; `None` learns it from out-of-fold residuals.
    pub uncertainty: Option<Uncertainty>,
}

impl From<ClosedForm> for FittedMap {
    fn from(closed: ClosedForm) -> Self {
        Self { map: closed.map, choices: closed.choices, geometry: None, evidence: None, uncertainty: None }
    }
}

/// Out-of-fold outputs that a method has without fitting again.
#[derive(Debug, Clone)]
pub(crate) struct OwnEvidence {
    /// The pairs that they are about, increasing.
    pub rows: Vec<usize>,
    /// Raw outputs with items left out one by one, `[rows, d_new]`.
    pub items_left_out: Matrix,
    /// Raw outputs with whole groups left out, `[rows, d_new]`.
    pub groups_left_out: Option<Matrix>,
}

/// Fits one method on pairs. The second argument is the group (class or cluster) of every pair.
pub(crate) type FitFunction<'a> = Box<dyn Fn(&Pairs, &[i64], &Progress) -> Result<FittedMap> + 'a>;

/// A method that can be compared with others.
pub(crate) struct Candidate<'a> {
    /// Its name.
    pub method: Method,
    /// Whether a fit takes long, so that it is cross-fitted with items left out only and not with groups as well.
    pub slow: bool,
    /// How it is fitted. Must give the same map for the same pairs.
    pub fit: FitFunction<'a>,
}

/// The part of the pairs (and of the classes) that is held out while methods are compared; the map that is kept is fitted on
/// all.
const HELD_OUT: f64 = 0.2;
/// How often a map is fitted again for out-of-fold residuals.
const FOLDS: usize = 5;

/// How an adapter is fitted.
///
/// | Name | Default | Purpose | Range |
/// |---|---|---|---|
/// | `method` | auto | which map | – |
/// | `seed` | 0 | splits, folds, samples | – |
/// | `compare` | true | compare with the closed forms even where the method is named | – |
/// | `geometry` | measured | how outputs conform to a raw new space | – |
#[derive(Debug, Clone, PartialEq)]
pub struct FitParameters {
    /// The method.
    pub method: Method,
    /// The seed of everything random.
    pub seed: u64,
    /// Whether a named method is compared with the closed forms, so that the table says what it is worth.
    pub compare: bool,
    /// How outputs conform; `None` measures it on the held-out pairs.
    pub geometry: Option<GeometryKind>,
}

impl Default for FitParameters {
    fn default() -> Self {
        Self { method: Method::Auto, seed: 0, compare: true, geometry: None }
    }
}

/// One method in the table of a selection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SelectionRow {
    /// The method.
    pub method: Method,
    /// How its outputs conform to the new space.
    pub geometry: Option<GeometryKind>,
    /// Squared error on held-out pairs as a part of the new vectors' variance.
    pub relative_error: f64,
    /// The criterion with every held-out vector adapted, percent.
    pub start: f64,
    /// The criterion as the mean over a growing native part, percent: what the winner is chosen by.
    pub area: f64,
    /// How long its fit took. The only number here that differs from run to run.
    pub seconds: f64,
    /// Why it could not be fitted; the numbers are 0 then.
    pub failure: Option<String>,
}

/// How methods did on held-out pairs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Selection {
    /// What `start` and `area` are: `"mAP"` where there are labels, else `"agreement@10"` with the native gallery.
    pub criterion: String,
    /// Held-out items: of classes that have pairs, and of classes that have none.
    pub held_out: (usize, usize),
    /// Old queries in the old gallery, percent: what the gallery gives without any work.
    pub do_nothing: f64,
    /// New queries in the new gallery, percent: what the end of the upgrade reaches.
    pub native: f64,
    /// One row a method and geometry, in the order they were tried.
    pub rows: Vec<SelectionRow>,
    /// The row that was kept.
    pub kept: Option<usize>,
}

/// An adapter with everything that was learned about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Fitted {
    /// The adapter.
    pub adapter: Adapter,
    /// How methods compared; `None` where there were too few pairs to hold any out, or no comparison was asked for.
    pub selection: Option<Selection>,
    /// How good σ² is on pairs that it had not seen: those left out of folds, or, for a σ² that is learned together with the map,
    /// those held out of the comparison (then of the map that was fitted on the rest). `None` where there are too few pairs.
    pub sigma: Option<SigmaQuality>,
    /// How [`Adapter::handicap`] was chosen; `None` (and a handicap of 0) where there was no out-of-fold evidence to
    /// choose on, as for the published recipe.
    pub handicap: Option<HandicapChoice>,
    /// What the guards found.
    pub findings: Vec<Finding>,
}

/// The methods with a formula, the simplest first.
pub(crate) fn closed_form_candidates(seed: u64) -> Vec<Candidate<'static>> {
    type Fit = fn(&Pairs, &[i64], u64, &Progress) -> Result<FittedMap>;
    let quick = |method, fit: Fit| Candidate {
        method,
        slow: false,
        fit: Box::new(move |pairs, groups, progress| fit(pairs, groups, seed, progress)),
    };
    vec![
        quick(Method::DoNothing, |pairs, _, _, _| {
            Ok(do_nothing::fit(pairs.old().dimension(), pairs.new_vectors().dimension()).into())
        }),
        quick(Method::Procrustes, |pairs, _, _, progress| Ok(procrustes::fit(pairs, progress)?.into())),
        quick(Method::Ridge, |pairs, _, _, progress| Ok(ridge::fit(pairs, progress)?.into())),
        quick(Method::LowRank, |pairs, _, seed, progress| Ok(low_rank::fit(pairs, seed, progress)?.into())),
        quick(Method::KernelRidge, kernel),
    ]
}

/// Kernel ridge with its exact leave-one-out outputs.
fn kernel(pairs: &Pairs, groups: &[i64], seed: u64, progress: &Progress) -> Result<FittedMap> {
    // A pair without a known group is a group of its own.
    let (numbers, known) = class_numbers(groups);
    let mut next = known.len();
    let groups: Vec<usize> = numbers
        .into_iter()
        .map(|number| {
            number.unwrap_or_else(|| {
                next += 1;
                next - 1
            })
        })
        .collect();
    let (old, new) = (pairs.old().matrix(), pairs.new_vectors().matrix());
    // Without another group nothing would be left to say anything about the only one.
    let several = |groups: &[usize]| groups.windows(2).any(|two| two[0] != two[1]);
    let known = several(&groups).then_some(&groups[..]);
    let fitted = fit_kernel_ridge(old, new, known, InputScaling::UnitLength, seed, progress)?;
    let centres = fitted.centres.clone();
    let targets = new.select(&centres);
    let centre_groups: Vec<usize> = centres.iter().map(|&row| groups[row]).collect();
    let evidence = OwnEvidence {
        items_left_out: fitted.leave_one_out(&targets),
        groups_left_out: several(&centre_groups).then(|| fitted.leave_group_out(&targets, &centre_groups)),
        rows: centres,
    };
    let choices = BTreeMap::from([
        ("gamma".into(), fitted.gamma.to_string()),
        ("lambda".into(), fitted.lambda.to_string()),
        ("centres".into(), evidence.rows.len().to_string()),
    ]);
    Ok(FittedMap { map: fitted.map, choices, geometry: None, evidence: Some(evidence), uncertainty: None })
}

/// [`crate::fit_adapter`] with the closed forms and `more` methods.
pub(crate) fn fit_with(
    pairs: &Pairs,
    head: Option<&Head>,
    parameters: &FitParameters,
    more: &[Candidate<'_>],
    progress: &Progress,
) -> Result<Fitted> {
    let closed = closed_form_candidates(parameters.seed);
    let candidates: Vec<&Candidate<'_>> = closed.iter().chain(more).collect();
    let of_method = |method: Method| {
        candidates.iter().copied().find(|candidate| candidate.method == method).ok_or_else(|| {
            let known: Vec<&str> = candidates.iter().map(|candidate| candidate.method.name()).collect();
            Error::option("method", method, format!("one of {}", known.join(", ")))
        })
    };
    if parameters.method != Method::Auto {
        of_method(parameters.method)?;
    }
    let (unlabelled, idle) = without_idle_labels(pairs)?.unzip();
    let pairs = unlabelled.as_ref().unwrap_or(pairs);
    let of_head = head.map(|head| guards::head(pairs, head, parameters.seed)).transpose()?.flatten();
    let groups = groups(pairs, parameters.seed, progress)?;
    let mut findings = guards::pairs(pairs);
    findings.extend(idle);
    findings.extend(guards::direction(pairs, parameters.seed, progress)?);
    findings.extend(of_head);
    findings.extend(guards::left_open(pairs, head.is_some()));

    let task = Task { pairs, head, groups: &groups, parameters, progress };
    let is_auto = parameters.method == Method::Auto;
    let is_tried = |candidate: &&Candidate<'_>| {
        is_auto || candidate.method == parameters.method || (parameters.compare && !candidate.slow)
    };
    let tried: Vec<&Candidate<'_>> = candidates.iter().copied().filter(is_tried).collect();
    let is_compared = is_auto || parameters.compare || parameters.geometry.is_none();
    let compared = if is_compared { task.compare(&tried)? } else { Compared::default() };
    let Compared { selection, seen_errors, calibration: calibration_of_own } = compared;
    let row = selection.as_ref().and_then(|selection| Some(&selection.rows[selection.kept?]));
    let method = match (parameters.method, row) {
        (Method::Auto, Some(row)) => row.method,
        // Too few pairs to compare on: the map that can do least harm with few pairs.
        (Method::Auto, None) => Method::Procrustes,
        (method, _) => method,
    };
    if let Some(selection) = &selection {
        findings.extend(selection_findings(selection, parameters.method));
        findings.extend(guards::useless(&seen_errors));
    }
    let kind = parameters
        .geometry
        .or_else(|| row.and_then(|row| row.geometry))
        .unwrap_or_else(|| GeometryKind::options(pairs.new_vectors().space())[0]);
    let candidate = of_method(method)?;
    let fitted = (candidate.fit)(pairs, &groups, progress)
        .map_err(|error| error.context(format!("fitting {method}")))?;
    let (adapter, calibration, handicap) = task.finish(candidate, fitted, kind)?;
    let sigma = calibration.or(calibration_of_own);
    Ok(Fitted { adapter, selection, sigma, handicap, findings })
}

/// The pairs without their labels, where these tell no item from another, and a word about it: with one class in all every
/// ranking is right, and with as many classes as items none is, so nothing can be learned from them, nor chosen by them.
fn without_idle_labels(pairs: &Pairs) -> Result<Option<(Pairs, Finding)>> {
    let Some(labels) = pairs.labels() else { return Ok(None) };
    let known = labels.iter().filter(|&&label| label >= 0).count();
    let classes: BTreeSet<i64> = labels.iter().copied().filter(|&label| label >= 0).collect();
    let tells_nothing = match classes.len() {
        0 => return Ok(None),
        1 => "one class in all",
        several if several == known => "no two items of a class",
        _ => return Ok(None),
    };
    let unlabelled =
        Pairs::new(pairs.old().clone(), pairs.new_vectors().clone(), None, pairs.side().cloned())?;
    let seen = format!("The labels have {tells_nothing}.");
    let finding = Finding::warning("idle-labels", seen)
        .may_mean("They tell no item from another and are not looked at.")
        .evidence(&[("classes", classes.len() as f64), ("labelled", known as f64)]);
    Ok(Some((unlabelled, finding)))
}

/// The class of every pair, or its cluster where there are no labels.
fn groups(pairs: &Pairs, seed: u64, progress: &Progress) -> Result<Vec<i64>> {
    if let Some(labels) = known_labels(pairs) {
        return Ok(labels.to_vec());
    }
    progress.check()?;
    pseudo_classes(pairs.new_vectors().matrix(), seed)
}

/// Pairs, and what is asked of an adapter of them.
#[derive(Clone, Copy)]
struct Task<'a> {
    pairs: &'a Pairs,
    head: Option<&'a Head>,
    /// The class or cluster of every pair.
    groups: &'a [i64],
    parameters: &'a FitParameters,
    progress: &'a Progress,
}

/// One held-out part made ready for measuring.
struct Part {
    pairs: Pairs,
    /// What counts as found; `None` where its labels tell nothing apart while those of the other part do.
    criterion: Option<Criterion>,
}

/// Items of a part that are measured at most; more change no choice and cost time by their square.
const PART_ITEMS_MAX: usize = 1500;

/// Held-out items below which nothing is compared.
const PART_ITEMS_MIN: usize = 20;

/// The held-out items that are measured: the seen part, and the one of left-out classes.
///
/// All are measured alike, so that their mean means one thing: by label where any of them can be, and a part that cannot (small
/// classes leave one item of each in the seen part) has its errors measured only; by agreement where none can.
struct Parts {
    all: Vec<Part>,
    has_seen: bool,
    by_label: bool,
}

impl Parts {
    fn new(pairs: &Pairs, held_out: &HeldOut, seed: u64) -> Self {
        let [seen, unseen] = [&held_out.seen, &held_out.unseen].map(|items| sampled(pairs, items, seed));
        let has_seen = seen.is_some();
        let labelled = |pairs: Pairs| {
            let criterion = pairs.labels().and_then(Criterion::by_label);
            Part { pairs, criterion }
        };
        let mut all: Vec<Part> = seen.into_iter().chain(unseen).map(labelled).collect();
        let by_label = all.iter().any(|part| part.criterion.is_some());
        if !by_label {
            for part in &mut all {
                part.criterion = Some(Criterion::Agreement);
            }
        }
        Self { all, has_seen, by_label }
    }
}

/// The items of a part that are measured; `None` where there are too few.
fn sampled(pairs: &Pairs, items: &[usize], seed: u64) -> Option<Pairs> {
    if items.len() < PART_ITEMS_MIN {
        return None;
    }
    let (sample, _) = parted(&folds(items.len(), items.len().div_ceil(PART_ITEMS_MAX), seed), 0);
    Some(pairs.select(&sample.into_iter().map(|place| items[place]).collect::<Vec<_>>()))
}

/// What [`Task::compare`] found.
#[derive(Default)]
struct Compared {
    /// The table; `None` where there are too few pairs for one.
    selection: Option<Selection>,
    /// The relative error of every learned map on the held-out items of classes that it has seen: items of left-out classes lie so
    /// close together that a map may well be farther from them than their own mean is.
    seen_errors: Vec<f64>,
    /// How good a σ² is that the named method trains itself, with its map, on the held-out items.
    calibration: Option<SigmaQuality>,
}

impl Task<'_> {
    /// Fits every candidate on a part of the pairs and measures it on the rest.
    fn compare(&self, candidates: &[&Candidate<'_>]) -> Result<Compared> {
        let Self { pairs, parameters, .. } = *self;
        let held_out = hold_out(pairs.len(), known_labels(pairs), HELD_OUT, parameters.seed);
        let Parts { all: parts, has_seen: has_seen_part, by_label } =
            Parts::new(pairs, &held_out, parameters.seed);
        let HeldOut { fitted, seen, unseen } = held_out;
        let (mut seen_errors, mut calibration) = (Vec::new(), None);
        if parts.is_empty() || fitted.len() < PART_ITEMS_MIN {
            return Ok(Compared::default());
        }
        let fitted_pairs = pairs.select(&fitted);
        let fitted_groups: Vec<i64> = fitted.iter().map(|&item| self.groups[item]).collect();
        let part = Task { pairs: &fitted_pairs, groups: &fitted_groups, ..*self };
        let line = |quality: fn(&Criterion, &Pairs) -> Result<f64>| -> Result<f64> {
            let measured =
                parts.iter().filter_map(|part| Some(quality(part.criterion.as_ref()?, &part.pairs)));
            let values = measured.collect::<Result<Vec<f64>>>()?;
            Ok(values.iter().sum::<f64>() / values.len() as f64)
        };
        let mut selection = Selection {
            criterion: if by_label { "mAP".into() } else { format!("agreement@{AGREEMENT}") },
            held_out: (seen.len(), unseen.len()),
            do_nothing: line(Criterion::old)?,
            native: line(Criterion::native)?,
            rows: Vec::new(),
            kept: None,
        };
        for candidate in candidates {
            self.progress.check()?;
            #[allow(
                clippy::disallowed_methods,
                reason = "the seconds of a fit are shown; nothing is chosen by them"
            )]
            let started = Instant::now();
            let fitted = (candidate.fit)(&fitted_pairs, &fitted_groups, self.progress);
            let seconds = started.elapsed().as_secs_f64();
            let measured = fitted.and_then(|fitted| {
                let rows = measure(
                    &fitted,
                    fitted_pairs.new_vectors(),
                    &parts,
                    parameters,
                    seconds,
                    candidate.method,
                )?;
                // A σ² that is trained with its map is measured here, since no out-of-fold residuals are made for it.
                if let (true, Some(_), Some(_)) =
                    (candidate.method == parameters.method, &fitted.uncertainty, &fitted.geometry)
                {
                    let kind = GeometryKind::options(fitted_pairs.new_vectors().space())[0];
                    let (adapter, ..) = part.finish(candidate, fitted, kind)?;
                    calibration = Some(calibration_of(&adapter, &parts)?);
                }
                Ok(rows)
            });
            match measured {
                Ok((rows, first_errors)) => {
                    selection.rows.extend(rows);
                    if has_seen_part && candidate.method != Method::DoNothing {
                        seen_errors.extend(first_errors);
                    }
                }
                Err(error) if error.is_cancelled() => return Err(error),
                Err(error) => selection.rows.push(SelectionRow {
                    method: candidate.method,
                    geometry: None,
                    relative_error: 0.0,
                    start: 0.0,
                    area: 0.0,
                    seconds,
                    failure: Some(error.to_string()),
                }),
            }
        }
        let wanted = |row: &SelectionRow| {
            row.failure.is_none() && (parameters.method == Method::Auto || parameters.method == row.method)
        };
        for (index, row) in selection.rows.iter().enumerate().filter(|(_, row)| wanted(row)) {
            // The first of equals is the simplest.
            if selection.kept.is_none_or(|kept| row.area > selection.rows[kept].area) {
                selection.kept = Some(index);
            }
        }
        Ok(Compared { selection: Some(selection), seen_errors, calibration })
    }

    /// Learns geometry and σ² of a map that was fitted on all pairs, and puts the adapter together.
    fn finish(
        &self,
        candidate: &Candidate<'_>,
        fitted: FittedMap,
        kind: GeometryKind,
    ) -> Result<(Adapter, Option<SigmaQuality>, Option<HandicapChoice>)> {
        let Self { pairs, head, groups, parameters, progress } = *self;
        let native = pairs.new_vectors();
        let needs_evidence =
            fitted.uncertainty.is_none() || (fitted.geometry.is_none() && kind == GeometryKind::MatchedNorms);
        let evidence = match fitted.evidence {
            Some(evidence) => Some(evidence),
            None if needs_evidence && pairs.len() >= 2 => Some(self.cross_fitted(candidate)?),
            None => None,
        };
        let empty = Matrix::default();
        let raw = evidence.as_ref().map_or(&empty, |evidence| &evidence.items_left_out);
        let conform = fitted.geometry.unwrap_or_else(|| geometry::fit(kind, raw, native));
        let (uncertainty, calibration, handicap) = match (fitted.uncertainty, &evidence) {
            (Some(uncertainty), _) => {
                (uncertainty_fit::in_squared_units(uncertainty, &fitted.map, &conform, pairs)?, None, None)
            }
            (None, Some(evidence)) => {
                let own_head = match head {
                    Some(_) => None,
                    None => Some(centroid_head(native.matrix(), groups)?),
                };
                let seen = Evidence {
                    items_left_out: &evidence.items_left_out,
                    groups_left_out: evidence.groups_left_out.as_ref(),
                    groups: &evidence.rows.iter().map(|&row| groups[row]).collect::<Vec<_>>(),
                    geometry: &conform,
                    input: fitted.map.input,
                    head: head.or(own_head.as_ref()),
                };
                let seen_pairs = pairs.select(&evidence.rows);
                let learned = uncertainty_fit::fit(&seen_pairs, seen, parameters.seed, progress)?;
                let handicap = self.left_out_handicap(evidence, &conform, &learned.calibration)?;
                (learned.uncertainty, Some(learned.calibration), handicap)
            }
            // A single pair: the map is right on it and nothing else is known.
            (None, None) => (Uncertainty::Constant { variance: 1.0 }, None, None),
        };
        let choices = (candidate.method, parameters.seed, fitted.choices);
        let mut adapter = adapter(pairs, choices, fitted.map, conform, uncertainty);
        adapter.handicap = handicap.as_ref().map_or(0.0, HandicapChoice::handicap);
        Ok((adapter, calibration, handicap))
    }

    /// The handicap that serves best on the pairs, with items left out and (where there is that evidence) with classes left
    /// out as well: a gallery holds both.
    fn left_out_handicap(
        &self,
        evidence: &OwnEvidence,
        geometry: &Geometry,
        calibration: &SigmaQuality,
    ) -> Result<Option<HandicapChoice>> {
        let native = self.pairs.new_vectors().matrix().select(&evidence.rows);
        let of_rows = |labels: &[i64]| evidence.rows.iter().map(|&row| labels[row]).collect();
        let labels: Option<Vec<i64>> = known_labels(self.pairs).map(of_rows);
        let raw = [Some(&evidence.items_left_out), evidence.groups_left_out.as_ref()];
        let outputs: Vec<Matrix> =
            raw.into_iter().flatten().map(|raw| conformed(geometry, raw.clone())).collect();
        handicap::fit(
            &native,
            &outputs.iter().collect::<Vec<_>>(),
            labels.as_deref(),
            self.pairs.new_vectors().space().distance,
            calibration.calibration.mean_squared_error,
            self.parameters.seed,
            self.progress,
        )
    }

    fn cross_fitted(&self, candidate: &Candidate<'_>) -> Result<OwnEvidence> {
        let Self { pairs, groups, parameters, progress, .. } = *self;
        let outputs = |fold: &[usize]| {
            let fit = |fitted: &Pairs, items: &[usize]| {
                let groups: Vec<i64> = items.iter().map(|&item| groups[item]).collect();
                Ok((candidate.fit)(fitted, &groups, progress)?.map)
            };
            cross_fit(pairs, fold, fit, progress)
        };
        // A slow method is fitted twice more and not five times.
        let k = if candidate.slow { 2 } else { FOLDS }.min(pairs.len());
        let items_left_out = outputs(&folds(pairs.len(), k, parameters.seed))?;
        let fold = group_folds(groups, k, parameters.seed);
        let several = fold.iter().any(|&f| f != fold[0]);
        let groups_left_out = if candidate.slow || !several { None } else { Some(outputs(&fold)?) };
        Ok(OwnEvidence { rows: (0..pairs.len()).collect(), items_left_out, groups_left_out })
    }
}

/// An adapter's own σ² against its errors on the held-out items.
fn calibration_of(adapter: &Adapter, parts: &[Part]) -> Result<SigmaQuality> {
    let (mut predicted, mut actual) = (Vec::new(), Vec::new());
    for part in parts {
        let side = part.pairs.side().filter(|_| adapter.side_dimension().is_some());
        let adapted = rehang::adapter::apply(adapter, part.pairs.old(), side, &Progress::default())?;
        predicted.extend(adapted.variance.iter().map(|&variance| f64::from(variance)));
        actual.extend(true_errors(part.pairs.new_vectors().matrix(), adapted.vectors.matrix()));
    }
    SigmaQuality::of(&predicted, &actual)
}

/// The rows of one fitted method, one for every geometry that is open to it, and the relative error of each on the first
/// part.
///
/// `known` are the native vectors of the pairs that were fitted on: lengths come from those, since the fit does not know the lengths of
/// what is held out.
fn measure(
    fitted: &FittedMap,
    known: &rehang::Vectors,
    parts: &[Part],
    parameters: &FitParameters,
    seconds: f64,
    method: Method,
) -> Result<(Vec<SelectionRow>, Vec<f64>)> {
    let raw = parts
        .iter()
        .map(|part| raw_outputs(&fitted.map, part.pairs.old().matrix(), part.pairs.side()))
        .collect::<Result<Vec<Matrix>>>()?;
    let space = parts[0].pairs.new_vectors().space();
    let kinds: Vec<Option<GeometryKind>> = match (&fitted.geometry, parameters.geometry) {
        (Some(_), _) => vec![None],
        (None, Some(kind)) => vec![Some(kind)],
        (None, None) => GeometryKind::options(space).iter().copied().map(Some).collect(),
    };
    let (mut rows, mut first_errors) = (Vec::new(), Vec::new());
    for kind in kinds {
        let (mut qualities, mut errors): (Vec<Quality>, Vec<f64>) = (Vec::new(), Vec::new());
        for (part, raw) in parts.iter().zip(&raw) {
            let native = part.pairs.new_vectors();
            let own = kind.map(|kind| geometry::fit(kind, raw, known));
            let Some(geometry) = own.as_ref().or(fitted.geometry.as_ref()) else { continue };
            let outputs = conformed(geometry, raw.clone());
            outputs.check_finite("adapted vectors")?;
            errors.push(relative_error(&outputs, &part.pairs));
            if let Some(criterion) = &part.criterion {
                qualities.push(criterion.upgrade(native, &outputs, parameters.seed)?);
            }
        }
        let count = qualities.len().max(1) as f64;
        first_errors.extend(errors.first());
        rows.push(SelectionRow {
            method,
            geometry: kind,
            relative_error: errors.iter().sum::<f64>() / errors.len().max(1) as f64,
            start: qualities.iter().map(|quality| quality.start).sum::<f64>() / count,
            area: qualities.iter().map(|quality| quality.area).sum::<f64>() / count,
            seconds,
            failure: None,
        });
    }
    Ok((rows, first_errors))
}

/// An adapter without a handicap, and the record of how it was made: by which method, with which seed and choices.
pub(crate) fn adapter(
    pairs: &Pairs,
    (method, seed, hyper_parameters): (Method, u64, BTreeMap<String, String>),
    map: Map,
    geometry: Geometry,
    uncertainty: Uncertainty,
) -> Adapter {
    let (old, new) = (pairs.old(), pairs.new_vectors());
    let inputs = [("old", old.matrix().fingerprint()), ("new", new.matrix().fingerprint())];
    Adapter {
        old: old.space().clone(),
        new: new.space().clone(),
        map,
        geometry,
        uncertainty,
        handicap: 0.0,
        input_statistics: Some(InputStatistics::of(old.matrix())),
        training: Training {
            method: method.name().into(),
            seed,
            pairs: pairs.len(),
            inputs: inputs.into_iter().map(|(role, print)| (role.to_owned(), print)).collect(),
            hyper_parameters,
            version: env!("CARGO_PKG_VERSION").into(),
            pairs_sketch: Some(RowSketch::of(old.matrix())),
        },
    }
}

/// What the table says in words: a named method that loses, a switch that has to wait, lengths that were left alone.
fn selection_findings(selection: &Selection, asked: Method) -> Vec<Finding> {
    let mut findings = Vec::new();
    let Some(kept) = selection.kept.map(|kept| &selection.rows[kept]) else { return findings };
    let criterion = &selection.criterion;
    let best = selection
        .rows
        .iter()
        .filter(|row| row.failure.is_none())
        .reduce(|best, row| if row.area > best.area { row } else { best });
    if let Some(best) = best
        && asked != Method::Auto
        && best.area > kept.area
        && best.method != kept.method
    {
        let seen = format!(
            "{} does better than {} on held-out pairs ({criterion} {:.1} against {:.1} over the upgrade).",
            best.method, kept.method, best.area, kept.area
        );
        let evidence = [("best", best.area), ("kept", kept.area)];
        findings.push(Finding::warning("better-method", seen).evidence(&evidence));
    }
    let learned = |row: &&SelectionRow| row.method != Method::DoNothing && row.failure.is_none();
    if asked == Method::Auto
        && kept.method == Method::DoNothing
        && selection.rows.iter().any(|row| learned(&row))
    {
        let seen = "No learned map does better than the old vectors as they are; old vectors are kept.";
        findings.push(Finding::warning("do-nothing-wins", seen).evidence(&[("kept", kept.area)]));
    }
    findings.extend(guards::gain(&guards::CurveSummary {
        measure: format!("{criterion} on held-out pairs"),
        do_nothing: selection.do_nothing,
        start: kept.start,
        area: kept.area,
        minimum: kept.start,
        end: selection.native,
    }));
    findings
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::seq::SliceRandom;
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::tests::test_data::{affine, pairs as make, random_matrix};

    /// Pairs with an exactly linear map and some noise, in ten classes.
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
            assert_eq!(selection.held_out.1 > 0, labelled);
            let kept = &selection.rows[selection.kept.unwrap()];
            assert!(selection.rows.iter().all(|row| row.area <= kept.area));
            assert!(labelled || kept.relative_error < 0.01, "{kept:?}");
            assert!(kept.method != Method::DoNothing && kept.method != Method::Procrustes);
            let ratio = fitted.sigma.unwrap().calibration.ratio;
            assert!((0.9..1.1).contains(&ratio), "{ratio}");
        }
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
            let codes: Vec<&str> = fitted.findings.iter().map(|finding| finding.code.as_str()).collect();
            assert!(codes.contains(&"idle-labels"), "{codes:?}");
            // σ² and the order come from what they would come from without labels.
            let unlabelled = fit(&plain, None, &with(Method::Auto), &Progress::default()).unwrap();
            assert_eq!(fitted.adapter, unlabelled.adapter);
            assert!(!codes.contains(&"do-nothing-wins") && !codes.contains(&"no-gain"), "{codes:?}");
        }
    }

    #[test]
    fn small_classes_are_judged_by_left_out_ones_and_rows_that_do_not_belong_together_are_still_noticed() {
        // Five items of a class: one of each is held out of the classes that stay.
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
        let has =
            |findings: &[Finding]| findings.iter().any(|finding| finding.code == "no-better-than-the-mean");
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
        assert!(fitted.findings.iter().any(|finding| finding.code == "better-method"));
    }

    #[test]
    fn doing_nothing_is_kept_where_nothing_beats_it() {
        let rows = random_matrix(300, 5, 1);
        let fitted =
            fit(&make(rows.clone(), rows, None), None, &with(Method::Auto), &Progress::default()).unwrap();
        assert_eq!(fitted.adapter.training.method, "do-nothing");
        assert!(fitted.findings.iter().any(|finding| finding.code == "do-nothing-wins"));
        assert!(fitted.findings.iter().any(|finding| finding.code == "no-gain"));
    }

    #[test]
    fn a_handful_of_pairs_is_fitted_and_said_to_be_too_few() {
        for n in [1, 2, 5, 12] {
            let fitted = fit(&linear(n, false), None, &with(Method::Auto), &Progress::default()).unwrap();
            assert!(fitted.selection.is_none());
            assert!(matches!(fitted.adapter.uncertainty, Uncertainty::Constant { .. }));
            assert!(fitted.findings.iter().any(|finding| finding.code == "few-pairs"));
        }
    }

    #[test]
    fn a_method_that_fails_stays_in_the_table_with_its_reason() {
        let failing = Candidate {
            method: Method::Fct,
            slow: true,
            fit: Box::new(|_, _, _| Err(Error::missing("courage", "this method"))),
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
}
