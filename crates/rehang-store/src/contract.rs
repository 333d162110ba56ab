//! The contract between a gallery's store and everything that reads or changes the gallery.

use std::collections::BTreeSet;

use rehang::{Error, Matrix, Provenance, Result, Space};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An item's number inside its store: given once, never used again, also not after a deletion.
pub type ItemKey = u64;

/// A number that grows with every change of content in the whole store and is never given twice.
///
/// So it tells two states of an item apart even if the item was deleted and added again in between, and it is the
/// cursor of [`Select::ChangedSince`].
pub type Revision = u64;

/// One item of a gallery, without its vectors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// The store's number for it.
    pub key: ItemKey,
    /// The application's name for it; unique in the gallery.
    pub id: String,
    /// What can be re-embedded: a text, a path, a URL. `None` where it is gone: such an item stays adapted.
    pub source: Option<String>,
    /// Class, tag or group, where there is one.
    pub label: Option<String>,
    /// Whatever the application keeps beside it; `Null` where it keeps nothing.
    pub payload: Value,
    /// Changes whenever the content (the source or the vectors made from it) changes.
    pub revision: Revision,
}

/// What an application writes: an item, new or changed, with the vectors it has at hand.
///
/// Writing an item is a change of its content: it gets a new revision, and every vector that is not part of the same
/// write is removed in the same transaction, since it belongs to the content before.
#[derive(Debug, Clone, PartialEq)]
pub struct ItemWrite {
    /// The application's name for the item.
    pub id: String,
    /// What can be re-embedded.
    pub source: Option<String>,
    /// Class, tag or group.
    pub label: Option<String>,
    /// Whatever the application keeps beside it.
    pub payload: Value,
    /// Vectors made from this very content: space name, vector, provenance and σ² (for adapted ones).
    pub vectors: Vec<NewVector>,
}

/// A vector that comes with an [`ItemWrite`].
#[derive(Debug, Clone, PartialEq)]
pub struct NewVector {
    /// Name of the space.
    pub space: String,
    /// The vector, `[d]` of that space.
    pub vector: Vec<f32>,
    /// Who made it.
    pub provenance: Provenance,
    /// Predicted squared error, for adapted vectors.
    pub sigma2: Option<f32>,
    /// Place in the queue of the backfill, for adapted vectors: larger is earlier.
    pub priority: Option<f64>,
}

/// A vector as it lies in a space.
#[derive(Debug, Clone, PartialEq)]
pub struct VectorRecord {
    /// Who made it.
    pub provenance: Provenance,
    /// The revision of the item that it was made from; always the item's own, a stale vector is removed with the change.
    pub revision: Revision,
    /// Predicted squared error of the adapted vector; kept when a native vector takes its place.
    pub sigma2: Option<f32>,
    /// Place in the queue of the backfill: larger is earlier.
    pub priority: Option<f64>,
    /// `‖native − adapted‖²`, once the native vector has taken the adapted one's place.
    pub squared_error: Option<f32>,
    /// The vector, `[d]`; empty where the scan did not ask for vectors.
    pub vector: Vec<f32>,
}

/// A write of the upgrade: it happens only if the item still is what it was when it was read.
///
/// It is applied if, and only if, the item exists, has the revision `revision`, and its vector in the space is missing
/// or adapted. A native (or old) vector is never replaced.
#[derive(Debug, Clone, PartialEq)]
pub struct VectorWrite {
    /// The item.
    pub key: ItemKey,
    /// The revision that was read together with the source (or the old vector) it was made from.
    pub revision: Revision,
    /// [`Provenance::Adapted`] or [`Provenance::Native`].
    pub provenance: Provenance,
    /// Predicted squared error. `None` keeps what is there.
    pub sigma2: Option<f32>,
    /// Place in the queue of the backfill.
    pub priority: Option<f64>,
    /// `‖native − adapted‖²` where both are known.
    pub squared_error: Option<f32>,
    /// The vector, `[d]`.
    pub vector: Vec<f32>,
}

/// What became of a [`VectorWrite`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It is in the store.
    Written,
    /// The item has been deleted; nothing was written.
    Deleted,
    /// The item has another revision now; nothing was written.
    Changed,
    /// The space holds a native (or old) vector of this item already; nothing was written.
    AlreadyThere,
}

/// An item that could not be embedded, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The item.
    pub key: ItemKey,
    /// Its id.
    pub id: String,
    /// The revision that failed.
    pub revision: Revision,
    /// What the encoder said.
    pub reason: String,
}

/// Which items a scan gives, and in which order.
#[derive(Debug, Clone, PartialEq)]
pub enum Select {
    /// Every item, by key.
    All,
    /// Items whose vector in the space has this provenance, by key.
    Provenance(Provenance),
    /// Items without a vector in the space, by key; those with a recorded failure too.
    Lacking,
    /// Items that the backfill can never take: without a source, and adapted or without a vector in the space; by key.
    WithoutSource,
    /// What the backfill takes next: items without a vector in the space first (by key), then adapted ones, the largest
    /// priority first (ties by key); items with a recorded failure and items without a source are left out.
    /// `after` is not used: what was done is no longer selected.
    WorstFirst,
    /// Adapted items by σ² descending, ties by key; those without σ² last. `after` is not used.
    SigmaDescending,
    /// Items whose revision is larger, by revision. `after` is not used: pass the last revision seen.
    ChangedSince(Revision),
}

/// A page of items.
///
/// Pages are cheap: a store answers each from an index, whatever the size of the gallery.
#[derive(Debug, Clone, PartialEq)]
pub struct Scan {
    /// Name of the space that provenance, σ² and priority are read from.
    pub space: String,
    /// Which items.
    pub select: Select,
    /// Only keys above this one, for the selections by key.
    pub after: Option<ItemKey>,
    /// Items that are left out (those in flight).
    pub except: BTreeSet<ItemKey>,
    /// At most this many items.
    pub limit: usize,
    /// Name of the space whose vectors come along, if any; it may be another one than `space`.
    pub vectors_of: Option<String>,
}

impl Scan {
    /// A page without vectors from the start of a selection.
    pub fn new(space: impl Into<String>, select: Select, limit: usize) -> Self {
        Self { space: space.into(), select, after: None, except: BTreeSet::new(), limit, vectors_of: None }
    }

    /// The same page, after a key.
    #[must_use]
    pub fn after(mut self, key: Option<ItemKey>) -> Self {
        self.after = key;
        self
    }

    /// The same page, with the vectors of a space.
    #[must_use]
    pub fn with_vectors_of(mut self, space: impl Into<String>) -> Self {
        self.vectors_of = Some(space.into());
        self
    }

    /// The same page, without some items.
    #[must_use]
    pub fn except(mut self, keys: BTreeSet<ItemKey>) -> Self {
        self.except = keys;
        self
    }
}

/// One item of a scan.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The item.
    pub item: Item,
    /// Its vector in the scanned space (`vector` itself is empty); `None` where the space has none.
    pub state: Option<VectorRecord>,
    /// Its vector in the space of `vectors_of`; `None` where that space has none or none was asked for.
    pub vector: Option<VectorRecord>,
}

/// What a search looks at. An empty list means no restriction.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Filter {
    /// Only items with one of these labels.
    pub labels: Vec<String>,
    /// Only items whose payload has these top-level fields with these values, all of them.
    pub payload: Vec<(String, Value)>,
    /// Only vectors of one of these provenances.
    pub provenances: Vec<Provenance>,
}

impl Filter {
    /// Whether nothing is restricted.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.payload.is_empty() && self.provenances.is_empty()
    }

    /// Whether an item with a vector of this provenance passes.
    pub fn passes(&self, item: &Item, provenance: Provenance) -> bool {
        (self.labels.is_empty() || item.label.as_ref().is_some_and(|label| self.labels.contains(label)))
            && (self.provenances.is_empty() || self.provenances.contains(&provenance))
            && self.payload.iter().all(|(field, value)| item.payload.get(field) == Some(value))
    }
}

/// One hit of a search.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Found {
    /// The item.
    pub key: ItemKey,
    /// Its id.
    pub id: String,
    /// Its distance to the query, as [`rehang::Distance`] defines it: smaller is nearer.
    pub distance: f32,
    /// Who made the vector that was found. Never missing: no vector is in a store without it.
    pub provenance: Provenance,
    /// The item's revision.
    pub revision: Revision,
}

/// A space of the gallery.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SpaceRecord {
    /// The space; `space.model` is its name in the gallery.
    pub space: Space,
    /// The provenance that an application's own vectors get in this space: `old` in the space of the model a gallery
    /// came with, `native` in the space of an upgrade.
    pub written_as: Provenance,
    /// When it was last changed, in the store's own count: grows with every write to its vectors.
    pub change: u64,
}

/// How many items and vectors there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Items of the gallery.
    pub items: u64,
    /// Vectors made by the old model.
    pub old: u64,
    /// Vectors made by the adapter.
    pub adapted: u64,
    /// Vectors made by the new model.
    pub native: u64,
    /// Items without a vector in the space.
    pub lacking: u64,
    /// Items with a recorded failure in the space.
    pub failed: u64,
    /// Adapted or lacking items without a source: they cannot become native.
    pub without_source: u64,
}

/// A live gallery's store. Every method may be called from many threads and, for stores on disk, many processes at once.
///
/// # What a store promises
///
/// - **Atomic.** Each call that writes is one transaction: another reader sees all of it or nothing; after a kill at any
///   instruction the store holds all of it or nothing.
/// - **Durable.** What a call has returned for survives a kill of the process. [`Store::flush`] makes the derived parts
///   (search indexes) durable too; they may always be lost and are made again.
/// - **Conditional.** [`Store::write_vectors`] never brings back a deleted item, never puts a vector beside content it
///   was not made from, never replaces a native or old vector. So two workers on one item are harmless, and the same write
///   may be repeated.
/// - **Tagged.** No reader ever sees a vector without its provenance, nor one whose revision is not its item's.
/// - **Checked.** Vectors enter only if they are as wide as their space, finite, and of length 1 where the space says so;
///   otherwise nothing of the call is written.
/// - **Fresh.** A search sees every write that returned before it began, whoever made it.
///
/// # What it does not promise
///
/// An order among concurrent writers; that a long scan is one snapshot (each page is); approximate searches find every
/// neighbour (but see [`Store::recall`]).
///
/// # Errors
///
/// Not found where a space that is named is none of the gallery; corrupt, a mismatch or an option for vectors and numbers
/// that may not enter; and whatever the disk or the service behind a store says. Where a method can fail in another way,
/// it says so.
#[allow(clippy::missing_errors_doc, reason = "what every method has in common is said once, above")]
pub trait Store: Send + Sync {
    /// What this store is, for people: a path or an address.
    fn name(&self) -> String;

    /// Every space of the gallery, in the order of creation.
    fn spaces(&self) -> Result<Vec<SpaceRecord>>;

    /// Makes a space without vectors. Making the very same space again is fine and changes nothing.
    ///
    /// # Errors
    ///
    /// A conflict where the name is taken by a space with other properties.
    fn create_space(&self, space: &Space, written_as: Provenance) -> Result<()>;

    /// Drops a space with all its vectors, at once and for good. A space that does not exist is fine.
    ///
    /// # Errors
    ///
    /// A conflict where it is the serving space.
    fn drop_space(&self, space: &str) -> Result<()>;

    /// The name of the space that searches go to; `None` in a gallery without spaces. The first space that is made serves.
    fn serving(&self) -> Result<Option<String>>;

    /// Makes `to` the serving space if `from` is it now. One atomic step; a search before sees `from`, after it `to`.
    ///
    /// # Errors
    ///
    /// A conflict where another space serves (unless it is `to` already: then nothing is done), not found where `to` is no
    /// space of the gallery.
    fn switch_serving(&self, from: &str, to: &str) -> Result<()>;

    /// Writes items as an application does: all of them or, on an error, none. Gives the new revisions, in order.
    ///
    /// Each item gets a new revision and loses every vector that does not come with the write. A recorded failure is
    /// forgotten. An id that is twice in one call is written twice, the last one stays.
    fn put(&self, writes: &[ItemWrite]) -> Result<Vec<Revision>>;

    /// Deletes items with all their vectors and failures; ids that do not exist are passed over. Gives how many existed.
    fn delete(&self, ids: &[&str]) -> Result<usize>;

    /// Items by id, `None` where there is none, in order.
    fn get(&self, ids: &[&str]) -> Result<Vec<Option<Item>>>;

    /// Vectors of one space by key, `None` where there is none, in order.
    fn vectors(&self, space: &str, keys: &[ItemKey]) -> Result<Vec<Option<VectorRecord>>>;

    /// Who made the vectors of one space by key, `None` where there is none, in order. Reads no vectors.
    fn provenances(&self, space: &str, keys: &[ItemKey]) -> Result<Vec<Option<Provenance>>>;

    /// Conditional writes of the upgrade, one transaction: see [`VectorWrite`]. Gives what became of each, in order.
    ///
    /// A written vector clears the item's failure in this space. A write that is not applied is no error.
    fn write_vectors(&self, space: &str, writes: &[VectorWrite]) -> Result<Vec<Outcome>>;

    /// Gives adapted vectors another place in the queue: `(key, revision, priority)`. Entries whose item is gone, has
    /// another revision or is no longer adapted are passed over. Gives how many were changed.
    fn set_priorities(&self, space: &str, priorities: &[(ItemKey, Revision, f64)]) -> Result<usize>;

    /// A page of items.
    fn scan(&self, scan: &Scan) -> Result<Vec<Record>>;

    /// The `k` nearest vectors of a space to each query `[n, d]`, nearest first, ties by key.
    fn search(&self, space: &str, queries: &Matrix, k: usize, filter: &Filter) -> Result<Vec<Vec<Found>>>;

    /// How many items and vectors a space has.
    fn counts(&self, space: &str) -> Result<Counts>;

    /// Records that items could not be embedded `(key, revision, reason)`; the backfill leaves them out from then on.
    /// Entries whose item is gone, has another revision, or has a native (or old) vector in the space are passed over: another
    /// worker may have made it while this one gave it up.
    fn record_failures(&self, space: &str, failures: &[(ItemKey, Revision, String)]) -> Result<()>;

    /// Recorded failures by key, after a key, at most `limit`.
    fn failures(&self, space: &str, after: Option<ItemKey>, limit: usize) -> Result<Vec<Failure>>;

    /// Forgets all failures of a space, so that the backfill tries those items again. Gives how many there were.
    fn clear_failures(&self, space: &str) -> Result<u64>;

    /// `(σ², squared error)` of the native vectors that took an adapted one's place last, newest first, at most `limit`.
    fn errors(&self, space: &str, limit: usize) -> Result<Vec<(f32, f32)>>;

    /// A small document by name, with its version; `None` where there is none.
    fn document(&self, name: &str) -> Result<Option<(u64, String)>>;

    /// Replaces a document if its version is still `expected` (`None`: if there is none). Gives the new version.
    ///
    /// # Errors
    ///
    /// A conflict where somebody else was faster.
    fn set_document(&self, name: &str, expected: Option<u64>, text: &str) -> Result<u64>;

    /// Share of the true `k` nearest neighbours that [`Store::search`] finds, over `samples` stored vectors as queries
    /// (the vector itself counts); 1 for exact stores. Read-only.
    fn recall(&self, space: &str, samples: usize, k: usize) -> Result<f64>;

    /// Makes derived parts of a space (search indexes) again from the truth.
    fn rebuild(&self, space: &str) -> Result<()>;

    /// Makes derived parts durable. Truth is durable already when a write returns.
    fn flush(&self) -> Result<()>;
}

/// A space of a gallery by name; `None` where there is none.
///
/// # Errors
///
/// Those of [`Store::spaces`].
pub fn find_space(store: &dyn Store, name: &str) -> Result<Option<SpaceRecord>> {
    Ok(store.spaces()?.into_iter().find(|record| record.space.model == name))
}

/// A space of a gallery by name.
///
/// # Errors
///
/// Not found where there is none, naming those there are; those of [`Store::spaces`].
pub fn expect_space(store: &dyn Store, name: &str) -> Result<SpaceRecord> {
    let spaces = store.spaces()?;
    if let Some(found) = spaces.iter().find(|record| record.space.model == name) {
        return Ok(found.clone());
    }
    let names: Vec<&str> = spaces.iter().map(|record| record.space.model.as_str()).collect();
    Err(Error::not_found("space", name, format!("{} (it has: {})", store.name(), names.join(", "))))
}
