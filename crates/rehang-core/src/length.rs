//! Lengths of vectors, and distances between them, summed in double precision.

/// Euclidean length of a vector, summed in `f64`.
pub fn norm(row: &[f32]) -> f64 {
    row.iter().map(|&value| f64::from(value) * f64::from(value)).sum::<f64>().sqrt()
}

/// `‖a − b‖²`, with differences and their sum in `f64`, coordinate after coordinate.
pub fn squared_distance(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum()
}

/// Scales a vector to length 1. Returns whether it could: a zero vector stays as it is.
pub fn normalise(row: &mut [f32]) -> bool {
    let length = norm(row);
    if length <= 0.0 || !length.is_finite() {
        return false;
    }
    for value in row {
        *value = (f64::from(*value) / length) as f32;
    }
    true
}

/// Largest difference between a length and 1 at which a vector counts as normalised. Half-precision files
/// stay within it.
pub const NORMALISED_TOLERANCE: f64 = 2e-3;
