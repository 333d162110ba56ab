//! Application of a collection of Qdrant that knows nothing of rehang: it does what `docs/qdrant.md` lets it
//! do by plain requests, and knows its items after that.

use std::collections::BTreeMap;

use rehang_store::Ledger;
use serde_json::{Value, json};

use crate::common::plain::{Known, Of, Plain, Statement};
use crate::common::{id, old_model};
use crate::qdrant::send;

/// Collection that the application writes to.
pub struct Requests {
    pub url: String,
    pub collection: String,
}

impl Requests {
    fn send(&self, method: &str, path: &str, body: &Value) {
        send(&self.url, method, &format!("/collections/{}/points{path}?wait=true", self.collection), body);
    }

    /// Performs a write, and updates `items` to match. Returns whether the content that its source names has
    /// changed. `has_old_space` says whether the application's vectors are still a space.
    pub fn perform(
        &self,
        plain: &Plain,
        items: &mut BTreeMap<String, Known>,
        version: usize,
        has_old_space: bool,
        store: &dyn Ledger,
    ) -> bool {
        let id = id(plain.number);
        let point: u64 = id.parse().unwrap();
        let there = items.get(&id).cloned();
        let source = format!("source {} version {version}", plain.number);
        let upsert = |vector: Value| {
            let points = json!([{"id": point, "vector": vector, "payload": {"body": source}}]);
            self.send("PUT", "", &json!({"points": points}));
        };
        let set =
            |payload: Value| self.send("POST", "/payload", &json!({"payload": payload, "points": [point]}));
        let delete = || self.send("POST", "/delete", &json!({"points": [point]}));
        // The item as it must have become, and whether its revision is another one.
        let (known, changed) = match (plain.statement, there.clone()) {
            (Statement::Insert, _) => {
                upsert(json!({"embedding": old_model(&source)}));
                (Some(Known { source, revision: 0, has_old: has_old_space }), true)
            }
            (Statement::Replace, _) => {
                delete();
                upsert(json!({}));
                (Some(Known { source, revision: 0, has_old: false }), true)
            }
            (_, None) => (None, false),
            (Statement::Delete, Some(_)) => {
                delete();
                (None, true)
            }
            (Statement::Source, Some(known)) => {
                self.send("POST", "/vectors/delete", &json!({"vector": ["embedding"], "points": [point]}));
                set(json!({"body": source, "rehang": null}));
                (Some(Known { source, has_old: false, ..known }), true)
            }
            (Statement::Touch, Some(known)) => {
                set(json!({"rehang": null}));
                (Some(known), true)
            }
            (Statement::Label, Some(known)) => {
                set(json!({"label": version.to_string()}));
                (Some(known), false)
            }
            (Statement::Update(Of::Old), Some(known)) if !known.has_old => (Some(known), false),
            (Statement::Vector(Of::Old) | Statement::Update(Of::Old), Some(known)) => {
                let points = json!([{"id": point, "vector": {"embedding": old_model(&known.source)}}]);
                self.send("PUT", "/vectors", &json!({"points": points}));
                set(json!({"rehang": 0}));
                (Some(Known { has_old: has_old_space, ..known }), true)
            }
            // An application does not write the named vector of the new space.
            (Statement::Vector(Of::New) | Statement::Update(Of::New), Some(known)) => (Some(known), false),
        };
        let revision = store.get(&[&id]).unwrap().remove(0).map(|item| item.revision);
        assert_eq!(revision.is_some(), known.is_some(), "{plain:?}");
        let same = there.as_ref().map(|known| known.revision) == revision;
        assert_eq!(changed, !same, "the revision after {plain:?}");
        let again = changed && matches!(plain.statement, Statement::Touch);
        match known.zip(revision) {
            Some((known, revision)) => drop(items.insert(id, Known { revision, ..known })),
            None => drop(items.remove(&id)),
        }
        again
    }
}
