//! What counts as a right answer: reads the files that `curve` and `report` share.

use rehang::curve::{Qrels, Relevance};
use rehang::files::join::MissingPolicy;
use rehang::files::qrels::read_qrels;
use rehang::{Error, Labels, Matrix, Result};

use crate::arguments;
use crate::commands::say;
use crate::input::{Inputs, Join, Names, expect_count, ids_of};

/// Everything that was read.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Queries by the new model.
    pub queries: Option<Matrix>,
    /// Queries by the old model.
    pub queries_old: Option<Matrix>,
    /// A group of every query.
    pub groups: Option<Labels>,
    /// The names of the groups, in the order of their numbers; empty where the groups are numbers themselves.
    group_names: Vec<String>,
    /// Whether the labels of the gallery are names.
    pub labels_are_names: bool,
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
        let queries = loaded.queries.as_ref().map(Matrix::rows).or(queries);
        let expect_queries = |path: &str, count: usize| match queries {
            Some(queries) => expect_count(path, count, "the queries", queries),
            None => Ok(()),
        };
        // A name is the same class in the gallery and among the queries.
        let mut classes = Names::default();
        if !arguments.labels.is_empty() {
            let path = arguments.labels.join(", ");
            let labels = inputs.labels("labels", &arguments.labels, &mut classes)?;
            let labels = join.old_values(&path, labels)?;
            expect_count(&path, labels.len(), "the gallery", items)?;
            loaded.labels = Some(labels);
            loaded.labels_are_names = classes.are_names();
        }
        if let Some(path) = &arguments.query_labels {
            let paths = std::slice::from_ref(path);
            let labels = inputs.labels_as_they_are("query labels", paths, &mut classes)?;
            expect_queries(path, labels.len())?;
            loaded.query_labels = Some(labels);
        }
        if loaded.labels.is_some() && loaded.queries.is_some() && loaded.query_labels.is_none() {
            return Err(Error::missing("--query-labels", "--queries with --labels"));
        }
        if !arguments.groups.is_empty() {
            let path = arguments.groups.join(", ");
            let mut names = Names::default();
            // Without separate queries the groups are those of the gallery's rows, to which --rows applies.
            let groups = if loaded.queries.is_some() {
                let groups = inputs.labels_as_they_are("groups", &arguments.groups, &mut names)?;
                expect_queries(&path, groups.len())?;
                groups
            } else {
                let groups =
                    join.old_values(&path, inputs.labels("groups", &arguments.groups, &mut names)?)?;
                expect_count(&path, groups.len(), "the gallery", items)?;
                groups
            };
            loaded.groups = Some(groups);
            loaded.group_names = names.in_order;
        }
        if let (Some(path), false, Some(query_path)) =
            (&arguments.qrels, arguments.ids.is_empty(), &arguments.query_ids)
        {
            let ids_path = arguments.ids.join(", ");
            let ids = join.old_values(&ids_path, inputs.ids(&arguments.ids)?)?;
            expect_count(&ids_path, ids.len(), "the gallery", items)?;
            let query_ids = ids_of(std::slice::from_ref(query_path))?;
            expect_queries(query_path, query_ids.len())?;
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

    /// The name of a group; `None` where the groups are numbers themselves.
    pub fn group_name(&self, group: i64) -> Option<&str> {
        self.group_names.get(usize::try_from(group).ok()?).map(String::as_str)
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
