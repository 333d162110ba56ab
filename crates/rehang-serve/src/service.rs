//! Service of one gallery: what its requests share, and the threads beside them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::http::{Method, StatusCode};
use rehang_core::{Error, Result, Space};
use rehang_encode::Encoder;
use rehang_upgrade::{
    AutoOptions, Forecast, Gallery, Next, Observer, RunOptions, SearchAnswer, Status, Upgrade, worker_name,
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::access::{Access, TokenRole};
use crate::addresses::Addresses;
use crate::answers::{Written, json_text};
use crate::events::Events;
use crate::metrics::{Metrics, Stage};
use crate::operations::{Operations, by_state};
use crate::options::{ServeLimits, ServeOptions};
use crate::problem::ProblemDetails;
use crate::turns::{Held, Lane, Shares};

/// Number of failed items that a status names.
const FAILURES: usize = 100;
/// Time between two readings of the gallery, at least; each reading is followed by ten times its own length.
const READ_EVERY: Duration = Duration::from_secs(1);
/// Time between two readings while nobody looks at the events.
const READ_UNWATCHED_EVERY: Duration = Duration::from_secs(5);
/// Time between two looks of a thread at whether it is to end.
const LOOK: Duration = Duration::from_millis(100);
/// Time between two tries to follow a gallery whose upgrade is not filled yet, or whose encoder is refused.
const FOLLOW_EVERY: Duration = Duration::from_secs(30);
/// Time between two signs of life of this service's operations.
const TEND_EVERY: Duration = Duration::from_secs(2);

/// Observer that ends a follower when its service stops.
struct UntilItStops<'a>(&'a Service);

impl Observer for UntilItStops<'_> {
    fn wants_stop(&self) -> bool {
        self.0.is_stopping()
    }
}

/// Status of the upgrade: all fields of `rehang_upgrade::Status`, and what a person asks next.
#[derive(Serialize, JsonSchema)]
pub struct ShownStatus<'a> {
    #[serde(flatten)]
    #[schemars(with = "Map<String, Value>")]
    status: &'a Status,
    /// Next step, as `rehang_upgrade::Next`; null where it cannot be told.
    #[schemars(with = "Option<Map<String, Value>>")]
    next: Option<Next>,
    /// Forecast of the last report, as `rehang_upgrade::Forecast`; null without a report.
    #[schemars(with = "Option<Map<String, Value>>")]
    forecast: Option<Forecast>,
    /// Whether searches go to the new space.
    serves_new: bool,
    /// Sentence about what searches find now, and what they would find.
    verdict: String,
}

pub struct Service {
    pub upgrade: Arc<Upgrade>,
    pub gallery: Gallery,
    pub access: Access,
    pub metrics: Arc<Metrics>,
    pub operations: Arc<Operations>,
    pub addresses: Arc<Addresses>,
    pub events: Events,
    pub limits: ServeLimits,
    /// Whether the service itself speaks TLS; a proxy may do so before it.
    pub is_by_tls: bool,
    /// Encoders of queries that were opened, by space.
    encoders: Mutex<BTreeMap<String, Arc<dyn Encoder>>>,
    /// Status that was read last, as it is sent; `None` where there is no upgrade.
    last: Mutex<Option<Status>>,
    /// Requests that each token has left of this second.
    rates: Mutex<BTreeMap<String, (f64, Instant)>>,
    /// Turns of routes that need no token, of those that need one that reads, and of all others: neither
    /// strangers nor readers hold up who writes.
    strangers: Lane,
    readers: Lane,
    writers: Lane,
    streams: Shares,
    requests: AtomicU64,
    is_stopping: AtomicBool,
}

/// Service as one request asks it: turns and room are taken in the name of who asks.
#[derive(Clone)]
pub struct AskedService {
    service: Arc<Service>,
    /// Role that the route needs; `None` for a route of everybody.
    role: Option<TokenRole>,
    /// Whether the request changes nothing.
    is_reading: bool,
    /// Name of the token, or the address of who needs none.
    who: String,
}

impl Deref for AskedService {
    type Target = Service;

    fn deref(&self) -> &Service {
        &self.service
    }
}

impl AskedService {
    pub fn new(service: &Arc<Service>, role: Option<TokenRole>, method: &Method, who: String) -> Self {
        let is_reading = method.is_safe() || role.is_none_or(|role| role == TokenRole::Read);
        Self { service: Arc::clone(service), role, is_reading, who }
    }

    fn lane(&self) -> &Lane {
        match self.role {
            None => &self.strangers,
            Some(TokenRole::Read) => &self.readers,
            Some(TokenRole::Write | TokenRole::Operate) => &self.writers,
        }
    }

    /// Runs work that waits for the gallery on a thread, when its turn has come.
    ///
    /// # Errors
    ///
    /// Errors of [`Self::in_turn`], and the work's own.
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Service) -> Result<T> + Send + 'static,
    ) -> Result<T, ProblemDetails> {
        self.in_turn(move |service| work(service).map_err(ProblemDetails::from)).await
    }

    /// Runs work whose failure may be a problem of the request, as [`Self::blocking`] runs any.
    ///
    /// # Errors
    ///
    /// Errors of [`Self::in_place`].
    pub async fn in_turn<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Service) -> Result<T, ProblemDetails> + Send + 'static,
    ) -> Result<T, ProblemDetails> {
        self.in_place(work).await.map(|(outcome, _)| outcome)
    }

    /// Runs work as [`Self::in_turn`] does, and writes its result as JSON in the same turn: a large one would
    /// hold up everybody elsewhere.
    ///
    /// # Errors
    ///
    /// Errors of [`Self::in_place`].
    pub async fn answer<T: Serialize + 'static>(
        &self,
        work: impl FnOnce(&Service) -> Result<T, ProblemDetails> + Send + 'static,
    ) -> Result<Written, ProblemDetails> {
        let written = self.in_place(move |service| Ok(json_text(&work(service)?)?));
        written.await.map(Written::new)
    }

    /// Runs work as [`Self::in_turn`] does, and gives the place of the request too, for an answer to keep.
    ///
    /// # Errors
    ///
    /// 503 where too many wait, or the turn does not come in time: nothing is done then. 504 where the work
    /// has begun and takes too long: a change goes on. Defects; the problem of the work.
    pub async fn in_place<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Service) -> Result<T, ProblemDetails> + Send + 'static,
    ) -> Result<(T, Held), ProblemDetails> {
        let lane = self.lane();
        let place = lane.places.try_take(&self.who, 1).ok_or_else(ProblemDetails::busy)?;
        let limit = Duration::from_secs(self.limits.seconds);
        let turn = tokio::time::timeout(limit, lane.turns.take(&self.who)).await;
        let turn = turn.ok().flatten().ok_or_else(ProblemDetails::busy)?;
        let service = Arc::clone(&self.service);
        let done = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work(&service).map(|outcome| (outcome, place))
        });
        match tokio::time::timeout(limit, done).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(panic)) => Err(ProblemDetails::defect("the request", panic)),
            Err(_) if self.is_reading => Err(ProblemDetails::unanswered(self.limits.seconds)),
            Err(_) => Err(ProblemDetails::goes_on(self.limits.seconds)),
        }
    }

    /// Takes room for some bytes of a body, which ends with what is given.
    ///
    /// # Errors
    ///
    /// 503 where there is none. Nobody waits for it: all would, where each has half of a body.
    pub fn room(&self, bytes: usize) -> Result<Held, ProblemDetails> {
        self.lane().bodies.try_take(&self.who, bytes).ok_or_else(|| {
            let detail = "the bodies of requests that wait are as large together as they may be";
            ProblemDetails::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail)
        })
    }

    /// Takes the place of a stream of events, which ends with what is given.
    ///
    /// # Errors
    ///
    /// 503 where as many are open as may.
    pub fn stream(&self) -> Result<Held, ProblemDetails> {
        self.streams.try_take(&self.who, 1).ok_or_else(|| {
            let detail = "as many streams of events as may are open; close one, or ask for the status";
            ProblemDetails::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail)
        })
    }
}

impl Service {
    pub fn new(upgrade: Upgrade, options: &ServeOptions) -> Result<Arc<Self>> {
        let listen: IpAddr = options.listen.ip();
        let wrong_tokens = options.limits.wrong_tokens;
        let access = Access::open(options.tokens.as_deref(), listen, &options.hosts, wrong_tokens)?;
        let (upgrade, metrics, limits) = (Arc::new(upgrade), Arc::new(Metrics::new()), options.limits);
        let gallery = upgrade.gallery().observed_by(Arc::<Metrics>::clone(&metrics));
        if let Some(rate) = limits.rate.filter(|rate| !(rate.is_finite() && *rate > 0.0)) {
            return Err(Error::option("rate", rate, "a number above 0"));
        }
        if limits.at_once == 0 {
            return Err(Error::option("at_once", 0, "1 or more"));
        }
        // Who is alone leaves nothing to others.
        let parts = if access.has_several() { 2 } else { 1 };
        let events = Events::new();
        let addresses = Arc::new(Addresses::new(upgrade.configuration(), &upgrade.store().name()));
        let (of_operations, hidden) = (Arc::clone(&upgrade), Arc::clone(&addresses));
        Ok(Arc::new(Self {
            operations: Operations::new(of_operations, worker_name(), events.clone(), hidden),
            addresses,
            gallery,
            access,
            metrics,
            limits,
            is_by_tls: options.certificate.is_some(),
            upgrade,
            events,
            encoders: Mutex::default(),
            last: Mutex::default(),
            rates: Mutex::default(),
            strangers: Lane::new(&limits, 2),
            readers: Lane::new(&limits, parts),
            writers: Lane::new(&limits, parts),
            streams: Shares::new(limits.streams, (limits.streams / parts).max(1)),
            requests: AtomicU64::new(0),
            is_stopping: AtomicBool::new(false),
        }))
    }

    /// Takes a request of a token into account; `false` where it has asked too often.
    pub fn may_ask(&self, name: &str) -> bool {
        let Some(rate) = self.limits.rate else { return true };
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        let now = rehang_clock::now();
        let (left, since) = rates.entry(name.to_owned()).or_insert((rate.max(1.0), now));
        *left = (*left + rate * now.duration_since(*since).as_secs_f64()).min(rate.max(1.0));
        *since = now;
        let may = *left >= 1.0;
        if may {
            *left -= 1.0;
        }
        may
    }

    /// Gives the encoder for queries of a space, opened once.
    pub fn encoder(&self, space: &Space) -> Result<Arc<dyn Encoder>> {
        let mut encoders = self.encoders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(encoder) = encoders.get(&space.name) {
            return Ok(Arc::clone(encoder));
        }
        let encoder = self.upgrade.configuration().open_query_encoder(space)?;
        encoders.insert(space.name.clone(), Arc::clone(&encoder));
        Ok(encoder)
    }

    /// Lets go of the encoders of queries after a refusal that ends a run: a key, an account or another model.
    /// They are opened anew when they are needed, since a service lives on when that is mended.
    pub fn let_go_of_encoders(&self, error: &Error) {
        if error.is_unauthorised() || error.is_conflict() || error.is_budget_spent() {
            self.encoders.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }

    /// Says what an answer was found in.
    pub fn stage(&self, answer: &SearchAnswer) -> Stage {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_mixed = last.as_ref().is_some_and(|status| status.counts.adapted > 0);
        match answer.spaces.as_slice() {
            [_, _, ..] => Stage::Fused,
            [_] if answer.bridged => Stage::Bridge,
            [space] if *space == self.upgrade.configuration().new.name => {
                if is_mixed {
                    Stage::Mixed
                } else {
                    Stage::New
                }
            }
            _ => Stage::Old,
        }
    }

    /// Reads how the upgrade stands, with what is next and what is forecast, as it is sent.
    ///
    /// # Errors
    ///
    /// Not found where there is no upgrade.
    pub fn status(&self) -> Result<Value> {
        let status = self.read_status(FAILURES)?;
        self.shown(&status)
    }

    /// Reads the status with so many failures at most, whose reasons have no addresses.
    ///
    /// # Errors
    ///
    /// Not found where there is no upgrade.
    pub fn read_status(&self, failures: usize) -> Result<Status> {
        let mut status = self.upgrade.status(failures)?;
        for failure in &mut status.failures {
            failure.reason = self.addresses.hidden(&failure.reason, "");
        }
        Ok(status)
    }

    fn shown(&self, status: &Status) -> Result<Value> {
        // A fault of the configuration is for the next verb to report.
        let forecast = self.upgrade.forecast().ok().flatten();
        let next = self.upgrade.next(&AutoOptions::default(), false).ok();
        let serves_new = status.serving.as_ref() == Some(&self.upgrade.configuration().new.name);
        let verdict = crate::page::verdict(serves_new, status, forecast.as_ref());
        self.addresses.value(&ShownStatus { status, next, forecast, serves_new, verdict })
    }

    /// Numbers the requests.
    pub fn next_request(&self) -> u64 {
        self.requests.fetch_add(1, Ordering::Relaxed)
    }

    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    /// Turns new requests away, and asks operations to stop.
    pub fn begins_to_stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        self.operations.leave();
    }

    /// Ends, when the last operation has written what it had in hand.
    pub fn stop(&self) {
        self.begins_to_stop();
        while self.operations.is_at_work() {
            rehang_clock::wait(LOOK);
        }
    }

    /// Starts what goes on beside requests: reading the gallery, tending operations, and following.
    pub fn spawn_background(self: &Arc<Self>, follow: bool) -> Vec<JoinHandle<()>> {
        let service = Arc::clone(self);
        let mut threads = vec![std::thread::spawn(move || service.read_again_and_again())];
        // A long reading must not silence the operations.
        let service = Arc::clone(self);
        threads.push(std::thread::spawn(move || service.tend_operations()));
        if follow {
            let service = Arc::clone(self);
            threads.push(std::thread::spawn(move || service.follow()));
        }
        threads
    }

    fn read_again_and_again(self: Arc<Self>) {
        let mut before: Option<(u64, Instant)> = None;
        let mut sent = Value::Null;
        while !self.is_stopping() {
            let began = rehang_clock::now();
            let reading = match self.read_status(FAILURES) {
                Ok(status) => Ok(Some(status)),
                Err(error) if matches!(error.kind(), rehang_core::ErrorKind::NotFound { .. }) => Ok(None),
                Err(error) => {
                    tracing::warn!(%error, "the gallery could not be read");
                    Err(())
                }
            };
            let mut rate = 0.0;
            if let Ok(status) = &reading {
                let now = status.as_ref().map(|status| (status.counts.native, began));
                rate = before.zip(now).map_or(0.0, |((earlier, at), (native, _))| {
                    native.saturating_sub(earlier) as f64 / began.duration_since(at).as_secs_f64().max(0.001)
                });
                before = now;
            }
            self.metrics.read(reading.as_ref().map(Option::as_ref).map_err(drop), rate);
            if let Ok(status) = reading {
                // The forecast is read, and the next step found, only for who listens.
                if self.events.are_heard()
                    && let Some(Ok(shown)) = status.as_ref().map(|status| self.shown(status))
                    && shown != sent
                {
                    // A value is JSON already.
                    drop(self.events.send("status", &shown));
                    sent = shown;
                }
                *self.last.lock().unwrap_or_else(PoisonError::into_inner) = status;
            }
            let is_watched = self.events.are_heard() || self.operations.is_at_work();
            let least = if is_watched { READ_EVERY } else { READ_UNWATCHED_EVERY };
            self.rest(began, least.max(10 * began.elapsed()));
        }
    }

    fn tend_operations(self: Arc<Self>) {
        while !self.is_stopping() {
            match self.operations.tend() {
                Ok(all) => self.metrics.operations(&by_state(&all)),
                Err(error) => tracing::warn!(%error, "operations could not be tended"),
            }
            self.rest(rehang_clock::now(), TEND_EVERY);
        }
    }

    /// Waits until a time after `began` has passed, or the service ends.
    fn rest(&self, began: Instant, time: Duration) {
        while !self.is_stopping() && began.elapsed() < time {
            rehang_clock::wait(LOOK);
        }
    }

    /// Keeps the gallery caught up, as `run --follow` does, from the switch on: before it, nothing is embedded
    /// that nobody asked for.
    fn follow(self: Arc<Self>) {
        while !self.is_stopping() {
            let new = &self.upgrade.configuration().new.name;
            if !self.upgrade.store().serving().is_ok_and(|serving| serving.as_ref() == Some(new)) {
                self.rest(rehang_clock::now(), READ_UNWATCHED_EVERY);
                continue;
            }
            let options = RunOptions { follow: true, ..RunOptions::default() };
            let outcome = self.upgrade.run(&options, None, &UntilItStops(&self));
            match outcome {
                Ok(run) => tracing::info!(ending = ?run.summary.ending, "the follower has ended"),
                Err(error) if self.is_stopping() && error.is_cancelled() => return,
                Err(error) => tracing::warn!(%error, "cannot follow now"),
            }
            self.rest(rehang_clock::now(), FOLLOW_EVERY);
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::Extension;
    use axum::body::Body as Content;
    use axum::extract::FromRequest;
    use axum::http::{Request, header};
    use rehang_core::{Distance, Provenance};
    use rehang_sqlite::SqliteStore;
    use rehang_store::Ledger;
    use rehang_upgrade::{Configuration, Location};

    use super::*;
    use crate::api::{Body, search};

    #[test]
    fn a_body_is_read_when_its_turn_has_come() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("gallery.db");
        let space = |name: &str| Space::new(name, 2, Distance::Cosine, false);
        SqliteStore::create(&file).unwrap().create_space(&space("old"), Provenance::Old).unwrap();
        let configuration = Configuration::new(Location::file(&file), space("old"), space("new")).unwrap();
        let mut options = ServeOptions::new("127.0.0.1:0".parse().unwrap());
        (options.limits.at_once, options.limits.waiting) = (1, 0);
        let service = Service::new(Upgrade::new(configuration).unwrap(), &options).unwrap();
        let asked = AskedService::new(&service, Some(TokenRole::Read), &Method::POST, "somebody".into());
        let ask = async || {
            let request = Request::builder().header(header::CONTENT_TYPE, "application/json");
            let request = request.extension(asked.clone()).body(Content::from("no JSON")).unwrap();
            let body = Body::from_request(request, &()).await.unwrap();
            search(Extension(asked.clone()), body).await.unwrap_err().status
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let others = service.readers.places.try_take("others", 1).unwrap();
            assert_eq!(ask().await, 503, "nobody has looked into it");
            drop(others);
            assert_eq!(ask().await, 422);
        });
    }
}
