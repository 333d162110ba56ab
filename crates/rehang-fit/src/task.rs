//! Makes an adapter of a map that was fitted on all pairs: how its outputs conform, its σ² and its handicap
//! are learned from its outputs for pairs that it has not seen.

use std::collections::BTreeMap;

use rehang_core::adapter::{Adapter, Geometry, InputStatistics, Map, RowSketch, Training, Uncertainty};
use rehang_core::finding::Finding;
use rehang_core::statistics::SigmaQuality;
use rehang_core::{Head, Matrix, Pairs, Progress, Result, distinct};

use crate::auto::{groups, without_idle_labels};
use crate::candidate::{Candidate, FittedMap, OwnEvidence};
use crate::compare::Made;
use crate::folds::{folds, group_folds, shuffled};
use crate::fusion_choice::FusionChoice;
use crate::geometry::{self, GeometryKind};
use crate::handicap::{self, HandicapChoice};
use crate::kinds::Kinds;
use crate::left_out::{LeavesOut, without_folds};
use crate::method::Method;
use crate::parameters::FitParameters;
use crate::pseudo_classes::centroid_head;
use crate::residuals;
use crate::retrieval::{Criterion, Gallery};
use crate::same::WorstFirst;
use crate::traits::Trait;
use crate::uncertainty_fit::{self, Evidence, cross_fit};
use crate::within::Deadline;

/// Number of times that a map is fitted again for out-of-fold residuals.
const FOLDS: usize = 5;
/// Smallest and largest number of pairs that a handicap is chosen on.
const HANDICAP_ITEMS: (usize, usize) = (20, 1500);

/// An adapter with what was learned about it.
pub(crate) struct Finished {
    pub adapter: Adapter,
    pub calibration: Option<SigmaQuality>,
    pub handicap: Option<HandicapChoice>,
    pub fusion: Option<FusionChoice>,
    /// Finding about the pairs, from the residuals.
    pub finding: Option<Finding>,
    /// Share of the differing pairs that come first by σ², where other pairs have the new model's vector
    /// already; `None` where σ² is one number, or few pairs have it.
    pub differing: Option<WorstFirst>,
}

/// Pairs, and what is asked of an adapter of them.
#[derive(Clone, Copy)]
pub(crate) struct Task<'a> {
    pub pairs: &'a Pairs,
    pub head: Option<&'a Head>,
    /// Class or cluster of every pair.
    pub groups: &'a [i64],
    pub parameters: &'a FitParameters,
    /// Two kinds of old vectors, where they were found.
    pub kinds: Option<&'a Kinds>,
    /// Deadline until which methods are tried.
    pub deadline: Deadline,
    pub progress: &'a Progress,
}

/// Number of classes below which none is left out as a whole ([`hold_out`](crate::folds::hold_out)): clusters
/// stand for so few.
const CLASSES_MIN: usize = 5;

/// Answers a question about pairs that is no fit of a map. Queries and metric of the parameters are checked,
/// and labels that say nothing are left out.
///
/// # Errors
///
/// As [`fit_adapter`](crate::fit_adapter) for queries and metrics that do not go with the pairs; errors of
/// `ask`.
pub(crate) fn with_task<T>(
    pairs: &Pairs,
    parameters: &FitParameters,
    progress: &Progress,
    ask: impl FnOnce(&Task<'_>) -> Result<T>,
) -> Result<T> {
    if let Some(queries) = &parameters.queries {
        queries.check(pairs)?;
    }
    Criterion::check_metric(parameters, pairs)?;
    let mut unlabelled = without_idle_labels(pairs)?.map(|(pairs, _)| pairs);
    let is_of_few = |labels: &[i64]| distinct(labels.iter().copied()).len() < CLASSES_MIN;
    if unlabelled.is_none() && pairs.labels().is_some_and(is_of_few) {
        unlabelled =
            Some(Pairs::new(pairs.old().clone(), pairs.new_vectors().clone(), None, pairs.side().cloned())?);
    }
    let pairs = unlabelled.as_ref().unwrap_or(pairs);
    let groups = groups(pairs, parameters.seed, progress)?;
    ask(&Task {
        pairs,
        head: None,
        groups: &groups,
        parameters,
        kinds: None,
        deadline: Deadline::default(),
        progress,
    })
}

impl Task<'_> {
    /// Learns geometry and σ² of a map that was fitted on all pairs, and puts the adapter together. The
    /// comparison may have `made` the method's outputs for its first splits.
    pub(crate) fn finish(
        &self,
        candidate: &Candidate<'_>,
        fitted: FittedMap,
        kind: GeometryKind,
        made: Vec<Made>,
    ) -> Result<Finished> {
        let Self { pairs, head, groups, parameters, kinds, progress, .. } = *self;
        let (mut finding, mut differing) = (None, None);
        let native = pairs.new_vectors();
        let needs_evidence =
            fitted.uncertainty.is_none() || (fitted.geometry.is_none() && kind == GeometryKind::MatchedNorms);
        let evidence = match fitted.evidence {
            Some(evidence) => Some(evidence),
            None if needs_evidence && pairs.len() >= 2 => {
                Some(self.cross_fitted(candidate, fitted.without.as_deref())?)
            }
            None => None,
        };
        let empty = Matrix::default();
        let raw = evidence.as_ref().map_or(&empty, |evidence| &evidence.items_left_out);
        let conform = fitted.geometry.unwrap_or_else(|| geometry::fit(kind, raw, native));
        let (mut fusion, mut fusion_choice) = (None, None);
        let (uncertainty, calibration, handicap) = match (fitted.uncertainty, &evidence) {
            (Some(uncertainty), _) => {
                (uncertainty_fit::in_squared_units(uncertainty, &fitted.map, &conform, pairs)?, None, None)
            }
            (None, Some(evidence)) => {
                let own_head = match head {
                    Some(_) => None,
                    None => Some(centroid_head(native.matrix(), groups)?),
                };
                let sigma_evidence = Evidence {
                    items_left_out: &evidence.items_left_out,
                    groups_left_out: evidence.groups_left_out.as_ref(),
                    groups: &evidence.rows.iter().map(|&row| groups[row]).collect::<Vec<_>>(),
                    geometry: &conform,
                    input: fitted.map.input,
                    head: head.or(own_head.as_ref()),
                    small_kind: None,
                };
                let seen_pairs = pairs.select(&evidence.rows);
                let traits = self.traits(&evidence.rows);
                let outputs = (&evidence.items_left_out, &conform);
                let kinds = kinds.map(|kinds| kinds.select(&evidence.rows));
                let kinds = (kinds, fitted.map.per_kind.is_some());
                let residuals =
                    residuals::examine(&seen_pairs, outputs, kinds, &traits, parameters.seed, progress)?;
                finding = residuals.finding;
                let sigma_evidence =
                    Evidence { small_kind: residuals.small_kind.as_deref(), ..sigma_evidence };
                let learned = uncertainty_fit::fit(&seen_pairs, sigma_evidence, parameters.seed, progress)?;
                differing = WorstFirst::measured(&seen_pairs, &learned.left_out);
                let handicap = self.left_out_handicap(evidence, &conform, &learned.calibration)?;
                let error = learned.calibration.calibration.mean_squared_error;
                let without = fitted.without.as_deref();
                let choice = self.choose_fusion(candidate, (without, made), &conform, error)?;
                (fusion, fusion_choice) = choice.unzip();
                (learned.uncertainty, Some(learned.calibration), handicap)
            }
            // A single pair: the map is right on it and nothing else is known.
            (None, None) => (Uncertainty::Constant { variance: 1.0 }, None, None),
        };
        let choices = (candidate.method, parameters.seed, fitted.choices);
        let mut adapter = adapter(pairs, choices, fitted.map, conform, uncertainty);
        adapter.handicap = handicap.as_ref().map_or(0.0, HandicapChoice::handicap);
        adapter.fusion = fusion;
        Ok(Finished { adapter, calibration, handicap, fusion: fusion_choice, finding, differing })
    }

    /// Returns the traits of the pairs `rows` beside their vectors; their labels and their place where no
    /// others are given.
    fn traits(&self, rows: &[usize]) -> Vec<Trait> {
        let traits = &self.parameters.traits;
        if !traits.is_empty() {
            return traits
                .iter()
                .filter(|of| of.len() == self.pairs.len())
                .map(|of| of.select(rows))
                .collect();
        }
        let name = |label: i64| (label >= 0).then(|| label.to_string());
        let labels = self
            .pairs
            .labels()
            .map(|labels| Trait::names("label", rows.iter().map(|&row| name(labels[row])).collect()));
        let places = Trait::numbers("place among the pairs", rows.iter().map(|&row| row as f64).collect());
        labels.into_iter().chain([places]).collect()
    }

    /// Chooses the handicap that serves best on the pairs, with items left out and (where there is that
    /// evidence) with classes left out as well: a gallery holds both. Copies are no part of it. `None` for a
    /// handful of pairs.
    fn left_out_handicap(
        &self,
        evidence: &OwnEvidence,
        geometry: &Geometry,
        calibration: &SigmaQuality,
    ) -> Result<Option<HandicapChoice>> {
        let Self { parameters, progress, .. } = *self;
        let rows = rehang_core::copies::originals(&parameters.first_copies(self.pairs));
        let mut places = shuffled(evidence.rows.len(), parameters.seed);
        places.retain(|&place| rows.binary_search(&evidence.rows[place]).is_ok());
        if places.len() < HANDICAP_ITEMS.0 {
            return Ok(None);
        }
        places.truncate(HANDICAP_ITEMS.1);
        let items: Vec<usize> = places.iter().map(|&place| evidence.rows[place]).collect();
        let pairs = self.pairs.select(&items);
        let native = pairs.new_vectors();
        let criterion = Criterion::by_answers(parameters, self.pairs, &items)
            .unwrap_or_else(|| Criterion::by_agreement(parameters.queries.as_ref()));
        let to_native = Gallery::distances(&criterion, native)?;
        let gallery = |raw: &Matrix| {
            let adapted = geometry.conformed(raw.select(&places));
            Gallery::new(&criterion, native, adapted, to_native.as_ref())
        };
        let raw = [Some(&evidence.items_left_out), evidence.groups_left_out.as_ref()];
        let galleries = raw.into_iter().flatten().map(gallery).collect::<Result<Vec<_>>>()?;
        let error = calibration.calibration.mean_squared_error;
        let whole_error = handicap::whole(native.matrix(), native.space().distance, error);
        // The items were drawn in random order already.
        let order: Vec<usize> = (0..places.len()).collect();
        handicap::fit(&galleries, &order, whole_error, progress).map(Some)
    }

    fn cross_fitted(
        &self,
        candidate: &Candidate<'_>,
        without: Option<&dyn LeavesOut>,
    ) -> Result<OwnEvidence> {
        let Self { pairs, groups, parameters, progress, .. } = *self;
        let outputs = |fold: &[usize]| {
            if let Some(without) = without {
                return without_folds(without, pairs, fold, progress);
            }
            let fit = |fitted: &Pairs, items: &[usize]| {
                let groups: Vec<i64> = items.iter().map(|&item| groups[item]).collect();
                Ok((candidate.fit)(fitted, &groups, progress)?.map)
            };
            cross_fit(pairs, fold, fit, progress)
        };
        // A slow method is fitted twice more and not five times.
        let k = if candidate.slow { 2 } else { FOLDS }.min(pairs.len());
        let items_left_out = outputs(&folds(pairs.len(), k, parameters.seed))?;
        let fold = group_folds(groups, k, parameters.seed);
        let several = fold.iter().any(|&f| f != fold[0]);
        let groups_left_out = if candidate.slow || !several { None } else { Some(outputs(&fold)?) };
        Ok(OwnEvidence { rows: (0..pairs.len()).collect(), items_left_out, groups_left_out })
    }
}

/// Makes an adapter without a handicap, and the record of how it was made: by which method, with which seed
/// and choices.
pub(crate) fn adapter(
    pairs: &Pairs,
    (method, seed, hyper_parameters): (Method, u64, BTreeMap<String, String>),
    map: Map,
    geometry: Geometry,
    uncertainty: Uncertainty,
) -> Adapter {
    let (old, new) = (pairs.old(), pairs.new_vectors());
    Adapter {
        geometry,
        input_statistics: Some(InputStatistics::from_rows(old.matrix())),
        training: Training {
            pairs_sketch: Some(RowSketch::from_rows(old.matrix())),
            ..training(pairs, method, seed, hyper_parameters)
        },
        ..Adapter::new(old.space().clone(), new.space().clone(), map, uncertainty)
    }
}

/// Records how something was made of pairs.
pub(crate) fn training(
    pairs: &Pairs,
    method: Method,
    seed: u64,
    hyper_parameters: BTreeMap<String, String>,
) -> Training {
    let (old, new) = (pairs.old().matrix(), pairs.new_vectors().matrix());
    let inputs = [("old", old.fingerprint()), ("new", new.fingerprint())];
    Training {
        method: method.name().into(),
        seed,
        pairs: pairs.len(),
        inputs: inputs.into_iter().map(|(role, print)| (role.to_owned(), print)).collect(),
        hyper_parameters,
        version: env!("CARGO_PKG_VERSION").into(),
        pairs_sketch: None,
        halves: false,
    }
}
