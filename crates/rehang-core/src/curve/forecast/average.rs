//! Average precision in a gallery of which only some natives are known: each known native stands for several.
//!
//! The ranking holds the n held-out natives and all N adapted vectors, each with a weight. In a random order
//! at a share α, a native weighs αN/n and an adapted vector 1 − α. In a given order with the first items A, a
//! native in A weighs |A| over the number of held-out items of A, and an adapted vector outside A weighs 1.
//! All others weigh nothing ([`super::imagined`] has one exception). Let W be the weight above a right
//! answer, and W⁺ the weight of the right answers above it. Its precision is `(W⁺ + 1 + m)/(W + 1 + m)`,
//! since a native of weight w stands for w right answers at one place, of which `m = max((w − 1)/2, 0)` are
//! above the middle one. The average precision is the mean over all right answers, each by its weight.

use super::data::ForecastInput;
use super::right::Right;
use crate::curve::thresholds::Thresholds;

/// Weights of the items in every mixture.
pub(super) struct Weights {
    /// First step at which each item is native, 1 to `steps`; always 1 in a random order.
    step: Vec<u32>,
    held_out: Vec<u32>,
    /// Weights of natives and adapted vectors, one mixture for each step.
    mixtures: Vec<Mixture>,
}

#[derive(Clone, Copy)]
struct Mixture {
    /// Weight of natives up to the step `natives_to`; `native_beyond` is that of later natives.
    native: f64,
    native_beyond: f64,
    adapted: f64,
    natives_to: u32,
    /// Step beyond which adapted vectors have the weight `adapted`.
    adapted_from: u32,
}

/// One of the two forms of a right answer: adapted or native.
#[derive(Clone, Copy)]
struct Form {
    distance: f64,
    item: u32,
    is_native: bool,
    step: u32,
}

impl Weights {
    /// Makes one mixture for each cut, and two more of a random order, at one half and at three quarters. The
    /// end is extrapolated from these two.
    ///
    /// `kept_share` is how far natives keep the selection that an order makes: 1 for natives that are known.
    /// If it is less, natives of all items stand for the rest, 1 − `kept_share`, as in a random order.
    pub(super) fn new(input: &ForecastInput<'_>, cuts: &[usize], kept_share: f64) -> Self {
        let (items, known_natives) = (input.old.rows(), input.held_out.len());
        let steps = cuts.len() as u32 - 1;
        let random = |share: f64| Mixture {
            native: share * items as f64 / known_natives as f64,
            native_beyond: 0.0,
            adapted: 1.0 - share,
            natives_to: steps,
            adapted_from: 0,
        };
        let mut step = vec![1; items];
        let mut mixtures: Vec<Mixture> = Vec::new();
        if let Some(order) = input.order {
            let mut next = 1;
            for (place, &item) in order.iter().enumerate() {
                while cuts.get(next as usize).is_some_and(|&cut| place >= cut) {
                    next += 1;
                }
                step[item] = next.min(steps);
            }
            for (cut, at) in cuts.iter().zip(0..) {
                let inside = input.held_out.iter().filter(|&&item| step[item] <= at).count();
                // A part without held-out items is known by its adapted vectors alone.
                let of_all = (1.0 - kept_share) * *cut as f64 / known_natives as f64;
                let native = if inside == 0 { 0.0 } else { kept_share * *cut as f64 / inside as f64 };
                mixtures.push(Mixture {
                    native: native + of_all,
                    native_beyond: of_all,
                    adapted: 1.0,
                    natives_to: if inside == 0 { 0 } else { at },
                    adapted_from: if inside == 0 { 0 } else { at },
                });
            }
        } else {
            mixtures.extend(cuts.iter().map(|&cut| random(cut as f64 / items as f64)));
        }
        mixtures.extend([random(0.5), random(0.75)]);
        Self { step, held_out: input.held_out.iter().map(|&item| item as u32).collect(), mixtures }
    }

    /// Average precision of one query in every mixture, 0 to 1.
    pub(super) fn precision(
        &self,
        right: &Right<'_>,
        query: usize,
        native: &[f64],
        adapted: &[f64],
    ) -> Vec<f64> {
        let own_item = right.own(query);
        let mut forms = Vec::new();
        // Items that are in no ranking: the query itself, and items that are judged as junk.
        let mut outside = vec![false; adapted.len()];
        for (item, &distance) in adapted.iter().enumerate() {
            let gain = right.gain(query, item);
            outside[item] = gain < 0.0 || Some(item) == own_item;
            if gain > 0.0 && !outside[item] {
                forms.push(Form { distance, item: item as u32, is_native: false, step: self.step[item] });
            }
        }
        for (&item, &distance) in self.held_out.iter().zip(native) {
            if right.gain(query, item as usize) > 0.0 && !outside[item as usize] {
                forms.push(Form { distance, item, is_native: true, step: self.step[item as usize] });
            }
        }
        if forms.is_empty() {
            return vec![0.0; self.mixtures.len()];
        }
        // At one distance an item's adapted vector stands before its native one.
        let key = |item: u32, is_native: bool| 2 * item + u32::from(is_native);
        forms.sort_unstable_by(|a, b| {
            let [of_a, of_b] = [a, b].map(|form| key(form.item, form.is_native));
            a.distance.total_cmp(&b.distance).then(of_a.cmp(&of_b))
        });
        let mut thresholds = Thresholds::default();
        thresholds.build(forms.iter().map(|form| (form.distance, key(form.item, form.is_native))));
        let steps = self.step.iter().copied().max().unwrap_or(1) as usize + 1;
        // Counts the items at each place by the step at which they become native.
        let counted = |distances: &[f64], items: &[u32], is_native: bool| {
            let keys: Vec<u32> = items.iter().map(|&item| key(item, is_native)).collect();
            let mut places = vec![0; items.len()];
            thresholds.place_plain(distances, &keys, &mut places);
            let mut counts = vec![0_u32; (forms.len() + 1) * steps];
            for (&place, &item) in places.iter().zip(items) {
                if !outside[item as usize] {
                    counts[place as usize * steps + self.step[item as usize] as usize] += 1;
                }
            }
            counts
        };
        let all: Vec<u32> = (0..adapted.len() as u32).collect();
        let (natives, adapted) = (counted(native, &self.held_out, true), counted(adapted, &all, false));
        let precision = |mixture: &Mixture| {
            let Mixture { natives_to, adapted_from, .. } = *mixture;
            let (mut above, mut right_above, mut sum, mut total) = (0.0, 0.0, 0.0, 0.0);
            for (place, form) in forms.iter().enumerate() {
                let items_at_steps = |counts: &[u32], from: usize, to: usize| {
                    f64::from(
                        counts[place * steps..][..steps][from.min(steps)..to.min(steps)].iter().sum::<u32>(),
                    )
                };
                above += mixture.native * items_at_steps(&natives, 0, natives_to as usize + 1)
                    + mixture.native_beyond * items_at_steps(&natives, natives_to as usize + 1, steps)
                    + mixture.adapted * items_at_steps(&adapted, adapted_from as usize + 1, steps);
                let weight = match form.is_native {
                    true if form.step <= natives_to => mixture.native,
                    true => mixture.native_beyond,
                    false if form.step > adapted_from => mixture.adapted,
                    false => 0.0,
                };
                if weight > 0.0 {
                    let middle = ((weight - 1.0) / 2.0).max(0.0);
                    // The right answer itself stands at its place too.
                    let others_above = (above - weight).max(0.0);
                    sum += weight * (right_above + 1.0 + middle) / (others_above + 1.0 + middle);
                    right_above += weight;
                    total += weight;
                }
            }
            if total > 0.0 { sum / total } else { 0.0 }
        };
        self.mixtures.iter().map(precision).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::curve::Relevance;
    use crate::space::Distance;
    use crate::vectors::Matrix;

    /// Computes the definition, item by item.
    fn slow(
        (native, adapted): (&[f64], &[f64]),
        held_out: &[usize],
        is_right: impl Fn(usize) -> bool,
        own_item: usize,
        weight: impl Fn(usize, bool) -> f64,
    ) -> f64 {
        let mut all: Vec<(f64, usize, bool)> =
            adapted.iter().enumerate().map(|(item, &distance)| (distance, item, false)).collect();
        all.extend(held_out.iter().zip(native).map(|(&item, &distance)| (distance, item, true)));
        all.retain(|&(_, item, is_native)| item != own_item && weight(item, is_native) > 0.0);
        all.sort_by(|a, b| a.partial_cmp(b).unwrap());
        let (mut above, mut right, mut sum, mut total) = (0.0, 0.0, 0.0, 0.0);
        for (_, item, is_native) in all {
            let weight = weight(item, is_native);
            let middle = ((weight - 1.0) / 2.0).max(0.0);
            if is_right(item) {
                sum += weight * (right + 1.0 + middle) / (above + 1.0 + middle);
                right += weight;
                total += weight;
            }
            above += weight;
        }
        sum / total
    }

    #[test]
    fn the_mixtures_are_those_of_the_definition() {
        let mut state = 5_u64;
        let mut next = move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f64 / 16777216.0
        };
        let items = 60;
        let vectors = Matrix::from_fn(items, 1, |row, _| row as f32);
        let labels: Vec<i64> = (0..items as i64).map(|item| item % 4).collect();
        let held_out: Vec<usize> = (0..items).filter(|item| item % 3 == 1).collect();
        let known_vectors = vectors.select(&held_out);
        let order: Vec<usize> = (0..items).map(|place| place * 7 % items).collect();
        let cuts = [0, 15, 30, 60];
        for order in [None, Some(&order[..])] {
            let input = ForecastInput {
                old: &vectors,
                adapted: &vectors,
                items,
                held_out: &held_out,
                native: &known_vectors,
                order,
                queries: None,
                relevance: Relevance::Labels { gallery: &labels, queries: None },
                distance: Distance::L2,
                old_distance: Distance::L2,
                handicap: 0.0,
            };
            let right = Right::new(&input);
            for (query, kept_share) in (0..held_out.len()).flat_map(|query| [(query, 1.0), (query, 0.6)]) {
                let weights = Weights::new(&input, &cuts, kept_share);
                // Many distances are equal.
                let mut coarse = || (next() * 20.0).floor();
                let adapted: Vec<f64> = (0..items).map(|_| coarse()).collect();
                let native: Vec<f64> = (0..held_out.len()).map(|_| coarse()).collect();
                let precisions = weights.precision(&right, query, &native, &adapted);
                let own_item = held_out[query];
                let is_right = |item: usize| labels[item] == labels[own_item];
                for (&cut, precision) in cuts.iter().zip(&precisions) {
                    let first = order.map(|order| &order[..cut]);
                    let inside =
                        first.map_or(1, |first| held_out.iter().filter(|item| first.contains(item)).count());
                    let share = cut as f64 / items as f64;
                    let weight = |item: usize, is_native: bool| match (first, is_native) {
                        (None, true) => share * items as f64 / held_out.len() as f64,
                        (None, false) => 1.0 - share,
                        (Some(first), true) => {
                            let chosen = if first.contains(&item) { cut as f64 / inside as f64 } else { 0.0 };
                            kept_share * chosen
                                + (1.0 - kept_share) * share * items as f64 / held_out.len() as f64
                        }
                        (Some(first), false) => f64::from(u8::from(!first.contains(&item))),
                    };
                    let expected = slow((&native, &adapted), &held_out, is_right, own_item, weight);
                    assert!((precision - expected).abs() < 1e-12, "{cut} {precision} {expected}");
                }
            }
        }
    }
}
