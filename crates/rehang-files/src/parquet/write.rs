//! Writing of Parquet files: row groups of plain numbers, with the schema that Arrow readers look for.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::parquet::basic::{Compression, Encoding};
use ::parquet::data_type::{ByteArray, ByteArrayType, FloatType, Int64Type};
use ::parquet::errors::ParquetError;
use ::parquet::file::properties::{EnabledStatistics, WriterProperties};
use ::parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter, SerializedRowGroupWriter};
use ::parquet::schema::parser::parse_message_type;

use super::arrow_schema::{self, ELEMENT, FieldType};
use crate::atomic::AtomicFile;
use crate::rows::{Columns, IdKind, Ids, RowWriter};
use crate::source::WIDTH_MAX;
use rehang_core::{Error, Result};

/// Bytes of vectors that a row group holds when it is written. The writer keeps as many in memory.
const GROUP_BYTES: usize = 32 << 20;

/// Most rows of a row group.
const GROUP_ROWS_MAX: usize = 1 << 16;

/// Number of values that are encoded at once: whole rows of about a tenth of a page.
const WRITE_VALUES: usize = 1 << 15;

/// Name of the column of ids.
const ID: &str = "id";
/// Names of the columns that are written beside [`ID`].
const VECTOR: &str = "vector";
const SIGMA2: &str = "sigma2";

/// Writer of the column `vector` (`FixedSizeList<f32>`), and of `id` and `sigma2` where they are asked for.
pub(crate) struct ParquetWriter {
    path: PathBuf,
    writer: SerializedFileWriter<AtomicFile>,
    columns: Columns,
    group_rows: usize,
    vectors: Vec<f32>,
    ids: Option<Ids>,
    sigma2: Vec<f32>,
    definition: Vec<i16>,
    repetition: Vec<i16>,
    rows: u64,
}

/// Schema of the columns in the language of Parquet.
fn message_type(fields: &[(&str, FieldType)]) -> String {
    let column = |&(name, kind): &(&str, FieldType)| match kind {
        FieldType::Int64 => format!("REQUIRED INT64 {name};"),
        FieldType::Utf8 => format!("REQUIRED BYTE_ARRAY {name} (STRING);"),
        FieldType::Float32 => format!("REQUIRED FLOAT {name};"),
        FieldType::Float32List { .. } => {
            format!("REQUIRED GROUP {name} (LIST) {{ REPEATED GROUP list {{ REQUIRED FLOAT {ELEMENT}; }} }}")
        }
    };
    format!("message schema {{ {} }}", fields.iter().map(column).collect::<String>())
}

fn write_error(path: &Path, error: &ParquetError) -> Error {
    if let ParquetError::External(inner) = error
        && let Some(io) = inner.downcast_ref::<std::io::Error>()
    {
        return Error::io("write", path, io);
    }
    Error::refused("write", path, error)
}

impl ParquetWriter {
    pub(crate) fn create(path: &Path, columns: Columns) -> Result<Self> {
        let wide = || Error::option("width", columns.width, format!("at most {WIDTH_MAX}"));
        let width =
            i32::try_from(columns.width).ok().filter(|_| columns.width <= WIDTH_MAX).ok_or_else(wide)?;
        let file = AtomicFile::create(path)?;
        let mut fields = Vec::new();
        match columns.ids {
            Some(IdKind::Integer) => fields.push((ID, FieldType::Int64)),
            Some(IdKind::Text) => fields.push((ID, FieldType::Utf8)),
            None => {}
        }
        fields.push((VECTOR, FieldType::Float32List { width }));
        if columns.sigma2 {
            fields.push((SIGMA2, FieldType::Float32));
        }
        // Coordinates repeat too seldom for dictionaries, hardly compress, and their extremes help no reader.
        let properties = WriterProperties::builder()
            .set_created_by(concat!("rehang ", env!("CARGO_PKG_VERSION")).into())
            .set_compression(Compression::UNCOMPRESSED)
            .set_dictionary_enabled(false)
            .set_encoding(Encoding::PLAIN)
            .set_statistics_enabled(EnabledStatistics::None)
            .set_write_batch_size(WRITE_VALUES)
            .set_key_value_metadata(Some(vec![arrow_schema::metadata(&fields)]))
            .build();
        let writer = parse_message_type(&message_type(&fields))
            .and_then(|schema| SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties)))
            .map_err(|error| write_error(path, &error))?;
        let group_rows = (GROUP_BYTES / (columns.width * 4)).clamp(1, GROUP_ROWS_MAX);
        Ok(Self {
            path: path.to_path_buf(),
            writer,
            columns,
            group_rows,
            vectors: Vec::new(),
            ids: columns.ids.map(Ids::none),
            sigma2: Vec::new(),
            definition: Vec::new(),
            repetition: Vec::new(),
            rows: 0,
        })
    }

    /// Writes the collected rows as one row group.
    fn write_group(&mut self) -> Result<()> {
        if self.vectors.is_empty() {
            return Ok(());
        }
        self.encode_group().map_err(|error| write_error(&self.path, &error))?;
        self.rows += (self.vectors.len() / self.columns.width) as u64;
        self.vectors.clear();
        self.sigma2.clear();
        self.ids = self.columns.ids.map(Ids::none);
        Ok(())
    }

    fn encode_group(&mut self) -> Result<(), ParquetError> {
        let width = self.columns.width;
        if self.definition.len() < self.vectors.len() {
            self.definition.resize(self.vectors.len(), 1);
            self.repetition = (0..self.vectors.len()).map(|at| i16::from(at % width != 0)).collect();
        }
        let mut group = self.writer.next_row_group()?;
        // Columns come in the order of the schema.
        if let Some(ids) = &self.ids {
            let mut column = next_column(&mut group)?;
            match ids {
                Ids::Integers(ids) => column.typed::<Int64Type>().write_batch(ids, None, None)?,
                Ids::Texts(ids) => {
                    let texts: Vec<ByteArray> = ids.iter().map(|id| ByteArray::from(id.as_str())).collect();
                    column.typed::<ByteArrayType>().write_batch(&texts, None, None)?
                }
            };
            column.close()?;
        }
        let (definition, repetition) = (&self.definition[..self.vectors.len()], &self.repetition);
        let mut column = next_column(&mut group)?;
        let levels = (Some(definition), Some(&repetition[..definition.len()]));
        column.typed::<FloatType>().write_batch(&self.vectors, levels.0, levels.1)?;
        column.close()?;
        if self.columns.sigma2 {
            let mut column = next_column(&mut group)?;
            column.typed::<FloatType>().write_batch(&self.sigma2, None, None)?;
            column.close()?;
        }
        group.close()?;
        Ok(())
    }
}

/// Returns the column that is written next.
fn next_column<'g>(
    group: &'g mut SerializedRowGroupWriter<'_, AtomicFile>,
) -> Result<SerializedColumnWriter<'g>, ParquetError> {
    group.next_column()?.ok_or_else(|| ParquetError::General("the schema has fewer columns".into()))
}

impl RowWriter for ParquetWriter {
    fn write(&mut self, vectors: &[f32], ids: Option<&Ids>, sigma2: Option<&[f32]>) -> Result<()> {
        let width = self.columns.width;
        let rows = vectors.len() / width;
        let mut first = 0;
        while first < rows {
            let held = self.vectors.len() / width;
            let take = (self.group_rows - held).min(rows - first);
            self.vectors.extend_from_slice(&vectors[first * width..(first + take) * width]);
            if let (Some(held), Some(ids)) = (&mut self.ids, ids) {
                held.append(match ids {
                    Ids::Integers(ids) => Ids::Integers(ids[first..first + take].to_vec()),
                    Ids::Texts(ids) => Ids::Texts(ids[first..first + take].to_vec()),
                });
            }
            if let Some(sigma2) = sigma2 {
                self.sigma2.extend_from_slice(&sigma2[first..first + take]);
            }
            first += take;
            if held + take == self.group_rows {
                self.write_group()?;
            }
        }
        Ok(())
    }

    fn commit(mut self: Box<Self>) -> Result<u64> {
        self.write_group()?;
        let file = self.writer.into_inner().map_err(|error| write_error(&self.path, &error))?;
        file.commit()?;
        Ok(self.rows)
    }
}
