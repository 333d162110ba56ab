//! `rehang search`.

use rehang::files::{self, VectorSource};
use rehang::{Error, Matrix, Result};
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
    let space = expect_space(&store, &serving)?.space;
    if queries.columns() != space.dimension {
        return Err(rehang::ErrorKind::WidthMismatch {
            what: format!("{} (queries of the serving space {space})", arguments.vectors),
            expected: space.dimension,
            received: queries.columns(),
        }
        .into());
    }
    let recorded = Recorded::read(&store)?.map(|recorded| recorded.record);
    let upgraded = recorded.as_ref().is_some_and(|record| record.new.model == serving);
    let merged = upgraded
        && recorded
            .as_ref()
            .is_some_and(|record| record.serving == Serving::Merged && record.phase != Phase::Finished);
    let mut gallery = Gallery::new(&store, None);
    if merged {
        if old_queries.is_none() {
            say(
                "This upgrade serves merged searches; without --old-vectors only the new space is searched, which may \
                 find less.",
            );
        }
        gallery.calibrate()?;
    }
    let given = if upgraded {
        Queries { old: old_queries.as_ref(), new: Some(&queries) }
    } else {
        Queries { old: Some(&queries), new: None }
    };
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
    Ok(if merged && old_queries.is_none() { Outcome::WithRefusals } else { Outcome::Done })
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
