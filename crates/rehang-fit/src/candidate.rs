//! Methods that can be compared with each other: how each is fitted, and what it gives.

use std::collections::BTreeMap;

use rehang_core::adapter::{Geometry, InputScaling, Map, Uncertainty};
use rehang_core::{Matrix, Pairs, Progress, Result};

use crate::closed_form::{ClosedForm, do_nothing, low_rank, procrustes, ridge};
use crate::head_fit::class_numbers;
use crate::kernel_ridge::fit_kernel_ridge;
use crate::left_out::LeavesOut;
use crate::method::Method;
use crate::per_kind;

/// Result of a method: a map, with everything that the method knows of it itself.
#[derive(Debug)]
pub(crate) struct FittedMap {
    /// The map itself.
    pub map: Map,
    /// Choices that were made, by name, for the adapter's record.
    pub choices: BTreeMap<String, String>,
    /// Way in which outputs conform, where the method says so itself (the published recipe: raw); `None`
    /// measures it.
    pub geometry: Option<Geometry>,
    /// Out-of-fold outputs, where the method has them for free; `None` cross-fits.
    pub evidence: Option<OwnEvidence>,
    /// σ², where the method learns it together with the map; `None` learns it from out-of-fold residuals.
    pub uncertainty: Option<Uncertainty>,
    /// Outputs that the map would give without some of the pairs; `None` where only fits without them can
    /// tell.
    pub without: Option<Box<dyn LeavesOut>>,
}

impl From<ClosedForm> for FittedMap {
    fn from(closed: ClosedForm) -> Self {
        let ClosedForm { map, choices } = closed;
        Self { map, choices, geometry: None, evidence: None, uncertainty: None, without: None }
    }
}

impl FittedMap {
    /// Returns a closed form, with its outputs without some pairs.
    fn leaving_out((closed, without): (ClosedForm, impl LeavesOut + 'static)) -> Self {
        Self { without: Some(Box::new(without)), ..closed.into() }
    }
}

/// Out-of-fold outputs that a method has without fitting again.
#[derive(Debug, Clone)]
pub(crate) struct OwnEvidence {
    /// Pairs that the outputs are about, increasing.
    pub rows: Vec<usize>,
    /// Raw outputs with items left out one by one, `[rows, d_new]`.
    pub items_left_out: Matrix,
    /// Raw outputs with whole groups left out, `[rows, d_new]`.
    pub groups_left_out: Option<Matrix>,
}

/// Fits one method on pairs. The second argument is the group (class or cluster) of every pair.
pub(crate) type FitFunction<'a> = Box<dyn Fn(&Pairs, &[i64], &Progress) -> Result<FittedMap> + Sync + 'a>;

/// A method that can be compared with others.
pub(crate) struct Candidate<'a> {
    /// Name of the method.
    pub method: Method,
    /// Whether a fit takes long, so that it is cross-fitted with items left out only and not with groups as
    /// well.
    pub slow: bool,
    /// Fit of the method. It must give the same map for the same pairs.
    pub fit: FitFunction<'a>,
    /// Number of multiplications of all its fits: the comparison, the map that is kept and its σ² together;
    /// `None` where they take seconds.
    pub cost: Option<f64>,
    /// Whether a fit tells what it would give without some of its pairs ([`FittedMap::without`]).
    pub leaves_out: bool,
}

/// Lists the methods with a formula, the simplest first.
pub(crate) fn closed_form_candidates(seed: u64) -> Vec<Candidate<'static>> {
    type Fit = fn(&Pairs, &[i64], u64, &Progress) -> Result<FittedMap>;
    let quick = |method, leaves_out, fit: Fit| Candidate {
        method,
        slow: false,
        fit: Box::new(move |pairs, groups, progress| fit(pairs, groups, seed, progress)),
        cost: None,
        leaves_out,
    };
    vec![
        quick(Method::DoNothing, false, |pairs, _, _, _| {
            Ok(do_nothing::fit(pairs.old().dimension(), pairs.new_vectors().dimension()).into())
        }),
        quick(Method::Procrustes, true, |pairs, _, _, progress| {
            procrustes::fit_leaving_out(pairs, progress).map(FittedMap::leaving_out)
        }),
        quick(Method::Ridge, true, |pairs, _, _, progress| {
            let (closed, without) = ridge::fit_leaving_out(pairs, None, &ridge::PENALTIES, progress)?;
            Ok(FittedMap::leaving_out((closed, without)))
        }),
        quick(Method::LowRank, true, |pairs, _, seed, progress| {
            low_rank::fit_leaving_out(pairs, seed, progress).map(FittedMap::leaving_out)
        }),
        // Width and penalty are chosen by classes that the fit never saw; chosen among all classes, they
        // would know the held-out ones.
        quick(Method::KernelRidge, false, kernel),
    ]
}

/// Returns the method for old vectors of two kinds; its fit fails where a part of the pairs does not show
/// them.
pub(crate) fn per_kind_candidate(seed: u64) -> Candidate<'static> {
    Candidate {
        method: Method::PerKind,
        slow: false,
        fit: Box::new(move |pairs, groups, progress| per_kind::fit(pairs, groups, seed, progress)),
        cost: None,
        leaves_out: false,
    }
}

/// Numbers the groups; a pair without a known group is a group of its own.
pub(crate) fn group_numbers(groups: &[i64]) -> Vec<usize> {
    let (numbers, class_labels) = class_numbers(groups);
    let mut next = class_labels.len();
    let number = |number: Option<usize>| {
        number.unwrap_or_else(|| {
            next += 1;
            next - 1
        })
    };
    numbers.into_iter().map(number).collect()
}

/// Returns whether groups are more than one: a group is judged by what was learned from the others.
pub(crate) fn several(groups: &[usize]) -> bool {
    groups.windows(2).any(|two| two[0] != two[1])
}

/// Fits kernel ridge with its exact leave-one-out outputs.
fn kernel(pairs: &Pairs, groups: &[i64], seed: u64, progress: &Progress) -> Result<FittedMap> {
    let groups = group_numbers(groups);
    let (old, new) = (pairs.old().matrix(), pairs.new_vectors().matrix());
    let several_groups = several(&groups).then_some(&groups[..]);
    let fitted = fit_kernel_ridge(old, new, several_groups, InputScaling::UnitLength, seed, progress)?;
    let centres = fitted.centres.clone();
    let targets = new.select(&centres);
    let centre_groups: Vec<usize> = centres.iter().map(|&row| groups[row]).collect();
    let evidence = OwnEvidence {
        items_left_out: fitted.leave_one_out(&targets),
        groups_left_out: several(&centre_groups).then(|| fitted.leave_group_out(&targets, &centre_groups)),
        rows: centres,
    };
    let choices = BTreeMap::from([
        ("gamma".into(), fitted.gamma.to_string()),
        ("lambda".into(), fitted.lambda.to_string()),
        ("centres".into(), evidence.rows.len().to_string()),
    ]);
    Ok(FittedMap {
        map: fitted.map,
        choices,
        geometry: None,
        evidence: Some(evidence),
        uncertainty: None,
        without: None,
    })
}
