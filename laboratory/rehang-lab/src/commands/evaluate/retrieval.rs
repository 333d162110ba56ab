//! `rehang-lab evaluate cross`, `refresh` and `sequence`.

use std::fmt::Write;

use rehang_cli::options;
use rehang_cli::shared::{Exit, say_findings, with_bar};
use rehang_core::Result;
use rehang_core::curve::{MAP, QueryCount, TOP1};
use rehang_protocols::compatibility::WidthRule;
use rehang_protocols::{
    SequenceFiles, cross as cross_models, refresh as hot_refresh, sequence as upgrade_sequence,
};

use super::table;
use crate::arguments::evaluate::{CrossArguments, RefreshArguments, SequenceArguments, named};

/// Prints the cross matrix of retrieval metrics.
pub fn cross(arguments: &CrossArguments, json: bool) -> Result<Exit> {
    let files = arguments.answers.files(&arguments.models.models)?;
    let best = arguments.models.best.as_ref();
    let answer = with_bar(|progress| cross_models(&files, best, arguments.bootstrap, progress))?;
    say_findings(&answer.on.findings);
    let mut text = counted(answer.on.queries);
    // Three tables say enough to a reader; the fourth is in the JSON.
    for (id, title) in [("top1", "top-1"), ("map", "mAP"), ("map_at", &format!("mAP@{}", answer.on.k))] {
        let _ = write!(text, "\n{}", table::text(title, table::SEARCH, &answer.metrics[id]));
    }
    if answer.width_rules.iter().flatten().any(|&rule| rule != WidthRule::Same) {
        text += "\nWidths differ: a query is cut to the first coordinates, or filled up with zeros, to fit the gallery.\n";
    }
    Exit::Done.print(json, &answer, &text)
}

/// Prints a hot refresh in every order.
pub fn refresh(arguments: &RefreshArguments, json: bool) -> Result<Exit> {
    let files = arguments.answers.files(&arguments.models)?;
    let orders = named("orders", &arguments.orders)?;
    let answer = with_bar(|progress| hot_refresh(&files, &orders, arguments.seed, arguments.grid, progress))?;
    say_findings(&answer.on.findings);
    let mut text = counted(answer.on.queries);
    if let Some(today) = &answer.do_nothing {
        let [top1, map] = ["top1", "map"].map(|id| today[id]);
        let _ = writeln!(text, "do nothing: top-1 {top1:.2}, mAP {map:.2}");
    }
    let k = answer.on.k;
    let (map_at, nfr_at) = (format!("mAP@{k}"), format!("NFR@{k}"));
    for made in &answer.orders {
        let _ = write!(text, "\norder {}: percent re-embedded\n{:<8}", made.order, "");
        for &cut in &made.cuts {
            let _ = write!(text, "  {:>6}", format!("{:.0} %", 100.0 * cut as f64 / answer.items as f64));
        }
        let _ = writeln!(text, "  {:>6}", "area");
        for (id, title) in [
            ("top1", "top-1"),
            ("map", "mAP"),
            ("map_at", &map_at),
            ("nfr1", "NFR@1"),
            ("nfr5", "NFR@5"),
            ("nfr_at", &nfr_at),
        ] {
            let line = &made.metrics[id];
            let _ = write!(text, "{title:<8}");
            for &value in line.values.iter().chain([&line.area]) {
                let _ = write!(text, "  {:>6}", table::two_decimals(value));
            }
            text.push('\n');
        }
    }
    Exit::Done.print(json, &answer, &text)
}

/// Prints upgrades in a row.
pub fn sequence(arguments: &SequenceArguments, json: bool) -> Result<Exit> {
    let files = arguments.answers.files(&arguments.models)?;
    let how = options!(
        SequenceFiles { backfilled, seed, joined } from arguments,
        orders: named("orders", &arguments.orders)?,
        adapters: named("adapters", &arguments.adapters)?
    );
    let answer = with_bar(|progress| upgrade_sequence(&files, &how, progress))?;
    say_findings(&answer.on.findings);
    let mut text = counted(answer.on.queries);
    let width = answer.on.models.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(8);
    for (title, metric) in [("top-1", TOP1), ("mAP", MAP)] {
        let _ = writeln!(
            text,
            "\n{title}, percent\n{:<width$}  {:>7}  {:>10}  {:>9}  {:>9}  {:>8}  {:>7}",
            "queries", "items", "no-refresh", "hot start", "hot end", "full", "by it"
        );
        for step in &answer.steps {
            let _ = writeln!(
                text,
                "{:<width$}  {:>7}  {:>10.2}  {:>9.2}  {:>9.2}  {:>8.2}  {:>7}",
                step.model,
                step.items,
                step.no_refresh[metric],
                step.hot_start[metric],
                step.hot_end[metric],
                step.full[metric],
                step.native
            );
        }
    }
    text += "\nno-refresh: every item keeps its first vector; hot: backfilled step by step; full: everything by that model;\n\
             by it: items by that model when its step is done.\n";
    Exit::Done.print(json, &answer, &text)
}

fn counted(queries: QueryCount) -> String {
    format!(
        "{} queries counted ({} without a right answer, {} unlabelled)\n",
        queries.counted, queries.without_positives, queries.unlabelled
    )
}
