//! `rehang bench`.

use std::fmt::Write;

use rehang_core::Result;
use rehang_core::finding::FindingCode;
use rehang_core::report::Precision;
use rehang_core::statistics::Interval;
use rehang_upgrade::{
    CheaperBy, GroupScore, JudgedBy, ModelChoice, ModelMeasured, ModelsCompared, ModelsInput, compare_models,
};

use super::report::shell_line;
use super::upgrade::{bytes, duration};
use super::{Exit, end_at_ctrl_c, say_findings};
use crate::arguments::gallery::BenchArguments;
use crate::arguments::library::options;
use crate::bar::with_bar;

/// Says which model to upgrade to.
pub fn run(arguments: &BenchArguments, json: bool) -> Result<Exit> {
    let input =
        options!(ModelsInput { models, items, queries, clicks, group, sample, of, seed } from arguments);
    let compared = with_bar(|progress| {
        end_at_ctrl_c(progress);
        compare_models(&input, progress)
    })?;
    say_findings(&compared.findings);
    let is_whole = compared.models.iter().all(|model| model.measured.is_some())
        && compared.findings.iter().all(|finding| finding.code != FindingCode::Refused);
    let file = arguments.models.display().to_string();
    Exit::done_if(is_whole).print(json, &compared, &said(&compared, &file))
}

fn said(compared: &ModelsCompared, file: &str) -> String {
    let (documents, queries, counted) = (compared.documents, compared.queries, compared.counted);
    let asked_by =
        if compared.leave_one_out { "each document asks".into() } else { format!("{queries} queries ask") };
    let first = compared.models.iter().find(|model| model.measured.is_some());
    let first = first.map_or("", |model| &model.name);
    let judged = match compared.judged_by {
        JudgedBy::Clicks => format!("clicks judge {counted} of them"),
        JudgedBy::Labels => format!("labels judge {counted} of them"),
        JudgedBy::FirstModel => format!("nothing judges: agreement with {first}"),
    };
    let head = [
        "model",
        "width",
        &compared.metric,
        "behind",
        "a query (95 %)",
        "texts/s",
        "time",
        "tokens",
        "price",
        "f32",
        "f16",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for model in &compared.models {
        let Some(measured) = &model.measured else {
            rows.push(vec![model.name.clone(), model.dimension.to_string(), "failed".into()]);
            continue;
        };
        let is_best = compared.choice.as_ref().is_some_and(|choice| choice.best == model.name);
        rows.push(row(&model.name, model.dimension, measured, is_best));
        rows.extend(measured.groups.iter().map(|group| {
            let GroupScore { group, queries, score } = group;
            vec![format!("  {group}"), String::new(), range(score), format!("{queries} queries")]
        }));
    }
    let mut text = format!(
        "{documents} documents; {asked_by}, {judged}. Time, tokens, price and storage are for {} documents.\n\n{}",
        compared.of,
        table(&rows)
    );
    for model in &compared.models {
        if let Some(fault) = &model.fault {
            let _ = writeln!(text, "\n{} failed: {fault}", model.name);
        }
    }
    text += &match &compared.choice {
        Some(choice) => chosen(choice, file),
        None if compared.judged_by == JudgedBy::FirstModel => {
            "\nWhich model is better cannot be said: give --clicks, or documents with labels.\n".into()
        }
        None => String::new(),
    };
    text
}

fn row(name: &str, width: usize, measured: &ModelMeasured, is_best: bool) -> Vec<String> {
    let cost = &measured.cost;
    let stored = |precision: Precision| bytes(measured.storage[precision.name()]);
    vec![
        name.to_owned(),
        width.to_string(),
        range(&measured.score),
        measured.behind.as_ref().map_or_else(|| if is_best { "best" } else { "-" }.into(), range),
        format!("{:.1} ms ({:.1})", measured.latency_ms, measured.latency_p95_ms),
        format!("{:.0}", measured.documents_per_second),
        cost.seconds.map_or_else(|| "-".into(), duration),
        cost.tokens.map_or_else(|| "-".into(), |tokens| tokens.to_string()),
        cost.money.map_or_else(|| "-".into(), |money| format!("{money:.2}")),
        stored(Precision::F32),
        stored(Precision::F16),
    ]
}

fn range(score: &Interval) -> String {
    format!("{:.1} ({:.1}–{:.1})", score.estimate, score.low, score.high)
}

/// Lays cells out in columns; rows may be short.
fn table(rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let line = |row: &Vec<String>| {
        let cells =
            row.iter().enumerate().map(|(column, cell)| format!("{cell:<width$}", width = width(column)));
        format!("  {}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

/// Says which model to go to, and what `init` is told of it.
fn chosen(choice: &ModelChoice, file: &str) -> String {
    let mut text = match (&choice.level[..], choice.cheaper_by) {
        ([best, other_models @ ..], Some(by)) => format!(
            "\n{} level with {best}, the best by the metric. {} is the cheapest of them by {}.\n",
            other_models.join(" and ") + if other_models.len() > 1 { " are" } else { " is" },
            choice.name,
            match by {
                CheaperBy::Price => "price",
                CheaperBy::Storage => "storage",
                CheaperBy::Time => "time",
            }
        ),
        _ => format!("\n{} is the best beyond chance.\n", choice.name),
    };
    let (dimension, model_dimension) =
        (choice.dimension.to_string(), choice.model_dimension.map(|width| width.to_string()));
    let mut words =
        vec!["init", "--gallery", "GALLERY", "--new-name", &choice.name, "--new-dimension", &dimension];
    words.extend(model_dimension.iter().flat_map(|width| ["--new-model-dimension", width]));
    words.extend(["--new-distance", choice.distance]);
    let _ = write!(
        text,
        "Next: {}\nand in rehang.toml, its paths seen from there and not from {file}:\n\n{}",
        shell_line(words),
        choice.encoder
    );
    text
}
