//! Finds out before anything is paid whether a gallery has outgrown the pairs that the map of its upgrade was
//! fitted on.

use rehang_core::adapter::{self, Adapter};
use rehang_core::finding::{Finding, FindingCode};
use rehang_core::{Matrix, Progress, Remedy, Result, Vectors};
use rehang_fit::refit::MeanError;
use rehang_store::{Ledger, find_space};

use crate::learn::fit;
use crate::learn::pairs::{HELD_OUT_SHARE, is_held_out};
use crate::learn::refit::{MORE_PAIRS_MIN, refits};
use crate::live::sample;
use crate::setup::UpgradeSetup;

/// Number of items at the start of the gallery's shuffle that [`outgrown`] looks at.
const SAMPLE: usize = 4096;
/// Old vectors that are read at a time.
const PAGE: usize = 1024;

/// Finds out whether a gallery has outgrown the pairs that its map was fitted on, by σ² alone.
///
/// σ² of items that are no pairs is compared with σ² of the pairs that were held out
/// ([`MeanError::has_outgrown`]). Both are among the first items of the shuffle, so each is a random sample.
/// The result is `None` where nothing gives the growth away and where the map was fitted elsewhere. It is
/// also `None` once more items are native than the pairs: natives that an order took for the hardest say
/// nothing of the others, and a [`Refit`](crate::Refit) measures then.
///
/// # Errors
///
/// Those of the store, and of applying the map.
pub(crate) fn outgrown(store: &dyn Ledger, setup: &UpgradeSetup<'_>) -> Result<Option<Finding>> {
    let (Some(adapter), old, new) = (setup.adapter, setup.old, setup.new) else { return Ok(None) };
    if find_space(store, &new.name)?.is_none()
        || !refits(store, &new.name)?.is_empty()
        || fit::fitted(store, &new.name)? != Some(rehang_files::adapter_file::fingerprint(adapter)?)
    {
        return Ok(None);
    }
    let pairs = adapter.training.pairs as f64 / (1.0 - HELD_OUT_SHARE);
    if store.counts(&new.name)?.native as f64 > MORE_PAIRS_MIN * pairs {
        return Ok(None);
    }
    let (mut errors_of_pairs, mut errors_of_others, mut looked_at) = (Vec::new(), Vec::new(), 0);
    for page in sample::first_of_shuffle(store, &new.name, SAMPLE)?.chunks(PAGE) {
        let keys: Vec<_> = page.iter().map(|record| record.item.key).collect();
        let (mut held_out, mut not_native) = (Vec::new(), Vec::new());
        for (record, before) in page.iter().zip(store.vectors(&old.name, &keys)?) {
            let Some(before) = before.filter(|before| old.distance.can_place(&before.vector)) else {
                continue;
            };
            looked_at += 1;
            if !sample::is_native(record) {
                not_native.extend(before.vector);
            } else if is_held_out(&before.vector) {
                held_out.extend(before.vector);
            }
        }
        errors_of_pairs.extend(expected_errors(adapter, held_out)?);
        errors_of_others.extend(expected_errors(adapter, not_native)?);
    }
    let (Some(error_of_pairs), Some(error_of_others)) =
        (MeanError::from_errors(&errors_of_pairs), MeanError::from_errors(&errors_of_others))
    else {
        return Ok(None);
    };
    let share = errors_of_others.len() as f64 / f64::from(looked_at);
    Ok(error_of_others.has_outgrown(&error_of_pairs, share).then(|| {
        let times = error_of_others.times(&error_of_pairs);
        let text = format!(
            "The gallery is not what the pairs were drawn from: σ² of its other items is {times:.2} times that of held-out pairs ({} and {} items, at random).",
            error_of_others.items, error_of_pairs.items
        );
        Finding::warning(FindingCode::GalleryDrift, text)
            .may_mean("What is forecast is for the gallery as it was, and adapted vectors are farther off than that.")
            .remedy("Draw pairs of the gallery as it is, fit the map and report again.")
            .next(Remedy::DrawPairs)
            .evidence(&[("expected_times", times), ("share", share)])
    }))
}

/// Returns σ² of old vectors that lie one after another in `rows`.
fn expected_errors(adapter: &Adapter, rows: Vec<f32>) -> Result<Vec<f64>> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let rows = Matrix::new(adapter.old.dimension, rows)?;
    let old = Vectors::measured(&adapter.old.name, adapter.old.distance, rows, "old vectors")?;
    let applied = adapter::apply(adapter, &old, None, &Progress::default())?;
    Ok(applied.variance.iter().map(|&value| f64::from(value)).collect())
}
