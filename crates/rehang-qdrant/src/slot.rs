//! Spaces as the state beside the points names them, and the filters for their vectors.

use std::borrow::Cow;

use rehang_core::Provenance;
use rehang_store::SpaceRecord;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::filters::{all_of, any_of, is_empty, none_of};
use crate::payload::WITNESS;

/// Vector as a request has it.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum Numbers<'a> {
    Dense(Cow<'a, [f32]>),
    /// A vector of the application's that belongs to no space, as the server gave it.
    Others(serde_json::Value),
}

impl Numbers<'_> {
    /// The one number of a [witness](crate::payload::WITNESS).
    pub(crate) const WITNESS: Self = Self::Dense(Cow::Borrowed(&[1.0]));

    /// Returns the bytes of a request that the numbers take at most.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Dense(numbers) => BYTES_OF_A_NUMBER * numbers.len(),
            Self::Others(value) => value.to_string().len(),
        }
    }
}

/// A number of single precision in JSON, with its comma, has this many bytes at most.
pub(crate) const BYTES_OF_A_NUMBER: usize = 16;

/// Space with the place where it lies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SpaceSlot {
    pub(crate) record: SpaceRecord,
    /// Number that names the space's part of the tag. The space's own name may have any letters, and may be
    /// another space's later.
    pub(crate) slot: u32,
    /// Name of the named vector that holds the space's vectors.
    pub(crate) vector: String,
    /// Whether the named vector is the application's own.
    pub(crate) is_applications: bool,
    /// Whether a [witness](WITNESS) is beside each of the space's vectors that the gallery wrote. A space of
    /// an earlier version has none, or a sparse one.
    #[serde(default, rename = "has_dense_witness")]
    pub(crate) is_witnessed: bool,
    /// Whether the application had made the named vector before; then it keeps it.
    #[serde(default)]
    pub(crate) was_there: bool,
}

impl SpaceSlot {
    /// Returns the length of a vector, where it has to be kept beside the vector: the server scales vectors
    /// of a distance that heeds no lengths to length 1.
    pub(crate) fn length_of(&self, vector: &[f32]) -> Option<f64> {
        let space = &self.record.space;
        let is_scaled = !space.distance.heeds_lengths() && !space.normalised && !self.is_applications;
        is_scaled.then(|| vector.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt())
    }

    /// Scales a vector to length 1 as it is sent. The server leaves short vectors as they are, by a limit of
    /// its own, so they are scaled here.
    pub(crate) fn at_length_1<'a>(&self, vector: &'a [f32]) -> Cow<'a, [f32]> {
        match self.length_of(vector) {
            Some(length) if length > 0.0 => {
                Cow::Owned(vector.iter().map(|value| (f64::from(*value) / length) as f32).collect())
            }
            _ => Cow::Borrowed(vector),
        }
    }

    /// Returns the vectors of a point as a write of the gallery sends them: the vector
    /// itself, and the witness.
    pub(crate) fn sent<'a>(&'a self, vector: Cow<'a, [f32]>) -> impl Iterator<Item = (&'a str, Numbers<'a>)> {
        let witness = self.is_witnessed.then_some((WITNESS, Numbers::WITNESS));
        std::iter::once((&*self.vector, Numbers::Dense(vector))).chain(witness)
    }

    /// Returns the name of the space's part of the tag.
    pub(crate) fn field(&self) -> String {
        format!("s{}", self.slot)
    }

    /// Returns the path of a field in the space's part of the tag.
    pub(crate) fn path(&self, field: &str) -> String {
        format!("rehang_tag.s{}.{field}", self.slot)
    }

    pub(crate) fn has_vector(&self) -> Value {
        json!({"has_vector": self.vector})
    }

    /// Builds a filter for points with a vector that the application wrote: no witness is beside it.
    pub(crate) fn came_with_point(&self) -> Value {
        json!({"must": [self.has_vector()], "must_not": [{"has_vector": WITNESS}]})
    }

    /// Builds a filter for items whose vector has one of these provenances.
    pub(crate) fn made_by(&self, provenances: &[Provenance]) -> Value {
        let names: Vec<&str> = provenances.iter().map(|provenance| provenance.name()).collect();
        let mut conditions = vec![json!({"key": self.path("p"), "match": {"any": names}})];
        if self.is_applications && provenances.contains(&self.record.written_as) {
            conditions.push(is_empty(&self.path("p")));
        }
        all_of([self.has_vector(), any_of(conditions)])
    }

    /// Builds a filter for items that have a vector.
    pub(crate) fn present(&self) -> Value {
        self.made_by(&[Provenance::Old, Provenance::Adapted, Provenance::Native])
    }

    /// Builds a filter for items that have no vector.
    pub(crate) fn lacking(&self) -> Value {
        none_of([self.present()])
    }

    /// Builds a filter for items that wait for a native vector, or cannot be given one:
    /// adapted or without a vector.
    pub(crate) fn waiting(&self) -> Value {
        none_of([self.made_by(&[Provenance::Old, Provenance::Native])])
    }
}
