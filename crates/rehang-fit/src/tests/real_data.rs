//! Tests closed forms and their σ² on the galleries of `../shared/data`; skipped with a message where they
//! are absent.

use std::path::PathBuf;

use rehang_core::adapter::{InputScaling, Uncertainty, true_errors};
use rehang_core::curve::{CurveOptions, MAP, Relevance, TOP1, evaluate_leave_one_out};
use rehang_core::finding::FindingCode;
use rehang_core::{Distance, Head, HeadKind, Matrix, Pairs, Progress, Vectors};
use rehang_files::{VectorSource, read_f32_column, read_labels, read_matrix};

use crate::auto::fit_with;
use crate::closed_form::ridge;
use crate::folds::shuffled;
use crate::method::Method;
use crate::parameters::FitParameters;

struct Gallery {
    train: Pairs,
    seen: Pairs,
    unseen: Pairs,
    head: Option<Head>,
}

/// Loads a gallery as it is, or with its new vectors scaled to length 1.
fn load(name: &str, normalised: bool) -> Option<Gallery> {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    // A work tree of this repository lies one folder deeper.
    let folders =
        ["../../../shared/data", "../../../../shared/data"].map(|folder| here.join(folder).join(name));
    let Some(folder) = folders.into_iter().find(|folder| folder.exists()) else {
        eprintln!("skipped: {name} is not in ../shared/data");
        return None;
    };
    let source = |file: String| VectorSource::path(folder.join(file));
    let matrix = |file: String| read_matrix(&source(file)).ok();
    let integers = |file: String| read_labels(&source(file)).ok();
    let pairs = |old: Matrix, mut new: Matrix, labels: Vec<i64>| {
        if normalised {
            new.normalise_rows();
        }
        let vectors = |model: &str, rows| Vectors::measured(model, Distance::L2, rows, model).unwrap();
        Pairs::new(vectors("old", old), vectors("new", new), Some(labels), None).unwrap()
    };
    let parts: Vec<Pairs> = if folder.join("role.npy").exists() {
        let (old, new) = (matrix("old.npy".into())?, matrix("new.npy".into())?);
        let (labels, role) = (integers("label.npy".into())?, integers("role.npy".into())?);
        let all = pairs(old, new, labels);
        (0..3)
            .map(|part| all.select(&(0..role.len()).filter(|&row| role[row] == part).collect::<Vec<_>>()))
            .collect()
    } else {
        ["train", "seen", "unseen"]
            .into_iter()
            .map(|part| {
                let file = |kind: &str| format!("{part}_{kind}.npy");
                Some(pairs(matrix(file("old"))?, matrix(file("new"))?, integers(file("label"))?))
            })
            .collect::<Option<_>>()?
    };
    let head = matrix("head_new_weight.npy".into()).map(|weight| {
        let bias = read_f32_column(&source("head_new_bias.npy".into())).unwrap();
        Head::new(weight, Some(bias), HeadKind::Softmax).unwrap()
    });
    let [train, seen, unseen] = parts.try_into().ok()?;
    Some(Gallery { train, seen, unseen, head })
}

/// Measures top-1 and mAP of the adapted gallery for its own items' new vectors, each leaving itself out.
fn start(native: &Pairs, adapted: &Matrix) -> (f64, f64) {
    let new = native.new_vectors();
    let relevance = Relevance::Labels { gallery: native.labels().unwrap(), queries: None };
    let (distance, options) = (new.space().distance, CurveOptions::default());
    let evaluation =
        evaluate_leave_one_out(adapted, new.matrix(), relevance, distance, &options, &Progress::default());
    let evaluation = evaluation.unwrap();
    (evaluation.values[TOP1], evaluation.values[MAP])
}

#[test]
fn ridge_reaches_the_baseline_of_clinc150() {
    let Some(data) = load("text_clinc150", false) else { return };
    let scaling = Some(InputScaling::UnitLength);
    let map = ridge::fit_with(&data.train, scaling, &[1e-2], &Progress::default()).unwrap().map;
    for (pairs, top1, mean_precision) in [(&data.seen, 75.64, 48.66), (&data.unseen, 79.0, 53.14)] {
        let raw = map.outputs(pairs.old().matrix(), None).unwrap();
        let mut adapted = raw.clone();
        adapted.normalise_rows();
        let (got_top1, got_map) = start(pairs, &adapted);
        eprintln!("clinc150 ridge: top-1 {got_top1:.2} ({top1}), mAP {got_map:.2} ({mean_precision})");
        assert!((got_top1 - top1).abs() < 1.0 && (got_map - mean_precision).abs() < 1.0);
    }
}

/// Measures σ² of `method` on both test parts of a gallery: (Kendall τ seen, unseen), printed beside the
/// table.
fn tau(name: &str, normalised: bool, method: Method, with_head: bool) -> Option<(f64, f64)> {
    let data = load(name, normalised)?;
    let parameters = FitParameters { method, ..FitParameters::default() };
    let head = data.head.as_ref().filter(|_| with_head);
    #[allow(clippy::disallowed_methods, reason = "said, not asserted")]
    let started = std::time::Instant::now();
    let fitted = fit_with(&data.train, head, &parameters, &[], &Progress::default()).unwrap();
    eprintln!("{name} {method}: {:.1} s", started.elapsed().as_secs_f64());
    let selection = fitted.selection.unwrap();
    eprintln!("  do nothing {:.1}, native {:.1}", selection.do_nothing, selection.native);
    for row in &selection.rows {
        eprintln!("  {row:?}");
    }
    for finding in &fitted.findings {
        eprintln!("  {:?} {}: {}", finding.severity, finding.code, finding.seen);
    }
    let sigma = fitted.sigma.unwrap();
    eprintln!("  out-of-fold: τ {:.3?}, ratio {:.3}", sigma.kendall_tau, sigma.calibration.ratio);
    let adapter = fitted.adapter;
    let Uncertainty::OutOfFold(_) = &adapter.uncertainty else { return None };
    let on = |pairs: &Pairs| {
        let adapted = rehang_core::adapter::apply(&adapter, pairs.old(), None, &Progress::default()).unwrap();
        let outputs = adapted.vectors.matrix().clone();
        let predicted: Vec<f64> = adapted.variance.iter().map(|&variance| variance.into()).collect();
        let actual = true_errors(pairs.new_vectors().matrix(), &outputs);
        let ratio = predicted.iter().sum::<f64>() / actual.iter().sum::<f64>();
        let (top1, map) = start(pairs, &outputs);
        let tau = rehang_core::statistics::kendall_tau_b(&predicted, &actual).unwrap().unwrap();
        eprintln!("  start {top1:.1} / {map:.1}, τ {tau:.3}, ratio {ratio:.2}");
        tau
    };
    Some((on(&data.seen), on(&data.unseen)))
}

#[test]
fn ridge_knows_where_it_is_wrong_on_omniglot() {
    let Some((seen_tau, unseen_tau)) = tau("img_omniglot", true, Method::Ridge, false) else { return };
    assert!(seen_tau > 0.31 && unseen_tau > 0.13, "{seen_tau} {unseen_tau}");
}

#[test]
#[ignore = "a report of several minutes over all galleries, run by hand"]
fn every_gallery_is_reported() {
    for name in ["img_omniglot", "img_caltech101", "text_clinc150", "text_banking77"] {
        for with_head in [true, false] {
            tau(name, false, Method::Auto, with_head);
        }
    }
}

/// Returns the findings of a fit by ridge about the pairs themselves, and its adapter.
fn said_of_pairs(pairs: &Pairs) -> (Vec<String>, rehang_core::Adapter) {
    let geometry = Some(crate::geometry::GeometryKind::options(pairs.new_vectors().space())[0]);
    let parameters =
        FitParameters { method: Method::Ridge, compare: false, geometry, ..FitParameters::default() };
    let fitted = fit_with(pairs, None, &parameters, &[], &Progress::default()).unwrap();
    let of_pairs = [FindingCode::TwoKinds, FindingCode::Misfits, FindingCode::OneVector];
    let findings = fitted.findings.iter().filter(|finding| of_pairs.contains(&finding.code));
    (findings.map(ToString::to_string).collect(), fitted.adapter)
}

/// Selects at most 1,800 of the pairs, evenly spread.
fn some(pairs: &Pairs) -> Pairs {
    let step = pairs.len().div_ceil(1_800);
    pairs.select(&(0..pairs.len()).step_by(step).collect::<Vec<_>>())
}

fn with(pairs: &Pairs, old: Matrix, new: Matrix) -> Pairs {
    let vectors =
        |of: &Vectors, rows| Vectors::measured(&of.space().name, of.space().distance, rows, "test").unwrap();
    let labels = pairs.labels().map(<[i64]>::to_vec);
    Pairs::new(vectors(pairs.old(), old), vectors(pairs.new_vectors(), new), labels, None).unwrap()
}

/// Turns the old vectors of the items for which `is_turned` holds: their coordinates are moved and some
/// change their sign.
fn turned(pairs: &Pairs, is_turned: impl Fn(usize) -> bool) -> Pairs {
    let (old, d) = (pairs.old().matrix(), pairs.old().dimension());
    let sign = |column: usize| if (column * 7 + 3) % 5 < 2 { -1.0 } else { 1.0 };
    let rows = Matrix::from_fn(old.rows(), d, |row, column| {
        if is_turned(row) {
            sign(column) * old.row(row)[(column + d / 2 + 1) % d]
        } else {
            old.row(row)[column]
        }
    });
    with(pairs, rows, pairs.new_vectors().matrix().clone())
}

#[test]
fn sound_pairs_are_passed_in_silence_and_others_are_named() {
    for name in ["toy_digits", "img_omniglot", "img_caltech101", "text_banking77", "text_clinc150"] {
        let is_text = name.starts_with("text");
        let Some(data) = load(name, is_text) else { continue };
        for part in [&data.train, &data.seen, &data.unseen] {
            let (findings, _) = said_of_pairs(&some(part));
            assert!(findings.is_empty(), "{name}, {} pairs: {findings:?}", part.len());
        }
        let pairs = some(&data.train);
        // New vectors of 3 % of the pairs are noise.
        let noise = crate::tests::test_data::random_matrix(pairs.len(), pairs.new_vectors().dimension(), 5);
        let mut new = pairs.new_vectors().matrix().clone();
        let is_bad = |row: usize| row % 33 == 7;
        let spread =
            (0..new.rows()).map(|row| rehang_core::norm(new.row(row))).sum::<f64>() / new.rows() as f64;
        for row in (0..new.rows()).filter(|&row| is_bad(row)) {
            let length = rehang_core::norm(noise.row(row));
            for (value, noise) in new.row_mut(row).iter_mut().zip(noise.row(row)) {
                *value = (f64::from(*noise) * spread / length) as f32;
            }
        }
        let (findings, _) = said_of_pairs(&with(&pairs, pairs.old().matrix().clone(), new));
        eprintln!("{name}, 3 % of nothing: {findings:?}");
        assert!(
            name == "text_clinc150" || findings.iter().any(|finding| finding.contains("as badly as chance")),
            "{name}: {findings:?}"
        );
        // Two blocks of new vectors, a tenth of the rows each, have changed places.
        let pairs = pairs.select(&shuffled(pairs.len(), 1));
        let (middle, block) = (pairs.len() / 2, pairs.len() / 10);
        let mut from: Vec<usize> = (0..pairs.len()).collect();
        (0..block).for_each(|row| from.swap(row, middle + row));
        let new = pairs.new_vectors().matrix().select(&from);
        let (findings, _) = said_of_pairs(&with(&pairs, pairs.old().matrix().clone(), new));
        eprintln!("{name}, a fifth swapped: {findings:?}");
        assert!(
            findings.iter().any(|finding| finding.contains("as badly as chance")),
            "{name}: {findings:?}"
        );
    }
}

#[test]
fn two_kinds_of_old_vectors_are_told_and_the_variance_is_right_for_each() {
    for (name, every) in [
        ("toy_digits", 2),
        ("toy_digits", 8),
        ("text_banking77", 2),
        ("text_banking77", 5),
        ("text_banking77", 10),
        ("text_clinc150", 2),
        ("img_caltech101", 2),
        ("img_omniglot", 2),
    ] {
        let Some(data) = load(name, true) else { continue };
        let pairs = some(&data.train);
        let is_turned = |row: usize| row % every == 1;
        let (findings, adapter) = said_of_pairs(&turned(&pairs, is_turned));
        eprintln!("{name}, one in {every} turned: {findings:?}");
        assert!(findings.iter().any(|finding| finding.contains("two kinds")), "{name}: {findings:?}");
        let fresh = turned(&some(&data.seen), is_turned);
        let adapted = rehang_core::adapter::apply(&adapter, fresh.old(), None, &Progress::default()).unwrap();
        let errors = true_errors(fresh.new_vectors().matrix(), adapted.vectors.matrix());
        for kind in [false, true] {
            let rows = || (0..fresh.len()).filter(|&row| is_turned(row) == kind);
            let sure = rows().map(|row| f64::from(adapted.variance[row])).sum::<f64>();
            let ratio = sure / rows().map(|row| errors[row]).sum::<f64>();
            eprintln!("{name}, turned {kind}: σ² {ratio:.2} times the error; {findings:?}");
            assert!((0.6..1.6).contains(&ratio), "{name}, turned {kind}: {ratio}");
        }
    }
}
