//! Choice of a bridge on pairs of a gallery, for its searches and for a report.

use rehang_core::finding::{Finding, FindingCode};
use rehang_core::{Bridge, Progress, Result, Space};
use rehang_fit::{FitParameters, FittedBridge};
use rehang_store::Ledger;

use crate::learn::pairs::{PAIRS_MAX, known_pairs};
use crate::record::Recorded;
use crate::verbs::expect_may_bridge;

/// Fits a bridge on those pairs that are not held out, and by the queries that are kept. Nothing is changed.
pub(crate) fn fit_bridge(
    store: &dyn Ledger,
    (old, new): (&Space, &Space),
    progress: &Progress,
) -> Result<FittedBridge> {
    let (drawn, pairs, parameters) = known_pairs(store, (old, new), (PAIRS_MAX, "a bridge"))?;
    let parameters = FitParameters { others: drawn.others(store, (old, new))?, ..parameters };
    rehang_fit::fit_bridge(&pairs, &parameters, progress)
}

/// Fits the bridge whose worth a report shows. There is none after the switch, when no search could use one,
/// and where none is proven. A report is worth having without one: a finding says why the fit failed.
///
/// # Errors
///
/// Cancelled where a stop is wanted; those of reading the record.
pub(super) fn for_report(
    store: &dyn Ledger,
    spaces: (&Space, &Space),
    progress: &Progress,
) -> Result<(Option<Bridge>, Option<Finding>)> {
    let recorded = Recorded::read(store)?;
    if recorded.is_some_and(|recorded| expect_may_bridge(store, &recorded.record).is_err()) {
        return Ok((None, None));
    }
    match fit_bridge(store, spaces, progress) {
        Ok(fitted) => Ok((fitted.bridge, None)),
        Err(error) if error.is_cancelled() => Err(error),
        Err(error) => {
            let message = format!("what a bridge would bring is not known: {error}");
            Ok((None, Some(Finding::note(FindingCode::NoBridge, message))))
        }
    }
}
