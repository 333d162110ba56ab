//! Nothing: the crate's dependencies are its purpose. Its name is the one that such crates have.
