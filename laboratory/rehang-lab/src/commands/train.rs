//! `rehang-lab train`, `embed` and `export`.

use std::fmt::Write;

use rehang_cli::arguments::library::Argument;
use rehang_cli::shared::{Exit, say, say_findings, with_bar};
use rehang_core::Result;
use rehang_train::encoder::Shape;
use rehang_train::examples::Refusal;
use rehang_train::{TrainAnswer, TrainFiles, embed_files, export_onnx, train_files};

use crate::arguments::train::{EmbedArguments, ExportArguments, TrainArguments};

/// Trains an encoder and writes it.
pub fn run(arguments: &TrainArguments, json: bool) -> Result<Exit> {
    let files: TrainFiles = arguments.value()?;
    let answer = with_bar(|progress| train_files(&files, progress))?;
    say_refused(&answer.refused);
    say_findings(&answer.findings);
    for warning in &answer.warnings {
        say(&format!("Warning: {}.", warning.trim_end_matches('.')));
    }
    // A warning above says why; a script that waits for the file must not take the command for done.
    let is_whole = !answer.is_adapter_lost && answer.refused.is_empty();
    Exit::done_if(is_whole).print(json, &answer, &text(&answer))
}

/// Writes vectors of a part of the data.
pub fn embed(arguments: &EmbedArguments, json: bool) -> Result<Exit> {
    let files = arguments.files()?;
    let answer = with_bar(|progress| embed_files(&files, progress))?;
    say_refused(&answer.refused);
    let text = format!("{} vectors of {} in {}\n", answer.items, answer.space, answer.vectors.display());
    Exit::done_if(answer.refused.is_empty()).print(json, &answer, &text)
}

/// Writes the encoder as an ONNX file.
pub fn export(arguments: &ExportArguments, json: bool) -> Result<Exit> {
    let answer = export_onnx(&arguments.file, &arguments.output)?;
    let input = match answer.input {
        Shape { channels, height: 1, width: 1 } => format!("\"features\" [batch, {channels}]"),
        Shape { channels, height, width } => {
            format!("\"pixels\" [batch, {channels}, {height}, {width}] from 0 to 1")
        }
    };
    let (path, bytes, dimension) = (answer.onnx.display(), answer.bytes, answer.dimension);
    let text = format!("{path} ({bytes} bytes): input {input}, output \"vector\" [batch, {dimension}]\n");
    Exit::Done.print(json, &answer, &text)
}

/// Lists images that could not be read, on stderr: the first ten.
pub fn say_refused(refused: &[Refusal]) {
    for refusal in refused.iter().take(10) {
        say(&format!("Left out: {}: {}.", refusal.what, refusal.why.trim_end_matches('.')));
    }
    if refused.len() > 10 {
        say(&format!("… and {} more; --json lists all.", refused.len() - 10));
    }
}

fn text(answer: &TrainAnswer) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "epoch      loss  accuracy   terms");
    let last = answer.history.len();
    let shown = |epoch: usize| epoch < 3 || epoch + 3 >= last || (epoch + 1).is_multiple_of(10);
    for (epoch, line) in answer.history.iter().enumerate().filter(|(epoch, _)| shown(*epoch)) {
        let terms: Vec<String> = line
            .terms
            .iter()
            .chain(&line.measures)
            .map(|(name, value)| format!("{name} {value:.3}"))
            .collect();
        let _ = writeln!(
            text,
            "{:>5}  {:>8.3}  {:>6.1} %   {}",
            epoch + 1,
            line.loss,
            line.accuracy,
            terms.join(", ")
        );
    }
    let _ = writeln!(text, "{}", answer.encoder.display());
    text
}
