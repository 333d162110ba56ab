//! The store of a gallery in one file: every method of the contracts, passed on to the function that does its
//! work.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rehang_core::{Matrix, Provenance, Result, Space};
use rehang_store::{
    AtWork, Claimed, Counts, Document, Drawn, Epoch, Examined, Failure, Filter, Found, Index, IndexHealth,
    Item, ItemKey, ItemWrite, LeaseClock, Ledger, Priority, Problem, Queue, Record, Revision, Sample, Scan,
    SpaceRecord, SystemLeaseClock, VectorRecord, VectorWrite, WriteOutcome,
};

use crate::connection::Database;
use crate::keeper::Keeper;
use crate::options::SearchOptions;
use crate::{claims, doctor, graph, items, pages, search, spaces, vectors};

#[cfg(test)]
mod tests;

/// A gallery in one SQLite file, for any number of threads and processes at once.
///
/// # Files
///
/// `gallery.db` holds the whole truth (and, while it is open, `gallery.db-wal` and `gallery.db-shm` beside
/// it). `gallery.db.<space>.usearch` holds a search index. It may be deleted at any time and is made again.
///
/// # Searches
///
/// Up to [`SearchOptions::exact_max`] vectors are compared one by one, so the answer is exact. Above it a
/// graph (HNSW) finds candidates; vectors written since the graph was made wait in memory and are compared
/// one by one until they are merged in the background. Whatever was found is confirmed against the file and
/// measured again, so a hit is never stale, whichever process wrote meanwhile.
///
/// ```
/// use rehang_core::{Distance, Matrix, Provenance, Space};
/// use rehang_sqlite::SqliteStore;
/// use rehang_store::{Filter, Index, ItemWrite, Ledger, NewVector};
///
/// let folder = tempfile::tempdir()?;
/// let store = SqliteStore::create(folder.path().join("gallery.db"))?;
/// store.create_space(&Space::new("clip", 2, Distance::Cosine, true), Provenance::Old)?;
/// let vector = vec![0.6, 0.8];
/// store.put(&[ItemWrite {
///     id: "cat".into(),
///     source: Some("cat.jpg".into()),
///     label: None,
///     payload: serde_json::json!({"rooms": 3}),
///     vectors: vec![NewVector::from_model("clip", vector, Provenance::Old)],
/// }])?;
/// let found = store.search("clip", &Matrix::new(2, vec![0.6, 0.8])?, 10, &Filter::default())?;
/// assert_eq!(found[0][0].id, "cat");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SqliteStore {
    database: Arc<Database>,
    keeper: Keeper,
    clock: Arc<dyn LeaseClock>,
}

impl SqliteStore {
    /// Makes a new gallery without spaces and items, where nothing is: no file, an empty one, or the file of
    /// a process that was killed while it made one.
    ///
    /// # Errors
    ///
    /// A conflict where a file with content of any kind is there already; I/O errors name the path.
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        Ok(Self::on(Database::create(path.as_ref())?, SearchOptions::default()))
    }

    /// Opens a gallery.
    ///
    /// # Errors
    ///
    /// An I/O error where there is no such file, a corrupt one where the file is no gallery, a conflict where
    /// it has another format than this rehang knows.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Ok(Self::on(Database::open(path.as_ref())?, SearchOptions::default()))
    }

    /// Opens the gallery that is there, or makes a new one where nothing is, also where several processes do
    /// so at once.
    ///
    /// # Errors
    ///
    /// As [`SqliteStore::open`] and [`SqliteStore::create`].
    pub fn open_or_create(path: impl AsRef<Path>) -> Result<Self> {
        Ok(Self::on(Database::open_or_create(path.as_ref())?, SearchOptions::default()))
    }

    /// Sets the options of searches, for a store that was just opened: indexes are started afresh.
    #[must_use]
    pub fn with_search(self, options: SearchOptions) -> Self {
        let Self { database, keeper, clock } = self;
        drop(keeper);
        Self { keeper: Keeper::new(Arc::clone(&database), options), database, clock }
    }

    /// Measures leases by another clock than the machine's.
    #[must_use]
    pub fn with_clock(self, clock: Arc<dyn LeaseClock>) -> Self {
        Self { clock, ..self }
    }

    /// The gallery's file.
    pub fn path(&self) -> &Path {
        self.database.path()
    }

    /// Path at which the search index of a space lies once it is made durable; exact searches have none.
    ///
    /// # Errors
    ///
    /// Not found where there is no such space.
    pub fn index_path(&self, space: &str) -> Result<PathBuf> {
        let number = self.database.read(|transaction| Ok(spaces::find(transaction, space)?.number))?;
        Ok(graph::side_file(self.database.path(), number))
    }

    /// Waits until nothing of the search indexes is being made or merged in the background.
    pub fn wait_for_indexes(&self) {
        self.keeper.wait();
    }

    /// Moves everything that SQLite still keeps beside the file into the file, so that the one file is the
    /// whole gallery and may be renamed or copied. Closing is not needed for durability.
    ///
    /// # Errors
    ///
    /// What the disk gives; a conflict where another process has the gallery open.
    pub fn close(self) -> Result<()> {
        let Self { database, keeper, .. } = self;
        drop(keeper);
        database.write_back()
    }

    fn on(database: Database, options: SearchOptions) -> Self {
        let database = Arc::new(database);
        let keeper = Keeper::new(Arc::clone(&database), options);
        Self { keeper, database, clock: Arc::new(SystemLeaseClock) }
    }
}

/// Passes methods of a contract on to the functions that do their work, which take the database first.
macro_rules! passed_on {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $out:ty => $work:path;)*) => {
        $(fn $name(&self, $($argument: $kind),*) -> Result<$out> {
            $work(&self.database, $($argument),*)
        })*
    };
}

impl Ledger for SqliteStore {
    passed_on! {
        spaces() -> Vec<SpaceRecord> => spaces::all;
        create_space(space: &Space, written_as: Provenance) -> () => spaces::create;
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
        advance(space: &str, from: Epoch, document: &str, expected: Option<u64>, text: &str) -> u64
            => spaces::advance;
        scan(scan: &Scan) -> Vec<Record> => pages::scan;
        sample(sample: &Sample) -> Drawn => pages::sample;
        newest_revision() -> Revision => items::newest_revision;
        counts(space: &str) -> Counts => vectors::counts;
        count_without_source() -> u64 => items::count_without_source;
        count_lag(space: &str, behind: &str) -> u64 => vectors::count_lag;
        release(space: &str, worker: &str, keys: Option<&[ItemKey]>) -> u64 => claims::release;
        record_failures(space: &str, failures: &[(ItemKey, Revision, String)]) -> () => vectors::record_failures;
        failures(space: &str, after: Option<ItemKey>, limit: usize) -> Vec<Failure> => vectors::failures;
        clear_failures(space: &str) -> u64 => vectors::clear_failures;
        errors(space: &str, limit: usize) -> Vec<(f32, f32)> => vectors::errors;
        set_document(name: &str, expected: Option<u64>, text: &str) -> u64 => spaces::set_document;
    }

    fn name(&self) -> String {
        self.database.path().display().to_string()
    }

    fn drop_space(&self, space: &str) -> Result<()> {
        if let Some(number) = spaces::drop(&self.database, space)? {
            self.keeper.forget(number);
        }
        Ok(())
    }

    fn claim(
        &self,
        space: &str,
        queue: Queue,
        worker: &str,
        limit: usize,
        lease: Duration,
    ) -> Result<Claimed> {
        claims::claim(&self.database, self.clock.now_ms(), space, queue, worker, limit, lease)
    }

    fn renew(&self, space: &str, worker: &str, lease: Duration) -> Result<u64> {
        claims::renew(&self.database, self.clock.now_ms(), space, worker, lease)
    }

    fn at_work(&self, space: &str) -> Result<Vec<AtWork>> {
        claims::at_work(&self.database, self.clock.now_ms(), space)
    }
}

impl Index for SqliteStore {
    fn search(&self, space: &str, queries: &Matrix, k: usize, filter: &Filter) -> Result<Vec<Vec<Found>>> {
        search::search(&self.database, &self.keeper, space, queries, k, filter)
    }

    fn recall(&self, space: &str, samples: usize, k: usize) -> Result<f64> {
        search::recall(&self.database, &self.keeper, space, samples, k)
    }

    fn is_ready(&self, space: &str) -> Result<bool> {
        self.keeper.is_ready(space)
    }

    fn prepare(&self, space: &str, advance: &dyn Fn(u64, u64) -> bool) -> Result<()> {
        self.keeper.prepare(space, advance)
    }

    fn rebuild(&self, space: &str) -> Result<()> {
        self.keeper.rebuild(space)
    }

    fn flush(&self) -> Result<()> {
        self.keeper.flush()
    }
}

impl Examined for SqliteStore {
    fn check(&self) -> Result<Vec<Problem>> {
        doctor::check(&self.database)
    }

    /// Reports on the index of a space; where the space has not been searched yet, its index is brought up
    /// first.
    fn index_health(&self, space: &str) -> Result<IndexHealth> {
        self.keeper.health(space)
    }

    fn has_dropped_rows(&self) -> Result<bool> {
        spaces::is_any_left(&self.database)
    }

    /// Writes the file again. Its copy lies in SQLite's temporary folder (`SQLITE_TMPDIR` or `TMPDIR`), then
    /// in the log beside the file, and takes as much room in each meanwhile.
    fn compact(&self) -> Result<(u64, u64)> {
        spaces::remove_left(&self.database)?;
        self.database.compact()
    }
}
