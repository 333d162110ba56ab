//! Separate queries of a study, which are no items of its gallery.

use rehang_core::Matrix;

/// Separate queries, embedded by both models.
#[derive(Debug, Clone, Copy)]
pub struct StudyQueries<'a> {
    /// Queries by the new model, `[m, d_new]`.
    pub new: &'a Matrix,
    /// Queries by the old model, `[m, d_old]`, for the do-nothing line.
    pub old: Option<&'a Matrix>,
}
