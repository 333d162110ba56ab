//! Places of a gallery, and the way in and out: files, tables and collections, their search indexes, import
//! and export, and a first configuration.

pub(crate) mod collection;
pub(crate) mod index;
pub(crate) mod init;
pub(crate) mod location;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(feature = "qdrant")]
pub(crate) mod qdrant;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
pub(crate) mod table;
pub(crate) mod transfer;
