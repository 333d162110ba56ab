//! Examination of a store: what it knows of itself beyond the contract.

use rehang_core::{Result, Space};
use serde::Serialize;

use crate::contract::Store;

/// Fault of a gallery: something that must not be in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Name of the space the fault was found in; `None` where it is about the whole gallery.
    pub space: Option<String>,
    /// The fault, in words.
    pub what: String,
    /// How often it was found.
    pub count: u64,
}

/// Findings of a look at an application's table or collection, before it is a gallery; nothing was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableFindings {
    /// Width of the vectors that were named, where the application declares it or its first vector shows it.
    pub dimension: Option<usize>,
    /// Columns that say which item a row is; none in a collection.
    pub id: Vec<String>,
    /// Columns or payload fields of text, any of which may be the source.
    pub texts: Vec<String>,
    /// Columns or named vectors; empty text is the unnamed one of a collection.
    pub vectors: Vec<String>,
    /// Vectors in search graphs that the server makes anew when every point is written; 0 where it makes none
    /// anew, and for tables.
    pub graphs: u64,
}

/// Items of a gallery that was released, by what became of their vectors.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Released {
    /// Items whose vector of the space that served stays with the application.
    pub vectors: u64,
    /// Adapted vectors among them.
    pub adapted: u64,
    /// Items that have no vector, and no source that one could be made of.
    pub without_source: u64,
    /// Items that have no vector though they have a source: nobody had embedded it yet.
    pub waiting: u64,
    /// Place where people see which vectors are adapted: a table of PostgreSQL, a payload field of Qdrant.
    pub adapted_in: Option<String>,
    /// Name of a collection of ours in Qdrant that is empty now and stays: the key may not delete it.
    pub empty: Option<String>,
}

/// Way in which a space is searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum IndexKind {
    /// Every vector is compared: the answers are exact.
    Exact,
    /// A graph finds candidates: the answers are as good as [`Index::recall`](crate::Index::recall) says.
    Graph,
}

/// State of the search index of a space.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct IndexHealth {
    /// Way in which the space is searched.
    pub kind: IndexKind,
    /// Vectors that searches see.
    pub vectors: usize,
    /// Vectors and removals that wait to be merged into the graph; they are compared one by one until then.
    pub waiting: usize,
    /// Vectors of the graph when it was built; 0 without a graph. For an index on a server: those that it
    /// holds now.
    pub built: usize,
    /// Vectors of the graph that were overwritten or removed since it was built.
    pub overwritten: usize,
    /// Recall when the graph was built; `None` without a graph, and where its server keeps no such figure.
    pub recall_at_build: Option<f64>,
    /// Recall when it was measured last, by whichever process; `None` where that was not after the build.
    pub recall_checked: Option<f64>,
    /// How often the graph was made again, by whichever process.
    pub rebuilt: u64,
    /// Reason why the graph was made again last.
    pub rebuilt_because: Option<String>,
    /// Trouble of the work in the background, the latest one, if any; searches are right all the same.
    pub trouble: Option<String>,
    /// Bytes that the index takes: in memory, or on the disk of its server.
    pub bytes: usize,
    /// Bytes a vector, in multiples of what they were when the index was made; `None` where that is not
    /// known.
    pub growth: Option<f64>,
}

impl IndexHealth {
    /// Health of an index of which only its kind and its vectors are known.
    pub fn new(kind: IndexKind, vectors: usize) -> Self {
        Self {
            kind,
            vectors,
            waiting: 0,
            built: 0,
            overwritten: 0,
            recall_at_build: None,
            recall_checked: None,
            rebuilt: 0,
            rebuilt_because: None,
            trouble: None,
            bytes: 0,
            growth: None,
        }
    }
}

/// Store that says more of itself than the contract asks for.
pub trait Examined: Store {
    /// Looks for everything that must not be in a gallery. A fault that it finds is the work of a writer that
    /// went around the store, or of a damaged disk.
    ///
    /// # Errors
    ///
    /// Those of the store.
    fn check(&self) -> Result<Vec<Problem>>;

    /// Remarks for whoever runs the server, each in a sentence or two. Nothing is wrong with the gallery.
    ///
    /// # Errors
    ///
    /// Those of the store.
    fn remarks(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// Foresees, in a sentence, the cost of searches of a space, where they will cost far more than is usual.
    /// The space may be yet to be made or filled.
    ///
    /// # Errors
    ///
    /// Those of the store.
    fn foresee_searches(&self, space: &Space) -> Result<Option<String>> {
        let _ = space;
        Ok(None)
    }

    /// State of the search index of a space, as far as the store knows it.
    ///
    /// # Errors
    ///
    /// Not found where there is no such space; those of the store.
    fn index_health(&self, space: &str) -> Result<IndexHealth>;

    /// Whether rows of a dropped space still take room, as after the death of the process that dropped it.
    /// [`Examined::compact`] removes them, and so does the next space that is made or dropped.
    ///
    /// # Errors
    ///
    /// Those of the store.
    fn has_dropped_rows(&self) -> Result<bool> {
        Ok(false)
    }

    /// Whether searches in the store's own language would pass queries on without the
    /// [bridge](crate::Ledger::keep_bridge) of this fingerprint.
    ///
    /// They do so where they lack the bridge, or some of the `width` coordinates of its old space. `false`
    /// where there are no such searches.
    ///
    /// # Errors
    ///
    /// Those of the store.
    fn lacks_bridge(&self, fingerprint: &str, width: usize) -> Result<bool> {
        let _ = (fingerprint, width);
        Ok(false)
    }

    /// Gives the room back that nothing uses any more, and returns the bytes before and after. A store that
    /// does so by itself has nothing to do.
    ///
    /// # Errors
    ///
    /// Unavailable where other processes keep the gallery busy; those of the store.
    fn compact(&self) -> Result<(u64, u64)> {
        Ok((0, 0))
    }
}
