//! Answers as JSON text: written where they are read, and counted among the requests of who asks until they
//! are sent.

use std::io;

use axum::body::Bytes;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use rehang_core::{Error, Result};
use serde::Serialize;

use crate::turns::Held;

/// Bytes that are sent in the place of their request.
struct Kept {
    bytes: Vec<u8>,
    _place: Held,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Makes bytes keep the place of their request until all are sent, or their connection has ended.
pub fn until_sent((bytes, place): (Vec<u8>, Held)) -> Bytes {
    Bytes::from_owner(Kept { bytes, _place: place })
}

/// Answer whose JSON is text already.
#[derive(Debug)]
pub struct Written(Bytes);

impl Written {
    /// Makes an answer of its text, which keeps its place until it is sent.
    pub fn new(text: (Vec<u8>, Held)) -> Self {
        Self(until_sent(text))
    }
}

impl IntoResponse for Written {
    fn into_response(self) -> Response {
        ([(header::CONTENT_TYPE, "application/json")], self.0).into_response()
    }
}

/// Text that takes no more than so many bytes.
struct Bounded {
    text: Vec<u8>,
    bytes_max: usize,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.text.len().saturating_add(bytes.len()) > self.bytes_max {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a result as JSON; `None` where that takes more bytes than `bytes_max`.
pub fn json_text_within(bytes_max: usize, result: &impl Serialize) -> Result<Option<Vec<u8>>> {
    let mut bounded = Bounded { text: Vec::new(), bytes_max };
    match serde_json::to_writer(&mut bounded, result) {
        Ok(()) => Ok(Some(bounded.text)),
        Err(error) if error.is_io() => Ok(None),
        Err(error) => Err(Error::corrupt("the result", error)),
    }
}

/// Writes a result as JSON.
pub fn json_text(result: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(result).map_err(|error| Error::corrupt("the result", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_ends_where_it_would_have_too_many_bytes() {
        let source = "\u{1}".repeat(10);
        let text = json_text(&source).unwrap();
        assert_eq!(text.len(), 62, "each byte is written as six");
        assert_eq!(json_text_within(62, &source).unwrap(), Some(text));
        assert_eq!(json_text_within(61, &source).unwrap(), None);
    }
}
