//! `rehang gallery import|adopt|release|export|put|delete|index|compact|drop-space|info`.

use rehang_core::{Error, Matrix, Result};
use rehang_files::{VectorSource, expect_apart};
use rehang_store::Released;
use rehang_upgrade::{Configuration, Export, Import, Location, Put};

use super::{Exit, expect_exact, location, say};
use crate::arguments::gallery::{
    AdoptArguments, DeleteArguments, DropSpaceArguments, ExportArguments, GalleryCommand, ImportArguments,
    IndexArguments, PutArguments, ReleaseArguments, WhichGallery,
};
use crate::arguments::library::options;
use crate::bar::with_bar;

/// Runs one of the verbs.
pub fn run(arguments: &GalleryCommand, json: bool) -> Result<Exit> {
    match arguments {
        GalleryCommand::Import(import) => run_import(import, json),
        GalleryCommand::Export(export) => run_export(export, json),
        GalleryCommand::Put(put) => run_put(put, json),
        GalleryCommand::Delete(delete) => run_delete(delete, json),
        GalleryCommand::DropSpace(space) => run_drop_space(space, json),
        GalleryCommand::Index(space) => run_index(space, json),
        GalleryCommand::Compact(compact) => run_compact(compact, json),
        GalleryCommand::Adopt(adopt) => run_adopt(adopt, json),
        GalleryCommand::Release(release) => run_release(release, json),
        GalleryCommand::Info(info) => run_info(info, json),
    }
}

/// Finds the gallery that `--gallery` or `--config` names.
fn location_of(which: &WhichGallery) -> Result<Location> {
    let configuration = which.config.as_deref().map(Configuration::read).transpose()?;
    location(which.gallery.as_deref(), configuration.as_ref())
}

fn run_adopt(arguments: &AdoptArguments, json: bool) -> Result<Exit> {
    let configuration = Configuration::read(&arguments.config)?;
    let gallery = &configuration.gallery;
    if arguments.dry_run {
        let statements = gallery.statements()?;
        return Exit::Done.print(json, &serde_json::json!({ "statements": statements }), &statements);
    }
    let adopted = with_bar(|progress| gallery.adopt(&configuration.old, progress))?;
    let remarks: String = adopted.remarks.iter().map(|remark| format!("· {remark}\n")).collect();
    let bare = without_source_text(gallery, adopted.without_source);
    let text = format!(
        "{} is a gallery: {} items, {} of them with a vector of {}.\n{bare}{remarks}Next: rehang doctor --config {path}, or rehang upgrade auto --config {path}\n",
        adopted.gallery,
        adopted.items,
        adopted.vectors,
        configuration.old.name,
        path = arguments.config.display()
    );
    Exit::Done.print(json, &adopted, &text)
}

/// Warns of items without a source, which no model can embed, before anything is paid for.
fn without_source_text(gallery: &Location, items: u64) -> String {
    if items == 0 {
        return String::new();
    }
    let way = match gallery {
        Location::Table(_) => " [gallery] where leaves such rows out of the gallery.",
        Location::File(_) | Location::Collection(_) => "",
    };
    format!(
        "{items} items have no source: they never become native, and a release leaves them without a vector (`--with-adapted`: with an adapted \
         one).{way}\n"
    )
}

fn run_release(arguments: &ReleaseArguments, json: bool) -> Result<Exit> {
    let configuration = Configuration::read(&arguments.config)?;
    let gallery = &configuration.gallery;
    let into = match (arguments.yes, &arguments.into) {
        (true, _) => None,
        (false, Some(column)) => Some(column.clone()),
        (false, None) => Some(gallery.new_column().map_err(without_yes)?),
    };
    if into.is_some() {
        for remark in gallery.open()?.remarks()? {
            say(&format!("Note: {remark}"));
        }
    }
    let released = with_bar(|progress| {
        gallery.release(into.as_deref(), arguments.with_adapted, arguments.anyway, progress)
    });
    // An error with a remedy says by itself what to do, so nothing is added to it.
    let is_worded = |error: &Error| into.is_none() || error.remedy().is_some();
    let released = released.map_err(|error| if is_worded(&error) { error } else { without_yes(error) })?;
    let remainder = released.as_ref().and_then(|released| released.empty.as_ref()).map_or_else(
        || "nothing of ours is left beside it".to_owned(),
        |empty| format!("{empty} stays beside it, empty: the key may not delete it"),
    );
    let mut text = format!("{gallery} is no gallery any more; {remainder}.\n");
    if let Some(column) = &into {
        text += &format!("Its column {column} has the vectors that served.\n");
    }
    if let Some(released) = released.as_ref().filter(|released| into.is_none() && released.vectors > 0) {
        let items = released.vectors + released.without_source + released.waiting;
        text += &format!(
            "{} of {items} items ({:.0} %) keep the vector that searches went to.\n",
            released.vectors,
            100.0 * released.vectors as f64 / items as f64
        );
    }
    if let Some(released) = &released {
        text += &released_text(released, if into.is_some() { " (NULL)" } else { "" });
    }
    let value = serde_json::json!({ "released": gallery.to_string(), "column": into, "items": released });
    let waiting = released.map_or(0, |released| released.waiting);
    Exit::done_if(waiting == 0).print(json, &value, &text)
}

/// Says what became of the vectors of a gallery that was released: how many are adapted, and which items have
/// none.
fn released_text(released: &Released, null: &str) -> String {
    let mut text = String::new();
    if let Some(place) = released.adapted_in.as_ref().filter(|_| released.adapted > 0) {
        text += &format!("{} of them are adapted: {place} says which.\n", released.adapted);
    }
    for (items, why) in [
        (released.without_source, "have no source"),
        (released.waiting, "have a source that nobody has embedded yet"),
    ] {
        if items > 0 {
            text += &format!("{items} items have no vector there{null}: they {why}.\n");
        }
    }
    text
}

fn without_yes(error: Error) -> Error {
    error.context("without --yes, the vectors that serve move into a column of the table first")
}

fn run_import(arguments: &ImportArguments, json: bool) -> Result<Exit> {
    let import = options!(
        Import { space, distance, items } from arguments,
        vectors: VectorSource::parse(&arguments.vectors)?
    );
    let location = Location::file(&arguments.gallery);
    let imported = with_bar(|progress| rehang_upgrade::import(&location, &import, progress))?;
    let text = format!("{}: {} items with vectors of {}\n", imported.gallery, imported.items, imported.of);
    Exit::Done.print(json, &imported, &text)
}

fn run_export(arguments: &ExportArguments, json: bool) -> Result<Exit> {
    let location = location_of(&arguments.which)?;
    let outputs = [
        ("vectors", Some(&arguments.vectors)),
        ("ids", arguments.ids.as_ref()),
        ("provenance", arguments.provenance.as_ref()),
    ];
    let inputs = [("gallery", &arguments.which.gallery), ("config", &arguments.which.config)];
    let inputs: Vec<_> = inputs.into_iter().filter_map(|(name, path)| Some((name, path.clone()?))).collect();
    expect_apart(&outputs, &inputs)?;
    let export = options!(Export { space, vectors, ids, provenance } from arguments);
    let store = location.open()?;
    let exported = with_bar(|progress| rehang_upgrade::export(&*store, &export, progress))?;
    let text = format!("{}: {} vectors of {}\n", arguments.vectors.display(), exported.vectors, exported.of);
    let outcome = Exit::done_if(exported.lacking == 0).print(json, &exported, &text)?;
    if exported.lacking > 0 {
        say(&format!(
            "{} items have no vector in {:?}: they are not in the files.",
            exported.lacking, exported.space
        ));
    }
    Ok(outcome)
}

fn run_put(arguments: &PutArguments, json: bool) -> Result<Exit> {
    let configuration = arguments.config.as_deref().map(Configuration::read).transpose()?;
    let json_payload = |text: &String| {
        expect_exact("payload", text)?;
        serde_json::from_str(text).map_err(|error| Error::option("payload", text, format!("JSON ({error})")))
    };
    let item = options!(
        Put { id, source, label } from arguments,
        payload: arguments.payload.as_ref().map(json_payload).transpose()?,
        vectors: arguments.vectors.iter().map(|text| parse_vector(text)).collect::<Result<_>>()?
    );
    let location = location(arguments.gallery.as_deref(), configuration.as_ref())?;
    let store = location.open()?;
    if let Some(configuration) = &configuration {
        configuration.expect_of_gallery(&location, &*store)?;
    }
    let gallery = rehang_upgrade::Gallery::new(store.clone());
    let done = rehang_upgrade::put(&*store, &gallery, &item)?;
    let mut text = format!("{} has revision {}\n", done.id, done.revision);
    if !done.removed_from.is_empty() {
        text += &format!(
            "Its vectors in {:?} were of the content before and are removed; no search finds it there until it has one again \
             (`--vector`, or a live upgrade that embeds its source).\n",
            done.removed_from
        );
    }
    Exit::Done.print(json, &done, &text)
}

/// `NAME=FILE` with one row, or `NAME=[…]`.
fn parse_vector(text: &str) -> Result<(String, Vec<f32>)> {
    let expected = "NAME=FILE or NAME=[0.1,0.2,…]";
    let (name, value) = text.split_once('=').ok_or_else(|| Error::option("vectors", text, expected))?;
    if value.trim_start().starts_with('[') {
        let vector = serde_json::from_str(value)
            .map_err(|error| Error::option("vectors", value, format!("{expected} ({error})")))?;
        return Ok((name.into(), vector));
    }
    let matrix: Matrix = rehang_files::read_matrix(&VectorSource::parse(value)?)?;
    if matrix.rows() != 1 {
        return Err(Error::option("vectors", text, format!("a file with one row, not {}", matrix.rows())));
    }
    Ok((name.into(), matrix.into_data()))
}

fn run_delete(arguments: &DeleteArguments, json: bool) -> Result<Exit> {
    let ids: Vec<&str> = arguments.ids.iter().chain(&arguments.more_ids).map(String::as_str).collect();
    if ids.is_empty() {
        return Err(Error::missing("an id", "`rehang gallery delete`"));
    }
    let done = rehang_upgrade::delete(&*location_of(&arguments.which)?.open()?, &ids)?;
    let outcome = Exit::done_if(done.missing.is_empty());
    outcome.print(json, &done, &format!("{} deleted\n", done.deleted))?;
    if !done.missing.is_empty() {
        say(&format!("There is no item {}.", done.missing.join(", ")));
    }
    Ok(outcome)
}

fn run_index(arguments: &IndexArguments, json: bool) -> Result<Exit> {
    let location = location_of(&arguments.which)?;
    let space = arguments.space.as_deref();
    let indexed = with_bar(|progress| rehang_upgrade::index(&location, space, progress))?;
    let what = if indexed.made { "was made" } else { "was ready" };
    let text = format!(
        "The search index of {:?} {what}; searches find {:.1} % of the true nearest 10.\n",
        indexed.space,
        100.0 * indexed.recall
    );
    Exit::Done.print(json, &indexed, &text)
}

fn run_compact(which: &WhichGallery, json: bool) -> Result<Exit> {
    let location = location_of(which)?;
    let compacted = with_bar(|progress| {
        progress.begin("giving room back", "bytes", 0);
        rehang_upgrade::compact(&location)
    })?;
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    let text = format!(
        "{location}: {:.1} MB before, {:.1} MB now\n",
        megabytes(compacted.bytes_before),
        megabytes(compacted.bytes)
    );
    Exit::Done.print(json, &compacted, &text)
}

fn run_drop_space(arguments: &DropSpaceArguments, json: bool) -> Result<Exit> {
    let location = location_of(&arguments.which)?;
    let dropped = rehang_upgrade::drop_space(&location, &arguments.space)?;
    let text = format!("{} is gone from {location}, with {} vectors\n", dropped.space, dropped.vectors);
    Exit::Done.print(json, &dropped, &text)
}

fn run_info(which: &WhichGallery, json: bool) -> Result<Exit> {
    let location = location_of(which)?;
    let contents = rehang_upgrade::contents(&*location.open()?)?;
    let mut text = format!("{location}\n");
    for space in &contents.spaces {
        let counts = &space.counts;
        text += &format!(
            "  {}{}: {} items, {} old, {} adapted, {} native, {} without a vector\n",
            space.space,
            if space.serving { " (serving)" } else { "" },
            counts.items,
            counts.old,
            counts.adapted,
            counts.native,
            counts.lacking
        );
    }
    Exit::Done.print(json, &contents, &text)
}
