//! `rehang report`.

use std::fmt::Write as _;
use std::path::PathBuf;

use rehang_core::finding::{Finding, FindingCode, Severity};
use rehang_core::report::{Report, percent_rounded_up};
use rehang_core::{Error, Result, Verdict};
use rehang_evaluate::{ReportFiles, report};
use rehang_files::{AtomicFile, is_same_file};
use rehang_report::Format;
use serde_json::json;

use super::{Exit, one_decimal, say_findings};
use crate::arguments::library::options;
use crate::arguments::vectors::ReportArguments;
use crate::bar::with_bar;
use crate::wording;

/// Compares adapters and orders on a gallery and writes the report.
pub fn run(arguments: &ReportArguments, json: bool) -> Result<Exit> {
    let report = make(arguments)?;
    let text = verdict(&report);
    let paths: Vec<String> = arguments.output.iter().map(|path| path.display().to_string()).collect();
    let value = json!({ "report": paths[0], "reports": paths, "data": report });
    outcome(&report).print(json, &value, &format!("{text}Report: {}\n", paths.join(", ")))
}

/// Says how a report ended: done, or with refusals where a warning says that it is not to be relied on.
pub fn outcome(report: &Report) -> Exit {
    let is_severe = report.warnings.iter().any(|warning| warning.severity == Severity::Problem);
    Exit::done_if(!is_severe)
}

/// Makes the report and writes it to every output.
pub fn make(arguments: &ReportArguments) -> Result<Report> {
    let files = options!(
        ReportFiles {
            adapters, old, new, join, pairs_old, pairs_rows, force, rows, answers, gallery, gallery_labels, gallery_ids, head, random_orders, seed, bootstrap, widths, title,
            output
        } from arguments,
        side: arguments.side.iter().cloned().collect(),
        orders: arguments.orders.iter().map(|name| name.trim().parse()).collect::<Result<_>>()?,
        precisions: arguments.precisions.iter().map(|name| name.trim().parse()).collect::<Result<_>>()?,
        gallery_items: None,
        judged: None,
        bridge: None,
        command: command()
    );
    expect_outputs(&files.output)?;
    let reported = with_bar(|progress| report(&files, progress))?;
    write(&reported.report, &reported.findings, &files.output)?;
    Ok(reported.report)
}

/// Fails before the work where an output is named twice, has an ending of no known format, or cannot be made.
pub fn expect_outputs(outputs: &[PathBuf]) -> Result<()> {
    for (place, path) in outputs.iter().enumerate() {
        if outputs[..place].iter().any(|other| is_same_file(other, path)) {
            return Err(Error::option("output", path.display(), "each file once"));
        }
        Format::from_path(path)?;
        drop(AtomicFile::create(path)?);
    }
    Ok(())
}

/// Says what was found, and writes a report to every output.
pub fn write(report: &Report, findings: &[Finding], outputs: &[PathBuf]) -> Result<()> {
    let warnings = report.warnings.iter().filter(|warning| warning.severity != Severity::Note);
    say_findings(findings.iter().chain(warnings));
    for path in outputs {
        rehang_files::AtomicFile::write(path, Format::from_path(path)?.render(report))?;
    }
    Ok(())
}

/// Says in words the numbers of a report that matter.
pub fn verdict(report: &Report) -> String {
    let (Some(metric), Some(curve)) = (report.headline_metric(), report.headline_curve()) else {
        return String::new();
    };
    let line = &curve.metrics[&metric.id];
    let interval = report.gallery.as_ref().and_then(|gallery| gallery.do_nothing.get(&metric.id)?.interval());
    let range = interval.map(|(low, high)| format!(" ({}–{})", one_decimal(low), one_decimal(high)));
    let today = report.do_nothing.get(&metric.id).map_or("not measured".into(), |&value| one_decimal(value))
        + &range.unwrap_or_default();
    let crossing = match report.verdict() {
        Verdict::NotMeasured => "do-nothing line not measured".into(),
        Verdict::DoNotSwitch => "never above doing nothing".into(),
        verdict @ (Verdict::SwitchNow | Verdict::ReembedFirst { .. }) => {
            let fraction = percent_rounded_up(verdict.passes_at().unwrap_or_default());
            format!("above doing nothing from {fraction:.1} % re-embedded on")
        }
    };
    let bridge = report.gallery.as_ref().and_then(|gallery| gallery.bridge.get(&metric.id));
    let bridge = bridge.map_or_else(String::new, |of| format!(" → over a bridge {}", one_decimal(of.value)));
    let falls = report.warnings.iter().find(|warning| warning.code == FindingCode::AnotherMetricFalls);
    let mut text = falls.map_or_else(String::new, |falls| format!("{}\n", falls.seen));
    let _ = writeln!(
        text,
        "{} of {}: do nothing {today}{bridge} → at the switch {} → fully re-embedded {} percent ({crossing})",
        metric.name,
        curve.name(),
        one_decimal(line.start),
        one_decimal(line.end)
    );
    for other in report.metrics.iter().filter(|other| other.primary && other.id != metric.id) {
        let Some(line) = curve.metrics.get(&other.id) else { continue };
        let today =
            report.do_nothing.get(&other.id).map_or("not measured".into(), |&value| one_decimal(value));
        let (start, end) = (one_decimal(line.start), one_decimal(line.end));
        let _ = writeln!(
            text,
            "{}: do nothing {today} → at the switch {start} → fully re-embedded {end}",
            other.name
        );
    }
    if let Some(gallery) = &report.gallery {
        let enough = line.enough.map_or_else(
            || "no share of it can be told".to_owned(),
            |share| {
                let [at, low, high] = [share.fraction, share.low, share.high].map(|share| 100.0 * share);
                format!("98 % of the end from {at:.0} % native on ({low:.0}–{high:.0})")
            },
        );
        let _ = writeln!(text, "A forecast for a gallery of {} items: {enough}", gallery.speaks_of);
    }
    text
}

/// Gives the command line as it was given, written so that a shell reads it again.
fn command() -> String {
    shell_line(wording::line())
}

/// Writes a call of rehang with these arguments as a shell reads it.
pub fn shell_line(arguments: impl IntoIterator<Item: AsRef<str>>) -> String {
    arguments.into_iter().fold("rehang".into(), |line, argument| line + " " + &quoted(argument.as_ref()))
}

/// Writes an argument as a shell reads it: in quotes where it holds anything that a shell may not take
/// literally.
fn quoted(argument: &str) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "_./=:,@%+-".contains(character);
    if !argument.is_empty() && argument.chars().all(is_plain) {
        return argument.to_owned();
    }
    format!("'{}'", argument.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn an_argument_is_written_as_a_shell_reads_it() {
        for (argument, written) in [
            ("--rows", "--rows"),
            ("role.npy=0,1", "role.npy=0,1"),
            ("see it's", r"'see it'\''s'"),
            ("", "''"),
            ("a;b", "'a;b'"),
            ("$HOME/*", "'$HOME/*'"),
            ("tränen.npy#vectors", "'tränen.npy#vectors'"),
        ] {
            assert_eq!(quoted(argument), written);
        }
    }
}
