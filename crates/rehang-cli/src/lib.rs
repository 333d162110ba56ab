//! The rehang command line.
//!
//! ```text
//! arguments → a verb of commands/ → library calls → print → exit code
//! ```
//!
//! Exit codes: 0 done, 1 finished with something refused or doubtful, 2 failed.

mod addresses;
#[doc(hidden)]
pub mod arguments;
mod bar;
mod commands;
mod wording;

use std::ffi::OsString;

use clap::{ArgMatches, CommandFactory, FromArgMatches};
#[cfg(not(all(feature = "demo", feature = "serve")))]
use rehang_core::ErrorKind;
use rehang_core::{Error, Result};

use arguments::{Arguments, Command};
use commands::Exit;

/// Functions that the laboratory's command line has in common with this one, beside `arguments`.
#[doc(hidden)]
pub mod shared {
    pub use crate::bar::with_bar;
    pub use crate::carry_out;
    pub use crate::commands::{Exit, say, say_findings};
}

/// Does what a command line asks for, the program's name in front, and gives the exit code. `--help` and a
/// line that cannot be read end the process, as programs do.
pub fn main(line: impl IntoIterator<Item = OsString>) -> u8 {
    let line: Vec<OsString> = line.into_iter().collect();
    let command = Arguments::command();
    let matches = command.clone().get_matches_from(&line);
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    carry_out(line, command, &matches, arguments.threads, || run(&arguments))
}

/// Carries out a command line that was read, on so many threads, and gives the exit code. An error is said in
/// the words of the subcommand.
#[doc(hidden)]
pub fn carry_out(
    line: Vec<OsString>,
    command: clap::Command,
    matches: &ArgMatches,
    threads: Option<usize>,
    run: impl FnOnce() -> Result<Exit>,
) -> u8 {
    wording::called(line, command, matches);
    match use_threads(threads).and_then(|()| run()) {
        Ok(Exit::Done) => 0,
        Ok(Exit::WithRefusals) => 1,
        Err(error) => {
            commands::say(&format!("Error: {}", wording::said(&error)));
            2
        }
    }
}

fn use_threads(threads: Option<usize>) -> Result<()> {
    let Some(threads) = threads else { return Ok(()) };
    if threads == 0 {
        return Err(Error::option("--threads", 0, "1 or more"));
    }
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build_global()
        .map_err(|error| Error::option("--threads", threads, error))
}

fn run(arguments: &Arguments) -> Result<Exit> {
    let json = arguments.json;
    match &arguments.command {
        #[cfg(feature = "demo")]
        Command::Demo(demo) => commands::demo::run(demo, json),
        #[cfg(not(feature = "demo"))]
        Command::Demo(_) => Err(ErrorKind::MissingFeature { feature: "demo" }.into()),
        Command::Fit(fit) => commands::fit::run(fit, json),
        Command::Export(export) => commands::export::run(export, json),
        Command::Transform(transform) => commands::transform::run(transform, json),
        Command::Order(order) => commands::order::run(order, json),
        Command::Curve(curve) => commands::curve::run(curve, json),
        Command::Report(report) => commands::report::run(report, json),
        Command::Identify(identify) => commands::identify::run(identify, json),
        Command::Inspect(inspect) => commands::inspect::run(inspect, json),
        Command::Bench(bench) => commands::bench::run(bench, json),
        Command::Gallery(gallery) => commands::gallery::run(gallery, json),
        Command::Search(search) => commands::search::run(search, json),
        Command::Init(init) => commands::init::run(init, json),
        Command::Upgrade(upgrade) => commands::upgrade::run(upgrade, json),
        Command::Thresholds(thresholds) => commands::thresholds::run(thresholds, json),
        Command::Doctor(doctor) => commands::doctor::run(doctor, json),
        #[cfg(feature = "serve")]
        Command::Serve(serve) => commands::serve::run(serve, json),
        #[cfg(not(feature = "serve"))]
        Command::Serve(_) => Err(ErrorKind::MissingFeature { feature: "serve" }.into()),
        Command::Completions(completions) => commands::manual::completions(completions, json),
        Command::Man(man) => commands::manual::man(man, json),
    }
}
