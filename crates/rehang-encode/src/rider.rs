//! Rider: a text that rides with others, so that an encoder is compared with itself all the while.
//!
//! The rider's vector is known from the first call. A service that has become another one gives it another
//! vector in the very request whose other vectors are wrong, and these are not handed out then.

use std::sync::{Arc, Mutex};

use rehang_core::finding::{Finding, FindingCode};
use rehang_core::{
    DIFFERENCE_MAX, Distance, Error, NOISE_TIMES, Result, difference, difference_in_words, norm,
};
use serde_json::Value;

use crate::contract::{Answer, Input, peculiar};
use crate::meter::lock;

/// Smallest share that the least difference among four vectors of one text has of the largest one, where they
/// differ by noise. Where a service has two models, two of the four are of one model.
const NOISE_SPREAD: f64 = 1.0 / 8.0;

/// Largest difference by which an encoder gives a text another vector beside other texts. Integers for
/// weights make a third of it (cosine 0.987).
const BATCH_MAX: f64 = 0.1;

/// Items of the first answer that are kept: where one cannot be embedded any more, the next one is asked for.
const KNOWN_MAX: usize = 3;
/// Times the texts between two riders that may come without a good comparison: after so many a rider goes in
/// a request of its own.
const LATE_TIMES: u64 = 4;

/// Way in which an encoder gives one source different vectors, each with the largest [`rehang_core::difference`]
/// that was seen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Noise {
    /// Difference from call to call.
    Call(f64),
    /// Difference by the texts that stand beside it in a call, as with models of integer weights; alone the
    /// source has the same vector each time.
    Batch(f64),
}

impl Noise {
    fn difference(self) -> f64 {
        match self {
            Self::Call(difference) | Self::Batch(difference) => difference,
        }
    }
}

/// Item and the vector that the encoder gave it first.
pub(crate) struct Known {
    item: Owned,
    vector: Vec<f32>,
    /// The items that it was embedded among, if there were others, and its place. Asked for the same items
    /// once more, an encoder that is itself gives the same vector.
    among: Option<(Arc<Vec<Owned>>, usize)>,
}

/// Copy of an item, to be asked for again.
struct Owned {
    id: String,
    text: String,
    payload: Value,
}

impl Owned {
    fn new(input: &Input<'_>) -> Self {
        Self { id: input.id.to_owned(), text: input.source.to_owned(), payload: input.payload.clone() }
    }

    fn input(&self) -> Input<'_> {
        Input { id: &self.id, source: &self.text, payload: &self.payload }
    }
}

impl Known {
    /// Keeps the vector that an encoder gave an item.
    pub(crate) fn new(input: &Input<'_>, vector: &[f32]) -> Self {
        Self { item: Owned::new(input), vector: vector.to_vec(), among: None }
    }

    /// Input that the encoder is asked with once more.
    pub(crate) fn input(&self) -> Input<'_> {
        self.item.input()
    }
}

#[derive(Default)]
struct State {
    /// Items whose vectors are known; the first one rides.
    known_items: Vec<Arc<Known>>,
    texts_since: u64,
    noise: Option<Noise>,
    /// Vector of the first known item in a call of its own, once one among others was found to be another.
    /// All comparisons are of calls of their own from then on.
    alone: Option<Vec<f32>>,
    /// Whether the service takes no text more than a request had.
    needs_seat: bool,
    /// Number of comparisons that were begun; `good` is the number of the last one that was good.
    begun: u64,
    good: u64,
    /// Number of the comparison that vouches for every vector that came without one: the first that was begun
    /// when all of them were there.
    awaited: u64,
    /// Vectors that came without a comparison since the last good one.
    texts_unvouched: u64,
}

impl State {
    fn is_vouched(&self) -> bool {
        self.awaited <= self.good
    }

    fn vouch(&mut self, number: u64) {
        self.good = self.good.max(number);
        self.texts_unvouched = 0;
    }
}

/// Record of one encoder: its known items, and how far its vectors are vouched for.
pub(crate) struct Rider {
    distance: Distance,
    /// Fewest texts between two riders.
    texts_between: u64,
    state: Mutex<State>,
}

/// Comparison that was begun.
#[derive(Clone)]
pub(crate) struct Turn {
    pub(crate) known: Arc<Known>,
    number: u64,
}

/// Way in which a rider travels.
pub(crate) enum Ride {
    None,
    /// The rider goes in the request.
    Along(Turn),
    /// The rider goes in a request of its own, after this one.
    Alone(Turn),
}

impl Rider {
    pub(crate) fn new(distance: Distance, texts_between: u64) -> Self {
        Self { distance, texts_between, state: Mutex::default() }
    }

    /// Decides whether a rider goes with a request of so many texts, where it may have a seat there: now and
    /// then, or where it `must`.
    pub(crate) fn ride_with_request(&self, texts: usize, has_seat: bool, must: bool) -> Ride {
        let mut state = lock(&self.state);
        let Some(known_item) = state.known_items.first().cloned() else { return Ride::None };
        state.texts_since += texts as u64;
        if state.texts_since < self.texts_between && !must {
            return Ride::None;
        }
        state.texts_since = 0;
        state.begun += 1;
        let turn = Turn { known: known_item, number: state.begun };
        let is_late = state.texts_unvouched >= self.texts_between * LATE_TIMES;
        let needs_call = (state.needs_seat && !has_seat) || state.alone.is_some();
        if needs_call || is_late { Ride::Alone(turn) } else { Ride::Along(turn) }
    }

    /// Begins a comparison for its own sake; `None` where nothing is known.
    pub(crate) fn turn(&self) -> Option<Turn> {
        let mut state = lock(&self.state);
        let known_item = state.known_items.first().cloned()?;
        state.begun += 1;
        Some(Turn { known: known_item, number: state.begun })
    }

    /// The item that would ride, to see whether there is room for it.
    pub(crate) fn known(&self) -> Option<Arc<Known>> {
        lock(&self.state).known_items.first().cloned()
    }

    /// Remembers the shortest of the texts that have a vector, to ride along later. Returns whether it did:
    /// there was nothing to compare these with.
    pub(crate) fn learn(&self, inputs: &[Input<'_>], answers: &[Option<&Answer>]) -> bool {
        let mut state = lock(&self.state);
        if !state.known_items.is_empty() {
            return false;
        }
        let mut good: Vec<_> = inputs
            .iter()
            .zip(answers)
            .filter_map(|(input, answer)| Some((input, answer.as_ref()?.as_ref().ok()?)))
            .filter(|(input, vector)| peculiar(input.source).is_none() && norm(vector) > 0.0)
            .collect();
        good.sort_by_key(|(input, _)| input.source.len());
        let all = Arc::new(inputs.iter().map(Owned::new).collect::<Vec<_>>());
        let remember = |(input, vector): (&Input<'_>, &Vec<f32>)| {
            let place = inputs.iter().position(|other| std::ptr::eq(other, input));
            let among = place.filter(|_| inputs.len() > 1).map(|place| (Arc::clone(&all), place));
            Arc::new(Known { among, ..Known::new(input, vector) })
        };
        state.known_items = good.into_iter().take(KNOWN_MAX).map(remember).collect();
        !state.known_items.is_empty()
    }

    /// Counts vectors that came without a comparison: one that begins from now on vouches for them.
    pub(crate) fn came_alone(&self, texts: usize) {
        let mut state = lock(&self.state);
        if !state.known_items.is_empty() {
            state.awaited = state.begun + 1;
            state.texts_unvouched += texts as u64;
        }
    }

    /// Gives up a text that the encoder does not embed any more. Where none is left, nothing is known of the
    /// vectors before, and the next answer is learnt.
    pub(crate) fn forget(&self, known_item: &Arc<Known>) {
        let mut state = lock(&self.state);
        state.known_items.retain(|other| !Arc::ptr_eq(other, known_item));
        state.alone = None;
        if state.known_items.is_empty() {
            let awaited = state.awaited;
            state.vouch(awaited);
        }
    }

    /// Whether vectors wait for a comparison.
    pub(crate) fn is_awaited(&self) -> bool {
        !lock(&self.state).is_vouched()
    }

    /// Number for the vectors so far, as [`Encoder::receipt`](crate::Encoder::receipt) gives it.
    pub(crate) fn receipt(&self) -> u64 {
        lock(&self.state).awaited
    }

    /// Whether a comparison vouches for a receipt, as
    /// [`Encoder::is_vouched_for`](crate::Encoder::is_vouched_for) says.
    pub(crate) fn is_vouched_for(&self, receipt: u64) -> bool {
        receipt <= lock(&self.state).good
    }

    /// Lets riders have a seat among the texts of a request from now on: with one more, a request was
    /// refused.
    pub(crate) fn take_seat(&self) {
        lock(&self.state).needs_seat = true;
    }

    pub(crate) fn needs_seat(&self) -> bool {
        lock(&self.state).needs_seat
    }

    /// Fails where an encoder gives a text another vector `now` than at first, and vouches for the vectors
    /// before where it does not.
    ///
    /// An encoder passes that never gives the text the same vector twice, or gives it another one beside
    /// other texts. `ask`, which gives the vector of the item at a place of a call, finds that out. It asks
    /// for the text itself twice more, in calls of its own. Where these agree, it asks for the first call
    /// once more, as it was.
    ///
    /// # Errors
    ///
    /// A conflict.
    pub(crate) fn expect_itself(
        &self,
        encoder: &str,
        turn: &Turn,
        now: &[f32],
        ask: impl Fn(&[Input<'_>], usize) -> Option<Vec<f32>>,
    ) -> Result<()> {
        self.expect_same(encoder, &turn.known, now, ask)?;
        lock(&self.state).vouch(turn.number);
        Ok(())
    }

    /// Fails as [`Self::expect_itself`] does, for a comparison that vouches for no other vectors.
    ///
    /// # Errors
    ///
    /// A conflict.
    pub(crate) fn expect_same(
        &self,
        encoder: &str,
        known_item: &Arc<Known>,
        now: &[f32],
        ask: impl Fn(&[Input<'_>], usize) -> Option<Vec<f32>>,
    ) -> Result<()> {
        let alone = {
            let state = lock(&self.state);
            let is_first = state.known_items.first().is_some_and(|first| Arc::ptr_eq(first, known_item));
            state.alone.clone().filter(|_| is_first)
        };
        let first = alone.as_deref().unwrap_or(&known_item.vector);
        if self.agree(first, now) {
            return Ok(());
        }
        let again = [(); 2].map(|()| ask(&[known_item.input()], 0));
        if let [Some(once), Some(twice)] = &again {
            let all = [first, now, once, twice];
            // The vector `now` came among others while the noise was found out.
            let is_as_alone = alone.is_some() && self.agree(first, once) && self.agree(first, twice);
            if is_as_alone
                || self.is_noise(&all)
                || (alone.is_none() && self.is_of_batch(known_item, &all, ask))
            {
                return Ok(());
            }
        }
        Err(Error::conflict(
            format!("the encoder {encoder} has changed"),
            format!(
                "it gives the text {:?} another vector than at the beginning of this call ({}), so vectors of before and after cannot be \
                 mixed; what it gave since the last comparison is not used. Look which model is served, and go on when it is the one of the \
                 beginning",
                start_of(&known_item.item.text),
                difference_in_words(self.distance, first, now),
            ),
        ))
    }

    /// Whether two vectors of the text are of one model.
    fn agree(&self, a: &[f32], b: &[f32]) -> bool {
        let noise = match lock(&self.state).noise {
            Some(Noise::Call(noise)) => noise,
            // Only vectors of calls of their own are compared by then.
            Some(Noise::Batch(_)) | None => 0.0,
        };
        difference(self.distance, a, b) <= DIFFERENCE_MAX.max(NOISE_TIMES * noise)
    }

    /// Differences of each two of some vectors.
    fn apart(&self, vectors: &[&[f32]]) -> Vec<f64> {
        let pairs = vectors
            .iter()
            .enumerate()
            .flat_map(|(place, a)| vectors[place + 1..].iter().map(move |b| (*a, *b)));
        pairs.map(|(a, b)| difference(self.distance, a, b)).collect()
    }

    /// Whether vectors of one text, two of which do not agree, differ as those of a service with noise do;
    /// the noise is remembered then.
    fn is_noise(&self, vectors: &[&[f32]; 4]) -> bool {
        let apart = self.apart(vectors);
        let largest = apart.iter().copied().fold(0.0, f64::max);
        let is_noise = largest < 1.0 && apart.iter().all(|&apart| apart >= largest * NOISE_SPREAD);
        if is_noise {
            let mut state = lock(&self.state);
            let before = state.noise.map_or(0.0, Noise::difference);
            state.noise = Some(Noise::Call(before.max(largest)));
        }
        is_noise
    }

    /// Whether a text of which two vectors do not agree has another one beside other texts; the noise is
    /// remembered then.
    ///
    /// It has if the last two vectors, of calls of its own, agree, and the first call gives once more what it
    /// gave at first.
    fn is_of_batch(
        &self,
        known_item: &Arc<Known>,
        vectors: &[&[f32]; 4],
        ask: impl Fn(&[Input<'_>], usize) -> Option<Vec<f32>>,
    ) -> bool {
        let [first, _, once, twice] = vectors;
        let largest = self.apart(vectors).into_iter().fold(0.0, f64::max);
        let Some((among, place)) =
            known_item.among.as_ref().filter(|_| largest <= BATCH_MAX && self.agree(once, twice))
        else {
            return false;
        };
        let inputs: Vec<Input<'_>> = among.iter().map(Owned::input).collect();
        let is_of_batch = ask(&inputs, *place).is_some_and(|same| self.agree(first, &same));
        if is_of_batch {
            let mut state = lock(&self.state);
            state.noise = Some(Noise::Batch(largest));
            if state.known_items.first().is_some_and(|first| Arc::ptr_eq(first, known_item)) {
                // All further items are known among others alone.
                state.known_items.truncate(1);
                state.alone = Some(once.to_vec());
            }
        }
        is_of_batch
    }

    pub(crate) fn noise(&self) -> Option<Noise> {
        lock(&self.state).noise
    }

    /// Finding about the noise, for a reader.
    pub(crate) fn finding(&self) -> Option<Finding> {
        let noise = self.noise()?;
        let cosine = 1.0 - noise.difference() / 2.0;
        let finding = match noise {
            Noise::Call(_) => {
                let observation = format!(
                    "[encoder] gives one text different vectors (cosine {cosine:.3} between two calls)."
                );
                Finding::warning(FindingCode::EncoderNoise, observation)
                    .may_mean("What searches find depends on that.")
            }
            Noise::Batch(_) => {
                let observation = format!(
                    "[encoder] gives a text another vector beside other texts than alone (cosine {cosine:.3}), as models with integer \
                     weights do."
                );
                Finding::warning(FindingCode::EncoderBatches, observation)
                    .may_mean("Queries come alone and items in batches, so they are a little farther apart than they might be.")
                    .remedy("batch = 1 in [encoder] makes both alike, and takes longer.")
            }
        };
        Some(finding.evidence(&[("difference", noise.difference())]))
    }
}

/// Shortens a text to its start, for an error.
fn start_of(text: &str) -> String {
    let start: String = text.chars().take(60).collect();
    if start.len() < text.len() { format!("{start}…") } else { start }
}
