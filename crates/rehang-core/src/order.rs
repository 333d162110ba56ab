//! Orders: which item of a gallery is re-embedded first.
//!
//! An order is a permutation with scores, the largest score first, ties by index. Orders cannot see
//! evaluation labels; [`Policy::Oracle`] looks at the true errors and exists for evaluation only. A policy is
//! a file of `order/`, a variant of [`Policy`] and an arm of its `definition` here.

mod class_mean;
mod coverage;
mod doubt;
mod oracle;
mod policy;
mod random;
mod sigma;

use crate::check::check_permutation;
use crate::error::{Error, ErrorKind, Result};
use crate::head::Head;
use crate::vectors::{Matrix, distinct};

pub use coverage::ITEMS_PER_COVER;
pub use policy::{Arrangement, Order, OrderInput, Page, Policy, distances_to_nearest};

use policy::{Definition, Evidence, HeadUse, probabilities};

impl Policy {
    fn definition(self) -> &'static Definition {
        match self {
            Self::Sigma => &sigma::SIGMA,
            Self::Random => &random::RANDOM,
            Self::LeastConfidence => &doubt::LEAST_CONFIDENCE,
            Self::Margin => &doubt::MARGIN,
            Self::Entropy => &doubt::ENTROPY,
            Self::Oracle => &oracle::ORACLE,
            Self::Coverage => &coverage::COVERAGE,
            Self::ClassMean => &class_mean::CLASS_MEAN,
        }
    }

    /// Description of the policy, in words that follow its name: "goes by …".
    pub fn about(self) -> &'static str {
        self.definition().about
    }

    /// Whether this order uses what is unknown before the backfill is done.
    pub fn is_evaluation_only(self) -> bool {
        self.definition().is_evaluation_only
    }

    /// Whether the order cannot be made without a classifier head.
    pub fn needs_head(self) -> bool {
        self.definition().head == HeadUse::Needed
    }

    /// Chooses the head that the policy looks through: the adapter's own one or the given one.
    pub fn head<'h>(self, own_head: Option<&'h Head>, given_head: Option<&'h Head>) -> Option<&'h Head> {
        match self.definition().head {
            HeadUse::Own => own_head.or(given_head),
            HeadUse::None | HeadUse::Needed => given_head.or(own_head),
        }
    }

    /// Whether a given head has no effect beside the adapter's own one.
    pub fn prefers_own_head(self) -> bool {
        self.definition().head == HeadUse::Own
    }

    /// Whether the policy has to look at a live gallery as a whole; see [`arrange`].
    pub fn is_arranged(self) -> bool {
        self.definition().arrange.is_some()
    }
}

/// Scores items of a live gallery, each by itself: a larger score is earlier. One item's score does not
/// depend on the others, so a gallery may be scored page by page.
///
/// # Errors
///
/// [`ErrorKind::WidthMismatch`] between head and vectors, [`ErrorKind::NotFinite`].
pub fn scores(policy: Policy, page: &Page<'_>) -> Result<Vec<f64>> {
    (policy.definition().scores)(page)
}

/// Looks at a sample of a live gallery, given as to [`order`]. `None` where [`scores`] alone make the order.
///
/// # Errors
///
/// As [`order`].
pub fn arrange(policy: Policy, sample: &OrderInput<'_>) -> Result<Option<Arrangement>> {
    let evidence = Evidence { policy, input: sample };
    policy.definition().arrange.map(|arrange| arrange(&evidence)).transpose()
}

/// Orders a gallery by a policy.
///
/// ```
/// use rehang_core::order::{OrderInput, Policy, order};
///
/// let sigma = [0.1, 0.7, 0.7, 0.9];
/// let input = OrderInput { items: 4, sigma: Some(&sigma), ..OrderInput::default() };
/// assert_eq!(order(Policy::Sigma, &input)?.permutation, [3, 1, 2, 0]);
/// // What a policy needs and does not get is named.
/// let error = order(Policy::Entropy, &input).unwrap_err();
/// assert!(error.to_string().starts_with("the order \"entropy\" needs a classifier head"));
/// # Ok::<(), rehang_core::Error>(())
/// ```
///
/// # Errors
///
/// [`ErrorKind::MissingInput`] for an input that the policy needs, [`ErrorKind::CountMismatch`] for an input
/// that is not of n items, [`ErrorKind::NotFinite`] for NaN, [`ErrorKind::WidthMismatch`] between head and
/// vectors, [`ErrorKind::Empty`] for an empty gallery.
pub fn order(policy: Policy, input: &OrderInput<'_>) -> Result<Order> {
    if input.items == 0 {
        return Err(ErrorKind::Empty { what: "the gallery to order".into() }.into());
    }
    (policy.definition().order)(&Evidence { policy, input })
}

/// `1 − p¹` of every vector by a head: `[n, d] → [n]`.
///
/// # Errors
///
/// [`ErrorKind::WidthMismatch`] between head and vectors, [`ErrorKind::NotFinite`].
pub fn least_confidence(head: &Head, vectors: &Matrix) -> Result<Vec<f64>> {
    probabilities(head, vectors, doubt::least_confidence)
}

/// Shares of groups at the beginning of an order. For every fraction x of `fractions`, it is the share of the
/// first ⌊x·n⌋ items that belong to each group, 0 to 1; NaN where x·n is below one item. Groups come by
/// ascending number; negative ones (no group) are left out (FastFill App. F).
///
/// ```
/// let shares = rehang_core::order::group_shares(&[2, 3, 0, 1], &[0, 0, 1, 1], &[0.5, 1.0])?;
/// // Both items of group 1 come first.
/// assert_eq!(shares, [(0, vec![0.0, 0.5]), (1, vec![1.0, 0.5])]);
/// # Ok::<(), rehang_core::Error>(())
/// ```
///
/// # Errors
///
/// As [`check_permutation`], and [`ErrorKind::InvalidOption`] for a fraction outside 0 to 1.
pub fn group_shares(order: &[usize], groups: &[i64], fractions: &[f64]) -> Result<Vec<(i64, Vec<f64>)>> {
    check_permutation(order, groups.len())?;
    if let Some(fraction) = fractions.iter().find(|fraction| !(0.0..=1.0).contains(*fraction)) {
        return Err(Error::option("fraction", fraction, "a number from 0 to 1"));
    }
    let names = distinct(groups.iter().copied());
    let mut places: Vec<Vec<usize>> = vec![Vec::new(); names.len()];
    for (place, &item) in order.iter().enumerate() {
        if let Ok(group) = names.binary_search(&groups[item]) {
            places[group].push(place);
        }
    }
    let share = |places: &[usize], fraction: f64| {
        // A fraction that was made as k/n counts as k items, although k/n·n may come out just below k.
        let first = (fraction * order.len() as f64 + 1e-9) as usize;
        places.partition_point(|&place| place < first) as f64 / first as f64
    };
    let shares = |places: Vec<usize>| fractions.iter().map(|&fraction| share(&places, fraction)).collect();
    Ok(names.into_iter().zip(places.into_iter().map(shares)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head::HeadKind;

    fn input(items: usize) -> OrderInput<'static> {
        OrderInput { items, ..OrderInput::default() }
    }

    #[test]
    fn a_share_of_the_places_is_of_whole_items() {
        let order: Vec<usize> = (0..100).collect();
        let fractions: Vec<f64> = (1..=100).map(|items| f64::from(items) / 100.0).collect();
        // The first item is alone in its group.
        let groups: Vec<i64> = (0..100).map(|item| i64::from(item > 0)).collect();
        let shares = group_shares(&order, &groups, &fractions).unwrap();
        for (items, share) in (1..).zip(&shares[0].1) {
            assert!((share - 1.0 / f64::from(items)).abs() < 1e-12, "{items} items: {share}");
        }
    }

    #[test]
    fn a_nan_among_the_predicted_errors_is_named_by_its_row() {
        let sigma = [1.0, f64::NAN];
        let error = order(Policy::Sigma, &OrderInput { sigma: Some(&sigma), ..input(2) }).unwrap_err();
        assert_eq!(
            *error.kind(),
            ErrorKind::NotFinite { what: "predicted errors σ²".into(), row: 1, column: 0 }
        );
    }

    #[test]
    fn the_three_doubts_are_those_of_the_equations() {
        // Probabilities (1/2, 1/4, 1/4), (1/3, 1/3, 1/3) and nearly (1, 0, 0).
        let weight = Matrix::new(1, vec![1.0, 0.0, 0.0]).unwrap();
        let head = Head::new(weight, None, HeadKind::Softmax).unwrap();
        let vectors = Matrix::new(1, vec![2.0_f32.ln(), 0.0, 20.0]).unwrap();
        let run =
            |policy| order(policy, &OrderInput { classified: Some((&head, &vectors)), ..input(3) }).unwrap();
        let near = |a: &[f64], b: [f64; 3]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6);
        let third = 1.0 / 3.0;
        assert!(near(&run(Policy::LeastConfidence).scores, [0.5, 1.0 - third, 0.0]));
        assert!(near(&run(Policy::Margin).scores, [0.75, 1.0, 0.0]));
        assert!(near(&run(Policy::Entropy).scores, [1.5 * 2.0_f64.ln(), 3.0_f64.ln(), 0.0]));
        assert_eq!(run(Policy::Entropy).permutation, [1, 0, 2]);
    }

    #[test]
    fn a_cosine_head_does_not_look_at_lengths() {
        let weight = Matrix::new(2, vec![1.0, 0.0, 0.0, 5.0]).unwrap();
        let head = Head::new(weight, None, HeadKind::ArcFace { scale: 4.0, margin: 0.5 }).unwrap();
        let vectors = Matrix::new(2, vec![1.0, 0.0, 9.0, 0.0, 1.0, 1.0]).unwrap();
        let scores =
            order(Policy::LeastConfidence, &OrderInput { classified: Some((&head, &vectors)), ..input(3) })
                .unwrap()
                .scores;
        let expected = 1.0 - 4.0_f64.exp() / (4.0_f64.exp() + 1.0);
        assert!((scores[0] - expected).abs() < 1e-12 && (scores[1] - expected).abs() < 1e-12);
        assert!((scores[2] - 0.5).abs() < 1e-12);
    }

    #[test]
    fn a_single_class_leaves_no_doubt() {
        let head = Head::new(Matrix::zeros(1, 2), None, HeadKind::Softmax).unwrap();
        let vectors = Matrix::zeros(2, 2);
        for policy in [Policy::LeastConfidence, Policy::Margin, Policy::Entropy] {
            let ordered =
                order(policy, &OrderInput { classified: Some((&head, &vectors)), ..input(2) }).unwrap();
            assert_eq!((ordered.scores, ordered.permutation), (vec![0.0, 0.0], vec![0, 1]));
        }
    }

    #[test]
    fn shuffles_are_permutations_and_follow_the_seed() {
        let make = |seed| order(Policy::Random, &OrderInput { seed, ..input(100) }).unwrap();
        check_permutation(&make(1).permutation, 100).unwrap();
        assert_eq!(make(1), make(1));
        assert_ne!(make(1), make(2));
        let again = Order::by_scores(make(1).scores, "scores").unwrap();
        assert_eq!(again.permutation, make(1).permutation);
    }

    #[test]
    fn coverage_visits_every_cluster_and_then_digs_where_the_score_is_largest() {
        // Two clusters lie far apart; the first has the larger errors throughout. The items in the middle are
        // nearest to the weighted centres 0.096 and 50.117.
        let vectors = Matrix::new(1, vec![0.0, 0.1, 0.2, 50.0, 50.1, 50.2]).unwrap();
        let sigma = [9.0, 7.0, 8.0, 1.0, 3.0, 2.0];
        let input =
            OrderInput { sigma: Some(&sigma), vectors: Some(&vectors), clusters: Some(2), ..input(6) };
        assert_eq!(order(Policy::Coverage, &input).unwrap().permutation, [1, 4, 0, 2, 5, 3]);
        // The doubt of a head decides where there is one: both classes are equally likely for the items at 50
        // only.
        let head =
            Head::new(Matrix::new(1, vec![1.0, -1.0]).unwrap(), Some(vec![-50.1, 50.1]), HeadKind::Softmax);
        let head = head.unwrap();
        let doubted = OrderInput { classified: Some((&head, &vectors)), sigma: None, ..input };
        let permutation = order(Policy::Coverage, &doubted).unwrap().permutation;
        assert_eq!(permutation[0], 4);
        check_permutation(&permutation, 6).unwrap();
        // Weights that are all 0 still cover.
        let nothing = OrderInput { sigma: Some(&[0.0; 6]), ..input };
        check_permutation(&order(Policy::Coverage, &nothing).unwrap().permutation, 6).unwrap();
    }

    #[test]
    fn class_mean_takes_first_what_is_farthest_from_the_mean_of_its_class() {
        let vectors = Matrix::new(1, vec![0.0, 1.0, 5.0, 50.0, 51.0, 56.0, 7.0]).unwrap();
        // The means are 2 and 52.33; the class of the last item is not known.
        let classes = [0, 0, 0, 4, 4, 4, -1];
        let input = OrderInput { vectors: Some(&vectors), classes: Some(&classes), ..input(7) };
        let ordered = order(Policy::ClassMean, &input).unwrap();
        let slow: Vec<f64> = (0..7)
            .map(|item| {
                let members: Vec<f32> = (0..7)
                    .filter(|&member| classes[member] == classes[item])
                    .map(|member| vectors.row(member)[0])
                    .collect();
                let mean = members.iter().sum::<f32>() / members.len() as f32;
                if classes[item] < 0 { 0.0 } else { f64::from((vectors.row(item)[0] - mean).abs()) }
            })
            .collect();
        assert!(
            ordered.scores.iter().zip(&slow).all(|(a, b)| (a - b).abs() < 1e-5),
            "{:?} {slow:?}",
            ordered.scores
        );
        assert_eq!(ordered.permutation[..2], [5, 2]);
        assert_eq!(*ordered.permutation.last().unwrap(), 6);
        // Clusters take the place of missing classes: the nearest of two centres, here those of the two ends.
        let clustered = OrderInput { classes: None, clusters: Some(2), ..input };
        let ordered = order(Policy::ClassMean, &clustered).unwrap();
        let centres = [(0.0 + 1.0 + 5.0 + 7.0) / 4.0, (50.0 + 51.0 + 56.0) / 3.0];
        for (item, score) in ordered.scores.iter().enumerate() {
            let to = |centre: f64| (f64::from(vectors.row(item)[0]) - centre).abs();
            assert!((score - to(centres[0]).min(to(centres[1]))).abs() < 1e-4, "{item}: {score}");
        }
        let Some(Arrangement::FarFrom(centres)) = arrange(Policy::ClassMean, &clustered).unwrap() else {
            panic!()
        };
        assert_eq!(distances_to_nearest(&vectors, &centres), ordered.scores);
    }

    #[test]
    fn what_is_no_permutation_is_refused_with_the_reason() {
        assert!(check_permutation(&[1, 0, 2], 3).is_ok());
        assert!(check_permutation(&[0, 1], 3).unwrap_err().is_mismatch());
        assert!(check_permutation(&[0, 1, 1], 3).unwrap_err().to_string().contains("item 1"));
        assert!(check_permutation(&[0, 1, 3], 3).unwrap_err().to_string().contains("outside"));
    }

    #[test]
    fn an_empty_gallery_has_no_order() {
        assert!(order(Policy::Random, &input(0)).is_err());
    }
}
