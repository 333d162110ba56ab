//! Long runs of tests that a run of all tests does for a short while only.

use std::process::Command;

use rehang_core::{Error, Result};

/// Stores that histories are played in.
const STORES: [&str; 4] = ["memory", "disk", "postgres", "qdrant"];

/// Kills the binary so many times, in the tests of that module.
pub fn kill(module: &str, times: &str) -> Result<()> {
    run("it", &format!("{module}::"), "REHANG_KILLS", times)
}

/// Plays so many histories in one store, or in every one where none is named.
pub fn race(histories: &str, store: &str) -> Result<()> {
    if !store.is_empty() && !STORES.contains(&store) {
        return Err(Error::option("--store", store, STORES.join(", ")));
    }
    run("model", store, "PROPTEST_CASES", histories)
}

/// Runs those tests of a test program whose names hold a word. An environment variable gives them another
/// number of kills or histories.
fn run(test: &str, word: &str, variable: &str, times: &str) -> Result<()> {
    if !times.parse::<u32>().is_ok_and(|times| times > 0) {
        return Err(Error::option(variable, times, "a whole number from 1"));
    }
    let status = Command::new("cargo")
        .args(["test", "--release", "--workspace", "--test", test, "--", "--nocapture", word])
        .env(variable, times)
        .status()
        .map_err(|error| Error::io("run", "cargo", &error))?;
    if status.success() {
        return Ok(());
    }
    Err(Error::corrupt("the gallery", format!("a test of {test} {word} failed; see above")))
}
