//! The metrics of a gallery that stays as it is.

use serde::Serialize;

use crate::error::Result;
use crate::progress::Progress;
use crate::space::Distance;
use crate::vectors::Matrix;

use super::centre::Centre;
use super::input::{Blocks, check_vectors};
use super::relevance::{Answers, QueryCount, Relevance, expect_count};
use super::sweep::{self, Depths, Query, Ranking, Workspace};
use super::{CurveOptions, Panels, Processor, check_depths};

/// Metrics of one gallery and one query set, in percent; definitions as in [the module](super).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evaluation {
    /// Queries counted and left out.
    pub queries: QueryCount,
    /// CMC top-1.
    pub top1: f64,
    /// CMC top-5.
    pub top5: f64,
    /// Mean average precision.
    pub map: f64,
    /// mAP@k, where asked for.
    pub map_at: Option<f64>,
    /// nDCG@k, where asked for.
    pub ndcg_at: Option<f64>,
    /// recall@k, where asked for.
    pub recall_at: Option<f64>,
    /// Every counted query's own numbers.
    pub per_query: QueryRanks,
}

/// What one ranking says about every counted query.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct QueryRanks {
    /// The counted queries, ascending.
    pub queries: Vec<usize>,
    /// Rank of the first right answer of each, from 1.
    pub first_rank: Vec<usize>,
    /// Average precision of each, in percent.
    pub precision: Vec<f64>,
    /// Average precision within the depth of mAP@k of each, in percent; empty where mAP@k was not asked for.
    pub precision_at: Vec<f64>,
}

impl Evaluation {
    /// CMC top-k: the share of queries with a right answer among the k nearest, in percent.
    pub fn top(&self, depth: usize) -> f64 {
        let ranks = &self.per_query.first_rank;
        100.0 * ranks.iter().filter(|&&rank| rank <= depth).count() as f64 / ranks.len() as f64
    }
}

/// The metrics of a gallery `[n, d]` for queries `[m, d]` (`None`: the gallery itself, leaving each query out).
///
/// The depths of `options` choose further metrics; its kept cuts are not used.
///
/// ```
/// use rehang::curve::{CurveOptions, Relevance, evaluate};
/// use rehang::{Distance, Matrix, Progress};
///
/// let gallery = Matrix::new(1, vec![0.0, 1.0, 2.0])?;
/// let labels = [0, 1, 0];
/// let relevance = Relevance::Labels { gallery: &labels, queries: None };
/// let options = CurveOptions::default();
/// let result = evaluate(&gallery, None, relevance, Distance::L2, &options, &Progress::default())?;
/// // The item in the middle is alone in its class: no right answer exists, so it is not counted.
/// assert_eq!((result.queries.counted, result.queries.without_positives), (2, 1));
/// assert_eq!((result.top1, result.top(2), result.map), (0.0, 100.0, 50.0));
/// # Ok::<(), rehang::Error>(())
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
    let order: Vec<usize> = (0..gallery.rows()).collect();
    check_vectors(gallery, None, queries)?;
    let answers = Answers::new(relevance, &order, queries.map(Matrix::rows))?;
    summarise(gallery, queries.unwrap_or(gallery), answers, distance, options, progress)
}

/// The metrics of a gallery `[n, d]` whose own items, embedded by another model, are the queries `[n, d]`: query i
/// leaves item i out.
///
/// ```
/// use rehang::curve::{CurveOptions, Relevance, evaluate_leave_one_out};
/// use rehang::{Distance, Matrix, Progress};
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
/// assert_eq!((result.queries.counted, result.top1, result.map), (2, 50.0, 75.0));
/// # Ok::<(), rehang::Error>(())
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
    let order: Vec<usize> = (0..gallery.rows()).collect();
    check_vectors(gallery, None, Some(queries))?;
    expect_count("query vectors", queries.rows(), "gallery vectors", gallery.rows())?;
    let answers = Answers::new(relevance, &order, None)?;
    summarise(gallery, queries, answers, distance, options, progress)
}

/// The ranks of the right answers to every query, ascending, from 1; `None` for a query that has none.
///
/// Items that a query ignores take no rank.
///
/// # Errors
///
/// As [`super::curve()`].
pub(crate) fn ranks_of_answers(
    gallery: &Matrix,
    queries: &Matrix,
    relevance: Relevance<'_>,
    distance: Distance,
    progress: &Progress,
) -> Result<(QueryCount, Vec<Option<Vec<usize>>>)> {
    let order: Vec<usize> = (0..gallery.rows()).collect();
    check_vectors(gallery, None, Some(queries))?;
    let answers = Answers::new(relevance, &order, Some(queries.rows()))?;
    let rankings = rank_all(gallery, queries, &answers, distance, progress, |work, query| {
        sweep::rank(work, query, &Depths::default());
        work.ranks().iter().map(|&rank| rank as usize).collect::<Vec<usize>>()
    })?;
    let mut ranks = vec![None; queries.rows()];
    for (&query, ranking) in answers.counted.iter().zip(rankings) {
        ranks[query] = Some(ranking);
    }
    Ok((answers.count, ranks))
}

/// Ranks the gallery for every counted query and keeps what `read` makes of it.
fn rank_all<R: Send>(
    gallery: &Matrix,
    queries: &Matrix,
    answers: &Answers<'_>,
    distance: Distance,
    progress: &Progress,
    read: impl Fn(&mut Workspace, &Query<'_>) -> R + Sync,
) -> Result<Vec<R>> {
    let columns: Vec<u32> = (0..gallery.rows() as u32).collect();
    let order: Vec<usize> = (0..gallery.rows()).collect();
    let centre = Centre::new(distance, gallery, &[queries]);
    let panels = Panels::new(&centre.taken_from(gallery), &order);
    let queries = centre.taken_from(queries);
    progress.begin("evaluation", "queries", answers.counted.len() as u64);
    let blocks = Blocks {
        processor: Processor::detect(),
        queries: &queries,
        counted: &answers.counted,
        native: &panels,
        adapted: None,
        distance,
        handicap: 0.0,
    };
    let (rankings, _) = blocks.run(
        progress,
        || (Workspace::default(), Vec::new(), Vec::new()),
        |(work, positives, ignored), place, native, _| {
            answers.of(answers.counted[place], positives, ignored);
            let query = Query {
                native,
                adapted: &[],
                items: &columns,
                positives,
                ignored,
                group: None,
                baseline: [false; sweep::HITS],
                cuts: &[],
            };
            read(work, &query)
        },
    )?;
    Ok(rankings)
}

fn summarise(
    gallery: &Matrix,
    queries: &Matrix,
    answers: Answers<'_>,
    distance: Distance,
    options: &CurveOptions,
    progress: &Progress,
) -> Result<Evaluation> {
    let depths = check_depths(options)?;
    let rankings = rank_all(gallery, queries, &answers, distance, progress, |work, query| {
        sweep::rank(work, query, &depths)
    })?;
    let mean = |value: &dyn Fn(&Ranking) -> f64| {
        100.0 * rankings.iter().map(value).sum::<f64>() / rankings.len() as f64
    };
    let within = |ranking: &Ranking, depth: usize| if ranking.first_rank <= depth { 1.0 } else { 0.0 };
    Ok(Evaluation {
        queries: answers.count,
        top1: mean(&|ranking| within(ranking, 1)),
        top5: mean(&|ranking| within(ranking, 5)),
        map: mean(&|ranking| ranking.precision),
        map_at: options.map_at.map(|_| mean(&|ranking| ranking.head.map)),
        ndcg_at: options.ndcg_at.map(|_| mean(&|ranking| ranking.head.ndcg)),
        recall_at: options.recall_at.map(|_| mean(&|ranking| ranking.head.recall)),
        per_query: QueryRanks {
            first_rank: rankings.iter().map(|ranking| ranking.first_rank).collect(),
            precision: rankings.iter().map(|ranking| 100.0 * ranking.precision).collect(),
            precision_at: match options.map_at {
                Some(_) => rankings.iter().map(|ranking| 100.0 * ranking.head.map).collect(),
                None => Vec::new(),
            },
            queries: answers.counted,
        },
    })
}
