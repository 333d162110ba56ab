//! The bridge: searches by new queries in an old gallery, which stays as it is.

use crate::adapter::{Map, Training};
use crate::check::{expect_count, expect_width};
use crate::error::{Error, Result};
use crate::length::{norm, normalise};
use crate::space::Space;
use crate::vectors::Matrix;

/// Bridge from the new model's queries to a gallery of the old one, before anything of that gallery is
/// written.
///
/// A query is `q = unit((1 − a) unit(q_old) + a g(q_new))`, `[n, d_old]`, where g is the adjoint of a map h
/// from old vectors to new ones. For `h(o) = W (o − μ_old) + μ_new` it is `g(q) = unit(Wᵀ (q − μ_new))`. So
/// g(q) scores an item as q scores what h makes of it, `⟨Wᵀ (q − μ_new), o⟩ = ⟨q − μ_new, h(o)⟩` up to a
/// constant, and search indexes of old vectors can be used. (A regression of old vectors on new ones has the
/// least squared error but not these scores: on real galleries it finds less.)
///
/// The result has the length of the old query, which matters to L2 alone. Without an old query it has the
/// mean length of old vectors.
///
/// | vector | is |
/// |---|---|
/// | `q_new` = 0 | no query: g is 0, and `q` is `q_old` |
/// | `q_old` = 0 | without direction: `q` is that of g, of the mean length |
/// | their sum is 0 | `q_old` |
///
/// ```
/// use rehang_core::adapter::{Dense, InputScaling, Map, Training};
/// use rehang_core::{Bridge, Distance, Matrix, Space};
///
/// let space = |name| Space::new(name, 2, Distance::Cosine, true);
/// // The new model turns everything by a right angle; g turns it back.
/// let back = Dense { weight: Matrix::new(2, vec![0.0, 1.0, -1.0, 0.0])?, bias: vec![0.0; 2], relu: false };
/// let bridge = Bridge {
///     old: space("v1"),
///     new: space("v2"),
///     map: Map::from_layers(InputScaling::UnitLength, vec![back]),
///     share: 1.0,
///     length: 1.0,
///     training: Training::default(),
/// };
/// bridge.check()?;
/// let asked = Matrix::new(2, vec![0.0, 1.0])?;
/// assert_eq!(bridge.queries(None, &asked)?.as_slice(), &[1.0, 0.0]);
/// let even = Bridge { share: 0.5, ..bridge };
/// assert!(even.queries(None, &asked).is_err(), "half of it is the old model's query");
/// let by_old = Matrix::new(2, vec![0.0, 1.0])?;
/// assert_eq!(even.queries(Some(&by_old), &asked)?.row(0), [0.5_f32.sqrt(), 0.5_f32.sqrt()]);
/// # Ok::<(), rehang_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Bridge {
    /// Space of the gallery, and of the queries that the bridge makes.
    pub old: Space,
    /// Space of the queries that the bridge reads.
    pub new: Space,
    /// Map that gives g up to its length, `[n, d_new] → [n, d_old]`: one layer without ReLU.
    pub map: Map,
    /// Share a of the new query, above 0 and at most 1. At 1 the old model has no part, and may be switched
    /// off.
    pub share: f64,
    /// Mean length of old vectors.
    pub length: f64,
    /// How the map was made of which the bridge is the adjoint.
    pub training: Training,
}

impl Bridge {
    /// Checks that all parts agree: widths, numbers finite, a share above 0 and at most 1, a length above 0.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WidthMismatch`](crate::ErrorKind::WidthMismatch),
    /// [`ErrorKind::NotFinite`](crate::ErrorKind::NotFinite),
    /// [`ErrorKind::InvalidOption`](crate::ErrorKind::InvalidOption),
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) for a map that is not one layer.
    pub fn check(&self) -> Result<()> {
        let [layer] = &self.map.mixer[..] else {
            return Err(Error::corrupt("the bridge", "its map is one layer"));
        };
        if layer.relu || self.map != Map::from_layers(self.map.input, vec![layer.clone()]) {
            return Err(Error::corrupt("the bridge", "its map is one layer without ReLU, and nothing more"));
        }
        self.map
            .check(self.new.dimension, self.old.dimension)
            .map_err(|error| error.context("the bridge"))?;
        if !(self.share > 0.0 && self.share <= 1.0) {
            return Err(Error::option("share of a bridge", self.share, "a number above 0, at most 1"));
        }
        if !(self.length > 0.0 && self.length.is_finite()) {
            return Err(Error::option("length of a bridge", self.length, "a finite number above 0"));
        }
        Ok(())
    }

    /// Whether a query needs its vector by the old model too.
    pub fn needs_old(&self) -> bool {
        self.share < 1.0
    }

    /// Makes queries for the old gallery `[n, d_old]`, from the same queries embedded by the old model
    /// `[n, d_old]` and by the new one `[n, d_new]`. Where the share is 1, those of the old model may be left
    /// out; if given, they lend their lengths.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::MissingInput`](crate::ErrorKind::MissingInput) where queries of the old model are needed;
    /// [`ErrorKind::WidthMismatch`](crate::ErrorKind::WidthMismatch),
    /// [`ErrorKind::CountMismatch`](crate::ErrorKind::CountMismatch),
    /// [`ErrorKind::NotFinite`](crate::ErrorKind::NotFinite).
    pub fn queries(&self, old: Option<&Matrix>, new: &Matrix) -> Result<Matrix> {
        if old.is_none() && self.needs_old() {
            return Err(Error::missing(
                format!("queries embedded by {:?}", self.old.name),
                "a bridge that takes a part of them",
            ));
        }
        expect_width(format_args!("queries of space {}", self.new), self.new.dimension, new.columns())?;
        new.check_finite(&format!("queries of space {}", self.new))?;
        if let Some(old) = old {
            expect_count("queries of the old model", old.rows(), "queries of the new one", new.rows())?;
            expect_width(format_args!("queries of space {}", self.old), self.old.dimension, old.columns())?;
            old.check_finite(&format!("queries of space {}", self.old))?;
        }
        let turned = self.apply_adjoint(new)?;
        let length = if self.old.normalised { 1.0 } else { self.length };
        Ok(mixed(old, &turned, self.share, length))
    }

    /// Applies g to queries of the new model, `[n, d_new] → [n, d_old]`: rows of length 1, and of length 0
    /// for a zero query.
    ///
    /// # Errors
    ///
    /// As [`Map::outputs`].
    pub fn apply_adjoint(&self, new: &Matrix) -> Result<Matrix> {
        let mut turned = self.map.outputs(new, None)?;
        for row in 0..turned.rows() {
            if norm(new.row(row)) > 0.0 {
                normalise(turned.row_mut(row));
            } else {
                turned.row_mut(row).fill(0.0);
            }
        }
        Ok(turned)
    }
}

/// Computes `unit((1 − share) unit(q_old) + share g)` at the length of the old query, or at `length` where
/// there is none: `[n, d_old]`.
///
/// Rows of `turned` have length 1 or 0. [`Bridge`] says what happens to vectors without a direction.
pub fn mixed(old: Option<&Matrix>, turned: &Matrix, share: f64, length: f64) -> Matrix {
    let mut queries = turned.clone();
    for row in 0..queries.rows() {
        let old_row = old.map(|old| (old.row(row), norm(old.row(row)))).filter(|(_, length)| *length > 0.0);
        let target = old_row.map_or(length, |(_, length)| length);
        let sum: Vec<f64> = (0..queries.columns())
            .map(|column| {
                let by_old = old_row.map_or(0.0, |(old_row, length)| f64::from(old_row[column]) / length);
                (1.0 - share) * by_old + share * f64::from(turned.row(row)[column])
            })
            .collect();
        let sum_length = sum.iter().map(|value| value * value).sum::<f64>().sqrt();
        let query = queries.row_mut(row);
        // Two queries that cancel leave only rounding, which has no direction.
        if sum_length > f64::from(f32::EPSILON) {
            for (query, sum) in query.iter_mut().zip(&sum) {
                *query = (sum / sum_length * target) as f32;
            }
        } else if let Some((old_row, _)) = old_row {
            query.copy_from_slice(old_row);
        }
    }
    queries
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::{Dense, InputScaling};
    use crate::{Distance, ErrorKind};

    fn bridge(share: f64) -> Bridge {
        let weight = Matrix::from_fn(3, 2, |row, column| (row as f32 - 1.0) * 0.5 + column as f32);
        let layer = Dense { weight, bias: vec![0.25, -0.5, 0.125], relu: false };
        Bridge {
            old: Space::new("v1", 3, Distance::L2, false),
            new: Space::new("v2", 2, Distance::Cosine, false),
            map: Map::from_layers(InputScaling::UnitLength, vec![layer]),
            share,
            length: 5.0,
            training: Training::default(),
        }
    }

    #[test]
    fn queries_are_those_of_the_formula() {
        let old = Matrix::new(3, vec![1.0, 2.0, 2.0, 0.0, -3.0, 4.0]).unwrap();
        let new = Matrix::new(2, vec![3.0, 4.0, -1.0, 0.5]).unwrap();
        let bridge = bridge(0.3);
        let queries = bridge.queries(Some(&old), &new).unwrap();
        let layer = &bridge.map.mixer[0];
        for row in 0..2 {
            let length_of = |values: &[f64]| values.iter().map(|value| value * value).sum::<f64>().sqrt();
            let [o, v] =
                [&old, &new].map(|of| of.row(row).iter().map(|&value| f64::from(value)).collect::<Vec<_>>());
            let g: Vec<f64> = (0..3)
                .map(|i| {
                    let sum: f64 =
                        (0..2).map(|j| f64::from(layer.weight.row(i)[j]) * v[j] / length_of(&v)).sum();
                    sum + f64::from(layer.bias[i])
                })
                .collect();
            let sum: Vec<f64> =
                (0..3).map(|i| 0.7 * o[i] / length_of(&o) + 0.3 * g[i] / length_of(&g)).collect();
            for i in 0..3 {
                let expected = sum[i] / length_of(&sum) * length_of(&o);
                assert!(
                    (f64::from(queries.row(row)[i]) - expected).abs() < 1e-5,
                    "{expected} {:?}",
                    queries.row(row)
                );
            }
        }
    }

    #[test]
    fn what_has_no_direction_has_a_rule() {
        let (old, none) = (Matrix::new(3, vec![0.0, 3.0, 4.0]).unwrap(), Matrix::zeros(1, 3));
        let (new, no_query) = (Matrix::new(2, vec![3.0, 4.0]).unwrap(), Matrix::zeros(1, 2));
        let close =
            |a: &Matrix, b: &Matrix| a.as_slice().iter().zip(b.as_slice()).all(|(a, b)| (a - b).abs() < 1e-5);
        assert!(close(&bridge(0.5).queries(Some(&old), &no_query).unwrap(), &old));
        let alone = bridge(1.0).queries(None, &new).unwrap();
        assert!((norm(alone.row(0)) - 5.0).abs() < 1e-5);
        assert!(close(&bridge(0.5).queries(Some(&none), &new).unwrap(), &alone));
        assert_eq!(bridge(1.0).queries(None, &no_query).unwrap(), none);
        // Opposite vectors cancel.
        let turned = Matrix::new(3, vec![0.0, -0.6, -0.8]).unwrap();
        assert_eq!(mixed(Some(&old), &turned, 0.5, 1.0), old);
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        let (old, new) = (Matrix::zeros(1, 3), Matrix::zeros(1, 2));
        assert!(bridge(0.5).check().is_ok() && bridge(1.0).check().is_ok());
        for share in [0.0, -0.1, 1.1, f64::NAN] {
            assert!(bridge(share).check().is_err(), "{share}");
        }
        let of_relu = |relu| {
            let mut bridge = bridge(0.5);
            bridge.map.mixer[0].relu = relu;
            bridge.check()
        };
        assert!(of_relu(false).is_ok() && of_relu(true).is_err());
        assert!(Bridge { length: 0.0, ..bridge(0.5) }.check().is_err());
        let wide = Space::new("v2", 4, Distance::Cosine, false);
        assert!(Bridge { new: wide, ..bridge(0.5) }.check().is_err());
        let kind = |answer: Result<Matrix>| answer.unwrap_err().kind().clone();
        assert!(matches!(kind(bridge(0.5).queries(None, &new)), ErrorKind::MissingInput { .. }));
        assert!(matches!(kind(bridge(0.5).queries(Some(&old), &old)), ErrorKind::WidthMismatch { .. }));
        let two = Matrix::zeros(2, 3);
        assert!(matches!(kind(bridge(0.5).queries(Some(&two), &new)), ErrorKind::CountMismatch { .. }));
        let nan = Matrix::new(2, vec![f32::NAN, 0.0]).unwrap();
        assert!(matches!(kind(bridge(1.0).queries(None, &nan)), ErrorKind::NotFinite { .. }));
    }
}
