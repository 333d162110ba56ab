//! The batch API of OpenAI, which Voyage and others have too: a file of texts goes to the service, and a file with their vectors comes back
//! within a day, for less money.
//!
//! What was sent is paid for, and a process may end at any moment of that day. So a journal beside the configuration holds, before a batch is
//! created, which texts it has; and each batch carries the journal's name for it, by which the service's list of batches says whether it was
//! created. A later call with one of these texts, of whatever process, waits for that batch. A process on another machine, which has no
//! journal, reads in the files of the batches that the service lists which texts they have.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{BufRead as _, BufReader};
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rehang::{Error, Result};
use rehang_files::AtomicFile;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use ureq::Body;
use ureq::http::Response;

use super::answer::{self, Request};
use super::pace::wait_asked;
use super::{Ended, Http, Limited, Outcome, TOKENS_MORE, explained, probe, with_wait};
use crate::config::HttpConfig;
use crate::config::keys::seconds;
use crate::contract::{Answer, Input, ItemFailure};
use crate::fingerprint::Fingerprint;
use crate::json::read_json;
use crate::meter::lock;
use crate::rider::Known;

/// Name of the journal, a folder beside the configuration with a file a batch.
const JOURNAL: &str = "rehang-batches";
/// Fields of a batch's metadata: which encoder it is of, and the journal's name for it.
const OF: &str = "rehang";
const OWN: &str = "rehang_batch";
/// What a batch is asked of, in every service.
const ENDPOINT: &str = "/v1/embeddings";
/// So few texts are asked for directly: a day is long for the last ones, and for one that is tried again.
const FEW: usize = 16;
/// Texts of a batch that are embedded directly, too: both must give the same vectors.
const WITNESSES: usize = 4;
/// Bytes of a file at most; Azure takes no more.
const FILE_BYTES_MAX: usize = 95 << 20;
/// The longest that a file may take on its way.
const TRANSFER_MAX: Duration = Duration::from_mins(30);
/// The longest that a service need not say how far a batch is, where it is asked at least three times meanwhile.
const OUTAGE_MAX: Duration = Duration::from_hours(1);
/// How often, and after which rests, a batch that the service was asked for without an answer is looked for in its list.
const LISTED_TRIES: usize = 3;
const LISTED_RESTS: Duration = Duration::from_secs(20);
/// How often batches of the texts of a call are sent that come to nothing: smaller and smaller ones, or ones that are not created.
const ROUNDS_MAX: usize = 32;
/// Pages of the list, and batches of a page.
const PAGES_MAX: usize = 10;
const PAGE: usize = 100;
/// Milliseconds after which a batch that is over has no answers left: the journal forgets it, and those of the list are none to wait for.
const KEPT_FOR_MS: u64 = 30 * DAY_MS;
const DAY_MS: u64 = 86_400_000;
/// Bytes that a character has at most.
const UTF8_BYTES_MAX: f64 = 4.0;
/// Bytes of an answer that is no file.
const SAID_BYTES_MAX: u64 = 64 << 20;

/// What a text is called at the service: of what its vector depends on.
type Id = u128;

fn name_of(id: Id) -> String {
    format!("{id:032x}")
}

fn id_of(name: &str) -> Option<Id> {
    (name.len() == 32).then(|| Id::from_str_radix(name, 16).ok())?
}

/// A batch as the journal has it.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Sent {
    /// The encoder that it is of.
    of: String,
    /// The journal's name for it.
    own: String,
    /// The service's name for it, once that is known.
    batch: Option<String>,
    /// The service's name for the file of its texts.
    file: String,
    /// When it was sent, in milliseconds since 1970; 0 where only the service knows, and does not say.
    at_ms: u64,
    /// Tokens that it was reckoned to take.
    tokens: u64,
    /// Whether the budget's account was told what it was reckoned to take. A process that died before leaves that to the next one.
    is_told: bool,
    /// Whether tokens that it took beside these are counted.
    #[serde(default)]
    is_counted: bool,
    /// Its texts, in the order of its lines; once it is over, those that it has vectors of. One without texts stays, so that the list does not
    /// bring it back.
    texts: Vec<String>,
}

/// A batch that has texts of ours.
struct Batch {
    sent: Sent,
    /// Whether this process has sent it, and nothing has come of it yet.
    is_own: bool,
    /// Whether what it was reckoned to take is in this process's count, and what it took is not.
    is_reckoned: bool,
    /// How often the account was brought up since this process counted it; `None` where the one that has sent it does that.
    told: Option<u8>,
    /// Whether some of its vectors were compared with what the service gives directly.
    is_compared: bool,
    /// What came of it and is not handed out yet, once it has ended.
    answers: Option<HashMap<Id, Answer>>,
}

#[derive(Default)]
struct State {
    /// Whether what processes before had not told the account of was counted.
    is_read: bool,
    batches: BTreeMap<Arc<str>, Batch>,
    of_text: HashMap<Id, Arc<str>>,
    /// Requests that are done, and all, of the batches that are waited for.
    awaited: BTreeMap<Arc<str>, (u64, u64)>,
}

impl State {
    fn add(&mut self, sent: Sent, is_own: bool, is_reckoned: bool) {
        let own: Arc<str> = sent.own.as_str().into();
        for id in sent.texts.iter().filter_map(|text| id_of(text)) {
            // Of two batches with a text, the later one has it because the earlier one gave nothing for it. The list has the later one first.
            let later = |other: &Arc<str>| {
                self.batches.get(other).is_some_and(|other| other.sent.at_ms >= sent.at_ms)
            };
            if !self.of_text.get(&id).is_some_and(later) {
                self.of_text.insert(id, Arc::clone(&own));
            }
        }
        let told = is_reckoned.then_some(0);
        self.batches
            .insert(own, Batch { sent, is_own, is_reckoned, told, is_compared: false, answers: None });
    }
}

/// The batches of one encoder.
pub(super) struct Batches {
    folder: PathBuf,
    /// What vectors depend on beside the text.
    of: String,
    poll: Duration,
    /// Texts of a batch at most: fewer after a refusal.
    most: AtomicUsize,
    /// Whether the service takes parameters beside the file, as Voyage does, and not in its lines.
    is_voyage: AtomicBool,
    sent: AtomicU64,
    /// Held while the journal is read and texts are sent: no two calls send the same ones.
    turn: Mutex<()>,
    /// Held while an entry of the journal is written or removed: what is known last is written last.
    writing: Mutex<()>,
    state: Mutex<State>,
}

/// What came of one question about files and batches.
enum Said {
    Good(Response<Body>),
    /// The service refuses everybody for its limits.
    Limited(String, Option<Duration>),
    /// Nobody heard it.
    Unheard(String),
    /// Whether it was heard is not known.
    Unclear(String),
    Refused(u16, String),
}

/// A batch as the service has it.
#[derive(Debug, Deserialize)]
struct There {
    id: String,
    status: String,
    #[serde(default)]
    input_file_id: Option<String>,
    #[serde(default)]
    output_file_id: Option<String>,
    #[serde(default)]
    error_file_id: Option<String>,
    /// Seconds since 1970; Voyage writes a date.
    #[serde(default)]
    created_at: Value,
    #[serde(default)]
    errors: Value,
    #[serde(default)]
    request_counts: Value,
    #[serde(default)]
    metadata: Value,
}

impl There {
    fn is_over(&self) -> bool {
        matches!(self.status.as_str(), "completed" | "failed" | "expired" | "cancelled")
    }

    fn count(&self, name: &str) -> u64 {
        self.request_counts.get(name).and_then(Value::as_u64).unwrap_or(0)
    }

    fn created_ms(&self) -> Option<u64> {
        self.created_at.as_u64().map(|seconds| seconds.saturating_mul(1000))
    }

    fn mark(&self, name: &str) -> Option<&str> {
        self.metadata.get(name)?.as_str()
    }
}

#[derive(Deserialize)]
struct Page {
    data: Vec<There>,
    #[serde(default)]
    has_more: bool,
}

/// A line of a file that a batch gave.
#[derive(Deserialize)]
struct Line {
    custom_id: String,
    response: Option<LineResponse>,
    #[serde(default)]
    error: Value,
}

#[derive(Deserialize)]
struct LineResponse {
    #[serde(default)]
    status_code: Option<u16>,
    body: Option<answer::Body>,
}

/// Tokens that the lines of a batch say, and of how many texts.
#[derive(Default)]
struct Used {
    tokens: u64,
    texts: usize,
}

/// What a batch that is over came to.
#[derive(Default)]
struct Came {
    /// Why some of its texts were not embedded, and may be sent again.
    why: String,
    /// Whether this process has sent it: sent again at once, it would come to the same.
    is_own: bool,
    /// Texts that it had.
    texts: usize,
    /// The service takes fewer texts at a time.
    is_limit: bool,
    is_cancelled: bool,
}

impl Batches {
    /// `None` where the configuration asks for none.
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
        let of = Fingerprint::new("batch")
            .with(&(url, model, dimensions, input_type, body, revision))
            .with(prefix)
            .text();
        let is_voyage = ["voyageai.com", "ai.mongodb.com"].iter().any(|host| url.contains(host));
        Ok(Some(Self {
            folder: base.join(JOURNAL),
            of,
            poll,
            most: AtomicUsize::new(*batch_api_items),
            is_voyage: AtomicBool::new(is_voyage),
            sent: AtomicU64::new(0),
            turn: Mutex::default(),
            writing: Mutex::default(),
            state: Mutex::default(),
        }))
    }

    pub(super) fn awaits(&self) -> Option<String> {
        let state = lock(&self.state);
        let (batches, done, all) = state
            .awaited
            .values()
            .fold((0, 0, 0), |(batches, done, all), now| (batches + 1, done + now.0, all + now.1));
        (batches > 0)
            .then(|| format!("waiting for {batches} batches at the service, with {done} of {all} texts done"))
    }

    /// The account of the budget was told what this process has used until some moment.
    pub(super) fn told(&self) {
        let mut told = Vec::new();
        for batch in lock(&self.state).batches.values_mut().filter(|batch| !batch.sent.is_told) {
            let Some(times) = &mut batch.told else { continue };
            *times += 1;
            // The first time, it may have been told of a moment before.
            if *times > 1 {
                batch.sent.is_told = true;
                told.push(batch.sent.own.clone());
            }
        }
        for own in told {
            // Where it cannot be written, the next process counts it once more, and stays within the budget all the same.
            drop(self.keep(&own));
        }
    }

    fn id(&self, text: &str) -> Id {
        let mut hash = Sha256::new();
        hash.update(self.of.as_bytes());
        hash.update(text.as_bytes());
        let hash: [u8; 32] = hash.finalize().into();
        Id::from_be_bytes(hash.first_chunk().copied().unwrap_or_default())
    }

    fn path(&self, own: &str) -> PathBuf {
        self.folder.join(format!("{own}.json"))
    }

    /// Writes into the journal what is known of a batch.
    fn keep(&self, own: &str) -> Result<()> {
        let _writing = lock(&self.writing);
        let sent = lock(&self.state).batches.get(own).map(|batch| batch.sent.clone());
        let Some(sent) = sent else { return Ok(()) };
        fs_err::create_dir_all(&self.folder).map_err(|error| Error::io("create", &self.folder, &error))?;
        AtomicFile::write(self.path(own), json!(sent).to_string())
    }

    /// The batches of this encoder that the journal has, without those of which this process knows as much.
    fn kept(&self) -> Result<Vec<Sent>> {
        let entries = match fs_err::read_dir(&self.folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|error| Error::io("read", &self.folder, &error))?,
        };
        let mut kept = Vec::new();
        for entry in entries {
            let path = entry.map_err(|error| Error::io("read", &self.folder, &error))?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let is_known = |batch: &Batch| batch.is_own || batch.sent.batch.is_some();
            let own = path.file_stem().and_then(|own| own.to_str()).unwrap_or_default();
            if lock(&self.state).batches.get(own).is_some_and(is_known) {
                continue;
            }
            let Some(sent) = read_sent(&path)?.filter(|sent| sent.of == self.of) else { continue };
            if sent.is_counted
                && sent.at_ms > 0
                && sent.at_ms.saturating_add(KEPT_FOR_MS) < rehang_clock::unix_ms()
            {
                // What is left of it costs a little room.
                drop(fs_err::remove_file(&path));
                continue;
            }
            kept.push(sent);
        }
        kept.sort_by_key(|sent| sent.at_ms);
        Ok(kept)
    }
}

impl Http {
    /// Embeds the texts of a call by batches, those that other processes have sent among them. Comes back as soon as some have an answer; the
    /// others are not tried then.
    ///
    /// # Errors
    ///
    /// Unavailable where nothing came of a batch, or the service does not answer for long; a conflict where a batch gives other vectors than
    /// the service does directly; budget spent; cancelled.
    pub(super) fn embed_in_bulk(
        &self,
        batches: &Batches,
        inputs: &[Input<'_>],
        answers: &mut [Option<Answer>],
    ) -> Result<()> {
        let ids: Vec<Id> = inputs
            .iter()
            .map(|input| batches.id(&format!("{}{}", self.config.prefix, input.source)))
            .collect();
        let mut rounds = 0;
        loop {
            rounds += 1;
            if rounds > ROUNDS_MAX {
                return Err(self.unavailable(format!("no batch came about in {ROUNDS_MAX} attempts")));
            }
            let sending = self.send_unsent(batches, inputs, &ids, answers);
            let mut held: BTreeMap<Arc<str>, Vec<usize>> = BTreeMap::new();
            for (place, id) in ids.iter().enumerate().filter(|(place, _)| answers[*place].is_none()) {
                if let Some(own) = lock(&batches.state).of_text.get(id) {
                    held.entry(Arc::clone(own)).or_default().push(place);
                }
            }
            match sending {
                // What was sent before is waited for.
                Err(error) if error.is_budget_spent() && !held.is_empty() => {}
                sending => sending?,
            }
            if answers.iter().any(Option::is_some) {
                break;
            }
            if held.is_empty() {
                continue;
            }
            let came = self.wait_for_any(batches, &held, &ids)?;
            for (own, came) in &came {
                self.compare_with_direct(batches, own, &held[own], inputs, &ids)
                    .map_err(|error| error.context(format!("batch {}", batches.shown(own))))?;
                self.take_answers(batches, own, &held[own], inputs, &ids, answers)?;
                if came.is_cancelled {
                    lock(&self.stopped).get_or_insert_with(|| self.unavailable(came.why.clone()));
                }
            }
            if answers.iter().any(Option::is_some) {
                break;
            }
            let is_any_under_way = held.len() > came.len() || !lock(&batches.state).awaited.is_empty();
            for came in came.iter().map(|(_, came)| came).filter(|came| !came.why.is_empty()) {
                if came.is_limit && came.texts > FEW {
                    if is_any_under_way {
                        // They fill the queue, for a day maybe, and leave room for as many texts afterwards.
                        rounds = 0;
                    } else {
                        batches.most.fetch_min(came.texts / 2, Ordering::Relaxed);
                    }
                    self.wait_until(self.clock.now() + batches.poll)?;
                } else if came.is_own {
                    return Err(self.unavailable(came.why.clone()));
                }
            }
        }
        let untried = || ItemFailure::Untried("the batch that has it is under way".into());
        answers
            .iter_mut()
            .filter(|answer| answer.is_none())
            .for_each(|answer| *answer = Some(Err(untried())));
        Ok(())
    }

    /// Sends the texts that no batch has, those of other processes included; embeds them directly where they are few.
    fn send_unsent(
        &self,
        batches: &Batches,
        inputs: &[Input<'_>],
        ids: &[Id],
        answers: &mut [Option<Answer>],
    ) -> Result<()> {
        if unsent(&lock(&batches.state), ids, answers).is_empty() {
            return Ok(());
        }
        let turn = lock(&batches.turn);
        self.read_journal(batches)?;
        let unsent = unsent(&lock(&batches.state), ids, answers);
        match unsent.len() {
            0 => Ok(()),
            1..=FEW => {
                drop(turn);
                self.embed_few(inputs, answers, ids, &unsent)
            }
            _ => self.send_files(batches, inputs, ids, &unsent),
        }
    }

    /// Embeds a few texts directly.
    fn embed_few(
        &self,
        inputs: &[Input<'_>],
        answers: &mut [Option<Answer>],
        ids: &[Id],
        unsent: &[usize],
    ) -> Result<()> {
        let few: Vec<Input<'_>> = unsent.iter().map(|&place| inputs[place]).collect();
        let mut of_few = vec![None; few.len()];
        let error = self.embed_all(&few, &mut of_few);
        for (&place, answer) in unsent.iter().zip(of_few) {
            // Also where another input has the same text.
            for other in (0..ids.len()).filter(|&other| ids[other] == ids[place]) {
                answers[other].clone_from(&answer);
            }
        }
        match error {
            // What is there is handed out, and the next call says so again.
            Some(error) if error.is_budget_spent() && answers.iter().any(Option::is_some) => Ok(()),
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Sends texts in as few batches as may be, as far as the budget goes.
    fn send_files(
        &self,
        batches: &Batches,
        inputs: &[Input<'_>],
        ids: &[Id],
        unsent: &[usize],
    ) -> Result<()> {
        if self.rider.known().is_none() {
            self.expect_served()?;
        }
        let mut rest = unsent;
        while !rest.is_empty() {
            self.expect_not_stopped()?;
            let mut file = Vec::new();
            let mut count = 0;
            let most = batches.most.load(Ordering::Relaxed);
            for &place in rest.iter().take(most) {
                let line = self.line(batches, &inputs[place], ids[place]);
                if count > 0 && file.len() + line.len() > FILE_BYTES_MAX {
                    break;
                }
                file.extend(line);
                count += 1;
            }
            let wanted: Vec<Input<'_>> = rest[..count].iter().map(|&place| inputs[place]).collect();
            let (within, tokens) = self.reserve_for_batch(&wanted)?;
            if within < count {
                // As many lines.
                let end = file.iter().enumerate().filter(|(_, byte)| **byte == b'\n').nth(within - 1);
                file.truncate(end.map_or(0, |(end, _)| end + 1));
            }
            let texts = rest[..within].iter().map(|&place| ids[place]);
            self.send_file(batches, &file, texts.collect(), tokens)?;
            // A queue that was too short for one is too short for several.
            if within < count || most < self.config.batch_api_items {
                return Ok(());
            }
            rest = &rest[count..];
        }
        Ok(())
    }

    /// As [`Self::reserve`], with room for the texts by which a batch is compared.
    fn reserve_for_batch(&self, inputs: &[Input<'_>]) -> Result<(usize, u64)> {
        let known = self.rider.known();
        let known = known.as_ref().map(|known| known.input());
        let beside = inputs.iter().take(WITNESSES).copied().chain(known);
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

    /// Asks the service for one harmless word, directly: a wrong key, model or width is found before a batch is paid for.
    fn expect_served(&self) -> Result<()> {
        match self.insist(&[probe()], usize::MAX)? {
            Ended::Vectors(mut vectors) => {
                let vector = self.check.vector(super::PROBE, vectors.pop().unwrap_or_default());
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
        // A quarter of the bytes that numbers take in words.
        let encoding_format = self.names_format.load(Ordering::Relaxed).then_some("base64");
        Request {
            model,
            input,
            encoding_format,
            dimensions: *dimensions,
            input_type: input_type.as_deref(),
            more,
        }
    }

    /// Sends a batch of texts, for which tokens are reserved. What happens from the moment when it may be created is in the journal.
    fn send_file(&self, batches: &Batches, file: &[u8], texts: Vec<Id>, tokens: u64) -> Result<()> {
        let file = self.upload(file).inspect_err(|_| self.unreserve(texts.len(), tokens))?;
        let at_ms = rehang_clock::unix_ms();
        let number = batches.sent.fetch_add(1, Ordering::Relaxed);
        let own = Fingerprint::new("own").with(&(&file, at_ms, std::process::id(), number)).text();
        let texts = texts.into_iter().map(name_of).collect();
        let of = batches.of.clone();
        let sent =
            Sent { of, own, batch: None, file, at_ms, tokens, is_told: false, is_counted: false, texts };
        lock(&batches.state).add(sent.clone(), true, true);
        batches.keep(&sent.own).or_else(|error| self.drop_sent(batches, &sent.own).and(Err(error)))?;
        let said = self
            .create(batches, &sent)
            .or_else(|error| self.drop_sent(batches, &sent.own).and(Err(error)))?;
        let refused = match said {
            Said::Good(mut response) => {
                let there: serde_json::Result<There> =
                    read(&mut response).and_then(|body| serde_json::from_slice(&body));
                // Where the answer is broken, the list says its name.
                return there.map_or(Ok(()), |there| batches.is_created(&sent.own, there.id));
            }
            Said::Refused(_, reason) if reason.contains("request_params") => {
                if !batches.is_voyage.swap(true, Ordering::Relaxed) {
                    return self.drop_sent(batches, &sent.own);
                }
                reason
            }
            Said::Refused(400 | 404 | 413 | 422, reason) => reason,
            // Its place in the list says whether it was heard.
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
        let said = self.insist_at("/files", Some((&kind, &body)), &mut |response| read(response).ok())?;
        let said = said.ok_or_else(|| self.no_batch_api("/files"))?;
        let uploaded: Uploaded = serde_json::from_slice(&said)
            .map_err(|error| self.unavailable(format!("it took a file and gave no id ({error})")))?;
        Ok(uploaded.id)
    }

    fn create(&self, batches: &Batches, sent: &Sent) -> Result<Said> {
        let mut body = json!({
            "input_file_id": sent.file,
            "endpoint": ENDPOINT,
            "completion_window": "24h",
            "metadata": {OF: sent.of, OWN: sent.own},
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

    /// Waits until one of some batches is over. Gives those that are, with their answers read.
    fn wait_for_any(
        &self,
        batches: &Batches,
        held: &BTreeMap<Arc<str>, Vec<usize>>,
        ids: &[Id],
    ) -> Result<Vec<(Arc<str>, Came)>> {
        let mut heard = self.clock.now();
        let outcome = loop {
            let mut over = Vec::new();
            for (own, places) in held {
                match self.look_at(batches, own, places, ids, &mut heard) {
                    Ok(came) => over.extend(came.map(|came| (Arc::clone(own), came))),
                    // What is there already is handed out first.
                    Err(_) if !over.is_empty() => break,
                    Err(error) => {
                        lock(&batches.state).awaited.clear();
                        return Err(error);
                    }
                }
            }
            if !over.is_empty() {
                break Ok(over);
            }
            if let Err(error) = self.wait_until(self.clock.now() + batches.poll) {
                break Err(error);
            }
        };
        lock(&batches.state).awaited.retain(|own, _| !held.contains_key(own));
        outcome
    }

    /// Asks how far a batch is, unless its answers are here; reads them where it is over.
    fn look_at(
        &self,
        batches: &Batches,
        own: &Arc<str>,
        places: &[usize],
        ids: &[Id],
        heard: &mut Duration,
    ) -> Result<Option<Came>> {
        let nothing = Came::default;
        let (name, is_own) = {
            let state = lock(&batches.state);
            let Some(batch) = state.batches.get(own) else { return Ok(Some(nothing())) };
            let is_here =
                |answers: &HashMap<Id, Answer>| places.iter().any(|&place| answers.contains_key(&ids[place]));
            if batch.answers.as_ref().is_some_and(is_here) {
                return Ok(Some(nothing()));
            }
            (batch.sent.batch.clone(), batch.is_own)
        };
        self.take_over(batches, own)?;
        let Some(name) = name.map_or_else(|| self.find_created(batches, own), |name| Ok(Some(name)))? else {
            self.drop_sent(batches, own)?;
            return Ok(Some(nothing()));
        };
        let there: There = match self.ask_at("GET", &format!("/batches/{name}"), None)? {
            Said::Good(mut response) => {
                match read(&mut response).and_then(|body| serde_json::from_slice(&body)) {
                    Ok(there) => there,
                    Err(error) => {
                        return self.unheard(batches, *heard, &format!("its answer is broken ({error})"));
                    }
                }
            }
            Said::Limited(reason, _) | Said::Unheard(reason) | Said::Unclear(reason) => {
                return self.unheard(batches, *heard, &reason);
            }
            // One that is a moment old may not be everywhere yet.
            Said::Refused(_, reason) if is_own => return self.unheard(batches, *heard, &reason),
            Said::Refused(_, reason) => {
                return Err(Error::not_found(
                    "batch",
                    &name,
                    format!(
                        "the service of this key ({reason}); its texts are paid for, and are not sent again while {} is there",
                        batches.path(own).display()
                    ),
                ));
            }
        };
        let mut state = lock(&batches.state);
        let texts = state.batches.get(own).map_or(0, |batch| batch.sent.texts.len() as u64);
        state.awaited.insert(Arc::clone(own), (there.count("completed") + there.count("failed"), texts));
        drop(state);
        if there.is_over() {
            return self.collect(batches, own, &there, *heard);
        }
        *heard = self.clock.now();
        Ok(None)
    }

    /// Nothing new is known of a batch. That is nothing bad, for a while.
    fn unheard(&self, batches: &Batches, heard: Duration, reason: &str) -> Result<Option<Came>> {
        if self.clock.now().saturating_sub(heard) > OUTAGE_MAX.max(3 * batches.poll) {
            return Err(
                self.unavailable(format!("{reason}; what was sent is not lost: a later run waits for it"))
            );
        }
        Ok(None)
    }

    /// Reads what came of a batch that is over; `None` where its files have less than it says.
    fn collect(
        &self,
        batches: &Batches,
        own: &Arc<str>,
        there: &There,
        heard: Duration,
    ) -> Result<Option<Came>> {
        let (texts, is_first): (Vec<Id>, bool) = {
            let state = lock(&batches.state);
            let Some(batch) = state.batches.get(own) else { return Ok(Some(Came::default())) };
            let texts = batch.sent.texts.iter().filter_map(|text| id_of(text));
            (texts.collect(), batch.answers.is_none())
        };
        let (mut answers, mut used) = (HashMap::new(), Used::default());
        let mut unexecuted = BTreeSet::new();
        let mut is_there = false;
        for (is_output, file) in [(true, &there.output_file_id), (false, &there.error_file_id)] {
            if let Some(file) = file {
                is_there |= self.lines_of(file, &mut |line| {
                    self.take_line(line, &mut answers, &mut unexecuted, &mut used);
                })?;
            }
            // What a service says that it has is paid for, and a file may be short or gone for a moment.
            if is_output && (answers.len() as u64) < there.count("completed") {
                let reason = format!(
                    "batch {} has embedded {} texts, and its output ({}) has {} (all are sent again once {} and the service's {} are removed)",
                    there.id,
                    there.count("completed"),
                    file.as_deref().unwrap_or("no file"),
                    answers.len(),
                    batches.path(own).display(),
                    there.input_file_id.as_deref().unwrap_or("file of its texts")
                );
                return self.unheard(batches, heard, &reason);
            }
        }
        let is_failed = there.status == "failed";
        let errors: Vec<&Value> = ["/data", ""]
            .iter()
            .find_map(|path| there.errors.pointer(path)?.as_array())
            .into_iter()
            .flatten()
            .collect();
        let said = |error: &Value| {
            answer::message(error.to_string().as_bytes(), self.secrets.iter().map(String::as_str))
        };
        if is_failed {
            // Lines that are named are to blame, unless all are.
            let line = |error: &&Value| error.get("line")?.as_u64()?.checked_sub(1).map(|line| line as usize);
            let named: BTreeMap<usize, &Value> =
                errors.iter().filter_map(|error| Some((line(error)?, *error))).collect();
            if named.len() < texts.len() {
                let blamed = named.iter().filter_map(|(line, error)| Some((*texts.get(*line)?, said(error))));
                answers.extend(blamed.map(|(id, said)| {
                    (id, Err(ItemFailure::Permanent(format!("{}: {said}", self.check.encoder()))))
                }));
            }
        }
        let vectors = answers.values().filter(|answer| answer.is_ok()).count();
        let is_lost = there.status == "completed" && is_there;
        let (mut left, mut lost) = (Vec::new(), 0);
        for &id in texts.iter().filter(|id| !answers.contains_key(id)).collect::<Vec<_>>() {
            if is_lost && !unexecuted.contains(&id) {
                let reason = format!("{} has no answer for it in batch {}", self.check.encoder(), there.id);
                answers.insert(id, Err(ItemFailure::Temporary(reason)));
                lost += 1;
            } else {
                left.push(id);
            }
        }
        let reason = errors.first().map(|error| format!(": {}", said(error))).unwrap_or_default();
        let shown = if is_there || there.status != "completed" {
            there.status.as_str()
        } else {
            "completed, and its files are gone"
        };
        let why = format!(
            "batch {} is {shown}{reason}; {} of its {} texts were not embedded and are sent again by the next run",
            there.id,
            left.len(),
            texts.len()
        );
        let is_limit = is_failed
            && errors.iter().any(|error| {
                error.get("code").and_then(Value::as_str).is_some_and(|code| code.contains("limit"))
            });
        let mut state = lock(&batches.state);
        if is_first && state.batches.get(own).is_some_and(|batch| batch.answers.is_some()) {
            // Another worker that waits for it has read it meanwhile.
            return Ok(Some(Came::default()));
        }
        state.of_text.retain(|id, of| of != own || answers.contains_key(id));
        state.awaited.remove(own);
        let mut came = Came {
            why: if left.is_empty() { String::new() } else { why },
            is_own: false,
            texts: texts.len(),
            is_limit,
            is_cancelled: false,
        };
        let Some(batch) = state.batches.get_mut(own) else { return Ok(Some(came)) };
        came.is_own = batch.is_own;
        // A later run sends again what somebody cancelled.
        came.is_cancelled = there.status == "cancelled" && !left.is_empty() && !batch.sent.is_counted;
        // A text whose line does not say takes what it was reckoned to.
        let reckoned = batch.sent.tokens;
        let each = reckoned / texts.len().max(1) as u64;
        let used = used.tokens + each * (vectors + lost).saturating_sub(used.texts) as u64;
        // What a service says is not trusted further than the texts could have tokens.
        let bytes = (reckoned as f64 * self.config.characters_per_token * UTF8_BYTES_MAX) as u64;
        let used = used.min(bytes + TOKENS_MORE * texts.len() as u64);
        if batch.is_reckoned {
            let mut spent = self.meter.lock();
            spent.items = spent.items.saturating_sub(left.len() as u64);
            spent.tokens = (spent.tokens + used).saturating_sub(reckoned);
        } else if !batch.sent.is_counted {
            // What it was reckoned to take is in the count of the process that sent it.
            self.meter.tokens(used.saturating_sub(reckoned));
        }
        (batch.is_own, batch.is_reckoned) = (false, false);
        // What it has no vector of may be sent again, by a later run too.
        let has_vector = |text: &String| {
            let answer = id_of(text).and_then(|id| answers.get(&id)?.clone().ok());
            answer.is_some_and(|vector| !matches!(self.check.vector(text, vector), Ok(Err(_))))
        };
        batch.sent.texts.retain(has_vector);
        batch.answers = Some(answers);
        if !mem::replace(&mut batch.sent.is_counted, true) || batch.sent.texts.len() < texts.len() {
            drop(state);
            batches.keep(own)?;
        }
        Ok(Some(came))
    }

    /// Takes in a line of a file that a batch gave. Of several lines for a text, the first one with a vector counts.
    fn take_line(
        &self,
        line: &[u8],
        answers: &mut HashMap<Id, Answer>,
        unexecuted: &mut BTreeSet<Id>,
        used: &mut Used,
    ) {
        let secrets = || self.secrets.iter().map(String::as_str);
        let parsed: Option<Line> = read_json(line).ok();
        if let Some(Line { custom_id, response: Some(response), error: Value::Null }) = parsed
            && response.status_code.is_none_or(|status| status == 200)
            && let (Some(id), Some(body)) = (id_of(&custom_id), response.body)
            && let Ok(answer) = answer::vectors_of(body, 1)
        {
            if !matches!(answers.get(&id), Some(Ok(_))) {
                used.texts += usize::from(answer.tokens.is_some());
                used.tokens += answer.tokens.unwrap_or(0);
                answers.extend(answer.vectors.into_iter().map(|vector| (id, Ok(vector))));
            }
            return;
        }
        let Ok(line) = read_json::<Value>(line) else { return };
        let Some(id) = line.get("custom_id").and_then(Value::as_str).and_then(id_of) else { return };
        if answers.contains_key(&id) {
            return;
        }
        let response = line.get("response").filter(|response| !response.is_null());
        let body = response.and_then(|response| response.get("body"));
        let error = line.get("error").filter(|error| !error.is_null()).or(body).cloned().unwrap_or_default();
        let code = error.pointer("/code").and_then(Value::as_str).unwrap_or_default();
        let said = answer::message(error.to_string().as_bytes(), secrets());
        let words = format!("{code} {said}").to_lowercase();
        if response.is_none()
            && ["expired", "cancelled", "canceled", "completion window"]
                .iter()
                .any(|word| words.contains(word))
        {
            unexecuted.insert(id);
            return;
        }
        let status = response.and_then(|response| response.get("status_code")?.as_u64());
        let shown = status.map(|status| format!("status {status}: ")).unwrap_or_default();
        let reason = format!("{}: {shown}{said}", self.check.encoder());
        let failure = match status {
            Some(400 | 413 | 414 | 422 | 451) => ItemFailure::Permanent(reason),
            _ => ItemFailure::Temporary(reason),
        };
        answers.insert(id, Err(failure));
    }

    /// Compares some vectors of a batch with what the service gives directly, and that with what it gave directly at first.
    ///
    /// # Errors
    ///
    /// A conflict where they are of two models.
    fn compare_with_direct(
        &self,
        batches: &Batches,
        own: &Arc<str>,
        places: &[usize],
        inputs: &[Input<'_>],
        ids: &[Id],
    ) -> Result<()> {
        let mut good: Vec<(Input<'_>, Vec<f32>)> = Vec::new();
        {
            let state = lock(&batches.state);
            let batch = state.batches.get(own).filter(|batch| !batch.is_compared);
            let Some(answers) = batch.and_then(|batch| batch.answers.as_ref()) else { return Ok(()) };
            let there: Vec<usize> = places
                .iter()
                .copied()
                .filter(|&place| matches!(answers.get(&ids[place]), Some(Ok(_))))
                .collect();
            let step = there.len().div_ceil(WITNESSES).max(1);
            for &place in there.iter().step_by(step) {
                if let Some(Ok(vector)) = answers.get(&ids[place])
                    && let Ok(vector) = self
                        .check
                        .vector(inputs[place].id, vector.clone())
                        .map_err(|error| self.blame(error))?
                {
                    good.push((inputs[place], vector));
                }
            }
        }
        if good.is_empty() {
            return Ok(());
        }
        let turn = self.rider.turn();
        let known = turn.as_ref().map(|turn| turn.known.input());
        let asked: Vec<Input<'_>> = good.iter().map(|(input, _)| *input).chain(known).collect();
        let ended = match self.insist(&asked, usize::MAX) {
            Err(error) if error.is_budget_spent() => None,
            ended => Some(ended?),
        };
        let Some(Ended::Vectors(mut vectors)) = ended else {
            self.rider.came_alone(places.len());
            return Ok(());
        };
        if let Some(turn) = &turn {
            self.expect_itself(turn, vectors.pop().unwrap_or_default())?;
        }
        for ((input, vector), now) in good.iter().zip(vectors) {
            let Ok(now) = self.check.vector(input.id, now)? else { continue };
            let known = Arc::new(Known::of(input, vector));
            self.rider.expect_same(self.check.encoder(), &known, &now, self.ask())?;
        }
        if turn.is_none() {
            let (inputs, answers): (Vec<_>, Vec<Answer>) =
                good.into_iter().map(|(input, vector)| (input, Ok(vector))).unzip();
            self.rider.learn(&inputs, &answers.iter().map(Some).collect::<Vec<_>>());
        }
        if let Some(batch) = lock(&batches.state).batches.get_mut(own) {
            batch.is_compared = true;
        }
        Ok(())
    }

    /// Hands out what a batch has for some inputs.
    fn take_answers(
        &self,
        batches: &Batches,
        own: &Arc<str>,
        places: &[usize],
        inputs: &[Input<'_>],
        ids: &[Id],
        answers: &mut [Option<Answer>],
    ) -> Result<()> {
        let mut state = lock(&batches.state);
        let Some(of_batch) = state.batches.get_mut(own).and_then(|batch| batch.answers.as_mut()) else {
            return Ok(());
        };
        let mut failed = BTreeSet::new();
        for &place in places {
            let Some(answer) = of_batch.get(&ids[place]) else { continue };
            let input = &inputs[place];
            answers[place] = Some(match answer {
                Ok(vector) => {
                    self.check.vector(input.id, vector.clone()).map_err(|error| self.blame(error))?
                }
                Err(ItemFailure::Permanent(reason)) => {
                    Err(ItemFailure::Permanent(explained(input.source, reason.clone())))
                }
                Err(other) => Err(other.clone()),
            });
            if answer.is_err() {
                failed.insert(ids[place]);
            }
        }
        for &place in places {
            of_batch.remove(&ids[place]);
        }
        // Tried again, they are sent again.
        state.of_text.retain(|id, of| of != own || !failed.contains(id));
        Ok(())
    }

    /// Counts what a batch was reckoned to take, where the process that sent it died before the account was told.
    fn take_over(&self, batches: &Batches, own: &str) -> Result<()> {
        let is_anothers = |batch: &Batch| batch.told.is_none() && !batch.sent.is_told;
        if !lock(&batches.state).batches.get(own).is_some_and(is_anothers) {
            return Ok(());
        }
        let kept = read_sent(&batches.path(own))?;
        let mut state = lock(&batches.state);
        let Some(batch) = state.batches.get_mut(own).filter(|batch| is_anothers(batch)) else {
            return Ok(());
        };
        if let Some(kept) = kept {
            batch.sent = Sent { texts: mem::take(&mut batch.sent.texts), ..kept };
        }
        if !batch.sent.is_told {
            self.meter.sent(batch.sent.texts.len());
            self.meter.tokens(batch.sent.tokens);
            (batch.told, batch.is_reckoned) = (Some(0), true);
        }
        Ok(())
    }

    /// Reads the journal, and what the service's list has that is not in it. Other processes may have sent something since the last time.
    fn read_journal(&self, batches: &Batches) -> Result<()> {
        let kept = batches.kept()?;
        let is_first = !mem::replace(&mut lock(&batches.state).is_read, true);
        for sent in kept {
            if let Some(batch) = lock(&batches.state).batches.get_mut(sent.own.as_str()) {
                batch.sent.batch = sent.batch;
                batch.sent.is_told |= sent.is_told;
                continue;
            }
            // Of one that was sent since, the account is told by the process that has sent it, unless that dies.
            let is_reckoned = is_first && !sent.is_told;
            if is_reckoned {
                self.meter.sent(sent.texts.len());
                self.meter.tokens(sent.tokens);
            }
            lock(&batches.state).add(sent, false, is_reckoned);
        }
        for there in self.list(rehang_clock::unix_ms().saturating_sub(KEPT_FOR_MS))?.0 {
            let Some(own) = there.mark(OWN).filter(|_| there.mark(OF) == Some(&batches.of)) else { continue };
            let known = lock(&batches.state).batches.get(own).map(|batch| batch.sent.batch.is_some());
            match known {
                Some(true) => continue,
                Some(false) => {
                    batches.is_created(own, there.id.clone())?;
                    continue;
                }
                None => {}
            }
            let is_old = there.created_ms().is_some_and(|at| at + KEPT_FOR_MS < rehang_clock::unix_ms());
            let Some(file) = there.input_file_id.clone().filter(|_| !is_old && there.status != "failed")
            else {
                continue;
            };
            // Its name becomes that of a file.
            if own.len() > 64 || !own.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
                continue;
            }
            let mut texts = Vec::new();
            let is_there = self.lines_of(&file, &mut |line| {
                let line: Value = serde_json::from_slice(line).unwrap_or_default();
                texts.extend(line.get("custom_id").and_then(Value::as_str).map(str::to_owned));
            })?;
            if !is_there {
                continue;
            }
            let sent = Sent {
                of: batches.of.clone(),
                own: own.to_owned(),
                batch: Some(there.id.clone()),
                file,
                at_ms: there.created_ms().unwrap_or(0),
                tokens: 0,
                is_told: true,
                is_counted: true,
                texts,
            };
            lock(&batches.state).add(sent, false, false);
            batches.keep(own)?;
        }
        Ok(())
    }

    /// Forgets a batch that was not created, and puts back what was reserved for it.
    fn drop_sent(&self, batches: &Batches, own: &str) -> Result<()> {
        let mut state = lock(&batches.state);
        let batch = state.batches.remove(own);
        if let Some(batch) = batch {
            state.of_text.retain(|_, of| &**of != own);
            if batch.is_reckoned {
                self.unreserve(batch.sent.texts.len(), batch.sent.tokens);
            }
            drop(state);
            self.delete(&batch.sent.file);
        }
        let _writing = lock(&batches.writing);
        let path = batches.path(own);
        match fs_err::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io("remove", &path, &error))
            }
            _ => Ok(()),
        }
    }

    /// The service's name for a batch that it was asked for without an answer; `None` where it was not created.
    fn find_created(&self, batches: &Batches, own: &str) -> Result<Option<String>> {
        let sent = lock(&batches.state).batches.get(own).map(|batch| batch.sent.clone());
        let Some(sent) = sent else { return Ok(None) };
        for tries in 0..=LISTED_TRIES {
            if tries == LISTED_TRIES {
                // Without its file, none is created from now on.
                self.delete(&sent.file);
            } else if tries > 0 {
                self.wait_until(self.clock.now() + LISTED_RESTS)?;
            }
            let (list, is_whole) = self.list(sent.at_ms.saturating_sub(DAY_MS))?;
            let found = list.into_iter().find(|there| {
                there.mark(OWN) == Some(own) || there.input_file_id.as_ref() == Some(&sent.file)
            });
            if let Some(there) = found {
                batches.is_created(own, there.id.clone())?;
                return Ok(Some(there.id));
            }
            if !is_whole {
                return Err(Error::conflict(
                    "a batch was asked for, and no answer came",
                    format!(
                        "the service has no list that says whether it was created; look there, and remove {} to send its texts again",
                        batches.path(own).display()
                    ),
                ));
            }
        }
        Ok(None)
    }

    /// The batches that the service was asked for since some moment, and maybe earlier ones, the latest first; and whether these are all of them.
    fn list(&self, since_ms: u64) -> Result<(Vec<There>, bool)> {
        let (mut all, mut after) = (Vec::new(), String::new());
        for _ in 0..PAGES_MAX {
            let path = format!("/batches?limit={PAGE}{after}");
            let Some(said) = self.insist_at(&path, None, &mut |response| read(response).ok())? else {
                return Ok((all, false));
            };
            let page: Page = serde_json::from_slice(&said).map_err(|error| {
                self.unavailable(format!("its list of batches has another form ({error})"))
            })?;
            let last = page.data.last();
            let is_old = last.and_then(There::created_ms).is_some_and(|at_ms| at_ms < since_ms);
            let next = last.filter(|_| page.has_more && !is_old).map(|last| format!("&after={}", last.id));
            all.extend(page.data);
            let Some(next) = next else { return Ok((all, true)) };
            after = next;
        }
        Ok((all, false))
    }

    /// Reads a file of the service, line by line; gives whether it is there. A line may come twice, where the file broke off.
    fn lines_of(&self, file: &str, take: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let mut all = |response: &mut Response<Body>| {
            let mut reader = BufReader::new(response.body_mut().with_config().limit(u64::MAX).reader());
            let mut line = Vec::new();
            loop {
                line.clear();
                if reader.read_until(b'\n', &mut line).ok()? == 0 {
                    return Some(Vec::new());
                }
                take(line.trim_ascii());
            }
        };
        Ok(self.insist_at(&format!("/files/{file}/content"), None, &mut all)?.is_some())
    }

    /// Asks the service to delete a file that is of no use any more. It may keep it.
    fn delete(&self, file: &str) {
        drop(self.ask_at("DELETE", &format!("/files/{file}"), None));
    }

    /// Asks until there is a whole answer, as often as a request may be sent; `None` where there is no such thing.
    fn insist_at(
        &self,
        path: &str,
        body: Option<(&str, &[u8])>,
        take: &mut dyn FnMut(&mut Response<Body>) -> Option<Vec<u8>>,
    ) -> Result<Option<Vec<u8>>> {
        let method = if body.is_some() { "POST" } else { "GET" };
        for failures in 1.. {
            let reason = match self.ask_until_heard(method, path, body)? {
                Said::Good(mut response) => match take(&mut response) {
                    Some(said) => return Ok(Some(said)),
                    None => "its answer broke off".into(),
                },
                Said::Refused(404 | 405 | 410 | 501, _) => return Ok(None),
                Said::Refused(_, reason) => return Err(self.unavailable(reason)),
                Said::Unclear(reason) | Said::Unheard(reason) | Said::Limited(reason, _) => reason,
            };
            self.rest(path, reason, failures)?;
        }
        Ok(None)
    }

    /// Asks once, and again where it was certainly not heard: the service refuses everybody for its limits, or cannot be reached.
    fn ask_until_heard(&self, method: &str, path: &str, body: Option<(&str, &[u8])>) -> Result<Said> {
        let mut limited = Limited { times: 0, since: self.clock.now(), served: 0 };
        let mut failures = 0;
        loop {
            self.expect_not_stopped()?;
            match self.ask_at(method, path, body)? {
                Said::Limited(reason, wait) => self.keep_to_limits(&mut limited, reason, wait)?,
                Said::Unheard(reason) => {
                    failures += 1;
                    self.rest(path, reason, failures)?;
                }
                said => return Ok(said),
            }
        }
    }

    /// Waits after so many failures of a request, or says that these were all attempts.
    fn rest(&self, path: &str, reason: String, failures: usize) -> Result<()> {
        if failures >= self.config.attempts {
            return Err(
                self.unavailable(format!("{reason} ({} was asked {failures} times)", without_query(path)))
            );
        }
        self.wait_until(self.clock.now() + self.backoff.wait(failures as u32))
    }

    /// Asks once.
    fn ask_at(&self, method: &str, path: &str, body: Option<(&str, &[u8])>) -> Result<Said> {
        let (address, query) = self.url.split_once('?').unwrap_or((&self.url, ""));
        let base = address.strip_suffix("/embeddings").unwrap_or(address);
        let joint = if query.is_empty() {
            ""
        } else if path.contains('?') {
            "&"
        } else {
            "?"
        };
        let address = format!("{base}{path}{joint}{query}");
        let timeout = if path.starts_with("/files") && method != "DELETE" {
            TRANSFER_MAX
        } else {
            seconds("timeout_seconds", self.config.timeout_seconds)?
        };
        let mut request = ureq::http::Request::builder().method(method).uri(&address);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let sent = match body {
            Some((kind, body)) => self.answer_to(request.header("Content-Type", kind).body(body), timeout),
            None => self.answer_to(request.body(()), timeout),
        };
        let mut response = match sent {
            Err(error) => {
                return Ok(match self.unreachable(&error, 0, 0)? {
                    Outcome::Unreachable(reason) => Said::Unheard(reason),
                    Outcome::TimedOut(reason) | Outcome::Again { reason, .. } => Said::Unclear(reason),
                    _ => Said::Unclear(error.to_string()),
                });
            }
            Ok(response) => response,
        };
        let status = response.status().as_u16();
        if status == 200 || status == 201 {
            return Ok(Said::Good(response));
        }
        let said = read(&mut response).unwrap_or_default();
        let reason = self.reason(status, &said)?;
        Ok(match status {
            429 => {
                let wait = wait_asked(response.headers()).or_else(|| answer::wait_in(&said));
                Said::Limited(with_wait(reason, wait), wait)
            }
            408 | 409 | 425 | 500 | 502..=599 => Said::Unclear(reason),
            _ => Said::Refused(status, reason),
        })
    }

    fn answer_to(
        &self,
        request: ureq::http::Result<ureq::http::Request<impl ureq::AsSendBody>>,
        timeout: Duration,
    ) -> Result<Response<Body>, ureq::Error> {
        let request = self.agent.configure_request(request?).timeout_global(Some(timeout)).build();
        self.agent.run(request)
    }

    fn no_batch_api(&self, path: &str) -> Error {
        let place = format!("{} (there is no {path})", self.shown_url);
        Error::not_found("batch API", &self.config.model, place)
    }
}

impl Batches {
    /// Remembers the service's name for a batch.
    fn is_created(&self, own: &str, batch: String) -> Result<()> {
        if let Some(known) = lock(&self.state).batches.get_mut(own) {
            known.sent.batch = Some(batch);
        }
        self.keep(own)
    }

    fn shown(&self, own: &str) -> String {
        let state = lock(&self.state);
        state.batches.get(own).and_then(|batch| batch.sent.batch.clone()).unwrap_or_else(|| own.to_owned())
    }
}

/// The places of the first input of each text that no batch has.
fn unsent(state: &State, ids: &[Id], answers: &[Option<Answer>]) -> Vec<usize> {
    let mut seen = BTreeSet::new();
    let is_open = |place: &usize| answers[*place].is_none() && !state.of_text.contains_key(&ids[*place]);
    (0..ids.len()).filter(is_open).filter(|place| seen.insert(ids[*place])).collect()
}

/// A batch of the journal; `None` where another process removed it meanwhile.
fn read_sent(path: &Path) -> Result<Option<Sent>> {
    let text = match fs_err::read(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(|error| Error::io("read", path, &error))?,
    };
    serde_json::from_slice(&text).map(Some).map_err(|error| Error::corrupt(path.display(), error))
}

fn read(response: &mut Response<Body>) -> serde_json::Result<Vec<u8>> {
    let body = response.body_mut().with_config().limit(SAID_BYTES_MAX).read_to_vec();
    body.map_err(serde::de::Error::custom)
}

fn without_query(path: &str) -> &str {
    path.split('?').next().unwrap_or(path)
}
