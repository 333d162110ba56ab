//! Verbs of an upgrade, in the order in which a gallery goes through them.

use rehang_core::adapter::Adapter;
use rehang_core::finding::{Finding, FindingCode};
use rehang_core::{Bridge, Error, Fusion, Provenance, Remedy, Result, Space};
use rehang_store::{Counts, Ledger, Revision, Scan, Select, Store, find_space};
use serde::Serialize;

use crate::kept;
use crate::learn::refit;
use crate::live::backfill::Request;
use crate::live::faults::Place;
use crate::live::fill::{Filler, PAGE_ITEMS_MAX};
use crate::live::leftovers::Leftovers;
use crate::observe::{Observation, Observer};
use crate::places::index::{prepare_index, recall};
use crate::record::{BridgeInUse, OrderSettings, Phase, Recorded, Serving, UpgradeRecord};
use crate::setup::{
    UpgradeSetup, as_sentences, continues_upgrade, expect_adapter, expect_between, expect_no_other,
    expect_spaces, expect_upgrade, finished_error, has_same_plan, is_filled, is_ongoing, may_hold_others,
    upgrade_of,
};

/// Number of times that a record is read again before a change of it is given up.
const RETRIES: usize = 20;
/// Number of times that a finish catches up before it drops the old space, while the application goes on
/// writing.
const LAST_PASSES: usize = 10;

/// Begins to draw pairs: makes the new space, without any vector in it, and records that. Where an upgrade
/// between these spaces has come farther, nothing changes: its new space takes natives at any time.
///
/// # Errors
///
/// A conflict where another upgrade of this gallery is under way or has pairs, where this one is being filled
/// or finished, or where a finish of it died; a mismatch where the gallery has other spaces.
pub fn begin_sampling(
    store: &dyn Ledger,
    old: &Space,
    new: &Space,
    order: OrderSettings,
    observer: &dyn Observer,
) -> Result<()> {
    expect_spaces(store, old, new)?;
    let earlier = Recorded::read(store)?;
    let ours = earlier.as_ref().filter(|earlier| earlier.record.is_between(&old.name, &new.name));
    if let (None, Some(Recorded { record, .. })) = (ours, &earlier)
        && record.phase == Phase::Sampling
    {
        let other = &record.new.name;
        let is_there = find_space(store, other)?.is_some();
        let drawn = if is_there { store.counts(other)?.native } else { 0 };
        if drawn > 0 {
            return Err(Error::conflict(
                format!("pairs are drawn from {:?} to {other:?}", record.old.name),
                format!(
                    "{drawn} items are embedded for them, and the configuration says {:?} to {:?}; name the spaces as they were, or \
                     give the vectors of {other:?} up",
                    old.name, new.name
                ),
            )
            .advise(Remedy::DropSpace));
        }
    }
    match (ours.map(|ours| ours.record.phase), &earlier) {
        (Some(Phase::Filling), _) => {
            return Err(
                Error::wrong_phase(upgrade_of(store), Phase::Filling.name()).advise(Remedy::ContinueFilling)
            );
        }
        // Searches go to the new space then, and a new record would not know the adapter that writes need.
        (Some(Phase::Finished), Some(earlier)) if !earlier.record.dropped => {
            let phase = "finished, but its old space is not dropped yet: finish it once more";
            return Err(Error::wrong_phase(upgrade_of(store), phase));
        }
        (Some(Phase::Finished) | None, Some(earlier)) if earlier.record.is_live() => {
            return expect_between(store, &earlier.record, old, new);
        }
        (Some(Phase::Finished) | None, _) => {
            let handicap = earlier.as_ref().map_or(0.0, |earlier| earlier.record.handicap_of(&old.name));
            let fresh = UpgradeRecord::new(old.clone(), new.clone(), String::new(), order);
            let record = UpgradeRecord { phase: Phase::Sampling, old_handicap: handicap, ..fresh };
            Recorded::create(store, earlier.as_ref(), record)?;
        }
        (Some(_), _) => {}
    }
    observer.reach(Place::RecordWritten)?;
    // The space is made even where it is there: a process may have died before all items were listed in it.
    let stored_space = find_space(store, &new.name)?.map(|stored_space| stored_space.space);
    store.create_space(stored_space.as_ref().unwrap_or(new), Provenance::Native)?;
    observer.reach(Place::SpaceMade)
}

/// Outline of what a [`start`] would do, without doing it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Plan {
    /// Name of the gallery.
    pub gallery: String,
    /// Space that is replaced.
    pub old: String,
    /// Space that replaces the old one.
    pub new: String,
    /// Items and vectors of the gallery in the old space.
    pub old_counts: Counts,
    /// Items and vectors of the gallery in the new space; `None` where nothing has begun.
    pub new_counts: Option<Counts>,
    /// Items that `start` gives an adapted vector.
    pub to_adapt: u64,
    /// Items that can be re-embedded and are not native yet.
    pub to_embed: u64,
    /// Items that have no source: they stay adapted.
    pub without_source: u64,
    /// Bytes that the vectors of `to_adapt` take.
    pub bytes: u64,
    /// Whether no adapter is known, so that old vectors are put into the new space as they are.
    pub as_they_are: bool,
    /// Whether everything is embedded and nothing mapped ([`UpgradeRecord::is_plain`]).
    pub plain: bool,
    /// Findings that a person should know before a start.
    #[serde(rename = "warnings", serialize_with = "as_sentences")]
    pub findings: Vec<Finding>,
}

/// Whether the adapter maps nothing and was fitted on nothing: [`rehang_core::Adapter::identity`].
fn is_identity(setup: &UpgradeSetup<'_>) -> bool {
    let training = setup.adapter.map(|adapter| &adapter.training);
    training.is_some_and(|training| training.method == "identity" && training.pairs == 0)
}

/// Returns what a [`start`] would do: reads, and writes nothing.
///
/// # Errors
///
/// What [`start`] would fail with before its first write.
pub fn plan(store: &dyn Ledger, setup: &UpgradeSetup<'_>) -> Result<Plan> {
    let findings = setup.check(store)?;
    setup.filler(setup.order)?;
    let recorded = Recorded::read(store)?;
    expect_no_other(store, recorded.as_ref(), setup)?;
    let old_counts = store.counts(&setup.old.name)?;
    let has_new = find_space(store, &setup.new.name)?.is_some();
    let new_counts = if has_new { Some(store.counts(&setup.new.name)?) } else { None };
    let native = new_counts.map_or(0, |counts| counts.native);
    let to_adapt = match new_counts {
        _ if setup.adapter.is_none() => 0,
        Some(counts) => {
            let again = may_hold_others(recorded.as_ref(), setup, has_new);
            store.count_lag(&setup.new.name, &setup.old.name)? + if again { counts.adapted } else { 0 }
        }
        None => old_counts.items - old_counts.lacking,
    };
    let without_source = match new_counts {
        Some(counts) => counts.without_source,
        None => store.count_without_source()?,
    };
    Ok(Plan {
        gallery: store.name(),
        old: setup.old.to_string(),
        new: setup.new_space(store)?.to_string(),
        old_counts,
        new_counts,
        to_adapt,
        to_embed: (old_counts.items - native).saturating_sub(without_source),
        without_source,
        bytes: to_adapt * 4 * setup.new.dimension as u64,
        as_they_are: is_identity(setup),
        plain: setup.adapter.is_none(),
        findings,
    })
}

/// Result of a [`start`].
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Started {
    /// Adapted vectors that were written.
    pub adapted: u64,
    /// Whether no adapter is known, so that the adapted vectors are old ones as they are.
    pub as_they_are: bool,
    /// Whether everything is embedded and nothing mapped ([`UpgradeRecord::is_plain`]).
    pub plain: bool,
    /// Whether an upgrade that was under way went on with another adapter or order.
    pub replanned: bool,
    /// Items without a vector in the new space: they have no old one either, or none is mapped, and wait for
    /// the backfill.
    pub lacking: u64,
    /// Share of the true nearest 10 that searches of the new space find, where its index was made now.
    pub recall: Option<f64>,
    /// Findings that a person should know.
    #[serde(rename = "warnings", serialize_with = "as_sentences")]
    pub findings: Vec<Finding>,
}

/// Makes the new space and fills it with adapted vectors; items that the application writes meanwhile are
/// caught up with. Without an adapter it only makes the space, for a [plain](UpgradeRecord::is_plain)
/// upgrade: a backfill embeds everything.
///
/// At its end the search index of the new space is there, and its recall is measured, so that a switch is
/// fast and so are the searches after it. Searches go on in the old space.
///
/// A start may be called again at any time. After a crash it goes on where it was. With another adapter or
/// order it makes all adapted vectors again and keeps every native one. Otherwise it only catches up. Where
/// the new space is left from an upgrade that was rolled back before others, all its adapted vectors are made
/// again, too: nothing says which adapter made them. After a crash while vectors are made again, the next
/// call begins that anew, since it cannot tell the vectors that are done from the others.
///
/// Items that come or change from the first call of a start on go to the front of the queue.
///
/// # Errors
///
/// A conflict where another upgrade of this gallery is under way, or where this one is rolled back, finished
/// or planned in another way meanwhile (no page of its vectors is written then); without an adapter, where
/// the new space has adapted vectors already; what [`Filler::new`](crate::Filler::new) and the store say.
pub fn start(store: &dyn Store, setup: &UpgradeSetup<'_>, observer: &dyn Observer) -> Result<Started> {
    let mut findings = setup.check(store)?;
    let filler = setup.filler(setup.order)?;
    let earlier = Recorded::read(store)?;
    expect_no_other(store, earlier.as_ref(), setup)?;
    let new = setup.new_space(store)?;
    // The adapter is kept before the record names it: whoever reads the record finds its adapter.
    let fingerprint = setup.fingerprint()?;
    setup.adapter.map_or(Ok(()), |adapter| kept::keep_adapter(store, &fingerprint, adapter))?;
    let fresh = UpgradeRecord::new(setup.old.clone(), new.clone(), fingerprint, setup.order);
    let continues = earlier.as_ref().is_some_and(|earlier| continues_upgrade(&earlier.record, setup));
    let replanned =
        continues && earlier.as_ref().is_some_and(|earlier| !has_same_plan(&earlier.record, setup));
    let has_new = find_space(store, &new.name)?.is_some();
    let filled = has_new && earlier.as_ref().is_some_and(|earlier| is_filled(&earlier.record, setup));
    let adapted_before = filler.is_some() && may_hold_others(earlier.as_ref(), setup, has_new);
    // The revision is read before the record is written. Items that are written from here on count as new or
    // changed, also if this process dies and another goes on.
    let since = match &earlier {
        Some(earlier) if continues => earlier.record.since,
        _ => Some(store.newest_revision()?),
    };
    let filler = filler.map(|filler| filler.since(since));
    let old_handicap = earlier.as_ref().map_or(0.0, |earlier| earlier.record.handicap_of(&setup.old.name));
    // A request from while pairs were drawn still holds.
    let ongoing =
        earlier.as_ref().map(|earlier| &earlier.record).filter(|earlier| is_ongoing(earlier, setup));
    let fresh = UpgradeRecord {
        request: ongoing.map_or(fresh.request, |earlier| earlier.request),
        since,
        handicap: setup.adapter.map_or(0.0, |adapter| adapter.handicap),
        old_handicap,
        adapted_before,
        bridge: ongoing.and_then(|earlier| earlier.bridge.clone()),
        ..fresh
    };
    let record = match &earlier {
        Some(Recorded { record: earlier, .. }) if continues => {
            let phase = if filled { Phase::Filled } else { fresh.phase };
            // A plan that goes on as it was stays in its epoch, so that two processes that fill for it do not
            // fence each other.
            let epoch = earlier.epoch.filter(|_| has_new && !replanned);
            // An adapter that knows no fusion is searched mixed.
            let fusion = earlier.fusion.as_ref().and_then(|_| setup.adapter?.fusion.clone());
            let serving = if filler.is_some() { earlier.serving } else { Serving::Mixed };
            UpgradeRecord { phase, serving, epoch, fusion, ..fresh }
        }
        _ => fresh,
    };
    let recorded = match earlier {
        earlier if has_new && record.epoch.is_none() => Recorded::begin(store, earlier.as_ref(), record)?,
        Some(mut earlier) if continues => {
            earlier.change(store, |stored_record| *stored_record = record)?;
            earlier
        }
        earlier => Recorded::create(store, earlier.as_ref(), record)?,
    };
    observer.reach(Place::RecordWritten)?;
    store.create_space(&new, Provenance::Native)?;
    observer.reach(Place::SpaceMade)?;
    let plan = in_its_epoch(store, &recorded.record)?;
    findings.extend(keep_map(store, setup, &plan)?);
    let adapted = filler.map_or(Ok(0), |filler| {
        fill(store, &filler, &plan, filled, observer).map_err(|error| Recorded::explain(store, &plan, error))
    })?;
    observer.reach(Place::BeforeFilled)?;
    record_filled(store, &plan)?;
    observer.reach(Place::AfterFilled)?;
    // The fill is complete here, and nothing of it is lost whatever happens to the index; a switch waits for
    // the index. A plain upgrade has next to nothing in it yet: its backfill makes the index.
    let plain = setup.adapter.is_none();
    let is_made = !plain && prepare_index(store, &new.name, observer)?;
    let recall = if is_made { Some(recall(store, &new.name)?) } else { None };
    let lacking = store.counts(&new.name)?.lacking;
    let as_they_are = is_identity(setup);
    Ok(Started { adapted, as_they_are, plain, replanned, lacking, recall, findings })
}

/// Keeps the map of a plan in the gallery, and has the store itself adapt by it what an application writes
/// past the library from here on. Returns a finding where the store cannot.
pub(crate) fn keep_map(
    store: &dyn Ledger,
    setup: &UpgradeSetup<'_>,
    plan: &UpgradeRecord,
) -> Result<Option<Finding>> {
    setup.adapter.map_or(Ok(()), |adapter| kept::keep_adapter(store, &plan.adapter, adapter))?;
    let epoch = plan.epoch.unwrap_or_default();
    let map = setup.adapter.map(|adapter| (epoch, plan.adapter.as_str(), adapter));
    let why = store.keep_map(&plan.new.name, map)?;
    Ok(why.map(|why| {
        let message = format!("The database does not adapt by this map what the application writes with an old vector alone: {why}.");
        Finding::note(FindingCode::AdaptedLater, message)
            .may_mean("Searches of the new space find such a row once a run has caught up with it, a follower within a second.")
    }))
}

/// Returns the plan with an epoch, which is that of the space that was made for it. Where another process
/// that makes the same plan was faster, its epoch is this one's too.
fn in_its_epoch(store: &dyn Ledger, plan: &UpgradeRecord) -> Result<UpgradeRecord> {
    changing(store, plan, |recorded| {
        if recorded.record.epoch.is_some() {
            return Ok(recorded.record);
        }
        Recorded::begin(store, Some(&recorded), recorded.record.clone()).map(|recorded| recorded.record)
    })
}

/// Writes the vectors that are lacking, or all adapted vectors again, and the places of the order; returns
/// how many vectors were written.
pub(crate) fn fill(
    store: &dyn Ledger,
    filler: &Filler,
    plan: &UpgradeRecord,
    filled: bool,
    observer: &dyn Observer,
) -> Result<u64> {
    let (epoch, new) = (plan.epoch.unwrap_or_default(), &plan.new.name);
    let counts = store.counts(new)?;
    let mut adapted = 0;
    if !filled {
        // Adapted vectors that are there may be of an interrupted fill with another adapter, or of an upgrade
        // to the same space that was rolled back before others: the record knows the last adapter only.
        // Native vectors stay as they are. All others are of an interrupted fill with this very adapter and
        // order, which goes on with what is lacking.
        if plan.adapted_before && counts.adapted > 0 {
            let (stage, total) = ("adapting again", counts.adapted);
            observer.observe(&Observation::Began { stage, unit: "vectors", total });
            adapted += filler.fill(store, epoch, &Select::Provenance(Provenance::Adapted), observer)?;
        }
        if counts.lacking > 0 {
            let (stage, total) = ("adapting", counts.lacking);
            observer.observe(&Observation::Began { stage, unit: "vectors", total });
            adapted += filler.fill(store, epoch, &Select::Lacking, observer)?;
        }
        filler.cover(store, epoch, observer)?;
        observer.reach(Place::PrioritiesWritten)?;
    }
    adapted += filler.catch_up(store, epoch, observer)?;
    Ok(adapted)
}

/// Records that the space is filled, where the upgrade is still planned so. A pause may have been asked for
/// meanwhile; that is no reason to throw the fill away.
fn record_filled(store: &dyn Ledger, plan: &UpgradeRecord) -> Result<()> {
    changing(store, plan, |mut recorded| {
        recorded.change(store, |record| {
            if record.phase == Phase::Filling {
                record.phase = Phase::Filled;
                record.adapted_before = false;
            }
        })
    })
}

/// Changes the record while it says what was planned, and tries again where another process was faster with a
/// change that is no reason to give up.
pub(crate) fn changing<T>(
    store: &dyn Ledger,
    plan: &UpgradeRecord,
    change: impl Fn(Recorded) -> Result<T>,
) -> Result<T> {
    for _ in 0..RETRIES {
        let outcome = change(Recorded::expect_planned(store, plan)?);
        if !outcome.as_ref().is_err_and(Error::is_changed_meanwhile) {
            return outcome;
        }
    }
    Err(Error::changed_meanwhile(upgrade_of(store), "another process keeps changing it")
        .advise(Remedy::ContinueFilling))
}

/// Returns the fusion that the record of an upgrade holds while it is served in this way.
fn fusion_of(adapter: Option<&Adapter>, serving: Serving) -> Result<Option<Fusion>> {
    match (serving, adapter.and_then(|adapter| adapter.fusion.as_ref())) {
        (Serving::Mixed, _) => Ok(None),
        (Serving::Fused | Serving::Either, Some(fusion)) => Ok(Some(fusion.clone())),
        (Serving::Fused | Serving::Either, None) => {
            let needed = "an adapter that was fitted by this rehang, on pairs enough to hold some out,";
            Err(Error::missing(needed, "fused searches"))
        }
    }
}

/// Result of a [`switch`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Switched {
    /// Name of the space that serves now.
    pub serving: String,
    /// Vectors and queries that searches use.
    pub serving_as: Serving,
    /// Items that were caught up with on the way.
    pub caught_up: u64,
    /// Items that no search finds until they are embedded: they have no vector in the new space.
    pub lacking: u64,
    /// Items of `lacking` that were written while the switch was under way: an application that writes all
    /// the time is never caught up with for good.
    pub came: u64,
}

/// Lets searches go to the new space, in one atomic step, after catching up with what was written meanwhile.
/// Where they are to be [fused](Serving::Fused), all or [some](Serving::Either), the record takes the adapter's
/// [fusion](rehang_core::Adapter::fusion).
///
/// # Errors
///
/// Missing input where searches are to be fused and the adapter says nothing of how: it is one of an older
/// rehang, of the published recipe, or of too few pairs. A conflict where the new space is not filled yet,
/// where the upgrade is finished, and where it is not the one of the setup: between other spaces, or filled
/// by another adapter. A conflict too where it is rolled back meanwhile: searches go to the old space then.
pub fn switch(
    store: &dyn Ledger,
    setup: &UpgradeSetup<'_>,
    serving: Serving,
    observer: &dyn Observer,
) -> Result<Switched> {
    let mut recorded = expect_upgrade(store, setup)?;
    match recorded.record.phase {
        Phase::Filled | Phase::RolledBack => {}
        Phase::Finished => return Err(finished_error(store, &recorded.record)),
        phase @ (Phase::Sampling | Phase::Filling | Phase::Abandoned) => {
            let phase = format!("{}: only a filled one can be switched", phase.name());
            return Err(Error::wrong_phase(upgrade_of(store), phase).advise(Remedy::ContinueFilling));
        }
    }
    expect_adapter(store, &recorded.record, setup)?;
    let fusion = fusion_of(setup.adapter, serving)?;
    let (old, new) = (&recorded.record.old.name.clone(), &recorded.record.new.name.clone());
    keep_map(store, setup, &recorded.record)?;
    let newest = store.newest_revision()?;
    let caught_up = catch_up(store, setup, &recorded.record, observer)?;
    let lacking = store.counts(new)?.lacking;
    let came = if lacking > 0 { lacking_since(store, new, newest)?.min(lacking) } else { 0 };
    observer.reach(Place::BeforeSwitch)?;
    // The record has to say how the new space serves before it does; before the switch no search asks. The
    // record is written even where it does not change: a rollback since it was read makes the write fail.
    let switched = UpgradeRecord { phase: Phase::Filled, serving, fusion, ..recorded.record.clone() };
    recorded.write(store, switched)?;
    observer.reach(Place::SwitchRecorded)?;
    store.switch_serving(old, new)?;
    observer.reach(Place::AfterSwitch)?;
    expect_not_taken_back(store, old, new)?;
    Ok(Switched { serving: new.clone(), serving_as: serving, caught_up, lacking, came })
}

/// Counts the items without a vector of the new space that were written after a revision.
fn lacking_since(store: &dyn Ledger, new: &str, newest: Revision) -> Result<u64> {
    let (mut came, mut walk) = (0, Some(Scan::new(new, Select::Lacking, PAGE_ITEMS_MAX).without_contents()));
    while let Some(page) = walk {
        let records = store.scan(&page)?;
        came += records.iter().filter(|record| record.item.revision > newest).count() as u64;
        walk = page.following(&records);
    }
    Ok(came)
}

/// Lets searches go back where a rollback came between the record of a switch and the switch itself: the
/// rollback found the old space serving, and so had nothing to take back.
fn expect_not_taken_back(store: &dyn Ledger, old: &str, new: &str) -> Result<()> {
    let record = Recorded::expect(store)?.record;
    if record.is_between(old, new) && !matches!(record.phase, Phase::RolledBack | Phase::Abandoned) {
        return Ok(());
    }
    store.switch_serving(new, old)?;
    Err(Error::superseded(
        format!("switching searches of {} to {new:?}", store.name()),
        format!("the upgrade was rolled back meanwhile, so they go to {old:?}"),
    )
    .advise(Remedy::SwitchAgain))
}

/// Asks running backfills to pause or to stop, or allows them to run again. Returns the request before it.
///
/// # Errors
///
/// Not found where there is no upgrade, a conflict where it is between other spaces.
pub fn request(store: &dyn Ledger, old: &Space, new: &Space, request: Request) -> Result<Request> {
    let mut recorded = Recorded::expect(store)?;
    expect_between(store, &recorded.record, old, new)?;
    let before = recorded.record.request;
    recorded.change(store, |record| record.request = request)?;
    Ok(before)
}

/// Lets queries go to the old space over a bridge from the next search on, or as they are (`None`). Its
/// writes are small: no vector and no index is touched. A [`rollback`] takes the bridge away too. Returns the
/// bridge as the record has it.
///
/// # Errors
///
/// Not found where there is no upgrade; a wrong phase where it is finished, or searches go to the new space;
/// a conflict where it is between other spaces, or another process changed it meanwhile. As
/// [`Bridge::check`]; as [`Ledger::keep_bridge`].
pub fn set_bridge(
    store: &dyn Ledger,
    old: &Space,
    new: &Space,
    bridge: Option<&Bridge>,
) -> Result<Option<BridgeInUse>> {
    let mut recorded = Recorded::expect(store)?;
    expect_between(store, &recorded.record, old, new)?;
    let Some(bridge) = bridge else {
        recorded.change(store, |record| record.bridge = None)?;
        store.keep_bridge(None)?;
        return Ok(None);
    };
    expect_may_bridge(store, &recorded.record)?;
    let fingerprint = kept::keep_bridge(store, bridge)?;
    // The store keeps the bridge before the record names it: no search uses one that the record does not
    // name. Where this process dies in between, the next call takes the bridge away.
    store.keep_bridge(Some((&fingerprint, bridge)))?;
    let in_use = BridgeInUse { fingerprint: fingerprint.clone(), share: bridge.share };
    recorded.change(store, |record| record.bridge = Some(in_use.clone()))?;
    // The store keeps the bridge once more after that, and drops the one that was in use before. Another
    // process that dropped the earlier one meanwhile may have dropped this one too, since the record did not
    // name it yet.
    store.keep_bridge(Some((&fingerprint, bridge)))?;
    Ok(Some(in_use))
}

/// Fails where the old space does not serve, so that no bridge is of use.
pub(crate) fn expect_may_bridge(store: &dyn Ledger, record: &UpgradeRecord) -> Result<()> {
    if record.phase == Phase::Finished {
        return Err(finished_error(store, record));
    }
    if record.is_served(store)? {
        let phase = "switched: new queries search new vectors, and need no bridge";
        return Err(Error::wrong_phase(upgrade_of(store), phase));
    }
    Ok(())
}

/// Result of a [`rollback`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RolledBack {
    /// Name of the space that serves again.
    pub serving: String,
    /// Items that no search finds now: written since the switch, with a vector of the new model only.
    pub without_old_vector: u64,
    /// Ids of the first few items that no search finds.
    pub examples: Vec<String>,
}

/// Lets searches go to the old space again, at once, as they went before the upgrade: a bridge is taken away
/// too. Nothing is lost: the new space stays with all its native vectors, and `switch` goes back to it.
///
/// # Errors
///
/// Not found where there is no upgrade; a conflict where it is finished (the old space is gone then) or is
/// between other spaces than the setup's.
pub fn rollback(store: &dyn Ledger, setup: &UpgradeSetup<'_>, observer: &dyn Observer) -> Result<RolledBack> {
    let mut recorded = expect_upgrade(store, setup)?;
    if recorded.record.phase == Phase::Finished {
        return Err(finished_error(store, &recorded.record));
    }
    let (old, new) = (recorded.record.old.name.clone(), recorded.record.new.name.clone());
    // The record is written first, even where it does not change. A process that finishes at the same moment
    // then fails, instead of dropping the space that is to serve; and a switch that has read the record
    // before fails too.
    let phase = match recorded.record.phase {
        Phase::Filled => Phase::RolledBack,
        Phase::Filling => Phase::Abandoned,
        Phase::Sampling => {
            let phase = "sampling: searches never left the old space, so there is nothing to roll back";
            return Err(Error::wrong_phase(upgrade_of(store), phase));
        }
        phase @ (Phase::RolledBack | Phase::Abandoned | Phase::Finished) => phase,
    };
    let rolled_back = UpgradeRecord { phase, bridge: None, ..recorded.record.clone() };
    let has_new = find_space(store, &new)?.is_some();
    if has_new {
        // The process that fills the space stops at its next page.
        Recorded::begin(store, Some(&recorded), rolled_back)?;
    } else {
        recorded.write(store, rolled_back)?;
    }
    observer.reach(Place::RolledBack)?;
    if has_new {
        store.switch_serving(&new, &old)?;
        store.keep_map(&new, None)?;
    }
    store.keep_bridge(None)?;
    rolled_back_result(store, old)
}

/// Returns the result of a rollback: which items no search finds once searches go to the old space again.
pub(crate) fn rolled_back_result(store: &dyn Ledger, old: String) -> Result<RolledBack> {
    let lacking = store.scan(&Scan::new(&old, Select::Lacking, 5))?;
    Ok(RolledBack {
        without_old_vector: store.counts(&old)?.lacking,
        examples: lacking.into_iter().map(|record| record.item.id).collect(),
        serving: old,
    })
}

/// Result of a [`finish`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FinishedUpgrade {
    /// Name of the space that was dropped.
    pub dropped: String,
    /// Items and vectors of the gallery in the new space.
    pub counts: Counts,
    /// Whether the search index of the space that serves had to be made again.
    pub indexed: bool,
    /// Items that no search finds: they never had a vector in the new space, nor an old one to adapt. They
    /// include items that were written in the very moment of the drop with an old vector alone, past
    /// [`Gallery::put`](crate::Gallery::put).
    pub lacking: u64,
}

impl FinishedUpgrade {
    /// Counts the items with a source that are not native: a run embeds them.
    pub fn to_embed(&self) -> u64 {
        self.counts.to_embed()
    }
}

/// Ends an upgrade for good: the old space is dropped. After a finish there is no way back.
///
/// Where items with a source are not native yet, or have nothing but an old vector, it drops nothing, unless
/// the finish is wanted `anyway`: [`Leftovers`] counts them. Items that are still adapted then stay so until
/// a [backfill](crate::backfill()) embeds them. Items that the application writes meanwhile are caught up
/// with right before the drop, also by a call that goes on after a death, however long ago that was.
///
/// # Errors
///
/// A conflict where searches still go to the old space, where the upgrade is being filled or rolled back, and
/// where it is not the one of the setup: between other spaces, or filled by another adapter. Unless the
/// finish is wanted `anyway`, also a conflict where something is left.
pub fn finish(
    store: &dyn Store,
    setup: &UpgradeSetup<'_>,
    anyway: bool,
    observer: &dyn Observer,
) -> Result<FinishedUpgrade> {
    let mut recorded = expect_upgrade(store, setup)?;
    let (old, new) = (recorded.record.old.name.clone(), recorded.record.new.name.clone());
    let is_again = recorded.record.phase == Phase::Finished;
    if !is_again {
        expect_adapter(store, &recorded.record, setup)?;
        if store.serving()?.as_deref() != Some(new.as_str()) {
            return Err(Error::conflict(
                format!("searches of {} still go to {old:?}", store.name()),
                "finish would drop the space they use",
            )
            .advise(Remedy::SwitchFirst));
        }
        // Searches may go to the new space all the same: while it is filled again with another adapter, and
        // where a rollback died between its record and its switch. Without the old space, the new one could
        // neither be filled to its end nor rolled back.
        let next = match recorded.record.phase {
            Phase::Filled | Phase::Finished => None,
            Phase::Sampling | Phase::Filling => Some(Remedy::ContinueFilling),
            Phase::RolledBack => Some(Remedy::RollBackOrSwitch),
            Phase::Abandoned => Some(Remedy::RollBackOrFill),
        };
        if let Some(next) = next {
            let phase = format!("{}: finish would drop what it still needs", recorded.record.phase.name());
            return Err(Error::wrong_phase(upgrade_of(store), phase).advise(next));
        }
        if recorded.record.refitting {
            // Without the old space, adapted vectors of the map before could not be made anew.
            refit::complete(store, setup, &recorded.record, observer)?;
            recorded = expect_upgrade(store, setup)?;
        }
        catch_up(store, setup, &recorded.record, observer)?;
        expect_little_left(store, &recorded.record, anyway)?;
        recorded.change(store, |record| {
            record.phase = Phase::Finished;
            // Nothing of the old space is left to fuse with, or to bring queries to.
            (record.serving, record.fusion, record.bridge) = (Serving::Mixed, None, None);
        })?;
    }
    if !recorded.record.dropped {
        catch_up_before_drop(store, setup, &recorded.record, observer)?;
        // The finish before this one may have died long ago: whether anything written since is left is asked
        // once more.
        if is_again && find_space(store, &old)?.is_some() {
            expect_little_left(store, &recorded.record, anyway)?;
        }
        store.drop_space(&old)?;
        store.keep_bridge(None)?;
        observer.reach(Place::AfterDrop)?;
    }
    let counts = store.counts(&new)?;
    if !recorded.record.dropped {
        recorded.change(store, |record| {
            record.dropped = true;
            // No adapted vector comes any more; where none is left, searches need not look for them apart.
            if counts.adapted == 0 {
                record.handicap = 0.0;
            }
        })?;
    }
    let indexed = prepare_index(store, &new, observer)?;
    Ok(FinishedUpgrade { dropped: old, counts, indexed, lacking: counts.lacking })
}

fn expect_little_left(store: &dyn Ledger, record: &UpgradeRecord, anyway: bool) -> Result<()> {
    if anyway { Ok(()) } else { Leftovers::read(store, record)?.expect_may_be_left(store, record) }
}

/// Adapts items that have only an old vector, which is about to be lost. They were written since the finish
/// caught up for its record, or since an earlier finish died. It goes on until a pass finds nothing, so that
/// no more is written unseen than in the time of that pass.
fn catch_up_before_drop(
    store: &dyn Ledger,
    setup: &UpgradeSetup<'_>,
    record: &UpgradeRecord,
    observer: &dyn Observer,
) -> Result<()> {
    if find_space(store, &record.old.name)?.is_none() {
        // A finish before this one died right after its drop.
        return Ok(());
    }
    observer.reach(Place::BeforeDrop)?;
    expect_adapter(store, record, setup)?;
    for _ in 0..LAST_PASSES {
        if catch_up(store, setup, record, observer)? == 0 {
            break;
        }
    }
    Ok(())
}

/// Adapts items that lack a vector in the new space, for the plan of a record. Returns how many: 0 where
/// nothing is mapped.
fn catch_up(
    store: &dyn Ledger,
    setup: &UpgradeSetup<'_>,
    record: &UpgradeRecord,
    observer: &dyn Observer,
) -> Result<u64> {
    let Some(filler) = setup.filler(setup.order)? else { return Ok(0) };
    filler
        .catch_up(store, record.epoch.unwrap_or_default(), observer)
        .map_err(|error| Recorded::explain(store, record, error))
}
