//! Studies and generated files of the rehang repository.
fn main() {}
