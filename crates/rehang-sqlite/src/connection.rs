//! Connections to the file, and transactions on them.

use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use rehang_core::{Error, ErrorKind, Result};
use rehang_files::folder_of;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior};

use crate::fairness::Fairness;
use crate::schema;
use crate::trouble::{BUSY, Step, Trouble, explain, refuse};

/// Time between two looks at a lock that another process holds. SQLite's own waiting looks ever more rarely,
/// down to every 100 ms, and misses the moment between two large transactions of the other process again and
/// again.
const LOOKS: Duration = Duration::from_micros(500);

/// Pages of the log that are written before they are moved into the file: 32 MiB.
const CHECKPOINT_PAGES: u32 = 4096;

/// Access with which a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    /// Writing; the file is made where it is not there.
    Create,
    Write,
    Read,
    /// Reading where not even the files that SQLite keeps beside a database can be made, as on a file system
    /// that is mounted read-only.
    ///
    /// SQLite takes no locks then. This is only for a file without a log: what is in one would not be seen.
    Sealed,
}

/// One gallery file: a connection that writes, and as many that read as there are readers at a time.
#[derive(Debug)]
pub(crate) struct Database {
    path: PathBuf,
    access: Access,
    writer: Mutex<Connection>,
    /// Connection of [`Database::write_without_triggers`], opened when it is needed first. It is used under
    /// the lock of `writer`, so that the two never wait for each other.
    bulk: Mutex<Option<Connection>>,
    /// Connection that commits without waiting for the disk; used, as `bulk` is, under the lock of `writer`.
    light: Mutex<Option<Connection>>,
    /// Time for which `bulk` leaves the lock to other processes.
    fairness: Mutex<Fairness>,
    readers: Mutex<Vec<Connection>>,
}

impl Database {
    /// Makes a new gallery; nothing may be there yet.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        match fs_err::metadata(path) {
            Ok(metadata) if metadata.is_dir() => return Err(refuse("create", path, "it is a folder")),
            Ok(metadata) if metadata.len() > 0 && !matches!(Self::find(path), Ok(None)) => {
                return Err(file_exists(path));
            }
            _ => {}
        }
        Self::make(path)
    }

    /// Opens a gallery. A file that is marked read-only can be read, as can one in a read-only file system.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let nothing = "nothing is in it, so it is no gallery; create one there, or name another file";
        Self::find(path)?.ok_or_else(|| Error::corrupt(path.display(), nothing))
    }

    /// Opens the gallery that is there, or makes one where there is none.
    pub(crate) fn open_or_create(path: &Path) -> Result<Self> {
        let gallery = match fs_err::metadata(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            _ => Self::find(path)?,
        };
        // Several processes may find nothing and begin to make a gallery at once.
        gallery.map_or_else(|| Self::make(path), Ok)
    }

    /// Makes a gallery in a file that is not there yet or has nothing in it. Where another process is faster,
    /// this opens the gallery that it has made.
    fn make(path: &Path) -> Result<Self> {
        let folder = folder_of(path);
        if !folder.is_dir() {
            let reason = format!("there is no folder {}; create it first", folder.display());
            return Err(refuse("create", path, &reason));
        }
        let connection = connect(path, Access::Create).map_err(|trouble| explain(path, trouble))?;
        let make = |connection: &Connection| -> Step<()> {
            // Larger pages keep vectors of up to 1,900 coordinates inside a page.
            connection.pragma_update(None, "page_size", 8192)?;
            keep_a_log(connection)?;
            let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
            // Another process may have written between the look at the file and here.
            match Content::read(&transaction)? {
                Content::Nothing => {
                    transaction.execute_batch(&schema::tables())?;
                    transaction.pragma_update(None, "application_id", schema::APPLICATION)?;
                    transaction.pragma_update(None, "user_version", schema::FORMAT)?;
                }
                // Another process made the gallery a moment ago.
                Content::Gallery { format } => expect_known(path, format)?,
                Content::Foreign => return Err(file_exists(path).into()),
            }
            transaction.commit()?;
            Ok(())
        };
        make(&connection).map_err(|trouble| explain(path, trouble))?;
        Ok(Self::on(path, Access::Write, connection))
    }

    /// Opens the gallery of a file; `None` where there is nothing in the file yet.
    ///
    /// So is an empty file, and a database as a process leaves it that is killed while it makes a gallery.
    fn find(path: &Path) -> Result<Option<Self>> {
        let metadata = fs_err::metadata(path).map_err(|error| Error::io("open", path, &error))?;
        if !metadata.is_file() {
            return Err(refuse("open", path, "it is not a file"));
        }
        if metadata.len() == 0 {
            return Ok(None);
        }
        let (access, connection) =
            connect_there(path, &metadata).map_err(|trouble| explain(path, trouble))?;
        let writable = access == Access::Write;
        let content = |connection: &Connection| -> Step<Content> {
            // One snapshot: another process may be making the gallery at this moment.
            let snapshot = Transaction::new_unchecked(connection, TransactionBehavior::Deferred)?;
            Content::read(&snapshot)
        };
        match content(&connection).map_err(|trouble| explain(path, trouble))? {
            Content::Nothing => Ok(None),
            Content::Gallery { format } => {
                expect_known(path, format)?;
                if writable {
                    // A copy that `VACUUM INTO` made has lost its log, as has one in which an application
                    // switched it off.
                    keep_a_log(&connection).map_err(|trouble| explain(path, trouble))?;
                }
                Ok(Some(Self::on(path, access, connection)))
            }
            Content::Foreign => {
                let detail = "it is an SQLite database, but no gallery of rehang; what an application keeps in a table of its own is \
                     imported into a gallery from files, and docs/store.md has the ten lines that write these from BLOBs, JSON or sqlite-vec";
                Err(Error::corrupt(path.display(), detail))
            }
        }
    }

    fn on(path: &Path, access: Access, writer: Connection) -> Self {
        Self {
            path: path.to_path_buf(),
            access,
            writer: Mutex::new(writer),
            bulk: Mutex::default(),
            light: Mutex::default(),
            fairness: Mutex::default(),
            readers: Mutex::default(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn writable(&self) -> bool {
        self.access == Access::Write
    }

    /// Runs one transaction that writes: all of it happens, or nothing.
    pub(crate) fn write<T>(&self, work: impl FnOnce(&Transaction<'_>) -> Step<T>) -> Result<T> {
        if !self.writable() {
            return Err(refuse(
                "write",
                &self.path,
                "the file, or its file system, is read-only; allow writing, then try again",
            ));
        }
        let mut writer = lock(&self.writer);
        let run = || -> Step<T> {
            let transaction = writer.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let value = work(&transaction)?;
            lock(&self.fairness).own_writes();
            transaction.commit()?;
            Ok(value)
        };
        run().map_err(|trouble| explain(&self.path, trouble))
    }

    /// Runs one transaction in which no trigger of the gallery need fire: the caller does everything that the
    /// triggers would have done.
    ///
    /// The triggers cost several times what the rows cost that they keep right. Where an application has
    /// triggers of its own, all of them fire, and find done what they would do. Where other processes write
    /// too, they get their turn between two long transactions.
    pub(crate) fn write_without_triggers<T>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> Step<T>,
    ) -> Result<T> {
        if !self.writable() {
            return self.write(work);
        }
        let pause = lock(&self.fairness).rest(rehang_clock::now());
        if let Some(pause) = pause {
            rehang_clock::wait(pause);
        }
        let _writer = lock(&self.writer);
        let mut bulk = lock(&self.bulk);
        let run = || -> Step<T> {
            let connection = match &mut *bulk {
                Some(connection) => connection,
                slot => {
                    let connection = connect(&self.path, Access::Write)?;
                    // Another connection counts the commits of others in its own way.
                    *lock(&self.fairness) = Fairness::default();
                    slot.insert(connection)
                }
            };
            lock(&self.fairness).look(connection, rehang_clock::now())?;
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let locked = rehang_clock::now();
            let has_other_triggers = transaction
                .prepare_cached(&schema::HAS_OTHER_TRIGGERS)?
                .query_row([], |row| row.get::<_, bool>(0))?;
            // A change of this setting makes SQLite compile every statement of the connection again.
            if transaction.db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER)? != has_other_triggers {
                transaction.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, has_other_triggers)?;
            }
            let value = work(&transaction)?;
            transaction.commit()?;
            lock(&self.fairness).ended(rehang_clock::now(), locked.elapsed());
            Ok(value)
        };
        run().map_err(|trouble| explain(&self.path, trouble))
    }

    /// Runs one transaction that a machine may forget when it loses power, as if it never happened: for what
    /// costs nothing to lose. A kill of the process loses nothing of it.
    pub(crate) fn write_lightly<T>(&self, work: impl FnOnce(&Transaction<'_>) -> Step<T>) -> Result<T> {
        if !self.writable() {
            return self.write(work);
        }
        let _writer = lock(&self.writer);
        let mut light = lock(&self.light);
        let run = || -> Step<T> {
            let connection = match &mut *light {
                Some(connection) => connection,
                slot => {
                    let connection = connect(&self.path, Access::Write)?;
                    connection.pragma_update(None, "synchronous", "NORMAL")?;
                    slot.insert(connection)
                }
            };
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let value = work(&transaction)?;
            lock(&self.fairness).own_writes();
            transaction.commit()?;
            Ok(value)
        };
        run().map_err(|trouble| explain(&self.path, trouble))
    }

    /// Writes the file again without the room that nothing uses any more, and gives its bytes before and
    /// after. The copy lies in SQLite's temporary folder and then in the log, never in memory.
    pub(crate) fn compact(&self) -> Result<(u64, u64)> {
        let bytes = || -> Result<u64> {
            fs_err::metadata(&self.path)
                .map(|metadata| metadata.len())
                .map_err(|error| Error::io("read", &self.path, &error))
        };
        let writer = lock(&self.writer);
        let run = |work: &dyn Fn() -> Step<bool>| work().map_err(|trouble| explain(&self.path, trouble));
        run(&|| truncate_log(&writer))?;
        let before = bytes()?;
        let is_busy = run(&|| {
            writer.pragma_update(None, "temp_store", "FILE")?;
            let written = writer.execute_batch("VACUUM");
            writer.pragma_update(None, "temp_store", "MEMORY")?;
            written?;
            truncate_log(&writer)
        })?;
        if is_busy {
            return Err(ErrorKind::Unavailable {
                service: self.path.display().to_string(),
                detail: "another process reads or writes it, so its file cannot be made smaller yet".into(),
            }
            .into());
        }
        Ok((before, bytes()?))
    }

    /// Writes the log back into the file, which alone is the whole gallery then.
    pub(crate) fn write_back(&self) -> Result<()> {
        lock(&self.readers).clear();
        *lock(&self.bulk) = None;
        *lock(&self.light) = None;
        let writer = lock(&self.writer);
        if truncate_log(&writer).map_err(|trouble| explain(&self.path, trouble))? {
            let detail =
                "another process has it open, so its log cannot be written back; close that one first";
            return Err(Error::conflict(self.path.display(), detail));
        }
        Ok(())
    }

    /// Reads from one snapshot; it never waits for a writer.
    pub(crate) fn read<T>(&self, work: impl FnOnce(&Transaction<'_>) -> Step<T>) -> Result<T> {
        let pooled = lock(&self.readers).pop();
        let mut connection = if let Some(connection) = pooled {
            connection
        } else {
            let access = if self.writable() { Access::Read } else { self.access };
            connect(&self.path, access).map_err(|trouble| explain(&self.path, trouble))?
        };
        let run = || -> Step<T> {
            let transaction = connection.transaction()?;
            let value = work(&transaction)?;
            transaction.commit()?;
            Ok(value)
        };
        let result = run().map_err(|trouble| explain(&self.path, trouble));
        let mut readers = lock(&self.readers);
        if readers.len() < READERS_KEPT {
            readers.push(connection);
        }
        result
    }

    /// Locks the connection that writes, outside of a transaction: for tests.
    #[cfg(test)]
    pub(crate) fn writer(&self) -> MutexGuard<'_, Connection> {
        lock(&self.writer)
    }

    /// Locks the connection of writes without triggers, for tests that set limits on it. It is there once
    /// something was written through it.
    #[cfg(test)]
    pub(crate) fn bulk_writer(&self) -> MutexGuard<'_, Option<Connection>> {
        lock(&self.bulk)
    }
}

/// Writes the log back into the file and empties it; `true` where other connections kept it from that.
fn truncate_log(connection: &Connection) -> Step<bool> {
    Ok(connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?)
}

impl Drop for Database {
    /// Closes the connection that writes last: SQLite then writes the log back and removes it, which a
    /// connection that only reads cannot do.
    fn drop(&mut self) {
        lock(&self.readers).clear();
        *lock(&self.bulk) = None;
        *lock(&self.light) = None;
    }
}

/// Content of a database, as far as it decides whether it is a gallery.
enum Content {
    /// Nothing: neither a table nor a mark of an application.
    Nothing,
    /// Gallery of some format.
    Gallery { format: i64 },
    /// Database of another application.
    Foreign,
}

impl Content {
    fn read(connection: &Connection) -> Step<Self> {
        let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let (application, version) = (number("application_id")?, number("user_version")?);
        if application == schema::APPLICATION {
            return Ok(Self::Gallery { format: version });
        }
        let has_tables: bool =
            connection.query_row("SELECT EXISTS (SELECT 1 FROM sqlite_schema)", [], |row| row.get(0))?;
        let is_marked = application != 0 || version != 0;
        Ok(if has_tables || is_marked { Self::Foreign } else { Self::Nothing })
    }
}

/// Fails where another rehang has written the file, in a format that this one does not know. Formats before 5
/// were never released.
fn expect_known(path: &Path, format: i64) -> Result<()> {
    let known_format = schema::FORMAT;
    if format == known_format {
        return Ok(());
    }
    let way_out = if format > known_format {
        "use the newer rehang that wrote it"
    } else {
        "it is older than the first release: export it with the rehang that wrote it, then make it anew"
    };
    let detail = format!("it has format {format}, and this rehang knows format {known_format}; {way_out}");
    Err(Error::conflict(path.display(), detail))
}

fn file_exists(path: &Path) -> Error {
    Error::conflict(path.display(), "a file is there already; open it, or give the new gallery another name")
}

/// Makes a file keep a log, if it does not: writers and readers need it to be at work at the same time.
///
/// Where two processes do so at once, each has what the other one waits for, so SQLite refuses one of them
/// without any waiting. That one tries again.
fn keep_a_log(connection: &Connection) -> Step<()> {
    let began = rehang_clock::now();
    loop {
        match connection.pragma_update(None, "journal_mode", "WAL") {
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) && began.elapsed() < BUSY =>
            {
                rehang_clock::wait(LOOKS);
            }
            result => return Ok(result?),
        }
    }
}

/// Largest number of reading connections that stay open between calls.
const READERS_KEPT: usize = 16;

/// Locks a mutex, also after a panic of another thread: nothing that our locks protect is left half-changed
/// by one, since transactions roll back and derived parts can be made again.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps SQLite from counting every allocation of the process under one lock, by which a thread that reads
/// slows down the one that writes.
///
/// This crate never reads the count. It can be switched off only before the first connection of the process.
/// Where another part of the process has opened one earlier, it stays on, and all is as right and a little
/// slower.
fn count_no_allocations() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: this option takes one `int`. The call is refused, without effect, once SQLite is at work;
        // every connection of this crate is opened after it, by `connect`.
        unsafe {
            rusqlite::ffi::sqlite3_config(rusqlite::ffi::SQLITE_CONFIG_MEMSTATUS, 0_i32);
        }
    });
}

fn connect(path: &Path, access: Access) -> Step<Connection> {
    count_no_allocations();
    let write = matches!(access, Access::Create | Access::Write);
    let mut flags = OpenFlags::SQLITE_OPEN_NO_MUTEX;
    flags |= if write { OpenFlags::SQLITE_OPEN_READ_WRITE } else { OpenFlags::SQLITE_OPEN_READ_ONLY };
    if access == Access::Create {
        flags |= OpenFlags::SQLITE_OPEN_CREATE;
    }
    let mut connection = match access {
        Access::Sealed => Connection::open_with_flags(sealed(path), flags | OpenFlags::SQLITE_OPEN_URI)?,
        _ => Connection::open_with_flags(path, flags)?,
    };
    connection.busy_handler(Some(look_again))?;
    connection.set_prepared_statement_cache_capacity(128);
    // Triggers of ours do what foreign keys would, so that it holds for writers who do not switch them on.
    connection.pragma_update(None, "foreign_keys", false)?;
    connection.pragma_update(None, "cache_size", if write { -65_536 } else { -16_384 })?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    if write {
        // A commit is on the disk when it returns, also if the machine loses power.
        connection.pragma_update(None, "synchronous", "FULL")?;
        // On macOS an ordinary sync may leave bytes in the disk's own memory; elsewhere these two do nothing.
        connection.pragma_update(None, "fullfsync", true)?;
        connection.pragma_update(None, "checkpoint_fullfsync", true)?;
        connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
        connection.pragma_update(None, "journal_size_limit", 64 << 20)?;
    }
    Ok(connection)
}

/// Opens a connection to a file that is there, with as much access as the system gives.
fn connect_there(path: &Path, metadata: &Metadata) -> Step<(Access, Connection)> {
    // SQLite itself asks the system: if this process opened and closed the file by itself, the system would
    // release its locks.
    let may_write = || -> Step<bool> {
        let flags = OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_READ_WRITE;
        Ok(!Connection::open_with_flags(path, flags)?.is_readonly("main")?)
    };
    let access =
        if !metadata.permissions().readonly() && may_write()? { Access::Write } else { Access::Read };
    match connect(path, access) {
        Err(Trouble::Sql(error))
            if error.sqlite_error_code() == Some(ErrorCode::CannotOpen) && !log_of(path).exists() =>
        {
            Ok((Access::Sealed, connect(path, Access::Sealed)?))
        }
        connection => Ok((access, connection?)),
    }
}

/// Path of the log that SQLite keeps beside a file while anybody has it open for writing.
fn log_of(path: &Path) -> PathBuf {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    log.into()
}

/// Turns a path into an address for SQLite, for a file that nobody changes.
fn sealed(path: &Path) -> String {
    let path = path.display().to_string().replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    // The drive of a Windows path must not be read as a host.
    let path = if cfg!(windows) { format!("/{}", path.replace('\\', "/")) } else { path };
    format!("file:{path}?immutable=1")
}

/// Waits before the next look at a lock that another process holds; `false` when it has been waited for long
/// enough.
fn look_again(looks: i32) -> bool {
    let waits = u64::try_from(looks).is_ok_and(|looks| looks < (BUSY.as_micros() / LOOKS.as_micros()) as u64);
    if waits {
        rehang_clock::wait(LOOKS);
    }
    waits
}
