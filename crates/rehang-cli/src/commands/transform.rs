//! `rehang transform`: old vectors in, vectors of the new space out, a batch at a time.

use rehang::adapter::{Applier, InputScaling, RowOverlap};
use rehang::files::stream::{self, F32Writer, RowBatch, RowReader};
use rehang::files::{Columns, VectorSource};
use rehang::{Adapter, Error, Matrix, Progress, Result};
use serde_json::json;

use super::{Outcome, expect_apart, print, say};
use crate::arguments::Transform;
use crate::bar::with_bar;
use crate::drift::drift;
use crate::guards::{among_pairs_text, among_pairs_value};
use crate::input::{expect_count, expect_normalised, expect_width, files_of, rows_file};
use crate::rows::RowFilter;

/// Rows that are compared with the vectors that the adapter was fitted on.
const DRIFT_ROWS: usize = 4096;

/// Transforms a file.
pub fn run(arguments: &Transform, json: bool) -> Result<Outcome> {
    let adapter = Adapter::load(&arguments.adapter)?;
    let outcome = with_bar(|progress| stream_through(&adapter, arguments, progress))?;
    let path = arguments.output.display().to_string();
    let value = json!({
        "vectors": outcome.rows,
        "adapted": path,
        "sigma": arguments.sigma.as_ref().map(|path| path.display().to_string()),
        "space": adapter.output_space(),
        "handicap": adapter.handicap,
        "mean_variance": outcome.mean_variance,
        "drift_suspicious": outcome.suspicious,
        "among_pairs": outcome.overlap.map(|overlap| among_pairs_value(&overlap)),
    });
    if let Some(overlap) = outcome.overlap.filter(|overlap| overlap.among_pairs() > 0) {
        say(&format!(
            "Note: {}; leave these items out when you measure, since the adapter has seen their new vectors (unless the old model \
             cannot tell other items from those of the pairs).",
            among_pairs_text(&overlap)
        ));
    }
    let text = format!("{} vectors of space {} written to {path}\n", outcome.rows, adapter.output_space());
    print(json, &value, &text)?;
    Ok(if outcome.suspicious { Outcome::WithRefusals } else { Outcome::Done })
}

struct Streamed {
    rows: u64,
    mean_variance: f64,
    suspicious: bool,
    overlap: Option<RowOverlap>,
}

fn stream_through(adapter: &Adapter, arguments: &Transform, progress: &Progress) -> Result<Streamed> {
    if arguments.batch == 0 {
        return Err(Error::option("--batch", 0, "1 or more"));
    }
    let rows_path = rows_file(&arguments.selection)?;
    let mut inputs = files_of(&[
        ("the old vectors", arguments.input.as_slice()),
        ("--side", arguments.side.as_slice()),
        ("--rows", rows_path.as_slice()),
    ])?;
    inputs.push(("the adapter", arguments.adapter.clone()));
    expect_apart(&[("-o", Some(&arguments.output)), ("--sigma", arguments.sigma.as_ref())], &inputs)?;
    let what = arguments.input.join(", ");
    let mut reader = open(&arguments.input)?;
    adapter.expect_input_width(reader.width()).map_err(|error| error.context(what.clone()))?;
    let side_width = adapter.side_dimension();
    let has_side = !arguments.side.is_empty();
    if has_side && side_width.is_none() {
        say("Warning: this adapter was fitted without side information, so --side is not looked at.");
    }
    let mut side = None;
    if let Some(width) = side_width.filter(|_| has_side) {
        let path = arguments.side.join(", ");
        let opened = open(&arguments.side)?;
        expect_width(&path, width, opened.width())?;
        expect_count(&what, reader.rows_total() as usize, &path, opened.rows_total() as usize)?;
        side = Some(opened);
    }
    let filter = RowFilter::new(&arguments.selection, reader.rows_total(), &what)?;
    let applier = Applier::new(adapter)?;

    // Every output is opened before the first expensive second.
    let extension =
        arguments.output.extension().map(|extension| extension.to_string_lossy().to_ascii_lowercase());
    let has_columns = matches!(extension.as_deref(), Some("parquet" | "pq"));
    let columns = Columns {
        width: applier.d_new(),
        ids: if has_columns { reader.id_kind() } else { None },
        sigma2: has_columns,
    };
    let mut writer = stream::create(&arguments.output, columns)?;
    let mut sigma_writer = arguments.sigma.as_ref().map(F32Writer::create).transpose()?;

    progress.begin("transforming", "vectors", reader.rows_total());
    let (d_old, d_new) = (applier.d_old(), applier.d_new());
    let (mut batch, mut side_batch) = (RowBatch::default(), RowBatch::default());
    let (mut out, mut variance, mut raw_norms) = (Vec::new(), Vec::new(), Vec::new());
    let sketch = adapter.training.pairs_sketch.as_ref();
    let mut overlap = sketch.map(RowOverlap::new);
    let (mut rows, mut variance_sum) = (0, 0.0);
    let mut likeness = Likeness::new(adapter, &what, arguments.force);
    loop {
        progress.check()?;
        let mut count = reader.next_batch(arguments.batch, &mut batch)?;
        if count == 0 {
            break;
        }
        let read = count;
        if let Some(side) = &mut side {
            fill(side.as_mut(), count, &mut side_batch)?;
        }
        batch.check_finite(&what, d_old)?;
        let first_row = batch.first_row;
        // Before rows are left out, so that the row that is named is the file's. A map that scales its input takes any length.
        if adapter.old.normalised && adapter.map.input == InputScaling::AsIs {
            expect_normalised(&what, d_old, first_row, &batch.vectors)?;
        }
        let kept = filter.keep(first_row, count);
        if let Some(kept) = &kept {
            count = kept.len();
            select_rows(&mut batch, d_old, kept);
            if let Some(side) = &side {
                select_rows(&mut side_batch, side.width(), kept);
            }
        }
        likeness.add(&batch.vectors[..count * d_old])?;
        if let (Some(sketch), Some(overlap)) = (sketch, &mut overlap) {
            overlap.add(sketch, &batch.vectors[..count * d_old], d_old);
        }
        out.resize(count * d_new, 0.0);
        variance.resize(count, 0.0);
        raw_norms.resize(count, 0.0);
        let side_rows = side.as_ref().map(|_| side_batch.vectors.as_slice());
        applier
            .apply_rows(
                first_row as usize,
                &batch.vectors,
                side_rows,
                &mut out,
                &mut variance,
                &mut raw_norms,
            )
            .map_err(|error| error.context(what.clone()))?;
        let ids = if columns.ids.is_some() { batch.ids.as_ref() } else { None };
        writer.write(&out, ids, columns.sigma2.then_some(variance.as_slice()))?;
        if let Some(writer) = &mut sigma_writer {
            writer.write(&variance)?;
        }
        rows += count as u64;
        variance_sum += variance.iter().map(|&value| f64::from(value)).sum::<f64>();
        progress.advance(read as u64);
    }
    let suspicious = likeness.is_suspicious()?;
    // Each file appears whole; should the second fail, the error says so and running again replaces both.
    let written = writer.commit()?;
    if let Some(writer) = sigma_writer {
        writer.commit()?;
    }
    debug_assert_eq!(written, rows);
    Ok(Streamed { rows, mean_variance: variance_sum / rows.max(1) as f64, suspicious, overlap })
}

/// Whether the rows look like those that the adapter was fitted on, decided as soon as there are enough of them.
struct Likeness<'a> {
    adapter: &'a Adapter,
    what: &'a str,
    force: bool,
    /// Rows that are not yet compared.
    rows: Vec<f32>,
    suspicious: Option<bool>,
}

impl<'a> Likeness<'a> {
    fn new(adapter: &'a Adapter, what: &'a str, force: bool) -> Self {
        Self { adapter, what, force, rows: Vec::new(), suspicious: None }
    }

    fn add(&mut self, rows: &[f32]) -> Result<()> {
        if self.suspicious.is_some() {
            return Ok(());
        }
        let most = DRIFT_ROWS * self.adapter.old.dimension;
        self.rows.extend_from_slice(&rows[..rows.len().min(most - self.rows.len())]);
        if self.rows.len() == most {
            self.is_suspicious()?;
        }
        Ok(())
    }

    /// Compares what there is, unless that is done already.
    fn is_suspicious(&mut self) -> Result<bool> {
        if let Some(known) = self.suspicious {
            return Ok(known);
        }
        let rows = Matrix::new(self.adapter.old.dimension, std::mem::take(&mut self.rows))?;
        let seen = drift(self.adapter, &rows, self.what, self.force)?;
        if let Some(seen) = &seen {
            say(&format!("Warning: {seen}. Expect larger errors; σ² may not show them."));
        }
        Ok(*self.suspicious.insert(seen.is_some()))
    }
}

/// Opens one file, or several below each other.
fn open(paths: &[String]) -> Result<Box<dyn RowReader>> {
    let sources: Vec<VectorSource> =
        paths.iter().map(|path| VectorSource::parse(path)).collect::<Result<_>>()?;
    stream::open_all(&sources)
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

fn select_rows(batch: &mut RowBatch, width: usize, kept: &[usize]) {
    let mut vectors = Vec::with_capacity(kept.len() * width);
    for &row in kept {
        vectors.extend_from_slice(&batch.vectors[row * width..(row + 1) * width]);
    }
    batch.vectors = vectors;
    if let Some(ids) = &mut batch.ids {
        use rehang::files::Ids;
        *ids = match ids {
            Ids::Integers(ids) => Ids::Integers(kept.iter().map(|&row| ids[row]).collect()),
            Ids::Texts(ids) => Ids::Texts(kept.iter().map(|&row| ids[row].clone()).collect()),
        };
    }
}
