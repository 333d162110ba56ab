//! The verbs: they call a library of the laboratory, and print.

pub mod compare;
pub mod evaluate;
pub mod train;
