//! The laboratory's command line: trains encoders, compares methods of papers, and measures what rehang does.
//!
//! It belongs to this repository, is published nowhere, and promises nothing from one version to the next. A
//! verb that it does not have is one of `rehang`.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "studies say what they find as they go")]

mod arguments;
mod commands;
mod studies;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};
use rehang_cli::shared::{Exit, carry_out};
use rehang_core::Result;

use arguments::{LabArguments, LabCommand};

fn main() -> ExitCode {
    let line: Vec<OsString> = std::env::args_os().collect();
    let command = LabArguments::command();
    let matches = command.clone().get_matches_from(&line);
    let arguments = LabArguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    ExitCode::from(match arguments.command {
        LabCommand::Rehang(_) => rehang_cli::main(line),
        _ => carry_out(line, command, &matches, arguments.threads, || run(&arguments)),
    })
}

fn run(arguments: &LabArguments) -> Result<Exit> {
    let json = arguments.json;
    match &arguments.command {
        LabCommand::Train(train) => commands::train::run(train, json),
        LabCommand::Compare(compare) => commands::compare::run(compare, json),
        LabCommand::Embed(embed) => commands::train::embed(embed, json),
        LabCommand::Export(export) => commands::train::export(export, json),
        LabCommand::Evaluate(evaluate) => commands::evaluate::run(evaluate, json),
        LabCommand::Study(asked) => {
            let rest: Vec<&str> = asked.rest.iter().map(String::as_str).collect();
            studies::run(asked.study, &rest).map(|()| Exit::Done)
        }
        LabCommand::Rehang(_) => unreachable!("the other command line has taken it"),
    }
}
