//! Transforms of files of old vectors into files of the new space, a batch at a time. Memory is bounded by
//! the batch, never by the file.

use std::path::PathBuf;

use serde::Serialize;

use crate::adapter_file::AdapterSource;
use crate::inputs::RowSelection;
use crate::paths::expect_apart;
use crate::source::{VectorSource, joined_names};
use crate::stream::{self, Columns, F32Writer, Ids, RowBatch, RowReader};
use rehang_core::adapter::{Adapter, Applier, InputScaling, RowOverlap, unlike_pairs};
use rehang_core::check::{expect_count, expect_normalised, expect_width};
use rehang_core::{Error, Finding, FindingCode, Matrix, Progress, Result, Severity, Space};

/// Number of rows that are compared with the vectors that the adapter was fitted on.
const DRIFT_ROWS: usize = 4096;

/// Files to transform, and files that the result goes to.
///
/// | Field | Default | Range |
/// |---|---|---|
/// | `side` | none | one row an old vector; needed by adapters that were fitted with side information |
/// | `rows` | all | values that stand in the file |
/// | `sigma` | not written | `.npy`, another file than `output` |
/// | `force` | no | |
/// | `batch` | 16,384 | 1 or more |
#[derive(Debug, Clone)]
pub struct TransformFiles {
    /// Adapter to apply.
    pub adapter: AdapterSource,
    /// Files of old vectors, one below the other.
    pub input: Vec<VectorSource>,
    /// Files of side information, one below the other.
    pub side: Vec<VectorSource>,
    /// Selection of the rows that are transformed.
    pub rows: Option<RowSelection>,
    /// File for the vectors of the new space: `.npy`, `.parquet` (with ids and σ²), `.fvecs` or
    /// `.safetensors`. Without it nothing is written, and the answer holds the vectors.
    pub output: Option<PathBuf>,
    /// File for the σ² of every vector (the expected squared error).
    pub sigma: Option<PathBuf>,
    /// Whether to go on although vectors of the new space's width do not look like those that the adapter was
    /// fitted on.
    pub force: bool,
    /// Number of rows that are transformed at once.
    pub batch: usize,
}

impl TransformFiles {
    /// Asks for all vectors of `input` to be transformed, without side information. Nothing is written.
    pub fn new(adapter: impl Into<AdapterSource>, input: VectorSource) -> Self {
        Self {
            adapter: adapter.into(),
            input: vec![input],
            side: Vec::new(),
            rows: None,
            output: None,
            sigma: None,
            force: false,
            batch: 16_384,
        }
    }
}

/// Summary of what [`transform`] made.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Transformed {
    /// Number of vectors that were made.
    pub vectors: u64,
    /// File of the adapted vectors.
    pub adapted: Option<PathBuf>,
    /// The adapted vectors and the σ² of each, where they were not written.
    #[serde(skip)]
    pub made: Option<(Matrix, Vec<f32>)>,
    /// File of the σ² of the adapted vectors.
    pub sigma: Option<PathBuf>,
    /// Space of the adapted vectors.
    pub space: Space,
    /// Handicap: what searches should add to the distance of every adapted vector.
    pub handicap: f64,
    /// Mean of σ²; 0 without vectors.
    pub mean_variance: f64,
    /// Whether the old vectors do not look like those that the adapter was fitted on.
    pub drift_suspicious: bool,
    /// Number of old vectors that are among the pairs; `None` where the adapter does not remember its pairs.
    pub among_pairs: Option<RowOverlap>,
    /// Findings that the reader of the result should know.
    #[serde(skip)]
    pub findings: Vec<Finding>,
}

/// Applies an adapter to files of old vectors, and writes vectors of the new space where an output is named.
///
/// # Errors
///
/// [`ErrorKind::InvalidOption`](rehang_core::ErrorKind::InvalidOption) for a batch of 0 and for an output that is
/// an input; as [`unlike_pairs`], [`Applier::apply_rows`], [`stream::open_all`] and [`stream::create`], and
/// as [`RowReader::check_ids`] where the output takes ids. An error about a row names its file and number.
/// Nothing half-written is left.
pub fn transform(files: &TransformFiles, progress: &Progress) -> Result<Transformed> {
    if files.batch == 0 {
        return Err(Error::option("batch", 0, "1 or more"));
    }
    let mut inputs = Vec::new();
    for (name, sources) in [("input", &files.input), ("side", &files.side)] {
        inputs.extend(files_of(sources).map(|path| (name, path)));
    }
    inputs.extend(
        files
            .rows
            .iter()
            .flat_map(|rows| files_of(std::slice::from_ref(&rows.file)))
            .map(|path| ("rows", path)),
    );
    inputs.extend(files.adapter.file().map(|path| ("adapter", path.to_owned())));
    expect_apart(&[("output", files.output.as_ref()), ("sigma", files.sigma.as_ref())], &inputs)?;

    let adapter = &*files.adapter.load()?;
    let what = joined_names(&files.input);
    let mut reader = stream::open_all(&files.input)?;
    adapter.expect_input_width(reader.width()).map_err(|error| error.context(what.clone()))?;
    let mut findings = Vec::new();
    let side_width = adapter.side_dimension();
    let has_side = !files.side.is_empty();
    if has_side && side_width.is_none() {
        let message = "This adapter was fitted without side information, so `side` is not looked at.";
        findings.push(Finding::new(Severity::Warning, FindingCode::IdleParameter, message));
    }
    let mut side = None;
    if let Some(width) = side_width.filter(|_| has_side) {
        let path = joined_names(&files.side);
        let opened = stream::open_all(&files.side)?;
        expect_width(&path, width, opened.width())?;
        expect_count(&what, reader.rows_total() as usize, &path, opened.rows_total() as usize)?;
        side = Some(opened);
    }
    let mask = files.rows.as_ref().map(RowSelection::read).transpose()?;
    if let Some(mask) = &mask {
        mask.expect_rows(&what, reader.rows_total() as usize)?;
    }
    let applier = Applier::new(adapter)?;

    // Every output is opened before any expensive work.
    let has_columns = files.output.as_deref().is_some_and(stream::has_columns);
    if has_columns {
        reader.check_ids()?;
    }
    let ids = reader.id_kind().filter(|_| has_columns);
    let columns = Columns { width: applier.d_new(), ids, sigma2: has_columns };
    let mut writer = files.output.as_ref().map(|path| stream::create(path, columns)).transpose()?;
    let mut sigma_writer = files.sigma.as_ref().map(F32Writer::create).transpose()?;

    progress.begin("transforming", "vectors", reader.rows_total());
    let (d_old, d_new) = (applier.d_old(), applier.d_new());
    let (mut batch, mut side_batch) = (RowBatch::default(), RowBatch::default());
    let (mut out, mut variance, mut raw_norms) = (Vec::new(), Vec::new(), Vec::new());
    if writer.is_none() {
        reserve(reader.rows_total(), d_new, &what, &mut out, &mut variance)?;
    }
    let sketch = adapter.training.pairs_sketch.as_ref();
    let mut overlap = sketch.map(RowOverlap::new);
    let (mut rows, mut variance_sum) = (0, 0.0);
    let mut likeness = Likeness {
        adapter,
        what: &what,
        force: files.force,
        rows: Vec::new(),
        is_decided: false,
        difference: None,
    };
    loop {
        progress.check()?;
        let mut count = reader.next_batch(files.batch, &mut batch)?;
        if count == 0 {
            break;
        }
        let read = count;
        if let Some(side) = &mut side {
            fill(side.as_mut(), count, &mut side_batch)?;
        }
        batch.check_finite(&what, d_old)?;
        let first_row = batch.first_row;
        // This comes before rows are left out, so that an error names the row of the file. A map that scales
        // its input takes any length.
        if adapter.old.normalised && adapter.map.input == InputScaling::AsIs {
            expect_normalised(&what, d_old, first_row, &batch.vectors)?;
        }
        if let Some(mask) = &mask {
            let places = mask.places(first_row as usize..first_row as usize + count);
            count = places.len();
            select_rows(&mut batch, d_old, &places);
            if let Some(side) = &side {
                select_rows(&mut side_batch, side.width(), &places);
            }
        }
        likeness.add(&batch.vectors[..count * d_old])?;
        if let (Some(sketch), Some(overlap)) = (sketch, &mut overlap) {
            overlap.add(sketch, &batch.vectors[..count * d_old], d_old);
        }
        // Without an output, every batch is computed in the place where it stays in memory.
        let first = if writer.is_some() { 0 } else { variance.len() };
        out.resize((first + count) * d_new, 0.0);
        variance.resize(first + count, 0.0);
        raw_norms.resize(count, 0.0);
        let (vectors, variances) = (&mut out[first * d_new..], &mut variance[first..]);
        let side_rows = side.as_ref().map(|_| side_batch.vectors.as_slice());
        applier
            .apply_rows(first_row as usize, &batch.vectors, side_rows, vectors, variances, &mut raw_norms)
            .map_err(|error| error.context(what.clone()))?;
        let variances = &variance[first..];
        if let Some(writer) = &mut writer {
            let ids = if columns.ids.is_some() { batch.ids.as_ref() } else { None };
            writer.write(&out, ids, columns.sigma2.then_some(variances))?;
        }
        if let Some(writer) = &mut sigma_writer {
            writer.write(variances)?;
        }
        rows += count as u64;
        variance_sum += variances.iter().map(|&value| f64::from(value)).sum::<f64>();
        progress.advance(read as u64);
    }
    let unlike = likeness.decided()?;
    // Each file appears whole. Should the second one fail, the error says so, and running again replaces
    // both.
    let in_memory = match writer {
        Some(writer) => {
            let written = writer.commit()?;
            debug_assert_eq!(written, rows);
            None
        }
        None => Some((Matrix::new(d_new, out)?, variance)),
    };
    if let Some(writer) = sigma_writer {
        writer.commit()?;
    }
    if let Some(difference) = &unlike {
        let finding = Finding::new(Severity::Warning, FindingCode::Drift, format!("{difference}."));
        findings.push(finding.may_mean("Expect larger errors; σ² may not show them."));
    }
    if let Some(overlap) = overlap.filter(|overlap| overlap.among_pairs() > 0) {
        findings.push(Finding::new(
            Severity::Note,
            FindingCode::AmongPairs,
            format!(
                "{overlap}; leave these items out when you measure, since the adapter has seen their new vectors (unless the \
                 old model cannot tell other items from those of the pairs)."
            ),
        ));
    }
    Ok(Transformed {
        vectors: rows,
        adapted: files.output.clone(),
        made: in_memory,
        sigma: files.sigma.clone(),
        space: adapter.output_space(),
        handicap: adapter.handicap,
        mean_variance: variance_sum / rows.max(1) as f64,
        drift_suspicious: unlike.is_some(),
        among_pairs: overlap,
        findings,
    })
}

/// Paths of the sources that are files.
fn files_of(sources: &[VectorSource]) -> impl Iterator<Item = PathBuf> {
    sources.iter().filter(|source| source.is_file()).map(|source| source.path.clone())
}

/// Reserves memory for the vectors and the σ² that `rows` rows of `what` become.
fn reserve(rows: u64, d_new: usize, what: &str, out: &mut Vec<f32>, variance: &mut Vec<f32>) -> Result<()> {
    let numbers = usize::try_from(rows).ok().and_then(|rows| rows.checked_mul(d_new));
    let is_there = numbers.is_some_and(|numbers| {
        out.try_reserve_exact(numbers).and(variance.try_reserve_exact(rows as usize)).is_ok()
    });
    if is_there {
        return Ok(());
    }
    let detail =
        format!("{rows} rows of {d_new} numbers do not fit into memory; write them to a file (`output`)");
    Err(Error::corrupt(what, detail))
}

/// Check of whether the rows look like those that the adapter was fitted on. It is decided as soon as there
/// are enough rows.
struct Likeness<'a> {
    adapter: &'a Adapter,
    what: &'a str,
    force: bool,
    /// Rows that are not compared yet.
    rows: Vec<f32>,
    is_decided: bool,
    /// Way in which the rows differ, in words; `None` where they do not.
    difference: Option<String>,
}

impl Likeness<'_> {
    fn add(&mut self, rows: &[f32]) -> Result<()> {
        if self.is_decided {
            return Ok(());
        }
        let most = DRIFT_ROWS * self.adapter.old.dimension;
        self.rows.extend_from_slice(&rows[..rows.len().min(most - self.rows.len())]);
        if self.rows.len() == most {
            self.decided()?;
        }
        Ok(())
    }

    /// Compares the rows collected so far, unless that was done before.
    fn decided(&mut self) -> Result<Option<String>> {
        if !self.is_decided {
            let rows = Matrix::new(self.adapter.old.dimension, std::mem::take(&mut self.rows))?;
            self.difference = unlike_pairs(self.adapter, &rows, self.what, self.force)?;
            self.is_decided = true;
        }
        Ok(self.difference.clone())
    }
}

/// Reads exactly `count` rows.
fn fill(reader: &mut dyn RowReader, count: usize, batch: &mut RowBatch) -> Result<()> {
    let mut all = Vec::with_capacity(count * reader.width());
    while all.len() < count * reader.width() {
        if reader.next_batch(count - all.len() / reader.width(), batch)? == 0 {
            return Err(Error::corrupt("side information", "it ends before the vectors do"));
        }
        all.extend_from_slice(&batch.vectors);
    }
    batch.vectors = all;
    Ok(())
}

fn select_rows(batch: &mut RowBatch, width: usize, places: &[usize]) {
    let mut vectors = Vec::with_capacity(places.len() * width);
    for &row in places {
        vectors.extend_from_slice(&batch.vectors[row * width..(row + 1) * width]);
    }
    batch.vectors = vectors;
    match &mut batch.ids {
        Some(Ids::Integers(ids)) => *ids = places.iter().map(|&row| ids[row]).collect(),
        Some(Ids::Texts(ids)) => *ids = places.iter().map(|&row| ids[row].clone()).collect(),
        None => {}
    }
}
