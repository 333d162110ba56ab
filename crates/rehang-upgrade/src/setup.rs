//! Setup of an upgrade, and the checks that verbs share: whether gallery, adapter, configuration and record
//! speak of one upgrade.

use rehang_core::adapter::Adapter;
use rehang_core::finding::Finding;
use rehang_core::{Error, ErrorKind, Provenance, Remedy, Result, Space};
use rehang_store::{Ledger, expect_space, find_space};
use serde::Serializer;

use crate::learn::drift;
use crate::live::fill::Filler;
use crate::record::{OrderSettings, Phase, Recorded, UpgradeRecord};

/// Parts of an upgrade: two spaces, an adapter and an order.
#[derive(Debug, Clone, Copy)]
pub struct UpgradeSetup<'a> {
    /// Space that is replaced; it has to be in the gallery.
    pub old: &'a Space,
    /// Space that replaces the old one; made by [`start`](crate::start).
    pub new: &'a Space,
    /// Adapter between the two; `None` for a [plain](UpgradeRecord::is_plain) upgrade, which embeds
    /// everything and maps nothing.
    pub adapter: Option<&'a Adapter>,
    /// Order in which items are re-embedded.
    pub order: OrderSettings,
}

impl UpgradeSetup<'_> {
    /// Fails where gallery, adapter and configuration do not speak of the same spaces; returns findings on
    /// what looks doubtful.
    pub(crate) fn check(&self, store: &dyn Ledger) -> Result<Vec<Finding>> {
        let Some(adapter) = self.adapter else {
            expect_spaces(store, self.old, &self.outputs())?;
            if find_space(store, &self.new.name)?.is_some() {
                expect_nothing_adapted(store, &self.new.name)?;
            }
            return Ok(Vec::new());
        };
        // The first check tells where old and new are swapped, which widths often give away.
        adapter.expect_input_width(self.old.dimension)?;
        expect_of_adapter(&adapter.old, self.old, "old")?;
        expect_of_adapter(&adapter.new, self.new, "new")?;
        expect_spaces(store, self.old, &self.outputs())?;
        Ok(drift::input_drift_finding(store, adapter, &self.old.name)?.into_iter().collect())
    }

    /// Returns the adapter's fingerprint, as the record of the upgrade has it: empty without an adapter.
    pub(crate) fn fingerprint(&self) -> Result<String> {
        self.adapter.map_or_else(|| Ok(String::new()), rehang_files::adapter_file::fingerprint)
    }

    /// Makes the filler that adapts old vectors, in an order; `None` without an adapter.
    pub(crate) fn filler(&self, order: OrderSettings) -> Result<Option<Filler>> {
        self.adapter.map(|adapter| Filler::new(adapter, &self.old.name, &self.new.name, order)).transpose()
    }

    /// Returns the space of the adapter's outputs: searched as the configuration says, normalised as the
    /// adapter makes them. Without an adapter, the space that the encoder fills.
    fn outputs(&self) -> Space {
        let Some(adapter) = self.adapter else { return self.new.clone() };
        Space { name: self.new.name.clone(), distance: self.new.distance, ..adapter.output_space() }
    }

    /// Returns the new space: the one that is there, or else one for the adapter's outputs. Where pairs were
    /// drawn, nothing was known of lengths when the space was made, and it holds raw vectors for good.
    pub(crate) fn new_space(&self, store: &dyn Ledger) -> Result<Space> {
        Ok(find_space(store, &self.new.name)?.map_or_else(|| self.outputs(), |stored| stored.space))
    }
}

/// Fails where a space has adapted vectors: a plain upgrade would know neither their map nor their handicap.
fn expect_nothing_adapted(store: &dyn Ledger, new: &str) -> Result<()> {
    let adapted = store.counts(new)?.adapted;
    if adapted == 0 {
        return Ok(());
    }
    let detail = format!(
        "{adapted} items of {new:?} have adapted vectors already: a backfill re-embeds all of them by the map as well"
    );
    Err(Error::conflict(format!("a plain upgrade of {}", store.name()), detail)
        .advise(Remedy::ContinueFilling))
}

/// Fails where a gallery does not have the space that is replaced, or has another one of the name of the
/// space that replaces it.
pub(crate) fn expect_spaces(store: &dyn Ledger, old: &Space, new: &Space) -> Result<()> {
    if old.name == new.name {
        return Err(Error::option("[new] name", &new.name, "a name that the old space does not have"));
    }
    if let Some(Recorded { record, .. }) = Recorded::read(store)?
        && record.phase == Phase::Finished
        && record.is_between(&old.name, &new.name)
        && find_space(store, &old.name)?.is_none()
    {
        return Err(finished_error(store, &record));
    }
    let old_space = expect_space(store, &old.name)?;
    if (old_space.space.dimension, old_space.space.distance) != (old.dimension, old.distance) {
        return Err(mismatch(&old_space.space, old)
            .context(format!("[old] of the configuration against {}", store.name())));
    }
    // A space of that name may be there: of this upgrade, or of another application. A space of raw vectors
    // holds normalised ones too.
    let Some(new_space) = find_space(store, &new.name)? else { return Ok(()) };
    let as_raw = Space { normalised: false, ..new.clone() };
    if (new_space.space != *new && new_space.space != as_raw) || new_space.written_as != Provenance::Native {
        return Err(mismatch(new, &new_space.space).context(format!(
            "[new] name {:?} is taken in {} by a space of its own",
            new.name,
            store.name()
        )));
    }
    Ok(())
}

/// Fails where the upgrade of a gallery is not the one of the setup: it is between other spaces, or filled by
/// another adapter. A process that is about to write for an upgrade asks this first.
///
/// # Errors
///
/// Not found where there is no upgrade; otherwise a conflict or a mismatch that says what differs.
pub fn expect_same(store: &dyn Ledger, setup: &UpgradeSetup<'_>) -> Result<()> {
    expect_adapter(store, &expect_upgrade(store, setup)?.record, setup)
}

/// Fails where a space of the adapter is not the one of the upgrade. Adapters that were fitted without names
/// carry the role as a name, which matches every model. The distance is the gallery's own business: an
/// adapter maps vectors, and how they are searched does not change them.
pub(crate) fn expect_of_adapter(space: &Space, wanted: &Space, role: &str) -> Result<()> {
    let other_model = space.name != wanted.name && space.name != role;
    if !other_model && space.dimension == wanted.dimension {
        return Ok(());
    }
    Err(mismatch(wanted, space).context(format!("the adapter's {role} space")))
}

pub(crate) fn mismatch(expected: &Space, received: &Space) -> Error {
    ErrorKind::SpaceMismatch { expected: expected.to_string(), received: received.to_string() }.into()
}

/// Whether a record is of the upgrade of a setup, and not of one that has come to its end.
pub(crate) fn is_ongoing(record: &UpgradeRecord, setup: &UpgradeSetup<'_>) -> bool {
    record.phase != Phase::Finished && record.is_between(&setup.old.name, &setup.new.name)
}

/// Whether a `start` continues the upgrade of a record, instead of beginning one. It begins one where pairs
/// were drawn, since nothing is planned yet.
pub(crate) fn continues_upgrade(record: &UpgradeRecord, setup: &UpgradeSetup<'_>) -> bool {
    record.phase != Phase::Sampling && is_ongoing(record, setup)
}

/// Whether the new space may hold adapted vectors that another adapter made, or that have their place by
/// another order, so that a fill has to make all again.
pub(crate) fn may_hold_others(recorded: Option<&Recorded>, setup: &UpgradeSetup<'_>, has_new: bool) -> bool {
    match recorded.map(|recorded| &recorded.record) {
        Some(record) if continues_upgrade(record, setup) => {
            let has_others = record.adapted_before || record.refitting;
            !has_same_plan(record, setup) || (has_others && !is_filled(record, setup))
        }
        // A space that is there before the record of its upgrade belongs to the application.
        _ => has_new,
    }
}

/// Whether every adapted vector of the new space is known to be made by this adapter, and at its place in
/// this order.
pub(crate) fn is_filled(record: &UpgradeRecord, setup: &UpgradeSetup<'_>) -> bool {
    matches!(record.phase, Phase::Filled | Phase::RolledBack)
        && !record.refitting
        && record.is_between(&setup.old.name, &setup.new.name)
        && has_same_plan(record, setup)
}

pub(crate) fn has_same_plan(record: &UpgradeRecord, setup: &UpgradeSetup<'_>) -> bool {
    setup.fingerprint().is_ok_and(|fingerprint| fingerprint == record.adapter) && record.order == setup.order
}

/// Fails where the record of a live upgrade speaks of other spaces than the configuration.
pub(crate) fn expect_no_other(
    store: &dyn Ledger,
    recorded: Option<&Recorded>,
    setup: &UpgradeSetup<'_>,
) -> Result<()> {
    match recorded {
        Some(recorded) if recorded.record.is_live() => {
            expect_between(store, &recorded.record, setup.old, setup.new)
        }
        _ => Ok(()),
    }
}

/// Fails where an upgrade is between other spaces than those of the configuration.
pub(crate) fn expect_between(
    store: &dyn Ledger,
    record: &UpgradeRecord,
    old: &Space,
    new: &Space,
) -> Result<()> {
    let name = store.name();
    if !record.is_between(&old.name, &new.name) {
        let of_record = format!("from {:?} to {:?}", record.old.name, record.new.name);
        let of_setup = format!("from {:?} to {:?}", old.name, new.name);
        return Err(if record.is_live() {
            Error::conflict(
                format!("another upgrade of {name} is under way, {of_record}"),
                format!("the configuration says {of_setup}; finish or roll back the first one before"),
            )
        } else {
            Error::conflict(
                format!("the upgrade of {name} is another one, {of_record} ({})", record.phase.name()),
                format!("the configuration says {of_setup}"),
            )
            .advise(Remedy::BeginUpgrade)
        });
    }
    for (role, recorded, wanted) in [("old", &record.old, old), ("new", &record.new, new)] {
        if (recorded.dimension, recorded.distance) != (wanted.dimension, wanted.distance) {
            return Err(mismatch(recorded, wanted)
                .context(format!("[{role}] of the configuration against the upgrade of {name}")));
        }
    }
    Ok(())
}

/// Reads the upgrade of a gallery, which has to be between the spaces of the configuration.
pub(crate) fn expect_upgrade(store: &dyn Ledger, setup: &UpgradeSetup<'_>) -> Result<Recorded> {
    let recorded = Recorded::expect(store)?;
    expect_between(store, &recorded.record, setup.old, setup.new)?;
    Ok(recorded)
}

/// Fails where an upgrade is filled by another adapter than this one: vectors of two adapters in one space
/// would be ordered by σ² of two kinds, and searched as if they were of one.
pub(crate) fn expect_adapter(
    store: &dyn Ledger,
    record: &UpgradeRecord,
    setup: &UpgradeSetup<'_>,
) -> Result<()> {
    expect_filled_by(store, record, &setup.fingerprint()?)
}

/// Fails like [`expect_adapter`], given the adapter's fingerprint.
pub(crate) fn expect_filled_by(store: &dyn Ledger, record: &UpgradeRecord, adapter: &str) -> Result<()> {
    if record.phase == Phase::Sampling {
        return Err(
            Error::wrong_phase(upgrade_of(store), record.phase.name()).advise(Remedy::ContinueFilling)
        );
    }
    if adapter == record.adapter {
        return Ok(());
    }
    if adapter.is_empty() || record.is_plain() {
        let (kind, adapter_given) =
            if record.is_plain() { ("plain", "an adapter") } else { ("by a map", "no adapter") };
        return Err(Error::conflict(
            format!("the upgrade of {} is {kind}", store.name()),
            format!("{adapter_given} is given for it"),
        )
        .advise(Remedy::PlanAnew));
    }
    Err(Error::conflict(
        format!("the upgrade of {} is filled by another adapter than the configuration's", store.name()),
        "vectors of two adapters in one space cannot be told apart",
    )
    .advise(Remedy::PlanAnew))
}

/// Returns the name that errors give to the upgrade of a gallery.
pub(crate) fn upgrade_of(store: &dyn Ledger) -> String {
    format!("the upgrade of {}", store.name())
}

pub(crate) fn finished_error(store: &dyn Ledger, record: &UpgradeRecord) -> Error {
    Error::wrong_phase(
        upgrade_of(store),
        format!(
            "finished: its old space is gone; to change the model again, name {:?} as [old] and another space as [new] in the configuration",
            record.new.name
        ),
    )
}

/// Serialises findings for the JSON of verbs, as the sentences of each.
pub(crate) fn as_sentences<S: Serializer>(
    findings: &[Finding],
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_seq(findings.iter().map(Finding::to_string))
}
