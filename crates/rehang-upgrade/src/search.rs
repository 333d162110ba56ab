//! A search with queries of people, or with vectors from files that are checked against what the gallery serves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rehang::check::expect_width;
use rehang::{Error, Matrix, Provenance, Result};
use rehang_files::VectorSource;
use rehang_store::{Filter, Found, Store, expect_space};
use serde::Serialize;

use crate::gallery::{Answer, Gallery, Standing};
use crate::query::{Query, QueryEncoders};

/// The queries of a [`search`].
#[derive(Debug, Clone)]
pub enum Asked {
    /// Vectors from files.
    Vectors {
        /// Queries, one a row, embedded by the model that serves.
        vectors: VectorSource,
        /// The same queries embedded by the old model: searched before the switch and after a rollback, and beside the others where
        /// an upgrade serves merged searches.
        old_vectors: Option<VectorSource>,
    },
    /// The same queries by several models, each under the name of its space: those that the search needs are used, so the call
    /// stays right at every stage.
    ByModel(Vec<(String, VectorSource)>),
    /// Texts and images.
    Sources {
        /// The queries.
        queries: Vec<Query>,
        /// Whether what the old model would have answered is wanted too.
        before: bool,
    },
}

/// What [`search`] is asked for.
#[derive(Debug, Clone)]
pub struct Search {
    /// The queries.
    pub asked: Asked,
    /// Fail unless this space serves: two models of one width cannot be told apart otherwise.
    pub space: Option<String>,
    /// Neighbours of each query, 1 or more.
    pub k: usize,
    /// What is searched.
    pub filter: Filter,
}

/// What [`search`] found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Searched {
    /// The space that serves.
    pub space: String,
    /// The space (or both, for a merged search) that was searched.
    pub spaces: Vec<String>,
    /// Neighbours of each query that were asked for.
    pub k: usize,
    /// The nearest items of each query, nearest first.
    pub results: Vec<Vec<Hit>>,
    /// What the old model would have answered to each query, where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Vec<Vec<Hit>>>,
    /// Spaces that were compared vector by vector, since their search index is not [ready](rehang_store::Index::is_ready). The answer is
    /// exact, and slow where the gallery is large.
    pub without_index: Vec<String>,
}

/// An item that a search found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Hit {
    /// Its id.
    pub id: String,
    /// Its distance to the query.
    pub distance: f32,
    /// Who made the vector that was found.
    pub provenance: Provenance,
    /// The item's source, where the queries were sources and it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// Searches what the gallery serves. Merged searches are scaled anew for the call. `encoders` are asked for texts and images only.
///
/// # Errors
///
/// An invalid option for a `k` of 0; a conflict where another space serves than the one that is wanted; for vectors, missing input where
/// a merged search lacks the old model's queries and a width mismatch that names the file; those of [`Gallery::search`] and
/// [`Gallery::search_source`].
pub fn search(store: &Arc<dyn Store>, search: &Search, encoders: &QueryEncoders<'_>) -> Result<Searched> {
    if search.k == 0 {
        return Err(Error::option("k", 0, "1 or more"));
    }
    let standing = Standing::read(&**store)?;
    if let Some(wanted) = &search.space
        && *wanted != standing.serving
    {
        return Err(Error::conflict(
            format!("space {:?} serves, not {wanted:?}", standing.serving),
            "embed the queries with its model, or ask for no space",
        ));
    }
    let gallery = Gallery::new(Arc::clone(store), None);
    if standing.merged().is_some() {
        gallery.calibrate()?;
    }
    let Search { k, filter, .. } = search;
    let (answer, before, has_sources) = match &search.asked {
        Asked::Vectors { vectors, old_vectors } => {
            let given = read_queries(&**store, &standing, vectors, old_vectors.as_ref())?;
            let given: Vec<_> = given.iter().map(|(space, queries)| (*space, queries)).collect();
            (gallery.search(&given, *k, filter)?, None, false)
        }
        Asked::ByModel(named) => {
            let read = |(name, rows): &(String, VectorSource)| {
                let rows = rehang_files::read_matrix(rows)?;
                rows.check_finite(name)?;
                Ok((name.clone(), rows))
            };
            let given = named.iter().map(read).collect::<Result<Vec<_>>>()?;
            let given: Vec<_> = given.iter().map(|(name, rows)| (name.as_str(), rows)).collect();
            (gallery.search(&given, *k, filter)?, None, false)
        }
        Asked::Sources { queries, before } => {
            let (answer, before) = gallery.search_source(queries, encoders, *k, filter, *before)?;
            (answer, before, true)
        }
    };
    let mut without_index = Vec::new();
    for space in answer.spaces.iter().chain(before.iter().flat_map(|before| &before.spaces)) {
        if !without_index.contains(space) && !store.is_ready(space)? {
            without_index.push(space.clone());
        }
    }
    let spaces = answer.spaces.clone();
    let hits = |answer: Answer| hits(&**store, answer, has_sources);
    let (results, before) = (hits(answer)?, before.map(hits).transpose()?);
    Ok(Searched { space: standing.serving, spaces, k: *k, results, before, without_index })
}

/// What a search found as it is shown, with sources where they are wanted.
fn hits(store: &dyn Store, answer: Answer, has_sources: bool) -> Result<Vec<Vec<Hit>>> {
    let mut sources = BTreeMap::new();
    if has_sources {
        let ids: BTreeSet<&str> = answer.found.iter().flatten().map(|found| found.id.as_str()).collect();
        let ids: Vec<&str> = ids.into_iter().collect();
        let items = store.get(&ids)?.into_iter().flatten();
        sources.extend(items.map(|item| (item.id, item.source)));
    }
    let hit = |found: Found| Hit {
        source: sources.get(&found.id).cloned().flatten(),
        id: found.id,
        distance: found.distance,
        provenance: found.provenance,
    };
    Ok(answer.found.into_iter().map(|found| found.into_iter().map(hit).collect()).collect())
}

/// Queries from files, by the spaces that are searched.
fn read_queries<'a>(
    store: &dyn Store,
    standing: &'a Standing,
    vectors: &VectorSource,
    old_vectors: Option<&VectorSource>,
) -> Result<Vec<(&'a str, Matrix)>> {
    let queries = (read(vectors)?, vectors);
    // Read even where it is not needed now, so that a wrong name is noticed.
    let old_queries = old_vectors.map(|source| read(source).map(|rows| (rows, source))).transpose()?;
    let mut given = Vec::new();
    let mut give = |space: &'a str, (queries, source): (Matrix, &VectorSource)| -> Result<()> {
        let wanted = expect_space(store, space)?.space;
        let what = format_args!("{source} (queries of space {wanted})");
        expect_width(what, wanted.dimension, queries.columns())?;
        given.push((space, queries));
        Ok(())
    };
    // Before the switch and after a rollback the old model serves: its queries are those that count, where both are given.
    if standing.upgraded().is_none() {
        give(&standing.serving, old_queries.unwrap_or(queries))?;
        return Ok(given);
    }
    give(&standing.serving, queries)?;
    if let Some(record) = standing.merged() {
        let old = &record.old.name;
        let old_queries = old_queries.ok_or_else(|| {
            Error::missing(
                "old_vectors",
                format!("a merged search, with queries that {old:?} embedded as well,"),
            )
        })?;
        give(old, old_queries)?;
    }
    Ok(given)
}

fn read(source: &VectorSource) -> Result<Matrix> {
    let matrix = rehang_files::read_matrix(source)?;
    matrix.check_finite(&source.to_string())?;
    Ok(matrix)
}
