//! Compatible models: may the new model's queries search the old model's gallery, and what is it worth?
//!
//! `M(i, j)` is a metric (in percent, larger is better) with queries by model i and gallery by model j. Everything here
//! is read off the **cross matrix** of all `M(i, j)`:
//!
//! | number | formula | source |
//! |---|---|---|
//! | [`criterion_met`] | `M(new, old) > M(old, old)` | BCT eq. 2 |
//! | [`update_gain`] Γ | `(M(new, old) − M(old, old)) / (M(new*, new*) − M(old, old))`, in percent | BCT eq. 9 |
//! | [`absolute_gain`] | `M(new, old) − M(old, old)`, in points | BCT tables 1, 3, 4 |
//! | [`gain_up`] Δ↑ | `(M(new, old) − M(old, old)) / M(old, old)`, in percent | DMU eq. 6 |
//! | [`gain_down`] Δ↓ | `(M(new*, new*) − M(new, new)) / M(new*, new*)`, in percent | DMU eq. 7 |
//!
//! `new*` is the best model that could be had with a full backfill: as a rule the new architecture trained on the new
//! data without any regard for the old model (BCT's paragon, DMU's oracle).
//!
//! [`cross_evaluate`] fills the matrix with retrieval metrics; [`CrossMatrix::from_fn`] with any other, such as TAR@FAR
//! of [`crate::protocols::verification`]. [`hot_refresh`] follows a gallery while it is backfilled, order by order;
//! [`upgrade_sequence`] follows it through several models, with and without backfills.
//!
//! # Different widths
//!
//! A gallery's vectors are stored and indexed, so it is the query that is made to fit ([`at_width`]): of a wider query
//! the first coordinates count (BCT §3.6 trains the new model for that), a narrower one is filled up with zeros. In a
//! gallery that is being backfilled ([`hot_refresh`]) each vector is compared with the query as it is made to fit that vector:
//! under cosine an old one with the query that is cut and has a length of its own. Were old vectors filled up with zeros (as
//! openBCT does), the coordinates that only new vectors have would count against every old one, and what is backfilled first would
//! come first. A gallery that went through several models ([`upgrade_sequence`]) is kept in one index, in the widest of their
//! widths, narrower vectors filled up with zeros: compare models of one width there.

mod cross;
mod refresh;
mod sequence;

use std::borrow::Cow;

use serde::Serialize;

use crate::check::expect_count;
use crate::curve::check_vectors;
use crate::error::{Error, ErrorKind, Result};
use crate::statistics::{Interval, bootstrap_means};
use crate::vectors::Matrix;

pub use cross::{Cell, CrossEvaluation, CrossInput, Model, WidthRule, cross_evaluate};
pub use refresh::{Refresh, RefreshInput, hot_refresh};
pub use sequence::{SequenceInput, SequenceStep, UpgradeStep, upgrade_sequence};

/// The empirical compatibility criterion (BCT eq. 2): strictly better with the new model's queries, and no backfill.
///
/// An undefined (NaN) value never meets it.
///
/// ```
/// use rehang::compatibility::criterion_met;
///
/// assert!(criterion_met(80.25, 77.86));
/// // As good as before is not enough.
/// assert!(!criterion_met(77.86, 77.86));
/// assert!(!criterion_met(f64::NAN, 77.86));
/// ```
pub fn criterion_met(new_old: f64, old_old: f64) -> bool {
    new_old > old_old
}

/// The update gain Γ (BCT eq. 9): which share of a full backfill's gain comes without any backfill, in percent.
///
/// `None` where the criterion fails (BCT: "only valid when Eq. (2) is satisfied"), and where the full backfill gains
/// nothing, so that there is no whole to take a share of. Above 100 where the new model on the old gallery beats even
/// the full backfill.
///
/// ```
/// use rehang::compatibility::update_gain;
///
/// // BCT table 1, face verification: 80.25 on the old gallery, 77.86 before, 86.96 with everything backfilled.
/// let gain = update_gain(80.25, 77.86, 86.96).unwrap();
/// assert_eq!(format!("{gain:.2}"), "26.26");
/// assert_eq!(update_gain(77.26, 77.86, 86.96), None);
/// assert_eq!(update_gain(80.25, 77.86, 77.86), None);
/// ```
pub fn update_gain(new_old: f64, old_old: f64, best_best: f64) -> Option<f64> {
    (criterion_met(new_old, old_old) && best_best > old_old)
        .then(|| 100.0 * (new_old - old_old) / (best_best - old_old))
}

/// The absolute gain: `M(new, old) − M(old, old)`, in points; negative where the upgrade makes searches worse.
///
/// ```
/// use rehang::compatibility::absolute_gain;
///
/// // BCT table 1, face search.
/// assert_eq!(format!("{:.2}", absolute_gain(70.70, 59.34)), "11.36");
/// ```
pub fn absolute_gain(new_old: f64, old_old: f64) -> f64 {
    new_old - old_old
}

/// The upgrade gain Δ↑ (DMU eq. 6): the absolute gain relative to today, in percent. `None` where today's value is 0.
///
/// ```
/// use rehang::compatibility::gain_up;
///
/// // DMU table 1, landmarks, 30 % → 100 % of the data: BCT and DMU.
/// assert_eq!(format!("{:.2}", gain_up(21.12, 18.93).unwrap()), "11.57");
/// assert_eq!(format!("{:.2}", gain_up(22.56, 18.93).unwrap()), "19.18");
/// assert_eq!(gain_up(21.12, 0.0), None);
/// ```
pub fn gain_up(new_old: f64, old_old: f64) -> Option<f64> {
    (old_old > 0.0).then(|| 100.0 * (new_old - old_old) / old_old)
}

/// The discriminativeness degradation Δ↓ (DMU eq. 7): what the new model's own searches lose by being compatible, in
/// percent. Negative where compatible training helped. `None` where the best value is 0.
///
/// ```
/// use rehang::compatibility::gain_down;
///
/// // DMU table 1, landmarks, 30 % → 100 % of the data: BCT and DMU.
/// assert_eq!(format!("{:.2}", gain_down(24.55, 25.58).unwrap()), "4.03");
/// assert_eq!(format!("{:.2}", gain_down(25.00, 25.58).unwrap()), "2.27");
/// assert_eq!(gain_down(24.55, 0.0), None);
/// ```
pub fn gain_down(new_new: f64, best_best: f64) -> Option<f64> {
    (best_best > 0.0).then(|| 100.0 * (best_best - new_new) / best_best)
}

/// `M(i, j)` of one metric, in percent, for queries by model i and gallery by model j.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CrossMatrix {
    /// The models' names, oldest first.
    pub names: Vec<String>,
    /// `values[i][j]` for queries by model i and gallery by model j; NaN where it is undefined.
    pub values: Vec<Vec<f64>>,
}

/// An old and a new model, and everything that the papers say about the pair.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Compatibility {
    /// The old model.
    pub old: String,
    /// The new model.
    pub new: String,
    /// The model whose own gallery is the whole of Γ and of Δ↓.
    pub best: String,
    /// `M(old, old)`: today.
    pub old_old: f64,
    /// `M(new, old)`: after the switch, with no backfill.
    pub new_old: f64,
    /// `M(new, new)`: after a full backfill.
    pub new_new: f64,
    /// `M(new*, new*)`.
    pub best_best: f64,
    /// BCT eq. 2.
    pub criterion_met: bool,
    /// Γ, BCT eq. 9, in percent.
    pub update_gain: Option<f64>,
    /// `M(new, old) − M(old, old)`, in points.
    pub absolute_gain: f64,
    /// Δ↑, DMU eq. 6, in percent.
    pub gain_up: Option<f64>,
    /// Δ↓, DMU eq. 7, in percent; `None` also where no other model than the new one was named as the best.
    pub gain_down: Option<f64>,
}

impl CrossMatrix {
    /// Fills the matrix: `value(i, j)` is the metric with queries by model i and gallery by model j.
    ///
    /// # Errors
    ///
    /// Those of `value`; [`ErrorKind::Empty`] for no models, [`ErrorKind::Duplicate`] for two of one name.
    pub fn from_fn(names: &[String], mut value: impl FnMut(usize, usize) -> Result<f64>) -> Result<Self> {
        check_names(names.iter().map(String::as_str))?;
        let values = (0..names.len())
            .map(|query| (0..names.len()).map(|gallery| value(query, gallery)).collect())
            .collect::<Result<_>>()?;
        Ok(Self { names: names.to_vec(), values })
    }

    /// What the matrix says about replacing model `old` by model `new`, where `best` is `new*`; without it the new model
    /// is its own best, and Δ↓ is left out.
    ///
    /// ```
    /// use rehang::compatibility::CrossMatrix;
    ///
    /// // BCT table 1 and 2, face search: old, trained with BCT and synthesised weights, paragon.
    /// let values = [[59.34, f64::NAN, f64::NAN], [70.70, 74.40, f64::NAN], [0.0, f64::NAN, 76.88]];
    /// let names = ["old", "compatible", "paragon"].map(String::from);
    /// let matrix = CrossMatrix::from_fn(&names, |i, j| Ok(values[i][j]))?;
    /// let pair = matrix.compatibility(0, 1, Some(2));
    /// assert!(pair.criterion_met);
    /// assert_eq!(format!("{:.2}", pair.update_gain.unwrap()), "64.77");
    /// // Independently trained models cannot be compared at all.
    /// assert!(!matrix.compatibility(0, 2, None).criterion_met);
    /// # Ok::<(), rehang::Error>(())
    /// ```
    ///
    /// # Panics
    ///
    /// Where a model's number is not below the number of names.
    pub fn compatibility(&self, old: usize, new: usize, best: Option<usize>) -> Compatibility {
        let whole = best.unwrap_or(new);
        let (old_old, new_old) = (self.values[old][old], self.values[new][old]);
        let (new_new, best_best) = (self.values[new][new], self.values[whole][whole]);
        Compatibility {
            old: self.names[old].clone(),
            new: self.names[new].clone(),
            best: self.names[whole].clone(),
            old_old,
            new_old,
            new_new,
            best_best,
            criterion_met: criterion_met(new_old, old_old),
            update_gain: update_gain(new_old, old_old, best_best),
            absolute_gain: absolute_gain(new_old, old_old),
            gain_up: gain_up(new_old, old_old),
            gain_down: best.and_then(|_| gain_down(new_new, best_best)),
        }
    }

    /// Every pair of an earlier and a later model, in the order of the names, with [`CrossMatrix::compatibility`]. The best
    /// model is no upgrade itself: it stands in no pair, unless there are only two models.
    pub fn pairs(&self, best: Option<usize>) -> Vec<Compatibility> {
        let models: Vec<usize> =
            (0..self.names.len()).filter(|&model| self.names.len() <= 2 || Some(model) != best).collect();
        let mut pairs = Vec::new();
        for (place, &old) in models.iter().enumerate() {
            pairs.extend(models[place + 1..].iter().map(|&new| self.compatibility(old, new, best)));
        }
        pairs
    }
}

/// Query vectors `[m, d]` made to fit a gallery of `width` coordinates: the first coordinates of wider ones, narrower ones
/// filled up with zeros.
///
/// ```
/// use rehang::Matrix;
/// use rehang::compatibility::at_width;
///
/// let vectors = Matrix::new(2, vec![1.0, 2.0, 3.0, 4.0])?;
/// assert_eq!(at_width(&vectors, 1).as_slice(), [1.0, 3.0]);
/// assert_eq!(at_width(&vectors, 3).as_slice(), [1.0, 2.0, 0.0, 3.0, 4.0, 0.0]);
/// # Ok::<(), rehang::Error>(())
/// ```
pub fn at_width(vectors: &Matrix, width: usize) -> Cow<'_, Matrix> {
    if vectors.columns() == width {
        return Cow::Borrowed(vectors);
    }
    let mut fitted = Matrix::zeros(vectors.rows(), width);
    let kept = width.min(vectors.columns());
    for row in 0..fitted.rows() {
        fitted.row_mut(row)[..kept].copy_from_slice(&vectors.row(row)[..kept]);
    }
    Cow::Owned(fitted)
}

/// A bootstrap interval, over queries, of the difference of two means over the same queries: `after − before`.
///
/// Each query is drawn with both of its values, so what the two models find equally hard does not widen the interval. An
/// interval that holds 0 says that the difference may be chance.
///
/// # Errors
///
/// [`ErrorKind::CountMismatch`] where the two are not of the same queries; those of [`bootstrap_means`].
pub fn paired_difference(
    after: &[f64],
    before: &[f64],
    resamples: usize,
    level: f64,
    seed: u64,
) -> Result<Interval> {
    expect_count("values of the new model", after.len(), "values of the old model", before.len())?;
    let differences: Vec<f64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
    Ok(bootstrap_means(&differences, 1, resamples, level, seed)?[0])
}

/// Fails without models, where two have one name, and where not all are of the same items and queries.
fn check_models<'a>(models: impl Iterator<Item = Model<'a>> + Clone) -> Result<()> {
    check_names(models.clone().map(|model| model.name))?;
    let mut first = None;
    for model in models {
        let first: &Model<'_> = first.get_or_insert(model);
        check_vectors(model.gallery, None, model.queries)
            .map_err(|error| error.context(format!("model {:?}", model.name)))?;
        let [own, expected] = [&model, first].map(|model| (model.name, model.gallery, model.queries));
        let of = |what: &str, name: &str| format!("{what} by {name:?}");
        expect_count(of("vectors", own.0), own.1.rows(), of("vectors", expected.0), expected.1.rows())?;
        match (expected.2, own.2) {
            (None, None) => {}
            (Some(all), Some(queries)) => {
                expect_count(of("queries", own.0), queries.rows(), of("queries", expected.0), all.rows())?;
            }
            (all, _) => {
                let without = if all.is_some() { own.0 } else { expected.0 };
                return Err(Error::missing("query vectors", format!("model {without:?}")));
            }
        }
    }
    Ok(())
}

/// Fails without models, and where two have one name.
fn check_names<'a>(names: impl Iterator<Item = &'a str>) -> Result<()> {
    let mut sorted: Vec<&str> = names.collect();
    if sorted.is_empty() {
        return Err(ErrorKind::Empty { what: "the list of models".into() }.into());
    }
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Error::duplicate("the list of models", format!("the name {:?}", pair[0]))),
        None => Ok(()),
    }
}
