//! Arguments of `rehang-lab evaluate`.

use std::path::PathBuf;

use clap::Subcommand;
use rehang_cli::arguments::groups::RowArguments;
use rehang_cli::{arguments, options};
use rehang_core::Result;
use rehang_evaluate::study::StudyOptions;
use rehang_files::{NamedFile, VectorSource};
use rehang_protocols::{FaceFiles, ModelFiles};

/// Verbs of `rehang-lab evaluate`.
#[derive(Debug, Subcommand)]
pub enum EvaluateCommand {
    /// Every model's queries in every model's gallery: is the new model compatible, and what does it gain?
    ///
    /// Prints M(i, j) with queries by model i and gallery by model j; then for every older and newer model
    /// the empirical criterion M(new, old) > M(old, old), the update gain Γ (BCT), the absolute gain, Δ↑ and
    /// Δ↓ (DMU).
    ///
    /// Example: rehang-lab evaluate cross --models old=old.npy new=new.npy --labels labels.npy
    Cross(CrossArguments),
    /// Follow a hot refresh: queries by the new model, the gallery backfilled from old to new, in every order
    /// given.
    ///
    /// No adapter is used: old vectors stay as they are until they are replaced. Prints mAP, mAP@k and the
    /// negative flip rates NFR@1 and NFR@k (RACT).
    ///
    /// Example: rehang-lab evaluate refresh --models old=old.npy new=new.npy --labels labels.npy --orders
    /// worst=order.npy
    Refresh(RefreshArguments),
    /// Follow several upgrades in a row: a gallery that is never backfilled beside one that is (RACT §5.4,
    /// DMU table 6).
    ///
    /// Example: rehang-lab evaluate sequence --models v1=a.npy v2=b.npy v3=c.npy --labels labels.npy
    /// --backfilled 0.5 1
    Sequence(SequenceArguments),
    /// 1:1 face verification: TAR@FAR of template pairs, the first template by one model, the second by
    /// another.
    ///
    /// Example: rehang-lab evaluate verification --models old=old.npy new=new.npy --metadata faces.csv
    /// --pairs pairs.csv
    Verification(VerificationArguments),
    /// 1:N face search: TPIR@FPIR for probes of whom some are enrolled, and rank-1 and rank-5.
    ///
    /// Example: rehang-lab evaluate identification --models old=old.npy new=new.npy --metadata faces.csv
    /// --gallery g1.csv g2.csv --probes probes.csv
    Identification(IdentificationArguments),
    /// Landmark retrieval: mAP@100 of Google Landmarks v2 (--solution), or revisited Oxford and Paris in
    /// Easy, Medium and Hard (--ground-truth).
    ///
    /// Example: rehang-lab evaluate landmarks --models old=index-old.npy new=index-new.npy --queries
    /// old=q-old.npy new=q-new.npy --ground-truth roxford.json --distance cosine
    Landmarks(LandmarksArguments),
}

arguments! {
    /// The models to compare.
    NamedModels {
        /// A model and its vectors, NAME=FILE; give every model, oldest first. All files hold the same items
        /// in the same order.
        models: Vec<String> = [long, value_name = "NAME=FILE", required = true, num_args = 1..],
        /// The model whose own search is the best to be had with a full backfill (trained without regard for
        /// the old one): the whole of Γ where the new model itself is no better, and what Δ↓ is measured
        /// against [default: each new model itself, and no Δ↓].
        best: Option<String> = [long, value_name = "NAME"],
    }

    /// Right answers, and how vectors are compared.
    ModelArguments {
        /// Class labels of the gallery's items: an item of the query's class is a right answer. Negative
        /// means unknown.
        labels: Option<VectorSource> = [long, value_name = "FILE", required_unless_present = "qrels"],
        /// Separate queries, NAME=FILE for every model [default: the gallery itself, each item leaving itself
        /// out].
        queries: Vec<String> = [long, value_name = "NAME=FILE", num_args = 1..],
        /// Class labels of the queries.
        query_labels: Option<VectorSource> = [long, value_name = "FILE", requires = "queries", conflicts_with = "qrels"],
        /// Judgements instead of labels: tab-separated query id, item id, gain (BEIR or TREC).
        qrels: Option<PathBuf> = [long, value_name = "FILE", requires_all = ["queries", "ids", "query_ids"], conflicts_with = "labels"],
        /// Ids of the gallery's items, one a line or .jsonl, for --qrels.
        ids: Option<VectorSource> = [long, value_name = "FILE", requires = "qrels"],
        /// Ids of the queries, for --qrels.
        query_ids: Option<VectorSource> = [long, value_name = "FILE", requires = "qrels"],
        /// Rows to use, of the models' vectors, of --labels and of --ids.
        rows: RowArguments = [flatten],
        /// l2, cosine or dot; in every gallery. Where widths differ, the query is cut or filled up with zeros
        /// to fit the gallery.
        distance: String = [long, default_value = "l2"],
        /// Cut-off of mAP@k (and of NFR@k).
        k: usize = [short, value_name = "K", default_value_t = 10],
    }
}

impl ModelArguments {
    /// Gives models with their right answers, as the library takes them.
    pub fn files(&self, models: &[String]) -> Result<ModelFiles> {
        Ok(options!(
            ModelFiles { labels, query_labels, qrels, ids, query_ids, rows, distance, k } from self,
            models: named("models", models)?,
            queries: named("queries", &self.queries)?
        ))
    }
}

/// Reads files given as `NAME=FILE`.
pub fn named(parameter: &str, texts: &[String]) -> Result<Vec<NamedFile>> {
    texts.iter().map(|text| NamedFile::parse(parameter, text)).collect()
}

arguments! {
    /// Options of `rehang-lab evaluate cross`.
    CrossArguments {
        models: NamedModels = [flatten],
        answers: ModelArguments = [flatten],
        /// Bootstrap samples of the queries for the interval of the absolute gain; 0 for none.
        bootstrap: usize = [long, value_name = "SAMPLES", default_value_t = StudyOptions::default().bootstrap],
    }

    /// Options of `rehang-lab evaluate refresh`.
    RefreshArguments {
        /// The old and the new model's vectors of the gallery, NAME=FILE, the old one first.
        models: Vec<String> = [long, value_name = "NAME=FILE", required = true, num_args = 1..],
        answers: ModelArguments = [flatten],
        /// Orders of backfill, NAME=FILE, as `rehang order` writes them [default: one random order].
        orders: Vec<String> = [long, value_name = "NAME=FILE", num_args = 1..],
        /// Seed of the random order.
        seed: u64 = [long, default_value_t = 0],
        /// How many equally spaced fractions to print, 2 or more.
        grid: usize = [long, value_name = "POINTS", default_value_t = 5],
    }

    /// Options of `rehang-lab evaluate sequence`.
    SequenceArguments {
        /// The models' vectors of all items, NAME=FILE, in the order in which they come; the first one embeds
        /// the first gallery.
        models: Vec<String> = [long, value_name = "NAME=FILE", required = true, num_args = 1..],
        answers: ModelArguments = [flatten],
        /// Share of the older vectors that each upgrade backfills before the next one, 0 to 1: one number for
        /// all upgrades, or one for each.
        backfilled: Vec<f64> = [long, value_name = "SHARE", num_args = 1.., default_values_t = [1.0]],
        /// Order of backfill of a model's upgrade, NAME=FILE [default: one random order for all].
        orders: Vec<String> = [long, value_name = "NAME=FILE", num_args = 1..],
        /// Adapter into a model's space, NAME=FILE: when that model comes, every older vector goes through it
        /// [default: older vectors stay as they are].
        adapters: Vec<String> = [long, value_name = "NAME=FILE", num_args = 1..],
        /// Seed of the random order.
        seed: u64 = [long, default_value_t = 0],
        /// Model with which each item joins the gallery, 0 for the first, 1 for the second [default: all with
        /// the first].
        joined: Option<VectorSource> = [long, value_name = "FILE"],
    }

    /// Face images and who they are.
    FaceArguments {
        /// Face metadata with the columns TEMPLATE_ID, SUBJECT_ID and, if there, MEDIA_ID (or SIGHTING_ID)
        /// and FILENAME; a header line names them. Several files are read as one.
        metadata: Vec<PathBuf> = [long, value_name = "CSV", required = true, num_args = 1..],
        /// File name of every row of the vectors, one a line: rows are then found by FILENAME [default: by
        /// the order of the metadata].
        names: Option<VectorSource> = [long, value_name = "FILE"],
    }
}

impl FaceArguments {
    /// Gives the faces and the vectors of several models, as the library takes them.
    pub fn files(&self, models: &NamedModels) -> Result<FaceFiles> {
        Ok(options!(
            FaceFiles { metadata, names } from self,
            models: named("models", &models.models)?,
            best: models.best.clone()
        ))
    }
}

arguments! {
    /// Options of `rehang-lab evaluate verification`.
    VerificationArguments {
        models: NamedModels = [flatten],
        faces: FaceArguments = [flatten],
        /// Pairs of template ids to verify, two (and perhaps a label) a line.
        pairs: PathBuf = [long, value_name = "CSV"],
        /// False acceptance rates. A rate r needs at least 1/r pairs of different persons; with fewer it is
        /// undefined.
        far: Vec<f64> = [long, value_name = "RATE", num_args = 1.., default_values_t = [1e-5, 1e-4, 1e-3, 1e-2]],
    }

    /// Options of `rehang-lab evaluate identification`.
    IdentificationArguments {
        models: NamedModels = [flatten],
        faces: FaceArguments = [flatten],
        /// Templates that are enrolled: a list with a column TEMPLATE_ID, or one id a line. With several
        /// galleries each is searched on its own, and the mean is printed (IJB-C has two).
        gallery: Vec<PathBuf> = [long, value_name = "CSV", required = true, num_args = 1..],
        /// Templates that search. Those whose subject is not enrolled are the false positives.
        probes: PathBuf = [long, value_name = "CSV"],
        /// False positive identification rates. A rate r needs at least 1/r probes of persons who are not
        /// enrolled.
        fpir: Vec<f64> = [long, value_name = "RATE", num_args = 1.., default_values_t = [0.01, 0.1]],
        /// How many candidates a search returns: TPIR counts a probe's own subject only among them.
        candidates: usize = [long, value_name = "COUNT", default_value_t = 1],
    }

    /// Options of `rehang-lab evaluate landmarks`.
    LandmarksArguments {
        models: NamedModels = [flatten],
        /// Vectors of the queries, NAME=FILE for every model.
        queries: Vec<String> = [long, value_name = "NAME=FILE", required = true, num_args = 1..],
        /// Solution of Google Landmarks v2: a CSV with id, images and perhaps Usage.
        solution: Option<PathBuf> = [long, value_name = "CSV", requires_all = ["ids", "query_ids"], required_unless_present = "ground_truth"],
        /// Ground truth of revisited Oxford or Paris as JSON: queries, gallery, and easy, hard and junk
        /// images of each query.
        ground_truth: Option<PathBuf> = [long, value_name = "JSON", conflicts_with = "solution"],
        /// Ids of the gallery's rows, one a line; with --ground-truth only where the rows stand in another
        /// order than its gallery.
        ids: Option<VectorSource> = [long, value_name = "FILE"],
        /// Ids of the queries' rows, likewise.
        query_ids: Option<VectorSource> = [long, value_name = "FILE"],
        /// Use only queries of this usage, with --solution, for example Private [default: all but Ignored].
        usage: Option<String> = [long, value_name = "USAGE", conflicts_with = "ground_truth"],
        /// Pass over ids of the solution that have no vectors, with --solution, instead of failing.
        keep_common: bool = [long, conflicts_with = "ground_truth"],
        /// l2, cosine or dot; in every gallery.
        distance: String = [long, default_value = "cosine"],
        /// Cut-off of mAP@k, with --solution.
        k: usize = [short, value_name = "K", default_value_t = 100],
    }
}
