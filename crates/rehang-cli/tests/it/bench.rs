//! Comparison of models, asked of services as an operator asks it, and the upgrade that follows.

use std::path::Path;
use std::process::Command;

use rehang_files::VectorSource;
use serde_json::{Value, json};

use crate::auto::{noisy, read};
use crate::clicks::{ASKED, ITEMS, clicked, csv, service, service_beside, twin};
use crate::common::{Place, demo};
use crate::stub::{Reply, Seen};

const WIDTH: usize = 32;
const OF: u64 = 4_000_000;

fn models(url: &str) -> String {
    let model = |name: &str, model: &str, keys: &str, encoder: &str| {
        format!(
            "[[model]]\nname = {name:?}\ndistance = \"cosine\"\n{keys}\n[model.encoder]\nkind = \"http\"\nurl = \"{url}\"\n\
             model = \"{model}\"\nrevision = \"1\"\n{encoder}\n\n"
        )
    };
    let width = format!("dimension = {WIDTH}");
    [
        model("first", "first", &width, "price_per_million_tokens = 0.01"),
        model("second", "second", &width, "price_per_million_tokens = 3.0"),
        model("the \"same\"", "second", "", "price_per_million_tokens = 0.5\ndimensions = 32"),
        model("gone", "second", &width, "attempts = 1").replace(url, "http://127.0.0.1:1"),
    ]
    .concat()
}

fn place(url: &str) -> Place {
    let place = Place::new();
    let rows: Vec<usize> = (0..ITEMS).collect();
    place.write_matrix("first.npy", &noisy().select(&rows));
    let group = |row: usize| if row.is_multiple_of(4) { "da" } else { "sv" };
    let items = rows.iter().map(|&row| json!({"id": format!("i{row}"), "source": format!("row:{row}"), "payload": {"language": group(row)}}));
    let items: String = items.map(|item| format!("{item}\n")).collect();
    place.write_bytes("items.jsonl", items.as_bytes());
    place.write_bytes("models.toml", models(url).as_bytes());
    place
}

#[test]
fn an_operator_learns_which_model_to_take_and_goes_on_with_it() {
    let stub = service();
    let place = place(&stub.url);
    let clicks = clicked();
    place.write_bytes("clicks.csv", csv(&clicks).as_bytes());
    let of = OF.to_string();
    let bench = [
        "bench",
        "--models",
        "models.toml",
        "--items",
        "items.jsonl",
        "--clicks",
        "clicks.csv",
        "--group",
        "language",
        "--of",
        &of,
    ];
    let output = place.run(&[&bench[..], &["--json"]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "one of them is gone: {said}");
    let compared: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&compared["judged_by"], &compared["metric"]), (&json!("clicks"), &json!("ndcg@10")));
    assert_eq!((&compared["documents"], &compared["counted"]), (&json!(ITEMS), &json!(ASKED.len())));
    assert!(said.contains(&format!("{} clicks are of no document", ASKED.len())), "{said}");
    let (rows, items): (Vec<usize>, Vec<usize>) = (ASKED.collect(), (0..ITEMS).collect());
    let models = compared["models"].as_array().unwrap();
    for (place, vectors, price) in [(0, noisy(), 0.01), (1, read("new.npy"), 3.0), (2, read("new.npy"), 0.5)]
    {
        let measured = &models[place]["measured"];
        let number = |value: &Value| value.as_f64().unwrap();
        let expected = twin(&vectors.select(&items), &vectors.select(&rows), &clicks);
        assert!((number(&measured["score"]["estimate"]) - expected).abs() < 1e-6, "{measured} {expected}");
        // The service counts a token a character; what it is asked to be compared with itself comes on top.
        let own: usize = items.iter().map(|row| format!("row:{row}").len()).sum();
        let tokens = number(&measured["cost"]["tokens"]);
        let whole = own as f64 / ITEMS as f64 * OF as f64;
        assert!(tokens >= whole && tokens < 1.2 * whole, "{tokens} {whole}");
        assert!((number(&measured["cost"]["money"]) / (tokens * price / 1e6) - 1.0).abs() < 1e-6);
        assert_eq!(measured["storage"], json!({"f32": 4 * 32 * OF, "f16": 2 * 32 * OF}));
        let groups = measured["groups"].as_array().unwrap();
        let asked: u64 = groups.iter().map(|group| group["queries"].as_u64().unwrap()).sum();
        assert_eq!((groups.len(), asked), (2, ASKED.len() as u64));
    }
    assert!(models[3]["fault"].as_str().unwrap().contains("127.0.0.1:1"), "{}", models[3]);
    let choice = &compared["choice"];
    assert_eq!((&choice["best"], &choice["name"]), (&json!("second"), &json!("the \"same\"")));
    assert_eq!(choice["cheaper_by"], "price");

    let output = place.run(&bench);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("gone failed: ") && said.contains("the \"same\" is level with second"), "{said}");
    // The commands at the end of the text are carried out as they stand.
    let (line, encoder) = said.split_once("Next: ").unwrap().1.split_once("\nand in rehang.toml").unwrap();
    assert_eq!(
        line,
        "rehang init --gallery GALLERY --new-name 'the \"same\"' --new-dimension 32 --new-distance cosine"
    );
    place.finish(&[
        "gallery",
        "import",
        "--gallery",
        "G.db",
        "--space",
        "first",
        "--vectors",
        "first.npy",
        "--items",
        "items.jsonl",
        "--distance",
        "cosine",
    ]);
    place.finish(&["init", "--gallery", "G.db", "--new-name", "the \"same\"", "--new-dimension", "32"]);
    let config = fs_err::read_to_string(place.path("rehang.toml")).unwrap();
    let encoder = encoder.split_once("\n\n").unwrap().1;
    place.write_bytes("rehang.toml", format!("{config}\n{encoder}").as_bytes());
    let plan = place.json(&["upgrade", "plan", "--probe", "8"]);
    assert!(plan["estimate"]["money"].as_f64().unwrap() > 0.0, "{plan}");
}

/// Nobody has searched yet: a language model writes a query for each of some documents, and these queries
/// judge.
#[test]
fn queries_that_a_language_model_writes_judge_the_models() {
    let Some(python) = std::env::var_os("REHANG_PYTHON") else { return };
    let classes = rehang_files::read_labels(&VectorSource::path(demo("label.npy"))).unwrap();
    let stub = service_beside(move |seen| {
        let document = seen.body["messages"][1]["content"].as_str()?;
        assert!(seen.path.ends_with("/v1/chat/completions") && seen.body["model"] == "writer", "{seen:?}");
        if seen.authorization.as_deref() != Some("Bearer secret") {
            return Some(Reply::Status(401, Vec::new(), "no such key".into()));
        }
        let row: usize = document.strip_prefix("row:").unwrap().parse().unwrap();
        // One document gets none; of the others, each asks as another item of its class.
        let alike: Vec<usize> = ASKED.filter(|&asked| classes[asked] == classes[row]).collect();
        let query =
            if row % 50 == 3 { String::new() } else { format!("\"row:{}\" ", alike[row % alike.len()]) };
        let said = json!({"choices": [{"message": {"role": "assistant", "content": query}}]});
        Some(Reply::Body(said.to_string()))
    });
    let place = place(&stub.url);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/ask-for-queries.py");
    let ask = |key: &str| {
        let url = format!("{}/v1", stub.url);
        Command::new(&python)
            .arg(&script)
            .args(["--items", "items.jsonl", "--url", &url, "--model", "writer", "--out", "clicks.csv"])
            .args(["--sample", "2000", "--key-env", "WRITER_KEY"])
            .env("WRITER_KEY", key)
            .current_dir(place.path("."))
            .output()
            .unwrap()
    };
    let refused = ask("wrong");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("401: no such key") && !place.path("clicks.csv").exists(), "{said}");
    assert_eq!(stub.seen().len(), 1, "a service that refuses is asked once");

    let asked = ask("secret");
    assert_eq!(asked.status.code(), Some(1), "{}", String::from_utf8_lossy(&asked.stderr));
    let none = (0..ITEMS).filter(|row| row % 50 == 3).count();
    let said = String::from_utf8_lossy(&asked.stdout);
    assert!(said.contains(&format!("{} queries of {ITEMS} documents", ITEMS - none)), "{said}");
    let clicks = fs_err::read_to_string(place.path("clicks.csv")).unwrap();
    assert_eq!(clicks.lines().count(), 1 + ITEMS - none);
    let bench =
        ["bench", "--models", "models.toml", "--items", "items.jsonl", "--clicks", "clicks.csv", "--json"];
    let output = place.run(&bench);
    let compared: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&compared["judged_by"], &compared["choice"]["best"]), (&json!("clicks"), &json!("second")));
}

#[test]
fn a_sample_holds_what_was_clicked_and_queries_of_a_file_ask_with_the_words_of_queries() {
    let stub = service();
    let place = place(&stub.url);
    let models = models(&stub.url);
    let first = models.split("[[model]]").nth(1).unwrap();
    place.write_bytes("one.toml", format!("[[model]]{first}query_prefix = \"row:7\"\n").as_bytes());
    place.write_bytes(
        "queries.jsonl",
        b"{\"id\": \"q1\", \"text\": \"01\"}\n{\"id\": \"q2\", \"text\": \"02\"}\n{\"text\": \"03\"}\n",
    );
    place.write_bytes("clicks.csv", b"query,item,weight\nq1,i701,1\nq2,i702,1\nq2,i11,0.5\n");
    let bench = |more: &[&str]| {
        let all = ["bench", "--models", "one.toml", "--items", "items.jsonl", "--queries", "queries.jsonl"];
        place.json(&[&all[..], more].concat())
    };
    let compared = bench(&["--clicks", "clicks.csv", "--sample", "10"]);
    assert_eq!((&compared["documents"], &compared["of"]), (&json!(10), &json!(ITEMS)));
    assert_eq!((&compared["queries"], &compared["counted"]), (&json!(2), &json!(2)), "one has no click");
    let texts: Vec<String> = stub.seen().iter().flat_map(Seen::texts).collect();
    let is_asked = |text: &str| texts.iter().any(|asked| asked == text);
    assert!(["row:701", "row:702", "row:11"].iter().all(|text| is_asked(text)), "{texts:?}");
    // The prefix `row:7` and the text `01` make `row:701`, so a document's own vector asks.
    let ndcg = |value: &Value| value["models"][0]["measured"]["metrics"]["top1"].as_f64().unwrap();
    assert_eq!(ndcg(&compared), 100.0);
    assert!(!is_asked("row:703"));
    let alone = bench(&["--sample", "2", "--clicks", "clicks.csv"]);
    assert_eq!(alone["documents"], 3, "all that was clicked, though it is more");
    // Without clicks nothing judges.
    let agreement = bench(&["--sample", "40"]);
    assert_eq!((&agreement["judged_by"], &agreement["queries"]), (&json!("first-model"), &json!(3)));
    assert_eq!(agreement["choice"], Value::Null);
}
