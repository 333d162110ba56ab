//! What counts as a right answer: reads the files that `curve` and `report` share.

use rehang::curve::{Qrels, Relevance};
use rehang::files::join::MissingPolicy;
use rehang::files::qrels::read_qrels;
use rehang::{Error, Labels, Matrix, Result};

use crate::arguments;
use crate::commands::say;
use crate::input::{Inputs, Join, expect_count, ids_of};

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
    /// Reads what is named; what goes with the gallery's `items` is joined as they are. `queries` is how many there are that
    /// were read already.
    pub fn read(
        arguments: &arguments::Relevance,
        inputs: &mut Inputs,
        join: &Join,
        items: usize,
        queries: Option<usize>,
    ) -> Result<Self> {
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
        if let (Some(path), Some(ids_path), Some(query_path)) =
            (&arguments.qrels, &arguments.ids, &arguments.query_ids)
        {
            let ids = join.old_values(ids_path, inputs.ids(ids_path)?)?;
            expect_count(ids_path, ids.len(), "the gallery", items)?;
            let query_ids = ids_of(query_path)?;
            if let Some(queries) = loaded.queries.as_ref().map(Matrix::rows).or(queries) {
                expect_count(query_path, query_ids.len(), "the queries", queries)?;
            }
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

    /// Says which options have no effect where nothing makes an item a right answer: those that are read here, and `others`
    /// that are given.
    pub fn say_idle(&self, others: &[(&str, bool)]) {
        if self.relevance().is_some() {
            return;
        }
        let own = [
            ("--groups", self.groups.is_some()),
            ("--queries-old", self.queries_old.is_some()),
            ("--query-labels", self.query_labels.is_some()),
        ];
        for (option, _) in others.iter().chain(&own).filter(|(_, given)| *given) {
            say(&format!("Warning: {option} has no effect without --labels or --qrels."));
        }
    }

    /// Whether there are judgements.
    pub fn is_judged(&self) -> bool {
        self.qrels.is_some()
    }
}
