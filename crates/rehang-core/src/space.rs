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
        is_finite(vector) && (self.heeds_lengths() || norm(vector) > 0.0)
    }

    /// Whether the length of a vector makes a difference: `d(q, c·g) ≠ d(q, g)` for a factor `c > 0`. Where
    /// it makes none, directions are compared, and a zero vector has none.
    ///
    /// ```
    /// use rehang_core::Distance;
    ///
    /// assert!(Distance::L2.heeds_lengths() && Distance::Dot.heeds_lengths());
    /// assert!(!Distance::Cosine.heeds_lengths());
    /// ```
    pub fn heeds_lengths(self) -> bool {
        match self {
            Self::Cosine => false,
            Self::L2 | Self::Dot => true,
        }
    }

    /// Whether the place of the origin makes a difference: `d(q + t, g + t) ≠ d(q, g)` for a shift `t`. Where
    /// it makes none, the distance depends on differences of coordinates alone.
    ///
    /// ```
    /// use rehang_core::Distance;
    ///
    /// assert!(Distance::Cosine.heeds_origin() && Distance::Dot.heeds_origin());
    /// assert!(!Distance::L2.heeds_origin());
    /// ```
    pub fn heeds_origin(self) -> bool {
        match self {
            Self::L2 => false,
            Self::Cosine | Self::Dot => true,
        }
    }

    /// Whether no vector is nearer to a vector than itself, whatever their lengths: `d(v, v) ≤ d(v, g)`. By
    /// inner products a longer one is.
    ///
    /// ```
    /// use rehang_core::Distance;
    ///
    /// assert!(Distance::L2.finds_itself() && Distance::Cosine.finds_itself());
    /// assert!(!Distance::Dot.finds_itself());
    /// ```
    pub fn finds_itself(self) -> bool {
        match self {
            Self::L2 | Self::Cosine => true,
            Self::Dot => false,
        }
    }

    /// Name of the measure in which applications set floors and servers give scores, for readers.
    pub fn measure(self) -> &'static str {
        match self {
            Self::L2 => "Euclidean distance",
            Self::Cosine => "cosine similarity",
            Self::Dot => "inner product",
        }
    }

    /// Returns the distance that a value `s` of the [measure](Self::measure) stands for: `s²` of a Euclidean
    /// distance (0 where `s` is negative), `1 − s` of a cosine similarity, `−s` of an inner product.
    ///
    /// ```
    /// use rehang_core::Distance;
    ///
    /// assert_eq!(Distance::L2.of_measure(3.0), 9.0);
    /// assert_eq!(Distance::Cosine.of_measure(0.75), 0.25);
    /// assert_eq!(Distance::Dot.of_measure(3.0), -3.0);
    /// ```
    pub fn of_measure(self, value: f64) -> f64 {
        match self {
            Self::L2 => value.max(0.0).powi(2),
            Self::Cosine => 1.0 - value,
            // As in `between`: no negative zero.
            Self::Dot => 0.0 - value,
        }
    }

    /// Returns a distance `d` in the [measure](Self::measure): `√d` as a Euclidean distance (0 where `d` is
    /// negative), `1 − d` as a cosine similarity, `−d` as an inner product.
    ///
    /// ```
    /// use rehang_core::Distance;
    ///
    /// assert!(Distance::ALL.iter().all(|distance| distance.of_measure(distance.in_measure(0.25)) == 0.25));
    /// ```
    pub fn in_measure(self, distance: f64) -> f64 {
        match self {
            Self::L2 => distance.max(0.0).sqrt(),
            Self::Cosine => 1.0 - distance,
            Self::Dot => 0.0 - distance,
        }
    }

    /// Returns a mean squared error `e = E‖v − h‖²` of vectors in the unit of the distance, where
    /// `squared_length` is the mean `E‖v‖²`. It is `e` by L2. As `‖q − v‖² = 2 (1 − ⟨q, v⟩)` for vectors of
    /// length 1, it is `e / 2` by inner products, and `e / (2 E‖v‖²)` by cosines (0 for zero vectors).
    ///
    /// ```
    /// use rehang_core::Distance;
    ///
    /// assert_eq!(Distance::ALL.map(|distance| distance.of_squared_error(1.0, 4.0)), [1.0, 0.125, 0.5]);
    /// assert_eq!(Distance::Cosine.of_squared_error(1.0, 0.0), 0.0);
    /// ```
    pub fn of_squared_error(self, error: f64, squared_length: f64) -> f64 {
        match self {
            Self::L2 => error,
            Self::Cosine if squared_length > 0.0 => error / (2.0 * squared_length),
            Self::Cosine => 0.0,
            Self::Dot => error / 2.0,
        }
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

    /// Whether vectors of the space may differ in length, and its distance [heeds](Distance::heeds_lengths)
    /// lengths.
    pub fn heeds_lengths(&self) -> bool {
        !self.normalised && self.distance.heeds_lengths()
    }

    /// Whether no vector of the space is nearer to a vector than [itself](Distance::finds_itself). Between
    /// vectors of length 1 none is, by any distance.
    pub fn finds_itself(&self) -> bool {
        self.normalised || self.distance.finds_itself()
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
