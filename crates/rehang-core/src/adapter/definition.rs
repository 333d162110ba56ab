//! Parts of an adapter, and checks that they agree.

use serde::{Deserialize, Serialize};

use super::expansion::KernelExpansion;
use super::geometry::Geometry;
use super::guard::InputStatistics;
use super::out_of_fold::{self, OutOfFold};
use super::sketch::RowSketch;
use super::uncertainty::Uncertainty;
use crate::check::{check_handicap, expect_count, expect_finite, expect_width};
use crate::error::{Error, ErrorKind, Result};
use crate::fusion::Fusion;
use crate::head::Head;
use crate::space::Space;
use crate::vectors::Matrix;

/// One fully connected layer: `y = W x + b`, followed by `max(y, 0)` where `relu` says so.
///
/// BatchNorm is folded in: a trained `Linear → BatchNorm → ReLU` block becomes one such layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Dense {
    /// Weight W, `[outputs, inputs]`.
    pub weight: Matrix,
    /// Bias b, `[outputs]`.
    pub bias: Vec<f32>,
    /// Whether negative outputs become 0.
    pub relu: bool,
}

/// Scaling of an old vector before the first layer of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InputScaling {
    /// The old vector stays as it is.
    AsIs,
    /// The old vector is scaled to length 1; a zero vector stays zero.
    UnitLength,
}

/// Input of the second branch of a mixer network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BranchInput {
    /// The old vector again (FCT without side information).
    Old,
    /// Side information about the item.
    Side,
}

/// Second branch of a mixer network.
#[derive(Debug, Clone, PartialEq)]
pub struct SecondBranch {
    /// Input that the branch reads.
    pub input: BranchInput,
    /// Layers of the branch.
    pub layers: Vec<Dense>,
}

/// A map from old vectors `[n, d_old]` (and side information `[n, d_side]`) to raw outputs `[n, d_new]`.
///
/// `raw(o) = mixer(concat(branch(o), second(o or side))) + skip(o) + kernel(o) + per_kind(o)`, where an
/// absent part is left out and an empty list of layers is the identity. The closed forms are one or two
/// layers in `mixer` without ReLU; a residual MLP has a `skip`; FCT and FastFill have two branches.
#[derive(Debug, Clone, PartialEq)]
pub struct Map {
    /// Scaling of the old vector before anything else.
    pub input: InputScaling,
    /// Layers that read the old vector.
    pub branch: Vec<Dense>,
    /// Second branch, whose output is appended to the first one's.
    pub second: Option<SecondBranch>,
    /// Layers that read the (concatenated) branches.
    pub mixer: Vec<Dense>,
    /// Layer without ReLU from the (scaled) old vector straight to the output. Its output is added.
    pub skip: Option<Dense>,
    /// Sum of kernels around known old vectors. Its output is added.
    pub kernel: Option<KernelExpansion>,
    /// Map for each kind of old vectors. The mean of their outputs, weighted by the gate, is added.
    pub per_kind: Option<Box<PerKind>>,
}

/// A map for each of several kinds of old vectors, and a gate that tells the kinds apart by the old vector
/// alone. Kinds are, for example, the vectors of two models in one column. The output is
/// `Σ_k p_k(o) · map_k(o)`, where p is the softmax of the gate's output.
///
/// Where the gate is sure, the output is that of the kind's map. Where it is not, the output is a mean over
/// kinds, which has the least expected squared error that the gate's doubt allows.
#[derive(Debug, Clone, PartialEq)]
pub struct PerKind {
    /// Gate, `[n, d_old] → [n, kinds]`: the log of each kind's probability, up to a constant that is common
    /// to all kinds.
    pub gate: Map,
    /// A map `[n, d_old] → [n, d_new]` for each kind, at least two.
    ///
    /// The maps and the gate read the old vector as the surrounding map has scaled it ([`Map::input`]), so
    /// their own scaling is [`InputScaling::AsIs`]. They have neither a second branch nor kinds of their own.
    pub maps: Vec<Map>,
}

/// Facts about how an adapter was made. They are written into its file and shown in reports.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Training {
    /// Name of the method, as on the command line.
    pub method: String,
    /// Seed of the fit.
    pub seed: u64,
    /// Number of pairs that the adapter was fitted on.
    pub pairs: usize,
    /// Fingerprints of the inputs of the fit, by role ("old", "new", "labels", "side", "head").
    pub inputs: std::collections::BTreeMap<String, String>,
    /// Hyper-parameters of the fit, by name.
    pub hyper_parameters: std::collections::BTreeMap<String, String>,
    /// Version of rehang that made the adapter.
    pub version: String,
    /// Sketch of the pairs' old vectors, which tells whether a gallery holds some of them. `None` in files of
    /// versions that kept none. It is kept in the adapter's file and not shown.
    #[serde(skip)]
    pub pairs_sketch: Option<RowSketch>,
    /// Whether all numbers of the adapter's matrices are exact in half precision, so that its file keeps each
    /// in two bytes.
    #[serde(default)]
    pub halves: bool,
}

/// The map h from one space to another with its uncertainty: all that is needed to turn old vectors into new
/// ones.
///
/// The fields are public so that a fit can simply write them down. [`Adapter::check`] says whether they agree
/// with each other; nothing is applied or saved before it has succeeded.
///
/// ```
/// use rehang_core::adapter::{self, Adapter, Dense, InputScaling, Map, Uncertainty};
/// use rehang_core::{Distance, Matrix, Progress, Space, Vectors};
///
/// // Swaps two coordinates and adds 1 to the first.
/// let layer = Dense { weight: Matrix::new(2, vec![0.0, 1.0, 1.0, 0.0])?, bias: vec![1.0, 0.0], relu: false };
/// let map = Map::from_layers(InputScaling::AsIs, vec![layer]);
/// let space = |name| Space::new(name, 2, Distance::L2, false);
/// let adapter = Adapter::new(space("old"), space("new"), map, Uncertainty::Constant { variance: 0.25 });
/// let old = Vectors::new(adapter.old.clone(), Matrix::new(2, vec![3.0, 5.0])?, "old vectors")?;
/// let adapted = adapter::apply(&adapter, &old, None, &Progress::default())?;
/// assert_eq!(adapted.vectors.matrix().as_slice(), &[6.0, 3.0]);
/// assert_eq!(adapted.variance, [0.25]);
/// # Ok::<(), rehang_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Adapter {
    /// Space of the vectors that the adapter reads.
    pub old: Space,
    /// Space of the vectors that the adapter makes.
    pub new: Space,
    /// Map from old vectors to raw outputs.
    pub map: Map,
    /// Way in which raw outputs are put into the new space.
    pub geometry: Geometry,
    /// Source of σ².
    pub uncertainty: Uncertainty,
    /// Handicap: what a search adds to the distance between a query and a vector that this adapter made. It
    /// is 0 or more, in the unit of the new space's [`Distance`](crate::Distance) (squared for L2).
    ///
    /// An output h(o) is an estimate, and estimates lie nearer to everything than what they estimate. Where
    /// `v` is `h(o)` plus an error that does not depend on the query,
    /// `E‖q − v‖² = ‖q − h(o)‖² + E‖v − h(o)‖²`. Without a handicap, wrong adapted items therefore push right
    /// native ones down. With the whole error as the handicap, right adapted items would stand behind all
    /// natives. The best share of it is measured on pairs that the map was not fitted on (`rehang fit`). A
    /// handicap changes no rank among adapted items, and none once all are native.
    pub handicap: f64,
    /// Way in which a search with queries of both models judges an adapted vector together with the old one.
    /// `None` where no pairs were left out to measure it on.
    pub fusion: Option<Fusion>,
    /// Statistics of the old vectors that the adapter was fitted on, by which
    /// [`input_drift`](super::input_drift) notices vectors of another model. `None` where nothing was fitted.
    pub input_statistics: Option<InputStatistics>,
    /// Facts about how the adapter was made.
    pub training: Training,
}

impl Adapter {
    /// Makes an adapter of a map and its uncertainty alone: outputs stay as they are, there is no handicap,
    /// and nothing is known of pairs. It is not checked yet ([`Adapter::check`]).
    pub fn new(old: Space, new: Space, map: Map, uncertainty: Uncertainty) -> Self {
        Self {
            old,
            new,
            map,
            geometry: Geometry::Raw,
            uncertainty,
            handicap: 0.0,
            fusion: None,
            input_statistics: None,
            training: Training::default(),
        }
    }

    /// Makes the adapter of a compatible model: `h(o) = o`, since its queries search old vectors as they are.
    /// σ² is 1 for every item, since nothing is learned. With the new model's `head`, a backfill may be
    /// ordered by what that head makes of old vectors (RACT §4.3: entropy, margin, least confidence;
    /// `coverage` too).
    ///
    /// ```
    /// use rehang_core::{Adapter, Distance, Space};
    ///
    /// let space = |name| Space::new(name, 2, Distance::Cosine, false);
    /// let adapter = Adapter::identity(space("v1"), space("v2"), None)?;
    /// assert_eq!(adapter.training.method, "identity");
    /// assert!(Adapter::identity(space("v1"), Space::new("v2", 3, Distance::Cosine, false), None).is_err());
    /// # Ok::<(), rehang_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WidthMismatch`] for spaces, or a head, of different widths: old vectors can stand in the
    /// new space as they are only where both have the same coordinates. [`ErrorKind::SpaceMismatch`] for
    /// spaces that are searched by different distances.
    pub fn identity(old: Space, new: Space, head: Option<Head>) -> Result<Self> {
        expect_width("the new space, into which old vectors go as they are,", old.dimension, new.dimension)?;
        if old.distance != new.distance {
            let (expected, received) = (old.to_string(), new.to_string());
            return Err(ErrorKind::SpaceMismatch { expected, received }.into());
        }
        let d = old.dimension;
        let weight = Matrix::from_fn(d, d, |row, column| f32::from(u8::from(row == column)));
        let uncertainty = match head {
            None => Uncertainty::Constant { variance: 1.0 },
            // No feature has a coefficient, so σ² is exp 0; the head is there for orders.
            Some(head) => {
                let features = out_of_fold::features(1, true);
                Uncertainty::OutOfFold(OutOfFold {
                    anchors: Matrix::zeros(1, d),
                    anchor_values: Matrix::zeros(1, 1),
                    neighbours: 1,
                    centre: vec![0.0; d],
                    coefficients: vec![0.0; features],
                    means: vec![0.0; features],
                    head: Some(head),
                    ..OutOfFold::default()
                })
            }
        };
        let map =
            Map::from_layers(InputScaling::AsIs, vec![Dense { weight, bias: vec![0.0; d], relu: false }]);
        let training = Training { method: "identity".into(), ..Training::default() };
        let adapter = Self { training, ..Self::new(old, new, map, uncertainty) };
        adapter.check()?;
        Ok(adapter)
    }

    /// Checks that all parts agree: widths from layer to layer, lengths of biases, numbers finite, σ²
    /// positive.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WidthMismatch`] and [`ErrorKind::CountMismatch`] for shapes that do not agree,
    /// [`ErrorKind::NotFinite`] for NaN or infinite numbers, [`ErrorKind::Empty`] for a space without
    /// coordinates, [`ErrorKind::InvalidOption`] for settings out of their range. The error names the part.
    pub fn check(&self) -> Result<()> {
        let (d_old, d_new) = (self.old.dimension, self.new.dimension);
        for (name, dimension) in [("the old space", d_old), ("the new space", d_new)] {
            if dimension == 0 {
                return Err(ErrorKind::Empty { what: name.into() }.into());
            }
        }
        self.map.check(d_old, d_new)?;
        self.geometry.check(d_new)?;
        self.uncertainty.check(d_old, d_new)?;
        check_handicap(self.handicap)?;
        self.fusion.as_ref().map_or(Ok(()), Fusion::check)?;
        if let Some(statistics) = &self.input_statistics {
            statistics.check(d_old)?;
        }
        Ok(())
    }

    /// Width of the side information that has to come with every old vector; `None` where none is read.
    pub fn side_dimension(&self) -> Option<usize> {
        self.map.side_dimension(self.old.dimension, self.new.dimension)
    }

    /// Space of the outputs: the new space. [`Geometry::Raw`] (the published recipe) and matched lengths give
    /// outputs whose length is not 1, so their space is not declared normalised.
    pub fn output_space(&self) -> Space {
        let normalised = self.new.normalised && matches!(self.geometry, Geometry::Sphere { .. });
        Space { normalised, ..self.new.clone() }
    }
}

impl Map {
    /// Makes a map of layers alone, one after the other: `raw(o) = mixer(o)`, where o is the old vector as it
    /// is or scaled to length 1. Without layers the map is the identity.
    pub fn from_layers(input: InputScaling, mixer: Vec<Dense>) -> Self {
        Self { input, branch: Vec::new(), second: None, mixer, skip: None, kernel: None, per_kind: None }
    }

    /// Width of the mixer's input. Without layers in the mixer it is the width of the output.
    fn mixer_width(&self, d_new: usize) -> usize {
        self.mixer.first().map_or(d_new, |layer| layer.weight.columns())
    }

    /// Width of the side information; `None` where the map reads none.
    fn side_dimension(&self, d_old: usize, d_new: usize) -> Option<usize> {
        let second = self.second.as_ref().filter(|second| second.input == BranchInput::Side)?;
        let appended = || self.mixer_width(d_new).saturating_sub(width_after(&self.branch, d_old));
        Some(second.layers.first().map_or_else(appended, |layer| layer.weight.columns()))
    }

    pub(crate) fn check(&self, d_old: usize, d_new: usize) -> Result<()> {
        let mut width = check_layers("branch", &self.branch, d_old)?;
        if let Some(second) = &self.second {
            let input = match second.input {
                BranchInput::Old => d_old,
                BranchInput::Side => self.side_dimension(d_old, d_new).unwrap_or(0),
            };
            if input == 0 {
                return Err(ErrorKind::Empty { what: "side information of the second branch".into() }.into());
            }
            width += check_layers("second branch", &second.layers, input)?;
        }
        let output = check_layers("mixer", &self.mixer, width)?;
        expect_width("output of the map", d_new, output)?;
        if let Some(skip) = &self.skip {
            if skip.relu {
                return Err(Error::option("ReLU of the skip layer", true, "false"));
            }
            let output = check_layers("skip", std::slice::from_ref(skip), d_old)?;
            expect_width("output of the skip layer", d_new, output)?;
        }
        if let Some(kernel) = &self.kernel {
            kernel.check(d_old, d_new)?;
        }
        if let Some(per_kind) = &self.per_kind {
            per_kind.check(d_old, d_new)?;
        }
        Ok(())
    }
}

impl PerKind {
    fn check(&self, d_old: usize, d_new: usize) -> Result<()> {
        if self.maps.len() < 2 {
            return Err(Error::option("kinds of old vectors with a map", self.maps.len(), "two or more"));
        }
        let check = |what: String, map: &Map, outputs: usize| {
            let is_plain = map.input == InputScaling::AsIs && map.second.is_none() && map.per_kind.is_none();
            if !is_plain {
                let expected =
                    "one that reads the old vector as it comes, without a second branch and without kinds";
                return Err(Error::option(&what, "another map", expected));
            }
            map.check(d_old, outputs).map_err(|error| error.context(what))
        };
        check("the gate of the kinds".into(), &self.gate, self.maps.len())?;
        self.maps
            .iter()
            .enumerate()
            .try_for_each(|(kind, map)| check(format!("the map of kind {kind}"), map, d_new))
    }
}

/// Width of what layers give for an input of width `input`.
pub(super) fn width_after(layers: &[Dense], input: usize) -> usize {
    layers.last().map_or(input, |layer| layer.weight.rows())
}

/// Checks layers that follow each other from a width of `input`, and returns the width of their output.
fn check_layers(name: &str, layers: &[Dense], input: usize) -> Result<usize> {
    let mut width = input;
    for (index, layer) in layers.iter().enumerate() {
        let what = format!("{name} layer {index}");
        expect_width(format_args!("input of {what}"), width, layer.weight.columns())?;
        if layer.weight.rows() == 0 {
            return Err(ErrorKind::Empty { what }.into());
        }
        layer.weight.check_finite(&format!("weight of {what}"))?;
        expect_count(format_args!("bias of {what}"), layer.bias.len(), "outputs", layer.weight.rows())?;
        expect_finite(&format!("bias of {what}"), &layer.bias)?;
        width = layer.weight.rows();
    }
    Ok(width)
}
