//! Checks of an adapter against vectors of both models: items among its pairs, and the direction of its map.

use rehang_core::adapter::RowOverlap;
use rehang_core::finding::Finding;
use rehang_core::{Adapter, Matrix, Pairs, Result, Vectors};
use rehang_fit::guards;

/// Largest number of items that an adapter is checked on.
const ITEMS_MAX: usize = 2_000;

/// Counts the rows of old vectors that are among the pairs of an adapter; `None` where the adapter does not
/// remember its pairs.
pub(crate) fn among_pairs(adapter: &Adapter, old: &Matrix) -> Option<RowOverlap> {
    let sketch = adapter.training.pairs_sketch.as_ref()?;
    (old.columns() == adapter.old.dimension).then(|| sketch.overlap(old))
}

/// Checks on some of the rows whether an adapter carries old vectors to their new ones; findings say where it
/// does not. Doing nothing is not checked: it has no direction, and promises nothing.
pub(crate) fn adapter_findings(
    adapter: &Adapter,
    old: &Matrix,
    new: &Matrix,
    side: Option<&Matrix>,
) -> Result<Vec<Finding>> {
    if adapter.training.method == "do-nothing" {
        return Ok(Vec::new());
    }
    let step = old.rows().div_ceil(ITEMS_MAX).max(1);
    let rows: Vec<usize> = (0..old.rows().min(new.rows())).step_by(step).collect();
    let side = side.filter(|_| adapter.side_dimension().is_some()).map(|side| side.select(&rows));
    let old = Vectors::new(adapter.old.clone(), old.select(&rows), "old vectors")?;
    let new = Vectors::new(adapter.new.clone(), new.select(&rows), "new vectors")?;
    let pairs = Pairs::new(old, new, None, side)?;
    Ok(guards::map_direction(&adapter.map, &adapter.geometry, &pairs)?.into_iter().collect())
}
