//! `rehang fit`.

use std::fmt::Write;

use rehang_core::finding::{Finding, FindingCode, Severity};
use rehang_core::{Progress, Result};
use rehang_fit::{FitAnswer, FitFiles, FitParameters, HeldOutGain, NetworkOptions, Selection, fit_files};

use super::{Exit, one_decimal, say_findings};
use crate::addresses;
use crate::arguments::library::options;
use crate::arguments::vectors::FitArguments;

/// Fits an adapter on pairs and writes it.
pub fn run(arguments: &FitArguments, json: bool) -> Result<Exit> {
    let answer = make(arguments)?;
    outcome(&answer).print(json, &answer.to_json(), &text(&answer))
}

/// Says how a fit ended: done, or with refusals where a guard found that the pairs are not to be learned
/// from.
pub fn outcome(answer: &FitAnswer) -> Exit {
    let is_refused = answer.fitted.findings.iter().any(|finding| finding.severity == Severity::Problem);
    Exit::done_if(!is_refused)
}

/// Fits an adapter, writes it, and says what was found.
pub fn make(arguments: &FitArguments) -> Result<FitAnswer> {
    let sources = [&arguments.old, &arguments.new, &arguments.labels, &arguments.side];
    let paths = sources.into_iter().flatten().map(|source| source.path.as_path());
    let answer = addresses::with_bar(paths, |progress| fit_files(&files(arguments, progress)?, progress))?;
    say(&answer);
    Ok(answer)
}

/// Reads the files and options of a fit from its arguments, and fetches those files that are objects.
fn files(arguments: &FitArguments, progress: &Progress) -> Result<FitFiles> {
    Ok(options!(
        FitFiles {
            join, rows, queries_old, queries_new, qrels, ids, query_ids, head, old_model, new_model, distance, old_distance,
            evaluation_old, precision
        } from arguments,
        old: addresses::fetched(&arguments.old, progress)?,
        new: addresses::fetched(&arguments.new, progress)?,
        labels: addresses::fetched(&arguments.labels, progress)?,
        side: addresses::fetched(&arguments.side, progress)?,
        parameters: options!(
            FitParameters { method, seed, metric, within } from arguments,
            compare: !arguments.no_compare;
            ..FitParameters::default()
        ),
        options: options!(
            NetworkOptions {
                epochs, early_stop, seeds, checkpoints, networks, loss, squared, uncertainty, label_smoothing
            } from arguments,
            uncertainty_weights: arguments.uncertainty_weights.as_deref().and_then(|weights| weights.try_into().ok())
        ),
        judged: None,
        output: Some(arguments.output.clone())
    ))
}

/// Says what a fit found, on stderr; of mere notes, four kinds only.
pub fn say(answer: &FitAnswer) {
    // Notes are left out, but for these. Only a person can tell whether the two files were swapped, and
    // whether the new model is better where no label says so. What rounding changes was asked for. Items that
    // need no embedding are worth money.
    let is_said = |finding: &&Finding| {
        let is_asked = matches!(
            finding.code,
            FindingCode::Swapped
                | FindingCode::UnknownWithoutLabels
                | FindingCode::RoundedAdapter
                | FindingCode::SameVectors
        );
        finding.severity != Severity::Note || is_asked
    };
    say_findings(answer.fitted.findings.iter().filter(is_said).chain(&answer.findings));
}

/// Says how methods compared, and what was fitted and written.
pub fn text(answer: &FitAnswer) -> String {
    let fitted = &answer.fitted;
    let training = &fitted.adapter.training;
    let mut text = String::new();
    if let Some(selection) = &fitted.selection {
        table(&mut text, selection);
    }
    if let Some(quality) = &fitted.sigma {
        let tau = quality.kendall_tau.map_or("undefined".into(), |tau| format!("{tau:.2}"));
        let _ = writeln!(text, "σ² against the errors on left-out pairs: Kendall τ-b {tau}");
    }
    if let Some(choice) = &fitted.handicap {
        let (none, chosen) = (&choice.rows[0], &choice.rows[choice.kept]);
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
        let mut gains = format!("{:+.1} {}", mean(&chosen.areas) - mean(&none.areas), choice.criterion);
        if !chosen.top1.is_empty() {
            let _ = write!(gains, ", {:+.1} top-1", mean(&chosen.top1) - mean(&none.top1));
        }
        let _ = writeln!(
            text,
            "Handicap of adapted vectors: {:.4}, {:.0} % of the mean squared error ({gains} over the backfill of left-out pairs)",
            chosen.handicap,
            100.0 * chosen.part,
        );
    }
    if let Some(choice) = &fitted.fusion {
        let chosen = &choice.rows[choice.kept];
        let by = if chosen.weight > 0.0 {
            format!(
                "{:.0} % by the adapted vector, the rest by the old one; over doing nothing at the switch: {}",
                100.0 * chosen.weight,
                gains(&chosen.gains)
            )
        } else {
            "by the old vector alone, since more is not proven to be above doing nothing".into()
        };
        let _ = writeln!(text, "Fused searches judge what is not native {by}");
    }
    let _ = writeln!(
        text,
        "{} fitted on {} pairs ({} → {}){}",
        training.method,
        training.pairs,
        fitted.adapter.old,
        fitted.adapter.new,
        answer.output.iter().map(|path| format!(", written to {}", path.display())).collect::<String>()
    );
    text
}

/// Words gains over doing nothing on held-out pairs, each with its standard error.
pub fn gains(gains: &[HeldOutGain]) -> String {
    let gain = |of: &HeldOutGain| format!("{} {:+.1} ± {:.1} ({})", of.metric, of.gain, of.error, of.gallery);
    gains.iter().map(gain).collect::<Vec<_>>().join(", ")
}

/// Writes how each method does on held-out pairs, and the two lines that all are held against: doing nothing
/// and the new model on everything.
fn table(text: &mut String, selection: &Selection) {
    let queries = selection.queries.map_or(String::new(), |queries| format!(", asked by {queries} queries"));
    let _ = writeln!(
        text,
        "On held-out pairs ({} of known classes, {} of classes left out; {} splits){queries}, {} in percent:\n",
        selection.held_out.0, selection.held_out.1, selection.splits, selection.criterion
    );
    let _ = writeln!(
        text,
        "  {:<16} {:<14} {:>8} {:>8} {:>12} {:>8} {:>8} {:>8}",
        "method", "geometry", "start", "area", "behind", "handicap", "error", "seconds"
    );
    for (place, row) in selection.rows.iter().enumerate() {
        let mark = if selection.kept == Some(place) { '*' } else { ' ' };
        let geometry = row.geometry.map_or("raw", rehang_fit::geometry::GeometryKind::name);
        let behind = match row.spread {
            _ if row.splits < selection.splits => format!("{:.1} (first)", row.behind),
            Some(spread) => format!("{:.1} ± {spread:.1}", row.behind),
            None => one_decimal(row.behind),
        };
        match &row.failure {
            Some(reason) => {
                let _ = writeln!(text, "{mark} {:<16} left out: {reason}", row.method);
            }
            None => {
                let _ = writeln!(
                    text,
                    "{mark} {:<16} {:<14} {:>8} {:>8} {behind:>12} {:>8} {:>8.3} {:>8}",
                    row.method.name(),
                    geometry,
                    one_decimal(row.start),
                    one_decimal(row.area),
                    format!("{:.0} %", 100.0 * row.handicap),
                    row.relative_error,
                    one_decimal(row.seconds)
                );
            }
        }
    }
    if let (Some(chosen), Some(best)) = (selection.kept, selection.best)
        && chosen != best
    {
        let [start, best_start] = [chosen, best].map(|row| selection.rows[row].start);
        let better = if start > best_start { "serves better at the switch" } else { "has a smaller error" };
        let _ = writeln!(
            text,
            "\n* {better} than {} and is not behind it by more than the spread.",
            selection.rows[best].method
        );
    }
    let _ = writeln!(
        text,
        "\n  among these pairs alone: do nothing (old queries, old vectors) {}, new model on everything {}\n  do-nothing as a method: new queries, \
         old vectors as they are\n  start: at the switch; area: mean over the \
         whole backfill, in the default order and with the handicap beside it (percent\n  of the mean squared error); behind: the \
         best area, mean and standard error over the splits; error: as a part of the new\n  vectors' variance\n",
        one_decimal(selection.do_nothing),
        one_decimal(selection.native)
    );
}
