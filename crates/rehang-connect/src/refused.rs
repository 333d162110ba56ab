//! Certificates that were refused: how to recognise the error, and what to say about it.

use std::error::Error as StdError;
use std::fmt::Display;
use std::io;

use rehang_core::Error;
use rustls::CertificateError;

/// Why a certificate was refused, where the innermost cause of an error is a refused certificate.
pub fn certificate_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a CertificateError> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(rustls::Error::InvalidCertificate(why)) = error.downcast_ref() {
            return Some(why);
        }
        // `source` of an I/O error skips the error that it carries, and gives that one's source.
        let carried = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        cause = match carried {
            Some(carried) => Some(carried),
            None => error.source(),
        };
    }
    None
}

/// Makes the error for a certificate that is refused, which happens at every attempt alike.
///
/// `whose` is who showed the certificate, `trusted` says which authorities are trusted, and `keys` are the
/// configuration keys that add some.
pub fn untrusted(whose: impl Display, why: &CertificateError, trusted: &str, keys: &[&str]) -> Error {
    let keys: String = keys.iter().map(|key| format!("{key} or ")).collect();
    let detail = match why {
        CertificateError::UnknownIssuer => format!(
            "the authority that signed it is not trusted: it is not among {trusted}; name a file with the certificate of that authority in {keys}the variable \
             SSL_CERT_FILE"
        ),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("it is of another host ({why}); write the address with a name that is in it")
        }
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => {
            format!("its time is over, or the clock of this machine is wrong ({why})")
        }
        CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
            "it is the certificate of an authority, which no server may show; give the server one that this authority has signed".to_owned()
        }
        other => other.to_string(),
    };
    Error::conflict(format!("the certificate of {whose}"), detail)
}
