//! Face and landmark protocols against hand-computed examples and twins that try every threshold and sort
//! every ranking.

use proptest::prelude::*;
use rehang_core::curve::Metric;
use rehang_core::{Distance, ErrorKind, Matrix, Progress};
use rehang_files::lists::{GroundTruth, TemplateItem};
use rehang_protocols::identification::{IdentificationInput, identification};
use rehang_protocols::landmarks::{LandmarkSetup, retrieval, revisited};
use rehang_protocols::templates::average;
use rehang_protocols::verification::{similarities, verification, verify};

fn near(left: f64, right: f64) -> bool {
    (left - right).abs() < 1e-9
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

/// Cosine distance as the product has it, 1 beside a zero vector.
fn cosine_distance(a: &[f32], b: &[f32]) -> f64 {
    let lengths = dot(a, a).sqrt() * dot(b, b).sqrt();
    if lengths == 0.0 { 1.0 } else { 1.0 - dot(a, b) / lengths }
}

fn matrix(rows: usize, columns: usize) -> impl Strategy<Value = Matrix> {
    prop::collection::vec(-2_i8..3, rows * columns)
        .prop_map(move |data| Matrix::new(columns, data.into_iter().map(f32::from).collect()).unwrap())
}

/// TAR by trying every threshold: the most genuine pairs that any rule "score > t" accepts while it keeps the
/// rate.
fn tar_twin(scores: &[f64], genuine: &[bool], rate: f64) -> Option<f64> {
    let total = |wanted: bool| genuine.iter().filter(|&&same| same == wanted).count() as f64;
    if 1.0 / total(false) > rate {
        return None;
    }
    let accepted = |threshold: f64, wanted: bool| {
        scores.iter().zip(genuine).filter(|&(&score, &same)| same == wanted && score > threshold).count()
            as f64
            / total(wanted)
    };
    scores
        .iter()
        .copied()
        .chain([f64::NEG_INFINITY])
        .filter(|&threshold| accepted(threshold, false) <= rate)
        .map(|threshold| 100.0 * accepted(threshold, true))
        .reduce(f64::max)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn tar_at_far_is_the_best_that_any_threshold_gives(
        pairs in prop::collection::vec((0_u8..6, any::<bool>()), 1..30),
        rates in prop::collection::vec(prop::sample::select(vec![0.01, 0.1, 0.29, 0.25, 1.0 / 3.0, 0.5, 0.7, 1.0]), 1..4),
    ) {
        let scores: Vec<f64> = pairs.iter().map(|&(score, _)| f64::from(score) / 7.0).collect();
        let genuine: Vec<bool> = pairs.iter().map(|&(_, same)| same).collect();
        let result = verify(&scores, &genuine, &rates);
        if genuine.iter().all(|&same| same) || genuine.iter().all(|&same| !same) {
            let is_empty = matches!(result.unwrap_err().kind(), ErrorKind::Empty { .. });
            prop_assert!(is_empty);
            return Ok(());
        }
        let result = result.unwrap();
        prop_assert_eq!(result.genuine + result.impostors, pairs.len());
        for (point, &rate) in result.points.iter().zip(&rates) {
            prop_assert_eq!(point.tar, tar_twin(&scores, &genuine, rate));
            prop_assert!(point.far_reached.is_none_or(|reached| reached <= rate));
        }
    }

    #[test]
    fn similarities_are_cosines(
        (first, second, pairs) in (1_usize..6, 1_usize..6, 1_usize..4, 1_usize..4).prop_flat_map(|(a, b, wide, width)| (
            matrix(a, wide),
            matrix(b, width),
            prop::collection::vec((0..a, 0..b), 0..20),
        )),
    ) {
        let result = similarities(&first, &second, &pairs).unwrap();
        prop_assert_eq!(result.len(), pairs.len());
        for (&(a, b), value) in pairs.iter().zip(result) {
            let mut query = first.row(a).to_vec();
            query.resize(second.columns(), 0.0);
            prop_assert!(near(value, 1.0 - cosine_distance(&query, second.row(b))));
        }
    }

    #[test]
    fn identification_equals_its_twin(
        (gallery, subjects, probes, who, candidates) in (1_usize..8, 1_usize..10, 1_usize..3).prop_flat_map(|(n, m, width)| (
            matrix(n, width),
            prop::collection::vec(0_i64..4, n),
            matrix(m, width),
            prop::collection::vec(-1_i64..6, m),
            1_usize..4,
        )),
    ) {
        let rates = [0.2, 0.5, 1.0];
        let input = IdentificationInput {
            gallery: &gallery,
            gallery_subjects: &subjects,
            probes: &probes,
            probe_subjects: &who,
            rates: &rates,
            candidates,
        };
        let result = identification(&input, &Progress::default());
        // (best similarity, rank and similarity of the mate)
        let searches: Vec<(f64, Option<(usize, f64)>)> = (0..probes.rows())
            .filter(|&probe| who[probe] >= 0)
            .map(|probe| {
                let mut ranked: Vec<(f64, usize)> = (0..gallery.rows())
                    .map(|item| (cosine_distance(probes.row(probe), gallery.row(item)), item))
                    .collect();
                ranked.sort_by(|a, b| a.partial_cmp(b).unwrap());
                let mate = ranked.iter().position(|&(_, item)| subjects[item] == who[probe]);
                (1.0 - ranked[0].0, mate.map(|place| (place + 1, 1.0 - ranked[place].0)))
            })
            .collect();
        if searches.is_empty() {
            prop_assert!(result.is_err());
            return Ok(());
        }
        let result = result.unwrap();
        let mates: Vec<(usize, f64)> = searches.iter().filter_map(|search| search.1).collect();
        let others: Vec<f64> = searches.iter().filter(|search| search.1.is_none()).map(|search| search.0).collect();
        prop_assert_eq!((result.mated, result.non_mated), (mates.len(), others.len()));
        prop_assert_eq!(result.unknown, who.iter().filter(|&&subject| subject < 0).count());
        let share = |count: usize| (!mates.is_empty()).then(|| 100.0 * count as f64 / mates.len() as f64);
        let within = |depth: usize| share(mates.iter().filter(|mate| mate.0 <= depth).count());
        prop_assert_eq!((result.rank1, result.rank5), (within(1), within(5)));
        for (point, rate) in result.points.iter().zip(rates) {
            let thresholds = others.iter().copied().chain([f64::NEG_INFINITY]);
            let positives = |threshold: f64| others.iter().filter(|&&best| best > threshold).count() as f64;
            let expected = if mates.is_empty() || others.is_empty() || 1.0 / others.len() as f64 > rate {
                None
            } else {
                thresholds
                    .filter(|&threshold| positives(threshold) / others.len() as f64 <= rate)
                    .filter_map(|threshold| {
                        share(mates.iter().filter(|mate| mate.0 <= candidates && mate.1 > threshold).count())
                    })
                    .reduce(f64::max)
            };
            prop_assert_eq!(point.tpir, expected);
            prop_assert!(point.fpir_reached.is_none_or(|reached| reached <= rate));
        }
    }

    #[test]
    fn landmark_retrieval_equals_its_twin(
        (index, queries, answers, depth) in (1_usize..8, 1_usize..4, 1_usize..3).prop_flat_map(|(n, m, width)| (
            matrix(n, width),
            matrix(m, width),
            prop::collection::vec(prop::sample::subsequence((0..n).collect::<Vec<_>>(), 0..=n), m),
            1_usize..5,
        )),
    ) {
        let result = retrieval(&index, &queries, &answers, depth, Distance::Cosine, &Progress::default());
        let values: Vec<f64> = (0..queries.rows())
            .filter(|&query| !answers[query].is_empty())
            .map(|query| {
                let ranked = rank(&index, queries.row(query), &[]);
                let (mut found, mut sum) = (0.0, 0.0);
                for (place, item) in ranked.iter().enumerate().take(depth) {
                    if answers[query].contains(item) {
                        found += 1.0;
                        sum += found / (place + 1) as f64;
                    }
                }
                sum / answers[query].len().min(depth) as f64
            })
            .collect();
        if values.is_empty() {
            prop_assert!(result.is_err());
            return Ok(());
        }
        let result = result.unwrap();
        prop_assert_eq!(result.queries.without_positives, queries.rows() - values.len());
        prop_assert!(near(result.values[Metric::map_at(depth)], 100.0 * values.iter().sum::<f64>() / values.len() as f64));
    }

    #[test]
    fn the_revisited_setups_equal_their_twin(
        (gallery, queries, kinds) in (1_usize..9, 1_usize..4, 1_usize..3).prop_flat_map(|(n, m, width)| (
            matrix(n, width),
            matrix(m, width),
            // Kind of every image for every query: nothing, easy, hard or junk.
            prop::collection::vec(prop::collection::vec(0_u8..4, n), m),
        )),
    ) {
        let items_of_kind = |query: usize, kind: u8| -> Vec<usize> {
            (0..gallery.rows()).filter(|&item| kinds[query][item] == kind).collect()
        };
        let truth: Vec<GroundTruth> = (0..queries.rows())
            .map(|query| GroundTruth { easy: items_of_kind(query, 1), hard: items_of_kind(query, 2), junk: items_of_kind(query, 3) })
            .collect();
        let result = revisited(&gallery, &queries, &truth, Distance::Cosine, &Progress::default());
        for (place, (right, out)) in [(&[1][..], &[2, 3][..]), (&[1, 2], &[3]), (&[2], &[1, 3])].into_iter().enumerate() {
            let mut values: Vec<[f64; 5]> = Vec::new();
            for (query, kinds) in kinds.iter().enumerate() {
                let ignored: Vec<usize> = (0..gallery.rows()).filter(|&item| out.contains(&kinds[item])).collect();
                let ranked = rank(&gallery, queries.row(query), &ignored);
                let hits: Vec<bool> = ranked.iter().map(|&item| right.contains(&kinds[item])).collect();
                if hits.contains(&true) {
                    values.push(twin_of_revisited(&hits));
                }
            }
            if values.is_empty() {
                if let Ok(result) = &result {
                    prop_assert_eq!(result[place].queries.counted, 0);
                    prop_assert!(result[place].map.is_nan());
                }
                continue;
            }
            let setup = &result.as_ref().unwrap()[place];
            prop_assert_eq!(setup.setup, LandmarkSetup::ALL[place]);
            prop_assert_eq!(setup.queries.counted, values.len());
            let [p1, p5, p10] = setup.precision_at;
            for (column, ours) in [setup.map, setup.map_at_10, p1, p5, p10].into_iter().enumerate() {
                let expected =
                    100.0 * values.iter().map(|value| value[column]).sum::<f64>() / values.len() as f64;
                prop_assert!(near(ours, expected), "{:?} {column}: {ours} {expected}", setup.setup);
            }
        }
    }

    #[test]
    fn templates_equal_their_twin(
        (vectors, items) in (1_usize..7, 1_usize..4).prop_flat_map(|(n, width)| (
            matrix(n, width),
            prop::collection::vec((0..n, 0_usize..3, prop::option::of(0_i64..3)), 1..12),
        )),
    ) {
        let items: Vec<TemplateItem> =
            items.into_iter().map(|(row, template, media)| TemplateItem { row, template, media }).collect();
        let result = average(&vectors, &items, 3);
        if (0..3).any(|template| items.iter().all(|item| item.template != template)) {
            prop_assert!(result.is_err());
            return Ok(());
        }
        let result = result.unwrap();
        for template in 0..3 {
            let own: Vec<&TemplateItem> = items.iter().filter(|item| item.template == template).collect();
            // One group a medium, and one for each item without any.
            let mut groups: Vec<Vec<usize>> = Vec::new();
            for media in 0..3 {
                groups.push(own.iter().filter(|item| item.media == Some(media)).map(|item| item.row).collect());
            }
            groups.extend(own.iter().filter(|item| item.media.is_none()).map(|item| vec![item.row]));
            groups.retain(|group| !group.is_empty());
            let mut mean = vec![0.0; vectors.columns()];
            for group in &groups {
                for &row in group {
                    let length = dot(vectors.row(row), vectors.row(row)).sqrt();
                    for (mean, &value) in mean.iter_mut().zip(vectors.row(row)) {
                        if length > 0.0 {
                            *mean += f64::from(value) / length / group.len() as f64;
                        }
                    }
                }
            }
            let length = mean.iter().map(|value| value * value).sum::<f64>().sqrt();
            for (&ours, expected) in result.vectors.row(template).iter().zip(mean) {
                let expected = if length > 1e-8 { expected / length } else { 0.0 };
                prop_assert!((f64::from(ours) - expected).abs() < 1e-6);
            }
        }
    }
}

/// Gallery rows by ascending cosine distance to a query, without the ignored ones.
fn rank(gallery: &Matrix, query: &[f32], ignored: &[usize]) -> Vec<usize> {
    let mut ranked: Vec<usize> = (0..gallery.rows()).filter(|item| !ignored.contains(item)).collect();
    let key = |item: &usize| (cosine_distance(query, gallery.row(*item)), *item);
    ranked.sort_by(|a, b| key(a).partial_cmp(&key(b)).unwrap());
    ranked
}

/// Trapezoidal AP, AP@10, P@1, P@5, P@10 of one ranking, walking down it.
fn twin_of_revisited(hits: &[bool]) -> [f64; 5] {
    let total = hits.iter().filter(|&&hit| hit).count();
    let precision = |depth: usize| {
        if depth == 0 { 1.0 } else { hits[..depth].iter().filter(|&&hit| hit).count() as f64 / depth as f64 }
    };
    let (mut trapezoids, mut within) = (0.0, 0.0);
    for place in (0..hits.len()).filter(|&place| hits[place]) {
        trapezoids += f64::midpoint(precision(place), precision(place + 1)) / total as f64;
        if place < 10 {
            within += precision(place + 1) / total.min(10) as f64;
        }
    }
    let last = 1 + hits.iter().rposition(|&hit| hit).unwrap();
    [trapezoids, within, precision(last.min(1)), precision(last.min(5)), precision(last.min(10))]
}

#[test]
fn verification_by_hand_with_all_scores_equal() {
    // Nothing can be told apart: at any rate below 1 every pair is rejected.
    let result = verify(&[0.5; 4], &[true, true, false, false], &[0.5, 1.0]).unwrap();
    assert_eq!((result.points[0].tar, result.points[0].far_reached), (Some(0.0), Some(0.0)));
    assert_eq!((result.points[1].tar, result.points[1].far_reached), (Some(100.0), Some(1.0)));
}

#[test]
fn verification_refuses_what_makes_no_sense() {
    let verify = |scores: &[f64], genuine: &[bool], rates: &[f64]| {
        verify(scores, genuine, rates).unwrap_err().to_string()
    };
    assert!(verify(&[f64::NAN, 1.0], &[true, false], &[1.0]).contains("NaN"));
    assert!(verify(&[1.0], &[true, false], &[1.0]).contains('2'));
    assert!(verify(&[1.0, 0.0], &[true, false], &[]).contains("rate"));
    for rate in [0.0, -1.0, 1.5, f64::NAN] {
        assert!(verify(&[1.0, 0.0], &[true, false], &[rate]).contains("rate"));
    }
    let one = Matrix::new(1, vec![1.0]).unwrap();
    assert!(similarities(&one, &one, &[(0, 1)]).unwrap_err().to_string().contains("second"));
    assert!(similarities(&one, &one, &[(1, 0)]).unwrap_err().to_string().contains("first"));
    assert!(verification(&one, &one, &[1, 2], &[1], &[(0, 0)], &[0.5]).is_err());
}

#[test]
fn a_wider_new_side_is_cut_to_the_old_ones_width() {
    let new = Matrix::new(3, vec![1.0, 0.0, 9.0]).unwrap();
    let old = Matrix::new(2, vec![2.0, 0.0]).unwrap();
    assert_eq!(similarities(&new, &old, &[(0, 0)]).unwrap(), [1.0]);
    assert!(similarities(&old, &new, &[(0, 0)]).unwrap()[0] < 0.2);
}

#[test]
fn opposite_items_make_a_template_like_nothing() {
    let vectors = Matrix::new(2, vec![3.0, 4.0, -0.6, -0.8]).unwrap();
    let items = [0, 1].map(|row| TemplateItem { row, template: 0, media: None });
    let made = average(&vectors, &items, 1).unwrap();
    assert_eq!((made.zeros, made.vectors.as_slice()), (1, &[0.0, 0.0][..]));
}
