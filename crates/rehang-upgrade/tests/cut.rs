//! An upgrade of a table whose connections are cut, again and again, after any number of bytes: before a statement, within an answer,
//! between a commit and the word of it. Every call is made again until it is done, and nothing is paid for twice.
#![cfg(all(unix, feature = "postgres"))]
#![allow(clippy::print_stdout, reason = "the record of a run is what it prints")]

mod common;
#[path = "../../rehang-postgres/tests/server/mod.rs"]
mod server;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::thread;

use common::{TestEncoder, World, check, item};
use postgres::config::Host;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rehang_postgres::{PostgresStore, TableOptions};
use rehang_store::Ledger;
use rehang_upgrade::{
    BackfillSetup, Ending, Limits, Part, Serving, SystemClock, Unobserved, backfill, finish, rollback, start,
    switch,
};

const ITEMS: usize = 300;

/// A stream either way.
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

/// A server as it is reached through a line that breaks.
struct Proxy {
    address: String,
    is_cutting: Arc<AtomicBool>,
    cuts: Arc<AtomicU64>,
}

impl Proxy {
    /// Stands before the server of an address; as long as it cuts, each connection ends after 2 KiB to 128 KiB.
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
        let (is_cutting, cuts) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let proxy = Self {
            address: format!("postgresql://{user}{password}@127.0.0.1:{own}/{database}?sslmode=disable"),
            is_cutting: Arc::clone(&is_cutting),
            cuts: Arc::clone(&cuts),
        };
        thread::spawn(move || {
            let mut random = ChaCha8Rng::seed_from_u64(9);
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = connect() else { continue };
                let left = Arc::new(AtomicI64::new(1 << random.random_range(11..17)));
                left.fetch_add(random.random_range(0..1 << 11), Ordering::SeqCst);
                for (from, to) in [(client.another(), server.another()), (server, client.another())] {
                    let (is_cutting, cuts, left) = (is_cutting.clone(), cuts.clone(), left.clone());
                    thread::spawn(move || pump(from, to, &left, &is_cutting, &cuts));
                }
            }
        });
        proxy
    }
}

/// Carries bytes one way, until the line breaks in the middle of what is carried.
fn pump(
    mut from: Box<dyn Stream>,
    mut to: Box<dyn Stream>,
    left: &AtomicI64,
    is_cutting: &AtomicBool,
    cuts: &AtomicU64,
) {
    let mut bytes = [0; 4096];
    while let Ok(count) = from.read(&mut bytes) {
        let room = left.fetch_sub(count as i64, Ordering::SeqCst);
        let is_cut = is_cutting.load(Ordering::SeqCst) && room < count as i64;
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
    let world = World::new();
    let encoder = TestEncoder::new();
    let run = |worker| {
        let setup = BackfillSetup {
            store: &store,
            encoder: &encoder,
            part: Part::Gallery(&world.adapter),
            limits: Limits { batch: 8, workers: 2, lease_ms: 3000, ..Limits::default() },
            clock: &SystemClock::start(),
            worker,
        };
        backfill(&setup, &Unobserved).unwrap()
    };

    proxy.is_cutting.store(true, Ordering::SeqCst);
    start(&store, &world.setup(), &Unobserved).unwrap();
    switch(&store, &world.setup(), Serving::Mixed, &Unobserved).unwrap();
    // Two machines at once: neither may leave to the other what it holds without knowing.
    let done = thread::scope(|scope| {
        let workers = ["one", "two"].map(|name| scope.spawn(move || run(name)));
        workers.map(|worker| worker.join().unwrap())
    });
    assert!(done.iter().all(|done| done.ending == Ending::NothingLeft), "{done:?}");
    assert_eq!(store.counts("new-model").unwrap().native, ITEMS as u64, "{done:?}");
    assert_eq!(encoder.count(), ITEMS as u32, "a vector that was paid for waits for the next connection");
    rollback(&store, &world.setup(), &Unobserved).unwrap();
    switch(&store, &world.setup(), Serving::Mixed, &Unobserved).unwrap();
    proxy.is_cutting.store(false, Ordering::SeqCst);
    check(&store, &[world.adapter.clone()]);
    finish(&store, &world.setup(), &Unobserved).unwrap();
    check(&store, &[world.adapter.clone()]);
    let cuts = proxy.cuts.load(Ordering::SeqCst);
    println!("{cuts} connections cut");
    assert!(cuts > 20, "{cuts}");
}
