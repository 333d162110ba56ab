//! Folders that lie in an object store: S3 and services that speak its language, Google Cloud Storage, Azure.
//!
//! [`ObjectFolder`] is a [`Folder`] of [`rehang_files`]. An object is fetched whole into a temporary folder
//! before it is read. It is made there before it is written, and then written whole. So the disk holds one
//! object per call, and memory some parts of it. Credentials, region and endpoint come from the environment,
//! as `docs/reference/object-stores.md` lists; they are never printed. Requests that fail for a while are
//! tried again by the crate `object_store`.

mod address;
mod connector;
mod environment;
mod refusal;

use std::io::{Read, Seek, SeekFrom, Write};
use std::iter::once;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path as Key;
use object_store::{GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt, PutResult, WriteMultipart};
use rehang_core::{Error, Result};
use rehang_files::VectorSource;
use rehang_files::folders::{Fetched, Folder, Stamp, is_partition};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use address::Address;
use refusal::refusal;

/// Bytes that one request carries: few enough for a slow line to bring them before the request is given up.
const PART_BYTES: u64 = 16 << 20;
/// Number of parts that are on the way at once.
const PARTS_AT_ONCE: usize = 4;
/// Most parts that an upload may have. S3 takes 10,000.
const PARTS_MAX: u64 = 9_000;

/// Bytes at the end of a Parquet file that most often hold its whole description.
const TAIL_BYTES: u64 = 1 << 18;
/// Length in bytes up to which a Parquet file is fetched whole, in one request, whatever is read of it.
const WHOLE_BYTES: u64 = 1 << 20;

/// A folder in an object store: the objects whose names begin with a prefix and a slash. The empty name
/// stands for the object that has the prefix as its name.
///
/// ```
/// use rehang_files::folders::Folder;
/// use rehang_objects::ObjectFolder;
///
/// let folder = ObjectFolder::open("s3://bucket/old/")?;
/// assert_eq!(folder.address().to_str(), Some("s3://bucket/old"));
/// let error = ObjectFolder::open("ftp://host/old").unwrap_err().to_string();
/// assert!(error.contains("s3://BUCKET/PREFIX"), "{error}");
/// # Ok::<(), rehang_core::Error>(())
/// ```
#[derive(Debug)]
pub struct ObjectFolder {
    address: Address,
    prefix: Key,
    store: Arc<dyn ObjectStore>,
    runtime: Runtime,
}

impl ObjectFolder {
    /// Opens the folder at `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX` or
    /// `abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX`. Nothing is asked of the store yet.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidOption`](rehang_core::ErrorKind::InvalidOption) for another address, and for settings
    /// of the environment that cannot be read.
    pub fn open(address: &str) -> Result<Self> {
        Self::from_store(address, environment::open(&address.parse()?)?)
    }

    /// Returns the folder at an address in a store that was opened elsewhere: one with settings of its own,
    /// or one in memory.
    ///
    /// # Errors
    ///
    /// As [`ObjectFolder::open`].
    pub fn from_store(address: &str, store: Arc<dyn ObjectStore>) -> Result<Self> {
        let address: Address = address.parse()?;
        let prefix = Key::parse(&address.prefix).map_err(|error| address.refused(error))?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::io("open", address.to_string(), &error))?;
        Ok(Self { address, prefix, store, runtime })
    }

    /// Key of the object that has a name in this folder.
    fn key(&self, name: &Path) -> Result<Key> {
        let parts = name.components().map(|part| part.as_os_str().to_string_lossy());
        let parts: Vec<_> =
            once(self.prefix.as_ref().into()).chain(parts).filter(|part| !part.is_empty()).collect();
        Key::parse(parts.join("/")).map_err(|error| Error::corrupt(self.whole_address(name), error))
    }

    /// The whole address of an object, for people.
    fn whole_address(&self, name: &Path) -> String {
        self.address().join(name).display().to_string().trim_end_matches('/').to_owned()
    }

    fn refused(&self, name: &Path) -> impl Fn(object_store::Error) -> Error + '_ {
        let what = self.whole_address(name);
        move |error| refusal(&what, &self.address, &error)
    }

    fn head(&self, name: &Path) -> Result<Option<ObjectMeta>> {
        let key = self.key(name)?;
        match self.runtime.block_on(self.store.head(&key)) {
            Ok(meta) => Ok(Some(meta)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.refused(name)(error)),
        }
    }

    /// Copies ranges of an object to the same places of a file. All ranges come from one state of the object.
    fn fetch_ranges(
        &self,
        name: &Path,
        meta: &ObjectMeta,
        ranges: impl IntoIterator<Item = Range<u64>>,
        file: &mut fs_err::File,
    ) -> Result<()> {
        let parts = ranges.into_iter().flat_map(|range| {
            range.clone().step_by(PART_BYTES as usize).map(move |from| from..range.end.min(from + PART_BYTES))
        });
        let fetched = stream::iter(parts).map(|part| async move {
            let options = GetOptions {
                range: Some(part.clone().into()),
                if_match: meta.e_tag.clone(),
                ..GetOptions::default()
            };
            let bytes = self.store.get_opts(&meta.location, options).await?.bytes().await?;
            Ok((part, bytes))
        });
        self.runtime.block_on(async {
            let mut fetched = fetched.buffered(PARTS_AT_ONCE);
            while let Some((part, bytes)) = fetched.try_next().await.map_err(self.refused(name))? {
                if bytes.len() as u64 != part.end - part.start {
                    let detail =
                        format!("{} bytes came where {} were asked for", bytes.len(), part.end - part.start);
                    return Err(Error::corrupt(self.whole_address(name), detail));
                }
                file.seek(SeekFrom::Start(part.start))
                    .and_then(|_| file.write_all(&bytes))
                    .map_err(|error| no_room(file.path(), &error))?;
            }
            Ok(())
        })
    }

    /// Sends a file; the object appears when all of it has arrived.
    fn send(&self, name: &Path, path: &Path) -> Result<Stamp> {
        let key = self.key(name)?;
        let refused = self.refused(name);
        let unread = |error: std::io::Error| Error::io("read", path, &error);
        let mut file = fs_err::File::open(path).map_err(unread)?;
        let bytes = file.metadata().map_err(unread)?.len();
        let result = self.runtime.block_on(async {
            if bytes <= PART_BYTES {
                let mut content = Vec::with_capacity(bytes as usize);
                file.read_to_end(&mut content).map_err(unread)?;
                return self.store.put(&key, content.into()).await.map_err(&refused);
            }
            let part = PART_BYTES.max(bytes.div_ceil(PARTS_MAX)) as usize;
            let upload = self.store.put_multipart(&key).await.map_err(&refused)?;
            let mut writer = WriteMultipart::new_with_chunk_size(upload, part);
            let mut buffer = vec![0; 1 << 20];
            let sent = loop {
                match file.read(&mut buffer) {
                    Ok(0) => break Ok(()),
                    Ok(count) => writer.write(&buffer[..count]),
                    Err(error) => break Err(unread(error)),
                }
                if let Err(error) = writer.wait_for_capacity(PARTS_AT_ONCE).await {
                    break Err(refused(error));
                }
            };
            match sent {
                Ok(()) => writer.finish().await.map_err(&refused),
                Err(error) => {
                    // An upload that cannot be aborted now stays unfinished, and no reader sees it.
                    drop(writer.abort().await);
                    Err(error)
                }
            }
        })?;
        match result {
            PutResult { e_tag: Some(etag), .. } => Ok(Stamp { bytes, written: None, etag: Some(etag) }),
            // A store without versions knows when an object was written.
            PutResult { e_tag: None, .. } => self.stamp(name)?.ok_or_else(|| gone(&self.whole_address(name))),
        }
    }
}

impl Folder for ObjectFolder {
    fn address(&self) -> PathBuf {
        self.address.to_string().into()
    }

    fn list(&self) -> Result<Vec<PathBuf>> {
        let prefix = (!self.prefix.is_root()).then_some(&self.prefix);
        let names = self.store.list(prefix).map_ok(|meta| {
            let parts = meta.location.prefix_match(&self.prefix).into_iter().flatten();
            parts.map(|part| part.as_ref().to_owned()).collect::<PathBuf>()
        });
        let names = names.try_filter(|name| std::future::ready(is_partition(name)));
        let mut names: Vec<PathBuf> =
            self.runtime.block_on(names.try_collect()).map_err(self.refused(Path::new("")))?;
        names.sort();
        Ok(names)
    }

    fn stamp(&self, name: &Path) -> Result<Option<Stamp>> {
        Ok(self.head(name)?.as_ref().map(stamp))
    }

    fn fetch(&self, name: &Path) -> Result<Fetched> {
        let meta = self.head(name)?.ok_or_else(|| gone(&self.whole_address(name)))?;
        let (folder, path) = temporary(meta.location.as_ref())?;
        let mut file = fs_err::File::create(&path).map_err(|error| no_room(&path, &error))?;
        self.fetch_ranges(name, &meta, once(0..meta.size), &mut file)?;
        Ok(Fetched::new(path, stamp(&meta), folder))
    }

    fn fetch_f32_column(&self, name: &Path, column: Option<&str>) -> Result<Fetched> {
        let is_parquet =
            |extension: &str| ["parquet", "pq"].contains(&extension.to_ascii_lowercase().as_str());
        let extension = name.extension().and_then(|extension| extension.to_str());
        let meta = self.head(name)?.ok_or_else(|| gone(&self.whole_address(name)))?;
        if meta.size <= WHOLE_BYTES || !extension.is_some_and(is_parquet) {
            return self.fetch(name);
        }
        let (folder, path) = temporary(meta.location.as_ref())?;
        let unwritten = |error: std::io::Error| no_room(&path, &error);
        let mut file =
            fs_err::File::options().read(true).write(true).create_new(true).open(&path).map_err(unwritten)?;
        file.set_len(meta.size).map_err(unwritten)?;
        // The length of the description stands in front of the last four bytes.
        let last = |bytes: u64| once(meta.size.saturating_sub(bytes)..meta.size);
        self.fetch_ranges(name, &meta, last(TAIL_BYTES), &mut file)?;
        let mut end = [0; 8];
        file.seek(SeekFrom::End(-8)).and_then(|_| file.read_exact(&mut end)).map_err(unwritten)?;
        let described = u64::from(u32::from_le_bytes([end[0], end[1], end[2], end[3]])) + 8;
        if described > TAIL_BYTES && described <= meta.size {
            self.fetch_ranges(name, &meta, last(described), &mut file)?;
        }
        let fetched = Fetched::new(path, stamp(&meta), folder);
        let mut source = VectorSource::fetched(self.address().join(name), fetched.clone());
        source.column = column.map(Into::into);
        let ranges = rehang_files::f32_column_ranges(&source)?;
        let ranges = ranges.into_iter().map(|range| range.start.min(meta.size)..range.end.min(meta.size));
        self.fetch_ranges(name, &meta, ranges, &mut file)?;
        Ok(fetched)
    }

    fn put(&self, name: &Path, make: &mut dyn FnMut(&Path) -> Result<()>) -> Result<Stamp> {
        let (_folder, path) = temporary(self.key(name)?.as_ref())?;
        make(&path)?;
        self.send(name, &path)
    }

    fn read(&self, name: &Path) -> Result<Option<Vec<u8>>> {
        let key = self.key(name)?;
        let bytes = self.runtime.block_on(async { self.store.get(&key).await?.bytes().await });
        match bytes {
            Ok(bytes) => Ok(Some(bytes.into())),
            Err(error) => match self.refused(name)(error) {
                error if refusal::is_absence(&error) => Ok(None),
                error => Err(error),
            },
        }
    }

    fn write(&self, name: &Path, bytes: &[u8]) -> Result<()> {
        let key = self.key(name)?;
        let put = self.store.put(&key, bytes.to_vec().into());
        self.runtime.block_on(put).map(drop).map_err(self.refused(name))
    }
}

/// Stamp of an object: its version, or its second of writing where the store gives it no version.
fn stamp(meta: &ObjectMeta) -> Stamp {
    let written = meta.e_tag.is_none().then(|| meta.last_modified.timestamp().unsigned_abs() * 1_000_000_000);
    Stamp { bytes: meta.size, written, etag: meta.e_tag.clone() }
}

/// Makes a temporary folder, and the path in it for the file of a key. The file's name tells the format and,
/// in messages, which object it is.
fn temporary(key: &str) -> Result<(TempDir, PathBuf)> {
    let place = std::env::temp_dir();
    let refused = |error: std::io::Error| Error::io("create a folder in", &place, &error);
    let folder = tempfile::Builder::new().prefix("rehang-").tempdir().map_err(refused)?;
    // On Windows `:` and `\` would lead out of the folder.
    let path = folder.path().join(key.replace([':', '\\'], "_"));
    fs_err::create_dir_all(path.parent().unwrap_or(folder.path())).map_err(refused)?;
    Ok((folder, path))
}

fn no_room(path: &Path, error: &std::io::Error) -> Error {
    Error::io("write", path, error).context("fetching into the temporary folder (TMPDIR names another one)")
}

fn gone(what: &str) -> Error {
    Error::refused("read", what, "there is no such object")
}
