//! Searching as people do, by texts and images: the query is embedded by the models that the stage of the
//! upgrade needs.

use std::collections::BTreeMap;
use std::path::Path;

use rehang_core::Matrix;
use serde_json::{Value, json};

use crate::common::upgrade::{self, IMPORT, configure};
use crate::common::{Place, words};
use crate::stub::{Reply, Stub, good_of};

const ITEMS: usize = 40;
const D_OLD: usize = 3;
const D_NEW: usize = 5;

const DISHES: [&str; 5] = ["lentil soup", "apple pie", "rye bread", "mushroom risotto", "plum cake"];

fn text(number: usize) -> String {
    format!("a recipe of {}, as it was written down\nin book {number}", DISHES[number % 5])
}

/// Embeds by the new model: how often each of a few letters is in a text, and what else is in it. The old
/// model sees less of that.
fn model(text: &str) -> Vec<f32> {
    let sum = |(at, byte): (usize, u8)| at * usize::from(byte);
    let place = (text.bytes().enumerate().map(sum).sum::<usize>() % 97) as f32;
    std::iter::once(place)
        .chain("aeir".chars().map(|letter| text.chars().filter(|&it| it == letter).count() as f32))
        .collect()
}

/// Starts a service with both models behind one address. Only a query with its prefix gets a vector of its
/// own; any other text gets that of `?`.
fn service() -> Stub {
    Stub::start(|_, seen| {
        let width = if seen.body["model"] == "first" { D_OLD } else { D_NEW };
        let embed = |text: &str| model(text.strip_prefix("query: ").unwrap_or("?"))[..width].to_vec();
        let items = |text: &str| model(text)[..width].to_vec();
        let is_query = seen.body["input_type"] == "query";
        Reply::Body(if is_query { good_of(seen, embed, |_| {}) } else { good_of(seen, items, |_| {}) })
    })
}

fn encoder(table: &str, url: &str, model: &str) -> String {
    format!(
        "[{table}]\nkind = \"http\"\nurl = \"{url}\"\nmodel = \"{model}\"\nrevision = \"1\"\nquery_prefix = \"query: \"\n\
         query_input_type = \"query\"\n"
    )
}

fn both(url: &str) -> String {
    encoder("old.encoder", url, "first") + &encoder("encoder", url, "second")
}

/// A gallery of texts, imported, and its upgrade.
fn place(encoders: &str) -> Place {
    let old = Matrix::from_fn(ITEMS, D_OLD, |row, column| model(&text(row))[column]);
    let item = |number| json!({"id": format!("t{number}"), "source": text(number)});
    let items: Vec<Value> = (0..ITEMS).map(item).collect();
    let place = upgrade::gallery(&old, &items, D_NEW);
    configure(&place, encoders);
    place.finish(&IMPORT);
    place
}

fn upgrade(place: &Place, verb: &str, more: &[&str]) {
    let output = place.run(&[&["upgrade", verb], more].concat());
    // The made-up σ² of the adapter is noticed.
    assert_ne!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The models that were asked since the last call, with what they were asked.
fn asked(stub: &Stub, seen_before: &mut usize) -> Vec<(String, Vec<String>)> {
    let seen = stub.seen().split_off(*seen_before);
    *seen_before += seen.len();
    seen.iter().map(|seen| (seen.body["model"].as_str().unwrap().to_owned(), seen.texts())).collect()
}

fn refused(place: &Place, arguments: &[&str], words: &[&str]) {
    let output = place.run(&[&["search"], arguments].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    assert!(words.iter().all(|word| error.contains(word)), "{arguments:?}: {error}");
}

#[test]
fn a_text_finds_its_item_at_every_stage() {
    let stub = service();
    let place = place(&both(&stub.url));
    let mut seen = 0;
    let seventh = text(7);
    let search = ["search", "--text", seventh.as_str(), "--text", "nothing like it", "-k", "3"];
    let query: Vec<String> = [&seventh, "nothing like it"].map(|text| format!("query: {text}")).to_vec();
    let first = |found: &Value| {
        assert_eq!(found["results"].as_array().unwrap().len(), 2);
        found["results"][0][0].clone()
    };

    let found = place.json(&search);
    let expected = json!({"id": "t7", "distance": 0.0, "provenance": "old", "source": seventh});
    assert_eq!((&found["space"], first(&found)), (&json!("first"), expected.clone()));
    assert!(found.get("before").is_none());
    assert_eq!(asked(&stub, &mut seen), [("first".to_owned(), query.clone())]);

    upgrade(&place, "start", &[]);
    upgrade(&place, "switch", &[]);
    let found = place.json(&search);
    assert_eq!(
        (&found["space"], &found["results"][0][0]["provenance"]),
        (&json!("second"), &json!("adapted"))
    );
    assert_eq!(asked(&stub, &mut seen), [("second".to_owned(), query.clone())]);
    upgrade(&place, "run", &[]);
    asked(&stub, &mut seen);

    let found = place.json(&[&search[..], &["--before"]].concat());
    assert_eq!((&first(&found)["provenance"], &first(&found)["distance"]), (&json!("native"), &json!(0.0)));
    assert_eq!(found["before"][0][0], expected);
    assert_eq!(found["before"].as_array().unwrap().len(), 2);
    let asked_of = |model: &str| (model.to_owned(), query.clone());
    assert_eq!(asked(&stub, &mut seen), [asked_of("first"), asked_of("second")]);

    upgrade(&place, "rollback", &[]);
    assert_eq!(first(&place.json(&search)), expected);
    assert_eq!(asked(&stub, &mut seen), [asked_of("first")]);
    upgrade(&place, "switch", &["--fused"]);
    let found = place.json(&search);
    assert_eq!((&found["spaces"], &first(&found)["id"]), (&json!(["first", "second"]), &json!("t7")));
    assert_eq!(asked(&stub, &mut seen), [asked_of("first"), asked_of("second")]);

    upgrade(&place, "finish", &["--anyway"]);
    assert_eq!(first(&place.json(&search))["id"], "t7");
    refused(&place, &["--text", "a", "--before"], &["finished", "first"]);
}

#[test]
fn people_read_a_line_a_hit() {
    let stub = service();
    let place = place(&both(&stub.url));
    upgrade(&place, "start", &[]);
    let seventh = text(7);
    let read = |more: &[&str]| {
        let output = place.run(&[&["search", "--text", &seventh, "-k", "1"], more].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let head = "the text \"a recipe of rye bread, as it was written down\\nin book 7\"\n";
    assert_eq!(
        read(&[]),
        format!(
            "{head}   1  t7  old       0.000000  a recipe of rye bread, as it was written down in book 7\n"
        )
    );
    let line = "t7  old       0.000000  a recipe of rye bread, as it wa…";
    let width = line.chars().count();
    assert_eq!(
        read(&["--before"]),
        format!("{head}      {:<width$}  | before\n   1  {line}  | {line}\n", "now")
    );
    // Scripts that search by vectors read what they always did.
    place.write_matrix("query.npy", &Matrix::from_fn(1, D_OLD, |_, column| model(&seventh)[column]));
    let output = place.run(&["search", "--vectors", "query.npy", "-k", "1"]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "0\t1\tt7\t0.000000\told\n");
    assert!(!place.json(&["search", "--vectors", "query.npy"]).to_string().contains("source"));
}

#[test]
fn a_model_without_an_encoder_says_which_table_is_missing() {
    let stub = service();
    let place = place(&encoder("encoder", &stub.url, "second"));
    refused(&place, &["--text", "a"], &["[old.encoder]", "\"first\"", "rehang.toml"]);
    upgrade(&place, "start", &[]);
    upgrade(&place, "switch", &[]);
    place.json(&["search", "--text", "a"]);
    refused(&place, &["--text", "a", "--before"], &["[old.encoder]"]);
    configure(&place, &encoder("old.encoder", &stub.url, "first"));
    refused(&place, &["--text", "a"], &["[encoder]", "\"second\""]);
    upgrade(&place, "switch", &["--fused"]);
    refused(&place, &["--text", "a"], &["[encoder]"]);

    configure(&place, &encoder("new.encoder", &stub.url, "second"));
    refused(&place, &["--text", "a"], &["[new.encoder]", "[encoder], which"]);
    configure(&place, "[old.encoder]\nkind = \"table\"\nvectors = \"old.npy\"\n");
    refused(&place, &["--text", "a"], &["[old.encoder]", "table", "no query"]);
    configure(&place, "[old.encoder]\nkind = \"onnx\"\nmodel = \"m\"\ninput = { kind = \"texts\" }\n");
    refused(&place, &["--text", "a"], &["'texts'", "'image', 'text'", "rehang.toml"]);
    // The configuration of another gallery's upgrade.
    configure(&place, &both(&stub.url));
    let config = fs_err::read_to_string(place.path("rehang.toml")).unwrap();
    place.write_bytes("rehang.toml", config.replace("second", "third").as_bytes());
    refused(&place, &["--text", "a"], &["second", "rehang.toml"]);
}

#[test]
fn what_is_no_query_is_refused() {
    let stub = service();
    let place = place(&both(&stub.url));
    refused(&place, &["--text", "a", "--vectors", "old.npy"], &["--vectors", "--text"]);
    refused(&place, &["--image", "a.png", "--vectors", "old.npy"], &["--image", "--vectors"]);
    refused(&place, &["--vectors", "old.npy", "--before"], &["--before"]);
    refused(&place, &["--text", "a", "--gallery", "G.db"], &["--gallery"]);
    refused(&place, &["--text", "a", "--old-vectors", "old.npy"], &["--text", "--old-vectors"]);
    refused(&place, &[], &["--text", "--image", "--vectors"]);
    refused(&place, &["--text", " "], &["--text", "a word"]);
    refused(&place, &["--image", "no-such.png"], &["no-such.png"]);
    place.write_bytes("cat.png", b"");
    refused(&place, &["--image", "cat.png"], &["--image", "cat.png", "a text"]);
    refused(&place, &["--text", "a", "-k", "0"], &["-k"]);
    refused(&place, &["--text", "a", "--space", "second"], &["first"]);
    refused(&place, &["--text", "a", "--config", "none.toml"], &["none.toml"]);
    assert_eq!(stub.seen().len(), 0, "nothing was paid for");
    let down = Stub::start(|_, _| Reply::Status(401, vec![], String::new()));
    configure(&place, &both(&down.url));
    refused(&place, &["--text", "a"], &["401", "first"]);
}

#[test]
fn an_image_finds_its_item() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../rehang-encode/tests/models");
    let expected = fs_err::read_to_string(models.join("expected.json")).unwrap();
    let expected: BTreeMap<String, Vec<f32>> = serde_json::from_str(&expected).unwrap();
    let names = ["colours.png", "grey.png"];
    let place = Place::new();
    place.write_matrix("old.npy", &Matrix::from_fn(2, 6, |row, column| expected[names[row]][column]));
    let items = names.map(|name| json!({"id": name, "source": name}).to_string()).join("\n");
    place.write_bytes("items.jsonl", items.as_bytes());
    place.write_bytes("model.onnx", &fs_err::read(models.join("cnn.onnx")).unwrap());
    // The images of the gallery lie elsewhere.
    fs_err::create_dir(place.path("images")).unwrap();
    place.write_bytes("asked.png", &fs_err::read(models.join("grey.png")).unwrap());
    let config = "[gallery]\npath = \"G.db\"\n[old]\nname = \"cnn\"\ndimension = 6\ndistance = \"l2\"\n[new]\nname = \"next\"\n\
                  dimension = 6\ndistance = \"l2\"\n[old.encoder]\nkind = \"onnx\"\nmodel = \"model.onnx\"\nroot = \"images\"\n\
                  [old.encoder.input]\nkind = \"image\"\nwidth = 16\nheight = 12\nmean = [0.485, 0.456, 0.406]\n\
                  std = [0.229, 0.224, 0.225]\n";
    place.write_bytes("rehang.toml", config.as_bytes());
    let import =
        "gallery import --gallery G.db --space cnn --vectors old.npy --items items.jsonl --distance l2";
    place.json(&words(import, &[]));
    let found = place.json(&["search", "--image", "asked.png"]);
    assert_eq!(
        (&found["results"][0][0]["id"], &found["results"][0][0]["source"]),
        (&json!("grey.png"), &json!("grey.png"))
    );
    assert!(found["results"][0][0]["distance"].as_f64().unwrap() < 1e-4, "{found}");
    refused(&place, &["--text", "a grey square"], &["--text", "an image"]);
    place.write_bytes("broken.png", b"no image");
    refused(&place, &["--image", "broken.png"], &["broken.png"]);
}
