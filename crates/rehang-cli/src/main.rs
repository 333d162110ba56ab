//! The rehang command line.
fn main() {}
