//! Reports on galleries in which many items are copies of another one.

use std::sync::Arc;

use rehang_core::finding::FindingCode;
use rehang_core::order::Policy;
use rehang_core::report::Report;
use rehang_core::{Adapter, Distance, Matrix, Pairs, Progress, Vectors};
use rehang_evaluate::{ReportFiles, report};
use rehang_files::adapter_file::AdapterSource;
use rehang_files::{Scalars, VectorSource};
use rehang_fit::{FitParameters, Method, NetworkOptions, fit_adapter};

const CLASSES: usize = 10;

/// Returns a number between −1 and 1, another one for every item, coordinate and seed.
fn noise(item: usize, axis: usize, seed: u64) -> f32 {
    let mut state = item as u64 * 1_000_003 + axis as u64 * 10_007;
    state ^= seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    state = state.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state ^= state >> 31;
    state = state.wrapping_mul(0x94d0_49bb_1331_11eb);
    (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
}

/// Makes the vectors of items by both models; the old one sees fewer coordinates, and noise.
fn vectors(items: &[usize]) -> [Matrix; 2] {
    let by_new = |item: usize, axis: usize| 2.0 * noise(item % CLASSES, axis, 1) + noise(item, axis, 2);
    let by_old = |item: usize, axis: usize| by_new(item, axis) + 0.8 * noise(item, axis, 3);
    [
        Matrix::from_fn(items.len(), 4, |at, axis| by_old(items[at], axis)),
        Matrix::from_fn(items.len(), 6, |at, axis| by_new(items[at], axis)),
    ]
}

fn labels(items: &[usize]) -> Vec<VectorSource> {
    let classes = items.iter().map(|item| (item % CLASSES) as i64).collect();
    vec![VectorSource::given("labels", Scalars::Integers(classes))]
}

/// Fits an adapter on items that no gallery here has.
fn adapter() -> Arc<Adapter> {
    let [old, new] = vectors(&(2000..2400).collect::<Vec<_>>());
    let of_model = |name: &str, rows| Vectors::measured(name, Distance::L2, rows, name).unwrap();
    let pairs = Pairs::new(of_model("old", old), of_model("new", new), None, None).unwrap();
    let parameters = FitParameters { method: Method::Ridge, compare: false, ..FitParameters::default() };
    let options = NetworkOptions::default();
    Arc::new(fit_adapter(&pairs, None, &parameters, &options, &Progress::default()).unwrap().adapter)
}

/// Makes a report on items, after a change of what it reads.
fn report_on(adapter: &Arc<Adapter>, items: &[usize], change: impl FnOnce(&mut ReportFiles)) -> Report {
    let [old, new] = vectors(items);
    let mut files = ReportFiles {
        orders: vec![Policy::Sigma, Policy::Random],
        random_orders: 1,
        bootstrap: 0,
        ..ReportFiles::new(
            vec![AdapterSource::Given("ridge".into(), Arc::clone(adapter))],
            VectorSource::given("old vectors", old),
            VectorSource::given("new vectors", new),
        )
    };
    change(&mut files);
    report(&files, &Progress::default()).unwrap().report
}

/// Returns what a report says of copies; nothing where it does not speak of them.
fn notes(report: &Report) -> Vec<&str> {
    let of_copies = report.warnings.iter().filter(|warning| warning.code == FindingCode::EqualSources);
    of_copies.map(|warning| warning.seen.as_str()).collect()
}

fn expect_same_numbers(report: &Report, expected: &Report) {
    assert_eq!((&report.do_nothing, &report.new_model), (&expected.do_nothing, &expected.new_model));
    assert_eq!(report.curves, expected.curves);
    assert_eq!((&report.gallery, &report.floors), (&expected.gallery, &expected.floors));
    assert_eq!(report.measured_on[0].items, expected.measured_on[0].items);
}

/// Lists each item as often as `times` says.
fn repeated(items: &[usize], times: fn(usize) -> usize) -> Vec<usize> {
    items.iter().flat_map(|&item| vec![item; times(item)]).collect()
}

#[test]
fn a_gallery_with_many_copies_has_the_numbers_of_the_gallery_without_them() {
    let adapter = adapter();
    let alone: Vec<usize> = (0..200).collect();
    let with_copies = repeated(&alone, |item| 1 + item % 3);
    for by_label in [true, false] {
        let report = |items: &[usize]| {
            report_on(&adapter, items, |files| {
                files.answers.labels = if by_label { labels(items) } else { Vec::new() };
            })
        };
        let (expected, report) = (report(&alone), report(&with_copies));
        expect_same_numbers(&report, &expected);
        assert!(notes(&expected).is_empty());
        let words = "199 of 399 items have the source of another one; a query is not answered by its own copies.";
        assert_eq!(notes(&report), [words]);
    }
    // Queries of their own search a gallery with its copies.
    let [old, new] = vectors(&(3000..3050).collect::<Vec<_>>());
    let by_queries = report_on(&adapter, &with_copies, |files| {
        files.answers.queries = Some(VectorSource::given("queries", new));
        files.answers.queries_old = Some(VectorSource::given("old queries", old));
    });
    assert_eq!((by_queries.measured_on[0].items, notes(&by_queries).len()), (399, 0));
}

#[test]
fn a_forecast_is_that_of_the_whole_gallery_without_its_copies() {
    let adapter = adapter();
    let gallery: Vec<usize> = (0..600).collect();
    let sample: Vec<usize> = (0..600).filter(|item| item % 3 == 1).collect();
    // Some items are in the gallery twice, and some three times or four, of which the sample has two.
    let in_sample = |item: usize| 1 + usize::from(item % 9 == 1);
    let in_gallery = |item: usize| 1 + usize::from(item.is_multiple_of(5)) + 2 * usize::from(item % 9 == 1);
    for by_label in [true, false] {
        let forecast = |sample: &[usize], gallery: &[usize]| {
            report_on(&adapter, sample, |files| {
                let [old, _] = vectors(gallery);
                files.gallery = vec![VectorSource::given("gallery", old)];
                files.gallery_labels = if by_label { labels(gallery) } else { Vec::new() };
            })
        };
        let expected = forecast(&sample, &gallery);
        assert_eq!(expected.gallery.as_ref().unwrap().items, 600);
        let report = forecast(&repeated(&sample, in_sample), &repeated(&gallery, in_gallery));
        expect_same_numbers(&report, &expected);
        assert_eq!(notes(&report).len(), 1);
    }
}
