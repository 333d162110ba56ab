//! Traits: what is known of pairs beside their vectors.

/// Trait of every pair beside its vectors, such as the length of its source. It may say which pairs are
/// another thing.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Trait {
    /// Name of the trait, in words that follow "their": `label`, `source length`.
    pub name: String,
    /// Value of every pair.
    pub values: TraitValues,
}

/// Values of a [`Trait`].
#[derive(Debug, Clone, PartialEq)]
pub enum TraitValues {
    /// Names, such as labels; `None` where a pair has none.
    Names(Vec<Option<String>>),
    /// Numbers, such as lengths.
    Numbers(Vec<f64>),
}

impl Trait {
    /// Returns a trait of names.
    pub fn names(name: impl Into<String>, values: Vec<Option<String>>) -> Self {
        Self { name: name.into(), values: TraitValues::Names(values) }
    }

    /// Returns a trait of numbers.
    pub fn numbers(name: impl Into<String>, values: Vec<f64>) -> Self {
        Self { name: name.into(), values: TraitValues::Numbers(values) }
    }

    /// Returns the number of pairs.
    pub fn len(&self) -> usize {
        match &self.values {
            TraitValues::Names(values) => values.len(),
            TraitValues::Numbers(values) => values.len(),
        }
    }

    /// Returns the trait of some pairs, by row.
    pub(crate) fn select(&self, rows: &[usize]) -> Self {
        let values = match &self.values {
            TraitValues::Names(values) => {
                TraitValues::Names(rows.iter().map(|&row| values[row].clone()).collect())
            }
            TraitValues::Numbers(values) => {
                TraitValues::Numbers(rows.iter().map(|&row| values[row]).collect())
            }
        };
        Self { name: self.name.clone(), values }
    }

    /// Returns whether there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
