//! The protocols of papers as metrics of a study: verification and open-set search as faces are measured, and
//! mAP within the first results as landmarks are, each on a part of the study.
//!
//! - `tar@F`: share of the pairs of one class that is accepted where a share F of all other pairs is. A pair
//!   is of two items, the first by the query model and the second by the gallery's (BCT §3.1, §3.3).
//! - `tpir@F`: share of the enrolled classes' probes that is found where a share F of the others' probes
//!   finds anything. Every second class is enrolled, as the template of the first half of its items; all
//!   other items are probes (BCT §3.1, §3.3).
//! - `map@K`: `1/min(P, K) · Σ_{r_i ≤ K} i / r_i`, where every item is a query and leaves itself out (RACT
//!   §5.1, DMU §4.1).

use std::fmt;
use std::str::FromStr;

use rehang_core::curve::{CurveOptions, Metric, Relevance, evaluate_leave_one_out};
use rehang_core::{Distance, Error, Matrix, Progress, Result};
use rehang_files::lists::TemplateItem;
use rehang_protocols::identification::{IdentificationInput, identification};
use rehang_protocols::templates::average;
use rehang_protocols::verification::verification;

/// Number of items of a part that pairs are made of at most, evenly taken: the pairs of 4,000 are eight
/// million.
const PAIRED_MOST: usize = 4000;

/// A protocol with its rate or depth.
///
/// ```
/// use rehang_train::protocols::Protocol;
///
/// assert_eq!("tar@0.001".parse::<Protocol>()?, Protocol::Verification { far: 0.001 });
/// assert_eq!("map@100".parse::<Protocol>()?.to_string(), "map@100");
/// assert!("tar@2".parse::<Protocol>().is_err());
/// # Ok::<(), rehang_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Protocol {
    /// 1:1 verification: TAR at this false acceptance rate.
    Verification {
        /// Rate above 0 and at most 1.
        far: f64,
    },
    /// 1:N open-set search: TPIR at this false positive identification rate.
    Identification {
        /// Rate above 0 and at most 1.
        fpir: f64,
    },
    /// mAP within the first results.
    Landmarks {
        /// Number of results, 1 or more.
        depth: usize,
    },
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Verification { far } => write!(f, "tar@{far}"),
            Self::Identification { fpir } => write!(f, "tpir@{fpir}"),
            Self::Landmarks { depth } => write!(f, "map@{depth}"),
        }
    }
}

impl FromStr for Protocol {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let rate = |text: &str| text.parse().ok().filter(|&rate: &f64| rate > 0.0 && rate <= 1.0);
        let read = match text.split_once('@') {
            Some(("tar", far)) => rate(far).map(|far| Self::Verification { far }),
            Some(("tpir", fpir)) => rate(fpir).map(|fpir| Self::Identification { fpir }),
            Some(("map", depth)) => {
                depth.parse().ok().filter(|&depth| depth > 0).map(|depth| Self::Landmarks { depth })
            }
            _ => None,
        };
        let expected = "tar@F or tpir@F with a rate F above 0 and at most 1, or map@K with a K of 1 or more";
        read.ok_or_else(|| Error::option("protocol", text, expected))
    }
}

impl Protocol {
    /// Measures a part's items, embedded by the model of the queries and by that of the gallery, in percent;
    /// `None` where the part has too few items or classes to show it. `distance` is that of `map@K`; the
    /// other two protocols are of cosines.
    pub(crate) fn measure(
        self,
        gallery: &Matrix,
        queries: &Matrix,
        labels: &[i64],
        distance: Distance,
        progress: &Progress,
    ) -> Result<Option<f64>> {
        match self {
            Self::Verification { far } => verified(gallery, queries, labels, far),
            Self::Identification { fpir } => identified(gallery, queries, labels, fpir, progress),
            Self::Landmarks { depth } => {
                let metric = Metric::map_at(depth);
                let options = CurveOptions { metrics: vec![metric], ..CurveOptions::default() };
                let relevance = Relevance::Labels { gallery: labels, queries: None };
                let queries = queries.at_width(gallery.columns());
                let found =
                    evaluate_leave_one_out(gallery, &queries, relevance, distance, &options, progress)?;
                Ok(Some(found.values[metric]))
            }
        }
    }
}

fn verified(gallery: &Matrix, queries: &Matrix, labels: &[i64], far: f64) -> Result<Option<f64>> {
    let step = labels.len().div_ceil(PAIRED_MOST).max(1);
    let items: Vec<usize> = (0..labels.len()).step_by(step).collect();
    let pairs: Vec<(usize, usize)> =
        (0..items.len()).flat_map(|a| (a + 1..items.len()).map(move |b| (a, b))).collect();
    let pairs: Vec<(usize, usize)> = pairs.into_iter().map(|(a, b)| (items[a], items[b])).collect();
    let genuine = pairs.iter().filter(|&&(a, b)| labels[a] == labels[b]).count();
    if genuine == 0 || genuine == pairs.len() {
        return Ok(None);
    }
    let made = verification(queries, gallery, labels, labels, &pairs, &[far])?;
    Ok(made.points[0].tar)
}

fn identified(
    gallery: &Matrix,
    queries: &Matrix,
    labels: &[i64],
    fpir: f64,
    progress: &Progress,
) -> Result<Option<f64>> {
    let mut classes = labels.to_vec();
    classes.sort_unstable();
    classes.dedup();
    let (mut enrolled, mut subjects, mut probes) = (Vec::new(), Vec::new(), Vec::new());
    for (number, class) in classes.into_iter().enumerate() {
        let rows: Vec<usize> = (0..labels.len()).filter(|&row| labels[row] == class).collect();
        if number % 2 == 1 {
            probes.extend(rows);
            continue;
        }
        let (first, rest) = rows.split_at(rows.len().div_ceil(2));
        let template = subjects.len();
        enrolled.extend(first.iter().map(|&row| TemplateItem { row, template, media: None }));
        subjects.push(class);
        probes.extend(rest);
    }
    if probes.is_empty() {
        return Ok(None);
    }
    let templates = average(gallery, &enrolled, subjects.len())?.vectors;
    let probe_subjects: Vec<i64> = probes.iter().map(|&row| labels[row]).collect();
    let input = IdentificationInput {
        gallery: &templates,
        gallery_subjects: &subjects,
        probes: &queries.select(&probes),
        probe_subjects: &probe_subjects,
        rates: &[fpir],
        candidates: usize::MAX,
    };
    Ok(identification(&input, progress)?.points[0].tpir)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Labels of four classes of two items; in the gallery's model each class has a direction of its own.
    const LABELS: [i64; 8] = [0, 0, 1, 1, 2, 2, 3, 3];

    fn directions(of: [usize; 8]) -> Matrix {
        Matrix::from_fn(8, 4, |row, column| if column == of[row] { 1.0 } else { 0.0 })
    }

    fn measured(protocol: &str, gallery: &Matrix, queries: &Matrix, labels: &[i64]) -> Option<f64> {
        let protocol: Protocol = protocol.parse().unwrap();
        protocol.measure(gallery, queries, labels, Distance::Cosine, &Progress::default()).unwrap()
    }

    #[test]
    fn protocols_computed_by_hand() {
        let right = directions([0, 0, 1, 1, 2, 2, 3, 3]);
        for protocol in ["tar@0.1", "tpir@0.5", "map@1"] {
            assert_eq!(measured(protocol, &right, &right, &LABELS), Some(100.0), "{protocol}");
        }
        // The query model takes item 0 for one of class 1, and item 1 for one of class 3.
        let wrong = directions([1, 3, 1, 1, 2, 2, 3, 3]);
        // Genuine pairs (0, 1), (2, 3), (4, 5), (6, 7): the first fails. Of 24 others (0, 2), (0, 3), (1, 6),
        // (1, 7) look genuine: a tenth of them is 2, and four stand above everything else, so nothing is
        // accepted; with a fifth, 4, they all are.
        assert_eq!(measured("tar@0.1", &right, &wrong, &LABELS), Some(0.0));
        assert_eq!(measured("tar@0.2", &right, &wrong, &LABELS), Some(75.0));
        // Classes 0 and 2 are enrolled; probes 1 and 5 are theirs, 2, 3, 6 and 7 are not. The query model
        // takes probe 1 for one of class 3.
        assert_eq!(measured("tpir@0.5", &right, &wrong, &LABELS), Some(50.0));
        // Queries 0 and 1 find others before their own.
        assert_eq!(measured("map@1", &right, &wrong, &LABELS), Some(75.0));
    }

    #[test]
    fn what_a_part_cannot_show_has_no_value() {
        let one = directions([0; 8]);
        assert_eq!(measured("tar@0.1", &one, &one, &[5; 8]), None);
        assert_eq!(measured("tpir@0.1", &one, &one, &[5; 8]), None);
        // Fewer impostors than 1/FAR.
        assert_eq!(measured("tar@0.001", &one, &one, &LABELS), None);
        for bad in ["tar", "tar@0", "tpir@1.5", "map@0", "map@x", "rank@1"] {
            assert!(bad.parse::<Protocol>().is_err(), "{bad}");
        }
    }
}
