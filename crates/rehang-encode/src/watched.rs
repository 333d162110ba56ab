//! Watching: an encoder is compared with itself from call to call, since its model may become another one in
//! the middle of a run.

use std::sync::Mutex;

use rehang_core::finding::Finding;
use rehang_core::{Error, ErrorKind, Result, Space};

use crate::contract::{Answer, Encoder, Input, ItemFailure, Reads, Spent};
use crate::meter::lock;
use crate::rider::{Ride, Rider, Turn};

/// Fewest texts between two comparisons. A comparison is a call of its own: a program that is given a batch
/// of one takes longer for it.
const TEXTS_BETWEEN: u64 = 128;

/// Encoder that compares another one with itself from call to call.
///
/// One item of the first call is embedded again, in a call of its own, after every 128 others. Where its
/// vector is another one by then, the vectors of the last call are thrown away, and every later call fails.
/// Vectors that came between two comparisons are [vouched for](Encoder::is_vouched_for) by the second one.
///
/// An encoder that never gives an item the same vector twice, or another one beside other items, is told from
/// one that has changed.
///
/// ```
/// use rehang_core::{Distance, Matrix, Space};
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
    /// Wraps an encoder, which is compared with itself from then on.
    pub fn new(encoder: Box<dyn Encoder>) -> Self {
        let rider = Rider::new(encoder.space().distance, TEXTS_BETWEEN);
        Self { encoder, rider, stopped: Mutex::default() }
    }

    /// Compares the encoder with itself; gives whether it could be.
    fn compare(&self, mut turn: Turn) -> Result<bool> {
        loop {
            // The vectors of a call are paid for: where the item cannot be embedded now, nothing is known of
            // them, and they are kept.
            let once_more = |inputs: &[Input<'_>], place: usize| {
                let answers = self.encoder.encode(inputs).unwrap_or_default();
                answers.into_iter().nth(place)?.ok()
            };
            let Ok(answers) = self.encoder.encode(&[turn.known.input()]) else { return Ok(false) };
            match answers.into_iter().next() {
                Some(Ok(now)) => {
                    let name = format!("of {:?}", self.space().name);
                    let compared = self.rider.expect_itself(&name, &turn, &now, once_more);
                    return match compared {
                        Err(error) => Err(lock(&self.stopped).insert(error).clone()),
                        Ok(()) => Ok(true),
                    };
                }
                Some(Err(ItemFailure::Untried(_))) | None => return Ok(false),
                // The item may be gone by now.
                Some(Err(_)) => self.rider.forget(&turn.known),
            }
            let Some(next) = self.rider.turn() else { return Ok(true) };
            turn = next;
        }
    }
}

impl Encoder for Watched {
    fn space(&self) -> &Space {
        self.encoder.space()
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
        if let Some(error) = lock(&self.stopped).clone() {
            return Err(error);
        }
        let answers = self.encoder.encode(inputs)?;
        let is_first = self.rider.learn(inputs, &answers.iter().map(Some).collect::<Vec<_>>());
        let is_compared = match self.rider.ride_with_request(inputs.len(), false, false) {
            Ride::Along(turn) | Ride::Alone(turn) => self.compare(turn)?,
            Ride::None => is_first,
        };
        if !is_compared {
            self.rider.came_alone(inputs.len());
        }
        Ok(answers)
    }

    fn receipt(&self) -> u64 {
        self.rider.receipt()
    }

    fn is_vouched_for(&self, receipt: u64) -> bool {
        self.rider.is_vouched_for(receipt)
    }

    fn vouch(&self) -> Result<()> {
        if let Some(error) = lock(&self.stopped).clone() {
            return Err(error);
        }
        if !self.rider.is_awaited() {
            return Ok(());
        }
        let Some(turn) = self.rider.turn() else { return Ok(()) };
        if self.compare(turn)? {
            return Ok(());
        }
        let service = format!("the encoder of {:?}", self.space().name);
        let detail = "it could not be compared with itself, so nothing is known of what it gave last".into();
        Err(ErrorKind::Unavailable { service, detail }.into())
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

    fn findings(&self) -> Vec<Finding> {
        self.encoder.findings().into_iter().chain(self.rider.finding()).collect()
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use rehang_core::{Distance, Matrix};

    use super::*;
    use crate::function::Function;
    use crate::rider::Noise;

    /// The model's vectors lie an angle apart alone and among others; later they are another model's.
    #[test]
    fn vectors_that_depend_on_the_batch_are_no_other_model() {
        let angle = |most: f32, number: f32, is_alone: bool| number + if is_alone { 0.0 } else { most };
        for (most, later, is_kept) in [(0.16, 0.0, true), (0.16, 0.15, false), (1.2, 0.0, false)] {
            let turned = AtomicBool::new(false);
            let model = move |sources: &[&str]| {
                let late = turned.load(Ordering::SeqCst);
                turned.fetch_or(sources.contains(&"900"), Ordering::SeqCst);
                let turn = if late { later } else { 0.0 };
                let angle_of = |source: &str| angle(most, source.parse().unwrap(), sources.len() == 1) + turn;
                Ok(Matrix::from_fn(sources.len(), 2, |row, column| {
                    [f32::cos, f32::sin][column](angle_of(sources[row]))
                }))
            };
            let space = Space::new("m", 2, Distance::Cosine, false);
            let encoder = Watched::new(Box::new(Function::new(&space, 100, false, None, model)));
            let texts: Vec<String> = (0..2000).map(|number| number.to_string()).collect();
            let inputs: Vec<Input<'_>> = texts
                .iter()
                .map(|source| Input { id: source, source, payload: &serde_json::Value::Null })
                .collect();
            let ended = inputs.chunks(100).find_map(|some| encoder.encode(some).err());
            assert_eq!(ended.is_none(), is_kept, "{most} {later}: {ended:?}");
            assert!(ended.is_none_or(|error| error.to_string().contains("has changed")));
            let is_measured =
                matches!(encoder.rider.noise(), Some(Noise::Batch(difference)) if difference < 0.03);
            assert_eq!(is_measured, most < 1.0, "{:?}", encoder.rider.noise());
        }
    }
}
