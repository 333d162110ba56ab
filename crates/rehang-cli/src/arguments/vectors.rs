//! Arguments of `rehang fit`, `transform`, `order`, `curve`, `identify` and `report`, which take files of
//! vectors.

use std::path::PathBuf;

use rehang_evaluate::CurveFiles;
use rehang_evaluate::study::StudyOptions;
use rehang_files::VectorSource;
use rehang_upgrade::IdentifyOptions;

use super::groups::{AnswerArguments, HeadArguments, JoinArguments, RowArguments};
use super::library::distances;

arguments! {
    /// Options of `rehang fit`.
    FitArguments {
        /// Old vectors of the pairs: .npy, .parquet, .fvecs, .bvecs or .safetensors (FILE#COLUMN picks a
        /// column or tensor); files or addresses of objects (s3://BUCKET/NAME, gs://…, az://…).
        old: Vec<VectorSource> = [long, value_name = "FILE", required = true, num_args = 1..],
        /// New vectors of the same items.
        new: Vec<VectorSource> = [long, value_name = "FILE", required = true, num_args = 1..],
        /// Class labels, one integer or name an item; negative means unknown. Optional.
        labels: Vec<VectorSource> = [long, value_name = "FILE", num_args = 1..],
        /// Side information, one row an item: vectors of another model that you also keep for the whole
        /// gallery. Optional.
        side: Vec<VectorSource> = [long, value_name = "FILE", num_args = 1..],
        join: JoinArguments = [flatten],
        rows: RowArguments = [flatten],
        head: HeadArguments = [flatten],
        /// Name of the old model, as it shall stand in the adapter and in reports.
        old_model: String = [long, value_name = "NAME", default_value = "old"],
        /// Name of the new model.
        new_model: String = [long, value_name = "NAME", default_value = "new"],
        /// Distance used for search.
        distance: String = [long, default_value = "l2", help = format!("Distance used for search: {}", distances())],
        /// Distance of the old space, where it differs: the do-nothing line is searched with it [default: as
        /// --distance].
        old_distance: Option<String> = [long, value_name = "DISTANCE"],
        /// auto, do-nothing, procrustes, ridge, low-rank, kernel-ridge, per-kind, residual-mlp, fct, fastfill
        /// or fastfill-reference.
        method: String = [long, default_value = "auto"],
        /// Parts of the loss that fastfill uses: l2, disc or both [default: what helps on held-out pairs].
        loss: Option<String> = [long, value_name = "PARTS"],
        /// Unit of the squared error of fct and fastfill: mean over coordinates (the authors' code), sum
        /// (FastFill (3) as printed), variance or cosine, which do not depend on the scale of the vectors
        /// [default: mean; the last two for fastfill].
        squared: Option<String> = [long, value_name = "UNIT"],
        /// Source of σ²: out-of-fold (default), joint (trained with the map, as published) or off.
        uncertainty: Option<String> = [long, value_name = "KIND"],
        /// Label smoothing of the discriminative part, where the head is a softmax [default: 0.1].
        label_smoothing: Option<f32> = [long, value_name = "SHARE"],
        /// Weights of loss/σ² and of log σ², where σ² is trained with the map [default: 0.5 0.5].
        uncertainty_weights: Option<Vec<f32>> = [long, value_name = "WEIGHT", num_args = 2],
        /// Epochs of the learned methods.
        epochs: Option<usize> = [long, value_name = "E"],
        /// Stop when the loss on held-out pairs has not improved for this many epochs.
        early_stop: Option<usize> = [long, value_name = "EPOCHS"],
        /// Fit this many seeds (SEED, SEED+1, …) and keep the best on held-out pairs.
        seeds: u64 = [long, value_name = "N", default_value_t = 1],
        /// Seed of everything random.
        seed: u64 = [long, default_value_t = 0],
        /// Metric that methods are compared by: top1, top5, map, precision@K, or with --qrels also ndcg@K,
        /// map@K, recall@K or mrr@K [default: mAP by label, nDCG@10 by --qrels, else agreement@10 with the
        /// native gallery].
        metric: Option<String> = [long = "for", value_name = "METRIC"],
        /// Old model's vectors of queries as people ask them: methods are compared by what these find among
        /// held-out pairs.
        queries_old: Option<VectorSource> = [long, value_name = "FILE", requires = "queries_new"],
        /// New model's vectors of the same queries.
        queries_new: Option<VectorSource> = [long, value_name = "FILE", requires = "queries_old"],
        /// Judgements for the queries: tab-separated query id, item id, gain (BEIR or TREC).
        qrels: Option<PathBuf> = [long, value_name = "FILE", requires_all = ["queries_new", "ids", "query_ids"]],
        /// Ids of the old vectors, one a line or .jsonl, for --qrels (repeat for several files).
        ids: Vec<VectorSource> = [long, value_name = "FILE", requires = "qrels"],
        /// Ids of the queries, for --qrels.
        query_ids: Option<VectorSource> = [long, value_name = "FILE", requires = "qrels"],
        /// Keep the state of every training in this folder; an interrupted fit goes on from it.
        checkpoints: Option<PathBuf> = [long, value_name = "FOLDER"],
        /// Let auto compare networks too (residual-mlp, fct, fastfill), which takes minutes to hours.
        networks: bool = [long],
        /// Keep the best map of those that can be tried within this time (60s, 5min), closed forms first.
        /// What is left out is named; another run may try others.
        within: Option<String> = [long, value_name = "TIME"],
        /// Fit the named method alone: it is not compared with the others on held-out pairs, which takes most
        /// of the time.
        no_compare: bool = [long],
        /// Evaluation vectors (old model) that must not be among the pairs: warns where they are.
        evaluation_old: Option<VectorSource> = [long, value_name = "FILE"],
        /// How numbers of the adapter's matrices are kept: f32, or f16, which halves its file; a line says
        /// what that changes.
        precision: String = [long, default_value = "f32"],
        /// The adapter file to write.
        output: PathBuf = [short, long, value_name = "ADAPTER"],
    }

    /// Options of `rehang transform`.
    TransformArguments {
        /// Adapter file made by `rehang fit`.
        adapter: PathBuf = [],
        /// Old vectors: files, or one folder of partitions (at any depth), whose outputs are a folder of the
        /// same shape. Run again, it goes on where it was: what is made already, by this adapter and of this
        /// input, is passed over. Either may be an address, s3://BUCKET/PREFIX, gs://… or az://….
        input: Vec<VectorSource> = [value_name = "OLD", required = true, num_args = 1..],
        /// Take every OF-th partition of a folder: 1/4, 2/4, 3/4 and 4/4 in four processes, on as many
        /// machines as you like.
        share: Option<String> = [long, value_name = "PART/OF"],
        /// Side information, where the adapter was fitted with it (repeat for several files).
        side: Vec<VectorSource> = [long, value_name = "FILE"],
        rows: RowArguments = [flatten],
        /// Vectors of the new space: .npy, .parquet, .fvecs or .safetensors; or the folder, or its address,
        /// for those of a folder.
        output: PathBuf = [short, long, value_name = "ADAPTED"],
        /// σ² of every vector (the expected squared error), .npy.
        sigma: Option<PathBuf> = [long, value_name = "SIGMA"],
        /// Go on although the vectors do not look like those that the adapter was fitted on.
        force: bool = [long],
        /// Rows a batch.
        batch: usize = [long, value_name = "ROWS", default_value_t = 16_384],
    }

    /// Options of `rehang order`.
    OrderArguments {
        /// coverage (recommended), sigma, random, class-mean, least-confidence, margin, entropy or oracle
        /// (evaluation only).
        policy: String = [long],
        /// σ² of every item, from `rehang transform`; several files are read one after the other. With
        /// --first also folders and addresses (s3://BUCKET/PREFIX, gs://…, az://…).
        sigma: Vec<VectorSource> = [long, value_name = "FILE", num_args = 1..],
        /// Say where so many first items of the order sigma end, a share such as 10% or a number of items
        /// (repeat for several): for galleries too large to sort. The output is JSON.
        first: Vec<String> = [long, value_name = "ITEMS", requires = "sigma", conflicts_with_all = ["adapted", "new", "adapter"]],
        /// Adapted vectors, from `rehang transform`.
        adapted: Vec<VectorSource> = [long, value_name = "FILE", num_args = 1..],
        /// New vectors, for the oracle only.
        new: Vec<VectorSource> = [long, value_name = "FILE", num_args = 1..],
        /// Joining the new vectors with the adapted ones by id, for the oracle.
        join: JoinArguments = [flatten],
        /// Adapter file: its own head serves the coverage order (whatever head is given beside it, since it
        /// knows how unsure the adapter is), and the orders through a head where none is given.
        adapter: Option<PathBuf> = [long, value_name = "ADAPTER"],
        head: HeadArguments = [flatten],
        /// Seed of the random order.
        seed: u64 = [long, default_value_t = 0],
        /// The order to write: int64 .npy, the first entry is re-embedded first; with --first the cuts,
        /// .json.
        output: PathBuf = [short, long, value_name = "ORDER"],
    }

    /// Options of `rehang curve`.
    CurveArguments => CurveFiles {
        /// New vectors of the gallery; several files are read one after the other.
        new: Vec<VectorSource> = [long, value_name = "FILE", required = true, num_args = 1..],
        /// Adapted vectors of the gallery, from `rehang transform`.
        adapted: Vec<VectorSource> = [long, value_name = "FILE", required = true, num_args = 1..],
        /// Order of re-embedding, from `rehang order`.
        order: VectorSource = [long, value_name = "FILE"],
        /// Old vectors of the gallery, for the do-nothing line.
        old: Vec<VectorSource> = [long, value_name = "FILE", num_args = 1..],
        join: JoinArguments = [flatten],
        /// Rows to use, of everything that goes with the gallery's items; an order of all rows loses the
        /// others.
        rows: RowArguments = [flatten],
        /// Adapter file that made the adapted vectors: its handicap and its distances are used. With --old,
        /// also says how many items are among its pairs, and whether it was fitted the wrong way round.
        adapter: Option<PathBuf> = [long, value_name = "ADAPTER"],
        answers: AnswerArguments = [flatten],
        /// σ² of every item: adds Kendall's τ-b and the calibration against the true errors.
        sigma: Vec<VectorSource> = [long, value_name = "FILE", num_args = 1..],
        /// Distance used for search.
        distance: Option<String> = [
            long,
            help = format!("{} [default: that of the --adapter's new space, l2 without one]", distances())
        ],
        /// Distance of the old space, for the do-nothing line [default: as --distance, or that of the
        /// --adapter's old space].
        old_distance: Option<String> = [long, value_name = "DISTANCE", requires = "old"],
        /// Handicap that searches add to the distance of every item that is still adapted [default: as the
        /// --adapter recommends, 0 without one].
        handicap: Option<f64> = [long, value_name = "DISTANCE"],
        /// Give the values at this many equally spaced fractions too, and their mean.
        grid: Option<usize> = [long, value_name = "POINTS"],
        /// Intervals over this many bootstrap samples of the queries; 0 for none.
        bootstrap: usize = [long, value_name = "SAMPLES", default_value_t = StudyOptions::default().bootstrap],
        /// Write the value of every measure at every fraction to this file, [n + 1, columns]: top-1, top-5,
        /// mAP, flips, NFR, groups, … (docs/formats.md; --json names the columns). Without labels: agreement.
        points: Option<PathBuf> = [long, value_name = "FILE"],
    }

    /// Options of `rehang identify`.
    IdentifyArguments {
        /// Vectors of unknown origin; several files are read one after the other.
        vectors: Vec<VectorSource> = [value_name = "VECTORS", required_unless_present = "config", num_args = 1..],
        /// Vectors that a model that may have made them gives for the same items, NAME=FILE; give every such
        /// model.
        models: Vec<String> = [long, value_name = "NAME=FILE", num_args = 1.., requires = "vectors"],
        /// Vectors of one model whose origin is known, of the same items, where none that may have made them
        /// is at hand.
        new: Vec<VectorSource> = [long, value_name = "FILE", num_args = 1.., requires = "vectors", conflicts_with = "models"],
        join: JoinArguments = [flatten],
        rows: RowArguments = [flatten],
        /// Configuration of an upgrade: vectors of its gallery, and the encoders that it names.
        config: Option<PathBuf> = [long, value_name = "FILE", conflicts_with = "vectors"],
        /// Space of that gallery [default: the one that serves].
        space: Option<String> = [long, value_name = "NAME", requires = "config"],
        /// Random items of that gallery that each encoder embeds, which costs what embedding them costs; 0 to
        /// ask none.
        items: usize = [long, value_name = "ITEMS", default_value_t = IdentifyOptions::default().items],
        /// Seed of what is looked at without models.
        seed: u64 = [long, default_value_t = 0],
        /// Write the vectors that are not as most are to this file: id, or row from 0 on, a tab, and what it
        /// is.
        output: Option<PathBuf> = [short, long, value_name = "FILE"],
    }

    /// Options of `rehang report`.
    ReportArguments {
        /// Adapter files to compare, made by `rehang fit`.
        adapters: Vec<PathBuf> = [required = true, num_args = 1..],
        /// Old vectors of a gallery that no adapter was fitted on (repeat for several files).
        old: Vec<VectorSource> = [long, value_name = "FILE", required = true],
        /// New vectors of the same gallery (repeat for several files).
        new: Vec<VectorSource> = [long, value_name = "FILE", required = true],
        join: JoinArguments = [flatten],
        /// Side information of the gallery.
        side: Option<VectorSource> = [long, value_name = "FILE"],
        /// Old vectors of the pairs (repeat for several files): counts gallery items that are among them,
        /// where the adapter's own memory of its pairs gives an estimate only, or is of an earlier version
        /// and has none.
        pairs_old: Vec<VectorSource> = [long, value_name = "FILE"],
        /// Rows of that file that are the pairs, as for --rows.
        pairs_rows: Option<String> = [long, value_name = "FILE=VALUES", requires = "pairs_old"],
        /// Go on although the vectors do not look like those that the adapter was fitted on.
        force: bool = [long],
        rows: RowArguments = [flatten],
        answers: AnswerArguments = [flatten],
        /// Old vectors of the whole gallery that --old is a random sample of (repeat for several files): the
        /// report then forecasts that gallery, with intervals. Items of --old are found in it by their
        /// vectors.
        gallery: Vec<VectorSource> = [long, value_name = "FILE"],
        /// Class labels of the whole gallery; --labels is then not needed (repeat for several files).
        gallery_labels: Vec<VectorSource> = [long, value_name = "FILE", requires = "gallery"],
        /// Ids of the whole gallery's items, for --qrels (repeat for several files).
        gallery_ids: Vec<VectorSource> = [long, value_name = "FILE", requires_all = ["gallery", "qrels"]],
        head: HeadArguments = [flatten],
        /// Orders to compare, separated by commas; the first that is not the oracle carries the verdict.
        orders: Vec<String> = [long, value_name = "ORDERS", value_delimiter = ',', default_value = "coverage,sigma,random,oracle"],
        /// How many random orders the random line is averaged over.
        random_orders: u64 = [long, default_value_t = StudyOptions::default().random_orders],
        /// Seed of everything random.
        seed: u64 = [long, default_value_t = 0],
        /// Bootstrap samples of the queries for bands and intervals; 0 for none.
        bootstrap: usize = [long, default_value_t = StudyOptions::default().bootstrap],
        /// Widths that the new vectors are cut to, separated by commas: the report says what each is worth
        /// and takes.
        widths: Vec<usize> = [long, value_name = "WIDTHS", value_delimiter = ','],
        /// Precisions that they are rounded to, separated by commas, likewise: f32, f16, i8.
        precisions: Vec<String> = [long = "precision", value_name = "PRECISIONS", value_delimiter = ','],
        /// Title of the report.
        title: String = [long, default_value = "What would the new model buy?"],
        /// The report: .html, .md or .json (repeat for several).
        output: Vec<PathBuf> = [short, long, value_name = "FILE", required = true],
    }
}
