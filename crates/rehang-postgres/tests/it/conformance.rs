//! The contracts of a store on a real server: with all spaces in tables of the gallery, and with the old one
//! in the application's column.

use std::time::Duration;

use rehang_postgres::{PostgresStore, TableOptions};
use rehang_store_tests::conformance::{Bench, suite};

use crate::server;

struct Postgres {
    address: String,
    /// Whether the table is partitioned.
    partitions: bool,
    /// Name of the space that is a column of the table.
    in_column: Option<&'static str>,
}

impl Postgres {
    fn options(&self, gallery: &str) -> TableOptions {
        TableOptions {
            table: format!("public.\"{gallery}\""),
            source: Some("source".into()),
            label: Some("label".into()),
            payload: Some("payload".into()),
            vector: self.in_column.map(|_| "embedding".into()),
            ..TableOptions::default()
        }
    }
}

impl Bench for Postgres {
    type Store = PostgresStore;

    fn open(&self, gallery: &str) -> PostgresStore {
        let mut table = format!(
            "CREATE TABLE IF NOT EXISTS \"{gallery}\" (id text PRIMARY KEY, source text, label text, payload jsonb, embedding vector(2))"
        );
        if self.partitions {
            table += " PARTITION BY HASH (id)";
            for part in 0..3 {
                table += &format!(
                    "; CREATE TABLE IF NOT EXISTS \"{gallery} {part}\" PARTITION OF \"{gallery}\" FOR VALUES WITH (MODULUS 3, REMAINDER {part})"
                );
            }
        }
        server::client(&self.address).batch_execute(&table).unwrap();
        PostgresStore::adopt(&self.address, &self.options(gallery), self.in_column, &|_, _| true).unwrap()
    }

    fn pass(&self, time: Duration) {
        server::pass(&mut server::client(&self.address), time);
    }
}

#[test]
fn it_keeps_the_contracts_in_tables_of_its_own() {
    let Some(server) = server::server() else { return };
    suite(&Postgres { address: server.database(), partitions: false, in_column: None });
}

#[test]
fn it_keeps_the_contracts_with_the_old_vectors_in_the_applications_column() {
    let Some(server) = server::server() else { return };
    suite(&Postgres { address: server.database(), partitions: false, in_column: Some("old-model") });
}

#[test]
fn it_keeps_the_contracts_in_a_partitioned_table() {
    let Some(server) = server::server() else { return };
    suite(&Postgres { address: server.database(), partitions: true, in_column: Some("old-model") });
}
