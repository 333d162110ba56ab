//! Answers of an embedding endpoint: their vectors, and the words of a refusal.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::json::read_json;

/// Body of a request.
#[derive(Serialize)]
pub(super) struct Request<'a> {
    pub(super) model: &'a str,
    pub(super) input: &'a [String],
    /// Format that vectors are asked for in: some services answer in base64 where none is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) encoding_format: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) dimensions: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) input_type: Option<&'a str>,
    #[serde(flatten)]
    pub(super) more: &'a BTreeMap<String, serde_json::Value>,
}

/// Fields that [`Request`] has for other keys of the configuration.
pub(super) const FIELDS: [&str; 5] = ["model", "input", "encoding_format", "dimensions", "input_type"];

/// Vectors of a request, in the order of its inputs, and the tokens it used where the service says so.
#[derive(Debug, PartialEq)]
pub(super) struct Answer {
    pub(super) vectors: Vec<Vec<f32>>,
    pub(super) tokens: Option<u64>,
}

/// Reason why an answer gives no vectors.
#[derive(Debug, PartialEq)]
pub(super) enum Unread {
    /// The answer broke off, or does not fit its request: another attempt may be whole.
    Broken(String),
    /// The answer is whole and of another form, as every other answer of this address will be.
    Form(String),
}

/// Answer of OpenAI's protocol (`data`), or of Ollama's `/api/embed` (`embeddings`).
#[derive(Deserialize)]
pub(super) struct Body {
    data: Option<Vec<Entry>>,
    embeddings: Option<Vec<Numbers>>,
    /// Vector of Ollama's older `/api/embeddings`, which takes one text by another name, and none of ours.
    embedding: Option<serde::de::IgnoredAny>,
    /// Count of tokens, whatever it is: one that cannot be read must not cost the vectors beside it.
    #[serde(default)]
    usage: serde_json::Value,
    #[serde(default)]
    prompt_eval_count: serde_json::Value,
}

#[derive(Deserialize)]
struct Entry {
    index: Option<usize>,
    embedding: Numbers,
}

/// Reads the answer to a request of `count` inputs, or says what is wrong with it. Entries of `data` may come
/// in any order; each belongs to the input that its `index` names. A number that is `null` becomes NaN.
pub(super) fn read(body: &[u8], count: usize) -> Result<Answer, Unread> {
    let body: Body = read_json(body).map_err(|error| {
        if error.is_data() {
            Unread::Form(format!("its answer has another form ({error})"))
        } else {
            Unread::Broken(format!("its answer is broken ({error})"))
        }
    })?;
    vectors_of(body, count)
}

/// Takes the vectors out of an answer that was parsed, as [`read`] does.
pub(super) fn vectors_of(body: Body, count: usize) -> Result<Answer, Unread> {
    let entries: Vec<(usize, Numbers)> = match (body.data, body.embeddings) {
        (Some(data), _) => data
            .into_iter()
            .enumerate()
            .map(|(place, entry)| (entry.index.unwrap_or(place), entry.embedding))
            .collect(),
        (None, Some(embeddings)) => embeddings.into_iter().enumerate().collect(),
        (None, None) if body.embedding.is_some() => {
            let message = "it answered as /api/embeddings of Ollama does, which takes no lists of texts: `url` is to end in /api/embed, or in /v1";
            return Err(Unread::Form(message.into()));
        }
        // Here may be an error under status 200, which tells nothing of the next answer.
        (None, None) => return Err(Unread::Broken("it gave no vectors".into())),
    };
    if entries.len() != count {
        return Err(Unread::Broken(format!("it gave {} vectors for {count} inputs", entries.len())));
    }
    let mut vectors: Vec<Option<Vec<f32>>> = vec![None; count];
    for (index, Numbers(vector)) in entries {
        let slot = vectors
            .get_mut(index)
            .ok_or_else(|| Unread::Broken(format!("it gave a vector for input {index} of {count}")))?;
        if slot.replace(vector).is_some() {
            return Err(Unread::Broken(format!("it gave two vectors for input {index}")));
        }
    }
    // As many entries as inputs and none twice: every input has its vector.
    let vectors = vectors.into_iter().flatten().collect();
    let number = |value: &serde_json::Value| value.as_f64().filter(|count| *count >= 0.0);
    let count = |name: &str| number(body.usage.get(name)?);
    // No text has no token: a service that says 0 has not counted.
    let counts = [count("total_tokens"), count("prompt_tokens"), number(&body.prompt_eval_count)];
    let tokens = counts.into_iter().flatten().fold(0.0, f64::max) as u64;
    Ok(Answer { vectors, tokens: Some(tokens).filter(|tokens| *tokens > 0) })
}

/// Reads the error that an answer with status 200 holds in place of vectors, with the status that it names.
pub(super) fn error_in<'a>(
    body: &[u8],
    secrets: impl IntoIterator<Item = &'a str>,
) -> Option<(Option<u16>, String)> {
    let json: serde_json::Value = serde_json::from_slice(body).ok()?;
    let error = json.get("error").filter(|error| !error.is_null())?;
    let code = error.get("code").or_else(|| error.get("status"));
    let status = code.and_then(serde_json::Value::as_u64).and_then(|code| u16::try_from(code).ok());
    Some((status, message(body, secrets)))
}

/// Numbers of one vector: a list, a list within one more list, or base64 of float32 in little-endian order.
struct Numbers(Vec<f32>);

impl<'de> Deserialize<'de> for Numbers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumbersVisitor)
    }
}

struct NumbersVisitor;

impl<'de> Visitor<'de> for NumbersVisitor {
    type Value = Numbers;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of numbers, or base64 of float32")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Numbers, A::Error> {
        let mut numbers = Vec::with_capacity(entries.size_hint().unwrap_or_default());
        let mut lists = 0;
        while let Some(entry) = entries.next_element()? {
            match entry {
                Element::Number(number) => numbers.push(number),
                Element::List(list) => {
                    lists += 1;
                    numbers = list;
                }
            }
        }
        match lists {
            0 | 1 => Ok(Numbers(numbers)),
            lists => Err(de::Error::custom(format_args!(
                "a list of {lists} lists of numbers for one text, as of a model that gives a vector for each token; ask for one that pools them"
            ))),
        }
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Numbers, E> {
        let bytes = BASE64_STANDARD.decode(text).ok().filter(|bytes| bytes.len() % 4 == 0);
        let bytes = bytes.ok_or_else(|| E::custom("a text that is not base64 of float32"))?;
        Ok(Numbers(bytes.as_chunks().0.iter().map(|&number| f32::from_le_bytes(number)).collect()))
    }
}

/// Entry of a list that should hold numbers.
enum Element {
    Number(f32),
    List(Vec<f32>),
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ElementVisitor)
    }
}

struct ElementVisitor;

impl<'de> Visitor<'de> for ElementVisitor {
    type Value = Element;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number")
    }

    fn visit_f64<E>(self, number: f64) -> Result<Element, E> {
        Ok(Element::Number(number as f32))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Element, E> {
        Ok(Element::Number(number as f32))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Element, E> {
        Ok(Element::Number(number as f32))
    }

    fn visit_unit<E>(self) -> Result<Element, E> {
        Ok(Element::Number(f32::NAN))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Element, A::Error> {
        let mut numbers = Vec::with_capacity(entries.size_hint().unwrap_or_default());
        while let Some(number) = entries.next_element::<Option<f32>>()? {
            numbers.push(number.unwrap_or(f32::NAN));
        }
        Ok(Element::List(numbers))
    }
}

/// Reads a service's words about its refusal: the message of its JSON, or the start of whatever it sent. They
/// are one line without any of the `secrets`, which services like to repeat.
pub(super) fn message<'a>(body: &[u8], secrets: impl IntoIterator<Item = &'a str>) -> String {
    const SHOWN_MAX: usize = 300;
    let json: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    // Gemini puts its errors into a list.
    let text = ["/error/message", "/0/error/message", "/message", "/detail", "/error"]
        .iter()
        .find_map(|path| json.pointer(path)?.as_str())
        .map_or_else(|| String::from_utf8_lossy(body).into_owned(), str::to_string);
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    // Secrets are replaced before the line is cut, which could leave most of one.
    for secret in secrets {
        line = line.replace(secret, "(the key)");
    }
    let mut start: String = line.chars().take(SHOWN_MAX).collect();
    if start.len() < line.len() {
        start.push('…');
    }
    if start.is_empty() { "it gives no reason".into() } else { start }
}

/// Guesses from a refusal of so many texts how many the service takes. The guess holds once all the texts
/// were taken in requests of that size.
///
/// It is a smaller number beside words about batches or beside the count of the texts, in a reason that
/// begins with the status.
pub(super) fn most_texts(reason: &str, texts: usize) -> Option<usize> {
    let words = reason.split_once("status ").map_or(reason, |(_, after)| after.get(3..).unwrap_or_default());
    // A limit of tokens is none of texts, and a number in one word with letters is a part of a name:
    // text-embedding-3-small.
    let words = words.to_lowercase();
    words.split(". ").filter(|sentence| !sentence.contains("token")).find_map(|sentence| {
        let word =
            |word: &str| word.trim_matches(|letter: char| !letter.is_alphanumeric()).parse::<usize>().ok();
        let numbers = || sentence.split([' ', '=', ',']).filter_map(word);
        // The count may be one more by a text that rode along.
        let is_of_many =
            sentence.contains("batch") || numbers().any(|number| (texts..=texts + 1).contains(&number));
        numbers().filter(|number| is_of_many && (1..texts).contains(number)).max()
    })
}

/// Reads the wait that a refusal asks for in its body: Gemini's `retryDelay`, or words such as "try again in
/// 1m20.5s", "retry after 30 seconds", "in 250ms".
pub(super) fn wait_in(body: &[u8]) -> Option<Duration> {
    let json: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let error = json.pointer("/error").or_else(|| json.pointer("/0/error"));
    let details = error.and_then(|error| error.get("details")?.as_array()).into_iter().flatten();
    let mut delays = details.filter_map(|detail| duration_in(detail.get("retryDelay")?.as_str()?));
    if let Some(delay) = delays.next() {
        return Some(delay);
    }
    let text = String::from_utf8_lossy(body).to_lowercase();
    let words = ["again in ", "retry in ", "retry after ", "again after ", "wait for ", "wait "];
    words.iter().find_map(|words| duration_in(text.split_once(words)?.1.trim_start()))
}

/// Reads a time at the beginning of a text: `20s`, `1m20.5s`, `250ms`, `30 seconds`, `2 minutes`; a number
/// alone is seconds.
fn duration_in(text: &str) -> Option<Duration> {
    let (mut seconds, mut text_left, mut parts) = (0.0, text, 0);
    loop {
        let digits = text_left
            .find(|letter: char| !(letter.is_ascii_digit() || letter == '.'))
            .unwrap_or(text_left.len());
        let Ok(number) = text_left[..digits].trim_end_matches('.').parse::<f64>() else { break };
        let after = text_left[digits..].trim_start();
        let letters = after.find(|letter: char| !letter.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, is_known) = match &after[..letters] {
            "ms" | "milliseconds" | "millisecond" => (0.001, true),
            "s" | "sec" | "secs" | "second" | "seconds" => (1.0, true),
            "m" | "min" | "mins" | "minute" | "minutes" => (60.0, true),
            "h" | "hour" | "hours" => (3600.0, true),
            _ => (1.0, false),
        };
        seconds += number * unit;
        parts += 1;
        if !is_known {
            break;
        }
        text_left = &after[letters..];
    }
    if parts == 0 { None } else { Duration::try_from_secs_f64(seconds).ok() }
}

/// Whether a refusal with status 400 is of the key, as Gemini's is.
pub(super) fn is_key_wrong(body: &[u8]) -> bool {
    let text = String::from_utf8_lossy(body).to_lowercase();
    ["api_key_invalid", "api key not valid", "invalid api key", "incorrect api key"]
        .iter()
        .any(|words| text.contains(words))
}

/// Whether a refusal with status 429 means that the account is empty, which no wait changes.
pub(super) fn is_account_empty(body: &[u8]) -> bool {
    let json: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let codes = ["insufficient_quota", "billing_hard_limit_reached", "billing_not_active"];
    let is_empty = ["/error/code", "/error/type"].iter().any(|path| {
        json.pointer(path).and_then(|code| code.as_str()).is_some_and(|code| codes.contains(&code))
    });
    // Gemini says which of its quotas is used up, in a list.
    is_empty || String::from_utf8_lossy(body).contains("PerDay")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn entries_go_where_their_index_says() {
        let body = br#"{"object":"list","data":[{"index":1,"embedding":[2]},{"index":0,"embedding":[null]}],
                        "usage":{"prompt_tokens":3,"total_tokens":4}}"#;
        let answer = read(body, 2).unwrap();
        assert!(answer.vectors[0][0].is_nan());
        assert_eq!((answer.vectors[1].as_slice(), answer.tokens), ([2.0].as_slice(), Some(4)));
        let body = br#"{"data":[{"embedding":[1]},{"embedding":[2]}]}"#;
        assert_eq!(read(body, 2).unwrap(), Answer { vectors: vec![vec![1.0], vec![2.0]], tokens: None });
    }

    #[test]
    fn answers_that_cannot_be_are_refused() {
        for (body, reason) in [
            ("", "broken"),
            ("{}", "no vectors"),
            ("<html>", "broken"),
            (r#"{"data":[{"index":0,"embedding":[1]}]"#, "broken"),
            (r#"{"error":{"message":"overloaded"}}"#, "no vectors"),
            (r#"{"data":[{"index":0,"embedding":[1]}]}"#, "1 vectors for 2"),
            (r#"{"data":[{"index":0,"embedding":[1]},{"index":0,"embedding":[1]}]}"#, "two vectors"),
            (r#"{"data":[{"index":0,"embedding":[1]},{"index":2,"embedding":[1]}]}"#, "input 2 of 2"),
        ] {
            let error = read(body.as_bytes(), 2).unwrap_err();
            assert!(matches!(&error, Unread::Broken(words) if words.contains(reason)), "{body}: {error:?}");
        }
    }

    #[test]
    fn vectors_are_read_in_the_forms_that_services_give_them() {
        let expected = Ok(Answer { vectors: vec![vec![1.0, -2.5], vec![0.0, 3.0]], tokens: None });
        for body in [
            r#"{"data":[{"embedding":"AACAPwAAIMA="},{"embedding":"AAAAAAAAQEA="}]}"#,
            r#"{"data":[{"index":1,"embedding":[[0,3]]},{"index":0,"embedding":[[1,-2.5]]}]}"#,
            r#"{"model":"m","embeddings":[[1,-2.5],[0,3]]}"#,
        ] {
            assert_eq!(read(body.as_bytes(), 2), expected, "{body}");
        }
        let counted = br#"{"embeddings":[[1]],"prompt_eval_count":7}"#;
        assert_eq!(read(counted, 1).unwrap().tokens, Some(7));
        assert!(read(br#"{"embeddings":[[[null]]]}"#, 1).unwrap().vectors[0][0].is_nan());
    }

    #[test]
    fn numbers_that_are_not_finite_are_read() {
        let body = br#"{"model": "NaN \" Infinity", "data": [{"embedding": [NaN, 1]}, {"embedding": [-Infinity, Infinity]}, {"embedding": [2, 3]}]}"#;
        let vectors = read(body, 3).unwrap().vectors;
        assert!(
            vectors[0][0].is_nan() && vectors[0][1] == 1.0 && vectors[1].iter().all(|number| number.is_nan())
        );
        assert_eq!(vectors[2], [2.0, 3.0]);
        assert!(matches!(read(br#"{"data": [{"embedding": [nope]}]}"#, 1), Err(Unread::Broken(_))));
    }

    #[test]
    fn an_error_with_status_200_is_shown() {
        let body = br#"{"error": {"message": "no capacity for sk-1", "code": 503}}"#;
        assert_eq!(error_in(body, ["sk-1"]), Some((Some(503), "no capacity for (the key)".into())));
        assert_eq!(error_in(br#"{"error": "busy"}"#, None), Some((None, "busy".into())));
        assert_eq!(error_in(br#"{"data": [], "error": null}"#, None), None);
    }

    #[test]
    fn how_many_texts_are_taken_is_read_off_a_refusal() {
        for (reason, texts, most) in [
            ("m at http://a:80: status 422: batch size 64 > maximum allowed batch size 32", 64, Some(32)),
            ("m: status 400: total number of texts must be at most 96 - received 300", 300, Some(96)),
            (
                "m: status 400: * BatchEmbedContentsRequest.requests: at most 100 requests can be in one batch",
                300,
                Some(100),
            ),
            ("m: status 400: batch size is invalid, it should not be larger than 10.", 64, Some(10)),
            ("m: status 400: '$.input' is too long: maximum length 2048, but got 3000", 3000, Some(2048)),
            ("m: status 400: this model's maximum context length is 512 tokens", 600, None),
            ("m: status 413: it gives no reason", 500, None),
            ("m: status 400: text-embedding-3-small: this batch is too large", 64, None),
            ("m: status 400: model bge-m3 v2 takes no batch of 64, at most 16", 64, Some(16)),
            ("m: status 400: batch of 64 inputs has 9000 tokens, at most 48 tokens are allowed", 64, None),
            ("m: status 400: too many tokens (8192 at most). Batch size must be <= 32.", 64, Some(32)),
        ] {
            assert_eq!(most_texts(reason, texts), most, "{reason}");
        }
    }

    #[test]
    fn waits_are_read_in_the_words_of_services() {
        let seconds = |body: &str| wait_in(body.as_bytes()).map(|wait| wait.as_secs_f64());
        for (words, wait) in [
            (
                "Rate limit reached for m on requests per min (RPM): Limit 10. Please try again in 42s.",
                Some(42.0),
            ),
            ("Please try again in 1m20.5s. Visit the page", Some(80.5)),
            ("Please try again in 250ms.", Some(0.25)),
            ("Please retry in 37.1s.", Some(37.1)),
            ("Requests have exceeded the call rate limit. Please retry after 30 seconds.", Some(30.0)),
            ("Try again after 2 minutes", Some(120.0)),
            ("You may try again in a moment; limit 10", None),
            ("status 429 it is", None),
        ] {
            assert_eq!(seconds(&format!("{{\"error\": {{\"message\": \"{words}\"}}}}")), wait, "{words}");
        }
        let gemini = r#"[{"error": {"code": 429, "message": "You exceeded your current quota", "details": [{"@type": "QuotaFailure"}, {"retryDelay": "23s"}]}}]"#;
        assert_eq!(seconds(gemini), Some(23.0));
        assert!(!is_account_empty(gemini.as_bytes()));
        assert!(is_account_empty(br#"[{"error": {"details": [{"violations": [{"quotaId": "EmbedContentRequestsPerDayPerUser"}]}]}}]"#));
        assert!(is_account_empty(br#"{"error": {"type": "insufficient_quota"}}"#));
    }

    #[test]
    fn another_form_is_told_from_an_answer_that_broke_off() {
        for (body, reason) in [
            ("[[1, 2]]", "another form"),
            (r#"{"data":[{"values":[1]}]}"#, "embedding"),
            (r#"{"data":[{"embedding":"AAA"}]}"#, "base64"),
            (r#"{"data":[{"embedding":"AAAA"}]}"#, "base64"),
            (r#"{"data":[{"embedding":[[1],[2]]}]}"#, "a vector for each token"),
            (r#"{"data":[{"embedding":["1"]}]}"#, "a number"),
            (r#"{"embeddings":{"float":[[1]]}}"#, "another form"),
            (r#"{"embedding":[]}"#, "/api/embed, or in /v1"),
        ] {
            let error = read(body.as_bytes(), 1).unwrap_err();
            assert!(matches!(&error, Unread::Form(words) if words.contains(reason)), "{body}: {error:?}");
        }
    }

    #[test]
    fn refusals_are_shown_in_one_line() {
        assert_eq!(message(br#"{"error":{"message":"too\n long"}}"#, None), "too long");
        assert_eq!(message(br#"{"detail":"no such model"}"#, None), "no such model");
        assert_eq!(message(b"<h1>Bad\nGateway</h1>", None), "<h1>Bad Gateway</h1>");
        assert_eq!(message(b" ", None), "it gives no reason");
        assert!(message(&[b'x'; 1000], None).len() < 400);
    }

    #[test]
    fn a_key_is_hidden_wherever_the_line_is_cut() {
        let key = "sk-abcdefghijklmnopqrstuvwxyz";
        for before in 0..400 {
            let line = message(format!("{}{key} is wrong", "x".repeat(before)).as_bytes(), Some(key));
            assert!(!line.contains("sk-"), "{line}");
        }
    }

    #[test]
    fn a_count_of_tokens_may_be_anything() {
        for (usage, tokens) in [
            ("{\"total_tokens\": 12.0}", Some(12)),
            ("{\"total_tokens\": null, \"prompt_tokens\": 3}", Some(3)),
            ("{\"total_tokens\": 18446744073709551615}", Some(u64::MAX)),
            ("{\"total_tokens\": 1e300}", Some(u64::MAX)),
            ("{\"total_tokens\": -5}", None),
            ("{\"total_tokens\": 0}", None),
            ("{\"total_tokens\": 0, \"prompt_tokens\": 9}", Some(9)),
            ("{\"total_tokens\": \"many\"}", None),
            ("[]", None),
            ("7", None),
            ("null", None),
        ] {
            let body = format!("{{\"data\": [{{\"embedding\": [1]}}], \"usage\": {usage}}}");
            assert_eq!(read(body.as_bytes(), 1), Ok(Answer { vectors: vec![vec![1.0]], tokens }), "{usage}");
        }
    }

    proptest! {
        /// A shuffled answer is the same answer; any bytes at all are an answer or a reason.
        #[test]
        fn order_does_not_matter(
            order in Just((0..7usize).collect::<Vec<_>>()).prop_shuffle(), bytes: Vec<u8>
        ) {
            let entries: Vec<_> =
                order.iter().map(|at| serde_json::json!({"index": at, "embedding": [at]})).collect();
            let body = serde_json::json!({ "data": entries }).to_string();
            let expected: Vec<Vec<f32>> = (0..7).map(|at| vec![at as f32]).collect();
            prop_assert_eq!(read(body.as_bytes(), 7).unwrap().vectors, expected);
            let _ = (read(&bytes, 1), message(&bytes, Some("k")));
        }
    }
}
