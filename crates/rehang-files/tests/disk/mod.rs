//! A disk that loses power, for tests on Linux.
//!
//! This test program defines again the functions of the C library by which it changes files and waits for the
//! disk. So SQLite, the search index and Rust's own library call these functions. Each one does its usual
//! work, except for waiting, and notes what was done to a folder that is [watched](Watch). Changes that take
//! another way (C streams, renames by system call) are found by looking at the folder at each of these calls.
//!
//! The notes are then [replayed](Disk) up to any operation. Synced changes are on the disk. Any part of all
//! other changes may be on it too: 512-byte sectors, lengths and names, each for itself. A name counts as
//! synced with its folder, as POSIX has it.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rand::{Rng, RngExt};

/// Bytes that a disk writes whole or not at all.
const SECTOR: usize = 512;

/// Operation on a folder. A file keeps its number whatever its name.
#[derive(Debug, Clone)]
pub enum Operation {
    Write {
        file: usize,
        at: usize,
        bytes: Vec<u8>,
    },
    Length {
        file: usize,
        length: usize,
    },
    /// Every earlier change of a file is on the disk now.
    Sync(usize),
    /// New names of the folder's files.
    Names(Names),
    /// The names of the folder's files are on the disk now.
    SyncFolder,
}

pub type Names = BTreeMap<String, usize>;

/// Watch of a folder: its operations are noted for as long as this value lives.
pub struct Watch {
    folder: PathBuf,
}

impl Watch {
    pub fn new(folder: &Path) -> Self {
        let folder = folder.canonicalize().unwrap();
        let mut notes = Notes { folder: folder.clone(), ..Notes::default() };
        notes.look(None);
        notes.operations.push(Operation::SyncFolder);
        watched().push(notes);
        Self { folder }
    }

    /// Every operation so far.
    pub fn operations(&self) -> Vec<Operation> {
        self.with(|notes| notes.operations.clone())
    }

    /// Number of operations so far.
    pub fn count(&self) -> usize {
        self.with(|notes| notes.operations.len())
    }

    fn with<T>(&self, work: impl FnOnce(&mut Notes) -> T) -> T {
        let mut watched = watched();
        let notes = watched.iter_mut().find(|notes| notes.folder == self.folder).unwrap();
        notes.look(None);
        work(notes)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        watched().retain(|notes| notes.folder != self.folder);
    }
}

static WATCHED: Mutex<Vec<Notes>> = Mutex::new(Vec::new());

fn watched() -> MutexGuard<'static, Vec<Notes>> {
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct Notes {
    folder: PathBuf,
    operations: Vec<Operation>,
    names: Names,
    /// Files that have a name, by the number that the system gives them while they exist.
    inodes: BTreeMap<u64, Seen>,
    files: usize,
}

#[derive(Clone, Copy)]
struct Seen {
    file: usize,
    /// Whether each write to the file is noted when it is made.
    told: bool,
    /// Length and time of the last change, for a file whose writes are not noted.
    was: (u64, i64, i64),
}

impl Notes {
    /// Notes the changes that no function of this program has noted. The content of `synced` is read again,
    /// whatever its time says.
    fn look(&mut self, synced: Option<u64>) {
        let (mut names, mut inodes) = (Names::new(), BTreeMap::new());
        for entry in fs_err::read_dir(&self.folder).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            // Another thread may have removed the file meanwhile. Shared memory does not outlive the machine.
            let Ok(metadata) = entry.metadata() else { continue };
            if name.ends_with("-shm") || !metadata.is_file() {
                continue;
            }
            let inode = metadata.ino();
            let mut seen = self.inodes.get(&inode).copied().unwrap_or_else(|| {
                self.files += 1;
                Seen { file: self.files, told: false, was: (0, 0, 0) }
            });
            let is = (metadata.len(), metadata.mtime(), metadata.mtime_nsec());
            if !seen.told && (seen.was != is || synced == Some(inode)) {
                seen.was = is;
                let bytes = fs_err::read(entry.path()).unwrap_or_default();
                self.operations.push(Operation::Length { file: seen.file, length: bytes.len() });
                self.operations.push(Operation::Write { file: seen.file, at: 0, bytes });
            }
            names.insert(name, seen.file);
            inodes.insert(inode, seen);
        }
        self.inodes = inodes;
        if names != self.names {
            self.names.clone_from(&names);
            self.operations.push(Operation::Names(names));
        }
    }

    /// Number of the file with this inode; `None` where the file has no name any more.
    fn file(&mut self, inode: u64) -> Option<usize> {
        let seen = self.inodes.get_mut(&inode)?;
        seen.told = true;
        Some(seen.file)
    }
}

/// Calls `work` with the notes on the folder that an open file lies in, or is, and with the file's metadata.
fn noted(descriptor: c_int, work: impl FnOnce(&mut Notes, &std::fs::Metadata)) {
    let mut watched = watched();
    if watched.is_empty() {
        return;
    }
    let link = PathBuf::from(format!("/proc/self/fd/{descriptor}"));
    let (Ok(path), Ok(metadata)) = (fs_err::read_link(&link), fs_err::metadata(&link)) else { return };
    let folder = if metadata.is_dir() { Some(path.as_path()) } else { path.parent() };
    if let Some(notes) = watched.iter_mut().find(|notes| Some(notes.folder.as_path()) == folder) {
        work(notes, &metadata);
    }
}

// SAFETY: the signatures are those of the C library. These are the same functions under other names, which
// nothing here replaces.
unsafe extern "C" {
    fn pwrite(descriptor: c_int, bytes: *const c_void, count: usize, at: i64) -> isize;
    fn ftruncate(descriptor: c_int, length: i64) -> c_int;
    fn unlinkat(folder: c_int, path: *const c_char, flags: c_int) -> c_int;
}

/// Descriptor that stands for the current folder, where a function takes the descriptor of a folder.
const HERE: c_int = -100;

// SAFETY: the name and the signature are those of the C library's function, which this one replaces in this
// program.
#[unsafe(no_mangle)]
extern "C" fn pwrite64(descriptor: c_int, bytes: *const c_void, count: usize, at: i64) -> isize {
    // SAFETY: the caller's arguments, passed on.
    let written = unsafe { pwrite(descriptor, bytes, count, at) };
    if written > 0 {
        // SAFETY: the caller gives `count` bytes to write, of which so many were written.
        let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), written as usize) };
        noted(descriptor, |notes, metadata| {
            notes.look(None);
            if let Some(file) = notes.file(metadata.ino()) {
                let bytes = bytes.to_vec();
                notes.operations.push(Operation::Write { file, at: at as usize, bytes });
            }
        });
    }
    written
}

// SAFETY: name and signature are those of the C library, as for `pwrite64`.
#[unsafe(no_mangle)]
extern "C" fn ftruncate64(descriptor: c_int, length: i64) -> c_int {
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { ftruncate(descriptor, length) };
    if result == 0 {
        noted(descriptor, |notes, metadata| {
            notes.look(None);
            if let Some(file) = notes.file(metadata.ino()) {
                notes.operations.push(Operation::Length { file, length: length as usize });
            }
        });
    }
    result
}

// SAFETY: name and signature are those of the C library, as for `pwrite64`.
#[unsafe(no_mangle)]
extern "C" fn unlink(path: *const c_char) -> c_int {
    // SAFETY: the caller's argument, passed on.
    let result = unsafe { unlinkat(HERE, path, 0) };
    if result == 0 {
        // SAFETY: the library has just read the same string.
        let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()));
        if let Some(notes) = watched().iter_mut().find(|notes| path.parent() == Some(&notes.folder)) {
            notes.look(None);
        }
    }
    result
}

// SAFETY: name and signature are those of the C library, as for `pwrite64`. It waits for nothing: power is
// lost only in the replay.
#[unsafe(no_mangle)]
extern "C" fn fsync(descriptor: c_int) -> c_int {
    noted(descriptor, |notes, metadata| {
        if metadata.is_dir() {
            notes.look(None);
            notes.operations.push(Operation::SyncFolder);
        } else {
            notes.look(Some(metadata.ino()));
            let file = notes.inodes.get(&metadata.ino()).map(|seen| seen.file);
            notes.operations.extend(file.map(Operation::Sync));
        }
    });
    0
}

// SAFETY: name and signature are those of the C library, as for `pwrite64`.
#[unsafe(no_mangle)]
extern "C" fn fdatasync(descriptor: c_int) -> c_int {
    fsync(descriptor)
}

/// State of a disk after some operations: what is on it, and what is only on its way to it.
#[derive(Debug, Clone, Default)]
pub struct Disk {
    files: BTreeMap<usize, File>,
    names: Names,
    /// Names at each moment since the names were synced.
    names_since: Vec<Names>,
}

#[derive(Debug, Clone, Default)]
struct File {
    synced: Vec<u8>,
    since: Vec<Change>,
}

#[derive(Debug, Clone)]
enum Change {
    Write { at: usize, bytes: Vec<u8> },
    Length(usize),
}

impl Disk {
    /// Replays one more operation.
    pub fn replay(&mut self, operation: &Operation) {
        match operation {
            Operation::Write { file, at, bytes } => {
                let change = Change::Write { at: *at, bytes: bytes.clone() };
                self.files.entry(*file).or_default().since.push(change);
            }
            Operation::Length { file, length } => {
                self.files.entry(*file).or_default().since.push(Change::Length(*length));
            }
            Operation::Sync(file) => {
                let file = self.files.entry(*file).or_default();
                for change in std::mem::take(&mut file.since) {
                    change.apply(&mut file.synced);
                }
            }
            Operation::Names(names) => self.names_since.push(names.clone()),
            Operation::SyncFolder => {
                if let Some(last) = self.names_since.pop() {
                    self.names = last;
                    self.names_since.clear();
                }
            }
        }
    }

    /// Everything that a name may stand for if the power is lost now: whole contents, or no file. `Err` where
    /// it may be a file of which something is not synced, which may then have any content.
    pub fn may_hold(&self, name: &str) -> Result<Vec<Option<Vec<u8>>>, String> {
        let mut contents = Vec::new();
        for names in std::iter::once(&self.names).chain(&self.names_since) {
            let file = names.get(name).map(|file| self.files.get(file).cloned().unwrap_or_default());
            if let Some(File { since, .. }) = &file
                && !since.is_empty()
            {
                return Err(format!("{name} may be a file of which {} writes are not synced", since.len()));
            }
            let content = file.map(|file| file.synced);
            if !contents.contains(&content) {
                contents.push(content);
            }
        }
        Ok(contents)
    }

    /// Every name that may exist if the power is lost now.
    pub fn may_be_named(&self) -> impl Iterator<Item = &str> {
        let all = std::iter::once(&self.names).chain(&self.names_since);
        all.flat_map(|names| names.keys().map(String::as_str))
    }

    /// Draws one of the folders that may be left if the power is lost now.
    pub fn left(&self, random: &mut impl Rng) -> BTreeMap<String, Vec<u8>> {
        let states: Vec<&Names> = std::iter::once(&self.names).chain(&self.names_since).collect();
        let contents: BTreeMap<usize, Vec<u8>> =
            self.files.iter().map(|(&file, state)| (file, state.left(random))).collect();
        let mut left = BTreeMap::new();
        for name in self.may_be_named() {
            let state = states[random.random_range(0..states.len())];
            if let Some(file) = state.get(name) {
                left.insert(name.to_owned(), contents.get(file).cloned().unwrap_or_default());
            }
        }
        left
    }
}

impl File {
    /// Draws the file's content: all synced changes, with none, all, the first or any of the sectors that are
    /// not synced.
    fn left(&self, random: &mut impl Rng) -> Vec<u8> {
        let mut bytes = self.synced.clone();
        let count = self.since.len();
        let mode = random.random_range(0..4);
        let (whole, torn) = match mode {
            0 => (0, 0),
            1 => (count, count),
            2 if count > 0 => {
                let whole = random.random_range(0..count);
                (whole, whole + 1)
            }
            _ => (0, count),
        };
        for change in &self.since[..whole] {
            change.apply(&mut bytes);
        }
        for change in &self.since[whole..torn] {
            change.tear(&mut bytes, random);
        }
        bytes
    }
}

impl Change {
    fn apply(&self, file: &mut Vec<u8>) {
        match self {
            Self::Write { at, bytes } => put(file, *at, bytes),
            Self::Length(length) => file.resize(*length, 0),
        }
    }

    /// Applies a part of the change, drawn at random.
    fn tear(&self, file: &mut Vec<u8>, random: &mut impl Rng) {
        match self {
            Self::Write { at, bytes } => {
                let end = at + bytes.len();
                if file.len() < end && random.random_bool(0.25) {
                    // The length may grow alone, and the bytes there were then never written to this file.
                    let filling = if random.random() { 0 } else { random.random() };
                    file.resize(end, filling);
                }
                let mut from = *at;
                while from < end {
                    let to = end.min((from / SECTOR + 1) * SECTOR);
                    if random.random() {
                        put(file, from, &bytes[from - at..to - at]);
                    }
                    from = to;
                }
            }
            Self::Length(_) => {
                if random.random() {
                    self.apply(file);
                }
            }
        }
    }
}

fn put(file: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let end = at + bytes.len();
    if file.len() < end {
        file.resize(end, 0);
    }
    file[at..end].copy_from_slice(bytes);
}
