//! Geometries: how a raw output is moved to where vectors of the new space lie.

use serde::{Deserialize, Serialize};

use super::kernel::dot;
use crate::check::{expect_count, expect_finite, expect_width};
use crate::error::{Error, ErrorKind, Result};
use crate::length::{NORMALISED_TOLERANCE, norm};
use crate::vectors::Matrix;

/// Way in which a raw output is put into the new space.
///
/// With `r = ‖raw‖`:
///
/// | kind | `h(o)` | where `r = 0` |
/// |---|---|---|
/// | [`Geometry::Raw`] | `raw` | zero |
/// | [`Geometry::Sphere`] | `raw / r` | the fallback |
/// | [`Geometry::MatchedNorms`] | `raw · q(r) / r`, q the quantile map of lengths | zero: no direction is known |
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Geometry {
    /// The raw output stays as it is (the published recipe).
    Raw,
    /// The raw output is scaled to length 1, for spaces whose vectors are normalised. A zero output becomes
    /// `fallback`.
    Sphere {
        /// Direction that a zero output gets, of length 1: the normalised mean of the new vectors, `[d_new]`.
        fallback: Vec<f32>,
    },
    /// The length of the raw output is replaced by the native length of the same rank: piecewise linear
    /// between quantiles.
    ///
    /// `q(raw[i]) = native[i]`, linear in between. A length below the first quantile gets the first native
    /// length, and one above the last quantile gets the last. So no output is shorter or longer than native
    /// vectors are. Where several raw quantiles are equal, that length gets the middle of their native
    /// lengths.
    MatchedNorms {
        /// Lengths of raw outputs at equally spaced ranks (out-of-fold), never decreasing.
        raw: Vec<f32>,
        /// Lengths of native vectors at the same ranks, never decreasing.
        native: Vec<f32>,
    },
}

impl Geometry {
    /// Name of the geometry in files and reports.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Sphere { .. } => "sphere",
            Self::MatchedNorms { .. } => "matched-norms",
        }
    }

    /// Puts raw outputs `[n, d_new]` into the new space.
    pub fn conformed(&self, mut raw: Matrix) -> Matrix {
        for row in 0..raw.rows() {
            let row = raw.row_mut(row);
            self.conform(row, dot(row, row).sqrt());
        }
        raw
    }

    /// Turns a raw output of length `raw_norm` into h(o), in place.
    pub(super) fn conform(&self, row: &mut [f32], raw_norm: f64) {
        let length = match self {
            Self::Raw => return,
            Self::Sphere { fallback } if raw_norm == 0.0 => return row.copy_from_slice(fallback),
            Self::MatchedNorms { .. } if raw_norm == 0.0 => return,
            Self::Sphere { .. } => 1.0,
            Self::MatchedNorms { raw, native } => quantile_map(raw, native, raw_norm),
        };
        let factor = length / raw_norm;
        for value in row {
            *value = (f64::from(*value) * factor) as f32;
        }
    }

    pub(super) fn check(&self, d_new: usize) -> Result<()> {
        match self {
            Self::Raw => Ok(()),
            Self::Sphere { fallback } => {
                expect_width("fallback of the sphere", d_new, fallback.len())?;
                expect_finite("fallback of the sphere", fallback)?;
                let norm = norm(fallback);
                if (norm - 1.0).abs() > NORMALISED_TOLERANCE {
                    let what = "fallback of the sphere".into();
                    return Err(ErrorKind::NotNormalised { what, row: 0, norm }.into());
                }
                Ok(())
            }
            Self::MatchedNorms { raw, native } => {
                expect_count("raw lengths", raw.len(), "native lengths", native.len())?;
                for (what, lengths) in [("raw lengths", raw), ("native lengths", native)] {
                    if lengths.is_empty() {
                        return Err(ErrorKind::Empty { what: what.into() }.into());
                    }
                    expect_finite(what, lengths)?;
                    if lengths[0] < 0.0 || lengths.windows(2).any(|pair| pair[0] > pair[1]) {
                        let value = "a list that decreases or begins below 0";
                        return Err(Error::option(what, value, "lengths that never decrease"));
                    }
                }
                Ok(())
            }
        }
    }
}

/// Native length at the rank that `length` has among raw lengths.
fn quantile_map(raw: &[f32], native: &[f32], length: f64) -> f64 {
    // Lengths in files and the quantiles are in single precision, so the length is rounded to it in order to
    // find an equal one.
    let length = f64::from(length as f32);
    let below = raw.partition_point(|&value| f64::from(value) < length);
    let not_above = raw.partition_point(|&value| f64::from(value) <= length);
    let at = |index: usize| f64::from(native[index]);
    if below < not_above {
        return f64::midpoint(at(below), at(not_above - 1));
    }
    if below == 0 {
        return at(0);
    }
    if below == raw.len() {
        return at(below - 1);
    }
    let (left, right) = (f64::from(raw[below - 1]), f64::from(raw[below]));
    let share = (length - left) / (right - left);
    at(below - 1) + share * (at(below) - at(below - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_interpolated_between_quantiles_and_stay_native_outside() {
        let (raw, native) = ([1.0, 2.0, 2.0, 4.0], [10.0, 20.0, 30.0, 40.0]);
        for (length, expected) in
            [(0.5, 10.0), (1.0, 10.0), (1.5, 15.0), (2.0, 25.0), (3.0, 35.0), (9.0, 40.0)]
        {
            assert_eq!(quantile_map(&raw, &native, length), expected, "length {length}");
        }
        assert_eq!(quantile_map(&[1.0], &[3.0], 7.0), 3.0);
    }

    #[test]
    fn a_zero_output_has_a_defined_place_in_every_geometry() {
        let sphere = Geometry::Sphere { fallback: vec![0.0, 1.0] };
        let matched = Geometry::MatchedNorms { raw: vec![1.0], native: vec![2.0] };
        for (geometry, expected) in [(Geometry::Raw, [0.0, 0.0]), (sphere, [0.0, 1.0]), (matched, [0.0, 0.0])]
        {
            let mut row = [0.0, 0.0];
            geometry.conform(&mut row, 0.0);
            assert_eq!(row, expected, "{}", geometry.name());
        }
    }

    #[test]
    fn outputs_get_the_length_that_their_geometry_asks_for() {
        let mut row = [3.0, 4.0];
        Geometry::Sphere { fallback: vec![1.0, 0.0] }.conform(&mut row, 5.0);
        assert_eq!(row, [0.6, 0.8]);
        let mut row = [3.0, 4.0];
        Geometry::MatchedNorms { raw: vec![0.0, 10.0], native: vec![10.0, 30.0] }.conform(&mut row, 5.0);
        assert_eq!(row, [12.0, 16.0]);
    }

    #[test]
    fn geometries_that_cannot_be_are_refused() {
        assert!(Geometry::Sphere { fallback: vec![1.0] }.check(2).unwrap_err().is_mismatch());
        assert!(Geometry::Sphere { fallback: vec![1.0, 1.0] }.check(2).unwrap_err().is_corrupt());
        let matched = |raw: &[f32], native: &[f32]| {
            Geometry::MatchedNorms { raw: raw.to_vec(), native: native.to_vec() }.check(2)
        };
        assert!(matched(&[1.0, 2.0], &[1.0, 1.0]).is_ok());
        assert!(matched(&[1.0], &[1.0, 2.0]).unwrap_err().is_mismatch());
        assert!(matched(&[], &[]).unwrap_err().is_corrupt());
        assert!(matched(&[f32::NAN], &[1.0]).unwrap_err().is_corrupt());
        assert!(matches!(
            matched(&[2.0, 1.0], &[1.0, 1.0]).unwrap_err().kind(),
            ErrorKind::InvalidOption { .. }
        ));
    }
}
