//! Findings: problems noticed in data, a fit, a curve or a gallery, told before they cost a night.
//!
//! A finding never stops anything. It says how much it matters, and its reader decides.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::remedy::Remedy;

/// Severity of a finding; later variants matter more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Good to know.
    #[default]
    Note,
    /// The numbers may say less than they seem to.
    Warning,
    /// The numbers must not be acted on before this is settled.
    Problem,
}

/// Finding: what was seen, what it may mean, what to try, and the numbers that show it.
///
/// The three texts are whole sentences, or empty, and name no command and no flag. A face that has a command
/// for the remedy says so in its own words.
///
/// ```
/// use rehang_core::finding::{Finding, Severity};
///
/// let finding = Finding::new(Severity::Warning, "few-pairs", "There are 12 pairs.")
///     .remedy("Embed a few hundred items with both models.")
///     .evidence(&[("pairs", 12.0)]);
/// assert_eq!(finding.to_string(), "There are 12 pairs. Embed a few hundred items with both models.");
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Finding {
    /// A stable name for scripts, such as `few-queries`.
    pub code: String,
    /// Severity of the finding.
    pub severity: Severity,
    /// Observation, as a sentence.
    pub seen: String,
    /// Possible meaning of the observation, as a sentence.
    #[serde(default)]
    pub may_mean: String,
    /// Remedy in words.
    #[serde(default)]
    pub remedy: String,
    /// The next step, where a face has words of its own for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Remedy>,
    /// Numbers that show the observation, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<(String, f64)>,
}

impl Finding {
    /// Makes a finding that says what was seen; the other parts are added afterwards.
    pub fn new(severity: Severity, code: &str, observation: impl Into<String>) -> Self {
        Self { code: code.into(), severity, seen: observation.into(), ..Self::default() }
    }

    /// Makes a finding that is good to know.
    pub fn note(code: &str, observation: impl Into<String>) -> Self {
        Self::new(Severity::Note, code, observation)
    }

    /// Makes a finding about numbers that may say less than they seem to.
    pub fn warning(code: &str, observation: impl Into<String>) -> Self {
        Self::new(Severity::Warning, code, observation)
    }

    /// Makes a finding about numbers that must not be acted on before it is settled.
    pub fn problem(code: &str, observation: impl Into<String>) -> Self {
        Self::new(Severity::Problem, code, observation)
    }

    /// Adds what the observation may mean.
    #[must_use]
    pub fn may_mean(self, may_mean: impl Into<String>) -> Self {
        Self { may_mean: may_mean.into(), ..self }
    }

    /// Adds what to try.
    #[must_use]
    pub fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: remedy.into(), ..self }
    }

    /// Adds the next step, for the faces.
    #[must_use]
    pub fn next(self, step: Remedy) -> Self {
        Self { next: Some(step), ..self }
    }

    /// Adds the numbers that show the observation.
    #[must_use]
    pub fn evidence(self, evidence: &[(&str, f64)]) -> Self {
        Self { evidence: evidence.iter().map(|&(name, value)| (name.to_owned(), value)).collect(), ..self }
    }
}

/// Joins the sentences, one after the other.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sentences: Vec<&str> = [&self.seen, &self.may_mean, &self.remedy]
            .into_iter()
            .map(String::as_str)
            .filter(|sentence| !sentence.is_empty())
            .collect();
        f.write_str(&sentences.join(" "))
    }
}

/// Converts findings to JSON, each also with its sentences as one `message`.
pub fn with_messages(findings: &[Finding]) -> Value {
    let value = |finding: &Finding| {
        let mut value = json!(finding);
        value["message"] = json!(finding.to_string());
        value
    };
    findings.iter().map(value).collect()
}
