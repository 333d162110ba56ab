//! Function of the process as an encoder: a model that runs in the application itself.

use rehang_core::{Error, ErrorKind, Matrix, Result, Space};

use crate::check::Check;
use crate::contract::{Answer, Encoder, Input, ItemFailure, Spent};
use crate::meter::Meter;

/// Function that embeds: sources in, `[n, d]` out, one row a source and in their order.
type Embed = dyn Fn(&[&str]) -> Result<Matrix> + Send + Sync;

/// Encoder that calls a function with the sources of a batch.
///
/// ```
/// use rehang_core::{Distance, Matrix, Space};
/// use rehang_encode::{Encoder, Function, Input};
///
/// let lengths = |sources: &[&str]| Ok(Matrix::from_fn(sources.len(), 1, |row, _| sources[row].len() as f32));
/// let space = Space::new("lengths", 1, Distance::L2, false);
/// let encoder = Function::new(&space, 64, false, None, lengths);
/// let input = Input { id: "a", source: "four", payload: &serde_json::Value::Null };
/// assert_eq!(encoder.encode(&[input])?[0].as_ref().unwrap(), &[4.0]);
/// # Ok::<(), rehang_core::Error>(())
/// ```
pub struct Function {
    check: Check,
    batch_max: usize,
    fingerprint: Option<String>,
    meter: Meter,
    embed: Box<Embed>,
}

impl Function {
    /// Makes an encoder of a space from a function. It is given at most `batch_max` sources at once; with
    /// `normalise`, vectors are scaled to length 1. `fingerprint` is what the vectors depend on
    /// ([`Encoder::fingerprint`]), where the caller knows it.
    ///
    /// Where the function fails at several sources, it is asked for halves of them until the one is found
    /// that it fails at, and that item fails alone. Where it gives a vector for none of them, its error ends
    /// the run. So does a cancelled call, and another number of rows than of sources. An item fails at once
    /// by a row of NaN.
    pub fn new(
        space: &Space,
        batch_max: usize,
        normalise: bool,
        fingerprint: Option<String>,
        embed: impl Fn(&[&str]) -> Result<Matrix> + Send + Sync + 'static,
    ) -> Self {
        let check = Check::new(space, "the function", normalise);
        Self {
            check,
            batch_max: batch_max.max(1),
            fingerprint,
            meter: Meter::default(),
            embed: Box::new(embed),
        }
    }
}

impl Function {
    /// Appends the answers for some sources; `failed` is the error of a source that was asked for alone.
    fn embed(
        &self,
        inputs: &[Input<'_>],
        answers: &mut Vec<Answer>,
        failed: &mut Option<Error>,
    ) -> Result<()> {
        let sources: Vec<&str> = inputs.iter().map(|input| input.source).collect();
        let rows = match (self.embed)(&sources) {
            Ok(rows) => rows,
            // Only an error of the function itself can be a source's fault.
            Err(error) if !matches!(error.kind(), ErrorKind::Unavailable { .. }) => return Err(error),
            Err(_) if inputs.len() > 1 => {
                let (left, right) = inputs.split_at(inputs.len() / 2);
                self.embed(left, answers, failed)?;
                return self.embed(right, answers, failed);
            }
            // The function failed at three sources by themselves, and has embedded none.
            Err(error) if answers.len() >= 2 && !answers.iter().any(Result::is_ok) => return Err(error),
            Err(error) => {
                answers.push(Err(ItemFailure::Permanent(error.to_string())));
                *failed = Some(error);
                return Ok(());
            }
        };
        if rows.rows() != inputs.len() {
            let detail = format!("{} rows came back for {} sources", rows.rows(), inputs.len());
            return Err(Error::corrupt(format!("what {} gives", self.check.encoder()), detail));
        }
        for (row, input) in inputs.iter().enumerate() {
            answers.push(self.check.vector(input.id, rows.row(row).to_vec())?);
        }
        Ok(())
    }
}

impl Encoder for Function {
    fn space(&self) -> &Space {
        self.check.space()
    }

    fn reads_source_alone(&self) -> bool {
        true
    }

    fn batch_max(&self) -> usize {
        self.batch_max
    }

    fn encode(&self, inputs: &[Input<'_>]) -> Result<Vec<Answer>> {
        if inputs.is_empty() {
            return Ok(Vec::new());
        }
        self.meter.sent(inputs.len());
        let (mut answers, mut failed) = (Vec::with_capacity(inputs.len()), None);
        self.embed(inputs, &mut answers, &mut failed)?;
        match failed {
            Some(error) if !answers.iter().any(Result::is_ok) => Err(error),
            _ => Ok(answers),
        }
    }

    fn fingerprint(&self) -> Result<Option<String>> {
        Ok(self.fingerprint.clone())
    }

    fn spent(&self) -> Spent {
        self.meter.spent()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rehang_core::{Distance, ErrorKind};
    use serde_json::Value;

    fn encode(rows: usize, value: f32, normalise: bool) -> Result<Vec<Answer>> {
        let space = Space::new("m", 2, Distance::Cosine, true);
        let encoder = Function::new(&space, 0, normalise, Some("m 1".into()), move |_| {
            Ok(Matrix::from_fn(rows, 2, |_, _| value))
        });
        assert_eq!((encoder.batch_max(), encoder.fingerprint()?.as_deref()), (1, Some("m 1")));
        assert!(encoder.encode(&[])?.is_empty());
        encoder.encode(&[Input { id: "a", source: "x", payload: &Value::Null }])
    }

    #[test]
    fn the_source_that_it_fails_at_is_found() {
        let space = Space::new("m", 1, Distance::L2, false);
        let fails = |bad: &'static [&'static str]| {
            let calls = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
            let counted = std::sync::Arc::clone(&calls);
            let encoder = Function::new(&space, 64, false, None, move |sources| {
                counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                if sources.iter().any(|source| bad.contains(source)) {
                    let detail = "ValueError: no".to_owned();
                    return Err(ErrorKind::Unavailable { service: "it".into(), detail }.into());
                }
                Ok(Matrix::from_fn(sources.len(), 1, |row, _| sources[row].len() as f32))
            });
            (encoder, calls)
        };
        let all: Vec<String> = (0..64).map(|number| format!("text {number}")).collect();
        let inputs: Vec<Input<'_>> =
            all.iter().map(|text| Input { id: text, source: text, payload: &Value::Null }).collect();
        let (encoder, calls) = fails(&["text 17"]);
        let answers = encoder.encode(&inputs).unwrap();
        let failed: Vec<usize> = (0..64).filter(|at| answers[*at].is_err()).collect();
        assert_eq!(
            (failed.as_slice(), calls.load(std::sync::atomic::Ordering::Relaxed)),
            ([17].as_slice(), 13)
        );
        assert!(matches!(&answers[17], Err(ItemFailure::Permanent(why)) if why.contains("ValueError: no")));
        // Where the function fails at all sources, none is to blame.
        let (encoder, calls) = fails(&["text 0", "text 1", "text 2"]);
        let error = encoder.encode(&inputs[..3]).unwrap_err();
        assert!(error.to_string().contains("ValueError: no"), "{error}");
        assert!(calls.load(std::sync::atomic::Ordering::Relaxed) <= 5);
        assert!(encoder.encode(&inputs[..1]).is_err(), "alone, it says nothing of its text");
    }

    #[test]
    fn rows_are_held_against_the_space() {
        let vector = encode(1, 3.0, true).unwrap().remove(0).unwrap();
        assert!((rehang_core::norm(&vector) - 1.0).abs() < 1e-6);
        assert!(matches!(encode(1, 3.0, false).unwrap_err().kind(), ErrorKind::InvalidOption { .. }));
        assert!(encode(1, f32::NAN, true).unwrap()[0].is_err(), "the item fails, and no other");
        let error = encode(2, 1.0, true).unwrap_err().to_string();
        assert!(error.contains("2 rows came back for 1 sources"), "{error}");
    }
}
