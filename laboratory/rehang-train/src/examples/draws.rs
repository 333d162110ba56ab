//! Generators of everything that is drawn here.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// Purpose of a generator, which says what it draws; each purpose has streams of its own, so that no two
/// draws are related.
#[derive(Debug, Clone, Copy)]
pub(super) enum Purpose {
    UnseenClasses = 1,
    TestRows,
    Classes,
    Rows,
    Batches,
    View,
    Sisters,
}

/// Makes the generator of one draw: a function of its seed, its purpose and the numbers that name the draw.
pub(super) fn generator(seed: u64, purpose: Purpose, draw: [u64; 2]) -> ChaCha8Rng {
    let mut key = [0; 32];
    for (bytes, number) in key.as_chunks_mut::<8>().0.iter_mut().zip([seed, purpose as u64, draw[0], draw[1]])
    {
        *bytes = number.to_le_bytes();
    }
    ChaCha8Rng::from_seed(key)
}
