//! Which encoder made the native vectors of a space. Natives are never replaced, so two models in one space would stay mixed.
//!
//! A document of the gallery holds the fingerprint of the encoder that filled a space last, empty for one that has none, as a service.
//! An encoder with another fingerprint, or with none, embeds some native items again before a backfill begins, and is refused where their
//! vectors differ.

use rehang::{Error, Provenance, Remedy, Result, squared_distance};
use rehang_encode::{Encoder, Input, Spent};
use rehang_store::{Ledger, Scan, Select, Store};

use crate::encoding::{encode, input_of};
use crate::fill::Filler;
use crate::observe::{Observation, Observer, expect_going};
use crate::record::{Phase, Recorded, UpgradeRecord};
use crate::setup::{UpgradeSetup, expect_adapter, expect_upgrade, upgrade_of};
use crate::spending;

/// Native items that are embedded again.
const COMPARED: usize = 16;
/// Native items that are looked at for some with a source.
const LOOKED_AT: usize = 256;
/// Squared distance of two vectors of one item, over the larger squared length, from which on two models made them. A service that
/// computes in half precision stays below a thousandth of it; two models that were trained apart are near 1.
const DIFFERENCE_MAX: f64 = 0.01;
/// Share of the compared items that may differ: a source may have changed without a word of the application.
const SHARE_MAX: f64 = 0.25;

/// Name of the document about a space.
fn document(space: &str) -> String {
    format!("encoder of {space}")
}

/// Whether an encoder of another fingerprint filled the space last.
///
/// # Errors
///
/// Those of the store.
pub(crate) fn is_another(store: &dyn Ledger, space: &str, fingerprint: &str) -> Result<bool> {
    let kept = store.document(&document(space))?;
    Ok(kept.is_some_and(|(_, kept)| !kept.is_empty() && kept != fingerprint))
}

/// Fails where natives of the space are of another encoder than this one, and remembers this one otherwise.
///
/// # Errors
///
/// A conflict that names an item; what the store and the encoder say. A budget that is spent is no error here: nothing can be embedded
/// then.
fn expect_same_encoder(store: &dyn Store, space: &str, encoder: &dyn Encoder) -> Result<()> {
    let (name, fingerprint) = (document(space), encoder.fingerprint()?.unwrap_or_default());
    let kept = store.document(&name)?;
    let is_kept = kept.as_ref().is_some_and(|(_, kept)| *kept == fingerprint);
    if is_kept && !fingerprint.is_empty() {
        return Ok(());
    }
    let scan = Scan::new(space, Select::Provenance(Provenance::Native), LOOKED_AT).with_vectors_of(space);
    let mut natives = store.scan(&scan)?;
    natives.retain(|record| record.item.source.is_some() && record.vector.is_some());
    // From all over the page.
    let step = natives.len().div_ceil(COMPARED).max(1);
    let natives: Vec<_> = natives.into_iter().step_by(step).collect();
    let inputs: Vec<Input<'_>> = natives.iter().filter_map(input_of).collect();
    let (mut compared, mut different) = (0, Vec::new());
    for (batch, records) in inputs.chunks(encoder.batch_max()).zip(natives.chunks(encoder.batch_max())) {
        let answers = match encode(encoder, batch) {
            Err(error) if error.is_budget_spent() => return Ok(()),
            answers => answers?,
        };
        for (record, answer) in records.iter().zip(answers) {
            let (Some(native), Ok(again)) = (&record.vector, answer) else { continue };
            compared += 1;
            let length = |vector: &[f32]| vector.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>();
            let longest = length(&native.vector).max(length(&again));
            if squared_distance(&native.vector, &again) > DIFFERENCE_MAX * longest {
                different.push(&record.item.id);
            }
        }
    }
    if different.len() as f64 > SHARE_MAX * f64::from(compared) {
        let (id, count) = (different[0], different.len());
        return Err(Error::conflict(
            format!("the encoder is another one than made the native vectors of {space:?}"),
            format!(
                "of {compared} items that it embedded again, {count} have another vector, such as {id:?}, and two models in one space \
                 cannot be told apart; configure the encoder as it was"
            ),
        )
        .advise(Remedy::EmbedNativesAgain));
    }
    if is_kept {
        return Ok(());
    }
    match store.set_document(&name, kept.map(|(version, _)| version), &fingerprint) {
        // Another process was faster, and may be about to embed with another model.
        Err(error) if error.is_changed_meanwhile() => expect_same_encoder(store, space, encoder),
        outcome => outcome.map(drop),
    }
}

/// As [`expect_same_encoder`] of the new space of an upgrade. What the comparison costs is the upgrade's, also where it fails, and within the
/// budget of all. Gives what the store was told of the encoder before: the caller tells it of the rest.
///
/// # Errors
///
/// As [`expect_same_encoder`] and [`spending::share`].
pub(crate) fn expect_same_on_account(
    store: &dyn Store,
    record: &UpgradeRecord,
    encoder: &dyn Encoder,
) -> Result<Spent> {
    let told = spending::share(store, record, encoder, encoder.spent())?;
    expect_same_encoder(store, &record.new.name, encoder).or_else(|error| {
        spending::share(store, record, encoder, told)?;
        Err(error)
    })?;
    Ok(told)
}

/// Puts the native vectors of items with a source back to adapted ones, each with its place in the order, so that the next backfill embeds
/// these items again: for a space that another encoder is to fill. Items without an old vector lack one until then. Gives how many were
/// put back.
///
/// # Errors
///
/// A conflict where a backfill is at work or the upgrade is neither filled nor rolled back; as
/// [`expect_same`](crate::expect_same).
pub fn put_back(store: &dyn Ledger, setup: &UpgradeSetup<'_>, observer: &dyn Observer) -> Result<u64> {
    let recorded = expect_upgrade(store, setup)?;
    let record = &recorded.record;
    expect_adapter(store, record, setup.adapter)?;
    if !matches!(record.phase, Phase::Filled | Phase::RolledBack) {
        return Err(Error::wrong_phase(upgrade_of(store), record.phase.name()));
    }
    let (new, epoch) = (&record.new.name, record.epoch.unwrap_or_default());
    if let Some(worker) = store.at_work(new)?.first() {
        let detail = format!("{} is embedding {} of its items", worker.worker, worker.items);
        return Err(Error::conflict(upgrade_of(store), detail).advise(Remedy::AwaitOtherProcess));
    }
    // Whichever encoder comes next is compared with what natives are left.
    let known = store.document(&document(new))?;
    if let Some((version, _)) = known.filter(|(_, fingerprint)| !fingerprint.is_empty()) {
        store.set_document(&document(new), Some(version), "")?;
    }
    let filler = Filler::new(setup.adapter, &record.old.name, new, record.order)?.since(record.since);
    let total = store.counts(new)?.native;
    observer.observe(&Observation::Began { stage: "putting native vectors back", unit: "items", total });
    let explain = |error| Recorded::explain(store, record, error);
    let mut put_back = 0;
    loop {
        expect_going(observer)?;
        let forgotten = store.forget_natives(new, epoch, filler.page()).map_err(explain)?;
        if forgotten == 0 {
            break;
        }
        // At once, so that searches miss a page of items for a moment only.
        filler.fill(store, epoch, &Select::Lacking, observer).map_err(explain)?;
        put_back += forgotten as u64;
    }
    filler.cover(store, epoch, observer).map_err(explain)?;
    Ok(put_back)
}
