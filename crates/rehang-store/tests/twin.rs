//! Random operations on the embedded gallery and on its twin in memory: whatever can be seen is equal after each.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use rehang::{Distance, Matrix, Provenance, Space};
use rehang_store::{
    Among, Band, Epoch, Examined, Filter, ItemKey, ItemWrite, ManualLeaseClock, MemoryStore, NewVector,
    Priority, Queue, Revision, Sample, Scan, SearchOptions, Select, SqliteStore, Store, VectorWrite,
};
use serde_json::json;

const IDS: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g"];
const SPACES: [&str; 2] = ["old", "new"];
const WORKERS: [&str; 2] = ["left", "right"];
/// Seconds of a lease.
const LEASE_S: u64 = 10;

/// What can happen to a gallery.
#[derive(Debug, Clone)]
enum Operation {
    Put {
        ids: Vec<usize>,
        sourced: bool,
        with: [bool; 2],
        value: i8,
    },
    Delete(Vec<usize>),
    Write {
        space: usize,
        ids: Vec<usize>,
        native: bool,
        stale: bool,
        late: bool,
        value: i8,
        sigma2: Option<u8>,
    },
    Priority {
        space: usize,
        id: usize,
        band: usize,
        score: i8,
        late: bool,
    },
    Advance {
        space: usize,
        late: bool,
    },
    Claim {
        space: usize,
        /// Seed and size of the sample that the claim is from.
        sample: Option<(u64, usize)>,
        worker: usize,
        limit: usize,
    },
    Renew {
        space: usize,
        worker: usize,
    },
    Release {
        space: usize,
        worker: usize,
        ids: Option<Vec<usize>>,
    },
    /// Time by which leases run out.
    Pass(u64),
    Fail {
        space: usize,
        id: usize,
        stale: bool,
    },
    ClearFailures(usize),
    Switch(usize),
    Document(usize),
    Drop,
    Rebuild(usize),
    Flush,
    /// Closes the handle and opens the file again; the side files may be lost in between.
    Reopen {
        lose_side_files: bool,
        damage: bool,
    },
    /// What follows is done through another handle on the file, as by another process.
    OtherHandle,
}

fn operation() -> impl Strategy<Value = Operation> {
    let id = 0..IDS.len();
    let ids = prop::collection::vec(id.clone(), 1..5);
    let space = 0..SPACES.len();
    let value = -3_i8..4;
    prop_oneof![
        6 => (ids.clone(), any::<bool>(), any::<[bool; 2]>(), value.clone())
            .prop_map(|(ids, sourced, with, value)| Operation::Put { ids, sourced, with, value }),
        2 => ids.clone().prop_map(Operation::Delete),
        8 => (
            space.clone(),
            ids.clone(),
            any::<bool>(),
            prop::bool::weighted(0.1),
            prop::bool::weighted(0.1),
            value,
            prop::option::of(0_u8..4),
        )
            .prop_map(|(space, ids, native, stale, late, value, sigma2)| Operation::Write {
                space, ids, native, stale, late, value, sigma2,
            }),
        2 => (space.clone(), id.clone(), 0..Band::ALL.len(), -3_i8..4, prop::bool::weighted(0.1))
            .prop_map(|(space, id, band, score, late)| Operation::Priority { space, id, band, score, late }),
        1 => (space.clone(), prop::bool::weighted(0.3))
            .prop_map(|(space, late)| Operation::Advance { space, late }),
        4 => (space.clone(), prop::option::weighted(0.3, (0_u64..2, 0_usize..6)), 0..WORKERS.len(), 0_usize..4)
            .prop_map(|(space, sample, worker, limit)| Operation::Claim { space, sample, worker, limit }),
        1 => (space.clone(), 0..WORKERS.len()).prop_map(|(space, worker)| Operation::Renew { space, worker }),
        1 => (space.clone(), 0..WORKERS.len(), prop::option::of(ids))
            .prop_map(|(space, worker, ids)| Operation::Release { space, worker, ids }),
        2 => (0..2 * LEASE_S).prop_map(Operation::Pass),
        2 => (space.clone(), id, prop::bool::weighted(0.2))
            .prop_map(|(space, id, stale)| Operation::Fail { space, id, stale }),
        1 => space.clone().prop_map(Operation::ClearFailures),
        1 => space.clone().prop_map(Operation::Switch),
        1 => (0_usize..3).prop_map(Operation::Document),
        1 => Just(Operation::Drop),
        1 => space.prop_map(Operation::Rebuild),
        1 => Just(Operation::Flush),
        2 => (any::<bool>(), any::<bool>())
            .prop_map(|(lose_side_files, damage)| Operation::Reopen { lose_side_files, damage }),
        2 => Just(Operation::OtherHandle),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_embedded_gallery_is_its_twin(
        operations in prop::collection::vec(operation(), 1..40),
        graph in any::<bool>(),
    ) {
        let options = if graph {
            SearchOptions { exact_max: 3, merge_at: 2, ..SearchOptions::default() }
        } else {
            SearchOptions::default()
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gallery.db");
        let clock = ManualLeaseClock::default();
        let leases = || Arc::new(clock.clone());
        let open = || SqliteStore::open_or_create(&path).unwrap().with_search(options).with_clock(leases());
        let twin = MemoryStore::new().with_clock(leases());
        let (mut store, mut other) = (open(), open());
        make_spaces(&twin);
        make_spaces(&store);
        for operation in &operations {
            match operation {
                Operation::Reopen { lose_side_files, damage } => {
                    drop(store);
                    drop(other);
                    if *lose_side_files {
                        spoil_side_files(folder.path(), *damage);
                    }
                    store = open();
                    other = open();
                }
                Operation::Pass(seconds) => clock.pass(Duration::from_secs(*seconds)),
                Operation::OtherHandle => std::mem::swap(&mut store, &mut other),
                _ => prop_assert_eq!(apply(&store, operation), apply(&twin, operation), "{:?}", operation),
            }
            prop_assert_eq!(seen(&store), seen(&twin), "after {:?}", operation);
            prop_assert_eq!(store.check().unwrap(), vec![]);
        }
        prop_assert_eq!(seen(&other), seen(&twin));
    }
}

fn make_spaces(store: &dyn Store) {
    let written_as = [Provenance::Old, Provenance::Native];
    for (name, written_as) in SPACES.into_iter().zip(written_as) {
        store.create_space(&Space::new(name, 2, Distance::L2, false), written_as).unwrap();
    }
}

fn spoil_side_files(folder: &Path, damage: bool) {
    for entry in fs_err::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "usearch") {
            if damage {
                let length = fs_err::metadata(&path).unwrap().len();
                fs_err::OpenOptions::new().write(true).open(&path).unwrap().set_len(length * 2 / 3).unwrap();
            } else {
                fs_err::remove_file(&path).unwrap();
            }
        }
    }
}

/// Does it, and says what the store answered, without numbers that two stores may give differently.
fn apply(store: &dyn Store, operation: &Operation) -> String {
    let item = |id: usize| store.get(&[IDS[id]]).unwrap().remove(0);
    let known = |id: usize, stale: bool| -> (ItemKey, Revision) {
        item(id).map_or((ItemKey::from(1_000_000), 1), |item| {
            (item.key, item.revision + 1_000_000 * Revision::from(stale))
        })
    };
    let epoch = |space: usize, late: bool| {
        let epoch =
            store.spaces().unwrap().iter().find(|there| there.space.name == SPACES[space]).unwrap().epoch;
        if late { Epoch::new(epoch.number().wrapping_sub(1)) } else { epoch }
    };
    match operation {
        Operation::Put { ids, sourced, with, value } => {
            let writes: Vec<ItemWrite> = ids
                .iter()
                .enumerate()
                .map(|(at, &id)| ItemWrite {
                    id: IDS[id].into(),
                    source: sourced.then(|| format!("source {value}")),
                    label: (id % 2 == 0).then(|| "even".into()),
                    payload: json!({"value": value, "at": at}),
                    vectors: SPACES
                        .iter()
                        .zip(with)
                        .filter(|(_, with)| **with)
                        .map(|(space, _)| {
                            NewVector::of_model(
                                *space,
                                vector(*value, id),
                                if *space == "old" { Provenance::Old } else { Provenance::Native },
                            )
                        })
                        .collect(),
                })
                .collect();
            let revisions = store.put(&writes).unwrap();
            assert!(revisions.is_sorted_by(|a, b| a < b), "revisions grow");
            revisions.len().to_string()
        }
        Operation::Delete(ids) => {
            store.delete(&ids.iter().map(|&id| IDS[id]).collect::<Vec<_>>()).unwrap().to_string()
        }
        Operation::Write { space, ids, native, stale, late, value, sigma2 } => {
            let writes: Vec<VectorWrite> = ids
                .iter()
                .map(|&id| {
                    let (key, revision) = known(id, *stale);
                    VectorWrite {
                        key,
                        revision,
                        provenance: if *native { Provenance::Native } else { Provenance::Adapted },
                        sigma2: sigma2.map(f32::from),
                        // SQLite keeps no sign of a zero, which no order can see.
                        priority: sigma2.map(|sigma2| {
                            let score = f64::from(sigma2) * f64::from(*value) + 0.0;
                            Priority::new(Band::ALL[usize::from(sigma2)], score)
                        }),
                        squared_error: native.then(|| f32::from(*value).abs()),
                        vector: vector(*value, id),
                    }
                })
                .collect();
            format!("{:?}", store.write_vectors(SPACES[*space], Some(epoch(*space, *late)), &writes))
        }
        Operation::Priority { space, id, band, score, late } => {
            let (key, revision) = known(*id, false);
            let place = Priority::new(Band::ALL[*band], f64::from(*score));
            let places = [(key, revision, place)];
            format!("{:?}", store.set_priorities(SPACES[*space], epoch(*space, *late), &places))
        }
        Operation::Advance { space, late } => {
            let expected = store.document("plan").unwrap().map(|(version, _)| version);
            let text = format!("epoch of {space}");
            format!("{:?}", store.advance(SPACES[*space], epoch(*space, *late), "plan", expected, &text))
        }
        Operation::Claim { space, sample, worker, limit } => {
            let lease = Duration::from_secs(LEASE_S);
            let queue = sample.map_or(Queue::All, |(seed, size)| Queue::Sample { seed, size });
            let claimed = store.claim(SPACES[*space], queue, WORKERS[*worker], *limit, lease).unwrap();
            let ids: Vec<_> = claimed.records.iter().map(|record| &record.item.id).collect();
            let vectors: Vec<_> =
                claimed.records.iter().map(|record| record.vector.as_ref().map(|v| &v.vector)).collect();
            format!("{ids:?} {vectors:?} {}", claimed.held_by_others)
        }
        Operation::Renew { space, worker } => {
            format!("{:?}", store.renew(SPACES[*space], WORKERS[*worker], Duration::from_secs(LEASE_S)))
        }
        Operation::Release { space, worker, ids } => {
            let keys: Option<Vec<ItemKey>> =
                ids.as_ref().map(|ids| ids.iter().map(|&id| known(id, false).0).collect());
            format!("{:?}", store.release(SPACES[*space], WORKERS[*worker], keys.as_deref()))
        }
        Operation::Fail { space, id, stale } => {
            let (key, revision) = known(*id, *stale);
            format!("{:?}", store.record_failures(SPACES[*space], &[(key, revision, format!("no {id}"))]))
        }
        Operation::ClearFailures(space) => format!("{:?}", store.clear_failures(SPACES[*space])),
        Operation::Switch(to) => {
            let from = SPACES[1 - to];
            format!("{:?}", store.switch_serving(from, SPACES[*to]))
        }
        Operation::Document(version) => {
            let expected = (*version > 0).then_some(*version as u64);
            format!("{:?}", store.set_document("plan", expected, "text"))
        }
        Operation::Drop => {
            let serving = store.serving().unwrap().unwrap();
            let other = if serving == "old" { "new" } else { "old" };
            store.drop_space(other).unwrap();
            make_spaces(store);
            String::new()
        }
        Operation::Rebuild(space) => format!("{:?}", store.rebuild(SPACES[*space])),
        Operation::Flush => format!("{:?}", store.flush()),
        Operation::Reopen { .. } | Operation::OtherHandle | Operation::Pass(_) => {
            unreachable!("done by the test itself")
        }
    }
}

fn vector(value: i8, id: usize) -> Vec<f32> {
    vec![f32::from(value), id as f32 / 2.0]
}

/// Everything that can be seen of a gallery, with revisions replaced by their ranks.
fn seen(store: &dyn Store) -> String {
    let all = store.scan(&Scan::new("old", Select::All, 100)).unwrap();
    let revisions: BTreeSet<Revision> = all.iter().map(|record| record.item.revision).collect();
    assert_eq!(store.newest_revision().unwrap(), revisions.last().copied().unwrap_or(0));
    let ranks: BTreeMap<Revision, usize> =
        revisions.into_iter().enumerate().map(|(rank, revision)| (revision, rank)).collect();
    let mut lines = vec![format!("{:?} {:?}", store.serving(), store.document("plan"))];
    let mut spaces: Vec<String> = Vec::new();
    for record in store.spaces().unwrap() {
        spaces.push(format!("{} {} {}", record.space, record.written_as, record.epoch));
    }
    lines.push(spaces.join(", "));
    for space in SPACES {
        let other = if space == "old" { "new" } else { "old" };
        lines.push(format!("{:?} {:?}", store.counts(space), store.errors(space, 3)));
        lines.push(format!("{:?} {:?}", store.at_work(space), store.count_lag(space, other)));
        lines.push(format!("{:?}", store.count_without_source()));
        for among in [Among::All, Among::Adapted, Among::Embeddable] {
            for size in [2, 100] {
                let sample =
                    Sample { space: space.into(), among, seed: 5, size, vectors_of: Some(other.into()) };
                let drawn = store.sample(&sample).unwrap();
                let ids: Vec<_> = drawn.records.iter().map(|record| &record.item.id).collect();
                lines.push(format!("{among:?} {size} of {}: {ids:?}", drawn.of));
            }
        }
        let failures = store.failures(space, None, 100).unwrap();
        lines.extend(
            failures.iter().map(|failure| format!("{} {} {}", failure.key, failure.id, failure.reason)),
        );
        let mut selects = vec![Select::All, Select::Lacking, Select::WorstFirst, Select::WithoutSource];
        selects.extend(Provenance::ALL.map(Select::Provenance));
        for select in selects {
            for (limit, after) in [(100, None), (2, Some(2))] {
                let after = after.map(ItemKey::from);
                let scan = Scan::new(space, select.clone(), limit).after(after).with_vectors_of(other);
                for mut record in store.scan(&scan).unwrap() {
                    for vector in [&mut record.state, &mut record.vector].into_iter().flatten() {
                        assert_eq!(vector.revision, record.item.revision, "no vector of another revision");
                        vector.revision = 0;
                    }
                    let rank = ranks[&record.item.revision];
                    record.item.revision = 0;
                    lines.push(format!("{select:?} {limit}: {rank} {record:?}"));
                }
            }
        }
        let queries = Matrix::new(2, vec![0.0, 0.0, 1.5, -2.0]).unwrap();
        let filters = [
            Filter::default(),
            Filter { labels: vec!["even".into()], ..Filter::default() },
            Filter { provenances: vec![Provenance::Native, Provenance::Old], ..Filter::default() },
            Filter { provenances: vec![Provenance::Adapted], ..Filter::default() },
            Filter {
                labels: vec!["even".into()],
                provenances: vec![Provenance::Native],
                ..Filter::default()
            },
            Filter { payload: vec![("at".into(), json!(0))], ..Filter::default() },
        ];
        for filter in filters {
            for (row, found) in store.search(space, &queries, 4, &filter).unwrap().into_iter().enumerate() {
                for found in found {
                    let rank = ranks[&found.revision];
                    lines.push(format!(
                        "{row} {} {} {} {} {rank}",
                        found.key, found.id, found.distance, found.provenance
                    ));
                }
            }
        }
    }
    lines.join("\n")
}
