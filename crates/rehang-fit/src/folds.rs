//! Folds and splits: which part of the pairs is left out when.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

/// Deals `n` items out to `k` folds at random: `[n]` numbers in `0..k`, fold sizes differing by at most one.
///
/// The same `(n, k, seed)` gives the same folds on every machine. With `k = 0` or `k = 1` every item is in
/// fold 0.
///
/// ```
/// let fold = rehang_fit::folds::folds(10, 3, 7);
/// assert_eq!((0..3).map(|f| fold.iter().filter(|&&g| g == f).count()).max(), Some(4));
/// assert_eq!(fold, rehang_fit::folds::folds(10, 3, 7));
/// ```
pub fn folds(n: usize, k: usize, seed: u64) -> Vec<usize> {
    let mut fold = vec![0; n];
    for (position, item) in shuffled(n, seed).into_iter().enumerate() {
        fold[item] = position % k.max(1);
    }
    fold
}

/// Returns `0..n` in random order.
pub(crate) fn shuffled(n: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    order.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
    order
}

/// Parts items into those of a fold and all others, both increasing.
pub(crate) fn parted(folds: &[usize], fold: usize) -> (Vec<usize>, Vec<usize>) {
    (0..folds.len()).partition(|&item| folds[item] == fold)
}

/// Pairs to fit on, and some of the others, whose outputs the fit is asked for.
pub(crate) struct LeftOut {
    pub fitted: Vec<usize>,
    pub asked: Vec<usize>,
}

impl LeftOut {
    /// Leaves out every fold that holds an item, one after the other.
    pub(crate) fn from_folds(fold: &[usize]) -> Vec<Self> {
        let count = fold.iter().max().map_or(0, |last| last + 1);
        (0..count)
            .map(|f| parted(fold, f))
            .filter(|(in_fold, _)| !in_fold.is_empty())
            .map(|(in_fold, fitted)| Self { fitted, asked: in_fold })
            .collect()
    }

    /// Returns all of `count` pairs that are not fitted on, increasing.
    pub(crate) fn unfitted(&self, count: usize) -> Vec<usize> {
        let mut is_fitted = vec![false; count];
        for &pair in &self.fitted {
            is_fitted[pair] = true;
        }
        (0..count).filter(|&pair| !is_fitted[pair]).collect()
    }
}

/// Deals whole groups out to `k` folds: `[n]` numbers in `0..k`, all items of a group in one fold.
///
/// Groups are drawn in random order and each goes to the fold that is smallest so far (the first among
/// equals). Negative groups ("not known") are dealt out item by item, like [`folds`].
///
/// ```
/// let fold = rehang_fit::folds::group_folds(&[4, 4, 9, 9, 7, 7], 3, 1);
/// assert!(fold[0] == fold[1] && fold[2] == fold[3] && fold[0] != fold[2]);
/// ```
pub fn group_folds(groups: &[i64], k: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..groups.len()).collect();
    order.sort_by_key(|&item| groups[item]);
    let mut members: Vec<&[usize]> =
        order.chunk_by(|&a, &b| groups[a] == groups[b] && groups[a] >= 0).collect();
    members.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
    let mut sizes = vec![0_usize; k.max(1)];
    let mut fold = vec![0; groups.len()];
    for items in members {
        let smallest = (0..sizes.len()).min_by_key(|&f| sizes[f]).unwrap_or(0);
        sizes[smallest] += items.len();
        for &item in items {
            fold[item] = smallest;
        }
    }
    fold
}

/// A seeded split of pairs for choosing among methods.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldOut {
    /// Items to fit on, increasing.
    pub fitted: Vec<usize>,
    /// Held-out items whose class (where there are labels) has items among `fitted`, increasing.
    pub seen: Vec<usize>,
    /// All items of the classes that are held out as a whole, increasing; empty without labels.
    pub unseen: Vec<usize>,
}

/// Holds out a part of the items: `fraction` of every class (of everything, without labels), and, where there
/// are at least five classes of two or more items, `fraction` of the classes as a whole.
///
/// Galleries grow by classes that no pair knew; a map that is chosen on known classes alone is chosen for the
/// wrong future. Items with a negative label ("not known") are held out like a class of their own, never as a
/// whole. At least one item is left to fit on where there is one; a class of one item is always fitted on or
/// held out whole.
pub fn hold_out(n: usize, labels: Option<&[i64]>, fraction: f64, seed: u64) -> HeldOut {
    let mut random = ChaCha8Rng::seed_from_u64(seed ^ 0x6865_6c64);
    let mut order: Vec<usize> = (0..n).collect();
    order.shuffle(&mut random);
    // The sort is stable: inside a class the random order stays.
    if let Some(labels) = labels {
        order.sort_by_key(|&item| labels[item].max(-1));
    }
    let mut classes: Vec<&[usize]> =
        order.chunk_by(|&a, &b| labels.is_none_or(|labels| labels[a].max(-1) == labels[b].max(-1))).collect();
    let is_known = |class: &[usize]| labels.is_some_and(|labels| labels[class[0]] >= 0);
    let mut candidates: Vec<usize> =
        (0..classes.len()).filter(|&class| is_known(classes[class]) && classes[class].len() > 1).collect();
    candidates.shuffle(&mut random);
    candidates.truncate(if candidates.len() < 5 { 0 } else { (candidates.len() as f64 * fraction) as usize });
    candidates.sort_unstable();

    let mut split = HeldOut { fitted: Vec::new(), seen: Vec::new(), unseen: Vec::new() };
    for &class in &candidates {
        split.unseen.extend_from_slice(classes[class]);
        classes[class] = &[];
    }
    // Fractions of an item are carried over to the next class, so that small classes count too.
    let mut due = 0.5;
    for class in classes.into_iter().filter(|class| !class.is_empty()) {
        due += class.len() as f64 * fraction;
        // A class of one item is held out whole or not at all.
        let count = (due as usize).min(class.len().saturating_sub(1).max(1));
        due -= count as f64;
        split.seen.extend_from_slice(&class[..count]);
        split.fitted.extend_from_slice(&class[count..]);
    }
    split.fitted.sort_unstable();
    split.seen.sort_unstable();
    split.unseen.sort_unstable();
    split
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_that_are_all_different_hold_out_items_all_the_same() {
        let labels: Vec<i64> = (0..100).collect();
        let split = hold_out(100, Some(&labels), 0.2, 0);
        assert_eq!((split.fitted.len(), split.seen.len(), split.unseen.len()), (80, 20, 0));
    }

    #[test]
    fn every_item_is_in_exactly_one_part() {
        let labels: Vec<i64> = (0..200).map(|item| (item % 10) - 1).collect();
        for labels in [None, Some(labels.as_slice())] {
            let split = hold_out(200, labels, 0.2, 3);
            let mut all = [split.fitted.clone(), split.seen.clone(), split.unseen.clone()].concat();
            all.sort_unstable();
            assert_eq!(all, (0..200).collect::<Vec<_>>());
        }
    }

    #[test]
    fn unseen_classes_have_no_item_to_fit_on_and_seen_ones_have() {
        let labels: Vec<i64> = (0..300).map(|item| item % 10).collect();
        let split = hold_out(300, Some(&labels), 0.2, 1);
        let class_of = |items: &[usize]| items.iter().map(|&item| labels[item]).collect::<Vec<_>>();
        let fitted = class_of(&split.fitted);
        assert_eq!(split.unseen.len(), 60);
        assert_eq!(split.seen.len(), 48);
        assert!(class_of(&split.unseen).iter().all(|class| !fitted.contains(class)));
        assert!(class_of(&split.seen).iter().all(|class| fitted.contains(class)));
    }

    #[test]
    fn unknown_labels_are_never_an_unseen_class() {
        let labels: Vec<i64> = (0..300).map(|item| if item % 2 == 0 { -1 } else { item % 20 }).collect();
        for seed in 0..20 {
            let split = hold_out(300, Some(&labels), 0.4, seed);
            assert!(split.unseen.iter().all(|&item| labels[item] >= 0));
        }
    }

    #[test]
    fn small_numbers_leave_something_to_fit_on() {
        for n in 1..6 {
            assert!(!hold_out(n, None, 0.2, 0).fitted.is_empty());
        }
        assert_eq!(folds(3, 0, 1), [0, 0, 0]);
    }
}
