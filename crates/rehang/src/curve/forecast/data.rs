//! What a forecast is made from, and what it says.

use crate::curve::metrics::ByMetric;
use crate::curve::relevance::{QueryCount, Relevance};
use crate::space::Distance;
use crate::statistics::Interval;
use crate::vectors::Matrix;

/// Points of a forecast: 0, 5, …, 100 %.
pub(super) const POINTS: usize = 21;

/// A gallery of N items, of which n are held out.
#[derive(Debug, Clone, Copy)]
pub struct ForecastInput<'a> {
    /// Old vectors, `[N, d_old]`.
    pub old: &'a Matrix,
    /// The same items by way of the adapter, `[N, d_new]`.
    pub adapted: &'a Matrix,
    /// Items of the gallery, N: as many as `old` has rows, or more where these are a random part of it with the held-out items in it.
    /// Agreement is then told of N items, everything else of the rows.
    pub items: usize,
    /// Rows of the items that are held out, `[n]`: a random sample that the adapter was not fitted on.
    pub held_out: &'a [usize],
    /// Their new vectors, `[n, d_new]`.
    pub native: &'a Matrix,
    /// A permutation of `0..N`, first re-embedded first; `None` for a random order.
    pub order: Option<&'a [usize]>,
    /// Separate queries; `None` where the held-out items are the queries, each leaving itself out.
    pub queries: Option<ForecastQueries<'a>>,
    /// What is a right answer, among all N items; [`Relevance::Nearest`] without any.
    pub relevance: Relevance<'a>,
    /// How new vectors are compared.
    pub distance: Distance,
    /// How old vectors are compared.
    pub old_distance: Distance,
    /// What is added to the distance of every item that is still adapted.
    pub handicap: f64,
}

/// Separate queries, by both models.
#[derive(Debug, Clone, Copy)]
pub struct ForecastQueries<'a> {
    /// By the new model, `[m, d_new]`.
    pub new: &'a Matrix,
    /// By the old model, `[m, d_old]`, for doing nothing.
    pub old: Option<&'a Matrix>,
}

/// A forecast of the whole gallery; values in percent.
#[derive(Debug, Clone, PartialEq)]
pub struct GalleryForecast {
    /// Items of the gallery, N.
    pub items: usize,
    /// Items that are held out, n.
    pub held_out: usize,
    /// Items of the gallery that the numbers speak of: N, or the part of which vectors were given where right answers say what is found.
    pub speaks_of: usize,
    /// Queries counted and left out.
    pub queries: QueryCount,
    /// Shares of native items, ascending from 0 to 1.
    pub shares: Vec<f64>,
    /// Each metric.
    pub metrics: ByMetric<MetricForecast>,
}

/// One metric of a forecast, with intervals of 95 %.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricForecast {
    /// Old queries on old vectors; of no width where every query was asked. `None` without old queries.
    pub do_nothing: Option<Interval>,
    /// At every share: the switch first, the end last.
    pub at: Vec<Interval>,
    /// The share of native items from which on the metric stays at [`ENOUGH`] of its end. `None` where nothing can be said: the
    /// interval is wider than half of the gallery, or the gain of the whole way within its own interval.
    pub enough: Option<Interval>,
}

/// The part of the end that counts as enough.
pub const ENOUGH: f64 = 0.98;
