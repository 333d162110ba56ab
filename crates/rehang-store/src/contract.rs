//! The contract between a gallery's store and everything that reads or changes the gallery.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rehang_core::{Adapter, Bridge, Error, Fusion, Matrix, Provenance, Result, Space};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Key by which a store knows an item: given once, never used again, also not after a deletion.
///
/// A key is opaque: callers compare keys, sort by them and hand them back. Keys need not be dense, nor ascend
/// in time. A store whose keys are UUIDs takes their 128 bits; one that counts takes the number.
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

/// Key as JSON has it, whose numbers have 64 bits.
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

    /// The key's 128 bits: for stores, and for hashing.
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

/// Number that tells two states of an item apart: each change of content gives the item another one. A store
/// gives no number twice, not even to an item that was deleted and added again.
///
/// An item has two: [`Item::revision`] changes with its source and with its old vector,
/// [`Item::source_revision`] with its source alone. Native vectors, which are paid for, and failures are made
/// from the source alone. They go by the source revision, and outlive a write of the old vector.
///
/// *Database*: a database may be set back to an earlier state (a backup, a failover). Its sequence would then
/// give a number again, to other content of what may be another item of the same key. So each number has a
/// random part.
///
/// Correctness depends on equality alone. The order is a hint: a later change usually has a larger number.
/// But where numbers come from a sequence (PostgreSQL), a transaction may commit after another one that took
/// a larger number.
pub type Revision = u64;

/// Counts how often the filling of a space was planned, so that writers of earlier plans can be refused.
///
/// A plan (which adapter, which order) holds the epoch in which it was made. [`Ledger::advance`] begins the
/// next one, and from then on every write that carries an earlier epoch is refused. So no vector of an
/// adapter enters a space after another adapter has taken over, however late the write comes.
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

    /// The epoch's number: for stores.
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

/// Part of the queue that an adapted vector waits in: later variants of this list come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueueBand {
    /// Items that are ranked by the order's own score.
    Ordinary,
    /// Items that were chosen because together they cover the gallery.
    Covering,
    /// Items before all that the order ranks: a random sample that is measured on, then what searches return
    /// most. This part outlives adapters and orders.
    Sample,
    /// Items that came or changed during the upgrade.
    NewOrChanged,
}

impl QueueBand {
    /// Every band, the last one of the queue first.
    pub const ALL: [Self; 4] = [Self::Ordinary, Self::Covering, Self::Sample, Self::NewOrChanged];
}

/// Place of an adapted vector in the queue of the backfill: bands first, then the larger score.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct Priority {
    /// The part of the queue.
    pub band: QueueBand,
    /// Place in the band: larger is earlier. Not NaN.
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
    /// The store's key for the item.
    pub key: ItemKey,
    /// The application's name for the item; unique in the gallery.
    pub id: String,
    /// Source that the item is embedded from: a text, a path, a URL. `None` where it is gone: such an item
    /// stays adapted.
    pub source: Option<String>,
    /// Class, tag or group, where there is one.
    pub label: Option<String>,
    /// Data that the application keeps beside the item; `Null` where it keeps none.
    pub payload: Value,
    /// Revision of the content: it changes whenever the source, or the old vector, changes.
    pub revision: Revision,
    /// Revision that the source came with: where a change leaves the source as it is, this stays. An item
    /// without a source has nothing that could stay the same, so each change gives it another one.
    pub source_revision: Revision,
}

/// Write of an application: an item, new or changed, with the vectors that the application has at hand.
///
/// Writing an item is a change of its content, so the item gets a new revision. The same transaction removes
/// every vector that is not part of the write, since it belongs to the content before.
///
/// Where the source is the same as before, what was made from the source alone stays. Native vectors stay,
/// unless the write brings an old or native one for their space; an adapted one is passed over there.
/// Recorded failures and leases stay in spaces for which the write brings no old or native vector.
///
/// An item that was deleted and comes again, with the id and the source of before, is another item. It has
/// the native vectors of the deleted one, for a day at least and unless the write brings an old or native one
/// for their space.
///
/// A source may name what lies elsewhere (a path, a URL): it is the same as long as the name is. Where the
/// thing that it names has changed, the application says so by another name, or writes the item without a
/// source first.
#[derive(Debug, Clone, PartialEq)]
pub struct ItemWrite {
    /// The application's name for the item.
    pub id: String,
    /// Source that the item is embedded from; `None` where there is none.
    pub source: Option<String>,
    /// Class, tag or group.
    pub label: Option<String>,
    /// Data that the application keeps beside the item.
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
    /// Provenance of the vector: who made it.
    pub provenance: Provenance,
    /// Predicted squared error, for adapted vectors.
    pub sigma2: Option<f32>,
    /// Place in the queue of the backfill, for adapted vectors; `None` comes last.
    pub priority: Option<Priority>,
    /// Epoch of the plan that an adapted vector was made by; needed for adapted vectors, and for no others.
    pub epoch: Option<Epoch>,
}

impl NewVector {
    /// A vector that a model itself has made: old or native.
    pub fn from_model(space: impl Into<String>, vector: Vec<f32>, provenance: Provenance) -> Self {
        Self { space: space.into(), vector, provenance, sigma2: None, priority: None, epoch: None }
    }
}

/// A vector as it lies in a space.
#[derive(Debug, Clone, PartialEq)]
pub struct VectorRecord {
    /// Provenance of the vector: who made it.
    pub provenance: Provenance,
    /// The item's revision: a vector that was not made from the item as it is now is removed with the change.
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

/// Write of the upgrade: it happens only if the item still is what it was when it was read.
///
/// It is applied if, and only if, the item exists, has the revision `revision` (a native vector: the source
/// revision), and its vector in the space is missing or adapted. A native (or old) vector is never replaced.
#[derive(Debug, Clone, PartialEq)]
pub struct VectorWrite {
    /// The item.
    pub key: ItemKey,
    /// Revision that was read together with what the vector was made from: [`Item::source_revision`] of a
    /// native vector, [`Item::revision`] of an adapted one.
    pub revision: Revision,
    /// [`Provenance::Adapted`] or [`Provenance::Native`].
    pub provenance: Provenance,
    /// Predicted squared error. `None` keeps the one that is there.
    pub sigma2: Option<f32>,
    /// Place in the queue of the backfill; `None` comes last.
    pub priority: Option<Priority>,
    /// `‖native − adapted‖²` where both are known.
    pub squared_error: Option<f32>,
    /// The vector, `[d]`.
    pub vector: Vec<f32>,
}

impl VectorWrite {
    /// Write of the new model's own vector of an item, made of the source that the caller has read.
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

    /// Write of an adapter's vector of an item, made of the revision that the caller has read, with its
    /// predicted squared error and its place in the queue.
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

/// Outcome of a [`VectorWrite`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WriteOutcome {
    /// The vector is in the store.
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
    /// The item's id.
    pub id: String,
    /// The source revision that failed.
    pub revision: Revision,
    /// Reason that the encoder gave.
    pub reason: String,
}

/// Selection of the items that a scan gives, and their order.
#[derive(Debug, Clone, PartialEq)]
pub enum Select {
    /// Every item, by key.
    All,
    /// Items whose vector in the space has this provenance, by key.
    Provenance(Provenance),
    /// Items without a vector in the space, by key; those with a recorded failure too.
    Lacking,
    /// Items that the backfill can never take, by key: they have no source, and in the space an adapted
    /// vector or none.
    WithoutSource,
    /// Queue of the backfill, which [`Ledger::claim`] hands out.
    ///
    /// Items without a vector in the space come first (by key), then adapted ones, the largest [`Priority`]
    /// first (ties by key). Items with a recorded failure and items without a source are left out; leased
    /// ones are not. `after` is not used: what was done is no longer selected.
    Queued,
}

/// Request for one page of items.
///
/// Pages are cheap: a store answers each from an index, whatever the size of the gallery.
#[derive(Debug, Clone, PartialEq)]
pub struct Scan {
    /// Name of the space that provenance, σ² and priority are read from.
    pub space: String,
    /// Selection of the items, and their order.
    pub select: Select,
    /// Key after which the page begins, for the selections by key.
    pub after: Option<ItemKey>,
    /// Largest number of items of the page.
    pub limit: usize,
    /// Name of the space whose vectors come along, if any; it may be another one than `space`.
    pub vectors_of: Option<String>,
    /// Whether source, label and payload come along. A store for which they cost nothing may give them in any
    /// case.
    pub contents: bool,
}

impl Scan {
    /// A page without vectors from the start of a selection.
    pub fn new(space: impl Into<String>, select: Select, limit: usize) -> Self {
        Self { space: space.into(), select, after: None, limit, vectors_of: None, contents: true }
    }

    /// Makes this the page after a key.
    #[must_use]
    pub fn after(mut self, key: Option<ItemKey>) -> Self {
        self.after = key;
        self
    }

    /// Returns the page after this one, given the records of this one; `None` after a page that was not full.
    ///
    /// So a walk ends beside an application that inserts at its end all the while. Items that come meanwhile
    /// are found by the next walk.
    #[must_use]
    pub fn following(self, records: &[Record]) -> Option<Self> {
        let last = records.last().filter(|_| records.len() >= self.limit)?.item.key;
        Some(self.after(Some(last)))
    }

    /// Asks for the vectors of a space beside the items.
    #[must_use]
    pub fn with_vectors_of(mut self, space: impl Into<String>) -> Self {
        self.vectors_of = Some(space.into());
        self
    }

    /// Leaves sources, labels and payloads out of the page: a table of an application makes a payload of all
    /// its columns.
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
    /// The item's vector in the scanned space (`vector` itself is empty); `None` where the space has none.
    pub state: Option<VectorRecord>,
    /// The item's vector in the space of `vectors_of`; `None` where that space has none or none was asked
    /// for.
    pub vector: Option<VectorRecord>,
}

/// Part of the queue of a backfill that a claim hands out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Queue {
    /// The whole queue, in its order ([`Select::Queued`]).
    #[default]
    All,
    /// The items of a random sample ([`Among::Embeddable`]) that still wait, in the order of its shuffle. The
    /// store keeps no list of the sample: native items stay in it, and where an item fails or is deleted, the
    /// next one of the shuffle takes its place.
    Sample {
        /// Seed of the shuffle.
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
    /// Items that are native in the space or can become so: with a source, without a recorded failure, and
    /// lacking a vector there or adapted.
    Embeddable,
}

/// A uniform random sample of items.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Name of the space that the states are read from.
    pub space: String,
    /// Items that the sample is drawn from.
    pub among: Among,
    /// Seed of the draw: another one draws another sample; the same one draws the same again.
    pub seed: u64,
    /// Largest number of items of the sample.
    pub size: usize,
    /// Name of the space whose vectors come along, if any.
    pub vectors_of: Option<String>,
}

/// Items that a [`Sample`] drew.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawn {
    /// The items, in the order of the shuffle; a smaller sample is the beginning of a larger one.
    pub records: Vec<Record>,
    /// Number of items that the sample was drawn from.
    pub drawn_from: u64,
}

/// Items that a [`Ledger::claim`] handed out.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Claimed {
    /// The items, worst first, each with its vector of the space (`None` where it lacks one).
    pub records: Vec<Record>,
    /// Items of the queue that other workers hold at this moment.
    pub held_by_others: u64,
    /// How many leases in a row ran out on the first item, because a worker that held it ended or was not
    /// heard of. From [`ALONE_AFTER`] on, the store hands out this item alone.
    pub lost: u32,
}

/// Lost leases in a row after which an item goes to a worker alone: if the item is what ends the workers, the
/// others are safe from it.
pub const ALONE_AFTER: u32 = 2;

impl Claimed {
    /// Cuts the items that are `next` to what a store hands out, given how many leases in a row were `lost`
    /// on each.
    ///
    /// These are the items before the first one that has to go alone, or only that one where it is the first.
    pub fn up_to_first_alone(
        mut next: Vec<Record>,
        lost: &BTreeMap<ItemKey, u32>,
        held_by_others: u64,
    ) -> Self {
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
    /// The worker's name.
    pub worker: String,
    /// Items that the worker holds.
    pub items: u64,
    /// Milliseconds until the last of its leases runs out, by the store's clock.
    pub left_ms: u64,
}

/// Restriction of a search to some items or vectors. An empty list means no restriction.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Filter {
    /// Labels of which an item needs one.
    pub labels: Vec<String>,
    /// Top-level fields of the payload with the values that an item needs in them, all of them.
    pub payload: Vec<(String, Value)>,
    /// Provenances of which a vector needs one.
    pub provenances: Vec<Provenance>,
}

impl Filter {
    /// Whether nothing is restricted.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.payload.is_empty() && self.provenances.is_empty()
    }

    /// Provenances that pass, in two lists: adapted, which alone have a handicap, and all others.
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

/// Spaces of a fused search, and the rule by which distances in them become one.
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
    /// The item's id.
    pub id: String,
    /// Distance of the vector to the query, as [`rehang_core::Distance`] defines it: smaller is nearer.
    pub distance: f32,
    /// Provenance of the vector that was found: who made it. Never missing: no vector is in a store without
    /// it.
    pub provenance: Provenance,
    /// The item's revision.
    pub revision: Revision,
}

/// A space of the gallery.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SpaceRecord {
    /// The space, with its name in the gallery.
    pub space: Space,
    /// The provenance that an application's own vectors get in this space: `old` in the space of the model a
    /// gallery came with, `native` in the space of an upgrade.
    pub written_as: Provenance,
    /// Epoch that the filling of the space is in.
    pub epoch: Epoch,
}

/// Small document of a gallery: its version, which grows with every change, and its text.
pub type Document = (u64, String);

/// Numbers of items and vectors of a gallery and one of its spaces.
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
    /// Number of items that a run would embed: they have a source and are not native.
    pub fn to_embed(&self) -> u64 {
        (self.adapted + self.lacking).saturating_sub(self.without_source)
    }
}

/// The truth of a live gallery: items, vectors with their provenance, the queue, and the documents of an
/// upgrade.
///
/// Every method may be called from many threads and, for ledgers on disk or behind a network, many processes
/// at once.
///
/// # What a ledger promises
///
/// - **Atomic.** Each call that writes is one transaction: another reader sees all of it or nothing; after a
///   kill at any instruction the ledger holds all of it or nothing.
/// - **Durable.** What a call has returned for survives a kill of the process. Leases alone may be lost with
///   the machine: what they protect is money, not truth.
/// - **Conditional.** [`Ledger::write_vectors`] never brings back a deleted item, never puts a vector beside
///   content it was not made from, never replaces a native or old vector. So two workers on one item are
///   harmless, and the same write may be repeated.
/// - **Thrifty.** A native vector stays for as long as its item's source does, whatever else an application
///   writes. One that is on its way while the old vector is written arrives. An item that is deleted and
///   written again, with the same id and source, has its native vector again (a store whose calls are no
///   transactions need not keep it).
/// - **Fenced.** A write of an adapted vector, and a change of a place in the queue, carries the [`Epoch`] of
///   its plan. The ledger compares it in the same transaction, and where another plan has begun it writes
///   nothing of the call.
/// - **Tagged.** No reader ever sees a vector without its provenance, nor one whose revision is not its
///   item's.
/// - **Checked.** Vectors enter only if they are as wide as their space, finite, and of length 1 where the
///   space says so. Adapted and native ones enter only if they also [can be
///   placed](rehang_core::Distance::can_place): under the cosine distance a vector of length 0 has no direction.
///   Otherwise nothing of the call is written. An old vector may be without a direction, as the application
///   has it: it counts as old and comes back as it was. Nothing is made of it, so its item lacks a vector in
///   the new space and is next in the queue.
///
/// # What a ledger does not promise
///
/// An order among concurrent writers; that a long scan is one snapshot (each page is).
///
/// # Synchronous
///
/// A call blocks its thread until it is done. The engine works on batches from few threads, and each call is
/// about a whole batch, so a network round trip a call costs little. An asynchronous trait would make every
/// implementer and every caller carry a runtime. An asynchronous application calls from a blocking thread
/// (`spawn_blocking`).
///
/// # For a database
///
/// Where it is not obvious how a database with sequences that are not commit-ordered, with UUIDs as keys, on
/// another machine can keep a promise, the method says so. The application's own table may hold the items. A
/// side table then holds the revision (written by a trigger, or by the process that writes the item), and one
/// row a vector and space.
///
/// # Errors
///
/// Not found where a space that is named is none of the gallery; corrupt, a mismatch or an option for vectors
/// and numbers that may not enter; and whatever the disk or the service behind a ledger says. Where a method
/// can fail in another way, it says so.
#[allow(clippy::missing_errors_doc, reason = "what every method has in common is said once, above")]
pub trait Ledger: Send + Sync {
    /// Name of this ledger for people: a path or an address.
    fn name(&self) -> String;

    /// Number of calls of [`Ledger::write_vectors`] that gain from being made at the same time; 1 where
    /// writes come one after the other.
    fn writers(&self) -> usize {
        1
    }

    /// Every space of the gallery, in the order of creation.
    fn spaces(&self) -> Result<Vec<SpaceRecord>>;

    /// Makes a space without vectors, in its first epoch. Making the very same space again is fine and
    /// changes nothing.
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

    /// The name of the space that searches go to; `None` in a gallery without spaces. The first space that is
    /// made serves.
    fn serving(&self) -> Result<Option<String>> {
        Ok(self.serving_and_document("")?.0)
    }

    /// Reads [`Ledger::serving`] and [`Ledger::document`] as they are at one moment: every search asks for
    /// both first.
    ///
    /// *Database*: one statement that joins the two rows; neither needs a transaction of its own.
    ///
    /// # Errors
    ///
    /// Where the gallery was taken out of a server meanwhile, an error that advises
    /// [`Remedy::AdoptTable`](rehang_core::Remedy::AdoptTable).
    fn serving_and_document(&self, document: &str) -> Result<(Option<String>, Option<Document>)>;

    /// Makes `to` the serving space if `from` is it now. One atomic step; a search before sees `from`, after
    /// it `to`.
    ///
    /// # Errors
    ///
    /// A conflict where another space serves (unless it is `to` already: then nothing is done), not found
    /// where `to` is no space of the gallery.
    fn switch_serving(&self, from: &str, to: &str) -> Result<()>;

    /// Writes items as an application does: all of them or, on an error, none. Gives the new revisions, in
    /// order.
    ///
    /// Each item gets a new revision and loses every vector that does not come with the write, recorded
    /// failures and leases. Where its source is the same, what was made from that stays: see [`ItemWrite`].
    /// Where an id is twice in one call, it is written twice, and the last write stays.
    ///
    /// # Errors
    ///
    /// Superseded where an adapted vector carries another epoch than its space's.
    fn put(&self, writes: &[ItemWrite]) -> Result<Vec<Revision>>;

    /// Deletes items with all their vectors, failures and leases, and gives how many existed; ids that do not
    /// exist are passed over.
    ///
    /// Native vectors may be kept for an item that [comes again](ItemWrite), where no reader finds them.
    fn delete(&self, ids: &[&str]) -> Result<usize>;

    /// Reads items by id, `None` where there is none, in order.
    fn get(&self, ids: &[&str]) -> Result<Vec<Option<Item>>>;

    /// Reads vectors of one space by key, `None` where there is none, in order.
    fn vectors(&self, space: &str, keys: &[ItemKey]) -> Result<Vec<Option<VectorRecord>>>;

    /// Reads the provenances of vectors of one space by key, `None` where there is none, in order. Reads no
    /// vectors.
    fn provenances(&self, space: &str, keys: &[ItemKey]) -> Result<Vec<Option<Provenance>>>;

    /// Writes vectors of the upgrade, each under the conditions of [`VectorWrite`], in one transaction. Gives
    /// the outcomes, in order.
    ///
    /// Adapted vectors need the epoch of their plan. Native ones need none: they are the new model's own
    /// words, whatever is planned. A native vector clears the item's failure in this space and ends its
    /// lease; an adapted one leaves both as they are. A write that is not applied is no error.
    ///
    /// *Database*: one `UPDATE … FROM (VALUES …)` with the conditions in its `WHERE`, which locks the rows it
    /// touches. The row of the space is read `FOR SHARE`, which [`Ledger::advance`] waits for.
    ///
    /// # Errors
    ///
    /// Superseded where the space is in another epoch: nothing is written then. An invalid option for an
    /// adapted vector without an epoch.
    fn write_vectors(
        &self,
        space: &str,
        epoch: Option<Epoch>,
        writes: &[VectorWrite],
    ) -> Result<Vec<WriteOutcome>>;

    /// Gives adapted vectors another place in the queue: `(key, revision, priority)`. Entries whose item is
    /// gone, has another revision or is no longer adapted are passed over. Gives how many were changed.
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

    /// Takes native vectors out of a space again, at most `limit`, of items with a source; gives how many it
    /// took out.
    ///
    /// The items lack a vector then, and wait in the queue. This is for vectors made by another encoder than
    /// the one that fills the space. What is kept of deleted items is forgotten, too.
    ///
    /// # Errors
    ///
    /// Superseded where the space is in another epoch: nothing is taken out then.
    fn forget_natives(&self, space: &str, epoch: Epoch, limit: usize) -> Result<usize>;

    /// Begins the next epoch of a space and replaces a document that names it, both in one transaction. Gives
    /// the document's new version.
    ///
    /// It happens if the space is in epoch `from`, and the document's version is `expected` (`None`: there is
    /// none). So a plan and its epoch never part, whenever the process dies.
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

    /// Reads a page of items: as many as were asked for, unless there are no more.
    fn scan(&self, scan: &Scan) -> Result<Vec<Record>>;

    /// Draws a uniform random sample that depends on the seed and the items' keys alone.
    ///
    /// It is the same for every caller, and as items come and go, the others keep their places in the
    /// shuffle.
    ///
    /// *Database*: `ORDER BY` a hash of key and seed, `LIMIT size`, with a count beside it; any uniform hash
    /// will do. It is one pass over an index of keys on the server, and a look-up where an index on the hash
    /// of a fixed seed is kept.
    fn sample(&self, sample: &Sample) -> Result<Drawn>;

    /// The newest revision of all items, 0 without any.
    ///
    /// *Database*: `max(revision)`. A transaction that is still running may commit a smaller number later;
    /// callers take it as a hint.
    fn newest_revision(&self) -> Result<Revision>;

    /// How many items and vectors a space has.
    ///
    /// *Database*: counted from partial indexes, or kept by triggers. It is asked every few seconds at most,
    /// and a number that is a moment old does no harm.
    fn counts(&self, space: &str) -> Result<Counts>;

    /// Number of items of the gallery without a source.
    fn count_without_source(&self) -> Result<u64>;

    /// Number of items that lack a vector in `space` and have one in `behind`.
    fn count_lag(&self, space: &str, behind: &str) -> Result<u64>;

    /// Leases the next items of the queue to a worker: at most `limit`, none that any worker holds, this one
    /// included.
    ///
    /// A lease that has run out holds nothing. It counts as [lost](Claimed::lost) on the next claim of its
    /// item, until a lease of the item ends otherwise.
    ///
    /// A lease ends with a native vector of the item, a recorded failure, an application's write of another
    /// source, a deletion, and with [`Ledger::release`]. It says who works on what, so that nothing is paid
    /// for twice; whether a write is right never depends on it. Leases are by the ledger's own clock.
    ///
    /// *Database*: claims of one space take turns at a lock (of a row of ours, in PostgreSQL), each reads the
    /// queue's index, and the leases are written in the same transaction. The clock is the server's `now()`.
    /// `FOR UPDATE SKIP LOCKED` is not enough: a worker that read before another one's lease was committed
    /// may lock the row after it, and take the item too.
    fn claim(
        &self,
        space: &str,
        queue: Queue,
        worker: &str,
        limit: usize,
        lease: Duration,
    ) -> Result<Claimed>;

    /// Renews all leases of a worker, and gives how many it holds: each now lasts `lease` from this moment.
    /// For encoders that are slower than a lease.
    fn renew(&self, space: &str, worker: &str, lease: Duration) -> Result<u64>;

    /// Gives back items that a worker holds, or with `None` all that it holds, and returns their number.
    /// Items that it does not hold are passed over.
    fn release(&self, space: &str, worker: &str, keys: Option<&[ItemKey]>) -> Result<u64>;

    /// Workers that hold items of a space, by name; leases that have run out do not count.
    fn at_work(&self, space: &str) -> Result<Vec<AtWork>>;

    /// Records that items could not be embedded `(key, source revision, reason)`; the backfill leaves them
    /// out from then on.
    ///
    /// Entries whose item is gone, has another source revision, or has a native (or old) vector in the space
    /// are passed over. Another worker may have made the vector while this one gave it up.
    fn record_failures(&self, space: &str, failures: &[(ItemKey, Revision, String)]) -> Result<()>;

    /// Reads recorded failures by key, after a key, at most `limit`.
    fn failures(&self, space: &str, after: Option<ItemKey>, limit: usize) -> Result<Vec<Failure>>;

    /// Forgets all failures of a space, so that the backfill tries those items again. Gives how many there
    /// were.
    fn clear_failures(&self, space: &str) -> Result<u64>;

    /// `(σ², squared error)` of the native vectors that took an adapted one's place last, newest first, at
    /// most `limit`.
    ///
    /// *Database*: by the time of the write. The errors feed a health figure, so an order that is right but
    /// for running transactions is right enough.
    fn errors(&self, space: &str, limit: usize) -> Result<Vec<(f32, f32)>>;

    /// Reads a small document by name, with its version; `None` where there is none.
    fn document(&self, name: &str) -> Result<Option<Document>> {
        Ok(self.serving_and_document(name)?.1)
    }

    /// Replaces a document if its version is still `expected` (`None`: if there is none). Gives the new
    /// version, which is larger.
    ///
    /// # Errors
    ///
    /// A conflict where another process was faster.
    fn set_document(&self, name: &str, expected: Option<u64>, text: &str) -> Result<u64>;

    /// Reads a part of a [file](crate::Files) by name; `None` where there is none. Nobody but
    /// [`Files`](crate::Files) asks for one.
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

    /// Writes a part of a [file](crate::Files), of 180 KiB at most and not empty, or takes it away (`None`).
    /// Only one process writes a part of this name.
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

    /// Keeps a [bridge](rehang_core::Bridge), with its fingerprint, for searches that an application makes in the
    /// ledger's own language, past [`Index::search`].
    ///
    /// Takes away all other bridges but the one whose fingerprint the document `upgrade` has. The searches
    /// use the bridge that the document names, as long as it is here, so one that lies here unnamed does
    /// nothing. Keeping one that is kept already costs nothing.
    ///
    /// A ledger without such searches has nothing to do.
    ///
    /// # Errors
    ///
    /// Those of the store.
    fn keep_bridge(&self, _kept: Option<(&str, &Bridge)>) -> Result<()> {
        Ok(())
    }

    /// Keeps the map of an adapter, with its fingerprint, by which the ledger itself adapts items that an
    /// application writes past the library.
    ///
    /// These are items with an old vector alone. The ledger adapts them in that very write, as long as the
    /// space is in this epoch. With `None`, or by a map of another kind, such items lack a vector until
    /// somebody catches up with them. An epoch that is over changes nothing. Keeping a map that is kept
    /// already costs nothing.
    ///
    /// Gives why the ledger does not adapt by this map, where it does by others; one that never does has
    /// nothing to do.
    ///
    /// # Errors
    ///
    /// Not found where there is no such space; those of the store.
    fn keep_map(&self, _space: &str, _kept: Option<(Epoch, &str, &Adapter)>) -> Result<Option<String>> {
        Ok(None)
    }
}

/// Search for the nearest neighbours in one space. An index is derived from a [`Ledger`]: it may be lost at
/// any time and is made again.
///
/// # What an index promises
///
/// - **Fresh.** A search sees every write that returned before it began, of any process. An index on another
///   machine that lags confirms its candidates with the ledger and says in its documentation how far it may
///   lag behind with new vectors.
/// - **Tagged.** A hit has the provenance of the vector that was found, and its item's revision.
/// - **Placed.** A search passes over vectors that [cannot be placed](rehang_core::Distance::can_place), which an
///   application may hold or have written around the library: with NaN or infinite numbers, or of length 0
///   where the distance is cosine. They are near to nothing.
///
/// An index does not promise that approximate searches find every neighbour (but see [`Index::recall`]).
///
/// # Errors
///
/// As for a [`Ledger`].
#[allow(clippy::missing_errors_doc, reason = "what every method has in common is said once, above")]
pub trait Index: Send + Sync {
    /// Finds the `k` nearest vectors of a space to each query `[n, d]`, nearest first, ties by key.
    fn search(&self, space: &str, queries: &Matrix, k: usize, filter: &Filter) -> Result<Vec<Vec<Found>>>;

    /// Searches as [`Index::search`] does, with `handicap`, which is not below 0, added to every distance to
    /// an adapted vector.
    ///
    /// A store that can ask for adapted and other vectors at once does so.
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
        let (adapted, other_provenances) = filter.adapted_and_others();
        // The adapted ones first: an item that becomes native between the two searches is found by both, and
        // never by neither.
        let adapted = nearest(adapted)?;
        let other_hits = nearest(other_provenances)?;
        let merge = |(adapted, mut hits): (Vec<Found>, Vec<Found>)| {
            let native: BTreeSet<_> = hits.iter().map(|hit| hit.key).collect();
            let farther = |hit: Found| Found { distance: hit.distance + handicap as f32, ..hit };
            hits.extend(adapted.into_iter().filter(|hit| !native.contains(&hit.key)).map(farther));
            hits.sort_by(|a, b| a.distance.total_cmp(&b.distance).then(a.key.cmp(&b.key)));
            hits.truncate(k);
            hits
        };
        Ok(adapted.into_iter().zip(other_hits).map(merge).collect())
    }

    /// Searches both spaces of an upgrade for the `k` nearest items to each query: native vectors by the new
    /// query alone, all others by [`Fusion::distance`]. `queries` are the same ones by the old and by the new
    /// model.
    ///
    /// `None` where the store has no search of its own for this filter: the caller then asks both spaces for
    /// candidates and puts them together.
    ///
    /// # Errors
    ///
    /// A mismatch of widths; those of the store.
    fn search_fused(
        &self,
        _spaces: &FusedSpaces<'_>,
        _queries: (&Matrix, &Matrix),
        _k: usize,
        _filter: &Filter,
    ) -> Result<Option<Vec<Vec<Found>>>> {
        Ok(None)
    }

    /// Share of the true `k` nearest neighbours that [`Index::search`] finds, over `samples` stored vectors
    /// as queries (the vector itself counts); 1 for exact indexes. Read-only.
    fn recall(&self, space: &str, samples: usize, k: usize) -> Result<f64>;

    /// Whether searches of a space are as fast as they can be: no index has to be made for them first. The
    /// call reads little, and makes nothing.
    fn is_ready(&self, space: &str) -> Result<bool>;

    /// Makes a space [ready](Index::is_ready), if it is not, and its index durable. `advance` is told
    /// `(done, total)` vectors now and then, and ends the work where it gives `false`: cancelled then.
    fn prepare(&self, space: &str, advance: &dyn Fn(u64, u64) -> bool) -> Result<()>;

    /// Makes the index of a space again from the ledger.
    fn rebuild(&self, space: &str) -> Result<()>;

    /// Makes all indexes durable, so that the next process need not make them again.
    fn flush(&self) -> Result<()>;
}

/// Gallery that is written and searched: truth and index in one.
///
/// Functions that never search take a [`Ledger`].
pub trait Store: Ledger + Index {}

impl<T: Ledger + Index> Store for T {}

/// Looks up a space of a gallery by name; `None` where there is none.
///
/// # Errors
///
/// Those of [`Ledger::spaces`].
pub fn find_space(ledger: &dyn Ledger, name: &str) -> Result<Option<SpaceRecord>> {
    Ok(ledger.spaces()?.into_iter().find(|record| record.space.name == name))
}
