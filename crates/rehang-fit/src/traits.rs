//! What is known of pairs beside their vectors.

/// Something that is known of every pair beside its vectors, such as the length of its source: it may say which pairs are another
/// thing.
#[derive(Debug, Clone, PartialEq)]
pub struct Trait {
    /// What it is, in words that follow "their": `label`, `source length`.
    pub name: String,
    /// One value a pair.
    pub values: TraitValues,
}

/// The values of a [`Trait`].
#[derive(Debug, Clone, PartialEq)]
pub enum TraitValues {
    /// Names, such as labels; `None` where a pair has none.
    Names(Vec<Option<String>>),
    /// Numbers, such as lengths.
    Numbers(Vec<f64>),
}

impl Trait {
    /// A trait of names.
    pub fn names(name: impl Into<String>, values: Vec<Option<String>>) -> Self {
        Self { name: name.into(), values: TraitValues::Names(values) }
    }

    /// A trait of numbers.
    pub fn numbers(name: impl Into<String>, values: Vec<f64>) -> Self {
        Self { name: name.into(), values: TraitValues::Numbers(values) }
    }

    /// How many pairs it is of.
    pub fn len(&self) -> usize {
        match &self.values {
            TraitValues::Names(values) => values.len(),
            TraitValues::Numbers(values) => values.len(),
        }
    }

    /// That of some pairs, by row.
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

    /// Whether it is of none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
