//! Metrics that a curve or an evaluation measures, as they were asked for.

use super::input::COUNT_MAX;
use super::metrics::{MAP, Metric, TOP1, TOP5};
use super::relevance::Relevance;
use super::sweep::{self, Depths, OWN_FIXED, Ranking};
use crate::error::{Error, Result};

/// Options of a curve: what to compute besides top-1, top-5, mAP and their flips.
///
/// | name | default | purpose |
/// |---|---|---|
/// | `metrics` | none | metrics of the first ranks, such as nDCG@10; top-1, top-5 and mAP are there anyway; not looked at for agreement |
/// | `flips_at` | none | depth of further flips beside those of top-1 and top-5, for NFR@k |
/// | `kept_cuts` | 0 | evenly spaced cuts at which every query's own values are kept, for [`Curve::bands`](super::Curve::bands); 22 is a good number |
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CurveOptions {
    /// Metrics of the first ranks, each once; see [`Metric::measurable`].
    pub metrics: Vec<Metric>,
    /// Depth of further flips; 1 or more.
    pub flips_at: Option<usize>,
    /// Number of cuts at which every query's own values are kept.
    pub kept_cuts: usize,
}

/// Metrics to measure: the ones asked for, checked.
pub(super) struct Measured {
    /// Top-1, top-5 and mAP, which the sweep always has, then the metrics of the first ranks.
    pub metrics: Vec<Metric>,
    /// Depths of the flips.
    pub flips: Vec<usize>,
    pub depths: Depths,
}

impl Measured {
    pub fn new(relevance: Relevance<'_>, options: &CurveOptions) -> Result<Self> {
        let mut metrics = vec![TOP1, TOP5, MAP];
        if let Relevance::Nearest(depth) = relevance {
            metrics.push(Metric::agreement_at(depth));
            // Agreement is recall of the items that the fully native gallery finds.
            let depths = Depths::new(&[Metric::recall_at(depth)], None);
            return Ok(Self { metrics, flips: Vec::new(), depths });
        }
        let within = |name: &str, depth: usize| match depth {
            1..=COUNT_MAX => Ok(()),
            _ => Err(Error::option(format!("the depth of {name}"), depth, format!("1 to {COUNT_MAX}"))),
        };
        for &metric in &options.metrics {
            if metrics.contains(&metric) {
                continue;
            }
            if metric.head().is_none() {
                let expected = "one that a curve has: top1, top5, map, or one of the first ranks";
                return Err(Error::option("metric", metric, expected));
            }
            within(&metric.name_at_any_depth(), metric.depth().unwrap_or(0))?;
            metrics.push(metric);
        }
        options.flips_at.map_or(Ok(()), |depth| within("flips", depth))?;
        let depths = Depths::new(&metrics, options.flips_at);
        Ok(Self { metrics, flips: [1, 5].into_iter().chain(options.flips_at).collect(), depths })
    }

    /// Value of a ranking by each of the metrics, 0 to 1.
    pub fn values(&self, ranking: &Ranking) -> Vec<f64> {
        let within = |depth: usize| if ranking.first_rank <= depth { 1.0 } else { 0.0 };
        let of_slot = |slot: usize| match slot {
            0 => within(1),
            1 => within(5),
            2 => ranking.precision,
            head => ranking.heads[head - OWN_FIXED],
        };
        (0..self.metrics.len()).map(of_slot).collect()
    }

    pub fn is_agreement(&self) -> bool {
        self.flips.is_empty()
    }

    /// Metrics that are reported, each with its place in the sweep's numbers.
    pub fn shown(&self) -> impl Iterator<Item = (usize, Metric)> {
        let hidden = if self.is_agreement() { sweep::OWN_FIXED } else { 0 };
        self.metrics.iter().copied().enumerate().skip(hidden)
    }
}
