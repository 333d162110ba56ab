//! Small embedding service on the loopback that misbehaves as it is told; the tests of the encoder and of the
//! command line use it.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use serde_json::{Value, json};

/// Request as the service sees it.
#[derive(Debug, Clone)]
pub struct Seen {
    pub method: String,
    pub path: String,
    pub authorization: Option<String>,
    /// All headers, by their names in small letters.
    pub headers: Vec<(String, String)>,
    /// Body as JSON; null where it is none.
    pub body: Value,
    pub bytes: Vec<u8>,
}

impl Seen {
    /// Value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
    }

    /// Texts that are to be embedded.
    pub fn texts(&self) -> Vec<String> {
        let texts = self.body["input"].as_array().unwrap();
        texts.iter().map(|text| text.as_str().unwrap().to_string()).collect()
    }
}

/// Reply of the service to a request.
pub enum Reply {
    /// Answers as a good service does.
    Good,
    /// Answers with a status, headers and a body.
    Status(u16, Vec<(&'static str, String)>, String),
    /// Answers with status 200 and this body.
    Body(String),
    /// Claims a longer body than it sends.
    Truncated,
    /// Closes the connection without a word.
    Close,
    /// Says nothing until the caller gives up.
    Silence,
}

/// Service that ends with the test.
pub struct Stub {
    pub url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Stub {
    /// Starts a service; `reply` gets the number of the request (from 0) and the request. Requests that come
    /// together are served together.
    pub fn start(reply: impl Fn(usize, &Seen) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let (reply, all) = (Arc::new(reply), Arc::clone(&seen));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (reply, all) = (Arc::clone(&reply), Arc::clone(&all));
                thread::spawn(move || {
                    // A caller that goes away in the middle is part of the game.
                    let _ = serve(&stream.unwrap(), &all, &*reply);
                });
            }
        });
        Self { url, seen }
    }

    /// Starts a service that makes one reply after the other, and then those of a good service.
    pub fn script(replies: Vec<Reply>) -> Self {
        let replies = Mutex::new(replies.into_iter());
        Self::start(move |_, _| lock(&replies).next().unwrap_or(Reply::Good))
    }

    /// Starts a good service that is gone after its first request: later connections are refused.
    pub fn once() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let all = Arc::clone(&seen);
        thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            drop(listener);
            serve(&stream, &all, &|_, _| Reply::Good).unwrap();
        });
        Self { url, seen }
    }

    /// All requests so far.
    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.seen).clone()
    }
}

/// Vector of a text: its length, and the number it stands for (or 0).
pub fn vector(text: &str) -> [f32; 2] {
    [text.len() as f32, text.parse().unwrap_or(0.0)]
}

/// Answer of a good service, with every vector changed by `change`.
pub fn good(seen: &Seen, change: impl Fn(&mut Vec<Value>)) -> String {
    good_of(seen, |text| vector(text).to_vec(), change)
}

/// Answer of a good service of another model, with its list of vectors changed by `change`.
pub fn good_of(seen: &Seen, model: impl Fn(&str) -> Vec<f32>, change: impl Fn(&mut Vec<Value>)) -> String {
    let mut data: Vec<Value> = seen
        .texts()
        .iter()
        .enumerate()
        .map(|(index, text)| json!({"object": "embedding", "index": index, "embedding": model(text)}))
        .collect();
    change(&mut data);
    let tokens: usize = seen.texts().iter().map(String::len).sum();
    json!({"object": "list", "data": data, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}})
        .to_string()
}

/// Locks a mutex, also after a panic of another thread.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(
    mut stream: &TcpStream,
    all: &Mutex<Vec<Seen>>,
    reply: &dyn Fn(usize, &Seen) -> Reply,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut words = line.split(' ').map(str::to_string);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (mut length, mut authorization, mut headers) = (0, None, Vec::new());
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim().split_once(": ") else { break };
        headers.push((name.to_ascii_lowercase(), value.to_string()));
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().unwrap(),
            "authorization" => authorization = Some(value.to_string()),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let json = serde_json::from_slice(&body).unwrap_or_default();
    let seen = Seen { method, path, authorization, headers, body: json, bytes: body };
    let number = {
        let mut all = lock(all);
        all.push(seen.clone());
        all.len() - 1
    };
    let (status, headers, body, claimed) = match reply(number, &seen) {
        Reply::Good => (200, Vec::new(), good(&seen, |_| {}), None),
        Reply::Status(status, headers, body) => (status, headers, body, None),
        Reply::Body(body) => (200, Vec::new(), body, None),
        Reply::Truncated => {
            let body = good(&seen, |_| {});
            let claimed = body.len();
            (200, Vec::new(), body[..claimed / 2].to_string(), Some(claimed))
        }
        Reply::Close => return Ok(()),
        Reply::Silence => {
            // The wait ends when the caller closes the connection.
            let _ = reader.read(&mut [0; 1]);
            return Ok(());
        }
    };
    let mut head = format!("HTTP/1.1 {status} Status\r\nConnection: close\r\n");
    for (name, value) in headers {
        write!(head, "{name}: {value}\r\n").unwrap();
    }
    write!(head, "Content-Length: {}\r\n\r\n", claimed.unwrap_or(body.len())).unwrap();
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}
