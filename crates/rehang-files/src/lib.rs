//! Files of rehang and the places they lie in: vectors, labels, ids, orders and adapters, in and out.
//!
//! This crate knows every file format and no metric: it builds the data of the core and measures nothing.
//!
//! | Extension | Vectors | One value a row (labels, σ², orders, ids) |
//! |---|---|---|
//! | `.npy` | read and written | read; `f32` and `int64` written |
//! | `.parquet`, `.pq` | read and written, with ids | read |
//! | `.fvecs` | read and written | read (`f32`) |
//! | `.bvecs`, `.ivecs` | read | read (integers) |
//! | `.safetensors` | read and written | read |
//! | `.txt`, `.tsv`, `.csv`, `.ids` | no | one a line |
//! | `.jsonl` | no | ids: field `_id`, or else `id`; labels: field `label`, or else `labels` |
//!
//! A column of a Parquet file and a tensor of a safetensors file are named behind a `#`:
//! `gallery.parquet#embedding`. The name may be left out where there is one answer only. The exact rules
//! stand in `docs/formats.md`.
//!
//! Sizes that a header claims are checked against the length of the file before anything is allocated.
//! Outputs appear whole or not at all, see [`AtomicFile`]. Files that are larger than memory are for
//! [`stream`].

pub mod adapter_file;
pub mod adapter_network;
mod atomic;
pub mod bridge_file;
mod clicks;
mod element;
pub mod folders;
mod given;
mod inputs;
pub mod join;
pub mod lists;
mod named;
mod npy;
pub mod onnx;
mod opened;
#[cfg_attr(not(feature = "parquet"), path = "parquet_left_out.rs")]
mod parquet;
pub mod partitions;
mod paths;
mod pointer;
pub mod qrels;
mod raw;
mod rows;
mod safetensors;
mod source;
pub mod stream;
pub mod tensors;
mod text;
pub mod thresholds;
pub mod transform;
mod values;
mod vecs;

pub use atomic::AtomicFile;
pub use clicks::{Clicked, read_clicks};
pub use given::{Given, GivenRows, Scalars};
pub use inputs::{
    HeadFiles, InputReader, Join, JoinFiles, RowMask, RowSelection, expect_same_items, other_items,
};
pub use named::{NamedFile, expect_distinct};
pub use npy::{Array, ArrayNumbers, array_from_bytes, read_array};
pub use paths::{expect_apart, folder_of, is_address, is_same_file};
pub use pointer::{LFS_POINTER, expect_no_lfs_pointer, is_lfs_pointer};
pub use rows::{Columns, IdKind, Ids};
pub use source::{VectorSource, joined_names};
pub use text::{next_line, read_lines};
pub use values::{
    LabelValues, Names, check_order_output, f32_column_ranges, read_f32_column, read_ids, read_label_values,
    read_labels, read_matrices, read_matrix, read_order, write_f32, write_labels, write_matrix, write_order,
};
