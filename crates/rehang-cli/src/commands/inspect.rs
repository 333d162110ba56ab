//! `rehang inspect`.

use std::fmt::Write;

use rehang_core::Result;
use rehang_files::adapter_file::inspect;

use super::Exit;
use crate::arguments::InspectArguments;

/// Says what an adapter file is.
pub fn run(arguments: &InspectArguments, json: bool) -> Result<Exit> {
    let inspected = inspect(&arguments.adapter)?;
    let training = &inspected.training;
    let mut text = format!(
        "{}\n  from         {}\n  to           {}\n  method       {}, seed {}, {} pairs, rehang {}\n  geometry     {}\n  uncertainty  {}\n  \
         handicap     {}\n",
        inspected.adapter.display(),
        inspected.old,
        inspected.new,
        training.method,
        training.seed,
        training.pairs,
        training.version,
        inspected.geometry,
        inspected.uncertainty,
        inspected.handicap,
    );
    for (name, value) in &training.hyper_parameters {
        // Writing into a String cannot fail.
        let _ = writeln!(text, "  {name:<12} {value}");
    }
    for (role, fingerprint) in &training.inputs {
        let _ = writeln!(text, "  input        {role} {fingerprint}");
    }
    Exit::Done.print(json, &inspected, &text)
}
