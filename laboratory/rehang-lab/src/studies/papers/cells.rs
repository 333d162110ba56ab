//! Tables of the pages, and how a number over several seeds is written in them and held against another.

use std::cmp::Ordering;
use std::fmt;
use std::fmt::Write as _;

use rehang_core::statistics::{MeanSd, mean_sd};

/// Mean of measurements, and how far it may be off.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Mean of the measurements.
    pub mean: f64,
    /// Standard deviation over seeds; of a single seed, the standard error over its queries.
    pub spread: f64,
}

impl Measured {
    /// Measures over the values of several seeds; gives nothing without values.
    pub fn over_seeds(values: &[f64]) -> Option<Self> {
        mean_sd(values).map(|several| Self { mean: several.mean, spread: several.sd })
    }

    /// Compares two means. They are level where they are no farther apart than the larger of the two spreads,
    /// or than what is shown as 0.0.
    pub fn compared(self, other: Self) -> Ordering {
        let gap = self.mean - other.mean;
        let is_level = gap.abs() <= self.spread.max(other.spread).max(0.05);
        if is_level { Ordering::Equal } else { gap.total_cmp(&0.0) }
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ± {:.1}", rounded(self.mean), self.spread)
    }
}

/// Writes a table in Markdown: columns after the first stand to the right.
pub fn markdown(columns: &[&str], rows: &[Vec<String>]) -> String {
    let mut text = format!("| {} |\n|---|{}\n", columns.join(" | "), "--:|".repeat(columns.len() - 1));
    for row in rows {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
    text
}

/// Writes a number with one decimal; 0.0 has no sign.
pub fn rounded(number: f64) -> String {
    format!("{:.1}", if number.abs() < 0.05 { 0.0 } else { number })
}

/// Writes `mean ± sd` over seeds; the mean alone for one seed, a dash for none.
pub fn shown(number: Option<MeanSd>) -> String {
    match number {
        None => "–".into(),
        Some(only) if only.count == 1 => rounded(only.mean),
        Some(several) => Measured { mean: several.mean, spread: several.sd }.to_string(),
    }
}

/// Writes `mean ± sd` of the values of several seeds.
pub fn spread(values: &[f64]) -> String {
    shown(mean_sd(values))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_within_the_larger_spread_are_level() {
        let measured = |values: &[f64]| Measured::over_seeds(values).unwrap();
        // Standard deviations are 1 and 0.
        let wide = measured(&[69.0, 70.0, 71.0]);
        assert_eq!(wide.compared(measured(&[70.9; 3])), Ordering::Equal);
        assert_eq!(measured(&[70.9; 3]).compared(wide), Ordering::Equal);
        assert_eq!(wide.compared(measured(&[71.1; 3])), Ordering::Less);
        assert_eq!(measured(&[71.1; 3]).compared(wide), Ordering::Greater);
        assert_eq!(measured(&[70.04]).compared(measured(&[70.0])), Ordering::Equal);
        assert_eq!(Measured::over_seeds(&[]), None);
        assert_eq!(measured(&[-0.01, 0.01, -0.01]).to_string(), "0.0 ± 0.0");
    }
}
