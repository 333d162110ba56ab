//! `cargo lab study forecast [SPLITS [FOLDER [SET…]]]`: forecasts of the whole gallery, against what is true
//! of it.
//!
//! A part of a set is a gallery whose new vectors are all known. A forecast is made from a random sample of
//! its items, and beside it today's: the curve among the sample's own items. Truth is the exact curve of all
//! items. Of the set with judged queries, each sample is asked by half of the queries, and the truth by all.

use std::collections::BTreeMap;
use std::path::Path;

use rand::rand_core::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rehang_core::adapter;
use rehang_core::curve::{
    ByMetric, Curve, CurveInput, CurveOptions, DoNothing, ENOUGH, ForecastInput, ForecastQueries, MAP,
    Metric, Relevance, TOP1, curve, forecast,
};
use rehang_core::order::{OrderInput, Policy, order};
use rehang_core::statistics::Interval;
use rehang_core::{Distance, Matrix, Pairs, Progress, Result, Vectors};
use rehang_fit::{FitParameters, Method, NetworkOptions, fit_adapter};
use rehang_upgrade::Until;

use crate::studies::papers::units::{Part, Set};
use crate::studies::regret::{JUDGED, JUDGED_PAIRS, JudgedSet, parse_arguments};

const SETS: [&str; 5] = ["img_omniglot", "img_caltech101", "text_clinc150", "text_banking77", "toy_digits"];
/// Number of pairs that the map is fitted on.
const PAIRS: usize = 2000;
const SAMPLES: [usize; 3] = [200, 500, 1000];
/// Largest part of its gallery that a sample is, in percent.
const PART_MAX: usize = 60;
/// Points of the forecast that are compared, each with its name.
const POINTS: [(usize, &str); 5] = [(0, "switch"), (5, "25 %"), (10, "50 %"), (15, "75 %"), (20, "end")];
const DEPTH: usize = 10;
/// Share of a part's intervals that have to hold the truth, in percent.
const PART_MIN: f64 = 85.0;
/// Number of resamples of today's intervals.
const RESAMPLES: usize = 200;

/// Promise of one number, by one split of one part, beside the truth.
struct Promise {
    part: String,
    /// Difference from the truth, in points; positive where the promise is above it.
    off: f64,
    half: f64,
    is_inside: bool,
}

/// Promises by sample size and by what they are of: those of the forecast, then today's.
type Promises = BTreeMap<(usize, String), [Vec<Promise>; 2]>;

/// Notes what was promised: `which` is 0 for the forecast and 1 for today's.
fn promise(
    promises: &mut Promises,
    (size, part, what): (usize, &str, String),
    which: usize,
    at: Interval,
    truth: f64,
) {
    promises.entry((size, what)).or_default()[which].push(Promise {
        part: part.to_owned(),
        off: at.estimate - truth,
        half: (at.high - at.low) / 2.0,
        is_inside: at.low <= truth && truth <= at.high,
    });
}

/// Share that was promised to be enough, beside the truth.
struct Enough {
    off: f64,
    is_inside: bool,
    /// Whether a run that ends at the upper end of the range, as `--until "98% of new"` does, has less than
    /// [`ENOUGH`] of the quality at the end.
    is_short: bool,
}

/// Prints one table a sample size.
pub fn run(arguments: &[&str]) -> Result<()> {
    let all: Vec<&str> = SETS.into_iter().chain([JUDGED]).collect();
    let (splits, folder, sets) = parse_arguments(arguments, 5, &all)?;
    let is_judged = sets.contains(&JUDGED);
    let sets = sets.into_iter().filter(|set| *set != JUDGED);
    let mut promises = Promises::new();
    let mut enough = BTreeMap::new();
    for set in sets {
        let data = Set::read(&folder, set)?;
        let rows = shuffled(data.pairs.len(), 7);
        let pairs = data.pairs.select(&rows[..rows.len().min(PAIRS)]);
        let parameters = FitParameters { method: Method::Ridge, compare: false, ..FitParameters::default() };
        let fitted =
            fit_adapter(&pairs, None, &parameters, &NetworkOptions::default(), &Progress::default())?;
        for part in &data.parts {
            eprintln!("{set} {} …", part.name);
            let whole = Whole::new(set, part, &fitted.adapter)?;
            for size in SAMPLES.into_iter().filter(|size| 100 * size <= PART_MAX * whole.labels.len()) {
                for split in 0..splits {
                    whole.split(size, split, &mut promises, &mut enough)?;
                }
            }
        }
    }
    if is_judged {
        judged(&folder.join(JUDGED), splits, &mut promises)?;
    }
    print(&promises, &enough);
    Ok(())
}

/// Forecasts a gallery of the documents that are no pairs, by judgements.
fn judged(folder: &Path, splits: u64, promises: &mut Promises) -> Result<()> {
    eprintln!("{JUDGED} …");
    let set = JudgedSet::read(folder)?;
    let rows = shuffled(set.documents[0].rows(), 7);
    let (known, rest) = rows.split_at(JUDGED_PAIRS);
    let rows_by = |model: usize, rows: &[usize]| set.documents[model].select(rows);
    let vectors = |name: &str, rows: Matrix| Vectors::measured(name, Distance::Cosine, rows, name);
    let pairs =
        Pairs::new(vectors("old", rows_by(0, known))?, vectors("new", rows_by(1, known))?, None, None)?;
    let parameters = FitParameters { method: Method::Ridge, compare: false, ..FitParameters::default() };
    let fitted = fit_adapter(&pairs, None, &parameters, &NetworkOptions::default(), &Progress::default())?;
    let (old, new) = (vectors("old", rows_by(0, rest))?, rows_by(1, rest));
    let applied = adapter::apply(&fitted.adapter, &old, None, &Progress::default())?;
    let sigma: Vec<f64> = applied.variance.iter().map(|&value| f64::from(value)).collect();
    let (old, adapted) = (old.matrix(), applied.vectors.matrix());
    let items = rest.len();
    let input = OrderInput { items, sigma: Some(&sigma), vectors: Some(adapted), ..OrderInput::default() };
    let asked: Vec<usize> = (0..set.queries[0].rows()).collect();
    let metric = Metric::ndcg_at(DEPTH);
    // Exact curve of some documents by some queries.
    let curve_of = |rows: &[usize], order: &[usize], asked: &[usize], kept_cuts: usize| -> Result<Curve> {
        let documents: Vec<usize> = rows.iter().map(|&row| rest[row]).collect();
        let qrels = set.among(&documents, asked)?;
        let (native, adapted) = (new.select(rows), adapted.select(rows));
        let queries = set.queries[1].select(asked);
        let relevance = Relevance::Judgements(&qrels);
        let input = CurveInput::new(&native, &adapted, order, relevance, Distance::Cosine);
        let input = CurveInput { handicap: fitted.adapter.handicap, queries: Some(&queries), ..input };
        let options = CurveOptions { kept_cuts, metrics: vec![metric], ..CurveOptions::default() };
        curve(&input, &options, &Progress::default())
    };
    let all: Vec<usize> = (0..items).collect();
    for policy in [Policy::Random, Policy::Coverage] {
        let permutation = order(policy, &input)?.permutation;
        let truth = curve_of(&all, &permutation, &asked, 0)?;
        for size in SAMPLES.into_iter().filter(|size| 100 * size <= PART_MAX * items) {
            for split in 0..splits {
                let held_out = &shuffled(items, 100 + split)[..size];
                let asked = &shuffled(asked.len(), 500 + split)[..asked.len() / 2];
                let queries = [&set.queries[0], &set.queries[1]].map(|queries| queries.select(asked));
                let qrels = set.among(rest, asked)?;
                let made = forecast(
                    &ForecastInput {
                        old,
                        adapted,
                        items,
                        held_out,
                        native: &new.select(held_out),
                        order: (policy != Policy::Random).then_some(&permutation[..]),
                        queries: Some(ForecastQueries { new: &queries[1], old: Some(&queries[0]) }),
                        relevance: Relevance::Judgements(&qrels),
                        distance: Distance::Cosine,
                        old_distance: Distance::Cosine,
                        handicap: fitted.adapter.handicap,
                    },
                    DEPTH,
                    &Progress::default(),
                )?;
                let own = in_order(held_out, &permutation);
                let alone = curve_of(held_out, &own, asked, made.shares.len())?;
                let bands = alone.bands(RESAMPLES, 0.95, split)?;
                let line = truth.lines[metric].values();
                for (number, (point, said)) in POINTS.into_iter().enumerate() {
                    let what = format!("{metric}, {}, {number} {said}", policy.name());
                    let value = line[point * (line.len() - 1) / (made.shares.len() - 1)];
                    let at = [made.metrics[metric].at[point], bands[metric][point]];
                    for (which, at) in at.into_iter().enumerate() {
                        promise(promises, (size, JUDGED, what.clone()), which, at, value);
                    }
                }
            }
        }
    }
    Ok(())
}

fn shuffled(items: usize, seed: u64) -> Vec<usize> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut keyed: Vec<(u64, usize)> = (0..items).map(|item| (random.next_u64(), item)).collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, item)| item).collect()
}

/// Gives the order that a permutation of all items has on a sample, as rows of the sample.
fn in_order(sample: &[usize], permutation: &[usize]) -> Vec<usize> {
    let mut place = vec![0; permutation.len()];
    for (at, &item) in permutation.iter().enumerate() {
        place[item] = at;
    }
    let mut rows: Vec<usize> = (0..sample.len()).collect();
    rows.sort_by_key(|&row| place[sample[row]]);
    rows
}

/// Gallery whose truth is known.
struct Whole<'a> {
    name: String,
    old: &'a Matrix,
    new: &'a Matrix,
    adapted: Matrix,
    labels: &'a [i64],
    handicap: f64,
    distances: [rehang_core::Distance; 2],
    /// Orders, each with its permutation and its curve.
    orders: Vec<(&'static str, Vec<usize>, Curve)>,
    /// Agreement along a random order; below it today's.
    agreement_line: Vec<f64>,
    agreement_today: f64,
}

fn by_label(labels: &[i64]) -> Relevance<'_> {
    Relevance::Labels { gallery: labels, queries: None }
}

impl<'a> Whole<'a> {
    fn new(set: &str, part: &'a Part, fitted: &rehang_core::Adapter) -> Result<Self> {
        let adapted = adapter::apply(fitted, &part.old, None, &Progress::default())?;
        let sigma: Vec<f64> = adapted.variance.iter().map(|&value| f64::from(value)).collect();
        let mut whole = Self {
            name: format!("{set} {}", part.name),
            old: part.old.matrix(),
            new: part.new.matrix(),
            adapted: adapted.vectors.matrix().clone(),
            labels: &part.labels,
            handicap: fitted.handicap,
            distances: [part.old.space().distance, part.new.space().distance],
            orders: Vec::new(),
            agreement_line: Vec::new(),
            agreement_today: f64::NAN,
        };
        let input = OrderInput {
            items: sigma.len(),
            sigma: Some(&sigma),
            vectors: Some(&whole.adapted),
            ..OrderInput::default()
        };
        let all: Vec<usize> = (0..sigma.len()).collect();
        for policy in [Policy::Random, Policy::Coverage] {
            let permutation = order(policy, &input)?.permutation;
            let truth = whole.curve(&all, &permutation, by_label(whole.labels), 0)?;
            whole.orders.push((policy.name(), permutation, truth));
        }
        let of_agreement = whole.curve(&all, &shuffled(all.len(), 1), Relevance::Nearest(DEPTH), 0)?;
        whole.agreement_line = of_agreement.lines[Metric::agreement_at(DEPTH)].values().to_vec();
        whole.agreement_today = today_of(&of_agreement);
        Ok(whole)
    }

    /// Computes the exact curve of some of the items, in an order of these.
    fn curve(
        &self,
        rows: &[usize],
        order: &[usize],
        relevance: Relevance<'_>,
        kept_cuts: usize,
    ) -> Result<Curve> {
        let rows_of = |vectors: &Matrix| vectors.select(rows);
        let (old, new, adapted) = (rows_of(self.old), rows_of(self.new), rows_of(&self.adapted));
        let [old_distance, distance] = self.distances;
        let today = DoNothing { gallery: &old, queries: None, distance: old_distance };
        let input = CurveInput::new(&new, &adapted, order, relevance, distance);
        let input = CurveInput { handicap: self.handicap, do_nothing: Some(today), ..input };
        curve(&input, &CurveOptions { kept_cuts, ..CurveOptions::default() }, &Progress::default())
    }

    /// Forecasts from one sample: the whole gallery, and as today.
    fn split(
        &self,
        size: usize,
        split: u64,
        promises: &mut Promises,
        enough: &mut BTreeMap<(usize, String), Vec<Option<Enough>>>,
    ) -> Result<()> {
        let held_out = &shuffled(self.labels.len(), 100 + split)[..size];
        let native = self.new.select(held_out);
        let [old_distance, distance] = self.distances;
        let input = ForecastInput {
            old: self.old,
            adapted: &self.adapted,
            items: self.labels.len(),
            held_out,
            native: &native,
            order: None,
            queries: None,
            relevance: by_label(self.labels),
            distance,
            old_distance,
            handicap: self.handicap,
        };
        let labels: Vec<i64> = held_out.iter().map(|&item| self.labels[item]).collect();
        let progress = Progress::default();
        let mut promise = |what: String, which: usize, at: Interval, truth: f64| {
            promise(promises, (size, &self.name, what), which, at, truth);
        };
        for (name, permutation, truth) in &self.orders {
            let ordered = (*name != Policy::Random.name()).then_some(&permutation[..]);
            let made = forecast(&ForecastInput { order: ordered, ..input }, DEPTH, &progress)?;
            let own = in_order(held_out, permutation);
            let alone = self.curve(held_out, &own, by_label(&labels), made.shares.len())?;
            let bands: ByMetric<Vec<Interval>> = alone.bands(RESAMPLES, 0.95, split)?;
            for (metric, of) in made.metrics.iter() {
                let line = truth.lines[metric].values();
                let cut = |point: usize| point * (line.len() - 1) / (made.shares.len() - 1);
                for (number, (point, said)) in POINTS.into_iter().enumerate() {
                    let what = format!("{metric}, {name}, {number} {said}");
                    promise(what.clone(), 0, of.at[point], line[cut(point)]);
                    promise(what, 1, bands[metric][point], line[cut(point)]);
                }
                let level = ENOUGH * truth.lines[metric].end();
                let last = line.iter().rposition(|&value| value < level).map_or(0, |below| below + 1);
                let needed = last as f64 / (line.len() - 1) as f64;
                let told = of.enough.map(|share| Enough {
                    off: (share.estimate - needed).abs(),
                    is_inside: share.low <= needed && needed <= share.high,
                    is_short: line[Until::Fraction(share.high).target(permutation.len() as u64) as usize]
                        < level,
                });
                enough.entry((size, format!("{metric}, {name}"))).or_default().push(told);
            }
        }
        let relevance = Relevance::Nearest(DEPTH);
        let made = forecast(&ForecastInput { relevance, ..input }, DEPTH, &progress)?;
        let own: Vec<usize> = (0..size).collect();
        let alone = self.curve(held_out, &own, relevance, made.shares.len())?;
        let metric = Metric::agreement_at(DEPTH);
        let made_metric = &made.metrics[metric];
        let name = |what: &str| format!("{metric}, {what}");
        let band = alone.bands(RESAMPLES, 0.95, split)?;
        let last = self.agreement_line.len() - 1;
        // Agreement of the new model with itself, at the end, needs no comparison.
        for (number, (point, said)) in POINTS.into_iter().take(4).enumerate() {
            let truth = self.agreement_line[point * last / (made.shares.len() - 1)];
            promise(name(&format!("{number} {said}")), 0, made_metric.at[point], truth);
            promise(name(&format!("{number} {said}")), 1, band[metric][point], truth);
        }
        if let Some(today) = made_metric.do_nothing {
            let value = today_of(&alone);
            promise(name("do nothing"), 0, today, self.agreement_today);
            let alone = Interval { estimate: value, low: value, high: value };
            promise(name("do nothing"), 1, alone, self.agreement_today);
        }
        Ok(())
    }
}

/// Prints the parts of which fewer intervals hold the truth than [`PART_MIN`].
fn print_parts(promises: &Promises) {
    println!("\n| n | of | part | covered, % | off | its spread | half-width |");
    println!("|--:|---|---|--:|--:|--:|--:|");
    let (mut all, mut below) = (0, 0);
    for ((size, what), [whole, _]) in promises {
        let mut parts: BTreeMap<&str, Vec<&Promise>> = BTreeMap::new();
        for one in whole {
            parts.entry(&one.part).or_default().push(one);
        }
        for (part, of_part) in parts {
            let mean = |of: &dyn Fn(&Promise) -> f64| {
                of_part.iter().map(|one| of(one)).sum::<f64>() / of_part.len() as f64
            };
            let covered = 100.0 * mean(&|one| f64::from(u8::from(one.is_inside)));
            all += 1;
            if covered < PART_MIN {
                below += 1;
                let off = mean(&|one| one.off);
                let spread = mean(&|one| (one.off - off).powi(2)).sqrt();
                let half = mean(&|one| one.half);
                println!("| {size} | {what} | {part} | {covered:.0} | {off:+.1} | {spread:.1} | {half:.1} |");
            }
        }
    }
    println!("\nOf {all} parts, each by size, metric and share, {below} are below {PART_MIN} %.");
}

/// Agreement of the search as it is today.
fn today_of(curve: &Curve) -> f64 {
    let metric = Metric::agreement_at(DEPTH);
    curve.do_nothing.as_ref().map_or(f64::NAN, |today| today.evaluation.values[metric])
}

fn print(promises: &Promises, enough: &BTreeMap<(usize, String), Vec<Option<Enough>>>) {
    println!(
        "| n | of | bias | covered, % | worst part, % | half-width | among held-out: bias | covered, % | half-width |"
    );
    println!("|--:|---|--:|--:|--:|--:|--:|--:|--:|");
    for ((size, what), [whole, alone]) in promises {
        let cells = |all: &[Promise]| {
            let mean = |of: &dyn Fn(&Promise) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
            [
                mean(&|one| one.off),
                100.0 * mean(&|one| f64::from(u8::from(one.is_inside))),
                mean(&|one| one.half),
            ]
        };
        let mut parts: BTreeMap<&str, Vec<bool>> = BTreeMap::new();
        for one in whole {
            parts.entry(&one.part).or_default().push(one.is_inside);
        }
        let share = |inside: &Vec<bool>| {
            100.0 * inside.iter().filter(|&&inside| inside).count() as f64 / inside.len() as f64
        };
        let worst = parts.values().map(share).fold(100.0, f64::min);
        let ([bias, covered, half], [bias_alone, covered_alone, half_alone]) = (cells(whole), cells(alone));
        println!(
            "| {size} | {what} | {bias:+.1} | {covered:.0} | {worst:.0} | {half:.1} | {bias_alone:+.1} | {covered_alone:.0} | {half_alone:.1} |"
        );
    }
    print_parts(promises);
    println!(
        "\n| n | share that reaches {:.0} % of the end | told, % | median off, points | covered, % | a run that ends there falls short, % |",
        100.0 * ENOUGH
    );
    println!("|--:|---|--:|--:|--:|--:|");
    for ((size, what), all) in enough {
        let mut off: Vec<f64> = all.iter().flatten().map(|one| 100.0 * one.off).collect();
        off.sort_unstable_by(f64::total_cmp);
        let told = off.len();
        let middle = off.get(told / 2).map_or("–".into(), |off| format!("{off:.1}"));
        let part = |of: fn(&Enough) -> bool| match all.iter().flatten().filter(|one| of(one)).count() {
            _ if told == 0 => "–".to_owned(),
            count => format!("{:.0}", 100.0 * count as f64 / told as f64),
        };
        println!(
            "| {size} | {what} | {:.0} | {middle} | {} | {} |",
            100.0 * told as f64 / all.len() as f64,
            part(|one| one.is_inside),
            part(|one| one.is_short),
        );
    }
    let all: Vec<&Enough> = enough.values().flatten().flatten().collect();
    let short = all.iter().filter(|one| one.is_short).count();
    println!("\n{short} of {} runs that end at the upper end fall short.", all.len());
    for metric in [MAP, TOP1, Metric::ndcg_at(DEPTH), Metric::agreement_at(DEPTH)] {
        let of_metric = promises.iter().filter(|((_, what), _)| what.starts_with(&format!("{metric},")));
        let all: Vec<&Promise> = of_metric.flat_map(|(_, [whole, _])| whole).collect();
        let inside = all.iter().filter(|one| one.is_inside).count();
        println!("{metric}: {inside} of {} intervals hold the truth.", all.len());
    }
}
