//! The files that describe face and landmark data sets: lists in the style of IJB-C, the solution of Google
//! Landmarks v2, the ground truth of revisited Oxford and Paris.
//!
//! The exact rules stand in `laboratory/docs/formats.md`. Every error names the file and the line.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;

use crate::join::{MissingPolicy, Unknown, rows_of};
use crate::text::{for_each_line, read_lines, split_csv};
use rehang_core::check::expect_count;
use rehang_core::{Error, ErrorKind, Result};

/// One image or video frame of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TemplateItem {
    /// Row of the image in the matrix of vectors.
    pub row: usize,
    /// Number of the template that the image belongs to, counted from 0.
    pub template: usize,
    /// Number of the photograph or video that the image was taken from. Items of one medium are averaged
    /// first. `None` where the image is a medium of its own.
    pub media: Option<i64>,
}

/// Face images, the templates they belong to, and the templates' subjects.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FaceList {
    /// Ids of the templates, in the order in which they first appear.
    pub templates: Vec<String>,
    /// Number of each template's subject. Subject ids are numbered in the order in which they first appear.
    pub subjects: Vec<i64>,
    /// The images of all templates.
    pub items: Vec<TemplateItem>,
    /// Number of rows that the matrix of vectors must have.
    pub rows: usize,
    places: HashMap<String, usize>,
}

impl FaceList {
    /// Place of a template in the list, by its id.
    pub fn place(&self, template: &str) -> Option<usize> {
        self.places.get(template).copied()
    }
}

/// Reads face metadata: comma-separated, with a header line that names the columns `TEMPLATE_ID` and
/// `SUBJECT_ID`. It may also name `MEDIA_ID` or `SIGHTING_ID`, and `FILENAME`. Names may be in any case and
/// order; other columns are passed over. Several files are read as one list.
///
/// Without `names`, the k-th line after a header is row k of the vectors, through all files. With `names`,
/// one file name for each row of the vectors, the column `FILENAME` says which row a line speaks of; an image
/// may then stand in several templates. An empty media id means that the image is a medium of its own.
///
/// # Errors
///
/// [`ErrorKind::Io`]; [`ErrorKind::Corrupt`] with the line for a missing column, an empty id, or a template
/// with two subjects; [`ErrorKind::Unmatched`] for file names that are not among `names`;
/// [`ErrorKind::Duplicate`] for a name that stands twice; [`ErrorKind::Empty`] for a file with no line after
/// its header.
pub fn read_faces<P: AsRef<Path>>(paths: &[P], names: Option<&[String]>) -> Result<FaceList> {
    let rows_by_name = names.map(|names| rows_of("file names", "", names)).transpose()?;
    let mut list = FaceList::default();
    let mut subjects: HashMap<String, i64> = HashMap::new();
    let mut media_ids: HashMap<String, i64> = HashMap::new();
    let mut unknown = Unknown::default();
    let mut row = 0;
    for path in paths {
        let path = path.as_ref();
        let mut columns: Option<FaceColumns> = None;
        let mut lines = 0;
        for_each_line(path, |number, line| {
            let corrupt = |detail: String| Error::corrupt(path.display(), format!("line {number}: {detail}"));
            let fields = split_csv(line).ok_or_else(|| corrupt("a quote is not closed".into()))?;
            let Some(columns) = &columns else {
                columns = Some(
                    FaceColumns::from_header(&fields, names.is_some())
                        .map_err(|detail| corrupt(detail.into()))?,
                );
                return Ok(());
            };
            if fields.len() != columns.count {
                return Err(corrupt(format!(
                    "it has {} fields where the header has {}",
                    fields.len(),
                    columns.count
                )));
            }
            let (template, subject) = (&fields[columns.template], &fields[columns.subject]);
            if template.is_empty() || subject.is_empty() {
                return Err(corrupt("its template or subject id is empty".into()));
            }
            lines += 1;
            let vector_row = if let (Some(rows), Some(column)) = (&rows_by_name, columns.filename) {
                let Some(&row) = rows.get(fields[column].as_str()) else {
                    unknown.note(|| format!("{:?} ({}, line {number})", fields[column], path.display()));
                    return Ok(());
                };
                row
            } else {
                row += 1;
                row - 1
            };
            let next = subjects.len() as i64;
            let subject_number = *subjects.entry(subject.clone()).or_insert(next);
            let place = match list.places.get(template.as_str()) {
                Some(&place) if list.subjects[place] != subject_number => {
                    return Err(corrupt(format!(
                        "template {template} belongs to subject {subject} here and to another one further up"
                    )));
                }
                Some(&place) => place,
                None => {
                    list.templates.push(template.clone());
                    list.subjects.push(subject_number);
                    list.places.insert(template.clone(), list.places.len());
                    list.places.len() - 1
                }
            };
            let media = columns.media.map(|column| &fields[column]).filter(|media| !media.is_empty());
            let next = media_ids.len() as i64;
            let media = media.map(|media| *media_ids.entry(media.clone()).or_insert(next));
            list.items.push(TemplateItem { row: vector_row, template: place, media });
            Ok(())
        })?;
        if lines == 0 {
            return Err(ErrorKind::Empty { what: path.display().to_string() }.into());
        }
    }
    unknown.check("the file names of the face metadata")?;
    list.rows = names.map_or(row, <[String]>::len);
    Ok(list)
}

/// Reads pairs of templates to verify: `first,second[,same]` a line, separated by commas, tabs or blanks.
/// There may be a header line, whose fields hold the word TEMPLATE. Returns places in `faces.templates`.
///
/// The third field, where there is one, must be 1 for pairs of one subject and 0 for others. It is checked
/// against the metadata.
///
/// # Errors
///
/// [`ErrorKind::Io`]; [`ErrorKind::Corrupt`] with the line; [`ErrorKind::Unmatched`] for templates that the
/// metadata does not have; [`ErrorKind::Empty`] for a file without pairs.
pub fn read_pairs(path: impl AsRef<Path>, faces: &FaceList) -> Result<Vec<(usize, usize)>> {
    let path = path.as_ref();
    let mut pairs = Vec::new();
    let mut unknown = Unknown::default();
    let mut first = true;
    for_each_line(path, |number, line| {
        let corrupt = |detail: String| Error::corrupt(path.display(), format!("line {number}: {detail}"));
        let fields: Vec<&str> = if line.contains(',') {
            line.split(',').map(|field| field.trim().trim_matches('"')).collect()
        } else {
            line.split_whitespace().collect()
        };
        let is_header = std::mem::take(&mut first)
            && fields.iter().take(2).all(|field| field.to_ascii_uppercase().contains("TEMPLATE"));
        if is_header {
            return Ok(());
        }
        let ([left, right] | [left, right, _]) = *fields.as_slice() else {
            return Err(corrupt(format!("it has {} fields where two template ids are needed", fields.len())));
        };
        let (Some(a), Some(b)) = (faces.place(left), faces.place(right)) else {
            let missing = if faces.place(left).is_none() { left } else { right };
            unknown.note(|| format!("template {missing:?} (line {number})"));
            return Ok(());
        };
        if let Some(&label) = fields.get(2) {
            let same = faces.subjects[a] == faces.subjects[b];
            if label != if same { "1" } else { "0" } {
                return Err(corrupt(format!(
                    "it is labelled {label:?}, but by the metadata the subjects are {}",
                    if same { "the same (1)" } else { "different (0)" }
                )));
            }
        }
        pairs.push((a, b));
        Ok(())
    })?;
    unknown.check(&format!("the templates of {}", path.display()))?;
    if pairs.is_empty() {
        return Err(ErrorKind::Empty { what: path.display().to_string() }.into());
    }
    Ok(pairs)
}

/// Reads the list of templates that are enrolled, or that search: comma-separated with a header line that
/// names a column `TEMPLATE_ID`, or one id a line. A template may stand on several lines, as in IJB-C's own
/// lists, and counts once. Returns places in `faces.templates`.
///
/// # Errors
///
/// As [`read_pairs`].
pub fn read_templates(path: impl AsRef<Path>, faces: &FaceList) -> Result<Vec<usize>> {
    let path = path.as_ref();
    let mut column = None;
    let mut taken = vec![false; faces.templates.len()];
    let mut places = Vec::new();
    let mut unknown = Unknown::default();
    let mut take = |id: &str, number: usize| match faces.place(id) {
        Some(place) if !std::mem::replace(&mut taken[place], true) => places.push(place),
        Some(_) => {}
        None => unknown.note(|| format!("template {id:?} (line {number})")),
    };
    for_each_line(path, |number, line| {
        let corrupt = |detail: String| Error::corrupt(path.display(), format!("line {number}: {detail}"));
        let fields = split_csv(line).ok_or_else(|| corrupt("a quote is not closed".into()))?;
        let Some(column) = column else {
            let named = fields.iter().position(|field| field.eq_ignore_ascii_case("TEMPLATE_ID"));
            if named.is_none() && fields.len() > 1 {
                return Err(corrupt("it is the header and has no column TEMPLATE_ID".into()));
            }
            column = Some(named.unwrap_or(0));
            if named.is_none() {
                take(&fields[0], number);
            }
            return Ok(());
        };
        let field = fields.get(column).ok_or_else(|| {
            corrupt(format!("it has {} fields, and the template id is field {}", fields.len(), column + 1))
        })?;
        take(field, number);
        Ok(())
    })?;
    unknown.check(&format!("the templates of {}", path.display()))?;
    if places.is_empty() {
        return Err(ErrorKind::Empty { what: path.display().to_string() }.into());
    }
    Ok(places)
}

/// The solution of a landmark retrieval challenge, for the queries that have vectors.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LandmarkSolution {
    /// Index rows that answer each query, in the order of the query ids; empty for a query that shows no
    /// landmark.
    pub answers: Vec<Vec<usize>>,
    /// Value of the column `Usage` for each query; empty without that column.
    pub usage: Vec<String>,
    /// Number of the file's queries and images that are not among the ids (always 0 with
    /// [`MissingPolicy::Error`]).
    pub unknown: usize,
}

/// Reads a solution in the form of Google Landmarks v2: comma-separated with the header `id,images[,Usage]`.
/// `images` holds the ids of the right answers with blanks between them, or `None`.
///
/// Every query id must have a line. An id listed twice for one query counts once.
///
/// # Errors
///
/// [`ErrorKind::Io`]; [`ErrorKind::Corrupt`] with the line; [`ErrorKind::Duplicate`] for a query with two
/// lines; [`ErrorKind::Unmatched`] for a query without a line, and, under [`MissingPolicy::Error`], for ids
/// of the file that are not among `query_ids` and `index_ids`.
pub fn read_landmark_solution(
    path: impl AsRef<Path>,
    query_ids: &[String],
    index_ids: &[String],
    policy: MissingPolicy,
) -> Result<LandmarkSolution> {
    let path = path.as_ref();
    let queries = rows_of("query ids", "", query_ids)?;
    let index = rows_of("index ids", "", index_ids)?;
    let mut answers: Vec<Option<Vec<usize>>> = vec![None; query_ids.len()];
    let mut usage = Vec::new();
    let mut columns: Option<(usize, usize, Option<usize>, usize)> = None;
    let mut unknown = Unknown::default();
    for_each_line(path, |number, line| {
        let corrupt = |detail: String| Error::corrupt(path.display(), format!("line {number}: {detail}"));
        let fields = split_csv(line).ok_or_else(|| corrupt("a quote is not closed".into()))?;
        let Some((id, images, used_for, count)) = columns else {
            let column = |name: &str| fields.iter().position(|field| field.eq_ignore_ascii_case(name));
            let (Some(id), Some(images)) = (column("id"), column("images")) else {
                return Err(corrupt("it is the header and must name the columns id and images".into()));
            };
            let used_for = column("Usage");
            if used_for.is_some() {
                usage = vec![String::new(); query_ids.len()];
            }
            columns = Some((id, images, used_for, fields.len()));
            return Ok(());
        };
        if fields.len() != count {
            return Err(corrupt(format!("it has {} fields where the header has {count}", fields.len())));
        }
        let Some(&query) = queries.get(fields[id].as_str()) else {
            unknown.note(|| format!("query {:?} (line {number})", fields[id]));
            return Ok(());
        };
        if answers[query].is_some() {
            let value = format!("query {:?} (again on line {number})", fields[id]);
            return Err(Error::duplicate(path.display(), value));
        }
        let mut rows = Vec::new();
        for image in fields[images].split_whitespace().filter(|image| !image.eq_ignore_ascii_case("none")) {
            match index.get(image) {
                Some(&row) => rows.push(row),
                None => unknown.note(|| format!("image {image:?} (line {number})")),
            }
        }
        rows.sort_unstable();
        rows.dedup();
        answers[query] = Some(rows);
        if let Some(column) = used_for {
            usage[query].clone_from(&fields[column]);
        }
        Ok(())
    })?;
    let count = unknown.count;
    if policy == MissingPolicy::Error {
        unknown.check(&format!("the ids of {}", path.display()))?;
    }
    let mut without = Unknown::default();
    for (query, _) in answers.iter().enumerate().filter(|(_, answers)| answers.is_none()) {
        without.note(|| format!("query {:?} has no line", query_ids[query]));
    }
    without.check(&format!("the queries, looked up in {}", path.display()))?;
    Ok(LandmarkSolution { answers: answers.into_iter().flatten().collect(), usage, unknown: count })
}

/// Gallery rows that matter to one query of a revisited benchmark, by how clearly they show its landmark.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroundTruth {
    /// Images that show the landmark clearly.
    pub easy: Vec<usize>,
    /// Images that show the landmark from an unusual side, small or in bad light.
    pub hard: Vec<usize>,
    /// Images that show the landmark so badly that people cannot tell.
    pub junk: Vec<usize>,
}

/// The ground truth of revisited Oxford or Paris.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RevisitedTruth {
    /// Names of the queries, in the order of the ground truth.
    pub queries: Vec<String>,
    /// Names of the gallery's images, in the order in which the ground truth counts them.
    pub gallery: Vec<String>,
    /// Gallery rows of each query, by how clearly they show its landmark.
    pub truth: Vec<GroundTruth>,
}

/// The ground truth in the form that its JSON file has.
#[derive(Deserialize)]
struct RevisitedFile {
    queries: Vec<String>,
    gallery: Vec<String>,
    ground_truth: Vec<RevisitedEntry>,
}

#[derive(Deserialize)]
struct RevisitedEntry {
    easy: Vec<Image>,
    hard: Vec<Image>,
    junk: Vec<Image>,
}

/// An image by its place in the gallery, or by its name.
#[derive(Deserialize)]
#[serde(untagged)]
enum Image {
    Place(u64),
    Name(String),
}

/// Reads the ground truth of revisited Oxford or Paris as JSON:
/// `{"queries": […], "gallery": […], "ground_truth": [{"easy": […], "hard": […], "junk": […]}, …]}`.
///
/// `queries` and `gallery` are names; images are places in `gallery`, counted from 0 as in the benchmark's
/// own files, or names. An image that is listed twice for a query, even under two headings, is an error.
///
/// # Errors
///
/// [`ErrorKind::Io`]; [`ErrorKind::Corrupt`] for a file of another shape, with the line;
/// [`ErrorKind::CountMismatch`]; [`ErrorKind::Duplicate`] for names or images that stand twice;
/// [`ErrorKind::Unmatched`] for an image that the gallery does not have.
pub fn read_revisited(path: impl AsRef<Path>) -> Result<RevisitedTruth> {
    let path = path.as_ref();
    let text = read_lines(path)?.join("\n");
    let file: RevisitedFile = serde_json::from_str(&text).map_err(|error| {
        let form = r#"{"queries", "gallery", "ground_truth"}"#;
        Error::corrupt(path.display(), format!("it is no ground truth of the form {form}: {error}"))
    })?;
    let what = format!("the ground truth of {}", path.display());
    expect_count(&what, file.ground_truth.len(), "its list of queries", file.queries.len())?;
    rows_of("queries of the ground truth", "", &file.queries)?;
    let places = rows_of("gallery of the ground truth", "", &file.gallery)?;
    let mut unknown = Unknown::default();
    let mut truth = Vec::with_capacity(file.queries.len());
    for (query, entry) in file.queries.iter().zip(file.ground_truth) {
        let mut headings = HashMap::new();
        let mut rows = |images: Vec<Image>, heading: &'static str| -> Result<Vec<usize>> {
            let mut rows = Vec::with_capacity(images.len());
            for image in images {
                let (row, image_text) = match image {
                    Image::Place(place) => (
                        usize::try_from(place).ok().filter(|&row| row < file.gallery.len()),
                        place.to_string(),
                    ),
                    Image::Name(name) => (places.get(name.as_str()).copied(), format!("{name:?}")),
                };
                let Some(row) = row else {
                    unknown.note(|| format!("image {image_text} ({heading} of query {query:?})"));
                    continue;
                };
                if let Some(before) = headings.insert(row, heading) {
                    let what = format!("{}, query {query:?}", path.display());
                    let value = format!("image {:?} ({before} and {heading})", file.gallery[row]);
                    return Err(Error::duplicate(what, value));
                }
                rows.push(row);
            }
            Ok(rows)
        };
        truth.push(GroundTruth {
            easy: rows(entry.easy, "easy")?,
            hard: rows(entry.hard, "hard")?,
            junk: rows(entry.junk, "junk")?,
        });
    }
    let what = format!("the images of {}, looked up in its gallery of {}", path.display(), places.len());
    unknown.check(&what)?;
    Ok(RevisitedTruth { queries: file.queries, gallery: file.gallery, truth })
}

/// Finds the row of each of `names` in a file that holds `ids`, one a row.
///
/// ```
/// use rehang_files::lists::rows_by_name;
///
/// let names = ["b", "a"].map(String::from);
/// let ids = ["a", "x", "b"].map(String::from);
/// assert_eq!(rows_by_name("gallery", &names, &ids)?, [2, 0]);
/// # Ok::<(), rehang_core::Error>(())
/// ```
///
/// # Errors
///
/// [`ErrorKind::Duplicate`] for an id that stands twice, [`ErrorKind::Unmatched`] for names that are not
/// among the ids.
pub fn rows_by_name(what: &str, names: &[String], ids: &[String]) -> Result<Vec<usize>> {
    let rows = rows_of(&format!("{what} ids"), "", ids)?;
    let mut unknown = Unknown::default();
    let mut named_rows = Vec::with_capacity(names.len());
    for name in names {
        match rows.get(name.as_str()) {
            Some(&row) => named_rows.push(row),
            None => unknown.note(|| format!("{name:?}")),
        }
    }
    unknown.check(&format!("the {what} of the ground truth, looked up among {} ids,", ids.len()))?;
    Ok(named_rows)
}

/// Places of the columns in face metadata.
struct FaceColumns {
    template: usize,
    subject: usize,
    media: Option<usize>,
    filename: Option<usize>,
    count: usize,
}

impl FaceColumns {
    fn from_header(header: &[String], by_name: bool) -> Result<Self, &'static str> {
        let column = |name: &str| header.iter().position(|field| field.eq_ignore_ascii_case(name));
        let columns = Self {
            template: column("TEMPLATE_ID")
                .ok_or("it is the header and must name the columns TEMPLATE_ID and SUBJECT_ID")?,
            subject: column("SUBJECT_ID").ok_or("it is the header and has no column SUBJECT_ID")?,
            media: column("MEDIA_ID").or_else(|| column("SIGHTING_ID")),
            filename: column("FILENAME"),
            count: header.len(),
        };
        if by_name && columns.filename.is_none() {
            return Err("it is the header and has no column FILENAME, by which the rows are to be found");
        }
        Ok(columns)
    }
}
