//! Right answers, and who asks: the files of labels, judgements and queries that curves, reports and
//! comparisons of models share.

use std::path::PathBuf;

use rehang_core::check::expect_count;
use rehang_core::curve::{Qrels, Relevance};
use rehang_core::finding::FindingCode;
use rehang_core::{Error, Labels, Matrix, Result};
use rehang_files::{InputReader, Join, Names, VectorSource, joined_names};

/// Files of right answers, of queries and of their groups. Without `labels` and `qrels`, no item counts as a
/// right answer.
#[derive(Debug, Clone)]
pub struct AnswerFiles {
    /// Class labels of the gallery, one file below the other: an item of the query's class is a right answer.
    pub labels: Vec<VectorSource>,
    /// The new model's vectors of separate queries; without them every item of the gallery is a query that
    /// leaves itself out.
    pub queries: Option<VectorSource>,
    /// Class labels of the queries; needed where there are `queries` and `labels`.
    pub query_labels: Option<VectorSource>,
    /// The old model's vectors of the queries, for the do-nothing line.
    pub queries_old: Option<VectorSource>,
    /// Judgements in place of labels: query id, item id, gain (BEIR or TREC). They need `queries`, `ids` and
    /// `query_ids`.
    pub qrels: Option<PathBuf>,
    /// Ids of the gallery's items, one file below the other.
    pub ids: Vec<VectorSource>,
    /// Ids of the queries.
    pub query_ids: Option<VectorSource>,
    /// A group of every query, for the gap between groups.
    pub groups: Vec<VectorSource>,
    /// Cut-off of mAP@k, nDCG@k, recall@k and agreement@k; 1 or more, 10 by default.
    pub k: usize,
}

impl Default for AnswerFiles {
    fn default() -> Self {
        Self {
            labels: Vec::new(),
            queries: None,
            query_labels: None,
            queries_old: None,
            qrels: None,
            ids: Vec::new(),
            query_ids: None,
            groups: Vec::new(),
            k: 10,
        }
    }
}

/// Everything that was read from the files of [`AnswerFiles`].
#[derive(Debug, Default)]
pub struct Answers {
    /// Queries by the new model.
    pub queries: Option<Matrix>,
    /// Queries by the old model.
    pub queries_old: Option<Matrix>,
    /// A group of every query.
    pub groups: Option<Labels>,
    /// The names of the groups, in the order of their numbers; empty where the groups are numbers themselves.
    pub group_names: Vec<String>,
    /// Whether the labels of the gallery are names.
    pub labels_are_names: bool,
    labels: Option<Labels>,
    query_labels: Option<Labels>,
    qrels: Option<Qrels>,
}

impl Answers {
    /// Reads the files that are named. Files that go with the gallery's `items` are joined as the items are
    /// joined. `queries_read` is the number of queries that were read already.
    ///
    /// # Errors
    ///
    /// Errors of a file, or between two files, name them. [`MissingInput`](rehang_core::ErrorKind::MissingInput)
    /// and [`InvalidOption`](rehang_core::ErrorKind::InvalidOption) for parameters that need, or exclude, each
    /// other.
    pub fn read(
        files: &AnswerFiles,
        inputs: &mut InputReader,
        join: &Join,
        items: usize,
        queries_read: Option<usize>,
    ) -> Result<Self> {
        files.check(queries_read.is_some())?;
        let mut answers = Self::default();
        if let Some(source) = &files.queries {
            answers.queries = Some(inputs.whole_matrix("queries", source)?);
        }
        if let Some(source) = &files.queries_old {
            answers.queries_old = Some(inputs.whole_matrix("old queries", source)?);
        }
        let queries = answers.queries.as_ref().map(Matrix::rows).or(queries_read);
        let expect_queries = |source: &str, count: usize| match queries {
            Some(queries) => expect_count(source, count, "the queries", queries),
            None => Ok(()),
        };
        // A name means the same class in the gallery and among the queries.
        let mut classes = Names::default();
        if !files.labels.is_empty() {
            let path = joined_names(&files.labels);
            let labels = join.old_values(&path, inputs.labels("labels", &files.labels, &mut classes)?)?;
            expect_count(&path, labels.len(), "the gallery", items)?;
            answers.labels = Some(labels);
            answers.labels_are_names = classes.are_names();
        }
        if let Some(source) = &files.query_labels {
            let labels = inputs.whole_labels("query labels", std::slice::from_ref(source), &mut classes)?;
            expect_queries(&source.to_string(), labels.len())?;
            answers.query_labels = Some(labels);
        }
        if !files.groups.is_empty() {
            let path = joined_names(&files.groups);
            let mut names = Names::default();
            // Without separate queries the groups are those of the gallery's rows; only some of the rows may
            // be selected.
            let groups = if answers.queries.is_some() {
                let groups = inputs.whole_labels("groups", &files.groups, &mut names)?;
                expect_queries(&path, groups.len())?;
                groups
            } else {
                let groups = join.old_values(&path, inputs.labels("groups", &files.groups, &mut names)?)?;
                expect_count(&path, groups.len(), "the gallery", items)?;
                groups
            };
            answers.groups = Some(groups);
            answers.group_names = names.in_order;
        }
        if let (Some(path), Some(query_source)) = (&files.qrels, &files.query_ids) {
            let (ids, query_ids) = ((&files.ids[..], items), (query_source, queries));
            answers.qrels = Some(inputs.judgements(path, ids, query_ids, join)?);
        }
        Ok(answers)
    }

    /// Returns the name of a group; `None` where the groups are numbers themselves.
    pub fn group_name(&self, group: i64) -> Option<&str> {
        self.group_names.get(usize::try_from(group).ok()?).map(String::as_str)
    }

    /// Returns the class labels of the gallery.
    pub fn labels(&self) -> Option<&Labels> {
        self.labels.as_ref()
    }

    /// Returns the class labels of separate queries.
    pub fn query_labels(&self) -> Option<&[i64]> {
        self.query_labels.as_deref()
    }

    /// Returns what makes an item a right answer: judgements, or else labels; `None` where neither was given.
    pub fn relevance(&self) -> Option<Relevance<'_>> {
        if let Some(qrels) = &self.qrels {
            return Some(Relevance::Judgements(qrels));
        }
        self.labels
            .as_ref()
            .map(|labels| Relevance::Labels { gallery: labels, queries: self.query_labels.as_deref() })
    }

    /// Warns of every given parameter that has no effect because nothing makes an item a right answer: those
    /// that are read here, and `other_parameters`.
    pub fn warn_idle(&self, inputs: &mut InputReader, other_parameters: &[(&str, bool)]) {
        if self.relevance().is_some() {
            return;
        }
        let own_parameters = [
            ("groups", self.groups.is_some()),
            ("queries_old", self.queries_old.is_some()),
            ("query_labels", self.query_labels.is_some()),
        ];
        for (parameter, _) in other_parameters.iter().chain(&own_parameters).filter(|(_, is_given)| *is_given)
        {
            let observation = format!("`{parameter}` has no effect without `labels` or `qrels`.");
            inputs.warn(FindingCode::IdleParameter, observation);
        }
    }
}

impl AnswerFiles {
    /// Fails where a parameter misses another one, or excludes it; `has_queries` where queries were read
    /// already.
    ///
    /// # Errors
    ///
    /// [`MissingInput`](rehang_core::ErrorKind::MissingInput) and
    /// [`InvalidOption`](rehang_core::ErrorKind::InvalidOption), naming the parameter.
    pub fn check(&self, has_queries: bool) -> Result<()> {
        if self.k == 0 {
            return Err(Error::option("k", 0, "1 or more"));
        }
        let has_queries = has_queries || self.queries.is_some();
        if !self.labels.is_empty() && self.qrels.is_some() {
            return Err(Error::option("labels", joined_names(&self.labels), "nothing beside `qrels`"));
        }
        if !self.labels.is_empty() && has_queries && self.query_labels.is_none() {
            return Err(Error::missing("`query_labels`", "`queries` with `labels`"));
        }
        for (dependent, is_given) in
            [("query_labels", self.query_labels.is_some()), ("queries_old", self.queries_old.is_some())]
        {
            if is_given && !has_queries {
                return Err(Error::missing("`queries`", format!("`{dependent}`")));
            }
        }
        if self.qrels.is_some() && !(has_queries && !self.ids.is_empty() && self.query_ids.is_some()) {
            return Err(Error::missing("`queries`, `ids` and `query_ids`", "`qrels`"));
        }
        Ok(())
    }
}
