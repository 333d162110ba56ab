//! `docs/quickstart.md`, `docs/models.md`, `docs/postgres.md`, `docs/rag.md` and `docs/qdrant.md` are run as
//! they stand: their commands give their output. `…` stands for anything within a line, and a line of it
//! alone for any lines: times, and the numbers of networks, differ from machine to machine.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use rehang_files::VectorSource;
use serde_json::{Value, json};

use crate::common::{Place, demo};
use crate::postgres_server;
use crate::qdrant_server;
use crate::stub::{Reply, Stub, good_of};

/// The files that the page begins with: the digits of the demo, by a small and by a larger model.
fn place() -> Place {
    let place = Place::new();
    let labels = rehang_files::read_labels(&VectorSource::path(demo("label.npy"))).unwrap();
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

/// Runs a page in a folder: adds its TOML to the configuration, and compares what its commands and programs
/// say. Gives how many there were.
fn run_page(name: &str, place: &Place, variables: &[(&str, String)]) -> usize {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    let page = fs_err::read_to_string(page).unwrap();
    let mut said_last = String::new();
    let mut commands = 0;
    for block in page.split("```").skip(1).step_by(2) {
        let (kind, text) = block.split_once('\n').unwrap();
        let expect = |what: &str, expected: &str, said: &str| {
            let expected: Vec<&str> = expected.trim_end().lines().collect();
            let found: Vec<&str> = said.trim_end().lines().map(str::trim_end).collect();
            if let Some(difference) = differs(&expected, &found) {
                panic!("{name}: {what}: the page has {difference}\n{said}");
            }
        };
        let run = |program: &mut Command| {
            let output =
                program.current_dir(place.path(".")).envs(variables.iter().cloned()).output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(0), "{name}: {program:?}: {said}{errors}");
            said
        };
        match kind {
            "toml" => {
                let before = fs_err::read_to_string(place.path("rehang.toml")).unwrap();
                place.write_bytes("rehang.toml", format!("{before}\n{text}").as_bytes());
            }
            "console" => {
                for call in format!("\n{text}").split("\n$ ").skip(1) {
                    let (command, expected) = call.split_once('\n').unwrap_or((call, ""));
                    let path = format!(
                        "{}:{}",
                        Path::new(env!("CARGO_BIN_EXE_rehang")).parent().unwrap().display(),
                        variables.iter().find(|(name, _)| *name == "PROGRAMS").map_or("", |(_, path)| path)
                    );
                    let whole = format!("PATH=\"{path}:$PATH\"; {command}");
                    expect(command, expected, &run(Command::new("sh").args(["-c", &whole])));
                    commands += 1;
                }
            }
            "python" => {
                let python = std::env::var("REHANG_PYTHON").unwrap_or_else(|_| "python3".into());
                said_last = run(Command::new(python).args(["-W", "error", "-c", text]));
                commands += 1;
            }
            // A file of the page, by its name.
            _ if kind.starts_with("python ") || kind.starts_with("toml ") => {
                let name = kind.split_once(' ').map_or("", |(_, name)| name.trim());
                place.write_bytes(name, text.as_bytes());
            }
            "text" => expect("a program", text, &said_last),
            _ => {}
        }
    }
    commands
}

#[test]
fn the_quick_start_does_what_it_says() {
    assert!(run_page("quickstart.md", &place(), &[]) >= 6);
}

#[test]
fn the_page_on_models_does_what_it_says() {
    assert_eq!(run_page("models.md", &place(), &[]), 1);
}

#[test]
fn the_page_on_postgres_does_what_it_says() {
    let Some(server) = postgres_server::server() else { return };
    let (place, address) = (place(), server.database());
    let rows = |name: &str| rehang_files::read_matrix(&VectorSource::path(demo(name))).unwrap();
    let (old, labels) =
        (rows("old.npy"), rehang_files::read_labels(&VectorSource::path(demo("label.npy"))).unwrap());
    let mut client = postgres_server::client(&address);
    client
        .batch_execute(
            "CREATE TABLE digits (id int PRIMARY KEY, path text NOT NULL, label text, seen int NOT NULL DEFAULT 0, embedding vector(8));
             CREATE INDEX digits_embedding ON digits USING hnsw (embedding vector_cosine_ops)",
        )
        .unwrap();
    for (row, label) in labels.iter().enumerate() {
        let (path, label) = (format!("digits/{row}.png"), label.to_string());
        let vector = format!("{:?}", old.row(row));
        client
            .execute(
                "INSERT INTO digits (id, path, label, embedding) VALUES ($1, $2, $3, $4::text::vector)",
                &[&(row as i32), &path, &label, &vector],
            )
            .unwrap();
    }
    let ids: String = (0..labels.len()).map(|row| format!("{row}\n")).collect();
    place.write_bytes("ids.txt", ids.as_bytes());
    let programs = server.programs.clone().unwrap_or_default();
    let variables = [("DATABASE_URL", address), ("PROGRAMS", programs)];
    assert!(run_page("postgres.md", &place, &variables) >= 10);
}

/// Stands in for a service with two models: a vector says how often a text has each word.
fn service_of_words() -> Stub {
    Stub::start(|_, seen| {
        let width = if seen.body["model"] == "all-minilm" { 384 } else { 768 };
        let model = |text: &str| {
            let mut vector = vec![0.0; width];
            vector[0] = 0.01;
            for word in
                text.to_lowercase().split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty())
            {
                let hash =
                    word.bytes().fold(7_usize, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
                vector[hash % width] += 1.0;
            }
            vector
        };
        Reply::Body(good_of(seen, model, |_| {}))
    })
}

#[test]
fn the_page_on_rag_does_what_it_says() {
    let Some(server) = postgres_server::server() else { return };
    let Some(python) = std::env::var_os("REHANG_PYTHON") else { return };
    let service = service_of_words();
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let programs = server.programs.clone().unwrap_or_default();
    let programs = format!("{}:{programs}", Path::new(&python).parent().unwrap().display());
    let variables = [
        ("DATABASE_URL", server.database()),
        ("PROGRAMS", programs),
        ("EMBED_URL", format!("{}/v1/embeddings", service.url)),
        ("PAGES", pages.display().to_string()),
    ];
    assert!(run_page("rag.md", &Place::new(), &variables) >= 15);
}

#[test]
fn a_page_that_is_not_true_is_found() {
    assert_eq!(differs(&["a … c", "…", "d"], &["a b c", "x", "y", "d"]), None);
    assert!(differs(&["a"], &["a", "b"]).is_some() && differs(&["a", "b"], &["a"]).is_some());
    assert!(differs(&["a … c"], &["a b d"]).is_some() && differs(&["…", "d"], &["x", "e"]).is_some());
    assert!(is_like("…", "") && !is_like("a", "ab") && is_like("a…", "ab"));
}

#[test]
fn the_page_on_qdrant_does_what_it_says() {
    let Some(server) = qdrant_server::server() else { return };
    let place = place();
    let old = rehang_files::read_matrix(&VectorSource::path(demo("old.npy"))).unwrap();
    let labels = rehang_files::read_labels(&VectorSource::path(demo("label.npy"))).unwrap();
    let collection = json!({"vectors": {"embedding": {"size": old.columns(), "distance": "Cosine"}}});
    qdrant_server::send(&server.url, "PUT", "/collections/digits", &collection);
    let payload = |row: usize| json!({"path": format!("digits/{row}.png"), "label": labels[row].to_string(), "seen": 0});
    let points: Vec<Value> = (0..old.rows())
        .map(|row| json!({"id": row, "payload": payload(row), "vector": {"embedding": old.row(row)}}))
        .collect();
    qdrant_server::send(
        &server.url,
        "PUT",
        "/collections/digits/points?wait=true",
        &json!({"points": points}),
    );
    let ids: String = (0..old.rows()).map(|row| format!("{row}\n")).collect();
    place.write_bytes("ids.txt", ids.as_bytes());
    assert!(run_page("qdrant.md", &place, &[("QDRANT_URL", server.url.clone())]) >= 10);
    // The application's own are as they were, with one more vector in each point.
    let first = qdrant_server::send(
        &server.url,
        "POST",
        "/collections/digits/points",
        &json!({"ids": [7], "with_payload": true, "with_vector": true}),
    );
    assert_eq!(first[0]["payload"], payload(7));
    assert_eq!(first[0]["vector"]["large"].as_array().unwrap().len(), 32);
    assert_eq!(first[0]["vector"]["embedding"].as_array().unwrap().len(), old.columns());
}
