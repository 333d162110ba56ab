//! The truth of the gallery, which another store keeps. A store that keeps it by itself answers each of these
//! questions; the documentation of `Ledger` says what each answer promises.

use std::time::Duration;

use rehang::store::{
    AtWork, Claimed, Counts, Document, Drawn, Epoch, Failure, Item, ItemKey, ItemWrite, Ledger, Priority,
    Queue, Record, Revision, Sample, Scan, SpaceRecord, VectorRecord, VectorWrite, WriteOutcome,
};
use rehang::{Provenance, Result, Space};

use super::OwnStore;

macro_rules! passed_on {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $out:ty;)*) => {
        $(fn $name(&self, $($argument: $kind),*) -> $out { self.0.$name($($argument),*) })*
    };
}

impl<L: Ledger> Ledger for OwnStore<L> {
    passed_on! {
        name() -> String;
        spaces() -> Result<Vec<SpaceRecord>>;
        create_space(space: &Space, written_as: Provenance) -> Result<()>;
        drop_space(space: &str) -> Result<()>;
        serving_and_document(document: &str) -> Result<(Option<String>, Option<Document>)>;
        switch_serving(from: &str, to: &str) -> Result<()>;
        put(writes: &[ItemWrite]) -> Result<Vec<Revision>>;
        delete(ids: &[&str]) -> Result<usize>;
        get(ids: &[&str]) -> Result<Vec<Option<Item>>>;
        vectors(space: &str, keys: &[ItemKey]) -> Result<Vec<Option<VectorRecord>>>;
        provenances(space: &str, keys: &[ItemKey]) -> Result<Vec<Option<Provenance>>>;
        write_vectors(space: &str, epoch: Option<Epoch>, writes: &[VectorWrite]) -> Result<Vec<WriteOutcome>>;
        set_priorities(space: &str, epoch: Epoch, places: &[(ItemKey, Revision, Priority)]) -> Result<usize>;
        forget_natives(space: &str, epoch: Epoch, limit: usize) -> Result<usize>;
        advance(space: &str, from: Epoch, name: &str, expected: Option<u64>, text: &str) -> Result<u64>;
        scan(scan: &Scan) -> Result<Vec<Record>>;
        sample(sample: &Sample) -> Result<Drawn>;
        newest_revision() -> Result<Revision>;
        counts(space: &str) -> Result<Counts>;
        count_without_source() -> Result<u64>;
        count_lag(space: &str, behind: &str) -> Result<u64>;
        claim(space: &str, queue: Queue, worker: &str, limit: usize, lease: Duration) -> Result<Claimed>;
        renew(space: &str, worker: &str, lease: Duration) -> Result<u64>;
        release(space: &str, worker: &str, keys: Option<&[ItemKey]>) -> Result<u64>;
        at_work(space: &str) -> Result<Vec<AtWork>>;
        record_failures(space: &str, failures: &[(ItemKey, Revision, String)]) -> Result<()>;
        failures(space: &str, after: Option<ItemKey>, limit: usize) -> Result<Vec<Failure>>;
        clear_failures(space: &str) -> Result<u64>;
        errors(space: &str, limit: usize) -> Result<Vec<(f32, f32)>>;
        set_document(name: &str, expected: Option<u64>, text: &str) -> Result<u64>;
    }
}
