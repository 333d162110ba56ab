//! Arguments of `rehang-lab train`, `compare`, `embed` and `export`.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use rehang_cli::{arguments, options};
use rehang_core::Result;
use rehang_train::{CompareFiles, DataPart, EmbedFiles, TrainFiles};

arguments! {
    /// Options of `rehang-lab train`.
    TrainArguments => TrainFiles {
        /// plain, bct, ract, dmu, l2, lwf, focal-distillation, regression, ract-on-bct or both-heads.
        method: String = [],
        /// The configuration: [data], [allocation], [encoder], [head], [augmentation], [sampler], [old],
        /// [method], [training], [output] (laboratory/docs/training.md).
        config: PathBuf = [],
        /// The encoder file to write [default: output.encoder of the configuration].
        output: Option<PathBuf> = [short, long, value_name = "FILE"],
        /// The adapter file to write, for methods that train one (dmu) [default: output.adapter of the
        /// configuration].
        adapter: Option<PathBuf> = [long, value_name = "FILE"],
        /// Seed of initial weights, batches and variations [default: training.seed of the configuration, or
        /// 0].
        seed: Option<u64> = [long],
        /// Epochs [default: training.epochs of the configuration, or 30].
        epochs: Option<usize> = [long, value_name = "N"],
    }

    /// Options of `rehang-lab compare`.
    CompareArguments => CompareFiles {
        /// The study: a training's configuration with a table [compare] (laboratory/docs/training.md).
        config: PathBuf = [],
        /// Folder for the report.
        out: PathBuf = [long, value_name = "DIR", default_value = "rehang-compare"],
        /// Use the seeds 0, 1, … N−1 instead of those of the configuration.
        seeds: Option<u64> = [long, value_name = "N"],
    }

    /// Options of `rehang-lab embed`.
    EmbedArguments {
        /// The encoder file.
        encoder: PathBuf = [],
        /// The configuration whose [data] and [allocation] say what is embedded.
        config: PathBuf = [],
        /// Part of the allocation to embed.
        part: DataPart = [long, value_parser = part(), default_value = "all"],
        /// The vectors to write: .npy, .parquet, .fvecs or .safetensors.
        output: PathBuf = [short, long, value_name = "FILE"],
        /// Write the class numbers of these rows too.
        labels: Option<PathBuf> = [long, value_name = "FILE"],
    }

    /// Options of `rehang-lab export`.
    ExportArguments {
        /// The encoder file.
        file: PathBuf = [],
        /// The ONNX file to write.
        output: PathBuf = [short, long, value_name = "FILE"],
    }
}

impl EmbedArguments {
    /// Gives the files of an embedding, as the library takes them.
    pub fn files(&self) -> Result<EmbedFiles> {
        Ok(options!(EmbedFiles { encoder, config, output, labels } from self, part: self.part))
    }
}

fn part() -> impl TypedValueParser<Value = DataPart> {
    PossibleValuesParser::new(DataPart::ALL.map(DataPart::name)).try_map(|name| name.parse::<DataPart>())
}
