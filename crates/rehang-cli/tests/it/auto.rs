//! Upgrade by one command, on the demo's vectors: from a gallery and a new model to everything native.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rehang_core::{Matrix, Progress, Provenance};
use rehang_encode::Function;
use rehang_files::VectorSource;
use rehang_sqlite::{SearchOptions, SqliteStore};
use rehang_store::{Files, Index, ItemWrite, Ledger, Scan, Select};
use rehang_upgrade::{
    AutoOptions, Halt, PairsFiles, PairsOptions, RunOptions, StepResult, Until, Upgrade, Way,
};
use serde_json::Value;

use crate::common::{Place, demo, waves, words};
use crate::stub::{Reply, Seen, Stub, good_of};

/// Gallery to make.
pub struct Made {
    pub items: usize,
    /// Label of an item, by its number and its class.
    pub label: fn(usize, i64) -> Option<i64>,
    pub source: fn(usize) -> Option<String>,
    /// Vectors that the old model has made of all items.
    pub old: fn() -> Matrix,
    pub encoder: &'static str,
}

impl Made {
    pub fn with_items(items: usize) -> Self {
        Self {
            items,
            label: |_, class| Some(class),
            source: |row| Some(format!("row:{row}")),
            old: || read("old.npy"),
            encoder: "kind = \"table\"\nvectors = \"new.npy\"\n",
        }
    }
}

pub fn read(name: &str) -> Matrix {
    rehang_files::read_matrix(&VectorSource::path(demo(name))).unwrap()
}

/// Gives the vectors of an old model that sees what the new one sees, with noise.
pub fn noisy() -> Matrix {
    let mut rows = read("new.npy");
    let squares: f32 = rows.as_slice().iter().map(|value| value * value).sum();
    let spread = (squares / rows.as_slice().len() as f32).sqrt();
    for (place, value) in rows.as_mut_slice().iter_mut().enumerate() {
        let mixed = (place as u32 + 1).wrapping_mul(2_654_435_761);
        let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(2_246_822_519);
        *value += 4.0 * spread * ((mixed ^ (mixed >> 13)) as f32 / u32::MAX as f32 - 0.5);
    }
    rows
}

/// Makes a folder with a gallery of the demo's old vectors, and a configuration that names no adapter.
pub fn place(made: &Made) -> Place {
    let place = Place::new();
    let rows: Vec<usize> = (0..made.items).collect();
    place.write_matrix("old.npy", &(made.old)().select(&rows));
    place.write_matrix("new.npy", &read("new.npy").select(&rows));
    let classes = rehang_files::read_labels(&VectorSource::path(demo("label.npy"))).unwrap();
    let mut items = String::new();
    for &row in &rows {
        let item = serde_json::json!({
            "id": format!("i{row}"),
            "source": (made.source)(row),
            "label": (made.label)(row, classes[row]).map(|label| format!("class {label}")),
        });
        writeln!(items, "{item}").unwrap();
    }
    place.write_bytes("items.jsonl", items.as_bytes());
    let import = ["gallery", "import", "--gallery", "G.db", "--space", "first", "--vectors", "old.npy"];
    place.finish(&[&import[..], &["--items", "items.jsonl", "--distance", "cosine"]].concat());
    let width = read("new.npy").columns().to_string();
    place.finish(&["init", "--gallery", "G.db", "--new-name", "second", "--new-dimension", &width]);
    let config = fs_err::read_to_string(place.path("rehang.toml")).unwrap();
    place.write_bytes("rehang.toml", format!("{config}\n[encoder]\n{}", made.encoder).as_bytes());
    place
}

/// Runs `upgrade auto`; gives what it says as JSON, and its exit code.
fn auto(place: &Place, more: &[&str]) -> (Value, i32) {
    let all = [&["upgrade", "auto", "--method", "ridge", "--json"], more].concat();
    let output = place.run(&all);
    let said = String::from_utf8_lossy(&output.stderr);
    let value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    (value, output.status.code().unwrap())
}

fn steps(value: &Value) -> Vec<&str> {
    value["steps"].as_array().unwrap().iter().map(|step| step["step"].as_str().unwrap()).collect()
}

fn result<'a>(value: &'a Value, step: &str) -> &'a Value {
    let steps = value["steps"].as_array().unwrap();
    &steps.iter().find(|taken| taken["step"] == step).unwrap()["result"]
}

/// Counts the items that are native; each has to have the new model's very vector.
fn natives(place: &Place) -> usize {
    let store = SqliteStore::open(place.path("G.db")).unwrap();
    let new = read("new.npy");
    let select = Select::Provenance(Provenance::Native);
    let records = store.scan(&Scan::new("second", select, 10_000).with_vectors_of("second")).unwrap();
    for record in &records {
        let row: usize = record.item.id[1..].parse().unwrap();
        assert_eq!(record.vector.as_ref().unwrap().vector, new.row(row), "{}", record.item.id);
    }
    records.len()
}

#[test]
fn one_command_goes_from_a_gallery_to_everything_native() {
    let place = place(&Made::with_items(1000));
    let listed = place.json(&["upgrade", "auto", "--dry-run", "--method", "ridge"]);
    let commands: Vec<&str> =
        listed["commands"].as_array().unwrap().iter().map(|command| command.as_str().unwrap()).collect();
    assert_eq!(commands[0], "rehang upgrade pairs --items 2000 --worth 1 --config rehang.toml");
    assert_eq!(commands.len(), 7, "{commands:?}");
    assert!(!place.names().contains(&"rehang.upgrade".to_owned()), "nothing was done");

    let (stopped, code) = auto(&place, &["--items", "400", "--worth", "0"]);
    assert_eq!((steps(&stopped), code), (vec!["doctor", "pairs", "fit", "report", "plan"], 0), "{stopped}");
    assert_eq!(stopped["halt"]["why"], "before-start");
    let pairs = result(&stopped, "pairs");
    assert_eq!((&pairs["pairs"], &pairs["enough"]), (&400.into(), &"asked".into()));
    let sizes: Vec<_> = pairs["steps"].as_array().unwrap().iter().map(|step| step["items"].clone()).collect();
    assert_eq!(sizes, [250, 400]);
    assert_eq!(natives(&place), 400);
    let plan = result(&stopped, "plan");
    assert_eq!(plan["to_embed"], 600, "what was embedded for pairs is not paid for again");
    let (start, do_nothing) = (&plan["forecast"]["start"], &plan["forecast"]["do_nothing"]);
    assert!(start.as_f64() > do_nothing.as_f64(), "the demo's new model is better: {plan}");
    // By hand, what is left is the same.
    let status = place.json(&["upgrade", "status"]);
    assert_eq!(
        (&status["phase"], &status["next"]),
        (&"sampling".into(), &serde_json::json!({"step": "start"}))
    );

    // 0.6 + 0.1 in floating point is a hair more than the share that 700 of 1,000 items make.
    let (gone, code) = auto(&place, &["--yes", "--until", "0.7000000000000001"]);
    assert_eq!((steps(&gone), code), (vec!["plan", "start", "switch", "run"], 0), "{gone}");
    assert_eq!((&gone["halt"]["why"], natives(&place)), (&"reached".into(), 700));
    let (gone, code) = auto(&place, &["--yes"]);
    assert_eq!((steps(&gone), code, natives(&place)), (vec!["run"], 0, 1000), "{gone}");
    let (gone, code) = auto(&place, &["--yes"]);
    assert_eq!((steps(&gone).len(), &gone["halt"]["why"], code), (0, &"home".into(), 0));

    // The command never finishes an upgrade, and never goes against a person.
    place.finish(&["upgrade", "rollback"]);
    let (gone, code) = auto(&place, &["--yes"]);
    assert_eq!((steps(&gone).len(), &gone["halt"]["why"], code), (0, &"rolled-back".into(), 1));
}

#[test]
fn pairs_are_written_as_files_that_the_file_verbs_read() {
    let place = place(&Made::with_items(600));
    let drawn = place.json(&["upgrade", "pairs", "--items", "300", "--worth", "0", "--out", "pairs"]);
    assert_eq!((&drawn["pairs"], &drawn["folder"]), (&300.into(), &"pairs".into()));
    let path = |name: &str| place.path("pairs").join(name);
    let ids = rehang_files::read_lines(path("ids.txt")).unwrap();
    let (old, new) = (read("old.npy"), read("new.npy"));
    let read_rows = |name: &str| rehang_files::read_matrix(&VectorSource::path(path(name))).unwrap();
    let (of_old, of_new) = (read_rows("old.npy"), read_rows("new.npy"));
    for (place, id) in ids.iter().enumerate() {
        let row: usize = id[1..].parse().unwrap();
        assert_eq!((of_old.row(place), of_new.row(place)), (old.row(row), new.row(row)));
    }
    let held_out = rehang_files::read_labels(&VectorSource::path(path("held-out.npy"))).unwrap();
    let count = held_out.iter().filter(|&&held_out| held_out == 1).count();
    assert!((30..90).contains(&count) && drawn["held_out"] == count, "{count} of 300");
    // A larger sample keeps what was held out apart.
    place.finish(&["upgrade", "pairs", "--items", "500", "--worth", "0", "--out", "more"]);
    let more = rehang_files::read_lines(place.path("more").join("ids.txt")).unwrap();
    let now =
        rehang_files::read_labels(&VectorSource::path(place.path("more").join("held-out.npy"))).unwrap();
    for (id, before) in ids.iter().zip(held_out) {
        let at = more.iter().position(|other| other == id).unwrap();
        assert_eq!(now[at], before, "{id}");
    }
    let [old, new, rows] =
        ["old.npy", "new.npy", "held-out.npy=0"].map(|name| path(name).display().to_string());
    place.finish(&words(
        "fit --old {} --new {} --rows {} --method ridge -o a.safetensors",
        &[&old, &new, &rows],
    ));
}

#[test]
fn what_a_question_whose_vectors_these_are_has_cost_counts_for_the_budget_of_the_upgrade() {
    let place = place(&Made::with_items(300));
    place.finish(&["upgrade", "pairs", "--items", "100", "--worth", "0"]);
    let spent = || place.json(&["upgrade", "status"])["spent"]["items"].as_u64().unwrap();
    let before = spent();
    let asked = place.run(&["identify", "--config", "rehang.toml", "--items", "50", "--json"]);
    let found: Value = serde_json::from_slice(&asked.stdout).unwrap();
    let now = found["spent"]["items"].as_u64().unwrap();
    assert!(now >= 50, "{found}");
    assert_eq!(spent(), before + now);
}

#[test]
fn a_bridge_serves_new_queries_before_anything_is_written() {
    let place = place(&Made { label: |_, _| None, old: noisy, ..Made::with_items(1000) });
    place.finish(&["upgrade", "pairs", "--items", "20", "--worth", "0"]);
    assert!(place.json(&["upgrade", "bridge"])["bridge"].is_null(), "twenty pairs prove nothing");
    place.finish(&["upgrade", "pairs", "--items", "800", "--worth", "0"]);
    let bridged = place.json(&["upgrade", "bridge"]);
    let (choice, share) = (&bridged["choice"], bridged["bridge"]["share"].as_f64().unwrap());
    let kept = &choice["rows"][choice["kept"].as_u64().unwrap() as usize];
    assert_eq!((choice["criterion"].as_str(), kept["share"].as_f64()), (Some("agreement@10"), Some(share)));
    assert!(kept["low"].as_f64().unwrap() > 0.0, "{kept}");
    assert_eq!(place.json(&["upgrade", "status"])["bridge"]["share"].as_f64(), Some(share));
    let rows: Vec<usize> = (500..520).collect();
    for (name, asked) in [("old", noisy()), ("new", read("new.npy"))] {
        place.write_matrix(&format!("asked-{name}.npy"), &asked.select(&rows));
    }
    let search = |more: &[&str]| place.json(&[&["search", "--vectors"], more].concat());
    let both = ["asked-new.npy", "--old-vectors", "asked-old.npy"];
    let over = search(&both);
    let plain = search(&["asked-old.npy"]);
    assert_eq!((&over["bridged"], &plain["bridged"]), (&true.into(), &false.into()));
    assert!(over["space"] == "first" && over["results"] != plain["results"]);
    let off = place.json(&["upgrade", "bridge", "--off"]);
    assert!(off["bridge"].is_null());
    assert_eq!(search(&both)["results"], plain["results"], "undone in one step");
    // Equal pairs give an equal bridge.
    assert_eq!(place.json(&["upgrade", "bridge"])["bridge"], bridged["bridge"]);
    assert_eq!(search(&both)["results"], over["results"]);
    let said = place.run(&["upgrade", "bridge"]);
    let text = String::from_utf8(said.stdout).unwrap();
    assert!(
        text.contains("do nothing") && text.contains("Queries search the old gallery over the bridge"),
        "{text}"
    );
    place.finish(&["upgrade", "rollback"]);
    assert_eq!(search(&both)["results"], plain["results"]);
}

#[test]
fn the_order_is_chosen_for_a_metric_and_followed_from_the_start_on() {
    let place = place(&Made::with_items(1000));
    let asked = ["--for", "top1", "--items", "500", "--worth", "0"];
    let listed = place.json(&[&["upgrade", "auto", "--dry-run", "--method", "ridge"], &asked[..]].concat());
    assert_eq!(listed["commands"][2], "rehang upgrade order --for top1 --config rehang.toml");
    let (value, code) = auto(&place, &asked);
    assert_eq!((steps(&value), code), (vec!["doctor", "pairs", "fit", "order", "report", "plan"], 0));
    let choice = result(&value, "order");
    assert_eq!((choice["criterion"].as_str(), choice["method"].as_str()), (Some("Top-1"), Some("ridge")));
    // The one that is least behind the best, on known and on left-out classes.
    let rows = choice["rows"].as_array().unwrap();
    let area = |row: usize, gallery: usize| rows[row]["areas"][gallery]["area"].as_f64().unwrap();
    let behind = |row: usize, gallery: usize| {
        (0..rows.len()).map(|other| area(other, gallery) - area(row, gallery)).fold(0.0, f64::max)
    };
    let regret = |row: usize| behind(row, 0).max(behind(row, 1));
    let best = (0..rows.len()).fold(0, |best, row| if regret(row) < regret(best) { row } else { best });
    assert_eq!((rows[0]["policy"].as_str(), choice["kept"].as_u64()), (Some("coverage"), Some(best as u64)));
    // The order was chosen for this metric; for another one it is chosen again.
    assert!(!steps(&auto(&place, &asked).0).contains(&"order"));
    let again = ["--for", "map", "--items", "500", "--worth", "0"];
    assert_eq!(result(&auto(&place, &again).0, "order")["criterion"], "mAP");
    // The start follows the order that the gallery's document names; a configuration that names an order
    // itself gets no choice.
    let store = SqliteStore::open(place.path("G.db")).unwrap();
    let (version, _) = store.document("order of second").unwrap().unwrap();
    let random = r#"{"policy": "random", "metric": "top1"}"#;
    store.set_document("order of second", Some(version), random).unwrap();
    drop(store);
    assert_eq!(place.json(&["upgrade", "plan"])["order"]["policy"], "random");
    place.finish(&["upgrade", "start"]);
    assert_eq!(place.json(&["upgrade", "status"])["order"]["policy"], "random");
    let config = fs_err::read_to_string(place.path("rehang.toml")).unwrap();
    place.write_bytes("rehang.toml", config.replace("\"auto\"", "\"sigma\"").as_bytes());
    let refused = place.run(&["upgrade", "order"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("[order] policy cannot be \"sigma\""));
}

#[test]
fn what_people_asked_is_what_the_choice_and_the_forecast_go_by() {
    const BATCH: usize = 8;
    const KEY_ENDS_AT: usize = 3;
    let vectors = [("first", read("old.npy")), ("second", read("new.npy"))];
    let is_refused = |seen: &Seen| {
        let of_first = seen.body["model"] == "first";
        seen.texts().iter().any(|text| text == "row:forbidden" || (of_first && text == "row:560"))
    };
    let of_first = AtomicUsize::new(0);
    let stub = Stub::start(move |_, seen| {
        // The old model's key ends in the middle, once.
        if seen.body["model"] == "first" && of_first.fetch_add(1, Ordering::SeqCst) == KEY_ENDS_AT {
            return Reply::Status(401, vec![], String::new());
        }
        if is_refused(seen) {
            let body = r#"{"error": {"message": "this text is against our rules"}}"#;
            return Reply::Status(400, vec![], body.into());
        }
        let (_, rows) = vectors.iter().find(|(model, _)| seen.body["model"] == *model).unwrap();
        // Another text is the word that tells an outage from a refusal.
        let row = |text: &str| text.strip_prefix("row:").map_or(0, |row| row.parse().unwrap());
        Reply::Body(good_of(seen, |text| rows.row(row(text)).to_vec(), |_| {}))
    });
    let place = place(&Made { encoder: "", ..Made::with_items(600) });
    let config = fs_err::read_to_string(place.path("rehang.toml")).unwrap();
    let service = |model: &str| {
        format!(
            "kind = \"http\"\nurl = \"{}\"\nmodel = \"{model}\"\nrevision = \"1\"\nbatch = {BATCH}\nconcurrency = 1\n",
            stub.url
        )
    };
    let config = format!("{config}\n{}[old.encoder]\n{}", service("second"), service("first"));
    place.write_bytes("rehang.toml", config.as_bytes());
    // One is asked twice, and counts twice.
    let log: String = (500..561).chain([500]).map(|row| format!("{{\"text\": \"row:{row}\"}}\n")).collect();
    // As logs are: a query without a word, and one that the service refuses. Another one the old model alone
    // refuses.
    let log = format!("{{\"text\": \" \"}}\n{{\"text\": \"row:forbidden\"}}\n{log}");
    place.write_bytes("queries.jsonl", log.as_bytes());
    let asked = ["--items", "300", "--worth", "0", "--queries", "queries.jsonl"];
    let texts_of = |model: &str| -> usize {
        let of_model = |seen: &Seen| seen.body["model"] == model && !is_refused(seen);
        let texts = stub.seen().into_iter().filter(of_model).flat_map(|seen| seen.texts());
        texts.filter(|text| text.starts_with("row:")).count()
    };
    let (ended, _) = auto(&place, &[&asked[..], &["--budget", "100"]].concat());
    assert_eq!(ended["halt"]["ending"], "spent-budget");
    // One text rides along with every 32.
    // And, with so few texts a request, one at the end of each step.
    assert!((100..=100 + 100 / 32 + 2).contains(&texts_of("second")), "{}", texts_of("second"));
    assert_eq!(texts_of("first"), 0, "what ended the sample holds for queries too");
    let ended = place.run(&[&["upgrade", "auto", "--method", "ridge"], &asked[..]].concat());
    assert_eq!(ended.status.code(), Some(2));
    // The very first request is half of a batch, and the one that the key ends at is counted too.
    assert_eq!(texts_of("first"), KEY_ENDS_AT * BATCH);
    let expect_paid = |first: usize, second: usize| {
        for (model, texts) in [("first", first), ("second", second)] {
            let paid = texts_of(model);
            assert!((texts..=texts + texts / 32 + 4).contains(&paid), "{model}: {paid} for {texts}");
        }
        (texts_of("first"), texts_of("second"))
    };
    expect_paid(KEY_ENDS_AT * BATCH, 300 + 61);
    let (stopped, code) = auto(&place, &asked);
    assert_eq!((steps(&stopped), code), (vec!["pairs", "fit", "report", "plan"], 0), "{stopped}");
    assert_eq!(result(&stopped, "pairs")["queries"], 61);
    let left_out = result(&stopped, "pairs")["queries_left_out"].to_string();
    assert!(
        ["a text with a word", "row:forbidden", "row:560", "against our rules"]
            .iter()
            .all(|word| left_out.contains(word)),
        "{left_out}"
    );
    assert_eq!(
        result(&stopped, "fit")["held_out"]["queries"],
        61,
        "items have labels, and would ask themselves"
    );
    assert_eq!(result(&stopped, "plan")["forecast"]["metric"], "Agreement@10");
    // Nothing is paid twice: the old model was asked again for what its key ended at.
    let paid = expect_paid(60 + BATCH, 300 + 61);
    let seen = stub.seen().into_iter().filter(|seen| seen.body["model"] == "second");
    let sent: usize = seen.map(|seen| seen.texts().len()).sum();
    let spent = &place.json(&["upgrade", "status"])["spent"]["items"];
    assert_eq!(spent, sent, "all of it is the upgrade's, also what was refused");
    auto(&place, &asked);
    assert_eq!((texts_of("first"), texts_of("second")), paid, "nothing is embedded twice");
    // A longer log costs what is new in it. `auto` has the map chosen by it, also where `pairs` has embedded
    // it.
    place.write_bytes("queries.jsonl", (log.clone() + "{\"text\": \"row:561\"}\n").as_bytes());
    let longer = place.json(&[&["upgrade", "pairs"], &asked[..]].concat());
    assert_eq!(longer["queries"], 62);
    assert_eq!((texts_of("first"), texts_of("second")), (paid.0 + 1, paid.1 + 1));
    let (again, _) = auto(&place, &asked);
    assert_eq!(steps(&again), ["fit", "report", "plan"]);
    assert_eq!(result(&again, "fit")["held_out"]["queries"], 62);
    place.write_bytes("queries.jsonl", (log + "{\"text\": \"row:562\"}\n").as_bytes());
    let (again, _) = auto(&place, &asked);
    assert_eq!(steps(&again), ["pairs", "fit", "report", "plan"]);
    let listed = place.json(&["upgrade", "auto", "--dry-run", "--method", "procrustes"]);
    assert_eq!(listed["next"], "fit");
    // Another method than the adapter's is fitted.
    let method = ["upgrade", "auto", "--method", "procrustes"];
    assert_eq!(steps(&place.json(&method)), ["fit", "report", "plan"]);
    assert_eq!(steps(&place.json(&method)), ["plan"]);
}

#[test]
fn a_budget_that_ends_among_queries_is_gone_on_from() {
    const ITEMS: usize = 60;
    const QUERIES: usize = 50;
    // A service without a revision embeds every fourth item again before queries: it might be another model
    // by now.
    const COMPARED: usize = 15;
    let vectors = [("first", read("old.npy")), ("second", read("new.npy"))];
    let stub = Stub::start(move |_, seen| {
        let (_, rows) = vectors.iter().find(|(model, _)| seen.body["model"] == *model).unwrap();
        let row = |text: &str| text.strip_prefix("row:").unwrap().parse().unwrap();
        Reply::Body(good_of(seen, |text| rows.row(row(text)).to_vec(), |_| {}))
    });
    let place = place(&Made { encoder: "", ..Made::with_items(ITEMS) });
    let config = fs_err::read_to_string(place.path("rehang.toml")).unwrap();
    let configure = |budget: usize| {
        let service = |model: &str| {
            format!("kind = \"http\"\nurl = \"{}\"\nmodel = \"{model}\"\nbatch = 8\n", stub.url)
        };
        let (new, old) = (service("second"), service("first"));
        let config = format!("{config}\n{new}budget_items = {budget}\n[old.encoder]\n{old}");
        place.write_bytes("rehang.toml", config.as_bytes());
    };
    let log: String = (500..500 + QUERIES).map(|row| format!("{{\"text\": \"row:{row}\"}}\n")).collect();
    place.write_bytes("queries.jsonl", log.as_bytes());
    let texts = || stub.seen().iter().map(|seen| seen.texts().len()).sum::<usize>();
    // The budget ends in the middle of a batch of queries.
    configure(ITEMS + 20);
    for _ in 0..2 {
        let (ended, code) = auto(&place, &["--queries", "queries.jsonl"]);
        assert_eq!((steps(&ended).last(), code), (Some(&"pairs"), 1), "{ended}");
        assert_eq!(ended["halt"]["ending"], "encoder-budget-spent");
        assert_eq!(texts(), ITEMS + 20);
    }
    assert_eq!(result(&auto(&place, &["--queries", "queries.jsonl"]).0, "pairs")["spent"]["items"], 0);
    configure(1000);
    let drawn = place.json(&["upgrade", "pairs", "--queries", "queries.jsonl"]);
    assert_eq!((&drawn["queries"], &drawn["enough"]), (&QUERIES.into(), &"whole-gallery".into()));
    // One text rides along with every 32.
    let spent = drawn["spent"]["items"].as_u64().unwrap() as usize;
    let (all, now) = (ITEMS + 2 * QUERIES + COMPARED, QUERIES - 20 + COMPARED);
    // And, with 8 texts a request, one at the end of each step.
    assert!((all..=all + all / 32 + 5).contains(&texts()), "{} for {all}", texts());
    assert!((now..=now + now / 32 + 5).contains(&spent), "{spent} for {now}");
    // Nothing waits, so nothing is embedded to compare models either.
    let before = texts();
    place.finish(&["upgrade", "pairs", "--queries", "queries.jsonl"]);
    assert_eq!(texts(), before);
}

#[test]
fn a_switch_makes_the_index_that_an_earlier_process_left_unmade() {
    // So many that the graph takes part.
    let rows = SearchOptions::default().exact_max + 1;
    let place = Place::new();
    for name in ["old.npy", "new.npy"] {
        place.write_matrix(name, &waves(rows, 4, 1));
    }
    let items: String =
        (0..rows).map(|row| format!("{{\"id\": \"i{row}\", \"source\": \"row:{row}\"}}\n")).collect();
    place.write_bytes("items.jsonl", items.as_bytes());
    let import = "gallery import --gallery G.db --space first --vectors old.npy --items items.jsonl";
    place.finish(&words(import, &[]));
    place.finish(&words("init --gallery G.db --new-name second --new-dimension 4", &[]));
    let config = fs_err::read_to_string(place.path("rehang.toml")).unwrap();
    let encoder = Made::with_items(0).encoder;
    place.write_bytes("rehang.toml", format!("{config}\n[encoder]\n{encoder}").as_bytes());
    let pairs = ["--items", "250", "--worth", "0"];
    let (stopped, _) = auto(&place, &pairs);
    assert_eq!(stopped["halt"]["why"], "before-start", "{stopped}");
    place.finish(&["upgrade", "start"]);
    let open = || SqliteStore::open(place.path("G.db")).unwrap();
    fs_err::remove_file(open().index_path("second").unwrap()).unwrap();
    let is_ready = || open().is_ready("second").unwrap();
    assert!(!is_ready());
    // As much is native already as is asked for, so no run follows.
    let (reached, _) =
        auto(&place, &[&pairs[..], &["--yes", "--switch-if", ">= 0", "--until", "0.01"]].concat());
    assert_eq!((steps(&reached), &reached["halt"]["why"]), (vec!["switch"], &"reached".into()), "{reached}");
    assert!(is_ready());
}

#[test]
fn what_has_no_old_vector_is_native_and_no_pair() {
    let place = place(&Made::with_items(300));
    let lacking = |row: usize| ItemWrite::new(format!("i{row}"), Some(format!("row:{row}")), Vec::new());
    let store = SqliteStore::open(place.path("G.db")).unwrap();
    store.put(&(300..600).map(lacking).collect::<Vec<_>>()).unwrap();
    place.write_matrix("new.npy", &read("new.npy").select(&(0..600).collect::<Vec<_>>()));
    let asked = ["upgrade", "pairs", "--items", "600", "--worth", "0", "--out", "pairs"];
    assert_eq!(place.json(&asked)["pairs"], 300);
    assert_eq!(natives(&place), 600);
    let ids = rehang_files::read_lines(place.path("pairs/ids.txt")).unwrap();
    assert!(
        ids.iter().all(|id| id[1..].parse::<usize>().unwrap() < 300),
        "an adapter serves old vectors alone"
    );
}

#[test]
fn a_budget_that_ends_in_the_sample_is_gone_on_from() {
    let place = place(&Made::with_items(600));
    let budget = ["--budget", "130", "--items", "400", "--worth", "0"];
    for natives_now in [130, 260, 390] {
        let (ended, code) = auto(&place, &budget);
        assert_eq!((&ended["halt"]["ending"], code), (&"spent-budget".into(), 0), "{ended}");
        assert_eq!(natives(&place), natives_now);
    }
    // Over all steps: ten for the sample, the rest for the backfill.
    let (ended, code) = auto(&place, &[&budget[..], &["--yes"]].concat());
    assert_eq!((&ended["halt"]["ending"], code), (&"spent-budget".into(), 0), "{ended}");
    assert_eq!((result(&ended, "run")["done"]["native"].as_u64(), natives(&place)), (Some(120), 520));
}

#[test]
fn few_pairs_one_class_and_a_whole_gallery_are_said() {
    // No forecast is made of so few items. All of them are native, so none is needed.
    let few = place(&Made::with_items(25));
    let (ended, code) = auto(&few, &["--yes"]);
    assert_eq!((&ended["halt"]["why"], code), (&"home".into(), 0), "{ended}");
    assert_eq!((&result(&ended, "pairs")["enough"], natives(&few)), (&"whole-gallery".into(), 25));
    assert_eq!(few.json(&["upgrade", "status"])["serving"], "second");
    // Where the gallery has more, more are drawn, and the map is fitted on them.
    let more = place(&Made::with_items(400));
    let (ended, _) = auto(&more, &["--items", "60"]);
    assert_eq!(&ended["halt"]["why"], "too-few-pairs");
    let (ended, _) = auto(&more, &["--items", "400", "--worth", "0"]);
    assert_eq!(steps(&ended), ["pairs", "fit", "report", "plan"], "{ended}");
    // Pairs that were drawn may be given up, with the map: another model may come under the name.
    more.finish(&["gallery", "drop-space", "--gallery", "G.db", "--space", "second"]);
    let (begun, _) = auto(&more, &["--items", "300", "--worth", "0"]);
    assert_eq!(steps(&begun), ["doctor", "pairs", "fit", "report", "plan"], "{begun}");
    // Pairs that were not worth drawing are not drawn by a second call.
    let enough = place(&Made::with_items(400));
    for _ in 0..2 {
        let drawn = enough.json(&["upgrade", "pairs", "--worth", "50"]);
        assert_eq!((&drawn["enough"], natives(&enough)), (&"learned".into(), 250), "{drawn}");
    }
    // All of one class: there is no truth by label, so agreement counts.
    let one = place(&Made { label: |_, _| Some(7), ..Made::with_items(400) });
    let (ended, _) = auto(&one, &[]);
    assert_eq!(result(&ended, "fit")["held_out"]["criterion"], "agreement@10", "{ended}");
    // Everything is native before the new space is filled.
    let whole = place(&Made::with_items(300));
    let (ended, code) = auto(&whole, &["--yes", "--worth", "0"]);
    assert_eq!((&ended["halt"]["why"], code, natives(&whole)), (&"home".into(), 0, 300), "{ended}");
    assert_eq!(result(&ended, "start")["adapted"], 0);
}

#[test]
fn sources_that_fail_or_are_missing_are_replaced_in_the_sample() {
    let made = Made {
        // Every tenth is no row of the table, every eleventh has nothing to embed.
        source: |row| match row {
            row if row % 10 == 3 => Some(format!("row:{}", 100_000 + row)),
            row if row % 11 == 5 => None,
            row => Some(format!("row:{row}")),
        },
        ..Made::with_items(600)
    };
    let place = place(&made);
    let (ended, code) = auto(&place, &["--items", "250", "--worth", "0"]);
    let pairs = result(&ended, "pairs");
    assert_eq!((&pairs["pairs"], code), (&250.into(), 1), "{ended}");
    assert!(pairs["failed"].as_u64() > Some(0), "{ended}");
    let (gone, code) = auto(&place, &["--yes"]);
    assert_eq!((code, &gone["halt"]["why"]), (1, &"home".into()), "{gone}");
    let (again, code) = auto(&place, &["--yes"]);
    assert_eq!((code, steps(&again).len()), (1, 0), "items that failed are said again: {again}");
    let embeddable = (0..600).filter(|row| row % 10 != 3 && row % 11 != 5).count();
    assert_eq!(natives(&place), embeddable);
}

#[test]
fn a_gallery_that_changes_between_the_steps_is_right_in_the_end() {
    let place = place(&Made::with_items(600));
    auto(&place, &["--items", "250", "--worth", "0"]);
    let old: Vec<String> = read("old.npy").row(599).iter().map(ToString::to_string).collect();
    let vector = format!("first=[{}]", old.join(","));
    // A pair, and one that no sample has seen, get the content of another item; a third goes.
    let put = |id: &str| {
        place.finish(&words(
            "gallery put --gallery G.db --id {} --source row:599 --vector {}",
            &[id, &vector],
        ));
    };
    let store = SqliteStore::open(place.path("G.db")).unwrap();
    let scan = Scan::new("second", Select::Provenance(Provenance::Native), 1000);
    let pair = store.scan(&scan).unwrap()[3].item.id.clone();
    put(&pair);
    place.finish(&["gallery", "delete", "--gallery", "G.db", "i17"]);
    let (gone, code) = auto(&place, &["--yes", "--items", "250", "--worth", "0"]);
    assert_eq!((code, &gone["halt"]["why"]), (0, &"home".into()), "{gone}");
    let records = store.scan(&Scan::new("second", Select::All, 1000).with_vectors_of("second")).unwrap();
    assert_eq!(records.len(), 599);
    for record in records {
        let vector = record.vector.unwrap();
        let row = if record.item.id == pair { 599 } else { record.item.id[1..].parse().unwrap() };
        assert_eq!(
            (vector.provenance, vector.vector),
            (Provenance::Native, read("new.npy").row(row).to_vec())
        );
    }
}

/// An application that writes all the while puts no end off: each run begins at a share and ends at it.
#[test]
fn an_end_is_reached_beside_an_application_that_writes_on() {
    let place = Arc::new(place(&Made::with_items(600)));
    let (said, code) =
        auto(&place, &["--yes", "--mapped", "--items", "250", "--worth", "0", "--until", "55%"]);
    assert_eq!(code, 0, "{}", said["halt"]);
    let upgrade = Upgrade::open(&place.path("rehang.toml")).unwrap();
    let space = rehang_store::find_space(upgrade.store(), "second").unwrap().unwrap().space;
    let (calls, at) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&place));
    let counted = Arc::clone(&calls);
    let old: Vec<String> = read("old.npy").row(5).iter().map(ToString::to_string).collect();
    let vector = format!("first=[{}]", old.join(","));
    let encoder = Function::new(&space, 8, false, None, move |sources| {
        let call = counted.fetch_add(1, Ordering::SeqCst);
        if call > 100 {
            return Err(rehang_core::Error::conflict("the upgrade", "it does not come to its end"));
        }
        for more in 0..4 {
            let id = format!("new {call} {more}");
            at.finish(&words(
                "gallery put --gallery G.db --id {} --source row:5 --vector {}",
                &[&id, &vector],
            ));
        }
        let rows: Vec<usize> = sources.iter().map(|source| source[4..].parse().unwrap()).collect();
        Ok(read("new.npy").select(&rows))
    });
    let until = Some(Until::Fraction(0.6));
    let run = RunOptions { until, no_refit: true, ..RunOptions::default() };
    let pairs = PairsOptions { items: 250, worth: 0.0, run };
    let asked = AutoOptions { pairs, go: true, way: Some(Way::Mapped), ..AutoOptions::default() };
    let mut runs = 0;
    let halt = upgrade
        .auto(&asked, &PairsFiles::default(), Some(&encoder), &Progress::default(), |step| {
            runs += usize::from(matches!(step, StepResult::Run(_)));
            Ok(())
        })
        .unwrap();
    assert_eq!((halt, runs), (Halt::Reached, 1), "{} calls", calls.load(Ordering::SeqCst));
}

#[test]
fn what_cannot_go_on_says_what_to_do() {
    let place = place(&Made::with_items(100));
    let said = |arguments: &[&str]| {
        let output = place.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let start = said(&["upgrade", "start"]);
    assert!(start.contains("an adapter") && start.contains("`rehang upgrade pairs`"), "{start}");
    let bridge = said(&["upgrade", "bridge"]);
    assert!(bridge.contains("upgrade"), "{bridge}");
    let fit = said(&["upgrade", "fit"]);
    assert!(fit.contains("pairs") && fit.contains("`rehang upgrade pairs`"), "{fit}");
    // A mistake in the queries is found before anything is embedded.
    let queries = said(&["upgrade", "pairs", "--queries", "nothere.jsonl"]);
    assert!(queries.contains("[old.encoder]"), "{queries}");
    let plain = fs_err::read_to_string(place.path("rehang.toml")).unwrap();
    // No step but that of the queries needs the old model.
    let both = format!("{plain}[old.encoder]\nkind = \"table\"\nvectors = \"old.npy\"\n");
    place.write_bytes("rehang.toml", both.as_bytes());
    assert!(said(&["upgrade", "auto", "--queries", "nothere.jsonl"]).contains("nothere.jsonl"));
    assert!(said(&["upgrade", "status"]).contains("upgrade"), "nothing has begun");
    place.finish(&["upgrade", "pairs", "--items", "60"]);
    // Pairs that were paid for are not left behind without a word.
    place.write_bytes("rehang.toml", plain.replace("second", "third").as_bytes());
    let other = said(&["upgrade", "pairs"]);
    assert!(other.contains("60 items") && other.contains("`rehang gallery drop-space`"), "{other}");
    place.write_bytes("rehang.toml", plain.as_bytes());
    let start = said(&["upgrade", "start"]);
    assert!(start.contains("`rehang upgrade fit`"), "{start}");
    for verb in ["run", "switch", "finish"] {
        let text = said(&["upgrade", verb]);
        assert!(text.contains("`rehang upgrade fit`"), "{verb}: {text}");
    }
    assert!(said(&["upgrade", "auto", "--switch-if", "better"]).contains("--switch-if"));
    assert!(said(&["upgrade", "pairs", "--items", "0"]).contains("--items"));
    // A pause holds the sample too.
    place.finish(&["upgrade", "pause"]);
    assert!(said(&["upgrade", "pairs"]).contains("`rehang upgrade resume`"));
    // An adapter that the configuration names is not fitted again.
    let config = fs_err::read_to_string(place.path("rehang.toml")).unwrap();
    place.write_bytes("rehang.toml", format!("{config}\n[adapter]\nfile = \"a.safetensors\"\n").as_bytes());
    assert!(said(&["upgrade", "fit"]).contains("[adapter]"));
}

#[test]
fn a_plan_says_what_a_bridge_brings_and_what_people_search_comes_first() {
    let source = |row| (row % 10 != 3).then(|| format!("row:{row}"));
    let place = place(&Made { old: noisy, source, ..Made::with_items(1000) });
    place.finish(&["upgrade", "pairs", "--items", "400", "--worth", "0"]);
    place.finish(&["upgrade", "fit", "--method", "ridge"]);
    let said = String::from_utf8(place.run(&["upgrade", "report"]).stdout).unwrap();
    let forecast = &place.json(&["upgrade", "plan"])["forecast"];
    let [value, low, high] = [0, 1, 2].map(|part| forecast["bridge"][part].as_f64().unwrap());
    assert!(low < value && value < high && forecast["do_nothing"].as_f64().unwrap() < value, "{forecast}");
    let shown = format!("over a bridge {value:.1}");
    assert!(said.contains(&shown), "{said}");
    let plan = String::from_utf8(place.run(&["upgrade", "plan"]).stdout).unwrap();
    assert!(plan.contains(&format!("{shown} ({low:.1}–{high:.1})")), "{plan}");
    // A tenth stays adapted: a tenth of what the end is above the switch.
    let gained = forecast["curve_at"][3][1].as_f64().unwrap() - forecast["start"].as_f64().unwrap();
    let outlook = place.json(&["upgrade", "plan"]);
    let lost = outlook["lost_without_source"].as_f64().unwrap();
    assert!(lost > 0.0 && (lost - 0.1 * gained).abs() < 1e-9, "{outlook}");
    assert!(plan.contains(&format!("about {lost:.1} of the {gained:.1} points")), "{plan}");

    place.finish(&["upgrade", "start"]);
    let before = natives(&place);
    place.write_bytes("returned.txt", b"i900\ni901\ni900\nnobody\n");
    let put = place.json(&["upgrade", "first", "returned.txt"]);
    assert_eq!(put["unknown"], 1, "{put}");
    let placed = put["placed"].as_u64().unwrap();
    assert_eq!((placed > 0, placed + put["native"].as_u64().unwrap()), (true, 2), "{put}");
    place.finish(&["upgrade", "run", "--budget", &placed.to_string(), "--no-refit"]);
    assert_eq!(natives(&place), before + placed as usize);
    assert_eq!(place.json(&["upgrade", "first", "returned.txt"])["native"], 2, "they came first");
    place.write_bytes("returned.txt", b"nobody\n");
    let refused = place.run(&["upgrade", "first", "returned.txt"]);
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(2) && text.contains("nobody"), "{text}");

    // New queries search new vectors then.
    place.finish(&["upgrade", "switch", "--anyway"]);
    let said = String::from_utf8(place.run(&["upgrade", "report"]).stdout).unwrap();
    assert!(!said.contains("over a bridge"), "{said}");
    assert_eq!(place.json(&["upgrade", "plan"])["forecast"]["bridge"], Value::Null);
}

/// Runs `upgrade auto` with no option that speaks of a map; gives what it says as JSON, and its exit code.
fn alone(place: &Place, more: &[&str]) -> (Value, i32) {
    let output = place.run(&[&["upgrade", "auto", "--json"], more].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    let value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    (value, output.status.code().unwrap())
}

#[test]
fn a_small_gallery_is_embedded_and_switched() {
    for items in [1, 3, 60] {
        let place = place(&Made::with_items(items));
        let (ended, code) = alone(&place, &["--yes"]);
        let all = ["doctor", "way", "plan", "start", "run", "switch"];
        assert_eq!((steps(&ended), code), (all.into(), 0), "{items}: {ended}");
        assert_eq!(result(&ended, "way")["because"], "few-pairs");
        assert_eq!((&ended["halt"]["why"], natives(&place)), (&"home".into(), items));
        let status = place.json(&["upgrade", "status"]);
        assert_eq!((&status["plain"], &status["serving"]), (&true.into(), &"second".into()));
        // Every verb of the end works without an adapter.
        place.finish(&["upgrade", "start"]);
        place.finish(&["upgrade", "run"]);
        place.finish(&["upgrade", "rollback"]);
        place.finish(&["upgrade", "switch"]);
        place.finish(&["doctor", "--config", "rehang.toml"]);
        place.finish(&["upgrade", "finish"]);
    }
}

#[test]
fn a_gallery_without_old_vectors_is_embedded_and_switched() {
    const ITEMS: usize = 300;
    let place = place(&Made::with_items(ITEMS));
    let store = SqliteStore::open(place.path("G.db")).unwrap();
    let ids: Vec<String> = (0..ITEMS).map(|row| format!("i{row}")).collect();
    store.delete(&ids.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    let bare = |row: usize| ItemWrite::new(format!("i{row}"), Some(format!("row:{row}")), Vec::new());
    store.put(&(0..ITEMS).map(bare).collect::<Vec<_>>()).unwrap();
    let (ended, code) = alone(&place, &["--yes"]);
    assert_eq!((result(&ended, "way")["because"].as_str(), code), (Some("nothing-to-map"), 0), "{ended}");
    assert_eq!((&ended["halt"]["why"], natives(&place)), (&"home".into(), ITEMS));
    assert_eq!(place.json(&["upgrade", "status"])["serving"], "second");
    place.finish(&["upgrade", "finish"]);
}

#[test]
fn everything_is_embedded_where_that_is_the_shorter_way() {
    const ITEMS: usize = 600;
    let place = place(&Made::with_items(ITEMS));
    // A plan begins with it, and changes nothing.
    let planned = String::from_utf8(place.run(&["upgrade", "plan", "--probe", "64"]).stdout).unwrap();
    let begins = planned.find("Re-embedding everything: 600 items").unwrap();
    assert!(begins < planned.find("start   makes the new space").unwrap(), "{planned}");
    assert!(planned.contains("as measured on 64 items") && planned.contains("--mapped"), "{planned}");
    assert!(place.run(&["upgrade", "status"]).status.code() == Some(2), "nothing has begun");
    let listed = place.json(&["upgrade", "auto", "--dry-run", "--plain"]);
    let verbs = ["plan", "start --plain", "run", "switch"];
    let verbs = verbs.map(|verb| format!("rehang upgrade {verb} --config rehang.toml"));
    assert_eq!(listed["commands"], serde_json::json!(verbs));

    // Items that are embedded to measure the rate stay native.
    let (stopped, code) = alone(&place, &[]);
    assert_eq!((steps(&stopped), code), (vec!["doctor", "way", "plan"], 0), "{stopped}");
    let way = result(&stopped, "way");
    let said = (&way["way"], &way["because"], &way["native"], &way["to_embed"]);
    assert_eq!(said, (&"plain".into(), &"shorter".into(), &128.into(), &472.into()), "{way}");
    assert_eq!(natives(&place), 128);
    // Killed in the middle, as a budget does it: nothing is switched, and the same command goes on.
    let (ended, code) = alone(&place, &["--yes", "--plain", "--budget", "100"]);
    assert_eq!(
        (&ended["halt"]["ending"], code, natives(&place)),
        (&"spent-budget".into(), 0, 228),
        "{ended}"
    );
    assert_eq!(place.json(&["upgrade", "status"])["serving"], "first");
    let early = place.run(&["upgrade", "switch"]);
    let text = String::from_utf8_lossy(&early.stderr).into_owned();
    assert!(early.status.code() == Some(2) && text.contains("372 of 600 items"), "{text}");
    let (gone, code) = alone(&place, &["--yes"]);
    assert_eq!((steps(&gone), code, natives(&place)), (vec!["run", "switch"], 0, ITEMS), "{gone}");
    place.finish(&["upgrade", "rollback"]);
    assert_eq!(alone(&place, &["--yes"]).0["halt"]["why"], "rolled-back");
    place.finish(&["upgrade", "switch"]);
    // Items that the application writes are embedded by the same command, after the switch.
    let old: Vec<String> = read("old.npy").row(599).iter().map(ToString::to_string).collect();
    let vector = format!("first=[{}]", old.join(","));
    let put = "gallery put --config rehang.toml --id i3 --source row:3 --vector {}";
    place.finish(&words(put, &[&vector]));
    let counts = || place.json(&["upgrade", "status"])["counts"].clone();
    assert_eq!(counts()["adapted"], 0);
    let (gone, code) = alone(&place, &["--yes"]);
    assert_eq!(
        (&gone["halt"]["why"], code, &counts()["native"]),
        (&"home".into(), 0, &ITEMS.into()),
        "{gone}"
    );
    place.finish(&["upgrade", "finish"]);
}

#[test]
fn a_map_is_made_where_it_is_asked_for_or_pays() {
    let first = |place: &Place, more: &[&str]| {
        let listed = place.json(&[&["upgrade", "auto", "--dry-run"], more].concat());
        listed["commands"][0].as_str().unwrap().to_owned()
    };
    let because =
        |place: &Place| place.json(&["upgrade", "plan", "--probe", "64"])["ways"]["because"].clone();
    let limited = |limit: &str| {
        let place = place(&Made::with_items(300));
        let config = fs_err::read_to_string(place.path("rehang.toml")).unwrap();
        place.write_bytes("rehang.toml", config.replace("[run]", &format!("[run]\n{limit}")).as_bytes());
        place
    };
    let plain = place(&Made::with_items(300));
    assert_eq!(because(&plain), "shorter");
    assert!(first(&plain, &["--mapped"]).contains("pairs"));
    assert!(first(&plain, &["--method", "ridge"]).contains("pairs"));
    // Three hours; a budget that would end it before the switch; a twentieth without a source, which searches
    // would lose.
    let slow = limited("rate = \"100/h\"");
    assert_eq!(because(&slow), "longer");
    assert!(first(&slow, &[]).contains("pairs"));
    assert_eq!(because(&limited("budget = 200")), "budget");
    let source = |row: usize| (!row.is_multiple_of(20)).then(|| format!("row:{row}"));
    assert_eq!(because(&place(&Made { source, ..Made::with_items(300) })), "without-source");
    // Where it is asked for all the same, the switch waits for a person.
    let lost = place(&Made { source, ..Made::with_items(300) });
    let (ended, code) = alone(&lost, &["--yes", "--plain"]);
    assert_eq!((&ended["halt"]["why"], code, natives(&lost)), (&"lacking".into(), 1, 285), "{ended}");
    assert_eq!(lost.run(&["upgrade", "switch"]).status.code(), Some(2));
    assert_eq!(lost.json(&["upgrade", "status"])["without_vector"], 15);
    let (ended, _) = alone(&lost, &["--yes", "--mapped", "--method", "ridge"]);
    assert!(steps(&ended).contains(&"fit"), "over to a map: {ended}");
    assert_eq!(lost.json(&["upgrade", "status"])["plain"], false);
    // Not both, and no map's option beside the plain way.
    for bad in
        [&["--plain", "--mapped"][..], &["--plain", "--until", "80%"], &["--plain", "--method", "ridge"]]
    {
        let refused = lost.run(&[&["upgrade", "auto"], bad].concat());
        assert_eq!(refused.status.code(), Some(2), "{bad:?}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains("--plain"), "{bad:?}");
    }
}

/// A service manager's signal comes at one moment or another of each verb that computes.
#[cfg(unix)]
#[test]
fn what_computes_ends_at_a_signal_with_nothing_half_and_the_same_command_goes_on() {
    use std::process::{Command, Stdio};
    use std::time::Duration;

    let made = Made::with_items(1600);
    let (place, whole) = (self::place(&made), self::place(&made));
    let verbs =
        [&["upgrade", "fit", "--method", "kernel-ridge"][..], &["upgrade", "report"], &["upgrade", "start"]];
    let (mut ended, mut waits) = (0, [20, 60, 150, 300, 600].into_iter().cycle());
    for place in [&place, &whole] {
        place.finish(&["upgrade", "pairs", "--items", "500", "--worth", "0"]);
    }
    for verb in verbs {
        for _ in 0..5 {
            let child = place.command(verb).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
            #[allow(clippy::disallowed_methods, reason = "the signal comes at any moment of the work")]
            std::thread::sleep(Duration::from_millis(waits.next().unwrap()));
            // The process may have ended before.
            drop(
                Command::new("kill").args(["-TERM", &child.id().to_string()]).stderr(Stdio::null()).status(),
            );
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            let is_stopped =
                output.status.code().is_none_or(|code| code == 2 && said.contains("stopped on request"));
            assert!(is_stopped || matches!(output.status.code(), Some(0 | 1)), "{verb:?}: {said}");
            ended += usize::from(is_stopped);
        }
        for place in [&place, &whole] {
            let output = place.run(verb);
            assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
        }
    }
    assert!(ended > 0);
    let files = |place: &Place| {
        let store = SqliteStore::open(place.path("G.db")).unwrap();
        Files::in_ledger(&store).names().unwrap()
    };
    assert_eq!(
        files(&place),
        files(&whole),
        "an adapter and a report, under the fingerprint of the same map"
    );
    let vectors = |place: &Place| {
        let store = SqliteStore::open(place.path("G.db")).unwrap();
        let scan = Scan::new("second", Select::All, 2000).with_vectors_of("second");
        let mut records = store.scan(&scan).unwrap();
        records.sort_by(|one, other| one.item.id.cmp(&other.item.id));
        records
            .into_iter()
            .map(|record| (record.item.id, record.vector.map(|of| of.vector)))
            .collect::<Vec<_>>()
    };
    assert_eq!(vectors(&place), vectors(&whole));
}
