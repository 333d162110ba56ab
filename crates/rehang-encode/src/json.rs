//! JSON as programs and services write it: Python's writers say NaN and Infinity, which no JSON has.

use serde::de::DeserializeOwned;

/// Reads a value out of JSON; a number that is not finite is null.
pub(crate) fn read_json<T: DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<T> {
    serde_json::from_slice(bytes).or_else(|error: serde_json::Error| {
        let finite = without_words(bytes).filter(|_| !error.is_data());
        finite.map_or(Err(error), |bytes| serde_json::from_slice(&bytes))
    })
}

/// Puts null in the place of each NaN and Infinity outside of texts; `None` where there is none.
fn without_words(body: &[u8]) -> Option<Vec<u8>> {
    let (mut without, mut bytes_left, mut is_in_text, mut is_changed) =
        (Vec::with_capacity(body.len()), body, false, false);
    while let Some((&first, more)) = bytes_left.split_first() {
        let word = ["-Infinity", "Infinity", "NaN"]
            .iter()
            .find(|word| !is_in_text && bytes_left.starts_with(word.as_bytes()));
        if let Some(word) = word {
            without.extend(b"null");
            is_changed = true;
            bytes_left = &bytes_left[word.len()..];
            continue;
        }
        without.push(first);
        bytes_left = more;
        match (first, is_in_text) {
            (b'"', _) => is_in_text = !is_in_text,
            (b'\\', true) => {
                without.extend(bytes_left.first());
                bytes_left = bytes_left.get(1..).unwrap_or_default();
            }
            _ => {}
        }
    }
    is_changed.then_some(without)
}
