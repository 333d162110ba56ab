//! What every metric shares: checks of the vectors, and the walk over blocks of queries.

use std::sync::Mutex;
use std::sync::PoisonError;

use rayon::prelude::*;

use crate::check::{expect_count, expect_width};
use crate::error::{Error, ErrorKind, Result};
use crate::progress::Progress;
use crate::space::Distance;
use crate::vectors::Matrix;

use super::centre::Centre;
use super::distances::{Panels, QueryTiles, distances};
use super::line::{Line, grid_cuts};
use crate::processor::Processor;

/// The most items, and the most queries, that one curve may have (2^22): sums are 64-bit integers.
pub const COUNT_MAX: usize = 1 << 22;
/// Fails where the vectors of a gallery and of its queries cannot be compared.
///
/// # Errors
///
/// [`ErrorKind::Empty`], [`ErrorKind::WidthMismatch`], [`ErrorKind::NotFinite`]; [`ErrorKind::InvalidOption`] for more vectors than
/// a curve can have; [`ErrorKind::CountMismatch`] where there is not one adapted vector for each native one.
pub fn check_vectors(native: &Matrix, adapted: Option<&Matrix>, queries: Option<&Matrix>) -> Result<()> {
    // Old vectors may be narrower than queries, which are cut for them.
    let narrowest = |vectors: &Matrix| vectors.columns().min(native.columns());
    let named = [
        ("gallery vectors", Some(native), native.columns()),
        ("adapted vectors", adapted, adapted.map_or(0, narrowest)),
        ("query vectors", queries, native.columns()),
    ];
    for (what, vectors, width) in named {
        let Some(vectors) = vectors else { continue };
        if vectors.rows() == 0 {
            return Err(ErrorKind::Empty { what: what.into() }.into());
        }
        expect_width(what, width, vectors.columns())?;
        if vectors.rows() > COUNT_MAX {
            let expected = format!("at most {COUNT_MAX}");
            return Err(Error::option(format!("the number of {what}"), vectors.rows(), expected));
        }
        vectors.check_finite(what)?;
    }
    if let Some(adapted) = adapted {
        expect_count("adapted vectors", adapted.rows(), "new vectors", native.rows())?;
    }
    Ok(())
}

/// Queries whose distances are computed together: enough to keep a panel of the gallery in the nearest cache, few
/// enough that a block's distances stay small beside the vectors.
fn block_queries(items: usize) -> usize {
    if items <= 1 << 16 { 32 } else { 8 }
}

/// The cuts at which queries keep their own values: `count` of them, evenly spaced; none for 0.
pub(crate) fn kept_cuts(items: usize, count: usize) -> Vec<usize> {
    if count == 0 { Vec::new() } else { grid_cuts(items, count) }
}

/// The queries of one metric, which search a gallery block by block.
pub(crate) struct Search<'a> {
    pub(crate) processor: Processor,
    /// The gallery, `[n, d]`.
    pub(crate) native: &'a Matrix,
    /// The gallery before a backfill, where there is one; where it is narrower, queries are cut to its width.
    pub(crate) adapted: Option<&'a Matrix>,
    /// The item of every column of distances.
    pub(crate) order: &'a [usize],
    pub(crate) queries: &'a Matrix,
    /// Rows of `queries` that count.
    pub(crate) counted: &'a [usize],
    pub(crate) distance: Distance,
    /// What is added to every distance to an adapted vector.
    pub(crate) handicap: f64,
}

/// Buffers of one thread at a time.
struct Slot<S> {
    tiles: QueryTiles,
    /// The queries as adapted vectors are compared with them, where these are narrower.
    cut: QueryTiles,
    native: Vec<f64>,
    adapted: Vec<f64>,
    state: S,
}

impl Search<'_> {
    /// Calls `each(state, i, distances to native, distances to adapted)` for every counted query i, with a state for each
    /// slot, which threads take one at a time; returns the answers by query, and the states in no particular order.
    pub(crate) fn run<S: Send, R: Send>(
        &self,
        progress: &Progress,
        state: impl Fn() -> S,
        each: impl Fn(&mut S, usize, &[f64], &[f64]) -> R + Sync,
    ) -> Result<(Vec<R>, Vec<S>)> {
        let narrow = self.adapted.filter(|adapted| adapted.columns() < self.native.columns());
        let wide = self.adapted.filter(|_| narrow.is_none());
        let others: Vec<&Matrix> = wide.into_iter().chain([self.queries]).collect();
        let centre = Centre::new(self.distance, self.native, &others);
        let native_panels = Panels::new(&centre.taken_from(self.native), self.order);
        let vectors = centre.taken_from(self.queries);
        let cut = narrow.map(|narrow| (narrow, self.queries.at_width(narrow.columns())));
        let centre_of_cut = cut.as_ref().map(|(narrow, cut)| Centre::new(self.distance, narrow, &[cut]));
        let of_adapted = centre_of_cut.as_ref().unwrap_or(&centre);
        let adapted_panels =
            self.adapted.map(|adapted| Panels::new(&of_adapted.taken_from(adapted), self.order));
        let cut = cut.as_ref().map(|(_, cut)| of_adapted.taken_from(cut));
        let items = self.order.len();
        let rows = block_queries(items);
        let blocks = self.counted.len().div_ceil(rows);
        // A thread takes the slot of its own number, so locks are hardly waited for: only where there are fewer blocks than
        // threads may two of them share a slot.
        let slots: Vec<Mutex<Slot<S>>> = (0..rayon::current_num_threads().min(blocks).max(1))
            .map(|_| {
                Mutex::new(Slot {
                    tiles: QueryTiles::default(),
                    cut: QueryTiles::default(),
                    native: vec![0.0; rows * items],
                    adapted: vec![0.0; if self.adapted.is_some() { rows * items } else { 0 }],
                    state: state(),
                })
            })
            .collect();
        let answers: Vec<Vec<R>> = (0..blocks)
            .into_par_iter()
            .map(|block| {
                progress.check()?;
                let slot = rayon::current_thread_index().unwrap_or(0) % slots.len();
                let mut slot = slots[slot].lock().unwrap_or_else(PoisonError::into_inner);
                let slot = &mut *slot;
                let first = block * rows;
                let queries = &self.counted[first..self.counted.len().min(first + rows)];
                slot.tiles.fill(&vectors, queries);
                let length = queries.len() * items;
                let native = &mut slot.native[..length];
                distances(self.processor, &slot.tiles, &native_panels, self.distance, native);
                let adapted = &mut slot.adapted[..if self.adapted.is_some() { length } else { 0 }];
                if let Some(panels) = &adapted_panels {
                    let tiles = match &cut {
                        Some(cut) => {
                            slot.cut.fill(cut, queries);
                            &slot.cut
                        }
                        None => &slot.tiles,
                    };
                    distances(self.processor, tiles, panels, self.distance, adapted);
                    if self.handicap > 0.0 {
                        for distance in adapted.iter_mut() {
                            *distance += self.handicap;
                        }
                    }
                }
                let answers = (0..queries.len())
                    .map(|query| {
                        let line = query * items..(query + 1) * items;
                        let adapted = if self.adapted.is_some() { &adapted[line.clone()] } else { &[] };
                        each(&mut slot.state, first + query, &native[line], adapted)
                    })
                    .collect();
                progress.advance(queries.len() as u64);
                Ok(answers)
            })
            .collect::<Result<_>>()?;
        let states = slots
            .into_iter()
            .map(|slot| slot.into_inner().unwrap_or_else(PoisonError::into_inner).state)
            .collect();
        Ok((answers.into_iter().flatten().collect(), states))
    }
}

/// Changes from cut to cut as a line in percent of `whole`.
pub(crate) fn percent_line(changes: &[i64], whole: f64) -> Line {
    let mut sum = 0;
    Line::new(
        changes
            .iter()
            .map(|change| {
                sum += change;
                100.0 * sum as f64 / whole
            })
            .collect(),
    )
}
