//! Pooling: from the states of a text's tokens to one vector.

use crate::config::Pooling;

impl Pooling {
    /// Makes one vector `[width]` of states `[places, width]`, the first `tokens` of which are no padding.
    pub(super) fn pool(self, states: &[f32], tokens: usize, width: usize) -> Vec<f32> {
        let state = |at: usize| &states[at * width..(at + 1) * width];
        match self {
            Self::Cls | Self::None => state(0).to_vec(),
            Self::Last => state(tokens - 1).to_vec(),
            Self::Mean => (0..width)
                .map(|column| {
                    let sum: f64 = (0..tokens).map(|at| f64::from(state(at)[column])).sum();
                    (sum / tokens as f64) as f32
                })
                .collect(),
        }
    }
}
