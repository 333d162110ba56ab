//! Finds pairs whose old vector is the new model's already, as where a part of a gallery was made with
//! another setting of one model.

use rehang_core::finding::{Finding, FindingCode};
use rehang_core::statistics::bootstrap_means;
use rehang_core::{DIFFERENCE_MAX, Pairs, Result, difference};

use crate::per_kind::KIND_MIN;

/// Smallest part of the pairs that has to have the new model's vector for that to be told.
const SHARE_MIN: f64 = 0.2;

/// Percentage of the differing pairs that has to come first for a stop after them to be worth a word.
const FOUND_MIN: f64 = 90.0;

/// Tells which pairs have the new model's vector already, `[n]`. `None` where less than a fifth of them have
/// it, or the spaces differ in width or distance.
fn same_vectors(pairs: &Pairs) -> Option<Vec<bool>> {
    let (old, new) = (pairs.old(), pairs.new_vectors());
    let distance = new.space().distance;
    if old.dimension() != new.dimension() || old.space().distance != distance {
        return None;
    }
    let is_same =
        |row: usize| difference(distance, old.matrix().row(row), new.matrix().row(row)) <= DIFFERENCE_MAX;
    let same: Vec<bool> = (0..pairs.len()).map(is_same).collect();
    (count(&same) > 0 && count(&same) as f64 >= SHARE_MIN * same.len() as f64).then_some(same)
}

/// Tells the two kinds of pairs apart for a map of each, `true` where the old vector is the new model's.
/// `None` also where pairs that differ are too few for a map, and where lengths count, which a map of
/// directions would lose.
pub(crate) fn kinds(pairs: &Pairs) -> Option<Vec<bool>> {
    let same = same_vectors(pairs).filter(|same| same.len() - count(same) >= KIND_MIN)?;
    let spaces = [pairs.old().space(), pairs.new_vectors().space()];
    spaces.iter().all(|space| !space.heeds_lengths()).then_some(same)
}

/// Share of the differing pairs that come first, by the largest σ²; each pair's σ² is learned without it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorstFirst {
    /// Part of the pairs that comes first.
    first: f64,
    /// Part of the differing pairs that is among the first.
    share: f64,
}

impl WorstFirst {
    /// Measures the share on a little more pairs than differ. `left_out` are pairs, by row, with their σ².
    pub(crate) fn measured(pairs: &Pairs, left_out: &[(usize, f64)]) -> Option<Self> {
        const MORE: f64 = 0.05;
        let same = same_vectors(pairs)?;
        let mut order = left_out.to_vec();
        order.sort_by(|a, b| b.1.total_cmp(&a.1));
        let differ = |pairs: &[(usize, f64)]| pairs.iter().filter(|&&(row, _)| !same[row]).count() as f64;
        let (n, all) = (order.len() as f64, differ(&order));
        if all == 0.0 {
            return None;
        }
        let first = (all / n + MORE).min(1.0);
        Some(Self { first, share: differ(&order[..(first * n) as usize]) / all })
    }
}

/// Says how many pairs have the new model's vector already, with the range of their part of a gallery.
pub(crate) fn finding(pairs: &Pairs, differing: Option<WorstFirst>, seed: u64) -> Result<Option<Finding>> {
    let Some(same) = same_vectors(pairs) else { return Ok(None) };
    let percents: Vec<f64> = same.iter().map(|&same| 100.0 * f64::from(u8::from(same))).collect();
    let part = bootstrap_means(&percents, 1, 1000, 0.95, seed)?[0];
    let (count, n) = (count(&same), same.len());
    let message = format!(
        "{count} of {n} pairs ({:.0} %; of the gallery {:.0} to {:.0} %) have the very vector of the new model already.",
        part.estimate, part.low, part.high
    );
    let mut evidence =
        vec![("same", count as f64), ("pairs", n as f64), ("low", part.low), ("high", part.high)];
    let mut remedy = String::new();
    if let Some(WorstFirst { first, share }) = differing {
        let (first, share) = (100.0 * first, 100.0 * share);
        let told = format!(
            "of left-out pairs, the {first:.0} % with the largest σ² have {share:.0} % of those that differ."
        );
        remedy = if share >= FOUND_MIN {
            format!("Re-embed worst first and stop early: {told}")
        } else {
            format!("Re-embed worst first, and all: which differ, old vectors tell in part; {told}")
        };
        evidence.extend([("first", first), ("found", share)]);
    }
    Ok(Some(
        Finding::note(FindingCode::SameVectors, message)
            .may_mean("Such items need no embedding.")
            .remedy(remedy)
            .evidence(&evidence),
    ))
}

fn count(same: &[bool]) -> usize {
    same.iter().filter(|&&same| same).count()
}

#[cfg(test)]
mod tests {
    use rehang_core::adapter::true_errors;
    use rehang_core::{Distance, Matrix, Progress, Vectors, adapter};

    use super::*;
    use crate::auto::{Fitted, fit_with};
    use crate::method::Method;
    use crate::parameters::FitParameters;
    use crate::tests::test_data::{affine, pairs as of_l2, random_matrix};

    fn differs(row: usize) -> bool {
        row / 10 % 5 == 1
    }

    /// Makes items in ten clusters, with the new vector as the old one. One in five keeps only a part of it,
    /// and noise. The noise of `seed` differs.
    fn vectors(n: usize, seed: u64, keeps: f32) -> (Matrix, Matrix) {
        let (centres, within) = (random_matrix(10, 24, 1), random_matrix(n, 24, seed));
        let new = Matrix::from_fn(n, 24, |row, axis| centres.row(row % 10)[axis] + within.row(row)[axis]);
        let (turned, noise) =
            (affine(&new, &random_matrix(24, 24, 4), &[0.5; 24]), random_matrix(n, 24, seed + 1));
        let old = Matrix::from_fn(n, 24, |row, axis| {
            if differs(row) {
                keeps * new.row(row)[axis] + 0.2 * turned.row(row)[axis] + 0.1 * noise.row(row)[axis]
            } else {
                new.row(row)[axis]
            }
        });
        (old, new)
    }

    fn pairs(n: usize, seed: u64, keeps: f32) -> Pairs {
        let (old, new) = vectors(n, seed, keeps);
        let vectors = |name, rows| Vectors::measured(name, Distance::Cosine, rows, name).unwrap();
        Pairs::new(vectors("old", old), vectors("new", new), None, None).unwrap()
    }

    fn fit(pairs: &Pairs, method: Method) -> Fitted {
        let parameters = FitParameters { method, ..FitParameters::default() };
        fit_with(pairs, None, &parameters, &[], &Progress::default()).unwrap()
    }

    fn said(fitted: &Fitted) -> Vec<&Finding> {
        let codes = [FindingCode::SameVectors, FindingCode::TwoKinds, FindingCode::Misfits];
        fitted.findings.iter().filter(|finding| codes.contains(&finding.code)).collect()
    }

    #[test]
    fn vectors_that_are_the_new_ones_stay_and_the_others_come_first() {
        let fitted = fit(&pairs(1_000, 2, 0.0), Method::PerKind);
        let [finding] = said(&fitted)[..] else { panic!("{:?}", fitted.findings) };
        let beginning = "800 of 1000 pairs (80 %; of the gallery 77 to 82 %) have the very vector";
        assert!(finding.seen.starts_with(beginning), "{finding}");
        assert!(
            finding.remedy.contains("stop early: of left-out pairs, the 25 % with the largest σ² have 93 %"),
            "{finding}"
        );
        // Items that no fit has seen.
        let fresh = pairs(500, 20, 0.0);
        let adapted = adapter::apply(&fitted.adapter, fresh.old(), None, &Progress::default()).unwrap();
        let unit = |rows: &Matrix| {
            let mut rows = rows.clone();
            rows.normalise_rows();
            rows
        };
        let native = unit(fresh.new_vectors().matrix());
        let errors = true_errors(&native, &unit(adapted.vectors.matrix()));
        let of_identity = true_errors(&native, &unit(fresh.old().matrix()));
        let sum = |errors: &[f64], of: bool| {
            (0..500).filter(|&row| differs(row) == of).map(|row| errors[row]).sum::<f64>()
        };
        assert!(sum(&errors, false) < 0.05 * 400.0, "{}", sum(&errors, false));
        assert!(sum(&errors, true) < 0.5 * sum(&of_identity, true), "{}", sum(&errors, true));
        let mut order: Vec<usize> = (0..500).collect();
        order.sort_by(|&a, &b| adapted.variance[b].total_cmp(&adapted.variance[a]));
        let differing_count = order[..125].iter().filter(|&&row| differs(row)).count();
        assert!(differing_count >= 90, "{differing_count}");
    }

    #[test]
    fn a_map_that_keeps_them_is_tried_and_none_is_kept_that_is_worse_than_the_old_vectors() {
        let fitted = fit(&pairs(1_000, 2, 1.0), Method::Auto);
        // The old vectors of these pairs say little of their kind, and so does σ².
        assert!(said(&fitted)[0].remedy.contains("and all: which differ, old vectors tell in part"));
        let selection = fitted.selection.unwrap();
        let row = |method: Method| selection.rows.iter().find(|row| row.method == method).unwrap();
        let (kept_row, identity) = (&selection.rows[selection.kept.unwrap()], row(Method::DoNothing));
        assert!(kept_row.area >= identity.area - kept_row.spread.unwrap(), "{kept_row:?} {identity:?}");
        assert!(kept_row.relative_error <= identity.relative_error, "{kept_row:?} {identity:?}");
        // A map that keeps these vectors too is nearer to the native ones than any that turns them.
        let error = row(Method::PerKind).relative_error;
        assert!(
            error < 0.9 * row(Method::KernelRidge).relative_error && error < 0.9 * identity.relative_error
        );
    }

    /// Directions alone would be right where lengths count: it is said, and no map takes the lengths away.
    #[test]
    fn vectors_with_lengths_are_told_and_mapped_as_before() {
        let (old, new) = vectors(600, 2, 0.0);
        let fitted = fit(&of_l2(old, new, None), Method::Auto);
        assert!(said(&fitted).iter().any(|finding| finding.seen.starts_with("480 of 600 pairs (80 %")));
        assert_ne!(fitted.adapter.training.method, Method::PerKind.name());
    }

    #[test]
    fn few_that_are_the_same_and_all_that_are_say_so() {
        let (old, new) = vectors(400, 2, 0.0);
        let mix = |rows: usize| {
            let mixed =
                |row: usize, axis: usize| if row < rows { new.row(row)[axis] } else { -old.row(row)[axis] };
            of_l2(Matrix::from_fn(400, 24, mixed), new.clone(), None)
        };
        assert_eq!(same_vectors(&mix(79)), None);
        assert_eq!(count(&same_vectors(&mix(80)).unwrap()), 80);
        let all = finding(&mix(400), None, 0).unwrap().unwrap();
        assert!(all.seen.starts_with("400 of 400 pairs (100 %; of the gallery 100 to 100 %)"), "{all}");
        // The widths differ.
        assert!(same_vectors(&of_l2(random_matrix(60, 3, 1), random_matrix(60, 4, 1), None)).is_none());
    }
}
