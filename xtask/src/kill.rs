//! The long run of the kill test (`crates/rehang-cli/tests/kill.rs`).

use std::process::Command;

use rehang::{Error, Result};

/// Runs the test with another number of kills.
pub fn run(times: &str) -> Result<()> {
    if !times.parse::<u32>().is_ok_and(|times| times > 0) {
        return Err(Error::option("TIMES", times, "a whole number from 1"));
    }
    let status = Command::new("cargo")
        .args(["test", "--release", "--workspace", "--test", "kill", "--", "--nocapture"])
        .env("REHANG_KILLS", times)
        .status()
        .map_err(|error| Error::io("run", "cargo", &error))?;
    if status.success() {
        return Ok(());
    }
    Err(Error::corrupt("the gallery", "the kill test failed; see above"))
}
