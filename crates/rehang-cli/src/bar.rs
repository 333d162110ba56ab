//! Progress bar: reads a [`Progress`] from another thread and shows rate and time left on stderr.

#![allow(clippy::disallowed_methods, reason = "a bar shows how time goes by")]

use std::io::IsTerminal;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rehang_core::{Progress, ProgressSnapshot, printable};

use crate::commands::say;

/// Work that is done before this time shows no bar at all: a bar that flashes by cannot be read.
const QUIET_FOR: Duration = Duration::from_secs(1);
const REDRAW_EVERY: Duration = Duration::from_millis(120);
/// A log gets a line this often; a terminal gets a bar.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Does `work` while its progress is shown on stderr.
///
/// Ctrl-C is left to the system unless `end_at_ctrl_c` was called: every output appears by a rename, so an interrupted run leaves nothing
/// half-written under an output's name.
pub fn with_bar<T>(work: impl FnOnce(&Progress) -> T) -> T {
    let progress = Progress::default();
    let watched = progress.clone();
    let (finished, wait) = mpsc::channel::<()>();
    let watcher = thread::spawn(move || {
        let started = Instant::now();
        let mut view: Box<dyn View> =
            if std::io::stderr().is_terminal() { Box::new(Bar::default()) } else { Box::new(Lines::new()) };
        while wait.recv_timeout(REDRAW_EVERY) == Err(RecvTimeoutError::Timeout) {
            if started.elapsed() >= QUIET_FOR {
                view.show(&watched.snapshot());
            }
        }
        view.close();
    });
    let outcome = work(&progress);
    drop(finished);
    // The watcher only draws; should it have panicked, the result is still good.
    drop(watcher.join());
    outcome
}

trait View {
    fn show(&mut self, now: &ProgressSnapshot);
    fn close(&mut self);
}

/// Name of the stage that is shown, and how far the stage was.
#[derive(Default)]
struct Stage {
    name: String,
    done: u64,
}

impl Stage {
    /// Whether another stage begins, or a stage of the same name begins once more, which has a time of its
    /// own.
    fn begins(&mut self, now: &ProgressSnapshot) -> bool {
        let begins = self.name != now.stage || now.done < self.done;
        if begins {
            self.name.clone_from(&now.stage);
        }
        self.done = now.done;
        begins
    }
}

#[derive(Default)]
struct Bar {
    stage: Stage,
    drawn: Option<ProgressBar>,
}

impl View for Bar {
    fn show(&mut self, now: &ProgressSnapshot) {
        if now.stage.is_empty() {
            return;
        }
        if self.stage.begins(now) {
            self.close();
            let bar = ProgressBar::with_draw_target(Some(now.total), ProgressDrawTarget::stderr());
            let template = if now.total > 0 {
                "{prefix} {wide_bar} {pos}/{len} {msg} ({per_sec}, {eta} left)"
            } else {
                "{prefix} {spinner} {pos} {msg} ({per_sec}, {elapsed})"
            };
            bar.set_style(
                ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
            );
            bar.set_prefix(printable(&now.stage).into_owned());
            self.drawn = Some(bar);
        }
        if let Some(bar) = &self.drawn {
            let message =
                if now.note.is_empty() { now.unit.to_string() } else { format!("{} {}", now.unit, now.note) };
            bar.set_message(printable(&message).into_owned());
            bar.set_position(now.done);
        }
    }

    fn close(&mut self) {
        if let Some(bar) = self.drawn.take() {
            bar.finish_and_clear();
        }
    }
}

struct Lines {
    stage: Stage,
    stage_started: Instant,
    last: Instant,
    /// State that the last line was about. A follower that waits for days says so once.
    last_shown: Option<ProgressSnapshot>,
}

impl Lines {
    fn new() -> Self {
        Self {
            stage: Stage::default(),
            stage_started: Instant::now(),
            last: Instant::now(),
            last_shown: None,
        }
    }
}

impl View for Lines {
    fn show(&mut self, now: &ProgressSnapshot) {
        if self.stage.begins(now) {
            self.stage_started = Instant::now();
        } else if self.last.elapsed() >= LINE_EVERY && !now.stage.is_empty() {
            self.last = Instant::now();
            if now.total == 0 && self.last_shown.as_ref() == Some(now) {
                return;
            }
            self.last_shown = Some(now.clone());
            let seconds = self.stage_started.elapsed().as_secs_f64();
            let rate = now.done as f64 / seconds.max(1e-9);
            let time_left = if now.total > now.done && rate > 0.0 {
                format!(", {:.0} s left", (now.total - now.done) as f64 / rate)
            } else {
                String::new()
            };
            let total = if now.total > 0 { format!("/{}", now.total) } else { String::new() };
            let line = format!(
                "{}: {}{total} {} {} ({rate:.1}/s{time_left})",
                now.stage, now.done, now.unit, now.note
            );
            say(&line);
        }
    }

    fn close(&mut self) {}
}
