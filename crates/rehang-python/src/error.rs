//! Errors of the libraries as exceptions of `rehang.errors`, in the words of Python.

use pyo3::prelude::*;
use rehang::{Error, ErrorKind, Remedy, Wording};

/// The exception that stands for an error.
pub fn raised(py: Python<'_>, error: &Error) -> PyErr {
    match made(py, error) {
        Ok(exception) => PyErr::from_value(exception),
        Err(other) => other,
    }
}

fn made<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyAny>> {
    let class = py.import("rehang.errors")?.getattr(class_of(error))?;
    let exception = class.call1((error.worded(&Words),))?;
    exception.setattr("remedy", error.remedy().map(|remedy| Words.remedy(remedy)))?;
    Ok(exception)
}

/// The name of the exception's class, by what the reader has to do.
fn class_of(error: &Error) -> &'static str {
    match error.kind() {
        _ if error.is_mismatch() => "MismatchError",
        _ if error.is_corrupt() => "CorruptError",
        _ if error.is_conflict() => "ConflictError",
        ErrorKind::InvalidOption { .. } | ErrorKind::MissingInput { .. } => "OptionError",
        ErrorKind::Io { .. } => "FileError",
        ErrorKind::NotFound { .. } => "NotFoundError",
        ErrorKind::Unavailable { .. } => "UnavailableError",
        ErrorKind::Unauthorised { .. } => "UnauthorisedError",
        ErrorKind::BudgetSpent { .. } => "BudgetSpentError",
        ErrorKind::MissingFeature { .. } => "MissingFeatureError",
        ErrorKind::Cancelled => "CancelledError",
        _ => "Error",
    }
}

/// Parameters are the arguments' own names; remedies are calls.
struct Words;

impl Wording for Words {
    fn parameter(&self, name: &str) -> String {
        // An encoder is a callable here, and no table of a configuration.
        name.strip_suffix(" of [encoder]").unwrap_or(name).to_owned()
    }

    fn remedy(&self, remedy: &Remedy) -> String {
        match remedy {
            Remedy::AdoptTable => "`rehang gallery adopt` makes it one, and ends what was begun",
            Remedy::BeginUpgrade => "`upgrade.start()` begins one",
            Remedy::ContinueFilling => "call `upgrade.start()`, which goes on where it was",
            Remedy::PlanAnew => {
                "call `upgrade.start()` with it to re-plan (native vectors are kept), or name the adapter it was started with"
            }
            Remedy::AwaitNewPlan => {
                "let that `upgrade.start()` come to its end, or call this one again to plan it anew once more"
            }
            Remedy::SettleOtherUpgrade => "`upgrade.status()` says which; finish or roll back that one",
            Remedy::SwitchFirst => "call `upgrade.switch()` first",
            Remedy::SwitchAgain => {
                "`upgrade.status()` says how it stands, and `upgrade.switch()` tries again"
            }
            Remedy::RollBackOrSwitch => {
                "call `upgrade.rollback()` again to go back, or `upgrade.switch()` to stay"
            }
            Remedy::RollBackOrFill => {
                "call `upgrade.rollback()` again to go back, or `upgrade.start()` to stay"
            }
            Remedy::ResumeBackfill => "`upgrade.resume()` lets it go on",
            Remedy::EmbedNativesAgain => {
                "or call `upgrade.resume(re_embed=True)`, which puts the native vectors back, so that the next run embeds them again"
            }
            Remedy::ReconsiderSwitch { backfill_percent } => {
                let first = backfill_percent.map_or_else(
                    || "it never passes doing nothing;".to_owned(),
                    |percent| {
                        let share = percent / 100.0;
                        format!(
                            "it passes doing nothing at {percent:.1} %, so `upgrade.run(until={share:.3})` first; or"
                        )
                    },
                );
                return format!(
                    "{first} serve merged searches (`switch(merged=True)`), or switch all the same (`switch(anyway=True)`)"
                );
            }
            Remedy::MakeReport => "`rehang.report(…).save(\"report.json\")` makes one",
            Remedy::DrawPairs => "`upgrade.pairs()` draws them",
            Remedy::FitPairs => "`upgrade.fit()` learns one from the pairs that were drawn",
            Remedy::FitAgain => "fit the adapter again on newer pairs, then `upgrade.start()`",
            Remedy::WriteSingleItems => "write single items with `gallery.put`",
            Remedy::DropSpace => "`rehang gallery drop-space` on the command line removes it",
            Remedy::Compact => "`rehang gallery compact` on the command line gives the disk its room back",
            Remedy::PrepareIndex => "`rehang gallery index` on the command line makes it",
            Remedy::RebuildIndex => "`rehang doctor --repair` on the command line makes it again",
            Remedy::AwaitOtherProcess => "wait for it, or ask it to end with `upgrade.pause()`",
            // A remedy that is new to this face has words that fit any.
            other => return other.to_string(),
        }
        .to_owned()
    }
}
