//! `rehang curve`.

use std::fmt::Write;

use rehang_core::Result;
use rehang_core::curve::{Line, Metric};
use rehang_core::statistics::Interval;
use rehang_evaluate::{CurveAnswer, CurveFiles, TABLE, curve, further};

use super::{Exit, one_decimal, say_findings};
use crate::arguments::library::Argument;
use crate::arguments::vectors::CurveArguments;
use crate::bar::with_bar;

/// Computes the exact curve of one adapted gallery and one order.
pub fn run(arguments: &CurveArguments, json: bool) -> Result<Exit> {
    let files: CurveFiles = arguments.value()?;
    let answer = with_bar(|progress| curve(&files, progress))?;
    say_findings(&answer.findings);
    let mut text = match answer.agreement() {
        None => labelled(&answer),
        Some((metric, line)) => label_free(&answer, metric, line),
    };
    if let Some(sigma) = &answer.sigma {
        let tau = sigma.kendall_tau.map_or("undefined".into(), |tau| format!("{tau:.2}"));
        let ratio = sigma.calibration.ratio;
        let _ =
            writeln!(text, "σ²: Kendall τ-b with the true error {tau}, mean σ² / mean true error {ratio:.2}");
    }
    Exit::done_if(!answer.is_refused).print(json, &answer.to_json(), &text)
}

fn labelled(answer: &CurveAnswer) -> String {
    let exact = &answer.curve;
    let lines: [&Line; 3] = TABLE.map(|metric| &exact.lines[metric]);
    let mut text = format!(
        "{} items, {} queries counted ({} without a right answer, {} unlabelled)\n\n{:<12} {:>7} {:>7} {:>7}\n",
        exact.items,
        exact.queries.counted,
        exact.queries.without_positives,
        exact.queries.unlabelled,
        "percent",
        "top-1",
        "top-5",
        "mAP"
    );
    let mut row = |name: &str, of: [f64; 3]| {
        let [a, b, c] = of.map(one_decimal);
        let _ = writeln!(text, "{name:<12} {a:>7} {b:>7} {c:>7}");
    };
    if let Some(today) = &exact.do_nothing {
        row("do nothing", TABLE.map(|metric| today.evaluation.values[metric]));
    }
    row("start", lines.map(Line::start));
    row("minimum", lines.map(Line::min));
    row("end", lines.map(Line::end));
    row("area", lines.map(Line::area));
    if let Some(of) = &answer.intervals {
        let [a, b, c] = TABLE.map(|metric| between(of[metric]));
        let _ = writeln!(text, "area, 95 % intervals over queries: top-1 {a}, top-5 {b}, mAP {c}");
    }
    for (metric, line) in further(exact) {
        let (start, end, area) = (line.start(), line.end(), line.area());
        let _ = writeln!(text, "{metric}: start {start:.1}, end {end:.1}, area {area:.1}");
    }
    if let Some(points) = answer.grid {
        let [a, b, c] = lines.map(|line| line.grid(points).mean);
        let _ = writeln!(text, "mean of {points} points: top-1 {a:.2}, top-5 {b:.2}, mAP {c:.2}");
    }
    if let Some(gap) = &exact.gap {
        let (start, end, area) = (gap.start(), gap.end(), gap.area());
        let _ = writeln!(text, "gap between groups (top-1): start {start:.1}, end {end:.1}, area {area:.1}");
    }
    text
}

fn label_free(answer: &CurveAnswer, metric: Metric, line: &Line) -> String {
    let mut text = format!(
        "{} items, no labels: {metric} with the fully native gallery, in percent\nstart {:.1}, minimum {:.1}, end {:.1}, area {:.1}\n",
        answer.items,
        line.start(),
        line.min(),
        line.end(),
        line.area()
    );
    if let Some(intervals) = &answer.intervals {
        let _ = writeln!(text, "area, 95 % interval over queries: {}", between(intervals[metric]));
    }
    text
}

fn between(interval: Interval) -> String {
    format!("{:.1}–{:.1}", interval.low, interval.high)
}
