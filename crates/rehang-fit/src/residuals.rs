//! Finds what pairs say of themselves: old vectors of two kinds, or pairs that no map could fit.
//!
//! A map's squared errors on pairs that it has not seen are spread about one level. Some of them may stand on
//! a hump of their own, far above the others. No map could fit these pairs: their new vectors are of other
//! content.
//!
//! Where rows are shifted or swapped, new vectors are of other items, and no hump shows where a map leaves
//! much anyway. Half of these pairs have their own new vector farther from the map's output than most of the
//! others, and few sound pairs have ([`Chance`]). Two kinds of old vectors, each of which a map of its own
//! would fit, are seen in their neighbours ([`crate::kinds`]).

use rehang_core::adapter::{Geometry, NearestAnchors, true_errors};
use rehang_core::finding::{Finding, FindingCode};
use rehang_core::{Matrix, Pairs, Progress, Result};

use crate::closed_form::ridge;
use crate::folds::{folds, shuffled};
use crate::guards;
use crate::kinds::{Kinds, two_kinds};
use crate::left_out::without_folds;
use crate::linear_algebra::column_means;
use crate::per_kind::KIND_MIN;
use crate::same;
use crate::traits::{Trait, TraitValues};
use crate::uncertainty_fit::power_of_e;

/// Number of pairs below which there is no distribution to look at.
const PAIRS_MIN: usize = 100;
/// Largest number of pairs that are compared with the others, and that are told apart by a second map.
const ITEMS_MAX: usize = 2_000;
/// Smallest number of pairs that are a hump.
const HUMP_MIN: usize = 8;

/// Pairs that are another thing than the others, and a finding about them.
pub(crate) struct Residuals {
    /// Whether each of the pairs that were looked at is of the smaller kind, where there are two kinds.
    pub small_kind: Option<Vec<bool>>,
    pub finding: Option<Finding>,
}

/// Finds old vectors of two kinds, such as those of two models, by the neighbours of pairs. `None` where
/// there is one kind, where many items have one vector, or where pairs are too few to say (fewer than
/// [`KINDS_MIN`](crate::KINDS_MIN)).
///
/// # Errors
///
/// [`rehang_core::ErrorKind::Diverged`] where a decomposition fails, [`rehang_core::ErrorKind::Cancelled`].
pub fn kinds_of_pairs(pairs: &Pairs, seed: u64, progress: &Progress) -> Result<Option<Kinds>> {
    if is_one_vector(pairs) { Ok(None) } else { two_kinds(pairs, seed, progress) }
}

/// Returns whether many items have one vector. That is told as what it is, and any map that is near to it
/// would fit these pairs.
fn is_one_vector(pairs: &Pairs) -> bool {
    let (old, new) = (pairs.old().matrix(), pairs.new_vectors().matrix());
    guards::one_vector("old", old, new).is_some() || guards::one_vector("new", new, old).is_some()
}

/// Examines the outputs of a map for pairs that it was not fitted on: raw outputs `[n, d_new]`, and how they
/// conform.
///
/// 1. It looks for old vectors that are the new ones already, of which [`same::finding`] speaks, and takes
///    old vectors of two kinds from [`kinds_of_pairs`]. `has_own_maps` says whether the map has one of its
///    own for each kind.
/// 2. Otherwise it looks for squared errors on a hump of their own, for new vectors that are far from all
///    other new ones, and for a part of the pairs that is paired by chance: they fit as badly as chance.
/// 3. The trait that separates these pairs best is named, where one does.
///
/// # Errors
///
/// [`rehang_core::ErrorKind::Cancelled`].
pub(crate) fn examine(
    pairs: &Pairs,
    (raw, geometry): (&Matrix, &Geometry),
    (kinds, has_own_maps): (Option<Kinds>, bool),
    traits: &[Trait],
    seed: u64,
    progress: &Progress,
) -> Result<Residuals> {
    let mut residuals = Residuals { small_kind: None, finding: None };
    let n = pairs.len();
    if n < PAIRS_MIN || is_one_vector(pairs) {
        return Ok(residuals);
    }
    if let Some(same) = same::kinds(pairs) {
        let is_most = 2 * same.iter().filter(|&&same| same).count() > n;
        residuals.small_kind = Some(same.into_iter().map(|same| same != is_most).collect());
        return Ok(residuals);
    }
    let errors = true_errors(pairs.new_vectors().matrix(), &geometry.conformed(raw.clone()));
    let logs = logs(&errors);
    let worst = upper_hump(&logs);
    let chance = Chance::find(pairs, raw, seed)?;
    let fitted_by_nothing = |hump: &Vec<bool>| -> Result<bool> {
        let is_enough = hump.iter().filter(|&&of| of).count() >= KIND_MIN;
        Ok(is_enough
            && times_worse_than_its_own_map(pairs, hump, &errors, geometry, seed, progress)?.is_none())
    };
    let is_no_kind = || -> Result<bool> {
        if let Some(hump) = &worst
            && fitted_by_nothing(hump)?
        {
            return Ok(true);
        }
        chance.as_ref().map_or(Ok(false), |chance| chance.is_no_kind(pairs, seed, progress))
    };
    // Many pairs that no map fits have neighbours like those of a second kind. A kind that has its own map
    // needs no other proof.
    if let Some(kinds) = kinds
        && (has_own_maps || !is_no_kind()?)
    {
        residuals.finding = Some(two_kinds_finding(
            pairs,
            &kinds,
            &errors,
            (geometry, traits, has_own_maps),
            seed,
            progress,
        )?);
        residuals.small_kind = kinds.small;
        return Ok(residuals);
    }
    let far = far_from_all(pairs.new_vectors().matrix(), seed)?;
    let lonely = upper_hump(&far);
    // A vector that is like no other, and that the map meets all the same, is no misfit.
    let level = median(&logs);
    let misfits: Vec<bool> = (0..n)
        .map(|row| {
            worst.as_ref().is_some_and(|hump| hump[row])
                || (lonely.as_ref().is_some_and(|hump| hump[row]) && logs[row] > level)
        })
        .collect();
    let count = misfits.iter().filter(|&&of| of).count();
    // A hump knows its pairs one by one, and chance only how many they are.
    residuals.finding = match chance {
        Some(chance) if chance.count(n) > 2 * count => Some(chance.finding(n, traits)),
        _ if count >= HUMP_MIN => Some(misfits_finding(("", count, n), described(&misfits, traits, "them"))),
        _ => None,
    };
    Ok(residuals)
}

/// Words the finding of `count` in `n` pairs that fit as badly as chance, with a description of these.
/// `about` comes before the count, where that is estimated.
fn misfits_finding((about, count, n): (&str, usize, usize), description: Option<String>) -> Finding {
    let description = description.map_or(String::new(), |text| format!("; {text}"));
    let message = format!(
        "{about}{count} of {n} pairs fit as badly as chance: their new vectors are unlike those of similar items{description}."
    );
    Finding::warning(FindingCode::Misfits, message)
        .may_mean(
            "Their new vectors may have been made from other content: cut, empty or mixed up, or rows of one side are shifted or swapped.",
        )
        .remedy("Look at these items: bring both sides into one order, embed them again or leave them out.")
        .evidence(&[("misfits", count as f64), ("pairs", n as f64)])
}

/// Pairs of which a part is paired by chance, with the new vectors of other items.
struct Chance {
    /// Pairs that were compared with each other, increasing.
    rows: Vec<usize>,
    /// Whether each of them is far: most new vectors of the others are nearer to its output than its own.
    is_far: Vec<bool>,
}

impl Chance {
    /// Looks for pairs by chance in the raw outputs `[n, d_new]` of a map that was not fitted on them. `None`
    /// where no more pairs are far than may be far among sound ones.
    ///
    /// Of pairs by chance a half is far; of sound pairs, the fewer the better a map is. Where a part u of
    /// them is unfound, with more than 15 % of the others nearer, up to 0.6 u² of all sound pairs are far.
    /// Samples of real galleries stay below that, also after noise has spoilt their old vectors. Where
    /// hardly any pair is found, there is nothing to tell the others from.
    fn find(pairs: &Pairs, raw: &Matrix, seed: u64) -> Result<Option<Self>> {
        const NEARER_MAX: f64 = 0.15;
        const UNFOUND_MAX: f64 = 0.7;
        const FAR_SOUND: f64 = 0.6;
        /// Smallest part of the pairs by which more are far: one pair by chance in twenty gives as much.
        /// `ERRORS` is the smallest number of standard errors.
        const EXCESS_MIN: f64 = 0.025;
        const ERRORS: f64 = 1.5;
        let mut rows = shuffled(pairs.len(), seed);
        rows.truncate(ITEMS_MAX);
        rows.sort_unstable();
        let new = pairs.new_vectors().matrix().select(&rows);
        let shares = guards::shares_nearer(&directions(&raw.select(&rows)), &directions(&new))?;
        let count = rows.len() as f64;
        let above = |share: f64| shares.iter().filter(|&&nearer| nearer > share).count() as f64;
        let unfound = above(NEARER_MAX) / count;
        let far_sound = FAR_SOUND * unfound.powi(2) * count;
        let excess_min = (EXCESS_MIN * count).max(ERRORS * far_sound.sqrt()).max(HUMP_MIN as f64);
        let is_more = unfound <= UNFOUND_MAX && above(0.5) - far_sound >= excess_min;
        let is_far = shares.iter().map(|&nearer| nearer > 0.5).collect();
        Ok(is_more.then_some(Self { rows, is_far }))
    }

    /// Returns the pairs that are far.
    fn far(&self) -> Vec<usize> {
        self.rows.iter().zip(&self.is_far).filter(|(_, is_far)| **is_far).map(|(&row, _)| row).collect()
    }

    /// Estimates the number of pairs by chance among all `n`: twice that of the far ones.
    fn count(&self, n: usize) -> usize {
        (2 * self.far().len() * n / self.rows.len()).min(n)
    }

    /// Returns whether the far pairs are no kind: enough for a map of their own, which finds them no better.
    fn is_no_kind(&self, pairs: &Pairs, seed: u64, progress: &Progress) -> Result<bool> {
        let far_pairs = pairs.select(&self.far());
        if far_pairs.len() < KIND_MIN {
            return Ok(false);
        }
        let outputs = directions(&outputs_of_own_map(&far_pairs, seed, progress)?);
        Ok(!guards::finds_own(&outputs, &directions(far_pairs.new_vectors().matrix()))?)
    }

    /// Words the finding about all `n` pairs, whose traits are given.
    fn finding(&self, n: usize, traits: &[Trait]) -> Finding {
        let traits: Vec<Trait> =
            traits.iter().filter(|of| of.len() == n).map(|of| of.select(&self.rows)).collect();
        let farthest = format!("the {} farthest", self.far().len());
        misfits_finding(("About ", self.count(n), n), described(&self.is_far, &traits, &farthest))
    }
}

/// Returns rows `[n, d]` about their mean, at length 1. An output is short where its map is unsure, and short
/// vectors are near to whatever is short.
fn directions(rows: &Matrix) -> Matrix {
    let means = column_means(rows);
    let mut unit = Matrix::from_fn(rows.rows(), rows.columns(), |row, column| {
        (f64::from(rows.row(row)[column]) - means[column]) as f32
    });
    unit.normalise_rows();
    unit
}

/// Returns the logs of squared errors; the least is that of a billionth of their mean.
fn logs(errors: &[f64]) -> Vec<f64> {
    let mean = errors.iter().sum::<f64>() / errors.len().max(1) as f64;
    errors.iter().map(|&error| error.max((1e-9 * mean).max(f64::MIN_POSITIVE)).ln()).collect()
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Returns the log of how far every vector is from its five nearest among (some of) the others.
fn far_from_all(new: &Matrix, seed: u64) -> Result<Vec<f64>> {
    const NEIGHBOURS: usize = 5;
    let mut anchors = shuffled(new.rows(), seed);
    anchors.truncate(ITEMS_MAX);
    let search = NearestAnchors::new(&new.select(&anchors))?;
    let nearest = search.search(new, NEIGHBOURS, |row, anchor| anchors[anchor] == row)?;
    let mean = |near: &Vec<(f64, usize)>| {
        near.iter().map(|(distance, _)| distance * distance).sum::<f64>() / near.len().max(1) as f64
    };
    Ok(logs(&nearest.iter().map(mean).collect::<Vec<_>>()))
}

/// Returns which values stand on a hump of their own above the others; `None` where none do.
///
/// A mixture of two normal distributions is fitted by expectation maximisation, from several beginnings, the
/// smallest hump first. The first one that is a hump counts: the best mixture of all may describe something
/// else about the lower values. No set of sound pairs that was looked at came near to what a hump has to be.
fn upper_hump(values: &[f64]) -> Option<Vec<bool>> {
    /// Largest share of all values that a hump may have.
    const SHARE_MAX: f64 = 0.3;
    /// Smallest distance of the two means in units of the root mean square of their spreads (Ashman's D).
    const APART_MIN: f64 = 3.2;
    /// Smallest gain by which the information criterion of Bayes prefers two humps to one.
    const GAIN_MIN: f64 = 20.0;
    const ROUNDS: usize = 100;
    /// Gain in likelihood a value below which a round is the last one.
    const SETTLED: f64 = 1e-9;
    const SPREAD_MIN: f64 = 1e-3;
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / n;
    if variance < 1e-12 {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let alone = -0.5 * n * (variance.ln() + 1.0);
    'beginnings: for below in [0.99, 0.97, 0.93, 0.9, 0.8, 0.65] {
        let threshold = sorted[((n * below) as usize).min(values.len() - 1)];
        let mut upper: Vec<f64> =
            values.iter().map(|&value| f64::from(u8::from(value > threshold))).collect();
        let (mut likelihood, mut means, mut variances, mut share) = (0.0, [0.0; 2], [0.0; 2], 0.0);
        for _ in 0..ROUNDS {
            let weight: f64 = upper.iter().sum();
            if weight < HUMP_MIN as f64 / 2.0 || n - weight < HUMP_MIN as f64 {
                continue 'beginnings;
            }
            share = weight / n;
            let weights = [n - weight, weight];
            let weight_on = |hump: usize, row: usize| if hump == 1 { upper[row] } else { 1.0 - upper[row] };
            for hump in 0..2 {
                means[hump] = (0..values.len()).map(|row| weight_on(hump, row) * values[row]).sum::<f64>()
                    / weights[hump];
                let spread: f64 = (0..values.len())
                    .map(|row| weight_on(hump, row) * (values[row] - means[hump]).powi(2))
                    .sum();
                variances[hump] = (spread / weights[hump]).max(SPREAD_MIN * variance);
            }
            let before = std::mem::replace(&mut likelihood, 0.0);
            for (value, upper) in values.iter().zip(&mut upper) {
                let log = |hump: usize| {
                    (weights[hump] / n).ln()
                        - 0.5 * (variances[hump].ln() + (value - means[hump]).powi(2) / variances[hump])
                };
                let (low, high) = (log(0), log(1));
                let largest = low.max(high);
                let total = largest + (power_of_e(low - largest) + power_of_e(high - largest)).ln();
                *upper = power_of_e(high - total);
                likelihood += total;
            }
            if (likelihood - before).abs() < SETTLED * n {
                break;
            }
        }
        // Three more numbers describe two humps than one.
        let gain = 2.0 * (likelihood - alone) - 3.0 * n.ln();
        let apart = (means[1] - means[0]) / (0.5 * (variances[0] + variances[1])).sqrt();
        if share <= SHARE_MAX && apart >= APART_MIN && gain >= GAIN_MIN {
            // Values below the lower mean do not count, though the wider distribution may reach them.
            let hump: Vec<bool> =
                values.iter().zip(&upper).map(|(&value, &upper)| upper > 0.5 && value > means[0]).collect();
            if hump.iter().filter(|&&of| of).count() >= HUMP_MIN {
                return Some(hump);
            }
        }
    }
    None
}

/// Words the finding of old vectors of two kinds.
fn two_kinds_finding(
    pairs: &Pairs,
    kinds: &Kinds,
    errors: &[f64],
    (geometry, traits, has_own_maps): (&Geometry, &[Trait], bool),
    seed: u64,
    progress: &Progress,
) -> Result<Finding> {
    let n = pairs.len();
    let percent = |part: f64| (100.0 * part).round();
    let mut message = "The old vectors are of two kinds".to_owned();
    let mut evidence = vec![
        ("nearer_within", percent(kinds.within)),
        ("nearer_across", percent(kinds.across)),
        ("pairs", n as f64),
    ];
    let mut remedy = "Find out which vectors another model or another setting made, and upgrade each kind as a gallery of its own.";
    if let Some(small) = &kinds.small {
        let count = small.iter().filter(|&&of| of).count();
        message += &format!(": {count} of {n} pairs are of the smaller one");
        evidence.push(("of_small_kind", count as f64));
        if let Some(who) = described(small, traits, "them") {
            message += &format!("; {who}");
            remedy =
                "Split the gallery by what separates them, and upgrade each kind as a gallery of its own.";
        }
        if let Some(times) = times_worse_than_its_own_map(pairs, small, errors, geometry, seed, progress)? {
            message += &format!("; a map of its own fits it {times:.1} times as well");
            evidence.push(("times", times));
        }
    }
    message += &format!(
        ". Of similar items, two of one kind have {}% of all others between them in the old space, and two of different kinds \
         {}%, as any two items have.",
        percent(kinds.within),
        percent(kinds.across)
    );
    if has_own_maps {
        // σ² and the forecast are those of the kinds as they are mixed among the pairs.
        return Ok(Finding::note(FindingCode::TwoKinds, message)
            .may_mean("Each kind is mapped by a map of its own; the old vector alone tells which.")
            .evidence(&evidence));
    }
    Ok(Finding::warning(FindingCode::TwoKinds, message)
        .may_mean("One map cannot serve both, and what is forecast holds for neither alone.")
        .remedy(remedy)
        .evidence(&evidence))
}

/// Returns how many times the error of its own map the error of the pairs of a kind is, where its own map
/// does clearly better.
fn times_worse_than_its_own_map(
    pairs: &Pairs,
    kind: &[bool],
    errors: &[f64],
    geometry: &Geometry,
    seed: u64,
    progress: &Progress,
) -> Result<Option<f64>> {
    /// Largest part of the error of all pairs' map that the kind's own map may leave.
    const LEFT_MAX: f64 = 0.85;
    /// Largest part of the variance of the kind's new vectors that its own map may leave.
    const UNEXPLAINED_MAX: f64 = 0.97;
    let mut rows: Vec<usize> = (0..pairs.len()).filter(|&row| kind[row]).collect();
    if rows.len() < KIND_MIN {
        return Ok(None);
    }
    if rows.len() > ITEMS_MAX {
        rows = shuffled(rows.len(), seed).into_iter().take(ITEMS_MAX).map(|place| rows[place]).collect();
        rows.sort_unstable();
    }
    let pairs_of_kind = pairs.select(&rows);
    let raw = outputs_of_own_map(&pairs_of_kind, seed, progress)?;
    let new = pairs_of_kind.new_vectors().matrix();
    let sum = |errors: Vec<f64>| errors.into_iter().sum::<f64>();
    let unexplained = sum(true_errors(new, &raw)) / variance(new).max(f64::MIN_POSITIVE);
    let of_own = sum(true_errors(new, &geometry.conformed(raw)));
    let of_all: f64 = rows.iter().map(|&row| errors[row]).sum();
    let is_better = of_own <= LEFT_MAX * of_all && unexplained <= UNEXPLAINED_MAX;
    Ok(is_better.then(|| of_all / of_own.max(f64::MIN_POSITIVE)))
}

/// Returns raw outputs `[n, d_new]` of a ridge map that is fitted on these pairs alone, each without its fold.
fn outputs_of_own_map(pairs: &Pairs, seed: u64, progress: &Progress) -> Result<Matrix> {
    const FOLDS: usize = 5;
    let fold = folds(pairs.len(), FOLDS, seed);
    let without = ridge::fit_leaving_out(pairs, None, &ridge::PENALTIES, progress)?.1;
    without_folds(&without, pairs, &fold, progress)
}

/// Sums the squared distances from the mean.
fn variance(rows: &Matrix) -> f64 {
    let means = column_means(rows);
    let squared_distance = |row: usize| {
        rows.row(row).iter().zip(&means).map(|(&value, mean)| (f64::from(value) - mean).powi(2)).sum::<f64>()
    };
    (0..rows.rows()).map(squared_distance).sum()
}

/// Describes the pairs on the hump, named `whom`, by the trait that separates them best from the others.
fn described(hump: &[bool], traits: &[Trait], whom: &str) -> Option<String> {
    let texts = traits.iter().filter(|of| of.len() == hump.len()).filter_map(|of| match &of.values {
        TraitValues::Names(values) => by_name(&of.name, values, (hump, whom)),
        TraitValues::Numbers(values) => by_number(&of.name, values, (hump, whom)),
    });
    // The first of equals: callers put the plainest trait first.
    texts.reduce(|best, next| if next.0 > best.0 + 1e-9 { next } else { best }).map(|(_, text)| text)
}

/// Smallest difference by which a trait has to separate: the part of the hump that it holds, less the part of
/// the others.
const SEPARATES_MIN: f64 = 0.6;

fn by_name(name: &str, values: &[Option<String>], (hump, whom): (&[bool], &str)) -> Option<(f64, String)> {
    let mut counts = std::collections::BTreeMap::<&str, [f64; 2]>::new();
    for (value, &of) in values.iter().zip(hump) {
        if let Some(value) = value {
            counts.entry(value).or_default()[usize::from(of)] += 1.0;
        }
    }
    let on = hump.iter().filter(|&&of| of).count() as f64;
    let off = hump.len() as f64 - on;
    let (value, [count_off, count_on]) = counts
        .into_iter()
        .map(|(value, counts)| (counts[1] / on - counts[0] / off, (value, counts)))
        .reduce(|best, next| if next.0 > best.0 { next } else { best })
        .filter(|(separates, _)| *separates >= SEPARATES_MIN)?
        .1;
    Some((
        count_on / on - count_off / off,
        format!("{count_on} of {whom} have the {name} {value:?}, and {count_off} of the others"),
    ))
}

fn by_number(name: &str, values: &[f64], (hump, whom): (&[bool], &str)) -> Option<(f64, String)> {
    let mut order: Vec<usize> = (0..values.len()).filter(|&row| values[row].is_finite()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let on = hump.iter().filter(|&&of| of).count() as f64;
    let off = hump.len() as f64 - on;
    // The range of values that holds most of the hump and least of the others: the largest sum of neighbours,
    // where one of the hump counts 1/on and another −1/off. Values that are equal go together.
    let (mut best, mut sum, mut first) = ((0.0, 0, 0), 0.0, 0);
    let mut at = 0;
    while at < order.len() {
        let value = values[order[at]];
        let next = at + order[at..].iter().take_while(|&&row| values[row] == value).count();
        if sum <= 0.0 {
            (sum, first) = (0.0, at);
        }
        sum += order[at..next].iter().map(|&row| if hump[row] { 1.0 / on } else { -1.0 / off }).sum::<f64>();
        if sum > best.0 {
            best = (sum, first, next - 1);
        }
        at = next;
    }
    let (separates, first, last) = best;
    if separates < SEPARATES_MIN {
        return None;
    }
    let of_hump = order[first..=last].iter().filter(|&&row| hump[row]).count();
    let (low, high) = (values[order[first]], values[order[last]]);
    let text = if last + 1 == order.len() && first > 0 {
        format!("{of_hump} of {whom} have the largest {name} ({low} and more)")
    } else if first == 0 && last + 1 < order.len() {
        format!("{of_hump} of {whom} have the smallest {name} (up to {high})")
    } else {
        format!("{of_hump} of {whom} have a {name} from {low} to {high}")
    };
    Some((separates, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::test_data::{affine, pairs as make, random_matrix};
    use crate::uncertainty_fit::cross_fit;
    use rehang_core::adapter::Map;

    /// Makes `n` pairs with an exactly linear map and noise of this size.
    fn noisy(n: usize, size: f32) -> Pairs {
        let (old, noise) = (random_matrix(n, 8, 1), random_matrix(n, 12, 3));
        let new = affine(&old, &random_matrix(12, 8, 2), &[0.5; 12]);
        let new = Matrix::from_fn(n, 12, |r, c| new.row(r)[c] + size * noise.row(r)[c]);
        make(old, new, None)
    }

    /// Makes `n` pairs with an exactly linear map and some noise; the first `small` old vectors are turned.
    fn turned(n: usize, small: usize) -> Pairs {
        let pairs = noisy(n, 0.3);
        let old = pairs.old().matrix();
        let old =
            Matrix::from_fn(n, 8, |r, c| if r < small { -old.row(r)[(c + 3) % 8] } else { old.row(r)[c] });
        make(old, pairs.new_vectors().matrix().clone(), None)
    }

    fn seen(pairs: &Pairs, traits: &[Trait]) -> Residuals {
        let progress = Progress::default();
        let fit = |pairs: &Pairs, _: &[usize]| -> Result<Map> { Ok(ridge::fit(pairs, &progress)?.map) };
        let raw = cross_fit(pairs, &folds(pairs.len(), 5, 0), fit, &progress).unwrap();
        let kinds = kinds_of_pairs(pairs, 0, &progress).unwrap();
        examine(pairs, (&raw, &Geometry::Raw), (kinds, false), traits, 0, &progress).unwrap()
    }

    #[test]
    fn pairs_of_one_kind_are_passed_in_silence() {
        assert!(seen(&turned(900, 0), &[]).finding.is_none());
        assert!(seen(&turned(60, 10), &[]).finding.is_none(), "too few to say");
        for noise in [1.0, 2.0, 3.0] {
            let finding = seen(&noisy(900, noise), &[]).finding;
            assert!(finding.is_none(), "noise of {noise}: {finding:?}");
        }
        let unrelated = make(random_matrix(900, 8, 1), random_matrix(900, 12, 2), None);
        assert!(seen(&unrelated, &[]).finding.is_none(), "nothing is found, and nothing told apart");
    }

    #[test]
    fn two_kinds_are_told_and_what_separates_them() {
        let pairs = turned(900, 120);
        let traits = [
            Trait::numbers("source length", (0..900).map(|row| f64::from(row % 7)).collect()),
            Trait::numbers("key", (0..900).map(f64::from).collect()),
            Trait::names("label", (0..900).map(|row| Some((row % 3).to_string())).collect()),
        ];
        let residuals = seen(&pairs, &traits);
        let finding = residuals.finding.unwrap();
        assert_eq!(finding.code, FindingCode::TwoKinds);
        assert!(finding.seen.contains("smallest key"), "{finding}");
        let kind = residuals.small_kind.unwrap();
        let right = (0..900).filter(|&row| kind[row] == (row < 120)).count();
        assert!(right > 850, "{right}");
    }

    #[test]
    fn mixed_up_pairs_are_no_kind() {
        let pairs = turned(900, 0);
        // New vectors of every tenth pair are dealt out among these pairs.
        let (mut from, order) = ((0..900).collect::<Vec<usize>>(), shuffled(90, 4));
        order.iter().enumerate().for_each(|(place, &other)| from[10 * place + 3] = 10 * other + 3);
        let new = pairs.new_vectors().matrix().select(&from);
        let mixed_up = make(pairs.old().matrix().clone(), new, None);
        assert_eq!(seen(&mixed_up, &[]).finding.unwrap().code, FindingCode::Misfits);
    }

    /// The map leaves so much that no error stands out.
    #[test]
    fn rows_that_are_shifted_or_swapped_are_counted_and_their_place_is_named() {
        let pairs = noisy(900, 3.0);
        let order = shuffled(900, 5);
        let key = Trait::numbers("key", order.iter().map(|&place| place as f64).collect());
        let place_of_row = |row: usize| order[row];
        let row_of_place = |place: usize| order.iter().position(|&of_row| of_row == place).unwrap();
        let shifted = |place: usize| if place == 300 { 479 } else { place - 1 };
        let swapped = |place: usize| if place < 390 { place + 90 } else { place - 90 };
        for moved in [shifted as fn(usize) -> usize, swapped] {
            let from: Vec<usize> = (0..900)
                .map(|row| match place_of_row(row) {
                    place @ 300..480 => row_of_place(moved(place)),
                    _ => row,
                })
                .collect();
            let new = pairs.new_vectors().matrix().select(&from);
            let moved_pairs = make(pairs.old().matrix().clone(), new, None);
            let finding = seen(&moved_pairs, std::slice::from_ref(&key)).finding.unwrap();
            assert_eq!(finding.code, FindingCode::Misfits);
            assert!(finding.seen.starts_with("About "), "{finding}");
            assert!((120.0..=260.0).contains(&finding.evidence[0].1), "{finding}");
            let (_, range) = finding.seen.split_once(" farthest have a key from ").unwrap();
            let bounds = range.trim_end_matches('.').split(" to ");
            let bounds: Vec<f64> = bounds.map(|bound| bound.parse().unwrap()).collect();
            assert!((270.0..320.0).contains(&bounds[0]) && (460.0..510.0).contains(&bounds[1]), "{finding}");
        }
    }

    #[test]
    fn pairs_that_no_map_could_fit_are_counted_and_described() {
        let pairs = turned(900, 0);
        let noise = random_matrix(900, 12, 9);
        let is_bad = |row: usize| row % 33 == 1;
        let new = pairs.new_vectors().matrix();
        let new =
            Matrix::from_fn(900, 12, |r, c| if is_bad(r) { 12.0 * noise.row(r)[c] } else { new.row(r)[c] });
        let pairs = make(pairs.old().matrix().clone(), new, None);
        let length = Trait::numbers(
            "source length",
            (0..900).map(|r| if is_bad(r) { 9e3 } else { (r % 90) as f64 }).collect(),
        );
        let label = Trait::names("label", (0..900).map(|r| is_bad(r).then(|| "scan".to_owned())).collect());
        for (traits, text) in
            [(vec![length], "largest source length (9000 and more)"), (vec![label], "label \"scan\"")]
        {
            let finding = seen(&pairs, &traits).finding.unwrap();
            assert_eq!(finding.code, FindingCode::Misfits);
            assert!((26.0..=28.0).contains(&finding.evidence[0].1), "{finding}");
            assert!(finding.seen.contains("as badly as chance") && finding.seen.contains(text), "{finding}");
        }
    }
}
