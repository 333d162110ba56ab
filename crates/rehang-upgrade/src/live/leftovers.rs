//! Counts items that a finish leaves without a native vector, and says so before the old space is dropped.

use rehang_core::finding::{Finding, FindingCode};
use rehang_core::{Error, Remedy, Result};
use rehang_store::{Ledger, find_space};
use serde::Serialize;

use crate::record::UpgradeRecord;
use crate::setup::upgrade_of;

/// Items that an upgrade has not made native.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Leftovers {
    /// Items with a source, adapted or without a vector: a run embeds them, before the finish and after it.
    pub with_source: u64,
    /// Items that the encoder refused; most of them have a source and are counted in `with_source` too.
    pub failed: u64,
    /// Items without a source, which never become native.
    pub without_source: u64,
    /// Items without a vector of the new model, with a source or without: no search finds them.
    pub lacking: u64,
    /// Items that lack a vector of the new model and have an old one, from which nothing could be made: one
    /// without a direction, for example. A finish drops these old vectors.
    pub only_old: u64,
}

impl Leftovers {
    /// Counts the items that an upgrade has not made native at this moment.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub fn read(store: &dyn Ledger, record: &UpgradeRecord) -> Result<Self> {
        let (old, new) = (&record.old.name, &record.new.name);
        let counts = store.counts(new)?;
        let has_old = find_space(store, old)?.is_some();
        Ok(Self {
            with_source: counts.to_embed(),
            failed: counts.failed,
            without_source: counts.without_source,
            lacking: counts.lacking,
            only_old: if has_old { store.count_lag(new, old)? } else { 0 },
        })
    }

    /// Whether a finish takes nothing from anybody: the items that are left have no source, so that no run
    /// would make them native, and no vector that the drop would take.
    pub fn may_be_left(&self) -> bool {
        self.with_source == 0 && self.only_old == 0
    }

    /// Returns what a person should know before the old space is dropped.
    pub fn findings(&self, record: &UpgradeRecord) -> Vec<Finding> {
        let (old, new) = (&record.old.name, &record.new.name);
        let mut findings = Vec::new();
        if self.with_source > 0 {
            let refused = match self.failed {
                0 => String::new(),
                failed => format!(" (the encoder refused {failed})"),
            };
            let message = format!(
                "{} items with a source are not native yet{refused}: a run embeds them, before the finish or after it.",
                self.with_source
            );
            findings.push(Finding::warning(FindingCode::LeftWithSource, message));
        }
        if self.lacking > 0 {
            let dropped = match self.only_old {
                0 => String::new(),
                items => format!(" The finish takes the old vectors of {items} of them out of the gallery."),
            };
            let message =
                format!("{} items have no vector of {new:?}: no search finds them.{dropped}", self.lacking);
            findings.push(Finding::warning(FindingCode::LeftWithoutVector, message));
        }
        if self.without_source > 0 {
            let message = format!("{} items have no source: they never become native.", self.without_source);
            findings.push(Finding::note(FindingCode::LeftWithoutSource, message));
        }
        let message = format!(
            "After the finish there is no way back. What is written with a vector of {old:?} alone from then on is found by no search until a \
             run embeds its source."
        );
        findings.push(Finding::note(FindingCode::NoWayBack, message).next(Remedy::Follow));
        findings
    }

    /// Fails where a finish would leave items that a run makes native, or drop vectors that only the old
    /// space has.
    ///
    /// # Errors
    ///
    /// A conflict that counts both kinds of items.
    pub(crate) fn expect_may_be_left(&self, store: &dyn Ledger, record: &UpgradeRecord) -> Result<()> {
        if self.may_be_left() {
            return Ok(());
        }
        let messages: Vec<String> = self.findings(record).into_iter().map(|finding| finding.seen).collect();
        Err(Error::conflict(
            format!("{} is not at its end", upgrade_of(store)),
            messages.join(" ").trim_end_matches('.'),
        )
        .advise(Remedy::EmbedBeforeFinish))
    }
}
