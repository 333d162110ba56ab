//! Identification, a search 1:N: which enrolled subject does a face show, if any?

use serde::Serialize;

use rehang_core::check::expect_count;
use rehang_core::curve::distances_by_query;
use rehang_core::{Distance, ErrorKind, Matrix, Progress, Result};

use crate::rates::{allowed, check_rates};

/// Input of a search protocol. Subjects are numbers; a negative one means "unknown".
#[derive(Debug, Clone, Copy)]
pub struct IdentificationInput<'a> {
    /// Enrolled templates, `[n, d]`; in the compatibility test by the old model.
    pub gallery: &'a Matrix,
    /// Subject of each enrolled template, `[n]`; a subject may have several templates.
    pub gallery_subjects: &'a [i64],
    /// Templates to search with, `[m, d]`; in the compatibility test by the new model.
    pub probes: &'a Matrix,
    /// Subject of each probe, `[m]`. A probe of unknown subject is left out and counted.
    pub probe_subjects: &'a [i64],
    /// False positive identification rates, each above 0 and at most 1.
    pub rates: &'a [f64],
    /// Number of candidates that a search returns, R: the mate counts only among them. 1 or more;
    /// `usize::MAX` for no limit.
    pub candidates: usize,
}

/// Results of a search protocol.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Identification {
    /// Number of probes whose subject is enrolled.
    pub mated: usize,
    /// Number of probes whose subject is not enrolled.
    pub non_mated: usize,
    /// Number of probes of unknown subject, left out.
    pub unknown: usize,
    /// Closed-set rank-1 over the mated probes, in percent; `None` where there are none.
    pub rank1: Option<f64>,
    /// Closed-set rank-5 over the mated probes, in percent; `None` where there are none.
    pub rank5: Option<f64>,
    /// Open-set results, one a rate.
    pub points: Vec<SearchPoint>,
}

/// True positive identification rate at one false positive identification rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SearchPoint {
    /// False positive identification rate that was asked for, 0 to 1.
    pub fpir: f64,
    /// True positive identification rate in percent; `None` where there are no mated probes, or fewer than
    /// 1/FPIR non-mated ones.
    pub tpir: Option<f64>,
    /// False positive identification rate that the threshold really has, 0 to 1; `None` with `tpir`.
    pub fpir_reached: Option<f64>,
    /// Threshold: candidates with a similarity ABOVE it are returned; `None` with `tpir`, and where all are.
    pub return_above: Option<f64>,
}

/// Answer of the gallery to one probe.
struct Searched {
    /// Similarity of the best candidate.
    best: f64,
    /// Similarity and rank (from 1) of the subject's own best template.
    mate: Option<(f64, usize)>,
}

/// 1:N identification by cosine similarity; candidates are ranked by (similarity descending, gallery index).
///
/// **Open set.** A probe whose subject is not enrolled is a false positive at a threshold where its best
/// candidate is above it. With I such probes the largest a with `a/I ≤ FPIR` may be false positives, and the
/// threshold is the best similarity of the (a + 1)-th of them; candidates strictly ABOVE it are returned, so
/// ties are rejected together, as in [`crate::verification::verify`]. A mated probe is found where its
/// subject's best template is above the threshold and among the first R candidates. TPIR is the share of
/// mated probes that are found (some tables print it as TNIR).
///
/// **Closed set.** Rank-k is the share of mated probes whose subject's best template is among the first k
/// candidates.
///
/// ```
/// use rehang_protocols::identification::{IdentificationInput, identification};
/// use rehang_core::{Matrix, Progress};
///
/// // Two persons are enrolled, along x and y. Probe 0 is person 0, seen well; probe 1 is person 1, seen badly: person 0 looks
/// // nearer. Probe 2 shows no enrolled person.
/// let gallery = Matrix::new(2, vec![1.0, 0.0, 0.0, 1.0])?;
/// let probes = Matrix::new(2, vec![1.0, 0.0, 0.8, 0.6, -1.0, 0.5])?;
/// let input = IdentificationInput {
///     gallery: &gallery,
///     gallery_subjects: &[0, 1],
///     probes: &probes,
///     probe_subjects: &[0, 1, 2],
///     rates: &[1.0, 0.5],
///     candidates: 1,
/// };
/// let result = identification(&input, &Progress::default())?;
/// assert_eq!((result.mated, result.non_mated), (2, 1));
/// assert_eq!((result.rank1, result.rank5), (Some(50.0), Some(100.0)));
/// // At FPIR 1 everything is returned; with one candidate only probe 0 finds its mate.
/// assert_eq!(result.points[0].tpir, Some(50.0));
/// // One probe that is not enrolled cannot show a rate of one half.
/// assert_eq!(result.points[1].tpir, None);
/// # Ok::<(), rehang_core::Error>(())
/// ```
///
/// # Errors
///
/// Vectors that are empty or hold NaN; subjects of another number; a rate that is not above 0 and at most 1;
/// a list of no candidates; [`ErrorKind::Empty`] where every probe is unknown; cancelled.
pub fn identification(input: &IdentificationInput<'_>, progress: &Progress) -> Result<Identification> {
    check_rates("false positive identification rate", input.rates)?;
    if input.candidates == 0 {
        return Err(rehang_core::Error::option("the number of candidates", 0, "1 or more"));
    }
    let (subjects, templates) = (input.gallery_subjects.len(), input.gallery.rows());
    expect_count("gallery subjects", subjects, "gallery templates", templates)?;
    expect_count("probe subjects", input.probe_subjects.len(), "probes", input.probes.rows())?;
    let probes = input.probes.at_width(input.gallery.columns());
    let counted: Vec<usize> =
        (0..input.probes.rows()).filter(|&probe| input.probe_subjects[probe] >= 0).collect();
    if counted.is_empty() {
        return Err(ErrorKind::Empty { what: "the set of probes with a known subject".into() }.into());
    }
    progress.begin("identification", "probes", counted.len() as u64);
    let search = |place: usize, distances: &[f64]| {
        search(distances, input.gallery_subjects, input.probe_subjects[counted[place]])
    };
    let searches = distances_by_query(input.gallery, &probes, &counted, Distance::Cosine, progress, search)?;
    Ok(judge(&searches, input.probes.rows() - counted.len(), input.rates, input.candidates))
}

fn search(distances: &[f64], subjects: &[i64], subject: i64) -> Searched {
    let nearest = |wanted: Option<i64>| {
        let mut best: Option<(f64, usize)> = None;
        for (item, (&distance, &other)) in distances.iter().zip(subjects).enumerate() {
            if wanted.is_none_or(|wanted| wanted == other)
                && best.is_none_or(|(nearest, _)| distance < nearest)
            {
                best = Some((distance, item));
            }
        }
        best
    };
    let mate = nearest(Some(subject)).map(|(own, item)| {
        let before = |(other, &distance): (usize, &f64)| distance < own || (distance == own && other < item);
        (1.0 - own, 1 + distances.iter().enumerate().filter(|&entry| before(entry)).count())
    });
    Searched { best: nearest(None).map_or(f64::NEG_INFINITY, |(distance, _)| 1.0 - distance), mate }
}

fn judge(searches: &[Searched], unknown: usize, rates: &[f64], candidates: usize) -> Identification {
    let mates: Vec<(f64, usize)> = searches.iter().filter_map(|search| search.mate).collect();
    let mut false_positives: Vec<f64> =
        searches.iter().filter(|search| search.mate.is_none()).map(|search| search.best).collect();
    false_positives.sort_unstable_by(|a, b| b.total_cmp(a));
    let share = |found: usize| (!mates.is_empty()).then(|| 100.0 * found as f64 / mates.len() as f64);
    let within = |depth: usize| share(mates.iter().filter(|&&(_, rank)| rank <= depth).count());
    let points = rates
        .iter()
        .map(|&fpir| {
            let total = false_positives.len();
            let accepted = if total == 0 { 0 } else { allowed(fpir, total) };
            if accepted == 0 || mates.is_empty() {
                return SearchPoint { fpir, tpir: None, fpir_reached: None, return_above: None };
            }
            let threshold = false_positives.get(accepted).copied();
            let passes = |similarity: f64| threshold.is_none_or(|threshold| similarity > threshold);
            let found = mates.iter().filter(|&&(own, rank)| rank <= candidates && passes(own)).count();
            let wrong = false_positives.iter().filter(|&&best| passes(best)).count();
            SearchPoint {
                fpir,
                tpir: share(found),
                fpir_reached: Some(wrong as f64 / total as f64),
                return_above: threshold,
            }
        })
        .collect();
    Identification {
        mated: mates.len(),
        non_mated: false_positives.len(),
        unknown,
        rank1: within(1),
        rank5: within(5),
        points,
    }
}
