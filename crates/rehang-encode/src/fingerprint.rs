//! Fingerprint: what the vectors of an encoder depend on, as a short text.

use std::io::Read as _;
use std::path::Path;

use rehang_core::{Error, Result};
use serde::Serialize;
use xxhash_rust::xxh3::Xxh3;

/// Hash of keys and files: whatever takes in the same in the same order has the same fingerprint.
pub(crate) struct Fingerprint(Xxh3);

impl Fingerprint {
    pub(crate) fn new(kind: &str) -> Self {
        Self(Xxh3::new()).with(&kind)
    }

    /// Takes in the value of a key that vectors depend on.
    pub(crate) fn with(mut self, value: &impl Serialize) -> Self {
        // Keys of a configuration can always be written as JSON.
        let text = serde_json::to_string(value).unwrap_or_default();
        self.0.update(&(text.len() as u64).to_le_bytes());
        self.0.update(text.as_bytes());
        self
    }

    /// Takes in the bytes of a file.
    pub(crate) fn with_file(mut self, path: &Path) -> Result<Self> {
        let failed = |error: &std::io::Error| Error::io("read", path, error);
        let mut file = fs_err::File::open(path).map_err(|error| failed(&error))?;
        let mut block = vec![0; 1 << 20];
        let mut bytes = 0_u64;
        loop {
            let read = file.read(&mut block).map_err(|error| failed(&error))?;
            if read == 0 {
                break;
            }
            self.0.update(&block[..read]);
            bytes += read as u64;
        }
        self.0.update(&bytes.to_le_bytes());
        Ok(self)
    }

    /// Writes the fingerprint as 32 hexadecimal digits.
    pub(crate) fn text(&self) -> String {
        format!("{:032x}", self.0.digest128())
    }
}
