//! The gallery in a collection: opening it, making it one, and taking everything of ours out again.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rehang::{Distance, Error, ErrorKind, Matrix, Provenance, Remedy, Result, Space};
use rehang_store::{
    AtWork, Claimed, Counts, Document, Drawn, Epoch, Examined, Failure, Filter, Found, Index, IndexHealth,
    IndexKind, Item, ItemKey, ItemWrite, LeaseClock, Ledger, Looked, Priority, Problem, Queue, Record,
    Revision, Sample, Scan, SpaceRecord, SystemLeaseClock, VectorRecord, VectorWrite, WriteOutcome, check,
};
use serde_json::{Value, json};

use crate::address::QdrantAddress;
use crate::client::{Client, With};
use crate::collection::{self, CollectionOptions, Facts};
use crate::meta::{self, Meta, SpaceSlot};
use crate::points::{REVISION, TAG, all_of, is_empty, none_of};
use crate::tokens::Tokens;
use crate::{items, queue, search, vectors};

/// Fields of ours that filters ask for, with the kind of their index.
const FIELDS: [(&str, &str); 2] = [(REVISION, "integer"), ("rehang_tag.n", "bool")];
const FIELDS_OF_A_SPACE: [(&str, &str); 6] =
    [("p", "keyword"), ("q", "float"), ("b", "integer"), ("t", "integer"), ("f", "keyword"), ("v", "float")];
/// The same of the leases.
const FIELDS_OF_A_LEASE: [(&str, &str); 2] = [("slot", "integer"), ("worker", "keyword")];

/// A gallery that lies in a collection of Qdrant, for any number of threads, processes and machines at once. A clone is another handle
/// on the same gallery.
///
/// The application's points stay as they are, but for two payload fields, `rehang` and `rehang_tag`, and the named vectors of the spaces that are made;
/// everything else of ours is in a collection beside it: see `docs/qdrant.md`.
#[derive(Debug, Clone)]
pub struct QdrantStore(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) client: Client,
    pub(crate) options: CollectionOptions,
    /// The collection of ours.
    pub(crate) ours: String,
    /// The name that the space of the application's own vectors has or will have.
    old: Option<String>,
    pub(crate) clock: Arc<dyn LeaseClock>,
    pub(crate) tokens: Tokens,
}

impl Inner {
    /// What the gallery is, for people.
    pub(crate) fn name(&self) -> String {
        format!("{}, collection {}", self.client.name(), self.options.collection)
    }

    /// The application's collection.
    pub(crate) fn collection(&self) -> &str {
        &self.options.collection
    }

    pub(crate) fn facts(&self) -> Result<Facts> {
        collection::facts(&self.client, &self.options)
    }

    /// What has to come along for an item, with vectors of some spaces.
    pub(crate) fn with<'a>(&self, spaces: impl IntoIterator<Item = &'a SpaceSlot>) -> With {
        let payload = match &self.options.payload {
            None => Value::Bool(true),
            Some(payload) => {
                let given = [self.options.source.as_deref(), self.options.label.as_deref(), Some(payload)];
                json!(given.into_iter().flatten().chain([REVISION, TAG]).collect::<Vec<_>>())
            }
        };
        With { payload, vectors: spaces.into_iter().map(|space| space.vector.clone()).collect() }
    }

    /// The tag alone.
    pub(crate) fn tag<'a>(&self, spaces: impl IntoIterator<Item = &'a SpaceSlot>) -> With {
        With { payload: json!([REVISION, TAG]), ..self.with(spaces) }
    }

    fn index(&self, collection: &str, field: &str, kind: &str) -> Result<()> {
        let body = json!({"field_name": field, "field_schema": kind});
        self.client.ask("PUT", &format!("/collections/{collection}/index?wait=true"), &body).map(drop)
    }

    fn vector_path(&self, vector: &str) -> String {
        format!("/collections/{}/vectors/{}?wait=true", self.collection(), escaped(vector))
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QdrantStore").field(&self.name()).finish()
    }
}

impl QdrantStore {
    /// Looks at a collection, and whether it can be a gallery. Writes nothing.
    ///
    /// # Errors
    ///
    /// Unavailable and unauthorised where the server cannot be reached or refuses; not found and invalid options that say what a
    /// gallery needs and the collection or the server lacks.
    pub fn inspect(address: &QdrantAddress, options: &CollectionOptions) -> Result<Looked> {
        options.check()?;
        let client = Client::new(address)?;
        collection::expect_server(&client)?;
        let Facts { vectors, .. } = collection::facts(&client, options)?;
        let with = With { payload: Value::Bool(true), vectors: Vec::new() };
        let mut texts: Vec<String> = Vec::new();
        for point in client.scroll(&options.collection, &Value::Null, None, 32, &with)? {
            for (name, value) in point.payload {
                if value.is_string() && !texts.contains(&name) {
                    texts.push(name);
                }
            }
        }
        let named = vectors.iter().find(|(name, ..)| options.vector.as_ref() == Some(name));
        let dimension = named.map(|(_, width, _)| *width);
        let vectors = vectors.into_iter().map(|(name, ..)| name).collect();
        Ok(Looked { dimension, id: Vec::new(), texts, vectors })
    }

    /// Makes a gallery of a collection: a collection of ours beside it, indexes on two payload fields, and these in every
    /// point, which makes it an item. The collection may be written and read meanwhile. `old` is the name of the space of the
    /// application's own vectors. `advance` is told `(done, total)` points, and ends the work where it gives `false`. Where a process
    /// died, the next call goes on; where all is done, it changes nothing.
    ///
    /// # Errors
    ///
    /// As [`QdrantStore::inspect`]; a conflict where the collection is a gallery by other options, or one whose release has begun;
    /// cancelled.
    pub fn adopt(
        address: &QdrantAddress,
        options: &CollectionOptions,
        old: Option<&str>,
        advance: &dyn Fn(u64, u64) -> bool,
    ) -> Result<Self> {
        let inner = Self::inner(address, options, old)?;
        let total = inner.facts()?.points;
        if collection::look(&inner.client, &inner.ours)?.is_none() {
            let made =
                inner.client.ask("PUT", &format!("/collections/{}", inner.ours), &json!({"vectors": {}}));
            // Of two that adopt at once, or of a request that was sent twice, one comes second.
            if let Err(error) = made
                && collection::look(&inner.client, &inner.ours)?.is_none()
            {
                return Err(error);
            }
        }
        for (field, kind) in FIELDS_OF_A_LEASE {
            inner.index(&inner.ours, field, kind)?;
        }
        meta::change(&inner, |meta| {
            match &meta.options {
                Some(known) => expect_options(known, options)?,
                None => meta.options = Some(options.clone()),
            }
            Ok(())
        })?;
        for (field, kind) in FIELDS {
            inner.index(inner.collection(), field, kind)?;
        }
        let store = Self(Arc::new(inner));
        let unlisted = items::sweep(&store.0, &mut |done| advance(done, total.max(done)))?;
        if unlisted > 0 {
            let why = "ids that are numbers, or UUIDs whose first half is not zero: others would be taken for numbers";
            return Err(Error::option(store.0.name(), format!("{unlisted} points with other ids"), why));
        }
        meta::change(&store.0, |meta| {
            meta.is_listed = true;
            Ok(())
        })?;
        Ok(store)
    }

    /// Opens a gallery that was [made](QdrantStore::adopt) of a collection. `old` is the name of the space of the application's vectors.
    /// One whose [release](QdrantStore::release) has begun opens too, so that it can come to its end.
    ///
    /// # Errors
    ///
    /// As [`QdrantStore::inspect`]; not found where the collection is no gallery yet; a conflict where it is one by other options.
    pub fn open(address: &QdrantAddress, options: &CollectionOptions, old: Option<&str>) -> Result<Self> {
        let inner = Self::inner(address, options, old)?;
        let not_yet = || {
            Error::not_found("gallery", &options.collection, inner.client.name()).advise(Remedy::AdoptTable)
        };
        if collection::look(&inner.client, &inner.ours)?.is_none() {
            return Err(not_yet());
        }
        let meta = meta::read_any(&inner)?;
        expect_options(meta.options.as_ref().ok_or_else(not_yet)?, options)?;
        if !meta.is_listed && !meta.is_leaving() {
            let what = format!("the gallery in collection {}", options.collection);
            return Err(Error::wrong_phase(what, "not whole yet").advise(Remedy::AdoptTable));
        }
        Ok(Self(Arc::new(inner)))
    }

    /// The same gallery, with leases by another clock: for tests. All processes that share a gallery need clocks that agree to a second.
    ///
    /// # Errors
    ///
    /// As [`QdrantStore::open`].
    pub fn with_clock(self, clock: Arc<dyn LeaseClock>, address: &QdrantAddress) -> Result<Self> {
        let inner = Self::inner(address, &self.0.options, self.0.old.as_deref())?;
        Ok(Self(Arc::new(Inner { clock, ..inner })))
    }

    fn inner(address: &QdrantAddress, options: &CollectionOptions, old: Option<&str>) -> Result<Inner> {
        options.check()?;
        let client = Client::new(address)?;
        collection::expect_server(&client)?;
        collection::facts(&client, options)?;
        Ok(Inner {
            client,
            options: options.clone(),
            ours: options.ours(),
            old: old.map(str::to_owned).filter(|_| options.vector.is_some()),
            clock: Arc::new(SystemLeaseClock),
            tokens: Tokens::new(),
        })
    }

    /// Takes everything of ours out of the server again: the two fields of every point with their indexes, the collection beside the
    /// application's, and the named vectors of all spaces that were made, but for the one that serves. Where a process died, the
    /// next call goes on; until then all other calls on the gallery are refused.
    ///
    /// # Errors
    ///
    /// A conflict where adapted vectors are in the space that serves, since nothing would say so any more.
    pub fn release(&self) -> Result<()> {
        let inner = &*self.0;
        let meta = meta::read_any(inner)?;
        if let Some(serving) = meta.serving.as_ref().filter(|_| !meta.is_leaving()) {
            let counts = vectors::counts(inner, serving)?;
            if counts.adapted > 0 {
                let what = format!("taking the gallery out of {}", inner.name());
                let why = format!(
                    "{} vectors of {serving:?} are adapted, and nothing would say so; embed them first, or switch back",
                    counts.adapted
                );
                return Err(Error::conflict(what, why));
            }
        }
        let meta = meta::leave(inner)?;
        let stays = |space: &SpaceSlot| meta.serving.as_ref() == Some(&space.record.space.name);
        for space in meta.spaces.iter().filter(|space| !stays(space)).chain(&meta.dropped) {
            if !space.is_applications {
                inner.client.ask("DELETE", &inner.vector_path(&space.vector), &Value::Null)?;
            }
        }
        let tagged = json!({"should": [none_of([is_empty(TAG)]), none_of([is_empty(REVISION)])]});
        let untag = [json!({"delete_payload": {"keys": [REVISION, TAG], "filter": tagged}})];
        inner.client.change(inner.collection(), &untag)?;
        let there = collection::look(&inner.client, inner.collection())?.unwrap_or_default();
        for field in there["payload_schema"].as_object().into_iter().flat_map(|schema| schema.keys()) {
            if *field == REVISION || field.starts_with("rehang_tag.") {
                let path = format!("/collections/{}/index/{field}?wait=true", inner.collection());
                inner.client.ask("DELETE", &path, &Value::Null)?;
            }
        }
        inner.client.ask("DELETE", &format!("/collections/{}", inner.ours), &Value::Null)?;
        // What a call that was under way has tagged since.
        inner.client.change(inner.collection(), &untag)
    }
}

/// A gallery is what it was made as: other fields would make other items of the same points.
fn expect_options(known: &CollectionOptions, options: &CollectionOptions) -> Result<()> {
    if known == options {
        return Ok(());
    }
    let words = |options: &CollectionOptions| serde_json::to_string(options).unwrap_or_default();
    Err(Error::conflict(
        format!("the gallery in collection {}", options.collection),
        format!(
            "it was made with {}, and not with {}; configure it as it was, or release it and make it anew",
            words(known),
            words(options)
        ),
    ))
}

/// A name as a part of a path.
fn escaped(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    name.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

fn create_space(inner: &Inner, space: &Space, written_as: Provenance) -> Result<()> {
    check::new_space(space, written_as)?;
    let conflict = |why: String| Error::conflict(format!("space {:?}", space.name), why);
    let own = inner.options.vector.clone().filter(|_| inner.old.as_ref() == Some(&space.name));
    let is_applications = own.is_some();
    // No slash may be in the name of a vector.
    let vector = own.unwrap_or_else(|| space.name.replace(['/', '\\'], "_"));
    let is_there = |meta: &Meta| {
        if let Some(there) = meta.spaces.iter().find(|there| there.record.space.name == space.name) {
            return check::same_space(&there.record, space, written_as).map(|()| true);
        }
        match meta.spaces.iter().find(|there| there.vector == vector) {
            Some(other) => {
                Err(conflict(format!("its vectors would be those of space {:?}", other.record.space.name)))
            }
            None => Ok(false),
        }
    };
    if is_there(&meta::read(inner)?)? {
        return Ok(());
    }
    let found = inner.facts()?.vectors.into_iter().find(|(name, ..)| *name == vector);
    // Points with a vector where the new ones are to lie: it is of a space that was dropped, or not ours to write over.
    let filled = if found.is_some() && !is_applications {
        inner.client.count(inner.collection(), &all_of([json!({"has_vector": vector})]))?
    } else {
        0
    };
    match found {
        Some((_, size, distance)) if (size, distance) == (space.dimension, space.distance) => {}
        Some((_, size, distance)) => {
            return Err(conflict(format!(
                "the collection's vector {vector:?} is {size}-d, {distance}; the space is {space}"
            )));
        }
        None => {
            let distance = match space.distance {
                Distance::L2 => "Euclid",
                Distance::Cosine => "Cosine",
                Distance::Dot => "Dot",
            };
            let body = json!({"dense": {"size": space.dimension, "distance": distance}});
            inner.client.ask("PUT", &inner.vector_path(&vector), &body)?;
        }
    }
    let slot = meta::change(inner, |meta| {
        if is_there(meta)? {
            return Ok(None);
        }
        let was_ours = meta.dropped.iter().any(|other| !other.is_applications && other.vector == vector);
        if filled > 0 && !was_ours {
            return Err(conflict(format!(
                "{filled} points have a vector {vector:?} that is not of the gallery, and what is in it would be lost; \
                 delete that vector, or give the new space another name"
            )));
        }
        meta.slots += 1;
        Ok(Some(meta.slots))
    })?;
    let Some(slot) = slot else { return Ok(()) };
    let record = SpaceRecord { space: space.clone(), written_as, epoch: Epoch::FIRST };
    let new = SpaceSlot { record, slot, vector: vector.clone(), is_applications };
    for (field, kind) in FIELDS_OF_A_SPACE {
        inner.index(inner.collection(), &new.path(field), kind)?;
    }
    meta::change(inner, |meta| {
        if is_there(meta)? {
            return Ok(());
        }
        meta.dropped.retain(|other| other.vector != vector);
        meta.spaces.push(new.clone());
        meta.serving.get_or_insert_with(|| space.name.clone());
        Ok(())
    })
}

/// Drops a space, and ends what one before has left that died.
fn drop_space(inner: &Inner, space: &str) -> Result<()> {
    let is_it = |there: &SpaceSlot| there.record.space.name == space;
    let dropped = meta::change(inner, |meta| {
        if meta.serving.as_deref() == Some(space) {
            return Err(check::serving_space_stays(space));
        }
        meta.dropped.extend(meta.spaces.extract_if(.., |there| is_it(there)));
        Ok(meta.dropped.iter().filter(|there| is_it(there)).cloned().collect::<Vec<_>>())
    })?;
    if dropped.is_empty() {
        return Ok(());
    }
    for dropped in &dropped {
        // The application's own vectors are its own to drop.
        if !dropped.is_applications {
            inner.client.ask("DELETE", &inner.vector_path(&dropped.vector), &Value::Null)?;
        }
        for (field, _) in FIELDS_OF_A_SPACE {
            let path = format!("/collections/{}/index/{}?wait=true", inner.collection(), dropped.path(field));
            inner.client.ask("DELETE", &path, &Value::Null)?;
        }
        let tag = format!("{TAG}.{}", dropped.field());
        let said = none_of([is_empty(&tag)]);
        let untag = json!({"delete_payload": {"keys": [tag], "filter": said}});
        inner.client.change(inner.collection(), &[untag])?;
        queue::forget_space(inner, dropped)?;
    }
    meta::change(inner, |meta| {
        meta.dropped.retain(|other| !dropped.contains(other));
        Ok(())
    })
}

fn switch_serving(inner: &Inner, from: &str, to: &str) -> Result<()> {
    meta::change(inner, |meta| {
        meta.find(to, &inner.name())?;
        let serving = meta.serving.clone().unwrap_or_default();
        if serving == to {
            return Ok(());
        }
        if serving != from {
            return Err(check::another_serves(from, to, &serving));
        }
        meta.serving = Some(to.to_owned());
        Ok(())
    })
}

fn advance(
    inner: &Inner,
    space: &str,
    from: Epoch,
    document: &str,
    expected: Option<u64>,
    text: &str,
) -> Result<u64> {
    meta::change(inner, |meta| {
        let name = inner.name();
        let now = meta.find(space, &name)?.record.epoch;
        check::same_epoch(space, from, now)?;
        let version = meta.set_document(document, expected, text)?;
        meta.find_mut(space, &name)?.record.epoch = from.next();
        Ok(version)
    })
}

fn set_document(inner: &Inner, name: &str, expected: Option<u64>, text: &str) -> Result<u64> {
    meta::change(inner, |meta| meta.set_document(name, expected, text))
}

fn serving_and_document(inner: &Inner, document: &str) -> Result<(Option<String>, Option<Document>)> {
    let mut meta = meta::read(inner)?;
    Ok((meta.serving, meta.documents.remove(document)))
}

fn records(inner: &Inner) -> Result<Vec<SpaceRecord>> {
    Ok(meta::read(inner)?.spaces.into_iter().map(|space| space.record).collect())
}

/// Passes methods of a contract on to the functions that do their work, which take the gallery first.
macro_rules! passed_on {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $out:ty => $work:path;)*) => {
        $(fn $name(&self, $($argument: $kind),*) -> Result<$out> {
            $work(&self.0, $($argument),*)
        })*
    };
}

impl Ledger for QdrantStore {
    passed_on! {
        spaces() -> Vec<SpaceRecord> => records;
        create_space(space: &Space, written_as: Provenance) -> () => create_space;
        drop_space(space: &str) -> () => drop_space;
        serving_and_document(document: &str) -> (Option<String>, Option<Document>) => serving_and_document;
        switch_serving(from: &str, to: &str) -> () => switch_serving;
        put(writes: &[ItemWrite]) -> Vec<Revision> => items::put;
        delete(ids: &[&str]) -> usize => items::delete;
        get(ids: &[&str]) -> Vec<Option<Item>> => items::get;
        vectors(space: &str, keys: &[ItemKey]) -> Vec<Option<VectorRecord>> => vectors::get;
        provenances(space: &str, keys: &[ItemKey]) -> Vec<Option<Provenance>> => vectors::provenances;
        write_vectors(space: &str, epoch: Option<Epoch>, writes: &[VectorWrite]) -> Vec<WriteOutcome> => vectors::write;
        set_priorities(space: &str, epoch: Epoch, priorities: &[(ItemKey, Revision, Priority)]) -> usize
            => vectors::set_priorities;
        forget_natives(space: &str, epoch: Epoch, limit: usize) -> usize => vectors::forget_natives;
        advance(space: &str, from: Epoch, document: &str, expected: Option<u64>, text: &str) -> u64 => advance;
        scan(scan: &Scan) -> Vec<Record> => queue::scan;
        sample(sample: &Sample) -> Drawn => queue::sample;
        newest_revision() -> Revision => items::newest_revision;
        counts(space: &str) -> Counts => vectors::counts;
        count_without_source() -> u64 => items::count_without_source;
        count_lag(space: &str, behind: &str) -> u64 => vectors::count_lag;
        claim(space: &str, queue: Queue, worker: &str, limit: usize, lease: Duration) -> Claimed => queue::claim;
        renew(space: &str, worker: &str, lease: Duration) -> u64 => queue::renew;
        release(space: &str, worker: &str, keys: Option<&[ItemKey]>) -> u64 => queue::release;
        at_work(space: &str) -> Vec<AtWork> => queue::at_work;
        record_failures(space: &str, failures: &[(ItemKey, Revision, String)]) -> () => vectors::record_failures;
        failures(space: &str, after: Option<ItemKey>, limit: usize) -> Vec<Failure> => vectors::failures;
        clear_failures(space: &str) -> u64 => vectors::clear_failures;
        errors(space: &str, limit: usize) -> Vec<(f32, f32)> => vectors::errors;
        set_document(name: &str, expected: Option<u64>, text: &str) -> u64 => set_document;
    }

    fn name(&self) -> String {
        self.0.name()
    }
}

impl Index for QdrantStore {
    passed_on! {
        search(space: &str, queries: &Matrix, k: usize, filter: &Filter) -> Vec<Vec<Found>> => search::search;
        recall(space: &str, samples: usize, k: usize) -> f64 => search::recall;
        is_ready(space: &str) -> bool => search::is_ready;
        prepare(space: &str, advance: &dyn Fn(u64, u64) -> bool) -> () => search::prepare;
    }

    fn rebuild(&self, space: &str) -> Result<()> {
        // The server makes and mends its indexes by itself.
        meta::read(&self.0)?.find(space, &self.0.name()).map(drop)
    }

    fn flush(&self) -> Result<()> {
        // What the server has acknowledged is in its log.
        Ok(())
    }
}

impl Examined for QdrantStore {
    /// Points that wait to be listed are listed first.
    fn check(&self) -> Result<Vec<Problem>> {
        let inner = &*self.0;
        let meta = meta::read(inner)?;
        let unlisted = items::sweep(inner, &mut |_| true)?;
        let mut problems = Vec::new();
        let mut found = |space: Option<&str>, what: &str, count: u64| {
            if count > 0 {
                problems.push(Problem { space: space.map(str::to_owned), what: what.to_owned(), count });
            }
        };
        found(None, "points whose ids cannot be those of items", unlisted);
        let broken = json!({"must_not": [is_empty(REVISION), {"key": REVISION, "range": {"gte": 1}}]});
        found(
            None,
            "points whose field \"rehang\" is not of ours",
            inner.client.count(inner.collection(), &broken)?,
        );
        let there = inner.facts()?.vectors;
        for space in &meta.spaces {
            let name = Some(space.record.space.name.as_str());
            if !there.iter().any(|(vector, ..)| *vector == space.vector) {
                found(name, "its named vector is not in the collection", 1);
                continue;
            }
            let count = |filter: Value| inner.client.count(inner.collection(), &filter);
            let said = json!({"key": space.path("p"), "match": {"any": ["old", "adapted", "native"]}});
            let without = json!({"must": [said], "must_not": [space.has_vector()]});
            found(name, "items that are said to have a vector and have none", count(without)?);
            if !space.is_applications {
                let unsaid = json!({"must": [space.has_vector(), is_empty(&space.path("p"))]});
                found(
                    name,
                    "vectors that were not written through the gallery, and do not count",
                    count(unsaid)?,
                );
            }
        }
        Ok(problems)
    }

    /// The server counts the vectors of all spaces together.
    fn index_health(&self, space: &str) -> Result<IndexHealth> {
        let Counts { old, adapted, native, .. } = vectors::counts(&self.0, space)?;
        let (vectors, facts) = ((old + adapted + native) as usize, self.0.facts()?);
        let built = (facts.indexed as usize).min(vectors);
        let kind = if built == 0 { IndexKind::Exact } else { IndexKind::Graph };
        let waiting = if facts.is_green { 0 } else { vectors - built };
        Ok(IndexHealth { waiting, built, ..IndexHealth::new(kind, vectors) })
    }
}

/// Ends the work of a caller that asked to stop.
pub(crate) fn cancelled() -> Error {
    ErrorKind::Cancelled.into()
}
