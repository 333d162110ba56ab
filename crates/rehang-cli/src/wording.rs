//! Words of the command line for what errors hold as data: parameters become flags, remedies become commands.

use std::ffi::OsString;
use std::sync::OnceLock;

use clap::{ArgMatches, Command};
use rehang_core::{Error, Remedy, Verb, Wording};

/// Words of the subcommand that this process runs.
static CALLED: OnceLock<Flags> = OnceLock::new();
/// Command line as it was given.
static LINE: OnceLock<Vec<OsString>> = OnceLock::new();

/// Keeps the command line and the subcommand that was called, for [`line`] and [`said`].
pub fn called(line: Vec<OsString>, command: Command, matches: &ArgMatches) {
    LINE.get_or_init(|| line);
    CALLED.get_or_init(|| Flags::of_subcommand(command, matches));
}

/// Gives the arguments behind the program's name, as they were given.
pub fn line() -> impl Iterator<Item = String> {
    LINE.get().into_iter().flatten().skip(1).map(|argument| argument.to_string_lossy().into_owned())
}

/// Writes the sentence of an error in the words of the subcommand that was called.
pub fn said(error: &Error) -> String {
    CALLED.get().map_or_else(|| error.to_string(), |flags| in_flags(&error.worded(flags)))
}

/// Replaces the parameters in a library's sentence, which stand between backticks, by the options that fill
/// them.
pub fn in_flags(text: &str) -> String {
    let Some(flags) = CALLED.get() else { return text.to_owned() };
    let mut worded = String::new();
    for (place, part) in text.split('`').enumerate() {
        let option = flags.parameter(part);
        match place % 2 {
            0 => worded += part,
            _ if flags.is_positional(part) => worded += &format!("the {}", part.replace('_', " ")),
            _ if option == part => worded += &format!("`{part}`"),
            _ => worded += &option,
        }
    }
    worded
}

/// Words a remedy as the command line puts it.
pub fn remedy(remedy: &Remedy) -> String {
    CALLED.get().map_or_else(|| remedy.to_string(), |flags| remedy.worded(flags))
}

/// Words of one subcommand.
struct Flags(Command);

impl Flags {
    /// Whether the subcommand takes the parameter by its position, so that no option names it.
    fn is_positional(&self, name: &str) -> bool {
        self.0.get_positionals().any(|argument| argument.get_id() == name)
    }

    /// Finds the subcommand that was called, and takes its words.
    fn of_subcommand(mut command: Command, matches: &ArgMatches) -> Self {
        let mut matches = matches;
        while let Some((name, inner)) = matches.subcommand() {
            let Some(subcommand) = command.find_subcommand(name) else { break };
            command = subcommand.clone();
            matches = inner;
        }
        Self(command)
    }
}

impl Wording for Flags {
    /// Gives the option that fills a parameter: its field has the parameter's name, or its flag is spelled
    /// like it. Anything else stays as it is.
    fn parameter(&self, name: &str) -> String {
        let flag = name.replace('_', "-");
        let options = || self.0.get_arguments().filter(|option| !option.is_positional());
        let argument = options()
            .find(|option| option.get_id() == name)
            .or_else(|| options().find(|option| option.get_long() == Some(flag.as_str())));
        argument.map_or_else(
            || name.to_owned(),
            |option| match (option.get_long(), option.get_short()) {
                (Some(long), _) => format!("--{long}"),
                (None, Some(short)) => format!("-{short}"),
                (None, None) => name.to_owned(),
            },
        )
    }

    fn imperative(&self) -> &'static str {
        "run"
    }

    fn verb(&self, verb: Verb) -> String {
        let command = match verb {
            Verb::Adopt => "rehang gallery adopt",
            Verb::Start => "rehang upgrade start",
            Verb::Status => "rehang upgrade status",
            Verb::Switch => "rehang upgrade switch",
            Verb::SwitchFused => "switch --fused",
            Verb::SwitchAnyway => "switch --anyway",
            Verb::Rollback => "rehang upgrade rollback",
            Verb::Resume => "rehang upgrade resume",
            Verb::ReEmbed => "rehang upgrade resume --re-embed",
            Verb::Run => "rehang upgrade run",
            Verb::FinishAnyway => "finish --anyway",
            Verb::ReleaseWithAdapted => "release --with-adapted",
            Verb::Release => "rehang gallery release",
            Verb::ReleaseAnyway => "release --yes --anyway",
            Verb::RunUntil { percent } => return format!("`rehang upgrade run --until {percent:.1}%`"),
            Verb::Follow => "rehang upgrade run --follow",
            Verb::Pause => "rehang upgrade pause",
            Verb::Report => "rehang report … -o report.json",
            Verb::Identify => "rehang identify --config rehang.toml",
            Verb::Pairs => "rehang upgrade pairs",
            Verb::Fit => "rehang upgrade fit",
            Verb::Bridge => "rehang upgrade bridge",
            Verb::Put => "rehang gallery put",
            Verb::DropSpace => "rehang gallery drop-space",
            Verb::Compact => "rehang gallery compact",
            Verb::Index => "rehang gallery index",
            Verb::Repair => "rehang doctor --repair",
        };
        format!("`{command}`")
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::arguments::Arguments;

    fn words(line: &[&str]) -> Flags {
        Flags::of_subcommand(Arguments::command(), &Arguments::command().get_matches_from(line))
    }

    #[test]
    fn a_parameter_is_named_as_the_option_of_the_subcommand_that_fills_it() {
        let search = words(&["rehang", "search", "--gallery", "g", "--vectors", "v"]);
        assert_eq!(search.parameter("old_vectors"), "--old-vectors");
        assert_eq!(search.parameter("provenances"), "--provenance", "by the field");
        assert_eq!(search.parameter("provenance"), "--provenance", "by the flag");
        assert_eq!(search.parameter("k"), "-k");
        assert_eq!(search.parameter("[run] rate"), "[run] rate", "a key of the configuration stays as it is");
        let run = words(&["rehang", "upgrade", "run"]);
        assert_eq!(run.parameter("until"), "--until");
        assert_eq!(run.parameter("provenances"), "provenances", "an option of another subcommand");
    }

    #[test]
    fn every_remedy_has_words_of_the_command_line() {
        let words = words(&["rehang", "inspect", "a"]);
        let switch = Remedy::ReconsiderSwitch { backfill_percent: Some(25.0) };
        assert!(switch.worded(&words).contains("--until 25.0%"));
        assert!(Remedy::ContinueFilling.worded(&words).contains("`rehang upgrade start`"));
    }
}
