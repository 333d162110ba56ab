//! Agreement with the fully native gallery, forecast from the few items of which both vectors are known.
//!
//! Agreement of the first k depends on the part of the gallery that these k are. So the k of N items are
//! compared with the k' = k·n/N of the held-out ones, which are the same part: logit A(k, n) = f(k/n) + c/k,
//! where c is what very short lists lose. c is read off two sizes of one part: lists of k among n items, and
//! of k/2 among halves of them. Below k' = 1, f continues its slope but never rises, since among more items
//! no more can agree. The range grows with −ln k'; for few items in a large gallery it is so wide that it
//! says nothing is known.
//!
//! A backfill ends at full agreement. On the way there from the switch, the agreement of the held-out items
//! among themselves is too high. So their way is scaled to the switch of N items, and the interval reaches
//! towards their own agreement. Scaled alone, it came out 1.1 to 1.6 points too high at 25 % native and up to
//! 2.0 too low at 75 %. So at a share α it is moved by α (2α − 1) of the distance to their own agreement.

use rand::rand_core::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::data::{ForecastInput, ForecastQueries, GalleryForecast, MetricForecast, POINTS};
use super::estimate::{Z, percent_around};
use crate::curve::evaluate::distances_by_query;
use crate::curve::exact::{CurveInput, curve};
use crate::curve::line::{Line, grid_cuts};
use crate::curve::measured::CurveOptions;
use crate::curve::metrics::{ByMetric, Metric};
use crate::curve::relevance::{QueryCount, Relevance};
use crate::error::Result;
use crate::progress::Progress;
use crate::space::Distance;
use crate::statistics::{Interval, shuffle};
use crate::vectors::Matrix;

/// Depths at which agreement is measured, besides the one that is asked for.
const DEPTHS: [usize; 9] = [1, 2, 3, 5, 7, 10, 14, 20, 30];
/// Number of times that the held-out items are split into halves.
const HALVINGS: usize = 4;

/// Part of the distance to the held-out items' own agreement that half of an interval on the way has at
/// least.
const APART: f64 = 0.6;
/// Part of itself by which an interval on the way grows with the share, since it is a rule of thumb that all
/// items go the way of the held-out ones. Without it, for 200 items, 65 % of the intervals held the truth at
/// 75 % native, and 72 % at 50 %.
const WIDER: f64 = 1.6;
/// Widening of intervals from few items: from n items, they are 1 + 100/n times as wide as the spread says.
const FEW: f64 = 100.0;

/// Nearest held-out items of a query: among all items, then among the half that the query lies in, for every
/// split.
type Lists = Vec<Vec<u32>>;

pub(super) fn forecast(
    input: &ForecastInput<'_>,
    depth: usize,
    progress: &Progress,
) -> Result<GalleryForecast> {
    let (items, known_items) = (input.items, input.held_out.len());
    let queries = input.queries.map_or(input.native, |queries| queries.new);
    let passes = 2 + usize::from(input.queries.is_none_or(|queries| queries.old.is_some()));
    let alone = alone(input, depth, progress)?;
    progress.begin("forecast", "queries", (passes * queries.rows()) as u64);
    // A list must be shorter than the half that it is taken from.
    let mut depths: Vec<usize> =
        DEPTHS.into_iter().chain([depth]).filter(|&depth| depth < known_items - 1).collect();
    depths.sort_unstable();
    depths.dedup();
    let is_own = input.queries.is_none();
    let halves = halves(known_items);
    let lists = |gallery: &Matrix, queries: &Matrix, distance: Distance| {
        let counted: Vec<usize> = (0..queries.rows()).collect();
        let longest = depths.last().copied().unwrap_or(1);
        distances_by_query(gallery, queries, &counted, distance, progress, |query, distances| {
            nearest(distances, query, is_own, &halves, longest)
        })
    };
    let wanted = lists(input.native, queries, input.distance)?;
    let adapted = lists(&input.adapted.select(input.held_out), queries, input.distance)?;
    let today = {
        let gallery = input.old.select(input.held_out);
        match input.queries {
            None => Some(lists(&gallery, &gallery, input.old_distance)?),
            Some(ForecastQueries { old: Some(old), .. }) => Some(lists(&gallery, old, input.old_distance)?),
            Some(ForecastQueries { old: None, .. }) => None,
        }
    };
    let unsampled = if is_own { (1.0 - known_items as f64 / items as f64).max(0.0).sqrt() } else { 1.0 };
    let interval = |answer_lists: &[Lists]| {
        carried(&wanted, answer_lists, &depths, depth, (known_items, items), unsampled)
    };
    let shares: Vec<f64> =
        grid_cuts(items, POINTS).into_iter().map(|cut| cut as f64 / items as f64).collect();
    let at = agreement_along_backfill(interval(&adapted), &alone, &shares);
    let metric = MetricForecast { do_nothing: today.as_deref().map(interval), at, enough: None };
    let query_count = queries.rows();
    Ok(GalleryForecast {
        items,
        held_out: known_items,
        speaks_of: items,
        queries: QueryCount { given: query_count, counted: query_count, ..QueryCount::default() },
        shares,
        metrics: ByMetric::from_iter([(Metric::agreement_at(depth), metric)]),
    })
}

/// Computes agreement along a backfill of the held-out items, among themselves.
fn alone(input: &ForecastInput<'_>, depth: usize, progress: &Progress) -> Result<Line> {
    let mut order: Vec<usize> = (0..input.held_out.len()).collect();
    if let Some(of_all) = input.order {
        let mut place = vec![0; of_all.len()];
        for (at, &item) in of_all.iter().enumerate() {
            place[item] = at;
        }
        order.sort_unstable_by_key(|&row| place[input.held_out[row]]);
    } else {
        shuffle(&mut order, &mut ChaCha8Rng::seed_from_u64(0));
    }
    let adapted = input.adapted.select(input.held_out);
    let relevance = Relevance::Nearest(depth);
    let curve_input = CurveInput {
        queries: input.queries.map(|queries| queries.new),
        handicap: input.handicap,
        ..CurveInput::new(input.native, &adapted, &order, relevance, input.distance)
    };
    Ok(curve(&curve_input, &CurveOptions::default(), progress)?.lines[Metric::agreement_at(depth)].clone())
}

/// Computes agreement at every share, from agreement at the switch and from the way of the held-out items
/// `alone`.
fn agreement_along_backfill(switch: Interval, alone: &Line, shares: &[f64]) -> Vec<Interval> {
    let known_items = alone.values().len() - 1;
    let half = (switch.high - switch.low) / 200.0;
    shares
        .iter()
        .map(|&share| {
            let among = alone.values()[(share * known_items as f64).round() as usize];
            // Part of its way that the curve has gone.
            let gone =
                if alone.start() < 100.0 { (among - alone.start()) / (100.0 - alone.start()) } else { 1.0 };
            let scaled = switch.estimate + gone * (100.0 - switch.estimate);
            // Nothing was scaled at the switch.
            let part = if share == 0.0 { 0.0 } else { share.max(APART) };
            let apart = part * (among - scaled);
            let width = ((1.0 - gone.clamp(0.0, 1.0)) * half).hypot(apart / 100.0);
            // A larger gallery lags behind at first, and catches up beyond one half.
            let told = scaled + share * (2.0 * share - 1.0) * (among - scaled);
            percent_around(told / 100.0, width * (1.0 + WIDER * share))
        })
        .collect()
}

/// Splits the items into halves: for every split, whether an item lies in the first half.
fn halves(items: usize) -> Vec<Vec<bool>> {
    (0..HALVINGS as u64)
        .map(|halving| {
            let mut random = ChaCha8Rng::seed_from_u64(halving);
            let mut half: Vec<bool> = (0..items).map(|item| item % 2 == 0).collect();
            shuffle(&mut half, &mut random);
            half
        })
        .collect()
}

/// Lists the nearest items of one query: among all items, and in its half of every split.
fn nearest(distances: &[f64], query: usize, is_own: bool, halves: &[Vec<bool>], longest: usize) -> Lists {
    let mut order: Vec<u32> = (0..distances.len() as u32).collect();
    order.sort_unstable_by(|&a, &b| distances[a as usize].total_cmp(&distances[b as usize]).then(a.cmp(&b)));
    if is_own {
        order.retain(|&item| item as usize != query);
    }
    let nearest_of_all = order.iter().copied().take(longest).collect();
    let in_half = |half: &Vec<bool>| {
        let side = if is_own { half[query] } else { query.is_multiple_of(2) };
        order.iter().copied().filter(|&item| half[item as usize] == side).take(longest).collect()
    };
    std::iter::once(nearest_of_all).chain(halves.iter().map(in_half)).collect()
}

/// Share of the first `depth` items that two lists have in common.
fn agreement(wanted: &[u32], found_items: &[u32], depth: usize) -> f64 {
    let (wanted, found_items) =
        (&wanted[..depth.min(wanted.len())], &found_items[..depth.min(found_items.len())]);
    wanted.iter().filter(|item| found_items.contains(item)).count() as f64 / wanted.len().max(1) as f64
}

/// Carries agreement at `depth` over from `known_items` to `items`.
fn carried(
    wanted: &[Lists],
    found_lists: &[Lists],
    depths: &[usize],
    depth: usize,
    (known_items, items): (usize, usize),
    unsampled: f64,
) -> Interval {
    let queries = wanted.len() as f64;
    let mean = |list: usize, depth: usize| {
        let agreements = wanted
            .iter()
            .zip(found_lists)
            .map(|(wanted, lists)| agreement(&wanted[list], &lists[list], depth));
        agreements.sum::<f64>() / queries
    };
    let smallest = 0.5 / queries;
    let logit = |value: f64| {
        let value = value.clamp(smallest, 1.0 - smallest);
        (value / (1.0 - value)).ln()
    };
    let whole_logits: Vec<f64> = depths.iter().map(|&depth| logit(mean(0, depth))).collect();
    // logit A(k/2, n/2) − logit A(k, n) = c/k: least squares over all k whose half was measured.
    let (mut above, mut below) = (0.0, 0.0);
    for (&depth, &whole_logit) in depths.iter().zip(&whole_logits) {
        if depth % 2 == 0 && depths.contains(&(depth / 2)) {
            let half = (1..=HALVINGS).map(|list| mean(list, depth / 2)).sum::<f64>() / HALVINGS as f64;
            above += (logit(half) - whole_logit) / depth as f64;
            below += (depth as f64).powi(-2);
        }
    }
    let short = if below > 0.0 { above / below } else { 0.0 };
    let at = (depth as f64 * known_items as f64 / items as f64).min(depth as f64);
    let places: Vec<(f64, f64)> = depths
        .iter()
        .zip(&whole_logits)
        .map(|(&depth, whole_logit)| ((depth as f64).ln(), whole_logit - short / depth as f64))
        .collect();
    let estimate = 1.0 / (1.0 + (-(interpolated(&places, at.ln()) + short / depth as f64)).exp());
    // A short list says less than a long one, and the depth that is asked for is a list of k'.
    let list_depth = depths.iter().copied().find(|&depth| depth as f64 >= at).unwrap_or(depth);
    let agreements: Vec<f64> = wanted
        .iter()
        .zip(found_lists)
        .map(|(wanted, lists)| agreement(&wanted[0], &lists[0], list_depth))
        .collect();
    let middle = agreements.iter().sum::<f64>() / queries;
    let squares: f64 = agreements.iter().map(|value| (value - middle).powi(2)).sum();
    let error = (squares / (queries - 1.0).max(1.0) / queries).sqrt() * unsampled;
    let beyond = (-at.ln()).max(0.0);
    // Where every item is known, nothing is carried over.
    let model = if known_items >= items { 0.0 } else { 0.01 * (1.0 + 2.0 * beyond) };
    let few = 1.0 + FEW / known_items as f64;
    let half = Z * few * (1.3 * error * (1.0 + beyond)).hypot(model);
    percent_around(estimate, half)
}

/// Interpolates linearly between ascending places. Before the first place it continues the slope but never
/// rises; beyond the last it keeps the last value.
fn interpolated(places: &[(f64, f64)], at: f64) -> f64 {
    let right = places.partition_point(|place| place.0 <= at).clamp(1, places.len().max(2) - 1);
    match (places.get(right - 1), places.get(right)) {
        (Some(&(x0, y0)), Some(&(_, y1))) if at < x0 && y1 < y0 => y0,
        (Some(&(x0, y0)), Some(&(x1, y1))) => y0 + (y1 - y0) * ((at - x0) / (x1 - x0)).min(1.0),
        (Some(&(_, y)), None) => y,
        (None, _) => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_two_depths_agreement_is_linear_and_goes_on_below_the_first() {
        let places = [(0.0, 1.0), (1.0, 3.0), (2.0, 4.0)];
        let values = [-1.0, 0.0, 0.5, 1.0, 1.5, 2.0, 9.0].map(|at| interpolated(&places, at));
        assert_eq!(values, [-1.0, 1.0, 2.0, 3.0, 3.5, 4.0, 4.0]);
        // A longer list that agrees less is chance.
        let falling = [(0.0, 3.0), (1.0, 1.0)];
        assert_eq!([-1.0, 0.5].map(|at| interpolated(&falling, at)), [3.0, 2.0]);
    }
}
