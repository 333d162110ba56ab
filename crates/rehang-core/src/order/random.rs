//! The order `random`: a shuffle.

use rand::rand_core::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::policy::{Definition, HeadUse, Order};
use crate::statistics::shuffle;

pub(super) static RANDOM: Definition = Definition {
    about: "is a shuffle",
    is_evaluation_only: false,
    head: HeadUse::None,
    order: |evidence| {
        let items = evidence.input.items;
        let mut random = ChaCha8Rng::seed_from_u64(evidence.input.seed);
        let mut permutation: Vec<usize> = (0..items).collect();
        shuffle(&mut permutation, &mut random);
        Ok(Order::by_places(permutation))
    },
    scores: |page| Ok((0..page.vectors.rows()).map(page.drawn).collect()),
    arrange: None,
};
