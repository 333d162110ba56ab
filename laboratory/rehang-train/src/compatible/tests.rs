//! Whole trainings, small ones: methods and encoders, threads, checkpoints, bad input, and what compatibility
//! buys.

use std::path::Path;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rehang_core::adapter::{Adapter, Training};
use rehang_core::{Distance, ErrorKind, Head, HeadKind, Matrix, Progress, Result, Space, Vectors};

use super::adapter::{adapter, adapter_graph};
use super::trainer::{OwnBatches, PSI_IS_LOST, train_until, unless_diverged};
use super::*;
use crate::encoder::{EncoderArchitecture, ImagePooling, Mode, Passes, Resnet, Stem, TrainedEncoder};
use crate::examples::tests::balanced;
use crate::examples::{ExampleInputs, Examples, Images, LastBatch, SamplerParameters};
use crate::finite_differences::numbers;

const SIDE: usize = 8;

/// Makes grey 8 × 8 images: every class is a pattern of its own, every image that pattern under noise.
fn images(classes: usize, items: usize, noise: f32) -> Examples {
    let mut generator = ChaCha8Rng::seed_from_u64(17);
    let patterns: Vec<Vec<f32>> = (0..classes)
        .map(|_| (0..SIDE * SIDE).map(|_| 60.0 + 130.0 * generator.random::<f32>()).collect())
        .collect();
    let labels: Vec<u32> = (0..classes * items).map(|row| (row % classes) as u32).collect();
    let pixels = labels
        .iter()
        .flat_map(|&label| patterns[label as usize].clone())
        .map(|value| (value + noise * (2.0 * generator.random::<f32>() - 1.0)).clamp(0.0, 255.0) as u8)
        .collect();
    let inputs = ExampleInputs::Images(Images { channels: 1, height: SIDE, width: SIDE, pixels });
    Examples::new(inputs, labels, (0..classes).map(|class| format!("class {class}")).collect()).unwrap()
}

/// Lists the rows of the first `classes` classes.
fn rows_of(examples: &Examples, classes: u32) -> Vec<usize> {
    (0..examples.len()).filter(|&row| examples.labels[row] < classes).collect()
}

fn encoder_of(old: &OldModel) -> &TrainedEncoder {
    let OldSource::Encoder { encoder, .. } = &old.source else { panic!("an old model with its encoder") };
    encoder
}

fn mlp(outputs: usize) -> EncoderArchitecture {
    EncoderArchitecture::Mlp { hidden: vec![24], outputs }
}

fn quick(method: &str, options: &str, architecture: EncoderArchitecture) -> TrainingParameters {
    TrainingParameters {
        epochs: 2,
        rate: 0.02,
        warm_up_epochs: 0.0,
        sampler: SamplerParameters::shuffled(8),
        ..TrainingParameters::new("new", architecture, TrainingMethod::named(method, options).unwrap())
    }
}

fn run(
    examples: &Examples,
    rows: &[usize],
    old: Option<&OldModel>,
    parameters: &TrainingParameters,
) -> Result<Trained> {
    // The old model is trained on these rows, as `old_model` says.
    let old_rows = old.map(|_| rows_of(examples, 2));
    let set = TrainingSet { examples, rows, old_rows: old_rows.as_deref() };
    train(set, old, parameters, &Progress::default())
}

/// Trains an old model on the first two classes.
fn old_model(examples: &Examples, cached: bool) -> OldModel {
    let parameters = TrainingParameters { model: "old".into(), seed: 5, ..quick("plain", "", mlp(6)) };
    OldModel::from_encoder(run(examples, &rows_of(examples, 2), None, &parameters).unwrap().encoder, cached)
}

fn all(examples: &Examples) -> Vec<usize> {
    (0..examples.len()).collect()
}

/// Makes DMU with everything that is drawn at random: variations, two views, ψ with batches of its own.
fn busy() -> TrainingParameters {
    let options = "hidden = 12\nadapter_batch = 14";
    let mut parameters = quick("dmu", options, EncoderArchitecture::CnnSmall { width: 4, outputs: 10 });
    parameters.augmentation.crop_padding = 1;
    parameters.augmentation.flip = 0.5;
    parameters.views = 2;
    parameters.gradient_clip = Some(5.0);
    parameters
}

#[test]
fn one_seed_gives_the_same_bytes_for_any_number_of_threads() {
    let examples = images(4, 10, 60.0);
    let old = old_model(&examples, false);
    let with = |threads: usize, seed: u64| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let parameters = TrainingParameters { seed, ..busy() };
        let trained = pool.install(|| run(&examples, &all(&examples), Some(&old), &parameters)).unwrap();
        (
            trained.encoder.to_bytes().unwrap(),
            rehang_files::adapter_file::to_bytes(&trained.adapter.unwrap()).unwrap(),
        )
    };
    let one = with(1, 0);
    assert!(with(2, 0) == one && with(3, 0) == one);
    let other = with(2, 1);
    assert!(other.0 != one.0 && other.1 != one.1);
}

#[test]
fn a_training_that_was_stopped_goes_on_to_the_same_encoder() {
    let examples = images(4, 10, 60.0);
    let rows = all(&examples);
    let old = old_model(&examples, false);
    let set = TrainingSet { examples: &examples, rows: &rows, old_rows: None };
    let folder = tempfile::tempdir().unwrap();
    for (name, optimiser) in [("sgd", OptimiserKind::Sgd { momentum: 0.9 }), ("adam", OptimiserKind::Adam {})]
    {
        let plain = TrainingParameters { epochs: 4, optimiser, rate: 0.01, ..busy() };
        let whole = run(&examples, &rows, Some(&old), &plain).unwrap();
        let path = folder.path().join(name);
        let kept = TrainingParameters { checkpoint: Some(path.clone()), ..plain };
        for (epochs, done, total) in [(1, 40, 160), (3, 80, 120)] {
            let progress = Progress::default();
            let stopped = train_until(set, Some(&old), &kept, epochs, &progress);
            assert!(stopped.unwrap_err().is_cancelled());
            // Only what this run does counts, or its rate and the time left would be those of another one.
            let shown = progress.snapshot();
            assert_eq!((shown.done, shown.total), (done, total), "{name}");
        }
        let resumed = run(&examples, &rows, Some(&old), &kept).unwrap();
        assert_eq!(resumed.history.len(), 4);
        assert_eq!(resumed.history, whole.history, "{name}");
        assert!(resumed.encoder == whole.encoder, "{name}: the resumed training gives another encoder");
        assert!(resumed.adapter == whole.adapter, "{name}: the resumed training gives another adapter");
        // A training that is finished is taken up as it is: not a single row is trained on again.
        let bytes = fs_err::read(&path).unwrap();
        assert!(run(&examples, &rows, Some(&old), &kept).unwrap() == whole);
        assert!(fs_err::read(&path).unwrap() == bytes);
    }
}

#[test]
fn a_checkpoint_of_another_training_or_a_damaged_one_is_refused_and_kept() {
    let examples = images(4, 6, 60.0);
    let rows = all(&examples);
    let old = old_model(&examples, true);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("checkpoint");
    let parameters = TrainingParameters { checkpoint: Some(path.clone()), ..quick("bct", "", mlp(6)) };
    run(&examples, &rows, Some(&old), &parameters).unwrap();
    let bytes = fs_err::read(&path).unwrap();
    let refused = |rows: &[usize], old: &OldModel, parameters: &TrainingParameters| {
        let error = run(&examples, rows, Some(old), parameters).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::InvalidOption { option, .. } if option == "checkpoint"),
            "{error}"
        );
        assert!(fs_err::read(&path).unwrap() == bytes);
    };
    refused(&rows, &old, &TrainingParameters { seed: 1, ..parameters.clone() });
    refused(&rows, &old, &TrainingParameters { epochs: 3, ..parameters.clone() });
    refused(&rows[1..], &old, &parameters);
    // An old model that differs in its running statistics, or in its head's bias, is another one.
    let mut other = old.clone();
    let OldSource::Encoder { encoder, .. } = &mut other.source else { panic!("it is an encoder") };
    encoder.state.running_mean[0] += 1.0;
    refused(&rows, &other, &parameters);
    let mut other = old.clone();
    let head = other.head.as_mut().unwrap();
    head.head = Head::new(head.head.weight().clone(), Some(vec![1.0, 0.0]), HeadKind::Softmax).unwrap();
    refused(&rows, &other, &parameters);
    fs_err::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let error = run(&examples, &rows, Some(&old), &parameters).unwrap_err();
    assert!(error.is_corrupt() && error.to_string().contains("checkpoint"), "{error}");
}

#[test]
fn a_loss_that_leaves_the_finite_numbers_ends_with_its_step_and_the_last_good_checkpoint() {
    let examples = images(4, 8, 60.0);
    let rows = all(&examples);
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| Some(folder.path().join(name));
    // Two good epochs, then a rate that no number survives.
    let parameters = TrainingParameters {
        epochs: 5,
        schedule: RateSchedule::Steps { at: vec![2], factor: 1e34 },
        checkpoint: at("kept"),
        ..quick("plain", "", mlp(6))
    };
    let error = run(&examples, &rows, None, &parameters).unwrap_err();
    let ErrorKind::Diverged { step, .. } = error.kind() else { panic!("{error}") };
    // 32 rows are 4 batches; the first step of the third epoch is still measured before it does its harm.
    assert!((9..12).contains(step), "step {step}");
    assert!(error.to_string().contains(&step.to_string()), "{error}");
    let set = TrainingSet { examples: &examples, rows: &rows, old_rows: None };
    let two = TrainingParameters { checkpoint: at("two"), ..parameters.clone() };
    train_until(set, None, &two, 2, &Progress::default()).unwrap_err();
    assert!(fs_err::read(at("kept").unwrap()).unwrap() == fs_err::read(at("two").unwrap()).unwrap());
    // At once, without any checkpoint.
    let at_once = TrainingParameters { rate: 1e30, checkpoint: None, ..parameters };
    let error = run(&examples, &rows, None, &at_once).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Diverged { .. }), "{error}");
}

/// Lists every method with one or two sets of options.
fn every_method() -> Vec<(&'static str, &'static str)> {
    let mut methods: Vec<(&str, &str)> = TrainingMethod::NAMES
        .iter()
        .map(|&name| (name, if name == "dmu" { "hidden = 8" } else { "" }))
        .collect();
    methods.extend([
        ("bct", "new_classes = 'leave-out'"),
        ("bct", "new_classes = 'distillation'"),
        ("bct", "influence_set = 'old'"),
        ("ract", "form = 'split'\neta = 0.5\nhardest = 3"),
        ("ract", "form = 'triplet'"),
        ("dmu", "selection = 'least-confidence'\nforward_weight = 0.0"),
        ("focal-distillation", "influence = false"),
        ("focal-distillation", "form = 'probabilities'\ninfluence = false"),
        ("regression", "hidden = 8"),
    ]);
    methods
}

fn check_methods(architecture: &EncoderArchitecture, examples: &Examples, methods: &[(&str, &str)]) {
    let old = old_model(examples, true);
    for &(name, options) in methods {
        let mut parameters = quick(name, options, architecture.clone());
        parameters.weight_decay = 1e-3;
        // Untrained vectors at the contrast's temperature have gradients of hundreds.
        parameters.gradient_clip = Some(5.0);
        let trained = run(examples, &all(examples), Some(&old), &parameters)
            .unwrap_or_else(|error| panic!("{name} {options}: {error}"));
        assert_eq!(trained.history.len(), 2);
        assert!(trained.history.iter().all(|epoch| epoch.loss.is_finite() && epoch.rate > 0.0));
        assert_eq!(trained.encoder.training.method, name);
        // Classes go as the old head has them, then the new ones; plain training knows no old head.
        assert_eq!(trained.encoder.classes, examples.classes);
        assert_eq!(trained.encoder.head.classes(), examples.classes.len());
        assert_eq!(
            trained.adapter.is_some(),
            parameters.method.adapter_hidden().is_some(),
            "{name} {options}"
        );
        // The weights moved, and the vectors are finite.
        let graph = architecture.graph(trained.encoder.input).unwrap();
        assert!(trained.encoder.state.parameters != graph.initial(parameters.seed).parameters);
        let vectors = trained.encoder.embed(&examples.inputs, &Progress::default());
        let vectors = vectors.unwrap_or_else(|error| panic!("{name} {options}: {error}"));
        assert_eq!((vectors.len(), vectors.matrix().columns()), (examples.len(), architecture.outputs()));
    }
}

#[test]
fn every_method_trains_a_dense_encoder() {
    // Narrower than the old vectors, as wide, and wider.
    for outputs in [5, 6, 9] {
        check_methods(&mlp(outputs), &images(4, 6, 60.0), &every_method());
    }
}

#[test]
fn every_method_trains_a_small_convolutional_encoder() {
    check_methods(
        &EncoderArchitecture::CnnSmall { width: 2, outputs: 9 },
        &images(4, 6, 60.0),
        &every_method(),
    );
}

#[test]
fn the_main_methods_train_a_residual_encoder() {
    let (stem, pooling) = (Stem::Cifar, ImagePooling::GeneralisedMean);
    // Eleven million weights take their time; the loop does not see which objectives it runs.
    let methods = [("plain", ""), ("bct", ""), ("ract", ""), ("dmu", "hidden = 8")];
    check_methods(
        &EncoderArchitecture::Resnet18(Resnet { stem, pooling, outputs: 9 }),
        &images(4, 3, 60.0),
        &methods,
    );
}

#[test]
fn every_head_and_sampler_trains() {
    let examples = images(4, 6, 60.0);
    for head in [
        HeadForm::NormalisedSoftmax { scale: 10.0 },
        HeadForm::CosFace { scale: 10.0, margin: 0.2 },
        HeadForm::ArcFace { scale: 10.0, margin: 0.2 },
    ] {
        let parameters = TrainingParameters {
            head,
            label_smoothing: 0.1,
            sampler: SamplerParameters::Balanced { classes: 3, items: 3, last: LastBatch::Keep },
            epochs: 12,
            rate: 0.1,
            ..quick("plain", "", mlp(8))
        };
        let trained = run(&examples, &all(&examples), None, &parameters).unwrap();
        let (first, last) = (&trained.history[0], &trained.history[11]);
        assert!(last.loss < first.loss && last.accuracy > 60.0, "{head:?}: {first:?} {last:?}");
        // Heads of cosines have no bias.
        assert!(trained.encoder.head.bias().iter().all(|&bias| bias == 0.0));
        let bytes = trained.encoder.to_bytes().unwrap();
        assert!(TrainedEncoder::from_bytes(&bytes, "file").unwrap() == trained.encoder);
    }
}

#[test]
fn the_old_model_stays_as_it_is_and_may_be_run_or_remembered() {
    let examples = images(4, 8, 60.0);
    let rows = all(&examples);
    let (live, cached) = (old_model(&examples, false), old_model(&examples, true));
    let before = live.clone();
    let vectors = |old: &OldModel| old.vectors(&examples, &rows, &Progress::default()).unwrap();
    let remembered = OldModel { source: OldSource::Vectors(vectors(&live)), ..live.clone() };
    for name in ["dmu", "ract", "lwf", "bct"] {
        let parameters = quick(name, if name == "dmu" { "hidden = 8" } else { "" }, mlp(7));
        let weights =
            |old: &OldModel| run(&examples, &rows, Some(old), &parameters).unwrap().encoder.state.parameters;
        // Without variations an old encoder that was touched, or that used the batch's statistics, would
        // differ here.
        let of_live = weights(&live);
        let size = of_live.iter().fold(0.0_f32, |size, value| size.max(value.abs()));
        for other in [weights(&cached), weights(&remembered)] {
            let apart = of_live.iter().zip(&other).fold(0.0_f32, |apart, (a, b)| apart.max((a - b).abs()));
            assert!(apart <= 1e-4 * size, "{name}: {apart} of {size}");
        }
    }
    assert!(live == before && vectors(&live) == vectors(&cached));
}

#[test]
fn a_second_view_is_another_variation_for_the_old_model_only() {
    let examples = images(4, 6, 60.0);
    let rows = all(&examples);
    let weights = |cached: bool, views: usize, padding: usize| {
        let mut parameters = TrainingParameters { views, ..quick("ract", "", mlp(6)) };
        parameters.augmentation.crop_padding = padding;
        let trained = run(&examples, &rows, Some(&old_model(&examples, cached)), &parameters).unwrap();
        (trained.encoder.state.parameters, trained.warnings)
    };
    assert!(weights(false, 1, 2).0 != weights(false, 2, 2).0);
    // Without variations both views are the row itself.
    assert!(weights(false, 1, 0).0 == weights(false, 2, 0).0);
    // Remembered vectors have no view; that is said.
    let (one, two) = (weights(true, 1, 2), weights(true, 2, 2));
    assert!(one.0 == two.0 && one.1.is_empty());
    assert!(two.1.iter().any(|warning| warning.contains("views = 2")), "{:?}", two.1);
}

#[test]
fn what_does_not_fit_together_is_one_clear_error() {
    let examples = images(4, 6, 60.0);
    let rows = all(&examples);
    let old = old_model(&examples, true);
    let fails = |old: Option<&OldModel>, parameters: &TrainingParameters, rows: &[usize]| {
        run(&examples, rows, old, parameters).unwrap_err()
    };
    let bct = quick("bct", "", mlp(6));

    let error = fails(None, &bct, &rows);
    assert!(matches!(error.kind(), ErrorKind::MissingInput { .. }), "{error}");
    let headless = OldModel { head: None, ..old.clone() };
    let error = fails(Some(&headless), &bct, &rows);
    assert!(error.to_string().contains("head"), "{error}");
    run(&examples, &rows, Some(&headless), &quick("l2", "", mlp(6))).unwrap();

    let mut wide = old.clone();
    let weight = Matrix::new(9, numbers(2 * 9, 3)).unwrap();
    wide.head.as_mut().unwrap().head = Head::new(weight, None, HeadKind::Softmax).unwrap();
    let error = fails(Some(&wide), &bct, &rows);
    let ErrorKind::WidthMismatch { expected: 6, received: 9, .. } = error.kind() else { panic!("{error}") };

    let mut nameless = old.clone();
    nameless.head.as_mut().unwrap().classes.pop();
    assert!(fails(Some(&nameless), &bct, &rows).to_string().contains("classes"));
    let mut twice = old.clone();
    twice.head.as_mut().unwrap().classes = vec!["class 0".into(); 2];
    let error = fails(Some(&twice), &bct, &rows);
    assert!(matches!(error.kind(), ErrorKind::Duplicate { .. }), "{error}");

    let few = OldModel { source: OldSource::Vectors(Matrix::zeros(5, 6)), ..old.clone() };
    let error = fails(Some(&few), &bct, &rows);
    assert!(matches!(error.kind(), ErrorKind::CountMismatch { left_count: 5, .. }), "{error}");
    let nan = OldModel { source: OldSource::Vectors(Matrix::from_fn(24, 6, |_, _| f32::NAN)), ..old.clone() };
    assert!(matches!(fails(Some(&nan), &bct, &rows).kind(), ErrorKind::NotFinite { .. }));
    let mut coloured = old.clone();
    let OldSource::Encoder { encoder, .. } = &mut coloured.source else { panic!("it is an encoder") };
    encoder.input.channels = 3;
    let error = fails(Some(&coloured), &bct, &rows).to_string();
    assert!(error.contains("3 x 8 x 8") && error.contains("1 x 8 x 8"), "{error}");

    assert!(matches!(fails(Some(&old), &bct, &[0, 24]).kind(), ErrorKind::NotFound { .. }));
    assert!(fails(Some(&old), &bct, &[0, 4, 8]).is_corrupt(), "one class");
    assert!(fails(Some(&old), &bct, &[]).is_corrupt(), "no row");
    assert!(matches!(fails(Some(&old), &bct, &[0, 1, 1]).kind(), ErrorKind::Duplicate { .. }));
    let plain = quick("plain", "", mlp(6));
    for wrong in [
        TrainingParameters { epochs: 0, ..plain.clone() },
        TrainingParameters { views: 3, ..plain.clone() },
        TrainingParameters { rate: f64::NAN, ..plain.clone() },
        TrainingParameters { weight_decay: -1.0, ..plain.clone() },
        TrainingParameters { label_smoothing: 1.0, ..plain.clone() },
        TrainingParameters { gradient_clip: Some(0.0), ..plain.clone() },
        // Batches of one row would never be trained on.
        TrainingParameters { sampler: SamplerParameters::shuffled(1), ..plain.clone() },
        TrainingParameters { architecture: mlp(0), ..plain.clone() },
        TrainingParameters { head: HeadForm::ArcFace { scale: 30.0, margin: 28.6 }, ..plain.clone() },
        TrainingParameters { optimiser: OptimiserKind::Sgd { momentum: -1.0 }, ..plain.clone() },
        TrainingParameters { optimiser: OptimiserKind::Sgd { momentum: 1.0 }, ..plain.clone() },
        TrainingParameters { schedule: RateSchedule::Steps { at: vec![1], factor: -0.1 }, ..plain.clone() },
    ] {
        let error = fails(None, &wrong, &rows);
        assert!(matches!(error.kind(), ErrorKind::InvalidOption { .. }), "{error}");
    }
    // A label beyond the classes cannot become an example at all.
    let beyond = Examples { labels: vec![4; 24], ..examples.clone() };
    let error = run(&beyond, &rows, None, &plain).unwrap_err();
    assert!(error.is_corrupt() && error.to_string().contains("class number 4"), "{error}");
}

#[test]
fn odd_sets_are_trained_on_with_a_warning() {
    let mut examples = images(4, 6, 60.0);
    let old = old_model(&examples, true);
    let warnings = |examples: &Examples, rows: &[usize], old: &OldModel, method: &str| {
        let parameters = quick(method, "", mlp(6));
        let said = run(examples, rows, Some(old), &parameters).unwrap().warnings;
        // Warnings of a training are known without the training, too.
        let set = TrainingSet { examples, rows, old_rows: None };
        assert_eq!(training_warnings(set, Some(old), &parameters).unwrap(), said);
        said
    };
    assert!(warnings(&examples, &all(&examples), &old, "bct").is_empty());
    // Class 3 has row 3 alone.
    let single: Vec<usize> = (0..24).filter(|row| row % 4 < 3 || *row == 3).collect();
    let said = warnings(&examples, &single, &old, "ract");
    assert!(said.len() == 1 && said[0].contains("single row (class 3)"), "{said:?}");
    let balanced = TrainingParameters { sampler: balanced(2, 2), ..quick("plain", "", mlp(6)) };
    let said = run(&examples, &single, None, &balanced).unwrap().warnings;
    assert!(said.len() == 2 && said[1].contains("1 rows are never trained on"), "{said:?}");
    let same_name = OldModel { model: "new".into(), ..old.clone() };
    let said = warnings(&examples, &all(&examples), &same_name, "bct");
    assert!(said.len() == 1 && said[0].contains("both called \"new\""), "{said:?}");
    // One oddity does not hide another.
    let two_views = TrainingParameters { views: 2, ..quick("bct", "", mlp(6)) };
    let said = run(&examples, &all(&examples), Some(&same_name), &two_views).unwrap().warnings;
    assert!(said.len() == 2 && said[0].contains("views = 2") && said[1].contains("both called"), "{said:?}");
    // None of the old head's classes is there any more.
    examples.classes = (0..4).map(|class| format!("another {class}")).collect();
    let said = warnings(&examples, &all(&examples), &old, "bct");
    assert!(said.len() == 1 && said[0].contains("knows none of the classes"), "{said:?}");
}

#[test]
fn classes_that_the_old_head_does_not_know_come_after_its_own() {
    let examples = images(4, 6, 60.0);
    let mut old = old_model(&examples, true);
    let head = old.head.as_mut().unwrap();
    head.classes = vec!["class 3".into(), "class 1".into()];
    for options in ["", "new_classes = 'leave-out'", "new_classes = 'distillation'"] {
        let trained = run(&examples, &all(&examples), Some(&old), &quick("bct", options, mlp(6))).unwrap();
        assert_eq!(trained.encoder.classes, ["class 3", "class 1", "class 0", "class 2"]);
        assert_eq!(trained.encoder.head.classes(), 4);
    }
}

#[test]
fn an_encoder_does_not_claim_classes_that_it_was_not_trained_on() {
    let examples = images(4, 6, 60.0);
    let old = old_model(&examples, true);
    // The old model knows classes 0 and 1, the new one sees 1, 2 and 3.
    let rows: Vec<usize> = (0..examples.len()).filter(|&row| examples.labels[row] > 0).collect();
    for (method, options) in [("bct", ""), ("ract", ""), ("dmu", "hidden = 12"), ("l2", "")] {
        let trained = run(&examples, &rows, Some(&old), &quick(method, options, mlp(6))).unwrap();
        assert_eq!(trained.encoder.classes, ["class 1", "class 2", "class 3"], "{method}");
        assert_eq!(trained.encoder.head.classes(), 3, "{method}");
    }
}

#[test]
fn the_adapter_of_a_trained_head_gives_what_its_own_passes_give() {
    let (d_old, d_new, rows) = (6, 9, 40);
    let graph = adapter_graph(d_old, &[8, 8, 8], d_new).unwrap();
    let mut state = graph.initial(3);
    let count = state.running_mean.len();
    state.running_mean.copy_from_slice(&numbers(count, 4));
    for (value, number) in state.running_variance.iter_mut().zip(numbers(count, 5)) {
        *value = 0.6 + 0.5 * number;
    }
    for (parameter, number) in state.parameters.iter_mut().zip(numbers(graph.parameter_count(), 6)) {
        *parameter += 0.2 * number;
    }
    let examples = images(4, 10, 60.0);
    let encoder = run(&examples, &all(&examples), None, &quick("plain", "", mlp(d_new))).unwrap().encoder;
    let new = encoder.embed(&examples.inputs, &Progress::default()).unwrap();
    let old = old_model(&examples, true);
    let vectors = Matrix::new(d_old, numbers(rows * d_old, 7)).unwrap();
    let labels: Vec<i64> = examples.labels.iter().map(|&label| label.into()).collect();
    let progress = Progress::default();
    let psi =
        adapter(&graph, &state, &old, vectors.clone(), &encoder, new.matrix().clone(), &labels, &progress)
            .unwrap();

    let mut own = Passes::new(&graph);
    let direct = own.forward(&mut state, vectors.as_slice(), rows, Mode::Evaluation).unwrap();
    let vectors = Vectors::new(Space::new("old", d_old, Distance::Cosine, false), vectors, "old").unwrap();
    let applied = rehang_core::adapter::apply(&psi, &vectors, None, &progress).unwrap();
    for row in 0..rows {
        // The adapter also gives vectors the new space's mean length, which cosines do not see.
        let unit = |row: &[f32]| -> Vec<f32> {
            let length = row.iter().map(|x| x * x).sum::<f32>().sqrt();
            row.iter().map(|x| x / length).collect()
        };
        let direct = &direct[row * d_new..(row + 1) * d_new];
        let length = direct.iter().map(|x| x * x).sum::<f32>().sqrt();
        assert!((applied.raw_norms[row] - length).abs() <= 1e-4 * length);
        let pairs = unit(direct).into_iter().zip(unit(applied.vectors.matrix().row(row)));
        for (direct, applied) in pairs {
            assert!((direct - applied).abs() < 1e-4, "row {row}: {direct} {applied}");
        }
    }
    // Numbers that overflow cost ψ alone, not the encoder beside it; any other error stays one.
    let mut overflowing = state.clone();
    let last_layer = graph.parameters[graph.parameters.len() - 2].range.start;
    overflowing.parameters[last_layer..].fill(f32::MAX);
    let vectors = vectors.matrix().clone();
    let lost =
        adapter(&graph, &overflowing, &old, vectors, &encoder, new.matrix().clone(), &labels, &progress);
    let mut said = Vec::new();
    assert!(unless_diverged(lost, &mut said, |_| PSI_IS_LOST.into()).unwrap().is_none());
    assert!(said.len() == 1 && said[0].contains("not kept"), "{said:?}");
    let cancelled: Result<Adapter> = Err(ErrorKind::Cancelled.into());
    assert!(unless_diverged(cancelled, &mut said, |_| PSI_IS_LOST.into()).unwrap_err().is_cancelled());
    let pairs_sketch = psi.training.pairs_sketch.clone();
    assert!(pairs_sketch.is_some(), "a gallery that holds some of the pairs is noticed");
    assert_eq!(psi.training, Training { pairs_sketch, ..encoder.training.clone() });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("psi.safetensors");
    rehang_files::adapter_file::save(&psi, &path).unwrap();
    assert!(rehang_files::adapter_file::load(&path).unwrap() == psi);
}

/// Computes the share of items whose nearest other item of the gallery, by cosine, is of their class.
fn top_1(queries: &Matrix, gallery: &Matrix, labels: &[u32]) -> f64 {
    let width = queries.columns().min(gallery.columns());
    let cosine = |query: usize, item: usize| -> f64 {
        let (query, item) = (&queries.row(query)[..width], &gallery.row(item)[..width]);
        let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
        product(query, item) / (product(query, query) * product(item, item)).sqrt().max(1e-12)
    };
    let right = (0..labels.len()).filter(|&query| {
        let others = (0..labels.len()).filter(|&item| item != query);
        let nearest = others.max_by(|&a, &b| cosine(query, a).total_cmp(&cosine(query, b))).unwrap();
        labels[nearest] == labels[query]
    });
    right.count() as f64 / labels.len() as f64
}

#[test]
fn a_compatible_model_searches_the_old_gallery_and_an_independent_one_does_not() {
    let examples = images(6, 20, 110.0);
    let rows = all(&examples);
    let long = |method: &str, options: &str, seed: u64| TrainingParameters {
        epochs: 25,
        rate: 0.05,
        gradient_clip: Some(5.0),
        seed,
        ..quick(method, options, mlp(12))
    };
    let plain =
        |rows: &[usize], seed: u64| run(&examples, rows, None, &long("plain", "", seed)).unwrap().encoder;
    let embed = |encoder: &TrainedEncoder| {
        encoder.embed(&examples.inputs, &Progress::default()).unwrap().matrix().clone()
    };
    // The gallery grew: the old model saw a third of every class.
    let third: Vec<usize> = (0..examples.len()).filter(|row| row / 6 % 3 == 0).collect();
    let old = OldModel::from_encoder(plain(&third, 1), false);
    let gallery = embed(encoder_of(&old));
    let today = top_1(&gallery, &gallery, &examples.labels);
    let independent = top_1(&embed(&plain(&rows, 2)), &gallery, &examples.labels);
    assert!(independent < 0.4, "six classes, and an independent model finds {independent}");
    for (method, options) in [("bct", ""), ("ract", ""), ("dmu", "hidden = 16"), ("l2", "")] {
        let trained = run(&examples, &rows, Some(&old), &long(method, options, 2));
        let trained = trained.unwrap_or_else(|error| panic!("{method}: {error}"));
        let vectors = embed(&trained.encoder);
        let cross = top_1(&vectors, &gallery, &examples.labels);
        assert!(cross > independent + 0.2, "{method}: {cross} against {independent}, today {today}");
        assert!(cross > 0.8 * today, "{method}: {cross}, and today's {today}");
        if let Some(psi) = &trained.adapter {
            let space = encoder_of(&old).space();
            let vectors_old = Vectors::new(space, gallery.clone(), "old").unwrap();
            let adapted = rehang_core::adapter::apply(psi, &vectors_old, None, &Progress::default()).unwrap();
            let forward = top_1(&vectors, adapted.vectors.matrix(), &examples.labels);
            assert!(forward > independent + 0.2, "{method} through ψ: {forward}");
        }
    }
}

#[test]
fn weights_begin_where_a_file_says() {
    let examples = images(4, 6, 60.0);
    let rows = all(&examples);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("first.safetensors");
    let first = run(&examples, &rows, None, &quick("plain", "", mlp(6))).unwrap().encoder;
    first.save(&path).unwrap();
    let begin = |path: &Path, architecture: EncoderArchitecture| {
        let parameters = TrainingParameters {
            initial: Some(path.to_owned()),
            rate: 1e-12,
            weight_decay: 0.0,
            ..quick("plain", "", architecture)
        };
        run(&examples, &rows, None, &parameters)
    };
    assert!(begin(&path, mlp(6)).unwrap().encoder.state.parameters == first.state.parameters);
    let error = begin(&path, mlp(7)).unwrap_err().to_string();
    assert!(error.contains("first.safetensors") && error.contains("fc.weight"), "{error}");
    let error = begin(&folder.path().join("none.safetensors"), mlp(6)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Io { .. }), "{error}");
    fs_err::write(&path, b"no weights").unwrap();
    assert!(begin(&path, mlp(6)).unwrap_err().is_corrupt());
}

#[test]
fn initial_weights_are_told_apart_by_what_they_are_and_not_by_where_they_lie() {
    let examples = images(4, 6, 60.0);
    let rows = all(&examples);
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let plain = |seed: u64| TrainingParameters { seed, ..quick("plain", "", mlp(6)) };
    let encoder = |seed: u64| run(&examples, &rows, None, &plain(seed)).unwrap().encoder;
    let from = |name: &str| TrainingParameters {
        initial: Some(at(name)),
        checkpoint: Some(at("checkpoint")),
        ..plain(0)
    };
    let is_of = |encoder: &TrainedEncoder, parameters: &TrainingParameters| {
        encoder.is_of(parameters, &examples.select(&rows), None).unwrap()
    };
    encoder(1).save(at("start")).unwrap();
    fs_err::copy(at("start"), at("moved")).unwrap();
    let set = TrainingSet { examples: &examples, rows: &rows, old_rows: None };
    assert!(train_until(set, None, &from("start"), 1, &Progress::default()).unwrap_err().is_cancelled());
    // Equal weights lie at another place: the training goes on, and what comes out is of both places.
    let trained = run(&examples, &rows, None, &from("moved")).unwrap().encoder;
    assert!(is_of(&trained, &from("start")) && is_of(&trained, &from("moved")));
    assert!(!is_of(&trained, &plain(0)));
    assert!(trained.training.inputs.contains_key("initial"));
    // Other weights at the same place: another training.
    encoder(2).save(at("start")).unwrap();
    assert!(!is_of(&trained, &from("start")));
    let error = run(&examples, &rows, None, &from("start")).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::InvalidOption { option, .. } if option == "checkpoint"),
        "{error}"
    );
    // Files used to say a path, or null, among the parameters.
    let mut earlier = encoder(0);
    let say = |earlier: &mut TrainedEncoder, path: &str| {
        earlier.training.hyper_parameters.insert("initial".into(), path.into());
    };
    say(&mut earlier, "null");
    assert!(TrainedEncoder::from_bytes(&earlier.to_bytes().unwrap(), "file").unwrap() == earlier);
    assert!(is_of(&earlier, &plain(0)) && !is_of(&earlier, &from("start")));
    say(&mut earlier, "\"start\"");
    assert!(!is_of(&earlier, &plain(0)) && !is_of(&earlier, &from("start")));
}

#[test]
fn what_pytorch_counts_beside_its_weights_is_passed_over() {
    let file = |name: &str| {
        let header = format!("{{\"{name}\":{{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]}}}}");
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[7; 8]].concat()
    };
    let read = |name: &str| rehang_files::tensors::plain(&file(name));
    assert!(read("layer1.0.bn1.num_batches_tracked").unwrap().is_empty());
    assert!(read("layer1.0.bn1.weight").unwrap_err().contains("I64"));
}

#[test]
fn the_influence_loss_on_the_old_training_set_needs_to_know_it() {
    let examples = images(4, 10, 60.0);
    let (rows, old) = (all(&examples), old_model(&examples, true));
    let parameters = quick("bct", "influence_set = 'old'", mlp(6));
    let trained = |rows: &[usize], old_rows: Option<&[usize]>| {
        let set = TrainingSet { examples: &examples, rows, old_rows };
        train(set, Some(&old), &parameters, &Progress::default())
    };
    let error = trained(&rows, None).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::MissingInput { .. }), "{error}");
    let old_rows = rows_of(&examples, 2);
    let others: Vec<usize> = rows.iter().copied().filter(|row| !old_rows.contains(row)).collect();
    let error = trained(&others, Some(&old_rows)).unwrap_err();
    assert!(error.to_string().contains("influence_set"), "{error}");
    let error = trained(&rows, Some(&[rows.len()])).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NotFound { .. }), "{error}");
    // The rows that the influence loss is taken on make a difference.
    let weights = |old_rows: &[usize]| trained(&rows, Some(old_rows)).unwrap().encoder.state.parameters;
    let of_all = weights(&old_rows);
    assert!(of_all != weights(&old_rows[..old_rows.len() / 2]));
    // No class is synthesised for the others: they would be negatives. The old head knows no other rows here,
    // so that is the same as leaving the others out.
    let left_out = quick("bct", "new_classes = 'leave-out'", mlp(6));
    assert!(run(&examples, &rows, Some(&old), &left_out).unwrap().encoder.state.parameters == of_all);
}

#[test]
fn progress_counts_the_rows_that_batches_really_hold() {
    // Classes of ten rows, and of one: 31 rows.
    let examples = images(4, 10, 60.0);
    let rows: Vec<usize> = (0..examples.len()).filter(|row| row % 4 < 3 || *row == 3).collect();
    let set = TrainingSet { examples: &examples, rows: &rows, old_rows: None };
    for (sampler, of_an_epoch) in [
        // Three batches of ten; the last row waits.
        (SamplerParameters::shuffled(10), 30),
        (SamplerParameters::Shuffled { batch: 8, last: LastBatch::Drop }, 24),
        // Four groups of each of three classes, filled up, two a batch.
        (balanced(2, 3), 36),
    ] {
        let progress = Progress::default();
        let parameters = TrainingParameters { sampler, ..quick("plain", "", mlp(6)) };
        train(set, None, &parameters, &progress).unwrap();
        let shown = progress.snapshot();
        assert_eq!((shown.done, shown.total), (2 * of_an_epoch, 2 * of_an_epoch), "{sampler:?}");
    }
}

/// Gradients of ψ stay out of the encoder where ψ follows φ_new and nothing flows back. So the encoder is the
/// very one that is trained without ψ, however long ψ's gradient is.
#[test]
fn the_gradient_of_psi_does_not_shorten_the_steps_of_the_encoder() {
    let examples = images(4, 10, 60.0);
    let old = old_model(&examples, false);
    let trained = |options: &str| {
        let clipped = TrainingParameters { gradient_clip: Some(0.1), ..quick("regression", options, mlp(6)) };
        run(&examples, &all(&examples), Some(&old), &clipped).unwrap()
    };
    let (with, without) = (trained("hidden = 12\nstop_gradient = true"), trained(""));
    assert!(with.adapter.is_some() && without.adapter.is_none());
    assert_eq!(with.encoder.state, without.encoder.state);
    // As (14) is printed, ψ draws the encoder as well.
    assert_ne!(trained("hidden = 12").encoder.state, without.encoder.state);
}

#[test]
fn psi_goes_through_the_rows_at_its_own_pace() {
    let examples = images(4, 10, 60.0);
    let rows = all(&examples);
    let mut own = OwnBatches::new(14, &examples.labels, &rows, 0).unwrap();
    let mut seen = Vec::new();
    for step in 0..6 {
        let (epoch, batch) = own.of_step(step);
        assert_eq!((epoch, batch.len()), (step as usize / 2, 14), "40 rows make two whole batches");
        seen.push(batch.to_vec());
    }
    for epoch in seen.chunks(2) {
        let mut once = epoch.concat();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), 28, "no row twice in an epoch");
    }
    assert_ne!(seen[..2], seen[2..4]);
    assert_eq!(own.of_step(1).1, seen[1], "a function of the step");

    let old = old_model(&examples, true);
    let trained = |options: &str| run(&examples, &rows, Some(&old), &quick("dmu", options, mlp(6)));
    let psi = |options: &str| trained(options).unwrap().adapter.unwrap();
    assert_ne!(psi("hidden = 4"), psi("hidden = 4\nadapter_batch = 16"));
    let error = trained("adapter_batch = 41").unwrap_err().to_string();
    assert!(error.contains("adapter_batch") && error.contains("40 rows"), "{error}");
}

#[test]
fn positives_of_the_class_are_drawn_anew_and_the_same_again() {
    let examples = images(4, 10, 60.0);
    for cached in [false, true] {
        let old = old_model(&examples, cached);
        let trained = |options: &str| {
            run(&examples, &all(&examples), Some(&old), &quick("ract", options, mlp(6))).unwrap().encoder
        };
        let own = trained("");
        let drawn = trained("positives = 'class'");
        assert_ne!(own.state, drawn.state);
        assert_eq!(drawn.state, trained("positives = 'class'").state);
    }
}

#[test]
fn dmu_says_how_far_its_weights_are_from_even() {
    let examples = images(4, 10, 60.0);
    let old = old_model(&examples, false);
    let measured = |options: &str| {
        let trained = run(&examples, &all(&examples), Some(&old), &quick("dmu", options, mlp(6))).unwrap();
        trained.history.into_iter().map(|epoch| epoch.measures[0].1).collect::<Vec<f64>>()
    };
    // Batches of 8: by (10) at most 1/7 above even, whatever the old model knows.
    assert!(measured("hidden = 4").into_iter().all(|above| above > 0.0 && above <= 100.0 / 7.0));
    assert!(measured("hidden = 4\nselection = 'even'").into_iter().all(|above| above < 1e-3));
}
