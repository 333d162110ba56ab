//! Comparison of an encoder with the one that made the native vectors of a space. Natives are never replaced,
//! so two models in one space would stay mixed.
//!
//! A document of the gallery holds the fingerprint of the encoder that filled a space last, empty for one
//! that has none, as a service. An encoder with another fingerprint, or with none, embeds some native items
//! again before a backfill begins, and is refused where their vectors differ.

use rehang_core::{
    DIFFERENCE_MAX, Error, NOISE_TIMES, Provenance, Remedy, Result, difference, difference_in_words,
};
use rehang_encode::{Encoder, Input, Spent};
use rehang_store::{Document, Ledger, Record, Scan, Select, Store};
use serde::{Deserialize, Serialize};

use crate::live::encoding::{encode, input_of};
use crate::live::fill::{Filler, page_items};
use crate::live::spending;
use crate::observe::{Observation, Observer, expect_going};
use crate::record::{Phase, Recorded, UpgradeRecord};
use crate::setup::{UpgradeSetup, expect_adapter, expect_upgrade, upgrade_of};

/// Native items that are embedded again.
const COMPARED: usize = 16;
/// Items that an encoder whose vectors differ embeds once more, to be compared with itself.
const COMPARED_WITH_ITSELF: usize = 4;
/// Items that are embedded again where nothing vouched for them.
const COMPARED_UNVOUCHED: usize = 8;
/// Workers whose last items are remembered for the next comparison: each may have met a service of its own.
const WORKERS_REMEMBERED: usize = 8;
/// Times that a change of the record of unvouched natives is tried while other workers change it.
const CHANGES_TRIED: usize = 20;
/// Native items that are looked at for some with a source.
const LOOKED_AT: usize = 256;
/// Share of the compared items that may differ: a source may have changed without a word of the application.
const SHARE_MAX: f64 = 0.25;

/// Name of the document about natives of a space that their encoder could not vouch for, before it was gone.
fn unvouched_document(space: &str) -> String {
    format!("unvouched of {space}")
}

/// Natives that were kept though no comparison of the encoder with itself followed them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Unvouched {
    /// Number of unvouched natives.
    items: u64,
    /// Ids of the last unvouched natives of each worker, the latest last: the next comparison looks at them.
    ids: Vec<String>,
}

impl Unvouched {
    fn read(document: Option<&Document>) -> Self {
        let text = document.map_or("", |(_, text)| text);
        serde_json::from_str(text).unwrap_or_default()
    }

    fn with(mut self, ids: &[String]) -> Self {
        self.items += ids.len() as u64;
        let last = &ids[ids.len().saturating_sub(COMPARED_UNVOUCHED)..];
        self.ids.retain(|id| !last.contains(id));
        self.ids.extend_from_slice(last);
        let more = self.ids.len().saturating_sub(COMPARED_UNVOUCHED * WORKERS_REMEMBERED);
        self.ids.drain(..more);
        self
    }

    fn without(mut self, compared: &Self) -> Self {
        self.items = self.items.saturating_sub(compared.items);
        self.ids.retain(|id| !compared.ids.contains(id));
        self
    }
}

/// Counts the natives of a space that were kept though no comparison of the encoder with itself followed
/// them. The next run compares the last of them with the encoder before it embeds anything.
///
/// # Errors
///
/// Those of the store.
pub(crate) fn unvouched(store: &dyn Ledger, space: &str) -> Result<u64> {
    Ok(Unvouched::read(store.document(&unvouched_document(space))?.as_ref()).items)
}

/// Remembers some items whose vectors no comparison of the encoder with itself has followed, beside those of
/// other workers. The next comparison is with the last of them.
///
/// # Errors
///
/// As [`change_unvouched`].
pub(crate) fn remember_unvouched(store: &dyn Ledger, space: &str, ids: &[String]) -> Result<()> {
    change_unvouched(store, space, |unvouched_natives| unvouched_natives.with(ids))
}

/// Changes the record of unvouched natives of a space, and tries again where another worker was faster.
///
/// # Errors
///
/// Changed meanwhile, where other workers were faster every time; those of the store.
fn change_unvouched(store: &dyn Ledger, space: &str, change: impl Fn(Unvouched) -> Unvouched) -> Result<()> {
    let name = unvouched_document(space);
    for _ in 0..CHANGES_TRIED {
        let stored_document = store.document(&name)?;
        let (before, is_new) = (Unvouched::read(stored_document.as_ref()), stored_document.is_none());
        let after = change(before.clone());
        if after == before && (is_new || after.items == 0) {
            return Ok(());
        }
        let text = if after.items == 0 { String::new() } else { serde_json::json!(after).to_string() };
        match store.set_document(&name, stored_document.map(|(version, _)| version), &text) {
            Err(error) if error.is_changed_meanwhile() => {}
            outcome => return outcome.map(drop),
        }
    }
    Err(Error::changed_meanwhile(
        format!("the record of native vectors of {space:?} that their encoder could not vouch for"),
        format!(
            "other workers wrote it each of {CHANGES_TRIED} times that this one tried to; nothing of it was changed, and the same \
             command may be run again"
        ),
    ))
}

/// Fails where natives that [no comparison followed](remember_unvouched) are of another model than
/// the encoder is now.
fn expect_unvouched(store: &dyn Store, space: &str, encoder: &dyn Encoder) -> Result<()> {
    let compared = Unvouched::read(store.document(&unvouched_document(space))?.as_ref());
    if compared.ids.is_empty() {
        return Ok(());
    }
    let ids: Vec<&str> = compared.ids.iter().map(String::as_str).collect();
    let items: Vec<_> = store.get(&ids)?.into_iter().flatten().filter(|item| item.source.is_some()).collect();
    let keys: Vec<_> = items.iter().map(|item| item.key).collect();
    let natives: Vec<_> = items
        .into_iter()
        .zip(store.vectors(space, &keys)?)
        .filter(|(_, vector)| vector.as_ref().is_some_and(|vector| vector.provenance == Provenance::Native))
        .map(|(item, vector)| Record { item, state: None, vector })
        .collect();
    let inputs: Vec<Input<'_>> = natives.iter().filter_map(input_of).collect();
    let distance = encoder.space().distance;
    let (Some(again), Some(once_more)) = (embedded(encoder, &inputs)?, embedded_alone(encoder, &inputs)?)
    else {
        return Ok(());
    };
    let with_itself = again
        .iter()
        .zip(&once_more)
        .filter_map(|(again, once_more)| Some(difference(distance, again.as_ref()?, once_more.as_ref()?)));
    let noise = with_itself.fold(0.0, f64::max);
    for (record, again) in natives.iter().zip(&again) {
        let (Some(native), Some(again)) = (&record.vector, again) else { continue };
        if difference(distance, &native.vector, again) > DIFFERENCE_MAX.max(NOISE_TIMES * noise) {
            return Err(Error::conflict(
                format!("the encoder is another one than made the last native vectors of {space:?}"),
                format!(
                    "it could not be compared with itself when a run ended, and item {:?}, which was among the last ones, has another vector \
                     now ({}); configure the encoder as it was, or let it embed the native items again",
                    record.item.id,
                    difference_in_words(distance, &native.vector, again),
                ),
            )
            .advise(Remedy::EmbedNativesAgain));
        }
    }
    // Natives that another worker remembered meanwhile wait for the next run.
    change_unvouched(store, space, |unvouched_natives| unvouched_natives.without(&compared))
}

/// Name of the document with the fingerprint of the encoder that filled a space last.
fn document(space: &str) -> String {
    format!("encoder of {space}")
}

/// Whether an encoder of another fingerprint filled the space last.
///
/// # Errors
///
/// Those of the store.
pub(crate) fn is_another(store: &dyn Ledger, space: &str, fingerprint: &str) -> Result<bool> {
    let stored_document = store.document(&document(space))?;
    Ok(stored_document
        .is_some_and(|(_, last_fingerprint)| !last_fingerprint.is_empty() && last_fingerprint != fingerprint))
}

/// Fails where natives of the space are of another encoder than this one, and remembers this one otherwise.
///
/// # Errors
///
/// A conflict that names an item; what the store and the encoder say. A budget that is spent is no error
/// here: nothing can be embedded then.
fn expect_same_encoder(store: &dyn Store, space: &str, encoder: &dyn Encoder) -> Result<()> {
    let (name, fingerprint) = (document(space), encoder.fingerprint()?.unwrap_or_default());
    let stored_document = store.document(&name)?;
    let is_kept =
        stored_document.as_ref().is_some_and(|(_, last_fingerprint)| *last_fingerprint == fingerprint);
    if is_kept && !fingerprint.is_empty() {
        return Ok(());
    }
    let scan = Scan::new(space, Select::Provenance(Provenance::Native), LOOKED_AT).with_vectors_of(space);
    let mut natives = store.scan(&scan)?;
    natives.retain(|record| record.item.source.is_some() && record.vector.is_some());
    // The compared natives are from all over the page.
    let step = natives.len().div_ceil(COMPARED).max(1);
    let natives: Vec<_> = natives.into_iter().step_by(step).collect();
    let inputs: Vec<Input<'_>> = natives.iter().filter_map(input_of).collect();
    let distance = encoder.space().distance;
    let Some(again) = embedded(encoder, &inputs)? else { return Ok(()) };
    let compared: Vec<_> = natives
        .iter()
        .zip(&again)
        .filter_map(|(record, again)| Some((record, &record.vector.as_ref()?.vector, again.as_ref()?)))
        .collect();
    let different: Vec<_> = compared
        .iter()
        .filter(|(_, native, again)| difference(distance, native, again) > DIFFERENCE_MAX)
        .collect();
    if different.len() as f64 > SHARE_MAX * compared.len() as f64 {
        // An encoder that gives a source different vectors, or another vector beside other sources, is no
        // other encoder for that.
        let few = &inputs[..inputs.len().min(COMPARED_WITH_ITSELF)];
        let Some(once_more) = embedded_alone(encoder, few)? else { return Ok(()) };
        let noise = middle(again.iter().zip(&once_more).filter_map(|(again, once_more)| {
            Some(difference(distance, again.as_ref()?, once_more.as_ref()?))
        }));
        let apart = middle(compared.iter().map(|(_, native, again)| difference(distance, native, again)));
        let is_noise = noise > DIFFERENCE_MAX / NOISE_TIMES && apart <= NOISE_TIMES * noise;
        if !is_noise {
            let (record, native, again) = different[0];
            return Err(Error::conflict(
                format!("the encoder is another one than made the native vectors of {space:?}"),
                format!(
                    "of {} items that it embedded again, {} have another vector, such as {:?} ({}), and two models in one space \
                     cannot be told apart; configure the encoder as it was",
                    compared.len(),
                    different.len(),
                    record.item.id,
                    difference_in_words(distance, native, again),
                ),
            )
            .advise(Remedy::EmbedNativesAgain));
        }
    }
    if is_kept {
        return Ok(());
    }
    match store.set_document(&name, stored_document.map(|(version, _)| version), &fingerprint) {
        // Another process was faster, and may be about to embed with another model.
        Err(error) if error.is_changed_meanwhile() => expect_same_encoder(store, space, encoder),
        outcome => outcome.map(drop),
    }
}

/// Embeds inputs: `None` for those that fail; `None` for all where a budget is spent.
fn embedded(encoder: &dyn Encoder, inputs: &[Input<'_>]) -> Result<Option<Vec<Option<Vec<f32>>>>> {
    let mut vectors = Vec::with_capacity(inputs.len());
    for batch in inputs.chunks(encoder.batch_max()) {
        match encode(encoder, batch) {
            Err(error) if error.is_budget_spent() => return Ok(None),
            answers => vectors.extend(answers?.into_iter().map(Result::ok)),
        }
    }
    Ok(Some(vectors))
}

/// Embeds inputs as [`embedded`], each in a call of its own.
fn embedded_alone(encoder: &dyn Encoder, inputs: &[Input<'_>]) -> Result<Option<Vec<Option<Vec<f32>>>>> {
    let answers = inputs.chunks(1).map(|input| embedded(encoder, input));
    Ok(answers.collect::<Result<Option<Vec<_>>>>()?.map(|vectors| vectors.concat()))
}

/// Middle one of some numbers; 0 of none.
fn middle(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(0.0)
}

/// Fails where natives of the new space of an upgrade are of another encoder than this one, as
/// [`expect_same_encoder`], or unvouched ones are. The cost of the comparison is the upgrade's, also where it
/// fails, and within the budget of all runs. Gives what the store was told of the encoder before: the caller
/// tells it of the rest.
///
/// # Errors
///
/// As [`expect_same_encoder`] and [`spending::share`].
pub(crate) fn expect_same_on_account(
    store: &dyn Store,
    record: &UpgradeRecord,
    encoder: &dyn Encoder,
) -> Result<Spent> {
    let reported = spending::share(store, record, encoder, encoder.spent())?;
    let comparison = expect_unvouched(store, &record.new.name, encoder)
        .and_then(|()| expect_same_encoder(store, &record.new.name, encoder));
    comparison.or_else(|error| {
        spending::share(store, record, encoder, reported)?;
        Err(error)
    })?;
    Ok(reported)
}

/// Puts the native vectors of items with a source back to adapted ones, each with its place in the order, so
/// that the next backfill embeds these items again. That is for a space that another encoder is to fill.
/// Items without an old vector lack one until then. Gives how many were put back.
///
/// # Errors
///
/// A conflict where a backfill is at work, or begins meanwhile: what was put back by then stays so, and
/// called again it goes on. A conflict where the upgrade is neither filled nor rolled back. As
/// [`expect_same`](crate::expect_same).
pub fn put_back(store: &dyn Ledger, setup: &UpgradeSetup<'_>, observer: &dyn Observer) -> Result<u64> {
    let recorded = expect_upgrade(store, setup)?;
    let record = &recorded.record;
    expect_adapter(store, record, setup)?;
    if !matches!(record.phase, Phase::Filled | Phase::RolledBack) {
        return Err(Error::wrong_phase(upgrade_of(store), record.phase.name()));
    }
    let (new, epoch) = (&record.new.name, record.epoch.unwrap_or_default());
    let expect_no_worker = || {
        let at_work = store.at_work(new)?;
        let Some(worker) = at_work.first() else { return Ok(()) };
        let detail = format!("{} is embedding {} of its items", worker.worker, worker.items);
        Err(Error::conflict(upgrade_of(store), detail).advise(Remedy::AwaitOtherProcess))
    };
    expect_no_worker()?;
    // The encoder that comes next, whichever it is, is compared with the natives that are left.
    let stored_document = store.document(&document(new))?;
    if let Some((version, _)) = stored_document.filter(|(_, fingerprint)| !fingerprint.is_empty()) {
        store.set_document(&document(new), Some(version), "")?;
    }
    change_unvouched(store, new, |_| Unvouched::default())?;
    let filler = setup.filler(record.order)?.map(|filler| filler.since(record.since));
    if filler.is_none() && record.is_served(store)? {
        let detail =
            "searches go to the vectors that would be put back, and no map stands in for them meanwhile";
        return Err(Error::conflict(upgrade_of(store), detail).advise(Remedy::RollBackOrSwitch));
    }
    let page = filler.as_ref().map_or(page_items(record.new.dimension), Filler::page);
    let total = store.counts(new)?.native;
    observer.observe(&Observation::Began { stage: "putting native vectors back", unit: "items", total });
    let explain = |error| Recorded::explain(store, record, error);
    let mut put_back = 0;
    loop {
        expect_going(observer)?;
        // Vectors that a worker has paid for since would otherwise be put back page after page.
        expect_no_worker()?;
        let forgotten = store.forget_natives(new, epoch, page).map_err(explain)?;
        if forgotten == 0 {
            break;
        }
        // The page is filled at once, so that searches miss its items for a moment only.
        if let Some(filler) = &filler {
            filler.fill(store, epoch, &Select::Lacking, observer).map_err(explain)?;
        }
        put_back += forgotten as u64;
    }
    if let Some(filler) = &filler {
        filler.cover(store, epoch, observer).map_err(explain)?;
    }
    Ok(put_back)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(of: std::ops::Range<usize>) -> Vec<String> {
        of.map(|id| id.to_string()).collect()
    }

    #[test]
    fn what_several_workers_could_not_vouch_for_stands_side_by_side() {
        let unvouched_natives = Unvouched::default().with(&ids(0..16)).with(&ids(100..103));
        assert_eq!(unvouched_natives.items, 19);
        assert_eq!(unvouched_natives.ids, [ids(8..16), ids(100..103)].concat());
        // Compared natives go; those that came meanwhile stay.
        let meanwhile = unvouched_natives.clone().with(&ids(200..202));
        assert_eq!(meanwhile.without(&unvouched_natives), Unvouched { items: 2, ids: ids(200..202) });
        let many = (0..20).fold(Unvouched::default(), |unvouched_natives, worker| {
            unvouched_natives.with(&ids(worker * 8..worker * 8 + 8))
        });
        assert_eq!((many.items, many.ids), (160, ids(96..160)));
        assert_eq!(Unvouched::read(Some(&(4, String::new()))), Unvouched::default());
    }

    #[test]
    fn a_change_that_others_always_win_ends_with_an_error_that_says_so() {
        use rehang_store_tests::MemoryStore;
        use std::cell::Cell;

        let store = MemoryStore::new();
        let tries = Cell::new(0);
        // Another worker writes between each look and each write of this one.
        let always_late = |unvouched_natives: Unvouched| {
            tries.set(tries.get() + 1);
            let version = store.document(&unvouched_document("s")).unwrap().map(|(version, _)| version);
            store.set_document(&unvouched_document("s"), version, r#"{"items":1,"ids":["a"]}"#).unwrap();
            unvouched_natives.with(&ids(0..2))
        };
        let error = change_unvouched(&store, "s", always_late).unwrap_err();
        assert!(error.is_changed_meanwhile() && error.to_string().contains("each of 20 times"), "{error}");
        assert_eq!((tries.get(), unvouched(&store, "s").unwrap()), (20, 1));
        // A change that comes in time counts beside the other worker's.
        remember_unvouched(&store, "s", &ids(7..8)).unwrap();
        assert_eq!(unvouched(&store, "s").unwrap(), 2);
    }
}
