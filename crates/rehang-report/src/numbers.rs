//! Writes numbers as a report shows them: one decimal for percent, a true minus sign, a dash where a number
//! is not defined.

use rehang_core::report::{NumberWithSpread, Spread, percent_rounded_up};

/// Dash that stands where a number is not defined.
pub(crate) const UNDEFINED: &str = "–";

/// Largest value that a page shows; larger ones are as good as infinite, shown as not defined and never
/// drawn.
const LARGEST: f64 = 1e15;

/// Returns the value, where it is a number that can be shown.
pub(crate) fn shown(value: f64) -> Option<f64> {
    (value.is_finite() && value.abs() <= LARGEST).then_some(value)
}

/// Writes a value with `decimals` decimals: `45.1`, `−0.3`, `–` where it is not defined; never `−0.0`.
pub(crate) fn decimal(value: f64, decimals: usize) -> String {
    let Some(value) = shown(value) else { return UNDEFINED.into() };
    let digits = format!("{:.decimals$}", value.abs());
    let zero = digits.bytes().all(|byte| matches!(byte, b'0' | b'.'));
    if value < 0.0 && !zero { format!("−{digits}") } else { digits }
}

/// Writes a value of a metric, in percent but without the sign.
pub(crate) fn metric(value: f64) -> String {
    decimal(value, 1)
}

/// Writes a value of a metric with its unit, for prose: `45.1 %`.
pub(crate) fn metric_with_unit(value: f64) -> String {
    if shown(value).is_some() { format!("{}\u{a0}%", metric(value)) } else { metric(value) }
}

/// Writes the spread of an estimate as it stands behind the number: `± 0.3`, `44.0–46.2`; empty where there
/// is none.
pub(crate) fn spread(estimate: &NumberWithSpread) -> String {
    match estimate.spread {
        Some(Spread::Deviation { deviation, .. }) if shown(deviation).is_some() => {
            format!("±\u{a0}{}", metric(deviation))
        }
        Some(Spread::Interval { low, high, .. }) => range(low, high),
        _ => String::new(),
    }
}

/// Writes both ends of a range: `44.0–46.2`; empty where one is unknown.
pub(crate) fn range(low: f64, high: f64) -> String {
    if shown(low).is_some() && shown(high).is_some() {
        format!("{}–{}", metric(low), metric(high))
    } else {
        String::new()
    }
}

/// Writes a fraction in `[0, 1]` as percent, for prose: `12 %`, `0.4 %`.
pub(crate) fn fraction(value: f64) -> String {
    percent(value * 100.0)
}

/// Writes a fraction from which on something holds, as percent and rounded up, so that it holds at the number
/// that is read: `12 %`, and `0.1 %` for everything between 0 and 0.1 %.
pub(crate) fn fraction_rounded_up(value: f64) -> String {
    percent(percent_rounded_up(value))
}

/// Writes percent with their sign, and with a decimal only where it is not 0.
fn percent(value: f64) -> String {
    let decimals = usize::from((value - value.round()).abs() >= 0.05);
    if shown(value).is_some() { format!("{}\u{a0}%", decimal(value, decimals)) } else { UNDEFINED.into() }
}

/// Writes a number whose size is not known beforehand, with three significant digits: `0.00123`, `12.3`,
/// `1.2e9`.
pub(crate) fn significant(value: f64) -> String {
    let Some(shown) = shown(value) else { return UNDEFINED.into() };
    if shown == 0.0 {
        return "0".into();
    }
    let magnitude = shown.abs().log10().floor();
    if !(-4.0..6.0).contains(&magnitude) {
        return format!("{shown:.2e}").replace('-', "−");
    }
    decimal(shown, (2.0 - magnitude).clamp(0.0, 6.0) as usize)
}

/// Writes a count with its thousands apart: `12,345`.
pub(crate) fn count(value: usize) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Writes a count with its noun: `1 query`, `12,345 queries`.
pub(crate) fn counted(value: usize, singular: &str, plural: &str) -> String {
    format!("{}\u{a0}{}", count(value), if value == 1 { singular } else { plural })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_one_look() {
        assert_eq!(decimal(45.06, 1), "45.1");
        assert_eq!(decimal(-0.26, 1), "−0.3");
        assert_eq!(decimal(-0.04, 1), "0.0");
        assert_eq!(decimal(f64::NAN, 1), UNDEFINED);
        assert_eq!(decimal(f64::INFINITY, 1), UNDEFINED);
        assert_eq!(decimal(1e300, 1), UNDEFINED);
        assert_eq!(fraction(0.12), "12\u{a0}%");
        assert_eq!(fraction(0.0047), "0.5\u{a0}%");
        assert_eq!(fraction(f64::NAN), UNDEFINED);
        let rounded_up = [0.0, 0.0001, 0.0301, 0.1234, 0.39, 1.0].map(fraction_rounded_up);
        assert_eq!(
            rounded_up.map(|text| text.replace('\u{a0}', "")),
            ["0%", "0.1%", "3.1%", "12.4%", "39%", "100%"]
        );
        assert_eq!(fraction_rounded_up(f64::NAN), UNDEFINED);
        assert_eq!(significant(0.0012345), "0.00123");
        assert_eq!(significant(-12.34), "−12.3");
        assert_eq!(significant(1.5e-9), "1.50e−9");
        assert_eq!(count(1234567), "1,234,567");
        assert_eq!(count(123), "123");
        assert_eq!(counted(1, "query", "queries"), "1\u{a0}query");
    }

    #[test]
    fn spread_stands_behind_the_number() {
        let over_seeds =
            NumberWithSpread { value: 45.0, spread: Some(Spread::Deviation { deviation: 0.26, runs: 3 }) };
        assert_eq!(spread(&over_seeds), "±\u{a0}0.3");
        let over_queries = NumberWithSpread {
            value: 45.0,
            spread: Some(Spread::Interval { low: 44.0, high: 46.2, level: 0.95 }),
        };
        assert_eq!(spread(&over_queries), "44.0–46.2");
        assert_eq!(spread(&f64::NAN.into()), "");
    }
}
