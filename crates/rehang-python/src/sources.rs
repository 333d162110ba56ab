//! What Python gives a verb: files by their paths, arrays in memory, and options by their names.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use numpy::{PyArrayDescrMethods, PyReadonlyArray1, PyReadonlyArray2, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::conversion::FromPyObjectOwned;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use rehang::{Error, Result};
use rehang_files::{Given, GivenRows, HeadFiles, JoinFiles, RowSelection, Scalars, VectorSource};

use crate::error::raised;

/// The options of a call, by their names; what is not given is not there.
pub struct Options<'a, 'py>(pub &'a Bound<'py, PyDict>);

impl<'py> Options<'_, 'py> {
    /// The object of that name.
    pub fn object(&self, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(self.0.get_item(name)?.filter(|value| !value.is_none()))
    }

    /// A value of that name.
    pub fn get<T: FromPyObjectOwned<'py>>(&self, name: &str) -> PyResult<Option<T>> {
        self.object(name)?.map(|value| value.extract().map_err(Into::into)).transpose()
    }

    /// A value that a library reads from text.
    pub fn parsed<T: FromStr<Err = Error>>(&self, name: &str) -> PyResult<Option<T>> {
        let text: Option<String> = self.get(name)?;
        text.map(|text| text.parse().map_err(|error| raised(self.0.py(), &error))).transpose()
    }

    /// A file or an array.
    pub fn source(&self, name: &str) -> PyResult<Option<VectorSource>> {
        self.object(name)?.map(|value| source(name, &value)).transpose()
    }

    /// The same where a verb takes several.
    pub fn sources(&self, name: &str) -> PyResult<Vec<VectorSource>> {
        Ok(self.source(name)?.into_iter().collect())
    }

    /// A file that is needed.
    pub fn needed(&self, name: &str, by: &str) -> PyResult<VectorSource> {
        self.source(name)?.ok_or_else(|| raised(self.0.py(), &Error::missing(name, by)))
    }

    /// A path.
    pub fn path(&self, name: &str) -> PyResult<Option<PathBuf>> {
        self.get(name)
    }

    /// How rows are joined.
    pub fn join(&self) -> PyResult<JoinFiles> {
        Ok(JoinFiles {
            old_ids: self.sources("old_ids")?,
            new_ids: self.sources("new_ids")?,
            keep_common: self.get("keep_common")?.unwrap_or_default(),
        })
    }

    /// Which rows of files take part.
    pub fn rows(&self) -> PyResult<Option<RowSelection>> {
        self.parsed("rows")
    }

    /// The new model's classifier head.
    pub fn head(&self) -> PyResult<HeadFiles> {
        Ok(HeadFiles {
            head_weight: self.source("head_weight")?,
            head_bias: self.source("head_bias")?,
            head_kind: self.parsed("head_kind")?.unwrap_or_default(),
        })
    }
}

/// A path, or an array of one or two dimensions. The Python package has made one of the two of whatever it was given.
pub fn source(name: &str, value: &Bound<'_, PyAny>) -> PyResult<VectorSource> {
    let py = value.py();
    if let Ok(path) = value.cast::<PyString>() {
        return VectorSource::parse(&path.to_cow()?).map_err(|error| raised(py, &error));
    }
    let array = value.cast::<PyUntypedArray>()?;
    let given: Given = match *array.shape() {
        [rows, width] => Given::Rows(Arc::new(Rows {
            array: array.clone().unbind(),
            name: name.to_owned(),
            count: rows,
            width,
        })),
        _ => values(array)?.into(),
    };
    Ok(VectorSource::given(name, given))
}

/// One value a row.
fn values(array: &Bound<'_, PyUntypedArray>) -> PyResult<Scalars> {
    let py = array.py();
    let as_type = |kind: &str| array.call_method1(intern!(py, "astype"), (kind,));
    Ok(match array.dtype().kind() {
        b'b' | b'i' | b'u' => {
            let numbers = as_type("int64")?;
            let numbers: PyReadonlyArray1<'_, i64> = numbers.extract()?;
            Scalars::Integers(numbers.as_array().to_vec())
        }
        b'f' => {
            let numbers = as_type("float64")?;
            let numbers: PyReadonlyArray1<'_, f64> = numbers.extract()?;
            let digits = match array.dtype().itemsize() {
                2 => 11,
                4 => f32::MANTISSA_DIGITS,
                _ => f64::MANTISSA_DIGITS,
            };
            Scalars::Floats(numbers.as_array().to_vec(), (1_u64 << digits) as f64)
        }
        _ => Scalars::Texts(array.call_method0(intern!(py, "tolist"))?.extract()?),
    })
}

/// Rows of an array, read a batch at a time: an array that is mapped from a file is never in memory as a whole, and one of another
/// type or order is never copied as a whole.
struct Rows {
    array: Py<PyUntypedArray>,
    name: String,
    count: usize,
    width: usize,
}

impl GivenRows for Rows {
    fn rows(&self) -> u64 {
        self.count as u64
    }

    fn width(&self) -> usize {
        self.width
    }

    fn read(&self, first: u64, count: usize, out: &mut Vec<f32>) -> Result<()> {
        let copied = Python::attach(|py| -> PyResult<()> {
            let rows = pyo3::types::PySlice::new(py, first as isize, first as isize + count as isize, 1);
            let rows = self.array.bind(py).get_item(rows)?;
            let numpy = py.import(intern!(py, "numpy"))?;
            let rows =
                numpy.call_method1(intern!(py, "ascontiguousarray"), (rows, intern!(py, "float32")))?;
            let rows: PyReadonlyArray2<'_, f32> = rows.extract()?;
            out.extend_from_slice(rows.as_slice()?);
            Ok(())
        });
        copied.map_err(|error| Error::corrupt(&self.name, error))
    }
}
