//! Resizing: a model's vectors are kept at another width than it makes them.

use std::cmp::Ordering;

use rehang_core::finding::Finding;
use rehang_core::{Error, Result, Space};

use crate::check::Check;
use crate::contract::{Answer, Encoder, Input, Reads, Spent};
use crate::fingerprint::Fingerprint;

/// Encoder that gives another encoder's vectors at the width of a space, `[d_model] → [d]`.
///
/// Where d < `d_model`, the first coordinates are kept, scaled to length 1. A model that was trained for it
/// loses little by that (Matryoshka Representation Learning, Kusupati et al. 2022, §3); any other one loses
/// what the dropped coordinates said. Where d > `d_model`, zeros follow, as applications pad that have one
/// width for all models: no length, no cosine, no inner product and no distance changes by zeros.
///
/// The rest of a cut vector may have no direction where the whole had one: such an item fails, unless the
/// space takes zero vectors. The [fingerprint](Encoder::fingerprint) is another one than that of the whole
/// model, and than that of another width.
///
/// ```
/// use rehang_core::{Distance, Matrix, Space};
/// use rehang_encode::{Encoder, Function, Input, Resized};
///
/// let model = |sources: &[&str]| Ok(Matrix::from_fn(sources.len(), 4, |_, column| [3.0, 4.0, 12.0, 0.0][column]));
/// let space = |width| Space::new("m", width, Distance::Cosine, false);
/// let whole = || Box::new(Function::new(&space(4), 100, false, Some("v1".into()), model));
/// let encoder = Resized::new(whole(), &space(2)).unwrap();
/// let inputs = [Input { id: "a", source: "a text", payload: &serde_json::Value::Null }];
/// assert_eq!(encoder.encode(&inputs).unwrap(), [Ok(vec![0.6, 0.8])]);
/// assert_eq!(encoder.space().dimension, 2);
/// assert_ne!(encoder.fingerprint().unwrap(), whole().fingerprint().unwrap());
/// let padded = Resized::new(whole(), &space(6)).unwrap();
/// assert_eq!(padded.encode(&inputs).unwrap(), [Ok(vec![3.0, 4.0, 12.0, 0.0, 0.0, 0.0])]);
/// assert!(Resized::new(whole(), &space(4)).is_err());
/// ```
pub struct Resized {
    encoder: Box<dyn Encoder>,
    check: Check,
}

impl Resized {
    /// Wraps an encoder, whose vectors are cut to the width of a space, or filled up to it.
    ///
    /// # Errors
    ///
    /// [`rehang_core::ErrorKind::InvalidOption`] where the encoder's own vectors are of that width already.
    pub fn new(encoder: Box<dyn Encoder>, space: &Space) -> Result<Self> {
        let (model_width, space_width) = (encoder.space().dimension, space.dimension);
        let (how, is_cut) = match model_width.cmp(&space_width) {
            Ordering::Greater => (format!("cut to {space_width} of {model_width}"), true),
            Ordering::Less => (format!("filled up with zeros from {model_width} to {space_width}"), false),
            Ordering::Equal => {
                let expected = format!("another width than {space_width}, which the space has itself");
                return Err(Error::option("model_dimension", model_width, expected));
            }
        };
        let check = Check::new(space, format!("the model of {:?}, {how},", space.name), is_cut);
        Ok(Self { encoder, check })
    }

    /// Fingerprint of a text and the width, for what depends on both. Its first word is in galleries since
    /// vectors could only be cut.
    fn fingerprint_with_width(&self, text: &str) -> String {
        Fingerprint::new("shortened").with(&text).with(&self.check.space().dimension).text()
    }

    fn resized(&self, inputs: &[Input<'_>], answers: Vec<Answer>) -> Result<Vec<Answer>> {
        let resize = |(input, answer): (&Input<'_>, Answer)| match answer {
            Ok(mut vector) => {
                vector.resize(self.check.space().dimension, 0.0);
                self.check.vector(input.id, vector)
            }
            failure => Ok(failure),
        };
        inputs.iter().zip(answers).map(resize).collect()
    }
}

impl Encoder for Resized {
    fn space(&self) -> &Space {
        self.check.space()
    }

    fn reads(&self) -> Reads {
        self.encoder.reads()
    }

    fn reads_source_alone(&self) -> bool {
        self.encoder.reads_source_alone()
    }

    fn batch_max(&self) -> usize {
        self.encoder.batch_max()
    }

    fn encode(&self, inputs: &[Input<'_>]) -> Result<Vec<Answer>> {
        self.resized(inputs, self.encoder.encode(inputs)?)
    }

    fn bulk_max(&self) -> Option<usize> {
        self.encoder.bulk_max()
    }

    fn encode_in_bulk(&self, inputs: &[Input<'_>]) -> Result<Vec<Answer>> {
        self.resized(inputs, self.encoder.encode_in_bulk(inputs)?)
    }

    fn awaits(&self) -> Option<String> {
        self.encoder.awaits()
    }

    fn fingerprint(&self) -> Result<Option<String>> {
        Ok(self.encoder.fingerprint()?.map(|fingerprint| self.fingerprint_with_width(&fingerprint)))
    }

    fn configured(&self) -> Result<String> {
        Ok(self.fingerprint_with_width(&self.encoder.configured()?))
    }

    fn spent(&self) -> Spent {
        self.encoder.spent()
    }

    fn findings(&self) -> Vec<Finding> {
        self.encoder.findings()
    }

    fn learnt(&self) -> Option<String> {
        self.encoder.learnt()
    }

    fn recall(&self, learnt: &str) {
        self.encoder.recall(learnt);
    }

    fn receipt(&self) -> u64 {
        self.encoder.receipt()
    }

    fn is_vouched_for(&self, receipt: u64) -> bool {
        self.encoder.is_vouched_for(receipt)
    }

    fn vouch(&self) -> Result<()> {
        self.encoder.vouch()
    }

    fn watches_itself(&self) -> bool {
        self.encoder.watches_itself()
    }

    fn note_others(&self, spent: Spent) {
        self.encoder.note_others(spent);
    }

    fn interrupt(&self) {
        self.encoder.interrupt();
    }
}

#[cfg(test)]
mod tests {
    use rehang_core::{Distance, Matrix};

    use super::*;
    use crate::contract::ItemFailure;
    use crate::function::Function;

    #[test]
    fn what_is_left_without_a_direction_fails_its_item_alone() {
        let model = |sources: &[&str]| {
            Ok(Matrix::from_fn(sources.len(), 3, |row, column| {
                if sources[row] == "late" { [0.0, 0.0, 1.0][column] } else { [0.0, 2.0, 7.0][column] }
            }))
        };
        let space = |width, distance| Space::new("m", width, distance, false);
        for distance in [Distance::Cosine, Distance::Dot] {
            let full_encoder = Box::new(Function::new(&space(3, distance), 9, false, None, model));
            let encoder = Resized::new(full_encoder, &space(2, distance)).unwrap();
            let null = serde_json::Value::Null;
            let inputs = ["late", "early"].map(|source| Input { id: source, source, payload: &null });
            let answers = encoder.encode(&inputs).unwrap();
            assert_eq!(answers[1], Ok(vec![0.0, 1.0]));
            match &answers[0] {
                Err(ItemFailure::Permanent(why)) if distance == Distance::Cosine => {
                    assert!(why.contains("cut to 2 of 3") && why.contains("without a direction"), "{why}");
                }
                Ok(zero) if distance == Distance::Dot => assert_eq!(zero, &[0.0, 0.0]),
                other => panic!("{distance:?}: {other:?}"),
            }
        }
    }
}
