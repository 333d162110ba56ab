//! Compatible models: may the new model's queries search the old model's gallery, and what is it worth?
//!
//! `M(i, j)` is a metric (in percent, larger is better) with queries by model i and gallery by model j.
//! Everything here is read off the **cross matrix** of all `M(i, j)`:
//!
//! - [`criterion_met`](rehang_core::gains::criterion_met): `M(new, old) > M(old, old)` (BCT eq. 2).
//! - [`update_gain`](rehang_core::gains::update_gain) Γ:
//!   `(M(new, old) − M(old, old)) / (M(new*, new*) − M(old, old))`, in percent; new* is the best variant of
//!   the new model (BCT eq. 9).
//! - [`absolute_gain`](rehang_core::gains::absolute_gain): `M(new, old) − M(old, old)`, in points (BCT tables 1,
//!   3, 4).
//! - [`gain_up`](rehang_core::gains::gain_up) Δ↑: `(M(new, old) − M(old, old)) / M(old, old)`, in percent (DMU eq.
//!   6).
//! - [`gain_down`](rehang_core::gains::gain_down) Δ↓: `(M(new*, new*) − M(new, new)) / M(new*, new*)`, in percent
//!   (DMU eq. 7).
//!
//! `new*` is the best model that could be had with a full backfill: as a rule the new architecture trained on
//! the new data without any regard for the old model (BCT's paragon, DMU's oracle).
//!
//! [`cross_evaluate`] fills the matrix with retrieval metrics; [`CrossMatrix::from_fn`] with any other, such
//! as TAR@FAR of [`crate::verification`]. [`hot_refresh`] follows a gallery while it is backfilled, order by
//! order; [`upgrade_sequence`] follows it through several models, with and without backfills.
//!
//! # Different widths
//!
//! A gallery's vectors are stored and indexed, so it is the query that is made to fit
//! ([`Matrix::at_width`](rehang_core::Matrix::at_width)): of a wider query the first coordinates count (BCT §3.6
//! trains the new model for that), a narrower one is filled up with zeros. In a gallery that is being
//! backfilled ([`hot_refresh`]) each vector is compared with the query as it is made to fit that vector:
//! under cosine an old one with the query that is cut and has a length of its own. Were old vectors filled up
//! with zeros (as openBCT does), the coordinates that only new vectors have would count against every old
//! one, and what is backfilled first would come first. A gallery that went through several models
//! ([`upgrade_sequence`]) is kept in one index, in the widest of their widths, narrower vectors filled up
//! with zeros: compare models of one width there.

mod cross;
mod matrix;
mod model;
mod refresh;
mod sequence;

pub use cross::{Cell, CrossEvaluation, CrossInput, WidthRule, cross_evaluate};
pub use matrix::{Compatibility, CrossMatrix, paired_difference};
pub use model::Model;
pub use refresh::{Refresh, RefreshInput, hot_refresh};
pub use sequence::{SequenceInput, SequenceStep, UpgradeStep, upgrade_sequence};
