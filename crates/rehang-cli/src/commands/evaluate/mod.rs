//! `rehang evaluate`: what compatible models are worth.

mod faces;
mod landmarks;
mod retrieval;
mod table;

use rehang::{Error, ErrorKind, Matrix, Result};

use super::Outcome;
use crate::arguments::evaluate::Evaluate;
use crate::input::Inputs;

/// Runs one of the verbs.
pub fn run(arguments: &Evaluate, json: bool) -> Result<Outcome> {
    match arguments {
        Evaluate::Cross(cross) => retrieval::cross(cross, json),
        Evaluate::Refresh(refresh) => retrieval::refresh(refresh, json),
        Evaluate::Sequence(sequence) => retrieval::sequence(sequence, json),
        Evaluate::Verification(verification) => faces::verification(verification, json),
        Evaluate::Identification(identification) => faces::identification(identification, json),
        Evaluate::Landmarks(landmarks) => landmarks::landmarks(landmarks, json),
    }
}

/// The models' names and vectors, in the order given.
struct Named {
    names: Vec<String>,
    vectors: Vec<Matrix>,
}

impl Named {
    /// Reads the vectors of `NAME=FILE`, once a name.
    fn read(option: &str, role: &str, texts: &[String], inputs: &mut Inputs) -> Result<Self> {
        let (names, files) = split_all(option, texts)?;
        let vectors = names
            .iter()
            .zip(&files)
            .map(|(name, file)| inputs.matrix(&format!("{role} by {name}"), std::slice::from_ref(file)))
            .collect::<Result<_>>()?;
        Ok(Self { names, vectors })
    }

    /// The number of a model.
    fn place(&self, option: &str, name: &str) -> Result<usize> {
        let place = self.names.iter().position(|other| other == name);
        place.ok_or_else(|| Error::option(option, name, format!("a model: {}", self.names.join(", "))))
    }

    /// The number of the best model, where one is named.
    fn best(&self, best: Option<&String>) -> Result<Option<usize>> {
        best.map(|name| self.place("--best", name)).transpose()
    }

    /// Query vectors for these models, in their order; `None` where none are given.
    fn queries(&self, texts: &[String], inputs: &mut Inputs) -> Result<Option<Vec<Matrix>>> {
        if texts.is_empty() {
            return Ok(None);
        }
        let (names, files) = split_all("--queries", texts)?;
        for name in &names {
            self.place("--queries", name)?;
        }
        self.names
            .iter()
            .map(|name| {
                let place = names
                    .iter()
                    .position(|other| other == name)
                    .ok_or_else(|| Error::missing(format!("--queries {name}=FILE"), "separate queries"))?;
                inputs.matrix_as_it_is(&format!("queries by {name}"), &files[place])
            })
            .collect::<Result<_>>()
            .map(Some)
    }
}

/// Names and files of `NAME=FILE`; no name may stand twice.
fn split_all(option: &str, texts: &[String]) -> Result<(Vec<String>, Vec<String>)> {
    let mut names: Vec<String> = Vec::with_capacity(texts.len());
    let mut files = Vec::with_capacity(texts.len());
    for text in texts {
        let (name, file) =
            text.split_once('=')
                .filter(|(name, file)| !name.is_empty() && !file.is_empty())
                .ok_or_else(|| Error::option(option, text, "NAME=FILE, for example old=old.npy"))?;
        if names.iter().any(|other| other == name) {
            return Err(
                ErrorKind::Duplicate { what: option.into(), value: format!("the name {name:?}") }.into()
            );
        }
        names.push(name.to_owned());
        files.push(file.to_owned());
    }
    Ok((names, files))
}
