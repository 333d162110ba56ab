//! The store that other crates see: each of its methods calls the function that does the work.

use std::sync::Arc;
use std::time::Duration;

use rehang_core::{Matrix, Provenance, Result, Space};
use rehang_store::{
    AtWork, Claimed, Counts, Document, Drawn, Epoch, Examined, Failure, Filter, Found, Index, IndexHealth,
    Item, ItemKey, ItemWrite, LeaseClock, Ledger, Priority, Problem, Queue, Record, Released, Revision,
    Sample, Scan, SpaceRecord, TableFindings, VectorRecord, VectorWrite, WriteOutcome,
};

use crate::address::QdrantAddress;
use crate::collection::CollectionOptions;
use crate::handle::Handle;
use crate::{adoption, chunks, claims, doctor, items, meta, pages, release, search, spaces, vectors};

/// Gallery in a collection of Qdrant, for any number of threads, processes and machines at once. A clone is
/// another handle on the same gallery.
///
/// The application's points stay as they are, except for two payload fields, `rehang` and `rehang_tag`, and
/// the named vectors of the spaces that are made. Everything else of the gallery is in a collection beside
/// it: see `docs/qdrant.md`.
#[derive(Debug, Clone)]
pub struct QdrantStore(Arc<Handle>);

impl QdrantStore {
    /// Looks at a collection, and whether it can be a gallery. Writes nothing.
    ///
    /// # Errors
    ///
    /// Unavailable and unauthorised where the server cannot be reached or refuses. Not found and invalid
    /// options where the collection or the server lacks what a gallery needs.
    pub fn inspect(address: &QdrantAddress, options: &CollectionOptions) -> Result<TableFindings> {
        adoption::inspect(address, options)
    }

    /// Makes a gallery of a collection. It makes the gallery's own collection beside it and indexes on two
    /// payload fields. It puts these fields into every point, which makes the point an item. The collection
    /// may be written and read meanwhile. `old` is the name of the space of the application's own vectors.
    /// `advance` is told `(done, total)` points, and ends the work where it returns `false`. Where a process
    /// died, the next call goes on; where all is done, it changes nothing.
    ///
    /// # Errors
    ///
    /// As [`QdrantStore::inspect`]; a conflict where the collection is a gallery by other options, or one
    /// whose release has begun; cancelled.
    pub fn adopt(
        address: &QdrantAddress,
        options: &CollectionOptions,
        old: Option<&str>,
        advance: &dyn Fn(u64, u64) -> bool,
    ) -> Result<Self> {
        adoption::adopt(address, options, old, advance).map(Self::from_handle)
    }

    /// Opens a gallery that was [made](QdrantStore::adopt) of a collection. `old` is the name of the space of
    /// the application's vectors. A gallery whose [release](QdrantStore::release) has begun opens too, so
    /// that the release can come to its end.
    ///
    /// # Errors
    ///
    /// As [`QdrantStore::inspect`]; not found where the collection is no gallery yet; a conflict where it
    /// is one by other options.
    pub fn open(address: &QdrantAddress, options: &CollectionOptions, old: Option<&str>) -> Result<Self> {
        adoption::open(address, options, old).map(Self::from_handle)
    }

    fn from_handle(handle: Handle) -> Self {
        Self(Arc::new(handle))
    }

    /// Opens the gallery again with leases by another clock: for tests. All processes that share a gallery
    /// need clocks that agree to a second.
    ///
    /// # Errors
    ///
    /// As [`QdrantStore::open`].
    pub fn with_clock(self, clock: Arc<dyn LeaseClock>, address: &QdrantAddress) -> Result<Self> {
        let (handle, _) = adoption::look_up_gallery(address, &self.0.options, self.0.old.as_deref())?;
        Ok(Self(Arc::new(Handle { clock, ..handle })))
    }

    /// Takes everything of the gallery out of the server again. It removes the two fields of every point with
    /// their indexes, the gallery's own collection, and the named vectors of all spaces that were made,
    /// except the one that serves. Where a process died, the next call goes on. Until then all other calls on
    /// the gallery are refused.
    ///
    /// Items without a source whose vectors are adapted are left without a vector. `with_adapted` leaves all
    /// adapted vectors there, and the payload field `rehang_adapted`, true, in the points that have one.
    ///
    /// # Errors
    ///
    /// A conflict where items with a source have adapted vectors in the space that serves and these are
    /// not to be taken along.
    pub fn release(&self, with_adapted: bool) -> Result<Released> {
        release::release(&self.0, with_adapted)
    }
}

/// Defines methods of a contract that call the functions which do their work, with the
/// gallery as first argument.
macro_rules! passed_on {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $out:ty => $work:path;)*) => {
        $(fn $name(&self, $($argument: $kind),*) -> Result<$out> {
            $work(&self.0, $($argument),*)
        })*
    };
}

impl Ledger for QdrantStore {
    passed_on! {
        spaces() -> Vec<SpaceRecord> => spaces::records;
        create_space(space: &Space, written_as: Provenance) -> () => spaces::create;
        drop_space(space: &str) -> () => spaces::drop_space;
        serving_and_document(document: &str) -> (Option<String>, Option<Document>) => spaces::serving_and_document;
        switch_serving(from: &str, to: &str) -> () => spaces::switch_serving;
        put(writes: &[ItemWrite]) -> Vec<Revision> => items::put;
        delete(ids: &[&str]) -> usize => items::delete;
        get(ids: &[&str]) -> Vec<Option<Item>> => items::get;
        vectors(space: &str, keys: &[ItemKey]) -> Vec<Option<VectorRecord>> => vectors::get;
        provenances(space: &str, keys: &[ItemKey]) -> Vec<Option<Provenance>> => vectors::provenances;
        write_vectors(space: &str, epoch: Option<Epoch>, writes: &[VectorWrite]) -> Vec<WriteOutcome> => vectors::write;
        set_priorities(space: &str, epoch: Epoch, priorities: &[(ItemKey, Revision, Priority)]) -> usize
            => vectors::set_priorities;
        forget_natives(space: &str, epoch: Epoch, limit: usize) -> usize => vectors::forget_natives;
        advance(space: &str, from: Epoch, document: &str, expected: Option<u64>, text: &str) -> u64 => spaces::advance;
        scan(scan: &Scan) -> Vec<Record> => pages::scan;
        sample(sample: &Sample) -> Drawn => pages::sample;
        newest_revision() -> Revision => items::newest_revision;
        counts(space: &str) -> Counts => vectors::counts;
        count_without_source() -> u64 => items::count_without_source;
        count_lag(space: &str, behind: &str) -> u64 => vectors::count_lag;
        claim(space: &str, queue: Queue, worker: &str, limit: usize, lease: Duration) -> Claimed => claims::claim;
        renew(space: &str, worker: &str, lease: Duration) -> u64 => claims::renew;
        release(space: &str, worker: &str, keys: Option<&[ItemKey]>) -> u64 => claims::release;
        at_work(space: &str) -> Vec<AtWork> => claims::at_work;
        record_failures(space: &str, failures: &[(ItemKey, Revision, String)]) -> () => vectors::record_failures;
        failures(space: &str, after: Option<ItemKey>, limit: usize) -> Vec<Failure> => vectors::failures;
        clear_failures(space: &str) -> u64 => vectors::clear_failures;
        errors(space: &str, limit: usize) -> Vec<(f32, f32)> => vectors::errors;
        set_document(name: &str, expected: Option<u64>, text: &str) -> u64 => spaces::set_document;
        chunk(name: &str) -> Option<Vec<u8>> => chunks::chunk;
        set_chunk(name: &str, bytes: Option<&[u8]>) -> () => chunks::set_chunk;
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
        // Acknowledged writes are in the server's log already.
        Ok(())
    }
}

impl Examined for QdrantStore {
    fn check(&self) -> Result<Vec<Problem>> {
        doctor::check(&self.0)
    }

    fn index_health(&self, space: &str) -> Result<IndexHealth> {
        doctor::index_health(&self.0, space)
    }
}
