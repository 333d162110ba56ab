//! How well new queries find their way in a gallery that is partly adapted: what choosing among maps goes by.
//!
//! These are the exact curves of the core, on the held-out pairs as gallery and queries, in random order.

use std::collections::BTreeMap;

use rehang::curve::{
    CurveInput, CurveOptions, DoNothing, Line, MAP, Metric, Relevance, TOP1, curve, evaluate, evaluate_today,
};
use rehang::{Distance, Matrix, Pairs, Progress, Result, Vectors};

use crate::folds::shuffled;

/// Neighbours whose agreement counts where there are no labels.
pub(crate) const AGREEMENT: usize = 10;

/// Quality in percent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Quality {
    /// With every gallery vector adapted.
    pub start: f64,
    /// Mean over all states of the backfill, in random order.
    pub area: f64,
}

/// What counts as found.
#[derive(Debug, Clone)]
pub(crate) enum Criterion {
    /// Mean average precision: items of the same known class.
    Labels(Vec<i64>),
    /// Agreement of the first ten results with those of the fully native gallery.
    Agreement,
}

impl Criterion {
    /// By class; `None` where no query has both something to find and something to leave, so that every ranking is as
    /// good as any other.
    pub(crate) fn by_label(labels: &[i64]) -> Option<Self> {
        let mut sizes = BTreeMap::new();
        for &label in labels.iter().filter(|&&label| label >= 0) {
            *sizes.entry(label).or_insert(0) += 1;
        }
        let tells_apart = sizes.values().any(|&size| (2..labels.len()).contains(&size));
        tells_apart.then(|| Self::Labels(labels.to_vec()))
    }

    /// Quality of the old vectors for old queries: doing nothing.
    pub(crate) fn old(&self, pairs: &Pairs) -> Result<f64> {
        let (old, new) = (pairs.old(), pairs.new_vectors());
        let today = DoNothing { gallery: old.matrix(), queries: None, distance: old.space().distance };
        let (relevance, metric) = measured(self.labels());
        let (distance, options, quiet) = (new.space().distance, CurveOptions::default(), Progress::default());
        let evaluation = evaluate_today(today, new.matrix(), None, relevance, distance, &options, &quiet)?;
        Ok(evaluation.values[metric])
    }

    /// Quality of the new vectors for new queries: the end of the upgrade.
    pub(crate) fn native(&self, pairs: &Pairs) -> Result<f64> {
        self.labels().map_or(Ok(100.0), |labels| by_own_queries(pairs.new_vectors(), labels))
    }

    /// Quality of the gallery `adapted` for the queries `native`, which are its own items' new vectors (each leaves
    /// itself out), while it becomes native in random order.
    pub(crate) fn upgrade(&self, native: &Vectors, adapted: &Matrix, seed: u64) -> Result<Quality> {
        let (distance, native) = (native.space().distance, native.matrix());
        let order = shuffled(native.rows(), seed);
        let (line, _) = lines(self.labels(), native, adapted, &order, distance, 0.0)?;
        Ok(Quality { start: line.start(), area: line.area() })
    }

    fn labels(&self) -> Option<&[i64]> {
        match self {
            Self::Labels(labels) => Some(labels),
            Self::Agreement => None,
        }
    }
}

/// What is a right answer, and what is measured of it.
fn measured(labels: Option<&[i64]>) -> (Relevance<'_>, Metric) {
    match labels {
        Some(gallery) => (Relevance::Labels { gallery, queries: None }, MAP),
        None => (Relevance::Nearest(AGREEMENT), Metric::agreement_at(AGREEMENT)),
    }
}

/// The line of mAP by label and the one of top-1; of the agreement and none without labels.
pub(crate) fn lines(
    labels: Option<&[i64]>,
    native: &Matrix,
    adapted: &Matrix,
    order: &[usize],
    distance: Distance,
    handicap: f64,
) -> Result<(Line, Option<Line>)> {
    let (relevance, metric) = measured(labels);
    let input = CurveInput {
        native,
        adapted,
        order,
        queries: None,
        relevance,
        distance,
        handicap,
        groups: None,
        do_nothing: None,
    };
    let curve = curve(&input, &CurveOptions::default(), &Progress::default())?;
    Ok((curve.lines[metric].clone(), curve.lines.get(TOP1).cloned()))
}

/// mAP of vectors for their own queries.
fn by_own_queries(vectors: &Vectors, labels: &[i64]) -> Result<f64> {
    let relevance = Relevance::Labels { gallery: labels, queries: None };
    let (distance, options) = (vectors.space().distance, CurveOptions::default());
    Ok(evaluate(vectors.matrix(), None, relevance, distance, &options, &Progress::default())?.values[MAP])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::test_data::random_matrix;

    #[test]
    fn a_perfect_map_agrees_everywhere_and_a_random_one_hardly() {
        for distance in Distance::ALL {
            let native = Vectors::measured("new", distance, random_matrix(120, 4, 1), "new vectors").unwrap();
            let perfect = Criterion::Agreement.upgrade(&native, native.matrix(), 0).unwrap();
            assert_eq!((perfect.start, perfect.area), (100.0, 100.0));
            let other = Criterion::Agreement.upgrade(&native, &random_matrix(120, 4, 2), 0).unwrap();
            assert!(other.start < 25.0 && other.area > other.start);
        }
    }

    #[test]
    fn l2_does_not_see_an_offset_that_all_vectors_share() {
        let native = random_matrix(120, 4, 1);
        let adapted = Matrix::from_fn(120, 4, |row, column| native.row(row)[column] + (row % 5) as f32 * 0.1);
        // A multiple of what f32 resolves there, so that the vectors themselves lose little.
        let moved = |rows: &Matrix| Matrix::from_fn(120, 4, |row, column| rows.row(row)[column] + 4096.0);
        let labels: Vec<i64> = (0..120).map(|row| row % 7).collect();
        let criterion = Criterion::by_label(&labels).unwrap();
        let measure = |native: Matrix, adapted: Matrix| {
            let native = Vectors::measured("new", Distance::L2, native, "new vectors").unwrap();
            let quality = criterion.upgrade(&native, &adapted, 0).unwrap();
            [quality.start, quality.area, by_own_queries(&native, &labels).unwrap()]
        };
        let there = measure(moved(&native), moved(&adapted));
        for (here, there) in measure(native, adapted).into_iter().zip(there) {
            assert!((here - there).abs() < 0.2, "{here} {there}");
        }
    }

    #[test]
    fn average_precision_by_label_is_the_textbook_one() {
        // Positions 0, 1, 3 on a line; items 0 and 2 share a class: the query 0 finds 1 first, then 2.
        let rows = Matrix::new(1, vec![0.0, 1.0, 3.0]).unwrap();
        let vectors = Vectors::measured("new", Distance::L2, rows, "new vectors").unwrap();
        assert_eq!(by_own_queries(&vectors, &[5, 6, 5]).unwrap(), 50.0);
        assert!(Criterion::by_label(&[5, 6, 5]).is_some());
        assert!(Criterion::by_label(&[-1, -1]).is_none(), "nothing to find");
        assert!(Criterion::by_label(&[3, 3, 3]).is_none(), "nothing to leave");
        assert!(Criterion::by_label(&[1, 2, 3]).is_none(), "nothing to find");
    }
}
