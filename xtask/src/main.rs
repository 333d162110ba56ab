//! Checks of the rehang repository, and its generated files.
//!
//! `cargo xtask tidy` says where the rules of this repository are broken; it runs as a test as well.
//!
//! `cargo xtask cli-docs` writes `docs/cli.md` from the definitions of the command line.
//!
//! `cargo xtask picture` draws `docs/curve.svg` from the report of a demo run, or another report into another
//! file, beside what was true.
//!
//! `cargo xtask kill [TIMES]` kills the binary in the middle of upgrades, 1,000 times unless told otherwise.
//!
//! `cargo xtask chaos [TIMES]` does so to a gallery that is large enough for a search graph, 60 times, and
//! measures recall after each.
//!
//! `cargo xtask race [HISTORIES] [--store memory|disk|postgres|qdrant]` plays random histories of
//! applications, operators, deaths and full disks against an oracle, 10,000 in every store, or in one, unless
//! told otherwise (`TMPDIR=/dev/shm` spares a disk).
//!
//! `cargo xtask fuzz [SECONDS [DOOR…]]` gives every reader of files and answers inputs that reach new edges,
//! an hour each unless told otherwise.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program of this repository, for its contributors"
)]

mod cli_docs;
mod fuzz;
mod long;
mod picture;
mod tidy;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["tidy"] => tidy::run(),
        ["cli-docs"] => cli_docs::run(),
        ["picture"] => picture::run("rehang-demo/report.json", picture::README, None),
        ["picture", path] => picture::run(path, picture::README, None),
        ["picture", path, output] => picture::run(path, output, None),
        ["picture", path, output, truth] => picture::run(path, output, Some(truth)),
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
                "usage: cargo xtask tidy | cli-docs | picture [REPORT.json [OUT.svg [TRUTH.json]]] | kill [TIMES] | chaos [TIMES] | race [HISTORIES] [--store memory|disk|postgres|qdrant] | fuzz [SECONDS [DOOR…]]"
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
