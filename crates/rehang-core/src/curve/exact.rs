//! The exact curve: every metric at every state of a backfill.

use super::evaluate::{DoNothing, Evaluation, evaluate_today};
use super::input::{Search, check_vectors, kept_cuts, percent_line};
use super::known::Distances;
use super::line::Line;
use super::measured::{CurveOptions, Measured};
use super::metrics::{ByMetric, Metric};
use super::relevance::{Answers, QueryCount, Relevance};
use super::sweep::{self, Query, QueryValues, Totals, Workspace};
use crate::check::{check_handicap, check_permutation, expect_count};
use crate::error::{Error, Result};
use crate::processor::Processor;
use crate::progress::Progress;
use crate::space::Distance;
use crate::statistics::{Interval, bootstrap_means};
use crate::vectors::{Matrix, distinct};

/// Most groups of queries that one curve may have.
pub const GROUPS_MAX: usize = 64;

/// Inputs that a curve is computed from.
///
/// All vectors are of the new model's space (the adapted ones by way of an adapter). The code that reads them
/// checks that once ([`crate::Space::expect_same`]).
#[derive(Debug, Clone, Copy)]
pub struct CurveInput<'a> {
    /// Gallery after the backfill, `[n, d]`.
    pub native: &'a Matrix,
    /// Gallery before the backfill, `[n, d]`; or `[n, d_old]` with fewer coordinates, as a compatible model
    /// searches it. Each query is then cut to its first `d_old` coordinates for the comparison, and cosines
    /// are those of the cut query.
    pub adapted: &'a Matrix,
    /// Order of the backfill, a permutation of `0..n`; `order[0]` is re-embedded first.
    pub order: &'a [usize],
    /// Query vectors, `[m, d]`; `None` where the gallery is its own query set and each query leaves itself
    /// out.
    pub queries: Option<&'a Matrix>,
    /// Definition of a right answer.
    pub relevance: Relevance<'a>,
    /// Distance by which vectors are compared.
    pub distance: Distance,
    /// Handicap: what is added to the distance of every item that is still adapted; 0 compares all vectors
    /// alike. See [`Adapter::handicap`](crate::adapter::Adapter::handicap).
    pub handicap: f64,
    /// Group of each query, `[m]`, for the gap in top-1 between groups; a negative number means "no group".
    pub groups: Option<&'a [i64]>,
    /// The search as it is today, for the do-nothing line.
    pub do_nothing: Option<DoNothing<'a>>,
    /// Distances from the queries to the native vectors and to the adapted ones, where they were computed
    /// before.
    pub known: Option<[&'a Distances; 2]>,
}

impl<'a> CurveInput<'a> {
    /// Makes the input for a gallery that is its own query set, without a handicap, groups or a do-nothing
    /// line.
    pub fn new(
        native: &'a Matrix,
        adapted: &'a Matrix,
        order: &'a [usize],
        relevance: Relevance<'a>,
        distance: Distance,
    ) -> Self {
        Self {
            native,
            adapted,
            order,
            queries: None,
            relevance,
            distance,
            handicap: 0.0,
            groups: None,
            do_nothing: None,
            known: None,
        }
    }
}

/// Queries that change between right and wrong, against a reference state (the start, or the do-nothing
/// gallery).
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Flips {
    /// Number of queries that the reference answers.
    pub right: usize,
    /// Number of queries that are wrong in the reference and right at each cut, `[n + 1]`.
    pub positive: Vec<u64>,
    /// Number of queries that are right in the reference and wrong at each cut, `[n + 1]`.
    pub negative: Vec<u64>,
    /// Negative flip rate `|Q⁺(reference) ∩ Q⁻(cut)| / |Q⁺(reference)|` in percent (RACT eq. 12); 0 where the
    /// reference answers no query.
    pub rate: Line,
}

/// Top-1 of the queries of one group.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct GroupLine {
    /// Number of the group.
    pub group: i64,
    /// Number of the group's queries that count.
    pub queries: usize,
    /// Top-1 of the group's queries.
    pub top1: Line,
}

/// Numbers of every counted query, in percent. Intervals over queries are drawn from them.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct PerQuery {
    /// Numbers of the counted queries, ascending.
    pub queries: Vec<usize>,
    /// Area of each metric for each query.
    pub areas: ByMetric<Vec<f64>>,
    /// Cuts at which values are kept.
    pub cuts: Vec<usize>,
    /// Value of each metric for each query at each kept cut, `[queries, cuts]`.
    pub at_cuts: ByMetric<Vec<f32>>,
}

/// The do-nothing line, and the flips against it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct DoNothingLine {
    /// Metrics of the search as it is today.
    pub evaluation: Evaluation,
    /// Queries that the search of today answers and the gallery under backfill does not, and the other way
    /// round.
    pub flips: ByMetric<Flips>,
}

/// Every metric at every one of the n + 1 states of a backfill.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Curve {
    /// Number n of items in the gallery.
    pub items: usize,
    /// Number of queries that count, and of those left out.
    pub queries: QueryCount,
    /// Top-1, top-5, mAP and the other metrics that were asked for; agreement@k alone for
    /// [`Relevance::Nearest`].
    pub lines: ByMetric<Line>,
    /// Flips against the start of the backfill: of top-1, of top-5, and of top-k for
    /// [`CurveOptions::flips_at`]. Agreement has no flips.
    pub flips: ByMetric<Flips>,
    /// Do-nothing line of the search of today, where it is given.
    pub do_nothing: Option<DoNothingLine>,
    /// Top-1 of each group, by ascending group; empty without groups or right answers.
    pub groups: Vec<GroupLine>,
    /// Gap in top-1 between the best and the worst group, where there are groups.
    pub gap: Option<Line>,
    /// Areas of every counted query.
    pub per_query: PerQuery,
}

impl Curve {
    /// Computes percentile bootstrap intervals over queries of the areas; see [`bootstrap_means`].
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::InvalidOption`] for no resamples or a level outside (0, 1).
    pub fn area_intervals(&self, resamples: usize, level: f64, seed: u64) -> Result<ByMetric<Interval>> {
        let areas = &self.per_query.areas;
        let values: Vec<f64> = (0..self.per_query.queries.len())
            .flat_map(|query| areas.iter().map(move |(_, areas)| areas[query]))
            .collect();
        let intervals = bootstrap_means(&values, areas.metrics().count(), resamples, level, seed)?;
        Ok(areas.metrics().zip(intervals).collect())
    }

    /// Computes percentile bootstrap intervals over queries at the kept cuts ([`PerQuery::cuts`]); see
    /// [`bootstrap_means`].
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::MissingInput`] where no cuts were kept ([`CurveOptions::kept_cuts`]).
    pub fn bands(&self, resamples: usize, level: f64, seed: u64) -> Result<ByMetric<Vec<Interval>>> {
        let cuts = self.per_query.cuts.len();
        if cuts == 0 {
            return Err(Error::missing("kept cuts", "a band over queries"));
        }
        let band = |(metric, values): (Metric, &Vec<f32>)| {
            let values: Vec<f64> = values.iter().map(|&value| f64::from(value)).collect();
            Ok((metric, bootstrap_means(&values, cuts, resamples, level, seed)?))
        };
        self.per_query.at_cuts.iter().map(band).collect()
    }
}

/// Computes the exact backfilling curve: `[n, d]` native, `[n, d]` adapted, an order and queries → n + 1
/// values of each metric.
///
/// [The module](super) defines the metrics and the rule for ties.
///
/// ```
/// use rehang_core::curve::{CurveInput, CurveOptions, Metric, Relevance, TOP1, curve};
/// use rehang_core::{Distance, Matrix, Progress};
///
/// // Four items on a line, two of each class. The adapter swaps the items in the middle.
/// let native = Matrix::new(1, vec![0.0, 1.0, 5.0, 6.0])?;
/// let adapted = Matrix::new(1, vec![0.0, 5.0, 1.0, 6.0])?;
/// let labels = [0, 0, 1, 1];
/// let relevance = Relevance::Labels { gallery: &labels, queries: None };
/// let input = CurveInput::new(&native, &adapted, &[1, 2, 0, 3], relevance, Distance::L2);
/// let made = curve(&input, &CurveOptions::default(), &Progress::default())?;
/// assert_eq!(made.lines[TOP1].values(), [0.0, 50.0, 100.0, 100.0, 100.0]);
/// // The last state is the end of the way and no part of it.
/// assert_eq!(made.lines[TOP1].area(), 62.5);
/// assert_eq!(made.flips[TOP1].positive, [0, 2, 4, 4, 4]);
///
/// // Without labels: how much of what a user sees at each state is what they will see in the end.
/// let queries = Matrix::new(1, vec![0.0, 6.0])?;
/// let input = CurveInput { queries: Some(&queries), relevance: Relevance::Nearest(2), ..input };
/// let made = curve(&input, &CurveOptions::default(), &Progress::default())?;
/// let agreement = Metric::agreement_at(2);
/// assert_eq!(made.lines[agreement].values(), [50.0, 75.0, 100.0, 100.0, 100.0]);
/// // The first query is answered as in the end from the first item on, the second one item later.
/// assert_eq!(made.per_query.areas[agreement], [87.5, 75.0]);
/// # Ok::<(), rehang_core::Error>(())
/// ```
///
/// # Errors
///
/// Vectors that are empty, hold NaN or differ in width or number; an order that is no permutation; labels of
/// another number; a handicap that is negative or no number; a depth of 0; more than
/// [`COUNT_MAX`](super::COUNT_MAX) items or queries, or [`GROUPS_MAX`] groups; no query with a right answer.
/// [`crate::ErrorKind::Cancelled`] where `progress` asks to stop.
pub fn curve(input: &CurveInput<'_>, options: &CurveOptions, progress: &Progress) -> Result<Curve> {
    curve_on(Processor::detect(), input, options, progress)
}

fn curve_on(
    processor: Processor,
    input: &CurveInput<'_>,
    options: &CurveOptions,
    progress: &Progress,
) -> Result<Curve> {
    let items = input.native.rows();
    check_vectors(input.native, Some(input.adapted), input.queries)?;
    check_handicap(input.handicap)?;
    check_permutation(input.order, items)?;
    let measured = Measured::new(input.relevance, options)?;
    let depths = &measured.depths;
    let answers = Answers::new(input.relevance, input.order, input.queries.map(Matrix::rows))?;
    let groups = Groups::new(input.groups.filter(|_| !measured.is_agreement()), &answers)?;
    let CurveInput { native, queries, relevance, distance, .. } = *input;
    let evaluated = |today| evaluate_today(today, native, queries, relevance, distance, options, progress);
    let today = input.do_nothing.map(evaluated).transpose()?;
    for distances in input.known.into_iter().flatten() {
        expect_count("known distances", distances.items(), "gallery vectors", items)?;
        expect_count("known distances", distances.queries(), "query vectors", answers.count.given)?;
    }
    let cuts = kept_cuts(items, options.kept_cuts);
    let stage = if measured.is_agreement() { "agreement" } else { "curve" };
    progress.begin(stage, "queries", answers.counted.len() as u64);
    let search = Search {
        processor,
        native: input.native,
        adapted: Some(input.adapted),
        order: input.order,
        queries: input.queries.unwrap_or(input.native),
        counted: &answers.counted,
        distance: input.distance,
        handicap: input.handicap,
        known: input.known,
    };
    let (per_query, totals) = search.run(
        progress,
        || {
            let totals = Totals::new(items, depths, today.is_some(), groups.names.len());
            (Workspace::default(), totals, Vec::new(), Vec::new())
        },
        |(work, totals, positives, ignored), place, native, adapted| {
            answers.fill_answers(answers.counted[place], native, positives, ignored);
            let first_rank = today.as_ref().map_or(usize::MAX, |today| today.per_query.first_rank[place]);
            let query = Query {
                native,
                adapted,
                items: &answers.items,
                positives,
                ignored,
                group: groups.of_query[place],
                baseline: depths.hits.map(|depth| today.is_some() && first_rank as f64 <= depth),
                cuts: &cuts,
            };
            sweep::sweep(processor, work, &query, depths, totals)
        },
    )?;
    let sums = totals.into_iter().map(|(_, totals, _, _)| totals).reduce(Totals::plus).unwrap_or_default();
    let curve = assemble(&answers, &measured, &sums, &groups, today, &per_query);
    Ok(Curve { per_query: PerQuery { cuts, ..curve.per_query }, ..curve })
}

/// Turns sums over queries into percent. The kept cuts are not filled in.
fn assemble(
    answers: &Answers<'_>,
    measured: &Measured,
    sums: &Totals,
    groups: &Groups,
    today: Option<Evaluation>,
    per_query: &[QueryValues],
) -> Curve {
    let items = sums.precision.len() - 1;
    let counted = answers.counted.len();
    let fixed = |changes: &[i64]| percent_line(changes, counted as f64 * sweep::UNIT);
    let hits = [0, 1, 2].map(|slot| running(&sums.hits[slot]));
    let flips = |reference: [usize; sweep::HITS], lost: &[Vec<i64>; sweep::HITS]| {
        let of_slot = |slot: usize| {
            let negative = running(&lost[slot]);
            let right = reference[slot];
            let positive =
                hits[slot].iter().zip(&negative).map(|(hit, lost)| hit + lost - right as u64).collect();
            let rate = negative.iter().map(|&lost| 100.0 * lost as f64 / right.max(1) as f64).collect();
            Flips { right, positive, negative, rate: Line::new(rate) }
        };
        let depths = measured.flips.iter().enumerate();
        depths.map(|(slot, &depth)| (Metric::top(depth), of_slot(slot))).collect::<ByMetric<Flips>>()
    };
    let start_right = [0, 1, 2].map(|slot| hits[slot].first().map_or(0, |&hits| hits as usize));
    let do_nothing = today.map(|evaluation| {
        let ranks = &evaluation.per_query.first_rank;
        let within = |depth: f64| ranks.iter().filter(|&&rank| rank as f64 <= depth).count();
        let right = measured.depths.hits.map(within);
        DoNothingLine { flips: flips(right, &sums.lost_to_baseline), evaluation }
    });
    let group_lines: Vec<GroupLine> = groups
        .names
        .iter()
        .zip(&groups.sizes)
        .zip(&sums.groups)
        .map(|((&group, &queries), changes)| GroupLine {
            group,
            queries,
            top1: percent_line(changes, queries as f64),
        })
        .collect();
    let gap = (!group_lines.is_empty()).then(|| {
        let gap_at = |cut: usize| {
            let values = group_lines.iter().map(|group| group.top1.values()[cut]);
            values.clone().fold(0.0, f64::max) - values.fold(100.0, f64::min)
        };
        Line::new((0..=items).map(gap_at).collect())
    });
    let line = |slot: usize| match slot {
        0 | 1 => percent_line(&sums.hits[slot], counted as f64),
        2 => fixed(&sums.precision),
        head => fixed(&sums.heads[head - sweep::OWN_FIXED]),
    };
    let area = |slot: usize| per_query.iter().map(|query| 100.0 * query.areas[slot]).collect();
    let values_at_cuts = |slot: usize| {
        let of_query = |query: &'_ QueryValues| -> Vec<f32> {
            let of_slot = query.at_cuts.iter().skip(slot).step_by(measured.metrics.len());
            of_slot.map(|value| 100.0 * value).collect()
        };
        per_query.iter().flat_map(of_query).collect()
    };
    Curve {
        items,
        queries: answers.count,
        lines: measured.shown().map(|(slot, metric)| (metric, line(slot))).collect(),
        flips: flips(start_right, &sums.lost),
        do_nothing,
        groups: group_lines,
        gap,
        per_query: PerQuery {
            queries: answers.counted.clone(),
            areas: measured.shown().map(|(slot, metric)| (metric, area(slot))).collect(),
            cuts: Vec::new(),
            at_cuts: measured.shown().map(|(slot, metric)| (metric, values_at_cuts(slot))).collect(),
        },
    }
}

/// Running sums of changes; they never become negative.
fn running(changes: &[i64]) -> Vec<u64> {
    let mut sum = 0;
    changes
        .iter()
        .map(|change| {
            sum += change;
            sum as u64
        })
        .collect()
}

/// Groups of the counted queries.
struct Groups {
    /// Numbers of the groups, ascending.
    names: Vec<i64>,
    /// Number of counted queries in each group.
    sizes: Vec<usize>,
    /// Position in `names` of every counted query's group.
    of_query: Vec<Option<usize>>,
}

impl Groups {
    fn new(groups: Option<&[i64]>, answers: &Answers<'_>) -> Result<Self> {
        let Some(groups) = groups else {
            let of_query = vec![None; answers.counted.len()];
            return Ok(Self { names: Vec::new(), sizes: Vec::new(), of_query });
        };
        expect_count("groups", groups.len(), "queries", answers.count.given)?;
        let counted = answers.counted.iter().map(|&query| groups[query]);
        let names = distinct(counted.clone());
        if names.len() > GROUPS_MAX {
            let expected = format!("at most {GROUPS_MAX} different groups");
            return Err(Error::option("groups", names.len(), expected));
        }
        let of_query: Vec<Option<usize>> = counted.map(|group| names.binary_search(&group).ok()).collect();
        let mut sizes = vec![0; names.len()];
        for group in of_query.iter().flatten() {
            sizes[*group] += 1;
        }
        Ok(Self { names, sizes, of_query })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_processor_gives_the_same_bits_and_a_curve_is_the_mean_of_its_queries() {
        let mut state = 7_u64;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / 16777216.0
        };
        let native = Matrix::from_fn(150, 9, |_, _| next());
        let adapted = Matrix::from_fn(150, 9, |row, column| native.row(row)[column] + 0.2 * next());
        let labels: Vec<i64> = (0..150).map(|item| item % 7).collect();
        let order: Vec<usize> = (0..150).map(|item| item * 7 % 150).collect();
        for distance in Distance::ALL {
            let input = CurveInput {
                handicap: 0.25,
                ..CurveInput::new(
                    &native,
                    &adapted,
                    &order,
                    Relevance::Labels { gallery: &labels, queries: None },
                    distance,
                )
            };
            let options = CurveOptions {
                metrics: vec![Metric::map_at(10), Metric::ndcg_at(10), Metric::recall_at(10)],
                flips_at: Some(3),
                kept_cuts: 5,
            };
            let curves: Vec<Curve> = Processor::available()
                .into_iter()
                .map(|processor| curve_on(processor, &input, &options, &Progress::default()).unwrap())
                .collect();
            assert!(curves.iter().all(|curve| *curve == curves[0]));
            let distances =
                [&native, &adapted].map(|gallery| Distances::new(&native, gallery, None, distance).unwrap());
            let input = CurveInput { known: Some([&distances[0], &distances[1]]), ..input };
            assert_eq!(curve(&input, &options, &Progress::default()).unwrap(), curves[0]);
            let (first_curve, per_query) = (&curves[0], &curves[0].per_query);
            let queries = per_query.queries.len() as f64;
            assert_eq!(first_curve.lines.metrics().count(), 6);
            for (metric, line) in first_curve.lines.iter() {
                let (areas, at_cuts) = (&per_query.areas[metric], &per_query.at_cuts[metric]);
                assert!((line.area() - areas.iter().sum::<f64>() / queries).abs() < 1e-9);
                for (column, &cut) in per_query.cuts.iter().enumerate() {
                    let sum: f64 = at_cuts
                        .iter()
                        .skip(column)
                        .step_by(per_query.cuts.len())
                        .map(|&value| f64::from(value))
                        .sum();
                    assert!((line.values()[cut] - sum / queries).abs() < 1e-4);
                }
            }
            let intervals = first_curve.area_intervals(50, 0.95, 1).unwrap();
            let ndcg = intervals[Metric::ndcg_at(10)];
            assert!((ndcg.estimate - first_curve.lines[Metric::ndcg_at(10)].area()).abs() < 1e-9);
            assert!(ndcg.low < ndcg.high);
            let bands = first_curve.bands(50, 0.95, 1).unwrap();
            assert_eq!(bands[Metric::recall_at(10)].len(), per_query.cuts.len());
        }
    }
}
