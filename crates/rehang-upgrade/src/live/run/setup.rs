//! Inputs of a backfill, and the checks before it begins: whether the upgrade can be backfilled now, by this
//! encoder and this adapter.

use rehang_clock::Clock;
use rehang_core::adapter::Adapter;
use rehang_core::{Error, Remedy, Result, Space};
use rehang_encode::Encoder;
use rehang_store::{Queue, Store};

use crate::kept;
use crate::live::backfill::Request;
use crate::live::fill::Filler;
use crate::live::limits::Limits;
use crate::live::sample;
use crate::record::{Phase, UpgradeRecord};
use crate::setup::{UpgradeSetup, expect_adapter, mismatch, upgrade_of};

/// Items of a gallery that a backfill embeds.
#[derive(Debug, Clone, Copy)]
pub enum BackfillScope<'a> {
    /// All items, worst first. With the adapter, items that come or change meanwhile are adapted, so that
    /// searches find them at once. It is `None` in a [plain](UpgradeRecord::is_plain) upgrade, where such
    /// items are embedded first, and once the upgrade is finished, since no old vector is left that it could
    /// adapt.
    Gallery(Option<&'a Adapter>),
    /// Random sample of so many items, native ones among them: the [pairs](crate::PairsDrawn), drawn before
    /// any adapter is known. Nothing is adapted.
    Sample(usize),
}

impl BackfillScope<'_> {
    /// Part of the store's queue that items are claimed from.
    pub(super) fn queue(self) -> Queue {
        match self {
            Self::Gallery(_) => Queue::All,
            Self::Sample(size) => sample::queue(size),
        }
    }

    /// Whether a sample is embedded, and not the gallery.
    pub(super) fn is_sample(self) -> bool {
        matches!(self, Self::Sample(_))
    }
}

/// Inputs of a backfill.
pub struct BackfillSetup<'a> {
    /// Gallery to backfill.
    pub store: &'a dyn Store,
    /// Encoder of the new model.
    pub encoder: &'a dyn Encoder,
    /// Items to embed.
    pub scope: BackfillScope<'a>,
    /// Limits on how far and how fast it goes.
    pub limits: Limits,
    /// Clock that all times are taken from.
    pub clock: &'a dyn Clock,
    /// Name of this worker (host, process and a random part, say), under which its items are leased. No two
    /// at a time may share one: a run that begins gives back what an earlier one of its name still held.
    pub worker: &'a str,
}

impl BackfillSetup<'_> {
    /// Fails where an upgrade cannot be backfilled now, or not by this encoder.
    pub(super) fn expect_may_begin(&self, record: &UpgradeRecord) -> Result<()> {
        self.expect_phase(record)?;
        self.expect_no_pause(record)?;
        self.expect_encoder_of(&record.new)
    }

    /// Fails in a phase in which this scope cannot be backfilled.
    fn expect_phase(&self, record: &UpgradeRecord) -> Result<()> {
        let is_sample = self.scope.is_sample();
        match record.phase {
            Phase::Filled | Phase::RolledBack => Ok(()),
            Phase::Sampling | Phase::Abandoned if is_sample => Ok(()),
            Phase::Finished if !is_sample => Ok(()),
            phase @ Phase::Finished => Err(Error::wrong_phase(upgrade_of(self.store), phase.name())),
            phase @ (Phase::Sampling | Phase::Filling | Phase::Abandoned) => {
                let error = Error::wrong_phase(upgrade_of(self.store), phase.name());
                Err(error.advise(Remedy::ContinueFilling))
            }
        }
    }

    /// Fails where the backfill is paused or stopped. A follower waits until that is over.
    fn expect_no_pause(&self, record: &UpgradeRecord) -> Result<()> {
        let held_up = match record.request {
            _ if self.limits.follow => return Ok(()),
            Request::Run => return Ok(()),
            Request::Pause => "paused",
            Request::Stop => "stopped",
        };
        let backfill = format!("the backfill of {}", self.store.name());
        Err(Error::wrong_phase(backfill, held_up).advise(Remedy::ResumeBackfill))
    }

    /// Fails where the encoder is of another space than the new one.
    fn expect_encoder_of(&self, new: &Space) -> Result<()> {
        let encodes = self.encoder.space();
        let identity = |space: &Space| (space.name.clone(), space.dimension, space.distance);
        if identity(encodes) == identity(new) {
            Ok(())
        } else {
            Err(mismatch(new, encodes).context("the encoder"))
        }
    }

    /// Makes the filler that adapts what comes meanwhile, and has the store keep its adapter; `None` where
    /// nothing is adapted.
    ///
    /// # Errors
    ///
    /// A conflict where another adapter fills the space; those of [`UpgradeSetup::filler`] and of the store.
    pub(super) fn filler(&self, record: &UpgradeRecord) -> Result<Option<Filler>> {
        let BackfillScope::Gallery(adapter) = self.scope else { return Ok(None) };
        if record.phase == Phase::Finished {
            return Ok(None);
        }
        let recorded_setup =
            UpgradeSetup { old: &record.old, new: &record.new, adapter, order: record.order };
        expect_adapter(self.store, record, &recorded_setup)?;
        let filler = recorded_setup.filler(record.order)?;
        if let Some(adapter) = adapter
            && record.phase == Phase::Filled
        {
            kept::keep_adapter(self.store, &record.adapter, adapter)?;
            let epoch = record.epoch.unwrap_or_default();
            self.store.keep_map(&record.new.name, Some((epoch, &record.adapter, adapter)))?;
        }
        Ok(filler)
    }
}
