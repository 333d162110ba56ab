//! Units on the vector sets of `../shared/data`: every method in every order that applies.
//!
//! Every (set, seed, method) is a unit of work whose numbers are appended to
//! `laboratory/bench/runs/results/units.jsonl` as soon as they are known; a unit that is there already is not
//! done again.

use std::io::Write as _;
use std::path::Path;

use rehang_core::adapter::{self, Adapter, true_errors};
use rehang_core::curve::{
    Curve, CurveInput, CurveOptions, MAP, Metric, Relevance, TOP1, TOP5, curve, evaluate,
};
use rehang_core::order::{Order, OrderInput, Policy, order};
use rehang_core::statistics::kendall_tau_b;
use rehang_core::{Distance, Error, Head, HeadKind, Labels, Matrix, Pairs, Progress, Result, Vectors};
use rehang_files::VectorSource;
use rehang_fit::geometry::GeometryKind;
use rehang_fit::{FitParameters, LossParts, Method, NetworkOptions, UncertaintySource, fit_adapter};
use serde::{Deserialize, Serialize};

const UNITS: &str = "laboratory/bench/runs/results/units.jsonl";
pub const SETS: [&str; 5] =
    ["img_omniglot", "img_caltech101", "text_clinc150", "text_banking77", "toy_digits"];
/// Name of the order of the rows that say what the handicap is worth.
const PLAIN: &str = "coverage, no handicap";
pub const PARTS: [&str; 2] = ["seen", "unseen"];
const SEEDS: u64 = 3;

/// Methods that are fitted, by their names in the table.
pub const METHODS: [&str; 11] = [
    "do-nothing",
    "procrustes",
    "ridge",
    "auto",
    "fct",
    "disc",
    "l2+disc",
    "label-free",
    "disc+uncertainty",
    "fastfill-reference",
    "fastfill",
];
/// Networks with side information as a second input, as FCT has it, on the sets that have some.
pub const WITH_SIDE: [&str; 2] = ["fct+side", "fastfill-reference+side"];
pub const SETS_WITH_SIDE: [&str; 2] = ["img_omniglot", "img_caltech101"];
/// Published networks that are trained for more steps, by the factor behind the name.
pub const WITH_STEPS: [&str; 4] = ["fct ×4", "fct ×16", "fastfill-reference ×4", "fastfill-reference ×16"];
pub const SETS_WITH_STEPS: [&str; 2] = ["img_omniglot", "toy_digits"];
/// Epochs of the published networks.
const EPOCHS: usize = 80;
/// Methods that keep curves on the sets with side information, in these orders. Both of [`WITH_SIDE`] keep
/// them too; the methods here are those that table 5 compares.
const DRAWN: [&str; 6] = ["fct", "disc", "l2+disc", "label-free", "disc+uncertainty", "fastfill-reference"];
const DRAWN_ORDERS: [&str; 2] = ["random", "sigma"];
/// Name of the order by FastFill's own loss (3), which is not known beforehand either.
pub const LOSS: &str = "oracle (3)";
/// Shares of the gallery, in percent, at which flips are kept.
pub const FLIPS_AT: [usize; 5] = [10, 25, 50, 75, 100];

/// Numbers of one set, seed, method, part and order.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    pub set: String,
    pub seed: u64,
    pub method: String,
    pub part: String,
    pub order: String,
    /// Method that was kept, for `auto`.
    pub kept: String,
    /// Top-1 and mAP: mean over all fractions, at the start, the lowest, at the end.
    pub area: [f64; 2],
    pub start: [f64; 2],
    pub minimum: [f64; 2],
    pub end: [f64; 2],
    /// Kendall τ-b of σ² with the true squared error; none where σ² is constant.
    pub tau: Option<f64>,
    /// Kendall τ-b of σ² with FastFill's L_l2, L_disc and their sum (3). Networks with a σ head and the
    /// default have it, on classes that the new head knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taus: Option<[f64; 3]>,
    /// Positive and negative flips of top-1, then of top-5, in percent of the queries, at [`FLIPS_AT`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flips: Option<Vec<[f64; 4]>>,
    /// Top-1, top-5 and mAP at 101 shares of native items, to three decimals, and the area of top-5. Rows
    /// have them that FastFill's figures 7 and 9 show.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub curves: Option<[Vec<f64>; 3]>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub area_top5: Option<f64>,
    pub seconds: f64,
}

/// Measures what is missing of [`WITH_SIDE`] on the sets that have side information.
pub fn measure_missing_with_side(folder: &Path) -> Result<()> {
    measure_missing(folder, &SETS_WITH_SIDE, &WITH_SIDE)
}

/// Measures what is missing of `methods` on `sets`, and records it.
pub fn measure_missing(folder: &Path, sets: &[&str], methods: &[&str]) -> Result<()> {
    let mut rows = read_units(Path::new("."))?;
    let is_there = |rows: &[Row], set: &str, seed: u64, method: &str| {
        rows.iter().any(|row| row.set == set && row.seed == seed && row.method == method)
    };
    for seed in 0..SEEDS {
        for set in sets {
            if methods.iter().all(|method| is_there(&rows, set, seed, method)) {
                continue;
            }
            let read = Set::read(folder, set).and_then(|data| Ok((data, Set::head(folder, set)?)));
            let (data, head) = match read {
                Ok(read) => read,
                Err(error) => {
                    eprintln!("{set} is skipped: {error}");
                    continue;
                }
            };
            for &method in methods {
                if is_there(&rows, set, seed, method) {
                    continue;
                }
                let usual = rows.iter().find(|row| row.set == *set && row.method == method);
                let usual =
                    usual.map_or(String::new(), |row| format!(" (another seed took {:.0} s)", row.seconds));
                eprintln!("{set} seed {seed} {method}{usual} …");
                let unit = if WITH_SIDE.contains(&method) {
                    measure(set, &Set::read(folder, set)?.with_side(folder, set)?, &head, method, seed)?
                } else {
                    measure(set, &data, &head, method, seed)?
                };
                append(UNITS, &unit)?;
                eprintln!("  {:.0} s", unit.first().map_or(0.0, |row| row.seconds));
                rows.extend(unit);
            }
        }
    }
    Ok(())
}

/// Measures what is missing of [`WITH_STEPS`].
pub fn measure_missing_with_steps(folder: &Path) -> Result<()> {
    measure_missing(folder, &SETS_WITH_STEPS, &WITH_STEPS)
}

pub struct Part {
    pub name: &'static str,
    pub old: Vectors,
    pub new: Vectors,
    pub labels: Labels,
    /// Vectors of a third model, which knows nothing of classes; only sets that are read with side
    /// information have them.
    side: Option<Matrix>,
}

pub struct Set {
    pub pairs: Pairs,
    pub parts: Vec<Part>,
}

impl Set {
    /// Reads the classifier head of the new model.
    pub fn head(folder: &Path, set: &str) -> Result<Head> {
        let source = |name: &str| VectorSource::path(folder.join(set).join(name));
        let bias = rehang_files::read_f32_column(&source("head_new_bias.npy"))?;
        Head::new(rehang_files::read_matrix(&source("head_new_weight.npy"))?, Some(bias), HeadKind::Softmax)
    }

    pub fn read(folder: &Path, set: &str) -> Result<Self> {
        let folder = folder.join(set);
        let matrix = |name: &str| rehang_files::read_matrix(&VectorSource::path(folder.join(name)));
        let labels = |name: &str| rehang_files::read_labels(&VectorSource::path(folder.join(name)));
        let vectors = |name: &str, rows: Matrix| Vectors::measured(name, Distance::L2, rows, name);
        if set.starts_with("img_") {
            let part = |name: &str| -> Result<(Vectors, Vectors, Labels)> {
                Ok((
                    vectors("old", matrix(&format!("{name}_old.npy"))?)?,
                    vectors("new", matrix(&format!("{name}_new.npy"))?)?,
                    labels(&format!("{name}_label.npy"))?,
                ))
            };
            let (old, new, train) = part("train")?;
            let parts = PARTS
                .into_iter()
                .map(|name| part(name).map(|(old, new, labels)| Part { name, old, new, labels, side: None }))
                .collect::<Result<_>>()?;
            return Ok(Self { pairs: Pairs::new(old, new, Some(train), None)?, parts });
        }
        let (old, new) = (matrix("old.npy")?, matrix("new.npy")?);
        let (label, role) = (labels("label.npy")?, labels("role.npy")?);
        let rows = |value: i64| -> Vec<usize> { (0..role.len()).filter(|&row| role[row] == value).collect() };
        let pick = |rows: &[usize]| -> Result<(Vectors, Vectors, Labels)> {
            Ok((
                vectors("old", old.select(rows))?,
                vectors("new", new.select(rows))?,
                rows.iter().map(|&row| label[row]).collect(),
            ))
        };
        let (train_old, train_new, train) = pick(&rows(0))?;
        let parts = [(1, "seen"), (2, "unseen")]
            .into_iter()
            .map(|(value, name)| {
                pick(&rows(value)).map(|(old, new, labels)| Part { name, old, new, labels, side: None })
            })
            .collect::<Result<_>>()?;
        Ok(Self { pairs: Pairs::new(train_old, train_new, Some(train), None)?, parts })
    }

    /// Adds the side information of a set to its pairs and parts.
    fn with_side(self, folder: &Path, set: &str) -> Result<Self> {
        let side = |part: &str| {
            rehang_files::read_matrix(&VectorSource::path(folder.join(set).join(format!("{part}_side.npy"))))
        };
        let labels = self.pairs.labels().map(<[i64]>::to_vec);
        let (old, new) = (self.pairs.old().clone(), self.pairs.new_vectors().clone());
        let pairs = Pairs::new(old, new, labels, Some(side("train")?))?;
        let with = |part: Part| Ok(Part { side: Some(side(part.name)?), ..part });
        Ok(Self { pairs, parts: self.parts.into_iter().map(with).collect::<Result<_>>()? })
    }
}

/// Measures one unit: fits a method and measures it on both parts in every order that applies.
fn measure(set: &str, data: &Set, head: &Head, method: &str, seed: u64) -> Result<Vec<Row>> {
    #[allow(clippy::disallowed_methods, reason = "the seconds of a fit are part of the results")]
    let started = std::time::Instant::now();
    let progress = Progress::default();
    let (method, factor) = method.split_once(" ×").unwrap_or((method, "1"));
    let factor: usize = factor.parse().map_err(|_| Error::option("a method", factor, "a number behind ×"))?;
    let (name, mut options, used) = match method.trim_end_matches("+side") {
        "l2+disc" | "disc" => (
            Method::FastfillReference,
            NetworkOptions {
                uncertainty: Some(UncertaintySource::OutOfFold),
                loss: Some(if method == "disc" { LossParts::Discriminative } else { LossParts::Both }),
                ..NetworkOptions::default()
            },
            Some(head),
        ),
        "disc+uncertainty" => (
            Method::FastfillReference,
            NetworkOptions { loss: Some(LossParts::Discriminative), ..NetworkOptions::default() },
            Some(head),
        ),
        "label-free" => (
            Method::FastfillReference,
            NetworkOptions { loss: Some(LossParts::Squared), ..NetworkOptions::default() },
            None,
        ),
        other => (other.parse()?, NetworkOptions::default(), Some(head)),
    };
    options.epochs = (factor > 1).then_some(factor * EPOCHS);
    // The published recipe says itself how its outputs conform, so no geometry is chosen, and nothing is
    // fitted for a choice.
    let geometry = (name == Method::FastfillReference).then_some(GeometryKind::Raw);
    let parameters =
        FitParameters { method: name, seed, compare: false, geometry, ..FitParameters::default() };
    let adapter = if matches!(method, "l2+disc" | "disc" | "fct" | "fct+side") {
        // Only random and oracle orders are made of these, so their σ² is not learned.
        rehang_fit::fit_map_only(&data.pairs, used, &parameters, &options, &progress)?
    } else {
        fit_adapter(&data.pairs, used, &parameters, &options, &progress)?.adapter
    };
    let seconds = started.elapsed().as_secs_f64();
    let mut rows = Vec::new();
    for part in &data.parts {
        rows.extend(measure_part(set, part, method, seed, &adapter, head, seconds, &progress)?);
    }
    if factor > 1 {
        for row in &mut rows {
            row.method = format!("{method} ×{factor}");
        }
    }
    Ok(rows)
}

fn measure_part(
    set: &str,
    part: &Part,
    method: &str,
    seed: u64,
    adapter: &Adapter,
    head: &Head,
    seconds: f64,
    progress: &Progress,
) -> Result<Vec<Row>> {
    let adapted = adapter::apply(adapter, &part.old, part.side.as_ref(), progress)?;
    let errors = true_errors(part.new.matrix(), adapted.vectors.matrix());
    let variance: Vec<f64> = adapted.variance.iter().map(|&value| f64::from(value)).collect();
    let tau = kendall_tau_b(&variance, &errors)?;
    let relevance = Relevance::Labels { gallery: &part.labels, queries: None };
    let policies: &[Policy] = match method {
        "do-nothing" | "procrustes" | "ridge" | "l2+disc" | "disc" | "fct" | "fct+side" => &[Policy::Random],
        "label-free" | "disc+uncertainty" | "fastfill-reference+side" => &[Policy::Sigma, Policy::Random],
        _ => &Policy::ALL,
    };
    // FastFill's loss (3): only a class that the new head knows has a discriminative part.
    let parts = losses(part.new.matrix(), adapted.vectors.matrix(), &part.labels, head);
    let learns_sigma = matches!(method, "label-free" | "disc+uncertainty" | "fastfill-reference" | "auto");
    let taus = match &parts {
        Some(parts) if learns_sigma => {
            let [first, second, third] = parts.each_ref().map(|losses| kendall_tau_b(&variance, losses));
            first?.zip(second?).zip(third?).map(|((first, second), third)| [first, second, third])
        }
        _ => None,
    };
    // The product's default is measured as it serves, with its handicap, and once more without, in its own
    // order.
    let handicap = if method == "auto" { adapter.handicap } else { 0.0 };
    let mut runs: Vec<(&str, f64, Vec<usize>)> = Vec::new();
    for &policy in policies {
        let input = OrderInput {
            items: part.new.len(),
            sigma: Some(&variance),
            squared_errors: Some(&errors),
            classified: policy
                .head(adapter.uncertainty.head(), Some(head))
                .map(|head| (head, adapted.vectors.matrix())),
            vectors: Some(adapted.vectors.matrix()),
            seed,
            ..OrderInput::default()
        };
        let permutation = order(policy, &input)?.permutation;
        if policy == Policy::Coverage && handicap > 0.0 {
            runs.push((PLAIN, 0.0, permutation.clone()));
        }
        runs.push((policy.name(), handicap, permutation));
    }
    if let (Some([.., both]), "fastfill-reference") = (parts, method) {
        runs.push((LOSS, 0.0, Order::by_scores(both, "the loss (3)")?.permutation));
    }
    let mut rows = Vec::new();
    for (name, handicap, permutation) in runs {
        let (native, adapted) = (part.new.matrix(), adapted.vectors.matrix());
        let input = CurveInput::new(native, adapted, &permutation, relevance, Distance::L2);
        let made = curve(&CurveInput { handicap, ..input }, &CurveOptions::default(), progress)?;
        let both =
            |of: &dyn Fn(&rehang_core::curve::Line) -> f64| [of(&made.lines[TOP1]), of(&made.lines[MAP])];
        let is_compared = WITH_SIDE.contains(&method) || DRAWN.contains(&method);
        let is_drawn = SETS_WITH_SIDE.contains(&set) && is_compared && DRAWN_ORDERS.contains(&name);
        rows.push(Row {
            set: set.into(),
            seed,
            method: method.into(),
            part: part.name.into(),
            order: name.into(),
            kept: adapter.training.method.clone(),
            area: both(&|line| line.area()),
            start: both(&|line| line.start()),
            minimum: both(&|line| line.min()),
            end: both(&|line| line.end()),
            tau,
            taus,
            flips: Some(flips(&made)),
            curves: is_drawn.then(|| [TOP1, TOP5, MAP].map(|metric| points(&made.lines[metric]))),
            area_top5: is_drawn.then(|| made.lines[TOP5].area()),
            seconds,
        });
    }
    if method == "do-nothing" {
        // The line that every curve is held against: old queries in the old gallery, by the distance that
        // finds most there. Any other would flatter the upgrade.
        let mut line = [f64::NEG_INFINITY; 2];
        for distance in Distance::ALL {
            let options = CurveOptions::default();
            let today = evaluate(part.old.matrix(), None, relevance, distance, &options, progress)?;
            if today.values[MAP] > line[1] {
                line = [today.values[TOP1], today.values[MAP]];
            }
        }
        rows.push(Row {
            set: set.into(),
            seed,
            method: "old model".into(),
            part: part.name.into(),
            order: "none".into(),
            kept: String::new(),
            area: line,
            start: line,
            minimum: line,
            end: line,
            tau: None,
            taus: None,
            flips: None,
            curves: None,
            area_top5: None,
            seconds: 0.0,
        });
    }
    Ok(rows)
}

/// Gives a curve at 101 shares, to three decimals.
fn points(line: &rehang_core::curve::Line) -> Vec<f64> {
    line.grid(101).values.into_iter().map(|value| (1e3 * value).round() / 1e3).collect()
}

/// Computes FastFill's losses of every item as its reference code weighs them: L_l2 as the mean over
/// coordinates, L_disc as cross-entropy with label smoothing 0.1, and their sum (3). `None` where the head
/// does not know a class.
fn losses(native: &Matrix, adapted: &Matrix, labels: &Labels, head: &Head) -> Option<[Vec<f64>; 3]> {
    const SMOOTHING: f64 = 0.1;
    let classes = head.classes();
    let squared: Vec<f64> =
        true_errors(native, adapted).iter().map(|error| error / native.columns() as f64).collect();
    let mut discriminative = Vec::new();
    for (row, &label) in labels.iter().enumerate() {
        let label = usize::try_from(label).ok().filter(|&label| label < classes)?;
        let logits: Vec<f64> = (0..classes)
            .map(|class| {
                let products = adapted.row(row).iter().zip(head.weight().row(class));
                products.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>()
                    + f64::from(head.bias()[class])
            })
            .collect();
        let top = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let whole = top + logits.iter().map(|logit| (logit - top).exp()).sum::<f64>().ln();
        let mean = logits.iter().sum::<f64>() / classes as f64;
        discriminative.push(whole - (1.0 - SMOOTHING) * logits[label] - SMOOTHING * mean);
    }
    let both = squared.iter().zip(&discriminative).map(|(a, b)| a + b).collect();
    Some([squared, discriminative, both])
}

/// Counts queries that flipped since the start, in percent of all: right and wrong in top-1, right and wrong
/// in top-5, at [`FLIPS_AT`].
fn flips(curve: &Curve) -> Vec<[f64; 4]> {
    let queries = curve.per_query.queries.len() as f64;
    let at = |metric: Metric, share: usize| {
        let flips = &curve.flips[metric];
        let cut = share * (flips.positive.len() - 1) / 100;
        [flips.positive[cut], flips.negative[cut]].map(|count| 100.0 * count as f64 / queries)
    };
    FLIPS_AT
        .into_iter()
        .map(|share| {
            let ([up, down], [up5, down5]) = (at(TOP1, share), at(TOP5, share));
            [up, down, up5, down5]
        })
        .collect()
}

/// Reads every row that is recorded under `root`.
pub fn read_units(root: &Path) -> Result<Vec<Row>> {
    crate::studies::records::read(&root.join(UNITS))
}

/// Appends a unit to a record as a whole. A line that was cut by a crash is the last one and shows as a corrupt
/// file.
pub fn append(record: &str, unit: &[impl Serialize]) -> Result<()> {
    crate::studies::records::create_folder_of(record)?;
    let lines = crate::studies::records::lines(unit)?;
    let failed = |error: &std::io::Error| Error::io("write", record, error);
    let mut file =
        fs_err::OpenOptions::new().create(true).append(true).open(record).map_err(|error| failed(&error))?;
    file.write_all(lines.as_bytes()).and_then(|()| file.sync_all()).map_err(|error| failed(&error))
}
