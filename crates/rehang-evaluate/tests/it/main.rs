//! Evaluations on the demo's files and on real galleries.

mod copies;
mod curve_on_real_galleries;
mod demo;
