//! `rehang evaluate landmarks`.

use std::path::Path;

use rehang::compatibility::CrossMatrix;
use rehang::files::join::MissingPolicy;
use rehang::files::{self, VectorSource};
use rehang::protocols::landmarks::{
    GroundTruth, LandmarkRetrieval, PRECISION_DEPTHS, RevisitedSetup, Setup, retrieval, revisited,
};
use rehang::protocols::lists::{read_landmark_solution, read_revisited, rows_by_name};
use rehang::{Distance, Error, Matrix, Result};
use serde_json::{Map, Value, json};

use super::{Named, table};
use crate::arguments::RowSelection;
use crate::arguments::evaluate::Landmarks;
use crate::bar::with_bar;
use crate::commands::{Outcome, print, say};
use crate::input::{Inputs, expect_count};

/// Landmark retrieval for every pair of models.
pub fn landmarks(arguments: &Landmarks, json: bool) -> Result<Outcome> {
    let distance: Distance = arguments.distance.parse()?;
    if arguments.k == 0 {
        return Err(Error::option("-k", 0, "1 or more"));
    }
    let mut inputs = Inputs::new(&RowSelection::default())?;
    let models = Named::read("--models", "index", &arguments.models.models, &mut inputs)?;
    let best = models.best(arguments.models.best.as_ref())?;
    let queries = models
        .queries(&arguments.queries, &mut inputs)?
        .ok_or_else(|| Error::missing("--queries", "landmark retrieval"))?;
    let ground = Ground { inputs, models, queries, best, distance };
    for (name, vectors) in ground.models.names.iter().zip(&ground.models.vectors) {
        let first = &ground.models.names[0];
        expect_count(
            &format!("the index of {name}"),
            vectors.rows(),
            &format!("the index of {first}"),
            ground.models.vectors[0].rows(),
        )?;
    }
    for (name, vectors) in ground.models.names.iter().zip(&ground.queries) {
        let first = &ground.models.names[0];
        expect_count(
            &format!("the queries of {name}"),
            vectors.rows(),
            &format!("the queries of {first}"),
            ground.queries[0].rows(),
        )?;
    }
    let (mut value, text) = match (&arguments.solution, &arguments.ground_truth) {
        (Some(path), _) => google(arguments, path, &ground)?,
        (None, Some(path)) => oxford_or_paris(arguments, path, &ground)?,
        (None, None) => return Err(Error::missing("--solution or --ground-truth", "landmark retrieval")),
    };
    value.insert("models".into(), json!(ground.models.names));
    value.insert("distance".into(), json!(distance));
    value.insert("inputs".into(), json!(ground.inputs.read));
    print(json, &Value::Object(value), &text)?;
    Ok(Outcome::Done)
}

struct Ground {
    inputs: Inputs,
    models: Named,
    queries: Vec<Matrix>,
    best: Option<usize>,
    distance: Distance,
}

impl Ground {
    fn every_pair<T>(&self, value: impl Fn(usize, usize) -> Result<T>) -> Result<Vec<Vec<T>>> {
        let models = self.models.names.len();
        (0..models).map(|asking| (0..models).map(|asked| value(asking, asked)).collect()).collect()
    }

    fn table<T>(
        &self,
        title: &str,
        results: &[Vec<T>],
        value: impl Fn(&T) -> f64,
    ) -> Result<(Value, String)> {
        let values =
            CrossMatrix::from_fn(&self.models.names, |asking, asked| Ok(value(&results[asking][asked])))?;
        Ok(table::matrix(title, table::SEARCH, &values, self.best, &[]))
    }
}

fn google(arguments: &Landmarks, path: &Path, ground: &Ground) -> Result<(Map<String, Value>, String)> {
    let (Some(ids), Some(query_ids)) = (&arguments.ids, &arguments.query_ids) else {
        return Err(Error::missing("--ids and --query-ids", "--solution"));
    };
    let (index_ids, query_ids) = (ids_of(ids)?, ids_of(query_ids)?);
    expect_count("--ids", index_ids.len(), "the index", ground.models.vectors[0].rows())?;
    expect_count("--query-ids", query_ids.len(), "the queries", ground.queries[0].rows())?;
    let policy = if arguments.keep_common { MissingPolicy::KeepCommon } else { MissingPolicy::Error };
    let solution = read_landmark_solution(path, &query_ids, &index_ids, policy)?;
    if solution.unknown > 0 {
        say(&format!("Warning: {} ids of {} have no vectors.", solution.unknown, path.display()));
    }
    let chosen: Vec<usize> = (0..query_ids.len())
        .filter(|&query| match (&arguments.usage, solution.usage.get(query)) {
            (Some(wanted), Some(usage)) => usage.eq_ignore_ascii_case(wanted),
            (Some(_), None) => false,
            (None, usage) => usage.is_none_or(|usage| !usage.eq_ignore_ascii_case("ignored")),
        })
        .collect();
    if chosen.is_empty() {
        let wanted = arguments.usage.as_deref().unwrap_or("(not Ignored)");
        return Err(Error::option("--usage", wanted, format!("a usage that stands in {}", path.display())));
    }
    let answers: Vec<Vec<usize>> = chosen.iter().map(|&query| solution.answers[query].clone()).collect();
    let queries: Vec<Matrix> = ground.queries.iter().map(|queries| queries.select(&chosen)).collect();
    let results: Vec<Vec<LandmarkRetrieval>> = with_bar(|progress| {
        ground.every_pair(|asking, asked| {
            retrieval(
                &ground.models.vectors[asked],
                &queries[asking],
                &answers,
                arguments.k,
                ground.distance,
                progress,
            )
        })
    })?;
    let counted = results[0][0].queries;
    let mut text = format!(
        "{} queries of {} counted, {} without a right answer in an index of {}\n",
        counted.counted,
        query_ids.len(),
        counted.without_positives,
        index_ids.len()
    );
    let mut metrics = Map::new();
    let at = format!("mAP@{}", arguments.k);
    let (value, shown) = ground.table(&at, &results, |cell| cell.map_at)?;
    text += &format!("\n{shown}");
    metrics.insert("map_at".into(), value);
    metrics.insert("map".into(), ground.table("mAP", &results, |cell| cell.map)?.0);
    let mut value = Map::new();
    value.insert("k".into(), json!(arguments.k));
    value.insert("queries".into(), json!(counted));
    value.insert("metrics".into(), Value::Object(metrics));
    Ok((value, text))
}

fn oxford_or_paris(
    arguments: &Landmarks,
    path: &Path,
    ground: &Ground,
) -> Result<(Map<String, Value>, String)> {
    let file = read_revisited(path)?;
    // Where ids are given, the ground truth's places are translated into rows; else they are rows.
    let truth: Vec<GroundTruth> = match &arguments.ids {
        None => {
            expect_count(
                "the gallery of the ground truth",
                file.gallery.len(),
                "the index",
                ground.models.vectors[0].rows(),
            )?;
            file.truth
        }
        Some(ids) => {
            let ids = ids_of(ids)?;
            expect_count("--ids", ids.len(), "the index", ground.models.vectors[0].rows())?;
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
    let queries: Vec<Matrix> = match &arguments.query_ids {
        None => {
            expect_count(
                "the queries of the ground truth",
                file.queries.len(),
                "the queries",
                ground.queries[0].rows(),
            )?;
            ground.queries.clone()
        }
        Some(ids) => {
            let ids = ids_of(ids)?;
            expect_count("--query-ids", ids.len(), "the queries", ground.queries[0].rows())?;
            let rows = rows_by_name("queries", &file.queries, &ids)?;
            ground.queries.iter().map(|queries| queries.select(&rows)).collect()
        }
    };
    let results: Vec<Vec<[RevisitedSetup; 3]>> = with_bar(|progress| {
        ground.every_pair(|asking, asked| {
            revisited(&ground.models.vectors[asked], &queries[asking], &truth, ground.distance, progress)
        })
    })?;
    let mut text = format!("{} queries in a gallery of {}\n", file.queries.len(), file.gallery.len());
    let mut setups = Map::new();
    for (place, setup) in Setup::ALL.into_iter().enumerate() {
        let counted = results[0][0][place].queries;
        let mut metrics = Map::new();
        metrics.insert("queries".into(), json!(counted));
        if counted.counted == 0 {
            text += &format!("\n{}: no query has a right answer\n", setup.name());
        } else {
            let title = format!("{}, mAP, {} queries", setup.name(), counted.counted);
            let (value, shown) = ground.table(&title, &results, |cell| cell[place].map)?;
            text += &format!("\n{shown}");
            metrics.insert("map".into(), value);
            metrics.insert(
                "map_at_10".into(),
                ground.table("mAP@10", &results, |cell| cell[place].map_at_10)?.0,
            );
            for (slot, depth) in PRECISION_DEPTHS.into_iter().enumerate() {
                let (value, _) =
                    ground.table("precision", &results, |cell| cell[place].precision_at[slot])?;
                metrics.insert(format!("precision_at_{depth}"), value);
            }
        }
        setups.insert(setup.name().into(), Value::Object(metrics));
    }
    let mut value = Map::new();
    value.insert("setups".into(), Value::Object(setups));
    Ok((value, text))
}

fn ids_of(path: &str) -> Result<Vec<String>> {
    files::read_ids(&VectorSource::parse(path)?)?.ok_or_else(|| Error::missing("a column of ids", path))
}
