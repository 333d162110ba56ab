//! Whether vectors look like those that an adapter was fitted on.

use rehang::adapter::input_drift;
use rehang::{Adapter, ErrorKind, Matrix, Result};

use crate::commands::say;

/// Whether the vectors look unlike those that the adapter was fitted on; an error where they look like the new model's.
pub fn drifts(adapter: &Adapter, rows: &Matrix, what: &str, force: bool) -> Result<bool> {
    match input_drift(adapter, rows)? {
        Some(drift) if drift.is_suspicious() => {
            let pattern =
                |correlation: Option<f64>| correlation.map_or("–".into(), |value| format!("{value:.2}"));
            let seen = format!(
                "{what} does not look like the vectors that the adapter was fitted on (its coordinates' means correlate \
                 {} with those, their spreads {}, lengths are {} times as large)",
                pattern(drift.mean_correlation),
                pattern(drift.spread_correlation),
                pattern(drift.norm_ratio)
            );
            if !force && adapter.old.dimension == adapter.new.dimension {
                return Err(ErrorKind::WrongDirection {
                    evidence: format!(
                        "{seen}, and both models have {} coordinates; pass --force if these are old vectors all the same",
                        adapter.old.dimension
                    ),
                }
                .into());
            }
            say(&format!("Warning: {seen}. Expect larger errors; σ² may not show them."));
            Ok(true)
        }
        _ => Ok(false),
    }
}
