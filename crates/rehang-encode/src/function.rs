//! A function of the process as an encoder: a model that runs in the application itself.

use rehang::{Error, Matrix, Result, Space};

use crate::check::Check;
use crate::contract::{Answer, Encoder, Input, Spent};
use crate::meter::Meter;

/// What embeds: sources in, `[n, d]` out, one row a source and in their order.
type Embed = dyn Fn(&[&str]) -> Result<Matrix> + Send + Sync;

/// An encoder that calls a function with the sources of a batch.
///
/// ```
/// use rehang::{Distance, Matrix, Space};
/// use rehang_encode::{Encoder, Function, Input};
///
/// let lengths = |sources: &[&str]| Ok(Matrix::from_fn(sources.len(), 1, |row, _| sources[row].len() as f32));
/// let space = Space::new("lengths", 1, Distance::L2, false);
/// let encoder = Function::new(&space, 64, false, None, lengths);
/// let input = Input { id: "a", source: "four", payload: &serde_json::Value::Null };
/// assert_eq!(encoder.encode(&[input])?[0].as_ref().unwrap(), &[4.0]);
/// # Ok::<(), rehang::Error>(())
/// ```
pub struct Function {
    check: Check,
    batch_max: usize,
    fingerprint: Option<String>,
    meter: Meter,
    embed: Box<Embed>,
}

impl Function {
    /// An encoder of a space. It is given at most `batch_max` sources at once; with `normalise`, vectors are scaled to length 1.
    /// `fingerprint` is what the vectors depend on ([`Encoder::fingerprint`]), where the caller knows it.
    ///
    /// An error of the function, or another number of rows than of sources, ends the run. To fail one item alone, the function
    /// gives it a row of NaN: only the function knows which item is to blame.
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
        let sources: Vec<&str> = inputs.iter().map(|input| input.source).collect();
        let rows = (self.embed)(&sources)?;
        if rows.rows() != inputs.len() {
            let detail = format!("{} rows came back for {} sources", rows.rows(), inputs.len());
            return Err(Error::corrupt(format!("what {} gives", self.check.encoder()), detail));
        }
        inputs
            .iter()
            .enumerate()
            .map(|(row, input)| self.check.vector(input.id, rows.row(row).to_vec()))
            .collect()
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
    use rehang::{Distance, ErrorKind};
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
    fn rows_are_held_against_the_space() {
        let vector = encode(1, 3.0, true).unwrap().remove(0).unwrap();
        assert!((rehang::norm(&vector) - 1.0).abs() < 1e-6);
        assert!(matches!(encode(1, 3.0, false).unwrap_err().kind(), ErrorKind::InvalidOption { .. }));
        assert!(encode(1, f32::NAN, true).unwrap()[0].is_err(), "the item fails, and no other");
        let error = encode(2, 1.0, true).unwrap_err().to_string();
        assert!(error.contains("2 rows came back for 1 sources"), "{error}");
    }
}
