//! Fits from files: reads pairs, labels, queries and a head, and writes the adapter.

use std::path::{Path, PathBuf};

use rehang_core::adapter::{Adapter, apply};
use rehang_core::check::{expect_count, expect_width};
use rehang_core::curve::Qrels;
use rehang_core::finding::{Finding, FindingCode, with_messages};
use rehang_core::report::Precision;
use rehang_core::{Distance, Error, Head, Pairs, Progress, Result, Vectors, squared_distance};
use rehang_files::adapter_file::{halved, save, to_bytes};
use rehang_files::{
    AtomicFile, HeadFiles, InputReader, Join, JoinFiles, Names, RowSelection, VectorSource,
    expect_same_items, joined_names,
};
use serde_json::{Value, json};

use crate::{
    FitParameters, FitQueries, Fitted, LossParts, Method, NetworkOptions, UncertaintySource, fit_adapter,
    guards,
};

/// Largest number of pairs that the rounding to halves is judged on.
const ROUNDED: usize = 1_000;
/// Percent of the expected squared error above which a move by halves is a warning.
const MOVED_MAX: f64 = 1.0;

/// Files of the pairs, the spaces that they are of, how the adapter is fitted, and where it goes.
///
/// | Field | Default |
/// |---|---|
/// | `old_model`, `new_model` | `old`, `new` |
/// | `distance` | L2 |
/// | `old_distance` | as `distance` |
/// | `precision` | `f32` |
#[derive(Debug, Clone)]
pub struct FitFiles {
    /// Old vectors of the pairs, one file below the other.
    pub old: Vec<VectorSource>,
    /// New vectors of the same items.
    pub new: Vec<VectorSource>,
    /// Class labels, whole numbers or names; negative means unknown.
    pub labels: Vec<VectorSource>,
    /// Side information, one row an item.
    pub side: Vec<VectorSource>,
    /// Join of old and new vectors, by ids or by position.
    pub join: JoinFiles,
    /// Rows that are the pairs.
    pub rows: Option<RowSelection>,
    /// The old model's vectors of queries as people ask them. Maps are compared by these queries; they need
    /// `queries_new`.
    pub queries_old: Option<VectorSource>,
    /// The new model's vectors of the same queries.
    pub queries_new: Option<VectorSource>,
    /// Judgements of which items are right for which query: query id, item id, gain (BEIR or TREC). They need
    /// queries, `ids` and `query_ids`.
    pub qrels: Option<PathBuf>,
    /// Ids of the old vectors, for `qrels`.
    pub ids: Vec<VectorSource>,
    /// Ids of the queries, for `qrels`.
    pub query_ids: Option<VectorSource>,
    /// Judgements that a caller holds in memory, in place of `qrels`: one list a query, of the pairs by their
    /// place among those that take part.
    pub judged: Option<Qrels>,
    /// The new model's classifier head.
    pub head: HeadFiles,
    /// Name of the old model.
    pub old_model: String,
    /// Name of the new model.
    pub new_model: String,
    /// Distance of the new space.
    pub distance: Distance,
    /// Distance of the old space, where it differs.
    pub old_distance: Option<Distance>,
    /// Parameters of the fit: the method, its seed and what it is compared by.
    pub parameters: FitParameters,
    /// Options by which networks are trained.
    pub options: NetworkOptions,
    /// Old vectors of evaluation items, which must not be among the pairs.
    pub evaluation_old: Option<VectorSource>,
    /// Precision in which the numbers of the adapter's matrices are kept: `f32`, or `f16`, which halves its
    /// file. A finding says what `f16` changes.
    pub precision: Precision,
    /// File for the adapter; without it nothing is written.
    pub output: Option<PathBuf>,
}

impl FitFiles {
    /// Returns the input of a fit by `auto`, without labels; nothing is written.
    pub fn new(old: VectorSource, new: VectorSource) -> Self {
        Self {
            old: vec![old],
            new: vec![new],
            labels: Vec::new(),
            side: Vec::new(),
            join: JoinFiles::default(),
            rows: None,
            queries_old: None,
            queries_new: None,
            qrels: None,
            ids: Vec::new(),
            query_ids: None,
            judged: None,
            head: HeadFiles::default(),
            old_model: "old".into(),
            new_model: "new".into(),
            distance: Distance::L2,
            old_distance: None,
            parameters: FitParameters::default(),
            options: NetworkOptions::default(),
            evaluation_old: None,
            precision: Precision::F32,
            output: None,
        }
    }
}

/// An adapter that was fitted from files, with the findings of the fit.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FitAnswer {
    /// File of the adapter, if it was written.
    pub output: Option<PathBuf>,
    /// Adapter, the comparison of methods, and the findings of the guards.
    pub fitted: Fitted,
    /// Findings about the inputs that the reader should know.
    pub findings: Vec<Finding>,
}

impl FitAnswer {
    /// Writes the adapter to a file, and notes the file in the answer.
    ///
    /// # Errors
    ///
    /// As [`save`](rehang_files::adapter_file::save).
    pub fn write(&mut self, path: &Path) -> Result<()> {
        rehang_files::adapter_file::save(&self.fitted.adapter, path)?;
        self.output = Some(path.to_owned());
        Ok(())
    }

    /// Returns the answer as one JSON object.
    pub fn to_json(&self) -> Value {
        let (fitted, adapter) = (&self.fitted, &self.fitted.adapter);
        json!({
            "adapter": self.output,
            "method": adapter.training.method,
            "seed": adapter.training.seed,
            "pairs": adapter.training.pairs,
            "old": adapter.old,
            "new": adapter.new,
            "geometry": adapter.geometry.name(),
            "uncertainty": adapter.uncertainty.name(),
            "held_out": fitted.selection,
            "calibration": fitted.sigma,
            "handicap": adapter.handicap,
            "handicap_choice": fitted.handicap,
            "fusion_choice": fitted.fusion,
            "hyper_parameters": adapter.training.hyper_parameters,
            "findings": with_messages(&fitted.findings),
        })
    }
}

/// Fits an adapter on pairs from files, and writes it where an output is named.
///
/// ```
/// use rehang_core::Progress;
/// use rehang_files::VectorSource;
/// use rehang_fit::{FitFiles, FitParameters, Method, fit_files};
///
/// let demo = |name: &str| VectorSource::path(format!("../../demo/{name}"));
/// let answer = fit_files(
///     &FitFiles {
///         rows: Some(format!("{}=0", demo("role.npy")).parse()?),
///         parameters: FitParameters { method: Method::Ridge, ..FitParameters::default() },
///         ..FitFiles::new(demo("old.npy"), demo("new.npy"))
///     },
///     &Progress::default(),
/// )?;
/// assert_eq!((answer.fitted.adapter.training.pairs, answer.to_json()["method"].as_str()), (718, Some("ridge")));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// Errors of a file, or between two files, name them. [`InvalidOption`](rehang_core::ErrorKind::InvalidOption) for
/// parameters that do not go together and for an output that is an input. Others as [`fit_adapter`].
pub fn fit_files(files: &FitFiles, progress: &Progress) -> Result<FitAnswer> {
    let method = files.parameters.method;
    for (parameter, epochs) in [("epochs", files.options.epochs), ("early_stop", files.options.early_stop)] {
        if epochs == Some(0) {
            return Err(Error::option(parameter, 0, "1 or more"));
        }
    }
    expect_classes_of_head(files)?;
    if files.precision == Precision::I8 {
        return Err(Error::option("precision", files.precision, "f32 or f16"));
    }
    // A bad output path fails now and not after the fit.
    files.output.as_ref().map(AtomicFile::create).transpose()?;
    if let Some(folder) = &files.options.checkpoints {
        fs_err::create_dir_all(folder).map_err(|error| Error::io("create", folder, &error))?;
    }

    let mut inputs = InputReader::new(files.rows.as_ref())?;
    warn_of_idle_options(method, &files.options, &mut inputs);
    let old = inputs.matrix("old", &files.old)?;
    let new = inputs.matrix("new", &files.new)?;
    let mut names = Names::default();
    let has_sources = |sources: &[VectorSource]| !sources.is_empty();
    let labels =
        has_sources(&files.labels).then(|| inputs.labels("labels", &files.labels, &mut names)).transpose()?;
    if names.are_names() && files.head.head_weight.is_some() {
        return Err(Error::option(
            "labels",
            joined_names(&files.labels),
            "the numbers of the head's classes beside `head_weight`: names do not say which row of the head a class is; or \
             leave the head out, and one is fitted on the new vectors where a method needs it",
        ));
    }
    let side = has_sources(&files.side).then(|| inputs.matrix("side", &files.side)).transpose()?;
    let join = inputs.join(&files.join, old.rows(), new.rows())?;
    // Labels and side information go with the old vectors.
    let [old_files, new_files, label_files, side_files] =
        [&files.old, &files.new, &files.labels, &files.side].map(|sources| joined_names(sources));
    let labels = labels.map(|labels| join.old_values(&label_files, labels)).transpose()?;
    let side = side.map(|side| join.old_side(&side_files, side)).transpose()?;
    let (old, new) = (join.old_side(&old_files, old)?, join.new_side(new));
    expect_count(&old_files, old.rows(), &new_files, new.rows())?;
    if let Some(labels) = &labels {
        expect_count(&old_files, old.rows(), &label_files, labels.len())?;
        if labels.iter().all(|&label| label < 0) {
            let message = format!(
                "every label in {label_files} is negative, which means unknown: this is a fit without labels."
            );
            inputs.findings.push(Finding::note(FindingCode::UnknownLabels, message));
        }
    }
    if let Some(side) = &side {
        expect_count(&old_files, old.rows(), &side_files, side.rows())?;
    }
    let by_position = if files.join.is_by_position() { files.new.as_slice() } else { &[] };
    expect_same_items(&[&files.old, by_position, &files.side])?;
    let head = inputs.head(&files.head)?;
    let old_distance = files.old_distance.unwrap_or(files.distance);
    let pairs = Pairs::new(
        Vectors::measured(&files.old_model, old_distance, old, &old_files)?,
        Vectors::measured(&files.new_model, files.distance, new, &new_files)?,
        labels,
        side,
    )?;
    let mut parameters = files.parameters.clone();
    if let Some(queries) = read_queries(files, &join, pairs.len(), &mut inputs)? {
        parameters.queries = Some(queries);
    }
    let mut evaluation = None;
    if let Some(source) = &files.evaluation_old {
        let rows = inputs.whole_matrix("evaluation", source)?;
        expect_width(source, pairs.old().dimension(), rows.columns())?;
        evaluation = Some(rows);
    }
    inputs.expect_apart(&[("output", files.output.as_ref())])?;
    let mut fitted = fit_adapter(&pairs, head.as_ref(), &parameters, &files.options, progress)?;
    fitted.findings.extend(evaluation.and_then(|rows| guards::overlap(&pairs, &rows)));
    for input in &inputs.read {
        fitted.adapter.training.inputs.insert(input.role.clone(), input.fingerprint.clone());
    }
    if files.precision == Precision::F16 {
        let halves = halved(&fitted.adapter)?;
        fitted.findings.push(moved_by_halves(&fitted.adapter, &halves, &pairs, progress)?);
        fitted.adapter = halves;
    }
    files.output.as_ref().map_or(Ok(()), |path| save(&fitted.adapter, path))?;
    warn_of_head(head.as_ref(), &pairs, &mut inputs);
    if pairs.side().is_some() && fitted.adapter.side_dimension().is_none() {
        let message = format!("{} does not look at side information.", fitted.adapter.training.method);
        inputs.warn(FindingCode::IdleSide, message);
    }
    if head.is_some() && pairs.labels().is_none() {
        let message = "without `labels` nothing is trained towards the head; it serves orders only.";
        inputs.warn(FindingCode::HeadWithoutLabels, message);
    }
    Ok(FitAnswer { output: files.output.clone(), fitted, findings: inputs.findings })
}

/// Measures what halves do to an adapter: how far they move its outputs for (at most [`ROUNDED`]) pairs,
/// against the error that it expects.
fn moved_by_halves(
    adapter: &Adapter,
    halves: &Adapter,
    pairs: &Pairs,
    progress: &Progress,
) -> Result<Finding> {
    let pairs = pairs.select(&(0..pairs.len().min(ROUNDED)).collect::<Vec<_>>());
    let adapted_by = |adapter| apply(adapter, pairs.old(), pairs.side(), progress);
    let (exact, rounded) = (adapted_by(adapter)?, adapted_by(halves)?);
    let moved: f64 = (0..pairs.len())
        .map(|row| squared_distance(exact.vectors.matrix().row(row), rounded.vectors.matrix().row(row)))
        .sum();
    let expected: f64 = exact.variance.iter().map(|&variance| f64::from(variance)).sum();
    let percent = 100.0 * moved / expected;
    let megabytes = |adapter| Ok::<_, Error>(to_bytes(adapter)?.len() as f64 / 1e6);
    let (before, after) = (megabytes(adapter)?, megabytes(halves)?);
    let message = format!(
        "float16 makes the adapter {after:.1} MB in place of {before:.1}; it moves what the adapter makes by {percent:.2} % of the squared error that \
         σ² expects."
    );
    let finding = if percent > MOVED_MAX {
        Finding::warning(FindingCode::RoundedAdapter, message)
            .may_mean(
                "Large terms of this map cancel each other, and rounding does not spare their difference.",
            )
            .remedy("Keep this adapter in f32.")
    } else {
        Finding::note(FindingCode::RoundedAdapter, message)
    };
    Ok(finding.evidence(&[("percent_of_error", percent)]))
}

/// Reads the queries that maps are compared by, and the judgements of the `items` pairs.
fn read_queries(
    files: &FitFiles,
    join: &Join,
    items: usize,
    inputs: &mut InputReader,
) -> Result<Option<FitQueries>> {
    let (old, new) = match (&files.queries_old, &files.queries_new) {
        (Some(old), Some(new)) => (old, new),
        (Some(_), None) => return Err(Error::missing("`queries_new`", "`queries_old`")),
        (None, Some(_)) => return Err(Error::missing("`queries_old`", "`queries_new`")),
        (None, None) if files.qrels.is_some() || files.judged.is_some() => {
            return Err(Error::missing("`queries_old` and `queries_new`", "`qrels`"));
        }
        (None, None) => return Ok(None),
    };
    let (old, new) = (inputs.whole_matrix("queries_old", old)?, inputs.whole_matrix("queries_new", new)?);
    let qrels = match (&files.qrels, &files.query_ids) {
        (None, _) => files.judged.clone(),
        (Some(path), Some(query_ids)) if !files.ids.is_empty() => {
            let query_rows = (query_ids, Some(new.rows()));
            Some(inputs.judgements(path, (&files.ids, items), query_rows, join)?)
        }
        (Some(_), _) => return Err(Error::missing("`ids` and `query_ids`", "`qrels`")),
    };
    Ok(Some(FitQueries { old, new, qrels }))
}

/// Fails where a FastFill loss learns from the classes of a head, and no labels say which of them a pair is
/// of.
fn expect_classes_of_head(files: &FitFiles) -> Result<()> {
    let is_fastfill = matches!(files.parameters.method, Method::Fastfill | Method::FastfillReference);
    let Some(loss @ (LossParts::Discriminative | LossParts::Both)) = files.options.loss else {
        return Ok(());
    };
    match &files.head.head_weight {
        Some(source) if is_fastfill && files.labels.is_empty() => Err(Error::option(
            "head_weight",
            source,
            format!(
                "`labels` beside it, which `loss` {loss} needs: they say which class of the head a pair is of; or leave the head \
                 out, and groups of similar new vectors stand for classes"
            ),
        )),
        _ => Ok(()),
    }
}

/// Warns of network options that the method does not read; without a word such a typo costs a night.
fn warn_of_idle_options(method: Method, options: &NetworkOptions, inputs: &mut InputReader) {
    let has_networks = method == Method::Auto && options.networks;
    let fastfill = has_networks || matches!(method, Method::Fastfill | Method::FastfillReference);
    let network = has_networks || Method::NETWORKS.contains(&method);
    for (parameter, is_given, is_heard) in [
        ("`epochs`", options.epochs.is_some(), network),
        ("`early_stop`", options.early_stop.is_some(), network),
        ("`seeds`", options.seeds > 1, network),
        ("`checkpoints`", options.checkpoints.is_some(), network),
        ("`loss`", options.loss.is_some(), fastfill),
        ("`squared`", options.squared.is_some(), fastfill || method == Method::Fct),
        ("`label_smoothing`", options.label_smoothing.is_some(), fastfill),
        ("`uncertainty_weights`", options.uncertainty_weights.is_some(), fastfill),
        ("`networks`", options.networks, method == Method::Auto),
        ("`uncertainty` joint", options.uncertainty == Some(UncertaintySource::Joint), fastfill),
    ] {
        if is_given && !is_heard {
            let message = format!("{parameter} has no effect on `method` {method}.");
            inputs.warn(FindingCode::IdleParameter, message);
        }
    }
}

/// Warns of a head that classifies the new vectors badly: it belongs to another model or another numbering of
/// the classes.
fn warn_of_head(head: Option<&Head>, pairs: &Pairs, inputs: &mut InputReader) {
    let (Some(head), Some(labels)) = (head, pairs.labels()) else { return };
    if labels.iter().all(|&label| label < 0) {
        return;
    }
    let unknown = labels.iter().filter(|&&label| label >= head.classes() as i64).count();
    if unknown > 0 {
        let message = format!(
            "{unknown} of {} pairs have a label that the head does not know (it has the classes 0 to {}); nothing trains them \
             towards it.",
            labels.len(),
            head.classes() - 1
        );
        inputs.warn(FindingCode::LabelsUnknownToHead, message);
    }
    let right = guards::classified(head, pairs.new_vectors().matrix(), labels);
    if right < 20.0 {
        let message = format!(
            "the head classifies only {right:.0} % of the new vectors as their labels say; does it belong to this model and \
             this numbering of the classes?"
        );
        inputs.warn(FindingCode::ForeignHead, message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rehang_core::finding::Severity;

    fn fitted(method: Method, precision: Precision, output: Option<PathBuf>) -> Result<FitAnswer> {
        let demo = |name: &str| VectorSource::path(format!("../../demo/{name}"));
        fit_files(
            &FitFiles {
                rows: Some(format!("{}=0", demo("role.npy")).parse()?),
                parameters: FitParameters { method, compare: false, ..FitParameters::default() },
                precision,
                output,
                ..FitFiles::new(demo("old.npy"), demo("new.npy"))
            },
            &Progress::default(),
        )
    }

    #[test]
    fn half_precision_halves_the_file_and_says_what_it_moves() {
        let folder = tempfile::tempdir().unwrap();
        for method in [Method::Ridge, Method::KernelRidge] {
            let [full, half] = [Precision::F32, Precision::F16].map(|precision| {
                let path = folder.path().join(format!("{precision}.safetensors"));
                let answer = fitted(method, precision, Some(path.clone())).unwrap();
                (answer, fs_err::metadata(path).unwrap().len())
            });
            let is_rounding = |finding: &&Finding| finding.code == FindingCode::RoundedAdapter;
            assert!(full.0.fitted.findings.iter().find(is_rounding).is_none());
            let finding = half.0.fitted.findings.iter().find(is_rounding).expect("it is said");
            // Vectors of 32 numbers leave much of the file to parts that are no matrix.
            assert!(half.1 * 100 < full.1 * 66, "{method}: {} and {} bytes", half.1, full.1);
            // The slow twin measures by the two adapters, pair by pair.
            let rows = format!("{}=0", "../../demo/role.npy").parse().unwrap();
            let old = InputReader::new(Some(&rows))
                .unwrap()
                .matrix("old", &[VectorSource::path("../../demo/old.npy")])
                .unwrap();
            let old = Vectors::measured("old", Distance::L2, old, "old").unwrap();
            let adapted_by =
                |answer: &FitAnswer| apply(&answer.fitted.adapter, &old, None, &Progress::default()).unwrap();
            let (exact, rounded) = (adapted_by(&full.0), adapted_by(&half.0));
            let (a, b) = (exact.vectors.matrix().as_slice(), rounded.vectors.matrix().as_slice());
            let moved: f64 = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum();
            let expected: f64 = exact.variance.iter().map(|&of| f64::from(of)).sum();
            let percent = finding.evidence[0].1;
            assert!((percent - 100.0 * moved / expected).abs() < 1e-6 * percent, "{method}: {percent}");
            // Large coefficients of kernel ridge cancel each other.
            let (is_so, severity) = match method {
                Method::Ridge => (percent > 0.0 && percent < 0.1, Severity::Note),
                _ => (percent > MOVED_MAX, Severity::Warning),
            };
            assert!(is_so && finding.severity == severity, "{method}: {percent} {finding}");
        }
    }

    #[test]
    fn an_adapter_is_not_kept_in_bytes() {
        let error = fitted(Method::Ridge, Precision::I8, None).unwrap_err().to_string();
        assert!(error.contains("precision") && error.contains("f32 or f16"), "{error}");
    }
}
