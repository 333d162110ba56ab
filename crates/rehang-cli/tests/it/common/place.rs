//! Runs the real binary in a fresh folder.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rehang_core::Matrix;
use rehang_files::VectorSource;
use serde_json::Value;

use super::PROGRAM;

/// The demo's data, which every checkout has.
pub fn demo(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo").join(name).display().to_string()
}

/// The words of a command line; each `{}` is the next of `values`, which may have blanks.
pub fn words<'a>(line: &'a str, values: &[&'a str]) -> Vec<&'a str> {
    let mut values = values.iter();
    let mut next = || *values.next().expect("a value for each place");
    line.split_whitespace().map(|word| if word == "{}" { next() } else { word }).collect()
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

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(arguments).current_dir(self.folder.path());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the binary runs")
    }

    /// Runs a command that must succeed.
    pub fn finish(&self, arguments: &[&str]) {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }

    /// Runs so many processes of a command at once, and kills each after another while; gives how many had
    /// not ended by then.
    pub fn kill_after<const N: usize>(&self, arguments: &[&str], waits: [Duration; N]) -> u32 {
        let start = || self.command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut children = [(); N].map(|()| start().expect("the binary runs"));
        let mut killed = 0;
        for (child, wait) in children.iter_mut().zip(waits) {
            #[allow(
                clippy::disallowed_methods,
                reason = "the processes are killed at any moment of their work"
            )]
            std::thread::sleep(wait);
            killed += u32::from(child.try_wait().expect("a child").is_none());
            drop(child.kill());
            child.wait().expect("a child");
        }
        killed
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
        rehang_files::write_matrix(self.path(name), matrix, None).expect("a matrix is written");
        self.text(name)
    }

    pub fn write_labels(&self, name: &str, labels: &[i64]) -> String {
        rehang_files::write_labels(self.path(name), labels).expect("labels are written");
        self.text(name)
    }

    pub fn write_bytes(&self, name: &str, bytes: &[u8]) -> String {
        fs_err::write(self.path(name), bytes).expect("a file is written");
        self.text(name)
    }
}

/// Says what is wrong with how bad input was refused. There has to be one error that says the words, with
/// code 2 and without a result, and the folder has to be as it was `before`.
pub fn faults_of_refusal(
    why: &str,
    output: &Output,
    says: &[&str],
    (place, before): (&Place, &[String]),
) -> Vec<String> {
    let mut faults = Vec::new();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let errors = stderr.lines().filter(|line| line.starts_with("Error: ")).count();
    if output.status.code() != Some(2) {
        faults.push(format!("{why}: exit code {:?}; stderr: {stderr}", output.status.code()));
    } else if errors != 1 || stderr.contains("panicked") {
        faults.push(format!("{why}: {errors} errors: {stderr}"));
    }
    let missing = says.iter().filter(|word| !stderr.contains(**word));
    faults.extend(missing.map(|word| format!("{why}: {word:?} is missing in: {stderr}")));
    if !output.stdout.is_empty() {
        faults.push(format!("{why}: printed a result: {}", String::from_utf8_lossy(&output.stdout)));
    }
    let after = place.names();
    if after != before {
        faults.push(format!("{why}: left {after:?}"));
    }
    faults
}

/// The first items of the demo's gallery (role 1) in files of a place: old, new and labels.
pub fn demo_gallery(place: &Place, items: usize) -> [String; 3] {
    let column =
        |name: &str| rehang_files::read_labels(&VectorSource::path(demo(name))).expect("the demo's labels");
    let role = column("role.npy");
    let rows: Vec<usize> = (0..role.len()).filter(|&row| role[row] == 1).take(items).collect();
    let labels = column("label.npy");
    let labels: Vec<i64> = rows.iter().map(|&row| labels[row]).collect();
    let cut = |name: &str| {
        let whole = rehang_files::read_matrix(&VectorSource::path(demo(name))).expect("the demo's vectors");
        place.write_matrix(name, &whole.select(&rows))
    };
    [cut("old.npy"), cut("new.npy"), place.write_labels("labels.npy", &labels)]
}

/// A matrix of smooth, distinct numbers.
pub fn waves(rows: usize, columns: usize, seed: usize) -> Matrix {
    Matrix::from_fn(rows, columns, |row, column| {
        ((row * 31 + column * 17 + seed * 7) as f32 * 0.37).sin() + (row % 7) as f32 * 0.3
    })
}
