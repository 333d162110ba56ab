//! Collecting: the files of a batch that is over, what each line of them says, and whether its vectors are
//! those of the model.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use rehang_core::Result;
use serde::Deserialize;
use serde_json::Value;

use super::super::{Ended, Http, TOKENS_MORE, answer, explained};
use super::Call;
use super::kept::{Batches, Id, Stage, WITNESSES, id_of};
use super::service::ServiceBatch;
use crate::contract::{Answer, Input, ItemFailure};
use crate::json::read_json;
use crate::meter::lock;
use crate::rider::Known;

/// Largest number of bytes of a character.
const UTF8_BYTES_MAX: f64 = 4.0;

/// Line of a file that a batch gave.
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

/// Contents of a batch's files.
#[derive(Default)]
struct Files {
    answers: HashMap<Id, Answer>,
    /// Texts of lines which say that they were not tried.
    unexecuted: BTreeSet<Id>,
    /// Tokens that the lines count. `lines_with_tokens` is the number of lines that count any.
    tokens: u64,
    lines_with_tokens: usize,
    /// Whether there is a file.
    is_any: bool,
}

/// Result of a batch that is over.
#[derive(Default)]
pub(super) struct BatchEnd {
    /// Reason why some of its texts were not embedded, and may be sent again.
    pub(super) why: String,
    /// Whether this process has sent the batch: sent again at once, it would come to the same.
    pub(super) is_own: bool,
    /// Number of texts that the batch had.
    pub(super) texts: usize,
    /// Whether the service takes fewer texts at a time.
    pub(super) is_limit: bool,
    pub(super) is_cancelled: bool,
}

impl Http {
    /// Reads the results of a batch that is over; `None` where its files have less than it says.
    pub(super) fn collect(
        &self,
        batches: &Batches,
        own_name: &Arc<str>,
        service_batch: &ServiceBatch,
        heard: Duration,
    ) -> Result<Option<BatchEnd>> {
        let (texts, is_first): (Vec<Id>, bool) = {
            let state = lock(&batches.state);
            let Some(batch) = state.batches.get(own_name) else { return Ok(Some(BatchEnd::default())) };
            let texts = batch.sent.texts.iter().filter_map(|text| id_of(text));
            (texts.collect(), !batch.stage.is_over())
        };
        let mut files = Files::default();
        if let Some(short) = self.read_files(service_batch, &mut files)? {
            let reason = format!(
                "batch {} {short} (all are sent again once {} and the service's {} are removed)",
                service_batch.id,
                batches.path(own_name).display(),
                service_batch.input_file_id.as_deref().unwrap_or("file of its texts")
            );
            return self.tolerate_silence(batches, heard, &reason);
        }
        if service_batch.status == "failed" {
            self.blame_lines(service_batch, &texts, &mut files.answers);
        }
        let vectors = files.answers.values().filter(|answer| answer.is_ok()).count();
        let without: Vec<Id> = texts.iter().copied().filter(|id| !files.answers.contains_key(id)).collect();
        let (mut texts_left, mut lost) = (without.len(), 0);
        if service_batch.status == "completed" && files.is_any {
            for id in without.into_iter().filter(|id| !files.unexecuted.contains(id)) {
                let reason =
                    format!("{} has no answer for it in batch {}", self.check.encoder(), service_batch.id);
                files.answers.insert(id, Err(ItemFailure::Temporary(reason)));
                (texts_left, lost) = (texts_left - 1, lost + 1);
            }
        }
        let why = if texts_left > 0 {
            self.why_left(service_batch, &files, texts_left, texts.len())
        } else {
            String::new()
        };
        let mut state = lock(&batches.state);
        state.of_text.retain(|id, of| of != own_name || files.answers.contains_key(id));
        state.awaited.remove(own_name);
        let Some(batch) =
            state.batches.get_mut(own_name).filter(|batch| !(is_first && batch.stage.is_over()))
        else {
            // Another worker that waits for the batch has read it meanwhile.
            return Ok(Some(BatchEnd::default()));
        };
        let came = BatchEnd {
            why,
            is_own: matches!(batch.stage, Stage::Own),
            texts: texts.len(),
            is_limit: service_batch.status == "failed" && service_batch.errors().iter().any(is_of_limit),
            // A later run sends again what somebody cancelled.
            is_cancelled: service_batch.status == "cancelled" && texts_left > 0 && !batch.sent.is_counted,
        };
        let reckoned = batch.sent.tokens;
        let used = self.used(&files, vectors + lost, reckoned, texts.len());
        // Items and tokens that the batch did not take are put back by the process that counts it. Tokens
        // that it took beside are counted by the first process to read it.
        if let Some(counted) = batch.counted.as_mut().filter(|_| is_first) {
            let back = (texts_left as u64, reckoned.saturating_sub(used));
            counted.items = counted.items.saturating_sub(back.0);
            counted.tokens = counted.tokens.saturating_sub(back.1);
            self.unreserve(texts_left, back.1);
        }
        // Texts without a vector may be sent again, by a later run too.
        batch.sent.texts.retain(|text| {
            let answer = id_of(text).and_then(|id| files.answers.get(&id)?.clone().ok());
            answer.is_some_and(|vector| !matches!(self.check.vector(text, vector), Ok(Err(_))))
        });
        batch.sent.is_counted = true;
        let with_vector = batch.sent.texts.clone();
        let is_compared = matches!(batch.stage, Stage::Over { is_compared: true, .. });
        batch.stage = Stage::Over { answers: files.answers, is_compared };
        drop(state);
        let before = batches.change(own_name, |sent| {
            sent.is_counted = true;
            sent.texts.clone_from(&with_vector);
        })?;
        if is_first && before.is_none_or(|before| !before.is_counted) {
            self.meter.tokens(used.saturating_sub(reckoned));
        }
        Ok(Some(came))
    }

    /// Reads the files of a batch; gives what is missing where they have less than the batch says.
    ///
    /// Vectors that a service says it has are paid for, and a file may be short or gone for a moment.
    fn read_files(&self, service_batch: &ServiceBatch, files: &mut Files) -> Result<Option<String>> {
        let read = |file: &Option<String>, files: &mut Files| -> Result<()> {
            let Some(file) = file else { return Ok(()) };
            files.is_any |= self.lines_of(file, &mut |line| self.take_line(line, files))?;
            Ok(())
        };
        read(&service_batch.output_file_id, files)?;
        if (files.answers.len() as u64) < service_batch.count("completed") {
            return Ok(Some(format!(
                "has embedded {} texts, and its output ({}) has {}",
                service_batch.count("completed"),
                service_batch.output_file_id.as_deref().unwrap_or("no file"),
                files.answers.len()
            )));
        }
        read(&service_batch.error_file_id, files)?;
        Ok(None)
    }

    /// Blames the lines that the error of a whole batch names, unless it names all.
    fn blame_lines(&self, service_batch: &ServiceBatch, texts: &[Id], answers: &mut HashMap<Id, Answer>) {
        let line = |error: &Value| error.get("line")?.as_u64()?.checked_sub(1).map(|line| line as usize);
        let named: BTreeMap<usize, &Value> =
            service_batch.errors().iter().filter_map(|error| Some((line(error)?, error))).collect();
        if named.len() < texts.len() {
            answers.extend(named.into_iter().filter_map(|(line, error)| {
                let reason = format!("{}: {}", self.check.encoder(), self.words_of(error));
                Some((*texts.get(line)?, Err(ItemFailure::Permanent(reason))))
            }));
        }
    }

    fn words_of(&self, error: &Value) -> String {
        answer::message(error.to_string().as_bytes(), self.secrets.iter().map(String::as_str))
    }

    fn why_left(&self, service_batch: &ServiceBatch, files: &Files, texts_left: usize, all: usize) -> String {
        let reason = service_batch.errors().first().map(|error| format!(": {}", self.words_of(error)));
        let shown = match service_batch.status.as_str() {
            "completed" if !files.is_any => "completed, and its files are gone",
            status => status,
        };
        format!(
            "batch {} is {shown}{}; {texts_left} of its {all} texts were not embedded and are sent again by the next run",
            service_batch.id,
            reason.unwrap_or_default()
        )
    }

    /// Tokens that a batch took, of which so many texts were embedded.
    fn used(&self, files: &Files, embedded: usize, reckoned: u64, texts: usize) -> u64 {
        // A text whose line counts no tokens takes as many as it was reckoned to.
        let tokens_per_text = reckoned / texts.max(1) as u64;
        let used = files.tokens + tokens_per_text * embedded.saturating_sub(files.lines_with_tokens) as u64;
        // A service's count is not trusted further than the texts could have tokens.
        let bytes = (reckoned as f64 * self.config.characters_per_token * UTF8_BYTES_MAX) as u64;
        used.min(bytes + TOKENS_MORE * texts as u64)
    }

    /// Takes in a line of a file that a batch gave. Of several lines for a text, the first one with a vector
    /// counts.
    fn take_line(&self, line: &[u8], files: &mut Files) {
        let parsed: Option<Line> = read_json(line).ok();
        if let Some(Line { custom_id, response: Some(response), error: Value::Null }) = parsed
            && response.status_code.is_none_or(|status| status == 200)
            && let (Some(id), Some(body)) = (id_of(&custom_id), response.body)
            && let Ok(answer) = answer::vectors_of(body, 1)
        {
            if !matches!(files.answers.get(&id), Some(Ok(_))) {
                files.lines_with_tokens += usize::from(answer.tokens.is_some());
                files.tokens += answer.tokens.unwrap_or(0);
                files.answers.extend(answer.vectors.into_iter().map(|vector| (id, Ok(vector))));
            }
            return;
        }
        let Ok(line) = read_json::<Value>(line) else { return };
        let Some(id) = line.get("custom_id").and_then(Value::as_str).and_then(id_of) else { return };
        if files.answers.contains_key(&id) {
            return;
        }
        let response = line.get("response").filter(|response| !response.is_null());
        let body = response.and_then(|response| response.get("body"));
        let error = line.get("error").filter(|error| !error.is_null()).or(body).cloned().unwrap_or_default();
        let code = error.pointer("/code").and_then(Value::as_str).unwrap_or_default();
        let message = self.words_of(&error);
        let words = format!("{code} {message}").to_lowercase();
        let of_the_end = ["expired", "cancelled", "canceled", "completion window"];
        if response.is_none() && of_the_end.iter().any(|word| words.contains(word)) {
            files.unexecuted.insert(id);
            return;
        }
        let status = response.and_then(|response| response.get("status_code")?.as_u64());
        let shown = status.map(|status| format!("status {status}: ")).unwrap_or_default();
        let reason = format!("{}: {shown}{message}", self.check.encoder());
        let failure = match status {
            Some(400 | 413 | 414 | 422 | 451) => ItemFailure::Permanent(reason),
            _ => ItemFailure::Temporary(reason),
        };
        files.answers.insert(id, Err(failure));
    }
}

impl Call<'_> {
    /// Compares some vectors of a batch with those that the service gives directly, and a known text's vector
    /// with the one that it gave directly at first.
    ///
    /// # Errors
    ///
    /// A conflict where they are of two models.
    pub(super) fn compare_with_direct(&self, own_name: &Arc<str>, places: &[usize]) -> Result<()> {
        let http = self.http;
        let good = self.witnesses(own_name, places)?;
        if good.is_empty() {
            return Ok(());
        }
        let turn = http.rider.turn();
        let known_input = turn.as_ref().map(|turn| turn.known.input());
        let direct_inputs: Vec<Input<'_>> = good.iter().map(|(input, _)| *input).chain(known_input).collect();
        let ended = match http.insist(&direct_inputs, usize::MAX) {
            Err(error) if error.is_budget_spent() => None,
            ended => Some(ended?),
        };
        let Some(Ended::Vectors(mut vectors)) = ended else {
            http.rider.came_alone(places.len());
            return Ok(());
        };
        if let Some(turn) = &turn {
            http.expect_itself(turn, vectors.pop().unwrap_or_default())?;
        }
        for ((input, vector), now) in good.iter().zip(vectors) {
            let Ok(now) = http.check.vector(input.id, now)? else { continue };
            let known_item = Arc::new(Known::new(input, vector));
            http.rider.expect_same(http.check.encoder(), &known_item, &now, http.ask())?;
        }
        if turn.is_none() {
            let (inputs, answers): (Vec<_>, Vec<Answer>) =
                good.into_iter().map(|(input, vector)| (input, Ok(vector))).unzip();
            http.rider.learn(&inputs, &answers.iter().map(Some).collect::<Vec<_>>());
        }
        if let Some(batch) = lock(&self.batches.state).batches.get_mut(own_name)
            && let Stage::Over { is_compared, .. } = &mut batch.stage
        {
            *is_compared = true;
        }
        Ok(())
    }

    /// Some inputs with the vectors that a batch has for them; none where some were compared already.
    fn witnesses(&self, own_name: &Arc<str>, places: &[usize]) -> Result<Vec<(Input<'_>, Vec<f32>)>> {
        let (http, state) = (self.http, lock(&self.batches.state));
        let stage = state.batches.get(own_name).map(|batch| &batch.stage);
        let Some(Stage::Over { answers, is_compared: false }) = stage else { return Ok(Vec::new()) };
        let candidates: Vec<(Input<'_>, &Vec<f32>)> = places
            .iter()
            .filter_map(|&place| Some((self.inputs[place], answers.get(&self.ids[place])?.as_ref().ok()?)))
            .collect();
        let mut good = Vec::new();
        for &(input, vector) in candidates.iter().step_by(candidates.len().div_ceil(WITNESSES).max(1)) {
            let vector = http.check.vector(input.id, vector.clone()).map_err(|error| http.blame(error))?;
            good.extend(vector.ok().map(|vector| (input, vector)));
        }
        Ok(good)
    }

    /// Hands out the answers that a batch has for some inputs.
    pub(super) fn take_answers(&mut self, own_name: &Arc<str>, places: &[usize]) -> Result<()> {
        let (http, mut state) = (self.http, lock(&self.batches.state));
        let stage = state.batches.get_mut(own_name).map(|batch| &mut batch.stage);
        let Some(Stage::Over { answers: of_batch, .. }) = stage else { return Ok(()) };
        let mut failed = BTreeSet::new();
        for &place in places {
            let (input, id) = (&self.inputs[place], self.ids[place]);
            let Some(answer) = of_batch.get(&id) else { continue };
            self.answers[place] = Some(match answer {
                Ok(vector) => {
                    http.check.vector(input.id, vector.clone()).map_err(|error| http.blame(error))?
                }
                Err(ItemFailure::Permanent(reason)) => {
                    Err(ItemFailure::Permanent(explained(input.source, reason.clone())))
                }
                Err(other) => Err(other.clone()),
            });
            if answer.is_err() {
                failed.insert(id);
            }
        }
        for &place in places {
            of_batch.remove(&self.ids[place]);
        }
        // Texts that failed are sent again where they are tried again.
        state.of_text.retain(|id, of| of != own_name || !failed.contains(id));
        Ok(())
    }
}

/// Whether an error says that too much waits at the service.
fn is_of_limit(error: &Value) -> bool {
    error.get("code").and_then(Value::as_str).is_some_and(|code| code.contains("limit"))
}
