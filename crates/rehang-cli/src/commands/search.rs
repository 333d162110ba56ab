//! `rehang search`.

use rehang::files::{self, VectorSource};
use rehang::{Error, Matrix, Result, Space};
use rehang_store::{Filter, SqliteStore, Store, expect_space};
use rehang_upgrade::{Gallery, Phase, Queries, Recorded, Serving};
use serde_json::{Value, json};

use super::{Outcome, print, say};
use crate::arguments::Search;

/// Searches, and prints the nearest items of every query.
pub fn run(arguments: &Search, json: bool) -> Result<Outcome> {
    if arguments.k == 0 {
        return Err(Error::option("-k", 0, "1 or more"));
    }
    let filter = filter(arguments)?;
    let queries = read(&arguments.vectors)?;
    let old_queries = arguments.old_vectors.as_deref().map(read).transpose()?;
    let store = SqliteStore::open(&arguments.gallery)?;
    let serving =
        store.serving()?.ok_or_else(|| Error::not_found("space", "serving", arguments.gallery.display()))?;
    if let Some(wanted) = &arguments.space
        && *wanted != serving
    {
        return Err(Error::conflict(
            format!("space {serving:?} serves, not {wanted:?}"),
            "embed the queries with its model, or leave --space out",
        ));
    }
    let recorded = Recorded::read(&store)?.map(|recorded| recorded.record);
    let upgraded = recorded.as_ref().is_some_and(|record| record.new.model == serving);
    let merged = recorded
        .as_ref()
        .filter(|record| upgraded && record.serving == Serving::Merged && record.phase != Phase::Finished);
    let given = if upgraded {
        Queries { old: old_queries.as_ref(), new: Some(&queries) }
    } else {
        // Before the switch and after a rollback the old model serves: its queries are those that count, where both are given.
        Queries { old: Some(old_queries.as_ref().unwrap_or(&queries)), new: None }
    };
    let searched = match &arguments.old_vectors {
        Some(old_vectors) if !upgraded => old_vectors,
        _ => &arguments.vectors,
    };
    expect_width(given.new.or(given.old), searched, &expect_space(&store, &serving)?.space)?;
    let mut gallery = Gallery::new(&store, None);
    if let Some(record) = merged {
        let old_vectors = arguments.old_vectors.as_ref().ok_or_else(|| {
            Error::missing(
                format!("--old-vectors (the queries embedded by {:?})", record.old.model),
                "a merged search, as this upgrade serves it",
            )
        })?;
        expect_width(given.old, old_vectors, &expect_space(&store, &record.old.model)?.space)?;
        gallery.calibrate()?;
    }
    let answer = gallery.search(&given, arguments.k, &filter)?;
    if let Err(error) = store.flush() {
        // The answer is good all the same; the next search makes the index again.
        say(&format!("Warning: the search index is not kept: {error}"));
    }
    let results: Vec<Value> = answer
        .found
        .iter()
        .map(|hits| {
            let hits = hits
                .iter()
                .map(|hit| json!({ "id": hit.id, "distance": hit.distance, "provenance": hit.provenance }));
            Value::Array(hits.collect())
        })
        .collect();
    let mut text = String::new();
    for (query, hits) in answer.found.iter().enumerate() {
        for (place, hit) in hits.iter().enumerate() {
            // Rounding may leave −0.0000000001 between a vector and itself.
            let distance = if hit.distance.abs() < 5e-7 { 0.0 } else { hit.distance };
            text += &format!("{query}\t{}\t{}\t{distance:.6}\t{}\n", place + 1, hit.id, hit.provenance);
        }
    }
    let value = json!({ "space": serving, "spaces": answer.spaces, "k": arguments.k, "results": results });
    print(json, &value, &text)?;
    Ok(Outcome::Done)
}

/// Fails where queries are not as wide as the space that they are searched in.
fn expect_width(queries: Option<&Matrix>, path: &str, space: &Space) -> Result<()> {
    match queries {
        Some(queries) if queries.columns() != space.dimension => Err(rehang::ErrorKind::WidthMismatch {
            what: format!("{path} (queries of space {space})"),
            expected: space.dimension,
            received: queries.columns(),
        }
        .into()),
        _ => Ok(()),
    }
}

fn read(path: &str) -> Result<Matrix> {
    let matrix = files::read_matrix(&VectorSource::parse(path)?)?;
    matrix.check_finite(path)?;
    Ok(matrix)
}

fn filter(arguments: &Search) -> Result<Filter> {
    let mut payload = Vec::new();
    for text in &arguments.payload {
        let (field, value) =
            text.split_once('=').ok_or_else(|| Error::option("--payload", text, "FIELD=VALUE"))?;
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.into()));
        payload.push((field.to_owned(), value));
    }
    let provenances = arguments.provenances.iter().map(|name| name.parse()).collect::<Result<_>>()?;
    Ok(Filter { labels: arguments.labels.clone(), payload, provenances })
}
