//! `docs/service.md` is run as it stands: its examples ask a service in the middle of an upgrade, its tokens
//! are taken, its metrics are those of the service, and its runbook has every alert.
#![allow(clippy::print_stderr, reason = "tests say what they skip")]

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use rehang_core::{Distance, Progress, Provenance, Space};
use rehang_encode::EncoderConfig;
use rehang_fit::Method;
use rehang_serve::{ServeOptions, serve};
use rehang_sqlite::SqliteStore;
use rehang_store::{ItemWrite, Ledger, NewVector};
use rehang_upgrade::{Configuration, Location, PairsFiles, PairsOptions, Serving, Upgrade};
use serde_json::{Value, json};

use stub::{Reply, Stub, good_of};

#[path = "../../rehang-encode/tests/common/stub.rs"]
mod stub;

const ITEMS: usize = 399;
/// Names of both spaces; the page has the first.
const OLD: &str = "word-counts";
const NEW: &str = "sentences";
/// Tokens of the page's own entry, which may write, and of one that may operate.
const WRITES: &str = "0123456789abcdef";
const OPERATES: &str = "fedcba9876543210";

/// Embeds a text by the new model; the old one gives the first two coordinates.
fn model(text: &str) -> Vec<f32> {
    let hash = text.bytes().fold(7_u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
    let angle = hash.wrapping_mul(0x9e37_79b1) as f32 / u32::MAX as f32 * std::f32::consts::TAU;
    vec![angle.cos(), angle.sin(), 0.1 * (3.0 * angle).sin()]
}

fn read(path: &str) -> String {
    fs_err::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(path)).unwrap()
}

/// Finds the last block of a kind on a page.
fn block<'a>(page: &'a str, kind: &str) -> &'a str {
    let blocks = page.split("```").skip(1).step_by(2);
    blocks.filter_map(|block| block.strip_prefix(kind)?.strip_prefix('\n')).last().unwrap()
}

/// Lists what stands behind a beginning of lines.
fn behind<'a>(text: &'a str, beginning: &str) -> Vec<&'a str> {
    text.lines().filter_map(|line| line.trim_start().strip_prefix(beginning)).collect()
}

/// Service of a gallery whose new space serves and is a quarter native.
struct Served {
    address: SocketAddr,
    upgrade: Upgrade,
    stop: Progress,
    thread: JoinHandle<rehang_core::Result<()>>,
}

impl Served {
    fn start(folder: &Path, page: &str) -> Self {
        let gallery = folder.join("gallery.db");
        let space = |name: &str, width| Space::new(name, width, Distance::Cosine, false);
        let store = SqliteStore::create(&gallery).unwrap();
        store.create_space(&space(OLD, 2), Provenance::Old).unwrap();
        let write = |item: usize| {
            let text = format!("cake {item}");
            let old = NewVector::from_model(OLD, model(&text)[..2].to_vec(), Provenance::Old);
            ItemWrite::new(format!("i{item}"), Some(text), vec![old])
        };
        store.put(&(0..ITEMS).map(write).collect::<Vec<_>>()).unwrap();
        drop(store);

        let encoder = Stub::start(|_, seen| Reply::Body(good_of(seen, model, |_| {})));
        let encoder: EncoderConfig =
            serde_json::from_value(json!({ "kind": "http", "url": encoder.url, "model": NEW })).unwrap();
        let open = || {
            let location = Location::file(&gallery);
            let configuration = Configuration::new(location, space(OLD, 2), space(NEW, 3)).unwrap();
            Upgrade::new(configuration.with_encoder(encoder.clone())).unwrap()
        };
        let (upgrade, progress) = (open(), Progress::default());
        let pairs = PairsOptions { items: 100, ..PairsOptions::default() };
        upgrade.pairs(&pairs, &PairsFiles::default(), None, &progress).unwrap();
        upgrade.fit(Method::Ridge, None, &progress).unwrap();
        upgrade.start(&progress).unwrap();
        upgrade.switch(Some(Serving::Mixed), true).unwrap();

        let tokens = folder.join("tokens.toml");
        let entry = block(page, "toml");
        let operator = entry.replace("shop", "ops").replace("write", "operate").replace('…', OPERATES);
        fs_err::write(&tokens, format!("{}\n{operator}", entry.replace('…', WRITES))).unwrap();
        let mut options = ServeOptions::new("127.0.0.1:0".parse().unwrap());
        options.tokens = Some(tokens);
        let (stop, served) = (Progress::default(), open());
        let (listens, listening) = mpsc::channel();
        let ends = stop.clone();
        let thread = std::thread::spawn(move || {
            serve(served, &options, &ends, |address| listens.send(address).unwrap())
        });
        Self { address: listening.recv().unwrap(), upgrade, stop, thread }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn get(&self, path: &str, token: &str) -> String {
        let request = ureq::get(self.url(path)).header("authorization", format!("Bearer {token}"));
        request.call().unwrap().body_mut().read_to_string().unwrap()
    }

    fn json(&self, path: &str, token: &str) -> Value {
        serde_json::from_str(&self.get(path, token)).unwrap()
    }

    fn end(self) {
        self.stop.cancel();
        self.thread.join().unwrap().unwrap();
    }
}

#[test]
fn the_examples_do_what_they_say() {
    let (folder, page) = (tempfile::tempdir().unwrap(), read("service.md"));
    let served = Served::start(folder.path(), &page);
    let shop = served.json("/v1/me", WRITES);
    assert_eq!((&shop["name"], &shop["role"]), (&json!("shop"), &json!("write")));

    let variable = |name: &str, otherwise: &str| std::env::var(name).unwrap_or_else(|_| otherwise.into());
    let python = variable("REHANG_PYTHON", "python3");
    let typescript = variable("REHANG_TYPESCRIPT", "node --experimental-strip-types");
    // Kind, program that runs it, file, text that fails where something is missing, and last words.
    let examples = [
        (
            "sh",
            vec!["bash", "-euo", "pipefail"],
            "example.sh",
            "curl --fail-with-body --version; jq --version",
            "\"state\": \"done\",\n  \"problem\": null\n}",
        ),
        ("python", vec![python.as_str()], "example.py", "import requests", "done None"),
        (
            "ts",
            typescript.split_whitespace().collect(),
            "example.mts",
            "console.log(process.pid as number)",
            "done undefined",
        ),
    ];
    let mut has_run = false;
    for (kind, program, file, probe, outcome) in examples {
        let run = |text: &str| {
            let file = folder.path().join(file);
            fs_err::write(&file, text).unwrap();
            let mut command = Command::new(program[0]);
            command.args(&program[1..]).arg(file);
            command.env("REHANG", served.url("")).env("TOKEN", OPERATES).env("no_proxy", "127.0.0.1");
            command.output()
        };
        if !run(probe).is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: the example in {kind}, since {program:?} cannot run `{probe}`");
            continue;
        }
        let output = run(block(&page, kind)).unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{kind}: {text}{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(text.matches("provenance").count(), 3, "{kind}: three hits: {text}");
        assert!(text.trim_end().ends_with(outcome), "{kind}: {text}");
        has_run = true;
    }
    if has_run {
        let store = served.upgrade.store();
        let item = store.get(&["a7"]).unwrap().remove(0).unwrap();
        assert_eq!((item.source.as_deref(), item.label.as_deref()), (Some("plum cake"), Some("cakes")));
        let vector = |space: &str| store.vectors(space, &[item.key]).unwrap().remove(0).unwrap();
        assert_eq!(vector(OLD).vector, [0.1_f32, 0.2]);
        assert_eq!(vector(NEW).provenance, Provenance::Native);
        let (counts, all) = (store.counts(NEW).unwrap(), ITEMS as u64 + 1);
        assert_eq!((counts.items, counts.native), (all, all / 2));
        let operations = served.json("/v1/operations", OPERATES);
        assert_eq!(operations.as_array().unwrap().len(), 1, "the same key, so the same run: {operations}");
        let (key, asked_by) = (&operations[0]["key"], &operations[0]["asked_by"]);
        assert_eq!((key, asked_by), (&json!("half"), &json!("ops")));
    }
    served.end();
}

#[test]
fn every_metric_stands_on_the_page_and_those_of_alerts_and_dashboard_are_there() {
    let (folder, page) = (tempfile::tempdir().unwrap(), read("service.md"));
    let table = page.split_once("| of | metrics |\n").unwrap().1.split("\n\n").next().unwrap();
    let names = table.split('`').skip(1).step_by(2);
    let of_page: BTreeSet<String> = names.map(|name| format!("rehang_{name}")).collect();
    let served = Served::start(folder.path(), &page);
    // Metrics with labels are there from their first value on.
    let search = ureq::post(served.url("/v1/search")).header("authorization", format!("Bearer {WRITES}"));
    search.header("content-type", "application/json").send(r#"{"texts": ["plum cake"]}"#).unwrap();
    let of_service = || -> BTreeSet<String> {
        let text = served.get("/metrics", WRITES);
        let kinds = behind(&text, "# TYPE ").into_iter().filter_map(|metric| metric.split_once(' '));
        kinds.map(|(name, _)| name.to_owned()).collect()
    };
    let mut all = of_service();
    // The gallery is read beside the requests.
    for _ in 0..500 {
        if all == of_page {
            break;
        }
        rehang_clock::wait(Duration::from_millis(20));
        all = of_service();
    }
    assert_eq!(of_page, all);
    for file in ["service/alerts.yml", "service/grafana.json"] {
        let text = read(file);
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for name in words.filter(|word| word.starts_with("rehang_")) {
            assert!(of_page.contains(name.trim_end_matches("_bucket")), "{file}: {name}");
        }
    }
    expect_names_of_prometheus(&served.get("/metrics", WRITES));
    served.end();
}

/// Runs Prometheus' own tool over the text of metrics, which looks at names, units and help. Where it is not
/// installed, a line says so.
fn expect_names_of_prometheus(text: &str) {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut tool) = command.spawn() else {
        eprintln!("skipped: nobody looks at the names of metrics: install promtool, of Prometheus");
        return;
    };
    tool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = tool.wait_with_output().unwrap();
    let faults = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said).into_owned());
    assert!(output.status.success() && faults.concat().is_empty(), "{}", faults.concat());
}

#[test]
fn every_alert_leads_to_its_heading_and_no_other_is_there() {
    let (page, alerts) = (read("service.md"), read("service/alerts.yml"));
    let names = behind(&alerts, "- alert: ");
    let mut headings = behind(&page, "### ");
    headings.retain(|heading| heading.starts_with("Rehang"));
    assert_eq!(names, headings);
    let anchors: Vec<String> = names.iter().map(|name| name.to_lowercase()).collect();
    assert_eq!(behind(&alerts, "runbook_url: docs/service.md#"), anchors);
}
