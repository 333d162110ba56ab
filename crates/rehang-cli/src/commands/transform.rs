//! `rehang transform`: old vectors in, vectors of the new space out.

use rehang::Result;
use rehang::transform::{TransformFiles, transform};

use super::{Outcome, say_findings};
use crate::arguments::Transform;
use crate::bar::with_bar;

/// Transforms a file.
pub fn run(arguments: &Transform, json: bool) -> Result<Outcome> {
    let files = TransformFiles {
        adapter: arguments.adapter.clone().into(),
        input: arguments.input.clone(),
        side: arguments.side.clone(),
        rows: arguments.selection.parsed()?,
        output: Some(arguments.output.clone()),
        sigma: arguments.sigma.clone(),
        force: arguments.force,
        batch: arguments.batch,
    };
    let written = with_bar(|progress| transform(&files, progress))?;
    say_findings(&written.findings);
    let (count, space, path) = (written.vectors, &written.space, arguments.output.display());
    Outcome::done_if(!written.drift_suspicious).print(
        json,
        &written,
        &format!("{count} vectors of space {space} written to {path}\n"),
    )
}
