//! The authorities whose certificates are trusted.

use std::path::Path;

use rehang_core::{Error, Result};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

const FILE: &str = "SSL_CERT_FILE";
const FOLDERS: &str = "SSL_CERT_DIR";
/// Variables by which other programs name a file of authorities. Where one is set, an error says that it is
/// not read here.
const OF_OTHERS: [&str; 2] = ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"];

/// Reads a variable of the process's environment; an empty value is none.
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// A key of the configuration by which authorities are trusted besides all others.
#[derive(Debug, Clone, Copy)]
pub struct OwnRoots<'a> {
    /// The key's name, for people: `[encoder] root_certificates`.
    pub key: &'a str,
    /// The file, if the key names one.
    pub file: Option<&'a Path>,
}

/// The authorities whose certificates are trusted.
#[derive(Debug, Clone)]
pub struct Roots {
    certificates: Vec<CertificateDer<'static>>,
    store: RootCertStore,
    trusted: String,
}

impl Roots {
    /// Loads the system's authorities. Where the environment has `SSL_CERT_FILE` or `SSL_CERT_DIR`, it loads
    /// those instead. A machine without any authorities, such as a small container, trusts those that Mozilla
    /// trusts, which are built in. The file of `own_roots` comes on top. It is in the PEM format and may hold
    /// several certificates; a certificate that cannot be an authority's is passed over.
    ///
    /// # Errors
    ///
    /// An invalid option for a file that cannot be read, or in which no certificate is.
    pub fn load(own_roots: Option<&OwnRoots<'_>>, variable: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let value_of = |name: &str| variable(name).filter(|value| !value.is_empty());
        let mut roots =
            Self { certificates: Vec::new(), store: RootCertStore::empty(), trusted: String::new() };
        match (value_of(FILE), value_of(FOLDERS)) {
            (None, None) => {
                roots.extend(rustls_native_certs::load_native_certs().certs);
                roots.trusted = "those of the system".into();
                if let Some(other) = OF_OTHERS.iter().find(|name| value_of(name).is_some()) {
                    roots.trusted += &format!(" ({other} is of other programs, and not read here)");
                }
                if roots.certificates.is_empty() {
                    roots.extend(webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter().cloned());
                    roots.trusted = "the public ones that are built in, since the system has none".into();
                }
            }
            (file, folders) => {
                let named = [(FILE, &file), (FOLDERS, &folders)];
                let named =
                    named.iter().filter_map(|(name, value)| Some(format!("{name} ({})", value.as_ref()?)));
                roots.trusted = format!("those of {}", named.collect::<Vec<_>>().join(" and "));
                if let Some(file) = &file {
                    roots.add_file(&format!("the variable {FILE}"), Path::new(file))?;
                }
                let folders = folders.unwrap_or_default();
                for folder in std::env::split_paths(&folders).filter(|folder| !folder.as_os_str().is_empty())
                {
                    roots.extend(rustls_native_certs::load_certs_from_paths(None, Some(&folder)).certs);
                }
                if roots.certificates.is_empty() {
                    let expected = "folders with certificates in the PEM format";
                    return Err(Error::option(format!("the variable {FOLDERS}"), folders, expected));
                }
            }
        }
        roots.add_own(own_roots)?;
        Ok(roots)
    }

    /// Loads the authorities of one file alone, which `named_by` names, and of the file of `own_roots`.
    ///
    /// # Errors
    ///
    /// As [`Roots::load`].
    pub fn from_file(named_by: &str, file: &Path, own_roots: Option<&OwnRoots<'_>>) -> Result<Self> {
        let trusted = format!("those of {named_by} ({})", file.display());
        let mut roots = Self { certificates: Vec::new(), store: RootCertStore::empty(), trusted };
        roots.add_file(named_by, file)?;
        roots.add_own(own_roots)?;
        Ok(roots)
    }

    /// Certificates of all loaded authorities.
    pub fn certificates(&self) -> &[CertificateDer<'static>] {
        &self.certificates
    }

    /// Authorities in the form that the TLS library takes.
    pub fn store(&self) -> &RootCertStore {
        &self.store
    }

    /// Origin of the authorities, for people: "those of the system".
    pub fn trusted(&self) -> &str {
        &self.trusted
    }

    fn extend(&mut self, certificates: impl IntoIterator<Item = CertificateDer<'static>>) {
        for certificate in certificates {
            if self.store.add(certificate.clone()).is_ok() {
                self.certificates.push(certificate);
            }
        }
    }

    fn add_own(&mut self, own_roots: Option<&OwnRoots<'_>>) -> Result<()> {
        if let Some((key, file)) = own_roots.and_then(|roots| Some((roots.key, roots.file?))) {
            self.add_file(key, file)?;
            self.trusted += &format!(", nor in {}", file.display());
        }
        Ok(())
    }

    /// Adds the authorities of a file that `named_by` names.
    fn add_file(&mut self, named_by: &str, file: &Path) -> Result<()> {
        let wrong = |why: String| {
            let expected = format!("a file with the certificates of authorities in the PEM format: {why}");
            Error::option(named_by, file.display(), expected)
        };
        let bytes = fs_err::read(file).map_err(|error| {
            let why =
                std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            wrong(format!("it cannot be read ({why})"))
        })?;
        let before = self.certificates.len();
        let mut broken = None;
        let read = CertificateDer::pem_slice_iter(&bytes);
        self.extend(read.filter_map(|section| section.map_err(|error| broken = Some(error)).ok()));
        if self.certificates.len() > before {
            return Ok(());
        }
        Err(wrong(
            broken.map_or("there is none in it".into(), |error| format!("it cannot be read ({error})")),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AUTHORITY: &str = include_str!("../tests/certificates/authority.pem");

    fn load(file: Option<&Path>, set: &[(&str, &str)]) -> Result<Roots> {
        let own_roots = file.map(|file| OwnRoots { key: "root_certificates", file: Some(file) });
        Roots::load(own_roots.as_ref(), &|name| {
            set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_variables_stand_for_the_systems_authorities_and_the_file_is_on_top() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("authority.pem");
        fs_err::write(&file, AUTHORITY).unwrap();
        let (path, place) = (file.to_str().unwrap(), folder.path().to_str().unwrap());
        // Authorities of this machine, or the built-in ones.
        let usual = load(None, &[]).unwrap().certificates().len();
        assert!(usual > 1, "{usual}");
        assert_eq!(load(Some(&file), &[]).unwrap().certificates().len(), usual + 1);
        assert_eq!(load(None, &[("SSL_CERT_FILE", "")]).unwrap().certificates().len(), usual);
        let of_others = load(None, &[("REQUESTS_CA_BUNDLE", path)]).unwrap();
        assert!(of_others.trusted().contains("REQUESTS_CA_BUNDLE"), "{}", of_others.trusted());
        for variable in [("SSL_CERT_FILE", path), ("SSL_CERT_DIR", place)] {
            let roots = load(None, &[variable]).unwrap();
            assert_eq!(roots.certificates().len(), 1);
            assert!(roots.trusted().contains(variable.0) && roots.trusted().contains(variable.1));
        }
        let folders = format!("/nowhere:{place}");
        let separated = if cfg!(windows) { folders.replace("e:", "e;") } else { folders };
        assert_eq!(load(None, &[("SSL_CERT_DIR", &separated)]).unwrap().store().len(), 1);
    }

    #[test]
    fn a_file_without_a_certificate_is_refused_with_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs_err::write(&path, text).unwrap();
            path
        };
        let key = file("key.pem", include_str!("../tests/certificates/server.key"));
        let broken = file("broken.pem", "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n");
        let no_authority = file("no.pem", "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n");
        for (path, why) in [
            (folder.path().join("nowhere.pem"), "cannot be read"),
            (folder.path().to_path_buf(), "cannot be read"),
            (file("empty.pem", ""), "there is none in it"),
            (key, "there is none in it"),
            (broken, "cannot be read"),
            (no_authority, "there is none in it"),
        ] {
            let shown = path.display().to_string();
            for (named, loaded) in [
                ("root_certificates", load(Some(&path), &[])),
                ("the variable SSL_CERT_FILE", load(None, &[("SSL_CERT_FILE", &shown)])),
            ] {
                let message = loaded.unwrap_err().to_string();
                assert!(
                    message.starts_with(named) && message.contains(why) && message.contains("PEM"),
                    "{message}"
                );
                assert!(message.contains(&*path.file_name().unwrap().to_string_lossy()), "{message}");
            }
        }
        let message = load(None, &[("SSL_CERT_DIR", "/nowhere")]).unwrap_err().to_string();
        assert!(message.contains("SSL_CERT_DIR") && message.contains("/nowhere"), "{message}");
    }
}
