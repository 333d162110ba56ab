//! `rehang-lab compare`: a whole study, and its report.

use rehang_cli::arguments::library::Argument;
use rehang_cli::shared::{Exit, say, with_bar};
use rehang_core::Result;
use rehang_files::AtomicFile;
use rehang_train::{CompareFiles, compare_files};
use serde_json::json;

use super::train::say_refused;
use crate::arguments::train::CompareArguments;

/// Trains, fits and measures a study, and writes its report.
pub fn run(arguments: &CompareArguments, json: bool) -> Result<Exit> {
    let files: CompareFiles = arguments.value()?;
    let (comparison, refused) = with_bar(|progress| compare_files(&files, progress))?;
    say_refused(&refused);
    let markdown = rehang_report::comparison_markdown(&comparison);
    let report = arguments.out.join("comparison.html");
    AtomicFile::write(&report, rehang_report::comparison_html(&comparison))?;
    AtomicFile::write(arguments.out.join("comparison.md"), &markdown)?;
    AtomicFile::write(arguments.out.join("comparison.json"), rehang_report::comparison_json(&comparison))?;
    for warning in &comparison.warnings {
        say(&format!("Warning: {}.", warning.trim_end_matches('.')));
    }
    let value = json!({ "report": report, "comparison": comparison, "refused": refused });
    Exit::done_if(refused.is_empty()).print(json, &value, &format!("{markdown}\n{}\n", report.display()))
}
