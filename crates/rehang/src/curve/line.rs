//! One metric along a backfill.

/// One metric at every one of the n + 1 states of a backfill: `values[c]` after the first c items of the order were
/// re-embedded, in percent.
///
/// ```
/// use rehang::curve::Line;
///
/// let line = Line::new(vec![10.0, 40.0, 30.0, 60.0]);
/// assert_eq!((line.start(), line.end(), line.min(), line.area()), (10.0, 60.0, 10.0, 35.0));
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
pub struct Grid {
    /// How many items are backfilled at each point.
    pub cuts: Vec<usize>,
    /// The metric there.
    pub values: Vec<f64>,
    /// The mean of these values.
    pub mean: f64,
}

impl Line {
    /// A line from its values, of which there must be one at least.
    pub fn new(values: Vec<f64>) -> Self {
        Self { values }
    }

    /// The values, `[n + 1]`.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// The value before the backfill; NaN for a line without values.
    pub fn start(&self) -> f64 {
        self.values.first().copied().unwrap_or(f64::NAN)
    }

    /// The value after the whole backfill; NaN for a line without values.
    pub fn end(&self) -> f64 {
        self.values.last().copied().unwrap_or(f64::NAN)
    }

    /// The lowest value; NaN for a line without values.
    pub fn min(&self) -> f64 {
        self.values.iter().copied().reduce(f64::min).unwrap_or(f64::NAN)
    }

    /// The area `M̃ = E_{α∼U[0,1]} M(α)` (FastFill §5.1), exactly: the mean over all n + 1 states.
    pub fn area(&self) -> f64 {
        self.values.iter().sum::<f64>() / self.values.len() as f64
    }

    /// The values at `points` evenly spaced cuts, `cuts[i] = ⌊i·n/(points − 1)⌋`, and their mean.
    ///
    /// Fewer than two points give the start alone.
    pub fn grid(&self, points: usize) -> Grid {
        let cuts = grid_cuts(self.values.len().saturating_sub(1), points);
        let values: Vec<f64> = cuts.iter().map(|&cut| self.values[cut]).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        Grid { cuts, values, mean }
    }
}

/// `points` evenly spaced cuts of a gallery of `items`: `⌊i·n/(points − 1)⌋`; the start alone for fewer than two.
pub fn grid_cuts(items: usize, points: usize) -> Vec<usize> {
    if points < 2 {
        return vec![0];
    }
    (0..points).map(|point| (point as u128 * items as u128 / (points as u128 - 1)) as usize).collect()
}
