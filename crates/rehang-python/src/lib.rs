//! rehang for Python: a thin face on the verbs of the libraries.
//!
//! ```text
//! python/rehang (names, types, documentation) → this module → a verb of a library
//! ```
//!
//! The Python package makes arrays of whatever it is given and calls this module; nothing else does. Whatever
//! takes longer than a millisecond runs on another thread without Python's lock ([`call`]).

#![allow(clippy::needless_pass_by_value, reason = "arguments of Python arrive by value")]

mod call;
mod error;
mod live;
mod sources;
mod verbs;

use pyo3::prelude::*;

/// Runs a command line, the program's name in front; gives the exit code.
#[pyfunction]
fn main(py: Python<'_>, line: Vec<std::ffi::OsString>) -> u8 {
    py.detach(|| rehang_cli::main(line))
}

#[pymodule]
fn _rehang(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(main, module)?)?;
    module.add_function(wrap_pyfunction!(verbs::fit, module)?)?;
    module.add_function(wrap_pyfunction!(verbs::transform, module)?)?;
    module.add_function(wrap_pyfunction!(verbs::order, module)?)?;
    module.add_function(wrap_pyfunction!(verbs::curve, module)?)?;
    module.add_function(wrap_pyfunction!(verbs::report, module)?)?;
    module.add_function(wrap_pyfunction!(verbs::identify, module)?)?;
    module.add_function(wrap_pyfunction!(live::import_items, module)?)?;
    module.add_function(wrap_pyfunction!(live::init, module)?)?;
    module.add_class::<verbs::PyAdapter>()?;
    module.add_class::<verbs::PyReport>()?;
    module.add_class::<live::PyUpgrade>()
}
