//! Chooses the order of a backfill, by what held-out pairs find in each order.

use rehang_core::adapter::{Adapter, apply};
use rehang_core::order::{OrderInput, Policy, order};
use rehang_core::{Pairs, Progress, Result};
use serde::{Deserialize, Serialize};

use crate::compare::{Part, Split};
use crate::learned::{NetworkOptions, fit_adapter};
use crate::lower_bounds::{HeldOutGallery, mean};
use crate::method::Method;
use crate::parameters::FitParameters;
use crate::retrieval::Gallery;
use crate::task::{Task, with_task};

/// Orders that are tried, the default first. Others were measured and are not worth trying
/// (`laboratory/bench/runs/orders.md`).
pub const ORDERS: [Policy; 3] = [Policy::Coverage, Policy::Sigma, Policy::Random];

/// Number of splits that every order is tried in: each is another fit.
const SPLITS: usize = 3;

/// Area under the curve of one order in one held-out gallery, percent: the mean over the splits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OrderArea {
    /// Held-out gallery: items of known classes, or of left-out ones.
    pub gallery: HeldOutGallery,
    /// Mean quality over all states of the backfill.
    pub area: f64,
}

/// An order that was tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OrderRow {
    /// Order that was tried.
    pub policy: Policy,
    /// Areas of the order, one for each held-out gallery.
    pub areas: Vec<OrderArea>,
    /// Regret of the order: the most that it is behind the best order in any of the galleries, in points.
    pub regret: f64,
}

/// Choice of an order, with everything that was tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OrderChoice {
    /// Name of the metric that is measured, as [`Selection::criterion`](crate::Selection::criterion).
    pub criterion: String,
    /// Map that was backfilled.
    pub method: Method,
    /// Number of splits: how often another part was held out.
    pub splits: usize,
    /// Rows, one for every order in [`ORDERS`].
    pub rows: Vec<OrderRow>,
    /// Place of the row that was kept: the one with the least regret, the first of equals. So it is not far
    /// behind on known classes, nor on left-out ones.
    pub kept: usize,
}

impl OrderChoice {
    /// Returns the order that was kept.
    pub fn policy(&self) -> Policy {
        self.rows[self.kept].policy
    }
}

/// Chooses the order in which a gallery is backfilled, for a metric ([`FitParameters::metric`]). A map of the
/// parameters' method is fitted on a part of the pairs; the others, of known and of left-out classes, become
/// native in each of [`ORDERS`]. `None` where nothing can be held out.
///
/// A method that takes minutes is fitted once, every other one for each split.
///
/// ```
/// use rehang_core::{Distance, Matrix, Pairs, Progress, Vectors};
/// use rehang_fit::{FitParameters, Method, ORDERS, choose_order};
///
/// // Thirty classes on a circle; every third item was seen badly by the old model.
/// let noise = |item: usize| ((item * 7919) % 1013) as f32 / 1013.0 - 0.5;
/// let angle = |item: usize, width: f32| (item % 30) as f32 * 0.2 + width * noise(item);
/// let circle = |angle: f32, axis: usize| if axis == 0 { angle.cos() } else { angle.sin() };
/// let bad = |item: usize| if (item / 30) % 3 == 0 { 1.5 } else { 0.1 };
/// let old = Matrix::from_fn(900, 2, |item, axis| circle(angle(item, bad(item)), axis));
/// let new = Matrix::from_fn(900, 2, |item, axis| circle(angle(item, 0.1) + 1.5708, axis));
/// let old = Vectors::measured("old", Distance::Cosine, old, "old vectors")?;
/// let new = Vectors::measured("new", Distance::Cosine, new, "new vectors")?;
/// let pairs = Pairs::new(old, new, Some((0..900).map(|item| item % 30).collect()), None)?;
/// let parameters = FitParameters { method: Method::Ridge, metric: Some("top1".parse()?), ..FitParameters::default() };
/// let choice = choose_order(&pairs, &parameters, &Progress::default())?.unwrap();
/// assert_eq!((choice.criterion.as_str(), choice.rows.len()), ("Top-1", ORDERS.len()));
/// assert!(choice.rows.iter().all(|row| row.regret >= choice.rows[choice.kept].regret));
/// # Ok::<(), rehang_core::Error>(())
/// ```
///
/// # Errors
///
/// As [`fit_adapter`].
pub fn choose_order(
    pairs: &Pairs,
    parameters: &FitParameters,
    progress: &Progress,
) -> Result<Option<OrderChoice>> {
    with_task(pairs, parameters, progress, chosen)
}

fn chosen(task: &Task<'_>) -> Result<Option<OrderChoice>> {
    let mut splits = task.splits_of_both()?;
    splits.truncate(if Method::NETWORKS.contains(&task.parameters.method) { 1 } else { SPLITS });
    let Some(criterion) =
        splits.iter().flat_map(|split| &split.parts).find_map(|part| part.criterion.as_ref())
    else {
        return Ok(None);
    };
    let criterion = criterion.name();
    let mut areas = Vec::new();
    for split in &splits {
        let adapter = task.fitted_on(split)?;
        for (place, part) in split.parts.iter().enumerate() {
            if let Some(of_orders) = task.areas(&adapter, part)? {
                areas.push((split.gallery(place), of_orders));
            }
        }
    }
    let method = task.parameters.method;
    Ok(choose(&areas).map(|(rows, kept_place)| OrderChoice {
        criterion,
        method,
        splits: splits.len(),
        rows,
        kept: kept_place,
    }))
}

impl Task<'_> {
    /// Fits the adapter as it would serve, on the pairs that are not held out.
    fn fitted_on(&self, split: &Split<'_>) -> Result<Adapter> {
        let parameters = FitParameters {
            method: self.parameters.method,
            seed: self.parameters.seed,
            compare: false,
            ..FitParameters::default()
        };
        let pairs = self.pairs.select(&split.fitted);
        let options = NetworkOptions::default();
        Ok(fit_adapter(&pairs, None, &parameters, &options, self.progress)?.adapter)
    }

    /// Measures the area of each of [`ORDERS`]; `None` where nothing says what is right.
    fn areas(&self, adapter: &Adapter, part: &Part<'_>) -> Result<Option<Vec<f64>>> {
        let Some(criterion) = &part.criterion else { return Ok(None) };
        let native = part.pairs.new_vectors();
        let adapted = apply(adapter, part.pairs.old(), None, self.progress)?;
        let sigma: Vec<f64> = adapted.variance.iter().map(|&variance| f64::from(variance)).collect();
        let vectors = adapted.vectors.matrix();
        let input = OrderInput {
            items: native.len(),
            sigma: Some(&sigma),
            classified: adapter.uncertainty.head().map(|head| (head, vectors)),
            vectors: Some(vectors),
            seed: self.parameters.seed,
            progress: Some(self.progress),
            ..OrderInput::default()
        };
        let gallery = Gallery::new(criterion, native, vectors.clone(), part.to_native.as_ref())?;
        let area = |policy: Policy| {
            self.progress.check()?;
            let permutation = order(policy, &input)?.permutation;
            Ok(gallery.curve(&permutation, adapter.handicap)?.lines[criterion.metric].area())
        };
        ORDERS.map(area).into_iter().collect::<Result<_>>().map(Some)
    }
}

/// Makes the row of each order, and chooses the one that is kept: the first of equals. `None` without areas.
fn choose(areas: &[(HeldOutGallery, Vec<f64>)]) -> Option<(Vec<OrderRow>, usize)> {
    let mean_area = |gallery: HeldOutGallery, order: usize| {
        let values: Vec<f64> =
            areas.iter().filter(|(of, _)| *of == gallery).map(|(_, areas)| areas[order]).collect();
        (!values.is_empty()).then(|| mean(&values))
    };
    let row = |order: usize| {
        let (mut order_areas, mut regret) = (Vec::new(), f64::NEG_INFINITY);
        for gallery in HeldOutGallery::ALL.iter().copied() {
            let Some(area) = mean_area(gallery, order) else { continue };
            let best = (0..ORDERS.len()).filter_map(|order| mean_area(gallery, order)).fold(area, f64::max);
            regret = regret.max(best - area);
            order_areas.push(OrderArea { gallery, area });
        }
        OrderRow { policy: ORDERS[order], areas: order_areas, regret }
    };
    let rows: Vec<OrderRow> = (0..ORDERS.len()).map(row).collect();
    let less = |least: usize, row: usize| if rows[row].regret < rows[least].regret { row } else { least };
    let kept_place = (0..rows.len()).reduce(less)?;
    rows[kept_place].regret.is_finite().then_some((rows, kept_place))
}

#[cfg(test)]
mod tests {
    use super::*;
    use HeldOutGallery::{Known, LeftOut};

    #[test]
    fn the_order_that_is_least_behind_on_known_and_on_left_out_classes_is_kept() {
        let place = |known: [f64; 3], left_out: [f64; 3]| {
            choose(&[(Known, known.to_vec()), (LeftOut, left_out.to_vec())]).unwrap().1
        };
        // The second order is 0.1 behind on left-out classes, the first 3 on known ones.
        assert_eq!(place([70.0, 73.0, 69.0], [50.0, 49.9, 48.0]), 1);
        // The second order is 4 behind on left-out classes here.
        assert_eq!(place([70.0, 73.0, 69.0], [50.0, 46.0, 48.0]), 0);
        assert_eq!(place([70.0, 73.0, 72.0], [50.0, 46.0, 49.0]), 2);
        assert_eq!(place([70.0, 70.0, 70.0], [50.0, 50.0, 50.0]), 0);
        // One gallery alone decides where there is no other; its splits are averaged.
        let (rows, place) =
            choose(&[(Known, vec![70.0, 71.0, 0.0]), (Known, vec![70.0, 72.0, 0.0])]).unwrap();
        assert_eq!((place, rows[1].areas[0].area, rows[0].regret), (1, 71.5, 1.5));
        assert!(choose(&[]).is_none());
    }
}
