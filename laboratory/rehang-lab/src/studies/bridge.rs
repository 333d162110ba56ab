//! `cargo lab study bridge [SPLITS [FOLDER [SET…]]]`: what an old gallery gives to bridged queries, beside
//! what it gives today, what both models' scores together give, and what the switch gives. Each split draws
//! other pairs. Everything is chosen on them; measured are galleries that the choice has not seen. All
//! vectors are compared by their cosine.

use rehang_core::adapter;
use rehang_core::curve::{
    ByMetric, CurveInput, CurveOptions, Distances, MAP, Metric, QueryRanks, Relevance, TOP1, curve, evaluate,
    evaluate_leave_one_out, nearest,
};
use rehang_core::statistics::mean_sd;
use rehang_core::{Adapter, Distance, Error, Matrix, Pairs, Progress, Result, Vectors};
use rehang_fit::closed_form::ridge;
use rehang_fit::folds::{folds, hold_out};
use rehang_fit::pseudo_classes::pseudo_classes;
use rehang_fit::{
    BridgeChoice, BridgeRow, FitParameters, FitQueries, Method, NetworkOptions, fit_adapter, fit_bridge,
    fit_bridge_of,
};

use crate::studies::papers::units::SETS;
use crate::studies::regret::{Ground, JUDGED, judged, labelled, parse_arguments};

/// Number of pairs of a split; of a set that has fewer, this part of its pairs.
const PAIRS: usize = 2000;
const PART: f64 = 0.8;
/// Number of times that pairs are held out to choose the weight of both scores.
const HOLD_OUTS: u64 = 3;
const DEPTH: usize = 10;

/// Ways of serving, in the order of the table.
const SERVED: [&str; 7] = [
    "bridge",
    "bridge by mAP alone",
    "the new query alone",
    "fused search",
    "fusion without bounds",
    "switch",
    "new model",
];
/// Places of four ways in [`SERVED`].
const BRIDGE: usize = 0;
const FUSED: usize = 3;
const SWITCH: usize = 5;
const NEW_MODEL: usize = 6;

/// Gains of one way of serving over doing nothing in one gallery, by one split: the mean of each metric, and
/// half of its 95 % interval.
type Gains = Vec<(f64, f64)>;

/// Results of one gallery with one kind of knowledge.
struct Row {
    name: String,
    chosen: Vec<String>,
    today: Vec<f64>,
    /// Gains by way of serving, then by split.
    gains: Vec<Vec<Gains>>,
}

/// Prints one table, and what it says in all.
pub fn run(arguments: &[&str]) -> Result<()> {
    let all: Vec<&str> = SETS.into_iter().chain([JUDGED]).collect();
    let (splits, folder, sets) = parse_arguments(arguments, 3, &all)?;
    let mut rows = Vec::new();
    for set in sets {
        let study = if set == JUDGED { judged(&folder.join(set))? } else { labelled(&folder, set)? };
        for (known, with_labels, queries) in &study.knowns {
            eprintln!("{set}, {known} …");
            let mut of_set: Vec<Row> = study
                .grounds
                .iter()
                .map(|ground| Row {
                    name: format!("{set} {}, {known}", ground.name),
                    chosen: Vec::new(),
                    today: Vec::new(),
                    gains: vec![Vec::new(); SERVED.len()],
                })
                .collect();
            for split in 0..splits {
                let pairs = draw_pairs(&study.pairs, *with_labels, queries.as_ref(), split)?;
                measure(&pairs, queries.as_ref(), &study.grounds, &mut of_set)?;
            }
            rows.extend(of_set);
        }
    }
    print(&rows);
    // A fit without labels knows nothing of pairs but what the new model finds, so fused search goes where
    // the new model goes: it is held against both.
    let fused = galleries_below_both(&rows, FUSED);
    println!(
        "\nfused search: beyond its interval below doing nothing and the new model in {} galleries.",
        fused.len()
    );
    for (what, broken) in [("bridge", galleries_below(&rows, BRIDGE)), ("fused search", fused)] {
        if !broken.is_empty() {
            let what = format!("a {what} is below doing nothing beyond its interval");
            return Err(Error::corrupt(what, broken.join("; ")));
        }
    }
    Ok(())
}

pub fn cosine(of: &Vectors) -> Result<Vectors> {
    Vectors::measured(&of.space().name, Distance::Cosine, of.matrix().clone(), "vectors")
}

/// Draws the pairs of a split. Judgements name pairs by their place, so all pairs stay where there are any.
pub fn draw_pairs(
    pairs: &Pairs,
    with_labels: bool,
    queries: Option<&FitQueries>,
    split: u64,
) -> Result<Pairs> {
    let is_judged = queries.is_some_and(|queries| queries.qrels.is_some());
    let count = if is_judged { pairs.len() } else { PAIRS.min((PART * pairs.len() as f64) as usize) };
    let place = folds(pairs.len(), pairs.len(), split);
    let mut rows: Vec<usize> = (0..pairs.len()).collect();
    if !is_judged {
        rows.sort_by_key(|&row| place[row]);
    }
    let drawn = pairs.select(&rows[..count]);
    let labels = drawn.labels().filter(|_| with_labels).map(<[i64]>::to_vec);
    Pairs::new(cosine(drawn.old())?, cosine(drawn.new_vectors())?, labels, None)
}

fn options_for(relevance: Relevance<'_>) -> CurveOptions {
    let metrics = match relevance {
        Relevance::Judgements(_) => vec![Metric::ndcg_at(DEPTH), Metric::recall_at(DEPTH)],
        _ => Vec::new(),
    };
    CurveOptions { metrics, ..CurveOptions::default() }
}

/// Ranks what queries find: the ground's own queries, or its items, each leaving itself out.
pub fn rank_queries(
    gallery: &Matrix,
    queries: &Matrix,
    relevance: Relevance<'_>,
    own: bool,
) -> Result<QueryRanks> {
    let options = options_for(relevance);
    let quiet = Progress::default();
    let evaluation = if own {
        evaluate_leave_one_out(gallery, queries, relevance, Distance::Dot, &options, &quiet)?
    } else {
        evaluate(gallery, Some(queries), relevance, Distance::Dot, &options, &quiet)?
    };
    Ok(evaluation.per_query)
}

/// Measures what fused searches find while nothing is native, by the fusion that a fit has chosen: the values
/// of every query.
pub fn measure_fused(
    ground: &Ground,
    adapter: &Adapter,
    relevance: Relevance<'_>,
) -> Result<ByMetric<Vec<f64>>> {
    let quiet = Progress::default();
    let (old, new) = (cosine(&ground.old)?, cosine(&ground.new)?);
    let adapted = adapter::apply(adapter, &old, None, &quiet)?.vectors;
    let by = |place: usize| ground.queries.as_ref().map(|queries| &queries[place]);
    let to = |of: &Vectors, gallery: &Vectors, place| {
        Distances::new(of.matrix(), gallery.matrix(), by(place), Distance::Cosine)
    };
    let (to_old, to_adapted) = (to(&old, &old, 0)?, to(&new, &adapted, 1)?);
    let served = match &adapter.fusion {
        Some(fusion) => to_old.combined(&to_adapted, |old, adapted| fusion.distance(old, Some(adapted)))?,
        None => to_old,
    };
    let order: Vec<usize> = (0..old.len()).collect();
    let input = CurveInput {
        queries: by(1),
        known: Some([&to(&new, &new, 1)?, &served]),
        ..CurveInput::new(new.matrix(), adapted.matrix(), &order, relevance, Distance::Cosine)
    };
    let cuts = 2;
    let options = CurveOptions { kept_cuts: cuts, ..options_for(relevance) };
    let at_cuts = curve(&input, &options, &quiet)?.per_query.at_cuts;
    let at_start = |of: &Vec<f32>| of.iter().step_by(cuts).map(|&value| f64::from(value)).collect();
    Ok(at_cuts.iter().map(|(metric, of)| (metric, at_start(of))).collect())
}

pub fn unit(of: &Matrix) -> Matrix {
    let mut unit = of.clone();
    unit.normalise_rows();
    unit
}

/// Makes vectors whose inner products are `(1 − w) cos(old, old) + w cos(new, new)`.
fn join_scores(old: &Matrix, new: &Matrix, weight: f64) -> Matrix {
    let (old, new) = (unit(old), unit(new));
    let (d_old, of) = (old.columns(), [(1.0 - weight).sqrt() as f32, weight.sqrt() as f32]);
    Matrix::from_fn(old.rows(), d_old + new.columns(), |row, column| {
        if column < d_old { of[0] * old.row(row)[column] } else { of[1] * new.row(row)[column - d_old] }
    })
}

/// Chooses the weight of both scores whose least gain is largest, over known and left-out items, and over mAP
/// and top-1 where there are labels.
fn fusion_weight(pairs: &Pairs) -> Result<f64> {
    let weights: Vec<f64> = (0..=10).map(|tenth| f64::from(tenth) / 10.0).collect();
    let quiet = Progress::default();
    let groups = match pairs.labels() {
        Some(labels) => labels.to_vec(),
        None => pseudo_classes(pairs.new_vectors().matrix(), 0, &Progress::default())?,
    };
    let mut gains = vec![[(); 4].map(|()| Vec::new()); weights.len()];
    for seed in 0..HOLD_OUTS {
        let parts = hold_out(pairs.len(), Some(&groups), 0.2, seed);
        let forward = ridge::fit(&pairs.select(&parts.fitted), &quiet)?.map;
        for (part, items) in [&parts.seen, &parts.unseen].into_iter().enumerate() {
            let held_out = pairs.select(&items[..items.len().min(750)]);
            let (old, new) = (held_out.old().matrix(), held_out.new_vectors().matrix());
            let adapted = forward.outputs(old, None)?;
            let right = match held_out.labels() {
                Some(_) => None,
                None => Some(nearest(new, None, DEPTH, Distance::Cosine, &quiet)?),
            };
            let relevance = match &right {
                Some(right) => Relevance::Judgements(right),
                None => Relevance::Labels { gallery: held_out.labels().unwrap_or_default(), queries: None },
            };
            let metrics = if right.is_some() { vec![Metric::recall_at(DEPTH)] } else { vec![MAP, TOP1] };
            let mut today = Vec::new();
            for (weight, gains) in weights.iter().zip(&mut gains) {
                let gallery = join_scores(old, &adapted, *weight);
                let ranks = rank_queries(&gallery, &join_scores(old, new, *weight), relevance, true)?;
                let values: Vec<f64> = metrics.iter().map(|&metric| mean(&ranks.values[metric])).collect();
                if today.is_empty() {
                    today.clone_from(&values);
                }
                for (at, (value, today)) in values.iter().zip(&today).enumerate() {
                    gains[2 * part + at].push(value - today);
                }
            }
        }
    }
    let least = |of: &[Vec<f64>; 4]| {
        of.iter().filter(|gains| !gains.is_empty()).map(|gains| mean(gains)).fold(f64::INFINITY, f64::min)
    };
    let larger =
        |best: usize, next: usize| if least(&gains[next]) > least(&gains[best]) { next } else { best };
    Ok((0..weights.len()).reduce(larger).map_or(0.0, |best| weights[best]))
}

/// Returns the mean gain of queries, and half of its 95 % interval.
pub fn gain_and_half(values: &[f64], today: &[f64]) -> (f64, f64) {
    let apart: Vec<f64> = values.iter().zip(today).map(|(a, b)| a - b).collect();
    let spread = mean_sd(&apart);
    spread.map_or((0.0, 0.0), |of| (of.mean, 1.96 * of.sd / (of.count as f64).sqrt()))
}

pub fn mean(values: &[f64]) -> f64 {
    mean_sd(values).map_or(f64::NAN, |spread| spread.mean)
}

/// Measures one split of every gallery of a set.
fn measure(pairs: &Pairs, queries: Option<&FitQueries>, grounds: &[Ground], rows: &mut [Row]) -> Result<()> {
    let quiet = Progress::default();
    let parameters = FitParameters { queries: queries.cloned(), ..FitParameters::default() };
    let choice = fit_bridge(pairs, &parameters, &quiet)?.choice;
    let weight = fusion_weight(pairs)?;
    let parameters = FitParameters { method: Method::Ridge, compare: false, ..parameters };
    let served = fit_adapter(pairs, None, &parameters, &NetworkOptions::default(), &quiet)?.adapter;
    let chosen_weight = served.fusion.as_ref().map_or(0.0, |fusion| fusion.weight);
    let forward = ridge::fit(pairs, &quiet)?.map;
    let rows_of_choice = choice.as_ref().map_or(&[][..], |choice| &choice.rows);
    // The bridge by the criterion alone shows what guarding first results costs and saves.
    let criterion = choice.as_ref().map(|choice| choice.criterion.clone()).unwrap_or_default();
    let low = |row: &BridgeRow| {
        let own = row.gains.iter().filter(|of| of.metric == criterion);
        own.map(|of| of.gain - of.error).fold(f64::INFINITY, f64::min)
    };
    let by_criterion = rows_of_choice
        .iter()
        .reduce(|best, row| if low(row) > low(best) { row } else { best })
        .filter(|row| low(row) > 0.0);
    let kept = choice.as_ref().and_then(BridgeChoice::kept_row);
    let alone = choice.as_ref().and_then(BridgeChoice::without_old);
    let made = |row: Option<&BridgeRow>| {
        row.map(|row| fit_bridge_of(pairs, row.method, row.share, 0, &quiet)).transpose()
    };
    let bridges = [made(kept)?, made(by_criterion)?, made(alone)?];
    for (ground, of) in grounds.iter().zip(rows) {
        let (old, new) = (ground.old.matrix(), ground.new.matrix());
        let own = ground.queries.is_none();
        let (by_old, by_new) = ground.queries.as_ref().map_or((old, new), |[old, new]| (old, new));
        let relevance = match &ground.qrels {
            Some(qrels) => Relevance::Judgements(qrels),
            None => Relevance::Labels { gallery: &ground.labels, queries: None },
        };
        let metrics = metrics_of(ground);
        let unit_old = unit(old);
        let today = rank_queries(&unit_old, by_old, relevance, own)?.values;
        let mut values = Vec::new();
        for bridge in &bridges {
            values.push(match bridge {
                None => today.clone(),
                Some(bridge) => {
                    rank_queries(&unit_old, &bridge.queries(Some(by_old), by_new)?, relevance, own)?.values
                }
            });
        }
        values.push(measure_fused(ground, &served, relevance)?);
        let adapted = forward.outputs(old, None)?;
        let blended = (join_scores(old, &adapted, weight), join_scores(by_old, by_new, weight));
        values.push(rank_queries(&blended.0, &blended.1, relevance, own)?.values);
        values.push(rank_queries(&unit(&adapted), by_new, relevance, own)?.values);
        values.push(rank_queries(&unit(new), by_new, relevance, own)?.values);
        of.chosen.push(match kept {
            Some(row) => {
                let g = if row.method == Method::Ridge { "ridge" } else { "rotation" };
                format!("{g} {}, {chosen_weight}", row.share)
            }
            None => format!("none, {chosen_weight}"),
        });
        of.today = metrics.iter().map(|&metric| mean(&today[metric])).collect();
        for (values, gains) in values.iter().zip(&mut of.gains) {
            let gain = |&metric: &Metric| gain_and_half(&values[metric], &today[metric]);
            gains.push(metrics.iter().map(gain).collect());
        }
    }
    Ok(())
}

/// Names galleries in which a way of serving is below doing nothing beyond its interval, by any split and
/// metric.
fn galleries_below(rows: &[Row], served: usize) -> Vec<String> {
    let of_row =
        |row: &&Row| row.gains[served].iter().flat_map(|of| of.iter()).any(|(gain, half)| *gain < -half);
    rows.iter().filter(of_row).map(|row| row.name.clone()).collect()
}

/// Names galleries in which a way of serving is below doing nothing and below the new model, beyond its
/// interval.
fn galleries_below_both(rows: &[Row], served: usize) -> Vec<String> {
    let of_row = |row: &&Row| {
        let both = row.gains[served].iter().flatten().zip(row.gains[NEW_MODEL].iter().flatten());
        both.into_iter().any(|((gain, half), (end, _))| gain + half < end.min(0.0))
    };
    rows.iter().filter(of_row).map(|row| row.name.clone()).collect()
}

fn metrics_of(ground: &Ground) -> Vec<Metric> {
    if ground.qrels.is_some() { vec![Metric::ndcg_at(DEPTH)] } else { vec![MAP, TOP1] }
}

fn print(rows: &[Row]) {
    println!(
        "| gallery, known of pairs | map and a, weight of fused searches | doing nothing | {} |",
        SERVED.join(" | ")
    );
    println!("|---|---|---|{}", "---|".repeat(SERVED.len()));
    for row in rows {
        let today: Vec<String> = row.today.iter().map(|value| format!("{value:.1}")).collect();
        let cell = |gains: &Vec<Gains>| {
            let of_metric = |metric: usize| {
                let mean_of = |part: fn(&(f64, f64)) -> f64| {
                    mean(&gains.iter().map(|gain| part(&gain[metric])).collect::<Vec<_>>())
                };
                format!("{:+.1} ± {:.1}", mean_of(|gain| gain.0), mean_of(|gain| gain.1))
            };
            (0..row.today.len()).map(of_metric).collect::<Vec<_>>().join(", ")
        };
        let mut chosen = row.chosen.clone();
        chosen.dedup();
        let cells: Vec<String> = row.gains.iter().map(cell).collect();
        println!("| {} | {} | {} | {} |", row.name, chosen.join("; "), today.join(", "), cells.join(" | "));
    }
    println!(
        "\n| by label | mAP: mean | worst | up | hurt | of the switch | top-1: mean | worst | up | hurt |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    let of_labels: Vec<&Row> = rows.iter().filter(|row| row.today.len() == 2).collect();
    for (served, name) in SERVED.iter().enumerate() {
        let mut cells = Vec::new();
        for metric in 0..2 {
            let all = || of_labels.iter().flat_map(|row| &row.gains[served]).map(|of| of[metric]);
            let gains: Vec<f64> = all().map(|(gain, _)| gain).collect();
            let worst = gains.iter().copied().fold(f64::INFINITY, f64::min);
            let up = all().filter(|(gain, half)| gain > half).count();
            let hurt = all().filter(|(gain, half)| *gain < -half).count();
            cells.push(format!("{:+.1} | {worst:+.1} | {up} of {} | {hurt}", mean(&gains), gains.len()));
            if metric == 0 {
                let switch: Vec<f64> =
                    of_labels.iter().flat_map(|row| &row.gains[SWITCH]).map(|of| of[0].0).collect();
                cells.push(format!("{:.0} %", 100.0 * mean(&gains) / mean(&switch)));
            }
        }
        println!("| {name} | {} |", cells.join(" | "));
    }
    for (served, name) in SERVED.iter().enumerate() {
        let below = galleries_below(rows, served);
        println!(
            "\n{name}: beyond its interval below doing nothing in {} of {} galleries{}{}.",
            below.len(),
            rows.len(),
            if below.is_empty() { "" } else { ": " },
            below.join("; ")
        );
    }
}
