//! Whether two vectors of one source are of one model.

use crate::length::{norm, squared_distance};
use crate::space::Distance;

/// Relative squared distance of two vectors of one source from which on two models made them, or one that gives a source different
/// vectors. A service that computes in half precision stays below a thousandth of it; two models that were trained apart are near 1.
pub const DIFFERENCE_MAX: f64 = 0.01;

/// Two vectors of one source may differ this many times as much as two of one model do, where a model gives a source different vectors.
pub const NOISE_TIMES: f64 = 4.0;

/// How far apart two vectors of one source are, as the space measures: `‖a − b‖² / max(‖a‖², ‖b‖²)`, of their directions for
/// [`Distance::Cosine`], which sees no lengths. From 0 to 4. Two zero vectors are 0 apart, a zero vector and another one 1; NaN gives NaN.
///
/// ```
/// use rehang::{Distance, difference};
///
/// let (a, longer) = ([0.6, 0.8], [6.0, 8.0]);
/// assert!(difference(Distance::Cosine, &a, &longer) < 1e-12);
/// assert!((difference(Distance::Dot, &a, &longer) - 0.81).abs() < 1e-6);
/// assert_eq!(difference(Distance::Cosine, &a, &[0.0, 0.0]), 1.0);
/// ```
///
/// # Panics
///
/// If the vectors are not equally wide.
pub fn difference(distance: Distance, a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len(), "vectors of one space");
    let (a_length, b_length) = (norm(a), norm(b));
    if a_length == 0.0 || b_length == 0.0 {
        return if a_length == b_length { 0.0 } else { 1.0 };
    }
    if distance != Distance::Cosine {
        return squared_distance(a, b) / a_length.max(b_length).powi(2);
    }
    a.iter().zip(b).map(|(&a, &b)| (f64::from(a) / a_length - f64::from(b) / b_length).powi(2)).sum()
}

/// How two vectors of one source differ, for a reader.
pub fn difference_in_words(distance: Distance, before: &[f32], now: &[f32]) -> String {
    let directions = difference(Distance::Cosine, before, now);
    let times = norm(now) / norm(before);
    if distance != Distance::Cosine && directions <= DIFFERENCE_MAX && times.is_finite() {
        let (times, word) = if times >= 1.0 { (times, "longer") } else { (1.0 / times, "shorter") };
        return format!("the same direction, {times:.1} times {word}");
    }
    format!("cosine {:.2}", 1.0 - directions / 2.0)
}
