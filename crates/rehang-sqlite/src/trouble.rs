//! Trouble inside a transaction, and the meaning of SQLite's errors for the person who must act.

use std::path::Path;
use std::time::Duration;

use rehang_core::{Error, ErrorKind, Party, Result};
use rusqlite::ErrorCode;

/// Longest time that a call waits for another process that is writing.
pub(crate) const BUSY: Duration = Duration::from_secs(10);

/// Trouble inside a transaction: an error of SQLite, which gets words of ours at the end, or one that has
/// them already.
#[derive(Debug)]
pub(crate) enum Trouble {
    Sql(rusqlite::Error),
    Ours(Error),
}

impl From<rusqlite::Error> for Trouble {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Ours(error)
    }
}

/// Result of a step inside a transaction.
pub(crate) type Step<T> = Result<T, Trouble>;

/// Makes an I/O error in words of our own.
pub(crate) fn refuse(action: &'static str, path: &Path, reason: &str) -> Error {
    Error::refused(action, path, reason)
}

/// SQLite's finer codes of failed input and output that mean want of room.
const SHM_SIZE: i32 = rusqlite::ffi::SQLITE_IOERR_SHMSIZE;
const SHM_MAP: i32 = rusqlite::ffi::SQLITE_IOERR_SHMMAP;
const IO_WRITE: i32 = rusqlite::ffi::SQLITE_IOERR_WRITE;

fn extended_code(error: &rusqlite::Error) -> i32 {
    error.sqlite_error().map_or(0, |error| error.extended_code)
}

/// Says what SQLite's error means: what happened, where, and what to do.
pub(crate) fn explain(path: &Path, trouble: Trouble) -> Error {
    match trouble {
        Trouble::Ours(error) => error,
        Trouble::Sql(error) => meaning(path, &error).blame(Party::Database),
    }
}

/// Turns an error of SQLite into one in the words of this library.
fn meaning(path: &Path, error: &rusqlite::Error) -> Error {
    let Some(code) = error.sqlite_error_code() else {
        return Error::corrupt(path.display(), error);
    };
    match code {
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => ErrorKind::Unavailable {
            service: path.display().to_string(),
            detail: format!("another process has been writing for more than {} seconds", BUSY.as_secs()),
        }
        .into(),
        ErrorCode::DiskFull => refuse(
            "write",
            path,
            "the disk is full; nothing of this call was written, make room and try again",
        ),
        ErrorCode::ReadOnly => {
            refuse("write", path, "the file or its folder is read-only; nothing was written")
        }
        ErrorCode::CannotOpen => refuse(
            "open",
            path,
            "the system refuses the file, or the -wal and -shm files that SQLite keeps beside it; \
             check that the folder can be written to",
        ),
        ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied => {
            refuse("open", path, "permission denied")
        }
        // SQLite does not call it a full disk where the files beside the gallery could not be made or made
        // longer.
        ErrorCode::SystemIoFailure if matches!(extended_code(error), SHM_SIZE | SHM_MAP | IO_WRITE) => {
            refuse(
                "write",
                path,
                "the -wal or -shm file beside it cannot grow, as when the disk is full; nothing of this call was written, make room \
             and try again",
            )
        }
        ErrorCode::SystemIoFailure => refuse("read or write", path, &error.to_string()),
        ErrorCode::NotADatabase => {
            Error::corrupt(path.display(), "it is no SQLite database, so it is no gallery")
        }
        ErrorCode::DatabaseCorrupt => Error::corrupt(
            path.display(),
            format!("the database is damaged ({error}); restore it from a copy"),
        ),
        _ => Error::corrupt(path.display(), error),
    }
}
