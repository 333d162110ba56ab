//! A gallery of texts behind an embedding service that misbehaves in every way: slow, busy, broken, of a
//! wrong width, gone in the middle. In the end every text is native, but for those that the service refuses,
//! which are listed with what it said.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rehang_core::{Matrix, Progress};
use rehang_files::{VectorSource, read_matrix};
use rehang_upgrade::{Ending, Enough, Observation, Observer, PairsFiles, PairsOptions, Upgrade};
use serde_json::{Value, json};

use crate::common::upgrade::{self, IMPORT};
use crate::common::{Place, words};
use crate::stub::{Reply, Seen, Stub, good_of};

const ITEMS: usize = 60;
const D_OLD: usize = 3;
const D_NEW: usize = 5;
/// Number of an item without a source, and of those that the service will not embed.
const WITHOUT_SOURCE: usize = 8;
const REFUSED: [usize; 2] = [5, 41];

const DISHES: [&str; 6] =
    ["lentil soup", "apple pie", "rye bread", "mushroom risotto", "bean stew", "plum cake"];
const WISHES: [&str; 5] =
    ["how do i make", "what goes well with", "how long keeps", "who invented", "is there salt in"];

fn text(number: usize) -> String {
    let forbidden = if REFUSED.contains(&number) { " forbidden" } else { "" };
    format!("{}{forbidden} {} number {number}", WISHES[number % 5], DISHES[number % 6])
}

/// Embeds by the new model: the share of a text that each of a few letters has.
fn model(text: &str) -> Vec<f32> {
    let share = |letter| text.chars().filter(|&it| it == letter).count() as f32 / text.len() as f32;
    let mut vector: Vec<f32> = "aeinr".chars().map(share).collect();
    let sum = |(at, byte): (usize, u8)| at * usize::from(byte);
    vector[0] += (text.bytes().enumerate().map(sum).sum::<usize>() % 97) as f32;
    vector
}

/// Moods of the service: what it is like at the moment.
const WRONG_WIDTH: usize = 0;
const MOODY: usize = 1;
const GOOD: usize = 2;

/// How often each text of an item was embedded by an answer that was whole and right.
type Embedded = Arc<Mutex<BTreeMap<String, u32>>>;

fn service(mood: Arc<AtomicUsize>, embedded: Embedded) -> Stub {
    let in_mood = AtomicUsize::new(0);
    let before = AtomicUsize::new(WRONG_WIDTH);
    Stub::start(move |_, seen| {
        let mood = mood.load(Ordering::SeqCst);
        if before.swap(mood, Ordering::SeqCst) != mood {
            in_mood.store(0, Ordering::SeqCst);
        }
        let number = in_mood.fetch_add(1, Ordering::SeqCst);
        let good = |seen: &Seen| {
            let texts = seen.texts();
            if mood != GOOD && texts.iter().any(|text| text.contains("forbidden")) {
                let body = json!({"error": {"message": "this text is against our rules"}});
                return Reply::Status(400, vec![], body.to_string());
            }
            // The word that asks a service whether it is well belongs to no item, and may be asked more than
            // once.
            for text in texts.into_iter().filter(|text| text.contains("number")) {
                *embedded.lock().unwrap().entry(text).or_default() += 1;
            }
            Reply::Body(good_of(seen, model, |_| {}))
        };
        let busy =
            |status, wait: &str| Reply::Status(status, vec![("Retry-After", wait.into())], String::new());
        match (mood, number) {
            (WRONG_WIDTH, 4..) => Reply::Body(good_of(seen, |text| model(text)[1..].to_vec(), |_| {})),
            (MOODY, number) => match number % 16 {
                // Slower than anybody waits.
                1 => Reply::Silence,
                2 => busy(429, "0"),
                4 => busy(500, "0"),
                5 => Reply::Body(good_of(seen, model, |_| {}).replace(']', "")),
                7 => Reply::Close,
                8 => Reply::Truncated,
                // One vector less than texts.
                10 => Reply::Body(good_of(seen, model, |data| drop(data.pop()))),
                13 if number < 16 => busy(429, "1"),
                13 => busy(503, "0"),
                _ => good(seen),
            },
            _ => good(seen),
        }
    })
}

/// Old vectors and items of the texts of the first numbers.
fn numbered(many: usize) -> (Matrix, Vec<Value>) {
    let old = Matrix::from_fn(many, D_OLD, |row, column| model(&text(row))[column]);
    (old, (0..many).map(|number| json!({"id": format!("t{number}"), "source": text(number)})).collect())
}

fn place(url: &str) -> Place {
    let old = Matrix::from_fn(ITEMS, D_OLD, |row, column| model(&text(row))[column]);
    let source = |number| if number == WITHOUT_SOURCE { Value::Null } else { text(number).into() };
    let item = |number| json!({"id": format!("t{number}"), "source": source(number)});
    let items: Vec<Value> = (0..ITEMS).map(item).collect();
    let place = upgrade::gallery(&old, &items, D_NEW);
    let encoder = format!(
        "[encoder]\nkind = \"http\"\nurl = \"{url}\"\nmodel = \"m\"\nbatch = 6\nconcurrency = 3\nattempts = 4\ntimeout_seconds = 0.3\n\
         revision = \"1\"\n[run]\nbatch = 18\nworkers = 2\n"
    );
    upgrade::configure(&place, &encoder);
    place.finish(&IMPORT);
    place
}

fn upgrade(place: &Place, verb: &str) -> (i32, Value, String) {
    let output = place.run(&["upgrade", verb, "--config", "rehang.toml", "--json"]);
    let json = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output.status.code().unwrap(), json, String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn whatever_the_service_does_every_text_ends_native_or_listed() {
    let (mood, embedded) = (Arc::new(AtomicUsize::new(WRONG_WIDTH)), Embedded::default());
    let stub = service(Arc::clone(&mood), Arc::clone(&embedded));
    let place = place(&stub.url);
    for verb in ["start", "switch"] {
        let (code, _, error) = upgrade(&place, verb);
        assert_eq!(code, 0, "{error}");
    }

    // Another model behind the same name: the run ends at once, and no text is to blame. What came in one
    // call with vectors of the other model is not trusted.
    let (code, _, error) = upgrade(&place, "run");
    assert_eq!((code, error.matches("Error:").count()), (2, 1), "{error}");
    assert!(error.contains('4') && error.contains('5') && error.contains("second"), "{error}");
    let (_, status, _) = upgrade(&place, "status");
    let native_before = status["counts"]["native"].as_u64().unwrap() as usize;
    assert_eq!(status["counts"]["failed"], 0);
    assert!(native_before <= embedded.lock().unwrap().len(), "{status}");
    embedded.lock().unwrap().clear();

    mood.store(MOODY, Ordering::SeqCst);
    let (code, run, error) = upgrade(&place, "run");
    assert_eq!(code, 1, "{run} {error}");
    assert_eq!((&run["ending"], &run["failed_in_all"]), (&json!("nothing-left"), &json!(2)));
    assert!(stub.seen().len() > 24, "every mood was met: {}", stub.seen().len());
    let (code, status, _) = upgrade(&place, "status");
    assert_eq!(code, 1);
    assert_eq!(status["counts"]["native"], ITEMS - 3);
    assert_eq!(status["counts"]["adapted"], 3);
    assert_eq!(status["items_without_source"], json!(["t8"]));
    let failures: Vec<(&str, &str)> = status["failures"]
        .as_array()
        .unwrap()
        .iter()
        .map(|failure| (failure["id"].as_str().unwrap(), failure["reason"].as_str().unwrap()))
        .collect();
    assert_eq!(failures.iter().map(|(id, _)| *id).collect::<Vec<_>>(), ["t5", "t41"]);
    for (_, reason) in failures {
        assert!(reason.contains("400") && reason.contains("against our rules"), "{reason}");
    }
    // Texts were sent again only because no whole answer had come.
    let embedded = embedded.lock().unwrap().clone();
    let again: Vec<_> = embedded.iter().filter(|(_, count)| **count != 1).collect();
    assert!(again.len() <= 1, "paid for twice, beside the one text that rides along: {again:?}");
    assert_eq!(native_before + embedded.len(), ITEMS - 3, "what was native is left alone");

    // Every text has the vector of its own content.
    let export =
        "gallery export --gallery G.db --space second --vectors V.npy --ids I.txt --provenance P.txt";
    place.json(&words(export, &[]));
    let vectors = read_matrix(&VectorSource::parse(&place.text("V.npy")).unwrap()).unwrap();
    let read = |name: &str| fs_err::read_to_string(place.path(name)).unwrap();
    let (ids, provenance) = (read("I.txt"), read("P.txt"));
    assert_eq!(vectors.rows(), ITEMS, "a text is lost");
    for ((row, id), provenance) in ids.lines().enumerate().zip(provenance.lines()) {
        let number: usize = id[1..].parse().unwrap();
        let adapted = number == WITHOUT_SOURCE || REFUSED.contains(&number);
        let mut expected = model(&text(number));
        if adapted {
            expected[D_OLD..].fill(0.0);
        }
        assert_eq!(
            (provenance, vectors.row(row)),
            (if adapted { "adapted" } else { "native" }, &expected[..]),
            "{id}"
        );
    }

    // Texts that were refused are left alone until somebody says so.
    let requests = stub.seen().len();
    assert_eq!(upgrade(&place, "run").0, 1);
    assert_eq!(stub.seen().len(), requests);
    mood.store(GOOD, Ordering::SeqCst);
    let retried = place.json(&["upgrade", "resume", "--config", "rehang.toml", "--retry-failed"]);
    assert_eq!(retried["retried"], 2);
    let (_, run, error) = upgrade(&place, "run");
    assert_eq!((&run["done"]["native"], &run["failed_in_all"]), (&json!(2), &json!(0)), "{error}");
}

/// Pairs are drawn in samples that double, by one encoder: what a start costs, it costs once.
#[test]
fn pairs_of_a_good_service_cost_two_requests_and_the_riders() {
    const MANY: usize = 700;
    const BATCH: usize = 25;
    let (old, items) = numbered(MANY);
    let place = upgrade::gallery(&old, &items, D_NEW);
    let stub = Stub::start(|_, seen| Reply::Body(good_of(seen, model, |_| {})));
    let encoder = format!(
        "[encoder]\nkind = \"http\"\nurl = \"{}\"\nmodel = \"m\"\nbatch = {BATCH}\nconcurrency = 2\n",
        stub.url
    );
    upgrade::configure(&place, &encoder);
    place.finish(&IMPORT);
    let draw = |items: &str| {
        let before = stub.seen().len();
        place.json(&["upgrade", "pairs", "--config", "rehang.toml", "--worth", "0", "--items", items]);
        let seen = stub.seen().split_off(before);
        let texts: usize = seen.iter().map(|seen| seen.texts().len()).sum();
        (seen.len(), texts)
    };
    // Samples of 250, 500 and 600 items.
    let (requests, texts) = draw("600");
    // With so few texts a request, the last ones of each sample are compared in one of their own.
    assert!(requests <= 600 / BATCH + 2 + 3, "{requests} requests");
    assert!((600..=600 + 600 / 32 + 3).contains(&texts), "{texts} texts");
    // Another process: 16 items are embedded again and compared.
    let (requests, texts) = draw("700");
    assert!(requests <= 100 / BATCH + 2 + 1, "{requests} requests");
    assert!((116..=116 + 116 / 32 + 2).contains(&texts), "{texts} texts");
}

/// Measuring takes as long as embedding does at real widths, so its progress is shown and Ctrl-C ends it.
#[test]
fn what_pairs_are_worth_is_measured_in_sight_and_until_ctrl_c() {
    let rows = |columns| Matrix::from_fn(120, columns, |row, column| model(&text(row))[column]);
    let place = upgrade::place(&rows(D_OLD), &rows(D_NEW));
    place.finish(&IMPORT);
    let upgrade = Upgrade::open(&place.path("rehang.toml")).unwrap();
    let pairs = |observer: &dyn Observer| {
        upgrade.pairs(&PairsOptions::default(), &PairsFiles::default(), None, observer).unwrap()
    };
    let progress = Progress::default();
    assert!(pairs(&progress).steps[0].learned.is_some());
    let shown = progress.snapshot();
    assert_eq!(shown.stage, "measuring what pairs are worth");
    assert!(shown.done > 0 && shown.done == shown.total, "{shown:?}");
    progress.cancel();
    let ended = pairs(&progress);
    assert_eq!((ended.enough, ended.pairs), (Enough::Ended(Ending::Interrupted), 120));
    // An observer without counters is told of the stage, too.
    let stages = Stages::default();
    pairs(&stages);
    assert_eq!(*stages.0.lock().unwrap(), ["measuring what pairs are worth"]);
}

#[derive(Default)]
struct Stages(Mutex<Vec<String>>);

impl Observer for Stages {
    fn observe(&self, observation: &Observation<'_>) {
        if let Observation::Began { stage, .. } = observation {
            self.0.lock().unwrap().push((*stage).to_owned());
        }
    }
}

/// A server that reads 400 characters of a text and says nothing of the rest, as many do beyond 512 tokens.
#[test]
fn a_service_that_cuts_texts_is_named_and_the_sources_are_counted() {
    const LONG: usize = 40;
    let source_of = |number: usize| -> String {
        let words: Vec<String> =
            (0..200).map(|word| format!("{} {}", text(word * 7 + number), number)).collect();
        words.join(". ")[..if number < LONG { 500 + 70 * number } else { 120 }].to_owned()
    };
    let old = Matrix::from_fn(400, D_OLD, |row, column| model(&text(row))[column]);
    let items: Vec<Value> = (0..400)
        .map(|number| json!({"id": format!("t{number}"), "source": source_of(number * 7 % 400)}))
        .collect();
    let place = upgrade::gallery(&old, &items, D_NEW);
    let stub =
        Stub::start(|_, seen| Reply::Body(good_of(seen, |text| model(&text[..text.len().min(400)]), |_| {})));
    let configure = |more: &str| {
        let encoder =
            format!("[encoder]\nkind = \"http\"\nurl = \"{}\"\nmodel = \"m\"\nbatch = 16\n{more}", stub.url);
        upgrade::configure(&place, &encoder);
    };
    configure("");
    place.finish(&IMPORT);
    let plan = || {
        let plan = place.run(&["upgrade", "plan", "--config", "rehang.toml"]);
        String::from_utf8_lossy(&plan.stderr).into_owned()
    };
    assert!(!plan().contains("stops reading"));
    let said = place.run(&["upgrade", "pairs", "--config", "rehang.toml", "--worth", "0"]);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("stops reading a text after some") && said.contains("in silence"), "{said}");
    let warnings = plan();
    for words in ["stops reading a text after some", "40 sources of more than", "truncate = false"] {
        assert!(warnings.contains(words), "{words}: {warnings}");
    }
    let doctor = place.run(&["doctor", "--gallery", "G.db", "--config", "rehang.toml"]);
    let doctor = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(doctor.contains("40 sources of more than"), "{doctor}");
    // Asked in another way, the service may read on.
    configure("body = { truncate = false }\n");
    assert!(!plan().contains("stops reading"));
}

/// A service or a program that becomes another model ends the run with exit code 2, and nothing that it gave
/// since the last comparison is in the gallery.
#[cfg(unix)]
#[test]
fn an_encoder_that_becomes_another_model_ends_the_run_and_leaves_nothing_wrong() {
    const MANY: usize = 500;
    const RIGHT: usize = 300;
    let (old, items) = numbered(MANY);
    // The program's model of a number, as `upgrade::encoder` has it.
    let of_program = |number: usize| -> Vec<f32> {
        (0..D_NEW).map(|column| ((number * 7 + column * 13) % 101) as f32 / 8.0).collect()
    };
    for is_service in [true, false] {
        let place = upgrade::gallery(&old, &items, D_NEW);
        let seen_texts = AtomicUsize::new(0);
        let stub = Stub::start(move |_, seen| {
            let turning = |text: &str| {
                let mut vector = model(text);
                vector[1] += if seen_texts.fetch_add(1, Ordering::SeqCst) < RIGHT { 0.0 } else { 100.0 };
                vector
            };
            Reply::Body(good_of(seen, turning, |_| {}))
        });
        let cut = "number=${text##* }; seen=$(( seen + 1 )); version=$(( seen > 300 ))";
        place.write_bytes("encode.sh", upgrade::encoder(cut).as_bytes());
        let kind = if is_service {
            format!("kind = \"http\"\nurl = \"{}\"\nmodel = \"m\"\nconcurrency = 2\n", stub.url)
        } else {
            format!("kind = \"command\"\nprogram = [\"sh\", \"encode.sh\", \"{D_NEW}\"]\n")
        };
        upgrade::configure(&place, &format!("[encoder]\n{kind}batch = 8\n"));
        place.finish(&IMPORT);
        for verb in ["start", "switch"] {
            assert_eq!(upgrade(&place, verb).0, 0);
        }
        let (code, _, error) = upgrade(&place, "run");
        assert_eq!((code, error.matches("Error:").count()), (2, 1), "{error}");
        for words in ["has changed", "items were made native, which are kept", "stay as they were"] {
            assert!(error.contains(words), "{error}");
        }
        let (_, status, _) = upgrade(&place, "status");
        let sent = if is_service {
            stub.seen().iter().map(|seen| seen.texts().len()).sum()
        } else {
            upgrade::embedded(&place).lines().count()
        };
        assert_eq!(status["spent"]["items"], sent, "what was paid for is counted");
        let export =
            "gallery export --gallery G.db --space second --vectors V.npy --ids I.txt --provenance P.txt";
        place.json(&words(export, &[]));
        let vectors = read_matrix(&VectorSource::parse(&place.text("V.npy")).unwrap()).unwrap();
        let read = |name: &str| fs_err::read_to_string(place.path(name)).unwrap();
        let (ids, provenance) = (read("I.txt"), read("P.txt"));
        let mut native = 0;
        for ((row, id), provenance) in ids.lines().enumerate().zip(provenance.lines()) {
            let number: usize = id[1..].parse().unwrap();
            let mut expected = model(&text(number));
            if provenance == "native" {
                native += 1;
                expected = if is_service { expected } else { of_program(number) };
            } else {
                assert_eq!(provenance, "adapted");
                expected[D_OLD..].fill(0.0);
            }
            assert_eq!(vectors.row(row), &expected[..], "{provenance} {id}");
        }
        assert!((RIGHT / 2..RIGHT).contains(&native) && ids.lines().count() == MANY, "{native}");
        assert_eq!(status["counts"]["native"], native);
    }
}
