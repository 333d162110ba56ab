//! `rehang evaluate cross`, `refresh` and `sequence`.

use std::fmt::Write;

use rehang::compatibility::{
    CrossEvaluation, CrossInput, Metric, Model, RefreshInput, SequenceInput, StepMetrics, UpgradeStep,
    WidthRule, cross_evaluate, hot_refresh, paired_difference, upgrade_sequence,
};
use rehang::curve::{CurveOptions, Line, QueryCount, grid_cuts};
use rehang::files::{self, VectorSource};
use rehang::order::{OrderInput, Policy, order};
use rehang::{Distance, Error, Matrix, Result};
use serde_json::{Map, Value, json};

use super::{Named, split_all, table};
use crate::arguments::Relevance;
use crate::arguments::evaluate::{Answers, Cross, Refresh, Sequence};
use crate::bar::with_bar;
use crate::commands::{Outcome, check_grid, print};
use crate::input::{Inputs, Join, Names};
use crate::relevance::Loaded;

const LEVEL: f64 = 0.95;

/// Models, right answers and distance, read.
struct Ground {
    inputs: Inputs,
    models: Named,
    queries: Option<Vec<Matrix>>,
    loaded: Loaded,
    distance: Distance,
}

impl Ground {
    fn read(models: &[String], answers: &Answers) -> Result<Self> {
        let distance: Distance = answers.distance.parse()?;
        let mut inputs = Inputs::new(&answers.selection)?;
        if answers.labels.is_some() && !answers.queries.is_empty() && answers.query_labels.is_none() {
            return Err(Error::missing("--query-labels", "--queries with --labels"));
        }
        let models = Named::read("--models", "gallery", models, &mut inputs)?;
        let queries = models.queries(&answers.queries, &mut inputs)?;
        let relevance = Relevance {
            labels: answers.labels.iter().cloned().collect(),
            query_labels: answers.query_labels.clone(),
            qrels: answers.qrels.clone(),
            ids: answers.ids.iter().cloned().collect(),
            query_ids: answers.query_ids.clone(),
            k: answers.k,
            ..Relevance::default()
        };
        let items = models.vectors[0].rows();
        let asked = queries.as_ref().and_then(|queries| queries.first()).map(Matrix::rows);
        let loaded = Loaded::read(&relevance, &mut inputs, &Join::default(), items, asked)?;
        Ok(Self { inputs, models, queries, loaded, distance })
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

    fn relevance(&self) -> Result<rehang::curve::Relevance<'_>> {
        self.loaded.relevance().ok_or_else(|| Error::missing("--labels or --qrels", "rehang evaluate"))
    }

    /// The fields that every answer has.
    fn head(&self, queries: QueryCount) -> Map<String, Value> {
        let mut value = Map::new();
        value.insert("models".into(), json!(self.models.names));
        value.insert("queries".into(), json!(queries));
        value.insert("distance".into(), json!(self.distance));
        value.insert("inputs".into(), json!(self.inputs.read));
        value
    }

    /// Orders by name, each a permutation; a random one where none are given.
    fn orders(&self, texts: &[String], seed: u64) -> Result<Vec<(String, Vec<usize>)>> {
        let items = self.models.vectors[0].rows();
        if texts.is_empty() {
            let made = order(Policy::Random, &OrderInput { items, seed, ..OrderInput::default() })?;
            return Ok(vec![("random".into(), made.permutation)]);
        }
        let (names, paths) = split_all("--orders", texts)?;
        names
            .into_iter()
            .zip(paths)
            .map(|(name, path)| Ok((name, files::read_order(&VectorSource::parse(&path)?)?)))
            .collect()
    }
}

/// The cross matrix of retrieval metrics.
pub fn cross(arguments: &Cross, json: bool) -> Result<Outcome> {
    let ground = Ground::read(&arguments.models.models, &arguments.answers)?;
    let best = ground.models.best(arguments.models.best.as_ref())?;
    let k = arguments.answers.k;
    let input = CrossInput {
        models: &ground.models(),
        relevance: ground.relevance()?,
        distance: ground.distance,
        map_at: Some(k),
    };
    let result = with_bar(|progress| cross_evaluate(&input, progress))?;
    let mut value = ground.head(result.queries);
    let mut text = counted(result.queries);
    let mut metrics = Map::new();
    let map_at = format!("mAP@{k}");
    for (id, title, metric) in [
        ("top1", "top-1", Metric::Top1),
        ("top5", "top-5", Metric::Top5),
        ("map", "mAP", Metric::Map),
        ("map_at", map_at.as_str(), Metric::MapAt),
    ] {
        let intervals = intervals(&result, metric, best, arguments.bootstrap)?;
        let (shown, table) = table::matrix(title, table::SEARCH, &result.matrix(metric), best, &intervals);
        metrics.insert(id.into(), shown);
        // Three tables say enough to a reader; the fourth is in the JSON.
        if id != "top5" {
            let _ = write!(text, "\n{table}");
        }
    }
    let rules: Vec<Vec<WidthRule>> =
        result.cells.iter().map(|row| row.iter().map(|cell| cell.width_rule).collect()).collect();
    if rules.iter().flatten().any(|&rule| rule != WidthRule::Same) {
        text += "\nWidths differ: a query is cut to the first coordinates, or filled up with zeros, to fit the gallery.\n";
    }
    value.insert("k".into(), json!(k));
    value.insert("width_rules".into(), json!(rules));
    value.insert("metrics".into(), Value::Object(metrics));
    print(json, &Value::Object(value), &text)?;
    Ok(Outcome::Done)
}

/// Intervals of the absolute gain of every pair, by queries drawn with both values.
fn intervals(
    result: &CrossEvaluation,
    metric: Metric,
    best: Option<usize>,
    samples: usize,
) -> Result<Vec<rehang::statistics::Interval>> {
    if samples == 0 {
        return Ok(Vec::new());
    }
    let place = |name: &str| result.names.iter().position(|other| other == name).unwrap_or_default();
    result
        .matrix(metric)
        .pairs(best)
        .iter()
        .map(|pair| {
            let (old, new) = (place(&pair.old), place(&pair.new));
            let (after, before) = (result.per_query(new, old, metric), result.per_query(old, old, metric));
            paired_difference(&after, &before, samples, LEVEL, 0)
        })
        .collect()
}

/// A hot refresh in every order.
pub fn refresh(arguments: &Refresh, json: bool) -> Result<Outcome> {
    check_grid(arguments.grid)?;
    let ground = Ground::read(&arguments.models, &arguments.answers)?;
    let [old, new] = ground.models()[..] else {
        return Err(Error::option(
            "--models",
            ground.models.names.join(" "),
            "two models, the old one first; for more than two there is rehang evaluate sequence",
        ));
    };
    let orders = ground.orders(&arguments.orders, arguments.seed)?;
    let named: Vec<(&str, &[usize])> =
        orders.iter().map(|(name, order)| (name.as_str(), &order[..])).collect();
    let k = arguments.answers.k;
    let input =
        RefreshInput { old, new, relevance: ground.relevance()?, distance: ground.distance, orders: &named };
    let options = CurveOptions { map_at: Some(k), flips_at: Some(k), ..CurveOptions::default() };
    let results = with_bar(|progress| hot_refresh(&input, &options, progress))?;
    let mut value = ground.head(results[0].curve.queries);
    let mut text = counted(results[0].curve.queries);
    let items = results[0].curve.items;
    let cuts = grid_cuts(items, arguments.grid);
    if let Some(today) = &results[0].curve.do_nothing {
        let today = &today.evaluation;
        let _ = writeln!(text, "do nothing: top-1 {:.2}, mAP {:.2}", today.top1, today.map);
        value.insert(
            "do_nothing".into(),
            json!({ "top1": today.top1, "top5": today.top5, "map": today.map, "map_at": today.map_at }),
        );
    }
    let mut shown = Vec::new();
    for result in &results {
        let curve = &result.curve;
        let nothing = Line::default();
        let lines: [(&str, String, &Line); 6] = [
            ("top1", "top-1".into(), &curve.top1),
            ("map", "mAP".into(), &curve.map),
            ("map_at", format!("mAP@{k}"), curve.map_at.as_ref().map_or(&nothing, |at| &at.line)),
            ("nfr1", "NFR@1".into(), &curve.flips.top1.rate),
            ("nfr5", "NFR@5".into(), &curve.flips.top5.rate),
            ("nfr_at", format!("NFR@{k}"), curve.flips.at.as_ref().map_or(&nothing, |at| &at.flips.rate)),
        ];
        let _ = write!(text, "\norder {}: percent re-embedded\n{:<8}", result.order, "");
        for &cut in &cuts {
            let _ = write!(text, "  {:>6}", format!("{:.0} %", 100.0 * cut as f64 / items as f64));
        }
        let _ = writeln!(text, "  {:>6}", "area");
        let mut by_line = Map::new();
        for (id, title, line) in lines {
            let values: Vec<f64> = cuts.iter().map(|&cut| line.values()[cut]).collect();
            let _ = write!(text, "{title:<8}");
            for value in &values {
                let _ = write!(text, "  {:>6}", table::two_decimals(*value));
            }
            let _ = writeln!(text, "  {:>6}", table::two_decimals(line.area()));
            by_line.insert(id.into(), json!({ "values": values, "area": line.area() }));
        }
        shown.push(json!({ "order": result.order, "cuts": cuts, "metrics": by_line }));
    }
    value.insert("k".into(), json!(k));
    value.insert("orders".into(), json!(shown));
    print(json, &Value::Object(value), &text)?;
    Ok(Outcome::Done)
}

/// Upgrades in a row.
pub fn sequence(arguments: &Sequence, json: bool) -> Result<Outcome> {
    let mut ground = Ground::read(&arguments.models, &arguments.answers)?;
    let joined = match &arguments.joined {
        None => None,
        Some(path) => {
            let paths = std::slice::from_ref(path);
            let steps = ground.inputs.labels("joined", paths, &mut Names::default())?;
            let expected = || format!("0 to {}", ground.models.names.len() - 1);
            Some(
                steps
                    .iter()
                    .map(|&step| {
                        usize::try_from(step).map_err(|_| Error::option("--joined", step, expected()))
                    })
                    .collect::<Result<Vec<usize>>>()?,
            )
        }
    };
    let upgrades = ground.models.names.len() - 1;
    let shares = match arguments.backfilled.as_slice() {
        [one] => vec![*one; upgrades],
        each if each.len() == upgrades => each.to_vec(),
        each => {
            return Err(Error::option(
                "--backfilled",
                each.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
                format!("one share, or one for each of the {upgrades} upgrades"),
            ));
        }
    };
    let orders = ground.orders(&arguments.orders, arguments.seed)?;
    for (name, _) in orders.iter().filter(|_| !arguments.orders.is_empty()) {
        ground.models.place("--orders", name)?;
    }
    let order_of = |number: usize| -> Result<&[usize]> {
        if arguments.orders.is_empty() || number == 0 {
            return Ok(&orders[0].1);
        }
        let name = &ground.models.names[number];
        let named = orders.iter().find(|(other, _)| other == name);
        named.map(|(_, order)| &order[..]).ok_or_else(|| {
            Error::missing(format!("--orders {name}=FILE"), "a sequence with orders of its own")
        })
    };
    let models = ground.models();
    let steps = models
        .iter()
        .enumerate()
        .map(|(number, &model)| {
            let backfilled = if number == 0 { 0.0 } else { shares[number - 1] };
            Ok(UpgradeStep { model, order: order_of(number)?, backfilled })
        })
        .collect::<Result<Vec<_>>>()?;
    let input = SequenceInput {
        steps: &steps,
        joined_at: joined.as_deref(),
        relevance: ground.relevance()?,
        distance: ground.distance,
        map_at: Some(arguments.answers.k),
    };
    let result = with_bar(|progress| upgrade_sequence(&input, progress))?;
    let mut value = ground.head(result.steps[0].queries);
    let mut text = counted(result.steps[0].queries);
    let width = ground.models.names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(8);
    for (title, of) in [
        ("top-1", (|metrics: &StepMetrics| metrics.top1) as fn(&StepMetrics) -> f64),
        ("mAP", |metrics: &StepMetrics| metrics.map),
    ] {
        let _ = writeln!(
            text,
            "\n{title}, percent\n{:<width$}  {:>7}  {:>10}  {:>9}  {:>9}  {:>8}  {:>7}",
            "queries", "items", "no-refresh", "hot start", "hot end", "full", "by it"
        );
        for step in &result.steps {
            let _ = writeln!(
                text,
                "{:<width$}  {:>7}  {:>10.2}  {:>9.2}  {:>9.2}  {:>8.2}  {:>7}",
                step.model,
                step.items,
                of(&step.no_refresh),
                of(&step.hot_start),
                of(&step.hot_end),
                of(&step.full),
                step.native
            );
        }
    }
    text += "\nno-refresh: every item keeps its first vector; hot: backfilled step by step; full: everything by that model;\n\
             by it: items by that model when its step is done.\n";
    value.insert("k".into(), json!(arguments.answers.k));
    value.insert("steps".into(), json!(result.steps));
    print(json, &Value::Object(value), &text)?;
    Ok(Outcome::Done)
}

fn counted(queries: QueryCount) -> String {
    format!(
        "{} queries counted ({} without a right answer, {} unlabelled)\n",
        queries.counted, queries.without_positives, queries.unlabelled
    )
}
