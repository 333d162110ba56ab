//! Inputs of a model, and the positions that it has, read from its file.

use rehang_core::{Error, Result};
use rten::{Dimension, Model, NodeId, NodeInfo};

/// Input of a model.
pub(super) struct ModelInput {
    pub(super) node: NodeId,
    pub(super) name: String,
    pub(super) shape: Vec<Dimension>,
}

pub(super) fn inputs(model: &Model, name: &str) -> Result<Vec<ModelInput>> {
    let described = |&node: &NodeId| {
        let info = model.node_info(node)?;
        Some(ModelInput { node, name: info.name()?.to_string(), shape: info.shape().unwrap_or_default() })
    };
    let inputs: Option<Vec<ModelInput>> = model.input_ids().iter().map(described).collect();
    inputs.ok_or_else(|| Error::corrupt(name, "one of its inputs has no name"))
}

/// Number of tokens that a model has positions for, and the table that says so.
pub(super) struct Positions {
    pub(super) count: usize,
    pub(super) table: String,
}

/// Finds the positions that a model of texts has learnt by the names that such tables have. `None` for models
/// that reckon positions, and where an exporter has given the table another name.
pub(super) fn positions(model: &Model) -> Option<Positions> {
    const NAMES: [&str; 3] = ["position_embed", "embed_positions", "wpe.weight"];
    // Nodes that the runtime has replaced leave gaps in the numbers.
    const GAP_MAX: u32 = 1 << 16;
    let (mut most_positions, mut number, mut gap): (Option<Positions>, u32, u32) = (None, 0, 0);
    while gap < GAP_MAX {
        let node = model.node_info(NodeId::from_u32(number));
        (number, gap) = (number + 1, if node.is_some() { 0 } else { gap + 1 });
        let Some(table) = node.as_ref().and_then(NodeInfo::name) else { continue };
        let shape = node.as_ref().and_then(NodeInfo::shape).unwrap_or_default();
        let (true, &[Dimension::Fixed(rows), Dimension::Fixed(_)]) =
            (NAMES.iter().any(|name| table.contains(name)), shape.as_slice())
        else {
            continue;
        };
        // RoBERTa and its kin leave the first two places of their tables empty.
        let count = if rows > 2 && (rows - 2).is_power_of_two() { rows - 2 } else { rows };
        if most_positions.as_ref().is_none_or(|most_positions| most_positions.count < count) {
            most_positions = Some(Positions { count, table: format!("{table} is {}", shown(&shape)) });
        }
    }
    most_positions
}

pub(super) fn only_input<'a>(inputs: &'a [ModelInput], name: &str) -> Result<&'a ModelInput> {
    let [input] = inputs else {
        let names: Vec<&str> = inputs.iter().map(|input| input.name.as_str()).collect();
        return Err(Error::option(
            "model",
            name,
            format!(
                "a model with one input for this kind of source; it has {}: {}",
                names.len(),
                names.join(", ")
            ),
        ));
    };
    Ok(input)
}

/// Side of a shape that is the same in every run; `None` where it may differ.
pub(super) fn fixed(shape: &[Dimension], at: usize) -> Option<usize> {
    match shape.get(at) {
        Some(Dimension::Fixed(side)) => Some(*side),
        _ => None,
    }
}

pub(super) fn shown(shape: &[Dimension]) -> String {
    let sides: Vec<String> = shape
        .iter()
        .map(|side| match side {
            Dimension::Fixed(side) => side.to_string(),
            Dimension::Symbolic(name) => name.clone(),
        })
        .collect();
    format!("[{}]", sides.join(", "))
}
