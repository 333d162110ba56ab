//! Fits the bridge: chooses the map whose adjoint brings new queries to an old gallery, and how much of it,
//! by what held-out pairs find.
//!
//! Two maps are tried, ridge and Procrustes, each about the means. Maps that keep scores serve, whereas a
//! regression of old vectors on new ones does not (`laboratory/bench/runs/bridge.md`).
//!
//! A bound is the gain over doing nothing, less one standard error. Galleries grow by classes that no pair
//! knew, so there is a bound for held-out items of known classes and one for left-out ones. There is also one
//! for each of the metrics that [`Criterion::guarded`] names, since mAP alone may be bought with first
//! results. A choice is proven where no bound is below 0. Among those that are proven and within two standard
//! errors of the largest mean gain the smallest share is kept; where none is proven, there is no bridge.
//!
//! Without labels a held-out pair asks all pairs, for those that the new model finds first among them. Ten of
//! some dozens that are held out say too little of how much of the new query serves
//! (`laboratory/bench/runs/whole.md`).
//!
//! Where held-out pairs can ask [everything else in the gallery](crate::OtherItems), more is proven: of all
//! choices with no lower bound below 0, the one with the largest mean gain is kept.

use std::collections::BTreeMap;

use rehang_core::adapter::{Dense, InputScaling, Map};
use rehang_core::bridge::mixed;
use rehang_core::curve::QueryRanks;
use rehang_core::{Bridge, Error, Matrix, Pairs, Progress, Result, Vectors};
use serde::{Deserialize, Serialize};

use crate::closed_form::{procrustes, ridge};
use crate::compare::{Split, first_criterion};
use crate::linear_algebra::{column_means, scaled};
use crate::lower_bounds::{
    self, Differences, HeldOutGain, HeldOutGallery, add, gains, is_of_both, mean, mean_gain, names_of,
};
use crate::method::Method;
use crate::others::{Asking, Others};
use crate::parameters::FitParameters;
use crate::retrieval::Criterion;
use crate::task::{Task, training, with_task};

/// Shares of the new model's query that are tried, the smallest first.
pub const SHARES: [f64; 10] = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0];
/// Maps whose adjoints are tried.
const METHODS: [Method; 2] = [Method::Ridge, Method::Procrustes];
/// Number of standard errors within which a smaller share is as good as the best one, where pairs ask pairs.
const ERRORS: f64 = 2.0;

/// A bridge that was tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BridgeRow {
    /// Map whose adjoint the bridge is.
    pub method: Method,
    /// Share of a query that is the new model's, 0 to 1.
    pub share: f64,
    /// Gains over doing nothing, by gallery and metric.
    pub gains: Vec<HeldOutGain>,
    /// Least of all gains, each less one standard error.
    pub low: f64,
    /// Quality by the criterion with this bridge, percent: the mean over galleries and splits.
    pub quality: f64,
}

/// Choice of a bridge, with everything that was tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BridgeChoice {
    /// Name of the metric that is measured, as [`Selection::criterion`](crate::Selection::criterion).
    pub criterion: String,
    /// Number of queries that asked; `None` where held-out items asked for each other.
    pub queries: Option<usize>,
    /// Number of other items of the gallery that held-out pairs asked; 0 where they asked pairs.
    #[serde(default)]
    pub others: usize,
    /// Number of splits: how often another part was held out.
    pub splits: usize,
    /// Numbers of held-out items of the first split: of classes that have pairs, and of classes that have
    /// none.
    pub held_out: (usize, usize),
    /// Quality of old queries in the old gallery, percent.
    pub do_nothing: f64,
    /// Bridges that were tried: every share of the first map, then of the next.
    pub rows: Vec<BridgeRow>,
    /// Place of the row that was kept; `None` where none is proven to be above doing nothing, for known and
    /// for left-out classes.
    pub kept: Option<usize>,
}

impl BridgeChoice {
    /// Returns the row that was kept.
    pub fn kept_row(&self) -> Option<&BridgeRow> {
        Some(&self.rows[self.kept?])
    }

    /// Returns the best row that needs no queries of the old model.
    pub fn without_old(&self) -> Option<&BridgeRow> {
        let of = self.rows.iter().filter(|row| row.share >= 1.0);
        of.reduce(|best, row| if row.low > best.low { row } else { best })
    }
}

/// A bridge, where there is one, with its choice.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct FittedBridge {
    /// The bridge, fitted on all pairs; `None` where none is proven to be above doing nothing.
    pub bridge: Option<Bridge>,
    /// Choice of the bridge; `None` where there were too few pairs to hold any out, and so nothing is proven.
    pub choice: Option<BridgeChoice>,
}

/// Fits a bridge on pairs. The seed, the metric and the queries are all that it takes of the parameters.
///
/// ```
/// use rehang_core::{Distance, Matrix, Pairs, Progress, Vectors};
/// use rehang_fit::{FitParameters, fit_bridge};
///
/// // Thirty classes in the plane. The new model sees their directions turned by a right angle, the old one with much noise.
/// let noise = |item: usize| ((item * 7919) % 1013) as f32 / 1013.0 - 0.5;
/// let angle = |item: usize, width: f32| (item % 30) as f32 * 0.2 + width * noise(item);
/// let (n, circle) = (900, |angle: f32, axis: usize| if axis == 0 { angle.cos() } else { angle.sin() });
/// let old = Matrix::from_fn(n, 2, |item, axis| circle(angle(item, 0.8), axis));
/// let new = Matrix::from_fn(n, 2, |item, axis| circle(angle(item, 0.1) + 1.5708, axis));
/// let old = Vectors::measured("old", Distance::Cosine, old, "old vectors")?;
/// let new = Vectors::measured("new", Distance::Cosine, new, "new vectors")?;
/// let labels = (0..n as i64).map(|item| item % 30).collect();
/// let pairs = Pairs::new(old, new, Some(labels), None)?;
/// let fitted = fit_bridge(&pairs, &FitParameters::default(), &Progress::default())?;
/// let choice = fitted.choice.unwrap();
/// let kept = choice.kept_row().unwrap();
/// assert!(kept.low > 0.0 && kept.quality > choice.do_nothing && fitted.bridge.unwrap().share == kept.share);
/// # Ok::<(), rehang_core::Error>(())
/// ```
///
/// # Errors
///
/// As [`fit_adapter`](crate::fit_adapter) for queries and metrics that do not go with the pairs;
/// [`rehang_core::ErrorKind::Diverged`] where a decomposition fails; [`rehang_core::ErrorKind::Cancelled`].
pub fn fit_bridge(pairs: &Pairs, parameters: &FitParameters, progress: &Progress) -> Result<FittedBridge> {
    with_task(pairs, parameters, progress, |task| {
        let Some(choice) = task.choose_bridge()? else {
            return Ok(FittedBridge { bridge: None, choice: None });
        };
        let seed = parameters.seed;
        let of_row = |row: &BridgeRow| fit_bridge_of(task.pairs, row.method, row.share, seed, progress);
        let bridge = choice.kept_row().map(of_row).transpose()?;
        Ok(FittedBridge { bridge, choice: Some(choice) })
    })
}

/// Fits the adjoint of one map on all pairs, with one share, whatever it is worth: for studies.
/// [`fit_bridge`] chooses both.
///
/// # Errors
///
/// As [`fit_bridge`]; as [`Bridge::check`] for a share that is none, and [`rehang_core::ErrorKind::InvalidOption`]
/// for a method whose adjoint is not tried.
pub fn fit_bridge_of(
    pairs: &Pairs,
    method: Method,
    share: f64,
    seed: u64,
    progress: &Progress,
) -> Result<Bridge> {
    if !METHODS.contains(&method) {
        return Err(Error::option("method", method, "ridge or procrustes"));
    }
    let (map, choices) = turned_back(pairs, method, progress)?;
    let bridge = Bridge {
        old: pairs.old().space().clone(),
        new: pairs.new_vectors().space().clone(),
        map,
        share,
        length: length_of(pairs.old()),
        training: training(pairs, method, seed, choices),
    };
    bridge.check()?;
    Ok(bridge)
}

/// Returns the mean length of vectors; 1 for zero vectors alone, which have no direction either.
fn length_of(old: &Vectors) -> f64 {
    let length = mean(&old.matrix().norms());
    if length > 0.0 { length } else { 1.0 }
}

/// Fits the adjoint of a map on pairs as their distances see them, about the mean of new vectors:
/// `g(q) = Wᵀ (q − μ_new)`.
fn turned_back(
    pairs: &Pairs,
    method: Method,
    progress: &Progress,
) -> Result<(Map, BTreeMap<String, String>)> {
    let scaling = |of: &Vectors| {
        if of.space().distance.heeds_lengths() { InputScaling::AsIs } else { InputScaling::UnitLength }
    };
    let compared = |of: &Vectors, what: &str| {
        let space = of.space();
        Vectors::measured(&space.name, space.distance, scaled(of.matrix(), scaling(of)), what)
    };
    let compared_pairs = Pairs::new(
        compared(pairs.old(), "old vectors")?,
        compared(pairs.new_vectors(), "new vectors")?,
        None,
        None,
    )?;
    let as_is = Some(InputScaling::AsIs);
    let forward = match method {
        Method::Procrustes => procrustes::fit_with(&compared_pairs, as_is, progress)?,
        _ => ridge::fit_with(&compared_pairs, as_is, &ridge::PENALTIES, progress)?,
    };
    let weight = &forward.map.mixer[0].weight;
    let back = Matrix::from_fn(weight.columns(), weight.rows(), |row, column| weight.row(column)[row]);
    let centre = column_means(compared_pairs.new_vectors().matrix());
    let bias = (0..back.rows())
        .map(|row| {
            let sum: f64 = back.row(row).iter().zip(&centre).map(|(&w, mean)| f64::from(w) * mean).sum();
            -sum as f32
        })
        .collect();
    let layer = Dense { weight: back, bias, relu: false };
    Ok((Map::from_layers(scaling(pairs.new_vectors()), vec![layer]), forward.choices))
}

/// A gallery of old vectors that a bridge is tried on, with what asks it.
struct Ground<'a> {
    split: usize,
    kind: HeldOutGallery,
    old: &'a Vectors,
    /// Queries by the old and by the new model.
    queries: [&'a Matrix; 2],
    criterion: Criterion<'a>,
}

/// Lists what a bridge is tried on: held-out pairs that ask these items, where there are any, or each other.
fn grounds<'a>(splits: &'a [Split<'a>], others: Option<&'a Others>) -> Result<Vec<Ground<'a>>> {
    if let Some(others) = others {
        let of_others = |asking: &'a Asking| Ground {
            split: asking.split,
            kind: asking.kind,
            old: &others.old,
            queries: [&asking.queries.old, &asking.queries.new],
            criterion: asking.criterion(),
        };
        return Ok(others.asking.iter().map(of_others).collect());
    }
    let mut grounds = Vec::new();
    for (number, split) in splits.iter().enumerate() {
        for (place, part) in split.parts.iter().enumerate() {
            let Some(criterion) = part.criterion_given()? else { continue };
            let by_items = [part.pairs.old().matrix(), part.pairs.new_vectors().matrix()];
            let queries = criterion.queries.map_or(by_items, |queries| [&queries.old, &queries.new]);
            let kind = split.gallery(place);
            grounds.push(Ground { split: number, kind, old: part.pairs.old(), queries, criterion });
        }
    }
    Ok(grounds)
}

impl Task<'_> {
    /// Measures every bridge that is tried; `None` where nothing can be held out.
    fn choose_bridge(&self) -> Result<Option<BridgeChoice>> {
        let splits = self.splits_of_both()?;
        let others = self.others(&splits)?;
        let all_pairs = if others.is_none() { self.all_pairs_asked(&splits)? } else { None };
        let grounds = grounds(&splits, others.as_ref().or(all_pairs.as_ref()))?;
        let by_others = others.as_ref().map(Others::criterion);
        let Some(criterion) = by_others.as_ref().or(first_criterion(&splits)) else { return Ok(None) };
        let (Some(split), Some(ground)) = (splits.first(), grounds.first()) else { return Ok(None) };
        let (held_out, metrics) = (split.held_out, ground.criterion.guarded());
        let tried: Vec<(Method, f64)> =
            METHODS.iter().flat_map(|&method| SHARES.map(|share| (method, share))).collect();
        let before: Vec<QueryRanks> = grounds
            .iter()
            .map(|ground| ground.criterion.in_old(ground.old, ground.queries[0]))
            .collect::<Result<_>>()?;
        let today: Vec<f64> = before.iter().map(|ranks| mean(&ranks.values[metrics[0]])).collect();
        let mut differences = vec![Differences::new(); tried.len()];
        self.progress.begin("fitting the bridge", "maps", (splits.len() * METHODS.len()) as u64);
        for (number, split) in splits.iter().enumerate() {
            let pairs = self.pairs.select(&split.fitted);
            for (place, &method) in METHODS.iter().enumerate() {
                self.progress.check()?;
                let bridge = fit_bridge_of(&pairs, method, 1.0, self.parameters.seed, self.progress)?;
                for (ground, before) in grounds.iter().zip(&before).filter(|(of, _)| of.split == number) {
                    let [by_old, by_new] = ground.queries;
                    let turned = bridge.apply_adjoint(by_new)?;
                    for (row, &share) in SHARES.iter().enumerate() {
                        let queries = mixed(Some(by_old), &turned, share, bridge.length);
                        let after = ground.criterion.in_old(ground.old, &queries)?;
                        let into = &mut differences[place * SHARES.len() + row];
                        for (at, &metric) in metrics.iter().enumerate() {
                            let values = |ranks: &QueryRanks| ranks.values[metric].clone();
                            add(into, (ground.kind, at), &values(&after), &values(before));
                        }
                    }
                }
                self.progress.advance(1);
            }
        }
        let names = names_of(criterion);
        let do_nothing = mean(&today);
        let row = |((method, share), differences): ((Method, f64), Differences)| {
            let (gains, low) = gains(&differences, &names);
            let own_gains: Vec<f64> =
                gains.iter().filter(|of| of.metric == names[0]).map(|of| of.gain).collect();
            BridgeRow { method, share, gains, low, quality: do_nothing + mean(&own_gains) }
        };
        let rows: Vec<BridgeRow> = tried.into_iter().zip(differences).map(row).collect();
        let kept_place = if others.is_some() { best_of_proven(&rows) } else { choose(&rows) };
        Ok(Some(BridgeChoice {
            criterion: criterion.name(),
            queries: self.parameters.queries.as_ref().map(|queries| queries.new.rows()),
            others: others.as_ref().map_or(0, |others| others.old.len()),
            splits: splits.len(),
            held_out,
            do_nothing,
            rows,
            kept: kept_place,
        }))
    }
}

/// Chooses the [best of what is proven](lower_bounds::best_of_proven); `None` where it gains nothing.
fn best_of_proven(rows: &[BridgeRow]) -> Option<usize> {
    let best = lower_bounds::best_of_proven(rows.iter().map(|row| (&row.gains[..], row.low)))?;
    (mean_gain(&rows[best].gains) > 0.0).then_some(best)
}

/// Chooses among the rows that are [proven](best_of_proven) and no farther behind the best of these than two
/// standard errors of its gain. The row with the smallest share is kept, the better of equals: it is nearest
/// to what is served today.
fn choose(rows: &[BridgeRow]) -> Option<usize> {
    let best = best_of_proven(rows).filter(|&best| is_of_both(&rows[best].gains))?;
    let errors: Vec<f64> = rows[best].gains.iter().map(|of| of.error).collect();
    let gain = |row: usize| mean_gain(&rows[row].gains);
    let enough = gain(best) - ERRORS * mean(&errors);
    let smaller = |smallest: usize, row: usize| {
        let is_smaller = rows[row].share < rows[smallest].share;
        let is_better = rows[row].share <= rows[smallest].share && gain(row) > gain(smallest);
        if is_smaller || is_better { row } else { smallest }
    };
    (0..rows.len()).filter(|&row| rows[row].low >= 0.0 && gain(row) >= enough).reduce(smaller)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::{FitQueries, OtherItems};
    use crate::tests::test_data::random_matrix;
    use rehang_core::Distance;
    use rehang_core::curve::Qrels;

    /// Makes vectors of 24 classes; the old model adds noise to what the new one sees turned.
    fn data(n: usize, noise_of_old: f32, labelled: bool) -> Pairs {
        let (centres, noise) = (random_matrix(24, 12, 1), random_matrix(n, 12, 2));
        let wrong = random_matrix(n, 12, 3);
        let new =
            Matrix::from_fn(n, 12, |row, axis| centres.row(row % 24)[axis] + 0.4 * noise.row(row)[axis]);
        let old = Matrix::from_fn(n, 12, |row, axis| {
            new.row(row)[(axis + 1) % 12] + noise_of_old * wrong.row(row)[axis]
        });
        let vectors = |name: &str, rows| Vectors::measured(name, Distance::Cosine, rows, name).unwrap();
        let labels = labelled.then(|| (0..n as i64).map(|row| row % 24).collect());
        Pairs::new(vectors("old", old), vectors("new", new), labels, None).unwrap()
    }

    fn fit(pairs: &Pairs) -> FittedBridge {
        fit_bridge(pairs, &FitParameters::default(), &Progress::default()).unwrap()
    }

    #[test]
    fn a_better_model_gives_a_bridge_with_and_without_labels() {
        for labelled in [true, false] {
            let pairs = data(900, 1.0, labelled);
            let FittedBridge { bridge, choice } = fit(&pairs);
            let (bridge, choice) = (bridge.unwrap(), choice.unwrap());
            let row = choice.kept_row().unwrap();
            assert_eq!(choice.criterion, if labelled { "mAP" } else { "agreement@10" });
            assert_eq!(choice.rows.len(), METHODS.len() * SHARES.len());
            let largest = choice.rows.iter().map(|row| row.low).fold(f64::NEG_INFINITY, f64::max);
            assert!(row.low > 0.0 && row.low <= largest);
            assert_eq!((bridge.share, bridge.training.method.as_str()), (row.share, row.method.name()));
            assert!(choice.without_old().unwrap().low <= largest);
            let galleries: Vec<_> = row.gains.iter().map(|of| (of.gallery, of.metric.as_str())).collect();
            let (known, left_out) = (HeldOutGallery::Known, HeldOutGallery::LeftOut);
            let [metric, guard] =
                if labelled { ["mAP", "Top-1"] } else { ["agreement@10", "Top-1 by agreement"] };
            assert_eq!(galleries, [(known, metric), (known, guard), (left_out, metric), (left_out, guard)]);
        }
    }

    #[test]
    fn where_nothing_is_proven_there_is_no_bridge() {
        // The old model is the better one by far: to it the new model's queries are noise.
        let pairs = data(600, 0.0, true);
        let noise = random_matrix(600, 12, 9);
        let new = Vectors::measured("new", Distance::Cosine, noise, "new vectors").unwrap();
        let labels = pairs.labels().map(<[i64]>::to_vec);
        let useless = Pairs::new(pairs.old().clone(), new, labels, None).unwrap();
        let FittedBridge { bridge, choice } = fit(&useless);
        assert!(bridge.is_none() && choice.unwrap().kept.is_none());
        // With two classes, clusters are left out.
        let of_two = data(600, 1.0, true);
        let labels = Some((0..600).map(|row| row % 24 / 12).collect());
        let of_two = Pairs::new(of_two.old().clone(), of_two.new_vectors().clone(), labels, None).unwrap();
        assert_eq!(fit(&of_two).choice.unwrap().criterion, "agreement@10");
        // Ten pairs prove nothing.
        assert_eq!(fit(&data(10, 1.0, true)), FittedBridge { bridge: None, choice: None });
    }

    /// The gallery is thirty times as many items as the pairs, whose held-out ones are some thirty.
    #[test]
    fn everything_else_in_the_gallery_proves_what_few_held_out_pairs_cannot() {
        let all = data(4000, 0.7, true);
        let (drawn, rest): (Vec<usize>, Vec<usize>) = (0..4000).partition(|row| row % 31 == 0);
        let pairs = all.select(&drawn);
        let labels = all.labels().unwrap();
        let others = OtherItems {
            old: all.old().matrix().select(&rest),
            labels: rest.iter().map(|&row| labels[row]).collect(),
            judged: None,
        };
        let parameters = FitParameters { others: Some(others.clone()), ..FitParameters::default() };
        let FittedBridge { bridge, choice } = fit_bridge(&pairs, &parameters, &Progress::default()).unwrap();
        let choice = choice.unwrap();
        let row = choice.kept_row().unwrap();
        assert_eq!((choice.others, bridge.unwrap().share), (rest.len(), row.share));
        assert!(row.low >= 0.0);
        let gain = |row: &BridgeRow| row.gains.iter().map(|of| of.gain).sum::<f64>();
        assert!(choice.rows.iter().all(|other| other.low < 0.0 || gain(other) <= gain(row)));
        assert!(fit(&pairs).bridge.is_none(), "held-out pairs among themselves prove nothing");
        // Without labels nothing says what is right among the others, but clicks.
        let unlabelled = data(4000, 0.7, false).select(&drawn);
        let asked = fit_bridge(&unlabelled, &parameters, &Progress::default()).unwrap();
        assert_eq!(asked, fit(&unlabelled));
        let as_queries = all.select(&rest[..200]);
        let queries = FitQueries {
            old: as_queries.old().matrix().clone(),
            new: as_queries.new_vectors().matrix().clone(),
            qrels: None,
        };
        let of_label = |query: usize| {
            let is_right = |&item: &usize| item >= 200 && others.labels[item] == others.labels[query];
            (200..rest.len()).filter(is_right).take(20).map(|item| (item, 1.0)).collect()
        };
        let judged = Some(Qrels::new((0..200).map(of_label).collect()).unwrap());
        let parameters = FitParameters {
            others: Some(OtherItems { judged, ..others.clone() }),
            queries: Some(queries),
            ..FitParameters::default()
        };
        let by_click = fit_bridge(&unlabelled, &parameters, &Progress::default()).unwrap();
        let choice = by_click.choice.unwrap();
        assert_eq!((choice.criterion.as_str(), choice.others), ("nDCG@10", rest.len()));
        assert!(choice.kept.is_some());
        let parameters = FitParameters { queries: None, ..parameters };
        let narrow = OtherItems { old: Matrix::zeros(rest.len(), 3), ..others };
        let parameters = FitParameters { others: Some(narrow), ..parameters };
        assert!(fit_bridge(&pairs, &parameters, &Progress::default()).unwrap_err().is_mismatch());
    }

    #[test]
    fn without_labels_a_bridge_is_chosen_by_what_held_out_pairs_find_among_all_pairs() {
        let pairs = data(300, 1.0, false);
        with_task(&pairs, &FitParameters::default(), &Progress::default(), |task| {
            let asked = task.all_pairs_asked(&task.splits_of_both()?)?.unwrap();
            let found = |asking: &Asking| -> Result<f64> {
                let criterion = asking.criterion();
                let ranks = criterion.in_old(&asked.old, &asking.queries.old)?;
                Ok(mean(&ranks.values[criterion.metric]))
            };
            let today: Vec<f64> = asked.asking.iter().map(found).collect::<Result<_>>()?;
            let choice = task.choose_bridge()?.unwrap();
            assert_eq!((choice.do_nothing, choice.others), (mean(&today), 0));
            assert!(choice.kept.is_some());
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn the_adjoint_keeps_scores() {
        let pairs = data(400, 0.5, false);
        for method in METHODS {
            let (back, _) = turned_back(&pairs, method, &Progress::default()).unwrap();
            let unit_rows = |of: &Vectors| scaled(of.matrix(), InputScaling::UnitLength);
            let (old, new) = (unit_rows(pairs.old()), unit_rows(pairs.new_vectors()));
            let unit_pairs = Pairs::new(
                Vectors::measured("old", Distance::Cosine, old.clone(), "old").unwrap(),
                Vectors::measured("new", Distance::Cosine, new.clone(), "new").unwrap(),
                None,
                None,
            )
            .unwrap();
            let forward = if method == Method::Procrustes {
                procrustes::fit(&unit_pairs, &Progress::default()).unwrap()
            } else {
                ridge::fit(&unit_pairs, &Progress::default()).unwrap()
            };
            let adapted = forward.map.outputs(&old, None).unwrap();
            let turned = back.outputs(&new, None).unwrap();
            let mean_new: Vec<f64> = (0..12)
                .map(|axis| (0..400).map(|row| f64::from(new.row(row)[axis])).sum::<f64>() / 400.0)
                .collect();
            let dot = |a: &[f32], b: &[f32]| {
                a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>()
            };
            // ⟨Wᵀ (q − μ), o⟩ and ⟨q − μ, h(o)⟩ differ by the same number for every item.
            for query in [0, 17, 200] {
                let about: Vec<f32> =
                    (0..12).map(|axis| (f64::from(new.row(query)[axis]) - mean_new[axis]) as f32).collect();
                let apart: Vec<f64> = (0..50)
                    .map(|item| dot(turned.row(query), old.row(item)) - dot(&about, adapted.row(item)))
                    .collect();
                assert!(apart.iter().all(|value| (value - apart[0]).abs() < 1e-5), "{method}: {apart:?}");
            }
        }
    }

    #[test]
    fn copies_are_no_answers_to_each_other() {
        let plain = data(480, 1.0, true);
        let measured = |choice: BridgeChoice| (choice.do_nothing, choice.held_out, choice.splits);
        let alone = measured(fit(&plain).choice.unwrap());
        // A service may give a source another vector each time: then the sources alone tell.
        for (length, sources) in [(1.0_f32, Vec::new()), (1.05, (0..960).map(|row| row % 480).collect())] {
            let twice = |of: &Vectors| {
                let length_of = |row: usize| if row < 480 { 1.0 } else { length };
                let rows =
                    Matrix::from_fn(960, 12, |row, axis| length_of(row) * of.matrix().row(row % 480)[axis]);
                Vectors::measured(&of.space().name, Distance::Cosine, rows, "vectors").unwrap()
            };
            let labels = Some((0..960).map(|row| row % 24).collect());
            let pairs = Pairs::new(twice(plain.old()), twice(plain.new_vectors()), labels, None).unwrap();
            let parameters = FitParameters { sources, ..FitParameters::default() };
            let with_copies = fit_bridge(&pairs, &parameters, &Progress::default()).unwrap();
            assert_eq!(measured(with_copies.choice.unwrap()), alone);
        }
    }

    #[test]
    fn of_what_is_proven_the_smallest_share_within_two_errors_of_the_largest_gain_is_kept() {
        let row = |share: f64, known: f64, left_out: f64, error: f64| {
            let gain = |gallery, gain| HeldOutGain { gallery, metric: "mAP".into(), gain, error };
            let gains = vec![gain(HeldOutGallery::Known, known), gain(HeldOutGallery::LeftOut, left_out)];
            let low = known.min(left_out) - error;
            BridgeRow { method: Method::Ridge, share, gains, low, quality: 0.0 }
        };
        let rows = [row(0.1, 2.0, 3.0, 0.5), row(0.2, 5.5, 4.6, 0.5), row(0.3, 8.0, 4.0, 0.5)];
        assert_eq!(choose(&rows), Some(1), "5.05 is within 1 of 6, and 2.5 is not");
        let unproven = [row(0.2, 9.0, 0.4, 0.5), row(0.3, 8.0, 4.0, 0.5), row(0.4, 30.0, -1.0, 0.5)];
        assert_eq!(choose(&unproven), Some(1), "what has a bound below 0 is out of the question");
        let rows = [row(0.2, 4.0, 3.1, 0.5), row(0.3, 4.0, 3.9, 0.5), row(0.2, 4.0, 3.2, 0.1)];
        assert_eq!(choose(&rows), Some(2), "of equals the better one");
        assert_eq!(choose(&[row(0.2, 4.0, 0.4, 0.5)]), None);
        assert_eq!(choose(&[row(0.2, 4.0, 0.6, 0.5)]), Some(0));
        assert_eq!(choose(&[row(0.2, 0.0, 0.0, 0.0)]), None, "nothing is gained");
        let mut known_alone = row(0.2, 4.0, 4.0, 0.5);
        known_alone.gains.pop();
        assert_eq!(choose(&[known_alone]), None, "nothing is proven of classes that come");
        assert_eq!(choose(&[]), None);
    }

    #[test]
    fn the_same_seed_gives_the_same_bridge_for_any_number_of_threads() {
        let pairs = data(400, 1.0, true);
        let run = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| fit(&pairs))
        };
        assert_eq!(run(1), run(3));
    }
}
