//! What can be said on the laboratory's command line. Parsing only: nothing here opens a file.

pub mod evaluate;
pub mod train;

use std::ffi::OsString;

use clap::{Parser, Subcommand};

use evaluate::EvaluateCommand;
use train::{CompareArguments, EmbedArguments, ExportArguments, TrainArguments};

/// Train encoders that are compatible with an old model, compare methods of papers, and repeat the studies of this repository.
///
/// A verb that is not listed here is one of `rehang`: `rehang-lab fit` is `rehang fit`.
#[derive(Debug, Parser)]
#[command(name = "rehang-lab", version, propagate_version = true, max_term_width = 110)]
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
    /// Train an encoder, by itself or compatible with an old model's gallery: plain, bct, ract, dmu, l2, lwf, …
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
    #[command(external_subcommand)]
    #[expect(dead_code, reason = "the whole line is handed on, with what stands in front of the verb")]
    Rehang(Vec<OsString>),
}
