//! The fused passes against loops in f64 that one can believe by looking, and their gradients against
//! differences of those loops.

use proptest::prelude::*;

use super::super::graph::Role;
use super::super::tests::{architectures, near};
use super::super::{EncoderArchitecture, ImagePooling, Resnet, Stem};
use super::*;
use crate::finite_differences::numbers;

/// Draws parameters and running statistics away from their plain starts.
fn random_state(graph: &Graph, seed: u32) -> State {
    let mut state = graph.initial(seed.into());
    for (value, number) in state.parameters.iter_mut().zip(numbers(graph.parameter_count(), seed)) {
        *value += 0.2 * number;
    }
    state.running_mean = numbers(graph.statistics_count(), seed + 1);
    state.running_variance =
        numbers(graph.statistics_count(), seed + 2).iter().map(|value| value + 1.5).collect();
    state
}

/// Computes values of all nodes `[rows, channels, height, width]` in f64, and the means and unbiased
/// variances of the batch in the order of the running statistics.
fn reference(
    graph: &Graph,
    parameters: &[f64],
    running: Option<(&[f32], &[f32])>,
    input: &[f32],
    rows: usize,
) -> (Vec<Vec<f64>>, Vec<(f64, f64)>) {
    let mut moments = Vec::new();
    let mut values: Vec<Vec<f64>> = Vec::new();
    for (node, &GraphNode { input: read, operation }) in graph.nodes.iter().enumerate() {
        let shape = graph.shapes[node];
        let values_of = |index: usize| &parameters[graph.parameters[index].range.clone()];
        let mut out = vec![0.0; rows * shape.size()];
        // Index of a number in a node's values.
        let at = |node: usize, row: usize, channel: usize, y: usize, x: usize| {
            let shape = graph.shapes[node];
            ((row * shape.channels + channel) * shape.height + y) * shape.width + x
        };
        // All numbers of a window that lie inside the planes: index in the window and index in the values.
        let window_of = |input: usize, window: Sliding, row: usize, channel: usize, y: usize, x: usize| {
            let shape = graph.shapes[input];
            let mut inside = Vec::new();
            for dy in 0..window.side {
                for dx in 0..window.side {
                    let (py, px) = (y * window.stride + dy, x * window.stride + dx);
                    let (p, h, w) = (window.padding, shape.height, shape.width);
                    if py >= p && px >= p && py - p < h && px - p < w {
                        inside.push((dy * window.side + dx, at(input, row, channel, py - p, px - p)));
                    }
                }
            }
            inside
        };
        for row in 0..rows {
            for channel in 0..shape.channels {
                for y in 0..shape.height {
                    for x in 0..shape.width {
                        let here = at(node, row, channel, y, x);
                        out[here] = match operation {
                            Operation::Input => f64::from(input[here]),
                            Operation::Relu => values[read][here].max(0.0),
                            Operation::Sum { other } => values[read][here] + values[other][here],
                            Operation::MaximumPool { window } => window_of(read, window, row, channel, y, x)
                                .into_iter()
                                .map(|(_, from)| values[read][from])
                                .fold(f64::NEG_INFINITY, f64::max),
                            Operation::AveragePool | Operation::GeneralisedMeanPool => {
                                let generalised = matches!(operation, Operation::GeneralisedMeanPool);
                                let (power, least) = if generalised { (3, 1e-6) } else { (1, f64::MIN) };
                                let size = graph.shapes[read].height * graph.shapes[read].width;
                                let from = at(read, row, channel, 0, 0);
                                let plane = &values[read][from..from + size];
                                let mean = plane.iter().map(|v| v.max(least).powi(power)).sum::<f64>();
                                let mean = mean / size as f64;
                                if generalised { mean.cbrt() } else { mean }
                            }
                            Operation::Flatten => values[read][here],
                            Operation::Dense { weight, bias } => {
                                let inputs = graph.shapes[read].size();
                                let row = &values[read][row * inputs..][..inputs];
                                let products = row.iter().zip(&values_of(weight)[channel * inputs..]);
                                products.map(|(v, w)| v * w).sum::<f64>() + values_of(bias)[channel]
                            }
                            Operation::Convolution { .. } | Operation::Normalisation { .. } => 0.0,
                        };
                    }
                }
            }
        }
        if let Operation::Convolution { weight, window } = operation {
            let (inputs, squares) = (graph.shapes[read].channels, window.side * window.side);
            for (y, x) in (0..shape.height).flat_map(|y| (0..shape.width).map(move |x| (y, x))) {
                let inside = window_of(read, window, 0, 0, y, x);
                for (row, channel) in (0..rows).flat_map(|row| (0..shape.channels).map(move |c| (row, c))) {
                    let mut sum = 0.0;
                    for c in 0..inputs {
                        let weights = &values_of(weight)[(channel * inputs + c) * squares..][..squares];
                        let plane = &values[read][at(read, row, c, 0, 0)..];
                        sum +=
                            inside.iter().map(|&(square, from)| weights[square] * plane[from]).sum::<f64>();
                    }
                    out[at(node, row, channel, y, x)] = sum;
                }
            }
        }
        if let Operation::Normalisation { scale, shift, statistics } = operation {
            for channel in 0..shape.channels {
                let of_channel: Vec<usize> = (0..out.len())
                    .filter(|index| index / (shape.height * shape.width) % shape.channels == channel)
                    .collect();
                let n = of_channel.len() as f64;
                let mut mean = of_channel.iter().map(|&i| values[read][i]).sum::<f64>() / n;
                let squares: f64 = of_channel.iter().map(|&i| (values[read][i] - mean).powi(2)).sum();
                let mut variance = squares / n;
                moments.push((mean, squares / (n - 1.0).max(1.0)));
                if let Some((means, variances)) = running {
                    let index = graph.statistics[statistics].range.start + channel;
                    (mean, variance) = (f64::from(means[index]), f64::from(variances[index]));
                }
                for i in of_channel {
                    let normalised = (values[read][i] - mean) / (variance + 1e-5).sqrt();
                    out[i] = values_of(scale)[channel] * normalised + values_of(shift)[channel];
                }
            }
        }
        values.push(out);
    }
    (values, moments)
}

fn close(left: f64, right: f64, tolerance: f64) -> bool {
    (left - right).abs() <= tolerance * (1.0 + left.abs().max(right.abs()))
}

/// Compares values, running statistics and gradients of all parameters (at most `samples` of each) with the
/// loops.
fn compare(graph: &Graph, rows: usize, seed: u32, samples: usize) {
    let mut state = random_state(graph, seed);
    let input = numbers(rows * graph.input().size(), seed + 3);
    let before = state.clone();
    let parameters: Vec<f64> = state.parameters.iter().map(|&value| f64::from(value)).collect();
    let mut passes = Passes::new(graph);

    let (expected, moments) = reference(graph, &parameters, None, &input, rows);
    let vectors = passes.forward(&mut state, &input, rows, Mode::Training).unwrap();
    let expected = expected.last().unwrap();
    assert_eq!(vectors.len(), expected.len());
    for (index, (&vector, &expected)) in vectors.iter().zip(expected).enumerate() {
        assert!(close(f64::from(vector), expected, 1e-4), "{graph:?}: {vector} for {expected} at {index}");
    }
    for (index, &(mean, variance)) in moments.iter().enumerate() {
        let expected = 0.9 * f64::from(before.running_mean[index]) + 0.1 * mean;
        assert!(close(f64::from(state.running_mean[index]), expected, 1e-5));
        let expected = 0.9 * f64::from(before.running_variance[index]) + 0.1 * variance;
        assert!(close(f64::from(state.running_variance[index]), expected, 1e-5));
    }

    // An evaluation between the two passes of training must not disturb them.
    let mut other = random_state(graph, seed + 9);
    let given = other.clone();
    let evaluated = passes.forward(&mut other, &input, rows, Mode::Evaluation).unwrap();
    assert!(other == given, "an evaluation changed the state");
    let others: Vec<f64> = other.parameters.iter().map(|&value| f64::from(value)).collect();
    let running = Some((&other.running_mean[..], &other.running_variance[..]));
    let (expected, _) = reference(graph, &others, running, &input, rows);
    for (&vector, &expected) in evaluated.iter().zip(expected.last().unwrap()) {
        assert!(close(f64::from(vector), expected, 1e-4), "{graph:?}: evaluated {vector} for {expected}");
    }

    let gradient = numbers(vectors.len(), seed + 4);
    let start = numbers(parameters.len(), seed + 5);
    let mut found = start.clone();
    passes.backward(&state, &gradient, &mut found).unwrap();
    let loss = |parameters: &[f64]| {
        let (values, _) = reference(graph, parameters, None, &input, rows);
        values.last().unwrap().iter().zip(&gradient).map(|(v, &g)| v * f64::from(g)).sum::<f64>()
    };
    let mut moved = parameters.clone();
    for parameter in &graph.parameters {
        let step = parameter.range.len().div_ceil(samples);
        let mut scale = 0.0_f64;
        let mut pairs = Vec::new();
        for index in parameter.range.clone().step_by(step) {
            const SHIFT: f64 = 1e-6;
            moved[index] = parameters[index] + SHIFT;
            let above = loss(&moved);
            moved[index] = parameters[index] - SHIFT;
            let expected = (above - loss(&moved)) / (2.0 * SHIFT);
            moved[index] = parameters[index];
            scale = scale.max(expected.abs());
            pairs.push((f64::from(found[index]) - f64::from(start[index]), expected));
        }
        for (found, expected) in pairs {
            let allowed = 2e-3 * (0.1 + scale);
            let name = &parameter.name;
            assert!((found - expected).abs() < allowed, "{graph:?}: {found} for {expected} in {name}");
        }
    }
}

/// Whether comparing single precision with f64 says nothing about this graph.
///
/// A ReLU or a maximum may be so near to its bend that single precision takes the other side: there a
/// derivative is either of two numbers. And in a channel that hardly varies over the batch, normalisation
/// divides by √(var + 1e-5): the gradient of the weights before it is a small rest of large terms.
fn is_ill_conditioned(graph: &Graph, rows: usize, seed: u32) -> bool {
    const MARGIN: f64 = 1e-5;
    const VARIANCE_MIN: f64 = 1e-3;
    let parameters: Vec<f64> =
        random_state(graph, seed).parameters.iter().map(|&value| f64::from(value)).collect();
    let input = numbers(rows * graph.input().size(), seed + 3);
    let (values, moments) = reference(graph, &parameters, None, &input, rows);
    if moments.iter().any(|&(_, variance)| variance < VARIANCE_MIN) {
        return true;
    }
    graph.nodes.iter().any(|&GraphNode { input, operation }| match operation {
        Operation::Relu => values[input].iter().any(|value| value.abs() < MARGIN),
        Operation::MaximumPool { window } => {
            let Shape { height, width, .. } = graph.shapes[input];
            values[input].chunks_exact(height * width).any(|plane| {
                let corners =
                    (0..window.count(height)).flat_map(|y| (0..window.count(width)).map(move |x| (y, x)));
                corners.into_iter().any(|(y, x)| {
                    let mut inside: Vec<f64> = (0..window.side * window.side)
                        .map(|at| {
                            (y * window.stride + at / window.side, x * window.stride + at % window.side)
                        })
                        .filter_map(|(y, x)| {
                            let (y, x) = (y.checked_sub(window.padding)?, x.checked_sub(window.padding)?);
                            (y < height && x < width).then(|| plane[y * width + x])
                        })
                        .collect();
                    inside.sort_by(|left, right| right.total_cmp(left));
                    // Zeros behind a ReLU pass no gradient, whichever of them is taken.
                    inside.len() > 1 && inside[0] - inside[1] < MARGIN && inside[0] != 0.0
                })
            })
        }
        _ => false,
    })
}

fn shape(channels: usize, height: usize, width: usize) -> Shape {
    Shape { channels, height, width }
}

#[test]
fn one_convolution_agrees_with_the_loops() {
    for (input, outputs, window, rows) in [
        (shape(1, 1, 1), 1, Sliding { side: 1, stride: 1, padding: 0 }, 1),
        (shape(3, 5, 4), 2, Sliding { side: 3, stride: 1, padding: 1 }, 2),
        (shape(2, 7, 7), 3, Sliding { side: 3, stride: 2, padding: 1 }, 3),
        (shape(3, 9, 8), 5, Sliding { side: 7, stride: 2, padding: 3 }, 1),
        (shape(4, 6, 5), 7, Sliding { side: 1, stride: 2, padding: 0 }, 2),
        (shape(30, 3, 3), 6, Sliding { side: 3, stride: 1, padding: 1 }, 2),
        (shape(8, 4, 5), 9, Sliding { side: 3, stride: 1, padding: 1 }, 3),
        (shape(2, 3, 3), 2, Sliding { side: 5, stride: 1, padding: 4 }, 2),
    ] {
        let mut graph = Graph::new(input);
        // The second one needs the gradient of its input.
        let first = graph.convolution(0, "first", input.channels, Sliding { side: 1, stride: 1, padding: 0 });
        graph.convolution(first, "second", outputs, window);
        compare(&graph, rows, 1, 12);
    }
}

#[test]
fn convolutions_by_minimal_filtering_agree_with_the_definition() {
    for (inputs, outputs, height, width, padding, rows) in [
        (8, 9, 4, 4, 1, 3),
        (17, 8, 7, 11, 1, 9),
        (64, 40, 8, 8, 1, 20),
        (8, 8, 9, 6, 0, 2),
        (8, 16, 5, 6, 2, 2),
    ] {
        // Miri, which looks whether parts of shared slices overlap, takes minutes for a small one.
        if cfg!(miri) && rows > 3 {
            continue;
        }
        let (input, window) = (shape(inputs, height, width), Sliding { side: 3, stride: 1, padding });
        let output = shape(outputs, window.count(height), window.count(width));
        let mut fast = Convolution::new(input, output, window);
        assert!(fast.is_filtered());
        let mut plain = Convolution::new(input, output, window).without_filtering();
        let weight = numbers(9 * inputs * outputs, 1);
        let x = numbers(rows * input.size(), 2);
        let dz = numbers(rows * output.size(), 3);
        let run = |convolution: &mut Convolution| {
            let mut scratch = Scratch::default();
            convolution.prepare(&weight, &mut scratch);
            let mut z = vec![0.0; dz.len()];
            convolution.forward(rows, &x, &mut z, &|_, _, _| (), &mut scratch);
            let mut dw = numbers(weight.len(), 4);
            let mut dx = numbers(x.len(), 5);
            convolution.backward(rows, &x, &dz, &mut dw, Some((&mut dx, true)), &mut scratch);
            [z, dw, dx]
        };
        for (found, expected) in run(&mut fast).iter().zip(run(&mut plain)) {
            let scale = expected.iter().map(|value| value.abs()).fold(0.0, f32::max);
            for (found, expected) in found.iter().zip(expected) {
                assert!((found - expected).abs() < 1e-5 * scale, "{found} for {expected} of {scale}");
            }
        }
    }
}

#[test]
fn every_operation_agrees_with_the_loops() {
    for pooling in 0..4 {
        let mut graph = Graph::new(shape(2, 7, 6));
        let window = Sliding { side: 3, stride: 1, padding: 1 };
        let first = graph.convolution(0, "a", 4, window);
        let first = graph.normalisation(first, "b");
        let first = graph.relu(first);
        let left = graph.convolution(first, "c", 4, window);
        let left = graph.normalisation(left, "d");
        let right = graph.convolution(first, "e", 4, Sliding { side: 1, stride: 1, padding: 0 });
        let right = graph.normalisation(right, "f");
        let sum = graph.sum(left, right);
        let sum = graph.relu(sum);
        let again = graph.sum(sum, sum);
        let again = graph.relu(again);
        let pooled = graph.maximum_pool(again, Sliding { side: 3, stride: 2, padding: 1 });
        let vector = match pooling {
            0 => graph.average_pool(pooled),
            1 => graph.generalised_mean_pool(pooled),
            2 => graph.flatten(pooled),
            _ => pooled,
        };
        let hidden = graph.dense(vector, "g", 3);
        let hidden = graph.normalisation(hidden, "h");
        graph.dense(hidden, "i", 2);
        compare(&graph, 3, 5, 6);
    }
}

#[test]
fn whole_encoders_agree_with_the_loops() {
    let mlp = EncoderArchitecture::Mlp { hidden: vec![7, 5], outputs: 3 };
    compare(&mlp.graph(shape(6, 1, 1)).unwrap(), 5, 1, 4);
    compare(&mlp.graph(shape(2, 3, 2)).unwrap(), 5, 2, 4);
    let small = EncoderArchitecture::CnnSmall { width: 3, outputs: 4 };
    compare(&small.graph(shape(1, 9, 11)).unwrap(), 3, 3, 4);
}

/// Fifty layers of single precision agree as whole gradients. A ReLU whose input is all but 0 may open here
/// and close in the loops, and what lies behind it carries that on. So the derivative is compared along a
/// direction that is itself nearly the gradient. A wrong derivative would be as far off as it is long.
#[test]
fn residual_encoders_agree_with_the_loops_along_directions() {
    let rows = 6;
    for (architecture, shape) in architectures().into_iter().skip(2) {
        let graph = architecture.graph(shape).unwrap();
        let (input, gradient) = (numbers(rows * shape.size(), 5), numbers(rows * graph.outputs(), 6));
        let initial = graph.initial(3);
        let parameters: Vec<f64> = initial.parameters.iter().map(|&value| value.into()).collect();
        let (mut passes, mut state) = (Passes::new(&graph), initial.clone());
        let vectors = passes.forward(&mut state, &input, rows, Mode::Training).unwrap();
        let mut found = vec![0.0; graph.parameter_count()];
        passes.backward(&state, &gradient, &mut found).unwrap();
        let evaluated = passes.forward(&mut state, &input, rows, Mode::Evaluation).unwrap();

        let single = |values: &[f64]| values.iter().map(|&value| value as f32).collect::<Vec<f32>>();
        let (expected, moments) = reference(&graph, &parameters, None, &input, rows);
        near(&vectors, &single(&expected[expected.len() - 1]), 1e-3);
        let (means, variances): (Vec<f64>, Vec<f64>) = moments.into_iter().unzip();
        let moved =
            |start: f64, batch: &[f64]| batch.iter().map(|x| 0.9 * start + 0.1 * x).collect::<Vec<f64>>();
        near(&state.running_mean, &single(&moved(0.0, &means)), 1e-3);
        near(&state.running_variance, &single(&moved(1.0, &variances)), 1e-3);
        let running = Some((&state.running_mean[..], &state.running_variance[..]));
        let (expected, _) = reference(&graph, &parameters, running, &input, rows);
        near(&evaluated, &single(&expected[expected.len() - 1]), 2e-3);

        for of_normalisation in [false, true] {
            let mut direction = vec![0.0; found.len()];
            let (mut along, mut size) = (0.0, 0.0);
            for parameter in &graph.parameters {
                if matches!(parameter.role, Role::Scale | Role::Shift) == of_normalisation {
                    let range = parameter.range.clone();
                    for (index, number) in range.clone().zip(numbers(range.len(), 7)) {
                        let slope = f64::from(found[index]);
                        direction[index] = slope * (1.0 + f64::from(number));
                        along += slope * direction[index];
                        size += slope * slope;
                    }
                }
            }
            let loss = |step: f64| {
                let moved: Vec<f64> = parameters.iter().zip(&direction).map(|(x, d)| x + step * d).collect();
                let (values, _) = reference(&graph, &moved, None, &input, rows);
                values[values.len() - 1].iter().zip(&gradient).map(|(v, &g)| v * f64::from(g)).sum::<f64>()
            };
            let step = 1e-5 / size;
            let expected = (loss(step) - loss(-step)) / (2.0 * step);
            assert!(
                (along - expected).abs() < 3e-2 * size,
                "{architecture:?}: {along} for {expected} of {size}"
            );
        }
    }
}

#[test]
fn the_vector_may_be_any_node() {
    let mut graph = Graph::new(shape(2, 3, 4));
    compare(&graph, 2, 1, 1);
    graph.normalisation(0, "a");
    compare(&graph, 3, 1, 2);
    graph.maximum_pool(1, Sliding { side: 2, stride: 1, padding: 0 });
    compare(&graph, 3, 1, 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn random_graphs_agree_with_the_loops(
        (channels, height, width) in (1_usize..4, 3_usize..9, 3_usize..9),
        (rows, seed) in (1_usize..4, 0_u32..1000),
        layers in prop::collection::vec((1_usize..6, 0_usize..3, 1_usize..3, 0_usize..6), 1..4),
    ) {
        let mut graph = Graph::new(shape(channels, height, width));
        let mut node = 0;
        for (number, &(outputs, half, stride, tail)) in layers.iter().enumerate() {
            let window = Sliding { side: 2 * half + 1, stride, padding: half };
            let convolved = graph.convolution(node, &format!("conv{number}"), outputs, window);
            let mut next = convolved;
            if tail > 0 {
                next = graph.normalisation(next, &format!("bn{number}"));
            }
            if tail > 3 && graph.shapes[node] == graph.shapes[next] {
                next = if tail > 4 { graph.sum(next, node) } else { graph.sum(node, next) };
            }
            if tail > 1 {
                next = graph.relu(next);
            }
            let Shape { height, width, .. } = graph.shapes[next];
            if tail == 3 && height.min(width) > 1 {
                next = graph.maximum_pool(next, Sliding { side: 2, stride: 2, padding: 0 });
            }
            node = next;
        }
        graph.dense(node, "fc", 2);
        prop_assume!(!is_ill_conditioned(&graph, rows + 2, seed));
        compare(&graph, rows + 2, seed, 3);
    }
}

#[test]
fn the_same_bits_come_out_for_any_number_of_threads() {
    let small = EncoderArchitecture::CnnSmall { width: 16, outputs: 8 };
    let residual = EncoderArchitecture::Resnet18(Resnet {
        stem: Stem::Imagenet,
        pooling: ImagePooling::Average,
        outputs: 4,
    });
    let mlp = EncoderArchitecture::Mlp { hidden: vec![300], outputs: 20 };
    let planes = shape(3, 32, 32);
    for (encoder, shape, rows) in [(small, planes, 33), (residual, planes, 3), (mlp, shape(70, 1, 1), 200)] {
        let graph = encoder.graph(shape).unwrap();
        let initial = graph.initial(3);
        let run = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let mut passes = Passes::new(&graph);
                let mut state = initial.clone();
                let input = numbers(rows * shape.size(), 4);
                let vectors = passes.forward(&mut state, &input, rows, Mode::Training).unwrap();
                let mut gradient = vec![0.0; graph.parameter_count()];
                passes.backward(&state, &numbers(vectors.len(), 5), &mut gradient).unwrap();
                let evaluated = passes.forward(&mut state, &input, rows, Mode::Evaluation).unwrap();
                (vectors, gradient, evaluated, state)
            })
        };
        let one = run(1);
        for threads in [2, 3] {
            assert!(run(threads) == one, "{threads} threads gave other bits than one");
        }
    }
}

#[test]
fn passes_can_be_repeated_and_grow_and_shrink() {
    let graph = EncoderArchitecture::CnnSmall { width: 4, outputs: 3 }.graph(shape(1, 8, 8)).unwrap();
    let mut passes = Passes::new(&graph);
    for rows in [4, 9, 2, 0, 4] {
        let input = numbers(rows * 64, 8);
        let run = |passes: &mut Passes| {
            let mut state = graph.initial(1);
            let vectors = passes.forward(&mut state, &input, rows, Mode::Training).unwrap();
            let mut gradient = vec![0.0; graph.parameter_count()];
            passes.backward(&state, &vectors, &mut gradient).unwrap();
            (vectors, gradient, passes.forward(&mut state, &input, rows, Mode::Evaluation).unwrap(), state)
        };
        assert!(run(&mut passes) == run(&mut Passes::new(&graph)));
    }
}

#[test]
fn inputs_of_other_sizes_and_gradients_without_a_pass_are_errors() {
    let graph = EncoderArchitecture::Mlp { hidden: vec![], outputs: 3 }.graph(shape(2, 1, 1)).unwrap();
    let mut passes = Passes::new(&graph);
    let mut state = graph.initial(1);
    let mut gradient = vec![0.0; graph.parameter_count()];
    assert!(passes.backward(&state, &[0.0; 3], &mut gradient).unwrap_err().is_conflict());
    assert!(passes.forward(&mut state, &[0.0; 3], 2, Mode::Training).is_err());
    passes.forward(&mut state, &[0.0; 4], 2, Mode::Training).unwrap();
    assert!(passes.backward(&state, &[0.0; 3], &mut gradient).is_err());
    assert!(passes.backward(&state, &[0.0; 6], &mut gradient[1..]).is_err());
    state.parameters.pop();
    assert!(passes.forward(&mut state, &[0.0; 4], 2, Mode::Training).is_err());
}

#[test]
fn a_divergence_is_seen() {
    let graph = EncoderArchitecture::CnnSmall { width: 4, outputs: 3 }.graph(shape(1, 8, 8)).unwrap();
    let mut passes = Passes::new(&graph);
    let mut input = numbers(2 * 64, 8);
    input[70] = f32::NAN;
    let vectors = passes.forward(&mut graph.initial(1), &input, 2, Mode::Training).unwrap();
    assert!(vectors.iter().all(|value| value.is_nan()));
}
