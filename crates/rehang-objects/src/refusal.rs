//! What a store's refusal means for the person who must act.

use std::error::Error as _;

use object_store::Error as Refusal;
use rehang::{Error, ErrorKind};

/// The error for what a store says about `what`, an object or a folder in `container`.
pub fn refusal(what: &str, container: &str, refusal: &Refusal) -> Error {
    let said = said(refusal);
    let kind = match refusal {
        Refusal::NotFound { .. }
            if said.to_ascii_lowercase().contains("bucket") || said.contains("Container") =>
        {
            ErrorKind::NotFound {
                what: "bucket".into(),
                name: container.into(),
                place: format!("that store ({said})"),
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

/// What the server said, or else the innermost cause, on one line.
fn said(refusal: &Refusal) -> String {
    let mut text = refusal.to_string();
    let mut cause = refusal.source();
    while let Some(inner) = cause {
        text += &format!("\n  CAUSE {inner}");
        cause = inner.source();
    }
    text
}
