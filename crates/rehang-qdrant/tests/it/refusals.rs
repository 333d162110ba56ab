//! Refusals: each collection that cannot be a gallery is refused in one clear sentence, with nothing written.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use rehang_core::{Distance, ErrorKind, Provenance, Space};
use rehang_qdrant::{CollectionOptions, QdrantAddress, QdrantStore};
use rehang_store::{Examined, ItemKey, ItemWrite, Ledger, NewVector, Queue, VectorWrite, WriteOutcome};
use serde_json::{Value, json};

use crate::server;
use crate::tls::{TlsServer, authority};

fn options(collection: &str, vector: Option<&str>) -> CollectionOptions {
    CollectionOptions {
        collection: collection.to_owned(),
        source: Some("body".into()),
        vector: vector.map(str::to_owned),
        ..CollectionOptions::default()
    }
}

#[test]
fn addresses_and_names_are_looked_at_before_anything_is_sent() {
    let look = |address: QdrantAddress, options: &CollectionOptions| {
        QdrantStore::inspect(&address, options).expect_err("it cannot be").to_string()
    };
    let good = options("c", None);
    for url in ["", "127.0.0.1:6333", "ftp://host", "http://", "http://user:secret@host:1", "http://a b"] {
        let said = look(QdrantAddress::new(url), &good);
        assert!(said.contains("url") && !said.contains("secret"), "{url}: {said}");
    }
    let key = || Some("secret-word".to_owned());
    let said = look(QdrantAddress::new("http://example.org:6333").with_key(key()), &good);
    assert!(said.contains("https") && !said.contains("secret-word"), "{said}");
    let shown = format!("{:?}", QdrantAddress::new("http://127.0.0.1:1").with_key(key()));
    assert!(!shown.contains("secret-word"), "{shown}");
    let here = || QdrantAddress::new("http://127.0.0.1:1");
    for name in ["", "a/b", "..", "a?b"] {
        assert!(look(here(), &options(name, None)).contains("collection"), "{name}");
    }
    for source in ["", "a..b", "a b", "rehang", "rehang_tag.n", "a[0]"] {
        let options = CollectionOptions { source: Some(source.into()), ..good.clone() };
        assert!(look(here(), &options).contains("source"), "{source}");
    }
}

#[test]
fn an_old_server_is_refused_by_its_version() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let old = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut asked = [0; 4096];
        assert!(stream.read(&mut asked).unwrap() > 0);
        let body = r#"{"title":"qdrant - vector search engine","version":"1.17.1"}"#;
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    });
    let error = QdrantStore::inspect(&QdrantAddress::new(url), &options("c", None)).unwrap_err();
    old.join().unwrap();
    let said = error.to_string();
    assert!(said.contains("1.17.1") && said.contains("1.18"), "{said}");
}

/// A server whose limits are reached says how long to wait.
#[test]
fn a_server_that_asks_for_a_wait_is_asked_again_after_it() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let version = json!({"version": "1.17.1"}).to_string();
        for head in ["429 Too Many Requests\r\nretry-after: 1", "200 OK"] {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = [0; 4096];
            assert!(stream.read(&mut asked).unwrap() > 0);
            let head =
                format!("HTTP/1.1 {head}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", version.len());
            stream.write_all(format!("{head}{version}").as_bytes()).unwrap();
        }
    });
    let began = rehang_clock::now();
    let error = QdrantStore::inspect(&QdrantAddress::new(url), &options("c", None)).unwrap_err();
    assert!(error.to_string().contains("1.17.1") && began.elapsed() >= Duration::from_secs(1), "{error}");
    server.join().unwrap();
}

#[test]
fn what_is_not_there_is_named() {
    let Some(server) = server::server() else { return };
    let address = server.address();
    let name = server::fresh("refused");
    let no_such = QdrantStore::inspect(&address, &options(&name, None)).unwrap_err();
    assert!(matches!(no_such.kind(), ErrorKind::NotFound { .. }), "{no_such}");
    server::collection(&server.url, &name, 4);
    let said = QdrantStore::inspect(&address, &options(&name, Some("nothing"))).unwrap_err().to_string();
    assert!(said.contains("nothing") && said.contains("embedding"), "{said}");
    let not_yet = QdrantStore::open(&address, &options(&name, None), None).unwrap_err();
    assert!(matches!(not_yet.kind(), ErrorKind::NotFound { .. }), "{not_yet}");

    let good = options(&name, Some("embedding"));
    let store = QdrantStore::adopt(&address, &good, Some("old"), &|_, _| true).unwrap();
    let other = CollectionOptions { source: Some("other".into()), ..good.clone() };
    let error = QdrantStore::adopt(&address, &other, None, &|_, _| true).unwrap_err();
    assert!(error.is_conflict() && error.to_string().contains("body"), "{error}");
    for space in [Space::new("old", 5, Distance::L2, false), Space::new("old", 4, Distance::Dot, false)] {
        let error = store.create_space(&space, Provenance::Old).unwrap_err();
        assert!(error.is_conflict() && error.to_string().contains("embedding"), "{error}");
    }
    assert_eq!(store.spaces(), Ok(vec![]));
}

#[test]
fn ids_that_would_be_taken_for_numbers_are_refused() {
    let Some(server) = server::server() else { return };
    let name = server::fresh("ids");
    server::collection(&server.url, &name, 2);
    let point = json!({"id": "00000000-0000-0000-0000-000000000007", "vector": {}, "payload": {"body": "x"}});
    let path = format!("/collections/{name}/points?wait=true");
    server::send(&server.url, "PUT", &path, &json!({"points": [point, {"id": 7, "vector": {}}]}));
    let error = QdrantStore::adopt(&server.address(), &options(&name, None), None, &|_, _| true).unwrap_err();
    assert!(
        error.to_string().contains("points with other ids, such as 00000000-0000-0000-0000-000000000007"),
        "{error}"
    );
    let there = server::send(
        &server.url,
        "POST",
        &format!("/collections/{name}/points/scroll"),
        &json!({"with_payload": true}),
    );
    assert_eq!(there["points"][0]["payload"], json!({}), "nothing was written");

    // Points with such ids that come later hide no other point.
    let name = server::fresh("later");
    server::collection(&server.url, &name, 2);
    let store = QdrantStore::adopt(&server.address(), &options(&name, None), None, &|_, _| true).unwrap();
    let half = |half: u32, n: u32| json!({"id": format!("0000000{half}-0000-0000-0000-{n:012}"), "vector": {}, "payload": {"body": "x"}});
    let points: Vec<Value> = (0..1_500).map(|n| half(0, n)).chain((0..20).map(|n| half(1, n))).collect();
    let path = format!("/collections/{name}/points?wait=true");
    server::send(&server.url, "PUT", &path, &json!({"points": points}));
    assert!(store.newest_revision().unwrap() > 0);
    let space = Space::new("new", 2, Distance::L2, false);
    store.create_space(&space, Provenance::Native).unwrap();
    assert_eq!(store.counts("new").unwrap().items, 20);
    let claimed = store.claim("new", Queue::All, "worker", 99, Duration::from_mins(1)).unwrap();
    assert_eq!(claimed.records.len(), 20);
    let problems = store.check().unwrap();
    assert_eq!((problems.len(), problems[0].count), (1, 1_500));
    let replicated = server::fresh("params");
    let body: Value = json!({"vectors": {}, "optimizers_config": {"prevent_unoptimized": true}});
    server::send(&server.url, "PUT", &format!("/collections/{replicated}"), &body);
    let error = QdrantStore::inspect(&server.address(), &options(&replicated, None)).unwrap_err();
    assert!(error.to_string().contains("prevent_unoptimized"), "{error}");
}

#[test]
fn a_wrong_key_is_said_and_never_shown() {
    let Some(server) = server::Server::start(Some("right-word")) else {
        return server::skipped();
    };
    for key in [None, Some("wrong-word".to_owned())] {
        let address = server.address().with_key(key);
        let error = QdrantStore::inspect(&address, &options("c", None)).unwrap_err();
        assert!(error.is_unauthorised(), "{error}");
        assert!(!error.to_string().contains("wrong-word"), "{error}");
    }
    let address = server.address().with_key(Some("right-word".into()));
    let error = QdrantStore::inspect(&address, &options("c", None)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NotFound { .. }), "{error}");
}

/// Starts a listener that answers like a server of 1.19 with a collection of this description,
/// and returns its address.
fn described(collection: &Value) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let collection = collection.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut asked = [0; 4096];
            let count = stream.read(&mut asked).unwrap();
            let line = String::from_utf8_lossy(&asked[..count]).into_owned();
            let body = match line.split(' ').nth(1) {
                Some("/") => json!({"version": "1.19.0"}),
                Some("/aliases") => json!({"result": {"aliases": []}}),
                Some("/collections/rehang_c/exists") => json!({"result": {"exists": false}}),
                Some("/collections/c/exists") => json!({"result": {"exists": true}}),
                Some("/collections/c") => json!({"result": collection}),
                other => panic!("{other:?} is asked of a collection that is refused"),
            };
            let body = body.to_string();
            let head =
                format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        }
    });
    url
}

/// Every limit of a collection that would end an upgrade half-way, after something was paid for.
#[test]
fn a_collection_in_which_no_upgrade_could_end_is_refused_by_what_it_says_of_itself() {
    let refused = |params: Value, strict: Value| {
        let vectors = json!({
            "embedding": {"size": 4, "distance": "Cosine"},
            "lists": {"size": 4, "distance": "Cosine", "multivector_config": {"comparator": "max_sim"}},
        });
        let mut described_as = json!({
            "status": "green", "points_count": 3, "payload_schema": {},
            "config": {"params": {"vectors": vectors}, "optimizer_config": {}, "strict_mode_config": strict},
        });
        for (name, value) in params.as_object().unwrap() {
            described_as["config"]["params"][name] = value.clone();
        }
        let vector = if strict.is_null() && params == json!({}) { "lists" } else { "embedding" };
        let address = QdrantAddress::new(described(&described_as));
        let adopted = QdrantStore::adopt(&address, &options("c", Some(vector)), Some("old"), &|_, _| true);
        let looked = QdrantStore::inspect(&address, &options("c", Some(vector))).unwrap_err();
        assert_eq!(adopted.unwrap_err(), looked, "init says what adopt says");
        assert!(matches!(looked.kind(), ErrorKind::InvalidOption { .. }), "{looked}");
        looked.to_string()
    };
    let strict = |name: &str, value: Value| json!({"enabled": true, name: value});
    for (params, limits, words) in [
        (json!({"sharding_method": "custom"}), json!(null), ["custom sharding", "copy the points"]),
        (json!({"replication_factor": 2}), json!(null), ["replicas", "replication_factor 1"]),
        (json!({}), json!(null), ["lists", "multivector"]),
        (json!({}), strict("search_allow_exact", json!(false)), ["search_allow_exact", "counts exactly"]),
        (json!({}), strict("filter_max_conditions", json!(20)), ["filter_max_conditions", "64 or more"]),
        (json!({}), strict("condition_max_size", json!(100)), ["condition_max_size", "1000 or more"]),
    ] {
        let said = refused(params, limits);
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    }
}

/// Width of the new space in the test of requests with a limit.
const WIDTH: usize = 1024;
const ITEMS: usize = 300;

#[test]
fn requests_are_no_larger_than_a_proxy_takes() {
    let Some(server) = server::Server::start_with(None, &[("QDRANT__SERVICE__MAX_REQUEST_SIZE_MB", "1")])
    else {
        return server::skipped();
    };
    server::collection(&server.url, "docs", 2);
    let options = CollectionOptions { payload: Some("more".into()), ..options("docs", Some("embedding")) };
    let open = |address: QdrantAddress| QdrantStore::adopt(&address, &options, Some("old"), &|_, _| true);
    let whole = open(server.address()).unwrap();
    whole.create_space(&Space::new("old", 2, Distance::L2, false), Provenance::Old).unwrap();
    whole.create_space(&Space::new("new", WIDTH, Distance::L2, false), Provenance::Native).unwrap();
    let too_small = open(server.address().with_request_max(1000)).unwrap_err().to_string();
    assert!(too_small.contains("request_max"), "{too_small}");
    let new = |number: usize| (0..WIDTH).map(|at| (number * at) as f32 / 7.0).collect::<Vec<f32>>();
    let item = |number: usize| {
        let vectors = vec![
            NewVector::from_model("old", vec![1.0, number as f32], Provenance::Old),
            NewVector::from_model("new", new(number), Provenance::Native),
        ];
        ItemWrite::new(number.to_string(), Some(format!("text {number}")), vectors)
    };
    let items: Vec<ItemWrite> = (0..ITEMS).map(item).collect();
    let said = whole.put(&items).unwrap_err().to_string();
    assert!(said.contains("request_max") && said.contains("bytes"), "{said}");
    let store = open(server.address().with_request_max(1_000_000)).unwrap();
    store.put(&items).unwrap();
    let ids: Vec<String> = (0..ITEMS).map(|number| number.to_string()).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let keys = || -> Vec<_> { store.get(&ids).unwrap().into_iter().map(|item| item.unwrap()).collect() };
    let vectors = |items: &[rehang_store::Item]| {
        let keys: Vec<ItemKey> = items.iter().map(|item| item.key).collect();
        store
            .vectors("new", &keys)
            .unwrap()
            .into_iter()
            .map(|vector| vector.unwrap().vector)
            .collect::<Vec<_>>()
    };
    let wanted: Vec<Vec<f32>> = (0..ITEMS).map(new).collect();
    assert!(vectors(&keys()) == wanted, "as they were put");
    // The application's upserts take the vectors away, and a worker writes them again.
    let points: Vec<Value> = (0..ITEMS)
        .map(|number| json!({"id": number, "vector": {"embedding": [1.0, number]}, "payload": {"body": "other"}}))
        .collect();
    server::send(&server.url, "PUT", "/collections/docs/points?wait=true", &json!({"points": points}));
    let writes: Vec<VectorWrite> =
        keys().iter().zip(&wanted).map(|(item, vector)| VectorWrite::native(item, vector.clone())).collect();
    let outcomes = store.write_vectors("new", None, &writes).unwrap();
    assert!(outcomes.iter().all(|outcome| *outcome == WriteOutcome::Written), "{outcomes:?}");
    assert!(vectors(&keys()) == wanted, "as they were written");
}

#[test]
fn a_server_over_tls_is_trusted_by_its_authority_alone() {
    let folder = tempfile::tempdir().unwrap();
    let server = TlsServer::http(|_, _| r#"{"title":"qdrant","version":"1.17.1"}"#.into());
    let look = |file| {
        let address = QdrantAddress::new(server.url()).with_root_certificates(file);
        QdrantStore::inspect(&address, &options("c", None)).unwrap_err()
    };
    let error = look(None);
    let said = error.to_string();
    for words in
        ["the certificate of localhost", "not trusted", "[gallery] root_certificates", "SSL_CERT_FILE"]
    {
        assert!(said.contains(words), "{said}");
    }
    assert!(error.is_conflict(), "{error:?}");
    assert_eq!(server.connections(), 1, "no attempt more");
    let said = look(Some(folder.path().join("nowhere.pem"))).to_string();
    assert!(said.contains("[gallery] root_certificates") && said.contains("nowhere.pem"), "{said}");
    // The server is heard now, and refused as too old.
    let said = look(Some(authority(folder.path()))).to_string();
    assert!(said.contains("1.17.1"), "{said}");
}
