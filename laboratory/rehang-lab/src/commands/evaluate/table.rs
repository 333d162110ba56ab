//! Tables that show cross matrices.

use rehang_core::statistics::Interval;
use rehang_protocols::Table;
use rehang_protocols::compatibility::Compatibility;

/// Words for the axes of a search's table.
pub const SEARCH: &str = "queries by row, gallery by column";

/// Writes a cross matrix and what it says about every pair; `axes` says what the rows and the columns are.
pub fn text(title: &str, axes: &str, table: &Table) -> String {
    let matrix = &table.matrix;
    let mut text = format!("{title}, percent: {axes}\n");
    let width = matrix.names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(8);
    text += &format!("{:<width$}", "");
    for name in &matrix.names {
        text += &format!("  {name:>width$}");
    }
    text += "\n";
    for (name, values) in matrix.names.iter().zip(&matrix.values) {
        text += &format!("{name:<width$}");
        for value in values {
            text += &format!("  {:>width$}", two_decimals(*value));
        }
        text += "\n";
    }
    if !table.pairs.is_empty() {
        text += &pair_table(&table.pairs, &table.intervals);
    }
    text
}

fn pair_table(pairs: &[Compatibility], intervals: &[Interval]) -> String {
    let labels: Vec<String> = pairs.iter().map(|pair| format!("{} → {}", pair.old, pair.new)).collect();
    let width = labels.iter().map(|label| label.chars().count()).max().unwrap_or(0).max(8);
    let mut text = format!(
        "\n{:<width$}  {:>9}  {:>7}  {:>7}  {:>7}  {:>7}{}\n",
        "upgrade",
        "criterion",
        "gain",
        "Γ %",
        "Δ↑ %",
        "Δ↓ %",
        if intervals.is_empty() { "" } else { "   gain, 95 % interval" }
    );
    let or_dash = |value: Option<f64>| value.map_or("–".to_owned(), two_decimals);
    for (place, (pair, label)) in pairs.iter().zip(labels).enumerate() {
        let met = if pair.criterion_met { "met" } else { "not met" };
        text += &format!(
            "{label:<width$}  {met:>9}  {:>7}  {:>7}  {:>7}  {:>7}",
            signed(pair.absolute_gain),
            or_dash(pair.update_gain),
            or_dash(pair.gain_up),
            or_dash(pair.gain_down)
        );
        if let Some(interval) = intervals.get(place) {
            text += &format!("   {} to {}", signed(interval.low), signed(interval.high));
        }
        text += "\n";
    }
    text
}

/// Writes a number with two decimals, as the papers print percent; a dash where there is none.
pub fn two_decimals(value: f64) -> String {
    if value.is_finite() { format!("{value:.2}") } else { "–".into() }
}

fn signed(value: f64) -> String {
    if value.is_finite() { format!("{value:+.2}") } else { "–".into() }
}
