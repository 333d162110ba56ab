//! Studies: what the methods of papers and rehang's own choices are worth, measured on real vectors. They
//! read `../shared/data`, seen from the root of the repository, and write the records and pages of the
//! laboratory.

mod bias;
mod bridge;
mod demo_data;
mod drift;
mod forecast;
mod fuse;
mod identify;
mod learning;
mod live;
mod networks;
mod orders;
mod papers;
mod records;
mod refit;
mod regret;
mod whole;

use rehang_core::Result;

use crate::arguments::StudyName;

/// Folder of the real galleries, unless another one is named.
const DATA: &str = "../shared/data";

/// Repeats a study with the words behind its name.
pub fn run(study: StudyName, rest: &[&str]) -> Result<()> {
    match study {
        StudyName::Bias => bias::run(rest.first().unwrap_or(&DATA)),
        StudyName::Bridge => bridge::run(rest),
        StudyName::DemoData => demo_data::run(),
        StudyName::Drift => drift::run(rest),
        StudyName::Forecast => forecast::run(rest),
        StudyName::Fuse => fuse::run(rest),
        StudyName::Identify => identify::run(rest),
        StudyName::Learning => learning::run(rest),
        StudyName::Live => live::run(rest),
        StudyName::Networks => networks::run(rest),
        StudyName::Orders => orders::run(rest),
        StudyName::Papers => papers::run(rest),
        StudyName::Refit => refit::run(rest),
        StudyName::Regret => regret::run(rest),
        StudyName::Whole => whole::run(rest),
    }
}
