//! The text that rides with others, so that an encoder is compared with itself all the while.
//!
//! Its vector is known from the first call. A service that has become another one gives it another vector in the very request
//! whose other vectors are wrong, and these are not handed out then.

use std::sync::{Arc, Mutex};

use rehang::finding::Finding;
use rehang::{DIFFERENCE_MAX, Distance, Error, NOISE_TIMES, Result, difference, difference_in_words, norm};
use serde_json::Value;

use crate::contract::{Answer, Input, peculiar};
use crate::meter::lock;

/// The nearest two of four vectors of one text are at least this part of the farthest two apart where it is noise. Where a service has two
/// models, two of four are of one.
const NOISE_SPREAD: f64 = 1.0 / 8.0;

/// An encoder that gives a text another vector beside other texts stays below this: integers for weights go to a third of it (cosine 0.987).
const BATCH_MAX: f64 = 0.1;

/// Items of the first answer that are kept: where one cannot be embedded any more, the next one is asked for.
const KNOWN_MAX: usize = 3;
/// Where so many times the texts between two riders have come without a good comparison, it is asked for in a request of its own.
const LATE_TIMES: u64 = 4;

/// How an encoder gives one source different vectors, each by the largest [`rehang::difference`] that was seen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Noise {
    /// From call to call.
    Call(f64),
    /// By what stands beside it in a call, as models with integer weights do; alone it has the same vector each time.
    Batch(f64),
}

impl Noise {
    fn difference(self) -> f64 {
        match self {
            Self::Call(difference) | Self::Batch(difference) => difference,
        }
    }
}

/// An item and the vector that the encoder gave it first.
pub(crate) struct Known {
    item: Owned,
    vector: Vec<f32>,
    /// The items that it was embedded among, if there were others, and its place: asked for the same once more, an encoder that is itself gives the
    /// same vector.
    among: Option<(Arc<Vec<Owned>>, usize)>,
}

/// An item, to be asked for again.
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
    /// What an encoder gave an item.
    pub(crate) fn of(input: &Input<'_>, vector: &[f32]) -> Self {
        Self { item: Owned::new(input), vector: vector.to_vec(), among: None }
    }

    /// What the encoder is asked with once more.
    pub(crate) fn input(&self) -> Input<'_> {
        self.item.input()
    }
}

#[derive(Default)]
struct State {
    /// The first one rides.
    known: Vec<Arc<Known>>,
    texts_since: u64,
    noise: Option<Noise>,
    /// The vector of the first known item in a call of its own, once one among others was found to be another: all comparisons are of such
    /// ones from then on.
    alone: Option<Vec<f32>>,
    /// The service takes no text more than a request had.
    needs_seat: bool,
    /// Comparisons that were begun, by number, and the last one that was good.
    begun: u64,
    good: u64,
    /// The comparison that vouches for every vector that came without one: the first that was begun when all of them were there.
    awaited: u64,
    /// Vectors that came without one since the last good comparison.
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

/// What is known of one encoder.
pub(crate) struct Rider {
    distance: Distance,
    /// Texts between two riders, at least.
    texts_between: u64,
    state: Mutex<State>,
}

/// A comparison that was begun.
#[derive(Clone)]
pub(crate) struct Turn {
    pub(crate) known: Arc<Known>,
    number: u64,
}

/// How a rider travels.
pub(crate) enum Ride {
    None,
    /// At the end of the request.
    Along(Turn),
    /// In a request of its own, after this one, which has no seat left.
    Alone(Turn),
}

impl Rider {
    pub(crate) fn new(distance: Distance, texts_between: u64) -> Self {
        Self { distance, texts_between, state: Mutex::default() }
    }

    /// What is to ride with a request of so many texts, where it may have a seat there: now and then, or where it `must`.
    pub(crate) fn of_request(&self, texts: usize, has_seat: bool, must: bool) -> Ride {
        let mut state = lock(&self.state);
        let Some(known) = state.known.first().cloned() else { return Ride::None };
        state.texts_since += texts as u64;
        if state.texts_since < self.texts_between && !must {
            return Ride::None;
        }
        state.texts_since = 0;
        state.begun += 1;
        let turn = Turn { known, number: state.begun };
        let is_late = state.texts_unvouched >= self.texts_between * LATE_TIMES;
        let needs_call = (state.needs_seat && !has_seat) || state.alone.is_some();
        if needs_call || is_late { Ride::Alone(turn) } else { Ride::Along(turn) }
    }

    /// A comparison for its own sake; `None` where nothing is known.
    pub(crate) fn turn(&self) -> Option<Turn> {
        let mut state = lock(&self.state);
        let known = state.known.first().cloned()?;
        state.begun += 1;
        Some(Turn { known, number: state.begun })
    }

    /// What is known, to see whether there is room for it.
    pub(crate) fn known(&self) -> Option<Arc<Known>> {
        lock(&self.state).known.first().cloned()
    }

    /// Remembers the shortest of the texts that have a vector, to ride along later. Gives whether it did: there was nothing to compare these
    /// with.
    pub(crate) fn learn(&self, inputs: &[Input<'_>], answers: &[Option<&Answer>]) -> bool {
        let mut state = lock(&self.state);
        if !state.known.is_empty() {
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
        let known = |(input, vector): (&Input<'_>, &Vec<f32>)| {
            let place = inputs.iter().position(|other| std::ptr::eq(other, input));
            let among = place.filter(|_| inputs.len() > 1).map(|place| (Arc::clone(&all), place));
            Arc::new(Known { among, ..Known::of(input, vector) })
        };
        state.known = good.into_iter().take(KNOWN_MAX).map(known).collect();
        !state.known.is_empty()
    }

    /// Counts vectors that came without a comparison: one that begins from now on vouches for them.
    pub(crate) fn came_alone(&self, texts: usize) {
        let mut state = lock(&self.state);
        if !state.known.is_empty() {
            state.awaited = state.begun + 1;
            state.texts_unvouched += texts as u64;
        }
    }

    /// Gives up a text that the encoder does not embed any more. Where none is left, nothing is known of what came before, and the next
    /// answer is learnt.
    pub(crate) fn forget(&self, known: &Arc<Known>) {
        let mut state = lock(&self.state);
        state.known.retain(|other| !Arc::ptr_eq(other, known));
        state.alone = None;
        if state.known.is_empty() {
            let awaited = state.awaited;
            state.vouch(awaited);
        }
    }

    /// Whether vectors wait for a comparison.
    pub(crate) fn is_awaited(&self) -> bool {
        !lock(&self.state).is_vouched()
    }

    /// As [`Encoder::receipt`](crate::Encoder::receipt).
    pub(crate) fn receipt(&self) -> u64 {
        lock(&self.state).awaited
    }

    /// As [`Encoder::is_vouched_for`](crate::Encoder::is_vouched_for).
    pub(crate) fn is_vouched_for(&self, receipt: u64) -> bool {
        receipt <= lock(&self.state).good
    }

    /// Lets riders have a seat among the texts of a request from now on: with one more, a request was refused.
    pub(crate) fn take_seat(&self) {
        lock(&self.state).needs_seat = true;
    }

    pub(crate) fn needs_seat(&self) -> bool {
        lock(&self.state).needs_seat
    }

    /// Fails where an encoder gives a text another vector `now` than at first, unless it never gives it the same one twice, or gives it another
    /// one beside other texts: it is asked for that, by `ask`, which gives the vector of the item at a place of a call. By then the text itself is
    /// asked for twice more, in calls of its own; where these agree, the first call once more, as it was.
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

    /// As [`Self::expect_itself`] of one that vouches for no others.
    ///
    /// # Errors
    ///
    /// A conflict.
    pub(crate) fn expect_same(
        &self,
        encoder: &str,
        known: &Arc<Known>,
        now: &[f32],
        ask: impl Fn(&[Input<'_>], usize) -> Option<Vec<f32>>,
    ) -> Result<()> {
        let alone = {
            let state = lock(&self.state);
            let is_first = state.known.first().is_some_and(|first| Arc::ptr_eq(first, known));
            state.alone.clone().filter(|_| is_first)
        };
        let first = alone.as_deref().unwrap_or(&known.vector);
        if self.agree(first, now) {
            return Ok(());
        }
        let again = [(); 2].map(|()| ask(&[known.input()], 0));
        if let [Some(once), Some(twice)] = &again {
            let all = [first, now, once, twice];
            // One that came among others while that was found out.
            let is_as_alone = alone.is_some() && self.agree(first, once) && self.agree(first, twice);
            if is_as_alone || self.is_noise(&all) || (alone.is_none() && self.is_of_batch(known, &all, ask)) {
                return Ok(());
            }
        }
        Err(Error::conflict(
            format!("the encoder {encoder} has changed"),
            format!(
                "it gives the text {:?} another vector than at the beginning of this call ({}), so vectors of before and after cannot be \
                 mixed; what it gave since the last comparison is not used. Look which model is served, and go on when it is the one of the \
                 beginning",
                start_of(&known.item.text),
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

    /// How far apart each two of some vectors are.
    fn apart(&self, vectors: &[&[f32]]) -> Vec<f64> {
        let pairs = vectors
            .iter()
            .enumerate()
            .flat_map(|(place, a)| vectors[place + 1..].iter().map(move |b| (*a, *b)));
        pairs.map(|(a, b)| difference(self.distance, a, b)).collect()
    }

    /// Whether vectors of one text, two of which do not agree, differ as those of a service with noise do; it is remembered then.
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

    /// Whether a text of which two vectors do not agree has another one beside other texts: the last two, of calls of its own, agree, and the first
    /// call gives what it gave at first. That is remembered then.
    fn is_of_batch(
        &self,
        known: &Arc<Known>,
        vectors: &[&[f32]; 4],
        ask: impl Fn(&[Input<'_>], usize) -> Option<Vec<f32>>,
    ) -> bool {
        let [first, _, once, twice] = vectors;
        let largest = self.apart(vectors).into_iter().fold(0.0, f64::max);
        let Some((among, place)) =
            known.among.as_ref().filter(|_| largest <= BATCH_MAX && self.agree(once, twice))
        else {
            return false;
        };
        let inputs: Vec<Input<'_>> = among.iter().map(Owned::input).collect();
        let is_of_batch = ask(&inputs, *place).is_some_and(|same| self.agree(first, &same));
        if is_of_batch {
            let mut state = lock(&self.state);
            state.noise = Some(Noise::Batch(largest));
            if state.known.first().is_some_and(|first| Arc::ptr_eq(first, known)) {
                // The others are known among others alone.
                state.known.truncate(1);
                state.alone = Some(once.to_vec());
            }
        }
        is_of_batch
    }

    pub(crate) fn noise(&self) -> Option<Noise> {
        lock(&self.state).noise
    }

    /// The noise, for a reader.
    pub(crate) fn finding(&self) -> Option<Finding> {
        let noise = self.noise()?;
        let cosine = 1.0 - noise.difference() / 2.0;
        let finding = match noise {
            Noise::Call(_) => {
                let seen = format!(
                    "[encoder] gives one text different vectors (cosine {cosine:.3} between two calls)."
                );
                Finding::warning("encoder-noise", seen).may_mean("What searches find depends on that.")
            }
            Noise::Batch(_) => {
                let seen = format!(
                    "[encoder] gives a text another vector beside other texts than alone (cosine {cosine:.3}), as models with integer \
                     weights do."
                );
                Finding::warning("encoder-batches", seen)
                    .may_mean("Queries come alone and items in batches, so they are a little farther apart than they might be.")
                    .remedy("batch = 1 in [encoder] makes both alike, and takes longer.")
            }
        };
        Some(finding.evidence(&[("difference", noise.difference())]))
    }
}

/// The start of a text, for an error.
fn start_of(text: &str) -> String {
    let start: String = text.chars().take(60).collect();
    if start.len() < text.len() { format!("{start}…") } else { start }
}
