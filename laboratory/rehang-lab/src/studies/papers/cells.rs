//! Tables of the pages, and how a number over several seeds is written in them.

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
