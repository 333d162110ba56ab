//! Retrieval by compatible models on a labelled gallery: cross matrix, hot refresh, upgrades in a row.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::compatibility::{
    Compatibility, CrossEvaluation, CrossInput, Model, RefreshInput, SequenceInput, SequenceStep,
    UpgradeStep, WidthRule, cross_evaluate, hot_refresh, paired_difference, upgrade_sequence,
};
use rehang_core::curve::{CurveOptions, Line, Metric, QueryCount, Relevance, TOP1, TOP5, grid_cuts};
use rehang_core::finding::Finding;
use rehang_core::order::{OrderInput, Policy, order};
use rehang_core::report::InputRecord;
use rehang_core::statistics::Interval;
use rehang_core::{Adapter, Distance, Error, Matrix, Progress, Result};
use rehang_files::{InputReader, Join, NamedFile, Names, RowSelection, VectorSource, expect_distinct};
use serde::Serialize;

use super::models::{Models, Table};
use rehang_evaluate::{AnswerFiles, Answers, LEVEL, check_grid};

/// Files of models' vectors and right answers, and how vectors are compared.
///
/// | Field | Default | Range |
/// |---|---|---|
/// | `distance` | L2 | |
/// | `k` | 10 | 1 or more |
#[derive(Debug, Clone)]
pub struct ModelFiles {
    /// Vectors of the same items by every model in the same order, oldest first.
    pub models: Vec<NamedFile>,
    /// Class labels of the items: an item of the query's class is a right answer.
    pub labels: Option<VectorSource>,
    /// Vectors of separate queries by every model; the gallery itself without them, each item leaving itself
    /// out.
    pub queries: Vec<NamedFile>,
    /// Class labels of the queries.
    pub query_labels: Option<VectorSource>,
    /// Judgements in place of labels; they need `queries`, `ids` and `query_ids`.
    pub qrels: Option<PathBuf>,
    /// Ids of the items.
    pub ids: Option<VectorSource>,
    /// Ids of the queries.
    pub query_ids: Option<VectorSource>,
    /// Rows of the models' vectors, of `labels` and of `ids` that take part.
    pub rows: Option<RowSelection>,
    /// Distance in every gallery. Where widths differ, a query is cut or filled up with zeros to fit the
    /// gallery.
    pub distance: Distance,
    /// Cut-off of mAP@k and NFR@k.
    pub k: usize,
}

impl ModelFiles {
    /// Takes models and class labels; everything else is left at its default.
    pub fn new(models: Vec<NamedFile>, labels: VectorSource) -> Self {
        Self {
            models,
            labels: Some(labels),
            queries: Vec::new(),
            query_labels: None,
            qrels: None,
            ids: None,
            query_ids: None,
            rows: None,
            distance: Distance::L2,
            k: 10,
        }
    }
}

/// Models, queries and right answers of [`ModelFiles`], read.
struct Ground {
    models: Models,
    queries: Option<Vec<Matrix>>,
    answers: Answers,
    distance: Distance,
}

impl Ground {
    fn read(files: &ModelFiles, best: Option<&String>) -> Result<Self> {
        let inputs = InputReader::new(files.rows.as_ref())?;
        let answer_files = AnswerFiles {
            labels: files.labels.iter().cloned().collect(),
            query_labels: files.query_labels.clone(),
            qrels: files.qrels.clone(),
            ids: files.ids.iter().cloned().collect(),
            query_ids: files.query_ids.clone(),
            k: files.k,
            ..AnswerFiles::default()
        };
        answer_files.check(!files.queries.is_empty())?;
        let mut models = Models::read("gallery", &files.models, best, inputs)?;
        let queries = models.queries(&files.queries)?;
        let items = models.vectors[0].rows();
        let asked = queries.as_ref().and_then(|queries| queries.first()).map(Matrix::rows);
        let answers = Answers::read(&answer_files, &mut models.inputs, &Join::default(), items, asked)?;
        Ok(Self { models, queries, answers, distance: files.distance })
    }

    fn models(&self) -> Vec<Model<'_>> {
        (0..self.models.names.len())
            .map(|place| Model {
                name: &self.models.names[place],
                gallery: &self.models.vectors[place],
                queries: self.queries.as_ref().map(|queries| &queries[place]),
            })
            .collect()
    }

    fn relevance(&self) -> Result<Relevance<'_>> {
        self.answers
            .relevance()
            .ok_or_else(|| Error::missing("`labels` or `qrels`", "a comparison of models"))
    }

    /// Lists every metric that can be measured with these right answers.
    fn metrics(&self, k: usize) -> Result<Vec<Metric>> {
        Ok(Metric::measurable(self.relevance()?, k))
    }

    fn measured(self, queries: QueryCount, k: usize) -> MeasuredOn {
        MeasuredOn {
            models: self.models.names,
            queries,
            distance: self.distance,
            k,
            inputs: self.models.inputs.read,
            findings: self.models.inputs.findings,
        }
    }

    /// Reads orders by name, each a permutation; a random one where none are given.
    fn orders(&self, files: &[NamedFile], seed: u64) -> Result<Vec<(String, Vec<usize>)>> {
        let items = self.models.vectors[0].rows();
        if files.is_empty() {
            let made = order(Policy::Random, &OrderInput { items, seed, ..OrderInput::default() })?;
            return Ok(vec![("random".into(), made.permutation)]);
        }
        expect_distinct("orders", files)?;
        files.iter().map(|named| Ok((named.name.clone(), rehang_files::read_order(&named.file)?))).collect()
    }
}

/// Circumstances that every comparison of models tells: models, queries, distance and files.
#[derive(Debug, Clone, Serialize)]
pub struct MeasuredOn {
    /// Names of the models, oldest first.
    pub models: Vec<String>,
    /// Queries counted and left out.
    pub queries: QueryCount,
    /// Distance in every gallery.
    pub distance: Distance,
    /// Cut-off of mAP@k and NFR@k.
    pub k: usize,
    /// Files that were read.
    pub inputs: Vec<InputRecord>,
    /// Findings that the reader should know.
    #[serde(skip)]
    pub findings: Vec<Finding>,
}

/// Answer with the cross matrices of retrieval metrics.
#[derive(Debug, Clone, Serialize)]
pub struct CrossAnswer {
    /// Circumstances of the measurement.
    #[serde(flatten)]
    pub on: MeasuredOn,
    /// Ways in which queries were made to fit galleries of other widths, `[asking][asked]`.
    pub width_rules: Vec<Vec<WidthRule>>,
    /// Tables `top1`, `top5`, `map`, `map_at` and what else can be measured, by [`Metric::key`].
    pub metrics: BTreeMap<String, Table>,
}

/// Measures every model's queries in every model's gallery. `best` names the model whose own search is the
/// best to be had with a full backfill; `bootstrap` samples of the queries give intervals of the gains, 0
/// none.
///
/// # Errors
///
/// What is wrong with a file, or between two, names them; [`InvalidOption`](rehang_core::ErrorKind::InvalidOption)
/// for names that no model has.
pub fn cross(
    files: &ModelFiles,
    best: Option<&String>,
    bootstrap: usize,
    progress: &Progress,
) -> Result<CrossAnswer> {
    let ground = Ground::read(files, best)?;
    let input = CrossInput {
        models: &ground.models(),
        relevance: ground.relevance()?,
        distance: ground.distance,
        metrics: &ground.metrics(files.k)?,
    };
    let result = cross_evaluate(&input, progress)?;
    let table = |metric: Metric| {
        let matrix = result.matrix(metric);
        let table = ground.models.table_of(matrix, |pairs| intervals(&result, metric, pairs, bootstrap))?;
        Ok((metric.key(), table))
    };
    let metrics = result.metrics().map(table).collect::<Result<_>>()?;
    let width_rules =
        result.cells.iter().map(|row| row.iter().map(|cell| cell.width_rule).collect()).collect();
    Ok(CrossAnswer { on: ground.measured(result.queries, files.k), width_rules, metrics })
}

/// Draws intervals of the absolute gain of every pair, by queries drawn with both values.
fn intervals(
    result: &CrossEvaluation,
    metric: Metric,
    pairs: &[Compatibility],
    samples: usize,
) -> Result<Vec<Interval>> {
    if samples == 0 {
        return Ok(Vec::new());
    }
    let place = |name: &str| result.names.iter().position(|other| other == name).unwrap_or_default();
    let interval = |pair: &Compatibility| {
        let (old, new) = (place(&pair.old), place(&pair.new));
        let (after, before) = (result.per_query(new, old, metric), result.per_query(old, old, metric));
        paired_difference(after, before, samples, LEVEL, 0)
    };
    pairs.iter().map(interval).collect()
}

/// Answer of a hot refresh in every order.
#[derive(Debug, Clone, Serialize)]
pub struct RefreshAnswer {
    /// Circumstances of the measurement.
    #[serde(flatten)]
    pub on: MeasuredOn,
    /// Number of items of the gallery.
    #[serde(skip)]
    pub items: usize,
    /// Quality of the old model alone, by [`Metric::key`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub do_nothing: Option<BTreeMap<String, f64>>,
    /// Results of the refresh in each order.
    pub orders: Vec<RefreshInOrder>,
}

/// Result of a hot refresh in one order.
#[derive(Debug, Clone, Serialize)]
pub struct RefreshInOrder {
    /// Name of the order.
    pub order: String,
    /// Number of items that are replaced at each point.
    pub cuts: Vec<usize>,
    /// Lines `top1`, `map`, `map_at` and what else can be measured, by [`Metric::key`]; `nfr1`, `nfr5` and
    /// `nfr_at`.
    pub metrics: BTreeMap<String, RefreshLine>,
}

/// Line of a metric along a hot refresh.
#[derive(Debug, Clone, Serialize)]
pub struct RefreshLine {
    /// Value of the metric at each point.
    pub values: Vec<f64>,
    /// Mean of the metric over all fractions.
    pub area: f64,
}

/// Follows a hot refresh: queries by the new model, the gallery replaced item by item, without an adapter.
///
/// `files.models` are two, the old one first; `orders` are files of orders by name, one random order by
/// `seed` without any; values are given at `grid` points.
///
/// # Errors
///
/// As [`cross`]; [`InvalidOption`](rehang_core::ErrorKind::InvalidOption) for another number of models and for a
/// grid below 2.
pub fn refresh(
    files: &ModelFiles,
    orders: &[NamedFile],
    seed: u64,
    grid: usize,
    progress: &Progress,
) -> Result<RefreshAnswer> {
    check_grid(grid)?;
    let ground = Ground::read(files, None)?;
    let [old, new] = ground.models()[..] else {
        let expected = "two models, the old one first; for more than two there are sequences of upgrades";
        return Err(Error::option("models", ground.models.names.join(" "), expected));
    };
    let orders = ground.orders(orders, seed)?;
    let named: Vec<(&str, &[usize])> =
        orders.iter().map(|(name, order)| (name.as_str(), &order[..])).collect();
    let input =
        RefreshInput { old, new, relevance: ground.relevance()?, distance: ground.distance, orders: &named };
    let options = CurveOptions { metrics: ground.metrics(files.k)?, flips_at: Some(files.k), kept_cuts: 0 };
    let results = hot_refresh(&input, &options, progress)?;
    let (queries, items) = (results[0].curve.queries, results[0].curve.items);
    let cuts = grid_cuts(items, grid);
    let do_nothing = results[0].curve.do_nothing.as_ref().map(|today| {
        let values = today.evaluation.values.iter();
        values.map(|(metric, &value)| (metric.key(), value)).collect()
    });
    let in_order = |(order, curve): (&String, &rehang_core::curve::Curve)| {
        let flips = [("nfr1", TOP1), ("nfr5", TOP5), ("nfr_at", Metric::top(files.k))];
        let flips = flips.map(|(key, metric)| (key.to_owned(), &curve.flips[metric].rate));
        // Top-5 is measured for its flips only.
        let measured = curve.lines.iter().filter(|&(metric, _)| metric != TOP5);
        let lines = measured.map(|(metric, line)| (metric.key(), line)).chain(flips);
        let metrics = lines.map(|(id, line): (String, &Line)| {
            let values = cuts.iter().map(|&cut| line.values()[cut]).collect();
            (id, RefreshLine { values, area: line.area() })
        });
        RefreshInOrder { order: order.clone(), cuts: cuts.clone(), metrics: metrics.collect() }
    };
    let orders = results.iter().map(|result| in_order((&result.order, &result.curve))).collect();
    Ok(RefreshAnswer { on: ground.measured(queries, files.k), items, do_nothing, orders })
}

/// Settings of several upgrades in a row.
///
/// | Field | Default | Range |
/// |---|---|---|
/// | `backfilled` | everything | 0 to 1 each; one for all upgrades, or one for each |
/// | `orders` | one random order by `seed` for all | one for each model but the first |
/// | `adapters` | older vectors stay as is | into any model's space but the first, from the one before |
/// | `joined` | all with the first model | 0 for the first model, 1 for the second, … |
#[derive(Debug, Clone)]
pub struct SequenceFiles {
    /// Share of the older vectors that each upgrade backfills before the next one.
    pub backfilled: Vec<f64>,
    /// Order of backfill of each model's upgrade, by the model's name.
    pub orders: Vec<NamedFile>,
    /// Adapter into a model's space, by the model's name: older vectors go through it when that model comes.
    pub adapters: Vec<NamedFile>,
    /// Seed of the random order.
    pub seed: u64,
    /// Model with which each item joins the gallery, by its place.
    pub joined: Option<VectorSource>,
}

impl Default for SequenceFiles {
    fn default() -> Self {
        Self { backfilled: vec![1.0], orders: Vec::new(), adapters: Vec::new(), seed: 0, joined: None }
    }
}

/// Answer of several upgrades in a row.
#[derive(Debug, Clone, Serialize)]
pub struct SequenceAnswer {
    /// Circumstances of the measurement.
    #[serde(flatten)]
    pub on: MeasuredOn,
    /// Results of the gallery after each model came.
    pub steps: Vec<SequenceStep>,
}

/// Follows several upgrades in a row: a gallery that is never backfilled beside one that is.
///
/// # Errors
///
/// As [`cross`]; [`InvalidOption`](rehang_core::ErrorKind::InvalidOption) for shares, orders or `joined` that do
/// not fit the models.
pub fn sequence(files: &ModelFiles, how: &SequenceFiles, progress: &Progress) -> Result<SequenceAnswer> {
    let mut ground = Ground::read(files, None)?;
    let mut joined = None;
    if let Some(source) = &how.joined {
        let inputs = &mut ground.models.inputs;
        let steps = inputs.labels("joined", std::slice::from_ref(source), &mut Names::default())?;
        let models = ground.models.names.len();
        let step = |step: i64| {
            let refused = |_| Error::option("joined", step, format!("0 to {}", models - 1));
            usize::try_from(step).map_err(refused)
        };
        joined = Some(steps.into_iter().map(step).collect::<Result<Vec<usize>>>()?);
    }
    let upgrades = ground.models.names.len() - 1;
    let shares = match how.backfilled.as_slice() {
        [one] => vec![*one; upgrades],
        each if each.len() == upgrades => each.to_vec(),
        each => {
            let given: Vec<String> = each.iter().map(ToString::to_string).collect();
            let expected = format!("one share, or one for each of the {upgrades} upgrades");
            return Err(Error::option("backfilled", given.join(" "), expected));
        }
    };
    let orders = ground.orders(&how.orders, how.seed)?;
    for named in &how.orders {
        ground.models.place("orders", &named.name)?;
    }
    let order_of = |number: usize| -> Result<&[usize]> {
        if how.orders.is_empty() || number == 0 {
            return Ok(&orders[0].1);
        }
        let name = &ground.models.names[number];
        let named = orders.iter().find(|(other, _)| other == name);
        let missing = || Error::missing(format!("`orders` {name}=FILE"), "a sequence with orders of its own");
        named.map(|(_, order)| &order[..]).ok_or_else(missing)
    };
    expect_distinct("adapters", &how.adapters)?;
    let mut adapters: Vec<Option<Adapter>> = vec![None; upgrades + 1];
    for NamedFile { name, file } in &how.adapters {
        let place = ground.models.place("adapters", name)?;
        if place == 0 {
            let expected = "a model that comes after another one";
            return Err(Error::option("adapters", name, expected));
        }
        adapters[place] = Some(rehang_files::adapter_file::load(&file.path)?);
    }
    let models = ground.models();
    let steps = models
        .iter()
        .zip(&adapters)
        .enumerate()
        .map(|(number, (&model, adapter))| {
            let backfilled = if number == 0 { 0.0 } else { shares[number - 1] };
            Ok(UpgradeStep { model, order: order_of(number)?, backfilled, adapter: adapter.as_ref() })
        })
        .collect::<Result<Vec<_>>>()?;
    let input = SequenceInput {
        steps: &steps,
        joined_at: joined.as_deref(),
        relevance: ground.relevance()?,
        distance: ground.distance,
        metrics: &ground.metrics(files.k)?,
    };
    let steps = upgrade_sequence(&input, progress)?;
    let queries = steps[0].queries;
    Ok(SequenceAnswer { on: ground.measured(queries, files.k), steps })
}
