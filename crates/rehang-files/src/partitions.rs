//! Transforms of whole folders of partitions into folders of the same shape. A gallery has any size; one file
//! is made at a time, by any number of processes.
//!
//! **Invariant**: a partition is passed over only where a note beside the outputs says that this adapter made
//! the present output from the present input. The note is written after the output is whole. So a process may
//! die at any instruction. The next one makes its partition again, and notices an input, an output or an
//! adapter that has changed since.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::adapter_file::{self, AdapterSource};
use crate::folders::{Folder, Stamp, expect_partitions};
use crate::source::VectorSource;
use crate::transform::{TransformFiles, transform};
use rehang_core::{Error, ErrorKind, Finding, Progress, Result, Space};

/// Folder of the notes, among the outputs. Readers of partitioned data pass over names that begin with `_`.
const NOTES: &str = "_rehang";

/// Share of the partitions that one process takes: every `count`-th, from `part` on, counted from 1.
///
/// ```
/// use rehang_files::partitions::Share;
///
/// let share: Share = "2/3".parse()?;
/// assert_eq!((0..7).filter(|&place| share.takes(place)).collect::<Vec<_>>(), [1, 4]);
/// assert!("4/3".parse::<Share>().is_err() && "0/3".parse::<Share>().is_err());
/// # Ok::<(), rehang_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Share {
    /// Number of this share, from 1 to `count`.
    pub part: usize,
    /// Number of all shares.
    pub count: usize,
}

impl Share {
    /// The share that has all partitions.
    pub const ALL: Self = Self { part: 1, count: 1 };

    /// Whether the partition at a place, counted from 0, belongs to the share.
    pub fn takes(self, place: usize) -> bool {
        place % self.count == self.part - 1
    }
}

impl std::str::FromStr for Share {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refused =
            || Error::option("share", text, "PART/OF, for example 1/4, 2/4, 3/4 and 4/4 in four processes");
        let (part, count) = text.split_once('/').ok_or_else(refused)?;
        let (part, count) =
            (part.trim().parse().map_err(|_| refused())?, count.trim().parse().map_err(|_| refused())?);
        if part == 0 || part > count { Err(refused()) } else { Ok(Self { part, count }) }
    }
}

/// Order to transform the partitions of a folder.
#[derive(Debug, Clone)]
pub struct TransformFolder {
    /// The adapter.
    pub adapter: AdapterSource,
    /// Folder that is read. Its partitions are the files of vectors at any depth, as
    /// [`is_partition`](crate::folders::is_partition) has them.
    pub input: Arc<dyn Folder>,
    /// Column of the vectors, where partitions have several.
    pub column: Option<String>,
    /// Folder that is written: every partition under the name that it has in `input`. A Parquet partition has
    /// ids and σ² beside the vectors.
    pub output: Arc<dyn Folder>,
    /// Share of the partitions that this process takes.
    pub share: Share,
    /// Whether to go on although vectors of the new space's width do not look like those that the adapter was
    /// fitted on.
    pub force: bool,
    /// Number of rows that are transformed at once.
    pub batch: usize,
}

/// Summary of what [`transform_folder`] did.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct TransformedFolder {
    /// Number of partitions in the share.
    pub partitions: usize,
    /// Number of partitions that were made now; the others were there before.
    pub made: usize,
    /// Number of partitions without a row, from which nothing is made.
    pub empty: usize,
    /// Number of vectors that were written now.
    pub vectors: u64,
    /// Address of the folder that holds the outputs.
    pub adapted: PathBuf,
    /// Space of the written vectors.
    pub space: Space,
    /// Partitions whose vectors do not look like those that the adapter was fitted on.
    pub drift_suspicious: Vec<PathBuf>,
    /// Findings about the partitions that the reader of the result should know.
    #[serde(skip)]
    pub findings: Vec<Finding>,
}

/// Record of what an output was made from.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    /// Fingerprint of the adapter.
    adapter: String,
    column: Option<String>,
    input: Stamp,
    output: Stamp,
}

/// Applies an adapter to every partition of a folder, each as [`transform`] does a file. Passes over
/// partitions that are made already.
///
/// ```
/// use rehang_files::adapter_file::AdapterSource;
/// use rehang_files::partitions::{Share, TransformFolder, transform_folder};
/// use std::sync::Arc;
/// use rehang_files::folders::LocalFolder;
/// use rehang_core::{Adapter, Distance, Matrix, Progress, Space};
///
/// let folder = tempfile::tempdir()?;
/// let space = |name| Space::new(name, 2, Distance::L2, false);
/// let adapter = Adapter::identity(space("v1"), space("v2"), None)?;
/// let old = folder.path().join("old");
/// for day in ["day=1", "day=2"] {
///     std::fs::create_dir_all(old.join(day))?;
///     rehang_files::write_matrix(old.join(day).join("part.parquet"), &Matrix::from_fn(10, 2, |row, _| row as f32), None)?;
/// }
/// let wanted = TransformFolder {
///     adapter: AdapterSource::Given("v1 to v2".into(), adapter.into()),
///     input: Arc::new(LocalFolder::new(old)),
///     column: None,
///     output: Arc::new(LocalFolder::new(folder.path().join("new"))),
///     share: Share::ALL,
///     force: false,
///     batch: 1000,
/// };
/// let done = transform_folder(&wanted, &Progress::default())?;
/// assert_eq!((done.partitions, done.made, done.vectors), (2, 2, 20));
/// assert!(folder.path().join("new/day=2/part.parquet").exists());
/// assert_eq!(transform_folder(&wanted, &Progress::default())?.made, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`ErrorKind::Empty`] for a folder without partitions; [`ErrorKind::InvalidOption`] for an output that is,
/// holds or lies in the input; as [`transform`] and as the [`Folder`]s, naming the partition. Partitions that
/// were made before stay.
pub fn transform_folder(files: &TransformFolder, progress: &Progress) -> Result<TransformedFolder> {
    let adapter = files.adapter.load()?;
    let fingerprint = adapter_file::fingerprint(&adapter)?;
    let all = expect_partitions(&*files.input)?;
    let (from, to) = (files.input.address(), files.output.address());
    let (input, output) = (resolved(&from), resolved(&to));
    if input.starts_with(&output) || output.starts_with(&input) {
        let expected = "a folder apart from `input`: neither may lie in the other";
        return Err(Error::option("output", to.display(), expected));
    }
    let mut done = TransformedFolder {
        partitions: 0,
        made: 0,
        empty: 0,
        vectors: 0,
        adapted: to,
        space: adapter.output_space(),
        drift_suspicious: Vec::new(),
        findings: Vec::new(),
    };
    let partitions: Vec<&PathBuf> =
        all.iter().enumerate().filter(|&(place, _)| files.share.takes(place)).map(|(_, name)| name).collect();
    done.partitions = partitions.len();
    let mut by_code: BTreeMap<String, (Finding, usize)> = BTreeMap::new();
    for (place, name) in partitions.iter().enumerate() {
        progress.check()?;
        let note_name = note_of(name);
        let note = |input: Stamp, output: Stamp| -> Note {
            Note { adapter: fingerprint.clone(), column: files.column.clone(), input, output }
        };
        // A note that cannot be read counts as missing: the partition is made again.
        let stored_note: Option<Note> =
            files.output.read(&note_name)?.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        if let Some(stored_note) = stored_note
            && let Some(output) = files.output.stamp(name)?
            && let Some(input) = files.input.stamp(name)?
            && stored_note == note(input, output)
        {
            continue;
        }
        // If the input is replaced after this point, its stamp shows it to the next run.
        let fetched = files.input.fetch(name)?;
        let input = fetched.stamp().clone();
        let mut source = VectorSource::fetched(from.join(name), fetched);
        source.column.clone_from(&files.column);
        let adapter_source = AdapterSource::Given(files.adapter.to_string(), adapter.clone());
        let mut wanted = TransformFiles {
            force: files.force,
            batch: files.batch,
            ..TransformFiles::new(adapter_source, source)
        };
        let mut transformed = None;
        let stamp = files.output.put(name, &mut |path| {
            wanted.output = Some(path.to_owned());
            transformed = Some(transform(&wanted, progress)?);
            Ok(())
        });
        let stamp = match stamp {
            // Spark writes partitions without a row; nothing is made from them.
            Err(error) if matches!(error.kind(), ErrorKind::Empty { .. }) => {
                done.empty += 1;
                continue;
            }
            outcome => outcome?,
        };
        progress.note(format!("partition {} of {}", place + 1, partitions.len()));
        let text =
            serde_json::to_string(&note(input, stamp)).map_err(|error| Error::corrupt("a note", error))?;
        files.output.write(&note_name, text.as_bytes())?;
        done.made += 1;
        let Some(transformed) = transformed else { continue };
        done.vectors += transformed.vectors;
        if transformed.drift_suspicious {
            done.drift_suspicious.push((*name).clone());
        }
        for finding in transformed.findings {
            let code = finding.code.to_string();
            by_code.entry(code).and_modify(|(_, times)| *times += 1).or_insert((finding, 1));
        }
    }
    done.findings = by_code.into_values().map(|(finding, times)| with_count(finding, times)).collect();
    Ok(done)
}

/// Adds to a finding about one partition the number of partitions that it holds for.
fn with_count(mut finding: Finding, times: usize) -> Finding {
    if times > 1 {
        finding.seen = format!("In {times} partitions, for example: {}", finding.seen);
    }
    finding
}

/// Returns the name of a partition's note.
fn note_of(name: &Path) -> PathBuf {
    let mut file = Path::new(NOTES).join(name).into_os_string();
    file.push(".json");
    file.into()
}

/// Resolves a path from the root of the file system, whichever links lead there; its end need not exist yet.
/// Addresses stay apart from each other, and from paths.
fn resolved(path: &Path) -> PathBuf {
    for folder in path.ancestors() {
        let existing = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        if let (Ok(canonical), Ok(end)) = (fs_err::canonicalize(existing), path.strip_prefix(folder)) {
            return canonical.join(end);
        }
    }
    path.to_owned()
}
