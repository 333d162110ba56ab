//! Errors of the libraries as exceptions of `rehang.errors`, in the words of Python.

use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use rehang_core::{Error, ErrorKind, Verb, Wording};

/// Makes the exception that stands for an error. An exception that a callable raised is its cause.
pub fn raised(py: Python<'_>, error: &Error) -> PyErr {
    let exception = match made(py, error) {
        Ok(exception) => PyErr::from_value(exception),
        Err(other) => return other,
    };
    let mut pending = RAISED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(cause) = pending.take_if(|cause| error.to_string().contains(&cause.to_string())) {
        exception.set_cause(py, Some(cause));
    }
    exception
}

/// Takes the exception by which a callable ends the process, such as a KeyboardInterrupt or a SystemExit.
pub fn ending(py: Python<'_>) -> Option<PyErr> {
    let mut pending = RAISED.lock().unwrap_or_else(PoisonError::into_inner);
    pending.take_if(|raised| !raised.is_instance_of::<PyException>(py))
}

/// Keeps the last exception of a callable.
static RAISED: Mutex<Option<PyErr>> = Mutex::new(None);

/// Makes the error of a library for what a callable raised.
pub fn of_callable(py: Python<'_>, raised: PyErr) -> Error {
    let error = if raised.is_instance_of::<PyException>(py) {
        ErrorKind::Unavailable { service: "the encoder".into(), detail: raised.to_string() }
    } else {
        ErrorKind::Cancelled
    };
    *RAISED.lock().unwrap_or_else(PoisonError::into_inner) = Some(raised);
    error.into()
}

fn made<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyAny>> {
    let class = py.import("rehang.errors")?.getattr(class_of(error))?;
    let exception = class.call1((error.worded(&Words),))?;
    exception.setattr("remedy", error.remedy().map(|remedy| remedy.worded(&Words)))?;
    if let ErrorKind::Io { errno, .. } = error.kind() {
        exception.setattr("errno", errno)?;
    }
    Ok(exception)
}

/// Names the exception's class, by what the reader has to do.
fn class_of(error: &Error) -> &'static str {
    match error.kind() {
        _ if error.is_mismatch() => "MismatchError",
        _ if error.is_corrupt() => "CorruptError",
        _ if error.is_conflict() => "ConflictError",
        ErrorKind::InvalidOption { .. } | ErrorKind::MissingInput { .. } => "OptionError",
        ErrorKind::Io { .. } => "FileError",
        ErrorKind::NotFound { .. } => "NotFoundError",
        ErrorKind::Unavailable { .. } => "UnavailableError",
        ErrorKind::Unauthorised { .. } => "UnauthorisedError",
        ErrorKind::BudgetSpent { .. } => "BudgetSpentError",
        ErrorKind::MissingFeature { .. } => "MissingFeatureError",
        ErrorKind::Cancelled => "CancelledError",
        _ => "Error",
    }
}

/// Words of Python: parameters are the arguments' own names, verbs are calls.
struct Words;

impl Wording for Words {
    fn parameter(&self, name: &str) -> String {
        // An encoder is a callable here, and no table of a configuration.
        name.strip_suffix(" of [encoder]").unwrap_or(name).to_owned()
    }

    fn verb(&self, verb: Verb) -> String {
        let call = match verb {
            Verb::Adopt => "rehang gallery adopt",
            Verb::Start => "upgrade.start()",
            Verb::Status => "upgrade.status()",
            Verb::Switch => "upgrade.switch()",
            Verb::SwitchFused => "switch(fused=True)",
            Verb::SwitchAnyway => "switch(anyway=True)",
            Verb::Rollback => "upgrade.rollback()",
            Verb::Resume => "upgrade.resume()",
            Verb::ReEmbed => "upgrade.resume(re_embed=True)",
            Verb::Run => "upgrade.run()",
            Verb::FinishAnyway => "finish(anyway=True)",
            Verb::ReleaseWithAdapted => {
                return "`rehang gallery release --with-adapted` on the command line".into();
            }
            Verb::Release => return "`rehang gallery release` on the command line".into(),
            Verb::ReleaseAnyway => {
                return "`rehang gallery release --yes --anyway` on the command line".into();
            }
            Verb::RunUntil { percent } => return format!("`upgrade.run(until={:.3})`", percent / 100.0),
            Verb::Follow => "upgrade.run(follow=True)",
            Verb::Pause => "upgrade.pause()",
            Verb::Report => "rehang.report(…).save(\"report.json\")",
            Verb::Identify => "upgrade.identify()",
            Verb::Pairs => "upgrade.pairs()",
            Verb::Fit => "upgrade.fit()",
            Verb::Bridge => "upgrade.bridge()",
            Verb::Put => "gallery.put",
            Verb::DropSpace => return "`rehang gallery drop-space` on the command line".into(),
            Verb::Compact => return "`rehang gallery compact` on the command line".into(),
            Verb::Index => return "`rehang gallery index` on the command line".into(),
            Verb::Repair => return "`rehang doctor --repair` on the command line".into(),
        };
        format!("`{call}`")
    }
}
