//! One error type for the whole product, written for the person who must act.
//!
//! # Design
//!
//! [`Error`] carries one [`ErrorKind`] with structured fields (so a test can assert on them) and a chain of contexts
//! that says what was being done. The sentence is made in `Display`: what happened, where, and what to do about it.
//! The predicates ([`Error::is_mismatch`], [`Error::is_corrupt`], …) group kinds by what the operator does next.

use std::fmt;
use std::path::{Path, PathBuf};

/// The result of every fallible function of rehang.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, with the values that prove it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A file or an argument holds nothing. Act: give a file that has rows.
    Empty {
        /// What is empty, in words ("old vectors", or a path).
        what: String,
    },
    /// No query has anything to find, so nothing can be measured. Act: give what belongs together, or more of it.
    NothingToFind {
        /// Why, in words.
        detail: String,
    },
    /// A matrix is not as wide as it has to be. Act: give the file of the right model.
    WidthMismatch {
        /// What has the wrong width.
        what: String,
        /// Width that is needed, in coordinates.
        expected: usize,
        /// Width that was found, in coordinates.
        received: usize,
    },
    /// Two things that go row by row have different numbers of rows. Act: give files of the same items.
    CountMismatch {
        /// The first thing.
        left: String,
        /// Rows of the first thing.
        left_count: usize,
        /// The second thing.
        right: String,
        /// Rows of the second thing.
        right_count: usize,
    },
    /// Vectors of one space met vectors of another. Act: transform, or give vectors of the right model.
    SpaceMismatch {
        /// The space that is needed.
        expected: String,
        /// The space that was given.
        received: String,
    },
    /// A coordinate is NaN or infinite. Act: repair or drop the row.
    NotFinite {
        /// Where it was found.
        what: String,
        /// Row (counted from 0).
        row: usize,
        /// Column (counted from 0).
        column: usize,
    },
    /// A space says that its vectors have length 1 and one has not. Act: normalise, or declare the space as raw.
    NotNormalised {
        /// Where it was found.
        what: String,
        /// Row (counted from 0).
        row: usize,
        /// Its length.
        norm: f64,
    },
    /// An id, a row or a name is there twice. Act: keep one.
    Duplicate {
        /// What is there twice.
        what: String,
        /// The value that is there twice.
        value: String,
    },
    /// Ids of one file are missing in another. Act: see the examples; pass the option that keeps the common part.
    Unmatched {
        /// What was joined.
        what: String,
        /// How many did not match.
        count: usize,
        /// The first few of them.
        examples: Vec<String>,
    },
    /// A file is not what it should be: truncated, of another format, with a wrong check sum. Act: make it again.
    Corrupt {
        /// The file (or the thing) that cannot be read.
        what: String,
        /// What is wrong with it.
        detail: String,
    },
    /// The operating system refused. Act: see the reason; the path is named.
    Io {
        /// What was tried ("open", "write", "rename").
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's own words.
        reason: String,
    },
    /// An option has a value that it cannot have. Act: use one that is listed.
    InvalidOption {
        /// The option's name.
        option: String,
        /// The value given.
        value: String,
        /// What is allowed.
        expected: String,
    },
    /// Something that the chosen method needs was not given. Act: give it, or choose another method.
    MissingInput {
        /// What is missing ("labels").
        input: String,
        /// Who needs it ("--policy entropy").
        needed_by: String,
    },
    /// This build leaves the feature out. Act: build with it.
    MissingFeature {
        /// The cargo feature.
        feature: &'static str,
    },
    /// An adapter was applied to, or fitted on, vectors of the wrong side. Act: swap old and new.
    WrongDirection {
        /// What gives it away.
        evidence: String,
    },
    /// A fit or a computation left the finite numbers. Act: see the step; lower the learning rate.
    Diverged {
        /// What was computed.
        what: String,
        /// The step at which it happened.
        step: usize,
    },
    /// Somebody else holds, or has changed, what was to be changed. Act: look at the state, then decide again.
    Conflict {
        /// What is held or changed ("the upgrade of gallery.db").
        what: String,
        /// By whom, or how.
        detail: String,
    },
    /// Something was asked for by a name that nothing has. Act: use one of the names there are.
    NotFound {
        /// What was looked for ("space", "upgrade").
        what: String,
        /// The name.
        name: String,
        /// Where it was looked for, or which names there are.
        place: String,
    },
    /// A service refused the credentials. Act: set the right key; trying again does not help.
    Unauthorised {
        /// The service.
        service: String,
        /// What it said.
        detail: String,
    },
    /// A service or a store cannot be reached or does not answer now. Act: try again later.
    Unavailable {
        /// The service.
        service: String,
        /// What happened.
        detail: String,
    },
    /// The caller asked to stop. Act: resume when ready.
    Cancelled,
}

/// An error of rehang: what happened and the chain of what was being done.
#[derive(Debug, Clone, PartialEq)]
pub struct Error {
    kind: Box<ErrorKind>,
    context: Vec<String>,
}

impl Error {
    /// Puts the sentence "while …" in front of the error; the outermost context is printed first.
    #[must_use]
    pub fn context(mut self, doing: impl Into<String>) -> Self {
        self.context.push(doing.into());
        self
    }

    /// What went wrong.
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// An operating-system error on a path.
    pub fn io(action: &'static str, path: impl AsRef<Path>, error: &std::io::Error) -> Self {
        // fs_err already says the path and the action; only the cause of the failure is kept of its message.
        let reason = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
        ErrorKind::Io { action, path: path.as_ref().to_path_buf(), reason }.into()
    }

    /// A file (or another thing) that cannot be read as what it should be.
    pub fn corrupt(what: impl fmt::Display, detail: impl fmt::Display) -> Self {
        ErrorKind::Corrupt { what: what.to_string(), detail: detail.to_string() }.into()
    }

    /// An option with a value that it cannot have.
    pub fn option(option: impl fmt::Display, value: impl fmt::Display, expected: impl fmt::Display) -> Self {
        ErrorKind::InvalidOption {
            option: option.to_string(),
            value: value.to_string(),
            expected: expected.to_string(),
        }
        .into()
    }

    /// Something that a method needs and that was not given.
    pub fn missing(input: impl fmt::Display, needed_by: impl fmt::Display) -> Self {
        ErrorKind::MissingInput { input: input.to_string(), needed_by: needed_by.to_string() }.into()
    }

    /// Somebody else holds, or has changed, what was to be changed.
    pub fn conflict(what: impl fmt::Display, detail: impl fmt::Display) -> Self {
        ErrorKind::Conflict { what: what.to_string(), detail: detail.to_string() }.into()
    }

    /// Something was asked for by a name that nothing has.
    pub fn not_found(what: impl fmt::Display, name: impl fmt::Display, place: impl fmt::Display) -> Self {
        ErrorKind::NotFound { what: what.to_string(), name: name.to_string(), place: place.to_string() }
            .into()
    }

    /// No query has a right answer in the gallery.
    pub(crate) fn no_right_answers() -> Self {
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

    /// Whether somebody else holds or has changed what was to be changed.
    pub fn is_conflict(&self) -> bool {
        matches!(*self.kind, ErrorKind::Conflict { .. })
    }

    /// Whether a service refused the credentials: no retry helps.
    pub fn is_unauthorised(&self) -> bool {
        matches!(*self.kind, ErrorKind::Unauthorised { .. })
    }

    /// Whether this build leaves out what was asked for.
    pub fn is_missing_feature(&self) -> bool {
        matches!(*self.kind, ErrorKind::MissingFeature { .. })
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self { kind: Box::new(kind), context: Vec::new() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for doing in self.context.iter().rev() {
            write!(f, "{doing}: ")?;
        }
        write!(f, "{}", self.kind)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty { what } => write!(f, "{what} is empty; give a file with at least one row"),
            Self::NothingToFind { detail } => write!(f, "no query has anything to find: {detail}"),
            Self::WidthMismatch { what, expected, received } => write!(
                f,
                "{what} has {received} coordinates a row where {expected} are needed; \
                 check that the file belongs to the right model"
            ),
            Self::CountMismatch { left, left_count, right, right_count } => write!(
                f,
                "{left} has {left_count} rows and {right} has {right_count}; \
                 both must hold the same items in the same order"
            ),
            Self::SpaceMismatch { expected, received } => write!(
                f,
                "vectors of space {received} were given where space {expected} is needed; \
                 transform them, or give vectors of the right model"
            ),
            Self::NotFinite { what, row, column } => write!(
                f,
                "{what}, row {row}, column {column} is NaN or infinite; repair or drop that row (rows count from 0)"
            ),
            Self::NotNormalised { what, row, norm } => write!(
                f,
                "{what}, row {row} has length {norm:.4} although the space says that vectors have length 1; \
                 normalise the file, or declare the space as raw"
            ),
            Self::Duplicate { what, value } => write!(f, "{what} holds {value} more than once; keep one"),
            Self::Unmatched { what, count, examples } => {
                write!(f, "{count} of {what} did not match, for example {}", examples.join(", "))
            }
            Self::Corrupt { what, detail } => write!(f, "cannot read {what}: {detail}"),
            Self::Io { action, path, reason } => write!(f, "cannot {action} {}: {reason}", path.display()),
            Self::InvalidOption { option, value, expected } => {
                write!(f, "{option} cannot be {value:?}; expected {expected}")
            }
            Self::MissingInput { input, needed_by } => {
                write!(f, "{needed_by} needs {input}, which was not given")
            }
            Self::MissingFeature { feature } => write!(
                f,
                "this build leaves out the feature {feature:?}; build again with --features {feature}"
            ),
            Self::WrongDirection { evidence } => write!(
                f,
                "old and new seem to be swapped: {evidence}; give the old model's vectors as old and the new \
                 model's as new"
            ),
            Self::Diverged { what, step } => write!(
                f,
                "{what} left the finite numbers at step {step}; check the vectors for extreme values or lower \
                 the learning rate"
            ),
            Self::Conflict { what, detail } => write!(f, "{what}: {detail}"),
            Self::NotFound { what, name, place } => write!(f, "there is no {what} {name:?} in {place}"),
            Self::Unauthorised { service, detail } => write!(
                f,
                "{service} refused the credentials ({detail}); set the right key, trying again does not help"
            ),
            Self::Unavailable { service, detail } => {
                write!(f, "{service} does not answer ({detail}); try again when it does")
            }
            Self::Cancelled => write!(f, "stopped on request"),
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_are_printed_from_the_outside_in() {
        let error = Error::missing("labels", "--policy entropy").context("ordering").context("demo");
        assert_eq!(error.to_string(), "demo: ordering: --policy entropy needs labels, which was not given");
    }

    #[test]
    fn predicates_group_by_what_to_do_next() {
        assert!(Error::corrupt("a.npy", "truncated").is_corrupt());
        assert!(
            Error::from(ErrorKind::WidthMismatch { what: "x".into(), expected: 1, received: 2 })
                .is_mismatch()
        );
        assert!(Error::from(ErrorKind::Cancelled).is_cancelled());
    }
}
