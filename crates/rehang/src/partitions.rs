//! Folders of partitions in, folders of the same shape out: a gallery of any size, a file at a time, from as many processes as one
//! likes.
//!
//! **Invariant**: a partition is passed over only where a note beside the outputs says that this adapter made the output that is there
//! from the input that is there. The note is written after the output is whole. So a process may die at any instruction, and what it
//! was at is made again; an input, an output or an adapter that has changed since is noticed.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use crate::adapter::AdapterSource;
use crate::error::{Error, ErrorKind, Result};
use crate::files::{self, VectorSource, folder_of};
use crate::finding::Finding;
use crate::progress::Progress;
use crate::space::Space;
use crate::transform::{TransformFiles, transform};

/// The folder of notes among the outputs. Readers of partitioned data pass over names that begin with `_`.
const NOTES: &str = "_rehang";

/// Files that are partitions, by what their names end in: those that can be written too.
const EXTENSIONS: [&str; 5] = ["parquet", "pq", "npy", "fvecs", "safetensors"];

/// Which partitions a process takes: every `of`-th, from `part` on, counted from 1.
///
/// ```
/// use rehang::partitions::Share;
///
/// let share: Share = "2/3".parse()?;
/// assert_eq!((0..7).filter(|&place| share.takes(place)).collect::<Vec<_>>(), [1, 4]);
/// assert!("4/3".parse::<Share>().is_err() && "0/3".parse::<Share>().is_err());
/// # Ok::<(), rehang::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Which share, from 1 to `of`.
    pub part: usize,
    /// How many shares there are.
    pub of: usize,
}

impl Share {
    /// All partitions.
    pub const ALL: Self = Self { part: 1, of: 1 };

    /// Whether the partition at this place, counted from 0, is one of the share.
    pub fn takes(self, place: usize) -> bool {
        place % self.of == self.part - 1
    }
}

impl std::str::FromStr for Share {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refused =
            || Error::option("share", text, "PART/OF, for example 1/4, 2/4, 3/4 and 4/4 in four processes");
        let (part, of) = text.split_once('/').ok_or_else(refused)?;
        let (part, of) =
            (part.trim().parse().map_err(|_| refused())?, of.trim().parse().map_err(|_| refused())?);
        if part == 0 || part > of { Err(refused()) } else { Ok(Self { part, of }) }
    }
}

/// A folder whose partitions are transformed.
#[derive(Debug, Clone)]
pub struct TransformFolder {
    /// The adapter.
    pub adapter: AdapterSource,
    /// The folder. Partitions are its files of vectors at any depth, but for names that begin with `_` or `.`.
    pub input: PathBuf,
    /// The column of the vectors, where partitions have several.
    pub column: Option<String>,
    /// The folder that is written: every partition under the name that it has in `input`. A Parquet partition has ids and σ² beside
    /// the vectors.
    pub output: PathBuf,
    /// Which partitions this process takes.
    pub share: Share,
    /// Goes on although vectors of the new space's width do not look like those that the adapter was fitted on.
    pub force: bool,
    /// Rows that are transformed at once.
    pub batch: usize,
}

/// What [`transform_folder`] did.
#[derive(Debug, Clone, Serialize)]
pub struct TransformedFolder {
    /// Partitions of the share.
    pub partitions: usize,
    /// Those that were made now; the others were there.
    pub made: usize,
    /// Those without a row, of which nothing is made.
    pub empty: usize,
    /// Vectors that were written now.
    pub vectors: u64,
    /// Where the partitions are.
    pub adapted: PathBuf,
    /// The space of the vectors.
    pub space: Space,
    /// Partitions whose vectors do not look like those that the adapter was fitted on.
    pub drift_suspicious: Vec<PathBuf>,
    /// What the reader should know.
    #[serde(skip)]
    pub findings: Vec<Finding>,
}

/// What an output was made of.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    /// Fingerprint of the adapter.
    adapter: String,
    column: Option<String>,
    input: Stamp,
    output: Stamp,
}

/// A file as it was: its length, and when it was written, in nanoseconds.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Stamp {
    bytes: u64,
    written: u64,
}

impl Stamp {
    fn of(path: &Path) -> Result<Self> {
        let metadata = fs_err::metadata(path).map_err(|error| Error::io("read", path, &error))?;
        Ok(Self { bytes: metadata.len(), written: written(&metadata) })
    }
}

/// When a file was written, in nanoseconds; 0 where the system does not say.
fn written(metadata: &Metadata) -> u64 {
    let since = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since.map_or(0, |since| since.as_nanos() as u64)
}

/// Applies an adapter to every partition of a folder, each as [`transform`] does a file, and passes over those that are made already.
///
/// ```
/// use rehang::adapter::AdapterSource;
/// use rehang::partitions::{Share, TransformFolder, transform_folder};
/// use rehang::{Adapter, Distance, Matrix, Progress, Space, files};
///
/// let folder = tempfile::tempdir()?;
/// let space = |name| Space::new(name, 2, Distance::L2, false);
/// let adapter = Adapter::identity(space("v1"), space("v2"), None)?;
/// let old = folder.path().join("old");
/// for day in ["day=1", "day=2"] {
///     std::fs::create_dir_all(old.join(day))?;
///     files::write_matrix(old.join(day).join("part.parquet"), &Matrix::from_fn(10, 2, |row, _| row as f32), None)?;
/// }
/// let wanted = TransformFolder {
///     adapter: AdapterSource::Given("v1 to v2".into(), adapter.into()),
///     input: old,
///     column: None,
///     output: folder.path().join("new"),
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
/// [`ErrorKind::Empty`] for a folder without partitions; [`ErrorKind::InvalidOption`]
/// for an output that is, holds or lies in the input; as [`transform`], naming the partition. Partitions that were made before stay.
pub fn transform_folder(files: &TransformFolder, progress: &Progress) -> Result<TransformedFolder> {
    let adapter = files.adapter.load()?;
    let fingerprint = adapter.fingerprint()?;
    let all = expect_partitions(&files.input)?;
    let (input, output) = (whole(&files.input), whole(&files.output));
    if input.starts_with(&output) || output.starts_with(&input) {
        let expected = "a folder apart from `input`: neither may lie in the other";
        return Err(Error::option("output", files.output.display(), expected));
    }
    let mut done = TransformedFolder {
        partitions: 0,
        made: 0,
        empty: 0,
        vectors: 0,
        adapted: files.output.clone(),
        space: adapter.output_space(),
        drift_suspicious: Vec::new(),
        findings: Vec::new(),
    };
    let own: Vec<&PathBuf> =
        all.iter().enumerate().filter(|&(place, _)| files.share.takes(place)).map(|(_, name)| name).collect();
    done.partitions = own.len();
    let mut seen: BTreeMap<String, (Finding, usize)> = BTreeMap::new();
    for (place, name) in own.iter().enumerate() {
        progress.check()?;
        let (input, output) = (files.input.join(name), files.output.join(name));
        let note_path = note_of(&files.output, name);
        let note = |output: Stamp| -> Result<Note> {
            let column = files.column.clone();
            Ok(Note { adapter: fingerprint.clone(), column, input: Stamp::of(&input)?, output })
        };
        if let (Some(there), Ok(stamp)) = (read_note(&note_path), Stamp::of(&output))
            && there == note(stamp)?
        {
            continue;
        }
        let before = Stamp::of(&input)?;
        for path in [&output, &note_path] {
            make_folder(folder_of(path))?;
        }
        let mut source = VectorSource::path(&input);
        source.column.clone_from(&files.column);
        let wanted = TransformFiles {
            output: Some(output.clone()),
            force: files.force,
            batch: files.batch,
            ..TransformFiles::new(AdapterSource::Given(files.adapter.to_string(), adapter.clone()), source)
        };
        let made = match transform(&wanted, progress) {
            // Spark writes partitions without a row; there is nothing to make of them.
            Err(error) if matches!(error.kind(), ErrorKind::Empty { .. }) => {
                done.empty += 1;
                continue;
            }
            outcome => outcome?,
        };
        progress.note(format!("partition {} of {}", place + 1, own.len()));
        // An input that was written anew meanwhile is for the next run.
        let note = Note { input: before, ..note(Stamp::of(&output)?)? };
        let text = serde_json::to_string(&note).map_err(|error| Error::corrupt("a note", error))?;
        files::write_text(&note_path, &text)?;
        done.made += 1;
        done.vectors += made.vectors;
        if made.drift_suspicious {
            done.drift_suspicious.push((*name).clone());
        }
        for finding in made.findings {
            let first = finding.code.clone();
            seen.entry(first).and_modify(|(_, times)| *times += 1).or_insert((finding, 1));
        }
    }
    done.findings = seen.into_values().map(|(finding, times)| of_partitions(finding, times)).collect();
    Ok(done)
}

/// What was found in one partition, and in how many.
fn of_partitions(mut finding: Finding, times: usize) -> Finding {
    if times > 1 {
        finding.seen = format!("In {times} partitions, for example: {}", finding.seen);
    }
    finding
}

/// The partitions of a folder, as they are named in it, in the order of their names.
///
/// # Errors
///
/// [`ErrorKind::Io`]; [`ErrorKind::Corrupt`] for a link to a folder, which could lead round in a circle.
pub fn partitions(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![PathBuf::new()];
    while let Some(inner) = open.pop() {
        let here = folder.join(&inner);
        let refused = |error: std::io::Error| Error::io("read", &here, &error);
        for entry in fs_err::read_dir(&here).map_err(refused)? {
            let entry = entry.map_err(refused)?;
            let kind = entry.file_type().map_err(refused)?;
            let name = entry.file_name();
            let said = name.to_string_lossy();
            // Spark passes over these too; a folder `_key=value` is one of a column.
            if said.starts_with('.') || (said.starts_with('_') && !(kind.is_dir() && said.contains('='))) {
                continue;
            }
            let (path, name) = (entry.path(), inner.join(&name));
            let extension = path.extension().and_then(|extension| extension.to_str());
            if kind.is_dir() {
                open.push(name);
            } else if kind.is_symlink() && path.is_dir() {
                let detail = "it is a link to a folder, which could lead round in a circle; name that folder by itself";
                return Err(Error::corrupt(path.display(), detail));
            } else if extension.is_some_and(|own| EXTENSIONS.contains(&own.to_ascii_lowercase().as_str())) {
                found.push(name);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The same where there has to be one.
///
/// # Errors
///
/// As [`partitions`]; [`ErrorKind::Empty`].
pub fn expect_partitions(folder: &Path) -> Result<Vec<PathBuf>> {
    let found = partitions(folder)?;
    if found.is_empty() {
        let endings = EXTENSIONS.map(|extension| format!(".{extension}")).join(", ");
        return Err(Error::empty(format!("{} (it has no file that ends in {endings})", folder.display())));
    }
    Ok(found)
}

/// Where the note of a partition lies.
fn note_of(output: &Path, name: &Path) -> PathBuf {
    let mut file = output.join(NOTES).join(name).into_os_string();
    file.push(".json");
    file.into()
}

/// The note, where there is one that can be read: any other is none.
fn read_note(path: &Path) -> Option<Note> {
    serde_json::from_slice(&fs_err::read(path).ok()?).ok()
}

fn make_folder(path: &Path) -> Result<()> {
    fs_err::create_dir_all(path).map_err(|error| Error::io("create", path, &error))
}

/// A path from the root of the file system, whichever links lead there; its end need not be there yet.
fn whole(path: &Path) -> PathBuf {
    for folder in path.ancestors() {
        let there = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        if let (Ok(whole), Ok(end)) = (fs_err::canonicalize(there), path.strip_prefix(folder)) {
            return whole.join(end);
        }
    }
    path.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors::Matrix;
    use crate::{Adapter, Distance};

    fn case(folder: &Path) -> TransformFolder {
        let space = |name| Space::new(name, 3, Distance::L2, false);
        let adapter = Adapter::identity(space("v1"), space("v2"), None).unwrap();
        for (name, rows) in
            [("a.parquet", 5), ("deep/b=1/c.npy", 7), ("deep/b=2/c.npy", 2), ("_hidden/d.npy", 1)]
        {
            let path = folder.join("old").join(name);
            make_folder(folder_of(&path)).unwrap();
            files::write_matrix(
                &path,
                &Matrix::from_fn(rows, 3, |row, column| (row * 3 + column) as f32),
                None,
            )
            .unwrap();
        }
        fs_err::write(folder.join("old/_SUCCESS"), "").unwrap();
        fs_err::write(folder.join("old/read me.txt"), "").unwrap();
        TransformFolder {
            adapter: AdapterSource::Given("a".into(), adapter.into()),
            input: folder.join("old"),
            column: None,
            output: folder.join("new"),
            share: Share::ALL,
            force: false,
            batch: 4,
        }
    }

    fn made(files: &TransformFolder) -> (usize, usize, u64) {
        let done = transform_folder(files, &Progress::default()).unwrap();
        (done.partitions, done.made, done.vectors)
    }

    #[test]
    fn each_partition_is_the_file_that_transform_makes_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let files = case(folder.path());
        assert_eq!(made(&files), (3, 3, 14));
        for name in partitions(&files.input).unwrap() {
            let alone = folder.path().join("alone").with_extension(name.extension().unwrap());
            let wanted = TransformFiles {
                output: Some(alone.clone()),
                ..TransformFiles::new(files.adapter.clone(), VectorSource::path(files.input.join(&name)))
            };
            transform(&wanted, &Progress::default()).unwrap();
            assert_eq!(fs_err::read(&alone).unwrap(), fs_err::read(files.output.join(&name)).unwrap());
        }
        assert_eq!(
            partitions(&files.output).unwrap(),
            partitions(&files.input).unwrap(),
            "notes are no partitions"
        );
    }

    #[test]
    fn what_is_made_is_passed_over_until_something_changes() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = case(folder.path());
        assert_eq!(made(&files), (3, 3, 14));
        assert_eq!(made(&files), (3, 0, 0));
        // An output that is gone, one that was written over, a note that is damaged, an input that is another.
        fs_err::remove_file(files.output.join("a.parquet")).unwrap();
        assert_eq!(made(&files), (3, 1, 5));
        fs_err::write(files.output.join("a.parquet"), "other bytes").unwrap();
        assert_eq!(made(&files), (3, 1, 5));
        fs_err::write(note_of(&files.output, Path::new("deep/b=1/c.npy")), "{").unwrap();
        assert_eq!(made(&files), (3, 1, 7));
        files::write_matrix(files.input.join("a.parquet"), &Matrix::zeros(6, 3), None).unwrap();
        assert_eq!(made(&files), (3, 1, 6));
        // Another adapter makes all of them anew.
        let space = |name| Space::new(name, 3, Distance::L2, false);
        let other = Adapter::identity(space("v1"), space("v3"), None).unwrap();
        files.adapter = AdapterSource::Given("b".into(), other.into());
        assert_eq!(made(&files), (3, 3, 15));
    }

    #[test]
    fn partitions_without_a_row_and_links_to_folders() {
        let folder = tempfile::tempdir().unwrap();
        let files = case(folder.path());
        // As NumPy writes an array of no rows.
        let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 3), }";
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.bytes());
        fs_err::write(files.input.join("empty.npy"), bytes).unwrap();
        let done = transform_folder(&files, &Progress::default()).unwrap();
        assert_eq!((done.partitions, done.made, done.empty), (4, 3, 1));
        assert!(!files.output.join("empty.npy").exists());
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(&files.input, files.input.join("again")).unwrap();
            assert!(partitions(&files.input).unwrap_err().to_string().contains("link to a folder"));
        }
    }

    #[test]
    fn shares_are_all_of_it_and_each_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = case(folder.path());
        files.share = "1/2".parse().unwrap();
        assert_eq!(made(&files), (2, 2, 7));
        files.share = "2/2".parse().unwrap();
        assert_eq!(made(&files), (1, 1, 7));
        files.share = Share::ALL;
        assert_eq!(made(&files), (3, 0, 0));
    }

    #[test]
    fn a_bad_partition_is_named_and_the_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let files = case(folder.path());
        fs_err::write(files.input.join("deep/b=1/c.npy"), "no array").unwrap();
        let error = transform_folder(&files, &Progress::default()).unwrap_err().to_string();
        assert!(error.contains("b=1") && !error.contains("b=2"), "{error}");
        assert!(files.output.join("a.parquet").exists() && !files.output.join("deep/b=1/c.npy").exists());
        fs_err::remove_file(files.input.join("deep/b=1/c.npy")).unwrap();
        assert_eq!(made(&files), (2, 1, 2));
    }

    #[test]
    fn folders_that_hold_each_other_and_empty_ones_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let files = case(folder.path());
        for output in [files.input.clone(), files.input.join("new"), folder.path().to_owned()] {
            let error = transform_folder(&TransformFolder { output, ..files.clone() }, &Progress::default());
            assert!(error.unwrap_err().to_string().contains("neither may lie in the other"));
        }
        assert!(!files.input.join("new").exists());
        let empty = TransformFolder { input: files.input.join("_hidden/.."), ..files.clone() };
        assert_eq!(made(&empty).0, 3);
        fs_err::create_dir(folder.path().join("nothing")).unwrap();
        let empty = TransformFolder { input: folder.path().join("nothing"), ..files };
        assert!(
            transform_folder(&empty, &Progress::default())
                .unwrap_err()
                .to_string()
                .contains("no file that ends in")
        );
    }
}
