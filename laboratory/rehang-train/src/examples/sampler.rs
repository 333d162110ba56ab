//! Samplers, which say which rows make a batch.

use std::collections::BTreeMap;

use rand::RngExt;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use rehang_core::{Error, Result};
use serde::{Deserialize, Serialize};

use super::draws::{Purpose, generator};

/// Parameters by which an epoch is cut into batches.
///
/// | `kind` | Keys | Batches |
/// |---|---|---|
/// | `shuffled` | `batch`, `last` (`keep`) | every row once, in a random order |
/// | `balanced` | `classes`, `items`, `last` (`keep`) | `classes` different classes, `items` rows of each |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum SamplerParameters {
    /// Every row once an epoch, in a random order.
    Shuffled {
        /// Number of rows a batch, at least 1.
        batch: usize,
        /// Treatment of the rows that fill no whole batch.
        #[serde(default)]
        last: LastBatch,
    },
    /// Batches of `classes` different classes with `items` rows of each: for contrastive losses, which need
    /// rows of the same class to pull together and of others to push apart.
    ///
    /// A class with fewer than `items` rows, and the rest of a class that does not divide, is filled up with
    /// rows of the class. Classes are drawn so that the largest is never left alone: with `last = "keep"`
    /// every row comes at least once an epoch, and classes that have run out are drawn again where a batch
    /// needs another class; with `"drop"` such batches are left out, and rows of large classes may wait for
    /// another epoch. A class of a single row has no partner and is left out always; see
    /// [`Sampler::left_out`].
    Balanced {
        /// Number of classes a batch, at least 2.
        classes: usize,
        /// Number of rows of each class, at least 2.
        items: usize,
        /// Treatment of the rows that fill no whole batch.
        #[serde(default)]
        last: LastBatch,
    },
}

/// Treatment of the rows of an epoch that fill no whole batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LastBatch {
    /// Trains on these rows.
    #[default]
    Keep,
    /// Lets these rows wait for another epoch.
    Drop,
}

impl SamplerParameters {
    /// Makes shuffled batches; the last one is kept.
    pub fn shuffled(batch: usize) -> Self {
        Self::Shuffled { batch, last: LastBatch::Keep }
    }
}

/// Cuts epochs into batches of row numbers.
#[derive(Debug, Clone)]
pub struct Sampler {
    parameters: SamplerParameters,
    rows: Vec<usize>,
    /// Rows of every class that has at least two of them; only for balanced batches.
    classes: Vec<Vec<usize>>,
    left_out: Vec<usize>,
    seed: u64,
}

impl Sampler {
    /// Makes a sampler of the given `rows` of a set whose `labels` are `[n]`.
    ///
    /// # Errors
    ///
    /// [`rehang_core::ErrorKind::Empty`] where no row is given; [`rehang_core::ErrorKind::NotFound`] for a row without
    /// a label; [`rehang_core::ErrorKind::Duplicate`] for a row that is given twice;
    /// [`rehang_core::ErrorKind::InvalidOption`] for sizes out of range, for a batch that no epoch fills although
    /// the last one is dropped, and for more classes a batch than there are classes of two rows or more.
    pub fn new(parameters: &SamplerParameters, labels: &[u32], rows: &[usize], seed: u64) -> Result<Self> {
        if rows.is_empty() {
            return Err(Error::empty("the list of rows to train on"));
        }
        let mut seen = vec![false; labels.len()];
        for &row in rows {
            match seen.get_mut(row) {
                None => return Err(Error::not_found("row", row, format!("{} labels", labels.len()))),
                Some(true) => {
                    return Err(Error::duplicate("the list of rows to train on", format!("row {row}")));
                }
                Some(seen) => *seen = true,
            }
        }
        let mut sampler = Self {
            parameters: *parameters,
            rows: rows.to_vec(),
            classes: Vec::new(),
            left_out: Vec::new(),
            seed,
        };
        match *parameters {
            SamplerParameters::Shuffled { batch, last } => {
                let most = if last == LastBatch::Drop { rows.len() } else { usize::MAX };
                if !(1..=most).contains(&batch) {
                    let rule = if batch == 0 {
                        "at least 1".into()
                    } else {
                        format!("at most the {most} rows there are, or last = \"keep\"")
                    };
                    return Err(Error::option("batch", batch, rule));
                }
            }
            SamplerParameters::Balanced { classes, items, .. } => {
                for (option, value) in [("classes", classes), ("items", items)] {
                    if value < 2 {
                        return Err(Error::option(option, value, "at least 2"));
                    }
                }
                let mut order = rows.to_vec();
                order.sort_unstable_by_key(|&row| (labels[row], row));
                for class in order.chunk_by(|&a, &b| labels[a] == labels[b]) {
                    if class.len() == 1 {
                        sampler.left_out.push(class[0]);
                    } else {
                        sampler.classes.push(class.to_vec());
                    }
                }
                sampler.left_out.sort_unstable();
                if classes > sampler.classes.len() {
                    return Err(Error::option(
                        "classes",
                        classes,
                        format!("at most the {} classes that have two rows or more", sampler.classes.len()),
                    ));
                }
            }
        }
        Ok(sampler)
    }

    /// Lists rows that never come because they are the only one of their class, increasing; empty for
    /// shuffled batches. A training warns of them.
    pub fn left_out(&self) -> &[usize] {
        &self.left_out
    }

    /// Draws the batches of an epoch, a function of the seed and the epoch. Balanced batches hold class after
    /// class.
    pub fn batches(&self, epoch: usize) -> Vec<Vec<usize>> {
        let mut random = generator(self.seed, Purpose::Batches, [epoch as u64, 0]);
        match self.parameters {
            SamplerParameters::Shuffled { batch, last } => {
                let mut order = self.rows.clone();
                order.shuffle(&mut random);
                order
                    .chunks(batch)
                    .filter(|rows| last == LastBatch::Keep || rows.len() == batch)
                    .map(<[usize]>::to_vec)
                    .collect()
            }
            SamplerParameters::Balanced { classes, items, last } => {
                self.balanced(classes, items, last, &mut random)
            }
        }
    }

    fn balanced(
        &self,
        classes: usize,
        items: usize,
        last: LastBatch,
        random: &mut ChaCha8Rng,
    ) -> Vec<Vec<usize>> {
        // Each class as groups of `items` rows, to be taken from the back.
        let mut groups: Vec<Vec<Vec<usize>>> =
            self.classes.iter().map(|class| groups_of(class, items, random)).collect();
        let mut order: Vec<usize> = (0..groups.len()).collect();
        let mut batches = Vec::new();
        loop {
            // The classes with most groups left go first, so that the end of an epoch is not one class alone;
            // among equals chance decides.
            order.shuffle(random);
            order.sort_by_key(|&class| std::cmp::Reverse(groups[class].len()));
            let full = order.iter().take(classes).filter(|&&class| !groups[class].is_empty()).count();
            if full == 0 || (full < classes && last == LastBatch::Drop) {
                break;
            }
            let mut batch = Vec::with_capacity(classes * items);
            for &class in &order[..classes] {
                let mut group = groups[class].pop().unwrap_or_default();
                fill_up(&mut group, &self.classes[class], items, random);
                batch.extend(group);
            }
            batches.push(batch);
        }
        // The order above puts large classes in front; training should not see it.
        batches.shuffle(random);
        batches
    }
}

/// Sampler that draws for each row of a batch another row of its class.
#[derive(Debug, Clone)]
pub(crate) struct Sisters {
    /// Rows that may be drawn, by class.
    of_class: BTreeMap<u32, Vec<usize>>,
    labels: Vec<u32>,
    seed: u64,
}

impl Sisters {
    /// Takes the given rows of a set whose `labels` are `[n]`.
    pub(crate) fn new(labels: &[u32], rows: &[usize], seed: u64) -> Self {
        let mut of_class: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for &row in rows {
            of_class.entry(labels[row]).or_default().push(row);
        }
        Self { of_class, labels: labels.to_vec(), seed }
    }

    /// Draws another row for each row, a function of the seed, the epoch and the row; the row itself where it
    /// is the only one of its class.
    pub(crate) fn drawn(&self, epoch: usize, rows: &[usize]) -> Vec<usize> {
        rows.iter()
            .map(|&row| {
                let class = self.of_class.get(&self.labels[row]).map_or(&[][..], Vec::as_slice);
                let others = class.iter().filter(|&&other| other != row).count();
                if others == 0 {
                    return row;
                }
                let mut random = generator(self.seed, Purpose::Sisters, [epoch as u64, row as u64]);
                let at = random.random_range(0..others as u64) as usize;
                class.iter().copied().filter(|&other| other != row).nth(at).unwrap_or(row)
            })
            .collect()
    }
}

/// Cuts the rows of a class into random groups of `items`, the last one filled up with rows of the class.
fn groups_of(class: &[usize], items: usize, random: &mut ChaCha8Rng) -> Vec<Vec<usize>> {
    let mut order = class.to_vec();
    order.shuffle(random);
    let mut groups: Vec<Vec<usize>> = order.chunks(items).map(<[usize]>::to_vec).collect();
    if let Some(group) = groups.last_mut() {
        fill_up(group, class, items, random);
    }
    groups
}

/// Adds rows of a class until a group has `items`: rows that it lacks first, then any.
fn fill_up(group: &mut Vec<usize>, class: &[usize], items: usize, random: &mut ChaCha8Rng) {
    if group.len() < items {
        let mut others: Vec<usize> = class.iter().copied().filter(|row| !group.contains(row)).collect();
        others.shuffle(random);
        others.truncate(items - group.len());
        group.extend(others);
    }
    while group.len() < items {
        group.push(class[random.random_range(0..class.len() as u64) as usize]);
    }
}
