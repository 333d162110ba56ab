//! Metrics of searches, writes and the upgrade, in the text that Prometheus reads.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::text::encode_registry;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use rehang_upgrade::{Observation, Observer, Phase, Request, Status};

/// Number that goes up and down.
type Number = Gauge<f64, AtomicU64>;

/// Upper ends of the buckets of durations, in seconds.
const BUCKETS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

/// Label by what was searched.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Searched {
    stage: Stage,
}

rehang_core::named! {
    /// Vectors and queries that answer a search at some moment.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum Stage ("stage") {
        /// Old vectors by old queries.
        Old = "old",
        /// Old vectors over a bridge.
        Bridge = "bridge",
        /// Native and adapted vectors by new queries.
        Mixed = "mixed",
        /// Vectors of both spaces by queries of both models.
        Fused = "fused",
        /// Native vectors alone.
        New = "new",
    }
}

impl EncodeLabelValue for Stage {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        EncodeLabelValue::encode(&self.name(), encoder)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct State {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InPhase {
    phase: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    route: String,
    status: u16,
}

/// Everything that is counted, and what of the upgrade was read last.
pub struct Metrics {
    registry: Registry,
    searches: Family<Searched, Counter>,
    search_failures: Counter,
    search_seconds: Family<Searched, Histogram>,
    written: Counter,
    deleted: Counter,
    write_seconds: Histogram,
    requests: Family<Answered, Counter>,
    items: Family<State, Number>,
    phase: Family<InPhase, Number>,
    operations: Family<State, Number>,
    /// Gauges of a status by their names.
    gauges: Vec<(&'static str, Number)>,
}

/// Gauges that a status fills, with their help.
const GAUGES: [(&str, &str); 15] = [
    ("rehang_gallery_up", "1 where the last reading of the gallery succeeded"),
    ("rehang_collected_seconds", "Unix time of the last reading of the gallery"),
    ("rehang_items_not_found", "Items that no search finds"),
    ("rehang_not_found_seconds", "How long some items have not been found"),
    ("rehang_native_fraction", "Share of the items that are native, 0 to 1"),
    ("rehang_backfill_items_per_second", "Items that became native a second, between two readings"),
    ("rehang_spent_money", "Spending of all runs on the encoder"),
    ("rehang_spent_tokens", "Tokens that all runs sent"),
    ("rehang_sigma_mean", "Mean of sigma squared of the items backfilled last"),
    ("rehang_sigma_error_mean", "Mean of the true squared errors of the same items"),
    ("rehang_sigma_alarm", "1 where sigma squared and the true errors disagree"),
    ("rehang_workers", "Workers that re-embed"),
    ("rehang_leased_items", "Items that workers have in hand"),
    ("rehang_refit_seconds", "How long a refit has been under way; 0 where none is"),
    ("rehang_run_wanted", "1 while items wait to be embedded and nothing keeps a run from it"),
];

impl Metrics {
    pub fn new() -> Self {
        let histogram = || Histogram::new(BUCKETS);
        let mut registry = Registry::default();
        let (searches, search_failures) = (Family::default(), Counter::default());
        let search_seconds = Family::<Searched, Histogram>::new_with_constructor(|| Histogram::new(BUCKETS));
        let (written, deleted, write_seconds) = (Counter::default(), Counter::default(), histogram());
        let (requests, items, phase) = (Family::default(), Family::default(), Family::default());
        let operations = Family::default();
        // The library ends the names of counted values in `_total`, and help in a full stop.
        registry.register("rehang_searches", "Queries that were answered", Family::clone(&searches));
        registry.register("rehang_search_failures", "Searches that failed", Counter::clone(&search_failures));
        registry.register("rehang_search_seconds", "Time that searches took", search_seconds.clone());
        registry.register("rehang_items_written", "Items that were written", Counter::clone(&written));
        registry.register("rehang_items_deleted", "Items that were deleted", Counter::clone(&deleted));
        registry.register("rehang_write_seconds", "Time that writes took", write_seconds.clone());
        registry.register("rehang_requests", "Requests that were answered", Family::clone(&requests));
        registry.register(
            "rehang_items",
            "Items by the state of their vector in the new space",
            Family::clone(&items),
        );
        registry.register("rehang_upgrade_phase", "1 for the phase of the upgrade", Family::clone(&phase));
        registry.register("rehang_operations", "Operations by their state", Family::clone(&operations));
        let mut gauges = Vec::new();
        for (name, help) in GAUGES {
            let gauge = Number::default();
            registry.register(name, help, gauge.clone());
            gauges.push((name, gauge));
        }
        Self {
            registry,
            searches,
            search_failures,
            search_seconds,
            written,
            deleted,
            write_seconds,
            requests,
            items,
            phase,
            operations,
            gauges,
        }
    }

    /// Writes all metrics in version 0.0.4 of Prometheus' text format, which every Prometheus takes. The
    /// library writes that of OpenMetrics, where the family of a counter is named without its `_total`.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode_registry(&mut text, &self.registry)?;
        let counter = |line: &str| Some(line.strip_prefix("# TYPE ")?.strip_suffix(" counter")?.to_owned());
        let counters: Vec<String> = text.lines().filter_map(counter).collect();
        for name in counters {
            for comment in ["# HELP", "# TYPE"] {
                text = text.replace(&format!("{comment} {name} "), &format!("{comment} {name}_total "));
            }
        }
        Ok(text)
    }

    pub fn searched(&self, stage: Stage, queries: usize, time: Duration) {
        let of = Searched { stage };
        self.searches.get_or_create(&of).inc_by(queries as u64);
        self.search_seconds.get_or_create(&of).observe(time.as_secs_f64());
    }

    /// Counts a search that failed, and not by its caller's fault.
    pub fn search_failed(&self) {
        self.search_failures.inc();
    }

    pub fn wrote(&self, time: Duration) {
        self.write_seconds.observe(time.as_secs_f64());
    }

    pub fn answered(&self, route: &str, status: u16) {
        self.requests.get_or_create(&Answered { route: route.to_owned(), status }).inc();
    }

    pub fn operations(&self, by_state: &[(&'static str, usize)]) {
        for &(state, count) in by_state {
            self.operations.get_or_create(&State { state }).set(count as f64);
        }
    }

    /// Takes in a reading of the gallery: a status, `None` where there is no upgrade, or an error. `rate` is
    /// the number of items a second since the reading before.
    pub fn read(&self, reading: Result<Option<&Status>, ()>, rate: f64) {
        self.set("rehang_gallery_up", f64::from(u8::from(reading.is_ok())));
        let Ok(status) = reading else { return };
        let now_ms = rehang_clock::unix_ms();
        self.set("rehang_collected_seconds", now_ms as f64 / 1000.0);
        self.phase.clear();
        if let Some(status) = status {
            self.phase.get_or_create(&InPhase { phase: status.phase.name() }).set(1.0);
        }
        let Some(status) = status else { return self.items.clear() };
        let counts = &status.counts;
        let lacking = counts.lacking;
        for (state, count) in [
            ("native", counts.native),
            ("adapted", counts.adapted),
            ("lacking", lacking),
            ("failed", counts.failed),
            ("without_source", counts.without_source),
        ] {
            self.items.get_or_create(&State { state }).set(count as f64);
        }
        let since = status.follower.as_ref().and_then(|follower| follower.lacking_since_ms);
        let waited = since.map_or(0.0, |since| now_ms.saturating_sub(since) as f64 / 1000.0);
        let sigma = status.sigma.as_ref();
        let is_wanted = matches!(status.phase, Phase::Filled | Phase::Finished)
            && status.request == Request::Run
            && counts.to_embed() > 0;
        // The status counts such items only while the new space serves; without a count it is not 0.
        self.set("rehang_items_not_found", status.not_found.map_or(f64::NAN, |count| count as f64));
        for (name, value) in [
            ("rehang_not_found_seconds", waited),
            ("rehang_native_fraction", status.fraction),
            ("rehang_backfill_items_per_second", rate),
            ("rehang_spent_money", status.spent.money),
            ("rehang_spent_tokens", status.spent.tokens as f64),
            ("rehang_sigma_mean", sigma.map_or(0.0, |sigma| sigma.mean_sigma2)),
            ("rehang_sigma_error_mean", sigma.map_or(0.0, |sigma| sigma.mean_squared_error)),
            ("rehang_sigma_alarm", f64::from(u8::from(sigma.is_some_and(|sigma| sigma.alarm)))),
            ("rehang_workers", status.at_work.len() as f64),
            ("rehang_leased_items", status.at_work.iter().map(|work| work.items).sum::<u64>() as f64),
            ("rehang_refit_seconds", status.refitting.map_or(0.0, |refit| refit.seconds as f64)),
            ("rehang_run_wanted", f64::from(u8::from(is_wanted))),
        ] {
            self.set(name, value);
        }
    }

    fn set(&self, name: &str, value: f64) {
        if let Some((_, gauge)) = self.gauges.iter().find(|(of, _)| *of == name) {
            gauge.set(value);
        }
    }
}

impl Observer for Metrics {
    fn observe(&self, observation: &Observation<'_>) {
        match observation {
            Observation::Written { items } => drop(self.written.inc_by(*items as u64)),
            Observation::Deleted { items } => drop(self.deleted.inc_by(*items as u64)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_stands_under_the_help_and_the_type_of_its_family() {
        let metrics = Metrics::new();
        metrics.searched(Stage::Mixed, 3, Duration::from_millis(2));
        metrics.wrote(Duration::from_millis(1));
        metrics.answered("/v1/search", 200);
        metrics.operations(&[("done", 1)]);
        let text = metrics.text().unwrap();
        assert!(text.contains("\nrehang_searches_total{stage=\"mixed\"} 3\n"), "{text}");
        let (mut helped, mut family, mut kind) = ("", "", "");
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                helped = help.split_once(' ').unwrap().0;
            } else if let Some(typed) = line.strip_prefix("# TYPE ") {
                (family, kind) = typed.split_once(' ').unwrap();
                assert_eq!(family, helped);
                assert_eq!(family.ends_with("_total"), kind == "counter", "{line}");
            } else {
                let name = line.split(['{', ' ']).next().unwrap();
                let parts: &[&str] = if kind == "histogram" { &["_bucket", "_count", "_sum"] } else { &[""] };
                assert!(name.strip_prefix(family).is_some_and(|part| parts.contains(&part)), "{line}");
            }
        }
    }
}
