//! Floors of searches, carried over to a new model.
//!
//! An application that shows only what is near enough has a floor, such as a similarity of 0.30. Another
//! model has other similarities, so the floor has to move with it. A floor t lets K(t) answers through, over
//! all queries q and items i of today's gallery:
//!
//! K(t) = |{(q, i) : s(q, i) ≥ t}|
//!
//! The floor t′ of a later stage is the K(t)-th largest similarity s′ of the same pairs (q, i). As many
//! answers come through in all, but for equal similarities:
//!
//! K(t) = |{(q, i) : s′(q, i) ≥ t′}|
//!
//! A part of today's answers does not come through:
//!
//! changed = 1 − |{(q, i) : s(q, i) ≥ t and s′(q, i) ≥ t′}| / K(t)
//!
//! At the switch, s′ is the similarity of new queries and adapted vectors, with the handicap; the pairs are
//! all that the gallery has. Where all is native, s′ is the similarity of new queries and native vectors.
//! Only held-out items have native vectors, so t′ is told by pairs with these items alone.
//!
//! Queries are a sample. One query's counts K_q(t) and K′_q(t′) differ by δ_q. K(t) is therefore known up to
//! 1.96 standard errors of the sum, √(Σ (δ_q − δ̄)²), and the range of t′ is the similarities of those two
//! ranks. Where all is native the items are a sample too. Items that ask each other count on either side, so
//! the error is twice as large. Beside separate queries, the same sum over the items' own δ_i joins it in
//! squares.

use rehang_core::curve::distances_by_query;
use rehang_core::report::{Floor, FloorAt, Floors};
use rehang_core::statistics::mean_sd;
use rehang_core::{Distance, Matrix, Progress, Result, Vectors};

use crate::queries::StudyQueries;

/// Largest number of distances of queries to items that are kept for each of two models. Memory is bounded by
/// it; the queries are a random sample.
const DISTANCES_MAX: usize = 1 << 23;
/// Number of answers below which no floor is carried over: the rank of so few is chance.
const ANSWERS_MIN: usize = 30;
/// Number of standard errors on either side of a rank.
const Z: f64 = 1.96;

/// The gallery, the held-out items and the queries that floors are carried over with.
#[derive(Debug, Clone, Copy)]
pub struct FloorsInput<'a> {
    /// Old vectors of the gallery, or of a random part of it with the held-out items in it.
    pub old: &'a Vectors,
    /// Adapted vectors of the items of `old`.
    pub adapted: &'a Vectors,
    /// Handicap: what is added to the distance of every adapted vector.
    pub handicap: f64,
    /// Number of items of the whole gallery.
    pub items: usize,
    /// Rows in `old` of the items that are held out.
    pub held_out: &'a [usize],
    /// Native vectors of the held-out items.
    pub native: &'a Vectors,
    /// Separate queries; `None` where the held-out items are the queries, each leaving itself out.
    pub queries: Option<StudyQueries<'a>>,
}

/// Carries floors over from the old model to the switch and to a gallery that is native, by the formula of
/// this module.
///
/// A floor is a value of the [measure](Distance::measure) of each space's own distance, such as a cosine
/// similarity. A floor that fewer than 30 answers of all queries pass is not carried over. Without `values`
/// the floors are those that applications begin with: cosines of 0.3, 0.5 and 0.7; where lengths count, what
/// lets ten and a hundred answers of a query through. `None` where queries of the old model are not known.
///
/// # Errors
///
/// As [`distances_by_query`].
pub fn floors(
    input: &FloorsInput<'_>,
    values: Option<&[f64]>,
    progress: &Progress,
) -> Result<Option<Floors>> {
    let items_are_queries = input.queries.is_none();
    let held_out = input.old.matrix().select(input.held_out);
    let (old_queries, new_queries) = match input.queries {
        Some(StudyQueries { old: None, .. }) => return Ok(None),
        Some(StudyQueries { old: Some(old), new }) => (old, new),
        None => (&held_out, input.native.matrix()),
    };
    let (before, after) = (input.old.space().distance, input.native.space().distance);
    let rows = input.old.len();
    let count = new_queries.rows().min(DISTANCES_MAX / rows.max(1)).max(1);
    let counted: Vec<usize> = (0..count.min(new_queries.rows())).collect();
    progress.begin("floors", "queries", 4 * counted.len() as u64);
    let distances_to = |gallery: &Matrix,
                        queries: &Matrix,
                        distance,
                        own_row: &(dyn Fn(usize) -> Option<usize> + Sync),
                        more: f64| {
        distances_by_query(gallery, queries, &counted, distance, progress, |query, distances| {
            let skipped_row = own_row(query);
            let other_distances = distances.iter().enumerate().filter(|(row, _)| skipped_row != Some(*row));
            other_distances.map(|(_, distance)| (distance + more) as f32).collect::<Vec<f32>>()
        })
    };
    let row_of = |query: usize| items_are_queries.then(|| input.held_out[query]);
    let today = distances_to(input.old.matrix(), old_queries, before, &row_of, 0.0)?;
    let switch = distances_to(input.adapted.matrix(), new_queries, after, &row_of, input.handicap)?;
    let place_of = |query: usize| items_are_queries.then_some(query);
    let today_held_out = distances_to(&held_out, old_queries, before, &place_of, 0.0)?;
    let native = distances_to(input.native.matrix(), new_queries, after, &place_of, 0.0)?;
    let chosen = match values {
        Some(values) => values.to_vec(),
        None => usual(before, &today, input.items as f64 / rows as f64),
    };
    let carried = chosen.into_iter().map(|value| {
        let limit = before.of_measure(value) as f32;
        let passed: usize = today.iter().map(|row| passing(row, limit)).sum();
        let at = |from: &[Vec<f32>], to: &[Vec<f32>], drawn| {
            carried_over(from, to, limit, drawn).map(|at| at.shown(after))
        };
        Floor {
            today: value,
            answers: passed as f64 / counted.len() as f64 * input.items as f64 / rows as f64,
            adapted: at(&today, &switch, Drawn::Queries),
            native: at(&today_held_out, &native, if items_are_queries { Drawn::Both } else { Drawn::Apart }),
        }
    });
    let (rows, queries) = (carried.collect(), counted.len());
    let natives = input.held_out.len();
    Ok(Some(Floors { today: before.measure().into(), then: after.measure().into(), queries, natives, rows }))
}

/// Returns floors that say something of any gallery.
fn usual(distance: Distance, today: &[Vec<f32>], times: f64) -> Vec<f64> {
    // Without lengths, similarities are of one scale in all galleries.
    if !distance.heeds_lengths() {
        return vec![0.3, 0.5, 0.7];
    }
    let mut all: Vec<f32> = today.concat();
    let mut floors = Vec::new();
    for answers in [10.0, 100.0] {
        let rank = (answers * today.len() as f64 / times).round() as usize;
        if (1..=all.len()).contains(&rank) {
            floors.push(distance.in_measure(ranked(&mut all, rank).into()));
        }
    }
    floors
}

fn passing(row: &[f32], limit: f32) -> usize {
    row.iter().filter(|&&distance| distance <= limit).count()
}

/// Returns the distance of a rank, counted from 1.
fn ranked(all: &mut [f32], rank: usize) -> f32 {
    *all.select_nth_unstable_by(rank - 1, f32::total_cmp).1
}

/// Returns the standard error of a sum.
fn error_of(terms: impl Iterator<Item = f64>) -> f64 {
    let terms: Vec<f64> = terms.collect();
    mean_sd(&terms).map_or(0.0, |spread| spread.sd) * (terms.len() as f64).sqrt()
}

/// A limit of the later distances, with its range and the part of today's answers that it drops.
struct Carried {
    limit: f32,
    range: [f32; 2],
    changed: f64,
}

impl Carried {
    fn shown(&self, distance: Distance) -> FloorAt {
        let [a, b] = self.range.map(|at| distance.in_measure(at.into()));
        FloorAt {
            floor: distance.in_measure(self.limit.into()),
            low: a.min(b),
            high: a.max(b),
            changed: self.changed,
        }
    }
}

/// Part of the (query, item) pairs that is a random sample.
#[derive(Clone, Copy)]
enum Drawn {
    /// Queries, which ask among all items.
    Queries,
    /// Items that ask each other: queries and items are one sample.
    Both,
    /// Queries and items, two samples apart.
    Apart,
}

/// Carries a limit of distances over to the later distances of the same pairs; `None` where too few pass.
fn carried_over(today: &[Vec<f32>], then: &[Vec<f32>], limit: f32, drawn: Drawn) -> Option<Carried> {
    let all: usize = today.iter().map(|row| passing(row, limit)).sum();
    if all < ANSWERS_MIN {
        return None;
    }
    let mut later: Vec<f32> = then.concat();
    let at = ranked(&mut later, all);
    let answer_pairs = today.iter().zip(then).flat_map(|(today, then)| today.iter().zip(then));
    let answers_kept = answer_pairs.filter(|&(&today, &then)| today <= limit && then <= at).count();
    let passes = |distance: f32, limit: f32| f64::from(u8::from(distance <= limit));
    let moved = |query: usize, item: usize| passes(then[query][item], at) - passes(today[query][item], limit);
    let (queries, items) = (0..today.len(), 0..today.first().map_or(0, Vec::len));
    let of_queries =
        error_of(queries.clone().map(|query| items.clone().map(|item| moved(query, item)).sum()));
    let spread = match drawn {
        Drawn::Queries => of_queries,
        Drawn::Both => 2.0 * of_queries,
        Drawn::Apart => of_queries
            .hypot(error_of(items.map(|item| queries.clone().map(|query| moved(query, item)).sum()))),
    };
    let mut edge = |by: f64| {
        let rank = (all as f64 + by * Z * spread).round().clamp(1.0, later.len() as f64);
        ranked(&mut later, rank as usize)
    };
    let range = [edge(-1.0), edge(1.0)];
    Some(Carried { limit: at, range, changed: 1.0 - answers_kept as f64 / all as f64 })
}

#[cfg(test)]
mod tests {
    use rehang_core::Space;

    use super::*;

    /// Two models that see a point of a plane, the new one with all similarities closer together.
    fn world(distance: Distance) -> [Vectors; 2] {
        let vectors = |name: &str, common_coordinate: f32, noise: f32| {
            let rows = Matrix::from_fn(240, 3, |row, column| match column {
                0 => (row as f32 * 0.37).sin() + noise * (row as f32 * 7.1).cos(),
                1 => (row as f32 * 0.37).cos() + noise * (row as f32 * 5.3).sin(),
                _ => common_coordinate,
            });
            Vectors::new(Space::new(name, 3, distance, false), rows, name).unwrap()
        };
        [vectors("old", 0.2, 0.0), vectors("new", 1.0, 0.3)]
    }

    /// Carries one floor over by all distances, pair by pair and sorted: the slow twin of [`floors`].
    fn slow(
        distance: Distance,
        [today, then]: [&Vectors; 2],
        queries: &[usize],
        items: &[usize],
        more: f64,
        floor: f64,
    ) -> (f64, f64) {
        let pairs: Vec<(usize, usize)> = queries
            .iter()
            .flat_map(|&q| items.iter().map(move |&i| (q, i)))
            .filter(|(q, i)| q != i)
            .collect();
        let between =
            |v: &Vectors, (q, i): (usize, usize)| distance.between(v.matrix().row(q), v.matrix().row(i));
        let passes = |pair| between(today, pair) <= distance.of_measure(floor);
        let answers = pairs.iter().filter(|pair| passes(**pair)).count();
        let mut later: Vec<f64> = pairs.iter().map(|pair| between(then, *pair) + more).collect();
        later.sort_by(f64::total_cmp);
        let limit = later[answers - 1];
        let answers_kept =
            pairs.iter().filter(|pair| passes(**pair) && between(then, **pair) + more <= limit).count();
        (distance.in_measure(f64::from(limit as f32)), 1.0 - answers_kept as f64 / answers as f64)
    }

    #[test]
    fn a_floor_lets_as_many_answers_through_as_counting_pair_by_pair_says() {
        let held_out: Vec<usize> = (0..240).filter(|row| row % 3 == 1).collect();
        let everything: Vec<usize> = (0..240).collect();
        for (distance, floor) in
            [(Distance::Cosine, 0.9), (Distance::Cosine, 0.2), (Distance::L2, 0.4), (Distance::Dot, 0.7)]
        {
            let [old, new] = world(distance);
            let native = Vectors::new(new.space().clone(), new.matrix().select(&held_out), "new").unwrap();
            let input = FloorsInput {
                old: &old,
                adapted: &new,
                handicap: 0.01,
                items: 480,
                held_out: &held_out,
                native: &native,
                queries: None,
            };
            let carried_floors = floors(&input, Some(&[floor]), &Progress::default()).unwrap().unwrap();
            let row = &carried_floors.rows[0];
            let (switch, end) = (row.adapted.unwrap(), row.native.unwrap());
            let expected = slow(distance, [&old, &new], &held_out, &everything, 0.01, floor);
            assert!(
                (switch.floor - expected.0).abs() < 1e-5 && (switch.changed - expected.1).abs() < 2e-3,
                "{row:?} {expected:?}"
            );
            let expected = slow(distance, [&old, &new], &held_out, &held_out, 0.0, floor);
            assert!(
                (end.floor - expected.0).abs() < 1e-5 && (end.changed - expected.1).abs() < 2e-3,
                "{row:?} {expected:?}"
            );
            assert!(end.low <= end.floor && end.floor <= end.high && end.low < end.high, "{end:?}");
            assert!(row.adapted != row.native, "two stages");
            assert_eq!(
                (carried_floors.queries, carried_floors.natives, carried_floors.rows.len()),
                (80, 80, 1)
            );
            // The old model in the new one's place moves nothing.
            let same = Vectors::new(old.space().clone(), old.matrix().select(&held_out), "old").unwrap();
            let input = FloorsInput { adapted: &old, native: &same, handicap: 0.0, ..input };
            let row = floors(&input, Some(&[floor]), &Progress::default()).unwrap().unwrap().rows[0];
            for at in [row.adapted.unwrap(), row.native.unwrap()] {
                assert_eq!((at.changed, at.low, at.high), (0.0, at.floor, at.floor));
                assert!((at.floor - floor).abs() < 0.05, "{at:?}");
            }
        }
    }

    #[test]
    fn what_hardly_anything_passes_is_not_carried_over_and_usual_floors_are() {
        let [new, old] = world(Distance::L2);
        let held_out: Vec<usize> = (0..100).collect();
        let native = Vectors::new(new.space().clone(), new.matrix().select(&held_out), "new").unwrap();
        let input = FloorsInput {
            old: &old,
            adapted: &new,
            handicap: 0.0,
            items: 240,
            held_out: &held_out,
            native: &native,
            queries: None,
        };
        let floors_at =
            |values: Option<&[f64]>| floors(&input, values, &Progress::default()).unwrap().unwrap();
        let none = floors_at(Some(&[0.0]));
        assert_eq!((none.rows[0].adapted, none.rows[0].native), (None, None));
        let usual = floors_at(None);
        let answers: Vec<f64> = usual.rows.iter().map(|row| row.answers.round()).collect();
        assert_eq!((answers, usual.today.as_str()), (vec![10.0, 100.0], "Euclidean distance"));
        let unknown = StudyQueries { new: native.matrix(), old: None };
        let without = FloorsInput { queries: Some(unknown), ..input };
        assert_eq!(floors(&without, None, &Progress::default()).unwrap(), None);
    }
}
