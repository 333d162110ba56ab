//! Training, embedding and comparing by a configuration file: which rows, which old model, where results go.

use std::path::{Path, PathBuf};

use rehang_core::comparison::Comparison;
use rehang_core::finding::{Finding, FindingCode};
use rehang_core::order::Policy;
use rehang_core::{Distance, Error, Progress, Result, Space};
use rehang_files::{AtomicFile, expect_apart};
use serde::{Deserialize, Serialize};

use crate::compatible::{EpochSummary, HeadForm, TrainingMethod, TrainingParameters, TrainingSet, train};
use crate::configuration::{DataPart, Recipe, TrainingFile};
use crate::contest::{ComparisonData, ComparisonParameters, ContenderTraining, compare};
use crate::encoder::{EncoderArchitecture, Shape, TrainedEncoder};
use crate::examples::{Examples, Refusal};

/// Configuration of a training, and what stands in place of some of its values.
#[derive(Debug, Clone)]
pub struct TrainFiles {
    /// The method's name.
    pub method: String,
    /// The configuration (`docs/training.md`).
    pub config: PathBuf,
    /// The encoder to write, in place of `output.encoder`.
    pub output: Option<PathBuf>,
    /// The adapter to write, for methods that train one, in place of `output.adapter`.
    pub adapter: Option<PathBuf>,
    /// The seed, in place of `training.seed`.
    pub seed: Option<u64>,
    /// Epochs, in place of `training.epochs`.
    pub epochs: Option<usize>,
}

/// Answer of a training whose encoder was written.
#[derive(Debug, Clone, Serialize)]
pub struct TrainAnswer {
    /// Path of the encoder.
    pub encoder: PathBuf,
    /// Path of the adapter, where one was trained and kept.
    pub adapter: Option<PathBuf>,
    /// The method's name.
    pub method: String,
    /// The new model's name.
    pub model: String,
    /// Number of coordinates of its vectors.
    pub dimension: usize,
    /// Number of classes of its head.
    pub classes: usize,
    /// Number of rows that it was trained on.
    pub examples: usize,
    /// The seed.
    pub seed: u64,
    /// Numbers of every epoch.
    pub history: Vec<EpochSummary>,
    /// Images or rows that were left out of the data.
    pub refused: Vec<Refusal>,
    /// Warnings of what was odd about the inputs, one sentence each.
    pub warnings: Vec<String>,
    /// Findings that the reader should know beside the warnings.
    #[serde(skip)]
    pub findings: Vec<Finding>,
    /// Whether an adapter was to be written and did not come out.
    #[serde(skip)]
    pub is_adapter_lost: bool,
}

/// Trains an encoder by a configuration and writes it.
///
/// # Errors
///
/// What is wrong with the configuration names its key; [`MissingInput`](rehang_core::ErrorKind::MissingInput)
/// without a place for the encoder; [`InvalidOption`](rehang_core::ErrorKind::InvalidOption) for an output that is
/// an input or another output; as [`train`].
pub fn train_files(files: &TrainFiles, progress: &Progress) -> Result<TrainAnswer> {
    let file = TrainingFile::read(&files.config)?;
    let mut parameters = file.parameters(&files.method)?;
    parameters.seed = files.seed.unwrap_or(parameters.seed);
    parameters.epochs = files.epochs.unwrap_or(parameters.epochs);
    let output = files.output.clone().or_else(|| file.output.encoder.clone());
    let output = output.ok_or_else(|| Error::missing("`output` (or output.encoder)", "training"))?;
    let adapter_output = files.adapter.clone().or_else(|| file.output.adapter.clone());
    let outputs = [
        ("output", Some(&output)),
        ("adapter", adapter_output.as_ref()),
        ("output.checkpoint", file.output.checkpoint.as_ref()),
    ];
    let mut inputs = of_configuration(&file, &files.config);
    if let Some(old) = &file.old {
        let files = [
            ("old.encoder", &old.encoder),
            ("old.vectors", &old.vectors),
            ("old.head_weight", &old.head_weight),
            ("old.head_bias", &old.head_bias),
        ];
        inputs.extend(files.into_iter().filter_map(|(name, path)| Some((name, path.clone()?))));
    }
    inputs.extend(parameters.initial.iter().map(|path| ("training.initial", path.clone())));
    expect_apart(&outputs, &inputs)?;
    // A bad output path fails now and not after the training.
    for path in std::iter::once(&output).chain(&adapter_output) {
        drop(AtomicFile::create(path)?);
    }

    let examples = Examples::read(&file.data)?;
    let rows = file.training_rows(&examples)?;
    let old = file.old_model(&examples)?;
    let old_rows = if parameters.method.needs_old_rows() { file.old_rows(&examples)? } else { None };
    let set = TrainingSet { examples: &examples, rows: &rows, old_rows: old_rows.as_deref() };
    let trained = train(set, old.as_ref(), &parameters, progress)?;
    trained.encoder.save(&output)?;
    let trains_adapter = parameters.method.adapter_hidden().is_some();
    let mut findings = Vec::new();
    let mut warn = |code: FindingCode, seen: String| findings.push(Finding::warning(code, seen));
    match (&trained.adapter, &adapter_output) {
        (Some(adapter), Some(path)) => rehang_files::adapter_file::save(adapter, path)?,
        (Some(_), None) => {
            let seen = "the trained adapter is not kept; name a file with `adapter`.";
            warn(FindingCode::AdapterNotKept, seen.into());
        }
        (None, Some(_)) if !trains_adapter => {
            warn(FindingCode::NoAdapter, format!("{} trains no adapter.", files.method));
        }
        (None, _) => {}
    }
    Ok(TrainAnswer {
        encoder: output,
        is_adapter_lost: trains_adapter && adapter_output.is_some() && trained.adapter.is_none(),
        adapter: trained.adapter.and(adapter_output),
        method: parameters.method.name().into(),
        dimension: trained.encoder.architecture.outputs(),
        classes: trained.encoder.classes.len(),
        model: trained.encoder.model,
        examples: rows.len(),
        seed: parameters.seed,
        history: trained.history,
        refused: examples.refused,
        warnings: trained.warnings,
        findings,
    })
}

/// Encoder, what it embeds, and where the vectors go.
#[derive(Debug, Clone)]
pub struct EmbedFiles {
    /// The encoder.
    pub encoder: PathBuf,
    /// The configuration whose `[data]` and `[allocation]` say what is embedded.
    pub config: PathBuf,
    /// Part of the allocation that is embedded.
    pub part: DataPart,
    /// The vectors to write.
    pub output: PathBuf,
    /// File for the class numbers of these rows.
    pub labels: Option<PathBuf>,
}

/// Answer of an embedding whose vectors were written.
#[derive(Debug, Clone, Serialize)]
pub struct EmbedAnswer {
    /// Path of the vectors.
    pub vectors: PathBuf,
    /// Number of vectors.
    pub items: usize,
    /// Number of coordinates of each vector.
    pub dimension: usize,
    /// Name of the model that made them.
    pub model: String,
    /// Space of the vectors.
    #[serde(skip)]
    pub space: Space,
    /// Images or rows that were left out of the data.
    pub refused: Vec<Refusal>,
}

/// Embeds a part of the data of a configuration.
///
/// # Errors
///
/// As [`train_files`] and [`TrainedEncoder::embed`].
pub fn embed_files(files: &EmbedFiles, progress: &Progress) -> Result<EmbedAnswer> {
    let encoder = TrainedEncoder::load(&files.encoder)?;
    let file = TrainingFile::read(&files.config)?;
    let mut inputs = of_configuration(&file, &files.config);
    inputs.push(("encoder", files.encoder.clone()));
    expect_apart(&[("output", Some(&files.output)), ("labels", files.labels.as_ref())], &inputs)?;
    for path in std::iter::once(&files.output).chain(&files.labels) {
        drop(AtomicFile::create(path)?);
    }
    let examples = Examples::read(&file.data)?;
    let rows = file.rows(&examples, Some(files.part))?;
    let chosen = examples.select(&rows);
    let vectors = encoder.embed(&chosen.inputs, progress)?;
    rehang_files::write_matrix(&files.output, vectors.matrix(), None)?;
    if let Some(path) = &files.labels {
        let labels: Vec<i64> = chosen.labels.iter().map(|&label| label.into()).collect();
        rehang_files::write_labels(path, &labels)?;
    }
    let space = encoder.space();
    Ok(EmbedAnswer {
        vectors: files.output.clone(),
        items: vectors.len(),
        dimension: space.dimension,
        model: space.name.clone(),
        space,
        refused: examples.refused,
    })
}

/// Answer of an export whose ONNX file was written.
#[derive(Debug, Clone, Serialize)]
pub struct ExportAnswer {
    /// Path of the ONNX file.
    pub onnx: PathBuf,
    /// Size of the file in bytes.
    pub bytes: usize,
    /// Shape of the encoder's inputs.
    #[serde(skip)]
    pub input: Shape,
    /// Number of coordinates of the encoder's vectors.
    #[serde(skip)]
    pub dimension: usize,
}

/// Writes an encoder as an ONNX file.
///
/// # Errors
///
/// As [`TrainedEncoder::load`] and [`TrainedEncoder::to_onnx`];
/// [`InvalidOption`](rehang_core::ErrorKind::InvalidOption) where the output is the encoder.
pub fn export_onnx(encoder: &Path, output: &PathBuf) -> Result<ExportAnswer> {
    expect_apart(&[("output", Some(output))], &[("encoder", encoder.to_owned())])?;
    let encoder = TrainedEncoder::load(encoder)?;
    let bytes = encoder.to_onnx()?;
    AtomicFile::write(output, &bytes)?;
    let dimension = encoder.architecture.outputs();
    Ok(ExportAnswer { onnx: output.clone(), bytes: bytes.len(), input: encoder.input, dimension })
}

/// Configuration of a study: that of a training, for the new models, with a table `[compare]`.
#[derive(Debug, Clone)]
pub struct CompareFiles {
    /// The configuration (`docs/training.md`).
    pub config: PathBuf,
    /// Number of seeds, 0, 1, … below it, in place of those of the configuration.
    pub seeds: Option<u64>,
    /// The folder that the caller writes reports to, which is made before anything expensive.
    pub out: PathBuf,
}

/// Trains and compares compatible methods and adapters as a configuration says; gives the comparison, and
/// what was left out of the data.
///
/// # Errors
///
/// What is wrong with the configuration names its key; as [`compare`].
pub fn compare_files(files: &CompareFiles, progress: &Progress) -> Result<(Comparison, Vec<Refusal>)> {
    let path = &files.config;
    let text = fs_err::read_to_string(path).map_err(|error| Error::io("read", path, &error))?;
    let mut whole: toml::Table =
        toml::from_str(&text).map_err(|error| Error::corrupt(path.display(), error))?;
    let part =
        whole.remove("compare").ok_or_else(|| Error::missing("the table [compare]", path.display()))?;
    let part: ComparePart =
        part.try_into().map_err(|error: toml::de::Error| Error::corrupt(path.display(), error))?;
    let file = TrainingFile::parse(&whole.to_string(), path)?;
    let mut parameters = parameters(&file, &part, path)?;
    if let Some(seeds) = files.seeds {
        parameters.seeds = (0..seeds).collect();
    }
    for folder in parameters.folder.iter().chain([&files.out]) {
        fs_err::create_dir_all(folder).map_err(|error| Error::io("create", folder, &error))?;
    }

    let examples = Examples::read(&file.data)?;
    let rows = |part: DataPart| file.rows(&examples, Some(part));
    let (old_rows, new_rows) = (rows(DataPart::Old)?, rows(DataPart::New)?);
    let mut parts = vec![("test", rows(DataPart::Test)?), ("unseen", rows(DataPart::Unseen)?)];
    if parts.iter().all(|(_, rows)| rows.is_empty()) {
        return Err(Error::option(
            "[allocation]",
            "nobody held out",
            "test above 0 or unseen classes: a comparison searches what no model was trained on",
        ));
    }
    if part.union {
        parts.push(("union", parts.iter().flat_map(|(_, rows)| rows.iter().copied()).collect()));
    }
    let parts = parts.into_iter().filter(|(_, rows)| !rows.is_empty());
    let data = ComparisonData {
        examples: &examples,
        old_rows: &old_rows,
        new_rows: &new_rows,
        parts: parts.map(|(name, rows)| (name.to_owned(), rows)).collect(),
    };
    let comparison = compare(&data, &parameters, progress)?;
    Ok((comparison, examples.refused))
}

/// Lists the files that a configuration makes every command read, itself among them, with the keys that name
/// them.
fn of_configuration(file: &TrainingFile, path: &Path) -> Vec<(&'static str, PathBuf)> {
    let mut inputs: Vec<(&'static str, PathBuf)> =
        file.data.clone().paths().into_iter().map(|(name, path)| (name, path.clone())).collect();
    inputs.push(("the configuration", path.to_owned()));
    if let Some(allocation) = &file.allocation {
        inputs.push(("allocation.file", allocation.file.clone()));
        inputs.extend(allocation.test_rows().map(|path| ("allocation.test_rows", path)));
    }
    inputs
}

/// Table `[compare]`; the rest of the file is a training's, for the new models.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ComparePart {
    /// Title of the report.
    title: Option<String>,
    /// Seeds.
    #[serde(default = "three_seeds")]
    seeds: Vec<u64>,
    /// The old model's encoder.
    old_encoder: EncoderArchitecture,
    /// Form of the old model's head; the new one's where it is not given.
    old_head: Option<HeadForm>,
    /// Epochs of the old model; those of the new one where it is not given.
    old_epochs: Option<usize>,
    /// Compatible methods: names, or tables with `name`, `label` and the method's options.
    methods: Vec<Named>,
    /// Adapters, by the names of their methods.
    #[serde(default)]
    adapters: Vec<String>,
    /// Orders.
    #[serde(default = "usual_orders")]
    orders: Vec<String>,
    /// Distance of vectors.
    #[serde(default = "by_cosine")]
    distance: Distance,
    /// Protocols of the papers, such as `tar@0.001`.
    #[serde(default)]
    protocols: Vec<String>,
    /// Whether the seen and the unseen classes are searched as one gallery, too.
    #[serde(default)]
    union: bool,
    /// Whether each ψ is searched with a handicap as well.
    #[serde(default)]
    psi_handicap: bool,
    /// Folder in which trained encoders are kept.
    folder: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Named {
    Name(String),
    Table(toml::Table),
}

fn by_cosine() -> Distance {
    Distance::Cosine
}

fn three_seeds() -> Vec<u64> {
    vec![0, 1, 2]
}

fn usual_orders() -> Vec<String> {
    ["random", "sigma", "entropy", "coverage"].map(String::from).to_vec()
}

fn parameters(file: &TrainingFile, part: &ComparePart, path: &Path) -> Result<ComparisonParameters> {
    if !file.method.is_empty() || file.old.is_some() {
        return Err(Error::option(
            "[method] and [old]",
            path.display(),
            "neither in a comparison: methods stand in [compare], and the old model is trained here",
        ));
    }
    let kept = "folder in [compare] keeps what is trained";
    let has_part = file.allocation.as_ref().is_some_and(|allocation| allocation.part.is_some());
    let idle = [
        ("output.checkpoint", file.output.checkpoint.is_some(), kept),
        ("output.encoder", file.output.encoder.is_some(), kept),
        ("output.adapter", file.output.adapter.is_some(), kept),
        ("output.model", file.output.model.is_some(), "a model is called by its label and seed"),
        ("training.seed", file.training.seed.is_some(), "seeds stand in [compare]"),
        ("allocation.part", has_part, "the old model is trained on the part old, the others on the new one"),
    ];
    if let Some((option, _, instead)) = idle.iter().find(|(_, given, _)| *given) {
        return Err(Error::option(*option, path.display(), format!("nothing in a comparison: {instead}")));
    }
    let plain = file.parameters("plain")?;
    let mut contenders = Vec::new();
    for named in &part.methods {
        let (name, label, options, recipe) = match named {
            Named::Name(name) => (name.clone(), name.clone(), toml::Table::new(), Recipe::default()),
            Named::Table(table) => {
                let mut options = table.clone();
                let mut take =
                    |key: &str| options.remove(key).and_then(|value| value.as_str().map(String::from));
                let name =
                    take("name").ok_or_else(|| Error::missing("name", "a table in compare.methods"))?;
                let label = take("label").unwrap_or_else(|| name.clone());
                let own: toml::Table =
                    Recipe::KEYS.iter().filter_map(|key| options.remove_entry(*key)).collect();
                let recipe: Recipe = own.try_into().map_err(|error: toml::de::Error| {
                    Error::option("compare.methods", &label, error.message().to_owned())
                })?;
                if recipe.training.seed.is_some() || recipe.training.initial.is_some() {
                    let expected = "no seed and no initial weights of its own: all methods begin alike";
                    return Err(Error::option("compare.methods", label, expected));
                }
                (name, label, options, recipe)
            }
        };
        let method = TrainingMethod::from_table(&name, options)?;
        if !method.needs_old() {
            let expected = "compatible methods: the independent model takes part anyhow";
            return Err(Error::option("methods", method.name(), expected));
        }
        let parameters = TrainingParameters { method, ..recipe.over(plain.clone()) };
        contenders.push(ContenderTraining { label, parameters });
    }
    let old = TrainingParameters {
        architecture: part.old_encoder.clone(),
        head: part.old_head.unwrap_or(plain.head),
        epochs: part.old_epochs.unwrap_or(plain.epochs),
        // Weights to begin with are those of the new architecture.
        initial: None,
        ..plain.clone()
    };
    Ok(ComparisonParameters {
        title: part.title.clone().unwrap_or_else(|| "Ways to upgrade, side by side".into()),
        seeds: part.seeds.clone(),
        old,
        independent: plain,
        contenders,
        adapters: part.adapters.iter().map(|name| name.parse()).collect::<Result<_>>()?,
        orders: part.orders.iter().map(|name| name.parse::<Policy>()).collect::<Result<_>>()?,
        distance: part.distance,
        protocols: part.protocols.iter().map(|name| name.parse()).collect::<Result<_>>()?,
        psi_handicap: part.psi_handicap,
        folder: part.folder.as_ref().map(|folder| file.folder.join(folder)),
    })
}
