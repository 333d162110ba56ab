//! Test of an upgrade of a table whose connections are cut, again and again, after any number of bytes:
//! before a statement, within an answer, or between a commit and the word of it. Every call is made again
//! until it is done, and nothing is paid for twice.
#![cfg(all(unix, feature = "postgres"))]
#![allow(clippy::print_stdout, reason = "the record of a run is what it prints")]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::thread;

use postgres::config::Host;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rehang_core::Provenance;
use rehang_postgres::{PostgresStore, TableOptions};
use rehang_store::Ledger;
use rehang_upgrade::{
    BackfillScope, BackfillSetup, Ending, Limits, Serving, SystemClock, Unobserved, Until, backfill, finish,
    rollback, start, switch,
};

use crate::common::{TestEncoder, World, check, item, old_space};
use crate::server;

const ITEMS: usize = 300;

/// Stream over TCP or over a socket of Unix.
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

/// Proxy before a server: a line that breaks.
struct Proxy {
    address: String,
    /// Exponent of the longest connection: one that is made from now on ends after 2 KiB to `2^longest`
    /// bytes; 0 while none is cut.
    longest: Arc<AtomicU32>,
    cuts: Arc<AtomicU64>,
}

impl Proxy {
    /// Stands before the server of an address.
    fn before(address: &str) -> Self {
        let config: postgres::Config = address.parse().unwrap();
        let port = config.get_ports().first().copied().unwrap_or(5432);
        let host = config.get_hosts()[0].clone();
        let connect = move || -> std::io::Result<Box<dyn Stream>> {
            Ok(match &host {
                Host::Tcp(name) => Box::new(TcpStream::connect((name.as_str(), port))?),
                Host::Unix(folder) => {
                    let socket: PathBuf = folder.join(format!(".s.PGSQL.{port}"));
                    Box::new(UnixStream::connect(socket)?)
                }
            })
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap().port();
        let (user, database) = (config.get_user().unwrap(), config.get_dbname().unwrap());
        let password = config
            .get_password()
            .filter(|password| !password.is_empty())
            .map(|password| format!(":{}", String::from_utf8_lossy(password)))
            .unwrap_or_default();
        let (longest, cuts) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU64::new(0)));
        let proxy = Self {
            address: format!("postgresql://{user}{password}@127.0.0.1:{own}/{database}?sslmode=disable"),
            longest: Arc::clone(&longest),
            cuts: Arc::clone(&cuts),
        };
        thread::spawn(move || {
            let mut random = ChaCha8Rng::seed_from_u64(9);
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = connect() else { continue };
                let exponent = random.random_range(11..longest.load(Ordering::SeqCst).max(12));
                let left = Arc::new(AtomicI64::new(random.random_range(1 << exponent..2 << exponent)));
                for (from, to) in [(client.another(), server.another()), (server, client.another())] {
                    let (longest, cuts, left) = (Arc::clone(&longest), Arc::clone(&cuts), Arc::clone(&left));
                    thread::spawn(move || pump(from, to, &left, &longest, &cuts));
                }
            }
        });
        proxy
    }
}

/// Carries bytes one way, until the line breaks in the middle of them.
fn pump(
    mut from: Box<dyn Stream>,
    mut to: Box<dyn Stream>,
    left: &AtomicI64,
    longest: &AtomicU32,
    cuts: &AtomicU64,
) {
    let mut bytes = [0; 4096];
    while let Ok(count) = from.read(&mut bytes) {
        let room = left.fetch_sub(count as i64, Ordering::SeqCst);
        let is_cut = longest.load(Ordering::SeqCst) > 0 && room < count as i64;
        let count = if is_cut { room.max(0) as usize } else { count };
        if to.write_all(&bytes[..count]).is_err() || count == 0 || is_cut {
            cuts.fetch_add(u64::from(is_cut && room > 0), Ordering::SeqCst);
            break;
        }
    }
    from.close();
    to.close();
}

#[test]
fn connections_that_are_cut_at_any_byte_cost_nothing() {
    let Some(server) = server::server() else { return };
    let address = server.database();
    let mut client = server::client(&address);
    client
        .batch_execute("CREATE TABLE notes (id text PRIMARY KEY, body text, label text, embedding vector(3))")
        .unwrap();
    for number in 0..ITEMS {
        let item = item(number, 0);
        client
            .execute(
                "INSERT INTO notes VALUES ($1, $2, $3, $4::text::vector)",
                &[&item.id, &item.source, &item.label, &format!("{:?}", item.vectors[0].vector)],
            )
            .unwrap();
    }
    let proxy = Proxy::before(&address);
    let options = TableOptions {
        table: "notes".into(),
        source: Some("body".into()),
        label: Some("label".into()),
        vector: Some("embedding".into()),
        ..TableOptions::default()
    };
    let store = PostgresStore::adopt(&proxy.address, &options, Some("old-model"), &|_, _| true).unwrap();
    store.create_space(&old_space(), Provenance::Old).unwrap();
    let world = World::new();
    let encoder = TestEncoder::new();
    let run = |worker, until| {
        let setup = BackfillSetup {
            store: &store,
            encoder: &encoder,
            scope: BackfillScope::Gallery(Some(&world.adapter)),
            limits: Limits { batch: 8, workers: 2, until, ..Limits::default() },
            clock: &SystemClock::start(),
            worker,
        };
        backfill(&setup, &Unobserved).unwrap()
    };

    let cut = |longest| proxy.longest.store(longest, Ordering::SeqCst);
    cut(17);
    start(&store, &world.setup(), &Unobserved).unwrap();
    switch(&store, &world.setup(), Serving::Mixed, &Unobserved).unwrap();
    cut(14);
    let half = Until::Fraction(0.5);
    thread::scope(|scope| {
        let workers = ["one", "two"].map(|name| scope.spawn(move || run(name, half)));
        for worker in workers {
            assert_eq!(worker.join().unwrap().ending, Ending::ReachedFraction);
        }
    });
    // Items that a claim has leased whose answer never came are this worker's to find again: there is no
    // other.
    assert_eq!(run("one", Until::All).ending, Ending::NothingLeft);
    assert_eq!(store.counts("new-model").unwrap().native, ITEMS as u64);
    assert_eq!(encoder.count(), ITEMS as u32, "a vector that was paid for waits for the next connection");
    cut(17);
    rollback(&store, &world.setup(), &Unobserved).unwrap();
    switch(&store, &world.setup(), Serving::Mixed, &Unobserved).unwrap();
    cut(0);
    check(&store, std::slice::from_ref(&world.adapter));
    finish(&store, &world.setup(), true, &Unobserved).unwrap();
    check(&store, std::slice::from_ref(&world.adapter));
    let cuts = proxy.cuts.load(Ordering::SeqCst);
    println!("{cuts} connections cut");
    assert!(cuts > 20, "{cuts}");
}
