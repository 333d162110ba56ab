//! A shuffle of the items that depends on a seed and their keys alone.

use std::collections::BTreeSet;

use rand::rand_core::{Rng as _, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::contract::ItemKey;

/// Seed by which every upgrade draws its pairs and the items that are embedded first. A store in which a
/// shuffle costs a pass over all items may keep an index of the shuffle by this seed.
pub const PAIRS_SEED: u64 = 0x5ca1_ab1e;

/// Place of a key in the shuffle by a seed: a number in `[0, 1)` that depends on the two alone.
///
/// The first half of a wide key (a UUID's) is mixed into the seed, so that a key of 64 bits or fewer has the
/// same place in whichever form it came.
///
/// ```
/// use rehang_store::{ItemKey, shuffled};
///
/// let place = shuffled(7, ItemKey::from(1));
/// assert_eq!(place, shuffled(7, ItemKey::from(1)));
/// assert!(place != shuffled(8, ItemKey::from(1)) && place != shuffled(7, ItemKey::from(2)));
/// ```
pub fn shuffled(seed: u64, key: ItemKey) -> f64 {
    let (high, low) = ((key.bits() >> 64) as u64, key.bits() as u64);
    let mut random = ChaCha8Rng::seed_from_u64(seed ^ high.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    random.set_stream(low);
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// First keys of a shuffle, from keys that come one by one in any order. Memory is bounded by the number of
/// keys that are kept.
#[derive(Debug)]
pub struct FirstKeys {
    seed: u64,
    size: usize,
    smallest: BTreeSet<(u64, ItemKey)>,
    taken: u64,
}

impl FirstKeys {
    /// Starts without keys, for a shuffle by `seed` of which at most `size` keys are kept.
    pub fn new(seed: u64, size: usize) -> Self {
        Self { seed, size, smallest: BTreeSet::new(), taken: 0 }
    }

    /// Takes in one key, and keeps it if it is among the first ones so far.
    pub fn take(&mut self, key: ItemKey) {
        self.taken += 1;
        // Positive numbers sort as their bits do.
        self.smallest.insert((shuffled(self.seed, key).to_bits(), key));
        if self.smallest.len() > self.size {
            self.smallest.pop_last();
        }
    }

    /// Returns the keys in the order of the shuffle, and how many were taken in.
    pub fn keys(self) -> (Vec<ItemKey>, u64) {
        (self.smallest.into_iter().map(|(_, key)| key).collect(), self.taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_that_published_numbers_were_made_with() {
        // A wide key is neither its low half nor its high half.
        let wide = ItemKey::new((5 << 64) | 9);
        assert!(shuffled(3, wide) != shuffled(3, ItemKey::from(9)));
        assert!(shuffled(3, wide) != shuffled(3, ItemKey::from(5)));
        let places: Vec<u64> =
            [0, 1, 77].map(|key| (shuffled(0x5ca1_ab1e, ItemKey::from(key)) * 1e9) as u64).to_vec();
        assert_eq!(places, GOLDEN);
    }

    /// Billionths of the places; from the first version of the shuffle.
    const GOLDEN: [u64; 3] = [948_388_812, 333_672_868, 912_826_740];

    #[test]
    fn a_smaller_sample_is_the_beginning_of_a_larger_one() {
        let draw = |size| {
            let mut first = FirstKeys::new(1, size);
            (0..100).for_each(|key| first.take(ItemKey::from(key)));
            first.keys()
        };
        let (large, taken) = draw(50);
        assert_eq!((large.len(), taken), (50, 100));
        assert_eq!(draw(7).0, large[..7]);
        assert_eq!(draw(0), (vec![], 100));
        assert_eq!(draw(200).0.len(), 100);
    }
}
