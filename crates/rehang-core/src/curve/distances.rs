//! Distances from a block of queries to every gallery item, in `f64`, with the same bits on every processor.
//!
//! # Why not a general matrix product
//!
//! Ranks are decided by comparing distances. So two items with equal vectors must get equal bits, wherever
//! they stand in the gallery and however many queries are in the block. A general matrix product promises no
//! such thing (edges, thin shapes and splits of the inner dimension take other code paths). Here every inner
//! product is summed coordinate after coordinate in one `f64`. The vectors are `f32`, whose products are
//! exact in `f64`. So a fused multiply-add and a product followed by a sum round alike: AVX-512, AVX2 and
//! plain code agree to the last bit.
//!
//! The gallery is packed once into panels of [`PANEL`] items, which every block of queries then reads as it
//! lies.

use crate::space::Distance;
use crate::vectors::Matrix;

#[cfg(target_arch = "x86_64")]
use super::registers::x86::{Avx2, Avx512};
use super::registers::{Eight, LANES, lanes, lanes_mut};
use crate::processor::Processor;

/// Number of gallery items in a panel: three AVX-512 registers of eight `f64`.
const PANEL: usize = 24;
/// Number of queries in a tile. With 24 items a tile keeps 24 sums in registers.
const TILE: usize = 8;

/// Gallery vectors in the order in which distances are wanted, packed for [`distances`].
pub(crate) struct Panels {
    count: usize,
    dimension: usize,
    /// Coordinates of the items, `[panels, d, PANEL]`, filled up with zeros.
    data: Vec<f32>,
    /// `‖g‖²` of every item, filled up with zeros.
    squares: Vec<f64>,
}

impl Panels {
    /// Packs the rows that `order` names: `[n, d] → n` columns of distances. Column t is row `order[t]`.
    pub(crate) fn new(vectors: &Matrix, order: &[usize]) -> Self {
        let dimension = vectors.columns();
        let panels = order.len().div_ceil(PANEL);
        let mut data = vec![0.0; panels * dimension * PANEL];
        let mut squares = vec![0.0; panels * PANEL];
        for (column, &row) in order.iter().enumerate() {
            let panel = &mut data[column / PANEL * dimension * PANEL..];
            for (coordinate, &value) in vectors.row(row).iter().enumerate() {
                panel[coordinate * PANEL + column % PANEL] = value;
            }
            squares[column] = square(vectors.row(row));
        }
        Self { count: order.len(), dimension, data, squares }
    }
}

/// A block of query vectors, packed for [`distances`].
#[derive(Default)]
pub(crate) struct QueryTiles {
    count: usize,
    /// Coordinates of the queries, `[tiles, d, TILE]`, filled up with zeros.
    data: Vec<f64>,
    squares: Vec<f64>,
}

impl QueryTiles {
    /// Replaces the content by the rows that `queries` names.
    pub(crate) fn fill(&mut self, vectors: &Matrix, queries: &[usize]) {
        let dimension = vectors.columns();
        self.count = queries.len();
        self.data.clear();
        self.data.resize(queries.len().div_ceil(TILE) * dimension * TILE, 0.0);
        self.squares.clear();
        for (slot, &query) in queries.iter().enumerate() {
            let tile = &mut self.data[slot / TILE * dimension * TILE..];
            for (coordinate, &value) in vectors.row(query).iter().enumerate() {
                tile[coordinate * TILE + slot % TILE] = f64::from(value);
            }
            self.squares.push(square(vectors.row(query)));
        }
    }
}

/// `‖v‖²`, summed as the tiles sum, so that a vector's squared distance to its own copy is exactly 0.
fn square(row: &[f32]) -> f64 {
    row.iter().fold(0.0, |sum, &value| sum + f64::from(value) * f64::from(value))
}

/// Computes distances `[queries, n]` of a block of queries to all items: `‖q‖² + ‖g‖² − 2⟨q, g⟩` clipped at
/// 0, or `1 − ⟨q, g⟩/(‖q‖·‖g‖)` (1 where a vector is zero), or `−⟨q, g⟩`.
pub(crate) fn distances(
    processor: Processor,
    queries: &QueryTiles,
    gallery: &Panels,
    distance: Distance,
    out: &mut [f64],
) {
    match processor {
        // SAFETY: `Processor` names an instruction set only after it was detected.
        #[cfg(target_arch = "x86_64")]
        Processor::Avx512 => unsafe { distances_avx512(queries, gallery, distance, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Processor::Avx2 => unsafe { distances_avx2(queries, gallery, distance, out) },
        Processor::Plain => blocks::<[f64; LANES], 2, 1>(queries, gallery, distance, out),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2")]
fn distances_avx512(queries: &QueryTiles, gallery: &Panels, distance: Distance, out: &mut [f64]) {
    blocks::<Avx512, 8, 3>(queries, gallery, distance, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi1,bmi2")]
fn distances_avx2(queries: &QueryTiles, gallery: &Panels, distance: Distance, out: &mut [f64]) {
    blocks::<Avx2, 4, 1>(queries, gallery, distance, out);
}

/// Computes all distances by sub-tiles of `QUERIES` queries and `COLUMNS` times eight items.
#[inline(always)]
fn blocks<E: Eight, const QUERIES: usize, const COLUMNS: usize>(
    queries: &QueryTiles,
    gallery: &Panels,
    distance: Distance,
    out: &mut [f64],
) {
    let (depth, count) = (gallery.dimension, gallery.count);
    for panel in 0..count.div_ceil(PANEL) {
        let items = &gallery.data[panel * depth * PANEL..][..depth * PANEL];
        for tile in 0..queries.count.div_ceil(TILE) {
            let vectors = &queries.data[tile * depth * TILE..][..depth * TILE];
            for query_offset in (0..TILE).step_by(QUERIES) {
                for item_offset in (0..PANEL).step_by(COLUMNS * LANES) {
                    let products = products::<E, QUERIES, COLUMNS>(vectors, query_offset, items, item_offset);
                    for (offset, products) in products.iter().enumerate() {
                        let query = tile * TILE + query_offset + offset;
                        if query >= queries.count {
                            break;
                        }
                        let line = &mut out[query * count..(query + 1) * count];
                        for (column, &products) in products.iter().enumerate() {
                            let first = panel * PANEL + item_offset + column * LANES;
                            let squares = E::load(lanes(&gallery.squares, first));
                            let values = finish(distance, products, queries.squares[query], squares);
                            if let Some(line) = line.get_mut(first..first + LANES) {
                                values.store(lanes_mut(line, 0));
                            } else if first < count {
                                let mut last = [0.0; LANES];
                                values.store(&mut last);
                                line[first..].copy_from_slice(&last[..count - first]);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Inner products of `QUERIES` queries with `COLUMNS` times eight items. Every sum runs over the coordinates
/// in order.
#[inline(always)]
fn products<E: Eight, const QUERIES: usize, const COLUMNS: usize>(
    queries: &[f64],
    query_offset: usize,
    items: &[f32],
    item_offset: usize,
) -> [[E; COLUMNS]; QUERIES] {
    let mut sums = [[E::splat(0.0); COLUMNS]; QUERIES];
    for (queries, items) in queries.chunks_exact(TILE).zip(items.chunks_exact(PANEL)) {
        let queries = &queries[query_offset..query_offset + QUERIES];
        let items = &items[item_offset..item_offset + COLUMNS * LANES];
        let items: [E; COLUMNS] = std::array::from_fn(|column| E::load_f32(lanes(items, column * LANES)));
        for query in 0..QUERIES {
            let factor = E::splat(queries[query]);
            for column in 0..COLUMNS {
                sums[query][column] = factor.mul_add_exact(items[column], sums[query][column]);
            }
        }
    }
    sums
}

/// Turns inner products into distances.
#[inline(always)]
fn finish<E: Eight>(distance: Distance, products: E, query_square: f64, squares: E) -> E {
    let zero = E::splat(0.0);
    match distance {
        Distance::L2 => E::splat(query_square).add(squares).sub(E::splat(2.0).mul(products)).max(zero),
        Distance::Cosine => {
            let lengths = E::splat(query_square.sqrt()).mul(squares.sqrt());
            E::splat(1.0).sub(products.div(lengths.max(E::splat(f64::MIN_POSITIVE))))
        }
        Distance::Dot => zero.sub(products),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vectors(rows: usize, columns: usize, seed: u64) -> Matrix {
        let mut state = seed;
        Matrix::from_fn(rows, columns, |_, _| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / 8388608.0 - 1.0
        })
    }

    fn all(processor: Processor, queries: &Matrix, gallery: &Matrix, distance: Distance) -> Vec<f64> {
        let mut tiles = QueryTiles::default();
        tiles.fill(queries, &(0..queries.rows()).collect::<Vec<_>>());
        let panels = Panels::new(gallery, &(0..gallery.rows()).collect::<Vec<_>>());
        let mut out = vec![f64::NAN; queries.rows() * gallery.rows()];
        distances(processor, &tiles, &panels, distance, &mut out);
        out
    }

    #[test]
    fn every_processor_gives_the_bits_of_the_three_line_loop() {
        for (m, n, d) in [(1, 1, 1), (9, 25, 7), (8, 24, 128), (3, 100, 33), (17, 47, 2)] {
            let (queries, gallery) = (vectors(m, d, 1), vectors(n, d, 2));
            for distance in Distance::ALL {
                let mut expected = Vec::new();
                for q in 0..m {
                    for g in 0..n {
                        let dot = |a: &[f32], b: &[f32]| {
                            a.iter().zip(b).fold(0.0, |s, (&x, &y)| s + f64::from(x) * f64::from(y))
                        };
                        let (q, g) = (queries.row(q), gallery.row(g));
                        expected.push(match distance {
                            Distance::L2 => (dot(q, q) + dot(g, g) - 2.0 * dot(q, g)).max(0.0),
                            Distance::Cosine => 1.0 - dot(q, g) / (dot(q, q).sqrt() * dot(g, g).sqrt()),
                            Distance::Dot => -dot(q, g),
                        });
                    }
                }
                for processor in Processor::available() {
                    assert_eq!(
                        all(processor, &queries, &gallery, distance),
                        expected,
                        "{processor:?} {m} {n} {d}"
                    );
                }
            }
        }
    }

    #[test]
    fn equal_vectors_get_equal_bits_wherever_they_stand_and_a_copy_is_at_distance_zero() {
        let vector = vectors(1, 19, 5);
        let query = vectors(1, 19, 6);
        let copies = vector.select(&vec![0; 61]);
        for processor in Processor::available() {
            for distance in Distance::ALL {
                let out = all(processor, &query, &copies, distance);
                assert!(out.iter().all(|&value| value.to_bits() == out[0].to_bits()));
            }
            assert!(all(processor, &vector, &copies, Distance::L2).iter().all(|&value| value == 0.0));
        }
    }

    #[test]
    fn a_zero_vector_is_at_cosine_distance_one() {
        let zero = Matrix::zeros(1, 3);
        let gallery = vectors(2, 3, 1);
        assert_eq!(all(Processor::Plain, &zero, &gallery, Distance::Cosine), [1.0, 1.0]);
    }
}
