//! Small adapters of every kind, made from a seed. The tests of `rehang` and `rehang-files` share them with
//! `write_golden` of `rehang-files`.
#![allow(dead_code, reason = "each user of this module needs a part of it")]

use std::collections::BTreeMap;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rehang_core::adapter::{
    Adapter, BranchInput, Dense, Geometry, InputScaling, InputStatistics, KernelExpansion, Map, OutOfFold,
    PerKind, RowSketch, SecondBranch, Training, Uncertainty,
};
use rehang_core::{Distance, Head, HeadKind, Matrix, Space};

/// A matrix of numbers between −1 and 1.
pub fn matrix(random: &mut ChaCha8Rng, rows: usize, columns: usize) -> Matrix {
    Matrix::from_fn(rows, columns, |_, _| random.random_range(-1.0..1.0))
}

pub fn vector(random: &mut ChaCha8Rng, length: usize) -> Vec<f32> {
    (0..length).map(|_| random.random_range(-1.0..1.0)).collect()
}

/// A layer whose outputs are about as large as its inputs.
pub fn dense(random: &mut ChaCha8Rng, inputs: usize, outputs: usize, relu: bool) -> Dense {
    let scale = (3.0 / inputs as f32).sqrt();
    let mut weight = matrix(random, outputs, inputs);
    weight.as_mut_slice().iter_mut().for_each(|value| *value *= scale);
    Dense { weight, bias: vector(random, outputs), relu }
}

/// Layers through `widths`; every layer but the last has a ReLU.
pub fn layers(random: &mut ChaCha8Rng, widths: &[usize], last_relu: bool) -> Vec<Dense> {
    let pairs: Vec<_> = widths.windows(2).collect();
    (0..pairs.len())
        .map(|index| dense(random, pairs[index][0], pairs[index][1], last_relu || index + 1 < pairs.len()))
        .collect()
}

/// Parts that an adapter has.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    pub input: InputScaling,
    pub branch_layers: usize,
    pub second: Option<(BranchInput, usize)>,
    pub mixer_layers: usize,
    pub skip: bool,
    pub kernel: bool,
    pub kinds: usize,
    pub geometry: usize,
    pub uncertainty: usize,
    pub handicap: f64,
}

/// Makes an adapter of a kind, with old width, new width, side width and hidden width.
pub fn adapter(random: &mut ChaCha8Rng, kind: Kind, [d_old, d_new, d_side, hidden]: [usize; 4]) -> Adapter {
    let chain = |input: usize, count: usize, output: usize| {
        let mut widths = vec![input];
        widths.extend(std::iter::repeat_n(hidden, count.saturating_sub(1)));
        widths.extend((count > 0).then_some(output));
        widths
    };
    // Without a mixer the branches are the output, so their widths are chosen to fit.
    let has_mixer = kind.mixer_layers > 0;
    let branch =
        chain(d_old, kind.branch_layers, if has_mixer || kind.second.is_some() { hidden } else { d_new });
    let branch_width = *branch.last().unwrap();
    let second = kind.second.map(|(input, count)| {
        let width = if input == BranchInput::Old { d_old } else { d_side };
        (input, chain(width, count, hidden + 1))
    });
    let joined = branch_width + second.as_ref().map_or(0, |(_, widths)| *widths.last().unwrap());
    let mixer = chain(joined, kind.mixer_layers, d_new);
    let d_new = if has_mixer { d_new } else { joined };
    let expansion = |random: &mut ChaCha8Rng, outputs: usize| KernelExpansion {
        centres: matrix(random, 9, d_old),
        coefficients: matrix(random, 9, outputs),
        gamma: 0.5,
    };
    let mut map = Map {
        input: kind.input,
        branch: layers(random, &branch, true),
        second: second.map(|(input, widths)| SecondBranch { input, layers: layers(random, &widths, true) }),
        mixer: layers(random, &mixer, false),
        skip: kind.skip.then(|| dense(random, d_old, d_new, false)),
        kernel: kind.kernel.then(|| expansion(random, d_new)),
        per_kind: None,
    };
    if kind.kinds > 0 {
        let gate = Map {
            kernel: Some(expansion(random, kind.kinds)),
            ..Map::from_layers(InputScaling::AsIs, vec![dense(random, d_old, kind.kinds, false)])
        };
        // Every second map has a hidden layer and a skip.
        let map_of_kind = |kind: usize| {
            let widths = [d_old, hidden, d_new];
            let is_deep = kind % 2 == 1;
            Map {
                skip: is_deep.then(|| dense(random, d_old, d_new, false)),
                kernel: (!is_deep).then(|| expansion(random, d_new)),
                ..Map::from_layers(
                    InputScaling::AsIs,
                    if is_deep {
                        layers(random, &widths, false)
                    } else {
                        vec![dense(random, d_old, d_new, false)]
                    },
                )
            }
        };
        map.per_kind = Some(Box::new(PerKind { gate, maps: (0..kind.kinds).map(map_of_kind).collect() }));
    }
    let geometry = match kind.geometry {
        0 => Geometry::Raw,
        1 => {
            let mut fallback = vector(random, d_new);
            if !rehang_core::normalise(&mut fallback) {
                fallback[0] = 1.0;
            }
            Geometry::Sphere { fallback }
        }
        _ => Geometry::MatchedNorms {
            raw: vec![0.5, 1.0, 1.5, 1.5, 4.0],
            native: vec![2.0, 2.5, 3.0, 4.0, 8.0],
        },
    };
    let uncertainty = match kind.uncertainty {
        0 => Uncertainty::Constant { variance: 0.125 },
        1 => Uncertainty::Linear { weight: vector(random, d_new), bias: -1.5 },
        which => {
            let kinds = [
                None,
                Some(HeadKind::Softmax),
                Some(HeadKind::ArcFace { scale: 16.0, margin: 0.5 }),
                Some(HeadKind::CosFace { scale: 8.0, margin: 0.2 }),
            ];
            let head = kinds[which - 2].map(|kind| {
                let bias = vector(random, 5);
                Head::new(matrix(random, 5, d_new), (kind == HeadKind::Softmax).then_some(bias), kind)
                    .unwrap()
            });
            let features = 2 + 3 + 2 * usize::from(head.is_some());
            Uncertainty::OutOfFold(OutOfFold {
                anchors: matrix(random, 12, d_old),
                anchor_values: matrix(random, 12, 2),
                neighbours: 3,
                centre: vector(random, d_new),
                intercept: -0.25,
                coefficients: vector(random, features),
                means: vector(random, features),
                log_minimum: -4.0,
                log_maximum: 4.0,
                head,
            })
        }
    };
    let old = matrix(random, 40, d_old);
    let normalised = matches!(geometry, Geometry::Sphere { .. });
    Adapter {
        old: Space::new("old model", d_old, Distance::L2, false),
        new: Space::new(
            "new model",
            d_new,
            if normalised { Distance::Cosine } else { Distance::L2 },
            normalised,
        ),
        map,
        geometry,
        uncertainty,
        handicap: kind.handicap,
        fusion: None,
        input_statistics: (kind.branch_layers > 0).then(|| InputStatistics::from_rows(&old)),
        training: Training {
            method: "fixture".into(),
            seed: 7,
            pairs: 40,
            inputs: BTreeMap::from([("old".into(), old.fingerprint())]),
            hyper_parameters: BTreeMap::from([("epochs".into(), "80".into())]),
            version: "0.1.0".into(),
            pairs_sketch: None,
            halves: false,
        },
    }
}

/// One adapter for each kind of map, geometry and uncertainty, by the name of its golden file.
pub fn adapters_of_every_kind() -> Vec<(&'static str, Adapter)> {
    let (as_is, unit) = (InputScaling::AsIs, InputScaling::UnitLength);
    let kind = |input, branch_layers, second, mixer_layers, skip, geometry, uncertainty| Kind {
        input,
        branch_layers,
        second,
        mixer_layers,
        skip,
        kernel: false,
        kinds: 0,
        geometry,
        uncertainty,
        handicap: 0.0,
    };
    let kinds = [
        ("linear-raw-constant", kind(as_is, 0, None, 1, false, 0, 0)),
        ("residual-sphere-linear", kind(unit, 0, None, 2, true, 1, 1)),
        ("two-branches-matched-out-of-fold", kind(as_is, 2, Some((BranchInput::Old, 2)), 3, false, 2, 2)),
        ("side-raw-softmax", kind(unit, 1, Some((BranchInput::Side, 1)), 2, false, 0, 3)),
        ("kernel-sphere-softmax", Kind { kernel: true, ..kind(unit, 0, None, 1, false, 1, 3) }),
        ("plain-side-sphere-arcface", kind(as_is, 1, Some((BranchInput::Side, 0)), 1, true, 1, 4)),
        ("linear-sketched-pairs", kind(as_is, 0, None, 1, false, 0, 0)),
        ("linear-handicap", Kind { handicap: 0.375, ..kind(as_is, 0, None, 1, false, 1, 0) }),
        ("three-kinds-sphere-softmax", Kind { kinds: 3, ..kind(unit, 0, None, 1, false, 1, 3) }),
    ];
    kinds
        .into_iter()
        .enumerate()
        .map(|(seed, (name, kind))| {
            let mut random = ChaCha8Rng::seed_from_u64(seed as u64);
            let mut adapter = adapter(&mut random, kind, [5, 4, 3, 7]);
            if name == "linear-sketched-pairs" {
                adapter.training.pairs_sketch = Some(RowSketch::from_rows(&matrix(&mut random, 40, 5)));
            }
            (name, adapter)
        })
        .collect()
}

/// Adapters with one part that does not agree with the others, and words that name the part.
pub fn broken() -> Vec<(&'static str, Adapter)> {
    type Change = fn(&mut Adapter);
    type ChangeLearned = fn(&mut OutOfFold);
    type ChangeKinds = fn(&mut PerKind);
    let learned = |adapter: &mut Adapter, change: ChangeLearned| match &mut adapter.uncertainty {
        Uncertainty::OutOfFold(learned) => change(learned),
        _ => panic!("this adapter has an out-of-fold σ²"),
    };
    let changes: [(&str, Change); 10] = [
        ("the old space", |adapter| adapter.old.dimension = 0),
        ("input of branch layer 0", |adapter| adapter.old.dimension = 6),
        ("output of the map", |adapter| adapter.new.dimension = 9),
        ("bias of mixer layer 1", |adapter| adapter.map.mixer[1].bias.push(0.0)),
        ("weight of mixer layer 0", |adapter| adapter.map.mixer[0].weight.as_mut_slice()[3] = f32::NAN),
        ("input of second branch layer 0", |adapter| {
            adapter.map.second.as_mut().unwrap().layers[0].weight = Matrix::zeros(8, 6);
        }),
        ("skip", |adapter| {
            let weight = Matrix::zeros(4, 5);
            adapter.map.skip = Some(Dense { weight, bias: vec![0.0; 4], relu: true });
        }),
        ("constant σ²", |adapter| adapter.uncertainty = Uncertainty::Constant { variance: 0.0 }),
        ("weight of the σ² head", |adapter| {
            adapter.uncertainty = Uncertainty::Linear { weight: vec![0.0; 5], bias: 0.0 };
        }),
        ("mean of the fitted", |adapter| adapter.input_statistics.as_mut().unwrap().mean.clear()),
    ];
    let (_, sound) = adapters_of_every_kind().swap_remove(2);
    sound.check().unwrap();
    let mut broken = Vec::new();
    for (part, change) in changes {
        let mut adapter = sound.clone();
        change(&mut adapter);
        broken.push((part, adapter));
    }
    let changes: [(&str, ChangeLearned); 7] = [
        ("anchors of σ²", |learned| learned.anchors = Matrix::default()),
        ("anchors of σ²", |learned| learned.anchors = Matrix::zeros(12, 4)),
        ("neighbours", |learned| learned.neighbours = 0),
        ("neighbours", |learned| learned.neighbours = 1025),
        ("coefficients", |learned| learned.coefficients.push(1.0)),
        ("values of the anchors", |learned| learned.anchor_values.row_mut(0)[0] = f32::NAN),
        ("limits of log σ²", |learned| learned.log_minimum = 5.0),
    ];
    for (part, change) in changes {
        let mut adapter = sound.clone();
        learned(&mut adapter, change);
        broken.push((part, adapter));
    }
    let changes: [(&str, ChangeKinds); 5] = [
        ("kinds of old vectors", |kinds| kinds.maps.truncate(1)),
        ("gate of the kinds", |kinds| kinds.maps.truncate(2)),
        ("map of kind 1", |kinds| kinds.maps[1].input = InputScaling::UnitLength),
        ("map of kind 2", |kinds| kinds.maps[2].kernel.as_mut().unwrap().gamma = f32::NAN),
        ("map of kind 0", |kinds| kinds.maps[0].per_kind = Some(Box::new(kinds.clone()))),
    ];
    let (_, sound) = adapters_of_every_kind().pop().unwrap();
    sound.check().unwrap();
    for (part, change) in changes {
        let mut adapter = sound.clone();
        change(adapter.map.per_kind.as_mut().unwrap());
        broken.push((part, adapter));
    }
    broken
}

/// Makes a map that does nothing, with statistics of these vectors.
pub fn fitted_on(old: &Matrix) -> Adapter {
    let (_, mut adapter) = adapters_of_every_kind().swap_remove(0);
    adapter.old.dimension = old.columns();
    adapter.new.dimension = old.columns();
    adapter.map.mixer.clear();
    adapter.input_statistics = Some(InputStatistics::from_rows(old));
    adapter.check().unwrap();
    adapter
}
