//! Chooses how old and adapted distances of one item are put together, by what held-out pairs find.
//!
//! The splits, the galleries and the lower bounds are those of a [bridge](crate::fit_bridge). Among all
//! weights whose every lower bound is no less than 0, so that nothing is below doing nothing, the one with
//! the largest mean gain is kept. Keeping the largest least bound alone, as a bridge is chosen, would give up
//! much of a good map for a little more where it is hardest.
//!
//! By agreement the weight with the largest least bound is kept all the same: agreement grows with every step
//! towards the new model, also where that is the worse one. Where the largest least bound is not far enough
//! above 0 the weight is 0, so that items which are not native rank as they do today. Results:
//! `laboratory/bench/runs/bridge.md`.
//!
//! Where held-out pairs can ask [everything else in the gallery](crate::OtherItems), no more than one standard
//! error is asked of a weight. The weight 1 is one that is tried: its searches are mixed.

use rehang_core::adapter::Geometry;
use rehang_core::curve::{Curve, Distances, Metric};
use rehang_core::{Fusion, Matrix, Result, Vectors};

use crate::candidate::Candidate;
use crate::compare::{Made, Part, Split, first_criterion};
use crate::folds::shuffled;
use crate::fusion_choice::{FusionChoice, FusionRow};
use crate::handicap;
use crate::left_out::LeavesOut;
use crate::lower_bounds::{
    self, Differences, HeldOutGallery, add, error_of_least, gains, is_of_both, mean, names_of,
};
use crate::others::{Asking, Others};
use crate::retrieval::{Criterion, Gallery};
use crate::task::Task;

/// Weights of the adapted distance that are tried, the smallest first.
const WEIGHTS: [f64; 11] = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0];
/// Number of standard errors that the least gain of the best weight has to be above doing nothing. It is not
/// one, since this weight is the best of all that are tried.
const PROVEN_Z: f64 = 3.0;
/// Number of distances that the table of a fusion is made of, about.
const DISTANCES: usize = 200_000;
/// Number of splits in which the handicap is chosen: each try sweeps whole curves.
const HANDICAP_SPLITS: usize = 2;
/// Number of splits in which other items are asked: each fits the map again.
const OTHERS_SPLITS: usize = 3;

/// Distances of queries to items that are not native, by their old vectors and by their adapted ones.
struct Both {
    old: Distances,
    adapted: Distances,
}

impl Both {
    fn fused(&self, fusion: &Fusion) -> Result<Distances> {
        self.old.combined(&self.adapted, |old, adapted| fusion.distance(old, Some(adapted)))
    }
}

/// A held-out part with all of its distances.
struct Seen<'s> {
    kind: HeldOutGallery,
    split: usize,
    gallery: Gallery<'s>,
    to_native: Distances,
    both: Both,
    order: Vec<usize>,
}

impl Seen<'_> {
    fn at_switch<'s>(&'s self, metrics: &'s [Metric]) -> AtSwitch<'s> {
        let values = move |distances: &Distances| -> Result<Vec<Vec<f64>>> {
            let curve = self.curve(distances, 0.0)?;
            Ok(metrics.iter().map(|&metric| at_start(&curve, metric)).collect())
        };
        let by_own_items = self.gallery.criterion.queries.is_none();
        AtSwitch { kind: self.kind, both: &self.both, by_own_items, values: Box::new(values) }
    }

    fn curve(&self, to_adapted: &Distances, handicap: f64) -> Result<Curve> {
        self.gallery.curve_by(&self.to_native, to_adapted, &self.order, handicap)
    }
}

/// A gallery that fused searches are tried on while nothing of it is native.
struct AtSwitch<'s> {
    kind: HeldOutGallery,
    both: &'s Both,
    /// Whether its own items ask, each leaving itself out.
    by_own_items: bool,
    values: Box<ValuesBy<'s>>,
}

/// Measure of every query by some distances: its values, metric by metric.
type ValuesBy<'s> = dyn Fn(&Distances) -> Result<Vec<Vec<f64>>> + 's;

/// Weights that were tried, the smallest first; the last one's searches are mixed.
#[derive(Default)]
struct Weighed {
    rows: Vec<FusionRow>,
    fusions: Vec<Fusion>,
    /// Differences from doing nothing.
    differences: Vec<Differences>,
}

/// Returns every query's own value at the start of a curve.
fn at_start(curve: &Curve, metric: Metric) -> Vec<f64> {
    let cuts = curve.per_query.cuts.len().max(1);
    curve.per_query.at_cuts[metric].iter().step_by(cuts).map(|&value| f64::from(value)).collect()
}

impl Task<'_> {
    /// Chooses the fusion of a map that was fitted on all pairs; `None` where nothing can be held out, or
    /// distances say nothing. `error` is the map's mean squared error. The comparison may have `made` the
    /// method's outputs for its first splits.
    pub(crate) fn choose_fusion(
        &self,
        candidate: &Candidate<'_>,
        (without, made): (Option<&dyn LeavesOut>, Vec<Made>),
        geometry: &Geometry,
        error: f64,
    ) -> Result<Option<(Fusion, FusionChoice)>> {
        let mut splits = self.splits_of_both()?;
        // Every further split would be another fit. Other items tell as much by fewer splits.
        let few = splits.len().min(if candidate.slow { 1 } else { OTHERS_SPLITS });
        let others = self.others(&splits[..few])?;
        if candidate.slow || others.is_some() {
            splits.truncate(few);
        }
        let outputs = if let Some(without) = without.filter(|_| others.is_none()) {
            self.made_without(without, &splits)?
        } else {
            let mut compared = made.into_iter().filter(|_| self.is_compared_by_both());
            let of_split = |split| compared.next().map_or_else(|| self.made_by_map(candidate, split), Ok);
            splits.iter().map(of_split).collect::<Result<_>>()?
        };
        let criteria: Vec<Vec<Option<Criterion<'_>>>> = splits
            .iter()
            .map(|split| split.parts.iter().map(Part::criterion_given).collect::<Result<_>>())
            .collect::<Result<_>>()?;
        let held_out_parts = self.held_out_parts(&splits, &outputs, &criteria, geometry)?;
        let Some(first) = held_out_parts.first() else { return Ok(None) };
        let by_others = others.as_ref().map(Others::criterion);
        let metrics = by_others.as_ref().unwrap_or(first.gallery.criterion).guarded();
        let Some(criterion) = by_others.as_ref().or(first_criterion(&splits)) else { return Ok(None) };
        let both_to_others = match &others {
            Some(others) => distances_to_others(others, &outputs, geometry, first.gallery.native)?,
            None => Vec::new(),
        };
        let searched: Vec<AtSwitch<'_>> = match &others {
            Some(others) => both_to_others
                .iter()
                .zip(&others.asking)
                .map(|(both, asking)| {
                    let criterion = asking.criterion();
                    let metrics = &metrics;
                    let values = move |distances: &Distances| -> Result<Vec<Vec<f64>>> {
                        let ranks = criterion.by_distances(distances)?;
                        Ok(metrics.iter().map(|&metric| ranks.values[metric].clone()).collect())
                    };
                    AtSwitch { kind: asking.kind, both, by_own_items: false, values: Box::new(values) }
                })
                .collect(),
            None => held_out_parts.iter().map(|held_out| held_out.at_switch(&metrics)).collect(),
        };
        let names = names_of(criterion);
        let Some(Weighed { rows, mut fusions, differences }) = self.weigh(&searched, &names)? else {
            return Ok(None);
        };
        let kept_place =
            if others.is_some() { best_of_proven(&rows) } else { choose(&rows, criterion.is_agreement()) };
        let is_above_mixed =
            others.is_some() && is_above(&differences[kept_place], &differences[WEIGHTS.len() - 1], &names);
        let mut fusion = fusions.swap_remove(kept_place);
        let handicap = self.handicap_of(&mut fusion, &held_out_parts, error)?;
        let choice = FusionChoice {
            criterion: criterion.name(),
            others: others.as_ref().map_or(0, |others| others.old.len()),
            splits: splits.len(),
            rows,
            kept: kept_place,
            is_above_mixed,
            handicap,
        };
        Ok(Some((fusion, choice)))
    }

    /// Measures the distances of held-out pairs among themselves, by a map's raw outputs for them.
    fn held_out_parts<'s>(
        &self,
        splits: &'s [Split<'_>],
        outputs: &[Made],
        criteria: &'s [Vec<Option<Criterion<'s>>>],
        geometry: &Geometry,
    ) -> Result<Vec<Seen<'s>>> {
        let mut held_out_parts = Vec::new();
        for (number, (split, outputs)) in splits.iter().zip(outputs).enumerate() {
            for (place, (part, raw)) in split.parts.iter().zip(&outputs.raw).enumerate() {
                let Some(criterion) = &criteria[number][place] else { continue };
                let (old, native) = (part.pairs.old(), part.pairs.new_vectors());
                let adapted = geometry.conformed(raw.clone());
                let queries = criterion.queries;
                let [by_old, by_new] =
                    [queries.map(|queries| &queries.old), queries.map(|queries| &queries.new)];
                let distance = native.space().distance;
                let to = |gallery| Distances::new(native.matrix(), gallery, by_new, distance);
                held_out_parts.push(Seen {
                    kind: split.gallery(place),
                    split: number,
                    to_native: part.to_native.clone().map_or_else(|| to(native.matrix()), Ok)?,
                    both: Both {
                        old: Distances::new(old.matrix(), old.matrix(), by_old, old.space().distance)?,
                        adapted: to(&adapted)?,
                    },
                    order: shuffled(native.len(), self.parameters.seed),
                    gallery: Gallery::without_distances(criterion, native, adapted),
                });
            }
        }
        Ok(held_out_parts)
    }

    /// Measures every weight at the switch, and makes its fusion; `None` where distances say nothing.
    fn weigh(&self, searched: &[AtSwitch<'_>], metric_names: &[String]) -> Result<Option<Weighed>> {
        self.progress.begin("choosing the fusion", "weights", WEIGHTS.len() as u64);
        let distances = distances(searched);
        let today: Vec<Vec<Vec<f64>>> =
            searched.iter().map(|of| (of.values)(&of.both.old)).collect::<Result<_>>()?;
        let mut weighed = Weighed::default();
        for weight in WEIGHTS {
            self.progress.check()?;
            let Some(fusion) = Fusion::from_distances(weight, &distances) else { return Ok(None) };
            let mut differences = Differences::new();
            for (of, today) in searched.iter().zip(&today) {
                for (at, values) in (of.values)(&of.both.fused(&fusion)?)?.iter().enumerate() {
                    add(&mut differences, (of.kind, at), values, &today[at]);
                }
            }
            let (gains, low) = gains(&differences, metric_names);
            weighed.rows.push(FusionRow { weight, gains, low });
            weighed.fusions.push(fusion);
            weighed.differences.push(differences);
            self.progress.advance(1);
        }
        Ok(Some(weighed))
    }

    /// Chooses the handicap of a fusion by the curves of held-out pairs, sets it, and returns it as a part of
    /// the mean squared error.
    fn handicap_of(&self, fusion: &mut Fusion, held_out_parts: &[Seen<'_>], error: f64) -> Result<f64> {
        let native = held_out_parts[0].gallery.native;
        let whole_error = handicap::whole(native.matrix(), native.space().distance, error);
        let few: Vec<(&Seen<'_>, Distances)> = held_out_parts
            .iter()
            .filter(|held_out| held_out.split < HANDICAP_SPLITS)
            .map(|held_out| Ok((held_out, held_out.both.fused(fusion)?)))
            .collect::<Result<_>>()?;
        let areas = |part: f64| {
            self.progress.check()?;
            let mut areas = Vec::new();
            for kind in HeldOutGallery::ALL.iter().copied() {
                let of_kind: Vec<f64> = few
                    .iter()
                    .filter(|(held_out, _)| held_out.kind == kind)
                    .map(|(held_out, fused)| {
                        let curve = held_out.curve(fused, part * whole_error)?;
                        Ok(curve.lines[held_out.gallery.criterion.metric].area())
                    })
                    .collect::<Result<_>>()?;
                if !of_kind.is_empty() {
                    areas.push(mean(&of_kind));
                }
            }
            Ok((part, areas))
        };
        let (tried, best) = handicap::search(areas, |(_, areas): &(f64, Vec<f64>)| areas)?;
        let handicap = tried[best].0;
        fusion.handicap = (handicap * whole_error) as f32;
        Ok(handicap)
    }
}

/// Collects old and adapted distances of one query to one item, from all galleries alike; no query to itself.
fn distances(searched: &[AtSwitch<'_>]) -> Vec<(f64, f64)> {
    let total: usize = searched.iter().map(|of| of.both.old.values().len()).sum();
    let step = total.div_ceil(DISTANCES).max(1);
    let of_gallery = |of: &AtSwitch<'_>| {
        let (by_own_items, items) = (of.by_own_items, of.both.old.items());
        let old_and_adapted = of.both.old.values().iter().zip(of.both.adapted.values()).enumerate();
        let between_items = old_and_adapted.filter(move |(at, _)| !by_own_items || at / items != at % items);
        between_items.step_by(step).map(|(_, (&old, &adapted))| (old, adapted)).collect::<Vec<_>>()
    };
    searched.iter().flat_map(of_gallery).collect()
}

/// Measures how far held-out pairs are from the other items, each by the map of its own split.
fn distances_to_others(
    others: &Others,
    outputs: &[Made],
    geometry: &Geometry,
    native: &Vectors,
) -> Result<Vec<Both>> {
    let adapted = |made: &Made| {
        let map = made.fitted.as_ref().map(|fitted| &fitted.map);
        let raw = map.map(|map| map.outputs(others.old.matrix(), None)).transpose()?;
        Ok(geometry.conformed(raw.unwrap_or_default()))
    };
    let adapted_by_split: Vec<Matrix> = outputs.iter().map(adapted).collect::<Result<_>>()?;
    let (old, distance) = (others.old.matrix(), native.space().distance);
    let both = |asking: &Asking| {
        let (by_old, by_new) = (Some(&asking.queries.old), Some(&asking.queries.new));
        Ok(Both {
            old: Distances::new(old, old, by_old, others.old.space().distance)?,
            adapted: Distances::new(native.matrix(), &adapted_by_split[asking.split], by_new, distance)?,
        })
    };
    others.asking.iter().map(both).collect()
}

/// Returns whether a weight finds more than another one, query by query: by the first metric more than one
/// standard error in each gallery, and by no other metric less than by one.
fn is_above(weight: &Differences, other: &Differences, metric_names: &[String]) -> bool {
    let apart = |(key, splits): (&(HeldOutGallery, usize), &Vec<Vec<f64>>)| {
        let less = |(values, others): (&Vec<f64>, &Vec<f64>)| -> Vec<f64> {
            values.iter().zip(others).map(|(value, other)| value - other).collect()
        };
        (*key, splits.iter().zip(&other[key]).map(less).collect())
    };
    let (gains, _) = gains(&weight.iter().map(apart).collect(), metric_names);
    gains.iter().all(
        |of| {
            if of.metric == metric_names[0] { of.gain > of.error } else { of.gain >= -of.error }
        },
    )
}

/// Chooses the [best of what is proven](lower_bounds::best_of_proven). The first row gains nothing and risks
/// nothing.
fn best_of_proven(rows: &[FusionRow]) -> usize {
    lower_bounds::best_of_proven(rows.iter().map(|row| (&row.gains[..], row.low))).unwrap_or(0)
}

/// Chooses a row as the top of this file says; the smaller weight of equals.
fn choose(rows: &[FusionRow], by_agreement: bool) -> usize {
    let larger = |best: usize, row: usize| if rows[row].low > rows[best].low { row } else { best };
    let Some(best) = (0..rows.len()).reduce(larger) else { return 0 };
    let error = error_of_least(&rows[best].gains);
    if rows[best].low <= (PROVEN_Z - 1.0) * error || !is_of_both(&rows[best].gains) {
        return 0;
    }
    if by_agreement { best } else { best_of_proven(rows) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower_bounds::HeldOutGain;

    #[test]
    fn of_what_is_nowhere_below_doing_nothing_the_largest_mean_is_kept() {
        let row = |weight: f64, known: f64, left_out: f64, error: f64| {
            let gain = |gallery, gain| HeldOutGain { gallery, metric: "mAP".into(), gain, error };
            let gains = vec![gain(HeldOutGallery::Known, known), gain(HeldOutGallery::LeftOut, left_out)];
            FusionRow { weight, gains, low: known.min(left_out) - error }
        };
        let nothing = || row(0.0, 0.0, 0.0, 0.0);
        let rows = [nothing(), row(0.3, 4.0, 3.0, 0.5), row(0.6, 9.0, 0.6, 0.5), row(1.0, 20.0, 0.4, 0.5)];
        assert_eq!(choose(&rows, false), 2);
        assert_eq!(choose(&rows, true), 1, "the largest least bound");
        let choose = |rows: &[FusionRow]| {
            let place = choose(rows, false);
            assert_eq!(place, super::choose(rows, true));
            place
        };
        let three_errors = "1.4 is not three times 0.5";
        assert_eq!(choose(&[nothing(), row(0.3, 4.0, 1.4, 0.5)]), 0, "{three_errors}");
        assert_eq!(choose(&[nothing(), row(0.3, 4.0, 1.6, 0.5)]), 1);
        assert_eq!(choose(&[nothing(), row(0.3, 4.0, -1.0, 0.5)]), 0);
        let mut known_alone = row(0.3, 9.0, 9.0, 0.5);
        known_alone.gains.pop();
        assert_eq!(choose(&[nothing(), known_alone]), 0, "nothing is proven of classes that come");
        assert_eq!(choose(&[]), 0);
    }
}
