//! `cargo xtask picture [REPORT.json [OUT.svg]]`: the README's picture, from the report of a demo run, or that of another report.

use rehang::report::Report;
use rehang::{Error, Result};
use rehang_files::AtomicFile;

/// The README's picture.
pub const README: &str = "docs/curve.svg";

/// Draws the mAP curves of a report.
pub fn run(path: &str, output: &str) -> Result<()> {
    let text = fs_err::read_to_string(path).map_err(|error| Error::io("read", path, &error))?;
    let report: Report = serde_json::from_str(&text).map_err(|error| Error::corrupt(path, error))?;
    let chart =
        rehang_report::metric_chart(&report, "map").ok_or_else(|| Error::missing("a curve of mAP", path))?;
    AtomicFile::write(output, rehang_report::svg_curve(&chart))
}
