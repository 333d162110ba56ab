//! Landmark retrieval for every pair of models: Google Landmarks v2, revisited Oxford and Paris.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::landmarks::{LandmarkSetup, PRECISION_DEPTHS, RevisitedSetup, retrieval, revisited};
use rehang_core::check::expect_count;
use rehang_core::curve::{MAP, Metric, QueryCount};
use rehang_core::finding::{Finding, FindingCode};
use rehang_core::report::InputRecord;
use rehang_core::{Distance, Error, Matrix, Progress, Result};
use rehang_files::join::MissingPolicy;
use rehang_files::lists::{GroundTruth, read_landmark_solution, read_revisited, rows_by_name};
use rehang_files::{InputReader, NamedFile, VectorSource};
use serde::Serialize;

use super::models::{Models, Table};

/// Files of landmarks by several models, and of the right answers.
///
/// | Field | Default | Range |
/// |---|---|---|
/// | `usage` | every query but `Ignored` | a usage of the solution |
/// | `distance` | L2 | |
/// | `k` | 100 | 1 or more |
#[derive(Debug, Clone)]
pub struct LandmarkFiles {
    /// Vectors of the same index by every model, oldest first.
    pub models: Vec<NamedFile>,
    /// Name of the model whose own search is the best to be had with a full backfill.
    pub best: Option<String>,
    /// Vectors of the queries by every model.
    pub queries: Vec<NamedFile>,
    /// Right answers.
    pub truth: LandmarkTruth,
    /// Ids of the index's rows.
    pub ids: Option<VectorSource>,
    /// Ids of the queries' rows.
    pub query_ids: Option<VectorSource>,
    /// Distance in every gallery.
    pub distance: Distance,
}

/// File of right answers, by benchmark.
#[derive(Debug, Clone)]
pub enum LandmarkTruth {
    /// Google Landmarks v2; needs `ids` and `query_ids`.
    Solution {
        /// Table with id, images and perhaps Usage.
        file: PathBuf,
        /// Usage whose queries alone count.
        usage: Option<String>,
        /// Whether ids that have no vectors are passed over; otherwise they are an error.
        keep_common: bool,
        /// Cut-off of mAP@k.
        k: usize,
    },
    /// Revisited Oxford or Paris: JSON with queries, gallery, and easy, hard and junk images of each query.
    /// Ids are needed only where rows stand in another order.
    Revisited(PathBuf),
}

/// Answer of landmark retrieval for every pair of models.
#[derive(Debug, Clone, Serialize)]
pub struct LandmarkAnswer {
    /// Names of the models, oldest first.
    pub models: Vec<String>,
    /// Distance in every gallery.
    pub distance: Distance,
    /// Measured metrics.
    #[serde(flatten)]
    pub measured: MeasuredLandmarks,
    /// Files that were read.
    pub inputs: Vec<InputRecord>,
    /// Findings that the reader should know.
    #[serde(skip)]
    pub findings: Vec<Finding>,
}

/// Metrics that were measured, by benchmark.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum MeasuredLandmarks {
    /// Google Landmarks v2.
    Solution {
        /// Cut-off of mAP@k.
        k: usize,
        /// Queries counted and left out.
        queries: QueryCount,
        /// Queries in all, and items of the index.
        #[serde(skip)]
        of: (usize, usize),
        /// Tables `map_at` and `map`.
        metrics: BTreeMap<String, Table>,
    },
    /// Revisited Oxford or Paris.
    Revisited {
        /// Queries in all, and items of the gallery.
        #[serde(skip)]
        of: (usize, usize),
        /// Results in the setups easy, medium and hard.
        setups: BTreeMap<&'static str, SetupMetrics>,
    },
}

/// Results in one setup of revisited Oxford or Paris.
#[derive(Debug, Clone, Serialize)]
pub struct SetupMetrics {
    /// Queries counted and left out.
    pub queries: QueryCount,
    /// Tables `map`, `map_at_10` and `precision_at_…`; none where no query counts.
    #[serde(flatten)]
    pub metrics: BTreeMap<String, Table>,
}

/// Models and queries that were read.
struct Ground {
    models: Models,
    queries: Vec<Matrix>,
}

/// Measures landmark retrieval for every pair of models.
///
/// # Errors
///
/// What is wrong with a file, or between two, names them; [`MissingInput`](rehang_core::ErrorKind::MissingInput)
/// for queries or ids that the truth needs; [`InvalidOption`](rehang_core::ErrorKind::InvalidOption) for k = 0 and
/// a usage that no query has.
pub fn landmarks(files: &LandmarkFiles, progress: &Progress) -> Result<LandmarkAnswer> {
    if matches!(files.truth, LandmarkTruth::Solution { k: 0, .. }) {
        return Err(Error::option("k", 0, "1 or more"));
    }
    let mut models = Models::read("index", &files.models, files.best.as_ref(), InputReader::default())?;
    let queries =
        models.queries(&files.queries)?.ok_or_else(|| Error::missing("`queries`", "landmark retrieval"))?;
    for (what, all) in [("index", &models.vectors), ("queries", &queries)] {
        let first = format!("the {what} of {}", models.names[0]);
        for (name, vectors) in models.names.iter().zip(all) {
            expect_count(format_args!("the {what} of {name}"), vectors.rows(), &first, all[0].rows())?;
        }
    }
    let mut ground = Ground { models, queries };
    let measured = match &files.truth {
        LandmarkTruth::Solution { file, usage, keep_common, k } => {
            google(files, file, usage.as_deref(), *keep_common, *k, &mut ground, progress)?
        }
        LandmarkTruth::Revisited(file) => oxford_or_paris(files, file, &mut ground, progress)?,
    };
    Ok(LandmarkAnswer {
        models: ground.models.names,
        distance: files.distance,
        measured,
        inputs: ground.models.inputs.read,
        findings: ground.models.inputs.findings,
    })
}

impl Ground {
    fn table<T>(&self, results: &[Vec<T>], value: impl Fn(&T) -> f64) -> Result<Table> {
        self.models.table(|asking, asked| value(&results[asking][asked]))
    }

    /// Reads the ids of the index, or of the queries, where a file of them is given.
    fn ids(&mut self, parameter: &str, source: Option<&VectorSource>) -> Result<Option<Vec<String>>> {
        let Some(source) = source else { return Ok(None) };
        let ids = self.models.inputs.ids(parameter, std::slice::from_ref(source))?;
        let (what, matrix) = match parameter {
            "ids" => ("the index", &self.models.vectors[0]),
            _ => ("the queries", &self.queries[0]),
        };
        expect_count(format_args!("`{parameter}`"), ids.len(), what, matrix.rows())?;
        Ok(Some(ids))
    }
}

fn google(
    files: &LandmarkFiles,
    path: &Path,
    usage: Option<&str>,
    keep_common: bool,
    k: usize,
    ground: &mut Ground,
    progress: &Progress,
) -> Result<MeasuredLandmarks> {
    let index_ids = ground.ids("ids", files.ids.as_ref())?;
    let query_ids = ground.ids("query_ids", files.query_ids.as_ref())?;
    let (Some(index_ids), Some(query_ids)) = (index_ids, query_ids) else {
        return Err(Error::missing("`ids` and `query_ids`", "`solution`"));
    };
    let policy = if keep_common { MissingPolicy::KeepCommon } else { MissingPolicy::Error };
    let solution = read_landmark_solution(path, &query_ids, &index_ids, policy)?;
    if solution.unknown > 0 {
        let seen = format!("{} ids of {} have no vectors.", solution.unknown, path.display());
        ground.models.inputs.warn(FindingCode::IdsWithoutVectors, seen);
    }
    let chosen: Vec<usize> = (0..query_ids.len())
        .filter(|&query| match (usage, solution.usage.get(query)) {
            (Some(wanted), Some(usage)) => usage.eq_ignore_ascii_case(wanted),
            (Some(_), None) => false,
            (None, usage) => usage.is_none_or(|usage| !usage.eq_ignore_ascii_case("ignored")),
        })
        .collect();
    if chosen.is_empty() {
        let wanted = usage.unwrap_or("(not Ignored)");
        return Err(Error::option("usage", wanted, format!("a usage that stands in {}", path.display())));
    }
    let answers: Vec<Vec<usize>> = chosen.iter().map(|&query| solution.answers[query].clone()).collect();
    let queries: Vec<Matrix> = ground.queries.iter().map(|queries| queries.select(&chosen)).collect();
    let results = ground.models.every_pair(|asking, asked| {
        retrieval(&ground.models.vectors[asked], &queries[asking], &answers, k, files.distance, progress)
    })?;
    let metrics = BTreeMap::from([
        ("map_at".to_owned(), ground.table(&results, |cell| cell.values[Metric::map_at(k)])?),
        ("map".to_owned(), ground.table(&results, |cell| cell.values[MAP])?),
    ]);
    let of = (query_ids.len(), index_ids.len());
    Ok(MeasuredLandmarks::Solution { k, queries: results[0][0].queries, of, metrics })
}

fn oxford_or_paris(
    files: &LandmarkFiles,
    path: &Path,
    ground: &mut Ground,
    progress: &Progress,
) -> Result<MeasuredLandmarks> {
    let file = read_revisited(path)?;
    // Where ids are given, the ground truth's places are translated into rows; else they are rows.
    let truth: Vec<GroundTruth> = match ground.ids("ids", files.ids.as_ref())? {
        None => {
            let rows = ground.models.vectors[0].rows();
            expect_count("the gallery of the ground truth", file.gallery.len(), "the index", rows)?;
            file.truth
        }
        Some(ids) => {
            let rows = rows_by_name("gallery", &file.gallery, &ids)?;
            let translate = |places: Vec<usize>| places.into_iter().map(|place| rows[place]).collect();
            file.truth
                .into_iter()
                .map(|truth| GroundTruth {
                    easy: translate(truth.easy),
                    hard: translate(truth.hard),
                    junk: translate(truth.junk),
                })
                .collect()
        }
    };
    let queries: Vec<Matrix> = match ground.ids("query_ids", files.query_ids.as_ref())? {
        None => {
            let rows = ground.queries[0].rows();
            expect_count("the queries of the ground truth", file.queries.len(), "the queries", rows)?;
            ground.queries.clone()
        }
        Some(ids) => {
            let rows = rows_by_name("queries", &file.queries, &ids)?;
            ground.queries.iter().map(|queries| queries.select(&rows)).collect()
        }
    };
    let results: Vec<Vec<[RevisitedSetup; 3]>> = ground.models.every_pair(|asking, asked| {
        revisited(&ground.models.vectors[asked], &queries[asking], &truth, files.distance, progress)
    })?;
    let mut setups = BTreeMap::new();
    for (place, setup) in LandmarkSetup::ALL.into_iter().enumerate() {
        let queries = results[0][0][place].queries;
        let mut metrics = BTreeMap::new();
        if queries.counted > 0 {
            metrics.insert("map".to_owned(), ground.table(&results, |cell| cell[place].map)?);
            metrics.insert("map_at_10".to_owned(), ground.table(&results, |cell| cell[place].map_at_10)?);
            for (slot, depth) in PRECISION_DEPTHS.into_iter().enumerate() {
                let table = ground.table(&results, |cell| cell[place].precision_at[slot])?;
                metrics.insert(format!("precision_at_{depth}"), table);
            }
        }
        setups.insert(setup.name(), SetupMetrics { queries, metrics });
    }
    Ok(MeasuredLandmarks::Revisited { of: (file.queries.len(), file.gallery.len()), setups })
}
