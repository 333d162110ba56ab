//! Runs the real binary in a fresh folder.
#![allow(dead_code, reason = "each test file needs a part of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rehang::Matrix;
use rehang::files;
use serde_json::Value;

/// The demo's data, which every checkout has.
pub fn demo(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo").join(name).display().to_string()
}

/// A fresh folder and what runs in it.
pub struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_rehang"))
            .args(arguments)
            .current_dir(self.folder.path())
            .output()
            .expect("the binary runs")
    }

    /// Runs a command that must succeed with `--json`, and gives its one JSON object.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let mut all = arguments.to_vec();
        all.push("--json");
        let output = self.run(&all);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{arguments:?} failed: {stderr}");
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            panic!("{arguments:?} printed no JSON ({error}): {}", String::from_utf8_lossy(&output.stdout))
        })
    }

    /// Names of the files that are there.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = fs_err::read_dir(self.folder.path())
            .expect("the folder is there")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    pub fn write_matrix(&self, name: &str, matrix: &Matrix) -> String {
        files::write_matrix(self.path(name), matrix, None).expect("a matrix is written");
        self.text(name)
    }

    pub fn write_labels(&self, name: &str, labels: &[i64]) -> String {
        files::write_labels(self.path(name), labels).expect("labels are written");
        self.text(name)
    }

    pub fn write_bytes(&self, name: &str, bytes: &[u8]) -> String {
        let mut file = files::AtomicFile::create(self.path(name)).expect("a file is made");
        file.put(bytes).and_then(|()| file.commit()).expect("a file is written");
        self.text(name)
    }
}

/// A matrix of smooth, distinct numbers.
pub fn waves(rows: usize, columns: usize, seed: usize) -> Matrix {
    Matrix::from_fn(rows, columns, |row, column| {
        ((row * 31 + column * 17 + seed * 7) as f32 * 0.37).sin() + (row % 7) as f32 * 0.3
    })
}
