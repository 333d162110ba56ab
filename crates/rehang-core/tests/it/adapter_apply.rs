//! Applying adapters: the fast path against a few lines that can be checked by reading, and every way to give
//! it something wrong.

use crate::adapters::{self, Kind, adapter, adapters_of_every_kind, broken, fitted_on, matrix};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rehang_core::adapter::{
    self, Adapter, Applier, BranchInput, Dense, Geometry, InputScaling, LOG_VARIANCE_LIMIT, Map,
    NearestAnchors, Uncertainty, input_drift,
};
use rehang_core::{Distance, ErrorKind, Head, HeadKind, Matrix, Progress, Space, Vectors};

/// Takes one row through layers in double precision.
fn slow_layers(layers: &[Dense], row: &[f64]) -> Vec<f64> {
    let mut row = row.to_vec();
    for layer in layers {
        row = (0..layer.weight.rows())
            .map(|output| {
                let weights = layer.weight.row(output).iter();
                let sum: f64 = weights.zip(&row).map(|(&w, &x)| f64::from(w) * x).sum();
                let sum = sum + f64::from(layer.bias[output]);
                if layer.relu { sum.max(0.0) } else { sum }
            })
            .collect();
    }
    row
}

fn length(row: &[f64]) -> f64 {
    row.iter().map(|value| value * value).sum::<f64>().sqrt()
}

/// Scales one old vector as the map reads it.
fn slow_scaled(input: InputScaling, old: &[f32]) -> Vec<f64> {
    let old: Vec<f64> = old.iter().map(|&value| f64::from(value)).collect();
    let length = length(&old);
    let scale = if input == InputScaling::UnitLength && length > 0.0 { length } else { 1.0 };
    old.iter().map(|value| value / scale).collect()
}

/// Computes one raw output in double precision.
fn slow_raw(map: &Map, old: &[f32], side: Option<&[f32]>) -> Vec<f64> {
    let old = slow_scaled(map.input, old);
    let mut joined = slow_layers(&map.branch, &old);
    if let Some(second) = &map.second {
        let side: Vec<f64> = side.unwrap_or_default().iter().map(|&value| f64::from(value)).collect();
        joined
            .extend(slow_layers(&second.layers, if second.input == BranchInput::Old { &old } else { &side }));
    }
    let mut raw = slow_layers(&map.mixer, &joined);
    if let Some(skip) = &map.skip {
        raw.iter_mut()
            .zip(slow_layers(std::slice::from_ref(skip), &old))
            .for_each(|(sum, added)| *sum += added);
    }
    if let Some(kernel) = &map.kernel {
        for centre in 0..kernel.centres.rows() {
            let row = kernel.centres.row(centre).iter();
            let distance: f64 = row.zip(&old).map(|(&c, o)| (f64::from(c) - o).powi(2)).sum();
            let weight = (-f64::from(kernel.gamma) * distance).exp();
            let added = kernel.coefficients.row(centre).iter().map(|&a| weight * f64::from(a));
            raw.iter_mut().zip(added).for_each(|(sum, added)| *sum += added);
        }
    }
    if let Some(kinds) = &map.per_kind {
        let scaled: Vec<f32> = old.iter().map(|&value| value as f32).collect();
        let logits = slow_raw(&kinds.gate, &scaled, None);
        let total: f64 = logits.iter().map(|logit| logit.exp()).sum();
        for (map, logit) in kinds.maps.iter().zip(&logits) {
            let added = slow_raw(map, &scaled, None);
            raw.iter_mut().zip(added).for_each(|(sum, added)| *sum += logit.exp() / total * added);
        }
    }
    raw
}

/// Computes the entropy of a head's softmax and one minus its largest probability, straight from their
/// definitions.
fn slow_doubt(head: &Head, v: &[f64]) -> [f64; 2] {
    let logits: Vec<f64> = (0..head.classes())
        .map(|class| {
            let w: Vec<f64> = head.weight().row(class).iter().map(|&value| f64::from(value)).collect();
            let product: f64 = w.iter().zip(v).map(|(a, b)| a * b).sum();
            match head.kind() {
                HeadKind::Softmax => product + f64::from(head.bias()[class]),
                HeadKind::ArcFace { scale, .. } | HeadKind::CosFace { scale, .. } => {
                    f64::from(scale) * product / (length(&w) * length(v))
                }
            }
        })
        .collect();
    let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
    let probabilities: Vec<f64> = logits.iter().map(|logit| logit.exp() / sum).collect();
    let entropy = probabilities.iter().map(|p| -p * p.ln()).sum();
    [entropy, 1.0 - probabilities.iter().copied().fold(0.0, f64::max)]
}

fn slow_log_variance(adapter: &Adapter, old: &[f32], raw: &[f64], adapted: &[f64]) -> f64 {
    match &adapter.uncertainty {
        Uncertainty::Constant { variance } => f64::from(*variance).ln(),
        Uncertainty::Linear { weight, bias } => {
            weight.iter().zip(raw).map(|(&w, &x)| f64::from(w) * x).sum::<f64>() + f64::from(*bias)
        }
        Uncertainty::OutOfFold(learned) => {
            let old = slow_scaled(adapter.map.input, old);
            let mut near: Vec<(f64, usize)> = (0..learned.anchors.rows())
                .map(|anchor| {
                    let row = learned.anchors.row(anchor).iter();
                    let difference: Vec<f64> = row.zip(&old).map(|(&a, &o)| f64::from(a) - o).collect();
                    (length(&difference), anchor)
                })
                .collect();
            near.sort_by(|left, right| left.0.total_cmp(&right.0));
            near.truncate(learned.neighbours);
            let count = near.len() as f64;
            let value = |column: usize| {
                near.iter().map(|pair| f64::from(learned.anchor_values.row(pair.1)[column])).sum::<f64>()
                    / count
            };
            let from_centre: Vec<f64> =
                raw.iter().zip(&learned.centre).map(|(r, &c)| r - f64::from(c)).collect();
            let distance = near.iter().map(|pair| pair.0).sum::<f64>() / count;
            let mut features: Vec<f64> = (0..learned.anchor_values.columns()).map(value).collect();
            features.extend([distance.ln(), length(raw).ln(), length(&from_centre).ln()]);
            features.extend(learned.head.iter().flat_map(|head| slow_doubt(head, adapted)));
            let mut log = f64::from(learned.intercept);
            for (index, feature) in features.iter().enumerate() {
                log += f64::from(learned.coefficients[index]) * (feature - f64::from(learned.means[index]));
            }
            log.clamp(f64::from(learned.log_minimum), f64::from(learned.log_maximum))
        }
    }
}

/// Applies an adapter to a batch through [`Applier::apply_rows`].
fn applied(adapter: &Adapter, old: &Matrix, side: Option<&Matrix>) -> (Matrix, Vec<f32>, Vec<f32>) {
    let applier = Applier::new(adapter).unwrap();
    let mut vectors = Matrix::zeros(old.rows(), applier.d_new());
    let (mut variance, mut raw_norms) = (vec![0.0; old.rows()], vec![0.0; old.rows()]);
    let side = side.map(Matrix::as_slice);
    applier
        .apply_rows(0, old.as_slice(), side, vectors.as_mut_slice(), &mut variance, &mut raw_norms)
        .unwrap();
    (vectors, variance, raw_norms)
}

fn assert_near(received: f64, expected: f64, tolerance: f64, what: &str) {
    let scale = expected.abs().max(1.0);
    assert!(
        (received - expected).abs() <= tolerance * scale,
        "{what}: {received} where {expected} is expected"
    );
}

fn compare_with_slow(adapter: &Adapter, old: &Matrix, side: Option<&Matrix>) {
    let (vectors, variance, raw_norms) = applied(adapter, old, side);
    for row in 0..old.rows() {
        let raw = slow_raw(&adapter.map, old.row(row), side.map(|side| side.row(row)));
        let raw_norm = length(&raw);
        assert_near(f64::from(raw_norms[row]), raw_norm, 1e-4, "raw length");
        let mut expected = raw.clone();
        if matches!(adapter.geometry, Geometry::Sphere { .. }) {
            for value in &mut expected {
                *value /= raw_norm;
            }
        }
        let received: Vec<f64> = vectors.row(row).iter().map(|&value| f64::from(value)).collect();
        if matches!(adapter.geometry, Geometry::MatchedNorms { .. }) {
            // The quantile map has its own tests; here the direction counts.
            let scale = length(&received) / raw_norm;
            for value in &mut expected {
                *value *= scale;
            }
        }
        for (&received, &expected) in received.iter().zip(&expected) {
            assert_near(received, expected, 1e-4, "coordinate");
        }
        let log = slow_log_variance(adapter, old.row(row), &raw, &received);
        assert_near(f64::from(variance[row]).ln(), log, 2e-3, "log σ²");
    }
}

fn kinds() -> impl Strategy<Value = Kind> {
    let second = prop_oneof![
        Just(None),
        (prop_oneof![Just(BranchInput::Old), Just(BranchInput::Side)], 0..3_usize).prop_map(Some)
    ];
    (any::<bool>(), 0..3_usize, second, 0..4_usize, any::<bool>(), 0..3_usize, 0..6_usize).prop_map(
        |(unit, branch_layers, second, mixer_layers, skip, geometry, uncertainty)| Kind {
            input: if unit { InputScaling::UnitLength } else { InputScaling::AsIs },
            branch_layers,
            // Side information that is read as it comes, without a mixer behind it, has no width of its own:
            // the missing mixer would give it.
            second,
            mixer_layers,
            skip,
            kernel: uncertainty % 2 == 1,
            kinds: [0, 2, 3][(branch_layers + mixer_layers) % 3],
            geometry,
            uncertainty,
            handicap: 0.0,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_fast_path_agrees_with_triple_loops(
        kind in kinds(),
        widths in [1..90_usize, 1..90_usize, 1..20_usize, 1..140_usize],
        rows in 1..40_usize,
        seed in 0..u64::MAX,
    ) {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let adapter = adapter(&mut random, kind, widths);
        let old = matrix(&mut random, rows, adapter.old.dimension);
        let side = adapter.side_dimension().map(|width| matrix(&mut random, rows, width));
        // A raw output that is all but zero has a direction that depends on the last bit.
        let well_defined = (0..rows).all(|row| {
            length(&slow_raw(&adapter.map, old.row(row), side.as_ref().map(|side| side.row(row)))) > 1e-2
        });
        prop_assume!(well_defined);
        compare_with_slow(&adapter, &old, side.as_ref());
    }
}

#[test]
fn one_number_in_one_number_out() {
    let (_, mut adapter) = adapters_of_every_kind().swap_remove(0);
    adapter.old.dimension = 1;
    adapter.new.dimension = 1;
    let weight = Matrix::new(1, vec![2.0]).unwrap();
    adapter.map.mixer = vec![Dense { weight, bias: vec![0.5], relu: false }];
    adapter.input_statistics = None;
    let (vectors, variance, raw_norms) = applied(&adapter, &Matrix::new(1, vec![-3.0]).unwrap(), None);
    assert_eq!((vectors.as_slice(), &variance[..], &raw_norms[..]), (&[-5.5][..], &[0.125][..], &[5.5][..]));
}

/// Wide layers, so that tiles, groups of tiles and slices of inputs all have edges.
fn wide_adapter() -> (Adapter, Matrix, Matrix) {
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let kind = Kind {
        input: InputScaling::UnitLength,
        branch_layers: 2,
        second: Some((BranchInput::Side, 1)),
        mixer_layers: 3,
        skip: true,
        kernel: true,
        kinds: 2,
        geometry: 1,
        uncertainty: 3,
        handicap: 0.0,
    };
    let adapter = adapter(&mut random, kind, [70, 33, 9, 611]);
    let (old, side) = (matrix(&mut random, 1001, 70), matrix(&mut random, 1001, 9));
    (adapter, old, side)
}

#[test]
fn wide_layers_agree_with_triple_loops() {
    let (adapter, old, side) = wide_adapter();
    let rows: Vec<usize> = (0..20).map(|row| row * 50).collect();
    compare_with_slow(&adapter, &old.select(&rows), Some(&side.select(&rows)));
}

#[test]
fn bits_depend_neither_on_threads_nor_on_the_cut_of_batches() {
    let (adapter, old, side) = wide_adapter();
    let whole = applied(&adapter, &old, Some(&side));
    for threads in [1, 2, 5] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        assert_eq!(whole, pool.install(|| applied(&adapter, &old, Some(&side))), "{threads} threads");
    }
    let mut first = 0;
    for size in [1, 2, 3, 5, 6, 7, 25, 383, 385, 184] {
        let rows: Vec<usize> = (first..first + size).collect();
        let (vectors, variance, raw_norms) = applied(&adapter, &old.select(&rows), Some(&side.select(&rows)));
        assert_eq!(vectors, whole.0.select(&rows), "rows {first} and {size} on");
        assert_eq!(
            (&variance[..], &raw_norms[..]),
            (&whole.1[first..first + size], &whole.2[first..first + size])
        );
        first += size;
    }
}

#[test]
fn a_batch_without_rows_gives_nothing() {
    let (_, adapter) = adapters_of_every_kind().swap_remove(0);
    Applier::new(&adapter).unwrap().apply_rows(0, &[], None, &mut [], &mut [], &mut []).unwrap();
}

#[test]
fn a_row_that_is_not_finite_is_named_by_its_place_in_the_file() {
    let (_, adapter) = adapters_of_every_kind().swap_remove(0);
    let applier = Applier::new(&adapter).unwrap();
    let mut old = vec![0.5; 5 * 300];
    old[5 * 250 + 2] = f32::INFINITY;
    old[5 * 270] = f32::NAN;
    let (mut vectors, mut variance, mut raw_norms) = (vec![0.0; 4 * 300], vec![0.0; 300], vec![0.0; 300]);
    let error =
        applier.apply_rows(1000, &old, None, &mut vectors, &mut variance, &mut raw_norms).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::NotFinite { what: "old vectors".into(), row: 1250, column: 2 });
}

#[test]
fn an_overflow_is_an_error_and_not_a_zero() {
    let (_, adapter) = adapters_of_every_kind().swap_remove(2);
    let old = [f32::MAX, -f32::MAX, f32::MAX, -f32::MAX, f32::MAX];
    let error = Applier::new(&adapter)
        .unwrap()
        .apply_rows(0, &old, None, &mut [0.0; 4], &mut [0.0], &mut [0.0])
        .unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::NotFinite { what, row: 0, .. } if what.contains("output")),
        "{error}"
    );
}

#[test]
fn side_information_is_neither_forgotten_nor_ignored() {
    let kinds = adapters_of_every_kind();
    let (plain, with_side) = (&kinds[0].1, &kinds[3].1);
    let old = |adapter: &Adapter| {
        Vectors::new(adapter.old.clone(), Matrix::from_fn(2, 5, |row, column| (row + column) as f32), "old")
            .unwrap()
    };
    let run = |adapter: &Adapter, side: Option<Matrix>| {
        adapter::apply(adapter, &old(adapter), side.as_ref(), &Progress::default()).map(|_| ())
    };
    let missing = run(with_side, None).unwrap_err();
    assert!(matches!(missing.kind(), ErrorKind::MissingInput { .. }), "{missing}");
    let unused = run(plain, Some(Matrix::zeros(2, 3))).unwrap_err();
    assert!(matches!(unused.kind(), ErrorKind::InvalidOption { .. }), "{unused}");
    assert!(run(with_side, Some(Matrix::zeros(2, 4))).unwrap_err().is_mismatch());
    assert!(run(with_side, Some(Matrix::zeros(3, 3))).unwrap_err().is_mismatch());
    run(with_side, Some(Matrix::zeros(2, 3))).unwrap();
}

#[test]
fn a_stop_is_heard() {
    let (_, adapter) = adapters_of_every_kind().swap_remove(0);
    let old = Vectors::new(adapter.old.clone(), Matrix::zeros(3, 5), "old vectors").unwrap();
    let progress = Progress::default();
    progress.cancel();
    assert!(adapter::apply(&adapter, &old, None, &progress).unwrap_err().is_cancelled());
}

#[test]
fn zero_vectors_go_through_every_kind_and_sigma_stays_positive() {
    for (name, adapter) in adapters_of_every_kind() {
        let side = adapter.side_dimension().map(|width| Matrix::zeros(1, width));
        let (vectors, variance, raw_norms) = applied(&adapter, &Matrix::zeros(1, 5), side.as_ref());
        vectors.check_finite(name).unwrap();
        assert!(variance[0] > 0.0 && variance[0].is_finite() && raw_norms[0].is_finite(), "{name}");
    }
    // A map that gives exactly zero, so every length and distance whose log is taken is 0.
    let (_, mut adapter) = adapters_of_every_kind().swap_remove(5);
    let zero = |inputs: usize| Dense { weight: Matrix::zeros(4, inputs), bias: vec![0.0; 4], relu: false };
    let joined = adapter.map.mixer[0].weight.columns();
    (adapter.map.mixer, adapter.map.skip) = (vec![zero(joined)], None);
    let Uncertainty::OutOfFold(learned) = &mut adapter.uncertainty else { panic!("its σ² is out-of-fold") };
    learned.anchors = Matrix::zeros(12, 5);
    let (vectors, variance, raw_norms) = applied(&adapter, &Matrix::zeros(1, 5), Some(&Matrix::zeros(1, 3)));
    let Geometry::Sphere { fallback } = &adapter.geometry else { panic!("its outputs lie on the sphere") };
    assert_eq!((vectors.row(0), raw_norms[0]), (&fallback[..], 0.0));
    assert!(variance[0] > 0.0 && variance[0].is_finite());
}

#[test]
fn logits_beyond_single_precision_leave_sigma_at_its_largest() {
    let (_, mut adapter) = adapters_of_every_kind().swap_remove(3);
    let Uncertainty::OutOfFold(learned) = &mut adapter.uncertainty else { panic!("its σ² is out-of-fold") };
    let weight = Matrix::from_fn(5, 4, |class, _| if class % 2 == 0 { f32::MAX } else { -f32::MAX });
    learned.head = Some(Head::new(weight, None, HeadKind::Softmax).unwrap());
    let largest = f64::from(learned.log_maximum).exp() as f32;
    let ones = |columns| Matrix::from_fn(1, columns, |_, _| 1.0);
    adapter.map.mixer.last_mut().unwrap().bias = vec![1e10; 4];
    let (_, variance, _) = applied(&adapter, &ones(5), Some(&ones(3)));
    assert_eq!(variance, [largest]);
}

#[test]
fn a_linear_sigma_is_limited_far_from_what_it_was_fitted_on() {
    let (_, mut adapter) = adapters_of_every_kind().swap_remove(0);
    adapter.uncertainty = Uncertainty::Linear { weight: vec![1e30, 0.0, 0.0, 0.0], bias: 0.0 };
    let (vectors, variance, _) = applied(&adapter, &Matrix::from_fn(8, 5, |row, _| row as f32 - 3.5), None);
    for row in 0..8 {
        let expected = (LOG_VARIANCE_LIMIT * f64::from(vectors.row(row)[0]).signum()).exp() as f32;
        assert_eq!(variance[row], expected);
    }
}

#[test]
fn outputs_say_honestly_whether_they_are_normalised() {
    let (_, mut adapter) = adapters_of_every_kind().swap_remove(1);
    assert!(adapter.output_space().normalised);
    adapter.geometry = Geometry::Raw;
    assert!(!adapter.output_space().normalised);
    let old = Vectors::new(adapter.old.clone(), Matrix::zeros(2, 5), "old vectors").unwrap();
    let adapted = adapter::apply(&adapter, &old, None, &Progress::default()).unwrap();
    assert_eq!(*adapted.vectors.space(), adapter.output_space());
}

#[test]
fn parts_that_do_not_agree_are_named() {
    for (part, adapter) in broken() {
        let error = adapter.check().unwrap_err().to_string();
        assert!(error.to_lowercase().contains(&part.to_lowercase()), "{error:?} should name {part:?}");
        assert!(Applier::new(&adapter).is_err());
    }
}

#[test]
fn nearest_anchors_are_those_of_a_full_sort() {
    let mut random = ChaCha8Rng::seed_from_u64(11);
    let mut anchors = matrix(&mut random, 700, 9);
    // Duplicates make equal distances, which are ordered by index.
    for row in 600..700 {
        let copied = anchors.row(row - 600).to_vec();
        anchors.row_mut(row).copy_from_slice(&copied);
    }
    let distance = |left: &[f32], right: &[f32]| {
        left.iter().zip(right).map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum::<f64>().sqrt()
    };
    let search = NearestAnchors::new(&anchors).unwrap();
    // The query itself is left out, or half of all anchors.
    let left_out: [fn(usize, usize) -> bool; 2] =
        [|query, anchor| query == anchor, |query, anchor| (query + anchor) % 2 == 1];
    for leave_out in left_out {
        let found = search.search(&anchors, 7, leave_out).unwrap();
        for (query, found) in found.iter().enumerate() {
            let mut all: Vec<(f64, usize)> = (0..700)
                .filter(|&anchor| !leave_out(query, anchor))
                .map(|anchor| (distance(anchors.row(query), anchors.row(anchor)), anchor))
                .collect();
            all.sort_by(|left, right| left.0.total_cmp(&right.0).then(left.1.cmp(&right.1)));
            assert_eq!(found[..], all[..7], "query {query}");
        }
    }
    let few = NearestAnchors::new(&Matrix::zeros(2, 9)).unwrap();
    assert_eq!(few.search(&anchors.select(&[0]), 5, |_, _| false).unwrap()[0].len(), 2);
    assert!(few.search(&Matrix::zeros(1, 8), 5, |_, _| false).unwrap_err().is_mismatch());
}

#[test]
fn vectors_of_the_new_side_are_refused() {
    let (_, adapter) = adapters_of_every_kind().swap_remove(0);
    adapter.expect_input(&adapter.old).unwrap();
    let wrong_direction = |space: &Space| {
        let error = adapter.expect_input(space).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::WrongDirection { .. }), "{error}");
    };
    wrong_direction(&adapter.new);
    wrong_direction(&Space::new("unnamed", 4, Distance::L2, false));
    let error = adapter.expect_input(&Space::new("unnamed", 5, Distance::L2, false)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::SpaceMismatch { .. }), "{error}");
    let error = adapter.expect_input_width(6).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WidthMismatch { expected: 5, received: 6, .. }), "{error}");
    let new = Vectors::new(adapter.new.clone(), Matrix::zeros(1, 4), "new vectors").unwrap();
    assert!(adapter::apply(&adapter, &new, None, &Progress::default()).is_err());
}

#[test]
fn vectors_that_do_not_look_like_the_fitted_ones_are_noticed() {
    let mut random = ChaCha8Rng::seed_from_u64(5);
    let centres: Vec<f32> = adapters::vector(&mut random, 20);
    let like = |random: &mut ChaCha8Rng, rows: usize, shift: usize| {
        let mut drawn = matrix(random, rows, 20);
        for row in 0..rows {
            for column in 0..20 {
                let from = (column + shift) % 20;
                let value = &mut drawn.row_mut(row)[column];
                *value = *value * (0.1 + 0.05 * from as f32) + 3.0 * centres[from];
            }
        }
        drawn
    };
    let adapter = fitted_on(&like(&mut random, 500, 0));
    let drift = |rows: &Matrix| input_drift(&adapter, rows).unwrap();
    assert!(!drift(&like(&mut random, 100, 0)).unwrap().is_suspicious());
    assert!(drift(&like(&mut random, 100, 7)).unwrap().is_suspicious(), "coordinates in another order");
    let mut long = like(&mut random, 100, 0);
    long.as_mut_slice().iter_mut().for_each(|value| *value *= 10.0);
    assert!(drift(&long).unwrap().is_suspicious(), "ten times as long");
    assert_eq!(drift(&like(&mut random, 5, 7)), None, "five rows say nothing");
    assert!(input_drift(&adapter, &Matrix::zeros(100, 19)).unwrap_err().is_mismatch());
}

#[test]
fn vectors_without_a_pattern_raise_no_false_alarm() {
    let mut random = ChaCha8Rng::seed_from_u64(6);
    let whitened = |random: &mut ChaCha8Rng, rows| matrix(random, rows, 32);
    let adapter = fitted_on(&whitened(&mut random, 2000));
    let drift = input_drift(&adapter, &whitened(&mut random, 100)).unwrap().unwrap();
    assert_eq!((drift.mean_correlation, drift.spread_correlation), (None, None));
    assert!(!drift.is_suspicious());
    assert!(
        !input_drift(&fitted_on(&Matrix::zeros(99, 32)), &Matrix::zeros(99, 32))
            .unwrap()
            .unwrap()
            .is_suspicious()
    );
}
