//! Requests over TLS and through proxies, on this machine.

mod tls;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::thread;
use std::time::Duration;

use rehang_connect::{Connection, OwnRoots};
use tls::{TlsServer, authority};
use ureq::Agent;

const KEY: &str = "[encoder] root_certificates";

/// Sends a request. Gives its answer, or the sentence that says who is to blame, or `None` for a failure that
/// may pass.
fn ask(url: &str, file: Option<&Path>, set: &[(&str, &str)]) -> Result<String, Option<String>> {
    let variable =
        |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
    let connection = Connection::to(url, &OwnRoots { key: KEY, file }, &variable).unwrap();
    let settings = Agent::config_builder().timeout_connect(Some(Duration::from_secs(30)));
    let agent: Agent = connection.configure(settings).build().into();
    let said = agent.get(url).call().and_then(|mut answer| answer.body_mut().read_to_string());
    said.map_err(|error| connection.blame(&error).map(|error| error.to_string()))
}

/// Starts a proxy on this machine that gives every request the same answer, and returns its address.
fn proxy(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut seen = Vec::new();
            while !seen.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                if stream.read(&mut byte).unwrap_or(0) == 0 {
                    break;
                }
                seen.push(byte[0]);
            }
            drop(stream.write_all(answer.as_bytes()));
        }
    });
    address
}

/// Address of a port at which nobody listens.
fn nobody() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[test]
fn a_server_is_trusted_by_the_key_or_by_a_variable() {
    let folder = tempfile::tempdir().unwrap();
    let file = authority(folder.path());
    let server = TlsServer::http(|_, _| "here".into());
    assert_eq!(ask(&server.url(), Some(&file), &[]), Ok("here".into()));
    for (name, value) in [("SSL_CERT_FILE", file.as_path()), ("SSL_CERT_DIR", folder.path())] {
        assert_eq!(ask(&server.url(), None, &[(name, value.to_str().unwrap())]), Ok("here".into()), "{name}");
    }
}

#[test]
fn an_untrusted_certificate_is_named_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let file = authority(folder.path());
    let server = TlsServer::http(|_, _| "here".into());
    let said = ask(&server.url(), None, &[]).unwrap_err().expect("the certificate is to blame");
    for words in ["the certificate of localhost", "is not trusted", KEY, "SSL_CERT_FILE"] {
        assert!(said.contains(words), "{said}");
    }
    let numbered = server.url().replace("localhost", "127.0.0.1");
    let said = ask(&numbered, Some(&file), &[]).unwrap_err().expect("the certificate is to blame");
    assert!(said.contains("the certificate of 127.0.0.1") && said.contains("localhost"), "{said}");
}

#[test]
fn a_file_is_read_before_anything_is_sent() {
    let set = |_: &str| None;
    let own = OwnRoots { key: KEY, file: Some(Path::new("/nowhere/authority.pem")) };
    let said = Connection::to("http://localhost:1", &own, &set).unwrap_err().to_string();
    assert!(said.contains(KEY) && said.contains("/nowhere/authority.pem"), "{said}");
}

#[test]
fn a_proxy_is_to_blame_for_itself_alone() {
    let unasked = "HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n";
    let down = nobody();
    for (at, words) in [
        (down.clone(), &["does not answer", "NO_PROXY"][..]),
        (proxy(unasked), &["status 407", "NAME:PASSWORD@"]),
        (proxy("HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n"), &["status 403", "NO_PROXY"]),
        (proxy(""), &["does not answer"]),
    ] {
        for url in ["http://embed.corp.example/v1", "https://embed.corp.example/v1"] {
            let said = ask(url, None, &[("ALL_PROXY", &at)]).unwrap_err().expect("the proxy is to blame");
            assert!(said.contains(&format!("the proxy http://{at} (ALL_PROXY)")), "{said}");
            assert!(words.iter().all(|word| said.contains(word)), "{said}");
        }
    }
    let gateway = proxy("HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n");
    assert_eq!(ask("http://embed.corp.example", None, &[("http_proxy", &gateway)]), Err(None));
    let socks = format!("socks5h://me:word@{down}");
    let said = ask("http://embed.corp.example", None, &[("http_proxy", &socks)]).unwrap_err().unwrap();
    assert!(said.contains(&format!("socks5h://{down}")) && !said.contains("word"), "{said}");
    let refused =
        ask("http://embed.corp.example", None, &[("http_proxy", &format!("me:word@{}", proxy(unasked)))]);
    let said = refused.unwrap_err().unwrap();
    assert!(said.contains("does not take the name and the password") && !said.contains("word@"), "{said}");
}

#[test]
fn no_proxy_stands_before_this_machine() {
    let folder = tempfile::tempdir().unwrap();
    let file = authority(folder.path());
    let server = TlsServer::http(|_, _| "here".into());
    assert_eq!(ask(&server.url(), Some(&file), &[("ALL_PROXY", &nobody())]), Ok("here".into()));
}
