//! Lays out axes: which part of the numbers is shown, where the ticks stand, and where a value lies.

use crate::numbers::{decimal, shown, significant};

/// Spacing of values along an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scale {
    /// Equal differences are equally far apart.
    #[default]
    Linear,
    /// Equal ratios are equally far apart; values that are not positive are not drawn.
    Log,
}

/// An axis that is laid out: the values it spans, and its ticks.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Span {
    scale: Scale,
    low: f64,
    high: f64,
    /// Values of the ticks, with what is written there.
    pub(crate) ticks: Vec<(f64, String)>,
}

impl Span {
    /// Returns the smallest span with round ends that holds all `values`; `bounds` are values that it never
    /// crosses.
    pub(crate) fn around(
        values: impl Iterator<Item = f64>,
        scale: Scale,
        bounds: Option<(f64, f64)>,
        tick_count: usize,
    ) -> Self {
        let drawable = |value: &f64| shown(*value).is_some() && (scale == Scale::Linear || *value > 0.0);
        let (low, high) = values
            .filter(drawable)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        let without_values = bounds.filter(|_| scale == Scale::Linear).unwrap_or((1.0, 10.0));
        let (low, high) = if low <= high { (low, high) } else { without_values };
        match scale {
            Scale::Linear => Self::linear(low, high, bounds, tick_count),
            Scale::Log => Self::log(low, high),
        }
    }

    fn linear(low: f64, high: f64, bounds: Option<(f64, f64)>, tick_count: usize) -> Self {
        let bounded = |value: f64| bounds.map_or(value, |(least, most)| value.clamp(least, most));
        // A flat curve gets room above and below; otherwise its line would lie on an axis.
        let room = if high - low > 1e-9 * high.abs().max(1.0) {
            0.02 * (high - low)
        } else {
            (0.1 * high.abs()).max(1.0)
        };
        let (low, high) = (bounded(low - room), bounded(high + room));
        let step = round_step((high - low) / tick_count.max(1) as f64);
        let (first, last) = (bounded((low / step).floor() * step), bounded((high / step).ceil() * step));
        let decimals = (-step.log10().floor()).clamp(0.0, 9.0) as usize;
        let begin = (first / step).ceil() as i64;
        let end = ((last / step) + 1e-9).floor() as i64;
        let ticks = (begin..=end)
            .map(|index| index as f64 * step)
            .map(|tick| (tick, decimal(tick, decimals)))
            .collect();
        Self { scale: Scale::Linear, low: first, high: last, ticks }
    }

    fn log(low: f64, high: f64) -> Self {
        let (low, high) = (low / 1.15, high * 1.15);
        let decades = high.log10() - low.log10();
        // Few decades need ticks between the powers of ten, many need only some of the powers.
        let multiples: &[f64] = if decades > 3.0 {
            &[1.0]
        } else if decades > 1.2 {
            &[1.0, 3.0]
        } else {
            &[1.0, 2.0, 3.0, 5.0, 7.0]
        };
        let every = ((decades / 6.0).ceil() as i32).max(1);
        let (begin, end) = (low.log10().floor() as i32, high.log10().ceil() as i32);
        let ticks = (begin..=end)
            .filter(|power| (power - begin) % every == 0)
            .flat_map(|power| multiples.iter().map(move |multiple| multiple * 10f64.powi(power)))
            .filter(|tick| (low..=high).contains(tick))
            .map(|tick| (tick, log_label(tick)))
            .collect();
        Self { scale: Scale::Log, low, high, ticks }
    }

    /// Returns the place of `value` on the axis, with 0 at the low end and 1 at the high end; `None` where it
    /// cannot be drawn.
    pub(crate) fn position(&self, value: f64) -> Option<f64> {
        let value = shown(value)?;
        let position = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log if value > 0.0 => (value / self.low).ln() / (self.high / self.low).ln(),
            Scale::Log => return None,
        };
        position.is_finite().then(|| position.clamp(0.0, 1.0))
    }
}

/// Returns the smallest of 1, 2, 5 times a power of ten that is not below `step`.
fn round_step(step: f64) -> f64 {
    let power = 10f64.powf(step.abs().max(1e-12).log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|multiple| multiple * power)
        .find(|&round| round >= step * 0.999_999)
        .unwrap_or(power * 10.0)
}

fn log_label(value: f64) -> String {
    let text = significant(value);
    if text.contains('.') && !text.contains('e') {
        text.trim_end_matches('0').trim_end_matches('.').into()
    } else {
        text.replace(".00e", "e")
    }
}

/// Moves labels apart so that neighbours are at least `gap` from each other and all lie in `[top, bottom]`,
/// each as near as possible (in squares) to where it wants to be. `wanted` must be increasing; the order is
/// kept.
///
/// With `z_i = y_i − i·gap` the condition is that z never falls, which is isotonic regression: neighbours
/// that violate it are pooled into their mean. Clamping the result to the bounds keeps it optimal.
pub(crate) fn spread_apart(wanted: &[f64], gap: f64, top: f64, bottom: f64) -> Vec<f64> {
    let mut pools: Vec<(f64, usize)> = Vec::new();
    for (index, &position) in wanted.iter().enumerate() {
        let mut pool = (position - index as f64 * gap, 1);
        while let Some(&(mean, size)) = pools.last().filter(|(mean, _)| *mean > pool.0) {
            pool = ((mean * size as f64 + pool.0 * pool.1 as f64) / (size + pool.1) as f64, size + pool.1);
            pools.pop();
        }
        pools.push(pool);
    }
    let highest = (bottom - wanted.len().saturating_sub(1) as f64 * gap).max(top);
    let flat = pools.into_iter().flat_map(|(mean, size)| std::iter::repeat_n(mean.clamp(top, highest), size));
    flat.enumerate().map(|(index, position)| position + index as f64 * gap).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(span: &Span) -> Vec<&str> {
        span.ticks.iter().map(|(_, label)| label.as_str()).collect()
    }

    #[test]
    fn ticks_are_round() {
        let span = Span::around([23.7, 58.2].into_iter(), Scale::Linear, Some((0.0, 100.0)), 5);
        assert_eq!(labels(&span), ["20", "30", "40", "50", "60"]);
        let span = Span::around([0.0, 100.0].into_iter(), Scale::Linear, Some((0.0, 100.0)), 5);
        assert_eq!(labels(&span), ["0", "20", "40", "60", "80", "100"]);
        let span = Span::around([0.012, 0.9].into_iter(), Scale::Log, None, 5);
        assert_eq!(labels(&span), ["0.03", "0.1", "0.3", "1"]);
    }

    #[test]
    fn every_span_is_finite_whatever_the_values() {
        let cases: [&[f64]; 8] = [
            &[],
            &[f64::NAN],
            &[f64::INFINITY, f64::NEG_INFINITY],
            &[50.0],
            &[0.0, 0.0],
            &[100.0, 100.0],
            &[1e300, -1e300],
            &[-1e15, 1e15],
        ];
        for values in cases {
            for scale in [Scale::Linear, Scale::Log] {
                for bounds in [None, Some((0.0, 100.0))] {
                    let span = Span::around(values.iter().copied(), scale, bounds, 5);
                    assert!(
                        span.low.is_finite() && span.high.is_finite() && span.low < span.high,
                        "{values:?} {span:?}"
                    );
                    assert!(span.ticks.len() < 30, "{values:?} {span:?}");
                    for &value in values {
                        assert!(span.position(value).is_none_or(|position| (0.0..=1.0).contains(&position)));
                    }
                }
            }
        }
    }

    #[test]
    fn labels_never_overlap_and_stay_inside() {
        assert_eq!(spread_apart(&[10.0, 50.0], 16.0, 0.0, 100.0), [10.0, 50.0]);
        assert_eq!(spread_apart(&[50.0, 50.0, 50.0], 10.0, 0.0, 100.0), [40.0, 50.0, 60.0]);
        assert_eq!(spread_apart(&[0.0, 0.0], 10.0, 0.0, 100.0), [0.0, 10.0]);
        assert_eq!(spread_apart(&[99.0, 100.0], 10.0, 0.0, 100.0), [90.0, 100.0]);
        assert_eq!(spread_apart(&[], 10.0, 0.0, 100.0), [0.0; 0]);
    }
}
