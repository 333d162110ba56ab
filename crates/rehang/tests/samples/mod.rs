//! Files made byte by byte, or by the Arrow writer, for tests of the readers.

// Every test crate uses its own part of these.
#![allow(dead_code)]

use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{Float32Builder, ListBuilder};
use arrow_array::types::Float32Type;
use arrow_array::{
    ArrayRef, FixedSizeListArray, Float32Array, Float64Array, Int64Array, LargeListArray, ListArray,
    RecordBatch, StringArray,
};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;

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

type Rows<'a> = &'a [Option<&'a [Option<f32>]>];

fn list(rows: Rows<'_>) -> ArrayRef {
    let mut builder = ListBuilder::new(Float32Builder::new());
    for row in rows {
        match row {
            Some(numbers) => {
                for &number in *numbers {
                    builder.values().append_option(number);
                }
                builder.append(true);
            }
            None => builder.append(false),
        }
    }
    Arc::new(builder.finish())
}

/// A Parquet file by the name of its case.
pub fn write_parquet(path: &Path, case: &str) {
    let [x, two, three] = [&[Some(1.0)][..], &[Some(1.0), Some(2.0)], &[Some(1.0), Some(2.0), Some(3.0)]];
    let scalars = || -> Vec<(&str, ArrayRef)> {
        vec![
            ("id", Arc::new(StringArray::from(vec!["a", "b"]))),
            ("label", Arc::new(Int64Array::from(vec![7, 8]))),
            ("score", Arc::new(Float64Array::from(vec![0.5, 1.5]))),
        ]
    };
    let many: Vec<Option<&[Option<f32>]>> = vec![Some(three); 3000];
    let columns: Vec<(&str, ArrayRef)> = match case {
        "ragged.parquet" => vec![("v", list(&[Some(two), Some(two), Some(three), Some(two)]))],
        "short_last.parquet" => vec![("v", list(&[Some(two), Some(two), Some(x)]))],
        "null_row.parquet" => vec![("v", list(&[Some(two), None, Some(two)]))],
        "null_number.parquet" => {
            vec![("v", list(&[Some(two), Some(two), Some(&[Some(1.0), None]), Some(two)]))]
        }
        "empty_list.parquet" => vec![("v", list(&[Some(two), Some(&[]), Some(two)]))],
        "two_lists.parquet" => vec![("a", list(&[Some(two)])), ("b", list(&[Some(three)]))],
        "no_rows.parquet" => vec![("v", list(&[]))],
        "null_label.parquet" => vec![("label", Arc::new(Int64Array::from(vec![Some(1), None])))],
        "scalars.parquet" => scalars(),
        "compressed.parquet" => {
            vec![("id", Arc::new(Int64Array::from_iter_values(0..3000))), ("v", list(&many))]
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
    write_columns(path, columns, properties);
}

/// A Parquet file of given columns.
pub fn write_columns(path: &Path, columns: Vec<(&str, ArrayRef)>, properties: WriterProperties) {
    let batch = RecordBatch::try_from_iter_with_nullable(
        columns.into_iter().map(|(name, array)| (name, array, true)),
    )
    .unwrap();
    let file = fs_err::File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

/// The same rows as each kind of list that holds vectors.
pub fn every_kind_of_list(rows: &[Vec<f32>]) -> Vec<(&'static str, ArrayRef)> {
    let optional = || rows.iter().map(|row| Some(row.iter().map(|&value| Some(value)).collect::<Vec<_>>()));
    let width = rows[0].len() as i32;
    vec![
        ("list", Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(optional()))),
        ("large_list", Arc::new(LargeListArray::from_iter_primitive::<Float32Type, _, _>(optional()))),
        (
            "fixed_size_list",
            Arc::new(FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(optional(), width)),
        ),
    ]
}

/// One number a row.
pub fn floats(values: Vec<f32>) -> ArrayRef {
    Arc::new(Float32Array::from(values))
}
