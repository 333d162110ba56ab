//! The one way in which long work, searches and writes say what happens: events to an [`Observer`].
//!
//! A progress bar, metrics and a dashboard are all observers. Only an observer that stands for the death of the process can fail the work.

use std::fmt;

use rehang::{Error, ErrorKind, Progress, Result};
use serde::{Deserialize, Serialize};

use crate::backfill::{Ending, Tally};
use crate::faults::Place;

/// What a refit does at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RefitStage {
    /// Fits a map on all natives.
    Fitting,
    /// Holds it against the map in use.
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

/// How far a refit is, and since when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RefitUnderWay {
    /// What it does now.
    pub stage: RefitStage,
    /// Seconds since it began.
    pub seconds: u64,
}

impl fmt::Display for RefitUnderWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (step, steps) = (self.stage.step(), RefitStage::ALL.len());
        write!(f, "{step} of {steps} ({}), {} s", self.stage.name(), self.seconds)
    }
}

/// Something that happened.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Observation<'a> {
    /// A stage of long work begins: a fill, or a backfill.
    Began {
        /// What is done.
        stage: &'a str,
        /// What is counted.
        unit: &'static str,
        /// How many there are; 0 where that is not known.
        total: u64,
    },
    /// So many units of the stage are done, beside those of before.
    Advanced {
        /// Units that were done now.
        units: u64,
    },
    /// A backfill has counted: whenever it looks at the gallery, and at its end.
    Backfilled {
        /// Items of this run, by what became of them.
        tally: Tally,
    },
    /// A backfill has caught up with items that came or changed meanwhile.
    CaughtUp {
        /// Vectors that were adapted.
        items: u64,
    },
    /// A [follower](crate::Limits::follow) embeds nothing from now on, or goes on.
    Rests {
        /// What would have ended another backfill; `None` where it goes on.
        because: Option<Ending>,
    },
    /// The encoder of a follower gave nothing; the items wait, and what comes is adapted all the same.
    EncoderAway {
        /// What it said.
        error: &'a Error,
    },
    /// A backfill waits for its encoder, which takes hours.
    Awaits {
        /// What is waited for, and how far that is.
        what: &'a str,
    },
    /// A refit is at one of its stages: when it begins, and again every second.
    Refitting {
        /// How far it is.
        refit: RefitUnderWay,
    },
    /// A search was answered.
    Searched {
        /// The space (or both, for a fused search) that was searched.
        spaces: &'a [String],
        /// Queries of the search.
        queries: usize,
        /// Items that were found for all of them.
        found: usize,
    },
    /// A search failed.
    SearchFailed,
    /// Items were written by the application.
    Written {
        /// Items, new or changed.
        items: usize,
    },
    /// Items were deleted by the application.
    Deleted {
        /// Items that were there.
        items: usize,
    },
}

/// Receives what happens. Every method does nothing by default: an observer implements those it wants.
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
    /// Something happened.
    fn observe(&self, _: &Observation<'_>) {}

    /// Whether the work is to stop at the next place where that loses nothing.
    fn wants_stop(&self) -> bool {
        false
    }

    /// The counters of work that counts itself, where the observer is made of such.
    fn counters(&self) -> Option<&Progress> {
        None
    }

    /// The work has come to a place between two effects.
    ///
    /// # Errors
    ///
    /// An error ends the work there and then, as the death of its process would: tests fail at every place.
    fn reach(&self, _: Place) -> Result<()> {
        Ok(())
    }
}

/// Observes nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unobserved;

impl Observer for Unobserved {}

/// What a progress bar shows: the stage, how far it is, and how many items have failed.
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

/// What a follower does, in a few words.
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

/// What tells an observer of work that counts `(done, total)` itself, and gives whether it may go on.
pub(crate) fn counting(
    observer: &dyn Observer,
    stage: &'static str,
    unit: &'static str,
) -> impl Fn(u64, u64) -> bool {
    let told = std::cell::Cell::new(None);
    move |done, total| {
        if told.get().is_none() {
            observer.observe(&Observation::Began { stage, unit, total });
        }
        observer.observe(&Observation::Advanced {
            units: done.saturating_sub(told.replace(Some(done)).unwrap_or(0)),
        });
        !observer.wants_stop()
    }
}

/// Fails where a stop is wanted.
pub(crate) fn expect_going(observer: &dyn Observer) -> Result<()> {
    if observer.wants_stop() { Err(ErrorKind::Cancelled.into()) } else { Ok(()) }
}
