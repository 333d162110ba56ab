//! `rehang train`, `rehang embed`, `rehang export`: encoders.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use rehang::files::{self, AtomicFile};
use rehang::{Error, Progress, Result};
use rehang_fit::Device;
use rehang_train::compatible::{Trained, TrainingSet, train};
use rehang_train::encoder::{Encoder, Shape};
use rehang_train::examples::{Examples, ExamplesSource};
use serde_json::{Value, json};

use super::{Outcome, expect_apart, print, say};
use crate::arguments::{Embed, ExportEncoder, Train};
use crate::bar::with_bar;
use crate::training::TrainingFile;

/// Trains an encoder and writes it.
pub fn run(arguments: &Train, json: bool) -> Result<Outcome> {
    let file = TrainingFile::read(&arguments.config)?;
    let mut parameters = file.parameters(&arguments.method)?;
    parameters.seed = arguments.seed.unwrap_or(parameters.seed);
    parameters.epochs = arguments.epochs.unwrap_or(parameters.epochs);
    parameters.device = arguments.device.parse()?;
    let output = arguments.output.clone().or_else(|| file.output.encoder.clone());
    let output = output.ok_or_else(|| Error::missing("--output (or output.encoder)", "rehang train"))?;
    let adapter_output = arguments.adapter.clone().or_else(|| file.output.adapter.clone());
    let outputs = [
        ("--output", Some(&output)),
        ("--adapter", adapter_output.as_ref()),
        ("output.checkpoint", file.output.checkpoint.as_ref()),
    ];
    let mut inputs = of_configuration(&file, &arguments.config);
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

    let examples = read(&file)?;
    let rows = file.training_rows(&examples)?;
    let old = file.old_model(&examples)?;
    let old_rows = if parameters.method.needs_old_rows() { file.old_rows(&examples)? } else { None };
    let set = TrainingSet { examples: &examples, rows: &rows, old_rows: old_rows.as_deref() };
    let trained = with_bar(|progress| train(set, old.as_ref(), &parameters, progress))?;
    trained.encoder.save(&output)?;
    let trains_adapter = parameters.method.adapter_hidden().is_some();
    match (&trained.adapter, &adapter_output) {
        (Some(adapter), Some(path)) => adapter.save(path)?,
        (Some(_), None) => say("Warning: the trained adapter is not kept; name a file with --adapter."),
        (None, Some(_)) if !trains_adapter => {
            say(&format!("Warning: {} trains no adapter.", arguments.method));
        }
        (None, _) => {}
    }
    for warning in &trained.warnings {
        say(&format!("Warning: {}.", warning.trim_end_matches('.')));
    }
    let value = json!({
        "encoder": output,
        "adapter": trained.adapter.as_ref().and(adapter_output.as_ref()),
        "method": parameters.method.name(),
        "model": trained.encoder.model,
        "dimension": trained.encoder.architecture.outputs(),
        "classes": trained.encoder.classes.len(),
        "examples": rows.len(),
        "seed": parameters.seed,
        "history": trained.history,
        "refused": refused(&examples),
        "warnings": trained.warnings,
    });
    print(json, &value, &text(&trained, &output.display().to_string()))?;
    // A warning above says why; whoever waits for the file must not take the command for done.
    let is_lost = trains_adapter && adapter_output.is_some() && trained.adapter.is_none();
    Ok(if is_lost { Outcome::WithRefusals } else { outcome(&examples) })
}

/// Vectors of a part of the data.
pub fn embed(arguments: &Embed, json: bool) -> Result<Outcome> {
    let encoder = Encoder::load(&arguments.encoder)?;
    let file = TrainingFile::read(&arguments.config)?;
    let device: Device = arguments.device.parse()?;
    let mut inputs = of_configuration(&file, &arguments.config);
    inputs.push(("the encoder", arguments.encoder.clone()));
    expect_apart(&[("--output", Some(&arguments.output)), ("--labels", arguments.labels.as_ref())], &inputs)?;
    for path in std::iter::once(&arguments.output).chain(&arguments.labels) {
        drop(AtomicFile::create(path)?);
    }
    let examples = read(&file)?;
    let rows = file.rows(&examples, Some(arguments.part))?;
    let chosen = examples.select(&rows);
    let vectors = with_bar(|progress: &Progress| encoder.embed(&chosen.inputs, device, progress))?;
    files::write_matrix(&arguments.output, vectors.matrix(), None)?;
    if let Some(path) = &arguments.labels {
        let labels: Vec<i64> = chosen.labels.iter().map(|&label| label.into()).collect();
        files::write_labels(path, &labels)?;
    }
    let space = encoder.space();
    let value = json!({"vectors": arguments.output, "items": vectors.len(), "dimension": space.dimension,
        "model": space.model, "refused": refused(&examples)});
    let text = format!("{} vectors of {space} in {}\n", vectors.len(), arguments.output.display());
    print(json, &value, &text)?;
    Ok(outcome(&examples))
}

/// The encoder as an ONNX file.
pub fn export(arguments: &ExportEncoder, json: bool) -> Result<Outcome> {
    expect_apart(&[("--output", Some(&arguments.output))], &[("the encoder", arguments.encoder.clone())])?;
    let encoder = Encoder::load(&arguments.encoder)?;
    let bytes = encoder.to_onnx()?;
    let mut file = AtomicFile::create(&arguments.output)?;
    file.put(&bytes)?;
    file.commit()?;
    let value = json!({"onnx": arguments.output, "bytes": bytes.len()});
    let input = match encoder.input {
        Shape { channels, height: 1, width: 1 } => format!("\"features\" [batch, {channels}]"),
        Shape { channels, height, width } => {
            format!("\"pixels\" [batch, {channels}, {height}, {width}] from 0 to 1")
        }
    };
    let text = format!(
        "{} ({} bytes): input {input}, output \"vector\" [batch, {}]\n",
        arguments.output.display(),
        bytes.len(),
        encoder.architecture.outputs()
    );
    print(json, &value, &text)?;
    Ok(Outcome::Done)
}

/// Reads the data and lists what could not be read.
pub fn read(file: &TrainingFile) -> Result<Examples> {
    let examples = Examples::read(&file.data)?;
    for refusal in examples.refused.iter().take(10) {
        say(&format!("Left out: {}: {}.", refusal.what, refusal.why.trim_end_matches('.')));
    }
    if examples.refused.len() > 10 {
        say(&format!("… and {} more; --json lists all.", examples.refused.len() - 10));
    }
    Ok(examples)
}

/// The files that a configuration makes every command read, itself among them, with the keys that name them.
fn of_configuration(file: &TrainingFile, path: &Path) -> Vec<(&'static str, PathBuf)> {
    let mut inputs: Vec<(&'static str, PathBuf)> =
        of_data(&file.data).into_iter().map(|(name, path)| (name, path.clone())).collect();
    inputs.push(("the configuration", path.to_owned()));
    if let Some(allocation) = &file.allocation {
        inputs.push(("allocation.file", allocation.file.clone()));
        inputs.extend(allocation.test_rows().map(|path| ("allocation.test_rows", path)));
    }
    inputs
}

/// The files that data are read from, with the keys that name them.
fn of_data(data: &ExamplesSource) -> Vec<(&'static str, &PathBuf)> {
    match data {
        ExamplesSource::Folder { path, .. } => vec![("data.path", path)],
        ExamplesSource::Arrays { images, labels, .. } => {
            vec![("data.images", images), ("data.labels", labels)]
        }
        ExamplesSource::Cifar { paths, .. } => paths.iter().map(|path| ("data.paths", path)).collect(),
        ExamplesSource::Features { vectors, labels } => {
            vec![("data.vectors", vectors), ("data.labels", labels)]
        }
    }
}

/// What was left out, as it stands in JSON.
pub fn refused(examples: &Examples) -> Vec<Value> {
    examples.refused.iter().map(|refusal| json!({"what": refusal.what, "why": refusal.why})).collect()
}

/// Rows that were left out make the result doubtful.
pub fn outcome(examples: &Examples) -> Outcome {
    if examples.refused.is_empty() { Outcome::Done } else { Outcome::WithRefusals }
}

fn text(trained: &Trained, path: &str) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "epoch      loss  accuracy   terms");
    let last = trained.history.len();
    let shown = |epoch: usize| epoch < 3 || epoch + 3 >= last || (epoch + 1).is_multiple_of(10);
    for (epoch, line) in trained.history.iter().enumerate().filter(|(epoch, _)| shown(*epoch)) {
        let terms: Vec<String> =
            line.terms.iter().map(|(name, value)| format!("{name} {value:.3}")).collect();
        let _ = writeln!(
            text,
            "{:>5}  {:>8.3}  {:>6.1} %   {}",
            epoch + 1,
            line.loss,
            line.accuracy,
            terms.join(", ")
        );
    }
    let _ = writeln!(text, "{path}");
    text
}
