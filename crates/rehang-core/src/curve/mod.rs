//! The exact backfilling curve, and the same metrics for a gallery that stays as it is.
//!
//! While a gallery is backfilled in an order π, its first c items carry native vectors and the rest adapted
//! ones. The **curve** of a metric is its value at every c from 0 to n (FastFill §5.1); its **area** is the
//! mean of these values, the last one left out ([`Line::area`]). [`curve()`] computes all n + 1 values
//! exactly; a grid is only a way of showing them ([`Line::grid`]).
//!
//! # Definitions
//!
//! A **ranking** holds the gallery items by ascending (distance, gallery index): equal distances are ranked
//! by index. Where the gallery is its own query set, the query itself is left out by its index; its
//! [copies](crate::copies) are left out by the caller. Queries without a right answer are left out of every
//! mean and counted in [`QueryCount`]. Values are percent, 0 to 100.
//!
//! | metric | of one query with P right answers at ranks r_1 < … < r_P |
//! |---|---|
//! | top-k (CMC) | 1 where r_1 ≤ k |
//! | mAP | `1/P · Σ_i i / r_i` |
//! | mAP@k | `1/min(P, k) · Σ_{r_i ≤ k} i / r_i` (Google Landmarks v2) |
//! | nDCG@k | `Σ_{r_i ≤ k} gain_i / log2(r_i + 1)` over its largest possible value (linear gain, as trec_eval) |
//! | recall@k | share of right answers with r_i ≤ k |
//! | MRR@k | `1 / r_1` where r_1 ≤ k, else 0 |
//! | agreement@k | share of the k nearest items that are also among the k nearest of the fully native gallery |
//!
//! L2 distances do not depend on the origin. Where all vectors share an offset of a hundred times their
//! spread or more, the offset is taken out before distances are computed, so that no digits are lost to it.
//!
//! # Cost
//!
//! There are two products `[m, d] × [d, n]`. Then, for every query, one pass over the gallery follows, in
//! which an item costs a few nanoseconds plus the right answers that it overtakes (`sweep.rs`). Distances
//! exist for one block of queries at a time. So memory is the vectors in `f32`, once more packed, and a few
//! `f64` lines a thread. The results have the same bits whatever the number of threads and whatever the
//! processor.

// The inner loops are written once and compiled for several instruction sets.
#![allow(
    clippy::inline_always,
    reason = "what the inner loops call must be compiled for each instruction set too"
)]

mod centre;
mod distances;
mod evaluate;
mod exact;
mod forecast;
mod input;
mod known;
mod line;
mod measured;
mod metrics;
mod registers;
mod relevance;
mod sweep;
mod thresholds;

pub use evaluate::{
    DoNothing, Evaluation, QueryRanks, distances_by_query, evaluate, evaluate_distances,
    evaluate_leave_one_out, evaluate_today, nearest, ranks_of_answers,
};
pub use exact::{Curve, CurveInput, DoNothingLine, Flips, GROUPS_MAX, GroupLine, PerQuery, curve};
pub use forecast::{
    ENOUGH, ForecastInput, ForecastQueries, GalleryForecast, HELD_OUT_MIN, MetricForecast, forecast,
};
pub use input::{COUNT_MAX, check_vectors};
pub use known::Distances;
pub use line::{Grid, Line, grid_cuts};
pub use measured::CurveOptions;
pub use metrics::{ByMetric, MAP, Metric, TOP1, TOP5};
pub use relevance::{Qrels, QueryCount, Relevance};

pub(crate) use distances::{Panels, QueryTiles, distances};
