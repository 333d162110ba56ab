//! Record of an upgrade: a small document in the store that says what is being replaced by what, and how far
//! it is.
//!
//! The record never says which item is done: an item's provenance and revision say that. So a record cannot
//! disagree with the gallery, and losing the process at any instruction loses nothing.

use rehang_core::order::Policy;
use rehang_core::{Error, Fusion, Remedy, Result, Space};
use rehang_store::{Epoch, Ledger, Revision, expect_space};
use serde::{Deserialize, Serialize};

use crate::live::backfill::Request;

/// Name of the record's document in the store.
const DOCUMENT: &str = "upgrade";
/// Version of the record's form; an older rehang refuses a newer one.
const FORMAT: u32 = 6;
/// Oldest form that is read: one that has neither a bridge nor a fusion.
const FORMAT_MIN: u32 = 5;

/// Phase of an upgrade: how far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Pairs are being drawn: a random sample is native in the new space, and no adapter is known yet.
    Sampling,
    /// The new space is being filled with adapted vectors (or filled again, with another adapter or order).
    Filling,
    /// Every item that had an old vector has one in the new space, or nothing is to be mapped. The upgrade
    /// can be switched and backfilled.
    Filled,
    /// Searches are back on the old space. The new one is kept, with everything that was paid for.
    RolledBack,
    /// Upgrade that was rolled back before its space was filled: `start` goes on with it, or another upgrade
    /// takes its place.
    Abandoned,
    /// The old space is gone.
    Finished,
}

impl Phase {
    /// Returns the phase's name in messages and documents.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sampling => "sampling",
            Self::Filling => "filling",
            Self::Filled => "filled",
            Self::RolledBack => "rolled-back",
            Self::Abandoned => "abandoned",
            Self::Finished => "finished",
        }
    }
}

/// Order in which items are re-embedded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderSettings {
    /// Policy that makes the order.
    pub policy: Policy,
    /// Seed of the policy.
    pub seed: u64,
}

impl Default for OrderSettings {
    fn default() -> Self {
        Self { policy: Policy::Coverage, seed: 0 }
    }
}

/// Vectors and queries that searches after the switch use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Serving {
    /// Searches the new space alone: native and adapted vectors, by one query.
    #[default]
    Mixed,
    /// Native vectors by the new query, all others by both models together ([`UpgradeRecord::fusion`]). A
    /// search needs the queries of both.
    Fused,
    /// Searches that have the queries of both models as [`Serving::Fused`], and those that have the new model's
    /// alone as [`Serving::Mixed`].
    Either,
}

/// Record of an upgrade, as it lies in the store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct UpgradeRecord {
    /// Version of the record's form.
    pub format: u32,
    /// Space that is replaced.
    pub old: Space,
    /// Space that replaces the old one.
    pub new: Space,
    /// Fingerprint of the adapter whose vectors fill the new space; empty while pairs are drawn, and in a
    /// [plain](UpgradeRecord::is_plain) upgrade, which has none.
    pub adapter: String,
    /// Order in which items are re-embedded.
    pub order: OrderSettings,
    /// Phase that the upgrade is in.
    pub phase: Phase,
    /// Request to a running backfill.
    pub request: Request,
    /// Vectors and queries that searches after the switch use.
    pub serving: Serving,
    /// The newest revision when it began: items with a later one came or changed during the upgrade, and go
    /// to the front of the queue. A hint for the queue and no more: nothing is wrong where revisions do not
    /// come in the order of time.
    pub since: Option<Revision>,
    /// Whether the old space of a finished upgrade is gone: it is dropped once, whatever takes its name
    /// later.
    pub dropped: bool,
    /// Handicap that searches add to the distance of adapted vectors:
    /// [`rehang_core::adapter::Adapter::handicap`] of the adapter that fills the new space.
    pub handicap: f64,
    /// Handicap of the old space, where an earlier upgrade left adapted vectors in it.
    pub old_handicap: f64,
    /// Whether adapted vectors that another adapter made, or that have their place by another order, may be
    /// in the new space.
    /// It stays so until all of them were made again.
    pub adapted_before: bool,
    /// Whether a [refit](crate::refit()) is at work: adapted vectors of the map before may be in the new
    /// space while those of this map are made, page by page. The space stays filled meanwhile.
    #[serde(default)]
    pub refitting: bool,
    /// The epoch of the new space in which this plan fills it; every write of an adapted vector for it
    /// carries it. `None` until the space is there.
    pub epoch: Option<Epoch>,
    /// How fused searches judge what is not native: [`rehang_core::Adapter::fusion`] of the adapter that
    /// fills the new space. `None` where no search is fused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fusion: Option<Fusion>,
    /// Bridge over which queries go to the old space while that serves; `None` where they go there as they
    /// are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridge: Option<BridgeInUse>,
}

/// Bridge that searches of the old space use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BridgeInUse {
    /// Fingerprint of the bridge, which lies among the gallery's files.
    pub fingerprint: String,
    /// Share of a query that is the new model's ([`Bridge::share`](rehang_core::Bridge::share)).
    pub share: f64,
}

impl UpgradeRecord {
    /// Reads the record of a gallery's upgrade, for a caller that does not change it; `None` where there
    /// never was an upgrade.
    ///
    /// # Errors
    ///
    /// As [`Recorded::read`].
    pub(crate) fn read(store: &dyn Ledger) -> Result<Option<Self>> {
        Ok(Recorded::read(store)?.map(|recorded| recorded.record))
    }

    /// Makes the record of an upgrade that begins.
    pub fn new(old: Space, new: Space, adapter: String, order: OrderSettings) -> Self {
        Self {
            format: FORMAT,
            old,
            new,
            adapter,
            order,
            phase: Phase::Filling,
            request: Request::Run,
            serving: Serving::Mixed,
            since: None,
            dropped: false,
            handicap: 0.0,
            old_handicap: 0.0,
            adapted_before: false,
            refitting: false,
            epoch: None,
            fusion: None,
            bridge: None,
        }
    }

    /// Returns what searches of a space add to the distance of its adapted vectors, as far as this upgrade
    /// knows.
    pub fn handicap_of(&self, space: &str) -> f64 {
        if self.new.name == space {
            self.handicap
        } else if self.old.name == space && !self.dropped {
            self.old_handicap
        } else {
            0.0
        }
    }

    /// Whether the gallery is between two models because of this upgrade.
    pub fn is_live(&self) -> bool {
        matches!(self.phase, Phase::Filling | Phase::Filled)
    }

    /// Whether the upgrade maps nothing: the new space holds native vectors alone, and an item has none there
    /// until it is embedded. False while pairs are drawn, since it is not known yet.
    pub fn is_plain(&self) -> bool {
        self.phase != Phase::Sampling && self.adapter.is_empty()
    }

    /// Whether the upgrade goes between two spaces, given by their names.
    pub(crate) fn is_between(&self, old: &str, new: &str) -> bool {
        (self.old.name.as_str(), self.new.name.as_str()) == (old, new)
    }

    /// Whether searches go to the new space, whatever the phase says: a rollback may have died before it took
    /// them back.
    pub(crate) fn is_served(&self, store: &dyn Ledger) -> Result<bool> {
        Ok(store.serving()?.as_deref() == Some(self.new.name.as_str()))
    }

    /// Whether an item that is written with an old vector needs an adapted one with it: while the upgrade is
    /// live; after a rollback that has not taken searches back; and until a finish has dropped the old space,
    /// with all that is written there.
    pub(crate) fn adapts_writes(&self, store: &dyn Ledger) -> Result<bool> {
        if self.is_plain() {
            return Ok(false);
        }
        match self.phase {
            Phase::Filling | Phase::Filled => Ok(true),
            Phase::Finished => Ok(!self.dropped),
            Phase::Sampling | Phase::RolledBack | Phase::Abandoned => self.is_served(store),
        }
    }
}

/// Record with the version under which it lies in the store.
#[derive(Debug, Clone, PartialEq)]
pub struct Recorded {
    /// Record as it was read or written last.
    pub record: UpgradeRecord,
    version: u64,
}

impl Recorded {
    /// Reads the upgrade of a gallery; `None` where there never was one.
    ///
    /// # Errors
    ///
    /// Corrupt where the document is not a record, or was written by a newer rehang.
    pub fn read(store: &dyn Ledger) -> Result<Option<Self>> {
        Self::parse(store, store.document(DOCUMENT)?)
    }

    /// Reads the serving space and the upgrade of a gallery, both as they are at one moment.
    ///
    /// # Errors
    ///
    /// As [`Recorded::read`].
    pub(crate) fn read_with_serving(store: &dyn Ledger) -> Result<(Option<String>, Option<Self>)> {
        let (serving, document) = store.serving_and_document(DOCUMENT)?;
        Ok((serving, Self::parse(store, document)?))
    }

    fn parse(store: &dyn Ledger, document: Option<(u64, String)>) -> Result<Option<Self>> {
        let Some((version, text)) = document else { return Ok(None) };
        let what = || format!("the upgrade record of {}", store.name());
        let head: Head = serde_json::from_str(&text).map_err(|error| Error::corrupt(what(), error))?;
        if !(FORMAT_MIN..=FORMAT).contains(&head.format) {
            let way_out = if head.format > FORMAT {
                "use a newer rehang"
            } else {
                "it is older than the first release; finish it with the rehang that began it"
            };
            let detail = format!(
                "it has format {}, this rehang knows {FORMAT_MIN} to {FORMAT}; {way_out}",
                head.format
            );
            return Err(Error::corrupt(what(), detail));
        }
        let mut record: UpgradeRecord =
            serde_json::from_str(&text).map_err(|error| Error::corrupt(what(), error))?;
        // A change of it is written in the form of now.
        record.format = FORMAT;
        Ok(Some(Self { record, version }))
    }

    /// Reads the upgrade of a gallery that has to have one.
    ///
    /// # Errors
    ///
    /// Not found where there is none.
    pub fn expect(store: &dyn Ledger) -> Result<Self> {
        Self::read(store)?.ok_or_else(|| Self::missing_upgrade(store))
    }

    /// Returns the error for a gallery that has no upgrade.
    pub(crate) fn missing_upgrade(store: &dyn Ledger) -> Error {
        Error::not_found("upgrade", "started", store.name()).advise(Remedy::BeginUpgrade)
    }

    /// Puts the first record of an upgrade into a store, or replaces the one that was read.
    ///
    /// # Errors
    ///
    /// A conflict where another process changed it meanwhile.
    pub(crate) fn create(store: &dyn Ledger, replaces: Option<&Self>, record: UpgradeRecord) -> Result<Self> {
        let text = to_text(&record)?;
        let version = store.set_document(DOCUMENT, replaces.map(|recorded| recorded.version), &text)?;
        Ok(Self { record, version })
    }

    /// Reads the record, which must still be planned as it was for a process that fills the new space:
    /// between the same spaces, with the same adapter and order, in the same epoch, neither rolled back nor
    /// finished.
    ///
    /// # Errors
    ///
    /// Not found where there is no upgrade; a conflict that says what happened meanwhile, and what to do.
    pub(crate) fn expect_planned(store: &dyn Ledger, plan: &UpgradeRecord) -> Result<Self> {
        let recorded = Self::expect(store)?;
        let record = &recorded.record;
        let same_epoch = plan.epoch.is_none() || record.epoch == plan.epoch;
        let same_plan = (&record.adapter, record.order) == (&plan.adapter, plan.order) && same_epoch;
        let (happened, next) = match record.phase {
            _ if !record.is_between(&plan.old.name, &plan.new.name) => {
                ("another upgrade took its place meanwhile", Remedy::SettleOtherUpgrade)
            }
            Phase::RolledBack | Phase::Abandoned => {
                ("it was rolled back meanwhile; what is adapted is kept", Remedy::ContinueFilling)
            }
            Phase::Finished => ("it was finished meanwhile", Remedy::BeginUpgrade),
            Phase::Sampling | Phase::Filling | Phase::Filled if !same_plan => {
                ("it was planned anew meanwhile, with another adapter or order", Remedy::AwaitNewPlan)
            }
            Phase::Sampling | Phase::Filling | Phase::Filled => return Ok(recorded),
        };
        Err(Error::superseded(format!("filling {:?} of {}", plan.new.name, store.name()), happened)
            .advise(next))
    }

    /// Replaces the error of a writer of adapted vectors whose plan is no longer the upgrade's. The new error
    /// says what happened meanwhile, and what to do. Any other error stays.
    pub(crate) fn explain(store: &dyn Ledger, plan: &UpgradeRecord, error: Error) -> Error {
        if !error.is_superseded() {
            return error;
        }
        Self::expect_planned(store, plan).err().unwrap_or(error)
    }

    /// Changes the record, if no other process has changed it since it was read. Where nothing would differ,
    /// the store is not asked.
    ///
    /// # Errors
    ///
    /// A conflict where another process has changed the record.
    pub fn change(&mut self, store: &dyn Ledger, change: impl FnOnce(&mut UpgradeRecord)) -> Result<()> {
        let mut record = self.record.clone();
        change(&mut record);
        if record == self.record {
            return Ok(());
        }
        self.write(store, record)
    }

    /// Replaces the record, if no other process has changed it since it was read. Replacing a record by an
    /// equal one counts as a change: a process that read the earlier one and is about to change it fails.
    ///
    /// # Errors
    ///
    /// A conflict where another process has changed the record.
    pub(crate) fn write(&mut self, store: &dyn Ledger, record: UpgradeRecord) -> Result<()> {
        *self = Self::create(store, Some(self), record)?;
        Ok(())
    }

    /// Puts a record into a store like [`Recorded::create`], and begins another epoch of the new space in the
    /// same step. From then on, whatever was begun for an earlier plan is refused. The space has to be there.
    ///
    /// # Errors
    ///
    /// As [`Recorded::create`]; not found where there is no new space.
    pub(crate) fn begin(
        store: &dyn Ledger,
        replaces: Option<&Self>,
        mut record: UpgradeRecord,
    ) -> Result<Self> {
        let new = &record.new.name;
        let from = expect_space(store, new)?.epoch;
        record.epoch = Some(from.next());
        let expected = replaces.map(|recorded| recorded.version);
        let version = store.advance(&record.new.name, from, DOCUMENT, expected, &to_text(&record)?)?;
        Ok(Self { record, version })
    }
}

/// Part that every form of the record has.
#[derive(Deserialize)]
struct Head {
    format: u32,
}

fn to_text(record: &UpgradeRecord) -> Result<String> {
    serde_json::to_string(record).map_err(|error| Error::corrupt("the upgrade record", error))
}

#[cfg(test)]
mod tests {
    use rehang_core::Distance;
    use rehang_store_tests::MemoryStore;

    use super::*;

    #[test]
    fn a_record_of_a_form_that_is_not_known_is_refused_with_a_way_out() {
        let store = MemoryStore::new();
        let space = |name: &str| Space::new(name, 2, Distance::Cosine, false);
        let record = UpgradeRecord::new(space("old"), space("new"), "abc".into(), OrderSettings::default());
        let text_of_record = to_text(&record).unwrap();
        assert!(text_of_record.contains("\"format\":6"), "{text_of_record}");
        let mut version = None;
        for (format, says) in
            [(4, Some("finish it with the rehang")), (5, None), (6, None), (7, Some("use a newer rehang"))]
        {
            let text = text_of_record.replace("\"format\":6", &format!("\"format\":{format}"));
            version = Some(store.set_document(DOCUMENT, version, &text).unwrap());
            match (Recorded::read(&store), says) {
                (Ok(read), None) => assert_eq!(read.unwrap().record, record),
                (Err(error), Some(says)) => assert!(error.to_string().contains(says), "{error}"),
                (read, _) => panic!("format {format}: {read:?}"),
            }
        }
    }
}
