//! What can be said on the command line. Parsing only: nothing here opens a file.

pub mod evaluate;

use std::path::PathBuf;

#[cfg(feature = "train")]
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args, Parser, Subcommand};
use rehang::Result;
use rehang_evaluate::AnswerFiles;
use rehang_files::{JoinFiles, VectorSource};
#[cfg(feature = "train")]
use rehang_train::DataPart;

use evaluate::Evaluate;

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
    #[cfg(feature = "train")]
    /// Train an encoder, by itself or compatible with an old model's gallery: plain, bct, ract, dmu, l2, lwf, …
    Train(Train),
    #[cfg(feature = "train")]
    /// Train and compare compatible methods and adapters over seeds and orders; writes one report.
    Compare(Compare),
    #[cfg(feature = "train")]
    /// Vectors of images or features by an encoder that was trained here.
    Embed(Embed),
    /// Write an adapter, or an encoder that was trained here, as an ONNX file, for any runtime and device.
    Export(ExportOnnx),
    /// Turn old vectors into vectors of the new space, with σ² for each; streams files of any size.
    Transform(Transform),
    /// Say in which order items should be re-embedded.
    Order(Order),
    /// The exact backfilling curve: what every percent of re-embedding buys.
    Curve(Curve),
    /// Compare adapters and orders on a gallery whose new vectors are known, and write a report to look at.
    Report(Report),
    /// Compare compatible models: cross matrix, hot refresh, upgrades in a row, face and landmark protocols.
    #[command(subcommand)]
    Evaluate(Evaluate),
    /// Say what an adapter file is: spaces, method, seed, inputs.
    Inspect(Inspect),
    /// Make, fill, read and change a gallery file.
    #[command(subcommand)]
    Gallery(Gallery),
    /// Search a gallery, right at every stage of an upgrade.
    Search(Search),
    /// Write a first rehang.toml, with a comment on every part, from what a gallery and an adapter say of themselves.
    Init(Init),
    /// The live upgrade named in rehang.toml: old model to new one, worst first, while people search and write.
    #[command(subcommand)]
    Upgrade(Upgrade),
    /// Look whether a gallery is sound: mixed models, stale or untagged vectors, index health, a forgotten upgrade.
    Doctor(Doctor),
    /// Print the completions of a shell; your shell's manual says where they belong.
    Completions(Completions),
    /// Write the manual: a page for every command.
    Man(Man),
}

/// Options of `rehang completions`.
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell.
    pub shell: clap_complete::Shell,
}

/// Options of `rehang man`.
#[derive(Debug, Args)]
pub struct Man {
    /// Folder for the pages; pages of the same names are replaced.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// roff: one page a command, for `man`; markdown: all commands on one page, `cli.md`.
    #[arg(long, value_enum, default_value_t = ManFormat::Roff)]
    pub format: ManFormat,
}

/// How the manual is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ManFormat {
    /// One page a command, for `man`.
    Roff,
    /// All commands on one page.
    Markdown,
}

/// Options of `rehang demo`.
#[derive(Debug, Args)]
pub struct Demo {
    /// Folder for the report and the files of the upgrade: a new or an empty one, or that of an earlier demo, which begins anew.
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

impl RowSelection {
    /// The selection, where one is given.
    pub fn parsed(&self) -> Result<Option<rehang_files::RowSelection>> {
        self.rows.as_deref().map(str::parse).transpose()
    }
}

/// Joining by id: old and new vectors that stand in different orders, or of which one side has more.
#[allow(clippy::struct_field_names, reason = "the fields are the options' own names")]
#[derive(Debug, Args, Default)]
pub struct IdFiles {
    /// Ids of the old vectors, one a line (repeat for several files); with --new-ids, rows are joined by id instead of by position.
    /// What is made from the old vectors (adapted vectors, σ², orders) and what goes with items (labels, groups, side information)
    /// has their rows.
    #[arg(long, value_name = "FILE", requires = "new_ids")]
    pub old_ids: Vec<VectorSource>,
    /// Ids of the new vectors (repeat for several files).
    #[arg(long, value_name = "FILE", requires = "old_ids")]
    pub new_ids: Vec<VectorSource>,
    /// With ids: use the items that both sides have, instead of failing when some did not match.
    #[arg(long, requires = "old_ids")]
    pub keep_common: bool,
}

impl IdFiles {
    /// As the libraries take them.
    pub fn files(&self) -> JoinFiles {
        JoinFiles {
            old_ids: self.old_ids.clone(),
            new_ids: self.new_ids.clone(),
            keep_common: self.keep_common,
        }
    }
}

/// Classifier head of the new model.
#[allow(clippy::struct_field_names, reason = "the fields are the options' own names")]
#[derive(Debug, Args, Default)]
pub struct HeadFiles {
    /// Weight of the new model's classifier head, [classes, d_new].
    #[arg(long, value_name = "FILE")]
    pub head_weight: Option<VectorSource>,
    /// Bias of that head, [classes].
    #[arg(long, value_name = "FILE", requires = "head_weight")]
    pub head_bias: Option<VectorSource>,
    /// How the head was trained: softmax, normalised-softmax:SCALE, cosface:SCALE,MARGIN or arcface:SCALE,MARGIN (for example arcface:64,0.5).
    #[arg(long, value_name = "KIND", default_value = "softmax")]
    pub head_kind: String,
}

impl HeadFiles {
    /// As the libraries take them.
    pub fn files(&self) -> Result<rehang_files::HeadFiles> {
        Ok(rehang_files::HeadFiles {
            head_weight: self.head_weight.clone(),
            head_bias: self.head_bias.clone(),
            head_kind: self.head_kind.parse()?,
        })
    }
}

#[cfg(feature = "train")]
/// Options of `rehang train`.
#[derive(Debug, Args)]
pub struct Train {
    /// plain, bct, ract, dmu, l2, lwf, focal-distillation, regression, ract-on-bct or both-heads.
    pub method: String,
    /// The configuration: [data], [allocation], [encoder], [head], [augmentation], [sampler], [old], [method], [training],
    /// [output] (docs/training.md).
    pub config: PathBuf,
    /// The encoder file to write [default: output.encoder of the configuration].
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// The adapter file to write, for methods that train one (dmu) [default: output.adapter of the configuration].
    #[arg(long, value_name = "FILE")]
    pub adapter: Option<PathBuf>,
    /// Seed of initial weights, batches and variations [default: training.seed of the configuration, or 0].
    #[arg(long)]
    pub seed: Option<u64>,
    /// Epochs [default: training.epochs of the configuration, or 30].
    #[arg(long, value_name = "N")]
    pub epochs: Option<usize>,
}

#[cfg(feature = "train")]
/// Options of `rehang compare`.
#[derive(Debug, Args)]
pub struct Compare {
    /// The study: a training's configuration with a table [compare] (docs/training.md).
    pub config: PathBuf,
    /// Folder for the report.
    #[arg(long, value_name = "DIR", default_value = "rehang-compare")]
    pub out: PathBuf,
    /// Use the seeds 0, 1, … N−1 instead of those of the configuration.
    #[arg(long, value_name = "N")]
    pub seeds: Option<u64>,
}

#[cfg(feature = "train")]
/// Options of `rehang embed`.
#[derive(Debug, Args)]
pub struct Embed {
    /// The encoder file.
    pub encoder: PathBuf,
    /// The configuration whose [data] and [allocation] say what is embedded.
    pub config: PathBuf,
    /// Which part of the allocation.
    #[arg(long, value_parser = PossibleValuesParser::new(DataPart::ALL.map(DataPart::name)).try_map(|name| name.parse::<DataPart>()), default_value = "all")]
    pub part: DataPart,
    /// The vectors to write: .npy, .parquet, .fvecs or .safetensors.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Write the class numbers of these rows too.
    #[arg(long, value_name = "FILE")]
    pub labels: Option<PathBuf>,
}

/// Options of `rehang export`.
#[derive(Debug, Args)]
pub struct ExportOnnx {
    /// The file of the adapter or of the encoder.
    pub file: PathBuf,
    /// The ONNX file to write.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

/// Options of `rehang fit`.
#[derive(Debug, Args)]
pub struct Fit {
    /// Old vectors of the pairs: .npy, .parquet, .fvecs, .bvecs or .safetensors (FILE#COLUMN picks a column or tensor); files or addresses
    /// of objects (s3://BUCKET/NAME, gs://…, az://…).
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pub old: Vec<VectorSource>,
    /// New vectors of the same items.
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pub new: Vec<VectorSource>,
    /// Class labels, one integer or name an item; negative means unknown. Optional.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub labels: Vec<VectorSource>,
    /// Side information, one row an item: vectors of another model that you also keep for the whole gallery. Optional.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub side: Vec<VectorSource>,
    /// Joining by id.
    #[command(flatten)]
    pub ids: IdFiles,
    /// Rows to use.
    #[command(flatten)]
    pub selection: RowSelection,
    /// Head files.
    #[command(flatten)]
    pub head: HeadFiles,
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
    /// auto, do-nothing, procrustes, ridge, low-rank, kernel-ridge, residual-mlp, fct, fastfill or fastfill-reference.
    #[arg(long, default_value = "auto")]
    pub method: String,
    /// Which parts of the loss fastfill uses: l2, disc or both [default: what helps on held-out pairs].
    #[arg(long, value_name = "PARTS")]
    pub loss: Option<String>,
    /// Where σ² comes from: out-of-fold (default), joint (trained with the map, as published) or off.
    #[arg(long, value_name = "KIND")]
    pub uncertainty: Option<String>,
    /// Label smoothing of the discriminative part, where the head is a softmax [default: 0.1].
    #[arg(long, value_name = "SHARE")]
    pub label_smoothing: Option<f32>,
    /// Weights of loss/σ² and of log σ², where σ² is trained with the map [default: 0.5 0.5].
    #[arg(long, value_name = "WEIGHT", num_args = 2)]
    pub uncertainty_weights: Option<Vec<f32>>,
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
    /// What methods are compared by: top1, top5, map, or with --qrels also ndcg@K, map@K, recall@K or mrr@K [default: mAP by label,
    /// nDCG@10 by --qrels, else agreement@10 with the native gallery].
    #[arg(long = "for", value_name = "METRIC")]
    pub metric: Option<String>,
    /// Old model's vectors of queries as people ask them: methods are compared by what these find among held-out pairs.
    #[arg(long, value_name = "FILE", requires = "queries_new")]
    pub queries_old: Option<VectorSource>,
    /// New model's vectors of the same queries.
    #[arg(long, value_name = "FILE", requires = "queries_old")]
    pub queries_new: Option<VectorSource>,
    /// Judgements for the queries: tab-separated query id, item id, gain (BEIR or TREC).
    #[arg(long, value_name = "FILE", requires_all = ["queries_new", "item_ids", "query_ids"])]
    pub qrels: Option<PathBuf>,
    /// Ids of the old vectors, one a line or .jsonl, for --qrels (repeat for several files).
    #[arg(long = "ids", value_name = "FILE", requires = "qrels")]
    pub item_ids: Vec<VectorSource>,
    /// Ids of the queries, for --qrels.
    #[arg(long, value_name = "FILE", requires = "qrels")]
    pub query_ids: Option<VectorSource>,
    /// Keep the state of every training in this folder; an interrupted fit goes on from it.
    #[arg(long, value_name = "FOLDER")]
    pub checkpoints: Option<PathBuf>,
    /// Let auto also fit networks that take minutes on these pairs.
    #[arg(long)]
    pub thorough: bool,
    /// Fit the named method alone: it is not compared with the others on held-out pairs, which takes most of the time.
    #[arg(long)]
    pub no_compare: bool,
    /// Evaluation vectors (old model) that must not be among the pairs: warns where they are.
    #[arg(long, value_name = "FILE")]
    pub evaluation_old: Option<VectorSource>,
    /// The adapter file to write.
    #[arg(short, long, value_name = "ADAPTER")]
    pub output: PathBuf,
}

/// Options of `rehang transform`.
#[derive(Debug, Args)]
pub struct Transform {
    /// Adapter file made by `rehang fit`.
    pub adapter: PathBuf,
    /// Old vectors: files, or one folder of partitions (at any depth), whose outputs are a folder of the same shape. Run again, it
    /// goes on where it was: what is made already, by this adapter and of this input, is passed over. Either may be an address,
    /// s3://BUCKET/PREFIX, gs://… or az://….
    #[arg(value_name = "OLD", required = true, num_args = 1..)]
    pub input: Vec<VectorSource>,
    /// Of a folder, take every OF-th partition: 1/4, 2/4, 3/4 and 4/4 in four processes, on as many machines as you like.
    #[arg(long, value_name = "PART/OF")]
    pub share: Option<String>,
    /// Side information, where the adapter was fitted with it (repeat for several files).
    #[arg(long, value_name = "FILE")]
    pub side: Vec<VectorSource>,
    /// Rows to use.
    #[command(flatten)]
    pub selection: RowSelection,
    /// Vectors of the new space: .npy, .parquet, .fvecs or .safetensors; or the folder, or its address, for
    /// those of a folder.
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
    /// coverage (recommended), sigma, random, class-mean, least-confidence, margin, entropy or oracle (evaluation only).
    #[arg(long)]
    pub policy: String,
    /// σ² of every item, from `rehang transform`; several files are read one after the other. With --first also
    /// folders and addresses (s3://BUCKET/PREFIX, gs://…, az://…).
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub sigma: Vec<VectorSource>,
    /// Where so many items of the order sigma end, a share such as 10% or a number of items (repeat for several): for galleries
    /// too large to sort. The output is JSON.
    #[arg(long, value_name = "ITEMS", requires = "sigma", conflicts_with_all = ["adapted", "new", "adapter"])]
    pub first: Vec<String>,
    /// Adapted vectors, from `rehang transform`.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub adapted: Vec<VectorSource>,
    /// New vectors, for the oracle only.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub new: Vec<VectorSource>,
    /// Joining the new vectors with the adapted ones by id, for the oracle.
    #[command(flatten)]
    pub ids: IdFiles,
    /// Adapter file: its own head serves the coverage order (whatever head is given beside it, since it knows how unsure the
    /// adapter is), and the orders through a head where none is given.
    #[arg(long, value_name = "ADAPTER")]
    pub adapter: Option<PathBuf>,
    /// Head files.
    #[command(flatten)]
    pub head: HeadFiles,
    /// Seed of the random order.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// The order to write: int64 .npy, the first entry is re-embedded first; with --first the cuts, .json.
    #[arg(short, long, value_name = "ORDER")]
    pub output: PathBuf,
}

/// What counts as a right answer.
#[derive(Debug, Args, Default)]
pub struct Relevance {
    /// Class labels of the gallery: an item of the query's class is a right answer (repeat for several files).
    #[arg(long, value_name = "FILE")]
    pub labels: Vec<VectorSource>,
    /// New model's vectors of separate queries [default: the gallery itself, each item leaving itself out].
    #[arg(long, value_name = "FILE")]
    pub queries: Option<VectorSource>,
    /// Class labels of the queries.
    #[arg(long, value_name = "FILE", requires = "queries", conflicts_with = "qrels")]
    pub query_labels: Option<VectorSource>,
    /// Old model's vectors of the queries, for the do-nothing line.
    #[arg(long, value_name = "FILE", requires_all = ["queries", "old"])]
    pub queries_old: Option<VectorSource>,
    /// Judgements instead of labels: tab-separated query id, item id, gain (BEIR or TREC).
    #[arg(long, value_name = "FILE", requires_all = ["queries", "ids", "query_ids"], conflicts_with = "labels")]
    pub qrels: Option<PathBuf>,
    /// Ids of the gallery's items, one a line or .jsonl, for --qrels (repeat for several files).
    #[arg(long, value_name = "FILE", requires = "qrels")]
    pub ids: Vec<VectorSource>,
    /// Ids of the queries, for --qrels.
    #[arg(long, value_name = "FILE", requires = "qrels")]
    pub query_ids: Option<VectorSource>,
    /// A group of every query (one integer or name each), for the gap between groups (repeat for several files).
    #[arg(long, value_name = "FILE")]
    pub groups: Vec<VectorSource>,
    /// Cut-off of mAP@k, nDCG@k, recall@k and agreement@k.
    #[arg(short, value_name = "K", default_value_t = 10)]
    pub k: usize,
}

impl Relevance {
    /// As the libraries take them.
    pub fn files(&self) -> AnswerFiles {
        AnswerFiles {
            labels: self.labels.clone(),
            queries: self.queries.clone(),
            query_labels: self.query_labels.clone(),
            queries_old: self.queries_old.clone(),
            qrels: self.qrels.clone(),
            ids: self.ids.clone(),
            query_ids: self.query_ids.clone(),
            groups: self.groups.clone(),
            k: self.k,
        }
    }
}

/// Options of `rehang curve`.
#[derive(Debug, Args)]
pub struct Curve {
    /// New vectors of the gallery; several files are read one after the other.
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pub new: Vec<VectorSource>,
    /// Adapted vectors of the gallery, from `rehang transform`.
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pub adapted: Vec<VectorSource>,
    /// Order of re-embedding, from `rehang order`.
    #[arg(long, value_name = "FILE")]
    pub order: VectorSource,
    /// Old vectors of the gallery, for the do-nothing line.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub old: Vec<VectorSource>,
    /// Joining by id.
    #[command(flatten)]
    pub ids: IdFiles,
    /// Rows to use, of everything that goes with the gallery's items; an order of all rows loses the others.
    #[command(flatten)]
    pub selection: RowSelection,
    /// Adapter file that made the adapted vectors: its handicap and its distances are used. With --old, also says how many items
    /// are among its pairs, and whether it was fitted the wrong way round.
    #[arg(long, value_name = "ADAPTER")]
    pub adapter: Option<PathBuf>,
    /// Relevance.
    #[command(flatten)]
    pub relevance: Relevance,
    /// σ² of every item: adds Kendall's τ-b and the calibration against the true errors.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub sigma: Vec<VectorSource>,
    /// l2, cosine or dot [default: that of the --adapter's new space, l2 without one].
    #[arg(long)]
    pub distance: Option<String>,
    /// Distance of the old space, for the do-nothing line [default: as --distance, or that of the --adapter's old space].
    #[arg(long, value_name = "DISTANCE", requires = "old")]
    pub old_distance: Option<String>,
    /// What searches add to the distance of every item that is still adapted [default: as the --adapter recommends, 0
    /// without one].
    #[arg(long, value_name = "DISTANCE")]
    pub handicap: Option<f64>,
    /// Also give the values at this many equally spaced fractions, and their mean.
    #[arg(long, value_name = "POINTS")]
    pub grid: Option<usize>,
    /// Intervals over this many bootstrap samples of the queries; 0 for none.
    #[arg(long, value_name = "SAMPLES", default_value_t = 1000)]
    pub bootstrap: usize,
    /// Write the value of every measure at every fraction to this file, [n + 1, columns]: top-1, top-5, mAP, flips, NFR,
    /// groups, … (docs/formats.md; --json names the columns). Without labels: agreement.
    #[arg(long, value_name = "FILE")]
    pub points: Option<PathBuf>,
}

/// Options of `rehang report`.
#[derive(Debug, Args)]
pub struct Report {
    /// Adapter files to compare, made by `rehang fit`.
    #[arg(required = true, num_args = 1..)]
    pub adapters: Vec<PathBuf>,
    /// Old vectors of a gallery that no adapter was fitted on (repeat for several files).
    #[arg(long, value_name = "FILE", required = true)]
    pub old: Vec<VectorSource>,
    /// New vectors of the same gallery (repeat for several files).
    #[arg(long, value_name = "FILE", required = true)]
    pub new: Vec<VectorSource>,
    /// Joining by id.
    #[command(flatten)]
    pub ids: IdFiles,
    /// Side information of the gallery.
    #[arg(long, value_name = "FILE")]
    pub side: Option<VectorSource>,
    /// Old vectors of the pairs (repeat for several files): counts gallery items that are among them, where the adapter's own
    /// memory of its pairs gives an estimate only, or is of an earlier version and has none.
    #[arg(long, value_name = "FILE")]
    pub pairs_old: Vec<VectorSource>,
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
    /// Orders to compare, separated by commas; the first that is not the oracle carries the verdict.
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

/// The verbs on a gallery file.
#[derive(Debug, Subcommand)]
pub enum Gallery {
    /// Put vectors and their items into a gallery file, which is made where there is none.
    Import(Import),
    /// Write the vectors of a space into files, with ids and provenance.
    Export(Export),
    /// Put one item, new or changed, as an application would.
    Put(Put),
    /// Delete items.
    Delete(Delete),
    /// Drop a space with all its vectors: one that an upgrade left behind. There is no way back.
    DropSpace(DropSpace),
    /// Make the search index of a space, so that the first search need not compare every vector.
    ///
    /// `rehang upgrade start` and `run` do so at their end. Does nothing where the index is ready, and says its recall.
    Index(IndexSpace),
    /// Give the disk the room back that a dropped space leaves in the file.
    Compact(Compact),
    /// Make a gallery of the table or collection that a configuration names: one schema and triggers on the table, or two fields in each
    /// point and a collection beside it. Applications go on as before.
    Adopt(Adopt),
    /// Take everything of ours out of the database again: the table, or the collection, is left as it was found, but for the column, or the
    /// named vector, that it serves from.
    Release(Release),
    /// Say what a gallery holds: its spaces, how many items and vectors of each provenance, which space serves.
    Info(Info),
}

/// Options of `rehang gallery import`.
#[derive(Debug, Args)]
pub struct Import {
    /// Gallery file.
    #[arg(long, value_name = "FILE")]
    pub gallery: PathBuf,
    /// Name of the model that made the vectors.
    #[arg(long, value_name = "NAME")]
    pub space: String,
    /// Vectors, one row an item.
    #[arg(long, value_name = "FILE")]
    pub vectors: String,
    /// Items, one JSON object a line: {"id": "…", "source": "…", "label": …, "payload": …}. Only the id is required; what has
    /// no source cannot be embedded again.
    #[arg(long, value_name = "FILE")]
    pub items: PathBuf,
    /// Distance of the space: l2, cosine or dot.
    #[arg(long, default_value = "cosine")]
    pub distance: String,
}

/// Which gallery: a file, or the one of a configuration, where it may be a table of PostgreSQL or a collection of Qdrant.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct Which {
    /// Gallery file.
    #[arg(long, value_name = "FILE")]
    pub gallery: Option<PathBuf>,
    /// Configuration of an upgrade, for its gallery.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Options of `rehang gallery adopt`.
#[derive(Debug, Args)]
pub struct Adopt {
    /// Configuration, whose [gallery] is of kind "postgres" or "qdrant".
    #[arg(long, value_name = "FILE", default_value = "rehang.toml")]
    pub config: PathBuf,
    /// Print every statement that would be run, for the owner of the table to read, and run none.
    #[arg(long)]
    pub dry_run: bool,
}

/// Options of `rehang gallery release`.
#[derive(Debug, Args)]
pub struct Release {
    /// Configuration, whose [gallery] is of kind "postgres" or "qdrant".
    #[arg(long, value_name = "FILE", default_value = "rehang.toml")]
    pub config: PathBuf,
    /// The column of a table that the vectors of the space that serves move into first, with an index; it is made if it is not there [default:
    /// [new] column of the configuration, or one named after the old vectors' column and the new model].
    #[arg(long, value_name = "COLUMN")]
    pub into: Option<String>,
    /// Move none: drop every vector that is not in the table itself, or not of the space that serves a collection.
    #[arg(long, conflicts_with = "into")]
    pub yes: bool,
}

/// Options of `rehang gallery export`.
#[derive(Debug, Args)]
pub struct Export {
    /// The gallery.
    #[command(flatten)]
    pub which: Which,
    /// Name of the space.
    #[arg(long, value_name = "NAME")]
    pub space: String,
    /// Vectors, one row an item, in the order in which items came (.npy).
    #[arg(long, value_name = "FILE")]
    pub vectors: PathBuf,
    /// Ids, one a line.
    #[arg(long, value_name = "FILE")]
    pub ids: Option<PathBuf>,
    /// Provenance, one a line: old, adapted or native.
    #[arg(long, value_name = "FILE")]
    pub provenance: Option<PathBuf>,
}

/// Options of `rehang gallery put`.
#[derive(Debug, Args)]
pub struct Put {
    /// Gallery file [default: the one of --config, which is enough by itself].
    #[arg(long, value_name = "FILE", required_unless_present = "config")]
    pub gallery: Option<PathBuf>,
    /// The item's id.
    #[arg(long)]
    pub id: String,
    /// What can be embedded again: a text, a path, a URL [default: as it was].
    #[arg(long)]
    pub source: Option<String>,
    /// Its class, tag or group [default: as it was].
    #[arg(long)]
    pub label: Option<String>,
    /// Anything you keep beside it, as JSON [default: as it was].
    #[arg(long, value_name = "JSON")]
    pub payload: Option<String>,
    /// Its vector in a space: NAME=FILE with one row, or NAME=[0.1,0.2,…]. Repeat for several spaces. Every put is a change of
    /// the content: vectors that are not given belong to the content before and are removed, which is said.
    #[arg(long = "vector", value_name = "NAME=VECTOR")]
    pub vectors: Vec<String>,
    /// Configuration of a live upgrade: an item with an old vector only is adapted in the same transaction, so that no
    /// search misses it.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Options of `rehang gallery delete`.
#[derive(Debug, Args)]
pub struct Delete {
    /// The gallery.
    #[command(flatten)]
    pub which: Which,
    /// Ids of the items.
    #[arg(value_name = "ID")]
    pub ids: Vec<String>,
    /// An id (repeat for several), for scripts.
    #[arg(long = "id", value_name = "ID")]
    pub more_ids: Vec<String>,
}

/// Options of `rehang gallery index`.
#[derive(Debug, Args)]
pub struct IndexSpace {
    /// The gallery.
    #[command(flatten)]
    pub which: Which,
    /// Name of the space [default: the one that serves].
    #[arg(long, value_name = "NAME")]
    pub space: Option<String>,
}

/// Options of `rehang gallery compact`.
#[derive(Debug, Args)]
pub struct Compact {
    /// The gallery.
    #[command(flatten)]
    pub which: Which,
}

/// Options of `rehang gallery drop-space`.
#[derive(Debug, Args)]
pub struct DropSpace {
    /// The gallery.
    #[command(flatten)]
    pub which: Which,
    /// Name of the space: neither the one that serves, nor one of an upgrade that is not finished; but one that only has pairs so far.
    #[arg(long, value_name = "NAME")]
    pub space: String,
}

/// Options of `rehang gallery info`.
#[derive(Debug, Args)]
pub struct Info {
    /// The gallery.
    #[command(flatten)]
    pub which: Which,
}

/// Options of `rehang search`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("queries").required(true).multiple(true).args(["vectors", "texts", "images"])))]
pub struct Search {
    /// Gallery file [default: the one of --config].
    #[arg(long, value_name = "FILE", conflicts_with_all = ["config", "texts", "images"])]
    pub gallery: Option<PathBuf>,
    /// Configuration of an upgrade, for its gallery and for the encoders of texts and images.
    #[arg(long, value_name = "FILE", default_value = "rehang.toml")]
    pub config: PathBuf,
    /// A text to search by (repeat for several). It is embedded by the model that serves, for merged searches by both: [encoder] and
    /// [old.encoder] of the configuration.
    #[arg(long = "text", value_name = "TEXT")]
    pub texts: Vec<String>,
    /// An image to search by (repeat for several; they come after the texts).
    #[arg(long = "image", value_name = "FILE")]
    pub images: Vec<PathBuf>,
    /// Show beside it what the old model would have answered, as long as its space is there.
    #[arg(long, conflicts_with = "vectors")]
    pub before: bool,
    /// Queries, one a row, embedded by the model that serves now.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["texts", "images"])]
    pub vectors: Option<String>,
    /// The same queries embedded by the old model: searched before the switch and after a rollback, and beside the others where an
    /// upgrade serves merged searches.
    #[arg(long, value_name = "FILE", requires = "vectors", conflicts_with_all = ["texts", "images"])]
    pub old_vectors: Option<String>,
    /// Fail unless this space serves: two models of one width cannot be told apart otherwise.
    #[arg(long, value_name = "NAME")]
    pub space: Option<String>,
    /// Neighbours of each query.
    #[arg(short, default_value_t = 10)]
    pub k: usize,
    /// Only items with this label (repeat for several).
    #[arg(long = "label", value_name = "LABEL")]
    pub labels: Vec<String>,
    /// Only items whose payload has this field with this value (JSON, or a plain word).
    #[arg(long = "payload", value_name = "FIELD=VALUE")]
    pub payload: Vec<String>,
    /// Only vectors of this provenance: old, adapted or native (repeat for several).
    #[arg(long = "provenance", value_name = "NAME")]
    pub provenances: Vec<String>,
}

/// Options of `rehang init`.
#[derive(Debug, Args)]
pub struct Init {
    /// Gallery file: it says which space is replaced.
    #[arg(long, value_name = "FILE", required_unless_present = "of_application")]
    pub gallery: Option<PathBuf>,
    /// A table of PostgreSQL with vectors, in place of a gallery file; --old-name says which model made them.
    #[arg(
        long,
        value_name = "TABLE",
        group = "of_application",
        conflicts_with = "gallery",
        requires = "old_name"
    )]
    pub table: Option<String>,
    /// A collection of Qdrant, in place of a gallery file; --old-name says which model made its vectors.
    #[arg(
        long,
        value_name = "NAME",
        group = "of_application",
        conflicts_with = "gallery",
        requires = "old_name"
    )]
    pub collection: Option<String>,
    /// Address of the server, http://127.0.0.1:6333 [default: the variable QDRANT_URL]. A key is read from the variable QDRANT_API_KEY.
    #[arg(long, value_name = "URL", requires = "collection")]
    pub qdrant: Option<String>,
    /// Send that key over http:// to another machine, where it can be read on the way.
    #[arg(long, requires = "collection")]
    pub plain_http: bool,
    /// Address of the database, postgresql://USER@HOST/DATABASE [default: the variable DATABASE_URL]. One with a password is not
    /// written down.
    #[arg(long, value_name = "URL", requires = "table")]
    pub postgres: Option<String>,
    /// Column, or named vector, with the vectors of the old model ("" is a collection's unnamed one) [default: the only one].
    #[arg(long, value_name = "NAME", requires = "of_application")]
    pub vector: Option<String>,
    /// Column, SQL expression or payload field with what can be embedded again [default: the only one of text beside the key].
    #[arg(long, value_name = "NAME", requires = "of_application")]
    pub source: Option<String>,
    /// Column, or payload field, with a class, tag or group.
    #[arg(long, value_name = "NAME", requires = "of_application")]
    pub label: Option<String>,
    /// Name of the model that made the vectors of the table or collection.
    #[arg(long, value_name = "NAME", requires = "of_application")]
    pub old_name: Option<String>,
    /// Distance that the table's or collection's vectors are searched by: l2, cosine or dot.
    #[arg(long, value_name = "DISTANCE", default_value = "cosine")]
    pub old_distance: String,
    /// Adapter: it says which space comes. Leave it out for one that `rehang upgrade fit` learns from the gallery, or for a model that
    /// searches the old vectors as they are.
    #[arg(long, value_name = "FILE", required_unless_present = "new_name")]
    pub adapter: Option<PathBuf>,
    /// Width of the new model's vectors, where no adapter says it [default: the adapter's, or that of the old space].
    #[arg(long, value_name = "N")]
    pub new_dimension: Option<usize>,
    /// Distance that the new space is searched by (l2, cosine, dot) [default: the adapter's, or that of the old space].
    #[arg(long, value_name = "DISTANCE")]
    pub new_distance: Option<String>,
    /// Report of the adapter as JSON, which forecasts the upgrade.
    #[arg(long, value_name = "FILE")]
    pub forecast: Option<PathBuf>,
    /// Name of the new space [default: the adapter's].
    #[arg(long, value_name = "NAME")]
    pub new_name: Option<String>,
    /// The configuration to write; one that is there is never replaced.
    #[arg(short, long, value_name = "FILE", default_value = "rehang.toml")]
    pub out: PathBuf,
}

/// The verbs of an upgrade, in the order of their use.
#[derive(Debug, Subcommand)]
pub enum Upgrade {
    /// Go the whole way from where the upgrade is: doctor, pairs, fit, report, plan; with --yes on to start, switch and run. The same
    /// command goes on after any death. It never finishes.
    Auto(UpgradeAuto),
    /// Draw pairs: embed a random sample of the gallery with the new model, until more would not teach an adapter much. They are kept
    /// as vectors of the new model, so no item is paid for twice.
    Pairs(UpgradePairs),
    /// Fit an adapter on the gallery's own pairs and keep it for the upgrade.
    Fit(UpgradeFit),
    /// Measure the adapter on the pairs that were held out: what the upgrade would buy.
    Report(UpgradeReport),
    /// Say what the upgrade would do, how long it takes and what it costs; changes nothing.
    Plan(UpgradePlan),
    /// Fill the new space with adapted vectors; searches stay where they are. Repeat it to go on after a crash, to catch up,
    /// or with another adapter or order.
    Start(UpgradeConfig),
    /// Let searches go to the new space, in one atomic step.
    Switch(UpgradeSwitch),
    /// Re-embed items worst first, until a limit is met or nothing is left. Kill it whenever you like; run it again.
    Run(UpgradeRun),
    /// How the upgrade stands.
    Status(UpgradeStatus),
    /// Ask a running backfill to finish its batches and end; `resume` allows the next one.
    Pause(UpgradeConfig),
    /// Allow backfills again after pause or stop.
    Resume(UpgradeResume),
    /// End the backfill where it is: what is adapted stays adapted.
    Stop(UpgradeConfig),
    /// Let searches go back to the old space, at once. The new vectors are kept.
    Rollback(UpgradeConfig),
    /// Drop the old space for good. There is no way back after it, and what is still adapted stays so.
    Finish(UpgradeConfig),
}

/// Where the upgrade is written down.
#[derive(Debug, Args)]
pub struct UpgradeConfig {
    /// Configuration of the upgrade.
    #[arg(long, value_name = "FILE", default_value = "rehang.toml")]
    pub config: PathBuf,
}

/// Options of `rehang upgrade auto`.
#[derive(Debug, Args)]
pub struct UpgradeAuto {
    /// Configuration.
    #[command(flatten)]
    pub config: UpgradeConfig,
    /// Go on after the plan: fill the new space, switch, and re-embed.
    #[arg(long)]
    pub yes: bool,
    /// Print what is left to do as the commands that a person would type, and do nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Switch where the forecast is at least this from then on, and re-embed first until it is: ">= doing nothing", or a quality in
    /// percent such as ">= 70".
    #[arg(long, value_name = "CONDITION", default_value = ">= doing nothing")]
    pub switch_if: String,
    /// Serve merged searches where the switch is not worth it yet, instead of re-embedding first. Searches then need both queries.
    #[arg(long)]
    pub merged: bool,
    /// The map: auto compares them as they would serve.
    #[arg(long, value_name = "METHOD", default_value = "auto")]
    pub method: String,
    /// How many pairs.
    #[command(flatten)]
    pub sample: SampleSize,
    /// End when this share of all items is native (0.3, or 30%), or go on until nothing is left.
    #[arg(long, value_name = "FRACTION|all")]
    pub until: Option<String>,
    /// Limits; the budget is over all steps.
    #[command(flatten)]
    pub limits: RunLimits,
}

/// How many pairs are drawn.
#[derive(Debug, Args)]
pub struct SampleSize {
    /// Items of the sample, at most: it begins with 250 and is doubled.
    #[arg(long, value_name = "N", default_value_t = 2000)]
    pub items: usize,
    /// Go on while one more doubling is expected to bring this many points of agreement; 0 draws all --items.
    #[arg(long, value_name = "POINTS", default_value_t = 1.0)]
    pub worth: f64,
    /// Queries as people ask them, one JSON object a line: {"text": "…"} or {"image": "FILE"}. Both models embed them ([old.encoder] too), and
    /// the map is chosen and forecast by them.
    #[arg(long, value_name = "FILE")]
    pub queries: Option<PathBuf>,
}

/// Options of `rehang upgrade pairs`.
#[derive(Debug, Args)]
pub struct UpgradePairs {
    /// Configuration.
    #[command(flatten)]
    pub config: UpgradeConfig,
    /// How many pairs.
    #[command(flatten)]
    pub sample: SampleSize,
    /// Write the pairs into this folder too: old.npy, new.npy, ids.txt, held-out.npy, labels.npy.
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    /// Limits.
    #[command(flatten)]
    pub limits: RunLimits,
}

/// Options of `rehang upgrade fit`.
#[derive(Debug, Args)]
pub struct UpgradeFit {
    /// Configuration.
    #[command(flatten)]
    pub config: UpgradeConfig,
    /// The map: auto compares them as they would serve.
    #[arg(long, value_name = "METHOD", default_value = "auto")]
    pub method: String,
}

/// Options of `rehang upgrade report`.
#[derive(Debug, Args)]
pub struct UpgradeReport {
    /// Configuration.
    #[command(flatten)]
    pub config: UpgradeConfig,
    /// Report to write (.html, .md or .json) beside the one that the upgrade keeps for itself; repeatable.
    #[arg(short, long, value_name = "FILE")]
    pub out: Vec<PathBuf>,
}

/// Options of `rehang upgrade plan`.
#[derive(Debug, Args)]
pub struct UpgradePlan {
    /// Configuration.
    #[command(flatten)]
    pub config: UpgradeConfig,
    /// Embed this many items now, to measure the encoder's rate (it costs what embedding them costs; nothing is written).
    #[arg(long, value_name = "ITEMS", default_value_t = 0)]
    pub probe: usize,
}

/// Options of `rehang upgrade switch`.
#[derive(Debug, Args)]
pub struct UpgradeSwitch {
    /// Configuration.
    #[command(flatten)]
    pub config: UpgradeConfig,
    /// Serve native vectors by the new query and all others by the old one, on one scale: for weak adapters. Searches then
    /// need both queries. 200 random items are re-embedded first, which the scale is learned from.
    #[arg(long)]
    pub merged: bool,
    /// Switch although the forecast says that it would serve worse than doing nothing, or the search index is not ready.
    #[arg(long)]
    pub anyway: bool,
}

/// Options of `rehang upgrade resume`.
#[derive(Debug, Args)]
pub struct UpgradeResume {
    /// Configuration.
    #[command(flatten)]
    pub config: UpgradeConfig,
    /// Try the items again that are listed as failed.
    #[arg(long)]
    pub retry_failed: bool,
    /// Put native vectors back to adapted ones, so that the next run embeds their items again: after a change of [encoder] that
    /// gives other vectors.
    #[arg(long)]
    pub re_embed: bool,
}

/// Options of `rehang upgrade run`.
#[derive(Debug, Args)]
pub struct UpgradeRun {
    /// Configuration.
    #[command(flatten)]
    pub config: UpgradeConfig,
    /// End when this share of all items is native (0.3, or 30%), or go on until nothing is left.
    #[arg(long, value_name = "FRACTION|all")]
    pub until: Option<String>,
    /// Limits.
    #[command(flatten)]
    pub limits: RunLimits,
}

/// Limits of a verb that embeds.
#[derive(Debug, Args)]
pub struct RunLimits {
    /// Make at most this many items native in this run.
    #[arg(long, value_name = "N")]
    pub budget: Option<u64>,
    /// At most this many items a second (or a minute: 300/min), by all processes at work together.
    #[arg(long, value_name = "N/s")]
    pub rate: Option<String>,
    /// Batches that are embedded at the same time.
    #[arg(long, value_name = "N")]
    pub workers: Option<usize>,
    /// Items of a batch [default: 64, or as many as the encoder takes at once if that is more].
    #[arg(long, value_name = "N")]
    pub batch: Option<usize>,
}

/// Options of `rehang upgrade status`.
#[derive(Debug, Args)]
pub struct UpgradeStatus {
    /// Configuration.
    #[command(flatten)]
    pub config: UpgradeConfig,
    /// Say it again every second until Ctrl-C or the end of the upgrade; with --json, one object a line.
    #[arg(long)]
    pub watch: bool,
    /// How many failures to list.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub failures: usize,
}

/// Options of `rehang doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Gallery file [default: the one of --config, which is enough by itself].
    #[arg(long, value_name = "FILE", required_unless_present = "config")]
    pub gallery: Option<PathBuf>,
    /// Configuration of an upgrade, to check that too.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Make search indexes again that have fallen behind or are bloated.
    #[arg(long)]
    pub repair: bool,
}
