//! A live upgrade by the command line alone: the verbs that scripts rely on, and everything that can be wrong
//! with them.

use std::fmt::Write as _;
use std::io::Write as _;

use rehang_core::{Adapter, Distance, Matrix, Provenance, Space};
use rehang_files::{VectorSource, read_matrix};
use rehang_sqlite::SqliteStore;
use rehang_store::{Ledger, Scan, Select};

use crate::common::upgrade::padding;
use crate::common::{Place, words};

const ITEMS: usize = 120;
const D_OLD: usize = 4;
const D_NEW: usize = 6;

fn native(row: usize, column: usize) -> f32 {
    ((row * 7 + column * 13) % 101) as f32 / 8.0
}

fn adapter(d_old: usize, d_new: usize) -> Adapter {
    let space = |name, dimension| Space::new(name, dimension, Distance::L2, false);
    padding(space("old", d_old), space("new", d_new), vec![0.1; d_new], 0.0)
}

/// Files of a small gallery, imported; two items are not in the table, one has no source.
fn place() -> Place {
    let place = Place::new();
    place.write_matrix("old.npy", &Matrix::from_fn(ITEMS, D_OLD, native));
    place.write_matrix("new.npy", &Matrix::from_fn(ITEMS - 2, D_NEW, native));
    place.write_matrix("old-queries.npy", &Matrix::from_fn(3, D_OLD, native));
    place.write_matrix("new-queries.npy", &Matrix::from_fn(3, D_NEW, native));
    place.write_matrix("one.npy", &Matrix::from_fn(1, D_OLD, |_, column| native(77, column)));
    rehang_files::adapter_file::save(&adapter(D_OLD, D_NEW), place.path("adapter.safetensors")).unwrap();
    let (mut items, mut ids) = (String::new(), String::new());
    for row in 0..ITEMS {
        let source = if row == 5 { String::new() } else { format!(r#", "source": "text {row}""#) };
        writeln!(
            items,
            r#"{{"id": "i{row}"{source}, "label": {}, "payload": {{"even": {}}}}}"#,
            row % 3,
            row % 2 == 0
        )
        .unwrap();
        if row < ITEMS - 2 {
            writeln!(ids, "i{row}").unwrap();
        }
    }
    place.write_bytes("items.jsonl", items.as_bytes());
    place.write_bytes("ids.txt", ids.as_bytes());
    place.write_bytes("rehang.toml", config("").as_bytes());
    place.json(&words(
        "gallery import --gallery G.db --space resnet --vectors old.npy --items items.jsonl \
         --distance l2",
        &[],
    ));
    place
}

fn config(change: &str) -> String {
    let text = "[gallery]\npath = \"G.db\"\n[old]\nname = \"resnet\"\ndimension = 4\ndistance = \"l2\"\n[new]\nname = \"clip\"\ndimension = \
                6\ndistance = \"l2\"\n[adapter]\nfile = \"adapter.safetensors\"\n[order]\npolicy = \"sigma\"\nseed = 1\n[encoder]\n\
                kind = \"table\"\nvectors = \"new.npy\"\nids = \"ids.txt\"\n[run]\nbatch = 8\nworkers = 2\n";
    match change.split_once(" => ") {
        None => text.to_owned(),
        Some((from, to)) => {
            assert!(text.contains(from), "{from}");
            text.replacen(from, to, 1)
        }
    }
}

fn code(place: &Place, arguments: &[&str]) -> (i32, String, String) {
    let output = place.run(arguments);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

const UPGRADE: [&str; 2] = ["--config", "rehang.toml"];

fn upgrade<'a>(verb: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["upgrade", verb], &UPGRADE[..], more].concat()
}

#[test]
fn a_whole_upgrade_by_its_verbs() {
    let place = place();
    let plan = place.json(&upgrade("plan", &["--probe", "10"]));
    assert_eq!((plan["to_adapt"].as_u64(), plan["to_embed"].as_u64()), (Some(120), Some(119)));
    assert_eq!(plan["without_source"], 1);
    let before = code(&place, &["search", "--gallery", "G.db", "--vectors", "old-queries.npy", "-k", "4"]).1;

    let started = place.json(&upgrade("start", &[]));
    assert_eq!(started["adapted"], 120);
    // Searches stay where they are until the switch.
    assert_eq!(
        code(&place, &["search", "--gallery", "G.db", "--vectors", "old-queries.npy", "-k", "4"]).1,
        before
    );
    assert_eq!(place.json(&upgrade("switch", &[]))["serving"], "clip");
    let found = place.json(&["search", "--gallery", "G.db", "--vectors", "new-queries.npy", "-k", "4"]);
    assert_eq!(found["space"], "clip");
    assert_eq!(found["results"].as_array().unwrap().len(), 3);
    assert_eq!(found["results"][0][0]["provenance"], "adapted");

    let run = place.json(&upgrade("run", &["--until", "0.5"]));
    assert_eq!((run["ending"].as_str(), run["native"].as_u64()), (Some("reached-fraction"), Some(60)));
    let run = place.json(&upgrade("run", &["--budget", "7"]));
    assert_eq!((run["ending"].as_str(), run["native"].as_u64()), (Some("spent-budget"), Some(67)));

    place.json(&upgrade("pause", &[]));
    let (paused, _, error) = code(&place, &upgrade("run", &[]));
    assert_eq!(paused, 2);
    assert!(error.contains("resume"), "{error}");
    let (_, out, _) = code(&place, &upgrade("status", &["--json"]));
    let status: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(status["next"], serde_json::json!({ "step": "resume" }));
    let (_, out, _) = code(&place, &upgrade("status", &[]));
    assert!(out.contains("next: resume\n"), "{out}");
    let listed = place.json(&["upgrade", "auto", "--dry-run", "--config", "rehang.toml"]);
    let commands = ["resume", "run"].map(|verb| format!("rehang upgrade {verb} --config rehang.toml"));
    assert_eq!((&listed["next"], &listed["commands"]), (&"resume".into(), &serde_json::json!(commands)));
    place.json(&upgrade("resume", &[]));
    let (_, out, _) = code(&place, &upgrade("status", &[]));
    assert!(out.contains("[run]"), "{out}");

    // An application changes, adds and deletes.
    let id = ["gallery", "put", "--gallery", "G.db", "--config", "rehang.toml", "--id"];
    place.json(&[&id[..], &["i1", "--source", "text 77", "--vector", "resnet=one.npy"]].concat());
    place.json(&[&id[..], &["fresh", "--source", "text 77", "--vector", "clip=[1,2,3,4,5,6]"]].concat());
    assert_eq!(place.json(&["gallery", "delete", "--gallery", "G.db", "i2"])["deleted"], 1);
    let (missing, _, _) = code(&place, &["gallery", "delete", "--gallery", "G.db", "nobody"]);
    assert_eq!(missing, 1);

    // Two items are not in the table: they are listed, and the rest is done.
    let (rest, out, error) = code(&place, &upgrade("run", &["--until", "all", "--json"]));
    assert_eq!(rest, 1, "{out}{error}");
    // Both failed items are in the way of the next run too. It says so, and that the σ² of this adapter is
    // made up.
    let (rest, out, _) = code(&place, &upgrade("run", &[]));
    assert_eq!(rest, 1, "{out}");
    assert!(out.contains("2 items could not be embedded") && out.contains("ALARM"), "{out}");
    let (_, out, _) = code(&place, &upgrade("run", &["--json"]));
    assert!(out.contains("\"alarm\":true"), "{out}");
    let status: serde_json::Value = {
        let (doubtful, out, _) = code(&place, &upgrade("status", &["--json"]));
        assert_eq!(doubtful, 1);
        serde_json::from_str(&out).unwrap()
    };
    assert_eq!(status["counts"]["failed"], 2);
    assert_eq!(status["counts"]["native"], 117);
    assert_eq!(status["counts"]["adapted"], 3);

    let export = ["gallery", "export", "--gallery", "G.db", "--space", "clip", "--vectors", "V.npy"];
    place.json(&[&export[..], &["--ids", "IDS.txt", "--provenance", "P.txt"]].concat());
    let vectors = read_matrix(&VectorSource::parse(&place.text("V.npy")).unwrap()).unwrap();
    let read = |name: &str| fs_err::read_to_string(place.path(name)).unwrap();
    let (ids, provenance) = (read("IDS.txt"), read("P.txt"));
    assert_eq!((vectors.rows(), ids.lines().count(), provenance.lines().count()), (120, 120, 120));
    for ((row, id), provenance) in ids.lines().enumerate().zip(provenance.lines()) {
        let Some(number) = id.strip_prefix('i').and_then(|number| number.parse::<usize>().ok()) else {
            continue;
        };
        let adapted = matches!(number, 5 | 118 | 119);
        assert_eq!(provenance, if adapted { "adapted" } else { "native" }, "{id}");
        // The table goes by id, so the changed item has the vector of its id.
        let expected = |column: usize| {
            if adapted && column >= D_OLD { 0.0 } else { native(number, column) }
        };
        assert!((0..D_NEW).all(|column| vectors.row(row)[column] == expected(column)), "{id}");
    }

    // Back, bit for bit but for what the application changed, and forth again.
    let (back, out, error) = code(&place, &upgrade("rollback", &["--json"]));
    assert_eq!(back, 1, "the fresh item has no old vector: {out}{error}");
    assert!(out.contains("\"fresh\""), "{out}");
    let (_, after, _) =
        code(&place, &["search", "--gallery", "G.db", "--vectors", "old-queries.npy", "-k", "4"]);
    assert_eq!(after.lines().next(), before.lines().next());
    place.json(&upgrade("switch", &[]));
    // The σ² of this adapter is made up, and that is noticed; nothing else is wrong.
    let (doubtful, out, _) = code(&place, &["doctor", "--gallery", "G.db", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    let indexes = report["indexes"].as_array().unwrap();
    assert_eq!(indexes.len(), 2);
    assert_eq!(indexes[1]["space"], "clip");
    assert_eq!(
        (&indexes[1]["health"]["kind"], &indexes[1]["health"]["vectors"]),
        (&"exact".into(), &120.into())
    );
    let bad: Vec<&str> = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|finding| finding["bad"] == true)
        .map(|finding| finding["what"].as_str().unwrap())
        .collect();
    assert_eq!((doubtful, bad), (1, vec!["sigma"]));
    assert_eq!(place.json(&upgrade("finish", &["--anyway"]))["dropped"], "resnet");
    let (gone, _, error) = code(&place, &upgrade("rollback", &[]));
    assert_eq!(gone, 2);
    assert!(error.contains("finished"), "{error}");
    let info = place.json(&["gallery", "info", "--gallery", "G.db"]);
    assert_eq!(info["spaces"].as_array().unwrap().len(), 1);
}

#[test]
fn a_filtered_search_gives_what_passes() {
    let place = place();
    let search = ["search", "--gallery", "G.db", "--vectors", "old-queries.npy", "-k", "200"];
    let all = place.json(&search)["results"][0].as_array().unwrap().len();
    let of_label =
        place.json(&[&search[..], &["--label", "1"]].concat())["results"][0].as_array().unwrap().len();
    let even = place.json(&[&search[..], &["--payload", "even=true"]].concat());
    assert_eq!((all, of_label), (120, 40));
    let ids: Vec<&str> =
        even["results"][0].as_array().unwrap().iter().map(|hit| hit["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 60);
    assert!(ids.iter().all(|id| id[1..].parse::<usize>().unwrap() % 2 == 0));
}

#[test]
fn a_status_lists_what_cannot_come_home() {
    let place = Place::new();
    place.write_matrix("old.npy", &Matrix::from_fn(ITEMS, D_OLD, native));
    place.write_matrix("new.npy", &Matrix::from_fn(ITEMS + 1, D_NEW, native));
    // Every third item has no source.
    let items = (0..ITEMS).fold(String::new(), |mut text, row| {
        let source = if row % 3 == 0 { String::new() } else { format!(", \"source\": \"text {row}\"") };
        writeln!(text, "{{\"id\": \"i{row}\"{source}}}").unwrap();
        text
    });
    place.write_bytes("items.jsonl", items.as_bytes());
    let ids = (0..ITEMS).fold(String::new(), |text, row| text + &format!("i{row}\n"));
    place.write_bytes("ids.txt", (ids + "blind\n").as_bytes());
    rehang_files::adapter_file::save(&adapter(D_OLD, D_NEW), place.path("adapter.safetensors")).unwrap();
    place.write_bytes("rehang.toml", config("").as_bytes());
    let import =
        "gallery import --gallery G.db --space resnet --vectors old.npy --items items.jsonl --distance l2";
    place.json(&words(import, &[]));
    place.json(&upgrade("start", &[]));
    // Two items that no model has seen, one of them without a source.
    let put = ["gallery", "put", "--gallery", "G.db", "--id"];
    place.json(&[&put[..], &["bare"]].concat());
    place.json(&[&put[..], &["blind", "--source", "text 7"]].concat());

    let status = place.json(&upgrade("status", &[]));
    let listed = |status: &serde_json::Value, name: &str| -> Vec<String> {
        let list = status[name].as_array().unwrap_or_else(|| panic!("{name} in {status}"));
        list.iter().map(|id| id.as_str().unwrap().to_owned()).collect()
    };
    let mut without_source: Vec<String> = (0..ITEMS).step_by(3).map(|row| format!("i{row}")).collect();
    without_source.push("bare".into());
    assert_eq!(listed(&status, "items_without_source"), without_source, "all of them");
    assert_eq!(listed(&status, "items_without_vector"), ["bare", "blind"]);
    assert_eq!((status["without_vector"].as_u64(), status["lag"].as_u64()), (Some(2), Some(0)));
    let (_, text, _) = code(&place, &upgrade("status", &[]));
    assert!(text.contains("    i57\n    … and 21 more; --json lists all\n"), "{text}");
    assert!(!text.contains("i60\n") && text.contains("    bare\n    blind\n"), "{text}");
    assert_eq!(text.matches("more; --json").count(), 1, "{text}");

    // One of them no search finds, which the switch says.
    assert_eq!(code(&place, &upgrade("switch", &["--fused"])).0, 1);
    place.json(&upgrade("run", &[]));
    // The σ² of this adapter is made up, which makes a status doubtful from here on.
    let doubtful = || -> serde_json::Value {
        let (doubtful, out, error) = code(&place, &upgrade("status", &["--json"]));
        assert_eq!(doubtful, 1, "{error}");
        serde_json::from_str(&out).unwrap()
    };
    let status = doubtful();
    assert_eq!(listed(&status, "items_without_source"), without_source);
    assert_eq!(listed(&status, "items_without_vector"), ["bare"]);
    // Nothing can be done about it, so nobody is told to do anything.
    let (_, text, _) = code(&place, &upgrade("status", &[]));
    assert!(text.contains("no search finds 1 items: they have neither"), "{text}");
    let (_, text, _) = code(&place, &["doctor", "--config", "rehang.toml"]);
    assert!(text.contains("which serves, nor a source: no search finds them\n"), "{text}");
    // After a rollback it is those of the old space that no search finds.
    let (_, out, _) = code(&place, &upgrade("rollback", &[]));
    assert!(out.contains("2 items have no old vector") && out.contains("status --json"), "{out}");
    let status = doubtful();
    assert_eq!(listed(&status, "items_without_old_vector"), ["bare", "blind"]);
    let (_, text, _) = code(&place, &upgrade("status", &[]));
    assert!(text.contains("until the application writes one:\n    bare\n    blind\n"), "{text}");
    code(&place, &upgrade("switch", &[]));
    let (_, text, _) = code(&place, &upgrade("status", &[]));
    assert!(!text.contains("until the application"), "{text}");
    place.json(&["gallery", "delete", "--gallery", "G.db", "bare"]);
    place.json(&upgrade("finish", &["--anyway"]));
    let status = doubtful();
    assert_eq!(listed(&status, "items_without_source").len(), 40);
    assert!(listed(&status, "items_without_vector").is_empty());
    assert!(listed(&status, "items_without_old_vector").is_empty());
    assert_eq!((status["lag"].as_u64(), status["without_vector"].as_u64()), (Some(0), Some(0)));
}

#[test]
fn a_plan_shows_the_forecast_and_a_switch_that_would_serve_worse_is_refused() {
    let place = place();
    let (_, text, _) = code(&place, &upgrade("plan", &[]));
    assert!(text.contains("forecast  none") && text.contains("rehang report"), "{text}");
    assert_eq!(place.json(&upgrade("plan", &[]))["forecast"], serde_json::Value::Null);

    // A report on other items than those of the gallery, as a person makes it.
    let other = |row: usize, column: usize| native(row * 3 + 500, column * column) + row as f32 * 0.1;
    let old = place.write_matrix("held-old.npy", &Matrix::from_fn(60, D_OLD, other));
    let new = place.write_matrix("held-new.npy", &Matrix::from_fn(60, D_NEW, other));
    let labels = place.write_labels("held-label.npy", &(0..60).map(|row| row % 6).collect::<Vec<i64>>());
    let report = ["report", "adapter.safetensors", "--old", &old, "--new", &new, "--labels", &labels];
    place.run(&[&report[..], &["--orders", "sigma,random", "-o", "report.json", "--force"]].concat());
    let with_forecast = config("") + "\n[forecast]\nfile = \"report.json\"\n";
    place.write_bytes("rehang.toml", with_forecast.as_bytes());
    let measured: serde_json::Value =
        serde_json::from_slice(&fs_err::read(place.path("report.json")).unwrap()).unwrap();
    let forecast = place.json(&upgrade("plan", &[]))["forecast"].clone();
    assert_eq!((forecast["items"].as_u64(), forecast["metric"].as_str()), (Some(60), Some("mAP")));
    assert_eq!(forecast["curve"], "sigma", "{forecast}");
    assert_eq!(forecast["do_nothing"], measured["do_nothing"]["map"]);
    let series =
        measured["curves"].as_array().unwrap().iter().find(|curve| curve["order"] == "sigma").unwrap();
    assert_eq!(forecast["start"], series["metrics"]["map"]["start"]);
    assert_eq!(forecast["curve_at"][3][1], series["metrics"]["map"]["end"]);

    // Another report has a curve that rises from 20 to 60 and a do-nothing line at 30.
    let mut weak = measured.clone();
    weak["do_nothing"]["map"] = 30.0.into();
    for curve in weak["curves"].as_array_mut().unwrap() {
        let fractions: Vec<f64> =
            curve["fractions"].as_array().unwrap().iter().map(|share| share.as_f64().unwrap()).collect();
        let map = &mut curve["metrics"]["map"];
        map["values"] = fractions.iter().map(|share| 20.0 + 40.0 * share).collect();
        (map["start"], map["end"], map["passes_do_nothing_at"]) = (20.0.into(), 60.0.into(), 0.25.into());
    }
    place.write_bytes("report.json", weak.to_string().as_bytes());
    let (_, text, _) = code(&place, &upgrade("plan", &[]));
    for words in [
        "do nothing 30.0, at the switch 20.0, 10 % native 24.0, 25 % native 30.0, 50 % native 40.0, 100 % native 60.0",
        "from 25.0 % native on",
    ] {
        assert!(text.contains(words), "{text}");
    }
    place.json(&upgrade("start", &[]));
    let (refused, out, error) = code(&place, &upgrade("switch", &[]));
    assert_eq!(refused, 2, "{out}");
    for words in ["0.0 % native", "20.0", "30.0", "--until 25.0%", "--fused", "--anyway"] {
        assert!(error.contains(words), "{error}");
    }
    let info = || place.json(&["gallery", "info", "--gallery", "G.db"])["serving"].clone();
    assert_eq!(info(), "resnet", "nothing was switched");
    place.json(&upgrade("switch", &["--fused"]));
    assert_eq!(info(), "clip", "fused searches need no forecast");
    let (refused, _, _) = code(&place, &upgrade("switch", &[]));
    assert_eq!(refused, 2, "from fused to mixed searches it is asked again");
    place.json(&upgrade("rollback", &[]));
    place.json(&upgrade("switch", &["--anyway"]));
    place.json(&upgrade("switch", &[]));
    place.json(&upgrade("rollback", &[]));
    // The message's own advice helps: after a run until this share, the switch is allowed.
    let (ended, _, error) = code(&place, &upgrade("run", &["--until", "25.0%"]));
    assert_eq!(ended, 0, "{error}");
    place.json(&upgrade("switch", &[]));
    assert_eq!(info(), "clip");

    // A forecast from other items names no share that is enough; a forecast of the whole gallery does.
    let run_to_enough = || code(&place, &upgrade("run", &["--until", "98% of new"]));
    let (refused, _, error) = run_to_enough();
    assert!(refused == 2 && error.contains("a share such as 60%"), "{error}");
    for curve in weak["curves"].as_array_mut().unwrap() {
        curve["metrics"]["map"]["enough"] = serde_json::json!({"fraction": 0.3, "low": 0.2, "high": 0.5});
    }
    place.write_bytes("report.json", weak.to_string().as_bytes());
    // Items that the table does not have come later in this order.
    let (ended, _, error) = run_to_enough();
    assert_eq!(ended, 0, "{error}");
    let (_, status, _) = code(&place, &upgrade("status", &["--json"]));
    let counts = &serde_json::from_str::<serde_json::Value>(&status).unwrap()["counts"];
    let [items, native] = ["items", "native"].map(|name| counts[name].as_u64().unwrap());
    assert_eq!((native, &counts["failed"]), (items.div_ceil(2), &0.into()), "{counts}");

    for (bytes, says) in [(&b"{}"[..], "no report"), (b"", "no report"), (b"\xff", "report.json")] {
        place.write_bytes("report.json", bytes);
        let (code, _, error) = code(&place, &upgrade("plan", &[]));
        assert_eq!(code, 2);
        assert!(error.contains(says) && error.matches("Error:").count() == 1, "{error}");
    }
    fs_err::remove_file(place.path("report.json")).unwrap();
    let (code, _, error) = code(&place, &upgrade("plan", &[]));
    assert!(code == 2 && error.contains("[forecast]") && error.contains("report.json"), "{error}");
}

#[test]
fn a_plan_says_what_it_takes_as_far_as_it_is_known() {
    let place = place();
    let plan = |config: &str| {
        place.write_bytes("plan.toml", config.as_bytes());
        let (_, text, _) = code(&place, &["upgrade", "plan", "--config", "plan.toml"]);
        (place.json(&["upgrade", "plan", "--config", "plan.toml"])["estimate"].clone(), text)
    };
    // Nothing is known of a table before it was used.
    let (estimate, text) = plan(&config(""));
    let nothing = serde_json::json!({"sent": null, "seconds": null, "basis": null, "tokens": null, "money": null, "budget_items": null,
                                     "probed_items": null, "failed": null, "batch_api_items": null});
    assert_eq!(estimate, nothing);
    assert!(text.contains("is not known (--probe 32"), "{text}");
    let slow = config("workers = 2 => workers = 2\nrate = \"5/s\"");
    let (estimate, text) = plan(&slow);
    assert_eq!((&estimate["basis"], estimate["seconds"].as_f64()), (&"limits".into(), Some(119.0 / 5.0)));
    assert!(text.contains("at least 24 s at 5.0 items a second"), "{text}");

    // Each of the 119 sources, "text 0" to "text 119", has two tokens of four characters.
    let http = |more: &str| {
        let encoder = format!("kind = \"http\"\nurl = \"http://127.0.0.1:9\"\nmodel = \"m\"\n{more}");
        config("").replace("kind = \"table\"\nvectors = \"new.npy\"\nids = \"ids.txt\"\n", &encoder)
    };
    let (estimate, text) = plan(&http(""));
    assert_eq!((&estimate["tokens"], &estimate["money"]), (&238.into(), &serde_json::Value::Null));
    assert!(text.contains("about 238 tokens; no price is configured"), "{text}");
    let priced = "price_per_million_tokens = 50000\nbudget_money = 5\ntokens_per_minute = 119\n";
    let (estimate, text) = plan(&http(priced));
    assert_eq!((&estimate["tokens"], &estimate["budget_items"]), (&238.into(), &50.into()));
    assert!((estimate["money"].as_f64().unwrap() - 11.9).abs() < 1e-9, "{estimate}");
    assert_eq!((&estimate["basis"], estimate["seconds"].as_f64()), (&"limits".into(), Some(120.0)));
    for words in ["at least 2 min", "238 tokens, 11.90 in the unit", "ends a run after about 50 items"] {
        assert!(text.contains(words), "{text}");
    }
    // A batch API keeps to no rate.
    let (estimate, text) = plan(&http(&format!("{priced}batch_api = true\nbatch_api_items = 50\n")));
    assert_eq!((&estimate["seconds"], &estimate["batch_api_items"]), (&serde_json::Value::Null, &50.into()));
    for words in [
        "within a day, in each batch of 50 texts (batch_api",
        "price_per_million_tokens has to be the price of batches",
    ] {
        assert!(text.contains(words) && !text.contains("--probe"), "{text}");
    }

    // The rate of a run is known to the next plan; a run that was slowed down measures nothing.
    place.json(&upgrade("start", &[]));
    drop(code(&place, &upgrade("run", &["--budget", "64", "--rate", "100000/s"])));
    assert_eq!(plan(&config("")).0, nothing);
    // One of the ten has no source.
    let fresh = place.json(&upgrade("plan", &["--probe", "10"]));
    assert_eq!(
        (&fresh["estimate"]["basis"], &fresh["estimate"]["probed_items"]),
        (&"probe".into(), &9.into())
    );
}

#[test]
fn a_probe_says_what_got_no_vector() {
    let place = place();
    let (doubtful, text, error) = code(&place, &upgrade("plan", &["--probe", "200"]));
    assert_eq!(doubtful, 1, "{text}{error}");
    assert!(text.contains("as measured on 117 items"), "{text}");
    assert!(error.contains("2 of 119 items got no vector: ") && error.contains("i118"), "{error}");
    let estimate = |config: &str| {
        place.write_bytes("probe.toml", config.as_bytes());
        let plan = ["upgrade", "plan", "--config", "probe.toml", "--probe", "200", "--json"];
        let (doubtful, out, error) = code(&place, &plan);
        assert_eq!(doubtful, 1, "{error}");
        serde_json::from_str::<serde_json::Value>(&out).unwrap()["estimate"].clone()
    };
    let some = estimate(&config(""));
    assert_eq!((&some["basis"], &some["probed_items"]), (&"probe".into(), &119.into()));
    assert_eq!(some["failed"], 2);
    // A table of other items: nothing was measured.
    let ids: String = (0..ITEMS - 2).map(|row| format!("x{row}\n")).collect();
    place.write_bytes("other-ids.txt", ids.as_bytes());
    let none = estimate(&config("ids.txt => other-ids.txt"));
    assert_eq!((&none["probed_items"], &none["failed"]), (&119.into(), &119.into()));
    assert_eq!((&none["basis"], &none["seconds"]), (&serde_json::Value::Null, &serde_json::Value::Null));
}

#[test]
fn a_plan_knows_the_rate_of_the_run_before() {
    let place = place();
    place.json(&upgrade("start", &[]));
    // Two items that are not in the table may be met.
    drop(code(&place, &upgrade("run", &["--budget", "64"])));
    let estimate = place.json(&upgrade("plan", &[]))["estimate"].clone();
    assert_eq!(estimate["basis"], "earlier-run");
    assert!(estimate["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0), "{estimate}");
    let (_, text, _) = code(&place, &upgrade("plan", &[]));
    assert!(text.contains("as an earlier run of this gallery had"), "{text}");
    // A limit that is slower still holds: 55 items are left.
    place.write_bytes("slow.toml", config("workers = 2 => workers = 2\nrate = 0.5").as_bytes());
    let slow = place.json(&["upgrade", "plan", "--config", "slow.toml"])["estimate"].clone();
    assert_eq!((&slow["basis"], slow["seconds"].as_f64()), (&"earlier-run".into(), Some(110.0)));
    // Another model is not as fast because this one was.
    place.json(&upgrade("rollback", &[]));
    place.write_bytes("third.toml", config("name = \"clip\" => name = \"third\"").as_bytes());
    let third = place.json(&["upgrade", "plan", "--config", "third.toml"])["estimate"].clone();
    assert_eq!(third["basis"], serde_json::Value::Null);
}

#[test]
fn another_order_or_adapter_half_way_keeps_what_is_native() {
    let place = place();
    place.json(&upgrade("start", &[]));
    place.json(&upgrade("run", &["--budget", "30"]));
    let mut other = adapter(D_OLD, D_NEW);
    other.map.mixer[0].bias = vec![0.5; D_NEW];
    rehang_files::adapter_file::save(&other, place.path("adapter.safetensors")).unwrap();
    place.write_bytes("rehang.toml", config("\"sigma\"\nseed = 1 => \"random\"\nseed = 2").as_bytes());
    let again = place.json(&upgrade("start", &[]));
    assert_eq!((again["replanned"].as_bool(), again["adapted"].as_u64()), (Some(true), Some(90)));
    let store = SqliteStore::open(place.path("G.db")).unwrap();
    let counts = store.counts("clip").unwrap();
    assert_eq!((counts.native, counts.adapted), (30, 90));
}

#[test]
fn a_configuration_of_another_upgrade_or_adapter_writes_nothing() {
    let place = place();
    let second = place.text("H.db");
    fs_err::copy(place.path("G.db"), &second).unwrap();
    place.json(&upgrade("start", &[]));
    place.json(&upgrade("run", &["--budget", "5"]));
    place.json(&upgrade("switch", &[]));
    let mut other = adapter(D_OLD, D_NEW);
    other.map.mixer[0].bias = vec![0.5; D_NEW];
    rehang_files::adapter_file::save(&other, place.path("other.safetensors")).unwrap();
    place.write_matrix("third.npy", &Matrix::from_fn(ITEMS - 2, D_NEW, |row, column| -native(row, column)));
    let third = config("name = \"clip\" => name = \"third\"").replace("new.npy", "third.npy");
    place.write_bytes("third.toml", third.as_bytes());
    place.write_bytes("other.toml", config("adapter.safetensors => other.safetensors").as_bytes());
    place.write_bytes("second.toml", config("path = \"G.db\" => path = \"H.db\"").as_bytes());
    let store = SqliteStore::open(place.path("G.db")).unwrap();
    let state = || {
        let counts = store.counts("clip").unwrap();
        (counts, store.document("upgrade").unwrap(), store.get(&["i1", "new"]).unwrap())
    };
    let before = state();
    let refused = |verb: &[&str], config: &str, says: &str| {
        let (code, out, error) = code(&place, &[verb, &["--config", config]].concat());
        assert_eq!(code, 2, "{verb:?} {config}: {out}{error}");
        assert!(error.contains(says), "{verb:?} {config}: {error}");
        assert_eq!(state(), before, "{verb:?} {config} wrote something");
    };
    for verb in ["run", "switch", "finish", "pause", "resume", "stop", "rollback"] {
        refused(&["upgrade", verb], "third.toml", "another upgrade");
    }
    for verb in ["run", "switch", "finish"] {
        refused(&["upgrade", verb], "other.toml", "`rehang upgrade start`");
    }
    let put = ["gallery", "put", "--gallery", "G.db", "--id", "new", "--vector", "resnet=one.npy"];
    refused(&put, "third.toml", "another upgrade");
    refused(&put, "other.toml", "`rehang upgrade start`");
    refused(&put, "second.toml", "H.db");
    place.json(&[&put[..], &UPGRADE].concat());
}

/// Ctrl-C, as a terminal sends it, and what a service manager sends.
#[cfg(unix)]
#[test]
fn an_interrupted_run_says_so_and_is_not_done() {
    for signal in ["-INT", "-TERM"] {
        interrupt_a_run(signal);
    }
}

#[cfg(unix)]
fn interrupt_a_run(signal: &str) {
    use std::process::{Command, Stdio};

    let place = place();
    place.json(&upgrade("start", &[]));
    let store = SqliteStore::open(place.path("G.db")).unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_rehang"))
        .args(upgrade("run", &["--rate", "5/s"]))
        .current_dir(place.path(""))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while store.counts("clip").unwrap().native == 0 {
        std::thread::yield_now();
    }
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let output = child.wait_with_output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{out}{}", String::from_utf8_lossy(&output.stderr));
    assert!(out.contains("interrupted"), "{signal}: {out}");
    let native = store.counts("clip").unwrap().native;
    assert!((1..ITEMS as u64 - 2).contains(&native), "{native}");
}

/// A process that follows: what is written meanwhile becomes native, and a service manager's signal ends it
/// in order.
#[cfg(unix)]
#[test]
fn a_follower_stays_until_it_is_asked_to_end() {
    use std::process::{Command, Stdio};

    let place = place();
    place.json(&upgrade("start", &[]));
    place.json(&upgrade("switch", &["--anyway"]));
    let store = SqliteStore::open(place.path("G.db")).unwrap();
    store.delete(&["i3"]).unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_rehang"))
        .args(upgrade("run", &["--follow"]))
        .current_dir(place.path(""))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let wait = |native: u64| {
        while store.counts("clip").unwrap().native < native {
            std::thread::yield_now();
        }
    };
    // One has no source, and of the last two the encoder has no vector.
    wait(ITEMS as u64 - 4);
    let old = rehang_store::NewVector::from_model("resnet", vec![0.5; D_OLD], rehang_core::Provenance::Old);
    let write = rehang_store::ItemWrite::new("i3", Some("source 3".into()), vec![old]);
    store.put(&[write]).unwrap();
    wait(ITEMS as u64 - 3);
    // Items that the encoder has no vector for are doubtful, so that it ends with 1.
    let status = || -> serde_json::Value {
        serde_json::from_slice(&place.run(&upgrade("status", &["--json"])).stdout).unwrap()
    };
    let meanwhile = status();
    assert!(meanwhile["follower"]["worker"].is_string() && meanwhile["not_found"] == 0, "{meanwhile}");
    let sent = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let output = child.wait_with_output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{out}{}", String::from_utf8_lossy(&output.stderr));
    assert!(out.contains("asked to"), "{out}");
    assert!(status()["follower"].is_null());
}

/// A change of the configuration, what is called, and what the error must say.
const BAD_CONFIGURATIONS: [(&str, &str, &[&str]); 14] = [
    ("batch = 8 => batsch = 8", "plan", &["bad.toml", "batsch"]),
    ("batch = 8 => batch = 0", "plan", &["[run] batch", "1 or more"]),
    ("workers = 2 => rate = \"fast\"", "plan", &["[run] rate", "fast"]),
    ("dimension = 4 => dimension = 5", "start", &["old"]),
    ("name = \"resnet\" => name = \"vgg\"", "start", &["vgg", "resnet"]),
    ("name = \"clip\" => name = \"resnet\"", "start", &["resnet"]),
    ("\"sigma\" => \"oracle\"", "start", &["oracle", "coverage"]),
    ("\"sigma\" => \"worst\"", "start", &["worst"]),
    ("\"sigma\" => \"entropy\"", "start", &["entropy", "head"]),
    ("path = \"G.db\" => path = \"none.db\"", "start", &["none.db"]),
    ("path = \"G.db\" => path = \"old.npy\"", "start", &["old.npy"]),
    ("adapter.safetensors => old.npy", "start", &["old.npy"]),
    ("vectors = \"new.npy\" => vectors = \"old.npy\"", "run", &["4", "6"]),
    ("kind = \"table\" => kind = \"telepathy\"", "run", &["telepathy"]),
];

#[test]
fn a_wrong_configuration_is_one_clear_error_and_changes_nothing() {
    let place = place();
    place.json(&upgrade("start", &[]));
    let bytes = || fs_err::read(place.path("G.db")).unwrap();
    let before = bytes();
    for (change, verb, says) in BAD_CONFIGURATIONS {
        place.write_bytes("bad.toml", config(change).as_bytes());
        let (code, out, error) = code(&place, &["upgrade", verb, "--config", "bad.toml"]);
        assert_eq!(code, 2, "{change}: {out}{error}");
        assert_eq!(error.matches("Error:").count(), 1, "{change}: {error}");
        for word in says {
            assert!(error.contains(word), "{change}: {error:?} does not say {word:?}");
        }
        assert!(bytes() == before, "{change} changed the gallery");
    }
}

#[test]
fn wrong_files_and_options_are_one_clear_error() {
    let place = place();
    place.write_bytes("bad.jsonl", b"{\"id\": \"a\"}\n{\"id\": }\n");
    place.write_bytes("twice.jsonl", b"{\"id\": \"a\"}\n{\"id\": \"a\"}\n");
    place.write_bytes("key.jsonl", b"{\"id\": \"a\", \"sauce\": \"b\"}\n");
    place.write_matrix("two.npy", &Matrix::from_fn(2, D_OLD, native));
    place.write_matrix("nan.npy", &Matrix::from_fn(2, D_OLD, |row, _| if row == 1 { f32::NAN } else { 1.0 }));
    place.write_bytes("two.jsonl", b"{\"id\": \"a\"}\n{\"id\": \"b\"}\n");
    let import = "gallery import --gallery N.db --space m --distance l2";
    let cases: [(String, &[&str]); 15] = [
        (format!("{import} --vectors two.npy --items bad.jsonl"), &["bad.jsonl", "line 2"]),
        (format!("{import} --vectors two.npy --items twice.jsonl"), &["twice.jsonl", "\"a\""]),
        (format!("{import} --vectors two.npy --items key.jsonl"), &["key.jsonl", "sauce"]),
        (format!("{import} --vectors old.npy --items two.jsonl"), &["120", "2"]),
        (format!("{import} --vectors nan.npy --items two.jsonl"), &["nan.npy", "row 1"]),
        (format!("{import}x --vectors two.npy --items two.jsonl"), &["l2x"]),
        (
            "gallery import --gallery G.db --space resnet --vectors new-queries.npy --items two.jsonl".into(),
            &["3", "2"],
        ),
        ("gallery export --gallery G.db --space nobody --vectors V.npy".into(), &["nobody", "resnet"]),
        ("gallery put --gallery G.db --id a --vector resnet=[1,2]".into(), &["2", "4"]),
        ("gallery put --gallery G.db --id a --vector nobody=[1,2,3,4]".into(), &["nobody"]),
        ("gallery put --gallery G.db --id a --payload {".into(), &["--payload"]),
        ("gallery delete --gallery G.db".into(), &["id"]),
        ("search --gallery G.db --vectors new-queries.npy".into(), &["6", "4", "resnet"]),
        ("search --gallery G.db --vectors old-queries.npy --space clip".into(), &["resnet", "clip"]),
        ("search --gallery G.db --vectors old-queries.npy -k 0".into(), &["-k"]),
    ];
    let names = place.names();
    for (command, says) in cases {
        let (code, out, error) = code(&place, &words(&command, &[]));
        assert_eq!(code, 2, "{command}: {out}{error}");
        assert_eq!(error.matches("Error:").count(), 1, "{command}: {error}");
        for word in says {
            assert!(error.contains(word), "{command}: {error:?} does not say {word:?}");
        }
        assert_eq!(place.names(), names, "{command} left something behind");
    }
}

#[test]
fn a_gallery_of_a_newer_rehang_is_refused() {
    let place = place();
    // SQLite keeps the number of the form in the 60th byte of the file.
    let mut bytes = fs_err::read(place.path("G.db")).unwrap();
    bytes[63] = 200;
    place.write_bytes("G.db", &bytes);
    let (code, _, error) = code(&place, &upgrade("plan", &[]));
    assert_eq!(code, 2);
    assert!(error.contains("newer rehang"), "{error}");
}

#[test]
fn two_processes_do_not_fill_one_gallery_at_once() {
    let place = place();
    let lock = fs_err::File::create(place.path("G.db.upgrade-lock")).unwrap().into_file();
    lock.lock().unwrap();
    let (code, _, error) = code(&place, &upgrade("start", &[]));
    assert_eq!(code, 2);
    assert!(error.contains("another process"), "{error}");
}

#[test]
fn a_fused_upgrade_finds_what_both_models_know_and_can_be_finished() {
    let place = place();
    place.json(&upgrade("start", &[]));
    place.json(&upgrade("switch", &["--fused"]));
    let search = ["search", "--gallery", "G.db", "--vectors", "new-queries.npy", "--old-vectors"];
    let ids = |found: &serde_json::Value| -> Vec<String> {
        let hits = found["results"][0].as_array().unwrap();
        hits.iter().map(|hit| hit["id"].as_str().unwrap().to_owned()).collect()
    };
    // With nothing native it is the old search.
    let fused = place.json(&[&search[..], &["old-queries.npy", "-k", "5"]].concat());
    let old_place = self::place();
    let old = old_place.json(&["search", "--gallery", "G.db", "--vectors", "old-queries.npy", "-k", "5"]);
    assert_eq!(ids(&fused), ids(&old));
    // An item that only the new model has seen is found all the same.
    let vector: Vec<String> = (0..D_NEW).map(|column| native(0, column).to_string()).collect();
    let vector = format!("clip=[{}]", vector.join(","));
    place.json(&words("gallery put --gallery G.db --id fresh --source x --vector {}", &[&vector]));
    let found = place.json(&[&search[..], &["old-queries.npy", "-k", "5"]].concat());
    assert!(ids(&found).contains(&"fresh".to_owned()), "{found}");
    // Filters speak of the space that serves.
    let adapted =
        place.json(&[&search[..], &["old-queries.npy", "-k", "50", "--provenance", "adapted"]].concat());
    assert_eq!(ids(&adapted).len(), 50);
    // Half of what was asked for is no answer.
    let (missing, _, error) = code(&place, &search[..5]);
    assert_eq!(missing, 2);
    assert!(error.contains("--old-vectors") && error.contains("resnet"), "{error}");
    let (wide, _, error) = code(&place, &[&search[..], &["new-queries.npy"]].concat());
    assert_eq!(wide, 2);
    assert!(error.contains("resnet") && error.contains('6'), "{error}");
    // As many old queries as new ones.
    place.write_matrix("one-query.npy", &Matrix::from_fn(1, D_OLD, native));
    let (wrong, _, error) = code(&place, &[&search[..], &["one-query.npy"]].concat());
    assert_eq!(wrong, 2);
    assert!(error.contains('1') && error.contains('3'), "{error}");
    // With everything native it is the new search, and afterwards the old space is not missed.
    drop(code(&place, &upgrade("run", &[])));
    place.json(&upgrade("finish", &["--anyway"]));
    place.json(&upgrade("finish", &["--anyway"]));
    let after = place.json(&["search", "--gallery", "G.db", "--vectors", "new-queries.npy", "-k", "5"]);
    assert_eq!(after["results"][0][0]["provenance"], "native");
}

#[test]
fn a_search_with_both_queries_uses_those_of_the_model_that_serves() {
    let place = place();
    let search = |queries: &[&str]| {
        place.json(&[&["search", "--gallery", "G.db", "-k", "5"], queries].concat())["results"].clone()
    };
    let (old, new) = (["--vectors", "old-queries.npy"], ["--vectors", "new-queries.npy"]);
    let both = || search(&["--vectors", "new-queries.npy", "--old-vectors", "old-queries.npy"]);
    let before = search(&old);
    assert_eq!(both(), before, "before the upgrade");
    place.json(&upgrade("start", &[]));
    assert_eq!(both(), before, "before the switch");
    place.json(&upgrade("switch", &[]));
    assert_eq!(both(), search(&new));
    place.json(&upgrade("rollback", &[]));
    assert_eq!(both(), before, "after the rollback");
    // The width that counts is that of the queries that are used.
    let (wrong, _, error) = code(
        &place,
        &["search", "--gallery", "G.db", "--vectors", "old-queries.npy", "--old-vectors", "new-queries.npy"],
    );
    assert_eq!(wrong, 2);
    assert!(error.contains("new-queries.npy") && error.contains('6') && error.contains('4'), "{error}");
}

#[test]
fn a_damaged_vector_stops_no_upgrade() {
    let place = place();
    // As plain SQL may leave it: NaN where item 77 has its old vector. No other item has that one.
    let vector: Vec<u8> = (0..D_OLD).flat_map(|column| native(77, column).to_le_bytes()).collect();
    let mut bytes = fs_err::read(place.path("G.db")).unwrap();
    let at = bytes.windows(vector.len()).position(|window| window == vector).unwrap();
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    place.write_bytes("G.db", &bytes);
    place.json(&upgrade("plan", &[]));
    let started = place.json(&upgrade("start", &[]));
    assert_eq!((started["adapted"].as_u64(), started["lacking"].as_u64()), (Some(119), Some(1)));
    // The item lacks a vector in the new space, so it is the first to be embedded.
    place.json(&upgrade("run", &["--budget", "1"]));
    let store = SqliteStore::open(place.path("G.db")).unwrap();
    let key = store.get(&["i77"]).unwrap()[0].as_ref().unwrap().key;
    assert_eq!(store.provenances("clip", &[key]).unwrap(), [Some(Provenance::Native)]);
}

#[test]
fn vectors_are_told_by_the_encoders_of_a_configuration() {
    let place = place();
    let identify = |more: &[&str]| {
        let (code, out, error) =
            code(&place, &[&["identify", "--config", "rehang.toml", "--json"], more].concat());
        let found: serde_json::Value = serde_json::from_str(&out).expect(&error);
        (code, found)
    };
    // The old vectors of this gallery are the first coordinates of the new model's. Two items are not in its
    // table, one has no source.
    let (code, found) = identify(&[]);
    assert_eq!(
        (code, found["origin"].as_str(), found["compared"].as_u64()),
        (0, Some("one-model"), Some(117))
    );
    assert_eq!(found["models"][0]["changes"], serde_json::json!(["cut to the first 4 of 6 coordinates"]));
    assert_eq!(found["spent"]["items"], 119);
    let (_, text, _) = self::code(&place, &["identify", "--config", "rehang.toml"]);
    assert!(
        text.contains("All 117 vectors are of \"clip\"") && text.contains("in 95 of 100 cases"),
        "{text}"
    );
    place.write_matrix("another.npy", &Matrix::from_fn(1, D_OLD, |_, column| [9.0, 0.0, 7.0, -1.0][column]));
    let put = ["gallery", "put", "--gallery", "G.db", "--id", "i3", "--vector", "resnet=another.npy"];
    place.json(&put);
    let (code, found) = identify(&["-o", "others.tsv"]);
    assert_eq!((code, found["origin"].as_str()), (1, Some("mixed")));
    assert_eq!(found["others"].as_array().map(Vec::len), Some(1));
    assert_eq!(found["others"][0][0], "i3");
    assert!(fs_err::read_to_string(place.path("others.tsv")).unwrap().starts_with("i3\t"));
    // Vectors alone say nothing of so few items without asking the model. A space has to be there.
    let (code, found) = identify(&["--items", "0"]);
    assert_eq!((code, found["origin"].as_str(), found["by"].as_str()), (1, Some("unknown"), Some("vectors")));
    let (code, _, error) = self::code(&place, &["identify", "--config", "rehang.toml", "--space", "clip"]);
    assert!(code == 2 && error.contains("clip"), "{error}");
}

#[test]
fn a_doctor_checks_the_configuration_too() {
    let place = place();
    let findings = |config: &str| -> Vec<String> {
        place.write_bytes("checked.toml", config.as_bytes());
        let doctor = ["doctor", "--gallery", "G.db", "--config", "checked.toml", "--json"];
        let (code, out, error) = code(&place, &doctor);
        let report: serde_json::Value = serde_json::from_str(&out).expect(&error);
        let findings = report["findings"].as_array().unwrap().iter();
        let of_configuration: Vec<_> =
            findings.filter(|finding| finding["what"] == "configuration").collect();
        assert!(of_configuration.iter().all(|finding| code == 1 && finding["bad"] == true), "{out}");
        of_configuration.iter().map(|finding| finding["text"].as_str().unwrap().to_owned()).collect()
    };
    let says = |config: &str, words: &[&str]| {
        let findings = findings(config);
        assert_eq!(findings.len(), 1, "{config}: {findings:?}");
        for word in words {
            assert!(findings[0].contains(word), "{findings:?} does not say {word:?}");
        }
    };
    let mut other = adapter(D_OLD, D_NEW);
    other.map.mixer[0].bias = vec![0.5; D_NEW];
    rehang_files::adapter_file::save(&other, place.path("other.safetensors")).unwrap();
    let other = config("adapter.safetensors => other.safetensors");
    let good = config("");
    // Configurations of another gallery, and of an upgrade that could not begin.
    says(&config("path = \"G.db\" => path = \"H.db\""), &["checked.toml", "H.db", "G.db"]);
    says(&config("name = \"resnet\" => name = \"vgg\""), &["vgg", "resnet"]);
    // Encoders that do not open, or make vectors of another width.
    says(
        &config("vectors = \"new.npy\" => vectors = \"none.npy\""),
        &["checked.toml", "[encoder]", "none.npy"],
    );
    says(&config("vectors = \"new.npy\" => vectors = \"old.npy\""), &["[encoder]", "4", "6"]);
    let table = "[old.encoder]\nkind = \"table\"\nvectors = \"old.npy\"\n";
    says(&(good.clone() + table), &["checked.toml: [old.encoder]: kind cannot be", "no query"]);
    assert!(findings(&good).is_empty() && findings(&other).is_empty());
    // While an upgrade is live it has to be that one, and afterwards any that could begin.
    place.json(&upgrade("start", &[]));
    assert!(findings(&good).is_empty());
    says(&other, &["another adapter", "`rehang upgrade start`"]);
    says(&config("name = \"clip\" => name = \"third\""), &["another upgrade"]);
    // The encoder's fingerprint is another one than that of the natives: the run decides by their vectors.
    place.json(&upgrade("run", &["--budget", "3"]));
    place.write_matrix(
        "renewed.npy",
        &Matrix::from_fn(ITEMS - 2, D_NEW, |row, column| native(row, column) + 1.0),
    );
    place
        .write_bytes("checked.toml", config("vectors = \"new.npy\" => vectors = \"renewed.npy\"").as_bytes());
    let (_, out, _) = code(&place, &["doctor", "--config", "checked.toml"]);
    assert!(out.contains("· checked.toml: [encoder] is not the one that filled"), "{out}");
    assert!(out.contains("gives 0 of 3 vectors of it again") && out.contains("rehang identify"), "{out}");
    place.json(&upgrade("rollback", &[]));
    assert!(findings(&other).is_empty());
    place.json(&upgrade("switch", &[]));
    place.json(&upgrade("finish", &["--anyway"]));
    assert!(findings(&good).is_empty(), "it is done");
    says(&other, &["finished", "\"clip\" as [old]"]);
}

#[test]
fn a_start_by_mistake_leaves_a_way_out() {
    let place = place();
    place.write_matrix("two.npy", &Matrix::from_fn(2, 3, |row, column| (row + column) as f32));
    place.write_bytes("two.jsonl", b"{\"id\": \"a\"}\n{\"id\": \"b\"}\n");
    place.json(&words(
        "gallery import --gallery G.db --space other --vectors two.npy --items two.jsonl \
         --distance l2",
        &[],
    ));
    // The name of the new space is taken by one of another kind: nothing begins.
    place.write_bytes("taken.toml", config("name = \"clip\" => name = \"other\"").as_bytes());
    for verb in ["plan", "start"] {
        let (taken, _, error) = code(&place, &["upgrade", verb, "--config", "taken.toml"]);
        assert_eq!(taken, 2);
        assert!(error.contains("other"), "{error}");
    }
    place.json(&upgrade("start", &[]));
    // A second name, after the first was rolled back.
    // The two items of the other space have no old vector, which is said.
    assert_eq!(code(&place, &upgrade("rollback", &[])).0, 1);
    place.write_bytes("second.toml", config("name = \"clip\" => name = \"clip2\"").as_bytes());
    place.json(&["upgrade", "start", "--config", "second.toml"]);
}

#[test]
fn an_import_never_removes_what_others_paid_for() {
    let place = place();
    place.json(&upgrade("start", &[]));
    place.json(&upgrade("run", &["--budget", "30"]));
    let again = [
        "gallery",
        "import",
        "--gallery",
        "G.db",
        "--space",
        "resnet",
        "--vectors",
        "old.npy",
        "--items",
        "items.jsonl",
        "--distance",
        "l2",
    ];
    let (refused, _, error) = code(&place, &again);
    assert_eq!(refused, 2);
    assert!(error.contains("120 vectors of clip"), "{error}");
    let store = SqliteStore::open(place.path("G.db")).unwrap();
    assert_eq!(store.counts("clip").unwrap().native, 30);
}

const IMPORT: [&str; 11] = [
    "gallery",
    "import",
    "--space",
    "resnet",
    "--vectors",
    "old.npy",
    "--items",
    "items.jsonl",
    "--distance",
    "l2",
    "--gallery",
];

#[test]
fn a_new_gallery_takes_nothing_from_an_old_one_of_its_name() {
    let place = place();
    // A log whose gallery is gone, which is not ours to remove.
    let log = fs_err::read(place.path("G.db")).unwrap();
    place.write_bytes("N.db-wal", &log);
    let names = place.names();
    let import = [&IMPORT[..], &["N.db"]].concat();
    let (refused, _, error) = code(&place, &import);
    assert_eq!(refused, 2);
    assert!(error.contains("N.db-wal"), "{error}");
    assert_eq!(place.names(), names);
    assert_eq!(fs_err::read(place.path("N.db-wal")).unwrap(), log);
    fs_err::remove_file(place.path("N.db-wal")).unwrap();
    place.json(&import);
    let info = place.json(&["gallery", "info", "--gallery", "N.db"]);
    assert_eq!(info["spaces"][0]["counts"]["old"], 120);
    assert_eq!(place.names().iter().filter(|name| name.starts_with(".N.db")).count(), 0);
}

/// The import reads its items twice, before and after it looks whether the gallery is there. Each time it
/// waits at a pipe, so that the gallery comes exactly in between.
#[cfg(unix)]
#[test]
fn a_gallery_that_comes_during_an_import_is_untouched() {
    use std::process::{Command, Stdio};

    let place = place();
    let items = fs_err::read(place.path("items.jsonl")).unwrap();
    fs_err::remove_file(place.path("items.jsonl")).unwrap();
    for pipe in ["items.jsonl", "second-pipe"] {
        assert!(Command::new("mkfifo").arg(place.path(pipe)).status().unwrap().success());
    }
    let import = Command::new(env!("CARGO_BIN_EXE_rehang"))
        .args(IMPORT)
        .arg(place.path("N.db"))
        .current_dir(place.path("."))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Opening a pipe waits for whoever reads it.
    let open = || fs_err::OpenOptions::new().write(true).open(place.path("items.jsonl")).unwrap();
    let mut first = open();
    fs_err::rename(place.path("second-pipe"), place.path("items.jsonl")).unwrap();
    first.write_all(&items).unwrap();
    drop(first);
    let mut second = open();
    // Somebody else's gallery, at work: its writes lie in its log only.
    let theirs = SqliteStore::create(place.path("N.db")).unwrap();
    theirs.create_space(&Space::new("theirs", 2, Distance::L2, false), rehang_core::Provenance::Old).unwrap();
    let log = fs_err::read(place.path("N.db-wal")).unwrap();
    assert!(!log.is_empty());
    second.write_all(&items).unwrap();
    drop(second);

    let output = import.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("N.db") && error.contains("during this import"), "{error}");
    assert_eq!(fs_err::read(place.path("N.db-wal")).unwrap(), log);
    drop(theirs);
    let theirs = SqliteStore::open(place.path("N.db")).unwrap();
    assert_eq!(theirs.spaces().unwrap()[0].space.name, "theirs");
    assert!(!place.names().iter().any(|name| name.contains("partial")), "{:?}", place.names());
}

/// Two requests are answered only once both are there, so requests that went one after the other would get no
/// answer. The very first one goes alone.
#[test]
fn requests_are_under_way_together_unless_somebody_says_otherwise() {
    use std::io::{BufRead, BufReader, Read};
    use std::net::{TcpListener, TcpStream};

    fn texts(stream: &TcpStream) -> Vec<String> {
        let mut reader = BufReader::new(stream);
        let (mut line, mut length) = (String::new(), 0);
        while reader.read_line(&mut line).unwrap() > 2 {
            let header = line.to_ascii_lowercase();
            if let Some(value) = header.strip_prefix("content-length: ") {
                length = value.trim().parse().unwrap();
            }
            line.clear();
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        body["input"].as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
    }

    let place = place();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let encoder = format!(
        "kind = \"http\"\nurl = \"http://{}\"\nmodel = \"m\"\nattempts = 1\ntimeout_seconds = 20\n",
        listener.local_addr().unwrap()
    );
    let text = config("")
        .replace("kind = \"table\"\nvectors = \"new.npy\"\nids = \"ids.txt\"\n", &encoder)
        .replace("[run]\nbatch = 8\nworkers = 2\n", "");
    place.write_bytes("rehang.toml", text.as_bytes());
    place.json(&upgrade("start", &[]));
    let answer_together = move |count: usize| {
        let streams: Vec<TcpStream> = (0..count).map(|_| listener.accept().unwrap().0).collect();
        let asked: Vec<Vec<String>> = streams.iter().map(texts).collect();
        for (mut stream, texts) in streams.iter().zip(&asked) {
            let vectors = (0..texts.len())
                .map(|index| serde_json::json!({ "index": index, "embedding": [1, 2, 3, 4, 5, 6] }))
                .collect::<Vec<_>>();
            let body = serde_json::json!({ "data": vectors }).to_string();
            let length = body.len();
            write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}")
                .unwrap();
        }
        asked.into_iter().flatten().collect::<Vec<_>>()
    };
    let service = std::thread::spawn(move || [1, 2, 1, 2].map(&answer_together));
    // A plan measures what a run does.
    let plan = place.json(&upgrade("plan", &["--probe", "200"]));
    assert_eq!((&plan["estimate"]["probed_items"], &plan["estimate"]["failed"]), (&119.into(), &0.into()));
    let run = place.json(&upgrade("run", &[]));
    assert_eq!(run["native"], 119);
    for call in service.join().unwrap().chunks(2) {
        let texts: Vec<&String> = call.iter().flatten().collect();
        let different: std::collections::BTreeSet<_> = texts.iter().collect();
        assert_eq!(different.len(), 119);
        assert!(texts.len() <= 119 + 2, "beside the text that rides along, a request was only sent again");
    }
}

#[test]
fn natives_that_nothing_vouched_for_are_named_until_a_run_compares_them() {
    let place = place();
    for (verb, more) in [("start", &[][..]), ("switch", &["--fused"][..]), ("run", &["--budget", "16"][..])] {
        code(&place, &upgrade(verb, more));
    }
    let said = |expected: u64| {
        let json = |arguments: &[&str]| -> serde_json::Value {
            serde_json::from_str(&code(&place, arguments).1).unwrap()
        };
        assert_eq!(json(&upgrade("status", &["--json"]))["unvouched"], expected);
        let doctor = json(&["doctor", "--gallery", "G.db", "--json"]);
        let found = doctor["findings"].as_array().unwrap().iter();
        let found: Vec<String> =
            found.filter(|finding| finding["what"] == "unvouched").map(ToString::to_string).collect();
        let (_, text, _) = code(&place, &upgrade("status", &[]));
        (text, found)
    };
    let (text, found) = said(0);
    assert!(!text.contains("compared with itself") && found.is_empty(), "{text} {found:?}");
    let ids = {
        let store = SqliteStore::open(place.path("G.db")).unwrap();
        let native = Scan::new("clip", Select::Provenance(Provenance::Native), 16);
        let ids: Vec<String> =
            store.scan(&native).unwrap().into_iter().map(|record| record.item.id).collect();
        let kept = serde_json::json!({"items": 12, "ids": ids[..2]});
        store.set_document("unvouched of clip", None, &kept.to_string()).unwrap();
        ids
    };
    assert_eq!(ids.len(), 16);
    let (text, found) = said(12);
    let words = "after 12 native items the encoder could not be compared with itself; the next `rehang upgrade run` compares them first";
    assert!(text.contains(words), "{text}");
    assert!(found[0].contains("12 native items were kept") && found[0].contains("the next run"), "{found:?}");
    code(&place, &upgrade("run", &["--budget", "1"]));
    let (text, found) = said(0);
    assert!(!text.contains("compared with itself") && found.is_empty(), "{text} {found:?}");
}

#[test]
fn what_an_upgrade_left_behind_can_be_dropped() {
    let place = place();
    let drop_space =
        |name: &str| code(&place, &["gallery", "drop-space", "--gallery", "G.db", "--space", name, "--json"]);
    let forgotten = || {
        let report: serde_json::Value =
            serde_json::from_str(&code(&place, &["doctor", "--gallery", "G.db", "--json"]).1).unwrap();
        let findings = report["findings"].as_array().unwrap().clone();
        findings.into_iter().find(|finding| finding["what"] == "forgotten-space")
    };
    let (refused, _, error) = drop_space("resnet");
    assert_eq!(refused, 2);
    assert!(error.contains("resnet") && error.contains("serving"), "{error}");
    place.json(&upgrade("start", &[]));
    assert_eq!(forgotten(), None);
    // Rolled back and given up for another one: the space of the first stays behind.
    place.json(&upgrade("rollback", &[]));
    place.write_bytes("second.toml", config("name = \"clip\" => name = \"clip2\"").as_bytes());
    place.json(&["upgrade", "start", "--config", "second.toml"]);
    let finding = forgotten().unwrap();
    assert_eq!(finding["bad"], true);
    let text = finding["text"].as_str().unwrap();
    assert!(text.contains("\"clip\"") && text.contains("rehang gallery drop-space"), "{text}");

    for (name, says) in [("resnet", "upgrade"), ("clip2", "upgrade"), ("nobody", "resnet")] {
        let (refused, _, error) = drop_space(name);
        assert_eq!(refused, 2, "{name}");
        assert!(error.contains(name) && error.contains(says), "{error}");
    }
    let (done, out, error) = drop_space("clip");
    assert_eq!(done, 0, "{error}");
    let dropped: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&dropped["dropped"], &dropped["vectors"]), (&"clip".into(), &120.into()));
    assert_eq!(forgotten(), None);
    let info = place.json(&["gallery", "info", "--gallery", "G.db"]);
    let names: Vec<&str> = info["spaces"]
        .as_array()
        .unwrap()
        .iter()
        .map(|space| space["space"]["model"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["resnet", "clip2"]);
    // The upgrade that is under way goes on.
    place.json(&["upgrade", "switch", "--config", "second.toml"]);
    assert_eq!(drop_space("resnet").0, 2, "a way back is left until it is finished");
}

/// The new model was trained to be compatible: it searches old vectors as they are, and its head says which
/// to re-embed first.
#[test]
fn a_compatible_model_needs_no_adapter() {
    let place = Place::new();
    // Two classes apart on the first axis, and at the end items between them, about which the head is in
    // doubt.
    let old = Matrix::from_fn(ITEMS, D_OLD, |row, column| match (column, row >= ITEMS - 12) {
        (0, true) => 0.01 * (row % 3) as f32,
        (0, false) => {
            if row % 2 == 0 {
                3.0
            } else {
                -3.0
            }
        }
        _ => native(row, column) / 50.0,
    });
    let new =
        Matrix::from_fn(ITEMS, D_OLD, |row, column| old.row(row)[column] + 0.02 * native(row + 1, column));
    place.write_matrix("old.npy", &old);
    place.write_matrix("new.npy", &new);
    place.write_matrix(
        "head.npy",
        &Matrix::from_fn(2, D_OLD, |class, column| match (class, column) {
            (0, 0) => 2.0,
            (1, 0) => -2.0,
            _ => 0.0,
        }),
    );
    let (mut items, mut ids) = (String::new(), String::new());
    for row in 0..ITEMS {
        writeln!(items, r#"{{"id": "i{row}", "source": "text {row}"}}"#).unwrap();
        writeln!(ids, "i{row}").unwrap();
    }
    place.write_bytes("items.jsonl", items.as_bytes());
    place.write_bytes("ids.txt", ids.as_bytes());
    let import =
        "gallery import --gallery G.db --space v1 --vectors old.npy --items items.jsonl --distance cosine";
    place.json(&words(import, &[]));
    let init = "init --gallery G.db --new-name v2";
    let written = place.json(&words(init, &[]));
    assert_eq!(
        (written["new"]["model"].as_str(), written["new"]["dimension"].as_u64()),
        (Some("v2"), Some(4))
    );
    let (status, _, said) = code(&place, &["init", "--gallery", "G.db", "--out", "other.toml"]);
    assert!(status == 2 && said.contains("--adapter"), "{said}");

    let text = fs_err::read_to_string(place.path("rehang.toml")).unwrap();
    assert!(text.contains("No [adapter]"), "{text}");
    let with = |text: &str, from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        text.replacen(from, to, 1)
    };
    let text = with(&text, "# [head]\n# weight = \"head-weight.npy\"", "[head]\nweight = \"head.npy\"");
    let text = with(&text, "policy = \"auto\"", "policy = \"entropy\"");
    let text = format!("{text}\n[encoder]\nkind = \"table\"\nvectors = \"new.npy\"\nids = \"ids.txt\"\n");
    place.write_bytes("rehang.toml", text.as_bytes());
    place.json(&upgrade("start", &[]));
    place.json(&upgrade("switch", &[]));
    // The new model's queries find the old vectors as they are.
    place.write_matrix("query.npy", &Matrix::from_fn(1, D_OLD, |_, column| new.row(7)[column]));
    let found = place.json(&["search", "--gallery", "G.db", "--vectors", "query.npy", "-k", "3"]);
    assert_eq!(
        (found["space"].as_str(), found["results"][0][0]["provenance"].as_str()),
        (Some("v2"), Some("adapted"))
    );
    let run = place.json(&upgrade("run", &["--budget", "12"]));
    assert!(run["sigma"].is_null(), "nothing was predicted of any item");
    let store = SqliteStore::open(place.path("G.db")).unwrap();
    let natives = Scan::new("v2", Select::Provenance(Provenance::Native), ITEMS);
    let mut first: Vec<String> =
        store.scan(&natives).unwrap().into_iter().map(|record| record.item.id).collect();
    first.sort();
    let mut doubtful: Vec<String> = (ITEMS - 12..ITEMS).map(|row| format!("i{row}")).collect();
    doubtful.sort();
    assert_eq!(first, doubtful, "those that the head is in doubt about");
    drop(store);
    let run = place.json(&upgrade("run", &[]));
    assert_eq!(run["native"], ITEMS);

    // Beside an adapter, which brings its own, a head is refused; so are vectors of another width.
    for (change, says) in [
        ("[head]\n => [adapter]\nfile = \"a.safetensors\"\n[head]\n", "[head]"),
        ("name = \"v2\"\ndimension = 4 => name = \"v2\"\ndimension = 5", "an adapter"),
        ("weight = \"head.npy\" => weight = \"nowhere.npy\"", "[head]"),
    ] {
        let (from, to) = change.split_once(" => ").unwrap();
        place.write_bytes("wrong.toml", with(&text, from, to).as_bytes());
        let (status, _, said) = code(&place, &["upgrade", "plan", "--config", "wrong.toml"]);
        assert!(status == 2 && said.contains(says), "{change}: {said}");
    }
}

#[test]
fn a_first_configuration_is_written_from_gallery_and_adapter_and_never_replaced() {
    let place = place();
    let init = ["init", "--gallery", "G.db", "--adapter", "adapter.safetensors", "--out", "first.toml"];
    let (same, _, error) = code(&place, &[&init[..], &["--new-name", "resnet"]].concat());
    assert_eq!(same, 2);
    assert!(error.contains("--new-name"), "{error}");
    let written = place.json(&[&init[..], &["--new-name", "clip"]].concat());
    assert_eq!(
        (written["old"]["model"].as_str(), written["new"]["model"].as_str()),
        (Some("resnet"), Some("clip"))
    );
    let before = place.text("first.toml");
    let (again, _, error) = code(&place, &init);
    assert_eq!(again, 2);
    assert!(error.contains("there already"), "{error}");
    assert_eq!(place.text("first.toml"), before);
    // The configuration is enough for an upgrade but for its backfill, and names the gallery for the other
    // verbs.
    place.json(&["upgrade", "plan", "--config", "first.toml"]);
    place.json(&["upgrade", "start", "--config", "first.toml"]);
    let found = place.json(&["search", "--config", "first.toml", "--vectors", "old-queries.npy", "-k", "3"]);
    assert_eq!(found["results"].as_array().map(Vec::len), Some(3));
    place.json(&["doctor", "--config", "first.toml"]);
    let (run, _, error) = code(&place, &["upgrade", "run", "--config", "first.toml"]);
    assert_eq!(run, 2);
    assert!(error.contains("[encoder]"), "{error}");
}

/// Vectors that know their items are never given to others.
#[test]
#[cfg(feature = "parquet")]
fn ids_beside_the_vectors_of_an_import_are_those_of_the_items_or_refused() {
    use rehang_files::Ids;
    use rehang_files::stream::{self, Columns, IdKind};

    let place = Place::new();
    let columns = Columns { ids: Some(IdKind::Integer), ..Columns::vectors(2) };
    let mut file = stream::create(place.path("vectors.parquet"), columns).unwrap();
    file.write(&[1.0, 0.0, 2.0, 0.0, 3.0, 0.0], Some(&Ids::Integers(vec![7, 8, 9])), None).unwrap();
    file.commit().unwrap();
    let import = words(
        "gallery import --gallery G.db --space old --distance l2 --vectors vectors.parquet --items items.jsonl",
        &[],
    );
    place.write_bytes("items.jsonl", b"{\"id\": 9}\n{\"id\": \"8\"}\n{\"id\": \"7\"}\n");
    let (refused, _, error) = code(&place, &import);
    assert_eq!(refused, 2);
    assert!(error.contains("vectors.parquet") && error.contains("row 0 (\"7\" and \"9\""), "{error}");
    assert!(!place.path("G.db").exists());
    place.write_bytes("items.jsonl", b"{\"_id\": 7}\n{\"id\": \"8\"}\n{\"_id\": \"9\"}\n");
    assert_eq!(place.json(&import)["items"], 3);
    let store = SqliteStore::open(place.path("G.db")).unwrap();
    let item = store.get(&["9"]).unwrap().remove(0).unwrap();
    assert_eq!(store.vectors("old", &[item.key]).unwrap().remove(0).unwrap().vector, [3.0, 0.0]);
}
