//! `rehang doctor`.

use rehang_core::Result;
use rehang_core::finding::Severity;
use rehang_upgrade::{Configuration, Examination, examine};

use super::{Exit, location};
use crate::arguments::DoctorArguments;
use crate::wording;
use serde_json::{Value, json};

/// Examines a gallery.
pub fn run(arguments: &DoctorArguments, json: bool) -> Result<Exit> {
    let configuration = arguments.config.as_deref().map(Configuration::read).transpose()?;
    let location = location(arguments.gallery.as_deref(), configuration.as_ref())?;
    let examination = examine(&location, configuration.as_ref(), arguments.repair)?;
    let (text, value) = said(&examination);
    Exit::done_if(examination.bad == 0).print(json, &value, &text)
}

/// Puts the findings of an examination into words and into JSON.
pub fn said(examination: &Examination) -> (String, Value) {
    let (mut text, mut findings) = (String::new(), Vec::new());
    for finding in &examination.findings {
        let bad = finding.severity == Severity::Problem;
        let sentence = match &finding.next {
            Some(step) => format!("{}; {}", finding.seen.trim_end_matches('.'), wording::remedy(step)),
            None => finding.seen.clone(),
        };
        text += &format!("{} {sentence}\n", if bad { "✗" } else { "·" });
        findings.push(json!({ "bad": bad, "what": finding.code, "text": sentence }));
    }
    text += &match examination.bad {
        0 => "Nothing is wrong.\n".to_owned(),
        bad => format!("{bad} findings need attention.\n"),
    };
    let value = json!({
        "gallery": examination.gallery,
        "bad": examination.bad,
        "findings": findings,
        "indexes": examination.indexes,
    });
    (text, value)
}
