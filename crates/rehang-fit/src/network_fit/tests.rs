use rehang_core::adapter::{BranchInput, Dense, InputScaling, Map, Uncertainty};
use rehang_core::{Distance, ErrorKind, Head, HeadKind, Matrix, Pairs, Progress, Vectors};

use super::*;
use crate::network::Architecture;
use crate::objectives::squared::SquaredScale;
use crate::tests::finite_differences::numbers;

/// Makes pairs whose new vectors are a bent function of the old ones; labels are the quadrant of the first
/// two coordinates.
fn pairs(n: usize, d_old: usize, d_new: usize, side: bool) -> Pairs {
    let old = Matrix::new(d_old, numbers(n * d_old, 1)).unwrap();
    let mixing = numbers(d_old * d_new, 2);
    let new = Matrix::from_fn(n, d_new, |row, column| {
        let sum: f32 = (0..d_old).map(|i| old.row(row)[i] * mixing[column * d_old + i]).sum();
        sum.tanh() + 0.2 * old.row(row)[0] * old.row(row)[1]
    });
    let labels =
        (0..n).map(|row| i64::from(old.row(row)[0] > 0.0) + 2 * i64::from(old.row(row)[1] > 0.0)).collect();
    let side = side.then(|| Matrix::new(3, numbers(n * 3, 5)).unwrap());
    let old = Vectors::measured("old", Distance::L2, old, "old vectors").unwrap();
    let new = Vectors::measured("new", Distance::L2, new, "new vectors").unwrap();
    Pairs::new(old, new, Some(labels), side).unwrap()
}

fn head(d_new: usize, kind: HeadKind) -> Head {
    Head::new(Matrix::new(d_new, numbers(4 * d_new, 7)).unwrap(), Some(numbers(4, 8)), kind).unwrap()
}

/// Returns the parameters of a small network with everything switched on.
fn small() -> NetworkParameters {
    NetworkParameters {
        architecture: Architecture::Mixer { hidden: 24, branch_factor: 2 },
        epochs: 6,
        batch: 32,
        freeze_statistics_from: 3,
        learning_rate: 3e-3,
        ..NetworkParameters::fastfill_reference(Some(head(5, HeadKind::Softmax)))
    }
}

fn fit(pairs: &Pairs, parameters: &NetworkParameters) -> FittedNetwork {
    fit_network(pairs, None, parameters, &Progress::default(), None).unwrap()
}

/// Applies a map slowly: one vector, triple loops, in f64.
fn apply(map: &Map, old: &[f32], side: &[f32]) -> Vec<f64> {
    let layer = |layer: &Dense, input: &[f64]| -> Vec<f64> {
        (0..layer.weight.rows())
            .map(|output| {
                let product: f64 =
                    layer.weight.row(output).iter().zip(input).map(|(&w, x)| f64::from(w) * x).sum();
                let sum = product + f64::from(layer.bias[output]);
                if layer.relu { sum.max(0.0) } else { sum }
            })
            .collect()
    };
    let mut old = old.to_vec();
    if map.input == InputScaling::UnitLength {
        rehang_core::normalise(&mut old);
    }
    let wide = |values: &[f32]| values.iter().map(|&value| f64::from(value)).collect::<Vec<f64>>();
    let old = wide(&old);
    let mut joined = map.branch.iter().fold(old.clone(), |input, next| layer(next, &input));
    if let Some(second) = &map.second {
        let input = if second.input == BranchInput::Side { wide(side) } else { old.clone() };
        joined.extend(second.layers.iter().fold(input, |input, next| layer(next, &input)));
    }
    let mut output = map.mixer.iter().fold(joined, |input, next| layer(next, &input));
    if let Some(skip) = &map.skip {
        output.iter_mut().zip(layer(skip, &old)).for_each(|(output, skip)| *output += skip);
    }
    output
}

#[test]
fn the_folded_map_gives_what_the_network_gave() {
    let pairs = pairs(90, 4, 5, true);
    for (architecture, standardise) in [
        (Architecture::Mixer { hidden: 24, branch_factor: 2 }, false),
        (Architecture::Mixer { hidden: 24, branch_factor: 2 }, true),
        (Architecture::ResidualMlp { hidden: 16, layers: 2 }, true),
    ] {
        let mut parameters = small();
        parameters.architecture = architecture;
        parameters.standardise = standardise;
        parameters.input = if standardise { InputScaling::UnitLength } else { InputScaling::AsIs };
        parameters.loss.discriminative_weight = 0.0;
        parameters.loss.uncertainty = UncertaintyLoss::Off;
        // The held-out loss of the last epoch is the network's own; the map must give the same.
        let fitted = fit_network(&pairs, Some(&pairs), &parameters, &Progress::default(), None).unwrap();
        let mut sum = 0.0;
        for row in 0..pairs.len() {
            let side = pairs.side().unwrap().row(row);
            let output = apply(&fitted.map, pairs.old().matrix().row(row), side);
            let target = pairs.new_vectors().matrix().row(row);
            sum += output.iter().zip(target).map(|(h, &v)| (h - f64::from(v)).powi(2)).sum::<f64>() / 5.0;
        }
        let expected = fitted.history.last().unwrap().held_out.unwrap();
        let received = sum / pairs.len() as f64;
        assert!((expected - received).abs() < 1e-5 * expected.max(1.0), "{expected} became {received}");
    }
}

#[test]
fn fct_learns_a_bent_map_better_than_its_mean() {
    let pairs = pairs(400, 4, 5, false);
    let parameters = NetworkParameters {
        architecture: Architecture::Mixer { hidden: 64, branch_factor: 2 },
        batch: 64,
        learning_rate: 2e-3,
        ..NetworkParameters::fct()
    };
    let fitted = fit(&pairs, &parameters);
    let variance = crate::objectives::squared::total_variance(pairs.new_vectors().matrix()) / 5.0;
    assert!(fitted.history[79].training < 0.02 * variance);
    assert!(fitted.psi.is_none());
}

#[test]
fn on_linear_data_a_residual_network_stays_at_the_right_linear_map() {
    let n = 200;
    let old = Matrix::new(4, numbers(n * 4, 1)).unwrap();
    let weight = Matrix::new(4, numbers(3 * 4, 2)).unwrap();
    let bias = numbers(3, 3);
    let new = Matrix::from_fn(n, 3, |row, column| {
        bias[column] + (0..4).map(|i| weight.row(column)[i] * old.row(row)[i]).sum::<f32>()
    });
    let old = Vectors::measured("old", Distance::L2, old, "old vectors").unwrap();
    let new = Vectors::measured("new", Distance::L2, new, "new vectors").unwrap();
    let pairs = Pairs::new(old, new, None, None).unwrap();
    let skip = Dense { weight, bias, relu: false };
    let mut parameters = NetworkParameters::residual_mlp(Some(skip.clone()));
    parameters.input = InputScaling::AsIs;
    parameters.epochs = 10;
    let fitted = fit(&pairs, &parameters);
    assert_eq!(fitted.map.skip, Some(skip));
    // Adam takes steps of the full rate even where only rounding is left to learn; they die out with the
    // rate.
    assert!(fitted.history[0].training < 1e-6);
    assert!(fitted.history.iter().all(|line| line.training < 1e-2));
    assert!(fitted.history[9].training < 1e-3);
}

#[test]
fn the_same_seed_gives_the_same_bytes_for_any_number_of_threads() {
    let pairs = pairs(150, 4, 5, false);
    let mut parameters = small();
    parameters.dropout = 0.2;
    let run = |threads: usize, parameters: &NetworkParameters| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| fit(&pairs, parameters))
    };
    let on_one_thread = run(1, &parameters);
    assert!(on_one_thread == run(2, &parameters) && on_one_thread == run(3, &parameters));
    parameters.seed = 1;
    assert!(on_one_thread != run(1, &parameters));
}

#[test]
fn a_resumed_fit_gives_the_bytes_of_one_that_was_not_stopped() {
    let (train, other) = (pairs(150, 4, 5, false), pairs(70, 4, 5, false));
    let mut parameters = small();
    parameters.checkpoint_every = 2;
    parameters.early_stop = Some(4);
    parameters.dropout = 0.1;
    let full_fit = fit_network(&train, Some(&other), &parameters, &Progress::default(), None).unwrap();

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fit.safetensors");
    // Cancels as soon as the third epoch has begun: two are in the checkpoint.
    let progress = Progress::default();
    let (watched, done) = (progress.clone(), std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false)));
    let stop = done.clone();
    let watcher = std::thread::spawn(move || {
        while watched.snapshot().done < 3 && !stop.load(std::sync::atomic::Ordering::Relaxed) {
            std::thread::yield_now();
        }
        watched.cancel();
    });
    let stopped = fit_network(&train, Some(&other), &parameters, &progress, Some(&path));
    done.store(true, std::sync::atomic::Ordering::Relaxed);
    watcher.join().unwrap();
    // The cancel may come after the last step on a busy machine; then the file holds the finished fit.
    assert!(stopped.as_ref().map_or_else(rehang_core::Error::is_cancelled, |fitted| *fitted == full_fit));
    let resumed = fit_network(&train, Some(&other), &parameters, &Progress::default(), Some(&path)).unwrap();
    assert!(resumed == full_fit);
    // A finished fit is read back, and another fit's checkpoint is refused.
    assert!(
        fit_network(&train, Some(&other), &parameters, &Progress::default(), Some(&path)).unwrap()
            == full_fit
    );
    let refused = |other: &Pairs, parameters: NetworkParameters| {
        let error =
            fit_network(&train, Some(other), &parameters, &Progress::default(), Some(&path)).unwrap_err();
        matches!(error.kind(), ErrorKind::InvalidOption { option, .. } if option == "checkpoint")
    };
    let mut labels = vec![0; other.len()];
    labels[3] = 1;
    for labels in [vec![0; other.len()], labels] {
        let relabelled =
            Pairs::new(other.old().clone(), other.new_vectors().clone(), Some(labels), None).unwrap();
        assert!(refused(&relabelled, parameters.clone()), "labels of held-out pairs decide when it stops");
    }
    assert!(refused(&other, NetworkParameters { seed: 9, ..parameters }));
}

#[test]
fn a_damaged_checkpoint_is_named() {
    let pairs = pairs(60, 4, 5, false);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fit.safetensors");
    let parameters = small();
    fit_network(&pairs, None, &parameters, &Progress::default(), Some(&path)).unwrap();
    let bytes = fs_err::read(&path).unwrap();
    for length in [0, 7, 100, bytes.len() / 2, bytes.len() - 1] {
        fs_err::write(&path, &bytes[..length]).unwrap();
        let error = fit_network(&pairs, None, &parameters, &Progress::default(), Some(&path)).unwrap_err();
        assert!(error.is_corrupt(), "{length} bytes: {error}");
        assert!(error.to_string().contains("fit.safetensors"));
    }
}

#[test]
fn early_stop_keeps_the_best_epoch() {
    let (train, other) = (pairs(60, 4, 5, false), pairs(60, 4, 5, false));
    let mut parameters = small();
    parameters.loss.uncertainty = UncertaintyLoss::Off;
    parameters.loss.discriminative_weight = 0.0;
    parameters.epochs = 40;
    parameters.early_stop = Some(3);
    // Far too large a rate: the held-out loss soon jumps about.
    parameters.learning_rate = 0.2;
    let fitted = fit_network(&train, Some(&other), &parameters, &Progress::default(), None).unwrap();
    let losses: Vec<f64> = fitted.history.iter().map(|line| line.held_out.unwrap()).collect();
    let best = losses.iter().copied().fold(f64::INFINITY, f64::min);
    assert_eq!(losses[fitted.best_epoch], best);
    assert!(fitted.history.len() == 40 || fitted.history.len() == fitted.best_epoch + 4);
}

#[test]
fn a_diverging_fit_names_its_step() {
    let mut parameters = small();
    parameters.learning_rate = 1e30;
    let error =
        fit_network(&pairs(60, 4, 5, false), None, &parameters, &Progress::default(), None).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Diverged { .. }), "{error}");
}

#[test]
fn the_bounded_uncertainty_does_not_collapse_where_the_loss_is_tiny() {
    // New vectors that are known almost exactly: the published form drives e^(−s) up without end.
    let pairs = pairs(120, 4, 5, false);
    let mut parameters = small();
    parameters.loss = LossParameters {
        squared: SquaredScale::RelativeToVariance,
        discriminative_weight: 0.0,
        head: None,
        uncertainty: UncertaintyLoss::Joint {
            loss_weight: 0.5,
            log_weight: 0.5,
            bound: 4.0,
            warm_up_epochs: 3,
        },
        ..NetworkParameters::fct().loss
    };
    parameters.epochs = 60;
    parameters.freeze_statistics_from = 30;
    let fitted = fit_network(&pairs, Some(&pairs), &parameters, &Progress::default(), None).unwrap();
    let last = fitted.history.last().unwrap();
    assert!(last.held_out.unwrap() < 0.05, "{last:?}");
    assert!(last.training >= -0.5 * 4.0);
    let Some(Uncertainty::Linear { weight, .. }) = fitted.psi else { panic!("ψ is linear") };
    assert!(weight.iter().all(|weight| weight.is_finite()));
}

#[test]
fn what_does_not_fit_together_is_said_before_anything_starts() {
    let pairs = pairs(60, 4, 5, false);
    let error = |parameters: NetworkParameters, pairs: &Pairs| {
        fit_network(pairs, None, &parameters, &Progress::default(), None).map(|_| ()).unwrap_err()
    };
    let mut parameters = small();
    parameters.loss.head = Some(head(4, HeadKind::Softmax));
    assert!(matches!(
        error(parameters, &pairs).kind(),
        ErrorKind::WidthMismatch { expected: 5, received: 4, .. }
    ));
    let mut parameters = small();
    parameters.loss.head = None;
    assert!(matches!(error(parameters, &pairs).kind(), ErrorKind::MissingInput { .. }));
    let unlabelled = Pairs::new(pairs.old().clone(), pairs.new_vectors().clone(), None, None).unwrap();
    assert!(
        matches!(error(small(), &unlabelled).kind(), ErrorKind::MissingInput { input, .. } if input == "labels")
    );
    let mut parameters = small();
    parameters.early_stop = Some(1);
    assert!(matches!(error(parameters, &pairs).kind(), ErrorKind::MissingInput { .. }));
    assert!(matches!(error(small(), &pairs.select(&[3])).kind(), ErrorKind::InvalidOption { .. }));
    let equal = Pairs::new(pairs.old().clone(), pairs.new_vectors().select(&[0; 60]), None, None).unwrap();
    let parameters = NetworkParameters::residual_mlp(None);
    assert!(matches!(error(parameters, &equal).kind(), ErrorKind::InvalidOption { .. }));
}

#[test]
fn the_average_of_maps_gives_the_average_of_their_outputs() {
    let pairs = pairs(90, 4, 5, false);
    for skip in [
        None,
        Some(Dense { weight: Matrix::new(4, numbers(20, 9)).unwrap(), bias: numbers(5, 10), relu: false }),
    ] {
        let maps: Vec<Map> = (0..3)
            .map(|seed| {
                let mut parameters = NetworkParameters::residual_mlp(skip.clone());
                parameters.architecture = Architecture::ResidualMlp { hidden: 8, layers: 3 };
                parameters.epochs = 2;
                parameters.seed = seed;
                fit(&pairs, &parameters).map
            })
            .collect();
        let average = average_maps(&maps).unwrap();
        for row in 0..pairs.len() {
            let old = pairs.old().matrix().row(row);
            let outputs: Vec<Vec<f64>> = maps.iter().map(|map| apply(map, old, &[])).collect();
            for (coordinate, received) in apply(&average, old, &[]).into_iter().enumerate() {
                let expected = outputs.iter().map(|output| output[coordinate]).sum::<f64>() / 3.0;
                assert!((expected - received).abs() < 1e-5);
            }
        }
        assert!(average_maps(&[]).unwrap_err().is_corrupt());
        let other = fit(&pairs, &small()).map;
        assert!(average_maps(&[maps[0].clone(), other]).is_err());
    }
}
