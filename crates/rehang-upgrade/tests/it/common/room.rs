//! Disk without room: no file of this process may grow beyond so many bytes, and the system refuses writes as
//! on a full disk.

use std::path::Path;

#[cfg(unix)]
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};

/// Limit on the growth of a gallery's log, in bytes, as long as the value lives. The limit is the process's:
/// only one at a time, and no other file of the process may grow longer than the log.
#[cfg(unix)]
pub struct NoRoom(Rlimit);

#[cfg(unix)]
impl NoRoom {
    pub fn beside(gallery: &Path, bytes: u64) -> Self {
        // SAFETY: POSIX's own function; a handler is an address or one of a few small numbers.
        unsafe extern "C" {
            fn signal(number: i32, handler: usize) -> usize;
        }
        const IGNORED: usize = 1;
        // SAFETY: no handler is set, the signal is ignored: the system then gives the writer an error instead
        // of ending the process.
        unsafe { signal(Signal::XFSZ.as_raw(), IGNORED) };
        let log = fs_err::metadata(format!("{}-wal", gallery.display())).map_or(0, |metadata| metadata.len());
        let before = getrlimit(Resource::Fsize);
        let now = Rlimit { current: Some(log + bytes), ..before };
        setrlimit(Resource::Fsize, now).unwrap();
        Self(before)
    }
}

#[cfg(unix)]
impl Drop for NoRoom {
    fn drop(&mut self) {
        setrlimit(Resource::Fsize, self.0).unwrap();
    }
}

/// Limit that limits nothing: elsewhere there is always room.
#[cfg(not(unix))]
pub struct NoRoom;

#[cfg(not(unix))]
impl NoRoom {
    pub fn beside(_gallery: &Path, _bytes: u64) -> Self {
        Self
    }
}

/// Whether an error speaks of a full disk: the store's sentence, or SQLite's own to an application.
pub fn is_full(error: &str) -> bool {
    ["make room", "disk is full", "disk I/O error"].iter().any(|words| error.contains(words))
}
