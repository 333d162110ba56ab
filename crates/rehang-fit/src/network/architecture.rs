//! Parts of a network, and where each of them lies in the flat vectors.

use std::ops::Range;

use rehang_core::adapter::BranchInput;

use super::product::Window;

/// The family and the size of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// The reference network of FCT and FastFill (`papers/fastfill.txt`, appendix A.2).
    ///
    /// Two branches, `block(d → f·d)` and `block(f·d → f·d_new)` each with `f = branch_factor`, the first on
    /// the old vector, the second on side information (or on the old vector again); then, on both outputs
    /// side by side, `block(→ hidden)`, `block(hidden → hidden)` and a layer with bias to `d_new`.
    Mixer {
        /// Width of the mixer's two blocks; the reference has 2048.
        hidden: usize,
        /// Factor by which a branch is wider than its vectors; the reference has 2.
        branch_factor: usize,
    },
    /// A multi-layer perceptron beside a linear map: `layers` blocks of width `hidden`, then a layer with
    /// bias.
    ///
    /// The last layer starts at zero, so the fit starts at the linear map (or at the mean of the new
    /// vectors).
    ResidualMlp {
        /// Width of every block.
        hidden: usize,
        /// Number of blocks.
        layers: usize,
    },
}

impl Architecture {
    /// Network of the published recipe.
    pub const REFERENCE: Self = Self::Mixer { hidden: 2048, branch_factor: 2 };
}

/// Widths of the vectors that a network reads and writes, in coordinates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Widths {
    /// Width of old vectors.
    pub old: usize,
    /// Width of new vectors.
    pub new: usize,
    /// Width of side information, where there is any.
    pub side: Option<usize>,
}

/// Work of a layer after its matrix product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LayerKind {
    /// BatchNorm, ReLU and dropout.
    Block,
    /// Adds a bias, multiplies by the layer's gain and adds to what its node holds already (the skip).
    Output,
}

/// Place that a layer reads from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// The old vectors.
    Old,
    /// Side information.
    Side,
    /// The activations of a node.
    Node(usize),
}

/// One layer and where its parameters lie.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Layer {
    pub kind: LayerKind,
    pub inputs: usize,
    pub outputs: usize,
    /// Factor on the output (1 except for the last layer of a standardised network).
    pub gain: f32,
    pub source: Source,
    /// Node that the layer writes; `window` says which columns.
    pub target: usize,
    pub window: Window,
    /// Weight `[outputs, inputs]`.
    pub weight: Range<usize>,
    /// BatchNorm's weight `[outputs]`; empty for an output layer.
    pub scale: Range<usize>,
    /// BatchNorm's bias, or the layer's own, `[outputs]`.
    pub shift: Range<usize>,
    /// Place of the layer among the running statistics; empty for an output layer.
    pub statistics: Range<usize>,
}

/// A network's layers in the order in which they run, and the sizes of its flat vectors.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Layout {
    pub widths: Widths,
    pub layers: Vec<Layer>,
    /// Width of every node's activations.
    pub nodes: Vec<usize>,
    /// Node that holds the raw outputs.
    pub output: usize,
    /// Layers of the first branch, as indices into `layers`; so are `second`, `mixer` and `skip`.
    pub branch: Range<usize>,
    pub second: Option<(BranchInput, Range<usize>)>,
    pub mixer: Range<usize>,
    pub skip: Option<usize>,
    /// Place of ψ's weight `[d_new]` and bias, where ψ is trained.
    pub uncertainty: Option<Range<usize>>,
    pub parameter_count: usize,
    pub statistics_count: usize,
}

impl Layout {
    /// Lays an architecture out for the given widths; `gain` is the factor of the mixer's last layer.
    pub(crate) fn new(
        architecture: Architecture,
        widths: Widths,
        gain: f32,
        with_skip: bool,
        with_uncertainty: bool,
    ) -> Self {
        let mut layout = Self {
            widths,
            layers: Vec::new(),
            nodes: Vec::new(),
            output: 0,
            branch: 0..0,
            second: None,
            mixer: 0..0,
            skip: None,
            uncertainty: None,
            parameter_count: 0,
            statistics_count: 0,
        };
        let mut source = Source::Old;
        let mut width = widths.old;
        let blocks: Vec<usize> = match architecture {
            Architecture::Mixer { hidden, branch_factor } => {
                let branch_width = branch_factor * widths.new;
                // The first block of each branch has a node of its own; the second blocks share one, side by
                // side.
                let second_width = widths.side.unwrap_or(widths.old);
                let first = layout.node(branch_factor * widths.old);
                let second = layout.node(branch_factor * second_width);
                let joined = layout.node(2 * branch_width);
                let (second_source, second_input) = match widths.side {
                    Some(_) => (Source::Side, BranchInput::Side),
                    None => (Source::Old, BranchInput::Old),
                };
                layout.block(Source::Old, widths.old, first, Window::dense(branch_factor * widths.old));
                let window = Window { offset: 0, stride: 2 * branch_width, columns: branch_width };
                layout.block(Source::Node(first), branch_factor * widths.old, joined, window);
                layout.branch = 0..2;
                layout.block(
                    second_source,
                    second_width,
                    second,
                    Window::dense(branch_factor * second_width),
                );
                let window = Window { offset: branch_width, ..window };
                layout.block(Source::Node(second), branch_factor * second_width, joined, window);
                layout.second = Some((second_input, 2..4));
                (source, width) = (Source::Node(joined), 2 * branch_width);
                vec![hidden, hidden]
            }
            Architecture::ResidualMlp { hidden, layers } => vec![hidden; layers],
        };
        let begin = layout.layers.len();
        for outputs in blocks {
            let node = layout.node(outputs);
            layout.block(source, width, node, Window::dense(outputs));
            (source, width) = (Source::Node(node), outputs);
        }
        layout.output = layout.node(widths.new);
        layout.output_layer(source, width, gain);
        layout.mixer = begin..layout.layers.len();
        if with_skip {
            layout.skip = Some(layout.layers.len());
            layout.output_layer(Source::Old, widths.old, 1.0);
        }
        if with_uncertainty {
            layout.uncertainty = Some(layout.reserve(widths.new + 1));
        }
        layout
    }

    fn node(&mut self, width: usize) -> usize {
        self.nodes.push(width);
        self.nodes.len() - 1
    }

    fn reserve(&mut self, count: usize) -> Range<usize> {
        let begin = self.parameter_count;
        self.parameter_count += count;
        begin..self.parameter_count
    }

    fn block(&mut self, source: Source, inputs: usize, target: usize, window: Window) {
        let outputs = window.columns;
        let weight = self.reserve(inputs * outputs);
        let scale = self.reserve(outputs);
        let shift = self.reserve(outputs);
        let statistics = self.statistics_count..self.statistics_count + outputs;
        self.statistics_count += outputs;
        let kind = LayerKind::Block;
        self.layers.push(Layer {
            kind,
            inputs,
            outputs,
            gain: 1.0,
            source,
            target,
            window,
            weight,
            scale,
            shift,
            statistics,
        });
    }

    fn output_layer(&mut self, source: Source, inputs: usize, gain: f32) {
        let outputs = self.widths.new;
        let weight = self.reserve(inputs * outputs);
        let shift = self.reserve(outputs);
        self.layers.push(Layer {
            kind: LayerKind::Output,
            inputs,
            outputs,
            gain,
            source,
            target: self.output,
            window: Window::dense(outputs),
            weight,
            scale: 0..0,
            shift,
            statistics: 0..0,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_at_128_has_the_published_number_of_parameters() {
        let widths = Widths { old: 128, new: 128, side: None };
        let layout = Layout::new(Architecture::REFERENCE, widths, 1.0, false, false);
        assert_eq!(layout.parameter_count, 5_712_000);
        let layout = Layout::new(Architecture::REFERENCE, widths, 1.0, false, true);
        assert_eq!(layout.parameter_count, 5_712_000 + 129);
    }
}
