//! The binary is killed (`kill -9`) at random moments, again and again. After every death the gallery is
//! whole; in the end it is what it would have been without any, and nothing was embedded twice beyond one
//! batch a death.
//!
//! `REHANG_KILLS` sets how often (default 200; `cargo xtask kill` runs 1,000).

#![cfg(unix)]

use std::process::Stdio;
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rehang_core::{Matrix, Provenance};
use rehang_sqlite::SqliteStore;
use rehang_store::{Examined, Failure, Ledger, Scan, Select};

use crate::common::Place;
use crate::common::upgrade::{self, IMPORT, upgrade};

const ITEMS: usize = 1200;
const BATCH: usize = 8;
const D_OLD: usize = 4;
const D_NEW: usize = 6;

/// Gives the new model's vector of an item: the old one with two more coordinates. No two items are alike.
fn native(number: usize) -> Vec<f32> {
    (0..D_NEW).map(|column| ((number * 7 + column * 13) % 2003) as f32 / 8.0).collect()
}

struct World {
    place: Place,
}

impl World {
    fn new() -> Self {
        let of_width = |d| Matrix::from_fn(ITEMS, d, |row, column| native(row)[column]);
        let place = upgrade::place(&of_width(D_OLD), &of_width(D_NEW));
        // The number at the end of the source.
        let program = upgrade::encoder("number=${text##* }; version=0").replace("% 101", "% 2003");
        place.write_bytes("encode.sh", program.as_bytes());
        let encoder = |width| {
            format!(
                "kind = \"command\"\nprogram = [\"sh\", \"encode.sh\", \"{width}\"]\nrevision = \"1\"\nbatch = {BATCH}\n"
            )
        };
        let (new, old) = (encoder(D_NEW), encoder(D_OLD));
        upgrade::configure(
            &place,
            &format!("[encoder]\n{new}[old.encoder]\n{old}[run]\nbatch = {BATCH}\nlease = 2\n"),
        );
        Self { place }
    }

    /// Runs a command twice at once, to the end of both, and says whether neither left an item.
    fn finish_both(&self, arguments: &[&str]) -> bool {
        let start = || self.place.command(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let ended = [(); 2].map(|()| start().unwrap()).map(|child| child.wait_with_output().unwrap());
        for output in &ended {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(matches!(output.status.code(), Some(0 | 1)), "{arguments:?}: {said}");
        }
        ended.iter().all(|output| output.status.success())
    }

    /// Checks everything that must hold after any death; gives how many items are native.
    fn check(&self) -> u64 {
        check_gallery(&self.place, |number| Some([&native(number)[..D_OLD], &[0.0; D_NEW - D_OLD]].concat()))
    }
}

/// Checks a gallery, and gives how many items are native. `adapted` gives the adapted vector of an item,
/// where that is known.
fn check_gallery(place: &Place, adapted: impl Fn(usize) -> Option<Vec<f32>>) -> u64 {
    let store = SqliteStore::open(place.path("G.db")).unwrap();
    assert_eq!(store.check().unwrap(), [], "the store's own examination");
    let mut natives = 0;
    for space in store.spaces().unwrap() {
        let name = &space.space.name;
        let records = store.scan(&Scan::new(name, Select::All, 10 * ITEMS).with_vectors_of(name)).unwrap();
        assert_eq!(records.len(), ITEMS, "items are lost");
        for record in records {
            let number: usize = record.item.id[1..].parse().unwrap();
            let Some(vector) = record.vector else {
                assert_eq!(name, "second", "{} lost its old vector", record.item.id);
                continue;
            };
            let expected = match vector.provenance {
                Provenance::Old => Some(native(number)[..D_OLD].to_vec()),
                Provenance::Adapted => adapted(number),
                Provenance::Native => {
                    natives += 1;
                    Some(native(number))
                }
            };
            if let Some(expected) = expected {
                assert_eq!(vector.vector, expected, "{} in {name}", record.item.id);
            }
        }
    }
    natives
}

#[test]
fn killed_at_any_moment_it_goes_on_and_loses_nothing() {
    let kills: u32 = std::env::var("REHANG_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(200);
    let world = World::new();
    let mut random = ChaCha8Rng::seed_from_u64(9);
    let mut wait = |most: u64| Duration::from_micros(random.random_range(0..most * 1000));
    let (mut killed, mut killed_running, mut upgrades) = (0, 0, 0);
    let mut embedded_twice = 0;
    while killed < kills {
        // A gallery appears whole or not at all.
        for _ in 0..6 {
            if !world.place.path("G.db").exists() {
                killed += world.place.kill_after(&IMPORT, [wait(40)]);
            }
        }
        if !world.place.path("G.db").exists() {
            world.place.finish(&IMPORT);
        }
        world.check();
        for verb in ["start", "switch"] {
            for _ in 0..4 {
                killed += world.place.kill_after(&upgrade(verb), [wait(30)]);
                world.check();
            }
            world.place.finish(&upgrade(verb));
        }
        let mut natives = world.check();
        let mut deaths = 0;
        for _ in 0..60 {
            // Two at a time in every other upgrade.
            let died = if upgrades % 2 == 1 {
                world.place.kill_after(&upgrade("run"), [wait(60), wait(30)])
            } else {
                world.place.kill_after(&upgrade("run"), [wait(60)])
            };
            let ended = died == 0;
            killed += died;
            deaths += died;
            let now = world.check();
            assert!(now >= natives, "native vectors were lost: {natives}, then {now}");
            natives = now;
            if ended {
                break;
            }
        }
        killed_running += deaths;
        // Items in the hands of the dead are taken over when their leases have run out. An item that one
        // death after another has met, by chance, is listed then; a person tries it again.
        if !world.finish_both(&upgrade("run")) {
            let store = SqliteStore::open(world.place.path("G.db")).unwrap();
            let listed = store.failures("second", None, ITEMS).unwrap();
            let met = |failure: &Failure| failure.reason.contains("workers in a row ended without a word");
            assert!(!listed.is_empty() && listed.iter().all(met), "{listed:?}");
            world.place.finish(&[&upgrade("resume")[..], &["--retry-failed"]].concat());
            assert!(world.finish_both(&upgrade("run")));
        }
        assert_eq!(world.check(), ITEMS as u64);
        // Items were embedded more than once only where they were in hand at a death: the one batch of the
        // one worker. Two processes at once pay for nothing twice.
        let again = upgrade::embedded_again(&world.place);
        assert!(again <= deaths * BATCH as u32, "{again} embedded again after {deaths} deaths");
        embedded_twice += again;
        killed += world.place.kill_after(&upgrade("rollback"), [wait(20)]);
        world.check();
        world.place.finish(&upgrade("rollback"));
        world.place.finish(&upgrade("switch"));
        killed += world.place.kill_after(&upgrade("finish"), [wait(20)]);
        world.place.finish(&upgrade("finish"));
        assert_eq!(world.check(), ITEMS as u64);
        upgrades += 1;
        for entry in fs_err::read_dir(world.place.path("")).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if name.starts_with("G.db") || name == "log.txt" {
                fs_err::remove_file(path).unwrap();
            }
        }
    }
    println!(
        "{killed} kills ({killed_running} while re-embedding) over {upgrades} upgrades of {ITEMS} items; {embedded_twice} \
         items were embedded twice"
    );
}

/// An item that kills the process itself, as one does that takes all memory: it goes alone after two deaths,
/// and after two more it is listed. All others become native.
#[test]
fn an_item_that_kills_the_process_is_found() {
    let world = World::new();
    let kind = fs_err::read_to_string(world.place.path("rehang.toml")).unwrap();
    fs_err::write(world.place.path("rehang.toml"), kind.replace("lease = 2", "lease = 1")).unwrap();
    let program = fs_err::read_to_string(world.place.path("encode.sh")).unwrap();
    let deadly = "echo \"$text\" >> log.txt; if [ $id = i77 ]; then kill -9 $PPID; fi";
    fs_err::write(world.place.path("encode.sh"), program.replace("echo \"$text by $1\" >> log.txt", deadly))
        .unwrap();
    for arguments in [&IMPORT[..], &upgrade("start")] {
        world.place.finish(arguments);
    }
    let mut deaths = 0;
    let output = loop {
        let output = world.place.command(&upgrade("run")).stderr(Stdio::piped()).output().unwrap();
        if output.status.code().is_some() {
            break output;
        }
        deaths += 1;
        world.check();
        assert!(deaths <= 4);
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((deaths, output.status.code()), (4, Some(1)), "{said}");
    assert_eq!(world.check(), ITEMS as u64 - 1);
    let store = SqliteStore::open(world.place.path("G.db")).unwrap();
    let failures = store.failures("second", None, 9).unwrap();
    assert_eq!(failures.iter().map(|failure| failure.id.as_str()).collect::<Vec<_>>(), ["i77"]);
    let log = fs_err::read_to_string(world.place.path("log.txt")).unwrap();
    let again = log.lines().count() - ITEMS;
    assert!(again <= 2 * BATCH + 3, "{again} embedded again");
}

/// The process dies in the middle of what people asked, again and again, while the old model embeds it and
/// while the new one does: a death costs the queries that were in hand, and no other is embedded twice.
#[test]
fn queries_are_paid_for_once_whatever_dies_among_them() {
    const QUERIES: usize = 300;
    let world = World::new();
    let log: String = (0..QUERIES).map(|number| format!("{{\"text\": \"question {number}\"}}\n")).collect();
    world.place.write_bytes("queries.jsonl", log.as_bytes());
    // Six queries end the process, each the first time that a model is asked for it.
    let program = fs_err::read_to_string(world.place.path("encode.sh")).unwrap();
    let logs = "echo \"$text by $1\" >> log.txt";
    let deadly = "met=\"$text by $1.met\"; case $text in question*7[05]) [ -e \"$met\" ] || { : > \"$met\"; kill -9 $PPID; exit; };; esac";
    world.place.write_bytes("encode.sh", program.replace(logs, &format!("{logs}; {deadly}")).as_bytes());
    world.place.finish(&IMPORT);
    let pairs = [&upgrade("pairs")[..], &["--items", "40", "--queries", "queries.jsonl"]].concat();
    let mut deaths = 0;
    while world.place.run(&pairs).status.code().is_none() {
        deaths += 1;
        world.check();
    }
    assert_eq!(deaths, 2 * 6, "six queries by two models");
    let again = upgrade::embedded_again(&world.place);
    assert!(
        (deaths..=deaths * BATCH as u32).contains(&again),
        "{again} embedded again after {deaths} deaths"
    );
    let asked = || fs_err::read_to_string(world.place.path("log.txt")).unwrap().lines().count();
    assert_eq!(asked(), 40 + 2 * QUERIES + again as usize, "a sample, and all queries by both models");
    assert_eq!(world.place.json(&pairs)["queries"], QUERIES);
    println!("{deaths} deaths among {QUERIES} queries by two models; {again} were embedded twice");

    // Another old model has made none of these vectors, also where only its table tells it apart; the new one
    // has its own.
    let config = fs_err::read_to_string(world.place.path("rehang.toml")).unwrap();
    fs_err::copy(world.place.path("encode.sh"), world.place.path("other.sh")).unwrap();
    let (new, old) = config.split_once("[old.encoder]").unwrap();
    let without = old.replace("revision = \"1\"\n", "");
    let others = [
        old.replace("revision = \"1\"", "revision = \"2\""),
        without.replace("encode.sh", "other.sh"),
        without,
    ];
    for old in others {
        world.place.write_bytes("rehang.toml", format!("{new}[old.encoder]{old}").as_bytes());
        let before = asked();
        assert_eq!(world.place.json(&pairs)["queries"], QUERIES);
        // Without a revision, one is embedded again after every 128, and one at the end: the program might
        // have become another model.
        let more = asked() - before;
        assert!((QUERIES..=QUERIES + QUERIES / 128 + 1).contains(&more), "{more}");
    }
}

/// The whole way is killed at any moment, from the first pair to the last item, and the same command goes on:
/// no item is paid for twice but those in hand at a death.
#[test]
fn the_whole_way_is_killed_at_any_moment_and_goes_on() {
    let kills: u32 = std::env::var("REHANG_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(50);
    let world = World::new();
    let config = fs_err::read_to_string(world.place.path("rehang.toml")).unwrap();
    let config = config.replace("[adapter]\nfile = \"adapter.safetensors\"\n", "");
    fs_err::write(world.place.path("rehang.toml"), config).unwrap();
    world.place.finish(&IMPORT);
    let auto =
        [&upgrade("auto")[..], &["--yes", "--items", "500", "--worth", "0", "--method", "ridge"]].concat();
    let mut random = ChaCha8Rng::seed_from_u64(19);
    let (mut killed, mut natives, mut ended) = (0, 0, false);
    while killed < kills && !ended {
        let died = world.place.kill_after(&auto, [Duration::from_micros(random.random_range(0..600_000))]);
        ended = died == 0;
        killed += died;
        let now = check_gallery(&world.place, |_| None);
        assert!(now >= natives, "native vectors were lost: {natives}, then {now}");
        natives = now;
    }
    world.place.finish(&auto);
    assert_eq!(check_gallery(&world.place, |_| None), ITEMS as u64);
    let again = upgrade::embedded_again(&world.place);
    assert!(killed > 3 && again <= killed * BATCH as u32, "{again} embedded again after {killed} deaths");
    let status = world.place.json(&upgrade("status"));
    assert_eq!((&status["serving"], &status["phase"]), (&"second".into(), &"filled".into()));
    println!("{killed} kills; {again} items were embedded twice");
    // Nothing is left, and nothing is done.
    let halt = &world.place.json(&auto)["halt"];
    assert_eq!(halt["why"], "home");
}
