//! Difference between two vectors of one source: whether one model made both.

use crate::length::{norm, squared_distance};
use crate::space::Distance;

/// Relative squared distance between two vectors of one source from which on they count as made by two
/// models, or by one that gives a source different vectors. A service that computes in half precision stays
/// below a thousandth of it. Two models that were trained apart are near 1.
pub const DIFFERENCE_MAX: f64 = 0.01;

/// Factor for models that give one source different vectors. Two vectors may differ this many times as much
/// as two vectors of one model do.
pub const NOISE_TIMES: f64 = 4.0;

/// Distance between two vectors of one source, as the space measures: `‖a − b‖² / max(‖a‖², ‖b‖²)`.
/// Where [lengths make no difference](Distance::heeds_lengths), it is the distance of their directions. From
/// 0 to 4. Two zero vectors are 0 apart, a zero vector and another one 1; NaN gives NaN.
///
/// ```
/// use rehang_core::{Distance, difference};
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
    if distance.heeds_lengths() {
        return squared_distance(a, b) / a_length.max(b_length).powi(2);
    }
    a.iter().zip(b).map(|(&a, &b)| (f64::from(a) / a_length - f64::from(b) / b_length).powi(2)).sum()
}

/// Describes the difference between two vectors of one source, for a reader.
pub fn difference_in_words(distance: Distance, before: &[f32], now: &[f32]) -> String {
    let directions = difference(Distance::Cosine, before, now);
    let times = norm(now) / norm(before);
    if distance.heeds_lengths() && directions <= DIFFERENCE_MAX && times.is_finite() {
        let (times, word) = if times >= 1.0 { (times, "longer") } else { (1.0 / times, "shorter") };
        return format!("the same direction, {times:.1} times {word}");
    }
    format!("cosine {:.2}", 1.0 - directions / 2.0)
}
