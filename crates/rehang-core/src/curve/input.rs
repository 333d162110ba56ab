//! Common parts of all metrics: checks of the vectors, and the walk over blocks of queries.

use std::borrow::Cow;
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
use super::known::Distances;
use super::line::{Line, grid_cuts};
use crate::processor::Processor;

/// Most items, and most queries, that one curve may have (2^22), since sums are 64-bit integers.
pub const COUNT_MAX: usize = 1 << 22;
/// Fails where the vectors of a gallery and of its queries cannot be compared.
///
/// # Errors
///
/// [`ErrorKind::Empty`], [`ErrorKind::WidthMismatch`], [`ErrorKind::NotFinite`]; [`ErrorKind::InvalidOption`]
/// for more vectors than a curve can have; [`ErrorKind::CountMismatch`] where there is not one adapted vector
/// for each native one.
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

/// Number of queries whose distances are computed together: enough to keep a panel of the gallery in the
/// nearest cache, few enough that a block's distances stay small beside the vectors.
fn block_queries(items: usize) -> usize {
    if items <= 1 << 16 { 32 } else { 8 }
}

/// Cuts at which queries keep their own values: `count` of them, evenly spaced; none for 0.
pub(crate) fn kept_cuts(items: usize, count: usize) -> Vec<usize> {
    if count == 0 { Vec::new() } else { grid_cuts(items, count) }
}

/// A search of the counted queries in a gallery, block by block.
pub(crate) struct Search<'a> {
    pub(crate) processor: Processor,
    /// Native vectors of the gallery, `[n, d]`.
    pub(crate) native: &'a Matrix,
    /// Vectors of the gallery before a backfill, where there is one. Where they are narrower, queries are cut
    /// to their width.
    pub(crate) adapted: Option<&'a Matrix>,
    /// Item of every column of distances.
    pub(crate) order: &'a [usize],
    pub(crate) queries: &'a Matrix,
    /// Rows of `queries` that count.
    pub(crate) counted: &'a [usize],
    pub(crate) distance: Distance,
    /// Handicap: what is added to every distance to an adapted vector.
    pub(crate) handicap: f64,
    /// Distances to the native and the adapted vectors, where they were computed before.
    pub(crate) known: Option<[&'a Distances; 2]>,
}

/// Buffers that one thread at a time uses.
struct Slot<S> {
    tiles: QueryTiles,
    /// Queries cut to the width of adapted vectors, where these are narrower.
    cut: QueryTiles,
    native: Vec<f64>,
    adapted: Vec<f64>,
    state: S,
}

/// Source of distances: vectors, or distances computed before.
enum Source<'a> {
    Vectors(Packed<'a>),
    Known([&'a Distances; 2]),
}

/// The vectors of a search, packed for [`distances`].
struct Packed<'a> {
    native: Panels,
    adapted: Option<Panels>,
    queries: Cow<'a, Matrix>,
    /// Queries cut to the width of adapted vectors, where these are narrower.
    cut: Option<Matrix>,
}

impl<'a> Packed<'a> {
    fn new(search: &Search<'a>) -> Self {
        let narrow = search.adapted.filter(|adapted| adapted.columns() < search.native.columns());
        let wide = search.adapted.filter(|_| narrow.is_none());
        let other_matrices: Vec<&Matrix> = wide.into_iter().chain([search.queries]).collect();
        let centre = Centre::new(search.distance, search.native, &other_matrices);
        let cut = narrow.map(|narrow| (narrow, search.queries.at_width(narrow.columns())));
        let centre_of_cut = cut.as_ref().map(|(narrow, cut)| Centre::new(search.distance, narrow, &[&**cut]));
        let of_adapted = centre_of_cut.as_ref().unwrap_or(&centre);
        Self {
            native: Panels::new(&centre.taken_from(search.native), search.order),
            adapted: search.adapted.map(|adapted| Panels::new(&of_adapted.taken_from(adapted), search.order)),
            queries: centre.taken_from(search.queries),
            cut: cut.as_ref().map(|(_, cut)| of_adapted.taken_from(cut).into_owned()),
        }
    }

    /// Computes distances of some queries to the native vectors, and to the adapted ones where there are any.
    fn distances(
        &self,
        search: &Search<'_>,
        queries: &[usize],
        [tiles, cut_tiles]: [&mut QueryTiles; 2],
        native: &mut [f64],
        adapted: &mut [f64],
    ) {
        tiles.fill(&self.queries, queries);
        distances(search.processor, tiles, &self.native, search.distance, native);
        let Some(panels) = &self.adapted else { return };
        let tiles = match &self.cut {
            Some(cut) => {
                cut_tiles.fill(cut, queries);
                cut_tiles
            }
            None => tiles,
        };
        distances(search.processor, tiles, panels, search.distance, adapted);
    }
}

impl Search<'_> {
    /// Calls `answer_query(state, i, distances to native, distances to adapted)` for every counted query i.
    /// Each slot has a state, and threads take slots one at a time. Returns the answers by query, and the
    /// states in no particular order.
    pub(crate) fn run<S: Send, R: Send>(
        &self,
        progress: &Progress,
        state: impl Fn() -> S,
        answer_query: impl Fn(&mut S, usize, &[f64], &[f64]) -> R + Sync,
    ) -> Result<(Vec<R>, Vec<S>)> {
        let source = match self.known {
            Some(known_distances) => Source::Known(known_distances),
            None => Source::Vectors(Packed::new(self)),
        };
        let items = self.order.len();
        let rows = block_queries(items);
        let blocks = self.counted.len().div_ceil(rows);
        // A thread takes the slot of its own number, so locks are hardly waited for. Two threads share a slot
        // only where there are fewer blocks than threads.
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
                let length = queries.len() * items;
                let native = &mut slot.native[..length];
                let adapted = &mut slot.adapted[..if self.adapted.is_some() { length } else { 0 }];
                match &source {
                    Source::Vectors(packed) => {
                        packed.distances(self, queries, [&mut slot.tiles, &mut slot.cut], native, adapted);
                    }
                    Source::Known([to_native, to_adapted]) => {
                        for (known_distances, out) in [(to_native, &mut *native), (to_adapted, &mut *adapted)]
                        {
                            for (&query, out) in queries.iter().zip(out.chunks_mut(items)) {
                                known_distances.in_order(query, self.order, out);
                            }
                        }
                    }
                }
                if self.handicap > 0.0 {
                    for distance in adapted.iter_mut() {
                        *distance += self.handicap;
                    }
                }
                let answers = (0..queries.len())
                    .map(|query| {
                        let line = query * items..(query + 1) * items;
                        let adapted = if self.adapted.is_some() { &adapted[line.clone()] } else { &[] };
                        answer_query(&mut slot.state, first + query, &native[line], adapted)
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

/// Turns changes from cut to cut into a line in percent of `total`.
pub(crate) fn percent_line(changes: &[i64], total: f64) -> Line {
    let mut sum = 0;
    Line::new(
        changes
            .iter()
            .map(|change| {
                sum += change;
                100.0 * sum as f64 / total
            })
            .collect(),
    )
}
