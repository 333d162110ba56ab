//! Metrics of a gallery that stays as it is.

use crate::error::{Error, ErrorKind, Result};
use crate::progress::Progress;
use crate::space::Distance;
use crate::vectors::Matrix;

use super::input::{Search, check_vectors};
use super::known::Distances;
use super::measured::{CurveOptions, Measured};
use super::metrics::ByMetric;
use super::relevance::{Answers, Qrels, QueryCount, Relevance};
use super::sweep::{self, Depths, Query, Workspace};
use crate::check::expect_count;
use crate::processor::Processor;

/// The search as it is before the upgrade: the old model's queries in the old model's gallery.
#[derive(Debug, Clone, Copy)]
pub struct DoNothing<'a> {
    /// The old model's gallery, `[n, d_old]`.
    pub gallery: &'a Matrix,
    /// The old model's queries, `[m, d_old]`; `None` where the gallery is its own query set.
    pub queries: Option<&'a Matrix>,
    /// Distance by which the old model's vectors are compared.
    pub distance: Distance,
}

/// Metrics of one gallery and one query set, in percent; definitions as in [the module](super).
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluation {
    /// Number of queries that count, and of those left out.
    pub queries: QueryCount,
    /// Top-1, top-5, mAP and the other metrics that were asked for, in percent.
    pub values: ByMetric<f64>,
    /// Numbers of every counted query.
    pub per_query: QueryRanks,
}

/// Results of one ranking for every counted query.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct QueryRanks {
    /// Numbers of the counted queries, ascending.
    pub queries: Vec<usize>,
    /// Rank of the first right answer to each query, from 1.
    pub first_rank: Vec<usize>,
    /// Each metric of each query, in percent.
    pub values: ByMetric<Vec<f64>>,
}

impl Evaluation {
    /// CMC top-k: the share of queries with a right answer among the k nearest, in percent.
    pub fn top(&self, depth: usize) -> f64 {
        let ranks = &self.per_query.first_rank;
        100.0 * ranks.iter().filter(|&&rank| rank <= depth).count() as f64 / ranks.len() as f64
    }
}

/// Computes the metrics of a gallery `[n, d]` for queries `[m, d]` (`None`: the gallery itself, leaving each
/// query out).
///
/// The metrics of `options` are added; its kept cuts are not used.
///
/// ```
/// use rehang_core::curve::{CurveOptions, MAP, Relevance, TOP1, evaluate};
/// use rehang_core::{Distance, Matrix, Progress};
///
/// let gallery = Matrix::new(1, vec![0.0, 1.0, 2.0])?;
/// let labels = [0, 1, 0];
/// let relevance = Relevance::Labels { gallery: &labels, queries: None };
/// let options = CurveOptions::default();
/// let result = evaluate(&gallery, None, relevance, Distance::L2, &options, &Progress::default())?;
/// // The item in the middle is alone in its class: no right answer exists, so it is not counted.
/// assert_eq!((result.queries.counted, result.queries.without_positives), (2, 1));
/// assert_eq!((result.values[TOP1], result.top(2), result.values[MAP]), (0.0, 100.0, 50.0));
/// # Ok::<(), rehang_core::Error>(())
/// ```
///
/// # Errors
///
/// As [`super::curve()`].
pub fn evaluate(
    gallery: &Matrix,
    queries: Option<&Matrix>,
    relevance: Relevance<'_>,
    distance: Distance,
    options: &CurveOptions,
    progress: &Progress,
) -> Result<Evaluation> {
    relevance.expect_given()?;
    let order: Vec<usize> = (0..gallery.rows()).collect();
    check_vectors(gallery, None, queries)?;
    let answers = Answers::new(relevance, &order, queries.map(Matrix::rows))?;
    let measured = Measured::new(relevance, options)?;
    let from = RankedBy::Vectors(gallery, queries.unwrap_or(gallery), distance);
    summarise(from, answers, &measured, progress)
}

/// Computes the metrics of queries whose distances to a gallery are known, `[m, n]`, whatever they are made
/// of: as [`evaluate`] with queries of their own.
///
/// ```
/// use rehang_core::curve::{CurveOptions, Distances, MAP, Relevance, TOP1, evaluate_distances};
/// use rehang_core::{Distance, Matrix, Progress};
///
/// let (gallery, queries) = (Matrix::new(1, vec![0.0, 1.0, 4.0])?, Matrix::new(1, vec![0.9])?);
/// let distances = Distances::new(&gallery, &gallery, Some(&queries), Distance::L2)?;
/// let relevance = Relevance::Labels { gallery: &[7, 8, 8], queries: Some(&[7]) };
/// let result =
///     evaluate_distances(&distances, relevance, &CurveOptions::default(), &Progress::default())?;
/// // The right answer comes second.
/// assert_eq!((result.values[TOP1], result.values[MAP]), (0.0, 50.0));
/// # Ok::<(), rehang_core::Error>(())
/// ```
///
/// # Errors
///
/// As [`evaluate`]; [`ErrorKind::Empty`](crate::ErrorKind::Empty) for distances to nothing.
pub fn evaluate_distances(
    distances: &Distances,
    relevance: Relevance<'_>,
    options: &CurveOptions,
    progress: &Progress,
) -> Result<Evaluation> {
    relevance.expect_given()?;
    if distances.items() == 0 {
        return Err(ErrorKind::Empty { what: "gallery vectors".into() }.into());
    }
    let order: Vec<usize> = (0..distances.items()).collect();
    let answers = Answers::new(relevance, &order, Some(distances.queries()))?;
    summarise(RankedBy::Distances(distances), answers, &Measured::new(relevance, options)?, progress)
}

/// Computes the metrics of the search as it is today: the do-nothing line of a [curve](super::curve()) with
/// these queries, right answers and options.
///
/// For [`Relevance::Nearest`] the metric is a share of the k nearest items by the new model (`queries` in
/// `native`, compared by `distance`): of those, the old model has this share among its k nearest too.
///
/// ```
/// use rehang_core::curve::{CurveOptions, DoNothing, Metric, Relevance, evaluate_today};
/// use rehang_core::{Distance, Matrix, Progress};
///
/// let native = Matrix::new(1, vec![0.0, 1.0, 5.0, 6.0])?;
/// let queries = Matrix::new(1, vec![0.0, 6.0])?;
/// // To the old model the items in the middle stand the other way round.
/// let old = Matrix::new(1, vec![0.0, 5.0, 1.0, 6.0])?;
/// let today = DoNothing { gallery: &old, queries: Some(&queries), distance: Distance::L2 };
/// let (relevance, options) = (Relevance::Nearest(2), CurveOptions::default());
/// let (distance, progress) = (Distance::L2, Progress::default());
/// let line = evaluate_today(today, &native, Some(&queries), relevance, distance, &options, &progress)?;
/// assert_eq!(line.values[Metric::agreement_at(2)], 50.0);
/// # Ok::<(), rehang_core::Error>(())
/// ```
///
/// # Errors
///
/// As [`super::curve()`]; where old and new vectors, or old and new queries, differ in number.
pub fn evaluate_today(
    today: DoNothing<'_>,
    native: &Matrix,
    queries: Option<&Matrix>,
    relevance: Relevance<'_>,
    distance: Distance,
    options: &CurveOptions,
    progress: &Progress,
) -> Result<Evaluation> {
    expect_count("old vectors", today.gallery.rows(), "new vectors", native.rows())?;
    match (today.queries, queries) {
        (None, None) => {}
        (Some(old), Some(new)) => expect_count("old queries", old.rows(), "new queries", new.rows())?,
        (None, Some(_)) => return Err(Error::missing("old query vectors", "the do-nothing line")),
        (Some(_), None) => return Err(Error::missing("new query vectors", "a set of old queries")),
    }
    // For agreement the right answers are the items that the new model finds in its own gallery. The old
    // model's search is then measured by how many of these it finds.
    let wanted = match relevance {
        Relevance::Nearest(depth) => Some(nearest(native, queries, depth, distance, progress)?),
        Relevance::Labels { .. } | Relevance::Judgements(_) => None,
    };
    let order: Vec<usize> = (0..native.rows()).collect();
    check_vectors(today.gallery, None, today.queries)?;
    let right = wanted.as_ref().map_or(relevance, Relevance::Judgements);
    let answers = Answers::new(right, &order, today.queries.map(Matrix::rows))?;
    let measured = Measured::new(relevance, options)?;
    let queries = today.queries.unwrap_or(today.gallery);
    summarise(RankedBy::Vectors(today.gallery, queries, today.distance), answers, &measured, progress)
}

/// Finds the `depth` nearest items of a gallery `[n, d]` to each query `[m, d]` (`None`: the gallery itself,
/// each query leaving itself out), each with the gain 1. These are the right answers of agreement@k: a search
/// has the agreement@k that is its [recall@k](super::Metric::recall_at) by these.
///
/// # Errors
///
/// As [`super::curve()`].
pub fn nearest(
    native: &Matrix,
    queries: Option<&Matrix>,
    depth: usize,
    distance: Distance,
    progress: &Progress,
) -> Result<Qrels> {
    check_vectors(native, None, queries)?;
    let order: Vec<usize> = (0..native.rows()).collect();
    let answers = Answers::new(Relevance::Nearest(depth), &order, queries.map(Matrix::rows))?;
    let from = RankedBy::Vectors(native, queries.unwrap_or(native), distance);
    let nearest = rank_all(from, &answers, progress, |_, query| {
        query.positives.iter().map(|positive| (positive.time as usize, positive.gain)).collect()
    })?;
    Qrels::new(nearest)
}

/// Computes the metrics of a gallery `[n, d]` whose own items, embedded by another model, are the queries
/// `[n, d]`. Query i leaves item i out.
///
/// ```
/// use rehang_core::curve::{CurveOptions, MAP, Relevance, TOP1, evaluate_leave_one_out};
/// use rehang_core::{Distance, Matrix, Progress};
///
/// // By the gallery's model the items stand at 0, 1, 4; the query model puts the last one at 1.
/// let gallery = Matrix::new(1, vec![0.0, 1.0, 4.0])?;
/// let queries = Matrix::new(1, vec![0.0, 1.0, 1.0])?;
/// let labels = [0, 1, 1];
/// let relevance = Relevance::Labels { gallery: &labels, queries: None };
/// let options = CurveOptions::default();
/// let result =
///     evaluate_leave_one_out(&gallery, &queries, relevance, Distance::L2, &options, &Progress::default())?;
/// // Query 1 finds item 0 before item 2; query 2 finds item 1 first.
/// assert_eq!((result.queries.counted, result.values[TOP1], result.values[MAP]), (2, 50.0, 75.0));
/// # Ok::<(), rehang_core::Error>(())
/// ```
///
/// # Errors
///
/// As [`super::curve()`]; [`crate::ErrorKind::CountMismatch`] where there are not as many queries as items.
pub fn evaluate_leave_one_out(
    gallery: &Matrix,
    queries: &Matrix,
    relevance: Relevance<'_>,
    distance: Distance,
    options: &CurveOptions,
    progress: &Progress,
) -> Result<Evaluation> {
    relevance.expect_given()?;
    let order: Vec<usize> = (0..gallery.rows()).collect();
    check_vectors(gallery, None, Some(queries))?;
    expect_count("query vectors", queries.rows(), "gallery vectors", gallery.rows())?;
    let answers = Answers::new(relevance, &order, None)?;
    let from = RankedBy::Vectors(gallery, queries, distance);
    summarise(from, answers, &Measured::new(relevance, options)?, progress)
}

/// Finds the ranks of the right answers to every query, ascending, from 1; `None` for a query that has none.
///
/// Items that a query ignores take no rank.
///
/// # Errors
///
/// As [`super::curve()`].
pub fn ranks_of_answers(
    gallery: &Matrix,
    queries: &Matrix,
    relevance: Relevance<'_>,
    distance: Distance,
    progress: &Progress,
) -> Result<(QueryCount, Vec<Option<Vec<usize>>>)> {
    let order: Vec<usize> = (0..gallery.rows()).collect();
    check_vectors(gallery, None, Some(queries))?;
    let answers = Answers::new(relevance, &order, Some(queries.rows()))?;
    let from = RankedBy::Vectors(gallery, queries, distance);
    let rankings = rank_all(from, &answers, progress, |work, query| {
        sweep::rank(work, query, &Depths::default());
        work.ranks().iter().map(|&rank| rank as usize).collect::<Vec<usize>>()
    })?;
    let mut ranks = vec![None; queries.rows()];
    for (&query, ranking) in answers.counted.iter().zip(rankings) {
        ranks[query] = Some(ranking);
    }
    Ok((answers.count, ranks))
}

/// Calls `read` with the exact distances `[n]` of every query in `counted` to all items of a gallery, and
/// with the query's place in `counted`. Returns its results in the order of `counted`.
///
/// # Errors
///
/// As [`check_vectors`]; cancelled.
pub fn distances_by_query<R: Send>(
    gallery: &Matrix,
    queries: &Matrix,
    counted: &[usize],
    distance: Distance,
    progress: &Progress,
    read: impl Fn(usize, &[f64]) -> R + Sync,
) -> Result<Vec<R>> {
    check_vectors(gallery, None, Some(queries))?;
    let search = Search {
        processor: Processor::detect(),
        native: gallery,
        adapted: None,
        order: &(0..gallery.rows()).collect::<Vec<_>>(),
        queries,
        counted,
        distance,
        handicap: 0.0,
        known: None,
    };
    let (answers, _) = search.run(progress, || (), |(), place, distances, _| read(place, distances))?;
    Ok(answers)
}

/// Numbers that a gallery is ranked by.
#[derive(Clone, Copy)]
enum RankedBy<'a> {
    /// Vectors of the gallery and of the queries, and how they are compared.
    Vectors(&'a Matrix, &'a Matrix, Distance),
    Distances(&'a Distances),
}

/// Ranks the gallery for every counted query and keeps what `read` makes of the ranking.
fn rank_all<R: Send>(
    from: RankedBy<'_>,
    answers: &Answers<'_>,
    progress: &Progress,
    read: impl Fn(&mut Workspace, &Query<'_>) -> R + Sync,
) -> Result<Vec<R>> {
    progress.begin("evaluation", "queries", answers.counted.len() as u64);
    let nothing = Matrix::default();
    let (gallery, queries, distance, known) = match from {
        RankedBy::Vectors(gallery, queries, distance) => (gallery, queries, distance, None),
        RankedBy::Distances(distances) => (&nothing, &nothing, Distance::L2, Some([distances; 2])),
    };
    let items = known.map_or(gallery.rows(), |[distances, _]| distances.items());
    let search = Search {
        processor: Processor::detect(),
        native: gallery,
        adapted: None,
        order: &(0..items).collect::<Vec<_>>(),
        queries,
        counted: &answers.counted,
        distance,
        handicap: 0.0,
        known,
    };
    let (rankings, _) = search.run(
        progress,
        || (Workspace::default(), Vec::new(), Vec::new()),
        |(work, positives, ignored), place, native, _| {
            answers.fill_answers(answers.counted[place], native, positives, ignored);
            let query = Query { native, items: &answers.items, positives, ignored, ..Query::default() };
            read(work, &query)
        },
    )?;
    Ok(rankings)
}

fn summarise(
    from: RankedBy<'_>,
    answers: Answers<'_>,
    measured: &Measured,
    progress: &Progress,
) -> Result<Evaluation> {
    let rankings = rank_all(from, &answers, progress, |work, query| sweep::rank(work, query, &measured.depths))?;
    let by_query: Vec<Vec<f64>> = rankings.iter().map(|ranking| measured.values(ranking)).collect();
    let values = |slot: usize| by_query.iter().map(move |values| values[slot]);
    Ok(Evaluation {
        queries: answers.count,
        values: measured
            .shown()
            .map(|(slot, metric)| (metric, 100.0 * values(slot).sum::<f64>() / rankings.len() as f64))
            .collect(),
        per_query: QueryRanks {
            first_rank: rankings.iter().map(|ranking| ranking.first_rank).collect(),
            values: measured
                .shown()
                .map(|(slot, metric)| (metric, values(slot).map(|value| 100.0 * value).collect()))
                .collect(),
            queries: answers.counted,
        },
    })
}
