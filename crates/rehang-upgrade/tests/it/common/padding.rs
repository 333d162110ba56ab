//! The smallest adapter there is, for tests of every crate: it copies the old coordinates and fills up with zeros.

use rehang::adapter::{Adapter, Dense, InputScaling, Map, Uncertainty};
use rehang::{Matrix, Space};

/// h pads (or cuts off); σ² is a line in the raw output with these weights `[d_new]`.
pub fn padding(old: Space, new: Space, weight: Vec<f32>, bias: f32) -> Adapter {
    let (d_old, d_new) = (old.dimension, new.dimension);
    let copy = Matrix::from_fn(d_new, d_old, |row, column| f32::from(u8::from(row == column)));
    Adapter::new(
        old,
        new,
        Map::of_layers(InputScaling::AsIs, vec![Dense { weight: copy, bias: vec![0.0; d_new], relu: false }]),
        Uncertainty::Linear { weight, bias },
    )
}
