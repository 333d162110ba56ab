//! The verbs, one file each: they read files, call the library, and print.

pub mod compare;
pub mod curve;
pub mod demo;
pub mod doctor;
pub mod evaluate;
pub mod fit;
pub mod gallery;
pub mod init;
pub mod inspect;
pub mod order;
pub mod report;
pub mod search;
pub mod train;
pub mod transform;
pub mod upgrade;

use std::io::Write;
use std::path::{Path, PathBuf};

use rehang::curve::COUNT_MAX;
use rehang::files::AtomicFile;
use rehang::{Error, Result};
use rehang_upgrade::{Configuration, Location};
use serde::Serialize;
use serde_json::Value;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Everything was done.
    Done,
    /// It finished, with something refused or doubtful that was said.
    WithRefusals,
}

impl Outcome {
    /// Done, or with refusals where not all was.
    pub fn done_if(all: bool) -> Self {
        if all { Self::Done } else { Self::WithRefusals }
    }
}

/// The gallery that was named, or the one of the configuration.
pub fn location(gallery: Option<&Path>, configuration: Option<&Configuration>) -> Result<Location> {
    gallery
        .map(Location::file)
        .or_else(|| configuration.map(|configuration| configuration.gallery.clone()))
        .ok_or_else(|| Error::missing("gallery", "this verb"))
}

/// Says what a person should know.
pub fn warn(warnings: &[String]) -> Outcome {
    for warning in warnings {
        say(&format!("Warning: {warning}"));
    }
    Outcome::done_if(warnings.is_empty())
}

/// Prints a result on stdout: as one JSON object, or the text about it.
pub fn print_value(json: bool, value: &impl Serialize, text: &str) -> Result<()> {
    let value = serde_json::to_value(value).map_err(|error| Error::corrupt("the result", error))?;
    print(json, &value, text)
}

/// Prints a result on stdout: one JSON object, or the text.
pub fn print(json: bool, value: &Value, text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    let written = if json { writeln!(stdout, "{value}") } else { write!(stdout, "{text}") };
    match written {
        // Whoever reads may have seen enough (`| head`): that is no failure.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|error| Error::io("write to", "stdout", &error)),
    }
}

/// Fails where a grid has no start and end, or more points than any curve.
pub fn check_grid(points: usize) -> Result<()> {
    if (2..=COUNT_MAX).contains(&points) {
        return Ok(());
    }
    Err(Error::option("--grid", points, format!("2 to {COUNT_MAX} points")))
}

/// Fails where a file would be written over another one that is written too, or over one that is read. Both are given with
/// the options that name them.
pub fn expect_apart(outputs: &[(&str, Option<&PathBuf>)], inputs: &[(&str, PathBuf)]) -> Result<()> {
    let mut taken: Vec<(&str, &PathBuf)> = inputs.iter().map(|(name, path)| (*name, path)).collect();
    for &(name, path) in outputs {
        let Some(path) = path else { continue };
        if let Some((other, _)) = taken.iter().find(|(_, other)| is_same_file(path, other)) {
            return Err(Error::option(name, path.display(), format!("another file than {other}")));
        }
        taken.push((name, path));
    }
    Ok(())
}

/// Whether two paths name one file, however they are spelled and whichever links lead there; the files need not exist.
pub fn is_same_file(a: &Path, b: &Path) -> bool {
    let place = |path: &Path| -> Option<PathBuf> {
        if let Ok(whole) = fs_err::canonicalize(path) {
            return Some(whole);
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Some(fs_err::canonicalize(folder).ok()?.join(path.file_name()?))
    };
    a == b || matches!((place(a), place(b)), (Some(a), Some(b)) if a == b) || is_hard_linked(a, b)
}

/// Whether two names stand for one file on the disk.
#[cfg(unix)]
fn is_hard_linked(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;

    let number = |path: &Path| fs_err::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
    number(a).is_some_and(|a| number(b) == Some(a))
}

/// Other systems give files no number that could be asked for here.
#[cfg(not(unix))]
fn is_hard_linked(_: &Path, _: &Path) -> bool {
    false
}

/// Writes a text file, whole or not at all.
pub fn write_text(path: &Path, text: &str) -> Result<()> {
    let mut file = AtomicFile::create(path)?;
    file.put(text.as_bytes())?;
    file.commit()
}

/// Says something on stderr, beside the result.
pub fn say(text: &str) {
    // A closed stderr must not stop the work.
    drop(writeln!(std::io::stderr(), "{text}"));
}

/// One decimal, as percent are printed everywhere.
pub fn one_decimal(value: f64) -> String {
    format!("{value:.1}")
}
