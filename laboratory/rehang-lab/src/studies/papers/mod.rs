//! `cargo lab study papers`: the tables of the papers, made of what can be had here; [`pages`] writes them,
//! `laboratory/docs/results.md` and the pages under `laboratory/docs/results/`.
//!
//! Two kinds of records stand behind them: the units of [`units`] (fits on the vector sets of
//! `../shared/data`) and the studies of `laboratory/bench/compatible` (encoders trained from pixels). What is
//! recorded is not measured again. A page is a text of ours with places for tables; a test says where a page
//! and its records disagree.

mod compatible;
mod fastfill;
mod pictures;
mod table;
pub mod units;
mod yardstick;

use std::path::{Path, PathBuf};
use std::process::Command;

use rehang_core::comparison::Measure;
use rehang_core::{Error, Result};
use rehang_files::AtomicFile;

use crate::studies::records::root;

/// Studies, each with the minutes that it takes on two idle cores.
const STUDIES: [(&str, u32); 34] = [
    ("fastfill", 40),
    ("fastfill-architecture", 20),
    ("ract-expansion", 8),
    ("ract-open-data", 6),
    ("ract-open-class", 6),
    ("ract-digits", 3),
    ("bct", 10),
    ("ract-settings", 12),
    ("ract-batch-32", 2),
    ("ract-batch-128", 2),
    ("bct-from-normalised-softmax", 3),
    ("bct-from-softmax", 3),
    ("bct-old-40", 5),
    ("bct-old-160", 5),
    ("bct-arcface", 5),
    ("bct-l2", 4),
    ("bct-lwf", 4),
    ("bct-lwf-half", 3),
    ("bct-from-softmax-forms", 4),
    ("bct-protocols", 5),
    ("ract-softmax", 4),
    ("ract-digits-softmax", 1),
    ("ract-digits-softmax-90", 2),
    ("ract-one-expansion", 4),
    ("ract-one-open-data", 3),
    ("ract-one-open-class", 3),
    ("dmu", 18),
    ("dmu-sharp", 6),
    ("dmu-open-data", 3),
    ("dmu-extended-class", 3),
    ("bct-drawn", 6),
    ("fastfill-drawn", 20),
    ("dmu-one", 4),
    ("dmu-handicap", 3),
];

/// Folder of the templates, seen from the root.
const FOLDER: &str = "laboratory/rehang-lab/src/studies/papers";
/// Pages, seen from the root, each with its template.
const TEMPLATES: [(&str, &str); 6] = [
    ("laboratory/docs/results.md", "results.md"),
    ("laboratory/docs/results/fastfill.md", "fastfill.md"),
    ("laboratory/docs/results/ract.md", "ract.md"),
    ("laboratory/docs/results/bct.md", "bct.md"),
    ("laboratory/docs/results/dmu.md", "dmu.md"),
    ("laboratory/docs/results/sets.md", "sets.md"),
];

/// Makes what is missing and writes the pages. Without a word it makes all; `pages` measures nothing;
/// `units [SET…]`, `side`, `steps`, `yardstick [SET…]` and `studies [NAME…]` make one kind.
pub fn run(arguments: &[&str]) -> Result<()> {
    let shared = Path::new("../shared/data");
    let (kind, names) = arguments.split_first().map_or(("all", &[][..]), |(kind, names)| (*kind, names));
    if matches!(kind, "all" | "studies") {
        let chosen: Vec<_> =
            STUDIES.iter().filter(|(name, _)| names.is_empty() || names.contains(name)).collect();
        let missing: Vec<_> = chosen.into_iter().filter(|(name, _)| !record(name).exists()).collect();
        let minutes: u32 = missing.iter().map(|(_, minutes)| minutes).sum();
        eprintln!("{} studies are missing: about {minutes} minutes on two idle cores", missing.len());
        for (name, minutes) in missing {
            eprintln!("{name}: about {minutes} minutes");
            study(name)?;
        }
    }
    if matches!(kind, "all" | "yardstick") {
        yardstick::measure_missing(shared, if names.is_empty() { &units::SETS[..] } else { names })?;
    }
    if matches!(kind, "all" | "steps") {
        units::measure_missing_with_steps(shared)?;
    }
    if kind == "side" {
        units::measure_missing_with_side(shared)?;
    }
    if matches!(kind, "all" | "units") {
        let sets = if names.is_empty() { &units::SETS[..] } else { names };
        units::measure_missing(shared, sets, &units::METHODS)?;
        if names.is_empty() {
            units::measure_missing_with_side(shared)?;
        }
    }
    for (path, text) in pages(&root())? {
        AtomicFile::write(&path, &text)?;
        eprintln!("{path}");
    }
    Ok(())
}

/// Folder that a study writes into, seen from the root.
fn folder(name: &str) -> PathBuf {
    Path::new("laboratory/bench/runs").join(format!("compatible-{name}"))
}

/// Path of a study's record, seen from the root.
fn record(name: &str) -> PathBuf {
    folder(name).join("comparison.json")
}

/// Carries out one study, by the command that a reader would type. It goes on where it stopped, with the
/// encoders that it has kept.
fn study(name: &str) -> Result<()> {
    let out = folder(name);
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let status = Command::new(cargo)
        .args(["run", "--release", "--package", "rehang-lab", "--", "compare"])
        .arg(format!("laboratory/bench/compatible/{name}.toml"))
        .arg("--out")
        .arg(&out)
        .stdout(std::process::Stdio::null())
        .status()
        .map_err(|error| Error::io("run", "cargo run", &error))?;
    if !status.success() {
        return Err(Error::conflict(format!("the study {name}"), "it failed, see above"));
    }
    // The page with its curves is made again by the same command, and is too large to keep.
    let page = out.join("comparison.html");
    fs_err::remove_file(&page).map_err(|error| Error::io("remove", &page, &error))
}

/// Makes every page of results, its path from the root and its text, from the records under `root`: those of
/// the papers, and each study's own.
pub fn pages(root: &Path) -> Result<Vec<(String, String)>> {
    let units = units::read_units(root)?;
    let studies = compatible::Studies::read(root)?;
    let read = |name: &str| -> Result<String> {
        let path = root.join(FOLDER).join(name);
        fs_err::read_to_string(&path).map_err(|error| Error::io("read", &path, &error))
    };
    let fill = |template: &str| -> Result<String> {
        let mut text = String::new();
        for line in template.lines() {
            let mut rest = line;
            while let Some((before, place, after)) = place_of(rest) {
                let words: Vec<&str> = place.split_whitespace().collect();
                let is_alone = before.is_empty() && after.is_empty() && rest.len() == line.len();
                text.push_str(before);
                if is_alone {
                    text.push_str(table_of(&words, root, &units, &studies)?.trim_end());
                } else {
                    text.push_str(&number_of(&words, &units, &studies)?);
                }
                rest = after;
            }
            text.push_str(rest);
            text.push('\n');
        }
        Ok(text)
    };
    let mut pages = studies.rendered();
    for (path, template) in TEMPLATES {
        pages.push((path.to_owned(), fill(&read(template)?)?));
    }
    pages.extend(pictures::pictures(root, |name| studies.get(name).ok(), &units)?);
    Ok(pages)
}

/// Finds the first place of a line that is to be filled: what stands before it, in it and behind it.
fn place_of(line: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = line.split_once("{{")?;
    let (place, after) = rest.split_once("}}")?;
    Some((before, place, after))
}

/// Makes the number that a place within a sentence names, over seeds: of a study
/// ([`compatible::Studies::number`]), or the area of a unit (`area SET PART METHOD ORDER METRIC`).
fn number_of(place: &[&str], units: &[units::Row], studies: &compatible::Studies) -> Result<String> {
    match place {
        ["area", set, part, method, order, metric] => {
            let metric = usize::from(measure(metric)? == Measure::Map);
            let areas = fastfill::areas(units, set, part, method, order);
            areas
                .map(|areas| table::spread(&areas[metric]))
                .ok_or_else(|| Error::missing(place.join(" "), "a sentence of a page of results"))
        }
        [study, part, method @ .., quantity, metric] => {
            studies.number(study, part, &method.join(" "), quantity, measure(metric)?)
        }
        _ => Err(Error::option("a page of results", place.join(" "), "the name of a number")),
    }
}

fn measure(name: &str) -> Result<Measure> {
    match name {
        "map" => Ok(Measure::Map),
        "top1" => Ok(Measure::Top1),
        _ => Err(Error::option("a page of results", name, "map or top1")),
    }
}

/// Makes the table that a place of a template names.
fn table_of(
    place: &[&str],
    root: &Path,
    units: &[units::Row],
    studies: &compatible::Studies,
) -> Result<String> {
    match place {
        ["record", path] => {
            let path = root.join(path);
            let text = fs_err::read_to_string(&path).map_err(|error| Error::io("read", &path, &error))?;
            Ok(text.lines().filter(|line| !line.starts_with("# ")).collect::<Vec<_>>().join("\n"))
        }
        ["yardstick", "means"] => Ok(yardstick::means(&yardstick::read(root)?)),
        ["yardstick", "rivals"] => Ok(yardstick::rivals(&yardstick::read(root)?)),
        ["fastfill", name] => fastfill::table(name, units, studies),
        [paper, name, rest @ ..] => studies.table(paper, name, rest),
        _ => Err(Error::option("a page of results", place.join(" "), "the name of a table")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number in a sentence that no record fills would stay when its record changes. Settings stand as code,
    /// and what a paper prints in brackets that begin with "paper".
    #[test]
    fn sentences_have_no_numbers_of_their_own() {
        let is_number = |word: &str| {
            let digits = word.trim_matches(|c: char| !c.is_ascii_digit());
            !word.contains('§')
                && digits.contains('.')
                && digits.split('.').all(|part| part.parse::<u32>().is_ok())
        };
        let mut numbers = Vec::new();
        for (_, template) in TEMPLATES {
            let path = root().join(FOLDER).join(template);
            for (line, text) in fs_err::read_to_string(&path).unwrap().lines().enumerate() {
                let text = without(&without(&without(text, "{{", "}}"), "`", "`"), "(paper", ")");
                let own = text.split_whitespace().filter(|word| is_number(word));
                numbers.extend(own.map(|word| format!("{template}:{}: {word}", line + 1)));
            }
        }
        assert!(numbers.is_empty(), "{numbers:#?}");
    }

    /// Takes out of a text whatever stands between two marks.
    fn without(text: &str, begin: &str, end: &str) -> String {
        let Some((before, rest)) = text.split_once(begin) else { return text.to_owned() };
        let after = rest.split_once(end).map_or("", |(_, after)| after);
        before.to_owned() + &without(after, begin, end)
    }

    #[test]
    fn pages_of_results_are_what_their_records_and_texts_say() {
        let is_another = |(path, text): &(String, String)| {
            fs_err::read_to_string(root().join(path)).ok().as_ref() != Some(text)
        };
        let others: Vec<String> =
            pages(&root()).unwrap().into_iter().filter(is_another).map(|(path, _)| path).collect();
        assert!(others.is_empty(), "write them anew by `cargo lab study papers pages`: {others:?}");
    }
}
