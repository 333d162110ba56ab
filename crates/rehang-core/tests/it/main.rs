//! Adapters and the curve against slow twins.

#[path = "../adapters/mod.rs"]
mod adapters;

mod adapter_apply;
mod curve;
