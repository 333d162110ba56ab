//! Stage of an upgrade as searches meet it: which space serves, and which models' queries a search takes. The
//! functions of `rehang-postgres` (`serving.rs`) say it again in SQL.

use rehang_core::{Bridge, Error, Fusion, Result};
use rehang_store::Ledger;

use crate::record::{BridgeInUse, Phase, Recorded, Serving, UpgradeRecord};

/// State of a gallery that says where searches go, at one moment.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ServingState {
    pub(crate) serving: String,
    pub(crate) record: Option<UpgradeRecord>,
}

/// Queries that a search takes of those at hand, and how it searches with them.
pub(crate) enum Taken<'a, Q> {
    /// Queries of the model that serves, for its space alone.
    Serving(Q),
    /// Queries that a bridge brings to the old space, which serves: the new model's, and the old model's
    /// where they are at hand.
    Bridged { bridge: &'a Bridge, old: Option<Q>, new: Q },
    /// Queries of both models, for the two spaces of an upgrade together.
    Fused { record: &'a UpgradeRecord, fusion: &'a Fusion, old: Q, new: Q },
}

impl<Q> Taken<'_, Q> {
    /// Lists the queries by model, the old model's first.
    pub(crate) fn into_queries(self) -> Vec<Q> {
        match self {
            Self::Serving(queries) => vec![queries],
            Self::Bridged { old, new, .. } => old.into_iter().chain([new]).collect(),
            Self::Fused { old, new, .. } => vec![old, new],
        }
    }
}

impl ServingState {
    /// Reads the space that serves and the record of the upgrade, both as they are at one moment.
    pub(crate) fn read(store: &dyn Ledger) -> Result<Self> {
        let (serving, recorded) = Recorded::read_with_serving(store)?;
        let serving = serving.ok_or_else(|| Error::not_found("space", "serving", store.name()))?;
        Ok(Self { serving, record: recorded.map(|recorded| recorded.record) })
    }

    /// Takes the queries of a search. `queries_of` gives those of a space's model, as far as they are at
    /// hand: it is asked for each space once, for the one that serves first. `bridge` is the one in use;
    /// where queries for it are not at hand, the search goes without it.
    ///
    /// # Errors
    ///
    /// Missing input where the queries of a model that the search cannot do without are not at hand; what
    /// `queries_of` says.
    pub(crate) fn take<'a, Q>(
        &'a self,
        bridge: Option<&'a Bridge>,
        mut queries_of: impl FnMut(&'a str) -> Result<Option<Q>>,
    ) -> Result<Taken<'a, Q>> {
        let missing = |space: &str| {
            let needed = format!("queries embedded by {space:?}");
            Error::missing(needed, "a search of this gallery as it serves now")
        };
        let by_serving = queries_of(&self.serving)?;
        if let Some(bridge) = bridge
            && (by_serving.is_some() || !bridge.needs_old())
            && let Some(new) = queries_of(&bridge.new.name)?
        {
            return Ok(Taken::Bridged { bridge, old: by_serving, new });
        }
        let by_serving = by_serving.ok_or_else(|| missing(&self.serving))?;
        let Some((record, fusion)) = self.fused() else { return Ok(Taken::Serving(by_serving)) };
        match queries_of(&record.old.name)? {
            Some(old) => Ok(Taken::Fused { record, fusion, old, new: by_serving }),
            None if self.spared().is_some() => Ok(Taken::Serving(by_serving)),
            None => Err(missing(&record.old.name)),
        }
    }

    /// Lists the spaces whose models' queries a search takes where all are at hand, the old one first. The
    /// old model's are left out where a bridge does without.
    pub(crate) fn asked<'a>(&'a self, bridge: Option<&'a Bridge>) -> Result<Vec<&'a str>> {
        let does_without_old = bridge.is_some_and(|bridge| !bridge.needs_old());
        let queries_of = |space: &'a str| Ok((space != self.serving || !does_without_old).then_some(space));
        Ok(self.take(bridge, queries_of)?.into_queries())
    }

    /// Whether a search is the same one in both states: a pause, or another native item,
    /// changes nothing for it.
    pub(crate) fn is_searched_as(&self, other: &Self) -> bool {
        let looked_at = |state: &Self| {
            let upgrade = state
                .record
                .as_ref()
                .map(|record| (record.old.clone(), record.new.clone(), record.handicap_of(&state.serving)));
            (
                state.serving.clone(),
                upgrade,
                state.fused().map(|(record, fusion)| (record.serving, fusion.clone())),
                state.bridged().cloned(),
            )
        };
        looked_at(self) == looked_at(other)
    }

    /// The bridge over which queries go to the space that serves.
    pub(crate) fn bridged(&self) -> Option<&BridgeInUse> {
        let record = self.record.as_ref().filter(|record| record.old.name == self.serving)?;
        record.bridge.as_ref()
    }

    /// The upgrade into the space that serves.
    pub(crate) fn upgraded(&self) -> Option<&UpgradeRecord> {
        self.record.as_ref().filter(|record| record.new.name == self.serving)
    }

    /// The upgrade whose two spaces are both searched, and how their distances are fused.
    pub(crate) fn fused(&self) -> Option<(&UpgradeRecord, &Fusion)> {
        let record = self.upgraded().filter(|record| record.phase != Phase::Finished)?;
        Some((record, record.fusion.as_ref().filter(|_| record.serving != Serving::Mixed)?))
    }

    /// Names the space whose model's queries a fused search takes where they are at hand, and does without
    /// where they are not.
    pub(crate) fn spared(&self) -> Option<&str> {
        let (record, _) = self.fused()?;
        (record.serving == Serving::Either).then_some(record.old.name.as_str())
    }
}
