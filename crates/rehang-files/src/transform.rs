//! Transforms of files of old vectors into files of the new space, a batch at a time. Memory is bounded by
//! the batch, never by the file.

use std::path::PathBuf;

use serde::Serialize;

use crate::adapter_file::AdapterSource;
use crate::inputs::{RowMask, RowSelection};
use crate::paths::expect_apart;
use crate::source::{VectorSource, joined_names};
use crate::stream::{self, Columns, F32Writer, Ids, RowBatch, RowReader, RowWriter};
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
    expect_outputs_apart(files)?;
    let adapter = &*files.adapter.load()?;
    let what = joined_names(&files.input);
    let mut rows = OldRows::open(files, adapter, &what)?;
    let applier = Applier::new(adapter)?;
    // Every output is opened before any expensive work.
    let mut outputs = Outputs::open(files, &*rows.reader, applier.d_new())?;

    progress.begin("transforming", "vectors", rows.reader.rows_total());
    outputs.reserve(rows.reader.rows_total(), &what)?;
    let sketch = adapter.training.pairs_sketch.as_ref();
    let mut overlap = sketch.map(RowOverlap::new);
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
        let count = rows.read_batch(files.batch)?;
        if count == 0 {
            break;
        }
        likeness.add(&rows.batch.vectors)?;
        if let (Some(sketch), Some(overlap)) = (sketch, &mut overlap) {
            overlap.add(sketch, &rows.batch.vectors, applier.d_old());
        }
        outputs.add(&applier, &rows)?;
        progress.advance(count as u64);
    }
    let unlike = likeness.decided()?;
    let (vectors, variance_sum) = (outputs.rows, outputs.variance_sum);
    Ok(Transformed {
        vectors,
        adapted: files.output.clone(),
        made: outputs.commit()?,
        sigma: files.sigma.clone(),
        space: adapter.output_space(),
        handicap: adapter.handicap,
        mean_variance: variance_sum / vectors.max(1) as f64,
        drift_suspicious: unlike.is_some(),
        among_pairs: overlap,
        findings: findings(files, adapter, unlike.as_deref(), overlap),
    })
}

/// Fails where an output would be written over an input.
fn expect_outputs_apart(files: &TransformFiles) -> Result<()> {
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
    expect_apart(&[("output", files.output.as_ref()), ("sigma", files.sigma.as_ref())], &inputs)
}

/// Paths of the sources that are files.
fn files_of(sources: &[VectorSource]) -> impl Iterator<Item = PathBuf> {
    sources.iter().filter(|source| source.is_file()).map(|source| source.path.clone())
}

/// Finds what the reader of the result should know: side information that is not looked at, the way in which
/// the rows are `unlike` those of the fit, and rows that are among its pairs.
fn findings(
    files: &TransformFiles,
    adapter: &Adapter,
    unlike: Option<&str>,
    overlap: Option<RowOverlap>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !files.side.is_empty() && adapter.side_dimension().is_none() {
        let message = "This adapter was fitted without side information, so `side` is not looked at.";
        findings.push(Finding::new(Severity::Warning, FindingCode::IdleParameter, message));
    }
    if let Some(difference) = unlike {
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
    findings
}

/// Old vectors and their side information, read and checked a batch at a time.
struct OldRows<'a> {
    adapter: &'a Adapter,
    /// Name of the files, for errors.
    what: &'a str,
    reader: Box<dyn RowReader>,
    side: Option<Box<dyn RowReader>>,
    mask: Option<RowMask>,
    /// Rows of the last batch that take part.
    batch: RowBatch,
    side_batch: RowBatch,
}

impl<'a> OldRows<'a> {
    /// Opens the files. Fails where they do not go with the adapter, or with each other.
    fn open(files: &TransformFiles, adapter: &'a Adapter, what: &'a str) -> Result<Self> {
        let reader = stream::open_all(&files.input)?;
        adapter.expect_input_width(reader.width()).map_err(|error| error.context(what))?;
        let mut side = None;
        if let Some(width) = adapter.side_dimension().filter(|_| !files.side.is_empty()) {
            let path = joined_names(&files.side);
            let opened = stream::open_all(&files.side)?;
            expect_width(&path, width, opened.width())?;
            expect_count(what, reader.rows_total() as usize, &path, opened.rows_total() as usize)?;
            side = Some(opened);
        }
        let mask = files.rows.as_ref().map(RowSelection::read).transpose()?;
        if let Some(mask) = &mask {
            mask.expect_rows(what, reader.rows_total() as usize)?;
        }
        let (batch, side_batch) = (RowBatch::default(), RowBatch::default());
        Ok(Self { adapter, what, reader, side, mask, batch, side_batch })
    }

    /// Reads up to `rows_max` more rows of the files, and leaves those in the batch that take part. Returns
    /// how many were read, 0 at the end.
    fn read_batch(&mut self, rows_max: usize) -> Result<usize> {
        let count = self.reader.next_batch(rows_max, &mut self.batch)?;
        if count == 0 {
            return Ok(0);
        }
        if let Some(side) = &mut self.side {
            fill(side.as_mut(), count, &mut self.side_batch)?;
        }
        let d_old = self.reader.width();
        self.batch.check_finite(self.what, d_old)?;
        let first_row = self.batch.first_row;
        // This comes before rows are left out, so that an error names the row of the file. A map that scales
        // its input takes any length.
        if self.adapter.old.normalised && self.adapter.map.input == InputScaling::AsIs {
            expect_normalised(self.what, d_old, first_row, &self.batch.vectors)?;
        }
        if let Some(mask) = &self.mask {
            let places = mask.places(first_row as usize..first_row as usize + count);
            select_rows(&mut self.batch, d_old, &places);
            if let Some(side) = &self.side {
                select_rows(&mut self.side_batch, side.width(), &places);
            }
        }
        Ok(count)
    }

    /// Returns the side information of the batch; `None` where none is read.
    fn side_rows(&self) -> Option<&[f32]> {
        self.side.as_ref().map(|_| self.side_batch.vectors.as_slice())
    }
}

/// Adapted vectors on their way into files, or where no file is named, in memory.
struct Outputs {
    columns: Columns,
    writer: Option<Box<dyn RowWriter>>,
    sigma_writer: Option<F32Writer>,
    /// Adapted vectors of the last batch; without a file, of all batches.
    vectors: Vec<f32>,
    /// σ² of these vectors.
    variance: Vec<f32>,
    raw_norms: Vec<f32>,
    /// Number of all vectors that were made.
    rows: u64,
    /// Sum of σ² over all of them.
    variance_sum: f64,
}

impl Outputs {
    /// Opens the files that are named, for vectors of `d_new` coordinates.
    fn open(files: &TransformFiles, reader: &dyn RowReader, d_new: usize) -> Result<Self> {
        let has_columns = files.output.as_deref().is_some_and(stream::has_columns);
        if has_columns {
            reader.check_ids()?;
        }
        let ids = reader.id_kind().filter(|_| has_columns);
        let columns = Columns { width: d_new, ids, sigma2: has_columns };
        let writer = files.output.as_ref().map(|path| stream::create(path, columns)).transpose()?;
        let sigma_writer = files.sigma.as_ref().map(F32Writer::create).transpose()?;
        let (vectors, variance, raw_norms) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { columns, writer, sigma_writer, vectors, variance, raw_norms, rows: 0, variance_sum: 0.0 })
    }

    /// Reserves memory for what `rows` rows of `what` become, where no file takes it.
    fn reserve(&mut self, rows: u64, what: &str) -> Result<()> {
        if self.writer.is_some() {
            return Ok(());
        }
        let (d_new, vectors, variance) = (self.columns.width, &mut self.vectors, &mut self.variance);
        let numbers = usize::try_from(rows).ok().and_then(|rows| rows.checked_mul(d_new));
        let is_there = numbers.is_some_and(|numbers| {
            vectors.try_reserve_exact(numbers).and(variance.try_reserve_exact(rows as usize)).is_ok()
        });
        if is_there {
            return Ok(());
        }
        let detail =
            format!("{rows} rows of {d_new} numbers do not fit into memory; write them to a file (`output`)");
        Err(Error::corrupt(what, detail))
    }

    /// Adapts a batch of rows, and writes it where files are named.
    fn add(&mut self, applier: &Applier, rows: &OldRows<'_>) -> Result<()> {
        let (batch, d_new) = (&rows.batch, applier.d_new());
        let count = batch.vectors.len() / applier.d_old();
        // Without an output, every batch is computed in the place where it stays in memory.
        let first = if self.writer.is_some() { 0 } else { self.variance.len() };
        self.vectors.resize((first + count) * d_new, 0.0);
        self.variance.resize(first + count, 0.0);
        self.raw_norms.resize(count, 0.0);
        let (vectors, variances) = (&mut self.vectors[first * d_new..], &mut self.variance[first..]);
        let (first_row, norms) = (batch.first_row as usize, &mut self.raw_norms[..]);
        applier
            .apply_rows(first_row, &batch.vectors, rows.side_rows(), vectors, variances, norms)
            .map_err(|error| error.context(rows.what))?;
        let variances = &self.variance[first..];
        if let Some(writer) = &mut self.writer {
            let ids = if self.columns.ids.is_some() { batch.ids.as_ref() } else { None };
            writer.write(&self.vectors, ids, self.columns.sigma2.then_some(variances))?;
        }
        if let Some(writer) = &mut self.sigma_writer {
            writer.write(variances)?;
        }
        self.rows += count as u64;
        self.variance_sum += variances.iter().map(|&value| f64::from(value)).sum::<f64>();
        Ok(())
    }

    /// Lets the files appear. Returns the adapted vectors and the σ² of each where they are not written.
    fn commit(self) -> Result<Option<(Matrix, Vec<f32>)>> {
        // Each file appears whole. Should the second one fail, the error says so, and running again replaces
        // both.
        let in_memory = match self.writer {
            Some(writer) => {
                let written = writer.commit()?;
                debug_assert_eq!(written, self.rows);
                None
            }
            None => Some((Matrix::new(self.columns.width, self.vectors)?, self.variance)),
        };
        if let Some(writer) = self.sigma_writer {
            writer.commit()?;
        }
        Ok(in_memory)
    }
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
