//! A table of PostgreSQL is upgraded while an application writes it by plain SQL, while workers are killed
//! (`kill -9`) in turn, and while the server itself is killed and starts again: see `common/deaths.rs`.

#![cfg(unix)]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use postgres::{Client, NoTls};

use crate::common::deaths::{self, Act, D_OLD, Row, Served, model, model_of};
use crate::common::upgrade;
use crate::postgres_server;
use crate::stub::{Reply, Stub, good_of};

fn text(vector: &[f32]) -> String {
    format!("{vector:?}")
}

/// The rows of the table, each with its vector in the new space and who made that, straight from the tables.
fn rows(address: &str) -> Vec<Row> {
    let mut client = postgres_server::client(address);
    let number: i32 =
        client.query_one("SELECT number FROM rehang.space WHERE name = 'second'", &[]).unwrap().get(0);
    let sql = format!(
        "SELECT t.body, s.provenance, v.value::text, i.key FROM notes AS t LEFT JOIN rehang.item_1 AS i ON i.k1 = t.id
         LEFT JOIN rehang.state_{number} AS s ON s.item = i.key LEFT JOIN rehang.vector_{number} AS v ON v.item = i.key"
    );
    let rows = client.query(&sql, &[]).unwrap();
    assert!(rows.iter().all(|row| row.get::<_, Option<i64>>(3).is_some()), "every row is an item");
    rows.iter()
        .map(|row| {
            let vector: Option<String> = row.get(2);
            let vector = vector.map(|text| serde_json::from_str(&text).unwrap());
            // A text that changes takes its old vector away.
            let text: String = row.get(0);
            Row { old: Some(model_of(&text)[..D_OLD].to_vec()), text, provenance: row.get(1), vector }
        })
        .collect()
}

/// Does what an application does, by plain SQL; gives `false` where the server was away. A closed connection
/// is made anew first.
fn act(client: &mut Option<Client>, address: &str, act: Act) -> bool {
    if client.as_ref().is_none_or(Client::is_closed) {
        *client = Client::connect(address, NoTls).ok();
    }
    let Some(client) = client else { return false };
    let done = match act {
        Act::Put(number, version) => client.execute(
            "INSERT INTO notes (id, body, embedding) VALUES ($1, $2, $3::text::vector)
             ON CONFLICT (id) DO UPDATE SET body = EXCLUDED.body, embedding = EXCLUDED.embedding",
            &[&(number as i64), &format!("{number} {version}"), &text(&model(number, version)[..D_OLD])],
        ),
        Act::Text(number, version) => client.execute(
            "UPDATE notes SET body = $2 WHERE id = $1",
            &[&(number as i64), &format!("{number} {version}")],
        ),
        Act::NoVector(number) => {
            client.execute("UPDATE notes SET embedding = NULL WHERE id = $1", &[&(number as i64)])
        }
        Act::Delete(number) => client.execute("DELETE FROM notes WHERE id = $1", &[&(number as i64)]),
        Act::Touch => client.execute("UPDATE notes SET seen = seen + 1 WHERE id < 50", &[]),
        Act::Undone => {
            let change = "UPDATE notes SET body = body || '0' WHERE id % 17 = 3";
            client.batch_execute(&format!("BEGIN; {change}; ROLLBACK")).map(|()| 0)
        }
        Act::Search(number) => client
            .query("SELECT id FROM rehang.search('notes', $1::text::vector, 5)", &[&text(&model(number, 0))])
            .map(|found| found.len() as u64),
    };
    done.is_ok()
}

/// Starts a server that was killed. Its process may still be listed as dead, and its last sessions take a
/// moment to end.
#[allow(clippy::disallowed_methods, reason = "a server takes a moment to end")]
fn start_again(data: &Path) -> postgres_server::Server {
    let mut said = String::new();
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(200));
        for left in ["postmaster.pid", ".s.PGSQL.5432.lock"] {
            drop(fs_err::remove_file(data.join(left)));
        }
        match postgres_server::Server::start(Some(data)) {
            Ok(server) => return server,
            Err(error) => said = error,
        }
    }
    panic!("the server does not start again: {said}");
}

#[test]
fn a_table_is_upgraded_whatever_dies_while_an_application_writes_it() {
    if postgres_server::server().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let mut servers = vec![postgres_server::Server::start(Some(&data)).unwrap()];
    let address = servers[0].database();
    let place = deaths::place(&format!(
        "kind = \"postgres\"\nurl = {address:?}\ntable = \"notes\"\nsource = \"body\"\nvector = \"embedding\""
    ));
    postgres_server::client(&address)
        .batch_execute(
            "CREATE TABLE notes (id bigint PRIMARY KEY, body text, seen int NOT NULL DEFAULT 0, embedding vector(4));
             CREATE INDEX ON notes USING hnsw (embedding vector_l2_ops)",
        )
        .unwrap();
    let mut client = None;
    let served = Served {
        act: &mut |what| act(&mut client, &address, what),
        rows: &|| rows(&address),
        restart: &mut || {
            let pid = servers.last().unwrap().pid.unwrap();
            assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
            servers.push(start_again(&data));
        },
    };
    deaths::upgrade_among_deaths(&place, served);
    let mut client = postgres_server::client(&address);
    let mut count =
        |of: &str| client.query_one(&format!("SELECT count(*) FROM {of}"), &[]).unwrap().get::<_, i64>(0);
    // Adopting once more, as one of an earlier version has to be, brings nothing back that the end took away.
    place.finish(&["gallery", "adopt"]);
    assert_eq!(count("rehang.space"), 1);
    place.finish(&["gallery", "release", "--into", "embedding_new"]);
    assert_eq!(count("pg_namespace WHERE nspname = 'rehang'"), 0);
    for row in client.query("SELECT body, embedding_new::text FROM notes", &[]).unwrap() {
        let (body, vector): (String, String) = (row.get(0), row.get(1));
        let vector: Vec<f32> = serde_json::from_str(&vector).unwrap();
        assert_eq!(vector, model_of(&body));
    }
}

/// A row that an application inserts after the switch, with an old vector alone, is found by SQL, and nobody
/// runs anything.
#[test]
fn a_follower_finds_what_is_inserted() {
    let Some(server) = postgres_server::server() else { return };
    let address = server.database();
    let place = deaths::place(&format!(
        "kind = \"postgres\"\nurl = {address:?}\ntable = \"notes\"\nsource = \"body\"\nvector = \"embedding\""
    ));
    let mut client = postgres_server::client(&address);
    client
        .batch_execute(
            "CREATE TABLE notes (id bigint PRIMARY KEY, body text, seen int NOT NULL DEFAULT 0, embedding vector(4))",
        )
        .unwrap();
    let mut put = Some(client);
    for number in 0..20 {
        assert!(act(&mut put, &address, Act::Put(number, 0)));
    }
    place.finish(&["gallery", "adopt"]);
    for verb in ["start", "switch", "run"] {
        place.finish(&upgrade::upgrade(verb));
    }
    let follow = || {
        let mut command = place.command(&[&upgrade::upgrade("run")[..], &["--follow"]].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut client = postgres_server::client(&address);
    let mut is_found = |child: &mut Child, number: usize| {
        assert!(act(&mut put, &address, Act::Put(number, 0)));
        let sql = "SELECT provenance FROM rehang.search('notes', $1::text::vector, 100) WHERE id = $2";
        let vector = text(&model(number, 0));
        loop {
            let found = client.query_opt(sql, &[&vector, &number.to_string()]).unwrap();
            if found.is_some_and(|row| row.get::<_, &str>(0) == "native") {
                return;
            }
            assert_eq!(child.try_wait().unwrap(), None, "it stays");
        }
    };
    let ends = |child: Child, says: &str| {
        let output = child.wait_with_output().unwrap();
        let said =
            [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
        assert!(output.status.code() == Some(0) && said.contains(says), "{said}");
    };
    let mut child = follow();
    is_found(&mut child, 700);
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    ends(child, "asked to");
    // The follower stays after the finish, until the gallery is none any more.
    let mut child = follow();
    is_found(&mut child, 701);
    place.finish(&upgrade::upgrade("finish"));
    is_found(&mut child, 702);
    place.finish(&["gallery", "release", "--into", "embedding_new"]);
    ends(child, "the gallery was released");
}

/// Items that the encoder will not embed stay adapted, and so do those without a source. That is said at
/// adopt, before the finish and before the release, with the ways on, and each of these goes on.
#[test]
fn what_keeps_a_table_from_its_release_is_said_before_the_finish() {
    let Some(server) = postgres_server::server() else { return };
    let address = server.database();
    let place = deaths::place(&format!(
        "kind = \"postgres\"\nurl = {address:?}\ntable = \"notes\"\nsource = \"body\"\nvector = \"embedding\""
    ));
    let stub = Stub::start(|_, seen| {
        if seen.texts().iter().any(|text| text.starts_with("3 ")) {
            return Reply::Status(400, vec![], "against our rules".into());
        }
        Reply::Body(good_of(seen, |text| if text == "rehang" { model(0, 0) } else { model_of(text) }, |_| {}))
    });
    let encoder = format!("[encoder]\nkind = \"http\"\nurl = \"{}\"\nmodel = \"m\"\n", stub.url);
    upgrade::configure(&place, &encoder);
    let mut client = postgres_server::client(&address);
    client
        .batch_execute(
            "CREATE TABLE notes (id bigint PRIMARY KEY, body text, seen int NOT NULL DEFAULT 0, embedding vector(4));
             CREATE INDEX ON notes USING hnsw (embedding vector_l2_ops)",
        )
        .unwrap();
    let mut put = Some(client);
    for number in 0..20 {
        assert!(act(&mut put, &address, Act::Put(number, 0)));
    }
    put.as_mut().unwrap().execute("INSERT INTO notes VALUES (90, NULL, 0, '[1,2,3,4]')", &[]).unwrap();
    let says = |words: &[&str]| {
        let output = place.run(words);
        let said = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said).into_owned());
        (output.status.code(), said.concat())
    };
    let verb = |verb: &str| says(&upgrade::upgrade(verb)).1;
    let contains = |said: &str, words: &[&str]| {
        for words in words {
            assert!(said.contains(words), "{words}: {said}");
        }
    };
    contains(&says(&["gallery", "adopt"]).1, &["1 items have no source", "[gallery] where"]);
    contains(&says(&["doctor", "--config", "rehang.toml"]).1, &["1 items have no source"]);
    for verb in ["start", "switch"] {
        place.finish(&upgrade::upgrade(verb));
    }
    assert!(!verb("status").contains("a release"), "19 items wait to be embedded");
    verb("run");
    contains(
        &verb("status"),
        &[
            "a release is refused while 1 items with a source are not native (1 could not be embedded)",
            "leaves 1 items without a source",
        ],
    );
    let (code, refused) = says(&upgrade::upgrade("finish"));
    assert_eq!(code, Some(2), "{refused}");
    contains(
        &refused,
        &[
            "1 items with a source",
            "1 items have no source",
            "there is no way back",
            "`rehang upgrade run`",
            "`finish --anyway`",
        ],
    );
    let finish = [&upgrade::upgrade("finish")[..], &["--anyway"]].concat();
    let (code, finished) = says(&finish);
    assert_eq!(code, Some(0), "{finished}");
    contains(&finished, &["Space \"first\" is gone", "1 items with a source wait for `rehang upgrade run`"]);
    // The finish is no end of runs, and the refused item is still refused.
    contains(&verb("run"), &["nothing is left that can be embedded", "1 items could not be embedded"]);
    // Vectors that searches go to are dropped by no word that many commands know.
    let (code, refused) = says(&["gallery", "release", "--yes"]);
    assert_eq!(code, Some(2), "{refused}");
    contains(
        &refused,
        &[
            "items have vectors of \"second\", which searches go to",
            "`rehang gallery release`",
            "`release --yes --anyway`",
        ],
    );
    let into = ["gallery", "release", "--into", "embedding_new"];
    let (code, refused) = says(&into);
    assert_eq!(code, Some(2), "{refused}");
    contains(
        &refused,
        &["1 items with a source are adapted", "`rehang upgrade run`", "`release --with-adapted`"],
    );
    let (code, released) = says(&[&into[..], &["--with-adapted"]].concat());
    assert_eq!(code, Some(0), "{released}");
    contains(&released, &["2 of them are adapted: public.notes_adapted says which"]);
    let mut client = put.unwrap();
    let sql = "SELECT count(*), count(n.embedding_new), bool_or(n.body IS NULL) FROM notes_adapted AS a JOIN notes AS n USING (id)";
    let row = client.query_one(sql, &[]).unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1), row.get::<_, bool>(2)), (2, 2, true));
}

/// Every old vector is NULL, as after a migration that emptied the column.
#[test]
fn a_table_without_old_vectors_is_embedded_switched_and_released() {
    let Some(server) = postgres_server::server() else { return };
    let address = server.database();
    let place = deaths::place(&format!(
        "kind = \"postgres\"\nurl = {address:?}\ntable = \"notes\"\nsource = \"body\"\nvector = \"embedding\""
    ));
    let config = fs_err::read_to_string(place.path("rehang.toml")).unwrap();
    let adapter = "[adapter]\nfile = \"adapter.safetensors\"\n";
    assert!(config.contains(adapter), "{config}");
    place.write_bytes("rehang.toml", config.replace(adapter, "").as_bytes());
    let mut client = postgres_server::client(&address);
    client
        .batch_execute(
            "CREATE TABLE notes (id bigint PRIMARY KEY, body text, embedding vector(4));
             INSERT INTO notes SELECT id, id || ' 0', NULL FROM generate_series(0, 24) AS id",
        )
        .unwrap();
    place.finish(&["gallery", "adopt"]);
    place.finish(&["upgrade", "auto", "--yes"]);
    let status = || place.json(&["upgrade", "status"]);
    assert_eq!((&status()["serving"], &status()["counts"]["native"]), (&"second".into(), &25.into()));
    // A row that comes after the switch waits to be embedded, and is counted.
    client.batch_execute("INSERT INTO notes VALUES (25, '25 0', NULL)").unwrap();
    assert_eq!(status()["without_vector"], 1);
    place.finish(&["upgrade", "run"]);
    place.finish(&["upgrade", "finish"]);
    place.finish(&["gallery", "release", "--into", "embedding_new"]);
    let rows = client.query("SELECT body, embedding_new::text FROM notes", &[]).unwrap();
    assert_eq!(rows.len(), 26);
    for row in rows {
        let (body, vector): (String, String) = (row.get(0), row.get(1));
        assert_eq!(serde_json::from_str::<Vec<f32>>(&vector).unwrap(), model_of(&body), "{body}");
    }
}
