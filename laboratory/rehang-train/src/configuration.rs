//! Configuration of a training, a TOML file. Unknown keys are errors; paths are seen from the folder of the
//! file.

use std::path::{Path, PathBuf};

use rehang_core::{Error, Head, Result};
use rehang_files::VectorSource;
use serde::Deserialize;

use crate::compatible::{
    HeadForm, OldHead, OldModel, OldSource, OptimiserKind, RateSchedule, TrainingMethod, TrainingParameters,
};
use crate::encoder::{EncoderArchitecture, TrainedEncoder};
use crate::examples::{
    Allocation, AllocationParameters, Augmentation, Examples, ExamplesSource, SamplerParameters,
};

/// Content of the file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TrainingFile {
    /// Data that is trained on and embedded.
    pub data: ExamplesSource,
    /// Part of the data whose rows are used; all rows without it.
    pub allocation: Option<AllocationPart>,
    /// Architecture of the encoder.
    pub encoder: Option<EncoderArchitecture>,
    /// Form of the new head.
    #[serde(default)]
    pub head: HeadForm,
    /// Random variation of inputs.
    #[serde(default)]
    pub augmentation: Augmentation,
    /// Way in which rows become batches.
    pub sampler: Option<SamplerParameters>,
    /// The old model.
    pub old: Option<OldPart>,
    /// Options of the method.
    #[serde(default)]
    pub method: toml::Table,
    /// Length, rate and optimiser of the training.
    #[serde(default)]
    pub training: TrainingPart,
    /// Files to write, and the new model's name.
    #[serde(default)]
    pub output: OutputPart,
    /// Folder of the file.
    #[serde(skip)]
    pub folder: PathBuf,
}

/// Table `[allocation]`: a file that old and new share, and how it is drawn where it does not exist yet.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct AllocationPart {
    /// The file.
    pub file: PathBuf,
    /// Part whose rows are trained on, `old`, `new` or `all`; the new model's where it is not given.
    #[serde(default)]
    pub part: Option<DataPart>,
    /// Share that the new model sees, where the allocation is one step of a chain.
    #[serde(default)]
    pub new_share: Option<f64>,
    /// Parameters by which it is drawn.
    #[serde(flatten)]
    pub draw: toml::Table,
    /// Folder of the configuration.
    #[serde(skip)]
    pub folder: PathBuf,
}

rehang_core::named! {
    /// Part of the data, as an allocation names it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum DataPart ("part") {
        /// Rows that the old model is trained on.
        Old = "old",
        /// Rows that the new model is trained on.
        #[default]
        New = "new",
        /// Rows of seen classes that are held out.
        Test = "test",
        /// Rows of classes that neither model sees.
        Unseen = "unseen",
        /// Every row.
        All = "all",
    }
}

/// Table `[old]`: the old model.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OldPart {
    /// An encoder file of rehang; its head comes with it.
    pub encoder: Option<PathBuf>,
    /// Whether the old vectors are computed once, without variation of the inputs.
    #[serde(default)]
    pub cached: bool,
    /// Vectors that were computed before, row for row those of the data.
    pub vectors: Option<PathBuf>,
    /// Name of the old model, where there are vectors only.
    pub model: Option<String>,
    /// Weight of the old head, `[classes, d_old]`.
    pub head_weight: Option<PathBuf>,
    /// Bias of the old head.
    pub head_bias: Option<PathBuf>,
    /// Form of the old head's logits; by default a softmax.
    pub head: Option<HeadForm>,
    /// Names of its classes; the data's where they are not given and are as many.
    pub classes: Option<Vec<String>>,
}

/// Table `[training]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TrainingPart {
    epochs: Option<usize>,
    optimiser: Option<OptimiserKind>,
    rate: Option<f64>,
    schedule: Option<RateSchedule>,
    warm_up_epochs: Option<f64>,
    weight_decay: Option<f32>,
    gradient_clip: Option<f64>,
    label_smoothing: Option<f32>,
    views: Option<usize>,
    pub seed: Option<u64>,
    pub initial: Option<PathBuf>,
}

/// Recipe of one method of a study, where it differs from that of all.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Recipe {
    /// Architecture of the encoder that is trained.
    encoder: Option<EncoderArchitecture>,
    /// The new head.
    head: Option<HeadForm>,
    /// Way in which rows become batches.
    sampler: Option<SamplerParameters>,
    /// Length, rate and optimiser of the training; keys that are not given are those of all.
    #[serde(default)]
    pub training: TrainingPart,
}

impl Recipe {
    /// Keys of a method's table that belong to its recipe.
    pub const KEYS: [&'static str; 4] = ["encoder", "head", "sampler", "training"];

    /// Lays the recipe's own values over those of all methods.
    pub fn over(self, all: TrainingParameters) -> TrainingParameters {
        self.training.over(TrainingParameters {
            architecture: self.encoder.unwrap_or(all.architecture),
            head: self.head.unwrap_or(all.head),
            sampler: self.sampler.unwrap_or(all.sampler),
            ..all
        })
    }
}

impl TrainingPart {
    /// Lays the values that are given over the usual ones.
    fn over(self, usual: TrainingParameters) -> TrainingParameters {
        TrainingParameters {
            label_smoothing: self.label_smoothing.unwrap_or(usual.label_smoothing),
            views: self.views.unwrap_or(usual.views),
            epochs: self.epochs.unwrap_or(usual.epochs),
            optimiser: self.optimiser.unwrap_or(usual.optimiser),
            rate: self.rate.unwrap_or(usual.rate),
            schedule: self.schedule.unwrap_or_else(|| usual.schedule.clone()),
            warm_up_epochs: self.warm_up_epochs.unwrap_or(usual.warm_up_epochs),
            weight_decay: self.weight_decay.unwrap_or(usual.weight_decay),
            gradient_clip: self.gradient_clip.or(usual.gradient_clip),
            seed: self.seed.unwrap_or(usual.seed),
            initial: self.initial.or_else(|| usual.initial.clone()),
            ..usual
        }
    }
}

/// Table `[output]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OutputPart {
    /// Name of the new model.
    pub model: Option<String>,
    /// The encoder file.
    pub encoder: Option<PathBuf>,
    /// File of ψ as an adapter.
    pub adapter: Option<PathBuf>,
    /// File of the training's state.
    pub checkpoint: Option<PathBuf>,
}

impl TrainingFile {
    /// Reads the file.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs_err::read_to_string(path).map_err(|error| Error::io("read", path, &error))?;
        Self::parse(&text, path)
    }

    /// Parses a configuration; `path` is where it stands, or would.
    pub fn parse(text: &str, path: &Path) -> Result<Self> {
        let mut file: Self = toml::from_str(text).map_err(|error| Error::corrupt(path.display(), error))?;
        file.folder = path.parent().map(Path::to_path_buf).unwrap_or_default();
        let folder = file.folder.clone();
        let place = |path: &mut PathBuf| *path = folder.join(&*path);
        file.data.paths().into_iter().for_each(|(_, path)| place(path));
        if let Some(allocation) = &mut file.allocation {
            place(&mut allocation.file);
            allocation.folder.clone_from(&folder);
        }
        let outputs = [&mut file.output.encoder, &mut file.output.adapter, &mut file.output.checkpoint];
        outputs.into_iter().flatten().for_each(place);
        file.training.initial.iter_mut().for_each(place);
        if let Some(old) = &mut file.old {
            let paths = [&mut old.encoder, &mut old.vectors, &mut old.head_weight, &mut old.head_bias];
            paths.into_iter().flatten().for_each(place);
        }
        Ok(file)
    }

    /// Gives the rows to train on: those of the allocation's part, which must not be a held-out one.
    pub fn training_rows(&self, examples: &Examples) -> Result<Vec<usize>> {
        if let Some(allocation) = &self.allocation
            && matches!(allocation.part, Some(DataPart::Test | DataPart::Unseen))
        {
            return Err(Error::option(
                "allocation.part",
                "a held-out part",
                "old, new or all: the test and the unseen classes are there to be searched, not trained on",
            ));
        }
        self.rows(examples, None)
    }

    /// Gives the rows of a part; the allocation is drawn and written where its file does not exist yet.
    pub fn rows(&self, examples: &Examples, part: Option<DataPart>) -> Result<Vec<usize>> {
        let Some(allocation) = &self.allocation else {
            return match part {
                None | Some(DataPart::All) => Ok((0..examples.len()).collect()),
                Some(_) => Err(Error::missing("the table [allocation]", "a part of the data")),
            };
        };
        let drawn = allocation.get(examples)?;
        Ok(match part.or(allocation.part).unwrap_or_default() {
            DataPart::Old => drawn.old,
            DataPart::New => drawn.new,
            DataPart::Test => drawn.test,
            DataPart::Unseen => drawn.unseen,
            DataPart::All => (0..examples.len()).collect(),
        })
    }

    /// Gives the rows that the old model was trained on, where there is an allocation and so a part for it.
    pub fn old_rows(&self, examples: &Examples) -> Result<Option<Vec<usize>>> {
        self.allocation.as_ref().map(|_| self.rows(examples, Some(DataPart::Old))).transpose()
    }

    /// Reads the old model, where the file names one.
    pub fn old_model(&self, examples: &Examples) -> Result<Option<OldModel>> {
        let Some(old) = &self.old else { return Ok(None) };
        let weight = ("head_weight", old.head_weight.is_some());
        let of_head = [
            ("head_bias", old.head_bias.is_some()),
            ("head", old.head.is_some()),
            ("classes", old.classes.is_some()),
        ];
        match (&old.encoder, &old.vectors) {
            (Some(path), None) => {
                OldPart::expect_absent("encoder", &[("model", old.model.is_some()), weight])?;
                OldPart::expect_absent("encoder", &of_head)?;
                Ok(Some(OldModel::from_encoder(TrainedEncoder::load(path)?, old.cached)))
            }
            (None, Some(path)) => {
                OldPart::expect_absent("vectors", &[("cached", old.cached)])?;
                if old.head_weight.is_none() {
                    OldPart::expect_absent("vectors without head_weight", &of_head)?;
                }
                let vectors = rehang_files::read_matrix(&VectorSource::parse(&path.to_string_lossy())?)?;
                let head = match &old.head_weight {
                    None => None,
                    Some(path) => Some(old.head(path, examples)?),
                };
                let model = old.model.clone().unwrap_or_else(|| "old".into());
                Ok(Some(OldModel { model, source: OldSource::Vectors(vectors), head }))
            }
            _ => Err(Error::option("[old]", "encoder and vectors", "one of the two")),
        }
    }

    /// Gives the parameters of a training by one method.
    pub fn parameters(&self, method: &str) -> Result<TrainingParameters> {
        let method = TrainingMethod::from_table(method, self.method.clone())?;
        let is_headless =
            self.old.as_ref().is_some_and(|old| old.vectors.is_some() && old.head_weight.is_none());
        if let (TrainingMethod::Regression { .. }, true, Some(selection)) =
            (&method, is_headless, self.method.get("selection"))
        {
            return Err(Error::option(
                "selection",
                selection,
                "nothing without old.head_weight: it is the old head that weighs rows, and without one all weigh alike",
            ));
        }
        let architecture = self.encoder.clone();
        let architecture = architecture.ok_or_else(|| Error::missing("the table [encoder]", "training"))?;
        let model = self.output.model.clone().unwrap_or_else(|| method.name().to_owned());
        let usual = TrainingParameters::new(model, architecture, method);
        Ok(self.training.clone().over(TrainingParameters {
            head: self.head,
            sampler: self.sampler.unwrap_or(usual.sampler),
            augmentation: self.augmentation.clone(),
            checkpoint: self.output.checkpoint.clone(),
            ..usual
        }))
    }
}

impl AllocationPart {
    /// Gives the path of the file of test rows, where there is one.
    pub fn test_rows(&self) -> Option<PathBuf> {
        Some(self.folder.join(self.draw.get("test_rows")?.as_str()?))
    }

    /// Reads the allocation, or draws and writes it.
    pub fn get(&self, examples: &Examples) -> Result<Allocation> {
        let parameters: Option<AllocationParameters> = if self.draw.is_empty() {
            None
        } else {
            let read: std::result::Result<_, toml::de::Error> = self.draw.clone().try_into();
            Some(read.map_err(|error| Error::option("[allocation]", self.file.display(), error.message()))?)
        };
        if self.file.exists() {
            let allocation = Allocation::read(&self.file, examples)?;
            // A configuration may name the file alone. Parameters that it leaves out are not compared with
            // the file's.
            let drawn_so = parameters.as_ref().is_none_or(|asked| {
                (asked, self.new_share) == (&allocation.parameters, allocation.new_share)
            });
            if !drawn_so || self.new_share.is_some_and(|asked| allocation.new_share != Some(asked)) {
                return Err(Error::conflict(
                    self.file.display(),
                    "it was drawn in another way than [allocation] says now; remove it to draw anew (models that were \
                     trained by it belong to the old one)",
                ));
            }
            return Ok(allocation);
        }
        let parameters = parameters.ok_or_else(|| {
            Error::missing("kind and share (or classes) in [allocation]", "drawing a new allocation")
        })?;
        let mut seen_from_here = parameters.clone();
        if let Some(path) = &mut seen_from_here.test_rows {
            *path = self.folder.join(&*path);
        }
        let mut allocation = match self.new_share {
            None => Allocation::draw(examples, &seen_from_here)?,
            Some(new_share) => Allocation::step(examples, &seen_from_here, new_share)?,
        };
        // The file says what the configuration says, whichever folder the command was run in.
        allocation.parameters = parameters;
        allocation.write(&self.file)?;
        Ok(allocation)
    }
}

impl OldPart {
    /// Fails where an option stands beside one that leaves it without a meaning.
    fn expect_absent(beside: &str, options: &[(&str, bool)]) -> Result<()> {
        match options.iter().find(|(_, given)| *given) {
            None => Ok(()),
            Some((option, _)) => Err(Error::option(
                format!("old.{option}"),
                format!("given beside old.{beside}"),
                "nothing there: it would not be looked at",
            )),
        }
    }

    fn head(&self, weight: &Path, examples: &Examples) -> Result<OldHead> {
        let form = self.head.unwrap_or_default();
        form.check("old.head")?;
        if let Some(path) = self.head_bias.as_ref().filter(|_| form.is_cosine()) {
            return Err(Error::option(
                "old.head_bias",
                path.display(),
                "nothing beside this old.head: its logits are cosines, which have no bias",
            ));
        }
        let weight = rehang_files::read_matrix(&VectorSource::parse(&weight.to_string_lossy())?)?;
        let bias = match &self.head_bias {
            None => None,
            Some(path) => {
                Some(rehang_files::read_f32_column(&VectorSource::parse(&path.to_string_lossy())?)?)
            }
        };
        let head = Head::new(weight, bias, form.head_kind())?;
        let classes = match &self.classes {
            Some(classes) => classes.clone(),
            None if head.classes() == examples.classes.len() => examples.classes.clone(),
            None => {
                return Err(Error::option(
                    "old.classes",
                    "not given",
                    format!(
                        "the names of the old head's {} classes, in the order of its rows: the data have {}, and which of \
                         them these are is not known",
                        head.classes(),
                        examples.classes.len()
                    ),
                ));
            }
        };
        Ok(OldHead { head, form, classes })
    }
}
