//! Agreement with the fully native gallery: a curve that needs no labels.

use serde::Serialize;

use crate::error::{Error, ErrorKind, Result};
use crate::progress::Progress;
use crate::space::Distance;
use crate::statistics::{Interval, bootstrap_means};
use crate::vectors::Matrix;

use super::input::{Search, check_handicap, check_vectors, kept_cuts, percent_line};
use super::line::Line;
use super::metrics::Metric;
use super::relevance::{Positive, Qrels, Relevance};
use super::sweep::{self, Depths, OWN_FIXED, Query, Totals, Workspace};
use super::{CurveOptions, DoNothing, Processor, check_today, evaluate};

/// Agreement@k at every one of the n + 1 states of a backfill.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AgreementCurve {
    /// The depth k; smaller than asked for where a ranking has fewer items.
    pub depth: usize,
    /// Share of the k nearest items that are also among the k nearest of the fully native gallery, in percent. Ends at
    /// 100.
    pub line: Line,
    /// The area of each query's own agreement, in percent.
    pub per_query: Vec<f64>,
    /// Cuts at which every query's own agreement is kept.
    pub cuts: Vec<usize>,
    /// Agreement of each query at each kept cut, `[queries, cuts]`, in percent.
    #[serde(skip)]
    pub at_cuts: Vec<f64>,
}

impl AgreementCurve {
    /// Percentile bootstrap interval over queries of the area; see [`bootstrap_means`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidOption`] for no resamples or a level outside (0, 1).
    pub fn area_interval(&self, resamples: usize, level: f64, seed: u64) -> Result<Interval> {
        bootstrap_means(&self.per_query, 1, resamples, level, seed).map(|intervals| intervals[0])
    }

    /// Percentile bootstrap intervals over queries at the kept cuts.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::MissingInput`] where no cuts were kept, and as [`AgreementCurve::area_interval`].
    pub fn band(&self, resamples: usize, level: f64, seed: u64) -> Result<Vec<Interval>> {
        if self.cuts.is_empty() {
            return Err(Error::missing("kept cuts", "a band over queries"));
        }
        bootstrap_means(&self.at_cuts, self.cuts.len(), resamples, level, seed)
    }
}

/// The agreement@k curve: how much of what a user sees at each state is what they will see in the end.
///
/// Needs no labels. Every query counts. `queries` is `None` where the gallery is its own query set and each query
/// leaves itself out. `handicap` is added to the distance of every item that is still adapted
/// ([`super::CurveInput::handicap`]). `kept` is how many evenly spaced cuts keep every query's own agreement, for
/// [`AgreementCurve::band`]; 0 keeps none.
///
/// ```
/// use rehang::curve::agreement;
/// use rehang::{Distance, Matrix, Progress};
///
/// let native = Matrix::new(1, vec![0.0, 1.0, 5.0, 6.0])?;
/// let adapted = Matrix::new(1, vec![0.0, 5.0, 1.0, 6.0])?;
/// let queries = Matrix::new(1, vec![0.0, 6.0])?;
/// let agreement =
///     agreement(&native, &adapted, &[1, 2, 0, 3], Some(&queries), Distance::L2, 0.0, 2, 0, &Progress::default())?;
/// assert_eq!(agreement.line.values(), [50.0, 75.0, 100.0, 100.0, 100.0]);
/// // The first query is answered as in the end from the first item on, the second one item later.
/// assert_eq!(agreement.per_query, [90.0, 80.0]);
/// # Ok::<(), rehang::Error>(())
/// ```
///
/// # Errors
///
/// As [`super::curve()`], for vectors, order and depth.
pub fn agreement(
    native: &Matrix,
    adapted: &Matrix,
    order: &[usize],
    queries: Option<&Matrix>,
    distance: Distance,
    handicap: f64,
    depth: usize,
    kept: usize,
    progress: &Progress,
) -> Result<AgreementCurve> {
    let items = native.rows();
    check_vectors(native, Some(adapted), queries)?;
    check_handicap(handicap)?;
    crate::order::check_permutation(order, items)?;
    let depth = depth_within(depth, items, queries)?;
    // Agreement is recall of what the fully native gallery finds.
    let depths = Depths::new(&[Metric::recall_at(depth)], None);
    let processor = Processor::detect();
    let columns: Vec<u32> = order.iter().map(|&item| item as u32).collect();
    let mut times = vec![0; items];
    for (time, &item) in order.iter().enumerate() {
        times[item] = time as u32;
    }
    let counted: Vec<usize> = (0..queries.map_or(items, Matrix::rows)).collect();
    let cuts = kept_cuts(items, kept);
    progress.begin("agreement", "queries", counted.len() as u64);
    let search = Search {
        processor,
        native,
        adapted: Some(adapted),
        order,
        queries: queries.unwrap_or(native),
        counted: &counted,
        distance,
        handicap,
    };
    let (own, totals) = search.run(
        progress,
        || (Workspace::default(), Totals::new(items, &depths, false, 0), Vec::new()),
        |(work, totals, nearest), query, native, adapted| {
            let own = if queries.is_none() { Some(times[query]) } else { None };
            find_nearest(native, &columns, own, depth, nearest);
            let mut positives: Vec<Positive> =
                nearest.iter().map(|&(_, _, time)| Positive { time, gain: 1.0 }).collect();
            positives.sort_unstable_by_key(|positive| positive.time);
            let query = Query {
                native,
                adapted,
                items: &columns,
                positives: &positives,
                ignored: own.as_slice(),
                cuts: &cuts,
                ..Query::default()
            };
            sweep::sweep(processor, work, &query, &depths, totals)
        },
    )?;
    let sums = totals.into_iter().map(|(_, totals, _)| totals).reduce(Totals::plus).unwrap_or_default();
    Ok(AgreementCurve {
        depth,
        line: percent_line(&sums.heads[0], counted.len() as f64 * sweep::UNIT),
        per_query: own.iter().map(|query| 100.0 * query.areas[OWN_FIXED]).collect(),
        at_cuts: own
            .iter()
            .flat_map(|query| query.at_cuts.iter().skip(OWN_FIXED).step_by(OWN_FIXED + 1))
            .map(|&value| 100.0 * f64::from(value))
            .collect(),
        cuts,
    })
}

/// Agreement@k of the search as it is today with the fully native gallery, in percent: the do-nothing line of [`agreement`].
///
/// That is the share of the k nearest items by the new model (`queries` in `native`, compared by `distance`) that the old model
/// gives among its k nearest too. Queries and depth as in [`agreement`].
///
/// ```
/// use rehang::curve::{DoNothing, agreement_today};
/// use rehang::{Distance, Matrix, Progress};
///
/// let native = Matrix::new(1, vec![0.0, 1.0, 5.0, 6.0])?;
/// let queries = Matrix::new(1, vec![0.0, 6.0])?;
/// // To the old model the items in the middle stand the other way round.
/// let old = Matrix::new(1, vec![0.0, 5.0, 1.0, 6.0])?;
/// let today = DoNothing { gallery: &old, queries: Some(&queries), distance: Distance::L2 };
/// let line = agreement_today(&native, Some(&queries), Distance::L2, today, 2, &Progress::default())?;
/// assert_eq!(line, 50.0);
/// # Ok::<(), rehang::Error>(())
/// ```
///
/// # Errors
///
/// As [`super::curve()`], for vectors, numbers and depth.
pub fn agreement_today(
    native: &Matrix,
    queries: Option<&Matrix>,
    distance: Distance,
    today: DoNothing<'_>,
    depth: usize,
    progress: &Progress,
) -> Result<f64> {
    check_vectors(native, None, queries)?;
    check_today(&today, native, queries)?;
    let depth = depth_within(depth, native.rows(), queries)?;
    let order: Vec<usize> = (0..native.rows()).collect();
    let columns: Vec<u32> = (0..native.rows() as u32).collect();
    let counted: Vec<usize> = (0..queries.unwrap_or(native).rows()).collect();
    progress.begin("agreement", "queries", counted.len() as u64);
    let search = Search {
        processor: Processor::detect(),
        native,
        adapted: None,
        order: &order,
        queries: queries.unwrap_or(native),
        counted: &counted,
        distance,
        handicap: 0.0,
    };
    let (nearest, _) = search.run(progress, Vec::new, |nearest, query, native, _| {
        let own = queries.is_none().then_some(query as u32);
        find_nearest(native, &columns, own, depth, nearest);
        nearest.iter().map(|&(_, item, _)| (item as usize, 1.0)).collect::<Vec<(usize, f64)>>()
    })?;
    // What the new model finds is what the old one has to find: agreement is recall of it.
    let wanted = Qrels::new(nearest)?;
    let options = CurveOptions { metrics: vec![Metric::recall_at(depth)], ..CurveOptions::default() };
    let relevance = Relevance::Judgements(&wanted);
    let evaluation = evaluate(today.gallery, today.queries, relevance, today.distance, &options, progress)?;
    Ok(evaluation.values[Metric::recall_at(depth)])
}

/// The depth that was asked for, made smaller where a ranking has fewer items.
fn depth_within(depth: usize, items: usize, queries: Option<&Matrix>) -> Result<usize> {
    let depth_max = items - usize::from(queries.is_none());
    if depth == 0 {
        return Err(Error::option("the depth of agreement@k", depth, "1 or more"));
    }
    if depth_max == 0 {
        let detail =
            "the gallery is its own set of queries and has one item; give separate queries, or more items";
        return Err(ErrorKind::NothingToFind { detail: detail.into() }.into());
    }
    Ok(depth.min(depth_max))
}

/// The `depth` nearest columns by (distance, gallery index), as (distance, gallery index, column).
fn find_nearest(
    distances: &[f64],
    items: &[u32],
    own: Option<u32>,
    depth: usize,
    nearest: &mut Vec<(f64, u32, u32)>,
) {
    nearest.clear();
    let mut farthest = f64::INFINITY;
    for (time, (&distance, &item)) in (0_u32..).zip(distances.iter().zip(items)) {
        if distance > farthest || Some(time) == own {
            continue;
        }
        let place = nearest.partition_point(|&(other, index, _)| (other, index) < (distance, item));
        nearest.insert(place, (distance, item, time));
        nearest.truncate(depth);
        if nearest.len() == depth {
            farthest = nearest[depth - 1].0;
        }
    }
}
