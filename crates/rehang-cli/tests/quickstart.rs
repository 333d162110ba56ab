//! `docs/quickstart.md` is run as it stands: its commands give its output. `…` stands for anything within a line, and a line of it alone for any
//! lines: times, and the numbers of networks, differ from machine to machine.

mod common;

use std::fmt::Write as _;
use std::path::Path;

use common::{Place, demo};
use rehang::files::{self, VectorSource};

/// The files that the page begins with: the digits of the demo, by a small and by a larger model.
fn place() -> Place {
    let place = Place::new();
    let labels = files::read_labels(&VectorSource::path(demo("label.npy"))).unwrap();
    let (mut items, mut ids) = (String::new(), String::new());
    for (row, label) in labels.iter().enumerate() {
        writeln!(items, r#"{{"id": "digit-{row}", "source": "digits/{row}.png", "label": {label}}}"#)
            .unwrap();
        writeln!(ids, "digit-{row}").unwrap();
    }
    place.write_bytes("items.jsonl", items.as_bytes());
    place.write_bytes("ids.txt", ids.as_bytes());
    for name in ["old.npy", "new.npy"] {
        fs_err::copy(demo(name), place.path(name)).unwrap();
    }
    place
}

/// Whether a line is what the page has.
fn is_like(expected: &str, line: &str) -> bool {
    let mut parts = expected.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = line.strip_prefix(first) else { return false };
    let parts: Vec<&str> = parts.collect();
    for part in &parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.is_empty() || parts.last() == Some(&"")
}

/// Whether an output is what the page has; else the first line that is not.
fn differs(expected: &[&str], output: &[&str]) -> Option<String> {
    let mut at = 0;
    let mut skips = false;
    for line in expected {
        if line.trim() == "…" {
            skips = true;
            continue;
        }
        let until = if skips { output.len() } else { (at + 1).min(output.len()) };
        let found = (at..until).find(|&place| is_like(line, output[place]));
        let Some(place) = found else { return Some(format!("{line:?}, found {:?}", output.get(at))) };
        (at, skips) = (place + 1, false);
    }
    (!skips && at < output.len()).then(|| format!("no more lines, found {:?}", output[at]))
}

#[test]
fn the_quick_start_does_what_it_says() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/quickstart.md");
    let page = fs_err::read_to_string(page).unwrap();
    let place = place();
    let mut commands = 0;
    for block in page.split("```").skip(1).step_by(2) {
        let (kind, text) = block.split_once('\n').unwrap();
        match kind {
            "toml" => {
                let before = fs_err::read_to_string(place.path("rehang.toml")).unwrap();
                place.write_bytes("rehang.toml", format!("{before}\n{text}").as_bytes());
            }
            "console" => {
                for call in text.split("$ rehang ").skip(1) {
                    let (command, expected) = call.split_once('\n').unwrap();
                    let output = place.run(&command.split_whitespace().collect::<Vec<_>>());
                    let said = String::from_utf8_lossy(&output.stdout).into_owned();
                    let errors = String::from_utf8_lossy(&output.stderr);
                    assert_eq!(output.status.code(), Some(0), "rehang {command}: {said}{errors}");
                    let expected: Vec<&str> = expected.trim_end().lines().collect();
                    let found: Vec<&str> = said.trim_end().lines().collect();
                    if let Some(difference) = differs(&expected, &found) {
                        panic!("rehang {command}: the page has {difference}\n{said}");
                    }
                    commands += 1;
                }
            }
            _ => {}
        }
    }
    assert!(commands >= 6, "{commands} commands");
}

#[test]
fn a_page_that_is_not_true_is_found() {
    assert_eq!(differs(&["a … c", "…", "d"], &["a b c", "x", "y", "d"]), None);
    assert!(differs(&["a"], &["a", "b"]).is_some() && differs(&["a", "b"], &["a"]).is_some());
    assert!(differs(&["a … c"], &["a b d"]).is_some() && differs(&["…", "d"], &["x", "e"]).is_some());
    assert!(is_like("…", "") && !is_like("a", "ab") && is_like("a…", "ab"));
}
