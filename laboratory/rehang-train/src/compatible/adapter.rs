//! Adapter ψ, the forward-adaptive head of DMU, as an ordinary adapter.

use rehang_core::adapter::{Adapter, Dense, InputScaling, InputStatistics, Map, RowSketch, Training};
use rehang_core::{Distance, Error, Matrix, Pairs, Progress, Result, Space, Vectors};
use rehang_fit::geometry::{self, GeometryKind};
use rehang_fit::network::{State, fold_normalisation};
use rehang_fit::uncertainty_fit::{self, Evidence};

use super::old::OldModel;
use crate::encoder::{EncoderArchitecture, Graph, Operation, Shape, TrainedEncoder};

/// Makes ψ's operations: dense layers with BatchNorm and ReLU, and a last dense layer (DMU: three hidden
/// layers of 1024).
pub(crate) fn adapter_graph(d_old: usize, hidden: &[usize], d_new: usize) -> Result<Graph> {
    let mlp = EncoderArchitecture::Mlp { hidden: hidden.to_vec(), outputs: d_new };
    mlp.graph(Shape { channels: d_old, height: 1, width: 1 })
}

/// Makes an adapter of the trained ψ, with BatchNorm folded in, the new space's geometry and a σ² learned
/// from the training rows.
///
/// ψ was trained on these very rows, so its σ² is optimistic in size; its order is what it is for.
pub(crate) fn adapter(
    graph: &Graph,
    state: &State,
    old: &OldModel,
    old_vectors: Matrix,
    encoder: &TrainedEncoder,
    new_vectors: Matrix,
    labels: &[i64],
    progress: &Progress,
) -> Result<Adapter> {
    let map = Map::from_layers(InputScaling::AsIs, folded(graph, state)?);
    let space = Space::new(old.model.clone(), old.dimension(), Distance::Cosine, false);
    let old_vectors = Vectors::new(space, old_vectors, "old vectors")?;
    let new_vectors = Vectors::new(encoder.space(), new_vectors, "new vectors")?;
    let raw = map.outputs(old_vectors.matrix(), None)?;
    raw.check_finite("outputs of the trained adapter")?;
    let kind = GeometryKind::options(new_vectors.space())[0];
    let geometry = geometry::fit(kind, &raw, &new_vectors);
    let pairs = Pairs::new(old_vectors, new_vectors, Some(labels.to_owned()), None)?;
    let evidence = Evidence {
        items_left_out: &raw,
        groups_left_out: None,
        groups: labels,
        geometry: &geometry,
        input: InputScaling::AsIs,
        head: Some(&encoder.head),
        small_kind: None,
    };
    let uncertainty = uncertainty_fit::fit(&pairs, evidence, encoder.training.seed, progress)?.uncertainty;
    let (old, new) = (pairs.old(), pairs.new_vectors());
    let adapter = Adapter {
        geometry,
        input_statistics: Some(InputStatistics::from_rows(old.matrix())),
        training: Training {
            pairs_sketch: Some(RowSketch::from_rows(old.matrix())),
            ..encoder.training.clone()
        },
        ..Adapter::new(old.space().clone(), new.space().clone(), map, uncertainty)
    };
    adapter.check()?;
    Ok(adapter)
}

/// Gives the dense layers of a graph that is nothing else, BatchNorm with its running statistics folded into
/// them.
fn folded(graph: &Graph, state: &State) -> Result<Vec<Dense>> {
    let numbers = |parameter: usize| &state.parameters[graph.parameters[parameter].range.clone()];
    let mut layers: Vec<Dense> = Vec::new();
    for node in &graph.nodes {
        match node.operation {
            Operation::Input | Operation::Flatten => {}
            Operation::Dense { weight, bias } => {
                let inputs = graph.parameters[weight].shape[1];
                let weight = Matrix::new(inputs, numbers(weight).to_vec())?;
                layers.push(Dense { weight, bias: numbers(bias).to_vec(), relu: false });
            }
            Operation::Normalisation { scale, shift, statistics } => {
                let range = graph.statistics[statistics].range.clone();
                let (mean, variance) = (&state.running_mean[range.clone()], &state.running_variance[range]);
                if let Some(layer) = layers.last_mut() {
                    fold_normalisation(layer, [numbers(scale), numbers(shift), mean, variance]);
                }
            }
            Operation::Relu => {
                if let Some(layer) = layers.last_mut() {
                    layer.relu = true;
                }
            }
            _ => {
                return Err(Error::option(
                    "adapter",
                    format!("{:?}", node.operation),
                    "dense layers, BatchNorm, ReLU",
                ));
            }
        }
    }
    Ok(layers)
}
