//! `rehang init`.

use rehang_core::Result;
use rehang_upgrade::{CollectionLocation, Init, Location, TableLocation, init};

use super::{Exit, location};
use crate::arguments::gallery::InitArguments;
use crate::arguments::library::options;

/// Writes a first configuration.
pub fn run(arguments: &InitArguments, json: bool) -> Result<Exit> {
    let (source, label, vector) = (&arguments.source, &arguments.label, &arguments.vector);
    let old = arguments.old_name.clone().unwrap_or_default();
    let location = match (&arguments.table, &arguments.collection) {
        (Some(table), _) => Location::Table(Box::new(TableLocation {
            url: arguments.postgres.clone(),
            table: table.clone(),
            source: source.clone(),
            label: label.clone(),
            vector: vector.clone(),
            old,
            ..TableLocation::default()
        })),
        (None, Some(collection)) => Location::Collection(Box::new(CollectionLocation {
            url: arguments.qdrant.clone(),
            plain_http: arguments.plain_http,
            collection: collection.clone(),
            source: source.clone(),
            label: label.clone(),
            vector: vector.clone(),
            old,
            ..CollectionLocation::default()
        })),
        (None, None) => location(arguments.gallery.as_deref(), None)?,
    };
    let is_file = matches!(location, Location::File(_));
    let written = init(&options!(
        Init { old_distance, adapter, forecast, new_name, new_dimension, new_model_dimension, new_distance } from arguments,
        gallery: location,
        path: arguments.out.clone()
    ))?;
    let next = if arguments.adapter.is_some() { "plan" } else { "auto" };
    let path = written.path.display();
    let adopt = if is_file { String::new() } else { format!("rehang gallery adopt --config {path}, then: ") };
    let graphs = match written.graphs {
        0 => String::new(),
        graphs => format!(
            "Adopting writes into every point, and so does filling: each time the server makes the graphs of {graphs} vectors anew. Searches go \
             on meanwhile, and take longer.\n"
        ),
    };
    let text = format!(
        "{path} is written: from {} to {}.\n{graphs}Choose the new model's [encoder] there, then: {adopt}rehang upgrade {next} --config {path}\n",
        written.old, written.new,
    );
    Exit::Done.print(json, &written, &text)
}
