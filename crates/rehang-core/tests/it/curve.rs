//! The curve against a brute-force twin: at every cut the distances are put together anew, sorted, and read
//! off.

use proptest::prelude::*;
use rehang_core::curve::{
    ByMetric, Curve, CurveInput, CurveOptions, Distances, DoNothing, Line, MAP, Metric, Qrels, Relevance,
    TOP1, TOP5, curve, evaluate,
};
use rehang_core::{Distance, ErrorKind, Matrix, Progress};

/// Computes the distance by its definition, with loops that share nothing with the product: no length is
/// squared and no product taken apart.
///
/// Ties are decided by the last bit. So the tests use numbers for which every step is exact: see
/// [`whole_numbers`] and [`directions`]. Elsewhere equal vectors get equal bits, and others are far from a
/// tie.
fn distance(q: &[f32], g: &[f32], kind: Distance) -> f64 {
    match kind {
        Distance::L2 => {
            let mut sum = 0.0;
            for (&a, &b) in q.iter().zip(g) {
                let difference = f64::from(a) - f64::from(b);
                sum += difference * difference;
            }
            sum
        }
        Distance::Cosine => {
            let (from, to) = (unit(q), unit(g));
            let mut cosine = 0.0;
            for (a, b) in from.iter().zip(&to) {
                cosine += a * b;
            }
            1.0 - cosine
        }
        Distance::Dot => {
            let mut sum = 0.0;
            for (&a, &b) in q.iter().zip(g) {
                sum -= f64::from(a) * f64::from(b);
            }
            sum
        }
    }
}

/// Scales a vector to length 1. A zero vector stays as it is, so that its cosine with anything is 0.
fn unit(vector: &[f32]) -> Vec<f64> {
    let mut squares = 0.0;
    for &value in vector {
        squares += f64::from(value) * f64::from(value);
    }
    let length = if squares == 0.0 { 1.0 } else { f64::sqrt(squares) };
    vector.iter().map(|&value| f64::from(value) / length).collect()
}

/// Right and wrong answers to one query, as gains (negative: not in the ranking).
type Gains = Vec<f64>;

/// Metrics of one query at one state.
#[derive(Clone, Copy, Default)]
struct Point {
    top1: f64,
    top5: f64,
    within_depth: f64,
    ap: f64,
    map_at: f64,
    precision_at: f64,
    ndcg_at: f64,
    recall_at: f64,
    mrr_at: f64,
}

const DEPTH: usize = 3;
/// Metrics that are measured besides top-1, top-5 and mAP.
const FURTHER: [Metric; 4] =
    [Metric::map_at(DEPTH), Metric::precision_at(DEPTH), Metric::ndcg_at(DEPTH), Metric::recall_at(DEPTH)];

fn point(distances: &[f64], gains: &Gains) -> Point {
    let mut ranked: Vec<usize> = (0..distances.len()).filter(|&item| gains[item] >= 0.0).collect();
    ranked.sort_by(|&a, &b| distances[a].partial_cmp(&distances[b]).unwrap().then(a.cmp(&b)));
    let ranks: Vec<usize> = (1..=ranked.len()).filter(|&rank| gains[ranked[rank - 1]] > 0.0).collect();
    let precision = |(index, &rank): (usize, &usize)| (index + 1) as f64 / rank as f64;
    let gain_at = |rank: usize, gain: f64| gain / ((rank + 1) as f64).log2();
    let mut best: Vec<f64> = gains.iter().copied().filter(|&gain| gain > 0.0).collect();
    best.sort_by(|a, b| b.total_cmp(a));
    let ideal: f64 = best.iter().take(DEPTH).enumerate().map(|(i, &gain)| gain_at(i + 1, gain)).sum();
    let count = ranks.len() as f64;
    let head = || ranks.iter().enumerate().filter(|(_, rank)| **rank <= DEPTH);
    Point {
        top1: f64::from(u8::from(ranks[0] <= 1)),
        top5: f64::from(u8::from(ranks[0] <= 5)),
        within_depth: f64::from(u8::from(ranks[0] <= DEPTH)),
        ap: ranks.iter().enumerate().map(precision).sum::<f64>() / count,
        map_at: head().map(precision).sum::<f64>() / count.min(DEPTH as f64),
        precision_at: head().count() as f64 / DEPTH as f64,
        ndcg_at: head().map(|(_, &rank)| gain_at(rank, gains[ranked[rank - 1]])).sum::<f64>() / ideal,
        recall_at: head().count() as f64 / count,
        mrr_at: if ranks[0] <= DEPTH { 1.0 / ranks[0] as f64 } else { 0.0 },
    }
}

/// Computes the metrics of every query at every cut: `[cuts][counted queries]`.
fn twin(case: &Case, gains: &[Gains], counted: &[usize]) -> Vec<Vec<Point>> {
    let queries = case.queries.as_ref().unwrap_or(&case.native);
    (0..=case.native.rows())
        .map(|cut| {
            let mut gallery = case.adapted.clone();
            for &item in &case.order[..cut] {
                gallery.row_mut(item).copy_from_slice(case.native.row(item));
            }
            counted
                .iter()
                .map(|&query| {
                    let mut distances: Vec<f64> = (0..gallery.rows())
                        .map(|item| distance(queries.row(query), gallery.row(item), case.distance))
                        .collect();
                    for &item in &case.order[cut..] {
                        distances[item] += case.handicap;
                    }
                    point(&distances, &gains[query])
                })
                .collect()
        })
        .collect()
}

/// Everything that a curve can be computed from, with labels or judgements.
#[derive(Debug, Clone)]
struct Case {
    native: Matrix,
    adapted: Matrix,
    old: Matrix,
    queries: Option<Matrix>,
    order: Vec<usize>,
    labels: Vec<i64>,
    query_labels: Vec<i64>,
    groups: Vec<i64>,
    judgements: Option<Vec<Vec<(usize, f64)>>>,
    distance: Distance,
    handicap: f64,
}

impl Case {
    fn query_count(&self) -> usize {
        self.queries.as_ref().map_or(self.native.rows(), Matrix::rows)
    }

    fn gains(&self) -> Vec<Gains> {
        (0..self.query_count())
            .map(|query| {
                let mut gains = vec![0.0; self.native.rows()];
                if let Some(judgements) = &self.judgements {
                    for &(item, gain) in &judgements[query] {
                        gains[item] = gain;
                    }
                } else {
                    let own =
                        if self.queries.is_some() { self.query_labels[query] } else { self.labels[query] };
                    for (gain, &label) in gains.iter_mut().zip(&self.labels) {
                        *gain = if own >= 0 && own == label { 1.0 } else { 0.0 };
                    }
                }
                if self.queries.is_none() {
                    gains[query] = -1.0;
                }
                gains
            })
            .collect()
    }
}

/// Draws vectors for a distance, small and with many duplicates and ties.
fn matrix(rows: usize, columns: usize, kind: Distance) -> BoxedStrategy<Matrix> {
    match kind {
        Distance::L2 | Distance::Dot => whole_numbers(rows, columns),
        Distance::Cosine => directions(rows, columns),
    }
}

/// Draws small whole numbers: sums, products and squares of them are exact in every order.
fn whole_numbers(rows: usize, columns: usize) -> BoxedStrategy<Matrix> {
    prop::collection::vec(-2_i8..=2, rows * columns)
        .prop_map(move |values| Matrix::new(columns, values.into_iter().map(f32::from).collect()).unwrap())
        .boxed()
}

/// Draws vectors whose lengths are 0 or powers of two, so dividing by a length is exact, and so is every
/// cosine. They lie along an axis, or have four coordinates of one size.
fn directions(rows: usize, columns: usize) -> BoxedStrategy<Matrix> {
    let row = (0..columns, any::<bool>(), 0..5_u8, any::<[bool; 4]>()).prop_map(
        move |(first, spread, size, negative)| {
            let size = [0.0, 0.5, 1.0, 2.0, 4.0][size as usize];
            let sign = |place: usize| if negative[place] { -size } else { size };
            let mut row = vec![0.0; columns];
            if spread && columns >= 4 {
                (0..4).for_each(|place| row[(first + place) % columns] = sign(place));
            } else {
                row[first] = sign(0);
            }
            row
        },
    );
    prop::collection::vec(row, rows)
        .prop_map(move |values| Matrix::new(columns, values.concat()).unwrap())
        .boxed()
}

fn case() -> impl Strategy<Value = Case> {
    (1_usize..40, 1_usize..7, prop::option::of(1_usize..12), 1_i64..5, 0_usize..6, any::<bool>())
        .prop_flat_map(|(items, columns, queries, classes, kind, judged)| {
            let query_count = queries.unwrap_or(items);
            let (kind, handicap) = (Distance::ALL[kind % 3], if kind < 3 { 0.0 } else { 1.0 });
            let judgement = (0..items, prop::sample::select(vec![-1.0, 0.0, 1.0, 2.0, 3.5]));
            let judgements = prop::collection::vec(
                prop::collection::btree_map(judgement.0, judgement.1, 0..8)
                    .prop_map(|judged| judged.into_iter().collect::<Vec<_>>()),
                query_count,
            );
            (
                (matrix(items, columns, kind), matrix(items, columns, kind), whole_numbers(items, 2)),
                queries.map_or(Just(None).boxed(), |m| matrix(m, columns, kind).prop_map(Some).boxed()),
                Just((0..items).collect::<Vec<_>>()).prop_shuffle(),
                prop::collection::vec(-1..classes, items),
                prop::collection::vec(-1..classes, query_count),
                prop::collection::vec(-1_i64..3, query_count),
                judgements.prop_map(move |judgements| judged.then_some(judgements)),
                Just((kind, handicap)),
            )
        })
        .prop_map(
            |((native, adapted, old), queries, order, labels, query_labels, groups, judgements, compared)| {
                let (distance, handicap) = compared;
                Case {
                    native,
                    adapted,
                    old,
                    queries,
                    order,
                    labels,
                    query_labels,
                    groups,
                    judgements,
                    distance,
                    handicap,
                }
            },
        )
}

fn close(line: &Line, expected: impl Fn(usize) -> f64) -> Result<(), TestCaseError> {
    for (cut, &value) in line.values().iter().enumerate() {
        let expected = expected(cut);
        prop_assert!((value - expected).abs() < 1e-9, "cut {cut}: {value} against {expected}");
    }
    Ok(())
}

fn mean(points: &[Point], metric: fn(&Point) -> f64) -> f64 {
    100.0 * points.iter().map(metric).sum::<f64>() / points.len() as f64
}

fn check(case: &Case) -> Result<(), TestCaseError> {
    let gains = case.gains();
    let qrels = case.judgements.as_ref().map(|judgements| Qrels::new(judgements.clone()).unwrap());
    let relevance = qrels.as_ref().map_or(
        Relevance::Labels {
            gallery: &case.labels,
            queries: case.queries.is_some().then_some(&case.query_labels[..]),
        },
        Relevance::Judgements,
    );
    // Old queries live in the old space; their number is what matters here.
    let old_queries = case
        .queries
        .as_ref()
        .map(|queries| Matrix::from_fn(queries.rows(), 2, |row, column| (row + column) as f32));
    let input = CurveInput {
        native: &case.native,
        adapted: &case.adapted,
        order: &case.order,
        queries: case.queries.as_ref(),
        relevance,
        distance: case.distance,
        handicap: case.handicap,
        groups: Some(&case.groups),
        do_nothing: Some(DoNothing {
            gallery: &case.old,
            queries: old_queries.as_ref(),
            distance: Distance::L2,
        }),
        known: None,
    };
    let options = CurveOptions {
        metrics: FURTHER.into_iter().chain([Metric::mrr_at(3)]).collect(),
        flips_at: Some(DEPTH),
        kept_cuts: 4,
    };
    let result = curve(&input, &options, &Progress::default());
    if let Ok(made) = &result
        && case.adapted.columns() == case.native.columns()
    {
        let distances =
            |gallery| Distances::new(&case.native, gallery, case.queries.as_ref(), case.distance).unwrap();
        let (native, adapted) = (distances(&case.native), distances(&case.adapted));
        let known = CurveInput { known: Some([&native, &adapted]), ..input };
        assert_eq!(curve(&known, &options, &Progress::default()).unwrap(), *made);
    }
    let counted: Vec<usize> =
        (0..gains.len()).filter(|&query| gains[query].iter().any(|&gain| gain > 0.0)).collect();
    if counted.is_empty() {
        let nothing = matches!(result.unwrap_err().kind(), ErrorKind::NothingToFind { .. });
        prop_assert!(nothing);
        return Ok(());
    }
    let made = result.unwrap();
    let points = twin(case, &gains, &counted);

    prop_assert_eq!(&made.per_query.queries, &counted);
    prop_assert_eq!(made.queries.given, gains.len());
    prop_assert_eq!(made.queries.counted, counted.len());
    prop_assert_eq!(
        made.queries.given,
        made.queries.counted + made.queries.without_positives + made.queries.unlabelled
    );
    prop_assert_eq!(made.lines[TOP1].values().len(), case.native.rows() + 1);
    close(&made.lines[TOP1], |cut| mean(&points[cut], |point| point.top1))?;
    close(&made.lines[TOP5], |cut| mean(&points[cut], |point| point.top5))?;
    close(&made.lines[MAP], |cut| mean(&points[cut], |point| point.ap))?;
    close(&made.lines[Metric::map_at(DEPTH)], |cut| mean(&points[cut], |point| point.map_at))?;
    close(&made.lines[Metric::precision_at(DEPTH)], |cut| mean(&points[cut], |point| point.precision_at))?;
    close(&made.lines[Metric::ndcg_at(DEPTH)], |cut| mean(&points[cut], |point| point.ndcg_at))?;
    close(&made.lines[Metric::recall_at(DEPTH)], |cut| mean(&points[cut], |point| point.recall_at))?;
    close(&made.lines[Metric::mrr_at(3)], |cut| mean(&points[cut], |point| point.mrr_at))?;

    // Flips against the start, and against the search of today.
    let today = made.do_nothing.as_ref().unwrap();
    let today_points: Vec<Point> = counted
        .iter()
        .map(|&query| {
            let vector = old_queries.as_ref().unwrap_or(&case.old).row(query);
            let distances: Vec<f64> =
                (0..case.old.rows()).map(|item| distance(vector, case.old.row(item), Distance::L2)).collect();
            point(&distances, &gains[query])
        })
        .collect();
    prop_assert!((today.evaluation.values[MAP] - mean(&today_points, |point| point.ap)).abs() < 1e-9);
    let metrics: [fn(&Point) -> f64; 3] =
        [|point| point.top1, |point| point.top5, |point| point.within_depth];
    for (reference, by_depth) in [(&points[0], &made.flips), (&today_points, &today.flips)] {
        prop_assert!(by_depth.metrics().eq([TOP1, TOP5, Metric::top(DEPTH)]));
        for (metric, (_, flips)) in metrics.iter().zip(by_depth.iter()) {
            let right = reference.iter().filter(|point| metric(point) > 0.0).count();
            prop_assert_eq!(flips.right, right);
            for cut in 0..points.len() {
                let pairs = || reference.iter().zip(&points[cut]).map(|(a, b)| (metric(a), metric(b)));
                let negative = pairs().filter(|&pair| pair == (1.0, 0.0)).count();
                prop_assert_eq!(flips.negative[cut], negative as u64);
                prop_assert_eq!(
                    flips.positive[cut],
                    pairs().filter(|&pair| pair == (0.0, 1.0)).count() as u64
                );
                let rate = 100.0 * negative as f64 / right.max(1) as f64;
                prop_assert!((flips.rate.values()[cut] - rate).abs() < 1e-9);
            }
        }
    }

    // Groups and their gap.
    let members = |group: i64| -> Vec<usize> {
        (0..counted.len()).filter(|&place| case.groups[counted[place]] == group).collect()
    };
    let group_top1 = |group: i64, cut: usize| {
        let chosen: Vec<Point> = members(group).into_iter().map(|place| points[cut][place]).collect();
        mean(&chosen, |point| point.top1)
    };
    let present: Vec<i64> = (0..3).filter(|&group| !members(group).is_empty()).collect();
    prop_assert_eq!(made.groups.iter().map(|group| group.group).collect::<Vec<_>>(), present.clone());
    for group in &made.groups {
        prop_assert_eq!(group.queries, members(group.group).len());
        close(&group.top1, |cut| group_top1(group.group, cut))?;
    }
    prop_assert_eq!(made.gap.is_some(), !present.is_empty());
    if let Some(gap) = &made.gap {
        close(gap, |cut| {
            let values: Vec<f64> = present.iter().map(|&group| group_top1(group, cut)).collect();
            values.iter().copied().fold(0.0, f64::max) - values.iter().copied().fold(100.0, f64::min)
        })?;
    }

    // Values of every query.
    for place in 0..counted.len() {
        let states = &points[..points.len() - 1];
        let area = |metric: fn(&Point) -> f64| {
            100.0 * states.iter().map(|points| metric(&points[place])).sum::<f64>() / states.len() as f64
        };
        prop_assert!((made.per_query.areas[TOP1][place] - area(|point| point.top1)).abs() < 1e-9);
        prop_assert!((made.per_query.areas[TOP5][place] - area(|point| point.top5)).abs() < 1e-9);
        prop_assert!((made.per_query.areas[MAP][place] - area(|point| point.ap)).abs() < 1e-9);
        for (column, &cut) in made.per_query.cuts.iter().enumerate() {
            let kept = |metric: Metric| {
                f64::from(made.per_query.at_cuts[metric][place * made.per_query.cuts.len() + column])
            };
            prop_assert!((kept(TOP1) - 100.0 * points[cut][place].top1).abs() < 1e-4);
            prop_assert!((kept(TOP5) - 100.0 * points[cut][place].top5).abs() < 1e-4);
            prop_assert!((kept(MAP) - 100.0 * points[cut][place].ap).abs() < 1e-4);
        }
    }

    // The two ends of the curve are galleries that stay as they are.
    for (gallery, cut) in [(&case.adapted, 0), (&case.native, points.len() - 1)] {
        let queries = case.queries.as_ref().unwrap_or(&case.native);
        if cut == 0 && case.queries.is_none() {
            // This gallery would be searched with adapted queries, each leaving itself out.
            continue;
        }
        if cut == 0 && case.handicap > 0.0 && case.distance == Distance::Cosine {
            // A handicap on every distance changes no rank, except among cosines that only rounding told
            // apart.
            continue;
        }
        let queries = case.queries.is_some().then_some(queries);
        let result =
            evaluate(gallery, queries, relevance, case.distance, &options, &Progress::default()).unwrap();
        prop_assert!(result.values.metrics().eq(made.lines.metrics()));
        for (metric, value) in result.values.iter() {
            prop_assert!((value - made.lines[metric].values()[cut]).abs() < 1e-9, "{}", metric);
        }
    }

    check_agreement(case)
}

fn check_agreement(case: &Case) -> Result<(), TestCaseError> {
    let queries = case.queries.as_ref();
    let input = CurveInput { queries, relevance: Relevance::Nearest(DEPTH), ..input_of(case) };
    let options = CurveOptions { kept_cuts: case.native.rows() + 1, ..CurveOptions::default() };
    let result = curve(&input, &options, &Progress::default());
    if queries.is_none() && case.native.rows() == 1 {
        prop_assert!(result.is_err());
        return Ok(());
    }
    let made = result.unwrap();
    let agreement = Metric::agreement_at(DEPTH);
    prop_assert!(made.lines.metrics().eq([agreement]) && made.flips == ByMetric::default());
    let (line, own) = (&made.lines[agreement], &made.per_query);
    let vectors = queries.unwrap_or(&case.native);
    // Every cut is kept, so the queries' own values must add up to the line and its area.
    let mean = own.areas[agreement].iter().sum::<f64>() / vectors.rows() as f64;
    prop_assert!((mean - line.area()).abs() < 1e-9);
    for (cut, value) in line.values().iter().enumerate() {
        let own = own.at_cuts[agreement].iter().skip(cut).step_by(own.cuts.len());
        prop_assert!(
            (value - own.map(|&own| f64::from(own)).sum::<f64>() / vectors.rows() as f64).abs() < 1e-4
        );
    }
    let depth = DEPTH.min(case.native.rows() - usize::from(queries.is_none()));
    let nearest = |query: usize, gallery: &Matrix, adapted: &[usize]| -> Vec<usize> {
        let handicap = |item| if adapted.contains(&item) { case.handicap } else { 0.0 };
        let from = |item| distance(vectors.row(query), gallery.row(item), case.distance) + handicap(item);
        let mut ranked: Vec<(f64, usize)> = (0..gallery.rows())
            .filter(|&item| queries.is_some() || item != query)
            .map(|item| (from(item), item))
            .collect();
        ranked.sort_by(|a, b| a.partial_cmp(b).unwrap());
        ranked.into_iter().take(depth).map(|(_, item)| item).collect()
    };
    close(line, |cut| {
        let mut gallery = case.adapted.clone();
        for &item in &case.order[..cut] {
            gallery.row_mut(item).copy_from_slice(case.native.row(item));
        }
        let shared: usize = (0..vectors.rows())
            .map(|query| {
                let end = nearest(query, &case.native, &[]);
                nearest(query, &gallery, &case.order[cut..]).iter().filter(|item| end.contains(item)).count()
            })
            .sum();
        100.0 * shared as f64 / (depth * vectors.rows()) as f64
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn the_curve_is_what_sorting_anew_at_every_cut_gives(case in case()) {
        check(&case)?;
    }
}

/// Makes numbers that look random and are the same everywhere.
fn noise(seed: u64) -> impl FnMut() -> f32 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / 8388608.0 - 1.0
    }
}

fn plain_case(items: usize, columns: usize, classes: i64, spread: f32) -> Case {
    let mut noise = noise(items as u64);
    let native = Matrix::from_fn(items, columns, |row, column| {
        let class = row as i64 * 7 % classes;
        ((class * 31 + column as i64 * 17) % 11) as f32 / 5.0 + noise()
    });
    let adapted = Matrix::from_fn(items, columns, |row, column| native.row(row)[column] + spread * noise());
    Case {
        old: Matrix::from_fn(items, 2, |row, column| native.row(row)[column % columns]),
        queries: None,
        order: (0..items).map(|place| place * 101 % items).collect(),
        labels: (0..items as i64).map(|item| item * 7 % classes).collect(),
        query_labels: Vec::new(),
        groups: (0..items as i64).map(|item| item % 2).collect(),
        judgements: None,
        distance: Distance::L2,
        handicap: 0.0,
        native,
        adapted,
    }
}

#[test]
fn a_gallery_with_more_than_one_block_of_queries_and_registers_of_answers_is_exact() {
    check(&plain_case(211, 6, 3, 0.8)).unwrap();
    check(&plain_case(130, 6, 13, 2.0)).unwrap();
}

#[test]
fn gains_of_any_size_that_is_allowed_give_numbers() {
    let largest = f64::from(f32::MAX);
    for (gain, other) in [(largest, largest), (largest, f64::MIN_POSITIVE), (1.0, 1e-300)] {
        let mut case = plain_case(40, 3, 4, 0.5);
        let judged = |query: usize| vec![(query * 3 % 40, gain), ((query * 3 + 7) % 40, other)];
        case.judgements = Some((0..40).map(judged).collect());
        check(&case).unwrap();
    }
    let error = Qrels::new(vec![vec![(3, 1e308)]]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidOption { .. }), "{error}");
    assert!(error.to_string().contains("item 3 for query 0"), "{error}");
    assert!(Qrels::new(vec![vec![(3, -1e308)]]).is_ok(), "an ignored item has no size");
}

#[test]
fn all_equal_vectors_are_ranked_by_index() {
    let mut case = plain_case(50, 3, 4, 0.0);
    case.native = Matrix::zeros(50, 3);
    case.adapted = Matrix::zeros(50, 3);
    case.old = Matrix::zeros(50, 2);
    for distance in Distance::ALL {
        case.distance = distance;
        check(&case).unwrap();
    }
}

#[test]
fn one_item_is_enough_for_a_query_set_of_its_own_and_too_few_to_leave_itself_out() {
    let mut case = plain_case(1, 1, 1, 0.5);
    check(&case).unwrap();
    case.queries = Some(Matrix::zeros(2, 1));
    case.query_labels = vec![0, 5];
    case.groups = vec![0, 0];
    check(&case).unwrap();
}

#[test]
fn a_wide_gallery_of_duplicates_keeps_ties_through_the_sums() {
    // 90 items of 129 fractional coordinates hold only 10 different vectors, and equal vectors must get equal
    // bits.
    let mut noise = noise(3);
    let few = Matrix::from_fn(10, 129, |_, _| noise());
    let mut case = plain_case(90, 129, 6, 0.0);
    case.native = few.select(&(0..90).map(|item| item * 7 % 10).collect::<Vec<_>>());
    case.adapted = few.select(&(0..90).map(|item| item * 3 % 10).collect::<Vec<_>>());
    for distance in Distance::ALL {
        case.distance = distance;
        check(&case).unwrap();
    }
}

fn input_of(case: &Case) -> CurveInput<'_> {
    CurveInput {
        handicap: case.handicap,
        ..CurveInput::new(
            &case.native,
            &case.adapted,
            &case.order,
            Relevance::Labels { gallery: &case.labels, queries: None },
            case.distance,
        )
    }
}

fn curve_of(case: &Case) -> Curve {
    curve(&input_of(case), &CurveOptions { kept_cuts: 5, ..CurveOptions::default() }, &Progress::default())
        .unwrap()
}

#[test]
fn the_number_of_threads_does_not_change_a_bit() {
    let case = plain_case(400, 5, 9, 1.0);
    let with = |threads| {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(|| curve_of(&case))
    };
    let one = with(1);
    assert_eq!(one, with(3));
    assert_eq!(one, curve_of(&case));
}

/// Measures a gallery of close neighbours, moved by `offset` with its old vectors and queries: its curve,
/// agreement and evaluation.
fn measured_at(offset: impl Fn(usize) -> f32, separate_queries: bool) -> (Curve, Vec<f64>, f64) {
    const STEP: f32 = 1.0 / 1024.0;
    let mut noise = noise(17);
    let mut whole = |rows: usize, spread: f32| {
        Matrix::from_fn(rows, 160, |row, column| {
            let class = ((row * 7 % 6 * 31 + column * 17) % 11) as f32;
            (class / 4.0 + spread * noise()).round() * STEP
        })
    };
    let (native, error, queries) = (whole(120, 8.0), whole(120, 4.0), whole(30, 8.0));
    let moved = |matrix: &Matrix| {
        Matrix::from_fn(matrix.rows(), matrix.columns(), |row, column| {
            offset(column) + matrix.row(row)[column]
        })
    };
    let adapted = Matrix::from_fn(120, 160, |row, column| native.row(row)[column] + error.row(row)[column]);
    let (native, adapted, queries) = (moved(&native), moved(&adapted), moved(&queries));
    let queries = separate_queries.then_some(&queries);
    let labels: Vec<i64> = (0..120).map(|item| item * 7 % 6).collect();
    let query_labels: Vec<i64> = (0..30).map(|query| query * 7 % 6).collect();
    let order: Vec<usize> = (0..120).map(|place| place * 7 % 120).collect();
    let relevance =
        Relevance::Labels { gallery: &labels, queries: separate_queries.then_some(&query_labels[..]) };
    let input = CurveInput {
        native: &native,
        adapted: &adapted,
        order: &order,
        queries,
        relevance,
        distance: Distance::L2,
        handicap: 0.0,
        groups: None,
        // The old model's vectors are moved as well.
        do_nothing: Some(DoNothing { gallery: &adapted, queries, distance: Distance::L2 }),
        known: None,
    };
    let options = CurveOptions { metrics: vec![Metric::map_at(10)], ..CurveOptions::default() };
    let progress = Progress::default();
    let made = curve(&input, &options, &progress).unwrap();
    let distances = |gallery| Distances::new(&native, gallery, queries, Distance::L2).unwrap();
    let known = [distances(&native), distances(&adapted)];
    let by_known = CurveInput { known: Some([&known[0], &known[1]]), ..input };
    assert_eq!(curve(&by_known, &options, &progress).unwrap(), made);
    let nearest = CurveInput { relevance: Relevance::Nearest(10), ..input };
    let agreed = curve(&nearest, &options, &progress).unwrap();
    let still = evaluate(&native, queries, relevance, Distance::L2, &options, &progress).unwrap();
    (made, agreed.lines[Metric::agreement_at(10)].values().to_vec(), still.values[MAP])
}

#[test]
fn an_offset_that_all_vectors_share_changes_nothing_of_an_l2_curve() {
    for separate_queries in [false, true] {
        let expected = measured_at(|_| 0.0, separate_queries);
        assert_eq!(measured_at(|_| 10_000.0, separate_queries), expected);
        // One column dwarfs all others, by a number beside which a step of the others just survives.
        assert_eq!(
            measured_at(|column| if column == 3 { 10_000.0 } else { 0.0 }, separate_queries),
            expected
        );
    }
}

#[test]
fn intervals_hold_areas_and_bands_hold_curves() {
    let case = plain_case(300, 5, 9, 1.0);
    let agreement = Metric::agreement_at(10);
    let input = CurveInput { relevance: Relevance::Nearest(10), ..input_of(&case) };
    let options = CurveOptions { kept_cuts: 5, ..CurveOptions::default() };
    let agreed = curve(&input, &options, &Progress::default()).unwrap();
    for (curve, metrics) in [(curve_of(&case), &[MAP, TOP1][..]), (agreed, &[agreement])] {
        let areas = curve.area_intervals(300, 0.95, 1).unwrap();
        let bands = curve.bands(100, 0.95, 1).unwrap();
        for &metric in metrics {
            let (area, grid) = (&areas[metric], curve.lines[metric].grid(5));
            assert!((area.estimate - curve.lines[metric].area()).abs() < 1e-9);
            assert!(area.low < area.estimate && area.estimate < area.high);
            assert_eq!(curve.per_query.cuts, grid.cuts);
            for (interval, value) in bands[metric].iter().zip(grid.values) {
                assert!((interval.estimate - value).abs() < 1e-4);
                assert!(interval.low <= value && value <= interval.high);
            }
        }
    }
}

#[test]
fn every_kind_of_wrong_input_is_one_clear_error() {
    let case = plain_case(6, 2, 2, 0.1);
    let labels = Relevance::Labels { gallery: &case.labels, queries: None };
    let good = CurveInput::new(&case.native, &case.adapted, &case.order, labels, Distance::L2);
    let fails =
        |input: CurveInput<'_>| curve(&input, &CurveOptions::default(), &Progress::default()).unwrap_err();
    assert!(curve(&good, &CurveOptions::default(), &Progress::default()).is_ok());

    let (empty, wide) = (Matrix::default(), Matrix::zeros(6, 3));
    let short = Matrix::zeros(5, 2);
    let mut broken = case.adapted.clone();
    broken.row_mut(4)[1] = f32::NAN;
    let three = [0, 1, 0];
    let unknown = [-1; 6];
    assert!(matches!(fails(CurveInput { native: &empty, ..good }).kind(), ErrorKind::Empty { .. }));
    assert!(matches!(fails(CurveInput { adapted: &wide, ..good }).kind(), ErrorKind::WidthMismatch { .. }));
    assert!(matches!(fails(CurveInput { adapted: &short, ..good }).kind(), ErrorKind::CountMismatch { .. }));
    assert_eq!(
        *fails(CurveInput { adapted: &broken, ..good }).kind(),
        ErrorKind::NotFinite { what: "adapted vectors".into(), row: 4, column: 1 }
    );
    assert!(matches!(
        fails(CurveInput { order: &[0, 1, 2, 3, 4, 4], ..good }).kind(),
        ErrorKind::Duplicate { .. }
    ));
    assert!(matches!(
        fails(CurveInput { relevance: Relevance::Labels { gallery: &three, queries: None }, ..good }).kind(),
        ErrorKind::CountMismatch { .. }
    ));
    assert!(matches!(
        fails(CurveInput { relevance: Relevance::Labels { gallery: &unknown, queries: None }, ..good })
            .kind(),
        ErrorKind::NothingToFind { .. }
    ));
    assert!(matches!(
        fails(CurveInput { queries: Some(&short), ..good }).kind(),
        ErrorKind::MissingInput { .. }
    ));
    assert!(matches!(
        fails(CurveInput { groups: Some(&three), ..good }).kind(),
        ErrorKind::CountMismatch { .. }
    ));
    for handicap in [-0.1, f64::NAN, f64::INFINITY] {
        assert!(matches!(fails(CurveInput { handicap, ..good }).kind(), ErrorKind::InvalidOption { .. }));
    }
    let outside = Qrels::new(vec![vec![(9, 1.0)]; 6]).unwrap();
    assert!(matches!(
        fails(CurveInput { relevance: Relevance::Judgements(&outside), ..good }).kind(),
        ErrorKind::Corrupt { .. }
    ));
    let today = DoNothing { gallery: &short, queries: None, distance: Distance::L2 };
    assert!(matches!(
        fails(CurveInput { do_nothing: Some(today), ..good }).kind(),
        ErrorKind::CountMismatch { .. }
    ));
    let zero = CurveOptions { metrics: vec![Metric::ndcg_at(0)], ..CurveOptions::default() };
    assert!(matches!(
        curve(&good, &zero, &Progress::default()).unwrap_err().kind(),
        ErrorKind::InvalidOption { .. }
    ));
    let stopped = Progress::default();
    stopped.cancel();
    assert!(curve(&good, &CurveOptions::default(), &stopped).unwrap_err().is_cancelled());
}
