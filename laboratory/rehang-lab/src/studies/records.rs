//! Records of measurements: files of JSON lines, and the pages that are made of them.

use std::path::{Path, PathBuf};

use rehang_core::{Error, Result};
use rehang_files::{AtomicFile, read_lines};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Reads the rows of a record; none where there is no file yet.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let parsed =
        |line: &String| serde_json::from_str(line).map_err(|error| Error::corrupt(path.display(), error));
    read_lines(path)?.iter().filter(|line| !line.trim().is_empty()).map(parsed).collect()
}

/// Writes rows as the lines of a record.
pub fn lines(rows: &[impl Serialize]) -> Result<String> {
    let line = |row| serde_json::to_string(row).map_err(|error| Error::corrupt("a record", error));
    rows.iter().map(|row| Ok(line(row)? + "\n")).collect()
}

/// Writes a file, and the folder that it lies in where that is not there.
pub fn write(path: &str, text: &str) -> Result<()> {
    create_folder_of(path)?;
    AtomicFile::write(path, text)
}

/// Writes a text below a line of a page. What stands above the line stays, and what stood below it goes.
pub fn write_below(page: &str, line: &str, text: &str) -> Result<()> {
    let before = fs_err::read_to_string(page).map_err(|error| Error::io("read", page, &error))?;
    let (above, _) = before
        .split_once(line)
        .ok_or_else(|| Error::corrupt(page, "the line that the table stands below is not there"))?;
    write(page, &format!("{above}{line}\n{text}"))
}

/// Makes the folder that a file lies in.
pub fn create_folder_of(path: &str) -> Result<()> {
    let Some(folder) = Path::new(path).parent() else { return Ok(()) };
    fs_err::create_dir_all(folder).map_err(|error| Error::io("create", folder, &error))
}

/// Root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new(".")).to_path_buf()
}
