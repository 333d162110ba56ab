//! Random histories of calls and of an application's own SQL, on a gallery in PostgreSQL and on its twin in
//! memory: everything that can be seen is equal after each step.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use postgres::Client;
use proptest::prelude::*;
use rehang_core::Provenance;
use rehang_postgres::{PostgresStore, TableOptions};
use rehang_store::{Examined as _, ItemWrite, Ledger as _, ManualLeaseClock, NewVector};
use rehang_store_tests::MemoryStore;
use rehang_store_tests::histories::{
    Call, IDS, LEASE_S, apply, call, config, label_of, make_spaces, seen, vector,
};
use serde_json::{Value, json};

use crate::server;

/// Seconds of one step in which time passes.
const PASS_S: u64 = LEASE_S / 4;

#[derive(Debug, Clone)]
enum Operation {
    Call(Call),
    /// Time passes by this many steps, so that leases run out.
    Pass(u64),
    /// The operations after this one go through another handle on the gallery.
    OtherHandle,
    /// The application's own writes in one transaction, and whether it ends by a rollback.
    Sql {
        writes: Vec<Sql>,
        is_undone: bool,
        level: usize,
    },
}

/// Statement of the application.
#[derive(Debug, Clone)]
enum Sql {
    /// An `INSERT … ON CONFLICT DO UPDATE`, which leaves the vector as it is where `is_vector_kept` is set.
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
    /// A write of columns that the gallery does not read.
    Note {
        id: usize,
    },
    /// A write that sets everything to what it is.
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

/// Row of the application's table, as the test knows it.
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
    prop_oneof![
        // Each store has a shuffle of its own for samples.
        33 => call(false).prop_map(Operation::Call),
        2 => (1_u64..6).prop_map(Operation::Pass),
        1 => Just(Operation::OtherHandle),
        10 => (prop::collection::vec(sql(), 1..4), prop::bool::weighted(0.2), 0_usize..3)
            .prop_map(|(writes, is_undone, level)| Operation::Sql { writes, is_undone, level }),
    ]
}

proptest! {
    #![proptest_config(config(10))]

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
            // The application alone writes a column, and it is the same column after its space was dropped.
            Operation::Call(Call::Write { space: 0, .. } | Call::Drop) if is_in_column => continue,
            Operation::Pass(steps) => {
                clock.pass(Duration::from_secs(PASS_S * steps));
                server::pass(&mut client, Duration::from_secs(PASS_S * steps));
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
            Operation::Call(call) => {
                prop_assert_eq!(apply(&store, call), apply(&twin, call), "{:?}", call);
                note_rows(&mut rows, call);
            }
        }
        prop_assert_eq!(seen(&store), seen(&twin), "after {:?}", operation);
        prop_assert_eq!(store.check().unwrap(), vec![]);
    }
    prop_assert_eq!(seen(&other), seen(&twin));
    Ok(())
}

fn source_of(value: Option<i8>) -> Option<String> {
    value.map(|value| format!("source {value}"))
}

fn vector_of(value: Option<i8>, id: usize) -> Option<Vec<f32>> {
    value.map(|value| vector(value, id))
}

/// Follows in `rows` how a call of the gallery changes the application's rows.
fn note_rows(rows: &mut Rows, call: &Call) {
    match call {
        Call::Put { ids, sourced, keeps_source, with, value } => {
            // Sources are those from before the call, also where an item is written twice.
            let before = rows.clone();
            for (at, &id) in ids.iter().enumerate() {
                let kept = before.get(IDS[id]).filter(|_| *keeps_source).and_then(|row| row.source.clone());
                let row = Row {
                    source: kept.or_else(|| sourced.then(|| format!("source {value}"))),
                    label: label_of(id),
                    payload: json!({"value": value, "at": at}),
                    vector: with[0].then(|| vector(*value, id)),
                };
                rows.insert(IDS[id].into(), row);
            }
        }
        Call::Delete(ids) => ids.iter().for_each(|&id| {
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
    let before = rows.clone();
    write_rows(client, rows, write);
    match (twin, write) {
        (None, _) => {}
        (Some(twin), Sql::Rename { from, to }) => {
            if before != *rows {
                twin.rename(IDS[*from], IDS[*to]);
            }
        }
        (Some(twin), _) => follow(twin, &before, rows, is_in_column),
    }
}

/// Does to the twin what has changed of the rows.
fn follow(twin: &MemoryStore, before: &Rows, rows: &Rows, is_in_column: bool) {
    let gone: Vec<&str> = before.keys().filter(|id| !rows.contains_key(*id)).map(String::as_str).collect();
    twin.delete(&gone).unwrap();
    for (id, row) in rows {
        let was = before.get(id);
        let is_vector_new = was.is_none_or(|was| was.vector != row.vector);
        let is_changed =
            was.is_none_or(|was| was.source != row.source || (is_in_column && was.vector != row.vector));
        if !is_changed {
            continue;
        }
        let of_row = row.vector.iter().filter(|_| is_in_column && is_vector_new);
        let vectors =
            of_row.map(|vector| NewVector::from_model("old", vector.clone(), Provenance::Old)).collect();
        let (source, label, payload) = (row.source.clone(), row.label.clone(), row.payload.clone());
        twin.put(&[ItemWrite { id: id.clone(), source, label, payload, vectors }]).unwrap();
    }
}

/// Returns a vector as a parameter of a statement.
fn vector_parameter(vector: Option<&[f32]>) -> Option<pgvector::Vector> {
    vector.map(|vector| pgvector::Vector::from(vector.to_vec()))
}

/// Runs a statement of the application, and does to the rows that the test knows what it means.
fn write_rows(client: &mut Client, rows: &mut Rows, write: &Sql) {
    let mut execute = |sql: &str, parameters: &[&(dyn postgres::types::ToSql + Sync)]| {
        client.execute(sql, parameters).unwrap();
    };
    let change = |rows: &mut Rows, id: usize, change: &dyn Fn(&mut Row)| {
        if let Some(row) = rows.get_mut(IDS[id]) {
            change(row);
        }
    };
    match write {
        Sql::Upsert { id, row, is_vector_kept } => upsert(client, rows, *id, row, *is_vector_kept),
        Sql::Source { id, source } => {
            execute("UPDATE things SET source = $2 WHERE id = $1", &[&IDS[*id], &source_of(*source)]);
            change(rows, *id, &|row| row.source = source_of(*source));
        }
        Sql::Vector { id, vector } => {
            let vector = vector_of(*vector, *id);
            execute(
                "UPDATE things SET embedding = $2 WHERE id = $1",
                &[&IDS[*id], &vector_parameter(vector.as_deref())],
            );
            change(rows, *id, &|row| row.vector.clone_from(&vector));
        }
        Sql::Both { id, row } => {
            let (source, vector) = (source_of(row.source), vector_of(row.vector, *id));
            execute(
                "UPDATE things SET source = $2, embedding = $3 WHERE id = $1",
                &[&IDS[*id], &source, &vector_parameter(vector.as_deref())],
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
            if rows.contains_key(IDS[*to]) {
                return;
            }
            if let Some(row) = rows.remove(IDS[*from]) {
                execute("UPDATE things SET id = $2 WHERE id = $1", &[&IDS[*from], &IDS[*to]]);
                rows.insert(IDS[*to].into(), row);
            }
        }
        Sql::Truncate => {
            execute("TRUNCATE things", &[]);
            rows.clear();
        }
    }
}

/// Inserts a row of the application, or updates the one that is there.
fn upsert(client: &mut Client, rows: &mut Rows, id: usize, row: &Written, is_vector_kept: bool) {
    let new = Row {
        source: source_of(row.source),
        label: label_of(id),
        payload: json!({"value": row.value, "at": 0}),
        vector: vector_of(row.vector, id),
    };
    let set = if is_vector_kept { "" } else { ", embedding = EXCLUDED.embedding" };
    let sql = format!(
        "INSERT INTO things VALUES ($1, $2, $3, $4, 0, $5) ON CONFLICT (id) DO UPDATE SET source = EXCLUDED.source{set}"
    );
    let vector = vector_parameter(new.vector.as_deref());
    client.execute(&sql, &[&IDS[id], &new.source, &new.label, &new.payload, &vector]).unwrap();
    match rows.get_mut(IDS[id]) {
        None => {
            rows.insert(IDS[id].into(), new);
        }
        Some(existing) => {
            existing.source = new.source;
            if !is_vector_kept {
                existing.vector = new.vector;
            }
        }
    }
}
