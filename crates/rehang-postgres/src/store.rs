//! The store that other crates see: each of its methods calls the function that does the work.

use std::sync::Arc;
use std::time::Duration;

use rehang_core::{Adapter, Bridge, Matrix, Provenance, Result, Space};
use rehang_store::{
    AtWork, Claimed, Counts, Document, Drawn, Epoch, Examined, Failure, Filter, Found, FusedSpaces, Index,
    IndexHealth, Item, ItemKey, ItemWrite, Ledger, Priority, Problem, Queue, Record, Released, Revision,
    Sample, Scan, SpaceRecord, TableFindings, VectorRecord, VectorWrite, WriteOutcome,
};

use crate::connection::Mode;
use crate::handle::Handle;
use crate::hold::{self, Hold};
use crate::table::TableOptions;
use crate::{adoption, bridge, claims, doctor, items, map, pages, release, search, spaces, vectors};

/// Gallery in a table of PostgreSQL with pgvector, for any number of threads, processes and machines at once.
/// A clone is another handle on the same gallery.
///
/// The application's table stays as it is, except for three triggers. Everything else of the gallery is in
/// the schema `rehang`: see `docs/postgres.md`.
#[derive(Debug, Clone)]
pub struct PostgresStore(Arc<Handle>);

impl PostgresStore {
    /// Looks at a table, and whether it can be a gallery. Writes nothing.
    ///
    /// # Errors
    ///
    /// Unavailable and unauthorised where the server cannot be reached or refuses. Not found and invalid
    /// options where the table lacks what a gallery needs.
    pub fn inspect(address: &str, options: &TableOptions) -> Result<TableFindings> {
        adoption::inspect(address, options)
    }

    /// Returns every statement that [`PostgresStore::adopt`] runs before it lists items, for an owner to
    /// read, or to run by hand. Writes nothing.
    ///
    /// # Errors
    ///
    /// As [`PostgresStore::inspect`].
    pub fn statements(address: &str, options: &TableOptions) -> Result<String> {
        adoption::statements(address, options)
    }

    /// Checks whether a table's old vectors fit a space, before [`PostgresStore::adopt`] makes anything;
    /// where they do not, [`Ledger::create_space`] would refuse the space. Rows that are no items may have
    /// another width. Writes nothing.
    ///
    /// # Errors
    ///
    /// As [`PostgresStore::inspect`]; a width that does not fit.
    pub fn expect_vectors(address: &str, options: &TableOptions, space: &Space) -> Result<()> {
        adoption::expect_vectors(address, options, space)
    }

    /// Makes a gallery of a table. It makes the schema `rehang`, its tables, and triggers on the table; then
    /// every row becomes an item. The table may be written and read meanwhile; its writers wait for the
    /// moment in which the triggers are made. `advance` is told `(done, total)` rows, and ends the work
    /// where it returns `false`.
    ///
    /// Where a process died, the next call goes on. Where all is done, it makes the functions of the gallery
    /// anew, and the triggers too where an earlier version made the gallery. Where the table or its columns
    /// have got other names since, everything that names them follows.
    ///
    /// # Errors
    ///
    /// As [`PostgresStore::inspect`]; an invalid option where the role may not do it; a conflict where the
    /// table is a gallery by other options, or where another role has the schema `rehang` or something in it;
    /// unavailable where transactions are open for so long that the triggers cannot be made.
    pub fn adopt(
        address: &str,
        options: &TableOptions,
        old: Option<&str>,
        advance: &dyn Fn(u64, u64) -> bool,
    ) -> Result<Self> {
        adoption::adopt(address, options, old, advance).map(Self::from_handle)
    }

    /// Opens a gallery that was [made](PostgresStore::adopt) of a table. `old` is the name of the space in
    /// the application's column.
    ///
    /// The table may not be what the gallery was made of any more: columns have other names or are gone, or
    /// row security holds for the role. Then the gallery opens by its own tables: what is known of it can be
    /// read, searches can be led to another space, and [`Examined::check`] says what is out of step. Every
    /// call that needs the table's rows is refused with the same words.
    ///
    /// # Errors
    ///
    /// As [`PostgresStore::inspect`] where the table is no gallery; not found where the table is no gallery
    /// yet; a conflict where it is one by other options, or in another form, or its functions are of a
    /// version that lets others in.
    pub fn open(address: &str, options: &TableOptions, old: Option<&str>) -> Result<Self> {
        adoption::open(address, options, old).map(Self::from_handle)
    }

    fn from_handle(handle: Handle) -> Self {
        Self(Arc::new(handle))
    }

    /// Copies the vectors of the space that serves into a column of the application's table, so that
    /// [`PostgresStore::release`] leaves them there. The column is made if it is not there, and gets a search
    /// index. Items without a source whose vectors are adapted get none.
    ///
    /// The table may be written and read meanwhile. Every row is updated, which costs what an update of the
    /// application's costs and fires its triggers for updates ([`Examined::remarks`] names them). `advance`
    /// is as in [`PostgresStore::adopt`]. A second call goes on.
    ///
    /// # Errors
    ///
    /// A conflict where the space that serves is a column of the table already, or items with a source have
    /// adapted vectors in it; an invalid option where the column is there with another type, or with vectors
    /// of the application's; as [`PostgresStore::adopt`].
    pub fn settle(&self, column: &str, advance: &dyn Fn(u64, u64) -> bool) -> Result<Released> {
        self.0.expect_in_step()?;
        release::settle(&self.0, column, false, advance)
    }

    /// Copies vectors as [`PostgresStore::settle`] does, adapted ones too. The release then makes a table
    /// beside the application's, `NAME_adapted`, with the keys of the rows that have an adapted vector.
    ///
    /// # Errors
    ///
    /// As [`PostgresStore::settle`], except for adapted vectors; a conflict where something
    /// of that name is there.
    pub fn settle_with_adapted(&self, column: &str, advance: &dyn Fn(u64, u64) -> bool) -> Result<Released> {
        self.0.expect_in_step()?;
        release::settle(&self.0, column, true, advance)
    }

    /// Takes everything of the gallery out of the database again. The application's table is left as it was
    /// found, except for a column that the vectors were [moved](PostgresStore::settle) into. Vectors that
    /// have changed since are moved, too, while applications that use the table wait; nothing else is looked
    /// at in that time. Where no column is named, one that a release had begun to fill is taken back.
    ///
    /// # Errors
    ///
    /// Unavailable where transactions keep the table for too long; an invalid option where the role may not
    /// do it; a conflict where the vectors were not moved into the column, or something of the application's,
    /// such as a view, depends on what is the gallery's.
    pub fn release(self, settled: Option<&str>) -> Result<()> {
        release::release(&self.0, settled)
    }

    /// Takes a gallery out of the database without opening it and without moving vectors, by what the
    /// gallery's own tables say of it. Its table may have another name or other columns by now, be what
    /// [`PostgresStore::open`] refuses, or be gone.
    ///
    /// # Errors
    ///
    /// As [`PostgresStore::release`]; not found where no table of that name is, or was when it was adopted, a
    /// gallery; a conflict where several were.
    pub fn take_out(address: &str, options: &TableOptions) -> Result<()> {
        release::take_out(address, options)
    }

    /// Returns the application's table.
    pub fn table(&self) -> &TableOptions {
        &self.0.table.options
    }

    /// Keeps other processes from working on the upgrade of this gallery, until the returned hold is
    /// dropped or its process ends.
    ///
    /// # Errors
    ///
    /// A conflict where another process is at work on it. Behind a pooler the call waits for a process that
    /// has died, for ten seconds at most.
    pub fn hold(&self) -> Result<Hold> {
        hold::hold(&self.0)
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

/// Defines methods that need the rows of the table. They fail where the table is not what
/// the gallery was made of.
macro_rules! passed_on_in_step {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $out:ty => $work:path;)*) => {
        $(fn $name(&self, $($argument: $kind),*) -> Result<$out> {
            self.0.expect_in_step()?;
            $work(&self.0, $($argument),*)
        })*
    };
}

impl Ledger for PostgresStore {
    passed_on! {
        spaces() -> Vec<SpaceRecord> => spaces::records;
        serving_and_document(document: &str) -> (Option<String>, Option<Document>) => spaces::serving_and_document;
        switch_serving(from: &str, to: &str) -> () => spaces::switch_serving;
        get(ids: &[&str]) -> Vec<Option<Item>> => items::get;
        vectors(space: &str, keys: &[ItemKey]) -> Vec<Option<VectorRecord>> => vectors::get;
        provenances(space: &str, keys: &[ItemKey]) -> Vec<Option<Provenance>> => vectors::provenances;
        advance(space: &str, from: Epoch, document: &str, expected: Option<u64>, text: &str) -> u64 => spaces::advance;
        scan(scan: &Scan) -> Vec<Record> => pages::scan;
        newest_revision() -> Revision => items::newest_revision;
        counts(space: &str) -> Counts => vectors::counts;
        count_without_source() -> u64 => items::count_without_source;
        count_lag(space: &str, behind: &str) -> u64 => vectors::count_lag;
        renew(space: &str, worker: &str, lease: Duration) -> u64 => claims::renew;
        release(space: &str, worker: &str, keys: Option<&[ItemKey]>) -> u64 => claims::release;
        at_work(space: &str) -> Vec<AtWork> => claims::at_work;
        record_failures(space: &str, failures: &[(ItemKey, Revision, String)]) -> () => vectors::record_failures;
        failures(space: &str, after: Option<ItemKey>, limit: usize) -> Vec<Failure> => vectors::failures;
        clear_failures(space: &str) -> u64 => vectors::clear_failures;
        errors(space: &str, limit: usize) -> Vec<(f32, f32)> => vectors::errors;
        set_document(name: &str, expected: Option<u64>, text: &str) -> u64 => spaces::set_document;
        keep_bridge(bridge: Option<(&str, &Bridge)>) -> () => bridge::keep;
        keep_map(space: &str, map: Option<(Epoch, &str, &Adapter)>) -> Option<String> => map::keep;
    }

    passed_on_in_step! {
        create_space(space: &Space, written_as: Provenance) -> () => spaces::create;
        drop_space(space: &str) -> () => spaces::drop_space;
        put(writes: &[ItemWrite]) -> Vec<Revision> => items::put;
        delete(ids: &[&str]) -> usize => items::delete;
        write_vectors(space: &str, epoch: Option<Epoch>, writes: &[VectorWrite]) -> Vec<WriteOutcome> => vectors::write;
        set_priorities(space: &str, epoch: Epoch, priorities: &[(ItemKey, Revision, Priority)]) -> usize
            => vectors::set_priorities;
        forget_natives(space: &str, epoch: Epoch, limit: usize) -> usize => vectors::forget_natives;
        sample(sample: &Sample) -> Drawn => pages::sample;
        claim(space: &str, queue: Queue, worker: &str, limit: usize, lease: Duration) -> Claimed => claims::claim;
    }

    fn name(&self) -> String {
        self.0.name()
    }

    /// Returns two: each connection keeps a process of the server at work, and the
    /// application wants some of them.
    fn writers(&self) -> usize {
        2
    }
}

impl Index for PostgresStore {
    passed_on! {
        recall(space: &str, samples: usize, k: usize) -> f64 => search::recall;
        is_ready(space: &str) -> bool => search::is_ready;
    }

    passed_on_in_step! {
        search(space: &str, queries: &Matrix, k: usize, filter: &Filter) -> Vec<Vec<Found>> => search::search;
        search_handicapped(space: &str, queries: &Matrix, k: usize, filter: &Filter, handicap: f64) -> Vec<Vec<Found>>
            => search::search_handicapped;
        search_fused(spaces: &FusedSpaces<'_>, queries: (&Matrix, &Matrix), k: usize, filter: &Filter) -> Option<Vec<Vec<Found>>>
            => search::search_fused;
        prepare(space: &str, advance: &dyn Fn(u64, u64) -> bool) -> () => search::prepare;
        rebuild(space: &str) -> () => search::rebuild;
    }

    fn flush(&self) -> Result<()> {
        // Committed writes last already.
        Ok(())
    }
}

impl Examined for PostgresStore {
    fn check(&self) -> Result<Vec<Problem>> {
        doctor::check(&self.0)
    }

    fn index_health(&self, space: &str) -> Result<IndexHealth> {
        search::health(&self.0, space)
    }

    fn remarks(&self) -> Result<Vec<String>> {
        let mut sentences: Vec<String> = self.0.pgvector.risk().into_iter().collect();
        sentences.extend(adoption::remarks_on_partitions(&self.0)?);
        sentences.extend(release::remarks(&self.0)?);
        sentences.extend(map::remarks(&self.0)?);
        Ok(sentences)
    }

    fn foresee_searches(&self, space: &Space) -> Result<Option<String>> {
        search::foresee(&self.0, space)
    }

    fn lacks_bridge(&self, fingerprint: &str, width: usize) -> Result<bool> {
        bridge::lacks(&self.0, fingerprint, width)
    }

    fn has_dropped_rows(&self) -> Result<bool> {
        Ok(!self.0.database.run(Mode::Read, spaces::dropped_space_numbers)?.is_empty())
    }

    /// Lets the server use the room of dead rows of the gallery's tables again.
    fn compact(&self) -> Result<(u64, u64)> {
        doctor::compact(&self.0)
    }
}
