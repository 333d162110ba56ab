//! Compatible training: a new encoder whose vectors can be searched against the old gallery at once.

pub mod heads;
mod objectives;

pub use heads::HeadForm;
pub use objectives::selective::Selection;
