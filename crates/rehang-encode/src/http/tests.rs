use std::sync::Condvar;
use std::sync::atomic::AtomicUsize;

use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rehang_clock::ManualClock;
use rehang_core::Distance;
use rehang_core::finding::FindingCode;
use serde_json::{Value, json};

use super::stub::{Reply, Seen, Stub, good, good_of, vector};
use super::*;
use crate::EncoderConfig;
use crate::rider::Noise;

fn space() -> Space {
    Space::new("new", 2, Distance::L2, false)
}

fn config(url: &str) -> HttpConfig {
    let text = json!({"url": url, "model": "m", "batch": 4, "concurrency": 1, "attempts": 3, "timeout_seconds": 20.0});
    serde_json::from_value(text).unwrap()
}

/// Opens an encoder with a fake clock, so that no test waits for a backoff.
fn open(stub: &Stub, change: impl FnOnce(&mut HttpConfig)) -> (Http, Arc<ManualClock>) {
    let mut config = config(&stub.url);
    change(&mut config);
    let clock = Arc::new(ManualClock::default());
    let door = Arc::clone(&clock);
    (Http::with(&config, &space(), door, |name| (name == "KEY").then(|| "sk-secret".into())).unwrap(), clock)
}

/// Embeds texts that are their own ids.
fn embed(http: &Http, texts: &[&str]) -> Result<Vec<Answer>> {
    let inputs: Vec<Input<'_>> =
        texts.iter().map(|text| Input { id: text, source: text, payload: &Value::Null }).collect();
    http.encode(&inputs)
}

fn right(texts: &[&str]) -> Vec<Answer> {
    texts.iter().map(|text| Ok(vector(text).to_vec())).collect()
}

fn status(status: u16) -> Reply {
    Reply::Status(status, Vec::new(), format!("{{\"error\":{{\"message\":\"status {status} it is\"}}}}"))
}

const DIGITS: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];

#[test]
fn texts_become_vectors_in_order() {
    let stub = Stub::script(vec![]);
    let (http, clock) = open(&stub, |config| {
        config.key_env = Some("KEY".into());
        config.dimensions = Some(2);
    });
    assert_eq!(embed(&http, &DIGITS).unwrap(), right(&DIGITS));
    assert_eq!(embed(&http, &[]).unwrap(), []);
    let requests = stub.seen();
    assert_eq!(requests.len(), 3);
    assert_eq!(requests[0].path, "/v1/embeddings");
    assert_eq!(requests[0].authorization.as_deref(), Some("Bearer sk-secret"));
    assert_eq!(
        requests[0].body,
        json!({"model": "m", "input": ["0", "1", "2", "3"], "encoding_format": "float", "dimensions": 2})
    );
    assert_eq!(http.spent(), Spent { items: 10, tokens: 10, money: 0.0 });
    assert_eq!(clock.waits(), []);
    assert_eq!(http.batch_max(), 4);
}

#[test]
fn queries_are_asked_for_as_the_service_wants_them() {
    let stub = Stub::script(vec![]);
    let config: HttpConfig = serde_json::from_value(json!({
        "url": stub.url, "model": "m", "prefix": "passage: ", "query_prefix": "query: ",
        "input_type": "document", "query_input_type": "query",
    }))
    .unwrap();
    let queries = |config: &HttpConfig| match EncoderConfig::Http(config.clone()).for_queries().unwrap() {
        EncoderConfig::Http(queries) => queries,
        other => panic!("{other:?}"),
    };
    let ask = |config: &HttpConfig| {
        let http = Http::open(config, &space()).unwrap();
        assert_eq!(http.reads(), Reads::Texts);
        let vectors = embed(&http, &["12"]).unwrap();
        (vectors, stub.seen().last().unwrap().body.clone(), http.spent().tokens)
    };
    let (vectors, body, tokens) = ask(&config);
    assert_eq!(
        body,
        json!({"model": "m", "input": ["passage: 12"], "encoding_format": "float", "input_type": "document"})
    );
    assert_eq!((vectors, tokens), (right(&["passage: 12"]), 11), "the prefix is paid for");
    let (vectors, body, _) = ask(&queries(&config));
    assert_eq!(
        body,
        json!({"model": "m", "input": ["query: 12"], "encoding_format": "float", "input_type": "query"})
    );
    assert_eq!(vectors, right(&["query: 12"]));
    // A key that is not set for queries is as for items.
    let config = HttpConfig { query_prefix: None, query_input_type: None, ..config };
    assert_eq!(ask(&queries(&config)).1, ask(&config).1);
    assert_eq!(config.tokens("12"), 3, "characters of the prefix count");
}

#[test]
fn what_is_for_queries_only_changes_no_fingerprint() {
    let fingerprint = |more: Value| {
        let mut config = json!({"url": "http://localhost", "model": "m", "revision": "1"});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let config: HttpConfig = serde_json::from_value(config).unwrap();
        Http::open(&config, &space()).unwrap().fingerprint().unwrap().unwrap()
    };
    // Galleries of earlier versions hold this fingerprint.
    let plain = "706e17e53d20cf36b5836fd2ad606a0a";
    assert_eq!(fingerprint(json!({})), plain);
    assert_eq!(fingerprint(json!({"query_prefix": "query: ", "query_input_type": "query"})), plain);
    let changed = [json!({"prefix": "document"}), json!({"input_type": "document"})].map(fingerprint);
    assert!(changed[0] != plain && changed[1] != plain && changed[0] != changed[1]);
}

#[test]
fn what_passes_is_tried_again() {
    let bad: [fn() -> Reply; 9] = [
        || status(429),
        || status(500),
        || status(503),
        || Reply::Body("{\"data\": [".into()),
        || Reply::Body("{\"data\": []}".into()),
        || Reply::Body("<html>".into()),
        || Reply::Truncated,
        || Reply::Close,
        || Reply::Status(200, vec![("Content-Type", "text/plain".into())], String::new()),
    ];
    for (at, bad) in bad.into_iter().enumerate() {
        let stub = Stub::script(vec![bad(), bad()]);
        let (http, clock) = open(&stub, |_| {});
        assert_eq!(embed(&http, &["1", "2"]).unwrap(), right(&["1", "2"]), "case {at}");
        let waits = clock.waits();
        if at == 1 {
            // Status 500: the word that every service embeds is asked for, then each text alone.
            assert_eq!((stub.seen().len(), http.spent().items, waits.len()), (5, 6, 1));
        } else {
            assert_eq!(stub.seen().len(), 3, "case {at}");
            // Texts that were refused for limits, or while the service is overloaded, are not paid for.
            assert_eq!(http.spent().items, if [0, 2].contains(&at) { 2 } else { 6 }, "case {at}");
            assert!(waits.len() == 2 && waits[1] >= Duration::from_millis(500), "case {at}: {waits:?}");
        }

        let stub = Stub::start(move |_, _| bad());
        let (http, _) = open(&stub, |_| {});
        // The failure never passes: not even the one word is embedded, so no text is to blame.
        let error = embed(&http, &["1", "2"]).unwrap_err();
        let texts: Vec<_> = stub.seen().iter().map(Seen::texts).collect();
        if at == 0 {
            assert!(error.is_retryable() && error.to_string().contains("requests_per_minute"), "{error}");
            assert!(texts.iter().all(|texts| *texts == ["1", "2"]), "no text is looked for that is to blame");
            continue;
        }
        assert!(
            error.is_retryable() && (at == 1 || error.to_string().contains("attempt 3 of 3")),
            "case {at}: {error}"
        );
        let attempts = if at == 1 { 1 } else { 3 };
        assert_eq!(texts[..attempts], [["1", "2"]; 3][..attempts], "case {at}");
        // A service that is overloaded is waited for.
        let is_enough = if at == 2 { texts.len() > attempts + 3 } else { texts.len() == attempts + 3 };
        assert!(is_enough && texts[attempts..].iter().all(|texts| *texts == [PROBE]), "case {at}: {texts:?}");
    }
}

#[test]
fn an_outage_fails_no_item_also_where_a_request_has_one_text() {
    // Gateways call an outage by any of these.
    for (batch, code) in [1, 4].into_iter().flat_map(|batch| [503, 424, 499, 400].map(|code| (batch, code))) {
        // The service is good for two requests, then down.
        let stub = Stub::start(move |number, _| if number < 2 { Reply::Good } else { status(code) });
        let (http, _) = open(&stub, |config| config.batch = batch);
        let answers = embed(&http, &DIGITS).unwrap();
        let served = 2 * batch;
        assert_eq!(answers[..served], right(&DIGITS[..served]), "what is paid for is handed out");
        assert!(answers[served..].iter().all(|answer| matches!(answer, Err(ItemFailure::Untried(_)))));
        let error = embed(&http, &DIGITS[..1]).unwrap_err();
        let message = error.to_string();
        assert!(error.is_retryable() && message.contains(&format!("status {code}")), "{message}");
    }
}

#[test]
fn the_text_that_brings_the_service_down_is_found() {
    let texts = ["1", "2", "3", "4", "5", "poison", "7", "8"];
    let bad: [fn() -> Reply; 3] = [|| status(500), || Reply::Close, || Reply::Body("{}".into())];
    for (batch, concurrency) in [(8, 1), (8, 3), (3, 1), (1, 1)] {
        for bad in bad {
            let stub = Stub::start(move |_, request| {
                if request.texts().iter().any(|text| text == "poison") { bad() } else { Reply::Good }
            });
            let (http, _) = open(&stub, |config| (config.batch, config.concurrency) = (batch, concurrency));
            let answers = embed(&http, &texts).unwrap();
            for (at, text) in texts.iter().enumerate() {
                if *text == "poison" {
                    match &answers[at] {
                        Err(ItemFailure::Temporary(why)) => assert!(why.contains("attempt 3 of 3"), "{why}"),
                        // The service breaks in the same words each time.
                        Err(ItemFailure::Permanent(why)) => {
                            assert!(batch > 1 && why.contains("status 500"), "{why}");
                        }
                        other => panic!("{other:?}"),
                    }
                } else {
                    assert_eq!(answers[at], Ok(vector(text).to_vec()), "{text}, {batch} a request");
                }
            }
            // The text is found too where nothing else is left that could tell.
            let alone = embed(&http, &["poison"]).unwrap();
            assert!(matches!(alone[0], Err(ItemFailure::Temporary(_))), "{alone:?}");
        }
    }
}

#[test]
fn a_slow_service_costs_its_timeout_and_no_more() {
    let stub = Stub::script(vec![Reply::Silence]);
    let (http, clock) = open(&stub, |config| config.timeout_seconds = 0.2);
    assert_eq!(embed(&http, &["1"]).unwrap(), right(&["1"]));
    assert_eq!(clock.waits().len(), 1);
    // Nobody can know whether the first request was charged, so its estimate stays counted.
    assert_eq!(http.spent().tokens, 2);
    let stub = Stub::start(|_, _| Reply::Silence);
    let (http, _) = open(&stub, |config| {
        config.timeout_seconds = 0.1;
        config.attempts = 2;
    });
    let why = embed(&http, &["1"]).unwrap_err().to_string();
    assert!(why.contains("timeout_seconds = 0.1") && why.contains("attempt 2 of 2"), "{why}");
}

#[test]
fn the_service_says_how_long_to_wait() {
    let asks = |value: &str| {
        let headers =
            vec![("Retry-After", value.to_string()), ("Date", "Sun, 06 Nov 1994 08:49:37 GMT".to_string())];
        Reply::Status(429, headers, String::new())
    };
    let stub = Stub::script(vec![asks("17"), asks("Sun, 06 Nov 1994 08:50:07 GMT")]);
    let (http, clock) = open(&stub, |_| {});
    assert_eq!(embed(&http, &["1"]).unwrap(), right(&["1"]));
    assert_eq!(clock.waits(), [Duration::from_secs(17), Duration::from_secs(30)]);
    // A service that asks for no wait, or for one that is over, gets the one between attempts all the same.
    let stub = Stub::script(vec![asks("0"), asks("Sun, 06 Nov 1994 08:49:00 GMT")]);
    let (http, clock) = open(&stub, |_| {});
    assert_eq!(embed(&http, &["1"]).unwrap(), right(&["1"]));
    let waits = clock.waits();
    assert!(waits[0] >= Duration::from_millis(250) && waits[1] >= Duration::from_millis(500), "{waits:?}");
}

#[test]
fn a_limit_by_the_minute_is_waited_out_and_kept() {
    let clock = Arc::new(ManualClock::default());
    let (time, window) = (Arc::clone(&clock), Mutex::new((Duration::ZERO, 0)));
    let refused = Arc::new(AtomicUsize::new(0));
    let refusals = Arc::clone(&refused);
    let stub = Stub::start(move |_, _| {
        let mut window = lock(&window);
        let since = time.now().saturating_sub(window.0);
        if since >= Duration::from_mins(1) {
            *window = (time.now(), 0);
        }
        window.1 += 1;
        if window.1 <= 10 {
            return Reply::Good;
        }
        refusals.fetch_add(1, Ordering::Relaxed);
        let seconds_left = 60.0 - time.now().saturating_sub(window.0).as_secs_f64();
        let message = format!(
            "Rate limit reached on requests per min (RPM): Limit 10. Please try again in {seconds_left:.1}s."
        );
        Reply::Status(429, Vec::new(), json!({"error": {"message": message, "type": "requests"}}).to_string())
    });
    let http =
        Http::with(&config(&stub.url), &space(), Arc::clone(&clock) as Arc<dyn Clock>, |_| None).unwrap();
    let texts: Vec<String> = (0..400).map(|number| number.to_string()).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    assert_eq!(embed(&http, &texts).unwrap(), right(&texts), "no text is to blame");
    let (all, refused) = (stub.seen().len(), refused.load(Ordering::Relaxed));
    assert!((100..150).contains(&all) && refused <= 4, "{refused} of {all} requests were refused");
    let minutes = clock.now().as_secs_f64() / 60.0;
    assert!(minutes < 1.3 * all as f64 / 10.0, "{all} requests in {minutes} minutes");
}

#[test]
#[allow(clippy::disallowed_methods, reason = "a service takes its time")]
fn a_service_that_is_slow_for_its_batches_gets_smaller_ones() {
    let texts: Vec<String> = (0..300).map(|number| number.to_string()).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    for poisoned in [false, true] {
        let stub = Stub::start(move |_, request| {
            if poisoned && request.texts().iter().any(|text| text == "7") {
                return Reply::Silence;
            }
            let ms_per_text = if poisoned { 0 } else { 10 };
            thread::sleep(Duration::from_millis(ms_per_text * request.texts().len() as u64));
            Reply::Good
        });
        let (http, _) = open(&stub, |config| {
            (config.batch, config.concurrency, config.timeout_seconds) = (64, 2, 0.5);
        });
        let answers = embed(&http, &texts).unwrap();
        let right: Vec<bool> =
            answers.iter().zip(right(&texts)).map(|(answer, right)| *answer == right).collect();
        assert_eq!(right.iter().filter(|right| !**right).count(), usize::from(poisoned));
        assert!(right[7] != poisoned);
        let sent: usize = stub.seen().iter().map(|request| request.texts().len()).sum();
        assert!(sent < 900, "{sent} texts were sent for 300");
        assert_eq!(http.seats() < 60, !poisoned, "one text that hangs the service makes no request smaller");
    }
}

#[test]
fn what_an_answer_with_status_200_says_is_heard() {
    let limited = || Reply::Body("{\"error\": {\"message\": \"slow down\", \"code\": 429}}".into());
    let stub = Stub::script(vec![limited(), limited()]);
    let (http, _) = open(&stub, |_| {});
    assert_eq!(embed(&http, &["1", "2"]).unwrap(), right(&["1", "2"]));
    assert_eq!(http.spent().items, 2, "what was refused is not paid for");
    let stub = Stub::start(|_, _| Reply::Body("{\"error\": \"no such tenant\"}".into()));
    let (http, _) = open(&stub, |_| {});
    let message = embed(&http, &["1", "2"]).unwrap_err().to_string();
    assert!(message.contains("no such tenant"), "{message}");
}

#[test]
fn a_wrong_key_with_status_400_is_a_wrong_key() {
    let body = json!({"error": {"code": 400, "message": "API key not valid. Please pass a valid API key."}});
    let stub = Stub::start(move |_, _| Reply::Status(400, Vec::new(), body.to_string()));
    let (http, _) = open(&stub, |config| config.key_env = Some("KEY".into()));
    let error = embed(&http, &DIGITS).unwrap_err();
    assert!(error.is_unauthorised() && error.to_string().contains("the key comes from KEY"), "{error}");
    assert_eq!(stub.seen().len(), 1);
}

#[test]
fn a_service_that_is_loading_is_waited_for() {
    for batch in [1, 4] {
        let clock = Arc::new(ManualClock::default());
        let time = Arc::clone(&clock);
        let stub = Stub::start(
            move |_, _| {
                if time.now() < Duration::from_secs(150) { status(503) } else { Reply::Good }
            },
        );
        let config = HttpConfig { batch, ..config(&stub.url) };
        let http = Http::with(&config, &space(), Arc::clone(&clock) as Arc<dyn Clock>, |_| None).unwrap();
        assert_eq!(embed(&http, &DIGITS).unwrap(), right(&DIGITS));
        assert!(clock.now() < Duration::from_mins(4), "{:?}", clock.now());
    }
}

#[test]
fn a_long_wait_ends_the_call_and_holds_for_every_later_one() {
    let asks = Reply::Status(429, vec![("Retry-After", "3600".into())], String::new());
    let stub = Stub::script(vec![Reply::Good, asks]);
    let (http, clock) = open(&stub, |_| {});
    let answers = embed(&http, &DIGITS).unwrap();
    assert_eq!(answers[..4], right(&DIGITS[..4]), "what is paid for is handed out");
    let untried =
        |answer: &Answer| matches!(answer, Err(ItemFailure::Untried(why)) if why.contains("3600 s"));
    assert!(answers[4..].iter().all(untried), "{answers:?}");
    // A call that comes again too early is not sent on, and does not stand still for an hour either.
    for _ in 0..2 {
        let error = embed(&http, &DIGITS).unwrap_err();
        assert!(error.is_retryable() && error.to_string().contains("3600 s more"), "{error}");
    }
    assert_eq!((stub.seen().len(), clock.waits()), (2, vec![]));
    clock.sleep_until(Duration::from_hours(1), &|| false);
    assert_eq!(embed(&http, &DIGITS).unwrap(), right(&DIGITS));
    // No request is held back for longer than a day.
    let stub = Stub::script(vec![Reply::Status(503, vec![("Retry-After", "1e19".into())], String::new())]);
    let (http, clock) = open(&stub, |_| {});
    assert!(embed(&http, &["1"]).unwrap_err().is_retryable());
    clock.sleep_until(PAUSE_MAX, &|| false);
    assert_eq!(embed(&http, &["1"]).unwrap(), right(&["1"]));
}

#[test]
fn wrong_credentials_stop_at_once_and_the_key_is_not_shown() {
    for code in [401, 403] {
        let stub = Stub::start(move |_, _| {
            Reply::Status(code, vec![], "{\"error\":{\"message\":\"no such key sk-secret\"}}".into())
        });
        let (http, _) = open(&stub, |config| config.key_env = Some("KEY".into()));
        for _ in 0..2 {
            let error = embed(&http, &DIGITS).unwrap_err();
            assert!(error.is_unauthorised(), "{error}");
            let words = error.to_string();
            assert!(words.contains("KEY") && !words.contains("sk-secret"), "{words}");
        }
        assert_eq!(stub.seen().len(), 1);
    }
}

#[test]
fn credentials_that_end_half_way_lose_nothing_that_is_paid() {
    let stub = Stub::script(vec![Reply::Good, status(401)]);
    let (http, _) = open(&stub, |_| {});
    let answers = embed(&http, &DIGITS).unwrap();
    assert_eq!(answers[..4], right(&DIGITS[..4]));
    assert!(answers[4..].iter().all(|answer| matches!(answer, Err(ItemFailure::Untried(_)))));
    assert!(embed(&http, &DIGITS).unwrap_err().is_unauthorised());
    assert_eq!(stub.seen().len(), 2);
}

#[test]
fn the_text_that_spoils_a_request_is_found() {
    let stub = Stub::start(|_, request| {
        let poison = request.texts().iter().any(|text| text == "poison");
        if poison { status(400) } else { Reply::Good }
    });
    let (http, clock) = open(&stub, |config| config.batch = 8);
    let texts = ["1", "2", "3", "4", "5", "poison", "7", "8"];
    let answers = embed(&http, &texts).unwrap();
    for (at, text) in texts.iter().enumerate() {
        if *text == "poison" {
            let Err(ItemFailure::Permanent(why)) = &answers[at] else { panic!("{answers:?}") };
            assert!(why.contains("status 400 it is"), "{why}");
        } else {
            assert_eq!(answers[at], Ok(vector(text).to_vec()));
        }
    }
    // The requests are the first four, four, two, one, one, two: halves until the text stands alone.
    assert_eq!(stub.seen().len(), 6);
    assert_eq!(clock.waits(), []);
}

#[test]
fn a_service_that_refuses_every_text_stops_the_run() {
    let stub = Stub::start(|_, _| status(422));
    let (http, _) = open(&stub, |_| {});
    let error = embed(&http, &DIGITS).unwrap_err();
    assert!(error.to_string().contains("refuses every text"), "{error}");
}

#[test]
fn what_no_item_can_survive_stops_the_run() {
    type Make = fn() -> Reply;
    let quota = || Reply::Status(429, vec![], "{\"error\":{\"code\":\"insufficient_quota\"}}".into());
    let moved = || Reply::Status(301, vec![("Location", "https://elsewhere/".into())], String::new());
    let cases: [(Make, &str); 7] = [
        (|| status(404), "embedding endpoint or model"),
        (|| status(501), "embedding endpoint or model"),
        (|| status(410), "embedding endpoint or model"),
        (|| status(405), "embedding endpoint or model"),
        (|| status(402), "status 402 it is"),
        (quota, "insufficient_quota"),
        (moved, "https://elsewhere/"),
    ];
    for (reply, words) in cases {
        let stub = Stub::start(move |_, _| reply());
        let (http, _) = open(&stub, |_| {});
        let error = embed(&http, &DIGITS).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(stub.seen().len(), 1, "{words}");
    }
}

#[test]
fn another_width_stops_the_run() {
    let stub = Stub::start(|_, request| {
        Reply::Body(good(request, |data| {
            for entry in data {
                entry["embedding"] = json!([1, 2, 3]);
            }
        }))
    });
    let (http, _) = open(&stub, |_| {});
    let error = embed(&http, &["1"]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WidthMismatch { expected: 2, received: 3, .. }), "{error}");
}

#[test]
fn a_vector_with_null_or_without_numbers_fails_its_item_alone() {
    for wrong in [json!([null, 1.0]), json!([])] {
        let stub = Stub::start(move |_, request| {
            Reply::Body(good(request, |data| data[1]["embedding"] = wrong.clone()))
        });
        let (http, _) = open(&stub, |_| {});
        let answers = embed(&http, &["1", "2", "3"]).unwrap();
        assert!(matches!(answers[1], Err(ItemFailure::Permanent(_))));
        assert!(answers[0].is_ok() && answers[2].is_ok());
    }
}

#[test]
fn nobody_there_stops_the_run() {
    // The port is free again when the listener goes.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let clock = Arc::new(ManualClock::default());
    let door = Arc::clone(&clock);
    let http = Http::with(&config(&url), &space(), door, |_| None).unwrap();
    let error = embed(&http, &["1"]).unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains(&url), "{error}");
    assert_eq!(clock.waits().len(), 2);
    assert_eq!(http.spent(), Spent::default(), "nothing was sent");
}

#[test]
fn a_service_that_goes_in_the_middle_fails_no_item() {
    let stub = Stub::once();
    let (http, clock) = open(&stub, |_| {});
    let answers = embed(&http, &DIGITS).unwrap();
    assert_eq!(answers[..4], right(&DIGITS[..4]), "what is paid for is handed out");
    assert!(answers[4..].iter().all(|answer| matches!(answer, Err(ItemFailure::Untried(_)))));
    assert_eq!(clock.waits().len(), 2, "it was looked for as often as it may be");
    let error = embed(&http, &DIGITS[4..]).unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains(&stub.url), "{error}");
    assert_eq!((http.spent().items, http.spent().tokens), (4, 4));
}

#[test]
fn as_many_requests_as_allowed_are_under_way() {
    const AT_ONCE: usize = 3;
    let (now, most) = (Arc::new((Mutex::new(0), Condvar::new())), Arc::new(AtomicUsize::new(0)));
    let (here, seen_most) = (Arc::clone(&now), Arc::clone(&most));
    let stub = Stub::start(move |number, _| {
        let (count, changed) = &*here;
        let mut count = lock(count);
        *count += 1;
        seen_most.fetch_max(*count, Ordering::Relaxed);
        changed.notify_all();
        // The very first request goes alone. The next ones wait for each other, which an encoder with fewer
        // at once would never live to see.
        while (1..=AT_ONCE).contains(&number) && seen_most.load(Ordering::Relaxed) < AT_ONCE {
            count = changed.wait(count).unwrap();
        }
        *count -= 1;
        Reply::Good
    });
    let (http, _) = open(&stub, |config| {
        config.concurrency = AT_ONCE;
        config.batch = 1;
    });
    // Two callers share the limit.
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| assert_eq!(embed(&http, &DIGITS).unwrap(), right(&DIGITS)));
        }
    });
    assert_eq!(most.load(Ordering::Relaxed), AT_ONCE);
    assert_eq!(stub.seen().len(), 20);
}

#[test]
fn requests_and_tokens_keep_their_pace() {
    let stub = Stub::script(vec![]);
    let (http, clock) = open(&stub, |config| config.requests_per_minute = Some(30.0));
    embed(&http, &DIGITS).unwrap();
    assert_eq!(clock.waits(), [Duration::from_secs(2); 2]);

    // Each request is guessed to take 4 tokens and takes 20, which the next one waits for: 20 tokens are 2
    // seconds.
    let texts = ["fives"; 10];
    let stub = Stub::script(vec![]);
    let (http, clock) = open(&stub, |config| {
        config.tokens_per_minute = Some(600.0);
        config.characters_per_token = 5.0;
    });
    embed(&http, &texts).unwrap();
    assert_eq!(clock.waits(), [Duration::from_secs(2); 2]);
    assert_eq!(http.spent().tokens, 50);
}

#[test]
fn a_budget_is_used_up_and_never_passed() {
    // (budget, items that fit into it, texts that are sent): texts after the first four are compared, or not
    // paid for.
    type Change = fn(&mut HttpConfig);
    let cases: [(Change, usize, usize); 4] = [
        (|config| config.budget_items = Some(7), 6, 7),
        (|config| config.budget_tokens = Some(6), 5, 6),
        (
            |config| {
                config.budget_money = Some(0.5);
                config.price_per_million_tokens = 100_000.0;
            },
            4,
            4,
        ),
        (|config| config.budget_items = Some(4), 4, 4),
    ];
    for (change, fits, sent) in cases {
        let stub = Stub::script(vec![]);
        let (http, _) = open(&stub, change);
        let answers = embed(&http, &DIGITS).unwrap();
        assert_eq!(answers[..fits], right(&DIGITS[..fits]));
        assert!(answers[fits..].iter().all(|answer| matches!(answer, Err(ItemFailure::Untried(_)))));
        assert_eq!(http.spent().items, sent as u64);
        let error = embed(&http, &DIGITS).unwrap_err();
        assert!(error.is_budget_spent() && !error.is_retryable(), "{error}");
        assert!(error.to_string().contains("budget"), "{error}");
        assert_eq!(stub.seen().iter().map(|request| request.texts().len()).sum::<usize>(), sent);
        http.vouch().unwrap();
    }
}

#[test]
fn what_others_have_used_is_gone_from_the_budget() {
    let stub = Stub::script(vec![]);
    let (http, _) = open(&stub, |config| config.budget_items = Some(7));
    http.note_others(Spent { items: 4, tokens: 4, money: 0.0 });
    let answers = embed(&http, &DIGITS).unwrap();
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 3);
    assert_eq!(http.spent().items, 3, "its own");
    let message = embed(&http, &DIGITS).unwrap_err().to_string();
    assert!(message.contains("7 items"), "{message}");
}

#[test]
fn refused_requests_cost_no_tokens() {
    let stub = Stub::script(vec![status(503), status(429)]);
    let (http, _) = open(&stub, |config| config.price_per_million_tokens = 1e6);
    embed(&http, &["12", "345"]).unwrap();
    assert_eq!(http.spent(), Spent { items: 2, tokens: 5, money: 5.0 });
}

#[test]
fn what_a_service_counts_is_not_trusted_beyond_its_texts() {
    let reply = |usage: &'static str| {
        Stub::start(move |_, request| {
            let data: Vec<Value> =
                request.texts().iter().map(|text| json!({"embedding": vector(text)})).collect();
            Reply::Body(format!("{{\"data\": {}, \"usage\": {usage}}}", Value::from(data)))
        })
    };
    for (usage, tokens) in [
        ("{\"total_tokens\": 1000000000000000}", 2 * 257),
        ("{\"total_tokens\": 18446744073709551615}", 2 * 257),
        ("{\"total_tokens\": 12.0}", 12),
        ("{\"total_tokens\": -1}", 2),
        ("\"none\"", 2),
    ] {
        let stub = reply(usage);
        let (http, clock) = open(&stub, |config| config.tokens_per_minute = Some(1000.0));
        for _ in 0..3 {
            assert_eq!(embed(&http, &["1", "2"]).unwrap(), right(&["1", "2"]), "{usage}");
        }
        assert_eq!(http.spent().tokens, 3 * tokens, "{usage}");
        assert!(clock.waits().iter().sum::<Duration>() < Duration::from_mins(2), "{usage}");
    }
}

#[test]
fn an_interruption_ends_waits_and_loses_nothing_that_is_paid() {
    let stub = Stub::script(vec![]);
    let mut config = config(&stub.url);
    (config.batch, config.requests_per_minute) = (2, Some(0.001));
    let http = Http::with(&config, &space(), Arc::new(SystemClock::start()), |_| None).unwrap();
    let answers = thread::scope(|scope| {
        let call = scope.spawn(|| embed(&http, &DIGITS));
        while http.served.load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
        http.interrupt();
        call.join().unwrap().unwrap()
    });
    assert_eq!(answers[..2], right(&DIGITS[..2]));
    assert!(answers[2..].iter().all(|answer| matches!(answer, Err(ItemFailure::Untried(_)))), "{answers:?}");
}

/// A caller that gets nothing but untried items takes the encoder for the cause.
#[test]
fn an_interruption_before_any_answer_is_the_error_of_the_call() {
    let stub = Stub::start(|_, _| status(429));
    let http = Http::with(&config(&stub.url), &space(), Arc::new(SystemClock::start()), |_| None).unwrap();
    let error = thread::scope(|scope| {
        let call = scope.spawn(|| embed(&http, &DIGITS));
        while stub.seen().is_empty() {
            thread::yield_now();
        }
        http.interrupt();
        call.join().unwrap().unwrap_err()
    });
    assert!(error.is_cancelled(), "{error}");
}

#[test]
fn a_key_goes_over_plain_http_to_this_machine_only() {
    let open = |url: &str, plain_http| {
        let mut config = config(url);
        (config.key_env, config.plain_http) = (Some("KEY".into()), plain_http);
        let key = |name: &str| (name == "KEY").then(|| "sk-secret".into());
        Http::with(&config, &space(), Arc::new(ManualClock::default()), key).map(drop)
    };
    for url in ["https://host", "http://localhost:1", "http://127.0.0.1", "http://[::1]:8080/v1"] {
        assert_eq!(open(url, false), Ok(()), "{url}");
    }
    for url in ["http://host", "http://127.evil.example", "http://localhost.example", "http://10.0.0.1:80"] {
        let error = open(url, false).unwrap_err().to_string();
        assert!(error.contains("plain_http"), "{url}: {error}");
        assert_eq!(open(url, true), Ok(()), "{url}");
    }
}

#[test]
fn the_values_of_an_address_are_not_shown() {
    let stub = Stub::start(|_, _| {
        Reply::Status(302, vec![("Location", "http://b/?key=sk-other".into())], String::new())
    });
    let (http, _) = open(&stub, |config| config.url = format!("{}/embeddings?key=sk-mine&a", config.url));
    let error = embed(&http, &["1"]).unwrap_err().to_string();
    assert!(error.contains("?key=…&…") && error.contains("b/?key=…"), "{error}");
    assert!(!error.contains("sk-"), "{error}");
    assert_eq!(stub.seen()[0].path, "/embeddings?key=sk-mine&a");
    for bad in
        ["ftp://a?key=sk-mine", "http://?key=sk-mine", "http://a b/?key=sk-mine", "http://a%zz/?key=sk-mine"]
    {
        let mut config = config(bad);
        config.attempts = 1;
        let error = Http::with(&config, &space(), Arc::new(ManualClock::default()), |_| None)
            .and_then(|http| embed(&http, &["1"]).map(drop));
        let error = error.unwrap_err().to_string();
        assert!(!error.contains("sk-"), "{bad}: {error}");
    }
}

#[test]
fn addresses_are_completed() {
    for (url, expected) in [
        ("https://api.openai.com", "https://api.openai.com/v1/embeddings"),
        ("https://api.openai.com/", "https://api.openai.com/v1/embeddings"),
        ("https://api.openai.com/v1", "https://api.openai.com/v1/embeddings"),
        ("https://host/openai/v1/embeddings", "https://host/openai/v1/embeddings"),
        ("https://host/v1beta/openai/", "https://host/v1beta/openai/embeddings"),
        ("https://v2.host/vectors", "https://v2.host/vectors/v1/embeddings"),
        ("http://localhost:8080/embeddings/", "http://localhost:8080/embeddings"),
        ("https://host/d/m/embeddings?api-version=1", "https://host/d/m/embeddings?api-version=1"),
        ("http://localhost:11434/api/embed", "http://localhost:11434/api/embed"),
    ] {
        assert_eq!(endpoint(url).unwrap(), expected);
    }
    for url in ["", "api.openai.com", "ftp://host", "https://", "http:// host"] {
        assert!(endpoint(url).is_err(), "{url}");
    }
    let error = endpoint("https://me:secret@host").unwrap_err().to_string();
    assert!(!error.contains("secret"), "{error}");
    assert!(is_loopback("http://127.0.0.1:80/v1") && is_loopback("http://localhost/x"));
    assert!(is_loopback("http://[::1]:9/x") && !is_loopback("https://localhost.example.org/"));
}

#[test]
fn keys_that_cannot_be_are_refused() {
    type Change = fn(&mut HttpConfig);
    let cases: [(Change, &str); 16] = [
        (|config| config.url = "nowhere".into(), "url"),
        (|config| config.model.clear(), "model"),
        (|config| config.batch = 0, "batch"),
        (|config| config.concurrency = 0, "concurrency"),
        (|config| config.attempts = 0, "attempts"),
        (|config| config.timeout_seconds = -1.0, "timeout_seconds"),
        (|config| config.requests_per_minute = Some(0.0), "requests_per_minute"),
        (|config| config.tokens_per_minute = Some(f64::NAN), "tokens_per_minute"),
        (|config| config.characters_per_token = 0.0, "characters_per_token"),
        (|config| config.budget_items = Some(0), "budget_items"),
        (|config| config.budget_tokens = Some(0), "budget_tokens"),
        (|config| config.budget_money = Some(1.0), "price_per_million_tokens"),
        (|config| config.price_per_million_tokens = -1.0, "price_per_million_tokens"),
        (|config| config.dimensions = Some(3), "dimensions"),
        (|config| config.key_env = Some("NO_SUCH_KEY".into()), "NO_SUCH_KEY"),
        (|config| config.key_env = Some("sk-pasted-by-mistake".into()), "key_env"),
    ];
    for (change, word) in cases {
        let mut config = config("http://localhost");
        change(&mut config);
        let error = Http::open(&config, &space()).err().unwrap().to_string();
        assert!(error.contains(word), "{word}: {error}");
        assert!(!error.contains("pasted"), "{error}");
    }
    assert!(!key("key_env", "KEY", |_| Some("sk-se cret".into())).unwrap_err().to_string().contains("cret"));
    assert_eq!(key("key_env", "KEY", |_| Some(" sk-secret\n".into())).unwrap(), "sk-secret");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Every answer is the right vector or a failure, one an input, however a service misbehaves and in
    /// whatever order.
    #[test]
    fn no_text_ever_gets_the_vector_of_another(
        replies in proptest::collection::vec(0usize..8, 0..12),
        count in 1usize..10, batch in 1usize..5, concurrency in 1usize..4,
    ) {
        let replies = Mutex::new(replies.into_iter());
        let stub = Stub::start(move |_, request| match lock(&replies).next() {
            Some(0) => status(500),
            Some(1) => status(400),
            Some(2) => Reply::Truncated,
            Some(3) => Reply::Close,
            Some(4) => Reply::Body("{}".into()),
            Some(5) => Reply::Body(good(request, |data| data.reverse())),
            Some(6) => Reply::Body(good(request, |data| data.truncate(data.len() - 1))),
            _ => Reply::Good,
        });
        let (http, _) = open(&stub, |config| {
            config.batch = batch;
            config.concurrency = concurrency;
        });
        let texts = &DIGITS[..count];
        // An error is an answer too: every text of the first request may have been refused.
        if let Ok(answers) = embed(&http, texts) {
            prop_assert_eq!(answers.len(), count);
            for (answer, expected) in answers.into_iter().zip(right(texts)) {
                prop_assert!(answer.is_err() || answer == expected);
            }
        }
    }
}

/// Makes texts with numbers, as many as asked for.
fn numbers(count: usize) -> Vec<String> {
    (0..count).map(|number| number.to_string()).collect()
}

/// Number of texts that were sent in all.
fn texts_sent(stub: &Stub) -> usize {
    stub.seen().iter().map(|request| request.texts().len()).sum()
}

#[test]
fn texts_that_a_service_breaks_at_are_found_without_waiting() {
    let is_bad = |text: &str| text.parse::<usize>().is_ok_and(|number| number % 20 == 7);
    let stub = Stub::start(move |_, request| {
        let broke = request.texts().iter().any(|text| is_bad(text));
        if broke {
            Reply::Status(500, vec![], "{\"error\": \"unsupported value: NaN\"}".into())
        } else {
            Reply::Good
        }
    });
    let (http, clock) = open(&stub, |config| (config.batch, config.attempts) = (64, 5));
    let texts = numbers(128);
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let answers = embed(&http, &texts).unwrap();
    for (text, answer) in texts.iter().zip(&answers) {
        match answer {
            Ok(received) => assert_eq!(*received, vector(text)),
            Err(ItemFailure::Permanent(why)) => assert!(is_bad(text) && why.contains("NaN"), "{text}: {why}"),
            other => panic!("{text}: {other:?}"),
        }
    }
    assert_eq!(answers.iter().filter(|answer| answer.is_err()).count(), 7);
    assert!(stub.seen().len() <= 120, "{} requests", stub.seen().len());
    let waited: Duration = clock.waits().iter().sum();
    assert!(waited < Duration::from_secs(10), "{waited:?}");
}

#[test]
fn the_most_texts_of_a_request_are_learnt_once() {
    for code in [400, 413] {
        let stub = Stub::start(
            move |_, request| {
                if request.texts().len() > 10 { status(code) } else { Reply::Good }
            },
        );
        let (http, _) = open(&stub, |config| config.batch = 64);
        let texts = numbers(1000);
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        assert_eq!(embed(&http, &texts).unwrap(), right(&texts));
        let refused = stub.seen().iter().filter(|request| request.texts().len() > 10).count();
        assert!(refused <= 5, "{refused} requests were refused");
        assert_eq!(embed(&http, &texts).unwrap(), right(&texts));
        assert_eq!(stub.seen().iter().filter(|request| request.texts().len() > 10).count(), refused);
    }
}

#[test]
fn what_is_learnt_of_a_service_is_known_to_the_next_process() {
    let all = numbers(600);
    let blanks = ["1", "", "2", " ", "3", ""];
    for (limit, says, most) in
        [(1, false, 60), (7, false, 100), (7, true, 70), (10, false, 75), (10, true, 65), (64, false, 14)]
    {
        // There are fewer full requests than are counted.
        let texts: Vec<&str> = all.iter().map(String::as_str).take(50 * limit).collect();
        let stub = Stub::start(move |_, request| {
            let is_format = request.body.get("encoding_format").is_some();
            if is_format {
                return Reply::Status(400, vec![], "no encoding_format, please".into());
            }
            let texts = request.texts().len();
            let refusal_body = if says {
                format!("batch size {texts} > maximum allowed batch size {limit}")
            } else {
                String::new()
            };
            if texts > limit { Reply::Status(413, vec![], refusal_body) } else { Reply::Good }
        });
        let learnt = {
            let (first, _) = open(&stub, |config| config.batch = 64);
            assert_eq!(first.learnt(), None);
            assert_eq!(embed(&first, &texts).unwrap(), right(&texts));
            assert_eq!(embed(&first, &blanks).unwrap(), right(&blanks));
            first.learnt().unwrap()
        };
        let before = stub.seen().len();
        if says {
            // The service is asked too much once for its number, and once for a rider that was one too many.
            assert!(stub.seen().iter().filter(|request| request.texts().len() > limit).count() <= 2);
        }
        let next = |change: fn(&mut HttpConfig)| {
            let (next, _) = open(&stub, |config| {
                config.batch = 64;
                change(config);
            });
            next.recall(&learnt);
            next
        };
        let second = next(|_| {});
        assert_eq!(embed(&second, &texts).unwrap(), right(&texts));
        assert_eq!(embed(&second, &blanks).unwrap(), right(&blanks));
        let requests = stub.seen().split_off(before);
        let refused =
            |request: &Seen| request.texts().len() > limit || request.body.get("encoding_format").is_some();
        assert_eq!(requests.iter().filter(|request| refused(request)).count(), 0, "{limit}");
        assert!(requests.len() <= most, "{} requests of {limit} texts", requests.len());
        assert_eq!(second.learnt().as_ref(), Some(&learnt));
        // The text says nothing of another model, or of requests with other fields.
        assert_eq!(next(|config| config.model = "other".into()).learnt(), None);
        assert_eq!(next(|config| drop(config.body.insert("a".into(), json!(1)))).learnt(), None);
        assert_eq!(next(|config| config.url += "/v2").learnt(), None);
        second.recall("no JSON");
        assert!(!learnt.contains(&stub.url), "values of an address may be keys");
    }
}

/// Reads one field of what was learnt.
fn field(learnt: &str, name: &str) -> Value {
    serde_json::from_str::<Value>(learnt).unwrap().get(name).cloned().unwrap_or_default()
}

/// A limit that a service had for a day is tried again: after 1,000 full requests once, and after twice as
/// many where the try is refused.
#[test]
fn a_limit_that_a_service_had_for_a_day_is_raised_again() {
    let limit = Arc::new(AtomicUsize::new(10));
    let now = Arc::clone(&limit);
    let stub = Stub::start(move |_, request| {
        if request.texts().len() > now.load(Ordering::Relaxed) { status(413) } else { Reply::Good }
    });
    let texts = numbers(4000);
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let mut learnt: Option<String> = None;
    // Each run is a process of its own: its length does not matter. It gives the requests that were refused
    // and the largest one.
    let mut run = || {
        let before = stub.seen().len();
        let (http, _) = open(&stub, |config| config.batch = 64);
        if let Some(learnt) = &learnt {
            http.recall(learnt);
        }
        assert_eq!(embed(&http, &texts).unwrap(), right(&texts));
        learnt = http.learnt();
        let sizes: Vec<usize> = stub.seen()[before..].iter().map(|request| request.texts().len()).collect();
        (
            sizes.iter().filter(|size| **size > limit.load(Ordering::Relaxed)).count(),
            *sizes.iter().max().unwrap(),
        )
    };
    assert!((1..=5).contains(&run().0), "it is learnt that 8 are taken");
    // Each run has 500 full requests.
    let refused: Vec<usize> = (0..8).map(|_| run().0).collect();
    assert_eq!(refused.iter().sum::<usize>(), 2, "after 1,000 and 2,000 more: {refused:?}");
    limit.store(usize::MAX, Ordering::Relaxed);
    let sizes: Vec<usize> = (0..40).map(|_| run().1).collect();
    assert!(sizes.is_sorted() && sizes[39] >= 64, "{sizes:?}");
}

#[test]
fn what_was_learnt_gives_way_to_what_a_service_refuses_now() {
    let texts = numbers(300);
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let limit = Arc::new(AtomicUsize::new(64));
    let now = Arc::clone(&limit);
    let stub = Stub::start(move |_, request| {
        let texts = request.texts();
        let is_blank = now.load(Ordering::Relaxed) < 64 && texts.iter().any(String::is_empty);
        if texts.len() > now.load(Ordering::Relaxed) || is_blank { status(413) } else { Reply::Good }
    });
    let open = || open(&stub, |config| config.batch = 64).0;
    let first = open();
    embed(&first, &texts).unwrap();
    embed(&first, &["", "1"]).unwrap();
    let learnt = first.learnt().unwrap();
    assert_eq!((field(&learnt, "texts_max"), field(&learnt, "takes_peculiar")), (json!(64), json!(true)));
    limit.store(10, Ordering::Relaxed);
    let second = open();
    second.recall(&learnt);
    assert_eq!(embed(&second, &texts).unwrap(), right(&texts));
    assert!(embed(&second, &["1", "", "2"]).unwrap()[1].is_err());
    let learnt = second.learnt().unwrap();
    assert_eq!((field(&learnt, "texts_max"), field(&learnt, "takes_peculiar")), (json!(8), Value::Null));
    let before = stub.seen().len();
    let third = open();
    third.recall(&learnt);
    assert_eq!(embed(&third, &texts).unwrap(), right(&texts));
    assert!(stub.seen()[before..].iter().all(|request| request.texts().len() <= 10));
}

#[test]
fn a_request_that_is_too_long_does_not_make_the_others_small() {
    let stub = Stub::start(|_, request| {
        let bytes = request.texts().iter().map(String::len).sum::<usize>();
        if bytes > 20_000 { status(413) } else { Reply::Good }
    });
    let (http, _) = open(&stub, |config| config.batch = 64);
    let texts: Vec<String> = (0..640)
        .map(|number| if (128..192).contains(&number) { "w".repeat(500) } else { number.to_string() })
        .collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    assert_eq!(embed(&http, &texts).unwrap(), right(&texts));
    assert_eq!(field(&http.learnt().unwrap(), "texts_max"), Value::Null, "it takes 64 texts");
    assert!(stub.seen().len() <= 1 + 10 + 4, "{}", stub.seen().len());
}

#[test]
fn an_option_that_a_service_does_not_take_is_named_after_one_small_request() {
    let texts = numbers(300);
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    for key in ["dimensions", "input_type"] {
        let stub = Stub::start(
            move |_, request| {
                if request.body.get(key).is_some() { status(400) } else { Reply::Good }
            },
        );
        let (http, _) = open(&stub, |config| {
            (config.batch, config.concurrency, config.dimensions) = (64, 4, Some(2));
            config.input_type = Some("document".into());
        });
        let error = embed(&http, &texts).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidOption { option, .. } if option == key), "{error}");
        assert!(error.to_string().contains("status 400 it is"), "{error}");
        assert!(texts_sent(&stub) <= 8, "{}", texts_sent(&stub));
    }
    // The service does not heed the option.
    let wide = |request: &Seen| good_of(request, |_| vec![1.0; 5], |_| {});
    let stub = Stub::start(move |_, request| Reply::Body(wide(request)));
    let (http, _) = open(&stub, |config| (config.batch, config.dimensions) = (64, Some(2)));
    let error = embed(&http, &texts).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::InvalidOption { option, .. } if option == "dimensions"),
        "{error}"
    );
    assert!(error.to_string().contains("5 numbers") && texts_sent(&stub) == 4, "{error}");
}

#[test]
fn the_name_of_the_format_is_left_out_where_it_is_refused() {
    let stub = Stub::start(|_, request| {
        if request.body.get("encoding_format").is_some() {
            Reply::Status(400, vec![], "{\"detail\": \"encoding_format: not a valid value\"}".into())
        } else {
            Reply::Good
        }
    });
    let (http, _) = open(&stub, |_| {});
    assert_eq!(embed(&http, &DIGITS).unwrap(), right(&DIGITS));
    assert_eq!(stub.seen().iter().filter(|request| request.body.get("encoding_format").is_some()).count(), 1);
}

#[test]
fn an_answer_of_another_form_is_paid_for_once() {
    let texts = numbers(300);
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let stub = Stub::start(|_, request| {
        let vectors: Vec<_> = request.texts().iter().map(|text| json!({"values": vector(text)})).collect();
        Reply::Body(json!({"embeddings": vectors}).to_string())
    });
    let (http, _) = open(&stub, |config| (config.batch, config.concurrency) = (64, 4));
    let error = embed(&http, &texts).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidOption { option, .. } if option == "url"), "{error}");
    assert_eq!(texts_sent(&stub), 4);
}

#[test]
fn protocols_of_services_that_people_have() {
    // Ollama gives its answers so.
    let stub = Stub::start(|_, request| {
        let vectors: Vec<_> = request.texts().iter().map(|text| vector(text)).collect();
        Reply::Body(json!({"model": "m", "embeddings": vectors, "prompt_eval_count": 9}).to_string())
    });
    let (http, _) = open(&stub, |config| config.url += "/api/embed");
    assert_eq!(embed(&http, &DIGITS[..4]).unwrap(), right(&DIGITS[..4]));
    let request = &stub.seen()[0];
    assert_eq!((request.path.as_str(), request.body.get("encoding_format")), ("/api/embed", None));
    assert_eq!(http.spent().tokens, 9);
    // Azure has headers of its own.
    let stub = Stub::script(vec![Reply::Status(429, vec![("retry-after-ms", "1500".into())], String::new())]);
    let (http, clock) = open(&stub, |config| {
        config.url += "/openai/deployments/d/embeddings?api-version=1";
        config.key_env = Some("KEY".into());
        config.key_header = Some("api-key".into());
        config.headers = [("x-team".into(), "search 1".into()), ("x-token".into(), "$KEY".into())].into();
    });
    assert_eq!(embed(&http, &["1"]).unwrap(), right(&["1"]));
    assert_eq!(clock.waits(), [Duration::from_millis(1500)]);
    let request = &stub.seen()[1];
    assert_eq!(request.header("api-key"), Some("sk-secret"));
    assert_eq!((request.header("x-team"), request.header("x-token")), (Some("search 1"), Some("sk-secret")));
    assert_eq!(request.authorization, None);
}

/// Reads the configurations of docs/encoders.md, a row of its table each: a service's name, and its keys.
fn services_of_the_page() -> Vec<(String, String)> {
    let page = include_str!("../../../../docs/encoders.md");
    let rows = page.lines().skip_while(|line| !line.starts_with("| service |")).skip(2);
    rows.map_while(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | "))
        .map(|(name, cell)| {
            let keys = cell.split('`').skip(1).step_by(2).filter(|key| key.contains(" = "));
            (name.to_owned(), keys.collect::<Vec<_>>().join("\n"))
        })
        .collect()
}

/// Service of the page: its name, the path of its requests, the most texts of one, and the body of a refusal.
type Service = (&'static str, &'static str, usize, fn(&Seen) -> Option<Value>);

/// Each stub refuses what its service is known to refuse, and answers in its form: a row of the page is a
/// configuration that works.
#[test]
fn each_service_of_the_page_is_spoken_to_as_it_wants() {
    let refusal = |status, body: Value| Reply::Status(status, Vec::new(), body.to_string());
    let services: [Service; 6] = [
        ("Azure", "/openai/deployments/DEPLOYMENT/embeddings?api-version=2024-10-21", 2048, |request| {
            (request.header("api-key") != Some("sk-secret"))
                .then(|| json!({"error": {"code": "401", "message": "Access denied"}}))
        }),
        ("Voyage", "/v1/embeddings", 1000, |request| {
            let field =
                ["encoding_format", "dimensions"].into_iter().find(|field| request.body.get(field).is_some());
            let bad = field.map(|field| json!({"detail": format!("Argument '{field}' is not valid")}));
            bad.or_else(|| {
                (request.body["output_dimension"] != 512 || request.body["input_type"] != "document")
                    .then(|| json!({"detail": "output_dimension"}))
            })
        }),
        ("Gemini", "/v1beta/openai/embeddings", 100, |_| None),
        ("Cohere", "/compatibility/v1/embeddings", 96, |_| None),
        ("Text Embeddings Inference, vLLM, llama.cpp, LM Studio", "/v1/embeddings", 32, |_| None),
        ("Ollama", "/api/embed", usize::MAX, |request| {
            (request.body["truncate"] != false)
                .then(|| json!({"error": "a longer text would be cut in silence"}))
        }),
    ];
    let page = services_of_the_page();
    for (name, path, texts_max, refuses) in services {
        let (_, keys) = page
            .iter()
            .find(|(service, _)| service == name)
            .unwrap_or_else(|| panic!("{name} is on the page"));
        let stub = Stub::start(move |_, request| {
            if let Some(body) = refuses(request) {
                return refusal(400, body);
            }
            let texts = request.texts();
            if texts.len() > texts_max {
                let count = texts.len();
                return match name {
                    "Gemini" => refusal(
                        400,
                        json!([{"error": {"code": 400, "status": "INVALID_ARGUMENT",
                        "message": "* BatchEmbedContentsRequest.requests: at most 100 requests can be in one batch\n"}}]),
                    ),
                    "Cohere" => refusal(
                        400,
                        json!({"message": format!("total number of texts must be at most 96 - received {count}")}),
                    ),
                    _ => refusal(
                        422,
                        json!({"type": "Validation", "message": format!("batch size {count} > maximum allowed batch size {texts_max}")}),
                    ),
                };
            }
            let vectors: Vec<_> = texts.iter().map(|text| vector(text)).collect();
            Reply::Body(match name {
                "Ollama" => json!({"model": "m", "embeddings": vectors, "prompt_eval_count": 9}).to_string(),
                // Gemini leaves out a field with the value 0.
                "Gemini" => good(request, |data| drop(data[0].as_object_mut().unwrap().remove("index"))),
                "Voyage" => {
                    json!({"object": "list", "usage": {"total_tokens": 9}, "data": vectors.iter().enumerate()
                    .map(|(index, vector)| json!({"index": index, "embedding": vector})).collect::<Vec<_>>()})
                    .to_string()
                }
                _ => good(request, |_| {}),
            })
        });
        let mut config: HttpConfig =
            toml::from_str(&format!("model = 'm'\nconcurrency = 1\n{keys}")).unwrap();
        let host = config.url.split('/').take(3).collect::<Vec<_>>().join("/");
        config.url = config.url.replace(&host, &stub.url);
        (config.key_env, config.plain_http) = (Some("KEY".into()), true);
        config.batch = 300;
        let key = |name: &str| (name == "KEY").then(|| "sk-secret".into());
        let http = Http::with(&config, &space(), Arc::new(ManualClock::default()), key).unwrap();
        let texts = numbers(500);
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        for texts in texts.chunks(config.batch) {
            assert_eq!(embed(&http, texts).unwrap(), right(texts), "{name}");
        }
        let requests = stub.seen();
        assert!(requests.iter().all(|request| request.path == path), "{name}: {}", requests[0].path);
        let (refused, sent) =
            (requests.iter().filter(|request| request.texts().len() > texts_max).count(), requests.len());
        assert!(
            // One request is sent once more without its rider, which may be the one text too many.
            refused <= 3 && sent <= 4 + refused + 500 / texts_max.min(300) * 2,
            "{name}: {sent} requests, {refused} refused"
        );
        if name == "Azure" {
            assert!(requests.iter().all(|request| request.authorization.is_none()));
        }
    }
}

#[test]
fn more_fields_go_with_every_request_and_are_none_of_ours() {
    let stub = Stub::script(vec![]);
    let more = |field: &str| [(field.to_owned(), json!({"a": [1, true]}))].into();
    let (http, _) = open(&stub, |config| config.body = more("truncate"));
    assert_eq!(embed(&http, &["1"]).unwrap(), right(&["1"]));
    assert_eq!(stub.seen()[0].body["truncate"], json!({"a": [1, true]}));
    let (without, _) = open(&stub, |_| {});
    assert_ne!(http.configured().unwrap(), without.configured().unwrap(), "vectors may depend on them");
    let refused =
        Http::open(&HttpConfig { body: more("input"), ..config(&stub.url) }, &space()).err().unwrap();
    assert!(refused.to_string().contains("input"), "{refused}");
}

#[test]
fn what_can_be_seen_of_a_text_is_said_where_it_is_refused() {
    let long = "w ".repeat(3000);
    let stub = Stub::start(|_, request| {
        let texts = request.texts();
        let bad = |text: &String| text.trim().is_empty() || text.len() > 4000;
        if texts.iter().any(bad) {
            return status(400);
        }
        Reply::Body(good(request, |data| {
            for (entry, text) in data.iter_mut().zip(&texts) {
                if text.contains('\0') {
                    entry["embedding"] = json!([]);
                }
            }
        }))
    });
    let (http, _) = open(&stub, |config| config.batch = 16);
    let texts = ["1", "2", "", "4", "a\0b", "6", "7", &long, "  \n", "10"];
    let answers = embed(&http, &texts).unwrap();
    let words = [(2, "blank"), (4, "NUL"), (7, "6000 characters"), (8, "blank")];
    for (place, answer) in answers.iter().enumerate() {
        match words.iter().find(|(bad, _)| *bad == place) {
            Some((_, word)) => {
                assert!(
                    matches!(answer, Err(ItemFailure::Permanent(why)) if why.contains(word)),
                    "{answer:?}"
                );
            }
            None => assert_eq!(*answer, Ok(vector(texts[place]).to_vec())),
        }
    }
    // Where a service takes peculiar texts, they travel with the others.
    let stub = Stub::script(vec![]);
    let (http, _) = open(&stub, |config| config.batch = 16);
    let texts = ["", "1", "", "2", "", "3", "", "4", ""];
    assert_eq!(embed(&http, &texts).unwrap(), right(&texts));
    assert_eq!(stub.seen().len(), 3);
}

/// Vector of a model of two numbers a text, on the unit circle.
fn on_circle(text: &str, turn: f32) -> Vec<f32> {
    let angle = text.parse::<f32>().unwrap_or(0.5) * 0.37 + turn;
    vec![angle.cos(), angle.sin()]
}

#[test]
fn a_service_that_becomes_another_one_is_found_in_the_request_where_it_does() {
    // From a text on, every vector is another one, whichever request it is in.
    for (concurrency, batch, turn) in [(1, 64, 1.0), (4, 64, 1.0), (1, 10, 1.0)] {
        let turned = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let stub = Stub::start(move |_, request| {
            let model = |text: &str| {
                let late = turned.load(Ordering::SeqCst);
                if text == "500" {
                    turned.store(true, Ordering::SeqCst);
                }
                on_circle(text, if late { turn } else { 0.0 })
            };
            Reply::Body(good_of(request, model, |_| {}))
        });
        let (http, _) = open(&stub, |config| (config.batch, config.concurrency) = (batch, concurrency));
        let texts = numbers(1000);
        let (mut right, mut wrong) = (0, 0);
        let mut message = String::new();
        let mut answered_parts = Vec::new();
        for part in texts.chunks(http.batch_max()) {
            let part: Vec<&str> = part.iter().map(String::as_str).collect();
            match embed(&http, &part) {
                Ok(answers) => answered_parts.push((http.receipt(), part, answers)),
                Err(error) => message = error.to_string(),
            }
        }
        // Requests of a few texts have no rider each: the one after them vouches for them.
        answered_parts.retain(|(receipt, ..)| http.is_vouched_for(*receipt));
        for (_, part, answers) in answered_parts {
            for (text, answer) in part.iter().zip(answers) {
                match answer {
                    Ok(vector) if vector == on_circle(text, 0.0) => right += 1,
                    Ok(_) => wrong += 1,
                    Err(_) => {}
                }
            }
        }
        assert!(message.contains("has changed") && message.contains("cosine 0.5"), "{message}");
        assert!(wrong == 0 && right >= 256, "{batch} a request: {right} right, {wrong} wrong");
    }
}

/// The beginning of a long text may ride along with the known one: the change is found all the same.
#[test]
fn a_service_that_becomes_another_one_is_found_among_long_texts() {
    let turned = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stub = Stub::start(move |_, request| {
        let model = |text: &str| {
            let late = turned.load(Ordering::SeqCst);
            turned.fetch_or(text.starts_with("100 "), Ordering::SeqCst);
            let number = text.split(' ').next().unwrap_or_default();
            let mut vector = on_circle(number, if late { 1.0 } else { 0.0 });
            vector[0] += 1e-3 * (text.len() % 97) as f32;
            vector
        };
        Reply::Body(good_of(request, model, |_| {}))
    });
    let (http, _) = open(&stub, |config| config.batch = 64);
    let texts: Vec<String> =
        (0..256).map(|number| format!("{number} {}", long(number, 500 + number * 9))).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let answers = embed(&http, &texts).unwrap();
    let answer_count = answers.iter().filter(|answer| answer.is_ok()).count();
    assert_eq!(answer_count, 4 + 64, "nothing of the request with text 100 is handed out");
    let error = embed(&http, &texts).unwrap_err();
    assert!(error.is_conflict() && error.to_string().contains("has changed"), "{error}");
}

#[test]
fn a_length_that_changes_is_another_model_where_lengths_count() {
    for (distance, fails) in [(Distance::Cosine, false), (Distance::Dot, true)] {
        let stub = Stub::start(|number, request| {
            let longer = if number > 1 { 17.3 } else { 1.0 };
            let model = |text: &str| on_circle(text, 0.0).iter().map(|value| value * longer).collect();
            Reply::Body(good_of(request, model, |_| {}))
        });
        let config = HttpConfig { batch: 64, ..config(&stub.url) };
        let space = Space::new("new", 2, distance, false);
        let http = Http::with(&config, &space, Arc::new(ManualClock::default()), |_| None).unwrap();
        let texts = numbers(200);
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let outcome = embed(&http, &texts).and_then(|_| embed(&http, &texts));
        match outcome {
            Ok(_) => assert!(!fails),
            Err(error) => assert!(fails && error.to_string().contains("17.3 times longer"), "{error}"),
        }
    }
}

#[test]
fn a_service_with_noise_is_compared_with_itself() {
    const WIDTH: usize = 32;
    let unit = |seed: &str| {
        let mut random = ChaCha8Rng::seed_from_u64(xxhash_rust::xxh3::xxh3_64(seed.as_bytes()));
        let numbers: Vec<f32> = (0..WIDTH)
            .map(|_| (0..4).map(|_| random.next_u32() as f32 / u32::MAX as f32 - 0.5).sum())
            .collect();
        let length = norm(&numbers) as f32;
        numbers.into_iter().map(|number| number / length).collect::<Vec<f32>>()
    };
    for cosine in [0.9999_f32, 0.99, 0.9] {
        let stub = Stub::start(move |number, request| {
            let off = (1.0 / cosine - 1.0).sqrt();
            let model = |text: &str| {
                let noise = unit(&format!("{number} {text}"));
                unit(text).iter().zip(noise).map(|(value, noise)| value + off * noise).collect()
            };
            Reply::Body(good_of(request, model, |_| {}))
        });
        let config = HttpConfig { batch: 64, ..config(&stub.url) };
        let space = Space::new("new", WIDTH, Distance::Cosine, false);
        let http = Http::with(&config, &space, Arc::new(ManualClock::default()), |_| None).unwrap();
        let texts = numbers(600);
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        assert!(embed(&http, &texts).unwrap().iter().all(Result::is_ok), "{cosine}");
        assert_eq!(http.rider.noise().is_some(), cosine < 0.995, "{cosine}: {:?}", http.rider.noise());
    }
}

/// Vector that depends on the texts beside it, by an angle of `most` at most, turned by an angle `turn`.
fn among(request: &Seen, text: &str, most: f32, turn: f32) -> Vec<f32> {
    let texts = request.texts();
    let longest = texts.iter().filter_map(|text| text.parse::<usize>().ok()).max().unwrap_or_default();
    let beside = [0.5, -0.5][longest / 64 % 2];
    on_circle(text, if texts.len() > 1 { most * beside } else { 0.0 } + turn)
}

#[test]
fn a_service_whose_vectors_depend_on_the_batch_is_compared_alone() {
    // An angle of 0.16 is a cosine of 0.987; one of 1.2 is as of another model.
    for (most, is_kept) in [(0.01, true), (0.16, true), (1.2, false)] {
        let stub = Stub::start(move |_, request| {
            let model = |text: &str| among(request, text, most, 0.0);
            Reply::Body(good_of(request, model, |_| {}))
        });
        let (http, _) = open(&stub, |config| config.batch = 64);
        let texts = numbers(600);
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let answers = embed(&http, &texts);
        let is_all = answers.as_ref().is_ok_and(|answers| answers.iter().all(Result::is_ok));
        assert_eq!(is_all, is_kept, "{most}: {answers:?}");
        match http.rider.noise() {
            Some(Noise::Batch(difference)) => {
                assert!((0.01..0.03).contains(&difference), "{most}: {difference}");
            }
            noise => assert!(noise.is_none() && most != 0.16, "{most}: {noise:?}"),
        }
    }
}

/// The models differ by as little as the vectors depend on the batch.
#[test]
fn a_service_whose_vectors_depend_on_the_batch_and_that_becomes_another_one_is_found() {
    let turned = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stub = Stub::start(move |_, request| {
        let late = turned.load(Ordering::SeqCst);
        turned.fetch_or(request.texts().iter().any(|text| text == "500"), Ordering::SeqCst);
        let model = |text: &str| among(request, text, 0.16, if late { 0.15 } else { 0.0 });
        Reply::Body(good_of(request, model, |_| {}))
    });
    let (http, _) = open(&stub, |config| config.batch = 64);
    let texts = numbers(2000);
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let message = match embed(&http, &texts) {
        Ok(_) => embed(&http, &texts).unwrap_err().to_string(),
        Err(error) => error.to_string(),
    };
    // Both vectors are of calls of their own, so the difference is that of the models.
    assert!(message.contains("has changed") && message.contains("cosine 0.99"), "{message}");
}

#[test]
fn a_rider_costs_one_text_a_request_and_no_request_more() {
    let stub = Stub::script(vec![]);
    let (http, _) = open(&stub, |config| config.batch = 64);
    let texts = numbers(644);
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    assert_eq!(embed(&http, &texts).unwrap(), right(&texts));
    assert_eq!((stub.seen().len(), texts_sent(&stub)), (11, 644 + 10));
    // The service takes 64 texts and not one more.
    let stub = Stub::start(|_, request| if request.texts().len() > 64 { status(413) } else { Reply::Good });
    let (http, _) = open(&stub, |config| config.batch = 64);
    assert_eq!(embed(&http, &texts).unwrap(), right(&texts));
    let refused = stub.seen().iter().filter(|request| request.texts().len() > 64).count();
    // Once refused, the rider has a seat among the 64.
    assert_eq!((refused, stub.seen().len()), (1, 1 + 1 + 11));
    // A rider passes no budget.
    let stub = Stub::script(vec![]);
    let (http, _) = open(&stub, |config| (config.batch, config.budget_items) = (64, Some(68)));
    let answers = embed(&http, &texts[..68]).unwrap();
    assert_eq!(answers[..67], right(&texts[..67]));
    assert!(matches!(&answers[67], Err(ItemFailure::Untried(why)) if why.contains("budget")));
    assert_eq!(http.spent().items, 68);
}

/// Makes a text of so many characters, which no other one begins as.
fn long(number: usize, characters: usize) -> String {
    let words = (0..).map(|word| format!("{number}-{word} "));
    let mut text = String::new();
    for word in words {
        if text.len() + word.len() > characters {
            return text;
        }
        text += &word;
    }
    text
}

#[test]
fn a_service_that_cuts_texts_in_silence_is_found_without_a_request_more() {
    let model = |text: &str| {
        let seed = xxhash_rust::xxh3::xxh3_64(text.as_bytes());
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        [(); 2].map(|()| random.next_u32() as f32 / u32::MAX as f32 - 0.5).to_vec()
    };
    // Some hundred long texts are among others, as drawn at random.
    let texts: Vec<String> =
        (0..640).map(|number| long(number, if number % 6 == 0 { 600 + number * 13 } else { 150 })).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    for reads in [600, 2000, usize::MAX] {
        let stub = Stub::start(move |_, request| {
            Reply::Body(good_of(request, |text| model(&text[..text.len().min(reads)]), |_| {}))
        });
        let space = Space::new("new", 2, Distance::Cosine, false);
        let config = HttpConfig { batch: 32, ..config(&stub.url) };
        let open = || Http::with(&config, &space, Arc::new(ManualClock::default()), |_| None).unwrap();
        let http = open();
        assert!(embed(&http, &texts).unwrap().iter().all(Result::is_ok));
        // One text rides along with every 32, and now and then the beginning of another one.
        let questions = texts_sent(&stub) - (640 + 19);
        assert!(stub.seen().len() == 21 && (1..=16).contains(&questions), "{reads}: {questions}");
        let Some(cut) = lock(&http.reading).cut() else {
            assert_eq!(reads, usize::MAX);
            continue;
        };
        assert!(cut.read <= reads && reads <= cut.cut && cut.cut < reads * 3 / 2, "{reads}: {cut:?}");
        // The next process knows it before it has sent anything.
        let learnt = http.learnt().unwrap();
        assert_eq!(config.known_cut(&learnt), Some(cut));
        let next = open();
        next.recall(&learnt);
        assert_eq!(lock(&next.reading).cut(), Some(cut));
        assert_eq!(next.findings()[0].code, FindingCode::EncoderCuts);
        let other = HttpConfig { body: [("truncate".into(), json!(false))].into(), ..config.clone() };
        assert_eq!(other.known_cut(&learnt), None);
    }
}
