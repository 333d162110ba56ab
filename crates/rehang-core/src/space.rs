//! Spaces: where the vectors of a model live, and how distances between them are measured.
//!
//! A vector never travels without its space. Comparing two spaces is an error that names both, even when
//! their widths agree: two models of the same width give numbers that look comparable and are not.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::check::is_finite;
use crate::error::{ErrorKind, Result};
use crate::length::{norm, squared_distance};

crate::named! {
    /// Distance between two vectors of a space; smaller is nearer for all three.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Distance ("distance") {
        /// Squared Euclidean distance `‖q − g‖²` (the same order as the Euclidean distance).
        L2 = "l2",
        /// `1 − ⟨q, g⟩ / (‖q‖·‖g‖)`; a zero vector has distance 1 to everything.
        Cosine = "cosine",
        /// `−⟨q, g⟩`: the larger the inner product, the nearer.
        Dot = "dot",
    }
}

impl Distance {
    /// Computes the distance between two vectors of one width, in `f64`.
    ///
    /// ```
    /// use rehang_core::Distance;
    ///
    /// assert_eq!(Distance::L2.between(&[0.0, 0.0], &[3.0, 4.0]), 25.0);
    /// assert_eq!(Distance::Dot.between(&[1.0, 2.0], &[3.0, 4.0]), -11.0);
    /// assert_eq!(Distance::Cosine.between(&[1.0, 0.0], &[0.0, 0.0]), 1.0);
    /// ```
    pub fn between(self, a: &[f32], b: &[f32]) -> f64 {
        let pairs = || a.iter().zip(b).map(|(&a, &b)| (f64::from(a), f64::from(b)));
        match self {
            Self::L2 => squared_distance(a, b),
            // A minus sign would turn the product 0 into a negative zero, which sorts before a positive zero.
            Self::Dot => 0.0 - pairs().map(|(a, b)| a * b).sum::<f64>(),
            Self::Cosine => {
                let (mut product, mut left, mut right) = (0.0, 0.0, 0.0);
                for (a, b) in pairs() {
                    product += a * b;
                    left += a * a;
                    right += b * b;
                }
                let lengths = f64::sqrt(left) * f64::sqrt(right);
                if lengths > 0.0 { 1.0 - product / lengths } else { 1.0 }
            }
        }
    }

    /// Whether searches can rank a vector by distance: it has no NaN and no infinite number and, where
    /// cosines count, it has a direction. Every vector that a model makes and the library writes can be
    /// ranked. An application may have written others around the library.
    ///
    /// ```
    /// use rehang_core::Distance;
    ///
    /// assert!(Distance::L2.can_place(&[0.0, 0.0]) && Distance::Cosine.can_place(&[0.0, 1e-20]));
    /// assert!(!Distance::Cosine.can_place(&[0.0, 0.0]) && !Distance::L2.can_place(&[0.0, f32::NAN]));
    /// ```
    pub fn can_place(self, vector: &[f32]) -> bool {
        is_finite(vector) && (self != Self::Cosine || norm(vector) > 0.0)
    }
}

/// Space that the vectors of a model live in: the model's name, its width, its distance, and whether vectors
/// have length 1.
///
/// ```
/// use rehang_core::{Distance, Space};
///
/// let old = Space::new("resnet18-2019", 64, Distance::L2, false);
/// let new = Space::new("resnet50-2026", 64, Distance::L2, false);
/// // The same width does not make two spaces comparable.
/// assert!(old.expect_same(&new).unwrap_err().is_mismatch());
/// assert_eq!(old.to_string(), "resnet18-2019 (64-d, l2, raw)");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Space {
    /// Name by which a gallery, an adapter and a report know the space. By convention it is the name of the
    /// model that made the vectors. Files call it `model`.
    #[serde(rename = "model")]
    pub name: String,
    /// Number of coordinates of a vector.
    pub dimension: usize,
    /// Distance used for search.
    pub distance: Distance,
    /// Whether every vector has length 1 (checked wherever vectors enter).
    pub normalised: bool,
}

impl Space {
    /// Makes a space from its four properties.
    pub fn new(name: impl Into<String>, dimension: usize, distance: Distance, normalised: bool) -> Self {
        Self { name: name.into(), dimension, distance, normalised }
    }

    /// Succeeds only where `received` is this very space.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::SpaceMismatch`], naming both spaces.
    pub fn expect_same(&self, received: &Self) -> Result<()> {
        if self == received {
            return Ok(());
        }
        Err(ErrorKind::SpaceMismatch { expected: self.to_string(), received: received.to_string() }.into())
    }
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lengths = if self.normalised { "normalised" } else { "raw" };
        write!(f, "{} ({}-d, {}, {lengths})", self.name, self.dimension, self.distance)
    }
}
