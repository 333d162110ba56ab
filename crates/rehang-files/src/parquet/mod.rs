//! Parquet files: vectors as a column of lists of equal length, with ids and other values in columns beside
//! it.
//!
//! Columns are read and written below the Arrow layer. A column of vectors is one stream of numbers, which
//! repetition levels cut into rows. Where every row is complete, the numbers already are the matrix. So they
//! are decoded straight into the batch, and the levels are only counted. Building Arrow lists first would
//! touch every number several times, and compiling the Arrow crates takes longer than compiling all of this
//! one.

mod arrow_schema;
mod thrift;
mod write;

use std::collections::BTreeMap;
use std::io::{BufReader, Cursor, ErrorKind as Io, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use ::parquet::basic::{Compression, ConvertedType, Encoding, LogicalType, Type as Physical};
use ::parquet::column::page::{Page, PageMetadata, PageReader};
use ::parquet::column::reader::ColumnReaderImpl;
use ::parquet::data_type::{
    BoolType, ByteArrayType, DataType, DoubleType, FixedLenByteArrayType, FloatType, Int32Type, Int64Type,
};
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::{FooterTail, ParquetMetaData, ParquetMetaDataReader};
use ::parquet::file::reader::{ChunkReader, Length, SerializedPageReader};
use bytes::Bytes;
use half::f16;

use thrift::{PageHeader, page_header};
use write::ParquetWriter;

use crate::given::{Scalars, WHOLE_END};
use crate::opened::open;
use crate::rows::{Columns, IdKind, Ids, RowBatch, RowReader, RowWriter};
use crate::source::{IDS, VectorSource, WIDTH_MAX, Wish};
use rehang_core::{Error, ErrorKind, Result};

/// Most values that a page may claim. Pages hold about 1 MiB; this limit keeps a damaged count from filling
/// memory.
const PAGE_VALUES_MAX: usize = 1 << 28;

/// Values that a column may have whatever the size of its file, since a constant column takes next to no
/// room. 64 MiB of `f32`.
const VALUES_FREE: u64 = 1 << 24;
/// Values, or bytes of text, that a larger column may have for each byte of its file. Without this limit, a
/// file of a few hundred bytes could fill the memory.
const VALUES_PER_BYTE_MAX: u64 = 1024;

/// Bytes of text that a column may have whatever the size of its file, since a repeated text takes next to no
/// room.
const TEXT_BYTES_FREE: u64 = 1 << 26;
/// Number of texts that are read at once, before their lengths are added up. Each may be a page of its own,
/// of [`PAGE_BYTES_FREE`].
const TEXTS_AT_ONCE: usize = 16;

/// Bytes that a page may claim to hold whatever its compressed size. Pages hold about 1 MiB.
const PAGE_BYTES_FREE: u64 = 1 << 26;
/// Bytes that a larger page may claim for each compressed byte: the most that LZ4 packs, and eight times what
/// Snappy does. The room is made, and filled with zeros, before anything is unpacked.
const PAGE_BYTES_PER_BYTE_MAX: u64 = 256;

/// Type of the values of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value {
    Float16,
    Float32,
    Float64,
    Int32,
    Int64,
    /// Unsigned, kept in a signed word of the same size.
    UInt32,
    UInt64,
    Boolean,
    Text,
    Other,
}

impl Value {
    fn name(self) -> &'static str {
        match self {
            Self::Float16 => "float16",
            Self::Float32 => "float32",
            Self::Float64 => "float64",
            Self::Int32 | Self::Int64 | Self::UInt32 | Self::UInt64 => "integers",
            Self::Boolean => "truth values",
            Self::Text => "text",
            Self::Other => "another type",
        }
    }

    fn is_integer(self) -> bool {
        matches!(self, Self::Int32 | Self::Int64 | Self::UInt32 | Self::UInt64 | Self::Boolean)
    }

    fn is_float(self) -> bool {
        matches!(self, Self::Float16 | Self::Float32 | Self::Float64)
    }

    fn id_kind(self) -> Option<IdKind> {
        match self {
            // Unsigned 64-bit ids may not fit, so they travel as text.
            Self::Text | Self::UInt64 => Some(IdKind::Text),
            Self::Int32 | Self::Int64 | Self::UInt32 => Some(IdKind::Integer),
            _ => None,
        }
    }
}

/// Number of values that a row of a column has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    One,
    List,
    /// Structures, maps, lists of lists.
    Nested,
}

/// Column of a file, as the user sees it.
#[derive(Debug, Clone)]
struct Column {
    name: String,
    leaf: usize,
    shape: Shape,
    value: Value,
    /// Whether a column of text does not declare itself as text; its values may then be other bytes.
    is_bytes: bool,
}

impl Column {
    /// Name of the type of the column's values, for people.
    fn kind(&self) -> &'static str {
        if self.is_bytes { "bytes" } else { self.value.name() }
    }
}

/// An open file, with its columns.
struct Table {
    source: VectorSource,
    /// File that every leaf reads. It stays open, so that a new file of the same name is never mixed in.
    file: Arc<CheckedPages>,
    bytes: u64,
    metadata: Arc<ParquetMetaData>,
    columns: Vec<Column>,
    rows: usize,
}

/// Runs code of the Parquet crate on data that may be damaged or hostile. A panic of that code becomes an
/// error.
fn guarded<T>(source: &VectorSource, work: impl FnOnce() -> Result<T>) -> Result<T> {
    rehang_core::catch_panic(work)
        .unwrap_or_else(|| Err(Error::corrupt(source, "its content is damaged (the decoder gave up)")))
}

fn damaged(source: &VectorSource, error: &ParquetError) -> Error {
    if let ParquetError::External(inner) = error
        && let Some(io) = inner.downcast_ref::<std::io::Error>()
    {
        return match io.kind() {
            Io::InvalidData => Error::corrupt(source, io),
            Io::UnexpectedEof => Error::corrupt(source, "a page ends too soon"),
            _ => Error::io("read", &source.path, io),
        };
    }
    Error::corrupt(source, error)
}

/// Reads a file's description of itself at its end: a footer, its length and four letters.
fn footer(mut file: &std::fs::File) -> Result<ParquetMetaData, ParquetError> {
    let bytes = file.seek(SeekFrom::End(0))?;
    let mut tail = [0; 8];
    let short = || ParquetError::General("it ends too soon".into());
    let before = bytes.checked_sub(tail.len() as u64).ok_or_else(short)?;
    file.seek(SeekFrom::Start(before))?;
    file.read_exact(&mut tail)?;
    let tail = FooterTail::try_new(&tail)?;
    let length = tail.metadata_length() as u64;
    let start = before.checked_sub(length).ok_or_else(short)?;
    if tail.is_encrypted_footer() {
        return Err(ParquetError::General("it is encrypted".into()));
    }
    file.seek(SeekFrom::Start(start))?;
    ParquetMetaDataReader::decode_metadata(&thrift::footer(BufReader::new(file), length)?)
}

impl Table {
    fn open(source: &VectorSource) -> Result<Self> {
        use ConvertedType::{INT_8, INT_16, INT_32, INT_64, NONE, UINT_8, UINT_16, UINT_32, UINT_64};

        let opened = open(source.file())?;
        if opened.bytes == 0 {
            return Err(opened.empty());
        }
        let (file, _) = opened.file.into_parts();
        let metadata = guarded(source, || {
            footer(&file).map_err(|error| match error {
                ParquetError::External(_) => damaged(source, &error),
                _ => Error::corrupt(source, format!("it is no Parquet file, or truncated ({error})")),
            })
        })?;
        let schema = metadata.file_metadata().schema_descr();
        let mut columns: Vec<Column> = Vec::new();
        for leaf in 0..schema.num_columns() {
            let description = schema.column(leaf);
            let parts = description.path().parts();
            let Some(name) = parts.first() else { continue };
            let shape = match (description.max_rep_level(), parts.len()) {
                (0, 1) => Shape::One,
                (1, _) => Shape::List,
                _ => Shape::Nested,
            };
            if let Some(last) = columns.last_mut()
                && last.name == *name
            {
                // A second leaf below one name makes it a structure.
                last.shape = Shape::Nested;
                continue;
            }
            let integer = matches!(description.logical_type_ref(), None | Some(LogicalType::Integer(_)));
            let unsigned = matches!(description.converted_type(), UINT_8 | UINT_16 | UINT_32 | UINT_64);
            let counted =
                unsigned || matches!(description.converted_type(), NONE | INT_8 | INT_16 | INT_32 | INT_64);
            let value = match description.physical_type() {
                Physical::FLOAT => Value::Float32,
                Physical::DOUBLE => Value::Float64,
                Physical::BOOLEAN => Value::Boolean,
                Physical::INT32 if integer && unsigned => Value::UInt32,
                Physical::INT64 if integer && unsigned => Value::UInt64,
                Physical::INT32 if integer && counted => Value::Int32,
                Physical::INT64 if integer && counted => Value::Int64,
                Physical::BYTE_ARRAY if description.converted_type() != ConvertedType::DECIMAL => Value::Text,
                Physical::FIXED_LEN_BYTE_ARRAY
                    if description.type_length() == 2
                        && matches!(description.logical_type_ref(), Some(LogicalType::Float16)) =>
                {
                    Value::Float16
                }
                _ => Value::Other,
            };
            let is_bytes = value == Value::Text
                && description.converted_type() == NONE
                && description.logical_type_ref().is_none();
            columns.push(Column { name: name.clone(), leaf, shape, value, is_bytes });
        }
        let (mut rows, mut claimed) = (0_usize, 0_u64);
        for group in metadata.row_groups() {
            // The Parquet crate does not check these numbers.
            let placed = group.columns().iter().all(|chunk| {
                let start = chunk.dictionary_page_offset().unwrap_or(i64::MAX).min(chunk.data_page_offset());
                let end = start.checked_add(chunk.compressed_size());
                start >= 0
                    && chunk.compressed_size() >= 0
                    && end.is_some_and(|end| end.cast_unsigned() <= opened.bytes)
            });
            if !placed {
                return Err(Error::corrupt(source, "its footer places a column outside of the file"));
            }
            let most = opened.bytes.saturating_mul(VALUES_PER_BYTE_MAX).max(VALUES_FREE);
            let of_group = group
                .columns()
                .iter()
                .map(parquet::file::metadata::ColumnChunkMetaData::num_values)
                .chain([group.num_rows()])
                .max();
            claimed = claimed.saturating_add(of_group.unwrap_or(0).cast_unsigned());
            if claimed > most {
                let bytes = opened.bytes;
                return Err(Error::corrupt(
                    source,
                    format!(
                        "its footer claims {claimed} values in a column of a file of {bytes} bytes, where at most {most} are believed"
                    ),
                ));
            }
            let count = usize::try_from(group.num_rows())
                .ok()
                .and_then(|count| rows.checked_add(count))
                .ok_or_else(|| Error::corrupt(source, "its row counts are damaged"))?;
            rows = count;
        }
        if rows == 0 {
            return Err(ErrorKind::Empty { what: source.to_string() }.into());
        }
        Ok(Self {
            source: source.clone(),
            file: Arc::new(CheckedPages(file)),
            bytes: opened.bytes,
            metadata: Arc::new(metadata),
            columns,
            rows,
        })
    }

    fn corrupt(&self, detail: impl std::fmt::Display) -> Error {
        Error::corrupt(&self.source, detail)
    }

    /// Describes all columns in words.
    fn listed(&self) -> String {
        let described: Vec<String> = self
            .columns
            .iter()
            .map(|column| match column.shape {
                Shape::One => format!("{} ({})", column.name, column.kind()),
                Shape::List => format!("{} (list of {})", column.name, column.kind()),
                Shape::Nested => format!("{} (nested)", column.name),
            })
            .collect();
        if described.is_empty() { "no columns".into() } else { described.join(", ") }
    }

    fn named(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// Finds the wished column of one value a row.
    fn wished(&self, wish: &Wish) -> Result<&Column> {
        let [integers, floats, texts] = wish.accepts;
        let fits = |column: &Column| {
            column.shape == Shape::One
                && ((integers && column.value.is_integer())
                    || (floats && column.value.is_float())
                    || (texts && column.value == Value::Text))
        };
        self.pick(wish.what, fits, wish.names)
    }

    /// Chooses the column that the source names, or else one of the `preferred` names, or else the only one
    /// that fits.
    fn pick<'a>(
        &'a self,
        what: &str,
        fits: impl Fn(&Column) -> bool,
        preferred: &[&str],
    ) -> Result<&'a Column> {
        if let Some(name) = &self.source.column {
            let column = self.named(name).ok_or_else(|| {
                self.corrupt(format!("there is no column {name:?}; it has {}", self.listed()))
            })?;
            if !fits(column) {
                return Err(self.corrupt(format!(
                    "column {name:?} cannot be {what}; the columns are {}",
                    self.listed()
                )));
            }
            return Ok(column);
        }
        let named: Vec<&Column> = preferred.iter().filter_map(|name| self.named(name)).collect();
        if let Some(column) = named.iter().find(|column| fits(column)) {
            return Ok(column);
        }
        if let Some(column) = named.first() {
            return Err(self.corrupt(format!(
                "column {:?} cannot be {what} as it is; write it with another type, or name another column as {}#COLUMN: it has {}",
                column.name,
                self.source.path.display(),
                self.listed()
            )));
        }
        let mut fitting =
            self.columns.iter().filter(|column| fits(column) && !IDS.names.contains(&column.name.as_str()));
        match (fitting.next(), fitting.next()) {
            (Some(column), None) => Ok(column),
            (None, _) => {
                let way = if what.starts_with("vectors") { self.conversion() } else { None };
                let way = way.map_or_else(String::new, |(what, rows)| {
                    let file = self.source.path.display();
                    format!(
                        ". {what} are written as vectors by Python: t = pyarrow.parquet.read_table(\"{file}\"); numpy.save(\"vectors.npy\", {rows})"
                    )
                });
                Err(self.corrupt(format!("no column can be {what}; it has {}{way}", self.listed())))
            }
            (Some(_), Some(_)) => Err(self.corrupt(format!(
                "several columns can be {what}; name one as {}#COLUMN: it has {}",
                self.source.path.display(),
                self.listed()
            ))),
        }
    }

    /// Explains what may be vectors in a file without a column of lists, and gives the Python that makes rows
    /// from its table `t`.
    fn conversion(&self) -> Option<(&'static str, String)> {
        let is_one = |column: &&Column| column.shape == Shape::One;
        if let Some(Column { name, .. }) = self.columns.iter().filter(is_one).find(|column| column.is_bytes) {
            let rows =
                format!("numpy.stack([numpy.frombuffer(v, \"<f4\") for v in t[\"{name}\"].to_pylist()])");
            return Some(("Vectors in bytes", rows));
        }
        let coordinates: Vec<&str> = self
            .columns
            .iter()
            .filter(|column| is_one(column) && column.value.is_float())
            .map(|column| column.name.as_str())
            .collect();
        if let [first, .., last] = &coordinates[..] {
            let rows = format!(
                "numpy.stack([t[c].to_numpy() for c in t.column_names[t.column_names.index(\"{first}\"):t.column_names.index(\"{last}\") + 1]], 1)"
            );
            return Some(("Columns of one coordinate each", rows));
        }
        let is_text =
            |column: &&Column| column.value == Value::Text && !IDS.names.contains(&column.name.as_str());
        let Column { name, .. } = self.columns.iter().filter(is_one).rfind(is_text)?;
        Some((
            "Vectors in texts such as [0.1,0.2,…]",
            format!("numpy.array([json.loads(v) for v in t[\"{name}\"].to_pylist()], \"f4\")"),
        ))
    }

    fn leaf<T: DataType>(&self, column: &Column) -> Leaf<T> {
        let description = self.metadata.file_metadata().schema_descr().column(column.leaf);
        Leaf {
            source: self.source.clone(),
            file: Arc::clone(&self.file),
            metadata: Arc::clone(&self.metadata),
            column: column.leaf,
            nullable: description.max_def_level() > i16::from(column.shape == Shape::List),
            group: 0,
            rows_left: 0,
            next_row: 0,
            current: None,
            name: column.name.clone(),
            definition: Vec::new(),
            repetition: Vec::new(),
        }
    }
}

/// Pages of a column chunk, checked against the number of values that the footer gives for the chunk.
struct BoundedPages {
    inner: SerializedPageReader<CheckedPages>,
    physical: Physical,
    /// Whether the values of a page stand behind levels that say which rows have a value.
    nullable: bool,
    values_left: usize,
    dictionary: bool,
}

/// File whose page headers are checked before the Parquet crate sees them. Every read of it begins with a
/// seek, and its clones share one position. So only one thread at a time may read it.
struct CheckedPages(std::fs::File);

/// Header of a page. It is checked when it is read, since the crate opens headers that it does not read.
struct CheckedHeader {
    file: std::fs::File,
    start: u64,
    header: Option<Cursor<Vec<u8>>>,
}

impl Read for CheckedHeader {
    /// Fails where the page claims to hold more than its bytes can.
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if let Some(header) = &mut self.header {
            return header.read(buffer);
        }
        self.file.seek(SeekFrom::Start(self.start))?;
        let PageHeader { bytes, compressed, uncompressed } =
            page_header(BufReader::with_capacity(512, &self.file))?;
        if uncompressed > PAGE_BYTES_FREE.max(compressed.saturating_mul(PAGE_BYTES_PER_BYTE_MAX)) {
            let claim =
                format!("a page of {compressed} bytes claims to hold {uncompressed}, more than they can");
            return Err(std::io::Error::new(Io::InvalidData, claim));
        }
        self.header.insert(Cursor::new(bytes)).read(buffer)
    }
}

impl Length for CheckedPages {
    fn len(&self) -> u64 {
        self.0.len()
    }
}

impl ChunkReader for CheckedPages {
    type T = CheckedHeader;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(CheckedHeader { file: self.0.try_clone()?, start, header: None })
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        self.0.get_bytes(start, length)
    }
}

impl BoundedPages {
    fn check(&mut self, page: Option<Page>) -> Result<Option<Page>, ParquetError> {
        if let Some(page) = page.as_ref().filter(|page| page.is_dictionary_page()) {
            self.dictionary = true;
            // The crate allocates room for all values of a dictionary before it reads any. A text has its
            // length in front.
            let bytes_min = match self.physical {
                Physical::BOOLEAN | Physical::FIXED_LEN_BYTE_ARRAY => 1,
                Physical::INT32 | Physical::FLOAT | Physical::BYTE_ARRAY => 4,
                Physical::INT64 | Physical::DOUBLE | Physical::INT96 => 8,
            };
            if page.num_values() as usize > page.buffer().len() / bytes_min {
                return Err(ParquetError::General(
                    "a dictionary claims more values than it has room for".into(),
                ));
            }
        }
        if let Some(page) = &page
            && page.is_data_page()
        {
            if matches!(page.encoding(), Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY)
                && !self.dictionary
            {
                return Err(ParquetError::General("a page refers to a dictionary that is not there".into()));
            }
            let values = page.num_values() as usize;
            if values > PAGE_VALUES_MAX || values > self.values_left {
                return Err(ParquetError::General("a page claims more values than its column has".into()));
            }
            self.values_left -= values;
            // In this encoding every value says how much of the value before it is repeated, so a few bytes
            // make thousands of long values.
            if page.encoding() == Encoding::DELTA_BYTE_ARRAY {
                return Err(ParquetError::General("a page is encoded as DELTA_BYTE_ARRAY".into()));
            }
            // The crate allocates room for all lengths before it reads any.
            if page.encoding() == Encoding::DELTA_LENGTH_BYTE_ARRAY && self.physical == Physical::BYTE_ARRAY {
                let lengths = self.behind_levels(page).map(thrift::delta_count).transpose()?;
                if lengths.is_none_or(|lengths| lengths > values as u64) {
                    return Err(ParquetError::General("a page claims more texts than it has values".into()));
                }
            }
        }
        Ok(page)
    }

    /// Bytes of a page's values, for a column of one value a row; `None` where their place is not known.
    fn behind_levels<'a>(&self, page: &'a Page) -> Option<&'a [u8]> {
        match page {
            Page::DataPage { buf, .. } if !self.nullable => Some(&buf[..]),
            Page::DataPage { buf, def_level_encoding: Encoding::RLE, .. } => {
                let levels = u32::from_le_bytes(*buf.first_chunk()?) as usize;
                buf.get(levels.checked_add(4)?..)
            }
            Page::DataPageV2 { buf, rep_levels_byte_len, def_levels_byte_len, .. } => {
                let levels = rep_levels_byte_len.checked_add(*def_levels_byte_len)?;
                buf.get(levels as usize..)
            }
            Page::DataPage { .. } | Page::DictionaryPage { .. } => None,
        }
    }
}

impl Iterator for BoundedPages {
    type Item = Result<Page, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for BoundedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>, ParquetError> {
        let page = self.inner.get_next_page()?;
        self.check(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>, ParquetError> {
        self.inner.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<(), ParquetError> {
        self.inner.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool, ParquetError> {
        self.inner.at_record_boundary()
    }
}

/// Reader of the values of one column over all row groups, from front to back.
struct Leaf<T: DataType> {
    source: VectorSource,
    file: Arc<CheckedPages>,
    metadata: Arc<ParquetMetaData>,
    column: usize,
    name: String,
    nullable: bool,
    group: usize,
    rows_left: usize,
    next_row: usize,
    current: Option<ColumnReaderImpl<T>>,
    definition: Vec<i16>,
    repetition: Vec<i16>,
}

impl<T: DataType> Leaf<T> {
    fn corrupt(&self, detail: impl std::fmt::Display) -> Error {
        Error::corrupt(&self.source, format!("column {:?}: {detail}", self.name))
    }

    /// Appends the values of at most `rows` more rows to `values`. Every row must have `width` values and no
    /// null. Returns the number of rows; 0 at the end.
    fn read(&mut self, rows: usize, width: usize, values: &mut Vec<T::T>) -> Result<usize> {
        let mut done = 0;
        while done < rows {
            if self.rows_left == 0 {
                if !self.open_group()? {
                    break;
                }
                continue;
            }
            let wanted = (rows - done).min(self.rows_left);
            let (read, levels) = self.read_some(wanted, values)?;
            // Every row begins with repetition level 0. If there are as many zeros as rows, and one at each
            // multiple of the width, then no row can have another width.
            let regular = read == wanted
                && levels == read * width
                && (width == 1 || self.repetition.iter().step_by(width).all(|&level| level == 0));
            if !regular {
                return Err(self.irregular(read, width));
            }
            self.rows_left -= read;
            self.next_row += read;
            done += read;
        }
        Ok(done)
    }

    /// Returns the values of at most `rows` more rows; see [`Leaf::read`].
    fn all(&mut self, rows: usize, width: usize) -> Result<Vec<T::T>> {
        let mut values = Vec::new();
        self.read(rows, width, &mut values)?;
        Ok(values)
    }

    /// Number of values in the first row.
    fn first_width(&mut self) -> Result<usize> {
        while self.rows_left == 0 {
            if !self.open_group()? {
                return Err(self.corrupt("it has no rows"));
            }
        }
        let mut values = Vec::new();
        let (_, levels) = self.read_some(1, &mut values)?;
        Ok(levels)
    }

    /// Reads rows of the open row group and returns the numbers of rows and of values. Nulls and empty lists
    /// are errors.
    fn read_some(&mut self, rows: usize, values: &mut Vec<T::T>) -> Result<(usize, usize)> {
        self.definition.clear();
        self.repetition.clear();
        let Some(reader) = &mut self.current else { return Ok((0, 0)) };
        let (records, present, levels) = reader
            .read_records(rows, Some(&mut self.definition), Some(&mut self.repetition), values)
            .map_err(|error| {
                let place = format!("column {:?}, from row {} on", self.name, self.next_row);
                if error.to_string().contains("DELTA_BYTE_ARRAY") {
                    let detail =
                        format!("{place}: a page is encoded as DELTA_BYTE_ARRAY; {}", self.written_anew());
                    return Error::corrupt(&self.source, detail);
                }
                damaged(&self.source, &error).context(place)
            })?;
        if self.nullable && present != levels {
            let full = self.definition.iter().copied().max().unwrap_or(0);
            let at = self.definition.iter().position(|&level| level != full).unwrap_or(0);
            let before = self.repetition.iter().take(at + 1).filter(|&&level| level == 0).count();
            let row = self.next_row + if self.repetition.is_empty() { at } else { before.saturating_sub(1) };
            return Err(self.corrupt(format!(
                "row {row} is null, empty, or holds a null (rows count from 0); drop the row or fill it"
            )));
        }
        if present != levels {
            return Err(self.corrupt(format!("a row from {} on is an empty list", self.next_row)));
        }
        Ok((records, levels))
    }

    /// Opens the next row group; `false` at the end.
    fn open_group(&mut self) -> Result<bool> {
        let metadata = &self.metadata;
        if self.group >= metadata.num_row_groups() {
            return Ok(false);
        }
        let group = metadata.row_group(self.group);
        let chunk = group.column(self.column);
        if matches!(chunk.compression(), Compression::GZIP(_) | Compression::BROTLI(_) | Compression::LZO) {
            let how = chunk.compression();
            return Err(self.corrupt(format!("it is compressed with {how}; {}", self.written_anew())));
        }
        let values_left = usize::try_from(chunk.num_values())
            .map_err(|_| self.corrupt("its number of values is damaged"))?;
        self.rows_left =
            usize::try_from(group.num_rows()).map_err(|_| self.corrupt("its number of rows is damaged"))?;
        let inner = SerializedPageReader::new(Arc::clone(&self.file), chunk, self.rows_left, None)
            .map_err(|error| damaged(&self.source, &error))?;
        let description = metadata.file_metadata().schema_descr().column(self.column);
        let pages = BoundedPages {
            inner,
            physical: description.physical_type(),
            nullable: description.max_def_level() > 0,
            values_left,
            dictionary: false,
        };
        self.current = Some(ColumnReaderImpl::new(description, Box::new(pages)));
        self.group += 1;
        Ok(true)
    }

    /// The line of Python that writes the file so that it can be read.
    fn written_anew(&self) -> String {
        let file = self.source.path.display();
        format!(
            "write the file with snappy, zstd, lz4 or no compression, and with plain or dictionary encoding: \
             pyarrow.parquet.write_table(pyarrow.parquet.read_table(\"{file}\"), \"new.parquet\", compression=\"zstd\")"
        )
    }

    /// Counts the rows of the column for each width, the most common width first; nothing where the column
    /// cannot be read to its end.
    fn widths(&self) -> Vec<(usize, usize)> {
        const ROWS: usize = 1024;
        let mut all = Self {
            source: self.source.clone(),
            file: Arc::clone(&self.file),
            metadata: Arc::clone(&self.metadata),
            name: self.name.clone(),
            group: 0,
            rows_left: 0,
            next_row: 0,
            current: None,
            definition: Vec::new(),
            repetition: Vec::new(),
            ..*self
        };
        let (mut rows_of, mut values) = (BTreeMap::<usize, usize>::new(), Vec::new());
        loop {
            while all.rows_left == 0 {
                match all.open_group() {
                    Ok(true) => {}
                    Ok(false) => {
                        let mut widths: Vec<(usize, usize)> = rows_of.into_iter().collect();
                        widths.sort_by_key(|&(width, rows)| (std::cmp::Reverse(rows), width));
                        return widths;
                    }
                    Err(_) => return Vec::new(),
                }
            }
            values.clear();
            let Ok((rows @ 1.., _)) = all.read_some(ROWS.min(all.rows_left), &mut values) else {
                return Vec::new();
            };
            for row in all.repetition.chunk_by(|_, &next| next != 0) {
                *rows_of.entry(row.len()).or_default() += 1;
            }
            all.rows_left -= rows;
            all.next_row += rows;
        }
    }

    /// Makes the error for rows that are not all `width` wide. It looks at the levels of the last read, which
    /// are still there.
    fn irregular(&self, rows: usize, width: usize) -> Error {
        let mut row = self.next_row;
        let mut count = 0;
        for (at, &level) in self.repetition.iter().enumerate() {
            if level == 0 && at > 0 {
                if count != width {
                    break;
                }
                row += 1;
                count = 0;
            }
            count += 1;
        }
        if count == width || self.repetition.is_empty() {
            return self.corrupt(format!(
                "it ends after {} rows of a row group that claims more",
                self.next_row + rows
            ));
        }
        let widths = self.widths();
        let mut phrases: Vec<String> =
            widths.iter().take(5).map(|(width, rows)| format!("{rows} rows have {width} numbers")).collect();
        if widths.len() > phrases.len() {
            phrases.push(format!("the others one of {} more widths", widths.len() - phrases.len()));
        }
        let all = if phrases.is_empty() {
            String::new()
        } else {
            format!(
                "; in all, {}. Each width is of another model: write it into a file of its own",
                phrases.join(", ")
            )
        };
        self.corrupt(format!(
            "row {row} has {count} numbers where the first row has {width} (rows count from 0){all}"
        ))
    }
}

/// Reader of the values of a column, by their type.
enum Values {
    Float16(Leaf<FixedLenByteArrayType>),
    Float32(Leaf<FloatType>),
    Float64(Leaf<DoubleType>),
    Int32(Leaf<Int32Type>),
    Int64(Leaf<Int64Type>),
    UInt32(Leaf<Int32Type>),
    UInt64(Leaf<Int64Type>),
    Boolean(Leaf<BoolType>),
    /// Texts, with the number of bytes read so far and the most that are accepted.
    Text {
        leaf: Leaf<ByteArrayType>,
        bytes: u64,
        bytes_max: u64,
    },
}

impl Values {
    fn new(table: &Table, column: &Column) -> Result<Self> {
        Ok(match column.value {
            Value::Float16 => Self::Float16(table.leaf(column)),
            Value::Float32 => Self::Float32(table.leaf(column)),
            Value::Float64 => Self::Float64(table.leaf(column)),
            Value::Int32 => Self::Int32(table.leaf(column)),
            Value::Int64 => Self::Int64(table.leaf(column)),
            Value::UInt32 => Self::UInt32(table.leaf(column)),
            Value::UInt64 => Self::UInt64(table.leaf(column)),
            Value::Boolean => Self::Boolean(table.leaf(column)),
            Value::Text => Self::Text {
                leaf: table.leaf(column),
                bytes: 0,
                bytes_max: table.bytes.saturating_mul(VALUES_PER_BYTE_MAX).max(TEXT_BYTES_FREE),
            },
            Value::Other => {
                return Err(table.corrupt(format!("column {:?} does not hold numbers", column.name)));
            }
        })
    }

    /// Number of values in the first row.
    fn first_width(&mut self) -> Result<usize> {
        match self {
            Self::Float16(leaf) => leaf.first_width(),
            Self::Float32(leaf) => leaf.first_width(),
            Self::Float64(leaf) => leaf.first_width(),
            Self::Int32(leaf) | Self::UInt32(leaf) => leaf.first_width(),
            Self::Int64(leaf) | Self::UInt64(leaf) => leaf.first_width(),
            Self::Boolean(leaf) => leaf.first_width(),
            Self::Text { leaf, .. } => leaf.first_width(),
        }
    }

    /// Appends the numbers of at most `rows` more rows of `width`. Returns the number of rows; 0 at the end.
    fn read(&mut self, rows: usize, width: usize, out: &mut Vec<f32>) -> Result<usize> {
        let before = out.len();
        if let Self::Float32(leaf) = self {
            return leaf.read(rows, width, out);
        }
        if let Self::UInt64(leaf) = self {
            out.extend(leaf.all(rows, width)?.into_iter().map(|value| value.cast_unsigned() as f32));
        } else {
            match self.scalars(rows, width)? {
                Scalars::Integers(values) => out.extend(values.into_iter().map(|value| value as f32)),
                Scalars::Floats(values, _) => out.extend(values.into_iter().map(|value| value as f32)),
                Scalars::Texts(_) => {}
            }
        }
        Ok((out.len() - before) / width)
    }

    /// Reads the values of at most `rows` more rows of `width`; none at the end.
    fn scalars(&mut self, rows: usize, width: usize) -> Result<Scalars> {
        fn floats<T>(values: Vec<T>, value: impl Fn(T) -> f64) -> Scalars {
            Scalars::Floats(values.into_iter().map(value).collect(), WHOLE_END)
        }
        fn integers<T>(values: Vec<T>, value: impl Fn(T) -> i64) -> Scalars {
            Scalars::Integers(values.into_iter().map(value).collect())
        }
        Ok(match self {
            Self::Float16(leaf) => floats(leaf.all(rows, width)?, |value| half(value.data()).to_f64()),
            Self::Float32(leaf) => floats(leaf.all(rows, width)?, f64::from),
            Self::Float64(leaf) => Scalars::Floats(leaf.all(rows, width)?, WHOLE_END),
            Self::Int32(leaf) => integers(leaf.all(rows, width)?, i64::from),
            Self::Int64(leaf) => Scalars::Integers(leaf.all(rows, width)?),
            Self::UInt32(leaf) => integers(leaf.all(rows, width)?, |value| value.cast_unsigned().into()),
            Self::Boolean(leaf) => integers(leaf.all(rows, width)?, i64::from),
            Self::UInt64(leaf) => {
                let numbers = leaf.all(rows, width)?.into_iter();
                Scalars::Texts(numbers.map(|value| value.cast_unsigned().to_string()).collect())
            }
            Self::Text { leaf, bytes, bytes_max } => {
                let mut texts = Vec::new();
                for done in (0..rows).step_by(TEXTS_AT_ONCE) {
                    let first = leaf.next_row;
                    let block = leaf.all(TEXTS_AT_ONCE.min(rows - done), width)?;
                    *bytes += block.iter().map(|text| text.len() as u64).sum::<u64>();
                    if *bytes > *bytes_max {
                        return Err(leaf.corrupt(format!(
                            "its texts have more than the {bytes_max} bytes that are believed of a file of this size; write \
                             numbers in the place of texts that are repeated"
                        )));
                    }
                    for (row, text) in block.iter().enumerate() {
                        let text = std::str::from_utf8(text.data())
                            .map_err(|_| leaf.corrupt(format!("row {} is not UTF-8", first + row)))?;
                        texts.push(text.to_string());
                    }
                }
                Scalars::Texts(texts)
            }
        })
    }
}

/// A half-precision number from its two bytes; the schema guarantees the length.
fn half(bytes: &[u8]) -> f16 {
    match *bytes {
        [low, high] => f16::from_le_bytes([low, high]),
        _ => f16::NAN,
    }
}

/// Opens the rows of a file.
pub(super) fn open_rows(source: &VectorSource) -> Result<Box<dyn RowReader>> {
    Ok(Box::new(ParquetRows::open(source)?))
}

/// Begins to write a file.
pub(super) fn create(path: &Path, columns: Columns) -> Result<Box<dyn RowWriter>> {
    Ok(Box::new(ParquetWriter::create(path, columns)?))
}

/// Whether the file has a column of ids.
pub(super) fn has_ids(source: &VectorSource) -> Result<bool> {
    let table = Table::open(source)?;
    Ok(IDS.names.iter().any(|name| table.named(name).is_some()))
}

/// Reads a column with one value a row.
pub(super) fn read_scalars(source: &VectorSource, wish: &Wish) -> Result<Scalars> {
    let table = Table::open(source)?;
    let column = table.wished(wish)?;
    guarded(source, || {
        let all = Values::new(&table, column)?.scalars(table.rows, 1)?;
        if all.len() < table.rows {
            return Err(table.corrupt(format!("column {:?} ends after {} rows", column.name, all.len())));
        }
        // Unsigned 64-bit numbers come as text, since they may be ids; labels and other values are numbers
        // again.
        if let Scalars::Texts(texts) = &all
            && column.value == Value::UInt64
            && let Some(numbers) = texts.iter().map(|text| text.parse().ok()).collect()
        {
            return Ok(Scalars::Integers(numbers));
        }
        Ok(all)
    })
}

/// Byte ranges of the values that [`read_scalars`] reads from the file.
pub(super) fn scalar_ranges(source: &VectorSource, wish: &Wish) -> Result<Vec<Range<u64>>> {
    let table = Table::open(source)?;
    let leaf = table.wished(wish)?.leaf;
    guarded(source, || {
        let groups = table.metadata.row_groups().iter();
        let ranges = groups.map(|group| group.column(leaf).byte_range());
        Ok(ranges.map(|(from, length)| from..from.saturating_add(length)).collect())
    })
}

/// Reader of a column of vectors, and of the ids beside it where there are any.
struct ParquetRows {
    source: VectorSource,
    vectors: Values,
    ids: Option<(Values, IdKind)>,
    /// Reason why the file's column of ids cannot be read.
    unfit_ids: Option<Error>,
    width: usize,
    rows: usize,
    next_row: usize,
}

impl ParquetRows {
    fn open(source: &VectorSource) -> Result<Self> {
        let table = Table::open(source)?;
        let fits = |column: &Column| {
            column.shape == Shape::List && !matches!(column.value, Value::Text | Value::Other)
        };
        let column = table.pick("vectors (lists of numbers)", fits, &[])?;
        guarded(source, || {
            let width = Values::new(&table, column)?.first_width()?;
            if width == 0 || width > WIDTH_MAX {
                return Err(table.corrupt(format!(
                    "the first row of column {:?} has {width} numbers; 1 to {WIDTH_MAX} can be read",
                    column.name
                )));
            }
            let named: Vec<&Column> = IDS.names.iter().filter_map(|name| table.named(name)).collect();
            let named: Vec<&Column> = named.into_iter().filter(|id| id.leaf != column.leaf).collect();
            let fit = named
                .iter()
                .find_map(|id| Some((id, id.value.id_kind().filter(|_| id.shape == Shape::One)?)));
            let ids = match fit {
                Some((id, kind)) => Some((Values::new(&table, id)?, kind)),
                None => None,
            };
            let unfit_ids = named.first().filter(|_| fit.is_none()).map(|id| {
                table.corrupt(format!(
                    "column {:?} cannot be ids as it is; write it as text or whole numbers, or under another name: it has {}",
                    id.name,
                    table.listed()
                ))
            });
            Ok(Self {
                source: source.clone(),
                vectors: Values::new(&table, column)?,
                ids,
                unfit_ids,
                width,
                rows: table.rows,
                next_row: 0,
            })
        })
    }
}

impl RowReader for ParquetRows {
    fn width(&self) -> usize {
        self.width
    }

    fn rows_total(&self) -> u64 {
        self.rows as u64
    }

    fn id_kind(&self) -> Option<IdKind> {
        self.ids.as_ref().map(|(_, kind)| *kind)
    }

    fn check_ids(&self) -> Result<()> {
        self.unfit_ids.clone().map_or(Ok(()), Err)
    }

    fn next_batch(&mut self, rows_max: usize, batch: &mut RowBatch) -> Result<usize> {
        let wanted = rows_max.max(1).min(self.rows - self.next_row);
        batch.begin(self.next_row as u64);
        if wanted == 0 {
            return Ok(0);
        }
        let source = self.source.clone();
        guarded(&source, || {
            let read = self.vectors.read(wanted, self.width, &mut batch.vectors)?;
            if read != wanted {
                return Err(Error::corrupt(&source, format!("it ends after {} rows", self.next_row + read)));
            }
            if let Some((ids, _)) = &mut self.ids {
                let ids = match ids.scalars(wanted, 1)? {
                    Scalars::Integers(ids) => Ids::Integers(ids),
                    Scalars::Texts(ids) => Ids::Texts(ids),
                    Scalars::Floats(..) => return Err(Error::corrupt(&source, "its ids are fractions")),
                };
                if ids.len() != wanted {
                    let rows = self.next_row + ids.len();
                    return Err(Error::corrupt(&source, format!("its column of ids ends after {rows} rows")));
                }
                batch.ids = Some(ids);
            }
            self.next_row += wanted;
            Ok(wanted)
        })
    }
}
