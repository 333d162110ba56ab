//! Replaces the embedding model behind a live vector gallery. An application depends on this crate alone.
//!
//! - [`Gallery`]: searches and writes, right at every stage of an upgrade.
//! - [`Upgrade`]: every step of an upgrade as one call, planned by a [`Configuration`].
//! - [`store`]: items, vectors and filters; the stores themselves behind features of
//!   their names.
//! - [`encode`]: encoders, from a function of the process to a service.
//! - [`fit`], [`evaluate`], [`files`]: maps, reports and files without a gallery. Spaces, vectors, adapters,
//!   orders and curves stand at the root.
//!
//! An application with its gallery in one file goes on searching while its model is replaced:
//!
//! ```
//! # #[cfg(feature = "sqlite")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//!
//! use rehang::encode::Function;
//! use rehang::fit::Method;
//! use rehang::sqlite::SqliteStore;
//! use rehang::store::{Filter, ItemWrite, Ledger, NewVector};
//! use rehang::upgrade::{PairsFiles, PairsOptions, RunOptions, Unobserved};
//! use rehang::{Configuration, Distance, Gallery, Location, Matrix, Progress, Provenance, Space, Upgrade};
//!
//! // Two models: counts of triples of letters, in so many buckets.
//! fn embed(width: usize, text: &str) -> Vec<f32> {
//!     let mut row = vec![0.0; width];
//!     for triple in text.as_bytes().windows(3) {
//!         row[triple.iter().fold(width, |hash, &letter| 31 * hash + usize::from(letter)) % width] += 1.0;
//!     }
//!     row
//! }
//! let folder = tempfile::tempdir()?;
//! let file = folder.path().join("gallery.db");
//! let space = |name, width| Space::new(name, width, Distance::Cosine, false);
//! let store = SqliteStore::create(&file)?;
//! store.create_space(&space("first", 24), Provenance::Old)?;
//! let gallery = Gallery::new(Arc::new(store));
//! let text = |number: usize| format!("note {number}: the {} is here", ["kettle", "ladder", "violin"][number % 3]);
//! for number in 0..200 {
//!     let old = NewVector::from_model("first", embed(24, &text(number)), Provenance::Old);
//!     gallery.put(&[ItemWrite::new(&number.to_string(), Some(text(number)), vec![old])])?;
//! }
//! // The upgrade: a map is fitted on a sample, searches switch, and everything is embedded again.
//! let upgrade = Upgrade::new(Configuration::new(Location::file(&file), space("first", 24), space("second", 32))?)?;
//! let encoder = Function::new(&upgrade.new_space()?, 64, false, Some("second".into()), |texts: &[&str]| {
//!     Matrix::new(32, texts.iter().flat_map(|text| embed(32, text)).collect())
//! });
//! upgrade.pairs(&PairsOptions::default(), &PairsFiles::default(), Some(&encoder), &Unobserved)?;
//! upgrade.fit(Method::Ridge, None, &Progress::default())?;
//! upgrade.start(&Unobserved)?;
//! upgrade.switch(None, true)?;
//! upgrade.run(&RunOptions::default(), Some(&encoder), &Unobserved)?;
//! upgrade.finish(false, &Unobserved)?;
//! let query = Matrix::new(32, embed(32, &text(17)))?;
//! let answer = gallery.search(&[("second", &query)], 1, &Filter::default())?;
//! assert_eq!(answer.found[0][0].id, "17");
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "sqlite"))]
//! # fn main() {}
//! ```
//!
//! The crate holds nothing of its own: each name stands in the crate that it comes from.

pub use rehang_core::*;
pub use rehang_encode as encode;
pub use rehang_evaluate as evaluate;
pub use rehang_files as files;
pub use rehang_fit as fit;
#[cfg(feature = "postgres")]
pub use rehang_postgres as postgres;
#[cfg(feature = "qdrant")]
pub use rehang_qdrant as qdrant;
#[cfg(feature = "sqlite")]
pub use rehang_sqlite as sqlite;
pub use rehang_store as store;
pub use rehang_upgrade as upgrade;
pub use rehang_upgrade::{Configuration, Gallery, Location, Upgrade};
