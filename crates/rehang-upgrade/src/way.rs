//! Chooses the way of an upgrade: everything embedded, or most of it mapped first; and says which way is
//! shorter.

use rehang_core::{Error, Result};
use rehang_fit::Method;
use rehang_store::{Counts, find_space};
use serde::Serialize;

use crate::auto_options::{AutoOptions, SwitchIf, Way};
use crate::learn::fit;
use crate::learn::pairs::{PairsOptions, may_hold_out_of};
use crate::live::estimate::{Basis, CostEstimate, Probed, estimate_of, to_send};
use crate::live::limits::Limits;
use crate::live::sample;
use crate::live::until::Until;
use crate::record::UpgradeRecord;
use crate::upgrade::{PairsFiles, Upgrade};

/// Most seconds of re-embedding everything for which nothing is mapped. In galleries of ten to a hundred
/// thousand items pairs, fit, report and start take two to twenty minutes, so that a map would save next to
/// nothing.
const PLAIN_SECONDS_MAX: f64 = 600.0;
/// Items that are embedded to measure a rate: a run keeps the rate of no fewer than half of them.
pub(crate) const PROBE_ITEMS: usize = 128;
/// Share of all items that a search may miss after the switch of a plain upgrade without a person's word.
const MISSED_MAX: f64 = 0.01;

/// Reason why an upgrade goes its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WayReason {
    /// A person asked for the way, or for something that only this way has.
    Asked,
    /// The upgrade goes this way already.
    Begun,
    /// Everything that can be embedded is native, so nothing is left to map or to forecast.
    Native,
    /// No item has an old vector, so there is nothing to map.
    NothingToMap,
    /// Few items have an old vector: too few to measure what a map would buy.
    FewPairs,
    /// More than one item in a hundred has no source: only a map lets searches find them.
    WithoutSource,
    /// A budget ends before everything is embedded.
    Budget,
    /// Embedding everything takes at most [`Ways::plain_up_to_seconds`].
    Shorter,
    /// Embedding everything takes longer than [`Ways::plain_up_to_seconds`].
    Longer,
    /// How long embedding everything takes is not known.
    Unknown,
}

/// Ways of an upgrade: what embedding everything takes, and the way that follows from it. See
/// [`Upgrade::ways`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ways {
    /// Way that is taken.
    pub way: Way,
    /// Reason why it is taken.
    pub because: WayReason,
    /// Items of the gallery.
    pub items: u64,
    /// Items that are native already.
    pub native: u64,
    /// Items that can be embedded and are not native yet.
    pub to_embed: u64,
    /// Estimate of time and money for the items that can be embedded.
    pub estimate: CostEstimate,
    /// Seconds up to which embedding everything is the shorter way.
    pub plain_up_to_seconds: f64,
}

impl Ways {
    /// Whether embedding some items would say more about the time than limits do.
    pub(crate) fn needs_probe(&self) -> bool {
        let is_measured = matches!(self.estimate.basis, Some(Basis::Probe | Basis::EarlierRun));
        matches!(self.because, WayReason::Shorter | WayReason::Unknown)
            && !is_measured
            && self.estimate.batch_api_items.is_none()
            && self.native < PROBE_ITEMS as u64
    }
}

impl AutoOptions {
    /// Fails where the plain way is asked for together with something that only a map has.
    pub(crate) fn expect_of_its_way(&self, files: &PairsFiles<'_>) -> Result<()> {
        if self.way == Some(Way::Plain) && (self.asks_for_a_map() || files.asks()) {
            let expected = "left out beside options of pairs, a fit, an order or a share to end at: it embeds everything and maps nothing";
            return Err(Error::option("plain", true, expected));
        }
        Ok(())
    }

    /// Whether an option asks for something that only a map has.
    fn asks_for_a_map(&self) -> bool {
        let PairsOptions { items, worth, run } = self.pairs;
        let sample = PairsOptions::default();
        (items, worth) != (sample.items, sample.worth)
            || self.method != Method::Auto
            || self.within.is_some()
            || self.fused
            || self.switch_if != SwitchIf::DoingNothing
            || self.order_for.is_some()
            || run.no_refit
            || run.until.is_some_and(|until| until != Until::All)
    }
}

/// Whether a search of the new space would miss more of the gallery than it may without a person's word.
pub(crate) fn misses_too_many(counts: &Counts) -> bool {
    counts.lacking as f64 > MISSED_MAX * counts.items as f64
}

impl Upgrade {
    /// Returns what embedding everything takes, as far as it is known, and the way that [`Upgrade::auto`]
    /// goes for it. Reads only.
    ///
    /// Everything is embedded where that takes ten minutes at most, where no map could be measured, and where
    /// nothing is left to map. Most of it is mapped first where that was asked for (with
    /// [`AutoOptions::way`], by an option that only a map has, or by an adapter or a forecast in the
    /// configuration), where a budget ends before everything is embedded, and where more than one item in a
    /// hundred has no source.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub fn ways(&self, options: &AutoOptions, files: &PairsFiles<'_>) -> Result<Ways> {
        let record = UpgradeRecord::read(self.store())?;
        self.ways_measured(record.as_ref(), options, files, None)
    }

    /// Returns the ways as [`Upgrade::ways`], by the record of the upgrade and what a probe measured.
    pub(crate) fn ways_measured(
        &self,
        record: Option<&UpgradeRecord>,
        options: &AutoOptions,
        files: &PairsFiles<'_>,
        measured: Option<&Probed>,
    ) -> Result<Ways> {
        let (store, configuration) = (self.store(), self.configuration());
        let (old, new) = (&configuration.old.name, &configuration.new.name);
        let of_old = find_space(store, old)?.map(|_| store.counts(old)).transpose()?.unwrap_or_default();
        let (items, native, embeddable) = if find_space(store, new)?.is_some() {
            let counts = store.counts(new)?;
            (counts.items, counts.native, sample::embeddable(store, new)?)
        } else {
            (of_old.items, 0, of_old.items.saturating_sub(store.count_without_source()?))
        };
        let to_embed = embeddable.saturating_sub(native);
        let with_old = of_old.items.saturating_sub(of_old.lacking);
        let planned = configuration.planned_plain(store)?;
        let rate = options.pairs.run.rate.or(configuration.limits.rate);
        let limits = Limits { rate, ..configuration.limits };
        let service = configuration.service();
        let setup = planned.setup();
        let settled = self.settled_way(record, options, files)?;
        // Sources that differ are counted for the estimate only while the way is open.
        let is_open = options.way.is_none() && settled.is_none_or(|(_, because)| because != WayReason::Begun);
        let sent = if is_open { to_send(store, &setup, to_embed, service)? } else { None };
        let estimate = estimate_of(store, record, &setup, (to_embed, sent), &limits, service, measured)?;
        let missed = items.saturating_sub(embeddable);
        let budget = [options.pairs.run.budget, limits.budget, estimate.budget_items];
        let is_spent_before = budget.into_iter().flatten().any(|budget| budget < to_embed);
        let (way, because) = match settled {
            Some(settled) => settled,
            None if to_embed == 0 => (Way::Plain, WayReason::Native),
            None if with_old == 0 => (Way::Plain, WayReason::NothingToMap),
            None if !may_hold_out_of(with_old) => (Way::Plain, WayReason::FewPairs),
            None if misses_too_many(&Counts { items, lacking: missed, ..Counts::default() }) => {
                (Way::Mapped, WayReason::WithoutSource)
            }
            None if is_spent_before => (Way::Mapped, WayReason::Budget),
            None => match estimate.seconds {
                Some(seconds) if seconds <= PLAIN_SECONDS_MAX => (Way::Plain, WayReason::Shorter),
                Some(_) => (Way::Mapped, WayReason::Longer),
                None => (Way::Mapped, WayReason::Unknown),
            },
        };
        Ok(Ways { way, because, items, native, to_embed, estimate, plain_up_to_seconds: PLAIN_SECONDS_MAX })
    }

    /// Returns the way alone, as [`Upgrade::ways`] says it, by the record of the upgrade: a pass over sources
    /// is made only where it depends on what they take.
    pub(crate) fn way(&self, record: Option<&UpgradeRecord>, options: &AutoOptions) -> Result<Way> {
        let files = PairsFiles::default();
        match self.settled_way(record, options, &files)? {
            Some((way, _)) => Ok(way),
            None => Ok(self.ways_measured(record, options, &files, None)?.way),
        }
    }

    /// Returns the way that was asked for, or that an upgrade under way goes by its record.
    fn settled_way(
        &self,
        record: Option<&UpgradeRecord>,
        options: &AutoOptions,
        files: &PairsFiles<'_>,
    ) -> Result<Option<(Way, WayReason)>> {
        let (store, configuration) = (self.store(), self.configuration());
        let (old, new) = (&configuration.old.name, &configuration.new.name);
        if let Some(way) = options.way {
            return Ok(Some((way, WayReason::Asked)));
        }
        if configuration.is_plain(store, record)? {
            return Ok(Some((Way::Plain, WayReason::Begun)));
        }
        if record.is_some_and(|record| record.is_between(old, new) && !record.adapter.is_empty()) {
            return Ok(Some((Way::Mapped, WayReason::Begun)));
        }
        let is_asked_mapped = configuration.names_adapter()
            || configuration.names_forecast()
            || configuration.limits.until != Until::All
            || files.asks()
            || options.asks_for_a_map()
            || fit::fitted_from(store, record, new)?.is_some();
        Ok(is_asked_mapped.then_some((Way::Mapped, WayReason::Asked)))
    }

    /// Whether everything that can be embedded is native.
    pub(crate) fn is_all_native(&self) -> Result<bool> {
        let (store, new) = (self.store(), &self.configuration().new.name);
        Ok(find_space(store, new)?.is_some() && sample::embeddable(store, new)? <= store.counts(new)?.native)
    }
}
