//! Random histories: what an application and an upgrade do to a collection, beside the strict store in memory.
//!
//! Keys and revisions differ between the two, so what is compared goes by the items' ids.

mod server;

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rehang::{Distance, Matrix, Provenance, Space};
use rehang_qdrant::{CollectionOptions, QdrantStore};
use rehang_store::{
    Band, Counts, Examined, Filter, ItemWrite, Ledger, ManualLeaseClock, MemoryStore, NewVector, Outcome,
    Priority, Queue, Scan, Select, Store, VectorWrite, find_space,
};
use serde_json::{Value, json};

const OLD: &str = "old";
const NEW: &str = "new";
const WORKERS: [&str; 2] = ["left", "right"];
const LEASE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone)]
enum Step {
    Put {
        id: u8,
        has_source: bool,
        has_old: bool,
    },
    /// The same by a plain request of the application.
    Upsert {
        id: u8,
        has_source: bool,
        has_old: bool,
    },
    Delete {
        id: u8,
    },
    Write {
        id: u8,
        is_native: bool,
        is_stale: bool,
        score: i8,
        band: usize,
    },
    Prioritise {
        id: u8,
        score: i8,
        band: usize,
    },
    Fail {
        id: u8,
    },
    ClearFailures,
    Forget {
        limit: usize,
    },
    Advance,
    Claim {
        worker: usize,
        limit: usize,
    },
    Release {
        worker: usize,
    },
    Pass,
    Remake,
}

fn step() -> impl Strategy<Value = Step> {
    let id = 1..9_u8;
    prop_oneof![
        3 => (id.clone(), any::<bool>(), any::<bool>()).prop_map(|(id, has_source, has_old)| Step::Put { id, has_source, has_old }),
        4 => (id.clone(), any::<bool>(), any::<bool>()).prop_map(|(id, has_source, has_old)| Step::Upsert { id, has_source, has_old }),
        2 => id.clone().prop_map(|id| Step::Delete { id }),
        8 => (id.clone(), any::<bool>(), prop::bool::weighted(0.1), -3..3_i8, 0..4_usize)
            .prop_map(|(id, is_native, is_stale, score, band)| Step::Write { id, is_native, is_stale, score, band }),
        2 => (id.clone(), -3..3_i8, 0..4_usize).prop_map(|(id, score, band)| Step::Prioritise { id, score, band }),
        2 => id.prop_map(|id| Step::Fail { id }),
        1 => Just(Step::ClearFailures),
        1 => (0..3_usize).prop_map(|limit| Step::Forget { limit }),
        1 => Just(Step::Advance),
        4 => (0..2_usize, 0..4_usize).prop_map(|(worker, limit)| Step::Claim { worker, limit }),
        1 => (0..2_usize).prop_map(|worker| Step::Release { worker }),
        1 => Just(Step::Pass),
        1 => Just(Step::Remake),
    ]
}

fn old_vector(id: u8) -> Vec<f32> {
    vec![f32::from(id), 1.0]
}

fn item(id: u8, has_source: bool, has_old: bool) -> ItemWrite {
    ItemWrite {
        id: id.to_string(),
        source: has_source.then(|| format!("text {id}")),
        label: None,
        payload: json!({"n": id}),
        vectors: has_old
            .then(|| NewVector::of_model(OLD, old_vector(id), Provenance::Old))
            .into_iter()
            .collect(),
    }
}

/// What both must say alike, as text.
fn seen(store: &dyn Store) -> String {
    let mut said = String::new();
    for (space, select) in [
        (NEW, Select::All),
        (NEW, Select::Lacking),
        (NEW, Select::Provenance(Provenance::Adapted)),
        (NEW, Select::Provenance(Provenance::Native)),
        (NEW, Select::WithoutSource),
        (OLD, Select::Lacking),
        (OLD, Select::Provenance(Provenance::Old)),
    ] {
        let mut scan = Scan::new(space, select.clone(), 99).with_vectors_of(NEW);
        let mut rows: Vec<String> = Vec::new();
        loop {
            scan.limit = 3;
            let page = store.scan(&scan).unwrap();
            let Some(last) = page.last() else { break };
            scan.after = Some(last.item.key);
            rows.extend(page.iter().map(|record| {
                let states: Vec<_> = [&record.state, &record.vector]
                    .into_iter()
                    .map(|state| {
                        let state = state.as_ref()?;
                        assert_eq!(state.revision, record.item.revision);
                        Some((
                            state.provenance,
                            state.sigma2,
                            state.priority,
                            state.squared_error,
                            state.vector.clone(),
                        ))
                    })
                    .collect();
                format!("{} {:?} {} {states:?}", record.item.id, record.item.source, record.item.payload)
            }));
        }
        // By id: keys come in the order of time in the one, and of ids in the other.
        rows.sort();
        said += &format!("{space} {select:?}: {rows:#?}\n");
    }
    let queue = store.scan(&Scan::new(NEW, Select::WorstFirst, 99)).unwrap();
    let mut places: Vec<(i32, String)> = Vec::new();
    let (mut place, mut before) = (0, None);
    for record in queue {
        let rank = record
            .state
            .map(|state| state.priority.map(|priority| (priority.band, priority.score.to_bits())));
        place += i32::from(before.as_ref().is_some_and(|before| *before != rank));
        before = Some(rank);
        places.push((place, record.item.id));
    }
    places.sort();
    let counts: [Counts; 2] = [NEW, OLD].map(|space| store.counts(space).unwrap());
    let at_work = store.at_work(NEW).unwrap();
    let failures: std::collections::BTreeSet<(String, String)> = store
        .failures(NEW, None, 99)
        .unwrap()
        .into_iter()
        .map(|failure| (failure.id, failure.reason))
        .collect();
    let found = store.search(NEW, &Matrix::new(2, vec![0.5, 1.0]).unwrap(), 4, &Filter::default()).unwrap();
    let distances: Vec<f32> = found[0].iter().map(|hit| (hit.distance * 1e3).round()).collect();
    said += &format!(
        "{places:?} {counts:?} {at_work:?} {failures:?} {distances:?} {:?} {:?} {:?}",
        store.count_lag(NEW, OLD),
        store.count_without_source(),
        store.errors(NEW, 3)
    );
    said
}

fn run(server: &server::Server, steps: &[Step]) {
    let name = server::fresh("twin");
    server::collection(&server.url, &name, 2);
    let options = CollectionOptions {
        collection: name.clone(),
        source: Some("body".into()),
        vector: Some("embedding".into()),
        ..CollectionOptions::default()
    };
    let clock = ManualLeaseClock::default();
    let address = server.address();
    let store = QdrantStore::adopt(&address, &options, Some(OLD), &|_, _| true).unwrap();
    let store = store.with_clock(Arc::new(clock.clone()), &address).unwrap();
    let twin = MemoryStore::new().with_clock(Arc::new(clock.clone()));
    let both: [&dyn Store; 2] = [&store, &twin];
    for one in both {
        one.create_space(&Space::new(OLD, 2, Distance::L2, false), Provenance::Old).unwrap();
        one.create_space(&Space::new(NEW, 2, Distance::L2, false), Provenance::Native).unwrap();
    }
    let path = format!("/collections/{name}/points");
    for (at, step) in steps.iter().enumerate() {
        let now = |one: &dyn Store| find_space(one, NEW).unwrap().expect("it is there").epoch;
        let of = |one: &dyn Store, id: u8| one.get(&[&id.to_string()]).unwrap().remove(0);
        match *step {
            Step::Put { id, has_source, has_old } => {
                for one in both {
                    one.put(&[item(id, has_source, has_old)]).unwrap();
                }
            }
            Step::Upsert { id, has_source, has_old } => {
                let mut payload = json!({"n": id});
                if has_source {
                    payload["body"] = json!(format!("text {id}"));
                }
                let vector = if has_old { json!({"embedding": old_vector(id)}) } else { json!({}) };
                let points: Value = json!({"points": [{"id": id, "vector": vector, "payload": payload}]});
                server::send(&server.url, "PUT", &format!("{path}?wait=true"), &points);
                twin.put(&[item(id, has_source, has_old)]).unwrap();
            }
            Step::Delete { id } => {
                server::send(
                    &server.url,
                    "POST",
                    &format!("{path}/delete?wait=true"),
                    &json!({"points": [id]}),
                );
                twin.delete(&[&id.to_string()]).unwrap();
            }
            Step::Write { id, is_native, is_stale, score, band } => {
                let outcomes = both.map(|one| {
                    let item = of(one, id)?;
                    let write = VectorWrite {
                        key: item.key,
                        revision: item.revision + 1_000_000 * u64::from(is_stale),
                        provenance: if is_native { Provenance::Native } else { Provenance::Adapted },
                        sigma2: (score >= 0).then_some(0.5),
                        priority: (!is_native && score > -3)
                            .then(|| Priority::new(Band::ALL[band], f64::from(score))),
                        squared_error: (is_native && score > 0).then_some(f32::from(score)),
                        vector: vec![f32::from(score), f32::from(id)],
                    };
                    Some(one.write_vectors(NEW, Some(now(one)), &[write]).unwrap()[0])
                });
                assert_eq!(outcomes[0], outcomes[1], "step {at}: {step:?}");
                assert!(!is_stale || outcomes[0].is_none_or(|outcome| outcome == Outcome::Changed));
            }
            Step::Prioritise { id, score, band } => {
                let changed = both.map(|one| {
                    let item = of(one, id)?;
                    let place = Priority::new(Band::ALL[band], f64::from(score));
                    Some(one.set_priorities(NEW, now(one), &[(item.key, item.revision, place)]).unwrap())
                });
                assert_eq!(changed[0], changed[1], "step {at}: {step:?}");
            }
            Step::Fail { id } => {
                for one in both {
                    if let Some(item) = of(one, id) {
                        one.record_failures(NEW, &[(item.key, item.revision, format!("step {at}"))]).unwrap();
                    }
                }
            }
            Step::ClearFailures => {
                let cleared = both.map(|one| one.clear_failures(NEW));
                assert_eq!(cleared[0], cleared[1]);
            }
            Step::Forget { limit } => {
                // Which ones go is each store's own affair, so all or none.
                let limit = if limit == 0 { 0 } else { 99 };
                let forgotten = both.map(|one| one.forget_natives(NEW, now(one), limit));
                assert_eq!(forgotten[0], forgotten[1]);
            }
            Step::Advance => {
                for one in both {
                    let version = one.document("plan").unwrap().map(|(version, _)| version);
                    one.advance(NEW, now(one), "plan", version, "x").unwrap();
                }
            }
            Step::Claim { worker, limit } => {
                // Ties go by key, which differs: all of the queue or nothing.
                let limit = if limit == 0 { 0 } else { 99 };
                let claimed = both.map(|one| {
                    let claimed = one.claim(NEW, Queue::All, WORKERS[worker], limit, LEASE).unwrap();
                    (claimed.records.len(), claimed.held_by_others)
                });
                // After two lost leases an item goes alone, and which one is first is each store's own affair.
                if claimed[0] != claimed[1] {
                    assert_eq!(claimed[0].1, claimed[1].1, "step {at}: {step:?}");
                    for one in both {
                        one.release(NEW, WORKERS[worker], None).unwrap();
                    }
                }
            }
            Step::Release { worker } => {
                let released = both.map(|one| one.release(NEW, WORKERS[worker], None));
                assert_eq!(released[0], released[1], "step {at}: {step:?}");
            }
            Step::Pass => clock.pass(LEASE / 2),
            Step::Remake => {
                for one in both {
                    one.drop_space(NEW).unwrap();
                    one.create_space(&Space::new(NEW, 2, Distance::L2, false), Provenance::Native).unwrap();
                }
            }
        }
        if at % 4 == 3 || at + 1 == steps.len() {
            assert_eq!(seen(&store), seen(&twin), "after step {at}: {step:?}");
        }
    }
    assert_eq!(store.check().unwrap(), []);
    store.release().ok();
    server::send(&server.url, "DELETE", &format!("/collections/{name}"), &Value::Null);
}

#[test]
fn any_history_ends_as_in_memory() {
    let Some(server) = server::server() else { return };
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(12);
    let config = Config { cases, max_shrink_iters: 60, failure_persistence: None, ..Config::default() };
    let histories = prop::collection::vec(step(), 1..60);
    let ended = TestRunner::new(config).run(&histories, |steps| {
        run(server, &steps);
        Ok(())
    });
    if let Err(error) = ended {
        panic!("{error}");
    }
}
