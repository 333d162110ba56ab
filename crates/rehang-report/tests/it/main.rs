//! Tests pages and tables against the committed ones.

mod common;

mod comparison;
mod exports;
