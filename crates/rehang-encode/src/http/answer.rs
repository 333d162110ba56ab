//! What an embedding endpoint says.

use serde::{Deserialize, Serialize};

/// The body of a request.
#[derive(Serialize)]
pub(super) struct Request<'a> {
    pub(super) model: &'a str,
    pub(super) input: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) dimensions: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) input_type: Option<&'a str>,
}

/// Vectors of a request, in the order of its inputs, and the tokens it used where the service says so.
#[derive(Debug, PartialEq)]
pub(super) struct Answer {
    pub(super) vectors: Vec<Vec<f32>>,
    pub(super) tokens: Option<u64>,
}

#[derive(Deserialize)]
struct Body {
    data: Vec<Entry>,
    /// Whatever it is: a count that cannot be read must not cost the vectors beside it.
    #[serde(default)]
    usage: serde_json::Value,
}

#[derive(Deserialize)]
struct Entry {
    index: Option<usize>,
    embedding: Vec<Option<f32>>,
}

/// Reads the answer to a request of `count` inputs, or says what is wrong with it. Entries may come in any order; each
/// belongs to the input that its `index` names. A number that is `null` becomes NaN.
pub(super) fn read(body: &[u8], count: usize) -> Result<Answer, String> {
    let body: Body =
        serde_json::from_slice(body).map_err(|error| format!("its answer is broken ({error})"))?;
    if body.data.len() != count {
        return Err(format!("it gave {} vectors for {count} inputs", body.data.len()));
    }
    let mut vectors: Vec<Option<Vec<f32>>> = vec![None; count];
    for (place, entry) in body.data.into_iter().enumerate() {
        let index = entry.index.unwrap_or(place);
        let slot =
            vectors.get_mut(index).ok_or_else(|| format!("it gave a vector for input {index} of {count}"))?;
        let vector = entry.embedding.into_iter().map(|value| value.unwrap_or(f32::NAN)).collect();
        if slot.replace(vector).is_some() {
            return Err(format!("it gave two vectors for input {index}"));
        }
    }
    // As many entries as inputs and none twice: every input has its vector.
    let vectors = vectors.into_iter().flatten().collect();
    let count = |name: &str| body.usage.get(name)?.as_f64().filter(|count| *count >= 0.0);
    let tokens = count("total_tokens").or_else(|| count("prompt_tokens")).map(|count| count as u64);
    Ok(Answer { vectors, tokens })
}

/// What a service says about its refusal: the message of its JSON, or the start of whatever it sent, in one line and without
/// `secret`, which services like to repeat.
pub(super) fn message(body: &[u8], secret: Option<&str>) -> String {
    const SHOWN_MAX: usize = 300;
    let json: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let said = ["/error/message", "/message", "/detail", "/error"]
        .iter()
        .find_map(|path| json.pointer(path)?.as_str())
        .map_or_else(|| String::from_utf8_lossy(body).into_owned(), str::to_string);
    let mut line = said.split_whitespace().collect::<Vec<_>>().join(" ");
    // Before the line is cut, which could leave most of it.
    if let Some(secret) = secret {
        line = line.replace(secret, "(the key)");
    }
    let mut start: String = line.chars().take(SHOWN_MAX).collect();
    if start.len() < line.len() {
        start.push('…');
    }
    if start.is_empty() { "it gives no reason".into() } else { start }
}

/// Whether a refusal with status 429 means that the account is empty, which no wait changes.
pub(super) fn is_account_empty(body: &[u8]) -> bool {
    let json: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    ["/error/code", "/error/type"]
        .iter()
        .any(|path| json.pointer(path).and_then(|code| code.as_str()) == Some("insufficient_quota"))
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
            ("{}", "broken"),
            ("<html>", "broken"),
            (r#"{"data":[{"index":0,"embedding":[1]}]"#, "broken"),
            (r#"{"data":[{"index":0,"embedding":"AAAA"},{"index":1,"embedding":[1]}]}"#, "broken"),
            (r#"{"data":[{"index":0,"embedding":[1]}]}"#, "1 vectors for 2"),
            (r#"{"data":[{"index":0,"embedding":[1]},{"index":0,"embedding":[1]}]}"#, "two vectors"),
            (r#"{"data":[{"index":0,"embedding":[1]},{"index":2,"embedding":[1]}]}"#, "input 2 of 2"),
        ] {
            let error = read(body.as_bytes(), 2).unwrap_err();
            assert!(error.contains(reason), "{body}: {error}");
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
            let said = message(format!("{}{key} is wrong", "x".repeat(before)).as_bytes(), Some(key));
            assert!(!said.contains("sk-"), "{said}");
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
