//! Verification 1:1: are these two templates the same person?

use rayon::prelude::*;
use serde::Serialize;

use rehang_core::check::expect_count;
use rehang_core::{Error, ErrorKind, Matrix, Result};

use crate::rates::{allowed, check_rates};

/// Number of pairs that a thread scores at a time.
const CHUNK: usize = 4096;

/// Result of a list of pairs, scored and judged at several false acceptance rates.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verification {
    /// Number of pairs of the same person.
    pub genuine: usize,
    /// Number of pairs of different persons.
    pub impostors: usize,
    /// Operating point of each rate, in the order in which the rates were given.
    pub points: Vec<OperatingPoint>,
}

/// True acceptance rate at one false acceptance rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct OperatingPoint {
    /// False acceptance rate that was asked for, 0 to 1.
    pub far: f64,
    /// True acceptance rate in percent; `None` where there are fewer than 1/FAR impostors, so that the rate
    /// is below what the list can show.
    pub tar: Option<f64>,
    /// False acceptance rate that the threshold really has, 0 to 1; `None` with `tar`.
    pub far_reached: Option<f64>,
    /// Threshold: pairs with a score ABOVE it are accepted; `None` with `tar`, and where every pair is
    /// accepted.
    pub accept_above: Option<f64>,
}

/// Cosine similarity of template pairs: `first [a, d]`, `second [b, d]`, pairs (row of first, row of second)
/// → `[pairs]`.
///
/// In the compatibility test `first` is by the new model, `second` by the old one (BCT §3.3); a first side of
/// another width is made to fit the second. The similarity to a zero vector is 0. Summed in `f64`, in
/// parallel, the same bits whatever the number of threads.
///
/// # Errors
///
/// [`ErrorKind::InvalidOption`] for a pair that names a row that does not exist, [`ErrorKind::NotFinite`].
pub fn similarities(first: &Matrix, second: &Matrix, pairs: &[(usize, usize)]) -> Result<Vec<f64>> {
    first.check_finite("first templates")?;
    second.check_finite("second templates")?;
    for (side, rows, of) in [("first", first.rows(), 0), ("second", second.rows(), 1)] {
        let mut named = pairs.iter().map(|&(a, b)| if of == 0 { a } else { b });
        if let Some(row) = named.find(|&row| row >= rows) {
            let option = format!("the {side} template of a pair");
            return Err(Error::option(option, row, format!("below {rows}")));
        }
    }
    let first = first.at_width(second.columns());
    let (first_norms, second_norms) = (first.norms(), second.norms());
    Ok(pairs
        .par_chunks(CHUNK)
        .flat_map_iter(|pairs| {
            pairs.iter().map(|&(a, b)| {
                let lengths = first_norms[a] * second_norms[b];
                let product: f64 =
                    first.row(a).iter().zip(second.row(b)).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
                if lengths > 0.0 { product / lengths } else { 0.0 }
            })
        })
        .collect())
}

/// TAR@FAR of scored pairs: a score (larger is more alike) and whether it is the same person, for every pair.
///
/// With I impostor pairs, at most a of them may be accepted at a false acceptance rate f, the largest a with
/// `a/I ≤ f`. The threshold is the score of the (a + 1)-th best impostor, and pairs strictly ABOVE it are
/// accepted: of all thresholds that keep the rate, the one that accepts most. Impostors that share that score
/// are all rejected, and so is a genuine pair that shares it, hence the order of equal scores changes
/// nothing; the rate reached may then be below the rate asked for. For `a = I` everything is accepted. No
/// interpolation is made between scores.
///
/// Where `f·I < 1` not one false acceptance is allowed, the threshold would be the best impostor by chance,
/// and the rate is undefined (`None`).
///
/// ```
/// use rehang_protocols::verification::verify;
///
/// let scores = [0.9, 0.8, 0.4, 0.2, 0.8, 0.5, 0.3, 0.1];
/// let genuine = [true, true, true, true, false, false, false, false];
/// let result = verify(&scores, &genuine, &[0.25, 0.5, 1.0, 0.1])?;
/// // One of four impostors may pass; above the second best of them (0.5) stand 0.9 and 0.8 of the genuine ones.
/// assert_eq!((result.points[0].tar, result.points[0].accept_above), (Some(50.0), Some(0.5)));
/// assert_eq!(result.points[1].tar, Some(75.0));
/// assert_eq!((result.points[2].tar, result.points[2].accept_above), (Some(100.0), None));
/// // One in ten cannot be seen with four impostors.
/// assert_eq!(result.points[3].tar, None);
/// # Ok::<(), rehang_core::Error>(())
/// ```
///
/// # Errors
///
/// [`ErrorKind::CountMismatch`]; [`ErrorKind::NotFinite`] for a score that is NaN; [`ErrorKind::Empty`] where
/// there is no genuine pair or no impostor; [`ErrorKind::InvalidOption`] for a rate that is not above 0 and
/// at most 1.
pub fn verify(scores: &[f64], genuine: &[bool], rates: &[f64]) -> Result<Verification> {
    expect_count("scores", scores.len(), "pairs", genuine.len())?;
    check_rates("false acceptance rate", rates)?;
    if let Some(row) = scores.iter().position(|score| score.is_nan()) {
        return Err(ErrorKind::NotFinite { what: "scores of pairs".into(), row, column: 0 }.into());
    }
    let sorted_scores = |wanted: bool| -> Vec<f64> {
        let mut part: Vec<f64> = scores
            .iter()
            .zip(genuine)
            .filter(|&(_, &same)| same == wanted)
            .map(|(&score, _)| score)
            .collect();
        part.par_sort_unstable_by(|a, b| b.total_cmp(a));
        part
    };
    let (mated, impostors) = (sorted_scores(true), sorted_scores(false));
    for (part, what) in [(&mated, "the set of genuine pairs"), (&impostors, "the set of impostor pairs")] {
        if part.is_empty() {
            return Err(ErrorKind::Empty { what: what.into() }.into());
        }
    }
    let above = |part: &[f64], threshold: f64| part.partition_point(|&score| score > threshold);
    let points = rates
        .iter()
        .map(|&far| {
            let accepted = allowed(far, impostors.len());
            if accepted == 0 {
                return OperatingPoint { far, tar: None, far_reached: None, accept_above: None };
            }
            let threshold = impostors.get(accepted).copied();
            let share = |part: &[f64]| {
                threshold.map_or(1.0, |threshold| above(part, threshold) as f64 / part.len() as f64)
            };
            OperatingPoint {
                far,
                tar: Some(100.0 * share(&mated)),
                far_reached: Some(share(&impostors)),
                accept_above: threshold,
            }
        })
        .collect();
    Ok(Verification { genuine: mated.len(), impostors: impostors.len(), points })
}

/// Scores and judges a list of pairs: [`similarities`], then [`verify`], where a pair is genuine if its
/// subjects are equal.
///
/// ```
/// use rehang_core::Matrix;
/// use rehang_protocols::verification::verification;
///
/// // Two persons, one along x and one along y; the first side by the new model, the second by the old.
/// let new = Matrix::new(2, vec![1.0, 0.1, 0.2, 1.0])?;
/// let old = Matrix::new(2, vec![1.0, 0.0, 0.0, 1.0])?;
/// let pairs = [(0, 0), (0, 1), (1, 0), (1, 1)];
/// let result = verification(&new, &old, &[5, 6], &[5, 6], &pairs, &[0.5])?;
/// assert_eq!((result.genuine, result.impostors, result.points[0].tar), (2, 2, Some(100.0)));
/// # Ok::<(), rehang_core::Error>(())
/// ```
///
/// # Errors
///
/// Those of the two, and [`ErrorKind::CountMismatch`] for subjects of another number than the templates.
pub fn verification(
    first: &Matrix,
    second: &Matrix,
    first_subjects: &[i64],
    second_subjects: &[i64],
    pairs: &[(usize, usize)],
    rates: &[f64],
) -> Result<Verification> {
    expect_count("subjects of the first side", first_subjects.len(), "its templates", first.rows())?;
    expect_count("subjects of the second side", second_subjects.len(), "its templates", second.rows())?;
    let scores = similarities(first, second, pairs)?;
    let genuine: Vec<bool> = pairs.iter().map(|&(a, b)| first_subjects[a] == second_subjects[b]).collect();
    verify(&scores, &genuine, rates)
}
