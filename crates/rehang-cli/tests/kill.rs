//! The binary is killed (`kill -9`) at random moments, again and again. After every death the gallery is whole; in the end
//! it is what it would have been without any, and nothing was embedded twice beyond one batch a death.
//!
//! `REHANG_KILLS` sets how often (default 200; `cargo xtask kill` runs 1,000).

#![cfg(unix)]

#[path = "../../rehang-upgrade/tests/common/padding.rs"]
mod padding;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use padding::padding;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rehang::{Adapter, Distance, Matrix, Provenance, Space};
use rehang_store::{Ledger, Scan, Select, SqliteStore};

const ITEMS: usize = 1200;
const BATCH: usize = 8;
const D_OLD: usize = 4;
const D_NEW: usize = 6;

const IMPORT: [&str; 12] = [
    "gallery",
    "import",
    "--gallery",
    "g.db",
    "--space",
    "old-model",
    "--vectors",
    "old.npy",
    "--items",
    "items.jsonl",
    "--distance",
    "l2",
];
const RUN: [&str; 4] = ["upgrade", "run", "--config", "rehang.toml"];

/// The new model's vector of an item: the old one with two more coordinates.
fn native(number: usize) -> Vec<f32> {
    (0..D_NEW).map(|column| ((number * 7 + column * 13) % 101) as f32 / 8.0).collect()
}

fn adapter() -> Adapter {
    let space = |name, dimension| Space::new(name, dimension, Distance::L2, false);
    padding(space("old-model", D_OLD), space("new-model", D_NEW), vec![0.1; D_NEW], 0.0)
}

struct World {
    folder: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let old = Matrix::from_fn(ITEMS, D_OLD, |row, column| native(row)[column]);
        rehang::files::write_matrix(at("old.npy"), &old, None).unwrap();
        adapter().save(at("adapter.safetensors")).unwrap();
        let mut items = String::new();
        for number in 0..ITEMS {
            writeln!(items, r#"{{"id": "i{number}", "source": "text {number}"}}"#).unwrap();
        }
        fs_err::write(at("items.jsonl"), items).unwrap();
        // An encoder as a user would write one; it keeps a log of what it was asked for. The vector is computed from the
        // number in the id, without starting another process.
        let program = r#"
            while IFS= read -r line; do
                id=${line#*\"id\":\"}; id=${id%%\"*}; number=${id#i}; echo "$id" >> log.txt
                vector=; column=0
                while [ $column -lt 6 ]; do
                    eighths=$(( (number * 7 + column * 13) % 101 ))
                    case $(( eighths % 8 )) in
                        0) rest=000;; 1) rest=125;; 2) rest=250;; 3) rest=375;; 4) rest=500;; 5) rest=625;; 6) rest=750;; *) rest=875;;
                    esac
                    vector="$vector,$(( eighths / 8 )).$rest"; column=$(( column + 1 ))
                done
                printf '{"id":"%s","vector":[%s]}\n' "$id" "${vector#,}"
            done
        "#;
        fs_err::write(at("encode.sh"), program).unwrap();
        let world = Self { folder };
        let config = format!(
            "[gallery]\npath = \"g.db\"\n[old]\nname = \"old-model\"\ndim = {D_OLD}\ndistance = \"l2\"\n[new]\nname = \
             \"new-model\"\ndim = {D_NEW}\ndistance = \"l2\"\n[adapter]\nfile = \"adapter.safetensors\"\n[order]\npolicy = \
             \"sigma\"\n[encoder]\nkind = \"command\"\nprogram = [\"sh\", \"encode.sh\"]\nrevision = \"1\"\n[run]\nbatch = {BATCH}\nlease = 2\n"
        );
        fs_err::write(world.path("rehang.toml"), config).unwrap();
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rehang"));
        command.args(arguments).current_dir(self.folder.path()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Runs a command and kills it after a while; gives whether it had ended before.
    fn kill_after(&self, arguments: &[&str], wait: Duration) -> bool {
        let mut child = self.command(arguments).spawn().unwrap();
        #[allow(clippy::disallowed_methods, reason = "the process is killed at any moment of its work")]
        std::thread::sleep(wait);
        let ended = child.try_wait().unwrap().is_some();
        drop(child.kill());
        child.wait().unwrap();
        ended
    }

    /// Runs a command twice at once; kills one of the two after a while and the other one later, if they have not ended. Gives how
    /// many were killed.
    fn kill_both_after(&self, arguments: &[&str], waits: [Duration; 2]) -> u32 {
        let mut children = [(); 2].map(|()| self.command(arguments).spawn().unwrap());
        let mut killed = 0;
        for (child, wait) in children.iter_mut().zip(waits) {
            #[allow(
                clippy::disallowed_methods,
                reason = "the processes are killed at any moment of their work"
            )]
            std::thread::sleep(wait);
            killed += u32::from(child.try_wait().unwrap().is_none());
            drop(child.kill());
            child.wait().unwrap();
        }
        killed
    }

    /// Runs a command twice at once, to the end of both.
    fn finish_both(&self, arguments: &[&str]) {
        let children = [(); 2].map(|()| self.command(arguments).stderr(Stdio::piped()).spawn().unwrap());
        for child in children {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }

    fn finish(&self, arguments: &[&str]) {
        let output = self.command(arguments).stderr(Stdio::piped()).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Everything that must hold after any death; gives how many are native.
    fn check(&self) -> u64 {
        check_gallery(&self.path("g.db"))
    }
}

fn check_gallery(path: &Path) -> u64 {
    let store = SqliteStore::open(path).unwrap();
    assert_eq!(store.check().unwrap(), [], "the store's own examination");
    let mut natives = 0;
    for space in store.spaces().unwrap() {
        let name = &space.space.name;
        let records = store.scan(&Scan::new(name, Select::All, 10 * ITEMS).with_vectors_of(name)).unwrap();
        assert_eq!(records.len(), ITEMS, "items are lost");
        for record in records {
            let number: usize = record.item.id[1..].parse().unwrap();
            let Some(vector) = record.vector else {
                assert_eq!(name, "new-model", "{} lost its old vector", record.item.id);
                continue;
            };
            let mut expected = native(number);
            match vector.provenance {
                Provenance::Old => expected.truncate(D_OLD),
                Provenance::Adapted => expected[D_OLD..].fill(0.0),
                Provenance::Native => natives += 1,
            }
            assert_eq!(vector.vector, expected, "{} in {name}", record.item.id);
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
            if !world.path("g.db").exists() {
                killed += u32::from(!world.kill_after(&IMPORT, wait(40)));
            }
        }
        if !world.path("g.db").exists() {
            world.finish(&IMPORT);
        }
        world.check();
        for verb in ["start", "switch"] {
            for _ in 0..4 {
                killed +=
                    u32::from(!world.kill_after(&["upgrade", verb, "--config", "rehang.toml"], wait(30)));
                world.check();
            }
            world.finish(&["upgrade", verb, "--config", "rehang.toml"]);
        }
        let mut natives = world.check();
        let mut deaths = 0;
        for _ in 0..60 {
            // Two at a time in every other upgrade.
            let died = if upgrades % 2 == 1 {
                world.kill_both_after(&RUN, [wait(60), wait(30)])
            } else {
                u32::from(!world.kill_after(&RUN, wait(60)))
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
        // What the dead held is taken over when their leases have run out.
        world.finish_both(&RUN);
        assert_eq!(world.check(), ITEMS as u64);
        // What was embedded more than once was in hand at a death: the one batch of the one worker. Two processes at once pay for
        // nothing twice.
        let log = fs_err::read_to_string(world.path("log.txt")).unwrap();
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        for id in log.lines() {
            *counts.entry(id).or_default() += 1;
        }
        let again: u32 = counts.values().map(|count| count - 1).sum();
        assert!(again <= deaths * BATCH as u32, "{again} embedded again after {deaths} deaths");
        embedded_twice += again;
        killed += u32::from(!world.kill_after(&["upgrade", "rollback", "--config", "rehang.toml"], wait(20)));
        world.check();
        world.finish(&["upgrade", "rollback", "--config", "rehang.toml"]);
        world.finish(&["upgrade", "switch", "--config", "rehang.toml"]);
        killed += u32::from(!world.kill_after(&["upgrade", "finish", "--config", "rehang.toml"], wait(20)));
        world.finish(&["upgrade", "finish", "--config", "rehang.toml"]);
        assert_eq!(world.check(), ITEMS as u64);
        upgrades += 1;
        for entry in fs_err::read_dir(world.folder.path()).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if name.starts_with("g.db") || name == "log.txt" {
                fs_err::remove_file(path).unwrap();
            }
        }
    }
    println!(
        "{killed} kills ({killed_running} while re-embedding) over {upgrades} upgrades of {ITEMS} items; {embedded_twice} \
         items were embedded twice"
    );
}

/// An item that kills the process itself, as one does that takes all memory: it goes alone after two deaths, and after two more it is
/// listed. All others become native.
#[test]
fn an_item_that_kills_the_process_is_found() {
    let world = World::new();
    let kind = fs_err::read_to_string(world.path("rehang.toml")).unwrap();
    fs_err::write(world.path("rehang.toml"), kind.replace("lease = 2", "lease = 1")).unwrap();
    let program = fs_err::read_to_string(world.path("encode.sh")).unwrap();
    let deadly = "echo \"$id\" >> log.txt; if [ $id = i77 ]; then kill -9 $PPID; fi";
    fs_err::write(world.path("encode.sh"), program.replace("echo \"$id\" >> log.txt", deadly)).unwrap();
    for arguments in [&IMPORT[..], &["upgrade", "start", "--config", "rehang.toml"]] {
        world.finish(arguments);
    }
    let mut deaths = 0;
    let output = loop {
        let output = world.command(&RUN).stderr(Stdio::piped()).output().unwrap();
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
    let store = SqliteStore::open(world.path("g.db")).unwrap();
    let failures = store.failures("new-model", None, 9).unwrap();
    assert_eq!(failures.iter().map(|failure| failure.id.as_str()).collect::<Vec<_>>(), ["i77"]);
    let log = fs_err::read_to_string(world.path("log.txt")).unwrap();
    let again = log.lines().count() - ITEMS;
    assert!(again <= 2 * BATCH + 3, "{again} embedded again");
}
