//! Compares models that an upgrade could go to, on a sample of one's own documents and queries.
//!
//! Every model embeds the same documents and queries, and its answers are judged by the same right answers:
//! clicks, or else labels of the documents. Without either, nothing says which model is better, only how far
//! its answers are those of the first one.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rehang_clock::{Clock, SystemClock};
use rehang_core::curve::{
    CurveOptions, DoNothing, Evaluation, Metric, Qrels, Relevance, evaluate, evaluate_today,
};
use rehang_core::report::Precision;
use rehang_core::statistics::{Interval, bootstrap_means, quantile};
use rehang_core::{Error, ErrorKind, Finding, FindingCode, Matrix, Progress, Result, Space, distinct};
use rehang_encode::{Encoder, EncoderConfig, Input};
use rehang_evaluate::LEVEL;
use rehang_evaluate::study::{QUERIES_MIN, StudyOptions};
use rehang_files::folder_of;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toml::Table;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::configuration::{SpacePart, at_width_of, read_toml};
use crate::learn::asked::{Asked, Click, name_of};
use crate::learn::pairs::label_numbers;
use crate::live::estimate::{CostEstimate, Known, Probed, reckon};
use crate::live::limits::Limits;
use crate::places::transfer::{Text, item_lines};
use crate::serve::query::{Query, embed_each, embed_inputs};

/// Most queries that are asked: each is paid for by every model.
const QUERIES_MAX: usize = 1000;
/// Most queries that are asked one at a time, for the latency.
const ALONE_MAX: usize = 32;
/// Documents, or queries, among which a model may lack a vector for one. A model that lacks more has failed:
/// what is left is another sample.
const REFUSED_ONE_IN: usize = 10;
const K: usize = 10;

/// Files and numbers that [`compare_models`] is given.
#[derive(Debug, Clone)]
pub struct ModelsInput {
    /// Models: TOML with one `[[model]]` each, which has the keys of `[new]` of a configuration but its
    /// `column`, and below it `[model.encoder]` with those of `[encoder]`. Paths are seen from the folder of
    /// the file.
    pub models: PathBuf,
    /// Documents, one JSON object a line, as for [`Import::items`](crate::Import::items). Documents without a
    /// source are passed over.
    pub items: PathBuf,
    /// Queries, one JSON object a line: `{"text": …}` or `{"image": …}`, with an `"id"` where clicks name
    /// them by it. Without this file the queries of the clicks ask, or else the documents, each leaving
    /// itself out.
    pub queries: Option<PathBuf>,
    /// Answers that people took: CSV or JSON lines with query, item and either weight or position.
    pub clicks: Option<PathBuf>,
    /// Field by whose values the metric is split into groups: `label`, or one of the documents' payloads. A
    /// query belongs to the group of the document that was clicked most for it.
    pub group: Option<String>,
    /// Number of documents that every model embeds: a random part of them, with all that was clicked in it.
    pub sample: usize,
    /// Documents of the whole gallery, where the file holds a part of it; price and storage are for so many.
    pub of: Option<u64>,
    /// Seed of the sample and of the ranges.
    pub seed: u64,
}

impl ModelsInput {
    /// Names the files of models and documents; at most 2,000 documents are embedded. There are no queries,
    /// clicks and groups.
    pub fn new(models: impl Into<PathBuf>, items: impl Into<PathBuf>) -> Self {
        let (models, items) = (models.into(), items.into());
        Self { models, items, queries: None, clicks: None, group: None, sample: 2000, of: None, seed: 0 }
    }
}

/// Source of the right answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum JudgedBy {
    /// Clicks: what people took from the answers.
    Clicks,
    /// Labels of the documents: the right answers to a document are the others of its label.
    Labels,
    /// Answers of the first model that could be measured: no judgement, and no model is better by it.
    FirstModel,
}

/// Comparison of several models on one sample.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ModelsCompared {
    /// Source of the right answers.
    pub judged_by: JudgedBy,
    /// Metric that the models are compared by, such as `ndcg@10`.
    pub metric: String,
    /// Documents of the sample that every measured model embedded.
    pub documents: usize,
    /// Documents that price and storage are for.
    pub of: u64,
    /// Queries that every measured model embedded; where the documents ask, their number.
    pub queries: usize,
    /// Queries that have a right answer; the metric is the mean over these.
    pub counted: usize,
    /// Whether the documents themselves ask, each leaving itself out.
    pub leave_one_out: bool,
    /// The models, in the order of the file.
    pub models: Vec<ModelCompared>,
    /// Model to go to; none where no model was measured, or nothing says which one is better.
    pub choice: Option<ModelChoice>,
    /// Findings on what is doubtful about the comparison.
    pub findings: Vec<Finding>,
}

/// One of the models that were compared.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ModelCompared {
    /// Name of the model.
    pub name: String,
    /// Coordinates of its vectors, as they are kept.
    pub dimension: usize,
    /// Measurements of the model, unless it failed.
    pub measured: Option<ModelMeasured>,
    /// Why it could not be measured.
    pub fault: Option<String>,
}

/// Measurements of a model: what it is worth, and what it takes.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ModelMeasured {
    /// Metric in percent, with the range that chance leaves it among such queries.
    pub score: Interval,
    /// Every metric of the sample, in percent.
    pub metrics: BTreeMap<String, f64>,
    /// How far the model is behind the best one, query by query; none for the best one, and where nothing is
    /// better.
    pub behind: Option<Interval>,
    /// Metric by group, the largest group first.
    pub groups: Vec<GroupScore>,
    /// Milliseconds of one query at a time: the median.
    pub latency_ms: f64,
    /// Milliseconds that 95 of 100 queries do not exceed.
    pub latency_p95_ms: f64,
    /// Documents a second, embedded in batches.
    pub documents_per_second: f64,
    /// Time, tokens and price of all documents, by what the sample took.
    pub cost: CostEstimate,
    /// Bytes of all vectors by precision.
    pub storage: BTreeMap<&'static str, u64>,
}

/// Metric over the queries of one group.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GroupScore {
    /// Value of the field that the group shares.
    pub group: String,
    /// Number of counted queries of the group.
    pub queries: usize,
    /// Metric in percent.
    pub score: Interval,
}

/// Measure by which one of several level models is preferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheaperBy {
    /// Price of all documents, which is known of each model.
    Price,
    /// Bytes of all vectors.
    Storage,
    /// Time that all documents take.
    Time,
}

/// Model to go to, as [`init`](crate::init()) takes it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ModelChoice {
    /// Name of the cheapest of the models that are level with the best.
    pub name: String,
    /// Name of the model of the highest metric.
    pub best: String,
    /// Names of all models whose distance from the best one may be chance, with the best one in front.
    pub level: Vec<String>,
    /// Measure by which the cheapest of several level models was found.
    pub cheaper_by: Option<CheaperBy>,
    /// Coordinates of the model's vectors, as they are kept.
    pub dimension: usize,
    /// Coordinates of the model's own vectors, where that is another number.
    pub model_dimension: Option<usize>,
    /// Distance between the model's vectors.
    pub distance: &'static str,
    /// `[encoder]` of the configuration, as the file of models has it.
    pub encoder: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    model: Vec<ModelPart>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelPart {
    name: String,
    /// Width of the vectors that are kept; not needed where the service is asked for a width.
    dimension: Option<usize>,
    model_dimension: Option<usize>,
    distance: String,
    /// Price of an hour of one's own machine, for encoders that no service bills.
    price_per_hour: Option<f64>,
    encoder: EncoderConfig,
}

/// Model as the file describes it.
struct Model {
    space: Space,
    /// Width of the model's own vectors, where it differs from that of the vectors that are kept.
    own_dimension: Option<usize>,
    price_per_hour: Option<f64>,
    encoder: EncoderConfig,
    /// Table `[encoder]` of the model as the file has it.
    text: String,
}

/// Sample that every model is given: documents, queries and clicks.
struct Ground {
    documents: Vec<Sampled>,
    /// Documents of the file that have a source.
    documents_with_source: u64,
    queries: Option<Vec<Query>>,
    clicks: Option<Vec<Click>>,
}

/// Document of the sample.
struct Sampled {
    id: String,
    source: String,
    label: Option<String>,
    payload: Value,
}

impl Sampled {
    /// Returns the document's value of a field: `label`, or one of the payload.
    fn field(&self, name: &str) -> Option<String> {
        match self.payload.get(name) {
            _ if name == "label" => self.label.clone(),
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(text.clone()),
            Some(value) => Some(value.to_string()),
        }
    }
}

/// Vectors that a model made of the sample, and what they took.
struct Embedded {
    documents: Vec<Option<Vec<f32>>>,
    queries: Option<Vec<Option<Vec<f32>>>>,
    probed: Probed,
    /// Milliseconds of single queries, ascending.
    latencies: Vec<f64>,
    refused: Refused,
}

/// Count of documents and queries without a vector, and why the first of them has none.
#[derive(Default)]
struct Refused {
    count: usize,
    why: Option<String>,
}

/// Compares models on a sample of documents and queries. A model that cannot be measured is listed with its
/// fault, and does not keep the others from being measured. A document or query that one of the others has no
/// vector for is left out for all.
///
/// # Errors
///
/// I/O errors; corrupt, duplicate and empty files; invalid options; not found for a group that no document
/// has; nothing to find where no query has a right answer in the sample; cancelled.
pub fn compare_models(input: &ModelsInput, progress: &Progress) -> Result<ModelsCompared> {
    let models = read_models(&input.models)?;
    for (key, value) in [("sample", input.sample as u64), ("of", input.of.unwrap_or(1))] {
        if value == 0 {
            return Err(Error::option(key, 0, "1 or more"));
        }
    }
    let ground = Ground::read(input)?;
    let groups = input.group.as_deref().map(|field| ground.groups(field, &input.items)).transpose()?;
    let base = folder_of(&input.models);
    let mut outcomes = Vec::new();
    for model in &models {
        match model.embed(&ground, base, progress) {
            Err(error) if error.is_cancelled() => return Err(error),
            outcome => outcomes.push(outcome),
        }
    }
    let mut findings = ground.findings();
    for (model, outcome) in models.iter().zip(&outcomes) {
        let Ok(Embedded { refused: Refused { count, why: Some(why) }, .. }) = outcome else { continue };
        let message = format!("{} has no vector for {count} documents or queries ({why}).", model.space.name);
        let finding = Finding::warning(FindingCode::Refused, message);
        findings.push(finding.may_mean("They are left out for every model."));
    }
    let measured: Vec<&Embedded> = outcomes.iter().filter_map(|outcome| outcome.as_ref().ok()).collect();
    let shared = Shared::measured_by_all(&ground, &measured)?;
    let judge = Judge::choose(&ground, &shared, input.group.as_deref() == Some("label"))?;
    let metric = judge.metric();
    let items = input.of.unwrap_or(ground.documents_with_source);
    let mut reference = None;
    let mut evaluations: Vec<Option<Evaluation>> = Vec::new();
    for (model, outcome) in models.iter().zip(&outcomes) {
        let Ok(embedded) = outcome else {
            evaluations.push(None);
            continue;
        };
        let vectors = shared.vectors(&model.space, embedded)?;
        let first = reference.get_or_insert_with(|| (vectors.clone(), model.space.distance));
        let evaluation = judge.evaluate((&vectors, model.space.distance), (&first.0, first.1), progress)?;
        evaluations.push(Some(evaluation));
    }
    let values = |evaluation: &Evaluation| evaluation.per_query.values[metric].clone();
    let best = if judge.by == JudgedBy::FirstModel { None } else { best_of(&evaluations, metric) };
    let range = |values: &[f64]| -> Result<Interval> {
        let resamples = StudyOptions::default().bootstrap;
        bootstrap_means(values, 1, resamples, LEVEL, input.seed).map(|intervals| intervals[0])
    };
    let mut compared = Vec::new();
    for (place, (model, outcome)) in models.iter().zip(&outcomes).enumerate() {
        let measured = match (outcome, &evaluations[place]) {
            (Ok(embedded), Some(evaluation)) => {
                let own_scores = values(evaluation);
                // Every model has the same counted queries, since right answers do not depend on the model.
                let behind = |best: usize| {
                    let best = evaluations[best].as_ref().map(values).unwrap_or_default();
                    range(&best.iter().zip(&own_scores).map(|(best, score)| best - score).collect::<Vec<_>>())
                };
                Some(ModelMeasured {
                    score: range(&own_scores)?,
                    metrics: evaluation.values.iter().map(|(metric, &value)| (metric.id(), value)).collect(),
                    behind: best.filter(|&best| best != place).map(behind).transpose()?,
                    groups: shared.by_group(groups.as_deref(), evaluation, &own_scores, &range)?,
                    latency_ms: quantile(&embedded.latencies, 0.5),
                    latency_p95_ms: quantile(&embedded.latencies, 0.95),
                    documents_per_second: embedded.probed.items_per_second,
                    cost: model.cost(items, &embedded.probed),
                    storage: model.storage(items),
                })
            }
            _ => None,
        };
        let fault = outcome.as_ref().err().map(ToString::to_string);
        let (name, dimension) = (model.space.name.clone(), model.space.dimension);
        compared.push(ModelCompared { name, dimension, measured, fault });
    }
    let counted = evaluations.iter().flatten().next().map_or(0, |evaluation| evaluation.queries.counted);
    if !measured.is_empty() && counted < QUERIES_MIN {
        let message = format!("Only {counted} queries were counted.");
        let finding = Finding::warning(FindingCode::FewQueries, message);
        findings.push(finding.may_mean("A model may be better by more than the ranges show."));
    }
    Ok(ModelsCompared {
        judged_by: judge.by,
        metric: metric.id(),
        documents: shared.documents.len(),
        of: items,
        queries: shared.queries.as_ref().map_or(shared.documents.len(), Vec::len),
        counted,
        leave_one_out: shared.queries.is_none(),
        choice: best.map(|best| choose_model(&models, &compared, best)),
        models: compared,
        findings,
    })
}

/// Reads the models of a file, in its order.
fn read_models(path: &Path) -> Result<Vec<Model>> {
    let document: Document = read_toml(path)?;
    let tables: Table = read_toml(path)?;
    let model_tables = tables.get("model").and_then(toml::Value::as_array).cloned().unwrap_or_default();
    let mut names = HashSet::new();
    let mut models = Vec::new();
    for (part, table) in document.model.into_iter().zip(model_tables) {
        let within = |error: Error| error.context(format!("[[model]] {:?} of {}", part.name, path.display()));
        if !names.insert(part.name.clone()) {
            return Err(Error::duplicate(path.display(), format_args!("[[model]] {:?}", part.name)));
        }
        let asked_width = part.encoder.service().and_then(|service| service.dimensions);
        let dimension = part.dimension.or(asked_width).ok_or_else(|| {
            within(Error::missing("dimension", "a model whose service is asked for no width"))
        })?;
        if let Some(price) = part.price_per_hour.filter(|price| !(price.is_finite() && *price > 0.0)) {
            return Err(within(Error::option("price_per_hour", price, "a number above 0")));
        }
        let space = SpacePart {
            name: part.name.clone(),
            dimension,
            model_dimension: part.model_dimension,
            distance: part.distance.clone(),
            column: None,
            encoder: None,
        };
        let encoder = table.get("encoder").cloned().unwrap_or(toml::Value::Table(Table::new()));
        let encoder = Table::from_iter([("encoder".to_owned(), encoder)]);
        models.push(Model {
            space: space.space("[model]").map_err(within)?,
            own_dimension: part.model_dimension,
            price_per_hour: part.price_per_hour,
            text: toml::to_string(&encoder).map_err(|error| Error::corrupt(path.display(), error))?,
            encoder: part.encoder,
        });
    }
    if models.is_empty() {
        return Err(Error::missing("[[model]]", path.display()));
    }
    Ok(models)
}

impl Ground {
    /// Draws queries, with their clicks, and documents from the files.
    fn read(input: &ModelsInput) -> Result<Self> {
        let query_log = Asked::read(input.queries.as_deref(), input.clicks.as_deref())?;
        let (queries, clicks) = match query_log {
            None => (None, None),
            Some(query_log) => {
                let (queries, clicks) = draw_queries(query_log, input.seed);
                (Some(queries), clicks)
            }
        };
        if queries.as_ref().is_some_and(Vec::is_empty) {
            let file = input.clicks.as_ref().or(input.queries.as_ref()).unwrap_or(&input.items);
            return Err(Error::empty(file.display()));
        }
        let clicked = clicks.iter().flatten().map(|click| click.item.as_str()).collect();
        let (documents, documents_with_source) =
            draw_documents(&input.items, input.sample, input.seed, &clicked)?;
        Ok(Self { documents, documents_with_source, queries, clicks })
    }

    /// Returns the group of every query, or of every document where these ask.
    fn groups(&self, field: &str, items: &Path) -> Result<Vec<Option<String>>> {
        let of_documents: Vec<Option<String>> =
            self.documents.iter().map(|document| document.field(field)).collect();
        if of_documents.iter().all(Option::is_none) {
            return Err(Error::not_found("field", field, items.display()));
        }
        let (Some(queries), clicks) = (&self.queries, &self.clicks) else { return Ok(of_documents) };
        let clicks = clicks.as_ref().ok_or_else(|| {
            Error::missing("clicks", "the group of a query, which is that of what was clicked")
        })?;
        let places = self.places();
        let mut most: Vec<(f64, Option<String>)> = vec![(0.0, None); queries.len()];
        for click in clicks {
            if let Some(&place) = places.get(click.item.as_str())
                && click.gain > most[click.query].0
            {
                most[click.query] = (click.gain, of_documents[place].clone());
            }
        }
        Ok(most.into_iter().map(|(_, group)| group).collect())
    }

    fn places(&self) -> HashMap<&str, usize> {
        self.documents.iter().enumerate().map(|(place, document)| (document.id.as_str(), place)).collect()
    }

    /// Returns a note where clicks are of no document.
    fn findings(&self) -> Vec<Finding> {
        let places = self.places();
        let clicks = self.clicks.iter().flatten();
        let unknown = clicks.filter(|click| !places.contains_key(click.item.as_str())).count();
        let message = format!("{unknown} clicks are of no document of the file that has a source.");
        if unknown > 0 { vec![Finding::note(FindingCode::UnknownClicks, message)] } else { Vec::new() }
    }
}

/// Draws a random part of the queries, each as the file has it, with its clicks.
fn draw_queries(query_log: Asked, seed: u64) -> (Vec<Query>, Option<Vec<Click>>) {
    let Asked { queries, clicks, .. } = query_log;
    let judged: Option<HashSet<usize>> = clicks
        .as_ref()
        .map(|clicks| clicks.iter().filter(|click| click.gain > 0.0).map(|click| click.query).collect());
    let mut drawn: Vec<usize> = (0..queries.len())
        .filter(|place| judged.as_ref().is_none_or(|judged| judged.contains(place)))
        .collect();
    drawn.sort_by_key(|&place| (xxh3_64_with_seed(name_of(&queries[place]).as_bytes(), seed), place));
    drawn.truncate(QUERIES_MAX);
    drawn.sort_unstable();
    let rows: HashMap<usize, usize> = drawn.iter().enumerate().map(|(row, &place)| (place, row)).collect();
    let of_drawn = |click: Click| Some(Click { query: *rows.get(&click.query)?, ..click });
    let clicks = clicks.map(|clicks| clicks.into_iter().filter_map(of_drawn).collect());
    (drawn.into_iter().map(|place| queries[place].clone()).collect(), clicks)
}

/// Draws a random part of the documents, with all that are `wanted`, in the order of the file. Also counts
/// all documents that have a source. Only one line and the part are in memory at a time.
fn draw_documents(
    path: &Path,
    sample: usize,
    seed: u64,
    wanted: &HashSet<&str>,
) -> Result<(Vec<Sampled>, u64)> {
    let (mut drawn, mut by_hash) = (Vec::new(), BTreeMap::new());
    let mut documents_with_source = 0_u64;
    for line in item_lines(path)? {
        let line = line?;
        let Some(source) = line.source.filter(|source| !source.is_empty()) else { continue };
        let (id, label) = (line.id.into_string(), line.label.map(Text::into_string));
        let place = documents_with_source;
        documents_with_source += 1;
        let hash = xxh3_64_with_seed(id.as_bytes(), seed);
        let document = Sampled { id, source, label, payload: line.payload };
        if wanted.contains(document.id.as_str()) {
            drawn.push((place, document));
        } else {
            by_hash.insert((hash, place), document);
            if by_hash.len() > sample {
                by_hash.pop_last();
            }
        }
    }
    if documents_with_source == 0 {
        return Err(Error::missing("a document with a source", path.display()));
    }
    let room = sample.saturating_sub(drawn.len());
    drawn.extend(by_hash.into_iter().take(room).map(|((_, place), document)| (place, document)));
    drawn.sort_unstable_by_key(|(place, _)| *place);
    let documents: Vec<Sampled> = drawn.into_iter().map(|(_, document)| document).collect();
    let mut ids = HashSet::new();
    if let Some(duplicate) = documents.iter().find(|document| !ids.insert(document.id.as_str())) {
        return Err(Error::duplicate(path.display(), format_args!("id {:?}", duplicate.id)));
    }
    Ok((documents, documents_with_source))
}

impl Model {
    fn open(&self, config: &EncoderConfig, base: &Path) -> Result<Box<dyn Encoder>> {
        at_width_of(&self.space, self.own_dimension, |space| rehang_encode::open(config, space, base))
    }

    /// Embeds the sample: documents in batches; and queries, or some of the documents where these ask, one at
    /// a time.
    fn embed(&self, ground: &Ground, base: &Path, progress: &Progress) -> Result<Embedded> {
        let encoder = self.open(&self.encoder, base)?;
        // The queries' encoder is opened first, so that a fault of it is known before the documents are paid
        // for.
        let asking = match &ground.queries {
            Some(queries) => Some((queries, self.query_encoder(base)?)),
            None => None,
        };
        let documents = &ground.documents;
        let name = &self.space.name;
        let stage = format!("embedding by {name}");
        progress.begin(stage.as_str(), "documents", documents.len() as u64);
        let inputs: Vec<Input<'_>> = documents
            .iter()
            .map(|document| Input { id: &document.id, source: &document.source, payload: &document.payload })
            .collect();
        let (mut batches, mut times) = (Vec::new(), Vec::new());
        let embed = |inputs: &[Input<'_>], from: usize, times: &mut Vec<f64>| {
            let named = |place: usize| format!("document {:?}", documents[from + place].id);
            let refused = |(place, answer): (usize, Result<Vec<f32>, String>)| {
                answer.map_err(|reason| Error::corrupt(named(place), reason))
            };
            let answers = timed(times, || embed_inputs(&*encoder, inputs, &named, progress, &mut |_| Ok(())));
            answers.map(|answers| answers.into_iter().enumerate().map(refused).collect::<Vec<_>>())
        };
        // Some of the documents stand for queries; at least one is embedded as the others are, for the rate.
        let alone = if asking.is_some() { 0 } else { (documents.len() / 4).min(ALONE_MAX) };
        let (batched, singles) = inputs.split_at(documents.len() - alone);
        let mut answers = embed(batched, 0, &mut batches)?;
        for (at, single) in singles.iter().enumerate() {
            answers.extend(embed(std::slice::from_ref(single), batched.len() + at, &mut times)?);
        }
        encoder.vouch()?;
        let (rows, mut refused) = vectors_of(answers, "documents")?;
        let spent = encoder.spent();
        let probed = Probed {
            items: rows.len() as u64,
            failed: refused.count as u64,
            items_per_second: batched.len() as f64 / batches[0].max(1e-9),
            tokens: spent.tokens,
            money: spent.money,
        };
        let mut queries = None;
        if let Some((asked_queries, encoder)) = asking {
            let ask = |queries: &[Query]| {
                let encoders = |_: &Space| Ok(Arc::clone(&encoder));
                embed_each(queries, &self.space, &encoders, progress, &mut |_| Ok(()))
            };
            let (singles, batched) = asked_queries.split_at(asked_queries.len().min(ALONE_MAX));
            let mut answers = Vec::new();
            for single in singles {
                answers.extend(timed(&mut times, || ask(std::slice::from_ref(single)))?);
            }
            answers.extend(ask(batched)?);
            encoder.vouch()?;
            let (rows, refused_queries) = vectors_of(answers, "queries")?;
            refused = Refused {
                count: refused.count + refused_queries.count,
                why: refused.why.or(refused_queries.why),
            };
            queries = Some(rows);
        }
        if times.is_empty() {
            times = batches;
        }
        times.sort_unstable_by(f64::total_cmp);
        let latencies = times.into_iter().map(|seconds| 1000.0 * seconds).collect();
        Ok(Embedded { documents: rows, queries, probed, latencies, refused })
    }

    fn query_encoder(&self, base: &Path) -> Result<Arc<dyn Encoder>> {
        self.open(&self.encoder.for_queries()?, base).map(Arc::from)
    }

    /// Returns time and money for so many documents.
    fn cost(&self, documents: u64, probed: &Probed) -> CostEstimate {
        let (limits, service) = (Limits::default(), self.encoder.service());
        let mut cost = reckon((documents, None), &limits, service, Some(probed), &Known::default());
        if let (Some(price), Some(seconds)) = (self.price_per_hour, cost.seconds) {
            cost.money = Some(cost.money.unwrap_or(0.0) + price * seconds / 3600.0);
        }
        cost
    }

    fn storage(&self, documents: u64) -> BTreeMap<&'static str, u64> {
        let bytes = |precision: Precision| documents * (self.space.dimension * precision.bytes()) as u64;
        [Precision::F32, Precision::F16].map(|precision| (precision.name(), bytes(precision))).into()
    }
}

/// Does work and notes the seconds that it took.
fn timed<T>(times: &mut Vec<f64>, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let clock = SystemClock::start();
    let outcome = work()?;
    times.push(clock.now().as_secs_f64());
    Ok(outcome)
}

/// Takes the vectors out of answers, and counts the answers without one. Fails where these are too many.
fn vectors_of(answers: Vec<Result<Vec<f32>>>, what: &str) -> Result<(Vec<Option<Vec<f32>>>, Refused)> {
    let (answer_count, mut refused) = (answers.len(), Refused::default());
    let mut rows = Vec::new();
    for answer in answers {
        rows.push(match answer {
            Ok(vector) => Some(vector),
            Err(error) => {
                refused.count += 1;
                refused.why.get_or_insert_with(|| error.to_string());
                None
            }
        });
    }
    if refused.count * REFUSED_ONE_IN > answer_count {
        let (count, why) = (refused.count, refused.why.unwrap_or_default());
        let detail = format!("it has no vector for {count} of {answer_count} {what}: {why}");
        return Err(Error::corrupt("the encoder's answer", detail));
    }
    Ok((rows, refused))
}

/// Rows of the sample for which every measured model has a vector.
struct Shared {
    documents: Vec<usize>,
    queries: Option<Vec<usize>>,
}

/// Vectors of one model, of the rows that all models share.
#[derive(Clone)]
struct SharedVectors {
    documents: Matrix,
    queries: Option<Matrix>,
}

impl Shared {
    fn measured_by_all(ground: &Ground, models: &[&Embedded]) -> Result<Self> {
        let documents: Vec<usize> = (0..ground.documents.len())
            .filter(|&row| models.iter().all(|model| model.documents[row].is_some()))
            .collect();
        let has_query = |model: &&Embedded, row: usize| {
            model.queries.as_ref().is_some_and(|queries| queries[row].is_some())
        };
        let queries = ground.queries.as_ref().map(|queries| {
            (0..queries.len())
                .filter(|&row| models.iter().all(|model| has_query(model, row)))
                .collect::<Vec<_>>()
        });
        if documents.is_empty() || queries.as_ref().is_some_and(Vec::is_empty) {
            let detail = "no document, or no query, has a vector of every model".into();
            return Err(ErrorKind::NothingToFind { detail }.into());
        }
        Ok(Self { documents, queries })
    }

    fn vectors(&self, space: &Space, embedded: &Embedded) -> Result<SharedVectors> {
        let matrix = |rows: &[Option<Vec<f32>>], shared_rows: &[usize]| {
            let rows = shared_rows.iter().filter_map(|&row| rows[row].as_ref()).flatten().copied();
            Matrix::new(space.dimension, rows.collect())
        };
        let queries = self.queries.as_ref().zip(embedded.queries.as_ref());
        Ok(SharedVectors {
            documents: matrix(&embedded.documents, &self.documents)?,
            queries: queries.map(|(shared_rows, rows)| matrix(rows, shared_rows)).transpose()?,
        })
    }

    /// Returns the metric by group; `values` are those of the counted queries.
    fn by_group(
        &self,
        groups: Option<&[Option<String>]>,
        evaluation: &Evaluation,
        values: &[f64],
        range: &dyn Fn(&[f64]) -> Result<Interval>,
    ) -> Result<Vec<GroupScore>> {
        let Some(groups) = groups else { return Ok(Vec::new()) };
        let asking_rows = self.queries.as_ref().unwrap_or(&self.documents);
        let mut by_group: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for (&query, &value) in evaluation.per_query.queries.iter().zip(values) {
            if let Some(group) = &groups[asking_rows[query]] {
                by_group.entry(group).or_default().push(value);
            }
        }
        let score = |(group, values): (&str, Vec<f64>)| {
            Ok(GroupScore { group: group.to_owned(), queries: values.len(), score: range(&values)? })
        };
        let mut scores = by_group.into_iter().map(score).collect::<Result<Vec<_>>>()?;
        scores.sort_by_key(|group| std::cmp::Reverse(group.queries));
        Ok(scores)
    }
}

/// Judge of answers: which are right among the documents that all models share.
struct Judge {
    by: JudgedBy,
    clicks: Qrels,
    labels: Vec<i64>,
}

impl Judge {
    /// Chooses the source of the right answers: clicks, or else labels, or else the first model. Labels that
    /// split the metric into groups judge nothing.
    fn choose(ground: &Ground, shared: &Shared, labels_are_groups: bool) -> Result<Self> {
        let mut judge = Self { by: JudgedBy::FirstModel, clicks: Qrels::default(), labels: Vec::new() };
        if let (Some(clicks), Some(queries)) = (&ground.clicks, &shared.queries) {
            let ids = shared.documents.iter().map(|&row| ground.documents[row].id.as_str());
            let places: HashMap<&str, usize> = ids.enumerate().map(|(place, id)| (id, place)).collect();
            let rows: HashMap<usize, usize> =
                queries.iter().enumerate().map(|(row, &query)| (query, row)).collect();
            let mut judged = vec![Vec::new(); queries.len()];
            for click in clicks {
                if let (Some(&row), Some(&place)) = (rows.get(&click.query), places.get(click.item.as_str()))
                {
                    judged[row].push((place, click.gain));
                }
            }
            judge.clicks = Qrels::new(judged)?;
            judge.by = JudgedBy::Clicks;
        } else if shared.queries.is_none() && !labels_are_groups {
            let labels = shared.documents.iter().map(|&row| ground.documents[row].label.clone());
            judge.labels = label_numbers(&labels.collect::<Vec<_>>()).unwrap_or_default();
            let known_labels = || judge.labels.iter().copied().filter(|&label| label >= 0);
            if known_labels().count() > distinct(known_labels()).len() {
                judge.by = JudgedBy::Labels;
            }
        }
        Ok(judge)
    }

    fn metric(&self) -> Metric {
        match self.by {
            JudgedBy::Clicks | JudgedBy::Labels => Metric::ndcg_at(K),
            JudgedBy::FirstModel => Metric::agreement_at(K),
        }
    }

    /// Evaluates a model's answers; `first` are the vectors of the first model.
    fn evaluate(
        &self,
        (vectors, distance): (&SharedVectors, rehang_core::Distance),
        (first, first_distance): (&SharedVectors, rehang_core::Distance),
        progress: &Progress,
    ) -> Result<Evaluation> {
        let relevance = match self.by {
            JudgedBy::Clicks => Relevance::Judgements(&self.clicks),
            JudgedBy::Labels => Relevance::Labels { gallery: &self.labels, queries: None },
            JudgedBy::FirstModel => {
                let (gallery, queries) = (&vectors.documents, vectors.queries.as_ref());
                let (native, options) = ((&first.documents, first.queries.as_ref()), CurveOptions::default());
                let do_nothing = DoNothing { gallery, queries, distance };
                let nearest = Relevance::Nearest(K);
                return evaluate_today(
                    do_nothing,
                    native.0,
                    native.1,
                    nearest,
                    first_distance,
                    &options,
                    progress,
                );
            }
        };
        let options = CurveOptions { metrics: vec![self.metric()], ..CurveOptions::default() };
        evaluate(&vectors.documents, vectors.queries.as_ref(), relevance, distance, &options, progress)
    }
}

/// Returns the place of the highest metric; of equal ones the first.
fn best_of(evaluations: &[Option<Evaluation>], metric: Metric) -> Option<usize> {
    let value = |place: usize| evaluations[place].as_ref().map(|evaluation| evaluation.values[metric]);
    let measured = (0..evaluations.len()).filter_map(|place| Some((place, value(place)?)));
    measured.max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0))).map(|(place, _)| place)
}

/// Chooses the cheapest of the models that are level with the best one.
fn choose_model(models: &[Model], compared: &[ModelCompared], best: usize) -> ModelChoice {
    let measured = |place: usize| compared[place].measured.as_ref();
    let is_level = |place: usize| {
        place != best
            && measured(place).and_then(|model| model.behind).is_some_and(|behind| behind.low <= 0.0)
    };
    let level: Vec<usize> =
        [best].into_iter().chain((0..models.len()).filter(|&place| is_level(place))).collect();
    let money = |place: usize| measured(place).and_then(|model| model.cost.money);
    let bytes = |place: usize| measured(place).map_or(0, |model| model.storage[Precision::F32.name()]) as f64;
    let seconds =
        |place: usize| measured(place).and_then(|model| model.cost.seconds).unwrap_or(f64::INFINITY);
    let differ = |cost: &dyn Fn(usize) -> f64| level.iter().any(|&place| cost(place) != cost(best));
    let all_have_prices = level.iter().all(|&place| money(place).is_some());
    let price = |place: usize| money(place).unwrap_or(0.0);
    let (by, cost): (_, &dyn Fn(usize) -> f64) = if all_have_prices && differ(&price) {
        (CheaperBy::Price, &price)
    } else if differ(&bytes) {
        (CheaperBy::Storage, &bytes)
    } else {
        (CheaperBy::Time, &seconds)
    };
    let chosen = level.iter().copied().min_by(|&a, &b| cost(a).total_cmp(&cost(b))).unwrap_or(best);
    let name = |place: usize| compared[place].name.clone();
    let Model { space, own_dimension, text, .. } = &models[chosen];
    ModelChoice {
        name: name(chosen),
        best: name(best),
        cheaper_by: (level.len() > 1).then_some(by),
        level: level.into_iter().map(name).collect(),
        dimension: space.dimension,
        model_dimension: *own_dimension,
        distance: space.distance.name(),
        encoder: text.clone(),
    }
}
