//! Queries beside the items of a study.

use rehang::Matrix;

/// Separate queries, embedded by both models.
#[derive(Debug, Clone, Copy)]
pub struct StudyQueries<'a> {
    /// By the new model, `[m, d_new]`.
    pub new: &'a Matrix,
    /// By the old model, `[m, d_old]`, for the do-nothing line.
    pub old: Option<&'a Matrix>,
}
