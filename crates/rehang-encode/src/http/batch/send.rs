//! Sending: the texts that no batch has go in files, and each file in a request for a batch.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rehang_core::{Error, Result};
use serde::Deserialize;
use serde_json::json;

use super::super::answer::Request;
use super::super::{Ended, Http, PROBE, probe};
use super::Call;
use super::kept::{Batches, DAY_MS, FEW, Id, OF, OWN, Sent, Stage, WITNESSES, name_of};
use super::service::{Reply, ServiceBatch, json_of, read};
use crate::config::HttpConfig;
use crate::contract::Input;
use crate::fingerprint::Fingerprint;
use crate::meter::lock;

/// Endpoint that a batch is for, in every service.
const ENDPOINT: &str = "/v1/embeddings";
/// Largest number of bytes of a file; Azure takes no more.
const FILE_BYTES_MAX: usize = 95 << 20;
/// Times that a batch which the service was asked for without an answer is looked for in its list.
/// `LISTED_RESTS` lie between two looks.
const LISTED_TRIES: usize = 3;
const LISTED_RESTS: Duration = Duration::from_secs(20);

impl Call<'_> {
    /// Sends the texts that no batch has, those of other processes included; embeds them directly where they
    /// are few.
    pub(super) fn send_unsent(&mut self) -> Result<()> {
        if self.unsent().is_empty() {
            return Ok(());
        }
        let worker = lock(&self.batches.turn);
        let process = self.http.turn_to_send(self.batches)?;
        self.http.read_journal(self.batches)?;
        let unsent = self.unsent();
        match unsent.len() {
            0 => Ok(()),
            1..=FEW => {
                drop((worker, process));
                self.embed_few(&unsent)
            }
            _ => self.send_files(&unsent),
        }
    }

    /// Places of the first input of each text that no batch has.
    fn unsent(&self) -> Vec<usize> {
        let of_text = &lock(&self.batches.state).of_text;
        let mut seen_ids = BTreeSet::new();
        let is_open =
            |place: &usize| self.answers[*place].is_none() && !of_text.contains_key(&self.ids[*place]);
        (0..self.ids.len()).filter(is_open).filter(|place| seen_ids.insert(self.ids[*place])).collect()
    }

    /// Embeds a few texts directly.
    fn embed_few(&mut self, unsent: &[usize]) -> Result<()> {
        let few: Vec<Input<'_>> = unsent.iter().map(|&place| self.inputs[place]).collect();
        let mut of_few = vec![None; few.len()];
        let error = self.http.embed_all(&few, &mut of_few);
        for (&place, answer) in unsent.iter().zip(of_few) {
            // Every input with this text gets the answer.
            let same = self.ids.iter().zip(&mut *self.answers).filter(|(id, _)| **id == self.ids[place]);
            same.for_each(|(_, other)| other.clone_from(&answer));
        }
        match error {
            // Answers that are there are handed out, and the next call says again that the budget is spent.
            Some(error) if error.is_budget_spent() && self.is_any_answered() => Ok(()),
            error => error.map_or(Ok(()), Err),
        }
    }

    /// Sends texts in as few batches as may be, as far as the budget goes.
    fn send_files(&self, unsent: &[usize]) -> Result<()> {
        let (http, batches) = (self.http, self.batches);
        if http.rider.known().is_none() {
            http.expect_served()?;
        }
        let mut places_left = unsent;
        while !places_left.is_empty() {
            http.expect_not_stopped()?;
            let most = batches.most.load(Ordering::Relaxed);
            let mut bytes = 0;
            let lines: Vec<Vec<u8>> = places_left
                .iter()
                .take(most)
                .map(|&place| http.line(batches, &self.inputs[place], self.ids[place]))
                .take_while(|line| {
                    let is_first = bytes == 0;
                    bytes += line.len();
                    is_first || bytes <= FILE_BYTES_MAX
                })
                .collect();
            let batch_inputs: Vec<Input<'_>> =
                places_left[..lines.len()].iter().map(|&place| self.inputs[place]).collect();
            let (within, tokens) = http.reserve_for_batch(&batch_inputs)?;
            let texts = places_left[..within].iter().map(|&place| self.ids[place]);
            http.send_file(batches, &lines[..within].concat(), texts.collect(), tokens)?;
            // A queue that was too short for one batch is too short for several.
            if within < lines.len() || most < http.config.batch_api_items {
                return Ok(());
            }
            places_left = &places_left[within..];
        }
        Ok(())
    }
}

impl Http {
    /// Reserves the budget for a batch as [`Self::reserve`] does, with room for the texts by which it is
    /// compared.
    fn reserve_for_batch(&self, inputs: &[Input<'_>]) -> Result<(usize, u64)> {
        let known_item = self.rider.known();
        let known_input = known_item.as_ref().map(|known_item| known_item.input());
        let beside = inputs.iter().take(WITNESSES).copied().chain(known_input);
        let all: Vec<Input<'_>> = inputs.iter().copied().chain(beside).collect();
        let more = all.len() - inputs.len();
        let (count, tokens) = self.reserve(&all)?;
        let within = count.saturating_sub(more);
        let needed: u64 = inputs[..within].iter().map(|input| self.config.tokens(input.source)).sum();
        self.unreserve(count - within, tokens - needed);
        if within == 0 {
            let detail = format!(
                "it has room for {count} items, {more} of which a batch is compared by; raise it to go on"
            );
            return Err(Error::budget_spent("the budget of the encoder", detail));
        }
        Ok((within, needed))
    }

    /// Asks the service for one harmless word, directly: a wrong key, model or width is found before a batch
    /// is paid for.
    fn expect_served(&self) -> Result<()> {
        match self.insist(&[probe()], usize::MAX)? {
            Ended::Vectors(mut vectors) => {
                let vector = self.check.vector(PROBE, vectors.pop().unwrap_or_default());
                let answer = vector.map_err(|error| self.blame(error))?;
                self.rider.learn(&[probe()], &[Some(&answer)]);
                Ok(())
            }
            Ended::Refused(reason) => self.expect_taken(&reason),
            Ended::Failed { reason, .. } | Ended::TimedOut(reason) | Ended::Broke { reason, .. } => {
                Err(self.unavailable(reason))
            }
            Ended::Short(_) => Ok(()),
        }
    }

    fn line(&self, batches: &Batches, input: &Input<'_>, id: Id) -> Vec<u8> {
        let texts = [format!("{}{}", self.config.prefix, input.source)];
        let custom_id = name_of(id);
        let line = if batches.is_voyage.load(Ordering::Relaxed) {
            json!({"custom_id": custom_id, "body": {"input": texts}})
        } else {
            let body = self.parameters(&texts);
            json!({"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": body})
        };
        let mut line = line.to_string().into_bytes();
        line.push(b'\n');
        line
    }

    fn parameters<'a>(&'a self, input: &'a [String]) -> Request<'a> {
        let HttpConfig { model, dimensions, input_type, body: more, .. } = &self.config;
        let (dimensions, input_type) = (*dimensions, input_type.as_deref());
        // Base64 takes a quarter of the bytes that numbers take in words.
        let encoding_format = self.names_format.load(Ordering::Relaxed).then_some("base64");
        Request { model, input, encoding_format, dimensions, input_type, more }
    }

    /// Sends a batch of texts, for which tokens are reserved. The journal has it from the moment on at which
    /// it may be created.
    fn send_file(&self, batches: &Batches, file: &[u8], texts: Vec<Id>, tokens: u64) -> Result<()> {
        let file = self.upload(file).inspect_err(|_| self.unreserve(texts.len(), tokens))?;
        let at_ms = rehang_clock::unix_ms();
        let number = batches.sent.fetch_add(1, Ordering::Relaxed);
        let own_name = Fingerprint::new("own").with(&(&file, at_ms, std::process::id(), number)).text();
        let texts = texts.into_iter().map(name_of).collect();
        let encoder = batches.encoder.clone();
        let sent = Sent {
            encoder,
            own: own_name,
            batch: None,
            file,
            at_ms,
            tokens,
            is_told: false,
            is_counted: false,
            texts,
        };
        lock(&batches.state).add(sent.clone(), Stage::Asked, Some(sent.counted()));
        let reply = batches.keep(&sent).and_then(|()| self.create(batches, &sent));
        if let Some(batch) = lock(&batches.state).batches.get_mut(sent.own.as_str()) {
            batch.stage = Stage::Own;
        }
        let refused = match reply.or_else(|error| self.drop_sent(batches, &sent.own).and(Err(error)))? {
            Reply::Good(mut response) => {
                // Where the answer is broken, the list says the batch's name.
                let service_batch: serde_json::Result<ServiceBatch> = json_of(&mut response);
                return service_batch.map_or(Ok(()), |batch| batches.note_created(&sent.own, &batch.id));
            }
            Reply::Refused(_, reason) if reason.contains("request_params") => {
                if !batches.is_voyage.swap(true, Ordering::Relaxed) {
                    return self.drop_sent(batches, &sent.own);
                }
                reason
            }
            Reply::Refused(400 | 404 | 413 | 422, reason) => reason,
            // The list of batches says whether the request was heard.
            _ => return Ok(()),
        };
        self.drop_sent(batches, &sent.own)?;
        Err(self.unavailable(format!("it refused a batch: {refused}")))
    }

    fn upload(&self, lines: &[u8]) -> Result<String> {
        #[derive(Deserialize)]
        struct Uploaded {
            id: String,
        }
        // No text of JSON has a line that begins so.
        const BOUNDARY: &str = "----rehang-batch-file";
        let mut body = format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n\
             --{BOUNDARY}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"rehang.jsonl\"\r\n\
             Content-Type: application/jsonl\r\n\r\n"
        )
        .into_bytes();
        body.extend_from_slice(lines);
        body.extend_from_slice(format!("\r\n--{BOUNDARY}--\r\n").as_bytes());
        let kind = format!("multipart/form-data; boundary={BOUNDARY}");
        let answer = self.insist_at("/files", Some((&kind, &body)), &mut |response| read(response).ok())?;
        let answer = answer.ok_or_else(|| {
            let place = format!("{} (there is no /files)", self.shown_url);
            Error::not_found("batch API", &self.config.model, place)
        })?;
        let uploaded: Uploaded = serde_json::from_slice(&answer)
            .map_err(|error| self.unavailable(format!("it took a file and gave no id ({error})")))?;
        Ok(uploaded.id)
    }

    fn create(&self, batches: &Batches, sent: &Sent) -> Result<Reply> {
        let mut body = json!({
            "input_file_id": sent.file,
            "endpoint": ENDPOINT,
            "completion_window": "24h",
            "metadata": {OF: sent.encoder, OWN: sent.own},
        });
        if batches.is_voyage.load(Ordering::Relaxed) {
            let mut parameters = json!(self.parameters(&[]));
            for name in ["input", "encoding_format"] {
                parameters.as_object_mut().map(|parameters| parameters.remove(name));
            }
            body["completion_window"] = "12h".into();
            body["request_params"] = parameters;
        }
        self.ask_until_heard("POST", "/batches", Some(("application/json", body.to_string().as_bytes())))
    }

    /// Looks for the service's name for a batch that it was asked for without an answer; `None` where it was
    /// not created.
    pub(super) fn find_created(&self, batches: &Batches, own_name: &str) -> Result<Option<String>> {
        let sent = lock(&batches.state).batches.get(own_name).map(|batch| batch.sent.clone());
        let Some(sent) = sent else { return Ok(None) };
        for tries in 0..=LISTED_TRIES {
            if tries == LISTED_TRIES {
                // Without its file, the batch is not created from now on.
                self.delete(&sent.file);
            } else if tries > 0 {
                self.wait_until(self.clock.now() + LISTED_RESTS)?;
            }
            let (list, is_whole) = self.list(sent.at_ms.saturating_sub(DAY_MS))?;
            let created = list.into_iter().find(|batch| {
                batch.mark(OWN) == Some(own_name) || batch.input_file_id.as_ref() == Some(&sent.file)
            });
            if let Some(batch) = created {
                batches.note_created(own_name, &batch.id)?;
                return Ok(Some(batch.id));
            }
            if !is_whole {
                let detail = format!(
                    "the service has no list that says whether it was created; look there, and remove {} to send its texts again",
                    batches.path(own_name).display()
                );
                return Err(Error::conflict("a batch was asked for, and no answer came", detail));
            }
        }
        Ok(None)
    }
}
