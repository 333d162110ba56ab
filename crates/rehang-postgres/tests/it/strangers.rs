//! Strangers: roles of the same database that would like to be more than they are. They use the rights that
//! the page gives to an application, a schema that they may create in, and what they made before the gallery.

use postgres::Client;
use postgres::error::SqlState;
use rehang_core::{Distance, Error, ErrorKind, Provenance, Remedy, Space};
use rehang_postgres::{PostgresStore, TableOptions};
use rehang_store::{Examined as _, Index as _, Ledger as _, VectorWrite, WriteOutcome};

use crate::refusals::{as_user, role};
use crate::server;

/// Statements for keys and sources of a type whose `=` and `||` the server has for texts only, so that an
/// exact operator elsewhere would fit better.
const TABLE: &str = "CREATE TABLE notes (id varchar(20), part int, title varchar(50), body varchar(50), embedding vector(2), PRIMARY KEY (id, part));
     INSERT INTO notes SELECT 'n' || n, n, 'title', 'body', format('[%s,1]', n)::vector FROM generate_series(1, 6) AS n";

fn options() -> TableOptions {
    TableOptions {
        table: "notes".into(),
        source: Some("title || ' ' || body".into()),
        condition: Some("body <> 'draft' OR body LIKE 'x%'".into()),
        vector: Some("embedding".into()),
        ..TableOptions::default()
    }
}

fn adopt(address: &str, options: &TableOptions) -> Result<PostgresStore, Error> {
    PostgresStore::adopt(address, options, Some("old"), &|_, _| true)
}

/// Database with a gallery whose old vectors are the table's column and whose new ones are in the
/// gallery's tables; `old` serves.
struct Place {
    address: String,
    client: Client,
    store: PostgresStore,
    /// Role that may log in, and has whatever a test gives it.
    stranger: String,
}

impl Place {
    fn new(server: &server::Server) -> Self {
        let (address, mut client, stranger) = database(server);
        client.batch_execute(TABLE).unwrap();
        let store = adopt(&address, &options()).unwrap();
        store.create_space(&Space::new("old", 2, Distance::L2, false), Provenance::Old).unwrap();
        store.create_space(&Space::new("new", 3, Distance::Cosine, false), Provenance::Native).unwrap();
        for item in store.get(&[r#"["n1", "1"]"#, r#"["n2", "2"]"#]).unwrap() {
            let write = VectorWrite::native(&item.unwrap(), vec![1.0, 2.0, 3.0]);
            assert_eq!(store.write_vectors("new", None, &[write]).unwrap(), [WriteOutcome::Written]);
        }
        Self { address, client, store, stranger }
    }

    fn sql(&mut self, sql: &str) {
        let sql = sql.replace("$stranger", &self.stranger);
        self.client.batch_execute(&sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    fn stranger(&self) -> Client {
        server::client(&as_user(&self.address, &self.stranger))
    }

    /// Counts the rows of the gallery that a stranger could spoil.
    fn rows(&mut self) -> Vec<i64> {
        let count = |table: &str| format!("(SELECT count(*) FROM rehang.{table})");
        let tables = ["item_1", "state_1", "state_2", "vector_2", "gallery", "space"].map(count);
        let row = self.client.query_one(&format!("SELECT ARRAY[{}]", tables.join(", ")), &[]).unwrap();
        row.get(0)
    }

    fn is_super(&mut self) -> bool {
        let sql = "SELECT rolsuper FROM pg_roles WHERE rolname = $1";
        self.client.query_one(sql, &[&self.stranger]).unwrap().get(0)
    }

    fn end(mut self) {
        let sql = "DROP OWNED BY $stranger CASCADE; DROP ROLE $stranger";
        self.sql(sql);
    }
}

/// Makes a new database, and the name of a role in it that may log in.
fn database(server: &server::Server) -> (String, Client, String) {
    let address = server.database();
    let mut client = server::client(&address);
    let stranger = role(&address, "stranger");
    client.batch_execute(&format!("DROP ROLE IF EXISTS {stranger}; CREATE ROLE {stranger} LOGIN")).unwrap();
    (address, client, stranger)
}

fn is_conflict(error: &Error, words: &[&str]) {
    let sentence = error.to_string();
    assert!(matches!(error.kind(), ErrorKind::Conflict { .. }), "{error:?}");
    assert!(words.iter().all(|word| sentence.contains(word)), "{words:?}: {sentence}");
}

const SEARCH_RIGHTS: &str = "GRANT USAGE ON SCHEMA rehang TO $stranger; GRANT SELECT ON ALL TABLES IN SCHEMA rehang TO $stranger; GRANT SELECT ON notes TO $stranger";

/// Statement that makes its caller a superuser where it is called with the owner's rights.
const GRAB: &str = "IF current_user <> session_user OR session_user <> '$stranger' THEN EXECUTE 'ALTER ROLE $stranger SUPERUSER'; END IF";

/// A role that may only search makes no trigger of the owner's function, neither on a table of its own nor on
/// one of the gallery. Where it could, the function works for no other table.
#[test]
fn the_function_of_the_triggers_is_nobodys() {
    let Some(server) = server::server() else { return };
    let mut place = Place::new(server);
    place.sql(SEARCH_RIGHTS);
    let before = place.rows();
    let attack = |client: &mut Client| -> Vec<Option<SqlState>> {
        let mut said = Vec::new();
        client
            .batch_execute(
                "CREATE TEMPORARY TABLE first(); CREATE TYPE pg_temp.evil AS (x int);
                 CREATE FUNCTION pg_temp.as_text(pg_temp.evil) RETURNS text LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''called''; END';
                 CREATE CAST (pg_temp.evil AS text) WITH FUNCTION pg_temp.as_text(pg_temp.evil);
                 CREATE TEMPORARY TABLE mine (id varchar(20), part int, title pg_temp.evil, body pg_temp.evil, embedding vector(2))",
            )
            .unwrap();
        for (event, sql) in [
            ("TRUNCATE ON mine FOR EACH STATEMENT", "TRUNCATE mine"),
            ("INSERT ON mine FOR EACH ROW", "INSERT INTO mine VALUES ('n1', 1, ROW(1), ROW(1), NULL)"),
        ] {
            let made = client.batch_execute(&format!(
                "CREATE OR REPLACE TRIGGER a AFTER {event} EXECUTE FUNCTION rehang.changed_1(); {sql}"
            ));
            said.push(made.err().and_then(|error| error.code().cloned()));
        }
        said
    };
    assert_eq!(attack(&mut place.stranger()), vec![Some(SqlState::INSUFFICIENT_PRIVILEGE); 2]);
    // A role may have been given the function all the same, or made a trigger of it before it was taken back:
    // the function does nothing there.
    place.sql("GRANT EXECUTE ON FUNCTION rehang.changed_1() TO $stranger");
    assert_eq!(attack(&mut place.stranger()), vec![None; 2]);
    let found = place.store.check().unwrap();
    assert!(
        found.iter().any(|problem| problem.what.contains("may call the function of the triggers")),
        "{found:?}"
    );
    assert_eq!((place.rows(), place.is_super()), (before, false));
    // The application goes on writing without that right.
    place
        .sql("REVOKE EXECUTE ON FUNCTION rehang.changed_1() FROM $stranger; GRANT ALL ON notes TO $stranger");
    place
        .stranger()
        .batch_execute(
            "INSERT INTO notes VALUES ('n9', 9, 'a', 'b', '[1,2]'); DELETE FROM notes WHERE part = 6",
        )
        .unwrap();
    assert_eq!(place.store.check().unwrap(), vec![]);
    assert!(place.store.get(&[r#"["n9", "9"]"#]).unwrap()[0].is_some());
    place.end();
}

/// Statements that make operators of the names that the gallery uses.
fn operators() -> String {
    let mut sql = String::new();
    // The operators are for the types that the gallery compares, or that the server takes a literal for.
    let types = [
        "varchar", "regclass", "text", "bigint", "int", "oid", "name", "jsonb", "vector", "boolean",
        "float8", "real", "text[]", "\"char\"",
    ];
    let mut made = 0;
    let mut operator_sql = |left: &str, right: &str, operator: &str, gives: &str, result: &str| {
        made += 1;
        format!(
            "CREATE FUNCTION public.operator_{made}({left}, {right}) RETURNS {gives} LANGUAGE plpgsql AS $$ BEGIN {GRAB}; RETURN {result}; END $$;
             CREATE OPERATOR public.{operator} (FUNCTION = public.operator_{made}, LEFTARG = {left}, RIGHTARG = {right});"
        )
    };
    for kind in types {
        for operator in ["=", "<>", "<", ">"] {
            // pgvector has operators of its own.
            if kind != "vector" {
                sql += &operator_sql(kind, kind, operator, "boolean", "true");
            }
        }
    }
    for operator in ["=", "<>", "||", "~~"] {
        for (left, right) in [
            ("regclass", "oid"),
            ("oid", "regclass"),
            ("varchar", "text"),
            ("text", "varchar"),
            ("int", "bigint"),
            ("bigint", "int"),
        ] {
            let (gives, result) = if operator == "||" { ("text", "'x'") } else { ("boolean", "true") };
            sql += &operator_sql(left, right, operator, gives, result);
        }
    }
    sql += &operator_sql("varchar", "varchar", "||", "text", "'x'");
    sql += &operator_sql("varchar", "varchar", "~~", "boolean", "true");
    sql += &operator_sql("jsonb", "jsonb", "#>>", "text", "'new'");
    sql += &operator_sql("jsonb", "jsonb", "->>", "text", "'0'");
    sql += &operator_sql("jsonb", "text[]", "#>>", "text", "'new'");
    sql += &operator_sql("bigint", "bigint", "-", "bigint", "0");
    sql += &operator_sql("float8", "float8", "^", "float8", "0");
    sql
}

/// Statements that make functions and types of the names that the gallery uses.
fn functions_and_types() -> String {
    let mut sql = String::new();
    for (function, arguments, gives) in [
        ("nextval", "text", "bigint"),
        ("nextval", "regclass", "bigint"),
        ("nextval", "varchar", "bigint"),
        ("current_setting", "varchar", "text"),
        ("format", "text, text, int", "text"),
        ("format", "text, text, text", "text"),
        ("format", "text, int, int, int", "text"),
        ("jsonb_build_array", "text, text", "jsonb"),
        ("jsonb_build_object", "text, text", "jsonb"),
        ("jsonb_populate_record", "notes, jsonb", "notes"),
        ("record_image_ne", "notes, notes", "boolean"),
        ("concat_ws", "text, text, text", "text"),
        ("set_config", "varchar, varchar, boolean", "text"),
        ("vector_dims", "vector", "int"),
        ("to_jsonb", "notes", "jsonb"),
        ("count", "varchar", "bigint"),
        ("hashint8extended", "int, bigint", "bigint"),
    ] {
        // Where pgvector is, its own function is in the way of one by the same name.
        if function != "vector_dims" {
            sql += &format!(
                "CREATE FUNCTION public.{function}({arguments}) RETURNS {gives} LANGUAGE plpgsql AS $$ BEGIN {GRAB}; RETURN NULL; END $$;"
            );
        }
    }
    sql += "CREATE DOMAIN public.regclass AS text; CREATE DOMAIN public.jsonb AS text;";
    sql
}

/// Searches and writes by SQL as the owner, with the stranger's schema on the path, as it is where nobody has
/// changed it.
fn search_and_write_by_sql(place: &mut Place) {
    place.store.set_document("upgrade", None, r#"{"new": {"model": "new"}, "handicap": 0.5}"#).unwrap();
    for (space, query) in [("old", "[1,2]"), ("new", "[1,2,3]")] {
        if space == "new" {
            place.store.switch_serving("old", "new").unwrap();
        }
        place.sql(&format!(
            "SELECT rehang.serving(16::oid::pg_catalog.regclass); SELECT * FROM rehang.search('notes'::pg_catalog.regclass, '{query}'::vector, 3);
             SELECT * FROM rehang.serving_1"
        ));
        assert!(!place.is_super(), "by a search of {space:?}");
    }
    place.sql(
        "SELECT rehang.write('notes'::pg_catalog.regclass, '[\"n3\", \"3\"]', '[1,2,3]'::vector, 'new')",
    );
    assert!(!place.is_super(), "by a write");
}

/// Works by every call of rehang.
fn call_everything(place: &mut Place) {
    let store = adopt(&place.address, &options()).unwrap();
    let space = Space::new("third", 2, Distance::Cosine, false);
    store.create_space(&space, Provenance::Native).unwrap();
    let query = rehang_core::Matrix::new(3, vec![1.0, 2.0, 3.0]).unwrap();
    assert_eq!(store.search("new", &query, 2, &rehang_store::Filter::default()).unwrap()[0].len(), 2);
    let all = rehang_store::Scan::new("old", rehang_store::Select::All, 100).with_vectors_of("old");
    assert_eq!(store.scan(&all).unwrap().len(), 6);
    store.claim("third", rehang_store::Queue::All, "worker", 5, std::time::Duration::from_secs(9)).unwrap();
    store.counts("third").unwrap();
    store.recall("new", 5, 2).unwrap();
    store.prepare("new", &|_, _| true).unwrap();
    assert_eq!(store.check().unwrap(), vec![]);
    assert_eq!(store.delete(&[r#"["n9", "9"]"#]).unwrap(), 1);
    store.drop_space("third").unwrap();
    assert!(!place.is_super(), "by rehang");
    place.store.forget_natives("new", rehang_store::Epoch::FIRST, 100).unwrap();
    let items: Vec<_> = store
        .scan(&all)
        .unwrap()
        .into_iter()
        .map(|record| VectorWrite::native(&record.item, vec![1.0, 2.0, 3.0]))
        .collect();
    assert_eq!(
        place.store.write_vectors("new", None, &items).unwrap(),
        vec![WriteOutcome::Written; items.len()]
    );
    place.store.settle("embedding_new", &|_, _| true).unwrap();
    assert!(!place.is_super(), "by moving vectors");
}

/// A stranger makes operators, functions and types of the names that the gallery uses, each fitting better
/// than the server's own. Nobody but their maker ever calls them, whether the owner's triggers run, the owner
/// searches by SQL, or rehang works.
#[test]
fn what_others_make_in_a_schema_is_never_called() {
    let Some(server) = server::server() else { return };
    let mut place = Place::new(server);
    place.sql(&format!(
        "{SEARCH_RIGHTS}; GRANT ALL ON notes TO $stranger; GRANT CREATE, USAGE ON SCHEMA public TO $stranger"
    ));
    let sql = (operators() + &functions_and_types()).replace("$stranger", &place.stranger);
    let mut stranger = place.stranger();
    stranger.batch_execute(&sql).unwrap();
    // The application's role writes, and the triggers run with the owner's rights.
    stranger
        .batch_execute(
            "SET search_path = pg_catalog, public;
             INSERT INTO public.notes VALUES ('n9', 9, 'a', 'b', '[1,2]'); UPDATE public.notes SET title = 'c' WHERE part = 3;
             UPDATE public.notes SET part = 40 WHERE part = 4; UPDATE public.notes SET embedding = '[7,7]' WHERE part = 5",
        )
        .unwrap();
    stranger
        .batch_execute(
            "BEGIN ISOLATION LEVEL REPEATABLE READ; DELETE FROM public.notes WHERE part = 2; COMMIT",
        )
        .unwrap();
    assert!(!place.is_super(), "by a trigger");
    search_and_write_by_sql(&mut place);
    call_everything(&mut place);
    let Place { address, mut client, store, stranger } = place;
    store.release(Some("embedding_new")).unwrap();
    let sql = "SELECT rolsuper FROM pg_roles WHERE rolname = $1";
    assert!(!client.query_one(sql, &[&stranger]).unwrap().get::<_, bool>(0), "by a release of {address}");
    client.batch_execute(&format!("DROP OWNED BY {stranger} CASCADE; DROP ROLE {stranger}")).unwrap();
}

/// A schema `rehang` that another role made, or something in it, is refused, and nothing of it is run.
#[test]
fn a_schema_or_an_object_of_another_is_refused() {
    let Some(server) = server::server() else { return };
    let trap = "CREATE FUNCTION public.trap() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN $grab; RETURN false; END $$;
         CREATE SEQUENCE rehang.revision;
         CREATE TABLE rehang.gallery (number int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, relation regclass NOT NULL UNIQUE, name text NOT NULL,
             options text NOT NULL, joined text NOT NULL, format int NOT NULL, serving text, listed boolean NOT NULL DEFAULT public.trap())";
    for (mine, theirs, words) in [
        ("GRANT CREATE ON DATABASE $database TO $stranger", format!("CREATE SCHEMA rehang; {trap}"), &["the schema rehang", "it belongs to stranger", "one role keeps all galleries", "DROP SCHEMA rehang CASCADE"][..]),
        ("CREATE SCHEMA rehang; GRANT ALL ON SCHEMA rehang TO $stranger", trap.to_owned(), &["rehang.gallery", "it belongs to stranger", "takes it away"]),
        (
            "CREATE SCHEMA rehang; GRANT ALL ON SCHEMA rehang TO $stranger",
            "CREATE FUNCTION rehang.changed_1() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'".to_owned(),
            &["rehang.changed_1", "it belongs to stranger"],
        ),
        (
            "CREATE SCHEMA rehang; GRANT ALL ON SCHEMA rehang TO $stranger",
            "CREATE VIEW rehang.gallery AS SELECT 1 AS number, 'notes'::regclass AS relation, '' AS options, true AS listed, 1 AS format".to_owned(),
            &["rehang.gallery", "it belongs to stranger"],
        ),
        (
            "CREATE SCHEMA rehang; GRANT ALL ON SCHEMA rehang TO $stranger",
            String::new(),
            &["the schema rehang", "stranger", "may make something in it", "REVOKE CREATE ON SCHEMA rehang FROM stranger"],
        ),
        ("CREATE SCHEMA rehang; GRANT CREATE ON SCHEMA rehang TO PUBLIC", String::new(), &["REVOKE CREATE ON SCHEMA rehang FROM PUBLIC"]),
    ] {
        let (address, mut client, stranger) = database(server);
        let name: String = client.query_one("SELECT current_database()::text", &[]).unwrap().get(0);
        let given = |sql: &str| {
            sql.replace("$grab", GRAB).replace("$stranger", &stranger).replace("$database", &name)
        };
        client.batch_execute(TABLE).unwrap();
        client.batch_execute(&given(&format!("GRANT CREATE ON SCHEMA public TO $stranger; {mine}"))).unwrap();
        server::client(&as_user(&address, &stranger)).batch_execute(&given(&theirs)).unwrap();
        for error in [
            adopt(&address, &options()).unwrap_err(),
            PostgresStore::open(&address, &options(), Some("old")).unwrap_err(),
            PostgresStore::statements(&address, &options()).unwrap_err(),
        ] {
            is_conflict(&error, words);
            assert!(!error.to_string().contains("GRANT"), "a superuser is lent to nobody: {error}");
        }
        let sql = "SELECT rolsuper FROM pg_roles WHERE rolname = $1";
        assert!(!client.query_one(sql, &[&stranger]).unwrap().get::<_, bool>(0), "{theirs}");
        client.batch_execute(&format!("DROP OWNED BY {stranger} CASCADE; DROP ROLE {stranger}")).unwrap();
    }
}

/// Tables that another role put where those of a later space are to be are not taken for the gallery's.
#[test]
fn a_table_of_a_space_to_come_is_not_anothers() {
    let Some(server) = server::server() else { return };
    let mut place = Place::new(server);
    place.sql("GRANT ALL ON SCHEMA rehang TO $stranger");
    place.stranger().batch_execute("CREATE TABLE rehang.state_3 (item bigint PRIMARY KEY)").unwrap();
    let third = Space::new("third", 2, Distance::L2, false);
    is_conflict(
        &place.store.create_space(&third, Provenance::Native).unwrap_err(),
        &["rehang.state_3", "stranger"],
    );
    assert_eq!(place.store.spaces().unwrap().len(), 2);
    place.sql("REVOKE ALL ON SCHEMA rehang FROM $stranger; DROP TABLE rehang.state_3");
    place.store.create_space(&third, Provenance::Native).unwrap();
    place.end();
}

/// The owner of a column's type decides what a cast of it does, and the gallery's casts run with our rights.
#[test]
fn a_column_of_anothers_type_is_refused() {
    let Some(server) = server::server() else { return };
    let (address, mut client, stranger) = database(server);
    client.batch_execute(&format!("CREATE SCHEMA theirs AUTHORIZATION {stranger}")).unwrap();
    server::client(&as_user(&address, &stranger))
        .batch_execute(
            "CREATE TYPE theirs.mood AS ENUM ('good'); CREATE DOMAIN theirs.short AS text; CREATE TYPE theirs.pair AS (a int, b int);
             GRANT USAGE ON SCHEMA theirs TO PUBLIC",
        )
        .unwrap();
    client
        .batch_execute("CREATE TYPE mine AS (a int, b theirs.mood); CREATE TYPE own AS ENUM ('good')")
        .unwrap();
    for kind in ["theirs.mood", "theirs.mood[]", "theirs.short", "theirs.pair", "mine"] {
        client
            .batch_execute(&format!("DROP TABLE IF EXISTS t; CREATE TABLE t (id bigint PRIMARY KEY, body {kind}, embedding vector(2))"))
            .unwrap();
        let options =
            TableOptions { table: "t".into(), source: Some("body".into()), ..TableOptions::default() };
        let said = adopt(&address, &options).unwrap_err().to_string();
        assert!(said.contains("that of column \"body\" belongs to stranger"), "{kind}: {said}");
    }
    client
        .batch_execute("DROP TABLE t; CREATE TABLE t (id bigint PRIMARY KEY, body own, embedding vector(2))")
        .unwrap();
    adopt(
        &address,
        &TableOptions { table: "t".into(), source: Some("body".into()), ..TableOptions::default() },
    )
    .unwrap();
    client.batch_execute(&format!("DROP OWNED BY {stranger} CASCADE; DROP ROLE {stranger}")).unwrap();
}

/// Default privileges of the owner give others neither a trigger on the gallery's tables nor the
/// function of its triggers.
#[test]
fn default_privileges_let_nobody_in() {
    let Some(server) = server::server() else { return };
    let (address, mut client, stranger) = database(server);
    client
        .batch_execute(&format!(
            "ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO {stranger}; ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO {stranger}; {TABLE};
             GRANT CREATE ON SCHEMA public TO {stranger}"
        ))
        .unwrap();
    let store = adopt(&address, &options()).unwrap();
    store.create_space(&Space::new("old", 2, Distance::L2, false), Provenance::Old).unwrap();
    store.create_space(&Space::new("new", 3, Distance::L2, false), Provenance::Native).unwrap();
    client.batch_execute(&format!("GRANT USAGE ON SCHEMA rehang TO {stranger}")).unwrap();
    let mut theirs = server::client(&as_user(&address, &stranger));
    theirs
        .batch_execute("CREATE FUNCTION public.mine() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; CREATE TEMPORARY TABLE t (id int)")
        .unwrap();
    for table in ["gallery", "space", "item_1", "state_1", "state_2", "vector_2", "claim_2"] {
        theirs.query(&format!("SELECT * FROM rehang.{table}"), &[]).unwrap();
        let made = theirs.batch_execute(&format!(
            "CREATE TRIGGER mine AFTER INSERT ON rehang.{table} FOR EACH ROW EXECUTE FUNCTION public.mine()"
        ));
        assert_eq!(made.unwrap_err().code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE), "{table}");
    }
    let made = theirs
        .batch_execute("CREATE TRIGGER a AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION rehang.changed_1()");
    assert_eq!(made.unwrap_err().code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE));
    assert_eq!(store.check().unwrap(), vec![]);
    client
        .batch_execute(&format!(
            "GRANT TRIGGER ON rehang.state_2 TO {stranger}; SET ROLE {stranger};
             CREATE TRIGGER mine AFTER INSERT ON rehang.state_2 FOR EACH ROW EXECUTE FUNCTION public.mine(); RESET ROLE"
        ))
        .unwrap();
    let found = store.check().unwrap();
    assert!(
        found.iter().any(|problem| problem.what.contains("triggers of others on tables of ours")),
        "{found:?}"
    );
    client.batch_execute(&format!("DROP OWNED BY {stranger} CASCADE; DROP ROLE {stranger}")).unwrap();
}

/// An expression may name no schema in which another role may make a function that fits its arguments better.
#[test]
fn an_expression_names_no_schema_that_others_make_things_in() {
    let Some(server) = server::server() else { return };
    let (address, mut client, stranger) = database(server);
    client
        .batch_execute(&format!(
            "{TABLE}; CREATE SCHEMA tools; CREATE FUNCTION tools.clean(text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT $1'; GRANT USAGE ON SCHEMA tools TO {stranger}"
        ))
        .unwrap();
    let with_source =
        |source: &str| TableOptions { source: Some(source.into()), condition: None, ..options() };
    assert!(PostgresStore::inspect(&address, &with_source("tools.clean(title)")).is_ok());
    client.batch_execute(&format!("GRANT CREATE ON SCHEMA tools TO {stranger}")).unwrap();
    let said = PostgresStore::inspect(&address, &with_source("tools.clean(title)")).unwrap_err().to_string();
    assert!(
        said.contains("no name of the schema tools") && said.contains("REVOKE CREATE ON SCHEMA"),
        "{said}"
    );
    assert!(PostgresStore::inspect(&address, &with_source("lower(title)")).is_ok());
    client.batch_execute(&format!("DROP OWNED BY {stranger} CASCADE; DROP ROLE {stranger}")).unwrap();
}

/// Functions have a version, and a gallery whose functions let others in is refused; adopting it once more
/// makes all of them anew.
#[test]
fn functions_of_an_earlier_version_are_made_anew() {
    let Some(server) = server::server() else { return };
    let mut place = Place::new(server);
    place.store.switch_serving("old", "new").unwrap();
    let names = [
        "serving(regclass)",
        "search(regclass, vector, int)",
        "write(regclass, text, vector, text)",
        "changed_1()",
        "serving_1()",
    ];
    for name in names {
        place.sql(&format!("COMMENT ON FUNCTION rehang.{name} IS 'rehang: as an earlier version had it'"));
        let error = PostgresStore::open(&place.address, &options(), Some("old")).unwrap_err();
        is_conflict(
            &error,
            &["the functions of the gallery in notes", "gets the rights of their owner", "makes them anew"],
        );
        assert_eq!(error.remedy(), Some(&Remedy::RenewFunctions));
        assert!(!place.store.check().unwrap().is_empty(), "{name}");
        place.store = adopt(&place.address, &options()).unwrap();
        assert_eq!(place.store.check().unwrap(), vec![], "{name}");
    }
    // The functions are made anew whatever was done to them, and whatever their comments say.
    place.sql(
        "CREATE OR REPLACE FUNCTION rehang.serving(gallery regclass) RETURNS text LANGUAGE sql STABLE AS 'SELECT ''forged''::text';
         GRANT ALL ON FUNCTION rehang.changed_1() TO PUBLIC; DROP FUNCTION rehang.write",
    );
    assert!(PostgresStore::open(&place.address, &options(), Some("old")).is_err(), "one is missing");
    adopt(&place.address, &options()).unwrap();
    let serving: String = place.client.query_one("SELECT rehang.serving('notes')", &[]).unwrap().get(0);
    assert_eq!(serving, "new");
    let is_public = "SELECT has_function_privilege($1, 'rehang.changed_1()', 'EXECUTE')";
    assert!(!place.client.query_one(is_public, &[&place.stranger]).unwrap().get::<_, bool>(0));
    assert_eq!(place.store.check().unwrap(), vec![]);
    // Functions of a later version are left alone, also by calls that would write one of them anew.
    let later = |name: &str| {
        format!(
            "COMMENT ON FUNCTION rehang.{name} IS 'rehang: as a later one has it; functions of version 99'"
        )
    };
    let third = Space::new("third", 2, Distance::L2, false);
    place.sql(&later("changed_1"));
    is_conflict(&place.store.create_space(&third, Provenance::Native).unwrap_err(), &["version 99"]);
    is_conflict(&place.store.drop_space("old").unwrap_err(), &["version 99"]);
    place.store.switch_serving("new", "old").unwrap();
    place.store.switch_serving("old", "new").unwrap();
    place.sql(&later("search(regclass, vector, int)"));
    is_conflict(
        &adopt(&place.address, &options()).unwrap_err(),
        &["version 99", "use the rehang that made them"],
    );
    place.end();
}

/// A role that may do nothing but connect keeps no worker from its work: anybody may take an
/// advisory lock of a database.
#[test]
fn nobody_keeps_workers_from_their_turns() {
    let Some(server) = server::server() else { return };
    let place = Place::new(server);
    let mut stranger = place.stranger();
    stranger
        .batch_execute(
            "SELECT pg_advisory_lock(x'72656801'::int, n) FROM generate_series(0, 9) AS n; SELECT pg_advisory_lock(x'726568616e67'::bigint)",
        )
        .unwrap();
    let began = rehang_clock::now();
    let claim =
        || place.store.claim("new", rehang_store::Queue::All, "worker", 2, std::time::Duration::from_secs(9));
    assert_eq!((claim().unwrap().records.len(), claim().unwrap().records.len()), (2, 2));
    adopt(&place.address, &options()).unwrap();
    assert!(began.elapsed() < std::time::Duration::from_secs(1));
    drop(stranger);
    place.store.switch_serving("old", "new").unwrap();
    place.store.drop_space("old").unwrap();
    place.end();
}

/// The owner of a collation names it freely, also after a key was given it, and the name stands in functions
/// that run with other rights.
#[test]
fn the_name_of_a_collation_is_no_statement() {
    let Some(server) = server::server() else { return };
    let (address, mut client, stranger) = database(server);
    client
        .batch_execute(&format!(
            "CREATE SCHEMA theirs AUTHORIZATION {stranger}; GRANT USAGE ON SCHEMA theirs TO PUBLIC; CREATE COLLATION theirs.c FROM \"C\";
             ALTER COLLATION theirs.c OWNER TO {stranger};
             CREATE TABLE notes (id text COLLATE theirs.c PRIMARY KEY, body text, embedding vector(2)); INSERT INTO notes VALUES ('a', 'b', '[1,2]')"
        ))
        .unwrap();
    let of_notes = || crate::notes::options();
    let store = adopt(&address, &of_notes()).unwrap();
    server::client(&as_user(&address, &stranger))
        .batch_execute(&format!(
            "ALTER COLLATION theirs.c RENAME TO \"c\"\"; BEGIN END $rehang$; ALTER ROLE {stranger} SUPERUSER; --\""
        ))
        .unwrap();
    server::client(&address)
        .batch_execute("INSERT INTO notes VALUES ('c', 'd', '[1,2]'); DELETE FROM notes WHERE id = 'a'")
        .unwrap();
    let said = adopt(&address, &of_notes()).unwrap_err().to_string();
    assert!(said.contains("$rehang$") && said.contains("of a collation of its key"), "{said}");
    let sql = "SELECT rolsuper FROM pg_roles WHERE rolname = $1";
    assert!(!client.query_one(sql, &[&stranger]).unwrap().get::<_, bool>(0));
    drop(store);
    client.batch_execute(&format!("DROP OWNED BY {stranger} CASCADE; DROP ROLE {stranger}")).unwrap();
}

/// The second owner of a database is told a way to a gallery, and the way works.
#[test]
fn two_owners_in_one_database() {
    let Some(server) = server::server() else { return };
    let (address, mut client, second) = database(server);
    let first = role(&address, "first");
    let name: String = client.query_one("SELECT current_database()::text", &[]).unwrap().get(0);
    let table = |name: &str, owner: &str| {
        format!(
            "CREATE TABLE {name} (id bigint PRIMARY KEY, body text, embedding vector(2)); ALTER TABLE {name} OWNER TO {owner}; INSERT INTO {name} VALUES (1, 'a', '[1,2]');"
        )
    };
    client
        .batch_execute(&format!(
            "CREATE ROLE {first} LOGIN; GRANT CREATE ON DATABASE {name} TO {first}, {second}; {}{}",
            table("ones", &first),
            table("twos", &second)
        ))
        .unwrap();
    let options_of = |name: &str| TableOptions {
        table: name.into(),
        source: Some("body".into()),
        vector: Some("embedding".into()),
        ..TableOptions::default()
    };
    let as_first = as_user(&address, &first);
    adopt(&as_first, &options_of("ones")).unwrap();
    let lend = format!("GRANT {second} TO {first}");
    for other in [as_user(&address, &second), address.clone()] {
        is_conflict(
            &adopt(&other, &options_of("twos")).unwrap_err(),
            &["it belongs to first", &format!("connect as {first}"), &lend],
        );
    }
    client.batch_execute(&lend).unwrap();
    let store = adopt(&as_first, &options_of("twos")).unwrap();
    store.create_space(&Space::new("old", 2, Distance::L2, false), Provenance::Old).unwrap();
    server::client(&as_user(&address, &second))
        .batch_execute("INSERT INTO twos VALUES (2, 'b', '[3,4]')")
        .unwrap();
    assert_eq!((store.counts("old").unwrap().old, store.check().unwrap()), (2, vec![]));
    // A superuser may look at the first owner's gallery, and not change it.
    assert!(PostgresStore::open(&address, &options_of("ones"), Some("old")).is_ok());
    is_conflict(&adopt(&address, &options_of("ones")).unwrap_err(), &[&format!("connect as {first}")]);
    client
        .batch_execute(&format!("DROP OWNED BY {first}, {second} CASCADE; DROP ROLE {first}, {second}"))
        .unwrap();
}

/// An older pgvector gets a build by several processes wrong, so rehang builds with one; what that
/// version risks is said.
#[test]
fn an_older_pgvector_builds_with_one_process_and_says_so() {
    let Some(server) = server::server() else { return };
    for (version, processes, words) in [
        ("0.8.1", "0", &["0.8.1", "CVE-2026-3172", "ALTER EXTENSION vector UPDATE"][..]),
        ("0.8.4", "3", &[]),
    ] {
        let address = server.database();
        let mut client = server::client(&address);
        client
            .batch_execute(&format!(
                "CREATE TABLE notes (id bigint PRIMARY KEY, body text, embedding vector(2));
                 INSERT INTO notes SELECT n, 'body', '[1,1]' FROM generate_series(1, 20001) AS n;
                 UPDATE pg_extension SET extversion = '{version}' WHERE extname = 'vector';
                 CREATE TABLE builds (processes text);
                 CREATE FUNCTION seen() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
                     INSERT INTO public.builds VALUES (current_setting('max_parallel_maintenance_workers')); END $$;
                 DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET max_parallel_maintenance_workers = 3', current_database()); END $$"
            ))
            .unwrap();
        let options = TableOptions {
            table: "notes".into(),
            vector: Some("embedding".into()),
            ..TableOptions::default()
        };
        let store = adopt(&address, &options).unwrap();
        store.create_space(&Space::new("old", 2, Distance::L2, false), Provenance::Old).unwrap();
        store.create_space(&Space::new("new", 2, Distance::L2, false), Provenance::Native).unwrap();
        client
            .batch_execute(
                "INSERT INTO rehang.vector_2 SELECT item, '[1,2]' FROM rehang.state_2; UPDATE rehang.state_2 SET provenance = 'native';
                 CREATE EVENT TRIGGER seen ON ddl_command_start WHEN TAG IN ('CREATE INDEX') EXECUTE FUNCTION seen()",
            )
            .unwrap();
        store.prepare("new", &|_, _| true).unwrap();
        let seen = client.query_one("SELECT min(processes), max(processes) FROM builds", &[]).unwrap();
        assert_eq!(
            (seen.get::<_, String>(0), seen.get::<_, String>(1)),
            (processes.into(), processes.into()),
            "{version}"
        );
        let said = store.remarks().unwrap().concat();
        assert!(
            words.iter().all(|word| said.contains(word)) && said.is_empty() == words.is_empty(),
            "{said}"
        );
    }
}

/// No search finds a native vector without a direction. The doctor counts such vectors: an earlier
/// version has written them.
#[test]
fn native_vectors_of_length_zero_are_told() {
    let Some(server) = server::server() else { return };
    let mut place = Place::new(server);
    let item = place.store.get(&[r#"["n3", "3"]"#]).unwrap().remove(0).unwrap();
    let write = VectorWrite::native(&item, vec![0.0, 1.0, 0.0]);
    assert_eq!(place.store.write_vectors("new", None, &[write]).unwrap(), [WriteOutcome::Written]);
    place.sql("UPDATE rehang.vector_2 SET value = '[0,0,0]' WHERE value = '[0,1,0]'");
    let found = place.store.check().unwrap();
    assert_eq!((found.len(), found[0].count, found[0].space.as_deref()), (1, 1, Some("new")), "{found:?}");
    assert!(found[0].what.contains("native vectors of length 0"), "{found:?}");
    place.end();
}
