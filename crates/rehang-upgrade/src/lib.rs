//! The live upgrade of a gallery: from the old model to the new one, while people search and write.
//!
//! ```text
//! pairs → fit → report → plan → start → switch → backfill → finish
//! a random sample                 shadow space    worst first    or rollback, at any time before
//! ```
//!
//! The gallery itself says what is done: an item's provenance and revision are the record. So any process can
//! die at any instruction, and the next one goes on. Every write is conditional: a deleted item never comes
//! back, a changed one never gets a stale vector, and two workers on one item do no harm.
//!
//! - [`Upgrade`]: an upgrade as a [`Configuration`] describes it, every verb as one call, and all steps as
//!   one ([`Upgrade::auto`]); [`init`] writes a first one.
//! - [`import`], [`export`], [`put`], [`delete`], [`contents`], [`search()`](search), [`examine`]: galleries
//!   by hand.
//! - [`plan`], [`start`], [`switch`], [`request`], [`rollback`], [`finish`], [`status`]: the verbs.
//! - [`refit()`](refit): the map fitted again on what is native by now, where that pays.
//! - [`expect_same`]: whether a configuration speaks of the upgrade that is under way.
//! - [`Forecast`]: what a report on held-out pairs promises of an upgrade, and whether the switch pays by
//!   now.
//! - [`estimate`]: how long a backfill takes and what it costs.
//! - [`left`]: which items stay without a native vector until a person acts.
//! - [`backfill`]: the loop that re-embeds; what it decides is the pure [`Backfill::step`].
//! - [`compare_models`]: which model to upgrade to.
//! - [`Upgrade::identify`]: whose vectors a space holds.
//! - [`Observer`]: the one that is told what happens, such as a progress bar, metrics or a dashboard.
//! - [`Gallery`]: what an application searches and writes through at every stage.

mod auto;
mod auto_options;
mod configuration;
mod contents;
mod doctor;
mod kept;
mod learn;
mod live;
mod observe;
mod outlook;
mod places;
mod record;
mod serve;
mod setup;
mod status;
mod upgrade;
mod verbs;
mod way;

pub use auto::{Halt, Next, Step, StepResult, StepsLeft};
pub use auto_options::{AutoOptions, SwitchIf, Way};
pub use configuration::{Configuration, Planned};
pub use contents::{
    Compacted, Contents, Deleted, DroppedSpace, Put, PutItem, SpaceContents, compact, contents, delete,
    drop_space, put,
};
pub use doctor::{Examination, SpaceIndex, examine};
pub use learn::asked::ClicksKept;
pub use learn::forecast::{Forecast, OtherMetric, expect_worthwhile};
pub use learn::identify::{IdentifiedSpace, IdentifyOptions};
pub use learn::models::{
    CheaperBy, GroupScore, JudgedBy, ModelChoice, ModelCompared, ModelMeasured, ModelsCompared, ModelsInput,
    compare_models,
};
pub use learn::pairs::{Enough, PairsDrawn, PairsOptions, PairsStep};
pub use learn::refit::{Refit, refit, refits};
pub use learn::report::UpgradeReport;
pub use live::backfill::{Action, Attempt, Backfill, Ending, Event, Request, Tally};
pub use live::estimate::{Basis, CostEstimate, Probed, estimate};
pub use live::faults::Place;
pub use live::fill::Filler;
pub use live::first::{PutFirst, put_first, read_returned};
pub use live::health::{SigmaHealth, sigma_health};
pub use live::identity::put_back;
pub use live::leftovers::Leftovers;
pub use live::limits::{Limits, RunOptions, parse_rate};
pub use live::run::{BackfillScope, BackfillSetup, Summary, backfill};
pub use live::spending::spent_by_all;
pub use live::turn::{Follower, follower};
pub use live::until::{Unit, Until, parse_until};
pub use observe::{Observation, Observer, RefitStage, RefitUnderWay, Unobserved};
pub use places::collection::{CollectionLocation, QDRANT_URL_ENV};
pub use places::index::{Indexed, index};
pub use places::init::{Init, Initialised, init};
pub use places::location::{Adopted, Location, NewGallery, UpgradeLock};
pub use places::table::{TableLocation, URL_ENV};
pub use places::transfer::{Export, ExportedSpace, Import, Imported, export, import};
pub use record::{BridgeInUse, OrderSettings, Phase, Recorded, Serving, UpgradeRecord};
pub use rehang_clock::{Clock, SystemClock};
pub use serve::gallery::{Gallery, QueriesBySpace, SearchAnswer};
pub use serve::query::{Query, QueryEncoders};
pub use serve::search::{Search, SearchQueries, Searched, search};
pub use setup::{UpgradeSetup, expect_same};
pub use status::{Left, Status, left, status};
pub use upgrade::{Bridged, Outlook, PairsFiles, Requested, Resumed, Run, Upgrade, worker_name};
pub use verbs::{
    FinishedUpgrade, Plan, RolledBack, Started, Switched, begin_sampling, finish, plan, request, rollback,
    set_bridge, start, switch,
};
pub use way::{WayReason, Ways};
