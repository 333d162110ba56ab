//! `rehang-lab evaluate`: what compatible models are worth.

mod protocols;
mod retrieval;
mod table;

use rehang_cli::shared::Exit;
use rehang_core::Result;

use crate::arguments::evaluate::EvaluateCommand;

/// Runs one of the verbs.
pub fn run(arguments: &EvaluateCommand, json: bool) -> Result<Exit> {
    match arguments {
        EvaluateCommand::Cross(cross) => retrieval::cross(cross, json),
        EvaluateCommand::Refresh(refresh) => retrieval::refresh(refresh, json),
        EvaluateCommand::Sequence(sequence) => retrieval::sequence(sequence, json),
        EvaluateCommand::Verification(verification) => protocols::verification(verification, json),
        EvaluateCommand::Identification(identification) => protocols::identification(identification, json),
        EvaluateCommand::Landmarks(landmarks) => protocols::landmarks(landmarks, json),
    }
}
