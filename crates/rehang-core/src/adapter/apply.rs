//! Applying an adapter: panels of rows, layer after layer, on all threads.

use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

use super::definition::{Adapter, BranchInput, Dense, InputScaling, Map, PerKind, width_after};
use super::expansion::{PreparedExpansion, exponential};
use super::geometry::Geometry;
use super::kernel::{Begin, Packed, RowsRef, dot};
use super::out_of_fold::{Lengths, Scratch as OutOfFoldScratch};
use super::uncertainty::{Prepared, Uncertainty, linear_variance};
use crate::check::{check_finite, expect_count, expect_width};
use crate::error::{Error, Result};
use crate::length::normalise;
use crate::progress::Progress;
use crate::space::{Distance, Space};
use crate::vectors::{Matrix, Vectors};

/// Most rows that one thread takes through all layers at a time. The widest activations of the published
/// network (2,048 numbers a row) are then 3 MiB. So every weight that is read serves many rows, and the
/// activations stay in the cache.
const PANEL_ROWS_MAX: usize = 384;

/// Fewest rows that are worth a thread of their own.
const PANEL_ROWS_MIN: usize = 24;

/// Number of rows that the kernels take at a time: fewer take no less time.
const KERNEL_ROWS: usize = 6;

/// Most numbers that one buffer of a panel holds, where the panel has more than [`KERNEL_ROWS`] rows: 4 MiB.
/// A file of a few MB may hold a layer that is a million numbers wide.
const PANEL_NUMBERS_MAX: usize = 1 << 20;

/// Number of rows after which it is checked whether the caller asked to stop.
const BLOCK_ROWS: usize = 16 * 1024;

/// Result of [`apply`], row by row as the old vectors.
#[derive(Debug, Clone, PartialEq)]
pub struct Adapted {
    /// h(o), `[n, d_new]`, in [`Adapter::output_space`].
    pub vectors: Vectors,
    /// σ², `[n]`: finite and above 0.
    pub variance: Vec<f32>,
    /// Length of each raw output, before it was put into the new space's geometry, `[n]`.
    pub raw_norms: Vec<f32>,
}

/// Applies an adapter to old vectors `[n, d_old]` (and to side information `[n, d_side]` where its map reads
/// some). Returns `[n, d_new]` with a σ² and a raw length for every row.
///
/// Zero vectors are legal in a raw space and go through the map like all others. The result does not depend
/// on the number of threads. For files larger than memory, make an [`Applier`] and feed it batch by batch.
///
/// # Errors
///
/// As [`Applier::new`], [`Adapter::expect_input`] and [`Applier::apply_rows`];
/// [`crate::ErrorKind::Cancelled`] where a stop was asked for through `progress`.
pub fn apply(
    adapter: &Adapter,
    old: &Vectors,
    side: Option<&Matrix>,
    progress: &Progress,
) -> Result<Adapted> {
    adapter.expect_input(old.space())?;
    let applier = Applier::new(adapter)?;
    let count = old.len();
    if let (Some(side), Some(width)) = (side, applier.d_side()) {
        expect_width("side information", width, side.columns())?;
        expect_count("old vectors", count, "side information", side.rows())?;
    }
    progress.begin("applying the adapter", "vectors", count as u64);
    let (d_old, d_new) = (applier.d_old(), applier.d_new());
    let mut vectors = Matrix::zeros(count, d_new);
    let mut variance = vec![0.0; count];
    let mut raw_norms = vec![0.0; count];
    for first in (0..count).step_by(BLOCK_ROWS) {
        progress.check()?;
        let end = (first + BLOCK_ROWS).min(count);
        let side_rows = side.map(|side| &side.as_slice()[first * side.columns()..end * side.columns()]);
        applier.apply_rows(
            first,
            &old.matrix().as_slice()[first * d_old..end * d_old],
            side_rows,
            &mut vectors.as_mut_slice()[first * d_new..end * d_new],
            &mut variance[first..end],
            &mut raw_norms[first..end],
        )?;
        progress.advance((end - first) as u64);
    }
    let vectors = Vectors::new(adapter.output_space(), vectors, "adapted vectors")?;
    Ok(Adapted { vectors, variance, raw_norms })
}

impl Map {
    /// Computes raw outputs, `[n, d_old] → [n, d_new]`, for a fit that does not have the other parts of an
    /// adapter yet. Side information is ignored where the map reads none.
    ///
    /// # Errors
    ///
    /// As [`Adapter::check`] for its map, and [`Applier::apply_rows`].
    pub fn outputs(&self, old: &Matrix, side: Option<&Matrix>) -> Result<Matrix> {
        let d_old = old.columns();
        let second = self.second.as_ref().map_or(0, |second| {
            let input = match second.input {
                BranchInput::Old => d_old,
                BranchInput::Side => side.map_or(0, Matrix::columns),
            };
            width_after(&second.layers, input)
        });
        let d_new = width_after(&self.mixer, width_after(&self.branch, d_old) + second);
        let space = |dimension| Space::new("raw", dimension, Distance::L2, false);
        let adapter =
            Adapter::new(space(d_old), space(d_new), self.clone(), Uncertainty::Constant { variance: 1.0 });
        let applier = Applier::new(&adapter)?;
        let side = side.filter(|_| applier.d_side().is_some()).map(Matrix::as_slice);
        let mut outputs = Matrix::zeros(old.rows(), d_new);
        let (mut variance, mut norms) = (vec![0.0; old.rows()], vec![0.0; old.rows()]);
        applier.apply_rows(0, old.as_slice(), side, outputs.as_mut_slice(), &mut variance, &mut norms)?;
        Ok(outputs)
    }
}

/// A layer with its weights packed.
struct Layer {
    packed: Packed,
    relu: bool,
}

impl Layer {
    fn new(dense: &Dense) -> Self {
        let weight = |output: usize, input: usize| dense.weight.row(output)[input];
        let packed = Packed::new(dense.weight.rows(), dense.weight.columns(), weight, &dense.bias);
        Self { packed, relu: dense.relu }
    }

    fn all(layers: &[Dense]) -> Vec<Self> {
        layers.iter().map(Self::new).collect()
    }
}

/// An adapter prepared for many rows: checked, its weights packed in the order in which they are read.
///
/// It takes about as much memory as the adapter itself, plus a few megabytes a thread.
///
/// # Same rows, same bits
///
/// Every row's result is computed by the same sequence of operations, whatever batch it comes in and however
/// many threads there are. So a stream may be cut anywhere.
pub struct Applier {
    d_side: Option<usize>,
    input: InputScaling,
    map: PreparedMap,
    geometry: Geometry,
    uncertainty: Prepared,
    /// Buffers that no thread uses at the moment; as many as threads ever worked at once.
    scratch: Mutex<Vec<Scratch>>,
}

/// A [`Map`] with the weights of its layers packed.
struct PreparedMap {
    branch: Vec<Layer>,
    second: Option<(BranchInput, Vec<Layer>)>,
    mixer: Vec<Layer>,
    skip: Option<Layer>,
    kernel: Option<PreparedExpansion>,
    per_kind: Option<PreparedKinds>,
    widths: Widths,
}

/// A [`PerKind`] with the weights of its maps packed.
struct PreparedKinds {
    gate: Box<PreparedMap>,
    maps: Vec<PreparedMap>,
}

/// Widths inside a map.
#[derive(Clone, Copy)]
struct Widths {
    old: usize,
    new: usize,
    branch: usize,
    second: usize,
    /// Widest output of a layer that another layer follows.
    hidden: usize,
}

impl Widths {
    /// Width of the widest row that a buffer holds.
    fn widest(self) -> usize {
        self.old.max(self.new).max(self.branch + self.second).max(self.hidden)
    }
}

/// Buffers of one thread. Rows begin [`padded`] numbers apart.
#[derive(Default)]
struct Scratch {
    old: Vec<f32>,
    map: MapScratch,
    centre_distances: Vec<f64>,
    out_of_fold: OutOfFoldScratch,
}

/// Buffers of a map, which the maps of its kinds use one after the other.
#[derive(Default)]
struct MapScratch {
    joined: Vec<f32>,
    hidden: [Vec<f32>; 2],
    kernel: Vec<f64>,
    kinds: KindScratch,
}

/// Buffers for the kinds of a map: the gate's outputs for every row, and the outputs of one kind's map.
#[derive(Default)]
struct KindScratch {
    gate: Vec<f32>,
    parts: Vec<f64>,
    output: Vec<f32>,
}

/// Distance between the beginnings of rows of `width` numbers in a buffer. Rows of a power of two would all
/// fall into the same few sets of the cache; one line more spreads them.
fn padded(width: usize) -> usize {
    width.next_multiple_of(16) + 16
}

/// Rows of one panel: the slices of its inputs and of its outputs.
struct Panel<'a> {
    first_row: usize,
    old: &'a [f32],
    side: Option<&'a [f32]>,
    vectors: &'a mut [f32],
    variance: &'a mut [f32],
    raw_norms: &'a mut [f32],
}

impl Applier {
    /// Checks an adapter and packs its weights.
    ///
    /// # Errors
    ///
    /// As [`Adapter::check`].
    pub fn new(adapter: &Adapter) -> Result<Self> {
        adapter.check()?;
        let d_side = adapter.side_dimension();
        Ok(Self {
            d_side,
            input: adapter.map.input,
            map: PreparedMap::new(&adapter.map, adapter.old.dimension, adapter.new.dimension, d_side),
            geometry: adapter.geometry.clone(),
            uncertainty: Prepared::new(&adapter.uncertainty)?,
            scratch: Mutex::new(Vec::new()),
        })
    }

    /// Width of the old vectors.
    pub fn d_old(&self) -> usize {
        self.map.widths.old
    }

    /// Width of the adapted vectors.
    pub fn d_new(&self) -> usize {
        self.map.widths.new
    }

    /// Width of the side information that belongs to every row; `None` where none is read.
    pub fn d_side(&self) -> Option<usize> {
        self.d_side
    }

    /// Applies the adapter to a batch of `n = variance.len()` rows. Reads `old` `[n, d_old]` and `side`
    /// `[n, d_side]`; writes `vectors` `[n, d_new]`, `variance` `[n]` (σ²) and `raw_norms` `[n]` (lengths
    /// before the geometry).
    ///
    /// `first_row` is the row of the whole file at which the batch begins, since errors name rows of the
    /// file. A batch without rows does nothing. Memory beside the slices is bounded and reused from call to
    /// call. After an error the contents of the three outputs mean nothing.
    ///
    /// # Errors
    ///
    /// - [`crate::ErrorKind::WidthMismatch`] / [`crate::ErrorKind::CountMismatch`]: a slice has not the size
    ///   that `n` rows need.
    /// - [`crate::ErrorKind::MissingInput`]: the map reads side information and none is given.
    /// - [`crate::ErrorKind::InvalidOption`]: side information is given and the map reads none.
    /// - [`crate::ErrorKind::NotFinite`]: a number going in is NaN or infinite, or one coming out is (a
    ///   vector far too long for this adapter); the first such row is named.
    pub fn apply_rows(
        &self,
        first_row: usize,
        old: &[f32],
        side: Option<&[f32]>,
        vectors: &mut [f32],
        variance: &mut [f32],
        raw_norms: &mut [f32],
    ) -> Result<()> {
        let count = variance.len();
        let (d_old, d_new) = (self.d_old(), self.d_new());
        expect_count("numbers of old vectors", old.len(), "numbers needed", count * d_old)?;
        expect_count("numbers of adapted vectors", vectors.len(), "numbers needed", count * d_new)?;
        expect_count("raw lengths", raw_norms.len(), "σ²", count)?;
        let d_side = match (side, self.d_side) {
            (None, None) => 0,
            (Some(side), Some(width)) => {
                expect_count("numbers of side information", side.len(), "numbers needed", count * width)?;
                width
            }
            (None, Some(_)) => return Err(Error::missing("side information", "this adapter")),
            (Some(_), None) => {
                let expected = "none: this adapter was fitted without";
                return Err(Error::option("side information", "given", expected));
            }
        };
        if count == 0 {
            return Ok(());
        }
        let rows = panel_rows(count, rayon::current_num_threads(), self.map.widest());
        let results: Vec<Result<()>> = vectors
            .par_chunks_mut(rows * d_new)
            .zip(variance.par_chunks_mut(rows))
            .zip(raw_norms.par_chunks_mut(rows))
            .enumerate()
            .map(|(panel, ((vectors, variance), raw_norms))| {
                let range = panel * rows..panel * rows + variance.len();
                let panel = Panel {
                    first_row: first_row + range.start,
                    old: &old[range.start * d_old..range.end * d_old],
                    side: side.map(|side| &side[range.start * d_side..range.end * d_side]),
                    vectors,
                    variance,
                    raw_norms,
                };
                // A panic of another thread leaves a buffer in no bad state: every panel writes before it
                // reads.
                let pool = || self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
                let mut scratch = pool().pop().unwrap_or_default();
                let result = self.apply_panel(panel, &mut scratch);
                pool().push(scratch);
                result
            })
            .collect();
        // The error of the first row is returned, whichever thread met an error first.
        results.into_iter().collect()
    }

    fn apply_panel(&self, panel: Panel<'_>, scratch: &mut Scratch) -> Result<()> {
        let Panel { first_row, old, side, vectors, variance, raw_norms } = panel;
        let (count, d_old, d_new) = (variance.len(), self.d_old(), self.d_new());
        let Scratch { old: scaled, map, centre_distances, out_of_fold } = scratch;

        let old_stride = padded(d_old);
        grow(scaled, count * old_stride);
        for (row, values) in old.chunks_exact(d_old).enumerate() {
            expect_finite_row("old vectors", first_row + row, values)?;
            let target = &mut scaled[row * old_stride..row * old_stride + d_old];
            target.copy_from_slice(values);
            if self.input == InputScaling::UnitLength {
                normalise(target);
            }
        }
        let scaled = RowsRef::new(scaled, old_stride);
        if let (Some(side), Some(width)) = (side, self.d_side) {
            for (row, values) in side.chunks_exact(width).enumerate() {
                expect_finite_row("side information", first_row + row, values)?;
            }
        }

        let side = side.zip(self.d_side).map(|(side, width)| (RowsRef::new(side, width), width));
        self.map.outputs(scaled, side, count, vectors, map);
        centre_distances.clear();

        for (row, raw) in vectors.chunks_exact_mut(d_new).enumerate() {
            expect_finite_row("the adapter's output", first_row + row, raw)?;
            let raw_norm = dot(raw, raw).sqrt();
            // A length beyond single precision is kept as the largest single number. It is only looked at;
            // nothing is scaled by it.
            raw_norms[row] = raw_norm.min(f64::from(f32::MAX)) as f32;
            match &self.uncertainty {
                Prepared::Constant(constant) => variance[row] = *constant,
                Prepared::Linear { weight, bias } => variance[row] = linear_variance(weight, *bias, raw),
                Prepared::OutOfFold(learned) => centre_distances.push(learned.centre_distance(raw)),
            }
            self.geometry.conform(raw, raw_norm);
        }
        if let Prepared::OutOfFold(learned) = &self.uncertainty {
            let lengths = Lengths { raw_norms, centre_distances };
            learned.variances(scaled, RowsRef::new(vectors, d_new), &lengths, variance, out_of_fold);
        }
        Ok(())
    }
}

impl PreparedMap {
    fn new(map: &Map, d_old: usize, d_new: usize, d_side: Option<usize>) -> Self {
        let second = map.second.as_ref();
        let lists = [Some(&map.branch), second.map(|second| &second.layers), Some(&map.mixer)];
        let widths = Widths {
            old: d_old,
            new: d_new,
            branch: width_after(&map.branch, d_old),
            second: second.map_or(0, |second| match second.input {
                BranchInput::Old => width_after(&second.layers, d_old),
                BranchInput::Side => width_after(&second.layers, d_side.unwrap_or(0)),
            }),
            hidden: lists.into_iter().flatten().flatten().map(|layer| layer.weight.rows()).max().unwrap_or(0),
        };
        Self {
            branch: Layer::all(&map.branch),
            second: second.map(|second| (second.input, Layer::all(&second.layers))),
            mixer: Layer::all(&map.mixer),
            skip: map.skip.as_ref().map(Layer::new),
            kernel: map.kernel.as_ref().map(PreparedExpansion::new),
            per_kind: map.per_kind.as_ref().map(|per_kind| PreparedKinds::new(per_kind, d_old, d_new)),
            widths,
        }
    }

    /// Width of the widest row that a buffer holds, those of the kinds' maps included.
    fn widest(&self) -> usize {
        let kinds = self.per_kind.iter().flat_map(|kinds| kinds.maps.iter().chain([&*kinds.gate]));
        kinds.map(Self::widest).fold(self.widths.widest(), usize::max)
    }

    /// Writes the raw outputs of `count` scaled rows to `outputs` `[count, d_new]`. Side information comes
    /// with its width.
    fn outputs(
        &self,
        scaled: RowsRef<'_>,
        side: Option<(RowsRef<'_>, usize)>,
        count: usize,
        outputs: &mut [f32],
        scratch: &mut MapScratch,
    ) {
        let widths = self.widths;
        let d_new = widths.new;
        let MapScratch { joined, hidden, kernel, .. } = scratch;
        for buffer in hidden.iter_mut() {
            grow(buffer, count * padded(widths.hidden));
        }
        let mixer_width = widths.branch + widths.second;
        if self.branch.is_empty() && self.second.is_none() {
            run_layers(&self.mixer, scaled, widths.old, count, hidden, outputs, d_new);
        } else {
            let stride = padded(mixer_width);
            grow(joined, count * stride);
            run_layers(&self.branch, scaled, widths.old, count, hidden, joined, stride);
            if let Some((input, layers)) = &self.second {
                let (rows, width) = match (input, side) {
                    (BranchInput::Side, Some(side)) => side,
                    _ => (scaled, widths.old),
                };
                run_layers(layers, rows, width, count, hidden, &mut joined[widths.branch..], stride);
            }
            run_layers(&self.mixer, RowsRef::new(joined, stride), mixer_width, count, hidden, outputs, d_new);
        }
        if let Some(skip) = &self.skip {
            let begin = Begin::OutputPlusBias;
            skip.packed.multiply(scaled, count, 0..d_new, outputs, d_new, begin, false);
        }
        if let Some(expansion) = &self.kernel {
            expansion.add(scaled, count, outputs, kernel);
        }
        if let Some(kinds) = &self.per_kind {
            kinds.add(scaled, count, outputs, scratch);
        }
    }
}

impl PreparedKinds {
    fn new(per_kind: &PerKind, d_old: usize, d_new: usize) -> Self {
        let prepared = |map, outputs| PreparedMap::new(map, d_old, outputs, None);
        Self {
            gate: Box::new(prepared(&per_kind.gate, per_kind.maps.len())),
            maps: per_kind.maps.iter().map(|map| prepared(map, d_new)).collect(),
        }
    }

    /// Adds the outputs of the kinds' maps, averaged by the gate, to `output` `[count, d_new]`, for `count`
    /// scaled rows.
    fn add(&self, scaled: RowsRef<'_>, count: usize, output: &mut [f32], scratch: &mut MapScratch) {
        let (kinds, d_new) = (self.maps.len(), self.maps[0].widths.new);
        // The kinds' buffers are taken out, since the maps of the kinds need the other ones.
        let KindScratch { mut gate, mut parts, output: mut of_kind } = std::mem::take(&mut scratch.kinds);
        grow(&mut gate, count * kinds);
        grow(&mut of_kind, count * d_new);
        self.gate.outputs(scaled, None, count, &mut gate[..count * kinds], scratch);
        parts.clear();
        for logits in gate[..count * kinds].chunks_exact(kinds) {
            let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let likely = |&logit: &f32| exponential(f64::from(logit) - f64::from(largest));
            let total: f64 = logits.iter().map(likely).sum();
            parts.extend(logits.iter().map(|logit| likely(logit) / total));
        }
        for (kind, map) in self.maps.iter().enumerate() {
            map.outputs(scaled, None, count, &mut of_kind[..count * d_new], scratch);
            let rows = output.chunks_exact_mut(d_new).zip(of_kind.chunks_exact(d_new));
            for ((sums, values), parts) in rows.zip(parts.chunks_exact(kinds)) {
                let part = parts[kind];
                let added = |sum: f32, value: f32| (f64::from(sum) + part * f64::from(value)) as f32;
                sums.iter_mut().zip(values).for_each(|(sum, &value)| *sum = added(*sum, value));
            }
        }
        scratch.kinds = KindScratch { gate, parts, output: of_kind };
    }
}

/// Number of rows in a panel. Panels are equal, and every thread gets a whole number of them where the batch
/// is large enough.
fn panel_rows(count: usize, threads: usize, widest: usize) -> usize {
    let most =
        (PANEL_NUMBERS_MAX / padded(widest)).clamp(KERNEL_ROWS, PANEL_ROWS_MAX) / KERNEL_ROWS * KERNEL_ROWS;
    let panels = count.div_ceil(most).next_multiple_of(threads.max(1));
    count.div_ceil(panels).max(PANEL_ROWS_MIN.min(most)).next_multiple_of(KERNEL_ROWS)
}

/// Makes a buffer at least `length` long; its contents mean nothing.
fn grow(buffer: &mut Vec<f32>, length: usize) {
    if buffer.len() < length {
        buffer.resize(length, 0.0);
    }
}

/// Fails where a row has a NaN or infinite number.
fn expect_finite_row(what: &str, row: usize, values: &[f32]) -> Result<()> {
    // Without a branch inside, the loop over a row is a few vector instructions. The column is looked for
    // only after it fails.
    if values.iter().fold(true, |finite, value| finite & value.is_finite()) {
        return Ok(());
    }
    check_finite(what, values, values.len(), row)
}

/// Takes `count` rows through layers into the first columns of `output`'s rows. Without layers the rows are
/// copied.
fn run_layers(
    layers: &[Layer],
    input: RowsRef<'_>,
    width: usize,
    count: usize,
    hidden: &mut [Vec<f32>; 2],
    output: &mut [f32],
    output_stride: usize,
) {
    let Some((last, before)) = layers.split_last() else {
        for row in 0..count {
            output[row * output_stride..row * output_stride + width].copy_from_slice(input.row(row, width));
        }
        return;
    };
    let [left, right] = hidden;
    let (mut from, mut to) = (left, right);
    let mut from_stride = 0;
    for (index, layer) in before.iter().enumerate() {
        let source = if index == 0 { input } else { RowsRef::new(from, from_stride) };
        let outputs = layer.packed.outputs();
        layer.packed.multiply(source, count, 0..outputs, to, padded(outputs), Begin::Bias, layer.relu);
        (from, to) = (to, from);
        from_stride = padded(outputs);
    }
    let source = if before.is_empty() { input } else { RowsRef::new(from, from_stride) };
    let columns = 0..last.packed.outputs();
    last.packed.multiply(source, count, columns, output, output_stride, Begin::Bias, last.relu);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panel_of_wide_rows_has_few_of_them() {
        let few = |count, threads| panel_rows(count, threads, 4 * 2048);
        for threads in [1, 3, 14] {
            assert_eq!(
                panel_rows(16_384, threads, 2048),
                panel_rows(16_384, threads, 1),
                "{threads} threads"
            );
            assert_eq!(panel_rows(7, threads, 2048), PANEL_ROWS_MIN);
            for count in [1, 7, 400, 16_384] {
                assert!(few(count, threads) * padded(4 * 2048) <= PANEL_NUMBERS_MAX, "{count} rows");
                assert_eq!(panel_rows(count, threads, 1 << 20), KERNEL_ROWS, "{count} rows");
            }
        }
        assert_eq!((panel_rows(16_384, 1, 2048), few(16_384, 1)), (384, 126));
    }
}
