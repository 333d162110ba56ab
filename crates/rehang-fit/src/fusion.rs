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

use rehang_core::adapter::Geometry;
use rehang_core::curve::{Curve, Distances, Metric};
use rehang_core::{Fusion, Result};

use crate::candidate::Candidate;
use crate::compare::Part;
use crate::folds::shuffled;
use crate::fusion_choice::{FusionChoice, FusionRow};
use crate::handicap;
use crate::left_out::LeavesOut;
use crate::lower_bounds::{
    Differences, HeldOutGallery, add, error_of_least, gains, is_of_both, mean, names_of,
};
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

/// A held-out part with all of its distances.
struct Seen<'s> {
    kind: HeldOutGallery,
    split: usize,
    gallery: Gallery<'s>,
    to_native: Distances,
    old: Distances,
    adapted: Distances,
    order: Vec<usize>,
}

impl Seen<'_> {
    fn fused(&self, fusion: &Fusion) -> Result<Distances> {
        self.old.combined(&self.adapted, |old, adapted| fusion.distance(old, Some(adapted)))
    }

    fn curve(&self, to_adapted: &Distances, handicap: f64) -> Result<Curve> {
        self.gallery.curve_by(&self.to_native, to_adapted, &self.order, handicap)
    }
}

/// Returns every query's own value at the start of a curve.
fn at_start(curve: &Curve, metric: Metric) -> Vec<f64> {
    let cuts = curve.per_query.cuts.len().max(1);
    curve.per_query.at_cuts[metric].iter().step_by(cuts).map(|&value| f64::from(value)).collect()
}

impl Task<'_> {
    /// Chooses the fusion of a map that was fitted on all pairs; `None` where nothing can be held out, or
    /// distances say nothing. `error` is the map's mean squared error.
    pub(crate) fn choose_fusion(
        &self,
        candidate: &Candidate<'_>,
        without: Option<&dyn LeavesOut>,
        geometry: &Geometry,
        error: f64,
    ) -> Result<Option<(Fusion, FusionChoice)>> {
        let mut splits = self.splits_of_both()?;
        if candidate.slow {
            // Every further split would be another fit.
            splits.truncate(1);
        }
        let outputs = match without {
            Some(without) => self.made_without(without, &splits)?,
            None => splits.iter().map(|split| self.made_by_map(candidate, split)).collect::<Result<_>>()?,
        };
        self.progress.begin("choosing the fusion", "weights", WEIGHTS.len() as u64);
        let criteria: Vec<Vec<Option<Criterion<'_>>>> = splits
            .iter()
            .map(|split| split.parts.iter().map(Part::criterion_given).collect::<Result<_>>())
            .collect::<Result<_>>()?;
        let mut held_out_parts = Vec::new();
        for (number, (split, outputs)) in splits.iter().zip(outputs).enumerate() {
            for (place, (part, raw)) in split.parts.iter().zip(outputs.raw).enumerate() {
                let Some(criterion) = &criteria[number][place] else { continue };
                let (old, native) = (part.pairs.old(), part.pairs.new_vectors());
                let adapted = geometry.conformed(raw);
                let queries = criterion.queries;
                let [by_old, by_new] =
                    [queries.map(|queries| &queries.old), queries.map(|queries| &queries.new)];
                let distance = native.space().distance;
                let to = |gallery| Distances::new(native.matrix(), gallery, by_new, distance);
                held_out_parts.push(Seen {
                    kind: split.gallery(place),
                    split: number,
                    to_native: part.to_native.clone().map_or_else(|| to(native.matrix()), Ok)?,
                    old: Distances::new(old.matrix(), old.matrix(), by_old, old.space().distance)?,
                    adapted: to(&adapted)?,
                    order: shuffled(native.len(), self.parameters.seed),
                    gallery: Gallery::without_distances(criterion, native, adapted),
                });
            }
        }
        let Some(first) = held_out_parts.first() else { return Ok(None) };
        let metrics = first.gallery.criterion.guarded();
        let criterion = splits.iter().flat_map(|split| &split.parts).find_map(|part| part.criterion.as_ref());
        let Some(criterion) = criterion else { return Ok(None) };
        let names = names_of(criterion);
        let distances = distances(&held_out_parts);
        let today = held_out_parts
            .iter()
            .map(|held_out| {
                let curve = held_out.curve(&held_out.old, 0.0)?;
                Ok(metrics.iter().map(|&metric| at_start(&curve, metric)).collect::<Vec<_>>())
            })
            .collect::<Result<Vec<_>>>()?;
        let (mut rows, mut fusions) = (Vec::new(), Vec::new());
        for weight in WEIGHTS {
            self.progress.check()?;
            let Some(fusion) = Fusion::from_distances(weight, &distances) else { return Ok(None) };
            let mut differences = Differences::new();
            for (held_out, today) in held_out_parts.iter().zip(&today) {
                let curve = held_out.curve(&held_out.fused(&fusion)?, 0.0)?;
                for (at, &metric) in metrics.iter().enumerate() {
                    add(&mut differences, (held_out.kind, at), &at_start(&curve, metric), &today[at]);
                }
            }
            let (gains, low) = gains(&differences, &names);
            rows.push(FusionRow { weight, gains, low });
            fusions.push(fusion);
            self.progress.advance(1);
        }
        let kept_place = choose(&rows, criterion.is_agreement());
        let mut fusion = fusions.swap_remove(kept_place);
        let native = first.gallery.native;
        let whole_error = handicap::whole(native.matrix(), native.space().distance, error);
        let of_few: Vec<(&Seen<'_>, Distances)> = held_out_parts
            .iter()
            .filter(|held_out| held_out.split < HANDICAP_SPLITS)
            .map(|held_out| Ok((held_out, held_out.fused(&fusion)?)))
            .collect::<Result<_>>()?;
        let areas = |part: f64| {
            self.progress.check()?;
            let mut areas = Vec::new();
            for kind in HeldOutGallery::ALL.iter().copied() {
                let of_kind: Vec<f64> = of_few
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
        let choice = FusionChoice {
            criterion: criterion.name(),
            splits: splits.len(),
            rows,
            kept: kept_place,
            handicap,
        };
        Ok(Some((fusion, choice)))
    }
}

/// Collects old and adapted distances of one query to one item, from all parts alike; no query to itself.
fn distances(held_out_parts: &[Seen<'_>]) -> Vec<(f64, f64)> {
    let total: usize = held_out_parts.iter().map(|held_out| held_out.old.values().len()).sum();
    let step = total.div_ceil(DISTANCES).max(1);
    let of_part = |held_out: &Seen<'_>| {
        let (by_own_items, items) = (held_out.gallery.criterion.queries.is_none(), held_out.old.items());
        let old_and_adapted = held_out.old.values().iter().zip(held_out.adapted.values()).enumerate();
        let between_items = old_and_adapted.filter(move |(at, _)| !by_own_items || at / items != at % items);
        between_items.step_by(step).map(|(_, (&old, &adapted))| (old, adapted)).collect::<Vec<_>>()
    };
    held_out_parts.iter().flat_map(of_part).collect()
}

/// Chooses a row as the top of this file says; the smaller weight of equals.
fn choose(rows: &[FusionRow], by_agreement: bool) -> usize {
    let larger = |best: usize, row: usize| if rows[row].low > rows[best].low { row } else { best };
    let Some(best) = (0..rows.len()).reduce(larger) else { return 0 };
    let error = error_of_least(&rows[best].gains);
    if rows[best].low <= (PROVEN_Z - 1.0) * error || !is_of_both(&rows[best].gains) {
        return 0;
    }
    if by_agreement {
        return best;
    }
    let gain = |row: usize| mean(&rows[row].gains.iter().map(|of| of.gain).collect::<Vec<_>>());
    let better = |largest: usize, row: usize| if gain(row) > gain(largest) { row } else { largest };
    (0..rows.len()).filter(|&row| rows[row].low >= 0.0).reduce(better).unwrap_or(0)
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
