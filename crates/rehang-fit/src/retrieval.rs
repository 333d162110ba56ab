//! Measures how well queries find their way in a gallery that is partly adapted; maps are chosen by it.
//!
//! The curves are the exact ones of the core. Held-out pairs are the gallery; its own items ask, or the
//! queries that the caller gives.

use std::collections::BTreeMap;

use rehang_core::curve::{
    Curve, CurveInput, CurveOptions, Distances, DoNothing, MAP, Metric, Qrels, QueryRanks, Relevance, TOP1,
    curve, evaluate, evaluate_distances, evaluate_leave_one_out, evaluate_today, nearest,
};
use rehang_core::order::{OrderInput, Policy, order};
use rehang_core::{Error, Head, Matrix, Pairs, Progress, Result, Vectors};

use crate::folds::shuffled;
use crate::parameters::{FitParameters, FitQueries};

/// Number of neighbours whose agreement counts where nothing says what is right.
pub(crate) const AGREEMENT: usize = 10;

/// Quality in percent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Quality {
    /// Quality with every gallery vector adapted.
    pub start: f64,
    /// Mean quality over all states of the backfill.
    pub area: f64,
}

/// Answers that count as found.
#[derive(Debug, Clone)]
pub(crate) enum Answers {
    /// Items of the query's known class; classes of the queries are `None` where the gallery's own items ask.
    Labels { gallery: Vec<i64>, queries: Option<Vec<i64>> },
    /// Items that were judged.
    Judged(Qrels),
    /// Answers that the fully native gallery gives first.
    Native,
}

/// Criterion of a comparison: who asks, what counts as found, and the metric.
#[derive(Debug, Clone)]
pub(crate) struct Criterion<'a> {
    answers: Answers,
    /// Separate queries; `None` where the gallery's own items ask, each leaving itself out.
    pub queries: Option<&'a FitQueries>,
    pub metric: Metric,
}

impl<'a> Criterion<'a> {
    /// Returns the criterion for the pairs `items`, which are a gallery: by judgements where there are
    /// queries, else by class. `None` where nothing says what is right, or nothing among these items.
    pub(crate) fn by_answers(parameters: &'a FitParameters, pairs: &Pairs, items: &[usize]) -> Option<Self> {
        let criterion = if let Some(queries) = &parameters.queries {
            Self {
                answers: Answers::Judged(queries.judged(items)?),
                queries: Some(queries),
                metric: Metric::ndcg_at(AGREEMENT),
            }
        } else {
            let labels = pairs.labels()?;
            Self::by_label(&items.iter().map(|&item| labels[item]).collect::<Vec<_>>())?
        };
        Some(Self { metric: parameters.metric.unwrap_or(criterion.metric), ..criterion })
    }

    /// Returns the criterion by class: mAP. `None` where no query has both something to find and something to
    /// leave, so that every ranking is as good as any other.
    pub(crate) fn by_label(labels: &[i64]) -> Option<Self> {
        let mut sizes = BTreeMap::new();
        for &label in labels.iter().filter(|&&label| label >= 0) {
            *sizes.entry(label).or_insert(0) += 1;
        }
        let tells_apart = sizes.values().any(|&size| (2..labels.len()).contains(&size));
        let answers = Answers::Labels { gallery: labels.to_vec(), queries: None };
        tells_apart.then_some(Self { answers, queries: None, metric: MAP })
    }

    /// Returns the criterion for queries to a gallery that is no pair, with their right answers.
    pub(crate) fn of_others(queries: &'a FitQueries, answers: &Answers, metric: Metric) -> Self {
        Self { answers: answers.clone(), queries: Some(queries), metric }
    }

    /// Returns the criterion by agreement of the first ten results with those of the fully native gallery.
    pub(crate) fn by_agreement(queries: Option<&'a FitQueries>) -> Self {
        Self { answers: Answers::Native, queries, metric: Metric::agreement_at(AGREEMENT) }
    }

    /// Fails where the metric that is asked for cannot be measured by these answers.
    pub(crate) fn check_metric(parameters: &FitParameters, pairs: &Pairs) -> Result<()> {
        let Some(metric) = parameters.metric else { return Ok(()) };
        let judged = parameters.queries.as_ref().and_then(|queries| queries.qrels.as_ref());
        let relevance = match (judged, pairs.labels()) {
            (Some(qrels), _) => Relevance::Judgements(qrels),
            (None, Some(gallery)) if parameters.queries.is_none() => {
                Relevance::Labels { gallery, queries: None }
            }
            (None, _) => Relevance::Nearest(AGREEMENT),
        };
        let depth = match relevance {
            Relevance::Nearest(depth) => depth,
            Relevance::Labels { .. } | Relevance::Judgements(_) => metric.depth().unwrap_or(AGREEMENT),
        };
        if Metric::measurable(relevance, depth).contains(&metric) {
            return Ok(());
        }
        let names: Vec<String> =
            Metric::measurable(relevance, AGREEMENT).iter().map(|metric| metric.id()).collect();
        Err(Error::option("metric", metric, format!("one that can be measured here: {}", names.join(", "))))
    }

    /// Returns whether the fully native gallery says what is right.
    pub(crate) fn is_agreement(&self) -> bool {
        matches!(self.answers, Answers::Native)
    }

    /// Names the metric for people.
    pub(crate) fn name(&self) -> String {
        if self.is_agreement() { self.metric.id() } else { self.metric.name() }
    }

    /// Measures the quality of the old vectors for old queries: doing nothing.
    pub(crate) fn old(&self, pairs: &Pairs) -> Result<f64> {
        let (old, new) = (pairs.old(), pairs.new_vectors());
        let today = DoNothing {
            gallery: old.matrix(),
            queries: self.queries.map(|queries| &queries.old),
            distance: old.space().distance,
        };
        let (distance, options, quiet) = (new.space().distance, self.options(), Progress::default());
        let queries = self.queries.map(|queries| &queries.new);
        let evaluation =
            evaluate_today(today, new.matrix(), queries, self.relevance(), distance, &options, &quiet)?;
        Ok(evaluation.values[self.metric])
    }

    /// Ranks what every query finds in the gallery of old vectors. Queries are vectors of the old space: the
    /// given queries', or those of the gallery's own items, each leaving itself out. The right answers have
    /// to be [given](Self::with_answers_written_down).
    pub(crate) fn in_old(&self, old: &Vectors, queries: &Matrix) -> Result<QueryRanks> {
        let (gallery, distance, options) = (old.matrix(), old.space().distance, self.options());
        let (relevance, quiet) = (self.relevance(), Progress::default());
        let evaluation = if self.queries.is_some() {
            evaluate(gallery, Some(queries), relevance, distance, &options, &quiet)?
        } else {
            evaluate_leave_one_out(gallery, queries, relevance, distance, &options, &quiet)?
        };
        Ok(evaluation.per_query)
    }

    /// Ranks what the queries find in a gallery that is as far from them as `distances` says.
    pub(crate) fn by_distances(&self, distances: &Distances) -> Result<QueryRanks> {
        let quiet = Progress::default();
        Ok(evaluate_distances(distances, self.relevance(), &self.options(), &quiet)?.per_query)
    }

    /// Returns this criterion with the right answers written down: those that the native gallery gives first
    /// are judged right, and their recall is agreement.
    pub(crate) fn with_answers_written_down(&self, pairs: &Pairs) -> Result<Self> {
        if !self.is_agreement() {
            return Ok(self.clone());
        }
        let (native, queries) = (pairs.new_vectors(), self.queries.map(|queries| &queries.new));
        let (distance, quiet) = (native.space().distance, Progress::default());
        let right = nearest(native.matrix(), queries, AGREEMENT, distance, &quiet)?;
        Ok(Self {
            answers: Answers::Judged(right),
            queries: self.queries,
            metric: Metric::recall_at(AGREEMENT),
        })
    }

    /// Lists the metrics that nothing may be worse in. The criterion's own is one. The first result is
    /// another where its own hardly sees it, as mAP, recall and agreement do. By agreement a first result is
    /// right where it is among those that the new model finds first.
    pub(crate) fn guarded(&self) -> Vec<Metric> {
        let is_recall = self.metric.key() == Metric::recall_at(AGREEMENT).key();
        let guards =
            if self.metric == MAP || self.is_agreement() || is_recall { vec![TOP1] } else { Vec::new() };
        [vec![self.metric], guards].concat()
    }

    /// Measures the quality of the new vectors for new queries: the end of the upgrade.
    pub(crate) fn native(&self, pairs: &Pairs) -> Result<f64> {
        if self.is_agreement() {
            return Ok(100.0);
        }
        let (vectors, queries) = (pairs.new_vectors(), self.queries.map(|queries| &queries.new));
        let (distance, quiet) = (vectors.space().distance, Progress::default());
        let options = self.options();
        let evaluation = evaluate(vectors.matrix(), queries, self.relevance(), distance, &options, &quiet)?;
        Ok(evaluation.values[self.metric])
    }

    /// Measures the quality of the gallery `adapted` while it becomes `native` in random order, without a
    /// handicap.
    pub(crate) fn upgrade(&self, native: &Vectors, adapted: Matrix, seed: u64) -> Result<Quality> {
        let gallery = Gallery { criterion: self, native, adapted, query_distances: None };
        let curve = gallery.curve(&shuffled(native.len(), seed), 0.0)?;
        let line = &curve.lines[self.metric];
        Ok(Quality { start: line.start(), area: line.area() })
    }

    fn relevance(&self) -> Relevance<'_> {
        match &self.answers {
            Answers::Labels { gallery, queries } => {
                Relevance::Labels { gallery, queries: queries.as_deref() }
            }
            Answers::Judged(qrels) => Relevance::Judgements(qrels),
            Answers::Native => Relevance::Nearest(AGREEMENT),
        }
    }

    fn options(&self) -> CurveOptions {
        CurveOptions { metrics: vec![self.metric], ..CurveOptions::default() }
    }
}

/// Left-out items as a gallery that is adapted at first, and native item by item.
pub(crate) struct Gallery<'a> {
    pub criterion: &'a Criterion<'a>,
    pub native: &'a Vectors,
    pub adapted: Matrix,
    /// Distances of the queries to native and to adapted vectors, which all orders and handicaps share.
    query_distances: Option<(&'a Distances, Distances)>,
}

impl<'a> Gallery<'a> {
    /// Measures the distances of the queries to the native vectors, for the galleries of all maps; `None`
    /// where there are too many to keep.
    pub(crate) fn distances(criterion: &Criterion<'_>, native: &Vectors) -> Result<Option<Distances>> {
        /// Largest number of distances that are kept: 20 MB.
        const KEPT_MAX: usize = 2_500_000;
        let queries = criterion.queries.map(|queries| &queries.new);
        let count = queries.unwrap_or(native.matrix()).rows() * native.len();
        let distances = || Distances::new(native.matrix(), native.matrix(), queries, native.space().distance);
        (count <= KEPT_MAX).then(distances).transpose()
    }

    /// Makes a gallery; `to_native` are the distances from [`Gallery::distances`].
    pub(crate) fn new(
        criterion: &'a Criterion<'a>,
        native: &'a Vectors,
        adapted: Matrix,
        to_native: Option<&'a Distances>,
    ) -> Result<Self> {
        let queries = criterion.queries.map(|queries| &queries.new);
        let with_adapted = |to_native: &'a Distances| -> Result<_> {
            let distance = native.space().distance;
            Ok((to_native, Distances::new(native.matrix(), &adapted, queries, distance)?))
        };
        Ok(Self { query_distances: to_native.map(with_adapted).transpose()?, criterion, native, adapted })
    }

    /// Makes a gallery without distances, which the caller passes to [`Gallery::curve_by`].
    pub(crate) fn without_distances(
        criterion: &'a Criterion<'a>,
        native: &'a Vectors,
        adapted: Matrix,
    ) -> Self {
        Self { criterion, native, adapted, query_distances: None }
    }

    /// Measures the curve while searches put adapted items farther by `handicap`.
    pub(crate) fn curve(&self, order: &[usize], handicap: f64) -> Result<Curve> {
        let (native, criterion) = (self.native, self.criterion);
        let (distance, relevance) = (native.space().distance, criterion.relevance());
        let input = CurveInput {
            queries: criterion.queries.map(|queries| &queries.new),
            handicap,
            known: self.query_distances.as_ref().map(|(to_native, to_adapted)| [*to_native, to_adapted]),
            ..CurveInput::new(native.matrix(), &self.adapted, order, relevance, distance)
        };
        curve(&input, &criterion.options(), &Progress::default())
    }

    /// Measures the curve while adapted items are as far as `to_adapted` says, with every query's own values
    /// at its start and its end.
    pub(crate) fn curve_by(
        &self,
        to_native: &Distances,
        to_adapted: &Distances,
        order: &[usize],
        handicap: f64,
    ) -> Result<Curve> {
        let (native, criterion) = (self.native, self.criterion);
        let input = CurveInput {
            queries: criterion.queries.map(|queries| &queries.new),
            handicap,
            known: Some([to_native, to_adapted]),
            ..CurveInput::new(
                native.matrix(),
                &self.adapted,
                order,
                criterion.relevance(),
                native.space().distance,
            )
        };
        let options = CurveOptions { kept_cuts: 2, ..criterion.options() };
        curve(&input, &options, &Progress::default())
    }

    /// Makes the default order, through the head that an adapter would carry.
    pub(crate) fn default_order(&self, head: &Head, seed: u64) -> Result<Vec<usize>> {
        let input = OrderInput {
            items: self.native.len(),
            classified: Some((head, &self.adapted)),
            vectors: Some(&self.adapted),
            seed,
            ..OrderInput::default()
        };
        Ok(order(Policy::Coverage, &input)?.permutation)
    }
}

#[cfg(test)]
mod tests {
    use rehang_core::Distance;

    use super::*;
    use crate::tests::test_data::random_matrix;

    #[test]
    fn a_perfect_map_agrees_everywhere_and_a_random_one_hardly() {
        for distance in Distance::ALL {
            let native = Vectors::measured("new", distance, random_matrix(120, 4, 1), "new vectors").unwrap();
            let perfect = Criterion::by_agreement(None).upgrade(&native, native.matrix().clone(), 0).unwrap();
            assert_eq!((perfect.start, perfect.area), (100.0, 100.0));
            let other = Criterion::by_agreement(None).upgrade(&native, random_matrix(120, 4, 2), 0).unwrap();
            assert!(other.start < 25.0 && other.area > other.start);
        }
    }

    #[test]
    fn l2_does_not_see_an_offset_that_all_vectors_share() {
        let native = random_matrix(120, 4, 1);
        let adapted = Matrix::from_fn(120, 4, |row, column| native.row(row)[column] + (row % 5) as f32 * 0.1);
        // The offset is a multiple of what f32 resolves there, so that the vectors themselves lose little.
        let moved = |rows: &Matrix| Matrix::from_fn(120, 4, |row, column| rows.row(row)[column] + 4096.0);
        let labels: Vec<i64> = (0..120).map(|row| row % 7).collect();
        let criterion = Criterion::by_label(&labels).unwrap();
        let measure = |native: Matrix, adapted: Matrix| {
            let native = Vectors::measured("new", Distance::L2, native, "new vectors").unwrap();
            let quality = criterion.upgrade(&native, adapted.clone(), 0).unwrap();
            let pairs = Pairs::new(native.clone(), native, None, None).unwrap();
            [quality.start, quality.area, criterion.native(&pairs).unwrap()]
        };
        let shifted = measure(moved(&native), moved(&adapted));
        for (plain, shifted) in measure(native, adapted).into_iter().zip(shifted) {
            assert!((plain - shifted).abs() < 0.2, "{plain} {shifted}");
        }
    }

    #[test]
    fn average_precision_by_label_is_the_textbook_one() {
        // Positions are 0, 1, 3 on a line; items 0 and 2 share a class: the query 0 finds 1 first, then 2.
        let rows = Matrix::new(1, vec![0.0, 1.0, 3.0]).unwrap();
        let vectors = Vectors::measured("new", Distance::L2, rows, "new vectors").unwrap();
        let pairs = Pairs::new(vectors.clone(), vectors, None, None).unwrap();
        assert_eq!(Criterion::by_label(&[5, 6, 5]).unwrap().native(&pairs).unwrap(), 50.0);
        assert!(Criterion::by_label(&[5, 6, 5]).is_some());
        assert!(Criterion::by_label(&[-1, -1]).is_none(), "nothing to find");
        assert!(Criterion::by_label(&[3, 3, 3]).is_none(), "nothing to leave");
        assert!(Criterion::by_label(&[1, 2, 3]).is_none(), "nothing to find");
    }
}
