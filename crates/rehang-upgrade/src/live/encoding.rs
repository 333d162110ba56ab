//! Calls of an encoder: the input that an item gives, and the answers to a batch, also where
//! the encoder panics.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rehang_core::{Error, Party, Result};
use rehang_encode::{Answer, Encoder, Input, ItemFailure};
use rehang_store::Record;

/// Gives the input that an encoder takes of an item; `None` without a source.
pub(crate) fn input_of(record: &Record) -> Option<Input<'_>> {
    let Record { item, .. } = record;
    Some(Input { id: &item.id, source: item.source.as_deref()?, payload: &item.payload })
}

/// Asks the encoder for the vectors of a batch, in order. Where it panics, each half is asked alone, until
/// the items that it panics at are found: they fail, and the others do not.
///
/// # Errors
///
/// Corrupt where it gives more or fewer answers than it was asked for; those of the encoder.
pub(crate) fn encode(encoder: &dyn Encoder, inputs: &[Input<'_>]) -> Result<Vec<Answer>> {
    encode_by(&|inputs| encoder.encode(inputs), inputs).map_err(|error| error.blame(Party::Encoder))
}

/// Asks the encoder for items that nobody waits for, otherwise as [`encode`].
///
/// # Errors
///
/// As [`encode`].
pub(crate) fn encode_in_bulk(encoder: &dyn Encoder, inputs: &[Input<'_>]) -> Result<Vec<Answer>> {
    encode_by(&|inputs| encoder.encode_in_bulk(inputs), inputs).map_err(|error| error.blame(Party::Encoder))
}

fn encode_by(
    encode_batch: &dyn Fn(&[Input<'_>]) -> Result<Vec<Answer>>,
    inputs: &[Input<'_>],
) -> Result<Vec<Answer>> {
    let panic = match catch_unwind(AssertUnwindSafe(|| encode_batch(inputs))) {
        Ok(Ok(answers)) if answers.len() != inputs.len() => {
            let detail = format!("it gave {} vectors for {} items", answers.len(), inputs.len());
            return Err(Error::corrupt("the encoder's answer", detail));
        }
        Ok(outcome) => return outcome,
        Err(panic) => panic,
    };
    if inputs.len() > 1 {
        let (left, right) = inputs.split_at(inputs.len() / 2);
        let mut answers = encode_by(encode_batch, left)?;
        match encode_by(encode_batch, right) {
            Ok(further_answers) => answers.extend(further_answers),
            // Vectors of the first half are paid for; the next call says what is wrong.
            Err(error) if answers.iter().any(Result::is_ok) => {
                answers.resize(inputs.len(), Err(ItemFailure::Untried(error.to_string())));
            }
            Err(error) => return Err(error),
        }
        return Ok(answers);
    }
    let words =
        panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    let words = words.unwrap_or("it did not say why");
    Ok(vec![Err(ItemFailure::Permanent(format!(
        "the encoder panicked at this item, which is a defect of it: {words}"
    )))])
}
