//! `rehang.toml`: what an upgrade is made of. Unknown keys are errors; secrets come from the
//! environment by name.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rehang_core::finding::Finding;
use rehang_core::order::Policy;
use rehang_core::{Adapter, Distance, Error, Head, HeadKind, Party, Remedy, Result, Space};
use rehang_encode::{Encoder, EncoderConfig, HttpConfig, Lengths, PictureFile, Resized};
use rehang_files::{VectorSource, folder_of};
use rehang_store::{Examined, Ledger, Store, find_space};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::kept::{self, Kind};
use crate::learn::fit;
use crate::learn::forecast::Forecast;
use crate::live::limits::{Limits, RunOptions, RunPart, at_least_one};
use crate::live::manners;
use crate::outlook;
use crate::places::collection::CollectionLocation;
use crate::places::location::Location;
use crate::places::table::{TableLocation, parse_seconds};
use crate::record::{OrderSettings, Phase, Recorded, UpgradeRecord};
use crate::setup::{UpgradeSetup, expect_same};

/// Document of a configuration file, a field a table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    gallery: GalleryPart,
    old: SpacePart,
    new: SpacePart,
    adapter: Option<FilePart>,
    head: Option<HeadPart>,
    #[serde(default)]
    order: OrderPart,
    encoder: Option<EncoderConfig>,
    #[serde(default)]
    run: RunPart,
    forecast: Option<FilePart>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GalleryPart {
    kind: Option<String>,
    path: Option<PathBuf>,
    url: Option<String>,
    url_env: Option<String>,
    key_env: Option<String>,
    plain_http: Option<bool>,
    request_max: Option<usize>,
    root_certificates: Option<PathBuf>,
    collection: Option<String>,
    table: Option<String>,
    id: Option<Names>,
    source: Option<String>,
    label: Option<String>,
    payload: Option<String>,
    vector: Option<String>,
    #[serde(rename = "where")]
    condition: Option<String>,
    published: Option<bool>,
    keep_paid: Option<String>,
}

/// One name, or several.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Names {
    One(String),
    Several(Vec<String>),
}

impl GalleryPart {
    /// Builds the location of the gallery. Paths are seen from `base`, the folder of the file; `old` is the
    /// name of the old space.
    fn location(self, base: &Path, old: &str, new: &SpacePart) -> Result<Location> {
        let kind = self.kind.as_deref().unwrap_or("sqlite");
        let (sqlite, postgres, qdrant) = (kind == "sqlite", kind == "postgres", kind == "qdrant");
        let keys = [
            ("path", self.path.is_some(), sqlite),
            ("url", self.url.is_some(), postgres || qdrant),
            ("url_env", self.url_env.is_some(), postgres || qdrant),
            ("key_env", self.key_env.is_some(), qdrant),
            ("plain_http", self.plain_http.is_some(), qdrant),
            ("request_max", self.request_max.is_some(), qdrant),
            ("root_certificates", self.root_certificates.is_some(), postgres || qdrant),
            ("collection", self.collection.is_some(), qdrant),
            ("table", self.table.is_some(), postgres),
            ("id", self.id.is_some(), postgres),
            ("source", self.source.is_some(), postgres || qdrant),
            ("label", self.label.is_some(), postgres || qdrant),
            ("payload", self.payload.is_some(), postgres || qdrant),
            ("vector", self.vector.is_some(), postgres || qdrant),
            ("where", self.condition.is_some(), postgres),
            ("published", self.published.is_some(), postgres),
            ("keep_paid", self.keep_paid.is_some(), postgres),
        ];
        if !(sqlite || postgres || qdrant) {
            return Err(Error::option("[gallery] kind", kind, "sqlite, postgres or qdrant"));
        }
        if let Some((key, ..)) = keys.iter().find(|(_, is_given, is_known)| *is_given && !is_known) {
            let expected =
                format!("left out, or another [gallery] kind than {kind:?}, which has no such key");
            return Err(Error::option(format!("[gallery] {key}"), "given", expected));
        }
        if let Some(column) = new.column.as_ref().filter(|_| !postgres) {
            let expected = format!("left out: a gallery of kind {kind:?} has no columns");
            return Err(Error::option("[new] column", column, expected));
        }
        let missing =
            |key: &str| Error::missing(format!("[gallery] {key}"), format!("a gallery of kind {kind:?}"));
        let root_certificates = self.root_certificates.map(|path| base.join(path));
        if postgres {
            return Ok(Location::Table(Box::new(TableLocation {
                url: self.url,
                url_env: self.url_env,
                root_certificates,
                table: self.table.ok_or_else(|| missing("table"))?,
                id: match self.id {
                    None => Vec::new(),
                    Some(Names::One(name)) => vec![name],
                    Some(Names::Several(names)) => names,
                },
                source: self.source,
                label: self.label,
                payload: self.payload,
                vector: self.vector,
                condition: self.condition,
                published: self.published.unwrap_or_default(),
                keep_paid_s: self
                    .keep_paid
                    .map(|text| parse_seconds("[gallery] keep_paid", &text))
                    .transpose()?,
                old: old.to_owned(),
                new: new.name.clone(),
                column: new.column.clone(),
            })));
        }
        if qdrant {
            return Ok(Location::Collection(Box::new(CollectionLocation {
                url: self.url,
                url_env: self.url_env,
                key_env: self.key_env,
                plain_http: self.plain_http.unwrap_or_default(),
                request_max: self.request_max,
                root_certificates,
                collection: self.collection.ok_or_else(|| missing("collection"))?,
                source: self.source,
                label: self.label,
                payload: self.payload,
                vector: self.vector,
                old: old.to_owned(),
            })));
        }
        Ok(Location::file(base.join(self.path.ok_or_else(|| missing("path"))?)))
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SpacePart {
    pub name: String,
    pub dimension: usize,
    /// Width that the model itself gives, where its vectors are cut or filled up to `dimension`.
    pub model_dimension: Option<usize>,
    pub distance: String,
    /// Column of the application's table that the vectors move into at the end; only the new space has one.
    pub column: Option<String>,
    pub encoder: Option<EncoderConfig>,
}

impl SpacePart {
    /// Builds the space; errors name its table as `[key]`.
    pub fn space(&self, key: &str) -> Result<Space> {
        let distance: Distance =
            self.distance.parse().map_err(|error: Error| error.context(format!("[{key}] distance")))?;
        if self.dimension == 0 {
            return Err(Error::option(format!("[{key}] dimension"), self.dimension, "1 or more"));
        }
        if let Some(model_width) = self.model_dimension {
            expect_resized(&format!("[{key}] model_dimension"), model_width, self.dimension)?;
        }
        Ok(Space::new(&self.name, self.dimension, distance, false))
    }
}

/// Refuses a width of a model's own vectors that no vector has, or that is the width of their space already.
pub(crate) fn expect_resized(key: &str, model_width: usize, dimension: usize) -> Result<()> {
    if model_width > 0 && model_width != dimension {
        return Ok(());
    }
    let expected = format!(
        "a width of the model's own vectors that is more than {dimension}, which they are cut to, or less, and zeros follow"
    );
    Err(Error::option(key, model_width, expected))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FilePart {
    file: PathBuf,
}

/// The new model's classifier head, by which a backfill without an adapter may be ordered.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HeadPart {
    weight: PathBuf,
    bias: Option<PathBuf>,
    kind: Option<String>,
}

impl HeadPart {
    fn read(&self, base: &Path) -> Result<Head> {
        let source = |path: &Path| VectorSource::parse(&base.join(path).to_string_lossy());
        let kind = self.kind.as_deref().map_or(Ok(HeadKind::Softmax), str::parse)?;
        let weight = rehang_files::read_matrix(&source(&self.weight)?)?;
        let bias =
            self.bias.as_deref().map(|path| rehang_files::read_f32_column(&source(path)?)).transpose()?;
        Head::new(weight, bias, kind)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OrderPart {
    #[serde(default = "auto")]
    policy: String,
    #[serde(default)]
    seed: u64,
}

impl Default for OrderPart {
    fn default() -> Self {
        Self { policy: auto(), seed: 0 }
    }
}

/// Policy in the file that leaves the order to be chosen.
const AUTO: &str = "auto";

fn auto() -> String {
    AUTO.into()
}

/// Configuration of an upgrade: read from a file, with paths seen from its folder, or
/// [made](Configuration::new)
/// by a program. Its adapter is read where it is needed: there may be none yet.
#[derive(Debug)]
pub struct Configuration {
    /// Path of the file; empty where a program made it.
    pub path: PathBuf,
    /// Location of the gallery.
    pub gallery: Location,
    /// The space that is replaced. The file does not say whether its vectors are of length 1: the gallery and
    /// the adapter do.
    pub old: Space,
    /// The space that replaces it.
    pub new: Space,
    /// Order of the backfill; where it is chosen, the one that holds before anything was.
    pub order: OrderSettings,
    /// Whether the order is the one that was [chosen](crate::Upgrade::choose_order), once there is one.
    pub is_order_chosen: bool,
    /// Limits of a run that the file sets; a caller may ask for others.
    pub limits: Limits,
    /// Whether the file says how many items go to the encoder together; if not, the encoder does.
    pub says_batch: bool,
    adapter: Option<PathBuf>,
    head: Option<HeadPart>,
    encoder: Option<EncoderConfig>,
    old_encoder: Option<EncoderConfig>,
    /// The widths of the old and the new model, where their vectors are cut.
    model_dimensions: [Option<usize>; 2],
    forecast: Option<PathBuf>,
}

/// An upgrade as a configuration plans it: with its adapter, and the spaces as the adapter has them.
#[derive(Debug)]
#[non_exhaustive]
pub struct Planned {
    /// The space that is replaced.
    pub old: Space,
    /// The space that replaces it.
    pub new: Space,
    /// The adapter; `None` for a [plain](crate::UpgradeRecord::is_plain) upgrade.
    pub adapter: Option<Arc<Adapter>>,
    /// Order of the backfill.
    pub order: OrderSettings,
}

impl Planned {
    /// Gives the setup that the verbs of the upgrade take.
    pub fn setup(&self) -> UpgradeSetup<'_> {
        UpgradeSetup { old: &self.old, new: &self.new, adapter: self.adapter.as_deref(), order: self.order }
    }
}

impl Configuration {
    /// Makes the configuration of an upgrade from one space of a gallery to another, with the defaults of a
    /// file that says nothing else: no encoder, an order that is chosen, and one batch after the other.
    ///
    /// ```
    /// use rehang_core::{Distance, Space};
    /// use rehang_upgrade::{Configuration, Limits, Location};
    ///
    /// let space = |name, dimension| Space::new(name, dimension, Distance::Cosine, false);
    /// let configuration = Configuration::new(Location::file("gallery.db"), space("small", 384), space("large", 768))?
    ///     .with_limits(Limits { workers: 4, ..Limits::default() });
    /// assert!(configuration.is_order_chosen && configuration.service().is_none());
    /// # Ok::<(), rehang_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// An invalid option where a space has no coordinates, or both have the same name.
    pub fn new(gallery: Location, old: Space, new: Space) -> Result<Self> {
        for space in [&old, &new] {
            at_least_one(&format!("dimension of {:?}", space.name), space.dimension)?;
        }
        if old.name == new.name {
            return Err(Error::option("new", &new.name, "a space of another name than the old one"));
        }
        Ok(Self {
            path: PathBuf::new(),
            gallery,
            old,
            new,
            order: OrderSettings::default(),
            is_order_chosen: true,
            limits: Limits::default(),
            says_batch: false,
            adapter: None,
            head: None,
            encoder: None,
            old_encoder: None,
            model_dimensions: [None; 2],
            forecast: None,
        })
    }

    /// Re-embeds items in this order, and lets none be chosen.
    #[must_use]
    pub fn with_order(self, order: OrderSettings) -> Self {
        Self { order, is_order_chosen: false, ..self }
    }

    /// Sets the limits of runs.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, says_batch: limits.batch != Limits::default().batch, ..self }
    }

    /// Sets the encoder of the new model. A call that is given an encoder needs none.
    #[must_use]
    pub fn with_encoder(self, encoder: EncoderConfig) -> Self {
        Self { encoder: Some(encoder), ..self }
    }

    /// Sets the encoder of the old model, which queries need that are texts or images.
    #[must_use]
    pub fn with_old_encoder(self, encoder: EncoderConfig) -> Self {
        Self { old_encoder: Some(encoder), ..self }
    }

    /// Names the file of an adapter, so that none is fitted on the gallery's own pairs.
    #[must_use]
    pub fn with_adapter(self, file: impl Into<PathBuf>) -> Self {
        Self { adapter: Some(file.into()), ..self }
    }

    /// Returns what messages call it: the path of its file.
    pub(crate) fn name(&self) -> String {
        if self.path.as_os_str().is_empty() {
            "the configuration".into()
        } else {
            self.path.display().to_string()
        }
    }

    /// Reads a configuration from its file.
    ///
    /// # Errors
    ///
    /// I/O errors; corrupt where the file is no TOML or has an unknown key; an invalid option
    /// that names the key.
    pub fn read(path: &Path) -> Result<Self> {
        let document = read_toml(path)?;
        Self::from_document(document, path).map_err(|error| error.context(path.display().to_string()))
    }

    fn from_document(document: Document, path: &Path) -> Result<Self> {
        let base = folder_of(path);
        if document.new.encoder.is_some() {
            return Err(Error::option("[new.encoder]", "given", "[encoder], which is the new model's"));
        }
        if document.old.column.is_some() {
            return Err(Error::option(
                "[old] column",
                "given",
                "[gallery] vector, which is the old vectors' column",
            ));
        }
        if document.adapter.is_some() && document.head.is_some() {
            let expected = "no table beside [adapter], which brings its own";
            return Err(Error::option("[head]", "given", expected));
        }
        let is_order_chosen = document.order.policy == AUTO;
        let policy = if is_order_chosen {
            Policy::Coverage
        } else {
            document.order.policy.parse().map_err(|error: Error| error.context("[order]"))?
        };
        Ok(Self {
            path: path.to_owned(),
            gallery: document.gallery.location(base, &document.old.name, &document.new)?,
            old: document.old.space("old")?,
            new: document.new.space("new")?,
            order: OrderSettings { policy, seed: document.order.seed },
            is_order_chosen,
            limits: document.run.limits()?,
            says_batch: document.run.says_batch(),
            adapter: document.adapter.map(|part| base.join(part.file)),
            head: document.head,
            encoder: document.encoder,
            model_dimensions: [document.old.model_dimension, document.new.model_dimension],
            old_encoder: document.old.encoder,
            forecast: document.forecast.map(|part| base.join(part.file)),
        })
    }

    /// Folder where an earlier version kept what the upgrade made: `NAME.upgrade` beside
    /// the file `NAME.toml`.
    pub(crate) fn folder(&self) -> PathBuf {
        self.path.with_extension("upgrade")
    }

    /// Plans the upgrade with its adapter. That is the one that the file names; else the last one that was
    /// [fitted](crate::Upgrade::fit) on the gallery's own pairs; else none where the upgrade was
    /// [started](crate::Upgrade::start_plain) as a plain one; else [`Adapter::identity`], since the new model
    /// searches old vectors as they are.
    ///
    /// # Errors
    ///
    /// What [`rehang_files::adapter_file::load`] says; missing input where pairs were drawn and no adapter
    /// was fitted on them yet; as [`Adapter::identity`].
    pub fn planned(&self, store: &dyn Ledger) -> Result<Planned> {
        let record = UpgradeRecord::read(store)?;
        self.planned_from(store, record.as_ref())
    }

    /// Plans the upgrade as [`Configuration::planned`], by its record that was read before.
    pub(crate) fn planned_from(&self, store: &dyn Ledger, record: Option<&UpgradeRecord>) -> Result<Planned> {
        if self.is_plain(store, record)? {
            return self.planned_plain(store);
        }
        let adapter = self.read_adapter(store, record).map_err(|error| self.with_name(error))?;
        self.planned_by(store, adapter)
    }

    /// Plans the upgrade that is going on: by the adapter of its record, whatever was fitted since. Where
    /// none goes on by a map, or the file names an adapter, it is planned [anew](Configuration::planned).
    ///
    /// # Errors
    ///
    /// As [`Configuration::planned`].
    pub fn planned_ongoing(&self, store: &dyn Ledger) -> Result<Planned> {
        let record = UpgradeRecord::read(store)?;
        let has_map = |record: &&UpgradeRecord| {
            record.is_between(&self.old.name, &self.new.name) && !record.adapter.is_empty()
        };
        let mapped = record.as_ref().filter(has_map).filter(|_| !self.names_adapter());
        match mapped.map(|mapped| kept::adapter(store, &mapped.adapter)).transpose()?.flatten() {
            Some(adapter) => self.planned_by(store, adapter),
            None => self.planned_from(store, record.as_ref()),
        }
    }

    /// Plans the upgrade by an adapter, with the spaces as it has them.
    fn planned_by(&self, store: &dyn Ledger, adapter: Arc<Adapter>) -> Result<Planned> {
        Ok(Planned {
            old: Space { normalised: adapter.old.normalised, ..self.old.clone() },
            new: Space { normalised: adapter.output_space().normalised, ..self.new.clone() },
            adapter: Some(adapter),
            order: self.order(store)?,
        })
    }

    /// Plans the upgrade without a map: everything is embedded.
    pub(crate) fn planned_plain(&self, store: &dyn Ledger) -> Result<Planned> {
        let made_space = || self.made_space();
        let stored = find_space(store, &self.new.name)?.map(|stored| stored.space);
        let new = stored
            .map_or_else(made_space, |stored| Space { normalised: stored.normalised, ..self.new.clone() });
        Ok(Planned { old: self.old.clone(), new, adapter: None, order: self.order })
    }

    /// Whether the upgrade was started as a plain one, by its record, and no adapter was named or fitted for
    /// it since.
    pub(crate) fn is_plain(&self, store: &dyn Ledger, record: Option<&UpgradeRecord>) -> Result<bool> {
        let is_ours = |record: &&UpgradeRecord| record.is_between(&self.old.name, &self.new.name);
        let is_plain = record.filter(is_ours).is_some_and(UpgradeRecord::is_plain);
        Ok(is_plain && !self.names_adapter() && fit::fitted_from(store, record, &self.new.name)?.is_none())
    }

    fn order(&self, store: &dyn Ledger) -> Result<OrderSettings> {
        let chosen = if self.is_order_chosen { fit::chosen_order(store, &self.new.name)? } else { None };
        let policy = chosen.map_or(self.order.policy, |chosen| chosen.policy);
        Ok(OrderSettings { policy, ..self.order })
    }

    fn read_adapter(&self, store: &dyn Ledger, record: Option<&UpgradeRecord>) -> Result<Arc<Adapter>> {
        if let Some(path) = &self.adapter {
            return rehang_files::adapter_file::load(path).map(Arc::new);
        }
        if let Some(fingerprint) = fit::fitted_from(store, record, &self.new.name)? {
            let fitted = kept::adapter(store, &fingerprint)?;
            let missing = || {
                let what = format!("the adapter that was fitted for {:?} is missing", self.new.name);
                let detail = "its file in the gallery was lost; fit it again, or name a file in [adapter]";
                Error::conflict(what, detail).advise(Remedy::FitPairs)
            };
            return fitted.ok_or_else(missing);
        }
        if !self.has_adapter(store, record)? {
            let needed_by = format!("the upgrade from {} to {}", self.old, self.new);
            let begun = find_space(store, &self.new.name)?.is_some();
            let next = if begun { Remedy::FitPairs } else { Remedy::DrawPairs };
            return Err(Error::missing("an adapter", needed_by).advise(next));
        }
        let within = |error: Error| error.context("[head]");
        let head =
            self.head.as_ref().map(|head| head.read(folder_of(&self.path)).map_err(within)).transpose()?;
        Adapter::identity(self.old.clone(), self.new.clone(), head).map(Arc::new).map_err(|error| {
            error.context("without [adapter], old vectors stand in the new space as they are")
        })
    }

    /// Gives the new space as it is created where no adapter says how long its vectors are: raw, unless they
    /// are cut or the encoder scales them.
    pub(crate) fn made_space(&self) -> Space {
        let normalised =
            self.is_cut(&self.new) || self.encoder.as_ref().is_some_and(EncoderConfig::normalises);
        Space { normalised, ..self.new.clone() }
    }

    /// Whether there is an adapter by now: one that the file names, one that was fitted, or, where the record
    /// says that no pairs were drawn, that of a model which searches old vectors as they are.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub(crate) fn has_adapter(&self, store: &dyn Ledger, record: Option<&UpgradeRecord>) -> Result<bool> {
        let is_sampling = record.is_some_and(|record| record.phase == Phase::Sampling);
        Ok(self.names_adapter()
            || fit::fitted_from(store, record, &self.new.name)?.is_some()
            || (self.old.dimension == self.new.dimension && !is_sampling))
    }

    /// Whether the file names the forecast.
    pub(crate) fn names_forecast(&self) -> bool {
        self.forecast.is_some()
    }

    /// Whether the file names the adapter, so that none is fitted on the gallery's own pairs.
    pub fn names_adapter(&self) -> bool {
        self.adapter.is_some()
    }

    /// Opens the gallery, which has to be there.
    ///
    /// # Errors
    ///
    /// As [`Location::open`].
    pub fn open_gallery(&self) -> Result<Arc<dyn Examined>> {
        self.gallery.open().map_err(|error| self.with_name(error))
    }

    /// Opens the encoder of the new model, for the new space as the gallery or the adapter has it.
    ///
    /// # Errors
    ///
    /// Missing input where the configuration names none; what [`rehang_encode::open`] says.
    pub fn open_encoder(&self, new: &Space) -> Result<Box<dyn Encoder>> {
        self.open(self.encoder_of(&self.new.name, "re-embedding")?, new)
    }

    /// Opens the encoder of items for a space of the gallery, the old model's or the new one's.
    ///
    /// # Errors
    ///
    /// Not found where the upgrade has no such space; as [`Configuration::open_encoder`].
    pub(crate) fn open_item_encoder(&self, space: &Space) -> Result<Box<dyn Encoder>> {
        self.open(self.encoder_of(&space.name, &format!("items of {:?}", space.name))?, space)
    }

    /// Opens the encoder of queries for a space of the gallery, the old model's or the new one's, with
    /// the keys that are set for queries. [`Gallery::search_source`](crate::Gallery::search_source) asks
    /// for such encoders.
    ///
    /// # Errors
    ///
    /// Not found where the upgrade has no such space; as [`EncoderConfig::for_queries`] and
    /// [`Configuration::open_encoder`].
    pub fn open_query_encoder(&self, space: &Space) -> Result<Arc<dyn Encoder>> {
        let config = self.encoder_of(&space.name, &format!("a query of {:?}", space.name))?;
        let config = config.for_queries().map_err(|error| self.of_model(&space.name, error))?;
        self.open(&config, space).map(Arc::from)
    }

    /// Lists the encoders that there are, of the new model and of the old one.
    pub fn encoders(&self) -> impl Iterator<Item = &EncoderConfig> {
        [&self.encoder, &self.old_encoder].into_iter().flatten()
    }

    /// Lists the files that are named beside the gallery and the encoders: those of the adapter and of the
    /// forecast.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.adapter, &self.forecast].into_iter().flatten()
    }

    /// Reads the picture that the source of an item names, as [`EncoderConfig::picture`] does for the encoder
    /// of the new model, or else for that of the old one.
    pub fn picture(&self, source: &str) -> Option<PictureFile> {
        self.encoders().find_map(|config| config.picture(source, folder_of(&self.path)))
    }

    /// Fails where the configuration names no encoder for what is to be embedded. `items` asks for the new
    /// model's, unless the caller has one; `queries` asks for both models'.
    ///
    /// # Errors
    ///
    /// Missing input that names the table.
    pub(crate) fn expect_encoders(&self, items: bool, queries: bool) -> Result<()> {
        if items {
            self.encoder_of(&self.new.name, "re-embedding")?;
        }
        for model in [&self.new.name, &self.old.name].into_iter().filter(|_| queries) {
            self.encoder_of(model, &format!("a query of {model:?}"))?;
        }
        Ok(())
    }

    /// Whether the configuration has the encoder of a space's model.
    pub(crate) fn has_encoder(&self, space: &Space) -> bool {
        self.encoder_of(&space.name, "").is_ok()
    }

    /// Finds what can be seen of the gallery before the encoder is paid for: sources that it may refuse, and
    /// vectors that it cut. Nothing where the configuration has no encoder.
    pub(crate) fn outlook(&self, store: &dyn Ledger) -> Result<Vec<Finding>> {
        let Some(encoder) = &self.encoder else { return Ok(Vec::new()) };
        let mut findings = Vec::new();
        if find_space(store, &self.old.name)?.is_some() {
            let learnt = manners::read(store, &self.new.name)?;
            let cut = self.service().zip(learnt).and_then(|(service, learnt)| service.known_cut(&learnt));
            // A tokeniser that cannot be read is an error of the verb that embeds.
            let lengths = Lengths::open(encoder, folder_of(&self.path)).ok().flatten();
            findings.extend(outlook::sources(store, &self.old.name, cut, lengths)?);
        }
        if let Some(new) = find_space(store, &self.new.name)? {
            findings.extend(outlook::cut_vectors(store, &new.space, self.service())?);
        }
        Ok(findings)
    }

    /// Finds the table of the encoder of a space's model. An error names what it is `needed_by`.
    fn encoder_of(&self, space: &str, needed_by: &str) -> Result<&EncoderConfig> {
        let (table, config) = match space {
            name if name == self.new.name => ("[encoder]", &self.encoder),
            name if name == self.old.name => ("[old.encoder]", &self.old_encoder),
            _ => return Err(Error::not_found("encoder of the space", space, self.name())),
        };
        let missing = || Error::missing(table, format!("{needed_by} ({})", self.name()));
        config.as_ref().ok_or_else(missing)
    }

    /// Width that the model of a space itself gives, where it is not that of the space.
    fn model_dimension(&self, space: &Space) -> Option<usize> {
        let [old, new] = self.model_dimensions;
        if space.name == self.old.name { old } else { new }
    }

    /// Whether the vectors of a space's model are cut to its width, and so scaled to length 1.
    pub fn is_cut(&self, space: &Space) -> bool {
        self.model_dimension(space).is_some_and(|width| width > space.dimension)
    }

    /// Makes the encoder of a space's model. `make` is given the space of the model's own vectors: where the
    /// file has its `model_dimension`, that space is of another width, and its vectors are cut or filled up
    /// as [`Resized`] does.
    ///
    /// # Errors
    ///
    /// Those of `make`.
    pub fn encoder_by(
        &self,
        space: &Space,
        make: impl FnOnce(&Space) -> Result<Box<dyn Encoder>>,
    ) -> Result<Box<dyn Encoder>> {
        at_width_of(space, self.model_dimension(space), make)
    }

    fn open(&self, config: &EncoderConfig, space: &Space) -> Result<Box<dyn Encoder>> {
        self.encoder_by(space, |space| rehang_encode::open(config, space, folder_of(&self.path)))
            .map_err(|error| self.of_model(&space.name, error).blame(Party::Encoder))
    }

    /// Adds to an error of an encoder which table of which file it is about.
    fn of_model(&self, space: &str, error: Error) -> Error {
        let table = if space == self.old.name { "[old.encoder]" } else { "[encoder]" };
        self.with_name(error.context(table))
    }

    /// Service of the new model's encoder, where it has one.
    pub fn service(&self) -> Option<&HttpConfig> {
        self.encoder.as_ref().and_then(EncoderConfig::service)
    }

    /// Reads the forecast of this upgrade: the report that the file names, or else the one that was made of
    /// the adapter on the gallery's own pairs. `None` where there is neither, and of a plain upgrade.
    ///
    /// # Errors
    ///
    /// I/O errors; what [`Forecast::read`] says.
    pub fn forecast(&self, store: &dyn Ledger, planned: &Planned) -> Result<Option<Forecast>> {
        let Some(adapter) = &planned.adapter else { return Ok(None) };
        let (text, source) = if let Some(path) = &self.forecast {
            let read = fs_err::read_to_string(path).map_err(|error| Error::io("open", path, &error));
            (read.map_err(|error| self.of_forecast(error))?, path.display().to_string())
        } else {
            let fingerprint = rehang_files::adapter_file::fingerprint(adapter)?;
            let Some(report) = kept::read(store, Kind::Report, &fingerprint)? else { return Ok(None) };
            let name = kept::display_name(store, Kind::Report, &fingerprint);
            (String::from_utf8_lossy(&report).into_owned(), name)
        };
        Forecast::read(&text, &source, &planned.setup()).map(Some).map_err(|error| self.of_forecast(error))
    }

    fn of_forecast(&self, error: Error) -> Error {
        let key = if self.forecast.is_some() { "[forecast]" } else { "the forecast" };
        error.context(format!("{key} of {}", self.name()))
    }

    /// Gives the limits of a run: those of the file, with what the caller asks for in their place. Where
    /// neither says how many items go to the encoder together, the default is rounded up to whole calls of
    /// the encoder: fewer would leave requests or processes without work.
    ///
    /// # Errors
    ///
    /// An invalid option where `workers` or `batch` is 0, the rate is not above 0, or the
    /// share is beyond 0 to 1.
    pub fn limits_of(&self, options: &RunOptions, encoder: &dyn Encoder) -> Result<Limits> {
        options.over(self.limits, self.says_batch, encoder)
    }

    /// Fails where the configuration is of another gallery, or of another upgrade than the one under way: its
    /// adapter would write vectors that do not belong to this upgrade.
    ///
    /// # Errors
    ///
    /// An invalid option that names both galleries; what [`expect_same`] says while an upgrade is live.
    pub fn expect_of_gallery(&self, gallery: &Location, store: &dyn Store) -> Result<()> {
        if !self.gallery.is_same(gallery) {
            let expected = format!("the configuration of an upgrade of {gallery}; it names {}", self.gallery);
            return Err(Error::option("config", self.name(), expected));
        }
        match Recorded::read(store)? {
            Some(recorded) if recorded.record.is_live() => {
                expect_same(store, &self.planned_ongoing(store)?.setup())
            }
            _ => Ok(()),
        }
    }

    fn with_name(&self, error: Error) -> Error {
        error.context(self.name())
    }
}

/// Reads a document of TOML.
///
/// # Errors
///
/// I/O errors; corrupt, with the line, where it is none.
pub(crate) fn read_toml<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = fs_err::read_to_string(path).map_err(|error| Error::io("open", path, &error))?;
    toml::from_str(&text).map_err(|error| {
        // The line is numbered and not repeated: it may hold a password, or a key where the
        // name of one belongs.
        let start = error.span().map_or(0, |span| span.start);
        let line = text.bytes().take(start).filter(|byte| *byte == b'\n').count() + 1;
        // Between backticks stand parameters of this library, which a face renames; these are keys and
        // values of the file.
        Error::corrupt(path.display(), format!("line {line}: {}", error.message().replace('`', "'")))
    })
}

/// Makes the encoder of a space. `make` is given the space of the model's own vectors: where these have a
/// `model_width` of their own, they are cut or filled up as [`Resized`] does.
///
/// # Errors
///
/// Those of `make`.
pub(crate) fn at_width_of(
    space: &Space,
    model_width: Option<usize>,
    make: impl FnOnce(&Space) -> Result<Box<dyn Encoder>>,
) -> Result<Box<dyn Encoder>> {
    let Some(dimension) = model_width else { return make(space) };
    // A vector that is cut is scaled afterwards; zeros that are filled in leave a length as it is.
    let normalised = space.normalised && dimension <= space.dimension;
    let encoder = make(&Space { dimension, normalised, ..space.clone() })?;
    Ok(Box::new(Resized::new(encoder, space)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_stands_where_it_means_something() {
        let read = |gallery: &str, old: &str, new: &str| {
            let space = |name: &str| format!("name = \"{name}\"\ndimension = 2\ndistance = \"l2\"\n");
            let text = format!(
                "[gallery]\n{gallery}\n[old]\n{}{old}\n[new]\n{}{new}",
                space("small"),
                space("Large-2")
            );
            Configuration::from_document(toml::from_str(&text).unwrap(), Path::new("rehang.toml"))
        };
        let postgres = "kind = \"postgres\"\ntable = \"notes\"\nvector = \"embedding\"";
        let column = "column = \"mine\"";
        let moves_into = |new| read(postgres, "", new).unwrap().gallery.new_column().unwrap();
        assert_eq!(moves_into(""), "embedding_large_2");
        assert_eq!(moves_into(column), "mine");
        for (read, words) in [
            (read("path = \"g.db\"", "", column), "[new] column"),
            (read("path = \"g.db\"\ntable = \"notes\"", "", ""), "[gallery] table"),
            (read(postgres, column, ""), "[old] column"),
        ] {
            let error = read.unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        assert!(read("path = \"g.db\"", "", "").unwrap().gallery.new_column().is_err());
    }

    /// The remedy that the refusal of a key in the clear names can be followed.
    #[cfg(feature = "qdrant")]
    #[test]
    fn a_servers_key_goes_over_plain_http_where_the_configuration_says_so() {
        let read = |more: &str| {
            let text = format!(
                "[gallery]\nkind = \"qdrant\"\nurl = \"http://10.0.0.1:6333\"\ncollection = \"notes\"\nkey_env = \"PATH\"\n{more}
                 [old]\nname = \"a\"\ndimension = 2\ndistance = \"l2\"\n[new]\nname = \"b\"\ndimension = 2\ndistance = \"l2\""
            );
            Configuration::from_document(toml::from_str(&text).unwrap(), Path::new("rehang.toml"))
                .unwrap()
                .gallery
        };
        let refusal = read("").open().err().unwrap().to_string();
        assert!(refusal.contains("plain_http = true"), "{refusal}");
        let Location::Collection(collection) = read("plain_http = true") else { panic!("no collection") };
        let address =
            rehang_qdrant::QdrantAddress::new("http://10.0.0.1:6333").with_key(std::env::var("PATH").ok());
        assert_eq!(collection.address().unwrap(), address.with_plain_http(true));
    }

    #[cfg(all(feature = "postgres", feature = "qdrant"))]
    #[test]
    fn a_servers_own_authority_is_looked_for_beside_the_file() {
        let read = |gallery: &str| {
            let spaces = "[old]\nname = \"a\"\ndimension = 2\ndistance = \"l2\"\n[new]\nname = \"b\"\ndimension = 2\ndistance = \"l2\"";
            let text = format!("[gallery]\n{gallery}\nroot_certificates = \"corp.pem\"\n{spaces}");
            Configuration::from_document(toml::from_str(&text).unwrap(), Path::new("there/rehang.toml"))
        };
        for gallery in [
            "kind = \"qdrant\"\nurl = \"https://10.0.0.1:6333\"\ncollection = \"notes\"",
            "kind = \"postgres\"\nurl = \"postgresql://10.0.0.1/shop\"\ntable = \"notes\"",
        ] {
            let refusal = read(gallery).unwrap().gallery.open().err().unwrap().to_string();
            let path = Path::new("there").join("corp.pem").display().to_string();
            assert!(refusal.contains("[gallery] root_certificates") && refusal.contains(&path), "{refusal}");
        }
        let refusal = read("path = \"gallery.db\"").unwrap_err().to_string();
        assert!(refusal.contains("[gallery] root_certificates"), "{refusal}");
    }
}
