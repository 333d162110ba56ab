//! The gallery that every call is about: its server, the application's collection, and the gallery's
//! own collection beside it.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use rehang_core::{Error, Result};
use rehang_store::{ItemKey, LeaseClock};
use serde_json::{Value, json};

use crate::client::{Client, PAGE};
use crate::collection::{self, CollectionOptions, Facts, Limits};
use crate::filters::{all_of, has_id};
use crate::payload::{REVISION, TAG};
use crate::scroll::With;
use crate::slot::SpaceSlot;
use crate::tokens::Tokens;

/// The first items of a shuffle, as they were when they were drawn.
#[derive(Debug, Default)]
pub(crate) struct DrawnKeys {
    /// The space's slot, the seed and the size.
    pub(crate) sample: Option<(u32, u64, usize)>,
    pub(crate) keys: Vec<ItemKey>,
}

/// A gallery in a collection, as the functions of this crate take it.
pub(crate) struct Handle {
    pub(crate) client: Client,
    pub(crate) options: CollectionOptions,
    /// The application's collection. Where the options name an alias, it is the collection that the alias led
    /// to when the gallery was made.
    pub(crate) collection: String,
    /// The collection that the alias leads to by now, if it is another one.
    pub(crate) moved: Option<String>,
    /// Name of the gallery's own collection.
    pub(crate) ours: String,
    /// The name that the space of the application's own vectors has or will have.
    pub(crate) old: Option<String>,
    pub(crate) clock: Arc<dyn LeaseClock>,
    pub(crate) tokens: Tokens,
    /// The sample from which claims take items.
    pub(crate) drawn: Mutex<DrawnKeys>,
    /// Whether this handle has looked for missing indexes since the gallery was opened.
    pub(crate) is_indexed: AtomicBool,
    /// Limits that the collection sets to requests, as they were when the handle was made.
    pub(crate) limits: Limits,
}

impl Handle {
    /// Returns the name of the gallery in messages.
    pub(crate) fn name(&self) -> String {
        format!("{}, collection {}", self.client.name(), self.options.collection)
    }

    /// Fails where the gallery's alias leads to another collection by now.
    pub(crate) fn expect_same_collection(&self) -> Result<()> {
        let Some(moved) = &self.moved else { return Ok(()) };
        let (alias, here) = (&self.options.collection, &self.collection);
        let why = format!(
            "the alias {alias:?} leads to collection {moved:?} now, and the gallery is in {here:?}; point it there again, or take the gallery out \
             of {here:?} and adopt {moved:?}"
        );
        Err(Error::conflict(self.name(), why))
    }

    /// Returns the application's collection.
    pub(crate) fn collection(&self) -> &str {
        &self.collection
    }

    pub(crate) fn facts(&self) -> Result<Facts> {
        collection::facts(&self.client, &self.collection)
    }

    /// Returns the payload fields and vectors that a read brings along for an item, with
    /// vectors of some spaces.
    pub(crate) fn with<'a>(&self, spaces: impl IntoIterator<Item = &'a SpaceSlot>) -> With {
        let payload = match &self.options.payload {
            None => Value::Bool(true),
            Some(payload) => {
                let fields = [self.options.source.as_deref(), self.options.label.as_deref(), Some(payload)];
                json!(fields.into_iter().flatten().chain([REVISION, TAG]).collect::<Vec<_>>())
            }
        };
        With { payload, vectors: spaces.into_iter().map(|space| space.vector.clone()).collect() }
    }

    /// Reads the tag alone of the payload, with vectors of some spaces.
    pub(crate) fn tag<'a>(&self, spaces: impl IntoIterator<Item = &'a SpaceSlot>) -> With {
        With { payload: json!([REVISION, TAG]), ..self.with(spaces) }
    }

    /// Changes every point that passes a filter, one page at a time. The server makes one change
    /// after the other, so an application's change waits for one page at most. `operation` is
    /// given the filter of a page.
    pub(crate) fn change_each(&self, filter: &Value, operation: impl Fn(Value) -> Value) -> Result<()> {
        let collection = self.collection();
        self.client.each_page(collection, filter, None, usize::MAX, &With::default(), &mut |points| {
            for some in points.chunks(PAGE) {
                let keys = has_id(some.iter().map(|point| point.key));
                self.client.change(collection, &[operation(all_of([keys, filter.clone()]))])?;
            }
            Ok(true)
        })
    }

    pub(crate) fn drop_index(&self, field: &str) -> Result<()> {
        let path = format!("/collections/{}/index/{}?wait=true", self.collection(), escaped(field));
        self.client.ask("DELETE", &path, &Value::Null).map(drop)
    }

    pub(crate) fn vector_path(&self, vector: &str) -> String {
        format!("/collections/{}/vectors/{}?wait=true", self.collection(), escaped(vector))
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QdrantStore").field(&self.name()).finish()
    }
}

/// Escapes a name so that it can be part of a path.
fn escaped(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    name.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
