//! Makes the smallest adapter there is, for tests of every crate: it copies the old coordinates and fills up
//! with zeros.

use rehang_core::adapter::{Adapter, Dense, InputScaling, Map, Uncertainty};
use rehang_core::{Fusion, Matrix, Space};

/// Returns an adapter whose h pads (or cuts off); σ² is a line in the raw output with these weights
/// `[d_new]`. Fused searches go by old distances alone, on a scale of their own.
pub fn padding(old: Space, new: Space, weight: Vec<f32>, bias: f32) -> Adapter {
    let (d_old, d_new) = (old.dimension, new.dimension);
    let copy = Matrix::from_fn(d_new, d_old, |row, column| f32::from(u8::from(row == column)));
    let line = vec![0.0, 1.0];
    let fusion = Fusion {
        weight: 0.0,
        handicap: 0.0,
        spreads: [1.0; 2],
        old: line.clone(),
        adapted: line.clone(),
        both: line,
    };
    let layer = Dense { weight: copy, bias: vec![0.0; d_new], relu: false };
    let map = Map::from_layers(InputScaling::AsIs, vec![layer]);
    Adapter { fusion: Some(fusion), ..Adapter::new(old, new, map, Uncertainty::Linear { weight, bias }) }
}
