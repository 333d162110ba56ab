//! Guards: what is wrong, or may be, with pairs, a map or a result, said before it costs a night.
//!
//! A guard never stops anything. It returns [`Finding`]s; the caller decides what to do with them.

use rehang_core::adapter::{Geometry, Map};
use rehang_core::check::expect_width;
use rehang_core::curve::distances_by_query;
use rehang_core::finding::{Finding, FindingCode, Severity};
use rehang_core::order::least_confidence;
use rehang_core::verdict::is_below;
use rehang_core::{Distance, Head, Matrix, Pairs, Progress, Result};

use crate::closed_form::ridge;
use crate::folds::{LeftOut, folds, parted};
use crate::head_fit::known_labels;
use crate::left_out::LeavesOut;
use crate::linear_algebra::column_means;
use crate::objectives::squared::relative_error;
use crate::retrieval::Criterion;
use crate::uncertainty_fit::logits;

/// Number of pairs below which no learned map can be judged.
const PAIRS_MIN: usize = 50;

/// Looks at the pairs alone: too few of them, rows that are zero or all equal, columns that never vary, items
/// that are there twice.
pub fn pairs(pairs: &Pairs) -> Vec<Finding> {
    let mut findings = Vec::new();
    let (n, d_old) = (pairs.len(), pairs.old().dimension());
    if n < PAIRS_MIN {
        findings.push(
            Finding::problem(FindingCode::FewPairs, format!("There are only {n} pairs."))
                .remedy("Embed at least a few hundred items with both models.")
                .evidence(&[("pairs", n as f64)]),
        );
    } else if n < 2 * d_old {
        let message = format!("{n} pairs are few for old vectors of {d_old} coordinates.");
        findings.push(
            Finding::warning(FindingCode::FewPairs, message)
                .remedy("More pairs will give a better adapter.")
                .evidence(&[("pairs", n as f64), ("coordinates", d_old as f64)]),
        );
    }
    let (old, new) = (pairs.old().matrix(), pairs.new_vectors().matrix());
    for (side, rows, other_rows) in [("old", old, new), ("new", new, old)] {
        findings.extend(degenerate(side, rows, other_rows));
    }
    findings
}

fn degenerate(side: &str, rows: &Matrix, other_rows: &Matrix) -> Vec<Finding> {
    let mut findings = Vec::new();
    let n = rows.rows();
    let constant = (0..rows.columns())
        .filter(|&column| (1..n).all(|row| rows.row(row)[column] == rows.row(0)[column]))
        .count();
    if n > 1 && constant == rows.columns() {
        findings.push(
            Finding::problem(FindingCode::ConstantVectors, format!("All {side} vectors are the same."))
                .remedy("Check how they were made.")
                .evidence(&[("rows", n as f64)]),
        );
        return findings;
    }
    if n > 1 && constant > 0 {
        let message =
            format!("{constant} of {} coordinates of the {side} vectors never vary.", rows.columns());
        let evidence = [("constant", constant as f64), ("coordinates", rows.columns() as f64)];
        findings.push(Finding::note(FindingCode::ConstantColumns, message).evidence(&evidence));
    }
    let zeros = (0..n).filter(|&row| is_zero(rows.row(row))).count();
    if zeros > 0 {
        let severity = if zeros * 20 > n { Severity::Warning } else { Severity::Note };
        let message = format!("{zeros} of {n} {side} vectors are zero.");
        findings.push(
            Finding::new(severity, FindingCode::ZeroVectors, message)
                .may_mean("Such items have no content that the model knows.")
                .evidence(&[("zero", zeros as f64), ("rows", n as f64)]),
        );
    }
    let mut twice = n - zeros - distinct_rows(rows);
    if let Some((count, finding)) = one_vector(side, rows, other_rows) {
        findings.push(finding);
        twice -= count - 1;
    }
    if twice * 10 > n {
        let message = format!("{twice} of {n} {side} vectors repeat another one.");
        findings.push(
            Finding::warning(FindingCode::DuplicateVectors, message)
                .may_mean("Held-out numbers will look better than they are.")
                .evidence(&[("repeated", twice as f64), ("rows", n as f64)]),
        );
    }
    findings
}

/// Looks for old and new being swapped, on at most 1,000 pairs.
///
/// A better model knows what the worse one knows and more. So (a) the new vectors retrieve their own classes
/// better than the old ones do, which takes labels; and (b) a linear map predicts the old vectors from the
/// new ones better than the other way round. (a) decides where it is known: a new model that retrieves
/// clearly worse is a warning. (b) alone is a note, since a difference in width or in training can bring it
/// about as well.
///
/// # Errors
///
/// [`rehang_core::ErrorKind::Diverged`] where a fit fails, [`rehang_core::ErrorKind::Cancelled`].
pub fn direction(pairs: &Pairs, seed: u64, progress: &Progress) -> Result<Option<Finding>> {
    if pairs.len() < PAIRS_MIN {
        return Ok(None);
    }
    let sample = sample(pairs, seed);
    if let Some(criterion) = sample.labels().and_then(Criterion::by_label) {
        let (old, new) = (criterion.old(&sample)?, criterion.native(&sample)?);
        let message =
            format!("Old vectors find their classes better than new ones (mAP {old:.1} against {new:.1}).");
        return Ok((old > new + 2.0).then(|| {
            Finding::warning(FindingCode::Swapped, message)
                .may_mean("Old and new may be swapped, or the new model is no gain for these items.")
                .evidence(&[("old_map", old), ("new_map", new)])
        }));
    }
    let swapped = Pairs::new(sample.new_vectors().clone(), sample.old().clone(), None, None)?;
    let forward = explained(&sample, seed, progress)?;
    let backward = explained(&swapped, seed, progress)?;
    let message = format!(
        "Old vectors predict new ones better (R² {forward:.2}) than new ones predict old ones (R² {backward:.2})."
    );
    Ok((forward > backward + 0.1).then(|| {
        Finding::note(FindingCode::Swapped, message)
            .may_mean("Usually it is the other way round.")
            .remedy("Check that they are not swapped.")
            .evidence(&[("r2_old_to_new", forward), ("r2_new_to_old", backward)])
    }))
}

/// Largest number of pairs that are looked at for their direction.
const ITEMS_MAX: usize = 1_000;

/// Samples at most [`ITEMS_MAX`] of the pairs.
fn sample(pairs: &Pairs, seed: u64) -> Pairs {
    pairs.select(&parted(&folds(pairs.len(), pairs.len().div_ceil(ITEMS_MAX), seed), 0).0)
}

/// Checks which vectors a head of the new model classifies better: they should be the new ones.
///
/// With labels, the head classifies the new vectors better than the old ones; without, it is surer of them
/// (the mean of its largest probability). Where it is the other way round by more than ten points, old and
/// new are probably swapped. Two widths tell that apart by themselves: the head fits one of them only.
///
/// # Errors
///
/// [`rehang_core::ErrorKind::WrongDirection`] for a head that has the width of the old vectors and not that of the
/// new ones, [`rehang_core::ErrorKind::WidthMismatch`] for one that has neither.
pub fn head(pairs: &Pairs, head: &Head, seed: u64) -> Result<Option<Finding>> {
    const MARGIN: f64 = 10.0;
    let (d_old, d_new) = (pairs.old().dimension(), pairs.new_vectors().dimension());
    if head.dimension() != d_new && head.dimension() == d_old {
        let evidence = format!(
            "the head, which is the new model's, takes vectors of {d_old} coordinates, as the old ones have, and the new \
             ones have {d_new}"
        );
        return Err(rehang_core::ErrorKind::WrongDirection { evidence }.into());
    }
    expect_width("head weight", d_new, head.dimension())?;
    if d_old != d_new || pairs.len() < PAIRS_MIN {
        return Ok(None);
    }
    let sample = sample(pairs, seed);
    let labels = known_labels(&sample);
    let (old, new) = (sample.old().matrix(), sample.new_vectors().matrix());
    let (verb, old, new) = match labels {
        Some(labels) => ("classifies", classified(head, old, labels), classified(head, new, labels)),
        None => ("is sure of", sureness(head, old)?, sureness(head, new)?),
    };
    let message = format!(
        "The head, which is the new model's, {verb} old vectors better ({old:.0} % against {new:.0} % for new ones)."
    );
    Ok((old > new + MARGIN).then(|| {
        Finding::warning(FindingCode::Swapped, message)
            .may_mean("Old and new are probably swapped, or the head is the old model's.")
            .evidence(&[("old_percent", old), ("new_percent", new)])
    }))
}

/// Returns the percentage of rows with a known label that a head gives that label.
pub fn classified(head: &Head, rows: &Matrix, labels: &[i64]) -> f64 {
    let labelled: Vec<usize> = (0..labels.len()).filter(|&row| labels[row] >= 0).collect();
    let logits = logits(head, &rows.select(&labelled));
    let is_right = |(row, logits): &(&usize, &Vec<f64>)| {
        let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        best.is_some_and(|(class, _)| class as i64 == labels[**row])
    };
    100.0 * labelled.iter().zip(&logits).filter(is_right).count() as f64 / labelled.len().max(1) as f64
}

/// Returns the mean of a head's largest probability, in percent.
fn sureness(head: &Head, rows: &Matrix) -> Result<f64> {
    let doubts = least_confidence(head, rows)?;
    Ok(100.0 * (1.0 - doubts.iter().sum::<f64>() / doubts.len().max(1) as f64))
}

/// Says what pairs without labels leave open, so that a reader does not take silence for an answer; nothing
/// where labels are known.
pub fn left_open(pairs: &Pairs, has_head: bool) -> Option<Finding> {
    if known_labels(pairs).is_some() {
        return None;
    }
    let direction = if has_head && pairs.old().dimension() == pairs.new_vectors().dimension() {
        ""
    } else {
        ", nor for certain that old and new are not swapped"
    };
    let message = format!(
        "Without labels nothing here can tell whether the new model finds better results than the old one{direction}."
    );
    let meaning = "Agreement only says how near results come to the new model's own.";
    Some(Finding::note(FindingCode::UnknownWithoutLabels, message).may_mean(meaning))
}

/// Squared error, as a part of the new vectors' variance, from which a map may have learned nothing: one that
/// is drawn towards the mean ends a little above or below it.
pub const ERROR_OF_THE_MEAN: f64 = 0.98;

/// Looks at how the methods did on held-out pairs: where none predicts new vectors better than their mean
/// does, nor [finds them](finds_own), there is nothing that an adapter could learn. `errors` are squared
/// errors as parts of the new vectors' variance; `is_any_found` says whether the outputs of any method find
/// the new vectors of their own pairs.
pub fn useless(errors: &[f64], is_any_found: bool) -> Option<Finding> {
    let best = errors.iter().copied().fold(f64::INFINITY, f64::min);
    (!is_any_found && best.is_finite() && best >= ERROR_OF_THE_MEAN).then(|| no_better_than_the_mean(best))
}

fn no_better_than_the_mean(error: f64) -> Finding {
    let percent = 100.0 * error;
    let message = format!(
        "Adapted vectors are no nearer to the native ones than their mean is (error {percent:.0} % of the variance), and do \
         not find their own among these."
    );
    Finding::problem(FindingCode::NoBetterThanTheMean, message)
        .may_mean("The pairs may be in different orders, or old and new are swapped.")
        .evidence(&[("error_old_to_new", error)])
}

/// Measures R² of a ridge map on a held-out fifth.
fn explained(pairs: &Pairs, seed: u64, progress: &Progress) -> Result<f64> {
    let (left_out, fitted) = parted(&folds(pairs.len(), 5, seed), 0);
    let held_out = pairs.select(&left_out);
    let without = ridge::fit_leaving_out(pairs, None, &ridge::PENALTIES, progress)?.1;
    let outputs = without.outputs(pairs, &[LeftOut { fitted, asked: left_out }], progress)?.remove(0);
    Ok(1.0 - relative_error(&outputs, &held_out))
}

/// Looks at a finished map on pairs that it was not fitted on: does it carry old vectors to their new ones,
/// or does it do so only the wrong way round?
///
/// A map of the wrong direction fails silently: its outputs are vectors like any other. It is a problem where
/// outputs are no nearer to the new vectors than their mean is and do not [find their own](finds_own) among
/// these either. It is a sign of swapped files where the map, applied to the new vectors (widths permitting), comes
/// near the old ones.
///
/// # Errors
///
/// [`rehang_core::ErrorKind::WidthMismatch`] where the map does not fit the pairs,
/// [`rehang_core::ErrorKind::MissingInput`] for missing side information.
pub fn map_direction(map: &Map, geometry: &Geometry, pairs: &Pairs) -> Result<Option<Finding>> {
    let outputs = geometry.conformed(map.outputs(pairs.old().matrix(), pairs.side())?);
    let forward = relative_error(&outputs, pairs);
    if forward < 1.0 {
        return Ok(None);
    }
    if pairs.old().dimension() == pairs.new_vectors().dimension() {
        let swapped =
            Pairs::new(pairs.new_vectors().clone(), pairs.old().clone(), None, pairs.side().cloned())?;
        let outputs = geometry.conformed(map.outputs(swapped.old().matrix(), swapped.side())?);
        let backward = relative_error(&outputs, &swapped);
        if backward < 1.0 {
            let message = format!(
                "The adapter carries new vectors to old ones (error {:.0} % of their variance), not old ones to new ones \
                 ({:.0} %).",
                100.0 * backward,
                100.0 * forward
            );
            let evidence = [("error_old_to_new", forward), ("error_new_to_old", backward)];
            let finding = Finding::problem(FindingCode::WrongDirection, message);
            return Ok(Some(finding.remedy("Swap old and new.").evidence(&evidence)));
        }
    }
    Ok((!finds_own(&outputs, pairs.new_vectors().matrix())?).then(|| no_better_than_the_mean(forward)))
}

/// Returns whether outputs `[n, d_new]` find the new vectors `[n, d_new]` of their own pairs: on average, less
/// than 40 % of the other new vectors lie nearer to an output (L2) than its own one does. By chance it is half
/// of them, and it is to be less than that by four standard errors, `√(1 / (12 n))`: fewer than 134 pairs
/// have to do better than 40 %. Outputs are moved to the mean of the new vectors first: a map that is off by
/// a constant is none of another order.
///
/// The squared error does not say it. Outputs of length 1 whose cosine to their new vectors is ½ have an error
/// of 1, as their mean has, and find them among a thousand others.
///
/// # Errors
///
/// As [`distances_by_query`].
pub fn finds_own(outputs: &Matrix, new: &Matrix) -> Result<bool> {
    const SHARE_MAX: f64 = 0.4;
    const ERRORS: f64 = 4.0;
    let n = outputs.rows();
    if n < 2 {
        return Ok(false);
    }
    let (centre, centre_of_outputs) = (column_means(new), column_means(outputs));
    let moved = Matrix::from_fn(n, new.columns(), |row, column| {
        (f64::from(outputs.row(row)[column]) + centre[column] - centre_of_outputs[column]) as f32
    });
    let shares = shares_nearer(&moved, new)?;
    let by_chance = 0.5 - ERRORS * (1.0 / (12.0 * n as f64)).sqrt();
    Ok(shares.iter().sum::<f64>() / (n as f64) < SHARE_MAX.min(by_chance))
}

/// Returns, for each of two or more outputs `[n, d_new]`, the share of the other new vectors `[n, d_new]`
/// that lie nearer to it (L2) than its own one does. A right map has 0; by chance all shares are as likely.
///
/// # Errors
///
/// As [`distances_by_query`].
pub(crate) fn shares_nearer(outputs: &Matrix, new: &Matrix) -> Result<Vec<f64>> {
    let n = outputs.rows();
    let share_nearer = |row: usize, distances: &[f64]| {
        let own_distance = distances[row];
        let nearer = distances.iter().filter(|&&distance| distance < own_distance).count() as f64;
        let as_near = distances.iter().filter(|&&distance| distance == own_distance).count() - 1;
        (nearer + 0.5 * as_near as f64) / (n - 1) as f64
    };
    let rows: Vec<usize> = (0..n).collect();
    distances_by_query(new, outputs, &rows, Distance::L2, &Progress::default(), share_nearer)
}

/// Looks for evaluation items among the pairs of a fit, by their `old` vectors: numbers measured on such
/// items only say how well the adapter remembers.
pub fn overlap(pairs: &Pairs, old: &Matrix) -> Option<Finding> {
    let (shared, evaluated) = (rehang_core::adapter::overlap(pairs.old().matrix(), old), old.rows());
    let severity = if shared * 100 > evaluated { Severity::Problem } else { Severity::Warning };
    let message =
        format!("{shared} of {evaluated} evaluation items have old vectors that are among the pairs.");
    (shared > 0).then(|| {
        Finding::new(severity, FindingCode::Overlap, message)
            .may_mean("Numbers on them are too good.")
            .remedy("Leave them out of one of the two.")
            .evidence(&[("shared", shared as f64), ("evaluated", evaluated as f64)])
    })
}

/// Numbers that a curve gives for one measure, in percent.
#[derive(Debug, Clone, PartialEq)]
pub struct CurveSummary {
    /// Name of the measure ("mAP", "top-1", "agreement@10").
    pub measure: String,
    /// Quality of old queries in the old gallery: doing nothing.
    pub do_nothing: f64,
    /// Quality of new queries, every gallery vector adapted.
    pub start: f64,
    /// Mean over the curve.
    pub area: f64,
    /// Lowest point of the curve.
    pub minimum: f64,
    /// Quality of new queries, every gallery vector native.
    pub end: f64,
}

/// Looks for a gain that is not there: a new model that is no better, a curve that is below doing nothing at
/// its start or on the whole, a curve that dips below its own start.
///
/// [`is_below`] says what counts as below; a dip is one of more than 0.1 points.
pub fn gain(curve: &CurveSummary) -> Vec<Finding> {
    const DIP: f64 = 0.1;
    let CurveSummary { measure, do_nothing, start, area, minimum, end } = curve;
    let evidence = [
        ("do_nothing", *do_nothing),
        ("start", *start),
        ("area", *area),
        ("minimum", *minimum),
        ("end", *end),
    ];
    let mut findings = Vec::new();
    let mut add = |severity, code, message: String, remedy: &str| {
        findings.push(Finding::new(severity, code, message).remedy(remedy).evidence(&evidence));
    };
    if !is_below(*do_nothing, *end) {
        add(
            Severity::Problem,
            FindingCode::NoGain,
            format!("{measure}: the new model reaches {end:.1} and doing nothing has {do_nothing:.1}."),
            "Do not upgrade for this measure.",
        );
    } else if !is_below(*do_nothing, *area) {
        add(
            Severity::Warning,
            FindingCode::GainIsLate,
            format!(
                "{measure}: over the whole upgrade quality averages {area:.1}, below doing nothing ({do_nothing:.1})."
            ),
            "Switch queries late.",
        );
    } else if is_below(*start, *do_nothing) {
        add(
            Severity::Warning,
            FindingCode::StartBelowDoNothing,
            format!(
                "{measure}: right after the switch quality is {start:.1}, below doing nothing ({do_nothing:.1})."
            ),
            "Re-embed some items before the switch.",
        );
    }
    if *minimum < start - DIP && *minimum < *end {
        let message = format!("{measure}: the curve falls to {minimum:.1} after starting at {start:.1}.");
        let finding = Finding::warning(FindingCode::CurveDips, message);
        findings.push(finding.may_mean("Mixed vectors disturb each other.").evidence(&evidence));
    }
    findings
}

/// Finds one vector that many items have although their vectors of the other model differ, and returns how
/// many items have it. An item that is in the gallery twice has the same vector by both models, and does not
/// count.
pub(crate) fn one_vector(side: &str, rows: &Matrix, other_rows: &Matrix) -> Option<(usize, Finding)> {
    /// Number of different items below which one vector is no pattern.
    const DIFFERENT_MIN: usize = 5;
    let n = rows.rows();
    let largest = equal_rows(rows, |row| !is_zero(rows.row(row))).into_iter().max_by_key(Vec::len)?;
    let different = equal_rows(other_rows, |row| largest.binary_search(&row).is_ok()).len();
    if different < DIFFERENT_MIN.max(n / 100) {
        return None;
    }
    let (count, other) = (largest.len(), if side == "old" { "new" } else { "old" });
    let percent = 100.0 * count as f64 / n as f64;
    let message = format!(
        "{count} of {n} {side} vectors ({percent:.0} %) are one and the same vector, though the {other} vectors of these items differ."
    );
    let severity = if count * 20 > n { Severity::Problem } else { Severity::Warning };
    let finding = Finding::new(severity, FindingCode::OneVector, message)
        .may_mean("A model or a service that fails may give one vector for every content, and no search tells such items apart.")
        .remedy("Look at how they were made, and embed these items again before queries are switched.")
        .evidence(&[("equal", count as f64), ("rows", n as f64)]);
    Some((count, finding))
}

/// Groups the rows of a selection, increasing, by equality of all their bits.
fn equal_rows(rows: &Matrix, select: impl Fn(usize) -> bool) -> Vec<Vec<usize>> {
    let bits = |row: usize| rows.row(row).iter().map(|value| value.to_bits());
    let mut order: Vec<usize> = (0..rows.rows()).filter(|&row| select(row)).collect();
    order.sort_by(|&a, &b| bits(a).cmp(bits(b)));
    order.chunk_by(|&a, &b| bits(a).eq(bits(b))).map(<[usize]>::to_vec).collect()
}

/// Counts the different rows that are not zero.
fn distinct_rows(rows: &Matrix) -> usize {
    equal_rows(rows, |row| !is_zero(rows.row(row))).len()
}

fn is_zero(row: &[f32]) -> bool {
    row.iter().all(|&value| value == 0.0)
}

#[cfg(test)]
mod tests {
    use rehang_core::HeadKind;

    use super::*;
    use crate::tests::test_data::{affine, pairs as make, random_matrix};

    fn codes(findings: &[Finding]) -> Vec<FindingCode> {
        findings.iter().map(|finding| finding.code.clone()).collect()
    }

    /// Makes a rich new space of eight coordinates, of which the old model sees three.
    fn upgrade() -> (Matrix, Matrix, Vec<i64>) {
        let labels: Vec<i64> = (0..400).map(|item| item % 8).collect();
        let noise = random_matrix(400, 8, 1);
        let new = Matrix::from_fn(400, 8, |r, c| noise.row(r)[c] + if c == r % 8 { 5.0 } else { 0.0 });
        let old = affine(&new, &random_matrix(3, 8, 2), &[0.0; 3]);
        (old, new, labels)
    }

    #[test]
    fn swapped_pairs_are_noticed_with_and_without_labels() {
        let (old, new, labels) = upgrade();
        for labels in [Some(labels), None] {
            let right = make(old.clone(), new.clone(), labels.clone());
            assert!(direction(&right, 0, &Progress::default()).unwrap().is_none());
            let wrong = make(new.clone(), old.clone(), labels);
            let finding = direction(&wrong, 0, &Progress::default()).unwrap().unwrap();
            assert_eq!(finding.code, FindingCode::Swapped);
        }
    }

    #[test]
    fn a_head_knows_its_own_models_vectors() {
        let (_, new, labels) = upgrade();
        let old = affine(&new, &random_matrix(8, 8, 2), &[0.0; 8]);
        let weight = Matrix::from_fn(8, 8, |class, column| if class == column { 3.0 } else { 0.0 });
        for kind in [HeadKind::Softmax, HeadKind::ArcFace { scale: 16.0, margin: 0.3 }] {
            let its = Head::new(weight.clone(), None, kind).unwrap();
            assert!(classified(&its, &new, &labels) > 90.0);
            assert!(classified(&its, &old, &labels) < 60.0);
            let right = make(old.clone(), new.clone(), Some(labels.clone()));
            assert!(head(&right, &its, 0).unwrap().is_none());
            let wrong = make(new.clone(), old.clone(), Some(labels.clone()));
            assert_eq!(head(&wrong, &its, 0).unwrap().unwrap().code, FindingCode::Swapped);
        }
        let its = Head::new(weight, None, HeadKind::Softmax).unwrap();
        let narrow = make(new.clone(), random_matrix(400, 3, 1), None);
        let error = head(&narrow, &its, 0).unwrap_err();
        assert!(matches!(error.kind(), rehang_core::ErrorKind::WrongDirection { .. }), "{error}");
        let neither = make(random_matrix(400, 5, 1), random_matrix(400, 3, 1), None);
        let error = head(&neither, &its, 0).unwrap_err();
        assert!(matches!(error.kind(), rehang_core::ErrorKind::WidthMismatch { .. }), "{error}");
    }

    #[test]
    fn what_labels_would_say_is_left_open_without_them() {
        let (old, new, labels) = upgrade();
        assert!(left_open(&make(old.clone(), new.clone(), Some(labels)), false).is_none());
        let unknown = make(old, new, Some(vec![-1; 400]));
        assert!(left_open(&unknown, true).unwrap().seen.contains("swapped"), "a head of another width");
    }

    #[test]
    fn maps_that_learned_nothing_are_a_problem_and_one_that_did_is_enough() {
        assert_eq!(useless(&[1.3, 1.01], false).unwrap().code, FindingCode::NoBetterThanTheMean);
        assert!(useless(&[1.3, 1.01], true).is_none());
        assert!(useless(&[1.3, 0.7], false).is_none());
        assert!(useless(&[], false).is_none());
    }

    /// Outputs at a cosine of ½ from their new vectors, all of length 1, have the error of the mean.
    #[test]
    fn outputs_find_their_own_new_vectors_where_their_error_says_nothing() {
        let unit = |rows: Matrix| {
            let length = |row: &[f32]| row.iter().map(|x| x * x).sum::<f32>().sqrt();
            Matrix::from_fn(rows.rows(), rows.columns(), |r, c| rows.row(r)[c] / length(rows.row(r)))
        };
        let (new, noise) = (unit(random_matrix(300, 64, 1)), unit(random_matrix(300, 64, 2)));
        let outputs =
            Matrix::from_fn(300, 64, |r, c| 0.5 * new.row(r)[c] + 0.75_f32.sqrt() * noise.row(r)[c]);
        let pairs = make(outputs.clone(), new.clone(), None);
        assert!((0.9..1.1).contains(&relative_error(&outputs, &pairs)));
        assert!(finds_own(&outputs, &new).unwrap());
        let turned: Vec<usize> = (0..300).map(|row| (row + 1) % 300).collect();
        assert!(!finds_own(&outputs.select(&turned), &new).unwrap(), "rows that are shifted by one");
        // Most of the rows in their places, and one in twenty.
        let swapped = |places: usize| {
            let rows: Vec<usize> = (0..300)
                .map(|row| if row < places { row } else { places + (row + 1) % (300 - places) })
                .collect();
            outputs.select(&rows)
        };
        assert!(finds_own(&swapped(180), &new).unwrap() && !finds_own(&swapped(15), &new).unwrap());
        assert!(!finds_own(&outputs.select(&[0]), &new.select(&[0])).unwrap());
    }

    #[test]
    fn a_map_of_the_wrong_direction_is_told_from_a_useless_one() {
        let old = random_matrix(200, 4, 3);
        let new = affine(&old, &random_matrix(4, 4, 4), &[3.0; 4]);
        let right = make(old.clone(), new.clone(), None);
        let wrong = make(new.clone(), old.clone(), None);
        let fit = |pairs: &Pairs| ridge::fit(pairs, &Progress::default()).unwrap().map;
        assert!(map_direction(&fit(&right), &Geometry::Raw, &right).unwrap().is_none());
        let finding = map_direction(&fit(&wrong), &Geometry::Raw, &right).unwrap();
        assert_eq!(finding.unwrap().code, FindingCode::WrongDirection);
        let shuffled: Vec<usize> = (0..200).map(|row| (row * 77 + 5) % 200).collect();
        let mixed = make(old.select(&shuffled), new, None);
        let finding = map_direction(&fit(&right), &Geometry::Raw, &mixed).unwrap();
        assert_eq!(finding.unwrap().code, FindingCode::NoBetterThanTheMean);
        // Outputs that are farther from the vectors than their mean is, and among the right neighbours all
        // the same.
        let (old, noise) = (random_matrix(200, 32, 5), random_matrix(200, 32, 6));
        let new = affine(&old, &random_matrix(32, 32, 7), &[0.0; 32]);
        let rough =
            Matrix::from_fn(200, 32, |row, column| old.row(row)[column] + 1.2 * noise.row(row)[column]);
        let (exact, rough) = (make(old, new.clone(), None), make(rough, new, None));
        let map = fit(&exact);
        let outputs = Geometry::Raw.conformed(map.outputs(rough.old().matrix(), None).unwrap());
        assert!(relative_error(&outputs, &rough) > 1.0);
        assert!(map_direction(&map, &Geometry::Raw, &rough).unwrap().is_none());
    }

    #[test]
    fn evaluation_items_among_the_pairs_are_counted() {
        let (old, new, _) = upgrade();
        let mut evaluation = random_matrix(10, 3, 9);
        assert!(overlap(&make(old.clone(), new.clone(), None), &evaluation).is_none());
        evaluation.row_mut(4).copy_from_slice(old.row(17));
        let finding = overlap(&make(old, new, None), &evaluation).unwrap();
        assert_eq!(finding.evidence[0], ("shared".into(), 1.0));
        assert_eq!(finding.severity, Severity::Problem);
    }

    #[test]
    fn zero_rows_are_no_overlap() {
        let rows = Matrix::zeros(60, 3);
        let data = make(rows.clone(), random_matrix(60, 2, 1), None);
        assert!(overlap(&data, &rows).is_none());
        assert_eq!(codes(&pairs(&data)), [FindingCode::ConstantVectors]);
    }

    #[test]
    fn a_gain_that_is_not_there_is_said() {
        let curve = |start, area, minimum, end| CurveSummary {
            measure: "mAP".into(),
            do_nothing: 50.0,
            start,
            area,
            minimum,
            end,
        };
        assert!(gain(&curve(55.0, 60.0, 55.0, 70.0)).is_empty());
        assert_eq!(codes(&gain(&curve(40.0, 45.0, 40.0, 49.0))), [FindingCode::NoGain]);
        assert_eq!(codes(&gain(&curve(30.0, 45.0, 30.0, 60.0))), [FindingCode::GainIsLate]);
        assert_eq!(
            codes(&gain(&curve(45.0, 55.0, 40.0, 60.0))),
            [FindingCode::StartBelowDoNothing, FindingCode::CurveDips]
        );
    }

    #[test]
    fn one_vector_for_different_items_is_said_as_that() {
        let (old, new) = (random_matrix(200, 4, 1), random_matrix(200, 6, 2));
        let new = Matrix::from_fn(200, 6, |row, column| new.row(if row % 5 == 0 { 7 } else { row })[column]);
        let findings = pairs(&make(old.clone(), new.clone(), None));
        assert_eq!(codes(&findings), [FindingCode::OneVector]);
        assert!(findings[0].seen.starts_with("41 of 200 new vectors"), "{}", findings[0]);
        assert_eq!(findings[0].severity, Severity::Problem);
        assert_eq!(codes(&pairs(&make(new, old, None))), [FindingCode::OneVector]);
        // Items that are in the gallery twice have both vectors twice.
        let twice = |rows: Matrix| {
            Matrix::from_fn(200, 4, |row, column| rows.row(if row < 60 { 0 } else { row })[column])
        };
        let findings = pairs(&make(twice(random_matrix(200, 4, 1)), twice(random_matrix(200, 4, 2)), None));
        assert_eq!(codes(&findings), [FindingCode::DuplicateVectors, FindingCode::DuplicateVectors]);
    }

    #[test]
    fn few_and_repeated_pairs_are_said() {
        let old = Matrix::from_fn(40, 2, |row, column| (row / 2 + column) as f32);
        let findings = pairs(&make(old, random_matrix(40, 3, 1), None));
        assert_eq!(codes(&findings), [FindingCode::FewPairs, FindingCode::DuplicateVectors]);
    }
}
