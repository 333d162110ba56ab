//! Report on what a map is worth, measured on the pairs that were held out of its fit, and the floors that an
//! application carries over to the new model. A report is a [file of the gallery](kept).
//!
//! A backfill makes the worst items native first. So held-out natives are a random sample only up to the
//! place in the shuffle to which an upgrade has embedded every item, or every one that it keeps for
//! measuring. A document of the gallery says which place that is ([`Asking::read`]): the queries of a
//! forecast lie before it, whatever is native behind.

use std::sync::Arc;

use rehang_core::copies;
use rehang_core::finding::{Finding, FindingCode};
use rehang_core::report::{Floors, Report};
use rehang_core::{Adapter, Error, Matrix, Progress, Result, Space, Vectors};
use rehang_evaluate::study::StudyQueries;
use rehang_evaluate::{FloorsInput, GalleryJudgements, ReportFiles, floors, report};
use rehang_files::adapter_file::AdapterSource;
use rehang_files::{Scalars, VectorSource};
use rehang_store::{ItemKey, Ledger, Record, find_space};

use crate::kept::{self, Kind};
use crate::learn::asked::{ByBoth, KeptQueries};
use crate::learn::pairs::{DrawnPairs, HELD_OUT_MIN, PAIRS_MAX, label_numbers, natives_of};
use crate::learn::{bridge, note};
use crate::live::sample;

/// Queries below which a report warns that its numbers are noise, so that a larger set takes over
/// where there is one.
const QUERIES_MIN: usize = 300;
/// Largest count of numbers of old vectors that a forecast reads (256 MiB): memory is bounded.
const GALLERY_NUMBERS_MAX: usize = 1 << 26;

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
    let mut pairs = asking.pairs;
    progress.check()?;
    let kept_queries = KeptQueries::for_store(store);
    let queries = kept_queries.vectors(old, new)?;
    let copies = if queries.is_none() { pairs.leave_out_copies() } else { 0 };
    let of_copies = copies::finding(copies, pairs.len(), "held-out items");
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
    // Agreement proves nothing of a bridge that a report can show.
    let (bridge, unbridged) = if gallery.labels.is_some() || judged.is_some() {
        bridge::for_report(store, (old, new), progress)?
    } else {
        (None, None)
    };
    let measured_on = pairs.rows(true).into_iter().map(|row| pairs.ids[row].clone()).collect();
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
    reported.report.warnings.extend(of_copies.into_iter().chain(query_finding));
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
    let mut pairs = Asking::expect(store, (old, new), "floors")?.pairs;
    let queries = KeptQueries::for_store(store).vectors(old, new)?;
    if queries.is_none() {
        pairs.leave_out_copies();
    }
    let forecast_gallery = ForecastGallery::read(store, old, &pairs, (queries.is_none(), true), progress)?;
    let gallery = rehang_files::read_matrix(&forecast_gallery.old)?;
    let gallery = Vectors::new(adapter.old.clone(), gallery, "the gallery")?;
    let adapted = rehang_core::adapter::apply(adapter, &gallery, None, progress)?;
    let native = pairs.new.select(&pairs.rows(true));
    let native = Vectors::new(adapter.new.clone(), native, "native vectors")?;
    let held_out: Vec<usize> = (0..native.len()).collect();
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

/// Name of the document that says up to which place of the shuffle items ask for a space's forecasts.
pub(super) fn asking_document(new: &str) -> String {
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
    /// Reads the held-out pairs whose items are the queries of a forecast: a random sample of the gallery,
    /// and the same one for as long as an upgrade lasts. They are the held-out ones of the sample that was
    /// drawn, though a backfill has made more natives elsewhere, since it takes the worst first. Where they
    /// are fewer than 300, which a report warns of, the pairs that a run keeps for measuring take over, once
    /// they are more. An item that comes to the gallery may come to them.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub fn read(store: &dyn Ledger, old: &Space, new: &Space) -> Result<Self> {
        if find_space(store, &new.name)?.is_none() {
            let pairs = DrawnPairs::from_items(store, old, new, Vec::new())?;
            return Ok(Self { pairs, until: Vec::new(), before: None });
        }
        let noted_keys = asking_until(store, &new.name)?;
        let mut size = PAIRS_MAX;
        let mut asking = None;
        if !noted_keys.is_empty() {
            let mut first = sample::first_of_shuffle(store, &new.name, PAIRS_MAX)?;
            first.truncate(end_of(&first, &noted_keys));
            if !first.is_empty() {
                size = first.len();
                let (native, is_random) = natives_of(DrawnPairs::held_out_among(store, old, &first)?);
                asking = is_random.then(|| (native, noted_keys.clone()));
            }
        }
        let (native, until) = if let Some(asking) = asking {
            asking
        } else {
            // No note says who asks: an earlier version has drawn the pairs, an application has embedded them
            // itself, or the gallery has grown. The queries are then among what is native by now.
            let drawn = sample::natives(store, &old.name, &new.name, size)?;
            (natives_of(DrawnPairs::held_out_among(store, old, &drawn)?).0, last_of(&drawn))
        };
        let pairs = DrawnPairs::from_items(store, old, new, native)?;
        if pairs.len() < QUERIES_MIN
            && let Some(kept_pairs) = DrawnPairs::measured(store, old, new)?
            && kept_pairs.len() > pairs.len()
        {
            let before = Some(pairs.len()).filter(|&before| !noted_keys.is_empty() && before >= HELD_OUT_MIN);
            let until = last_of(&DrawnPairs::items_kept_for_measuring(store, old, &new.name)?);
            return Ok(Self { pairs: kept_pairs, until, before });
        }
        Ok(Self { pairs, until, before: None })
    }

    /// Reads the asking pairs of a gallery, where they are enough for `what` is measured on them.
    ///
    /// # Errors
    ///
    /// A conflict where they are too few; those of the store.
    fn expect(store: &dyn Ledger, (old, new): (&Space, &Space), what: &str) -> Result<Self> {
        let asking = Self::read(store, old, new)?;
        if asking.pairs.may_be_reported() {
            return Ok(asking);
        }
        let (pairs, different) = (asking.pairs.len(), asking.pairs.held_out_without_copies().len());
        let copies = if different < pairs { format!(", {different} without copies") } else { String::new() };
        let detail = format!("{pairs} pairs are held out{copies}; {HELD_OUT_MIN} are needed");
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
    /// where its items ask for each other (`items_ask`) and have labels, which then say what a right
    /// answer is. Agreement depends on no more than the number of items. The held-out ones of the asking
    /// `pairs` are in it in any case, before all others: an item may change meanwhile. Where items ask,
    /// copies are left out.
    fn read(
        store: &dyn Ledger,
        space: &Space,
        pairs: &DrawnPairs,
        (items_ask, all): (bool, bool),
        progress: &Progress,
    ) -> Result<Self> {
        let counts = store.counts(&space.name)?;
        let counted = usize::try_from(counts.items.saturating_sub(counts.lacking)).unwrap_or(usize::MAX);
        let held_out = pairs.rows(true);
        let mut values: Vec<f32> =
            held_out.iter().flat_map(|&row| pairs.old.row(row).iter().copied()).collect();
        let mut labels: Vec<Option<String>> = held_out.iter().map(|&row| pairs.labels[row].clone()).collect();
        let mut ids: Vec<String> = held_out.iter().map(|&row| pairs.ids[row].clone()).collect();
        let mut items = counted.max(held_out.len());
        if all || (items_ask && pairs.labels.iter().any(Option::is_some)) {
            let items_max = GALLERY_NUMBERS_MAX / space.dimension.max(1);
            let drawn = sample::draw(store, &space.name, items_max, None)?;
            let is_whole = drawn.len() < items_max;
            let drawn = drawn.into_iter().map(|record| record.item).collect();
            let limits = (items_max, !items_ask);
            for (id, label) in pairs.rest(store, space, drawn, limits, &mut values, progress)? {
                ids.push(id);
                labels.push(label);
            }
            if is_whole {
                items = labels.len();
            }
        }
        let old = Matrix::new(space.dimension, values)?;
        let numbers = label_numbers(&labels).filter(|_| items_ask);
        Ok(Self {
            items: items.max(old.rows()),
            old: VectorSource::given("the gallery", old),
            ids,
            labels: numbers
                .map(|numbers| VectorSource::given("the gallery's labels", Scalars::Integers(numbers))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
                .put(&[ItemWrite {
                    label,
                    ..ItemWrite::new(format!("d{item}"), Some(format!("text {item}")), vectors)
                }])
                .unwrap();
        }
        let pairs = Asking::read(&store, &old, &new).unwrap().pairs;
        let held_out = pairs.rows(true);
        assert!(!held_out.is_empty() && held_out.len() == pairs.len());
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
