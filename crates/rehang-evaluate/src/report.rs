//! Studies adapters and orders on a gallery whose new vectors are known, from files.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::study::{
    StudyAdapter, StudyGallery, StudyInput, StudyOptions, StudyQueries, overlap_warning, study,
};
use crate::whole::{rows_in, rows_without_copies};
use rehang_core::adapter::{RowOverlap, lookalikes, overlap, unlike_pairs};
use rehang_core::copies::{self, without_copies};
use rehang_core::curve::{Qrels, Relevance};
use rehang_core::finding::{Finding, FindingCode, Severity};
use rehang_core::order::Policy;
use rehang_core::report::{InputRecord, Precision, Report};
use rehang_core::{Adapter, Bridge, Error, Labels, Matrix, Progress, Result, Vectors};
use rehang_files::adapter_file::AdapterSource;
use rehang_files::{
    HeadFiles, InputReader, Join, JoinFiles, RowSelection, VectorSource, expect_same_items, joined_names,
};

use crate::answers::{AnswerFiles, Answers};
use crate::guards::{adapter_findings, among_pairs};

/// Files that a report is made from, and settings of what it compares.
///
/// | Field | Default | Range |
/// |---|---|---|
/// | `orders` | coverage, sigma, random, oracle | at least one |
/// | `random_orders` | 3 | 1 or more |
/// | `seed` | 0 | |
/// | `bootstrap` | 1000 samples | 0 for no bands and intervals |
/// | `widths` | none | 1 to `d_new` each |
/// | `precisions` | none | `f32`, `f16`, `i8` |
#[derive(Debug, Clone)]
pub struct ReportFiles {
    /// Adapters to compare.
    pub adapters: Vec<AdapterSource>,
    /// Old vectors of a gallery that no adapter was fitted on, one file below the other. Where its items ask
    /// for each other, those whose vectors by both models are the same are [copies](rehang_core::copies), and
    /// the first of them alone is measured.
    pub old: Vec<VectorSource>,
    /// New vectors of the same gallery.
    pub new: Vec<VectorSource>,
    /// Join of old and new vectors, by ids or by position.
    pub join: JoinFiles,
    /// Side information of the gallery.
    pub side: Vec<VectorSource>,
    /// Old vectors of the pairs, by which gallery items among the pairs are counted exactly. An adapter's own
    /// sketch gives only an estimate.
    pub pairs_old: Vec<VectorSource>,
    /// Rows of `pairs_old` that are the pairs.
    pub pairs_rows: Option<RowSelection>,
    /// Whether to go on although vectors of the new space's width do not look like those that an adapter was
    /// fitted on.
    pub force: bool,
    /// Rows of the gallery that take part.
    pub rows: Option<RowSelection>,
    /// Right answers, queries and groups.
    pub answers: AnswerFiles,
    /// Old vectors of the whole gallery that `old` is a random sample of, one file below the other. The
    /// report is then a forecast of that gallery. Items of `old` are found in it by their vectors. Copies are
    /// left out of it too: in the rest, whose new vectors nobody knows, equal old vectors, where most items
    /// of `old` that have one in common have the new one in common too.
    pub gallery: Vec<VectorSource>,
    /// Number of items of the whole gallery, where `gallery` is a random part of it.
    pub gallery_items: Option<usize>,
    /// Class labels of the whole gallery; they give the labels of `old` too.
    pub gallery_labels: Vec<VectorSource>,
    /// Ids of the whole gallery's items, for judgements.
    pub gallery_ids: Vec<VectorSource>,
    /// Judgements of the `queries` by the rows of `gallery`, held in memory by the caller in place of
    /// `qrels`.
    pub judged: Option<GalleryJudgements>,
    /// A bridge between the same spaces that was not fitted on the items of `old`. What it brings stands
    /// beside doing nothing.
    pub bridge: Option<Bridge>,
    /// The new model's classifier head.
    pub head: HeadFiles,
    /// Orders to compare; the first that is not the oracle carries the verdict.
    pub orders: Vec<Policy>,
    /// Number of random orders that the random line is averaged over.
    pub random_orders: u64,
    /// Seed of everything random.
    pub seed: u64,
    /// Number of bootstrap samples of the queries.
    pub bootstrap: usize,
    /// Widths that the new vectors are cut to, to say what each width costs.
    pub widths: Vec<usize>,
    /// Precisions that the new vectors are rounded to, to say what each precision costs.
    pub precisions: Vec<Precision>,
    /// Title of the report.
    pub title: String,
    /// Command line, or another description, that the report names as its maker.
    pub command: String,
    /// Files that the caller will write: none of them may be an input.
    pub output: Vec<PathBuf>,
}

impl ReportFiles {
    /// Returns the input of a report on adapters and a gallery, without right answers yet.
    pub fn new(adapters: Vec<AdapterSource>, old: VectorSource, new: VectorSource) -> Self {
        let StudyOptions { policies, random_orders, bootstrap, seed, .. } = StudyOptions::default();
        Self {
            adapters,
            old: vec![old],
            new: vec![new],
            join: JoinFiles::default(),
            side: Vec::new(),
            pairs_old: Vec::new(),
            pairs_rows: None,
            force: false,
            rows: None,
            answers: AnswerFiles::default(),
            gallery: Vec::new(),
            gallery_items: None,
            gallery_labels: Vec::new(),
            gallery_ids: Vec::new(),
            judged: None,
            bridge: None,
            head: HeadFiles::default(),
            orders: policies,
            random_orders,
            seed,
            bootstrap,
            widths: Vec::new(),
            precisions: Vec::new(),
            title: "What would the new model buy?".into(),
            command: String::new(),
            output: Vec::new(),
        }
    }
}

/// Judgements of a whole gallery, held in memory.
#[derive(Debug, Clone, PartialEq)]
pub struct GalleryJudgements {
    /// One list of judged rows of the gallery for every query.
    pub judged: Qrels,
    /// Fingerprint of the judgements, for the record of the report.
    pub fingerprint: String,
}

/// A report, and what the reader should know of the inputs beside the warnings in it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Reported {
    /// Report as data.
    pub report: Report,
    /// Findings from reading the files.
    pub findings: Vec<Finding>,
}

/// Compares adapters and orders on a gallery. Nothing is written.
///
/// # Errors
///
/// Errors of a file, or between two files, name them. [`InvalidOption`](rehang_core::ErrorKind::InvalidOption) for
/// an output that is an input. Others as [`study`] and [`unlike_pairs`].
pub fn report(files: &ReportFiles, progress: &Progress) -> Result<Reported> {
    let mut inputs = InputReader::new(files.rows.as_ref())?;
    let adapters: Vec<Arc<Adapter>> =
        files.adapters.iter().map(|source| inputs.adapter(source)).collect::<Result<_>>()?;
    let first = adapters.first().ok_or_else(|| Error::missing("`adapters`", "a report"))?;
    let items = ItemVectors::read(files, &adapters, &mut inputs)?;
    let measured_rows = items.measured(files);
    let measured_items = measured_rows.as_ref().map(|rows| items.select(rows));
    let measured = measured_items.as_ref().unwrap_or(&items);
    let mut answers = Answers::read(&files.answers, &mut inputs, &measured.join, measured.new.len(), None)?;
    let whole_gallery = files.whole(first, items.old.matrix(), measured_rows.as_deref(), &mut inputs)?;
    // Old queries have an effect without labels too: agreement has a do-nothing line.
    let queries_old = answers.queries_old.take();
    let relevance = relevance(&answers, whole_gallery.as_ref(), &mut inputs);
    if let Some(whole_gallery) = whole_gallery
        .as_ref()
        .filter(|whole_gallery| relevance.is_some() && whole_gallery.sample_judged.is_none())
    {
        whole_gallery.expect_relevance(files)?;
    }
    let head = inputs.head(&files.head)?;
    let outputs: Vec<_> = files.output.iter().map(|path| ("output", Some(path))).collect();
    inputs.expect_apart(&outputs)?;
    if let Some(GalleryJudgements { judged, fingerprint }) = &files.judged {
        inputs.note("clicks", "clicks", judged.len(), None, fingerprint.clone());
    }
    inputs.note_all();
    let ground = StudyInput {
        old: &measured.old,
        new: &measured.new,
        side: measured.side.as_ref(),
        queries: answers
            .queries
            .as_ref()
            .map(|queries| StudyQueries { new: queries, old: queries_old.as_ref() }),
        relevance,
        labels_are_names: head.is_some()
            && (answers.labels_are_names
                || whole_gallery
                    .as_ref()
                    .is_some_and(|whole_gallery| whole_gallery.answers.labels_are_names)),
        groups: answers.groups.as_deref(),
        head: head.as_ref(),
        gallery: whole_gallery.as_ref().map(|whole_gallery| whole_gallery.study_gallery(files)),
    };
    let methods: Vec<&str> = adapters.iter().map(|adapter| adapter.training.method.as_str()).collect();
    let contenders: Vec<StudyAdapter<'_>> = names(&methods, &files.adapters)
        .into_iter()
        .zip(&adapters)
        .map(|(name, adapter)| StudyAdapter { name, adapter })
        .collect();
    let mut report = study(&ground, &contenders, &files.study_options(), progress)?;
    report.title.clone_from(&files.title);
    report.created_by.version = env!("CARGO_PKG_VERSION").into();
    report.created_by.command.clone_from(&files.command);
    report.created_by.seeds = vec![files.seed];
    for name in report.groups.iter_mut().flat_map(|groups| &mut groups.names) {
        if let Some(own_name) = name.parse().ok().and_then(|group| answers.group_name(group)) {
            own_name.clone_into(name);
        }
    }
    note_adapters(files, &adapters, &mut inputs)?;
    add_overlap(&mut report, files, &adapters, (items.old.matrix(), measured.old.matrix()), &mut inputs)?;
    measured.add_warnings(&mut report, &contenders)?;
    let copies = items.new.len() - measured.new.len();
    report.warnings.extend(copies::finding(copies, items.new.len(), "items"));
    report.inputs = inputs.read;
    Ok(Reported { report, findings: inputs.findings })
}

/// Vectors of items by both models, as they were read.
struct ItemVectors {
    join: Join,
    old: Vectors,
    new: Vectors,
    side: Option<Matrix>,
    /// Difference of the old vectors from the pairs of each adapter, in words; `None` where there is none.
    unlike: Vec<Option<String>>,
}

impl ItemVectors {
    /// Reads old vectors, new vectors and side information, and joins them.
    fn read(files: &ReportFiles, adapters: &[Arc<Adapter>], inputs: &mut InputReader) -> Result<Self> {
        let old = inputs.matrix("old", &files.old)?;
        let new = inputs.matrix("new", &files.new)?;
        let join = inputs.join(&files.join, old.rows(), new.rows())?;
        let by_position = if files.join.is_by_position() { files.new.as_slice() } else { &[] };
        expect_same_items(&[&files.old, by_position, &files.side])?;
        let (old, new) = (join.old_side("old vectors", old)?, join.new_side(new));
        let old_name = joined_names(&files.old);
        // The adapters say which spaces these files are of; the study refuses an adapter of other spaces.
        let mut unlike = Vec::new();
        for adapter in adapters {
            adapter.expect_input_width(old.columns()).map_err(|error| error.context(old_name.clone()))?;
            unlike.push(unlike_pairs(adapter, &old, &old_name, files.force)?);
        }
        let old = Vectors::new(adapters[0].old.clone(), old, &old_name)?;
        let new = Vectors::new(adapters[0].new.clone(), new, &joined_names(&files.new))?;
        let mut side = None;
        if !files.side.is_empty() {
            side = Some(join.old_side("side information", inputs.matrix("side", &files.side)?)?);
        }
        Ok(Self { join, old, new, side, unlike })
    }

    /// Lists the items that are measured, ascending. `None` where all are: none is a copy, queries of their
    /// own ask, or the study will refuse vectors that are not as many by one model as by the other.
    fn measured(&self, files: &ReportFiles) -> Option<Vec<usize>> {
        let items_ask = files.answers.queries.is_none() && files.judged.is_none();
        let rows = (items_ask && self.old.len() == self.new.len())
            .then(|| without_copies(self.old.matrix(), self.new.matrix(), &[]));
        rows.filter(|rows| rows.len() < self.new.len())
    }

    /// Selects some of the items, by their place.
    fn select(&self, items: &[usize]) -> Self {
        Self {
            join: self.join.select(items, self.new.len()),
            old: self.old.select(items),
            new: self.new.select(items),
            side: self.side.as_ref().map(|side| side.select(items)),
            unlike: self.unlike.clone(),
        }
    }

    /// Adds the warnings about adapters that do not go with these vectors.
    fn add_warnings(&self, report: &mut Report, contenders: &[StudyAdapter<'_>]) -> Result<()> {
        let (old, new, side) = (self.old.matrix(), self.new.matrix(), self.side.as_ref());
        for contender in contenders {
            for finding in adapter_findings(contender.adapter, old, new, side)? {
                report.warnings.insert(0, direction_warning(&contender.name, &finding));
            }
        }
        for (contender, difference) in contenders.iter().zip(&self.unlike) {
            let Some(difference) = difference else { continue };
            let observation = format!("{}: {difference}.", contender.name);
            let warning = Finding::new(Severity::Problem, FindingCode::Drift, observation)
                .may_mean(
                    "The gallery is of another model than the pairs, or of quite other items: errors are larger, and σ² may not \
                     show it.",
                )
                .remedy("Check which model made the file; fit on pairs that are drawn from this gallery.");
            report.warnings.insert(0, warning);
        }
        Ok(())
    }
}

/// Returns what makes an item a right answer: the whole gallery's judgements that the caller holds, then the
/// sample's own answers, then the whole gallery's labels. `None` where nothing does.
fn relevance<'a>(
    answers: &'a Answers,
    whole: Option<&'a WholeFiles>,
    inputs: &mut InputReader,
) -> Option<Relevance<'a>> {
    if let Some(judged) = whole.and_then(|whole| whole.sample_judged.as_ref()) {
        return Some(Relevance::Judgements(judged));
    }
    if let Some(whole) = whole
        && let Some(labels) = &whole.sample_labels
        && answers.relevance().is_none()
    {
        return Some(Relevance::Labels { gallery: labels, queries: whole.answers.query_labels() });
    }
    answers.warn_idle(inputs, &[]);
    answers.relevance()
}

/// Files of a whole gallery, as they were read, with the sample's place in it. Copies are left out of both
/// where items ask for each other.
struct WholeFiles {
    old: Vectors,
    /// Row in the gallery of every item of the sample.
    rows: Vec<usize>,
    answers: Answers,
    /// Class labels of the sample, where the gallery has labels.
    sample_labels: Option<Labels>,
    /// The caller's judgements of items of the sample.
    sample_judged: Option<Qrels>,
}

impl WholeFiles {
    /// Returns the gallery that the items of the study are a sample of.
    fn study_gallery<'a>(&'a self, files: &'a ReportFiles) -> StudyGallery<'a> {
        let judged = files.judged.as_ref().map(|of| Relevance::Judgements(&of.judged));
        StudyGallery {
            old: &self.old,
            items: files.gallery_items.unwrap_or(self.old.len()),
            rows: &self.rows,
            relevance: judged.or_else(|| self.answers.relevance()),
            bridge: files.bridge.as_ref(),
        }
    }

    /// Fails where the sample has right answers and the gallery has none.
    fn expect_relevance(&self, files: &ReportFiles) -> Result<()> {
        let (needed, beside) = if files.answers.qrels.is_some() {
            ("`gallery_ids`", "`qrels`")
        } else {
            ("`gallery_labels`", "`labels`")
        };
        self.answers
            .relevance()
            .map_or_else(|| Err(Error::missing(needed, format!("`gallery` with {beside}"))), |_| Ok(()))
    }
}

/// Picks a gallery's judgements of the items of a sample, which stand in `rows` of it.
fn judged_in_sample(judged: &Qrels, rows: &[usize]) -> Result<Qrels> {
    let places: HashMap<usize, usize> = rows.iter().enumerate().map(|(place, &row)| (row, place)).collect();
    let of_query = |query: usize| {
        let judgements = judged.query(query).iter();
        judgements.filter_map(|(row, gain)| Some((*places.get(row)?, *gain))).collect()
    };
    Qrels::new((0..judged.len()).map(of_query).collect())
}

impl ReportFiles {
    /// Returns the settings of the study behind the report.
    fn study_options(&self) -> StudyOptions {
        StudyOptions {
            policies: self.orders.clone(),
            random_orders: self.random_orders,
            bootstrap: self.bootstrap,
            k: self.answers.k,
            seed: self.seed,
            widths: self.widths.clone(),
            precisions: self.precisions.clone(),
        }
    }

    /// Reads the whole gallery, where one is given, and finds the sample `old` in it. Where only some of the
    /// sample's items are `measured`, the others are copies, and the gallery goes without its copies too.
    fn whole(
        &self,
        adapter: &Adapter,
        old: &Matrix,
        measured: Option<&[usize]>,
        inputs: &mut InputReader,
    ) -> Result<Option<WholeFiles>> {
        if self.gallery.is_empty() {
            let gallery_parameters =
                [("gallery_labels", &self.gallery_labels), ("gallery_ids", &self.gallery_ids)];
            return match gallery_parameters.into_iter().find(|(_, files)| !files.is_empty()) {
                Some((name, _)) => Err(Error::missing("`gallery`", format!("`{name}`"))),
                None => Ok(None),
            };
        }
        // A selection of rows picks from the sample alone.
        let mut read = InputReader::new(None)?;
        let path = joined_names(&self.gallery);
        let mut gallery = read.matrix("gallery", &self.gallery)?;
        adapter.expect_input_width(gallery.columns()).map_err(|error| error.context(path.clone()))?;
        let mut rows = rows_in(&gallery, old, &path)?;
        let mut join = Join::default();
        if let Some(measured) = measured {
            let searched = rows_without_copies(&gallery, old, &rows, measured);
            let place = |&item: &usize| searched.partition_point(|&row| row < rows[item]);
            rows = measured.iter().map(place).collect();
            join = join.select(&searched, gallery.rows());
            gallery = gallery.select(&searched);
        }
        let qrels = self.answers.qrels.clone().filter(|_| !self.gallery_ids.is_empty());
        let answers = AnswerFiles {
            labels: self.gallery_labels.clone(),
            ids: self.gallery_ids.clone(),
            query_ids: self.answers.query_ids.clone().filter(|_| qrels.is_some()),
            qrels,
            groups: Vec::new(),
            ..self.answers.clone()
        };
        let answers = Answers::read(&answers, &mut read, &join, gallery.rows(), None)?;
        read.expect_apart(&self.output.iter().map(|path| ("output", Some(path))).collect::<Vec<_>>())?;
        read.note_all();
        inputs.findings.append(&mut read.findings);
        for mut record in read.read {
            if !inputs.read.iter().any(|noted| noted.fingerprint == record.fingerprint) {
                if record.role != "gallery" {
                    record.role = format!("gallery: {}", record.role);
                }
                inputs.read.push(record);
            }
        }
        let old = Vectors::new(adapter.old.clone(), gallery, &path)?;
        let in_sample = |labels: &Labels| -> Labels { rows.iter().map(|&row| labels[row]).collect() };
        let sample_labels = answers.labels().map(in_sample);
        let sample_judged = self.judged.as_ref().map(|of| judged_in_sample(&of.judged, &rows)).transpose()?;
        Ok(Some(WholeFiles { old, rows, answers, sample_labels, sample_judged }))
    }
}

/// Adds the adapters to the record of what was read, and the pairs that each remembers.
fn note_adapters(files: &ReportFiles, adapters: &[Arc<Adapter>], inputs: &mut InputReader) -> Result<()> {
    for (adapter, source) in adapters.iter().zip(&files.adapters) {
        inputs.note_adapter(source, adapter)?;
        for (role, fingerprint) in &adapter.training.inputs {
            let role = InputRecord::role_of_pairs(source, role);
            inputs.note(&role, "(kept in the adapter)", adapter.training.pairs, None, fingerprint.clone());
        }
    }
    Ok(())
}

/// Says in a report how many of the measured items are among the pairs, where that can be told: by their old
/// vectors, or since `all` of the gallery are the pairs.
fn add_overlap(
    report: &mut Report,
    files: &ReportFiles,
    adapters: &[Arc<Adapter>],
    (all, old): (&Matrix, &Matrix),
    inputs: &mut InputReader,
) -> Result<()> {
    let Some((overlapping, is_exact)) = overlap_with_pairs(files, adapters, (all, old), inputs)? else {
        return Ok(());
    };
    if let Some(set) = report.measured_on.first_mut() {
        set.overlapping_items = Some(overlapping);
        set.overlap_is_estimated = !is_exact;
    }
    if overlapping > 0 {
        let warning = overlap_warning(overlapping, old.rows(), is_exact, lookalikes(old));
        report.warnings.insert(0, warning);
    }
    Ok(())
}

/// Counts items of the gallery that are among the pairs, and says whether that number is exact; `None` where
/// it cannot be told. Files that are read for it are added to the record of `inputs`.
fn overlap_with_pairs(
    files: &ReportFiles,
    adapters: &[Arc<Adapter>],
    (all, old): (&Matrix, &Matrix),
    inputs: &mut InputReader,
) -> Result<Option<(usize, bool)>> {
    let fingerprint = all.fingerprint();
    let same = |adapter: &Arc<Adapter>| adapter.training.inputs.get("old") == Some(&fingerprint);
    if adapters.iter().any(same) {
        return Ok(Some((old.rows(), true)));
    }
    if !files.pairs_old.is_empty() {
        let mut read = InputReader::new(files.pairs_rows.as_ref())?;
        let pairs = read.matrix("pairs", &files.pairs_old)?;
        let context = |error: Error| error.context(joined_names(&files.pairs_old));
        adapters[0].expect_input_width(pairs.columns()).map_err(context)?;
        inputs.read.append(&mut read.read);
        return Ok(Some((overlap(&pairs, old), true)));
    }
    let counted = adapters.iter().filter_map(|adapter| among_pairs(adapter, old));
    let most = counted.max_by_key(RowOverlap::among_pairs);
    Ok(most.map(|overlap| (overlap.among_pairs(), overlap.is_exact())))
}

/// Turns a guard's finding about an adapter into a warning of the report.
fn direction_warning(name: &str, finding: &Finding) -> Finding {
    Finding::new(finding.severity, finding.code.clone(), format!("{name}: {finding}"))
        .may_mean("Curves of this adapter say nothing about the upgrade.")
        .remedy("Check which model made which file, and that rows go together; then fit again.")
}

/// Names the adapters. One in memory is called as the caller calls it. One from a file is called by its
/// method, and where methods repeat, by as much of the path as tells their files apart.
fn names(methods: &[&str], sources: &[AdapterSource]) -> Vec<String> {
    let paths: Vec<Option<&Path>> = sources.iter().map(AdapterSource::file).collect();
    let parts_max = paths.iter().flatten().map(|path| path.components().count()).max().unwrap_or(0);
    let name = |place: usize| {
        let method = methods[place];
        let Some(path) = paths[place] else { return sources[place].to_string() };
        let other_paths: Vec<&Path> = (0..paths.len())
            .filter(|&other| other != place && methods[other] == method)
            .filter_map(|other| paths[other])
            .collect();
        if other_paths.is_empty() {
            return method.to_owned();
        }
        let apart = (1..=parts_max).find_map(|parts| {
            let own_end = end_of(path, parts);
            other_paths.iter().all(|other| end_of(other, parts) != own_end).then_some(own_end)
        });
        match apart {
            Some(own_end) => format!("{method} ({own_end})"),
            // One file was given twice.
            None => format!("{method} ({}, {})", end_of(path, 1), place + 1),
        }
    };
    (0..paths.len()).map(name).collect()
}

/// Returns the last `parts` parts of a path, without the extension.
fn end_of(path: &Path, parts: usize) -> String {
    let stem = path.with_extension("");
    let all: Vec<_> = stem.components().map(|part| part.as_os_str().to_string_lossy()).collect();
    all[all.len().saturating_sub(parts)..].join("/")
}

#[cfg(test)]
mod tests {
    use super::{AdapterSource, names};

    #[test]
    fn adapters_of_one_method_have_different_names() {
        for (adapters, named) in [
            (vec![("ridge", "a.safetensors"), ("fct", "a.safetensors")], vec!["ridge", "fct"]),
            (
                vec![
                    ("ridge", "s0/x.safetensors"),
                    ("ridge", "s1/x.safetensors"),
                    ("ridge", "y.safetensors"),
                ],
                vec!["ridge (s0/x)", "ridge (s1/x)", "ridge (y)"],
            ),
            (
                vec![("ridge", "x.safetensors"), ("ridge", "s0/x.safetensors")],
                vec!["ridge (x)", "ridge (s0/x)"],
            ),
            (
                vec![("ridge", "s0/x.safetensors"), ("ridge", "s0/x.safetensors")],
                vec!["ridge (x, 1)", "ridge (x, 2)"],
            ),
        ] {
            let methods: Vec<&str> = adapters.iter().map(|&(method, _)| method).collect();
            let paths: Vec<AdapterSource> = adapters.iter().map(|&(_, path)| path.into()).collect();
            assert_eq!(names(&methods, &paths), named);
        }
    }
}
