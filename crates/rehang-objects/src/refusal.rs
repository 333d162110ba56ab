//! Refusals of object stores, as errors that say what the person must do.

use object_store::Error as Refusal;
use rehang_core::{Error, ErrorKind};

use crate::address::Address;

/// Most bytes of a server's words that are passed on.
const SAID_MAX: usize = 300;

/// Makes the error for what a store says about `what`, an object or a folder at an address.
pub fn refusal(what: &str, address: &Address, refusal: &Refusal) -> Error {
    if let Some(error) = ours(refusal) {
        return error.clone();
    }
    let message = server_words(refusal);
    let is_of = |words: &[&str]| words.iter().any(|word| message.starts_with(word));
    let kind = match refusal {
        _ if is_of(&["NoSuchBucket", "ContainerNotFound"]) => ErrorKind::NotFound {
            what: "bucket".into(),
            name: address.container.clone(),
            place: "that object store".into(),
        },
        Refusal::NotFound { .. } => return Error::refused("read", what, ABSENT),
        // Where the environment has no credentials, the machine is asked for some.
        _ if asked_the_machine(refusal) => {
            return Error::missing(format!("{} in the environment", address.credentials()), what);
        }
        Refusal::PermissionDenied { .. } | Refusal::Unauthenticated { .. } => {
            ErrorKind::Unauthorised { service: what.into(), detail: message }
        }
        _ if is_of(&REFUSED) => ErrorKind::Unauthorised { service: what.into(), detail: message },
        Refusal::Precondition { .. } => {
            let detail = "it was written anew while it was fetched; run this again".into();
            ErrorKind::ChangedMeanwhile { what: what.into(), detail }
        }
        Refusal::InvalidPath { .. } => return Error::corrupt(what, message),
        _ => ErrorKind::Unavailable { service: what.into(), detail: message },
    };
    kind.into()
}

/// The error of a connection whose cause [`Connector`](crate::connector::Connector) has found.
fn ours(refusal: &Refusal) -> Option<&Error> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(refusal);
    while let Some(error) = cause {
        if let Some(ours) = error.downcast_ref() {
            return Some(ours);
        }
        cause = error.source();
    }
    None
}

/// Beginnings of messages that refuse credentials. They serve where the crate does not tell such refusals
/// from others: in lists.
const REFUSED: [&str; 8] = [
    "AccessDenied",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "InvalidToken",
    "Authentication",
    "Authorization",
    "Server returned non-2xx status code: 403",
];

/// Whether the request that failed went to the service of a cloud's machine that hands out credentials.
fn asked_the_machine(refusal: &Refusal) -> bool {
    let text = refusal.to_string();
    ["169.254.169.254", "/latest/api/token", "metadata.google.internal"]
        .iter()
        .any(|place| text.contains(place))
}

const ABSENT: &str = "there is no such object";

/// Whether an error says that there is no such object.
pub fn is_absence(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Io { reason, .. } if reason == ABSENT)
}

/// The server's code and message or, where there are none, the innermost cause, on one line.
pub fn server_words(refusal: &Refusal) -> String {
    let mut cause: &dyn std::error::Error = refusal;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    let text = cause.to_string();
    let element = |name: &str| {
        let (_, after_tag) = text.split_once(&format!("<{name}>"))?;
        after_tag.split_once(&format!("</{name}>")).map(|(value, _)| value)
    };
    let words = match (element("Code"), element("Message")) {
        (Some(code), Some(message)) => format!("{code}: {message}"),
        _ => text.clone(),
    };
    let words = words.lines().next().unwrap_or_default().trim_end_matches([':', ' ']);
    words[..words.floor_char_boundary(SAID_MAX)].to_owned()
}
