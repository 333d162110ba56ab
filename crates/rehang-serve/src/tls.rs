//! TLS of a service: its certificate, which is read again when its files change.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;

use rehang_core::{Error, Result};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// Certificate chain and key of a service, as its files have them.
pub struct Certificate {
    chain: PathBuf,
    key: PathBuf,
    in_use: RwLock<(Arc<ServerConfig>, [Option<SystemTime>; 2])>,
}

impl Certificate {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// Corrupt for files that are no chain and no key in PEM, or that do not belong together.
    pub fn read((chain, key): &(PathBuf, PathBuf)) -> Result<Arc<Self>> {
        let in_use = RwLock::new((config(chain, key)?, changed(chain, key)));
        Ok(Arc::new(Self { chain: chain.clone(), key: key.clone(), in_use }))
    }

    /// Reads the files again where they have changed. Where they are wrong now, the old ones stay in use.
    pub fn read_again(&self) {
        let stamps = changed(&self.chain, &self.key);
        let certificate = self.chain.display();
        if self.in_use.read().unwrap_or_else(PoisonError::into_inner).1 == stamps {
            return;
        }
        match config(&self.chain, &self.key) {
            Ok(config) => {
                *self.in_use.write().unwrap_or_else(PoisonError::into_inner) = (config, stamps);
                tracing::info!(%certificate, "read again");
            }
            Err(error) => tracing::error!(%certificate, %error, "the old one stays in use"),
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
    let certificates = CertificateDer::pem_file_iter(chain).map_err(|error| wrong(chain, &error))?;
    let certificates: Vec<_> =
        certificates.collect::<std::result::Result<_, _>>().map_err(|error| wrong(chain, &error))?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| wrong(key, &error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(chain, &error))?
        .with_no_client_auth()
        .with_single_cert(certificates, private)
        .map_err(|error| wrong(chain, &error))?;
    Ok(Arc::new(config))
}

/// Returns when both files were changed last.
fn changed(chain: &Path, key: &Path) -> [Option<SystemTime>; 2] {
    [chain, key].map(|path| fs_err::metadata(path).and_then(|of| of.modified()).ok())
}
