//! Connections to other machines, for every part of rehang alike: whose certificates are trusted, and which
//! proxy stands in between.
//!
//! | module | what it knows |
//! |---|---|
//! | [`Roots`] | the authorities: the system's, or those that `SSL_CERT_FILE` and `SSL_CERT_DIR` name, and a file of the configuration |
//! | [`Machine`] | a host and a port, out of an address |
//! | [`Proxies`] | `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` |
//! | [`Connection`] (feature `http`) | both, for the HTTP client of encoders and of Qdrant |
//!
//! An untrusted certificate and a proxy that is down fail in the same way at every attempt. Each has an error
//! of its own, which names it and says what to do. So nobody looks for the fault in a text or in the service
//! behind.

#[cfg(feature = "http")]
mod connection;
mod machine;
mod proxy;
mod refused;
mod roots;

#[cfg(feature = "http")]
pub use connection::Connection;
pub use machine::{Machine, is_loopback};
pub use proxy::{Proxies, Proxy};
pub use refused::{certificate_error, untrusted};
pub use roots::{OwnRoots, Roots, environment};
