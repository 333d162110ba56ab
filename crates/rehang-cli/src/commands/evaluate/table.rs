//! How cross matrices are shown.

use rehang::compatibility::{Compatibility, CrossMatrix};
use rehang::statistics::Interval;
use serde_json::{Value, json};

/// Rows and columns of a search.
pub const SEARCH: &str = "queries by row, gallery by column";

/// A cross matrix with what it says about every pair, as JSON and as text.
///
/// `axes` says what the rows and the columns are. `intervals` are those of the absolute gains, one a pair, or nothing.
pub fn matrix(
    title: &str,
    axes: &str,
    matrix: &CrossMatrix,
    best: Option<usize>,
    intervals: &[Interval],
) -> (Value, String) {
    let pairs = matrix.pairs(best);
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
    let value = json!({
        "matrix": matrix.values,
        "pairs": pairs.iter().enumerate().map(|(place, pair)| {
            let mut value = json!(pair);
            if let (Some(interval), Some(object)) = (intervals.get(place), value.as_object_mut()) {
                object.insert("absolute_gain_interval".into(), json!([interval.low, interval.high]));
            }
            value
        }).collect::<Vec<_>>(),
    });
    if !pairs.is_empty() {
        text += &pair_table(&pairs, intervals);
    }
    (value, text)
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

/// Two decimals, as the papers print percent; a dash where there is no number.
pub fn two_decimals(value: f64) -> String {
    if value.is_finite() { format!("{value:.2}") } else { "–".into() }
}

fn signed(value: f64) -> String {
    if value.is_finite() { format!("{value:+.2}") } else { "–".into() }
}
