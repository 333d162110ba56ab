//! Measures what new vectors of fewer coordinates, kept in fewer bytes, are worth.

use half::f16;
use rehang_core::curve::{CurveInput, DoNothing, curve, evaluate_today};
use rehang_core::report::{Precision, Scores, SizeScores};
use rehang_core::{Error, Matrix, Progress, Result};

use crate::study::{StudyInput, StudyOptions, depths, relevance, scores};

/// Evaluates every width in every precision, single precision first. Queries are cut and rounded as the
/// gallery is. Vectors of fewer coordinates than the model gives are scaled to length 1, as an encoder with
/// `model_dimension` makes them.
///
/// `adapted` are the vectors at the switch, `[n, d_new]`. Their scores need right answers, since they are
/// compared with no other width.
///
/// # Errors
///
/// [`rehang_core::ErrorKind::Cancelled`]. Widths have passed [`expect_widths`].
pub(crate) fn sizes(
    ground: &StudyInput<'_>,
    adapted: &Matrix,
    options: &StudyOptions,
    progress: &Progress,
) -> Result<Vec<SizeScores>> {
    let whole_width = ground.new.matrix().columns();
    if options.widths.is_empty() && options.precisions.is_empty() {
        return Ok(Vec::new());
    }
    let mut widths = if options.widths.is_empty() { vec![whole_width] } else { options.widths.clone() };
    widths.sort_unstable();
    widths.dedup();
    let precisions = Precision::ALL
        .into_iter()
        .filter(|precision| *precision == Precision::F32 || options.precisions.contains(precision));
    let sizes = precisions.flat_map(|precision| widths.iter().map(move |&width| (width, precision)));
    sizes.map(|(width, precision)| size(ground, adapted, options, (width, precision), progress)).collect()
}

/// Fails for a width that vectors of `whole_width` coordinates cannot be cut to.
pub(crate) fn expect_widths(widths: &[usize], whole_width: usize) -> Result<()> {
    let Some(width) = widths.iter().find(|width| !(1..=whole_width).contains(*width)) else { return Ok(()) };
    Err(Error::option("widths", width, format!("1 to {whole_width}, the width of the new vectors")))
}

fn size(
    ground: &StudyInput<'_>,
    adapted: &Matrix,
    options: &StudyOptions,
    (width, precision): (usize, Precision),
    progress: &Progress,
) -> Result<SizeScores> {
    let native = ground.new.matrix();
    let (whole_queries, distance) = (ground.queries.map(|queries| queries.new), ground.new.space().distance);
    let [mut gallery, mut adapted] = [native, adapted].map(|matrix| cut(matrix, width));
    let mut queries = whole_queries.map(|queries| cut(queries, width));
    let last = largest(&gallery);
    for matrix in [&mut gallery, &mut adapted].into_iter().chain(queries.as_mut()) {
        round(matrix, precision, last);
    }
    let stored_gallery = DoNothing { gallery: &gallery, queries: queries.as_ref(), distance };
    let (relevance, measured) = (relevance(ground, options), depths(ground, options));
    let of_native =
        evaluate_today(stored_gallery, native, whole_queries, relevance, distance, &measured, progress)?;
    let mut at_the_switch = Scores::new();
    if ground.relevance.is_some() {
        let order: Vec<usize> = (0..gallery.rows()).collect();
        let input = CurveInput {
            native: &gallery,
            adapted: &adapted,
            order: &order,
            queries: queries.as_ref(),
            relevance,
            distance,
            handicap: 0.0,
            groups: None,
            do_nothing: None,
            known: None,
        };
        let lines = curve(&input, &measured, progress)?.lines;
        at_the_switch = lines.iter().map(|(metric, line)| (metric.id(), line.values()[0])).collect();
    }
    Ok(SizeScores {
        width,
        precision,
        bytes: width * precision.bytes(),
        new_model: scores(&of_native),
        at_the_switch,
    })
}

/// Cuts every row to its first coordinates, and scales it to length 1 where the cut leaves some out.
fn cut(matrix: &Matrix, width: usize) -> Matrix {
    if width == matrix.columns() {
        return matrix.clone();
    }
    let mut cut = Matrix::from_fn(matrix.rows(), width, |row, column| matrix.row(row)[column]);
    cut.normalise_rows();
    cut
}

fn largest(matrix: &Matrix) -> f32 {
    matrix.as_slice().iter().fold(0.0, |largest, value| largest.max(value.abs()))
}

/// Rounds coordinates as a database does that keeps them in `precision`. `last` is the largest coordinate,
/// where the last of 127 steps of a byte lies.
fn round(matrix: &mut Matrix, precision: Precision, last: f32) {
    let step = last / 127.0;
    for value in matrix.as_mut_slice() {
        *value = match precision {
            Precision::F32 => *value,
            Precision::F16 => f16::from_f32(*value).to_f32(),
            Precision::I8 if step > 0.0 => (*value / step).round().clamp(-127.0, 127.0) * step,
            Precision::I8 => 0.0,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::tests::plain;
    use rehang_core::curve::{Relevance, evaluate};
    use rehang_core::{Distance, Space, Vectors};

    const ITEMS: usize = 200;

    fn vectors(seed: u32) -> Vectors {
        let space = Space::new("m", 6, Distance::Cosine, false);
        let value = |row: usize, column: usize| {
            let mixed = (row as u32 * 6 + column as u32 + 1).wrapping_mul(0x9e37_79b1 ^ seed).rotate_left(13);
            (mixed.wrapping_mul(2_246_822_519) >> 8) as f32 / 8_388_608.0 - 1.0
        };
        Vectors::new(space, Matrix::from_fn(ITEMS, 6, value), "m").unwrap()
    }

    /// Returns the percentage of items whose nearest other one, among the first coordinates of `gallery`, has
    /// their label.
    fn top1(queries: &Matrix, gallery: &Matrix, width: usize, labels: &[i64]) -> f64 {
        let cosine = |a: &[f32], b: &[f32]| {
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(x * y)).sum::<f64>();
            let (a, b) = (&a[..width], &b[..width]);
            dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
        };
        let is_right = |query: usize| {
            let other_items = (0..ITEMS).filter(|item| *item != query);
            let near = |item: &usize| cosine(queries.row(query), gallery.row(*item));
            let nearest = other_items.max_by(|a, b| near(a).total_cmp(&near(b))).unwrap();
            labels[nearest] == labels[query]
        };
        100.0 * (0..ITEMS).filter(|query| is_right(*query)).count() as f64 / ITEMS as f64
    }

    #[test]
    fn every_size_is_what_brute_force_says() {
        let (new, adapted) = (vectors(1), vectors(7));
        let labels: Vec<i64> = (0..ITEMS).map(|row| i64::from(new.matrix().row(row)[0] > 0.0)).collect();
        let relevance = Relevance::Labels { gallery: &labels, queries: None };
        let ground = plain(&new, &new, Some(relevance));
        let options = StudyOptions {
            widths: vec![6, 2, 2],
            precisions: vec![Precision::I8],
            ..StudyOptions::default()
        };
        let sizes = sizes(&ground, adapted.matrix(), &options, &Progress::default()).unwrap();
        let named: Vec<_> =
            sizes.iter().map(|size| (size.width, size.precision.name(), size.bytes)).collect();
        assert_eq!(named, [(2, "f32", 8), (6, "f32", 24), (2, "i8", 2), (6, "i8", 6)]);
        for size in &sizes[..2] {
            let native = top1(new.matrix(), new.matrix(), size.width, &labels);
            let switched = top1(new.matrix(), adapted.matrix(), size.width, &labels);
            assert!((size.new_model["top1"] - native).abs() < 1e-9, "{size:?} {native}");
            assert!((size.at_the_switch["top1"] - switched).abs() < 1e-9, "{size:?} {switched}");
        }
        let measured = depths(&ground, &options);
        let evaluation =
            evaluate(new.matrix(), None, relevance, Distance::Cosine, &measured, &Progress::default())
                .unwrap();
        assert_eq!(
            sizes[1].new_model["top1"],
            evaluation
                .values
                .iter()
                .find(|(metric, _)| metric.id() == "top1")
                .map(|(_, value)| *value)
                .unwrap()
        );
        assert_ne!(sizes[3].new_model, sizes[1].new_model, "a byte is coarse for two classes that touch");
    }

    #[test]
    fn without_right_answers_the_whole_vectors_are_the_measure() {
        let new = vectors(3);
        let sizes_at = |widths: &[usize], precisions: &[Precision]| {
            let options = StudyOptions {
                widths: widths.to_vec(),
                precisions: precisions.to_vec(),
                ..StudyOptions::default()
            };
            sizes(&plain(&new, &new, None), new.matrix(), &options, &Progress::default())
        };
        assert_eq!(sizes_at(&[], &[]), Ok(Vec::new()));
        let size_scores = sizes_at(&[3], &[Precision::F16]).unwrap();
        assert!(size_scores[0].new_model["agreement@10"] < 90.0 && size_scores[0].at_the_switch.is_empty());
        let size_scores = sizes_at(&[], &[Precision::F16]).unwrap();
        assert_eq!((size_scores[0].width, size_scores[0].new_model["agreement@10"]), (6, 100.0));
        let half = size_scores[1].new_model["agreement@10"];
        assert!(half > 99.0 && half <= 100.0, "{half}");
        for width in [0, 7] {
            let error = expect_widths(&[3, width], 6).unwrap_err().to_string();
            assert!(error.contains("1 to 6, the width of the new vectors"), "{error}");
        }
    }

    #[test]
    fn rows_are_cut_and_scaled() {
        let whole_vectors = Matrix::new(3, vec![3.0, 4.0, 12.0, 0.0, 0.0, 1.0]).unwrap();
        assert_eq!(
            cut(&whole_vectors, 2).as_slice(),
            [0.6, 0.8, 0.0, 0.0],
            "what has no direction is left as it is"
        );
        assert_eq!(cut(&whole_vectors, 3), whole_vectors, "as the model gives them");
    }

    #[test]
    fn coordinates_are_rounded_as_they_are_kept() {
        let rounded = |precision, values: [f32; 4]| {
            let mut matrix = Matrix::new(4, values.to_vec()).unwrap();
            round(&mut matrix, precision, 2.54);
            matrix.as_slice().to_vec()
        };
        let values = [0.1, -2.54, 0.031, 9.0];
        assert_eq!(rounded(Precision::F32, values), values);
        assert_eq!(rounded(Precision::F16, [1.0, 1.000_4, 1.000_6, -0.5]), [1.0, 1.0, 1.000_976_6, -0.5]);
        let steps: Vec<f32> = [5.0, -127.0, 2.0, 127.0].map(|step: f32| step * (2.54 / 127.0)).to_vec();
        assert_eq!(rounded(Precision::I8, values), steps);
    }
}
