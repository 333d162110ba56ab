//! Limits on what one request, one token or one stranger takes from all others, and what is said of work that
//! they end.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, Sender};

use rehang_core::Provenance;
use rehang_sqlite::SqliteStore;
use rehang_store::{ItemWrite, Ledger, NewVector};
use rehang_upgrade::Upgrade;
use serde_json::{Value, json};

use crate::stub::{Reply, Stub, good_of};
use crate::{Answered, Client, ITEMS, OLD, PATIENCE, Served, configured, token, tokens, vector, wait_for};

/// Value of the header `Authorization` for a name of [`tokens`].
fn bearer(name: &str) -> String {
    format!("Bearer {}", token(name))
}

/// Asks by the token of a name.
fn ask_by(client: &Client, name: &str, (method, path): (&str, &str), body: Option<&Value>) -> Answered {
    client.ask(method, path, body, &[("authorization", &bearer(name))])
}

/// Body of a search that takes a moment.
fn quick() -> Value {
    json!({ "vectors": { "old": [vector(3, OLD)] } })
}

/// Opens an upgrade whose old model embeds no text until it is let go. Gives also what hears that the model
/// was asked, and what lets it go by being dropped.
fn with_slow_texts(folder: &Path) -> (Upgrade, Receiver<()>, Sender<()>) {
    let (asks, is_asked) = mpsc::channel();
    let (lets_go, go) = mpsc::channel::<()>();
    let go = Mutex::new(go);
    let model = Stub::start(move |_, seen| {
        let _ = asks.send(());
        // Nothing is sent: the wait is over when the other end is dropped.
        let _ = go.lock().unwrap().recv();
        Reply::Body(good_of(seen, |_| vector(3, OLD), |_| {}))
    });
    let encoder = json!({ "kind": "http", "url": model.url, "model": "slow" });
    let configuration = configured(folder, ITEMS).with_old_encoder(serde_json::from_value(encoder).unwrap());
    (Upgrade::new(configuration).unwrap(), is_asked, lets_go)
}

#[test]
fn a_body_of_many_small_values_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), |_| {});
    let vectors = json!({ "old": vector(3, OLD) });
    let put = |payload: &str| {
        let body = format!(r#"{{"source": "3", "payload": {payload}, "vectors": {vectors}}}"#);
        served.send("PUT", "/v1/items/a", Some(body), &[])
    };
    let search = |payload: &str| {
        let body = format!(r#"{{"vectors": {{"old": [{}]}}, "payload": {payload}}}"#, vectors["old"]);
        served.send("POST", "/v1/search", Some(body), &[])
    };
    // Three bytes for each list, and three more.
    let lists = |count: usize| format!("[{}0]", "[],".repeat(count));
    let largest = put(&lists((64 << 10) / 3 - 1));
    assert_eq!(largest.status, 200, "{}", largest.text);
    let numbers = format!("[{}0]", "0,".repeat(1_000_000));
    for refused in [put(&lists((64 << 10) / 3)), put(&numbers), search(&format!(r#"{{"n": {numbers}}}"#))] {
        assert_eq!((refused.status, &refused.body["kind"]), (422, &json!("wrong-body")));
        let detail = refused.body["detail"].as_str().unwrap();
        assert!(detail.contains("payload: more than 65536 bytes"), "{detail}");
    }
    for (list, value) in [("texts", r#""","#), ("labels", r#""\"","#), ("vectors", "[],")] {
        let body = format!(r#"{{"{list}": [{}{}]}}"#, value.repeat(30_000), value.trim_end_matches(','));
        let refused = served.send("POST", "/v1/search", Some(body), &[]);
        assert_eq!(refused.body["detail"], "the body has more than 30000 lists, objects and texts");
    }
    served.end();
}

#[test]
fn a_search_has_only_so_many_queries() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), |_| {});
    let search = |body: Value| served.ask("POST", "/v1/search", Some(&body), &[]);
    let by_vectors = |count: usize| search(json!({ "vectors": { "old": vec![vector(3, OLD); count] } }));
    assert_eq!(by_vectors(256).body["results"].as_array().unwrap().len(), 256);
    let (texts, items) = (vec!["plum cake"; 33], vec!["i7"; 33]);
    for refused in [by_vectors(257), search(json!({ "texts": texts })), search(json!({ "items": items }))] {
        assert_eq!((refused.status, &refused.body["kind"]), (422, &json!("invalid-option")));
        assert!(refused.text.contains("from 1 to 256 `vectors`"), "{}", refused.text);
    }
    served.end();
}

/// Replaces the source of item 3 by a text of so many bytes, past the limit on a body.
fn write_large(folder: &Path, bytes: usize) {
    let store = SqliteStore::open(folder.join("gallery.db")).unwrap();
    let old = NewVector::from_model("old", vector(3, OLD), Provenance::Old);
    store.put(&[ItemWrite::new("i3", Some("a".repeat(bytes)), vec![old])]).unwrap();
}

#[test]
fn an_answer_to_a_search_has_only_so_many_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let (upgrade, _is_asked, lets_go) = with_slow_texts(folder.path());
    drop(lets_go);
    write_large(folder.path(), 1 << 20);
    let served = Served::of(upgrade, |_| {});
    // All texts find that item.
    let search = |texts: usize| {
        let body = json!({ "texts": vec!["plum cake"; texts], "k": 1 });
        served.ask("POST", "/v1/search", Some(&body), &[])
    };
    let largest = search(4);
    assert_eq!((largest.status, largest.text.len() >> 20), (200, 4));
    let refused = search(16);
    assert_eq!((refused.status, &refused.body["kind"]), (422, &json!("invalid-option")), "{}", refused.text);
    assert!(refused.text.contains("fewer neighbours or queries"), "{}", refused.text);
    served.end();
}

#[test]
fn an_answer_that_is_not_read_keeps_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), |options| {
        (options.limits.at_once, options.limits.waiting) = (1, 0);
    });
    // A picture that fits into no buffers of a connection.
    write_large(folder.path(), 32 << 20);
    let mut unread = TcpStream::connect(served.address).unwrap();
    let asked = format!("GET /v1/items/i3 HTTP/1.1\r\nHost: {}\r\n\r\n", served.address);
    unread.write_all(asked.as_bytes()).unwrap();
    let mut first = [0; 12];
    unread.read_exact(&mut first).unwrap();
    assert_eq!(first, *b"HTTP/1.1 200");
    let other = || served.ask("GET", "/v1/items/i7", None, &[]).status;
    assert_eq!(other(), 503);
    drop(unread);
    wait_for("the place of the answer", || other() == 200);
    served.end();
}

#[test]
fn a_reader_leaves_turns_to_other_readers_and_holds_up_no_writer() {
    // Where there is one turn, a reader may have it.
    for (at_once, of_other) in [(2, 200), (1, 503)] {
        let folder = tempfile::tempdir().unwrap();
        let (upgrade, is_asked, lets_go) = with_slow_texts(folder.path());
        let roles = [("greedy", "read"), ("other", "read"), ("writer", "write")];
        let served = Served::of(upgrade, |options| {
            options.tokens = Some(tokens(folder.path(), &roles));
            (options.limits.at_once, options.limits.waiting) = (at_once, 0);
        });
        let search = |client: &Client, name: &str, body: &Value| {
            ask_by(client, name, ("POST", "/v1/search"), Some(body)).status
        };
        let client = Client::new(served.address);
        let slow = std::thread::spawn(move || search(&client, "greedy", &json!({ "texts": ["plum cake"] })));
        is_asked.recv().unwrap();
        assert_eq!(search(&served, "greedy", &quick()), 503, "it has its share");
        assert_eq!(search(&served, "other", &quick()), of_other);
        let item = json!({ "source": "3", "vectors": { "old": vector(3, OLD) } });
        let change = |method: &str, body: Option<&Value>| {
            ask_by(&served, "writer", (method, "/v1/items/a"), body).status
        };
        assert_eq!((change("PUT", Some(&item)), change("DELETE", None)), (200, 204));
        drop(lets_go);
        assert_eq!(slow.join().unwrap(), 200);
        wait_for("its place", || search(&served, "greedy", &quick()) == 200);
        served.end();
    }
}

#[test]
fn a_reading_that_takes_too_long_is_not_said_to_be_turned_away() {
    let folder = tempfile::tempdir().unwrap();
    let (upgrade, is_asked, lets_go) = with_slow_texts(folder.path());
    let served = Served::of(upgrade, |options| {
        (options.limits.seconds, options.limits.at_once) = (1, 1);
    });
    let search = |body: &Value| served.ask("POST", "/v1/search", Some(body), &[]);
    let begun = search(&json!({ "texts": ["plum cake"] }));
    assert_eq!((begun.status, &begun.body["kind"]), (504, &json!("unanswered")), "{}", begun.text);
    assert_eq!(begun.body["detail"], "the gallery, or an encoder, did not answer within 1 seconds");
    is_asked.recv().unwrap();
    // The search by text has the only turn still.
    let turned_away = search(&quick());
    assert_eq!((turned_away.status, &turned_away.body["kind"]), (503, &json!("busy")));
    assert!(turned_away.text.contains("nothing was done"), "{}", turned_away.text);
    drop(lets_go);
    wait_for("the turn", || search(&quick()).status == 200);
    served.end();
}

#[test]
fn a_body_that_does_not_come_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), |options| options.limits.seconds = 1);
    let head = "Content-Type: application/json\r\nContent-Length: 4000\r\n";
    let mut slow = TcpStream::connect(served.address).unwrap();
    slow.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(slow, "POST /v1/search HTTP/1.1\r\nHost: {}\r\n{head}\r\n{{", served.address).unwrap();
    let mut first = String::new();
    BufReader::new(slow).read_line(&mut first).unwrap();
    assert!(first.contains("408"), "{first}");
    served.end();
}

#[test]
fn bodies_of_one_token_leave_room_for_those_of_others() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), |options| {
        options.tokens = Some(tokens(folder.path(), &[("greedy", "read"), ("other", "read")]));
        (options.limits.at_once, options.limits.waiting, options.limits.body) = (1, 1, 4000);
    });
    // Either may have 4000 of the 8000 bytes of all bodies.
    let large = |name: &str| {
        let bearer = bearer(name);
        served.send("POST", "/v1/search", Some(" ".repeat(4000)), &[("authorization", &bearer)]).status
    };
    let header = format!("Authorization: {}\r\n", bearer("greedy"));
    let slow = served.send_half(&header, || large("greedy") == 503);
    assert_eq!(large("other"), 422, "it is read");
    drop(slow);
    wait_for("the room of the slow body", || large("greedy") == 422);
    served.end();
}

#[test]
fn wrong_tokens_keep_nobody_from_signing_in() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), |options| {
        options.tokens = Some(tokens(folder.path(), &[("first", "read"), ("second", "read")]));
        // One request, and no other one while the test lasts.
        options.limits.rate = Some(0.0001);
    });
    let sign_in = |token: &str| served.ask("POST", "/session", Some(&json!({ "token": token })), &[]).status;
    assert_eq!([(); 3].map(|()| sign_in("no such token")), [401; 3]);
    assert_eq!([(); 2].map(|()| sign_in(&token("first"))), [204, 429]);
    assert_eq!(sign_in(&token("second")), 204, "each token has a rate of its own");
    served.end();
}

#[test]
fn a_key_is_of_its_token_and_short_as_other_texts_are() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), |options| {
        options.tokens = Some(tokens(folder.path(), &[("first", "operate"), ("second", "operate")]));
    });
    let begin = |name: &str, key: &str| {
        let bearer = bearer(name);
        let headers = [("authorization", bearer.as_str()), ("idempotency-key", key)];
        served.ask("POST", "/v1/upgrade/bridge", Some(&json!({ "off": true })), &headers)
    };
    let operation = |name: &str, key: &str| {
        let begun = begin(name, key);
        assert_eq!(begun.status, 202, "{}", begun.text);
        begun.body["id"].clone()
    };
    let first = operation("first", "k");
    assert_eq!(operation("first", "k"), first);
    assert_ne!(operation("second", "k"), first);
    operation("first", &"k".repeat(255));
    for refused in ["k".repeat(256), "two words".into()] {
        assert_eq!(begin("first", &refused).status, 400, "{refused}");
    }
    let bearer = bearer("first");
    let twice = [("authorization", bearer.as_str()), ("idempotency-key", "k"), ("idempotency-key", "l")];
    assert_eq!(served.ask("POST", "/v1/upgrade/bridge", None, &twice).status, 400);
    for (verb, option) in [("run", "until"), ("fit", "method")] {
        let path = format!("/v1/upgrade/{verb}");
        let options = json!({ option: "5".repeat(101) });
        let refused = ask_by(&served, "first", ("POST", path.as_str()), Some(&options));
        let expected = format!("{option} cannot be \"a text of 101 bytes\"; expected at most 100");
        assert_eq!((refused.status, &refused.body["detail"]), (422, &json!(expected)));
    }
    served.end();
}

#[test]
fn a_request_of_two_hosts_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), |_| {});
    for (path, status) in [("/healthz", 200), ("/v1/status", 404), ("/nothing", 404)] {
        let line = format!("Host: {}\r\n", served.address);
        for (hosts, expected) in [(line.clone(), status), (line.clone() + &line, 400)] {
            let mut stream = TcpStream::connect(served.address).unwrap();
            write!(stream, "GET {path} HTTP/1.1\r\n{hosts}\r\n").unwrap();
            let mut first = String::new();
            BufReader::new(stream).read_line(&mut first).unwrap();
            assert!(first.contains(&format!(" {expected} ")), "{path}: {first}");
        }
    }
    served.end();
}

#[test]
fn the_host_of_an_absolute_target_counts_in_place_of_the_header() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), |_| {});
    let own = served.address.to_string();
    for (target, host, expected) in [("evil.example", own.as_str(), 403), (own.as_str(), "evil.example", 404)]
    {
        let mut stream = TcpStream::connect(served.address).unwrap();
        write!(stream, "GET http://{target}/v1/status HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
        let mut first = String::new();
        BufReader::new(stream).read_line(&mut first).unwrap();
        assert!(first.contains(&format!(" {expected} ")), "{target}: {first}");
    }
    served.end();
}

#[test]
fn a_stream_of_events_ends_with_its_session() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), |options| {
        options.tokens = Some(tokens(folder.path(), &[("shop", "read")]));
    });
    let signed_in = served.ask("POST", "/session", Some(&json!({ "token": token("shop") })), &[]);
    let cookie = signed_in.headers["set-cookie"].split(';').next().unwrap();
    let me = || served.ask("GET", "/v1/me", None, &[("cookie", cookie)]).status;
    assert_eq!(me(), 200);
    let (status, mut stream) = served.listen(&format!("Cookie: {cookie}\r\nConnection: close\r\n"));
    assert!(status.contains("200"), "{status}");
    assert_eq!(served.ask("DELETE", "/session", None, &[("cookie", cookie)]).status, 204);
    // The stream ends, and the connection with it.
    stream.read_to_string(&mut String::new()).unwrap();
    assert_eq!(me(), 401, "the cookie is of no use any more");
    served.end();
}
