//! What can be said on the command line. Parsing only: nothing here opens a file.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Replace the embedding model behind a live vector gallery: searches improve at once, items are re-embedded worst first.
///
/// Start with `rehang demo`. With your own vectors: `rehang fit` learns a map from old to new vectors on a sample embedded
/// by both models, `rehang report` shows what switching would buy.
#[derive(Debug, Parser)]
#[command(name = "rehang", version, propagate_version = true, max_term_width = 110)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,

    /// Print one JSON object on stdout instead of text.
    #[arg(long, global = true)]
    pub json: bool,

    /// Threads to use [default: all cores]. Results do not depend on it.
    #[arg(long, global = true, value_name = "N")]
    pub threads: Option<usize>,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// A whole upgrade of a small image gallery on this machine, with a report at the end (under a minute, offline).
    Demo(Demo),
    /// Learn the map from old to new vectors (and how far to trust it) from pairs.
    Fit(Fit),
    /// Turn old vectors into vectors of the new space, with σ² for each; streams files of any size.
    Transform(Transform),
    /// Say in which order items should be re-embedded.
    Order(Order),
    /// The exact backfilling curve: what every percent of re-embedding buys.
    Curve(Curve),
    /// Compare adapters and orders on a gallery whose new vectors are known, and write a report to look at.
    Report(Report),
    /// Say what an adapter file is: spaces, method, seed, inputs.
    Inspect(Inspect),
}

/// Options of `rehang demo`.
#[derive(Debug, Args)]
pub struct Demo {
    /// Folder for the report and the files of the upgrade.
    #[arg(long, value_name = "DIR", default_value = "rehang-demo")]
    pub out: PathBuf,
    /// Seed of everything random.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

/// Which rows of the files take part.
#[derive(Debug, Args, Default)]
pub struct RowSelection {
    /// Use only rows where this file of integers (one a row) has one of the values, for example role.npy=0 or role.npy=1,2.
    #[arg(long, value_name = "FILE=VALUES")]
    pub rows: Option<String>,
}

/// Names of the two spaces.
#[derive(Debug, Args)]
pub struct SpaceNames {
    /// Name of the old model, as it shall stand in the adapter and in reports.
    #[arg(long, value_name = "NAME", default_value = "old")]
    pub old_model: String,
    /// Name of the new model.
    #[arg(long, value_name = "NAME", default_value = "new")]
    pub new_model: String,
    /// Distance used for search: l2, cosine or dot.
    #[arg(long, default_value = "l2")]
    pub distance: String,
    /// Distance of the old space, where it differs: the do-nothing line is searched with it [default: as --distance].
    #[arg(long, value_name = "DISTANCE")]
    pub old_distance: Option<String>,
}

/// Classifier head of the new model.
#[allow(clippy::struct_field_names, reason = "the fields are the options' own names")]
#[derive(Debug, Args, Default)]
pub struct HeadFiles {
    /// Weight of the new model's classifier head, [classes, d_new].
    #[arg(long, value_name = "FILE")]
    pub head_weight: Option<String>,
    /// Bias of that head, [classes].
    #[arg(long, value_name = "FILE", requires = "head_weight")]
    pub head_bias: Option<String>,
    /// How the head was trained: softmax, or arcface:SCALE,MARGIN (for example arcface:64,0.5).
    #[arg(long, value_name = "KIND", default_value = "softmax")]
    pub head_kind: String,
}

/// Options of `rehang fit`.
#[derive(Debug, Args)]
pub struct Fit {
    /// Old vectors of the pairs: .npy, .parquet, .fvecs, .bvecs or .safetensors (FILE#COLUMN picks a column or tensor).
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pub old: Vec<String>,
    /// New vectors of the same items.
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pub new: Vec<String>,
    /// Class labels, one integer an item; negative means unknown. Optional.
    #[arg(long, value_name = "FILE")]
    pub labels: Option<String>,
    /// Side information, one row an item: vectors of another model that you also keep for the whole gallery. Optional.
    #[arg(long, value_name = "FILE")]
    pub side: Option<String>,
    /// Ids of the old vectors, one a line; with --new-ids, rows are joined by id instead of by position.
    #[arg(long, value_name = "FILE", requires = "new_ids")]
    pub old_ids: Option<String>,
    /// Ids of the new vectors.
    #[arg(long, value_name = "FILE", requires = "old_ids")]
    pub new_ids: Option<String>,
    /// With ids: use the items that both sides have, instead of failing when some did not match.
    #[arg(long)]
    pub keep_common: bool,
    /// Rows to use.
    #[command(flatten)]
    pub selection: RowSelection,
    /// Head files.
    #[command(flatten)]
    pub head: HeadFiles,
    /// Spaces.
    #[command(flatten)]
    pub spaces: SpaceNames,
    /// auto, do-nothing, procrustes, ridge, low-rank, kernel-ridge, residual-mlp, fct, fastfill or fastfill-reference.
    #[arg(long, default_value = "auto")]
    pub method: String,
    /// Which parts of the loss fastfill uses: l2, disc or both [default: what helps on held-out pairs].
    #[arg(long, value_name = "PARTS")]
    pub loss: Option<String>,
    /// Where σ² comes from: out-of-fold (default), joint (trained with the map, as published) or off.
    #[arg(long, value_name = "KIND")]
    pub uncertainty: Option<String>,
    /// Epochs of the learned methods.
    #[arg(long, value_name = "E")]
    pub epochs: Option<usize>,
    /// Stop when the loss on held-out pairs has not improved for this many epochs.
    #[arg(long, value_name = "EPOCHS")]
    pub early_stop: Option<usize>,
    /// Fit this many seeds (SEED, SEED+1, …) and keep the best on held-out pairs.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seeds: u64,
    /// Seed of everything random.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Where learned methods train: cpu, flex, wgpu or cuda.
    #[arg(long, default_value = "cpu")]
    pub device: String,
    /// Keep the state of every training in this folder; an interrupted fit goes on from it.
    #[arg(long, value_name = "FOLDER")]
    pub checkpoints: Option<PathBuf>,
    /// Let auto also fit networks that take minutes on these pairs.
    #[arg(long)]
    pub thorough: bool,
    /// Evaluation vectors (old model) that must not be among the pairs: warns where they are.
    #[arg(long, value_name = "FILE")]
    pub evaluation_old: Option<String>,
    /// The adapter file to write.
    #[arg(short, long, value_name = "ADAPTER")]
    pub output: PathBuf,
}

/// Options of `rehang transform`.
#[derive(Debug, Args)]
pub struct Transform {
    /// Adapter file made by `rehang fit`.
    pub adapter: PathBuf,
    /// Old vectors.
    #[arg(value_name = "OLD", required = true, num_args = 1..)]
    pub input: Vec<String>,
    /// Side information, where the adapter was fitted with it.
    #[arg(long, value_name = "FILE")]
    pub side: Option<String>,
    /// Rows to use.
    #[command(flatten)]
    pub selection: RowSelection,
    /// Vectors of the new space: .npy, .parquet, .fvecs or .safetensors.
    #[arg(short, long, value_name = "ADAPTED")]
    pub output: PathBuf,
    /// σ² of every vector (the expected squared error), .npy.
    #[arg(long, value_name = "SIGMA")]
    pub sigma: Option<PathBuf>,
    /// Go on although the vectors do not look like those that the adapter was fitted on.
    #[arg(long)]
    pub force: bool,
    /// Rows a batch.
    #[arg(long, value_name = "ROWS", default_value_t = 16_384)]
    pub batch: usize,
}

/// Options of `rehang order`.
#[derive(Debug, Args)]
pub struct Order {
    /// coverage (recommended), sigma, random, least-confidence, margin, entropy or oracle (evaluation only).
    #[arg(long)]
    pub policy: String,
    /// σ² of every item, from `rehang transform`.
    #[arg(long, value_name = "FILE")]
    pub sigma: Option<String>,
    /// Adapted vectors, from `rehang transform`.
    #[arg(long, value_name = "FILE")]
    pub adapted: Option<String>,
    /// New vectors, for the oracle only.
    #[arg(long, value_name = "FILE")]
    pub new: Option<String>,
    /// Adapter file: its own head serves the coverage order where no other is given.
    #[arg(long, value_name = "ADAPTER")]
    pub adapter: Option<PathBuf>,
    /// Head files.
    #[command(flatten)]
    pub head: HeadFiles,
    /// Seed of the random order.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// The order to write: int64 .npy, the first entry is re-embedded first.
    #[arg(short, long, value_name = "ORDER")]
    pub output: PathBuf,
}

/// What counts as a right answer.
#[derive(Debug, Args, Default)]
pub struct Relevance {
    /// Class labels of the gallery: an item of the query's class is a right answer.
    #[arg(long, value_name = "FILE")]
    pub labels: Option<String>,
    /// New model's vectors of separate queries [default: the gallery itself, each item leaving itself out].
    #[arg(long, value_name = "FILE")]
    pub queries: Option<String>,
    /// Class labels of the queries.
    #[arg(long, value_name = "FILE", requires = "queries")]
    pub query_labels: Option<String>,
    /// Old model's vectors of the queries, for the do-nothing line.
    #[arg(long, value_name = "FILE", requires = "queries")]
    pub queries_old: Option<String>,
    /// Judgements instead of labels: tab-separated query id, item id, gain (BEIR or TREC).
    #[arg(long, value_name = "FILE", requires_all = ["queries", "ids", "query_ids"], conflicts_with = "labels")]
    pub qrels: Option<String>,
    /// Ids of the gallery's items, one a line or .jsonl, for --qrels.
    #[arg(long, value_name = "FILE")]
    pub ids: Option<String>,
    /// Ids of the queries, for --qrels.
    #[arg(long, value_name = "FILE")]
    pub query_ids: Option<String>,
    /// A group of every query (one integer each), for the gap between groups.
    #[arg(long, value_name = "FILE")]
    pub groups: Option<String>,
    /// Cut-off of mAP@k, nDCG@k, recall@k and agreement@k.
    #[arg(short, value_name = "K", default_value_t = 10)]
    pub k: usize,
}

/// Options of `rehang curve`.
#[derive(Debug, Args)]
pub struct Curve {
    /// New vectors of the gallery.
    #[arg(long, value_name = "FILE")]
    pub new: String,
    /// Adapted vectors of the gallery, from `rehang transform`.
    #[arg(long, value_name = "FILE")]
    pub adapted: String,
    /// Order of re-embedding, from `rehang order`.
    #[arg(long, value_name = "FILE")]
    pub order: String,
    /// Old vectors of the gallery, for the do-nothing line.
    #[arg(long, value_name = "FILE")]
    pub old: Option<String>,
    /// Relevance.
    #[command(flatten)]
    pub relevance: Relevance,
    /// σ² of every item: adds Kendall's τ-b and the calibration against the true errors.
    #[arg(long, value_name = "FILE")]
    pub sigma: Option<String>,
    /// l2, cosine or dot.
    #[arg(long, default_value = "l2")]
    pub distance: String,
    /// Distance of the old space, for the do-nothing line [default: as --distance].
    #[arg(long, value_name = "DISTANCE")]
    pub old_distance: Option<String>,
    /// Also give the values at this many equally spaced fractions, and their mean.
    #[arg(long, value_name = "POINTS")]
    pub grid: Option<usize>,
    /// Intervals over this many bootstrap samples of the queries; 0 for none.
    #[arg(long, value_name = "SAMPLES", default_value_t = 1000)]
    pub bootstrap: usize,
    /// Write the value at every fraction to this file, .npy [n + 1, 3]: top-1, top-5, mAP (without labels: agreement).
    #[arg(long, value_name = "FILE")]
    pub points: Option<PathBuf>,
}

/// Options of `rehang report`.
#[derive(Debug, Args)]
pub struct Report {
    /// Adapter files to compare, made by `rehang fit`.
    #[arg(required = true, num_args = 1..)]
    pub adapters: Vec<PathBuf>,
    /// Old vectors of a gallery that no adapter was fitted on.
    #[arg(long, value_name = "FILE")]
    pub old: String,
    /// New vectors of the same gallery.
    #[arg(long, value_name = "FILE")]
    pub new: String,
    /// Side information of the gallery.
    #[arg(long, value_name = "FILE")]
    pub side: Option<String>,
    /// Old vectors of the pairs: warns where gallery items are among them.
    #[arg(long, value_name = "FILE")]
    pub pairs_old: Option<String>,
    /// Rows of that file that are the pairs, as for --rows.
    #[arg(long, value_name = "FILE=VALUES", requires = "pairs_old")]
    pub pairs_rows: Option<String>,
    /// Go on although the vectors do not look like those that the adapter was fitted on.
    #[arg(long)]
    pub force: bool,
    /// Rows to use.
    #[command(flatten)]
    pub selection: RowSelection,
    /// Relevance.
    #[command(flatten)]
    pub relevance: Relevance,
    /// Head files.
    #[command(flatten)]
    pub head: HeadFiles,
    /// Orders to compare, separated by commas.
    #[arg(
        long,
        value_name = "ORDERS",
        value_delimiter = ',',
        default_value = "coverage,sigma,random,oracle"
    )]
    pub orders: Vec<String>,
    /// How many random orders the random line is averaged over.
    #[arg(long, default_value_t = 3)]
    pub random_orders: u64,
    /// Seed of everything random.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Bootstrap samples of the queries for bands and intervals; 0 for none.
    #[arg(long, default_value_t = 1000)]
    pub bootstrap: usize,
    /// Title of the report.
    #[arg(long, default_value = "What would the new model buy?")]
    pub title: String,
    /// The report: .html, .md or .json (repeat for several).
    #[arg(short, long, value_name = "FILE", required = true)]
    pub output: Vec<PathBuf>,
}

/// Options of `rehang inspect`.
#[derive(Debug, Args)]
pub struct Inspect {
    /// Adapter file.
    pub adapter: PathBuf,
}
