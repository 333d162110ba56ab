//! Face verification and identification by templates, for every pair of models.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::identification::{Identification, IdentificationInput, identification as identify_probes};
use crate::templates::{self, Templates};
use crate::verification::{OperatingPoint, Verification, verification};
use rehang_core::check::expect_count;
use rehang_core::finding::{Finding, FindingCode};
use rehang_core::report::InputRecord;
use rehang_core::{Error, Matrix, Progress, Result};
use rehang_files::lists::{self, FaceList};
use rehang_files::{InputReader, NamedFile, VectorSource};
use serde::Serialize;

use super::models::{Models, Table};

/// Files of face images by several models, and of who they are.
#[derive(Debug, Clone)]
pub struct FaceFiles {
    /// Vectors of the same images by every model, oldest first.
    pub models: Vec<NamedFile>,
    /// Name of the model whose own search is the best to be had with a full backfill.
    pub best: Option<String>,
    /// Face metadata: tables with the columns TEMPLATE_ID, SUBJECT_ID and, if there, MEDIA_ID (or
    /// SIGHTING_ID) and FILENAME.
    pub metadata: Vec<PathBuf>,
    /// File name of every row of the vectors; rows are in the order of the metadata without it.
    pub names: Option<VectorSource>,
}

impl FaceFiles {
    /// Reads the models, the persons on the images, and every model's templates.
    fn read(&self) -> Result<(Models, FaceList, Vec<Templates>)> {
        let read = |source| {
            rehang_files::read_ids(source)?.ok_or_else(|| Error::missing("a column of file names", source))
        };
        let names = self.names.as_ref().map(read).transpose()?;
        let faces = lists::read_faces(&self.metadata, names.as_deref())?;
        let mut models = Models::read("faces", &self.models, self.best.as_ref(), InputReader::default())?;
        let metadata = || self.metadata.iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
        let said = self.names.as_ref().map_or_else(|| metadata().join(", "), ToString::to_string);
        let mut templates = Vec::with_capacity(models.names.len());
        for (name, vectors) in models.names.iter().zip(&models.vectors) {
            expect_count(format_args!("the vectors of {name}"), vectors.rows(), &said, faces.rows)?;
            let of_model = templates::average(vectors, &faces.items, faces.templates.len())?;
            if of_model.zeros > 0 {
                let seen = format!(
                    "{} templates of {name} are zero vectors; they are like no other template.",
                    of_model.zeros
                );
                models.inputs.warn(FindingCode::ZeroTemplates, seen);
            }
            templates.push(of_model);
        }
        Ok((models, faces, templates))
    }
}

/// Answer of a 1:1 verification for every pair of models.
#[derive(Debug, Clone, Serialize)]
pub struct VerificationAnswer {
    /// Names of the models, oldest first.
    pub models: Vec<String>,
    /// Number of templates.
    pub templates: usize,
    /// Number of images that the templates are made of.
    pub images: usize,
    /// Number of pairs that are verified.
    #[serde(skip)]
    pub pairs: usize,
    /// Number of pairs of the same person.
    pub genuine: usize,
    /// Number of pairs of different persons.
    pub impostors: usize,
    /// Results at each false acceptance rate.
    pub rates: Vec<VerificationRate>,
    /// Files that were read.
    pub inputs: Vec<InputRecord>,
    /// Findings that the reader should know.
    #[serde(skip)]
    pub findings: Vec<Finding>,
}

/// True acceptance rates at one false acceptance rate.
#[derive(Debug, Clone, Serialize)]
pub struct VerificationRate {
    /// False acceptance rate.
    pub far: f64,
    /// TAR@FAR, first template by row and second by column; `None` where there are too few impostors for this
    /// rate.
    pub tar: Option<Table>,
    /// Operating points, `[first][second]`; `None` with `tar`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub points: Option<Vec<Vec<OperatingPoint>>>,
}

/// Computes TAR@FAR of a list of template pairs, for every pair of models. `rates` are false acceptance
/// rates, 0 to 1.
///
/// # Errors
///
/// What is wrong with a file, or between two, names them; as [`verification`].
pub fn verify(files: &FaceFiles, pairs: &PathBuf, rates: &[f64]) -> Result<VerificationAnswer> {
    let (models, faces, templates) = files.read()?;
    let pairs = lists::read_pairs(pairs, &faces)?;
    let subjects = &faces.subjects;
    let results: Vec<Vec<Verification>> = models.every_pair(|first, second| {
        let [first, second] = [first, second].map(|model| &templates[model].vectors);
        verification(first, second, subjects, subjects, &pairs, rates)
    })?;
    let rates = rates.iter().enumerate().map(|(place, &far)| {
        if results[0][0].points[place].tar.is_none() {
            return Ok(VerificationRate { far, tar: None, points: None });
        }
        let value =
            |first: usize, second: usize| results[first][second].points[place].tar.unwrap_or(f64::NAN);
        let points = results.iter().map(|row| row.iter().map(|cell| cell.points[place]).collect()).collect();
        Ok(VerificationRate { far, tar: Some(models.table(value)?), points: Some(points) })
    });
    Ok(VerificationAnswer {
        rates: rates.collect::<Result<_>>()?,
        templates: faces.templates.len(),
        images: faces.items.len(),
        pairs: pairs.len(),
        genuine: results[0][0].genuine,
        impostors: results[0][0].impostors,
        models: models.names,
        inputs: models.inputs.read,
        findings: models.inputs.findings,
    })
}

/// Answer of a 1:N search for every pair of models.
#[derive(Debug, Clone, Serialize)]
pub struct IdentificationAnswer {
    /// Names of the models, oldest first.
    pub models: Vec<String>,
    /// Number of templates.
    pub templates: usize,
    /// Number of templates that search.
    pub probes: usize,
    /// Number of candidates that a search returns.
    pub candidates: usize,
    /// Tables `TPIR@FPIR=…` for each rate, `rank-1` and `rank-5`, means over the galleries; `None` where a
    /// rate is undefined.
    pub metrics: BTreeMap<String, Option<Table>>,
    /// Results in each gallery.
    pub galleries: Vec<GalleryResults>,
    /// Files that were read.
    pub inputs: Vec<InputRecord>,
    /// Findings that the reader should know.
    #[serde(skip)]
    pub findings: Vec<Finding>,
}

/// Results in one gallery.
#[derive(Debug, Clone, Serialize)]
pub struct GalleryResults {
    /// Path of the list of enrolled templates.
    pub path: String,
    /// Number of enrolled templates.
    #[serde(skip)]
    pub enrolled: usize,
    /// Results of each pair of models, `[asking][asked]`.
    pub results: Vec<Vec<Identification>>,
}

/// Settings of an identification.
#[derive(Debug, Clone)]
pub struct IdentificationFiles {
    /// Lists of enrolled templates. Each gallery is searched on its own, and the mean counts.
    pub gallery: Vec<PathBuf>,
    /// List of templates that search; those whose subject is not enrolled are the false positives.
    pub probes: PathBuf,
    /// False positive identification rates, 0 to 1.
    pub fpir: Vec<f64>,
    /// Number of candidates that a search returns, 1 or more.
    pub candidates: usize,
}

/// Names TPIR at a false positive identification rate, as in [`IdentificationAnswer::metrics`].
pub fn tpir_name(fpir: f64) -> String {
    format!("TPIR@FPIR={fpir}")
}

/// Computes TPIR@FPIR, rank-1 and rank-5 for every pair of models.
///
/// # Errors
///
/// What is wrong with a file, or between two, names them; [`InvalidOption`](rehang_core::ErrorKind::InvalidOption)
/// for 0 candidates; as [`identification`](crate::identification::identification).
pub fn identify(
    files: &FaceFiles,
    how: &IdentificationFiles,
    progress: &Progress,
) -> Result<IdentificationAnswer> {
    if how.candidates == 0 {
        return Err(Error::option("candidates", 0, "1 or more"));
    }
    let (models, faces, templates) = files.read()?;
    let probes = lists::read_templates(&how.probes, &faces)?;
    let lists =
        how.gallery.iter().map(|path| lists::read_templates(path, &faces)).collect::<Result<Vec<_>>>()?;
    if lists.is_empty() {
        return Err(Error::missing("`gallery`", "an identification"));
    }
    let subjects =
        |places: &[usize]| -> Vec<i64> { places.iter().map(|&place| faces.subjects[place]).collect() };
    let probe_subjects = subjects(&probes);
    let probe_vectors: Vec<Matrix> = templates.iter().map(|model| model.vectors.select(&probes)).collect();
    let mut galleries = Vec::with_capacity(lists.len());
    for (path, gallery) in how.gallery.iter().zip(&lists) {
        let gallery_subjects = subjects(gallery);
        let results = models.every_pair(|asking, asked| {
            let input = IdentificationInput {
                gallery: &templates[asked].vectors.select(gallery),
                gallery_subjects: &gallery_subjects,
                probes: &probe_vectors[asking],
                probe_subjects: &probe_subjects,
                rates: &how.fpir,
                candidates: how.candidates,
            };
            identify_probes(&input, progress)
        })?;
        galleries.push(GalleryResults { path: path.display().to_string(), enrolled: gallery.len(), results });
    }
    let mean = |of: &dyn Fn(&Identification) -> Option<f64>| {
        models.table(|asking, asked| {
            let sum: Option<f64> = galleries.iter().map(|gallery| of(&gallery.results[asking][asked])).sum();
            sum.map_or(f64::NAN, |sum| sum / galleries.len() as f64)
        })
    };
    let mut metrics = BTreeMap::new();
    for (place, &fpir) in how.fpir.iter().enumerate() {
        let table = mean(&|found| found.points[place].tpir)?;
        let is_defined = !table.matrix.values[0][0].is_nan();
        metrics.insert(tpir_name(fpir), is_defined.then_some(table));
    }
    metrics.insert("rank-1".into(), Some(mean(&|found| found.rank1)?));
    metrics.insert("rank-5".into(), Some(mean(&|found| found.rank5)?));
    Ok(IdentificationAnswer {
        models: models.names,
        templates: faces.templates.len(),
        probes: probes.len(),
        candidates: how.candidates,
        metrics,
        galleries,
        inputs: models.inputs.read,
        findings: models.inputs.findings,
    })
}
