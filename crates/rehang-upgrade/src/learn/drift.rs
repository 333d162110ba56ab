//! Drift of a gallery's vectors from those that a map was fitted for, told before anything is written.

use rehang_core::adapter::{Adapter, input_drift};
use rehang_core::finding::{Finding, FindingCode};
use rehang_core::{Matrix, Result};
use rehang_store::Ledger;

use crate::live::sample;

/// Number of vectors that are looked at before an adapter is applied to a whole gallery.
const INPUT_SAMPLE: usize = 512;

/// Compares a gallery's old vectors with those that the adapter was fitted on, and warns where they do not
/// look alike; `None` where nothing is suspicious. Vectors that cannot be placed are passed over.
///
/// # Errors
///
/// Those of the store; wrong direction and width mismatch as [`Adapter::expect_input_width`].
pub(crate) fn input_drift_finding(
    store: &dyn Ledger,
    adapter: &Adapter,
    old: &str,
) -> Result<Option<Finding>> {
    let vectors =
        sample::draw(store, old, INPUT_SAMPLE, Some(old))?.into_iter().filter_map(|record| record.vector);
    // Vectors that the fill passes over say nothing of the others.
    let vectors = vectors.map(|vector| vector.vector).filter(|vector| adapter.old.distance.can_place(vector));
    let rows: Vec<f32> = vectors.flatten().collect();
    if rows.is_empty() {
        return Ok(None);
    }
    let Some(drift) = input_drift(adapter, &Matrix::new(adapter.old.dimension, rows)?)? else {
        return Ok(None);
    };
    Ok(drift.is_suspicious().then(|| {
        let number = |value: Option<f64>| value.map_or("–".into(), |value| format!("{value:.2}"));
        let message = format!(
            "the vectors of space {old:?} do not look like those that the adapter was fitted on (means of coordinates \
             correlate {}, spreads {}, lengths are {} times as large): is it the adapter of this gallery, in this \
             direction?",
            number(drift.mean_correlation),
            number(drift.spread_correlation),
            number(drift.norm_ratio)
        );
        Finding::warning(FindingCode::InputDrift, message)
    }))
}
