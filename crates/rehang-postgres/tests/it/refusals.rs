//! Refusals: a table that cannot be a gallery is refused in one clear sentence, and nothing of
//! the database is changed.

use postgres::Client;
use rehang_core::{Distance, Error, ErrorKind, Provenance, Space};
use rehang_postgres::{PostgresStore, TableOptions};
use rehang_store::{Examined as _, Ledger as _};

use crate::server;

const TABLE: &str = "CREATE TABLE notes (id bigint PRIMARY KEY, title text, body text, at interval UNIQUE NOT NULL, free bigint UNIQUE,
         payload jsonb, embedding vector(2), any_width vector, half halfvec(3), sparse sparsevec(3), several vector(2)[]);
     INSERT INTO notes VALUES (1, 'a', 'b', '1 day', 1, '{}', '[1,2]', '[1,2]', '[1,2,3]')";

fn table(name: &str) -> TableOptions {
    TableOptions { table: name.into(), ..TableOptions::default() }
}

fn notes() -> TableOptions {
    TableOptions { source: Some("body".into()), vector: Some("embedding".into()), ..table("notes") }
}

/// Lists everything that is in a database, by the catalogue.
fn everything(client: &mut Client) -> Vec<String> {
    let mut lines = Vec::new();
    for sql in [
        "SELECT format('%s %s %s', nspname, c.oid::regclass, c.xmin) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
             WHERE nspname <> 'information_schema' AND nspname !~ '^pg_' ORDER BY 1",
        "SELECT format('schema %s', nspname) FROM pg_namespace WHERE nspname !~ '^pg_' ORDER BY 1",
        "SELECT format('trigger %s %s', tgrelid, tgname) FROM pg_trigger ORDER BY 1",
        "SELECT format('function %s', oid::regprocedure) FROM pg_proc WHERE pronamespace::regnamespace::text <> 'pg_catalog' ORDER BY 1",
    ] {
        lines.extend(client.query(sql, &[]).unwrap().iter().map(|row| row.get::<_, String>(0)));
    }
    lines
}

fn adopt(address: &str, options: &TableOptions) -> Result<PostgresStore, Error> {
    PostgresStore::adopt(address, options, Some("old"), &|_, _| true)
}

/// Compares a refusal with what it has to say, by every call that looks at a table.
fn refused(
    address: &str,
    client: &mut Client,
    options: &TableOptions,
    kind: fn(&ErrorKind) -> bool,
    words: &[&str],
) {
    let before = everything(client);
    let errors = [
        PostgresStore::inspect(address, options).map(drop),
        PostgresStore::statements(address, options).map(drop),
        adopt(address, options).map(drop),
        PostgresStore::open(address, options, Some("old")).map(drop),
    ];
    for error in errors {
        is_clear(&error.expect_err(&format!("{options:?} is refused: {words:?}")), kind, words);
    }
    assert_eq!(everything(client), before, "a refusal changes nothing");
}

fn is_clear(error: &Error, kind: fn(&ErrorKind) -> bool, words: &[&str]) {
    let sentence = error.to_string();
    assert!(kind(error.kind()), "{error:?}");
    for word in words {
        assert!(sentence.contains(word), "{word:?} is not in: {sentence}");
    }
    assert!(!sentence.contains('\n'), "one sentence: {sentence}");
}

fn is_option(kind: &ErrorKind) -> bool {
    matches!(kind, ErrorKind::InvalidOption { .. })
}

fn is_not_found(kind: &ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound { .. })
}

fn is_conflict(kind: &ErrorKind) -> bool {
    matches!(kind, ErrorKind::Conflict { .. })
}

fn is_unavailable(kind: &ErrorKind) -> bool {
    matches!(kind, ErrorKind::Unavailable { .. })
}

fn is_width(kind: &ErrorKind) -> bool {
    matches!(kind, ErrorKind::WidthMismatch { .. })
}

fn fresh() -> Option<(&'static server::Server, String, Client)> {
    let server = server::server()?;
    let address = server.database();
    let mut client = server::client(&address);
    client.batch_execute(TABLE).unwrap();
    Some((server, address, client))
}

/// Names a role. Roles belong to the whole server, so the name contains the database's.
pub(crate) fn role(address: &str, name: &str) -> String {
    format!("{name}_{}", address.rsplit("test_").next().unwrap().split('?').next().unwrap())
}

/// Rewrites an address to name another user.
pub(crate) fn as_user(address: &str, user: &str) -> String {
    match address.split_once("://") {
        Some((scheme, rest)) => {
            let rest = rest.split_once('/').map_or(rest, |(authority, _)| match authority.rsplit_once('@') {
                Some((login, _)) => &rest[login.len() + 1..],
                None => rest,
            });
            format!("{scheme}://{user}@{rest}")
        }
        None => format!("{address} user={user}"),
    }
}

#[test]
fn what_is_no_table() {
    let Some((_, address, mut client)) = fresh() else { return };
    client
        .batch_execute(
            "CREATE VIEW view AS SELECT * FROM notes; CREATE MATERIALIZED VIEW kept AS SELECT * FROM notes;
             CREATE TABLE parts (id bigint PRIMARY KEY, body text) PARTITION BY RANGE (id);
             CREATE TABLE one PARTITION OF parts FOR VALUES FROM (0) TO (10);
             CREATE TABLE two PARTITION OF parts FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id);
             CREATE TABLE keyless (id bigint, body text, CHECK (id > 0)) PARTITION BY RANGE ((id / 10));
             CREATE TABLE brief (id bigint PRIMARY KEY, body text) PARTITION BY RANGE (id);
             CREATE UNLOGGED TABLE gone_soon PARTITION OF brief FOR VALUES FROM (0) TO (10);
             CREATE SEQUENCE numbers; CREATE TYPE pair AS (a int, b int); CREATE INDEX an_index ON notes (title)",
        )
        .unwrap();
    for (name, words) in [
        ("view", ["a table, not a view", "name the table that the view reads"]),
        ("kept", ["a table, not a view", "name the table that the view reads"]),
        ("two", ["a whole table or a partition without partitions of its own", "name public.parts"]),
        (
            "keyless",
            [
                "which has the columns of the partition key in it",
                "each partition may be a gallery of its own",
            ],
        ),
        ("brief", ["partitions are all logged", "public.gone_soon"]),
        ("numbers", ["expected a table", "numbers"]),
        ("pair", ["expected a table", "pair"]),
        ("an_index", ["expected a table", "an_index"]),
    ] {
        refused(&address, &mut client, &table(name), is_option, &words);
    }
    for name in ["nothing", "nowhere.notes", "\"Notes\""] {
        refused(&address, &mut client, &table(name), is_not_found, &["there is no table", "in the database"]);
    }
    // The server decides which of these are no names at all.
    for name in
        ["", " ", "a.b.c.d", "elsewhere.public.notes", "a b", "\"notes", "notes; DROP TABLE notes", "1"]
    {
        refused(
            &address,
            &mut client,
            &table(name),
            |kind| is_option(kind) || is_not_found(kind),
            &["table"],
        );
    }
    // A partition is a table like any other.
    let store = adopt(&address, &TableOptions { source: Some("body".into()), ..table("one") }).unwrap();
    client.batch_execute("INSERT INTO parts VALUES (1, 'through the whole')").unwrap();
    assert!(store.get(&["1"]).unwrap()[0].is_some());
    assert_eq!(store.check().unwrap(), vec![]);
}

#[test]
fn a_foreign_table() {
    let Some((_, address, mut client)) = fresh() else { return };
    let made = client.batch_execute(
        "CREATE EXTENSION file_fdw; CREATE SERVER files FOREIGN DATA WRAPPER file_fdw;
         CREATE FOREIGN TABLE far (id bigint, body text) SERVER files OPTIONS (filename '/dev/null')",
    );
    if made.is_err() {
        eprintln!("skipped: a server without file_fdw");
        return;
    }
    refused(&address, &mut client, &table("far"), is_option, &["a table of this server, not a foreign one"]);
}

#[test]
fn a_temporary_table() {
    let Some((_, address, mut client)) = fresh() else { return };
    client.batch_execute("CREATE TEMPORARY TABLE passing (id bigint PRIMARY KEY, body text)").unwrap();
    let schema: String =
        client.query_one("SELECT pg_my_temp_schema()::regnamespace::text", &[]).unwrap().get(0);
    // Another session finds the table only by its schema.
    refused(&address, &mut client, &table("passing"), is_not_found, &["there is no table \"passing\""]);
    let options = table(&format!("{schema}.passing"));
    refused(&address, &mut client, &options, is_option, &["a table that lasts, not a temporary one"]);
}

#[test]
fn an_unlogged_table_and_children() {
    let Some((_, address, mut client)) = fresh() else { return };
    client
        .batch_execute(
            "CREATE UNLOGGED TABLE brief (id bigint PRIMARY KEY, body text);
             CREATE TABLE parent (id bigint PRIMARY KEY, body text); CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent);
             INSERT INTO parent VALUES (1, 'parent'); INSERT INTO child VALUES (1, 'child'), (2, 'child')",
        )
        .unwrap();
    // A crash empties the table, and the gallery's facts about its rows would stay.
    refused(&address, &mut client, &table("brief"), is_option, &["a table that is logged", "SET LOGGED"]);
    // Rows of a child are seen through the parent, but its triggers and its key are not the parent's.
    refused(&address, &mut client, &table("parent"), is_option, &["a table that no other inherits from"]);
}

#[test]
fn keys() {
    let Some((_, address, mut client)) = fresh() else { return };
    client
        .batch_execute(
            "CREATE TABLE keyless (id bigint, body text); CREATE TABLE timed (at interval PRIMARY KEY, body text);
             CREATE TABLE later (id bigint PRIMARY KEY DEFERRABLE, other bigint NOT NULL UNIQUE DEFERRABLE);
             CREATE TABLE partly (id bigint NOT NULL, other bigint NOT NULL, body text);
             CREATE UNIQUE INDEX ON partly (id) WHERE other > 0; CREATE UNIQUE INDEX ON partly (abs(other)); CREATE UNIQUE INDEX ON partly (id, other)",
        )
        .unwrap();
    let key = |name: &str, id: &[&str]| TableOptions {
        id: id.iter().map(ToString::to_string).collect(),
        ..table(name)
    };
    let mut is =
        |options: &TableOptions, words: &[&str]| refused(&address, &mut client, options, is_option, words);
    is(
        &table("keyless"),
        &["table cannot be \"keyless\"", "a table with a primary key, or `id` with columns"],
    );
    is(&key("keyless", &["id"]), &["id cannot be \"id\"", "a primary key or a unique index over them"]);
    is(&key("notes", &["free"]), &["id cannot be \"free\"", "a column that is never NULL"]);
    is(
        &key("notes", &["at"]),
        &[
            "id cannot be \"at\"",
            "one of the types smallint, integer",
            "not interval",
            "ADD COLUMN \"at_text\" text NOT NULL UNIQUE GENERATED",
        ],
    );
    is(&table("timed"), &["id cannot be \"at\"", "not interval"]);
    is(&key("notes", &["nothing"]), &["id cannot be \"nothing\"", "a column of notes: id, title, body"]);
    is(&key("notes", &["id", "nothing"]), &["id cannot be", "nothing"]);
    is(
        &key("notes", &["id", "title"]),
        &["id cannot be \"id, title\"", "a primary key or a unique index over them"],
    );
    is(&key("notes", &["id", "id"]), &["id cannot be \"id, id\""]);
    is(&key("partly", &["id"]), &["a primary key or a unique index over them"]);
    is(&key("partly", &["other"]), &["a primary key or a unique index over them"]);
    is(&table("later"), &["later", "not deferrable"]);
    is(&key("later", &["other"]), &["not deferrable"]);
    assert!(PostgresStore::inspect(&address, &key("partly", &["other", "id"])).is_ok());
}

#[test]
fn columns() {
    let Some((_, address, mut client)) = fresh() else { return };
    let mut is =
        |options: TableOptions, words: &[&str]| refused(&address, &mut client, &options, is_option, words);
    let some = |name: &str| Some(name.to_owned());
    let there = "a column of notes: id, title, body";
    is(
        TableOptions { source: some("nothing"), ..notes() },
        &["source cannot be \"nothing\"", "column \"nothing\" does not exist"],
    );
    is(TableOptions { label: some("nothing"), ..notes() }, &["label cannot be \"nothing\"", there]);
    is(TableOptions { payload: some("nothing"), ..notes() }, &["payload cannot be \"nothing\"", there]);
    is(TableOptions { vector: some("nothing"), ..notes() }, &["vector cannot be \"nothing\"", there]);
    is(TableOptions { vector: some("xmin"), ..notes() }, &["vector cannot be \"xmin\"", there]);
    is(
        TableOptions { payload: some("title"), ..notes() },
        &["payload cannot be \"title\"", "of type jsonb or json, not text"],
    );
    is(
        TableOptions { vector: some("title"), ..notes() },
        &[
            "vector cannot be \"title\"",
            "of type vector or halfvec, not text",
            "GENERATED ALWAYS AS (\"title\"::vector(N)) STORED",
        ],
    );
    is(
        TableOptions { vector: some("several"), ..notes() },
        &["vector cannot be \"several\"", "not vector(2)[]", "unnest(\"several\") WITH ORDINALITY"],
    );
    is(
        TableOptions { vector: some("sparse"), ..notes() },
        &["vector cannot be \"sparse\"", "of type vector or halfvec, not sparsevec"],
    );
    // A name that an expression writes in full has one meaning. Any other name is looked for among the
    // server's own names alone.
    client.batch_execute("CREATE SCHEMA tools; CREATE FUNCTION tools.clean(text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT $1'; CREATE FUNCTION tools.outer_clean(text) RETURNS text LANGUAGE plpgsql AS 'BEGIN RETURN clean($1); END'").unwrap();
    assert!(
        PostgresStore::inspect(&address, &TableOptions { source: some("tools.clean(title)"), ..notes() })
            .is_ok()
    );
    for wrong in ["clean(title)", "tools.outer_clean(title)"] {
        refused(
            &address,
            &mut client,
            &TableOptions { source: some(wrong), ..notes() },
            is_option,
            &["source cannot be", "function clean(text) does not exist", "is named with its schema"],
        );
    }
    let mut is =
        |options: TableOptions, words: &[&str]| refused(&address, &mut client, &options, is_option, words);
    for wrong in [
        "title ||",
        "title) FROM notes; --",
        "title; DROP TABLE notes",
        "(",
        "",
        "'",
        "$1",
        "1 / 0 +",
        "nothing(title)",
        "title || nothing",
    ] {
        is(
            TableOptions { source: some(wrong), ..notes() },
            &["source cannot be", "an SQL expression of the table's columns ("],
        );
        is(
            TableOptions { condition: some(wrong), ..notes() },
            &["condition cannot be", "an SQL condition on the table's columns ("],
        );
    }
    is(
        TableOptions { condition: some("title"), ..notes() },
        &["condition cannot be \"title\"", "an SQL condition"],
    );
    is(
        TableOptions { source: some("generate_series(1, 2)"), ..notes() },
        &["source cannot be", "it makes several values of a row"],
    );
    is(
        TableOptions { source: some("$rehang$ $rehang$ || title"), ..notes() },
        &["source cannot be", "$rehang$ is the quote"],
    );
}

#[test]
fn servers_that_cannot_be_reached() {
    // None of these cases needs a server.
    for (address, kind, words) in [
        (
            "postgresql://me:secret@127.0.0.1:1/shop",
            is_unavailable as fn(&ErrorKind) -> bool,
            &["PostgreSQL at 127.0.0.1:1/shop", "refused"][..],
        ),
        (
            "postgresql://me:secret@nobody.invalid/shop?connect_timeout=2",
            is_unavailable,
            &["PostgreSQL at nobody.invalid/shop"],
        ),
        (
            "postgresql:///shop?host=/nowhere&user=me&password=secret",
            is_unavailable,
            &["PostgreSQL at /nowhere/shop"],
        ),
        (
            "postgresql://me:secret@host:port/shop",
            is_option,
            &["the address of the server", "postgresql://USER@HOST:PORT/DATABASE"],
        ),
        ("postgresql://me:p@secret@host/shop", is_option, &["the address of the server", "write %40"]),
        ("secret", is_option, &["the address of the server", "postgresql://USER@HOST:PORT/DATABASE"]),
        (
            "http://me:secret@host/shop",
            is_option,
            &["the address of the server", "postgresql://USER@HOST:PORT/DATABASE"],
        ),
        (
            "postgresql://me:secret@host/shop?sslmode=perhaps",
            is_option,
            &["sslmode", "disable, prefer, require"],
        ),
        (
            "postgresql://me:secret@127.0.0.1:1/shop?sslmode=verify-full&sslrootcert=/nowhere",
            is_option,
            &["sslrootcert", "/nowhere", "PEM"],
        ),
    ] {
        for error in [
            PostgresStore::inspect(address, &notes()).map(drop),
            PostgresStore::statements(address, &notes()).map(drop),
            adopt(address, &notes()).map(drop),
            PostgresStore::open(address, &notes(), None).map(drop),
        ] {
            let error = error.expect_err(address);
            is_clear(&error, kind, words);
            assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
        }
    }
}

#[test]
fn roles_that_may_not() {
    let Some((_, address, mut client)) = fresh() else { return };
    let [barred, stranger, reader, owner] =
        ["barred", "stranger", "reader", "owner"].map(|name| role(&address, name));
    client
        .batch_execute(&format!(
            "CREATE ROLE {barred} NOLOGIN; CREATE ROLE {stranger} LOGIN; CREATE ROLE {reader} LOGIN; CREATE ROLE {owner} LOGIN;
             GRANT SELECT, INSERT, UPDATE, DELETE ON notes TO {reader};
             CREATE TABLE owned (id bigint PRIMARY KEY, body text); ALTER TABLE owned OWNER TO {owner};
             DO $$ BEGIN EXECUTE format('REVOKE CREATE ON DATABASE %I FROM PUBLIC', current_database());
                 EXECUTE format('GRANT CREATE ON DATABASE %I TO {reader}', current_database()); END $$"
        ))
        .unwrap();
    let before = everything(&mut client);
    let is_unauthorised = |kind: &ErrorKind| matches!(kind, ErrorKind::Unauthorised { .. });
    let nobody = role(&address, "nobody");
    for (user, words) in [(&barred, "is not permitted to log in"), (&nobody, "does not exist")] {
        refused(
            &as_user(&address, user),
            &mut client,
            &notes(),
            is_unauthorised,
            &["refused the credentials", words],
        );
    }
    let may = [
        "the role of the connection",
        "one that may do this",
        "an owner of the table may run the statements",
    ];
    let error = adopt(&as_user(&address, &stranger), &notes()).unwrap_err();
    is_clear(&error, is_option, &may);
    // The role may make schemas, and does not own the table.
    let error = adopt(&as_user(&address, &reader), &notes()).unwrap_err();
    is_clear(&error, is_option, &[&may[..], &["notes"]].concat());
    // The role owns the table, and may not make a schema.
    let error = adopt(&as_user(&address, &owner), &table("owned")).unwrap_err();
    is_clear(&error, is_option, &[&may[..], &["permission denied for database"]].concat());
    assert_eq!(everything(&mut client), before);
    // Each role can do what it may: an owner reads the statements, and a role that may read
    // the table may look at it.
    assert!(PostgresStore::statements(&as_user(&address, &owner), &table("owned")).is_ok());
    assert!(PostgresStore::inspect(&as_user(&address, &reader), &notes()).is_ok());
    client
        .batch_execute(&format!("DROP OWNED BY {barred}, {stranger}, {reader}, {owner}; DROP ROLE {barred}, {stranger}, {reader}, {owner}"))
        .unwrap();
}

#[test]
fn a_database_that_is_not_there_or_has_no_pgvector() {
    let Some((server, address, mut client)) = fresh() else { return };
    let error = adopt(&server::in_database(server.address(), "nowhere_at_all"), &notes()).unwrap_err();
    is_clear(&error, is_not_found, &["nowhere_at_all"]);
    client
        .batch_execute(
            "DROP TABLE notes; DROP EXTENSION vector; CREATE TABLE notes (id bigint PRIMARY KEY, body text)",
        )
        .unwrap();
    let options = TableOptions { source: Some("body".into()), ..table("notes") };
    refused(
        &address,
        &mut client,
        &options,
        is_option,
        &["a database with pgvector", "CREATE EXTENSION vector"],
    );
}

#[test]
fn a_table_that_is_no_gallery_or_another_one() {
    let Some((_, address, mut client)) = fresh() else { return };
    let before = everything(&mut client);
    let error = PostgresStore::open(&address, &notes(), Some("old")).unwrap_err();
    is_clear(&error, is_not_found, &["there is no gallery \"notes\""]);
    assert_eq!(everything(&mut client), before);
    let store = adopt(&address, &notes()).unwrap();
    // Equal options again are no refusal, by whatever name the table goes.
    adopt(&address, &notes()).unwrap();
    adopt(&address, &TableOptions { table: "public.notes".into(), ..notes() }).unwrap();
    let before = everything(&mut client);
    let words = ["the gallery in notes", "it was made with", "release it and make it anew", ", and not "];
    for other in [
        TableOptions { source: Some("title".into()), ..notes() },
        TableOptions { source: None, ..notes() },
        TableOptions { label: Some("title".into()), ..notes() },
        TableOptions { payload: Some("payload".into()), ..notes() },
        TableOptions { vector: Some("half".into()), ..notes() },
        TableOptions { condition: Some("id > 0".into()), ..notes() },
    ] {
        for error in [adopt(&address, &other), PostgresStore::open(&address, &other, Some("old"))] {
            is_clear(&error.unwrap_err(), is_conflict, &words);
        }
    }
    assert_eq!(everything(&mut client), before);
    assert_eq!(store.check().unwrap(), vec![]);
    client.batch_execute("UPDATE rehang.gallery SET format = 99").unwrap();
    is_clear(
        &adopt(&address, &notes()).unwrap_err(),
        is_conflict,
        &["format 99", "use the rehang that made it"],
    );
    client.batch_execute("UPDATE rehang.gallery SET format = 2, listed = false").unwrap();
    let error = PostgresStore::open(&address, &notes(), Some("old")).unwrap_err();
    is_clear(
        &error,
        |kind| matches!(kind, ErrorKind::WrongPhase { .. }),
        &["the gallery in notes is not whole yet"],
    );
}

#[test]
fn widths() {
    let Some((_, address, mut client)) = fresh() else { return };
    let store = adopt(&address, &notes()).unwrap();
    let before = everything(&mut client);
    let space = |name: &str, width: usize| Space::new(name, width, Distance::Cosine, false);
    let error = store.create_space(&space("old", 3), Provenance::Old).unwrap_err();
    is_clear(&error, is_width, &["column \"embedding\" of notes has 2 coordinates", "where 3 are needed"]);
    let error = store.create_space(&space("new", 16_001), Provenance::Native).unwrap_err();
    is_clear(&error, is_option, &["the dimension of space \"new\"", "at most 16000", "pgvector"]);
    assert_eq!(everything(&mut client), before);
    assert_eq!(store.spaces().unwrap(), vec![]);
    // Vectors of up to 2000 coordinates are indexed as they are, up to 4000 in halves,
    // and wider ones not at all.
    for (width, kind, is_indexed) in [
        (2000, "vector(2000)", true),
        (2001, "halfvec(2001)", true),
        (4000, "halfvec(4000)", true),
        (4001, "vector(4001)", false),
        (16_000, "vector(16000)", false),
    ] {
        let name = format!("of {width}");
        store.create_space(&space(&name, width), Provenance::Native).unwrap();
        let sql = "SELECT format_type(atttypid, atttypmod) FROM pg_attribute a JOIN rehang.space s ON a.attrelid = ('rehang.vector_' || s.number)::regclass
             WHERE s.name = $1 AND attname = 'value'";
        assert_eq!(client.query_one(sql, &[&name]).unwrap().get::<_, String>(0), kind);
        write_and_find(&store, &name, width);
        let number: i32 =
            client.query_one("SELECT number FROM rehang.space WHERE name = $1", &[&name]).unwrap().get(0);
        let indexed = client.batch_execute(&format!(
            "CREATE INDEX ON rehang.vector_{number} USING hnsw (value {}_cosine_ops)",
            kind.split('(').next().unwrap()
        ));
        assert_eq!(indexed.is_ok(), is_indexed, "{width}");
    }
    assert_eq!(store.check().unwrap(), vec![]);
}

fn write_and_find(store: &PostgresStore, space: &str, width: usize) {
    use rehang_store::{Filter, Index as _, VectorWrite, WriteOutcome};
    let item = store.get(&["1"]).unwrap().remove(0).unwrap();
    let mut vector = vec![0.0; width];
    vector[width - 1] = 1.0;
    let query = rehang_core::Matrix::new(width, vector.clone()).unwrap();
    let write = VectorWrite::native(&item, vector);
    assert_eq!(store.write_vectors(space, None, &[write]).unwrap(), [WriteOutcome::Written]);
    let found = store.search(space, &query, 1, &Filter::default()).unwrap();
    assert!(found[0][0].distance.abs() < 1e-3, "{found:?}");
}

/// A column `vector` without a width takes vectors of any width; a space has one.
#[test]
fn mixed_widths_in_a_column() {
    let Some((_, address, mut client)) = fresh() else { return };
    client
        .batch_execute(
            "INSERT INTO notes (id, at, any_width) VALUES (2, '2 days', '[1,2,3]'), (3, '3 days', NULL)",
        )
        .unwrap();
    let options = TableOptions { vector: Some("any_width".into()), ..notes() };
    let store = adopt(&address, &options).unwrap();
    let before = everything(&mut client);
    let error = store.create_space(&Space::new("old", 2, Distance::L2, false), Provenance::Old).unwrap_err();
    is_clear(&error, is_width, &["column \"any_width\" of notes", "3", "2"]);
    assert_eq!(store.spaces().unwrap(), vec![]);
    assert_eq!(everything(&mut client), before);
    client.batch_execute("DELETE FROM notes WHERE id = 2").unwrap();
    store.create_space(&Space::new("old", 2, Distance::L2, false), Provenance::Old).unwrap();
}
