//! Distance of new vectors from old ones, the naive way to compatible vectors and a baseline (BCT equation
//! 3): new vectors shall lie where the old ones lie.
//!
//! ```text
//! L_l2 = 1/|B| Σ_x ‖φ_new(x) − φ_old(x)‖²
//! ```

use super::super::rows::as_wide_as;
use super::{Batch, Loss, Objective};

pub(crate) fn vector_distance() -> Objective {
    Objective::new("distance", |batch| {
        let rows = batch.labels.len();
        distance(batch, &vec![1.0 / rows.max(1) as f32; rows])
    })
}

/// Computes `Σ weight·‖φ_new(x) − φ_old(x)‖²`.
pub(super) fn distance(batch: &Batch, weights: &[f32]) -> Loss {
    let mut difference = as_wide_as(&batch.new, batch.old.columns());
    let mut value = 0.0;
    for (row, &weight) in weights.iter().enumerate() {
        for (new, &old) in difference.row_mut(row).iter_mut().zip(batch.old.row(row)) {
            *new -= old;
            value += f64::from(weight) * f64::from(*new).powi(2);
            *new *= 2.0 * weight;
        }
    }
    Loss { value, new: Some(as_wide_as(&difference, batch.new.columns())), ..Loss::default() }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Plain;
    use super::*;

    #[test]
    fn a_batch_computed_by_hand_and_finite_differences() {
        let plain = Plain {
            labels: vec![0, 1],
            new: vec![1.0, 2.0, 9.0, 0.0, 0.0, 9.0],
            old: vec![0.0, 2.0, 3.0, 4.0],
            adapted: vec![0.0; 6],
            head: vec![0.5; 6],
            widths: [2, 3],
            ..Plain::usual()
        };
        // (1 + 0)/2 + (9 + 16)/2: the third coordinate has no partner.
        assert!((plain.value(&vector_distance()) - 13.0).abs() < 1e-5);
        Plain::usual().check(&vector_distance());
    }
}
