//! A search with queries from files, checked against what the gallery serves.

use std::sync::Arc;

use rehang::files::{self, VectorSource};
use rehang::{Error, ErrorKind, Matrix, Provenance, Result, Space};
use rehang_store::{Filter, Store, expect_space};
use serde::Serialize;

use crate::gallery::{Gallery, Standing};

/// What [`search`] is asked for.
#[derive(Debug, Clone)]
pub struct Search {
    /// Queries, one a row, embedded by the model that serves.
    pub vectors: VectorSource,
    /// The same queries embedded by the old model: searched before the switch and after a rollback, and beside the others where
    /// an upgrade serves merged searches.
    pub old_vectors: Option<VectorSource>,
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
}

/// Searches what the gallery serves, with queries from files. Merged searches are scaled anew for the call.
///
/// # Errors
///
/// An invalid option for a `k` of 0; a conflict where another space serves than the one that is wanted; missing input where a
/// merged search lacks the old model's queries; a width mismatch that names the file; those of [`Gallery::search`].
pub fn search(store: &Arc<dyn Store>, search: &Search) -> Result<Searched> {
    if search.k == 0 {
        return Err(Error::option("k", 0, "1 or more"));
    }
    let queries = read(&search.vectors)?;
    let old_queries = search.old_vectors.as_ref().map(read).transpose()?;
    let standing = Standing::read(&**store)?;
    let serving = &standing.serving;
    if let Some(wanted) = &search.space
        && wanted != serving
    {
        return Err(Error::conflict(
            format!("space {serving:?} serves, not {wanted:?}"),
            "embed the queries with its model, or ask for no space",
        ));
    }
    // Before the switch and after a rollback the old model serves: its queries are those that count, where both are given.
    let (queries, source) = match (&old_queries, &search.old_vectors) {
        (Some(old_queries), Some(source)) if standing.upgraded().is_none() => (old_queries, source),
        _ => (&queries, &search.vectors),
    };
    expect_width(queries, source, &expect_space(&**store, serving)?.space)?;
    let mut given = vec![(serving.as_str(), queries)];
    let gallery = Gallery::new(Arc::clone(store), None);
    if let Some(record) = standing.merged() {
        let (Some(old_queries), Some(source)) = (&old_queries, &search.old_vectors) else {
            let needed_by =
                format!("a merged search, with queries that {:?} embedded as well,", record.old.name);
            return Err(Error::missing("old_vectors", needed_by));
        };
        expect_width(old_queries, source, &expect_space(&**store, &record.old.name)?.space)?;
        given.push((&record.old.name, old_queries));
        gallery.calibrate()?;
    }
    let answer = gallery.search(&given, search.k, &search.filter)?;
    let mut without_index = Vec::new();
    for space in &answer.spaces {
        if !store.is_ready(space)? {
            without_index.push(space.clone());
        }
    }
    let hits = |found: Vec<rehang_store::Found>| {
        found
            .into_iter()
            .map(|found| Hit { id: found.id, distance: found.distance, provenance: found.provenance })
            .collect()
    };
    let results = answer.found.into_iter().map(hits).collect();
    Ok(Searched { space: standing.serving, spaces: answer.spaces, k: search.k, results, without_index })
}

/// Fails where queries are not as wide as the space that they are searched in.
fn expect_width(queries: &Matrix, source: &VectorSource, space: &Space) -> Result<()> {
    if queries.columns() == space.dimension {
        return Ok(());
    }
    Err(ErrorKind::WidthMismatch {
        what: format!("{source} (queries of space {space})"),
        expected: space.dimension,
        received: queries.columns(),
    }
    .into())
}

fn read(source: &VectorSource) -> Result<Matrix> {
    let matrix = files::read_matrix(source)?;
    matrix.check_finite(&source.to_string())?;
    Ok(matrix)
}
