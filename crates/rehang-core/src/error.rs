//! The one error type of the whole product, written for the person who must act.
//!
//! # Design
//!
//! [`Error`] carries one [`ErrorKind`] with structured fields (so a test can assert on them) and a chain of
//! contexts that says what was being done. The sentence is made in `Display`: what happened, where, and what
//! to do about it. The predicates ([`Error::is_mismatch`], [`Error::is_corrupt`], …) group kinds by what the
//! operator does next. Where there is a next step that a face has its own words for, the error carries it as
//! a [`Remedy`]. Where neither the caller nor this process is at fault, it names the [`Party`] that is.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::remedy::{Plain, Remedy, Wording};

/// The result of every fallible function of rehang.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Kind of an error, with the values that prove it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A file or an argument holds nothing. Act: give a file that has rows.
    Empty {
        /// Name of what is empty ("old vectors", or a path).
        what: String,
    },
    /// No query has anything to find, so nothing can be measured. Act: give what belongs together, or more of
    /// it.
    NothingToFind {
        /// Reason, in words.
        detail: String,
    },
    /// A matrix is not as wide as it has to be. Act: give the file of the right model.
    WidthMismatch {
        /// Name of the matrix that has the wrong width.
        what: String,
        /// Width that is needed, in coordinates.
        expected: usize,
        /// Width that was found, in coordinates.
        received: usize,
    },
    /// Two things that go row by row have different numbers of rows. Act: give files of the same items.
    CountMismatch {
        /// Name of the first thing.
        left: String,
        /// Rows of the first thing.
        left_count: usize,
        /// Name of the second thing.
        right: String,
        /// Rows of the second thing.
        right_count: usize,
    },
    /// Vectors of one space met vectors of another. Act: transform, or give vectors of the right model.
    SpaceMismatch {
        /// Space that is needed.
        expected: String,
        /// Space that was given.
        received: String,
    },
    /// A coordinate is NaN or infinite. Act: repair or drop the row.
    NotFinite {
        /// Name of the vectors or numbers that hold the coordinate.
        what: String,
        /// Row (counted from 0).
        row: usize,
        /// Column (counted from 0).
        column: usize,
    },
    /// A space says that its vectors have length 1 and one has not. Act: normalise, or declare the space as
    /// raw.
    NotNormalised {
        /// Name of the vectors that hold the row.
        what: String,
        /// Row (counted from 0).
        row: usize,
        /// Length of the vector in that row.
        norm: f64,
    },
    /// A vector has length 0 where cosines are compared: it has no direction, and is near to nothing. Act:
    /// leave its item out, or give it another vector.
    NoDirection {
        /// Name of the vector, or of its item.
        what: String,
    },
    /// An id, a row or a name is there twice. Act: keep one.
    Duplicate {
        /// Name of the place that holds the value twice.
        what: String,
        /// Value that stands twice.
        value: String,
    },
    /// Ids of one file are missing in another. Act: see the examples; pass the option that keeps the common
    /// part.
    Unmatched {
        /// Names of the things that were joined.
        what: String,
        /// Number of ids that did not match.
        count: usize,
        /// The first few ids that did not match.
        examples: Vec<String>,
    },
    /// A file is not what it should be: truncated, of another format, with a wrong check sum. Act: make it
    /// again.
    Corrupt {
        /// Name of the file (or the thing) that cannot be read.
        what: String,
        /// Fault of the file, in words.
        detail: String,
    },
    /// The operating system refused. Act: see the reason; the path is named.
    Io {
        /// Action that was tried ("open", "write", "rename").
        action: &'static str,
        /// Path that the action was tried on.
        path: PathBuf,
        /// Reason in the system's own words, or in ours where we refuse.
        reason: String,
        /// The system's number for the reason; `None` where we refuse, or it has none.
        errno: Option<i32>,
    },
    /// A parameter has a value that it cannot have. Act: use a value that is listed.
    InvalidOption {
        /// Name of the parameter in the library; [`Wording::parameter`] gives the face's name for it.
        option: String,
        /// Value that was given.
        value: String,
        /// Values that are allowed, in words.
        expected: String,
    },
    /// Something that the chosen method needs was not given. Act: give it, or choose another method.
    MissingInput {
        /// Missing input: a parameter's name in the library ("labels"), or words.
        input: String,
        /// Name of the method that needs the input ("order entropy").
        needed_by: String,
    },
    /// A feature is left out of this build. Act: build with it.
    MissingFeature {
        /// Name of the cargo feature.
        feature: &'static str,
    },
    /// An adapter was applied to, or fitted on, vectors of the wrong side. Act: swap old and new.
    WrongDirection {
        /// Observation that gives the wrong direction away.
        evidence: String,
    },
    /// A fit or a computation left the finite numbers. Act: see the step; lower the learning rate.
    Diverged {
        /// Name of the computation.
        what: String,
        /// Step at which the numbers stopped being finite.
        step: usize,
    },
    /// The present state does not allow the change. Act: look at the state, then decide again.
    Conflict {
        /// Name of what was to be changed ("the upgrade of gallery.db").
        what: String,
        /// Obstacle, in words.
        detail: String,
    },
    /// A compare-and-set was lost to another process, which changed what had been read, so nothing was
    /// written. Act: read it again, then decide again.
    ChangedMeanwhile {
        /// Name of what the other process changed.
        what: String,
        /// Expected state and present state, in words.
        detail: String,
    },
    /// Work was done for a plan that is not valid any more, so nothing of it was written. The upgrade was
    /// planned anew, rolled back or finished, or another one took its place. Act: stop this work; the remedy
    /// says what continues.
    Superseded {
        /// Work that was being done ("filling \"clip\" of gallery.db").
        what: String,
        /// Change that happened meanwhile, in words.
        detail: String,
    },
    /// A verb does not fit the phase that an upgrade is in. Act: the remedy names the verb that comes first.
    WrongPhase {
        /// Name of what is in that phase ("the upgrade of gallery.db").
        what: String,
        /// Phase, with what it means for the verb.
        phase: String,
    },
    /// A budget of money, tokens or items is spent: an orderly end, which a larger budget continues. An
    /// encoder ends a run with this kind.
    BudgetSpent {
        /// Owner of the budget ("the budget of the encoder").
        what: String,
        /// Kind of budget, and the amount that was spent.
        detail: String,
    },
    /// A name was asked for that nothing has. Act: use one of the names that exist.
    NotFound {
        /// Kind of thing that was looked for ("space", "upgrade").
        what: String,
        /// Name that was asked for.
        name: String,
        /// Place that was searched, or the names that exist.
        place: String,
    },
    /// A service refused the credentials. Act: set the right key; trying again does not help.
    Unauthorised {
        /// Name of the service.
        service: String,
        /// Answer of the service.
        detail: String,
    },
    /// A service or a store cannot be reached or does not answer now. Act: try again later.
    Unavailable {
        /// Name of the service or store.
        service: String,
        /// Failure, in words.
        detail: String,
    },
    /// The caller asked to stop. Act: resume when ready.
    Cancelled,
}

/// Party outside of this process whose fault an error is. A face that serves strangers tells them so much,
/// and keeps the sentence, which may name addresses, for its operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Party {
    /// An encoder: its model, program or service, or what the configuration says of it.
    Encoder,
    /// The database that holds the gallery.
    Database,
}

/// An error of rehang: what happened, and the chain of what was being done.
#[derive(Debug, Clone, PartialEq)]
pub struct Error {
    kind: Box<ErrorKind>,
    context: Vec<String>,
    remedy: Option<Remedy>,
    party: Option<Party>,
}

impl Error {
    /// Puts the sentence "while …" in front of the error; the outermost context is printed first.
    #[must_use]
    pub fn context(mut self, doing: impl Into<String>) -> Self {
        self.context.push(doing.into());
        self
    }

    /// Adds what the reader can do next, which is printed last. A later call replaces an earlier one.
    #[must_use]
    pub fn advise(mut self, remedy: Remedy) -> Self {
        self.remedy = Some(remedy);
        self
    }

    /// Remedy: what the reader can do next, where there is more to say than the kind does.
    pub fn remedy(&self) -> Option<&Remedy> {
        self.remedy.as_ref()
    }

    /// Takes the remedy off the error, for a caller that keeps it beside the sentence.
    pub fn take_remedy(&mut self) -> Option<Remedy> {
        self.remedy.take()
    }

    /// Says whose fault the error is, unless that was said before.
    #[must_use]
    pub fn blame(mut self, party: Party) -> Self {
        self.party.get_or_insert(party);
        self
    }

    /// Party whose fault the error is; `None` where the code that made the error has blamed none.
    pub fn party(&self) -> Option<Party> {
        self.party
    }

    /// Makes the whole sentence in the words of a face.
    pub fn worded(&self, wording: &dyn Wording) -> String {
        let mut text: String = self.context.iter().rev().map(|doing| format!("{doing}: ")).collect();
        text += &self.kind.worded(wording);
        if let Some(remedy) = &self.remedy {
            text += "; ";
            text += &remedy.worded(wording);
        }
        text
    }

    /// Kind of the error: what went wrong.
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// Makes the error for an operating-system failure on a path.
    pub fn io(action: &'static str, path: impl AsRef<Path>, error: &std::io::Error) -> Self {
        // fs_err already says the path and the action, so only the cause of the failure is kept of its
        // message.
        let reason = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
        let inner = error.get_ref().map(|inner| inner as &(dyn std::error::Error + 'static));
        let mut causes = std::iter::successors(inner, |cause| cause.source());
        let errno = error
            .raw_os_error()
            .or_else(|| causes.find_map(|cause| cause.downcast_ref::<std::io::Error>()?.raw_os_error()));
        ErrorKind::Io { action, path: path.as_ref().to_path_buf(), reason, errno }.into()
    }

    /// Makes the error for a path that we refuse ourselves, in the form that [`Error::io`] has for the
    /// system's refusals.
    pub fn refused(action: &'static str, path: impl AsRef<Path>, reason: impl fmt::Display) -> Self {
        let (path, reason) = (path.as_ref().to_path_buf(), reason.to_string());
        ErrorKind::Io { action, path, reason, errno: None }.into()
    }

    /// Makes the error for a file (or another thing) that cannot be read as what it should be.
    pub fn corrupt(what: impl fmt::Display, detail: impl fmt::Display) -> Self {
        ErrorKind::Corrupt { what: what.to_string(), detail: detail.to_string() }.into()
    }

    /// Makes the error for an option with a value that it cannot have.
    pub fn option(option: impl fmt::Display, value: impl fmt::Display, expected: impl fmt::Display) -> Self {
        ErrorKind::InvalidOption {
            option: option.to_string(),
            value: value.to_string(),
            expected: expected.to_string(),
        }
        .into()
    }

    /// Makes the error for a name that no value of an option has; there are two or more `names`.
    pub fn unknown_name(option: &str, text: &str, names: &[&str]) -> Self {
        Self::option(option, text, one_of(names))
    }

    /// Makes the error for a file or an argument that holds nothing.
    pub fn empty(what: impl fmt::Display) -> Self {
        ErrorKind::Empty { what: what.to_string() }.into()
    }

    /// Makes the error for something that stands twice.
    pub fn duplicate(what: impl fmt::Display, value: impl fmt::Display) -> Self {
        ErrorKind::Duplicate { what: what.to_string(), value: value.to_string() }.into()
    }

    /// Makes the error for an input that a method needs and that was not given.
    pub fn missing(input: impl fmt::Display, needed_by: impl fmt::Display) -> Self {
        ErrorKind::MissingInput { input: input.to_string(), needed_by: needed_by.to_string() }.into()
    }

    /// Makes the error for a state that does not allow the change.
    pub fn conflict(what: impl fmt::Display, detail: impl fmt::Display) -> Self {
        ErrorKind::Conflict { what: what.to_string(), detail: detail.to_string() }.into()
    }

    /// Makes the error for a compare-and-set that was lost to another process.
    pub fn changed_meanwhile(what: impl fmt::Display, detail: impl fmt::Display) -> Self {
        ErrorKind::ChangedMeanwhile { what: what.to_string(), detail: detail.to_string() }.into()
    }

    /// Makes the error for work that was done for a plan that is not valid any more.
    pub fn superseded(what: impl fmt::Display, detail: impl fmt::Display) -> Self {
        ErrorKind::Superseded { what: what.to_string(), detail: detail.to_string() }.into()
    }

    /// Makes the error for a verb that does not fit the phase of an upgrade.
    pub fn wrong_phase(what: impl fmt::Display, phase: impl fmt::Display) -> Self {
        ErrorKind::WrongPhase { what: what.to_string(), phase: phase.to_string() }.into()
    }

    /// Makes the error for a budget that is spent.
    pub fn budget_spent(what: impl fmt::Display, detail: impl fmt::Display) -> Self {
        ErrorKind::BudgetSpent { what: what.to_string(), detail: detail.to_string() }.into()
    }

    /// Makes the error for a name that nothing has.
    pub fn not_found(what: impl fmt::Display, name: impl fmt::Display, place: impl fmt::Display) -> Self {
        ErrorKind::NotFound { what: what.to_string(), name: name.to_string(), place: place.to_string() }
            .into()
    }

    /// Makes the error for queries of which none has a right answer in the gallery.
    pub fn no_right_answers() -> Self {
        let detail = "none has a right answer in the gallery; check that labels, or judgements and ids, belong to these items \
                      and queries, and that a class has two items or more where the gallery is its own set of queries";
        ErrorKind::NothingToFind { detail: detail.into() }.into()
    }

    /// Whether two things that have to agree do not: swap, transform or replace one of them.
    pub fn is_mismatch(&self) -> bool {
        matches!(
            *self.kind,
            ErrorKind::WidthMismatch { .. }
                | ErrorKind::CountMismatch { .. }
                | ErrorKind::SpaceMismatch { .. }
                | ErrorKind::Unmatched { .. }
                | ErrorKind::WrongDirection { .. }
        )
    }

    /// Whether a file or its values are damaged: make it again.
    pub fn is_corrupt(&self) -> bool {
        matches!(
            *self.kind,
            ErrorKind::Corrupt { .. }
                | ErrorKind::NotFinite { .. }
                | ErrorKind::NotNormalised { .. }
                | ErrorKind::NoDirection { .. }
                | ErrorKind::Empty { .. }
                | ErrorKind::Duplicate { .. }
        )
    }

    /// Whether the system may let the same call through later.
    pub fn is_retryable(&self) -> bool {
        matches!(*self.kind, ErrorKind::Io { .. } | ErrorKind::Unavailable { .. })
    }

    /// Whether the caller asked to stop.
    pub fn is_cancelled(&self) -> bool {
        matches!(*self.kind, ErrorKind::Cancelled)
    }

    /// Whether the present state does not allow the change, from the start or because another process changed
    /// it. Look at the state, then decide again.
    pub fn is_conflict(&self) -> bool {
        matches!(
            *self.kind,
            ErrorKind::Conflict { .. }
                | ErrorKind::ChangedMeanwhile { .. }
                | ErrorKind::Superseded { .. }
                | ErrorKind::WrongPhase { .. }
        )
    }

    /// Whether a compare-and-set was lost to another process: read again and repeat.
    pub fn is_changed_meanwhile(&self) -> bool {
        matches!(*self.kind, ErrorKind::ChangedMeanwhile { .. })
    }

    /// Whether work was done for a plan that is not valid any more: stop this work.
    pub fn is_superseded(&self) -> bool {
        matches!(*self.kind, ErrorKind::Superseded { .. })
    }

    /// Whether a budget is spent: an orderly end, which a larger budget continues.
    pub fn is_budget_spent(&self) -> bool {
        matches!(*self.kind, ErrorKind::BudgetSpent { .. })
    }

    /// Whether a service refused the credentials: no retry helps.
    pub fn is_unauthorised(&self) -> bool {
        matches!(*self.kind, ErrorKind::Unauthorised { .. })
    }

    /// Whether this build leaves out the feature that was asked for.
    pub fn is_missing_feature(&self) -> bool {
        matches!(*self.kind, ErrorKind::MissingFeature { .. })
    }
}

/// Lists names as one to choose: `blue, green or red`. There have to be two at least.
///
/// ```
/// assert_eq!(rehang_core::one_of(&["blue", "green", "red"]), "blue, green or red");
/// ```
pub fn one_of(names: &[&str]) -> String {
    let (last, names_before) = names.split_last().expect("an option has values");
    format!("{} or {last}", names_before.join(", "))
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self { kind: Box::new(kind), context: Vec::new(), remedy: None, party: None }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.worded(&Plain))
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.worded(&Plain))
    }
}

impl ErrorKind {
    /// Makes the sentence, with parameters named as a face names them.
    fn worded(&self, wording: &dyn Wording) -> String {
        match self {
            Self::Empty { what } => format!("{what} is empty; give a file with at least one row"),
            Self::NothingToFind { detail } => format!("no query has anything to find: {detail}"),
            Self::WidthMismatch { what, expected, received } => format!(
                "{what} has {received} coordinates a row where {expected} are needed; \
                 check that it belongs to the right model"
            ),
            Self::CountMismatch { left, left_count, right, right_count } => format!(
                "{left} has {left_count} rows and {right} has {right_count}; \
                 both must hold the same items in the same order"
            ),
            Self::SpaceMismatch { expected, received } => format!(
                "vectors of space {received} were given where space {expected} is needed; \
                 transform them, or give vectors of the right model"
            ),
            Self::NotFinite { what, row, column } => format!(
                "{what}, row {row}, column {column} is NaN or infinite; repair or drop that row (rows count from 0)"
            ),
            Self::NotNormalised { what, row, norm } => format!(
                "{what}, row {row} has length {norm:.4} although the space says that vectors have length 1; \
                 normalise the file, or declare the space as raw"
            ),
            Self::NoDirection { what } => format!(
                "{what} has length 0, and so no direction, which the cosine distance compares; \
                 leave that item out, or give it another vector"
            ),
            Self::Duplicate { what, value } => format!("{what} holds {value} more than once; keep one"),
            Self::Unmatched { what, count, examples } => {
                format!("{count} of {what} did not match, for example {}", examples.join(", "))
            }
            Self::Corrupt { what, detail } => format!("cannot read {what}: {detail}"),
            Self::Io { action, path, reason, .. } => format!("cannot {action} {}: {reason}", path.display()),
            Self::InvalidOption { option, value, expected } => {
                format!("{} cannot be {value:?}; expected {expected}", wording.parameter(option))
            }
            Self::MissingInput { input, needed_by } => {
                format!("{needed_by} needs {}, which was not given", wording.parameter(input))
            }
            Self::MissingFeature { feature } => format!(
                "this build leaves out the feature {feature:?}; build again with --features {feature}"
            ),
            Self::WrongDirection { evidence } => format!(
                "old and new seem to be swapped: {evidence}; give the old model's vectors as old and the new \
                 model's as new"
            ),
            Self::Diverged { what, step } => format!(
                "{what} left the finite numbers at step {step}; check the vectors for extreme values or lower \
                 the learning rate"
            ),
            Self::Conflict { what, detail }
            | Self::ChangedMeanwhile { what, detail }
            | Self::Superseded { what, detail }
            | Self::BudgetSpent { what, detail } => format!("{what}: {detail}"),
            Self::WrongPhase { what, phase } => format!("{what} is {phase}"),
            Self::NotFound { what, name, place } => format!("there is no {what} {name:?} in {place}"),
            Self::Unauthorised { service, detail } => format!(
                "{service} refused the credentials ({detail}); set the right key, trying again does not help"
            ),
            Self::Unavailable { service, detail } => {
                format!("{service} does not answer ({detail}); try again when it does")
            }
            Self::Cancelled => "stopped on request".into(),
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remedy::Verb;

    #[test]
    fn contexts_are_printed_from_the_outside_in() {
        let error = Error::missing("labels", "order entropy").context("ordering").context("demo");
        assert_eq!(error.to_string(), "demo: ordering: order entropy needs labels, which was not given");
    }

    #[test]
    fn who_was_blamed_first_stays_and_the_sentence_does_not_say_it() {
        let error = Error::conflict("a", "b");
        let blamed = error.clone().blame(Party::Encoder).context("c").blame(Party::Database);
        assert_eq!((error.party(), blamed.party()), (None, Some(Party::Encoder)));
        assert_eq!(blamed.to_string(), "c: a: b");
    }

    /// The number is the system's, however deep it lies, and is never taken from a sentence.
    #[test]
    fn the_number_of_an_error_of_the_system_is_kept() {
        let of_system = || std::io::Error::from_raw_os_error(28);
        let cases = [
            (Error::io("write", "a", &of_system()), Some(28)),
            (Error::io("write", "a", &std::io::Error::other(of_system())), Some(28)),
            (Error::io("read", "a", &std::io::Error::other("it ends (os error 5)")), None),
            (Error::refused("read", "a", "it is a folder"), None),
        ];
        for (error, number) in cases {
            assert!(matches!(error.kind(), ErrorKind::Io { errno, .. } if *errno == number), "{error}");
        }
    }

    #[test]
    fn predicates_group_by_what_to_do_next() {
        assert!(Error::corrupt("a.npy", "truncated").is_corrupt());
        assert!(
            Error::from(ErrorKind::WidthMismatch { what: "x".into(), expected: 1, received: 2 })
                .is_mismatch()
        );
        assert!(Error::from(ErrorKind::Cancelled).is_cancelled());
        let changed = Error::changed_meanwhile("document \"upgrade\"", "version 2 is there");
        assert!(changed.is_conflict() && changed.is_changed_meanwhile() && !changed.is_superseded());
        let superseded = Error::superseded("filling \"clip\"", "it was rolled back meanwhile");
        assert!(superseded.is_conflict() && superseded.is_superseded());
        assert!(Error::wrong_phase("the upgrade of g", "filling").is_conflict());
        let spent = Error::budget_spent("the budget", "100 items are spent");
        assert!(spent.is_budget_spent() && !spent.is_conflict() && !spent.is_retryable());
    }

    #[test]
    fn a_face_gives_parameters_and_remedies_its_own_words() {
        struct Flags;
        impl Wording for Flags {
            fn parameter(&self, name: &str) -> String {
                format!("--{}", name.replace('_', "-"))
            }

            fn verb(&self, verb: Verb) -> String {
                format!("rehang {verb:?}")
            }
        }
        let error = Error::option("old_ids", "x", "a file").context("reading").advise(Remedy::BeginUpgrade);
        assert_eq!(
            error.worded(&Flags),
            "reading: --old-ids cannot be \"x\"; expected a file; rehang Start begins one, after rehang Pairs and rehang Fit where it has no map yet"
        );
        assert_eq!(
            error.to_string(),
            "reading: old_ids cannot be \"x\"; expected a file; `Start` begins one, after `Pairs` and `Fit` where it has no map yet"
        );
        assert_eq!(
            Error::missing("labels", "entropy").worded(&Flags),
            "entropy needs --labels, which was not given"
        );
    }
}
