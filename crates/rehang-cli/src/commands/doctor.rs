//! `rehang doctor`.

use rehang::Result;
use rehang_upgrade::{Configuration, examine};

use super::{Outcome, location, print_value};
use crate::arguments::Doctor;
use crate::wording;

/// Examines a gallery.
pub fn run(arguments: &Doctor, json: bool) -> Result<Outcome> {
    let configuration = arguments.config.as_deref().map(Configuration::read).transpose()?;
    let location = location(arguments.gallery.as_deref(), configuration.as_ref())?;
    let mut examination = examine(&location, configuration.as_ref(), arguments.repair)?;
    let mut text = String::new();
    for finding in &mut examination.findings {
        if let Some(remedy) = &finding.remedy {
            finding.text = format!("{}; {}", finding.text, wording::remedy(remedy));
        }
        text += &format!("{} {}\n", if finding.bad { "✗" } else { "·" }, finding.text);
    }
    text += &match examination.bad {
        0 => "Nothing is wrong.\n".to_owned(),
        bad => format!("{bad} findings need attention.\n"),
    };
    print_value(json, &examination, &text)?;
    Ok(Outcome::done_if(examination.bad == 0))
}
