//! Old model, as compatible training sees it: vectors and a frozen head. Nothing of it is ever changed.

use rehang_core::check::{expect_count, expect_width};
use rehang_core::{Error, Head, Matrix, Progress, Result};
use xxhash_rust::xxh3::xxh3_64;

use super::heads::HeadForm;
use crate::encoder::{TrainedEncoder, expect_shape};
use crate::examples::Examples;

/// An old model.
#[derive(Debug, Clone, PartialEq)]
pub struct OldModel {
    /// Name of the old model.
    pub model: String,
    /// Source of its vectors.
    pub source: OldSource,
    /// Head of the old model, where it is known.
    pub head: Option<OldHead>,
}

/// Source of the old model's vectors.
#[derive(Debug, Clone, PartialEq)]
pub enum OldSource {
    /// Encoder that is run.
    Encoder {
        /// The encoder.
        encoder: Box<TrainedEncoder>,
        /// Whether the encoder is run once, on inputs without variation, and its vectors are kept.
        cached: bool,
    },
    /// Vectors that were computed before: row for row those of the examples, `[n, d_old]`.
    Vectors(Matrix),
}

/// Frozen head of the old model.
#[derive(Debug, Clone, PartialEq)]
pub struct OldHead {
    /// Weight and bias.
    pub head: Head,
    /// Form of its logits.
    pub form: HeadForm,
    /// Name of every class.
    pub classes: Vec<String>,
}

impl OldModel {
    /// Takes an encoder as the old model, with its own head.
    pub fn from_encoder(encoder: TrainedEncoder, cached: bool) -> Self {
        let head =
            OldHead { head: encoder.head.clone(), form: encoder.form, classes: encoder.classes.clone() };
        Self {
            model: encoder.model.clone(),
            source: OldSource::Encoder { encoder: Box::new(encoder), cached },
            head: Some(head),
        }
    }

    /// Number of coordinates of the old vectors.
    pub fn dimension(&self) -> usize {
        match &self.source {
            OldSource::Encoder { encoder, .. } => encoder.architecture.outputs(),
            OldSource::Vectors(vectors) => vectors.columns(),
        }
    }

    /// Whether the old vectors are the same in every epoch.
    pub fn is_fixed(&self) -> bool {
        matches!(&self.source, OldSource::Vectors(_) | OldSource::Encoder { cached: true, .. })
    }

    /// Fingerprint that tells the old model from every other one: of its vectors or its encoder, and of its
    /// head.
    ///
    /// # Errors
    ///
    /// [`rehang_core::ErrorKind::Corrupt`] for an encoder that cannot be written.
    pub fn fingerprint(&self) -> Result<String> {
        let source = match &self.source {
            OldSource::Vectors(vectors) => vectors.fingerprint(),
            OldSource::Encoder { encoder, cached } => {
                format!("{:016x}/{cached}", xxh3_64(&encoder.to_bytes()?))
            }
        };
        let json_error = |error| Error::corrupt("the old head", error);
        let head = match &self.head {
            None => "no head".to_owned(),
            Some(OldHead { head, form, classes }) => {
                let bias = Matrix::new(1, head.bias().to_vec())?.fingerprint();
                let form = serde_json::to_string(form).map_err(json_error)?;
                let classes = serde_json::to_string(classes).map_err(json_error)?;
                format!("{}/{bias}/{form}/{:016x}", head.weight().fingerprint(), xxh3_64(classes.as_bytes()))
            }
        };
        Ok(format!("{source}/{head}"))
    }

    /// Gives the old vectors of some examples, `[rows, d_old]`, without variation.
    pub(crate) fn vectors(&self, examples: &Examples, rows: &[usize], progress: &Progress) -> Result<Matrix> {
        match &self.source {
            OldSource::Vectors(vectors) => Ok(vectors.select(rows)),
            OldSource::Encoder { encoder, .. } => encoder.vectors_of(&examples.inputs, rows, progress),
        }
    }

    /// Fails where the old model does not go with the examples, or with its own head.
    pub(crate) fn check(&self, examples: &Examples) -> Result<()> {
        match &self.source {
            OldSource::Encoder { encoder, .. } => expect_shape(encoder.input, &examples.inputs)?,
            OldSource::Vectors(vectors) => {
                expect_count("old vectors", vectors.rows(), "examples", examples.len())?;
                vectors.check_finite("old vectors")?;
            }
        }
        let Some(OldHead { head, classes, .. }) = &self.head else { return Ok(()) };
        expect_width("weight of the old head", self.dimension(), head.dimension())?;
        if head.classes() != classes.len() {
            return Err(Error::option(
                "classes of the old head",
                classes.len(),
                format!("as many names as the head has classes: {}", head.classes()),
            ));
        }
        Ok(())
    }
}
