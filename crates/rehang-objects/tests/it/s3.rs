//! Folders of a store that speaks S3 over the network pass the tests of all folders.

use std::sync::Arc;

use object_store::path::Path as Key;
use object_store::{ObjectStore, ObjectStoreExt};
use rehang_files::folders::Folder;
use rehang_objects::ObjectFolder;

use crate::{folders, server};

struct Bucket(Arc<dyn ObjectStore>);

impl folders::Place for Bucket {
    fn folder(&self, name: &str) -> Arc<dyn Folder> {
        Arc::new(ObjectFolder::from_store(&format!("s3://bucket/{name}"), self.0.clone()).unwrap())
    }

    fn remove(&self, folder: &str, name: &str) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let key = Key::parse(format!("{folder}/{name}")).unwrap();
        runtime.block_on(self.0.delete(&key)).unwrap();
    }
}

#[test]
fn folders_of_s3_do_what_folders_must() {
    if let Some(server) = server::server() {
        folders::run(&Bucket(server.store()));
    }
}
