//! Forecast of a backfill at the gallery's own size, from the few items whose new vectors are known.
//!
//! n items of a gallery of N, a random sample, have been embedded by the new model already and were held out
//! of the fit. Searched among each other they are a gallery of n items, and a metric depends on the size: a
//! denser gallery has a lower mAP by label and a higher top-1. But all old vectors, all adapted ones and all
//! right answers of the whole gallery are known. So:
//!
//! | of the whole gallery | comes from |
//! |---|---|
//! | doing nothing | the old vectors; an estimate only where they are too many to ask all of them |
//! | the switch | the held-out queries among **all** adapted vectors |
//! | mAP at a share α | the held-out natives, each standing for as many items as there are natives at α, among the adapted vectors that are left (`average.rs`); where a query has few right answers among them, natives imagined from the adapted vectors weigh more (`imagined.rs`) |
//! | metrics of the first ranks at α | natives and as many adapted vectors as make α of both, carried over to N items by the size effect of the adapted and of the old vectors (`size.rs`) |
//! | agreement@k | the k/size of the held-out items that N items have, carried on where that is less than one, and their own way from there to the end (`agreement.rs`) |
//!
//! # Intervals
//!
//! σ is the standard error over the held-out queries times √(1 − n/N): queries are a sample of the gallery,
//! and of a whole gallery nothing is left to sample. Separate queries are a sample of all that will be asked,
//! so for them the root is left out. An interval of 95 % is ± 1.96 σ at the switch, ± 1.96 · 1.25 σ up to one
//! half and ± 1.96 · 1.5 σ beyond, where knowledge of the natives is extrapolated; both of these are 1 + 50/n
//! times as wide. Imagined natives add the effect of one standard error of where right answers are imagined.
//! Top-1 by labels adds the chance in which items become native first, √(4 α (1 − α) p (1 − p)/N). Both are
//! added in squares. Metrics of the first ranks add 1.96 times a third of the size effect's shift. The
//! factors are measured (`cargo lab study forecast`); only the switch is safe at any size by construction.
//!
//! # What a forecast does not know
//!
//! Adapted vectors of the pairs that the adapter was fitted on are better than those of other items. Where
//! these pairs are a large part of the gallery, its switch is forecast too high. A sample that is not random
//! forecasts another gallery.

mod agreement;
mod average;
mod data;
mod estimate;
mod imagined;
mod right;
mod size;

use super::evaluate::{distances_by_query, evaluate};
use super::input::check_vectors;
use super::known::Distances;
use super::line::grid_cuts;
use super::measured::{CurveOptions, Measured};
use super::metrics::{MAP, Metric, TOP1};
use super::relevance::{QueryCount, Relevance};
use super::sweep::Workspace;
use crate::check::{check_handicap, check_permutation, expect_count, expect_width};
use crate::error::{Error, Result};
use crate::progress::Progress;

pub use data::{ENOUGH, ForecastInput, ForecastQueries, GalleryForecast, MetricForecast};

use average::Weights;
use data::POINTS;
use estimate::{Columns, Table};
use imagined::Imagined;
use right::Right;
use size::{Row, View, Views};

/// Most distances that doing nothing may take: up to it every item is a query (20,000 items among each
/// other).
const ALL_QUERIES_MAX: usize = 400_000_000;
/// Fewest held-out items that say anything of a gallery.
pub const HELD_OUT_MIN: usize = 30;

/// Forecasts top-1 and mAP along a backfill of the whole gallery, and by judgements nDCG at `depth` too.
/// Without right answers it forecasts agreement at the depth of [`Relevance::Nearest`].
///
/// ```
/// use rehang_core::curve::{ForecastInput, MAP, Relevance, forecast};
/// use rehang_core::{Distance, Matrix, Progress};
///
/// // Two classes on a line that the old model has apart as well; every second item is held out.
/// let old = Matrix::from_fn(400, 1, |row, _| (row % 2) as f32 * 9.0 + (row * 7 % 31) as f32 / 31.0);
/// let held_out: Vec<usize> = (0..400).filter(|row| row % 4 < 2).collect();
/// let labels: Vec<i64> = (0..400).map(|row| row % 2).collect();
/// let input = ForecastInput {
///     old: &old,
///     adapted: &old,
///     items: 400,
///     held_out: &held_out,
///     native: &old.select(&held_out),
///     order: None,
///     queries: None,
///     relevance: Relevance::Labels { gallery: &labels, queries: None },
///     distance: Distance::L2,
///     old_distance: Distance::L2,
///     handicap: 0.0,
/// };
/// let made = forecast(&input, 10, &Progress::default())?;
/// assert_eq!((made.items, made.held_out, made.shares.len()), (400, 200, 21));
/// let map = &made.metrics[MAP];
/// assert_eq!(map.do_nothing.unwrap().estimate, 100.0);
/// assert!(map.at.iter().all(|at| at.estimate > 99.9));
/// // Nothing is gained, so there is no share that is enough.
/// assert_eq!(map.enough, None);
/// # Ok::<(), rehang_core::Error>(())
/// ```
///
/// # Errors
///
/// Vectors that are empty, hold NaN or differ in width or number; held-out rows that are given twice or lie
/// outside; [`crate::ErrorKind::InvalidOption`] for fewer than [`HELD_OUT_MIN`] held-out items; an order that
/// is no permutation; judgements without queries of their own; no query with a right answer.
/// [`crate::ErrorKind::Cancelled`] where `progress` asks to stop.
pub fn forecast(input: &ForecastInput<'_>, depth: usize, progress: &Progress) -> Result<GalleryForecast> {
    check(input)?;
    if let Relevance::Nearest(depth) = input.relevance {
        return agreement::forecast(input, depth, progress);
    }
    Ground::new(input, depth)?.forecast(progress)
}

fn check(input: &ForecastInput<'_>) -> Result<()> {
    let items = input.old.rows();
    check_vectors(input.old, None, input.queries.and_then(|queries| queries.old))?;
    check_vectors(input.adapted, None, input.queries.map(|queries| queries.new))?;
    expect_count("adapted vectors", input.adapted.rows(), "old vectors", items)?;
    if input.items < items {
        return Err(Error::option(
            "the number of items of the gallery",
            input.items,
            format!("at least {items}"),
        ));
    }
    check_vectors(input.native, None, None)?;
    expect_width("new vectors", input.adapted.columns(), input.native.columns())?;
    expect_count("new vectors", input.native.rows(), "held-out rows", input.held_out.len())?;
    if input.held_out.len() < HELD_OUT_MIN {
        let expected = format!("at least {HELD_OUT_MIN}");
        return Err(Error::option("the number of held-out items", input.held_out.len(), expected));
    }
    let mut sorted = input.held_out.to_vec();
    sorted.sort_unstable();
    if let Some([row, ..]) = sorted.windows(2).find(|two| two[0] == two[1]) {
        return Err(Error::duplicate("the held-out rows", format!("row {row}")));
    }
    if let Some(&outside) = sorted.last().filter(|&&row| row >= items) {
        let detail = format!("row {outside} is held out, but the gallery has {items} items");
        return Err(Error::corrupt("the held-out rows", detail));
    }
    input.order.map_or(Ok(()), |order| check_permutation(order, items))?;
    check_handicap(input.handicap)?;
    if let Some(ForecastQueries { new, old: Some(old) }) = input.queries {
        expect_count("old queries", old.rows(), "new queries", new.rows())?;
    }
    let query_count = input.queries.map(|queries| queries.new.rows());
    if matches!(input.relevance, Relevance::Judgements(_)) && query_count.is_none() {
        return Err(Error::missing("queries", "a forecast by judgements"));
    }
    input.relevance.check(items, query_count)
}

/// Common inputs of the passes over the queries.
struct Ground<'a> {
    input: &'a ForecastInput<'a>,
    right: Right<'a>,
    /// Queries with a right answer, ascending.
    counted: Vec<usize>,
    count: QueryCount,
    measured: Measured,
    depth: usize,
    shares: Vec<f64>,
    /// Galleries that stand for the whole one at each share.
    views: Views,
    weights: Weights,
    cuts: Vec<usize>,
}

/// Results of one query by the new model: each metric at the switch and in every view, and average precision
/// at every share.
struct Seen {
    switch: Vec<f64>,
    /// Metrics in the mixed gallery of each view; `None` where it has no right answer.
    mixed: Vec<Option<Vec<f64>>>,
    /// Metrics in the views of a random order: the mean of the small ones first, then the largest. Empty
    /// without an order.
    random: [Vec<Option<Vec<f64>>>; 2],
    /// Metrics in the largest view of a random order before it was backfilled.
    adapted: Vec<Option<Vec<f64>>>,
    precision: Vec<f64>,
    /// Average precision with imagined natives, and with their right answers moved by a standard error.
    imagined: Option<[Vec<f64>; 2]>,
}

/// Results of one query by the old model.
struct Today {
    whole_gallery: Vec<f64>,
    views: Vec<Option<Vec<f64>>>,
}

impl<'a> Ground<'a> {
    fn new(input: &'a ForecastInput<'a>, depth: usize) -> Result<Self> {
        let items = input.old.rows();
        let right = Right::new(input);
        let (counted, count) = right.counted(items)?;
        let cuts = grid_cuts(items, POINTS);
        let metrics = Metric::measurable(input.relevance, depth);
        let measured = Measured::new(input.relevance, &CurveOptions { metrics, ..CurveOptions::default() })?;
        Ok(Self {
            input,
            right,
            counted,
            count,
            measured,
            depth,
            shares: cuts.iter().map(|&cut| cut as f64 / items as f64).collect(),
            views: Views::new(input, &cuts),
            weights: Weights::new(input, &cuts, 1.0),
            cuts,
        })
    }

    fn forecast(&self, progress: &Progress) -> Result<GalleryForecast> {
        let input = self.input;
        let items = input.old.rows();
        // Every item is a query where there is time for it.
        let exact = match input.relevance {
            Relevance::Labels { gallery, .. }
                if input.queries.is_none() && items.saturating_mul(items) <= ALL_QUERIES_MAX =>
            {
                let relevance = Relevance::Labels { gallery, queries: None };
                let options =
                    CurveOptions { metrics: self.measured.metrics.clone(), ..CurveOptions::default() };
                Some(evaluate(input.old, None, relevance, input.old_distance, &options, progress)?.values)
            }
            _ => None,
        };
        progress.begin("forecast", "queries", 2 * self.counted.len() as u64);
        let queries = input.queries.map_or(input.native, |queries| queries.new);
        let native = Distances::new(input.native, input.native, Some(queries), input.distance)?;
        let imagined = Imagined::new(input, &self.right, &self.counted, &native)?;
        let results = self.seen(&native, imagined.as_ref(), progress)?;
        let today = self.today(progress)?;
        let is_sample = input.queries.is_none();
        let unsampled = if is_sample { 1.0 - input.held_out.len() as f64 / items as f64 } else { 1.0 };
        let all = self.measured.metrics.iter().copied().enumerate();
        let metrics = all.filter(|&(_, metric)| self.is_told(metric)).map(|(slot, metric)| {
            let table = self.table(slot, metric, &results, today.as_deref());
            // Judged queries are few and their answers are chosen, so only the adapted vectors show the
            // effect of a size on them.
            let by_old = today.is_some() && matches!(input.relevance, Relevance::Labels { .. });
            let exact = exact.as_ref().and_then(|values| values.get(metric)).copied();
            let columns = Columns {
                shares: &self.shares,
                by_old,
                exact,
                is_average: metric == MAP,
                held_out: input.held_out.len(),
                items,
                known: imagined.as_ref().map_or(1.0, |imagined| imagined.known),
            };
            (metric, columns.forecast(&table, unsampled.max(0.0).sqrt()))
        });
        Ok(GalleryForecast {
            items: input.items,
            held_out: input.held_out.len(),
            speaks_of: items,
            queries: self.count,
            metrics: metrics.collect(),
            shares: self.shares.clone(),
        })
    }

    /// Whether forecasts of a metric were found to hold. For top-5 and metrics with a depth, labels make too
    /// steep a function of the size.
    fn is_told(&self, metric: Metric) -> bool {
        let by_judgements = matches!(self.input.relevance, Relevance::Judgements(_));
        [TOP1, MAP].contains(&metric) || (by_judgements && metric == Metric::ndcg_at(self.depth))
    }

    /// Takes one pass over all adapted vectors.
    fn seen(
        &self,
        native: &Distances,
        imagined: Option<&Imagined>,
        progress: &Progress,
    ) -> Result<Vec<Seen>> {
        let input = self.input;
        let queries = input.queries.map_or(input.native, |queries| queries.new);
        let all: Vec<usize> = (0..input.old.rows()).collect();
        let imagined = imagined.map(|imagined| {
            let of_all = ForecastInput { held_out: &all, ..*input };
            (imagined, Weights::new(&of_all, &self.cuts, imagined.kept))
        });
        distances_by_query(
            input.adapted,
            queries,
            &self.counted,
            input.distance,
            progress,
            |place, adapted| {
                let query = self.counted[place];
                let (mut work, mut row) = (Workspace::default(), Row::default());
                let adapted: Vec<f64> = adapted.iter().map(|distance| distance + input.handicap).collect();
                let native = native.query_distances(query);
                let mut rank = |columns: &mut dyn Iterator<Item = (u32, f64)>| {
                    row.fill(columns, &self.right, query);
                    row.rank(&mut work, &self.measured)
                };
                let switch = rank(&mut (0..).zip(adapted.iter().copied()));
                let before =
                    self.views.largest().iter().map(|view| rank(&mut view.all_of(&adapted))).collect();
                let mut of_views = |views: &[View]| -> Vec<_> {
                    views.iter().map(|view| rank(&mut view.mixed(native, &adapted))).collect()
                };
                Seen {
                    switch: switch.unwrap_or_default(),
                    mixed: of_views(&self.views.mixed),
                    random: match &self.views.random {
                        Some(random) => {
                            let drawn = random.small.each_ref().map(|views| of_views(views));
                            [averaged(&drawn), of_views(&random.largest)]
                        }
                        None => Default::default(),
                    },
                    adapted: before,
                    precision: self.weights.precision(&self.right, query, native, &adapted),
                    imagined: imagined.as_ref().map(|(imagined, weights)| {
                        let (mut all, moved) =
                            imagined.distances(&self.right, query, input.held_out, (&adapted, native));
                        let precision = weights.precision(&self.right, query, &all, &adapted);
                        for (item, distance) in all.iter_mut().enumerate() {
                            if self.right.is_right(query, item) {
                                *distance += moved;
                            }
                        }
                        [precision, weights.precision(&self.right, query, &all, &adapted)]
                    }),
                }
            },
        )
    }

    /// Takes one pass over all old vectors; `None` without old queries.
    fn today(&self, progress: &Progress) -> Result<Option<Vec<Today>>> {
        let input = self.input;
        let own_queries;
        let queries = match input.queries {
            Some(ForecastQueries { old: None, .. }) => return Ok(None),
            Some(ForecastQueries { old: Some(old), .. }) => old,
            None => {
                own_queries = input.old.select(input.held_out);
                &own_queries
            }
        };
        let today = distances_by_query(
            input.old,
            queries,
            &self.counted,
            input.old_distance,
            progress,
            |place, old| {
                let query = self.counted[place];
                let (mut work, mut row) = (Workspace::default(), Row::default());
                let mut rank = |columns: &mut dyn Iterator<Item = (u32, f64)>| {
                    row.fill(columns, &self.right, query);
                    row.rank(&mut work, &self.measured)
                };
                let whole_gallery = rank(&mut (0..).zip(old.iter().copied())).unwrap_or_default();
                Today {
                    whole_gallery,
                    views: self.views.largest().iter().map(|view| rank(&mut view.all_of(old))).collect(),
                }
            },
        )?;
        Ok(Some(today))
    }

    /// Collects one metric of every counted query.
    fn table(&self, slot: usize, metric: Metric, results: &[Seen], today: Option<&[Today]>) -> Table {
        let rows = results.iter().enumerate().map(|(place, result)| {
            let today = today.map(|today| &today[place]);
            let mut row = vec![Some(result.switch[slot]), today.map(|today| today.whole_gallery[slot])];
            for view in 0..self.shares.len() {
                let value_at_view = |views: &[Option<Vec<f64>>]| {
                    views.get(view).and_then(|values| values.as_ref()).map(|values| values[slot])
                };
                row.extend([
                    value_at_view(&result.mixed),
                    value_at_view(&result.adapted),
                    today.and_then(|today| value_at_view(&today.views)),
                ]);
                row.extend(result.random.iter().map(|views| value_at_view(views)));
            }
            if metric == MAP {
                row.extend(result.precision.iter().copied().map(Some));
                row.extend(result.imagined.iter().flatten().flatten().copied().map(Some));
            }
            row
        });
        Table::new(rows)
    }
}

/// Mean of every view over drawings, of those with a right answer.
fn averaged(drawn: &[Vec<Option<Vec<f64>>>]) -> Vec<Option<Vec<f64>>> {
    let views = drawn.first().map_or(0, Vec::len);
    let of_view = |view: usize| {
        let known_values: Vec<&Vec<f64>> = drawn.iter().filter_map(|views| views[view].as_ref()).collect();
        let mean = |slot: usize| {
            known_values.iter().map(|values| values[slot]).sum::<f64>() / known_values.len() as f64
        };
        known_values.first().map(|values| (0..values.len()).map(mean).collect())
    };
    (0..views).map(of_view).collect()
}

#[cfg(test)]
mod tests {
    use rand::rand_core::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::curve::{CurveInput, DoNothing, Qrels, curve};
    use crate::space::Distance;
    use crate::statistics::{Interval, shuffle};
    use crate::vectors::Matrix;

    /// Classes around centres, seen by two models that see more or less of them.
    struct World {
        old: Matrix,
        adapted: Matrix,
        new: Matrix,
        labels: Vec<i64>,
    }

    impl World {
        fn new(items: usize, classes: usize, seed: u64) -> Self {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            let mut normal = || (0..6).map(|_| random.next_u32() as f32 / 4294967296.0 - 0.5).sum::<f32>();
            let width = 12;
            let centres = Matrix::from_fn(classes, width, |_, _| normal());
            let labels: Vec<i64> = (0..items).map(|item| (item * 7919 % classes) as i64).collect();
            let mut around = |noise: f32| {
                Matrix::from_fn(items, width, |row, column| {
                    centres.row(labels[row] as usize)[column] + noise * normal()
                })
            };
            let (old, new) = (around(1.3), around(0.8));
            let adapted = Matrix::from_fn(items, width, |row, column| {
                0.5 * (old.row(row)[column] + new.row(row)[column])
            });
            Self { old, adapted, new, labels }
        }

        fn order(&self) -> Vec<usize> {
            let items = self.labels.len();
            (0..items).map(|place| place * 1009 % items).collect()
        }

        fn truth(&self, order: &[usize]) -> crate::curve::Curve {
            let relevance = Relevance::Labels { gallery: &self.labels, queries: None };
            let input = CurveInput::new(&self.new, &self.adapted, order, relevance, Distance::L2);
            let today = DoNothing { gallery: &self.old, queries: None, distance: Distance::L2 };
            let input = CurveInput { do_nothing: Some(today), handicap: 0.1, ..input };
            curve(&input, &CurveOptions::default(), &Progress::default()).unwrap()
        }

        fn forecast(&self, held_out: &[usize], order: Option<&[usize]>) -> GalleryForecast {
            let native = self.new.select(held_out);
            let relevance = Relevance::Labels { gallery: &self.labels, queries: None };
            let input = ForecastInput { order, ..self.input(held_out, &native, relevance) };
            forecast(&input, 10, &Progress::default()).unwrap()
        }

        fn input<'a>(
            &'a self,
            held_out: &'a [usize],
            native: &'a Matrix,
            relevance: Relevance<'a>,
        ) -> ForecastInput<'a> {
            ForecastInput {
                old: &self.old,
                adapted: &self.adapted,
                items: self.labels.len(),
                held_out,
                native,
                order: None,
                queries: None,
                relevance,
                distance: Distance::L2,
                old_distance: Distance::L2,
                handicap: 0.1,
            }
        }

        /// Draws a random sample.
        fn sample(&self, count: usize, seed: u64) -> Vec<usize> {
            let mut items: Vec<usize> = (0..self.labels.len()).collect();
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            shuffle(&mut items, &mut random);
            items.truncate(count);
            items
        }
    }

    #[test]
    fn where_everything_is_held_out_the_forecast_is_the_curve() {
        let world = World::new(240, 12, 3);
        let order = world.order();
        let truth = world.truth(&order);
        // The sample is in another order than the gallery.
        let gallery_forecast = world.forecast(&world.sample(240, 1), Some(&order));
        let cuts = grid_cuts(240, POINTS);
        for metric in [TOP1, MAP] {
            let (line, metric_forecast) = (&truth.lines[metric], &gallery_forecast.metrics[metric]);
            for (place, &cut) in cuts.iter().enumerate() {
                // The end of average precision is extrapolated, and the line goes over into it.
                if metric == MAP && gallery_forecast.shares[place] > 0.75 {
                    continue;
                }
                let at = metric_forecast.at[place];
                assert!((at.estimate - line.values()[cut]).abs() < 1e-6, "{metric} {place} {at:?}");
                assert!((at.high - at.low).abs() < 1e-6, "nothing is left to sample: {at:?}");
            }
            let today = truth.do_nothing.as_ref().unwrap().evaluation.values[metric];
            assert_eq!(
                metric_forecast.do_nothing,
                Some(Interval { estimate: today, low: today, high: today })
            );
        }
        assert_eq!(gallery_forecast.queries, truth.queries);
    }

    #[test]
    fn a_few_held_out_items_forecast_a_gallery_whose_truth_is_known() {
        let world = World::new(1500, 30, 5);
        let order = world.order();
        let truth = world.truth(&order);
        let cuts = grid_cuts(1500, POINTS);
        let (mut inside, mut all, mut off, mut off_alone) = (0, 0, 0.0, 0.0);
        for seed in 0..6 {
            let held_out = world.sample(200, seed);
            let ordered = (seed % 2 == 0).then_some(&order[..]);
            let gallery_forecast = world.forecast(&held_out, ordered);
            for metric in [TOP1, MAP] {
                for place in [0, 5, 10, 15, 20] {
                    let (at, truth) = (
                        gallery_forecast.metrics[metric].at[place],
                        truth.lines[metric].values()[cuts[place]],
                    );
                    all += 1;
                    inside += usize::from(at.low <= truth && truth <= at.high);
                    assert!((at.estimate - truth).abs() < 15.0, "{metric} {place} {at:?} {truth}");
                }
            }
            // Among the held-out items alone, mAP is another number.
            let switch = truth.lines[MAP].start();
            let alone = World {
                old: world.old.select(&held_out),
                adapted: world.adapted.select(&held_out),
                new: world.new.select(&held_out),
                labels: held_out.iter().map(|&item| world.labels[item]).collect(),
            };
            let places: Vec<usize> = (0..200).collect();
            let map = gallery_forecast.metrics[MAP].at[0].estimate;
            let alone = alone.truth(&places).lines[MAP].start();
            off += (map - switch) / 6.0;
            off_alone += (alone - switch) / 6.0;
        }
        assert!(inside * 100 >= 90 * all, "{inside} of {all}");
        assert!(off.abs() < 1.0 && off_alone > 2.0, "{off} {off_alone}");
    }

    #[test]
    fn where_a_query_has_hardly_a_known_right_answer_natives_are_imagined() {
        // A held-out item has 0.7 other held-out items of its class, on average.
        let world = World::new(4000, 200, 7);
        let order = world.order();
        let truth = world.truth(&order);
        let cuts = grid_cuts(4000, POINTS);
        let (mut inside, mut off) = (0, [0.0; 3]);
        for seed in 0..4 {
            let gallery_forecast =
                world.forecast(&world.sample(140, seed), (seed % 2 == 0).then_some(&order[..]));
            for (off, place) in off.iter_mut().zip([10, 15, 20]) {
                let (at, truth) =
                    (gallery_forecast.metrics[MAP].at[place], truth.lines[MAP].values()[cuts[place]]);
                *off += (at.estimate - truth) / 4.0;
                inside += usize::from(at.low <= truth && truth <= at.high);
            }
        }
        assert!(inside >= 11 && off.iter().all(|off| off.abs() < 3.0), "{inside} {off:?}");
    }

    #[test]
    fn separate_queries_and_judgements_are_asked_in_the_whole_gallery() {
        let world = World::new(300, 10, 9);
        let asked_items: Vec<usize> = (0..40).collect();
        let (new, old) = (world.new.select(&asked_items), world.old.select(&asked_items));
        let judged: Vec<Vec<(usize, f64)>> = asked_items
            .iter()
            .map(|&query| {
                (40..300).filter(|&item| world.labels[item] == world.labels[query]).collect::<Vec<_>>()
            })
            .map(|items| items.into_iter().map(|item| (item, 1.0 + (item % 3) as f64)).collect())
            .collect();
        let qrels = Qrels::new(judged).unwrap();
        let held_out = world.sample(120, 2);
        let native = world.new.select(&held_out);
        let input = world.input(&held_out, &native, Relevance::Judgements(&qrels));
        let queries = Some(ForecastQueries { new: &new, old: Some(&old) });
        let input = ForecastInput { queries, ..input };
        let gallery_forecast = forecast(&input, 10, &Progress::default()).unwrap();
        let metric = Metric::ndcg_at(10);
        let options = CurveOptions { metrics: vec![metric], ..CurveOptions::default() };
        let values_of_gallery = |gallery: &Matrix, queries: &Matrix| {
            let right = Relevance::Judgements(&qrels);
            evaluate(gallery, Some(queries), right, Distance::L2, &options, &Progress::default())
                .unwrap()
                .values
        };
        let (today, switch) = (values_of_gallery(&world.old, &old), values_of_gallery(&world.adapted, &new));
        for metric in [metric, MAP, TOP1] {
            let metric_forecast = &gallery_forecast.metrics[metric];
            assert!((metric_forecast.do_nothing.unwrap().estimate - today[metric]).abs() < 1e-9);
            assert!((metric_forecast.at[0].estimate - switch[metric]).abs() < 1e-9, "{metric}");
        }
        // Without the old model's queries there is no value of doing nothing; the rest is there.
        let queries = Some(ForecastQueries { new: &new, old: None });
        let gallery_forecast =
            forecast(&ForecastInput { queries, ..input }, 10, &Progress::default()).unwrap();
        assert_eq!(gallery_forecast.metrics[metric].do_nothing, None);
        let none = ForecastInput { queries: None, ..input };
        assert!(forecast(&none, 10, &Progress::default()).unwrap_err().to_string().contains("queries"));
    }

    #[test]
    fn agreement_is_told_of_the_gallery_whatever_its_size_with_the_range_that_it_has() {
        let world = World::new(1200, 40, 11);
        let order = world.order();
        let relevance = Relevance::Nearest(10);
        let input = CurveInput::new(&world.new, &world.adapted, &order, relevance, Distance::L2);
        let truth = curve(&input, &CurveOptions::default(), &Progress::default()).unwrap();
        let metric = Metric::agreement_at(10);
        let line = truth.lines[metric].values();
        let truth = line[0];
        let (mut off, mut off_alone) = (0.0, 0.0);
        for seed in 0..3 {
            let held_out = world.sample(240, seed);
            let native = world.new.select(&held_out);
            let input = ForecastInput { handicap: 0.0, ..world.input(&held_out, &native, relevance) };
            let gallery_forecast = forecast(&input, 10, &Progress::default()).unwrap();
            let switch = gallery_forecast.metrics[metric].at[0];
            off += (switch.estimate - truth) / 3.0;
            assert!(switch.low <= switch.estimate && switch.estimate <= switch.high);
            let end = gallery_forecast.metrics[metric].at[POINTS - 1];
            assert_eq!((gallery_forecast.speaks_of, end.estimate, end.low), (1200, 100.0, 100.0));
            let middle = gallery_forecast.metrics[metric].at[POINTS / 2];
            assert!((middle.estimate - line[600]).abs() < 8.0, "{middle:?} {}", line[600]);
            let adapted = world.adapted.select(&held_out);
            let places: Vec<usize> = (0..240).collect();
            let alone = CurveInput::new(&native, &adapted, &places, relevance, Distance::L2);
            let alone = curve(&alone, &CurveOptions::default(), &Progress::default()).unwrap();
            off_alone += (alone.lines[metric].start() - truth) / 3.0;
        }
        assert!(off.abs() < 4.0 && off_alone > 2.0 * off.abs(), "{off} {off_alone}");
        // Few items give a wide range, which holds the truth of the gallery as it is.
        for (known_items, width) in [(30, 50.0), (100, 20.0)] {
            let held_out = world.sample(known_items, 0);
            let native = world.new.select(&held_out);
            let gallery_forecast =
                forecast(&world.input(&held_out, &native, relevance), 10, &Progress::default()).unwrap();
            let switch = gallery_forecast.metrics[metric].at[0];
            assert_eq!((gallery_forecast.items, gallery_forecast.speaks_of), (1200, 1200));
            assert!(switch.low <= truth && truth <= switch.high, "{known_items} {truth} {switch:?}");
            assert!(switch.high - switch.low > width, "{known_items} {switch:?}");
        }
    }

    #[test]
    fn what_cannot_be_forecast_is_refused() {
        let world = World::new(100, 5, 1);
        let held_out = world.sample(40, 0);
        let native = world.new.select(&held_out);
        let relevance = Relevance::Labels { gallery: &world.labels, queries: None };
        let input = world.input(&held_out, &native, relevance);
        let refused =
            |input: ForecastInput<'_>| forecast(&input, 10, &Progress::default()).unwrap_err().to_string();
        let mut twice = held_out.clone();
        twice[3] = twice[7];
        assert!(refused(ForecastInput { held_out: &twice, ..input }).contains("held-out rows"));
        let mut outside = held_out.clone();
        outside[3] = 100;
        assert!(refused(ForecastInput { held_out: &outside, ..input }).contains("row 100"));
        let few = world.new.select(&held_out[..29]);
        assert!(refused(ForecastInput { held_out: &held_out[..29], native: &few, ..input }).contains("30"));
        assert!(refused(ForecastInput { order: Some(&[0; 100]), ..input }).contains("order"));
        let unknown = vec![-1; 100];
        let none = Relevance::Labels { gallery: &unknown, queries: None };
        assert!(refused(ForecastInput { relevance: none, ..input }).contains("right answer"));
        let progress = Progress::default();
        progress.cancel();
        assert!(forecast(&input, 10, &progress).unwrap_err().is_cancelled());
    }
}
