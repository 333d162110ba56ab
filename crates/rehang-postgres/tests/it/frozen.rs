//! Clients that fall silent in the middle of a call, since their machine is gone or their process is frozen,
//! and servers that end or refuse what they are asked. Nobody waits for such a client, and nothing that was
//! paid for is lost by such a server.
#![cfg(unix)]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use postgres::Client;
use postgres::config::Host;
use rehang_core::{Distance, ErrorKind, Fusion, Matrix, Provenance, Space};
use rehang_postgres::PostgresStore;
use rehang_store::{
    Epoch, Filter, FusedSpaces, Index, ItemKey, Ledger, Priority, QueueBand, Revision, Scan, Select,
    VectorWrite, WriteOutcome,
};

use crate::notes::options;
use crate::server;

const ROWS: usize = 4;

/// Table with an item a row, of which a gallery is made.
struct Table {
    address: String,
    client: Client,
    store: PostgresStore,
}

impl Table {
    fn new(server: &server::Server) -> Self {
        let address = server.database();
        let mut client = server::client(&address);
        client
            .batch_execute(
                "CREATE TABLE notes (id bigint PRIMARY KEY, body text, embedding vector(2));
                 INSERT INTO notes SELECT n, 'body ' || n, format('[%s,1]', n)::vector FROM generate_series(1, 4) AS n",
            )
            .unwrap();
        let store = PostgresStore::adopt(&address, &options(), Some("old"), &|_, _| true).unwrap();
        store.create_space(&Space::new("old", 2, Distance::L2, false), Provenance::Old).unwrap();
        store.create_space(&Space::new("new", 3, Distance::L2, false), Provenance::Native).unwrap();
        Self { address, client, store }
    }

    /// Gives every item another source, so that it lacks a vector in the new space.
    fn clear(&mut self) {
        self.client.batch_execute("UPDATE notes SET body = body || '.'").unwrap();
    }
}

fn items(store: &PostgresStore) -> Vec<(ItemKey, Revision)> {
    let records = store.scan(&Scan::new("new", Select::All, 100)).unwrap();
    assert_eq!(records.len(), ROWS);
    records.iter().map(|record| (record.item.key, record.item.revision)).collect()
}

fn writes(store: &PostgresStore, provenance: Provenance) -> Vec<VectorWrite> {
    let sigma2 = (provenance == Provenance::Adapted).then_some(0.5);
    let write_of = |(key, revision)| VectorWrite {
        key,
        revision,
        provenance,
        sigma2,
        priority: None,
        squared_error: None,
        vector: vec![1.0, 2.0, 3.0],
    };
    items(store).into_iter().map(write_of).collect()
}

/// Stream that can be read and written, over TCP or a socket.
trait Stream: Read + Write + Send {
    fn another(&self) -> Box<dyn Stream>;
    fn close(&self);
}

macro_rules! stream {
    ($kind:ty) => {
        impl Stream for $kind {
            fn another(&self) -> Box<dyn Stream> {
                Box::new(self.try_clone().unwrap())
            }

            fn close(&self) {
                drop(self.shutdown(Shutdown::Both));
            }
        }
    };
}

stream!(TcpStream);
stream!(UnixStream);

/// Part of the last message that the server still gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Nothing,
    Half,
    All,
}

/// Line to a server, on which a client falls silent: its connection stays open, and nothing comes either way.
#[derive(Clone)]
struct Line {
    address: String,
    state: Arc<State>,
}

struct State {
    /// Pieces that clients may send before one falls silent; below 0 where none does.
    left: AtomicI64,
    part: Mutex<Part>,
    is_silent: AtomicBool,
    /// How often a client waited for an answer and then asked again.
    turns: AtomicI64,
    is_answered: AtomicBool,
    /// The two ends of the connection that fell silent.
    silent: Mutex<Vec<Box<dyn Stream>>>,
}

impl Line {
    fn to(address: &str) -> Self {
        let config: postgres::Config = address.parse().unwrap();
        let port = config.get_ports().first().copied().unwrap_or(5432);
        let host = config.get_hosts()[0].clone();
        let connect = move || -> Box<dyn Stream> {
            match &host {
                Host::Tcp(name) => Box::new(TcpStream::connect((name.as_str(), port)).unwrap()),
                Host::Unix(folder) => {
                    let socket: PathBuf = folder.join(format!(".s.PGSQL.{port}"));
                    Box::new(UnixStream::connect(socket).unwrap())
                }
            }
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap().port();
        let (user, database) = (config.get_user().unwrap(), config.get_dbname().unwrap());
        let password = config
            .get_password()
            .filter(|password| !password.is_empty())
            .map(|password| format!(":{}", String::from_utf8_lossy(password)))
            .unwrap_or_default();
        let state = Arc::new(State {
            left: AtomicI64::new(-1),
            part: Mutex::new(Part::Nothing),
            is_silent: AtomicBool::new(false),
            turns: AtomicI64::new(0),
            is_answered: AtomicBool::new(true),
            silent: Mutex::default(),
        });
        let line = Self {
            address: format!("postgresql://{user}{password}@127.0.0.1:{own}/{database}?sslmode=disable"),
            state: Arc::clone(&state),
        };
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let (client, server): (Box<dyn Stream>, _) = (Box::new(client), connect());
                let is_silent = Arc::<AtomicBool>::default();
                let (back, other) = (Arc::clone(&is_silent), (server.another(), client.another()));
                let answered = Arc::clone(&state);
                thread::spawn(move || answer(other.0, other.1, &answered, &back));
                let state = Arc::clone(&state);
                thread::spawn(move || ask(client, server, &state, &is_silent));
            }
        });
        line
    }

    fn fall_silent(&self, after: i64, part: Part) {
        *self.state.part.lock().unwrap() = part;
        self.state.left.store(after, Ordering::SeqCst);
    }

    /// Closes the silent connection, as when its client is noticed to be gone.
    fn mend(&self) {
        self.state.left.store(-1, Ordering::SeqCst);
        self.state.is_silent.store(false, Ordering::SeqCst);
        for end in self.state.silent.lock().unwrap().drain(..) {
            end.close();
        }
    }

    /// Counts the round trips that a call makes.
    fn round_trips<T>(&self, call: impl FnOnce() -> T) -> (T, i64) {
        let before = self.state.turns.load(Ordering::SeqCst);
        let answer = call();
        (answer, self.state.turns.load(Ordering::SeqCst) - before)
    }

    fn is_silent(&self) -> bool {
        self.state.is_silent.load(Ordering::SeqCst)
    }
}

/// Carries what a client sends.
fn ask(mut client: Box<dyn Stream>, mut server: Box<dyn Stream>, state: &State, is_silent: &AtomicBool) {
    let mut bytes = vec![0; 1 << 16];
    loop {
        let count = client.read(&mut bytes).unwrap_or(0);
        if count == 0 {
            break;
        }
        if state.is_answered.swap(false, Ordering::SeqCst) {
            state.turns.fetch_add(1, Ordering::SeqCst);
        }
        let is_last =
            state.left.load(Ordering::SeqCst) >= 0 && state.left.fetch_sub(1, Ordering::SeqCst) == 0;
        let sent = match *state.part.lock().unwrap() {
            Part::Nothing if is_last => 0,
            Part::Half if is_last => count / 2,
            _ => count,
        };
        is_silent.store(is_last, Ordering::SeqCst);
        if server.write_all(&bytes[..sent]).is_err() {
            break;
        }
        if is_last {
            state.silent.lock().unwrap().extend([client, server]);
            state.is_silent.store(true, Ordering::SeqCst);
            return;
        }
    }
    client.close();
    server.close();
}

/// Carries what a server answers.
fn answer(mut server: Box<dyn Stream>, mut client: Box<dyn Stream>, state: &State, is_silent: &AtomicBool) {
    let mut bytes = vec![0; 1 << 16];
    loop {
        let count = server.read(&mut bytes).unwrap_or(0);
        state.is_answered.store(true, Ordering::SeqCst);
        if !is_silent.load(Ordering::SeqCst) && client.write_all(&bytes[..count]).is_err() || count == 0 {
            break;
        }
    }
    server.close();
    client.close();
}

/// Lets a client fall silent at every piece of a call, and checks that the application, a rollback and a
/// `TRUNCATE` wait for nothing.
fn nobody_waits<T: Send>(
    what: &str,
    prepare: impl Fn(&PostgresStore),
    call: impl Fn(&PostgresStore, &PostgresStore) -> T + Sync,
    expect: impl Fn(&T),
) {
    let Some(server) = server::server() else { return };
    let mut table = Table::new(server);
    let line = Line::to(&table.address);
    let mut application = server::client(&table.address);
    // The limit is longer than a vacuum of the server's own takes to step aside, and shorter than a client
    // may be silent in a transaction.
    application.batch_execute("SET lock_timeout = '5s'").unwrap();
    for part in [Part::Nothing, Part::Half, Part::All] {
        for piece in 0.. {
            table.clear();
            prepare(&table.store);
            let store = PostgresStore::open(&line.address, &options(), Some("old")).unwrap();
            let (direct, store, call) = (&table.store, &store, &call);
            // The first piece on the line belongs to the call, since the connection is there already.
            line.fall_silent(piece, part);
            let (answer, was_silent) = thread::scope(|scope| {
                let call = scope.spawn(move || call(store, direct));
                while !line.is_silent() && !call.is_finished() {
                    rehang_clock::wait(Duration::from_millis(1));
                }
                let was_silent = line.is_silent();
                if was_silent {
                    // The application makes a write and a TRUNCATE, and a plan begins, each in a
                    // transaction of its own.
                    let tried = application
                        .batch_execute("BEGIN; UPDATE notes SET body = body || '!'; TRUNCATE notes; ROLLBACK")
                        .and_then(|()| {
                            application
                                .batch_execute("BEGIN; UPDATE rehang.space SET epoch = epoch; ROLLBACK")
                        });
                    if let Err(error) = tried {
                        line.mend();
                        panic!("{what}, silent at piece {piece} ({part:?} of it arrived): {error:?}");
                    }
                }
                line.mend();
                (call.join().unwrap(), was_silent)
            });
            expect(&answer);
            if !was_silent {
                assert!(piece > 1, "{what}: the call has pieces");
                break;
            }
        }
    }
}

/// A search asks once for everything that it needs, and the question where searches go is one more. Facts of
/// a space that it remembers are compared in that very moment with the space that is there.
#[test]
fn a_search_is_one_round_trip() {
    let Some(server) = server::server() else { return };
    let table = Table::new(server);
    let make_native = |width: usize| {
        let records = table.store.scan(&Scan::new("new", Select::Lacking, 100)).unwrap();
        let native_write =
            |record: &rehang_store::Record| VectorWrite::native(&record.item, vec![1.0; width]);
        let writes: Vec<VectorWrite> = records.iter().map(native_write).collect();
        table.store.write_vectors("new", None, &writes).unwrap();
    };
    make_native(3);
    let line = Line::to(&table.address);
    let store = PostgresStore::open(&line.address, &options(), Some("old")).unwrap();
    let queries = |width: usize| Matrix::new(width, vec![1.0; 2 * width]).unwrap();
    let search = |width: usize| {
        let (found, trips) = line.round_trips(|| store.search("new", &queries(width), 9, &Filter::default()));
        (found.map(|found| found.iter().map(Vec::len).collect::<Vec<_>>()), trips)
    };
    let (found, first) = search(3);
    assert!(found == Ok(vec![ROWS; 2]) && first > 1, "{found:?}, {first}");
    for _ in 0..3 {
        assert_eq!(search(3), (Ok(vec![ROWS; 2]), 1));
    }
    assert_eq!(
        line.round_trips(|| store.serving_and_document("upgrade").unwrap().0),
        (Some("old".into()), 1)
    );
    // A search by texts reads the spaces as well, and the items that it found.
    assert_eq!(line.round_trips(|| store.spaces().unwrap().len()), (2, 1));
    assert_eq!(line.round_trips(|| store.get(&["1", "9"]).unwrap().iter().flatten().count()), (1, 1));
    // Rows that others write are found at once, and a space of another kind is seen to be one.
    table.store.delete(&["1"]).unwrap();
    assert_eq!(search(3), (Ok(vec![ROWS - 1; 2]), 1));
    table.store.drop_space("new").unwrap();
    assert!(matches!(search(3).0.unwrap_err().kind(), ErrorKind::NotFound { .. }));
    table.store.create_space(&Space::new("new", 4, Distance::L2, false), Provenance::Native).unwrap();
    make_native(4);
    assert_eq!(search(4).0, Ok(vec![ROWS - 1; 2]));
    assert_eq!(search(4), (Ok(vec![ROWS - 1; 2]), 1));
    table.store.drop_space("new").unwrap();
    table.store.create_space(&Space::new("new", 4, Distance::Dot, false), Provenance::Native).unwrap();
    assert_eq!(search(4).0, Ok(vec![0; 2]), "it is another one, and empty");
}

/// A fused search asks the server's own function for up to sixteen queries at once. Where what is asked does
/// not leave in one piece, the server may answer the first piece before the next one comes.
#[test]
fn a_fused_search_is_one_round_trip() {
    let Some(server) = server::server() else { return };
    let table = Table::new(server);
    table.store.write_vectors("new", None, &writes(&table.store, Provenance::Native)).unwrap();
    let line = Line::to(&table.address);
    let store = PostgresStore::open(&line.address, &options(), Some("old")).unwrap();
    let (old, new) = (Space::new("old", 2, Distance::L2, false), Space::new("new", 3, Distance::L2, false));
    let two = vec![0.0, 1.0];
    let (weight, handicap, spreads) = (0.5, 0.0, [1.0; 2]);
    let fusion = Fusion { weight, handicap, spreads, old: two.clone(), adapted: two.clone(), both: two };
    let spaces = FusedSpaces { old: &old, new: &new, old_handicap: 0.0, fusion: &fusion };
    let search = |queries: usize, filter: &Filter| {
        let of_width = |width: usize| Matrix::new(width, vec![1.0; width * queries]).unwrap();
        let (by_old, by_new) = (of_width(2), of_width(3));
        let (found, trips) =
            line.round_trips(|| store.search_fused(&spaces, (&by_old, &by_new), 9, filter).unwrap());
        (found.map(|found| found.iter().map(Vec::len).collect::<Vec<_>>()), trips)
    };
    let everything = Filter::default();
    for queries in [1, 2] {
        assert_eq!(search(queries, &everything), (Some(vec![ROWS; queries]), 1));
    }
    let (found, trips) = search(16, &everything);
    assert!(found == Some(vec![ROWS; 16]) && trips <= 3, "{found:?}, {trips}");
    // The function knows no filter: the caller searches both spaces instead.
    let natives = Filter { provenances: vec![Provenance::Native], ..Filter::default() };
    assert_eq!(search(1, &natives), (None, 0));
}

#[test]
fn nobody_waits_for_a_silent_client_that_writes_vectors() {
    nobody_waits(
        "a write of native vectors",
        |_| (),
        |store, direct| store.write_vectors("new", None, &writes(direct, Provenance::Native)).unwrap(),
        |outcomes: &Vec<WriteOutcome>| {
            let is_there = |outcome: &WriteOutcome| {
                [WriteOutcome::Written, WriteOutcome::AlreadyThere].contains(outcome)
            };
            assert!(outcomes.len() == ROWS && outcomes.iter().all(is_there), "{outcomes:?}");
        },
    );
}

#[test]
fn nobody_waits_for_a_silent_client_that_writes_places_in_the_queue() {
    nobody_waits(
        "a write of priorities",
        |direct| {
            let writes = writes(direct, Provenance::Adapted);
            direct.write_vectors("new", Some(Epoch::FIRST), &writes).unwrap();
        },
        |store, direct| {
            let place = Priority { band: QueueBand::ALL[0], score: 1.0 };
            let places: Vec<_> =
                items(direct).iter().map(|(key, revision)| (*key, *revision, place)).collect();
            store.set_priorities("new", Epoch::FIRST, &places).unwrap()
        },
        |changed| assert_eq!(*changed, ROWS),
    );
}

#[test]
fn nobody_waits_for_a_silent_client_that_forgets_natives() {
    nobody_waits(
        "forgetting natives",
        |direct| {
            direct.write_vectors("new", None, &writes(direct, Provenance::Native)).unwrap();
        },
        |store, direct| {
            let forgotten = store.forget_natives("new", Epoch::FIRST, 100).unwrap();
            (forgotten, direct.counts("new").unwrap().lacking)
        },
        |(forgotten, lacking)| {
            // A try passes over items that the application uses, and a try whose answer
            // was lost counts nothing.
            assert!(*forgotten <= ROWS, "{forgotten}");
            assert_eq!(*lacking, ROWS as u64);
        },
    );
}

#[test]
fn nobody_waits_for_a_silent_client_that_lists_failures() {
    nobody_waits(
        "listing failures",
        |_| (),
        |store, direct| {
            let failures: Vec<_> =
                items(direct).iter().map(|(key, revision)| (*key, *revision, "no".to_owned())).collect();
            store.record_failures("new", &failures).unwrap();
            direct.counts("new").unwrap().failed
        },
        |failed| assert_eq!(*failed, ROWS as u64),
    );
}

/// Makes the server answer the next writes of vectors with an error of a code.
fn refuse(client: &mut Client, code: &str, times: u32) {
    client
        .batch_execute(&format!(
            "CREATE SEQUENCE IF NOT EXISTS tries; GRANT ALL ON SEQUENCE tries TO PUBLIC; SELECT setval('tries', 1, false);
             CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF nextval('public.tries') <= {times} THEN RAISE EXCEPTION 'not now' USING ERRCODE = '{code}'; END IF; RETURN NULL;
             END $$;
             CREATE OR REPLACE TRIGGER refuse AFTER INSERT ON rehang.vector_2 EXECUTE FUNCTION refuse()"
        ))
        .unwrap();
}

#[test]
fn a_write_that_is_cancelled_is_made_again() {
    let Some(server) = server::server() else { return };
    let mut table = Table::new(server);
    refuse(&mut table.client, "57014", 3);
    let writes = writes(&table.store, Provenance::Native);
    assert_eq!(table.store.write_vectors("new", None, &writes).unwrap(), [WriteOutcome::Written; ROWS]);
}

#[test]
fn whatever_the_server_says_of_a_write_may_be_waited_for() {
    let Some(server) = server::server() else { return };
    let mut table = Table::new(server);
    for code in ["42501", "42P01", "22000", "XX000", "53100"] {
        refuse(&mut table.client, code, 1);
        let writes = writes(&table.store, Provenance::Native);
        let error = table.store.write_vectors("new", None, &writes).unwrap_err();
        assert!(error.is_retryable() && error.to_string().contains("not now"), "{code}: {error}");
        assert_eq!(table.store.write_vectors("new", None, &writes).unwrap(), [WriteOutcome::Written; ROWS]);
        table.clear();
    }
}

#[test]
fn the_timeouts_of_a_role_are_not_ours() {
    let Some(server) = server::server() else { return };
    let mut table = Table::new(server);
    table
        .client
        .batch_execute(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.6); RETURN NULL; END $$;
             CREATE TRIGGER slow AFTER INSERT ON rehang.vector_2 EXECUTE FUNCTION slow()",
        )
        .unwrap();
    let joint = if table.address.contains('?') { '&' } else { '?' };
    let settings = [
        "statement_timeout%3D500ms",
        "default_transaction_isolation%3Dserializable",
        "default_transaction_read_only%3Don",
        "quote_all_identifiers%3Don",
    ];
    let settings = settings.map(|setting| format!("-c%20{setting}")).join("%20");
    let address = format!("{}{joint}options={settings}", table.address);
    let store = PostgresStore::open(&address, &options(), Some("old")).unwrap();
    let writes = writes(&table.store, Provenance::Native);
    assert_eq!(store.write_vectors("new", None, &writes).unwrap(), [WriteOutcome::Written; ROWS]);
    // Other settings of a role do not end a call either.
    store.switch_serving("old", "new").unwrap();
    store.settle("embedding_new", &|_, _| true).unwrap();
    store.release(Some("embedding_new")).unwrap();
}

#[test]
fn an_index_that_is_not_made_to_its_end_is_removed() {
    let Some(server) = server::server() else { return };
    let mut table = Table::new(server);
    let writes = writes(&table.store, Provenance::Native);
    table.store.write_vectors("new", None, &writes).unwrap();
    table.store.switch_serving("old", "new").unwrap();
    let mut indexes = server::client(&table.address);
    let mut indexes = || -> Vec<bool> {
        let sql = "SELECT indisvalid FROM pg_index WHERE indrelid = 'notes'::regclass AND NOT indisprimary";
        indexes.query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect()
    };
    // A new column and its triggers would wait for the transaction below, so they are made first.
    assert!(table.store.settle("embedding_new", &|_, _| false).unwrap_err().is_cancelled());
    // The server has entered the index and waits for this transaction before it fills it.
    let mut writer = server::client(&table.address);
    let mut open = writer.transaction().unwrap();
    open.execute("INSERT INTO notes (id) VALUES (100)", &[]).unwrap();
    let store = table.store.clone();
    let settling = thread::spawn(move || store.settle("embedding_new", &|_, _| true));
    let cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity
         WHERE datname = current_database() AND query LIKE 'CREATE INDEX CONCURRENTLY%' AND wait_event_type = 'Lock'";
    while table.client.query(cancel, &[]).unwrap().is_empty() {
        assert!(!settling.is_finished(), "the index waits for a writer");
        rehang_clock::wait(Duration::from_millis(5));
    }
    while !table.client.query(cancel, &[]).unwrap().is_empty() {
        rehang_clock::wait(Duration::from_millis(5));
    }
    open.commit().unwrap();
    let error = settling.join().unwrap().unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert_eq!(indexes(), Vec::<bool>::new());
    // An index that a killed process has left is removed by the next call.
    table
        .client
        .batch_execute(
            "CREATE INDEX left_over ON notes USING hnsw (embedding_new vector_l2_ops);
             UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'left_over'::regclass",
        )
        .unwrap();
    table.store.settle("embedding_new", &|_, _| true).unwrap();
    assert_eq!(indexes(), [true]);
    table.store.settle("embedding_new", &|_, _| true).unwrap();
    assert_eq!(indexes(), [true]);
}
