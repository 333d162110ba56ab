//! Orders: which item of a gallery is re-embedded first.
//!
//! An order is a permutation with scores, the largest score first, ties by index. Orders cannot see evaluation labels;
//! [`Policy::Oracle`] looks at the true errors and exists for evaluation only. A policy is a file of `order/`, a
//! variant of [`Policy`] and an arm of its `definition`.

mod class_mean;
mod coverage;
mod doubt;
mod oracle;
mod random;
mod sigma;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::check::{check_finite, expect_count, expect_width};
use crate::curve::{Panels, QueryTiles, distances};
use crate::error::{Error, ErrorKind, Result};
use crate::head::Head;
use crate::processor::Processor;
use crate::space::Distance;
use crate::vectors::{Matrix, distinct, squared_distance};

/// Items whose logits are computed together.
const BLOCK: usize = 64;

crate::named! {
    /// How an order is made.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Policy ("policy") {
        /// Predicted squared error σ² (FastFill §4.3). Needs `sigma`.
        Sigma = "sigma",
        /// A shuffle. Needs `seed` only.
        Random = "random",
        /// `1 − p¹`, the classifier's doubt about its best class (RACT eq. 9). Needs `classified`.
        LeastConfidence = "least-confidence",
        /// `1 − (p¹ − p²)`, how close the two best classes are (RACT eq. 10). Needs `classified`.
        Margin = "margin",
        /// `−Σ p log p` (RACT eq. 11). Needs `classified`.
        Entropy = "entropy",
        /// The true squared error ("cheating" order of FastFill). Needs `squared_errors`; for evaluation only, since an upgrade never
        /// has them before the backfill is done.
        Oracle = "oracle",
        /// Cover, then dig: first the item nearest to the centre of each of `n/10` clusters of the gallery (k-means, every
        /// item weighted by its dig score), then the rest, both by dig score. A query needs one near native item for top-1
        /// and all of them for mAP, so an order that reaches every corner early serves both.
        ///
        /// The dig score is `H(p) · (1 − (p¹ − p²))`, entropy times margin through a head (the adapter carries one even
        /// where the model came without); σ² where there is none. Needs `vectors`, and `classified` or `sigma`.
        Coverage = "coverage",
        /// The distance of h(o) to the mean of its class, or of its k-means cluster without labels, farthest first
        /// (λ-orthogonality, arXiv 2509.16664). Needs `vectors`; `classes` are those that the gallery declares.
        ClassMean = "class-mean",
    }
}

/// What a policy is.
pub(crate) struct Definition {
    /// What it does, after its name: "goes by …".
    about: &'static str,
    /// Whether it uses what is not known before the backfill is done.
    is_evaluation_only: bool,
    head: HeadUse,
    /// Orders a whole gallery.
    order: fn(&Evidence<'_>) -> Result<Order>,
    /// What items are ranked by, each by itself and as soon as it is adapted: larger is earlier.
    scores: fn(&Page<'_>) -> Result<Vec<f64>>,
    /// What has to be said of a live gallery as a whole, from a sample of it; `None` where `scores` says everything.
    arrange: Option<fn(&Evidence<'_>) -> Result<Arrangement>>,
}

/// What a policy does with a classifier head.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HeadUse {
    /// It looks through none.
    None,
    /// It needs one.
    Needed,
    /// It looks through the adapter's own one, which is tempered on left-out pairs, before any other.
    Own,
}

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

    /// What it does, in words that follow its name: "goes by …".
    pub fn about(self) -> &'static str {
        self.definition().about
    }

    /// Whether this order uses what is unknown before the backfill is done.
    pub fn is_evaluation_only(self) -> bool {
        self.definition().is_evaluation_only
    }

    /// Whether it cannot be made without a classifier head.
    pub fn needs_head(self) -> bool {
        self.definition().head == HeadUse::Needed
    }

    /// The head that it looks through: the adapter's `own` or a `given` one.
    pub fn head<'h>(self, own: Option<&'h Head>, given: Option<&'h Head>) -> Option<&'h Head> {
        match self.definition().head {
            HeadUse::Own => own.or(given),
            HeadUse::None | HeadUse::Needed => given.or(own),
        }
    }

    /// Whether a head that is given has no effect beside the adapter's own one.
    pub fn prefers_own_head(self) -> bool {
        self.definition().head == HeadUse::Own
    }

    /// Whether a live gallery has to be looked at as a whole; see [`arrange`].
    pub fn is_arranged(self) -> bool {
        self.definition().arrange.is_some()
    }
}

/// Items of a live gallery that were just adapted.
#[derive(Clone, Copy)]
pub struct Page<'a> {
    /// A number in `[0, 1)` that is drawn for the item of a row and stays the same, for shuffles.
    pub drawn: &'a dyn Fn(usize) -> f64,
    /// σ² of each, `[n]`.
    pub sigma: &'a [f32],
    /// Adapted vectors, `[n, d]`.
    pub vectors: &'a Matrix,
    /// The adapter's head.
    pub head: Option<&'a Head>,
}

impl Page<'_> {
    fn by_sigma(&self) -> Vec<f64> {
        self.sigma.iter().map(|&value| f64::from(value)).collect()
    }
}

/// What items of a live gallery are ranked by, each by itself: larger is earlier. One item's score does not depend on the
/// others, so a gallery may be scored page by page.
///
/// # Errors
///
/// [`ErrorKind::WidthMismatch`] between head and vectors, [`ErrorKind::NotFinite`].
pub fn scores(policy: Policy, page: &Page<'_>) -> Result<Vec<f64>> {
    (policy.definition().scores)(page)
}

/// What a look at a sample of a live gallery says of the whole.
#[derive(Debug, Clone, PartialEq)]
pub enum Arrangement {
    /// These rows of the sample come before everything else, the first one first.
    First(Vec<usize>),
    /// Every item is ranked by its distance to the nearest of these centres, `[k, d]`, farthest first; see
    /// [`distances_to_nearest`].
    FarFrom(Matrix),
}

/// Looks at a sample of a live gallery, given as to [`order`]; `None` where [`scores`] says everything.
///
/// # Errors
///
/// As [`order`].
pub fn arrange(policy: Policy, sample: &OrderInput<'_>) -> Result<Option<Arrangement>> {
    let evidence = Evidence { policy, input: sample };
    policy.definition().arrange.map(|arrange| arrange(&evidence)).transpose()
}

/// The distance of every vector to the nearest centre: `[n, d], [k, d] → [n]`.
pub fn distances_to_nearest(vectors: &Matrix, centres: &Matrix) -> Vec<f64> {
    let nearest = |row: usize| {
        let to = (0..centres.rows()).map(|centre| squared_distance(vectors.row(row), centres.row(centre)));
        to.fold(f64::INFINITY, f64::min).sqrt()
    };
    (0..vectors.rows()).into_par_iter().map(nearest).collect()
}

/// What an order may be made from; each policy says what it needs.
///
/// | name | default | purpose |
/// |---|---|---|
/// | `items` | 0 | gallery size n |
/// | `sigma` | none | predicted squared error σ² of each item, `[n]` |
/// | `squared_errors` | none | true squared error of each item, `[n]` (evaluation only) |
/// | `classified` | none | a head and the vectors it classifies: the new head with adapted vectors, or the old head with old vectors (RACT runs the new head on old vectors, which share its space there) |
/// | `vectors` | none | vectors whose space is to be covered, `[n, d]` |
/// | `classes` | none | the class of each item, `[n]`, negative where not known |
/// | `clusters` | none | clusters of an order that has some; coverage: `⌈n/10⌉`, at most 2048; class-mean: `n/30`, 2 to 256 |
/// | `seed` | 0 | of shuffles and of k-means |
#[derive(Debug, Clone, Copy, Default)]
pub struct OrderInput<'a> {
    /// Gallery size n.
    pub items: usize,
    /// Predicted squared error of each item.
    pub sigma: Option<&'a [f64]>,
    /// True squared error of each item.
    pub squared_errors: Option<&'a [f64]>,
    /// A head and the vectors it classifies.
    pub classified: Option<(&'a Head, &'a Matrix)>,
    /// Vectors whose space is to be covered.
    pub vectors: Option<&'a Matrix>,
    /// Class of each item, as the gallery declares it.
    pub classes: Option<&'a [i64]>,
    /// Clusters of an order that has some.
    pub clusters: Option<usize>,
    /// Seed of shuffles and of k-means.
    pub seed: u64,
}

/// An order of a gallery.
#[derive(Debug, Clone, PartialEq)]
pub struct Order {
    /// `permutation[0]` is re-embedded first.
    pub permutation: Vec<usize>,
    /// What each item was ranked by, `[n]` in gallery order. Orders without a score of their own (random, coverage)
    /// have `1 − place/n`, so that sorting by score gives the permutation for every policy.
    pub scores: Vec<f64>,
}

impl Order {
    /// The order with the largest score first; equal scores by index.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFinite`] where a score is NaN or infinite: such an item has no place.
    pub fn by_scores(scores: Vec<f64>, what: &str) -> Result<Self> {
        check_finite(what, &scores, 1, 0)?;
        let mut permutation: Vec<usize> = (0..scores.len()).collect();
        // Adding 0 turns −0 into 0, so that the two tie; the sort is stable.
        permutation.sort_by(|&a, &b| (scores[b] + 0.0).total_cmp(&(scores[a] + 0.0)));
        Ok(Self { permutation, scores })
    }

    fn by_places(permutation: Vec<usize>) -> Self {
        let count = permutation.len();
        let mut scores = vec![0.0; count];
        for (place, &item) in permutation.iter().enumerate() {
            scores[item] = 1.0 - place as f64 / count as f64;
        }
        Self { permutation, scores }
    }
}

/// Orders a gallery.
///
/// ```
/// use rehang::order::{OrderInput, Policy, order};
///
/// let sigma = [0.1, 0.7, 0.7, 0.9];
/// let input = OrderInput { items: 4, sigma: Some(&sigma), ..OrderInput::default() };
/// assert_eq!(order(Policy::Sigma, &input)?.permutation, [3, 1, 2, 0]);
/// // What a policy needs and does not get is named.
/// let error = order(Policy::Entropy, &input).unwrap_err();
/// assert!(error.to_string().starts_with("the order \"entropy\" needs a classifier head"));
/// # Ok::<(), rehang::Error>(())
/// ```
///
/// # Errors
///
/// [`ErrorKind::MissingInput`] for what the policy needs, [`ErrorKind::CountMismatch`] where it is not of n items,
/// [`ErrorKind::NotFinite`] for NaN, [`ErrorKind::WidthMismatch`] between head and vectors, [`ErrorKind::Empty`]
/// for an empty gallery.
pub fn order(policy: Policy, input: &OrderInput<'_>) -> Result<Order> {
    if input.items == 0 {
        return Err(ErrorKind::Empty { what: "the gallery to order".into() }.into());
    }
    (policy.definition().order)(&Evidence { policy, input })
}

/// What an order may be made from, asked for by the policy that needs it.
struct Evidence<'a> {
    policy: Policy,
    input: &'a OrderInput<'a>,
}

impl<'a> Evidence<'a> {
    fn needed(&self, what: &str) -> Error {
        Error::missing(what, format!("the order {:?}", self.policy.name()))
    }

    /// Fails where something is not of n items.
    fn expect_items(&self, what: &str, count: usize) -> Result<()> {
        expect_count(what, count, "the gallery", self.input.items)
    }

    fn values(&self, values: Option<&'a [f64]>, what: &str) -> Result<Vec<f64>> {
        let values = values.ok_or_else(|| self.needed(what))?;
        self.expect_items(what, values.len())?;
        Ok(values.to_vec())
    }

    fn vectors(&self, what: &str) -> Result<&'a Matrix> {
        let vectors = self.input.vectors.ok_or_else(|| self.needed(what))?;
        self.expect_items(what, vectors.rows())?;
        Ok(vectors)
    }
}

/// `1 − p¹` of every vector by a head: `[n, d] → [n]`.
///
/// # Errors
///
/// [`ErrorKind::WidthMismatch`] between head and vectors, [`ErrorKind::NotFinite`].
pub fn least_confidence(head: &Head, vectors: &Matrix) -> Result<Vec<f64>> {
    probabilities(head, vectors, doubt::least_confidence)
}

/// Softmax probabilities of every vector, given to `score`: `[n, d] → [n, classes] → [n]`.
fn probabilities(head: &Head, vectors: &Matrix, score: impl Fn(&[f64]) -> f64 + Sync) -> Result<Vec<f64>> {
    expect_width("vectors to classify", head.dimension(), vectors.columns())?;
    vectors.check_finite("vectors to classify")?;
    let classes = head.classes();
    let panels = Panels::new(head.weight(), &(0..classes).collect::<Vec<_>>());
    let processor = Processor::detect();
    let items: Vec<usize> = (0..vectors.rows()).collect();
    let scores: Vec<Vec<f64>> = items
        .par_chunks(BLOCK)
        .map_init(
            || (QueryTiles::default(), vec![0.0; BLOCK * classes]),
            |(tiles, out), items| {
                tiles.fill(vectors, items);
                let out = &mut out[..items.len() * classes];
                let (distance, scale) = match head.kind().scale() {
                    None => (Distance::Dot, 1.0),
                    Some(scale) => (Distance::Cosine, f64::from(scale)),
                };
                distances(processor, tiles, &panels, distance, out);
                out.chunks_mut(classes)
                    .map(|line| {
                        // Distances are −⟨w, v⟩ or 1 − cos; the constant 1 drops out of a softmax.
                        for (value, bias) in line.iter_mut().zip(head.bias()) {
                            *value = scale * -*value + f64::from(*bias);
                        }
                        let largest = line.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                        let mut sum = 0.0;
                        for value in line.iter_mut() {
                            *value = (*value - largest).exp();
                            sum += *value;
                        }
                        for value in line.iter_mut() {
                            *value /= sum;
                        }
                        score(line)
                    })
                    .collect()
            },
        )
        .collect();
    Ok(scores.into_iter().flatten().collect())
}

/// Fails where `order` is not a permutation of `0..items`, naming what is missing, twice or outside.
///
/// # Errors
///
/// [`ErrorKind::CountMismatch`], [`ErrorKind::Duplicate`], [`ErrorKind::Corrupt`] for an index outside the gallery.
pub fn check_permutation(order: &[usize], items: usize) -> Result<()> {
    expect_count("the order", order.len(), "the gallery", items)?;
    let mut seen = vec![false; items];
    for &item in order {
        match seen.get_mut(item) {
            None => {
                let detail = format!("item {item} is outside the gallery of {items}");
                return Err(Error::corrupt("the order", detail));
            }
            Some(true) => return Err(Error::duplicate("the order", format!("item {item}"))),
            Some(seen) => *seen = true,
        }
    }
    Ok(())
}

/// Who comes first in an order: the share of its first ⌊x·n⌋ items that is of each group, 0 to 1, for every fraction x of
/// `fractions`; NaN where x·n is below one item. Groups by ascending number, negative ones (no group) left out
/// (FastFill App. F).
///
/// ```
/// let shares = rehang::order::group_shares(&[2, 3, 0, 1], &[0, 0, 1, 1], &[0.5, 1.0])?;
/// // Both items of group 1 come first.
/// assert_eq!(shares, [(0, vec![0.0, 0.5]), (1, vec![1.0, 0.5])]);
/// # Ok::<(), rehang::Error>(())
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
        // A fraction that was made as k/n is k items, although k/n·n may come out just below k.
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
            let made =
                order(policy, &OrderInput { classified: Some((&head, &vectors)), ..input(2) }).unwrap();
            assert_eq!((made.scores, made.permutation), (vec![0.0, 0.0], vec![0, 1]));
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
        // Two far clusters; the first has the larger errors throughout. The items in the middle are nearest to the
        // weighted centres 0.096 and 50.117.
        let vectors = Matrix::new(1, vec![0.0, 0.1, 0.2, 50.0, 50.1, 50.2]).unwrap();
        let sigma = [9.0, 7.0, 8.0, 1.0, 3.0, 2.0];
        let input =
            OrderInput { sigma: Some(&sigma), vectors: Some(&vectors), clusters: Some(2), ..input(6) };
        assert_eq!(order(Policy::Coverage, &input).unwrap().permutation, [1, 4, 0, 2, 5, 3]);
        // With a head its doubt decides: both classes are equally likely for the items at 50 only.
        let head =
            Head::new(Matrix::new(1, vec![1.0, -1.0]).unwrap(), Some(vec![-50.1, 50.1]), HeadKind::Softmax);
        let head = head.unwrap();
        let doubted = OrderInput { classified: Some((&head, &vectors)), sigma: None, ..input };
        let made = order(Policy::Coverage, &doubted).unwrap().permutation;
        assert_eq!(made[0], 4);
        check_permutation(&made, 6).unwrap();
        // All weights 0 still cover.
        let nothing = OrderInput { sigma: Some(&[0.0; 6]), ..input };
        check_permutation(&order(Policy::Coverage, &nothing).unwrap().permutation, 6).unwrap();
    }

    #[test]
    fn class_mean_takes_first_what_is_farthest_from_the_mean_of_its_class() {
        let vectors = Matrix::new(1, vec![0.0, 1.0, 5.0, 50.0, 51.0, 56.0, 7.0]).unwrap();
        // Means 2 and 52.33; the class of the last item is not known.
        let classes = [0, 0, 0, 4, 4, 4, -1];
        let input = OrderInput { vectors: Some(&vectors), classes: Some(&classes), ..input(7) };
        let made = order(Policy::ClassMean, &input).unwrap();
        let slow: Vec<f64> = (0..7)
            .map(|item| {
                let members: Vec<f32> = (0..7)
                    .filter(|&other| classes[other] == classes[item])
                    .map(|other| vectors.row(other)[0])
                    .collect();
                let mean = members.iter().sum::<f32>() / members.len() as f32;
                if classes[item] < 0 { 0.0 } else { f64::from((vectors.row(item)[0] - mean).abs()) }
            })
            .collect();
        assert!(
            made.scores.iter().zip(&slow).all(|(a, b)| (a - b).abs() < 1e-5),
            "{:?} {slow:?}",
            made.scores
        );
        assert_eq!(made.permutation[..2], [5, 2]);
        assert_eq!(*made.permutation.last().unwrap(), 6);
        // Without classes the clusters take their place: the nearest of two centres, here those of the two ends.
        let clustered = OrderInput { classes: None, clusters: Some(2), ..input };
        let made = order(Policy::ClassMean, &clustered).unwrap();
        let centres = [(0.0 + 1.0 + 5.0 + 7.0) / 4.0, (50.0 + 51.0 + 56.0) / 3.0];
        for (item, score) in made.scores.iter().enumerate() {
            let to = |centre: f64| (f64::from(vectors.row(item)[0]) - centre).abs();
            assert!((score - to(centres[0]).min(to(centres[1]))).abs() < 1e-4, "{item}: {score}");
        }
        let Some(Arrangement::FarFrom(centres)) = arrange(Policy::ClassMean, &clustered).unwrap() else {
            panic!()
        };
        assert_eq!(distances_to_nearest(&vectors, &centres), made.scores);
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
