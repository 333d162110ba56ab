//! Distances that are computed once and serve many curves.

use rayon::prelude::*;

use crate::check::{expect_count, expect_width};
use crate::error::Result;
use crate::processor::Processor;
use crate::space::Distance;
use crate::vectors::Matrix;

use super::centre::Centre;
use super::distances::{Panels, QueryTiles, distances};

/// Number of queries whose distances are computed together.
const BLOCK: usize = 32;

/// Distances from every query to every item of a gallery, `[m, n]`. Curves of one gallery share them,
/// whatever the order and the handicap ([`super::CurveInput::known`]).
#[derive(Debug, Clone, PartialEq)]
pub struct Distances {
    items: usize,
    values: Vec<f64>,
}

impl Distances {
    /// Computes the distances of the queries (`None`: the native vectors themselves) to `gallery`, which is
    /// the native vectors `[n, d]` or the adapted ones `[n, d]`.
    ///
    /// The distances have the bits that a [curve](super::curve()) of these vectors computes itself, where no
    /// offset is taken out.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::WidthMismatch`], [`crate::ErrorKind::NotFinite`].
    pub fn new(
        native: &Matrix,
        gallery: &Matrix,
        queries: Option<&Matrix>,
        distance: Distance,
    ) -> Result<Self> {
        let queries = queries.unwrap_or(native);
        for (what, vectors) in [("gallery vectors", gallery), ("query vectors", queries)] {
            expect_width(what, native.columns(), vectors.columns())?;
            vectors.check_finite(what)?;
        }
        let centre = Centre::new(distance, native, &[gallery, queries]);
        let order: Vec<usize> = (0..gallery.rows()).collect();
        let panels = Panels::new(&centre.taken_from(gallery), &order);
        let queries = centre.taken_from(queries);
        let processor = Processor::detect();
        let items = gallery.rows();
        let mut values = vec![0.0; queries.rows() * items];
        values.par_chunks_mut((BLOCK * items).max(1)).enumerate().for_each_init(
            QueryTiles::default,
            |tiles, (block, out)| {
                let rows: Vec<usize> = (block * BLOCK..).take(out.len() / items).collect();
                tiles.fill(&queries, &rows);
                distances(processor, tiles, &panels, distance, out);
            },
        );
        Ok(Self { items, values })
    }

    /// Combines the distances of the same queries to the same items by two measures: `combine` makes one number of
    /// each two.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::CountMismatch`] where the two differ in the number of queries or items.
    pub fn combined(&self, other: &Self, combine: impl Fn(f64, f64) -> f64 + Sync) -> Result<Self> {
        expect_count("other distances", other.items, "gallery vectors", self.items)?;
        expect_count("other distances", other.queries(), "query vectors", self.queries())?;
        let values = self.values.par_iter().zip(&other.values).map(|(&a, &b)| combine(a, b)).collect();
        Ok(Self { items: self.items, values })
    }

    /// All distances, `[m, n]`.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// Number of queries.
    pub fn queries(&self) -> usize {
        self.values.len().checked_div(self.items).unwrap_or(0)
    }

    /// Number of gallery items.
    pub fn items(&self) -> usize {
        self.items
    }

    /// Distances of one query to all items, `[n]`.
    pub(super) fn query_distances(&self, query: usize) -> &[f64] {
        &self.values[query * self.items..][..self.items]
    }

    /// Copies the distances of one query to `out`, in an order of the items.
    pub(super) fn in_order(&self, query: usize, order: &[usize], out: &mut [f64]) {
        let line = self.query_distances(query);
        for (value, &item) in out.iter_mut().zip(order) {
            *value = line[item];
        }
    }
}
