//! Tests of new queries in the old space, over a bridge: from when on, of whom, and until when.

use std::sync::{Arc, Mutex};

use rehang_core::adapter::{Dense, InputScaling, Map, Training};
use rehang_core::{Bridge, FindingCode, Matrix, Remedy, Space};
use rehang_encode::Encoder;
use rehang_files::bridge_file::fingerprint;
use rehang_sqlite::SqliteStore;
use rehang_store::{Files, Filter, Index};
use rehang_store_tests::MemoryStore;
use rehang_upgrade::{
    BridgeInUse, OrderSettings, Phase, Query, Recorded, SearchAnswer, Serving, Unobserved, Upgrade,
    begin_sampling, examine, rollback, set_bridge, start, status, switch,
};

use crate::common::{
    D_NEW, D_OLD, World, fill, gallery, new_model, new_space, old_model, old_space, started,
};

/// Makes a bridge with a fixed map from the new model's features to the old one's.
fn bridge(share: f64) -> Bridge {
    let weight =
        Matrix::from_fn(D_OLD, D_NEW, |row, column| if row == column { 1.0 - row as f32 } else { 0.25 });
    Bridge {
        old: old_space(),
        new: new_space(),
        map: Map::from_layers(
            InputScaling::AsIs,
            vec![Dense { weight, bias: vec![0.0, 0.5, 0.0], relu: false }],
        ),
        share,
        length: 1.5,
        training: Training::default(),
    }
}

fn use_bridge(store: &MemoryStore, bridge: &Bridge) {
    let in_use = set_bridge(store, &old_space(), &new_space(), Some(bridge)).unwrap();
    let fingerprint = fingerprint(bridge).unwrap();
    assert_eq!(in_use, Some(BridgeInUse { fingerprint, share: bridge.share }));
}

/// Embeds some queries by both models.
fn queries() -> (Matrix, Matrix) {
    let texts = ["source 3 version 0", "another", "a third"];
    let rows = |model: fn(&str) -> Vec<f32>| texts.iter().flat_map(|text| model(text)).collect();
    (Matrix::new(D_OLD, rows(old_model)).unwrap(), Matrix::new(D_NEW, rows(new_model)).unwrap())
}

fn search(store: &MemoryStore, models: &[&str]) -> rehang_core::Result<SearchAnswer> {
    let (old, new) = queries();
    let all = [("old-model", &old), ("new-model", &new)];
    let given: Vec<_> = all.into_iter().filter(|(name, _)| models.contains(name)).collect();
    gallery(store).search(&given, 7, &Filter::default())
}

fn plainly(store: &MemoryStore, queries: &Matrix) -> Vec<Vec<rehang_store::Found>> {
    store.search("old-model", queries, 7, &Filter::default()).unwrap()
}

const BOTH: [&str; 2] = ["old-model", "new-model"];

#[test]
fn queries_of_both_models_go_over_the_bridge_that_is_in_use_and_no_other() {
    let (store, _) = started(60);
    let (old, new) = queries();
    let (half, whole) = (bridge(0.5), bridge(1.0));
    let before = search(&store, &BOTH).unwrap();
    assert!(!before.bridged && before.found == plainly(&store, &old));
    use_bridge(&store, &half);
    assert_eq!(status(&store, 0).unwrap().bridge.unwrap().share, 0.5);
    let answer = search(&store, &BOTH).unwrap();
    assert_eq!(answer.found, plainly(&store, &half.queries(Some(&old), &new).unwrap()));
    assert!(answer.bridged && answer.spaces == ["old-model"] && answer.found != before.found);
    // Without the new model's queries, a search is what it was.
    let answer = search(&store, &["old-model"]).unwrap();
    assert!(!answer.bridged && answer.found == before.found);
    let alone = search(&store, &["new-model"]).unwrap_err();
    assert!(alone.to_string().contains("old-model"), "{alone}");
    // Where the whole query is the new model's, the old one may be switched off.
    use_bridge(&store, &whole);
    let answer = search(&store, &["new-model"]).unwrap();
    assert_eq!(answer.found, plainly(&store, &whole.queries(None, &new).unwrap()));
    set_bridge(&store, &old_space(), &new_space(), None).unwrap();
    assert!(!search(&store, &BOTH).unwrap().bridged);
    assert_eq!(status(&store, 0).unwrap().bridge, None);
}

#[test]
fn a_gallery_that_is_open_follows_a_bridge_that_is_made_chosen_anew_and_undone() {
    let (store, _) = started(60);
    let (old, new) = queries();
    let open = gallery(&store);
    let search = || open.search(&[("old-model", &old), ("new-model", &new)], 7, &Filter::default());
    let file = |bridge: &Bridge| format!("bridge-{}.safetensors", fingerprint(bridge).unwrap());
    assert!(!search().unwrap().bridged);
    for share in [0.5, 1.0, 0.5] {
        let bridge = bridge(share);
        use_bridge(&store, &bridge);
        let answer = search().unwrap();
        let brought = bridge.queries(Some(&old), &new).unwrap();
        assert!(answer.bridged && answer.found == plainly(&store, &brought), "{share}");
        // The bridge stays in memory: its file is read once.
        Files::in_ledger(&store).retain(|name| name != file(&bridge)).unwrap();
        assert!(search().unwrap().bridged);
    }
    // A bridge whose file was lost is passed over; a file that is no bridge is said.
    let lost = bridge(0.25);
    use_bridge(&store, &lost);
    Files::in_ledger(&store).retain(|name| name != file(&lost)).unwrap();
    let answer = search().unwrap();
    assert!(!answer.bridged && answer.found == plainly(&store, &old));
    Files::in_ledger(&store).write(&file(&lost), b"no bridge").unwrap();
    let error = search().unwrap_err().to_string();
    assert!(error.contains("bridge-"), "{error}");
    set_bridge(&store, &old_space(), &new_space(), None).unwrap();
    let answer = search().unwrap();
    assert!(!answer.bridged && answer.found == plainly(&store, &old));
}

#[test]
fn a_bridge_that_was_lost_is_said_and_used_as_soon_as_it_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::create(folder.path().join("G.db")).unwrap();
    fill(&store, 60);
    begin_sampling(&store, &old_space(), &new_space(), OrderSettings::default(), &Unobserved).unwrap();
    let space = |name: &str, space: &Space| {
        let Space { name: model, dimension, distance, .. } = space;
        format!("[{name}]\nname = {model:?}\ndimension = {dimension}\ndistance = {:?}\n", distance.name())
    };
    let spaces = [space("old", &old_space()), space("new", &new_space())].concat();
    let config = folder.path().join("rehang.toml");
    fs_err::write(&config, format!("[gallery]\npath = \"G.db\"\n{spaces}")).unwrap();
    let upgrade = Upgrade::open(&config).unwrap();
    let open = upgrade.gallery();
    let (old, new) = queries();
    let is_bridged = || {
        let given = [("old-model", &old), ("new-model", &new)];
        open.search(&given, 7, &Filter::default()).unwrap().bridged
    };
    let said = || {
        let own = upgrade.configuration();
        let findings = examine(&own.gallery, Some(own), false).unwrap().findings;
        findings.into_iter().find(|finding| finding.code == FindingCode::Bridge).map(|finding| finding.next)
    };
    assert!(said().is_none() && !is_bridged());
    let bridge = bridge(0.5);
    set_bridge(upgrade.store(), &old_space(), &new_space(), Some(&bridge)).unwrap();
    Files::in_ledger(&store).retain(|_| false).unwrap();
    assert!(said() == Some(Some(Remedy::BridgeAgain)) && !is_bridged());
    set_bridge(upgrade.store(), &old_space(), &new_space(), Some(&bridge)).unwrap();
    assert!(said().is_none() && is_bridged());
    upgrade.remove_bridge().unwrap();
    assert!(said().is_none() && !is_bridged());
}

#[test]
fn a_text_is_embedded_by_the_models_that_the_bridge_needs() {
    for (share, expected) in [(0.5, &BOTH[..]), (1.0, &["new-model"])] {
        let (store, _) = started(60);
        let bridge = bridge(share);
        use_bridge(&store, &bridge);
        let asked = Mutex::new(Vec::new());
        let open = |space: &Space| {
            asked.lock().unwrap().push(space.name.clone());
            let model = if space.name == "old-model" { old_model } else { new_model };
            let embed = move |texts: &[&str]| {
                let rows = texts.iter().flat_map(|text| model(text)).collect();
                Matrix::new(model("").len(), rows)
            };
            Ok(Arc::new(rehang_encode::Function::new(space, 8, false, None, embed)) as Arc<dyn Encoder>)
        };
        let texts = ["source 3 version 0", "another", "a third"].map(|text| Query::Text(text.into()));
        let (answer, _) = gallery(&store).search_source(&texts, &open, 7, &Filter::default(), false).unwrap();
        let (old, new) = queries();
        let by_old = bridge.needs_old().then_some(&old);
        assert_eq!(answer.found, plainly(&store, &bridge.queries(by_old, &new).unwrap()));
        assert_eq!(*asked.lock().unwrap(), expected);
    }
}

#[test]
fn a_bridge_lasts_from_the_pairs_to_the_switch_and_a_rollback_takes_it_away() {
    let (store, world) = (MemoryStore::new(), World::new());
    fill(&store, 60);
    let setup = world.setup();
    begin_sampling(&store, &world.old, &world.new, setup.order, &Unobserved).unwrap();
    let bridge = bridge(0.5);
    let bridged = |store: &MemoryStore| search(store, &BOTH).unwrap().bridged;
    use_bridge(&store, &bridge);
    assert!(bridged(&store));
    assert_eq!(Recorded::expect(&store).unwrap().record.phase, Phase::Sampling);
    // Filling the new space changes no search.
    start(&store, &setup, &Unobserved).unwrap();
    assert!(bridged(&store));
    switch(&store, &setup, Serving::Mixed, &Unobserved).unwrap();
    let after = search(&store, &BOTH).unwrap();
    assert!(!after.bridged && after.spaces == ["new-model"]);
    assert_eq!(status(&store, 0).unwrap().bridge, None);
    let late = set_bridge(&store, &world.old, &world.new, Some(&bridge)).unwrap_err().to_string();
    assert!(late.contains("switched"), "{late}");
    rollback(&store, &setup, &Unobserved).unwrap();
    assert!(!bridged(&store), "a rollback is to what served before the upgrade");
    // A person who wants the bridge then says so.
    use_bridge(&store, &bridge);
    assert!(bridged(&store));
}
