//! Tests that items which searches return most are re-embedded first.

use std::collections::BTreeMap;

use rehang_store::{Ledger, QueueBand, Scan, Select};
use rehang_store_tests::MemoryStore;
use rehang_upgrade::{Limits, PutFirst, Unobserved, put_first, read_returned, start};

use crate::common::{TestEncoder, World, fill, id, item, new_space, old_space, other_adapter, started};

fn put(store: &MemoryStore, log: &[(usize, u64)]) -> rehang_core::Result<PutFirst> {
    let times: BTreeMap<String, u64> = log.iter().map(|&(number, times)| (id(number), times)).collect();
    put_first(store, (&old_space(), &new_space()), &times, &Unobserved)
}

/// Returns the sources that a backfill of a budget embeds.
fn embedded(store: &MemoryStore, world: &World, budget: usize) -> Vec<String> {
    let encoder = TestEncoder::new();
    let limits = Limits { budget: Some(budget as u64), batch: budget, ..Limits::default() };
    world.backfill(store, &encoder, limits).unwrap();
    encoder.embedded.lock().unwrap().keys().cloned().collect()
}

/// Returns σ² of items in the new space, by id.
fn sigma2(store: &MemoryStore) -> BTreeMap<String, f64> {
    let records = store.scan(&Scan::new("new-model", Select::All, 1000)).unwrap();
    let id_and_sigma2 =
        |record: rehang_store::Record| (record.item.id, f64::from(record.state.unwrap().sigma2.unwrap()));
    records.into_iter().map(id_and_sigma2).collect()
}

fn sources(numbers: &[usize]) -> Vec<String> {
    let mut sources: Vec<String> =
        numbers.iter().map(|number| format!("source {number} version 0")).collect();
    sources.sort();
    sources
}

#[test]
fn items_come_by_how_often_they_were_returned_times_their_error() {
    let (store, world) = started(60);
    let log = [(50, 9), (7, 1), (21, 30), (33, 2), (12, 4)];
    let sigma2_of = sigma2(&store);
    let mut expected = log;
    expected
        .sort_by(|a, b| (b.1 as f64 * sigma2_of[&id(b.0)]).total_cmp(&(a.1 as f64 * sigma2_of[&id(a.0)])));
    assert_eq!(put(&store, &log).unwrap(), PutFirst { placed: 5, ..PutFirst::default() });
    let first: Vec<usize> = expected[..3].iter().map(|one| one.0).collect();
    assert_eq!(embedded(&store, &world, 3), sources(&first));
    // Native items need no place, and ids that no item has are counted.
    let again = put(&store, &[&log[..], &[(900, 5)]].concat()).unwrap();
    assert_eq!(again, PutFirst { placed: 2, native: 3, unknown: 1, ..PutFirst::default() });
    assert_eq!(embedded(&store, &world, 2), sources(&[expected[3].0, expected[4].0]));
    // The order goes on with the rest.
    let all = embedded(&store, &world, 55);
    assert_eq!(all.len(), 55);
}

#[test]
fn places_outlive_another_adapter_and_stay_behind_what_was_changed() {
    let (store, mut world) = started(60);
    put(&store, &[(5, 3), (6, 2)]).unwrap();
    world.adapter = other_adapter();
    start(&store, &world.setup(), &Unobserved).unwrap();
    store.put(&[item(40, 1)]).unwrap();
    start(&store, &world.setup(), &Unobserved).unwrap();
    let both = put(&store, &[(40, 100), (5, 3)]).unwrap();
    assert_eq!(both, PutFirst { placed: 1, before: 1, ..PutFirst::default() });
    let scan = Scan::new("new-model", Select::All, 1000);
    let bands: BTreeMap<String, QueueBand> = store
        .scan(&scan)
        .unwrap()
        .into_iter()
        .filter_map(|record| Some((record.item.id, record.state?.priority?.band)))
        .filter(|(_, band)| *band > QueueBand::Covering)
        .collect();
    let expected =
        [(id(5), QueueBand::Sample), (id(6), QueueBand::Sample), (id(40), QueueBand::NewOrChanged)];
    assert_eq!(bands, expected.into());
    assert_eq!(embedded(&store, &world, 1), ["source 40 version 1"]);
}

#[test]
fn a_log_of_another_gallery_and_an_upgrade_that_fills_nothing_are_refused() {
    let (store, _) = started(10);
    let error = put(&store, &[(900, 1), (901, 1)]).unwrap_err();
    assert!(error.to_string().contains(&id(900)), "{error}");
    assert_eq!(put(&store, &[]).unwrap(), PutFirst::default());
    let bare = MemoryStore::new();
    fill(&bare, 3);
    assert!(put(&bare, &[(0, 1)]).is_err(), "there is no upgrade");
}

#[test]
fn an_id_counts_as_often_as_it_stands_in_a_log() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("returned.txt");
    fs_err::write(&log, "b\n a \n\nb\r\nb\n").unwrap();
    assert_eq!(read_returned(&log).unwrap(), [("a".to_owned(), 1), ("b".to_owned(), 3)].into());
    fs_err::write(&log, b"a\n\xff\n").unwrap();
    let error = read_returned(&log).unwrap_err().to_string();
    assert!(error.contains("line 2") && error.contains("returned.txt"), "{error}");
    assert!(read_returned(&folder.path().join("none")).is_err());
}
