//! Architectures of encoders, and the graph of each.

use rehang_core::{Error, Result};
use serde::{Deserialize, Serialize};

use super::graph::{Graph, Shape, Sliding};
use crate::examples::SIDE_MAX;

/// An encoder by name and sizes.
///
/// In a configuration file: `kind = "resnet18"`, `outputs = 128`, and what else the kind has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind", deny_unknown_fields)]
pub enum EncoderArchitecture {
    /// Dense layers with BatchNorm and ReLU between them, on given feature vectors: `hidden` may be empty,
    /// which is a linear map.
    Mlp {
        /// Number of units of every hidden layer.
        #[serde(default)]
        hidden: Vec<usize>,
        /// Coordinates of the vector.
        outputs: usize,
    },
    /// Three 3 × 3 convolutions with `width`, 2·`width`, 4·`width` channels, each with BatchNorm, ReLU and a
    /// 2 × 2 maximum; then a dense layer on all that is left.
    CnnSmall {
        /// Channels of the first convolution.
        #[serde(default = "default_width")]
        width: usize,
        /// Coordinates of the vector.
        outputs: usize,
    },
    /// ResNet-18 (He et al. 2015).
    Resnet18(Resnet),
    /// ResNet-50.
    Resnet50(Resnet),
    /// ResNet-101.
    Resnet101(Resnet),
}

/// Choices that a ResNet of any depth has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resnet {
    /// Entrance of the image.
    #[serde(default)]
    pub stem: Stem,
    /// Way in which planes become a vector.
    #[serde(default)]
    pub pooling: ImagePooling,
    /// Coordinates of the vector: a dense layer stands on the pooled planes.
    pub outputs: usize,
}

fn default_width() -> usize {
    32
}

/// Entrance of an image into a ResNet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stem {
    /// A 3 × 3 convolution with stride 1 and no pooling, for images of about 32 × 32.
    #[default]
    Cifar,
    /// A 7 × 7 convolution with stride 2 and a 3 × 3 maximum with stride 2, for images of about 224 × 224.
    Imagenet,
}

/// Way in which a ResNet's last planes become a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ImagePooling {
    /// The mean of every plane (GAP).
    #[default]
    Average,
    /// The generalised mean with p = 3 (GeM).
    GeneralisedMean,
}

impl EncoderArchitecture {
    /// Coordinates of the vector.
    pub fn outputs(&self) -> usize {
        match *self {
            Self::Mlp { outputs, .. } | Self::CnnSmall { outputs, .. } => outputs,
            Self::Resnet18(resnet) | Self::Resnet50(resnet) | Self::Resnet101(resnet) => resnet.outputs,
        }
    }

    /// Names the architecture as in a configuration, with what tells it from others of the kind:
    /// `"cnn-small of width 16"`.
    pub fn name(&self) -> String {
        match self {
            Self::Mlp { hidden, .. } if hidden.is_empty() => "a linear map".into(),
            Self::Mlp { hidden, .. } => {
                let widths: Vec<String> = hidden.iter().map(usize::to_string).collect();
                format!("mlp of {} hidden units", widths.join(", "))
            }
            Self::CnnSmall { width, .. } => format!("cnn-small of width {width}"),
            Self::Resnet18(_) => "resnet18".into(),
            Self::Resnet50(_) => "resnet50".into(),
            Self::Resnet101(_) => "resnet101".into(),
        }
    }

    /// Makes the graph for inputs of a shape.
    ///
    /// ```
    /// use rehang_train::encoder::{EncoderArchitecture, ImagePooling, Resnet, Shape, Stem};
    ///
    /// let shape = Shape { channels: 3, height: 32, width: 32 };
    /// let resnet = Resnet { stem: Stem::Cifar, pooling: ImagePooling::Average, outputs: 128 };
    /// let encoder = EncoderArchitecture::Resnet18(resnet);
    /// let graph = encoder.graph(shape)?;
    /// // The well-known 11,173,962 of CIFAR-10's ResNet-18, less its 10-class head, more this one's 128 outputs.
    /// assert_eq!(graph.parameter_count(), 11_173_962 - 5_130 + 513 * 128);
    /// # Ok::<(), rehang_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Widths of zero, feature vectors for an encoder of images, images too small for the pooling; images and
    /// widths that are too large for any memory.
    pub fn graph(&self, input: Shape) -> Result<Graph> {
        if input.size() == 0 || self.outputs() == 0 {
            return Err(Error::option("encoder", format!("{self:?}"), "inputs and outputs of at least 1"));
        }
        if input.height.max(input.width) > SIDE_MAX {
            return Err(Error::option(
                "encoder",
                format!("inputs of {} x {}", input.height, input.width),
                format!("images of at most {SIDE_MAX} x {SIDE_MAX}"),
            ));
        }
        let mut graph = Graph::new(input);
        match self {
            Self::Mlp { hidden, outputs } => {
                let mut node = if input.height * input.width == 1 { 0 } else { graph.flatten(0) };
                for (number, &units) in hidden.iter().enumerate() {
                    if units == 0 {
                        return Err(Error::option("hidden", "0", "layers of at least 1 unit"));
                    }
                    node = graph.dense(node, &format!("layer{number}"), units);
                    node = graph.normalisation(node, &format!("bn{number}"));
                    node = graph.relu(node);
                }
                graph.dense(node, "fc", *outputs);
            }
            Self::CnnSmall { width, outputs } => {
                at_least(input, 8, "cnn-small")?;
                if *width == 0 {
                    return Err(Error::option("width", "0", "at least 1 channel"));
                }
                let mut node = 0;
                for number in 0..3 {
                    let window = Sliding { side: 3, stride: 1, padding: 1 };
                    node = graph.convolution(node, &format!("conv{number}"), width << number, window);
                    node = graph.normalisation(node, &format!("bn{number}"));
                    node = graph.relu(node);
                    node = graph.maximum_pool(node, Sliding { side: 2, stride: 2, padding: 0 });
                }
                let flat = graph.flatten(node);
                graph.dense(flat, "fc", *outputs);
            }
            Self::Resnet18(chosen) => resnet(&mut graph, [2, 2, 2, 2], Block::Basic, *chosen)?,
            Self::Resnet50(chosen) => resnet(&mut graph, [3, 4, 6, 3], Block::Bottleneck, *chosen)?,
            Self::Resnet101(chosen) => resnet(&mut graph, [3, 4, 23, 3], Block::Bottleneck, *chosen)?,
        }
        if graph.parameter_count() > isize::MAX as usize / size_of::<f32>() {
            return Err(Error::option("encoder", format!("{self:?}"), "parameters that fit into memory"));
        }
        Ok(graph)
    }
}

fn at_least(input: Shape, side: usize, kind: &str) -> Result<()> {
    if input.height >= side && input.width >= side {
        return Ok(());
    }
    Err(Error::option(
        "encoder",
        format!("{kind} on inputs of {} x {}", input.height, input.width),
        format!("images of at least {side} x {side}; feature vectors take the encoder mlp"),
    ))
}

/// Residual blocks of He et al. 2015, figure 5.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    /// Two 3 × 3 convolutions.
    Basic,
    /// 1 × 1, 3 × 3 (which carries the stride), 1 × 1 with four times the channels.
    Bottleneck,
}

fn resnet(graph: &mut Graph, blocks: [usize; 4], block: Block, chosen: Resnet) -> Result<()> {
    let Resnet { stem, pooling, outputs } = chosen;
    at_least(graph.input(), if stem == Stem::Cifar { 8 } else { 32 }, "a ResNet")?;
    let window = match stem {
        Stem::Cifar => Sliding { side: 3, stride: 1, padding: 1 },
        Stem::Imagenet => Sliding { side: 7, stride: 2, padding: 3 },
    };
    let mut node = graph.convolution(0, "conv1", 64, window);
    node = graph.normalisation(node, "bn1");
    node = graph.relu(node);
    if stem == Stem::Imagenet {
        node = graph.maximum_pool(node, Sliding { side: 3, stride: 2, padding: 1 });
    }
    for (stage, &count) in blocks.iter().enumerate() {
        for number in 0..count {
            let stride = if stage > 0 && number == 0 { 2 } else { 1 };
            node = residual(graph, node, &format!("layer{}.{number}", stage + 1), block, 64 << stage, stride);
        }
    }
    let pooled = match pooling {
        ImagePooling::Average => graph.average_pool(node),
        ImagePooling::GeneralisedMean => graph.generalised_mean_pool(node),
    };
    graph.dense(pooled, "fc", outputs);
    Ok(())
}

fn residual(
    graph: &mut Graph,
    input: usize,
    name: &str,
    block: Block,
    planes: usize,
    stride: usize,
) -> usize {
    // Side of the window, channels and stride of each convolution.
    let steps = match block {
        Block::Basic => vec![(3, planes, stride), (3, planes, 1)],
        Block::Bottleneck => vec![(1, planes, 1), (3, planes, stride), (1, 4 * planes, 1)],
    };
    let (last, outputs) = (steps.len(), steps[steps.len() - 1].1);
    let mut node = input;
    for (number, (side, channels, stride)) in (1..).zip(steps) {
        let window = Sliding { side, stride, padding: side / 2 };
        node = graph.convolution(node, &format!("{name}.conv{number}"), channels, window);
        node = graph.normalisation(node, &format!("{name}.bn{number}"));
        if number < last {
            node = graph.relu(node);
        }
    }
    let shortcut = if stride != 1 || graph.shapes[input].channels != outputs {
        let window = Sliding { side: 1, stride, padding: 0 };
        let projected = graph.convolution(input, &format!("{name}.downsample.0"), outputs, window);
        graph.normalisation(projected, &format!("{name}.downsample.1"))
    } else {
        input
    };
    let sum = graph.sum(node, shortcut);
    graph.relu(sum)
}
