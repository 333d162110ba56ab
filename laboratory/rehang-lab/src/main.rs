//! The laboratory's command line: trains encoders, compares methods of papers, and measures what rehang does.
//!
//! It belongs to this repository, is published nowhere, and promises nothing from one version to the next. A verb that it does not have is
//! one of `rehang`.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "studies say what they find as they go")]

mod arguments;
mod commands;
mod studies;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};
use rehang::Result;
use rehang_cli::shared::{Exit, carry_out};

use arguments::{Arguments, Command};

fn main() -> ExitCode {
    let line: Vec<OsString> = std::env::args_os().collect();
    let command = Arguments::command();
    let matches = command.clone().get_matches_from(&line);
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    ExitCode::from(match arguments.command {
        Command::Rehang(_) => rehang_cli::main(line),
        _ => carry_out(line, command, &matches, arguments.threads, || run(&arguments)),
    })
}

fn run(arguments: &Arguments) -> Result<Exit> {
    let json = arguments.json;
    match &arguments.command {
        Command::Train(train) => commands::train::run(train, json),
        Command::Compare(compare) => commands::compare::run(compare, json),
        Command::Embed(embed) => commands::train::embed(embed, json),
        Command::Export(export) => commands::train::export(export, json),
        Command::Evaluate(evaluate) => commands::evaluate::run(evaluate, json),
        Command::Study(asked) => {
            let rest: Vec<&str> = asked.rest.iter().map(String::as_str).collect();
            studies::run(asked.study, &rest).map(|()| Exit::Done)
        }
        Command::Rehang(_) => unreachable!("the other command line has taken it"),
    }
}
