//! The learned methods as candidates: residual MLP, FCT, FastFill (ours) and FastFill by the published
//! recipe.
//!
//! [`fit_adapter`] makes the head that a method needs and hands the networks that were asked for to the
//! selection.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rehang_core::adapter::{Adapter, Geometry, InputScaling, Uncertainty};
use rehang_core::copies::without_copies;
use rehang_core::{Error, Head, Pairs, Progress, Result};
use xxhash_rust::xxh3::xxh3_64;

use crate::auto::{Fitted, fit_with};
use crate::candidate::{Candidate, FittedMap};
use crate::closed_form::ridge;
use crate::folds::hold_out;
use crate::geometry::{self, GeometryKind};
use crate::head_fit::{class_numbers, fit_head, known_labels};
use crate::method::Method;
use crate::network::Architecture;
use crate::network_fit::{
    FittedNetwork, NetworkParameters, UncertaintyLoss, average_maps, fit_network, identity,
};
use crate::objectives::squared::SquaredScale;
use crate::parameters::FitParameters;
use crate::pseudo_classes::pseudo_classes;
use crate::retrieval::Criterion;
use crate::task::adapter;

/// Fits of a network that is kept: in each of the splits, of all pairs, and in each fold for its σ².
const FITS_OF_A_WINNER: f64 = 11.0;

/// Weights of the discriminative part that FastFill tries where nothing is asked for.
const DISCRIMINATIVE_WEIGHTS: [f32; 2] = [0.0, 0.1];
/// Number of epochs of a trial of a discriminative weight; the weight that is kept is fitted in full.
const TRIAL_EPOCHS: usize = 20;
/// Part of the pairs that trials of discriminative weights are measured on.
const TRIAL_SHARE: f64 = 0.15;

rehang_core::named! {
    /// Parts that a FastFill loss has.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum LossParts ("loss") {
        /// The squared error alone.
        Squared = "l2",
        /// The discriminative part alone.
        Discriminative = "disc",
        /// The squared error and the discriminative part, with weight 1.
        Both = "both",
    }
}

rehang_core::named! {
    /// Source of a network's σ².
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum UncertaintySource ("uncertainty") {
        /// Out-of-fold residuals.
        OutOfFold = "out-of-fold",
        /// The published head ψ, trained with h.
        Joint = "joint",
        /// One σ² for all items.
        Off = "off",
    }
}

/// Options of the learned methods.
///
/// | Name | Default | Purpose | Range |
/// |---|---|---|---|
/// | `epochs` | the method's | passes over the pairs | ≥ 1 |
/// | `loss` | squared error, discriminative as far as it helps | parts of FastFill's loss | |
/// | `squared` | the mean over coordinates; without a scale for `fastfill` | unit of the squared error | |
/// | `uncertainty` | out-of-fold residuals; `joint` for `fastfill-reference` | source of σ² | |
/// | `label_smoothing` | 0.1 | of the cross-entropy through a softmax head | 0 to 1 |
/// | `uncertainty_weights` | ½, ½ | weights of `L/σ²` and of `log σ²` where ψ is trained with h | > 0 |
/// | `early_stop` | none | patience in epochs on a held-out tenth | ≥ 1 |
/// | `seeds` | 1 | seeds tried on a held-out tenth (residual networks: averaged) | ≥ 1 |
/// | `checkpoints` | none | folder for the state of each training | |
/// | `networks` | no | whether `auto` compares networks with the closed forms | |
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkOptions {
    /// Number of passes over the pairs; `None` for the method's own number.
    pub epochs: Option<usize>,
    /// Parts of FastFill's loss; `None` for the squared error, and as much of the discriminative part as
    /// helps on held-out pairs.
    pub loss: Option<LossParts>,
    /// Unit of the squared error of FCT and FastFill; `None` for the method's own.
    pub squared: Option<SquaredScale>,
    /// Source of σ²; `None` for the method's own.
    pub uncertainty: Option<UncertaintySource>,
    /// Label smoothing of the discriminative part; `None` for the recipe's.
    pub label_smoothing: Option<f32>,
    /// Weights of `L/σ²` and of `log σ²`; `None` for the recipe's.
    pub uncertainty_weights: Option<[f32; 2]>,
    /// Patience in epochs on a held-out tenth; `None` for no early stop.
    pub early_stop: Option<usize>,
    /// Number of seeds that are tried.
    pub seeds: u64,
    /// Folder for the state of each training, from which an interrupted fit goes on.
    pub checkpoints: Option<PathBuf>,
    /// Whether `auto` compares networks with the closed forms, however long they take.
    pub networks: bool,
}

impl Default for NetworkOptions {
    fn default() -> Self {
        Self {
            epochs: None,
            loss: None,
            squared: None,
            uncertainty: None,
            label_smoothing: None,
            uncertainty_weights: None,
            early_stop: None,
            seeds: 1,
            checkpoints: None,
            networks: false,
        }
    }
}

/// Fits an adapter with any method: a closed form, a network, or the best closed form (`auto`; of all where
/// [`NetworkOptions::networks`] asks for it).
///
/// 1. Parts of the pairs are held out, five times another one ([`crate::folds::hold_out`]): a part of every
///    class, and some classes as a whole; clusters, without labels; of [copies](rehang_core::copies) the
///    first alone. Every method is fitted on the rest. A linear method chooses its settings (a penalty, a
///    rank) once, on all pairs. Its table row says how it does on the held-out pairs, for every way to
///    conform to the new space that is open. It is measured as it would be served: in the default order, with
///    its own handicap, which is chosen in random order as the adapter's is. The criterion is the area of the
///    exact curve of the mAP by label, or, without labels, of the agreement of the first ten results with the
///    native gallery. Items of seen and unseen classes count the same. Where [`FitParameters::queries`] are
///    given, they ask in place of the held-out items. Where [`FitParameters::metric`] is named, it is
///    measured. A network that is slow to fit is fitted on the first part only, unless it leads there.
/// 2. Of the rows that are no farther behind the best one than one standard error of their difference, the one
///    with the best start is kept; where a method is named, only its rows count. It is fitted on all pairs.
/// 3. σ² is learned from out-of-fold residuals ([`crate::uncertainty_fit`]). Where no head is given, the
///    doubt of a head made of class means (or of k-means centres, without labels) is used.
///
/// A method that fails stays in the table with its reason; the call fails only where the method to keep does.
///
/// Where a method needs a head and none is given, one is fitted: multinomial logistic regression on the new
/// vectors and the labels. Without labels it is fitted on k-means pseudo-classes, where a discriminative loss
/// is asked for.
///
/// # Errors
///
/// [`rehang_core::ErrorKind::InvalidOption`] for parameters and options out of range;
/// [`rehang_core::ErrorKind::WidthMismatch`] for a head of another width ([`rehang_core::ErrorKind::WrongDirection`]
/// where it has the width of the old vectors); errors of the method itself; [`rehang_core::ErrorKind::Cancelled`].
pub fn fit_adapter(
    pairs: &Pairs,
    head: Option<&Head>,
    parameters: &FitParameters,
    options: &NetworkOptions,
    progress: &Progress,
) -> Result<Fitted> {
    if options.seeds == 0 || parameters.seed.checked_add(options.seeds).is_none() {
        return Err(Error::option("seeds", options.seeds, "1 or more, and seed + seeds within 64 bits"));
    }
    let is_asked_for = |method: Method| {
        let is_one_of_auto = method != Method::FastfillReference;
        parameters.method == method
            || (parameters.method == Method::Auto && options.networks && is_one_of_auto)
    };
    let networks = Method::NETWORKS.into_iter().filter(|&method| is_asked_for(method)).map(|method| {
        let fit = move |pairs: &Pairs, _: &[i64], progress: &Progress| {
            Asked { method, pairs, head, seed: parameters.seed, options, progress }.fit()
        };
        let cost = cost(method, pairs, options) * FITS_OF_A_WINNER * options.seeds as f64;
        Candidate { method, slow: true, fit: Box::new(fit), cost: Some(cost), leaves_out: false }
    });
    let more: Vec<Candidate<'_>> = networks.collect();
    let mut fitted = fit_with(pairs, head, parameters, &more, progress)?;
    if options.uncertainty == Some(UncertaintySource::Off) {
        let variance = fitted.sigma.as_ref().map_or(1.0, |quality| quality.calibration.mean_squared_error);
        fitted.adapter.uncertainty =
            Uncertainty::Constant { variance: (variance as f32).max(f32::MIN_POSITIVE) };
        // The quality was measured for a σ² that is not in the adapter.
        fitted.sigma = None;
    }
    Ok(fitted)
}

/// Fits one method on all pairs without learning its σ² (every item gets the same one): for studies of the
/// map alone.
///
/// # Errors
///
/// As [`fit_adapter`]; [`rehang_core::ErrorKind::InvalidOption`] for a method that is no network.
pub fn fit_map_only(
    pairs: &Pairs,
    head: Option<&Head>,
    parameters: &FitParameters,
    options: &NetworkOptions,
    progress: &Progress,
) -> Result<Adapter> {
    let method = parameters.method;
    if !Method::NETWORKS.contains(&method) {
        return Err(Error::option("method", method, "residual-mlp, fct, fastfill or fastfill-reference"));
    }
    let native = pairs.new_vectors();
    let fitted = Asked { method, pairs, head, seed: parameters.seed, options, progress }.fit()?;
    let kind = parameters.geometry.unwrap_or(GeometryKind::options(native.space())[0]);
    let geometry = fitted.geometry.unwrap_or_else(|| geometry::fit(kind, native.matrix(), native));
    let uncertainty = Uncertainty::Constant { variance: 1.0 };
    Ok(adapter(pairs, (method, parameters.seed, fitted.choices), fitted.map, geometry, uncertainty))
}

/// A network that is to be fitted: by which method, and to what.
#[derive(Clone, Copy)]
struct Asked<'a> {
    method: Method,
    pairs: &'a Pairs,
    head: Option<&'a Head>,
    seed: u64,
    options: &'a NetworkOptions,
    progress: &'a Progress,
}

impl<'a> Asked<'a> {
    /// Replaces pairs and head by those that [`Asked::classed`] made, where it made any.
    fn with(self, pairs_and_head: Option<&'a (Pairs, Head)>) -> Self {
        pairs_and_head.map_or(self, |(pairs, head)| Self { pairs, head: Some(head), ..self })
    }

    /// Makes pairs with class numbers and the head fitted to them, where a discriminative loss has no head of
    /// its own.
    ///
    /// The head sees the pairs of this very fit and no others, so that held-out pairs stay unseen. Labels are
    /// numbered 0, 1, 2, … in the head's order. Without labels, k-means clusters of the new vectors stand for
    /// classes where a discriminative loss is asked for by name.
    fn classed(self) -> Result<Option<(Pairs, Head)>> {
        let Self { method, pairs, head, seed, options, progress } = self;
        let discriminative = matches!(method, Method::Fastfill | Method::FastfillReference);
        if !discriminative || head.is_some() || options.loss == Some(LossParts::Squared) {
            return Ok(None);
        }
        let new = pairs.new_vectors().matrix();
        let labels = match known_labels(pairs) {
            Some(labels) => labels.to_vec(),
            None if matches!(options.loss, Some(LossParts::Discriminative | LossParts::Both)) => {
                pseudo_classes(new, seed, progress)?
            }
            None => return Ok(None),
        };
        let head = fit_head(new, &labels, progress)?;
        let (numbers, _) = class_numbers(&labels);
        let numbered = numbers.into_iter().map(|number| number.map_or(-1, |class| class as i64)).collect();
        let pairs = Pairs::new(
            pairs.old().clone(),
            pairs.new_vectors().clone(),
            Some(numbered),
            pairs.side().cloned(),
        )?;
        Ok(Some((pairs, head)))
    }

    /// Returns the method's own parameters, with the options put in. `weight` is that of the discriminative
    /// part.
    fn parameters(self, weight: f32) -> Result<NetworkParameters> {
        let Self { method, pairs, head, seed, options, progress } = self;
        let on_sphere = pairs.new_vectors().space().normalised;
        let head = head.filter(|_| pairs.labels().is_some()).cloned();
        let mut network = match method {
            Method::ResidualMlp => {
                let scaling = Some(InputScaling::UnitLength);
                let linear = ridge::fit_with(pairs, scaling, &ridge::PENALTIES, progress)?;
                NetworkParameters::residual_mlp(linear.map.mixer.into_iter().next())
            }
            Method::Fastfill => NetworkParameters::fastfill(head, weight, on_sphere),
            Method::FastfillReference => NetworkParameters::fastfill_reference(head),
            _ => NetworkParameters::fct(),
        };
        if matches!(method, Method::Fct | Method::Fastfill | Method::FastfillReference) {
            network.loss.squared = options.squared.unwrap_or(network.loss.squared);
        }
        if method == Method::Fastfill || method == Method::FastfillReference {
            let has_head = network.loss.head.is_some();
            match options.loss {
                None => {}
                Some(LossParts::Squared) => network.loss.discriminative_weight = 0.0,
                Some(LossParts::Both) if has_head => network.loss.discriminative_weight = 1.0,
                Some(LossParts::Discriminative) if has_head => {
                    network.loss.discriminative_weight = 1.0;
                    network.loss.squared_weight = 0.0;
                }
                Some(LossParts::Both | LossParts::Discriminative) => {
                    return Err(Error::missing(
                        "labels",
                        "a loss with a discriminative part, whose head has classes,",
                    ));
                }
            }
            let joint = matches!(
                (method, options.uncertainty),
                (_, Some(UncertaintySource::Joint)) | (Method::FastfillReference, None)
            );
            if !joint {
                network.loss.uncertainty = UncertaintyLoss::Off;
            }
            network.loss.label_smoothing = options.label_smoothing.unwrap_or(network.loss.label_smoothing);
            if let (Some([of_loss, of_log]), UncertaintyLoss::Joint { loss_weight, log_weight, .. }) =
                (options.uncertainty_weights, &mut network.loss.uncertainty)
            {
                (*loss_weight, *log_weight) = (of_loss, of_log);
            }
        }
        if let Some(epochs) = options.epochs {
            network.epochs = epochs;
            if method != Method::ResidualMlp {
                // The recipe freezes BatchNorm's statistics half-way.
                network.freeze_statistics_from = epochs / 2;
                network.warm_up_epochs = network.warm_up_epochs.min(epochs as f64 / 4.0);
            }
            // A short training lets h learn from ψ in the end too: ten epochs of eighty, and that share of
            // fewer.
            if let UncertaintyLoss::Joint { warm_up_epochs, .. } = &mut network.loss.uncertainty {
                *warm_up_epochs = (*warm_up_epochs).min(epochs / 8);
            }
        }
        network.early_stop = options.early_stop;
        network.seed = seed;
        Ok(network)
    }

    /// Fits one network, with the best of several seeds and weights where these are open.
    fn fit(self) -> Result<FittedMap> {
        let Self { method, seed, options, progress, .. } = self;
        let pairs_and_head = self.classed()?;
        let classed = self.with(pairs_and_head.as_ref());
        let Asked { pairs, head, .. } = classed;
        let mut choices = BTreeMap::new();
        let usable = head.filter(|_| pairs.labels().is_some());
        let weight = match (method, options.loss, usable) {
            (Method::Fastfill, None, Some(_)) => self.best_weight()?,
            _ => 1.0,
        };
        let parameters = |seed: u64| Asked { seed, ..classed }.parameters(weight);
        // Residual networks of several seeds are averaged; of other networks the best on a held-out part is
        // kept.
        let averages = method == Method::ResidualMlp && options.seeds > 1;
        let (fitted_on, held_out) = if options.early_stop.is_some() || (options.seeds > 1 && !averages) {
            let parts = hold_out(pairs.len(), None, 0.1, seed);
            (pairs.select(&parts.fitted), Some(pairs.select(&parts.seen)))
        } else {
            (pairs.clone(), None)
        };
        let mut best: Option<(f64, u64, FittedNetwork)> = None;
        let mut maps = Vec::new();
        for seed in seed..seed + options.seeds {
            let network = parameters(seed)?;
            let checkpoint = options.checkpoints.as_ref().map(|folder| {
                let identity = identity(&fitted_on, held_out.as_ref(), &network);
                folder.join(format!("{method}-{seed}-{:016x}.safetensors", xxh3_64(identity.as_bytes())))
            });
            let fitted =
                fit_network(&fitted_on, held_out.as_ref(), &network, progress, checkpoint.as_deref())?;
            let loss = fitted
                .history
                .get(fitted.best_epoch)
                .and_then(|epoch| epoch.held_out)
                .unwrap_or(f64::INFINITY);
            if averages {
                maps.push(fitted.map.clone());
            }
            if best.as_ref().is_none_or(|(smallest, _, _)| loss < *smallest) {
                best = Some((loss, seed, fitted));
            }
        }
        let Some((_, seed, mut network)) = best else {
            return Err(Error::option("seeds", options.seeds, "1 or more"));
        };
        if averages {
            network.map = average_maps(&maps)?;
            choices.insert("averaged seeds".into(), options.seeds.to_string());
        }
        let used = parameters(seed)?;
        let squared = options.squared.filter(|_| method != Method::ResidualMlp);
        if let Some(squared) = squared {
            choices.insert("squared error".into(), squared.to_string());
        }
        if matches!(method, Method::Fastfill | Method::FastfillReference) {
            choices.insert("squared weight".into(), used.loss.squared_weight.to_string());
            choices.insert("discriminative weight".into(), used.loss.discriminative_weight.to_string());
        }
        if fitted_on.len() < pairs.len() {
            choices.insert("pairs the network learned from".into(), fitted_on.len().to_string());
        }
        choices.insert("epochs".into(), network.history.len().to_string());
        choices.insert("network seed".into(), seed.to_string());
        choices.insert("batch".into(), used.batch.to_string());
        choices.insert("learning rate".into(), used.learning_rate.to_string());
        let (Architecture::Mixer { hidden, .. } | Architecture::ResidualMlp { hidden, .. }) =
            used.architecture;
        choices.insert("hidden".into(), hidden.to_string());
        // The papers publish raw outputs; our methods conform theirs to the space.
        let published = matches!(method, Method::Fct | Method::FastfillReference);
        Ok(FittedMap {
            map: network.map,
            choices,
            geometry: published.then_some(Geometry::Raw),
            evidence: None,
            uncertainty: network.psi,
            without: None,
        })
    }

    /// Returns the weight of the discriminative part whose short trial does best on held-out pairs; the
    /// smaller one where two are equal.
    fn best_weight(self) -> Result<f32> {
        let Self { pairs, seed, options, progress, .. } = self;
        let rows = without_copies(pairs.old().matrix(), pairs.new_vectors().matrix(), &[]);
        let pairs = &pairs.select(&rows);
        let parts = hold_out(pairs.len(), pairs.labels(), TRIAL_SHARE, seed);
        let held_out: Vec<usize> = parts.seen.iter().chain(&parts.unseen).copied().collect();
        if held_out.len() < 20 || parts.fitted.len() < 20 {
            return Ok(0.0);
        }
        let (fitted_on, held_out) = (pairs.select(&parts.fitted), pairs.select(&held_out));
        // A head that is fitted here must not have seen the pairs that the weights are compared on.
        let part = Asked { pairs: &fitted_on, ..self };
        let pairs_and_head = part.classed()?;
        let Some(criterion) = Criterion::by_label(held_out.labels().unwrap_or_default()) else {
            return Ok(0.0);
        };
        let native = held_out.new_vectors();
        let trial = NetworkOptions {
            epochs: Some(TRIAL_EPOCHS.min(options.epochs.unwrap_or(TRIAL_EPOCHS))),
            seeds: 1,
            early_stop: None,
            ..options.clone()
        };
        let part = Asked { options: &trial, ..part.with(pairs_and_head.as_ref()) };
        let mut best = (f64::NEG_INFINITY, 0.0);
        for weight in DISCRIMINATIVE_WEIGHTS {
            let network = part.parameters(weight)?;
            let fitted = fit_network(part.pairs, None, &network, progress, None)?;
            let raw = fitted.map.outputs(held_out.old().matrix(), held_out.side())?;
            let kind = GeometryKind::options(native.space())[0];
            let outputs = geometry::fit(kind, &raw, part.pairs.new_vectors()).conformed(raw);
            let quality = criterion.upgrade(native, outputs, seed)?;
            if quality.area > best.0 {
                best = (quality.area, weight);
            }
        }
        Ok(best.1)
    }
}

/// Counts the multiplications of one fit: six for each weight, pair and epoch (one product forward, two
/// backward), and the trials.
fn cost(method: Method, pairs: &Pairs, options: &NetworkOptions) -> f64 {
    let (d_old, d_new) = (pairs.old().dimension() as f64, pairs.new_vectors().dimension() as f64);
    if method == Method::ResidualMlp {
        let network = NetworkParameters::residual_mlp(None);
        let (Architecture::Mixer { hidden, .. } | Architecture::ResidualMlp { hidden, .. }) =
            network.architecture;
        let weights = hidden as f64 * (d_old + hidden as f64 + d_new);
        return 6.0 * weights * pairs.len() as f64 * options.epochs.unwrap_or(network.epochs) as f64;
    }
    let d_side = pairs.side().map_or(d_old, |side| side.columns() as f64);
    let branch = |width: f64| width * 2.0 * width + 2.0 * width * 2.0 * d_new;
    let weights = branch(d_old) + branch(d_side) + 4.0 * d_new * 2048.0 + 2048.0 * 2048.0 + 2048.0 * d_new;
    let epochs = options.epochs.unwrap_or(80) as f64;
    let trials = if method == Method::Fastfill && pairs.labels().is_some() {
        (DISCRIMINATIVE_WEIGHTS.len() * TRIAL_EPOCHS) as f64
    } else {
        0.0
    };
    6.0 * weights * pairs.len() as f64 * (epochs + trials)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::test_data::{pairs, random_matrix};

    #[test]
    fn smoothing_and_the_weights_of_sigma_are_those_of_the_recipe_unless_given() {
        let labels = (0..40).map(|row| row % 4).collect();
        let pairs = pairs(random_matrix(40, 3, 1), random_matrix(40, 4, 2), Some(labels));
        let head = Head::new(random_matrix(4, 4, 3), None, rehang_core::HeadKind::Softmax).unwrap();
        let parameters =
            FitParameters { method: Method::FastfillReference, compare: false, ..FitParameters::default() };
        let fit = |label_smoothing, uncertainty_weights| {
            let options = NetworkOptions {
                epochs: Some(1),
                label_smoothing,
                uncertainty_weights,
                ..NetworkOptions::default()
            };
            fit_adapter(&pairs, Some(&head), &parameters, &options, &Progress::default())
                .map(|fitted| fitted.adapter)
        };
        let usual = fit(None, None).unwrap();
        let (same, smoother, weighed) =
            (fit(Some(0.1), Some([0.5, 0.5])), fit(Some(0.4), None), fit(None, Some([0.5, 2.0])));
        assert_eq!(same.unwrap().map, usual.map);
        assert!(smoother.unwrap().map != usual.map && weighed.unwrap().map != usual.map);
        for refused in [fit(Some(1.5), None), fit(None, Some([0.0, 0.5]))] {
            assert!(matches!(refused.unwrap_err().kind(), rehang_core::ErrorKind::InvalidOption { .. }));
        }
    }

    /// The printed FastFill (3) has ‖v − h‖², the authors' code its mean over the coordinates.
    #[test]
    fn the_unit_of_the_squared_error_is_the_codes_unless_the_printed_one_is_asked_for() {
        let labels = (0..40).map(|row| row % 4).collect();
        let pairs = pairs(random_matrix(40, 3, 1), random_matrix(40, 4, 2), Some(labels));
        let head = Head::new(random_matrix(4, 4, 3), None, rehang_core::HeadKind::Softmax).unwrap();
        for method in [Method::Fct, Method::FastfillReference] {
            let parameters = FitParameters { method, compare: false, ..FitParameters::default() };
            let fit = |squared| {
                let options = NetworkOptions { epochs: Some(1), squared, ..NetworkOptions::default() };
                let fitted = fit_adapter(&pairs, Some(&head), &parameters, &options, &Progress::default());
                fitted.unwrap().adapter
            };
            let usual = fit(None);
            assert_eq!(fit(Some(SquaredScale::MeanOverCoordinates)).map, usual.map);
            let printed = fit(Some(SquaredScale::Sum));
            assert!(printed.map != usual.map);
            assert_eq!(printed.training.hyper_parameters["squared error"], "sum");
            assert!(!usual.training.hyper_parameters.contains_key("squared error"));
        }
    }
}
