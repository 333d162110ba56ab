//! Embedding endpoint that speaks OpenAI's protocol, `POST …/v1/embeddings`, as an encoder.

mod answer;
mod batch;
#[cfg(test)]
#[path = "../../tests/common/desk.rs"]
mod desk;
mod pace;
#[cfg(test)]
#[path = "../../tests/common/stub.rs"]
mod stub;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_of_connections;
#[cfg(test)]
#[path = "../../../rehang-connect/tests/tls/mod.rs"]
mod tls;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rehang_clock::{Clock, SystemClock};
use rehang_connect::{Connection, OwnRoots, is_loopback};
use rehang_core::check::expect_width;
use rehang_core::finding::Finding;
use rehang_core::{Error, ErrorKind, Permit, Result, Semaphore, Space, difference, norm};
use serde_json::Value;
use ureq::Agent;

use crate::ceiling::Ceiling;
use crate::check::Check;
use crate::config::HttpConfig;
use crate::config::keys::{at_least_one, positive, seconds};
use crate::contract::{Answer, Encoder, Input, ItemFailure, Reads, Spent, peculiar};
use crate::fingerprint::Fingerprint;
use crate::learnt::Learnt;
use crate::meter::{Meter, lock};
use crate::reading::{Reading, beginning_of};
use crate::rider::{Known, Ride, Rider, Turn};
use answer::{FIELDS, Request, Unread};
use batch::kept::Batches;
use pace::{Backoff, Pace, retry_after, wait_asked};

/// Longest wait that a service may ask for without ending the call.
const RETRY_AFTER_MAX: Duration = Duration::from_mins(5);
/// Longest time that a service may refuse everybody for its limits, giving no vector meanwhile.
const LIMITED_MAX: Duration = Duration::from_mins(10);
/// Longest time that a service which is loading or overloaded is waited for.
const OVERLOADED_MAX: Duration = Duration::from_mins(5);
/// Longest time that requests are held back, whatever a service asks for.
const PAUSE_MAX: Duration = Duration::from_hours(24);
/// Tokens that a service may count for a text beside those that its bytes could be: special ones,
/// instructions of its own.
const TOKENS_MORE: u64 = 256;
/// Text that no service fails at: a service that cannot embed this one can embed none.
const PROBE: &str = "rehang";
/// Texts of the first request of all: a fault of every answer is found before more is paid for.
const FIRST_TEXTS: usize = 4;
/// Fewest texts between two requests with a rider.
const TEXTS_BETWEEN_RIDERS: u64 = 32;
/// Relative squared distance up to which two vectors are of one and the same text, computed in half
/// precision.
const SAME: f64 = 1e-4;
/// Texts of a request below which a rider goes alone, where the service takes no more of them: a seat among
/// so few costs more.
const SEATS_MIN: usize = 7;
/// Longest time that a connection may take to come about.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Bytes of JSON that one number may take. `ANSWER_BYTES_MORE` are those of an answer beside its numbers.
const NUMBER_BYTES_MAX: u64 = 40;
const ANSWER_BYTES_MORE: u64 = 1 << 20;

/// Encoder behind [`HttpConfig`].
pub(crate) struct Http {
    check: Check,
    config: HttpConfig,
    url: String,
    /// Address as errors name it.
    shown_url: String,
    /// Headers that every request has, with the key among them.
    headers: Vec<Header>,
    /// Texts that no error repeats: the key, and values of headers that come from the environment.
    secrets: Vec<String>,
    agent: Agent,
    /// Knowledge of the connection that says who is to blame for a request that found nobody.
    connection: Connection,
    clock: Arc<dyn Clock>,
    pace: Pace,
    backoff: Backoff,
    meter: Meter,
    /// Amount that others have used of the same budgets.
    spent_by_others: Mutex<Spent>,
    /// Semaphore that lets as many requests be under way as may be.
    slots: Semaphore,
    /// Number of requests that may be under way by now: half as many after a time-out.
    lanes: AtomicUsize,
    /// Requests that the service has given vectors for so far.
    served: AtomicU64,
    /// Number of texts that a request may have.
    ceiling: Mutex<Ceiling>,
    /// Most texts of a request that the service has given vectors for. A request with no more that it
    /// refuses, it refuses for another reason.
    texts_served: AtomicUsize,
    /// Whether `encoding_format` is named: a few services refuse it.
    names_format: AtomicBool,
    /// Whether the service has embedded a [`peculiar`] text: such texts travel with others from then on.
    takes_peculiar: AtomicBool,
    /// Comparison of the service with itself.
    rider: Rider,
    /// Number of texts of the call before.
    call_before: AtomicUsize,
    /// How far into a text the service reads.
    reading: Mutex<Reading>,
    /// Batches of the batch API, where it is used.
    batches: Option<Batches>,
    /// Error that stopped an earlier call and stops every later one.
    stopped: Mutex<Option<Error>>,
}

/// Reads bytes as the answers of a service, for [`crate::doors`].
pub(crate) fn take_in(bytes: &[u8]) {
    for count in [1, 2] {
        drop(answer::read(bytes, count));
    }
    drop(answer::message(bytes, ["key"]));
    answer::is_account_empty(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        retry_after(text, Some("Sun, 06 Nov 1994 08:49:37 GMT"));
        drop(endpoint(text));
    }
}

/// Outcome of one attempt.
enum Outcome {
    Vectors(Vec<Vec<f32>>),
    /// The next attempt may succeed, after the wait that the service asked for, if it did.
    Again {
        reason: String,
        wait: Option<Duration>,
    },
    /// The service says that it is loading or overloaded: it may say so for a while, or a text brings it
    /// down.
    Overloaded {
        reason: String,
        wait: Option<Duration>,
    },
    /// The service refuses everybody for its limits. No text is to blame.
    Limited {
        reason: String,
        wait: Option<Duration>,
    },
    /// No answer came in time to a request that was sent.
    TimedOut(String),
    /// The service failed at this request (status 500), which a text of it may be the cause of.
    Broke(String),
    /// The service cannot be reached: no such host, connection refused. The next attempt may reach it.
    Unreachable(String),
    /// The service does not want these texts.
    Refused(String),
}

/// Refusals of one request for limits, in a row.
struct Limited {
    times: u32,
    since: Duration,
    /// Requests that the service had given vectors for by `since`.
    served: u64,
}

/// End of a request that was sent as often as it may be.
enum Ended {
    Vectors(Vec<Vec<f32>>),
    /// The service does not want these texts.
    Refused(String),
    /// Every attempt failed.
    Failed {
        reason: String,
        /// Whether the service gave vectors for other requests since the first attempt failed.
        others_served: bool,
        /// Whether the service said last that it is loading or overloaded.
        is_overloaded: bool,
    },
    /// No answer came in time, and a smaller request may get one.
    TimedOut(String),
    /// The service broke at the request, as often and in the same words as it may.
    Broke {
        reason: String,
        others_served: bool,
    },
    /// The budget has room for only so many texts of the request.
    Short(usize),
}

impl Http {
    pub(crate) fn open(config: &HttpConfig, space: &Space) -> Result<Self> {
        let variable = |name: &str| std::env::var(name).ok();
        Self::with(config, space, Arc::new(SystemClock::start()), variable)
    }

    /// Adds the batch API, where the configuration asks for it: its journal lies in the folder `base`.
    pub(crate) fn with_batches(self, base: &Path) -> Result<Self> {
        let batches = Batches::open(&self.config, base, &self.url)?;
        Ok(Self { batches, ..self })
    }

    /// Opens the encoder as [`Self::open`] does, with a clock and an environment of the caller's.
    fn with(
        config: &HttpConfig,
        space: &Space,
        clock: Arc<dyn Clock>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self> {
        let url = endpoint(&config.url)?;
        check_keys(config, space)?;
        let timeout = seconds("timeout_seconds", config.timeout_seconds)?;
        let shown_url = without_values(&url);
        let (headers, secrets) = headers(config, &variable)?;
        if !secrets.is_empty() && url.starts_with("http://") && !is_loopback(&url) && !config.plain_http {
            return Err(Error::option(
                "url",
                &shown_url,
                "an address with https://, since the key can be read on its way to this one; plain_http = true sends it all the same",
            ));
        }
        let own_roots =
            OwnRoots { key: "[encoder] root_certificates", file: config.root_certificates.as_deref() };
        let connection = Connection::to(&url, &own_roots, &variable)?;
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_global(Some(timeout))
            .timeout_connect(Some(timeout.min(CONNECT_MAX)))
            .max_idle_connections_per_host(config.concurrency)
            .max_idle_connections(config.concurrency)
            .user_agent(concat!("rehang/", env!("CARGO_PKG_VERSION")));
        Ok(Self {
            agent: connection.configure(agent).build().into(),
            connection,
            check: Check::new(space, format!("{} at {shown_url}", config.model), config.normalise),
            names_format: AtomicBool::new(!url_of_ollama(&url)),
            batches: None,
            url,
            shown_url,
            headers,
            secrets,
            clock,
            pace: Pace::new(config.requests_per_minute, config.tokens_per_minute),
            backoff: Backoff::new(config.seed),
            meter: Meter::default(),
            spent_by_others: Mutex::default(),
            slots: Semaphore::new(config.concurrency),
            lanes: AtomicUsize::new(config.concurrency),
            served: AtomicU64::new(0),
            ceiling: Mutex::default(),
            texts_served: AtomicUsize::new(0),
            takes_peculiar: AtomicBool::new(false),
            rider: Rider::new(space.distance, TEXTS_BETWEEN_RIDERS),
            call_before: AtomicUsize::new(0),
            reading: Mutex::default(),
            stopped: Mutex::default(),
            config: config.clone(),
        })
    }

    /// Embeds the texts of one request, which becomes several where the service refuses it or fails at it,
    /// where it takes fewer, or the budget ends.
    ///
    /// `earlier_reason` is what the service said when it broke at a request that these texts were a part of.
    /// Where the request `is_last`, the service is compared with itself in it: no call may follow that does
    /// so.
    ///
    /// # Errors
    ///
    /// Unavailable where the service answers no request, so that no item is to blame; what else stops a run.
    fn embed(
        &self,
        inputs: &[Input<'_>],
        answers: &mut [Option<Answer>],
        earlier_reason: Option<&str>,
        is_last: bool,
    ) -> Result<()> {
        let seats = self.seats();
        if inputs.len() > seats && !lock(&self.ceiling).is_try(inputs.len()) {
            return self.embed_parts(seats, inputs, answers, earlier_reason, is_last);
        }
        // Alone, a peculiar text spoils no request for others.
        if inputs.len() > 1
            && !self.takes_peculiar.load(Ordering::Relaxed)
            && let Some(place) = inputs.iter().position(|input| peculiar(input.source).is_some())
        {
            return self.embed_parts(place.max(1), inputs, answers, earlier_reason, is_last);
        }
        // Halves tell more than the same request again. One text that is found in this way is asked for once
        // more, and one that came alone as often as any.
        let breaks = match (inputs.len(), earlier_reason) {
            (1, None) => usize::MAX,
            (1, Some(_)) => 2,
            _ => 1,
        };
        let (ended, is_compared) = self.insist_with_rider(inputs, breaks, is_last)?;
        match ended {
            Ended::Vectors(vectors) => {
                lock(&self.ceiling).took(inputs.len(), seats, self.config.batch);
                for ((input, answer), vector) in inputs.iter().zip(&mut *answers).zip(vectors) {
                    let vector = self.check.vector(input.id, vector).map_err(|error| self.blame(error))?;
                    if vector.is_ok() && peculiar(input.source).is_some() {
                        self.takes_peculiar.store(true, Ordering::Relaxed);
                    }
                    *answer = Some(vector.map_err(|failure| match failure {
                        ItemFailure::Permanent(reason) => {
                            ItemFailure::Permanent(explained(input.source, reason))
                        }
                        other => other,
                    }));
                }
                let is_first =
                    self.rider.learn(inputs, &answers.iter().map(Option::as_ref).collect::<Vec<_>>());
                if !(is_compared || is_first) {
                    self.rider.came_alone(inputs.len());
                }
                Ok(())
            }
            Ended::Short(count) => {
                let (now, later) = answers.split_at_mut(count);
                self.embed(&inputs[..count], now, earlier_reason, true)?;
                self.embed(&inputs[count..], later, earlier_reason, is_last)
            }
            Ended::Refused(reason) => {
                if self.served.load(Ordering::Relaxed) == 0 {
                    self.expect_taken(&reason)?;
                }
                if let [input] = inputs {
                    if peculiar(input.source).is_some() {
                        self.takes_peculiar.store(false, Ordering::Relaxed);
                    }
                    answers[0] = Some(Err(ItemFailure::Permanent(explained(input.source, reason))));
                    return Ok(());
                }
                // One text may spoil the request for the others: each half is asked alone until it is found.
                // Or there are too many texts, and the service may say how many it takes.
                let part = answer::most_texts(&reason, inputs.len()).unwrap_or(inputs.len().div_ceil(2));
                for (inputs, answers) in inputs.chunks(part).zip(answers.chunks_mut(part)) {
                    self.embed(inputs, answers, earlier_reason, is_last)?;
                }
                let all_taken = answers.iter().all(|answer| matches!(answer, Some(Ok(_))));
                // No text spoiled the request: there were too many of them. Where the service has taken so
                // many before, they were too long together.
                let is_try = lock(&self.ceiling).is_try(inputs.len());
                if all_taken && (is_try || inputs.len() > self.texts_served.load(Ordering::Relaxed)) {
                    lock(&self.ceiling).refused(inputs.len(), part);
                }
                Ok(())
            }
            Ended::Failed { reason, others_served, is_overloaded } => {
                let mut was_away = false;
                if !others_served && !self.serves_anybody()? {
                    was_away = is_overloaded && self.comes_back()?;
                    if !was_away {
                        return Err(self.unavailable(reason));
                    }
                }
                // The service is well and fails at this request each time: some text brings it down, and is
                // looked for in the same way.
                if inputs.len() > 1 {
                    return self.embed_parts(inputs.len() / 2, inputs, answers, earlier_reason, is_last);
                }
                if was_away && earlier_reason.is_none() {
                    // The failure may have been no fault of the text.
                    return self.embed(inputs, answers, Some(&reason), is_last);
                }
                answers[0] = Some(Err(ItemFailure::Temporary(format!("{}: {reason}", self.check.encoder()))));
                Ok(())
            }
            Ended::TimedOut(reason) => {
                if self.served.load(Ordering::Relaxed) == 0 && !self.serves_anybody()? {
                    return Err(self.unavailable(reason));
                }
                // A slow service gets through smaller requests, and through none that it is sent again and
                // again.
                let part = inputs.len() / 2;
                self.embed_parts(part, inputs, answers, earlier_reason, is_last)?;
                // Where one text hangs the service, requests of the others need not become smaller.
                if answers.iter().all(|answer| matches!(answer, Some(Ok(_)))) {
                    lock(&self.ceiling).refused(inputs.len(), inputs.len() - part);
                }
                Ok(())
            }
            Ended::Broke { reason, others_served } => {
                if earlier_reason != Some(&reason) && !others_served && !self.serves_anybody()? {
                    return Err(self.unavailable(reason));
                }
                if let [input] = inputs {
                    let reason = format!("{}: {reason}, each time that it was asked", self.check.encoder());
                    answers[0] = Some(Err(ItemFailure::Permanent(explained(input.source, reason))));
                    return Ok(());
                }
                self.embed_parts(inputs.len() / 2, inputs, answers, Some(&reason), is_last)
            }
        }
    }

    /// Most texts of the next request. A rider has its seat among those that the service takes, where it
    /// takes not one more.
    fn seats(&self) -> usize {
        let most = lock(&self.ceiling).most().min(self.config.batch);
        if self.rider.needs_seat() && most >= SEATS_MIN { most - 1 } else { most }
    }

    /// Whether the service takes so many texts, as far as refusals have told.
    fn takes(&self, texts: usize) -> bool {
        texts <= lock(&self.ceiling).most()
    }

    /// Embeds the first `count` texts, then the others.
    fn embed_parts(
        &self,
        count: usize,
        inputs: &[Input<'_>],
        answers: &mut [Option<Answer>],
        earlier_reason: Option<&str>,
        is_last: bool,
    ) -> Result<()> {
        let (left, right) = answers.split_at_mut(count);
        self.embed(&inputs[..count], left, earlier_reason, false)?;
        self.embed(&inputs[count..], right, earlier_reason, is_last)
    }

    /// Sends a request as [`Self::insist`] does, with a rider where one is due. Gives whether the service was
    /// compared with itself.
    ///
    /// A rider is a text whose vector is known. It is due at its turn, where it `must`, or where the budget
    /// has no room for it afterwards.
    ///
    /// # Errors
    ///
    /// A conflict where the service gives that text another vector than at first: whatever else the request
    /// gave is not handed out.
    fn insist_with_rider(&self, inputs: &[Input<'_>], breaks: usize, must: bool) -> Result<(Ended, bool)> {
        let has_seat = self.takes(inputs.len() + 1);
        match self.rider.ride_with_request(inputs.len(), has_seat, must || self.is_budget_short(inputs)) {
            Ride::None => Ok((self.insist(inputs, breaks)?, false)),
            Ride::Along(turn) => self.insist_along(inputs, breaks, &turn, self.question(inputs)),
            Ride::Alone(turn) => {
                let ended = self.insist(inputs, breaks)?;
                let is_compared = match (&ended, &turn) {
                    (Ended::Vectors(_), turn) => match self.vector_of(&turn.known)? {
                        Some(vector) => self.expect_itself(turn, vector)?,
                        None => false,
                    },
                    _ => false,
                };
                Ok((ended, is_compared))
            }
        }
    }

    /// Sends a request with a rider in it, and with the beginning of a text, if there is a question how far
    /// the service reads.
    fn insist_along(
        &self,
        inputs: &[Input<'_>],
        breaks: usize,
        turn: &Turn,
        question: Option<(usize, Input<'_>)>,
    ) -> Result<(Ended, bool)> {
        let texts_served = self.texts_served.load(Ordering::Relaxed);
        let beginning = question.as_ref().map(|(_, beginning)| *beginning);
        let known_input = turn.known.input();
        let all: Vec<Input<'_>> = inputs.iter().copied().chain(beginning).chain([known_input]).collect();
        match self.insist(&all, breaks)? {
            Ended::Vectors(mut vectors) => {
                let is_compared = self.expect_itself(turn, vectors.pop().unwrap_or_default())?;
                if let Some((place, beginning)) = question {
                    let beginning_vector = vectors.pop().unwrap_or_default();
                    self.take_in(beginning.source, &vectors[place], &beginning_vector);
                }
                Ok((Ended::Vectors(vectors), is_compared))
            }
            // The budget has no room for all of them: texts that are embedded are compared, and texts that
            // cannot be compared are not paid for.
            Ended::Short(_) if question.is_some() => self.insist_along(inputs, breaks, turn, None),
            Ended::Short(count) if count > 1 => Ok((Ended::Short(count - 1), false)),
            Ended::Short(_) => Err(Error::budget_spent(
                "the budget of the encoder",
                "it has room for one item, and none for the one by which the encoder is compared with itself; raise it to go on",
            )),
            Ended::Refused(reason) => {
                let is_try = lock(&self.ceiling).is_try(inputs.len());
                if is_try || answer::most_texts(&reason, all.len()).is_some_and(|most| most < inputs.len()) {
                    // The texts themselves are too many for the service, not the ones that ride along.
                    return Ok((Ended::Refused(reason), false));
                }
                if question.is_some() {
                    lock(&self.reading).unanswered();
                }
                let ended = self.insist(inputs, breaks)?;
                if matches!(ended, Ended::Vectors(_)) && inputs.len() >= texts_served {
                    // The service takes so many, and not one more.
                    lock(&self.ceiling).refused(all.len(), inputs.len());
                    self.rider.take_seat();
                }
                Ok((ended, false))
            }
            Ended::TimedOut(_) if inputs.len() == 1 => Ok((self.insist(inputs, breaks)?, false)),
            failed @ (Ended::Failed { .. } | Ended::Broke { .. } | Ended::TimedOut(_)) => Ok((failed, false)),
        }
    }

    /// Whether these texts would leave no room in a budget for the one that the service is compared by.
    fn is_budget_short(&self, inputs: &[Input<'_>]) -> bool {
        let HttpConfig { budget_items, budget_tokens, budget_money, .. } = &self.config;
        if budget_items.is_none() && budget_tokens.is_none() && budget_money.is_none() {
            return false;
        }
        let Some(known_text) = self.rider.known() else { return false };
        let all: Vec<Input<'_>> = inputs.iter().copied().chain([known_text.input()]).collect();
        let Ok((count, tokens)) = self.reserve(&all) else { return true };
        self.unreserve(count, tokens);
        count < all.len()
    }

    /// Chooses the beginning of the longest text of a request, and the place of that text, where the two
    /// together tell how far the service reads.
    ///
    /// The beginning rides beside the known text, if there is a seat for both. A service with noise cannot be
    /// asked.
    fn question<'a>(&self, inputs: &[Input<'a>]) -> Option<(usize, Input<'a>)> {
        let has_seat = !self.rider.needs_seat() || self.takes(inputs.len() + 2);
        if !has_seat || self.rider.noise().is_some() {
            return None;
        }
        let (place, input) = inputs.iter().enumerate().max_by_key(|(_, input)| input.source.len())?;
        let characters = lock(&self.reading).question(input.source.chars().count())?;
        Some((place, Input { source: beginning_of(input.source, characters)?, ..*input }))
    }

    /// Takes in what the vector of a text's beginning says of how far the service reads.
    fn take_in(&self, beginning: &str, text_vector: &[f32], beginning_vector: &[f32]) {
        let mut reading = lock(&self.reading);
        if text_vector.len() != beginning_vector.len() || norm(text_vector) == 0.0 {
            return reading.unanswered();
        }
        let is_same = difference(self.check.space().distance, text_vector, beginning_vector) <= SAME;
        reading.answered(beginning.chars().count(), is_same);
    }

    /// Asks for the vector that the service gives a known text now; `None` where it gives none. A text that
    /// it does not take any more is given up.
    fn vector_of(&self, known_text: &Arc<Known>) -> Result<Option<Vec<f32>>> {
        match self.insist(&[known_text.input()], usize::MAX) {
            Ok(Ended::Vectors(mut vectors)) => Ok(vectors.pop()),
            Ok(Ended::Refused(_) | Ended::Broke { .. }) => {
                self.rider.forget(known_text);
                Ok(None)
            }
            Ok(_) => Ok(None),
            Err(error) if error.is_budget_spent() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes a function that asks for the vector of the text at a place of a request.
    fn ask(&self) -> impl Fn(&[Input<'_>], usize) -> Option<Vec<f32>> {
        |inputs, place| match self.insist(inputs, usize::MAX) {
            Ok(Ended::Vectors(vectors)) => {
                self.check.vector(inputs[place].id, vectors.into_iter().nth(place)?).ok()?.ok()
            }
            _ => None,
        }
    }

    /// Fails where the service gives a known text another vector than at first. Gives whether it gave one.
    fn expect_itself(&self, turn: &Turn, vector: Vec<f32>) -> Result<bool> {
        let checked = |vector| -> Result<Option<Vec<f32>>> {
            Ok(self.check.vector(turn.known.input().id, vector)?.ok())
        };
        let Some(now) = checked(vector)? else { return Ok(false) };
        self.rider.expect_itself(self.check.encoder(), turn, &now, self.ask())?;
        Ok(true)
    }

    /// Asks for the vector of a known text after an interruption, when nothing waits any more: one request,
    /// at once.
    fn vector_at_once(&self, known_text: &Arc<Known>) -> Result<Option<Vec<f32>>> {
        let input = [known_text.input()];
        let (_, tokens) = self.reserve(&input)?;
        let turn = self.slots.acquire();
        Ok(match self.send(&input, self.options(), tokens, turn)? {
            Outcome::Vectors(mut vectors) => vectors.pop(),
            _ => None,
        })
    }

    /// Whether the service embeds one harmless word. A request that fails says nothing by itself: a text may
    /// bring the service down, or the service may be down.
    fn serves_anybody(&self) -> Result<bool> {
        Ok(matches!(self.insist(&[probe()], usize::MAX)?, Ended::Vectors(_)))
    }

    /// Waits for a service that is loading or overloaded, some minutes. Gives whether it embeds one harmless
    /// word then.
    fn comes_back(&self) -> Result<bool> {
        let began = self.clock.now();
        for times in 1.. {
            let now = self.clock.now();
            if now.saturating_sub(began) > OVERLOADED_MAX {
                return Ok(false);
            }
            self.wait_until(now + self.backoff.wait(times + 3))?;
            if self.serves_anybody()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Fails where the service, which has given no vector so far, refuses one harmless word too.
    ///
    /// It refuses the request then, not the texts: each of its options is left out in turn, so that the error
    /// can name the one.
    fn expect_taken(&self, reason: &str) -> Result<()> {
        if self.serves_anybody()? {
            return Ok(());
        }
        let HttpConfig { dimensions, input_type, .. } = &self.config;
        let without = |options: Options<'_>| -> Result<bool> {
            Ok(matches!(self.insist_on(&[probe()], options, usize::MAX)?, Ended::Vectors(_)))
        };
        if let Some(dimensions) = dimensions
            && without(Options { dimensions: None, ..self.options() })?
        {
            let expected =
                format!("no such key, and a space as wide as the model: the service refuses it ({reason})");
            return Err(Error::option("dimensions", dimensions, expected));
        }
        if let Some(input_type) = input_type
            && without(Options { input_type: None, ..self.options() })?
        {
            let expected =
                format!("one that the service knows, or no such key: the service refuses it ({reason})");
            return Err(Error::option("input_type", input_type, expected));
        }
        Err(self.unavailable(format!("it refuses every text: {reason}")))
    }

    /// Turns the error of a width into one that names the key that it comes from.
    fn blame(&self, error: Error) -> Error {
        match (error.kind(), self.config.dimensions) {
            (ErrorKind::WidthMismatch { received, .. }, Some(dimensions)) => Error::option(
                "dimensions",
                dimensions,
                format!(
                    "a width that the service heeds: {} gave vectors of {received} numbers all the same; leave the key out and \
                     let the new space be {received} wide, or ask a service that cuts its vectors",
                    self.check.encoder()
                ),
            ),
            _ => error,
        }
    }

    /// Options of every request.
    fn options(&self) -> Options<'_> {
        Options { dimensions: self.config.dimensions, input_type: self.config.input_type.as_deref() }
    }

    /// Sends one request until the service has taken or refused it, or as often as it may be sent. Ends
    /// earlier where the service has broken at it `breaks` times in a row with the same words.
    ///
    /// # Errors
    ///
    /// Unavailable where the last attempt cannot reach the service, or the service asks for a long wait. No
    /// item is to blame then, however often the service answered before.
    fn insist(&self, inputs: &[Input<'_>], breaks: usize) -> Result<Ended> {
        self.insist_on(inputs, self.options(), breaks)
    }

    /// Sends a request as [`Self::insist`] does, with options of the caller's.
    fn insist_on(&self, inputs: &[Input<'_>], options: Options<'_>, breaks: usize) -> Result<Ended> {
        let (mut failures, mut served_before) = (0, 0);
        let (mut broke, mut words) = (0, String::new());
        let mut limited = Limited { times: 0, since: self.clock.now(), served: 0 };
        loop {
            let (count, tokens) = self.reserve(inputs)?;
            if count < inputs.len() {
                self.unreserve(count, tokens);
                return Ok(Ended::Short(count));
            }
            let turn = self.wait_for_turn(tokens).inspect_err(|_| self.unreserve(count, tokens))?;
            let mut is_overloaded = false;
            let (reason, wait, is_unreachable) = match self.send(inputs, options, tokens, turn)? {
                Outcome::Vectors(vectors) => return Ok(Ended::Vectors(vectors)),
                Outcome::Refused(reason) => return Ok(Ended::Refused(reason)),
                Outcome::Limited { reason, wait } => {
                    self.keep_to_limits(&mut limited, reason, wait)?;
                    continue;
                }
                Outcome::Again { reason, wait } => (reason, wait, false),
                Outcome::Overloaded { reason, wait } => {
                    is_overloaded = true;
                    (reason, wait, false)
                }
                Outcome::TimedOut(reason) if inputs.len() > 1 => return Ok(Ended::TimedOut(reason)),
                Outcome::TimedOut(reason) => (reason, None, false),
                Outcome::Broke(reason) => {
                    broke = if reason == words { broke + 1 } else { 1 };
                    words.clone_from(&reason);
                    (reason, None, false)
                }
                Outcome::Unreachable(reason) => (reason, None, true),
            };
            failures += 1;
            if failures == 1 {
                served_before = self.served.load(Ordering::Relaxed);
            }
            if broke >= breaks {
                let others_served = self.served.load(Ordering::Relaxed) > served_before;
                return Ok(Ended::Broke { reason, others_served });
            }
            let now = self.clock.now();
            if let Some(wait) = wait {
                // A wait that the service asks of one request holds for all of them.
                self.pace.pause_until(now + wait.min(PAUSE_MAX));
            }
            let is_last = failures >= self.config.attempts;
            if (is_unreachable && is_last) || wait.is_some_and(|wait| wait > RETRY_AFTER_MAX) {
                return Err(self.unavailable(reason));
            }
            if is_last {
                let reason = format!("{reason} (attempt {failures} of {})", self.config.attempts);
                let others_served = self.served.load(Ordering::Relaxed) > served_before;
                return Ok(Ended::Failed { reason, others_served, is_overloaded });
            }
            // Attempts rest even where the service asks for no wait: those that follow at once are lost to
            // the same overload.
            let backoff = self.backoff.wait(failures as u32);
            self.wait_until(now + wait.unwrap_or_default().max(backoff))?;
        }
    }

    /// Waits as long as a service asks that refuses everybody for its limits, or longer and longer up to a
    /// minute where it says nothing.
    ///
    /// # Errors
    ///
    /// Unavailable where it asks for a long wait, or has given no vector for a while. As
    /// [`Http::wait_until`].
    fn keep_to_limits(&self, limited: &mut Limited, reason: String, wait: Option<Duration>) -> Result<()> {
        let (now, served) = (self.clock.now(), self.served.load(Ordering::Relaxed));
        if limited.times == 0 || served > limited.served {
            *limited = Limited { times: 0, since: now, served };
        }
        limited.times += 1;
        if wait.is_some_and(|wait| wait > RETRY_AFTER_MAX) {
            self.pace.pause_until(now + wait.unwrap_or_default().min(PAUSE_MAX));
            return Err(self.unavailable(reason));
        }
        if now.saturating_sub(limited.since) > LIMITED_MAX {
            let minutes = LIMITED_MAX.as_secs() / 60;
            return Err(self.unavailable(format!(
                "{reason}; it has given no vector for {minutes} minutes. requests_per_minute and tokens_per_minute in [encoder] keep below its limits"
            )));
        }
        let wait = wait.unwrap_or_default().max(self.backoff.wait(limited.times + 1));
        self.pace.refused(now, now + wait);
        self.wait_until(now + wait)
    }

    /// Waits for a moment.
    ///
    /// # Errors
    ///
    /// The error that stopped every call meanwhile: an interruption, a key that ended, a budget.
    fn wait_until(&self, time: Duration) -> Result<()> {
        self.clock.sleep_until(time, &|| lock(&self.stopped).is_some());
        self.expect_not_stopped()
    }

    fn expect_not_stopped(&self) -> Result<()> {
        lock(&self.stopped).clone().map_or(Ok(()), Err)
    }

    /// Waits for the moment and the connection of a request, and longer where the service asks for that
    /// meanwhile.
    ///
    /// # Errors
    ///
    /// As [`Http::expect_no_long_pause`] and [`Http::wait_until`].
    fn wait_for_turn(&self, tokens: u64) -> Result<Permit<'_>> {
        let from = self.pace.reserve(self.clock.now(), tokens);
        self.expect_no_long_pause()?;
        self.wait_until(from)?;
        loop {
            let turn = self.slots.acquire();
            self.expect_no_long_pause()?;
            let paused_until = self.pace.paused_until();
            if paused_until <= self.clock.now() {
                return Ok(turn);
            }
            drop(turn);
            self.wait_until(paused_until)?;
        }
    }

    /// Fails where the service wants to be left alone for long, also where another request was told so. A run
    /// that is told to come back in an hour ends instead of standing still.
    fn expect_no_long_pause(&self) -> Result<()> {
        let pause_left = self.pace.paused_until().saturating_sub(self.clock.now());
        if pause_left <= RETRY_AFTER_MAX {
            return Ok(());
        }
        Err(self.unavailable(format!("it asked to be left alone for {} s more", pause_left.as_secs())))
    }

    /// Sends one request of texts whose tokens are reserved.
    fn send(
        &self,
        inputs: &[Input<'_>],
        options: Options<'_>,
        reserved: u64,
        turn: Permit<'_>,
    ) -> Result<Outcome> {
        let HttpConfig { model, prefix, .. } = &self.config;
        let Options { dimensions, input_type } = options;
        let texts: Vec<String> = inputs.iter().map(|input| format!("{prefix}{}", input.source)).collect();
        let encoding_format = self.names_format.load(Ordering::Relaxed).then_some("float");
        let more = &self.config.body;
        let request = Request { model, input: &texts, encoding_format, dimensions, input_type, more };
        // Text can always be written as JSON.
        let body = serde_json::to_vec(&request).unwrap_or_default();
        let mut request = self.agent.post(&self.url).header("Content-Type", "application/json");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let limit = (inputs.len() as u64)
            .saturating_mul(self.check.space().dimension as u64)
            .saturating_mul(NUMBER_BYTES_MAX)
            .saturating_add(ANSWER_BYTES_MORE);
        let lanes = self.lanes.load(Ordering::Relaxed);
        let response = request.send(&body[..]).map(|mut response| {
            let body = response.body_mut().with_config().limit(limit).read_to_vec();
            (response, body)
        });
        drop(turn);
        let (response, body) = match response {
            Ok(answer) => answer,
            Err(error) => {
                let outcome = self.unreachable(&error, inputs.len(), reserved)?;
                if matches!(outcome, Outcome::TimedOut(_)) {
                    self.narrow(lanes);
                }
                return Ok(outcome);
            }
        };
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        let status = response.status().as_u16();
        if status != 200 {
            self.unreserve_refused(status, inputs.len(), reserved);
            let body = body.unwrap_or_default();
            return self.refused(status, &body, wait_asked(response.headers()), header("location"));
        }
        let read = match &body {
            Ok(body) => answer::read(body, inputs.len()),
            Err(error) => Err(Unread::Broken(format!("its answer broke off ({error})"))),
        };
        if let (Err(_), Ok(body)) = (&read, &body)
            && let Some((code, message)) = answer::error_in(body, self.secrets.iter().map(String::as_str))
        {
            let wait = answer::wait_in(body);
            let Some(code @ 400..=599) = code else {
                return Ok(Outcome::Again { reason: format!("it gave no vectors: {message}"), wait });
            };
            // The code in the body is the status that the answer should have had.
            self.unreserve_refused(code, inputs.len(), reserved);
            return self.refused(code, body, wait, None);
        }
        Ok(match read {
            Ok(answer) => {
                self.served.fetch_add(1, Ordering::Relaxed);
                self.pace.served(self.clock.now());
                self.texts_served.fetch_max(inputs.len(), Ordering::Relaxed);
                if let Some(used) = answer.tokens {
                    // A service's count is not trusted further than the texts could have tokens.
                    let most: u64 = texts.iter().map(|text| text.len() as u64 + TOKENS_MORE).sum();
                    self.correct(reserved, used.min(most));
                }
                Outcome::Vectors(answer.vectors)
            }
            // The tokens stay counted: the service did its work.
            Err(Unread::Form(reason)) if self.served.load(Ordering::Relaxed) == 0 => {
                return Err(Error::option(
                    "url",
                    &self.shown_url,
                    format!(
                        "an address that answers as OpenAI's /v1/embeddings or Ollama's /api/embed do: {} was asked for {} texts, and {reason}",
                        self.check.encoder(),
                        inputs.len()
                    ),
                ));
            }
            Err(Unread::Broken(reason) | Unread::Form(reason)) => Outcome::Again { reason, wait: None },
        })
    }

    /// Says what a status other than 200 means for the request.
    fn refused(
        &self,
        status: u16,
        body: &[u8],
        wait: Option<Duration>,
        location: Option<&str>,
    ) -> Result<Outcome> {
        let reason = self.reason(status, body)?;
        match status {
            404 | 405 | 410 | 501 => Err(Error::not_found(
                "embedding endpoint or model",
                &self.config.model,
                format!("{} ({reason})", self.shown_url),
            )),
            500 if wait.is_none() => Ok(Outcome::Broke(reason)),
            408 | 409 | 425 | 429 | 500..=599 => {
                let wait = wait.or_else(|| answer::wait_in(body));
                let reason = with_wait(reason, wait);
                Ok(match status {
                    429 => Outcome::Limited { reason, wait },
                    503 | 529 => Outcome::Overloaded { reason, wait },
                    _ => Outcome::Again { reason, wait },
                })
            }
            300..=399 => {
                let to = location.map_or("another one".into(), without_values);
                Err(Error::option(
                    "url",
                    &self.shown_url,
                    format!("the address itself: it only leads on to {to}"),
                ))
            }
            400 | 422
                if reason.contains("encoding_format") && self.names_format.swap(false, Ordering::Relaxed) =>
            {
                Ok(Outcome::Again { reason, wait: None })
            }
            400 | 413 | 414 | 422 | 451 => {
                Ok(Outcome::Refused(format!("{}: {reason}", self.check.encoder())))
            }
            // Other statuses say nothing of a text: 424 and 499 of a gateway, say, that there is no backend.
            _ => Ok(Outcome::Again { reason, wait: None }),
        }
    }

    /// Reads what the service says with a status other than 200.
    ///
    /// # Errors
    ///
    /// Unauthorised where the key is wrong, unavailable where the account is empty: no wait changes these.
    fn reason(&self, status: u16, body: &[u8]) -> Result<String> {
        let reason =
            format!("status {status}: {}", answer::message(body, self.secrets.iter().map(String::as_str)));
        match status {
            401 | 403 => Err(self.unauthorised(&reason)),
            400 if answer::is_key_wrong(body) => Err(self.unauthorised(&reason)),
            402 | 429 if status == 402 || answer::is_account_empty(body) => Err(self.unavailable(reason)),
            _ => Ok(reason),
        }
    }

    /// Says what a request of so many texts without an answer means.
    fn unreachable(&self, error: &ureq::Error, items: usize, reserved: u64) -> Result<Outcome> {
        use std::io::ErrorKind as Io;
        use ureq::{Error as Failed, Timeout};
        if let Some(error) = self.connection.blame(error) {
            // Nothing was sent.
            self.pace.correct(reserved, 0);
            self.unreserve(items, reserved);
            return Err(error);
        }
        // A failure that is the same at every attempt stops the run; a name that is not found may only be a
        // network that is down.
        match error {
            // The library's words would repeat the address with its values.
            Failed::BadUri(_) | Failed::Http(_) => {
                return Err(Error::option(
                    "url",
                    &self.shown_url,
                    "an address such as https://api.openai.com",
                ));
            }
            Failed::Tls(_) | Failed::Rustls(_) | Failed::InvalidProxyUrl => {
                return Err(self.unavailable(error.to_string()));
            }
            _ => {}
        }
        let never_there = match error {
            Failed::HostNotFound
            | Failed::ConnectionFailed
            | Failed::ConnectProxyFailed(_)
            | Failed::Timeout(Timeout::Resolve | Timeout::Connect) => true,
            Failed::Io(error) => matches!(
                error.kind(),
                Io::ConnectionRefused | Io::HostUnreachable | Io::NetworkUnreachable | Io::NotFound
            ),
            _ => false,
        };
        let reason = match error {
            Failed::Timeout(_) => {
                let HttpConfig { timeout_seconds, batch, concurrency, .. } = &self.config;
                format!(
                    "no answer within timeout_seconds = {timeout_seconds}, of batch = {batch} texts a request at most and concurrency = {concurrency}: a slow service \
                     wants a longer time, or less at once"
                )
            }
            other => other.to_string(),
        };
        Ok(if never_there {
            // Nothing was sent.
            self.pace.correct(reserved, 0);
            self.unreserve(items, reserved);
            Outcome::Unreachable(reason)
        } else if matches!(error, Failed::Timeout(_)) {
            // The tokens stay counted, since the service may have done its work.
            Outcome::TimedOut(reason)
        } else {
            Outcome::Again { reason, wait: None }
        })
    }

    /// Lets half as many requests be under way as there were when one was sent that got no answer in time.
    fn narrow(&self, lanes: usize) {
        let fewer = (lanes / 2).max(1);
        if self.lanes.compare_exchange(lanes, fewer, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            for _ in fewer..lanes {
                // The permit is never given back.
                std::mem::forget(self.slots.acquire());
            }
        }
    }

    fn unauthorised(&self, reason: &str) -> Error {
        let detail = match &self.config.key_env {
            Some(name) => format!("{reason}; the key comes from {name}"),
            None => format!("{reason}; key_env names no key"),
        };
        ErrorKind::Unauthorised { service: self.check.encoder().to_owned(), detail }.into()
    }

    fn unavailable(&self, detail: String) -> Error {
        ErrorKind::Unavailable { service: self.check.encoder().into(), detail }.into()
    }

    /// Takes as many of the inputs out of the budget as there is room for, beside what others have used.
    /// Gives their number, and the tokens reserved for them.
    ///
    /// Money is by the tokens of all, at the present price.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BudgetSpent`] where there is no room for one.
    fn reserve(&self, inputs: &[Input<'_>]) -> Result<(usize, u64)> {
        let price = self.config.price();
        let spent_by_others = *lock(&self.spent_by_others);
        let mut spent = self.meter.lock();
        let (mut count, mut tokens) = (0, 0);
        for input in inputs {
            let more = tokens + self.config.tokens(input.source);
            let items_after = spent_by_others.items + spent.items + count as u64 + 1;
            let tokens_after = spent_by_others.tokens + spent.tokens + more;
            let over = [
                ("budget_items", self.config.budget_items.is_some_and(|limit| items_after > limit)),
                ("budget_tokens", self.config.budget_tokens.is_some_and(|limit| tokens_after > limit)),
                (
                    "budget_money",
                    self.config.budget_money.is_some_and(|limit| tokens_after as f64 * price > limit),
                ),
            ];
            if let Some((key, _)) = over.into_iter().find(|&(_, over)| over) {
                if count > 0 {
                    break;
                }
                return Err(Error::budget_spent(
                    "the budget of the encoder",
                    format!(
                        "{key} has no room for another item ({} items, {} tokens and {:.4} in money are spent); \
                         raise it to go on",
                        spent_by_others.items + spent.items,
                        spent_by_others.tokens + spent.tokens,
                        (spent_by_others.tokens + spent.tokens) as f64 * price
                    ),
                ));
            }
            (count, tokens) = (count + 1, more);
        }
        spent.items += count as u64;
        spent.tokens += tokens;
        Ok((count, tokens))
    }

    /// Puts back what was reserved for inputs that were not sent.
    fn unreserve(&self, items: usize, tokens: u64) {
        let mut spent = self.meter.lock();
        spent.items = spent.items.saturating_sub(items as u64);
        spent.tokens = spent.tokens.saturating_sub(tokens);
    }

    /// Counts no token of a request that was refused, and no text of one that was refused whatever its texts.
    fn unreserve_refused(&self, status: u16, items: usize, reserved: u64) {
        self.correct(reserved, 0);
        if matches!(status, 429 | 503 | 529) {
            self.unreserve(items, 0);
        }
    }

    /// Replaces reserved tokens by those that were used.
    fn correct(&self, reserved: u64, used: u64) {
        self.pace.correct(reserved, used);
        let mut spent = self.meter.lock();
        spent.tokens = (spent.tokens + used).saturating_sub(reserved);
    }

    /// Embeds the requests of one call, several at a time; the first error stops those that have not begun.
    fn embed_all(&self, inputs: &[Input<'_>], answers: &mut [Option<Answer>]) -> Option<Error> {
        // A call with fewer texts than there may be, and not as few as before, may be the last. Then no
        // further request is needed to compare the vectors that came last.
        let before = self.call_before.swap(inputs.len(), Ordering::Relaxed);
        let is_short = inputs.len() < self.batch_max() && inputs.len() != before;
        if self.served.load(Ordering::Relaxed) > 0 {
            return self.embed_rest(inputs, answers, is_short);
        }
        let first = inputs.len().min(self.config.batch).min(FIRST_TEXTS);
        let (now, later) = answers.split_at_mut(first);
        match self.embed(&inputs[..first], now, None, false).and_then(|()| self.expect_some_use(now)) {
            Ok(()) => self.embed_rest(&inputs[first..], later, is_short),
            Err(error) => Some(error),
        }
    }

    /// Embeds the texts after the first request of all. In a call that `is_short`, the service is compared
    /// with itself in the last request.
    fn embed_rest(
        &self,
        inputs: &[Input<'_>],
        answers: &mut [Option<Answer>],
        is_short: bool,
    ) -> Option<Error> {
        let requests = inputs.len().div_ceil(self.seats());
        let queue = Mutex::new((inputs, answers));
        // Each request has as many texts as it may have by now.
        let next = || {
            let (inputs, answers) = &mut *lock(&queue);
            let mut ceiling = lock(&self.ceiling);
            let more = ceiling.next_try(self.config.batch).filter(|more| *more <= inputs.len());
            if let Some(more) = more {
                ceiling.begin_try(more);
            }
            drop(ceiling);
            let count = more.unwrap_or_else(|| self.seats()).min(inputs.len());
            let part = inputs.split_off(..count)?;
            let is_last = is_short && inputs.is_empty();
            let answers = answers.split_off_mut(..count)?;
            Some((part, answers, is_last, more.is_some())).filter(|(part, ..)| !part.is_empty())
        };
        let stop: Mutex<Option<Error>> = Mutex::default();
        let work = || {
            while lock(&stop).is_none() {
                let Some((inputs, answers, is_last, is_try)) = next() else { return };
                let result =
                    self.embed(inputs, answers, None, is_last).and_then(|()| self.expect_some_use(answers));
                if is_try {
                    lock(&self.ceiling).end_try();
                }
                if let Err(error) = result {
                    lock(&stop).get_or_insert(error);
                }
            }
        };
        thread::scope(|scope| {
            for _ in 1..requests.min(self.config.concurrency) {
                scope.spawn(work);
            }
            work();
        });
        stop.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides what a call gives that has come to some answers, and to an error or none.
    fn hand_out(&self, answers: Vec<Option<Answer>>, error: Option<Error>) -> Result<Vec<Answer>> {
        let Some(error) = error else { return Ok(answers.into_iter().flatten().collect()) };
        // Batches that are paid for are waited for also where the budget has no room for more.
        let is_end = error.is_budget_spent() && self.batches.is_none();
        if error.is_unauthorised() || is_end || error.is_conflict() {
            *lock(&self.stopped) = Some(error.clone());
        }
        // Vectors that are there are paid for: they are handed out now, and the next call stops the run. The
        // other items have done nothing wrong, and an interruption is the fault of no item. A call that has
        // come to no answer gives the error.
        let trusted = error.is_unauthorised()
            || error.is_retryable()
            || error.is_budget_spent()
            // The service has changed: requests before were vouched for.
            || error.is_conflict();
        let is_any_there = answers.iter().any(|answer| matches!(answer, Some(Ok(_))));
        let is_any_answered = answers.iter().any(Option::is_some);
        let is_handed_out = (error.is_cancelled() && is_any_answered) || (trusted && is_any_there);
        if !is_handed_out {
            return Err(error);
        }
        let untried = || Err(ItemFailure::Untried(error.to_string()));
        Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(untried)).collect())
    }

    /// Fails where the service refuses every text of a request and one harmless word too.
    ///
    /// It refuses all requests then, for a wrong model or option, or while it is ill. No text is to blame, so
    /// they stay without an answer.
    fn expect_some_use(&self, answers: &mut [Option<Answer>]) -> Result<()> {
        let is_refused = |answer: &Option<Answer>| matches!(answer, Some(Err(ItemFailure::Permanent(_))));
        let Some(Some(Err(first))) = answers.first().filter(|_| answers.iter().all(is_refused)) else {
            return Ok(());
        };
        let Err(error) = self.expect_taken(first.reason()) else { return Ok(()) };
        answers.fill(None);
        Err(error)
    }
}

impl Encoder for Http {
    fn space(&self) -> &Space {
        self.check.space()
    }

    fn reads(&self) -> Reads {
        Reads::Texts
    }

    fn reads_source_alone(&self) -> bool {
        true
    }

    fn batch_max(&self) -> usize {
        self.config.batch.saturating_mul(self.config.concurrency)
    }

    fn encode(&self, inputs: &[Input<'_>]) -> Result<Vec<Answer>> {
        if inputs.is_empty() {
            return Ok(Vec::new());
        }
        self.expect_not_stopped()?;
        let mut answers = vec![None; inputs.len()];
        let error = self.embed_all(inputs, &mut answers);
        self.hand_out(answers, error)
    }

    fn bulk_max(&self) -> Option<usize> {
        self.batches.as_ref().map(|_| self.config.batch_api_items)
    }

    fn encode_in_bulk(&self, inputs: &[Input<'_>]) -> Result<Vec<Answer>> {
        let Some(batches) = self.batches.as_ref().filter(|_| !inputs.is_empty()) else {
            return self.encode(inputs);
        };
        self.expect_not_stopped()?;
        let mut answers = vec![None; inputs.len()];
        let error = self.embed_in_bulk(batches, inputs, &mut answers).err();
        self.hand_out(answers, error)
    }

    fn awaits(&self) -> Option<String> {
        self.batches.as_ref()?.awaits()
    }

    fn spent(&self) -> Spent {
        let spent = self.meter.spent();
        Spent { money: spent.tokens as f64 * self.config.price(), ..spent }
    }

    fn findings(&self) -> Vec<Finding> {
        self.rider.finding().into_iter().chain(lock(&self.reading).finding()).collect()
    }

    fn receipt(&self) -> u64 {
        self.rider.receipt()
    }

    fn is_vouched_for(&self, receipt: u64) -> bool {
        self.rider.is_vouched_for(receipt)
    }

    fn vouch(&self) -> Result<()> {
        while self.rider.is_awaited() {
            let stopped = lock(&self.stopped).clone();
            let Some(turn) = self.rider.turn() else { return Ok(()) };
            let vector = match stopped {
                Some(error) if error.is_conflict() || error.is_unauthorised() => return Err(error),
                Some(_) => self.vector_at_once(&turn.known)?,
                None => match self.vector_of(&turn.known) {
                    Err(error) if error.is_cancelled() => self.vector_at_once(&turn.known)?,
                    vector => vector?,
                },
            };
            // A text that is not taken any more is given up, and the next one asked for.
            let is_given_up = || self.rider.known().is_none_or(|text| !Arc::ptr_eq(&text, &turn.known));
            let is_compared = vector.map_or(Ok(false), |vector| self.expect_itself(&turn, vector));
            if !is_compared.inspect_err(|error| *lock(&self.stopped) = Some(error.clone()))? && !is_given_up()
            {
                let why = "it could not be compared with itself, so nothing is known of what it gave last";
                return Err(self.unavailable(why.into()));
            }
        }
        Ok(())
    }

    fn watches_itself(&self) -> bool {
        true
    }

    fn note_others(&self, spent: Spent) {
        *lock(&self.spent_by_others) = spent;
        if let Some(batches) = &self.batches {
            self.note_told(batches);
        }
    }

    fn learnt(&self) -> Option<String> {
        let learnt = Learnt {
            ceiling: lock(&self.ceiling).kept(),
            is_full: self.rider.needs_seat(),
            refuses_format: !self.names_format.load(Ordering::Relaxed) && !url_of_ollama(&self.url),
            takes_peculiar: self.takes_peculiar.load(Ordering::Relaxed),
            reading: lock(&self.reading).clone(),
            ..Learnt::nothing(&self.config)
        };
        learnt.text(&self.config)
    }

    fn recall(&self, learnt: &str) {
        let Some(learnt) = Learnt::read(&self.config, learnt) else { return };
        lock(&self.ceiling).take(&learnt.ceiling);
        lock(&self.reading).or_more(&learnt.reading);
        if learnt.is_full {
            self.rider.take_seat();
        }
        if learnt.refuses_format {
            self.names_format.store(false, Ordering::Relaxed);
        }
        if learnt.takes_peculiar {
            self.takes_peculiar.store(true, Ordering::Relaxed);
        }
    }

    fn fingerprint(&self) -> Result<Option<String>> {
        self.config.revision.as_ref().map(|_| self.configured()).transpose()
    }

    fn configured(&self) -> Result<String> {
        let HttpConfig { url, model, dimensions, normalise, revision, prefix, input_type, body, .. } =
            &self.config;
        let mut fingerprint = Fingerprint::new("http").with(&(url, model, dimensions, normalise, revision));
        // Galleries hold fingerprints from before these keys.
        if !prefix.is_empty() || input_type.is_some() {
            fingerprint = fingerprint.with(&(prefix, input_type));
        }
        if !body.is_empty() {
            fingerprint = fingerprint.with(body);
        }
        Ok(fingerprint.text())
    }

    fn interrupt(&self) {
        lock(&self.stopped).get_or_insert_with(|| ErrorKind::Cancelled.into());
    }
}

/// Options of a request, beside its texts.
#[derive(Clone, Copy)]
struct Options<'a> {
    dimensions: Option<usize>,
    input_type: Option<&'a str>,
}

fn with_wait(reason: String, wait: Option<Duration>) -> String {
    match wait {
        Some(wait) => format!("{reason} (it asks to wait {} s)", wait.as_secs_f64()),
        None => reason,
    }
}

fn probe() -> Input<'static> {
    Input { id: PROBE, source: PROBE, payload: &Value::Null }
}

/// Characters from which on a text is called long where it is refused.
const LONG_CHARACTERS: usize = 2000;

/// Reason why a text has no vector, with what can be seen of the text in front.
fn explained(text: &str, reason: String) -> String {
    let characters = text.chars().count();
    match peculiar(text) {
        Some(why) => format!("{why}; {reason}"),
        None if characters >= LONG_CHARACTERS => format!("its source has {characters} characters; {reason}"),
        None => reason,
    }
}

/// Name and value of a header.
type Header = (String, String);

/// Makes the headers of every request, and lists which of their values are secrets.
fn headers(
    config: &HttpConfig,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<(Vec<Header>, Vec<String>)> {
    let (mut headers, mut secrets) = (Vec::new(), Vec::new());
    if let Some(name) = &config.key_env {
        let key = key("key_env", name, &variable)?;
        headers.push(match &config.key_header {
            Some(header) => (header.clone(), key.clone()),
            None => ("Authorization".into(), format!("Bearer {key}")),
        });
        secrets.push(key);
    } else if let Some(header) = &config.key_header {
        return Err(Error::missing("key_env", format!("key_header = {header:?}")));
    }
    for (name, value) in &config.headers {
        let value = match value.strip_prefix('$') {
            Some(name) => {
                let value = key("headers", name, &variable)?;
                secrets.push(value.clone());
                value
            }
            None => value.clone(),
        };
        headers.push((name.clone(), value));
    }
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    let is_value = |value: &str| value.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    match headers.iter().find(|(name, value)| !is_name(name) || !is_value(value)) {
        None => Ok((headers, secrets)),
        Some((name, _)) => Err(Error::option(
            "headers",
            name,
            "a header's name of letters, digits and -, and a value of plain letters, digits and signs",
        )),
    }
}

/// Whether an address is that of Ollama's own protocol.
fn url_of_ollama(url: &str) -> bool {
    url.split('?').next().is_some_and(|path| path.ends_with("/api/embed"))
}

fn check_keys(config: &HttpConfig, space: &Space) -> Result<()> {
    at_least_one("batch", config.batch)?;
    at_least_one("concurrency", config.concurrency)?;
    at_least_one("attempts", config.attempts)?;
    positive("characters_per_token", config.characters_per_token)?;
    for (key, limit) in [
        ("requests_per_minute", config.requests_per_minute),
        ("tokens_per_minute", config.tokens_per_minute),
        ("budget_money", config.budget_money),
    ] {
        if let Some(limit) = limit {
            positive(key, limit)?;
        }
    }
    for (key, budget) in [("budget_items", config.budget_items), ("budget_tokens", config.budget_tokens)] {
        if budget == Some(0) {
            return Err(Error::option(key, 0, "a whole number from 1, or no such key for no limit"));
        }
    }
    let price = config.price_per_million_tokens;
    if !price.is_finite() || price < 0.0 {
        return Err(Error::option("price_per_million_tokens", price, "a number from 0"));
    }
    if config.budget_money.is_some() && price == 0.0 {
        return Err(Error::missing("price_per_million_tokens", "budget_money"));
    }
    if let Some(field) = FIELDS.iter().find(|field| config.body.contains_key(**field)) {
        return Err(Error::option("body", field, "fields that no other key is for"));
    }
    if config.model.is_empty() {
        return Err(Error::option("model", "", "the model's name at the service"));
    }
    let what = format_args!("`dimensions`, for space {space},");
    config.dimensions.map_or(Ok(()), |dimensions| expect_width(what, space.dimension, dimensions))
}

/// Completes an address to the one that requests go to: a name of a version in it (`v1`, `v1beta`) says that
/// the service's own path is there already.
fn endpoint(url: &str) -> Result<String> {
    let (path, query) = url.split_once('?').map_or((url, None), |(path, query)| (path, Some(query)));
    let path = path.trim_end_matches('/');
    let host = path.strip_prefix("https://").or_else(|| path.strip_prefix("http://"));
    if host.is_none_or(|host| host.is_empty() || host.contains(char::is_whitespace)) {
        return Err(Error::option("url", without_values(url), "an address such as https://api.openai.com"));
    }
    if host.is_some_and(|host| host.split('/').next().is_some_and(|authority| authority.contains('@'))) {
        // A password would end up in every error; it is not repeated in this one either.
        return Err(Error::option("url", "…@…", "an address without a password; key_env names the key"));
    }
    let last = path.rsplit('/').next().unwrap_or_default();
    let is_version = |segment: &str| {
        segment.strip_prefix('v').is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    };
    let mut full_url = path.to_string();
    if last != "embeddings" && !url_of_ollama(path) {
        let is_versioned = path.split('/').skip(3).any(is_version);
        full_url.push_str(if is_versioned { "/embeddings" } else { "/v1/embeddings" });
    }
    if let Some(query) = query {
        full_url.push('?');
        full_url.push_str(query);
    }
    Ok(full_url)
}

/// Shows an address without the values of its query, which may be keys.
fn without_values(url: &str) -> String {
    let Some((path, query)) = url.split_once('?') else { return url.to_owned() };
    let names: Vec<String> = query
        .split('&')
        .map(|pair| pair.split_once('=').map_or("…".into(), |(name, _)| format!("{name}=…")))
        .collect();
    format!("{path}?{}", names.join("&"))
}

/// Reads the key that an environment variable holds. Neither the key nor a text that may be one by mistake is
/// ever printed.
fn key(option: &str, name: &str, variable: impl Fn(&str) -> Option<String>) -> Result<String> {
    let is_name = |text: &str| {
        text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            && text.bytes().next().is_some_and(|first| !first.is_ascii_digit())
    };
    if !is_name(name) {
        return Err(Error::option(
            option,
            "(not shown)",
            "the name of an environment variable, such as OPENAI_API_KEY, and never the key itself",
        ));
    }
    let key = variable(name).map(|key| key.trim().to_string()).filter(|key| !key.is_empty());
    let key = key.ok_or_else(|| {
        Error::missing(format!("the environment variable {name}"), format!("{option} of the encoder"))
    })?;
    if key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(key);
    }
    Err(Error::option(
        format!("the environment variable {name}"),
        "(not shown)",
        "a key: one word of plain letters, digits and signs",
    ))
}
