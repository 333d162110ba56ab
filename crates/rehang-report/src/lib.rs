//! Renders rehang's report data ([`rehang::report::Report`]) as one offline HTML page, as Markdown and as JSON.
//!
//! This crate knows report data and nothing else: no vectors, no files, no clock. The same report gives the same bytes.
//!
//! - [`html`]: one file with inline CSS and SVG; light and dark, for screen, phone and paper. It holds no script and
//!   asks the network for nothing.
//! - [`markdown`]: the same words and tables, for a pull request or a terminal.
//! - [`json`]: the report data itself, for scripts.
//! - [`svg_curve`]: one chart as a file of its own, readable on white and on dark pages.
//!
//! All text that comes from data is escaped; numbers that are not finite are shown as `–` and never drawn.

mod chart;
mod document;
mod html;
mod json;
mod markdown;
mod numbers;
mod palette;
mod scale;
mod text;

use rehang::report::Report;

pub use chart::{Axis, Chart, Level, Line, Look, Note};
pub use scale::Scale;

/// The report as one self-contained HTML file.
///
/// ```
/// use rehang::report::{CreatedBy, Report, Spaces};
/// use rehang::{Distance, Space};
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

/// The report as Markdown: the words and tables of [`html`] without the charts.
pub fn markdown(report: &Report) -> String {
    markdown::write(&document::document(report))
}

/// The report as JSON: its serde form, indented, each list of numbers on one line; numbers that are not finite are
/// `null`.
pub fn json(report: &Report) -> String {
    json::write(report)
}

/// A chart as an SVG file of its own, in colours that can be read on white and on dark pages.
///
/// See [`Chart`] for an example, and [`metric_chart`] for the charts of a report.
pub fn svg_curve(chart: &Chart) -> String {
    let mut svg = chart::draw(chart, chart::Canvas::Standalone, "chart");
    svg.push('\n');
    svg
}

/// The chart of one metric (by [`rehang::report::Metric::id`]) along every curve of a report, with bands and with the
/// lines of doing nothing and of the new model; `None` where no curve has that metric.
pub fn metric_chart(report: &Report, metric: &str) -> Option<Chart> {
    document::metric_chart(report, metric)
}
