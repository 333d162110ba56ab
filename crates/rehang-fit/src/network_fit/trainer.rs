//! Takes the steps of the optimiser.

use super::{Batch, NetworkParameters, Objective, Stage, uncertainty_of};
use crate::adam::{Adam, Group, WeightDecay};
use crate::network::{Dropout, Layout, State, Workspace};

/// Settings of one step, besides its batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Step {
    pub rate: f64,
    /// Whether BatchNorm uses (and learns from) the batch's own statistics.
    pub live: bool,
    pub dropout: Dropout,
    pub stage: Stage,
}

/// State that a fit changes: enough to go on from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Snapshot {
    pub state: State,
    pub adam: Adam,
}

/// A network on its way, and everything that a step needs.
pub(crate) struct Trainer {
    layout: Layout,
    workspace: Workspace,
    objective: Objective,
    groups: Vec<Group>,
    decay: WeightDecay,
    gradient: Vec<f32>,
    current: Snapshot,
}

impl Trainer {
    pub(crate) fn new(
        layout: &Layout,
        parameters: &NetworkParameters,
        objective: Objective,
        capacity: usize,
        current: Snapshot,
    ) -> Self {
        Self {
            workspace: Workspace::new(layout, capacity),
            objective,
            groups: groups(layout),
            decay: parameters.weight_decay,
            gradient: vec![0.0; layout.parameter_count],
            current,
            layout: layout.clone(),
        }
    }

    /// Computes the loss summed over a batch and its gradient, without a step; the gradient lies in the
    /// layout's order.
    pub(crate) fn differentiate(&mut self, batch: &Batch, step: Step) -> (f64, &[f32]) {
        let Self { layout, workspace, objective, gradient, current, .. } = self;
        let state = &mut current.state;
        workspace.forward(layout, state, batch.inputs(), batch.rows, step.live, step.dropout);
        let (outputs, output_gradient) = workspace.output_and_gradient(layout);
        let uncertainty = uncertainty_of(layout.uncertainty.as_ref(), &state.parameters, gradient);
        let loss =
            objective.evaluate(outputs, &batch.new, &batch.labels, step.stage, uncertainty, output_gradient);
        workspace.backward(layout, state, batch.inputs(), batch.rows, gradient);
        (loss, gradient)
    }

    /// Takes one step of the optimiser on one batch; returns the sum over its rows of the loss that was
    /// minimised.
    pub(crate) fn step(&mut self, batch: &Batch, step: Step) -> f64 {
        let (loss, _) = self.differentiate(batch, step);
        let Snapshot { state, adam } = &mut self.current;
        adam.step(&self.groups, &mut state.parameters, &self.gradient, step.rate, self.decay);
        loss
    }

    /// Returns the state after the steps so far.
    pub(crate) fn snapshot(&self) -> &Snapshot {
        &self.current
    }
}

/// Groups the parameters that are trained; neighbours of a kind are put together.
pub(crate) fn groups(layout: &Layout) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut add = |range: &std::ops::Range<usize>, matrix: bool| {
        if range.is_empty() {
            return;
        }
        match groups.last_mut() {
            Some(last) if last.matrix == matrix && last.range.end == range.start => {
                last.range.end = range.end;
            }
            _ => groups.push(Group { range: range.clone(), matrix }),
        }
    };
    for (number, layer) in layout.layers.iter().enumerate() {
        if Some(number) != layout.skip {
            add(&layer.weight, true);
            add(&layer.scale, false);
            add(&layer.shift, false);
        }
    }
    if let Some(range) = &layout.uncertainty {
        add(range, false);
    }
    groups
}
