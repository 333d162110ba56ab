//! Adapters: the map h from old vectors to the new space, with an uncertainty σ² for every output.
//!
//! An [`Adapter`] is data. `rehang-fit` fits it. This module holds its parts and applies it ([`apply`], or an
//! [`Applier`] for streams). `rehang-files` reads and writes its file.
//!
//! An old vector `o` takes this way:
//!
//! 1. it is scaled as [`InputScaling`] says and goes through the [`Map`]: the raw output `raw(o)` `[d_new]`;
//! 2. [`Uncertainty`] gives σ², an estimate of `‖v − h(o)‖²`;
//! 3. [`Geometry`] turns the raw output into `h(o)`, which lies where vectors of the new space lie.
//!
//! The length `‖raw(o)‖` is kept as well: where the new space is normalised, a short raw output says that the
//! adapter is unsure, and no head has to be trained for that.

mod apply;
mod definition;
mod expansion;
mod geometry;
mod guard;
mod kernel;
mod out_of_fold;
mod sketch;
mod uncertainty;

pub use apply::{Adapted, Applier, apply};
pub use definition::{Adapter, BranchInput, Dense, InputScaling, Map, PerKind, SecondBranch, Training};
pub use expansion::KernelExpansion;
pub use geometry::Geometry;
pub use guard::{
    DRIFT_COLUMNS_MIN, DRIFT_CORRELATION_MIN, DRIFT_NORM_RATIO_MAX, DRIFT_ROWS_MIN, Drift, InputStatistics,
    input_drift, unlike_pairs,
};
pub use out_of_fold::{NearestAnchors, OutOfFold, SPARE_CANDIDATES, cosine_weight};
pub use sketch::{RowOverlap, RowSketch, lookalikes, overlap};
pub use uncertainty::{LOG_VARIANCE_LIMIT, Uncertainty, true_errors};
