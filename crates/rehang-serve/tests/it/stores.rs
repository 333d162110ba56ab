//! The whole upgrade by requests alone, of galleries that lie on servers. Where there is no server, a line
//! says so.

use std::path::Path;

use rehang_core::{Distance, Space};
use rehang_upgrade::{CollectionLocation, Configuration, Location, TableLocation, Unobserved, Upgrade};
use serde_json::{Value, json};

use crate::{ITEMS, NEW, OLD, label, postgres_server, qdrant_server, table, vector, whole_upgrade};

/// Makes a gallery of what an application has, and takes it through its upgrade.
fn adopt_and_upgrade(folder: &Path, location: &Location, letter: &str) {
    let space = |name: &str, width| Space::new(name, width, Distance::L2, false);
    let configured = || {
        let configuration = Configuration::new(location.clone(), space("old", OLD), space("new", NEW));
        configuration.unwrap().with_encoder(table(folder, ITEMS))
    };
    let adopted = location.adopt(&configured().old, &Unobserved).unwrap();
    assert_eq!((adopted.items, adopted.vectors), (ITEMS as u64, ITEMS as u64));
    whole_upgrade(&|| Upgrade::new(configured()).unwrap(), letter);
}

#[test]
fn a_whole_upgrade_of_a_table_by_requests_alone() {
    let Some(server) = postgres_server::server() else { return };
    let (folder, address) = (tempfile::tempdir().unwrap(), server.database());
    let mut client = postgres_server::client(&address);
    let columns = format!("id text PRIMARY KEY, body text, label text, embedding vector({OLD})");
    client.batch_execute(&format!("CREATE TABLE notes ({columns})")).unwrap();
    let insert = client.prepare("INSERT INTO notes VALUES ($1, $2, $3, $4::text::vector)").unwrap();
    for item in 0..ITEMS {
        let (id, body, old) = (format!("i{item}"), item.to_string(), format!("{:?}", vector(item, OLD)));
        client.execute(&insert, &[&id, &body, &label(item), &old]).unwrap();
    }
    let location = Location::Table(Box::new(TableLocation {
        url: Some(address),
        table: "notes".into(),
        source: Some("body".into()),
        label: Some("label".into()),
        vector: Some("embedding".into()),
        old: "old".into(),
        new: "new".into(),
        ..TableLocation::default()
    }));
    adopt_and_upgrade(folder.path(), &location, "i");
}

#[test]
fn a_whole_upgrade_of_a_collection_by_requests_alone() {
    let Some(server) = qdrant_server::server() else { return };
    let (folder, collection) = (tempfile::tempdir().unwrap(), qdrant_server::fresh("serve"));
    qdrant_server::collection(&server.url, &collection, OLD);
    let point = |item: usize| {
        let payload = json!({ "body": item.to_string(), "label": label(item) });
        json!({ "id": item, "vector": { "embedding": vector(item, OLD) }, "payload": payload })
    };
    let points: Vec<Value> = (0..ITEMS).map(point).collect();
    let path = format!("/collections/{collection}/points?wait=true");
    qdrant_server::send(&server.url, "PUT", &path, &json!({ "points": points }));
    let location = Location::Collection(Box::new(CollectionLocation {
        url: Some(server.url.clone()),
        collection,
        source: Some("body".into()),
        label: Some("label".into()),
        vector: Some("embedding".into()),
        old: "old".into(),
        ..CollectionLocation::default()
    }));
    adopt_and_upgrade(folder.path(), &location, "");
}
