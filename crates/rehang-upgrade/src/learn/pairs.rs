//! Pairs of a gallery, drawn from it as natives of the new space.
//!
//! No list of the pairs is kept: they are the items at the beginning of the gallery's shuffle
//! ([`crate::live::sample`]) that are native and have an old vector. A pair's old vector alone decides
//! whether it is held out. So nothing can disagree with the gallery. Held-out pairs stay held out in a larger
//! sample, and an item that is in the gallery twice is held out both times or never.
//!
//! Sources are known here, so whoever measures or chooses is told which pairs are
//! [copies](rehang_core::copies). These stay pairs: maps are fitted on the gallery as it is.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::path::{Path, PathBuf};

use rehang_core::copies::{BySource, without_copies};
use rehang_core::curve::Qrels;
use rehang_core::finding::{Finding, FindingCode};
use rehang_core::{Error, Matrix, Progress, Provenance, Result, Space, Vectors};
use rehang_encode::Spent;
use rehang_files::{AtomicFile, RowSelection, Scalars, VectorSource};
use rehang_fit::refit::{MEASURED_MIN, kept_for_measuring};
use rehang_fit::{FitParameters, FitQueries, LearningCurve, OtherItems, Trait, learning_curve};
use rehang_store::{
    FirstKeys, Item, ItemKey, Ledger, PAIRS_SEED, Record, Scan, Select, find_space, shuffled,
};
use serde::Serialize;
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use crate::learn::asked::{ByBoth, ClicksKept, KeptQueries};
use crate::live::backfill::Ending;
use crate::live::limits::RunOptions;
use crate::live::sample;
use crate::observe::{Observation, Observer, expect_going};
use crate::setup::as_sentences;

/// Largest number of pairs that a fit takes: memory and time are bounded.
pub(crate) const PAIRS_MAX: usize = 20_000;
/// Share of the pairs that is held out.
pub(crate) const HELD_OUT_SHARE: f64 = 0.2;
/// Seed of the shuffle that says which pairs are held out.
const HELD_OUT_SEED: u64 = 0x4e1d_0a7e;
/// Held-out pairs below which no report is made. They are searched among each other, and where the first ten
/// results are most of what there is, every model has them.
pub(super) const HELD_OUT_MIN: usize = 30;
/// Whether enough of so many pairs would be held out for a report.
pub(crate) fn may_hold_out_of(pairs: u64) -> bool {
    pairs as f64 * HELD_OUT_SHARE >= HELD_OUT_MIN as f64
}

/// Natives that are read at a time.
const NATIVES_PAGE: usize = 2048;
/// Items of the first sample; each further one is twice as large.
pub(crate) const FIRST_SAMPLE: usize = 250;

/// Name of the stage of [`DrawnPairs::learned`], which takes as long as embedding does
/// where vectors are wide.
const MEASURING: &str = "measuring what pairs are worth";

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
    shuffled(HELD_OUT_SEED, ItemKey::from(mixed)) < HELD_OUT_SHARE
}

/// Picks the native items of some records, and tells whether they are nearly all, so that none is
/// there for being hard.
pub(super) fn natives_of(records: Vec<Record>) -> (Vec<Item>, bool) {
    let (count, mut native) = (records.len(), records);
    native.retain(sample::is_native);
    let is_random = native.len() as f64 >= sample::NATIVE_SHARE * count as f64;
    (native.into_iter().map(|record| record.item).collect(), is_random)
}

/// Numbers an item's source by a hash, which equal sources have in common; an item without a source has a
/// number of its own.
fn source_number(item: &Item) -> u64 {
    match &item.source {
        Some(source) => xxh3_64(source.as_bytes()),
        None => xxh3_64(&item.key.bits().to_le_bytes()),
    }
}

/// Pairs of a gallery, in the order of its shuffle.
#[derive(Debug, Clone)]
pub(crate) struct DrawnPairs {
    pub(super) ids: Vec<String>,
    pub(super) labels: Vec<Option<String>>,
    /// Number of each source ([`source_number`]).
    pub(super) source_numbers: Vec<u64>,
    /// Number of characters of each source; NaN without a source.
    lengths: Vec<f64>,
    keys: Vec<f64>,
    payloads: Vec<Value>,
    held_out: Vec<bool>,
    pub(super) old: Matrix,
    pub(super) new: Matrix,
    /// Number of items that are no pairs, since one of their vectors cannot be placed.
    pub(super) misplaced: usize,
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
            &sample::first_of_shuffle(store, new, (kept_items as f64 / HELD_OUT_SHARE) as usize)?,
        )
    }

    /// Picks the held-out ones of some items, native or not.
    pub fn held_out_among(store: &dyn Ledger, old: &Space, first: &[Record]) -> Result<Vec<Record>> {
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

    /// Reads the pairs among some items.
    pub fn from_items(store: &dyn Ledger, old: &Space, new: &Space, items: Vec<Item>) -> Result<Self> {
        let mut pairs = Self {
            ids: Vec::new(),
            labels: Vec::new(),
            source_numbers: Vec::new(),
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
            pairs.source_numbers.push(source_number(&item));
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

    /// Lists the rows of the pairs that are held out, or of all others.
    pub fn rows(&self, held_out: bool) -> Vec<usize> {
        (0..self.len()).filter(|&row| self.held_out[row] == held_out).collect()
    }

    /// Lists the held-out pairs that are no copies of an earlier pair.
    pub fn held_out_without_copies(&self) -> Vec<usize> {
        let mut rows = without_copies(&self.old, &self.new, &self.source_numbers);
        rows.retain(|&row| self.held_out[row]);
        rows
    }

    /// Takes the copies out of the held-out pairs, which ask for each other, and returns how many they are.
    pub fn leave_out_copies(&mut self) -> usize {
        let (before, rows) = (self.held_out(), self.held_out_without_copies());
        self.held_out = (0..self.len()).map(|row| rows.binary_search(&row).is_ok()).collect();
        before - rows.len()
    }

    /// Numbers the sources of the pairs that are not held out.
    pub fn known_source_numbers(&self) -> Vec<u64> {
        self.rows(false).into_iter().map(|row| self.source_numbers[row]).collect()
    }

    /// Whether enough pairs are held out to be measured on; copies do not count.
    pub fn may_be_reported(&self) -> bool {
        self.held_out_without_copies().len() >= HELD_OUT_MIN
    }

    /// Measures what the pairs are worth to a map; `None` where they are too few to say. Copies teach
    /// nothing, and would answer each other.
    pub fn learned(
        &self,
        old: &Space,
        new: &Space,
        observer: &dyn Observer,
    ) -> Result<Option<LearningCurve>> {
        let (of_old, of_new) = self.vectors((old, new))?;
        let rows = without_copies(&self.old, &self.new, &self.source_numbers);
        let pairs = rehang_core::Pairs::new(of_old, of_new, None, None)?.select(&rows);
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
        label_numbers(&self.labels)
            .map_or(Ok(()), |labels| rehang_files::write_labels(folder.join(LABELS), &labels))
    }

    /// Gives the pairs as inputs held in memory, in the place of files.
    pub(super) fn sources(self) -> PairSources {
        let values = |name, values| VectorSource::given(name, Scalars::Integers(values));
        PairSources {
            held_out: values("which pairs are held out", self.held_out_rows()),
            labels: label_numbers(&self.labels)
                .map(|labels| values("labels of the pairs", labels))
                .into_iter()
                .collect(),
            old: VectorSource::given("old vectors of the pairs", self.old),
            new: VectorSource::given("new vectors of the pairs", self.new),
        }
    }

    /// Reads the ids and labels of items beside the pairs: of the first `most` of `drawn` that are no pairs,
    /// those with an old vector that can be placed. A copy of a pair, or of another item, is left out unless
    /// it is wanted. The old vectors are appended to `values`.
    ///
    /// # Errors
    ///
    /// Those of the store; cancelled by `progress`.
    pub(super) fn rest(
        &self,
        store: &dyn Ledger,
        old: &Space,
        mut drawn: Vec<Item>,
        (most, with_copies): (usize, bool),
        values: &mut Vec<f32>,
        progress: &Progress,
    ) -> Result<Vec<(String, Option<String>)>> {
        let ids: BTreeSet<&str> = self.ids.iter().map(String::as_str).collect();
        let total = drawn.len();
        drawn.retain(|item| !ids.contains(item.id.as_str()));
        progress.begin("reading the gallery", "vectors", total as u64);
        progress.advance((total - drawn.len()) as u64);
        drawn.truncate(most);
        let mut by_source = BySource::default();
        for (row, &source) in self.source_numbers.iter().enumerate() {
            by_source.earlier(source, row, |row| self.old.row(row));
        }
        let (start, width, mut items) = (values.len(), old.dimension, Vec::new());
        for page in drawn.chunks_mut(NATIVES_PAGE) {
            progress.check()?;
            let keys: Vec<ItemKey> = page.iter().map(|item| item.key).collect();
            for (item, vector) in page.iter_mut().zip(store.vectors(&old.name, &keys)?) {
                let Some(vector) = vector.filter(|vector| old.distance.can_place(&vector.vector)) else {
                    continue;
                };
                values.extend(vector.vector);
                let old_of = |row: usize| {
                    row.checked_sub(self.len())
                        .map_or_else(|| self.old.row(row), |place| &values[start + place * width..][..width])
                };
                let row = self.len() + items.len();
                if !with_copies && by_source.earlier(source_number(item), row, old_of).is_some() {
                    values.truncate(start + items.len() * width);
                } else {
                    items.push((mem::take(&mut item.id), item.label.take()));
                }
            }
            progress.advance(keys.len() as u64);
        }
        Ok(items)
    }

    /// Reads items of the gallery that are neither pairs nor copies, with their old vectors: those that were
    /// clicked, where queries and clicks are kept, and then others in random order. `None` where neither
    /// enough clicks nor labels of the pairs would say what is right among them.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub fn others(&self, store: &dyn Ledger, (old, new): (&Space, &Space)) -> Result<Option<OtherItems>> {
        /// Largest number of clicked items, so that the others are as many.
        const CLICKED_MAX: usize = OtherItems::ITEMS_MAX / 2;
        let kept_queries = KeptQueries::for_store(store);
        let queries = kept_queries.vectors(old, new)?.map(|by_both| by_both.new.rows());
        let mut clicked = match queries {
            Some(_) => kept_queries.clicked_items()?,
            None => Vec::new(),
        };
        let numbers = label_numbers(&self.labels).filter(|_| queries.is_none());
        if numbers.is_none() && clicked.is_empty() {
            return Ok(None);
        }
        clicked.truncate(CLICKED_MAX);
        let ids: Vec<&str> = clicked.iter().map(String::as_str).collect();
        let mut drawn: Vec<Item> = store.get(&ids)?.into_iter().flatten().collect();
        let ids: BTreeSet<&str> = ids.into_iter().collect();
        let sample = sample::draw(store, &old.name, OtherItems::ITEMS_MAX + self.len(), None)?;
        drawn.extend(sample.into_iter().map(|record| record.item).filter(|item| !ids.contains(&*item.id)));
        let (mut values, limits) = (Vec::new(), (OtherItems::ITEMS_MAX, false));
        // A copy of a pair, or of another item, is neither a right nor a wrong answer.
        let items = self.rest(store, old, drawn, limits, &mut values, &Progress::default())?;
        let judged = match queries {
            Some(queries) => kept_queries.judged(items.iter().map(|(id, _)| id.as_str()), queries)?,
            None => None,
        };
        let judged = judged.filter(|judged| queries_answered(judged) >= CLICKED_MIN);
        let number_of: BTreeMap<&str, i64> = self
            .labels
            .iter()
            .zip(numbers.unwrap_or_default())
            .filter_map(|(label, number)| Some((label.as_deref()?, number)))
            .collect();
        // No pair asks for a label that no pair has.
        let number = |label: &Option<String>| number_of.get(label.as_deref()?).copied();
        let labels = items.iter().map(|(_, label)| number(label).unwrap_or(-1)).collect();
        let old = Matrix::new(old.dimension, values)?;
        Ok((judged.is_some() || queries.is_none()).then_some(OtherItems { old, labels, judged }))
    }

    /// Lists what is known of the pairs that are not held out beside their vectors: label, fields of
    /// the payload, length of the source, key. Where some pairs are of another kind than the others,
    /// these traits say which.
    pub fn traits(&self) -> Vec<Trait> {
        /// Largest number of payload fields that are looked at. A text longer than
        /// `NAME_CHARACTERS_MAX` names no kind.
        const FIELDS_MAX: usize = 50;
        const NAME_CHARACTERS_MAX: usize = 60;
        let rows = self.rows(false);
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
    pub(super) fn clicks_of_known(
        &self,
        kept_queries: KeptQueries<'_>,
        (old, new): (&Space, &Space),
    ) -> Result<Option<ClicksOfPairs>> {
        // Vectors are read only where there are clicks.
        let Some(fingerprint) = kept_queries.clicks_fingerprint()? else { return Ok(None) };
        let Some(by_both) = kept_queries.vectors(old, new)? else { return Ok(None) };
        let known_ids = self.rows(false).into_iter().map(|row| self.ids[row].as_str());
        let judged = kept_queries.judged(known_ids, by_both.new.rows())?.unwrap_or_default();
        Ok(Some(ClicksOfPairs { judged, fingerprint }))
    }

    /// Gives 1 for each pair that is held out, and 0 for each other one.
    fn held_out_rows(&self) -> Vec<i64> {
        self.held_out.iter().map(|&held_out| i64::from(held_out)).collect()
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

/// Queries with a clicked item below which no choice is made by clicks: with fewer it would be chance.
const CLICKED_MIN: usize = 30;

/// Counts the queries with a right answer.
fn queries_answered(judged: &Qrels) -> usize {
    let is_right = |query: &usize| judged.query(*query).iter().any(|(_, gain)| *gain > 0.0);
    (0..judged.len()).filter(is_right).count()
}

/// Clicks on the pairs that a fit learns from.
pub(super) struct ClicksOfPairs {
    judged: Qrels,
    /// Fingerprint of all clicks that are kept.
    pub fingerprint: String,
}

impl ClicksOfPairs {
    /// Gives the judgements, where they are of enough queries to choose by.
    pub fn enough(self) -> Option<Qrels> {
        (queries_answered(&self.judged) >= CLICKED_MIN).then_some(self.judged)
    }

    /// Tells that the clicks are of too few queries to choose by; `None` where they are enough.
    pub fn finding(&self) -> Option<Finding> {
        let queries = queries_answered(&self.judged);
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
pub(super) struct PairSources {
    pub old: VectorSource,
    pub new: VectorSource,
    held_out: VectorSource,
    /// Labels of the pairs, one source of them; none where no item has a label.
    pub labels: Vec<VectorSource>,
}

impl PairSources {
    /// Selects the rows that are held out, or all others.
    pub fn rows(&self, held_out: bool) -> RowSelection {
        RowSelection { file: self.held_out.clone(), values: vec![i64::from(held_out)] }
    }
}

/// Reads the pairs that are not held out among the first `most` items of the shuffle, with the parameters
/// that say what an order or a bridge is chosen by: the queries that are kept, and which pairs are copies. An
/// error calls it `what`.
pub(super) fn known_pairs(
    store: &dyn Ledger,
    (old, new): (&Space, &Space),
    (most, what): (usize, &str),
) -> Result<(DrawnPairs, rehang_core::Pairs, FitParameters)> {
    let drawn = DrawnPairs::read(store, old, new, most)?;
    let known_rows = drawn.rows(false);
    if known_rows.is_empty() {
        return Err(Error::missing("pairs", format!("{what} between {:?} and {:?}", old.name, new.name))
            .advise(rehang_core::Remedy::DrawPairs));
    }
    let vectors = |space: &Space, rows: &Matrix| {
        Vectors::measured(&space.name, space.distance, rows.select(&known_rows), &space.name)
    };
    let labels =
        label_numbers(&drawn.labels).map(|labels| known_rows.iter().map(|&row| labels[row]).collect());
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
    let sources = drawn.known_source_numbers();
    Ok((drawn, pairs, FitParameters { queries, sources, ..FitParameters::default() }))
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
}
