//! What can be said behind `rehang evaluate`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use rehang::Result;
use rehang_files::VectorSource;
use rehang_protocols::{FaceFiles, ModelFiles, NamedFile};

use super::RowSelection;

/// Verbs of `rehang evaluate`.
#[derive(Debug, Subcommand)]
pub enum Evaluate {
    /// Every model's queries in every model's gallery: is the new model compatible, and what does it gain?
    ///
    /// Prints M(i, j) with queries by model i and gallery by model j; then for every older and newer model the empirical
    /// criterion M(new, old) > M(old, old), the update gain Γ (BCT), the absolute gain, Δ↑ and Δ↓ (DMU).
    ///
    /// Example: rehang evaluate cross --models old=old.npy new=new.npy --labels labels.npy
    Cross(Cross),
    /// Follow a hot refresh: queries by the new model, the gallery backfilled from old to new, in every order given.
    ///
    /// No adapter is used: old vectors stay as they are until they are replaced. Prints mAP, mAP@k and the negative flip rates
    /// NFR@1 and NFR@k (RACT).
    ///
    /// Example: rehang evaluate refresh --models old=old.npy new=new.npy --labels labels.npy --orders worst=order.npy
    Refresh(Refresh),
    /// Follow several upgrades in a row: a gallery that is never backfilled beside one that is (RACT §5.4, DMU table 6).
    ///
    /// Example: rehang evaluate sequence --models v1=a.npy v2=b.npy v3=c.npy --labels labels.npy --backfilled 0.5 1
    Sequence(Sequence),
    /// 1:1 face verification: TAR@FAR of template pairs, the first template by one model, the second by another.
    ///
    /// Example: rehang evaluate verification --models old=old.npy new=new.npy --metadata faces.csv --pairs pairs.csv
    Verification(Verification),
    /// 1:N face search: TPIR@FPIR for probes of whom some are enrolled, and rank-1 and rank-5.
    ///
    /// Example: rehang evaluate identification --models old=old.npy new=new.npy --metadata faces.csv --gallery g1.csv g2.csv
    /// --probes probes.csv
    Identification(Identification),
    /// Landmark retrieval: mAP@100 of Google Landmarks v2 (--solution), or revisited Oxford and Paris in Easy, Medium and Hard
    /// (--ground-truth).
    ///
    /// Example: rehang evaluate landmarks --models old=index-old.npy new=index-new.npy --queries old=q-old.npy new=q-new.npy
    /// --ground-truth roxford.json --distance cosine
    Landmarks(Landmarks),
}

/// The models to compare.
#[derive(Debug, Args)]
pub struct Models {
    /// A model and its vectors, NAME=FILE; give every model, oldest first. All files hold the same items in the same order.
    #[arg(long, value_name = "NAME=FILE", required = true, num_args = 1..)]
    pub models: Vec<String>,
    /// The model whose own search is the best to be had with a full backfill (trained without regard for the old one): the
    /// whole of Γ, and what Δ↓ is measured against [default: each new model itself, and no Δ↓].
    #[arg(long, value_name = "NAME")]
    pub best: Option<String>,
}

/// Right answers, and how vectors are compared.
#[derive(Debug, Args)]
pub struct Answers {
    /// Class labels of the gallery's items: an item of the query's class is a right answer. Negative means unknown.
    #[arg(long, value_name = "FILE", required_unless_present = "qrels")]
    pub labels: Option<VectorSource>,
    /// Separate queries, NAME=FILE for every model [default: the gallery itself, each item leaving itself out].
    #[arg(long, value_name = "NAME=FILE", num_args = 1..)]
    pub queries: Vec<String>,
    /// Class labels of the queries.
    #[arg(long, value_name = "FILE", requires = "queries", conflicts_with = "qrels")]
    pub query_labels: Option<VectorSource>,
    /// Judgements instead of labels: tab-separated query id, item id, gain (BEIR or TREC).
    #[arg(long, value_name = "FILE", requires_all = ["queries", "ids", "query_ids"], conflicts_with = "labels")]
    pub qrels: Option<PathBuf>,
    /// Ids of the gallery's items, one a line or .jsonl, for --qrels.
    #[arg(long, value_name = "FILE", requires = "qrels")]
    pub ids: Option<VectorSource>,
    /// Ids of the queries, for --qrels.
    #[arg(long, value_name = "FILE", requires = "qrels")]
    pub query_ids: Option<VectorSource>,
    /// Rows to use, of the models' vectors, of --labels and of --ids.
    #[command(flatten)]
    pub selection: RowSelection,
    /// l2, cosine or dot; in every gallery. Where widths differ, the query is cut or filled up with zeros to fit the gallery.
    #[arg(long, default_value = "l2")]
    pub distance: String,
    /// Cut-off of mAP@k (and of NFR@k).
    #[arg(short, value_name = "K", default_value_t = 10)]
    pub k: usize,
}

impl Answers {
    /// These models with their right answers, as the library takes them.
    pub fn files(&self, models: &[String]) -> Result<ModelFiles> {
        Ok(ModelFiles {
            models: named("models", models)?,
            labels: self.labels.clone(),
            queries: named("queries", &self.queries)?,
            query_labels: self.query_labels.clone(),
            qrels: self.qrels.clone(),
            ids: self.ids.clone(),
            query_ids: self.query_ids.clone(),
            rows: self.selection.parsed()?,
            distance: self.distance.parse()?,
            k: self.k,
        })
    }
}

/// The files of `NAME=FILE`.
pub fn named(parameter: &str, texts: &[String]) -> Result<Vec<NamedFile>> {
    texts.iter().map(|text| NamedFile::parse(parameter, text)).collect()
}

/// Options of `rehang evaluate cross`.
#[derive(Debug, Args)]
pub struct Cross {
    /// Models.
    #[command(flatten)]
    pub models: Models,
    /// Right answers.
    #[command(flatten)]
    pub answers: Answers,
    /// Bootstrap samples of the queries for the interval of the absolute gain; 0 for none.
    #[arg(long, value_name = "SAMPLES", default_value_t = 1000)]
    pub bootstrap: usize,
}

/// Options of `rehang evaluate refresh`.
#[derive(Debug, Args)]
pub struct Refresh {
    /// The old and the new model's vectors of the gallery, NAME=FILE, the old one first.
    #[arg(long, value_name = "NAME=FILE", required = true, num_args = 1..)]
    pub models: Vec<String>,
    /// Right answers.
    #[command(flatten)]
    pub answers: Answers,
    /// Orders of backfill, NAME=FILE, as `rehang order` writes them [default: one random order].
    #[arg(long, value_name = "NAME=FILE", num_args = 1..)]
    pub orders: Vec<String>,
    /// Seed of the random order.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// How many equally spaced fractions to print, 2 or more.
    #[arg(long, value_name = "POINTS", default_value_t = 5)]
    pub grid: usize,
}

/// Options of `rehang evaluate sequence`.
#[derive(Debug, Args)]
pub struct Sequence {
    /// The models' vectors of all items, NAME=FILE, in the order in which they come; the first one embeds the first gallery.
    #[arg(long, value_name = "NAME=FILE", required = true, num_args = 1..)]
    pub models: Vec<String>,
    /// Right answers.
    #[command(flatten)]
    pub answers: Answers,
    /// Which share of the older vectors each upgrade backfills before the next one, 0 to 1: one number for all upgrades, or one
    /// for each.
    #[arg(long, value_name = "SHARE", num_args = 1.., default_values_t = [1.0])]
    pub backfilled: Vec<f64>,
    /// Order of backfill of a model's upgrade, NAME=FILE [default: one random order for all].
    #[arg(long, value_name = "NAME=FILE", num_args = 1..)]
    pub orders: Vec<String>,
    /// Adapter into a model's space, NAME=FILE: when that model comes, every older vector goes through it [default: older vectors
    /// stay as they are].
    #[arg(long, value_name = "NAME=FILE", num_args = 1..)]
    pub adapters: Vec<String>,
    /// Seed of the random order.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// For each item the model with which it joins the gallery, 0 for the first, 1 for the second [default: all with the first].
    #[arg(long, value_name = "FILE")]
    pub joined: Option<VectorSource>,
}

/// Face images and who they are.
#[derive(Debug, Args)]
pub struct Faces {
    /// Face metadata with the columns TEMPLATE_ID, SUBJECT_ID and, if there, MEDIA_ID (or SIGHTING_ID) and FILENAME; a header line
    /// names them. Several files are read as one.
    #[arg(long, value_name = "CSV", required = true, num_args = 1..)]
    pub metadata: Vec<PathBuf>,
    /// File name of every row of the vectors, one a line: rows are then found by FILENAME [default: by the order of the metadata].
    #[arg(long, value_name = "FILE")]
    pub names: Option<VectorSource>,
}

impl Faces {
    /// These faces by several models, as the library takes them.
    pub fn files(&self, models: &Models) -> Result<FaceFiles> {
        Ok(FaceFiles {
            models: named("models", &models.models)?,
            best: models.best.clone(),
            metadata: self.metadata.clone(),
            names: self.names.clone(),
        })
    }
}

/// Options of `rehang evaluate verification`.
#[derive(Debug, Args)]
pub struct Verification {
    /// Models.
    #[command(flatten)]
    pub models: Models,
    /// Faces.
    #[command(flatten)]
    pub faces: Faces,
    /// Pairs of template ids to verify, two (and perhaps a label) a line.
    #[arg(long, value_name = "CSV")]
    pub pairs: PathBuf,
    /// False acceptance rates. A rate needs at least one over it pairs of different persons; below that it is undefined.
    #[arg(long, value_name = "RATE", num_args = 1.., default_values_t = [1e-5, 1e-4, 1e-3, 1e-2])]
    pub far: Vec<f64>,
}

/// Options of `rehang evaluate identification`.
#[derive(Debug, Args)]
pub struct Identification {
    /// Models.
    #[command(flatten)]
    pub models: Models,
    /// Faces.
    #[command(flatten)]
    pub faces: Faces,
    /// Templates that are enrolled: a list with a column TEMPLATE_ID, or one id a line. With several galleries each is searched
    /// on its own, and the mean is printed (IJB-C has two).
    #[arg(long, value_name = "CSV", required = true, num_args = 1..)]
    pub gallery: Vec<PathBuf>,
    /// Templates that search. Those whose subject is not enrolled are the false positives.
    #[arg(long, value_name = "CSV")]
    pub probes: PathBuf,
    /// False positive identification rates. A rate needs at least one over it probes who are not enrolled.
    #[arg(long, value_name = "RATE", num_args = 1.., default_values_t = [0.01, 0.1])]
    pub fpir: Vec<f64>,
    /// How many candidates a search returns: TPIR counts a probe's own subject only among them.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub candidates: usize,
}

/// Options of `rehang evaluate landmarks`.
#[derive(Debug, Args)]
pub struct Landmarks {
    /// Models.
    #[command(flatten)]
    pub models: Models,
    /// Vectors of the queries, NAME=FILE for every model.
    #[arg(long, value_name = "NAME=FILE", required = true, num_args = 1..)]
    pub queries: Vec<String>,
    /// Solution of Google Landmarks v2: a CSV with id, images and perhaps Usage.
    #[arg(long, value_name = "CSV", requires_all = ["ids", "query_ids"], required_unless_present = "ground_truth")]
    pub solution: Option<PathBuf>,
    /// Ground truth of revisited Oxford or Paris as JSON: queries, gallery, and easy, hard and junk images of each query.
    #[arg(long, value_name = "JSON", conflicts_with = "solution")]
    pub ground_truth: Option<PathBuf>,
    /// Ids of the gallery's rows, one a line; with --ground-truth only where the rows stand in another order than its gallery.
    #[arg(long, value_name = "FILE")]
    pub ids: Option<VectorSource>,
    /// Ids of the queries' rows, likewise.
    #[arg(long, value_name = "FILE")]
    pub query_ids: Option<VectorSource>,
    /// With --solution: use only queries of this usage, for example Private [default: all but Ignored].
    #[arg(long, value_name = "USAGE", conflicts_with = "ground_truth")]
    pub usage: Option<String>,
    /// With --solution: pass over ids of the solution that have no vectors, instead of failing.
    #[arg(long, conflicts_with = "ground_truth")]
    pub keep_common: bool,
    /// l2, cosine or dot; in every gallery.
    #[arg(long, default_value = "cosine")]
    pub distance: String,
    /// With --solution: cut-off of mAP@k.
    #[arg(short, value_name = "K", default_value_t = 100)]
    pub k: usize,
}
