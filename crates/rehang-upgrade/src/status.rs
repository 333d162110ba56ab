//! Status of an upgrade, and items that stay without a native vector until a person acts.

use rehang_core::Result;
use rehang_core::finding::Finding;
use rehang_encode::Spent;
use rehang_store::{AtWork, Counts, Failure, ItemKey, Ledger, Scan, Select, find_space};
use serde::{Deserialize, Serialize};

use crate::learn::refit::{Refit, findings, refits};
use crate::live::backfill::Request;
use crate::live::health::{SigmaHealth, health_of};
use crate::live::identity::unvouched;
use crate::live::refit_turn::refit_at_work;
use crate::live::spending::spent_by_all;
use crate::live::turn::{Follower, follower};
use crate::live::until::native_share;
use crate::observe::RefitUnderWay;
use crate::record::{BridgeInUse, OrderSettings, Phase, Recorded, Serving};
use crate::setup::as_sentences;

/// Status of an upgrade at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Status {
    /// Name of the gallery.
    pub gallery: String,
    /// Space that is replaced.
    pub old: String,
    /// Space that replaces the old one.
    pub new: String,
    /// Phase that the upgrade is in.
    pub phase: Phase,
    /// Request to running backfills.
    pub request: Request,
    /// Name of the space that searches go to.
    pub serving: Option<String>,
    /// Vectors and queries that searches after the switch use.
    pub serving_as: Serving,
    /// Weight of the adapted vector in a fused distance; `None` where searches are not fused.
    pub fusion_weight: Option<f64>,
    /// The bridge over which queries go to the old space at this moment; `None` where they go as they are, or
    /// to the new space.
    pub bridge: Option<BridgeInUse>,
    /// Order in which items are re-embedded.
    pub order: OrderSettings,
    /// Handicap: what searches add to the distance of adapted vectors, in the unit of the distance.
    pub handicap: f64,
    /// Whether everything is embedded and nothing mapped
    /// ([`UpgradeRecord::is_plain`](crate::UpgradeRecord::is_plain)).
    pub plain: bool,
    /// Items and vectors of the gallery in the new space.
    pub counts: Counts,
    /// Share of all items that are native, 0–1; 1 for an empty gallery.
    pub fraction: f64,
    /// Items that wait to be caught up with: changed or added, with an old vector and none in the new space.
    /// Before the new space is filled, all items that lack a vector there. 0 where nothing is mapped.
    pub lag: u64,
    /// Items without a vector in the new space, and without an old one or where nothing is mapped: no search
    /// of the new space finds them until they are embedded.
    pub without_vector: u64,
    /// Native items after which the encoder could not be compared with itself before a run ended. The next
    /// run compares the last of them with the encoder before it embeds anything.
    pub unvouched: u64,
    /// Health of σ²: held against the true errors of the items that were backfilled last; `None` before there
    /// are enough.
    pub sigma: Option<SigmaHealth>,
    /// Every question whether a [refit](crate::refit()) pays, the first one first, and whether the map was
    /// fitted again for it.
    pub refits: Vec<Refit>,
    /// Refit that computes at this moment, in whichever process; `None` where none does.
    pub refitting: Option<RefitUnderWay>,
    /// Findings on the map in use that a person should know, by the last of these questions.
    #[serde(rename = "warnings", serialize_with = "as_sentences", skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
    /// First of the recorded failures.
    pub failures: Vec<Failure>,
    /// Workers that are re-embedding at this moment, and how many items each has in hand.
    pub at_work: Vec<AtWork>,
    /// Follower that adapts what comes, and when it said so last; `None` where there is none.
    pub follower: Option<Follower>,
    /// Items that no search finds: they lack a vector in the space that serves. `None` while that is the old
    /// space, since counting there reads all of it.
    pub not_found: Option<u64>,
    /// Spending of all runs on the encoder so far, pairs included.
    pub spent: Spent,
}

/// Reads how an upgrade stands, with the first `failures` failures. Changes nothing.
///
/// # Errors
///
/// Not found where there is no upgrade.
pub fn status(store: &dyn Ledger, failures: usize) -> Result<Status> {
    let record = Recorded::expect(store)?.record;
    let new = &record.new.name;
    let has_new = find_space(store, new)?.is_some();
    let items = || store.counts(&record.old.name).map(|counts| counts.items);
    let counts = if has_new {
        store.counts(new)?
    } else {
        let items = items()?;
        Counts { items, lacking: items, ..Counts::default() }
    };
    let fraction = native_share(&counts);
    let lag = match record.phase {
        _ if record.is_plain() => 0,
        Phase::Sampling | Phase::Filling | Phase::Abandoned => counts.lacking,
        Phase::Filled | Phase::RolledBack => store.count_lag(new, &record.old.name)?,
        // A finish that died before its drop still has something to catch up from.
        Phase::Finished if !record.dropped && find_space(store, &record.old.name)?.is_some() => {
            store.count_lag(new, &record.old.name)?
        }
        Phase::Finished => 0,
    };
    let serving = store.serving()?;
    let refits = refits(store, new)?;
    let is_old = serving.as_ref() == Some(&record.old.name);
    let is_fused = record.serving != Serving::Mixed && !is_old;
    Ok(Status {
        gallery: store.name(),
        old: record.old.to_string(),
        new: record.new.to_string(),
        phase: record.phase,
        request: record.request,
        not_found: (has_new && serving.as_ref() == Some(new)).then_some(counts.lacking),
        serving,
        serving_as: record.serving,
        fusion_weight: record.fusion.as_ref().filter(|_| is_fused).map(|fusion| fusion.weight),
        bridge: record.bridge.clone().filter(|_| is_old),
        order: record.order,
        handicap: record.handicap,
        plain: record.is_plain(),
        counts,
        fraction,
        lag,
        without_vector: counts.lacking.saturating_sub(lag),
        unvouched: if has_new { unvouched(store, new)? } else { 0 },
        sigma: if has_new { health_of(store, new)? } else { None },
        findings: findings(&refits, &record, &counts),
        refits,
        refitting: refit_at_work(store, new)?,
        failures: if has_new { store.failures(new, None, failures)? } else { Vec::new() },
        at_work: if has_new { store.at_work(new)? } else { Vec::new() },
        follower: follower(store)?,
        spent: spent_by_all(store, &record)?,
    })
}

/// Kinds of items that the operator has to know of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Left {
    /// Items without a source, and not native: they stay adapted (or without a vector).
    WithoutSource,
    /// Items without a vector in the new space and without an old one that is adapted: no search finds them
    /// until they are embedded.
    WithoutVector,
    /// Items without an old vector: no search finds them where the old space serves, until the application
    /// writes one. There are none once that space is gone.
    WithoutOldVector,
}

/// Lists a page of ids of one kind in the order of keys, at most `limit`, after a key. Also returns where the
/// next page begins, `None` at the end. Memory is bounded by the page, whatever the gallery.
///
/// # Errors
///
/// Not found where there is no upgrade; those of the store.
pub fn left(
    store: &dyn Ledger,
    what: Left,
    after: Option<ItemKey>,
    limit: usize,
) -> Result<(Vec<String>, Option<ItemKey>)> {
    let record = Recorded::expect(store)?.record;
    let (space, select) = match what {
        Left::WithoutSource => (&record.new.name, Select::WithoutSource),
        Left::WithoutVector => (&record.new.name, Select::Lacking),
        Left::WithoutOldVector => (&record.old.name, Select::Lacking),
    };
    if limit == 0 || find_space(store, space)?.is_none() {
        return Ok((Vec::new(), None));
    }
    let is_mapped = !record.is_plain() && find_space(store, &record.old.name)?.is_some();
    let mut ids = Vec::new();
    let mut walk = Some(Scan::new(space, select, limit).after(after));
    while let Some(page) = walk {
        let records = store.scan(&page)?;
        walk = page.following(&records);
        let keys: Vec<ItemKey> = records.iter().map(|record| record.item.key).collect();
        // Items with an old vector only wait to be adapted.
        let has_vector = match what {
            Left::WithoutVector if is_mapped => store.provenances(&record.old.name, &keys)?,
            _ => vec![None; keys.len()],
        };
        for (record, has_vector) in records.into_iter().zip(has_vector) {
            let key = record.item.key;
            if has_vector.is_none() {
                ids.push(record.item.id);
            }
            if ids.len() == limit {
                return Ok((ids, Some(key)));
            }
        }
    }
    Ok((ids, None))
}
