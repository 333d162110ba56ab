//! How a fusion was chosen, as it is told.

use serde::{Deserialize, Serialize};

use crate::held_out::HeldOutGain;

/// A weight that was tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FusionRow {
    /// How much of a distance is the adapted vector's.
    pub weight: f64,
    /// What it gains over doing nothing at the switch, by gallery and metric.
    pub gains: Vec<HeldOutGain>,
    /// The least of all gains less one standard error.
    pub low: f64,
}

/// How a fusion was chosen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FusionChoice {
    /// What is measured, as [`Selection::criterion`](crate::Selection::criterion).
    pub criterion: String,
    /// How often another part was held out.
    pub splits: usize,
    /// Every weight.
    pub rows: Vec<FusionRow>,
    /// The row that was kept.
    pub kept: usize,
    /// Its handicap as a part of the mean squared error.
    pub handicap: f64,
}
