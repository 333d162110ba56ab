//! `rehang search`.

use std::collections::BTreeMap;
use std::sync::Arc;

use rehang_core::{Error, Remedy, Result, Space};
use rehang_files::VectorSource;
use rehang_store::{Filter, Found, Store};
use rehang_upgrade::{Configuration, Query, SearchQueries, Searched};
use serde_json::Value;

use super::{Exit, expect_exact, location, say};
use crate::arguments::gallery::SearchArguments;
use crate::wording;

/// Most characters of a source that a line shows: where one answer stands alone, and where it stands beside
/// another one.
const SOURCE_MAX: usize = 60;
const SOURCE_BESIDE_MAX: usize = 32;

/// Searches, and prints the nearest items of every query.
pub fn run(arguments: &SearchArguments, json: bool) -> Result<Exit> {
    let queries = match &arguments.vectors {
        Some(vectors) => SearchQueries::Vectors {
            vectors: VectorSource::parse(vectors)?,
            old_vectors: arguments.old_vectors.as_deref().map(VectorSource::parse).transpose()?,
        },
        None => SearchQueries::Sources { queries: texts_and_images(arguments), before: arguments.before },
    };
    let configuration = match arguments.gallery {
        None => Some(Configuration::read(&arguments.config)?),
        Some(_) => None,
    };
    let store: Arc<dyn Store> = location(arguments.gallery.as_deref(), configuration.as_ref())?.open()?;
    let search = rehang_upgrade::Search {
        queries,
        space: arguments.space.clone(),
        k: arguments.k,
        filter: filter(arguments)?,
    };
    let encoders = |space: &Space| match &configuration {
        Some(configuration) => configuration.open_query_encoder(space),
        None => Err(Error::missing("config", "a search by texts or images")),
    };
    let searched = rehang_upgrade::search(&store, &search, &encoders)?;
    for space in &searched.without_index {
        say(&format!(
            "Warning: the search index of {space:?} is not ready, so every vector was compared; {}",
            wording::remedy(&Remedy::PrepareIndex)
        ));
    }
    let text = match &search.queries {
        SearchQueries::Vectors { .. } | SearchQueries::ByModel(_) => rows(&searched),
        SearchQueries::Sources { queries, .. } => answers(queries, &searched),
    };
    Exit::Done.print(json, &searched, &text)
}

fn texts_and_images(arguments: &SearchArguments) -> Vec<Query> {
    let texts = arguments.texts.iter().cloned().map(Query::Text);
    texts.chain(arguments.images.iter().cloned().map(Query::Image)).collect()
}

/// Writes one line a hit, for scripts.
fn rows(searched: &Searched) -> String {
    let mut text = String::new();
    for (query, hits) in searched.answer.found.iter().enumerate() {
        for (place, hit) in hits.iter().enumerate() {
            let distance = distance(hit);
            text += &format!("{query}\t{}\t{}\t{distance:.6}\t{}\n", place + 1, hit.id, hit.provenance);
        }
    }
    text
}

/// Makes a table for each query, for people: the answer, and beside it what the old model would have
/// answered.
fn answers(queries: &[Query], searched: &Searched) -> String {
    let mut text = String::new();
    for (number, (query, hits)) in queries.iter().zip(&searched.answer.found).enumerate() {
        let blank = if number == 0 { "" } else { "\n" };
        text += &format!("{blank}{query}\n");
        let before = searched.before.as_ref().and_then(|before| before.found.get(number));
        let source_max = if before.is_some() { SOURCE_BESIDE_MAX } else { SOURCE_MAX };
        let mut columns = vec![column("now", hits, &searched.sources, source_max)];
        columns.extend(before.map(|hits| column("before", hits, &searched.sources, source_max)));
        // Alone, an answer needs no head.
        let first = usize::from(before.is_none());
        for place in first..columns.iter().map(Vec::len).max().unwrap_or(0) {
            let rank = if place == 0 { String::new() } else { place.to_string() };
            let cells: Vec<&str> =
                columns.iter().map(|column| column.get(place).map_or("", String::as_str)).collect();
            // The widths of the first column are those of its own lines.
            let width = columns[0].iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
            let line = match cells[..] {
                [now, before] => format!("{rank:>4}  {now:<width$}  | {before}"),
                _ => format!("{rank:>4}  {}", cells[0]),
            };
            text += &format!("{}\n", line.trim_end());
        }
    }
    text
}

/// Gives the head of an answer, then a line a hit: id, provenance, distance, source.
fn column(head: &str, hits: &[Found], sources: &BTreeMap<String, String>, source_max: usize) -> Vec<String> {
    let width = hits.iter().map(|hit| hit.id.chars().count()).max().unwrap_or(0);
    let line = |hit: &Found| {
        let source = in_a_line(sources.get(&hit.id).map_or("", String::as_str), source_max);
        format!("{:<width$}  {:<7}  {:>9.6}  {source}", hit.id, hit.provenance.to_string(), distance(hit))
    };
    std::iter::once(head.to_owned()).chain(hits.iter().map(line)).collect()
}

/// Distance of a hit without its sign near zero: rounding may leave −0.0000000001 between a vector and
/// itself.
fn distance(hit: &Found) -> f32 {
    if hit.distance.abs() < 5e-7 { 0.0 } else { hit.distance }
}

/// Gives the start of a text, without line breaks.
fn in_a_line(text: &str, characters_max: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= characters_max {
        return line;
    }
    let start: String = line.chars().take(characters_max - 1).collect();
    format!("{start}…")
}

fn filter(arguments: &SearchArguments) -> Result<Filter> {
    let mut payload = Vec::new();
    for text in &arguments.payload {
        let (field, value) =
            text.split_once('=').ok_or_else(|| Error::option("payload", text, "FIELD=VALUE"))?;
        let value = match serde_json::from_str(value) {
            Ok(read) => expect_exact("payload", value).map(|()| read)?,
            Err(_) => Value::String(value.into()),
        };
        payload.push((field.to_owned(), value));
    }
    let provenances = arguments.provenances.iter().map(|name| name.parse()).collect::<Result<_>>()?;
    Ok(Filter { labels: arguments.labels.clone(), payload, provenances })
}
