//! Fit of an upgrade's map on pairs of its own gallery, with the order of the backfill that is chosen for it.
//!
//! The adapter is a [file of the gallery](kept), and what its fit found of the pairs lies beside it. A
//! document names the last adapter, and another one the last order.

use std::collections::BTreeSet;

use rehang_core::curve::Metric;
use rehang_core::finding::{Finding, FindingCode};
use rehang_core::order::Policy;
use rehang_core::{Adapter, Error, Matrix, Progress, Result, Space, Vectors};
use rehang_fit::refit::MeanError;
use rehang_fit::{FitAnswer, FitFiles, FitParameters, Fitted, Method, OrderChoice, Within, fit_files};
use rehang_store::Ledger;
use serde::{Deserialize, Serialize};

use crate::kept::{self, Kind};
use crate::learn::asked::{ByBoth, CLICKS, KeptQueries};
use crate::learn::pairs::{ClicksOfPairs, DrawnPairs, PAIRS_MAX, PairSources, known_pairs};
use crate::learn::report::asking_document;
use crate::learn::{note, refit};
use crate::observe::Observer;
use crate::record::UpgradeRecord;

/// Largest number of pairs that an order is chosen on: its maps are fitted three times, and 2,000 pairs told
/// the right one (`cargo lab study orders`).
const ORDER_PAIRS_MAX: usize = 4_000;

/// Name of the document that says which adapter was fitted last for a space.
fn document(new: &str) -> String {
    format!("adapter of {new}")
}

/// Fingerprint of the adapter that was fitted last for a space on the gallery's own pairs; `None` where there
/// is none. Where the upgrade has been refitted since, it is that of the map in use.
pub(crate) fn fitted(store: &dyn Ledger, new: &str) -> Result<Option<String>> {
    let record = UpgradeRecord::read(store)?;
    fitted_from(store, record.as_ref(), new)
}

/// Fingerprint of the adapter as [`fitted`] gives it, by the record of the upgrade that was read before.
pub(crate) fn fitted_from(
    store: &dyn Ledger,
    record: Option<&UpgradeRecord>,
    new: &str,
) -> Result<Option<String>> {
    let fitted = store.document(&document(new))?.map(|(_, fingerprint)| fingerprint);
    fitted.filter(|text| !text.is_empty()).map(|fitted| refit::in_use(store, record, new, fitted)).transpose()
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
    let (_, pairs, parameters) = known_pairs(store, (old, new), (ORDER_PAIRS_MAX, "an order"))?;
    let parameters = FitParameters { method, metric, ..parameters };
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
    if let Some(record) = UpgradeRecord::read(store)? {
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
    /// Whether fused searches are proven to find more than mixed ones.
    #[serde(default)]
    is_fused_better: bool,
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
    let is_fused_better = fitted.fusion.as_ref().is_some_and(|choice| choice.is_above_mixed);
    let learned = serde_json::to_vec(&Learned { findings, error, is_fused_better })
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
    let (traits, sources, others) =
        (pairs.traits(), pairs.known_source_numbers(), pairs.others(store, (old, new))?);
    let parameters = FitParameters { method, within, traits, sources, others, ..FitParameters::default() };
    let held_out = pairs.rows(true);
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

/// Reads whether fused searches by an adapter are proven to find more than mixed ones; `false` for one that was
/// not fitted here.
///
/// # Errors
///
/// Those of the store.
pub(crate) fn is_fused_better(store: &dyn Ledger, fingerprint: &str) -> Result<bool> {
    Ok(Learned::read(store, fingerprint)?.is_fused_better)
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
    let (sources, others) = (pairs.known_source_numbers(), pairs.others(store, (old, new))?);
    let parameters = FitParameters { method, sources, others, compare: false, ..FitParameters::default() };
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rehang_core::{Distance, Provenance};
    use rehang_store::{ItemWrite, NewVector};

    use super::*;
    use crate::learn::report::measure;

    #[test]
    fn what_pairs_are_worth_and_doing_nothing_are_measured_as_without_copies() {
        let space = |name: &str, dimension| Space::new(name, dimension, Distance::L2, false);
        let (old, new) = (space("old", 3), space("new", 4));
        let spaces = (&old, &new);
        let feature = |item: usize, axis: usize| ((item * 37 + axis * 101) as f32 * 0.7391).sin();
        let progress = Progress::default();
        let measured = |times: fn(usize) -> usize| {
            let store = rehang_store_tests::MemoryStore::new();
            store.create_space(&old, Provenance::Old).unwrap();
            store.create_space(&new, Provenance::Native).unwrap();
            for item in 0..400 {
                // The new model sees the class of an item, and the old one hardly.
                let class = (item % 5) as f32;
                let before: Vec<f32> = (0..3).map(|axis| 0.1 * class + feature(item, axis)).collect();
                let now = [&before[..], &[4.0 * class]].concat();
                for copy in 0..times(item) {
                    let vectors = vec![
                        NewVector::from_model("old", before.clone(), Provenance::Old),
                        NewVector::from_model("new", now.clone(), Provenance::Native),
                    ];
                    let source = Some(format!("text {item}"));
                    let write = ItemWrite::new(format!("d{item}-{copy}"), source, vectors);
                    store.put(&[ItemWrite { label: Some(format!("class {class}")), ..write }]).unwrap();
                }
            }
            let pairs = DrawnPairs::read(&store, &old, &new, PAIRS_MAX).unwrap();
            let learned = pairs.learned(&old, &new, &progress).unwrap().unwrap();
            let fitted = fit(&store, spaces, (Method::Ridge, None), &progress).unwrap().fitted;
            let report = measure(&store, spaces, Arc::new(fitted.adapter), &progress).unwrap().report;
            let notes = [&fitted.findings, &report.warnings].map(|findings| {
                findings.iter().filter(|finding| finding.code == FindingCode::EqualSources).count()
            });
            let sizes: Vec<usize> = learned.points.iter().map(|point| point.0).collect();
            (report.do_nothing["map"], notes, sizes)
        };
        let (alone, with_copies) = (measured(|_| 1), measured(|item| 1 + item % 3));
        assert!((alone.0 - with_copies.0).abs() < 1e-9, "{alone:?} {with_copies:?}");
        assert_eq!((alone.1, with_copies.1), ([0, 0], [1, 1]));
        assert_eq!(alone.2, with_copies.2);
    }
}
