//! Arguments and options of the laboratory's command line. Parsing only: nothing here opens a file.

#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "help is plain text: brackets are tables of the configuration, or what may be left out"
)]

pub mod evaluate;
pub mod train;

use std::ffi::OsString;

use clap::{Parser, Subcommand, ValueEnum};
use rehang_cli::arguments;

use evaluate::EvaluateCommand;
use train::{CompareArguments, EmbedArguments, ExportArguments, TrainArguments};

/// Train encoders that are compatible with an old model, compare methods of papers, and repeat the studies of
/// this repository.
///
/// A verb that is not listed here is one of `rehang`: `rehang-lab fit` is `rehang fit`.
#[derive(Debug, Parser)]
#[command(name = "rehang-lab", version, propagate_version = true, max_term_width = 110)]
pub struct LabArguments {
    /// Verb to carry out.
    #[command(subcommand)]
    pub command: LabCommand,

    /// Print one JSON object on stdout instead of text.
    #[arg(long, global = true)]
    pub json: bool,

    /// Threads to use [default: all cores]. Results do not depend on it.
    #[arg(long, global = true, value_name = "N")]
    pub threads: Option<usize>,
}

/// The verbs.
#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one of it in a process")]
pub enum LabCommand {
    /// Train an encoder, by itself or compatible with an old model's gallery: plain, bct, ract, dmu, l2, lwf,
    /// …
    Train(TrainArguments),
    /// Train and compare compatible methods and adapters over seeds and orders; writes one report.
    Compare(CompareArguments),
    /// Vectors of images or features by an encoder that was trained here.
    Embed(EmbedArguments),
    /// Write an encoder that was trained here as an ONNX file, which serves as the encoder of a gallery.
    Export(ExportArguments),
    /// Compare compatible models: cross matrix, hot refresh, upgrades in a row, face and landmark protocols.
    #[command(subcommand)]
    Evaluate(EvaluateCommand),
    /// Repeat a study, from the root of the repository, on the real vectors of `../shared/data`.
    Study(StudyArguments),
    #[command(external_subcommand)]
    #[expect(dead_code, reason = "the whole line is handed on, with what stands in front of the verb")]
    Rehang(Vec<OsString>),
}

arguments! {
    /// Options of `rehang-lab study`.
    StudyArguments {
        /// Study to repeat.
        study: StudyName = [value_enum],
        /// Words of the study, which stand behind its name.
        rest: Vec<String> = [value_name = "WORD"],
    }
}

/// Studies; each says in brackets what it takes, and then what it measures.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum StudyName {
    /// `[FOLDER]`: which order closes the gap between groups that the old model saw unevenly.
    Bias,
    /// `[SPLITS [FOLDER [SET…]]]`: what an untouched gallery gives to bridged queries and to both models'
    /// scores together.
    Bridge,
    /// Trains the two encoders of the demo, and writes what in `demo/` is not taken from scikit-learn by
    /// `scripts/extract-digits.py`.
    DemoData,
    /// `[METHOD [FOLDER [SET…]]]`: how far σ² is off, in galleries that are what the pairs were drawn from
    /// and in others.
    Drift,
    /// `[SPLITS [FOLDER [SET…]]]`: forecasts of whole galleries against their truth.
    Forecast,
    /// `[FOLDER] [SET…]`: what searches find at every stage of an upgrade, mixed and fused.
    Fuse,
    /// `[FOLDER [REAL]]`: how often a mixture of several models' vectors is found.
    Identify,
    /// `[FOLDER] [SET…]`: what more pairs are expected to bring against what they brought.
    Learning,
    /// `[SPLITS [FOLDER [SET…]]]`: what bridges and switches bring in galleries that the product itself has
    /// upgraded, asked through the library and in SQL.
    Live,
    /// `[FOLDER [SET…]]`: from how many pairs on a residual network serves better than kernel ridge.
    Networks,
    /// `[SPLITS [FOLDER [SET…]]]`: whether the order that held-out pairs choose is right.
    Orders,
    /// `[pages | units [SET…] | side | studies [NAME…]]`: the papers' tables made here, what is missing of
    /// them, and the pages of results.
    Papers,
    /// `[METHOD [FOLDER [SET…]]]`: what it is worth to fit the map again while a gallery is re-embedded.
    Refit,
    /// `[FOLDER [SET…]]`: what the choice of `rehang fit` costs against the best candidate that it had.
    Regret,
    /// `[SPLITS [FOLDER [SET…]]]`: bridges and fusions that are chosen by the whole gallery, beside those
    /// chosen by held-out pairs among themselves.
    Whole,
}
