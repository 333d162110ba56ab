//! Files made byte by byte, or column by column by the Parquet writer, for tests of the readers.

#![allow(dead_code, reason = "each test crate uses a part of it")]

use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, FloatType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

pub fn write(path: &Path, bytes: &[u8]) {
    fs_err::write(path, bytes).unwrap();
}

/// A `.npy` file of version 1 with any claims and any content.
pub fn npy(description: &str, shape: &str, body: &[u8]) -> Vec<u8> {
    npy_with(1, &format!("{{'descr': '{description}', 'fortran_order': False, 'shape': {shape}, }}"), body)
}

/// A `.npy` file of any version with any header.
pub fn npy_with(version: u8, header: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY".to_vec();
    bytes.extend([version, 0]);
    if version == 1 {
        bytes.extend((header.len() as u16 + 1).to_le_bytes());
    } else {
        bytes.extend((header.len() as u32 + 1).to_le_bytes());
    }
    bytes.extend(header.as_bytes());
    bytes.push(b'\n');
    bytes.extend(body);
    bytes
}

pub fn fvecs(rows: &[&[f32]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for row in rows {
        bytes.extend((row.len() as i32).to_le_bytes());
        bytes.extend(row.iter().flat_map(|value| value.to_le_bytes()));
    }
    bytes
}

pub fn safetensors(header: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(body);
    bytes
}

/// A row of a list column: a list or none, and in it numbers or none.
pub type Row = Option<Vec<Option<f32>>>;

/// A column of a sample.
#[derive(Clone)]
pub enum Column {
    Texts(Vec<&'static str>),
    Integers(Vec<Option<i64>>),
    Doubles(Vec<f64>),
    Lists(Form, Vec<Row>),
}

/// Way in which a file declares that a column holds lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Three levels, as Arrow and pandas write them: lists and numbers may be missing.
    Optional,
    /// Three levels, where nothing may be missing.
    Required,
    /// Two levels, as old writers do.
    TwoLevels,
    /// A repeated column without any group.
    Bare,
}

impl Form {
    pub const ALL: [Self; 4] = [Self::Optional, Self::Required, Self::TwoLevels, Self::Bare];

    fn declared(self, name: &str) -> String {
        match self {
            Self::Optional => format!(
                "OPTIONAL GROUP {name} (LIST) {{ REPEATED GROUP list {{ OPTIONAL FLOAT element; }} }}"
            ),
            Self::Required => format!(
                "REQUIRED GROUP {name} (LIST) {{ REPEATED GROUP list {{ REQUIRED FLOAT element; }} }}"
            ),
            Self::TwoLevels => format!("OPTIONAL GROUP {name} (LIST) {{ REPEATED FLOAT array; }}"),
            Self::Bare => format!("REPEATED FLOAT {name};"),
        }
    }

    /// Definition levels of a missing list, an empty one, a missing number and a number.
    fn levels(self) -> [i16; 4] {
        match self {
            Self::Optional => [0, 1, 2, 3],
            Self::TwoLevels => [0, 1, -1, 2],
            Self::Required | Self::Bare => [-1, 0, -1, 1],
        }
    }
}

impl Column {
    fn rows(&self) -> usize {
        match self {
            Self::Texts(values) => values.len(),
            Self::Integers(values) => values.len(),
            Self::Doubles(values) => values.len(),
            Self::Lists(_, values) => values.len(),
        }
    }

    fn declared(&self, name: &str) -> String {
        match self {
            Self::Texts(_) => format!("OPTIONAL BYTE_ARRAY {name} (STRING);"),
            Self::Integers(_) => format!("OPTIONAL INT64 {name};"),
            Self::Doubles(_) => format!("OPTIONAL DOUBLE {name};"),
            Self::Lists(form, _) => form.declared(name),
        }
    }
}

fn lists(rows: &[Option<&[Option<f32>]>]) -> Column {
    Column::Lists(Form::Optional, rows.iter().map(|row| row.map(<[_]>::to_vec)).collect())
}

/// Writes a Parquet file by the name of its case.
pub fn write_parquet(path: &Path, case: &str) {
    let [x, two, three] = [&[Some(1.0)][..], &[Some(1.0), Some(2.0)], &[Some(1.0), Some(2.0), Some(3.0)]];
    let columns: Vec<(&str, Column)> = match case {
        "ragged.parquet" => vec![("v", lists(&[Some(two), Some(two), Some(three), Some(two)]))],
        "short_last.parquet" => vec![("v", lists(&[Some(two), Some(two), Some(x)]))],
        "null_row.parquet" => vec![("v", lists(&[Some(two), None, Some(two)]))],
        "null_number.parquet" => {
            vec![("v", lists(&[Some(two), Some(two), Some(&[Some(1.0), None]), Some(two)]))]
        }
        "empty_list.parquet" => vec![("v", lists(&[Some(two), Some(&[]), Some(two)]))],
        "two_lists.parquet" => vec![("a", lists(&[Some(two)])), ("b", lists(&[Some(three)]))],
        "no_rows.parquet" => vec![("v", lists(&[]))],
        "null_label.parquet" => vec![("label", Column::Integers(vec![Some(1), None]))],
        "scalars.parquet" => vec![
            ("id", Column::Texts(vec!["a", "b"])),
            ("label", Column::Integers(vec![Some(7), Some(8)])),
            ("score", Column::Doubles(vec![0.5, 1.5])),
        ],
        "label_with_gaps.parquet" => vec![
            ("id", Column::Doubles(vec![1.0, 2.0])),
            ("label", Column::Doubles(vec![7.0, f64::NAN])),
            ("split", Column::Integers(vec![Some(0), Some(1)])),
            ("text", Column::Texts(vec!["a", "b"])),
        ],
        "compressed.parquet" => {
            vec![
                ("id", Column::Integers((0..3000).map(Some).collect())),
                ("v", lists(&vec![Some(three); 3000])),
            ]
        }
        _ => panic!("no such case: {case}"),
    };
    let properties = WriterProperties::builder()
        .set_compression(if case == "compressed.parquet" {
            Compression::ZSTD(ZstdLevel::default())
        } else {
            Compression::SNAPPY
        })
        .set_max_row_group_row_count(Some(1000))
        .build();
    write_columns(path, &columns, properties);
}

/// Writes a Parquet file of vectors of two zeros, which Snappy packs, on pages of some MiB.
pub fn write_zeros(path: &Path, rows: usize) {
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_dictionary_enabled(false)
        .set_data_page_size_limit(3 << 20)
        .set_data_page_row_count_limit(rows)
        .build();
    write_columns(path, &[("v", lists(&vec![Some(&[Some(0.0), Some(0.0)][..]); rows]))], properties);
}

/// Writes a Parquet file of given columns, which have as many rows each.
pub fn write_columns(path: &Path, columns: &[(&str, Column)], properties: WriterProperties) {
    let declared: String = columns.iter().map(|(name, column)| column.declared(name)).collect();
    let schema = parse_message_type(&format!("message schema {{ {declared} }}")).unwrap();
    let file = fs_err::File::create(path).unwrap();
    let (rows, group) = (columns[0].1.rows(), properties.max_row_group_row_count().unwrap());
    let mut writer = SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties)).unwrap();
    for first in (0..rows).step_by(group) {
        write_group(&mut writer, columns, first..(first + group).min(rows));
    }
    writer.close().unwrap();
}

fn write_group(
    writer: &mut SerializedFileWriter<fs_err::File>,
    columns: &[(&str, Column)],
    rows: std::ops::Range<usize>,
) {
    let mut group = writer.next_row_group().unwrap();
    let all_there = vec![1_i16; rows.len()];
    for (_, column) in columns {
        let mut to = group.next_column().unwrap().unwrap();
        let written = match column {
            Column::Texts(values) => {
                let values: Vec<ByteArray> = values[rows.clone()].iter().map(|&text| text.into()).collect();
                to.typed::<ByteArrayType>().write_batch(&values, Some(&all_there), None)
            }
            Column::Integers(values) => {
                let levels: Vec<i16> =
                    values[rows.clone()].iter().map(|value| value.is_some().into()).collect();
                let values: Vec<i64> = values[rows.clone()].iter().copied().flatten().collect();
                to.typed::<Int64Type>().write_batch(&values, Some(&levels), None)
            }
            Column::Doubles(values) => {
                to.typed::<DoubleType>().write_batch(&values[rows.clone()], Some(&all_there), None)
            }
            Column::Lists(form, values) => {
                let [no_list, empty, no_number, number] = form.levels();
                let (mut numbers, mut definition, mut repetition) = (Vec::new(), Vec::new(), Vec::new());
                for row in &values[rows.clone()] {
                    let row = row.as_deref();
                    if row.is_none_or(<[_]>::is_empty) {
                        definition.push(if row.is_none() { no_list } else { empty });
                        repetition.push(0);
                    }
                    for (at, value) in row.unwrap_or_default().iter().enumerate() {
                        definition.push(if value.is_some() { number } else { no_number });
                        repetition.push(i16::from(at > 0));
                        numbers.extend(*value);
                    }
                }
                assert!(definition.iter().all(|&level| level >= 0), "{form:?} cannot hold these rows");
                to.typed::<FloatType>().write_batch(&numbers, Some(&definition), Some(&repetition))
            }
        };
        written.unwrap();
        to.close().unwrap();
    }
    group.close().unwrap();
}
