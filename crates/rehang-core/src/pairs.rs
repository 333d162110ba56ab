//! Pairs: items embedded by both models, from which an adapter is learned.

use crate::check::expect_count;
use crate::error::Result;
use crate::vectors::{Labels, Matrix, Vectors};

/// Items embedded by both models, row by row: old `[n, d_old]`, new `[n, d_new]`, and labels and side
/// information where they are known.
#[derive(Debug, Clone, PartialEq)]
pub struct Pairs {
    old: Vectors,
    new: Vectors,
    labels: Option<Labels>,
    side: Option<Matrix>,
}

impl Pairs {
    /// Builds pairs from vectors that go row by row.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::CountMismatch`] where the parts have different numbers of rows,
    /// [`crate::ErrorKind::NotFinite`] for side information that is NaN or infinite.
    pub fn new(old: Vectors, new: Vectors, labels: Option<Labels>, side: Option<Matrix>) -> Result<Self> {
        let same_count = |what: &str, count: usize| expect_count("old vectors", old.len(), what, count);
        same_count("new vectors", new.len())?;
        if let Some(labels) = &labels {
            same_count("labels", labels.len())?;
        }
        if let Some(side) = &side {
            same_count("side information", side.rows())?;
            side.check_finite("side information")?;
        }
        Ok(Self { old, new, labels, side })
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.old.len()
    }

    /// Whether there are no pairs (never, once constructed).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Vectors of the old model, `[n, d_old]`.
    pub fn old(&self) -> &Vectors {
        &self.old
    }

    /// Vectors of the new model, `[n, d_new]`.
    pub fn new_vectors(&self) -> &Vectors {
        &self.new
    }

    /// Class labels, `[n]`; a negative label means "not known".
    pub fn labels(&self) -> Option<&[i64]> {
        self.labels.as_deref()
    }

    /// Side information, `[n, d_side]`.
    pub fn side(&self) -> Option<&Matrix> {
        self.side.as_ref()
    }

    /// Selects the pairs with these `indices`, in that order.
    #[must_use]
    pub fn select(&self, indices: &[usize]) -> Self {
        Self {
            old: self.old.select(indices),
            new: self.new.select(indices),
            labels: self.labels.as_ref().map(|labels| indices.iter().map(|&index| labels[index]).collect()),
            side: self.side.as_ref().map(|side| side.select(indices)),
        }
    }
}
