//! Estimates with intervals, made from the numbers of every query.

use super::data::{ENOUGH, MetricForecast, POINTS};
use crate::statistics::{Interval, quantile, resampled_means};

/// Standard errors on either side of an estimate that hold [`LEVEL`] of a normal distribution.
pub(super) const Z: f64 = 1.96;
const LEVEL: f64 = 0.95;
/// Number of resamples of the queries for the share that is enough.
const RESAMPLES: usize = 400;
/// Part of the old vectors' size effect, in logits, that the end of average precision has.
const OLD_EFFECT: f64 = 0.6;

/// Relative error of a size effect: it is known to about a third, so one in twenty is off by more than this.
const EFFECT_OFF: f64 = Z / 3.0;
/// Widening of intervals from few items: a value extrapolated from n items has an interval 1 + 50/n times as
/// wide as the spread says.
const FEW: f64 = 50.0;
/// Least distance from a share that is enough to either end of its interval. Shares of a forecast are 5 %
/// apart, and random orders differ.
const RESOLUTION: f64 = 0.01;

/// Numbers of every query, `[queries, columns]`; a query may lack some.
pub(super) struct Table {
    columns: usize,
    /// Two numbers for every column: the query's number, or 0, and whether it has one.
    values: Vec<f64>,
}

impl Table {
    pub(super) fn new(rows: impl Iterator<Item = Vec<Option<f64>>>) -> Self {
        let (mut columns, mut values) = (0, Vec::new());
        for row in rows {
            columns = row.len();
            values.extend(
                row.into_iter()
                    .flat_map(|value| [value.unwrap_or(0.0), f64::from(u8::from(value.is_some()))]),
            );
        }
        Self { columns, values }
    }

    fn queries(&self) -> usize {
        self.values.len().checked_div(2 * self.columns).unwrap_or(0)
    }

    /// Numbers of one column, for the queries that have one.
    fn column(&self, column: usize) -> impl Iterator<Item = f64> {
        let rows = self.values.chunks_exact(2 * self.columns);
        rows.map(move |row| (row[2 * column], row[2 * column + 1]))
            .filter(|pair| pair.1 > 0.0)
            .map(|pair| pair.0)
    }

    fn means(&self) -> Means {
        let columns = (0..self.columns).map(|column| mean(self.column(column)));
        Means(columns.collect())
    }

    /// Standard error of a column's mean; 0 for fewer than two numbers.
    fn error(&self, column: usize) -> f64 {
        let count = self.column(column).count();
        let Some(mean) = mean(self.column(column)).filter(|_| count > 1) else { return 0.0 };
        let squares: f64 = self.column(column).map(|value| (value - mean).powi(2)).sum();
        (squares / (count - 1) as f64 / count as f64).sqrt()
    }

    /// Means over queries that are drawn with replacement.
    fn resampled(&self) -> Vec<Means> {
        let means_of_sums = |sums: Vec<f64>| {
            Means(sums.chunks_exact(2).map(|pair| (pair[1] > 0.0).then(|| pair[0] / pair[1])).collect())
        };
        resampled_means(&self.values, 2 * self.columns, RESAMPLES, 0).into_iter().map(means_of_sums).collect()
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0_u64), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / count as f64)
}

/// Mean of every column; `None` where no query has a number.
struct Means(Vec<Option<f64>>);

impl Means {
    fn get(&self, column: usize) -> Option<f64> {
        self.0.get(column).copied().flatten()
    }
}

/// First columns of a table: the switch and today. The columns of each view follow and, for average
/// precision, one for each mixture.
const SWITCH: usize = 0;
const TODAY: usize = 1;

/// Number of columns of a view.
const OF_VIEW: usize = 5;

fn mixed(view: usize) -> usize {
    2 + OF_VIEW * view
}

fn adapted(view: usize) -> usize {
    3 + OF_VIEW * view
}

fn old(view: usize) -> usize {
    4 + OF_VIEW * view
}

/// Columns of the galleries in a random order: one with as many natives as the given order's gallery has, and
/// the largest.
fn random(view: usize) -> [usize; 2] {
    [5, 6].map(|column| column + OF_VIEW * view)
}

fn precision(mixture: usize) -> usize {
    2 + OF_VIEW * POINTS + mixture
}

/// Columns of average precision with imagined natives, and with their right answers moved.
fn imagined(mixture: usize) -> [usize; 2] {
    [1, 2].map(|block| precision(block * (POINTS + 2) + mixture))
}

/// View that has all natives and nothing else.
const END: usize = POINTS - 1;

/// Facts about a metric that stand beside its table.
pub(super) struct Columns<'a> {
    pub(super) shares: &'a [f64],
    /// Whether old vectors show the effect of the gallery's size on natives.
    pub(super) by_old: bool,
    /// Value of doing nothing over all items as queries, in percent.
    pub(super) exact: Option<f64>,
    /// Whether the metric is average precision.
    pub(super) is_average: bool,
    /// Number of held-out items.
    pub(super) held_out: usize,
    /// Number of items in the gallery.
    pub(super) items: usize,
    /// Weight of the known natives beside the imagined ones, 0 to 1.
    pub(super) known: f64,
}

/// One value of a curve: its estimate, and the standard errors that its interval is made from.
#[derive(Default)]
struct Value {
    estimate: f64,
    column: usize,
    times: f64,
    /// Error that is added to the spread.
    more: f64,
    /// Error that does not depend on the queries, added in squares.
    apart: f64,
    /// Second column, and its weight beside the first.
    second_column: Option<(usize, f64)>,
}

impl Columns<'_> {
    /// Makes the forecast. `unsampled` is the root of the share of the gallery that is not sampled.
    pub(super) fn forecast(&self, table: &Table, unsampled: f64) -> MetricForecast {
        let smallest = 0.5 / table.queries().max(1) as f64;
        let values = self.values(&table.means(), smallest, 1.0);
        let at: Vec<Interval> = values
            .iter()
            .map(|value| {
                let error = match value.second_column {
                    None => table.error(value.column),
                    Some((second, part)) => {
                        (1.0 - part) * table.error(value.column) + part * table.error(second)
                    }
                };
                let half = Z * (value.times * unsampled * error + value.more).hypot(unsampled * value.apart);
                percent_around(value.estimate, half)
            })
            .collect();
        let do_nothing = match self.exact {
            Some(value) => Some(Interval { estimate: value, low: value, high: value }),
            None => table.means().get(TODAY).map(|value| {
                let half = Z * unsampled * table.error(TODAY);
                percent_around(value, half)
            }),
        };
        let estimates: Vec<f64> = values.iter().map(|value| value.estimate).collect();
        let times = values[END].times * unsampled;
        let drawn: Vec<Vec<f64>> =
            table.resampled().iter().map(|means| self.estimates(means, smallest, 1.0)).collect();
        // The size effect may be off, all along the curve.
        let other_curves = [1.0 - EFFECT_OFF, 1.0 + EFFECT_OFF]
            .map(|effect| self.estimates(&table.means(), smallest, effect));
        MetricForecast {
            do_nothing,
            at,
            enough: enough(self.shares, &estimates, &drawn, &other_curves, times),
        }
    }

    fn estimates(&self, means: &Means, smallest: f64, effect: f64) -> Vec<f64> {
        self.values(means, smallest, effect).iter().map(|value| value.estimate).collect()
    }

    /// Computes the value at every share, with size effects `effect` times as large as they were measured.
    fn values(&self, means: &Means, smallest: f64, effect: f64) -> Vec<Value> {
        let logit = |value: f64| {
            let value = value.clamp(smallest, 1.0 - smallest);
            (value / (1.0 - value)).ln()
        };
        let switch = means.get(SWITCH).unwrap_or_default();
        let today = self.exact.map(|value| value / 100.0).or_else(|| means.get(TODAY));
        // Without an effect nothing is rounded.
        let carried = |value: f64, effect: f64| {
            if effect == 0.0 { value } else { 1.0 / (1.0 + (-(logit(value) + effect)).exp()) }
        };
        // Size effect on natives, in logits, from a view to a gallery of N items.
        let of_adapted = |view: usize| {
            means.get(adapted(view)).map_or(0.0, |small| effect * (logit(switch) - logit(small)))
        };
        let of_old = |view: usize, large: Option<f64>| match (means.get(old(view)), large) {
            (Some(small), Some(large)) if self.by_old => effect * (logit(large) - logit(small)),
            _ => of_adapted(view),
        };
        let few = 1.0 + FEW / self.held_out as f64;
        let value = |at: usize| {
            let share = self.shares[at];
            let times = match share {
                0.0 => 1.0,
                share if share <= 0.5 => 1.25 * few,
                _ => 1.5 * few,
            };
            if self.is_average {
                let estimate = means.get(precision(at)).unwrap_or(switch);
                return Value { estimate, column: precision(at), times, ..Value::default() };
            }
            let Some(small) = means.get(mixed(at)) else {
                return Value { estimate: switch, column: SWITCH, times, ..Value::default() };
            };
            // Both sides have the sample's own queries, so that what they have in common cancels.
            let grown = match random(at).map(|column| means.get(column)) {
                [Some(small), Some(large)] => effect * (logit(large) - logit(small)),
                _ => 0.0,
            };
            let shift = grown + (1.0 - share) * of_adapted(at) + share * of_old(at, means.get(TODAY));
            let estimate = carried(small, shift);
            let more = (estimate - small).abs() / 3.0;
            // Chance also decides which items become native first.
            let by_chance = 4.0 * share * (1.0 - share) * estimate * (1.0 - estimate) / self.items as f64;
            let apart = if self.by_old { by_chance.sqrt() } else { 0.0 };
            Value { estimate, column: mixed(at), times, more, apart, second_column: None }
        };
        let mut values: Vec<Value> = (0..POINTS).map(value).collect();
        if self.is_average {
            let [half, three_quarters] =
                [POINTS, POINTS + 1].map(|mixture| means.get(precision(mixture)).unwrap_or(switch));
            let along = 2.0 * three_quarters - half;
            let mixed_end = means.get(mixed(END)).unwrap_or(switch);
            let end =
                f64::midpoint(along, carried(mixed_end, OLD_EFFECT * of_old(END, today))).clamp(0.0, 1.0);
            let missing = end - values[END].estimate;
            for (value, &share) in values.iter_mut().zip(self.shares) {
                // From three quarters on, the line is blended into the end.
                value.estimate += ((share - 0.75) / 0.25).clamp(0.0, 1.0) * missing;
            }
            values[END].column = mixed(END);
            for (at, value) in values.iter_mut().enumerate() {
                let [column, moved] = imagined(at);
                if let (Some(imagined), Some(moved)) = (means.get(column), means.get(moved)) {
                    let part = 1.0 - self.known;
                    value.estimate += part * (imagined - value.estimate);
                    value.apart = part * (moved - imagined);
                    value.second_column = Some((column, part));
                }
            }
        }
        values
    }
}

/// Makes an interval, in percent, of an estimate and half of its width, both 0 to 1.
pub(super) fn percent_around(estimate: f64, half: f64) -> Interval {
    let [estimate, low, high] =
        [estimate, estimate - half, estimate + half].map(|value| 100.0 * value.clamp(0.0, 1.0));
    Interval { estimate, low: low.min(estimate), high: high.max(estimate) }
}

/// Finds the share that is enough. Its interval is the one that curves of resampled queries give, `times` as
/// wide, and no smaller than what `other_curves` give.
fn enough(
    shares: &[f64],
    estimates: &[f64],
    drawn: &[Vec<f64>],
    other_curves: &[Vec<f64>],
    times: f64,
) -> Option<Interval> {
    let interval = |estimate: f64, mut values: Vec<f64>| {
        values.sort_unstable_by(f64::total_cmp);
        let [low, high] = [(1.0 - LEVEL) / 2.0, f64::midpoint(1.0, LEVEL)]
            .map(|place| estimate + times * (quantile(&values, place) - estimate));
        Interval { estimate, low: low.min(estimate), high: high.max(estimate) }
    };
    let gain = |values: &[f64]| values[values.len() - 1] - values[0];
    let gained = interval(gain(estimates), drawn.iter().map(|values| gain(values)).collect());
    if gained.low <= 0.0 {
        return None;
    }
    let reached = |values: &[f64]| first_above(shares, values, ENOUGH * values[values.len() - 1]);
    let share = interval(reached(estimates), drawn.iter().map(|values| reached(values)).collect());
    let (low, high) = other_curves
        .iter()
        .map(|values| reached(values))
        .fold((share.low, share.high), |(low, high), other_share| {
            (low.min(other_share), high.max(other_share))
        });
    let (low, high) = ((low - RESOLUTION).max(0.0), (high + RESOLUTION).min(1.0));
    let share = Interval { low, high, ..share };
    (share.high - share.low <= 0.5).then_some(share)
}

/// The first share from which on the values stay at or above a level that the last value has; linear between
/// shares.
fn first_above(shares: &[f64], values: &[f64], level: f64) -> f64 {
    let below = values.iter().rposition(|&value| value < level);
    match below {
        None => 0.0,
        Some(last) if last + 1 == values.len() => 1.0,
        Some(last) => {
            let part = (level - values[last]) / (values[last + 1] - values[last]);
            shares[last] + part * (shares[last + 1] - shares[last])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_reaches_a_level_where_it_stays_above_it() {
        let shares = [0.0, 0.5, 1.0];
        assert_eq!(first_above(&shares, &[3.0, 3.0, 3.0], 3.0), 0.0);
        assert_eq!(first_above(&shares, &[0.0, 1.0, 3.0], 2.0), 0.75);
        assert_eq!(first_above(&shares, &[9.0, 1.0, 3.0], 3.0), 1.0);
    }

    #[test]
    fn no_share_is_told_of_a_flat_curve_or_one_that_nobody_knows() {
        let shares = [0.0, 0.5, 1.0];
        let drawn = |spread: f64| -> Vec<Vec<f64>> {
            (-9..10).map(|step| vec![0.2, 0.4 + spread * f64::from(step), 0.5]).collect()
        };
        let told = enough(&shares, &[0.2, 0.4, 0.5], &drawn(0.001), &[], 1.5).unwrap();
        assert!((told.estimate - 0.95).abs() < 1e-9 && told.low < 0.95 && told.high <= 1.0);
        assert_eq!(enough(&shares, &[0.5, 0.5, 0.5], &[vec![0.5; 3]], &[], 1.5), None);
        // Half of these curves reach the end at once.
        assert_eq!(enough(&shares, &[0.2, 0.45, 0.5], &drawn(0.03), &[], 1.5), None);
    }

    #[test]
    fn queries_that_lack_a_number_are_left_out_of_its_mean_alone() {
        let table = Table::new([vec![Some(1.0), None], vec![Some(3.0), Some(5.0)]].into_iter());
        let means = table.means();
        assert_eq!((means.get(0), means.get(1), means.get(2)), (Some(2.0), Some(5.0), None));
        assert_eq!((table.error(0), table.error(1)), (1.0, 0.0));
    }
}
