//! Groups of arguments that several verbs take.

use std::path::PathBuf;

use rehang_core::Result;
use rehang_evaluate::AnswerFiles;
use rehang_files::{HeadFiles, JoinFiles, RowSelection, VectorSource};

use super::library::Argument;

arguments! {
    /// Rows of the files that take part.
    RowArguments {
        /// Use only rows where this file of integers (one a row) has one of the values, for example
        /// role.npy=0 or role.npy=1,2.
        rows: Option<String> = [long, value_name = "FILE=VALUES"],
    }

    /// Joining by id: old and new vectors that stand in different orders, or of which one side has more.
    #[allow(clippy::struct_field_names, reason = "the fields are the options' own names")]
    JoinArguments => JoinFiles {
        /// Ids of the old vectors, one a line (repeat for several files); with --new-ids, rows are joined by
        /// id instead of by position. What is made from the old vectors (adapted vectors, σ², orders) and
        /// what goes with items (labels, groups, side information) has their rows.
        old_ids: Vec<VectorSource> = [long, value_name = "FILE", requires = "new_ids"],
        /// Ids of the new vectors (repeat for several files).
        new_ids: Vec<VectorSource> = [long, value_name = "FILE", requires = "old_ids"],
        /// Use the items that both sides have, where rows are joined by id, instead of failing when some did
        /// not match.
        keep_common: bool = [long, requires = "old_ids"],
    }

    /// Classifier head of the new model.
    #[allow(clippy::struct_field_names, reason = "the fields are the options' own names")]
    HeadArguments => HeadFiles {
        /// Weight of the new model's classifier head, [classes, d_new].
        head_weight: Option<VectorSource> = [long, value_name = "FILE"],
        /// Bias of that head, [classes].
        head_bias: Option<VectorSource> = [long, value_name = "FILE", requires = "head_weight"],
        /// How the head was trained: softmax, normalised-softmax:SCALE, cosface:SCALE,MARGIN or
        /// arcface:SCALE,MARGIN (for example arcface:64,0.5).
        head_kind: String = [long, value_name = "KIND", default_value = "softmax"],
    }

    /// Queries that ask, and labels or judgements that say which answers are right.
    AnswerArguments => AnswerFiles {
        /// Class labels of the gallery: an item of the query's class is a right answer (repeat for several
        /// files).
        labels: Vec<VectorSource> = [long, value_name = "FILE"],
        /// New model's vectors of separate queries [default: the gallery itself, each item leaving itself
        /// out].
        queries: Option<VectorSource> = [long, value_name = "FILE"],
        /// Class labels of the queries.
        query_labels: Option<VectorSource> = [long, value_name = "FILE", requires = "queries", conflicts_with = "qrels"],
        /// Old model's vectors of the queries, for the do-nothing line.
        queries_old: Option<VectorSource> = [long, value_name = "FILE", requires_all = ["queries", "old"]],
        /// Judgements instead of labels: tab-separated query id, item id, gain (BEIR or TREC).
        qrels: Option<PathBuf> = [long, value_name = "FILE", requires_all = ["queries", "ids", "query_ids"], conflicts_with = "labels"],
        /// Ids of the gallery's items, one a line or .jsonl, for --qrels (repeat for several files).
        ids: Vec<VectorSource> = [long, value_name = "FILE", requires = "qrels"],
        /// Ids of the queries, for --qrels.
        query_ids: Option<VectorSource> = [long, value_name = "FILE", requires = "qrels"],
        /// A group of every query (one integer or name each), for the gap between groups (repeat for several
        /// files).
        groups: Vec<VectorSource> = [long, value_name = "FILE"],
        /// Cut-off of mAP@k, nDCG@k, recall@k and agreement@k.
        k: usize = [short, value_name = "K", default_value_t = 10],
    }
}

impl Argument<Option<RowSelection>> for RowArguments {
    fn value(&self) -> Result<Option<RowSelection>> {
        self.rows.value()
    }
}
