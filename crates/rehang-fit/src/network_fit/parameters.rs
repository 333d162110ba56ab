//! Parameters of a fit of a network, checked before it starts.

use rehang_core::adapter::{Dense, InputScaling};
use rehang_core::check::expect_width;
use rehang_core::{Error, Head, HeadKind, Result};

use crate::adam::WeightDecay;
use crate::network::Architecture;
use crate::objectives::squared::SquaredScale;
use crate::schedule::Pace;

/// Training of ψ beside h: off, or joint with its weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum UncertaintyLoss {
    /// No ψ is trained: the loss is the mean of L.
    Off,
    /// FastFill's equation (5): `mean(loss_weight·e^(−s)·L + log_weight·s)`, see
    /// [`crate::objectives::likelihood`].
    Joint {
        /// Weight a of `e^(−s)·L`; the reference has ½.
        loss_weight: f32,
        /// Weight b of `s`; the reference has ½.
        log_weight: f32,
        /// Bound that `s` is clamped to, on either side of 0.
        bound: f32,
        /// Number of epochs in which h learns from the plain loss while ψ follows.
        warm_up_epochs: usize,
    },
}

impl UncertaintyLoss {
    /// Reference form: both weights ½, no warm-up, and a bound that only stops `f32` from overflowing.
    pub const REFERENCE: Self =
        Self::Joint { loss_weight: 0.5, log_weight: 0.5, bound: 60.0, warm_up_epochs: 0 };

    /// Form of our own for scale-free losses: σ² within e^±4 of the loss's unit, and ten epochs of warm-up.
    pub const BOUNDED: Self =
        Self::Joint { loss_weight: 0.5, log_weight: 0.5, bound: 4.0, warm_up_epochs: 10 };
}

/// Parameters of the loss of one pair: `L = squared_weight·L_l2 + discriminative_weight·L_disc`.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct LossParameters {
    /// Unit of the squared error.
    pub squared: SquaredScale,
    /// Weight of the squared error.
    pub squared_weight: f32,
    /// Weight of the discriminative part; 0 leaves it out.
    pub discriminative_weight: f32,
    /// The new model's head, needed for the discriminative part.
    ///
    /// A softmax head gives cross-entropy, a head of cosines its margin. Pairs whose label is negative or not
    /// below the head's number of classes have no discriminative part.
    pub head: Option<Head>,
    /// Label smoothing of the cross-entropy.
    pub label_smoothing: f32,
    /// Whether a softmax head sees `h/‖h‖` instead of `h`: for spaces whose vectors are normalised.
    pub on_sphere: bool,
    /// Training of ψ.
    pub uncertainty: UncertaintyLoss,
}

impl LossParameters {
    /// Returns the head of the discriminative part, where the loss has one. Its rows are of length 1 for
    /// heads of cosines, which have no bias.
    pub(crate) fn frozen_head(&self) -> Option<Head> {
        let head = self.head.as_ref().filter(|_| self.discriminative_weight > 0.0)?;
        if head.kind() == HeadKind::Softmax {
            return Some(head.clone());
        }
        let mut weight = head.weight().clone();
        weight.normalise_rows();
        Some(Head::new(weight, None, head.kind()).expect("rows of length 1 are finite"))
    }
}

/// Parameters of a fit of a network.
///
/// Four presets name the methods: [`NetworkParameters::fct`] and [`NetworkParameters::fastfill_reference`]
/// (both the published recipe), [`NetworkParameters::fastfill`] and [`NetworkParameters::residual_mlp`]
/// (ours).
///
/// | Name | Default (`fct`) | Purpose | Range |
/// |---|---|---|---|
/// | `architecture` | reference mixer, 2048 wide | the network | widths ≥ 1 |
/// | `loss` | mean squared error | what is minimised | weights ≥ 0, not both 0; see below |
/// | `epochs` | 80 | passes over the pairs | ≥ 1 |
/// | `batch` | 1024 | pairs a step; a single pair left over joins the step before | ≥ 2 |
/// | `learning_rate` | 5e-4 | largest rate of Adam | > 0 |
/// | `weight_decay` | coupled, 2⁻¹⁵ | pulls weights to zero | ≥ 0 |
/// | `warm_up_epochs` | 5 | linear rise of the rate | ≥ 0 |
/// | `pace` | per epoch | how often the rate changes | |
/// | `freeze_statistics_from` | 40 | first epoch (from 0) with BatchNorm's running statistics | any |
/// | `input` | as is | length of the old vectors | |
/// | `standardise` | no | whether inputs and outputs are standardised | |
/// | `dropout` | 0 | share of units dropped after every block | \[0, 1) |
/// | `skip` | none | linear map that a residual network is added to | shapes fit |
/// | `early_stop` | none | epochs without a new best after which the fit ends | ≥ 1, needs held-out pairs |
/// | `checkpoint_every` | 10 | epochs between checkpoints, where a path is given | ≥ 1 |
/// | `seed` | 0 | initial weights, shuffling, dropout | any |
///
/// The loss needs smoothing in \[0, 1\] and a bound > 0. The last step of an epoch takes the pairs that are
/// left. Standardised inputs have mean 0 and variance 1, and outputs get the size of the new vectors'. The
/// skip reads scaled old vectors and does not learn.
///
/// ```
/// use rehang_fit::network_fit::NetworkParameters;
///
/// NetworkParameters { epochs: 20, seed: 7, ..NetworkParameters::fct() }.check()?;
/// assert!(NetworkParameters { learning_rate: -1.0, ..NetworkParameters::fct() }.check().is_err());
/// # Ok::<(), rehang_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkParameters {
    /// Network to fit.
    pub architecture: Architecture,
    /// Loss that is minimised.
    pub loss: LossParameters,
    /// Number of passes over the pairs.
    pub epochs: usize,
    /// Number of pairs a step.
    pub batch: usize,
    /// Largest learning rate.
    pub learning_rate: f64,
    /// Way in which weights are pulled to zero.
    pub weight_decay: WeightDecay,
    /// Number of epochs in which the rate rises; fractions count where it changes with every step.
    pub warm_up_epochs: f64,
    /// Pace at which the rate changes.
    pub pace: Pace,
    /// First epoch (counted from 0) in which BatchNorm uses its running statistics while everything keeps
    /// learning.
    pub freeze_statistics_from: usize,
    /// Scaling of the old vectors' length at the input.
    pub input: InputScaling,
    /// Whether every input coordinate gets mean 0 and variance 1, and the network's output the new vectors'
    /// size.
    pub standardise: bool,
    /// Share of units that are dropped after every block.
    pub dropout: f32,
    /// Linear map that a residual network is added to, on scaled (not standardised) old vectors; it does not
    /// learn.
    pub skip: Option<Dense>,
    /// Number of epochs without a new best on held-out pairs after which the fit ends; the best epoch is
    /// kept.
    pub early_stop: Option<usize>,
    /// Number of epochs between checkpoints, where a path is given.
    pub checkpoint_every: usize,
    /// Seed of initial weights, shuffling and dropout.
    pub seed: u64,
}

impl NetworkParameters {
    /// Returns FCT: the published network and recipe with `L_l2` alone (Ramanujan et al. 2022;
    /// `papers/fastfill.txt`, A.2).
    pub fn fct() -> Self {
        Self {
            architecture: Architecture::REFERENCE,
            loss: LossParameters {
                squared: SquaredScale::MeanOverCoordinates,
                squared_weight: 1.0,
                discriminative_weight: 0.0,
                head: None,
                label_smoothing: 0.1,
                on_sphere: false,
                uncertainty: UncertaintyLoss::Off,
            },
            epochs: 80,
            batch: 1024,
            learning_rate: 5e-4,
            weight_decay: WeightDecay::Coupled(3.051_757_8e-5),
            warm_up_epochs: 5.0,
            pace: Pace::Epoch,
            freeze_statistics_from: 40,
            input: InputScaling::AsIs,
            standardise: false,
            dropout: 0.0,
            skip: None,
            early_stop: None,
            checkpoint_every: 10,
            seed: 0,
        }
    }

    /// Returns FastFill to the letter: FCT's recipe with `L_l2 + L_disc` through `head` and ψ trained
    /// jointly.
    ///
    /// Without a head it is the label-free form (`L_l2` and uncertainty).
    pub fn fastfill_reference(head: Option<Head>) -> Self {
        let mut parameters = Self::fct();
        parameters.loss.discriminative_weight = if head.is_some() { 1.0 } else { 0.0 };
        parameters.loss.head = head;
        parameters.loss.uncertainty = UncertaintyLoss::REFERENCE;
        parameters
    }

    /// Returns FastFill as this product builds it: scale-free losses in the new space's geometry and a
    /// bounded ψ that counts only after h is warm. `on_sphere` says whether the new space is normalised.
    ///
    /// `discriminative_weight` is the caller's: held-out pairs tell how much helps. The published recipe
    /// collapses on normalised embeddings because there the mean squared error is tiny beside the
    /// cross-entropy and e^(−s) grows without bound.
    pub fn fastfill(head: Option<Head>, discriminative_weight: f32, on_sphere: bool) -> Self {
        let mut parameters = Self::fct();
        parameters.loss.squared =
            if on_sphere { SquaredScale::OneMinusCosine } else { SquaredScale::RelativeToVariance };
        parameters.loss.discriminative_weight = if head.is_some() { discriminative_weight } else { 0.0 };
        parameters.loss.head = head;
        parameters.loss.on_sphere = on_sphere;
        parameters.loss.uncertainty = UncertaintyLoss::BOUNDED;
        parameters.input = InputScaling::UnitLength;
        parameters.standardise = true;
        parameters
    }

    /// Returns a small multi-layer perceptron beside the linear map `skip` (ridge, say), regularised for few
    /// pairs.
    pub fn residual_mlp(skip: Option<Dense>) -> Self {
        let mut parameters = Self::fct();
        parameters.architecture = Architecture::ResidualMlp { hidden: 512, layers: 2 };
        parameters.loss.squared = SquaredScale::RelativeToVariance;
        parameters.epochs = 60;
        parameters.batch = 256;
        parameters.learning_rate = 1e-3;
        parameters.weight_decay = WeightDecay::Decoupled(1e-2);
        parameters.warm_up_epochs = 3.0;
        parameters.pace = Pace::Step;
        parameters.freeze_statistics_from = usize::MAX;
        parameters.input = InputScaling::UnitLength;
        parameters.standardise = true;
        parameters.dropout = 0.3;
        parameters.skip = skip;
        parameters
    }

    /// Checks what can be checked without the pairs.
    ///
    /// # Errors
    ///
    /// [`rehang_core::ErrorKind::InvalidOption`] naming the option and its range;
    /// [`rehang_core::ErrorKind::MissingInput`] for a discriminative part without a head.
    pub fn check(&self) -> Result<()> {
        let within = |name: &str, value: f64, good: bool, range: &str| -> Result<()> {
            if good && value.is_finite() { Ok(()) } else { Err(Error::option(name, value, range)) }
        };
        let at_least = |name: &str, value: usize, least: usize, range: &str| -> Result<()> {
            if value >= least { Ok(()) } else { Err(Error::option(name, value, range)) }
        };
        let (hidden, name, other) = match self.architecture {
            Architecture::Mixer { hidden, branch_factor } => (hidden, "branch factor", branch_factor),
            Architecture::ResidualMlp { hidden, layers } => (hidden, "layers", layers),
        };
        at_least("hidden", hidden, 1, "a width of at least 1")?;
        at_least(name, other, 1, "at least 1")?;
        let loss = &self.loss;
        let positive = "a number above 0";
        let weight = "a weight of at least 0";
        within("squared weight", loss.squared_weight.into(), loss.squared_weight >= 0.0, weight)?;
        let discriminative = loss.discriminative_weight;
        within("discriminative weight", discriminative.into(), discriminative >= 0.0, weight)?;
        let (some, range) =
            (loss.squared_weight + discriminative > 0.0, "above 0 where there is no discriminative part");
        within("squared weight", loss.squared_weight.into(), some, range)?;
        let smoothing = loss.label_smoothing;
        within("label smoothing", smoothing.into(), (0.0..=1.0).contains(&smoothing), "from 0 to 1")?;
        if let UncertaintyLoss::Joint { loss_weight, log_weight, bound, .. } = loss.uncertainty {
            within("uncertainty's loss weight", loss_weight.into(), loss_weight > 0.0, positive)?;
            within("uncertainty's log weight", log_weight.into(), log_weight > 0.0, positive)?;
            within("uncertainty's bound", bound.into(), bound > 0.0 && bound <= 60.0, "above 0, at most 60")?;
        }
        if discriminative > 0.0 && loss.head.is_none() {
            return Err(Error::missing("a head", "the discriminative part of the loss"));
        }
        at_least("epochs", self.epochs, 1, "at least 1")?;
        at_least("batch", self.batch, 2, "at least 2 (BatchNorm needs two rows)")?;
        within("learning rate", self.learning_rate, self.learning_rate > 0.0, positive)?;
        let (WeightDecay::Coupled(decay) | WeightDecay::Decoupled(decay)) = self.weight_decay;
        within("weight decay", decay.into(), decay >= 0.0, weight)?;
        within("warm-up epochs", self.warm_up_epochs, self.warm_up_epochs >= 0.0, "at least 0")?;
        within("dropout", self.dropout.into(), (0.0..1.0).contains(&self.dropout), "from 0 to below 1")?;
        at_least("checkpoint every", self.checkpoint_every, 1, "at least 1 epoch")?;
        at_least("patience", self.early_stop.unwrap_or(1), 1, "at least 1 epoch")?;
        if let Some(skip) = &self.skip
            && (skip.relu || skip.bias.len() != skip.weight.rows())
        {
            return Err(Error::option("skip", "a layer", "a linear layer with one bias for each output"));
        }
        if let Architecture::Mixer { .. } = self.architecture
            && self.skip.is_some()
        {
            return Err(Error::option("skip", "a layer", "none for the mixer network, which has no skip"));
        }
        Ok(())
    }

    /// Checks what depends on the pairs as well: widths of head and skip, labels for the discriminative part,
    /// at least two pairs.
    pub(crate) fn check_with(
        &self,
        pairs: &rehang_core::Pairs,
        held_out: Option<&rehang_core::Pairs>,
    ) -> Result<()> {
        self.check()?;
        let (d_old, d_new) = (pairs.old().dimension(), pairs.new_vectors().dimension());
        if pairs.len() < 2 {
            return Err(Error::option("pairs", pairs.len(), "at least 2 (BatchNorm needs two rows)"));
        }
        if self.loss.discriminative_weight > 0.0 {
            if let Some(head) = &self.loss.head {
                expect_width("head weight", d_new, head.dimension())?;
            }
            if pairs.labels().is_none() {
                return Err(Error::missing("labels", "the discriminative part of the loss"));
            }
        }
        if let Some(skip) = &self.skip {
            expect_width("skip weight", d_old, skip.weight.columns())?;
            expect_width("skip outputs", d_new, skip.weight.rows())?;
        }
        if self.early_stop.is_some() && held_out.is_none() {
            return Err(Error::missing("held-out pairs", "the early stop"));
        }
        if let Some(held_out) = held_out {
            held_out.old().space().expect_same(pairs.old().space())?;
            held_out.new_vectors().space().expect_same(pairs.new_vectors().space())?;
            match (pairs.side(), held_out.side()) {
                (Some(side), Some(other)) => {
                    expect_width("held-out side information", side.columns(), other.columns())?;
                }
                (Some(_), None) => return Err(Error::missing("side information", "the held-out pairs")),
                _ => {}
            }
        }
        Ok(())
    }
}
