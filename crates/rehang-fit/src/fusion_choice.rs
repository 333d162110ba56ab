//! Record of how a fusion was chosen, as it is told.

use serde::{Deserialize, Serialize};

use crate::lower_bounds::HeldOutGain;

/// A weight that was tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FusionRow {
    /// Share of a distance that is the adapted vector's, 0 to 1.
    pub weight: f64,
    /// Gains over doing nothing at the switch, by gallery and metric.
    pub gains: Vec<HeldOutGain>,
    /// Least of all gains, each less one standard error.
    pub low: f64,
}

/// Choice of a fusion, with everything that was tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FusionChoice {
    /// Name of the metric that is measured, as [`Selection::criterion`](crate::Selection::criterion).
    pub criterion: String,
    /// Number of other items of the gallery that held-out pairs asked; 0 where they asked each other.
    #[serde(default)]
    pub others: usize,
    /// Number of splits: how often another part was held out.
    pub splits: usize,
    /// Rows, one for every weight.
    pub rows: Vec<FusionRow>,
    /// Place of the row that was kept.
    pub kept: usize,
    /// Whether this row is proven to find more than mixed searches, by what held-out pairs found among the
    /// other items: more by the criterion by one standard error, and less by nothing.
    #[serde(default)]
    pub is_above_mixed: bool,
    /// Handicap of the row that was kept, as a part of the mean squared error.
    pub handicap: f64,
}
