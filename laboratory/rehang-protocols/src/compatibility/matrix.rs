//! Cross matrix of one metric, and what it says about every pair of models.

use rehang_core::Result;
use rehang_core::check::expect_count;
use rehang_core::gains::{absolute_gain, criterion_met, gain_down, gain_up, update_gain};
use rehang_core::statistics::{Interval, bootstrap_means};
use serde::Serialize;

use super::model::check_names;

/// Cross matrix: `M(i, j)` of one metric, in percent, for queries by model i and gallery by model j.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CrossMatrix {
    /// The models' names, oldest first.
    pub names: Vec<String>,
    /// `values[i][j]` for queries by model i and gallery by model j; NaN where it is undefined.
    pub values: Vec<Vec<f64>>,
}

/// Pair of an old and a new model, with everything that the papers say about it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Compatibility {
    /// Name of the old model.
    pub old: String,
    /// Name of the new model.
    pub new: String,
    /// Name of the model whose own gallery is the whole of Δ↓, and of Γ where the new model's own is no
    /// better.
    pub best: String,
    /// `M(old, old)`: today.
    pub old_old: f64,
    /// `M(new, old)`: after the switch, with no backfill.
    pub new_old: f64,
    /// `M(new, new)`: after a full backfill.
    pub new_new: f64,
    /// `M(new*, new*)`.
    pub best_best: f64,
    /// Whether BCT eq. 2 holds: `M(new, old) > M(old, old)`.
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
    /// Those of `value`; [`ErrorKind::Empty`](rehang_core::ErrorKind::Empty) for no models,
    /// [`ErrorKind::Duplicate`](rehang_core::ErrorKind::Duplicate) for two of one name.
    pub fn from_fn(names: &[String], mut value: impl FnMut(usize, usize) -> Result<f64>) -> Result<Self> {
        check_names(names.iter().map(String::as_str))?;
        let values = (0..names.len())
            .map(|query| (0..names.len()).map(|gallery| value(query, gallery)).collect())
            .collect::<Result<_>>()?;
        Ok(Self { names: names.to_vec(), values })
    }

    /// Says what replacing model `old` by model `new` gains, where `best` is the independent model. Without
    /// `best` the new model is its own best, and Δ↓ is left out. The whole of Γ is the better of the two, as
    /// BCT's (9) asks for the best of any variant.
    ///
    /// ```
    /// use rehang_protocols::compatibility::CrossMatrix;
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
    /// # Ok::<(), rehang_core::Error>(())
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
            // The best of any variant counts (BCT 9): the new model may be better than the one trained with
            // no regard to the old.
            update_gain: update_gain(new_old, old_old, best_best.max(new_new)),
            absolute_gain: absolute_gain(new_old, old_old),
            gain_up: gain_up(new_old, old_old),
            gain_down: best.and_then(|_| gain_down(new_new, best_best)),
        }
    }

    /// Lists every pair of an earlier and a later model, in the order of the names, with
    /// [`CrossMatrix::compatibility`]. The best model is no upgrade itself: it stands in no pair, unless
    /// there are only two models.
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

/// Draws a bootstrap interval, over queries, of the difference of two means over the same queries:
/// `after − before`.
///
/// Each query is drawn with both of its values, so what the two models find equally hard does not widen the
/// interval. An interval that holds 0 says that the difference may be chance.
///
/// # Errors
///
/// [`ErrorKind::CountMismatch`](rehang_core::ErrorKind::CountMismatch) where the two are not of the same queries;
/// those of [`bootstrap_means`].
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
