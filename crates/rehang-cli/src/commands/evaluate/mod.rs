//! `rehang evaluate`: what compatible models are worth.

mod protocols;
mod retrieval;
mod table;

use rehang::Result;

use super::Outcome;
use crate::arguments::evaluate::Evaluate;

/// Runs one of the verbs.
pub fn run(arguments: &Evaluate, json: bool) -> Result<Outcome> {
    match arguments {
        Evaluate::Cross(cross) => retrieval::cross(cross, json),
        Evaluate::Refresh(refresh) => retrieval::refresh(refresh, json),
        Evaluate::Sequence(sequence) => retrieval::sequence(sequence, json),
        Evaluate::Verification(verification) => protocols::verification(verification, json),
        Evaluate::Identification(identification) => protocols::identification(identification, json),
        Evaluate::Landmarks(landmarks) => protocols::landmarks(landmarks, json),
    }
}
