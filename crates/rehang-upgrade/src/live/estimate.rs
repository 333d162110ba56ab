//! Time and cost of a backfill, from what is known before it runs.

use std::collections::HashSet;

use rehang_core::Result;
use rehang_encode::{HttpConfig, Spent};
use rehang_store::{Ledger, Scan, Select};
use serde::{Deserialize, Serialize};

use crate::live::equal;
use crate::live::limits::Limits;
use crate::live::sample;
use crate::live::spending::spent_by_all;
use crate::record::UpgradeRecord;
use crate::setup::UpgradeSetup;

/// Name of the document that keeps the rate of the last run.
const DOCUMENT: &str = "backfill-rate";
/// Fewest items from which a run's rate is kept: the first calls of an encoder are slower than the others.
const ITEMS_MIN: u64 = 64;
/// Number of items whose sources are looked at for a mean, or read at a time.
const SOURCES_MAX: usize = 4096;
/// Items up to which all sources of a gallery are read, to count those that differ: no sample says
/// how many are equal.
const COMPARED_MAX: u64 = 100_000;

/// Result of embedding a few items to measure the encoder.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Probed {
    /// Items that the encoder was given.
    pub items: u64,
    /// Items that the encoder gave no vector for.
    pub failed: u64,
    /// Items a second, all workers together.
    pub items_per_second: f64,
    /// Tokens that the encoder used; 0 where it counts none.
    pub tokens: u64,
    /// Money that the encoder took, in the unit of the configuration's price.
    pub money: f64,
}

/// Basis of an estimate of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// Some items were embedded to measure it.
    Probe,
    /// The last run into this space that no rate slowed down, or the limits where they are slower.
    EarlierRun,
    /// Limits of the configuration alone: the backfill takes at least so long.
    Limits,
}

/// Time and money for the items that an upgrade may re-embed. A number that is not known is `None`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct CostEstimate {
    /// Items that a service is sent: one of those with equal sources. `None` where no service embeds,
    /// in a gallery of more than 100,000 items, and from [`Upgrade::ways`](crate::Upgrade::ways) where
    /// the way is settled.
    pub sent: Option<u64>,
    /// Seconds for all items; `None` for a batch API, too.
    pub seconds: Option<f64>,
    /// Basis of the seconds.
    pub basis: Option<Basis>,
    /// Tokens for all items.
    pub tokens: Option<u64>,
    /// Money for all items, in the unit of the configuration's price.
    pub money: Option<f64>,
    /// Items after which a budget of the encoder is spent, by all runs together.
    pub budget_items: Option<u64>,
    /// Items that were embedded to measure the encoder.
    pub probed_items: Option<u64>,
    /// Items that got no vector when the encoder was measured.
    pub failed: Option<u64>,
    /// Texts of a batch, where a batch API embeds them: each batch is answered within a day, whatever the
    /// rate of single requests.
    pub batch_api_items: Option<u64>,
}

/// Reckons time and money for `items` of a gallery, of which a service is sent one where sources are equal.
/// Tokens are counted on at most a few thousand sources, so that a large gallery costs no more time than a
/// small one. Reads only.
///
/// # Errors
///
/// Those of the store.
pub fn estimate(
    store: &dyn Ledger,
    setup: &UpgradeSetup<'_>,
    items: u64,
    limits: &Limits,
    service: Option<&HttpConfig>,
    probed: Option<&Probed>,
) -> Result<CostEstimate> {
    let sent = to_send(store, setup, items, service)?;
    let record = UpgradeRecord::read(store)?;
    estimate_of(store, record.as_ref(), setup, (items, sent), limits, service, probed)
}

/// Reckons time and money as [`estimate`], by the record of the upgrade, for `items` of which `sent` go to
/// the service. Reads no sources to count those that differ.
pub(crate) fn estimate_of(
    store: &dyn Ledger,
    record: Option<&UpgradeRecord>,
    setup: &UpgradeSetup<'_>,
    (items, sent): (u64, Option<u64>),
    limits: &Limits,
    service: Option<&HttpConfig>,
    probed: Option<&Probed>,
) -> Result<CostEstimate> {
    let counts_tokens = probed.is_some_and(|probed| probed.tokens > 0);
    let mean_tokens = service.filter(|_| !counts_tokens).map(|service| mean_tokens(store, setup, service));
    let spent = record.map(|record| spent_by_all(store, record)).transpose()?;
    let figures = Known {
        mean_tokens: mean_tokens.transpose()?.flatten(),
        rate: kept_rate(store, &setup.new.name)?,
        spent: spent.unwrap_or_default(),
    };
    Ok(reckon((items, sent), limits, service, probed, &figures))
}

/// Knowledge of a backfill from before, beside what is measured now.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// Mean tokens of a source, where the probe counted none.
    pub mean_tokens: Option<f64>,
    /// Items a second of an earlier run.
    pub rate: Option<f64>,
    /// Items, tokens and money that all runs have used.
    pub spent: Spent,
}

/// Reckons time and money for `items`, of which `sent` go to the encoder, from what is known.
pub(crate) fn reckon(
    (items, sent): (u64, Option<u64>),
    limits: &Limits,
    service: Option<&HttpConfig>,
    probed: Option<&Probed>,
    figures: &Known,
) -> CostEstimate {
    let paid = sent.unwrap_or(items);
    let of_probe = |sum: f64| probed.map(|probed| sum / probed.items as f64).filter(|mean| *mean > 0.0);
    let tokens_per_item = of_probe(probed.map_or(0.0, |probed| probed.tokens as f64)).or(figures.mean_tokens);
    let money_per_item =
        of_probe(probed.map_or(0.0, |probed| probed.money)).or_else(|| service?.money(tokens_per_item?));
    let slowest = [
        limits.rate,
        service.and_then(HttpConfig::items_per_second),
        service.and_then(|service| Some(service.tokens_per_minute? / 60.0 / tokens_per_item?)),
    ];
    let limit = slowest.into_iter().flatten().min_by(f64::total_cmp);
    let at_most = |rate: f64| limit.map_or(rate, |limit| rate.min(limit));
    let batch_api_items =
        service.filter(|service| service.batch_api).map(|service| service.batch_api_items as u64);
    let rate = match (probed, figures.rate) {
        _ if batch_api_items.is_some() => None,
        (Some(probed), _) => Some((at_most(probed.items_per_second), Basis::Probe)),
        (None, Some(rate)) => Some((at_most(rate), Basis::EarlierRun)),
        (None, None) => limit.map(|limit| (limit, Basis::Limits)),
    };
    let of_budgets =
        |service: &HttpConfig| service.items_of_budgets(tokens_per_item.unwrap_or(1.0), figures.spent);
    CostEstimate {
        sent,
        seconds: rate.map(|(rate, _)| paid as f64 / rate),
        basis: rate.map(|(_, basis)| basis),
        tokens: tokens_per_item.map(|tokens| (tokens * paid as f64).round() as u64),
        money: money_per_item.map(|money| money * paid as f64),
        budget_items: service.and_then(of_budgets),
        probed_items: probed.map(|probed| probed.items),
        failed: probed.map(|probed| probed.failed),
        batch_api_items,
    }
}

/// Estimates how many of `items` a service is sent, by the share of different sources in the whole gallery;
/// `None` where no service embeds, or the gallery has too many sources to compare.
pub(crate) fn to_send(
    store: &dyn Ledger,
    setup: &UpgradeSetup<'_>,
    items: u64,
    service: Option<&HttpConfig>,
) -> Result<Option<u64>> {
    if service.is_none() {
        return Ok(None);
    }
    let mut walk = Some(Scan::new(&setup.old.name, Select::All, SOURCES_MAX));
    let (mut sources, mut different) = (0_u64, HashSet::new());
    while sources <= COMPARED_MAX {
        let Some(page) = walk else {
            let share = different.len() as f64 / sources.max(1) as f64;
            return Ok(Some((items as f64 * share).round() as u64));
        };
        let records = store.scan(&page)?;
        walk = page.following(&records);
        for source in records.iter().filter_map(|record| record.item.source.as_ref()) {
            sources += 1;
            different.insert(equal::hash(source));
        }
    }
    Ok(None)
}

/// Mean tokens of a source; `None` without sources.
fn mean_tokens(store: &dyn Ledger, setup: &UpgradeSetup<'_>, service: &HttpConfig) -> Result<Option<f64>> {
    let records = sample::draw(store, &setup.old.name, SOURCES_MAX, None)?;
    let tokens: Vec<u64> =
        records.iter().filter_map(|record| Some(service.tokens(record.item.source.as_deref()?))).collect();
    Ok((!tokens.is_empty()).then(|| tokens.iter().sum::<u64>() as f64 / tokens.len() as f64))
}

/// The rate of a run, as the store keeps it.
#[derive(Debug, Serialize, Deserialize)]
struct RunRate {
    space: String,
    items: u64,
    items_per_second: f64,
}

/// Keeps the rate of a run, for the plans to come. A run that a rate slowed down, or that was short, says
/// nothing. Only a plan's time depends on it, so a store that cannot keep it is no reason for a run to fail.
pub(crate) fn keep_rate(store: &dyn Ledger, space: &str, items: u64, elapsed_ms: u64, limits: &Limits) {
    if limits.rate.is_some() || items < ITEMS_MIN || elapsed_ms == 0 {
        return;
    }
    let items_per_second = items as f64 * 1000.0 / elapsed_ms as f64;
    let rate = RunRate { space: space.to_owned(), items, items_per_second };
    let (Ok(before), Ok(text)) = (store.document(DOCUMENT), serde_json::to_string(&rate)) else { return };
    drop(store.set_document(DOCUMENT, before.map(|(version, _)| version), &text));
}

/// Reads the rate of the last run into a space; `None` where none is known.
fn kept_rate(store: &dyn Ledger, space: &str) -> Result<Option<f64>> {
    let Some((_, text)) = store.document(DOCUMENT)? else { return Ok(None) };
    // A form of another version says nothing here.
    let rate: Option<RunRate> = serde_json::from_str(&text).ok();
    Ok(rate
        .filter(|rate| {
            rate.space == space && rate.items_per_second.is_finite() && rate.items_per_second > 0.0
        })
        .map(|rate| rate.items_per_second))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A batch API has no time that a probe, an earlier run or a limit would tell.
    #[test]
    fn no_rate_says_how_long_batches_take() {
        let service = |batch_api: bool| -> HttpConfig {
            let config = serde_json::json!({"url": "http://127.0.0.1:9", "model": "m", "batch_api": batch_api, "batch_api_items": 500,
                "tokens_per_minute": 60.0, "price_per_million_tokens": 1e6});
            serde_json::from_value(config).unwrap()
        };
        let probed = Probed { items: 10, failed: 0, items_per_second: 2.0, tokens: 20, money: 20.0 };
        let figures = Known { rate: Some(1.0), ..Known::default() };
        let limits = Limits::default();
        let reckon =
            |batch_api, probed| reckon((1000, None), &limits, Some(&service(batch_api)), probed, &figures);
        for probed in [None, Some(&probed)] {
            let cost = reckon(true, probed);
            assert_eq!((cost.seconds, cost.basis, cost.batch_api_items), (None, None, Some(500)));
            let cost = reckon(false, probed);
            assert!(cost.seconds.is_some() && cost.batch_api_items.is_none());
        }
        assert_eq!(reckon(true, Some(&probed)).money, Some(2000.0));
    }
}
