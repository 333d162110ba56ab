//! Cells and tables of the pages: means with their spread, a paper's numbers in brackets.

use std::fmt::Write as _;

use rehang_core::statistics::{MeanSd, mean_sd};

/// Writes a table in Markdown: columns after the first stand to the right.
pub fn markdown(columns: &[&str], rows: &[Vec<String>]) -> String {
    let mut text = format!("| {} |\n|---|{}\n", columns.join(" | "), "--:|".repeat(columns.len() - 1));
    for row in rows {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
    text
}

/// Writes `mean ± sd` over seeds; the mean alone for one seed, a dash for none.
pub fn shown(number: Option<MeanSd>) -> String {
    // Means that are shown as 0.0 have no sign.
    let unsigned = |mean: f64| if mean.abs() < 0.05 { 0.0 } else { mean };
    match number {
        None => "–".into(),
        Some(only) if only.count == 1 => format!("{:.1}", unsigned(only.mean)),
        Some(several) => format!("{:.1} ± {:.1}", unsigned(several.mean), several.sd),
    }
}

/// Writes `mean ± sd` of the values of several seeds.
pub fn spread(values: &[f64]) -> String {
    shown(mean_sd(values))
}

/// Writes a number here and, in brackets, what the paper prints.
pub fn with_paper(number: Option<MeanSd>, paper: Option<f64>) -> String {
    let here = shown(number);
    match paper {
        None => here,
        Some(paper) => format!("{here} ({paper})"),
    }
}

/// Says whether a row is above another one: "level" where their means are no farther apart than the larger of
/// the two standard deviations.
pub fn verdict(own: &[f64], other: &[f64]) -> String {
    let (Some(own), Some(other)) = (mean_sd(own), mean_sd(other)) else { return "–".into() };
    match own.mean - other.mean {
        // Gaps that are shown as 0.0 are neither above nor below.
        gap if gap.abs() <= own.sd.max(other.sd).max(0.05) => "level".to_owned(),
        gap if gap > 0.0 => format!("yes ({gap:+.1})"),
        gap => format!("no ({gap:+.1})"),
    }
}
