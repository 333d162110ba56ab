//! Definition of a metric.

/// Definition of a metric: its names, its meaning, and how it is measured.
pub(super) struct Definition {
    /// First part of the id: `ndcg` of `ndcg@10`.
    pub id: &'static str,
    /// First part of the name: `nDCG` of `nDCG@10`.
    pub name: &'static str,
    /// Meaning of the metric at a depth, in one sentence.
    pub about: fn(usize) -> String,
    pub needs: Needs,
    pub depth: Depth,
    /// Place in a report. The metric that comes first carries the verdict.
    pub place: u8,
    /// Whether a report shows the metric with the first charts.
    pub is_primary: bool,
    pub measured: Measured,
}

/// Way in which a metric is measured.
pub(super) enum Measured {
    /// The sweep counts the queries with a right answer within the depth, and their flips.
    Found,
    /// The sweep keeps a running sum of average precision over all ranks.
    Precision,
    /// A head computes the value from the right answers within the depth.
    Head(fn(usize) -> Box<dyn Head>),
    /// The value comes from the nearest items of the native gallery:
    /// [`Relevance::Nearest`](super::super::Relevance::Nearest).
    Agreement,
}

/// Depths that a metric has.
pub(super) enum Depth {
    /// The metric looks at all ranks.
    All,
    /// The metric is always measured at these depths.
    Fixed(&'static [usize]),
    /// The caller names a depth.
    Asked,
}

/// Ground truth that a metric is measured against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    /// Right answers, from labels or judgements.
    Answers,
    /// Judgements alone: by labels, nearly every list of nearest items would be either all right or all
    /// wrong.
    Judgements,
    /// The new model's vectors and nothing else.
    Nothing,
}

/// A metric that looks at the right answers among the first ranks only.
///
/// The value of a query is [`Head::sum`] over [`Head::best`], and lies between 0 and 1.
pub(crate) trait Head: Send + Sync {
    /// Sum over right answers within the depth. `ranks` ascend from 1, and `gains` go with them.
    fn sum(&self, ranks: &[f64], gains: &[f64]) -> f64;
    /// Largest sum that a query can have, above 0. `gains` are those of all its right answers, descending, at
    /// least one.
    fn best(&self, gains: &[f64]) -> f64;
}
