//! Sources to read from: a file of some format, or content that a caller holds in memory in its place.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rehang_core::{Error, Result};

use crate::folders::Fetched;
use crate::given::Given;
use crate::opened::open;

/// File formats, told apart by the ending of the file's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Npy,
    Parquet,
    Fvecs,
    Bvecs,
    Ivecs,
    Fbin,
    U8bin,
    I8bin,
    Safetensors,
    Text,
    JsonLines,
}

impl Format {
    /// File names that are accepted for vectors, in words.
    pub const VECTORS: &'static str = "a name that ends in .npy, .parquet, .pq, .fvecs, .bvecs, .ivecs, .fbin, .u8bin, .i8bin or .safetensors";
    /// File names that are accepted for one value a row, in words.
    pub const VALUES: &'static str = "a name that ends in .npy, .parquet, .pq, .fvecs, .bvecs, .ivecs, .safetensors, .txt, .tsv, .csv, \
                                  .ids, .jsonl or .ndjson";

    pub fn from_path(path: &Path) -> Option<Self> {
        let extension = path.extension()?.to_str()?.to_ascii_lowercase();
        Some(match extension.as_str() {
            "npy" => Self::Npy,
            "parquet" | "pq" => Self::Parquet,
            "fvecs" => Self::Fvecs,
            "bvecs" => Self::Bvecs,
            "ivecs" => Self::Ivecs,
            "fbin" => Self::Fbin,
            "u8bin" => Self::U8bin,
            "i8bin" => Self::I8bin,
            "safetensors" => Self::Safetensors,
            "txt" | "tsv" | "csv" | "ids" => Self::Text,
            "jsonl" | "ndjson" => Self::JsonLines,
            _ => return None,
        })
    }
}

/// Returns the line of Python that converts a file of vectors that rehang cannot read into one that it can;
/// `None` where none is known.
pub(crate) fn conversion(path: &Path) -> Option<String> {
    let file = path.display();
    let array = |code: &str| Some(format!("numpy.save(\"vectors.npy\", numpy.asarray({code}, \"f4\"))"));
    let table = |code: &str| Some(format!("pyarrow.parquet.write_table({code}, \"vectors.parquet\")"));
    let name = path.file_name()?.to_str()?.to_ascii_lowercase();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    match name.rsplit_once('.')?.1 {
        extension @ ("csv" | "tsv" | "txt" | "copy") => {
            let delimiter = if extension == "tsv" { "\\t" } else { "," };
            Some(format!(
                "numpy.save(\"vectors.npy\", numpy.loadtxt(\"{file}\", \"f4\", delimiter=\"{delimiter}\")), or where a line is [0.1,0.2,…] {}",
                array(&format!("[json.loads(line) for line in open(\"{file}\")]"))?
            ))
        }
        "jsonl" | "ndjson" => {
            array(&format!("[json.loads(line)[\"embedding\"] for line in open(\"{file}\")]"))
        }
        "json" => array(&format!("[item[\"embedding\"] for item in json.load(open(\"{file}\"))]")),
        "npz" => array(&format!("next(iter(numpy.load(\"{file}\").values()))")),
        "pkl" | "pickle" => array(&format!("pickle.load(open(\"{file}\", \"rb\"))")),
        "pt" | "pth" => array(&format!("torch.load(\"{file}\", \"cpu\")")),
        "h5" | "hdf5" => array(&format!("next(iter(h5py.File(\"{file}\").values()))")),
        "faiss" | "index" => Some(format!(
            "index = faiss.read_index(\"{file}\"); numpy.save(\"vectors.npy\", index.reconstruct_n(0, index.ntotal))"
        )),
        "feather" | "arrow" | "ipc" => table(&format!("pyarrow.feather.read_table(\"{file}\")")),
        "arrows" => table(&format!("pyarrow.ipc.open_stream(\"{file}\").read_all()")),
        "orc" => table(&format!("pyarrow.orc.read_table(\"{file}\")")),
        "lance" => table(&format!("lance.dataset(\"{file}\").to_table()")),
        _ => None,
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Npy => ".npy",
            Self::Parquet => ".parquet",
            Self::Fvecs => ".fvecs",
            Self::Bvecs => ".bvecs",
            Self::Ivecs => ".ivecs",
            Self::Fbin => ".fbin",
            Self::U8bin => ".u8bin",
            Self::I8bin => ".i8bin",
            Self::Safetensors => ".safetensors",
            Self::Text => "text",
            Self::JsonLines => ".jsonl",
        })
    }
}

/// A file, and the name of a column or tensor where the file has several: `PATH` or `PATH#NAME`.
///
/// ```
/// use rehang_files::VectorSource;
///
/// let source: VectorSource = "gallery.parquet#embedding".parse()?;
/// assert_eq!(source.path.to_str(), Some("gallery.parquet"));
/// assert_eq!(source.column.as_deref(), Some("embedding"));
/// assert_eq!(source.to_string(), "gallery.parquet#embedding");
/// # Ok::<(), rehang_core::Error>(())
/// ```
///
/// # Paths with a `#`
///
/// The path is what stands in front of the last `#`, unless a file exists under the whole name.
///
/// # What a caller holds in memory
///
/// [`VectorSource::given`] stands for rows or values in memory, wherever a file can stand; errors and records
/// call it by the caller's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VectorSource {
    /// The file, or the caller's name for the content that it holds in memory.
    pub path: PathBuf,
    /// The column of a Parquet file, or the tensor of a safetensors file.
    pub column: Option<String>,
    /// Content that the caller holds in memory, in the place of a file.
    pub(crate) given: Option<Given>,
    /// Local file that is read in the place of `path`, which is then the address of a file elsewhere.
    pub(crate) fetched: Option<Fetched>,
}

impl VectorSource {
    /// Parses `PATH` or `PATH#NAME`.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`](rehang_core::ErrorKind::InvalidOption) for an empty path or an empty name.
    pub fn parse(text: &str) -> Result<Self> {
        let (path, column) = match text.rsplit_once('#') {
            Some((path, column)) if !Path::new(text).exists() => (path, Some(column)),
            _ => (text, None),
        };
        if path.is_empty() || column == Some("") {
            return Err(Error::option("an input", text, "PATH or PATH#COLUMN"));
        }
        Ok(Self { column: column.map(str::to_string), ..Self::path(path) })
    }

    /// Returns the source for a file in which no column or tensor has to be named.
    pub fn path(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), column: None, given: None, fetched: None }
    }

    /// Returns the source for a file of a [`Folder`](crate::folders::Folder), which errors and records name
    /// by its address.
    pub fn fetched(address: impl Into<PathBuf>, fetched: Fetched) -> Self {
        Self { fetched: Some(fetched), ..Self::path(address) }
    }

    /// Returns the source for content that a caller holds in memory. The name is most often that of the
    /// caller's parameter.
    ///
    /// ```
    /// use rehang_files::{Scalars, VectorSource, read_labels, read_matrix};
    ///
    /// let labels = VectorSource::given("labels", Scalars::Texts(vec!["cat".into(), "dog".into(), "cat".into()]));
    /// assert_eq!(read_labels(&labels)?, [0, 1, 0]);
    /// let error = read_matrix(&labels).unwrap_err().to_string();
    /// assert_eq!(error, "cannot read labels: it holds one value a row where rows of numbers are needed");
    /// # Ok::<(), rehang_core::Error>(())
    /// ```
    pub fn given(name: &str, content: impl Into<Given>) -> Self {
        Self { given: Some(content.into()), ..Self::path(name) }
    }

    /// Whether the source is a file, and not content that a caller holds in memory.
    pub fn is_file(&self) -> bool {
        self.given.is_none()
    }

    /// The local file that is read.
    pub(crate) fn file(&self) -> &Path {
        self.fetched.as_ref().map_or(&self.path, Fetched::path)
    }

    pub(crate) fn format(&self, wanted: &str, expected: &str) -> Result<Format> {
        // A missing or unreadable file is reported as such, whatever its name ends in. A data set of Lance is
        // a folder.
        let is_lance = self.path.extension().is_some_and(|extension| extension == "lance");
        if !(is_lance && self.file().is_dir()) {
            open(self.file())?;
        }
        Format::from_path(&self.path).ok_or_else(|| self.format_error(wanted, expected))
    }

    /// Makes the error for a file that does not hold what is wanted. It has the line of Python that makes a
    /// file that does.
    pub(crate) fn format_error(&self, wanted: &str, expected: &str) -> Error {
        let way =
            conversion(&self.path).map_or_else(String::new, |line| format!("; Python writes one: {line}"));
        Error::option(format!("a file of {wanted}"), self.path.display(), format!("{expected}{way}"))
    }

    pub(crate) fn check_column(&self, format: Format) -> Result<()> {
        if self.column.is_some() && !matches!(format, Format::Parquet | Format::Safetensors) {
            let expected = format!("no #NAME: a {format} file has no columns to name");
            return Err(Error::option("an input", self, expected));
        }
        Ok(())
    }
}

impl FromStr for VectorSource {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

impl From<&Path> for VectorSource {
    fn from(path: &Path) -> Self {
        Self::path(path)
    }
}

impl fmt::Display for VectorSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        match &self.column {
            Some(column) => write!(f, "#{column}"),
            None => Ok(()),
        }
    }
}

/// Joins the names of files that are read one below the other, for messages and records.
pub fn joined_names(sources: &[impl fmt::Display]) -> String {
    sources.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Widest vector that is read from a file that states its width itself. A larger width is taken for damage.
pub(crate) const WIDTH_MAX: usize = 1 << 20;

/// Column that is looked for in a file of several columns.
pub(crate) struct Wish {
    /// Name of the wanted values, in words.
    pub what: &'static str,
    /// Column names that are taken before any other.
    pub names: &'static [&'static str],
    /// Whether a column of whole numbers, of other numbers, and of text can be the wanted one.
    #[cfg_attr(
        not(feature = "parquet"),
        expect(dead_code, reason = "only Parquet files have columns of kinds")
    )]
    pub accepts: [bool; 3],
}

/// Column of the items' ids.
pub(crate) const IDS: Wish = Wish { what: "ids", names: &["id", "_id"], accepts: [true, false, true] };

/// Fails where the name of an output does not end in `.npy`.
pub(crate) fn expect_npy(path: &Path, what: &str) -> Result<()> {
    if Format::from_path(path) == Some(Format::Npy) {
        return Ok(());
    }
    Err(Error::option(what, path.display(), "a name that ends in .npy"))
}
