//! Stand-in for the reader and the writer of Parquet in a build without the feature `parquet`.

use std::ops::Range;
use std::path::Path;

use rehang_core::{Error, ErrorKind, Result};

use crate::given::Scalars;
use crate::rows::{Columns, RowReader, RowWriter};
use crate::source::{VectorSource, Wish};

fn left_out() -> Error {
    ErrorKind::MissingFeature { feature: "parquet" }.into()
}

pub(super) fn has_ids(_: &VectorSource) -> Result<bool> {
    Err(left_out())
}

pub(super) fn read_scalars(_: &VectorSource, _: &Wish) -> Result<Scalars> {
    Err(left_out())
}

pub(super) fn scalar_ranges(_: &VectorSource, _: &Wish) -> Result<Vec<Range<u64>>> {
    Err(left_out())
}

pub(super) fn open_rows(_: &VectorSource) -> Result<Box<dyn RowReader>> {
    Err(left_out())
}

pub(super) fn create(_: &Path, _: Columns) -> Result<Box<dyn RowWriter>> {
    Err(left_out())
}
