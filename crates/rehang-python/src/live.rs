//! Live upgrades and their galleries.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use rehang_core::finding::{Finding, Severity};
use rehang_core::{Distance, Error, Matrix, Progress, Result, Space};
use rehang_encode::{Encoder, Function, Watched};
use rehang_files::{VectorSource, read_matrix};
use rehang_fit::Method;
use rehang_store::Filter;
use rehang_upgrade::{
    AutoOptions, IdentifyOptions, Import, Init, Location, PairsFiles, PairsOptions, Put, Query, Request,
    RunOptions, Search, SearchQueries, Serving, StepResult, Upgrade, Way,
};
use serde_json::{Value, json};

use crate::call::{Interrupted, call};
use crate::error::{of_callable, raised};
use crate::sources::{Options, filled, source};
use crate::verbs::{Findings, PyReport, said, to_json};

/// Puts vectors and their items into a gallery file.
#[pyfunction]
pub fn import_items(
    py: Python<'_>,
    gallery: PathBuf,
    items: PathBuf,
    options: &Bound<'_, PyDict>,
    show: Option<&Bound<'_, PyAny>>,
) -> PyResult<String> {
    let options = Options(options);
    let import = Import {
        space: options.or("space", String::new())?,
        distance: options.or("distance", Distance::L2)?,
        vectors: options.needed("vectors", "an import")?,
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
    let options = Options(options);
    let init = Init {
        gallery: Location::file(&gallery),
        old_distance: Distance::L2,
        adapter: options.or("adapter", None)?,
        forecast: options.or("forecast", None)?,
        new_name: options.or("new_name", None)?,
        new_dimension: options.or("new_dimension", None)?,
        new_model_dimension: options.or("new_model_dimension", None)?,
        new_distance: options.or("new_distance", None)?,
        path,
    };
    let written = call(py, None, Interrupted::Waits, move |_| rehang_upgrade::init(&init))?;
    to_json(py, &written)
}

/// Items that a status lists by default.
const LISTED: usize = 20;

/// An upgrade of a configuration, and the gallery that it is of.
#[pyclass(name = "Upgrade", frozen)]
pub struct PyUpgrade(Arc<Upgrade>);

#[pymethods]
impl PyUpgrade {
    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let opened = call(py, None, Interrupted::Waits, move |_| Upgrade::open(&path))?;
        Ok(Self(Arc::new(opened)))
    }

    /// Carries out the verb of a name; gives its result as JSON, and findings.
    fn verb(
        &self,
        py: Python<'_>,
        name: &str,
        options: &Bound<'_, PyDict>,
        show: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(String, Findings)> {
        let options = Options(options);
        let work = verb(name, &options)?;
        let encoder = options.object("encoder")?;
        let encoder = encoder.map(|callable| self.encoder(py, &callable, &options)).transpose()?;
        let upgrade = Arc::clone(&self.0);
        let (value, findings) =
            call(py, show, Interrupted::Waits, move |progress| work(&upgrade, encoder.as_deref(), progress))?;
        Ok((value.to_string(), findings))
    }

    /// Makes the report of the upgrade, asked by other queries or clicks where some are given.
    fn report(
        &self,
        py: Python<'_>,
        options: &Bound<'_, PyDict>,
        show: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(PyReport, Findings)> {
        let (queries, clicks) = query_paths(&Options(options))?;
        let upgrade = Arc::clone(&self.0);
        let reported = call(py, show, Interrupted::Waits, move |progress| {
            let (queries, clicks) = (queries.as_deref(), clicks.as_deref());
            upgrade.report_by(&PairsFiles { folder: None, queries, clicks }, progress)
        })?;
        let findings = said(reported.findings.iter().chain(&reported.report.warnings));
        Ok((PyReport(reported.report), findings))
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
        let options = Options(options);
        let filter = Filter {
            labels: options.get("labels")?.unwrap_or_default(),
            payload: payload(&options, "payload")?,
            provenances: Vec::new(),
        };
        let k = options.or("k", 10)?;
        let upgrade = Arc::clone(&self.0);
        let search_queries = if let Ok(by_model) = queries.cast::<PyDict>() {
            let named = by_model.iter().map(|(name, rows)| {
                let name: String = name.extract()?;
                let rows = source(&name, &rows)?;
                Ok((name, rows))
            });
            SearchQueries::ByModel(named.collect::<PyResult<_>>()?)
        } else if let Ok(texts) = queries.cast::<PyList>() {
            let texts: Vec<String> = texts.extract()?;
            let before = options.or("before", false)?;
            SearchQueries::Sources { queries: texts.into_iter().map(Query::Text).collect(), before }
        } else {
            SearchQueries::Vectors {
                vectors: source("queries", queries)?,
                old_vectors: options.or("old_queries", None)?,
            }
        };
        let space = options.or("space", None)?;
        let encoders: Vec<(String, Py<PyAny>)> = match options.get::<Bound<'_, PyDict>>("encoders")? {
            None => Vec::new(),
            Some(by_model) => by_model
                .iter()
                .map(|(name, callable)| Ok((name.extract()?, callable.unbind())))
                .collect::<PyResult<_>>()?,
        };
        let normalise = options.or("normalise", false)?;
        let searched = call(py, None, Interrupted::Leaves, move |_| {
            let open = |space: &Space| -> Result<Arc<dyn Encoder>> {
                match encoders.iter().find(|(name, _)| *name == space.name) {
                    Some((_, callable)) => {
                        let callable = Python::attach(|py| callable.clone_ref(py));
                        let encoder = upgrade.configuration().encoder_by(space, |space| {
                            Ok(Box::new(function(space, callable, BATCH, normalise, None)))
                        })?;
                        Ok(Arc::from(encoder))
                    }
                    None => upgrade.configuration().open_query_encoder(space),
                }
            };
            let search = Search { queries: search_queries, space, k, filter };
            rehang_upgrade::search(&upgrade.shared_store(), &search, &open)
        })?;
        to_json(py, &searched)
    }

    /// Puts items, new or changed.
    fn put(&self, py: Python<'_>, items: Vec<Bound<'_, PyDict>>) -> PyResult<String> {
        let mut puts = Vec::with_capacity(items.len());
        for item in &items {
            let fields = Options(item);
            let vectors = match fields.get::<Bound<'_, PyDict>>("vectors")? {
                None => Vec::new(),
                Some(by_space) => by_space
                    .iter()
                    .map(|(name, vector)| Ok((name.extract()?, vector.extract()?)))
                    .collect::<PyResult<_>>()?,
            };
            puts.push(Put {
                id: fields.or("id", String::new())?,
                source: fields.or("source", None)?,
                label: fields.or("label", None)?,
                payload: fields.get::<String>("payload")?.map(|text| json_of(py, &text)).transpose()?,
                vectors,
            });
        }
        let upgrade = Arc::clone(&self.0);
        let put = call(py, None, Interrupted::Waits, move |_| {
            let gallery = upgrade.gallery();
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

    /// Says what the gallery holds, as JSON.
    fn contents(&self, py: Python<'_>) -> PyResult<String> {
        let upgrade = Arc::clone(&self.0);
        let contents =
            call(py, None, Interrupted::Waits, move |_| rehang_upgrade::contents(upgrade.store()))?;
        to_json(py, &contents)
    }
}

impl PyUpgrade {
    /// Makes a callable the encoder of the new space.
    fn encoder(
        &self,
        py: Python<'_>,
        callable: &Bound<'_, PyAny>,
        options: &Options<'_, '_>,
    ) -> PyResult<Box<dyn Encoder>> {
        let space = py.detach(|| self.0.new_space()).map_err(|error| raised(py, &error))?;
        let batch = options.or("batch", BATCH)?;
        let normalise = options.or("normalise", false)?;
        let fingerprint = options.or("fingerprint", None)?;
        // A new space that is not made yet is what the callable makes: of length 1 where it scales, or is
        // cut.
        let configuration = self.0.configuration();
        let scales = normalise || configuration.is_cut(&space);
        let is_made = py.detach(|| self.0.store().spaces()).map_err(|error| raised(py, &error))?;
        let is_made = is_made.iter().any(|record| record.space.name == space.name);
        let space = Space { normalised: if is_made { space.normalised } else { scales }, ..space };
        let is_known = Option::is_some(&fingerprint);
        let callable = callable.clone().unbind();
        let encoder = configuration
            .encoder_by(&space, |space| {
                Ok(Box::new(function(space, callable, batch, normalise, fingerprint)))
            })
            .map_err(|error| raised(py, &error))?;
        // The model behind the callable may become another one in the middle of a run.
        Ok(if is_known { encoder } else { Box::new(Watched::new(encoder)) })
    }
}

/// Number of sources that a callable is given together, unless it says otherwise.
const BATCH: usize = 64;

/// Makes an encoder that calls Python: sources in, rows out.
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
        .map_err(|error| Python::attach(|py| of_callable(py, error)))
        .and_then(|rows| read_matrix(&rows))
    };
    Function::new(space, batch, normalise, fingerprint, call)
}

/// Reads the fields of a payload, given as JSON.
fn payload(options: &Options<'_, '_>, name: &str) -> PyResult<Vec<(String, Value)>> {
    let Some(text) = options.get::<String>(name)? else { return Ok(Vec::new()) };
    match json_of(options.0.py(), &text)? {
        Value::Object(fields) => Ok(fields.into_iter().collect()),
        _ => Ok(Vec::new()),
    }
}

fn json_of(py: Python<'_>, text: &str) -> PyResult<Value> {
    if let Some(number) = rehang_store::rounded_number(text) {
        let expected = "whole numbers of 64 bits; give a longer one as text";
        return Err(raised(py, &Error::option("payload", number, expected)));
    }
    serde_json::from_str(text).map_err(|error| raised(py, &Error::corrupt("the payload", error)))
}

/// Verb with its options: what remains is to give it an upgrade, an encoder if there is one, and a progress.
type Work = Box<dyn FnOnce(&Upgrade, Option<&dyn Encoder>, &Progress) -> Result<(Value, Findings)> + Send>;

/// Reads the verb of a name, with the options that are given to it.
fn verb(name: &str, options: &Options<'_, '_>) -> PyResult<Work> {
    let flag = |name: &str| options.or(name, false);
    let request = |request| -> Work { Box::new(move |upgrade, _, _| plain(&upgrade.request(request)?)) };
    Ok(match name {
        "auto" => auto_work(options)?,
        "pairs" => pairs_work(options)?,
        "fit" => fit_work(options)?,
        "order" => {
            let metric = options.or("metric", None)?;
            Box::new(move |upgrade, _, progress| plain(&upgrade.choose_order(metric, progress)?))
        }
        "bridge" => {
            let off = flag("off")?;
            Box::new(move |upgrade, _, progress| {
                plain(&if off { upgrade.remove_bridge()? } else { upgrade.bridge(progress)? })
            })
        }
        "plan" => {
            let probe = options.or("probe", 0)?;
            Box::new(move |upgrade, _, _| {
                let outlook = upgrade.plan(probe)?;
                warned(&outlook, &outlook.findings())
            })
        }
        "thresholds" => {
            let floors = options.or("floors", Vec::new())?;
            Box::new(move |upgrade, _, progress| plain(&upgrade.thresholds(&floors, progress)?))
        }
        "first" => {
            let log = options.or::<Option<PathBuf>>("log", None)?;
            let log = log.ok_or_else(|| raised(options.0.py(), &Error::missing("log", "first")))?;
            Box::new(move |upgrade, _, progress| plain(&upgrade.put_first(&log, progress)?))
        }
        "identify" => identify_work(options)?,
        "start" => start_work(options)?,
        "switch" => {
            let serving = match (flag("fused")?, flag("mixed")?) {
                (true, true) => {
                    let error = Error::option("mixed", true, "one of `fused` and `mixed`");
                    return Err(raised(options.0.py(), &error));
                }
                (true, false) => Some(Serving::Fused),
                (false, true) => Some(Serving::Mixed),
                (false, false) => None,
            };
            let anyway = flag("anyway")?;
            Box::new(move |upgrade, _, _| {
                let (switched, findings) = upgrade.switch(serving, anyway)?;
                warned(&switched, &findings)
            })
        }
        "run" => {
            let run_options = options.or("run", RunOptions::default())?;
            Box::new(move |upgrade, encoder, progress| {
                let run = upgrade.run(&run_options, encoder, progress)?;
                warned(&run, &run.findings)
            })
        }
        "refit" => Box::new(|upgrade, _, progress| {
            let answer = upgrade.refit(progress)?;
            warned(&answer, &answer.findings())
        }),
        "status" => {
            let failures = options.or("failures", LISTED)?;
            Box::new(move |upgrade, _, _| plain(&upgrade.status(failures)?))
        }
        "pause" => request(Request::Pause),
        "stop" => request(Request::Stop),
        "resume" => {
            let (retry_failed, re_embed) = (flag("retry_failed")?, flag("re_embed")?);
            Box::new(move |upgrade, _, progress| plain(&upgrade.resume(retry_failed, re_embed, progress)?))
        }
        "rollback" => Box::new(|upgrade, _, _| plain(&upgrade.rollback()?)),
        "finish" => finish_work(options)?,
        _ => return Err(raised(options.0.py(), &Error::option("verb", name, "one of `rehang.Upgrade`'s"))),
    })
}

/// Reads the options of all steps together.
fn auto_work(options: &Options<'_, '_>) -> PyResult<Work> {
    let auto_options =
        filled!(options, { pairs, method, within, fused, switch_if, order_for } over AutoOptions::default());
    let way = match (options.or("plain", false)?, options.or("mapped", false)?) {
        (false, false) => None,
        (true, false) => Some(Way::Plain),
        (false, true) => Some(Way::Mapped),
        (true, true) => {
            let expected = "left out beside `mapped`";
            return Err(raised(options.0.py(), &Error::option("plain", true, expected)));
        }
    };
    let auto_options = AutoOptions { go: options.or("yes", false)?, way, ..auto_options };
    let (queries, clicks) = query_paths(options)?;
    Ok(Box::new(move |upgrade, encoder, progress| {
        let (mut steps, mut findings) = (Vec::new(), Vec::new());
        let (queries, clicks) = (queries.as_deref(), clicks.as_deref());
        let files = PairsFiles { folder: None, queries, clicks };
        let halt = upgrade.auto(&auto_options, &files, encoder, progress, |taken| {
            let (step, result) = taken.result()?;
            steps.push(json!({ "step": step, "result": result }));
            findings.extend_from_slice(match *taken {
                StepResult::Pairs(drawn) => &drawn.findings,
                StepResult::Run(run) => &run.findings,
                _ => &[],
            });
            Ok(())
        })?;
        warned(&json!({ "steps": steps, "halt": halt }), &findings)
    }))
}

/// Reads the options of drawing pairs.
fn pairs_work(options: &Options<'_, '_>) -> PyResult<Work> {
    let pairs_options = options.or("pairs", PairsOptions::default())?;
    let folder = options.or::<Option<PathBuf>>("folder", None)?;
    let (queries, clicks) = query_paths(options)?;
    Ok(Box::new(move |upgrade, encoder, progress| {
        let (folder, queries, clicks) = (folder.as_deref(), queries.as_deref(), clicks.as_deref());
        let files = PairsFiles { folder, queries, clicks };
        let drawn = upgrade.pairs(&pairs_options, &files, encoder, progress)?;
        warned(&drawn, &drawn.findings)
    }))
}

/// Reads the paths of what people asked and of what they clicked.
fn query_paths(options: &Options<'_, '_>) -> PyResult<(Option<PathBuf>, Option<PathBuf>)> {
    Ok((options.or("queries", None)?, options.or("clicks", None)?))
}

/// Reads the options of a fit.
fn fit_work(options: &Options<'_, '_>) -> PyResult<Work> {
    let (method, within) = (options.or("method", Method::default())?, options.or("within", None)?);
    let out = options.or::<Option<PathBuf>>("out", None)?;
    Ok(Box::new(move |upgrade, _, progress| {
        let mut answer = upgrade.fit(method, within, progress)?;
        out.as_deref().map_or(Ok(()), |out| answer.write(out))?;
        let findings = said(answer.fitted.findings.iter().chain(&answer.findings));
        Ok((answer.to_json(), findings))
    }))
}

/// Reads the options of finding out which model made which vectors.
fn identify_work(options: &Options<'_, '_>) -> PyResult<Work> {
    let identify_options = filled!(options, { space, items, output } over IdentifyOptions::default());
    Ok(Box::new(move |upgrade, _, progress| {
        let identified = upgrade.identify(&identify_options, progress)?;
        warned(&identified, &identified.found.findings)
    }))
}

/// Reads the options of a start.
fn start_work(options: &Options<'_, '_>) -> PyResult<Work> {
    let is_plain = options.or("plain", false)?;
    Ok(Box::new(move |upgrade, _, progress| {
        let started = if is_plain { upgrade.start_plain(progress)? } else { upgrade.start(progress)? };
        warned(&started, &started.findings)
    }))
}

/// Reads the options of a finish.
fn finish_work(options: &Options<'_, '_>) -> PyResult<Work> {
    let anyway = options.or("anyway", false)?;
    Ok(Box::new(move |upgrade, _, progress| {
        let mut before = upgrade.before_finish()?;
        before.retain(|finding| finding.severity > Severity::Note);
        warned(&upgrade.finish(anyway, progress)?, &before)
    }))
}

/// A result of which nothing was found.
fn plain(result: &impl serde::Serialize) -> Result<(Value, Findings)> {
    warned(result, &[])
}

/// A result with what a person should know beside it.
fn warned(result: &impl serde::Serialize, findings: &[Finding]) -> Result<(Value, Findings)> {
    let value = serde_json::to_value(result).map_err(|error| Error::corrupt("the result", error))?;
    Ok((value, said(findings)))
}
