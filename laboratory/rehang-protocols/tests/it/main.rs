//! The protocols of the papers against their definitions, and against what the demo's files give.

mod compatibility;
mod demo;
mod protocols;
