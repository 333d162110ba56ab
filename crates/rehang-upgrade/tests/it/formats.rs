//! Tests that an upgrade which an older rehang has begun goes on.

use std::path::Path;
use std::sync::Arc;

use rehang::Matrix;
use rehang::order::Policy;
use rehang_sqlite::SqliteStore;
use rehang_store::{Epoch, Examined, Filter, ItemWrite, Ledger};
use rehang_upgrade::{
    Ending, Gallery, Limits, OrderSettings, Recorded, Serving, Unobserved, UpgradeSetup, finish, start,
    status, switch,
};

use crate::common::{self, TestEncoder, World, check};

#[test]
fn a_merged_upgrade_of_format_1_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gallery.db");
    fs_err::copy(Path::new("../rehang-sqlite/tests/golden/format-1.db"), &path).unwrap();
    let (store, mut world) = (Arc::new(SqliteStore::open(&path).unwrap()), World::new());
    // The adapter of that version knew no fusion.
    world.adapter.fusion = None;
    let setup = UpgradeSetup { order: OrderSettings { policy: Policy::Coverage, seed: 3 }, ..world.setup() };
    // The record of that version knows no epochs: it speaks of the first one.
    assert_eq!(Recorded::expect(&*store).unwrap().record.epoch, Some(Epoch::FIRST));
    // Merged searches are no more: both models fuse, or where nothing says how, the new one alone searches.
    let record = Recorded::expect(&*store).unwrap().record;
    assert_eq!((record.serving, record.fusion), (Serving::Fused, None));
    let query = Matrix::new(common::D_NEW, common::new_model("source 3 version 0")).unwrap();
    let found = Gallery::new(store.clone()).search(&[("new-model", &query)], 5, &Filter::default()).unwrap();
    assert_eq!(found.spaces, ["new-model"]);
    let refused = switch(&*store, &setup, Serving::Fused, &Unobserved).unwrap_err();
    assert!(refused.to_string().contains("fused searches"), "{refused}");
    let before = status(&*store, 9).unwrap();
    assert_eq!((before.counts.native, before.lag, before.counts.failed), (8, 1, 1));
    assert_eq!((before.merged_before, before.fusion_weight), (true, None), "a person is told");
    // An application that was made ready for the upgrade writes on; item 7 was written plainly.
    let write = ItemWrite { id: "item-0003".into(), ..common::item(3, 1) };
    Gallery::new(store.clone()).put(&[write]).unwrap();
    let adapted = status(&*store, 9).unwrap();
    // The map of that version lies in a file of its own until the next start keeps it here.
    assert_eq!((adapted.lag, adapted.counts.lacking), (2, 3));
    assert_eq!(start(&*store, &setup, &Unobserved).unwrap().adapted, 2);
    check(&*store, std::slice::from_ref(&world.adapter));
    store.clear_failures("new-model").unwrap();
    let summary = world.backfill(&*store, &TestEncoder::new(), Limits::default()).unwrap();
    assert_eq!((summary.ending, summary.native), (Ending::NothingLeft, 60), "one of the 61 has no source");
    finish(&*store, &setup, true, &Unobserved).unwrap();
    assert_eq!(store.check().unwrap(), []);
}
