//! The long runs of tests that a run of all tests does for a short while only.

use std::process::Command;

use rehang::{Error, Result};

/// Runs a test with another number of kills or histories, which an environment variable names.
pub fn run(test: &str, variable: &str, times: &str) -> Result<()> {
    if !times.parse::<u32>().is_ok_and(|times| times > 0) {
        return Err(Error::option(variable, times, "a whole number from 1"));
    }
    let status = Command::new("cargo")
        .args(["test", "--release", "--workspace", "--test", test, "--", "--nocapture"])
        .env(variable, times)
        .status()
        .map_err(|error| Error::io("run", "cargo", &error))?;
    if status.success() {
        return Ok(());
    }
    Err(Error::corrupt("the gallery", format!("the test {test} failed; see above")))
}
