//! Events: the one way in which long work, searches and writes tell an [`Observer`] what happens.
//!
//! A progress bar, metrics and a dashboard are all observers. Only an observer that stands for the death of
//! the process can fail the work.

use std::fmt;

use rehang_core::{Error, ErrorKind, Progress, Result};
use serde::{Deserialize, Serialize};

use crate::live::backfill::{Ending, Tally};
use crate::live::faults::Place;

/// Stage of a refit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RefitStage {
    /// Fits a map on all native items.
    Fitting,
    /// Compares the new map with the map in use.
    Measuring,
    /// Makes all adapted vectors anew.
    Adapting,
    /// Makes the forecast of the new map.
    Forecasting,
}

impl RefitStage {
    /// Every stage, in turn; a refit that does not pay ends after the second.
    pub const ALL: [Self; 4] = [Self::Fitting, Self::Measuring, Self::Adapting, Self::Forecasting];

    /// The name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fitting => "fitting",
            Self::Measuring => "measuring",
            Self::Adapting => "making adapted vectors anew",
            Self::Forecasting => "forecasting",
        }
    }

    /// The place among all stages, from 1 on.
    pub fn step(self) -> usize {
        1 + Self::ALL.iter().position(|stage| *stage == self).unwrap_or(0)
    }
}

/// Stage that a refit is at, and for how long it has been under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RefitUnderWay {
    /// Stage of the refit at this moment.
    pub stage: RefitStage,
    /// Seconds since the refit began.
    pub seconds: u64,
}

impl fmt::Display for RefitUnderWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (step, steps) = (self.stage.step(), RefitStage::ALL.len());
        write!(f, "{step} of {steps} ({}), {} s", self.stage.name(), self.seconds)
    }
}

/// Event that an [`Observer`] is told of.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Observation<'a> {
    /// Stage of long work that begins, such as a fill or a backfill.
    Began {
        /// Name of the stage.
        stage: &'a str,
        /// Unit that is counted.
        unit: &'static str,
        /// Number of units; 0 where that is not known.
        total: u64,
    },
    /// Further units of the stage that are done.
    Advanced {
        /// Units that were done since the last such event.
        units: u64,
    },
    /// Count of a backfill's items: made whenever the backfill looks at the gallery, and at its end.
    Backfilled {
        /// Items of this run, by what became of them.
        tally: Tally,
    },
    /// Catch-up of a backfill with items that came or changed meanwhile.
    CaughtUp {
        /// Vectors that were adapted.
        items: u64,
    },
    /// Rest of a [follower](crate::Limits::follow), which embeds nothing from now on, or the end of the rest.
    Rests {
        /// Ending that another backfill would have had here; `None` where the follower goes on.
        because: Option<Ending>,
    },
    /// Failure of a follower's encoder. The items wait, and what comes is adapted all the same.
    EncoderAway {
        /// Error of the encoder.
        error: &'a Error,
    },
    /// Wait of a backfill for its encoder, which takes hours.
    Awaits {
        /// Work that is waited for, and how far it is.
        what: &'a str,
    },
    /// Progress of a refit: when a stage begins, and again every second.
    Refitting {
        /// Stage and duration of the refit.
        refit: RefitUnderWay,
    },
    /// Search that was answered.
    Searched {
        /// Names of the space, or of both for a fused search, that was searched.
        spaces: &'a [String],
        /// Queries of the search.
        queries: usize,
        /// Items that were found for all queries together.
        found: usize,
    },
    /// Search that failed.
    SearchFailed,
    /// Write of items by the application.
    Written {
        /// Items, new or changed.
        items: usize,
    },
    /// Deletion of items by the application.
    Deleted {
        /// Items that were deleted because they were there.
        items: usize,
    },
}

/// Receiver of events. Every method does nothing by default: an observer implements those it wants.
///
/// Calls come from several threads, in the middle of the work: they should return at once.
///
/// ```
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// use rehang_upgrade::{Observation, Observer};
///
/// /// Counts searches, for a metric.
/// #[derive(Default)]
/// struct Searches(AtomicUsize);
///
/// impl Observer for Searches {
///     fn observe(&self, observation: &Observation<'_>) {
///         if let Observation::Searched { queries, .. } = observation {
///             self.0.fetch_add(*queries, Ordering::Relaxed);
///         }
///     }
/// }
///
/// let searches = Searches::default();
/// searches.observe(&Observation::Searched { spaces: &[], queries: 3, found: 30 });
/// searches.observe(&Observation::Written { items: 1 });
/// assert_eq!(searches.0.into_inner(), 3);
/// ```
pub trait Observer: Send + Sync {
    /// Receives an event.
    fn observe(&self, _: &Observation<'_>) {}

    /// Whether the work is to stop at the next place where stopping loses nothing.
    fn wants_stop(&self) -> bool {
        false
    }

    /// Returns the counters of work that counts itself, where the observer has such counters.
    fn counters(&self) -> Option<&Progress> {
        None
    }

    /// Receives a place between two effects that the work has come to.
    ///
    /// # Errors
    ///
    /// An error ends the work there and then, as the death of its process would: tests fail at every place.
    fn reach(&self, _: Place) -> Result<()> {
        Ok(())
    }
}

/// Observer that observes nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unobserved;

impl Observer for Unobserved {}

/// Shows events in a progress bar: the stage, how far it is, and how many items have failed.
impl Observer for Progress {
    fn observe(&self, observation: &Observation<'_>) {
        match *observation {
            Observation::Began { stage, unit, total } => self.begin(stage, unit, total),
            Observation::Advanced { units } => self.advance(units),
            Observation::Backfilled { tally } if tally.failed > 0 => {
                self.note(format!("{} failed", tally.failed));
            }
            Observation::Rests { because } => self.begin(rest(because), "items", 0),
            Observation::Awaits { what } => self.note(what),
            Observation::EncoderAway { error } => self.note(format!("the encoder: {error}")),
            Observation::Refitting { refit } => self.note(format!("refitting: {refit}")),
            _ => {}
        }
    }

    fn wants_stop(&self) -> bool {
        self.check().is_err()
    }

    fn counters(&self) -> Option<&Progress> {
        Some(self)
    }
}

/// Returns in a few words what a follower does while it rests, or that it follows.
fn rest(because: Option<Ending>) -> &'static str {
    match because {
        None => "following",
        Some(Ending::Paused | Ending::Stopped) => "following: embeds nothing until a resume",
        Some(Ending::RolledBack) => "following: waits for a switch",
        Some(Ending::SpentBudget | Ending::EncoderBudgetSpent) => {
            "following: adapts only, the budget is spent"
        }
        Some(Ending::ReachedFraction) => "following: the wanted share is native",
        Some(Ending::NothingLeft | Ending::Interrupted | Ending::Dismissed | Ending::Released) => {
            "following: nothing waits"
        }
    }
}

/// Makes a function for work that counts `(done, total)` itself: it tells an observer and returns whether the
/// work may go on.
pub(crate) fn counting(
    observer: &dyn Observer,
    stage: &'static str,
    unit: &'static str,
) -> impl Fn(u64, u64) -> bool {
    let units_told = std::cell::Cell::new(None);
    move |done, total| {
        if units_told.get().is_none() {
            observer.observe(&Observation::Began { stage, unit, total });
        }
        observer.observe(&Observation::Advanced {
            units: done.saturating_sub(units_told.replace(Some(done)).unwrap_or(0)),
        });
        !observer.wants_stop()
    }
}

/// Fails where a stop is wanted.
pub(crate) fn expect_going(observer: &dyn Observer) -> Result<()> {
    if observer.wants_stop() { Err(ErrorKind::Cancelled.into()) } else { Ok(()) }
}
