//! `cargo lab study whole [SPLITS [FOLDER [SET…]]]`: bridges and fusions that are chosen by what held-out pairs
//! find among everything else in the gallery, beside those that are chosen by what they find among themselves.
//!
//! Every test part of a set is a gallery. Some of its items are pairs; the others ask for each other, which no
//! choice has seen. Nothing is native, as at the switch. Without labels, both are chosen by agreement with what
//! the new model finds among the pairs, and measured by label all the same.

use rehang_core::adapter;
use rehang_core::curve::{MAP, Relevance, TOP1};
use rehang_core::{Matrix, Pairs, Progress, Result};
use rehang_fit::folds::folds;
use rehang_fit::{FitParameters, Method, NetworkOptions, OtherItems, fit_adapter, fit_bridge};

use crate::studies::bridge::{cosine, gain_and_half, mean, measure_fused, rank_queries, unit};
use crate::studies::papers::units::SETS;
use crate::studies::regret::{Ground, labelled, parse_arguments};

/// Number of pairs that are drawn of a gallery; of a small one, this part of its items.
const PAIRS: usize = 600;
const PART: f64 = 0.25;

/// Numbers of pairs that a bridge without labels is chosen by, where they are half of a gallery at most.
const NUMBERS_OF_PAIRS: [usize; 6] = [75, 100, 150, 300, 600, 1200];

/// Ways of serving, in the order of the table; the first two are chosen among held-out pairs.
const SERVED: [&str; 7] = [
    "bridge",
    "fused",
    "bridge by the whole gallery",
    "fused by the whole gallery",
    "bridge without labels",
    "fused without labels",
    "mixed",
];
const MIXED: usize = 6;

/// Gains of one way of serving over doing nothing in one gallery by one split: mAP and top-1, each with half of
/// its 95 % interval.
pub type Gains = [(f64, f64); 2];

/// Prints the table, and what it says in all.
pub fn run(arguments: &[&str]) -> Result<()> {
    let (splits, folder, sets) = parse_arguments(arguments, 3, &SETS)?;
    println!(
        "| gallery | chosen: share, weight; by the whole gallery; without labels | doing nothing | {} |",
        SERVED.join(" | ")
    );
    println!("|---|---|---|{}", "---|".repeat(SERVED.len()));
    let mut all: Vec<[Gains; SERVED.len()]> = Vec::new();
    let mut by_pairs = vec![Vec::new(); NUMBERS_OF_PAIRS.len()];
    for set in sets {
        for ground in labelled(&folder, set)?.grounds {
            for (pairs, gains) in NUMBERS_OF_PAIRS.iter().zip(&mut by_pairs) {
                if 2 * pairs <= ground.old.len() {
                    for split in 0..splits {
                        gains.push([measure_bridge(&ground, split, *pairs)?]);
                    }
                }
            }
            let of_splits: Vec<Measured> =
                (0..splits).map(|split| measure(&ground, split)).collect::<Result<_>>()?;
            let chosen: Vec<&str> = of_splits.iter().map(|of| of.chosen.as_str()).collect();
            let today: Vec<[f64; 2]> = of_splits.iter().map(|of| of.today).collect();
            let gains: Vec<&[Gains]> = of_splits.iter().map(|of| of.gains.as_slice()).collect();
            println!("{}", line(&format!("{set} {}", ground.name), &chosen.join("<br>"), &today, &gains));
            all.extend(of_splits.into_iter().map(|of| of.gains));
        }
    }
    print!("\n{}", summary(&SERVED, MIXED, &all));
    println!("\nBridges without labels, by the number of pairs:\n");
    println!(
        "| pairs | galleries and splits | mAP: mean | worst | up | hurt | top-1: mean | worst | up | hurt |"
    );
    println!("|--:|--:|{}", "--:|".repeat(8));
    for (pairs, gains) in NUMBERS_OF_PAIRS.iter().zip(&by_pairs) {
        let [of_map, of_top1] = [0, 1].map(|metric| in_all(gains, 0, metric));
        println!("| {pairs} | {} | {of_map} | {of_top1} |", gains.len());
    }
    Ok(())
}

/// Makes the line of a gallery: what was chosen, and means over its splits of what doing nothing finds and of
/// what each way of serving gains, mAP before top-1.
pub fn line(name: &str, chosen: &str, today: &[[f64; 2]], gains: &[&[Gains]]) -> String {
    let today = [0, 1].map(|metric| {
        let values: Vec<f64> = today.iter().map(|of| of[metric]).collect();
        format!("{:.1}", mean(&values))
    });
    let cell = |served: usize| {
        let of_metric = |metric: usize| {
            let part = |part: fn(&(f64, f64)) -> f64| {
                mean(&gains.iter().map(|of| part(&of[served][metric])).collect::<Vec<_>>())
            };
            format!("{:+.1} ± {:.1}", part(|gain| gain.0), part(|gain| gain.1))
        };
        format!("{}, {}", of_metric(0), of_metric(1))
    };
    let ways = gains.first().copied().unwrap_or_default().len();
    let cells: Vec<String> = (0..ways).map(cell).collect();
    format!("| {name} | {chosen} | {} | {} |", today.join(", "), cells.join(" | "))
}

/// Whether a way of serving is by more than one standard error below the better of mixed searches and doing
/// nothing. `gains` has those of every way.
pub fn is_behind(gains: &[Gains], served: usize, mixed: usize, metric: usize) -> bool {
    let (gain, half) = gains[served][metric];
    // Half of an interval is two standard errors.
    gain + half / 1.96 < gains[mixed][metric].0.max(0.0)
}

/// Makes the table of what ways of serving gain in all. `all` has the gains of every way, for each gallery and
/// split; `mixed` is the place of mixed searches among the ways.
pub fn summary<R: AsRef<[Gains]>>(names: &[&str], mixed: usize, all: &[R]) -> String {
    let mut text = format!(
        "| | mAP: mean | worst | up | hurt | below the better of mixed and nothing | top-1: mean | worst | up | hurt | below |\n|---|{}\n",
        "--:|".repeat(10)
    );
    let all: Vec<&[Gains]> = all.iter().map(AsRef::as_ref).collect();
    for (served, name) in names.iter().enumerate() {
        let of_metric = |metric: usize| {
            let below = all.iter().filter(|gains| is_behind(gains, served, mixed, metric)).count();
            format!("{} | {below}", in_all(&all, served, metric))
        };
        text += &format!("| {name} | {} | {} |\n", of_metric(0), of_metric(1));
    }
    text
}

/// Makes the cells of one way of serving by one metric: the mean gain, the worst, how many are up and hurt.
fn in_all<R: AsRef<[Gains]>>(all: &[R], served: usize, metric: usize) -> String {
    let gains: Vec<(f64, f64)> = all.iter().map(|gains| gains.as_ref()[served][metric]).collect();
    let worst = gains.iter().map(|gain| gain.0).fold(f64::INFINITY, f64::min);
    let up = gains.iter().filter(|(gain, half)| gain > half).count();
    let hurt = gains.iter().filter(|(gain, half)| *gain < -half).count();
    let average = mean(&gains.iter().map(|gain| gain.0).collect::<Vec<_>>());
    format!("{average:+.2} | {worst:+.1} | {up} of {} | {hurt}", gains.len())
}

/// Deals the items of a gallery out for a split: their order, and how many of them are pairs.
pub fn deal(items: usize, split: u64) -> (Vec<usize>, usize) {
    let place = folds(items, items, split);
    let mut order: Vec<usize> = (0..items).collect();
    order.sort_by_key(|&item| place[item]);
    (order, PAIRS.min((PART * items as f64) as usize))
}

/// Results of one gallery by one split.
struct Measured {
    chosen: String,
    /// mAP and top-1 of doing nothing.
    today: [f64; 2],
    gains: [Gains; SERVED.len()],
}

/// Measures what a bridge brings that is chosen by this many pairs without labels.
fn measure_bridge(ground: &Ground, split: u64, pairs: usize) -> Result<Gains> {
    let (order, _) = deal(ground.old.len(), split);
    let (of_pairs, rest) = order.split_at(pairs);
    let (old, new) = (cosine(&ground.old)?, cosine(&ground.new)?);
    let labels: Vec<i64> = rest.iter().map(|&row| ground.labels[row]).collect();
    let pairs = Pairs::new(old.select(of_pairs), new.select(of_pairs), None, None)?;
    let Some(bridge) = fit_bridge(&pairs, &FitParameters::default(), &Progress::default())?.bridge else {
        return Ok([(0.0, 0.0); 2]);
    };
    let (old, new) = (old.select(rest), new.select(rest));
    let relevance = Relevance::Labels { gallery: &labels, queries: None };
    let gallery = unit(old.matrix());
    let rank = |queries: &Matrix| rank_queries(&gallery, queries, relevance, true);
    let today = rank(old.matrix())?.values;
    let bridged = rank(&bridge.queries(Some(old.matrix()), new.matrix())?)?.values;
    Ok([MAP, TOP1].map(|metric| gain_and_half(&bridged[metric], &today[metric])))
}

fn measure(ground: &Ground, split: u64) -> Result<Measured> {
    let quiet = Progress::default();
    let (order, count) = deal(ground.old.len(), split);
    let labels = |rows: &[usize]| rows.iter().map(|&row| ground.labels[row]).collect::<Vec<i64>>();
    let (of_pairs, rest) = order.split_at(count);
    let (old, new) = (cosine(&ground.old)?, cosine(&ground.new)?);
    let pairs_with =
        |labels: Option<Vec<i64>>| Pairs::new(old.select(of_pairs), new.select(of_pairs), labels, None);
    let (pairs, unlabelled) = (pairs_with(Some(labels(of_pairs)))?, pairs_with(None)?);
    let rest = Ground {
        name: ground.name.clone(),
        old: old.select(rest),
        new: new.select(rest),
        queries: None,
        labels: labels(rest),
        qrels: None,
    };
    let others = OtherItems { old: rest.old.matrix().clone(), labels: rest.labels.clone(), judged: None };
    let relevance = Relevance::Labels { gallery: &rest.labels, queries: None };
    let (unit_old, by_old, by_new) = (unit(rest.old.matrix()), rest.old.matrix(), rest.new.matrix());
    let rank = |gallery: &Matrix, queries: &Matrix| rank_queries(gallery, queries, relevance, true);
    let today = rank(&unit_old, by_old)?.values;
    let (mut served, mut chosen) = (Vec::new(), Vec::new());
    let mut mixed = None;
    for (pairs, others) in [(&pairs, None), (&pairs, Some(others)), (&unlabelled, None)] {
        let parameters = FitParameters { others, ..FitParameters::default() };
        let fitted = fit_bridge(pairs, &parameters, &quiet)?;
        let share = fitted.bridge.as_ref().map_or(0.0, |bridge| bridge.share);
        served.push(match fitted.bridge {
            Some(bridge) => rank(&unit_old, &bridge.queries(Some(by_old), by_new)?)?.values,
            None => today.clone(),
        });
        let parameters = FitParameters { method: Method::Ridge, compare: false, ..parameters };
        let adapter = fit_adapter(pairs, None, &parameters, &NetworkOptions::default(), &quiet)?.adapter;
        chosen.push(format!("{share} {}", adapter.fusion.as_ref().map_or(0.0, |fusion| fusion.weight)));
        served.push(measure_fused(&rest, &adapter, relevance)?);
        if mixed.is_none() {
            let adapted = adapter::apply(&adapter, &rest.old, None, &quiet)?.vectors;
            mixed = Some(rank(&unit(adapted.matrix()), by_new)?.values);
        }
    }
    served.extend(mixed);
    let gains = |values: &rehang_core::curve::ByMetric<Vec<f64>>| {
        [MAP, TOP1].map(|metric| gain_and_half(&values[metric], &today[metric]))
    };
    Ok(Measured {
        chosen: chosen.join("; "),
        today: [MAP, TOP1].map(|metric| mean(&today[metric])),
        gains: std::array::from_fn(|place| gains(&served[place])),
    })
}
