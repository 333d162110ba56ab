//! Metrics of the first ranks: they are measured in smaller galleries of the right mixture, and carried over
//! to the whole one.
//!
//! At a share α the gallery of N items has αN natives, of which at most n are known. The largest gallery that
//! can be made of them with that share has S = n/α items: the n natives, and S − n adapted vectors. It is
//! searched as it stands. A gallery of N items differs from it by the size effect, in logits. For the adapted
//! part of the mixture, this effect is that of the adapted vectors. For the part of the natives, it is that
//! of the old vectors, which are a model's vectors too. While α ≤ n/N there are natives enough, and nothing
//! is left to carry over.
//!
//! In a given order only natives among the first αN items may stand in such a gallery, so S is about n. What
//! a random mixture gains from that size to its own largest is known too, from galleries with as many natives
//! drawn at random. It is carried over first.

use rand::rand_core::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::data::ForecastInput;
use super::right::Right;
use crate::curve::measured::Measured;
use crate::curve::relevance::Positive;
use crate::curve::sweep::{self, Query, Workspace};
use crate::statistics::shuffle;

/// Marks a column that is adapted.
const ADAPTED: u32 = u32::MAX;

/// A gallery that stands for the whole one at a share.
pub(super) struct View {
    /// Item of every column, and its row among the natives, or [`ADAPTED`]. Empty where no native is known.
    columns: Vec<(u32, u32)>,
}

impl View {
    fn natives(&self) -> usize {
        self.columns.iter().filter(|column| column.1 != ADAPTED).count()
    }

    /// Items with their distances in the mixed gallery. `native` are the distances to the held-out natives,
    /// `adapted` those to all adapted vectors.
    pub(super) fn mixed<'a>(
        &'a self,
        native: &'a [f64],
        adapted: &'a [f64],
    ) -> impl Iterator<Item = (u32, f64)> + 'a {
        self.columns.iter().map(|&(item, row)| {
            (item, if row == ADAPTED { adapted[item as usize] } else { native[row as usize] })
        })
    }

    /// Items of the view with their distances in one gallery.
    pub(super) fn all_of<'a>(&'a self, distances: &'a [f64]) -> impl Iterator<Item = (u32, f64)> + 'a {
        self.columns.iter().map(|&(item, _)| (item, distances[item as usize]))
    }
}

/// Number of drawings of a random mixture of few natives. Their mean is less a matter of chance.
const DRAWINGS: usize = 4;

/// Galleries that stand for the whole one, one for every cut.
pub(super) struct Views {
    /// Largest views in the order.
    pub(super) mixed: Vec<View>,
    /// Views in a random order, where an order is given.
    pub(super) random: Option<Random>,
}

pub(super) struct Random {
    /// Views with as many natives as the ones in the given order, by drawing. Empty where that view is the
    /// largest.
    pub(super) small: [Vec<View>; DRAWINGS],
    pub(super) largest: Vec<View>,
}

impl Views {
    pub(super) fn new(input: &ForecastInput<'_>, cuts: &[usize]) -> Self {
        let items = Shuffled::new(input);
        let mixed = items.views(cuts, input.order, None);
        let random = input.order.is_some().then(|| Random {
            small: std::array::from_fn(|drawing| items.views(cuts, None, Some((&mixed, drawing)))),
            largest: items.views(cuts, None, None),
        });
        Self { mixed, random }
    }

    /// Largest views in a random order; without an order, these are the mixed ones.
    pub(super) fn largest(&self) -> &[View] {
        self.random.as_ref().map_or(&self.mixed, |random| &random.largest)
    }
}

/// Items in the order in which views take them.
struct Shuffled {
    held_out: Vec<usize>,
    not_held_out: Vec<usize>,
    /// Row of every item among the natives, or [`ADAPTED`].
    row_of: Vec<u32>,
}

impl Shuffled {
    fn new(input: &ForecastInput<'_>) -> Self {
        let items = input.old.rows();
        let mut random = ChaCha8Rng::seed_from_u64(0);
        let mut shuffled = |mut values: Vec<usize>| {
            shuffle(&mut values, &mut random);
            values
        };
        let mut row_of = vec![ADAPTED; items];
        for (row, &item) in (0..).zip(input.held_out) {
            row_of[item] = row;
        }
        let held_out = shuffled(input.held_out.to_vec());
        let not_held_out = shuffled((0..items).filter(|&item| row_of[item] == ADAPTED).collect());
        Self { held_out, not_held_out, row_of }
    }

    /// Makes the view of every cut. `like` limits the natives to as many as the views there have, and says
    /// which drawing it is. Without an order the natives are drawn at random.
    fn views(&self, cuts: &[usize], order: Option<&[usize]>, like: Option<(&[View], usize)>) -> Vec<View> {
        let Self { held_out, not_held_out, row_of } = self;
        let items = row_of.len();
        let place = order.map(|order| {
            let mut place = vec![0; items];
            for (at, &item) in order.iter().enumerate() {
                place[item] = at;
            }
            place
        });
        let adapted = |item: usize| (item as u32, ADAPTED);
        let native = |item: usize| (item as u32, row_of[item]);
        cuts.iter()
            .enumerate()
            .map(|(at, &cut)| {
                let is_first = |item: usize| place.as_ref().is_none_or(|place| place[item] < cut);
                // Each drawing begins where the one before ends.
                let (most, drawing) =
                    like.map_or((cut, 0), |(views, drawing)| (views[at].natives(), drawing));
                // A view with as many natives as there are is the largest itself.
                if like.is_some() && most >= cut.min(held_out.len()) {
                    return View { columns: Vec::new() };
                }
                let most = most.min(held_out.len());
                let (before, after) = held_out.split_at(most * drawing % held_out.len());
                let drawn = || after.iter().chain(before).copied();
                let natives: Vec<usize> = match &place {
                    Some(_) => drawn().filter(|&item| is_first(item)).collect(),
                    None => drawn().take(most).collect(),
                };
                // Without natives the view is the switch.
                if natives.is_empty() {
                    return View { columns: Vec::new() };
                }
                let size = ((natives.len() as f64 * items as f64 / cut as f64).round() as usize).min(items);
                // In an order, an item that is native by now does not stand in the gallery adapted.
                let filled = size.saturating_sub(natives.len());
                let not_held_out = not_held_out.iter().copied();
                let filling: Vec<usize> = match &place {
                    Some(_) => {
                        not_held_out.chain(drawn()).filter(|&item| !is_first(item)).take(filled).collect()
                    }
                    None => not_held_out.chain(drawn().skip(most)).take(filled).collect(),
                };
                let columns = natives.iter().map(|&item| native(item));
                View { columns: columns.chain(filling.into_iter().map(adapted)).collect() }
            })
            .collect()
    }
}

/// Ranking of some columns for one query.
#[derive(Default)]
pub(super) struct Row {
    distances: Vec<f64>,
    items: Vec<u32>,
    positives: Vec<Positive>,
    ignored: Vec<u32>,
}

impl Row {
    /// Replaces the content by these items with their distances; the query's own item is left out.
    pub(super) fn fill(
        &mut self,
        columns: &mut dyn Iterator<Item = (u32, f64)>,
        right: &Right<'_>,
        query: usize,
    ) {
        self.distances.clear();
        self.items.clear();
        self.positives.clear();
        self.ignored.clear();
        let own_item = right.own(query).map(|item| item as u32);
        for (item, distance) in columns.filter(|&(item, _)| Some(item) != own_item) {
            let time = self.items.len() as u32;
            self.items.push(item);
            self.distances.push(distance);
            let gain = right.gain(query, item as usize);
            if gain > 0.0 {
                self.positives.push(Positive { time, gain });
            } else if gain < 0.0 {
                self.ignored.push(time);
            }
        }
    }

    /// Computes every metric of the ranking, 0 to 1; `None` where it has no right answer.
    pub(super) fn rank(&self, work: &mut Workspace, measured: &Measured) -> Option<Vec<f64>> {
        if self.positives.is_empty() {
            return None;
        }
        let Self { distances, items, positives, ignored } = self;
        let query = Query { native: distances, items, positives, ignored, ..Query::default() };
        Some(measured.values(&sweep::rank(work, &query, &measured.depths)))
    }
}
