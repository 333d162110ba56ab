//! Kendall's τ-b: how far two rankings of the same items agree.

/// Kendall's τ-b of two lists of the same length, in O(n log n) (Knight 1966).
///
/// `(concordant − discordant) / √((pairs − ties in a)(pairs − ties in b))`: 1 for the same order, −1 for the reverse
/// one, 0 where one list is constant or there are fewer than two items. NaN counts as larger than any number.
///
/// ```
/// use rehang_train::kendall::tau_b;
/// assert_eq!(tau_b(&[1.0, 2.0, 3.0], &[10.0, 20.0, 30.0]), 1.0);
/// assert!((tau_b(&[1.0, 2.0, 3.0, 4.0], &[1.0, 3.0, 2.0, 4.0]) - 2.0 / 3.0).abs() < 1e-12);
/// assert_eq!(tau_b(&[1.0, 1.0], &[1.0, 2.0]), 0.0);
/// ```
///
/// # Panics
///
/// Where the lists have different lengths.
pub fn tau_b(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len(), "tau_b compares two lists of the same items");
    let mut order: Vec<usize> = (0..a.len()).collect();
    order.sort_by(|&i, &j| a[i].total_cmp(&a[j]).then(b[i].total_cmp(&b[j])));
    let pairs_of = |count: usize| count as f64 * (count as f64 - 1.0) / 2.0;
    let ties = |same: &dyn Fn(usize, usize) -> bool, order: &[usize]| -> f64 {
        order.chunk_by(|&i, &j| same(i, j)).map(|group| pairs_of(group.len())).sum()
    };
    let ties_a = ties(&|i, j| a[i] == a[j], &order);
    let ties_both = ties(&|i, j| a[i] == a[j] && b[i] == b[j], &order);
    let mut sorted: Vec<f64> = order.iter().map(|&item| b[item]).collect();
    let discordant = inversions(&mut sorted) as f64;
    let ties_b: f64 = sorted.chunk_by(|x, y| x == y).map(|group| pairs_of(group.len())).sum();
    let pairs = pairs_of(a.len());
    let difference = pairs - ties_a - ties_b + ties_both - 2.0 * discordant;
    let scale = ((pairs - ties_a) * (pairs - ties_b)).sqrt();
    if scale > 0.0 { difference / scale } else { 0.0 }
}

/// Sorts the values and counts the pairs that stood in the wrong order.
fn inversions(values: &mut [f64]) -> u64 {
    if values.len() < 2 {
        return 0;
    }
    let (left, right) = values.split_at_mut(values.len() / 2);
    let mut count = inversions(left) + inversions(right);
    let mut merged = Vec::with_capacity(left.len() + right.len());
    let (mut i, mut j) = (0, 0);
    while i < left.len() || j < right.len() {
        if j == right.len() || (i < left.len() && left[i].total_cmp(&right[j]).is_le()) {
            merged.push(left[i]);
            i += 1;
        } else {
            count += (left.len() - i) as u64;
            merged.push(right[j]);
            j += 1;
        }
    }
    values.copy_from_slice(&merged);
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slow(a: &[f64], b: &[f64]) -> f64 {
        let (mut difference, mut untied_a, mut untied_b) = (0.0, 0.0, 0.0);
        for i in 0..a.len() {
            for j in 0..i {
                let (x, y) = (
                    (a[i] - a[j]).signum() * f64::from(a[i] != a[j]),
                    (b[i] - b[j]).signum() * f64::from(b[i] != b[j]),
                );
                difference += x * y;
                untied_a += x.abs();
                untied_b += y.abs();
            }
        }
        let scale = f64::sqrt(untied_a * untied_b);
        if scale > 0.0 { difference / scale } else { 0.0 }
    }

    proptest! {
        #[test]
        fn it_equals_the_count_over_all_pairs(items in prop::collection::vec((0_u8..6, 0_u8..6), 0..40)) {
            let (a, b): (Vec<f64>, Vec<f64>) = items.into_iter().map(|(x, y)| (f64::from(x), f64::from(y))).unzip();
            prop_assert!((tau_b(&a, &b) - slow(&a, &b)).abs() < 1e-12);
        }
    }
}
