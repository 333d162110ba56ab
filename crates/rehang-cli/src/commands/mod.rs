//! The verbs, one file each: they read files, call the library, and print.

pub mod bench;
pub mod curve;
#[cfg(feature = "demo")]
pub mod demo;
pub mod doctor;
pub mod export;
pub mod fit;
pub mod gallery;
pub mod identify;
pub mod init;
pub mod inspect;
pub mod manual;
pub mod order;
pub mod report;
pub mod search;
#[cfg(feature = "serve")]
pub mod serve;
pub mod thresholds;
pub mod transform;
pub mod upgrade;

use std::io::Write;
use std::path::Path;

use rehang_core::finding::{Finding, Severity};
use rehang_core::{Error, Progress, Result, printable};
use rehang_upgrade::{Configuration, Location};
use serde::Serialize;

use crate::wording::{self, in_flags};

/// End of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Everything was done.
    Done,
    /// Everything was done that could be; something refused or doubtful was said.
    WithRefusals,
}

impl Exit {
    /// Gives `Done`, or `WithRefusals` where not all was done.
    pub fn done_if(all: bool) -> Self {
        if all { Self::Done } else { Self::WithRefusals }
    }

    /// Prints a result on stdout: as one JSON object, or the text about it.
    ///
    /// # Errors
    ///
    /// [`Io`](rehang_core::ErrorKind::Io) where stdout cannot be written.
    pub fn print(self, json: bool, value: &impl Serialize, text: &str) -> Result<Self> {
        let value = serde_json::to_value(value).map_err(|error| Error::corrupt("the result", error))?;
        let mut stdout = std::io::stdout().lock();
        written(if json { writeln!(stdout, "{value}") } else { write!(stdout, "{}", printable(text)) })?;
        Ok(self)
    }
}

/// Refuses JSON with a whole number that would be rounded: rounded, it would find or store another value.
fn expect_exact(parameter: &str, json: &str) -> Result<()> {
    rehang_store::rounded_number(json).map_or(Ok(()), |number| {
        let expected = "whole numbers of 64 bits; write a longer one as a text, in quotes";
        Err(Error::option(parameter, number, expected))
    })
}

/// Passes the outcome of a write to stdout on. A closed pipe is no failure: the reader may have seen enough
/// (`| head`).
pub fn written(result: std::io::Result<()>) -> Result<()> {
    match result {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|error| Error::io("write to", "stdout", &error)),
    }
}

/// Finds the gallery that was named by a file, or else the one of the configuration.
pub fn location(gallery: Option<&Path>, configuration: Option<&Configuration>) -> Result<Location> {
    gallery
        .map(Location::file)
        .or_else(|| configuration.map(|configuration| configuration.gallery.clone()))
        .ok_or_else(|| Error::missing("gallery", "this verb"))
}

/// Words a finding in whole sentences, the last of which names the command that is next.
fn with_next(finding: &Finding) -> String {
    let next = finding.next.as_ref().map(|step| format!(" {}.", wording::remedy(step)));
    finding.to_string() + &next.unwrap_or_default()
}

/// Warns of findings on stderr; the exit is `Done` only where there are none.
pub fn warn(findings: &[Finding]) -> Exit {
    for finding in findings {
        say(&format!("Warning: {}", with_next(finding)));
    }
    Exit::done_if(findings.is_empty())
}

/// Says findings on stderr, each with its severity.
pub fn say_findings<'a>(findings: impl IntoIterator<Item = &'a Finding>) {
    for finding in findings {
        let word = match finding.severity {
            Severity::Note => "Note",
            Severity::Warning => "Warning",
            Severity::Problem => "Problem",
        };
        say(&in_flags(&format!("{word}: {}", with_next(finding))));
    }
}

/// Lets the first Ctrl-C end the work in order: what is in hand finishes, so vectors that were paid for are
/// written and temporary files removed. The second Ctrl-C ends at once.
pub fn end_at_ctrl_c(progress: &Progress) {
    let progress = progress.clone();
    let handler = move || {
        if progress.check().is_err() {
            std::process::exit(130);
        }
        say("Ending after what is in hand (Ctrl-C again to end at once) …");
        progress.cancel();
    };
    // Without a handler Ctrl-C ends at once, which loses nothing either.
    drop(ctrlc::set_handler(handler));
}

/// Says something on stderr, beside the result.
pub fn say(text: &str) {
    // A closed stderr must not stop the work.
    drop(writeln!(std::io::stderr(), "{}", printable(text)));
}

/// Writes a number with one decimal, as percent are printed everywhere.
pub fn one_decimal(value: f64) -> String {
    format!("{value:.1}")
}
