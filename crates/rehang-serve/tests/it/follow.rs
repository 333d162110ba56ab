//! Services that follow their gallery: what an application writes with an old vector alone is found without a
//! verb, and of several services none embeds what another one has embedded.

#![cfg(unix)]

use std::collections::BTreeMap;

use rehang_core::Provenance;
use rehang_sqlite::SqliteStore;
use rehang_store::{ItemWrite, Ledger, NewVector};
use rehang_upgrade::{Limits, Upgrade, follower};
use serde_json::json;

use crate::{Client, ITEMS, NEW, OLD, Served, configured, vector, wait_for};

/// Label of the items that come after the switch.
const LATE: &str = "late";

/// Takes a gallery through the verbs that come before a run.
fn switch(served: &Client) {
    for (verb, options) in [
        ("pairs", json!({ "items": 100 })),
        ("fit", json!({ "method": "ridge" })),
        ("start", json!({})),
        ("switch", json!({ "serving": "mixed", "anyway": true })),
    ] {
        let operation = served.carry_out(verb, &options);
        assert_eq!(operation["state"], "done", "{operation}");
    }
}

/// Writes an item with its old vector alone, as an application that knows nothing of the upgrade.
fn put(store: &SqliteStore, item: usize, source: Option<String>) {
    let old = NewVector::from_model("old", vector(item, OLD), Provenance::Old);
    let write = ItemWrite::new(format!("i{item}"), source, vec![old]);
    store.put(&[ItemWrite { label: Some(LATE.into()), ..write }]).unwrap();
}

/// Counts the late items that a query of the new model finds.
fn late(served: &Client) -> usize {
    let body = json!({ "vectors": { "new": [vector(1, NEW)] }, "labels": [LATE], "k": 20 });
    let answered = served.ask("POST", "/v1/search", Some(&body), &[]);
    assert_eq!(answered.status, 200, "{}", answered.text);
    answered.body["results"][0].as_array().unwrap().len()
}

#[test]
fn what_comes_with_an_old_vector_alone_is_found_without_a_verb() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), |_| {});
    switch(&served);
    let store = SqliteStore::open(folder.path().join("gallery.db")).unwrap();
    // One can be embedded, as row 3, and the other one can only be adapted.
    put(&store, ITEMS, Some("3".into()));
    put(&store, ITEMS + 1, None);
    assert_eq!(late(&served), 0, "nobody follows");
    served.end();
    let served = Served::start(folder.path(), |options| options.follow = true);
    wait_for("what came before the follower", || late(&served) == 2);
    put(&store, ITEMS + 2, None);
    wait_for("what came after it", || late(&served) == 3);
    wait_for("all that can be embedded", || served.native() == ITEMS + 1);
    served.end();
    assert_eq!(follower(&store).unwrap(), None, "it left in order");
}

/// Encoder that looks vectors up in a file, one a line, and keeps a log of what it was asked for.
const ENCODER: &str = r#"
cd "$1"
while IFS= read -r line; do
    id=${line#*\"id\":\"}; id=${id%%\"*}; source=${line#*\"source\":\"}; source=${source%%\"*}
    echo "$source" >> log.txt
    printf '{"id":"%s","vector":%s}\n' "$id" "$(sed -n "$((source + 1))p" vectors.txt)"
done
"#;

#[test]
fn two_services_that_follow_embed_every_item_once_and_end_in_order() {
    const COMES: usize = 10;
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let vectors = (0..ITEMS + COMES).map(|item| format!("{}\n", json!(vector(item, NEW))));
    fs_err::write(folder.join("vectors.txt"), vectors.collect::<String>()).unwrap();
    fs_err::write(folder.join("encode.sh"), ENCODER).unwrap();
    let program = json!(["sh", folder.join("encode.sh"), folder]);
    let encoder = json!({ "kind": "command", "program": program, "batch": 8, "revision": "1" });
    let open = || {
        let limits = Limits { batch: 8, ..Limits::default() };
        let configuration = configured(folder, ITEMS).with_limits(limits);
        let encoder = serde_json::from_value(encoder.clone()).unwrap();
        Upgrade::new(configuration.with_encoder(encoder)).unwrap()
    };
    let served = Served::of(open(), |_| {});
    switch(&served);
    served.end();
    let store = SqliteStore::open(folder.join("gallery.db")).unwrap();
    let comes = |items: std::ops::Range<usize>| {
        for item in items {
            put(&store, item, Some(item.to_string()));
        }
    };
    let [first, second] = [(); 2].map(|()| Served::of(open(), |options| options.follow = true));
    wait_for("some items", || first.native() > 120);
    comes(ITEMS..ITEMS + COMES / 2);
    // In the middle of the work: what is at its encoder is written, and the other service goes on.
    first.end();
    comes(ITEMS + COMES / 2..ITEMS + COMES);
    wait_for("all items", || second.native() == ITEMS + COMES);
    assert_eq!(late(&second), COMES);
    second.end();
    assert_eq!(follower(&store).unwrap(), None, "it left in order");
    let mut times = BTreeMap::new();
    for source in fs_err::read_to_string(folder.join("log.txt")).unwrap().lines() {
        *times.entry(source.to_owned()).or_insert(0) += 1;
    }
    let again: Vec<_> = times.iter().filter(|(_, times)| **times > 1).collect();
    assert_eq!((times.len(), again), (ITEMS + COMES, vec![]), "each once");
}
