//! `rehang completions` and `rehang man`: what the definitions of the command line say, for shells, `man` and
//! `docs/cli.md`.

use std::fmt::Write as _;

use clap::{Arg, CommandFactory};
use rehang_core::{Error, Result};
use rehang_files::AtomicFile;
use serde_json::json;

use super::Exit;
use crate::arguments::{Arguments, CompletionsArguments, ManArguments, ManFormat};

/// Prints the completions of a shell.
pub fn completions(arguments: &CompletionsArguments, json: bool) -> Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Arguments::command(), "rehang", &mut script);
    let script = String::from_utf8_lossy(&script);
    Exit::Done.print(json, &json!({ "shell": arguments.shell.to_string(), "script": script }), &script)
}

/// Writes the manual into a folder.
pub fn man(arguments: &ManArguments, json: bool) -> Result<Exit> {
    let folder = &arguments.out;
    fs_err::create_dir_all(folder).map_err(|error| Error::io("create", folder, &error))?;
    let mut root = Arguments::command().disable_help_subcommand(true);
    root.build();
    let pages = match arguments.format {
        ManFormat::Roff => roff(&root)?,
        ManFormat::Markdown => vec![("cli.md".into(), markdown(&root))],
    };
    let mut written = Vec::new();
    for (name, text) in pages {
        let path = folder.join(name);
        AtomicFile::write(&path, &text)?;
        written.push(path.display().to_string());
    }
    Exit::Done.print(json, &json!({ "written": written }), &format!("{}\n", written.join("\n")))
}

/// Makes a page for every command: the name of its file, and its text.
fn roff(root: &clap::Command) -> Result<Vec<(String, String)>> {
    let mut pages = Vec::new();
    for command in all(root) {
        let page = clap_mangen::Man::new(command.clone());
        let mut text = Vec::new();
        page.render(&mut text).map_err(|error| Error::io("render", page.get_filename(), &error))?;
        pages.push((page.get_filename(), String::from_utf8_lossy(&text).into_owned()));
    }
    Ok(pages)
}

/// Lists a command and all below it, in the order of the help.
fn all(command: &clap::Command) -> Vec<&clap::Command> {
    let below = command.get_subcommands().filter(|command| !command.is_hide_set());
    std::iter::once(command).chain(below.flat_map(all)).collect()
}

/// Writes all commands on one page.
fn markdown(root: &clap::Command) -> String {
    let mut text = String::from(
        "# Every command and option\n\nMade by `cargo xtask cli-docs` from the definitions of the command line. Do not edit by hand.\n\n",
    );
    let everywhere: Vec<&Arg> = root.get_arguments().filter(|argument| argument.is_global_set()).collect();
    let _ = writeln!(text, "{}\n\nOptions of every command:\n", long_about(root));
    text.extend(everywhere.iter().map(|argument| item(argument)));
    text.push_str("\nExit codes: 0 done, 1 finished with something refused or doubtful, 2 failed.\n");
    for command in all(root).into_iter().skip(1) {
        let name = command.get_bin_name().unwrap_or_default();
        let usage = command.clone().render_usage().to_string();
        let usage = usage.trim_start_matches("Usage:").trim();
        let _ = write!(text, "\n## {name}\n\n{}\n\n```text\n{usage}\n```\n", long_about(command));
        let is_of_command = |argument: &&Arg| {
            let is_help = ["help", "version"].contains(&argument.get_id().as_str());
            !(is_help
                || argument.is_hide_set()
                || everywhere.iter().any(|other| other.get_id() == argument.get_id()))
        };
        let items: String = command.get_arguments().filter(is_of_command).map(item).collect();
        if !items.is_empty() {
            let _ = write!(text, "\n{items}");
        }
    }
    text
}

fn long_about(command: &clap::Command) -> String {
    let about = command.get_long_about().or_else(|| command.get_about());
    about.map(|about| escaped(&about.to_string())).unwrap_or_default()
}

/// Writes one argument as an item of a list.
fn item(argument: &Arg) -> String {
    let names = argument.get_value_names().unwrap_or_default();
    let takes = argument.get_action().takes_values();
    let value: String = names.iter().filter(|_| takes).map(|name| format!(" {name}")).collect();
    let names = match (argument.get_short(), argument.get_long()) {
        (Some(short), Some(long)) => format!("-{short}, --{long}{value}"),
        (Some(short), None) => format!("-{short}{value}"),
        (None, Some(long)) => format!("--{long}{value}"),
        (None, None) => value.trim().to_string(),
    };
    let help = argument.get_long_help().or_else(|| argument.get_help());
    let help = help.map(|help| escaped(&help.to_string()).replace("\n\n", "\n\n  ")).unwrap_or_default();
    let quoted =
        |words: Vec<String>| words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
    let mut text =
        format!("- `{names}`{}: {help}", if argument.is_required_set() { " (required)" } else { "" });
    let values: Vec<String> = argument
        .get_possible_values()
        .iter()
        .filter(|value| takes && !value.is_hide_set())
        .map(|value| value.get_name().to_string())
        .collect();
    if !values.is_empty() {
        let _ = write!(text, " One of {}.", quoted(values));
    }
    let defaults = argument.get_default_values().iter().filter(|_| takes);
    let defaults: Vec<String> = defaults.map(|value| value.to_string_lossy().into_owned()).collect();
    if !defaults.is_empty() {
        let _ = write!(text, " Default: {}.", quoted(defaults));
    }
    text + "\n"
}

/// Writes a help text as Markdown: tags and stars stay what they are, and the full stop that clap takes off
/// is put back.
fn escaped(text: &str) -> String {
    let text = text.replace('<', "\\<").replace('*', "\\*");
    if text.ends_with(['.', ':', '…']) { text } else { text + "." }
}
