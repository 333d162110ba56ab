//! The metrics by name: what each is called, what it means, what it needs.
//!
//! A metric is a file of this folder and a line of [`REGISTRY`]. Curves, evaluations, intervals, bands and
//! reports are lists by metric ([`ByMetric`]) and name none of them.

mod agreement;
mod definition;
mod map;
mod map_at;
mod mrr;
mod ndcg;
mod precision;
mod recall;
mod top;

use std::fmt;
use std::ops::Index;
use std::str::FromStr;

use serde::ser::{Serialize, SerializeMap, Serializer};

use definition::{Definition, Depth, Measured, Needs};

use super::relevance::Relevance;
use crate::error::{Error, Result};

pub(crate) use definition::Head;

/// Every metric, in the order in which a curve lists them.
static REGISTRY: [&Definition; 8] = [
    &top::TOP,
    &map::MAP,
    &map_at::MAP_AT,
    &precision::PRECISION,
    &ndcg::NDCG,
    &recall::RECALL,
    &mrr::MRR,
    &agreement::AGREEMENT,
];

/// A metric at its depth, such as mAP or nDCG@10; a quality in percent, more is better.
///
/// ```
/// use rehang_core::curve::{MAP, Metric, TOP1};
///
/// assert_eq!((TOP1.id(), MAP.id(), Metric::ndcg_at(10).id()), ("top1".into(), "map".into(), "ndcg@10".into()));
/// assert_eq!(Metric::ndcg_at(10).name(), "nDCG@10");
/// ```
#[derive(Clone, Copy)]
pub struct Metric {
    definition: &'static Definition,
    /// Depth of the metric; 0 where it looks at all ranks.
    depth: usize,
}

/// CMC top-1: the share of queries whose nearest item is right.
pub const TOP1: Metric = Metric::top(1);
/// CMC top-5: the share of queries with a right answer among the five nearest.
pub const TOP5: Metric = Metric::top(5);
/// Mean average precision.
pub const MAP: Metric = Metric { definition: &map::MAP, depth: 0 };

impl Metric {
    /// CMC top-k.
    pub const fn top(depth: usize) -> Self {
        Self { definition: &top::TOP, depth }
    }

    /// mAP@k: mean average precision over the k nearest items.
    pub const fn map_at(depth: usize) -> Self {
        Self { definition: &map_at::MAP_AT, depth }
    }

    /// nDCG@k.
    pub const fn ndcg_at(depth: usize) -> Self {
        Self { definition: &ndcg::NDCG, depth }
    }

    /// precision@k.
    pub const fn precision_at(depth: usize) -> Self {
        Self { definition: &precision::PRECISION, depth }
    }

    /// recall@k.
    pub const fn recall_at(depth: usize) -> Self {
        Self { definition: &recall::RECALL, depth }
    }

    /// MRR@k.
    pub const fn mrr_at(depth: usize) -> Self {
        Self { definition: &mrr::MRR, depth }
    }

    /// agreement@k.
    pub const fn agreement_at(depth: usize) -> Self {
        Self { definition: &agreement::AGREEMENT, depth }
    }

    /// Lists every metric that these right answers allow, in the order of a curve. Metrics with a depth are
    /// taken at `depth`.
    pub fn measurable(relevance: Relevance<'_>, depth: usize) -> Vec<Self> {
        let allows = |needs: Needs| match relevance {
            Relevance::Nearest(_) => needs == Needs::Nothing,
            Relevance::Labels { .. } => needs == Needs::Answers,
            Relevance::Judgements(_) => needs != Needs::Nothing,
        };
        let mut metrics = Vec::new();
        for definition in REGISTRY.into_iter().filter(|definition| allows(definition.needs)) {
            let depths = match &definition.depth {
                Depth::All => &[0][..],
                Depth::Fixed(depths) => depths,
                Depth::Asked => &[depth],
            };
            metrics.extend(depths.iter().map(|&depth| Self { definition, depth }));
        }
        metrics
    }

    /// Sorts metrics into the order of a report: the first one carries the verdict.
    #[must_use]
    pub fn for_report(mut metrics: Vec<Self>) -> Vec<Self> {
        metrics.sort_by_key(|metric| metric.definition.place);
        metrics
    }

    /// Key of the metric in files: `top1`, `map`, `ndcg@10`, ….
    pub fn id(self) -> String {
        let id = self.definition.id;
        match self.definition.depth {
            Depth::All => id.to_owned(),
            Depth::Fixed(_) => format!("{id}{}", self.depth),
            Depth::Asked => format!("{id}@{}", self.depth),
        }
    }

    /// Key of the metric where the depth is given beside it: `top1`, `map`, `ndcg_at`, ….
    pub fn key(self) -> String {
        match self.definition.depth {
            Depth::Asked => format!("{}_at", self.definition.id),
            Depth::All | Depth::Fixed(_) => self.id(),
        }
    }

    /// Name of the metric for people: `Top-1`, `mAP`, `nDCG@10`, ….
    pub fn name(self) -> String {
        let name = self.definition.name;
        match self.definition.depth {
            Depth::All => name.to_owned(),
            Depth::Fixed(_) => format!("{name}-{}", self.depth),
            Depth::Asked => format!("{name}@{}", self.depth),
        }
    }

    /// Meaning of the metric, in one sentence.
    pub fn about(self) -> String {
        (self.definition.about)(self.depth)
    }

    /// Number of ranks that the metric looks at; `None` where it looks at all.
    pub fn depth(self) -> Option<usize> {
        (self.depth > 0).then_some(self.depth)
    }

    /// Whether the metric belongs with the first charts of a report.
    pub fn is_primary(self) -> bool {
        self.definition.is_primary
    }

    /// Measure of the metric from the first ranks; `None` where it is measured otherwise.
    pub(crate) fn head(self) -> Option<Box<dyn Head>> {
        match self.definition.measured {
            Measured::Head(make) => Some(make(self.depth)),
            Measured::Found | Measured::Precision | Measured::Agreement => None,
        }
    }

    /// First part of the metric's name with a k: `nDCG@k`.
    pub(crate) fn name_at_any_depth(self) -> String {
        format!("{}@k", self.definition.name)
    }
}

impl PartialEq for Metric {
    fn eq(&self, other: &Self) -> bool {
        (self.definition.id, self.depth) == (other.definition.id, other.depth)
    }
}

impl Eq for Metric {}

impl fmt::Debug for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id())
    }
}

/// Parses a metric by its [id](Metric::id).
///
/// ```
/// use rehang_core::curve::{MAP, Metric};
///
/// assert_eq!(("map".parse::<Metric>()?, "ndcg@10".parse::<Metric>()?), (MAP, Metric::ndcg_at(10)));
/// for nothing in ["mapp", "map@0", "ndcg", "top7"] {
///     assert!(nothing.parse::<Metric>().unwrap_err().to_string().contains("top1, top5, map, map@K"));
/// }
/// # Ok::<(), rehang_core::Error>(())
/// ```
impl FromStr for Metric {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let asked_depth =
            text.rsplit_once('@').and_then(|(_, depth)| depth.parse().ok()).filter(|&depth| depth > 0);
        let all = REGISTRY.into_iter().flat_map(|definition| {
            let depths = match definition.depth {
                Depth::All => vec![0],
                Depth::Fixed(depths) => depths.to_vec(),
                Depth::Asked => asked_depth.into_iter().collect(),
            };
            depths.into_iter().map(move |depth| Self { definition, depth })
        });
        let known_names = "top1, top5, map, map@K, precision@K, ndcg@K, recall@K, mrr@K or agreement@K";
        all.into_iter()
            .find(|metric| metric.id() == text)
            .ok_or_else(|| Error::option("metric", text, known_names))
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id())
    }
}

/// One value for each of several metrics, in the order in which they were measured. In JSON it is a map by
/// [`Metric::key`], where the depth is given once beside all of them.
#[derive(Debug, Clone, PartialEq)]
pub struct ByMetric<T>(Vec<(Metric, T)>);

impl<T> Default for ByMetric<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> ByMetric<T> {
    /// Value of a metric; `None` where it was not measured.
    pub fn get(&self, metric: Metric) -> Option<&T> {
        self.0.iter().find(|(other, _)| *other == metric).map(|(_, value)| value)
    }

    /// Iterates over the metrics and their values.
    pub fn iter(&self) -> impl Iterator<Item = (Metric, &T)> {
        self.0.iter().map(|(metric, value)| (*metric, value))
    }

    /// Iterates over the metrics.
    pub fn metrics(&self) -> impl Iterator<Item = Metric> {
        self.0.iter().map(|&(metric, _)| metric)
    }

    /// Converts the value of each metric by `convert`.
    pub fn map<U>(&self, mut convert: impl FnMut(&T) -> U) -> ByMetric<U> {
        self.iter().map(|(metric, value)| (metric, convert(value))).collect()
    }
}

impl<T> FromIterator<(Metric, T)> for ByMetric<T> {
    fn from_iter<I: IntoIterator<Item = (Metric, T)>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

/// Returns the value of a metric that was measured; [`TOP1`], [`TOP5`] and [`MAP`] always are.
///
/// # Panics
///
/// Panics where the metric was not measured; [`ByMetric::get`] returns `None` instead.
impl<T> Index<Metric> for ByMetric<T> {
    type Output = T;

    fn index(&self, metric: Metric) -> &T {
        self.get(metric).unwrap_or_else(|| panic!("{metric} was not measured"))
    }
}

impl<T: Serialize> Serialize for ByMetric<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(self.0.len()))?;
        for (metric, value) in self.iter() {
            map.serialize_entry(&metric.key(), value)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_an_id_of_its_own_and_says_what_it_means_in_a_sentence() {
        let labels = [0];
        let labelled = Relevance::Labels { gallery: &labels, queries: None };
        let mut ids = Vec::new();
        for metric in [labelled, Relevance::Nearest(7)].into_iter().flat_map(|of| Metric::measurable(of, 7)) {
            assert!(!metric.about().is_empty() && metric.about().ends_with('.'));
            ids.push(metric.id());
        }
        let count = ids.len();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), count);
    }
}
