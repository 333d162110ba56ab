//! `cargo lab study regret [FOLDER] [SET…]`: what `auto`'s choice costs against the best candidate that it
//! had.
//!
//! Every method that `auto` compared is fitted on the training pairs by itself, knowing what `auto` knew, and
//! served to the test parts, which no fit has seen, with its own handicap in the default order; their labels
//! (or judgements) say what it is worth. The regret of a choice is the area of the best of them less the area
//! of the chosen one, in points of mAP (of nDCG@10 where there are judgements). What is in the record is not
//! measured again; `table` in place of a set only writes the table. `scripts/real-pairs.py` makes sets of
//! real encoders.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use rehang_core::adapter;
use rehang_core::curve::{CurveInput, CurveOptions, Metric, Qrels, Relevance, curve};
use rehang_core::order::{OrderInput, Policy, order};
use rehang_core::statistics::mean_sd;
use rehang_core::{Adapter, Distance, Error, Matrix, Pairs, Progress, Result, Vectors};
use rehang_files::VectorSource;
use rehang_files::qrels::read_qrels;
use rehang_fit::{FitParameters, FitQueries, Method, NetworkOptions, Selection, fit_adapter};
use serde::{Deserialize, Serialize};

use crate::studies::papers::units::{SETS, Set};
use crate::studies::records;

const RECORD: &str = "laboratory/bench/runs/regret/regret.jsonl";
const PAGE: &str = "laboratory/docs/choice.md";
/// Line of the page that the table stands below.
const MARK: &str = "<!-- made by `cargo lab study regret` -->\n";
/// Name of the set of documents with judged queries.
pub const JUDGED: &str = "ir_cisi";
/// Number of its documents that are pairs; the others are the test part.
pub const JUDGED_PAIRS: usize = 700;
/// Sets of the digits with other classes unseen each time, by `scripts/digits-draws.py`. Two classes of ten
/// decide which map is best in one draw, so the mean over all says what the choice costs on the digits.
const DRAWS: [&str; 4] = ["toy_digits", "digits_56", "digits_69", "digits_78"];
const AUTO: &str = "auto";
/// Rows of each model for itself, gallery and queries, which an area is held against.
const MODELS: [&str; 2] = ["old model", "new model"];

/// Result of one candidate, or of one choice, on one part.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Row {
    set: String,
    part: String,
    /// Knowledge of the fit: `labels`, `nothing`, `queries` or `judgements`.
    known: String,
    /// Method that was asked for: `auto`, or a candidate.
    asked: String,
    /// Method that was kept.
    method: String,
    geometry: String,
    handicap: f64,
    start: f64,
    area: f64,
    seconds: f64,
}

/// Test part, and what is right on it.
pub struct Ground {
    pub name: String,
    pub old: Vectors,
    pub new: Vectors,
    /// Queries by the old model and by the new one.
    pub queries: Option<[Matrix; 2]>,
    pub labels: Vec<i64>,
    pub qrels: Option<Qrels>,
}

/// Set: pairs, test parts, and what `auto` may know of them.
pub struct Study {
    pub pairs: Pairs,
    pub grounds: Vec<Ground>,
    pub knowns: Vec<(&'static str, bool, Option<FitQueries>)>,
}

/// Reads the arguments of a study, `[SPLITS [FOLDER [SET…]]]`: how many splits, where the sets lie, and which
/// of them.
pub fn parse_arguments<'a>(
    arguments: &[&'a str],
    splits: u64,
    all: &[&'a str],
) -> Result<(u64, PathBuf, Vec<&'a str>)> {
    let splits = match arguments.first() {
        None => splits,
        Some(text) => text.parse().map_err(|_| Error::option("SPLITS", text, "a whole number"))?,
    };
    let folder = PathBuf::from(arguments.get(1).copied().unwrap_or("../shared/data"));
    let sets = arguments.get(2..).filter(|sets| !sets.is_empty()).unwrap_or(all);
    Ok((splits, folder, sets.to_vec()))
}

/// Measures what is missing of the sets and prints the table.
pub fn run(arguments: &[&str]) -> Result<()> {
    let folder = Path::new(arguments.first().copied().unwrap_or("../shared/data"));
    let sets: Vec<&str> = if arguments.len() > 1 {
        arguments[1..].to_vec()
    } else {
        SETS.iter().copied().chain([JUDGED]).collect()
    };
    let mut rows: Vec<Row> = records::read(Path::new(RECORD))?;
    for set in sets.into_iter().filter(|set| *set != "table") {
        let study = if set == JUDGED { judged(&folder.join(set))? } else { labelled(folder, set)? };
        measure(set, &study, &mut rows)?;
    }
    let text = table(&rows);
    records::write_below(PAGE, MARK, &text)?;
    println!("{text}");
    Ok(())
}

pub fn labelled(folder: &Path, set: &str) -> Result<Study> {
    let data = Set::read(folder, set)?;
    let grounds = data.parts.into_iter().map(|part| Ground {
        name: part.name.to_owned(),
        old: part.old,
        new: part.new,
        queries: None,
        labels: part.labels,
        qrels: None,
    });
    let knowns = vec![("labels", true, None), ("nothing", false, None)];
    Ok(Study { pairs: data.pairs, grounds: grounds.collect(), knowns })
}

/// Set of documents with judged queries, as it lies in its folder.
pub struct JudgedSet {
    /// Documents by the old model and by the new one.
    pub documents: [Matrix; 2],
    /// Queries by the old model and by the new one.
    pub queries: [Matrix; 2],
    /// Documents with their gains, of each query.
    judgements: Vec<Vec<(usize, f64)>>,
}

impl JudgedSet {
    pub fn read(folder: &Path) -> Result<Self> {
        let matrix = |name: &str| rehang_files::read_matrix(&VectorSource::path(folder.join(name)));
        let ids = |name: &str| {
            rehang_files::InputReader::new(None)?.ids("ids", &[VectorSource::path(folder.join(name))])
        };
        Ok(Self {
            documents: [matrix("docs_old.npy")?, matrix("docs_new.npy")?],
            queries: [matrix("queries_old.npy")?, matrix("queries_new.npy")?],
            judgements: read_qrels(folder.join("qrels.tsv"), &ids("queries.jsonl")?, &ids("corpus.jsonl")?)?,
        })
    }

    /// Gives the judgements of some queries on a gallery of some documents, both in the order given.
    pub fn among(&self, documents: &[usize], queries: &[usize]) -> Result<Qrels> {
        let place = |item: usize| documents.iter().position(|&document| document == item);
        let of_query = |&query: &usize| {
            self.judgements[query].iter().filter_map(|&(item, gain)| Some((place(item)?, gain))).collect()
        };
        Qrels::new(queries.iter().map(of_query).collect())
    }
}

/// Reads the judged set: every second document is a pair, the others are the test part, and queries are dealt
/// out likewise.
pub fn judged(folder: &Path) -> Result<Study> {
    let set = JudgedSet::read(folder)?;
    let ([old, new], [queries_old, queries_new]) = (&set.documents, &set.queries);
    let (items, asked) = (old.rows(), queries_old.rows());
    let every_second = |count: usize, of: usize| (0..count).filter(|row| row % 2 == of).collect::<Vec<_>>();
    let documents: Vec<usize> = every_second(items, 0).into_iter().take(JUDGED_PAIRS).collect();
    let (learned, tested) = (every_second(asked, 0), every_second(asked, 1));
    let rest: Vec<usize> = (0..items).filter(|item| !documents.contains(item)).collect();
    let vectors = |name: &str, rows: Matrix| Vectors::measured(name, Distance::L2, rows, name);
    let pairs = Pairs::new(
        vectors("old", old.select(&documents))?,
        vectors("new", new.select(&documents))?,
        None,
        None,
    )?;
    let queries =
        |qrels| FitQueries { old: queries_old.select(&learned), new: queries_new.select(&learned), qrels };
    let ground = Ground {
        name: "test".into(),
        old: vectors("old", old.select(&rest))?,
        new: vectors("new", new.select(&rest))?,
        queries: Some([queries_old, queries_new].map(|queries| queries.select(&tested))),
        labels: Vec::new(),
        qrels: Some(set.among(&rest, &tested)?),
    };
    let knowns = vec![
        ("nothing", false, None),
        ("queries", false, Some(queries(None))),
        ("judgements", false, Some(queries(Some(set.among(&documents, &learned)?)))),
    ];
    Ok(Study { pairs, grounds: vec![ground], knowns })
}

/// Fits and measures what is missing of a set.
fn measure(set: &str, study: &Study, rows: &mut Vec<Row>) -> Result<()> {
    for (place, model) in MODELS.into_iter().enumerate() {
        if rows.iter().any(|row| row.set == set && row.asked == model) {
            continue;
        }
        for ground in &study.grounds {
            let value = alone(place, ground)?;
            rows.push(Row {
                set: set.into(),
                part: ground.name.clone(),
                known: String::new(),
                asked: model.into(),
                method: model.into(),
                geometry: "raw".into(),
                handicap: 0.0,
                start: value,
                area: value,
                seconds: 0.0,
            });
        }
        write_rows(rows)?;
    }
    for (known, with_labels, queries) in &study.knowns {
        if rows.iter().any(|row| row.set == set && row.known == *known) {
            continue;
        }
        let (old, new) = (study.pairs.old().clone(), study.pairs.new_vectors().clone());
        let labels = study.pairs.labels().filter(|_| *with_labels).map(<[i64]>::to_vec);
        let pairs = Pairs::new(old, new, labels, None)?;
        let mut asked = VecDeque::from([Method::Auto]);
        while let Some(method) = asked.pop_front() {
            #[allow(clippy::disallowed_methods, reason = "the seconds of a fit are part of the results")]
            let started = std::time::Instant::now();
            let parameters = FitParameters {
                method,
                compare: method == Method::Auto,
                queries: queries.clone(),
                ..FitParameters::default()
            };
            let options = NetworkOptions { networks: true, ..NetworkOptions::default() };
            let fitted = fit_adapter(&pairs, None, &parameters, &options, &Progress::default())?;
            let seconds = started.elapsed().as_secs_f64();
            if method == Method::Auto {
                let compared = fitted.selection.iter().flat_map(|selection| &selection.rows);
                let mut methods: Vec<Method> =
                    compared.filter(|row| row.failure.is_none()).map(|row| row.method).collect();
                // A method has a row a geometry, one after the other.
                methods.dedup();
                asked.extend(methods);
            }
            for ground in &study.grounds {
                let (start, area) = served(&fitted.adapter, ground)?;
                rows.push(Row {
                    set: set.into(),
                    part: ground.name.clone(),
                    known: (*known).into(),
                    asked: method.name().into(),
                    method: fitted.adapter.training.method.clone(),
                    geometry: geometry(fitted.selection.as_ref()),
                    handicap: fitted.handicap.as_ref().map_or(0.0, |choice| choice.rows[choice.kept].part),
                    start,
                    area,
                    seconds,
                });
            }
            eprintln!("{set} {known} {method}: {} {seconds:.0} s", fitted.adapter.training.method);
        }
        write_rows(rows)?;
    }
    Ok(())
}

fn write_rows(rows: &[Row]) -> Result<()> {
    records::write(RECORD, &records::lines(rows)?)
}

/// Names the geometry that was kept.
fn geometry(selection: Option<&Selection>) -> String {
    let kind = selection.and_then(|selection| selection.rows[selection.kept?].geometry);
    kind.map_or("raw", rehang_fit::geometry::GeometryKind::name).into()
}

/// Measures a model for itself, its queries in its own gallery: the new one by the distance of the curves,
/// which end there, the old one by the distance that finds most, since any other would flatter the upgrade.
fn alone(model: usize, ground: &Ground) -> Result<f64> {
    let vectors = [&ground.old, &ground.new][model].matrix();
    let items: Vec<usize> = (0..vectors.rows()).collect();
    let distances: &[Distance] = if model == 0 { &Distance::ALL } else { &[Distance::L2] };
    let mut most = f64::NEG_INFINITY;
    for &distance in distances {
        let (value, _) = measured([vectors, vectors], model, distance, &items, 0.0, ground)?;
        most = most.max(value);
    }
    Ok(most)
}

/// The start and the area of an adapter on a part, as it is served.
pub fn served(adapter: &Adapter, ground: &Ground) -> Result<(f64, f64)> {
    let progress = Progress::default();
    let adapted = adapter::apply(adapter, &ground.old, None, &progress)?;
    let variance: Vec<f64> = adapted.variance.iter().map(|&value| f64::from(value)).collect();
    let input = OrderInput {
        items: ground.new.len(),
        sigma: Some(&variance),
        classified: adapter.uncertainty.head().map(|head| (head, adapted.vectors.matrix())),
        vectors: Some(adapted.vectors.matrix()),
        ..OrderInput::default()
    };
    let permutation = order(Policy::Coverage, &input)?.permutation;
    let galleries = [ground.new.matrix(), adapted.vectors.matrix()];
    measured(galleries, 1, Distance::L2, &permutation, adapter.handicap, ground)
}

/// Measures the start and the area of the way from adapted vectors to native ones, searched by the queries of
/// a model.
fn measured(
    [native, adapted]: [&Matrix; 2],
    model: usize,
    distance: Distance,
    order: &[usize],
    handicap: f64,
    ground: &Ground,
) -> Result<(f64, f64)> {
    let progress = Progress::default();
    let (relevance, metric) = match &ground.qrels {
        Some(qrels) => (Relevance::Judgements(qrels), Metric::ndcg_at(10)),
        None => (Relevance::Labels { gallery: &ground.labels, queries: None }, rehang_core::curve::MAP),
    };
    let input = CurveInput {
        queries: ground.queries.as_ref().map(|queries| &queries[model]),
        handicap,
        ..CurveInput::new(native, adapted, order, relevance, distance)
    };
    let made = curve(&input, &CurveOptions { metrics: vec![metric], ..CurveOptions::default() }, &progress)?;
    Ok((made.lines[metric].start(), made.lines[metric].area()))
}

/// Lists the parts of a set that were measured, each alone, and with several also all together: one map has
/// to serve them all.
fn parts<'r>(rows: &'r [Row], set: &str) -> Vec<Vec<&'r str>> {
    let mut names: Vec<&str> = Vec::new();
    for row in rows.iter().filter(|row| row.set == set) {
        if !names.contains(&row.part.as_str()) {
            names.push(&row.part);
        }
    }
    let each = names.iter().map(|&name| vec![name]);
    each.chain((names.len() > 1).then(|| names.clone())).collect()
}

/// Gives the mean area over parts of the method that was asked for, knowing `known`; `None` where that was
/// not measured on all of them.
fn area(rows: &[Row], set: &str, parts: &[&str], known: &str, asked: &str) -> Option<f64> {
    let is_meant = |row: &&Row| {
        row.set == set && row.known == known && row.asked == asked && parts.contains(&row.part.as_str())
    };
    let areas: Vec<f64> = rows.iter().filter(is_meant).map(|row| row.area).collect();
    (areas.len() == parts.len()).then(|| areas.iter().sum::<f64>() / areas.len() as f64)
}

/// Line of the table: the parts of a set, or of several sets that are one question, and what was chosen
/// there.
struct Line<'r> {
    sets: Vec<&'r str>,
    parts: Vec<&'r str>,
    known: &'r str,
    choice: String,
}

fn lines(rows: &[Row]) -> Vec<Line<'_>> {
    let mut lines: Vec<Line<'_>> = Vec::new();
    for row in rows.iter().filter(|row| row.asked == AUTO) {
        if lines.iter().any(|line| line.sets == [&row.set] && line.known == row.known) {
            continue;
        }
        lines.extend(parts(rows, &row.set).into_iter().map(|parts| Line {
            sets: vec![&row.set],
            parts,
            known: &row.known,
            choice: format!("{}, {}", row.method, row.geometry),
        }));
    }
    let of_draws = |known| Line {
        sets: DRAWS.to_vec(),
        parts: vec!["seen", "unseen"],
        known,
        choice: "one a draw".into(),
    };
    lines.extend(["labels", "nothing"].map(of_draws));
    lines
}

/// Makes the table of one line a set, part and knowledge; below, every candidate.
fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "| set | part | known | its choice | area | best candidate | area | regret |\n|---|---|---|---|--:|---|--:|--:|\n",
    );
    let mut methods: Vec<&str> = Vec::new();
    for row in rows.iter().filter(|row| row.asked != AUTO && !MODELS.contains(&&*row.asked)) {
        if !methods.contains(&row.asked.as_str()) {
            methods.push(&row.asked);
        }
    }
    for line in lines(rows) {
        // Every set has one area.
        let areas = |asked: &str| {
            let of_set = |set: &&str| area(rows, set, &line.parts, line.known, asked);
            line.sets.iter().map(of_set).collect::<Option<Vec<f64>>>()
        };
        let mean = |areas: &[f64]| areas.iter().sum::<f64>() / areas.len() as f64;
        let best = methods
            .iter()
            .filter_map(|method| Some((*method, areas(method)?)))
            .reduce(|best, one| if mean(&one.1) > mean(&best.1) { one } else { best });
        let (Some((method, best)), Some(own)) = (best, areas(AUTO)) else { continue };
        let behind: Vec<f64> = best.iter().zip(&own).map(|(best, own)| best - own).collect();
        let mut regret = format!("{:.1}", mean(&behind).max(0.0));
        if let Some(over_draws) = mean_sd(&behind).filter(|_| behind.len() > 1) {
            let _ = write!(regret, " ± {:.1}", over_draws.sd / (behind.len() as f64).sqrt());
        }
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {:.1} | {method} | {:.1} | {regret} |",
            line.sets.join(", "),
            line.parts.join(" and "),
            line.known,
            line.choice,
            mean(&own),
            mean(&best)
        );
    }
    text.push_str(
        "\nEvery candidate, start / area (handicap as a part of the mean squared error), beside each model for itself, the old one by \
         the distance that finds most:\n\n| set | part | known |",
    );
    let columns = [&MODELS[..], &methods[..]].concat();
    let _ = writeln!(text, " {} |\n|---|---|---|{}", columns.join(" | "), "--:|".repeat(columns.len()));
    for own in rows.iter().filter(|row| row.asked == AUTO) {
        let cell = |method: &&str| {
            let is_model = MODELS.contains(method);
            let is_meant = |row: &&Row| {
                let is_known = is_model || row.known == own.known;
                row.asked == **method && row.set == own.set && row.part == own.part && is_known
            };
            let Some(row) = rows.iter().find(is_meant) else { return "–".into() };
            if is_model {
                return format!("{:.1}", row.start);
            }
            format!("{:.1} / {:.1} ({:.2})", row.start, row.area, row.handicap)
        };
        let cells: Vec<String> = columns.iter().map(cell).collect();
        let _ = writeln!(text, "| {} | {} | {} | {} |", own.set, own.part, own.known, cells.join(" | "));
    }
    text
}
