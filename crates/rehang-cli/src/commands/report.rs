//! `rehang report`.

use std::path::{Path, PathBuf};

use rehang::adapter::RowOverlap;
use rehang::files::{self, AtomicFile, VectorSource};
use rehang::finding::{Finding, Severity};
use rehang::order::Policy;
use rehang::report::{Input, Report as ReportData, percent_rounded_up};
use rehang::study::{Contender, Ground, Queries, StudyOptions, lookalikes, overlap, overlap_warning, study};
use rehang::{Adapter, Error, Matrix, Result, Vectors};
use serde_json::json;

use super::{Outcome, expect_apart, is_same_file, one_decimal, print, write_text};
use crate::arguments::{Report, RowSelection};
use crate::bar::with_bar;
use crate::drift::drift;
use crate::guards::{adapter_findings, among_pairs, say_finding};
use crate::input::{Inputs, Join, expect_same_items, files_of, fingerprint, ids_of, rows_file};
use crate::relevance::Loaded;

/// Compares adapters and orders on a gallery and writes the report.
pub fn run(arguments: &Report, json: bool) -> Result<Outcome> {
    let report = make(arguments)?;
    let text = verdict(&report);
    let paths: Vec<String> = arguments.output.iter().map(|path| path.display().to_string()).collect();
    let value = json!({ "report": paths[0], "reports": paths, "data": report });
    print(json, &value, &format!("{text}Report: {}\n", paths.join(", ")))?;
    let severe = report.warnings.iter().any(|warning| warning.severity == Severity::Problem);
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
    expect_other_inputs(arguments)?;
    let policies: Vec<Policy> =
        arguments.orders.iter().map(|name| name.trim().parse()).collect::<Result<_>>()?;
    let adapters: Vec<Adapter> = arguments.adapters.iter().map(Adapter::load).collect::<Result<_>>()?;
    let mut inputs = Inputs::new(&arguments.selection)?;
    let old = inputs.matrix("old", &arguments.old)?;
    let new = inputs.matrix("new", &arguments.new)?;
    let join = Join::read(&arguments.ids, old.rows(), new.rows(), &arguments.selection)?;
    let by_position = arguments.ids.unless_joined(&arguments.new);
    expect_same_items(&[arguments.old.as_slice(), by_position, arguments.side.as_slice()])?;
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
    let side = match arguments.side.as_slice() {
        [] => None,
        paths => {
            let side = inputs.matrix("side", paths)?;
            Some(join.old_side("side information", side)?)
        }
    };
    let mut loaded = Loaded::read(&arguments.relevance, &mut inputs, &join, new.len(), None)?;
    // Without labels too they have an effect here: agreement has a do-nothing line.
    let queries_old = loaded.queries_old.take();
    loaded.say_idle(&[]);
    let head = inputs.head(&arguments.head)?;
    note_texts(arguments, &mut inputs)?;
    let labels_are_names = head.is_some() && loaded.labels_are_names;
    let ground = Ground {
        old: &old,
        new: &new,
        side: side.as_ref(),
        queries: loaded.queries.as_ref().map(|queries| Queries { new: queries, old: queries_old.as_ref() }),
        relevance: loaded.relevance(),
        labels_are_names,
        groups: loaded.groups.as_deref(),
        head: head.as_ref(),
    };
    let methods: Vec<&str> = adapters.iter().map(|adapter| adapter.training.method.as_str()).collect();
    let contenders: Vec<Contender<'_>> = names(&methods, &arguments.adapters)
        .into_iter()
        .zip(&adapters)
        .map(|(name, adapter)| Contender { name, adapter })
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
    if let Some(groups) = report.groups.as_mut() {
        for name in &mut groups.names {
            if let Some(own) = name.parse().ok().and_then(|group| loaded.group_name(group)) {
                own.clone_into(name);
            }
        }
    }
    for (adapter, path) in adapters.iter().zip(&arguments.adapters) {
        let pairs = adapter.training.pairs;
        inputs.note("adapter", &path.display().to_string(), pairs, None, adapter.fingerprint()?);
        for (role, fingerprint) in &adapter.training.inputs {
            let role = Input::role_of_pairs(path.display(), role);
            inputs.note(&role, "(kept in the adapter)", pairs, None, fingerprint.clone());
        }
    }
    let overlap = overlap_with_pairs(arguments, &adapters, old.matrix(), &mut inputs.read)?;
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
            Finding::new(Severity::Problem, "drift", format!("{}: {seen}.", contender.name))
                .may_mean(
                    "The gallery is of another model than the pairs, or of quite other items: errors are larger, and σ² may \
                     not show it.",
                )
                .remedy("Check which model made the file; fit on pairs that are drawn from this gallery."),
        );
    }
    for warning in &report.warnings {
        if warning.severity != Severity::Note {
            say_finding(warning);
        }
    }
    report.inputs = inputs.read;
    for path in &arguments.output {
        write(path, &report)?;
    }
    Ok(report)
}

/// Records the files that hold neither vectors nor labels: ids, judgements, the bias of a head, and which rows take part.
fn note_texts(arguments: &Report, inputs: &mut Inputs) -> Result<()> {
    let relevance = &arguments.relevance;
    let mut note = |role: &str, paths: &[String], texts: &[String]| {
        inputs.note(role, &paths.join(", "), texts.len(), None, fingerprint_of_texts(texts));
    };
    for (role, paths) in [
        ("old ids", arguments.ids.old_ids.as_slice()),
        ("new ids", arguments.ids.new_ids.as_slice()),
        ("ids", relevance.ids.as_slice()),
        ("query ids", relevance.query_ids.as_slice()),
    ] {
        if !paths.is_empty() {
            note(role, paths, &ids_of(paths)?);
        }
    }
    if let Some(path) = &relevance.qrels {
        note("qrels", std::slice::from_ref(path), &files::read_lines(path)?);
    }
    let bias = arguments.head.head_bias.as_slice();
    if !bias.is_empty() {
        inputs.column("head bias", bias)?;
    }
    if let Some(path) = rows_file(&arguments.selection)? {
        let tags = files::read_labels(&VectorSource::parse(&path)?)?;
        inputs.note("rows", &path, tags.len(), None, fingerprint(&tags));
    }
    Ok(())
}

/// A fingerprint of texts, in the form of [`Matrix::fingerprint`].
fn fingerprint_of_texts(texts: &[String]) -> String {
    // A byte is exact as f32; 256, which is none, ends a text.
    let values = texts.iter().flat_map(|text| text.bytes().map(f32::from).chain([256.0])).collect();
    Matrix::new(1, values).unwrap_or_default().fingerprint()
}

/// Fails where the report would be written over a file that it is made from.
fn expect_other_inputs(arguments: &Report) -> Result<()> {
    let mut named = vec![
        ("--old", arguments.old.as_slice()),
        ("--new", arguments.new.as_slice()),
        ("--side", arguments.side.as_slice()),
        ("--pairs-old", arguments.pairs_old.as_slice()),
    ];
    named.extend(arguments.ids.files());
    named.extend(arguments.relevance.files());
    named.extend(arguments.head.files());
    let mut inputs = files_of(&named)?;
    inputs.extend(arguments.adapters.iter().map(|path| ("an adapter", path.clone())));
    let outputs: Vec<(&str, Option<&PathBuf>)> =
        arguments.output.iter().map(|path| ("-o", Some(path))).collect();
    expect_apart(&outputs, &inputs)
}

/// Items of the gallery that are among the pairs, and whether that number is exact; `None` where it cannot be told. What is
/// read for it is added to `read`.
fn overlap_with_pairs(
    arguments: &Report,
    adapters: &[Adapter],
    old: &Matrix,
    read: &mut Vec<Input>,
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
        read.append(&mut inputs.read);
        return Ok(Some((overlap(&pairs, old), true)));
    }
    let counted = adapters.iter().filter_map(|adapter| among_pairs(adapter, old));
    let most = counted.max_by_key(RowOverlap::among_pairs);
    Ok(most.map(|overlap| (overlap.among_pairs(), overlap.is_exact())))
}

/// What a guard found about an adapter, as a warning of the report.
fn direction_warning(name: &str, finding: &Finding) -> Finding {
    Finding::new(finding.severity, &finding.code, format!("{name}: {finding}"))
        .may_mean("Curves of this adapter say nothing about the upgrade.")
        .remedy("Check which model made which file, and that rows go together; then fit again.")
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
        Some(fraction) => {
            format!("above doing nothing from {:.1} % re-embedded on", percent_rounded_up(fraction))
        }
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

/// The adapters' names: their methods, and as much of the path as tells apart those of one method.
fn names(methods: &[&str], paths: &[PathBuf]) -> Vec<String> {
    let parts_max = paths.iter().map(|path| path.components().count()).max().unwrap_or(0);
    let name = |place: usize| {
        let (method, path) = (methods[place], &paths[place]);
        let others: Vec<&PathBuf> = (0..paths.len())
            .filter(|&other| other != place && methods[other] == method)
            .map(|other| &paths[other])
            .collect();
        if others.is_empty() {
            return method.to_owned();
        }
        let apart = (1..=parts_max).find_map(|parts| {
            let own = end_of(path, parts);
            others.iter().all(|other| end_of(other, parts) != own).then_some(own)
        });
        match apart {
            Some(own) => format!("{method} ({own})"),
            // One file twice.
            None => format!("{method} ({}, {})", end_of(path, 1), place + 1),
        }
    };
    (0..paths.len()).map(name).collect()
}

/// The last `parts` parts of a path, without the extension.
fn end_of(path: &Path, parts: usize) -> String {
    let stem = path.with_extension("");
    let all: Vec<_> = stem.components().map(|part| part.as_os_str().to_string_lossy()).collect();
    all[all.len().saturating_sub(parts)..].join("/")
}

/// The command line as it was given, written so that a shell reads it again.
pub fn command() -> String {
    std::iter::once("rehang".to_owned())
        .chain(std::env::args_os().skip(1).map(|argument| quoted(&argument.to_string_lossy())))
        .collect::<Vec<_>>()
        .join(" ")
}

/// An argument as a shell reads it: in quotes where it holds anything that a shell may not take literally.
fn quoted(argument: &str) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "_./=:,@%+-".contains(character);
    if !argument.is_empty() && argument.chars().all(is_plain) {
        return argument.to_owned();
    }
    format!("'{}'", argument.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::{fingerprint_of_texts, names, quoted};
    use std::path::PathBuf;

    #[test]
    fn adapters_of_one_method_have_different_names() {
        for (given, named) in [
            (vec![("ridge", "a.safetensors"), ("fct", "a.safetensors")], vec!["ridge", "fct"]),
            (
                vec![
                    ("ridge", "s0/x.safetensors"),
                    ("ridge", "s1/x.safetensors"),
                    ("ridge", "y.safetensors"),
                ],
                vec!["ridge (s0/x)", "ridge (s1/x)", "ridge (y)"],
            ),
            (
                vec![("ridge", "x.safetensors"), ("ridge", "s0/x.safetensors")],
                vec!["ridge (x)", "ridge (s0/x)"],
            ),
            (
                vec![("ridge", "s0/x.safetensors"), ("ridge", "s0/x.safetensors")],
                vec!["ridge (x, 1)", "ridge (x, 2)"],
            ),
        ] {
            let methods: Vec<&str> = given.iter().map(|&(method, _)| method).collect();
            let paths: Vec<PathBuf> = given.iter().map(|&(_, path)| path.into()).collect();
            assert_eq!(names(&methods, &paths), named);
        }
    }

    #[test]
    fn fingerprints_see_where_a_text_ends() {
        let of = |texts: &[&str]| {
            fingerprint_of_texts(&texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(of(&["a", "bc"]), of(&["a", "bc"]));
        assert_ne!(of(&["a", "bc"]), of(&["ab", "c"]));
        assert_ne!(of(&[]), of(&[""]));
    }

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
