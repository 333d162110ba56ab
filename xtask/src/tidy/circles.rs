//! Imports inside a crate, and their circles: files that cannot be read, moved or tested without each other.

use std::collections::{BTreeMap, BTreeSet};

use super::modules::{self, Module, Path};
use super::source::Source;

/// Number of files that may import each other in a circle: a module and its closest parts.
const LARGEST: usize = 3;

/// Import of one file by another, at the first path that does it.
#[derive(Debug, PartialEq)]
pub struct Tie {
    pub from: String,
    /// Counted from 1.
    pub line: usize,
    pub path: String,
    pub to: String,
}

impl Tie {
    fn new(files: &[&Source], (&(from, to), path): (&(usize, usize), &Path)) -> Self {
        let name = |file: usize| files[file].path.clone();
        Self { from: name(from), line: path.line, path: path.segments.join("::"), to: name(to) }
    }
}

/// Finds every import of a file of one crate by another.
pub fn find_ties(files: &[&Source]) -> Vec<Tie> {
    Crate::read(files).ties().iter().map(|between| Tie::new(files, between)).collect()
}

/// Finds the circles of more than three files of one crate, each as the imports among its files.
pub fn find_circles(files: &[&Source]) -> Vec<Vec<Tie>> {
    let inside = Crate::read(files);
    let ties = inside.ties();
    let reached: Vec<BTreeSet<usize>> = (0..files.len()).map(|file| reachable(file, &ties)).collect();
    let mut circles = Vec::new();
    for file in 0..files.len() {
        let circle: BTreeSet<usize> =
            reached[file].iter().copied().filter(|other| reached[*other].contains(&file)).collect();
        // Each circle once, at its first file.
        if circle.len() > LARGEST && circle.first() == Some(&file) {
            let within = ties.iter().filter(|((from, to), _)| circle.contains(from) && circle.contains(to));
            circles.push(within.map(|between| Tie::new(files, between)).collect());
        }
    }
    circles
}

/// Counts the files that stand in a circle.
pub fn size(circle: &[Tie]) -> usize {
    circle.iter().map(|tie| &tie.from).collect::<BTreeSet<_>>().len()
}

/// Finds the files that a file needs, over any number of others.
fn reachable(file: usize, ties: &BTreeMap<(usize, usize), Path>) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut next = vec![file];
    while let Some(from) = next.pop() {
        for &(_, to) in ties.range((from, 0)..=(from, usize::MAX)).map(|(tie, _)| tie) {
            if found.insert(to) {
                next.push(to);
            }
        }
    }
    found
}

/// Target of a path.
enum Found {
    Module(Vec<String>),
    /// The file that defines an item.
    File(usize),
}

/// Number of re-exports after which a path that leads in circles itself is given up.
const REEXPORTS: usize = 32;

struct Crate {
    modules: BTreeMap<Vec<String>, Module>,
}

impl Crate {
    fn read(files: &[&Source]) -> Self {
        let has_library = files.iter().any(|file| file.path.ends_with("/src/lib.rs"));
        let mut modules = BTreeMap::new();
        for (number, source) in files.iter().enumerate() {
            // A binary beside a library is a user of it.
            if !(has_library && source.path.ends_with("/src/main.rs")) {
                modules.extend(modules::read(source, number));
            }
        }
        Self { modules }
    }

    /// Finds which file imports which, with the first path that does.
    fn ties(&self) -> BTreeMap<(usize, usize), Path> {
        let mut ties = BTreeMap::new();
        let mut tie = |from: usize, to: Option<Found>, segments: Vec<String>, line: usize| {
            if let Some(Found::File(to)) = to.filter(|to| !matches!(to, Found::File(to) if *to == from)) {
                ties.entry((from, to)).or_insert(Path { segments, line });
            }
        };
        for (at, module) in &self.modules {
            for import in &module.imports {
                let segments = &import.path.segments;
                if import.name == "*" {
                    let Some(Found::Module(target)) = self.resolve(at, segments, true, REEXPORTS) else {
                        continue;
                    };
                    for (name, &line) in &module.names {
                        let whole = segments.iter().chain([name]).cloned().collect();
                        tie(module.file, self.look_up(&target, name, false, REEXPORTS), whole, line);
                    }
                } else if !import.is_passed_on || module.names.contains_key(&import.name) {
                    // A name that is only passed on is none that the module needs.
                    tie(
                        module.file,
                        self.resolve(at, segments, false, REEXPORTS),
                        segments.clone(),
                        import.path.line,
                    );
                }
            }
            for Path { segments, line } in &module.paths {
                tie(module.file, self.resolve(at, segments, false, REEXPORTS), segments.clone(), *line);
            }
        }
        ties
    }

    /// Resolves a path of module `at`; gives nothing for what other crates define.
    fn resolve(&self, at: &[String], path: &[String], wants_module: bool, left: usize) -> Option<Found> {
        let mut place = at.to_vec();
        let mut rest = path;
        match path.first().map(String::as_str)? {
            "crate" => {
                place.clear();
                rest = &path[1..];
            }
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|first| first == "super") {
                    place.pop();
                    rest = &rest[1..];
                }
            }
            first => {
                let is_last = path.len() == 1;
                match self.look_up(&place, first, wants_module || !is_last, left)? {
                    Found::Module(module) => place = module,
                    file @ Found::File(_) => return Some(file),
                }
                rest = &path[1..];
            }
        }
        for (number, segment) in rest.iter().enumerate() {
            let is_last = number + 1 == rest.len();
            let module = self.modules.get(&place)?;
            match self.look_up(&place, segment, wants_module || !is_last, left) {
                Some(Found::Module(next)) => place = next,
                Some(file) => return Some(file),
                // A file of another crate, by a `#[path]`.
                None if module.children.contains(segment) => return None,
                // A macro of the module makes the item.
                None => return Some(Found::File(module.file)),
            }
        }
        Some(Found::Module(place))
    }

    /// Looks up the meaning of a name in a module. A module and an item may have one name: `wants_module`
    /// says which one a path goes on from.
    fn look_up(&self, at: &[String], name: &str, wants_module: bool, left: usize) -> Option<Found> {
        let left = left.checked_sub(1)?;
        let module = self.modules.get(at)?;
        let child: Vec<String> = at.iter().cloned().chain([name.to_string()]).collect();
        let child = self.modules.contains_key(&child).then_some(Found::Module(child));
        if wants_module && child.is_some() {
            return child;
        }
        if module.items.contains_key(name) {
            return Some(Found::File(module.file));
        }
        let named = module.imports.iter().filter(|import| import.name == name);
        let mut imported =
            named.filter_map(|import| self.resolve(at, &import.path.segments, wants_module, left));
        imported.next().or(child).or_else(|| {
            let all = module.imports.iter().filter(|import| import.name == "*");
            let mut found = all.filter_map(|import| {
                let Found::Module(target) = self.resolve(at, &import.path.segments, true, left)? else {
                    return None;
                };
                self.look_up(&target, name, wants_module, left)
            });
            found.next()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let sources: Vec<Source> =
            files.iter().map(|(path, text)| Source::new(&format!("crates/a/src/{path}"), text)).collect();
        let short = |path: &str| path.trim_start_matches("crates/a/src/").to_string();
        let said = |tie: Tie| format!("{}:{} {} {}", short(&tie.from), tie.line, tie.path, short(&tie.to));
        let circles = find_circles(&sources.iter().collect::<Vec<_>>());
        circles.into_iter().map(|circle| circle.into_iter().map(said).collect()).collect()
    }

    const ROOT: (&str, &str) = ("lib.rs", "mod b;\nmod c;\nmod d;\nmod e;\npub use b::B;\npub use e::*;");

    #[test]
    fn a_circle_of_four_is_found_with_its_imports_and_one_of_three_is_none() {
        let files = [
            ROOT,
            ("b.rs", "use super::c::C;\npub struct B;"),
            ("c.rs", "pub struct C(crate::d::D);"),
            ("d.rs", "use crate::e;\npub struct D;\nfn d() { e::run(); }"),
            // Through the root, which passes the name on and is no part of the circle.
            ("e.rs", "pub fn run() {\n    use crate::{B, c};\n}"),
        ];
        let ties = [
            "b.rs:1 super::c::C c.rs",
            "c.rs:1 crate::d::D d.rs",
            "d.rs:3 e::run e.rs",
            "e.rs:2 crate::B b.rs",
        ];
        assert_eq!(circles(&files), [ties]);

        let mut shorter = files;
        shorter[3] = ("d.rs", "pub struct D(crate::b::B);");
        assert_eq!(circles(&shorter), [[""; 0]; 0]);
        let mut straight = files;
        straight[4] = ("e.rs", "pub fn run() {}\n#[cfg(test)]\nmod tests { use crate::B; }");
        assert_eq!(circles(&straight), [[""; 0]; 0], "tests may import what they like");
    }

    #[test]
    fn a_root_that_uses_what_it_passes_on_is_part_of_the_circle() {
        let root = |rest: &str| format!("mod b;\nmod c;\nmod d;\npub use b::B;\n{rest}");
        let files = |root: &str| {
            circles(&[
                ("lib.rs", root),
                ("b.rs", "use crate::c::c;\npub struct B;"),
                ("c.rs", "use crate::d::d;\npub fn c() {}"),
                ("d.rs", "use crate::all;\npub fn d() {}"),
            ])
        };
        assert_eq!(files(&root("pub fn all() {}")), [[""; 0]; 0]);
        assert_eq!(files(&root("pub fn all(b: B) {}"))[0].len(), 4);
    }

    #[test]
    fn names_are_followed_through_globs_aliases_and_modules_of_one_name() {
        let files = [
            ("lib.rs", "mod b;\nmod c;\nmod d;\nmod e;"),
            ("b/mod.rs", "mod b;\npub use b::{b, Hidden as Shown};"),
            ("b/b.rs", "use crate::c;\npub fn b() { c::Kept::new(); }\npub struct Hidden;"),
            ("c.rs", "pub use crate::d::*;"),
            ("d.rs", "use crate::e::E;\npub struct Kept;"),
            ("e/mod.rs", "mod deep;\npub use self::deep::E;"),
            (
                "e/deep.rs",
                "use std::fmt;\nuse crate::b::Shown;\npub enum E {}\nfn e() { fmt::write(); crate::b::b::b(); }",
            ),
        ];
        assert_eq!(circles(&files), [[""; 0]; 0], "three files: b/b.rs, d.rs and e/deep.rs");
        let mut longer = files;
        longer[4] = ("d.rs", "pub struct Kept(super::f::F);");
        let mut longer = longer.to_vec();
        longer.push(("f.rs", "use crate::e::E;\npub struct F;"));
        let ties = [
            "b/b.rs:2 c::Kept::new d.rs",
            "d.rs:1 super::f::F f.rs",
            "e/deep.rs:2 crate::b::Shown b/b.rs",
            "f.rs:1 crate::e::E e/deep.rs",
        ];
        assert_eq!(circles(&longer), [ties]);
    }
}
