//! Faults as callers see them: whose they are, what to do, and no address of the configuration.

use std::net::TcpListener;
use std::path::Path;

use rehang_upgrade::Upgrade;
use serde_json::json;

use crate::stub::{Reply, Stub, good_of};
use crate::{Answered, ITEMS, OLD, Served, configured, table, vector};

/// Text that the model of these tests does not take.
const REFUSED: &str = "plum cake";

/// Starts a service whose old model is at an address.
fn served(folder: &Path, url: &str) -> Served {
    let encoder = json!({ "kind": "http", "url": url, "model": "m", "attempts": 1 });
    let configuration = configured(folder, ITEMS).with_old_encoder(serde_json::from_value(encoder).unwrap());
    Served::of(Upgrade::new(configuration).unwrap(), |_| {})
}

fn search(served: &Served) -> Answered {
    served.ask("POST", "/v1/search", Some(&json!({ "texts": [REFUSED] })), &[])
}

#[test]
fn a_fault_of_the_encoder_is_said_without_its_address() {
    let folder = tempfile::tempdir().unwrap();
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let stub = |status| Stub::start(move |_, _| Reply::Status(status, vec![], String::new()));
    let stubs = [401, 404, 402].map(stub);
    let [unauthorised, nowhere, unpaid] = [0, 1, 2].map(|stub: usize| stubs[stub].url.clone());
    let mends = "failed, which the service's operator can mend";
    let waits = "does not answer now, so ask again later";
    let refused = "refused the service's credentials, which the service's operator can set right";
    for (url, status, kind, said) in [
        (unauthorised, 502, "unauthorised", refused),
        (nowhere, 502, "not-found", mends),
        (unpaid, 503, "unavailable", waits),
        (format!("http://{gone}/v1/embeddings"), 503, "unavailable", waits),
    ] {
        let served = served(folder.path(), &url);
        let asked = search(&served);
        let request = &asked.headers["x-request-id"];
        let detail = format!("the encoder {said}; the service's log says why, under request {request}");
        assert_eq!((asked.status, &asked.body["kind"]), (status, &json!(kind)), "{}", asked.text);
        assert_eq!(asked.body["detail"], detail);
        served.end();
    }
}

#[test]
fn what_the_encoder_refuses_is_the_callers_to_change() {
    let folder = tempfile::tempdir().unwrap();
    let encoder = Stub::start(|_, seen| {
        if seen.texts().iter().any(|text| text == REFUSED) {
            let message = "it is not in /srv/words.txt of http://10.9.8.7/words";
            return Reply::Status(400, vec![], json!({ "error": { "message": message } }).to_string());
        }
        Reply::Body(good_of(seen, |_| vector(3, OLD), |_| {}))
    });
    let served = served(folder.path(), &encoder.url);
    let asked = search(&served);
    assert_eq!((asked.status, &asked.body["kind"]), (422, &json!("invalid-option")), "{}", asked.text);
    let detail = asked.body["detail"].as_str().unwrap();
    let begin =
        "texts cannot be \"plum cake\"; expected one that its encoder takes: m at the encoder: status 400: ";
    assert!(detail.starts_with(begin) && detail.contains("it is not in … of …"), "{detail}");
    let metrics = served.ask("GET", "/metrics", None, &[]).text;
    assert!(metrics.contains("rehang_search_failures_total 0"), "no alert: {metrics}");
    let others = served.ask("POST", "/v1/search", Some(&json!({ "texts": ["rye"], "k": 1 })), &[]);
    assert_eq!(others.body["results"][0][0]["id"], "i3", "{}", others.text);
    served.end();
}

#[test]
fn answers_name_the_gallery_and_not_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_str().unwrap();
    // The last tenth of the items has no row.
    table(folder.path(), ITEMS - ITEMS / 10);
    let served = Served::start(folder.path(), |_| {});
    assert_eq!(served.get("/v1/me")["gallery"], "gallery.db");
    let paused = served.ask("POST", "/v1/upgrade/pause", None, &[]);
    let detail = paused.body["detail"].as_str().unwrap();
    assert!(detail.contains("in the gallery") && !paused.text.contains(place), "{}", paused.text);
    served.carry_out("pairs", &json!({ "items": 200 }));
    let failures = served.ask("GET", "/v1/failures", None, &[]).text;
    assert!(failures.contains("is not in the table of the encoder, which has 360 rows"), "{failures}");
    let status = served.ask("GET", "/v1/status", None, &[]);
    assert_eq!(status.body["gallery"], "gallery.db");
    for (verb, options) in [("fit", json!({ "method": "ridge" })), ("report", json!({}))] {
        assert_eq!(served.carry_out(verb, &options)["state"], "done", "{verb}");
    }
    let plan = served.get("/v1/plan");
    assert_eq!(plan["gallery"], "gallery.db");
    assert!(plan["forecast"]["source"].as_str().unwrap().ends_with(".json in the gallery"), "{plan}");
    assert_eq!(served.get("/v1/doctor")["gallery"], "gallery.db");
    let paths = ["/v1/trail", "/v1/plan", "/v1/doctor", "/v1/operations", "/v1/status"];
    let answers = paths.map(|path| served.ask("GET", path, None, &[]).text);
    for text in answers.into_iter().chain([failures, status.text]) {
        assert!(!text.contains(place), "{text}");
    }
    served.end();
}
