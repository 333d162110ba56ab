//! Helpers of the tests of reports and of comparisons: committed files, made-up numbers, and checks that hold
//! for every page.

use std::path::Path;

/// Compares `actual` with a committed file; with `REHANG_BLESS=1` in the environment the file is written
/// instead.
#[allow(clippy::disallowed_methods, reason = "a test reads and writes its own committed files")]
pub fn assert_as_committed(name: &str, actual: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(name);
    if std::env::var_os("REHANG_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, actual).unwrap();
        return;
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    if let Some(line) = (0..).zip(committed.lines().zip(actual.lines())).find(|(_, (old, new))| old != new) {
        let (number, (old, new)) = line;
        let shorten = |text: &str| text.chars().take(300).collect::<String>();
        panic!(
            "{} differs from what is rendered, first in line {}:\n- {}\n+ {}\nIf that is wanted, run the test again with REHANG_BLESS=1.",
            path.display(),
            number + 1,
            shorten(old),
            shorten(new)
        );
    }
    assert!(
        committed == actual,
        "{} is missing or has another length; if that is wanted, run the test again with REHANG_BLESS=1",
        path.display()
    );
}

/// Rounds to four decimals, so that every platform and JSON reader has the same number.
pub fn rounded(value: f64) -> f64 {
    (value * 10_000.0).round() / 10_000.0
}

/// Returns a pseudo-random number in [−1, 1] for each index.
pub fn noise(seed: u64, index: usize) -> f64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(index as u64 + 1);
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (state ^ (state >> 31)) as f64 / u64::MAX as f64 * 2.0 - 1.0
}

/// Checks that every element that is opened is closed in order, as in XML, and that attributes are quoted.
pub fn assert_well_formed(page: &str) {
    const VOID: [&str; 3] = ["meta", "br", "hr"];
    let mut open: Vec<&str> = Vec::new();
    let mut rest = page.strip_prefix("<!DOCTYPE html>").unwrap_or(page);
    while let Some(at) = rest.find('<') {
        assert!(!rest[..at].contains('>') || open.last() == Some(&"style"), "a bare > in {:?}", &rest[..at]);
        let end = at + rest[at..].find('>').expect("a tag that ends");
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "closed out of order");
            continue;
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "an attribute that is not closed: {tag}");
        let outside: String = tag.split('"').step_by(2).collect();
        assert!(!outside.contains(['<', '\'']), "a strange tag: {tag}");
        let name = tag.split([' ', '/', '\n']).next().unwrap();
        assert!(
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric()),
            "a strange tag: {tag}"
        );
        if !tag.ends_with('/') && !VOID.contains(&name) {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "not closed: {open:?}");
    let mut ids: Vec<&str> =
        page.split(" id=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "an id stands twice");
}

/// Checks that a page or picture loads nothing from elsewhere, whatever the data.
pub fn assert_self_contained(page: &str) {
    let without_namespace =
        page.replace("xmlns=\"http://www.w3.org/2000/svg\"", "").replace("href=\"#warnings\"", "");
    for forbidden in
        ["http:", "https:", "//", "url(", "@import", "<script", "<link", "<img", "src=", "href=", "onload"]
    {
        assert!(!without_namespace.contains(forbidden), "{forbidden} in a page");
    }
    for svg in page.split("<svg ").skip(1) {
        let svg = svg.split("</svg>").next().unwrap();
        for element in svg.split('<').filter(|element| !element.starts_with(['/', 't', 'd'])) {
            let tag = element.split('>').next().unwrap();
            assert!(!tag.contains("NaN") && !tag.contains("inf"), "not a number in {tag}");
        }
    }
}
