//! Arguments that Python gives a verb: files by their paths, arrays in memory, and options by their names.

use std::path::PathBuf;
use std::sync::Arc;

use numpy::{PyArrayDescrMethods, PyReadonlyArray1, PyReadonlyArray2, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::conversion::FromPyObjectOwned;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use rehang_core::curve::Metric;
use rehang_core::order::Policy;
use rehang_core::report::Precision;
use rehang_core::{Distance, Error, HeadKind, Result};
use rehang_evaluate::AnswerFiles;
use rehang_files::{GivenRows, HeadFiles, JoinFiles, RowSelection, Scalars, VectorSource};
use rehang_fit::objectives::squared::SquaredScale;
use rehang_fit::{FitParameters, LossParts, Method, NetworkOptions, UncertaintySource, Within};
use rehang_upgrade::{PairsOptions, RunOptions, SwitchIf, Until, parse_until};

use crate::error::raised;

/// Options of a call, by their names; an option that is not given has no entry.
pub struct Options<'a, 'py>(pub &'a Bound<'py, PyDict>);

impl<'py> Options<'_, 'py> {
    /// Finds the object of a name; `None` stands for one that is not given.
    pub fn object(&self, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(self.0.get_item(name)?.filter(|value| !value.is_none()))
    }

    /// Extracts the value of a name as a type of Rust.
    pub fn get<T: FromPyObjectOwned<'py>>(&self, name: &str) -> PyResult<Option<T>> {
        self.object(name)?.map(|value| value.extract().map_err(Into::into)).transpose()
    }

    /// Reads a file or an array that the caller `by` needs; fails where none is given.
    pub fn needed(&self, name: &str, by: &str) -> PyResult<VectorSource> {
        FromOptions::read(self, name)?.ok_or_else(|| raised(self.0.py(), &Error::missing(name, by)))
    }

    /// Reads an option; gives `plain` where it is not given.
    pub fn or<T: FromOptions<'py>>(&self, name: &str, plain: T) -> PyResult<T> {
        Ok(T::read(self, name)?.unwrap_or(plain))
    }
}

/// Fills in those of a library's options that are given under the same names. All others stay as in the
/// options behind `over`.
macro_rules! filled {
    ($options:expr, { $($name:ident),* $(,)? } over $plain:expr) => {{
        let mut filled = $plain;
        $(filled.$name = $options.or(stringify!($name), filled.$name)?;)*
        filled
    }};
}
pub(crate) use filled;

/// Type that an option may have.
pub trait FromOptions<'py>: Sized {
    /// Reads the option of a name, where it is given.
    fn read(options: &Options<'_, 'py>, name: &str) -> PyResult<Option<Self>>;
}

/// Implements [`FromOptions`] for values of Python's own types.
macro_rules! of_python {
    ($($type:ty),*) => {
        $(impl<'py> FromOptions<'py> for $type {
            fn read(options: &Options<'_, 'py>, name: &str) -> PyResult<Option<Self>> {
                options.get(name)
            }
        })*
    };
}
of_python!(bool, usize, u64, f32, f64, String, PathBuf, [f32; 2], Vec<usize>, Vec<f64>);

/// Implements [`FromOptions`] for values that a library reads from text. The library words what it expects.
macro_rules! of_text {
    ($($type:ty),*) => {
        $(impl<'py> FromOptions<'py> for $type {
            fn read(options: &Options<'_, 'py>, name: &str) -> PyResult<Option<Self>> {
                let text: Option<String> = options.get(name)?;
                text.map(|text| text.parse().map_err(|error| raised(options.0.py(), &error))).transpose()
            }
        })*
    };
}
of_text!(
    Distance,
    HeadKind,
    LossParts,
    Method,
    Precision,
    Metric,
    RowSelection,
    SquaredScale,
    SwitchIf,
    UncertaintySource,
    Within
);

impl<'py, T: FromOptions<'py>> FromOptions<'py> for Option<T> {
    fn read(options: &Options<'_, 'py>, name: &str) -> PyResult<Option<Self>> {
        Ok(T::read(options, name)?.map(Some))
    }
}

impl<'py> FromOptions<'py> for VectorSource {
    fn read(options: &Options<'_, 'py>, name: &str) -> PyResult<Option<Self>> {
        options.object(name)?.map(|value| source(name, &value)).transpose()
    }
}

/// Verbs that take several files get one array from Python.
impl<'py> FromOptions<'py> for Vec<VectorSource> {
    fn read(options: &Options<'_, 'py>, name: &str) -> PyResult<Option<Self>> {
        Ok(VectorSource::read(options, name)?.map(|source| vec![source]))
    }
}

/// Implements [`FromOptions`] for lists of values that a library reads from text.
macro_rules! of_texts {
    ($($type:ty),*) => {
        $(impl<'py> FromOptions<'py> for Vec<$type> {
            fn read(options: &Options<'_, 'py>, name: &str) -> PyResult<Option<Self>> {
                let names: Option<Vec<String>> = options.get(name)?;
                let parse = |name: String| name.parse().map_err(|error: Error| raised(options.0.py(), &error));
                names.map(|names| names.into_iter().map(parse).collect()).transpose()
            }
        })*
    };
}
of_texts!(Policy, Precision);

impl<'py> FromOptions<'py> for Until {
    fn read(options: &Options<'_, 'py>, name: &str) -> PyResult<Option<Self>> {
        let Some(value) = options.object(name)? else { return Ok(None) };
        if let Ok(text) = value.cast::<PyString>() {
            let read = parse_until(name, &text.to_cow()?);
            return read.map(Some).map_err(|error| raised(options.0.py(), &error));
        }
        Ok(Some(Self::Fraction(value.extract()?)))
    }
}

/// Implements [`FromOptions`] for options that stand in a group of their own in the libraries, and beside the
/// others in Python.
macro_rules! groups {
    ($($group:ident { $($name:ident),* $(,)? })*) => {
        $(impl<'py> FromOptions<'py> for $group {
            fn read(options: &Options<'_, 'py>, _: &str) -> PyResult<Option<Self>> {
                Ok(Some(filled!(options, { $($name),* } over $group::default())))
            }
        })*
    };
}
groups! {
    JoinFiles { old_ids, new_ids, keep_common }
    HeadFiles { head_weight, head_bias, head_kind }
    AnswerFiles { labels, queries, query_labels, queries_old, qrels, ids, query_ids, groups, k }
    FitParameters { method, seed, metric, compare, within }
    NetworkOptions {
        epochs, early_stop, seeds, checkpoints, networks, loss, squared, uncertainty, label_smoothing, uncertainty_weights
    }
    PairsOptions { items, worth, run }
}

/// Implements [`FromOptions`] for the options of a run, by the names that the library declares.
macro_rules! of_run {
    ($($(#[$about:meta])* $group:ident {
        $($(#[$help:meta])* $name:ident: $written:ty $(= $value:tt)?,)*
    })*) => {
        groups! { RunOptions { $($($name),*),* } }
    };
}
rehang_upgrade::run_options!(of_run);

/// Reads a path, or an array of one or two dimensions. The Python package has made one of the two of whatever
/// it was given.
pub fn source(name: &str, value: &Bound<'_, PyAny>) -> PyResult<VectorSource> {
    let py = value.py();
    if let Ok(path) = value.cast::<PyString>() {
        return VectorSource::parse(&path.to_cow()?).map_err(|error| raised(py, &error));
    }
    let array = value.cast::<PyUntypedArray>()?;
    let content: rehang_files::Given = match *array.shape() {
        [rows, width] => rehang_files::Given::Rows(Arc::new(Rows {
            array: array.clone().unbind(),
            name: name.to_owned(),
            count: rows,
            width,
        })),
        _ => values(array)?.into(),
    };
    Ok(VectorSource::given(name, content))
}

/// Reads one value a row.
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

/// Rows of an array, read a batch at a time: an array that is mapped from a file is never in memory as a
/// whole, and one of another type or order is never copied as a whole.
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
