//! Studies: what the methods of papers and rehang's own choices are worth, measured on real vectors. They read `../shared/data`, seen from
//! the root of the repository, and write the records and pages of the laboratory.

mod bias;
mod bridge;
mod demo_data;
mod drift;
mod forecast;
mod fuse;
mod identify;
mod learning;
mod orders;
mod papers;
mod records;
mod refit;
mod regret;

use std::path::{Path, PathBuf};

use rehang::Result;

use crate::arguments::Study;

/// Where the real galleries lie, unless another folder is named.
const DATA: &str = "../shared/data";

/// Repeats a study with what stands behind its name.
pub fn run(study: Study, rest: &[&str]) -> Result<()> {
    match study {
        Study::Bias => bias::run(rest.first().unwrap_or(&DATA)),
        Study::Bridge => bridge::run(rest),
        Study::DemoData => demo_data::run(),
        Study::Drift => drift::run(rest),
        Study::Forecast => forecast::run(rest),
        Study::Fuse => fuse::run(rest),
        Study::Identify => identify::run(rest),
        Study::Learning => learning::run(rest),
        Study::Orders => orders::run(rest),
        Study::Papers => papers::run(rest),
        Study::Refit => refit::run(rest),
        Study::Regret => regret::run(rest),
    }
}

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new(".")).to_path_buf()
}
