//! What a model says of its inputs.

use rehang::{Error, Result};
use rten::{Dimension, Model, NodeId};

/// An input of a model.
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

/// A side of a shape that is the same in every run.
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
