//! Rust source, cut into code, comments and string literals, so that a check looks at what it is about.

use std::path::{Path, PathBuf};

use rehang_core::Result;

/// Gives the root of the repository.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}

/// One line of a file.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct SourceLine {
    /// The code, with comments left out and the content of literals replaced by nothing.
    pub code: String,
    /// Text of comments, documentation included.
    pub comment: String,
    /// Text of string literals that begin or go on in this line.
    pub text: String,
    /// Whether the line belongs to a test: an item under `#[cfg(test)]`.
    pub is_test: bool,
}

/// A file of the repository.
#[derive(Debug, Clone)]
pub struct Source {
    /// Path from the root of the repository, with `/`.
    pub path: String,
    /// Lines of the file; line `i` is called `i + 1`.
    pub lines: Vec<SourceLine>,
}

impl Source {
    /// Cuts a text up.
    pub fn new(path: &str, text: &str) -> Self {
        let mut lines = cut(text);
        mark_tests(&mut lines);
        Self { path: path.into(), lines }
    }

    /// The name of the crate that the file belongs to, by its folder.
    pub fn crate_name(&self) -> &str {
        let path = ["crates/", "laboratory/"].iter().find_map(|folder| self.path.strip_prefix(folder));
        let path = path.unwrap_or(&self.path);
        path.split('/').next().unwrap_or_default()
    }

    /// Lines of the product: no tests.
    pub fn product(&self) -> impl Iterator<Item = (usize, &SourceLine)> {
        self.lines.iter().enumerate().filter(|(_, line)| !line.is_test)
    }

    /// Files of modules that exist in tests only (`#[cfg(test)] mod name;`), without their endings.
    fn test_modules(&self) -> Vec<String> {
        let folder = match self.path.rsplit_once('/') {
            Some((folder, "lib.rs" | "main.rs" | "mod.rs")) => folder.to_string(),
            _ => self.path.trim_end_matches(".rs").to_string(),
        };
        let modules = self.lines.iter().filter(|line| line.is_test);
        modules
            .filter_map(|line| {
                let (_, name) = line.code.strip_suffix(';')?.split_once("mod ")?;
                Some(format!("{folder}/{name}"))
            })
            .collect()
    }
}

/// Reads all Rust files under `folders` of `root`; files of test modules have test lines only.
pub fn read(root: &Path, folders: &[&str]) -> Result<Vec<Source>> {
    let mut paths = Vec::new();
    for folder in folders {
        collect(&root.join(folder), "rs", &mut paths)?;
    }
    let mut sources = Vec::new();
    for path in paths {
        let text =
            fs_err::read_to_string(&path).map_err(|error| rehang_core::Error::io("read", &path, &error))?;
        sources.push(Source::new(&relative(root, &path), &text));
    }
    let tests: Vec<String> = sources.iter().flat_map(Source::test_modules).collect();
    for source in &mut sources {
        let path = source.path.trim_end_matches(".rs");
        if tests.iter().any(|module| path == module || path.starts_with(&format!("{module}/"))) {
            source.lines.iter_mut().for_each(|line| line.is_test = true);
        }
    }
    Ok(sources)
}

/// Gives a path as seen from the root, with `/`.
pub fn relative(root: &Path, path: &Path) -> String {
    let parts = path.strip_prefix(root).unwrap_or(path).iter().map(|part| part.to_string_lossy());
    parts.collect::<Vec<_>>().join("/")
}

/// Collects files with an ending, in a folder and its folders, in the order of their names. What cargo builds
/// is left out.
pub fn collect(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) -> Result<()> {
    let fail = |error: std::io::Error| rehang_core::Error::io("read", folder, &error);
    let mut entries = Vec::new();
    for entry in fs_err::read_dir(folder).map_err(fail)? {
        entries.push(entry.map_err(fail)?.path());
    }
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            collect(&path, ending, found)?;
        } else if path.extension().is_some_and(|extension| extension == ending) {
            found.push(path);
        }
    }
    Ok(())
}

/// Place where the reader of a file stands: in code, a comment or a string.
enum State {
    Code,
    LineComment,
    BlockComment(usize),
    /// A string; raw ones end at a quote with so many `#`.
    Text {
        hashes: Option<usize>,
    },
}

fn cut(text: &str) -> Vec<SourceLine> {
    let mut state = State::Code;
    let mut lines = Vec::new();
    for content in text.lines() {
        let mut line = SourceLine::default();
        let characters: Vec<char> = content.chars().collect();
        let mut at = 0;
        while at < characters.len() {
            let rest = &characters[at..];
            at += match &mut state {
                State::Code => in_code(rest, &mut line, &mut state),
                State::LineComment => {
                    line.comment.extend(rest);
                    rest.len()
                }
                State::BlockComment(depth) => match rest {
                    ['/', '*', ..] => {
                        *depth += 1;
                        2
                    }
                    ['*', '/', ..] => {
                        *depth -= 1;
                        if *depth == 0 {
                            state = State::Code;
                        }
                        2
                    }
                    _ => {
                        line.comment.push(rest[0]);
                        1
                    }
                },
                State::Text { hashes: None } if rest[0] == '\\' => {
                    line.text.extend(rest.iter().take(2));
                    2
                }
                State::Text { hashes } => {
                    let closing = hashes.unwrap_or(0);
                    if rest[0] == '"' && rest[1..].iter().take_while(|&&next| next == '#').count() >= closing
                    {
                        state = State::Code;
                        line.code.push('"');
                        line.text.push(' ');
                        1 + closing
                    } else {
                        line.text.push(rest[0]);
                        1
                    }
                }
            };
        }
        if matches!(state, State::LineComment) {
            state = State::Code;
        }
        lines.push(line);
    }
    lines
}

/// Takes one thing off a line of code and says how many characters it had.
fn in_code(rest: &[char], line: &mut SourceLine, state: &mut State) -> usize {
    let in_word = line.code.chars().last().is_some_and(|last| last.is_alphanumeric() || last == '_');
    match rest {
        ['/', '/', ..] => {
            *state = State::LineComment;
            2
        }
        ['/', '*', ..] => {
            *state = State::BlockComment(1);
            2
        }
        ['"', ..] => {
            line.code.push('"');
            *state = State::Text { hashes: None };
            1
        }
        ['r', '"' | '#', ..] if !in_word => {
            let hashes = rest[1..].iter().take_while(|&&next| next == '#').count();
            if rest.get(1 + hashes) == Some(&'"') {
                line.code.push('"');
                *state = State::Text { hashes: Some(hashes) };
                2 + hashes
            } else {
                line.code.push('r');
                1
            }
        }
        // A character; a lifetime has no closing quote.
        ['\'', '\\', _, more @ ..] => 4 + more.iter().position(|&next| next == '\'').unwrap_or(0),
        ['\'', _, '\'', ..] => 3,
        _ => {
            line.code.push(rest[0]);
            1
        }
    }
}

/// Marks the items that follow a `#[cfg(test)]`, up to the end of their braces or to a semicolon.
fn mark_tests(lines: &mut [SourceLine]) {
    let mut depth: Option<i32> = None;
    for line in lines {
        let opens = depth.is_none() && line.code.contains("#[cfg(") && is_word(&line.code, "test");
        if opens {
            depth = Some(0);
        }
        let Some(level) = &mut depth else { continue };
        line.is_test = true;
        let before = *level;
        let mut seen = before > 0;
        for character in line.code.chars() {
            match character {
                '{' => {
                    *level += 1;
                    seen = true;
                }
                '}' => *level -= 1,
                _ => {}
            }
        }
        let ended = if seen { *level <= 0 } else { line.code.trim_end().ends_with(';') };
        if ended {
            depth = None;
        }
    }
}

/// Whether `word` stands in the code by itself.
pub fn is_word(code: &str, word: &str) -> bool {
    let inside = |character: Option<char>| character.is_some_and(|c| c.is_alphanumeric() || c == '_');
    code.match_indices(word)
        .any(|(at, _)| !inside(code[..at].chars().last()) && !inside(code[at + word.len()..].chars().next()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_comments_and_strings_are_told_apart() {
        let source = Source::new(
            "crates/a/src/lib.rs",
            "let a = \"no // comment \\\" here\"; // unsafe\nlet b = r#\"raw \"text\"\"#; /* block\nof two */ let c = '\"';\nfn d<'a>() {}",
        );
        let lines = &source.lines;
        assert_eq!((lines[0].code.as_str(), lines[0].comment.as_str()), ("let a = \"\"; ", " unsafe"));
        assert_eq!(lines[0].text, "no // comment \\\" here ");
        assert_eq!((lines[1].code.as_str(), lines[1].text.as_str()), ("let b = \"\"; ", "raw \"text\" "));
        assert_eq!((lines[2].code.as_str(), lines[2].comment.as_str()), (" let c = ;", "of two "));
        assert_eq!(lines[3].code, "fn d<'a>() {}");
    }

    #[test]
    fn what_is_compiled_for_tests_only_is_marked() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n#[cfg(all(test, unix))]\nmod more;\nfn d() {}";
        let source = Source::new("crates/a/src/part/mod.rs", text);
        let marked: Vec<usize> = (0..9).filter(|&line| source.lines[line].is_test).collect();
        assert_eq!(marked, [1, 2, 3, 4, 6, 7]);
        assert_eq!(source.test_modules(), ["crates/a/src/part/more"]);
        assert_eq!(source.crate_name(), "a");
    }
}
