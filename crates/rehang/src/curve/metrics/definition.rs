//! What a metric is made of.

/// What a metric is.
pub(super) struct Definition {
    /// The first part of its id: `ndcg` of `ndcg@10`.
    pub id: &'static str,
    /// The first part of its name: `nDCG` of `nDCG@10`.
    pub name: &'static str,
    /// What it means at a depth, in one sentence.
    pub about: fn(usize) -> String,
    pub needs: Needs,
    pub depth: Depth,
    /// Place in a report; the metric that comes first carries the verdict.
    pub place: u8,
    /// Whether a report shows it with the first charts.
    pub is_primary: bool,
    pub measured: Measured,
}

/// How a metric is measured.
pub(super) enum Measured {
    /// Queries with a right answer within the depth: the sweep counts them, and their flips.
    Found,
    /// Average precision over all ranks: the sweep's running sum.
    Precision,
    /// From the right answers within the depth.
    Head(fn(usize) -> Box<dyn Head>),
    /// From the nearest items of the native gallery: [`Relevance::Nearest`](super::super::Relevance::Nearest).
    Agreement,
}

/// The depths that a metric has.
pub(super) enum Depth {
    /// It looks at all ranks.
    All,
    /// It is always measured at these.
    Fixed(&'static [usize]),
    /// The caller names one.
    Asked,
}

/// What a metric is measured against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    /// Right answers, from labels or judgements.
    Answers,
    /// Judgements: labels make nearly every list of nearest items either all right or all wrong.
    Judgements,
    /// Nothing but the new model's vectors.
    Nothing,
}

/// A metric that looks at the right answers among the first ranks only.
///
/// The value of a query is [`Head::sum`] over [`Head::best`], and lies between 0 and 1.
pub(crate) trait Head: Send + Sync {
    /// The sum over right answers within the depth; `ranks` ascend from 1, and `gains` go with them.
    fn sum(&self, ranks: &[f64], gains: &[f64]) -> f64;
    /// The largest sum that a query can have; `gains` of all its right answers, descending, at least one. Above 0.
    fn best(&self, gains: &[f64]) -> f64;
}
