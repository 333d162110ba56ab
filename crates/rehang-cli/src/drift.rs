//! Whether vectors look like those that an adapter was fitted on.

use rehang::adapter::{Drift, input_drift};
use rehang::{Adapter, ErrorKind, Matrix, Result};

/// In which way the vectors look unlike those that the adapter was fitted on, without a full stop; an error where they
/// look like the new model's.
pub fn drift(adapter: &Adapter, rows: &Matrix, what: &str, force: bool) -> Result<Option<String>> {
    let Some(drift) = input_drift(adapter, rows)?.filter(Drift::is_suspicious) else { return Ok(None) };
    let pattern = |correlation: Option<f64>| correlation.map_or("–".into(), |value| format!("{value:.2}"));
    let seen = format!(
        "{what} does not look like the vectors that the adapter was fitted on (its coordinates' means correlate {} with those, \
         their spreads {}, lengths are {} times as large)",
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
    Ok(Some(seen))
}
