//! Keeper of the search indexes: it brings them up, keeps them up to date, and looks after them in the
//! background.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;

use rehang_core::{Result, in_parallel};
use rehang_store::{IndexHealth, IndexKind};
use rusqlite::Transaction;

use crate::connection::{Database, lock};
use crate::graph::{Care, Graph, side_file};
use crate::ignored::expect_changed;
use crate::index::{self, Changes, RECALL_K, RECALL_SAMPLES, SpaceIndex};
use crate::options::SearchOptions;
use crate::spaces::{self, SpaceRow};
use crate::trouble::Step;

/// Indexes of a gallery in this process.
#[derive(Debug)]
pub(crate) struct Keeper {
    database: Arc<Database>,
    options: SearchOptions,
    spaces: Mutex<BTreeMap<i64, Arc<SharedIndex>>>,
}

/// Index of one space, shared by the threads that search it and work on it.
#[derive(Debug)]
pub(crate) struct SharedIndex {
    database: Arc<Database>,
    options: SearchOptions,
    number: i64,
    index: RwLock<SpaceIndex>,
    /// Lock that is held by the thread that reads the feed of changes.
    feed: Mutex<()>,
    /// Lock that is held by the thread that builds, merges or saves.
    work: Mutex<()>,
    notes: Mutex<Notes>,
    busy: AtomicBool,
    stop: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
    #[cfg(test)]
    dies: Mutex<Option<SavePlace>>,
}

/// Place between two effects of saving an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SavePlace {
    /// The file is whole on the disk, without its name.
    Written,
    /// The gallery knows the moment of the file.
    Recorded,
    /// The file has its name.
    Named,
}

/// Results of the work on an index.
#[derive(Debug, Default)]
struct Notes {
    /// Change up to which the side file is whole.
    saved: Option<u64>,
    trouble: Option<String>,
}

/// Vectors merged in one go while searches wait: about 3 ms.
const MERGE_SLICE: usize = 8;

/// Recall that may be lost before a graph is made again.
const RECALL_LOSS: f64 = 0.02;

/// Removals that the feed remembers at least. Where there are more, those are forgotten that are in the index
/// that is saved. Few in tests, so that it happens.
const REMOVALS_KEPT: u64 = if cfg!(test) { 100 } else { 100_000 };

impl Keeper {
    pub(crate) fn new(database: Arc<Database>, options: SearchOptions) -> Self {
        Self { database, options, spaces: Mutex::default() }
    }

    /// Index of a space, up to date with everything that was committed before the call.
    pub(crate) fn current(&self, row: &SpaceRow, change: u64) -> Result<Arc<SharedIndex>> {
        let shared = self.shared(row);
        if shared.read().applied < change {
            // Dropped spaces are looked for by a search that has something to catch up with, as the first one
            // of a space has, and not by every one.
            if lock(&self.spaces).len() > 1 {
                self.forget_dropped()?;
            }
            shared.catch_up()?;
            shared.tend();
        }
        Ok(shared)
    }

    pub(crate) fn health(&self, space: &str) -> Result<IndexHealth> {
        let (_, shared) = self.named(space)?;
        let index = shared.read();
        let notes = lock(&shared.notes);
        let graph = index.graph.as_deref();
        let care = graph.map(|graph| graph.care.clone()).unwrap_or_default();
        Ok(IndexHealth {
            kind: if graph.is_some() { IndexKind::Graph } else { IndexKind::Exact },
            vectors: index.len(),
            waiting: if graph.is_some() { index.waiting() } else { 0 },
            built: graph.map_or(0, |graph| graph.built),
            overwritten: graph.map_or(0, |graph| graph.overwritten),
            recall_at_build: graph.map(|graph| graph.recall_at_build),
            recall_checked: care.recall_checked,
            rebuilt: care.rebuilt,
            rebuilt_because: care.rebuilt_because,
            trouble: notes.trouble.clone(),
            bytes: index.bytes(),
            growth: None,
        })
    }

    /// Whether a search finds an index, in memory or beside the gallery, that has little to catch up with.
    pub(crate) fn is_ready(&self, space: &str) -> Result<bool> {
        let (row, count, identity) = self.database.read(|transaction| {
            let row = spaces::find(transaction, space)?;
            let count: usize = row.count(transaction, "vector")?;
            let identity = spaces::index_identity(transaction, row.number)?;
            Ok((row, count, identity))
        })?;
        if count <= self.options.exact_max {
            return Ok(true);
        }
        let shared = lock(&self.spaces).get(&row.number).cloned();
        let in_memory = shared.and_then(|shared| {
            let index = shared.read();
            index.graph.as_deref().map(|graph| (index.applied, graph.len(), index.waiting()))
        });
        let path = side_file(self.database.path(), row.number);
        let beside = || {
            let settled = Graph::settled(&path, |text| identity.has_saved(text), &row.space)?;
            Some((settled, count, 0))
        };
        let Some((known_change, len, waiting)) = in_memory.or_else(beside) else { return Ok(false) };
        let n = row.number;
        // A vector that replaces another one is added and takes that one out, so it counts twice. Without the
        // graph it is not known which vectors do, so all are taken to. Then an index that is called ready
        // here is not made again by a process that loads it.
        let since: usize = self.database.read(|transaction| {
            let sql = format!(
                "SELECT 2 * (SELECT count(*) FROM vector_{n} WHERE change > ?1)
                      + (SELECT count(*) FROM removed_{n} AS removed WHERE change > ?1 AND NOT EXISTS (
                             SELECT 1 FROM vector_{n} WHERE item = removed.item AND change > ?1))"
            );
            Ok(transaction.query_row(&sql, [known_change], |line| line.get(0))?)
        })?;
        Ok(known_change >= row.trimmed && waiting + since <= self.options.merge_at.max(len / 2))
    }

    /// Makes the index of a space whole and durable, in this thread.
    pub(crate) fn prepare(&self, space: &str, advance: &dyn Fn(u64, u64) -> bool) -> Result<()> {
        let shared = self.shared(&self.database.read(|transaction| spaces::find(transaction, space))?);
        let _work = lock(&shared.work);
        if shared.is_begun()? {
            shared.catch_up()?;
            shared.settle(all_threads(), advance)?;
        } else {
            // Catching up with everything would hold all vectors in memory, beside the graph that is built
            // from the file.
            shared.replace(all_threads(), "there was none", advance)?;
        }
        shared.save()
    }

    /// Makes the index of a space from nothing but the truth, and durable. Searches go on with the old one
    /// meanwhile.
    pub(crate) fn rebuild(&self, space: &str) -> Result<()> {
        let shared = self.shared(&self.database.read(|transaction| spaces::find(transaction, space))?);
        let _work = lock(&shared.work);
        shared.replace(all_threads(), "a caller asked for it", &|_, _| true)?;
        shared.save()
    }

    /// Merges, looks after and saves every index that was used in this process.
    pub(crate) fn flush(&self) -> Result<()> {
        let all: Vec<Arc<SharedIndex>> = lock(&self.spaces).values().cloned().collect();
        for shared in all {
            let exists = self.database.read(|transaction| {
                Ok(spaces::list(transaction)?.iter().any(|row| row.number == shared.number))
            })?;
            if !exists {
                self.forget(shared.number);
                continue;
            }
            let _work = lock(&shared.work);
            shared.catch_up()?;
            shared.settle(all_threads(), &|_, _| true)?;
            shared.check_recall(all_threads())?;
            shared.save()?;
        }
        Ok(())
    }

    /// Waits for the work in the background.
    pub(crate) fn wait(&self) {
        let all: Vec<Arc<SharedIndex>> = lock(&self.spaces).values().cloned().collect();
        for shared in all {
            shared.join();
        }
    }

    /// Forgets the indexes of spaces that another process has dropped: a graph is most of a process's memory.
    fn forget_dropped(&self) -> Result<()> {
        // The known spaces are read first: each was in the gallery then. One that is not in it afterwards
        // never comes back, since numbers are not used again.
        let known_numbers: Vec<i64> = lock(&self.spaces).keys().copied().collect();
        let listed_numbers: BTreeSet<i64> = self
            .database
            .read(|transaction| Ok(spaces::list(transaction)?.into_iter().map(|row| row.number).collect()))?;
        for number in known_numbers.into_iter().filter(|number| !listed_numbers.contains(number)) {
            self.forget(number);
        }
        Ok(())
    }

    /// Makes the next saves of a space's index fail at a place, as if the process died there.
    #[cfg(test)]
    pub(crate) fn die_at(&self, space: &str, place: Option<SavePlace>) {
        *lock(&self.named(space).unwrap().1.dies) = place;
    }

    /// Number of vectors of a space that wait in memory to be merged.
    #[cfg(test)]
    pub(crate) fn waiting(&self, number: i64) -> usize {
        lock(&self.spaces).get(&number).map_or(0, |shared| shared.read().waiting())
    }

    /// Numbers of the spaces that have an index in memory.
    #[cfg(test)]
    pub(crate) fn numbers(&self) -> Vec<i64> {
        lock(&self.spaces).keys().copied().collect()
    }

    /// Removes the index of a space that was dropped, in memory and beside the gallery.
    pub(crate) fn forget(&self, number: i64) {
        let shared = lock(&self.spaces).remove(&number);
        if let Some(shared) = shared {
            shared.stop.store(true, Ordering::Relaxed);
            shared.join();
        }
        // A file that stays behind never becomes another space's, since numbers are not used again; it only
        // takes room.
        let _ = fs_err::remove_file(side_file(self.database.path(), number));
    }

    /// Looks up a space by name, with its index as [`Keeper::current`] gives it.
    pub(crate) fn named(&self, space: &str) -> Result<(SpaceRow, Arc<SharedIndex>)> {
        let (row, change) = self.database.read(|transaction| {
            let row = spaces::find(transaction, space)?;
            let change = row.change(transaction)?;
            Ok((row, change))
        })?;
        let shared = self.current(&row, change)?;
        Ok((row, shared))
    }

    fn shared(&self, row: &SpaceRow) -> Arc<SharedIndex> {
        let mut spaces = lock(&self.spaces);
        let new = || Arc::new(SharedIndex::new(Arc::clone(&self.database), self.options, row));
        Arc::clone(spaces.entry(row.number).or_insert_with(new))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let all = std::mem::take(&mut *lock(&self.spaces));
        for shared in all.values() {
            shared.stop.store(true, Ordering::Relaxed);
        }
        for shared in all.values() {
            shared.join();
        }
    }
}

impl SharedIndex {
    fn new(database: Arc<Database>, options: SearchOptions, row: &SpaceRow) -> Self {
        Self {
            database,
            options,
            number: row.number,
            index: RwLock::new(SpaceIndex::new(&row.space, options)),
            feed: Mutex::default(),
            work: Mutex::default(),
            notes: Mutex::default(),
            busy: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            thread: Mutex::default(),
            #[cfg(test)]
            dies: Mutex::default(),
        }
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, SpaceIndex> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, SpaceIndex> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the index knows any change: in memory, or else from its side file, which is loaded.
    fn is_begun(&self) -> Result<bool> {
        let _feed = lock(&self.feed);
        if self.read().applied > 0 {
            return Ok(true);
        }
        let Some(loaded) = self.load()? else { return Ok(false) };
        *self.write() = loaded;
        Ok(true)
    }

    /// Takes in everything that is committed. Others search meanwhile; only the last step keeps them waiting.
    fn catch_up(&self) -> Result<()> {
        self.is_begun()?;
        let _feed = lock(&self.feed);
        let applied = self.read().applied;
        let (anew, changes) = self.changes_since(applied)?;
        if let Some(mut all) = anew {
            all.apply(&changes);
            *self.write() = all;
        } else {
            self.write().apply(&changes);
        }
        Ok(())
    }

    /// Changes that an index that knows everything up to a change has yet to take in. Where the feed has
    /// forgotten some of them, these are all vectors, for an index that begins anew.
    fn changes_since(&self, applied: u64) -> Result<(Option<SpaceIndex>, Changes)> {
        self.database.read(|transaction| {
            let row = index::numbered(transaction, self.number)?;
            let is_forgotten = applied < row.trimmed;
            let changes = index::changes_since(transaction, &row, if is_forgotten { 0 } else { applied })?;
            Ok((is_forgotten.then(|| SpaceIndex::new(&row.space, self.options)), changes))
        })
    }

    /// Loads the index from its side file, where that is of any use.
    fn load(&self) -> Result<Option<SpaceIndex>> {
        let path = side_file(self.database.path(), self.number);
        if fs_err::metadata(&path).is_err() {
            return Ok(None);
        }
        let (row, identity, change) = self.database.read(|transaction| {
            let row = index::numbered(transaction, self.number)?;
            let change = row.change(transaction)?;
            Ok((row, spaces::index_identity(transaction, self.number)?, change))
        })?;
        Ok(Graph::load(&path, |text| identity.has_saved(text), &row.space, self.options)
            // An index that knows more than the gallery was saved beside a newer copy of it.
            .filter(|(_, settled)| *settled >= row.trimmed && *settled <= change && *settled > 0)
            .map(|(graph, settled)| SpaceIndex::around(&row.space, self.options, graph, settled)))
    }

    /// Starts whatever the index needs, in the background, unless work on it is under way.
    fn tend(self: &Arc<Self>) {
        if !self.read().needs_work() || self.busy.swap(true, Ordering::AcqRel) {
            return;
        }
        let shared = Arc::clone(self);
        let work = move || {
            {
                let _work = lock(&shared.work);
                // Searches are right without this work, so a failure is noted, not raised.
                let trouble = in_parallel(|| shared.look_after()).err().map(|error| error.to_string());
                lock(&shared.notes).trouble = trouble;
            }
            shared.busy.store(false, Ordering::Release);
        };
        let mut thread = lock(&self.thread);
        match std::thread::Builder::new().name("rehang-index".into()).spawn(work) {
            Ok(handle) => *thread = Some(handle),
            Err(_) => self.busy.store(false, Ordering::Release),
        }
    }

    /// Does the work of the background: merges, and makes the graph again where its recall fell.
    fn look_after(&self) -> Result<()> {
        self.settle(background_threads(), &|_, _| true)?;
        self.check_recall(background_threads())
    }

    /// Measures the recall of the graph where it is time for that, and makes the graph again where its recall
    /// fell.
    fn check_recall(&self, threads: usize) -> Result<()> {
        let due = self.read().graph.as_deref().is_some_and(Graph::is_check_due);
        if !due || self.stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        let row = self.database.read(|transaction| index::numbered(transaction, self.number))?;
        let samples = index::sample(&self.database, &row, RECALL_SAMPLES)?;
        let nearest = |query: &[f32], k| self.read().nearest(query, k);
        let recall = index::recall(&self.database, &row, &samples, RECALL_K, &nearest)?;
        // The next save keeps the recall that was measured, also where nothing else changed since the last
        // one.
        lock(&self.notes).saved = None;
        let at_build = {
            let mut index = self.write();
            let Some(graph) = index.graph.as_mut().and_then(Arc::get_mut) else { return Ok(()) };
            graph.care.checked_at = graph.overwritten;
            graph.care.recall_checked = Some(recall);
            graph.recall_at_build
        };
        if recall < at_build - RECALL_LOSS {
            let why = format!("its recall@{RECALL_K} fell from {at_build:.3} to {recall:.3}");
            self.replace(threads, &why, &|_, _| true)?;
        }
        Ok(())
    }

    /// Brings every waiting vector into a graph, if there is to be one.
    fn settle(&self, threads: usize, advance: &dyn Fn(u64, u64) -> bool) -> Result<()> {
        let (graph_len, waiting) = {
            let index = self.read();
            (index.graph.as_deref().map(Graph::len), index.waiting())
        };
        let rebuild = match graph_len {
            None => waiting > self.options.exact_max,
            // Merging so many one by one takes as long as building with all vectors, and leaves a worse
            // graph.
            Some(len) => waiting > self.options.merge_at.max(len / 2),
        };
        if rebuild {
            return self.replace(threads, "too much waited to be merged into it", advance);
        }
        while !self.stop.load(Ordering::Relaxed) {
            let more = self.write().merge(MERGE_SLICE)?;
            if !more {
                break;
            }
            // A search that waits goes first.
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Makes the index again from the truth and puts it in the place of the old one, for the reason `why`.
    fn replace(&self, threads: usize, why: &str, advance: &dyn Fn(u64, u64) -> bool) -> Result<()> {
        let (row, count) = self.database.read(|transaction| {
            let row = index::numbered(transaction, self.number)?;
            let count: usize = row.count(transaction, "vector")?;
            Ok((row, count))
        })?;
        let mut new = if count > self.options.exact_max {
            let Some(new) =
                index::build(&self.database, self.number, self.options, threads, &self.stop, advance)?
            else {
                return Ok(());
            };
            new
        } else {
            SpaceIndex::new(&row.space, self.options)
        };
        let feed = lock(&self.feed);
        let (anew, changes) = self.changes_since(new.applied)?;
        new = anew.unwrap_or(new);
        new.apply(&changes);
        let mut index = self.write();
        let new_graph = new.graph.as_mut().and_then(Arc::get_mut);
        if let (Some(old), Some(graph)) = (&index.graph, new_graph) {
            let (rebuilt, why) = (old.care.rebuilt + 1, Some(why.to_owned()));
            graph.care = Care { rebuilt, rebuilt_because: why, ..Care::default() };
        }
        *index = new;
        drop(index);
        // The side file holds the graph before this one. The next save writes this one, also where both hold
        // the same changes.
        lock(&self.notes).saved = None;
        drop(feed);
        Ok(())
    }

    /// Writes the graph beside the gallery, unless the file is up to date, and lets the feed forget removals
    /// that nobody needs any more. The caller holds `work`.
    fn save(&self) -> Result<()> {
        /// A file that has no name yet is called by its process, so one handle of a process saves at a time.
        static SAVING: Mutex<()> = Mutex::new(());
        let _saving = lock(&SAVING);
        let database = &*self.database;
        let path = side_file(database.path(), self.number);
        // The graph is not written under the lock: a search that has something to catch up with would wait
        // for the whole file, and all others behind it.
        let (graph, space, settled, applied) = {
            let index = self.read();
            (index.graph.clone(), index.space.clone(), index.settled, index.applied)
        };
        // Without a graph nothing lies beside the gallery that would have to catch up.
        let mut known_change = applied;
        if let Some(graph) = graph {
            if lock(&self.notes).saved == Some(settled) && fs_err::metadata(&path).is_ok() {
                return Ok(());
            }
            // The file is written first, which takes long; then the gallery learns of its moment; then the
            // file gets its name. Whenever the process dies, the file that has the name is of the last moment
            // or of the one before.
            let named = Graph::identity(&path);
            let (last, next) = database.read(|transaction| {
                let last = spaces::index_identity(transaction, self.number)?;
                let next = last.next(transaction, named.as_deref())?;
                Ok((last, next))
            })?;
            let identity = if database.writable() { &next } else { &last };
            let mode = fs_err::metadata(database.path()).map(|gallery| gallery.permissions()).ok();
            let partial = graph.write(&path, &identity.text(), &space, settled, mode)?;
            self.reach(SavePlace::Written)?;
            if database.writable()
                && !database.write(|transaction| next.keep(transaction, self.number, &last))?
            {
                // Another process saved meanwhile; its file is as good.
                return Ok(());
            }
            self.reach(SavePlace::Recorded)?;
            // One process at a time gives its file the name. Where another has kept a later moment, this file
            // would be one behind the one before.
            let is_last = |transaction: &Transaction<'_>| -> Step<bool> {
                let last = spaces::index_identity(transaction, self.number)? == *identity;
                if last {
                    partial.persist()?;
                }
                Ok(last)
            };
            let named =
                if database.writable() { database.write(is_last)? } else { database.read(is_last)? };
            self.reach(SavePlace::Named)?;
            if !named {
                return Ok(());
            }
            lock(&self.notes).saved = Some(settled);
            known_change = settled;
        }
        if !database.writable() {
            return Ok(());
        }
        self.trim(known_change)
    }

    /// Fails where a test wants the process to die.
    #[cfg_attr(
        not(test),
        allow(
            unused_variables,
            clippy::unused_self,
            clippy::unnecessary_wraps,
            reason = "only tests die here"
        )
    )]
    fn reach(&self, place: SavePlace) -> Result<()> {
        #[cfg(test)]
        if *lock(&self.dies) == Some(place) {
            return Err(rehang_core::Error::conflict("this process", "it died"));
        }
        Ok(())
    }

    /// Lets the feed forget removals up to a change, where it remembers too many. An index of another process
    /// that knows less is made again.
    fn trim(&self, change: u64) -> Result<()> {
        let n = self.number;
        let removals: u64 = self
            .database
            .read(|transaction| index::numbered(transaction, n)?.count(transaction, "removed"))?;
        if removals <= REMOVALS_KEPT {
            return Ok(());
        }
        spaces::in_turns(|| {
            self.database.write(|transaction| {
                index::numbered(transaction, n)?;
                // Another process may have been here with a later change. The gallery says how far the feed
                // is trimmed before the first removal goes: an index that knows less is not used meanwhile.
                let rows = transaction
                    .execute("UPDATE space SET trimmed = max(trimmed, ?1) WHERE number = ?2", (change, n))?;
                expect_changed(transaction, rows, "space", || "the trimming of a search index".to_owned())?;
                let forgotten = transaction
                    .prepare_cached(&format!(
                        "DELETE FROM removed_{n} WHERE item IN (
                             SELECT item FROM removed_{n} WHERE change <= ?1 ORDER BY change LIMIT ?2)"
                    ))?
                    .execute((change, spaces::REMOVED_TOGETHER))?;
                Ok(forgotten < spaces::REMOVED_TOGETHER)
            })
        })
    }

    fn join(&self) {
        let handle = lock(&self.thread).take();
        if let Some(handle) = handle {
            // A panic in the background has left the index as it was; there is nothing to do about it here.
            let _ = handle.join();
        }
    }
}

fn all_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Number of threads for the background, which leaves a processor to the searches.
fn background_threads() -> usize {
    all_threads().saturating_sub(1).max(1)
}
