//! Inputs and results of a forecast.

use crate::curve::metrics::ByMetric;
use crate::curve::relevance::{QueryCount, Relevance};
use crate::space::Distance;
use crate::statistics::Interval;
use crate::vectors::Matrix;

/// Number of points of a forecast: 0, 5, …, 100 %.
pub(super) const POINTS: usize = 21;

/// Inputs of a forecast: a gallery of N items, of which n are held out.
#[derive(Debug, Clone, Copy)]
pub struct ForecastInput<'a> {
    /// Old vectors, `[N, d_old]`.
    pub old: &'a Matrix,
    /// Adapted vectors of the same items, `[N, d_new]`.
    pub adapted: &'a Matrix,
    /// Number N of items in the gallery. It is the number of rows of `old`, or more where these rows are a
    /// random part of the gallery that includes the held-out items. Agreement is then forecast for N items,
    /// everything else for the rows.
    pub items: usize,
    /// Rows of the items that are held out, `[n]`: a random sample that the adapter was not fitted on.
    pub held_out: &'a [usize],
    /// New vectors of the held-out items, `[n, d_new]`.
    pub native: &'a Matrix,
    /// Order of the backfill, a permutation of `0..N`, first re-embedded first; `None` for a random order.
    pub order: Option<&'a [usize]>,
    /// Separate queries; `None` where the held-out items are the queries, each leaving itself out.
    pub queries: Option<ForecastQueries<'a>>,
    /// Definition of a right answer, among all N items; [`Relevance::Nearest`] without right answers.
    pub relevance: Relevance<'a>,
    /// Distance by which new vectors are compared.
    pub distance: Distance,
    /// Distance by which old vectors are compared.
    pub old_distance: Distance,
    /// Handicap: what is added to the distance of every item that is still adapted.
    pub handicap: f64,
}

/// Separate queries, by both models.
#[derive(Debug, Clone, Copy)]
pub struct ForecastQueries<'a> {
    /// Queries embedded by the new model, `[m, d_new]`.
    pub new: &'a Matrix,
    /// Queries embedded by the old model, `[m, d_old]`, for doing nothing.
    pub old: Option<&'a Matrix>,
}

/// A forecast of the whole gallery; values in percent.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct GalleryForecast {
    /// Number N of items in the gallery.
    pub items: usize,
    /// Number n of items that are held out.
    pub held_out: usize,
    /// Number of items that the values hold for: N or, for metrics of right answers, the number of items
    /// whose vectors were given.
    pub speaks_of: usize,
    /// Number of queries that count, and of those left out.
    pub queries: QueryCount,
    /// Shares of native items, ascending from 0 to 1.
    pub shares: Vec<f64>,
    /// Forecast of each metric.
    pub metrics: ByMetric<MetricForecast>,
}

/// One metric of a forecast, with intervals of 95 %.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct MetricForecast {
    /// Value of doing nothing: old queries on old vectors. It has no width where every item was asked as a
    /// query. `None` without old queries.
    pub do_nothing: Option<Interval>,
    /// Value at every share: the switch first, the end last.
    pub at: Vec<Interval>,
    /// Share of native items from which on the metric stays at [`ENOUGH`] of its end. `None` where nothing
    /// can be said: the interval is wider than half of the gallery, or the gain of the whole way is not
    /// distinguishable from 0.
    pub enough: Option<Interval>,
}

/// Part of the final value that counts as enough.
pub const ENOUGH: f64 = 0.98;
