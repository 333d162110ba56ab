//! A gallery on a server, with an application that writes it while workers are killed in turn and the server
//! is killed and starts again: what is the same whatever server it is. In the end every row has the new
//! model's vector of its text of now, the texts are those that the application wrote last, and nothing was
//! embedded twice beyond what a death had in hand.
//!
//! `REHANG_KILLS` sets how often workers are killed (default 24).

#![allow(
    clippy::disallowed_methods,
    reason = "processes are killed at any moment of their work, and an application takes its time"
)]
#![allow(clippy::print_stdout, reason = "a test says how often it has killed what")]

use std::collections::BTreeMap;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rehang_core::Matrix;

use super::Place;
use super::upgrade::{self, upgrade};

pub const ITEMS: usize = 400;
pub const D_OLD: usize = 4;
const D_NEW: usize = 6;
const BATCH: u32 = 8;
/// Number of items that the application uses beyond those that are there at first.
const MORE: usize = 40;

/// Gives the new model's vector of a text `NUMBER VERSION`; the old model says the first four coordinates.
pub fn model(number: usize, version: usize) -> Vec<f32> {
    (0..D_NEW).map(|column| ((number * 7 + version * 31 + column * 13) % 101) as f32 / 8.0).collect()
}

/// Gives the new model's vector of a text.
pub fn model_of(text: &str) -> Vec<f32> {
    let (number, version) = text.split_once(' ').expect("a number and a version");
    model(number.parse().unwrap(), version.parse().unwrap())
}

/// Act of an application, on the row of a number or on many rows.
#[derive(Debug, Clone, Copy)]
pub enum Act {
    /// Puts a row with its old vector, new or changed.
    Put(usize, usize),
    /// Gives a row another text, and leaves its old vector as it was.
    Text(usize, usize),
    NoVector(usize),
    Delete(usize),
    /// Changes another column of some rows.
    Touch,
    /// Changes many rows and takes that back, where the server can do that.
    Undone,
    Search(usize),
}

/// Row as it lies on the server.
pub struct Row {
    pub text: String,
    /// Old vector of the application, which an adapted one is made of. It may be of an earlier text, or be
    /// there no more.
    pub old: Option<Vec<f32>>,
    /// Provenance of the vector in the new space; a vector without one does not count.
    pub provenance: Option<String>,
    pub vector: Option<Vec<f32>>,
}

/// Gallery on a server. The application's part is used by a thread of its own.
pub struct Served<'a> {
    /// Does what an application does; `false` where the server was away.
    pub act: &'a mut (dyn FnMut(Act) -> bool + Send),
    /// Reads all rows without a word of this library.
    pub rows: &'a dyn Fn() -> Vec<Row>,
    /// Kills the server and starts it again.
    pub restart: &'a mut dyn FnMut(),
}

/// Makes a folder with the upgrade of a gallery from 4 to 6 coordinates; `gallery` is what the configuration
/// says of it.
pub fn place(gallery: &str) -> Place {
    let of_width = |d| Matrix::from_fn(ITEMS, d, |row, column| model(row, 0)[column]);
    let place = upgrade::place(&of_width(D_OLD), &of_width(D_NEW));
    place.write_bytes("encode.sh", upgrade::encoder("number=${text% *}; version=${text#* }").as_bytes());
    let encoder = format!(
        "[encoder]\nkind = \"command\"\nprogram = [\"sh\", \"encode.sh\", \"{D_NEW}\"]\nrevision = \"1\"\n[run]\nbatch = {BATCH}\nlease = 2\n"
    );
    upgrade::configure(&place, &encoder);
    let config = fs_err::read_to_string(place.path("rehang.toml")).unwrap();
    place.write_bytes("rehang.toml", config.replace("path = \"G.db\"", gallery).as_bytes());
    place
}

/// Adopts what the application has, upgrades it among deaths, and finishes.
pub fn upgrade_among_deaths(place: &Place, served: Served<'_>) {
    let kills: u32 = std::env::var("REHANG_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(24);
    let Served { act, rows, restart } = served;
    let mut oracle: BTreeMap<usize, usize> = (0..ITEMS).map(|number| (number, 0)).collect();
    for number in 0..ITEMS {
        assert!(act(Act::Put(number, 0)));
    }
    place.finish(&["gallery", "adopt"]);
    for verb in ["start", "switch"] {
        place.finish(&upgrade(verb));
    }
    let (stop, acts) = (AtomicBool::new(false), AtomicU32::new(0));
    let (mut deaths, mut restarts) = (0, 0);
    std::thread::scope(|scope| {
        let _ending = Ending(&stop);
        let oracle = &mut oracle;
        let (stop, acts) = (&stop, &acts);
        scope.spawn(move || write_until(stop, acts, act, oracle));
        let mut random = ChaCha8Rng::seed_from_u64(20);
        for round in 0..kills {
            // Two workers at once; one of them is killed, then the other one.
            let mut workers = [run(place), run(place)];
            for worker in &mut workers {
                std::thread::sleep(Duration::from_millis(random.random_range(0..200)));
                deaths += u32::from(worker.try_wait().unwrap().is_none());
                drop(worker.kill());
                worker.wait().unwrap();
            }
            if round % 8 == 3 {
                // The server dies under a worker that has begun to embed. It waits for the server and goes
                // on.
                let before = upgrade::embedded(place).len();
                let mut worker = run(place);
                while worker.try_wait().unwrap().is_none() && upgrade::embedded(place).len() == before {
                    std::thread::sleep(Duration::from_millis(5));
                }
                restart();
                restarts += 1;
                finish(worker);
            }
            check(place, &rows());
        }
    });
    for worker in [run(place), run(place)] {
        finish(worker);
    }
    // An item that one death after another has met, by chance, is listed; a person tries it again.
    place.finish(&[&upgrade("resume")[..], &["--retry-failed"]].concat());
    finish(run(place));
    let there = rows();
    assert_eq!(check(place, &there), there.len(), "everything is native");
    let mut texts: Vec<String> = there.into_iter().map(|row| row.text).collect();
    let mut written: Vec<String> =
        oracle.iter().map(|(number, version)| format!("{number} {version}")).collect();
    texts.sort_unstable();
    written.sort_unstable();
    assert_eq!(texts, written, "the rows that the application has written, no more and no fewer");
    let again = upgrade::embedded_again(place);
    let acts = acts.into_inner();
    println!(
        "{deaths} workers and {restarts} servers killed beside {acts} writes and searches; {again} texts were embedded twice"
    );
    // Texts are embedded again that a worker had in hand when it died, or when the server died before it had
    // answered.
    assert!(again <= (deaths + 2 * restarts) * BATCH, "{again} embedded again after {deaths} deaths");
    assert!(acts > 100 && deaths > 3);
    place.finish(&upgrade("finish"));
}

fn run(place: &Place) -> Child {
    place.command(&upgrade("run")).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

fn finish(worker: Child) {
    let output = worker.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Acts until it is told to stop. An act that the server did not answer is tried again until it does, so that
/// `oracle` says which version of which number is there.
fn write_until(
    stop: &AtomicBool,
    acts: &AtomicU32,
    act: &mut (dyn FnMut(Act) -> bool + Send),
    oracle: &mut BTreeMap<usize, usize>,
) {
    let mut random = ChaCha8Rng::seed_from_u64(4);
    for version in 1.. {
        let number = random.random_range(0..ITEMS + MORE);
        let next = match random.random_range(0..10) {
            0..4 => Act::Put(number, version),
            4 => Act::Delete(number),
            5 => Act::Text(number, version),
            6 => Act::NoVector(number),
            7 => Act::Undone,
            8 => Act::Touch,
            _ => Act::Search(number),
        };
        while !act(next) {
            if stop.load(Ordering::SeqCst) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        match next {
            Act::Put(..) => drop(oracle.insert(number, version)),
            Act::Text(..) => drop(oracle.get_mut(&number).map(|there| *there = version)),
            Act::Delete(_) => drop(oracle.remove(&number)),
            Act::NoVector(_) | Act::Touch | Act::Undone | Act::Search(_) => {}
        }
        acts.fetch_add(1, Ordering::Relaxed);
        // Slowly enough that a worker comes to an end meanwhile.
        std::thread::sleep(Duration::from_millis(20));
        if stop.load(Ordering::SeqCst) {
            return;
        }
    }
}

/// Checks at any moment that every native vector is of its row's text, and every adapted one of its old
/// vector. Gives how many are native.
fn check(place: &Place, rows: &[Row]) -> usize {
    let mut natives = 0;
    for Row { text, old, provenance, vector } in rows {
        let expected = model_of(text);
        match provenance.as_deref() {
            Some("native") => {
                natives += 1;
                assert_eq!(vector.as_ref(), Some(&expected), "the vector of {text:?}");
            }
            Some("adapted") => {
                let vector = vector.as_ref().expect("an adapted vector is there");
                let old = old.as_deref().unwrap_or(&vector[..D_OLD]);
                assert_eq!(vector[..D_OLD], *old, "the adapted vector of {text:?}");
            }
            _ => assert_eq!(*vector, None, "a vector that nobody speaks of: {text:?}"),
        }
    }
    // The doctor may well say that items wait for their vectors.
    let output = place.run(&["doctor", "--config", "rehang.toml", "--json"]);
    let doctor: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(
        !doctor["findings"].as_array().unwrap().iter().any(|finding| finding["what"] == "store"),
        "{doctor}"
    );
    natives
}

/// Lets the application end when the test does, also by a failure.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
