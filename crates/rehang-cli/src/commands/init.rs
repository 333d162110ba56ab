//! `rehang init`.

use rehang::Result;

use super::Outcome;
use crate::arguments::Init;

/// Writes a first configuration.
pub fn run(arguments: &Init, json: bool) -> Result<Outcome> {
    let written = rehang_upgrade::init(&rehang_upgrade::Init {
        gallery: arguments.gallery.clone(),
        adapter: arguments.adapter.clone(),
        forecast: arguments.forecast.clone(),
        new_name: arguments.new_name.clone(),
        new_dimension: arguments.new_dimension,
        new_distance: arguments.new_distance.as_deref().map(str::parse).transpose()?,
        path: arguments.out.clone(),
    })?;
    let next = if arguments.adapter.is_some() { "plan" } else { "auto" };
    let text = format!(
        "{} is written: from {} to {}.\nChoose the new model's [encoder] there, then: rehang upgrade {next} --config {}\n",
        written.path.display(),
        written.old,
        written.new,
        written.path.display()
    );
    Outcome::Done.print(json, &written, &text)
}
