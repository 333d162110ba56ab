//! Remedies: what a reader can do about an error, as data that every face words in its own language.
//!
//! A library does not know how it is called: a command line has flags, Python has keyword arguments. So an
//! error holds the names of the library's own parameters and, where there is a next step, a [`Remedy`]. The
//! text of a remedy is written here once. A face gives parameters and verbs its own names through
//! [`Wording`], and [`Error::worded`](crate::Error::worded) puts all of them into the sentence.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Next step that the reader can take.
///
/// [`Remedy::worded`] says it in the words of a face, [`Display`](fmt::Display) in those of this library.
///
/// ```
/// use rehang_core::{Error, ErrorKind, Remedy};
///
/// let error = Error::from(ErrorKind::WrongPhase { what: "the upgrade of g".into(), phase: "filling".into() })
///     .advise(Remedy::ContinueFilling);
/// assert_eq!(error.to_string(), "the upgrade of g is filling; call `Start`, which goes on where it was");
/// assert_eq!(error.remedy(), Some(&Remedy::ContinueFilling));
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Remedy {
    /// Make a gallery of the application's table.
    AdoptTable,
    /// Make the functions of a gallery anew, which an earlier version made.
    RenewFunctions,
    /// Begin an upgrade of the gallery between the configured spaces.
    BeginUpgrade,
    /// Start the upgrade again: its filling goes on where it was.
    ContinueFilling,
    /// Start the upgrade with the given adapter, which plans it anew and keeps native vectors; or give the
    /// adapter that it was started with.
    PlanAnew,
    /// Let the start that planned the upgrade anew come to its end, or start with this adapter and order once
    /// more.
    AwaitNewPlan,
    /// Look which upgrade is under way, then finish it or roll it back.
    SettleOtherUpgrade,
    /// Switch searches to the new space first.
    SwitchFirst,
    /// Look how the upgrade stands, then switch again.
    SwitchAgain,
    /// Roll the upgrade back again, or switch to stay with the new space.
    RollBackOrSwitch,
    /// Roll the upgrade back again, or start it again to stay with the new space.
    RollBackOrFill,
    /// Allow backfills again.
    ResumeBackfill,
    /// Embed the remaining items before the finish, or finish all the same.
    EmbedBeforeFinish,
    /// Embed the adapted items before the release, or take their vectors along as they are.
    EmbedOrTakeAlong,
    /// Release the gallery once more, which goes on where the last release ended.
    ReleaseAgain,
    /// Move the vectors that serve into a column of the table, or drop them all the same.
    MoveOrDrop,
    /// Let a follower adapt and embed what an application writes.
    Follow,
    /// Put native vectors back to adapted ones, so that the next backfill embeds them again.
    EmbedNativesAgain,
    /// Think again about a switch that, by the forecast, serves worse than doing nothing. The reader may
    /// backfill to `backfill_percent` first (`None` where no share of native items is enough), serve fused
    /// searches, or switch all the same.
    ReconsiderSwitch {
        /// Share of native items from which on mixed searches are above doing nothing, in percent, rounded
        /// up.
        backfill_percent: Option<f64>,
    },
    /// First embed the items that have no vector, or switch all the same.
    EmbedFirst,
    /// Make a report as JSON, on pairs that the adapter was not fitted on.
    MakeReport,
    /// Ask the models which of them made which vectors.
    IdentifyVectors,
    /// Draw pairs from the gallery: items that the new model embeds too.
    DrawPairs,
    /// Fit an adapter on the pairs that were drawn from the gallery.
    FitPairs,
    /// Fit a bridge anew, which puts it where searches read it.
    BridgeAgain,
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
    /// Say how wide the vectors of a model are, where a space keeps them at another width.
    KeepAtWidth {
        /// Coordinates that the model gives.
        own: usize,
        /// Coordinates of a vector of the space.
        dimension: usize,
    },
}

impl Remedy {
    /// Says the remedy in the words of a face. All faces say the same, each with its own names for verbs.
    pub fn worded(&self, face: &dyn Wording) -> String {
        let verb = |verb| face.verb(verb);
        let start = || face.verb(Verb::Start);
        let call = face.imperative();
        match self {
            Self::AdoptTable => format!("{} makes it one, and ends what was begun", verb(Verb::Adopt)),
            Self::RenewFunctions => {
                format!("{} makes them anew, and changes nothing else", verb(Verb::Adopt))
            }
            Self::BeginUpgrade => {
                let (pairs, fit) = (verb(Verb::Pairs), verb(Verb::Fit));
                format!("{} begins one, after {pairs} and {fit} where it has no map yet", start())
            }
            Self::ContinueFilling => format!("{call} {}, which goes on where it was", start()),
            Self::PlanAnew => format!(
                "{call} {} with it to re-plan (native vectors are kept), or name the adapter it was started with",
                start()
            ),
            Self::AwaitNewPlan => {
                format!(
                    "let that {} come to its end, or {call} this one again to plan it anew once more",
                    start()
                )
            }
            Self::SettleOtherUpgrade => {
                format!("{} says which; finish or roll back that one", verb(Verb::Status))
            }
            Self::SwitchFirst => format!("{call} {} first", verb(Verb::Switch)),
            Self::SwitchAgain => {
                format!("{} says how it stands, and {} tries again", verb(Verb::Status), verb(Verb::Switch))
            }
            Self::RollBackOrSwitch => {
                format!("{call} {} again to go back, or {} to stay", verb(Verb::Rollback), verb(Verb::Switch))
            }
            Self::RollBackOrFill => {
                format!("{call} {} again to go back, or {} to stay", verb(Verb::Rollback), start())
            }
            Self::ResumeBackfill => format!("{} lets it go on", verb(Verb::Resume)),
            Self::EmbedBeforeFinish => format!(
                "{call} {} to the end first, or finish all the same ({})",
                verb(Verb::Run),
                verb(Verb::FinishAnyway)
            ),
            Self::EmbedOrTakeAlong => format!(
                "{call} {} to embed them first, or take them along as they are ({})",
                verb(Verb::Run),
                verb(Verb::ReleaseWithAdapted)
            ),
            Self::ReleaseAgain => {
                format!("{call} {} once more, which goes on where that ended", verb(Verb::Release))
            }
            Self::MoveOrDrop => format!(
                "{} moves them into a column of the table, or drop them all the same ({})",
                verb(Verb::Release),
                verb(Verb::ReleaseAnyway)
            ),
            Self::Follow => format!("{} adapts and embeds them, and whatever comes", verb(Verb::Follow)),
            Self::EmbedNativesAgain => format!(
                "or {call} {}, which puts the native vectors back, so that the next run embeds them again",
                verb(Verb::ReEmbed)
            ),
            Self::ReconsiderSwitch { backfill_percent } => {
                let first = backfill_percent.map_or_else(
                    || "it never passes doing nothing;".to_owned(),
                    |percent| {
                        let run = verb(Verb::RunUntil { percent });
                        format!("it passes doing nothing at {percent:.1} %, so {run} first; or")
                    },
                );
                let (fused, anyway) = (verb(Verb::SwitchFused), verb(Verb::SwitchAnyway));
                format!("{first} serve fused searches ({fused}), or switch all the same ({anyway})")
            }
            Self::EmbedFirst => {
                let (run, anyway) = (verb(Verb::RunUntil { percent: 100.0 }), verb(Verb::SwitchAnyway));
                format!("{run} embeds what can be embedded, or switch all the same ({anyway})")
            }
            Self::MakeReport => format!("{} makes one", verb(Verb::Report)),
            Self::IdentifyVectors => format!("{} says which of them", verb(Verb::Identify)),
            Self::DrawPairs => format!("{} draws them", verb(Verb::Pairs)),
            Self::FitPairs => format!("{} learns one from the pairs that were drawn", verb(Verb::Fit)),
            Self::BridgeAgain => {
                format!("{} makes it anew and puts it where searches read it", verb(Verb::Bridge))
            }
            Self::FitAgain => format!("fit the adapter again on newer pairs, then {}", start()),
            Self::WriteSingleItems => format!("write single items with {}", verb(Verb::Put)),
            Self::DropSpace => format!("{} removes it", verb(Verb::DropSpace)),
            Self::Compact => format!("{} gives the disk its room back", verb(Verb::Compact)),
            Self::PrepareIndex => format!("{} makes it", verb(Verb::Index)),
            Self::RebuildIndex => format!("{} makes it again", verb(Verb::Repair)),
            Self::KeepAtWidth { own, dimension } if own < dimension => format!(
                "where an application fills its vectors up with zeros, `model_dimension = {own}` of the space does that, and no distance changes by it"
            ),
            Self::KeepAtWidth { own, .. } => format!(
                "where its vectors are to be cut, `model_dimension = {own}` of the space keeps the first coordinates, scaled to length 1"
            ),
            Self::AwaitOtherProcess => format!("wait for it, or ask it to end with {}", verb(Verb::Pause)),
        }
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.worded(&Plain))
    }
}

/// Verb that a remedy names. Every face has a name for each verb, which the compiler makes sure of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verb {
    /// Make a gallery of an application's table.
    Adopt,
    /// Start an upgrade, or start it again.
    Start,
    /// Say how an upgrade stands.
    Status,
    /// Switch searches to the new space.
    Switch,
    /// Switch to fused searches; named beside the other ways to switch.
    SwitchFused,
    /// Switch whatever the forecast says; named beside the other ways to switch.
    SwitchAnyway,
    /// Let searches go back to the old space.
    Rollback,
    /// Allow backfills again.
    Resume,
    /// Allow backfills again, and put native vectors back.
    ReEmbed,
    /// Backfill until nothing is left.
    Run,
    /// Drop the old space whatever is left; named beside the other way.
    FinishAnyway,
    /// Release with adapted vectors; named beside the other way.
    ReleaseWithAdapted,
    /// Release, and keep the vectors that serve in a column.
    Release,
    /// Release without the vectors that serve; named beside the other way.
    ReleaseAnyway,
    /// Backfill until a share of the items is native.
    RunUntil {
        /// The share, in percent.
        percent: f64,
    },
    /// Backfill, and stay when nothing is left.
    Follow,
    /// Ask backfills to end.
    Pause,
    /// Make a report as JSON.
    Report,
    /// Say which model made which vectors.
    Identify,
    /// Draw pairs from the gallery.
    Pairs,
    /// Fit an adapter on the pairs of the gallery.
    Fit,
    /// Bring new queries to the old space over a bridge.
    Bridge,
    /// Write single items.
    Put,
    /// Drop a space.
    DropSpace,
    /// Give the disk its room back.
    Compact,
    /// Make a search index.
    Index,
    /// Make a search index again that has fallen behind.
    Repair,
}

/// Words of a face for what errors hold as data. By default they are the names of this library.
pub trait Wording {
    /// Name of a library function's parameter (`"old_ids"`), as the reader of this face knows it.
    fn parameter(&self, name: &str) -> String {
        name.to_owned()
    }

    /// Word for what the reader of this face does with a verb: "run" it, or "call" it.
    fn imperative(&self) -> &'static str {
        "call"
    }

    /// Verb as the reader of this face writes it, between backticks.
    fn verb(&self, verb: Verb) -> String {
        format!("`{verb:?}`")
    }
}

/// Words of no particular face: the names of this library.
pub(crate) struct Plain;

impl Wording for Plain {}
