//! A space as the state beside the points names it, and the filters for its vectors.

use std::borrow::Cow;

use rehang::{Distance, Provenance};
use rehang_store::SpaceRecord;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::filters::{all_of, any_of, is_empty, none_of};
use crate::payload::WITNESS;

/// A vector as a request has it.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum Numbers<'a> {
    Dense(Cow<'a, [f32]>),
    /// One of the application's that is no space's, as the server gave it.
    Others(serde_json::Value),
}

impl Numbers<'_> {
    /// The one number of a [witness](crate::payload::WITNESS).
    pub(crate) const WITNESS: Self = Self::Dense(Cow::Borrowed(&[1.0]));

    /// Bytes of a request that they take at most.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Dense(numbers) => BYTES_OF_A_NUMBER * numbers.len(),
            Self::Others(value) => value.to_string().len(),
        }
    }
}

/// A number of single precision in JSON, with its comma, has this many bytes at most.
pub(crate) const BYTES_OF_A_NUMBER: usize = 16;

/// A space and where it lies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SpaceSlot {
    pub(crate) record: SpaceRecord,
    /// Names its part of the tag: the space's own name may be of any letters, and may be another space's later.
    pub(crate) slot: u32,
    /// Its named vector.
    pub(crate) vector: String,
    /// Whether that is the application's own.
    pub(crate) is_applications: bool,
    /// Whether a [witness](WITNESS) is beside each of its vectors that we wrote. A space of an earlier version has none, or a sparse one.
    #[serde(default, rename = "has_dense_witness")]
    pub(crate) is_witnessed: bool,
    /// Whether the application had made its named vector before, which it keeps.
    #[serde(default)]
    pub(crate) was_there: bool,
}

impl SpaceSlot {
    /// The length of a vector, where it has to be kept beside it: the server scales vectors of the cosine distance to length 1.
    pub(crate) fn length_of(&self, vector: &[f32]) -> Option<f64> {
        let space = &self.record.space;
        let is_scaled = space.distance == Distance::Cosine && !space.normalised && !self.is_applications;
        is_scaled.then(|| vector.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt())
    }

    /// A vector as it is sent. The server leaves short ones as they are, by a limit that is its own, so they are scaled here.
    pub(crate) fn at_length_1<'a>(&self, vector: &'a [f32]) -> Cow<'a, [f32]> {
        match self.length_of(vector) {
            Some(length) if length > 0.0 => {
                Cow::Owned(vector.iter().map(|value| (f64::from(*value) / length) as f32).collect())
            }
            _ => Cow::Borrowed(vector),
        }
    }

    /// Vectors of a point as a write of ours sends them: one as the server is to have it, and the witness.
    pub(crate) fn sent<'a>(&'a self, vector: Cow<'a, [f32]>) -> impl Iterator<Item = (&'a str, Numbers<'a>)> {
        let witness = self.is_witnessed.then_some((WITNESS, Numbers::WITNESS));
        std::iter::once((&*self.vector, Numbers::Dense(vector))).chain(witness)
    }

    /// Its part of the tag.
    pub(crate) fn field(&self) -> String {
        format!("s{}", self.slot)
    }

    /// The path of a field in its part of the tag.
    pub(crate) fn path(&self, field: &str) -> String {
        format!("rehang_tag.s{}.{field}", self.slot)
    }

    pub(crate) fn has_vector(&self) -> Value {
        json!({"has_vector": self.vector})
    }

    /// A filter for points with a vector that the application wrote: no witness is beside it.
    pub(crate) fn came_with_point(&self) -> Value {
        json!({"must": [self.has_vector()], "must_not": [{"has_vector": WITNESS}]})
    }

    /// A filter for items whose vector was made by one of these.
    pub(crate) fn made_by(&self, provenances: &[Provenance]) -> Value {
        let names: Vec<&str> = provenances.iter().map(|provenance| provenance.name()).collect();
        let mut said = vec![json!({"key": self.path("p"), "match": {"any": names}})];
        if self.is_applications && provenances.contains(&self.record.written_as) {
            said.push(is_empty(&self.path("p")));
        }
        all_of([self.has_vector(), any_of(said)])
    }

    /// A filter for items that have a vector.
    pub(crate) fn present(&self) -> Value {
        self.made_by(&[Provenance::Old, Provenance::Adapted, Provenance::Native])
    }

    /// A filter for items that have none.
    pub(crate) fn lacking(&self) -> Value {
        none_of([self.present()])
    }

    /// A filter for items that wait for a native vector, or cannot be given one: adapted or without a vector.
    pub(crate) fn waiting(&self) -> Value {
        none_of([self.made_by(&[Provenance::Old, Provenance::Native])])
    }
}
