//! The modules of a crate, as its files say them: what each defines, imports and names.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Source, SourceLine};

/// Module: a file, or a `mod name { … }` in one. Tests are left out.
#[derive(Debug, Default)]
pub struct Module {
    /// Place of the file among the crate's files.
    pub file: usize,
    /// Items that the module defines, by name.
    pub items: BTreeMap<String, Defined>,
    /// Children of the module that stand in files of their own.
    pub children: BTreeSet<String>,
    /// Names that its `use` statements bring in.
    pub imports: Vec<ImportPath>,
    /// The paths of two and more segments in its code.
    pub paths: Vec<Path>,
    /// Names in its code that may be those of something imported, each with the line where it stands first.
    pub names: BTreeMap<String, usize>,
}

/// Item that a module defines.
#[derive(Debug)]
pub struct Defined {
    /// Counted from 1.
    pub line: usize,
    /// Whether it is a type or a trait that everybody may name: `pub`, not `pub(crate)`.
    pub is_public_type: bool,
}

/// A name that a `use` statement brings in.
#[derive(Debug)]
pub struct ImportPath {
    /// The name in this module; `*` for all names of the path.
    pub name: String,
    pub path: Path,
    /// Whether the statement passes the name on to others.
    pub is_passed_on: bool,
}

/// Path in the code.
#[derive(Debug)]
pub struct Path {
    pub segments: Vec<String>,
    /// Counted from 1.
    pub line: usize,
}

/// Gives the module path of a file below `src`: `[]` for the crate's root.
pub fn path_of(file: &str) -> Vec<String> {
    let inside = file.split_once("/src/").map_or(file, |(_, inside)| inside).trim_end_matches(".rs");
    let mut segments: Vec<String> = inside.split('/').map(Into::into).collect();
    if matches!(segments.last().map(String::as_str), Some("lib" | "main" | "mod")) {
        segments.pop();
    }
    segments
}

/// Reads the modules of a file, which is the one at `file` of its crate.
pub fn read(source: &Source, file: usize) -> Vec<(Vec<String>, Module)> {
    let mut reader = Reader {
        tokens: source.product().flat_map(|(number, line)| tokens(line, number + 1)).collect(),
        at: 0,
        depth: 0,
        macros: 0,
        open: vec![(path_of(&source.path), 0, Module { file, ..Module::default() })],
        closed: Vec::new(),
    };
    while reader.at < reader.tokens.len() {
        reader.step();
    }
    reader.closed.extend(reader.open.into_iter().map(|(path, _, module)| (path, module)));
    reader.closed
}

/// Word, `::`, or another single character, with its line.
type Token = (String, usize);

fn tokens(line: &SourceLine, number: usize) -> Vec<Token> {
    let mut found = Vec::new();
    let mut rest = line.code.as_str();
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let mut length = first.len_utf8();
        if is_word(first) {
            length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        } else if first == '\'' {
            // A lifetime is nobody's name.
            length = 1 + rest[1..].find(|c| !is_word(c)).unwrap_or(rest.len() - 1);
        } else if rest.starts_with("::") {
            length = 2;
        }
        if !first.is_whitespace() && first != '\'' {
            found.push((rest[..length].to_string(), number));
        }
        rest = &rest[length..];
    }
    found
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

struct Reader {
    tokens: Vec<Token>,
    at: usize,
    /// Braces that are open.
    depth: usize,
    /// Braces that are open and belong to macros among the items of a module: what stands in them are items
    /// of the module.
    macros: usize,
    /// Module that is read, on top of those around it. Each has its path and the number of braces that are
    /// open where its content begins.
    open: Vec<(Vec<String>, usize, Module)>,
    closed: Vec<(Vec<String>, Module)>,
}

impl Reader {
    /// Gives the token `ahead` of the next one; nothing behind the end.
    fn peek(&self, ahead: usize) -> &str {
        self.tokens.get(self.at + ahead).map_or("", |(text, _)| text)
    }

    /// Gives the token `back` before the next one.
    fn before(&self, back: usize) -> &str {
        self.at.checked_sub(back).map_or("", |at| &self.tokens[at].0)
    }

    fn module(&mut self) -> &mut Module {
        let (.., module) = self.open.last_mut().expect("a file is a module");
        module
    }

    fn step(&mut self) {
        let (text, line) = self.tokens[self.at].clone();
        let is_outside = self.open.last().is_some_and(|(_, depth, _)| depth + self.macros == self.depth);
        match text.as_str() {
            "use" if self.peek(1) != "<" => self.import(line),
            "mod" if is_outside && self.peek(2) == "{" => {
                let name = self.peek(1).to_string();
                self.at += 3;
                self.depth += 1;
                let (path, _, around) = self.open.last().expect("a file is a module");
                let path = path.iter().cloned().chain([name]).collect();
                let file = around.file;
                self.open.push((path, self.depth, Module { file, ..Module::default() }));
            }
            "mod" if is_outside => {
                let name = self.peek(1).to_string();
                self.at += 2;
                self.module().children.insert(name);
            }
            "{" => {
                self.at += 1;
                self.depth += 1;
            }
            "!" if is_outside && self.peek(1) == "{" => {
                self.at += 2;
                self.depth += 1;
                self.macros += 1;
            }
            "}" => {
                self.at += 1;
                if self.macros > 0 && is_outside {
                    self.macros -= 1;
                } else if self.open.len() > 1 && is_outside {
                    let (path, _, module) = self.open.pop().expect("one more than the file is open");
                    self.closed.push((path, module));
                }
                self.depth = self.depth.saturating_sub(1);
            }
            "struct" | "enum" | "trait" | "type" | "union" | "fn" | "const" | "static"
                if is_outside && is_name(self.peek(1)) && self.peek(1) != "fn" =>
            {
                let is_type = matches!(text.as_str(), "struct" | "enum" | "trait" | "type" | "union");
                let is_public =
                    self.before(1) == "pub" || self.before(1) == "unsafe" && self.before(2) == "pub";
                let name = self.peek(1).to_string();
                self.at += 2;
                let item = Defined { line, is_public_type: is_type && is_public };
                self.module().items.entry(name).or_insert(item);
            }
            name if is_name(name) => self.named(line),
            _ => self.at += 1,
        }
    }

    /// Reads a name in the code, with what follows it after `::`.
    fn named(&mut self, line: usize) {
        let is_begin = !matches!(self.before(1), "." | "::" | "fn");
        let mut segments = vec![self.peek(0).to_string()];
        self.at += 1;
        while self.peek(0) == "::" && is_name(self.peek(1)) {
            segments.push(self.peek(1).to_string());
            self.at += 2;
        }
        if !is_begin {
            return;
        }
        // Small names are those of functions where they are called; they may be those of values elsewhere.
        let is_called = self.peek(0) == "(" || segments.len() > 1;
        if segments[0].starts_with(char::is_uppercase) || is_called {
            self.module().names.entry(segments[0].clone()).or_insert(line);
        }
        if segments.len() > 1 {
            self.module().paths.push(Path { segments, line });
        }
    }

    /// Reads a `use` statement, up to its semicolon.
    fn import(&mut self, line: usize) {
        let is_passed_on = matches!(self.before(1), "pub" | ")");
        self.at += 1;
        self.tree(&mut Vec::new(), line, is_passed_on);
        if self.peek(0) == ";" {
            self.at += 1;
        }
    }

    /// Reads one tree of a `use` statement below a path, which is left as it was.
    fn tree(&mut self, path: &mut Vec<String>, line: usize, is_passed_on: bool) {
        let above = path.len();
        while self.at < self.tokens.len() {
            match self.peek(0) {
                "{" => {
                    self.at += 1;
                    while !matches!(self.peek(0), "}" | "") {
                        self.tree(path, line, is_passed_on);
                        if self.peek(0) == "," {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    break;
                }
                "*" => {
                    self.at += 1;
                    let path = Path { segments: path.clone(), line };
                    self.module().imports.push(ImportPath { name: "*".into(), path, is_passed_on });
                    break;
                }
                "::" => self.at += 1,
                name if is_name(name) => {
                    path.push(name.to_string());
                    self.at += 1;
                    if self.peek(0) != "::" {
                        self.leaf(path, line, is_passed_on);
                        break;
                    }
                }
                _ => break,
            }
        }
        path.truncate(above);
    }

    /// Reads the end of a path in a `use` statement, with the name that it gets here.
    fn leaf(&mut self, path: &[String], line: usize, is_passed_on: bool) {
        let mut segments = path.to_vec();
        if segments.len() > 1 && segments.last().is_some_and(|last| last == "self") {
            segments.pop();
        }
        let mut name = segments.last().cloned().unwrap_or_default();
        if self.peek(0) == "as" {
            name = self.peek(1).to_string();
            self.at += 2;
        }
        self.module().imports.push(ImportPath { name, path: Path { segments, line }, is_passed_on });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Vec<(Vec<String>, Module)> {
        read(&Source::new("crates/a/src/part/mod.rs", text), 7)
    }

    #[test]
    fn statements_of_use_are_read_to_their_leaves() {
        let text =
            "pub use crate::a::{self, B as C, d::{E, f::*}};\nuse super::g;\nfn h() -> impl I + use<'a> {}";
        let (path, module) = read_text(text).pop().unwrap();
        assert_eq!(path, ["part"]);
        let imports = module.imports.iter();
        let said: Vec<String> = imports
            .map(|import| {
                format!("{}={} {}", import.name, import.path.segments.join("::"), import.is_passed_on)
            })
            .collect();
        assert_eq!(
            said,
            [
                "a=crate::a true",
                "C=crate::a::B true",
                "E=crate::a::d::E true",
                "*=crate::a::d::f true",
                "g=super::g false"
            ]
        );
        assert_eq!(module.imports[4].path.line, 2);
    }

    #[test]
    fn a_module_knows_what_stands_in_it_and_not_in_its_tests() {
        let text = "mod child;\npub struct A { b: crate::c::D }\npub(crate) enum E {}\nimpl A { fn not() { x.f(G::h) } }\nmod inner { pub trait I { type J; } fn k() { super::l(m) } }\nconst N: u8 = o(1);\nnamed! { pub enum P (\"p\") { Q } }\n#[cfg(test)]\nmod tests { use super::*; }";
        let modules = read_text(text);
        let [(inner, inside), (path, module)] = &modules[..] else { panic!("{modules:?}") };
        assert_eq!((inner.join("::"), path.join("::")), ("part::inner".into(), "part".into()));
        assert_eq!(module.items.keys().collect::<Vec<_>>(), ["A", "E", "N", "P"]);
        assert_eq!(inside.items.keys().collect::<Vec<_>>(), ["I", "k"]);
        let public = |module: &Module| module.items.values().filter(|item| item.is_public_type).count();
        assert_eq!((public(module), public(inside)), (2, 1));
        assert!(module.children.contains("child") && module.imports.is_empty());
        let paths = |module: &Module| -> Vec<String> {
            module.paths.iter().map(|path| path.segments.join("::")).collect()
        };
        assert_eq!(paths(module), ["crate::c::D", "G::h"]);
        assert_eq!(paths(inside), ["super::l"]);
        assert!(module.names.contains_key("o") && !module.names.contains_key("f"));
    }

    #[test]
    fn files_have_their_module_paths() {
        assert_eq!(path_of("crates/a/src/lib.rs"), [""; 0]);
        assert_eq!(path_of("crates/a/src/b/mod.rs"), ["b"]);
        assert_eq!(path_of("xtask/src/b/c.rs"), ["b", "c"]);
    }
}
