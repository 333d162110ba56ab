//! Renders rehang's report data ([`rehang_core::report::Report`]) and its comparisons of methods
//! ([`rehang_core::comparison::Comparison`]) as one offline HTML page, as Markdown and as JSON.
//!
//! This crate knows report data and nothing else: no vectors, no files, no clock. The same report gives the
//! same bytes.
//!
//! - [`html`]: one file with inline CSS and SVG; light and dark, for screen, phone and paper. It holds no
//!   script and asks the network for nothing.
//! - [`markdown`]: the same words and tables, for a pull request or a terminal.
//! - [`json`]: the report data itself, for scripts.
//! - [`comparison_html`], [`comparison_markdown`], [`comparison_json`]: HTML, Markdown and JSON for a
//!   comparison of methods.
//! - [`svg_curve`]: one chart as a file of its own, readable on white and on dark pages.
//!
//! All text that comes from data is escaped; numbers that are not finite are shown as `–` and never drawn.

mod chart;
mod document;
mod html;
mod json;
mod markdown;
mod methods;
mod numbers;
mod palette;
mod scale;
mod text;

use std::path::Path;

use rehang_core::Error;
use rehang_core::comparison::Comparison;
use rehang_core::report::Report;

pub use chart::{Axis, Chart, ChartLine, Level, Look, Note};
pub use scale::Scale;

/// Renders a report as one self-contained HTML file.
///
/// ```
/// use rehang_core::report::{CreatedBy, Report, Spaces};
/// use rehang_core::{Distance, Space};
///
/// let space = |model: &str| Space::new(model, 64, Distance::Cosine, true);
/// let spaces = Spaces { old: space("resnet18-2019"), new: space("resnet50-2026") };
/// let report = Report::new("Shoes & bags", CreatedBy::default(), spaces);
/// let page = rehang_report::html(&report);
/// assert!(page.starts_with("<!DOCTYPE html>") && page.contains("<h1>Shoes &amp; bags</h1>"));
/// ```
pub fn html(report: &Report) -> String {
    html::write(&document::document(report))
}

/// Renders a report as Markdown: the words and tables of [`html`] without the charts.
pub fn markdown(report: &Report) -> String {
    markdown::write(&document::document(report))
}

/// Renders a report as JSON: its serde form, indented, each list of numbers on one line. Numbers that are not
/// finite are `null`.
pub fn json(report: &Report) -> String {
    json::write(report)
}

/// Form of a report, chosen by the extension of its file.
///
/// ```
/// use rehang_report::Format;
///
/// assert!(Format::from_path("report.html".as_ref()).is_ok());
/// let error = Format::from_path("report.pdf".as_ref()).unwrap_err().to_string();
/// assert_eq!(error, "output cannot be \"report.pdf\"; expected a name that ends in .html, .md or .json");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One page that opens offline: `.html`, `.htm`.
    Html,
    /// Markdown: `.md`.
    Markdown,
    /// Data of the report: `.json`.
    Json,
}

impl Format {
    /// Chooses the form for a path.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`](rehang_core::ErrorKind::InvalidOption) for any other name.
    pub fn from_path(path: &Path) -> rehang_core::Result<Self> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("html" | "htm") => Ok(Self::Html),
            Some("md") => Ok(Self::Markdown),
            Some("json") => Ok(Self::Json),
            _ => Err(Error::option("output", path.display(), "a name that ends in .html, .md or .json")),
        }
    }

    /// Renders the report in this form.
    pub fn render(self, report: &Report) -> String {
        match self {
            Self::Html => html(report),
            Self::Markdown => markdown(report),
            Self::Json => json(report),
        }
    }
}

/// Renders a comparison of methods as one self-contained HTML file.
///
/// For every part of the data it holds the methods side by side with the numbers of the papers, the backfill
/// in every order, and the curves. Numbers are means over seeds, with one standard deviation where there is
/// more than one seed. A number that is not defined, such as NaN or Γ where the criterion fails in every
/// seed, is shown as `–`. A comparison without outcomes gives a page that says so.
///
/// ```
/// use rehang_core::comparison::{Comparison, MethodOutcome, Quality};
///
/// let quality = |map: f64| Quality { top1: map + 20.0, map };
/// let comparison = Comparison {
///     title: "Birds & beasts".into(),
///     setting: vec!["ResNet-18 to ResNet-50.".into()],
///     version: "0.1.0".into(),
///     outcomes: vec![MethodOutcome {
///         method: "bct".into(),
///         seed: 0,
///         part: "test".into(),
///         encoder: None,
///         old_old: quality(40.0),
///         new_old: quality(50.0),
///         new_new: quality(58.0),
///         best_best: quality(60.0),
///         backfills: Vec::new(),
///         protocols: Vec::new(),
///     }],
///     warnings: Vec::new(),
/// };
/// let page = rehang_report::comparison_html(&comparison);
/// assert!(page.starts_with("<!DOCTYPE html>") && page.contains("<h1>Birds &amp; beasts</h1>"));
/// // Γ: half of what a full backfill gains comes without any.
/// assert!(rehang_report::comparison_markdown(&comparison).contains("| bct | 40.0 | 50.0 | 58.0 | 1/1 | 50.0 |"));
/// ```
pub fn comparison_html(comparison: &Comparison) -> String {
    html::write(&methods::document(comparison))
}

/// Renders a comparison of methods as Markdown: the words and tables of [`comparison_html`] without the
/// charts.
pub fn comparison_markdown(comparison: &Comparison) -> String {
    markdown::write(&methods::document(comparison))
}

/// Renders a comparison of methods as JSON: its serde form, written as [`json`] writes a report.
pub fn comparison_json(comparison: &Comparison) -> String {
    json::write(comparison)
}

/// Draws a chart as an SVG file of its own, in colours that can be read on white and on dark pages.
///
/// See [`Chart`] for an example, and [`metric_chart`] for the charts of a report.
pub fn svg_curve(chart: &Chart) -> String {
    let mut svg = chart::draw(chart, chart::Canvas::Standalone, "chart");
    svg.push('\n');
    svg
}

/// Makes the chart of one metric (by [`rehang_core::report::ShownMetric::id`]) along every curve of a report. It
/// has bands, and lines for doing nothing and for the new model. `None` where no curve has that metric.
pub fn metric_chart(report: &Report, metric: &str) -> Option<Chart> {
    document::metric_chart(report, metric)
}
