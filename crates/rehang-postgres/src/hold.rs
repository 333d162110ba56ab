//! Hold on the upgrade of a gallery, so that one process at a time works on it.
//!
//! It is a lease in a row, since a lock of a session would not do: behind a pooler the session is another's a
//! moment later. The lease runs by the server's clock, and its holder renews it. A process that speaks to the
//! server directly leaves its session's number there. Where that session has ended, the next process need not
//! wait for the lease to run out.
//!
//! **Invariant**: the hold only keeps two processes from doing the same work. Nothing else depends on it:
//! every write is right or wrong by its own conditions.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use rehang_core::{Error, Remedy, Result};

use crate::connection::{Mode, Session, Step};
use crate::handle::Handle;

/// Name of the hold's row among the documents of a gallery.
const NAME: &str = "rehang.hold";
/// How long a holder that says nothing is waited for.
const LEASE: Duration = Duration::from_secs(10);
/// How often a holder renews its lease.
const RENEWAL: Duration = Duration::from_secs(3);
/// How long the server may take to notice that a holder which spoke to it directly is gone.
const LAST_WORDS: Duration = Duration::from_millis(250);

/// Hold that keeps other processes from working on the upgrade of a gallery; see
/// [`PostgresStore::hold`](crate::PostgresStore::hold).
pub struct Hold {
    stop: Option<mpsc::Sender<()>>,
    keeper: Option<JoinHandle<()>>,
}

/// Version of the lease, and the server process of its holder where that is known.
type Held = (String, Option<String>);

/// Holder of the lease, with a connection of its own.
struct Holder {
    handle: Arc<Handle>,
    session: Session,
    /// Random name by which the lease knows its holder.
    id: String,
}

impl Holder {
    fn new(handle: Arc<Handle>) -> Result<Self> {
        let mut session = handle.database.session()?;
        session.connection.each_alone(Some(handle.database.begin(Mode::Write)));
        let id = session.connection.query_one("SELECT gen_random_uuid()::text", &[]);
        let id = id.and_then(|row| Ok(row.try_get(0)?)).map_err(|failure| handle.database.failed(failure))?;
        Ok(Self { handle, session, id })
    }

    /// Takes or renews the lease. Returns what the lease says where another process has it.
    fn take(&mut self) -> Step<Option<Held>> {
        let process = "SELECT concat(pid, ' ', extract(epoch FROM backend_start)) FROM pg_stat_activity WHERE pid = pg_backend_pid()";
        let process = if self.session.is_own { format!("({process})") } else { "NULL".into() };
        // A session of another role shows its number and nothing else.
        let is_free = "d.text::jsonb ->> 'holder' = $3 OR (d.text::jsonb ->> 'until')::float8 < extract(epoch FROM clock_timestamp())
             OR d.text::jsonb ->> 'process' IS NOT NULL AND NOT EXISTS (SELECT 1 FROM pg_stat_activity AS a
                 WHERE a.pid = split_part(d.text::jsonb ->> 'process', ' ', 1)::int
                     AND (a.backend_start IS NULL OR concat(a.pid, ' ', extract(epoch FROM a.backend_start)) = d.text::jsonb ->> 'process'))";
        let sql = format!(
            "WITH taken AS (INSERT INTO rehang.document AS d (gallery, name, version, text) VALUES ($1, $2, 1, jsonb_build_object(
                     'holder', $3, 'until', extract(epoch FROM clock_timestamp()) + $4, 'process', {process})::text)
                 ON CONFLICT (gallery, name) DO UPDATE SET version = d.version + 1, text = EXCLUDED.text WHERE {is_free} RETURNING 1)
             SELECT EXISTS (SELECT 1 FROM taken), d.version::text, d.text::jsonb ->> 'process'
             FROM (SELECT) AS one LEFT JOIN rehang.document AS d ON d.gallery = $1 AND d.name = $2"
        );
        let row = self
            .session
            .connection
            .query_one(&sql, &[&self.handle.number, &NAME, &self.id.as_str(), &LEASE.as_secs_f64()])?;
        if row.try_get(0)? {
            return Ok(None);
        }
        Ok(Some((row.try_get::<_, Option<String>>(1)?.unwrap_or_default(), row.try_get(2)?)))
    }

    fn give_up(&mut self) -> Step<u64> {
        self.session.connection.execute(
            "DELETE FROM rehang.document WHERE gallery = $1 AND name = $2 AND text::jsonb ->> 'holder' = $3",
            &[&self.handle.number, &NAME, &self.id.as_str()],
        )
    }

    /// Renews the lease until there is nothing more to hold. A renewal that fails is tried again at once over
    /// another connection, then at the next turn.
    fn keep(mut self, stop: &mpsc::Receiver<()>) {
        while stop.recv_timeout(RENEWAL) == Err(RecvTimeoutError::Timeout) {
            if self.take().is_err()
                && let Ok(mut session) = self.handle.database.session()
            {
                session.connection.each_alone(Some(self.handle.database.begin(Mode::Write)));
                self.session = session;
                drop(self.take());
            }
        }
        drop(self.give_up());
    }
}

pub(crate) fn hold(handle: &Arc<Handle>) -> Result<Hold> {
    let mut holder = Holder::new(Arc::clone(handle))?;
    let (began, mut first) = (rehang_clock::now(), None);
    while let Some(held) = holder.take().map_err(|failure| handle.database.failed(failure))? {
        let has_process = held.1.is_some();
        let is_alive = *first.get_or_insert_with(|| held.clone()) != held
            || has_process && began.elapsed() > LAST_WORDS
            || began.elapsed() > LEASE * 2;
        if is_alive {
            let what = format!("another process is at work on the upgrade of {}", handle.name());
            return Err(Error::conflict(what, "two would do the same work").advise(Remedy::AwaitOtherProcess));
        }
        rehang_clock::wait(Duration::from_millis(50));
    }
    let (stop, stopped) = mpsc::channel();
    let keeper = std::thread::spawn(move || holder.keep(&stopped));
    Ok(Hold { stop: Some(stop), keeper: Some(keeper) })
}

impl Drop for Hold {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(keeper) = self.keeper.take() {
            drop(keeper.join());
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hold")
    }
}
