//! The verbs on vectors: each takes a dictionary of options, under the names of the libraries' parameters.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use numpy::{
    IntoPyArray, PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray2, PyReadonlyArrayDyn,
    PyUntypedArrayMethods,
};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use rehang_core::adapter::{InputStatistics, RowSketch};
use rehang_core::finding::Finding;
use rehang_core::order::Policy;
use rehang_core::report::Report;
use rehang_core::{Error, Matrix};
use rehang_evaluate::{CurveFiles, IdentifyFiles, OrderFiles, ReportFiles};
use rehang_files::NamedFile;
use rehang_files::adapter_file::{self, AdapterSource};
use rehang_files::adapter_network::to_network;
use rehang_files::onnx::{Attribute, Numbers, Port};
use rehang_files::tensors::{Metadata, Tensor};
use rehang_files::transform::TransformFiles;
use rehang_fit::FitFiles;
use serde_json::{Value, json};

use crate::call::{Interrupted, call};
use crate::error::raised;
use crate::sources::{FromOptions, Options, filled, source};

/// Findings, each as severity and sentence.
pub type Findings = Vec<(String, String)>;

/// Line of a curve: the metric, its values, and their start, end, minimum and mean.
type Line<'py> = (String, Bound<'py, PyArray1<f64>>, [f64; 4]);

/// Result of a transform: adapted vectors and σ², a summary as JSON, and findings.
type Transformed<'py> = (Bound<'py, PyArray2<f32>>, Bound<'py, PyArray1<f32>>, String, Findings);

/// Result of an identification: its summary as JSON, the rows that are not as most are, and findings.
type Identified = (String, Vec<(usize, String)>, Findings);

/// Network: its constants, its operators, and the names of its inputs and outputs.
type Parts<'py> = (
    Bound<'py, PyDict>,
    Vec<(String, Vec<String>, Vec<String>, Bound<'py, PyDict>)>,
    Vec<String>,
    Vec<String>,
);

/// Gives findings in the form that Python takes them.
pub fn said<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> Findings {
    let severity = |finding: &Finding| format!("{:?}", finding.severity).to_lowercase();
    findings.into_iter().map(|finding| (severity(finding), finding.to_string())).collect()
}

/// Adapter: the map h with its σ².
#[pyclass(name = "Adapter", frozen)]
pub struct PyAdapter(Arc<rehang_core::Adapter>);

#[pymethods]
impl PyAdapter {
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let loaded = py.detach(|| adapter_file::load(path));
        loaded.map(|adapter| Self(Arc::new(adapter))).map_err(|error| raised(py, &error))
    }

    #[staticmethod]
    fn from_bytes(py: Python<'_>, bytes: &[u8]) -> PyResult<Self> {
        let read = adapter_file::from_bytes(bytes, "the adapter's bytes");
        read.map(|adapter| Self(Arc::new(adapter))).map_err(|error| raised(py, &error))
    }

    /// Makes an adapter of what its file would hold, for maps that PyTorch trained; `old` are the old vectors
    /// of its pairs.
    #[staticmethod]
    fn from_parts(
        py: Python<'_>,
        metadata: Metadata,
        parts: Vec<(String, PyReadonlyArrayDyn<'_, f32>)>,
        old: PyReadonlyArray2<'_, f32>,
    ) -> PyResult<Self> {
        let mut tensors = BTreeMap::new();
        for (name, array) in parts {
            let (shape, values) = (array.shape().to_vec(), array.as_slice()?.to_vec());
            let tensor = Tensor { name: name.clone(), shape, values: values.into() };
            tensors.insert(name, tensor);
        }
        let (width, old) = (old.shape()[1], old.as_slice()?.to_vec());
        let adapter = py.detach(|| {
            let mut adapter = adapter_file::from_parts(&metadata, tensors, "the adapter")?;
            let old = Matrix::new(width, old)?;
            old.check_finite("old")?;
            adapter.input_statistics = Some(InputStatistics::from_rows(&old));
            adapter.training.inputs.insert("old".into(), old.fingerprint());
            adapter.training.pairs_sketch = Some(RowSketch::from_rows(&old));
            adapter.check()?;
            Ok(adapter)
        });
        adapter.map(|adapter| Self(Arc::new(adapter))).map_err(|error| raised(py, &error))
    }

    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = py.detach(|| adapter_file::to_bytes(&self.0)).map_err(|error| raised(py, &error))?;
        Ok(PyBytes::new(py, &bytes))
    }

    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| adapter_file::save(&self.0, path)).map_err(|error| raised(py, &error))
    }

    /// Gives the bytes of the adapter's ONNX file.
    fn to_onnx<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let network = py.detach(|| to_network(&self.0)).map_err(|error| raised(py, &error))?;
        Ok(PyBytes::new(py, &network.to_bytes()))
    }

    /// Gives the network of the ONNX file: constants by name, operators as kind, inputs, outputs and
    /// attributes, and the names of inputs and outputs.
    fn network<'py>(&self, py: Python<'py>) -> PyResult<Parts<'py>> {
        let network = py.detach(|| to_network(&self.0)).map_err(|error| raised(py, &error))?;
        let constants = PyDict::new(py);
        for constant in network.constants {
            let numbers = match constant.numbers {
                Numbers::Floats(values) => values.into_pyarray(py).reshape(constant.shape)?.into_any(),
                Numbers::Integers(values) => values.into_pyarray(py).reshape(constant.shape)?.into_any(),
            };
            constants.set_item(constant.name, numbers)?;
        }
        let mut nodes = Vec::with_capacity(network.nodes.len());
        for node in network.nodes {
            let attributes = PyDict::new(py);
            for (name, value) in node.attributes {
                match value {
                    Attribute::Float(value) => attributes.set_item(name, value)?,
                    Attribute::Integer(value) => attributes.set_item(name, value)?,
                    Attribute::Integers(values) => attributes.set_item(name, values)?,
                }
            }
            nodes.push((node.kind, node.inputs, node.outputs, attributes));
        }
        let named = |ports: Vec<Port>| ports.into_iter().map(|port| port.name).collect();
        Ok((constants, nodes, named(network.inputs), named(network.outputs)))
    }

    /// Describes the adapter as JSON: spaces, geometry, uncertainty, handicap and training.
    fn about(&self) -> String {
        let rehang_core::Adapter { old, new, geometry, uncertainty, handicap, training, .. } = &*self.0;
        json!({
            "old": old,
            "new": new,
            "output": self.0.output_space(),
            "geometry": geometry.name(),
            "uncertainty": uncertainty.name(),
            "handicap": handicap,
            "side_dimension": self.0.side_dimension(),
            "training": training,
        })
        .to_string()
    }
}

/// Reads an adapter of Python, or the path of one.
fn adapter_source(name: &str, value: &Bound<'_, PyAny>) -> PyResult<AdapterSource> {
    if let Ok(adapter) = value.cast::<PyAdapter>() {
        return Ok(AdapterSource::Given(name.to_owned(), Arc::clone(&adapter.get().0)));
    }
    Ok(AdapterSource::File(value.extract()?))
}

impl<'py> FromOptions<'py> for AdapterSource {
    fn read(options: &Options<'_, 'py>, name: &str) -> PyResult<Option<Self>> {
        options.object(name)?.map(|value| adapter_source(name, &value)).transpose()
    }
}

#[pyfunction]
pub fn fit(
    py: Python<'_>,
    options: &Bound<'_, PyDict>,
    show: Option<&Bound<'_, PyAny>>,
) -> PyResult<(PyAdapter, String, Findings)> {
    let options = Options(options);
    let files = filled!(options, {
        labels, side, join, rows, queries_old, queries_new, qrels, ids, query_ids, head, old_model, new_model, distance,
        old_distance, parameters, options, evaluation_old, precision
    } over FitFiles::new(options.needed("old", "a fit")?, options.needed("new", "a fit")?));
    let answer =
        call(py, show, Interrupted::Leaves, move |progress| rehang_fit::fit_files(&files, progress))?;
    let findings = said(answer.fitted.findings.iter().chain(&answer.findings));
    let about = answer.to_json().to_string();
    Ok((PyAdapter(Arc::new(answer.fitted.adapter)), about, findings))
}

#[pyfunction]
pub fn transform<'py>(
    py: Python<'py>,
    adapter: &Bound<'py, PyAdapter>,
    options: &Bound<'py, PyDict>,
    show: Option<&Bound<'py, PyAny>>,
) -> PyResult<Transformed<'py>> {
    let options = Options(options);
    let adapter = adapter_source("adapter", adapter.as_any())?;
    let files = filled!(options, { side, force, batch }
        over TransformFiles::new(adapter, options.needed("vectors", "a transform")?));
    let transformed = call(py, show, Interrupted::Leaves, move |progress| {
        rehang_files::transform::transform(&files, progress)
    })?;
    let about = serde_json::to_string(&transformed).unwrap_or_default();
    let findings = said(&transformed.findings);
    let (vectors, sigma2) = transformed.made.unwrap_or_default();
    let shape = [vectors.rows(), vectors.columns()];
    let vectors = vectors.into_data().into_pyarray(py).reshape(shape)?;
    Ok((vectors, sigma2.into_pyarray(py), about, findings))
}

#[pyfunction]
pub fn order<'py>(
    py: Python<'py>,
    policy: &str,
    options: &Bound<'py, PyDict>,
) -> PyResult<(Bound<'py, PyArray1<i64>>, Findings)> {
    let options = Options(options);
    let policy: Policy = policy.parse().map_err(|error: Error| raised(py, &error))?;
    let files =
        filled!(options, { sigma, adapted, new, join, adapter, head, seed } over OrderFiles::new(policy));
    let ordered = call(py, None, Interrupted::Leaves, move |_| rehang_evaluate::order(&files))?;
    let rows: Vec<i64> = ordered.permutation.iter().map(|&row| row as i64).collect();
    Ok((rows.into_pyarray(py), said(&ordered.findings)))
}

#[pyfunction]
pub fn curve<'py>(
    py: Python<'py>,
    options: &Bound<'py, PyDict>,
    show: Option<&Bound<'py, PyAny>>,
) -> PyResult<(String, Vec<Line<'py>>, Findings)> {
    let options = Options(options);
    let needed = |name| options.needed(name, "a curve");
    let files = filled!(options, {
        old, join, rows, adapter, answers, sigma, distance, old_distance, handicap, grid, bootstrap
    } over CurveFiles::new(needed("new")?, needed("adapted")?, needed("order")?));
    let answer =
        call(py, show, Interrupted::Leaves, move |progress| rehang_evaluate::curve(&files, progress))?;
    let lines = answer.curve.lines.iter().map(|(metric, line)| {
        let numbers = [line.start(), line.end(), line.min(), line.area()];
        (metric.id(), PyArray1::from_slice(py, line.values()), numbers)
    });
    Ok((answer.to_json().to_string(), lines.collect(), said(&answer.findings)))
}

/// Report that says what upgrades would buy.
#[pyclass(name = "Report", frozen)]
pub struct PyReport(pub Report);

#[pymethods]
impl PyReport {
    fn json(&self) -> String {
        rehang_report::json(&self.0)
    }

    fn html(&self) -> String {
        rehang_report::html(&self.0)
    }

    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let written = rehang_report::Format::from_path(&path)
            .and_then(|format| rehang_files::AtomicFile::write(&path, format.render(&self.0)));
        written.map_err(|error| raised(py, &error))
    }
}

#[pyfunction]
pub fn identify(
    py: Python<'_>,
    models: Vec<(String, Bound<'_, PyAny>)>,
    options: &Bound<'_, PyDict>,
    show: Option<&Bound<'_, PyAny>>,
) -> PyResult<Identified> {
    let options = Options(options);
    let named = |(name, rows): &(String, Bound<'_, PyAny>)| {
        Ok(NamedFile { name: name.clone(), file: source(name, rows)? })
    };
    let mut files = filled!(options, { new, join, rows, seed, output }
        over IdentifyFiles::new(vec![options.needed("vectors", "this")?]));
    files.models = models.iter().map(named).collect::<PyResult<_>>()?;
    let identified =
        call(py, show, Interrupted::Leaves, move |progress| rehang_evaluate::identify(&files, progress))?;
    let about = to_json(py, &identified)?;
    Ok((about, identified.minority(), said(&identified.findings)))
}

#[pyfunction]
pub fn report(
    py: Python<'_>,
    adapters: Vec<(String, Bound<'_, PyAny>)>,
    options: &Bound<'_, PyDict>,
    show: Option<&Bound<'_, PyAny>>,
) -> PyResult<(PyReport, Findings)> {
    let options = Options(options);
    let adapters =
        adapters.iter().map(|(name, adapter)| adapter_source(name, adapter)).collect::<PyResult<_>>()?;
    let mut files = filled!(options, {
        join, side, pairs_old, force, rows, answers, gallery, gallery_labels, gallery_ids, head, orders, random_orders, seed, bootstrap, widths, precisions, title
    } over ReportFiles::new(adapters, options.needed("old", "a report")?, options.needed("new", "a report")?));
    files.command = "rehang.report(…) of Python".into();
    let reported =
        call(py, show, Interrupted::Leaves, move |progress| rehang_evaluate::report(&files, progress))?;
    let findings = said(reported.findings.iter().chain(&reported.report.warnings));
    Ok((PyReport(reported.report), findings))
}

/// Writes a result of a verb as JSON.
pub fn to_json(py: Python<'_>, result: &impl serde::Serialize) -> PyResult<String> {
    let value: Result<Value, Error> =
        serde_json::to_value(result).map_err(|error| Error::corrupt("the result", error));
    value.map(|value| value.to_string()).map_err(|error| raised(py, &error))
}
