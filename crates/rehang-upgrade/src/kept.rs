//! Files that an upgrade keeps in its gallery ([`Files`]): adapters, their reports, findings about their
//! pairs, and bridges. A file's name holds the fingerprint of its adapter or bridge, so that no process takes
//! one for another. [`crate::learn::asked`] keeps queries beside them.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rehang_core::{Adapter, Bridge, Error, Result};
use rehang_files::{adapter_file, bridge_file};
use rehang_store::{Files, Ledger};

/// A kind of file that belongs to one adapter or bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Adapter,
    Bridge,
    /// A report on an adapter, as JSON.
    Report,
    /// Findings about an adapter's pairs, and its error on the pairs that were held out.
    Learned,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Adapter, Self::Bridge, Self::Report, Self::Learned];

    fn file_name(self, fingerprint: &str) -> String {
        let (kind, ending) = self.prefix_and_suffix();
        format!("{kind}{fingerprint}{ending}")
    }

    fn prefix_and_suffix(self) -> (&'static str, &'static str) {
        match self {
            Self::Adapter => ("adapter-", ".safetensors"),
            Self::Bridge => ("bridge-", ".safetensors"),
            Self::Report => ("report-", ".json"),
            Self::Learned => ("learned-", ".json"),
        }
    }

    /// Returns the fingerprint in a file's name; `None` where the file is not of this kind.
    fn fingerprint(self, name: &str) -> Option<&str> {
        let (kind, ending) = self.prefix_and_suffix();
        name.strip_prefix(kind)?.strip_suffix(ending)
    }
}

/// Reads a file of an adapter or a bridge; `None` where there is none.
pub(crate) fn read(store: &dyn Ledger, kind: Kind, fingerprint: &str) -> Result<Option<Vec<u8>>> {
    Files::in_ledger(store).read(&kind.file_name(fingerprint))
}

pub(crate) fn has(store: &dyn Ledger, kind: Kind, fingerprint: &str) -> Result<bool> {
    Files::in_ledger(store).has(&kind.file_name(fingerprint))
}

pub(crate) fn write(store: &dyn Ledger, kind: Kind, fingerprint: &str, bytes: &[u8]) -> Result<()> {
    Files::in_ledger(store).write(&kind.file_name(fingerprint), bytes)
}

pub(crate) fn remove(store: &dyn Ledger, kind: Kind, fingerprint: &str) -> Result<()> {
    let name = kind.file_name(fingerprint);
    Files::in_ledger(store).retain(|other| other != name)
}

/// Reads the adapter of a fingerprint; `None` where the gallery does not hold it.
///
/// # Errors
///
/// Those of the store; what is wrong with the file's bytes.
pub(crate) fn adapter(store: &dyn Ledger, fingerprint: &str) -> Result<Option<Arc<Adapter>>> {
    /// Adapter that was read last: a verb asks for it several times, and it may have a hundred megabytes.
    static LAST: Mutex<Option<(String, Arc<Adapter>)>> = Mutex::new(None);
    if !has(store, Kind::Adapter, fingerprint)? {
        return Ok(None);
    }
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((last_fingerprint, adapter)) = &*last
        && last_fingerprint == fingerprint
    {
        return Ok(Some(Arc::clone(adapter)));
    }
    let Some(bytes) = read(store, Kind::Adapter, fingerprint)? else { return Ok(None) };
    let name = display_name(store, Kind::Adapter, fingerprint);
    let adapter = Arc::new(adapter_file::from_bytes(&bytes, &name)?);
    *last = Some((fingerprint.to_owned(), Arc::clone(&adapter)));
    Ok(Some(adapter))
}

/// Keeps an adapter under its fingerprint, which the caller knows: finding it out takes reading all of the
/// adapter.
///
/// # Errors
///
/// Those of the store; an error where no file can hold the adapter.
pub(crate) fn keep_adapter(store: &dyn Ledger, fingerprint: &str, adapter: &Adapter) -> Result<()> {
    if has(store, Kind::Adapter, fingerprint)? {
        return Ok(());
    }
    write(store, Kind::Adapter, fingerprint, &adapter_file::to_bytes(adapter)?)
}

/// Reads the bridge of a fingerprint; `None` where the gallery does not hold it.
///
/// # Errors
///
/// As [`adapter`].
pub(crate) fn bridge(store: &dyn Ledger, fingerprint: &str) -> Result<Option<Arc<Bridge>>> {
    let Some(bytes) = read(store, Kind::Bridge, fingerprint)? else { return Ok(None) };
    bridge_file::from_bytes(&bytes, &display_name(store, Kind::Bridge, fingerprint))
        .map(|bridge| Some(Arc::new(bridge)))
}

/// Keeps a bridge, and returns its fingerprint.
///
/// # Errors
///
/// As [`keep_adapter`].
pub(crate) fn keep_bridge(store: &dyn Ledger, bridge: &Bridge) -> Result<String> {
    let fingerprint = bridge_file::fingerprint(bridge)?;
    if !has(store, Kind::Bridge, &fingerprint)? {
        write(store, Kind::Bridge, &fingerprint, &bridge_file::to_bytes(bridge)?)?;
    }
    Ok(fingerprint)
}

/// Returns the name that errors give to a file: the file's own, and the store's.
pub(crate) fn display_name(store: &dyn Ledger, kind: Kind, fingerprint: &str) -> String {
    format!("{} in {}", kind.file_name(fingerprint), store.name())
}

/// Removes the files of adapters and bridges, except those that are in use: `is_used` is given a file's kind
/// and fingerprint.
///
/// # Errors
///
/// Those of the store.
pub(crate) fn retain(store: &dyn Ledger, is_used: impl Fn(Kind, &str) -> bool) -> Result<()> {
    Files::in_ledger(store).retain(|name| {
        Kind::ALL
            .into_iter()
            .all(|kind| kind.fingerprint(name).is_none_or(|fingerprint| is_used(kind, fingerprint)))
    })
}

/// Copies files into the gallery from the folder of an upgrade that an earlier version made, unless the
/// gallery has files already. A file that cannot be read stays where it is.
///
/// # Errors
///
/// Those of the store.
pub(crate) fn import_folder(store: &dyn Ledger, folder: &Path) -> Result<()> {
    if !folder.is_dir() || Files::in_ledger(store).are_kept()? {
        return Ok(());
    }
    for entry in fs_err::read_dir(folder).map_err(|error| Error::io("read", folder, &error))?.flatten() {
        let (Ok(name), Ok(bytes)) = (entry.file_name().into_string(), fs_err::read(entry.path())) else {
            continue;
        };
        let is_ours = |kind: Kind| kind != Kind::Learned && kind.fingerprint(&name).is_some();
        if Kind::ALL.into_iter().any(is_ours) {
            Files::in_ledger(store).write(&name, &bytes)?;
        }
    }
    crate::learn::asked::import_folder(store, folder)
}
