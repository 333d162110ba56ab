//! Store in which something happens right before a call: what others do between two steps of one process.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rehang_core::{ErrorKind, Matrix, Provenance, Result, Space};
use rehang_store::{
    AtWork, Claimed, Counts, Drawn, Epoch, Failure, Filter, Found, Index, Item, ItemKey, ItemWrite, Ledger,
    Priority, Queue, Record, Revision, Sample, Scan, SpaceRecord, VectorRecord, VectorWrite, WriteOutcome,
};
use rehang_store_tests::MemoryStore;

/// Function that is called before each call of a store, with the call's name. An error of it is the error of
/// the call.
type Hook = dyn Fn(&MemoryStore, &str) -> Result<()> + Send + Sync;

/// Store in which something happens right before each call that can fail.
#[derive(Clone)]
pub struct Hooked {
    pub store: MemoryStore,
    hook: Arc<Hook>,
    happened: Arc<AtomicBool>,
    /// Whether writes of an item's native vectors are ignored, as by something beside the store.
    ignores: Arc<dyn Fn(ItemKey) -> bool + Send + Sync>,
    /// Space and depth of every search.
    pub searched: Arc<Mutex<Vec<(String, usize)>>>,
}

impl Hooked {
    pub fn new(
        store: &MemoryStore,
        hook: impl Fn(&MemoryStore, &str) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        let (happened, searched) = (Arc::default(), Arc::default());
        let ignores = Arc::new(|_| false);
        Self { store: store.clone(), hook: Arc::new(hook), happened, ignores, searched }
    }

    /// Makes a store beside which something has the writes of some native vectors ignored.
    pub fn ignoring(store: &MemoryStore, ignores: impl Fn(ItemKey) -> bool + Send + Sync + 'static) -> Self {
        Self { ignores: Arc::new(ignores), ..Self::new(store, |_, _| Ok(())) }
    }

    /// Makes a store in which something happens once, right before the first call of a name.
    pub fn before(
        store: &MemoryStore,
        call: &'static str,
        act: impl Fn(&MemoryStore) + Send + Sync + 'static,
    ) -> Self {
        let happened = Arc::<AtomicBool>::default();
        let once = Arc::clone(&happened);
        let hooked = Self::new(store, move |store, called| {
            if called == call && !once.swap(true, Ordering::SeqCst) {
                act(store);
            }
            Ok(())
        });
        Self { happened, ..hooked }
    }

    /// Makes a store whose next writes of vectors fail, as while another process writes for longer than a
    /// call waits.
    pub fn busy(store: &MemoryStore, writes: u32) -> Self {
        let left = AtomicU32::new(writes);
        Self::new(store, move |store, call| {
            let one_less = |left: u32| left.checked_sub(1);
            if call == "write_vectors"
                && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok()
            {
                let detail = "another process has been writing for more than 10 seconds".into();
                return Err(ErrorKind::Unavailable { service: store.name(), detail }.into());
            }
            Ok(())
        })
    }

    /// Whether what was to happen [before](Hooked::before) a call did.
    pub fn happened(&self) -> bool {
        self.happened.load(Ordering::SeqCst)
    }
}

macro_rules! passed_on {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $out:ty;)*) => {
        $(fn $name(&self, $($argument: $kind),*) -> $out {
            (self.hook)(&self.store, stringify!($name))?;
            self.store.$name($($argument),*)
        })*
    };
}

impl Index for Hooked {
    fn search(&self, space: &str, queries: &Matrix, k: usize, filter: &Filter) -> Result<Vec<Vec<Found>>> {
        (self.hook)(&self.store, "search")?;
        self.searched.lock().unwrap().push((space.into(), k));
        self.store.search(space, queries, k, filter)
    }

    passed_on! {
        recall(space: &str, samples: usize, k: usize) -> Result<f64>;
        is_ready(space: &str) -> Result<bool>;
        prepare(space: &str, advance: &dyn Fn(u64, u64) -> bool) -> Result<()>;
        rebuild(space: &str) -> Result<()>;
        flush() -> Result<()>;
    }
}

impl Ledger for Hooked {
    fn name(&self) -> String {
        self.store.name()
    }

    fn write_vectors(
        &self,
        space: &str,
        epoch: Option<Epoch>,
        writes: &[VectorWrite],
    ) -> Result<Vec<WriteOutcome>> {
        (self.hook)(&self.store, "write_vectors")?;
        let is_ignored =
            |write: &VectorWrite| write.provenance == Provenance::Native && (self.ignores)(write.key);
        let ignored: Vec<bool> = writes.iter().map(is_ignored).collect();
        let passed =
            writes.iter().zip(&ignored).filter(|(_, ignored)| !**ignored).map(|(write, _)| write.clone());
        let mut outcomes = self.store.write_vectors(space, epoch, &passed.collect::<Vec<_>>())?.into_iter();
        let outcome = |ignored: &bool| if *ignored { Some(WriteOutcome::Changed) } else { outcomes.next() };
        Ok(ignored.iter().filter_map(outcome).collect())
    }

    passed_on! {
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
