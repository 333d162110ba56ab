//! Measures that papers on compatible models report for two models, as formulas of retrieval metrics M(query
//! model, gallery model).

/// The empirical compatibility criterion (BCT eq. 2): the new model's queries are strictly better, without
/// any backfill.
///
/// An undefined (NaN) value never meets the criterion.
///
/// ```
/// use rehang_core::gains::criterion_met;
///
/// assert!(criterion_met(80.25, 77.86));
/// // As good as before is not enough.
/// assert!(!criterion_met(77.86, 77.86));
/// assert!(!criterion_met(f64::NAN, 77.86));
/// ```
pub fn criterion_met(new_old: f64, old_old: f64) -> bool {
    new_old > old_old
}

/// The update gain Γ (BCT eq. 9): the share of a full backfill's gain that comes without any backfill, in
/// percent. `best_best` is "the best accuracy level we can achieve from any variants of the new model by
/// backfilling".
///
/// `None` where the criterion fails (BCT: "only valid when Eq. (2) is satisfied"), and where the full
/// backfill gains nothing, so that there is no whole to take a share of. Above 100 where the new model on the
/// old gallery beats even the full backfill.
///
/// ```
/// use rehang_core::gains::update_gain;
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

/// The absolute gain: `M(new, old) − M(old, old)`, in points; negative where the upgrade makes searches
/// worse.
///
/// ```
/// use rehang_core::gains::absolute_gain;
///
/// // BCT table 1, face search.
/// assert_eq!(format!("{:.2}", absolute_gain(70.70, 59.34)), "11.36");
/// ```
pub fn absolute_gain(new_old: f64, old_old: f64) -> f64 {
    new_old - old_old
}

/// The upgrade gain Δ↑ (DMU eq. 6): the absolute gain relative to today, in percent. `None` where today's
/// value is 0.
///
/// ```
/// use rehang_core::gains::gain_up;
///
/// // DMU table 1, landmarks, 30 % → 100 % of the data: BCT and DMU.
/// assert_eq!(format!("{:.2}", gain_up(21.12, 18.93).unwrap()), "11.57");
/// assert_eq!(format!("{:.2}", gain_up(22.56, 18.93).unwrap()), "19.18");
/// assert_eq!(gain_up(21.12, 0.0), None);
/// ```
pub fn gain_up(new_old: f64, old_old: f64) -> Option<f64> {
    (old_old > 0.0).then(|| 100.0 * (new_old - old_old) / old_old)
}

/// The discriminativeness degradation Δ↓ (DMU eq. 7): how much the new model's own searches lose by being
/// compatible, in percent. Negative where compatible training helped. `None` where the best value is 0.
///
/// ```
/// use rehang_core::gains::gain_down;
///
/// // DMU table 1, landmarks, 30 % → 100 % of the data: BCT and DMU.
/// assert_eq!(format!("{:.2}", gain_down(24.55, 25.58).unwrap()), "4.03");
/// assert_eq!(format!("{:.2}", gain_down(25.00, 25.58).unwrap()), "2.27");
/// assert_eq!(gain_down(24.55, 0.0), None);
/// ```
pub fn gain_down(new_new: f64, best_best: f64) -> Option<f64> {
    (best_best > 0.0).then(|| 100.0 * (best_best - new_new) / best_best)
}
