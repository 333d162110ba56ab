//! Learns an upgrade from its own gallery: questions and clicks, pairs, the map and its forecast, whether
//! they still hold, and which model to take.

pub(crate) mod asked;
pub(crate) mod drift;
pub(crate) mod fitting;
pub(crate) mod forecast;
pub(crate) mod health;
pub(crate) mod identify;
pub(crate) mod models;
pub(crate) mod outgrown;
pub(crate) mod refit;
pub(crate) mod refitting;
