//! Averages several fitted maps into one map.

use rehang_core::adapter::{Dense, Map};
use rehang_core::{Error, Matrix, Result};

/// Returns one map whose output is the mean output of maps of one shape: `raw(o) = mean over k of raw_k(o)`.
///
/// The maps' mixers run side by side in one wider mixer: first layers are stacked, further ones stand on the
/// diagonal of a matrix that is zero elsewhere, last ones are put side by side and divided by the number of
/// maps. Averaging fits of several seeds (or of several thirds of the pairs) takes out the part of their
/// errors that they do not share; it costs one product with the wider matrices.
///
/// # Errors
///
/// [`rehang_core::ErrorKind::Empty`] for no maps; [`rehang_core::ErrorKind::InvalidOption`] for maps with branches, for
/// a last layer with ReLU, or for maps whose layers differ in number, width, ReLU or input scaling.
///
/// ```
/// use rehang_core::Matrix;
/// use rehang_core::adapter::{Dense, InputScaling, Map};
/// use rehang_fit::network_fit::average_maps;
///
/// // raw(o) = factor·max(o, 0) + 1
/// let layer = |factor: f32, bias: f32, relu: bool| Dense { weight: Matrix::new(1, vec![factor]).unwrap(), bias: vec![bias], relu };
/// let map = |factor: f32| Map::from_layers(InputScaling::AsIs, vec![layer(1.0, 0.0, true), layer(factor, 1.0, false)]);
/// let mean = average_maps(&[map(1.0), map(3.0)])?;
/// assert_eq!(mean.mixer[1].weight.as_slice(), [0.5, 1.5]);
/// assert_eq!(mean.mixer[1].bias, [1.0]);
/// # Ok::<(), rehang_core::Error>(())
/// ```
pub fn average_maps(maps: &[Map]) -> Result<Map> {
    let Some(first) = maps.first() else {
        return Err(Error::empty("maps to average"));
    };
    let shape = |map: &Map| {
        let shape = |layer: &Dense| (layer.weight.rows(), layer.weight.columns(), layer.relu);
        (map.input, map.mixer.iter().map(shape).collect::<Vec<_>>(), map.skip.as_ref().map(shape))
    };
    let is_plain = first.mixer.last().is_some_and(|layer| !layer.relu);
    let alike = |map: &Map| map.branch.is_empty() && map.second.is_none() && shape(map) == shape(first);
    if !is_plain || !maps.iter().all(alike) {
        return Err(Error::option(
            "maps to average",
            "maps of several shapes",
            "mixers of one shape, no branches",
        ));
    }
    let last = first.mixer.len() - 1;
    let mixer = (0..=last)
        .map(|depth| {
            let layers: Vec<&Dense> = maps.iter().map(|map| &map.mixer[depth]).collect();
            side_by_side(&layers, depth == 0, depth == last)
        })
        .collect();
    let skips: Vec<&Dense> = maps.iter().filter_map(|map| map.skip.as_ref()).collect();
    let skip = (!skips.is_empty()).then(|| side_by_side(&skips, true, true));
    Ok(Map { skip, ..Map::from_layers(first.input, mixer) })
}

/// Joins layers of one shape: over a shared input or each on its own part, into a shared mean or each to its
/// own.
fn side_by_side(layers: &[&Dense], shared_input: bool, into_mean: bool) -> Dense {
    let count = layers.len();
    let (outputs, inputs) = (layers[0].weight.rows(), layers[0].weight.columns());
    let rows = if into_mean { outputs } else { count * outputs };
    let columns = if shared_input { inputs } else { count * inputs };
    let share = if into_mean { count as f64 } else { 1.0 };
    let (mut weight, mut bias) = (vec![0.0_f64; rows * columns], vec![0.0_f64; rows]);
    for (number, layer) in layers.iter().enumerate() {
        let first_row = if into_mean { 0 } else { number * outputs };
        let first_column = if shared_input { 0 } else { number * inputs };
        for output in 0..outputs {
            let row = first_row + output;
            bias[row] += f64::from(layer.bias[output]) / share;
            for (input, &value) in layer.weight.row(output).iter().enumerate() {
                weight[row * columns + first_column + input] += f64::from(value) / share;
            }
        }
    }
    Dense {
        weight: Matrix::from_fn(rows, columns, |row, column| weight[row * columns + column] as f32),
        bias: bias.into_iter().map(|bias| bias as f32).collect(),
        relu: layers[0].relu,
    }
}
