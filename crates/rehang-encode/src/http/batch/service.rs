//! Questions about files and batches, and what each status of an answer means.

use std::io::{BufRead as _, BufReader};
use std::time::Duration;

use rehang_core::Result;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use ureq::Body;
use ureq::http::Response;

use super::super::pace::wait_asked;
use super::super::{Http, Limited, Outcome, answer, with_wait};
use crate::config::keys::seconds;

/// Longest time that a file may take on its way.
const TRANSFER_MAX: Duration = Duration::from_mins(30);
/// Largest number of pages of the list that are read. `PAGE` is the number of batches of a page.
pub(super) const PAGES_MAX: usize = 10;
const PAGE: usize = 100;
/// Largest number of bytes of an answer that is no file.
const SAID_BYTES_MAX: u64 = 64 << 20;

/// Outcome of one question.
pub(super) enum Reply {
    Good(Response<Body>),
    /// The service refuses everybody for its limits.
    Limited(String, Option<Duration>),
    /// Nobody heard the question.
    Unheard(String),
    /// Nobody knows whether the question was heard.
    Unclear(String),
    Refused(u16, String),
}

/// Batch as the service has it.
#[derive(Debug, Deserialize)]
pub(super) struct ServiceBatch {
    pub(super) id: String,
    pub(super) status: String,
    #[serde(default)]
    pub(super) input_file_id: Option<String>,
    #[serde(default)]
    pub(super) output_file_id: Option<String>,
    #[serde(default)]
    pub(super) error_file_id: Option<String>,
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

impl ServiceBatch {
    pub(super) fn is_over(&self) -> bool {
        matches!(self.status.as_str(), "completed" | "failed" | "expired" | "cancelled")
    }

    pub(super) fn count(&self, name: &str) -> u64 {
        self.request_counts.get(name).and_then(Value::as_u64).unwrap_or(0)
    }

    pub(super) fn created_ms(&self) -> Option<u64> {
        self.created_at.as_u64().map(|seconds| seconds.saturating_mul(1000))
    }

    pub(super) fn mark(&self, name: &str) -> Option<&str> {
        self.metadata.get(name)?.as_str()
    }

    /// Errors of the whole batch.
    pub(super) fn errors(&self) -> &[Value] {
        let list = |path| self.errors.pointer(path).and_then(Value::as_array);
        list("/data").or_else(|| list("")).map_or(&[], Vec::as_slice)
    }
}

impl Http {
    /// Lists the batches that the service was asked for since some moment, and maybe earlier ones, the latest
    /// first. Gives whether these are all of them.
    pub(super) fn list(&self, since_ms: u64) -> Result<(Vec<ServiceBatch>, bool)> {
        #[derive(Deserialize)]
        struct Page {
            data: Vec<ServiceBatch>,
            #[serde(default)]
            has_more: bool,
        }
        let (mut all, mut after) = (Vec::new(), String::new());
        for _ in 0..PAGES_MAX {
            let path = format!("/batches?limit={PAGE}{after}");
            let Some(bytes) = self.insist_at(&path, None, &mut |response| read(response).ok())? else {
                return Ok((all, false));
            };
            let page: Page = serde_json::from_slice(&bytes).map_err(|error| {
                self.unavailable(format!("its list of batches has another form ({error})"))
            })?;
            let last = page.data.last();
            let is_old = last.and_then(ServiceBatch::created_ms).is_some_and(|at_ms| at_ms < since_ms);
            let next = last.filter(|_| page.has_more && !is_old).map(|last| format!("&after={}", last.id));
            all.extend(page.data);
            let Some(next) = next else { return Ok((all, true)) };
            after = next;
        }
        Ok((all, false))
    }

    /// Reads a file of the service, line by line; gives whether it is there. A line may come twice, where the
    /// file broke off.
    pub(super) fn lines_of(&self, file: &str, take: &mut dyn FnMut(&[u8])) -> Result<bool> {
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

    /// Asks the service to delete a file that is of no use any more. The service may keep it.
    pub(super) fn delete(&self, file: &str) {
        drop(self.ask_at("DELETE", &format!("/files/{file}"), None));
    }

    /// Asks until there is a whole answer, as often as a request may be sent; `None` where there is no such
    /// thing.
    pub(super) fn insist_at(
        &self,
        path: &str,
        body: Option<(&str, &[u8])>,
        take: &mut dyn FnMut(&mut Response<Body>) -> Option<Vec<u8>>,
    ) -> Result<Option<Vec<u8>>> {
        let method = if body.is_some() { "POST" } else { "GET" };
        let mut failures = 0;
        loop {
            let reason = match self.ask_until_heard(method, path, body)? {
                Reply::Good(mut response) => match take(&mut response) {
                    Some(bytes) => return Ok(Some(bytes)),
                    None => "its answer broke off".into(),
                },
                Reply::Refused(404 | 405 | 410 | 501, _) => return Ok(None),
                Reply::Refused(_, reason) => return Err(self.unavailable(reason)),
                Reply::Unclear(reason) | Reply::Unheard(reason) | Reply::Limited(reason, _) => reason,
            };
            failures += 1;
            self.rest(path, &reason, failures)?;
        }
    }

    /// Asks once, and again where the question was certainly not heard: the service refuses everybody for its
    /// limits, or cannot be reached.
    pub(super) fn ask_until_heard(
        &self,
        method: &str,
        path: &str,
        body: Option<(&str, &[u8])>,
    ) -> Result<Reply> {
        let mut limited = Limited { times: 0, since: self.clock.now(), served: 0 };
        let mut failures = 0;
        loop {
            self.expect_not_stopped()?;
            match self.ask_at(method, path, body)? {
                Reply::Limited(reason, wait) => self.keep_to_limits(&mut limited, reason, wait)?,
                Reply::Unheard(reason) => {
                    failures += 1;
                    self.rest(path, &reason, failures)?;
                }
                reply => return Ok(reply),
            }
        }
    }

    /// Waits after so many failures of a request, or says that these were all attempts.
    fn rest(&self, path: &str, reason: &str, failures: usize) -> Result<()> {
        if failures >= self.config.attempts {
            return Err(
                self.unavailable(format!("{reason} ({} was asked {failures} times)", without_query(path)))
            );
        }
        self.wait_until(self.clock.now() + self.backoff.wait(failures as u32))
    }

    /// Asks once.
    pub(super) fn ask_at(&self, method: &str, path: &str, body: Option<(&str, &[u8])>) -> Result<Reply> {
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
                    Outcome::Unreachable(reason) => Reply::Unheard(reason),
                    Outcome::TimedOut(reason) | Outcome::Again { reason, .. } => Reply::Unclear(reason),
                    _ => Reply::Unclear(error.to_string()),
                });
            }
            Ok(response) => response,
        };
        let status = response.status().as_u16();
        if status == 200 || status == 201 {
            return Ok(Reply::Good(response));
        }
        let refusal = read(&mut response).unwrap_or_default();
        let reason = self.reason(status, &refusal)?;
        Ok(match status {
            429 => {
                let wait = wait_asked(response.headers()).or_else(|| answer::wait_in(&refusal));
                Reply::Limited(with_wait(reason, wait), wait)
            }
            408 | 409 | 425 | 500 | 502..=599 => Reply::Unclear(reason),
            _ => Reply::Refused(status, reason),
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
}

pub(super) fn json_of<T: DeserializeOwned>(response: &mut Response<Body>) -> serde_json::Result<T> {
    serde_json::from_slice(&read(response)?)
}

pub(super) fn read(response: &mut Response<Body>) -> serde_json::Result<Vec<u8>> {
    let body = response.body_mut().with_config().limit(SAID_BYTES_MAX).read_to_vec();
    body.map_err(serde::de::Error::custom)
}

fn without_query(path: &str) -> &str {
    path.split('?').next().unwrap_or(path)
}
