//! Random histories of calls and of an application's own SQL, on a gallery in PostgreSQL and on its twin in memory: whatever can be seen
//! is equal after each step.

mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use postgres::Client;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use rehang::{Distance, Matrix, Provenance, Space};
use rehang_postgres::{PostgresStore, TableOptions};
use rehang_store::{
    Among, Band, Epoch, Examined, Filter, ItemKey, ItemWrite, Ledger as _, ManualLeaseClock, MemoryStore,
    NewVector, Priority, Queue, Revision, Sample, Scan, Select, Store, VectorWrite,
};
use serde_json::{Value, json};

const IDS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const SPACES: [&str; 2] = ["old", "new"];
const WORKERS: [&str; 2] = ["left", "right"];
/// Seconds of a lease, and of the steps in which time passes: so long that the test's own time does not count.
const LEASE_S: u64 = 1000;
const PASS_S: u64 = 250;

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
    ForgetNatives {
        space: usize,
        limit: usize,
        late: bool,
    },
    Advance {
        space: usize,
        late: bool,
    },
    Claim {
        space: usize,
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
    /// Which version is expected: none, that of now, or another.
    Document(usize),
    Drop,
    /// What follows is done through another handle on the gallery.
    OtherHandle,
    /// The application's own writes in one transaction, and whether it ends by a rollback.
    Sql {
        writes: Vec<Sql>,
        is_undone: bool,
        level: usize,
    },
}

/// A statement of the application.
#[derive(Debug, Clone)]
enum Sql {
    /// `INSERT … ON CONFLICT DO UPDATE`, which in the second case leaves the vector as it is.
    Upsert {
        id: usize,
        row: Written,
        is_vector_kept: bool,
    },
    Source {
        id: usize,
        source: Option<i8>,
    },
    Vector {
        id: usize,
        vector: Option<i8>,
    },
    Both {
        id: usize,
        row: Written,
    },
    /// Columns that the gallery does not read.
    Note {
        id: usize,
    },
    /// Everything is set to what it is.
    Nothing {
        id: usize,
    },
    Delete(Vec<usize>),
    Rename {
        from: usize,
        to: usize,
    },
    Truncate,
}

#[derive(Debug, Clone)]
struct Written {
    source: Option<i8>,
    vector: Option<i8>,
    value: i8,
}

/// A row of the application's table, as the test knows it.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    source: Option<String>,
    label: Option<String>,
    payload: Value,
    vector: Option<Vec<f32>>,
}

type Rows = BTreeMap<String, Row>;

fn sql() -> impl Strategy<Value = Sql> {
    let id = 0..IDS.len();
    let some = || prop::option::weighted(0.8, -3_i8..4);
    let row =
        || (some(), some(), -3_i8..4).prop_map(|(source, vector, value)| Written { source, vector, value });
    prop_oneof![
        4 => (id.clone(), row(), any::<bool>()).prop_map(|(id, row, is_vector_kept)| Sql::Upsert { id, row, is_vector_kept }),
        2 => (id.clone(), some()).prop_map(|(id, source)| Sql::Source { id, source }),
        2 => (id.clone(), some()).prop_map(|(id, vector)| Sql::Vector { id, vector }),
        1 => (id.clone(), row()).prop_map(|(id, row)| Sql::Both { id, row }),
        1 => id.clone().prop_map(|id| Sql::Note { id }),
        1 => id.clone().prop_map(|id| Sql::Nothing { id }),
        1 => prop::collection::vec(id.clone(), 1..4).prop_map(Sql::Delete),
        1 => (id.clone(), id).prop_map(|(from, to)| Sql::Rename { from, to }),
        1 => prop::bool::weighted(0.3).prop_map(|is_all| if is_all { Sql::Truncate } else { Sql::Note { id: 0 } }),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    let id = 0..IDS.len();
    let ids = prop::collection::vec(id.clone(), 1..5);
    let space = 0..SPACES.len();
    let value = -3_i8..4;
    let late = || prop::bool::weighted(0.1);
    prop_oneof![
        4 => (ids.clone(), any::<bool>(), any::<[bool; 2]>(), value.clone())
            .prop_map(|(ids, sourced, with, value)| Operation::Put { ids, sourced, with, value }),
        1 => ids.clone().prop_map(Operation::Delete),
        8 => (space.clone(), ids.clone(), any::<bool>(), late(), late(), value, prop::option::of(0_u8..4)).prop_map(
            |(space, ids, native, stale, late, value, sigma2)| Operation::Write { space, ids, native, stale, late, value, sigma2 }
        ),
        2 => (space.clone(), id.clone(), 0..Band::ALL.len(), -3_i8..4, late())
            .prop_map(|(space, id, band, score, late)| Operation::Priority { space, id, band, score, late }),
        1 => (space.clone(), 0_usize..4, late()).prop_map(|(space, limit, late)| Operation::ForgetNatives { space, limit, late }),
        1 => (space.clone(), late()).prop_map(|(space, late)| Operation::Advance { space, late }),
        4 => (space.clone(), 0..WORKERS.len(), 0_usize..4)
            .prop_map(|(space, worker, limit)| Operation::Claim { space, worker, limit }),
        1 => (space.clone(), 0..WORKERS.len()).prop_map(|(space, worker)| Operation::Renew { space, worker }),
        1 => (space.clone(), 0..WORKERS.len(), prop::option::of(ids))
            .prop_map(|(space, worker, ids)| Operation::Release { space, worker, ids }),
        2 => (1_u64..6).prop_map(Operation::Pass),
        2 => (space.clone(), id, late()).prop_map(|(space, id, stale)| Operation::Fail { space, id, stale }),
        1 => space.clone().prop_map(Operation::ClearFailures),
        1 => space.prop_map(Operation::Switch),
        1 => (0_usize..3).prop_map(Operation::Document),
        1 => Just(Operation::Drop),
        1 => Just(Operation::OtherHandle),
        10 => (prop::collection::vec(sql(), 1..4), prop::bool::weighted(0.2), 0_usize..3)
            .prop_map(|(writes, is_undone, level)| Operation::Sql { writes, is_undone, level }),
    ]
}

/// As many as `PROPTEST_CASES` says, or a few.
fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(10);
    let seed = std::env::var("PROPTEST_RNG_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20);
    // Each try of a shrink makes a database.
    ProptestConfig {
        cases,
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        max_shrink_iters: 200,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn the_gallery_in_a_table_is_its_twin(
        operations in prop::collection::vec(operation(), 1..40),
        is_in_column in any::<bool>(),
    ) {
        let Some(server) = server::server() else { return Ok(()) };
        go_through(server, &operations, is_in_column)?;
    }
}

fn go_through(
    server: &server::Server,
    operations: &[Operation],
    is_in_column: bool,
) -> Result<(), TestCaseError> {
    let address = server.database();
    let mut client = server::client(&address);
    client
        .batch_execute("CREATE TABLE things (id text PRIMARY KEY, source text, label text, payload jsonb, note int, embedding vector(2))")
        .unwrap();
    let options = TableOptions {
        table: "things".into(),
        source: Some("source".into()),
        label: Some("label".into()),
        payload: Some("payload".into()),
        vector: is_in_column.then(|| "embedding".into()),
        ..TableOptions::default()
    };
    let old = is_in_column.then_some("old");
    let mut store = PostgresStore::adopt(&address, &options, old, &|_, _| true).unwrap();
    let clock = ManualLeaseClock::default();
    let twin = MemoryStore::new().with_clock(Arc::new(clock.clone()));
    make_spaces(&twin);
    make_spaces(&store);
    let mut other = PostgresStore::open(&address, &options, old).unwrap();
    let mut rows = Rows::new();
    for operation in operations {
        match operation {
            // A column is written by the application alone, and is the same column after its space was dropped.
            Operation::Write { space: 0, .. } | Operation::Drop if is_in_column => continue,
            Operation::Pass(steps) => {
                clock.pass(Duration::from_secs(PASS_S * steps));
                pass(&mut client, PASS_S * steps);
            }
            Operation::OtherHandle => std::mem::swap(&mut store, &mut other),
            Operation::Sql { writes, is_undone, level } => {
                let level = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"][*level];
                client.batch_execute(&format!("BEGIN ISOLATION LEVEL {level}")).unwrap();
                let mut written = rows.clone();
                for write in writes {
                    run_sql(
                        &mut client,
                        &mut written,
                        Some(&twin).filter(|_| !is_undone),
                        write,
                        is_in_column,
                    );
                }
                if !is_undone {
                    rows = written;
                }
                client.batch_execute(if *is_undone { "ROLLBACK" } else { "COMMIT" }).unwrap();
            }
            _ => {
                prop_assert_eq!(apply(&store, operation), apply(&twin, operation), "{:?}", operation);
                note_rows(&mut rows, operation);
            }
        }
        prop_assert_eq!(seen(&store), seen(&twin), "after {:?}", operation);
        prop_assert_eq!(store.check().unwrap(), vec![]);
    }
    prop_assert_eq!(seen(&other), seen(&twin));
    Ok(())
}

fn make_spaces(store: &dyn Store) {
    for (name, written_as) in SPACES.into_iter().zip([Provenance::Old, Provenance::Native]) {
        store.create_space(&Space::new(name, 2, Distance::L2, false), written_as).unwrap();
    }
}

/// Leases run by the server's clock: they are set back.
fn pass(client: &mut Client, seconds: u64) {
    for row in client.query("SELECT number FROM rehang.space", &[]).unwrap() {
        let sql = format!(
            "UPDATE rehang.claim_{} SET until = until - make_interval(secs => $1)",
            row.get::<_, i32>(0)
        );
        client.execute(&sql, &[&(seconds as f64)]).unwrap();
    }
}

fn source_of(value: Option<i8>) -> Option<String> {
    value.map(|value| format!("source {value}"))
}

fn vector_of(value: Option<i8>, id: usize) -> Option<Vec<f32>> {
    value.map(|value| vector(value, id))
}

fn label_of(id: usize) -> Option<String> {
    id.is_multiple_of(2).then(|| "even".into())
}

/// What calls of ours have made of the application's rows.
fn note_rows(rows: &mut Rows, operation: &Operation) {
    match operation {
        Operation::Put { ids, sourced, with, value } => {
            for (at, &id) in ids.iter().enumerate() {
                let row = Row {
                    source: sourced.then(|| format!("source {value}")),
                    label: label_of(id),
                    payload: json!({"value": value, "at": at}),
                    vector: with[0].then(|| vector(*value, id)),
                };
                rows.insert(IDS[id].into(), row);
            }
        }
        Operation::Delete(ids) => ids.iter().for_each(|&id| {
            rows.remove(IDS[id]);
        }),
        _ => {}
    }
}

/// Runs a statement of the application, and does to the twin what it means.
fn run_sql(
    client: &mut Client,
    rows: &mut Rows,
    twin: Option<&MemoryStore>,
    write: &Sql,
    is_in_column: bool,
) {
    let vector_text =
        |vector: &Option<Vec<f32>>| vector.as_ref().map(|vector| pgvector::Vector::from(vector.clone()));
    let mut execute = |sql: &str, parameters: &[&(dyn postgres::types::ToSql + Sync)]| {
        client.execute(sql, parameters).unwrap();
    };
    let before = rows.clone();
    let change = |rows: &mut Rows, id: usize, change: &dyn Fn(&mut Row)| {
        if let Some(row) = rows.get_mut(IDS[id]) {
            change(row);
        }
    };
    match write {
        Sql::Upsert { id, row, is_vector_kept } => {
            let new = Row {
                source: source_of(row.source),
                label: label_of(*id),
                payload: json!({"value": row.value, "at": 0}),
                vector: vector_of(row.vector, *id),
            };
            let set = if *is_vector_kept { "" } else { ", embedding = EXCLUDED.embedding" };
            execute(
                &format!(
                    "INSERT INTO things VALUES ($1, $2, $3, $4, 0, $5) ON CONFLICT (id) DO UPDATE SET source = EXCLUDED.source{set}"
                ),
                &[&IDS[*id], &new.source, &new.label, &new.payload, &vector_text(&new.vector)],
            );
            match rows.get_mut(IDS[*id]) {
                None => {
                    rows.insert(IDS[*id].into(), new);
                }
                Some(there) => {
                    there.source = new.source;
                    if !is_vector_kept {
                        there.vector = new.vector;
                    }
                }
            }
        }
        Sql::Source { id, source } => {
            execute("UPDATE things SET source = $2 WHERE id = $1", &[&IDS[*id], &source_of(*source)]);
            change(rows, *id, &|row| row.source = source_of(*source));
        }
        Sql::Vector { id, vector } => {
            let vector = vector_of(*vector, *id);
            execute("UPDATE things SET embedding = $2 WHERE id = $1", &[&IDS[*id], &vector_text(&vector)]);
            change(rows, *id, &|row| row.vector.clone_from(&vector));
        }
        Sql::Both { id, row } => {
            let (source, vector) = (source_of(row.source), vector_of(row.vector, *id));
            execute(
                "UPDATE things SET source = $2, embedding = $3 WHERE id = $1",
                &[&IDS[*id], &source, &vector_text(&vector)],
            );
            change(rows, *id, &|row| {
                row.source.clone_from(&source);
                row.vector.clone_from(&vector);
            });
        }
        Sql::Note { id } => execute("UPDATE things SET note = note + 1 WHERE id = $1", &[&IDS[*id]]),
        Sql::Nothing { id } => {
            execute(
                "UPDATE things SET id = id, source = source, embedding = embedding WHERE id = $1",
                &[&IDS[*id]],
            );
        }
        Sql::Delete(ids) => {
            let ids: Vec<&str> = ids.iter().map(|id| IDS[*id]).collect();
            execute("DELETE FROM things WHERE id = ANY($1)", &[&ids]);
            rows.retain(|id, _| !ids.contains(&id.as_str()));
        }
        Sql::Rename { from, to } => {
            if rows.contains_key(IDS[*to]) || !rows.contains_key(IDS[*from]) {
                return;
            }
            execute("UPDATE things SET id = $2 WHERE id = $1", &[&IDS[*from], &IDS[*to]]);
            if let Some(row) = rows.remove(IDS[*from]) {
                rows.insert(IDS[*to].into(), row);
            }
        }
        Sql::Truncate => {
            execute("TRUNCATE things", &[]);
            rows.clear();
        }
    }
    let Some(twin) = twin else { return };
    let gone: Vec<&str> = before.keys().filter(|id| !rows.contains_key(*id)).map(String::as_str).collect();
    twin.delete(&gone).unwrap();
    for (id, row) in rows.iter() {
        let was = before.get(id);
        let is_vector_new = was.is_none_or(|was| was.vector != row.vector);
        let is_changed =
            was.is_none_or(|was| was.source != row.source || (is_in_column && was.vector != row.vector));
        if !is_changed {
            continue;
        }
        let of_row = row.vector.iter().filter(|_| is_in_column && is_vector_new);
        let vectors =
            of_row.map(|vector| NewVector::of_model("old", vector.clone(), Provenance::Old)).collect();
        let (source, label, payload) = (row.source.clone(), row.label.clone(), row.payload.clone());
        twin.put(&[ItemWrite { id: id.clone(), source, label, payload, vectors }]).unwrap();
    }
}

/// An answer without what two stores may say otherwise.
fn said<T>(answer: rehang::Result<T>) -> String {
    match answer {
        Ok(_) => "done".into(),
        Err(error) => format!("{error:?}")
            .split([' ', '{', '('])
            .filter(|word| !word.is_empty())
            .take(3)
            .collect::<Vec<_>>()
            .join(" "),
    }
}

/// Does it, and says what the store answered, without numbers that two stores may give differently.
fn apply(store: &dyn Store, operation: &Operation) -> String {
    let known = |id: usize, stale: bool| -> (ItemKey, Revision) {
        store.get(&[IDS[id]]).unwrap().remove(0).map_or((ItemKey::from(1_000_000), 1), |item| {
            (item.key, item.revision + 1_000_000 * Revision::from(stale))
        })
    };
    let epoch = |space: usize, late: bool| {
        let epoch =
            store.spaces().unwrap().iter().find(|there| there.space.name == SPACES[space]).unwrap().epoch;
        if late { Epoch::new(epoch.number().wrapping_sub(1)) } else { epoch }
    };
    let version = || store.document("plan").unwrap().map(|(version, _)| version);
    match operation {
        Operation::Put { ids, sourced, with, value } => {
            let write = |(at, &id): (usize, &usize)| ItemWrite {
                id: IDS[id].into(),
                source: sourced.then(|| format!("source {value}")),
                label: label_of(id),
                payload: json!({"value": value, "at": at}),
                vectors: SPACES
                    .iter()
                    .zip(with)
                    .filter(|(_, with)| **with)
                    .map(|(space, _)| {
                        let made_by = if *space == "old" { Provenance::Old } else { Provenance::Native };
                        NewVector::of_model(*space, vector(*value, id), made_by)
                    })
                    .collect(),
            };
            let writes: Vec<ItemWrite> = ids.iter().enumerate().map(write).collect();
            let revisions = store.put(&writes).unwrap();
            assert!(revisions.is_sorted_by(|a, b| a < b), "revisions grow");
            revisions.len().to_string()
        }
        Operation::Delete(ids) => {
            store.delete(&ids.iter().map(|&id| IDS[id]).collect::<Vec<_>>()).unwrap().to_string()
        }
        Operation::Write { space, ids, native, stale, late, value, sigma2 } => {
            let write = |&id: &usize| {
                let (key, revision) = known(id, *stale);
                let score = |sigma2: u8| f64::from(sigma2) * f64::from(*value) + 0.0;
                VectorWrite {
                    key,
                    revision,
                    provenance: if *native { Provenance::Native } else { Provenance::Adapted },
                    sigma2: sigma2.map(f32::from),
                    priority: sigma2
                        .map(|sigma2| Priority::new(Band::ALL[usize::from(sigma2)], score(sigma2))),
                    squared_error: native.then(|| f32::from(*value).abs()),
                    vector: vector(*value, id),
                }
            };
            let writes: Vec<VectorWrite> = ids.iter().map(write).collect();
            format!("{:?}", store.write_vectors(SPACES[*space], Some(epoch(*space, *late)), &writes))
        }
        Operation::Priority { space, id, band, score, late } => {
            let (key, revision) = known(*id, false);
            let places = [(key, revision, Priority::new(Band::ALL[*band], f64::from(*score)))];
            format!("{:?}", store.set_priorities(SPACES[*space], epoch(*space, *late), &places))
        }
        Operation::ForgetNatives { space, limit, late } => {
            format!("{:?}", store.forget_natives(SPACES[*space], epoch(*space, *late), *limit))
        }
        Operation::Advance { space, late } => said(store.advance(
            SPACES[*space],
            epoch(*space, *late),
            "plan",
            version(),
            &format!("epoch of {space}"),
        )),
        Operation::Claim { space, worker, limit } => {
            let lease = Duration::from_secs(LEASE_S);
            let claimed = store.claim(SPACES[*space], Queue::All, WORKERS[*worker], *limit, lease).unwrap();
            let of = |record: &rehang_store::Record| {
                (record.item.id.clone(), record.vector.as_ref().map(|vector| vector.vector.clone()))
            };
            let records: Vec<_> = claimed.records.iter().map(of).collect();
            format!("{records:?} {} {}", claimed.held_by_others, claimed.lost)
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
        Operation::Switch(to) => format!("{:?}", store.switch_serving(SPACES[1 - to], SPACES[*to])),
        Operation::Document(which) => {
            let expected = [None, version(), version().map(|version| version + 1000)][*which];
            said(store.set_document("plan", expected, "text"))
        }
        Operation::Drop => {
            let serving = store.serving().unwrap().unwrap();
            store.drop_space(if serving == "old" { "new" } else { "old" }).unwrap();
            make_spaces(store);
            String::new()
        }
        Operation::OtherHandle | Operation::Pass(_) | Operation::Sql { .. } => {
            unreachable!("done by the test itself")
        }
    }
}

fn vector(value: i8, id: usize) -> Vec<f32> {
    vec![f32::from(value), id as f32 / 2.0]
}

/// Everything that can be seen of a gallery, with keys and revisions replaced by their ranks.
fn seen(store: &dyn Store) -> String {
    let all = store.scan(&Scan::new("old", Select::All, 100)).unwrap();
    let keys: Vec<ItemKey> = all.iter().map(|record| record.item.key).collect();
    assert!(keys.is_sorted());
    let revisions: BTreeSet<Revision> = all.iter().map(|record| record.item.revision).collect();
    assert_eq!(revisions.len(), all.len(), "no revision twice");
    assert_eq!(store.newest_revision().unwrap(), revisions.last().copied().unwrap_or(0));
    let ranks: BTreeMap<Revision, usize> = revisions.into_iter().zip(0..).collect();
    let place = |key: ItemKey| ItemKey::from(keys.iter().position(|there| *there == key).unwrap() as u64);
    let document = store.document("plan").unwrap().map(|(_, text)| text);
    let mut lines = vec![format!("{:?} {document:?} {:?}", store.serving(), store.count_without_source())];
    for record in store.spaces().unwrap() {
        let name = record.space.name.clone();
        lines.push(format!("{} {} {}", record.space, record.written_as, record.epoch));
        let vectors = store.vectors(&name, &keys).unwrap();
        let provenances = store.provenances(&name, &keys).unwrap();
        assert_eq!(
            vectors.iter().map(|vector| vector.as_ref().map(|vector| vector.provenance)).collect::<Vec<_>>(),
            provenances
        );
    }
    // In which order spaces were made is theirs to say, also after one was dropped and made again.
    for space in SPACES {
        let other = if space == "old" { "new" } else { "old" };
        let mut errors: Vec<String> =
            store.errors(space, 100).unwrap().iter().map(|pair| format!("{pair:?}")).collect();
        // Those of one call are in no order.
        errors.sort();
        lines.push(format!("{space} {:?} {errors:?}", store.counts(space).unwrap()));
        let at_work: Vec<_> =
            store.at_work(space).unwrap().into_iter().map(|at| (at.worker, at.items)).collect();
        lines.push(format!("{at_work:?} {:?}", store.count_lag(space, other)));
        for among in [Among::All, Among::Adapted, Among::Embeddable] {
            let sample =
                Sample { space: space.into(), among, seed: 5, size: 100, vectors_of: Some(other.into()) };
            let drawn = store.sample(&sample).unwrap();
            let order: Vec<&str> = drawn.records.iter().map(|record| record.item.id.as_str()).collect();
            let few = store.sample(&Sample { size: 2, ..sample }).unwrap();
            let first: Vec<&str> = few.records.iter().map(|record| record.item.id.as_str()).collect();
            assert_eq!(
                first,
                order[..order.len().min(2)],
                "a smaller sample is the beginning of a larger one"
            );
            // The shuffle is each store's own.
            let ids: BTreeSet<&str> = order.into_iter().collect();
            lines.push(format!("{among:?} of {}: {ids:?}", drawn.of));
        }
        for failure in store.failures(space, None, 100).unwrap() {
            let rank = ranks[&failure.revision];
            lines.push(format!("{} {} {} {rank}", place(failure.key), failure.id, failure.reason));
        }
        let mut selects = vec![Select::All, Select::Lacking, Select::WorstFirst, Select::WithoutSource];
        selects.extend(Provenance::ALL.map(Select::Provenance));
        for select in selects {
            for (limit, after) in [(100, None), (2, keys.get(1).copied())] {
                let scan = Scan::new(space, select.clone(), limit).after(after).with_vectors_of(other);
                for mut record in store.scan(&scan).unwrap() {
                    for vector in [&mut record.state, &mut record.vector].into_iter().flatten() {
                        assert_eq!(vector.revision, record.item.revision, "no vector of another revision");
                        vector.revision = 0;
                    }
                    let rank = ranks[&record.item.revision];
                    record.item.revision = 0;
                    record.item.key = place(record.item.key);
                    lines.push(format!("{select:?} {limit}: {rank} {record:?}"));
                }
            }
        }
        let queries = Matrix::new(2, vec![0.0, 0.0, 1.5, -2.0]).unwrap();
        let filters = [
            Filter::default(),
            Filter { labels: vec!["even".into()], ..Filter::default() },
            Filter { provenances: vec![Provenance::Native, Provenance::Old], ..Filter::default() },
            Filter {
                labels: vec!["even".into()],
                provenances: vec![Provenance::Adapted],
                payload: vec![("at".into(), json!(0))],
            },
        ];
        for filter in filters {
            for (row, found) in store.search(space, &queries, 4, &filter).unwrap().into_iter().enumerate() {
                for found in found {
                    let rank = ranks[&found.revision];
                    lines.push(format!(
                        "{row} {} {} {} {} {rank}",
                        place(found.key),
                        found.id,
                        found.distance,
                        found.provenance
                    ));
                }
            }
        }
    }
    lines.join("\n")
}
