//! The contract between a gallery's store and everything that reads or changes the gallery.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rehang::{Adapter, Bridge, Error, Fusion, Matrix, Provenance, Result, Space};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What a store calls an item: given once, never used again, also not after a deletion.
///
/// It is opaque: callers compare keys, sort by them and hand them back. Keys need not be dense, nor ascend in time. A store
/// whose keys are UUIDs takes their 128 bits; one that counts takes the number.
///
/// ```
/// use rehang_store::ItemKey;
///
/// assert_eq!(ItemKey::from(7).to_string(), "7");
/// assert!(ItemKey::from(7) < ItemKey::new(1 << 90));
/// // In JSON a number, and text where it has more than 64 bits.
/// let keys = [ItemKey::from(7), ItemKey::new(1 << 64)];
/// let written = serde_json::json!(keys);
/// assert_eq!(written, serde_json::json!([7, "18446744073709551616"]));
/// assert_eq!(serde_json::from_value::<[ItemKey; 2]>(written).unwrap(), keys);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "WrittenKey", try_from = "WrittenKey")]
pub struct ItemKey(u128);

/// A key as JSON has it, whose numbers have 64 bits.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum WrittenKey {
    Number(u64),
    Text(String),
}

impl From<ItemKey> for WrittenKey {
    fn from(key: ItemKey) -> Self {
        u64::try_from(key.0).map_or_else(|_| Self::Text(key.to_string()), Self::Number)
    }
}

impl TryFrom<WrittenKey> for ItemKey {
    type Error = std::num::ParseIntError;

    fn try_from(written: WrittenKey) -> std::result::Result<Self, Self::Error> {
        match written {
            WrittenKey::Number(number) => Ok(Self::from(number)),
            WrittenKey::Text(text) => text.parse().map(Self),
        }
    }
}

impl ItemKey {
    /// The key with these 128 bits.
    pub const fn new(bits: u128) -> Self {
        Self(bits)
    }

    /// Its 128 bits: for stores, and for hashing.
    pub const fn bits(self) -> u128 {
        self.0
    }
}

impl From<u64> for ItemKey {
    fn from(number: u64) -> Self {
        Self(u128::from(number))
    }
}

impl fmt::Display for ItemKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A number that tells two states of an item apart: each change of content gives the item another one. A store gives no
/// number twice, not even to an item that was deleted and added again.
///
/// An item has two: [`Item::revision`] changes with its source and with its old vector, [`Item::source_revision`] with its source alone.
/// What is made from the source alone (native vectors, which are paid for, and failures) goes by the second one: it outlives a write of the
/// old vector.
///
/// *Database*: where a database can be set back to an earlier state (a backup, a failover), its sequence would give a number again, to
/// other content of what may be another item of the same key. So each number has a random part.
///
/// What is right depends on equality alone. The order is a hint: a later change usually has a larger number, but where
/// numbers come from a sequence (PostgreSQL), a transaction may commit after another one that took a larger number.
pub type Revision = u64;

/// Counts how often the filling of a space was planned, so that writers of earlier plans can be refused.
///
/// A plan (which adapter, which order) holds the epoch in which it was made. [`Ledger::advance`] begins the next one, and
/// from then on every write that carries an earlier epoch is refused. So no vector of an adapter enters a space after
/// another adapter has taken over, however late the write comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(u64);

impl Epoch {
    /// The epoch of a space that was just made.
    pub const FIRST: Self = Self(0);

    /// The epoch with a number: for stores.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn number(self) -> u64 {
        self.0
    }

    /// The epoch after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The part of the queue that an adapted vector waits in: later ones of this list come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueueBand {
    /// Ranked by the order's own score.
    Ordinary,
    /// Chosen because together they cover the gallery.
    Covering,
    /// Before all that the order ranks: a random sample that is measured on, then what searches return most. It outlives adapters and orders.
    Sample,
    /// Came or changed during the upgrade.
    NewOrChanged,
}

impl QueueBand {
    /// Every band, the last one of the queue first.
    pub const ALL: [Self; 4] = [Self::Ordinary, Self::Covering, Self::Sample, Self::NewOrChanged];
}

/// The place of an adapted vector in the queue of the backfill: bands first, then the larger score.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct Priority {
    /// The part of the queue.
    pub band: QueueBand,
    /// The place in it: larger is earlier. Not NaN.
    pub score: f64,
}

impl Priority {
    /// A place in a band.
    pub const fn new(band: QueueBand, score: f64) -> Self {
        Self { band, score }
    }

    /// A place in the ordinary part of the queue.
    pub const fn ordinary(score: f64) -> Self {
        Self::new(QueueBand::Ordinary, score)
    }
}

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
    /// The revision that the source came with: where a change leaves the source as it is, this stays. An item without a source has
    /// nothing that could stay the same, so each change gives it another one.
    pub source_revision: Revision,
}

/// What an application writes: an item, new or changed, with the vectors it has at hand.
///
/// Writing an item is a change of its content, so the item gets a new revision. The same transaction removes every
/// vector that is not part of the write, since it belongs to the content before. But where the source is the same as before, what
/// was made from the source alone stays: native vectors, unless the write brings an old or native one for their space (an adapted one
/// is passed over there), and, in spaces for which it brings none of these, recorded failures and leases.
///
/// An item that was deleted and comes again, with the id and the source of before, is another item with the native vectors of the one before,
/// for a day at least and unless the write brings an old or native one for their space.
///
/// A source that names what lies elsewhere (a path, a URL) is the same as long as the name is. Where what it names has changed, the
/// application says so by another name, or writes the item without a source first.
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

impl ItemWrite {
    /// A write without a label and with nothing kept beside the item.
    pub fn new(id: impl Into<String>, source: Option<String>, vectors: Vec<NewVector>) -> Self {
        Self { id: id.into(), source, label: None, payload: Value::Null, vectors }
    }
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
    /// Place in the queue of the backfill, for adapted vectors; `None` comes last.
    pub priority: Option<Priority>,
    /// The epoch of the plan that an adapted vector was made by; needed for those, and for no others.
    pub epoch: Option<Epoch>,
}

impl NewVector {
    /// A vector that a model itself has made: old or native.
    pub fn of_model(space: impl Into<String>, vector: Vec<f32>, provenance: Provenance) -> Self {
        Self { space: space.into(), vector, provenance, sigma2: None, priority: None, epoch: None }
    }
}

/// A vector as it lies in a space.
#[derive(Debug, Clone, PartialEq)]
pub struct VectorRecord {
    /// Who made it.
    pub provenance: Provenance,
    /// The item's revision: what was not made from the item as it is now is removed with the change.
    pub revision: Revision,
    /// Predicted squared error of the adapted vector; kept when a native vector takes its place.
    pub sigma2: Option<f32>,
    /// Place in the queue of the backfill; `None` comes last.
    pub priority: Option<Priority>,
    /// `‖native − adapted‖²`, once the native vector has taken the adapted one's place.
    pub squared_error: Option<f32>,
    /// The vector, `[d]`; empty where the scan did not ask for vectors.
    pub vector: Vec<f32>,
}

/// A write of the upgrade: it happens only if the item still is what it was when it was read.
///
/// It is applied if, and only if, the item exists, has the revision `revision` (a native vector: the source revision), and its vector in
/// the space is missing or adapted. A native (or old) vector is never replaced.
#[derive(Debug, Clone, PartialEq)]
pub struct VectorWrite {
    /// The item.
    pub key: ItemKey,
    /// What was read together with what it was made from: of a native vector [`Item::source_revision`], of an adapted one
    /// [`Item::revision`].
    pub revision: Revision,
    /// [`Provenance::Adapted`] or [`Provenance::Native`].
    pub provenance: Provenance,
    /// Predicted squared error. `None` keeps what is there.
    pub sigma2: Option<f32>,
    /// Place in the queue of the backfill; `None` comes last.
    pub priority: Option<Priority>,
    /// `‖native − adapted‖²` where both are known.
    pub squared_error: Option<f32>,
    /// The vector, `[d]`.
    pub vector: Vec<f32>,
}

impl VectorWrite {
    /// The new model's own vector of an item, made of the source that the caller has read.
    pub fn native(item: &Item, vector: Vec<f32>) -> Self {
        Self {
            key: item.key,
            revision: item.source_revision,
            provenance: Provenance::Native,
            sigma2: None,
            priority: None,
            squared_error: None,
            vector,
        }
    }

    /// An adapter's vector of an item, made of the revision that the caller has read, with its predicted squared error and its place in
    /// the queue.
    pub fn adapted(item: &Item, vector: Vec<f32>, sigma2: f32, priority: Priority) -> Self {
        Self {
            revision: item.revision,
            provenance: Provenance::Adapted,
            sigma2: Some(sigma2),
            priority: Some(priority),
            ..Self::native(item, vector)
        }
    }
}

/// What became of a [`VectorWrite`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WriteOutcome {
    /// It is in the store.
    Written,
    /// The item has been deleted; nothing was written.
    Deleted,
    /// The item has another revision now (for a native vector: another source); nothing was written.
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
    /// The source revision that failed.
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
    /// The queue of the backfill, which [`Ledger::claim`] hands out: items without a vector in the space first (by key), then
    /// adapted ones, the largest [`Priority`] first (ties by key). Items with a recorded failure and items without a source
    /// are left out; leased ones are not. `after` is not used: what was done is no longer selected.
    WorstFirst,
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
    /// At most this many items.
    pub limit: usize,
    /// Name of the space whose vectors come along, if any; it may be another one than `space`.
    pub vectors_of: Option<String>,
    /// Whether source, label and payload come along. A store for which they cost nothing may give them in any case.
    pub contents: bool,
}

impl Scan {
    /// A page without vectors from the start of a selection.
    pub fn new(space: impl Into<String>, select: Select, limit: usize) -> Self {
        Self { space: space.into(), select, after: None, limit, vectors_of: None, contents: true }
    }

    /// The same page, after a key.
    #[must_use]
    pub fn after(mut self, key: Option<ItemKey>) -> Self {
        self.after = key;
        self
    }

    /// The page after this one, given what this one had; `None` after a page that was not full. So a walk ends beside an application that inserts at its
    /// end all the while; what comes meanwhile is found by the next walk.
    #[must_use]
    pub fn following(self, records: &[Record]) -> Option<Self> {
        let last = records.last().filter(|_| records.len() >= self.limit)?.item.key;
        Some(self.after(Some(last)))
    }

    /// The same page, with the vectors of a space.
    #[must_use]
    pub fn with_vectors_of(mut self, space: impl Into<String>) -> Self {
        self.vectors_of = Some(space.into());
        self
    }

    /// The same page, without sources, labels and payloads: a table of an application makes a payload of all its columns.
    #[must_use]
    pub fn without_contents(mut self) -> Self {
        self.contents = false;
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

/// What of the queue of a backfill a claim hands out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Queue {
    /// All of it, in its order ([`Select::WorstFirst`]).
    #[default]
    All,
    /// The items of a random sample ([`Among::Embeddable`]) that still wait, in the order of its shuffle. The store keeps no list of the
    /// sample: native items stay in it, and where an item fails or is deleted, the next one of the shuffle takes its place.
    Sample {
        /// Of the shuffle.
        seed: u64,
        /// Items of the sample, native ones among them.
        size: usize,
    },
}

/// Items that a random sample may be drawn from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Among {
    /// Every item.
    All,
    /// Items whose vector in the space is adapted.
    Adapted,
    /// Items that are native in the space or can become so: with a source, without a recorded failure, and lacking a vector
    /// there or adapted.
    Embeddable,
}

/// A uniform random sample of items.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Name of the space that the states are read from.
    pub space: String,
    /// What it is drawn from.
    pub among: Among,
    /// Another seed draws another sample; the same one draws the same again.
    pub seed: u64,
    /// At most this many items.
    pub size: usize,
    /// Name of the space whose vectors come along, if any.
    pub vectors_of: Option<String>,
}

/// What a [`Sample`] drew.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawn {
    /// The items, in the order of the shuffle; a smaller sample is the beginning of a larger one.
    pub records: Vec<Record>,
    /// How many they were drawn from.
    pub of: u64,
}

/// What a [`Ledger::claim`] handed out.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Claimed {
    /// The items, worst first, each with its vector of the space (`None` where it lacks one).
    pub records: Vec<Record>,
    /// Items of the queue that other workers hold at this moment.
    pub held_by_others: u64,
    /// How many leases in a row ran out on the first item, because a worker that held it ended or was not heard of.
    /// From [`ALONE_AFTER`] on, the store hands out this item alone.
    pub lost: u32,
}

/// After so many lost leases an item goes to a worker alone: if it is what ends the workers, the others are safe from it.
pub const ALONE_AFTER: u32 = 2;

impl Claimed {
    /// What a store hands out of the items that are `next`, given how many leases in a row were `lost` on each: those before
    /// the first one that has to go alone, or only that one.
    pub fn of(mut next: Vec<Record>, lost: &BTreeMap<ItemKey, u32>, held_by_others: u64) -> Self {
        let lost = |record: &Record| lost.get(&record.item.key).copied().unwrap_or(0);
        if let Some(at) = next.iter().position(|record| lost(record) >= ALONE_AFTER) {
            next.truncate(at.max(1));
        }
        let lost = next.first().map_or(0, lost);
        Self { records: next, held_by_others, lost }
    }
}

/// A worker that holds items of a space.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AtWork {
    /// Its name.
    pub worker: String,
    /// Items that it holds.
    pub items: u64,
    /// Milliseconds until the last of its leases runs out, by the store's clock.
    pub left_ms: u64,
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

    /// The provenances that pass, adapted ones (a handicap is theirs alone) and others apart.
    pub fn adapted_and_others(&self) -> (Vec<Provenance>, Vec<Provenance>) {
        let passes =
            |provenance: &Provenance| self.provenances.is_empty() || self.provenances.contains(provenance);
        Provenance::ALL.into_iter().filter(passes).partition(|provenance| *provenance == Provenance::Adapted)
    }

    /// Whether an item with a vector of this provenance passes.
    pub fn passes(&self, item: &Item, provenance: Provenance) -> bool {
        (self.labels.is_empty() || item.label.as_ref().is_some_and(|label| self.labels.contains(label)))
            && (self.provenances.is_empty() || self.provenances.contains(&provenance))
            && self.payload.iter().all(|(field, value)| item.payload.get(field) == Some(value))
    }
}

/// Both spaces of a fused search, and how distances in them become one.
#[derive(Debug, Clone, Copy)]
pub struct FusedSpaces<'a> {
    /// Space that is replaced; every item that is not native has its vector here.
    pub old: &'a Space,
    /// Space that replaces it.
    pub new: &'a Space,
    /// Number added to the distance of adapted vectors in the old space, 0 or more.
    pub old_handicap: f64,
    /// Rule by which the distances in both spaces become one.
    pub fusion: &'a Fusion,
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
    /// The space, with its name in the gallery.
    pub space: Space,
    /// The provenance that an application's own vectors get in this space: `old` in the space of the model a gallery
    /// came with, `native` in the space of an upgrade.
    pub written_as: Provenance,
    /// In which epoch its filling is.
    pub epoch: Epoch,
}

/// A small document of a gallery: its version, which grows with every change, and its text.
pub type Document = (u64, String);

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

impl Counts {
    /// Items with a source that are not native: a run embeds them.
    pub fn to_embed(&self) -> u64 {
        (self.adapted + self.lacking).saturating_sub(self.without_source)
    }
}

/// The truth of a live gallery: items, vectors with their provenance, the queue, and the documents of an upgrade.
///
/// Every method may be called from many threads and, for ledgers on disk or behind a network, many processes at once.
///
/// # What a ledger promises
///
/// - **Atomic.** Each call that writes is one transaction: another reader sees all of it or nothing; after a kill at any
///   instruction the ledger holds all of it or nothing.
/// - **Durable.** What a call has returned for survives a kill of the process. Leases alone may be lost with the machine: what
///   they protect is money, not truth.
/// - **Conditional.** [`Ledger::write_vectors`] never brings back a deleted item, never puts a vector beside content it
///   was not made from, never replaces a native or old vector. So two workers on one item are harmless, and the same write
///   may be repeated.
/// - **Thrifty.** A native vector stays for as long as its item's source does, whatever else an application writes, and one that is on its
///   way while the old vector is written arrives. An item that is deleted and written again, with the same id and source, has it again
///   (a store whose calls are no transactions need not keep it).
/// - **Fenced.** A write of an adapted vector, and a change of a place in the queue, carries the [`Epoch`] of its plan. The
///   ledger compares it in the same transaction, and where another plan has begun it writes nothing of the call.
/// - **Tagged.** No reader ever sees a vector without its provenance, nor one whose revision is not its item's.
/// - **Checked.** Vectors enter only if they are as wide as their space, finite, and of length 1 where the space says so, and adapted and
///   native ones only if they [can be placed](rehang::Distance::can_place): under the cosine distance a vector of length 0 has no direction.
///   Otherwise nothing of the call is written. An old vector may be without a direction, as the application has it: it counts as old, comes
///   back as it was, and nothing is made of it, so that its item lacks a vector in the new space and is next in the queue.
///
/// # What it does not promise
///
/// An order among concurrent writers; that a long scan is one snapshot (each page is).
///
/// # Synchronous
///
/// A call blocks its thread until it is done. The engine works on batches from few threads, and each call is about a whole
/// batch, so a network round trip a call costs little. An asynchronous trait would make every implementer and every caller
/// carry a runtime. An asynchronous application calls from a blocking thread (`spawn_blocking`).
///
/// # For a database
///
/// Where it is not obvious how a database with sequences that are not commit-ordered, with UUIDs as keys, on another machine
/// can keep a promise, the method says so. The application's own table may hold the items; a side table then holds the revision
/// (written by a trigger, or by the process that writes the item), and one row a vector and space.
///
/// # Errors
///
/// Not found where a space that is named is none of the gallery; corrupt, a mismatch or an option for vectors and numbers
/// that may not enter; and whatever the disk or the service behind a ledger says. Where a method can fail in another way,
/// it says so.
#[allow(clippy::missing_errors_doc, reason = "what every method has in common is said once, above")]
pub trait Ledger: Send + Sync {
    /// What this ledger is, for people: a path or an address.
    fn name(&self) -> String;

    /// How many calls of [`Ledger::write_vectors`] gain from being made at the same time; 1 where writes come one after the other.
    fn writers(&self) -> usize {
        1
    }

    /// Every space of the gallery, in the order of creation.
    fn spaces(&self) -> Result<Vec<SpaceRecord>>;

    /// Makes a space without vectors, in its first epoch. Making the very same space again is fine and changes nothing.
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
    fn serving(&self) -> Result<Option<String>> {
        Ok(self.serving_and_document("")?.0)
    }

    /// [`Ledger::serving`] and [`Ledger::document`] as they are at one moment: what every search asks first.
    ///
    /// *Database*: one statement that joins the two rows; neither needs a transaction of its own.
    ///
    /// # Errors
    ///
    /// Where the gallery was taken out of a server meanwhile, an error that advises [`Remedy::AdoptTable`](rehang::Remedy::AdoptTable).
    fn serving_and_document(&self, document: &str) -> Result<(Option<String>, Option<Document>)>;

    /// Makes `to` the serving space if `from` is it now. One atomic step; a search before sees `from`, after it `to`.
    ///
    /// # Errors
    ///
    /// A conflict where another space serves (unless it is `to` already: then nothing is done), not found where `to` is no
    /// space of the gallery.
    fn switch_serving(&self, from: &str, to: &str) -> Result<()>;

    /// Writes items as an application does: all of them or, on an error, none. Gives the new revisions, in order.
    ///
    /// Each item gets a new revision and loses every vector that does not come with the write, recorded failures and leases; where its
    /// source is the same, what was made from that stays: see [`ItemWrite`]. An id that is twice in one call is written twice, the last one
    /// stays.
    ///
    /// # Errors
    ///
    /// Superseded where an adapted vector carries another epoch than its space's.
    fn put(&self, writes: &[ItemWrite]) -> Result<Vec<Revision>>;

    /// Deletes items with all their vectors, failures and leases; ids that do not exist are passed over. Native vectors may be kept for an item
    /// that [comes again](ItemWrite), where no reader finds them. Gives how many existed.
    fn delete(&self, ids: &[&str]) -> Result<usize>;

    /// Items by id, `None` where there is none, in order.
    fn get(&self, ids: &[&str]) -> Result<Vec<Option<Item>>>;

    /// Vectors of one space by key, `None` where there is none, in order.
    fn vectors(&self, space: &str, keys: &[ItemKey]) -> Result<Vec<Option<VectorRecord>>>;

    /// Who made the vectors of one space by key, `None` where there is none, in order. Reads no vectors.
    fn provenances(&self, space: &str, keys: &[ItemKey]) -> Result<Vec<Option<Provenance>>>;

    /// Conditional writes of the upgrade, one transaction: see [`VectorWrite`]. Gives what became of each, in order.
    ///
    /// Adapted vectors need the epoch of their plan. Native ones need none: they are the new model's own words, whatever is
    /// planned. A native vector clears the item's failure in this space and ends its lease; an adapted one leaves both as they are.
    /// A write that is not applied is no error.
    ///
    /// *Database*: one `UPDATE … FROM (VALUES …)` with the conditions in its `WHERE`, which locks the rows it touches; the row
    /// of the space is read `FOR SHARE`, which [`Ledger::advance`] waits for.
    ///
    /// # Errors
    ///
    /// Superseded where the space is in another epoch: nothing is written then. An invalid option for an adapted vector without
    /// an epoch.
    fn write_vectors(
        &self,
        space: &str,
        epoch: Option<Epoch>,
        writes: &[VectorWrite],
    ) -> Result<Vec<WriteOutcome>>;

    /// Gives adapted vectors another place in the queue: `(key, revision, priority)`. Entries whose item is gone, has
    /// another revision or is no longer adapted are passed over. Gives how many were changed.
    ///
    /// # Errors
    ///
    /// Superseded where the space is in another epoch: nothing is written then.
    fn set_priorities(
        &self,
        space: &str,
        epoch: Epoch,
        priorities: &[(ItemKey, Revision, Priority)],
    ) -> Result<usize>;

    /// Takes native vectors out of a space again, of items with a source: at most `limit`. They lack a vector then, and wait in the
    /// queue. For vectors made by another encoder than the one that fills the space: what is kept of deleted items is forgotten, too. Gives how
    /// many it took out.
    ///
    /// # Errors
    ///
    /// Superseded where the space is in another epoch: nothing is taken out then.
    fn forget_natives(&self, space: &str, epoch: Epoch, limit: usize) -> Result<usize>;

    /// Begins the next epoch of a space and replaces a document that names it, both in one transaction: if the space is in
    /// epoch `from`, and the document's version is `expected` (`None`: there is none). Gives the document's new version.
    ///
    /// So a plan and its epoch never part, whenever the process dies.
    ///
    /// # Errors
    ///
    /// A conflict where another process changed the document, or began an epoch; nothing is changed then.
    fn advance(
        &self,
        space: &str,
        from: Epoch,
        document: &str,
        expected: Option<u64>,
        text: &str,
    ) -> Result<u64>;

    /// A page of items: as many as were asked for, unless there are no more.
    fn scan(&self, scan: &Scan) -> Result<Vec<Record>>;

    /// A uniform random sample that depends on the seed and the items' keys alone: the same for every caller, and as items come and
    /// go, the others keep their places in the shuffle.
    ///
    /// *Database*: `ORDER BY` a hash of key and seed, `LIMIT size`, with a count beside it; any uniform hash will do. It is one
    /// pass over an index of keys on the server, and a look-up where an index on the hash of a fixed seed is kept.
    fn sample(&self, sample: &Sample) -> Result<Drawn>;

    /// The newest revision of all items, 0 without any.
    ///
    /// *Database*: `max(revision)`. A transaction that is still running may commit a smaller number later; callers take it as
    /// a hint.
    fn newest_revision(&self) -> Result<Revision>;

    /// How many items and vectors a space has.
    ///
    /// *Database*: counted from partial indexes, or kept by triggers. It is asked every few seconds at most, and a number that is a
    /// moment old does no harm.
    fn counts(&self, space: &str) -> Result<Counts>;

    /// Items of the gallery without a source.
    fn count_without_source(&self) -> Result<u64>;

    /// Items that lack a vector in a space and have one in another.
    fn count_lag(&self, space: &str, behind: &str) -> Result<u64>;

    /// Leases the next items of the queue to a worker: at most `limit`, none that any worker holds, this one included. A lease that has
    /// run out holds nothing; it counts as [lost](Claimed::lost) on the next claim of its item, until a lease of it ends otherwise.
    ///
    /// A lease ends with a native vector of the item, a recorded failure, an application's write of another source, a deletion, and with
    /// [`Ledger::release`]. It says who works on what, so that nothing is paid for twice; whether a write is right never
    /// depends on it. Leases are by the ledger's own clock.
    ///
    /// *Database*: claims of one space take turns at a lock (of a row of ours, in PostgreSQL), each reads the queue's index, and the
    /// leases are written in the same transaction; the clock is the server's `now()`. `FOR UPDATE SKIP LOCKED` is not enough: a worker
    /// that read before another one's lease was committed may lock the row after it, and take the item too.
    fn claim(
        &self,
        space: &str,
        queue: Queue,
        worker: &str,
        limit: usize,
        lease: Duration,
    ) -> Result<Claimed>;

    /// Renews all leases of a worker: each now lasts `lease` from this moment. For encoders that are slower than a lease. Gives
    /// how many it holds.
    fn renew(&self, space: &str, worker: &str, lease: Duration) -> Result<u64>;

    /// Gives items back that a worker holds, or with `None` all of them. Items that it does not hold are passed over. Gives how
    /// many it gave back.
    fn release(&self, space: &str, worker: &str, keys: Option<&[ItemKey]>) -> Result<u64>;

    /// Who holds items of a space, by name; leases that have run out do not count.
    fn at_work(&self, space: &str) -> Result<Vec<AtWork>>;

    /// Records that items could not be embedded `(key, source revision, reason)`; the backfill leaves them out from then on.
    /// Entries whose item is gone, has another source revision, or has a native (or old) vector in the space are passed over: another
    /// worker may have made it while this one gave it up.
    fn record_failures(&self, space: &str, failures: &[(ItemKey, Revision, String)]) -> Result<()>;

    /// Recorded failures by key, after a key, at most `limit`.
    fn failures(&self, space: &str, after: Option<ItemKey>, limit: usize) -> Result<Vec<Failure>>;

    /// Forgets all failures of a space, so that the backfill tries those items again. Gives how many there were.
    fn clear_failures(&self, space: &str) -> Result<u64>;

    /// `(σ², squared error)` of the native vectors that took an adapted one's place last, newest first, at most `limit`.
    ///
    /// *Database*: by the time of the write. It feeds a health figure, so an order that is right but for running transactions
    /// is right enough.
    fn errors(&self, space: &str, limit: usize) -> Result<Vec<(f32, f32)>>;

    /// A small document by name, with its version; `None` where there is none.
    fn document(&self, name: &str) -> Result<Option<Document>> {
        Ok(self.serving_and_document(name)?.1)
    }

    /// Replaces a document if its version is still `expected` (`None`: if there is none). Gives the new version, which is larger.
    ///
    /// # Errors
    ///
    /// A conflict where another process was faster.
    fn set_document(&self, name: &str, expected: Option<u64>, text: &str) -> Result<u64>;

    /// A part of a [file](crate::Files) by name; `None` where there is none. Nobody but [`Files`](crate::Files) asks for one.
    ///
    /// # Errors
    ///
    /// Corrupt where it is not as [`Ledger::set_chunk`] left it.
    fn chunk(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let Some((_, text)) = self.document(name)?.filter(|(_, text)| !text.is_empty()) else {
            return Ok(None);
        };
        BASE64_STANDARD
            .decode(text)
            .map(Some)
            .map_err(|error| Error::corrupt(format!("{name} in {}", self.name()), error))
    }

    /// Writes a part of a [file](crate::Files), of 180 KiB at most and not empty, or takes it away (`None`). Only one process writes a part of this name.
    ///
    /// A store keeps it as a document unless it has a better place.
    fn set_chunk(&self, name: &str, bytes: Option<&[u8]>) -> Result<()> {
        let before = self.document(name)?.map(|(version, _)| version);
        if before.is_none() && bytes.is_none() {
            return Ok(());
        }
        let text = bytes.map(|bytes| BASE64_STANDARD.encode(bytes)).unwrap_or_default();
        self.set_document(name, before, &text).map(drop)
    }

    /// Has a [bridge](rehang::Bridge), with its fingerprint, where searches find it that an application makes in the ledger's own language,
    /// past [`Index::search`]; takes away all others but the one whose fingerprint the document `upgrade` has. Those searches use the bridge
    /// that the document names, as long as it is here, so one that lies here unnamed does nothing. Keeping one that is kept already costs nothing.
    ///
    /// A ledger without such searches has nothing to do.
    ///
    /// # Errors
    ///
    /// A wrong phase where an earlier version made the ledger, which has no place for one.
    fn keep_bridge(&self, _kept: Option<(&str, &Bridge)>) -> Result<()> {
        Ok(())
    }

    /// Has the map of an adapter, with its fingerprint, where the ledger itself adapts what an application writes past the library with an old vector
    /// alone: in that very write, as long as the space is in this epoch. With `None`, or by a map of another kind, such items lack a vector until
    /// somebody catches up with them. An epoch that is over changes nothing. Keeping a map that is kept already costs nothing.
    ///
    /// Gives why the ledger does not adapt by this map, where it does by others; one that never does has nothing to do.
    ///
    /// # Errors
    ///
    /// Not found where there is no such space; those of the store.
    fn keep_map(&self, _space: &str, _kept: Option<(Epoch, &str, &Adapter)>) -> Result<Option<String>> {
        Ok(None)
    }
}

/// Nearest neighbours of one space. An index is derived from a [`Ledger`]: it may be lost at any time and is made again.
///
/// # What an index promises
///
/// - **Fresh.** A search sees every write that returned before it began, of any process. An index on another machine that
///   lags confirms its candidates with the ledger and says in its documentation how far it may lag behind with new vectors.
/// - **Tagged.** A hit says who made the vector that was found, and its item's revision.
/// - **Placed.** A search passes over vectors that [cannot be placed](rehang::Distance::can_place), which an application may hold or have
///   written around the library: with NaN or infinite numbers, or of length 0 where the distance is cosine. They are near to nothing.
///
/// It does not promise that approximate searches find every neighbour (but see [`Index::recall`]).
///
/// # Errors
///
/// As for a [`Ledger`].
#[allow(clippy::missing_errors_doc, reason = "what every method has in common is said once, above")]
pub trait Index: Send + Sync {
    /// The `k` nearest vectors of a space to each query `[n, d]`, nearest first, ties by key.
    fn search(&self, space: &str, queries: &Matrix, k: usize, filter: &Filter) -> Result<Vec<Vec<Found>>>;

    /// The same where adapted vectors are farther by `handicap`, which is not below 0: as if it were added to every distance to one of them.
    ///
    /// A store that can ask for both kinds at once does so.
    fn search_handicapped(
        &self,
        space: &str,
        queries: &Matrix,
        k: usize,
        filter: &Filter,
        handicap: f64,
    ) -> Result<Vec<Vec<Found>>> {
        if handicap == 0.0 {
            return self.search(space, queries, k, filter);
        }
        let nearest = |provenances: Vec<Provenance>| {
            if provenances.is_empty() {
                return Ok(vec![Vec::new(); queries.rows()]);
            }
            self.search(space, queries, k, &Filter { provenances, ..filter.clone() })
        };
        let (adapted, others) = filter.adapted_and_others();
        // The adapted ones first: an item that becomes native between the two searches is found by both, and never by neither.
        let adapted = nearest(adapted)?;
        let others = nearest(others)?;
        let merge = |(adapted, mut hits): (Vec<Found>, Vec<Found>)| {
            let native: BTreeSet<_> = hits.iter().map(|hit| hit.key).collect();
            let farther = |hit: Found| Found { distance: hit.distance + handicap as f32, ..hit };
            hits.extend(adapted.into_iter().filter(|hit| !native.contains(&hit.key)).map(farther));
            hits.sort_by(|a, b| a.distance.total_cmp(&b.distance).then(a.key.cmp(&b.key)));
            hits.truncate(k);
            hits
        };
        Ok(adapted.into_iter().zip(others).map(merge).collect())
    }

    /// The `k` nearest items to each query, judged by both spaces of an upgrade: native vectors by the new query alone, all others by
    /// [`Fusion::distance`]. `queries` are the same ones by the old and by the new model.
    ///
    /// `None` where the store has no search of its own for this filter: the caller then asks both spaces for candidates and puts them together.
    fn search_fused(
        &self,
        _spaces: &FusedSpaces<'_>,
        _queries: (&Matrix, &Matrix),
        _k: usize,
        _filter: &Filter,
    ) -> Result<Option<Vec<Vec<Found>>>> {
        Ok(None)
    }

    /// Share of the true `k` nearest neighbours that [`Index::search`] finds, over `samples` stored vectors as queries
    /// (the vector itself counts); 1 for exact indexes. Read-only.
    fn recall(&self, space: &str, samples: usize, k: usize) -> Result<f64>;

    /// Whether searches of a space are as fast as they can be: no index has to be made for them first. Reads little, and makes
    /// nothing.
    fn is_ready(&self, space: &str) -> Result<bool>;

    /// Makes a space [ready](Index::is_ready), if it is not, and durable. `advance` is told `(done, total)` vectors now and then, and ends
    /// the work where it gives `false`: cancelled then.
    fn prepare(&self, space: &str, advance: &dyn Fn(u64, u64) -> bool) -> Result<()>;

    /// Makes the index of a space again from the ledger.
    fn rebuild(&self, space: &str) -> Result<()>;

    /// Makes all indexes durable, so that the next process need not make them again.
    fn flush(&self) -> Result<()>;
}

/// A gallery that is written and searched: truth and index in one.
///
/// Functions that never search take a [`Ledger`].
pub trait Store: Ledger + Index {}

impl<T: Ledger + Index> Store for T {}

/// A space of a gallery by name; `None` where there is none.
///
/// # Errors
///
/// Those of [`Ledger::spaces`].
pub fn find_space(ledger: &dyn Ledger, name: &str) -> Result<Option<SpaceRecord>> {
    Ok(ledger.spaces()?.into_iter().find(|record| record.space.name == name))
}
