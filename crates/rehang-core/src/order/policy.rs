//! Common parts of policies: their names, their definition, their inputs, and the order that they make.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::check::{check_finite, expect_count, expect_width};
use crate::curve::{Panels, QueryTiles, distances};
use crate::error::{Error, Result};
use crate::head::Head;
use crate::length::squared_distance;
use crate::processor::Processor;
use crate::progress::Progress;
use crate::space::Distance;
use crate::vectors::Matrix;

/// Number of items whose logits are computed together.
const BLOCK: usize = 64;

crate::named! {
    /// Policy by which an order is made.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Policy ("policy") {
        /// Predicted squared error σ² (FastFill §4.2). Needs `sigma`.
        Sigma = "sigma",
        /// A shuffle. Needs `seed` only.
        Random = "random",
        /// `1 − p¹`, the classifier's doubt about its best class (RACT eq. 9). Needs `classified`.
        LeastConfidence = "least-confidence",
        /// `1 − (p¹ − p²)`, how close the two best classes are (RACT eq. 10). Needs `classified`.
        Margin = "margin",
        /// `−Σ p log p` (RACT eq. 11). Needs `classified`.
        Entropy = "entropy",
        /// The true squared error ("cheating" order of FastFill). Needs `squared_errors`. It is for
        /// evaluation only, since an upgrade never has them before the backfill is done.
        Oracle = "oracle",
        /// Cover, then dig: first the item nearest to the centre of each of `n/10` clusters of the gallery
        /// (k-means, every item weighted by its dig score), then the rest; both by dig score. A query needs
        /// one near native item for top-1, and all of them for mAP. So an order that reaches every corner
        /// early serves both.
        ///
        /// The dig score is `H(p) · (1 − (p¹ − p²))`, entropy times margin, through a head (the adapter
        /// carries one even where the model came without). Without a head it is σ². Needs `vectors`, and
        /// `classified` or `sigma`.
        Coverage = "coverage",
        /// The distance of h(o) to the mean of its class, or of its k-means cluster without labels, farthest
        /// first (λ-orthogonality, arXiv 2509.16664). Needs `vectors`; `classes` are the ones that the
        /// gallery declares.
        ClassMean = "class-mean",
    }
}

/// Definition of a policy: its description, and the functions that make its order.
pub(super) struct Definition {
    /// Description of the policy, in words that follow its name: "goes by …".
    pub about: &'static str,
    /// Whether the order uses what is not known before the backfill is done.
    pub is_evaluation_only: bool,
    pub head: HeadUse,
    /// Function that orders a whole gallery.
    pub order: fn(&Evidence<'_>) -> Result<Order>,
    /// Function that scores items, each by itself and as soon as it is adapted: a larger score is earlier.
    pub scores: fn(&Page<'_>) -> Result<Vec<f64>>,
    /// Function that looks at a sample of a live gallery as a whole; `None` where `scores` alone make the
    /// order.
    pub arrange: Option<fn(&Evidence<'_>) -> Result<Arrangement>>,
}

/// Use that a policy makes of a classifier head.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum HeadUse {
    /// The policy looks through no head.
    None,
    /// The policy needs a head.
    Needed,
    /// The policy looks through the adapter's own head, which is tempered on left-out pairs, before any
    /// other.
    Own,
}

/// Items of a live gallery that were just adapted.
#[derive(Clone, Copy)]
pub struct Page<'a> {
    /// Number in `[0, 1)` that is drawn for the item of a row and stays the same, for shuffles.
    pub drawn: &'a dyn Fn(usize) -> f64,
    /// σ² of each item, `[n]`.
    pub sigma: &'a [f32],
    /// Adapted vectors of the items, `[n, d]`.
    pub vectors: &'a Matrix,
    /// Head of the adapter.
    pub head: Option<&'a Head>,
}

impl Page<'_> {
    pub(super) fn by_sigma(&self) -> Vec<f64> {
        self.sigma.iter().map(|&value| f64::from(value)).collect()
    }
}

/// Arrangement of a whole live gallery, from a look at a sample of it.
#[derive(Debug, Clone, PartialEq)]
pub enum Arrangement {
    /// Rows of the sample that come before everything else, the first one first.
    First(Vec<usize>),
    /// Centres `[k, d]`. Every item is ranked by its distance to the nearest of them, farthest first; see
    /// [`distances_to_nearest`].
    FarFrom(Matrix),
}

/// Computes the distance of every vector to the nearest centre: `[n, d], [k, d] → [n]`.
pub fn distances_to_nearest(vectors: &Matrix, centres: &Matrix) -> Vec<f64> {
    let nearest = |row: usize| {
        let to = (0..centres.rows()).map(|centre| squared_distance(vectors.row(row), centres.row(centre)));
        to.fold(f64::INFINITY, f64::min).sqrt()
    };
    (0..vectors.rows()).into_par_iter().map(nearest).collect()
}

/// Inputs that an order may be made from; each policy says what it needs.
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
/// | `progress` | none | what an order that clusters the gallery tells, and is ended by |
#[derive(Debug, Clone, Copy, Default)]
pub struct OrderInput<'a> {
    /// Gallery size n.
    pub items: usize,
    /// Predicted squared error of each item.
    pub sigma: Option<&'a [f64]>,
    /// True squared error of each item.
    pub squared_errors: Option<&'a [f64]>,
    /// A head, and the vectors that it classifies.
    pub classified: Option<(&'a Head, &'a Matrix)>,
    /// Vectors whose space is to be covered.
    pub vectors: Option<&'a Matrix>,
    /// Class of each item, as the gallery declares it.
    pub classes: Option<&'a [i64]>,
    /// Number of clusters, for an order that has some.
    pub clusters: Option<usize>,
    /// Seed of shuffles and of k-means.
    pub seed: u64,
    /// Progress of an order that clusters the gallery, which takes a minute where it is large. It can also
    /// end the work.
    pub progress: Option<&'a Progress>,
}

/// An order of a gallery.
#[derive(Debug, Clone, PartialEq)]
pub struct Order {
    /// `permutation[0]` is re-embedded first.
    pub permutation: Vec<usize>,
    /// Number that each item was ranked by, `[n]` in gallery order. Orders without a score of their own
    /// (random, coverage) have `1 − place/n`, so that sorting by score gives the permutation for every
    /// policy.
    pub scores: Vec<f64>,
}

impl Order {
    /// Makes the order with the largest score first; equal scores stand by index.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFinite`](crate::ErrorKind::NotFinite) where a score is NaN or infinite: such an item
    /// has no place.
    pub fn by_scores(scores: Vec<f64>, what: &str) -> Result<Self> {
        check_finite(what, &scores, 1, 0)?;
        let mut permutation: Vec<usize> = (0..scores.len()).collect();
        // Adding 0 turns −0 into 0, so that the two tie; the sort is stable.
        permutation.sort_by(|&a, &b| (scores[b] + 0.0).total_cmp(&(scores[a] + 0.0)));
        Ok(Self { permutation, scores })
    }

    pub(super) fn by_places(permutation: Vec<usize>) -> Self {
        let count = permutation.len();
        let mut scores = vec![0.0; count];
        for (place, &item) in permutation.iter().enumerate() {
            scores[item] = 1.0 - place as f64 / count as f64;
        }
        Self { permutation, scores }
    }
}

/// Access of a policy to its inputs. An input that is missing becomes an error that names the policy.
pub(super) struct Evidence<'a> {
    pub policy: Policy,
    pub input: &'a OrderInput<'a>,
}

impl<'a> Evidence<'a> {
    pub(super) fn needed(&self, what: &str) -> Error {
        Error::missing(what, format!("the order {:?}", self.policy.name()))
    }

    /// Fails where an input is not of n items.
    pub(super) fn expect_items(&self, what: &str, count: usize) -> Result<()> {
        expect_count(what, count, "the gallery", self.input.items)
    }

    pub(super) fn values(&self, values: Option<&'a [f64]>, what: &str) -> Result<Vec<f64>> {
        let values = values.ok_or_else(|| self.needed(what))?;
        self.expect_items(what, values.len())?;
        Ok(values.to_vec())
    }

    pub(super) fn vectors(&self, what: &str) -> Result<&'a Matrix> {
        let vectors = self.input.vectors.ok_or_else(|| self.needed(what))?;
        self.expect_items(what, vectors.rows())?;
        Ok(vectors)
    }
}

/// Computes the softmax probabilities of every vector and gives them to `score`:
/// `[n, d] → [n, classes] → [n]`.
pub(super) fn probabilities(
    head: &Head,
    vectors: &Matrix,
    score: impl Fn(&[f64]) -> f64 + Sync,
) -> Result<Vec<f64>> {
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
