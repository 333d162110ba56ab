//! Fits a map for each of two kinds of old vectors, and a gate that tells them apart by the old vector alone.
//!
//! 1. [`two_kinds`] colours the pairs, by old and new vectors.
//! 2. The gate is kernel ridge regression from the old vector on the kind: one column a kind, 1 for its pairs
//!    and 0 for all others. Its outputs for pairs left out go through a multinomial logistic regression,
//!    which makes likelihoods of them.
//! 3. The gate, without a pair, may be sure that the pair is of another kind than its colour. The pair then
//!    becomes one of that kind, and the gate is fitted anew.
//! 4. Each kind's map is the kernel ridge regression of its pairs.
//!
//! The pairs that have the new model's vector already are the one kind, where they are many ([`same`]): its
//! map is the identity, and steps 1 and 3 are left out.
//!
//! One kernel map for both kinds would keep a width and a penalty that serve neither, and old vectors of one
//! kind would disturb those of the other. `laboratory/bench/kinds/run.py` measures how much;
//! `laboratory/bench/runs/kinds.md` has the table.

use std::collections::BTreeMap;

use rehang_core::adapter::{Dense, InputScaling, KernelExpansion, Map, PerKind};
use rehang_core::{Error, Head, Matrix, Pairs, Progress, Result};

use crate::candidate::{FittedMap, group_numbers, several};
use crate::folds::{LeftOut, shuffled};
use crate::head_fit::fit_head;
use crate::kernel_ridge::{KernelRidge, fit_kernel_ridge, solved};
use crate::kinds::two_kinds;
use crate::left_out::LeavesOut;
use crate::linear_algebra::scaled;
use crate::method::Method;
use crate::same;

/// Smallest number of pairs that a kind's own map is fitted on.
pub(crate) const KIND_MIN: usize = 20;
/// Smallest number of a kind's pairs that are left where others are left out; a kind with fewer goes without
/// a map.
const KIND_LEFT_MIN: usize = 5;
/// Largest number of pairs that the gate is fitted on: which kind a vector is of is a simpler question than
/// where it goes.
const GATE_PAIRS_MAX: usize = 2_000;
/// Number of rounds in which pairs take the kind that the gate gives them.
const ROUNDS: usize = 2;

/// Settings γ and λ of a kernel.
type Settings = (f64, f64);

/// Fits a map for each kind of old vectors.
///
/// # Errors
///
/// [`rehang_core::ErrorKind::MissingInput`] where the pairs do not show two kinds that can be told apart, with at
/// least twenty pairs each; as [`fit_kernel_ridge`].
pub(crate) fn fit(pairs: &Pairs, groups: &[i64], seed: u64, progress: &Progress) -> Result<FittedMap> {
    let old = scaled(pairs.old().matrix(), InputScaling::UnitLength);
    let same = same::kinds(pairs);
    let as_it_is = same.as_ref().map(|_| 1);
    let (kinds, gate) = match same {
        Some(same) => {
            let kinds: Vec<usize> = same.into_iter().map(usize::from).collect();
            let gate = Gate::fit(&old, &kinds, 2, None, seed, progress)?.settings;
            (kinds, gate)
        }
        None => by_neighbours(pairs, &old, seed, progress)?,
    };
    let all: Vec<usize> = (0..pairs.len()).collect();
    let groups = group_numbers(groups);
    let mut fit = PerKindFit { kinds, as_it_is, groups, gate: Some(gate), maps: vec![None; 2], seed };
    let (map, settings) = fit.on(&old, pairs.new_vectors().matrix(), &all, progress)?;
    fit.maps = settings;
    let listed = |setting: fn(Settings) -> f64| {
        let values = fit.maps.iter().flatten().map(|&settings| setting(settings).to_string());
        values.collect::<Vec<_>>().join(", ")
    };
    let pairs_of = (0..2).map(|kind| members(&fit.kinds, kind).len().to_string());
    let choices = BTreeMap::from([
        ("pairs of kinds".into(), pairs_of.collect::<Vec<_>>().join(", ")),
        ("gamma".into(), listed(|(gamma, _)| gamma)),
        ("lambda".into(), listed(|(_, lambda)| lambda)),
    ]);
    Ok(FittedMap {
        map,
        choices,
        geometry: None,
        evidence: None,
        uncertainty: None,
        without: Some(Box::new(fit)),
    })
}

/// Returns the kind of every pair by [`two_kinds`] and the gate, and the gate's settings.
fn by_neighbours(
    pairs: &Pairs,
    old: &Matrix,
    seed: u64,
    progress: &Progress,
) -> Result<(Vec<usize>, Settings)> {
    let of_one_kind = || Error::missing("old vectors of two kinds that can be told apart", Method::PerKind);
    let is_small = two_kinds(pairs, seed, progress)?.and_then(|kinds| kinds.small).ok_or_else(of_one_kind)?;
    let mut kinds: Vec<usize> = is_small.into_iter().map(usize::from).collect();
    let is_whole = |kinds: &[usize]| (0..2).all(|kind| members(kinds, kind).len() >= KIND_MIN);
    let mut gate = None;
    for _ in 0..ROUNDS {
        if !is_whole(&kinds) {
            return Err(of_one_kind());
        }
        let fitted = Gate::fit(old, &kinds, 2, gate, seed, progress)?;
        kinds = fitted.kinds(old, &kinds)?;
        gate = Some(fitted.settings);
    }
    gate.filter(|_| is_whole(&kinds)).map(|gate| (kinds, gate)).ok_or_else(of_one_kind)
}

fn members(kinds: &[usize], kind: usize) -> Vec<usize> {
    (0..kinds.len()).filter(|&row| kinds[row] == kind).collect()
}

/// Kinds of all pairs, and the settings that were chosen on all pairs; `None` where they are chosen at the
/// fit.
#[derive(Debug)]
struct PerKindFit {
    kinds: Vec<usize>,
    /// Kind whose old vectors are the new ones already.
    as_it_is: Option<usize>,
    /// Class or cluster of every pair, by which settings are chosen.
    groups: Vec<usize>,
    gate: Option<Settings>,
    maps: Vec<Option<Settings>>,
    seed: u64,
}

impl PerKindFit {
    /// Fits the map of some pairs, and returns it with the settings of each kind's map.
    fn on(
        &self,
        old: &Matrix,
        new: &Matrix,
        rows: &[usize],
        progress: &Progress,
    ) -> Result<(Map, Vec<Option<Settings>>)> {
        let of_kind = |kind: &usize| rows.iter().copied().filter(|&row| self.kinds[row] == *kind).collect();
        let present: Vec<(usize, Vec<usize>)> = (0..self.maps.len())
            .map(|kind| (kind, of_kind(&kind)))
            .filter(|(_, rows): &(usize, Vec<usize>)| rows.len() >= KIND_LEFT_MIN)
            .collect();
        let mut settings = vec![None; self.maps.len()];
        let mut maps = Vec::new();
        for (kind, rows) in &present {
            if self.as_it_is == Some(*kind) {
                maps.push(Map::from_layers(InputScaling::AsIs, Vec::new()));
                continue;
            }
            let (old, new) = (old.select(rows), new.select(rows));
            let groups: Vec<usize> = rows.iter().map(|&row| self.groups[row]).collect();
            let groups = several(&groups).then_some(&groups[..]);
            let fitted = kernel(&old, (&new, groups), self.maps[*kind], self.seed, progress)?;
            settings[*kind] = Some((fitted.gamma, fitted.lambda));
            maps.push(fitted.map);
        }
        if maps.len() < 2 {
            let map = maps.pop().ok_or_else(|| Error::empty("pairs"))?;
            return Ok((Map { input: InputScaling::UnitLength, ..map }, settings));
        }
        let mut of_rows: Vec<(usize, usize)> = Vec::new();
        for (number, (_, rows)) in present.iter().enumerate() {
            of_rows.extend(rows.iter().map(|&row| (row, number)));
        }
        of_rows.sort_unstable();
        let (rows, kinds): (Vec<usize>, Vec<usize>) = of_rows.into_iter().unzip();
        let gate = Gate::fit(&old.select(&rows), &kinds, maps.len(), self.gate, self.seed, progress)?.map();
        let zero = constant(vec![0.0; new.columns()], old.columns());
        let map = Map {
            per_kind: Some(Box::new(PerKind { gate, maps })),
            ..Map::from_layers(InputScaling::UnitLength, vec![zero])
        };
        Ok((map, settings))
    }
}

impl LeavesOut for PerKindFit {
    fn outputs(&self, pairs: &Pairs, splits: &[LeftOut], progress: &Progress) -> Result<Vec<Matrix>> {
        let old = scaled(pairs.old().matrix(), InputScaling::UnitLength);
        let of_split = |split: &LeftOut| {
            progress.check()?;
            let (map, _) = self.on(&old, pairs.new_vectors().matrix(), &split.fitted, progress)?;
            map.outputs(&pairs.old().matrix().select(&split.asked), None)
        };
        splits.iter().map(of_split).collect()
    }
}

/// Makes a layer that gives the same for every vector.
fn constant(bias: Vec<f32>, inputs: usize) -> Dense {
    Dense { weight: Matrix::zeros(bias.len(), inputs), bias, relu: false }
}

fn kernel(
    old: &Matrix,
    (targets, groups): (&Matrix, Option<&[usize]>),
    settings: Option<Settings>,
    seed: u64,
    progress: &Progress,
) -> Result<KernelRidge> {
    match settings {
        Some(settings) => solved((old, InputScaling::AsIs), targets, settings, seed, progress),
        None => fit_kernel_ridge(old, targets, groups, InputScaling::AsIs, seed, progress),
    }
}

/// Gate that tells kinds apart by the old vector.
struct Gate {
    kernel: KernelRidge,
    /// Pairs that the gate was fitted on, increasing.
    rows: Vec<usize>,
    /// Outputs of the kernel map for each of these pairs without it, `[rows, kinds]`.
    left_out: Matrix,
    /// Regression from outputs of the kernel map to the log of how likely each kind is.
    likely: Head,
    settings: Settings,
}

impl Gate {
    fn fit(
        old: &Matrix,
        kinds: &[usize],
        count: usize,
        settings: Option<Settings>,
        seed: u64,
        progress: &Progress,
    ) -> Result<Self> {
        let mut rows = shuffled(kinds.len(), seed ^ 0x6761_7465);
        rows.truncate(GATE_PAIRS_MAX);
        rows.sort_unstable();
        let targets =
            Matrix::from_fn(rows.len(), count, |row, kind| f32::from(u8::from(kinds[rows[row]] == kind)));
        let kernel = kernel(&old.select(&rows), (&targets, None), settings, seed, progress)?;
        let left_out = kernel.leave_one_out(&targets);
        let labels: Vec<i64> = rows.iter().map(|&row| kinds[row] as i64).collect();
        let likely = fit_head(&left_out, &labels, progress)?;
        let settings = (kernel.gamma, kernel.lambda);
        Ok(Self { kernel, rows, left_out, likely, settings })
    }

    /// Returns the kind of every pair: another one than `kinds` say where the gate is sure of that, the pair
    /// itself left out.
    fn kinds(&self, old: &Matrix, kinds: &[usize]) -> Result<Vec<usize>> {
        /// Likelihood from which on the gate is sure. Where old vectors leave the kind open, the colour knows
        /// more: it has seen the new vector too.
        const SURE: f64 = 0.8;
        let mut outputs = self.kernel.map.outputs(old, None)?;
        for (place, &row) in self.rows.iter().enumerate() {
            outputs.row_mut(row).copy_from_slice(self.left_out.row(place));
        }
        let kind = |row: usize| {
            let logits = self.logits(outputs.row(row), self.likely.bias());
            let is_sure = |kind: &usize| {
                let than = f64::from(logits[*kind]);
                let total: f64 = logits.iter().map(|&logit| (f64::from(logit) - than).exp()).sum();
                total.recip() > SURE
            };
            (0..logits.len()).find(is_sure).unwrap_or(kinds[row])
        };
        Ok((0..outputs.rows()).map(kind).collect())
    }

    fn logits(&self, outputs: &[f32], bias: &[f32]) -> Vec<f32> {
        let logit = |(kind, &bias): (usize, &f32)| {
            let products = self.likely.weight().row(kind).iter().zip(outputs);
            products.map(|(&weight, &value)| f64::from(weight) * f64::from(value)).sum::<f64>()
                + f64::from(bias)
        };
        bias.iter().enumerate().map(|kind| logit(kind) as f32).collect()
    }

    /// Returns the map from old vectors to logits: the regression behind the kernel map becomes a part of its
    /// numbers.
    fn map(self) -> Map {
        let map = &self.kernel.map;
        let count = self.likely.classes();
        let bias = map
            .mixer
            .first()
            .map_or_else(|| self.likely.bias().to_vec(), |mean| self.logits(&mean.bias, self.likely.bias()));
        let none = vec![0.0; count];
        let expansion = map.kernel.as_ref().map(|expansion| {
            let coefficients: Vec<Vec<f32>> = (0..expansion.coefficients.rows())
                .map(|centre| self.logits(expansion.coefficients.row(centre), &none))
                .collect();
            KernelExpansion {
                centres: expansion.centres.clone(),
                coefficients: Matrix::from_fn(coefficients.len(), count, |centre, kind| {
                    coefficients[centre][kind]
                }),
                gamma: expansion.gamma,
            }
        });
        let inputs = map.mixer.first().map_or(0, |mean| mean.weight.columns());
        Map { kernel: expansion, ..Map::from_layers(InputScaling::AsIs, vec![constant(bias, inputs)]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auto::fit_with;
    use crate::parameters::FitParameters;
    use crate::tests::test_data::{affine, pairs as make, random_matrix};
    use rehang_core::adapter::true_errors;
    use rehang_core::finding::FindingCode;

    /// Makes items in ten clusters, whose old vectors have a bent half of what the new ones have, and noise.
    /// Old vectors of the small kind are turned and moved. The noise of `seed`, and nothing else, differs.
    fn items(n: usize, seed: u64, is_small: impl Fn(usize) -> bool) -> Pairs {
        let (centres, within) = (random_matrix(10, 24, 1), random_matrix(n, 24, seed));
        let new = Matrix::from_fn(n, 24, |row, axis| centres.row(row % 10)[axis] + within.row(row)[axis]);
        let noise = random_matrix(n, 16, seed + 1);
        let old = affine(&new, &random_matrix(16, 24, 4), &[0.0; 16]);
        let old = Matrix::from_fn(n, 16, |row, axis| {
            let value = |axis: usize| (0.2 * old.row(row)[axis]).tanh() + 0.3 * noise.row(row)[axis];
            let sign = if axis.is_multiple_of(3) { -1.0 } else { 1.0 };
            if is_small(row) { sign * value((axis + 5) % 16) + 0.5 } else { value(axis) }
        });
        make(old, new, None)
    }

    fn every_fifth(row: usize) -> bool {
        row / 10 % 5 == 1
    }

    fn made(pairs: &Pairs) -> FittedMap {
        fit(pairs, &vec![-1; pairs.len()], 0, &Progress::default()).unwrap()
    }

    /// Returns the squared error of either kind.
    fn errors(map: &Map, pairs: &Pairs, is_small: impl Fn(usize) -> bool) -> [f64; 2] {
        let raw = map.outputs(pairs.old().matrix(), None).unwrap();
        let errors = true_errors(pairs.new_vectors().matrix(), &raw);
        let error_of =
            |kind: bool| (0..pairs.len()).filter(|&row| is_small(row) == kind).map(|row| errors[row]).sum();
        [error_of(false), error_of(true)]
    }

    #[test]
    fn each_kind_is_mapped_as_well_as_by_a_map_that_is_told_its_kind() {
        let (pairs, fresh_pairs) = (items(1_500, 2, every_fifth), items(600, 20, every_fifth));
        let map = made(&pairs).map;
        let old = scaled(fresh_pairs.old().matrix(), InputScaling::UnitLength);
        let logits = map.per_kind.as_ref().unwrap().gate.outputs(&old, None).unwrap();
        let right =
            (0..600).filter(|&row| (logits.row(row)[1] > logits.row(row)[0]) == every_fifth(row)).count();
        assert!(right > 590, "{right}");
        let one_map = |pairs: &Pairs| {
            let (old, new) = (pairs.old().matrix(), pairs.new_vectors().matrix());
            fit_kernel_ridge(old, new, None, InputScaling::UnitLength, 0, &Progress::default()).unwrap().map
        };
        let of_both = errors(&one_map(&pairs), &fresh_pairs, every_fifth);
        let told = [false, true].map(|kind| {
            let rows: Vec<usize> = (0..1_500).filter(|&row| every_fifth(row) == kind).collect();
            errors(&one_map(&pairs.select(&rows)), &fresh_pairs, every_fifth)[usize::from(kind)]
        });
        let by_kind = errors(&map, &fresh_pairs, every_fifth);
        for kind in 0..2 {
            assert!(
                by_kind[kind] < 1.08 * told[kind],
                "{kind}: {by_kind:?} where a map that is told leaves {told:?}"
            );
        }
        assert!(
            by_kind[1] < 0.95 * of_both[1] && by_kind[0] < of_both[0],
            "{by_kind:?} against {of_both:?} of one map"
        );
    }

    #[test]
    fn it_is_tried_where_there_are_two_kinds_and_kept_where_it_is_better() {
        let tried = |pairs: &Pairs| {
            let parameters = FitParameters::default();
            fit_with(pairs, None, &parameters, &[], &Progress::default()).unwrap()
        };
        let mixed = tried(&items(1_500, 2, every_fifth));
        assert_eq!(mixed.adapter.training.method, "per-kind");
        let finding = mixed.findings.iter().find(|finding| finding.code == FindingCode::TwoKinds).unwrap();
        assert!(finding.may_mean.contains("a map of its own") && finding.remedy.is_empty(), "{finding}");
        // σ² comes from pairs that neither the maps nor the gate had seen.
        let ratio = mixed.sigma.unwrap().calibration.ratio;
        assert!((0.9..1.1).contains(&ratio), "{ratio}");
        let sound = tried(&items(1_500, 2, |_| false));
        assert!(sound.selection.unwrap().rows.iter().all(|row| row.method != Method::PerKind));
        let parameters = FitParameters { method: Method::PerKind, ..FitParameters::default() };
        let error =
            fit_with(&items(1_500, 2, |_| false), None, &parameters, &[], &Progress::default()).unwrap_err();
        assert!(error.to_string().contains("old vectors of two kinds"), "{error}");
    }

    #[test]
    fn what_pairs_left_out_leave_is_a_fit_without_them() {
        let pairs = items(600, 2, every_fifth);
        let all: Vec<usize> = (0..600).collect();
        let large: Vec<usize> = all.iter().copied().filter(|&row| !every_fifth(row)).collect();
        let fit = PerKindFit {
            kinds: all.iter().map(|&row| usize::from(every_fifth(row))).collect(),
            as_it_is: None,
            groups: all.clone(),
            gate: Some((0.5, 0.1)),
            maps: vec![Some((0.25, 0.1)), Some((0.5, 0.03))],
            seed: 0,
        };
        // Pairs of one kind alone leave only its map.
        let splits = [all.clone(), large].map(|fitted| LeftOut { fitted, asked: all.clone() });
        let outputs = fit.outputs(&pairs, &splits, &Progress::default()).unwrap();
        let old = scaled(pairs.old().matrix(), InputScaling::UnitLength);
        let (map, settings) = fit.on(&old, pairs.new_vectors().matrix(), &all, &Progress::default()).unwrap();
        assert_eq!(settings, fit.maps);
        let is_same = |rows: &Matrix, map: &Map, old: &Matrix| *rows == map.outputs(old, None).unwrap();
        assert!(is_same(&outputs[0], &map, pairs.old().matrix()));
        assert!(is_same(&outputs[1], &map.per_kind.unwrap().maps[0], &old));
    }
}
