//! What a store's refusal means for the person who must act.

use object_store::Error as Refusal;
use rehang::{Error, ErrorKind};

/// Bytes of what a server said that are passed on.
const SAID_MAX: usize = 300;

/// The error for what a store says about `what`, an object or a folder in `container`.
pub fn refusal(what: &str, container: &str, refusal: &Refusal) -> Error {
    let said = said(refusal);
    let kind = match refusal {
        Refusal::NotFound { .. }
            if said.starts_with("NoSuchBucket") || said.starts_with("ContainerNotFound") =>
        {
            ErrorKind::NotFound {
                what: "bucket".into(),
                name: container.into(),
                place: format!("the store of {what}"),
            }
        }
        Refusal::NotFound { .. } => {
            ErrorKind::Io { action: "read", path: what.into(), reason: ABSENT.into() }
        }
        Refusal::PermissionDenied { .. } | Refusal::Unauthenticated { .. } => {
            ErrorKind::Unauthorised { service: what.into(), detail: said }
        }
        Refusal::Precondition { .. } => {
            let detail = "it was written anew while it was fetched; run this again".into();
            ErrorKind::ChangedMeanwhile { what: what.into(), detail }
        }
        Refusal::InvalidPath { .. } => return Error::corrupt(what, said),
        _ => ErrorKind::Unavailable { service: what.into(), detail: said },
    };
    kind.into()
}

const ABSENT: &str = "there is no such object";

/// Whether an error says that there is no such object.
pub fn is_absence(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Io { reason, .. } if reason == ABSENT)
}

/// The code and the message of the server, or else the innermost cause, on one line.
fn said(refusal: &Refusal) -> String {
    let mut cause: &dyn std::error::Error = refusal;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    let text = cause.to_string();
    let element = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        rest.split_once(&format!("</{name}>")).map(|(value, _)| value)
    };
    let said = match (element("Code"), element("Message")) {
        (Some(code), Some(message)) => format!("{code}: {message}"),
        _ => text.clone(),
    };
    let said = said.lines().next().unwrap_or_default().trim_end_matches([':', ' ']);
    said[..said.floor_char_boundary(SAID_MAX)].to_owned()
}
