//! Average precision in a gallery of which few natives are known: the others are imagined.
//!
//! A ranking of the n held-out items says little where a query has hardly a right answer among them, whatever
//! the weights ([`super::average`]). But the adapted distance of every item is known, and so is the native
//! distance of the held-out items. Let z be a query's distance to an item, standardised by the mean and the
//! spread of the query's distances to the wrong answers among the held-out items. Adapted and native vectors
//! are standardised apart. Then an item is imagined at the native z that
//!
//! - has as many wrong answers below it, over all queries, as the adapted z has: a monotone map through their
//!   quantiles;
//! - for right answers, `offset + scale · z`, which gives them the mean and the spread that right answers
//!   have. Each query's right answers weigh as one over the number of all of its right answers.
//!
//! An order that selects by adapted vectors selects by imagined ones as well, but less by real ones: by the
//! correlation r of z adapted and native, over right answers. So of the natives at a share, a part r are
//! those that the order has chosen, and 1 − r are any.
//!
//! The gallery with all natives imagined is ranked like the known one, which gives a second average
//! precision. The one of known natives weighs `k² / (k² + 9 (1 − n/N))`, where k is the mean number of
//! held-out right answers of a query. Where all items are held out, nothing is imagined.
//!
//! Top-1 is not forecast in this way: the nearest item depends on what the map leaves out, and top-1 comes
//! out too high.

use super::data::ForecastInput;
use super::right::Right;
use crate::curve::known::Distances;
use crate::error::Result;

/// Number of a query's held-out right answers at which known natives weigh as much as imagined ones, in a
/// large gallery.
const EVEN: f64 = 3.0;
/// Most distances that the maps are made from, of either kind. Beyond it fewer queries are asked.
const DISTANCES_MAX: usize = 2_000_000;
/// Fewest queries with a held-out right answer that say where right answers are.
const QUERIES_MIN: usize = 10;
/// Number of quantiles of the wrong answers on either side of their middle, closer to each other towards the
/// end.
const QUANTILES: usize = 200;

/// Maps that give every item an imagined native distance.
pub(super) struct Imagined {
    /// z of wrong answers, adapted and native, ascending: as many lie below the one as below the other.
    wrong: [Vec<f64>; 2],
    offset: f64,
    scale: f64,
    /// Standard error of `offset`.
    error: f64,
    /// How far natives keep the selection that an order makes by adapted vectors, 0 to 1.
    pub(super) kept: f64,
    /// Weight of the known natives, 0 to 1; the imagined ones have the rest.
    pub(super) known: f64,
}

/// Mean and spread of a query's distances to wrong answers among the held-out items.
#[derive(Clone, Copy)]
struct Moments {
    mean: f64,
    spread: f64,
}

impl Moments {
    fn from_values(values: impl Iterator<Item = f64>) -> Option<Self> {
        let (sum, squares, count) = values.fold((0.0, 0.0, 0.0), |(sum, squares, count), value| {
            (sum + value, value.mul_add(value, squares), count + 1.0)
        });
        let mean: f64 = sum / count;
        let spread = (squares / count - mean * mean).max(0.0).sqrt();
        (spread > 0.0).then_some(Self { mean, spread })
    }

    fn z(self, distance: f64) -> f64 {
        (distance - self.mean) / self.spread
    }

    fn distance(self, z: f64) -> f64 {
        self.mean + self.spread * z
    }
}

/// Computes the adapted and the native moments of a query from its distances to the held-out items. `None`
/// where these are all equal, or none is wrong.
fn moments(
    right: &Right<'_>,
    query: usize,
    held_out: &[usize],
    adapted: impl Fn(usize) -> f64,
    native: &[f64],
) -> Option<[Moments; 2]> {
    let wrong = || (0..held_out.len()).filter(|&row| right.is_wrong(query, held_out[row]));
    Some([Moments::from_values(wrong().map(adapted))?, Moments::from_values(wrong().map(|row| native[row]))?])
}

impl Imagined {
    /// Makes the maps from the `counted` queries' distances to the held-out natives. `None` where all items
    /// are held out, or where there are too few right answers.
    pub(super) fn new(
        input: &ForecastInput<'_>,
        right: &Right<'_>,
        counted: &[usize],
        native: &Distances,
    ) -> Result<Option<Self>> {
        let (items, held_out) = (input.old.rows(), input.held_out);
        let unknown = 1.0 - held_out.len() as f64 / items as f64;
        let asked_queries = &counted[..counted.len().min((DISTANCES_MAX / held_out.len()).max(1))];
        let queries = input.queries.map_or(input.native, |queries| queries.new).select(asked_queries);
        let adapted =
            Distances::new(input.native, &input.adapted.select(held_out), Some(&queries), input.distance)?;
        let mut wrong = [Vec::new(), Vec::new()];
        // z of each right answer, adapted and native, with its query and its weight.
        let mut right_answers: Vec<([f64; 2], usize, f64)> = Vec::new();
        let mut answers = 0;
        for (place, &query) in asked_queries.iter().enumerate() {
            let distances = [adapted.query_distances(place), native.query_distances(query)];
            let Some(moments) = moments(right, query, held_out, |row| distances[0][row], distances[1]) else {
                continue;
            };
            let z = |row: usize| [0, 1].map(|which| moments[which].z(distances[which][row]));
            let mut rows = Vec::new();
            for (row, &item) in held_out.iter().enumerate() {
                if right.is_wrong(query, item) {
                    for (all, z) in wrong.iter_mut().zip(z(row)) {
                        all.push(z);
                    }
                } else if right.is_right(query, item) {
                    rows.push(row);
                }
            }
            if !rows.is_empty() {
                let all = (0..items).filter(|&item| right.is_right(query, item)).count();
                right_answers.extend(rows.iter().map(|&row| (z(row), query, 1.0 / all as f64)));
                answers += rows.len();
            }
        }
        let mut answered_queries: Vec<usize> = right_answers.iter().map(|answer| answer.1).collect();
        answered_queries.dedup();
        if unknown <= 0.0 || answered_queries.len() < QUERIES_MIN {
            return Ok(None);
        }
        for all in &mut wrong {
            all.sort_unstable_by(f64::total_cmp);
        }
        let places = quantiles(wrong[0].len());
        let total: f64 = right_answers.iter().map(|answer| answer.2).sum();
        let mean = |term: &dyn Fn([f64; 2]) -> f64| {
            right_answers.iter().map(|answer| answer.2 * term(answer.0)).sum::<f64>() / total
        };
        let middle = [0, 1].map(|which| mean(&|z| z[which]));
        let spread = [0, 1].map(|which| mean(&|z| (z[which] - middle[which]).powi(2)).sqrt());
        let scale = if spread[0] > 0.0 { spread[1] / spread[0] } else { 1.0 };
        let together = mean(&|z| (z[0] - middle[0]) * (z[1] - middle[1]));
        let kept_share = if spread[0] * spread[1] > 0.0 { together / spread[0] / spread[1] } else { 1.0 };
        let offset = middle[1] - scale * middle[0];
        // The common error of one query's right answers is one error. Where items ask each other, each pair
        // of them counts twice.
        let pairs = if input.queries.is_none() { 2.0 } else { 1.0 };
        let of_queries = right_answers.chunk_by(|answer, other| answer.1 == other.1);
        let squares: f64 = of_queries
            .map(|of_query| {
                let off =
                    of_query.iter().map(|answer| answer.2 * (answer.0[1] - offset - scale * answer.0[0]));
                off.sum::<f64>().powi(2)
            })
            .sum();
        let answers = answers as f64 / asked_queries.len() as f64;
        Ok(Some(Self {
            wrong: wrong.map(|all| places.iter().map(|&place| all[place]).collect()),
            offset,
            scale,
            error: (pairs * squares).sqrt() / total,
            kept: kept_share.clamp(0.0, 1.0),
            known: answers.powi(2) / (answers.powi(2) + EVEN.powi(2) * unknown),
        }))
    }

    /// Imagines a query's native distances to all items, `[N]`. Also returns how far right answers move by
    /// one standard error of their place. `adapted` are the distances to all adapted vectors, `native` those
    /// to the held-out natives.
    pub(super) fn distances(
        &self,
        right: &Right<'_>,
        query: usize,
        held_out: &[usize],
        (adapted, native): (&[f64], &[f64]),
    ) -> (Vec<f64>, f64) {
        let Some([of_adapted, of_native]) =
            moments(right, query, held_out, |row| adapted[held_out[row]], native)
        else {
            return (adapted.to_vec(), 0.0);
        };
        let imagined = |(item, &distance): (usize, &f64)| {
            let z = of_adapted.z(distance);
            let is_right = right.is_right(query, item);
            of_native.distance(if is_right {
                self.offset + self.scale * z
            } else {
                self.native_z_of_wrong(z)
            })
        };
        (adapted.iter().enumerate().map(imagined).collect(), of_native.spread * self.error)
    }

    /// The native z of a wrong answer. Beyond the last quantiles it lies as far from them as the adapted z
    /// does.
    fn native_z_of_wrong(&self, z: f64) -> f64 {
        let [from, to] = &self.wrong;
        let right = from.partition_point(|&place| place <= z);
        if right == 0 || right == from.len() {
            let end = right.saturating_sub(1);
            return to[end] + z - from[end];
        }
        let part = (z - from[right - 1]) / (from[right] - from[right - 1]);
        to[right - 1] + part * (to[right] - to[right - 1])
    }
}

/// Places of quantiles in a sorted list, ascending: both ends, the middle, and more of them nearer to an end.
fn quantiles(count: usize) -> Vec<usize> {
    let half = count as f64 / 2.0;
    let from_end = (0..QUANTILES).map(|step| {
        let part = step as f64 / (QUANTILES - 1) as f64;
        (half.powf(part) as usize).clamp(1, count) - 1
    });
    let mut places: Vec<usize> = from_end.flat_map(|place| [place, count - 1 - place]).collect();
    places.sort_unstable();
    places.dedup();
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::curve::Relevance;
    use crate::space::Distance;
    use crate::vectors::Matrix;

    #[test]
    fn quantiles_reach_from_the_first_to_the_last() {
        assert_eq!(quantiles(1), [0]);
        assert_eq!(quantiles(4), [0, 1, 2, 3]);
        let many = quantiles(100_000);
        assert_eq!((many[..3].to_vec(), *many.last().unwrap()), (vec![0, 1, 2], 99_999));
        assert!(many.len() < 2 * QUANTILES && many.contains(&49_999));
    }

    /// Items on a line whose native distances are the adapted ones, doubled and shifted. Every item is
    /// imagined where it is.
    #[test]
    fn natives_that_are_the_adapted_ones_stretched_are_imagined_where_they_are() {
        let items = 400;
        let place = |row: usize| ((row * 7919 % 1009) as f32 / 50.0).sin();
        let adapted = Matrix::from_fn(items, 1, |row, _| place(row));
        let native = Matrix::from_fn(items, 1, |row, _| 2.0 * place(row));
        let labels: Vec<i64> = (0..items as i64).map(|row| row % 5).collect();
        let held_out: Vec<usize> = (0..items).filter(|row| row % 4 == 1).collect();
        let known_vectors = native.select(&held_out);
        let input = ForecastInput {
            old: &adapted,
            adapted: &adapted,
            items,
            held_out: &held_out,
            native: &known_vectors,
            order: None,
            queries: None,
            relevance: Relevance::Labels { gallery: &labels, queries: None },
            distance: Distance::L2,
            old_distance: Distance::L2,
            handicap: 0.0,
        };
        // The new model's queries see the adapted vectors at half of the scale.
        let half = Matrix::from_fn(known_vectors.rows(), 1, |row, _| known_vectors.row(row)[0] / 2.0);
        let input = ForecastInput { native: &half, ..input };
        let right = Right::new(&input);
        let counted: Vec<usize> = (0..held_out.len()).collect();
        let distances_to = |gallery: &Matrix| Distances::new(&half, gallery, None, Distance::L2).unwrap();
        let to_natives = distances_to(&half);
        let stretched = Matrix::from_fn(items, 1, |row, _| place(row));
        let to_all = distances_to(&stretched);
        let maps = Imagined::new(&input, &right, &counted, &to_natives).unwrap().unwrap();
        assert!((maps.offset.abs() < 1e-9) && (maps.scale - 1.0).abs() < 1e-9 && maps.error < 1e-9);
        // 20 of 100 held-out items have a query's label; the query itself is left out.
        assert!((maps.known - 361.0 / (361.0 + 9.0 * 0.75)).abs() < 1e-12, "{}", maps.known);
        for query in [0, 17, 63] {
            // A handicap moves all adapted distances, and no imagined one.
            let adapted: Vec<f64> =
                to_all.query_distances(query).iter().map(|distance| distance + 3.0).collect();
            let (imagined, moved) =
                maps.distances(&right, query, &held_out, (&adapted, to_natives.query_distances(query)));
            assert!(moved < 1e-9);
            for (imagined, true_distance) in imagined.iter().zip(to_all.query_distances(query)) {
                assert!((imagined - true_distance).abs() < 1e-6, "{imagined} {true_distance}");
            }
        }
        let all: Vec<usize> = (0..items).collect();
        let all_held_out = ForecastInput { held_out: &all, native: &adapted, ..input };
        let right = Right::new(&all_held_out);
        let to_natives = Distances::new(&adapted, &adapted, None, Distance::L2).unwrap();
        assert!(Imagined::new(&all_held_out, &right, &all, &to_natives).unwrap().is_none());
    }
}
