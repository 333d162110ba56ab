use std::net::TcpListener;

use rehang_clock::ManualClock;
use rehang_core::Distance;
use serde_json::json;

use super::stub::{Stub, vector};
use super::tls::{TlsServer, authority};
use super::*;

/// Opens an encoder of a service at an address, in an environment.
fn open(url: &str, more: &Value, set: &[(&str, &str)]) -> Result<(Http, Arc<ManualClock>)> {
    let mut config = json!({"url": url, "model": "m", "batch": 4, "concurrency": 2, "attempts": 3});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let config: HttpConfig = serde_json::from_value(config).unwrap();
    let clock = Arc::new(ManualClock::default());
    let set: Vec<(String, String)> =
        set.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    let variable = move |name: &str| Some(set.iter().find(|(key, _)| key == name)?.1.clone());
    let space = Space::new("new", 2, Distance::L2, false);
    Ok((Http::with(&config, &space, Arc::clone(&clock) as Arc<dyn Clock>, variable)?, clock))
}

fn embed(http: &Http) -> Result<Vec<Answer>> {
    let texts = ["1", "2", "3", "4", "5", "6"];
    http.encode(&texts.map(|text| Input { id: text, source: text, payload: &Value::Null }))
}

/// Checks that a call ends at once, without a wait, and the next one too; gives the error. Nothing is paid
/// for.
fn ends_at_once(url: &str, set: &[(&str, &str)]) -> String {
    let (http, clock) = open(url, &json!({}), set).unwrap();
    let error = embed(&http).unwrap_err();
    assert_eq!((clock.waits(), http.spent()), (vec![], Spent::default()), "{error}");
    error.to_string()
}

/// Starts a service over TLS.
fn service() -> TlsServer {
    TlsServer::http(|_, body| {
        let body: Value = serde_json::from_slice(body).unwrap();
        let texts = body["input"].as_array().unwrap();
        let data = texts
            .iter()
            .enumerate()
            .map(|(index, text)| json!({"index": index, "embedding": vector(text.as_str().unwrap())}));
        json!({"data": data.collect::<Vec<_>>()}).to_string()
    })
}

#[test]
fn an_untrusted_certificate_ends_at_the_first_handshake() {
    let service = service();
    let message = ends_at_once(&service.url(), &[]);
    for words in
        ["the certificate of localhost", "not trusted", "[encoder] root_certificates", "SSL_CERT_FILE"]
    {
        assert!(message.contains(words), "{message}");
    }
    assert!(!message.contains("does not answer"), "{message}");
    assert_eq!(service.connections(), 1);
}

#[test]
fn a_services_own_authority_is_trusted_where_it_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = authority(folder.path());
    let (service, path) = (service(), file.to_str().unwrap());
    let right: Vec<Answer> = ["1", "2", "3", "4", "5", "6"].map(|text| Ok(vector(text).to_vec())).into();
    for (more, set) in [
        (json!({"root_certificates": path}), [("NONE", "")]),
        (json!({}), [("SSL_CERT_FILE", path)]),
        (json!({}), [("SSL_CERT_DIR", folder.path().to_str().unwrap())]),
    ] {
        let (http, _) = open(&service.url(), &more, &set).unwrap();
        assert_eq!(embed(&http).unwrap(), right, "{more} {set:?}");
    }
    let nowhere = json!({"root_certificates": "nowhere.pem"});
    let message = open(&service.url(), &nowhere, &[]).err().unwrap().to_string();
    assert!(message.contains("[encoder] root_certificates") && message.contains("nowhere.pem"), "{message}");
    let config: HttpConfig =
        serde_json::from_value(json!({"url": "http://a", "model": "m", "root_certificates": "a.pem"}))
            .unwrap();
    assert_eq!(config.seen_from(folder.path()).root_certificates, Some(folder.path().join("a.pem")));
}

#[test]
fn a_proxy_that_is_down_is_blamed_itself_at_once() {
    let down = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for (name, value) in [
        ("http_proxy", format!("http://{down}")),
        ("HTTP_PROXY", format!("http://me:secret@{down}")),
        ("ALL_PROXY", format!("socks5h://{down}")),
    ] {
        let message = ends_at_once("http://embed.corp.example:8080", &[(name, &value)]);
        assert!(
            message.starts_with("the proxy ") && message.contains(&down) && message.contains(name),
            "{message}"
        );
        assert!(!message.contains("secret"), "{message}");
    }
    let stub = Stub::script(vec![]);
    let (http, _) = open(&stub.url, &json!({}), &[("ALL_PROXY", &down)]).unwrap();
    assert_eq!(embed(&http).unwrap().len(), 6, "none stands before this machine");
}
