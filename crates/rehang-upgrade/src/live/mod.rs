//! Fills the new space and embeds its items again while people search and write: the pure state machine, its
//! one loop, and all that a worker heeds.

pub(crate) mod backfill;
pub(crate) mod encoding;
pub(crate) mod equal;
pub(crate) mod estimate;
pub(crate) mod faults;
pub(crate) mod fill;
pub(crate) mod first;
pub(crate) mod health;
pub(crate) mod identity;
pub(crate) mod leftovers;
pub(crate) mod limits;
pub(crate) mod manners;
pub(crate) mod refit_turn;
pub(crate) mod run;
pub(crate) mod sample;
pub(crate) mod spending;
pub(crate) mod turn;
pub(crate) mod until;
pub(crate) mod unvouched;
pub(crate) mod watch;
