//! `rehang compare`: a whole study, and its report.

use std::path::{Path, PathBuf};

use rehang::order::Policy;
use rehang::{Error, Result};
use rehang_fit::Device;
use rehang_train::compatible::{HeadForm, Method, TrainingParameters};
use rehang_train::contest::{ComparisonData, ComparisonParameters, Contender, compare, expect_contender};
use rehang_train::encoder::Architecture;
use serde::Deserialize;
use serde_json::json;

use super::{Outcome, print, say, write_text};
use crate::arguments::Compare;
use crate::bar::with_bar;
use crate::commands::train::{outcome, read, refused};
use crate::training::{Part, TrainingFile};

/// `[compare]`; the rest of the file is a training's, for the new models.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ComparePart {
    /// Title of the report.
    title: Option<String>,
    /// Seeds.
    #[serde(default = "three_seeds")]
    seeds: Vec<u64>,
    /// The old model's encoder.
    old_encoder: Architecture,
    /// The old model's head; the new one's where it is not given.
    old_head: Option<HeadForm>,
    /// Epochs of the old model; those of the new one where it is not given.
    old_epochs: Option<usize>,
    /// Compatible methods: names, or tables with `name`, `label` and the method's options.
    methods: Vec<Named>,
    /// Adapters, as in `rehang fit --method`.
    #[serde(default)]
    adapters: Vec<String>,
    /// Orders.
    #[serde(default = "usual_orders")]
    orders: Vec<String>,
    /// Folder in which trained encoders are kept.
    folder: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Named {
    Name(String),
    Table(toml::Table),
}

fn three_seeds() -> Vec<u64> {
    vec![0, 1, 2]
}

fn usual_orders() -> Vec<String> {
    ["random", "sigma", "entropy", "coverage"].map(String::from).to_vec()
}

/// Trains, fits, measures, and writes the report.
pub fn run(arguments: &Compare, json: bool) -> Result<Outcome> {
    let path = &arguments.config;
    let text = fs_err::read_to_string(path).map_err(|error| Error::io("read", path, &error))?;
    let mut whole: toml::Table =
        toml::from_str(&text).map_err(|error| Error::corrupt(path.display(), error))?;
    let part =
        whole.remove("compare").ok_or_else(|| Error::missing("the table [compare]", path.display()))?;
    let part: ComparePart =
        part.try_into().map_err(|error: toml::de::Error| Error::corrupt(path.display(), error))?;
    let file = TrainingFile::parse(&whole.to_string(), path)?;
    let mut parameters = parameters(&file, &part, path)?;
    if let Some(seeds) = arguments.seeds {
        parameters.seeds = (0..seeds).collect();
    }
    let device: Device = arguments.device.parse()?;
    for training in [&mut parameters.old, &mut parameters.independent] {
        training.device = device;
    }
    for contender in &mut parameters.contenders {
        contender.parameters.device = device;
    }
    if let Some(folder) = &parameters.folder {
        fs_err::create_dir_all(folder).map_err(|error| Error::io("create", folder, &error))?;
    }
    fs_err::create_dir_all(&arguments.out).map_err(|error| Error::io("create", &arguments.out, &error))?;

    let examples = read(&file)?;
    let rows = |part: Part| file.rows(&examples, Some(part));
    let (old_rows, new_rows) = (rows(Part::Old)?, rows(Part::New)?);
    let parts = [("test", rows(Part::Test)?), ("unseen", rows(Part::Unseen)?)];
    if parts.iter().all(|(_, rows)| rows.is_empty()) {
        return Err(Error::option(
            "[allocation]",
            "nobody held out",
            "test above 0 or unseen classes: a comparison searches what no model was trained on",
        ));
    }
    let parts = parts.into_iter().filter(|(_, rows)| !rows.is_empty());
    let data = ComparisonData {
        examples: &examples,
        old_rows: &old_rows,
        new_rows: &new_rows,
        parts: parts.map(|(name, rows)| (name.to_owned(), rows)).collect(),
    };
    let comparison = with_bar(|progress| compare(&data, &parameters, progress))?;
    let markdown = rehang_report::comparison_markdown(&comparison);
    let report = arguments.out.join("comparison.html");
    write_text(&report, &rehang_report::comparison_html(&comparison))?;
    write_text(arguments.out.join("comparison.md"), &markdown)?;
    write_text(arguments.out.join("comparison.json"), &rehang_report::comparison_json(&comparison))?;
    for warning in &comparison.warnings {
        say(&format!("Warning: {}.", warning.trim_end_matches('.')));
    }
    let value = json!({"report": report, "comparison": comparison, "refused": refused(&examples)});
    print(json, &value, &format!("{markdown}\n{}\n", report.display()))?;
    Ok(outcome(&examples))
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
        ("training.seed", file.training.has_seed(), "seeds stand in [compare]"),
        ("allocation.part", has_part, "the old model is trained on the part old, the others on the new one"),
    ];
    if let Some((option, _, instead)) = idle.iter().find(|(_, given, _)| *given) {
        return Err(Error::option(*option, path.display(), format!("nothing in a comparison: {instead}")));
    }
    let plain = file.parameters("plain")?;
    let mut contenders = Vec::new();
    for named in &part.methods {
        let (name, label, options) = match named {
            Named::Name(name) => (name.clone(), name.clone(), toml::Table::new()),
            Named::Table(table) => {
                let mut options = table.clone();
                let mut take =
                    |key: &str| options.remove(key).and_then(|value| value.as_str().map(String::from));
                let name =
                    take("name").ok_or_else(|| Error::missing("name", "a table in compare.methods"))?;
                let label = take("label").unwrap_or_else(|| name.clone());
                (name, label, options)
            }
        };
        let method = Method::from_table(&name, options)?;
        expect_contender(&method)?;
        contenders.push(Contender { label, parameters: TrainingParameters { method, ..plain.clone() } });
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
        folder: part.folder.as_ref().map(|folder| file.folder.join(folder)),
    })
}
