//! `cargo xtask tidy`: rules of this repository that neither the compiler nor clippy knows. It runs as a test
//! as well.
//!
//! | rule | because |
//! |---|---|
//! | crates depend on each other along the arrows of [`rules::ARROWS`] only | a part can be used, tested and read without the rest |
//! | nothing outside of `laboratory` uses what lies in it, but for `xtask`, which fuzzes its readers | who upgrades a gallery builds, reads and trusts none of it |
//! | heavy dependencies stay in the crates that are about them | a program that fits adapters builds no database |
//! | clocks are read and threads sleep behind the doors only | results never depend on the time, and tests need not wait |
//! | a folder of a crate imports those before it in [`rules::FOLDERS`] only | a folder is read and changed without those that stand on it |
//! | no circle of imports has more than three files ([`rules::CIRCLES`]) | each file is read, moved and tested without the others |
//! | the name of a public type is defined once ([`rules::NAMES`]) | one word for one thing |
//! | libraries print nothing and know no word of the command line | other faces (Python, a service) have words of their own |
//! | every `unsafe` says why it is sound, every `allow` says its reason, every crate says what it is | readers need not guess |
//! | the first sentence of a comment is understood alone ([`prose::openings`]) | who reads a name and its comment need not look for what "those" are |
//! | `docs/README.md` says how long each page is | a tired reader chooses by it, and pages do not grow unseen |
//! | links of documents lead to files, and ARCHITECTURE.md names every crate | documents age unseen |
//! | `docs/features.md` has a line for every feature of the command line | who builds chooses by it |
//! | the demo asks for the features of others' crates that the tests ask for | what was built for the demo serves the tests |
//! | `rust-toolchain.toml` names the smallest Rust that the workspace promises | what everybody runs proves the promise |

mod circles;
mod modules;
mod prose;
mod rules;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use rehang_core::{Error, Result};
use serde_json::Value;

use circles::Tie;
use rules::{ARROWS, CIRCLES, DOORS, FACES, FOLDERS, HEAVY, NAMES, SAID, SPEAKERS};
pub use source::root;
use source::{Source, is_word};

/// A place where a rule is broken.
#[derive(Debug, PartialEq)]
struct Fault {
    path: String,
    /// Counted from 1.
    line: usize,
    /// Sentence that says what is wrong and what to do.
    what: String,
}

/// Prints every fault of the repository; fails where there is one.
pub fn run() -> Result<()> {
    let faults = faults(&root())?;
    for Fault { path, line, what } in &faults {
        println!("{path}:{line}: {what}");
    }
    if faults.is_empty() {
        return Ok(());
    }
    Err(Error::conflict("the repository", format!("{} rules are broken, see above", faults.len())))
}

fn faults(root: &Path) -> Result<Vec<Fault>> {
    let sources = source::read(root, &["crates", "examples", "laboratory", "xtask/src"])?;
    let packages = packages(root)?;
    let mut faults = dependencies(&packages);
    for source in &sources {
        faults.extend(time(source));
        faults.extend(printing(source));
        faults.extend(words(source));
        faults.extend(soundness(source));
        faults.extend(reasons(source));
        faults.extend(introduction(source));
        faults.extend(prose::openings(source));
        faults.extend(prose::bindings(source));
    }
    faults.extend(stale(&sources));
    faults.extend(laboratory(&packages, &sources));
    faults.extend(imports(&sources, CIRCLES));
    faults.extend(folders(&sources, FOLDERS));
    faults.extend(names(&sources, NAMES));
    faults.extend(features(root, &packages)?);
    faults.extend(built_twice(root)?);
    faults.extend(toolchain(root)?);
    faults.extend(documents(root, &packages)?);
    Ok(faults)
}

/// Crate of the repository, with the names of what it depends on.
struct Package {
    name: String,
    manifest: String,
    normal: Vec<String>,
    /// Dependencies of `normal` that only a feature brings in.
    optional: Vec<String>,
    development: Vec<String>,
    features: Vec<String>,
}

/// Runs cargo, offline, and gives what it prints.
fn cargo(root: &Path, arguments: &[&str]) -> Result<Vec<u8>> {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let output = Command::new(cargo)
        .args(arguments)
        .arg("--offline")
        .current_dir(root)
        .output()
        .map_err(|error| Error::io("run", format!("cargo {}", arguments[0]), &error))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Error::conflict(format!("cargo {}", arguments[0]), said));
    }
    Ok(output.stdout)
}

fn packages(root: &Path) -> Result<Vec<Package>> {
    let output = cargo(root, &["metadata", "--format-version", "1", "--no-deps"])?;
    let malformed = |reason: &str| Error::corrupt("the answer of cargo metadata", reason);
    let answer: Value = serde_json::from_slice(&output).map_err(|error| malformed(&error.to_string()))?;
    let listed = answer["packages"].as_array().ok_or_else(|| malformed("it lists no packages"))?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    Ok(listed
        .iter()
        .map(|package| {
            let dependencies_where = |wanted: &dyn Fn(&Value) -> bool| {
                let all = package["dependencies"].as_array().into_iter().flatten();
                all.filter(|dependency| wanted(dependency))
                    .map(|dependency| text(&dependency["name"]))
                    .collect()
            };
            Package {
                name: text(&package["name"]),
                manifest: source::relative(root, Path::new(&text(&package["manifest_path"]))),
                normal: dependencies_where(&|dependency| dependency["kind"] != "dev"),
                optional: dependencies_where(&|dependency| dependency["optional"] == true),
                development: dependencies_where(&|dependency| dependency["kind"] == "dev"),
                features: package["features"]
                    .as_object()
                    .into_iter()
                    .flatten()
                    .map(|(name, _)| name.clone())
                    .collect(),
            }
        })
        .collect())
}

fn dependencies(packages: &[Package]) -> Vec<Fault> {
    let mut faults = Vec::new();
    for package in packages {
        let mut fault = |what: String| faults.push(Fault { path: package.manifest.clone(), line: 1, what });
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == package.name) else {
            fault(format!(
                "{} has no line in ARROWS (xtask/src/tidy/rules.rs): say what it may depend on",
                package.name
            ));
            continue;
        };
        for dependency in &package.normal {
            if ARROWS.iter().any(|(name, _)| name == dependency) && !allowed.contains(&dependency.as_str()) {
                fault(format!(
                    "{} must not depend on {dependency}: arrows point towards the core (ARROWS)",
                    package.name
                ));
            }
            let is_always_there = !package.optional.contains(dependency);
            let heavy = HEAVY.iter().find(|(name, _)| is_always_there && dependency.starts_with(name));
            if let Some((_, users)) = heavy.filter(|(_, users)| !users.contains(&package.name.as_str())) {
                fault(format!(
                    "{} must not depend on {dependency}, which is for {} (HEAVY)",
                    package.name,
                    users.join(", ")
                ));
            }
        }
        // A crate that names itself turns on its own features for its tests.
        let others = package.development.iter().filter(|name| **name != package.name);
        for dependency in others.filter(|name| FACES.contains(&name.as_str())) {
            fault(format!(
                "tests and examples of {} must not use {dependency}: it is no library",
                package.name
            ));
        }
    }
    faults
}

fn is_of_laboratory(path: &str) -> bool {
    path.starts_with("laboratory/")
}

/// Crates and files that use what lies in the laboratory, for tests too, and do not lie there themselves.
fn laboratory(packages: &[Package], sources: &[Source]) -> Vec<Fault> {
    let inside = |name: &String| {
        packages.iter().any(|package| package.name == *name && is_of_laboratory(&package.manifest))
    };
    let outside = |path: &str| !is_of_laboratory(path) && !path.starts_with("xtask/");
    let fault = |path: &str, line: usize, what: &str| Fault {
        path: path.into(),
        line,
        what: format!("{what} lies in the laboratory, which nothing outside of it uses"),
    };
    let mut faults = Vec::new();
    for package in packages.iter().filter(|package| outside(&package.manifest)) {
        let used = package.normal.iter().chain(&package.development).filter(|name| inside(name));
        faults.extend(used.map(|name| fault(&package.manifest, 1, name)));
    }
    for source in sources.iter().filter(|source| outside(&source.path)) {
        let lines = source.lines.iter().enumerate().filter(|(_, line)| line.text.contains("laboratory/"));
        faults.extend(lines.map(|(number, _)| fault(&source.path, number + 1, "the file")));
    }
    faults
}

/// Finds the faults of those lines of a source for which `what` says one.
fn each_line(source: &Source, what: impl Fn(&source::SourceLine) -> Option<String>) -> Vec<Fault> {
    let fault =
        |(number, line)| Some(Fault { path: source.path.clone(), line: number + 1, what: what(line)? });
    source.product().filter_map(fault).collect()
}

/// Whether the file is part of the product: no test, example or measurement.
fn is_product(source: &Source) -> bool {
    source.path.contains("/src/")
}

fn reads_time(code: &str) -> bool {
    ["Instant::now", "SystemTime::now", "thread::sleep"].iter().any(|call| code.contains(call))
}

fn time(source: &Source) -> Vec<Fault> {
    if !is_product(source) || DOORS.iter().any(|(path, _)| *path == source.path) {
        return Vec::new();
    }
    each_line(source, |line| {
        reads_time(&line.code).then(|| {
            "time enters through the doors only: take a clock, or add a door with its purpose to DOORS".into()
        })
    })
}

const PRINTING: [&str; 7] = ["print!", "println!", "eprint!", "eprintln!", "dbg!", "stdout", "stderr"];

fn printing(source: &Source) -> Vec<Fault> {
    if !is_product(source) || SPEAKERS.contains(&source.crate_name()) {
        return Vec::new();
    }
    each_line(source, |line| {
        let call = PRINTING
            .into_iter()
            .find(|call| is_word(&line.code, call.trim_end_matches('!')) && line.code.contains(call))?;
        // The pipes of a program that this process started are no printing.
        let is_pipe = line.code.contains(&format!(".{call}")) || !line.code.contains(&format!("{call}("));
        if !call.ends_with('!') && is_pipe {
            return None;
        }
        Some(format!("libraries print nothing ({call}): return a value, or write into a Progress"))
    })
}

/// Verbs of the command line.
const VERBS: [&str; 19] = [
    "compare",
    "completions",
    "curve",
    "demo",
    "doctor",
    "embed",
    "evaluate",
    "export",
    "fit",
    "gallery",
    "init",
    "inspect",
    "man",
    "order",
    "report",
    "search",
    "serve",
    "train",
    "transform",
];

/// Finds the first word of the command line in a text: an option, or the program with a verb.
fn command_line_word(text: &str) -> Option<String> {
    let word =
        |rest: &str| rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '-').collect::<String>();
    let programs = ["rehang ", "rehang-lab "].into_iter().flat_map(|program| text.match_indices(program));
    for (at, program) in programs {
        let verb = word(&text[at + program.len()..]);
        let is_name = text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '-' || c == '_');
        if !is_name && (VERBS.contains(&verb.as_str()) || verb == "upgrade") {
            return Some(format!("{program}{verb}"));
        }
    }
    for (at, _) in text.match_indices("--") {
        let option = word(&text[at + 2..]);
        let after = text[at + 2 + option.len()..].chars().next();
        let begins =
            !text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '-') && !text[..at].ends_with("var(");
        // `--name:` and `--name{…}` are custom properties of style sheets.
        if begins && option.starts_with(|c: char| c.is_ascii_lowercase()) && !matches!(after, Some(':' | '{'))
        {
            return Some(format!("--{option}"));
        }
    }
    None
}

fn words(source: &Source) -> Vec<Fault> {
    if !is_product(source) || SPEAKERS.contains(&source.crate_name()) {
        return Vec::new();
    }
    each_line(source, |line| {
        let word = command_line_word(&line.text)?;
        let is_said =
            |(path, part, _): &&(&str, &str, &str)| *path == source.path && line.text.contains(part);
        if SAID.iter().any(|said| is_said(&said)) {
            return None;
        }
        Some(format!(
            "`{word}` is a word of the command line: give the remedy as data, which each face words by itself"
        ))
    })
}

/// Whether a comment with `mark` stands in the line or directly above the statement that the line belongs to.
fn is_explained(source: &Source, number: usize, mark: &str) -> bool {
    let lines = &source.lines;
    if lines[number].comment.contains(mark) {
        return true;
    }
    for line in lines[..number].iter().rev() {
        if line.comment.contains(mark) {
            return true;
        }
        let code = line.code.trim();
        let goes_on = code.is_empty() && !line.comment.is_empty()
            || code.starts_with("#[")
            || code.ends_with(['=', '(', ',']);
        if !goes_on && !code.is_empty() || code.is_empty() && line.comment.is_empty() {
            return false;
        }
    }
    false
}

fn soundness(source: &Source) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (number, line) in source.lines.iter().enumerate() {
        if !is_word(&line.code, "unsafe") {
            continue;
        }
        let is_type = line.code.contains("= unsafe fn(");
        let declares = line.code.contains("unsafe fn ");
        let mark = if declares { "# Safety" } else { "SAFETY:" };
        if !is_type && !is_explained(source, number, mark) {
            let what = if declares {
                "say under `# Safety` what a caller must promise"
            } else {
                "say in a `// SAFETY:` comment above why this is sound"
            };
            faults.push(Fault { path: source.path.clone(), line: number + 1, what: what.into() });
        }
    }
    faults
}

fn reasons(source: &Source) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (number, line) in source.lines.iter().enumerate() {
        let is_attribute = ["#[allow(", "#![allow(", "#[expect(", "#![expect("]
            .iter()
            .any(|start| line.code.contains(start));
        if !is_attribute {
            continue;
        }
        let rest = source.lines[number..].iter().map(|line| line.code.as_str());
        let mut attribute = String::new();
        for code in rest {
            attribute.push_str(code);
            if attribute.contains(")]") {
                break;
            }
        }
        if !attribute.contains("reason =") {
            let what = "an exception from a lint gives its `reason = \"…\"`".into();
            faults.push(Fault { path: source.path.clone(), line: number + 1, what });
        }
    }
    faults
}

fn introduction(source: &Source) -> Option<Fault> {
    let is_root = source.path.ends_with("/src/lib.rs") || source.path.ends_with("/src/main.rs");
    let begins = source.lines.first().is_some_and(|line| line.comment.starts_with('!'));
    (is_root && !begins).then(|| Fault {
        path: source.path.clone(),
        line: 1,
        what: "a crate begins with `//!`: what it is, and what it must not know".into(),
    })
}

const RULES: &str = "xtask/src/tidy/rules.rs";

/// Circles of imports among more than three files of one crate, but for so many files as `allowed` says.
fn imports(sources: &[Source], allowed: &[(&str, usize)]) -> Vec<Fault> {
    let mut crates: BTreeMap<&str, Vec<&Source>> = BTreeMap::new();
    for source in sources.iter().filter(|source| is_product(source)) {
        crates.entry(source.crate_name()).or_default().push(source);
    }
    let mut faults = Vec::new();
    for (name, files) in &crates {
        let circles = circles::find_circles(files);
        let files: usize = circles.iter().map(|circle| circles::size(circle)).sum();
        let allowed = allowed.iter().find(|(of, _)| of == name).map_or(0, |(_, files)| *files);
        if files < allowed {
            let what = format!(
                "of {name} only {files} files stand in circles: say so in CIRCLES, or remove the line"
            );
            faults.push(Fault { path: RULES.into(), line: 1, what });
        }
        for circle in circles.iter().filter(|_| files > allowed) {
            let ties = circle
                .iter()
                .map(|Tie { from, line, path, to }| format!("\n    {from}:{line}: {path} in {to}"));
            let what = format!(
                "{} files import each other in a circle: move what all of them need below them{}",
                circles::size(circle),
                ties.collect::<String>()
            );
            faults.push(Fault { path: circle[0].from.clone(), line: circle[0].line, what });
        }
    }
    let gone = allowed.iter().filter(|(name, _)| !crates.contains_key(name));
    faults.extend(gone.map(|(name, _)| unneeded(&format!("the circles of {name}"))));
    faults
}

/// Imports of a folder by one that stands before it in the order of its crate.
fn folders(sources: &[Source], orders: &[(&str, &[&str])]) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (name, order) in orders {
        let files: Vec<&Source> =
            sources.iter().filter(|source| is_product(source) && source.crate_name() == *name).collect();
        let place = |path: &str| {
            let (folder, _) = path.split_once("/src/")?.1.split_once('/')?;
            order.iter().position(|listed| *listed == folder)
        };
        for Tie { from, line, path, to } in circles::find_ties(&files) {
            if let (Some(user), Some(used)) = (place(&from), place(&to))
                && user < used
            {
                let (user, used) = (order[user], order[used]);
                let what = format!("{user} must not import {path} of {used}: {used} stands on it (FOLDERS)");
                faults.push(Fault { path: from, line, what });
            }
        }
        let is_there = |folder: &str| files.iter().any(|file| file.path.contains(&format!("/src/{folder}/")));
        for folder in order.iter().filter(|folder| !is_there(folder)) {
            let what = format!("{name} has no folder {folder}: write what it is called now (FOLDERS)");
            faults.push(Fault { path: RULES.into(), line: 1, what });
        }
    }
    faults
}

/// Names of public types that are defined more than once and not among `allowed`.
fn names(sources: &[Source], allowed: &[(&str, &str)]) -> Vec<Fault> {
    let mut defined: BTreeMap<String, Vec<(&str, usize)>> = BTreeMap::new();
    for source in sources.iter().filter(|source| is_product(source)) {
        let modules = modules::read(source, 0).into_iter();
        for (name, item) in
            modules.flat_map(|(_, module)| module.items).filter(|(_, item)| item.is_public_type)
        {
            defined.entry(name).or_default().push((&source.path, item.line));
        }
    }
    let is_allowed = |name: &str| allowed.iter().any(|(allowed, _)| *allowed == name);
    let mut faults = Vec::new();
    for (name, places) in defined.iter().filter(|(name, places)| places.len() > 1 && !is_allowed(name)) {
        let (first, _) = places[0];
        for &(path, line) in &places[1..] {
            let what = format!(
                "`{name}` is the name of another public type in {first}: one word for one thing (NAMES)"
            );
            faults.push(Fault { path: path.into(), line, what });
        }
    }
    let is_one = |name: &str| defined.get(name).is_none_or(|places| places.len() < 2);
    faults.extend(allowed.iter().filter(|(name, _)| is_one(name)).map(|(name, _)| unneeded(name)));
    faults
}

/// Finds features of the command line without a line on their page, and lines without a feature.
fn features(root: &Path, packages: &[Package]) -> Result<Vec<Fault>> {
    let path = "docs/features.md";
    let page = root.join(path);
    let text = fs_err::read_to_string(&page).map_err(|error| Error::io("read", &page, &error))?;
    let all =
        packages.iter().filter(|package| package.name == "rehang-cli").flat_map(|package| &package.features);
    let features: Vec<&str> = all.map(String::as_str).collect();
    Ok(unlisted(path, &text, &features))
}

/// Compares the first part of a page, up to the first heading below its title, with the features there are. A
/// line of its table begins with the name of a feature.
fn unlisted(path: &str, text: &str, features: &[&str]) -> Vec<Fault> {
    let fault = |line: usize, what: String| Fault { path: path.into(), line, what };
    let first_part = text.lines().take_while(|line| !line.starts_with("## ")).enumerate();
    let named = |(number, line): (usize, &str)| {
        Some((number + 1, line.strip_prefix("| `")?.split_once('`')?.0.to_string()))
    };
    let listed: Vec<(usize, String)> = first_part.filter_map(named).collect();
    let lacking = features.iter().filter(|feature| !listed.iter().any(|(_, name)| name == *feature));
    let unknown = listed.iter().filter(|(_, name)| !features.contains(&name.as_str()));
    lacking
        .map(|name| fault(1, format!("the table has no line for the feature {name} of rehang-cli")))
        .chain(unknown.map(|(line, name)| fault(*line, format!("rehang-cli has no feature {name}"))))
        .collect()
}

/// Finds crates of others that the demo builds with other features than the tests. Systems differ in their
/// crates, so one is looked at.
fn built_twice(root: &Path) -> Result<Vec<Fault>> {
    let tree = |wanted: &[&str]| -> Result<BTreeSet<String>> {
        let shown =
            ["tree", "-f", "{p} [{f}]", "--prefix", "none", "--target", "x86_64-unknown-linux-gnu", "-e"];
        let text = String::from_utf8_lossy(&cargo(root, &[&shown, wanted].concat())?).into_owned();
        let is_ours = |line: &&str| line.contains(root.to_string_lossy().as_ref());
        let bare = |line: &str| line.replace(" (*)", "").replace(" (proc-macro)", "");
        Ok(text.lines().filter(|line| !is_ours(line)).map(bare).collect())
    };
    let (demo, tests) = (tree(&["no-dev", "-p", "rehang-cli"])?, tree(&["all", "--workspace"])?);
    let twice = |line: &String| Fault {
        path: "crates/workspace-hack/Cargo.toml".into(),
        line: 1,
        what: format!(
            "the demo builds {line}, and the tests build it again with other features: ask for those here"
        ),
    };
    Ok(demo.difference(&tests).map(twice).collect())
}

fn toolchain(root: &Path) -> Result<Option<Fault>> {
    let value = |file: &str, key: &str| -> Result<String> {
        let path = root.join(file);
        let text = fs_err::read_to_string(&path).map_err(|error| Error::io("read", &path, &error))?;
        let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
        Ok(value.unwrap_or_default().trim_matches('"').to_string())
    };
    let (promised, used) = (value("Cargo.toml", "rust-version")?, value(TOOLCHAIN, "channel")?);
    Ok(another_rust(&promised, &used))
}

const TOOLCHAIN: &str = "rust-toolchain.toml";

fn another_rust(promised: &str, used: &str) -> Option<Fault> {
    let what =
        format!("its channel is {used:?}, and rust-version in Cargo.toml {promised:?}: one Rust for both");
    let is_same = !promised.is_empty()
        && used.strip_prefix(promised).is_some_and(|rest| rest.is_empty() || rest == ".0");
    (!is_same).then(|| Fault { path: TOOLCHAIN.into(), line: 1, what })
}

fn unneeded(exception: &str) -> Fault {
    let what = format!("the exception for {exception} is not needed any more: remove it");
    Fault { path: RULES.into(), line: 1, what }
}

/// Finds exceptions that are not needed any more.
fn stale(sources: &[Source]) -> Vec<Fault> {
    let source_at = |path: &str| sources.iter().find(|source| source.path == path);
    let lines =
        |path: &str| source_at(path).into_iter().flat_map(|source| source.product().map(|(_, line)| line));
    let doors = DOORS.iter().filter(|(path, _)| !lines(path).any(|line| reads_time(&line.code)));
    let said = SAID.iter().filter(|(path, part, _)| !lines(path).any(|line| line.text.contains(part)));
    let named = doors.map(|(path, _)| *path).chain(said.map(|(path, ..)| *path));
    named.map(unneeded).collect()
}

fn documents(root: &Path, packages: &[Package]) -> Result<Vec<Fault>> {
    let mut paths = Vec::new();
    source::collect(root, "md", &mut paths)?;
    let mut faults = Vec::new();
    // Texts of generated pages are looked at as the pages that they become.
    for path in paths.iter().filter(|path| !path.starts_with(root.join("laboratory/rehang-lab"))) {
        let text = fs_err::read_to_string(path).map_err(|error| Error::io("read", path, &error))?;
        faults.extend(dead_links(root, &source::relative(root, path), &text));
    }
    faults.extend(wrong_counts(root)?);
    for (path, is_laboratory) in [("ARCHITECTURE.md", false), ("laboratory/README.md", true)] {
        let map = root.join(path);
        let text = fs_err::read_to_string(&map).map_err(|error| Error::io("read", &map, &error))?;
        for package in packages.iter().filter(|package| is_of_laboratory(&package.manifest) == is_laboratory)
        {
            if !text.contains(&format!("\n| `{}` |", package.name)) {
                let what = format!("the table of parts has no line for {}", package.name);
                faults.push(Fault { path: path.into(), line: 1, what });
            }
        }
    }
    Ok(faults)
}

/// Finds pages whose words are not, to the nearest fifty, the number behind their link in `docs/README.md`.
fn wrong_counts(root: &Path) -> Result<Vec<Fault>> {
    let read = |path: &str| {
        fs_err::read_to_string(root.join(path)).map_err(|error| Error::io("read", root.join(path), &error))
    };
    let list = "docs/README.md";
    let mut faults = Vec::new();
    for (number, line) in read(list)?.lines().enumerate() {
        for (at, _) in line.match_indices("](") {
            let Some((page, rest)) = line[at + 2..].split_once(") (") else { continue };
            let count: String =
                rest.chars().take_while(|c| c.is_ascii_digit() || *c == ',').filter(|c| *c != ',').collect();
            let Ok(said) = count.parse::<usize>() else { continue };
            if page.contains(')') {
                continue;
            }
            let words = read(&format!("docs/{page}"))?.split_whitespace().count();
            let rounded = (words + 25) / 50 * 50;
            if said.abs_diff(words) > 75 {
                let what = format!("{page} has {words} words: write {rounded}");
                faults.push(Fault { path: list.into(), line: number + 1, what });
            }
        }
    }
    Ok(faults)
}

/// Links to files that do not exist.
fn dead_links(root: &Path, path: &str, text: &str) -> Vec<Fault> {
    let folder = root.join(path).parent().map(Path::to_path_buf).unwrap_or_default();
    let mut faults = Vec::new();
    let mut is_code = false;
    for (number, line) in text.lines().enumerate() {
        if line.starts_with("```") {
            is_code = !is_code;
        }
        for (at, _) in line.match_indices("](").filter(|_| !is_code) {
            let target = line[at + 2..].split([')', '#']).next().unwrap_or_default();
            let is_file = !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:");
            if is_file && !folder.join(target).exists() {
                let what = format!("{target} does not exist: name the file as seen from this one");
                faults.push(Fault { path: path.into(), line: number + 1, what });
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_repository_keeps_its_rules() {
        let faults = faults(&root()).unwrap();
        let lines = faults.iter().map(|Fault { path, line, what }| format!("{path}:{line}: {what}\n"));
        assert!(faults.is_empty(), "\n{}", lines.collect::<String>());
    }

    /// The lines of a library's source at which a check finds a fault.
    fn found(check: impl Fn(&Source) -> Vec<Fault>, text: &str) -> Vec<usize> {
        check(&Source::new("crates/rehang-core/src/part.rs", text)).iter().map(|fault| fault.line).collect()
    }

    #[test]
    fn arrows_point_towards_the_core_and_heavy_dependencies_stay_where_they_belong() {
        let package = |name: &str, normal: &[&str], development: &[&str]| Package {
            name: name.into(),
            manifest: format!("crates/{name}/Cargo.toml"),
            normal: normal.iter().map(ToString::to_string).collect(),
            optional: normal
                .iter()
                .filter(|name| name.starts_with("postgres"))
                .map(ToString::to_string)
                .collect(),
            development: development.iter().map(ToString::to_string).collect(),
            features: Vec::new(),
        };
        let said = |package: Package| {
            dependencies(&[package]).into_iter().map(|fault| fault.what).collect::<Vec<_>>()
        };
        assert_eq!(
            said(package("rehang-upgrade", &["rehang-core", "rehang-store", "serde"], &["rehang-fit"])),
            [""; 0]
        );
        assert!(
            said(package("rehang-store", &["rehang-encode"], &[]))[0]
                .contains("must not depend on rehang-encode")
        );
        assert!(said(package("rehang-core", &["rusqlite"], &[]))[0].contains("which is for rehang-sqlite"));
        assert_eq!(
            said(package("rehang-fit", &["rehang-core", "postgres"], &[])),
            [""; 0],
            "only behind a feature"
        );
        assert!(said(package("rehang-core", &[], &["rehang-cli"]))[0].contains("no library"));
        assert!(said(package("rehang-new", &[], &[]))[0].contains("no line in ARROWS"));
    }

    #[test]
    fn what_uses_the_laboratory_from_outside_is_found() {
        let package = |manifest: &str, normal: &[&str], development: &[&str]| Package {
            name: manifest.split('/').nth(1).unwrap_or_default().into(),
            manifest: manifest.into(),
            normal: normal.iter().map(ToString::to_string).collect(),
            optional: Vec::new(),
            development: development.iter().map(ToString::to_string).collect(),
            features: Vec::new(),
        };
        let packages = [
            package("laboratory/rehang-train/Cargo.toml", &["rehang-core"], &[]),
            package("laboratory/rehang-lab/Cargo.toml", &["rehang-train", "rehang-cli"], &[]),
            package("xtask/Cargo.toml", &["rehang-train"], &[]),
            package("crates/rehang-cli/Cargo.toml", &["rehang-core"], &[]),
        ];
        assert_eq!(laboratory(&packages, &[]), []);
        let mut with_one = Vec::from(packages);
        with_one.push(package("crates/rehang-fit/Cargo.toml", &["rehang-train"], &[]));
        with_one.push(package("examples/Cargo.toml", &[], &["rehang-train"]));
        let faults = laboratory(&with_one, &[]);
        let paths: Vec<&str> = faults.iter().map(|fault| fault.path.as_str()).collect();
        assert_eq!(paths, ["crates/rehang-fit/Cargo.toml", "examples/Cargo.toml"]);
        let text = "// laboratory/docs says why.\ninclude_str!(\"../../laboratory/docs/training.md\");";
        let lines = |path: &str| -> Vec<usize> {
            laboratory(&[], &[Source::new(path, text)]).iter().map(|fault| fault.line).collect()
        };
        assert_eq!(lines("crates/rehang-cli/tests/it/main.rs"), [2]);
        assert_eq!(lines("laboratory/rehang-lab/src/main.rs"), [0; 0]);
    }

    #[test]
    fn time_is_found_outside_its_doors_and_not_in_tests() {
        let text = "let a = Instant::now();\nstd::thread::sleep(b); // Instant::now\n\"SystemTime::now\";\n#[cfg(test)]\nmod tests { fn c() { Instant::now(); } }";
        assert_eq!(found(time, text), [1, 2]);
        let door = Source::new("crates/rehang-clock/src/lib.rs", text);
        assert_eq!(time(&door), []);
        let example = Source::new("crates/rehang-core/examples/bench.rs", text);
        assert_eq!(time(&example), []);
    }

    #[test]
    fn printing_is_found_and_pipes_of_children_are_not() {
        let text = "println!(\"a\");\nio::stderr().lock();\ncommand.stdout(Stdio::piped());\nchild.stderr.take();\nlet stdout = 1;";
        assert_eq!(found(printing, text), [1, 2]);
        assert_eq!(printing(&Source::new("crates/rehang-cli/src/bar.rs", text)), []);
    }

    #[test]
    fn words_of_the_command_line_are_found_in_strings_only() {
        let text = "\"run `rehang upgrade start` again\";\n\"give --labels\";\n// rehang fit --labels\n\"a page of rehang reports, var(--ink); --paper:white; a--b\";\n\"rehang gallery\";";
        assert_eq!(found(words, text), [1, 2, 5]);
        assert_eq!(command_line_word("--paper:{};--ink:{};"), None);
        assert_eq!(command_line_word("(--old-ids)").as_deref(), Some("--old-ids"));
    }

    #[test]
    fn a_circle_is_named_unless_its_files_are_allowed_for() {
        let file = |name: &str, other: &str| {
            Source::new(
                &format!("crates/rehang-core/src/{name}.rs"),
                &format!("use crate::{other}::it;\npub fn it() {{}}"),
            )
        };
        let sources = [file("a", "b"), file("b", "c"), file("c", "d"), file("d", "a"), file("lib", "a")];
        let said = |allowed: &[(&str, usize)]| -> Vec<String> {
            imports(&sources, allowed).into_iter().map(|fault| fault.what).collect()
        };
        let [fault] = &said(&[])[..] else { panic!("one circle") };
        assert!(
            fault.starts_with("4 files")
                && fault.contains(
                    "\n    crates/rehang-core/src/d.rs:1: crate::a::it in crates/rehang-core/src/a.rs"
                ),
            "{fault}"
        );
        assert_eq!(said(&[("rehang-core", 4)]), [""; 0]);
        assert!(said(&[("rehang-core", 3)])[0].starts_with("4 files"));
        assert!(said(&[("rehang-core", 5)])[0].contains("only 4 files"));
        assert!(said(&[("rehang-core", 4), ("rehang-gone", 4)])[0].contains("rehang-gone is not needed"));
    }

    #[test]
    fn an_import_of_a_folder_that_stands_above_is_found() {
        let sources = [
            Source::new("crates/rehang-core/src/lib.rs", "mod beside;\nmod high;\nmod low;"),
            Source::new("crates/rehang-core/src/low/mod.rs", "use crate::beside::it;\npub fn low() {}"),
            Source::new(
                "crates/rehang-core/src/low/part.rs",
                "fn a() {\n    crate::high::high();\n}\n#[cfg(test)]\nmod tests { use crate::high::high; }",
            ),
            Source::new("crates/rehang-core/src/high/mod.rs", "use crate::low::low;\npub fn high() {}"),
            Source::new("crates/rehang-core/src/beside.rs", "use crate::high::high;\npub fn it() {}"),
        ];
        let said = |order: &[&str]| -> Vec<(String, usize)> {
            let faults = folders(&sources, &[("rehang-core", order)]);
            faults.into_iter().map(|fault| (fault.path, fault.line)).collect()
        };
        assert_eq!(said(&["low", "high"]), [("crates/rehang-core/src/low/part.rs".to_string(), 2)]);
        assert_eq!(said(&["high", "low"]), [("crates/rehang-core/src/high/mod.rs".to_string(), 1)]);
        assert_eq!(said(&["low", "gone"]), [(RULES.to_string(), 1)]);
    }

    #[test]
    fn a_second_public_type_of_one_name_is_found() {
        let source = |name: &str, text: &str| Source::new(&format!("crates/{name}/src/lib.rs"), text);
        let sources = [
            source("a", "pub struct Part;\npub enum Step {}\npub(crate) struct Whole;"),
            source("b", "struct Step;\npub type Whole = u8;\npub trait Part {\n    type Step;\n}"),
        ];
        let faults = names(&sources, &[]);
        assert_eq!(
            faults.iter().map(|fault| (fault.path.as_str(), fault.line)).collect::<Vec<_>>(),
            [("crates/b/src/lib.rs", 3)]
        );
        assert_eq!(names(&sources, &[("Part", "a reason")]), []);
        assert!(
            names(&sources, &[("Part", "a reason"), ("Step", "none")])[0].what.contains("exception for Step")
        );
    }

    #[test]
    fn a_feature_without_its_line_and_a_line_without_its_feature_are_found() {
        let text = "| feature | brings |\n|---|---|\n| `a` | much |\n| `gone` | nothing |\n\n## Libraries\n\n| `other` | more |\n";
        let found = unlisted("docs/features.md", text, &["a", "b"]);
        let said: Vec<(usize, &str)> = found.iter().map(|fault| (fault.line, fault.what.as_str())).collect();
        assert_eq!(
            said,
            [
                (1, "the table has no line for the feature b of rehang-cli"),
                (4, "rehang-cli has no feature gone")
            ]
        );
    }

    #[test]
    fn another_rust_than_the_promised_one_is_found() {
        assert_eq!((another_rust("1.95", "1.95.0"), another_rust("1.95", "1.95")), (None, None));
        assert!(
            [("1.95", "1.96.0"), ("1.95", "stable"), ("1.9", "1.95.0"), ("", "")]
                .iter()
                .all(|(promised, used)| another_rust(promised, used).is_some())
        );
    }

    #[test]
    fn unsafe_without_a_word_is_found() {
        let good = "// SAFETY: checked above.\nunsafe { a() }\n// SAFETY: the same.\n#[cfg(unix)]\nlet b =\n    unsafe { c() };\n/// # Safety\n///\n/// Nothing.\nunsafe fn d() {}\ntype K = unsafe fn(u8);";
        assert!(found(soundness, good).is_empty());
        let bad = "// SAFETY: checked above.\nlet a = 1;\nunsafe { b() };\nunsafe fn c() {}\nunsafe impl Sync for D {}";
        assert_eq!(found(soundness, bad), [3, 4, 5]);
    }

    #[test]
    fn an_exception_without_a_reason_is_found() {
        let text = "#[allow(dead_code)]\n#[allow(dead_code, reason = \"used by tests\")]\n#![allow(\n    dead_code,\n    reason = \"long\"\n)]\n#[expect(unused)]";
        assert_eq!(found(reasons, text), [1, 7]);
    }

    #[test]
    fn a_crate_without_a_beginning_is_found() {
        let begins = |text: &str| introduction(&Source::new("crates/rehang-core/src/lib.rs", text)).is_none();
        assert!(begins("//! What it is.\n") && !begins("mod a;\n") && !begins(""));
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let text = "[a](README.md#words) [b](https://example.org)\n[c](nowhere.md)\n```\n[d](nowhere.md)\n```\n[e](#here)";
        let lines: Vec<usize> =
            dead_links(&root(), "docs/page.md", text).iter().map(|fault| fault.line).collect();
        assert_eq!(lines, [2]);
    }
}
