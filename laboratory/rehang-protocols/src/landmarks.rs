//! Retrieval of landmarks: Google Landmarks v2, and the revisited Oxford and Paris benchmarks.

use rehang_files::lists::GroundTruth;
use serde::Serialize;

use rehang_core::check::expect_count;
use rehang_core::curve::{
    CurveOptions, Evaluation, Metric, Qrels, QueryCount, Relevance, evaluate, ranks_of_answers,
};
use rehang_core::{Distance, Error, Matrix, Progress, Result};

/// Depths of the mean precision that the revisited benchmarks report.
pub const PRECISION_DEPTHS: [usize; 3] = [1, 5, 10];
/// Depth of mAP@k by which RACT and DMU report the revisited benchmarks.
pub const REVISITED_MAP_DEPTH: usize = 10;

/// mAP@k of landmark queries `[m, d]` in an index `[n, d]`: `1/min(P, k) · Σ_{r_i ≤ k} i / r_i` for P right
/// answers at ranks r_i, meaned over queries that have any (Google Landmarks v2; k = 100).
///
/// `answers[q]` are the index rows that answer query q. Equal distances are ranked by index row.
///
/// ```
/// use rehang_core::curve::Metric;
/// use rehang_protocols::landmarks::retrieval;
/// use rehang_core::{Distance, Matrix, Progress};
///
/// let index = Matrix::new(1, vec![0.0, 1.0, 2.0, 3.0])?;
/// let queries = Matrix::new(1, vec![0.0, 9.0])?;
/// // Right answers at ranks 1 and 3, looked at to depth 2: (1/1) / min(2, 2). The other query shows no landmark.
/// let answers = [vec![0, 2], vec![]];
/// let result = retrieval(&index, &queries, &answers, 2, Distance::L2, &Progress::default())?;
/// assert_eq!((result.values[Metric::map_at(2)], result.queries.counted, result.queries.without_positives), (50.0, 1, 1));
/// # Ok::<(), rehang_core::Error>(())
/// ```
///
/// # Errors
///
/// As [`evaluate`]; [`rehang_core::ErrorKind::Duplicate`] for an answer named twice.
pub fn retrieval(
    index: &Matrix,
    queries: &Matrix,
    answers: &[Vec<usize>],
    depth: usize,
    distance: Distance,
    progress: &Progress,
) -> Result<Evaluation> {
    let judged =
        Qrels::new(answers.iter().map(|items| items.iter().map(|&item| (item, 1.0)).collect()).collect())?;
    let options = CurveOptions { metrics: vec![Metric::map_at(depth)], ..CurveOptions::default() };
    let (queries, relevance) = (queries.at_width(index.columns()), Relevance::Judgements(&judged));
    evaluate(index, Some(&queries), relevance, distance, &options, progress)
}

rehang_core::named! {
    /// Setups of the revisited benchmarks, in the order in which they are reported.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum LandmarkSetup ("setup") {
        /// Right: easy. Out of the ranking: hard and junk.
        Easy = "easy",
        /// Right: easy and hard. Out of the ranking: junk.
        Medium = "medium",
        /// Right: hard. Out of the ranking: easy and junk.
        Hard = "hard",
    }
}

impl LandmarkSetup {
    /// Gives the right answers, and what is taken out of the ranking.
    fn split(self, truth: &GroundTruth) -> (Vec<usize>, Vec<usize>) {
        let GroundTruth { easy, hard, junk } = truth;
        match self {
            Self::Easy => (easy.clone(), [&hard[..], junk].concat()),
            Self::Medium => ([&easy[..], hard].concat(), junk.clone()),
            Self::Hard => (hard.clone(), [&easy[..], junk].concat()),
        }
    }
}

/// Results in one setup of a revisited benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RevisitedSetup {
    /// Setup of the results.
    pub setup: LandmarkSetup,
    /// Queries counted; a query without a right answer in this setup is left out.
    pub queries: QueryCount,
    /// Mean trapezoidal average precision, in percent; NaN where no query counts.
    pub map: f64,
    /// mAP@10 by the rule of Google Landmarks v2, as RACT reports these benchmarks, in percent; DMU reports
    /// `map`.
    pub map_at_10: f64,
    /// Mean precision at 1, 5 and 10, in percent.
    pub precision_at: [f64; 3],
}

/// Revisited Oxford or Paris: queries `[m, d]` in a gallery `[n, d]`, in the setups Easy, Medium and Hard.
///
/// Junk is taken out of the ranking of its query before ranks are counted. With P right answers at ranks r_1
/// < … < r_P:
///
/// - average precision is the area under the precision–recall curve by trapezoids, as the benchmark's own
///   code has it: `1/P · Σ_i (p_i + i/r_i) / 2`, where `p_i = (i − 1)/(r_i − 1)` is the precision just above
///   the i-th right answer, and 1 where `r_i = 1`;
/// - precision at k looks no deeper than the last right answer: `|{r_i ≤ k'}| / k'` with `k' = min(k, r_P)`.
///
/// Equal distances are ranked by gallery row. The benchmark searches by inner product of unit vectors: that
/// is [`Distance::Cosine`].
///
/// ```
/// use rehang_files::lists::GroundTruth;
/// use rehang_protocols::landmarks::{LandmarkSetup, revisited};
/// use rehang_core::{Distance, Matrix, Progress};
///
/// let gallery = Matrix::new(1, vec![1.0, 2.0, 3.0, 4.0, 5.0])?;
/// let query = Matrix::new(1, vec![0.0])?;
/// let truth = [GroundTruth { easy: vec![1], hard: vec![3], junk: vec![0] }];
/// let [easy, medium, hard] = revisited(&gallery, &query, &truth, Distance::L2, &Progress::default())?;
/// // Easy: rows 0 and 3 leave the ranking, so row 1 stands first.
/// assert_eq!((easy.setup, easy.map), (LandmarkSetup::Easy, 100.0));
/// // Medium: row 0 leaves it; rows 1 and 3 stand at 1 and 3: (1 + 1)/2 and (1/2 + 2/3)/2, halved.
/// assert!((medium.map - 100.0 * (1.0 + 7.0 / 12.0) / 2.0).abs() < 1e-9);
/// // Hard: rows 0 and 1 leave it; row 3 stands at 2: (0 + 1/2)/2.
/// assert_eq!((hard.map, hard.precision_at), (25.0, [0.0, 50.0, 50.0]));
/// # Ok::<(), rehang_core::Error>(())
/// ```
///
/// # Errors
///
/// Vectors that are empty, hold NaN; ground truth of another number than the queries, that names a row twice
/// or one that does not exist; [`rehang_core::ErrorKind::NothingToFind`] where no query has a right answer in any
/// setup; cancelled.
pub fn revisited(
    gallery: &Matrix,
    queries: &Matrix,
    truth: &[GroundTruth],
    distance: Distance,
    progress: &Progress,
) -> Result<[RevisitedSetup; 3]> {
    expect_count("ground truth", truth.len(), "query vectors", queries.rows())?;
    let queries = queries.at_width(gallery.columns());
    let mut results = Vec::with_capacity(3);
    for setup in LandmarkSetup::ALL {
        results.push(revisited_setup(setup, gallery, &queries, truth, distance, progress)?);
    }
    if results.iter().all(|result| result.queries.counted == 0) {
        return Err(Error::no_right_answers());
    }
    <[RevisitedSetup; 3]>::try_from(results).map_err(|_| Error::corrupt("setups", "there are three"))
}

fn revisited_setup(
    setup: LandmarkSetup,
    gallery: &Matrix,
    queries: &Matrix,
    truth: &[GroundTruth],
    distance: Distance,
    progress: &Progress,
) -> Result<RevisitedSetup> {
    let judgements = |truth: &GroundTruth| {
        let (right, ignored) = setup.split(truth);
        let ignored = ignored.into_iter().map(|row| (row, -1.0));
        right.into_iter().map(|row| (row, 1.0)).chain(ignored).collect()
    };
    let judged = Qrels::new(truth.iter().map(judgements).collect())?;
    if (0..judged.len()).all(|query| judged.query(query).iter().all(|&(_, gain)| gain < 0.0)) {
        let given = queries.rows();
        return Ok(RevisitedSetup {
            setup,
            queries: QueryCount { given, counted: 0, without_positives: given, unlabelled: 0 },
            map: f64::NAN,
            map_at_10: f64::NAN,
            precision_at: [f64::NAN; 3],
        });
    }
    let (count, ranks) =
        ranks_of_answers(gallery, queries, Relevance::Judgements(&judged), distance, progress)?;
    let ranks: Vec<Vec<usize>> = ranks.into_iter().flatten().collect();
    let mean = |value: &dyn Fn(&[usize]) -> f64| {
        100.0 * ranks.iter().map(|ranks| value(ranks)).sum::<f64>() / ranks.len() as f64
    };
    Ok(RevisitedSetup {
        setup,
        queries: count,
        map: mean(&trapezoidal_precision),
        map_at_10: mean(&|ranks| precision_within(ranks, REVISITED_MAP_DEPTH)),
        precision_at: PRECISION_DEPTHS.map(|depth| mean(&|ranks| precision_at(ranks, depth))),
    })
}

/// Computes average precision by trapezoids, from the ascending ranks of the right answers.
fn trapezoidal_precision(ranks: &[usize]) -> f64 {
    let one = |(before, &rank): (usize, &usize)| {
        let above = if rank == 1 { 1.0 } else { before as f64 / (rank - 1) as f64 };
        f64::midpoint(above, (before + 1) as f64 / rank as f64)
    };
    ranks.iter().enumerate().map(one).sum::<f64>() / ranks.len() as f64
}

/// Computes average precision of the first `depth` ranks, over the most right answers that they can hold.
fn precision_within(ranks: &[usize], depth: usize) -> f64 {
    let within = ranks.iter().enumerate().filter(|&(_, &rank)| rank <= depth);
    within.map(|(before, &rank)| (before + 1) as f64 / rank as f64).sum::<f64>()
        / ranks.len().min(depth) as f64
}

/// Computes precision at `depth`, or at the last right answer where that stands higher.
fn precision_at(ranks: &[usize], depth: usize) -> f64 {
    let depth = ranks.last().map_or(depth, |&last| depth.min(last));
    ranks.iter().filter(|&&rank| rank <= depth).count() as f64 / depth as f64
}
