//! Small seeded data for tests.

use rand::RngExt;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rehang_core::{Distance, Labels, Matrix, Pairs, Vectors};

/// Draws numbers that are nearly normal (a sum of uniform ones), mean 0 and variance 1.
pub(crate) fn random_matrix(rows: usize, columns: usize, seed: u64) -> Matrix {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    Matrix::from_fn(rows, columns, |_, _| (0..12).map(|_| random.random::<f32>()).sum::<f32>() - 6.0)
}

/// Makes pairs in two raw l2 spaces.
pub(crate) fn pairs(old: Matrix, new: Matrix, labels: Option<Labels>) -> Pairs {
    let old = Vectors::measured("old-model", Distance::L2, old, "old vectors").unwrap();
    let new = Vectors::measured("new-model", Distance::L2, new, "new vectors").unwrap();
    Pairs::new(old, new, labels, None).unwrap()
}

/// Computes `x wᵀ + bias`, slowly.
pub(crate) fn affine(x: &Matrix, weight: &Matrix, bias: &[f32]) -> Matrix {
    Matrix::from_fn(x.rows(), weight.rows(), |row, output| {
        let sum: f64 =
            x.row(row).iter().zip(weight.row(output)).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
        (sum + f64::from(bias[output])) as f32
    })
}

/// Returns the largest absolute difference between two matrices of one shape.
pub(crate) fn largest_difference(a: &Matrix, b: &Matrix) -> f64 {
    assert_eq!((a.rows(), a.columns()), (b.rows(), b.columns()));
    a.as_slice().iter().zip(b.as_slice()).map(|(x, y)| f64::from((x - y).abs())).fold(0.0, f64::max)
}
