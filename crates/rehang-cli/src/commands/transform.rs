//! `rehang transform`: old vectors in, vectors of the new space out.

use std::sync::Arc;

use rehang_core::{Error, Result};
use rehang_files::VectorSource;
use rehang_files::folders::Folder;
use rehang_files::partitions::{Share, TransformFolder, transform_folder};
use rehang_files::transform::{TransformFiles, transform};

use super::{Exit, say_findings};
use crate::addresses;
use crate::arguments::library::options;
use crate::arguments::vectors::TransformArguments;

/// Transforms files, or a folder of partitions.
pub fn run(arguments: &TransformArguments, json: bool) -> Result<Exit> {
    if let [source] = arguments.input.as_slice()
        && let Some(folder) = addresses::folder_there(&source.path)?
    {
        return run_folder(arguments, source, folder, json);
    }
    if let Some(share) = &arguments.share {
        return Err(Error::option("share", share, "nothing beside files: it is for a folder of partitions"));
    }
    let paths = arguments.input.iter().map(|source| source.path.as_path());
    let written = addresses::with_bar(paths, |progress| {
        let files = options!(
            TransformFiles { adapter, side, rows, sigma, force, batch } from arguments,
            input: addresses::fetched(&arguments.input, progress)?,
            output: Some(arguments.output.clone())
        );
        transform(&files, progress)
    })?;
    say_findings(&written.findings);
    let (count, space, path) = (written.vectors, &written.space, arguments.output.display());
    Exit::done_if(!written.drift_suspicious).print(
        json,
        &written,
        &format!("{count} vectors of space {space} written to {path}\n"),
    )
}

fn run_folder(
    arguments: &TransformArguments,
    source: &VectorSource,
    input: Arc<dyn Folder>,
    json: bool,
) -> Result<Exit> {
    let idle = [
        ("side", !arguments.side.is_empty()),
        ("rows", arguments.rows.rows.is_some()),
        ("sigma", arguments.sigma.is_some()),
    ];
    if let Some((name, _)) = idle.into_iter().find(|(_, is_given)| *is_given) {
        let expected = "nothing beside a folder: σ² stands beside the vectors of Parquet partitions";
        return Err(Error::option(name, "given", expected));
    }
    let files = options!(
        TransformFolder { adapter, force, batch } from arguments,
        input: input,
        column: source.column.clone(),
        output: addresses::folder(&arguments.output)?,
        share: arguments.share.as_deref().map_or(Ok(Share::ALL), str::parse)?
    );
    let done = addresses::with_bar([source.path.as_path(), &arguments.output], |progress| {
        transform_folder(&files, progress)
    })?;
    say_findings(&done.findings);
    let (made_now, made_before, space, path) =
        (done.made, done.partitions - done.made - done.empty, &done.space, done.adapted.display());
    let text = format!(
        "{made_now} partitions ({} vectors of space {space}) written to {path}; {made_before} were there, {} are empty\n",
        done.vectors, done.empty
    );
    Exit::done_if(done.drift_suspicious.is_empty()).print(json, &done, &text)
}
