//! `rehang report`.

use std::path::Path;

use rehang::adapter::RowOverlap;
use rehang::files::AtomicFile;
use rehang::order::Policy;
use rehang::report::{Report as ReportData, Severity as WarningSeverity, Warning};
use rehang::study::{Contender, Ground, Queries, StudyOptions, lookalikes, overlap, overlap_warning, study};
use rehang::{Adapter, Error, Matrix, Result, Vectors};
use rehang_train::guards::{Finding, Severity as FindingSeverity};
use serde_json::json;

use super::{Outcome, is_same_file, one_decimal, print, say, write_text};
use crate::arguments::{Report, RowSelection};
use crate::bar::with_bar;
use crate::drift::drift;
use crate::guards::{adapter_findings, among_pairs};
use crate::input::{Inputs, Join};
use crate::relevance::Loaded;

/// Compares adapters and orders on a gallery and writes the report.
pub fn run(arguments: &Report, json: bool) -> Result<Outcome> {
    let report = make(arguments)?;
    let text = verdict(&report);
    let paths: Vec<String> = arguments.output.iter().map(|path| path.display().to_string()).collect();
    let value = json!({ "report": paths[0], "reports": paths, "data": report });
    print(json, &value, &format!("{text}Report: {}\n", paths.join(", ")))?;
    let severe = report.warnings.iter().any(|warning| warning.severity == WarningSeverity::Severe);
    Ok(if severe { Outcome::WithRefusals } else { Outcome::Done })
}

/// Makes the report and writes it to every output.
pub fn make(arguments: &Report) -> Result<ReportData> {
    for (place, path) in arguments.output.iter().enumerate() {
        if arguments.output[..place].iter().any(|other| is_same_file(other, path)) {
            return Err(Error::option("-o", path.display(), "each file once"));
        }
        format_of(path)?;
        drop(AtomicFile::create(path)?);
    }
    let policies: Vec<Policy> =
        arguments.orders.iter().map(|name| name.trim().parse()).collect::<Result<_>>()?;
    let adapters: Vec<Adapter> = arguments.adapters.iter().map(Adapter::load).collect::<Result<_>>()?;
    let mut inputs = Inputs::new(&arguments.selection)?;
    let old = inputs.matrix("old", &arguments.old)?;
    let new = inputs.matrix("new", &arguments.new)?;
    let join = Join::read(&arguments.ids, old.rows(), new.rows(), &arguments.selection)?;
    let (old, new) = (join.old_side("old vectors", old)?, join.new_side(new));
    let old_path = arguments.old.join(", ");
    // The adapters say which spaces these files are of; an adapter of other spaces is refused by the study.
    let mut foreign = Vec::new();
    for adapter in &adapters {
        adapter.expect_input_width(old.columns()).map_err(|error| error.context(old_path.clone()))?;
        foreign.push(drift(adapter, &old, &old_path, arguments.force)?);
    }
    let old = Vectors::new(adapters[0].old.clone(), old, &old_path)?;
    let new = Vectors::new(adapters[0].new.clone(), new, &arguments.new.join(", "))?;
    let side = match &arguments.side {
        None => None,
        Some(path) => {
            let side = inputs.matrix("side", std::slice::from_ref(path))?;
            Some(join.old_side("side information", side)?)
        }
    };
    let loaded = Loaded::read(&arguments.relevance, &mut inputs, &join, new.len(), None)?;
    loaded.say_idle(&[]);
    let head = inputs.head(&arguments.head)?;
    let ground = Ground {
        old: &old,
        new: &new,
        side: side.as_ref(),
        queries: loaded
            .queries
            .as_ref()
            .map(|queries| Queries { new: queries, old: loaded.queries_old.as_ref() }),
        relevance: loaded.relevance(),
        groups: loaded.groups.as_deref(),
        head: head.as_ref(),
    };
    let contenders: Vec<Contender<'_>> = adapters
        .iter()
        .zip(&arguments.adapters)
        .enumerate()
        .map(|(place, (adapter, path))| Contender { name: name(&adapters, place, path), adapter })
        .collect();
    let options = StudyOptions {
        policies,
        random_orders: arguments.random_orders,
        bootstrap: arguments.bootstrap,
        k: arguments.relevance.k,
        seed: arguments.seed,
    };
    let mut report = with_bar(|progress| study(&ground, &contenders, &options, progress))?;
    report.title.clone_from(&arguments.title);
    report.created_by.version = env!("CARGO_PKG_VERSION").into();
    report.created_by.command = command();
    report.created_by.seeds = vec![arguments.seed];
    for (adapter, path) in adapters.iter().zip(&arguments.adapters) {
        for (role, fingerprint) in &adapter.training.inputs {
            let role = format!("pairs of {}: {role}", path.display());
            inputs.note(&role, "(kept in the adapter)", adapter.training.pairs, None, fingerprint.clone());
        }
    }
    let overlap = overlap_with_pairs(arguments, &adapters, old.matrix())?;
    if let Some((overlapping, is_exact)) = overlap {
        if let Some(set) = report.measured_on.first_mut() {
            set.overlapping_items = Some(overlapping);
            set.overlap_is_estimated = !is_exact;
        }
        if overlapping > 0 {
            report
                .warnings
                .insert(0, overlap_warning(overlapping, old.len(), is_exact, lookalikes(old.matrix())));
        }
    }
    for contender in &contenders {
        for finding in adapter_findings(contender.adapter, old.matrix(), new.matrix(), side.as_ref())? {
            report.warnings.insert(0, direction_warning(&contender.name, &finding));
        }
    }
    for (contender, seen) in contenders.iter().zip(foreign) {
        let Some(seen) = seen else { continue };
        report.warnings.insert(
            0,
            Warning {
                id: "drift".into(),
                severity: WarningSeverity::Severe,
                seen: format!("{}: {seen}.", contender.name),
                may_mean: "The gallery is of another model than the pairs, or of quite other items: errors are larger, and σ² may \
                           not show it."
                    .into(),
                remedy: "Check which model made the file; fit on pairs that are drawn from this gallery.".into(),
            },
        );
    }
    for warning in &report.warnings {
        let word = if warning.severity == WarningSeverity::Severe { "Problem" } else { "Warning" };
        if warning.severity != WarningSeverity::Note {
            say(&format!("{word}: {} {} {}", warning.seen, warning.may_mean, warning.remedy));
        }
    }
    report.inputs = inputs.read;
    for path in &arguments.output {
        write(path, &report)?;
    }
    Ok(report)
}

/// Items of the gallery that are among the pairs, and whether that number is exact; `None` where it cannot be told.
fn overlap_with_pairs(
    arguments: &Report,
    adapters: &[Adapter],
    old: &Matrix,
) -> Result<Option<(usize, bool)>> {
    let fingerprint = old.fingerprint();
    let same = |adapter: &Adapter| adapter.training.inputs.get("old") == Some(&fingerprint);
    if adapters.iter().any(same) {
        return Ok(Some((old.rows(), true)));
    }
    if !arguments.pairs_old.is_empty() {
        let mut inputs = Inputs::new(&RowSelection { rows: arguments.pairs_rows.clone() })?;
        let pairs = inputs.matrix("pairs", &arguments.pairs_old)?;
        let path = arguments.pairs_old.join(", ");
        adapters[0].expect_input_width(pairs.columns()).map_err(|error| error.context(path))?;
        return Ok(Some((overlap(&pairs, old), true)));
    }
    let counted = adapters.iter().filter_map(|adapter| among_pairs(adapter, old));
    let most = counted.max_by_key(RowOverlap::among_pairs);
    Ok(most.map(|overlap| (overlap.among_pairs(), overlap.is_exact())))
}

/// What a guard found about an adapter, as a warning of the report.
fn direction_warning(name: &str, finding: &Finding) -> Warning {
    Warning {
        id: finding.code.clone(),
        severity: match finding.severity {
            FindingSeverity::Note => WarningSeverity::Note,
            FindingSeverity::Warning => WarningSeverity::Caution,
            FindingSeverity::Problem => WarningSeverity::Severe,
        },
        seen: format!("{name}: {}.", finding.message),
        may_mean: "Curves of this adapter say nothing about the upgrade.".into(),
        remedy: "Check which model made which file, and that rows go together; then fit again.".into(),
    }
}

/// Writes a report in the format that the path asks for.
pub fn write(path: &Path, report: &ReportData) -> Result<()> {
    let text = match format_of(path)? {
        Format::Html => rehang_report::html(report),
        Format::Markdown => rehang_report::markdown(report),
        Format::Json => rehang_report::json(report),
    };
    write_text(path, &text)
}

enum Format {
    Html,
    Markdown,
    Json,
}

fn format_of(path: &Path) -> Result<Format> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("html" | "htm") => Ok(Format::Html),
        Some("md") => Ok(Format::Markdown),
        Some("json") => Ok(Format::Json),
        _ => Err(Error::option("-o", path.display(), "a name that ends in .html, .md or .json")),
    }
}

/// The numbers that matter, in words.
pub fn verdict(report: &ReportData) -> String {
    let (Some(metric), Some(curve)) = (report.headline_metric(), report.headline_curve()) else {
        return String::new();
    };
    let line = &curve.metrics[&metric.id];
    let today = report.do_nothing.get(&metric.id).map_or("not measured".into(), |&value| one_decimal(value));
    let crossing = match line.passes_do_nothing_at {
        Some(fraction) => format!("above doing nothing from {:.1} % re-embedded on", 100.0 * fraction),
        None if report.do_nothing.is_empty() => "do-nothing line not measured".into(),
        None => "never above doing nothing".into(),
    };
    format!(
        "{} of {}: do nothing {today} → at the switch {} → fully re-embedded {} percent ({crossing})\n",
        metric.name,
        curve.name(),
        one_decimal(line.start),
        one_decimal(line.end)
    )
}

/// The method's name, told apart by its file where several adapters share it.
fn name(adapters: &[Adapter], place: usize, path: &Path) -> String {
    let method = &adapters[place].training.method;
    if adapters.iter().filter(|adapter| adapter.training.method == *method).count() > 1 {
        let stem =
            path.file_stem().map_or_else(|| path.display().to_string(), |stem| stem.to_string_lossy().into());
        return format!("{method} ({stem})");
    }
    method.clone()
}

/// The command line as it was given.
pub fn command() -> String {
    let quoted = |argument: String| {
        if argument.contains(' ') { format!("'{argument}'") } else { argument }
    };
    std::iter::once("rehang".to_owned())
        .chain(std::env::args().skip(1).map(quoted))
        .collect::<Vec<_>>()
        .join(" ")
}
