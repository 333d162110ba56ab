//! Chooses how far adapted vectors are moved away from every query, so that they do not push native ones
//! aside.
//!
//! An output of a map is an estimate, and an estimate lies nearer to everything than what it estimates: with
//! an error e that does not depend on the query q, `E‖q − v‖² = ‖q − h(o)‖² + E‖e‖²`. In a gallery that is
//! partly native a wrong adapted item therefore stands before a right native one too often. Adding a constant
//! to every distance to an adapted vector mends that. Adding all of `E‖e‖²` would put right adapted items
//! behind every native one as well. So the search tries parts of it on pairs that the map was not fitted on,
//! where [`rehang_core::curve`] says what each is worth.

use std::iter::successors;

use rehang_core::curve::{Line, TOP1};
use rehang_core::{Distance, Matrix, Progress, Result};
use serde::{Deserialize, Serialize};

use crate::retrieval::Gallery;

/// Parts of the mean squared error that are tried first, from 0 up; of equals the first is kept.
const PARTS: [f64; 9] = [0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5];
/// Factor from one part to the next, beyond [`PARTS`].
const GROWTH: f64 = 1.25;
/// Largest part that is tried. An estimate of a fair map wants less than one, and such a handicap puts native
/// items before adapted ones for nearly every query.
const PART_MAX: f64 = 16.0;
/// Number of parts above the best one that have to be no better before the search ends.
const PATIENCE: usize = 3;

/// Worth of one handicap on left-out pairs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HandicapRow {
    /// The handicap, in the unit of the new space's distance.
    pub handicap: f64,
    /// Handicap as a part of the mean squared error of the map.
    pub part: f64,
    /// Areas of the curves in random order, percent, one for every set of outputs, by the criterion that
    /// methods are chosen by as well.
    pub areas: Vec<f64>,
    /// Areas of the same curves by top-1; empty where nothing says what is right.
    pub top1: Vec<f64>,
}

/// Choice of an adapter's handicap, with everything that was tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HandicapChoice {
    /// Name of the criterion that `areas` are measured by, such as `"mAP"` or `"agreement@10"`.
    pub criterion: String,
    /// Rows of every handicap that was tried, from none on, until three larger ones were no better.
    pub rows: Vec<HandicapRow>,
    /// Place of the row that was kept.
    pub kept: usize,
}

impl HandicapChoice {
    /// Returns the handicap that was kept, for [`rehang_core::adapter::Adapter::handicap`].
    pub fn handicap(&self) -> f64 {
        self.rows[self.kept].handicap
    }
}

/// Returns all of a map's mean squared error `E‖v − h(o)‖²` [in the unit](Distance::of_squared_error) of the
/// distance between new vectors, `[n, d_new]`.
pub(crate) fn whole(native: &Matrix, distance: Distance, mean_squared_error: f64) -> f64 {
    let squared_length = native.norms().iter().map(|norm| norm * norm).sum::<f64>() / native.rows() as f64;
    distance.of_squared_error(mean_squared_error, squared_length)
}

/// Values that were tried, and the place of the one that was kept.
pub(crate) type Searched<T> = (Vec<T>, usize);

/// Tries parts of the mean squared error upwards, and ends where three more are no better; it stops at
/// [`PART_MAX`] at the latest.
///
/// `areas` are those of several sets of left-out items (of known classes, of left-out ones). Each set has its
/// best part, and the smallest of these is kept. So a part that serves items of classes without pairs, where
/// the map is most wrong, does not cost the others anything.
pub(crate) fn search<T>(
    mut measured: impl FnMut(f64) -> Result<T>,
    areas: impl Fn(&T) -> &[f64],
) -> Result<Searched<T>> {
    let mut tried: Vec<T> = Vec::new();
    let larger = successors(PARTS.last().copied(), |part| Some(part * GROWTH)).skip(1);
    let mut kept_place = 0;
    for part in PARTS.into_iter().chain(larger.take_while(|part| *part <= PART_MAX)) {
        tried.push(measured(part)?);
        // The first of equals is the smallest.
        let best = |set: usize| {
            (0..tried.len())
                .fold(0, |best, at| if areas(&tried[at])[set] > areas(&tried[best])[set] { at } else { best })
        };
        kept_place = (0..areas(&tried[0]).len()).map(best).min().unwrap_or(0);
        if tried.len() > kept_place + PATIENCE {
            break;
        }
    }
    Ok((tried, kept_place))
}

/// Chooses the handicap of a map on galleries of items that it was not fitted on: with items left out, and
/// with whole classes left out. `error` is the number that [`whole`] returns. The gallery becomes native in
/// the `order` given, which is a random one: an adapter does not know the order that it will be served in.
///
/// # Errors
///
/// As [`curve`](rehang_core::curve::curve()) for outputs that are no numbers; [`rehang_core::ErrorKind::Cancelled`].
pub(crate) fn fit(
    galleries: &[Gallery<'_>],
    order: &[usize],
    error: f64,
    progress: &Progress,
) -> Result<HandicapChoice> {
    progress.begin("choosing the handicap", "steps", 0);
    let measured = |part: f64| {
        progress.check()?;
        let handicap = part * error;
        let (mut areas, mut top1) = (Vec::new(), Vec::new());
        for gallery in galleries {
            let curve = gallery.curve(order, handicap)?;
            areas.push(curve.lines[gallery.criterion.metric].area());
            top1.extend(curve.lines.get(TOP1).map(Line::area));
        }
        progress.advance(1);
        Ok(HandicapRow { handicap, part, areas, top1 })
    };
    let (rows, kept_place) = search(measured, |row| &row.areas)?;
    let criterion = galleries.first().map(|gallery| gallery.criterion.name()).unwrap_or_default();
    Ok(HandicapChoice { criterion, rows, kept: kept_place })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folds::shuffled;
    use crate::retrieval::Criterion;
    use crate::tests::test_data::random_matrix;
    use rehang_core::Vectors;

    /// Chooses a handicap on outputs for native vectors in a shuffled order.
    fn fit_on(
        native: &Matrix,
        left_out: &[&Matrix],
        labels: Option<&[i64]>,
        distance: Distance,
        error: f64,
    ) -> HandicapChoice {
        let vectors = Vectors::measured("new", distance, native.clone(), "new vectors").unwrap();
        let criterion =
            labels.map_or(Criterion::by_agreement(None), |labels| Criterion::by_label(labels).unwrap());
        let to_native = Gallery::distances(&criterion, &vectors).unwrap();
        let gallery = |&adapted: &&Matrix| {
            Gallery::new(&criterion, &vectors, adapted.clone(), to_native.as_ref()).unwrap()
        };
        let galleries: Vec<Gallery<'_>> = left_out.iter().map(gallery).collect();
        let order = shuffled(native.rows(), 3);
        fit(&galleries, &order, whole(native, distance, error), &Progress::default()).unwrap()
    }

    /// Makes ten classes around random centres, and outputs that have shrunk towards the mean of all, as
    /// those of a cautious map do.
    fn shrunk(items: usize) -> (Matrix, Matrix, Vec<i64>, f64) {
        let (centres, noise) = (random_matrix(10, 8, 1), random_matrix(items, 8, 2));
        let labels: Vec<i64> = (0..items as i64).map(|item| item % 10).collect();
        let native = Matrix::from_fn(items, 8, |row, column| {
            2.0 * centres.row(row % 10)[column] + noise.row(row)[column]
        });
        let wrong = random_matrix(items, 8, 3);
        let outputs = Matrix::from_fn(items, 8, |row, column| {
            0.4 * (native.row(row)[column] + 2.0 * wrong.row(row)[column])
        });
        let error = rehang_core::adapter::true_errors(&native, &outputs).iter().sum::<f64>() / items as f64;
        (native, outputs, labels, error)
    }

    fn choose(labels: Option<&[i64]>, distance: Distance, scale: f32) -> HandicapChoice {
        let (mut native, mut outputs, _, error) = shrunk(400);
        for matrix in [&mut native, &mut outputs] {
            matrix.as_mut_slice().iter_mut().for_each(|value| *value *= scale);
        }
        let error = error * f64::from(scale) * f64::from(scale);
        fit_on(&native, &[&outputs], labels, distance, error)
    }

    #[test]
    fn outputs_that_stand_in_the_way_get_a_handicap_and_it_pays() {
        let labels = shrunk(400).2;
        let choice = choose(Some(&labels), Distance::L2, 1.0);
        let (none, best) = (&choice.rows[0], &choice.rows[choice.kept]);
        assert!(choice.handicap() > 0.0 && best.areas[0] > none.areas[0] && best.top1[0] > none.top1[0]);
        assert!(choice.rows.iter().all(|row| row.areas[0] <= best.areas[0]), "{choice:?}");
    }

    #[test]
    fn the_smallest_of_the_best_ones_is_kept() {
        let (native, outputs, labels, error) = shrunk(400);
        let chosen = |left_out: &[&Matrix]| fit_on(&native, left_out, Some(&labels), Distance::L2, error);
        assert!(chosen(&[&outputs]).handicap() > 0.0);
        // The second map's outputs are right as far as they go: for them every handicap is one too many.
        let timid = Matrix::from_fn(400, 8, |row, column| 1.2 * native.row(row)[column]);
        let alone = chosen(&[&timid]);
        let joint = chosen(&[&outputs, &timid]);
        assert!(alone.kept < chosen(&[&outputs]).kept);
        assert_eq!(joint.kept, alone.kept);
        assert_eq!(joint.rows[0].areas.len(), 2);
    }

    #[test]
    fn a_perfect_map_gets_none() {
        let (native, _, labels, _) = shrunk(200);
        for labels in [Some(&labels[..]), None] {
            assert_eq!(fit_on(&native, &[&native], labels, Distance::L2, 0.0).handicap(), 0.0);
        }
    }

    #[test]
    fn the_unit_is_that_of_the_distance() {
        let labels = shrunk(400).2;
        for (distance, power) in [(Distance::L2, 2), (Distance::Dot, 2), (Distance::Cosine, 0)] {
            let (one, double) = (choose(Some(&labels), distance, 1.0), choose(Some(&labels), distance, 2.0));
            assert_eq!(one.kept, double.kept);
            assert!((double.handicap() - 2.0_f64.powi(power) * one.handicap()).abs() < 1e-6);
        }
    }

    #[test]
    fn there_is_no_largest_part_and_the_search_ends_where_three_more_are_no_better() {
        let search_by = |area: &dyn Fn(f64) -> f64| {
            search(|part| Ok((part, vec![area(part)])), |(_, areas): &(f64, Vec<f64>)| areas).unwrap()
        };
        // The slow twin looks at every part that there is.
        let all = search_by(&|part| part).0;
        for peak in [0.0, 0.05, 0.2, 0.5, 0.61, 1.0, 2.7, 9.0] {
            let (tried, kept_place) = search_by(&|part| -(part - peak).powi(2));
            let best = all.iter().min_by(|a, b| (a.0 - peak).abs().total_cmp(&(b.0 - peak).abs())).unwrap();
            assert_eq!(tried[kept_place].0, best.0, "{peak}");
            assert_eq!(tried.len(), (kept_place + PATIENCE + 1).min(all.len()));
        }
    }

    #[test]
    fn a_search_ends_where_nothing_ever_gets_worse() {
        let growing = search(|part| Ok(vec![part]), |areas: &Vec<f64>| areas).unwrap();
        assert_eq!(growing.1 + 1, growing.0.len());
        assert!(growing.0[growing.1][0] > PART_MAX / GROWTH && growing.0.len() < 30);
        let level = search(|_| Ok(vec![1.0]), |areas: &Vec<f64>| areas).unwrap();
        assert_eq!((level.0.len(), level.1), (PATIENCE + 1, 0));
    }
}
