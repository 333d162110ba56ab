//! Connections to the server, and transactions that are made again where the server was away or another
//! transaction was in the way.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rehang_connect::{certificate_error, untrusted};
use rehang_core::{Error, ErrorKind, Party, Remedy, Result};
use tokio_postgres::error::SqlState;

use crate::address::{Address, ROOT_CERTIFICATES};
pub(crate) use crate::client::{BoundStatement, Connection, Parameters};

/// How long a call tries again while the server is away (for example restarts) or another
/// transaction keeps a lock.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest pause between two tries; pauses grow up to it.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Settings with which every transaction begins and which end with it: a pooler gives the session to the
/// application afterwards.
///
/// No statement of ours waits long for a lock, so statements of the application do not wait long behind it.
/// Plans are made for the very keys that are asked for: a plan for any number of keys reads whole tables. So
/// does a plan that takes reading a page of an index for as costly as on a spinning disk. Names are the
/// server's own (see [`crate::guard`]).
///
/// A role's own timeouts are made for its application and are set aside. Instead, the server closes a
/// transaction whose client says nothing.
const SETTINGS: &str = "SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL lock_timeout = '2s'; SET LOCAL statement_timeout = 0;
    SET LOCAL idle_in_transaction_session_timeout = '10s'; SET LOCAL jit = off; SET LOCAL random_page_cost = 1.1;
    SET LOCAL plan_cache_mode = force_custom_plan; SET LOCAL quote_all_identifiers = off";

/// Options that a connection asks for where it begins. A server that is spoken to directly keeps them for as
/// long as the connection, and gives up a connection whose other end is gone. A pooler refuses them or passes
/// nothing on, which tells that no session is ours.
const OWN_SESSION: &str = "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3 -c tcp_user_timeout=30s \
    -c rehang.session=own";

/// Database of a server, with connections that are opened as they are needed and kept.
pub(crate) struct Database {
    address: Address,
    name: String,
    /// Statements about the application's table for the begin of transactions. Transactions that read take
    /// its lock first, as the application's own statements do, so that neither waits for the other.
    table: OnceLock<About>,
    idle: Mutex<Vec<Connection>>,
    /// Whether connections are made without [`OWN_SESSION`], which was refused.
    is_pooled: AtomicBool,
}

/// Parts of a transaction's begin that are about the application's table.
struct About {
    lock: String,
    settings: String,
}

/// How a transaction sees others, and what it may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Reads everything as of one moment.
    Read,
    /// Reads everything as of one moment by one call to the server, which has the begin and the end in it.
    ReadAtOnce,
    /// Writes; each statement sees what is committed when it begins.
    Write,
    /// Writes what may be lost with the machine: leases.
    WriteLightly,
    /// Writes by statements each of which is a transaction of its own and goes to the server as a whole. None
    /// of their locks waits for this process, which may be frozen or gone by then.
    Statements,
}

impl Mode {
    /// Whether each call to the server is a transaction of its own.
    fn is_by_calls(self) -> bool {
        matches!(self, Self::Statements | Self::ReadAtOnce)
    }

    fn reads(self) -> bool {
        matches!(self, Self::Read | Self::ReadAtOnce)
    }

    fn begin(self) -> &'static str {
        match self {
            Self::Read | Self::ReadAtOnce => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
            Self::Write | Self::Statements => "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
            Self::WriteLightly => {
                "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL synchronous_commit = off"
            }
        }
    }
}

/// Reason why a step of a transaction failed.
pub(crate) enum StepError {
    /// The server refused the step, or is gone.
    Server(tokio_postgres::Error),
    /// A promise of the contract would have been broken.
    Ours(Error),
    /// A lock of another transaction is in the way for a moment, so the step may succeed later.
    Busy,
}

impl From<tokio_postgres::Error> for StepError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Server(error)
    }
}

impl From<Error> for StepError {
    fn from(error: Error) -> Self {
        Self::Ours(error)
    }
}

/// Result of a step of a transaction.
pub(crate) type Step<T> = std::result::Result<T, StepError>;

impl Database {
    /// Reads the address, and makes a first connection to see whether a server is there.
    pub(crate) fn open(address: &str, root_certificates: Option<&Path>) -> Result<Self> {
        let address = Address::parse(address, root_certificates)?;
        let database = Self {
            name: address.shown(),
            address,
            table: OnceLock::new(),
            idle: Mutex::default(),
            is_pooled: AtomicBool::default(),
        };
        let first = database.connect().map_err(|failure| database.failed(failure))?;
        database.give_back(first);
        Ok(database)
    }

    /// Returns the name of the database that may be shown: `host/database`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn connect(&self) -> Step<Connection> {
        let open = |options: &str| Connection::open(&self.address.with_options(options), self.address.tls());
        if self.is_pooled.load(Ordering::Relaxed) {
            return open("");
        }
        match open(OWN_SESSION) {
            Err(StepError::Server(error)) if refuses_options(&error) => {
                let connection = open("")?;
                self.is_pooled.store(true, Ordering::Relaxed);
                Ok(connection)
            }
            opened => opened,
        }
    }

    fn give_back(&self, connection: Connection) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
    }

    /// Names the application's table, and the settings of transactions that work on it.
    pub(crate) fn set_table(&self, table: &str, settings: &[(&str, &str)]) {
        self.table.get_or_init(|| About {
            lock: format!("; LOCK TABLE {table} IN ACCESS SHARE MODE"),
            settings: settings.iter().map(|(name, value)| format!("; SET LOCAL {name} = {value}")).collect(),
        });
    }

    /// Returns the statements with which a transaction begins.
    pub(crate) fn begin(&self, mode: Mode) -> String {
        let begin = format!("{}; {SETTINGS}", mode.begin());
        let Some(About { lock, settings }) = self.table.get() else { return begin };
        let lock = if mode.reads() || mode == Mode::WriteLightly { lock } else { "" };
        format!("{begin}{settings}{lock}")
    }

    /// Opens a connection outside of the shared ones, for statements that cannot be part of a transaction.
    pub(crate) fn session(&self) -> Result<Session> {
        let failed = |failure| self.failed(failure);
        let mut connection = self.connect().map_err(failed)?;
        let sql = "SELECT coalesce(current_setting('rehang.session', true) = 'own', false)";
        let is_own = connection.query_one(sql, &[]).and_then(|row| Ok(row.try_get(0)?)).map_err(failed)?;
        Ok(Session { connection, is_own })
    }

    /// Runs a statement in a transaction of its own, which waits for others for as long as it takes.
    pub(crate) fn patiently(&self, sql: &str) -> Result<()> {
        let begin = self.begin(Mode::Write);
        let mut session = self.session()?;
        let sql = format!("{begin}; SET LOCAL lock_timeout = 0; {sql}; COMMIT");
        session.connection.batch(&sql).map_err(|failure| self.failed(failure))
    }

    /// Runs a transaction, again and again while the server is away or others are in the way.
    pub(crate) fn run<T>(&self, mode: Mode, mut work: impl FnMut(&mut Connection) -> Step<T>) -> Result<T> {
        let began = rehang_clock::now();
        let mut pause = Duration::from_millis(5);
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let failure = match idle.map_or_else(|| self.connect(), Ok) {
                Err(StepError::Ours(error)) => return Err(error),
                Err(StepError::Server(error)) => Some(error),
                Err(StepError::Busy) => None,
                Ok(mut connection) => {
                    match transaction(&mut connection, mode, &self.begin(mode), &mut work) {
                        Ok(done) => {
                            self.give_back(connection);
                            return Ok(done);
                        }
                        Err(failure) => {
                            // A connection to a standby is given up, too: another server may
                            // have taken over by now.
                            let is_read_only =
                                matches!(&failure, StepError::Server(error) if is_standby(error));
                            if !is_read_only
                                && !connection.is_closed()
                                && (mode.is_by_calls() || connection.batch("ROLLBACK").is_ok())
                            {
                                self.give_back(connection);
                            } else {
                                // Most likely the idle connections were lost with it.
                                self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
                            }
                            match failure {
                                StepError::Ours(error) => return Err(error),
                                StepError::Server(error) => Some(error),
                                StepError::Busy => None,
                            }
                        }
                    }
                }
            };
            // An application's own search may be cancelled on purpose. A write of an upgrade is cancelled by
            // mistake, or by a rule for others, so it is tried again.
            let may_pass =
                |failure: &tokio_postgres::Error| passes(failure) || !mode.reads() && is_cancelled(failure);
            if let Some(failure) = failure.filter(|failure| !may_pass(failure) || began.elapsed() > PATIENCE)
            {
                return Err(self.refused(&failure));
            }
            rehang_clock::wait(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Turns an error of the server into one in the words of this library, which blames the server.
    pub(crate) fn refused(&self, error: &tokio_postgres::Error) -> Error {
        self.meaning(error).blame(Party::Database)
    }

    /// Turns an error of the server into one in the words of this library.
    fn meaning(&self, error: &tokio_postgres::Error) -> Error {
        let service = format!("PostgreSQL at {}", self.name);
        let Some(report) = error.as_db_error() else {
            let detail = chain(error);
            // A missing password and a wrong certificate stay as they are when the call is tried again.
            if detail.contains("password missing") {
                return Error::missing("a password (PGPASSWORD, or a line of .pgpass)", service);
            }
            if let Some(why) = certificate_error(error) {
                return untrusted(service, why, self.address.trusted(), &[ROOT_CERTIFICATES, "sslrootcert"]);
            }
            return ErrorKind::Unavailable { service, detail }.into();
        };
        let mut detail = report.message().to_owned();
        for more in [report.detail(), report.hint()].into_iter().flatten() {
            detail += &format!("; {more}");
        }
        match report.code() {
            code if [SqlState::INVALID_PASSWORD, SqlState::INVALID_AUTHORIZATION_SPECIFICATION]
                .contains(code) =>
            {
                ErrorKind::Unauthorised { service, detail }.into()
            }
            &SqlState::INVALID_CATALOG_NAME => {
                let database = self.name.rsplit('/').next().unwrap_or_default();
                Error::not_found("database", database, service)
            }
            &SqlState::INSUFFICIENT_PRIVILEGE => Error::option(
                "the role of the connection",
                self.name(),
                format!(
                    "one that may do this ({detail}); an owner of the table may run the statements in its place"
                ),
            ),
            &SqlState::UNDEFINED_COLUMN | &SqlState::UNDEFINED_TABLE => {
                let why = "a table or a column of the gallery has another name since it was opened, or is gone; open it again, which says what to do";
                Error::conflict(service, format!("{detail}: {why}")).advise(Remedy::AdoptTable)
            }
            &SqlState::DEPENDENT_OBJECTS_STILL_EXIST => {
                let who = report.detail().unwrap_or_default().replace('\n', "; ");
                Error::conflict(
                    service,
                    format!("{}; {who}; what depends on it has to go first", report.message()),
                )
            }
            _ if report.message().contains("shared memory segment") => {
                let what = format!("{SHARED_MEMORY} of {service}");
                let why = format!(
                    "{detail}; it is too small for what several processes of the server build together, as /dev/shm of a container is with 64 MiB: give it \
                     more (1 GiB, say), or set max_parallel_maintenance_workers = 0"
                );
                Error::conflict(what, why)
            }
            code if [SqlState::LOCK_NOT_AVAILABLE, SqlState::T_R_DEADLOCK_DETECTED].contains(code) => {
                let detail = format!(
                    "transactions of others keep locks that this needs, and pg_stat_activity names them: {detail}"
                );
                ErrorKind::Unavailable { service, detail }.into()
            }
            _ if passes(error) || is_cancelled(error) || is_of_the_server(error) => {
                ErrorKind::Unavailable { service, detail }.into()
            }
            code => Error::corrupt(service, format!("{detail} ({})", code.code())),
        }
    }

    /// Turns the failure of a step that ran outside of [`Database::run`] into an error of this library.
    pub(crate) fn failed(&self, failure: StepError) -> Error {
        match failure {
            StepError::Ours(error) => error,
            StepError::Server(error) => self.refused(&error),
            StepError::Busy => {
                let detail = "other transactions are in the way".into();
                let busy = ErrorKind::Unavailable { service: self.name.clone(), detail };
                Error::from(busy).blame(Party::Database)
            }
        }
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Database").field(&self.name).finish()
    }
}

fn transaction<T>(
    connection: &mut Connection,
    mode: Mode,
    begin: &str,
    work: &mut impl FnMut(&mut Connection) -> Step<T>,
) -> Step<T> {
    if mode.is_by_calls() {
        connection.each_alone(Some(begin.to_owned()));
        let done = work(connection);
        connection.each_alone(None);
        return done;
    }
    connection.batch(begin)?;
    let done = work(connection)?;
    connection.batch("COMMIT")?;
    Ok(done)
}

/// Connection for statements that cannot be part of a transaction.
pub(crate) struct Session {
    pub(crate) connection: Connection,
    /// Whether the server's session is ours for as long as the connection. Behind a pooler it is not: each
    /// statement may get any session.
    pub(crate) is_own: bool,
}

impl Session {
    /// Prepares the session for statements that wait `patience` for others and take as long as they need. A
    /// pooler's session belongs to others, so nothing can be set there: where one of its settings would end
    /// such a statement, or let a build go wrong, this fails.
    pub(crate) fn prepare(&mut self, patience: &str, builds_in_parallel: bool) -> Step<()> {
        if self.is_own {
            let workers = if builds_in_parallel { "" } else { "SET max_parallel_maintenance_workers = 0;" };
            return self.connection.batch(&format!(
                "SET search_path = pg_catalog, pg_temp; SET statement_timeout = 0; SET lock_timeout = '{patience}';
                 SET default_transaction_read_only = off; {workers}"
            ));
        }
        let rules = self.connection.query(
            "SELECT concat(name, ' = ', setting, unit) FROM pg_catalog.pg_settings
             WHERE name IN ('statement_timeout', 'lock_timeout', 'transaction_timeout') AND setting <> '0'
                 OR name = 'max_parallel_maintenance_workers' AND setting <> '0' AND NOT $1
             ORDER BY 1",
            &[&builds_in_parallel],
        )?;
        let rules: Vec<String> =
            rules.iter().map(|row| row.try_get(0)).collect::<std::result::Result<_, _>>()?;
        if rules.is_empty() {
            return Ok(());
        }
        let why = format!(
            "its sessions have {}, which would end it or harm it, and are not ours to change; give the address of the server itself for this step",
            rules.join(" and ")
        );
        Err(Error::conflict("a search index that is made or removed through a pooler", why).into())
    }
}

/// First words of an error where the server's processes could not share memory.
pub(crate) const SHARED_MEMORY: &str = "the shared memory";

/// Whether a pooler refuses the options with which a connection begins.
fn refuses_options(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(|report| {
        let words = report.message().to_lowercase();
        words.contains("startup parameter") || words.contains("options")
    })
}

/// Code with which a standby refuses a write until it takes over, and the begin of a
/// transaction that may write.
const READ_ONLY: SqlState = SqlState::READ_ONLY_SQL_TRANSACTION;

fn is_standby(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(|report| {
        *report.code() == READ_ONLY
            || *report.code() == SqlState::FEATURE_NOT_SUPPORTED
                && report.routine() == Some("call_bool_check_hook")
    })
}

/// Whether the same call may succeed a little later: the server restarts or takes over, or another
/// transaction is in the way.
fn passes(error: &tokio_postgres::Error) -> bool {
    let Some(code) = error.code() else {
        // Without a code from the server the connection is gone, or none was made. Anything else stays wrong.
        return error.is_closed() || has_io_error(error);
    };
    let class = &code.code()[..2];
    class == "08"
        || class == "57" && !is_cancelled(error)
        || [
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::LOCK_NOT_AVAILABLE,
            SqlState::TOO_MANY_CONNECTIONS,
            SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
        ]
        .contains(code)
        || is_standby(error)
        // Code of transaction_timeout, of PostgreSQL 17.
        || code.code() == "25P04"
}

/// Whether a timeout or a person ended the statement.
fn is_cancelled(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::QUERY_CANCELED)
}

/// Whether the state of the server is to blame, and neither the statement nor its values: resources (53),
/// limits (54), objects in use (55), the system (58), defects (XX).
fn is_of_the_server(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| ["53", "54", "55", "58", "XX"].contains(&&code.code()[..2]))
}

fn has_io_error(error: &tokio_postgres::Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if cause.is::<std::io::Error>() {
            return true;
        }
        source = cause.source();
    }
    false
}

/// Returns the text of an error with its causes: alone it says little ("error connecting to server").
fn chain(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let message = cause.to_string();
        if !text.contains(&message) {
            text += &format!(": {message}");
        }
        source = cause.source();
    }
    text
}
