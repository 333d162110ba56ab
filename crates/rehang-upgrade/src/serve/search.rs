//! Searches what the gallery serves: with queries of people, or with vectors from files that are checked
//! against it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rehang_core::check::expect_width;
use rehang_core::{Bridge, Error, Matrix, Provenance, Result};
use rehang_files::VectorSource;
use rehang_store::{Filter, Found, Ledger, Store, expect_space};
use serde::{Serialize, Serializer};

use crate::serve::gallery::{Gallery, SearchAnswer};
use crate::serve::query::{Query, QueryEncoders};
use crate::serve::stage::ServingState;

/// Queries of a [`search`].
#[derive(Debug, Clone)]
pub enum SearchQueries {
    /// Vectors from files.
    Vectors {
        /// Queries, one a row, embedded by the model that serves.
        vectors: VectorSource,
        /// Queries in the same order, embedded by the old model. They are searched before the switch and
        /// after a rollback, and beside `vectors` where an upgrade serves fused searches.
        old_vectors: Option<VectorSource>,
    },
    /// Queries by several models, the same ones under the name of each space. Those that the search needs are
    /// used, so the call stays right at every stage.
    ByModel(Vec<(String, VectorSource)>),
    /// Texts and images.
    Sources {
        /// Queries to embed.
        queries: Vec<Query>,
        /// Whether the answers of the old model are wanted too.
        before: bool,
    },
}

/// Options of a [`search`].
#[derive(Debug, Clone)]
pub struct Search {
    /// Queries to search for.
    pub queries: SearchQueries,
    /// Space that has to serve until the answer is found, or else the search fails: two models of one width
    /// cannot be told apart otherwise.
    pub space: Option<String>,
    /// Neighbours of each query, 1 or more.
    pub k: usize,
    /// Filter on the items that are searched.
    pub filter: Filter,
}

/// Result of a [`search`]. As JSON, each item has its id, its distance, who made the vector that was found
/// and, where the queries were sources and the item has one, its source.
#[derive(Debug, Clone, PartialEq)]
pub struct Searched {
    /// Name of the space that served when the answer was found.
    pub space: String,
    /// Neighbours of each query that were asked for.
    pub k: usize,
    /// Items that were found.
    pub answer: SearchAnswer,
    /// Answer that the old model would have given, where it was asked for.
    pub before: Option<SearchAnswer>,
    /// Sources of the items that were found, by id, where the queries were sources.
    pub sources: BTreeMap<String, String>,
    /// Spaces that were compared vector by vector, since their search index is not
    /// [ready](rehang_store::Index::is_ready). The answer is exact, and slow where the gallery is large. Only
    /// [`search`] looks for them.
    pub without_index: Vec<String>,
}

impl Searched {
    /// Makes the result of an answer, and of the old model's beside it, as [`Gallery::search_source`] gives
    /// both. `has_sources` says whether the sources of the items are read. Spaces without an index are not
    /// looked for, since that may count their vectors.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub fn new(
        store: &dyn Ledger,
        k: usize,
        (answer, before): (SearchAnswer, Option<SearchAnswer>),
        has_sources: bool,
    ) -> Result<Self> {
        let mut sources = BTreeMap::new();
        if has_sources {
            let answers = std::iter::once(&answer).chain(&before);
            let hits = answers.flat_map(|answer| answer.found.iter().flatten());
            let ids: BTreeSet<&str> = hits.map(|hit| hit.id.as_str()).collect();
            let items = store.get(&ids.into_iter().collect::<Vec<_>>())?.into_iter().flatten();
            sources.extend(items.filter_map(|item| Some((item.id, item.source?))));
        }
        // The space that serves comes last in an answer.
        let space = answer.spaces.last().cloned().unwrap_or_default();
        Ok(Self { space, k, answer, before, sources, without_index: Vec::new() })
    }
}

impl Serialize for Searched {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Item<'a> {
            id: &'a str,
            distance: f32,
            provenance: Provenance,
            #[serde(skip_serializing_if = "Option::is_none")]
            source: Option<&'a String>,
        }
        #[derive(Serialize)]
        struct Document<'a> {
            space: &'a str,
            spaces: &'a [String],
            bridged: bool,
            k: usize,
            results: Vec<Vec<Item<'a>>>,
            #[serde(skip_serializing_if = "Option::is_none")]
            before: Option<Vec<Vec<Item<'a>>>>,
            without_index: &'a [String],
        }
        fn items<'a>(answer: &'a SearchAnswer, sources: &'a BTreeMap<String, String>) -> Vec<Vec<Item<'a>>> {
            let item = |hit: &'a Found| Item {
                id: &hit.id,
                distance: hit.distance,
                provenance: hit.provenance,
                source: sources.get(&hit.id),
            };
            answer.found.iter().map(|hits| hits.iter().map(item).collect()).collect()
        }
        let Self { space, k, answer, before, sources, without_index } = self;
        let results = items(answer, sources);
        let before = before.as_ref().map(|before| items(before, sources));
        Document {
            space,
            spaces: &answer.spaces,
            bridged: answer.bridged,
            k: *k,
            results,
            before,
            without_index,
        }
        .serialize(serializer)
    }
}

/// Searches what the gallery serves. `encoders` are asked for texts and images only.
///
/// # Errors
///
/// An invalid option for a `k` of 0; a conflict where another space serves than the one that is wanted. For
/// vectors, missing input where a fused search lacks the old model's queries, and a width mismatch that names
/// the file. Those of [`Gallery::search`] and [`Gallery::search_source`].
pub fn search(store: &Arc<dyn Store>, search: &Search, encoders: &QueryEncoders<'_>) -> Result<Searched> {
    if search.k == 0 {
        return Err(Error::option("k", 0, "1 or more"));
    }
    let state = ServingState::read(&**store)?;
    expect_serving(&state.serving, search.space.as_deref())?;
    let gallery = Gallery::new(Arc::clone(store));
    let Search { k, filter, .. } = search;
    let (answers, has_sources) = match &search.queries {
        SearchQueries::Vectors { vectors, old_vectors } => {
            let bridge = gallery.bridge_of(&state)?;
            let queries = read_queries(&**store, &state, vectors, old_vectors.as_ref(), bridge.as_deref())?;
            let by_space: Vec<_> = queries.iter().map(|(space, rows)| (*space, rows)).collect();
            ((gallery.search(&by_space, *k, filter)?, None), false)
        }
        SearchQueries::ByModel(named) => {
            let read = |(name, rows): &(String, VectorSource)| {
                let rows = rehang_files::read_matrix(rows)?;
                rows.check_finite(name)?;
                Ok((name.clone(), rows))
            };
            let queries = named.iter().map(read).collect::<Result<Vec<_>>>()?;
            let by_space: Vec<_> = queries.iter().map(|(name, rows)| (name.as_str(), rows)).collect();
            ((gallery.search(&by_space, *k, filter)?, None), false)
        }
        SearchQueries::Sources { queries, before } => {
            (gallery.search_source_from(state, queries, encoders, *k, filter, *before)?, true)
        }
    };
    let mut searched = Searched::new(&**store, *k, answers, has_sources)?;
    // A switch may have overtaken the search, and then another space has answered.
    expect_serving(&searched.space, search.space.as_deref())?;
    let answers = std::iter::once(&searched.answer).chain(&searched.before);
    for space in answers.flat_map(|answer| &answer.spaces) {
        if !searched.without_index.contains(space) && !store.is_ready(space)? {
            searched.without_index.push(space.clone());
        }
    }
    Ok(searched)
}

/// Fails where another space serves than the one that is wanted.
fn expect_serving(serving: &str, wanted: Option<&str>) -> Result<()> {
    match wanted {
        Some(wanted) if wanted != serving => Err(Error::conflict(
            format!("space {serving:?} serves, not {wanted:?}"),
            "embed the queries with its model, or ask for no space",
        )),
        _ => Ok(()),
    }
}

/// Reads queries from files, by the spaces that are searched.
fn read_queries<'a>(
    store: &dyn Store,
    state: &'a ServingState,
    vectors: &VectorSource,
    old_vectors: Option<&VectorSource>,
    bridge: Option<&'a Bridge>,
) -> Result<Vec<(&'a str, Matrix)>> {
    let queries = (read(vectors)?, vectors);
    // Old queries are read even where they are not needed now, so that a wrong name is noticed.
    let old_queries = old_vectors.map(|source| read(source).map(|rows| (rows, source))).transpose()?;
    // Before the switch and after a rollback the old model serves: where both are given, its queries count.
    let (by_serving, mut by_other) = match old_queries {
        Some(old_queries) if state.upgraded().is_none() => (old_queries, Some(queries)),
        old_queries => (queries, old_queries),
    };
    let mut by_serving = Some(by_serving);
    let queries_of = |space: &'a str| -> Result<Option<(&'a str, Matrix)>> {
        let at_hand = if space == state.serving { by_serving.take() } else { by_other.take() };
        let Some((queries, source)) = at_hand else {
            // A bridge may be left out, and so may the old query where searches go either way.
            if state.fused().is_none() || state.spared() == Some(space) {
                return Ok(None);
            }
            let needed_by = format!("a fused search, with queries that {space:?} embedded as well,");
            return Err(Error::missing("old_vectors", needed_by));
        };
        let wanted = expect_space(store, space)?.space;
        let what = format_args!("{source} (queries of space {wanted})");
        expect_width(what, wanted.dimension, queries.columns())?;
        Ok(Some((space, queries)))
    };
    Ok(state.take(bridge, queries_of)?.into_queries())
}

fn read(source: &VectorSource) -> Result<Matrix> {
    let matrix = rehang_files::read_matrix(source)?;
    matrix.check_finite(&source.to_string())?;
    Ok(matrix)
}
