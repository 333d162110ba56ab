//! What a reader can do about an error, as data that every face words in its own language.
//!
//! A library does not know how it is called: a command line has flags, Python has keyword arguments. So an error holds
//! the names of the library's own parameters and, where there is a next step, a [`Remedy`]; a face gives both its own
//! words through [`Wording`], and [`Error::worded`](crate::Error::worded) puts them into the sentence.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What the reader can do next.
///
/// [`Display`](fmt::Display) gives words that fit any face; a face with words of its own matches on the variants.
///
/// ```
/// use rehang::{Error, ErrorKind, Remedy};
///
/// let error = Error::from(ErrorKind::WrongPhase { what: "the upgrade of g".into(), phase: "filling".into() })
///     .advise(Remedy::ContinueFilling);
/// assert_eq!(error.to_string(), "the upgrade of g is filling; start the upgrade again, which goes on where it was");
/// assert_eq!(error.remedy(), Some(&Remedy::ContinueFilling));
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Remedy {
    /// Make a gallery of the application's table.
    AdoptTable,
    /// Begin an upgrade of the gallery between the configured spaces.
    BeginUpgrade,
    /// Start the upgrade again: its filling goes on where it was.
    ContinueFilling,
    /// Start the upgrade with the given adapter, which plans it anew and keeps native vectors; or give the adapter that it
    /// was started with.
    PlanAnew,
    /// Let the start that planned the upgrade anew come to its end, or start with this adapter and order once more.
    AwaitNewPlan,
    /// Look which upgrade is under way, then finish it or roll it back.
    SettleOtherUpgrade,
    /// Switch searches to the new space before.
    SwitchFirst,
    /// Look how the upgrade stands, then switch again.
    SwitchAgain,
    /// Roll the upgrade back again, or switch to stay with the new space.
    RollBackOrSwitch,
    /// Roll the upgrade back again, or start it again to stay with the new space.
    RollBackOrFill,
    /// Allow backfills again.
    ResumeBackfill,
    /// Put native vectors back to adapted ones, so that the next backfill embeds them again.
    EmbedNativesAgain,
    /// A forecast says that switching now serves worse than doing nothing: backfill to `backfill_percent` first (`None` where
    /// no share of native items is enough), serve merged searches, or switch all the same.
    ReconsiderSwitch {
        /// Share of native items from which on mixed searches are above doing nothing, in percent, rounded up.
        backfill_percent: Option<f64>,
    },
    /// Make a report as JSON, on pairs that the adapter was not fitted on.
    MakeReport,
    /// Draw pairs from the gallery: items that the new model embeds too.
    DrawPairs,
    /// Fit an adapter on the pairs that were drawn from the gallery.
    FitPairs,
    /// Fit the adapter again on newer pairs, then start the upgrade with it.
    FitAgain,
    /// Write items one by one, instead of importing them.
    WriteSingleItems,
    /// Drop a space that is not needed any more.
    DropSpace,
    /// Give the disk the room back that dropped spaces leave.
    Compact,
    /// Make a search index again.
    RebuildIndex,
    /// Make a search index that is not there yet.
    PrepareIndex,
    /// Wait for the other process, or ask it to end with a pause.
    AwaitOtherProcess,
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AdoptTable => "make a gallery of it first, which also ends one that was begun",
            Self::BeginUpgrade => "starting the upgrade begins one",
            Self::ContinueFilling => "start the upgrade again, which goes on where it was",
            Self::PlanAnew => {
                "start the upgrade with it to plan it anew (native vectors are kept), or name the adapter it was started with"
            }
            Self::AwaitNewPlan => {
                "let that start come to its end, or start this one again to plan it anew once more"
            }
            Self::SettleOtherUpgrade => "its status says which; finish or roll back that one",
            Self::SwitchFirst => "switch searches to the new space first",
            Self::SwitchAgain => "its status says how it stands; switch again",
            Self::RollBackOrSwitch => "roll back again to go back, or switch to stay",
            Self::RollBackOrFill => "roll back again to go back, or start the upgrade again to stay",
            Self::ResumeBackfill => "resuming lets it go on",
            Self::EmbedNativesAgain => "or put the native vectors back, so that the next run embeds them again",
            Self::ReconsiderSwitch { backfill_percent: Some(percent) } => {
                return write!(
                    f,
                    "it passes doing nothing at {percent:.1} %, so backfill to there first; or serve merged searches, or switch all \
                     the same"
                );
            }
            Self::ReconsiderSwitch { backfill_percent: None } => {
                "it never passes doing nothing; serve merged searches, or switch all the same"
            }
            Self::MakeReport => "a report written as JSON is one",
            Self::DrawPairs => "draw more pairs from the gallery",
            Self::FitPairs => "fit one on the pairs that were drawn",
            Self::FitAgain => "fit the adapter again on newer pairs, then start the upgrade with it",
            Self::WriteSingleItems => "write single items instead",
            Self::DropSpace => "drop it",
            Self::Compact => "compacting the gallery gives the disk its room back",
            Self::PrepareIndex => "making its search index makes it ready",
            Self::RebuildIndex => "make it again",
            Self::AwaitOtherProcess => "wait for it, or ask it to end with a pause",
        })
    }
}

/// How a face words what errors hold as data. The methods it leaves out give words that fit any face.
pub trait Wording {
    /// A parameter of a library function (`"old_ids"`), as the reader of this face knows it.
    fn parameter(&self, name: &str) -> String {
        name.to_owned()
    }

    /// What the reader can do.
    fn remedy(&self, remedy: &Remedy) -> String {
        remedy.to_string()
    }
}

/// The words of no face in particular.
pub(crate) struct Plain;

impl Wording for Plain {}
