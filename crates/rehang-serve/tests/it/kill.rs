//! Services that are killed (`kill -9`) in every verb: the next service of the gallery goes on with what they
//! have begun, or says that it was interrupted, and in the end every item is native.

use std::io::Read;
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::Path;
use std::process::{Command, Stdio};

use rehang_core::{Progress, Provenance};
use rehang_serve::{ServeOptions, serve};
use rehang_sqlite::SqliteStore;
use rehang_store::{Examined, Ledger, Scan, Select};
use rehang_upgrade::{Limits, Upgrade};
use serde_json::{Value, json};

use crate::{Client, NEW, Served, configured, vector, wait_for};

/// Number of items: enough for a refit to be measured.
const ITEMS: usize = 1200;
/// Variable of the environment that names the folder of a child's gallery.
const FOLDER: &str = "REHANG_SERVE_CHILD_FOLDER";
/// File in which a child says where it listens.
const ADDRESS: &str = "address.txt";
/// Document of the gallery that holds the operations.
const OPERATIONS: &str = "operations of the service";
/// Verbs that are not carried out again by themselves.
const INTERRUPTED: [&str; 3] = ["bridge", "switch", "rollback"];

/// Opens the upgrade of the folder, with leases that the death of a worker does not hold for long.
fn upgrade(folder: &Path) -> Upgrade {
    let limits = Limits { batch: 8, lease_ms: 2000, ..Limits::default() };
    Upgrade::new(configured(folder, ITEMS).with_limits(limits)).unwrap()
}

#[test]
#[ignore = "it is the service that the test below starts and kills"]
fn a_service_until_it_is_killed() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let folder = Path::new(&folder);
    let stop = Progress::default();
    // Where the test fails, its end of the pipe is closed, and this service ends too.
    let ends = stop.clone();
    std::thread::spawn(move || {
        drop(std::io::stdin().read_to_end(&mut Vec::new()));
        ends.cancel();
    });
    let options = ServeOptions::new("127.0.0.1:0".parse().unwrap());
    serve(upgrade(folder), &options, &stop, |address| {
        // A file that is renamed is never read half.
        fs_err::write(folder.join("address.part"), address.to_string()).unwrap();
        fs_err::rename(folder.join("address.part"), folder.join(ADDRESS)).unwrap();
    })
    .unwrap();
}

/// Service in a process of its own.
struct Child {
    client: Client,
    process: std::process::Child,
}

impl Deref for Child {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Child {
    fn start(folder: &Path) -> Self {
        drop(fs_err::remove_file(folder.join(ADDRESS)));
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kill::a_service_until_it_is_killed", "--ignored", "--nocapture"])
            .env(FOLDER, folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut address: Option<SocketAddr> = None;
        wait_for("the address of the child", || {
            assert_eq!(process.try_wait().unwrap(), None, "the child has ended");
            address = fs_err::read_to_string(folder.join(ADDRESS)).ok().map(|text| text.parse().unwrap());
            address.is_some()
        });
        Self { client: Client::new(address.unwrap()), process }
    }

    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// Says of all operations when their services were heard of last: time passes for them, or stands still.
fn hear(store: &dyn Ledger, heard_ms: u64) {
    loop {
        let (version, text) = store.document(OPERATIONS).unwrap().unwrap();
        let mut all: Value = serde_json::from_str(&text).unwrap();
        for operation in all.as_array_mut().unwrap() {
            operation["heard_ms"] = json!(heard_ms);
        }
        match store.set_document(OPERATIONS, Some(version), &all.to_string()) {
            Ok(_) => return,
            Err(error) => assert!(error.is_changed_meanwhile(), "{error}"),
        }
    }
}

/// Asks a child for a verb, and kills the child at once or when so many items are native. Gives the operation
/// as it began.
fn kill_in(folder: &Path, (verb, options): (&str, &Value), native: Option<u64>) -> Value {
    let child = Child::start(folder);
    let asked = child.ask("POST", &format!("/v1/upgrade/{verb}"), Some(options), &[]);
    assert_eq!(asked.status, 202, "{verb}: {}", asked.text);
    if let Some(native) = native {
        wait_for("native items", || {
            // Before the first pairs there is no status.
            let status = child.ask("GET", "/v1/status", None, &[]).body;
            status["counts"]["native"].as_u64().is_some_and(|count| count >= native)
        });
    }
    child.kill();
    asked.body
}

/// Returns where an operation is to be found.
fn location(operation: &Value) -> String {
    format!("/v1/operations/{}", operation["id"].as_str().unwrap())
}

#[test]
fn an_operation_is_taken_over_only_when_its_service_was_not_heard_of_for_a_while() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let store = upgrade(folder).shared_store();
    // The sample takes two seconds.
    let pairs = json!({ "items": 200, "rate": 100 });
    let began = kill_in(folder, ("pairs", &pairs), None);
    hear(&*store, u64::MAX);
    let served = Served::of(upgrade(folder), |_| {});
    // The metric is there when the service has looked at the operations.
    let is_running = "rehang_operations{state=\"running\"} 1";
    wait_for(is_running, || served.ask("GET", "/metrics", None, &[]).text.contains(is_running));
    let left = served.get(&location(&began));
    assert_eq!((&left["state"], &left["server"]), (&json!("running"), &began["server"]));
    hear(&*store, 0);
    let ended = served.ended(&location(&began));
    assert_eq!(ended["state"], "done", "{ended}");
    assert_ne!(ended["server"], began["server"]);
    served.end();
}

#[test]
fn killed_in_every_verb_it_goes_on_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let store = upgrade(folder).shared_store();
    let (nothing, switch) = (json!({}), json!({ "serving": "mixed", "anyway": true }));
    // Verbs that embed are killed in their middle, between so many native items and so many.
    for (verb, options, native) in [
        ("pairs", &json!({ "items": 200, "rate": 100 }), Some((8, 200))),
        ("fit", &json!({ "method": "ridge" }), None),
        ("report", &nothing, None),
        ("bridge", &nothing, None),
        ("start", &nothing, None),
        ("switch", &switch, None),
        ("rollback", &nothing, None),
        ("switch", &switch, None),
        ("run", &json!({ "rate": 200 }), Some((250, ITEMS as u64))),
        ("refit", &nothing, None),
        ("finish", &nothing, None),
    ] {
        let began = kill_in(folder, (verb, options), native.map(|(least, _)| least));
        if let Some((_, all)) = native {
            let count = store.counts("new").unwrap().native;
            assert!(count < all, "{verb} is killed in its middle: {count}");
        }
        // Half a minute passes, in which nothing is heard of the dead.
        hear(&*store, 0);
        let served = Served::of(upgrade(folder), |_| {});
        let mut ended = served.ended(&location(&began));
        if INTERRUPTED.contains(&verb) && ended["state"] == "interrupted" {
            ended = served.carry_out(verb, options);
        }
        assert_eq!(ended["state"], "done", "{ended}");
        served.end();
    }
    let store = SqliteStore::open(folder.join("gallery.db")).unwrap();
    assert_eq!(store.check().unwrap(), [], "the store's own examination");
    let records = store.scan(&Scan::new("new", Select::All, 2 * ITEMS).with_vectors_of("new")).unwrap();
    assert_eq!(records.len(), ITEMS, "no item is lost");
    for record in records {
        let number: usize = record.item.id[1..].parse().unwrap();
        let of_item = record.vector.unwrap();
        assert_eq!((of_item.provenance, of_item.vector), (Provenance::Native, vector(number, NEW)));
    }
    assert_eq!(store.serving().unwrap().as_deref(), Some("new"));
}
