//! Studies and generated files of the rehang repository.
//!
//! `cargo xtask tidy` says where the rules of this repository are broken; it runs as a test as well.
//!
//! `cargo xtask cli-docs` writes `docs/cli.md` from the definitions of the command line.
//!
//! `cargo xtask demo-data` trains the two encoders of the demo and writes everything in `demo/` that is not taken from
//! scikit-learn by `scripts/extract-digits.py`.
//!
//! `cargo xtask picture` draws `docs/curve.svg` from the report of a demo run, or another report into another file, beside what
//! was true.
//!
//! `cargo xtask kill [TIMES]` kills the binary in the middle of upgrades, 1,000 times unless told otherwise.
//!
//! `cargo xtask chaos [TIMES]` does so to a gallery that is large enough for a search graph, 60 times, and measures recall after each.
//!
//! `cargo xtask race [HISTORIES] [--store memory|disk|postgres|qdrant]` plays random histories of applications, operators, deaths and full
//! disks against an oracle, 10,000 in every store, or in one, unless told otherwise (`TMPDIR=/dev/shm` spares a disk).
//!
//! `cargo xtask learning [FOLDER] [SET…]` holds what more pairs are expected to bring against what they brought.
//!
//! `cargo xtask forecast [SPLITS [FOLDER [SET…]]]` holds forecasts of whole galleries against their truth.
//!
//! `cargo xtask bridge [SPLITS [FOLDER [SET…]]]` measures what an untouched gallery gives to bridged queries and to both models' scores together.
//!
//! `cargo xtask identify [FOLDER [REAL]]` mixes vectors of several models, and says how often that is found.
//!
//! `cargo xtask fuse [FOLDER] [SET…]` measures what searches find at every stage of an upgrade, mixed and fused.
//!
//! `cargo xtask drift [METHOD [FOLDER [SET…]]]` measures how far σ² is off, in galleries that are what the pairs were drawn from and in others.
//!
//! `cargo xtask refit [METHOD [FOLDER [SET…]]]` measures what it is worth to fit the map again while a gallery is re-embedded.
//!
//! `cargo xtask orders [SPLITS [FOLDER [SET…]]]` measures whether the order that held-out pairs choose is right.
//! `cargo xtask bias [FOLDER]` measures which order closes the gap between groups that the old model saw unevenly.
//!
//! `cargo xtask regret [FOLDER [SET…]]` measures what the choice of `rehang fit` costs against the best candidate that it had.
//!
//! `cargo xtask fuzz [SECONDS [DOOR…]]` gives every reader of files and answers inputs that reach new edges, an hour each unless told
//! otherwise.
//!
//! `cargo xtask papers [pages | units [SET…] | side | studies [NAME…]]` makes the papers' tables here, what is missing of them, and writes
//! `docs/results.md` and the pages under `docs/results/`.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program of this repository, for its contributors"
)]

mod bias;
mod bridge;
mod cli_docs;
mod demo_data;
mod drift;
mod forecast;
mod fuse;
mod fuzz;
mod identify;
mod learning;
mod long;
mod orders;
mod papers;
mod picture;
mod records;
mod refit;
mod regret;
mod tidy;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["demo-data"] => demo_data::run(),
        ["tidy"] => tidy::run(),
        ["cli-docs"] => cli_docs::run(),
        ["picture"] => picture::run("rehang-demo/report.json", picture::README, None),
        ["picture", path] => picture::run(path, picture::README, None),
        ["picture", path, output] => picture::run(path, output, None),
        ["picture", path, output, truth] => picture::run(path, output, Some(truth)),
        ["papers", rest @ ..] => papers::run(rest),
        ["learning", rest @ ..] => learning::run(rest),
        ["forecast", rest @ ..] => forecast::run(rest),
        ["bridge", rest @ ..] => bridge::run(rest),
        ["identify", rest @ ..] => identify::run(rest),
        ["fuse", rest @ ..] => fuse::run(rest),
        ["refit", rest @ ..] => refit::run(rest),
        ["orders", rest @ ..] => orders::run(rest),
        ["drift", rest @ ..] => drift::run(rest),
        ["bias"] => bias::run("../shared/data"),
        ["bias", folder] => bias::run(folder),
        ["regret", rest @ ..] => regret::run(rest),
        ["fuzz"] => fuzz::run("3600", &[]),
        ["fuzz", seconds, names @ ..] => fuzz::run(seconds, names),
        ["kill"] => long::kill("kill", "1000"),
        ["kill", times] => long::kill("kill", times),
        ["chaos"] => long::kill("chaos", "60"),
        ["chaos", times] => long::kill("chaos", times),
        ["race"] => long::race("10000", ""),
        ["race", "--store", store] => long::race("10000", store),
        ["race", histories] => long::race(histories, ""),
        ["race", histories, "--store", store] => long::race(histories, store),
        _ => {
            eprintln!(
                "usage: cargo xtask tidy | cli-docs | demo-data | picture [REPORT.json [OUT.svg [TRUTH.json]]] | papers [pages | units [SET…] | side | studies [NAME…]] | forecast [SPLITS [FOLDER [SET…]]] | bridge [SPLITS [FOLDER [SET…]]] | identify [FOLDER [REAL]] | fuse [FOLDER] [SET…] | refit [METHOD [FOLDER [SET…]]] | drift [METHOD [FOLDER [SET…]]] | orders [SPLITS [FOLDER [SET…]]] | kill [TIMES] | chaos [TIMES] | race [HISTORIES] [--store memory|disk|postgres|qdrant] | fuzz [SECONDS [DOOR…]] | bias [FOLDER] | learning [FOLDER [SET…]] | regret [FOLDER [SET…]]"
            );
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error}");
            ExitCode::from(2)
        }
    }
}
