//! Live upgrades and their galleries.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use rehang::{Distance, Error, Matrix, Progress, Result, Space};
use rehang_encode::{Encoder, Function};
use rehang_files::{VectorSource, read_matrix};
use rehang_store::Filter;
use rehang_upgrade::{
    AutoOptions, Import, Init, Location, PairsFiles, PairsOptions, Put, Query, Request, RunOptions, Search,
    SearchQueries, Serving, Until,
};
use serde_json::{Value, json};

use crate::call::{Interrupted, call};
use crate::error::raised;
use crate::sources::{Options, source};
use crate::verbs::{Report, said, to_json};

/// Puts vectors and their items into a gallery file.
#[pyfunction]
pub fn import_items(
    py: Python<'_>,
    gallery: PathBuf,
    items: PathBuf,
    options: &Bound<'_, PyDict>,
    show: Option<&Bound<'_, PyAny>>,
) -> PyResult<String> {
    let given = Options(options);
    let import = Import {
        space: given.get("space")?.unwrap_or_default(),
        distance: given.parsed("distance")?.unwrap_or(Distance::L2),
        vectors: given.needed("vectors", "an import")?,
        items,
    };
    let imported = call(py, show, Interrupted::Waits, move |progress| {
        rehang_upgrade::import(&Location::file(&gallery), &import, progress)
    })?;
    to_json(py, &imported)
}

/// Writes a first configuration of an upgrade of a gallery file.
#[pyfunction]
pub fn init(
    py: Python<'_>,
    gallery: PathBuf,
    path: PathBuf,
    options: &Bound<'_, PyDict>,
) -> PyResult<String> {
    let given = Options(options);
    let init = Init {
        gallery: Location::file(&gallery),
        old_distance: given.parsed("old_distance")?.unwrap_or(Distance::L2),
        adapter: given.path("adapter")?,
        forecast: given.path("forecast")?,
        new_name: given.get("new_name")?,
        new_dimension: given.get("new_dimension")?,
        new_distance: given.parsed("new_distance")?,
        path,
    };
    let made = call(py, None, Interrupted::Waits, move |_| rehang_upgrade::init(&init))?;
    to_json(py, &made)
}

/// Items that a status lists by default.
const LISTED: usize = 20;

/// An upgrade of a configuration, and the gallery that it is of.
#[pyclass(frozen)]
pub struct Upgrade(Arc<rehang_upgrade::Upgrade>);

#[pymethods]
impl Upgrade {
    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let opened = call(py, None, Interrupted::Waits, move |_| rehang_upgrade::Upgrade::open(&path))?;
        Ok(Self(Arc::new(opened)))
    }

    /// Does one of the verbs; gives its result as JSON.
    fn verb(
        &self,
        py: Python<'_>,
        name: &str,
        options: &Bound<'_, PyDict>,
        show: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(String, Vec<(String, String)>)> {
        let given = Options(options);
        let asked = Verb::read(name, &given)?;
        let encoder = given.object("encoder")?;
        let encoder = encoder.map(|callable| self.encoder(py, &callable, &given)).transpose()?;
        let upgrade = Arc::clone(&self.0);
        let (value, findings) = call(py, show, Interrupted::Waits, move |progress| {
            asked.run(&upgrade, encoder.as_ref().map(|encoder| encoder as &dyn Encoder), progress)
        })?;
        Ok((value.to_string(), findings))
    }

    /// Makes the report of the upgrade.
    fn report(
        &self,
        py: Python<'_>,
        show: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(Report, Vec<(String, String)>)> {
        let upgrade = Arc::clone(&self.0);
        let made = call(py, show, Interrupted::Waits, move |progress| upgrade.report(progress))?;
        let findings = said(made.findings.iter().chain(&made.report.warnings));
        Ok((Report(made.report), findings))
    }

    /// The spaces of the upgrade, and which serves.
    fn spaces(&self, py: Python<'_>) -> PyResult<String> {
        let configuration = self.0.configuration();
        let serving = py.detach(|| self.0.store().serving()).map_err(|error| raised(py, &error))?;
        Ok(json!({ "old": configuration.old, "new": configuration.new, "serving": serving }).to_string())
    }

    /// Searches by vectors of the model that serves, by those of several models, or by texts.
    fn search(
        &self,
        py: Python<'_>,
        queries: &Bound<'_, PyAny>,
        options: &Bound<'_, PyDict>,
    ) -> PyResult<String> {
        let given = Options(options);
        let filter = Filter {
            labels: given.get("labels")?.unwrap_or_default(),
            payload: payload(&given, "payload")?,
            provenances: Vec::new(),
        };
        let k = given.get("k")?.unwrap_or(10);
        let upgrade = Arc::clone(&self.0);
        let asked = if let Ok(by_model) = queries.cast::<PyDict>() {
            let named = by_model.iter().map(|(name, rows)| {
                let name: String = name.extract()?;
                let rows = source(&name, &rows)?;
                Ok((name, rows))
            });
            SearchQueries::ByModel(named.collect::<PyResult<_>>()?)
        } else if let Ok(texts) = queries.cast::<PyList>() {
            let texts: Vec<String> = texts.extract()?;
            let before = given.get("before")?.unwrap_or_default();
            SearchQueries::Sources { queries: texts.into_iter().map(Query::Text).collect(), before }
        } else {
            SearchQueries::Vectors {
                vectors: source("queries", queries)?,
                old_vectors: given.source("old_queries")?,
            }
        };
        let search = Search { queries: asked, space: given.get("space")?, k, filter };
        let encoders: Vec<(String, Py<PyAny>)> = match given.get::<Bound<'_, PyDict>>("encoders")? {
            None => Vec::new(),
            Some(by_model) => by_model
                .iter()
                .map(|(name, callable)| Ok((name.extract()?, callable.unbind())))
                .collect::<PyResult<_>>()?,
        };
        let normalise = given.get("normalise")?.unwrap_or_default();
        let found = call(py, None, Interrupted::Leaves, move |_| {
            let open = |space: &Space| -> Result<Arc<dyn Encoder>> {
                match encoders.iter().find(|(name, _)| *name == space.name) {
                    Some((_, callable)) => {
                        let callable = Python::attach(|py| callable.clone_ref(py));
                        Ok(Arc::new(function(space, callable, BATCH, normalise, None)))
                    }
                    None => upgrade.configuration().open_query_encoder(space),
                }
            };
            rehang_upgrade::search(&upgrade.shared_store(), &search, &open)
        })?;
        to_json(py, &found)
    }

    /// Puts items, new or changed.
    fn put(&self, py: Python<'_>, items: Vec<Bound<'_, PyDict>>) -> PyResult<String> {
        let mut puts = Vec::with_capacity(items.len());
        for item in &items {
            let given = Options(item);
            let vectors = match given.get::<Bound<'_, PyDict>>("vectors")? {
                None => Vec::new(),
                Some(by_space) => by_space
                    .iter()
                    .map(|(name, vector)| Ok((name.extract()?, vector.extract()?)))
                    .collect::<PyResult<_>>()?,
            };
            puts.push(Put {
                id: given.get("id")?.unwrap_or_default(),
                source: given.get("source")?,
                label: given.get("label")?,
                payload: given.get::<String>("payload")?.map(|text| json_of(py, &text)).transpose()?,
                vectors,
            });
        }
        let upgrade = Arc::clone(&self.0);
        let put = call(py, None, Interrupted::Waits, move |_| {
            let gallery = upgrade.gallery()?;
            puts.iter()
                .map(|put| rehang_upgrade::put(upgrade.store(), &gallery, put))
                .collect::<Result<Vec<_>>>()
        })?;
        to_json(py, &put)
    }

    /// Deletes items.
    fn delete(&self, py: Python<'_>, ids: Vec<String>) -> PyResult<String> {
        let upgrade = Arc::clone(&self.0);
        let deleted = call(py, None, Interrupted::Waits, move |_| {
            let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
            rehang_upgrade::delete(upgrade.store(), &ids)
        })?;
        to_json(py, &deleted)
    }

    /// What the gallery holds.
    fn contents(&self, py: Python<'_>) -> PyResult<String> {
        let upgrade = Arc::clone(&self.0);
        let contents =
            call(py, None, Interrupted::Waits, move |_| rehang_upgrade::contents(upgrade.store()))?;
        to_json(py, &contents)
    }
}

impl Upgrade {
    /// A callable as the encoder of the new space.
    fn encoder(
        &self,
        py: Python<'_>,
        callable: &Bound<'_, PyAny>,
        given: &Options<'_, '_>,
    ) -> PyResult<Function> {
        let space = py.detach(|| self.0.new_space()).map_err(|error| raised(py, &error))?;
        let batch = given.get("batch")?.unwrap_or(BATCH);
        let normalise = given.get("normalise")?.unwrap_or_default();
        let fingerprint = given.get("fingerprint")?;
        // A new space that is not made yet is what the callable makes: of length 1 where it scales.
        let is_made = py.detach(|| self.0.store().spaces()).map_err(|error| raised(py, &error))?;
        let is_made = is_made.iter().any(|record| record.space.name == space.name);
        let space = Space { normalised: if is_made { space.normalised } else { normalise }, ..space };
        Ok(function(&space, callable.clone().unbind(), batch, normalise, fingerprint))
    }
}

/// Sources that a callable is given together, unless it says otherwise.
const BATCH: usize = 64;

/// An encoder that calls Python: sources in, rows out.
fn function(
    space: &Space,
    callable: Py<PyAny>,
    batch: usize,
    normalise: bool,
    fingerprint: Option<String>,
) -> Function {
    let call = move |sources: &[&str]| -> Result<Matrix> {
        Python::attach(|py| -> PyResult<VectorSource> {
            let arrays = py.import("rehang._arrays")?;
            let rows = callable.bind(py).call1((sources,))?;
            source("encoder", &arrays.call_method1("matrix", ("encoder", rows))?)
        })
        .map_err(|error| {
            Error::from(rehang::ErrorKind::Unavailable {
                service: "the encoder".into(),
                detail: error.to_string(),
            })
        })
        .and_then(|rows| read_matrix(&rows))
    };
    Function::new(space, batch, normalise, fingerprint, call)
}

/// The fields of a payload, given as JSON.
fn payload(given: &Options<'_, '_>, name: &str) -> PyResult<Vec<(String, Value)>> {
    let Some(text) = given.get::<String>(name)? else { return Ok(Vec::new()) };
    match json_of(given.0.py(), &text)? {
        Value::Object(fields) => Ok(fields.into_iter().collect()),
        _ => Ok(Vec::new()),
    }
}

fn json_of(py: Python<'_>, text: &str) -> PyResult<Value> {
    serde_json::from_str(text).map_err(|error| raised(py, &Error::corrupt("the payload", error)))
}

/// A verb with what it is asked for.
enum Verb {
    Auto { asked: AutoOptions, queries: Option<PathBuf> },
    Pairs { asked: PairsOptions, folder: Option<PathBuf>, queries: Option<PathBuf> },
    Fit(rehang_fit::Method),
    Plan { probe: usize },
    Start,
    Switch { serving: Serving, anyway: bool },
    Run(RunOptions),
    Status { failures: usize },
    Request(Request),
    Resume { retry_failed: bool, re_embed: bool },
    Rollback,
    Finish,
}

impl Verb {
    fn read(name: &str, given: &Options<'_, '_>) -> PyResult<Self> {
        let method = || Ok::<rehang_fit::Method, PyErr>(given.parsed("method")?.unwrap_or_default());
        let flag = |name: &str| Ok::<_, PyErr>(given.get(name)?.unwrap_or_default());
        Ok(match name {
            "auto" => Self::Auto {
                asked: AutoOptions {
                    pairs: pairs_options(given)?,
                    method: method()?,
                    go: flag("yes")?,
                    merged: flag("merged")?,
                    switch_if: given.parsed("switch_if")?.unwrap_or_default(),
                },
                queries: given.path("queries")?,
            },
            "pairs" => Self::Pairs {
                asked: pairs_options(given)?,
                folder: given.path("folder")?,
                queries: given.path("queries")?,
            },
            "fit" => Self::Fit(method()?),
            "plan" => Self::Plan { probe: given.get("probe")?.unwrap_or_default() },
            "start" => Self::Start,
            "switch" => Self::Switch {
                serving: if flag("merged")? { Serving::Merged } else { Serving::Mixed },
                anyway: flag("anyway")?,
            },
            "run" => Self::Run(run_options(given)?),
            "status" => Self::Status { failures: given.get("failures")?.unwrap_or(LISTED) },
            "pause" => Self::Request(Request::Pause),
            "stop" => Self::Request(Request::Stop),
            "resume" => Self::Resume { retry_failed: flag("retry_failed")?, re_embed: flag("re_embed")? },
            "rollback" => Self::Rollback,
            "finish" => Self::Finish,
            _ => return Err(raised(given.0.py(), &Error::option("verb", name, "one of `rehang.Upgrade`'s"))),
        })
    }

    fn run(
        self,
        upgrade: &rehang_upgrade::Upgrade,
        encoder: Option<&dyn Encoder>,
        progress: &Progress,
    ) -> Result<(Value, Vec<(String, String)>)> {
        let mut findings = Vec::new();
        let value = match self {
            Self::Auto { asked, queries } => {
                let mut steps = Vec::new();
                let files = PairsFiles { folder: None, queries: queries.as_deref() };
                let halt = upgrade.auto(&asked, &files, encoder, progress, |taken| {
                    let (step, result) = taken.result()?;
                    steps.push(json!({ "step": step, "result": result }));
                    Ok(())
                })?;
                json!({ "steps": steps, "halt": halt })
            }
            Self::Pairs { asked, folder, queries } => {
                let files = PairsFiles { folder: folder.as_deref(), queries: queries.as_deref() };
                value(&upgrade.pairs(&asked, &files, encoder, progress)?)?
            }
            Self::Fit(method) => {
                let answer = upgrade.fit(method, progress)?;
                findings = said(answer.fitted.findings.iter().chain(&answer.findings));
                answer.to_json()
            }
            Self::Plan { probe } => {
                let outlook = upgrade.plan(probe)?;
                findings = said(&outlook.findings());
                value(&outlook)?
            }
            Self::Start => {
                let started = upgrade.start(progress)?;
                findings = said(&started.findings);
                value(&started)?
            }
            Self::Switch { serving, anyway } => {
                let (switched, seen) = upgrade.switch(serving, anyway)?;
                findings = said(&seen);
                value(&switched)?
            }
            Self::Run(asked) => value(&upgrade.run(&asked, encoder, progress)?)?,
            Self::Status { failures } => value(&upgrade.status(failures)?)?,
            Self::Request(request) => value(&upgrade.request(request)?)?,
            Self::Resume { retry_failed, re_embed } => {
                value(&upgrade.resume(retry_failed, re_embed, progress)?)?
            }
            Self::Rollback => value(&upgrade.rollback()?)?,
            Self::Finish => value(&upgrade.finish(progress)?)?,
        };
        Ok((value, findings))
    }
}

fn value(result: &impl serde::Serialize) -> Result<Value> {
    serde_json::to_value(result).map_err(|error| Error::corrupt("the result", error))
}

fn run_options(given: &Options<'_, '_>) -> PyResult<RunOptions> {
    let until: Option<f64> = given.get("until")?;
    Ok(RunOptions {
        budget: given.get("budget")?,
        rate: given.get("rate")?,
        until: until.map(Until::Fraction),
        workers: given.get("workers")?,
        batch: given.get("batch")?,
    })
}

fn pairs_options(given: &Options<'_, '_>) -> PyResult<PairsOptions> {
    let plain = PairsOptions::default();
    Ok(PairsOptions {
        items: given.get("items")?.unwrap_or(plain.items),
        worth: given.get("worth")?.unwrap_or(plain.worth),
        run: run_options(given)?,
    })
}
