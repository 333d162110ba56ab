//! Pairs, adapter and report that an upgrade learns from its own gallery: pairs are drawn as natives of the
//! new space, the adapter is fitted on them, and the report measures it on those that were held out.
//!
//! No list of the pairs is kept: they are the items at the beginning of the gallery's shuffle
//! ([`crate::live::sample`]) that are native and have an old vector. A pair's old vector alone decides
//! whether it is held out. So nothing can disagree with the gallery. Held-out pairs stay held out in a larger
//! sample, and an item that is in the gallery twice is held out both times or never. The adapter and the
//! report are
//! [files of the gallery](kept); a document names the last adapter.
//!
//! A backfill makes the worst items native first. So held-out natives are a random sample only up to the
//! place in the shuffle to which an upgrade has embedded every item, or every one that it keeps for
//! measuring. A document of the gallery says which place that is ([`DrawnPairs::forecast_queries`]): the
//! queries of a forecast lie before it, whatever is native behind.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rehang_core::curve::{Metric, Qrels};
use rehang_core::finding::{Finding, FindingCode};
use rehang_core::order::Policy;
use rehang_core::report::{Floors, Report};
use rehang_core::{Adapter, Error, Matrix, Progress, Provenance, Result, Space, Vectors};
use rehang_encode::Spent;
use rehang_evaluate::study::StudyQueries;
use rehang_evaluate::{FloorsInput, GalleryJudgements, ReportFiles, floors, report};
use rehang_files::adapter_file::AdapterSource;
use rehang_files::{AtomicFile, RowSelection, Scalars, VectorSource};
use rehang_fit::refit::{MEASURED_MIN, MeanError, kept_for_measuring};
use rehang_fit::{
    FitAnswer, FitFiles, FitParameters, FitQueries, Fitted, FittedBridge, LearningCurve, Method, OrderChoice,
    Trait, Within, fit_files, learning_curve,
};
use rehang_store::{
    FirstKeys, Item, ItemKey, Ledger, PAIRS_SEED, Record, Scan, Select, find_space, shuffled,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::kept::{self, Kind};
use crate::learn::asked::{ByBoth, CLICKS, ClicksKept, KeptQueries};
use crate::learn::refit;
use crate::live::backfill::Ending;
use crate::live::limits::RunOptions;
use crate::live::sample;
use crate::observe::{Observation, Observer, expect_going};
use crate::record::Recorded;
use crate::setup::as_sentences;
use crate::verbs::expect_may_bridge;

/// Largest number of pairs that a fit takes: memory and time are bounded.
pub(crate) const PAIRS_MAX: usize = 20_000;
/// Largest number of pairs that an order is chosen on: its maps are fitted three times, and 2,000 pairs told
/// the right one (`cargo lab study orders`).
const ORDER_PAIRS_MAX: usize = 4_000;
/// Share of the pairs that is held out.
pub(crate) const HELD_OUT: f64 = 0.2;
/// Seed of the shuffle that says which pairs are held out.
const HELD_OUT_SEED: u64 = 0x4e1d_0a7e;
/// Held-out pairs below which no report is made. They are searched among each other, and where the first ten
/// results are most of what there is, every model has them.
const HELD_OUT_MIN: usize = 30;
/// Whether enough of so many pairs would be held out for a report.
pub(crate) fn may_hold_out_of(pairs: u64) -> bool {
    pairs as f64 * HELD_OUT >= HELD_OUT_MIN as f64
}

/// Queries below which a report warns that its numbers are noise, so that a larger set takes over
/// where there is one.
const QUERIES_MIN: usize = 300;
/// Natives that are read at a time.
const NATIVES_PAGE: usize = 2048;
/// Items of the first sample; each further one is twice as large.
pub(crate) const FIRST_SAMPLE: usize = 250;

/// Name of the stage of [`DrawnPairs::learned`], which takes as long as embedding does
/// where vectors are wide.
const MEASURING: &str = "measuring what pairs are worth";

/// Name of the document that says which adapter was fitted last for a space.
fn document(new: &str) -> String {
    format!("adapter of {new}")
}

/// Fingerprint of the adapter that was fitted last for a space on the gallery's own pairs; `None` where there
/// is none. Where the upgrade has been refitted since, it is that of the map in use.
pub(crate) fn fitted(store: &dyn Ledger, new: &str) -> Result<Option<String>> {
    let fitted = store.document(&document(new))?.map(|(_, fingerprint)| fingerprint);
    fitted.filter(|text| !text.is_empty()).map(|fitted| refit::in_use(store, new, fitted)).transpose()
}

/// Forgets the adapter of a space, the order that was chosen with it, and which items ask for forecasts: the
/// vectors that these were learned from are given up.
pub(crate) fn forget(store: &dyn Ledger, new: &str) -> Result<()> {
    refit::forget(store, new)?;
    for name in [document(new), order_document(new), asking_document(new)] {
        if store.document(&name)?.is_some() {
            note(store, &name, "")?;
        }
    }
    Ok(())
}

/// Name of the document that says up to which place of the shuffle items ask for a space's forecasts.
fn asking_document(new: &str) -> String {
    format!("queries of {new}")
}

/// Reads the last of the items that ask for a space's forecasts, in the order of the shuffle, which is each
/// store's own. Empty where nothing was drawn or forecast yet. An earlier version noted a place in a shuffle
/// that is not that of every store, and says nothing here.
fn asking_until(store: &dyn Ledger, new: &str) -> Result<Vec<ItemKey>> {
    let text = store.document(&asking_document(new))?.map(|(_, text)| text).unwrap_or_default();
    Ok(serde_json::from_str(&text).unwrap_or_default())
}

/// Number of the last asking items that are noted: as long as one of them is there, it is known
/// how far they went.
const LAST_NOTED: usize = 100;

/// Gives the keys of the last `LAST_NOTED` of some items at the beginning of the shuffle.
fn last_of(first: &[Record]) -> Vec<ItemKey> {
    first.iter().skip(first.len().saturating_sub(LAST_NOTED)).map(|record| record.item.key).collect()
}

/// Counts the items at the beginning of the shuffle up to the last one that is in `until`; 0 where none is.
fn end_of(first: &[Record], until: &[ItemKey]) -> usize {
    first.iter().rposition(|record| until.contains(&record.item.key)).map_or(0, |at| at + 1)
}

/// Lets the first `items` of the shuffle ask for a space's forecasts from now on, or more where more did
/// before. All of them that can be native are, so none is there for being hard.
///
/// # Errors
///
/// Those of the store.
pub(crate) fn ask_first(store: &dyn Ledger, new: &str, items: usize) -> Result<()> {
    let first = sample::first_of_shuffle(store, new, items.max(PAIRS_MAX))?;
    let items = items.min(first.len());
    if end_of(&first, &asking_until(store, new)?) >= items {
        return Ok(());
    }
    note_until(store, new, &last_of(&first[..items]))
}

fn note_until(store: &dyn Ledger, new: &str, until: &[ItemKey]) -> Result<()> {
    note(store, &asking_document(new), &serde_json::json!(until).to_string())
}

/// Writes a document of the gallery, unless it says the same already.
fn note(store: &dyn Ledger, name: &str, text: &str) -> Result<()> {
    let before = store.document(name)?;
    if before.as_ref().is_none_or(|(_, text_before)| text_before != text) {
        store.set_document(name, before.map(|(version, _)| version), text)?;
    }
    Ok(())
}

/// An order that was chosen on held-out pairs, and for which metric.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChosenOrder {
    pub policy: Policy,
    /// Id of the metric; `None` for the one that a fit goes by.
    pub metric: Option<String>,
}

/// Name of the document that says which order was chosen last for a space. It lies in the gallery, since
/// every process has to follow the order.
fn order_document(new: &str) -> String {
    format!("order of {new}")
}

/// Reads the order that was chosen last for a space; `None` where there is none.
pub(crate) fn chosen_order(store: &dyn Ledger, new: &str) -> Result<Option<ChosenOrder>> {
    let text = store.document(&order_document(new))?.map(|(_, text)| text).filter(|text| !text.is_empty());
    let read = |text: String| {
        serde_json::from_str(&text).map_err(|error| Error::corrupt("the order that was chosen", error))
    };
    text.map(read).transpose()
}

/// Chooses the order of a backfill on those pairs that are not held out, as
/// [`choose_order`](rehang_fit::choose_order()), for a map of this method, and names it in the gallery.
/// `None` where there are too few pairs.
pub(crate) fn choose_order(
    store: &dyn Ledger,
    (old, new): (&Space, &Space),
    (method, metric): (Method, Option<Metric>),
    progress: &Progress,
) -> Result<Option<OrderChoice>> {
    let (pairs, queries) = known_pairs(store, (old, new), (ORDER_PAIRS_MAX, "an order"))?;
    let parameters = FitParameters { method, metric, queries, ..FitParameters::default() };
    let Some(choice) = rehang_fit::choose_order(&pairs, &parameters, progress)? else { return Ok(None) };
    let chosen = ChosenOrder { policy: choice.policy(), metric: metric.map(Metric::id) };
    let text = serde_json::to_string(&chosen).map_err(|error| Error::corrupt("the order", error))?;
    note(store, &order_document(&new.name), &text)?;
    Ok(Some(choice))
}

/// Removes adapters and bridges that no upgrade of the gallery uses or can go back to, and what belongs to
/// them. Reports stay as long as a refit names their adapter.
///
/// # Errors
///
/// Those of the store.
pub(crate) fn clear_unused(store: &dyn Ledger) -> Result<()> {
    let (mut used_maps, mut refit_maps) = (BTreeSet::new(), BTreeSet::new());
    for space in store.spaces()? {
        used_maps.extend(fitted(store, &space.space.name)?);
        for refit in refit::refits(store, &space.space.name)? {
            // The last refit may be decided and not yet done.
            used_maps.extend(refit.taken.then(|| refit.after.clone()));
            refit_maps.extend([refit.before, refit.after]);
        }
    }
    if let Some(Recorded { record, .. }) = Recorded::read(store)? {
        used_maps.extend(record.bridge.map(|bridge| bridge.fingerprint));
        used_maps.insert(record.adapter);
    }
    kept::retain(store, |kind, fingerprint| {
        used_maps.contains(fingerprint) || (kind == Kind::Report && refit_maps.contains(fingerprint))
    })
}

/// Codes of the findings of a fit about its pairs, which an examination tells again.
const PAIR_FINDINGS: [FindingCode; 3] = [FindingCode::OneVector, FindingCode::TwoKinds, FindingCode::Misfits];

/// Findings and error of a fit, which are kept beside its adapter.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Learned {
    /// Findings about the pairs of the fit.
    findings: Vec<Finding>,
    /// Error of the adapter on held-out pairs; `None` where they are too few.
    error: Option<MeanError>,
}

impl Learned {
    /// Reads what is kept beside an adapter; nothing for one that was fitted elsewhere.
    fn read(store: &dyn Ledger, fingerprint: &str) -> Result<Self> {
        let bytes = kept::read(store, Kind::Learned, fingerprint)?.unwrap_or_default();
        Ok(serde_json::from_slice(&bytes).unwrap_or_default())
    }
}

/// Keeps an adapter in the gallery, with what its fit found of the pairs, and gives its fingerprint. No
/// document names it yet.
///
/// # Errors
///
/// Those of the store.
pub(crate) fn keep_fitted(store: &dyn Ledger, fitted: &Fitted, error: Option<MeanError>) -> Result<String> {
    let is_of_pairs = |finding: &&Finding| PAIR_FINDINGS.contains(&finding.code);
    let findings = fitted.findings.iter().filter(is_of_pairs).cloned().collect();
    let learned = serde_json::to_vec(&Learned { findings, error })
        .map_err(|error| Error::corrupt("the findings of a fit", error))?;
    let fingerprint = rehang_files::adapter_file::fingerprint(&fitted.adapter)?;
    kept::keep_adapter(store, &fingerprint, &fitted.adapter)?;
    kept::write(store, Kind::Learned, &fingerprint, &learned)?;
    Ok(fingerprint)
}

/// Reads what the last fit found of the pairs themselves, for the examination of a gallery.
///
/// # Errors
///
/// Those of the store.
pub(crate) fn findings(store: &dyn Ledger, new: &str) -> Result<Vec<Finding>> {
    let Some(fingerprint) = fitted(store, new)? else { return Ok(Vec::new()) };
    Ok(Learned::read(store, &fingerprint)?.findings)
}

/// Options of drawing pairs: how many, and how fast.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PairsOptions {
    /// Largest number of items of the sample: it begins with 250 and is doubled until there are so many.
    pub items: usize,
    /// Points of agreement that one more doubling has to be expected to bring, or else no more are drawn; 0
    /// draws all `items`.
    pub worth: f64,
    /// Limits of embedding the sample; a share of the gallery ([`RunOptions::until`]) has no effect here.
    pub run: RunOptions,
}

impl Default for PairsOptions {
    fn default() -> Self {
        Self { items: 2000, worth: 1.0, run: RunOptions::default() }
    }
}

/// Reason why no more pairs are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Enough {
    /// One more doubling is not expected to bring what it has to.
    Learned,
    /// The sample has as many items as were asked for.
    Asked,
    /// The sample is all of the gallery that can be embedded.
    WholeGallery,
    /// The backfill of the sample ended before: what was drawn is kept, and the next call goes on.
    Ended(Ending),
}

/// A sample of the gallery, and the pairs in it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PairsStep {
    /// Items of the sample.
    pub items: usize,
    /// Items of the sample that are pairs: native, with an old vector.
    pub pairs: usize,
    /// Items that were embedded for the sample now; the others were native before.
    pub embedded: u64,
    /// Worth of the pairs to a map; `None` where they are too few to say, or where an earlier call has
    /// measured them already and gone on.
    pub learned: Option<LearningCurve>,
}

/// Result of [`Upgrade::pairs`](crate::Upgrade::pairs).
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PairsDrawn {
    /// Samples that were drawn, each twice as large as the one before.
    pub steps: Vec<PairsStep>,
    /// Reason why no more pairs are drawn.
    pub enough: Enough,
    /// Number of pairs that there are.
    pub pairs: usize,
    /// Number of pairs that are held out of fits, for the report.
    pub held_out: usize,
    /// Items of the sample that could not be embedded, in this call.
    pub failed: u64,
    /// Items, tokens and money that the encoder used.
    pub spent: Spent,
    /// Words of the encoder where a budget of its own ended the sample.
    pub encoder_said: Option<String>,
    /// Findings of the encoder about doubtful sources
    /// ([`Encoder::findings`](rehang_encode::Encoder::findings)).
    #[serde(rename = "warnings", serialize_with = "as_sentences", skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
    /// Number of queries by both models that choice and forecast go by. `None` where none were given, where
    /// the sample ended early, or where a budget or a stop ended the queries.
    pub queries: Option<usize>,
    /// Reasons for each query of the file that was tried in this call and got no vector: choice and
    /// forecast go without it.
    pub queries_left_out: Vec<String>,
    /// Clicks that choice and forecast go by too; `None` where none were given, or the queries are `None`.
    pub clicks: Option<ClicksKept>,
    /// Folder that the pairs were written to, where that was asked for.
    pub folder: Option<PathBuf>,
}

impl PairsDrawn {
    /// Whether the call did what it was asked for, with no item left that only a person can get a
    /// native vector for.
    pub fn is_complete(&self) -> bool {
        self.failed == 0 && !matches!(self.enough, Enough::Ended(ending) if ending.is_early())
    }
}

/// Whether a pair is held out; its old vector alone decides.
pub(crate) fn is_held_out(old: &[f32]) -> bool {
    let mixed = old.iter().fold(0, |mixed: u64, value| {
        (mixed ^ u64::from(value.to_bits())).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
    });
    shuffled(HELD_OUT_SEED, ItemKey::from(mixed)) < HELD_OUT
}

/// Held-out pairs whose items are the queries of a forecast: they ask for it.
pub(crate) struct Asking {
    /// Held-out pairs, every one of them.
    pub pairs: DrawnPairs,
    /// Last of the items up to which pairs ask; empty where there are none.
    until: Vec<ItemKey>,
    /// Number of pairs that asked before, where these have taken over.
    before: Option<usize>,
}

impl Asking {
    /// Reads the asking pairs of a gallery, where they are enough for `what` is measured on them.
    ///
    /// # Errors
    ///
    /// A conflict where they are too few; those of the store.
    fn expect(store: &dyn Ledger, (old, new): (&Space, &Space), what: &str) -> Result<Self> {
        let asking = DrawnPairs::forecast_queries(store, old, new)?;
        if asking.pairs.may_be_reported() {
            return Ok(asking);
        }
        let detail = format!("{} pairs are held out; {HELD_OUT_MIN} are needed", asking.pairs.len());
        Err(Error::conflict(format!("{what} on pairs of {}", store.name()), detail)
            .advise(rehang_core::Remedy::DrawPairs))
    }

    /// Notes in the gallery which items ask, for the forecasts to come.
    fn keep(&self, store: &dyn Ledger, new: &str) -> Result<()> {
        if self.until.is_empty() { Ok(()) } else { note_until(store, new, &self.until) }
    }

    /// Tells a reader of a forecast that other items ask for it than for the one before; `None`
    /// where the same ones do.
    fn finding(&self) -> Option<Finding> {
        let (now, before) = (self.pairs.len(), self.before?);
        let message = format!("{now} items ask here, and {before} asked for the forecast before this one.");
        Some(Finding::note(FindingCode::MoreQueries, message).may_mean(
            "Numbers that a sample answers may have moved within their ranges, and the ranges are narrower.",
        ))
    }
}

/// Picks the native items of some records, and tells whether they are nearly all, so that none is
/// there for being hard.
fn natives_of(records: Vec<Record>) -> (Vec<Item>, bool) {
    let (count, mut native) = (records.len(), records);
    native.retain(sample::is_native);
    let is_random = native.len() as f64 >= sample::NATIVE_SHARE * count as f64;
    (native.into_iter().map(|record| record.item).collect(), is_random)
}

/// Pairs of a gallery, in the order of its shuffle.
#[derive(Debug, Clone)]
pub(crate) struct DrawnPairs {
    ids: Vec<String>,
    labels: Vec<Option<String>>,
    /// Number of characters of each source; NaN without a source.
    lengths: Vec<f64>,
    keys: Vec<f64>,
    payloads: Vec<Value>,
    held_out: Vec<bool>,
    old: Matrix,
    new: Matrix,
    /// Number of items that are no pairs, since one of their vectors cannot be placed.
    misplaced: usize,
}

impl DrawnPairs {
    /// Reads the pairs among the first `items` of a gallery's shuffle. An item that changes meanwhile is no
    /// pair. Nor is an item with a vector that cannot be placed: with NaN or infinite numbers, or without a
    /// direction where cosines are compared.
    ///
    /// # Errors
    ///
    /// Those of the store; nothing is found where there is no new space.
    pub fn read(store: &dyn Ledger, old: &Space, new: &Space, items: usize) -> Result<Self> {
        if find_space(store, &new.name)?.is_none() {
            return Self::from_items(store, old, new, Vec::new());
        }
        let records = sample::natives(store, &old.name, &new.name, items)?;
        Self::from_items(store, old, new, records.into_iter().map(|record| record.item).collect())
    }

    /// Reads the pairs among all natives, wherever they are in the shuffle: the first of it where there are
    /// more than a fit takes.
    ///
    /// # Errors
    ///
    /// Those of the store; cancelled where a stop is wanted.
    pub fn from_natives(
        store: &dyn Ledger,
        old: &Space,
        new: &Space,
        observer: &dyn Observer,
    ) -> Result<Self> {
        let for_each_native = |take: &mut dyn FnMut(Item)| -> Result<()> {
            let native = Select::Provenance(Provenance::Native);
            let mut walk = Some(Scan::new(&new.name, native, NATIVES_PAGE).without_contents());
            while let Some(page) = walk {
                expect_going(observer)?;
                let records = store.scan(&page)?;
                walk = page.following(&records);
                for record in records {
                    take(record.item);
                }
            }
            Ok(())
        };
        let mut first = FirstKeys::new(PAIRS_SEED, PAIRS_MAX);
        for_each_native(&mut |item| first.take(item.key))?;
        let chosen: BTreeSet<ItemKey> = first.keys().0.into_iter().collect();
        let mut ids = Vec::with_capacity(chosen.len());
        for_each_native(&mut |item| {
            if chosen.contains(&item.key) {
                ids.push(item.id);
            }
        })?;
        let mut items = Vec::with_capacity(ids.len());
        for ids in ids.chunks(NATIVES_PAGE) {
            let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
            items.extend(store.get(&ids)?.into_iter().flatten());
        }
        Self::from_items(store, old, new, items)
    }

    /// Reads the items that are kept for measuring, native or not: those held out among the first of the
    /// shuffle. So they are a random sample of what can be embedded, and no fit ever takes one of them. None
    /// in a gallery that is too small to measure on.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub fn items_kept_for_measuring(store: &dyn Ledger, old: &Space, new: &str) -> Result<Vec<Record>> {
        let items = usize::try_from(sample::embeddable(store, new)?).unwrap_or(usize::MAX);
        let kept_items = kept_for_measuring(items);
        if kept_items < MEASURED_MIN {
            return Ok(Vec::new());
        }
        Self::held_out_among(
            store,
            old,
            &sample::first_of_shuffle(store, new, (kept_items as f64 / HELD_OUT) as usize)?,
        )
    }

    /// Picks the held-out ones of some items, native or not.
    fn held_out_among(store: &dyn Ledger, old: &Space, first: &[Record]) -> Result<Vec<Record>> {
        let mut records = Vec::new();
        for page in first.chunks(NATIVES_PAGE) {
            let keys: Vec<ItemKey> = page.iter().map(|record| record.item.key).collect();
            let olds = store.vectors(&old.name, &keys)?;
            records.extend(page.iter().zip(olds).filter_map(|(record, before)| {
                let before = before?.vector;
                (old.distance.can_place(&before) && is_held_out(&before)).then(|| record.clone())
            }));
        }
        Ok(records)
    }

    /// Reads the pairs among the items that are kept for measuring; `None` until nearly all of these are
    /// native, since the first that are may be there for being the hardest.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub fn measured(store: &dyn Ledger, old: &Space, new: &Space) -> Result<Option<Self>> {
        let (native, is_random) = natives_of(Self::items_kept_for_measuring(store, old, &new.name)?);
        if native.len() < MEASURED_MIN || !is_random {
            return Ok(None);
        }
        Self::from_items(store, old, new, native).map(Some)
    }

    /// Reads the held-out pairs whose items are the queries of a forecast: a random sample of the gallery,
    /// and the same one for as long as an upgrade lasts. They are the held-out ones of the sample that was
    /// drawn, though a backfill has made more natives elsewhere, since it takes the worst first. Where they
    /// are fewer than 300, which a report warns of, the pairs that a run keeps for measuring take over, once
    /// they are more. An item that comes to the gallery may come to them.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub fn forecast_queries(store: &dyn Ledger, old: &Space, new: &Space) -> Result<Asking> {
        if find_space(store, &new.name)?.is_none() {
            let pairs = Self::from_items(store, old, new, Vec::new())?;
            return Ok(Asking { pairs, until: Vec::new(), before: None });
        }
        let noted_keys = asking_until(store, &new.name)?;
        let mut size = PAIRS_MAX;
        let mut asking = None;
        if !noted_keys.is_empty() {
            let mut first = sample::first_of_shuffle(store, &new.name, PAIRS_MAX)?;
            first.truncate(end_of(&first, &noted_keys));
            if !first.is_empty() {
                size = first.len();
                let (native, is_random) = natives_of(Self::held_out_among(store, old, &first)?);
                asking = is_random.then(|| (native, noted_keys.clone()));
            }
        }
        let (native, until) = if let Some(asking) = asking {
            asking
        } else {
            // No note says who asks: an earlier version has drawn the pairs, an application has embedded them
            // itself, or the gallery has grown. The queries are then among what is native by now.
            let drawn = sample::natives(store, &old.name, &new.name, size)?;
            (natives_of(Self::held_out_among(store, old, &drawn)?).0, last_of(&drawn))
        };
        let pairs = Self::from_items(store, old, new, native)?;
        if pairs.len() < QUERIES_MIN
            && let Some(kept_pairs) = Self::measured(store, old, new)?
            && kept_pairs.len() > pairs.len()
        {
            let before = Some(pairs.len()).filter(|&before| !noted_keys.is_empty() && before >= HELD_OUT_MIN);
            let until = last_of(&Self::items_kept_for_measuring(store, old, &new.name)?);
            return Ok(Asking { pairs: kept_pairs, until, before });
        }
        Ok(Asking { pairs, until, before: None })
    }

    /// Reads the pairs among some items.
    fn from_items(store: &dyn Ledger, old: &Space, new: &Space, items: Vec<Item>) -> Result<Self> {
        let mut pairs = Self {
            ids: Vec::new(),
            labels: Vec::new(),
            lengths: Vec::new(),
            keys: Vec::new(),
            payloads: Vec::new(),
            held_out: Vec::new(),
            old: Matrix::zeros(0, old.dimension),
            new: Matrix::zeros(0, new.dimension),
            misplaced: 0,
        };
        if items.is_empty() {
            return Ok(pairs);
        }
        let keys: Vec<_> = items.iter().map(|item| item.key).collect();
        let (mut olds, mut news) = (Vec::new(), Vec::new());
        let vectors = store.vectors(&old.name, &keys)?.into_iter().zip(store.vectors(&new.name, &keys)?);
        for (item, vectors) in items.into_iter().zip(vectors) {
            let (Some(before), Some(now)) = vectors else { continue };
            let is_of_one_content = before.revision == now.revision && now.provenance == Provenance::Native;
            let can_be_placed = old.distance.can_place(&before.vector) && new.distance.can_place(&now.vector);
            pairs.misplaced += usize::from(!can_be_placed);
            if !is_of_one_content || !can_be_placed {
                continue;
            }
            pairs.held_out.push(is_held_out(&before.vector));
            olds.extend(before.vector);
            news.extend(now.vector);
            pairs.ids.push(item.id);
            pairs.labels.push(item.label);
            pairs.lengths.push(item.source.map_or(f64::NAN, |source| source.chars().count() as f64));
            pairs.keys.push(item.key.bits() as f64);
            pairs.payloads.push(item.payload);
        }
        pairs.old = Matrix::new(old.dimension, olds)?;
        pairs.new = Matrix::new(new.dimension, news)?;
        Ok(pairs)
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Gives the vectors of the pairs, old and new, in spaces of the names of these.
    ///
    /// # Errors
    ///
    /// As [`Vectors::measured`].
    pub fn vectors(&self, (old, new): (&Space, &Space)) -> Result<(Vectors, Vectors)> {
        let vectors = |space: &Space, rows: &Matrix| {
            Vectors::measured(&space.name, space.distance, rows.clone(), &space.name)
        };
        Ok((vectors(old, &self.old)?, vectors(new, &self.new)?))
    }

    /// Number of pairs that are held out.
    pub fn held_out(&self) -> usize {
        self.held_out.iter().filter(|&&held_out| held_out).count()
    }

    /// Whether enough pairs are held out to be measured on.
    pub fn may_be_reported(&self) -> bool {
        self.held_out() >= HELD_OUT_MIN
    }

    /// Measures what the pairs are worth to a map; `None` where they are too few to say.
    pub fn learned(
        &self,
        old: &Space,
        new: &Space,
        observer: &dyn Observer,
    ) -> Result<Option<LearningCurve>> {
        let (of_old, of_new) = self.vectors((old, new))?;
        let pairs = rehang_core::Pairs::new(of_old, of_new, None, None)?;
        let own_progress = Progress::default();
        let progress = observer.counters().unwrap_or_else(|| {
            observer.observe(&Observation::Began { stage: MEASURING, unit: "maps", total: 0 });
            &own_progress
        });
        learning_curve(&pairs, 0, progress)
    }

    /// Writes the pairs into a folder: `old.npy`, `new.npy`, `ids.txt`, `held-out.npy` (1 where a pair is
    /// held out), and `labels.npy` where items have labels: numbers of the labels in the order of their
    /// names, −1 without one.
    pub fn write(&self, folder: &Path) -> Result<()> {
        if let Some(id) = self.ids.iter().find(|id| id.contains(['\n', '\r'])) {
            let detail =
                format!("the id {id:?} has a line break, so a list of ids would shift against the vectors");
            return Err(Error::corrupt("the gallery", detail));
        }
        fs_err::create_dir_all(folder).map_err(|error| Error::io("create", folder, &error))?;
        rehang_files::write_matrix(folder.join(OLD), &self.old, None)?;
        rehang_files::write_matrix(folder.join(NEW), &self.new, None)?;
        let ids = self.ids.iter().fold(String::new(), |lines, id| lines + id + "\n");
        AtomicFile::write(folder.join("ids.txt"), ids)?;
        rehang_files::write_labels(folder.join(HELD_OUT_ROWS), &self.held_out_rows())?;
        self.label_numbers().map_or(Ok(()), |labels| rehang_files::write_labels(folder.join(LABELS), &labels))
    }

    /// Gives the pairs as inputs held in memory, in the place of files.
    fn sources(self) -> PairSources {
        let values = |name, values| VectorSource::given(name, Scalars::Integers(values));
        PairSources {
            held_out: values("which pairs are held out", self.held_out_rows()),
            labels: self
                .label_numbers()
                .map(|labels| values("labels of the pairs", labels))
                .into_iter()
                .collect(),
            old: VectorSource::given("old vectors of the pairs", self.old),
            new: VectorSource::given("new vectors of the pairs", self.new),
        }
    }

    /// Lists what is known of the pairs that are not held out beside their vectors: label, fields of
    /// the payload, length of the source, key. Where some pairs are of another kind than the others,
    /// these traits say which.
    fn traits(&self) -> Vec<Trait> {
        /// Largest number of payload fields that are looked at. A text longer than
        /// `NAME_CHARACTERS_MAX` names no kind.
        const FIELDS_MAX: usize = 50;
        const NAME_CHARACTERS_MAX: usize = 60;
        let rows: Vec<usize> = (0..self.len()).filter(|&row| !self.held_out[row]).collect();
        let numbers = |values: &[f64]| rows.iter().map(|&row| values[row]).collect();
        let names =
            |name_of: &dyn Fn(usize) -> Option<String>| rows.iter().map(|&row| name_of(row)).collect();
        let mut traits = vec![Trait::names("label", names(&|row| self.labels[row].clone()))];
        let fields: BTreeSet<&String> = rows
            .iter()
            .filter_map(|&row| self.payloads[row].as_object())
            .flat_map(|fields| fields.keys())
            .collect();
        for field in fields.into_iter().take(FIELDS_MAX) {
            let value = |row: usize| self.payloads[row].get(field);
            let trait_name = format!("payload field {field:?}");
            if rows.iter().all(|&row| value(row).is_none_or(|value| value.is_number() || value.is_null())) {
                let number = |row: &usize| value(*row).and_then(Value::as_f64).unwrap_or(f64::NAN);
                traits.push(Trait::numbers(trait_name, rows.iter().map(number).collect()));
            } else {
                let name = |row: usize| match value(row)? {
                    Value::String(text) if text.chars().count() <= NAME_CHARACTERS_MAX => Some(text.clone()),
                    Value::Bool(flag) => Some(flag.to_string()),
                    _ => None,
                };
                traits.push(Trait::names(trait_name, names(&name)));
            }
        }
        traits.push(Trait::numbers("source length", numbers(&self.lengths)));
        traits.push(Trait::numbers("key", numbers(&self.keys)));
        traits
    }

    /// Reads the clicks on the pairs that are not held out, which are numbered by their place among these;
    /// `None` where no clicks are kept.
    fn clicks_of_known(
        &self,
        kept_queries: KeptQueries<'_>,
        (old, new): (&Space, &Space),
    ) -> Result<Option<ClicksOfPairs>> {
        // Vectors are read only where there are clicks.
        let Some(fingerprint) = kept_queries.clicks_fingerprint()? else { return Ok(None) };
        let Some(by_both) = kept_queries.vectors(old, new)? else { return Ok(None) };
        let known_ids = (0..self.len()).filter(|&row| !self.held_out[row]).map(|row| self.ids[row].as_str());
        let judged = kept_queries.judged(known_ids, by_both.new.rows())?.unwrap_or_default();
        Ok(Some(ClicksOfPairs { judged, fingerprint }))
    }

    /// Gives 1 for each pair that is held out, and 0 for each other one.
    fn held_out_rows(&self) -> Vec<i64> {
        self.held_out.iter().map(|&held_out| i64::from(held_out)).collect()
    }

    fn label_numbers(&self) -> Option<Vec<i64>> {
        label_numbers(&self.labels)
    }
}

/// Numbers the labels in the order of their names, −1 without one; `None` where no item has a label.
pub(crate) fn label_numbers(labels: &[Option<String>]) -> Option<Vec<i64>> {
    let mut numbers: BTreeMap<&str, i64> = labels.iter().flatten().map(|label| (label.as_str(), 0)).collect();
    for (number, place) in (0..).zip(numbers.values_mut()) {
        *place = number;
    }
    let number = |label: &Option<String>| label.as_deref().map_or(-1, |label| numbers[label]);
    (!numbers.is_empty()).then(|| labels.iter().map(number).collect())
}

/// Queries with a clicked item among the pairs below which no choice is made by clicks: with fewer
/// it would be chance.
const CLICKED_MIN: usize = 30;

/// Clicks on the pairs that a fit learns from.
struct ClicksOfPairs {
    judged: Qrels,
    /// Fingerprint of all clicks that are kept.
    fingerprint: String,
}

impl ClicksOfPairs {
    /// Counts the queries with a right answer among the pairs.
    fn queries(&self) -> usize {
        let is_right = |query: &usize| self.judged.query(*query).iter().any(|(_, gain)| *gain > 0.0);
        (0..self.judged.len()).filter(is_right).count()
    }

    /// Gives the judgements, where they are of enough queries to choose by.
    fn enough(self) -> Option<Qrels> {
        (self.queries() >= CLICKED_MIN).then_some(self.judged)
    }

    /// Tells that the clicks are of too few queries to choose by; `None` where they are enough.
    fn finding(&self) -> Option<Finding> {
        let queries = self.queries();
        let message = format!(
            "{queries} queries have a clicked item among the pairs; {CLICKED_MIN} are needed to choose by clicks, so what is chosen agrees most with \
             the new model's own answers to all queries."
        );
        let finding = Finding::note(FindingCode::FewClicks, message)
            .remedy("Draw more pairs, or give clicks of more queries.");
        (queries < CLICKED_MIN).then_some(finding)
    }
}

/// Name of the file of the pairs' old vectors; the names of the other files follow.
const OLD: &str = "old.npy";
const NEW: &str = "new.npy";
const HELD_OUT_ROWS: &str = "held-out.npy";
const LABELS: &str = "labels.npy";

/// Pairs as the inputs of a fit or a report, in memory in the place of files.
struct PairSources {
    old: VectorSource,
    new: VectorSource,
    held_out: VectorSource,
    /// Labels of the pairs, one source of them; none where no item has a label.
    labels: Vec<VectorSource>,
}

impl PairSources {
    /// Selects the rows that are held out, or all others.
    fn rows(&self, held_out: bool) -> RowSelection {
        RowSelection { file: self.held_out.clone(), values: vec![i64::from(held_out)] }
    }
}

/// Largest count of numbers of old vectors that a forecast reads (256 MiB): memory is bounded.
const GALLERY_NUMBERS_MAX: usize = 1 << 26;

/// Gallery that a forecast is of, as far as the forecast needs it.
struct ForecastGallery {
    old: VectorSource,
    labels: Option<VectorSource>,
    /// Id of every row.
    ids: Vec<String>,
    /// Number of items of the gallery; more than there are rows where these are a random part.
    items: usize,
}

impl ForecastGallery {
    /// Reads every old vector of the gallery, or those of a random part, where `all` are wanted, or
    /// where it has labels and these say what a right answer is (`by_label`). Agreement depends on no
    /// more than the number of items. The held-out pairs are in it in any case, before all others: an
    /// item may change meanwhile.
    fn read(
        store: &dyn Ledger,
        space: &Space,
        pairs: &DrawnPairs,
        (by_label, all): (bool, bool),
        progress: &Progress,
    ) -> Result<Self> {
        let counts = store.counts(&space.name)?;
        let counted = usize::try_from(counts.items.saturating_sub(counts.lacking)).unwrap_or(usize::MAX);
        let held_out: Vec<usize> = (0..pairs.len()).filter(|&row| pairs.held_out[row]).collect();
        let mut values: Vec<f32> =
            held_out.iter().flat_map(|&row| pairs.old.row(row).iter().copied()).collect();
        let mut labels: Vec<Option<String>> = held_out.iter().map(|&row| pairs.labels[row].clone()).collect();
        let mut ids: Vec<String> = held_out.iter().map(|&row| pairs.ids[row].clone()).collect();
        let mut items = counted.max(held_out.len());
        if all || (by_label && pairs.labels.iter().any(Option::is_some)) {
            let held_out_ids: BTreeSet<&str> = held_out.iter().map(|&row| pairs.ids[row].as_str()).collect();
            let items_max = GALLERY_NUMBERS_MAX / space.dimension.max(1);
            let mut drawn = sample::draw(store, &space.name, items_max, None)?;
            let is_whole = drawn.len() < items_max;
            progress.begin("reading the gallery", "vectors", drawn.len() as u64);
            for page in drawn.chunks_mut(NATIVES_PAGE) {
                progress.check()?;
                let keys: Vec<ItemKey> = page.iter().map(|record| record.item.key).collect();
                for (record, vector) in page.iter_mut().zip(store.vectors(&space.name, &keys)?) {
                    let Some(vector) = vector else { continue };
                    let is_pair = held_out_ids.contains(record.item.id.as_str());
                    if !is_pair && space.distance.can_place(&vector.vector) {
                        values.extend(vector.vector);
                        labels.push(record.item.label.take());
                        ids.push(mem::take(&mut record.item.id));
                    }
                }
                progress.advance(keys.len() as u64);
            }
            if is_whole {
                items = labels.len();
            }
        }
        let old = Matrix::new(space.dimension, values)?;
        let numbers = label_numbers(&labels).filter(|_| by_label);
        Ok(Self {
            items: items.max(old.rows()),
            old: VectorSource::given("the gallery", old),
            ids,
            labels: numbers
                .map(|numbers| VectorSource::given("the gallery's labels", Scalars::Integers(numbers))),
        })
    }
}

/// Fits an adapter on those pairs that are not held out, and keeps and names it in the gallery.
pub(crate) fn fit(
    store: &dyn Ledger,
    (old, new): (&Space, &Space),
    (method, within): (Method, Option<Within>),
    progress: &Progress,
) -> Result<FitAnswer> {
    let pairs = DrawnPairs::read(store, old, new, PAIRS_MAX)?;
    if pairs.len() == pairs.held_out() {
        return Err(Error::missing("pairs", format!("an adapter from {:?} to {:?}", old.name, new.name))
            .advise(rehang_core::Remedy::DrawPairs));
    }
    let misplaced = pairs.misplaced;
    let parameters = FitParameters { method, within, traits: pairs.traits(), ..FitParameters::default() };
    let held_out: Vec<usize> = (0..pairs.len()).filter(|&row| pairs.held_out[row]).collect();
    let [old_held_out, new_held_out] = [&pairs.old, &pairs.new].map(|rows| rows.select(&held_out));
    let kept_queries = KeptQueries::for_store(store);
    let clicks = pairs.clicks_of_known(kept_queries, (old, new))?;
    let few_clicks = clicks.as_ref().and_then(ClicksOfPairs::finding);
    let mut answer = fit_on((pairs.sources(), clicks), kept_queries, (old, new), parameters, progress)?;
    answer.findings.extend(few_clicks);
    if misplaced > 0 {
        let message = format!(
            "{misplaced} native items are no pairs: one of their two vectors has no direction (its length is 0), or numbers that are not finite"
        );
        answer.findings.push(Finding::warning(FindingCode::NoDirection, message));
    }
    let error = error_of(&answer.fitted.adapter, old_held_out, &new_held_out)?;
    let fingerprint = keep_fitted(store, &answer.fitted, error)?;
    note(store, &document(&new.name), &fingerprint)?;
    clear_unused(store)?;
    Ok(answer)
}

/// Measures the error of a map on pairs that were held out; `None` where they are too few.
fn error_of(adapter: &Adapter, old: Matrix, new: &Matrix) -> Result<Option<MeanError>> {
    let old = Vectors::measured(&adapter.old.name, adapter.old.distance, old, "pairs")?;
    let applied = rehang_core::adapter::apply(adapter, &old, None, &Progress::default())?;
    Ok(MeanError::from_errors(&rehang_core::adapter::true_errors(new, applied.vectors.matrix())))
}

/// Reads the error of a map on those of its pairs that were held out; `None` where it was not fitted here, or
/// they were too few.
///
/// # Errors
///
/// Those of the store.
pub(crate) fn error_on_held_out(store: &dyn Ledger, fingerprint: &str) -> Result<Option<MeanError>> {
    Ok(Learned::read(store, fingerprint)?.error)
}

/// Fits the method of a map again, on all natives that are not held out, and keeps nothing. Gives the new map
/// with how many pairs it was fitted on; `None` where there are no pairs.
pub(crate) fn fit_again(
    store: &dyn Ledger,
    (old, new): (&Space, &Space),
    method: Method,
    observer: &dyn Observer,
    progress: &Progress,
) -> Result<Option<(Fitted, usize)>> {
    let pairs = DrawnPairs::from_natives(store, old, new, observer)?;
    let count = pairs.len() - pairs.held_out();
    if count == 0 {
        return Ok(None);
    }
    // The method was chosen among others when the map was fitted first.
    let parameters = FitParameters { method, compare: false, ..FitParameters::default() };
    let kept_queries = KeptQueries::for_store(store);
    let clicks = pairs.clicks_of_known(kept_queries, (old, new))?;
    Ok(Some((
        fit_on((pairs.sources(), clicks), kept_queries, (old, new), parameters, progress)?.fitted,
        count,
    )))
}

/// Fits an adapter on those pairs that are not held out.
fn fit_on(
    (pairs, clicks): (PairSources, Option<ClicksOfPairs>),
    kept_queries: KeptQueries<'_>,
    (old, new): (&Space, &Space),
    parameters: FitParameters,
    progress: &Progress,
) -> Result<FitAnswer> {
    let (queries_old, queries_new) = kept_queries.vectors(old, new)?.map(ByBoth::sources).unzip();
    let fingerprint = clicks.as_ref().map(|clicks| clicks.fingerprint.clone());
    let mut answer = fit_files(
        &FitFiles {
            queries_old,
            queries_new,
            judged: clicks.and_then(ClicksOfPairs::enough),
            rows: Some(pairs.rows(false)),
            labels: pairs.labels,
            old_model: old.name.clone(),
            new_model: new.name.clone(),
            distance: new.distance,
            old_distance: Some(old.distance),
            parameters,
            ..FitFiles::new(pairs.old, pairs.new)
        },
        progress,
    )?;
    let inputs = &mut answer.fitted.adapter.training.inputs;
    inputs.extend(fingerprint.map(|fingerprint| (CLICKS.to_owned(), fingerprint)));
    Ok(answer)
}

/// Fits a bridge on those pairs that are not held out, and by the queries that are kept. Nothing is changed.
pub(crate) fn fit_bridge(
    store: &dyn Ledger,
    (old, new): (&Space, &Space),
    progress: &Progress,
) -> Result<FittedBridge> {
    let (pairs, queries) = known_pairs(store, (old, new), (PAIRS_MAX, "a bridge"))?;
    rehang_fit::fit_bridge(&pairs, &FitParameters { queries, ..FitParameters::default() }, progress)
}

/// Reads the pairs that are not held out among the first `most` items of the shuffle, and the queries that
/// are kept: an order and a bridge are learned from both. An error calls it `what`.
fn known_pairs(
    store: &dyn Ledger,
    (old, new): (&Space, &Space),
    (most, what): (usize, &str),
) -> Result<(rehang_core::Pairs, Option<FitQueries>)> {
    let drawn = DrawnPairs::read(store, old, new, most)?;
    let known_rows: Vec<usize> = (0..drawn.len()).filter(|&row| !drawn.held_out[row]).collect();
    if known_rows.is_empty() {
        return Err(Error::missing("pairs", format!("{what} between {:?} and {:?}", old.name, new.name))
            .advise(rehang_core::Remedy::DrawPairs));
    }
    let vectors = |space: &Space, rows: &Matrix| {
        Vectors::measured(&space.name, space.distance, rows.select(&known_rows), &space.name)
    };
    let labels = drawn.label_numbers().map(|labels| known_rows.iter().map(|&row| labels[row]).collect());
    let pairs = rehang_core::Pairs::new(vectors(old, &drawn.old)?, vectors(new, &drawn.new)?, labels, None)?;
    let kept_queries = KeptQueries::for_store(store);
    let queries = match kept_queries.vectors(old, new)? {
        None => None,
        Some(ByBoth { old: by_old, new: by_new }) => Some(FitQueries {
            old: by_old,
            new: by_new,
            qrels: drawn.clicks_of_known(kept_queries, (old, new))?.and_then(ClicksOfPairs::enough),
        }),
    };
    Ok((pairs, queries))
}

/// Report on what an adapter is worth, by held-out pairs.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct UpgradeReport {
    /// Report with its numbers and warnings.
    pub report: Report,
    /// Ids of the held-out items that it was measured on.
    pub asked: Vec<String>,
    /// Findings about the inputs, beside the warnings in the report.
    pub findings: Vec<Finding>,
}

/// Measures an adapter on the pairs that are held out, and keeps the report in the gallery.
pub(crate) fn measure(
    store: &dyn Ledger,
    (old, new): (&Space, &Space),
    adapter: Arc<Adapter>,
    progress: &Progress,
) -> Result<UpgradeReport> {
    let asking = Asking::expect(store, (old, new), "a report")?;
    let query_finding = asking.finding();
    asking.keep(store, &new.name)?;
    let pairs = asking.pairs;
    progress.check()?;
    let kept_queries = KeptQueries::for_store(store);
    let queries = kept_queries.vectors(old, new)?;
    let clicks = kept_queries.clicks_fingerprint()?.filter(|_| queries.is_some());
    let gallery = ForecastGallery::read(store, old, &pairs, (queries.is_none(), clicks.is_some()), progress)?;
    let judged = match (&queries, clicks) {
        (Some(by_both), Some(fingerprint)) => {
            let count = by_both.new.rows();
            let judged =
                kept_queries.judged(gallery.ids.iter().map(String::as_str), count)?.unwrap_or_default();
            Some(GalleryJudgements { judged, fingerprint })
        }
        _ => None,
    };
    // Agreement proves nothing of a bridge that a report can show, and after the switch no search could use
    // one. A report is worth having without one.
    let recorded = Recorded::read(store)?;
    let may_be_bridged = recorded.is_none_or(|recorded| expect_may_bridge(store, &recorded.record).is_ok());
    let mut unbridged = None;
    let bridge = if (gallery.labels.is_some() || judged.is_some()) && may_be_bridged {
        match fit_bridge(store, (old, new), progress) {
            Ok(fitted) => fitted.bridge,
            Err(error) if error.is_cancelled() => return Err(error),
            Err(error) => {
                let message = format!("what a bridge would bring is not known: {error}");
                unbridged = Some(Finding::note(FindingCode::NoBridge, message));
                None
            }
        }
    } else {
        None
    };
    let held_out = pairs.ids.iter().zip(&pairs.held_out).filter(|(_, held_out)| **held_out);
    let measured_on = held_out.map(|(id, _)| id.clone()).collect();
    let pairs = pairs.sources();
    let rows = pairs.rows(true);
    let fingerprint = rehang_files::adapter_file::fingerprint(&adapter)?;
    let adapter = AdapterSource::Given(adapter.training.method.clone(), adapter);
    let mut report_files = ReportFiles::new(vec![adapter], pairs.old, pairs.new);
    report_files.rows = Some(rows);
    report_files.gallery = vec![gallery.old];
    report_files.gallery_labels = gallery.labels.into_iter().collect();
    report_files.gallery_items = Some(gallery.items);
    report_files.bridge = bridge;
    report_files.judged = judged;
    // Kept queries ask as people do: an item's class says nothing of what a query wanted. Without queries the
    // gallery's labels are those of the pairs too.
    if let Some((by_old, by_new)) = queries.map(ByBoth::sources) {
        (report_files.answers.queries_old, report_files.answers.queries) = (Some(by_old), Some(by_new));
    }
    report_files.title = format!("From {} to {}: what would it buy?", old.name, new.name);
    let mut reported = report(&report_files, progress)?;
    reported.report.warnings.extend(query_finding);
    let text = serde_json::to_vec(&reported.report).map_err(|error| Error::corrupt("the report", error))?;
    kept::write(store, Kind::Report, &fingerprint, &text)?;
    let findings = reported.findings.into_iter().chain(unbridged).collect();
    Ok(UpgradeReport { report: reported.report, asked: measured_on, findings })
}

/// Carries an application's floors over to the new model, or the usual ones where `values` is empty. The
/// held-out pairs ask, or the queries that are kept, as for a report.
///
/// # Errors
///
/// A conflict where too few pairs are held out; as [`floors`].
pub(crate) fn thresholds(
    store: &dyn Ledger,
    (old, new): (&Space, &Space),
    adapter: &Adapter,
    values: &[f64],
    progress: &Progress,
) -> Result<Floors> {
    let pairs = Asking::expect(store, (old, new), "floors")?.pairs;
    let forecast_gallery = ForecastGallery::read(store, old, &pairs, (false, true), progress)?;
    let gallery = rehang_files::read_matrix(&forecast_gallery.old)?;
    let gallery = Vectors::new(adapter.old.clone(), gallery, "the gallery")?;
    let adapted = rehang_core::adapter::apply(adapter, &gallery, None, progress)?;
    let native = Vectors::new(adapter.new.clone(), pairs.new.clone(), "native vectors")?;
    let queries = KeptQueries::for_store(store).vectors(old, new)?;
    let held_out: Vec<usize> = (0..pairs.len()).collect();
    let input = FloorsInput {
        old: &gallery,
        adapted: &adapted.vectors,
        handicap: adapter.handicap,
        items: forecast_gallery.items,
        held_out: &held_out,
        native: &native,
        queries: queries.as_ref().map(|ByBoth { old, new }| StudyQueries { new, old: Some(old) }),
    };
    let moved_floors = floors(&input, Some(values).filter(|values| !values.is_empty()), progress)?;
    moved_floors.ok_or_else(|| Error::missing("queries of the old model", "floors"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clicks_of_few_queries_choose_nothing_and_that_is_said() {
        let with_clicked = |clicked: usize| {
            let judged =
                (0..50).map(|query| if query < clicked { vec![(query, 1.0)] } else { vec![(0, 0.0)] });
            let judged = Qrels::new(judged.collect()).unwrap();
            ClicksOfPairs { judged, fingerprint: String::new() }
        };
        assert!(
            with_clicked(CLICKED_MIN).enough().is_some() && with_clicked(CLICKED_MIN).finding().is_none()
        );
        let few = with_clicked(CLICKED_MIN - 1);
        assert!(few.finding().unwrap().seen.starts_with("29 queries have a clicked item among the pairs"));
        assert!(few.enough().is_none());
    }

    /// No map can learn of an item without a direction, whichever model has given none: natives of before,
    /// and what the application has.
    #[test]
    fn a_vector_without_a_direction_is_no_pair() {
        use rehang_core::{Distance, Provenance};
        use rehang_store::{ItemWrite, NewVector};

        let store = rehang_store_tests::MemoryStore::new();
        let (old, new) =
            (Space::new("old", 2, Distance::Cosine, false), Space::new("new", 2, Distance::Cosine, false));
        store.create_space(&old, Provenance::Old).unwrap();
        store.create_space(&new, Provenance::Native).unwrap();
        let put = |id: &str, vector: [f32; 2]| {
            let vectors = vec![
                NewVector::from_model("old", vector.to_vec(), Provenance::Old),
                NewVector::from_model("new", vec![1.0, 0.0], Provenance::Native),
            ];
            store.put(&[ItemWrite::new(id, Some(id.to_owned()), vectors)]).unwrap();
        };
        put("a", [1.0, 2.0]);
        put("b", [0.0, 0.0]);
        put("c", [0.0, 2.0]);
        let pairs = DrawnPairs::read(&store, &old, &new, 9).unwrap();
        assert_eq!((pairs.len(), pairs.misplaced), (2, 1));
        assert!(!pairs.ids.contains(&"b".to_owned()), "{:?}", pairs.ids);
    }

    #[test]
    fn a_forecast_is_of_the_whole_gallery_or_of_its_number_of_items() {
        use rehang_core::{Distance, Provenance};
        use rehang_files::InputReader;
        use rehang_store::{ItemWrite, NewVector};

        let store = rehang_store_tests::MemoryStore::new();
        let (old, new) =
            (Space::new("old", 2, Distance::Cosine, false), Space::new("new", 2, Distance::Cosine, false));
        store.create_space(&old, Provenance::Old).unwrap();
        store.create_space(&new, Provenance::Native).unwrap();
        for item in 0..40_u8 {
            // One item has no direction, and one no old vector.
            let length = if item == 7 { 0.0 } else { 1.0 + f32::from(item) };
            let mut vectors = vec![NewVector::from_model("old", vec![length, 0.0], Provenance::Old)];
            if item == 9 {
                vectors.clear();
            }
            vectors.push(NewVector::from_model("new", vec![1.0, length], Provenance::Native));
            let label = (item % 5 > 0).then(|| format!("class {}", item % 5));
            store
                .put(&[ItemWrite { label, ..ItemWrite::new(format!("d{item}"), Some("x".into()), vectors) }])
                .unwrap();
        }
        let pairs = DrawnPairs::read(&store, &old, &new, 40).unwrap();
        let held_out: Vec<usize> = (0..pairs.len()).filter(|&row| pairs.held_out[row]).collect();
        assert!(!held_out.is_empty() && held_out.len() < pairs.len());
        let read = |gallery: &ForecastGallery| {
            let mut inputs = InputReader::new(None).unwrap();
            inputs.matrix("gallery", std::slice::from_ref(&gallery.old)).unwrap()
        };
        // Labels need all items that can be placed, the held-out ones first and once.
        let gallery =
            ForecastGallery::read(&store, &old, &pairs, (true, false), &Progress::default()).unwrap();
        let rows = read(&gallery);
        assert_eq!((rows.rows(), gallery.items, gallery.labels.is_some()), (38, 38, true));
        for (row, &pair) in held_out.iter().enumerate() {
            assert_eq!(rows.row(row), pairs.old.row(pair));
        }
        let mut lengths: Vec<u32> = (0..38).map(|row| rows.row(row)[0] as u32).collect();
        lengths.sort_unstable();
        lengths.dedup();
        assert_eq!(lengths.len(), 38);
        // Queries without labels need the number of items alone.
        let gallery =
            ForecastGallery::read(&store, &old, &pairs, (false, false), &Progress::default()).unwrap();
        assert_eq!(
            (read(&gallery).rows(), gallery.items, gallery.labels.is_some()),
            (held_out.len(), 39, false)
        );
    }
}
