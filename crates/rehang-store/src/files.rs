//! Files that lie in a gallery beside its items: what an upgrade made, for every process on every machine.
//!
//! One document of the gallery is the directory of the files. A file's bytes lie in
//! [chunks](Ledger::set_chunk) that no other write of any file has. The directory names the file once all of
//! its chunks are there. So a reader finds a file as it was written or as it was before, and it is known what
//! a dead writer left.

use std::collections::BTreeMap;
use std::mem;

use rehang_core::{Error, Result};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use crate::Ledger;

/// Name of the document that is the directory.
const DIRECTORY: &str = "files";
/// Bytes of a chunk: in base64, a request of less than the smallest size that a store has to be content with.
const CHUNK: usize = 180 * 1024;
/// Times that a change of the directory, or a read, is tried anew after other processes were faster.
const TRIES: usize = 100;

/// Entry of the directory: one file that is whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    /// Number of the write that made it.
    write: u64,
    length: usize,
    hash: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Directory {
    files: BTreeMap<String, Entry>,
    /// Lengths in bytes of files that are being written, or were when their process died, by the number of
    /// their write.
    begun: BTreeMap<u64, usize>,
    /// The number of the next write.
    next: u64,
}

/// The files of a gallery.
#[derive(Clone, Copy)]
pub struct Files<'a> {
    ledger: &'a dyn Ledger,
}

impl<'a> Files<'a> {
    /// The files of this ledger's gallery.
    pub fn in_ledger(ledger: &'a dyn Ledger) -> Self {
        Self { ledger }
    }

    /// Whether any file was ever written to this gallery: a gallery of an earlier version has no directory.
    ///
    /// # Errors
    ///
    /// Those of the ledger.
    pub fn are_kept(&self) -> Result<bool> {
        Ok(self.ledger.document(DIRECTORY)?.is_some())
    }

    /// The names of all files, in order.
    ///
    /// # Errors
    ///
    /// Those of the ledger; corrupt where the directory cannot be read.
    pub fn names(&self) -> Result<Vec<String>> {
        Ok(self.directory()?.1.files.into_keys().collect())
    }

    /// Whether there is a file of this name.
    ///
    /// # Errors
    ///
    /// As [`Files::names`].
    pub fn has(&self, name: &str) -> Result<bool> {
        Ok(self.directory()?.1.files.contains_key(name))
    }

    /// Reads a file's bytes; `None` where there is no file of this name.
    ///
    /// # Errors
    ///
    /// As [`Files::names`]; corrupt where bytes are missing, or are not those that were written.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let mut damaged = None;
        for _ in 0..TRIES {
            let Some(entry) = self.directory()?.1.files.remove(name) else { return Ok(None) };
            if damaged.as_ref() == Some(&entry) {
                break;
            }
            let mut bytes = Vec::with_capacity(entry.length);
            for chunk in chunks(entry.write, entry.length) {
                bytes.extend(self.ledger.chunk(&chunk)?.unwrap_or_default());
            }
            if bytes.len() == entry.length && hash_of(&bytes) == entry.hash {
                return Ok(Some(bytes));
            }
            // The file was replaced while it was read, unless the directory still says the same.
            damaged = Some(entry);
        }
        let what = format!("the file {name:?} in {}", self.ledger.name());
        Err(Error::corrupt(what, "bytes of it are missing, or are not those that were written"))
    }

    /// Writes a file, whole or not at all, in place of one of this name. Does no more than read the directory
    /// where the file is there with these very bytes.
    ///
    /// # Errors
    ///
    /// Those of the ledger; a lost compare-and-set where others change the directory without end.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let hash = hash_of(bytes);
        let is_there = |entry: &Entry| (entry.length, &entry.hash) == (bytes.len(), &hash);
        if self.directory()?.1.files.get(name).is_some_and(is_there) {
            return Ok(());
        }
        self.put(bytes, |_| name.to_owned())
    }

    /// Writes a file whose name is `prefix` and the number after the largest one that a file with this prefix
    /// has.
    ///
    /// # Errors
    ///
    /// As [`Files::write`].
    pub fn add(&self, prefix: &str, bytes: &[u8]) -> Result<()> {
        let number = |name: &String| name.strip_prefix(prefix)?.parse::<u64>().ok();
        self.put(bytes, |files| {
            let last = files.keys().filter_map(number).max();
            // All numbers have the same width, so that the order of names is that of numbers.
            format!("{prefix}{:06}", last.map_or(0, |last| last + 1))
        })
    }

    /// Removes all files whose names `is_kept` refuses, and the chunks that dead writers left.
    ///
    /// # Errors
    ///
    /// As [`Files::write`].
    pub fn retain(&self, is_kept: impl Fn(&str) -> bool) -> Result<()> {
        let (_, directory) = self.directory()?;
        if directory.begun.is_empty() && directory.files.keys().all(|name| is_kept(name)) {
            return Ok(());
        }
        let gone = self.change(|directory| {
            let dead = mem::take(&mut directory.begun).into_iter();
            let files = directory.files.extract_if(.., |name, _| !is_kept(name));
            dead.chain(files.map(|(_, entry)| (entry.write, entry.length))).collect::<Vec<_>>()
        })?;
        gone.into_iter().try_for_each(|(write, length)| self.drop_chunks(write, length))
    }

    fn put(&self, bytes: &[u8], name_among: impl Fn(&BTreeMap<String, Entry>) -> String) -> Result<()> {
        let (length, hash) = (bytes.len(), hash_of(bytes));
        for _ in 0..TRIES {
            // The write is noted before its first chunk is there: where this process dies, the chunks can be
            // cleared away.
            let write = self.change(|directory| {
                let write = directory.next;
                directory.next += 1;
                directory.begun.insert(write, length);
                write
            })?;
            for (chunk, part) in chunks(write, length).zip(bytes.chunks(CHUNK)) {
                self.ledger.set_chunk(&chunk, Some(part))?;
            }
            let replaced = self.change(|directory| {
                directory.begun.remove(&write)?;
                let entry = Entry { write, length, hash: hash.clone() };
                Some(directory.files.insert(name_among(&directory.files), entry))
            })?;
            if let Some(replaced) = replaced {
                return replaced.map_or(Ok(()), |before| self.drop_chunks(before.write, before.length));
            }
            // Another process took this write for a dead one's, and cleared away the chunks that were there
            // by then. The later ones follow, and the file is written anew.
            self.drop_chunks(write, length)?;
        }
        let what = format!("the directory of files in {}", self.ledger.name());
        Err(Error::changed_meanwhile(what, "another process clears away what this one writes; try it again"))
    }

    fn directory(&self) -> Result<(Option<u64>, Directory)> {
        let Some((version, text)) = self.ledger.document(DIRECTORY)? else {
            return Ok((None, Directory::default()));
        };
        let what = || format!("the directory of files in {}", self.ledger.name());
        let directory = serde_json::from_str(&text).map_err(|error| Error::corrupt(what(), error))?;
        Ok((Some(version), directory))
    }

    fn change<T>(&self, change: impl Fn(&mut Directory) -> T) -> Result<T> {
        let mut tries = 1..=TRIES;
        loop {
            let (version, mut directory) = self.directory()?;
            let changed = change(&mut directory);
            let text = serde_json::to_string(&directory)
                .map_err(|error| Error::corrupt("the directory of files", error))?;
            match self.ledger.set_document(DIRECTORY, version, &text) {
                Err(error) if error.is_conflict() && tries.next().is_some() => {}
                written => return written.map(|_| changed),
            }
        }
    }

    fn drop_chunks(&self, write: u64, length: usize) -> Result<()> {
        chunks(write, length).try_for_each(|chunk| match self.ledger.set_chunk(&chunk, None) {
            // Another process clears the same chunks away, and was faster.
            Err(error) if error.is_changed_meanwhile() => Ok(()),
            dropped => dropped,
        })
    }
}

/// Names of the chunks of a write.
fn chunks(write: u64, length: usize) -> impl Iterator<Item = String> {
    (0..length.div_ceil(CHUNK)).map(move |at| format!("chunk {at} of write {write}"))
}

fn hash_of(bytes: &[u8]) -> String {
    format!("{:032x}", xxh3_128(bytes))
}
