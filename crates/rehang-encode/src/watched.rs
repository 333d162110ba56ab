//! An encoder that is compared with itself from call to call: what is asked may become another model in the middle of a run.

use std::sync::Mutex;

use rehang::{Error, Result, Space};

use crate::contract::{Answer, Encoder, Input, Reads, Spent};
use crate::meter::lock;
use crate::reading::Cut;
use crate::rider::{Ride, Rider};

/// Texts between two comparisons, at least. One is a call of its own: a program that is given a batch of one takes longer for it.
const TEXTS_BETWEEN: u64 = 128;

/// Another encoder, with one item of the first call embedded again, in a call of its own, after every 128 others. Where its vector is
/// another one by then, what the last call gave is thrown away, and every later call fails. An encoder that never gives an item the same
/// vector twice is told from one that has changed.
///
/// ```
/// use rehang::{Distance, Matrix, Space};
/// use rehang_encode::{Encoder, Function, Input, Watched};
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// // A model that is another one from its third call on.
/// let calls = AtomicUsize::new(0);
/// let model = move |sources: &[&str]| {
///     let turned = calls.fetch_add(1, Ordering::Relaxed) > 1;
///     Ok(Matrix::from_fn(sources.len(), 2, |_, column| if (column == 0) == turned { 0.0 } else { 1.0 }))
/// };
/// let space = Space::new("m", 2, Distance::Cosine, false);
/// let encoder = Watched::new(Box::new(Function::new(&space, 100, false, None, model)));
/// let inputs = [Input { id: "a", source: "a text", payload: &serde_json::Value::Null }; 100];
/// assert!(encoder.encode(&inputs).is_ok());
/// let error = encoder.encode(&inputs).unwrap_err();
/// assert!(error.is_conflict() && error.to_string().contains("cosine 0.00"), "{error}");
/// ```
pub struct Watched {
    encoder: Box<dyn Encoder>,
    rider: Rider,
    stopped: Mutex<Option<Error>>,
}

impl Watched {
    /// An encoder that is compared with itself.
    pub fn new(encoder: Box<dyn Encoder>) -> Self {
        let rider = Rider::new(encoder.space().distance, TEXTS_BETWEEN);
        Self { encoder, rider, stopped: Mutex::default() }
    }
}

impl Encoder for Watched {
    fn space(&self) -> &Space {
        self.encoder.space()
    }

    fn reads(&self) -> Reads {
        self.encoder.reads()
    }

    fn batch_max(&self) -> usize {
        self.encoder.batch_max()
    }

    fn encode(&self, inputs: &[Input<'_>]) -> Result<Vec<Answer>> {
        if let Some(error) = lock(&self.stopped).clone() {
            return Err(error);
        }
        let answers = self.encoder.encode(inputs)?;
        self.rider.learn(inputs, &answers.iter().map(Some).collect::<Vec<_>>());
        let (Ride::Along(known) | Ride::Alone(known)) = self.rider.of_request(inputs.len(), false) else {
            return Ok(answers);
        };
        // What the call gave is paid for: where the item cannot be embedded now, nothing is known of it.
        let once_more = || -> Result<Option<Vec<f32>>> {
            let answers = self.encoder.encode(&[known.input()]).unwrap_or_default();
            Ok(answers.into_iter().next().and_then(std::result::Result::ok))
        };
        if let Some(now) = once_more()? {
            let name = self.space().name.clone();
            self.rider
                .expect_itself(&format!("of {name:?}"), &known, &now, once_more)
                .inspect_err(|error| *lock(&self.stopped) = Some(error.clone()))?;
        }
        Ok(answers)
    }

    fn fingerprint(&self) -> Result<Option<String>> {
        self.encoder.fingerprint()
    }

    fn configured(&self) -> Result<String> {
        self.encoder.configured()
    }

    fn spent(&self) -> Spent {
        self.encoder.spent()
    }

    fn noise(&self) -> Option<f64> {
        self.rider.noise()
    }

    fn cut(&self) -> Option<Cut> {
        self.encoder.cut()
    }

    fn watches_itself(&self) -> bool {
        true
    }

    fn note_others(&self, spent: Spent) {
        self.encoder.note_others(spent);
    }

    fn learnt(&self) -> Option<String> {
        self.encoder.learnt()
    }

    fn recall(&self, learnt: &str) {
        self.encoder.recall(learnt);
    }

    fn interrupt(&self) {
        self.encoder.interrupt();
    }
}
