//! What counts as a right answer: reads the files that `curve` and `report` share.

use rehang::curve::{Qrels, Relevance};
use rehang::files::join::MissingPolicy;
use rehang::files::{self, VectorSource, qrels::read_qrels};
use rehang::{Error, Labels, Matrix, Result};

use crate::arguments;
use crate::input::{Inputs, Join};

/// Everything that was read.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Queries by the new model.
    pub queries: Option<Matrix>,
    /// Queries by the old model.
    pub queries_old: Option<Matrix>,
    /// A group of every query.
    pub groups: Option<Labels>,
    labels: Option<Labels>,
    query_labels: Option<Labels>,
    qrels: Option<Qrels>,
}

impl Loaded {
    /// Reads what is named; what goes with the gallery's items is joined as they are.
    pub fn read(arguments: &arguments::Relevance, inputs: &mut Inputs, join: &Join) -> Result<Self> {
        if arguments.k == 0 {
            return Err(Error::option("-k", 0, "1 or more"));
        }
        let mut loaded = Self::default();
        if let Some(path) = &arguments.queries {
            loaded.queries = Some(inputs.matrix_as_it_is("queries", path)?);
        }
        if let Some(path) = &arguments.queries_old {
            loaded.queries_old = Some(inputs.matrix_as_it_is("old queries", path)?);
        }
        match (&arguments.labels, &arguments.query_labels) {
            (Some(path), Some(query_path)) => {
                let (labels, query_labels) = inputs.labels_and_queries(path, query_path)?;
                loaded.labels = Some(join.old_values("labels", labels)?);
                loaded.query_labels = Some(query_labels);
            }
            (Some(path), None) => {
                loaded.labels = Some(join.old_values("labels", inputs.labels("labels", path)?)?);
            }
            (None, Some(path)) => {
                loaded.query_labels = Some(inputs.labels_as_they_are("query labels", path)?);
            }
            (None, None) => {}
        }
        if loaded.labels.is_some() && loaded.queries.is_some() && loaded.query_labels.is_none() {
            return Err(Error::missing("--query-labels", "--queries with --labels"));
        }
        if let Some(path) = &arguments.groups {
            // Without separate queries the groups are those of the gallery's rows, to which --rows applies.
            loaded.groups = Some(if loaded.queries.is_some() {
                inputs.labels_as_they_are("groups", path)?
            } else {
                join.old_values("groups", inputs.labels("groups", path)?)?
            });
        }
        if let (Some(path), Some(ids), Some(query_ids)) =
            (&arguments.qrels, &arguments.ids, &arguments.query_ids)
        {
            let ids = join.old_values("ids", ids_of(ids)?)?;
            let query_ids = ids_of(query_ids)?;
            let judged = read_qrels(path, &query_ids, &ids, MissingPolicy::Error)?;
            let judged = judged
                .judged
                .into_iter()
                .map(|items| items.into_iter().map(|(item, gain)| (item, f64::from(gain))).collect())
                .collect();
            loaded.qrels = Some(Qrels::new(judged)?);
        }
        Ok(loaded)
    }

    /// What makes an item a right answer; `None` where nothing was given.
    pub fn relevance(&self) -> Option<Relevance<'_>> {
        if let Some(qrels) = &self.qrels {
            return Some(Relevance::Judgements(qrels));
        }
        self.labels
            .as_ref()
            .map(|labels| Relevance::Labels { gallery: labels, queries: self.query_labels.as_deref() })
    }

    /// Whether there are judgements.
    pub fn is_judged(&self) -> bool {
        self.qrels.is_some()
    }
}

fn ids_of(path: &str) -> Result<Vec<String>> {
    files::read_ids(&VectorSource::parse(path)?)?.ok_or_else(|| Error::missing("a column of ids", path))
}
