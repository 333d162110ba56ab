//! Models' vectors of the same items, by name, and tables of every model against every model.

use crate::compatibility::{Compatibility, CrossMatrix};
use rehang_core::statistics::Interval;
use rehang_core::{Error, Matrix, Result};
use rehang_files::{InputReader, NamedFile, expect_distinct};
use serde::ser::{Serialize, Serializer};
use serde_json::{Value, json};

/// Names and vectors of models, in the order given.
pub(crate) struct Models {
    /// Reader that knows what was read for the comparison so far.
    pub inputs: InputReader,
    pub names: Vec<String>,
    pub vectors: Vec<Matrix>,
    /// Place of the best model, where one is named.
    best: Option<usize>,
}

impl Models {
    /// Reads the vectors, each name once; `best` names the model whose own search is the best to be had.
    pub fn read(
        role: &str,
        files: &[NamedFile],
        best: Option<&String>,
        mut inputs: InputReader,
    ) -> Result<Self> {
        expect_distinct("models", files)?;
        if files.is_empty() {
            return Err(Error::missing("`models`", "a comparison"));
        }
        let vectors = files
            .iter()
            .map(|named| {
                inputs.matrix(&format!("{role} by {}", named.name), std::slice::from_ref(&named.file))
            })
            .collect::<Result<_>>()?;
        let names = files.iter().map(|named| named.name.clone()).collect();
        let mut models = Self { inputs, names, vectors, best: None };
        models.best = best.map(|name| models.place("best", name)).transpose()?;
        Ok(models)
    }

    /// Finds the place of a model among the names.
    pub fn place(&self, parameter: &str, name: &str) -> Result<usize> {
        let place = self.names.iter().position(|other| other == name);
        place.ok_or_else(|| Error::option(parameter, name, format!("a model: {}", self.names.join(", "))))
    }

    /// Reads query vectors for these models, in their order; `None` where none are given.
    pub fn queries(&mut self, files: &[NamedFile]) -> Result<Option<Vec<Matrix>>> {
        if files.is_empty() {
            return Ok(None);
        }
        expect_distinct("queries", files)?;
        for named in files {
            self.place("queries", &named.name)?;
        }
        self.names
            .iter()
            .map(|name| {
                let named = files.iter().find(|other| other.name == *name);
                let named = named
                    .ok_or_else(|| Error::missing(format!("`queries` {name}=FILE"), "separate queries"))?;
                self.inputs.whole_matrix(&format!("queries by {name}"), &named.file)
            })
            .collect::<Result<_>>()
            .map(Some)
    }

    /// Computes a value for every model's queries in every model's gallery: `[asking][asked]`.
    pub fn every_pair<T>(&self, value: impl Fn(usize, usize) -> Result<T>) -> Result<Vec<Vec<T>>> {
        let models = self.names.len();
        (0..models).map(|asking| (0..models).map(|asked| value(asking, asked)).collect()).collect()
    }

    /// Makes a table of a metric for every pair of models.
    pub fn table(&self, value: impl Fn(usize, usize) -> f64) -> Result<Table> {
        let matrix = CrossMatrix::from_fn(&self.names, |asking, asked| Ok(value(asking, asked)))?;
        self.table_of(matrix, |_| Ok(Vec::new()))
    }

    /// Makes a table of a matrix; `intervals` gives those of the pairs' absolute gains, or nothing.
    pub fn table_of(
        &self,
        matrix: CrossMatrix,
        intervals: impl FnOnce(&[Compatibility]) -> Result<Vec<Interval>>,
    ) -> Result<Table> {
        let pairs = matrix.pairs(self.best);
        Ok(Table { intervals: intervals(&pairs)?, pairs, matrix })
    }
}

/// Table of one metric for every model against every model, and what it says about every pair of an older and
/// a newer one.
#[derive(Debug, Clone)]
pub struct Table {
    /// Matrix of the metric.
    pub matrix: CrossMatrix,
    /// Criterion and gains of every pair.
    pub pairs: Vec<Compatibility>,
    /// Intervals of the pairs' absolute gains, or nothing.
    pub intervals: Vec<Interval>,
}

/// Serialises as `{matrix, pairs}`, where a pair has its `absolute_gain_interval` if that was drawn.
impl Serialize for Table {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let pair = |(place, pair): (usize, &Compatibility)| {
            let mut value = json!(pair);
            if let Some(interval) = self.intervals.get(place) {
                value["absolute_gain_interval"] = json!([interval.low, interval.high]);
            }
            value
        };
        let pairs: Vec<Value> = self.pairs.iter().enumerate().map(pair).collect();
        json!({ "matrix": self.matrix.values, "pairs": pairs }).serialize(serializer)
    }
}
