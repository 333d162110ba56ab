//! Manners of a service beside its vectors, kept so that the next process need not find them out by refused
//! requests.

use serde::{Deserialize, Serialize};

use crate::ceiling::Ceiling;
use crate::config::HttpConfig;
use crate::fingerprint::Fingerprint;
use crate::reading::{Cut, Reading};

/// Manners of a service that its encoder has found out, which [`Encoder::learnt`](crate::Encoder::learnt)
/// gives as JSON. A field that a later version does not know is passed over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Learnt {
    /// Service that this is known of, as a fingerprint.
    #[serde(rename = "of")]
    pub(crate) service: String,
    /// Number of texts that a request may have.
    #[serde(flatten)]
    pub(crate) ceiling: Ceiling,
    /// Whether the service takes so many texts and not one more.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) is_full: bool,
    /// Whether the service refuses `encoding_format`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) refuses_format: bool,
    /// Whether the service embeds blank texts and NUL characters.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) takes_peculiar: bool,
    /// How far into a text the service reads.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub(crate) reading: Reading,
}

fn is_nothing(reading: &Reading) -> bool {
    *reading == Reading::default()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_false(value: &bool) -> bool {
    !value
}

impl Learnt {
    /// Makes the record of a service of which nothing is known yet.
    pub(crate) fn nothing(config: &HttpConfig) -> Self {
        Self {
            service: service_of(config),
            ceiling: Ceiling::default(),
            is_full: false,
            refuses_format: false,
            takes_peculiar: false,
            reading: Reading::default(),
        }
    }

    /// Reads what was learnt of the service of a configuration; `None` where it is of another one, or no such
    /// text.
    pub(crate) fn read(config: &HttpConfig, text: &str) -> Option<Self> {
        serde_json::from_str(text).ok().filter(|learnt: &Self| learnt.service == service_of(config))
    }

    /// Writes it as a short text; `None` where it says nothing.
    pub(crate) fn text(&self, config: &HttpConfig) -> Option<String> {
        if *self == Self::nothing(config) {
            return None;
        }
        serde_json::to_string(self).ok()
    }
}

/// Fingerprint of all that a service's manners depend on. Hashed, since values of an address or a body may be
/// keys.
fn service_of(config: &HttpConfig) -> String {
    Fingerprint::new("service").with(&(&config.url, &config.model, &config.body)).text()
}

impl HttpConfig {
    /// Place where the service of this configuration stops reading a text, by what an encoder of it has
    /// [learnt](crate::Encoder::learnt); `None` where that is of another service, or nothing is known.
    pub fn known_cut(&self, learnt: &str) -> Option<Cut> {
        Learnt::read(self, learnt)?.reading.cut()
    }
}
