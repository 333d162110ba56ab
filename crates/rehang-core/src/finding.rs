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
/// use rehang_core::finding::{Finding, FindingCode, Severity};
///
/// let finding = Finding::new(Severity::Warning, FindingCode::FewPairs, "There are 12 pairs.")
///     .remedy("Embed a few hundred items with both models.")
///     .evidence(&[("pairs", 12.0)]);
/// assert_eq!(finding.to_string(), "There are 12 pairs. Embed a few hundred items with both models.");
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// A stable name for scripts, such as `few-queries`.
    pub code: FindingCode,
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
    pub fn new(severity: Severity, code: FindingCode, observation: impl Into<String>) -> Self {
        Self {
            code,
            severity,
            seen: observation.into(),
            may_mean: String::new(),
            remedy: String::new(),
            next: None,
            evidence: Vec::new(),
        }
    }

    /// Makes a finding that is good to know.
    pub fn note(code: FindingCode, observation: impl Into<String>) -> Self {
        Self::new(Severity::Note, code, observation)
    }

    /// Makes a finding about numbers that may say less than they seem to.
    pub fn warning(code: FindingCode, observation: impl Into<String>) -> Self {
        Self::new(Severity::Warning, code, observation)
    }

    /// Makes a finding about numbers that must not be acted on before it is settled.
    pub fn problem(code: FindingCode, observation: impl Into<String>) -> Self {
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

/// Name of what a finding observed, for scripts and for code that looks for it.
///
/// Files, JSON and [`Display`](fmt::Display) have the variant's name in lower case with hyphens. A name that
/// was published stays as it is.
///
/// ```
/// use rehang_core::finding::FindingCode;
///
/// assert_eq!(FindingCode::FewQueries.to_string(), "few-queries");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum FindingCode {
    // Input files.
    /// Parameter that has no effect beside the others that are given.
    IdleParameter,
    /// Items that only one of two joined files has; they are left out.
    LeftOut,
    /// Judgements of items that do not take part; they are left out.
    LeftOutJudgements,
    /// Vectors of a gallery that are unlike those an adapter was fitted on, in a transform or a report.
    Drift,
    /// Items whose old vectors are among an adapter's pairs, in a transform or a curve.
    AmongPairs,

    // Pairs, maps and methods, in a fit.
    /// Number of pairs that is small for any map, or for the width of the old vectors, in a fit.
    FewPairs,
    /// Pairs whose vectors by one model are all the same, in a fit.
    ConstantVectors,
    /// Coordinates of one model's vectors that never vary, in a fit.
    ConstantColumns,
    /// Pairs with a vector of length 0, in a fit.
    ZeroVectors,
    /// Pairs whose vector by one model repeats another one, more than a tenth of all, in a fit.
    DuplicateVectors,
    /// Vector that many pairs have in common although their other model tells them apart, in a fit.
    OneVector,
    /// Items that have the source of another one, which is measured in their place, in a fit or a report.
    EqualSources,
    /// Pairs, or a head, by which old and new seem to be swapped, in a fit.
    Swapped,
    /// Pairs without labels, which leave open whether the new model finds better results, in a fit.
    UnknownWithoutLabels,
    /// Labels that are all negative, which means unknown, in a fit.
    UnknownLabels,
    /// Labels that tell no item from another, in a fit.
    IdleLabels,
    /// Side information that the fitted method does not look at.
    IdleSide,
    /// Head that nothing is trained towards, since the pairs of a fit have no labels.
    HeadWithoutLabels,
    /// Labels that the head of a fit does not know.
    LabelsUnknownToHead,
    /// Head that classifies few of the new vectors as their labels say, in a fit.
    ForeignHead,
    /// Pairs whose old vector is the new model's already, a fifth or more of all, in a fit.
    SameVectors,
    /// Old vectors of two kinds, as those of two models, among the pairs of a fit.
    TwoKinds,
    /// Pairs that fit as badly as chance, since their new vectors are unlike those of similar items.
    Misfits,
    /// Adapted vectors that are no nearer to the native ones than their mean is, in a fit or by a check of an
    /// adapter.
    NoBetterThanTheMean,
    /// Adapter that carries new vectors to old ones, by a check of it in a curve or a report.
    WrongDirection,
    /// Items to measure on whose old vectors are among the pairs, in a fit or a report.
    Overlap,
    /// Quality of the new model that is not above doing nothing, in a fit or a curve.
    NoGain,
    /// Quality over a whole upgrade that is not above doing nothing, although its end is.
    GainIsLate,
    /// Quality right after the switch that is below doing nothing, although that over the upgrade is above.
    StartBelowDoNothing,
    /// Curve that falls below its own start and ends above its lowest point.
    CurveDips,
    /// Method that does better on held-out pairs than the named one, in a fit.
    BetterMethod,
    /// Comparison of methods in which no learned map does better than the old vectors as they are.
    DoNothingWins,
    /// Rounding of an adapter to half precision, and how far it moves the adapted vectors.
    RoundedAdapter,

    // Curves and reports.
    /// Adapter that does not remember its pairs, so a curve cannot look for items among them.
    PairsUnknown,
    /// Labels that are all the same, in a curve.
    OneClass,
    /// Queries without vectors of the old model, so that a curve has no line of doing nothing.
    NoDoNothingLine,
    /// Number of counted queries that is small, in a report or a comparison of models.
    FewQueries,
    /// Queries without a right answer in the gallery, more than half of all, in a report.
    LeftOutQueries,
    /// Methods of a report that were fitted with one seed each.
    OneSeed,
    /// Labels that are names beside a head, which numbers its classes, in a report.
    NamesForClasses,
    /// Curve of a report, by any metric, that falls before it rises.
    Dip,
    /// Curve of a report that is not above doing nothing even at its end.
    NeverBetter,
    /// Curve of a report that passes doing nothing only when a share of the items is re-embedded.
    SwitchLater,
    /// Metric other than the verdict's that falls at the switch, in a report.
    AnotherMetricFalls,
    /// Forecast of a report whose range at the switch is wider than half of everything.
    WideForecast,
    /// Values of σ² that are far from the true errors in the mean, in a report.
    Calibration,
    /// Values of σ² that hardly rank the true errors, in a report.
    UninformativeSigma,

    // Origin of vectors.
    /// Vectors without a direction, or whose items no model has a vector of, in an identification.
    PassedOver,
    /// Vectors that another model could have made as well, in an identification.
    Unclear,
    /// Vectors of a model that have another length than it gives, in an identification.
    Lengths,
    /// Vectors that are nearly those of a model, but farther from them than what providers change.
    Near,
    /// Vectors that no model made and that are not independent of a model's.
    Related,
    /// Vectors that are too few or too short for an identification without models.
    FewVectors,

    // Encoders.
    /// Service that stops reading a text after some number of characters, in silence.
    EncoderCuts,
    /// Texts that are longer than the tokens that a model of this machine reads of each.
    CutTexts,
    /// Images with an orientation tag that an encoder read as they are stored.
    OrientationTags,
    /// Encoder that gives one text different vectors in two calls.
    EncoderNoise,
    /// Encoder that gives a text another vector beside other texts than alone.
    EncoderBatches,

    // Comparison of models on a sample.
    /// Documents or queries that a model has no vector for, in a comparison of models.
    Refused,
    /// Clicks on no document of a comparison of models.
    UnknownClicks,

    // Upgrade of a gallery.
    /// Sources that are blank or have a NUL character, in a plan or an examination.
    PeculiarSources,
    /// Sources that a service does not read to their end, in a plan or an examination.
    CutSources,
    /// Vectors of unequal lengths that a service cut, where the distance heeds lengths.
    CutVectors,
    /// Clicks of too few queries to choose by, in the fit of an upgrade.
    FewClicks,
    /// Native items that are no pairs, since one of their vectors has no direction or is not finite.
    NoDirection,
    /// Failure to fit the bridge that the report of an upgrade would have shown.
    NoBridge,
    /// Forecast that asks other items as queries than the forecast before it.
    MoreQueries,
    /// Forecast by another curve of its report than the upgrade's, which the report does not have.
    AnotherCurve,
    /// Forecast by an adapter that was fitted on other pairs than the upgrade's.
    OtherPairs,
    /// Forecast by a report that names a problem.
    UnreliableForecast,
    /// Floor of an application's searches that moves with the model at a switch.
    FloorsMove,
    /// Items of a plan's probe that got no vector.
    FailedProbe,
    /// Old vectors of a gallery that do not look like those that its adapter was fitted on, before a start.
    InputDrift,
    /// Gallery that is not what its map was fitted for, before anything is embedded or in a refit.
    GalleryDrift,
    /// Map by which the database itself does not adapt what an application writes.
    AdaptedLater,
    /// Values of σ² that are too small or too large by a factor, in a refit.
    SigmaScale,
    /// Failure to find out whether a refit pays.
    RefitFailed,
    /// Items with a source that are not native yet, before a finish.
    LeftWithSource,
    /// Items without a vector of the new space, before a finish.
    LeftWithoutVector,
    /// Items without a source, which never become native, before a finish.
    LeftWithoutSource,
    /// Finish after which there is no way back.
    NoWayBack,

    // Examination of a gallery.
    /// Flaw that a store finds in itself, by an examination.
    Store,
    /// Remark of a store on its server, by an examination.
    Server,
    /// Rows of a dropped space that still take room.
    DroppedRows,
    /// Items without a source, by an examination.
    WithoutSource,
    /// Bridge in use that is lost or not whole, by an examination.
    Bridge,
    /// Space that neither serves nor takes part in an upgrade.
    ForgottenSpace,
    /// Vectors of a space that are of two models, or could not be looked at, by an examination.
    MixedModels,
    /// Vectors of a space that its model does not give again, by an examination.
    AnotherModel,
    /// Items without a vector in the space that serves, which no search finds.
    NotFound,
    /// Adapted vectors in the space that serves, while no upgrade is under way.
    Adapted,
    /// Items of a space that could not be embedded.
    Failed,
    /// Index that an examination made again, or had to leave as it is.
    Index,
    /// Share of the true nearest items that searches of a space find.
    Recall,
    /// Index that takes far more bytes a vector than when it was made.
    Bloat,
    /// State of the search index of a space.
    IndexHealth,
    /// Fault of a configuration, or remark on it, by an examination.
    Configuration,
    /// Upgrade that is under way, by an examination.
    Upgrade,
    /// Native items that were kept unproven, since their encoder could not be compared with itself.
    Unvouched,
    /// Values of σ² that disagree with the true errors of backfilled items.
    Sigma,

    // Laboratory.
    /// Trained adapter that is not kept, since no file is named for it.
    AdapterNotKept,
    /// File for an adapter that a training does not give.
    NoAdapter,
    /// Ids of a solution that have no vectors, in a protocol of landmarks.
    IdsWithoutVectors,
    /// Templates that are zero vectors, in a protocol of faces.
    ZeroTemplates,

    /// Name that this version does not know, as another version wrote it.
    #[serde(untagged)]
    Other(String),
}

/// Writes the name that files have.
impl fmt::Display for FindingCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_printed_as_files_have_it_and_one_of_another_version_is_kept() {
        let known = ("no-better-than-the-mean", FindingCode::NoBetterThanTheMean);
        let unknown = ("of-tomorrow", FindingCode::Other("of-tomorrow".into()));
        for (name, code) in [known, unknown] {
            let finding = Finding::note(code, "It was seen.");
            let text = serde_json::to_string(&finding).unwrap();
            assert!(text.starts_with(&format!(r#"{{"code":"{name}","severity":"note""#)), "{text}");
            assert_eq!(serde_json::from_str::<Finding>(&text).unwrap(), finding);
            assert_eq!(finding.code.to_string(), name);
        }
    }
}
