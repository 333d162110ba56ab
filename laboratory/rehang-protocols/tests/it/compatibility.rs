//! The cross matrix, hot refreshes and sequences of upgrades against twins that sort whole rankings.

use proptest::prelude::*;
use rehang_core::curve::{CurveOptions, MAP, Metric, Qrels, Relevance, TOP1, TOP5};
use rehang_core::{Adapter, Distance, Matrix, Progress, Space};
use rehang_protocols::compatibility::{
    CrossInput, CrossMatrix, Model, RefreshInput, SequenceInput, UpgradeStep, WidthRule, cross_evaluate,
    hot_refresh, paired_difference, upgrade_sequence,
};

const DEPTH: usize = 2;

fn distance(q: &[f32], g: &[f32], kind: Distance) -> f64 {
    let dot =
        |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum() };
    match kind {
        Distance::L2 => (dot(q, q) + dot(g, g) - 2.0 * dot(q, g)).max(0.0),
        Distance::Cosine => {
            let lengths = dot(q, q).sqrt() * dot(g, g).sqrt();
            if lengths == 0.0 { 1.0 } else { 1.0 - dot(q, g) / lengths }
        }
        Distance::Dot => -dot(q, g),
    }
}

/// Computes top-1, top-5, mAP, mAP@DEPTH in percent of the queries that have a right answer; `None` where
/// there are none.
///
/// `gallery[i]` is item `i`'s vector, or nothing where it has not joined; query q leaves item `own(q)` out.
/// Beside a narrower vector a query is cut.
fn twin(
    queries: &[Vec<f32>],
    gallery: &[Option<Vec<f32>>],
    right: &dyn Fn(usize, usize) -> bool,
    own: &dyn Fn(usize) -> Option<usize>,
    kind: Distance,
) -> Option<[f64; 4]> {
    let mut rows: Vec<[f64; 4]> = Vec::new();
    for (query, vector) in queries.iter().enumerate() {
        // A query that has not joined asks nothing.
        if own(query).is_some_and(|item| gallery[item].is_none()) {
            continue;
        }
        let mut ranked: Vec<(f64, usize)> = (0..gallery.len())
            .filter(|&item| own(query) != Some(item))
            .filter_map(|item| {
                let other = gallery[item].as_ref()?;
                Some((distance(&vector[..other.len()], other, kind), item))
            })
            .collect();
        ranked.sort_by(|a, b| a.0.partial_cmp(&b.0).unwrap().then(a.1.cmp(&b.1)));
        let ranks: Vec<usize> = (1..=ranked.len()).filter(|&rank| right(query, ranked[rank - 1].1)).collect();
        if ranks.is_empty() {
            continue;
        }
        let precision = |depth: usize| -> f64 {
            let within = ranks.iter().enumerate().filter(|&(_, &rank)| rank <= depth);
            within.map(|(before, &rank)| (before + 1) as f64 / rank as f64).sum()
        };
        let hit = |depth: usize| f64::from(u8::from(ranks[0] <= depth));
        rows.push([
            hit(1),
            hit(5),
            precision(usize::MAX) / ranks.len() as f64,
            precision(DEPTH) / ranks.len().min(DEPTH) as f64,
        ]);
    }
    let mean = |column: usize| 100.0 * rows.iter().map(|row| row[column]).sum::<f64>() / rows.len() as f64;
    (!rows.is_empty()).then(|| [0, 1, 2, 3].map(mean))
}

/// Gives the rows of a matrix at a width.
fn rows(matrix: &Matrix, width: usize) -> Vec<Vec<f32>> {
    (0..matrix.rows())
        .map(|row| {
            let mut vector = matrix.row(row).to_vec();
            vector.resize(width, 0.0);
            vector
        })
        .collect()
}

fn near(left: f64, right: f64) -> bool {
    (left - right).abs() < 1e-9
}

/// Draws small whole coordinates, so that distances tie all the time.
fn matrix(rows: usize, columns: usize) -> impl Strategy<Value = Matrix> {
    prop::collection::vec(-2_i8..3, rows * columns)
        .prop_map(move |data| Matrix::new(columns, data.into_iter().map(f32::from).collect()).unwrap())
}

#[derive(Debug, Clone)]
struct Case {
    galleries: Vec<Matrix>,
    /// Vectors of separate queries; `None` where each item asks and leaves itself out.
    queries: Option<Vec<Matrix>>,
    labels: Vec<i64>,
    query_labels: Vec<i64>,
    order: Vec<usize>,
    fractions: Vec<f64>,
    joined_at: Vec<usize>,
    distance: Distance,
    judged: bool,
}

impl Case {
    fn model(&self, number: usize) -> Model<'_> {
        Model {
            name: ["a", "b", "c"][number],
            gallery: &self.galleries[number],
            queries: self.queries.as_ref().map(|queries| &queries[number]),
        }
    }

    fn query_labels(&self) -> &[i64] {
        if self.queries.is_some() { &self.query_labels } else { &self.labels }
    }

    fn right(&self, query: usize, item: usize) -> bool {
        self.query_labels()[query] >= 0 && self.query_labels()[query] == self.labels[item]
    }

    fn own(&self, query: usize) -> Option<usize> {
        self.queries.is_none().then_some(query)
    }

    fn query_vectors(&self, number: usize) -> &Matrix {
        self.queries.as_ref().map_or(&self.galleries[number], |queries| &queries[number])
    }

    /// Gives the labels again, as judgements.
    fn qrels(&self) -> Qrels {
        let judged = |query: usize| {
            (0..self.labels.len()).filter(|&item| self.right(query, item)).map(|item| (item, 1.0)).collect()
        };
        Qrels::new((0..self.query_labels().len()).map(judged).collect()).unwrap()
    }

    fn relevance<'a>(&'a self, qrels: &'a Qrels) -> Relevance<'a> {
        if self.judged {
            return Relevance::Judgements(qrels);
        }
        let queries = self.queries.is_some().then_some(&self.query_labels[..]);
        Relevance::Labels { gallery: &self.labels, queries }
    }
}

fn case() -> impl Strategy<Value = Case> {
    (1_usize..9, 1_usize..4, prop::array::uniform3(1_usize..4), any::<bool>())
        .prop_flat_map(|(items, queries, widths, separate)| {
            let galleries = widths.map(|width| matrix(items, width));
            let query_sets = widths.map(|width| matrix(queries, width));
            (
                galleries,
                query_sets,
                Just(separate),
                prop::collection::vec(-1_i64..3, items),
                prop::collection::vec(-1_i64..3, queries),
                Just((0..items).collect::<Vec<_>>()).prop_shuffle(),
                prop::collection::vec(prop::sample::select(vec![0.0, 0.3, 0.5, 1.0]), 3),
                prop::collection::vec(0_usize..3, items),
                (prop::sample::select(Distance::ALL.to_vec()), any::<bool>()),
            )
        })
        .prop_map(
            |(galleries, queries, separate, labels, query_labels, order, fractions, joined_at, rest)| Case {
                galleries: galleries.into(),
                queries: separate.then(|| queries.into()),
                labels,
                query_labels,
                order,
                fractions,
                joined_at,
                distance: rest.0,
                judged: rest.1,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_cross_matrix_equals_its_twin(case in case()) {
        let models = [0, 1, 2].map(|number| case.model(number));
        let qrels = case.qrels();
        let input = CrossInput {
            models: &models,
            relevance: case.relevance(&qrels),
            distance: case.distance,
            metrics: &[Metric::map_at(DEPTH)],
        };
        let result = cross_evaluate(&input, &Progress::default());
        for asking in 0..3 {
            for asked in 0..3 {
                let width = case.galleries[asked].columns();
                let queries = rows(case.query_vectors(asking), width);
                let gallery: Vec<_> = rows(&case.galleries[asked], width).into_iter().map(Some).collect();
                let right = |query: usize, item: usize| case.right(query, item);
                let Some(expected) = twin(&queries, &gallery, &right, &|q| case.own(q), case.distance) else {
                    prop_assert!(result.is_err(), "no query counts");
                    continue;
                };
                let result = result.as_ref().unwrap();
                let metrics = [TOP1, TOP5, MAP, Metric::map_at(DEPTH)];
                for (metric, expected) in metrics.into_iter().zip(expected) {
                    let value = result.matrix(metric).values[asking][asked];
                    prop_assert!(near(value, expected), "{metric:?} {asking} {asked}: {value} {expected}");
                    let own = result.per_query(asking, asked, metric);
                    prop_assert!(near(own.iter().sum::<f64>() / own.len() as f64, expected));
                }
                let rule = result.cells[asking][asked].width_rule;
                let wide = case.galleries[asking].columns();
                prop_assert_eq!(rule == WidthRule::FirstCoordinates, wide > width);
                prop_assert_eq!(rule == WidthRule::ZeroPadded, wide < width);
            }
        }
    }

    #[test]
    fn a_hot_refresh_equals_its_twin_at_every_cut(case in case()) {
        let items = case.labels.len();
        let qrels = case.qrels();
        let reversed: Vec<usize> = case.order.iter().rev().copied().collect();
        let orders: [(&str, &[usize]); 2] = [("order", &case.order), ("reversed", &reversed)];
        let input = RefreshInput {
            old: case.model(0),
            new: case.model(1),
            relevance: case.relevance(&qrels),
            distance: case.distance,
            orders: &orders,
        };
        let options = CurveOptions { metrics: vec![Metric::map_at(DEPTH)], ..CurveOptions::default() };
        let result = hot_refresh(&input, &options, &Progress::default());
        let width = case.galleries[0].columns().max(case.galleries[1].columns());
        let (old, new) =
            (rows(&case.galleries[0], case.galleries[0].columns()), rows(&case.galleries[1], width));
        let queries = rows(case.query_vectors(1), width);
        let right = |query: usize, item: usize| case.right(query, item);
        for (place, (name, order)) in orders.into_iter().enumerate() {
            for cut in 0..=items {
                let mut gallery: Vec<_> = old.iter().cloned().map(Some).collect();
                for &item in &order[..cut] {
                    gallery[item] = Some(new[item].clone());
                }
                let Some(expected) = twin(&queries, &gallery, &right, &|q| case.own(q), case.distance) else {
                    prop_assert!(result.is_err());
                    continue;
                };
                let refresh = &result.as_ref().unwrap()[place];
                prop_assert_eq!(&refresh.order, name);
                let curve = &refresh.curve;
                for ((_, line), expected) in curve.lines.iter().zip(expected) {
                    prop_assert!(near(line.values()[cut], expected), "{name} {cut}");
                }
                // NFR@1 by counting: right in the old gallery, wrong in this one.
                let hits = |gallery: &[Option<Vec<f32>>]| -> Vec<bool> {
                    (0..queries.len())
                        .filter_map(|query| {
                            let one = |q: usize, item: usize| q == query && right(q, item);
                            twin(&queries, gallery, &one, &|q| case.own(q), case.distance)
                        })
                        .map(|metrics| metrics[0] > 0.0)
                        .collect()
                };
                let start: Vec<_> = old.iter().cloned().map(Some).collect();
                let (before, now) = (hits(&start), hits(&gallery));
                let right_before = before.iter().filter(|&&hit| hit).count();
                let lost = before.iter().zip(&now).filter(|&(&before, &now)| before && !now).count();
                let rate = 100.0 * lost as f64 / right_before.max(1) as f64;
                prop_assert!(near(curve.flips[TOP1].rate.values()[cut], rate));
            }
        }
    }

    #[test]
    fn a_sequence_equals_its_twin(case in case(), joins in any::<bool>()) {
        let items = case.labels.len();
        let qrels = case.qrels();
        let steps: Vec<UpgradeStep<'_>> = (0..3)
            .map(|number| UpgradeStep {
                model: case.model(number),
                order: &case.order,
                backfilled: case.fractions[number],
                adapter: None,
            })
            .collect();
        let input = SequenceInput {
            steps: &steps,
            joined_at: joins.then_some(&case.joined_at[..]),
            relevance: case.relevance(&qrels),
            distance: case.distance,
            metrics: &[Metric::map_at(DEPTH)],
        };
        let result = upgrade_sequence(&input, &Progress::default());
        let joined = |item: usize| if joins { case.joined_at[item] } else { 0 };
        let width = case.galleries.iter().map(Matrix::columns).max().unwrap();
        let vectors: Vec<Vec<Vec<f32>>> = case.galleries.iter().map(|gallery| rows(gallery, width)).collect();
        let right = |query: usize, item: usize| case.right(query, item);
        // Model that each item is by, in the two galleries.
        let mut hot: Vec<Option<usize>> = vec![None; items];
        let mut kept: Vec<Option<usize>> = vec![None; items];
        for number in 0..3 {
            for item in (0..items).filter(|&item| joined(item) == number) {
                (hot[item], kept[item]) = (Some(number), Some(number));
            }
            let queries = rows(case.query_vectors(number), width);
            let value = |by: &[Option<usize>]| {
                let gallery: Vec<_> =
                    (0..items).map(|item| by[item].map(|model| vectors[model][item].clone())).collect();
                twin(&queries, &gallery, &right, &|q| case.own(q), case.distance)
            };
            let start = value(&hot);
            let waiting: Vec<usize> = case
                .order
                .iter()
                .copied()
                .filter(|&item| number > 0 && hot[item].is_some_and(|model| model != number))
                .collect();
            let count = (case.fractions[number] * waiting.len() as f64 + 1e-9).floor() as usize;
            for &item in &waiting[..count] {
                hot[item] = Some(number);
            }
            let all: Vec<_> = hot.iter().map(|model| model.map(|_| number)).collect();
            let (Some(start), Some(end), Some(no), Some(full)) =
                (start, value(&hot), value(&kept), value(&all))
            else {
                prop_assert!(result.is_err());
                return Ok(());
            };
            let Ok(result) = &result else { continue };
            let step = &result[number];
            for (metrics, expected) in
                [(&step.hot_start, start), (&step.hot_end, end), (&step.no_refresh, no), (&step.full, full)]
            {
                let ours = metrics.iter().map(|(_, &value)| value);
                for (ours, expected) in ours.into_iter().zip(expected) {
                    prop_assert!(near(ours, expected), "step {number}: {ours} {expected}");
                }
            }
            prop_assert_eq!(step.backfilled, count);
            prop_assert_eq!(step.native, hot.iter().filter(|&&model| model == Some(number)).count());
        }
        // Everything was defined at every step, so there must be a result, unless the first gallery is empty.
        prop_assert!(result.is_ok());
    }
}

#[test]
fn pairs_leave_the_paragon_out() {
    let names = ["one", "two", "three", "paragon"].map(String::from);
    let matrix = CrossMatrix::from_fn(&names, |i, j| Ok((10 * i + j) as f64)).unwrap();
    let pairs: Vec<String> =
        matrix.pairs(Some(3)).iter().map(|pair| format!("{}>{}", pair.old, pair.new)).collect();
    assert_eq!(pairs, ["one>two", "one>three", "two>three"]);
    assert!(matrix.pairs(Some(3)).iter().all(|pair| pair.best == "paragon" && pair.best_best == 33.0));
    assert_eq!(matrix.pairs(None).len(), 6);
    assert!(matrix.pairs(None).iter().all(|pair| pair.gain_down.is_none() && pair.best == pair.new));
    assert!(CrossMatrix::from_fn(&[], |_, _| Ok(0.0)).is_err());
    assert!(CrossMatrix::from_fn(&["a", "a"].map(String::from), |_, _| Ok(0.0)).is_err());
}

/// BCT (9): M(new*) is the best of any variant of the new model; a compatible one may be better than the
/// independent one.
#[test]
fn the_whole_of_an_update_gain_is_the_new_model_where_it_is_better_than_the_paragon() {
    let names = ["old", "compatible", "paragon"].map(String::from);
    let gains = |compatible: f64| {
        let values = [[60.0, f64::NAN, f64::NAN], [65.0, compatible, f64::NAN], [0.0, f64::NAN, 70.0]];
        let matrix = CrossMatrix::from_fn(&names, |i, j| Ok(values[i][j])).unwrap();
        let pair = matrix.compatibility(0, 1, Some(2));
        (pair.update_gain, pair.gain_down.map(f64::signum), pair.best_best)
    };
    assert_eq!(gains(69.0), (Some(50.0), Some(1.0), 70.0));
    assert_eq!(gains(80.0), (Some(25.0), Some(-1.0), 70.0));
}

#[test]
fn a_paired_difference_sees_what_two_separate_intervals_would_not() {
    // Queries differ wildly, and every one gains a point.
    let before: Vec<f64> = (0..50).map(|query| f64::from(query * 2)).collect();
    let after: Vec<f64> = before.iter().map(|value| value + 1.0).collect();
    let interval = paired_difference(&after, &before, 200, 0.95, 1).unwrap();
    assert!(near(interval.low, 1.0) && near(interval.high, 1.0));
    assert!(paired_difference(&after[1..], &before, 200, 0.95, 1).is_err());
}

#[test]
fn a_share_of_the_items_is_of_whole_items() {
    let old = Matrix::from_fn(100, 1, |row, _| row as f32);
    let new = Matrix::from_fn(100, 1, |row, _| 2.0 * row as f32);
    let labels: Vec<i64> = (0..100).map(|item| item / 10).collect();
    let order: Vec<usize> = (0..100).collect();
    // In floating point 0.29 · 100 and 0.57 · 100 are just below whole numbers.
    for (share, items) in [(0.29, 29), (0.57, 57), (0.295, 29), (1.0, 100), (0.0, 0)] {
        let step = |name, gallery, backfilled| UpgradeStep {
            model: Model { name, gallery, queries: None },
            order: &order,
            backfilled,
            adapter: None,
        };
        let input = SequenceInput {
            steps: &[step("old", &old, 0.0), step("new", &new, share)],
            joined_at: None,
            relevance: Relevance::Labels { gallery: &labels, queries: None },
            distance: Distance::L2,
            metrics: &[],
        };
        let sequence = upgrade_sequence(&input, &Progress::default()).unwrap();
        assert_eq!(sequence[1].backfilled, items, "{share}");
    }
}

#[test]
fn models_that_do_not_belong_together_are_refused() {
    let (three, four) = (Matrix::zeros(3, 2), Matrix::zeros(4, 2));
    let labels = [0, 0, 0];
    let cross = |models: &[Model<'_>]| {
        let input = CrossInput {
            models,
            relevance: Relevance::Labels { gallery: &labels, queries: None },
            distance: Distance::L2,
            metrics: &[],
        };
        cross_evaluate(&input, &Progress::default()).unwrap_err().to_string()
    };
    let model = |name, gallery, queries| Model { name, gallery, queries };
    assert!(cross(&[]).contains("models"));
    assert!(cross(&[model("a", &three, None), model("a", &three, None)]).contains("\"a\""));
    let message = cross(&[model("a", &three, None), model("b", &four, None)]);
    assert!(message.contains("\"b\"") && message.contains('3') && message.contains('4'), "{message}");
    assert!(cross(&[model("a", &three, None), model("b", &three, Some(&four))]).contains("\"a\""));
    let nan = Matrix::new(2, vec![0.0, 0.0, f32::NAN, 0.0, 0.0, 0.0]).unwrap();
    assert!(cross(&[model("a", &three, None), model("b", &nan, None)]).contains("\"b\""));
}

#[test]
fn widths_are_brought_together_without_a_copy_where_they_agree() {
    let matrix = Matrix::from_fn(2, 3, |row, column| (row * 3 + column) as f32);
    assert!(matches!(matrix.at_width(3), std::borrow::Cow::Borrowed(_)));
    assert_eq!(matrix.at_width(5).at_width(3).as_slice(), matrix.as_slice());
}

/// Three models on a line give their numbers different meanings, and each adapter translates. With adapters,
/// items that are not backfilled are as good as new; without them they are not.
#[test]
fn a_gallery_goes_through_one_adapter_after_the_other() {
    let line_of_values =
        |factor: f32, offset: f32| Matrix::from_fn(40, 1, |row, _| factor * row as f32 + offset);
    let galleries = [line_of_values(1.0, 0.0), line_of_values(-1.0, 7.0), line_of_values(2.0, 300.0)];
    let space = |name: &str| Space::new(name, 1, Distance::L2, false);
    let line = |from: &str, to: &str, factor: f32, offset: f32| {
        let mut adapter = Adapter::identity(space(from), space(to), None).unwrap();
        adapter.map.mixer[0].weight = Matrix::new(1, vec![factor]).unwrap();
        adapter.map.mixer[0].bias = vec![offset];
        adapter
    };
    // From x to 7 − x, and from there to 2x + 300.
    let (first, second) = (line("a", "b", -1.0, 7.0), line("b", "c", -2.0, 314.0));
    let labels: Vec<i64> = (0..40).map(|item| item / 4).collect();
    let order: Vec<usize> = (0..40).collect();
    let joined: Vec<usize> = (0..40).map(|item| usize::from(item % 5 == 0)).collect();
    let sequence = |adapters: [Option<&Adapter>; 3]| {
        let step = |(number, name): (usize, &'static str)| UpgradeStep {
            model: Model { name, gallery: &galleries[number], queries: None },
            order: &order,
            backfilled: 0.3,
            adapter: adapters[number],
        };
        let steps: Vec<UpgradeStep<'_>> = ["a", "b", "c"].into_iter().enumerate().map(step).collect();
        let input = SequenceInput {
            steps: &steps,
            joined_at: Some(&joined),
            relevance: Relevance::Labels { gallery: &labels, queries: None },
            distance: Distance::L2,
            metrics: &[],
        };
        upgrade_sequence(&input, &Progress::default())
    };
    let with = sequence([None, Some(&first), Some(&second)]).unwrap();
    for step in &with {
        for state in [&step.no_refresh, &step.hot_start, &step.hot_end] {
            assert!(near(state[MAP], step.full[MAP]), "{}", step.model);
        }
    }
    let without = sequence([None, None, None]).unwrap();
    assert!(without[2].no_refresh[MAP] < with[2].no_refresh[MAP] - 10.0);
    let wide = Adapter::identity(
        Space::new("b", 2, Distance::L2, false),
        Space::new("c", 2, Distance::L2, false),
        None,
    );
    let error = sequence([None, None, Some(&wide.unwrap())]).unwrap_err().to_string();
    assert!(error.contains("the adapter to \"c\""), "{error}");
}
