//! `cargo xtask picture [REPORT.json [OUT.svg [TRUTH.json]]]`: the README's picture from the report of a demo
//! run, or a picture of another report.

use rehang_core::report::Report;
use rehang_core::{Error, Result};
use rehang_files::AtomicFile;
use rehang_report::{ChartLine, Level, Look};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Path of the README's picture.
pub const README: &str = "docs/curve.svg";

/// Measurement by `scripts/live-forecast.py` in a live gallery: shares of native items with mAP in percent.
#[derive(Deserialize)]
struct Truth {
    points: Vec<(f64, f64)>,
    /// Quality of bridged queries on the untouched gallery: mAP in percent.
    bridge: Option<f64>,
}

/// Draws the mAP curves of a report; with a file of what was true, the headline curve and the truth alone.
pub fn run(path: &str, output: &str, truth: Option<&str>) -> Result<()> {
    let report: Report = read(path)?;
    let mut chart =
        rehang_report::metric_chart(&report, "map").ok_or_else(|| Error::missing("a curve of mAP", path))?;
    if let Some(truth) = truth.map(read::<Truth>).transpose()? {
        chart.lines.truncate(1);
        chart.lines[0].name = "forecast".into();
        // The end of the forecast's line says already what it forecasts of the end.
        chart.levels.retain(|level| !level.name.starts_with("new model"));
        let bridge = truth.bridge.map(|value| Level { name: "bridge, live".into(), value, dotted: true });
        chart.levels.extend(bridge);
        let measured: Vec<(f64, f64)> =
            truth.points.iter().map(|&(share, value)| (100.0 * share, value)).collect();
        let measured = ChartLine::new("measured, live", measured);
        chart.lines.push(ChartLine { look: Look::MarkedAtEveryPoint(1), ..measured });
    }
    AtomicFile::write(output, rehang_report::svg_curve(&chart))
}

fn read<T: DeserializeOwned>(path: &str) -> Result<T> {
    let text = fs_err::read_to_string(path).map_err(|error| Error::io("read", path, &error))?;
    serde_json::from_str(&text).map_err(|error| Error::corrupt(path, error))
}
