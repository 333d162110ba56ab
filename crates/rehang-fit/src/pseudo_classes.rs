//! Pseudo-classes for pairs without labels, and a head made of class means.

use rehang_core::check::expect_count;
use rehang_core::{
    Error, Head, HeadKind, Labels, Matrix, Progress, Result, class_means, k_means, squared_distance,
};

use crate::head_fit::class_numbers;

/// Largest number of rounds of k-means; it seldom needs as many.
const ROUNDS: usize = 50;

/// Labels vectors `[n, d]` that have no labels by the clusters of [`k_means`], one for every 30 items, at
/// least 2 and at most 256 of them.
///
/// # Errors
///
/// As [`k_means`].
pub fn pseudo_classes(vectors: &Matrix, seed: u64, progress: &Progress) -> Result<Labels> {
    let clusters = k_means(vectors, (vectors.rows() / 30).clamp(2, 256), ROUNDS, seed, progress)?;
    Ok(clusters.of_item.into_iter().map(i64::from).collect())
}

/// Makes a head from class means: `logit_c(v) = −‖v − mean_c‖² / variance` but for what is the same for every
/// class. So its weight is `2·mean_c/variance` and its bias `−‖mean_c‖²/variance`, the variance being that of
/// vectors within their class.
///
/// The head needs no fitting and works for clusters as for classes. σ² is learned with it where a model ships
/// without a head. Negative labels are left out. Where vectors do not vary within classes, distances are
/// taken as they are.
///
/// # Errors
///
/// [`rehang_core::ErrorKind::CountMismatch`] where there is not one label for each vector,
/// [`rehang_core::ErrorKind::MissingInput`] where no label is known.
pub fn centroid_head(vectors: &Matrix, labels: &[i64]) -> Result<Head> {
    expect_count("new vectors", vectors.rows(), "labels", labels.len())?;
    let (numbers, class_labels) = class_numbers(labels);
    if class_labels.is_empty() {
        return Err(Error::missing("labels that are not negative", "a head of class means"));
    }
    let mut means = class_means(vectors, &numbers, class_labels.len());
    let classed = || numbers.iter().enumerate().filter_map(|(row, class)| Some((row, (*class)?)));
    let distance = |(row, class): (usize, usize)| squared_distance(vectors.row(row), means.row(class));
    let within = classed().map(distance).sum::<f64>() / classed().count() as f64;
    let factor = if within > 0.0 { 1.0 / within } else { 1.0 };
    let bias = means.norms().iter().map(|norm| (-norm * norm * factor) as f32).collect();
    means.as_mut_slice().iter_mut().for_each(|value| *value = (2.0 * f64::from(*value) * factor) as f32);
    Head::new(means, Some(bias), HeadKind::Softmax)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_item_is_one_class_and_many_are_at_most_so_many_as_their_thirtieth() {
        assert_eq!(pseudo_classes(&Matrix::zeros(1, 3), 0, &Progress::default()).unwrap(), [0]);
        let vectors = crate::tests::test_data::random_matrix(150, 3, 1);
        let labels = pseudo_classes(&vectors, 2, &Progress::default()).unwrap();
        assert_eq!(labels.iter().collect::<std::collections::BTreeSet<_>>().len(), 5);
    }
}
