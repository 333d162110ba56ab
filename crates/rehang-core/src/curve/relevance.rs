//! Relevance: which gallery items are right answers to a query.

use std::collections::HashMap;

use serde::Serialize;

use crate::check::expect_count;
use crate::error::{Error, ErrorKind, Result};

/// Definition of the right answers to a query.
#[derive(Debug, Clone, Copy)]
pub enum Relevance<'a> {
    /// Items with the query's label. A negative label means "unknown": such an item is never relevant, and
    /// such a query is left out and counted.
    Labels {
        /// Label of each gallery item, `[n]`.
        gallery: &'a [i64],
        /// Label of each query, `[m]`; `None` where the gallery is its own query set.
        queries: Option<&'a [i64]>,
    },
    /// Items that were judged, query by query.
    Judgements(&'a Qrels),
    /// Number of nearest items of the fully native gallery that are right answers. Without labels, a
    /// [curve](super::curve()) measures agreement with that gallery and nothing else. A shorter ranking
    /// counts whole.
    Nearest(usize),
}

impl Relevance<'_> {
    /// Fails where these right answers do not fit so many `items` and `queries`. `None` stands for a gallery
    /// that is its own query set.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::CountMismatch`], [`ErrorKind::Corrupt`] for an item outside the gallery,
    /// [`ErrorKind::MissingInput`] for labels of one side only, [`ErrorKind::InvalidOption`] for a depth of
    /// 0, [`ErrorKind::NothingToFind`] where there is nothing beside the query.
    pub fn check(self, items: usize, queries: Option<usize>) -> Result<()> {
        let query_count = queries.unwrap_or(items);
        match self {
            Self::Nearest(0) => Err(Error::option("the depth of agreement@k", 0, "1 or more")),
            Self::Nearest(_) if items == 1 && queries.is_none() => {
                let detail = "the gallery is its own set of queries and has one item; give separate queries, or more items";
                Err(ErrorKind::NothingToFind { detail: detail.into() }.into())
            }
            Self::Nearest(_) => Ok(()),
            Self::Labels { gallery, queries: labels } => {
                expect_count("gallery labels", gallery.len(), "gallery vectors", items)?;
                match (queries, labels) {
                    (None, None) => Ok(()),
                    (Some(_), Some(labels)) => {
                        expect_count("query labels", labels.len(), "query vectors", query_count)
                    }
                    (None, Some(_)) => Err(Error::missing("a query set", "query labels")),
                    (Some(_), None) => Err(Error::missing("query labels", "a query set of its own")),
                }
            }
            Self::Judgements(qrels) => {
                expect_count("judgements", qrels.len(), "query vectors", query_count)?;
                for (query, judged) in qrels.queries.iter().enumerate() {
                    if let Some((item, _)) = judged.iter().find(|(item, _)| *item >= items) {
                        let what = format!("judgements of query {query}");
                        let detail = format!("item {item} is judged, but the gallery has {items} items");
                        return Err(Error::corrupt(what, detail));
                    }
                }
                Ok(())
            }
        }
    }

    /// Fails for [`Relevance::Nearest`], whose right answers exist only for a gallery that is backfilled.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::MissingInput`].
    pub fn expect_given(self) -> Result<()> {
        match self {
            Self::Nearest(_) => {
                Err(Error::missing("labels or judgements", "an evaluation or a comparison of models"))
            }
            Self::Labels { .. } | Self::Judgements(_) => Ok(()),
        }
    }
}

/// Judgements: for every query the gallery items that were judged, with a gain each.
///
/// | gain | meaning |
/// |---|---|
/// | above 0 | relevant; nDCG uses the size, the other metrics only the sign |
/// | 0 | judged and not relevant, the same as not judged |
/// | below 0 | ignored ("junk"): taken out of the ranking of that query |
///
/// ```
/// use rehang_core::curve::Qrels;
///
/// let qrels = Qrels::new(vec![vec![(0, 1.0), (7, 3.0)], vec![]])?;
/// assert_eq!(qrels.len(), 2);
/// // One item judged twice for one query is an error, since the two may disagree.
/// assert!(Qrels::new(vec![vec![(4, 1.0), (4, 2.0)]]).is_err());
/// # Ok::<(), rehang_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Qrels {
    queries: Vec<Vec<(usize, f64)>>,
}

impl Qrels {
    /// Makes judgements from a list of (gallery index, gain) for each query.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Duplicate`] where an item is judged twice for a query, [`ErrorKind::NotFinite`] for a
    /// gain that is NaN or infinite, [`ErrorKind::InvalidOption`] for a gain above [`f32::MAX`], since sums
    /// of such gains may overflow.
    pub fn new(mut queries: Vec<Vec<(usize, f64)>>) -> Result<Self> {
        for (query, judged) in queries.iter_mut().enumerate() {
            judged.sort_by_key(|&(item, _)| item);
            if let Some(pair) = judged.windows(2).find(|pair| pair[0].0 == pair[1].0) {
                let what = format!("the judgements of query {query}");
                return Err(Error::duplicate(what, format!("item {}", pair[0].0)));
            }
            if let Some(column) = judged.iter().position(|&(_, gain)| !gain.is_finite()) {
                return Err(
                    ErrorKind::NotFinite { what: "gains of judgements".into(), row: query, column }.into()
                );
            }
            if let Some((item, gain)) = judged.iter().find(|(_, gain)| *gain > f64::from(f32::MAX)) {
                let option = format!("the gain of item {item} for query {query}");
                return Err(Error::option(option, gain, format!("at most {:e}", f32::MAX)));
            }
        }
        Ok(Self { queries })
    }

    /// Number of queries that these judgements speak of, those without any judgement included.
    pub fn len(&self) -> usize {
        self.queries.len()
    }

    /// Whether there is no query.
    pub fn is_empty(&self) -> bool {
        self.queries.is_empty()
    }

    /// Judgements of one query, by gallery index.
    pub fn query(&self, query: usize) -> &[(usize, f64)] {
        &self.queries[query]
    }
}

/// Number of queries that a mean is over, and of those left out, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct QueryCount {
    /// Number of queries that were given.
    pub given: usize,
    /// Number of queries that every mean is over.
    pub counted: usize,
    /// Number of queries left out because the gallery holds no right answer to them.
    pub without_positives: usize,
    /// Number of queries left out because their label is unknown (negative).
    pub unlabelled: usize,
}

/// A right answer to a query.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Positive {
    /// Time at which the item is backfilled (its column in the distances).
    pub(crate) time: u32,
    /// Gain of the item, above 0.
    pub(crate) gain: f64,
}

/// Right answers by backfill time, and the queries that have any.
pub(crate) struct Answers<'a> {
    kind: Kind<'a>,
    /// Gallery item of every column, in the order of the backfill.
    pub(crate) items: Vec<u32>,
    /// Backfill time of every gallery item.
    times: Vec<u32>,
    /// Whether query i is gallery item i.
    leave_one_out: bool,
    /// Queries with at least one right answer, ascending.
    pub(crate) counted: Vec<usize>,
    pub(crate) count: QueryCount,
}

enum Kind<'a> {
    /// Times of the items of each label, ascending, and the label of each query.
    Labels {
        classes: HashMap<i64, Vec<u32>>,
        queries: &'a [i64],
    },
    Judgements(&'a Qrels),
    /// Number of nearest items that are right answers.
    Nearest(usize),
}

impl<'a> Answers<'a> {
    /// Checks `relevance` against the number of items and queries. `queries` is `None` for leave-one-out.
    pub(crate) fn new(relevance: Relevance<'a>, order: &[usize], queries: Option<usize>) -> Result<Self> {
        let mut times = vec![0; order.len()];
        for (time, &item) in order.iter().enumerate() {
            times[item] = time as u32;
        }
        let query_count = queries.unwrap_or(order.len());
        relevance.check(order.len(), queries)?;
        let kind = match relevance {
            Relevance::Labels { gallery, queries: query_labels } => {
                let mut classes: HashMap<i64, Vec<u32>> = HashMap::new();
                for (time, &item) in order.iter().enumerate() {
                    if gallery[item] >= 0 {
                        classes.entry(gallery[item]).or_default().push(time as u32);
                    }
                }
                Kind::Labels { classes, queries: query_labels.unwrap_or(gallery) }
            }
            Relevance::Judgements(qrels) => Kind::Judgements(qrels),
            Relevance::Nearest(depth) => Kind::Nearest(depth),
        };
        let mut answers = Self {
            kind,
            items: order.iter().map(|&item| item as u32).collect(),
            times,
            leave_one_out: queries.is_none(),
            counted: Vec::new(),
            count: QueryCount { given: query_count, ..QueryCount::default() },
        };
        for query in 0..query_count {
            if answers.is_unlabelled(query) {
                answers.count.unlabelled += 1;
            } else if answers.has_positive(query) {
                answers.counted.push(query);
            } else {
                answers.count.without_positives += 1;
            }
        }
        answers.count.counted = answers.counted.len();
        if answers.counted.is_empty() {
            return Err(Error::no_right_answers());
        }
        Ok(answers)
    }

    fn is_unlabelled(&self, query: usize) -> bool {
        matches!(&self.kind, Kind::Labels { queries, .. } if queries[query] < 0)
    }

    fn has_positive(&self, query: usize) -> bool {
        match &self.kind {
            Kind::Labels { classes, queries } => classes
                .get(&queries[query])
                .is_some_and(|class| class.len() > usize::from(self.leave_one_out)),
            Kind::Judgements(qrels) => qrels
                .query(query)
                .iter()
                .any(|&(item, gain)| gain > 0.0 && !(self.leave_one_out && item == query)),
            Kind::Nearest(_) => true,
        }
    }

    /// Fills in the right answers to a query by ascending time, and the columns that are not in its ranking.
    /// `native` are its distances to the native vectors.
    pub(crate) fn fill_answers(
        &self,
        query: usize,
        native: &[f64],
        positives: &mut Vec<Positive>,
        ignored: &mut Vec<u32>,
    ) {
        positives.clear();
        ignored.clear();
        let own_time = self.leave_one_out.then(|| self.times[query]);
        ignored.extend(own_time);
        match &self.kind {
            Kind::Labels { classes, queries } => {
                let class = classes.get(&queries[query]).map_or(&[][..], Vec::as_slice);
                positives.extend(
                    class
                        .iter()
                        .filter(|&&time| Some(time) != own_time)
                        .map(|&time| Positive { time, gain: 1.0 }),
                );
            }
            Kind::Judgements(qrels) => {
                for &(item, gain) in qrels.query(query) {
                    let time = self.times[item];
                    if Some(time) == own_time {
                        continue;
                    }
                    if gain > 0.0 {
                        positives.push(Positive { time, gain });
                    } else if gain < 0.0 {
                        ignored.push(time);
                    }
                }
                positives.sort_by_key(|positive| positive.time);
                ignored.sort_unstable();
            }
            Kind::Nearest(depth) => {
                let nearest = self.nearest(native, own_time, *depth);
                positives.extend(nearest.iter().map(|&(_, _, time)| Positive { time, gain: 1.0 }));
                positives.sort_unstable_by_key(|positive| positive.time);
            }
        }
    }

    /// Finds the `depth` nearest columns, `own_time` left out, by (distance, gallery index), as (distance,
    /// gallery index, column).
    fn nearest(&self, distances: &[f64], own_time: Option<u32>, depth: usize) -> Vec<(f64, u32, u32)> {
        let mut nearest: Vec<(f64, u32, u32)> = Vec::new();
        let mut farthest = f64::INFINITY;
        for (time, (&distance, &item)) in (0_u32..).zip(distances.iter().zip(&self.items)) {
            if distance > farthest || Some(time) == own_time {
                continue;
            }
            let place = nearest.partition_point(|&(other, index, _)| (other, index) < (distance, item));
            nearest.insert(place, (distance, item, time));
            nearest.truncate(depth);
            if nearest.len() == depth {
                farthest = nearest[depth - 1].0;
            }
        }
        nearest
    }
}
