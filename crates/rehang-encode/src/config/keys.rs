//! Keys: checks that the keys of several kinds share.

use std::path::{Path, PathBuf};

use rehang_core::{Error, Result};

/// Turns a path of the configuration into one that is seen from the folder of its file.
pub(crate) fn resolve(base: &Path, path: impl AsRef<Path>) -> PathBuf {
    let path = base.join(path);
    if path.as_os_str().is_empty() { PathBuf::from(".") } else { path }
}

/// Number that a key has where the configuration does not name it.
pub(crate) fn number<const N: u16, T: From<u16>>() -> T {
    T::from(N)
}

/// Fails unless a count is at least 1.
pub(crate) fn at_least_one(key: &str, value: usize) -> Result<()> {
    if value == 0 {
        return Err(Error::option(key, value, "a whole number from 1"));
    }
    Ok(())
}

/// Fails unless a number is finite and above 0.
pub(crate) fn positive(key: &str, value: f64) -> Result<()> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    Err(Error::option(key, value, "a number above 0"))
}

/// Checks a number of seconds from a configuration: above 0 and at most a day, so that a deadline can be
/// computed.
pub(crate) fn seconds(key: &str, value: f64) -> Result<std::time::Duration> {
    const DAY: f64 = 86400.0;
    if value > 0.0 && value <= DAY {
        return Ok(std::time::Duration::from_secs_f64(value));
    }
    Err(Error::option(key, value, "seconds above 0 and at most 86400, a day"))
}
