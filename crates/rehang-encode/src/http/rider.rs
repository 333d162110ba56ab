//! The text that rides at the end of requests, so that a service is compared with itself all the while.
//!
//! Its vector is known from the first request. A service that has become another one gives it another vector in the very request
//! whose other vectors are wrong, and these are not handed out then.

use std::sync::{Arc, Mutex};

use rehang::Distance;

use crate::meter::lock;
use crate::sameness::{DIFFERENCE_MAX, difference};

/// Texts between two requests with a rider, at least.
const TEXTS_BETWEEN: u64 = 32;
/// As often the largest distance of two vectors of one text that was seen is a service's noise still.
const NOISE_TIMES: f64 = 4.0;
/// The nearest two of four vectors of one text are at least this part of the farthest two apart where it is noise. Where a service has two
/// models, two of four are of one.
const NOISE_SPREAD: f64 = 1.0 / 8.0;

/// A text and the vector that the service gave it first.
pub(super) struct Known {
    pub(super) text: String,
    pub(super) vector: Vec<f32>,
}

#[derive(Default)]
struct State {
    known: Option<Arc<Known>>,
    texts_since: u64,
    noise: Option<f64>,
    /// The service takes no text more than a request has.
    goes_alone: bool,
}

/// What is known of one service.
pub(super) struct Rider {
    distance: Distance,
    state: Mutex<State>,
}

/// How a rider travels.
pub(super) enum Ride {
    None,
    /// At the end of the request.
    Along(Arc<Known>),
    /// In a request of its own, after this one.
    Alone(Arc<Known>),
}

impl Rider {
    pub(super) fn new(distance: Distance) -> Self {
        Self { distance, state: Mutex::default() }
    }

    /// What is to ride with a request of so many texts.
    pub(super) fn of_request(&self, texts: usize) -> Ride {
        let mut state = lock(&self.state);
        let Some(known) = state.known.clone() else { return Ride::None };
        state.texts_since += texts as u64;
        if state.texts_since < TEXTS_BETWEEN {
            return Ride::None;
        }
        state.texts_since = 0;
        if state.goes_alone { Ride::Alone(known) } else { Ride::Along(known) }
    }

    /// Remembers a text to ride along.
    pub(super) fn learn(&self, text: &str, vector: &[f32]) {
        let mut state = lock(&self.state);
        if state.known.is_none() {
            state.known = Some(Arc::new(Known { text: text.to_owned(), vector: vector.to_vec() }));
        }
    }

    pub(super) fn knows(&self) -> bool {
        lock(&self.state).known.is_some()
    }

    /// Lets riders go alone from now on: with one, a request was refused.
    pub(super) fn send_alone(&self, alone: bool) {
        lock(&self.state).goes_alone = alone;
    }

    /// Whether two vectors of the text are of one model.
    pub(super) fn agree(&self, a: &[f32], b: &[f32]) -> bool {
        let noise = lock(&self.state).noise.unwrap_or(0.0);
        difference(self.distance, a, b) <= DIFFERENCE_MAX.max(NOISE_TIMES * noise)
    }

    /// Whether vectors of one text, two of which do not agree, differ as those of a service with noise do; it is remembered then.
    pub(super) fn is_noise(&self, vectors: &[&[f32]]) -> bool {
        let apart: Vec<f64> = vectors
            .iter()
            .enumerate()
            .flat_map(|(place, a)| vectors[place + 1..].iter().map(move |b| difference(self.distance, a, b)))
            .collect();
        let largest = apart.iter().copied().fold(0.0, f64::max);
        let is_noise = largest < 1.0 && apart.iter().all(|&apart| apart >= largest * NOISE_SPREAD);
        if is_noise {
            let mut state = lock(&self.state);
            state.noise = Some(state.noise.unwrap_or(0.0).max(largest));
        }
        is_noise
    }

    pub(super) fn noise(&self) -> Option<f64> {
        lock(&self.state).noise
    }
}
