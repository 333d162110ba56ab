//! `rehang inspect`.

use std::fmt::Write;

use rehang::{Adapter, Result};
use serde_json::json;

use super::{Outcome, print};
use crate::arguments::Inspect;

/// Says what an adapter file is.
pub fn run(arguments: &Inspect, json: bool) -> Result<Outcome> {
    let adapter = Adapter::load(&arguments.adapter)?;
    let training = &adapter.training;
    let value = json!({
        "adapter": arguments.adapter.display().to_string(),
        "old": adapter.old,
        "new": adapter.new,
        "geometry": adapter.geometry.name(),
        "uncertainty": adapter.uncertainty.name(),
        "handicap": adapter.handicap,
        "training": training,
    });
    let mut text = format!(
        "{}\n  from         {}\n  to           {}\n  method       {}, seed {}, {} pairs, rehang {}\n  geometry     {}\n  uncertainty  {}\n  \
         handicap     {}\n",
        arguments.adapter.display(),
        adapter.old,
        adapter.new,
        training.method,
        training.seed,
        training.pairs,
        training.version,
        adapter.geometry.name(),
        adapter.uncertainty.name(),
        adapter.handicap,
    );
    for (name, value) in &training.hyper_parameters {
        // Writing into a String cannot fail.
        let _ = writeln!(text, "  {name:<12} {value}");
    }
    for (role, fingerprint) in &training.inputs {
        let _ = writeln!(text, "  input        {role} {fingerprint}");
    }
    print(json, &value, &text)?;
    Ok(Outcome::Done)
}
