//! Methods of compatible training: each is a weighted list of objectives.
//!
//! | method | loss | needs |
//! |---|---|---|
//! | `plain` | L_cls | |
//! | `bct` | L_cls + λ·L_influence (BCT 8), new classes left out, synthesised or distilled | old head |
//! | `ract` | L_cls + λ·L_ra-comp (RACT 8) | old vectors |
//! | `dmu` | L_cls + λ·L_SBC + λ_FA·L_FA (DMU 8) | old head and vectors |
//! | `l2` | L_cls + λ·L_l2 (BCT 3) | old vectors |
//! | `lwf` | L_cls + λ·L_distillation (Learning without Forgetting) | old head and vectors |
//! | `focal-distillation` | L_cls + λ·L_influence (if `influence` is on) + λ·L_focal | old head and vectors |
//! | `regression` | L_cls + λ·L_regression (DMU 14) | old vectors |
//! | `ract-on-bct` | L_cls + L_influence + λ·L_ra-comp (RACT 6 on BCT 8, RACT A.5) | old head and vectors |
//! | `both-heads` | L_cls + λ·L_both-heads (OpenCompatible) | old head |
//!
//! `dmu`, `ract-on-bct`, `both-heads`, `bct` as it is by default and `focal-distillation` for its influence
//! loss give the old head a synthesised weight for every class that it does not know (the mean old vector,
//! BCT §2.5). For that the old model is run once over the training set; K of their formulas is then the whole
//! batch. `focal-distillation` distils the old head as it is. `bct` on the old training set synthesises
//! nothing: its old head is the one that the old model was trained with.

use rehang_core::{Error, Result};
use serde::{Deserialize, Serialize};

use super::heads::HeadWeights;
use super::objectives::Objective;
use super::objectives::both_heads::both_heads;
use super::objectives::classification::classification;
use super::objectives::contrastive::{Contrast, Negatives, contrastive};
use super::objectives::focal_distillation::{FocalForm, focal_distillation};
use super::objectives::forward_adaptive::forward_adaptive;
use super::objectives::head_distillation::head_distillation;
use super::objectives::influence::influence;
use super::objectives::regression::regression;
use super::objectives::selective::{RowWeighting, SelectionLogits, selective};
use super::objectives::triplet::triplet;
use super::objectives::vector_distance::vector_distance;

/// Method with its options. In a configuration file the options stand in the table `[method]`; the name comes
/// from the command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "kebab-case", deny_unknown_fields)]
pub enum TrainingMethod {
    /// The new model alone, with no regard to the old one.
    Plain {},
    /// Backward-compatible training (Shen et al. 2020).
    Bct {
        /// Weight λ of the influence loss.
        #[serde(default = "one")]
        weight: f32,
        /// Treatment of classes that the old head does not know.
        #[serde(default)]
        new_classes: NewClasses,
        /// Rows that the influence loss is taken on.
        #[serde(default, skip_serializing_if = "is_usual")]
        influence_set: InfluenceSet,
    },
    /// Regression-alleviating compatible training (Zhang et al. 2022).
    Ract {
        /// Weight λ of RACT's loss.
        #[serde(default = "one")]
        weight: f32,
        /// Form of the loss.
        #[serde(default)]
        form: RactForm,
        /// Temperature τ.
        #[serde(default = "usual_temperature")]
        temperature: f32,
        /// Temperature τ of new-to-new negatives; that of all where it is not given.
        temperature_new: Option<f32>,
        /// Weight η of the split form.
        #[serde(default = "one")]
        eta: f32,
        /// Number of negatives of each kind that count, the nearest ones; all where it is not given.
        hardest: Option<usize>,
        /// Margin m of the triplet forms.
        #[serde(default = "usual_margin")]
        margin: f32,
        /// Row whose old vector is a row's positive.
        #[serde(default, skip_serializing_if = "is_usual")]
        positives: Positives,
    },
    /// Darwinian model upgrades (Zhang et al. 2023).
    Dmu {
        /// Weight of the selective backward-compatible loss.
        #[serde(default = "one")]
        weight: f32,
        /// Weight of the forward-adaptive loss; 0 trains no ψ.
        #[serde(default = "one")]
        forward_weight: f32,
        /// Way in which rows are weighed.
        #[serde(default)]
        selection: RowWeighting,
        /// Logits of the probabilities that rows are weighed by.
        #[serde(default, skip_serializing_if = "is_usual")]
        logits: SelectionLogits,
        /// Sharpness s of a λ that is sharper than the printed one; as printed where it is not given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sharpness: Option<f32>,
        /// Number of units of each of ψ's three hidden layers.
        #[serde(default = "usual_hidden")]
        hidden: usize,
        /// Number of rows of ψ's own batches (the paper's are twice the encoder's); the encoder's batches
        /// where it is not given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        adapter_batch: Option<usize>,
    },
    /// Draws new vectors to where the old ones are.
    L2 {
        /// Weight λ of the distance.
        #[serde(default = "one")]
        weight: f32,
    },
    /// Learning without Forgetting (Li and Hoiem 2016).
    Lwf {
        /// Weight λ of the distillation.
        #[serde(default = "one")]
        weight: f32,
        /// Temperature T.
        #[serde(default = "usual_distillation")]
        temperature: f32,
    },
    /// Focal distillation (Yan et al. 2020).
    FocalDistillation {
        /// Whether vectors or probabilities are distilled.
        #[serde(default)]
        form: FocalForm,
        /// Weight λ of the focal loss.
        #[serde(default = "one")]
        weight: f32,
        /// Weight α of every row.
        #[serde(default = "one")]
        base: f32,
        /// Further weight β of rows that the old model has right.
        #[serde(default = "usual_focus")]
        focus: f32,
        /// Temperature T of probabilities.
        #[serde(default = "usual_focal_temperature")]
        temperature: f32,
        /// Whether BCT's influence loss stands beside it; probabilities alone make nothing compatible.
        #[serde(default = "yes")]
        influence: bool,
    },
    /// Draws new vectors to point where the old ones point (DMU's regression variant).
    Regression {
        /// Weight λ of the regression.
        #[serde(default = "one")]
        weight: f32,
        /// Way in which rows are weighed, where the old head knows their classes.
        #[serde(default)]
        selection: RowWeighting,
        /// Number of units of each of ψ's three hidden layers; no ψ where it is not given.
        hidden: Option<usize>,
        /// Whether φ_new is only a target where ψ is trained; (14) as it is printed draws the encoder to ψ's
        /// vectors as well.
        #[serde(default)]
        stop_gradient: bool,
    },
    /// RACT's loss (6) on top of BCT's (Zhang et al. 2022, A.5).
    RactOnBct {
        /// Weight λ of RACT's loss.
        #[serde(default = "one")]
        weight: f32,
        /// Temperature τ.
        #[serde(default = "usual_temperature")]
        temperature: f32,
        /// Temperature τ of new-to-new negatives; that of all where it is not given.
        temperature_new: Option<f32>,
        /// Number of negatives of each kind that count, the nearest ones; all where it is not given.
        hardest: Option<usize>,
    },
    /// The old head's class against all classes of both heads, as OpenCompatible combines RACT with a head.
    BothHeads {
        /// Weight λ of the loss over both heads.
        #[serde(default = "one")]
        weight: f32,
    },
}

/// Row whose old vector is the positive of a row in RACT's contrast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Positives {
    /// Old vector of the row itself (RACT: instance discrimination).
    #[default]
    Own,
    /// Old vector of another row of its class, drawn anew for each batch, or its own where it is the only one
    /// (RACT table 6: a pre-sampler).
    Class,
}

/// Treatment of classes that the old head does not know, by BCT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NewClasses {
    /// The influence loss leaves them out: it is taken on what the old training set would hold.
    LeaveOut,
    /// The old head gets the mean old vector of each as its weight; none is made where the influence loss is
    /// taken on the old training set ([`InfluenceSet::Old`]), which has no row of them.
    #[default]
    Synthesised,
    /// Distillation: the new vector of such a row learns what the old head says of its old vector.
    Distillation,
}

/// The training set of BCT's influence loss, T_BCT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InfluenceSet {
    /// The new model's: every row of a batch (the second choice of BCT, sections 2.4 and 2.5).
    #[default]
    New,
    /// The old model's: those rows of a batch that the old model was trained on as well, by the old head's
    /// own classes alone (the first choice of BCT, sections 2.4 and 2.5: its basic form).
    Old,
}

/// Forms of RACT's loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RactForm {
    /// New-to-old and new-to-new negatives together (6).
    #[default]
    Contrastive,
    /// New-to-old negatives alone (5).
    Vanilla,
    /// New-to-old and new-to-new negatives, each in a loss of its own (13).
    Split,
    /// Triplets of new-to-old and of new-to-new negatives (15).
    Triplet,
    /// Triplets of new-to-old negatives (14).
    VanillaTriplet,
}

impl RactForm {
    /// Lists options of the method that the form does not look at.
    fn ignores(self) -> &'static [&'static str] {
        match self {
            Self::Contrastive => &["eta", "margin"],
            Self::Vanilla => &["eta", "margin", "temperature_new"],
            Self::Split => &["margin"],
            Self::Triplet | Self::VanillaTriplet => &["eta", "temperature", "temperature_new"],
        }
    }
}

/// Whether an option need not be written. Without it, encoders say of themselves what they said before the
/// option existed.
fn is_usual<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn one() -> f32 {
    1.0
}

fn yes() -> bool {
    true
}

fn usual_temperature() -> f32 {
    0.05
}

fn usual_margin() -> f32 {
    0.8
}

fn usual_hidden() -> usize {
    1024
}

fn usual_distillation() -> f32 {
    2.0
}

fn usual_focus() -> f32 {
    5.0
}

/// Temperature of the authors' code: so hot that logits are matched, each by its share of the classes (at 2
/// the old model rules).
fn usual_focal_temperature() -> f32 {
    100.0
}

/// Frozen head of the old model.
pub(crate) struct OldHeads {
    /// Head as the old model was trained with it.
    pub own: HeadWeights,
    /// Head with the weights that were synthesised for classes that it does not know, where
    /// [`TrainingMethod::synthesises`] says so.
    pub whole: HeadWeights,
}

/// Weights and objectives that a method is made of, ready to be evaluated.
pub(crate) type Terms = Vec<(f32, Objective)>;

impl TrainingMethod {
    /// Names of all methods, in the order of the documentation.
    pub const NAMES: [&'static str; 10] = [
        "plain",
        "bct",
        "ract",
        "dmu",
        "l2",
        "lwf",
        "focal-distillation",
        "regression",
        "ract-on-bct",
        "both-heads",
    ];

    /// A method by name with the options of a table, or with the defaults.
    /// Makes a method by name with the options of a table, or with the defaults.
    /// ```
    /// use rehang_train::compatible::TrainingMethod;
    ///
    /// assert_eq!(TrainingMethod::named("ract", "")?.name(), "ract");
    /// assert!(matches!(TrainingMethod::named("bct", "weight = 0.5")?, TrainingMethod::Bct { weight, .. } if weight == 0.5));
    /// assert!(TrainingMethod::named("bct", "wieght = 0.5").unwrap_err().to_string().contains("wieght"));
    /// assert!(TrainingMethod::named("bcd", "").is_err());
    /// # Ok::<(), rehang_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`rehang_core::ErrorKind::InvalidOption`] for an unknown name, an unknown option, or a value out of range.
    pub fn named(name: &str, options: &str) -> Result<Self> {
        let table: toml::Table = toml::from_str(options)
            .map_err(|error| Error::option("method", options, format!("a TOML table ({error})")))?;
        Self::from_table(name, table)
    }

    /// Makes a method by name with the options of a table.
    ///
    /// # Errors
    ///
    /// As [`TrainingMethod::named`].
    pub fn from_table(name: &str, mut table: toml::Table) -> Result<Self> {
        if !Self::NAMES.contains(&name) {
            return Err(Error::option("method", name, Self::NAMES.join(", ")));
        }
        table.insert("name".into(), name.into());
        let given = table.clone();
        let method: Self = table
            .try_into()
            .map_err(|error: toml::de::Error| Error::option("method", name, error.message().to_owned()))?;
        method.check()?;
        let (ignored, why) = method.ignores();
        match ignored.iter().find(|option| given.contains_key(**option)) {
            None => Ok(method),
            Some(idle) => Err(Error::option(*idle, &given[*idle], format!("nothing: {why}"))),
        }
    }

    /// Lists options that have no effect beside the others, and why. They are refused, since a user who gives
    /// one expects an effect.
    fn ignores(&self) -> (&'static [&'static str], &'static str) {
        match self {
            Self::Ract { form, .. } => (form.ignores(), "this form of ract does not look at it"),
            Self::Regression { hidden: None, .. } => {
                (&["stop_gradient"], "without hidden units there is no ψ that would be drawn anywhere")
            }
            Self::Dmu { forward_weight, .. } if *forward_weight == 0.0 => {
                (&["hidden", "adapter_batch"], "forward_weight = 0 trains no ψ")
            }
            Self::Dmu { selection: RowWeighting::Even, .. } => {
                (&["sharpness"], "rows of selection = \"even\" weigh alike")
            }
            Self::Bct { new_classes: NewClasses::Synthesised, influence_set: InfluenceSet::Old, .. } => (
                &["new_classes"],
                "influence_set = \"old\" has no row of a class that the old head does not know; leave it out, or take \
                 \"leave-out\" or \"distillation\"",
            ),
            _ => (&[], ""),
        }
    }

    /// Gives the method's name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Plain {} => "plain",
            Self::Bct { .. } => "bct",
            Self::Ract { .. } => "ract",
            Self::Dmu { .. } => "dmu",
            Self::L2 { .. } => "l2",
            Self::Lwf { .. } => "lwf",
            Self::FocalDistillation { .. } => "focal-distillation",
            Self::Regression { .. } => "regression",
            Self::RactOnBct { .. } => "ract-on-bct",
            Self::BothHeads { .. } => "both-heads",
        }
    }

    /// Whether the method needs an old model at all.
    pub fn needs_old(&self) -> bool {
        !matches!(self, Self::Plain {})
    }

    /// Whether the method needs the old head.
    pub fn needs_old_head(&self) -> bool {
        matches!(
            self,
            Self::Bct { .. }
                | Self::Dmu { .. }
                | Self::Lwf { .. }
                | Self::FocalDistillation { .. }
                | Self::RactOnBct { .. }
                | Self::BothHeads { .. }
        )
    }

    /// Whether every batch of the method needs the old vectors.
    pub fn needs_old_vectors(&self) -> bool {
        match self {
            Self::Plain {} | Self::BothHeads { .. } => false,
            Self::Bct { new_classes, .. } => *new_classes == NewClasses::Distillation,
            _ => true,
        }
    }

    /// Whether the old head gets synthesised weights for classes that it does not know.
    pub fn synthesises(&self) -> bool {
        match self {
            // A synthesised class would be one more negative of the old training set's rows, which BCT's
            // basic form does not have.
            Self::Bct { new_classes, influence_set, .. } => {
                (*new_classes, *influence_set) == (NewClasses::Synthesised, InfluenceSet::New)
            }
            Self::Dmu { .. } | Self::RactOnBct { .. } | Self::BothHeads { .. } => true,
            Self::FocalDistillation { influence, .. } => *influence,
            _ => false,
        }
    }

    /// Whether a batch needs the old vectors of other rows of its rows' classes.
    pub(crate) fn needs_sisters(&self) -> bool {
        matches!(self, Self::Ract { positives: Positives::Class, .. })
    }

    /// Number of the method's loss, among those that have stood under its name and options; `None` for the
    /// first one. An encoder that is kept was trained by one of them.
    pub(crate) fn loss_revision(&self) -> Option<u32> {
        let changed = matches!(
            self,
            Self::Bct { new_classes: NewClasses::Distillation, .. }
                | Self::FocalDistillation { .. }
                | Self::Ract { .. }
                | Self::Regression { hidden: Some(_), .. }
        );
        changed.then_some(2)
    }

    /// Whether the method has to know which rows the old model was trained on.
    pub fn needs_old_rows(&self) -> bool {
        matches!(self, Self::Bct { influence_set: InfluenceSet::Old, .. })
    }

    /// Number of units of ψ's hidden layers, where the method trains one: three blocks of dense layer,
    /// BatchNorm, ReLU (DMU).
    pub fn adapter_hidden(&self) -> Option<Vec<usize>> {
        match *self {
            Self::Dmu { forward_weight, hidden, .. } if forward_weight > 0.0 => Some(vec![hidden; 3]),
            Self::Regression { hidden: Some(hidden), .. } => Some(vec![hidden; 3]),
            _ => None,
        }
    }

    /// Number of rows of ψ's own batches, where the method has them.
    pub(crate) fn adapter_batch(&self) -> Option<usize> {
        match *self {
            Self::Dmu { adapter_batch, .. } => adapter_batch,
            _ => None,
        }
    }

    fn check(&self) -> Result<()> {
        let not_below_zero =
            |option, value| expect(option, value, value >= 0.0, "a finite number, 0 or above");
        match *self {
            Self::Plain {} => Ok(()),
            Self::Bct { weight, .. } | Self::L2 { weight } | Self::BothHeads { weight } => {
                not_below_zero("weight", weight)
            }
            Self::Ract { weight, temperature, temperature_new, eta, hardest, margin, .. } => {
                not_below_zero("weight", weight)?;
                not_below_zero("eta", eta)?;
                not_below_zero("margin", margin)?;
                check_contrast(temperature, temperature_new, hardest)
            }
            Self::RactOnBct { weight, temperature, temperature_new, hardest } => {
                not_below_zero("weight", weight)?;
                check_contrast(temperature, temperature_new, hardest)
            }
            Self::Dmu { weight, forward_weight, hidden, adapter_batch, sharpness, .. } => {
                not_below_zero("weight", weight)?;
                above_zero("sharpness", sharpness.unwrap_or(1.0))?;
                not_below_zero("forward_weight", forward_weight)?;
                expect_units(hidden)?;
                match adapter_batch {
                    Some(rows @ 0..2) => Err(Error::option("adapter_batch", rows, TWO_ROWS)),
                    _ => Ok(()),
                }
            }
            Self::Lwf { weight, temperature } => {
                not_below_zero("weight", weight)?;
                above_zero("temperature", temperature)
            }
            Self::FocalDistillation { weight, base, focus, temperature, .. } => {
                not_below_zero("weight", weight)?;
                not_below_zero("base", base)?;
                not_below_zero("focus", focus)?;
                above_zero("temperature", temperature)
            }
            Self::Regression { weight, hidden, .. } => {
                not_below_zero("weight", weight)?;
                expect_units(hidden.unwrap_or(1))
            }
        }
    }

    /// Makes the objectives with their weights.
    pub(crate) fn terms(&self, smoothing: f32, old: Option<&OldHeads>) -> Result<Terms> {
        let heads =
            || old.ok_or_else(|| Error::missing("the old model's head", format!("train {}", self.name())));
        let head = || heads().map(|heads| heads.whole.clone());
        let mut terms: Terms = vec![(1.0, classification(smoothing))];
        match *self {
            Self::Plain {} => {}
            Self::Bct { weight, new_classes, influence_set } => {
                terms.push((weight, influence(head()?, influence_set, new_classes)));
            }
            Self::Ract { weight, form, temperature, temperature_new, eta, hardest, margin, .. } => {
                let contrast_options = Contrast::new(temperature, temperature_new, hardest);
                let contrast = |negatives| contrastive(negatives, contrast_options);
                let objective = match form {
                    RactForm::Contrastive => contrast(Negatives::OldAndNew),
                    RactForm::Vanilla => contrast(Negatives::Old),
                    RactForm::Split => contrast(Negatives::Split { eta }),
                    RactForm::Triplet => triplet(true, margin, hardest),
                    RactForm::VanillaTriplet => triplet(false, margin, hardest),
                };
                terms.push((weight, objective));
            }
            Self::Dmu { weight, forward_weight, selection, logits, sharpness, .. } => {
                terms.push((weight, selective(head()?, selection, logits, sharpness)));
                if forward_weight > 0.0 {
                    terms.push((forward_weight, forward_adaptive()));
                }
            }
            Self::L2 { weight } => terms.push((weight, vector_distance())),
            Self::Lwf { weight, temperature } => {
                terms.push((weight, head_distillation(head()?, temperature)));
            }
            Self::FocalDistillation { weight, form, base, focus, temperature, influence: with_influence } => {
                if with_influence {
                    let influence = influence(head()?, InfluenceSet::New, NewClasses::Synthesised);
                    terms.push((weight, influence));
                }
                let teacher = heads()?.own.clone();
                terms.push((weight, focal_distillation(teacher, form, base, focus, temperature)));
            }
            Self::Regression { weight, selection, stop_gradient, .. } => {
                let head = old.map(|heads| heads.own.clone());
                terms.push((weight, regression(head, selection, stop_gradient)));
            }
            Self::RactOnBct { weight, temperature, temperature_new, hardest } => {
                terms.push((1.0, influence(head()?, InfluenceSet::New, NewClasses::Synthesised)));
                let contrast_options = Contrast::new(temperature, temperature_new, hardest);
                terms.push((weight, contrastive(Negatives::OldAndNew, contrast_options)));
            }
            Self::BothHeads { weight } => terms.push((weight, both_heads(head()?))),
        }
        Ok(terms)
    }
}

fn expect(option: &str, value: f32, holds: bool, rule: &str) -> Result<()> {
    if value.is_finite() && holds { Ok(()) } else { Err(Error::option(option, value, rule)) }
}

fn above_zero(option: &str, value: f32) -> Result<()> {
    expect(option, value, value > 0.0, "a finite number above 0")
}

fn check_contrast(temperature: f32, temperature_new: Option<f32>, hardest: Option<usize>) -> Result<()> {
    above_zero("temperature", temperature)?;
    above_zero("temperature_new", temperature_new.unwrap_or(1.0))?;
    if hardest == Some(0) {
        return Err(Error::option("hardest", 0, "at least 1 negative"));
    }
    Ok(())
}

/// Reason why no batch has fewer rows.
pub(crate) const TWO_ROWS: &str = "at least 2: BatchNorm compares the rows of a batch";

fn expect_units(units: usize) -> Result<()> {
    if units > 0 { Ok(()) } else { Err(Error::option("hidden", 0, "at least 1 unit")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_is_made_of_what_its_table_says() {
        let weight = rehang_core::Matrix::new(2, vec![1.0, 0.0, 0.0, 1.0]).unwrap();
        let head = HeadWeights::new(weight, vec![0.0, 0.0], super::super::HeadForm::default());
        let head = OldHeads { own: head.clone(), whole: head };
        let names = |name: &str, options: &str| -> Vec<&'static str> {
            let method = TrainingMethod::named(name, options).unwrap();
            let terms = method.terms(0.0, Some(&head)).unwrap();
            terms.iter().map(|(_, objective)| objective.name).collect()
        };
        assert_eq!(names("plain", ""), ["classification"]);
        assert_eq!(names("bct", ""), ["classification", "influence"]);
        let distilled = names("bct", "new_classes = 'distillation'");
        assert_eq!(distilled, ["classification", "influence"]);
        assert_eq!(names("ract", ""), ["classification", "contrast"]);
        assert_eq!(names("ract", "form = 'triplet'"), ["classification", "triplets"]);
        assert_eq!(names("dmu", ""), ["classification", "selective", "forward-adaptive"]);
        assert_eq!(names("dmu", "forward_weight = 0.0"), ["classification", "selective"]);
        assert_eq!(names("l2", ""), ["classification", "distance"]);
        assert_eq!(names("lwf", ""), ["classification", "distillation"]);
        assert_eq!(names("focal-distillation", ""), ["classification", "influence", "focal"]);
        assert_eq!(names("regression", ""), ["classification", "regression"]);
        assert_eq!(names("ract-on-bct", ""), ["classification", "influence", "contrast"]);
        assert_eq!(names("both-heads", ""), ["classification", "both-heads"]);
        for name in TrainingMethod::NAMES {
            let method = TrainingMethod::named(name, "").unwrap();
            assert_eq!(method.name(), name);
            assert_eq!(method.terms(0.0, None).is_err(), method.needs_old_head(), "{name}");
        }
    }

    /// Yan et al. distil what the old model says, which says nothing of a class that it does not know.
    #[test]
    fn what_is_distilled_is_the_old_head_as_it_is() {
        use super::super::objectives::tests::{Plain, frozen};
        use crate::finite_differences::numbers;

        let form = super::super::HeadForm::default();
        let own = frozen(&numbers(2 * 4, 9), 4, form);
        let heads = OldHeads { own: own.clone(), whole: frozen(&numbers(3 * 4, 7), 4, form) };
        let focal = |form: &str| TrainingMethod::named("focal-distillation", form).unwrap();
        let value = |objective: &Objective| Plain::usual().value(objective);
        let terms = focal("").terms(0.0, Some(&heads)).unwrap();
        let distillation = |form| focal_distillation(own.clone(), form, 1.0, 5.0, 100.0);
        assert_eq!(value(&terms[2].1), value(&distillation(FocalForm::Features)));
        let others = focal("form = 'probabilities'").terms(0.0, Some(&heads)).unwrap();
        assert_eq!(value(&others[2].1), value(&distillation(FocalForm::Probabilities)));
        let influence = influence(heads.whole.clone(), InfluenceSet::New, NewClasses::Synthesised);
        assert_eq!(value(&terms[1].1), value(&influence), "the influence loss has the synthesised classes");
    }

    #[test]
    fn options_out_of_range_are_named() {
        for (name, options, option) in [
            ("ract", "temperature = 0.0", "temperature"),
            ("ract", "hardest = 0", "hardest"),
            ("bct", "weight = -1.0", "weight"),
            ("bct", "weight = nan", "weight"),
            ("dmu", "hidden = 0", "hidden"),
            ("dmu", "adapter_batch = 1", "adapter_batch"),
            ("dmu", "sharpness = 0.0", "sharpness"),
            ("dmu", "selection = 'even'\nsharpness = 2.0", "sharpness"),
            ("lwf", "temperature = inf", "temperature"),
            ("plain", "weight = 1.0", "weight"),
            ("bct", "new_classes = 'forget'", "forget"),
        ] {
            let error = TrainingMethod::named(name, options).unwrap_err().to_string();
            assert!(error.contains(option), "{name} {options}: {error}");
        }
    }

    #[test]
    fn options_that_would_do_nothing_are_refused() {
        for (name, options, says) in [
            ("ract", "form = 'triplet'\neta = 0.5", "this form"),
            ("dmu", "forward_weight = 0.0\nhidden = 8", "trains no ψ"),
            ("dmu", "forward_weight = 0.0\nadapter_batch = 8", "trains no ψ"),
            ("regression", "stop_gradient = true", "no ψ"),
            ("bct", "influence_set = 'old'\nnew_classes = 'synthesised'", "influence_set"),
        ] {
            let error = TrainingMethod::named(name, options).unwrap_err().to_string();
            assert!(error.contains("nothing: ") && error.contains(says), "{name} {options}: {error}");
        }
        for (name, options) in [
            ("dmu", "forward_weight = 0.0"),
            ("dmu", "hidden = 8"),
            ("bct", "influence_set = 'old'"),
            ("bct", "influence_set = 'old'\nnew_classes = 'leave-out'"),
            ("bct", "influence_set = 'old'\nnew_classes = 'distillation'"),
            ("bct", "influence_set = 'new'\nnew_classes = 'synthesised'"),
        ] {
            TrainingMethod::named(name, options).unwrap_or_else(|error| panic!("{name} {options}: {error}"));
        }
    }

    #[test]
    fn only_the_new_training_set_has_classes_to_synthesise() {
        let synthesises = |options: &str| TrainingMethod::named("bct", options).unwrap().synthesises();
        assert!(synthesises("") && synthesises("influence_set = 'new'"));
        assert!(!synthesises("influence_set = 'old'") && !synthesises("new_classes = 'leave-out'"));
    }
}
