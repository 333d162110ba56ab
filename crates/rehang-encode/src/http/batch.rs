//! The batch API of OpenAI, which Voyage and others have too. A file of texts goes to the service, and a file
//! with their vectors comes back within a day, for less money.
//!
//! Texts that were sent are paid for, and a process may end at any moment of that day. So before a batch is
//! created, a journal beside the configuration holds which texts it has. Each batch carries the journal's
//! name for it, by which the service's list of batches says whether it was created. A later call with one of
//! these texts, of whatever process, waits for that batch. A process on another machine, which has no
//! journal, reads in the files of the batches that the service lists which texts they have.

mod collect;
mod journal;
pub(super) mod kept;
mod send;
mod service;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rehang_core::{Error, Result};
use sha2::{Digest as _, Sha256};

use super::Http;
use crate::config::HttpConfig;
use crate::config::keys::seconds;
use crate::contract::{Answer, Input, ItemFailure};
use crate::fingerprint::Fingerprint;
use crate::meter::lock;
use collect::BatchEnd;
use journal::JOURNAL;
use kept::{Batches, FEW, Id, Stage};
use service::{Reply, ServiceBatch, json_of};

/// Longest time that a service need not say how far a batch is, where it is asked at least three times
/// meanwhile.
const OUTAGE_MAX: Duration = Duration::from_hours(1);
/// Times that batches of a call's texts are sent that come to nothing: smaller and smaller ones, or ones that
/// are not created.
const ROUNDS_MAX: usize = 32;
/// Call for the vectors of some texts.
struct Call<'a> {
    http: &'a Http,
    batches: &'a Batches,
    inputs: &'a [Input<'a>],
    /// Id of each input's text.
    ids: Vec<Id>,
    answers: &'a mut [Option<Answer>],
}

/// Places of a call's inputs whose texts a batch has, by the batch.
type Held = BTreeMap<Arc<str>, Vec<usize>>;

impl Batches {
    /// Opens the batches of a configuration; `None` where it asks for none.
    pub(super) fn open(config: &HttpConfig, base: &Path, url: &str) -> Result<Option<Self>> {
        let HttpConfig { model, dimensions, prefix, input_type, body, revision, batch_api_items, .. } =
            config;
        if !(1..=100_000).contains(batch_api_items) {
            return Err(Error::option("batch_api_items", batch_api_items, "1 to 100000"));
        }
        let poll = seconds("batch_api_poll_seconds", config.batch_api_poll_seconds)?;
        if !config.batch_api {
            return Ok(None);
        }
        if super::url_of_ollama(url) {
            return Err(Error::option("batch_api", true, "false: Ollama has no batch API"));
        }
        let encoder = Fingerprint::new("batch")
            .with(&(url, model, dimensions, input_type, body, revision))
            .with(prefix)
            .text();
        let is_voyage = ["voyageai.com", "ai.mongodb.com"].iter().any(|host| url.contains(host));
        Ok(Some(Self {
            folder: base.join(JOURNAL),
            encoder,
            poll,
            most: AtomicUsize::new(*batch_api_items),
            is_voyage: AtomicBool::new(is_voyage),
            sent: AtomicU64::new(0),
            turn: Mutex::default(),
            state: Mutex::default(),
        }))
    }

    pub(super) fn awaits(&self) -> Option<String> {
        let awaited: Vec<(u64, u64)> = lock(&self.state).awaited.values().copied().collect();
        let done: u64 = awaited.iter().map(|(done, _)| done).sum();
        let all: u64 = awaited.iter().map(|(_, all)| all).sum();
        let batches = awaited.len();
        (batches > 0)
            .then(|| format!("waiting for {batches} batches at the service, with {done} of {all} texts done"))
    }

    fn id(&self, text: &str) -> Id {
        let mut hash = Sha256::new();
        hash.update(self.encoder.as_bytes());
        hash.update(text.as_bytes());
        let hash: [u8; 32] = hash.finalize().into();
        Id::from_be_bytes(hash.first_chunk().copied().unwrap_or_default())
    }

    fn shown(&self, own_name: &str) -> String {
        let state = lock(&self.state);
        state
            .batches
            .get(own_name)
            .and_then(|batch| batch.sent.batch.clone())
            .unwrap_or_else(|| own_name.to_owned())
    }
}

impl Http {
    /// Embeds the texts of a call by batches, those that other processes have sent among them. Comes back as
    /// soon as some have an answer; the others are not tried then.
    ///
    /// # Errors
    ///
    /// Unavailable where nothing came of a batch, or the service does not answer for long; a conflict where a
    /// batch gives other vectors than the service does directly; budget spent; cancelled.
    pub(super) fn embed_in_bulk(
        &self,
        batches: &Batches,
        inputs: &[Input<'_>],
        answers: &mut [Option<Answer>],
    ) -> Result<()> {
        let id = |input: &Input<'_>| batches.id(&format!("{}{}", self.config.prefix, input.source));
        let ids = inputs.iter().map(id).collect();
        Call { http: self, batches, inputs, ids, answers }.embed()?;
        for answer in answers.iter_mut().filter(|answer| answer.is_none()) {
            *answer = Some(Err(ItemFailure::Untried("the batch that has it is under way".into())));
        }
        Ok(())
    }

    /// Says that nothing new is known of a batch, which is nothing bad for a while; fails after that.
    fn tolerate_silence(&self, batches: &Batches, heard: Duration, reason: &str) -> Result<Option<BatchEnd>> {
        if self.clock.now().saturating_sub(heard) <= OUTAGE_MAX.max(3 * batches.poll) {
            return Ok(None);
        }
        Err(self.unavailable(format!("{reason}; what was sent is not lost: a later run waits for it")))
    }
}

impl Call<'_> {
    /// Sends texts and waits for batches until some input has an answer.
    fn embed(&mut self) -> Result<()> {
        let (http, batches) = (self.http, self.batches);
        let mut rounds = 0;
        loop {
            rounds += 1;
            if rounds > ROUNDS_MAX {
                return Err(http.unavailable(format!("no batch came about in {ROUNDS_MAX} attempts")));
            }
            let sending = self.send_unsent();
            let held = self.held();
            match sending {
                // Batches that were sent before are waited for.
                Err(error) if error.is_budget_spent() && !held.is_empty() => {}
                sending => sending?,
            }
            if self.is_any_answered() {
                return Ok(());
            }
            if held.is_empty() {
                continue;
            }
            let came = self.wait_for_any(&held)?;
            for (own_name, came) in &came {
                self.compare_with_direct(own_name, &held[own_name])
                    .map_err(|error| error.context(format!("batch {}", batches.shown(own_name))))?;
                self.take_answers(own_name, &held[own_name])?;
                if came.is_cancelled {
                    lock(&http.stopped).get_or_insert_with(|| http.unavailable(came.why.clone()));
                }
            }
            if self.is_any_answered() {
                return Ok(());
            }
            let is_any_under_way = held.len() > came.len() || !lock(&batches.state).awaited.is_empty();
            for came in came.iter().map(|(_, came)| came).filter(|came| !came.why.is_empty()) {
                if came.is_limit && came.texts > FEW {
                    if is_any_under_way {
                        // Other batches fill the queue, for a day maybe, and leave room for as many texts
                        // afterwards.
                        rounds = 0;
                    } else {
                        batches.most.fetch_min(came.texts / 2, Ordering::Relaxed);
                    }
                    http.wait_until(http.clock.now() + batches.poll)?;
                } else if came.is_own {
                    return Err(http.unavailable(came.why.clone()));
                }
            }
        }
    }

    fn is_any_answered(&self) -> bool {
        self.answers.iter().any(Option::is_some)
    }

    fn held(&self) -> Held {
        let state = lock(&self.batches.state);
        let mut held = Held::new();
        for (place, id) in self.ids.iter().enumerate().filter(|(place, _)| self.answers[*place].is_none()) {
            if let Some(own_name) = state.of_text.get(id) {
                held.entry(Arc::clone(own_name)).or_default().push(place);
            }
        }
        held
    }

    /// Waits until one of some batches is over. Gives those that are, with their answers read.
    fn wait_for_any(&self, held: &Held) -> Result<Vec<(Arc<str>, BatchEnd)>> {
        let (http, batches) = (self.http, self.batches);
        let mut heard = http.clock.now();
        let outcome = 'waiting: loop {
            let mut over = Vec::new();
            for (own_name, places) in held {
                match self.poll(own_name, places, &mut heard) {
                    Ok(came) => over.extend(came.map(|came| (Arc::clone(own_name), came))),
                    // Answers that are there already are handed out first.
                    Err(_) if !over.is_empty() => break,
                    Err(error) => break 'waiting Err(error),
                }
            }
            if !over.is_empty() {
                break Ok(over);
            }
            if let Err(error) = http.wait_until(http.clock.now() + batches.poll) {
                break Err(error);
            }
        };
        lock(&batches.state).awaited.retain(|own_name, _| !held.contains_key(own_name));
        outcome
    }

    /// Asks how far a batch is, unless its answers are here; reads them where it is over.
    fn poll(&self, own_name: &Arc<str>, places: &[usize], heard: &mut Duration) -> Result<Option<BatchEnd>> {
        let (http, batches) = (self.http, self.batches);
        let (name, is_own) = {
            let state = lock(&batches.state);
            let Some(batch) = state.batches.get(own_name) else { return Ok(Some(BatchEnd::default())) };
            let is_here = |answers: &HashMap<Id, Answer>| {
                places.iter().any(|&place| answers.contains_key(&self.ids[place]))
            };
            match &batch.stage {
                Stage::Asked => return Ok(None),
                Stage::Over { answers, .. } if is_here(answers) => return Ok(Some(BatchEnd::default())),
                stage => (batch.sent.batch.clone(), matches!(stage, Stage::Own)),
            }
        };
        http.take_over(batches, own_name)?;
        let Some(name) = name.map_or_else(|| http.find_created(batches, own_name), |name| Ok(Some(name)))?
        else {
            http.drop_sent(batches, own_name)?;
            return Ok(Some(BatchEnd::default()));
        };
        let service_batch: ServiceBatch = match http.ask_at("GET", &format!("/batches/{name}"), None)? {
            Reply::Good(mut response) => match json_of(&mut response) {
                Ok(service_batch) => service_batch,
                Err(error) => {
                    return http.tolerate_silence(
                        batches,
                        *heard,
                        &format!("its answer is broken ({error})"),
                    );
                }
            },
            Reply::Refused(_, reason) if !is_own => {
                let place = format!(
                    "the service of this key ({reason}); its texts are paid for, and are not sent again while {} is there",
                    batches.path(own_name).display()
                );
                return Err(Error::not_found("batch", &name, place));
            }
            // A batch that is a moment old may not be everywhere yet.
            Reply::Refused(_, reason)
            | Reply::Limited(reason, _)
            | Reply::Unheard(reason)
            | Reply::Unclear(reason) => return http.tolerate_silence(batches, *heard, &reason),
        };
        {
            let mut state = lock(&batches.state);
            let texts = state.batches.get(own_name).map_or(0, |batch| batch.sent.texts.len() as u64);
            state.awaited.insert(
                Arc::clone(own_name),
                (service_batch.count("completed") + service_batch.count("failed"), texts),
            );
        }
        if service_batch.is_over() {
            return http.collect(batches, own_name, &service_batch, *heard);
        }
        *heard = http.clock.now();
        Ok(None)
    }
}
