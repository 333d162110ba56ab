//! Reading and writing of vectors a few rows at a time. Memory is bounded by the batch, never by the file.

use std::path::Path;

use rehang_core::check::{expect_count, expect_width};
use rehang_core::{Error, ErrorKind, Result};

use crate::parquet;
use crate::raw::{Header, Layout, RawWriter};
use crate::source::{Format, VectorSource, expect_npy};
use crate::{npy, safetensors, vecs};

pub use crate::rows::{Columns, IdKind, Ids, RowBatch, RowReader, RowWriter};

/// Opens vectors for reading from front to back.
///
/// | Extension | What is read |
/// |---|---|
/// | `.npy` | a two-dimensional array of any real number type, either byte order, C or Fortran order |
/// | `.parquet`, `.pq` | a column of lists of equal length (`FixedSizeList`, `List`, `LargeList`) of numbers |
/// | `.fvecs`, `.bvecs`, `.ivecs` | all rows |
/// | `.fbin`, `.u8bin`, `.i8bin` | all rows |
/// | `.safetensors` | a two-dimensional tensor |
///
/// # Errors
///
/// [`ErrorKind::Io`] where the file cannot be opened, [`ErrorKind::Empty`] where it has no rows,
/// [`ErrorKind::Corrupt`] where its content is not what its name says, [`ErrorKind::InvalidOption`] for an
/// unknown extension.
pub fn open(source: &VectorSource) -> Result<Box<dyn RowReader>> {
    if let Some(content) = &source.given {
        return content.open(source);
    }
    let format = source.format("vectors", Format::VECTORS)?;
    source.check_column(format)?;
    Ok(match format {
        Format::Npy => Box::new(npy::open_rows(source.file())?),
        Format::Parquet => parquet::open_rows(source)?,
        Format::Fvecs | Format::Bvecs | Format::Ivecs => Box::new(vecs::open_rows(source.file(), format)?),
        Format::Safetensors => Box::new(safetensors::open_rows(source)?),
        Format::Fbin | Format::U8bin | Format::I8bin => Box::new(vecs::open_block(source.file(), format)?),
        Format::Text | Format::JsonLines => return Err(source.format_error("vectors", Format::VECTORS)),
    })
}

/// Opens several files as one, row after row in the given order.
///
/// Ids are offered only where every file has them.
///
/// # Errors
///
/// As [`open`]; [`ErrorKind::WidthMismatch`], naming the file that is not as wide as the first;
/// [`ErrorKind::Empty`] where no file is given.
pub fn open_all(sources: &[VectorSource]) -> Result<Box<dyn RowReader>> {
    let mut readers = Vec::with_capacity(sources.len());
    for source in sources {
        readers.push(open(source)?);
    }
    let Some(width) = readers.first().map(|reader| reader.width()) else {
        return Err(ErrorKind::Empty { what: "the list of files".into() }.into());
    };
    for (source, reader) in sources.iter().zip(&readers) {
        expect_width(source, width, reader.width())?;
    }
    if readers.len() == 1 {
        return Ok(readers.remove(0));
    }
    let of_both = |a: Option<IdKind>, b: Option<IdKind>| if a? == b? { a } else { Some(IdKind::Text) };
    let ids = readers.iter().map(|reader| reader.id_kind()).reduce(of_both).flatten();
    let rows_total = readers.iter().map(|reader| reader.rows_total()).sum();
    Ok(Box::new(Chain { readers, current: 0, first_row: 0, width, rows_total, ids }))
}

/// Reader of several files as one.
struct Chain {
    readers: Vec<Box<dyn RowReader>>,
    current: usize,
    first_row: u64,
    width: usize,
    rows_total: u64,
    ids: Option<IdKind>,
}

impl RowReader for Chain {
    fn width(&self) -> usize {
        self.width
    }

    fn rows_total(&self) -> u64 {
        self.rows_total
    }

    fn id_kind(&self) -> Option<IdKind> {
        self.ids
    }

    fn check_ids(&self) -> Result<()> {
        self.readers.iter().try_for_each(|reader| reader.check_ids())
    }

    fn next_batch(&mut self, rows_max: usize, batch: &mut RowBatch) -> Result<usize> {
        while self.current < self.readers.len() {
            let rows = self.readers[self.current].next_batch(rows_max, batch)?;
            if rows > 0 {
                batch.first_row = self.first_row;
                self.first_row += rows as u64;
                batch.ids = self.ids.and_then(|kind| {
                    let mut ids = Ids::none(kind);
                    ids.append(batch.ids.take()?);
                    Some(ids)
                });
                return Ok(rows);
            }
            self.current += 1;
        }
        batch.begin(self.first_row);
        Ok(0)
    }
}

/// Opens an output for vectors. Its format follows the extension (`.npy`, `.parquet`, `.pq`, `.fvecs`,
/// `.safetensors`). Fails at once where the file could not be written at the end.
///
/// # Errors
///
/// [`ErrorKind::Io`], naming the path; [`ErrorKind::InvalidOption`] for an extension that cannot be written,
/// or for ids or σ² beside the vectors in a format without columns.
pub fn create(path: impl AsRef<Path>, columns: Columns) -> Result<Box<dyn RowWriter>> {
    let path = path.as_ref();
    if columns.width == 0 {
        return Err(Error::option("width", 0, "at least 1"));
    }
    let format = Format::from_path(path);
    if format != Some(Format::Parquet) && (columns.ids.is_some() || columns.sigma2) {
        let what = "an output with ids or sigma2 beside the vectors";
        return Err(Error::option(what, path.display(), "a .parquet file"));
    }
    let raw = |layout: Layout, header: Header| RawWriter::create(path, columns.width, layout, header);
    let inner: Box<dyn RowWriter> = match format {
        Some(Format::Npy) => Box::new(raw(Layout::Rows, npy::matrix_header)?),
        Some(Format::Parquet) => parquet::create(path, columns)?,
        Some(Format::Fvecs) => Box::new(raw(Layout::Prefixed, |_, _| Vec::new())?),
        Some(Format::Safetensors) => Box::new(raw(Layout::Rows, safetensors::header)?),
        _ => {
            let expected = "a name that ends in .npy, .parquet, .pq, .fvecs or .safetensors";
            return Err(Error::option("an output of vectors", path.display(), expected));
        }
    };
    Ok(Box::new(Checked { inner, columns }))
}

/// Whether an output of this name holds ids and σ² beside its vectors.
pub(crate) fn has_columns(path: &Path) -> bool {
    Format::from_path(path) == Some(Format::Parquet)
}

/// Writer that checks the shapes in one place, before any format sees them.
struct Checked {
    inner: Box<dyn RowWriter>,
    columns: Columns,
}

impl RowWriter for Checked {
    fn write(&mut self, vectors: &[f32], ids: Option<&Ids>, sigma2: Option<&[f32]>) -> Result<()> {
        let Columns { width, ids: kind, sigma2: has_sigma2 } = self.columns;
        if !vectors.len().is_multiple_of(width) {
            return expect_width("rows to write", width, vectors.len() % width);
        }
        if ids.map(Ids::kind) != kind {
            return Err(Error::missing("ids of the kind the file was created with", "writing rows"));
        }
        if sigma2.is_some() != has_sigma2 {
            return Err(Error::missing("sigma2 as the file was created with", "writing rows"));
        }
        let rows = vectors.len() / width;
        for (what, count) in [("ids", ids.map(Ids::len)), ("sigma2", sigma2.map(<[f32]>::len))] {
            expect_count("rows to write", rows, what, count.unwrap_or(rows))?;
        }
        self.inner.write(vectors, ids, sigma2)
    }

    fn commit(self: Box<Self>) -> Result<u64> {
        self.inner.commit()
    }
}

/// Writer of a one-dimensional `.npy` of `f32`, piece by piece: σ² beside streamed vectors.
#[derive(Debug)]
pub struct F32Writer(RawWriter);

impl F32Writer {
    /// Opens the output. Fails at once where it could not be written at the end.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`], [`ErrorKind::InvalidOption`] for another extension than `.npy`.
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        expect_npy(path, "an output of numbers")?;
        RawWriter::create(path, 1, Layout::Rows, npy::list_header).map(Self)
    }

    /// Appends numbers.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`].
    pub fn write(&mut self, values: &[f32]) -> Result<()> {
        self.0.put(values.len(), values.iter().map(|value| value.to_le_bytes()))
    }

    /// Makes the file durable and visible, and returns its count of numbers.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`].
    pub fn commit(self) -> Result<u64> {
        self.0.finish()
    }
}
