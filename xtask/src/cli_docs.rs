//! `cargo xtask cli-docs`: `docs/cli.md`, as the binary itself writes it.

use std::process::Command;

use rehang_core::{Error, Result};

/// Builds the binary and lets it write the page.
pub fn run() -> Result<()> {
    let status = Command::new("cargo")
        .args(["run", "--profile", "quick", "--quiet", "--package", "rehang-cli", "--features", "full", "--"])
        .args(["man", "--format", "markdown", "--out", "docs"])
        .current_dir(crate::tidy::root())
        .status()
        .map_err(|error| Error::io("run", "cargo", &error))?;
    if status.success() {
        return Ok(());
    }
    Err(Error::conflict("docs/cli.md", "it could not be made; see above"))
}
