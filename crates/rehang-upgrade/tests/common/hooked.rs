//! A store in which something happens right before a call: what others do between two steps of one process.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rehang::{ErrorKind, Matrix, Provenance, Result, Space};
use rehang_store::{
    AtWork, Claimed, Counts, Drawn, Epoch, Failure, Filter, Found, Index, Item, ItemKey, ItemWrite, Ledger,
    MemoryStore, Outcome, Priority, Queue, Record, Revision, Sample, Scan, SpaceRecord, VectorRecord,
    VectorWrite,
};

/// What happens, once.
type Act = Box<dyn FnOnce(&MemoryStore) + Send>;

/// A store in which something happens right before the first call of a name.
#[derive(Clone)]
pub struct Hooked {
    pub store: MemoryStore,
    call: &'static str,
    act: Arc<Mutex<Option<Act>>>,
    /// How many more writes of vectors fail, as while another process writes for long.
    busy: Arc<AtomicU32>,
}

impl Hooked {
    pub fn before(
        store: &MemoryStore,
        call: &'static str,
        act: impl FnOnce(&MemoryStore) + Send + 'static,
    ) -> Self {
        Self {
            store: store.clone(),
            call,
            act: Arc::new(Mutex::new(Some(Box::new(act)))),
            busy: Arc::default(),
        }
    }

    /// A store whose next writes of vectors fail, as while another process writes for longer than a call waits.
    pub fn busy(store: &MemoryStore, writes: u32) -> Self {
        let hooked = Self::before(store, "", |_| {});
        hooked.busy.store(writes, Ordering::SeqCst);
        hooked
    }

    pub fn happened(&self) -> bool {
        self.act.lock().unwrap().is_none()
    }

    fn called(&self, call: &str) {
        let act = if call == self.call { self.act.lock().unwrap().take() } else { None };
        if let Some(act) = act {
            act(&self.store);
        }
    }
}

macro_rules! passed_on {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $out:ty;)*) => {
        $(fn $name(&self, $($argument: $kind),*) -> $out {
            self.called(stringify!($name));
            self.store.$name($($argument),*)
        })*
    };
}

impl Index for Hooked {
    passed_on! {
        search(space: &str, queries: &Matrix, k: usize, filter: &Filter) -> Result<Vec<Vec<Found>>>;
        recall(space: &str, samples: usize, k: usize) -> Result<f64>;
        is_ready(space: &str) -> Result<bool>;
        prepare(space: &str, advance: &dyn Fn(u64, u64) -> bool) -> Result<()>;
        rebuild(space: &str) -> Result<()>;
        flush() -> Result<()>;
    }
}

impl Ledger for Hooked {
    fn write_vectors(
        &self,
        space: &str,
        epoch: Option<Epoch>,
        writes: &[VectorWrite],
    ) -> Result<Vec<Outcome>> {
        self.called("write_vectors");
        if self.busy.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
            let detail = "another process has been writing for more than 10 seconds".into();
            return Err(ErrorKind::Unavailable { service: self.name(), detail }.into());
        }
        self.store.write_vectors(space, epoch, writes)
    }

    passed_on! {
        name() -> String;
        spaces() -> Result<Vec<SpaceRecord>>;
        create_space(space: &Space, written_as: Provenance) -> Result<()>;
        drop_space(space: &str) -> Result<()>;
        serving() -> Result<Option<String>>;
        serving_and_document(document: &str) -> Result<(Option<String>, Option<rehang_store::Document>)>;
        switch_serving(from: &str, to: &str) -> Result<()>;
        put(writes: &[ItemWrite]) -> Result<Vec<Revision>>;
        delete(ids: &[&str]) -> Result<usize>;
        get(ids: &[&str]) -> Result<Vec<Option<Item>>>;
        vectors(space: &str, keys: &[ItemKey]) -> Result<Vec<Option<VectorRecord>>>;
        provenances(space: &str, keys: &[ItemKey]) -> Result<Vec<Option<Provenance>>>;
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
        document(name: &str) -> Result<Option<(u64, String)>>;
        set_document(name: &str, expected: Option<u64>, text: &str) -> Result<u64>;
    }
}
