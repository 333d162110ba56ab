//! Compares methods and keeps the one that serves best. Every candidate is fitted on a part of the pairs,
//! several times over. Its outputs for the rest are measured as they would be served: with its own handicap,
//! in the default order.

use std::collections::BTreeMap;

use rayon::prelude::*;
use rehang_core::adapter::{Geometry, true_errors};
use rehang_core::curve::Distances;
use rehang_core::finding::{Finding, FindingCode};
use rehang_core::statistics::{SigmaQuality, mean_sd};
use rehang_core::{Adapter, Head, Matrix, Pairs, Progress, Result, distinct};
use serde::{Deserialize, Serialize};

use crate::candidate::{Candidate, FittedMap};
use crate::folds::{LeftOut, folds, hold_out, parted, shuffled};
use crate::geometry::{self, GeometryKind};
use crate::guards;
use crate::handicap;
use crate::left_out::LeavesOut;
use crate::lower_bounds::{HeldOutGallery, mean};
use crate::method::Method;
use crate::objectives::squared::relative_error;
use crate::parameters::FitParameters;
use crate::pseudo_classes::centroid_head;
use crate::retrieval::{Criterion, Gallery};
use crate::task::Task;
use crate::uncertainty_fit::sharpened;
use crate::within::{duration_text, while_it_lasts};

/// Part of the pairs (and of the classes) that is held out while methods are compared; the map that is kept
/// is fitted on all.
const HELD_OUT_IN_SPLIT: f64 = 0.2;
/// Smallest number of classes that are left out of a split.
const CLASSES_LEFT_OUT_MIN: f64 = 2.0;

/// Multiplications in a second, by which it is estimated how long a fit takes: about what two cores do.
const MULTIPLICATIONS_A_SECOND: f64 = 3.3e11;

/// Number of splits: how often another part is held out.
const SPLITS: u64 = 5;
/// Largest number of held-out items of known classes that are measured, and of left-out ones. More would
/// change no choice and cost time by their square.
const PART_ITEMS_MAX: usize = 750;
/// Number of items that a handicap is chosen on while maps are compared, where there are as many.
const ITEMS_SURE: usize = 1000;
/// Smallest number of items to fit on, and of held-out ones; below it nothing is compared.
const ITEMS_MIN: usize = 20;

/// One method in the table of a selection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SelectionRow {
    /// Method of the row.
    pub method: Method,
    /// Way in which the outputs conform to the new space.
    pub geometry: Option<GeometryKind>,
    /// Squared error on held-out pairs as a part of the new vectors' variance.
    pub relative_error: f64,
    /// Quality by the criterion with every held-out vector adapted, percent.
    pub start: f64,
    /// Quality by the criterion as the mean over a growing native part, percent, with the row's own handicap
    /// and in the default order.
    pub area: f64,
    /// Handicap of the row, as a part of the mean squared error.
    pub handicap: f64,
    /// Distance of the row's area behind that of the best row, percent: the mean over the splits that both
    /// took part in.
    pub behind: f64,
    /// Standard error of `behind`; `None` for a single split.
    pub spread: Option<f64>,
    /// Number of splits that the row took part in. A network that is slow to fit is fitted on the first split
    /// alone, unless it leads there.
    pub splits: usize,
    /// Seconds that the fit on the first split took. This is the only number here that differs from run to
    /// run.
    pub seconds: f64,
    /// Reason why the method could not be fitted; the numbers are 0 then.
    pub failure: Option<String>,
}

/// Comparison of methods on held-out pairs.
///
/// The row with the largest mean area is the best one. Among the rows that are no farther behind it than one
/// standard error of the difference, the one with the best start is kept, the simplest of equals. Where only
/// agreement counts, the one with the least squared error is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Selection {
    /// Criterion that `start` and `area` are measured by: `"mAP"` where there are labels, `"nDCG@10"` where
    /// queries have judgements, else `"agreement@10"` with the native gallery; or the metric that was asked
    /// for.
    pub criterion: String,
    /// Number of queries that asked; `None` where held-out items asked for each other.
    pub queries: Option<usize>,
    /// Number of splits: how often another part was held out.
    pub splits: usize,
    /// Numbers of held-out items of the first split: of classes that have pairs, and of classes that have
    /// none.
    pub held_out: (usize, usize),
    /// Quality of old queries in the old gallery, percent: what the gallery gives without any work.
    pub do_nothing: f64,
    /// Quality of new queries in the new gallery, percent: what the end of the upgrade reaches.
    pub native: f64,
    /// Rows, one for each method and geometry, in the order they were tried, the simplest first.
    pub rows: Vec<SelectionRow>,
    /// Place of the row with the largest area of those that could be kept.
    pub best: Option<usize>,
    /// Place of the row that was kept.
    pub kept: Option<usize>,
}

/// Outcome of [`Task::compare`]: the table, and what was learned on the way.
#[derive(Default)]
pub(crate) struct Compared {
    /// Table of the methods; `None` where there are too few pairs for one.
    pub selection: Option<Selection>,
    /// Relative error of every learned map on the held-out items of classes that it has seen. Items of
    /// left-out classes lie so close together that a map may well be farther from them than their own mean
    /// is.
    pub seen_errors: Vec<f64>,
    /// Whether the outputs of any learned map with the [error of the mean](guards::ERROR_OF_THE_MEAN) find
    /// these items' own new vectors ([`guards::finds_own`]).
    pub is_any_found: bool,
    /// Fits on all pairs that were made on the way, by method.
    pub fitted: BTreeMap<Method, FittedMap>,
    /// Outputs of the methods that were fitted anew for each split, from the first split on.
    pub made: BTreeMap<Method, Vec<Made>>,
    /// Quality of the σ² that the named method trains itself, with its map, on the held-out items.
    pub calibration: Option<SigmaQuality>,
}

/// Held-out pairs that form a gallery.
pub(crate) struct Part<'a> {
    pub items: Vec<usize>,
    pub pairs: Pairs,
    /// Criterion by which answers count as found; `None` where labels or judgements tell of other items and
    /// not of these.
    pub criterion: Option<Criterion<'a>>,
    /// Distances to native vectors, which every map's gallery shares ([`Gallery::distances`]).
    pub to_native: Option<Distances>,
}

impl<'a> Part<'a> {
    /// Returns the criterion with the right answers written down.
    pub(crate) fn criterion_given(&self) -> Result<Option<Criterion<'a>>> {
        self.criterion.as_ref().map(|criterion| criterion.with_answers_written_down(&self.pairs)).transpose()
    }
}

/// Some pairs to fit on, and others to measure on.
///
/// Galleries grow by classes that no pair knew. So there are held-out items of classes that were fitted on,
/// and all items of classes that were not (clusters, without labels). Each is a gallery, and both count the
/// same. Where the items ask for each other, none is a copy of another one or of a pair fitted on.
pub(crate) struct Split<'a> {
    pub fitted: Vec<usize>,
    pub held_out: (usize, usize),
    /// Galleries to measure on: items of known classes first, where they are enough.
    pub parts: Vec<Part<'a>>,
    pub has_seen: bool,
    /// Head that the default order looks through: the one that was given, or one of the classes that were
    /// fitted on.
    head: Head,
}

impl Split<'_> {
    /// Says which gallery the part with this place is.
    pub(crate) fn gallery(&self, part: usize) -> HeldOutGallery {
        if part == 0 && self.has_seen { HeldOutGallery::Known } else { HeldOutGallery::LeftOut }
    }

    fn is_measured(&self) -> bool {
        self.parts.iter().any(|part| part.criterion.is_some())
    }
}

/// Returns the criterion that splits are measured by, which gives the metric its name. With its right answers
/// [written down](Part::criterion_given) it has another name.
pub(crate) fn first_criterion<'s>(splits: &'s [Split<'_>]) -> Option<&'s Criterion<'s>> {
    splits.iter().flat_map(|split| &split.parts).find_map(|part| part.criterion.as_ref())
}

/// A held-out part as a gallery, and the orders that it is measured in.
struct Measurable<'s> {
    gallery: Gallery<'s>,
    /// Random order for the choice of the handicap, which serves every order.
    shuffled: Vec<usize>,
    /// Default order.
    order: Vec<usize>,
}

/// Held-out pairs of one split as one geometry of a map serves them.
struct Served<'s> {
    kind: Option<GeometryKind>,
    /// Relative error of every part.
    errors: Vec<f64>,
    /// Mean squared error in the unit of the distance, which handicaps are parts of.
    whole_error: f64,
    parts: Vec<Measurable<'s>>,
}

impl Served<'_> {
    fn items(&self) -> usize {
        self.parts.iter().map(|part| part.order.len()).sum()
    }

    /// Measures the start, and the area of every part, with a part of the mean squared error as the handicap.
    fn quality(
        &self,
        order: for<'m> fn(&'m Measurable<'_>) -> &'m [usize],
        handicap: f64,
    ) -> Result<(f64, Vec<f64>)> {
        let (mut starts, mut areas) = (Vec::new(), Vec::new());
        for part in &self.parts {
            let curve = part.gallery.curve(order(part), handicap * self.whole_error)?;
            let line = &curve.lines[part.gallery.criterion.metric];
            starts.push(line.start());
            areas.push(line.area());
        }
        Ok((mean(&starts), areas))
    }
}

/// A row with its areas, split by split.
struct Measured {
    row: SelectionRow,
    areas: Vec<f64>,
}

impl Task<'_> {
    /// Fits every candidate on a part of the pairs and measures it on the rest.
    pub(crate) fn compare(&self, candidates: &[&Candidate<'_>]) -> Result<Compared> {
        let parameters = self.parameters;
        let splits = self.splits(HELD_OUT_IN_SPLIT)?;
        let (Some(first), Some(criterion)) = (splits.first(), first_criterion(&splits)) else {
            return Ok(Compared::default());
        };
        let line = |quality: &dyn Fn(&Criterion<'_>, &Pairs) -> Result<f64>| -> Result<f64> {
            let of_split = |split: &Split<'_>| {
                let of_part = |part: &Part<'_>| Some(quality(part.criterion.as_ref()?, &part.pairs));
                Ok(mean(&split.parts.iter().filter_map(of_part).collect::<Result<Vec<f64>>>()?))
            };
            Ok(mean(&splits.iter().map(of_split).collect::<Result<Vec<f64>>>()?))
        };
        let mut compared = Compared::default();
        let mut measured: Vec<Measured> = Vec::new();
        let needed = |candidate: &Candidate<'_>| candidate.cost.map(|cost| cost / MULTIPLICATIONS_A_SECOND);
        for (at, candidate) in candidates.iter().enumerate() {
            self.progress.check()?;
            // Methods to come are named from the first one on, so that nobody is surprised by the last.
            let text =
                |which: &Candidate<'_>| Some(format!("{} {}", which.method, duration_text(needed(which)?)));
            let of_this = needed(candidate)
                .map_or_else(String::new, |time| format!(", {} if it is kept", duration_text(time)));
            let to_come: Vec<String> = candidates[at + 1..].iter().filter_map(|which| text(which)).collect();
            let to_come = if to_come.is_empty() {
                String::new()
            } else {
                format!("; then, if kept, {}", to_come.join(", "))
            };
            self.progress.begin(format!("fitting {}{of_this}{to_come}", candidate.method), "", 0);
            let needed = needed(candidate);
            // One method has to be kept, and a method that is asked for by name is.
            let is_sure =
                [parameters.method, Method::DoNothing, Method::Procrustes].contains(&candidate.method);
            let time_left = self.deadline.left().filter(|_| !is_sure);
            let mut seconds = 0.0;
            let rows = while_it_lasts(candidate.method, (time_left, needed), self.progress, |progress| {
                let task = Task { progress, ..*self };
                let started = rehang_clock::now();
                let outputs = task.outputs_of(candidate, &splits);
                let splits_made = outputs.as_ref().map_or(1, |(outputs, _)| outputs.len());
                seconds = started.elapsed().as_secs_f64() / splits_made as f64;
                let (mut outputs, on_all) = outputs?;
                let may_be_kept = [Method::Auto, candidate.method].contains(&parameters.method);
                compared
                    .fitted
                    .extend(on_all.filter(|_| may_be_kept).map(|fitted| (candidate.method, fitted)));
                let later_outputs = outputs.split_off(1);
                let mut first_outputs = outputs.remove(0);
                let mut served = vec![serve(&first_outputs, self.pairs, first, parameters)?];
                if first.has_seen
                    && candidate.method != Method::DoNothing
                    && let Some(&error) = served[0].first().and_then(|served| served.errors.first())
                {
                    compared.seen_errors.push(error);
                    // Distances to all new vectors are computed only where the error leaves the question open.
                    if error >= guards::ERROR_OF_THE_MEAN && !compared.is_any_found {
                        let new = first.parts[0].pairs.new_vectors().matrix();
                        compared.is_any_found = guards::finds_own(&first_outputs.raw[0], new)?;
                    }
                }
                // A σ² that is trained with its map is measured here, since no out-of-fold residuals are made
                // for it.
                let has_own_sigma =
                    |fitted: &mut FittedMap| fitted.uncertainty.is_some() && fitted.geometry.is_some();
                if candidate.method == parameters.method
                    && let Some(fitted) = first_outputs.fitted.take_if(has_own_sigma)
                {
                    compared.calibration = Some(task.calibration(candidate, fitted, first)?);
                }
                let mut rows = rows(&served, candidate.method, seconds)?;
                let lead = |rows: &[Measured]| {
                    rows.iter().filter_map(|row| row.areas.first()).copied().fold(f64::NEG_INFINITY, f64::max)
                };
                let mut outputs_by_split = vec![first_outputs];
                if !candidate.slow || lead(&rows) > lead(&measured) {
                    let mut later_outputs = later_outputs.into_iter();
                    for split in &splits[1..] {
                        progress.check()?;
                        let outputs = later_outputs.next();
                        outputs_by_split
                            .push(outputs.map_or_else(|| task.made_by_map(candidate, split), Ok)?);
                    }
                    let later = outputs_by_split[1..].par_iter().zip(&splits[1..]);
                    let serve = |(outputs, split)| serve(outputs, self.pairs, split, parameters);
                    served.extend(later.map(serve).collect::<Result<Vec<_>>>()?);
                    rows = self::rows(&served, candidate.method, seconds)?;
                }
                if may_be_kept && !candidate.leaves_out {
                    let for_fusion = |outputs: Made| outputs.for_fusion(parameters);
                    let outputs_by_split = outputs_by_split.into_iter().map(for_fusion).collect();
                    compared.made.insert(candidate.method, outputs_by_split);
                }
                Ok(rows)
            });
            match rows {
                Ok(rows) => measured.extend(rows),
                Err(error) if error.is_cancelled() => return Err(error),
                Err(error) => {
                    let failure = Some(error.to_string());
                    let row = SelectionRow { seconds, failure, ..empty(candidate.method) };
                    measured.push(Measured { row, areas: Vec::new() });
                }
            }
        }
        let tie = if criterion.is_agreement() { Tie::LeastError } else { Tie::BestStart };
        let (best_place, kept_place) = choose(&mut measured, parameters.method, tie);
        compared.selection = Some(Selection {
            criterion: criterion.name(),
            queries: parameters.queries.as_ref().map(|queries| queries.new.rows()),
            splits: splits.len(),
            held_out: first.held_out,
            do_nothing: line(&|criterion, pairs| criterion.old(pairs))?,
            native: line(&|criterion, pairs| criterion.native(pairs))?,
            rows: measured.into_iter().map(|measured| measured.row).collect(),
            best: best_place,
            kept: kept_place,
        });
        Ok(compared)
    }

    /// Splits the pairs: each time another part of the items and of the classes is held out. All splits are
    /// measured alike, so that their mean means one thing: by label or judgement where any of them can be, by
    /// agreement where none can.
    pub(crate) fn splits(&self, part_held_out: f64) -> Result<Vec<Split<'_>>> {
        let Self { pairs, parameters, .. } = *self;
        let first = parameters.first_copies(pairs);
        let rows = rehang_core::copies::originals(&first);
        let groups = self.groups_of(&rows);
        let mut splits = Vec::new();
        for number in 0..SPLITS {
            let seed = parameters.seed.wrapping_add(number);
            let parts = hold_out(rows.len(), Some(&groups), part_held_out, seed);
            let [firsts, seen, unseen] = [parts.fitted, parts.seen, parts.unseen]
                .map(|places| places.into_iter().map(|place| rows[place]).collect::<Vec<_>>());
            // A map is fitted on pairs as often as they are there; copies of held-out ones are in no part.
            let is_fitted = |&pair: &usize| firsts.binary_search(&first[pair]).is_ok();
            let fitted: Vec<usize> = (0..pairs.len()).filter(is_fitted).collect();
            let part = |items: &[usize]| {
                let items = sampled(items, seed);
                let criterion = Criterion::by_answers(parameters, pairs, &items);
                (items.len() >= ITEMS_MIN).then(|| Part {
                    pairs: pairs.select(&items),
                    items,
                    criterion,
                    to_native: None,
                })
            };
            let (seen_part, unseen_part) = (part(&seen), part(&unseen));
            if fitted.len() < ITEMS_MIN || (seen_part.is_none() && unseen_part.is_none()) {
                continue;
            }
            let native = || pairs.new_vectors().matrix().select(&fitted);
            let head = self.head.map_or_else(
                || centroid_head(&native(), &self.groups_of(&fitted)),
                |head| Ok(head.clone()),
            )?;
            splits.push(Split {
                held_out: (seen.len(), unseen.len()),
                fitted,
                has_seen: seen_part.is_some(),
                parts: seen_part.into_iter().chain(unseen_part).collect(),
                head,
            });
        }
        if splits.iter().any(Split::is_measured) {
            splits.retain(Split::is_measured);
        } else {
            for part in splits.iter_mut().flat_map(|split| &mut split.parts) {
                part.criterion = Some(Criterion::by_agreement(parameters.queries.as_ref()));
            }
        }
        for part in splits.iter_mut().flat_map(|split| &mut split.parts) {
            let Some(criterion) = &part.criterion else { continue };
            part.to_native = Gallery::distances(criterion, part.pairs.new_vectors())?;
        }
        Ok(splits)
    }

    fn fit_split(&self, candidate: &Candidate<'_>, split: &Split<'_>) -> Result<FittedMap> {
        let groups = self.groups_of(&split.fitted);
        (candidate.fit)(&self.pairs.select(&split.fitted), &groups, self.progress)
    }

    /// Makes a method's outputs for the held-out pairs of the first split. Where one fit on all pairs tells
    /// what it would give without some, it makes them for every split, and returns that fit.
    fn outputs_of(
        &self,
        candidate: &Candidate<'_>,
        splits: &[Split<'_>],
    ) -> Result<(Vec<Made>, Option<FittedMap>)> {
        if !candidate.leaves_out {
            return Ok((vec![self.made_by_map(candidate, &splits[0])?], None));
        }
        let fitted = (candidate.fit)(self.pairs, self.groups, self.progress)?;
        let without = fitted.without.as_ref().expect("a fit that leaves out says what is left");
        let outputs = self.made_without(without.as_ref(), splits)?;
        Ok((outputs, Some(fitted)))
    }

    /// Makes the outputs that a fit on all pairs would give for the held-out pairs of every split, without
    /// having seen them.
    pub(crate) fn made_without(&self, without: &dyn LeavesOut, splits: &[Split<'_>]) -> Result<Vec<Made>> {
        let left_out = |split: &Split<'_>| LeftOut {
            fitted: split.fitted.clone(),
            asked: split.parts.iter().flat_map(|part| part.items.iter().copied()).collect(),
        };
        let outputs =
            without.outputs(self.pairs, &splits.iter().map(left_out).collect::<Vec<_>>(), self.progress)?;
        let of_split = |(outputs, split): (Matrix, &Split<'_>)| {
            let mut first = 0;
            let raw = split.parts.iter().map(|part| {
                let rows: Vec<usize> = (first..first + part.items.len()).collect();
                first += part.items.len();
                outputs.select(&rows)
            });
            Made { raw: raw.collect(), fitted: None }
        };
        Ok(outputs.into_iter().zip(splits).map(of_split).collect())
    }

    pub(crate) fn made_by_map(&self, candidate: &Candidate<'_>, split: &Split<'_>) -> Result<Made> {
        let fitted = self.fit_split(candidate, split)?;
        let raw = |part: &Part<'_>| fitted.map.outputs(part.pairs.old().matrix(), part.pairs.side());
        let raw = split.parts.iter().map(raw).collect::<Result<_>>()?;
        Ok(Made { raw, fitted: Some(fitted) })
    }

    fn groups_of(&self, items: &[usize]) -> Vec<i64> {
        items.iter().map(|&item| self.groups[item]).collect()
    }

    /// Measures how good a map's own σ² is on held-out items.
    fn calibration(
        &self,
        candidate: &Candidate<'_>,
        fitted: FittedMap,
        split: &Split<'_>,
    ) -> Result<SigmaQuality> {
        let pairs = self.pairs.select(&split.fitted);
        let groups = self.groups_of(&split.fitted);
        let kinds = self.kinds.map(|kinds| kinds.select(&split.fitted));
        let part = Task { pairs: &pairs, groups: &groups, kinds: kinds.as_ref(), ..*self };
        let kind = GeometryKind::options(pairs.new_vectors().space())[0];
        let adapter = part.finish(candidate, fitted, kind, Vec::new())?.adapter;
        calibration_of(&adapter, split)
    }
}

/// Samples the held-out items that are measured.
fn sampled(items: &[usize], seed: u64) -> Vec<usize> {
    let (sample, _) = parted(&folds(items.len(), items.len().div_ceil(PART_ITEMS_MAX), seed), 0);
    sample.into_iter().map(|place| items[place]).collect()
}

/// Compares an adapter's own σ² with its errors on the held-out items.
fn calibration_of(adapter: &Adapter, split: &Split<'_>) -> Result<SigmaQuality> {
    let (mut predicted, mut actual) = (Vec::new(), Vec::new());
    for part in &split.parts {
        let side = part.pairs.side().filter(|_| adapter.side_dimension().is_some());
        let adapted = rehang_core::adapter::apply(adapter, part.pairs.old(), side, &Progress::default())?;
        predicted.extend(adapted.variance.iter().map(|&variance| f64::from(variance)));
        actual.extend(true_errors(part.pairs.new_vectors().matrix(), adapted.vectors.matrix()));
    }
    SigmaQuality::compare(&predicted, &actual)
}

/// Outputs of a method for the held-out pairs of a split.
pub(crate) struct Made {
    /// Raw outputs of every part.
    pub raw: Vec<Matrix>,
    /// Map behind the outputs; `None` where they were to be had without one.
    pub fitted: Option<FittedMap>,
}

impl Made {
    /// Keeps what the choice of a fusion asks for: the outputs, and the map where others are mapped by it.
    fn for_fusion(mut self, parameters: &FitParameters) -> Self {
        self.fitted = self.fitted.filter(|_| parameters.others.is_some());
        if let Some(fitted) = &mut self.fitted {
            (fitted.evidence, fitted.uncertainty, fitted.without) = (None, None, None);
        }
        self
    }
}

/// Serves raw outputs for a split's held-out pairs: with the method's own geometry, or with every one that is
/// open to it.
fn serve<'s>(
    outputs: &Made,
    pairs: &Pairs,
    split: &'s Split<'_>,
    parameters: &FitParameters,
) -> Result<Vec<Served<'s>>> {
    let own_geometry = outputs.fitted.as_ref().and_then(|fitted| fitted.geometry.as_ref());
    // Lengths come from the vectors that were fitted on, since the fit does not know the lengths of held-out
    // vectors.
    let fitted_pairs = pairs.select(&split.fitted);
    let fitted_vectors = fitted_pairs.new_vectors();
    let kinds: Vec<Option<GeometryKind>> = match (own_geometry, parameters.geometry) {
        (Some(_), _) => vec![None],
        (None, Some(kind)) => vec![Some(kind)],
        (None, None) => GeometryKind::options(fitted_vectors.space()).iter().copied().map(Some).collect(),
    };
    let served = |kind: Option<GeometryKind>| {
        let mut served = Served { kind, errors: Vec::new(), whole_error: 0.0, parts: Vec::new() };
        let mut head = None;
        for (part, raw) in split.parts.iter().zip(&outputs.raw) {
            let fitted_geometry = kind.map(|kind| geometry::fit(kind, raw, fitted_vectors));
            let geometry = fitted_geometry.as_ref().or(own_geometry).unwrap_or(&Geometry::Raw);
            let adapted = geometry.conformed(raw.clone());
            adapted.check_finite("adapted vectors")?;
            let native = part.pairs.new_vectors();
            served.errors.push(relative_error(&adapted, &part.pairs));
            // An adapter knows errors by items of known classes, which are the first part; so does this.
            if head.is_none() {
                let error = mean(&true_errors(native.matrix(), &adapted));
                served.whole_error = handicap::whole(native.matrix(), native.space().distance, error);
                head = Some(sharpened(&split.head, &adapted, native.matrix())?);
            }
            let (Some(criterion), Some(head)) = (&part.criterion, &head) else { continue };
            let gallery = Gallery::new(criterion, native, adapted, part.to_native.as_ref())?;
            let order = gallery.default_order(head, parameters.seed)?;
            let shuffled = shuffled(native.len(), parameters.seed);
            served.parts.push(Measurable { gallery, shuffled, order });
        }
        Ok(served)
    };
    kinds.into_iter().map(served).collect()
}

/// Makes the rows of a method, one a geometry, from its outputs in each split.
fn rows(splits: &[Vec<Served<'_>>], method: Method, seconds: f64) -> Result<Vec<Measured>> {
    let row = |place: usize| {
        let served: Vec<&Served<'_>> = splits.iter().map(|split| &split[place]).collect();
        // As many splits as make the handicap sure; choosing it costs more than all the rest.
        let sure = ITEMS_SURE.div_ceil(served[0].items().max(1)).min(served.len());
        let areas_at = |part: f64| {
            let areas = |served: &&Served<'_>| Ok(served.quality(|part| &part.shuffled, part)?.1);
            let of_split = served[..sure].iter().map(areas).collect::<Result<Vec<Vec<f64>>>>()?;
            let sets = of_split.iter().map(Vec::len).min().unwrap_or(0);
            let of_set = |set: usize| mean(&of_split.iter().map(|areas| areas[set]).collect::<Vec<_>>());
            Ok((part, (0..sets).map(of_set).collect::<Vec<f64>>()))
        };
        let (tried, kept_place) = handicap::search(areas_at, |(_, areas)| areas)?;
        let part = tried[kept_place].0;
        let (mut starts, mut areas) = (Vec::new(), Vec::new());
        for served in &served {
            let (start, of_sets) = served.quality(|part| &part.order, part)?;
            starts.push(start);
            areas.push(mean(&of_sets));
        }
        let row = SelectionRow {
            geometry: served[0].kind,
            relative_error: mean(&served.iter().map(|served| mean(&served.errors)).collect::<Vec<_>>()),
            start: mean(&starts),
            area: mean(&areas),
            handicap: part,
            splits: areas.len(),
            seconds,
            ..empty(method)
        };
        Ok(Measured { row, areas })
    };
    (0..splits[0].len()).map(row).collect()
}

/// Rule for the row that is kept among those within the spread of the best.
#[derive(Clone, Copy)]
enum Tie {
    /// Row that serves best at the switch, which people meet first; the simplest of equals.
    BestStart,
    /// Row whose vectors are nearest to the native ones. Agreement looks at ten of them, and is the same for
    /// maps that labels tell apart by points.
    LeastError,
}

/// Chooses the best row, and the one to keep, of those that could be kept. It also notes how far every row is
/// behind the best of all.
fn choose(measured: &mut [Measured], method: Method, tie: Tie) -> (Option<usize>, Option<usize>) {
    let behind = |row: &Measured, best: &Measured| {
        let differences: Vec<f64> =
            row.areas.iter().zip(&best.areas).map(|(area, best)| best - area).collect();
        let spread = mean_sd(&differences);
        let error =
            spread.filter(|spread| spread.count > 1).map(|spread| spread.sd / (spread.count as f64).sqrt());
        (spread.map_or(0.0, |spread| spread.mean), error)
    };
    // A row with fewer splits lost on the first: it is kept only where its method is asked for.
    let best_of = |wanted: &dyn Fn(&Measured) -> bool| {
        let splits = |row: &Measured| if wanted(row) { row.areas.len() } else { 0 };
        let most = measured.iter().map(splits).max().unwrap_or(0);
        let full: Vec<usize> =
            (0..measured.len()).filter(|&row| most > 0 && splits(&measured[row]) == most).collect();
        // The first of equals is the simplest.
        let best = full
            .iter()
            .copied()
            .reduce(|best, row| if measured[row].row.area > measured[best].row.area { row } else { best });
        (best, full)
    };
    let (best_of_all, _) = best_of(&|_| true);
    let (best, open) = best_of(&|row| method == Method::Auto || row.row.method == method);
    let within = |row: usize, best: usize| {
        let (behind, spread) = behind(&measured[row], &measured[best]);
        row == best || behind <= spread.unwrap_or(0.0)
    };
    let error = |row: usize| measured[row].row.relative_error;
    let start = |row: usize| measured[row].row.start;
    let kept_place = best.and_then(|best| {
        open.into_iter().filter(|&row| within(row, best)).reduce(|row_so_far, row| match tie {
            Tie::LeastError if error(row) < error(row_so_far) => row,
            Tie::BestStart if start(row) > start(row_so_far) => row,
            Tie::LeastError | Tie::BestStart => row_so_far,
        })
    });
    if let Some(best) = best_of_all {
        let all: Vec<(f64, Option<f64>)> = measured.iter().map(|row| behind(row, &measured[best])).collect();
        for (measured, (behind, spread)) in measured.iter_mut().zip(all) {
            (measured.row.behind, measured.row.spread) = (behind, spread);
        }
    }
    (best, kept_place)
}

fn empty(method: Method) -> SelectionRow {
    SelectionRow {
        method,
        geometry: None,
        relative_error: 0.0,
        start: 0.0,
        area: 0.0,
        handicap: 0.0,
        behind: 0.0,
        spread: None,
        splits: 0,
        seconds: 0.0,
        failure: None,
    }
}

/// Says in words what the table shows: a named method that loses, a switch that has to wait, lengths that
/// were left alone.
pub(crate) fn selection_findings(selection: &Selection, method: Method) -> Vec<Finding> {
    let mut findings = Vec::new();
    let Some(kept_row) = selection.kept.map(|place| &selection.rows[place]) else { return findings };
    let criterion = &selection.criterion;
    let best = selection
        .rows
        .iter()
        .filter(|row| row.failure.is_none() && row.splits >= kept_row.splits)
        .reduce(|best, row| if row.area > best.area { row } else { best });
    if let Some(best) = best
        && method != Method::Auto
        && best.area > kept_row.area
        && best.method != kept_row.method
    {
        let message = format!(
            "{} does better than {} on held-out pairs ({criterion} {:.1} against {:.1} over the upgrade).",
            best.method, kept_row.method, best.area, kept_row.area
        );
        let evidence = [("best", best.area), ("kept", kept_row.area)];
        findings.push(Finding::warning(FindingCode::BetterMethod, message).evidence(&evidence));
    }
    let learned = |row: &&SelectionRow| row.method != Method::DoNothing && row.failure.is_none();
    if method == Method::Auto
        && kept_row.method == Method::DoNothing
        && selection.rows.iter().any(|row| learned(&row))
    {
        let message = "No learned map does better than the old vectors as they are; old vectors are kept.";
        let finding = Finding::warning(FindingCode::DoNothingWins, message);
        findings.push(finding.evidence(&[("kept", kept_row.area)]));
    }
    findings.extend(guards::gain(&guards::CurveSummary {
        measure: format!("{criterion} on held-out pairs"),
        do_nothing: selection.do_nothing,
        start: kept_row.start,
        area: kept_row.area,
        minimum: kept_row.start,
        end: selection.native,
    }));
    findings
}

impl Task<'_> {
    /// Splits the pairs so that a bridge or a fusion has to prove itself on known and on left-out classes. At
    /// least two classes are left out: items of one alone tell no ranking from another.
    pub(crate) fn splits_of_both(&self) -> Result<Vec<Split<'_>>> {
        self.splits(self.held_out_of_both())
    }

    fn held_out_of_both(&self) -> f64 {
        let classes = distinct(self.groups.iter().copied()).len().max(1) as f64;
        HELD_OUT_IN_SPLIT.max((CLASSES_LEFT_OUT_MIN / classes).next_up()).min(0.5)
    }

    /// Returns whether [`Task::splits_of_both`] are the splits that methods are compared by.
    pub(crate) fn is_compared_by_both(&self) -> bool {
        self.held_out_of_both() <= HELD_OUT_IN_SPLIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::candidate::closed_form_candidates;
    use crate::tests::test_data::{pairs as make, random_matrix};

    fn row(method: Method, areas: &[f64]) -> Measured {
        let row = SelectionRow { area: mean(areas), splits: areas.len(), ..empty(method) };
        Measured { row, areas: areas.to_vec() }
    }

    #[test]
    fn within_the_spread_the_simpler_map_is_kept() {
        // The simpler row is 0.2 behind on average; the standard error of the five differences is 0.34 with
        // the first areas, and 0.02 with the others.
        let best = [70.0, 71.0, 69.0, 72.0, 68.0];
        let (wavering, steady) = ([69.0, 71.6, 69.6, 70.8, 68.0], [69.8, 70.75, 68.85, 71.8, 67.8]);
        for (simple, is_kept) in [(wavering, true), (steady, false)] {
            let mut rows = [row(Method::Ridge, &simple), row(Method::KernelRidge, &best)];
            let (first, kept_place) = choose(&mut rows, Method::Auto, Tie::BestStart);
            assert_eq!((first, kept_place), (Some(1), Some(usize::from(!is_kept))), "{:?}", rows[0].row);
            assert!((rows[0].row.behind - 0.2).abs() < 0.01 && rows[1].row.behind == 0.0);
            // Naming a method keeps its row.
            assert_eq!(choose(&mut rows, Method::KernelRidge, Tie::BestStart).1, Some(1));
            assert_eq!(choose(&mut rows, Method::Ridge, Tie::BestStart).1, Some(0));
        }
    }

    #[test]
    fn within_the_spread_the_best_start_is_kept() {
        let mut rows = [[69.0, 71.6], [70.0, 71.0], [60.0, 61.0]].map(|areas| row(Method::Ridge, &areas));
        for (row, start) in rows.iter_mut().zip([63.0, 64.6, 70.0]) {
            row.row.start = start;
        }
        assert_eq!(choose(&mut rows, Method::Auto, Tie::BestStart), (Some(1), Some(1)));
        rows[0].row.start = 65.0;
        assert_eq!(choose(&mut rows, Method::Auto, Tie::BestStart), (Some(1), Some(0)));
    }

    #[test]
    fn within_the_spread_of_agreement_the_least_error_is_kept() {
        let mut rows =
            [[69.0, 71.6], [70.0, 71.0], [70.2, 70.4], [60.0, 61.0]].map(|areas| row(Method::Ridge, &areas));
        for (row, error) in rows.iter_mut().zip([0.6, 0.4, 0.5, 0.1]) {
            row.row.relative_error = error;
        }
        assert_eq!(choose(&mut rows, Method::Auto, Tie::BestStart), (Some(1), Some(0)));
        assert_eq!(choose(&mut rows, Method::Auto, Tie::LeastError), (Some(1), Some(1)));
        rows[2].row.relative_error = 0.3;
        assert_eq!(choose(&mut rows, Method::Auto, Tie::LeastError), (Some(1), Some(2)));
    }

    #[test]
    fn the_choice_is_that_of_its_definition() {
        for seed in 0..200 {
            let random = random_matrix(6, 5, seed);
            let areas: Vec<Vec<f64>> = (0..6)
                .map(|row| random.row(row).iter().map(|&value| 70.0 + f64::from(value)).collect())
                .collect();
            let mut rows: Vec<Measured> = areas.iter().map(|areas| row(Method::Ridge, areas)).collect();
            let (best, kept_row) = choose(&mut rows, Method::Auto, Tie::BestStart);
            let (best, kept_row) = (best.unwrap(), kept_row.unwrap());
            let behind = |row: usize| {
                let differences: Vec<f64> =
                    (0..5).map(|split| areas[best][split] - areas[row][split]).collect();
                let mean = differences.iter().sum::<f64>() / 5.0;
                let squares: f64 = differences.iter().map(|difference| (difference - mean).powi(2)).sum();
                (mean, (squares / 4.0 / 5.0).sqrt())
            };
            assert!((0..6).all(|row| behind(row).0 >= 0.0));
            for row in 0..6 {
                let (mean, error) = behind(row);
                assert!(
                    row >= kept_row || mean > error,
                    "{row} is simpler than {kept_row} and within the spread"
                );
                assert!(row != kept_row || row == best || mean <= error);
                let table = &rows[row].row;
                assert!((table.behind - mean).abs() < 1e-9 && (table.spread.unwrap() - error).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn what_lost_on_the_first_split_is_kept_only_by_name() {
        let mut rows = [
            row(Method::Ridge, &[70.0, 60.0]),
            Measured {
                row: SelectionRow { failure: Some("no".into()), ..empty(Method::LowRank) },
                areas: vec![],
            },
            row(Method::Fct, &[69.0]),
        ];
        // The last row's mean is the largest, but over another part.
        assert_eq!(choose(&mut rows, Method::Auto, Tie::BestStart), (Some(0), Some(0)));
        assert_eq!(choose(&mut rows, Method::Fct, Tie::BestStart), (Some(2), Some(2)));
        assert_eq!((rows[2].row.behind, rows[2].row.spread), (1.0, None));
        assert_eq!(choose(&mut rows, Method::LowRank, Tie::BestStart), (None, None));
        assert_eq!(choose(&mut [], Method::Auto, Tie::BestStart), (None, None));
    }

    /// Makes vectors of which the old model sees a half, with noise.
    fn half_seen(n: usize, noise_of_old: f32) -> Pairs {
        let centres = random_matrix(30, 24, 1);
        let noise = random_matrix(n, 24, 2);
        let new = Matrix::from_fn(n, 24, |row, axis| centres.row(row % 30)[axis] + noise.row(row)[axis]);
        let wrong = random_matrix(n, 24, 3);
        let old = Matrix::from_fn(n, 24, |row, axis| {
            (if axis < 12 { new.row(row)[axis] } else { 0.0 }) + noise_of_old * wrong.row(row)[axis]
        });
        make(old, new, None)
    }

    #[test]
    fn a_map_wins_with_its_handicap_that_would_lose_without() {
        let pairs = half_seen(700, 0.45);
        let parameters = FitParameters { geometry: Some(GeometryKind::Raw), ..FitParameters::default() };
        let groups =
            crate::pseudo_classes::pseudo_classes(pairs.new_vectors().matrix(), 0, &Progress::default())
                .unwrap();
        let progress = Progress::default();
        let task = Task {
            pairs: &pairs,
            head: None,
            groups: &groups,
            parameters: &parameters,
            kinds: None,
            deadline: crate::within::Deadline::default(),
            progress: &progress,
        };
        let candidates = closed_form_candidates(0);
        let candidate =
            |method: Method| candidates.iter().find(|candidate| candidate.method == method).unwrap();
        let two = [candidate(Method::Procrustes), candidate(Method::Ridge)];
        let selection = task.compare(&two).unwrap().selection.unwrap();
        let (rotation, ridge) = (&selection.rows[0], &selection.rows[1]);
        let splits = task.splits(HELD_OUT_IN_SPLIT).unwrap();
        let [without_rotation, without_ridge] = two.map(|candidate| {
            let (outputs, _) = task.outputs_of(candidate, &splits).unwrap();
            let areas = outputs.iter().zip(&splits).map(|(outputs, split)| {
                let served = serve(outputs, &pairs, split, &parameters).unwrap();
                mean(&served[0].quality(|part| &part.order, 0.0).unwrap().1)
            });
            mean(&areas.collect::<Vec<_>>())
        });
        assert!(without_rotation > without_ridge, "{without_rotation} {without_ridge}");
        assert!(ridge.area > rotation.area && ridge.handicap > 0.0, "{ridge:?} {rotation:?}");
        assert_eq!(selection.kept, Some(1));
    }

    #[test]
    fn copies_are_fitted_on_with_their_first_and_are_not_held_out() {
        let pairs = half_seen(300, 0.3).select(&(0..600).map(|row| row % 300).collect::<Vec<_>>());
        let groups: Vec<i64> = (0..600).map(|row| row % 30).collect();
        let (parameters, progress) = (FitParameters::default(), Progress::default());
        let task = Task {
            pairs: &pairs,
            head: None,
            groups: &groups,
            parameters: &parameters,
            kinds: None,
            deadline: crate::within::Deadline::default(),
            progress: &progress,
        };
        let splits = task.splits(HELD_OUT_IN_SPLIT).unwrap();
        assert!(!splits.is_empty());
        for Split { fitted, parts, .. } in &splits {
            let mut held_out = parts.iter().flat_map(|part| &part.items);
            assert!(held_out.all(|&item| item < 300 && !fitted.contains(&item)));
            assert!(fitted.iter().all(|pair| fitted.contains(&((pair + 300) % 600))));
        }
    }

    #[test]
    fn queries_are_what_maps_are_compared_by_where_there_are_any() {
        let pairs = half_seen(300, 0.3);
        let query_pairs = half_seen(360, 0.3).select(&(300..360).collect::<Vec<_>>());
        let queries = |qrels| crate::FitQueries {
            old: query_pairs.old().matrix().clone(),
            new: query_pairs.new_vectors().matrix().clone(),
            qrels,
        };
        let groups =
            crate::pseudo_classes::pseudo_classes(pairs.new_vectors().matrix(), 0, &Progress::default())
                .unwrap();
        let progress = Progress::default();
        let selected = |parameters: &FitParameters| {
            let task = Task {
                pairs: &pairs,
                head: None,
                groups: &groups,
                parameters,
                kinds: None,
                deadline: crate::within::Deadline::default(),
                progress: &progress,
            };
            let candidates = closed_form_candidates(0);
            task.compare(&candidates.iter().collect::<Vec<_>>()).unwrap().selection.unwrap()
        };
        let by = |qrels| FitParameters { queries: Some(queries(qrels)), ..FitParameters::default() };
        let plain = selected(&FitParameters::default());
        let agreeing = selected(&by(None));
        assert_eq!((plain.queries, agreeing.queries), (None, Some(60)));
        assert_eq!((plain.criterion.as_str(), agreeing.criterion.as_str()), ("agreement@10", "agreement@10"));
        assert_ne!(plain.rows[2].area, agreeing.rows[2].area);
        // The items of a query's own centre are judged right: every thirtieth.
        let judged = (300..360)
            .map(|query| (0..300).filter(|item| item % 30 == query % 30).map(|item| (item, 1.0)).collect());
        let qrels = rehang_core::curve::Qrels::new(judged.collect()).unwrap();
        let judged = selected(&by(Some(qrels)));
        assert_eq!(judged.criterion, "nDCG@10");
        assert!(judged.native > judged.do_nothing && judged.native < 100.0);
    }
}
