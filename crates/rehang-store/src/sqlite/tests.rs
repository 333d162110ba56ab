//! Tests of the embedded gallery that need its insides; what can be seen from outside is in `tests/`.

use super::*;
use crate::conformance;

#[test]
fn the_embedded_gallery_keeps_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    let number = std::cell::Cell::new(0);
    conformance::suite(|| {
        number.set(number.get() + 1);
        SqliteStore::create(folder.path().join(format!("{}.db", number.get()))).unwrap()
    });
}

#[test]
fn it_keeps_the_contract_with_a_graph_too() {
    let folder = tempfile::tempdir().unwrap();
    let number = std::cell::Cell::new(0);
    let options = SearchOptions { exact_max: 2, merge_at: 1, ..SearchOptions::default() };
    conformance::suite(|| {
        number.set(number.get() + 1);
        SqliteStore::create(folder.path().join(format!("{}.db", number.get()))).unwrap().with_search(options)
    });
}
