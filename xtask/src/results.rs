//! `cargo xtask results [FOLDER] [SET…] [--methods=A,B]`: the quality study of `docs/results.md`.
//!
//! Every (set, seed, method) is a unit of work whose numbers are appended to `bench/runs/results/units.jsonl` as soon as
//! they are known; a unit that is there already is not done again. The table is made anew from the file at the end.
//! `FOLDER` is where the galleries lie (default `../shared/data`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use rehang::adapter::{self, Adapter};
use rehang::curve::{CurveInput, CurveOptions, MAP, Relevance, TOP1, curve, evaluate};
use rehang::files::{self, AtomicFile, VectorSource};
use rehang::order::{OrderInput, Policy, order};
use rehang::statistics::{kendall_tau_b, mean_sd};
use rehang::study::true_errors;
use rehang::{Distance, Error, Head, HeadKind, Labels, Matrix, Pairs, Progress, Result, Vectors};
use rehang_fit::{FitParameters, LossParts, Method, NetworkOptions, UncertaintySource, fit_adapter};
use serde::{Deserialize, Serialize};

const UNITS: &str = "bench/runs/results/units.jsonl";
const TABLE: &str = "docs/results.md";
/// What `bench/compatible/chain.sh` printed.
const CHAIN: &str = "bench/runs/compatible-chain/cross.txt";
/// Studies that have commands of their own: title, table, command.
const APPENDED: [(&str, &str, &str); 3] = [
    (
        "Compatible training",
        "bench/runs/compatible-omniglot/comparison.md",
        "rehang compare bench/compatible/omniglot.toml --out bench/runs/compatible-omniglot",
    ),
    (
        "Compatible training from a better old model",
        "bench/runs/compatible-better-old/comparison.md",
        "rehang compare bench/compatible/better-old.toml --out bench/runs/compatible-better-old",
    ),
    ("Bias", "bench/runs/bias/bias.md", "cargo xtask bias"),
];
const SETS: [&str; 4] = ["img_omniglot", "img_caltech101", "text_clinc150", "text_banking77"];
/// The order of the rows that say what the handicap is worth.
const PLAIN: &str = "coverage, no handicap";
const PARTS: [&str; 2] = ["seen", "unseen"];
const SEEDS: u64 = 3;
/// Evenly spaced states whose mean others report instead of the area.
const POINTS: usize = 11;

/// What is fitted: a name in the table, and how.
const METHODS: [&str; 9] = [
    "do-nothing",
    "procrustes",
    "ridge",
    "auto",
    "fct",
    "fastfill-reference",
    "l2+disc",
    "label-free",
    "fastfill",
];

/// The published networks, whose order is random or their own.
const PUBLISHED: [&str; 3] = ["fct", "l2+disc", "fastfill-reference"];

/// The numbers of one set, seed, method, part and order.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Row {
    set: String,
    seed: u64,
    method: String,
    part: String,
    order: String,
    /// Method that was kept, for `auto`.
    kept: String,
    /// Top-1 and mAP: mean over all fractions, at the start, the lowest, at the end.
    area: [f64; 2],
    /// Their means over [`POINTS`] states only, as others measured; none in units of before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    points: Option<[f64; 2]>,
    start: [f64; 2],
    minimum: [f64; 2],
    end: [f64; 2],
    /// Kendall τ-b of σ² with the true squared error; none where σ² is constant.
    tau: Option<f64>,
    seconds: f64,
}

/// Runs what is missing, then writes the table.
pub fn run(arguments: &[&str]) -> Result<()> {
    let chosen = arguments.iter().find_map(|argument| argument.strip_prefix("--methods="));
    let methods: Vec<&str> = chosen.map_or_else(|| METHODS.to_vec(), |names| names.split(',').collect());
    let arguments: Vec<&str> =
        arguments.iter().copied().filter(|argument| !argument.starts_with("--")).collect();
    let folder = PathBuf::from(arguments.first().copied().unwrap_or("../shared/data"));
    let sets: Vec<&str> = if arguments.len() > 1 { arguments[1..].to_vec() } else { SETS.to_vec() };
    let mut rows = read_units()?;
    for seed in 0..SEEDS {
        for set in &sets {
            let data = match Set::read(&folder, set) {
                Ok(data) => data,
                Err(error) => {
                    eprintln!("{set} is skipped: {error}");
                    continue;
                }
            };
            for &method in &methods {
                if rows.iter().any(|row| row.set == *set && row.seed == seed && row.method == method) {
                    continue;
                }
                let unit = measure(set, &data, method, seed)?;
                append(&unit)?;
                eprintln!("{set} seed {seed} {method}: {:.0} s", unit.first().map_or(0.0, |row| row.seconds));
                rows.extend(unit);
            }
        }
    }
    write_table(&rows)
}

pub struct Part {
    pub name: &'static str,
    pub old: Vectors,
    pub new: Vectors,
    pub labels: Labels,
}

pub struct Set {
    pub pairs: Pairs,
    pub parts: Vec<Part>,
    pub head: Head,
}

impl Set {
    pub fn read(folder: &Path, set: &str) -> Result<Self> {
        let folder = folder.join(set);
        let matrix = |name: &str| files::read_matrix(&VectorSource::path(folder.join(name)));
        let labels = |name: &str| files::read_labels(&VectorSource::path(folder.join(name)));
        let head = Head::new(
            matrix("head_new_weight.npy")?,
            Some(files::read_f32_column(&VectorSource::path(folder.join("head_new_bias.npy")))?),
            HeadKind::Softmax,
        )?;
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
                .map(|name| part(name).map(|(old, new, labels)| Part { name, old, new, labels }))
                .collect::<Result<_>>()?;
            return Ok(Self { pairs: Pairs::new(old, new, Some(train), None)?, parts, head });
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
            .map(|(value, name)| pick(&rows(value)).map(|(old, new, labels)| Part { name, old, new, labels }))
            .collect::<Result<_>>()?;
        Ok(Self { pairs: Pairs::new(train_old, train_new, Some(train), None)?, parts, head })
    }
}

/// One unit: fits a method and measures it on both parts in every order that applies.
fn measure(set: &str, data: &Set, method: &str, seed: u64) -> Result<Vec<Row>> {
    #[allow(clippy::disallowed_methods, reason = "the seconds of a fit are part of the results")]
    let started = std::time::Instant::now();
    let progress = Progress::default();
    let (name, options, head) = match method {
        "l2+disc" => (
            Method::FastfillReference,
            NetworkOptions {
                uncertainty: Some(UncertaintySource::OutOfFold),
                loss: Some(LossParts::Both),
                ..NetworkOptions::default()
            },
            Some(&data.head),
        ),
        "label-free" => (
            Method::FastfillReference,
            NetworkOptions { loss: Some(LossParts::Squared), ..NetworkOptions::default() },
            None,
        ),
        other => (other.parse()?, NetworkOptions::default(), Some(&data.head)),
    };
    let parameters = FitParameters { method: name, seed, compare: false, ..FitParameters::default() };
    let adapter = if method == "l2+disc" || method == "fct" {
        // Only random and oracle orders are made of these, so their σ² is not learned.
        rehang_fit::fit_map_only(&data.pairs, head, &parameters, &options, &progress)?
    } else {
        fit_adapter(&data.pairs, head, &parameters, &options, &progress)?.adapter
    };
    let seconds = started.elapsed().as_secs_f64();
    let mut rows = Vec::new();
    for part in &data.parts {
        rows.extend(measure_part(set, part, method, seed, &adapter, &data.head, seconds, &progress)?);
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
    let adapted = adapter::apply(adapter, &part.old, None, progress)?;
    let errors = true_errors(part.new.matrix(), adapted.vectors.matrix());
    let variance: Vec<f64> = adapted.variance.iter().map(|&value| f64::from(value)).collect();
    let tau = kendall_tau_b(&variance, &errors)?;
    let relevance = Relevance::Labels { gallery: &part.labels, queries: None };
    let policies: &[Policy] = match method {
        "do-nothing" | "procrustes" | "ridge" | "l2+disc" | "fct" => &[Policy::Random],
        "label-free" => &[Policy::Sigma, Policy::Random],
        _ => &Policy::ALL,
    };
    let mut rows = Vec::new();
    // The product's default is measured as it serves: with its handicap; and once more without, in its own order.
    let handicap = if method == "auto" { adapter.handicap } else { 0.0 };
    let plain = (handicap > 0.0).then_some((Policy::Coverage, 0.0, PLAIN));
    let served = policies.iter().map(|&policy| (policy, handicap, policy.name()));
    for (policy, handicap, name) in served.chain(plain) {
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
        let made = curve(
            &CurveInput {
                native: part.new.matrix(),
                adapted: adapted.vectors.matrix(),
                order: &permutation,
                queries: None,
                relevance,
                distance: Distance::L2,
                handicap,
                groups: None,
                do_nothing: None,
            },
            &CurveOptions::default(),
            progress,
        )?;
        let both = |of: &dyn Fn(&rehang::curve::Line) -> f64| [of(&made.lines[TOP1]), of(&made.lines[MAP])];
        rows.push(Row {
            set: set.into(),
            seed,
            method: method.into(),
            part: part.name.into(),
            order: name.into(),
            kept: adapter.training.method.clone(),
            area: both(&|line| line.area()),
            points: Some(both(&|line| line.grid(POINTS).mean)),
            start: both(&|line| line.start()),
            minimum: both(&|line| line.min()),
            end: both(&|line| line.end()),
            tau,
            seconds,
        });
    }
    if method == "do-nothing" {
        // The line that every curve is held against: old queries in the old gallery.
        let today = evaluate(
            part.old.matrix(),
            None,
            relevance,
            old_distance(set),
            &CurveOptions::default(),
            progress,
        )?;
        let line = [today.values[TOP1], today.values[MAP]];
        rows.push(Row {
            set: set.into(),
            seed,
            method: "old model".into(),
            part: part.name.into(),
            order: "none".into(),
            kept: String::new(),
            area: line,
            points: Some(line),
            start: line,
            minimum: line,
            end: line,
            tau: None,
            seconds: 0.0,
        });
    }
    Ok(rows)
}

/// The distance that serves the old model best: word counts want the cosine. Anything less would flatter the upgrade.
fn old_distance(set: &str) -> Distance {
    if set.starts_with("text_") { Distance::Cosine } else { Distance::L2 }
}

fn read_units() -> Result<Vec<Row>> {
    if !Path::new(UNITS).exists() {
        return Ok(Vec::new());
    }
    files::read_lines(UNITS)?
        .iter()
        .filter(|line| !line.trim().is_empty())
        .map(|line| serde_json::from_str(line).map_err(|error| Error::corrupt(UNITS, error)))
        .collect()
}

/// A unit is appended whole; a line that was cut by a crash is the last one and shows as a corrupt file.
fn append(unit: &[Row]) -> Result<()> {
    let failed = |error: &std::io::Error| Error::io("write", UNITS, error);
    if let Some(folder) = Path::new(UNITS).parent() {
        fs_err::create_dir_all(folder).map_err(|error| failed(&error))?;
    }
    let mut lines = String::new();
    for row in unit {
        let line = serde_json::to_string(row).map_err(|error| Error::corrupt(UNITS, error))?;
        lines.push_str(&line);
        lines.push('\n');
    }
    let mut file =
        fs_err::OpenOptions::new().create(true).append(true).open(UNITS).map_err(|error| failed(&error))?;
    file.write_all(lines.as_bytes()).and_then(|()| file.sync_all()).map_err(|error| failed(&error))
}

/// `mean ± sd` over seeds; the mean alone for one seed.
fn spread(values: &[f64]) -> String {
    match mean_sd(values) {
        None => "–".into(),
        Some(only) if only.count == 1 => format!("{:.1}", only.mean),
        Some(several) => format!("{:.1} ± {:.1}", several.mean, several.sd),
    }
}

/// Top-1 and mAP areas of one method and order over seeds.
fn areas(rows: &[Row], set: &str, part: &str, method: &str, order: &str) -> Option<[Vec<f64>; 2]> {
    over_seeds(rows, set, part, method, order, |row| Some(row.area))
}

/// A number of top-1 and of mAP of one method and order over the seeds that have it.
fn over_seeds(
    rows: &[Row],
    set: &str,
    part: &str,
    method: &str,
    order: &str,
    number: impl Fn(&Row) -> Option<[f64; 2]>,
) -> Option<[Vec<f64>; 2]> {
    let of = |row: &&Row| row.set == set && row.part == part && row.method == method && row.order == order;
    let found: Vec<[f64; 2]> = rows.iter().filter(of).filter_map(number).collect();
    (!found.is_empty()).then(|| [0, 1].map(|metric| found.iter().map(|numbers| numbers[metric]).collect()))
}

/// The product's default beside what it is held against: the published recipe in its own order, and the best columns in
/// random order.
fn write_default(text: &mut String, rows: &[Row]) {
    let mean = |values: &[f64]| mean_sd(values).map_or(f64::NAN, |spread| spread.mean);
    text.push_str(
        "\n## The default beside the published recipe and the best random columns\n\nAreas in percent. *Default* is `auto` in \
         the order `coverage` with its handicap. A best random column is the one with the highest top-1: of the published \
         networks (`fct`, `l2+disc`, `fastfill-reference`), and of all methods but `auto`, those among them that \
         nobody would search (their mAP stands beside them); both with their plain distances.\n\n| set | part | default, top-1 / mAP | without handicap | \
         fastfill-reference σ, mAP | above it | best published random column | top-1 at or above it | best random column of all | top-1 at or above it |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
    );
    for set in SETS {
        for part in PARTS {
            let Some([top1, map]) = areas(rows, set, part, "auto", Policy::Coverage.name()) else { continue };
            let plain = areas(rows, set, part, "auto", PLAIN)
                .map_or("–".into(), |[top1, map]| format!("{} / {}", spread(&top1), spread(&map)));
            let reference = areas(rows, set, part, "fastfill-reference", Policy::Sigma.name());
            let verdict = |gap: f64| match gap {
                // What is shown as 0.0 is neither.
                _ if gap.abs() < 0.05 => "level".to_owned(),
                _ if gap > 0.0 => format!("yes ({gap:+.1})"),
                _ => format!("no ({gap:+.1})"),
            };
            let (reference, above) = reference.map_or(("–".into(), "–".into()), |[_, column]| {
                (spread(&column), verdict(mean(&map) - mean(&column)))
            });
            let best = |methods: &[&str]| {
                let column = |method| areas(rows, set, part, method, Policy::Random.name());
                let columns = methods.iter().filter_map(|method| Some((*method, column(method)?)));
                columns.max_by(|a, b| mean(&a.1[0]).total_cmp(&mean(&b.1[0]))).map_or(
                    "– | –".into(),
                    |(method, [best, its_map])| {
                        let at = verdict(mean(&top1) - mean(&best));
                        format!("{} / {} ({method}) | {at}", spread(&best), spread(&its_map))
                    },
                )
            };
            let all: Vec<&str> = METHODS.into_iter().filter(|method| *method != "auto").collect();
            let _ = writeln!(
                text,
                "| {set} | {part} | {} / {} | {plain} | {reference} | {above} | {} | {} |",
                spread(&top1),
                spread(&map),
                best(&PUBLISHED),
                best(&all)
            );
        }
    }
}

/// Areas (top-1, mAP) of the published recipe by an independent implementation, one seed: set, part, FCT random,
/// FastFill random, σ and oracle.
const ELSEWHERE: [(&str, &str, [[f64; 2]; 4]); 4] = [
    ("img_omniglot", "seen", [[64.6, 51.5], [66.9, 52.1], [67.8, 52.6], [68.2, 56.2]]),
    ("img_omniglot", "unseen", [[67.3, 39.1], [68.3, 39.2], [67.4, 39.2], [66.5, 41.9]]),
    ("img_caltech101", "seen", [[44.3, 23.2], [46.3, 24.5], [45.3, 24.8], [46.9, 26.6]]),
    ("img_caltech101", "unseen", [[35.9, 16.8], [38.7, 17.1], [38.4, 17.0], [39.1, 17.8]]),
];

/// The published recipe here beside the same recipe elsewhere.
fn write_reproduction(text: &mut String, rows: &[Row]) {
    text.push_str(
        "\n## The published recipe here and elsewhere\n\nTop-1 / mAP of `fct` and `fastfill-reference` here (mean ± sd over \
         seeds) beside an independent implementation in PyTorch on the same vectors and protocol. That one is one seed and the \
         mean of 9 to 11 points, which give the low start of a top-1 curve a tenth of the weight; so the mean of 11 evenly \
         spaced points stands here beside the exact area. The last column is how far the 11 points are from elsewhere.\n\n\
         | set | part | column | here, area | here, 11 points | elsewhere | apart |\n|---|---|---|---|---|---|---|\n",
    );
    let columns = [
        ("fct", Policy::Random),
        ("fastfill-reference", Policy::Random),
        ("fastfill-reference", Policy::Sigma),
        ("fastfill-reference", Policy::Oracle),
    ];
    // Per metric, of every column: the square of how far apart the two are, and of the spread over seeds here.
    let mut squares: [Vec<(f64, f64)>; 2] = Default::default();
    for (set, part, numbers) in ELSEWHERE {
        for ((method, policy), elsewhere) in columns.into_iter().zip(numbers) {
            let order = policy.name();
            let Some(area) = areas(rows, set, part, method, order) else { continue };
            let points = over_seeds(rows, set, part, method, order, |row| row.points);
            for (metric, values) in points.iter().flatten().enumerate() {
                if let Some(spread) = mean_sd(values) {
                    squares[metric].push(((spread.mean - elsewhere[metric]).powi(2), spread.sd.powi(2)));
                }
            }
            let both = |of: &dyn Fn(usize) -> String| format!("{} / {}", of(0), of(1));
            let (points, apart) = points.map_or(("–".into(), "–".into()), |points| {
                let gap = |metric: usize| {
                    let here = mean_sd(&points[metric]).map_or(f64::NAN, |spread| spread.mean);
                    format!("{:+.1}", here - elsewhere[metric])
                };
                (both(&|metric| spread(&points[metric])), both(&gap))
            });
            let _ = writeln!(
                text,
                "| {set} | {part} | {method} {order} | {} | {points} | {} | {apart} |",
                both(&|metric| spread(&area[metric])),
                both(&|metric| format!("{:.1}", elsewhere[metric])),
            );
        }
    }
    if squares.iter().any(Vec::is_empty) {
        return;
    }
    let root = |metric: usize, of: &dyn Fn(&(f64, f64)) -> f64| {
        (squares[metric].iter().map(of).sum::<f64>() / squares[metric].len() as f64).sqrt()
    };
    // The mean of three runs and one more: their difference has the variance of a run, and a third of it.
    let another = f64::sqrt(1.0 + 1.0 / SEEDS as f64);
    let _ = writeln!(
        text,
        "\nApart by (root mean square over the rows): {:.1} / {:.1}. One more run of our own would be apart from the mean of {SEEDS} by \
         {:.1} / {:.1}, from the spread over seeds alone.",
        root(0, &|square| square.0),
        root(1, &|square| square.0),
        another * root(0, &|square| square.1),
        another * root(1, &|square| square.1)
    );
}

fn write_table(rows: &[Row]) -> Result<()> {
    let mut text = String::from(include_str!("results_introduction.md"));
    write_default(&mut text, rows);
    write_reproduction(&mut text, rows);
    for set in SETS {
        for part in PARTS {
            let here: Vec<&Row> = rows.iter().filter(|row| row.set == set && row.part == part).collect();
            if here.is_empty() {
                continue;
            }
            let seeds: BTreeSet<u64> = here.iter().map(|row| row.seed).collect();
            let _ = writeln!(
                text,
                "\n## {set}, {part} classes\n\nTop-1 / mAP in percent; up to {} seeds, as the last column says.\n\n| \
                 method | order | area | start | minimum | end | τ | seeds |\n|---|---|---|---|---|---|---|---|",
                seeds.len()
            );
            let mut groups: BTreeMap<(usize, usize, String, String), Vec<&Row>> = BTreeMap::new();
            for row in here {
                let method = METHODS.iter().position(|name| *name == row.method).map_or(0, |place| place + 1);
                let order = Policy::ALL
                    .iter()
                    .position(|policy| policy.name() == row.order)
                    .unwrap_or(Policy::ALL.len());
                groups.entry((method, order, row.method.clone(), row.order.clone())).or_default().push(row);
            }
            for ((_, _, method, order), rows) in groups {
                let cell = |of: &dyn Fn(&Row) -> [f64; 2]| {
                    let part =
                        |index: usize| spread(&rows.iter().map(|row| of(row)[index]).collect::<Vec<_>>());
                    format!("{} / {}", part(0), part(1))
                };
                let taus: Vec<f64> = rows.iter().filter_map(|row| row.tau).collect();
                let tau = mean_sd(&taus).map_or("–".into(), |tau| format!("{:.2}", tau.mean));
                let kept: BTreeSet<&str> = rows.iter().map(|row| row.kept.as_str()).collect();
                let method = if method == "auto" {
                    format!("auto ({})", kept.into_iter().collect::<Vec<_>>().join(", "))
                } else {
                    method
                };
                let _ = writeln!(
                    text,
                    "| {method} | {order} | {} | {} | {} | {} | {tau} | {} |",
                    cell(&|row| row.area),
                    cell(&|row| row.start),
                    cell(&|row| row.minimum),
                    cell(&|row| row.end),
                    rows.len()
                );
            }
        }
    }
    text.push_str(include_str!("results_compatible.md"));
    for (title, path, command) in APPENDED {
        if !Path::new(path).exists() {
            continue;
        }
        let part = fs_err::read_to_string(path).map_err(|error| Error::io("read", path, &error))?;
        let _ = writeln!(text, "\n# {title}\n\nMade by `{command}`.\n");
        // Its title is the one above, its headings go one deeper, and its curves are in its own files.
        let mut is_curve = false;
        for line in part.lines().filter(|line| !line.starts_with("# ")) {
            is_curve = line.starts_with("Each line is one method") || (is_curve && !line.starts_with("## "));
            if !is_curve {
                let deeper = if line.starts_with('#') { "#" } else { "" };
                let _ = writeln!(text, "{deeper}{line}");
            }
        }
    }
    if Path::new(CHAIN).exists() {
        let table = fs_err::read_to_string(CHAIN).map_err(|error| Error::io("read", CHAIN, &error))?;
        let _ = writeln!(
            text,
            "\n# A chain of upgrades\n\nMade by `bench/compatible/chain.sh`: phi1 saw 80 classes, phi2 120, phi3 160, each \
             trained by BCT against the one before; three seeds. On held-out images of the 160 classes every step meets the \
             criterion in every seed, phi3 in phi1's gallery too, which it never met: the chain stays compatible. On classes that \
             none of them saw phi3 still finds in phi1's gallery what phi2 finds there, and neither quite reaches phi1's own \
             search. In a row: a gallery of the seen classes that either upgrade backfills by half in random order is found with 71 to 73 % \
             top-1 at the end, one that is never backfilled with 64 to 66 %; on unseen classes 77 to 80 % and 60 to 65 %.\n\n\
             ```\n{}\n```",
            table.trim_end()
        );
    }
    let mut file = AtomicFile::create(TABLE)?;
    file.put(text.as_bytes())?;
    file.commit()
}
