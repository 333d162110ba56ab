//! `rehang serve` as a service manager ends it: the signal comes while a request, and a batch of a run, are at
//! the encoder.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use rehang_core::Matrix;
use rehang_sqlite::SqliteStore;
use rehang_store::Ledger;
use serde_json::{Value, json};

use crate::common::Place;
use crate::common::upgrade::{self, IMPORT, upgrade};

const ITEMS: usize = 200;
const D_OLD: usize = 4;
const D_NEW: usize = 6;
/// Text of a search, which is no item's.
const QUERY: &str = "text 9999";
/// Longest time that anything is waited for.
const PATIENCE: Duration = Duration::from_mins(2);

/// Gives the new model's vector of an item; the old model says the first coordinates.
fn model(number: usize) -> Vec<f32> {
    (0..D_NEW).map(|column| ((number * 7 + column * 13) % 101) as f32 / 8.0).collect()
}

/// Makes a gallery whose new space serves, and a program that embeds for it. The program waits while there is
/// a file `hold`, and lists in `held.txt` what it waits with.
fn place() -> Place {
    let of_width = |d| Matrix::from_fn(ITEMS, d, |row, column| model(row)[column]);
    let place = upgrade::place(&of_width(D_OLD), &of_width(D_NEW));
    let program = upgrade::encoder("number=${text##* }; version=0");
    let logs = "echo \"$text by $1\" >> log.txt";
    let holds = "if [ -e hold ]; then echo \"$text\" >> held.txt; while [ -e hold ]; do sleep 0.02; done; fi";
    place.write_bytes("encode.sh", program.replace(logs, &format!("{holds}; {logs}")).as_bytes());
    upgrade::configure(
        &place,
        &format!(
            "[encoder]\nkind = \"command\"\nprogram = [\"sh\", \"encode.sh\", \"{D_NEW}\"]\nrevision = \"1\"\nbatch = 8\n\
             [run]\nbatch = 8\nworkers = 1\nlease = 2\n"
        ),
    );
    place.finish(&IMPORT);
    for verb in ["start", "switch"] {
        place.finish(&upgrade(verb));
    }
    place
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let began = rehang_clock::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "in vain: {what}");
        rehang_clock::wait(Duration::from_millis(10));
    }
}

/// Service in a process of its own, which ends with the test.
struct Service {
    process: Child,
    /// Address that it listens on.
    address: String,
    /// Reader of its log.
    log: Option<JoinHandle<String>>,
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

impl Service {
    fn start(place: &Place) -> Self {
        let mut command = place.command(&["serve", "--config", "rehang.toml", "--listen", "127.0.0.1:0"]);
        let mut process = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines().map_while(Result::ok);
        let address = lines.by_ref().find_map(|line| {
            let url = line.strip_prefix("Serving on http://")?;
            Some(url.split('/').next()?.to_owned())
        });
        // The service would wait at a log that this test does not read.
        let log = std::thread::spawn(move || lines.collect::<Vec<_>>().join("\n"));
        Self { process, address: address.unwrap(), log: Some(log) }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn get(&self, path: &str) -> Value {
        let text = ureq::get(self.url(path)).call().unwrap().body_mut().read_to_string().unwrap();
        serde_json::from_str(&text).unwrap()
    }

    fn terminate(&self) {
        let sent = Command::new("kill").args(["-TERM", &self.process.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    /// Waits for its end, which has to be in order.
    fn expect_end(mut self) {
        let code = self.process.wait().unwrap().code();
        let log = self.log.take().unwrap().join().unwrap();
        assert_eq!(code, Some(0), "{log}");
    }
}

/// Sends a request; gives the status and the body of its answer.
fn post(url: &str, body: &Value) -> (u16, Value) {
    let request = ureq::post(url).header("content-type", "application/json");
    let mut response = request.send(body.to_string().as_str()).unwrap();
    let text = response.body_mut().read_to_string().unwrap();
    (response.status().as_u16(), serde_json::from_str(&text).unwrap())
}

#[test]
fn a_signal_ends_a_service_after_what_is_in_hand_and_no_work_is_lost() {
    let place = place();
    let mut service = Service::start(&place);
    let (accepted, operation) = post(&service.url("/v1/upgrade/run"), &json!({ "rate": 50 }));
    assert_eq!(accepted, 202, "{operation}");
    let store = SqliteStore::open(place.path("G.db")).unwrap();
    let native = || store.counts("second").unwrap().native as usize;
    wait_for("native items", || native() >= 8);

    place.write_bytes("hold", b"");
    let url = service.url("/v1/search");
    let search = std::thread::spawn(move || post(&url, &json!({ "texts": [QUERY], "k": 3 })));
    wait_for("a search and a batch at the encoder", || {
        let held = fs_err::read_to_string(place.path("held.txt")).unwrap_or_default();
        held.lines().any(|text| text == QUERY) && held.lines().any(|text| text != QUERY)
    });
    service.terminate();
    wait_for("a closed door", || TcpStream::connect(&service.address).is_err());
    assert_eq!(service.process.try_wait().unwrap(), None, "what is in hand holds it");
    fs_err::remove_file(place.path("hold")).unwrap();
    let (answered, answer) = search.join().unwrap();
    assert_eq!((answered, answer["results"][0].as_array().map(Vec::len)), (200, Some(3)), "{answer}");
    service.expect_end();

    let embedded = || upgrade::embedded(&place).lines().filter(|line| !line.starts_with(QUERY)).count();
    assert_eq!(native(), embedded(), "what the encoder gave is written");
    assert!(native() < ITEMS);
    let service = Service::start(&place);
    let path = format!("/v1/operations/{}", operation["id"].as_str().unwrap());
    wait_for("the end of the run", || service.get(&path)["state"] != "running");
    assert_eq!(service.get(&path)["state"], "done");
    assert_eq!((native(), embedded()), (ITEMS, ITEMS), "nothing is embedded twice");
    service.terminate();
    service.expect_end();
}
