//! TLS of a service: its certificate, which is read again when its files change.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::SystemTime;

use rehang_core::{Error, Result};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// Largest file of a certificate chain, or of a key.
const BYTES_MAX: u64 = 1 << 20;

/// Certificate chain and key of a service, as its files have them.
pub struct Certificate {
    chain: PathBuf,
    key: PathBuf,
    in_use: RwLock<(Arc<ServerConfig>, [Option<SystemTime>; 2])>,
    /// Last refusal of the files, which the log has; empty where they are in use.
    refusal: Mutex<String>,
}

impl Certificate {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// Corrupt for files that are no chain and no key in PEM, or that do not belong together.
    pub fn read((chain, key): &(PathBuf, PathBuf)) -> Result<Arc<Self>> {
        let in_use = RwLock::new((config(chain, key)?, changed(chain, key)));
        Ok(Arc::new(Self { chain: chain.clone(), key: key.clone(), in_use, refusal: Mutex::default() }))
    }

    /// Reads the files again where they have changed. Where they are wrong now, the old ones stay in use.
    pub fn read_again(&self) {
        let stamps = changed(&self.chain, &self.key);
        let certificate = self.chain.display();
        let mut refusal = self.refusal.lock().unwrap_or_else(PoisonError::into_inner);
        if self.in_use.read().unwrap_or_else(PoisonError::into_inner).1 == stamps {
            refusal.clear();
            return;
        }
        match config(&self.chain, &self.key) {
            Ok(config) => {
                *self.in_use.write().unwrap_or_else(PoisonError::into_inner) = (config, stamps);
                refusal.clear();
                tracing::info!(%certificate, "read again");
            }
            Err(error) => {
                // The files are looked at every few seconds: the log hears of each refusal once.
                let reason = error.to_string();
                if *refusal != reason {
                    tracing::error!(%certificate, %error, "the old one stays in use");
                    *refusal = reason;
                }
            }
        }
    }

    /// Returns what takes connections with the certificate that is in use.
    pub fn acceptor(&self) -> TlsAcceptor {
        let in_use = self.in_use.read().unwrap_or_else(PoisonError::into_inner);
        TlsAcceptor::from(Arc::clone(&in_use.0))
    }
}

fn config(chain: &Path, key: &Path) -> Result<Arc<ServerConfig>> {
    let wrong = |path: &Path, error: &dyn std::fmt::Display| Error::corrupt(path.display(), error);
    let read = |path: &Path| bytes_of(path).map_err(|error| wrong(path, &error));
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&read(chain)?)
        .collect::<std::result::Result<_, _>>()
        .map_err(|error| wrong(chain, &error))?;
    let private = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| wrong(key, &error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(chain, &error))?
        .with_no_client_auth()
        .with_single_cert(certificates, private)
        .map_err(|error| wrong(chain, &error))?;
    Ok(Arc::new(config))
}

/// Reads a file, where it is one and no larger than it may be: a pipe would hold up who reads it for ever,
/// and a device has no end. Links are followed, since whoever renews certificates sets them.
fn bytes_of(path: &Path) -> std::io::Result<Vec<u8>> {
    let no_file = || Err(std::io::Error::new(ErrorKind::InvalidInput, "it is no file"));
    // Devices are not even opened. Whatever has taken the file's place since is no file once it is open.
    if !fs_err::metadata(path)?.is_file() {
        return no_file();
    }
    let file = opened(path)?;
    if !file.metadata()?.is_file() {
        return no_file();
    }
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(std::io::Error::new(ErrorKind::FileTooLarge, "it has more than 1 MiB"));
    }
    Ok(bytes)
}

/// Opens a file at once, even where it is a pipe that nobody writes to.
#[cfg(unix)]
fn opened(path: &Path) -> std::io::Result<File> {
    use rustix::fs::{Mode, OFlags, open};

    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(open(path, flags, Mode::empty())?.into())
}

/// Opens a file.
#[cfg(not(unix))]
fn opened(path: &Path) -> std::io::Result<File> {
    Ok(fs_err::File::open(path)?.into_file())
}

/// Returns when both files were changed last.
fn changed(chain: &Path, key: &Path) -> [Option<SystemTime>; 2] {
    [chain, key].map(|path| fs_err::metadata(path).and_then(|of| of.modified()).ok())
}
