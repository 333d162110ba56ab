//! Check of every vector that comes back against its space: the one place for it.

use rehang_core::check::expect_width;
use rehang_core::{Error, NORMALISED_TOLERANCE, Remedy, Result, Space, norm, normalise};

use crate::contract::{Answer, ItemFailure};

/// Demands on every vector of an encoder.
#[derive(Debug, Clone)]
pub(crate) struct Check {
    space: Space,
    encoder: String,
    normalise: bool,
}

impl Check {
    /// Makes the check of an encoder that is called `encoder` in errors; with `normalise`, vectors are scaled
    /// to length 1 first.
    pub(crate) fn new(space: &Space, encoder: impl Into<String>, normalise: bool) -> Self {
        Self { space: space.clone(), encoder: encoder.into(), normalise }
    }

    /// The space of the vectors.
    pub(crate) fn space(&self) -> &Space {
        &self.space
    }

    /// The encoder's name in errors.
    pub(crate) fn encoder(&self) -> &str {
        &self.encoder
    }

    /// Whether vectors are scaled to length 1.
    pub(crate) fn normalises(&self) -> bool {
        self.normalise
    }

    /// Fails where `received` is not the space's width.
    pub(crate) fn width(&self, received: usize) -> Result<()> {
        let what = format_args!("what {} gives for space {}", self.encoder, self.space);
        let dimension = self.space.dimension;
        expect_width(what, dimension, received)
            .map_err(|error| error.advise(Remedy::KeepAtWidth { own: received, dimension }))
    }

    /// Checks the vector of one item: gives it as it may be stored, or why the item has none.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WidthMismatch`]; [`ErrorKind::InvalidOption`] where the space wants length 1, the vector
    /// has another and `normalise` is off.
    pub(crate) fn vector(&self, id: &str, mut vector: Vec<f32>) -> Result<Answer> {
        // A service that gives nothing for a text has not become another model.
        if vector.is_empty() {
            return Ok(Err(ItemFailure::Permanent(format!(
                "{} gave a vector without numbers",
                self.encoder
            ))));
        }
        self.width(vector.len())?;
        if let Some(column) = vector.iter().position(|value| !value.is_finite()) {
            return Ok(Err(ItemFailure::Permanent(format!(
                "{} gave a vector whose coordinate {column} is NaN or infinite",
                self.encoder
            ))));
        }
        let length = norm(&vector);
        if length <= 0.0 {
            // By distances other than cosine a raw space may hold vectors of length 0, and scaling leaves
            // them as they are.
            return Ok(if self.space.normalised || !self.space.distance.can_place(&vector) {
                Err(ItemFailure::Permanent(format!(
                    "{} gave a vector without a direction: its length is 0",
                    self.encoder
                )))
            } else {
                Ok(vector)
            });
        }
        if !self.normalise && !self.space.normalised {
            return Ok(Ok(vector));
        }
        if self.normalise {
            normalise(&mut vector);
        } else if (length - 1.0).abs() > NORMALISED_TOLERANCE {
            return Err(Error::option(
                "normalise",
                "false",
                format!(
                    "true, or a raw space: {} gave item {id:?} a vector of length {length:.4}, and vectors of \
                     space {} have length 1",
                    self.encoder, self.space
                ),
            ));
        }
        Ok(Ok(vector))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rehang_core::Distance;

    fn check(normalised: bool, normalise: bool) -> Check {
        Check::new(&Space::new("m", 2, Distance::Cosine, normalised), "the model", normalise)
    }

    #[test]
    fn a_good_vector_passes_untouched() {
        let vector = vec![0.6, 0.8];
        assert_eq!(check(true, false).vector("a", vector.clone()).unwrap().unwrap(), vector);
        assert_eq!(check(false, false).vector("a", vec![3.0, 4.0]).unwrap().unwrap(), [3.0, 4.0]);
    }

    #[test]
    fn what_is_not_finite_fails_the_item_for_good() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for normalise in [false, true] {
                let failure = check(true, normalise).vector("a", vec![0.0, bad]).unwrap().unwrap_err();
                assert!(matches!(&failure, ItemFailure::Permanent(why) if why.contains("coordinate 1")));
            }
        }
    }

    #[test]
    fn a_vector_without_a_direction_fails_the_item_where_directions_are_compared() {
        for normalise in [false, true] {
            for normalised in [false, true] {
                let failure = check(normalised, normalise).vector("a", vec![0.0; 2]).unwrap().unwrap_err();
                let reason = "the model gave a vector without a direction: its length is 0".to_owned();
                assert_eq!(failure, ItemFailure::Permanent(reason));
            }
            for distance in [Distance::L2, Distance::Dot] {
                let raw = Check::new(&Space::new("m", 2, distance, false), "the model", normalise);
                assert_eq!(raw.vector("a", vec![0.0; 2]).unwrap().unwrap(), [0.0; 2]);
            }
        }
    }

    #[test]
    fn a_length_that_the_space_forbids_says_what_to_set() {
        let error = check(true, false).vector("a", vec![3.0, 4.0]).unwrap_err();
        assert!(error.to_string().contains("length 5.0000"), "{error}");
        assert_eq!(check(true, true).vector("a", vec![3.0, 4.0]).unwrap().unwrap(), [0.6, 0.8]);
    }

    proptest! {
        /// Every vector that passes is finite, of the right width, and of length 1 where the space says so.
        #[test]
        fn what_passes_belongs_to_the_space(
            vector in proptest::collection::vec(any::<f32>(), 1..4), normalised: bool, normalise: bool
        ) {
            if let Ok(Ok(passed)) = check(normalised, normalise).vector("a", vector.clone()) {
                prop_assert_eq!(passed.len(), 2);
                prop_assert!(passed.iter().all(|value| value.is_finite()));
                if normalised {
                    prop_assert!((norm(&passed) - 1.0).abs() <= NORMALISED_TOLERANCE);
                }
                if !normalise {
                    prop_assert_eq!(passed, vector);
                }
            }
        }
    }
}
