//! Tests that an application's own SQL searches as [`Gallery`] does, at every stage of an upgrade: over a
//! bridge, fused, and by one model; and that a row which it writes with an old vector alone is found in the
//! transaction that writes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use postgres::Client;
use rehang_core::adapter::{
    self, Adapter, Dense, Geometry, InputScaling, KernelExpansion, Map, Training, Uncertainty,
};
use rehang_core::finding::{Finding, FindingCode, Severity};
use rehang_core::{Bridge, Distance, Fusion, Matrix, Progress, Provenance, Remedy, Space, Vectors};
use rehang_postgres::{PostgresStore, TableOptions};
use rehang_store::{
    Examined, Filter, Found, Index, Ledger, Priority, QueueBand, Scan, Select, VectorRecord, VectorWrite,
    WriteOutcome,
};
use rehang_upgrade::{
    Export, Gallery, Location, Recorded, Serving, TableLocation, Unobserved, begin_sampling, examine, export,
    finish, rollback, set_bridge, start, switch,
};

use crate::common::{D_NEW, D_OLD, World, new_model, old_model};
use crate::server;

const ITEMS: usize = 400;

/// Embeds a source by the third model: it gives as many numbers as the second one does, and others.
fn third_model(source: &str) -> Vec<f32> {
    new_model(source)
        .iter()
        .zip([0.25, -0.5, 1.0, -0.75])
        .map(|(value, turn)| value + turn * value * value)
        .collect()
}

fn vector_of(space: &str, source: &str) -> Vec<f32> {
    match space {
        "old-model" => old_model(source),
        "new-model" => new_model(source),
        _ => third_model(source),
    }
}

/// Embeds some queries by a model: one is an item's own, one has no direction by the first model.
fn queries(space: &str, width: usize) -> Matrix {
    let texts = ["source 3 version 0", "another", "a third", ""];
    let rows = texts.iter().flat_map(|text| {
        if text.is_empty() && space == "old-model" { vec![0.0; width] } else { vector_of(space, text) }
    });
    Matrix::new(width, rows.collect()).unwrap()
}

fn bridge(old: &Space, new: &Space, share: f64, input: InputScaling) -> Bridge {
    let weight = Matrix::from_fn(old.dimension, new.dimension, |row, column| {
        if row == column { 1.0 - 0.5 * row as f32 } else { 0.25 }
    });
    let bias = (0..old.dimension).map(|row| 0.125 * row as f32).collect();
    Bridge {
        old: old.clone(),
        new: new.clone(),
        map: Map::from_layers(input, vec![Dense { weight, bias, relu: false }]),
        share,
        length: 1.5,
        training: Training::default(),
    }
}

/// Makes a fusion of the distances of some items to a query.
fn fusion(old: &Space, new: &Space, weight: f64) -> Fusion {
    let vector = |space: &Space, text: &str| vector_of(&space.name, text);
    let pairs: Vec<(f64, f64)> = (0..ITEMS)
        .map(|number| {
            let (query, item) = (format!("query {}", number % 7), format!("source {number} version 0"));
            // The adapter makes of an old vector the vector with zeros behind.
            let mut adapted = vector(old, &item);
            adapted.resize(new.dimension, 0.0);
            let by_old = old.distance.between(&vector(old, &query), &vector(old, &item));
            (by_old, new.distance.between(&vector(new, &query), &adapted))
        })
        .collect();
    let fusion = Fusion::from_distances(weight, &pairs).unwrap();
    assert!(fusion.old.len() > 10, "a table with knots");
    Fusion { handicap: 0.0625, ..fusion }
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-5 * (1.0 + a.abs())
}

fn text(vector: &[f32]) -> String {
    format!("{vector:?}")
}

struct Place {
    address: String,
    /// Connection of the owner.
    owner: Client,
    /// Connections of roles that have what the documents grant: `app` sees all rows, `tenant` every fifth
    /// one.
    app: Client,
    tenant: Client,
    roles: [String; 2],
    store: PostgresStore,
    /// Spaces that queries are there for.
    spaces: Vec<Space>,
}

impl Place {
    fn new(server: &server::Server, old: &Space) -> Self {
        let address = server.database();
        let mut owner = server::client(&address);
        owner
            .batch_execute(&format!(
                "CREATE TABLE notes (id text PRIMARY KEY, body text, label text, embedding vector({}));",
                old.dimension
            ))
            .unwrap();
        let insert = owner.prepare("INSERT INTO notes VALUES ($1, $2, $3, $4::text::vector)").unwrap();
        for number in 0..ITEMS {
            let source = format!("source {number} version 0");
            let label = (number % 5).to_string();
            // Some items have no source, and stay adapted; some have no old vector.
            let body = (number % 11 != 4).then_some(&source);
            let vector = (number % 13 != 5).then(|| text(&vector_of(&old.name, &source)));
            owner.execute(&insert, &[&(1_000 + number).to_string(), &body, &label, &vector]).unwrap();
        }
        let options = TableOptions {
            table: "notes".into(),
            source: Some("body".into()),
            label: Some("label".into()),
            vector: Some("embedding".into()),
            ..TableOptions::default()
        };
        let name = address.rsplit("test_").next().unwrap().split('?').next().unwrap();
        let roles = ["app", "tenant"].map(|role| format!("{role}_{name}"));
        let store = PostgresStore::adopt(&address, &options, Some(&old.name), &|_, _| true).unwrap();
        let [app, tenant] = &roles;
        owner
            .batch_execute(&format!(
                "CREATE ROLE {app}; CREATE ROLE {tenant};
                 GRANT SELECT ON notes TO {app}, {tenant};
                 GRANT USAGE ON SCHEMA rehang TO {app}, {tenant};
                 GRANT SELECT ON ALL TABLES IN SCHEMA rehang TO {app}, {tenant};
                 ALTER DEFAULT PRIVILEGES IN SCHEMA rehang GRANT SELECT ON TABLES TO {app}, {tenant};
                 ALTER TABLE notes ENABLE ROW LEVEL SECURITY;
                 CREATE POLICY every_row ON notes TO {app} USING (true);
                 CREATE POLICY some_rows ON notes TO {tenant} USING (label = '0');"
            ))
            .unwrap();
        store.create_space(old, Provenance::Old).unwrap();
        let as_role = |role: &str| {
            let mut client = server::client(&address);
            client.batch_execute(&format!("SET ROLE {role}")).unwrap();
            client
        };
        let (app, tenant) = (as_role(&roles[0]), as_role(&roles[1]));
        Self { address, owner, app, tenant, roles, store, spaces: vec![old.clone()] }
    }

    fn sql(&mut self, sql: &str) {
        self.owner.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// Counts the bridges that the database keeps, and their rows.
    fn kept(&mut self) -> (i64, i64) {
        let sql = "SELECT (SELECT count(*) FROM rehang.bridge),
            (SELECT count(*) FROM rehang.matrix_row WHERE fingerprint NOT IN (SELECT fingerprint FROM rehang.map))";
        let row = self.owner.query_one(sql, &[]).unwrap();
        (row.get(0), row.get(1))
    }

    /// Returns what an examination says of the bridge.
    fn says_of_bridge(&self) -> Option<Finding> {
        let gallery = Location::Table(Box::new(TableLocation {
            url: Some(self.address.clone()),
            table: "notes".into(),
            source: Some("body".into()),
            label: Some("label".into()),
            vector: Some("embedding".into()),
            old: "old-model".into(),
            new: "new-model".into(),
            ..TableLocation::default()
        }));
        let findings = examine(&gallery, None, false).unwrap().findings;
        findings.into_iter().find(|finding| finding.code == FindingCode::Bridge)
    }

    fn backfill(&self, space: &str, items: usize) {
        let records = self.store.scan(&Scan::new(space, Select::Queued, items)).unwrap();
        let writes: Vec<VectorWrite> = records
            .iter()
            .map(|record| {
                VectorWrite::native(&record.item, vector_of(space, record.item.source.as_ref().unwrap()))
            })
            .collect();
        let outcomes = self.store.write_vectors(space, None, &writes).unwrap();
        assert!(outcomes.len() == items && outcomes.iter().all(|outcome| *outcome == WriteOutcome::Written));
    }

    /// Checks that SQL and the library say the same of every query, and which models SQL asks for.
    fn agrees(&mut self, models: &[&str], what: &str) {
        let all: Vec<(String, Matrix)> = self
            .spaces
            .iter()
            .map(|space| (space.name.clone(), queries(&space.name, space.dimension)))
            .collect();
        let row = self.app.query_one("SELECT rehang.models('notes'), rehang.serving('notes')", &[]).unwrap();
        let (asked, serving): (Vec<String>, String) = (row.get(0), row.get(1));
        assert_eq!(asked, models, "{what}");
        assert_eq!(Some(serving.as_str()), self.store.serving().unwrap().as_deref(), "{what}");
        let gallery = Gallery::new(Arc::new(self.store.clone()));
        let rows_of = |name: &str| all.iter().find(|(space, _)| space == name).map(|(_, rows)| rows).unwrap();
        let known: Vec<String> = all.iter().map(|(name, _)| name.clone()).collect();
        // Queries are given by the models that are asked for; and by all that there are, also those that are
        // asked for no more or not yet.
        for (k, names) in [(7, &asked), (7, &known), (2 * ITEMS, &asked)] {
            let given: Vec<(&str, &Matrix)> = names.iter().map(|name| (&**name, rows_of(name))).collect();
            // A filter, though it restricts nothing, is no matter of the function: the library puts both
            // spaces together itself.
            let everything = Filter { provenances: Provenance::ALL.to_vec(), ..Filter::default() };
            let find = |k: usize| gallery.search(&given, k, &everything).unwrap().found;
            let at_once = gallery.search(&given, k, &Filter::default()).unwrap().found;
            for (at, (at_once, expected)) in at_once.iter().zip(find(k)).enumerate() {
                let hits = |found: &[Found]| {
                    found
                        .iter()
                        .map(|hit| (hit.id.clone(), hit.distance, hit.provenance.name().to_owned()))
                        .collect::<Vec<_>>()
                };
                same(&hits(at_once), &expected, &format!("{what}: query {at} by {names:?}, k {k}, at once"));
                assert!(
                    at_once
                        .iter()
                        .zip(&expected)
                        .all(|(one, other)| one.key != other.key || one.revision == other.revision)
                );
            }
            for (at, (expected, mut seen)) in find(k).into_iter().zip(find(2 * ITEMS)).enumerate() {
                let what = format!("{what}: query {at} by {names:?}, k {k}");
                let queries: Vec<String> = names.iter().map(|name| text(rows_of(name).row(at))).collect();
                same(&search(&mut self.app, names, &queries, k), &expected, &what);
                // The tenant finds only rows that it sees.
                seen.retain(|hit| hit.id.parse::<usize>().unwrap() % 5 == 0);
                seen.truncate(k);
                same(&search(&mut self.tenant, names, &queries, k), &seen, &format!("{what}, some rows"));
            }
        }
        // A search by one query goes as it went before there were two.
        let recorded = Recorded::read(&self.store).unwrap();
        let handicap = recorded.map_or(0.0, |recorded| recorded.record.handicap_of(&serving));
        let plainly = self
            .store
            .search_handicapped(&serving, rows_of(&serving), 9, &Filter::default(), handicap)
            .unwrap();
        for (at, expected) in plainly.iter().enumerate() {
            let sql = "SELECT id, distance, provenance FROM rehang.search('notes', $1::text::vector, 9)";
            let rows = self.app.query(sql, &[&text(rows_of(&serving).row(at))]).unwrap();
            same(&read(&rows), expected, &format!("{what}: query {at} alone"));
        }
    }

    fn refusal(&mut self, models: &[&str], queries: &[&[f32]]) -> String {
        let models: Vec<String> = models.iter().map(ToString::to_string).collect();
        let queries: Vec<String> = queries.iter().map(|query| text(query)).collect();
        let sql = "SELECT * FROM rehang.search('notes', $1, $2::text[]::vector[], 3)";
        let error = self.app.query(sql, &[&models, &queries]).unwrap_err();
        error.as_db_error().unwrap().message().to_owned()
    }

    fn end(mut self) {
        self.store.clone().release(None).unwrap();
        let left: i64 = self
            .owner
            .query_one("SELECT count(*) FROM pg_namespace WHERE nspname = 'rehang'", &[])
            .unwrap()
            .get(0);
        assert_eq!(left, 0, "of {}", self.address);
        let roles = self.roles.join(", ");
        self.sql(&format!("DROP TABLE notes; DROP OWNED BY {roles}; DROP ROLE {roles}"));
    }
}

type Row = (String, f32, String);

fn read(rows: &[postgres::Row]) -> Vec<Row> {
    rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
}

fn search(client: &mut Client, models: &[String], queries: &[String], k: usize) -> Vec<Row> {
    let sql = "SELECT id, distance, provenance FROM rehang.search('notes', $1, $2::text[]::vector[], $3)";
    read(&client.query(sql, &[&models, &queries, &(k as i32)]).unwrap())
}

fn same(found: &[Row], expected: &[Found], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for ((id, distance, provenance), hit) in found.iter().zip(expected) {
        assert!(
            *id == hit.id
                && *provenance == hit.provenance.name()
                && close((*distance).into(), hit.distance.into()),
            "{what}: {id} {distance} {provenance} and {hit:?}"
        );
    }
}

fn world(old: Space, new: Space, weight: f64) -> World {
    let mut world = World::between(old, new);
    world.adapter.handicap = 0.125;
    world.adapter.fusion = Some(fusion(&world.old, &world.new, weight));
    world
}

/// Takes a table through two upgrades. The first leaves adapted vectors in what is the old space of the
/// second one, which lies in a table of ours.
fn goes_through_two_upgrades(server: &server::Server, distance: Distance) {
    let space = |name: &str, width| Space::new(name, width, distance, false);
    let [old, new, third] =
        [space("old-model", D_OLD), space("new-model", D_NEW), space("third-model", D_NEW)];
    let mut place = Place::new(server, &old);
    place.agrees(&["old-model"], "before");
    for (old, new, weight) in [(old, new.clone(), 0.4), (new, third, 0.7)] {
        place.spaces.push(new.clone());
        let world = world(old.clone(), new.clone(), weight);
        let setup = world.setup();
        let (by_old, by_new) = ([&*old.name], [&*new.name]);
        let both = [&*old.name, &*new.name];
        begin_sampling(&place.store, &old, &new, setup.order, &Unobserved).unwrap();
        place.agrees(&by_old, "pairs are drawn");
        let half = bridge(&old, &new, 0.375, InputScaling::UnitLength);
        set_bridge(&place.store, &old, &new, Some(&half)).unwrap();
        assert_eq!(place.kept(), (1, old.dimension as i64));
        place.agrees(&both, "half a bridge");
        if place.spaces.len() == 2 {
            // An operator deletes a part of the bridge, or all of it: searches by SQL go as they went before,
            // and an examination says it.
            for lost in ["DELETE FROM rehang.matrix_row WHERE at = 1", "DELETE FROM rehang.bridge"] {
                assert_eq!(place.says_of_bridge(), None);
                place.sql(lost);
                let finding = place.says_of_bridge().unwrap();
                assert_eq!((finding.severity, finding.next), (Severity::Problem, Some(Remedy::BridgeAgain)));
                set_bridge(&place.store, &old, &new, Some(&half)).unwrap();
                assert_eq!(place.kept(), (1, old.dimension as i64));
                place.agrees(&both, "half a bridge, kept anew");
            }
        }
        // A bridge is kept and not recorded, as where the process died in between.
        let whole = bridge(&old, &new, 1.0, InputScaling::AsIs);
        let fingerprint = rehang_files::bridge_file::fingerprint(&whole).unwrap();
        place.store.keep_bridge(Some((&fingerprint, &whole))).unwrap();
        assert_eq!(place.kept().0, 2);
        place.agrees(&both, "half a bridge, and another beside it");
        start(&place.store, &setup, &Unobserved).unwrap();
        set_bridge(&place.store, &old, &new, Some(&whole)).unwrap();
        assert_eq!(place.kept().0, 1, "the one before it is gone");
        place.agrees(&by_new, "a whole bridge");
        set_bridge(&place.store, &old, &new, None).unwrap();
        assert_eq!(place.kept(), (0, 0));
        place.agrees(&by_old, "the bridge is off");
        set_bridge(&place.store, &old, &new, Some(&half)).unwrap();
        switch(&place.store, &setup, Serving::Mixed, &Unobserved).unwrap();
        place.agrees(&by_new, "switched");
        switch(&place.store, &setup, Serving::Either, &Unobserved).unwrap();
        place.agrees(&both, "either way, by both");
        switch(&place.store, &setup, Serving::Fused, &Unobserved).unwrap();
        place.agrees(&both, "fused");
        place.backfill(&new.name, 90);
        // Three rows have come since: one without a vector, one with an old vector alone, one with a new one
        // alone.
        let by = |space: &Space, version: usize| {
            text(&vector_of(&space.name, &format!("source {version} version 1")))
        };
        place.sql(&format!(
            "INSERT INTO notes SELECT (2000 + 5 * n)::text, 'source ' || n || ' version 1', '0' FROM generate_series(1, 3) AS n;
             SELECT rehang.write('notes', '2015', '{}', '{}')",
            by(&new, 3),
            new.name
        ));
        place.sql(&if old.name == "old-model" {
            format!("UPDATE notes SET embedding = '{}' WHERE id = '2010'", by(&old, 2))
        } else {
            format!("SELECT rehang.write('notes', '2010', '{}', '{}')", by(&old, 2), old.name)
        });
        place.agrees(&both, "fused, some of it native");
        place.backfill(&new.name, 120);
        place.agrees(&both, "fused, half of it native");
        rollback(&place.store, &setup, &Unobserved).unwrap();
        assert_eq!(place.kept(), (0, 0));
        place.agrees(&by_old, "rolled back");
        switch(&place.store, &setup, Serving::Fused, &Unobserved).unwrap();
        place.agrees(&both, "fused again");
        finish(&place.store, &setup, true, &Unobserved).unwrap();
        place.agrees(&by_new, "finished");
        place.sql("DELETE FROM notes WHERE id LIKE '20%'");
    }
    place.end();
}

#[test]
fn sql_searches_as_the_library_does_through_two_upgrades() {
    let Some(server) = server::server() else { return };
    for distance in [Distance::L2, Distance::Cosine] {
        goes_through_two_upgrades(server, distance);
    }
}

#[test]
fn what_sql_is_not_given_is_named() {
    let Some(server) = server::server() else { return };
    let space = |name: &str, width| Space::new(name, width, Distance::L2, false);
    let (old, new) = (space("old-model", D_OLD), space("new-model", D_NEW));
    let mut place = Place::new(server, &old);
    let world = world(old.clone(), new.clone(), 0.5);
    let (by_old, by_new): (&[f32], &[f32]) = (&[1.0; D_OLD], &[1.0; D_NEW]);
    let is_missing = |said: &str, model: &str| {
        assert!(said.contains(&format!("takes a query by the model \"{model}\"")), "{said}");
        assert!(said.contains("rehang.models('public.notes')"), "{said}");
    };
    is_missing(&place.refusal(&["new-model"], &[by_new]), "old-model");
    start(&place.store, &world.setup(), &Unobserved).unwrap();
    set_bridge(&place.store, &old, &new, Some(&bridge(&old, &new, 0.5, InputScaling::AsIs))).unwrap();
    is_missing(&place.refusal(&["new-model"], &[by_new]), "old-model");
    let said = place.refusal(&["old-model", "new-model"], &[by_old, by_old]);
    assert!(said.contains("by the model \"new-model\" has 3 coordinates, and its vectors have 4"), "{said}");
    let said = place.refusal(&["old-model", "new-model"], &[by_new, by_new]);
    assert!(said.contains("by the model \"old-model\" has 4 coordinates, and its vectors have 3"), "{said}");
    switch(&place.store, &world.setup(), Serving::Fused, &Unobserved).unwrap();
    is_missing(&place.refusal(&["new-model"], &[by_new]), "old-model");
    is_missing(&place.refusal(&["old-model"], &[by_old]), "new-model");
    is_missing(&place.refusal(&[], &[]), "new-model");
    let said = place.refusal(&["old-model", "new-model"], &[by_new]);
    assert!(said.contains("2 models and 1 queries"), "{said}");
    let said = place.refusal(&["old-model", "new-model"], &[by_new, by_new]);
    assert!(said.contains("by the model \"old-model\" has 4"), "{said}");
    // A role that may search may not change what searches go by.
    for sql in [
        "DELETE FROM rehang.bridge",
        "UPDATE rehang.matrix_row SET bias = 1",
        "UPDATE rehang.document SET text = '{}'",
    ] {
        let error = place.app.batch_execute(sql).unwrap_err();
        assert!(
            error.to_string().contains("permission denied")
                || format!("{error:?}").contains("permission denied"),
            "{error:?}"
        );
    }
    let none = place.app.query_one("SELECT rehang.models('pg_class')", &[]).unwrap();
    assert_eq!(none.get::<_, Option<Vec<String>>>(0), None);
    place.end();
}

/// A row of the bridge's matrix may fit on no page of the server.
#[test]
fn a_bridge_may_be_wide() {
    let Some(server) = server::server() else { return };
    let (old, new) = (
        Space::new("old-model", D_OLD, Distance::Dot, false),
        Space::new("wide", 5_000, Distance::Dot, false),
    );
    let mut place = Place::new(server, &old);
    begin_sampling(&place.store, &old, &new, World::new().setup().order, &Unobserved).unwrap();
    let bridge = bridge(&old, &new, 0.75, InputScaling::UnitLength);
    set_bridge(&place.store, &old, &new, Some(&bridge)).unwrap();
    let by_old = queries("old-model", D_OLD);
    let by_new =
        Matrix::from_fn(by_old.rows(), 5_000, |row, column| ((row * 31 + column * 7) % 19) as f32 - 8.5);
    let brought = bridge.queries(Some(&by_old), &by_new).unwrap();
    let found = place.store.search("old-model", &brought, 9, &Filter::default()).unwrap();
    for (at, expected) in found.iter().enumerate() {
        let queries = [text(by_old.row(at)), text(by_new.row(at))];
        let names = ["old-model", "wide"].map(String::from);
        same(&search(&mut place.app, &names, &queries, 9), expected, &format!("query {at}"));
    }
    place.end();
}

#[test]
fn a_fused_distance_is_that_of_the_library() {
    let Some(server) = server::server() else { return };
    let space = |name: &str, width| Space::new(name, width, Distance::Cosine, false);
    let (old, new) = (space("old-model", D_OLD), space("new-model", D_NEW));
    let mut place = Place::new(server, &old);
    let two = vec![0.0_f32, 1.0];
    let line = Fusion { old: two.clone(), adapted: two.clone(), both: two, ..fusion(&old, &new, 0.25) };
    for fusion in [fusion(&old, &new, 0.0), fusion(&old, &new, 0.6), fusion(&old, &new, 1.0), line] {
        let wide =
            |numbers: &[f32]| -> Vec<f64> { numbers.iter().map(|&number| f64::from(number)).collect() };
        for at in -20..60 {
            let (by_old, by_new) = (f64::from(at) / 17.0, (at % 3 != 0).then(|| f64::from(40 - at) / 23.0));
            let sql = "SELECT rehang.fuse($1, $2, $3, $4, $5, $6, $7, $8)";
            let by_sql: f64 = place
                .app
                .query_one(
                    sql,
                    &[
                        &fusion.weight,
                        &f64::from(fusion.handicap),
                        &wide(&fusion.spreads),
                        &wide(&fusion.old),
                        &wide(&fusion.adapted),
                        &wide(&fusion.both),
                        &by_old,
                        &by_new,
                    ],
                )
                .unwrap()
                .get(0);
            let expected = fusion.distance(by_old, by_new);
            assert!((by_sql - expected).abs() <= 1e-12 * (1.0 + expected.abs()), "{by_sql} {expected}");
        }
    }
    place.end();
}

/// Returns maps that SQL applies, between spaces of a distance: one layer or two, or kernels around more
/// centres than a row of coefficients has, with each geometry.
fn maps(distance: Distance) -> Vec<Adapter> {
    let layer = |rows: usize, columns: usize, shift: f32| Dense {
        weight: Matrix::from_fn(rows, columns, |row, column| ((row * 7 + column * 5) % 9) as f32 / 4.0 - 1.0),
        bias: (0..rows).map(|row| shift * (row as f32 + 1.0)).collect(),
        relu: false,
    };
    let adapter_with = |input, mixer: Vec<Dense>, geometry: Geometry| {
        let is_normalised = matches!(geometry, Geometry::Sphere { .. });
        let old = Space::new("old-model", D_OLD, distance, false);
        let new = Space::new("new-model", D_NEW, distance, is_normalised);
        let map = Map::from_layers(input, mixer);
        Adapter { geometry, ..Adapter::new(old, new, map, Uncertainty::Constant { variance: 0.25 }) }
    };
    let kernels = |input, geometry| {
        let wave =
            |seed: f32| move |row: usize, column: usize| (row as f32 * 0.7 + column as f32 * seed).sin();
        let expansion = KernelExpansion {
            centres: Matrix::from_fn(1_000, D_OLD, wave(1.3)),
            coefficients: Matrix::from_fn(1_000, D_NEW, |row, column| wave(2.9)(row, column) / 64.0),
            gamma: 0.75,
        };
        let mean = Dense { weight: Matrix::zeros(D_NEW, D_OLD), ..layer(D_NEW, D_OLD, 0.25) };
        let mut adapter = adapter_with(input, vec![mean], geometry);
        adapter.map.kernel = Some(expansion);
        adapter
    };
    let fallback = vec![1.0, 0.0, 0.0, 0.0];
    let lengths = |scale: f32| [0.5, 1.0, 1.0, 2.0].map(|length: f32| length * scale).to_vec();
    vec![
        adapter_with(InputScaling::AsIs, vec![layer(D_NEW, D_OLD, 0.25)], Geometry::Raw),
        adapter_with(
            InputScaling::UnitLength,
            vec![layer(D_NEW, D_OLD, 0.0)],
            Geometry::Sphere { fallback: fallback.clone() },
        ),
        kernels(InputScaling::UnitLength, Geometry::Sphere { fallback }),
        kernels(InputScaling::AsIs, Geometry::Raw),
        adapter_with(
            InputScaling::AsIs,
            vec![layer(2, D_OLD, 0.0), layer(D_NEW, 2, -0.5)],
            Geometry::MatchedNorms { raw: lengths(1.0), native: lengths(3.0) },
        ),
    ]
}

fn applied(adapter: &Adapter, old: &[f32]) -> Vec<f32> {
    let old = Matrix::new(old.len(), old.to_vec()).unwrap();
    let old = Vectors::new(adapter.old.clone(), old, "an old vector").unwrap();
    adapter::apply(adapter, &old, None, &Progress::default()).unwrap().vectors.matrix().as_slice().to_vec()
}

fn world_of(adapter: &Adapter) -> World {
    World { old: adapter.old.clone(), new: adapter.new.clone(), adapter: adapter.clone() }
}

impl Place {
    fn new_vector(&self, id: usize) -> Option<VectorRecord> {
        let id = id.to_string();
        let key = self.store.get(&[&id]).unwrap()[0].as_ref().unwrap().key;
        self.store.vectors("new-model", &[key]).unwrap().pop().unwrap()
    }

    /// Checks that an item has the adapted vector of an old one, at the front of the queue.
    fn is_adapted(&self, id: usize, adapter: &Adapter, old: &[f32], what: &str) {
        let found = self.new_vector(id).unwrap_or_else(|| panic!("{what}: {id} lacks a vector"));
        let expected = applied(adapter, old);
        for (one, other) in found.vector.iter().zip(&expected) {
            assert!(
                (one - other).abs() <= 2e-6 * (1.0 + other.abs()),
                "{what}: {:?} {expected:?}",
                found.vector
            );
        }
        assert_eq!((found.vector.len(), found.provenance), (D_NEW, Provenance::Adapted), "{what}");
        assert_eq!(found.priority, Some(Priority::new(QueueBand::NewOrChanged, 0.0)), "{what}");
        assert_eq!(found.sigma2, Some(0.25), "{what}");
    }
}

#[test]
fn a_row_with_an_old_vector_alone_is_found_in_the_transaction_that_writes_it() {
    let Some(server) = server::server() else { return };
    for (distance, adapter) in [Distance::L2, Distance::Cosine]
        .into_iter()
        .flat_map(|distance| maps(distance).into_iter().map(move |adapter| (distance, adapter)))
    {
        let kind = if adapter.map.kernel.is_some() { "kernels" } else { "matrices" };
        let what = format!("{distance:?} {} {kind}", adapter.geometry.name());
        let mut place = Place::new(server, &adapter.old);
        let world = world_of(&adapter);
        let insert = |place: &mut Place, id: usize, vector: &[f32]| {
            place.sql(&format!("INSERT INTO notes VALUES ('{id}', 'source {id}', '0', '{}')", text(vector)));
        };
        start(&place.store, &world.setup(), &Unobserved).unwrap();
        let by_old = [0.5, -1.25, 2.0];
        insert(&mut place, 3000, &by_old);
        place.is_adapted(3000, &adapter, &by_old, &what);
        switch(&place.store, &world.setup(), Serving::Mixed, &Unobserved).unwrap();
        let expected = applied(&adapter, &[2.0, 0.25, 0.0]);
        let row = {
            let mut transaction = place.owner.transaction().unwrap();
            let written = "INSERT INTO notes VALUES ('3001', 'source 3001', '0', '[2, 0.25, 0]')";
            transaction.execute(written, &[]).unwrap();
            let nearest = "SELECT id, distance, provenance FROM rehang.search('notes', $1::text::vector, 1)";
            let row = read(&transaction.query(nearest, &[&text(&expected)]).unwrap());
            transaction.commit().unwrap();
            row
        };
        assert_eq!((&*row[0].0, &*row[0].2), ("3001", "adapted"), "{what}");
        // An update of the old vector adapts anew; one of the source alone leaves none; a native one stays
        // with its source.
        place.sql("UPDATE notes SET embedding = '[1, 1, 1]' WHERE id = '3000'");
        place.is_adapted(3000, &adapter, &[1.0, 1.0, 1.0], &what);
        place.sql("UPDATE notes SET body = 'other' WHERE id = '3000'");
        assert_eq!(place.new_vector(3000), None, "{what}");
        place.sql("UPDATE notes SET body = 'another', embedding = '[0, 1, 3]' WHERE id = '3000'");
        place.is_adapted(3000, &adapter, &[0.0, 1.0, 3.0], &what);
        place.sql("SELECT rehang.write('notes', '3000', '[0, 0, 1, 0]', 'new-model')");
        place.sql("UPDATE notes SET embedding = '[0, 1, 4]' WHERE id = '3000'");
        let native = place.new_vector(3000).unwrap();
        assert_eq!(
            (native.provenance, native.vector),
            (Provenance::Native, vec![0.0, 0.0, 1.0, 0.0]),
            "{what}"
        );
        // One row has a vector without a direction, and one has none.
        place.sql("INSERT INTO notes VALUES ('3002', 'x', '0', '[0, 0, 0]'), ('3003', 'x', '0', NULL)");
        if distance == Distance::Cosine {
            assert_eq!(place.new_vector(3002), None, "{what}");
        }
        assert_eq!(place.new_vector(3003), None, "{what}");
        // Another plan replaces the map. A rollback takes the map away, and a switch back to the new space
        // brings it back.
        let mut other = world.clone();
        other.adapter.map.mixer[0].bias[1] += 0.5;
        start(&place.store, &other.setup(), &Unobserved).unwrap();
        insert(&mut place, 3004, &by_old);
        place.is_adapted(3004, &other.adapter, &by_old, &what);
        rollback(&place.store, &other.setup(), &Unobserved).unwrap();
        insert(&mut place, 3005, &by_old);
        assert_eq!(place.new_vector(3005), None, "{what}");
        let left: i64 = place.owner.query_one("SELECT count(*) FROM rehang.matrix_row", &[]).unwrap().get(0);
        assert_eq!(left, 0, "{what}");
        switch(&place.store, &other.setup(), Serving::Mixed, &Unobserved).unwrap();
        place.is_adapted(3005, &other.adapter, &by_old, &what);
        insert(&mut place, 3006, &by_old);
        place.is_adapted(3006, &other.adapter, &by_old, &what);
        // After the old space is gone, its column still gets old vectors.
        finish(&place.store, &other.setup(), true, &Unobserved).unwrap();
        insert(&mut place, 3007, &by_old);
        place.is_adapted(3007, &other.adapter, &by_old, &what);
        place.sql("UPDATE notes SET body = 'other' WHERE id = '3007'");
        assert_eq!(place.new_vector(3007), None, "{what}");
        place.end();
    }
}

/// A hindrance that keeps us from adapting keeps nobody from writing.
#[test]
fn a_row_that_cannot_be_adapted_is_written_and_waits() {
    let Some(server) = server::server() else { return };
    let adapter = maps(Distance::L2).remove(0);
    let mut place = Place::new(server, &adapter.old);
    let world = world_of(&adapter);
    let started = start(&place.store, &world.setup(), &Unobserved).unwrap();
    assert!(
        !started.findings.iter().any(|finding| finding.code == FindingCode::AdaptedLater),
        "{:?}",
        started.findings
    );
    assert_eq!(place.store.remarks().unwrap(), Vec::<String>::new());
    let hindrances = [
        ("DELETE FROM rehang.matrix_row WHERE at = 2", None),
        ("UPDATE rehang.matrix_row SET weight = '[1]' WHERE at = 1", None),
        ("UPDATE rehang.matrix_row SET bias = 'Infinity'", None),
        (
            "ALTER TABLE rehang.vector_2 ADD CONSTRAINT full_up CHECK (item < 0) NOT VALID",
            Some("ALTER TABLE rehang.vector_2 DROP CONSTRAINT full_up"),
        ),
        (
            "ALTER FUNCTION rehang.adapted RENAME TO gone",
            Some("ALTER FUNCTION rehang.gone RENAME TO adapted"),
        ),
    ];
    for ((hinder, mend), id) in hindrances.into_iter().zip(4000..) {
        place.sql(hinder);
        place.sql(&format!("INSERT INTO notes VALUES ('{id}', 'source', '0', '[1, 2, 3]')"));
        assert_eq!(place.new_vector(id), None, "{hinder}");
        place.sql(mend.unwrap_or("DELETE FROM rehang.matrix_row"));
        switch(&place.store, &world.setup(), Serving::Mixed, &Unobserved).unwrap();
        place.sql(&format!("INSERT INTO notes VALUES ('{}', 'source', '0', '[1, 2, 3]')", id + 100));
        place.is_adapted(id + 100, &world.adapter, &[1.0, 2.0, 3.0], hinder);
    }
    // A map of another kind is not kept, and that is said.
    let mut other = world.clone();
    other.adapter.map.mixer[0].relu = true;
    let started = start(&place.store, &other.setup(), &Unobserved).unwrap();
    assert!(
        started.findings.iter().any(|finding| finding.code == FindingCode::AdaptedLater),
        "{:?}",
        started.findings
    );
    assert!(place.store.remarks().unwrap().iter().any(|said| said.contains("does not adapt")));
    place.sql("INSERT INTO notes VALUES ('4999', 'source', '0', '[1, 2, 3]')");
    assert_eq!(place.new_vector(4999), None);
    place.end();
}

/// A partition with more items than a page has was dropped, and no adoption has taken that in. A start maps
/// the items behind it, and an export writes them.
#[test]
fn what_went_with_a_partition_ends_neither_a_start_nor_an_export() {
    let Some(server) = server::server() else { return };
    let (address, world) = (server.database(), World::new());
    let mut owner = server::client(&address);
    owner
        .batch_execute(
            "CREATE TABLE notes (month int, id int, body text, embedding vector(3), PRIMARY KEY (month, id)) PARTITION BY LIST (month);
             CREATE TABLE may PARTITION OF notes FOR VALUES IN (5); CREATE TABLE june PARTITION OF notes FOR VALUES IN (6);
             INSERT INTO notes SELECT 5 + n / 2100, n, 'text ' || n, format('[%s,1,1]', n)::vector FROM generate_series(1, 2130) AS n",
        )
        .unwrap();
    let options = TableOptions {
        table: "notes".into(),
        source: Some("body".into()),
        vector: Some("embedding".into()),
        ..TableOptions::default()
    };
    let store = PostgresStore::adopt(&address, &options, Some(&world.old.name), &|_, _| true).unwrap();
    store.create_space(&world.old, Provenance::Old).unwrap();
    owner.batch_execute("DROP TABLE may").unwrap();
    let started = start(&store, &world.setup(), &Unobserved).unwrap();
    assert_eq!(started.adapted, 31);
    let folder = tempfile::tempdir().unwrap();
    let ids = folder.path().join("ids.txt");
    let files = Export {
        space: world.new.name.clone(),
        vectors: folder.path().join("vectors.npy"),
        ids: Some(ids.clone()),
        provenance: None,
    };
    assert_eq!(export(&store, &files, &Unobserved).unwrap().vectors, 31);
    let of_june: Vec<String> = (2100..=2130).map(|id| format!("[\"6\", \"{id}\"]")).collect();
    assert_eq!(fs_err::read_to_string(ids).unwrap().lines().collect::<Vec<_>>(), of_june);
}

#[test]
fn a_search_by_both_models_meets_a_switch_and_a_rollback() {
    let Some(server) = server::server() else { return };
    let world = World::new();
    let mut place = Place::new(server, &world.old);
    let mut client = server::client(&place.address);
    place.spaces.push(world.new.clone());
    start(&place.store, &world.setup(), &Unobserved).unwrap();
    let (done, searched) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let searching = scope.spawn(|| {
            let names = ["old-model", "new-model"].map(String::from);
            let vectors = [old_model("a query"), new_model("a query")].map(|vector| text(&vector));
            while !done.load(Ordering::Relaxed) {
                assert_eq!(search(&mut client, &names, &vectors, 3).len(), 3);
                searched.fetch_add(1, Ordering::Relaxed);
            }
        });
        for round in 0..30 {
            let serving = if round % 2 == 0 { Serving::Mixed } else { Serving::Fused };
            let mut fused = world.clone();
            fused.adapter.fusion = Some(fusion(&world.old, &world.new, 0.5));
            let setup = fused.setup();
            if round == 0 {
                start(&place.store, &setup, &Unobserved).unwrap();
            }
            switch(&place.store, &setup, serving, &Unobserved).unwrap();
            rollback(&place.store, &setup, &Unobserved).unwrap();
            // Each round has searches beside it.
            let before = searched.load(Ordering::Relaxed);
            while searched.load(Ordering::Relaxed) == before && !searching.is_finished() {
                std::thread::yield_now();
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    place.end();
}
