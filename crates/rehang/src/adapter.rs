//! Adapters: the map h from old vectors to the new space, with an uncertainty σ² for every output.
//!
//! An [`Adapter`] is data. Fitting one is `rehang-train`'s work; this module holds what it is made of, applies it
//! (module [`apply`](self)) and keeps it as a file.

use serde::{Deserialize, Serialize};

use crate::space::Space;
use crate::vectors::Matrix;

/// One fully connected layer: `y = W x + b`, followed by `max(y, 0)` where `relu` says so.
///
/// BatchNorm is folded in: a trained `Linear → BatchNorm → ReLU` block arrives here as one layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Dense {
    /// Weight W, `[outputs, inputs]`.
    pub weight: Matrix,
    /// Bias b, `[outputs]`.
    pub bias: Vec<f32>,
    /// Whether negative outputs become 0.
    pub relu: bool,
}

/// What a map does to an old vector before its first layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InputScaling {
    /// Nothing.
    AsIs,
    /// Scales it to length 1; a zero vector stays zero.
    UnitLength,
}

/// What the second branch of a mixer network reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BranchInput {
    /// The old vector again (FCT without side information).
    Old,
    /// Side information.
    Side,
}

/// The second branch of a mixer network.
#[derive(Debug, Clone, PartialEq)]
pub struct SecondBranch {
    /// What it reads.
    pub input: BranchInput,
    /// Its layers.
    pub layers: Vec<Dense>,
}

/// A map from old vectors `[n, d_old]` (and side information `[n, d_side]`) to raw outputs `[n, d_new]`.
///
/// `raw(o) = mixer(concat(branch(o), second(o or side))) + skip(o) + kernel(o)`, where an absent part is left out and an empty
/// list of layers is the identity. The closed forms are one or two layers in `mixer` without ReLU; a residual MLP has
/// a `skip`; FCT and FastFill have two branches.
#[derive(Debug, Clone, PartialEq)]
pub struct Map {
    /// What happens to the old vector first.
    pub input: InputScaling,
    /// Layers on the old vector.
    pub branch: Vec<Dense>,
    /// A second branch, whose output is appended to the first one's.
    pub second: Option<SecondBranch>,
    /// Layers on the (concatenated) branches.
    pub mixer: Vec<Dense>,
    /// A layer from the (scaled) old vector straight to the output, which is added.
    pub skip: Option<Dense>,
    /// A sum of kernels around known old vectors, which is added.
    pub kernel: Option<KernelExpansion>,
}

/// `Σ_j a_j · exp(−γ‖x − c_j‖²)` over centres c_j: the non-linear part of kernel ridge regression.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelExpansion {
    /// Centres c_j: old vectors of pairs, scaled as the map's input, `[m, d_old]`.
    pub centres: Matrix,
    /// Coefficients a_j, `[m, d_new]`.
    pub coefficients: Matrix,
    /// γ, per squared length of the scaled old vectors.
    pub gamma: f32,
}

/// How a raw output is put into the new space.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Geometry {
    /// It stays as it is (the published recipe).
    Raw,
    /// It is scaled to length 1: for spaces whose vectors are normalised. A zero output becomes `fallback`.
    Sphere {
        /// The direction that a zero output gets: the normalised mean of the new vectors, `[d_new]`.
        fallback: Vec<f32>,
    },
    /// Its length is replaced by the native length of the same rank: piecewise linear between quantiles.
    MatchedNorms {
        /// Lengths of raw outputs at equally spaced ranks (out-of-fold), increasing.
        raw: Vec<f32>,
        /// Lengths of native vectors at the same ranks, increasing.
        native: Vec<f32>,
    },
}

/// Where σ² of an output comes from. σ² estimates the squared error `‖v − h(o)‖²` in the new space.
// An adapter holds one of these, so the space of a small variant is not worth a box.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Clone, PartialEq)]
pub enum Uncertainty {
    /// The same σ² for every item: nothing better was learned.
    Constant {
        /// σ².
        variance: f32,
    },
    /// The published head ψ: `log σ² = ⟨weight, raw(o)⟩ + bias`, one linear layer on the raw output.
    Linear {
        /// Weight, `[d_new]`.
        weight: Vec<f32>,
        /// Bias.
        bias: f32,
    },
    /// Learned from out-of-fold residuals (`rehang-train::uncertainty`).
    OutOfFold(OutOfFold),
}

/// `log σ²` as a linear function of a few features, each known when the adapter is applied.
///
/// Features of an item with (scaled) old vector `o`, in this order:
/// 1. one a column of `anchor_values`: the mean of that column over the `neighbours` nearest anchors (by Euclidean
///    distance in the scaled old space; the first ones among equals),
/// 2. the log of the mean Euclidean distance to these anchors,
/// 3. the log of the raw output's length `‖raw(o)‖`,
/// 4. the log of the raw output's distance from the mean of the new vectors, `‖raw(o) − centre‖`,
/// 5. where there is a head: the entropy (in nats) of the head's softmax at h(o), and
/// 6. one minus its largest probability.
///
/// A length of 0 counts as the smallest normal single-precision number, so that its log is finite.
/// `log σ² = intercept + Σ coefficient·(feature − mean)`, clamped to `[log_minimum, log_maximum]`.
#[derive(Debug, Clone, PartialEq)]
pub struct OutOfFold {
    /// Old vectors (scaled as the map's input) whose out-of-fold residual is known, `[m, d_old]`.
    pub anchors: Matrix,
    /// What is known of every anchor, `[m, values]`, such as the log of its out-of-fold squared error.
    pub anchor_values: Matrix,
    /// How many nearest anchors are looked at.
    pub neighbours: usize,
    /// The mean of the new vectors, `[d_new]`.
    pub centre: Vec<f32>,
    /// The constant term.
    pub intercept: f32,
    /// One coefficient a feature.
    pub coefficients: Vec<f32>,
    /// The mean of each feature over the pairs.
    pub means: Vec<f32>,
    /// Smallest `log σ²` given.
    pub log_minimum: f32,
    /// Largest `log σ²` given.
    pub log_maximum: f32,
    /// The head of the last two features, its temperature already divided into weight and bias.
    pub head: Option<crate::Head>,
}

impl OutOfFold {
    /// The features of one item from what was measured on it, in the order of the documentation of [`OutOfFold`].
    /// Whoever fits the coefficients calls this too, so that both sides mean the same numbers.
    ///
    /// `head` is the entropy and the largest probability, where there is a head.
    pub fn features(
        mean_values: impl IntoIterator<Item = f64>,
        mean_distance: f64,
        raw_norm: f64,
        centre_distance: f64,
        head: Option<(f64, f64)>,
    ) -> impl Iterator<Item = f64> {
        let log = |length: f64| length.max(f64::from(f32::MIN_POSITIVE)).ln();
        mean_values
            .into_iter()
            .chain([log(mean_distance), log(raw_norm), log(centre_distance)])
            .chain(head.into_iter().flat_map(|(entropy, largest)| [entropy, 1.0 - largest]))
    }
}

/// What is known about how an adapter was made; written into its file and shown in reports.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Training {
    /// The method's name, as on the command line.
    pub method: String,
    /// The seed.
    pub seed: u64,
    /// How many pairs it was fitted on.
    pub pairs: usize,
    /// Fingerprints of its inputs, by role ("old", "new", "labels", "side", "head").
    pub inputs: std::collections::BTreeMap<String, String>,
    /// Hyper-parameters, by name.
    pub hyper_parameters: std::collections::BTreeMap<String, String>,
    /// The version of rehang that made it.
    pub version: String,
}

/// The map h from one space to another with its uncertainty: all that is needed to turn old vectors into new ones.
#[derive(Debug, Clone, PartialEq)]
pub struct Adapter {
    /// The space it reads.
    pub old: Space,
    /// The space it writes.
    pub new: Space,
    /// The map.
    pub map: Map,
    /// How its outputs conform to the new space.
    pub geometry: Geometry,
    /// Where σ² comes from.
    pub uncertainty: Uncertainty,
    /// How it was made.
    pub training: Training,
}
