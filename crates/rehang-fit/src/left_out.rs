//! Outputs of a fit without some of its pairs, told by a fit on all of them.

use std::fmt::Debug;

use rayon::prelude::*;
use rehang_core::adapter::Map;
use rehang_core::{Matrix, Pairs, Progress, Result};

use crate::folds::LeftOut;

/// A fit that tells what it would give without some of its pairs, for less than fits without them cost.
/// Settings that were chosen on all pairs (a penalty, a rank) stay: one number hardly knows a pair.
pub(crate) trait LeavesOut: Debug + Send + Sync {
    /// Returns raw outputs for the pairs that each split asks about; `pairs` are those that were fitted on.
    fn outputs(&self, pairs: &Pairs, splits: &[LeftOut], progress: &Progress) -> Result<Vec<Matrix>>;
}

/// A fit whose settings are known, made anew without the pairs of a split.
pub(crate) struct Refit<F>(pub F);

impl<F> Debug for Refit<F> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Refit")
    }
}

impl<F: Fn(&Pairs) -> Result<Map> + Send + Sync> LeavesOut for Refit<F> {
    fn outputs(&self, pairs: &Pairs, splits: &[LeftOut], progress: &Progress) -> Result<Vec<Matrix>> {
        let of_split = |split: &LeftOut| {
            progress.check()?;
            let map = (self.0)(&pairs.select(&split.fitted))?;
            map.outputs(&pairs.old().matrix().select(&split.asked), None)
        };
        splits.par_iter().map(of_split).collect()
    }
}

/// Returns the outputs that a fit on all pairs would give for every pair without its fold: `[n, d_new]`.
pub(crate) fn without_folds(
    without: &dyn LeavesOut,
    pairs: &Pairs,
    fold: &[usize],
    progress: &Progress,
) -> Result<Matrix> {
    let splits = LeftOut::from_folds(fold);
    let outputs_by_split = without.outputs(pairs, &splits, progress)?;
    let mut outputs = Matrix::zeros(pairs.len(), pairs.new_vectors().dimension());
    for (split, split_outputs) in splits.iter().zip(&outputs_by_split) {
        for (place, &item) in split.asked.iter().enumerate() {
            outputs.row_mut(item).copy_from_slice(split_outputs.row(place));
        }
    }
    Ok(outputs)
}
