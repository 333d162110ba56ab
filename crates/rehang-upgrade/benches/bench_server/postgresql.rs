//! A table of PostgreSQL with pgvector.

use std::time::Instant;

use pgvector::Vector;
use postgres::binary_copy::BinaryCopyInWriter;
use postgres::types::Type;
use postgres::{Client, NoTls};
use rehang_core::Provenance;
use rehang_postgres::{PostgresStore, TableOptions};
use rehang_store::{Examined, Ledger, Problem, Store};

use crate::{Application, Server, d_new, d_old, space, vector};

pub struct Postgres {
    address: String,
}

impl Postgres {
    pub fn new(address: String) -> Self {
        Self { address }
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.address, NoTls).unwrap()
    }

    fn run(&self, sql: &str) {
        self.client().batch_execute(sql).unwrap();
    }

    pub fn open(&self) -> PostgresStore {
        let options = TableOptions {
            table: "documents".into(),
            source: Some("body".into()),
            vector: Some("embedding".into()),
            ..TableOptions::default()
        };
        let store = PostgresStore::adopt(&self.address, &options, Some("old"), &|_, _| true).unwrap();
        store.create_space(&space("old", d_old()), Provenance::Old).unwrap();
        store
    }
}

fn vector_type(client: &mut Client) -> Type {
    client.prepare("SELECT NULL::vector").unwrap().columns()[0].type_().clone()
}

impl Server for Postgres {
    fn make(&self, name: &str, rows: usize) {
        let mut client = self.client();
        let columns = format!("id bigint PRIMARY KEY, body text, embedding vector({})", d_old());
        client.batch_execute(&format!("CREATE TABLE {name} ({columns})")).unwrap();
        let types = [Type::INT8, Type::TEXT, vector_type(&mut client)];
        let sink = client.copy_in(&format!("COPY {name} FROM STDIN BINARY")).unwrap();
        let mut writer = BinaryCopyInWriter::new(sink, &types);
        for row in 0..rows {
            let old = Vector::from(vector(row, d_old()));
            writer.write(&[&(row as i64), &format!("text {row}"), &old]).unwrap();
        }
        writer.finish().unwrap();
        client.batch_execute(&format!("VACUUM ANALYZE {name}")).unwrap();
    }

    fn index(&self) {
        self.run("CREATE INDEX ON documents USING hnsw (embedding vector_cosine_ops)");
    }

    fn remove(&self, name: &str) {
        self.run(&format!("DROP TABLE {name}"));
    }

    fn count(&self) -> u64 {
        let count = self.client().query_one("SELECT count(*) FROM documents", &[]).unwrap();
        count.get::<_, i64>(0) as u64
    }

    fn rest(&self, _name: &str) {
        self.run("CHECKPOINT");
    }

    fn fill_bare(&self, vectors: &[Vec<f32>]) -> f64 {
        let mut client = self.client();
        let types = [Type::INT8, vector_type(&mut client)];
        let began = Instant::now();
        client
            .batch_execute(&format!(
                "ALTER TABLE bare ADD COLUMN new vector({width}); CREATE UNLOGGED TABLE staging (id bigint, value vector({width}))",
                width = d_new()
            ))
            .unwrap();
        let sink = client.copy_in("COPY staging FROM STDIN BINARY").unwrap();
        let mut writer = BinaryCopyInWriter::new(sink, &types);
        for (row, vector) in vectors.iter().enumerate() {
            writer.write(&[&(row as i64), &Vector::from(vector.clone())]).unwrap();
        }
        writer.finish().unwrap();
        let update = "UPDATE bare AS t SET new = s.value FROM staging AS s WHERE s.id = t.id";
        client.batch_execute(update).unwrap();
        let seconds = began.elapsed().as_secs_f64();
        client.batch_execute("DROP TABLE staging").unwrap();
        seconds
    }

    fn adopt(&self) -> Box<dyn Store> {
        Box::new(self.open())
    }

    fn check(&self) -> Vec<Problem> {
        self.open().check().unwrap()
    }

    fn release(&self) {
        self.open().release(None).unwrap();
    }

    fn application(&self) -> Box<dyn Application + '_> {
        Box::new(Statements(self.client()))
    }
}

/// Application that writes by plain SQL.
struct Statements(Client);

impl Statements {
    fn serving(client: &mut Client) -> String {
        client.query_one("SELECT rehang.serving('documents')", &[]).unwrap().get(0)
    }
}

impl Application for Statements {
    fn write(&mut self, at: usize, rows: usize) {
        let Self(client) = self;
        let (row, value) = (((at * 7919) % rows) as i64, Vector::from(vector(at, d_old())));
        let body = format!("text {at}");
        match at % 4 {
            0 => client.execute(
                "INSERT INTO documents (id, body, embedding) VALUES ($1, $2, $3)",
                &[&((rows + at) as i64), &body, &value],
            ),
            1 => client.execute(
                "UPDATE documents SET body = $2, embedding = $3 WHERE id = $1",
                &[&row, &body, &value],
            ),
            2 => client.execute("UPDATE documents SET body = $2 WHERE id = $1", &[&row, &body]),
            _ => client.execute("DELETE FROM documents WHERE id = $1", &[&row]),
        }
        .unwrap();
    }

    /// The server knows where searches go. A switch between the two functions makes the query one of the
    /// other model, which the second refuses: the application asks again.
    fn search(&mut self, at: usize, _to_new: bool) -> usize {
        let Self(client) = self;
        loop {
            let serving = Self::serving(client);
            let query = Vector::from(vector(at, if serving == "old" { d_old() } else { d_new() }));
            match client.query("SELECT id FROM rehang.search('documents', $1::vector, 10)", &[&query]) {
                Ok(rows) => return rows.len(),
                Err(error) => assert_ne!(Self::serving(client), serving, "{error}"),
            }
        }
    }
}
