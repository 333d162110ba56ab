//! Folders of an object store in memory pass the tests of all folders.

use std::path::Path;
use std::sync::Arc;

use object_store::memory::InMemory;
use object_store::path::Path as Key;
use object_store::{ObjectStore, ObjectStoreExt};
use proptest::prelude::*;
use rehang_files::folders::{Folder, is_partition};
use rehang_files::{Columns, IdKind, Ids, VectorSource, read_f32_column, stream};
use rehang_objects::ObjectFolder;

use crate::folders;

struct Memory(Arc<dyn ObjectStore>);

impl folders::Place for Memory {
    fn folder(&self, name: &str) -> Arc<dyn Folder> {
        Arc::new(ObjectFolder::from_store(&format!("s3://bucket/{name}"), self.0.clone()).unwrap())
    }

    fn remove(&self, folder: &str, name: &str) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let key = Key::parse(format!("{folder}/{name}")).unwrap();
        runtime.block_on(self.0.delete(&key)).unwrap();
    }
}

#[test]
fn folders_of_a_store_do_what_folders_must() {
    folders::run(&Memory(Arc::new(InMemory::new())));
}

#[test]
fn the_empty_name_is_the_object_itself() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let folder = ObjectFolder::from_store("s3://bucket/old/", store.clone()).unwrap();
    folder.write(Path::new("part.npy"), b"bytes").unwrap();
    let object = ObjectFolder::from_store("s3://bucket/old/part.npy", store).unwrap();
    let fetched = object.fetch(Path::new("")).unwrap();
    assert_eq!(fs_err::read(fetched.path()).unwrap(), b"bytes");
    assert_eq!(fetched.path().file_name().unwrap(), "part.npy");
    let path = fetched.path().to_owned();
    drop(fetched);
    assert!(!path.exists(), "what was fetched is removed when nobody reads it any more");
    assert!(folder.stamp(Path::new("")).unwrap().is_none());
}

#[test]
fn of_a_large_parquet_partition_only_the_column_is_fetched() {
    let folder = folders::Place::folder(&Memory(Arc::new(InMemory::new())), "f");
    let (name, rows) = (Path::new("a.parquet"), 70_000);
    let sigma: Vec<f32> = (0..rows).map(|row| (row as f32 * 0.7).sin()).collect();
    let vectors: Vec<f32> = (0..rows * 16).map(|at| (at as f32 * 1.3).sin()).collect();
    let columns = Columns { width: 16, ids: Some(IdKind::Integer), sigma2: true };
    folder
        .put(name, &mut |path| {
            let mut writer = stream::create(path, columns)?;
            for (vectors, sigma) in vectors.chunks(16 * 1000).zip(sigma.chunks(1000)) {
                writer.write(vectors, Some(&Ids::Integers((0..1000).collect())), Some(sigma))?;
            }
            writer.commit().map(drop)
        })
        .unwrap();
    for column in [None, Some("sigma2")] {
        let fetched = folder.fetch_f32_column(name, column).unwrap();
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            let metadata = fs_err::metadata(fetched.path()).unwrap();
            assert!(metadata.len() > 4 << 20 && metadata.blocks() * 512 < metadata.len() / 4, "{metadata:?}");
        }
        let mut source = VectorSource::fetched("f/a.parquet", fetched);
        source.column = column.map(Into::into);
        assert!(read_f32_column(&source).unwrap() == sigma);
    }
    let error = folder.fetch_f32_column(name, Some("none")).unwrap_err().to_string();
    assert!(error.contains("s3://bucket/f/a.parquet") && error.contains("sigma2"), "{error}");
    // A file that ends unlike any Parquet file is an error of its reader, whatever length it claims.
    for end in [[0, 0, 0, 0], [0xff, 0xff, 0xff, 0x7f], [9, 0, 0, 0]] {
        let mut bytes = vec![7; 2 << 20];
        let at = bytes.len() - 8;
        bytes[at..at + 4].copy_from_slice(&end);
        bytes[at + 4..].copy_from_slice(b"PAR1");
        folder.write(name, &bytes).unwrap();
        let error = folder.fetch_f32_column(name, None).unwrap_err().to_string();
        assert!(error.contains("s3://bucket/f/a.parquet"), "{error}");
    }
}

#[test]
fn addresses_that_cannot_be_are_refused_and_passwords_not_said() {
    for address in
        ["", "s3:/bucket", "s3://", "s3:///a", "ftp://host/a", "https://host/a", "s3://key:secret@bucket/a"]
    {
        let error = ObjectFolder::open(address).unwrap_err().to_string();
        assert!(error.contains("s3://BUCKET/PREFIX") && !error.contains("secret"), "{address}: {error}");
    }
    for (address, said) in [
        ("s3a://bucket//old//", "s3://bucket/old"),
        ("az://container", "az://container"),
        (
            "abfs://container@account.dfs.core.windows.net/a/b",
            "abfss://container@account.dfs.core.windows.net/a/b",
        ),
    ] {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        assert_eq!(ObjectFolder::from_store(address, store).unwrap().address(), Path::new(said));
    }
    assert!(ObjectFolder::from_store("s3://bucket/a/../b", Arc::new(InMemory::new())).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Folders of both kinds list the same names in the same order, whatever the names are.
    #[test]
    fn lists_are_those_of_a_folder_of_this_machine(
        names in proptest::collection::btree_set("([a-c_.=é %-]{1,3}/){0,2}[a-c_. %#-]{1,3}\\.(npy|PQ|txt)", 1..12)
    ) {
        let here = folders::Here(tempfile::tempdir().unwrap());
        let memory = Memory(Arc::new(InMemory::new()));
        let [here, there] = [folders::Place::folder(&here, "f"), folders::Place::folder(&memory, "f")];
        for name in names.iter().filter(|name| !name.split('/').any(|part| part == "." || part == "..")) {
            here.write(Path::new(name), b"").unwrap();
            there.write(Path::new(name), b"").unwrap();
        }
        let listed = here.list().unwrap_or_default();
        prop_assert!(listed.iter().all(|name| is_partition(name)));
        prop_assert_eq!(listed, there.list().unwrap());
    }
}
