//! Scales rows to length 1, and carries derivatives back through that.
//!
//! ```text
//! u = x/‖x‖        ∂L/∂x = (g − u·⟨u, g⟩)/‖x‖   with g = ∂L/∂u
//! ```
//!
//! A zero row has no direction: it stays zero and gets no derivative.

use rayon::prelude::*;

/// Writes `u` of every row of `rows [n, d]` to `unit [n, d]` and its length to `lengths [n]`.
///
/// A zero row stays zero, with the length 0 that tells the backward pass.
///
/// ```
/// use rehang_fit::objectives::unit::{through_unit, unit_rows};
///
/// let (mut unit, mut lengths) = ([0.0; 2], [0.0]);
/// unit_rows(&[3.0, 4.0], 2, &mut unit, &mut lengths);
/// assert_eq!((unit, lengths), ([0.6, 0.8], [5.0]));
/// // Along the row itself nothing changes its direction.
/// let mut gradient = [0.0; 2];
/// through_unit(&unit, &lengths, &[1.2, 1.6], 2, &mut gradient);
/// assert!(gradient.iter().all(|value: &f32| value.abs() < 1e-6));
/// ```
pub fn unit_rows(rows: &[f32], d: usize, unit: &mut [f32], lengths: &mut [f32]) {
    rows.par_chunks_exact(d)
        .zip(unit.par_chunks_exact_mut(d))
        .zip(lengths.par_iter_mut())
        .with_min_len(64)
        .for_each(|((row, unit), length)| {
            let norm = rehang_core::norm(row);
            *length = norm as f32;
            let inverse = if norm > 0.0 { 1.0 / norm } else { 0.0 };
            for (unit, &value) in unit.iter_mut().zip(row) {
                *unit = (f64::from(value) * inverse) as f32;
            }
        });
}

/// Adds `∂L/∂x` to `gradient [n, d]`, given `u` and the lengths that [`unit_rows`] wrote and `∂L/∂u`.
pub fn through_unit(unit: &[f32], lengths: &[f32], unit_gradient: &[f32], d: usize, gradient: &mut [f32]) {
    let rows = unit.len() / d;
    gradient
        .par_chunks_exact_mut(d)
        .zip(unit.par_chunks_exact(d))
        .zip(unit_gradient[..rows * d].par_chunks_exact(d))
        .zip(&lengths[..rows])
        .with_min_len(64)
        .for_each(|(((gradient, unit), unit_gradient), &length)| {
            if length == 0.0 {
                return;
            }
            let along: f64 =
                unit.iter().zip(unit_gradient).map(|(&u, &g)| f64::from(u) * f64::from(g)).sum::<f64>();
            for ((gradient, &u), &g) in gradient.iter_mut().zip(unit).zip(unit_gradient) {
                *gradient += (g - along as f32 * u) / length;
            }
        });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::finite_differences::{check, numbers};

    #[test]
    fn gradients_agree_with_finite_differences_and_a_zero_row_has_none() {
        let (n, d) = (3, 4);
        let mut rows = numbers(n * d, 3);
        rows[d..2 * d].fill(0.0);
        let towards = numbers(n * d, 4);
        let value = |rows: &[f32]| {
            let (mut unit, mut lengths) = (vec![0.0; n * d], vec![0.0; n]);
            unit_rows(rows, d, &mut unit, &mut lengths);
            let value = unit.iter().zip(&towards).map(|(&u, &g)| f64::from(u) * f64::from(g)).sum::<f64>();
            (value, unit, lengths)
        };
        let (_, unit, lengths) = value(&rows);
        let mut gradient = vec![0.0; n * d];
        through_unit(&unit, &lengths, &towards, d, &mut gradient);
        assert!(unit[d..2 * d].iter().chain(&gradient[d..2 * d]).all(|&value| value == 0.0));
        for row in [0, 2] {
            let range = row * d..(row + 1) * d;
            check(&rows[range.clone()], &gradient[range.clone()], 2e-3, |at| {
                let mut moved = rows.clone();
                moved[range.clone()].copy_from_slice(at);
                value(&moved).0
            });
        }
    }
}
