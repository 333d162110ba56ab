//! Calls of verbs: each runs on a thread of its own, without Python's lock, while the caller's thread shows
//! progress and listens for Ctrl-C.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};
use rehang_core::{Error, Progress, Result};

use crate::error::{ending, raised};

/// Time between two looks at signals and progress.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Time that work is waited for after it was asked to stop; after it, the work is left to come to its end by
/// itself.
const STOPS_WITHIN: Duration = Duration::from_millis(100);

/// Behaviour of a call at Ctrl-C.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupted {
    /// The caller goes on at once. The work computes only: it notices a little later, and what it made is
    /// dropped.
    Leaves,
    /// The caller waits for the place where the work can stop and lose nothing; a second Ctrl-C leaves at
    /// once, which is like a death of the process.
    Waits,
}

/// Does `work` and gives what comes of it. `show`, if any, is called now and then with stage, unit, note,
/// done and total.
pub fn call<T: Send + 'static>(
    py: Python<'_>,
    show: Option<&Bound<'_, PyAny>>,
    interrupted: Interrupted,
    work: impl FnOnce(&Progress) -> Result<T> + Send + 'static,
) -> PyResult<T> {
    let pool = py.detach(pool).map_err(|error| raised(py, &error))?;
    let progress = Progress::default();
    let of_work = progress.clone();
    let (sender, receiver) = mpsc::channel();
    // The compiler asks for a lock where Python's own lock is given away; no other thread has the receiver.
    let receiver = Mutex::new(receiver);
    pool.spawn(move || {
        // A panic of the work must not end the Python process. Where the caller has left, the channel is
        // closed, and the answer is dropped.
        let outcome = catch_unwind(AssertUnwindSafe(|| work(&of_work)));
        drop(sender.send(outcome));
    });
    let mut caught: Option<PyErr> = None;
    loop {
        let wait =
            if caught.is_some() && interrupted == Interrupted::Leaves { STOPS_WITHIN } else { LOOK_EVERY };
        match py.detach(|| lock(&receiver).recv_timeout(wait)) {
            Ok(outcome) => {
                let outcome = outcome.map_err(|_| {
                    PyRuntimeError::new_err(
                        "rehang has a defect here: its work panicked, and the message is on stderr",
                    )
                })?;
                if let Some(ending) = ending(py) {
                    return Err(ending);
                }
                return match (outcome, caught) {
                    // The signal stopped the work; it did not fail for a reason of its own.
                    (Err(error), Some(caught)) if error.is_cancelled() => Err(caught),
                    (Err(error), _) => Err(raised(py, &error)),
                    (Ok(_), Some(caught)) => Err(caught),
                    (Ok(value), None) => Ok(value),
                };
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("the work has vanished"));
            }
        }
        if caught.is_some() && interrupted == Interrupted::Leaves {
            leave_pool();
            return caught.map_or_else(|| unreachable!("asked just above"), Err);
        }
        let now = progress.snapshot();
        let shown = match show {
            Some(show) if !now.stage.is_empty() => {
                show.call1((now.stage, now.unit, now.note, now.done, now.total)).map(drop)
            }
            _ => Ok(()),
        };
        if let Err(signal) = shown.and_then(|()| py.check_signals()) {
            progress.cancel();
            if caught.is_some() {
                return Err(signal);
            }
            caught = Some(signal);
        }
    }
}

static POOL: Mutex<Option<(u32, Arc<ThreadPool>)>> = Mutex::new(None);

/// Leaves the threads to the work that is left behind. The next call gets threads of its own and need not
/// wait for it.
fn leave_pool() {
    // Dropping a pool waits for nothing: its threads end when their work does.
    *lock(&POOL) = None;
}

/// The threads of this process. A process that was forked has none of its parent's threads, so it gets its
/// own.
fn pool() -> Result<Arc<ThreadPool>> {
    let mut shared_pool = lock(&POOL);
    let this_process = process::id();
    if let Some((owner, pool)) = &*shared_pool
        && *owner == this_process
    {
        return Ok(Arc::clone(pool));
    }
    // Dropping the parent's would wait for threads that are not here.
    std::mem::forget(shared_pool.take());
    let pool = ThreadPoolBuilder::new()
        .thread_name(|number| format!("rehang-{number}"))
        .build()
        .map_err(|error| Error::conflict("the threads of this process", error))?;
    let pool = Arc::new(pool);
    *shared_pool = Some((this_process, Arc::clone(&pool)));
    Ok(pool)
}

/// Locks, also after a panic of another thread.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
