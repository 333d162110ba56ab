//! Connections, and transactions that are made again where the server was away or another transaction was in the way.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use postgres::error::SqlState;
use postgres::types::ToSql;
use postgres::{Client, Row, Statement};
use rehang::{Error, ErrorKind, Result};

use crate::address::Address;

/// How long a call tries to reach a server that is away, as while it starts again, or that another transaction keeps locked.
const PATIENCE: Duration = Duration::from_secs(30);
/// Waits between two tries grow up to this.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Every connection begins with this. No statement of ours waits long for a lock, so nobody waits long behind it. Plans are made for the very
/// keys that are asked for: one for any number of them reads whole tables, as does one that takes a page of an index for as dear as on a
/// disk that turns. Names are the server's own (see [`crate::guard`]). A standby takes these and the begin of a transaction that writes; its
/// first statement that writes is refused as read-only.
///
/// A role's own timeouts are made for its application: an index of ours takes minutes, and a lock that lasts as long as its session may rest
/// for hours. What ends us instead: the server closes a transaction whose client says nothing, and a connection whose other end is gone.
const SESSION: &str = "SET search_path = pg_catalog, pg_temp; SET lock_timeout = '2s'; SET statement_timeout = 0; SET idle_session_timeout = 0;
    SET idle_in_transaction_session_timeout = '10s'; SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5;
    SET tcp_keepalives_count = 3; SET tcp_user_timeout = '30s'; SET default_transaction_read_only = off;
    SET default_transaction_isolation = 'read committed'; SET jit = off; SET random_page_cost = 1.1;
    SET plan_cache_mode = force_custom_plan;";

/// Parameters of a statement.
pub(crate) type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

/// A server's database: connections that are opened as they are needed and kept.
pub(crate) struct Database {
    address: Address,
    name: String,
    /// The application's table: a reader takes it first, as the application's own statements do, so that none waits for the other.
    table: OnceLock<String>,
    idle: Mutex<Vec<Connection>>,
}

/// How a transaction sees others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Reads, all of one moment.
    Read,
    /// Writes; each statement sees what is committed by then.
    Write,
    /// Writes that may be lost with the machine: leases.
    WriteLightly,
    /// Writes by statements each of which is a transaction of its own, and goes to the server as a whole: no lock of theirs waits for this
    /// process, which may be frozen or gone by then.
    Statements,
}

impl Mode {
    fn begin(self) -> Option<&'static str> {
        match self {
            Self::Read => Some("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"),
            Self::Write => Some("BEGIN ISOLATION LEVEL READ COMMITTED"),
            Self::WriteLightly => {
                Some("BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL synchronous_commit = off")
            }
            Self::Statements => None,
        }
    }
}

/// Why a step of a transaction failed.
pub(crate) enum StepError {
    /// The server said so, or is gone.
    Server(postgres::Error),
    /// A promise of the contract would have been broken.
    Ours(Error),
    /// Another transaction is in the way for a moment.
    Busy,
}

impl From<postgres::Error> for StepError {
    fn from(error: postgres::Error) -> Self {
        Self::Server(error)
    }
}

impl From<Error> for StepError {
    fn from(error: Error) -> Self {
        Self::Ours(error)
    }
}

/// What a step of a transaction gives.
pub(crate) type Step<T> = std::result::Result<T, StepError>;

/// One session of the server, with the statements that it has prepared.
pub(crate) struct Connection {
    client: Client,
    prepared: BTreeMap<String, Statement>,
}

impl Connection {
    fn prepare(&mut self, sql: &str) -> Step<Statement> {
        if let Some(statement) = self.prepared.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(sql)?;
        self.prepared.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    pub(crate) fn query(&mut self, sql: &str, parameters: Parameters<'_>) -> Step<Vec<Row>> {
        let statement = self.prepare(sql)?;
        Ok(self.client.query(&statement, parameters)?)
    }

    pub(crate) fn query_opt(&mut self, sql: &str, parameters: Parameters<'_>) -> Step<Option<Row>> {
        let statement = self.prepare(sql)?;
        Ok(self.client.query_opt(&statement, parameters)?)
    }

    pub(crate) fn query_one(&mut self, sql: &str, parameters: Parameters<'_>) -> Step<Row> {
        let statement = self.prepare(sql)?;
        Ok(self.client.query_one(&statement, parameters)?)
    }

    pub(crate) fn count(&mut self, sql: &str, parameters: Parameters<'_>) -> Step<u64> {
        Ok(self.query_one(sql, parameters)?.try_get::<_, i64>(0)?.max(0) as u64)
    }

    pub(crate) fn execute(&mut self, sql: &str, parameters: Parameters<'_>) -> Step<u64> {
        let statement = self.prepare(sql)?;
        Ok(self.client.execute(&statement, parameters)?)
    }

    /// Runs statements that are not worth preparing.
    pub(crate) fn batch(&mut self, sql: &str) -> Step<()> {
        Ok(self.client.batch_execute(sql)?)
    }
}

impl Database {
    /// Reads the address, and sees whether a server is there.
    pub(crate) fn open(address: &str) -> Result<Self> {
        let address = Address::parse(address)?;
        let database =
            Self { name: address.shown(), address, table: OnceLock::new(), idle: Mutex::default() };
        let first = database.connect().map_err(|error| database.refused(&error))?;
        database.give_back(first);
        Ok(database)
    }

    /// `host/database`: what may be shown.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn connect(&self) -> std::result::Result<Connection, postgres::Error> {
        let mut client = self.address.connect()?;
        client.batch_execute(SESSION)?;
        Ok(Connection { client, prepared: BTreeMap::new() })
    }

    fn give_back(&self, connection: Connection) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
    }

    /// Names the application's table.
    pub(crate) fn is_about(&self, qualified: &str) {
        self.table.get_or_init(|| qualified.to_owned());
    }

    fn begin(&self, mode: Mode) -> Option<String> {
        let begin = mode.begin()?;
        Some(match self.table.get().filter(|_| mode != Mode::Write) {
            Some(table) => format!("{begin}; LOCK TABLE {table} IN ACCESS SHARE MODE"),
            None => begin.to_owned(),
        })
    }

    /// A session that nobody else uses, for what has to be done outside of a transaction or for a lock that lasts.
    pub(crate) fn session(&self) -> Result<Connection> {
        self.connect().map_err(|error| self.refused(&error))
    }

    /// Makes a transaction, again and again while the server is away or others are in the way.
    pub(crate) fn run<T>(&self, mode: Mode, mut work: impl FnMut(&mut Connection) -> Step<T>) -> Result<T> {
        let began = rehang_clock::now();
        let mut pause = Duration::from_millis(5);
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let failure = match idle.map_or_else(|| self.connect(), Ok) {
                Err(error) => Some(error),
                Ok(mut connection) => {
                    match transaction(&mut connection, self.begin(mode).as_deref(), &mut work) {
                        Ok(done) => {
                            self.give_back(connection);
                            return Ok(done);
                        }
                        Err(failure) => {
                            // A standby is left, too: another server may have taken over by now.
                            let is_read_only = matches!(&failure, StepError::Server(error) if error.code() == Some(&READ_ONLY));
                            if !is_read_only
                                && !connection.client.is_closed()
                                && (mode == Mode::Statements
                                    || connection.client.batch_execute("ROLLBACK").is_ok())
                            {
                                self.give_back(connection);
                            } else {
                                // The others were lost with it, most likely.
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
            // Somebody's own search may be cancelled on purpose; what an upgrade writes is cancelled by mistake, or by a rule for others.
            let may_pass =
                |failure: &postgres::Error| passes(failure) || mode != Mode::Read && is_cancelled(failure);
            if let Some(failure) = failure.filter(|failure| !may_pass(failure) || began.elapsed() > PATIENCE)
            {
                return Err(self.refused(&failure));
            }
            rehang_clock::wait(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// What the server said, in the words of this library.
    pub(crate) fn refused(&self, error: &postgres::Error) -> Error {
        let service = format!("PostgreSQL at {}", self.name);
        let Some(said) = error.as_db_error() else {
            let detail = chain(error);
            // Neither is there when it is tried again.
            if detail.contains("password missing") {
                return Error::missing("a password (PGPASSWORD, or a line of .pgpass)", service);
            }
            if detail.contains("peer certificate") {
                let said = format!("{detail}; sslrootcert names the authorities that are trusted");
                return Error::conflict(format!("the certificate of {service}"), said);
            }
            return ErrorKind::Unavailable { service, detail }.into();
        };
        let mut detail = said.message().to_owned();
        for more in [said.detail(), said.hint()].into_iter().flatten() {
            detail += &format!("; {more}");
        }
        match said.code() {
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
            &SqlState::DEPENDENT_OBJECTS_STILL_EXIST => {
                let who = said.detail().unwrap_or_default().replace('\n', "; ");
                Error::conflict(
                    service,
                    format!("{}; {who}; what depends on it has to go first", said.message()),
                )
            }
            _ if passes(error) || is_cancelled(error) || is_of_the_server(error) => {
                ErrorKind::Unavailable { service, detail }.into()
            }
            code => Error::corrupt(service, format!("{detail} ({})", code.code())),
        }
    }

    /// The same of a step that runs outside of [`Database::run`].
    pub(crate) fn failed(&self, failure: StepError) -> Error {
        match failure {
            StepError::Ours(error) => error,
            StepError::Server(error) => self.refused(&error),
            StepError::Busy => {
                let detail = "other transactions are in the way".into();
                ErrorKind::Unavailable { service: self.name.clone(), detail }.into()
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
    begin: Option<&str>,
    work: &mut impl FnMut(&mut Connection) -> Step<T>,
) -> Step<T> {
    let Some(begin) = begin else { return work(connection) };
    connection.batch(begin)?;
    let done = work(connection)?;
    connection.batch("COMMIT")?;
    Ok(done)
}

/// What a standby says to a write, until it takes over.
const READ_ONLY: SqlState = SqlState::READ_ONLY_SQL_TRANSACTION;

/// Whether the same call may succeed a little later: the server starts again or takes over, or another transaction is in the way.
fn passes(error: &postgres::Error) -> bool {
    let Some(code) = error.code() else {
        // No word of the server: the connection is gone, or none was made. Anything else is wrong for good.
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
            READ_ONLY,
        ]
        .contains(code)
        // transaction_timeout, of PostgreSQL 17.
        || code.code() == "25P04"
}

/// Whether somebody ended the statement: a timeout, or a person.
fn is_cancelled(error: &postgres::Error) -> bool {
    error.code() == Some(&SqlState::QUERY_CANCELED)
}

/// Whether the state of the server is to blame, and neither the statement nor its values: resources (53), limits (54), objects in use (55), the
/// system (58), defects (XX).
fn is_of_the_server(error: &postgres::Error) -> bool {
    error.code().is_some_and(|code| ["53", "54", "55", "58", "XX"].contains(&&code.code()[..2]))
}

fn has_io_error(error: &postgres::Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if cause.is::<std::io::Error>() {
            return true;
        }
        source = cause.source();
    }
    false
}

/// An error with its causes: alone it says little ("error connecting to server").
fn chain(error: &postgres::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let said = cause.to_string();
        if !text.contains(&said) {
            text += &format!(": {said}");
        }
        source = cause.source();
    }
    text
}
