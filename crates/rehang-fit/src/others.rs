//! Items of a gallery that held-out pairs or people's queries ask: those that are no pairs, or all pairs.
//!
//! Hundreds of held-out pairs that ask for each other say little of a gallery: it is small, and full of its
//! own answers. Old vectors of the whole gallery are known, and labels or clicks say which of its items are
//! right. So held-out pairs, or the queries, ask everything that is no pair, each by both of its vectors.
//! Nothing of what is searched was fitted on, and no query has to leave itself out. Queries of known and of
//! left-out classes count alike, as one: apart, they are too few to prove what is there
//! (`laboratory/bench/runs/whole.md`).
//!
//! Without labels and clicks only pairs say what the new model would find. Held-out ones then ask all pairs,
//! for a bridge alone: of a map's outputs those for pairs that it was fitted on are too good.

use std::collections::{BTreeMap, BTreeSet};

use rehang_core::copies::originals;
use rehang_core::curve::{MAP, Metric, Qrels, nearest};
use rehang_core::{Progress, Result, Vectors};

use crate::compare::{Split, first_criterion};
use crate::folds::shuffled;
use crate::lower_bounds::HeldOutGallery;
use crate::parameters::{FitQueries, OtherItems};
use crate::retrieval::{AGREEMENT, Answers, Criterion};
use crate::task::Task;

/// Largest number of queries that ask for one part of a split: their distances are kept.
const QUERIES_MAX: usize = 200;

/// Largest number of pairs that are asked: their distances to all queries are sorted for every bridge.
const PAIRS_MAX: usize = 3_000;

/// Queries to other items, with the right answers among these.
pub(crate) struct Asking {
    /// Split whose map and bridge serve the queries.
    pub split: usize,
    /// Gallery that their gains are counted for.
    pub kind: HeldOutGallery,
    pub queries: FitQueries,
    answers: Answers,
    metric: Metric,
}

impl Asking {
    pub fn criterion(&self) -> Criterion<'_> {
        Criterion::of_others(&self.queries, &self.answers, self.metric)
    }
}

/// Items that are asked, with what asks them.
pub(crate) struct Others {
    pub old: Vectors,
    /// Queries of each split and kind; there is one at least.
    pub asking: Vec<Asking>,
}

impl Others {
    /// Returns the criterion of the first that asks, whose metric all have.
    pub fn criterion(&self) -> Criterion<'_> {
        self.asking[0].criterion()
    }
}

impl Task<'_> {
    /// Takes what asks the other items: of the queries those with a click on one, where there are clicks, or
    /// of the held-out pairs of these splits those with one of their label. `None` where there are no others
    /// or fewer than pairs, where neither clicks nor labels say what is right, and where no held-out pair asks
    /// of known classes, or none of left-out ones.
    pub(crate) fn others(&self, splits: &[Split<'_>]) -> Result<Option<Others>> {
        let Some(given) = &self.parameters.others else { return Ok(None) };
        given.check(self.pairs, self.parameters.queries.as_ref())?;
        if self.pairs.side().is_some() || given.old.rows() < self.pairs.len() {
            return Ok(None);
        }
        let rows: Vec<usize> = (0..given.old.rows().min(OtherItems::ITEMS_MAX)).collect();
        let asking = match (&self.parameters.queries, &given.judged) {
            (Some(queries), Some(judged)) => self.asking_by_click(queries, judged, (&rows, splits.len()))?,
            (None, _) => self.asking_by_label(&given.labels[..rows.len()], splits),
            (Some(_), None) => Vec::new(),
        };
        let old = Vectors::new(self.pairs.old().space().clone(), given.old.select(&rows), "`others`")?;
        Ok((!asking.is_empty()).then_some(Others { old, asking }))
    }

    /// Takes held-out pairs that ask all pairs, each leaving itself out, for what the new model finds first
    /// among them. `None` where labels, judgements or queries say what is right, or who asks.
    pub(crate) fn all_pairs_asked(&self, splits: &[Split<'_>]) -> Result<Option<Others>> {
        let Some(criterion) = first_criterion(splits) else { return Ok(None) };
        if !criterion.is_agreement() || criterion.queries.is_some() {
            return Ok(None);
        }
        let mut items = originals(&self.parameters.first_copies(self.pairs));
        let order = shuffled(items.len(), self.parameters.seed);
        items = order.into_iter().take(PAIRS_MAX).map(|place| items[place]).collect();
        let place_of: BTreeMap<usize, usize> = items.iter().copied().zip(0..).collect();
        let gallery = self.pairs.select(&items);
        let (native, quiet) = (gallery.new_vectors(), Progress::default());
        let mut asking = Vec::new();
        for (number, split) in splits.iter().enumerate() {
            for (place, part) in split.parts.iter().enumerate() {
                let places: Vec<usize> =
                    part.items.iter().filter_map(|item| place_of.get(item).copied()).collect();
                if places.is_empty() {
                    continue;
                }
                let [old, new] = [gallery.old(), native].map(|of| of.matrix().select(&places));
                // One more than is right, since a query finds itself.
                let distance = native.space().distance;
                let nearest = nearest(native.matrix(), Some(&new), AGREEMENT + 1, distance, &quiet)?;
                let leaving_itself_out = |(query, &itself): (usize, &usize)| {
                    let others = nearest.query(query).iter().copied().filter(|&(found, _)| found != itself);
                    others.chain([(itself, -1.0)]).collect()
                };
                let judged = Qrels::new(places.iter().enumerate().map(leaving_itself_out).collect())?;
                asking.push(Asking {
                    split: number,
                    kind: split.gallery(place),
                    queries: FitQueries { old, new, qrels: None },
                    answers: Answers::Judged(judged),
                    metric: Metric::recall_at(AGREEMENT),
                });
            }
        }
        Ok((!asking.is_empty()).then(|| Others { old: gallery.old().clone(), asking }))
    }

    fn asking_by_label(&self, labels: &[i64], splits: &[Split<'_>]) -> Vec<Asking> {
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
                let classes = rows.iter().map(|&row| classes[row]).collect();
                asking.push(Asking {
                    split: number,
                    kind: HeldOutGallery::Whole,
                    queries: FitQueries { old, new, qrels: None },
                    answers: Answers::Labels { gallery: labels.to_vec(), queries: Some(classes) },
                    metric: self.parameters.metric.unwrap_or(MAP),
                });
            }
        }
        if kinds.len() == 2 { asking } else { Vec::new() }
    }

    /// Takes the queries with a click on one of these items, which ask by the map and the bridge of every
    /// split: no pair is a query.
    fn asking_by_click(
        &self,
        queries: &FitQueries,
        judged: &Qrels,
        (items, splits): (&[usize], usize),
    ) -> Result<Vec<Asking>> {
        // A metric that is asked for where no pair was clicked is one of agreement.
        if self.parameters.metric.is_some() && queries.qrels.is_none() {
            return Ok(Vec::new());
        }
        let is_there = |&(item, gain): &(usize, f64)| item < items.len() && gain > 0.0;
        let mut rows = shuffled(judged.len(), self.parameters.seed);
        rows.retain(|&query| judged.query(query).iter().any(is_there));
        rows.truncate(QUERIES_MAX);
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let clicks_of = |&query: &usize| {
            judged.query(query).iter().copied().filter(|(item, _)| *item < items.len()).collect()
        };
        let answers = Answers::Judged(Qrels::new(rows.iter().map(clicks_of).collect())?);
        let [old, new] = [&queries.old, &queries.new].map(|of| of.select(&rows));
        let of_split = |split| Asking {
            split,
            kind: HeldOutGallery::Whole,
            queries: FitQueries { old: old.clone(), new: new.clone(), qrels: None },
            answers: answers.clone(),
            metric: self.parameters.metric.unwrap_or(Metric::ndcg_at(AGREEMENT)),
        };
        Ok((0..splits).map(of_split).collect())
    }
}

#[cfg(test)]
mod tests {
    use rehang_core::curve::TOP1;
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
        let given = OtherItems { old: old.clone(), labels: labels.clone(), judged: None };
        let parameters = FitParameters { others: Some(given), ..FitParameters::default() };
        let values = with_task(&pairs, &parameters, &Progress::default(), |task| {
            let splits = task.splits_of_both()?;
            let others = task.others(&splits)?.unwrap();
            assert!(others.asking.iter().all(|asking| asking.queries.old.rows() <= QUERIES_MAX));
            let asking = &others.asking[0];
            let Answers::Labels { queries: Some(classes), .. } = &asking.answers else { panic!("by label") };
            assert!(!classes.contains(&5) && !classes.is_empty());
            let criterion = asking.criterion();
            let ranks = criterion.in_old(&others.old, &asking.queries.old)?;
            let average_precision = |query: usize| {
                let row = asking.queries.old.row(query);
                let mut order: Vec<usize> = (0..old.rows()).collect();
                let away = |item: usize| Distance::Cosine.between(row, old.row(item));
                order.sort_by(|&a, &b| away(a).total_cmp(&away(b)));
                let right = |rank: &usize| labels[order[*rank]] == classes[query];
                let ranks: Vec<usize> = (0..order.len()).filter(right).collect();
                let precisions =
                    ranks.iter().enumerate().map(|(at, &rank)| (at + 1) as f64 / (rank + 1) as f64);
                100.0 * precisions.sum::<f64>() / ranks.len() as f64
            };
            let twin: Vec<f64> = (0..classes.len()).map(average_precision).collect();
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
            let given =
                OtherItems { old: random_matrix(items, 6, 9), labels: vec![label; items], judged: None };
            let parameters = FitParameters { others: Some(given), ..FitParameters::default() };
            with_task(&pairs, &parameters, &Progress::default(), |task| {
                Ok(task.others(&task.splits_of_both()?)?.is_some())
            })
            .unwrap()
        };
        assert!(!asked(399, 3) && !asked(900, 99) && !asked(900, -1));
    }

    #[test]
    fn without_labels_held_out_pairs_are_measured_among_all_pairs_as_a_look_at_each_says() {
        // A fifth is there twice: copies are neither searched nor do they ask.
        let rows: Vec<usize> = (0..600).map(|row| row % 500).collect();
        let labelled = data(500).select(&rows);
        let [old, new] = [labelled.old(), labelled.new_vectors()];
        let pairs = Pairs::new(old.clone(), new.clone(), None, None).unwrap();
        with_task(&pairs, &FitParameters::default(), &Progress::default(), |task| {
            let splits = task.splits_of_both()?;
            let asked = task.all_pairs_asked(&splits)?.unwrap();
            let kinds: BTreeSet<_> = asked.asking.iter().map(|asking| asking.kind).collect();
            assert_eq!(
                kinds.into_iter().collect::<Vec<_>>(),
                [HeldOutGallery::Known, HeldOutGallery::LeftOut]
            );
            let parts = splits.iter().flat_map(|split| &split.parts);
            for (asking, part) in asked.asking.iter().zip(parts) {
                let ranks = asking.criterion().in_old(&asked.old, &asking.queries.old)?.values;
                for (row, &item) in part.items.iter().enumerate() {
                    let nearest = |vectors: &Vectors| {
                        let mut order: Vec<usize> = (0..500).filter(|&other| other != item).collect();
                        let query = vectors.matrix().row(item);
                        let away =
                            |other: usize| Distance::Cosine.between(query, vectors.matrix().row(other));
                        order.sort_by(|&a, &b| away(a).total_cmp(&away(b)));
                        order.truncate(AGREEMENT);
                        order
                    };
                    let (found, right) = (nearest(old), nearest(new));
                    let both = found.iter().filter(|item| right.contains(item)).count();
                    let agreement = ranks[Metric::recall_at(AGREEMENT)][row];
                    assert!((agreement - 10.0 * both as f64).abs() < 1e-9, "{agreement} {both}");
                    assert_eq!(ranks[TOP1][row] > 0.0, right.contains(&found[0]));
                }
            }
            Ok(())
        })
        .unwrap();
        let answered = with_task(&labelled, &FitParameters::default(), &Progress::default(), |task| {
            task.all_pairs_asked(&task.splits_of_both()?)
        });
        assert!(answered.unwrap().is_none(), "labels say what is right");
    }

    #[test]
    fn queries_with_clicks_on_other_items_ask_these_and_no_pair() {
        let all = data(1500);
        let rows: Vec<usize> = (0..1500).collect();
        let pairs = all.select(&rows[..400]);
        let old = all.old().matrix().select(&rows[400..]);
        // Each third of 90 queries has no click, and one its only click on an item that is not there.
        let clicks = |query: usize| match query {
            0 => vec![(OtherItems::ITEMS_MAX, 1.0)],
            _ if query.is_multiple_of(3) => Vec::new(),
            _ => vec![(query, 1.0), (query + 12, 0.0), (query + 24, 2.0)],
        };
        let judged = Qrels::new((0..90).map(clicks).collect()).unwrap();
        let queries = FitQueries { old: random_matrix(90, 6, 4), new: random_matrix(90, 6, 5), qrels: None };
        let given = OtherItems { old: old.clone(), labels: Vec::new(), judged: Some(judged.clone()) };
        let parameters =
            FitParameters { others: Some(given), queries: Some(queries.clone()), ..FitParameters::default() };
        with_task(&pairs, &parameters, &Progress::default(), |task| {
            let splits = task.splits_of_both()?;
            let others = task.others(&splits)?.unwrap();
            let by_split: Vec<usize> = others.asking.iter().map(|asking| asking.split).collect();
            assert_eq!(by_split, (0..splits.len()).collect::<Vec<_>>());
            let asking = &others.asking[0];
            assert_eq!(asking.queries.old.rows(), 60);
            let (criterion, metric) = (asking.criterion(), Metric::ndcg_at(AGREEMENT));
            let ranks = criterion.in_old(&others.old, &asking.queries.old)?.values[metric].clone();
            for (row, value) in ranks.into_iter().enumerate() {
                let asked = asking.queries.old.row(row);
                let query = (0..90).find(|&query| queries.old.row(query) == asked).unwrap();
                let mut order: Vec<usize> = (0..old.rows()).collect();
                let away = |item: usize| Distance::Cosine.between(asked, old.row(item));
                order.sort_by(|&a, &b| away(a).total_cmp(&away(b)));
                let gain =
                    |item: usize| judged.query(query).iter().find(|of| of.0 == item).map_or(0.0, |of| of.1);
                let discounted = |gains: &[f64]| -> f64 {
                    gains.iter().zip(2..).map(|(gain, rank)| gain / f64::from(rank).log2()).sum()
                };
                let found: Vec<f64> = order[..AGREEMENT].iter().map(|&item| gain(item)).collect();
                let twin = 100.0 * discounted(&found) / discounted(&[2.0, 1.0]);
                assert!((value - twin).abs() < 1e-9, "{value} {twin}");
            }
            Ok(())
        })
        .unwrap();
    }
}
