//! Line: one metric along a backfill.

/// One metric at every one of the n + 1 states of a backfill. `values[c]` holds after the first c items of
/// the order were re-embedded, in percent.
///
/// ```
/// use rehang_core::curve::Line;
///
/// let line = Line::new(vec![10.0, 40.0, 30.0, 60.0]);
/// assert_eq!((line.start(), line.end(), line.min()), (10.0, 60.0, 10.0));
/// // The end is one point of the way, and has no width: (10 + 40 + 30) / 3.
/// assert!((line.area() - 80.0 / 3.0).abs() < 1e-9);
/// // A grid of two points is the start and the end.
/// assert_eq!(line.grid(2).mean, 35.0);
/// assert_eq!(line.grid(2).cuts, [0, 3]);
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Line {
    values: Vec<f64>,
}

/// A metric on a grid of fractions, as FastFill's reference code reports it.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Grid {
    /// Number of backfilled items at each point.
    pub cuts: Vec<usize>,
    /// Values of the metric at these points.
    pub values: Vec<f64>,
    /// Mean of these values.
    pub mean: f64,
}

impl Line {
    /// Makes a line from its values, of which there must be at least one.
    pub fn new(values: Vec<f64>) -> Self {
        Self { values }
    }

    /// Values of the line, `[n + 1]`.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// Value before the backfill; NaN for a line without values.
    pub fn start(&self) -> f64 {
        self.values.first().copied().unwrap_or(f64::NAN)
    }

    /// Value after the whole backfill; NaN for a line without values.
    pub fn end(&self) -> f64 {
        self.values.last().copied().unwrap_or(f64::NAN)
    }

    /// Lowest value; NaN for a line without values.
    pub fn min(&self) -> f64 {
        self.values.iter().copied().reduce(f64::min).unwrap_or(f64::NAN)
    }

    /// The area `M̃ = E_{α∼U[0,1]} M(α)` (FastFill 6), exactly. At α, ⌊α·n⌋ items are re-embedded. So each of
    /// the first n states holds for 1/n of the way, and the last one for α = 1 alone: the area is the mean
    /// over n states. A line without items has one value, which is its area.
    pub fn area(&self) -> f64 {
        let way = &self.values[..area_states(self.values.len().saturating_sub(1)).min(self.values.len())];
        way.iter().sum::<f64>() / way.len() as f64
    }

    /// Returns the values at `points` evenly spaced cuts, `cuts[i] = ⌊i·n/(points − 1)⌋`, and their mean.
    ///
    /// Fewer than two points give the start alone.
    pub fn grid(&self, points: usize) -> Grid {
        let cuts = grid_cuts(self.values.len().saturating_sub(1), points);
        let values: Vec<f64> = cuts.iter().map(|&cut| self.values[cut]).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        Grid { cuts, values, mean }
    }
}

/// Number of states that an area is the mean of, for a gallery of `items`: all but the last, or the only one
/// where there are no items.
pub(super) fn area_states(items: usize) -> usize {
    items.max(1)
}

/// `points` evenly spaced cuts of a gallery of `items`: `⌊i·n/(points − 1)⌋`; the start alone for fewer than
/// two.
pub fn grid_cuts(items: usize, points: usize) -> Vec<usize> {
    if points < 2 {
        return vec![0];
    }
    (0..points).map(|point| (point as u128 * items as u128 / (points as u128 - 1)) as usize).collect()
}
