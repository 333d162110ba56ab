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

mod asked;
mod auto;
mod auto_options;
mod backfill;
mod collection;
mod configuration;
mod contents;
mod doctor;
mod drift;
mod encoding;
mod equal;
mod estimate;
mod faults;
mod fill;
mod first;
mod fitting;
mod forecast;
mod fuse;
mod gallery;
mod health;
mod held;
mod identify;
mod identity;
mod index;
mod init;
mod kept;
mod leftovers;
mod limits;
mod location;
mod manners;
mod models;
mod observe;
mod outgrown;
mod outlook;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "qdrant")]
mod qdrant;
mod query;
mod record;
mod refit;
mod refitting;
mod run;
mod sample;
mod search;
mod setup;
mod spending;
#[cfg(feature = "sqlite")]
mod sqlite;
mod status;
mod table;
mod transfer;
mod turn;
mod under_way;
mod until;
mod upgrade;
mod verbs;
mod watch;
mod way;

pub use asked::ClicksKept;
pub use auto::{Halt, Next, Step, StepResult, StepsLeft};
pub use auto_options::{AutoOptions, SwitchIf, Way};
pub use backfill::{Action, Attempt, Backfill, Ending, Event, Request, Tally};
pub use collection::{CollectionLocation, QDRANT_URL_ENV};
pub use configuration::{Configuration, Planned};
pub use contents::{
    Compacted, Contents, Deleted, DroppedSpace, Put, PutItem, SpaceContents, compact, contents, delete,
    drop_space, put,
};
pub use doctor::{Examination, SpaceIndex, examine};
pub use estimate::{Basis, CostEstimate, Probed, estimate};
pub use faults::Place;
pub use fill::Filler;
pub use first::{PutFirst, put_first, read_returned};
pub use fitting::{Enough, PairsDrawn, PairsOptions, PairsStep, UpgradeReport};
pub use forecast::{Forecast, OtherMetric, expect_worthwhile};
pub use gallery::{Gallery, QueriesBySpace, SearchAnswer};
pub use health::{SigmaHealth, sigma_health};
pub use identify::{IdentifiedSpace, IdentifyOptions};
pub use identity::put_back;
pub use index::{Indexed, index};
pub use init::{Init, Initialised, init};
pub use leftovers::Leftovers;
pub use limits::{Limits, RunOptions, parse_rate};
pub use location::{Adopted, Location, NewGallery, UpgradeLock};
pub use models::{
    CheaperBy, GroupScore, JudgedBy, ModelChoice, ModelCompared, ModelMeasured, ModelsCompared, ModelsInput,
    compare_models,
};
pub use observe::{Observation, Observer, RefitStage, RefitUnderWay, Unobserved};
pub use query::{Query, QueryEncoders};
pub use record::{BridgeInUse, OrderSettings, Phase, Recorded, Serving, UpgradeRecord};
pub use refit::{Refit, refit, refits};
pub use rehang_clock::{Clock, SystemClock};
pub use run::{BackfillScope, BackfillSetup, Summary, backfill};
pub use search::{Search, SearchQueries, Searched, search};
pub use setup::{UpgradeSetup, expect_same};
pub use spending::spent_by_all;
pub use status::{Left, Status, left, status};
pub use table::{TableLocation, URL_ENV};
pub use transfer::{Export, ExportedSpace, Import, Imported, export, import};
pub use turn::{Follower, follower};
pub use until::{Unit, Until, parse_until};
pub use upgrade::{Bridged, Outlook, PairsFiles, Requested, Resumed, Run, Upgrade};
pub use verbs::{
    FinishedUpgrade, Plan, RolledBack, Started, Switched, begin_sampling, finish, plan, request, rollback,
    set_bridge, start, switch,
};
pub use way::{WayReason, Ways};
