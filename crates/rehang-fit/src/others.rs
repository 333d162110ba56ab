//! Items of a gallery that are no pairs, as held-out pairs ask them.
//!
//! Hundreds of held-out pairs that ask for each other say little of a gallery: it is small, and full of its
//! own answers. Old vectors of the whole gallery are known, and labels say which of its items are right. So
//! held-out pairs ask everything that is no pair, each by both of its vectors. Nothing of what is searched
//! was fitted on, and no query has to leave itself out. Queries of known and of left-out classes count alike,
//! as one: apart, they are too few to prove what is there (`laboratory/bench/runs/whole.md`).

use std::collections::BTreeSet;

use rehang_core::{Result, Vectors};

use crate::compare::Split;
use crate::folds::shuffled;
use crate::parameters::{FitQueries, OtherItems};
use crate::retrieval::Criterion;
use crate::task::Task;

/// Largest number of held-out pairs that ask in one part of a split: their distances are kept.
const QUERIES_MAX: usize = 200;

/// Held-out pairs of one part of a split, as queries to other items.
pub(crate) struct Asking {
    pub split: usize,
    pub queries: FitQueries,
    classes: Vec<i64>,
}

impl Asking {
    /// Returns the criterion by which these queries ask, as `criterion` for their part of the pairs.
    pub fn criterion<'a>(&'a self, criterion: &Criterion<'_>, others: &Others) -> Criterion<'a> {
        criterion.of_others(&self.queries, &self.classes, &others.labels)
    }
}

/// Items that are asked, with what asks them.
pub(crate) struct Others {
    pub old: Vectors,
    labels: Vec<i64>,
    pub asking: Vec<Asking>,
}

impl Task<'_> {
    /// Takes the held-out pairs of these splits that have right answers among the other items. `None` where
    /// there are no others or fewer than pairs, where not labels say what is right, and where none asks of
    /// known classes, or none of left-out ones.
    pub(crate) fn others(&self, splits: &[Split<'_>]) -> Result<Option<Others>> {
        let Some(given) = &self.parameters.others else { return Ok(None) };
        given.check(self.pairs)?;
        let labels = self.pairs.labels().filter(|_| self.parameters.queries.is_none());
        if labels.is_none() || self.pairs.side().is_some() || given.old.rows() < self.pairs.len() {
            return Ok(None);
        }
        let rows: Vec<usize> = (0..given.old.rows().min(OtherItems::ITEMS_MAX)).collect();
        let old = Vectors::new(self.pairs.old().space().clone(), given.old.select(&rows), "`others`")?;
        let labels = given.labels[..rows.len()].to_vec();
        let classes_there: BTreeSet<i64> = labels.iter().copied().filter(|&label| label >= 0).collect();
        let (mut asking, mut kinds) = (Vec::new(), BTreeSet::new());
        for (number, split) in splits.iter().enumerate() {
            for (place, part) in split.parts.iter().enumerate() {
                let Some(classes) = part.pairs.labels() else { continue };
                let mut rows = shuffled(classes.len(), self.parameters.seed);
                rows.retain(|&row| classes_there.contains(&classes[row]));
                rows.truncate(QUERIES_MAX);
                if rows.is_empty() {
                    continue;
                }
                kinds.insert(split.gallery(place));
                let [old, new] =
                    [part.pairs.old(), part.pairs.new_vectors()].map(|of| of.matrix().select(&rows));
                asking.push(Asking {
                    split: number,
                    queries: FitQueries { old, new, qrels: None },
                    classes: rows.iter().map(|&row| classes[row]).collect(),
                });
            }
        }
        Ok((kinds.len() == 2).then_some(Others { old, labels, asking }))
    }
}

#[cfg(test)]
mod tests {
    use rehang_core::curve::MAP;
    use rehang_core::{Distance, Matrix, Pairs, Progress};

    use super::*;
    use crate::parameters::FitParameters;
    use crate::task::with_task;
    use crate::tests::test_data::random_matrix;

    /// Makes vectors by both models of 12 classes, with their labels.
    fn data(n: usize) -> Pairs {
        let vectors = |name: &str, seed| {
            let noise = random_matrix(n, 6, seed);
            let centres = random_matrix(12, 6, 1);
            let rows = Matrix::from_fn(n, 6, |row, axis| centres.row(row % 12)[axis] + noise.row(row)[axis]);
            Vectors::measured(name, Distance::Cosine, rows, name).unwrap()
        };
        let labels = (0..n as i64).map(|row| row % 12).collect();
        Pairs::new(vectors("old", 2), vectors("new", 3), Some(labels), None).unwrap()
    }

    #[test]
    fn held_out_pairs_are_measured_among_the_others_as_a_look_at_each_says() {
        let all = data(1500);
        let rows: Vec<usize> = (0..1500).collect();
        let pairs = all.select(&rows[..400]);
        let old = all.old().matrix().select(&rows[400..]);
        // Items of the class 5 are not there, and of some others nothing is known.
        let label = |row: usize| if row % 12 == 5 || row.is_multiple_of(7) { -1 } else { (row % 12) as i64 };
        let labels: Vec<i64> = rows[400..].iter().map(|&row| label(row)).collect();
        let given = OtherItems { old: old.clone(), labels: labels.clone() };
        let parameters = FitParameters { others: Some(given), ..FitParameters::default() };
        let values = with_task(&pairs, &parameters, &Progress::default(), |task| {
            let splits = task.splits_of_both()?;
            let others = task.others(&splits)?.unwrap();
            assert!(others.asking.iter().all(|asking| asking.queries.old.rows() <= QUERIES_MAX));
            let asking = &others.asking[0];
            assert!(!asking.classes.contains(&5) && !asking.classes.is_empty());
            let part = splits[0].parts[0].criterion.as_ref().unwrap();
            let criterion = asking.criterion(part, &others);
            let ranks = criterion.in_old(&others.old, &asking.queries.old)?;
            let average_precision = |query: usize| {
                let row = asking.queries.old.row(query);
                let mut order: Vec<usize> = (0..old.rows()).collect();
                let away = |item: usize| Distance::Cosine.between(row, old.row(item));
                order.sort_by(|&a, &b| away(a).total_cmp(&away(b)));
                let right = |rank: &usize| labels[order[*rank]] == asking.classes[query];
                let ranks: Vec<usize> = (0..order.len()).filter(right).collect();
                let precisions =
                    ranks.iter().enumerate().map(|(at, &rank)| (at + 1) as f64 / (rank + 1) as f64);
                100.0 * precisions.sum::<f64>() / ranks.len() as f64
            };
            let twin: Vec<f64> = (0..asking.classes.len()).map(average_precision).collect();
            Ok((ranks.values[MAP].clone(), twin))
        });
        let (values, twin) = values.unwrap();
        assert_eq!(values.len(), twin.len());
        for (value, twin) in values.iter().zip(&twin) {
            assert!((value - twin).abs() < 1e-9, "{value} {twin}");
        }
    }

    #[test]
    fn nothing_is_asked_where_the_others_are_few_or_have_no_class_of_the_pairs() {
        let pairs = data(400);
        let asked = |items: usize, label: i64| {
            let given = OtherItems { old: random_matrix(items, 6, 9), labels: vec![label; items] };
            let parameters = FitParameters { others: Some(given), ..FitParameters::default() };
            with_task(&pairs, &parameters, &Progress::default(), |task| {
                Ok(task.others(&task.splits_of_both()?)?.is_some())
            })
            .unwrap()
        };
        assert!(!asked(399, 3) && !asked(900, 99) && !asked(900, -1));
    }
}
