//! Writes a first `rehang.toml`, from what a gallery and an adapter say of themselves.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use rehang_core::{Adapter, Distance, Error, Result, Space};
use rehang_files::folder_of;
use rehang_store::{Store, find_space};
use serde::Serialize;
use tempfile::NamedTempFile;
use toml::Value;

use crate::configuration::expect_resized;
use crate::places::collection::{CollectionLocation, QDRANT_URL_ENV};
use crate::places::location::Location;
use crate::places::table::{TableLocation, URL_ENV};

/// Settings of the configuration that [`init`] writes.
#[derive(Debug, Clone)]
pub struct Init {
    /// The gallery, which has to be there. Columns of a table that are not named are looked for.
    pub gallery: Location,
    /// Distance of the old space, for a table that is no gallery yet.
    pub old_distance: Distance,
    /// The adapter; none for a model that searches the old vectors as they are.
    pub adapter: Option<PathBuf>,
    /// A report as JSON that forecasts the upgrade.
    pub forecast: Option<PathBuf>,
    /// Name of the new space; without it, the adapter's. Needed where there is no adapter.
    pub new_name: Option<String>,
    /// Width of the new space where no adapter says it; without it, the old space's.
    pub new_dimension: Option<usize>,
    /// Width of the new model's own vectors, where it is not that of the new space: wider ones are cut to
    /// their first coordinates, scaled to length 1; shorter ones are filled up with zeros.
    pub new_model_dimension: Option<usize>,
    /// Distance of the new space; without it, the adapter's, or the old space's.
    pub new_distance: Option<Distance>,
    /// The file to write.
    pub path: PathBuf,
}

/// Result of [`init`]: the file, and the two spaces in it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Initialised {
    /// Path of the file.
    pub path: PathBuf,
    /// The space that is replaced, as the gallery has it.
    pub old: Space,
    /// The space that replaces it, as the adapter gives it; without an adapter as the old one
    /// is, but for its name.
    pub new: Space,
    /// Number of vectors in search graphs that the server makes anew while the gallery is adopted, and again
    /// while it is filled: each writes every point.
    pub graphs: u64,
}

/// Writes a configuration with a comment on every part. The old space is the gallery's space with the name of
/// the adapter's old space. Where there is none, or no adapter, it is the space that serves. A file that is
/// there is never replaced.
///
/// # Errors
///
/// A conflict where the file is there; an invalid option for a width that is not the adapter's, or 0;
/// not found where the gallery has no space to replace; a mismatch where the adapter does not fit that
/// space; an invalid option where both spaces would have one name; missing input without an adapter and
/// a name; I/O errors.
pub fn init(init: &Init) -> Result<Initialised> {
    if init.path.exists() {
        return Err(taken(&init.path));
    }
    let adapter = init.adapter.as_ref().map(rehang_files::adapter_file::load).transpose()?;
    let (mut gallery, old, graphs) = match &init.gallery {
        Location::File(_) => (init.gallery.clone(), old_space(&*init.gallery.open()?, adapter.as_ref())?, 0),
        application => look(application, adapter.as_ref(), init.old_distance)?,
    };
    let outputs = adapter.as_ref().map(Adapter::output_space);
    let name = init.new_name.clone().or(outputs.as_ref().map(|outputs| outputs.name.clone()));
    let name = name.ok_or_else(|| Error::missing("`new_name`", "a configuration without an adapter"))?;
    if let (Some(asked_dimension), Some(outputs)) = (init.new_dimension, &outputs)
        && asked_dimension != outputs.dimension
    {
        let expected = format!("{}, the width of the adapter's outputs", outputs.dimension);
        return Err(Error::option("new_dimension", asked_dimension, expected));
    }
    let template = outputs.unwrap_or_else(|| old.clone());
    let dimension = init.new_dimension.unwrap_or(template.dimension);
    if dimension == 0 {
        return Err(Error::option("new_dimension", 0, "1 or more"));
    }
    if let Some(model_dimension) = init.new_model_dimension {
        expect_resized("new_model_dimension", model_dimension, dimension)?;
    }
    let new = Space { name, dimension, distance: init.new_distance.unwrap_or(template.distance), ..template };
    if new.name == old.name {
        return Err(Error::option("new_name", &new.name, "a name that the old space does not have"));
    }
    let folder = folder_of(&init.path);
    let from_file = |path: &Path| seen_from(folder, path);
    let mut column = None;
    let gallery = match &mut gallery {
        Location::File(path) => format!("path = {}", quoted(&from_file(path)?)),
        Location::Table(table) => {
            table.new.clone_from(&new.name);
            column = Some(table.new_column());
            of_table(table)
        }
        Location::Collection(collection) => of_collection(collection),
    };
    let adapter_path = init.adapter.as_deref().map(from_file).transpose()?;
    let forecast_path = init.forecast.as_deref().map(from_file).transpose()?;
    let document = Document {
        gallery: &gallery,
        old: &old,
        new: &new,
        model_dimension: init.new_model_dimension,
        column: column.as_deref(),
        adapter: adapter_path.as_deref(),
        forecast: forecast_path.as_deref(),
    };
    write_new(folder, &init.path, &document.text())?;
    Ok(Initialised { path: init.path.clone(), old, new, graphs })
}

/// Finds the columns of a table, or the fields of a collection, that were not named, the space of its
/// vectors, and how many of these are in graphs.
fn look(
    application: &Location,
    adapter: Option<&Adapter>,
    distance: Distance,
) -> Result<(Location, Space, u64)> {
    let location_name = application.to_string();
    let mut location = application.clone();
    let is_table = matches!(location, Location::Table(_));
    let findings = location.look()?;
    let one_of = |key: &str, candidates: Vec<String>| match &candidates[..] {
        [name] => Ok(Some(name.clone())),
        [] => Ok(None),
        several => Err(Error::missing(key, format!("{location_name}, which has {}", several.join(", ")))),
    };
    let (vector, source, label, old) = match &mut location {
        Location::File(path) => return Err(Error::option("gallery", path.display(), "no file")),
        Location::Table(table) => (&mut table.vector, &mut table.source, &table.label, table.old.clone()),
        Location::Collection(collection) => {
            (&mut collection.vector, &mut collection.source, &collection.label, collection.old.clone())
        }
    };
    if vector.is_none() {
        let vector_name = one_of("vector", findings.vectors.clone())?;
        let needed = if is_table {
            "one that has a column of type vector or halfvec; of arrays, JSON or text, a column GENERATED ALWAYS AS (embedding::vector(N)) STORED makes one"
        } else {
            "one that has vectors"
        };
        *vector = Some(vector_name.ok_or_else(|| Error::option("the gallery", &location_name, needed))?);
    }
    if source.is_none() {
        let is_key = |name: &String| findings.id.contains(name) || label.as_ref() == Some(name);
        *source = one_of("source", findings.texts.iter().filter(|name| !is_key(name)).cloned().collect())?;
    }
    let chosen = vector.clone().unwrap_or_default();
    let unknown =
        || Error::option("vector", chosen, "one that declares the width of its vectors, or holds one");
    let dimension = location.look()?.dimension.ok_or_else(unknown)?;
    let old = Space::new(old, dimension, adapter.map_or(distance, |adapter| adapter.old.distance), false);
    if let Some(adapter) = adapter {
        adapter.expect_input_width(dimension)?;
    }
    Ok((location, old, findings.graphs))
}

/// Writes the keys of `[gallery]` for a collection. The key of a server is never written down.
fn of_collection(collection: &CollectionLocation) -> String {
    let url_env = collection.url_env.as_deref();
    let authorities = collection.root_certificates.as_ref().map(|path| path.to_string_lossy());
    let keys = [
        ("url", collection.url.as_deref()),
        ("url_env", url_env.or(collection.url.is_none().then_some(QDRANT_URL_ENV))),
        ("key_env", collection.key_env.as_deref()),
        ("root_certificates", authorities.as_deref()),
        ("collection", Some(collection.collection.as_str())),
        ("source", collection.source.as_deref()),
        ("label", collection.label.as_deref()),
        ("payload", collection.payload.as_deref()),
        ("vector", collection.vector.as_deref()),
    ];
    let lines = keys.iter().filter_map(|(key, value)| Some(format!("\n{key} = {}", quoted((*value)?))));
    let plain_http = if collection.plain_http { "\nplain_http = true" } else { "" };
    format!("kind = \"qdrant\"{}{plain_http}", lines.collect::<String>())
}

/// Writes the keys of `[gallery]` for a table. An address with a password is not written down.
fn of_table(table: &TableLocation) -> String {
    let mut text = "kind = \"postgres\"\n".to_owned();
    let mut say = |key: &str, value: Option<&str>| {
        if let Some(value) = value {
            text += &format!("{key} = {}\n", quoted(value));
        }
    };
    let is_open = |url: &&str| url.split_once('@').is_none_or(|(front, _)| front.matches(':').count() < 2);
    let url = table.url.as_deref().filter(is_open).filter(|url| !url.contains("password"));
    say("url", url);
    say("url_env", table.url_env.as_deref().or(url.is_none().then_some(URL_ENV)));
    say("root_certificates", table.root_certificates.as_ref().map(|path| path.to_string_lossy()).as_deref());
    say("table", Some(&table.table));
    say("source", table.source.as_deref());
    say("label", table.label.as_deref());
    say("payload", table.payload.as_deref());
    say("vector", table.vector.as_deref());
    say("where", table.condition.as_deref());
    if table.published {
        text += "published = true\n";
    }
    if !table.id.is_empty() {
        let names: Vec<String> = table.id.iter().map(|name| quoted(name)).collect();
        text += &format!("id = [{}]\n", names.join(", "));
    }
    text.trim_end().to_owned()
}

/// Quotes a text as TOML writes it.
fn quoted(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}

/// Finds the space of a gallery that an adapter replaces, or that serves.
fn old_space(store: &dyn Store, adapter: Option<&Adapter>) -> Result<Space> {
    let named_space = adapter.map(|adapter| find_space(store, &adapter.old.name)).transpose()?.flatten();
    let record = match named_space {
        Some(record) => Some(record),
        None => store.serving()?.map(|name| find_space(store, &name)).transpose()?.flatten(),
    };
    let wanted = adapter.map_or("that serves", |adapter| &adapter.old.name);
    let space = record.ok_or_else(|| Error::not_found("space", wanted, store.name()))?.space;
    if let Some(adapter) = adapter {
        adapter.expect_input_width(space.dimension)?;
    }
    Ok(space)
}

/// Gives a path as it is written into a file of a folder: below the folder as it is seen from
/// there, otherwise whole.
fn seen_from(folder: &Path, path: &Path) -> Result<String> {
    let absolute_path =
        |path: &Path| fs_err::canonicalize(path).map_err(|error| Error::io("open", path, &error));
    let path = absolute_path(path)?;
    let written_path = path.strip_prefix(absolute_path(folder)?).unwrap_or(&path);
    written_path
        .to_str()
        .map(str::to_owned)
        .ok_or_else(|| Error::option("path", written_path.display(), "a path in UTF-8"))
}

fn write_new(folder: &Path, path: &Path, text: &str) -> Result<()> {
    let written = || -> std::io::Result<NamedTempFile> {
        let mut file = NamedTempFile::new_in(folder)?;
        file.write_all(text.as_bytes())?;
        file.as_file().sync_all()?;
        Ok(file)
    };
    let file = written().map_err(|error| Error::io("create", path, &error))?;
    file.persist_noclobber(path).map(drop).map_err(|error| match error.error.kind() {
        std::io::ErrorKind::AlreadyExists => taken(path),
        _ => Error::io("create", path, &error.error),
    })
}

fn taken(path: &Path) -> Error {
    Error::conflict(path.display(), "a file is there already and stays as it is; give another name")
}

/// Ways to reach the new model, and the old one, each commented out.
const ENCODERS: &str = r#"# The new model, which re-embeds sources. Uncomment one. Without it, everything but the backfill works.
#
# A model in this process:
# [encoder]
# kind = "onnx"
# model = "model.onnx"
# normalise = true
# input = { kind = "text", tokenizer = "tokenizer.json", max_tokens = 256, pooling = "mean" }
#
# A service that speaks OpenAI's protocol; the key stays in the environment:
# [encoder]
# kind = "http"
# url = "https://api.openai.com"
# model = "text-embedding-3-small"
# key_env = "OPENAI_API_KEY"
# price_per_million_tokens = 0.02
# budget_money = 5.0              # of all runs together
#
# A program that reads items and writes vectors:
# [encoder]
# kind = "command"
# program = ["python3", "encode.py"]
#
# Vectors that are computed already:
# [encoder]
# kind = "table"
# vectors = "new.npy"
# ids = "ids.txt"
#
# The old model, with the same keys. It embeds the texts and images that people search by before the switch.
# [old.encoder]
# kind = "command"
# program = ["python3", "encode-old.py"]"#;

/// Limits of a run, each commented out.
const LIMITS: &str = r#"# Limits of a run, each may be left out: items of a batch, batches at a time, items a second (also "300/min"), items of one
# run, the share of native items at which it ends, attempts before an item is listed as failed.
[run]
# batch = 64
# workers = 1
# rate = "5/s"
# budget = 1000
# until = "30%"
# attempts = 3"#;

/// Configuration that is to be written, by its parts that are not the same in all.
struct Document<'a> {
    /// Keys of `[gallery]`.
    gallery: &'a str,
    old: &'a Space,
    new: &'a Space,
    /// Width of the new model's own vectors, where it is not that of the new space.
    model_dimension: Option<usize>,
    /// Column of a table that vectors of the new space move into at the end.
    column: Option<&'a str>,
    /// Path of the adapter.
    adapter: Option<&'a str>,
    /// Path of the report.
    forecast: Option<&'a str>,
}

impl Document<'_> {
    /// Writes the text of the configuration.
    fn text(&self) -> String {
        let (gallery, old, new) = (self.gallery, keys_of(self.old), keys_of(self.new));
        let model_dimension = self.model_dimension.map_or_else(String::new, |width| {
            let how = if width > self.new.dimension {
                "the first ones are kept, scaled to length 1"
            } else {
                "zeros follow, which change no distance"
            };
            format!("\n# The model gives so many coordinates; {how}.\nmodel_dimension = {width}")
        });
        let column = self.column.map_or_else(String::new, |column| {
            format!(
                "\n# The column of the table that its vectors move into when the gallery is released, after `finish`.\ncolumn = {}",
                quoted(column)
            )
        });
        let adapter = match self.adapter {
            Some(file) => format!("# The map from old to new vectors.\n[adapter]\nfile = {}", quoted(file)),
            None => "# No [adapter]: the one that is fitted on the gallery's own pairs, or none for a new model that searches the old vectors as they\n\
                     # are. By the classifier head of such a model a backfill may be ordered:\n\
                     # [head]\n# weight = \"head-weight.npy\"\n# bias = \"head-bias.npy\"\n# kind = \"softmax\""
                .to_owned(),
        };
        let forecast = match self.forecast {
            Some(file) => format!("[forecast]\nfile = {}", quoted(file)),
            None => "# [forecast]\n# file = \"report.json\"".to_owned(),
        };
        let distances = Distance::ALL.map(Distance::name).join(", ");
        format!(
            r#"# An upgrade of a gallery to a new model. Paths are seen from the folder of this file.

[gallery]
{gallery}

# The space that is replaced, as the gallery has it. Distances: {distances}.
[old]
{old}

# The space that replaces it: made by the start of the upgrade, searched by this distance.
[new]
{new}{model_dimension}{column}

{adapter}

# Which items are re-embedded first. "coverage" covers the gallery, then digs where the map is in doubt; "sigma" takes the
# worst first; "random" takes any. "auto" is the one that was chosen for a metric, and "coverage" before any was. The seed makes an
# order repeatable.
[order]
policy = "auto"
seed = 0

{ENCODERS}

{LIMITS}

# A report on pairs that the adapter was not fitted on: the plan shows what it forecasts, and a switch that would serve worse
# than doing nothing is refused.
{forecast}
"#
        )
    }
}

/// Writes the keys of a space.
fn keys_of(space: &Space) -> String {
    format!(
        "name = {}\ndimension = {}\ndistance = {}",
        quoted(&space.name),
        space.dimension,
        quoted(space.distance.name())
    )
}

#[cfg(test)]
mod tests {
    use rehang_core::{Matrix, Provenance};
    use rehang_encode::{EncoderConfig, Input};
    use rehang_sqlite::SqliteStore;
    use rehang_store::Ledger;

    use super::*;
    use crate::configuration::Configuration;
    use crate::live::until::Until;
    use crate::serve::gallery::padding::padding;

    /// A gallery with a space of three coordinates and an adapter from it.
    fn told(folder: &Path, new_name: Option<&str>) -> Init {
        let gallery = folder.join("gallery.db");
        let space = Space::new("clip \"2\"", 3, Distance::Cosine, false);
        SqliteStore::create(&gallery).unwrap().create_space(&space, Provenance::Old).unwrap();
        let raw = |name, dimension| Space::new(name, dimension, Distance::L2, false);
        let adapter = padding(raw("old", 3), raw("new", 4), vec![1.0, 0.5, 0.0, 0.0], 0.0);
        let path = folder.join("adapter.safetensors");
        rehang_files::adapter_file::save(&adapter, &path).unwrap();
        Init {
            gallery: Location::file(gallery),
            old_distance: Distance::Cosine,
            adapter: Some(path),
            forecast: None,
            new_name: new_name.map(str::to_owned),
            new_dimension: None,
            new_model_dimension: None,
            new_distance: None,
            path: folder.join("rehang.toml"),
        }
    }

    #[test]
    fn what_is_written_is_read_back_and_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let settings = told(folder.path(), Some("siglip"));
        let written = init(&settings).unwrap();
        let read = Configuration::read(&settings.path).unwrap();
        assert_eq!((&read.old, &read.new.name), (&written.old, &"siglip".to_owned()));
        assert_eq!((read.old.name.as_str(), read.old.distance), ("clip \"2\"", Distance::Cosine));
        assert_eq!((read.new.dimension, read.new.distance), (4, Distance::L2));
        assert!(read.gallery.is_same(&settings.gallery));
        assert!(read.open_encoder(&read.new).is_err(), "an encoder has to be chosen");
        let store = read.open_gallery().unwrap();
        let planned = read.planned(&*store).unwrap();
        assert!(read.forecast(&*store, &planned).unwrap().is_none());

        let before = fs_err::read(&settings.path).unwrap();
        assert!(init(&settings).unwrap_err().is_conflict());
        assert_eq!(fs_err::read(&settings.path).unwrap(), before);
    }

    #[test]
    fn what_is_commented_out_can_be_used_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let settings = told(folder.path(), None);
        init(&settings).unwrap();
        let text = fs_err::read_to_string(&settings.path).unwrap();
        let run = ["batch", "workers", "rate", "budget", "until", "attempts"]
            .iter()
            .fold(text.clone(), |text, key| text.replace(&format!("# {key} = "), &format!("{key} = ")));
        fs_err::write(&settings.path, run).unwrap();
        let limits = Configuration::read(&settings.path).unwrap().limits;
        assert_eq!((limits.rate, limits.budget, limits.until), (Some(5.0), Some(1000), Until::Fraction(0.3)));
        let encoders: Vec<EncoderConfig> = text
            .split("# [encoder]\n")
            .skip(1)
            .map(|part| {
                let keys: Vec<&str> = part.lines().map_while(|line| line.strip_prefix("# ")).collect();
                toml::from_str(&keys.join("\n")).unwrap()
            })
            .collect();
        assert_eq!(encoders.len(), 4);
        let (before, old) = text.split_once("# [old.encoder]\n").unwrap();
        let keys: Vec<&str> = old.lines().map_while(|line| line.strip_prefix("# ")).collect();
        fs_err::write(&settings.path, format!("{before}[old.encoder]\n{}\n", keys.join("\n"))).unwrap();
        let read = Configuration::read(&settings.path).unwrap();
        assert_eq!(read.open_query_encoder(&read.old).unwrap().space(), &read.old);
    }

    #[test]
    fn a_model_whose_vectors_are_cut() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Init {
            adapter: None,
            new_dimension: Some(2),
            new_model_dimension: Some(4),
            ..told(folder.path(), Some("mrl"))
        };
        for too_narrow in [0, 2] {
            let refused_settings = Init { new_model_dimension: Some(too_narrow), ..settings.clone() };
            assert!(init(&refused_settings).unwrap_err().to_string().contains("more than 2"));
        }
        init(&settings).unwrap();
        let vectors = Matrix::new(4, vec![3.0, 4.0, 12.0, 0.0, 0.0, -2.0, 0.0, 9.0]).unwrap();
        rehang_files::write_matrix(folder.path().join("new.npy"), &vectors, None).unwrap();
        fs_err::write(folder.path().join("ids.txt"), "a\nb\n").unwrap();
        let text = fs_err::read_to_string(&settings.path).unwrap();
        let encoder = "[encoder]\nkind = \"table\"\nvectors = \"new.npy\"\nids = \"ids.txt\"\n";
        fs_err::write(&settings.path, format!("{text}\n{encoder}")).unwrap();
        let read = Configuration::read(&settings.path).unwrap();
        let made_space = read.made_space();
        assert_eq!((made_space.dimension, made_space.normalised), (2, true));
        let encoder = read.open_encoder(&made_space).unwrap();
        let inputs = ["a", "b"].map(|id| Input { id, source: id, payload: &serde_json::Value::Null });
        assert_eq!(encoder.encode(&inputs).unwrap(), [Ok(vec![0.6, 0.8]), Ok(vec![0.0, -1.0])]);
    }

    /// Applications with one width for all models pad what is shorter with zeros, queries too.
    #[test]
    fn a_model_whose_vectors_are_filled_up() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Init { adapter: None, new_dimension: Some(4), ..told(folder.path(), Some("padded")) };
        let table = || {
            let vectors = Matrix::new(2, vec![3.0, 4.0, 0.0, -2.0]).unwrap();
            rehang_files::write_matrix(folder.path().join("new.npy"), &vectors, None).unwrap();
            fs_err::write(folder.path().join("ids.txt"), "a\nb\n").unwrap();
            let text = fs_err::read_to_string(&settings.path).unwrap();
            let encoder = "[encoder]\nkind = \"table\"\nvectors = \"new.npy\"\nids = \"ids.txt\"\n";
            fs_err::write(&settings.path, format!("{text}\n{encoder}")).unwrap();
            Configuration::read(&settings.path).unwrap()
        };
        init(&settings).unwrap();
        let read = table();
        let error = read.open_encoder(&read.made_space()).err().expect("it is too narrow").to_string();
        assert!(error.contains("model_dimension = 2") && error.contains("zeros"), "{error}");
        fs_err::remove_file(&settings.path).unwrap();
        init(&Init { new_model_dimension: Some(2), ..settings.clone() }).unwrap();
        let read = table();
        let made_space = read.made_space();
        assert_eq!((made_space.dimension, made_space.normalised), (4, false));
        let encoder = read.open_encoder(&made_space).unwrap();
        let inputs = ["a", "b"].map(|id| Input { id, source: id, payload: &serde_json::Value::Null });
        let padded = [Ok(vec![3.0, 4.0, 0.0, 0.0]), Ok(vec![0.0, -2.0, 0.0, 0.0])];
        assert_eq!(encoder.encode(&inputs).unwrap(), padded);
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let settings = told(folder.path(), Some("clip \"2\""));
        assert!(init(&settings).unwrap_err().to_string().contains("new_name"), "both spaces of one name");
        let raw = |name, dimension| Space::new(name, dimension, Distance::L2, false);
        let other = padding(raw("old", 5), raw("new", 4), vec![1.0; 4], 0.0);
        rehang_files::adapter_file::save(&other, settings.adapter.as_ref().unwrap()).unwrap();
        assert!(init(&settings).unwrap_err().is_mismatch(), "an adapter of other vectors");
        assert!(!settings.path.exists());
    }
}
