//! Examination of a gallery: mixed models, items that no search finds, ill indexes, a configuration
//! that does not fit.

use rehang_core::finding::{Finding, FindingCode, Severity};
use rehang_core::{Provenance, Remedy, Result, Space};
use rehang_evaluate::Identified;
use rehang_store::{Examined, IndexHealth, IndexKind, Problem, SpaceRecord, Store, find_space};
use serde::Serialize;

use crate::configuration::Configuration;
use crate::kept;
use crate::learn::fit;
use crate::learn::identify::{gives_again, look_alone};
use crate::learn::outgrown::outgrown;
use crate::live::identity::is_another;
use crate::places::index::recall;
use crate::places::location::Location;
use crate::record::{Phase, UpgradeRecord};
use crate::setup::expect_same;
use crate::status::status;
use crate::verbs::plan;

/// Recall@10 below which an index is said to be ill.
const RECALL_MIN: f64 = 0.95;
/// Growth above which an index is said to be bloated: its bytes a vector, as a multiple of
/// those when it was made.
const GROWTH_MAX: f64 = 1.5;

/// Makes a finding of something that has to be done.
fn problem(code: FindingCode, message: impl Into<String>) -> Finding {
    Finding::new(Severity::Problem, code, message)
}

/// Makes a finding of something to know.
fn note(code: FindingCode, message: impl Into<String>) -> Finding {
    Finding::new(Severity::Note, code, message)
}

/// Result of [`examine`].
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Examination {
    /// Name of the gallery.
    pub gallery: String,
    /// Number of findings that need attention.
    pub bad: usize,
    /// All findings: problems need attention, notes are good to know. [`FindingCode`] says what each code
    /// means; what the last fit found of its pairs is among them.
    pub findings: Vec<Finding>,
    /// Search index of every space.
    pub indexes: Vec<SpaceIndex>,
}

/// Search index of a space, and its health.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SpaceIndex {
    /// Name of the space.
    pub space: String,
    /// Health of the index.
    pub health: IndexHealth,
}

/// Examines a gallery, and a configuration with it. Where an upgrade is live or finished, the configuration
/// has to be of that one; otherwise it has to be of one that could begin. Its encoders are opened. An encoder
/// that runs here and can say what it is embeds eight items of its space; services and programs embed
/// nothing. With `repair`, indexes are made again whose recall@10 is below 0.95, or that have more than 1.5
/// times the bytes a vector that they had when they were made.
///
/// # Errors
///
/// Those of opening and reading the gallery.
pub fn examine(
    location: &Location,
    configuration: Option<&Configuration>,
    repair: bool,
) -> Result<Examination> {
    examine_store(location, &*location.open()?, configuration, repair, true)
}

/// Examines a gallery that is open, as [`examine`]. `opens_encoders` says whether its encoders are opened:
/// verbs that need one open it, and a caller may have another.
pub(crate) fn examine_store(
    location: &Location,
    store: &dyn Examined,
    configuration: Option<&Configuration>,
    repair: bool,
    opens_encoders: bool,
) -> Result<Examination> {
    let recorded = UpgradeRecord::read(store)?;
    let mut findings: Vec<Finding> =
        store.check()?.iter().map(|flaw| problem(FindingCode::Store, describe(flaw))).collect();
    findings.extend(store.remarks()?.into_iter().map(|text| note(FindingCode::Server, text)));
    findings.extend(examine_sources(location, store)?);
    if store.has_dropped_rows()? {
        let text = "a space was dropped, and its rows still take room: another process is at it, or died";
        findings.push(note(FindingCode::DroppedRows, text).next(Remedy::Compact));
    }
    let mut indexes = Vec::new();
    for record in store.spaces()? {
        examine_space(store, &record, recorded.as_ref(), &mut findings)?;
        let space = record.space.name;
        let health = examine_index(store, &space, repair, &mut findings)?;
        indexes.push(SpaceIndex { space, health });
    }
    if let Some(configuration) = configuration {
        findings.extend(examine_configuration(configuration, location, store, recorded.as_ref()));
        if location.is_same(&configuration.gallery) && !configuration.names_adapter() {
            findings.extend(fit::findings(store, &configuration.new.name)?);
        }
        if opens_encoders && location.is_same(&configuration.gallery) {
            findings.extend(examine_encoders(configuration, store, recorded.as_ref())?);
            findings.extend(configuration.outlook(store)?);
        }
    }
    findings.extend(examine_bridge(store, recorded.as_ref())?);
    if let Some(record) = recorded.filter(|record| record.phase != Phase::Finished) {
        let status = status(store, 0)?;
        let text = format!(
            "an upgrade from {:?} to {:?} is {}, {:.1} % native",
            record.old.name,
            record.new.name,
            record.phase.name(),
            100.0 * status.fraction
        );
        findings.push(note(FindingCode::Upgrade, text));
        if status.unvouched > 0 {
            let text = format!(
                "{} native items were kept after which the encoder could not be compared with itself, so they may be another model's; \
                 the next run embeds the last of them again and compares, before it embeds anything else",
                status.unvouched
            );
            findings.push(note(FindingCode::Unvouched, text));
        }
        findings.extend(status.findings);
        if status.sigma.is_some_and(|sigma| sigma.alarm) {
            let text = "σ² and the true errors of backfilled items disagree";
            findings.push(problem(FindingCode::Sigma, text).next(Remedy::FitAgain));
        }
    }
    let bad = findings.iter().filter(|finding| finding.severity == Severity::Problem).count();
    Ok(Examination { gallery: store.name(), bad, findings, indexes })
}

/// Whether the bridge that searches of the old space use is where they look for it.
fn examine_bridge(store: &dyn Examined, record: Option<&UpgradeRecord>) -> Result<Vec<Finding>> {
    let Some((record, in_use)) = record.and_then(|record| Some((record, record.bridge.as_ref()?))) else {
        return Ok(Vec::new());
    };
    let mut findings = Vec::new();
    if store.lacks_bridge(&in_use.fingerprint, record.old.dimension)? {
        let text = format!(
            "queries of both models go to {:?} over a bridge, and it is not there, or not whole, for searches in SQL: they go as those of the old model alone are",
            record.old.name
        );
        findings.push(problem(FindingCode::Bridge, text).next(Remedy::BridgeAgain));
    }
    let lost = match kept::bridge(store, &in_use.fingerprint) {
        Ok(bridge) => bridge
            .is_none()
            .then(|| format!("the bridge that queries to {:?} go over was lost", record.old.name)),
        Err(error) => Some(error.to_string()),
    };
    findings.extend(lost.map(|text| problem(FindingCode::Bridge, text).next(Remedy::BridgeAgain)));
    Ok(findings)
}

/// Finds items without a source, which no model can embed again, and says what a release makes of them.
fn examine_sources(location: &Location, store: &dyn Examined) -> Result<Option<Finding>> {
    let items = if matches!(location, Location::File(_)) { 0 } else { store.count_without_source()? };
    Ok((items > 0).then(|| {
        let text = format!(
            "{items} items have no source: they never become native, and a release leaves them without a vector, unless adapted ones are taken along"
        );
        note(FindingCode::WithoutSource, text)
    }))
}

/// Compares what a space holds with what it is for.
fn examine_space(
    store: &dyn Store,
    record: &SpaceRecord,
    upgrade: Option<&UpgradeRecord>,
    findings: &mut Vec<Finding>,
) -> Result<()> {
    let name = &record.space.name;
    let counts = store.counts(name)?;
    let serves = store.serving()?.as_deref() == Some(name.as_str());
    let of_upgrade = upgrade.is_some_and(|upgrade| {
        upgrade.phase != Phase::Finished && [&upgrade.old.name, &upgrade.new.name].contains(&name)
    });
    if !serves && !of_upgrade {
        let text = format!("space {name:?} neither serves nor takes part in an upgrade");
        findings.push(problem(FindingCode::ForgottenSpace, text).next(Remedy::DropSpace));
    }
    // A space holds vectors of one model; those of the other kind were put there by mistake.
    let foreign = match record.written_as {
        Provenance::Native => counts.old,
        Provenance::Old | Provenance::Adapted => counts.native + counts.adapted,
    };
    if foreign > 0 {
        let text = format!(
            "space {name:?} holds {foreign} vectors that are not {:?}: another model's, by their provenance",
            record.written_as.name()
        );
        findings.push(problem(FindingCode::MixedModels, text));
    }
    if serves && counts.lacking > 0 {
        let of_new = upgrade.filter(|upgrade| upgrade.new.name == *name);
        let old = match of_new {
            Some(upgrade) => find_space(store, &upgrade.old.name)?,
            None => None,
        };
        let lag = old.map_or(Ok(0), |old| store.count_lag(name, &old.space.name))?;
        // An item with neither a source nor an old vector can become nothing, as a point of an
        // application that has no text.
        let is_hopeless = of_new.is_some() && lag + counts.to_embed() == 0;
        let why = if is_hopeless { ", nor a source" } else { "" };
        let text = format!(
            "{} items have no vector in {name:?}, which serves{why}: no search finds them",
            counts.lacking
        );
        // Items with a source become native in an upgrade, like any other; the rest is lost to searches.
        let is_for_run = of_new.is_some() && !is_hopeless;
        let next = |finding: Finding| if is_for_run { finding.next(Remedy::Follow) } else { finding };
        let is_of_old = counts.without_source == 0 && record.written_as == Provenance::Old;
        findings.push(next(if is_of_old || is_hopeless {
            note(FindingCode::NotFound, text)
        } else {
            problem(FindingCode::NotFound, text)
        }));
    }
    findings.extend(of_one_model(name, look_alone(store, name)));
    if serves && counts.adapted > 0 && !of_upgrade {
        let text = format!("{} vectors of {name:?} are adapted and no upgrade is under way", counts.adapted);
        findings.push(note(FindingCode::Adapted, text));
    }
    if counts.failed > 0 {
        let text = format!("{} items of {name:?} could not be embedded", counts.failed);
        findings.push(note(FindingCode::Failed, text));
    }
    Ok(())
}

/// Words the finding that the vectors of a space, looked at alone, are of two models; `None`
/// where they are not.
fn of_one_model(name: &str, looked: Result<Identified>) -> Option<Finding> {
    let text = match looked {
        Ok(alone) => {
            let kinds = alone.kinds.as_ref()?;
            format!(
                "vectors of {name:?} are of two kinds that share no axes, as those of two models: {} of {} that were looked at are of the \
                 smaller one (kinship {:.2}; within a kind {:.2})",
                kinds.small.unwrap_or_default(),
                alone.vectors,
                kinds.across,
                kinds.within
            )
        }
        // This error ends nothing: an application that has changed its table is told all that is wrong.
        Err(error) => {
            let text =
                format!("whether vectors of {name:?} are of one model could not be looked at: {error}");
            return Some(problem(FindingCode::MixedModels, text));
        }
    };
    Some(problem(FindingCode::MixedModels, text).next(Remedy::IdentifyVectors))
}

/// Measures how much of the true nearest the searches of a space find, and what room its index takes. With
/// `repair`, an ill index is made again.
fn examine_index(
    store: &dyn Examined,
    name: &str,
    repair: bool,
    findings: &mut Vec<Finding>,
) -> Result<IndexHealth> {
    let look = || -> Result<(f64, IndexHealth)> { Ok((recall(store, name)?, store.index_health(name)?)) };
    let (mut recall, mut health) = look()?;
    if repair && (recall < RECALL_MIN || has_grown(&health).is_some()) {
        match store.rebuild(name) {
            // The index is not the store's to make.
            Err(error) if error.is_conflict() => {
                let text = format!("index of {name:?} was left as it is: {error}");
                findings.push(note(FindingCode::Index, text));
            }
            Err(error) => return Err(error),
            Ok(()) => {
                store.flush()?;
                let (before, bytes_before) = (recall, health.bytes);
                (recall, health) = look()?;
                let mut text =
                    format!("index of {name:?} was made again: recall@10 {before:.3}, now {recall:.3}");
                if bytes_before > 0 {
                    text += &format!("; {bytes_before} bytes, now {}", health.bytes);
                }
                findings.push(note(FindingCode::Index, text));
            }
        }
    }
    findings.extend(findings_of(name, recall, &health));
    Ok(health)
}

/// Growth of an index where it is too much: its bytes a vector, as a multiple of those when it was made.
fn has_grown(health: &IndexHealth) -> Option<f64> {
    health.growth.filter(|growth| *growth > GROWTH_MAX)
}

fn findings_of(name: &str, recall: f64, health: &IndexHealth) -> Vec<Finding> {
    let text = format!("searches of {name:?} find {:.1} % of the true nearest 10", 100.0 * recall);
    let mut findings = vec![if recall < RECALL_MIN {
        problem(FindingCode::Recall, text).next(Remedy::RebuildIndex)
    } else {
        note(FindingCode::Recall, text)
    }];
    if let Some(growth) = has_grown(health) {
        // Searches are right all the same, and an upgrade may go on.
        let text = format!(
            "the index of {name:?} has {growth:.1} times as many bytes a vector as when it was made: vectors that were replaced leave room in it"
        );
        findings.push(note(FindingCode::Bloat, text).next(Remedy::RebuildIndex));
    }
    let text = describe_index(name, health);
    findings.push(match health.trouble {
        Some(_) => problem(FindingCode::IndexHealth, text),
        None => note(FindingCode::IndexHealth, text),
    });
    findings
}

/// Finds what the next verb would say of a configuration.
fn examine_configuration(
    configuration: &Configuration,
    gallery: &Location,
    store: &dyn Store,
    record: Option<&UpgradeRecord>,
) -> Vec<Finding> {
    let name = configuration.name();
    let finding = |text: String| problem(FindingCode::Configuration, format!("{name}: {text}"));
    if !gallery.is_same(&configuration.gallery) {
        return vec![finding(format!("it is about {}, not about {gallery}", configuration.gallery))];
    }
    let is_plain = configuration.is_plain(store, record);
    match is_plain.and_then(|is_plain| Ok(is_plain || configuration.has_adapter(store, record)?)) {
        Ok(true) => {}
        Ok(false) => {
            let text = format!("{name}: there is no adapter yet");
            return vec![note(FindingCode::Configuration, text).next(Remedy::DrawPairs)];
        }
        Err(error) => return vec![finding(error.to_string())],
    }
    let without_adapter = || {
        let text = format!(
            "{name}: there is no adapter, so old vectors would stand in the new space as they are, which is right only for a model \
             that was trained to search them"
        );
        note(FindingCode::Configuration, text).next(Remedy::DrawPairs)
    };
    let checked = configuration.planned_ongoing(store).and_then(|planned| {
        let setup = planned.setup();
        match (record, expect_same(store, &setup)) {
            // The old space of a finished upgrade is gone, so nothing could be planned with it any more.
            (Some(record), Ok(())) if record.phase == Phase::Finished => Ok(Vec::new()),
            (Some(record), Err(error)) if record.is_live() => Err(error),
            (record, _) => {
                let plan = plan(store, &setup)?;
                let is_begun = record.is_some_and(UpgradeRecord::is_live);
                let plan_findings = plan.findings.into_iter().map(|warning| finding(warning.to_string()));
                // The growth of the gallery is no fault of the configuration, so this finding does
                // not name its file.
                let outgrown = outgrown(store, &setup)?;
                let without = (plan.as_they_are && !is_begun).then(without_adapter);
                Ok(plan_findings.chain(outgrown).chain(without).collect())
            }
        }
    });
    match checked {
        Ok(findings) => findings,
        Err(mut error) => {
            let next = error.take_remedy();
            vec![Finding { next, ..finding(error.to_string()) }]
        }
    }
}

/// Opens the encoders of a configuration, for the spaces that they are to fill or to search, and finds those
/// that do not open or are another model's. Only a model that runs here embeds, a few items.
fn examine_encoders(
    configuration: &Configuration,
    store: &dyn Store,
    record: Option<&UpgradeRecord>,
) -> Result<Vec<Finding>> {
    let (old, new) = (&configuration.old, &configuration.new);
    let is_finished = record
        .is_some_and(|record| record.phase == Phase::Finished && record.is_between(&old.name, &new.name));
    let mut findings = Vec::new();
    // No search goes to the old space any more once it is dropped.
    for space in [Some(new), Some(old).filter(|_| !is_finished)].into_iter().flatten() {
        if !configuration.has_encoder(space) {
            continue;
        }
        let space = find_space(store, &space.name)?.map_or_else(|| space.clone(), |record| record.space);
        let opened = if space.name == old.name {
            configuration.open_query_encoder(&space).map(|_| None)
        } else {
            configuration.open_encoder(&space).and_then(|encoder| encoder.fingerprint())
        };
        if opened.is_ok() && find_space(store, &space.name)?.is_some() {
            findings.extend(examine_model(configuration, store, &space)?);
        }
        match opened {
            // The error names the file.
            Err(error) => findings.push(problem(FindingCode::Configuration, error.to_string())),
            Ok(Some(fingerprint)) if is_another(store, &space.name, &fingerprint)? => {
                let text = format!(
                    "{}: [encoder] is not the one that filled {:?} last, by its fingerprint; before it embeds, some of the native \
                     items are embedded again and compared",
                    configuration.name(),
                    space.name
                );
                findings.push(note(FindingCode::Configuration, text));
            }
            Ok(_) => {}
        }
    }
    Ok(findings)
}

/// Compares a few vectors of a space with what its model, where that runs here, gives for their items now.
/// Where nothing is known of its encoder, or it cannot be asked, that is said elsewhere.
fn examine_model(configuration: &Configuration, store: &dyn Store, space: &Space) -> Result<Option<Finding>> {
    let Ok(encoder) = configuration.open_item_encoder(space) else { return Ok(None) };
    if encoder.fingerprint()?.is_none() {
        return Ok(None);
    }
    let Ok((equal, compared)) = gives_again(store, &space.name, encoder.as_ref()) else { return Ok(None) };
    let text = format!(
        "{}: the model of {:?} gives {equal} of {compared} vectors of it again: the others are another model's, or their sources have changed",
        configuration.name(),
        space.name
    );
    Ok((equal < compared).then(|| problem(FindingCode::AnotherModel, text).next(Remedy::IdentifyVectors)))
}

/// Describes in one sentence how the search index of a space is.
fn describe_index(space: &str, health: &IndexHealth) -> String {
    let trouble = health.trouble.as_ref().map_or(String::new(), |trouble| {
        format!("; looking after it failed: {trouble}; searches are right all the same")
    });
    if health.kind == IndexKind::Exact {
        return format!("{space:?} is searched exactly, vector by vector{trouble}");
    }
    let checked = health
        .recall_checked
        .map_or_else(|| "not checked since".to_owned(), |recall| format!("{recall:.3} when last checked"));
    let when_built =
        health.recall_at_build.map_or(String::new(), |recall| format!("{recall:.3} when built, "));
    let rebuilt = match (health.rebuilt, &health.rebuilt_because) {
        (0, _) => "never made again".to_owned(),
        (times, None) => format!("made again {times} times"),
        (times, Some(why)) => format!("made again {times} times, last because {why}"),
    };
    format!(
        "the graph of {space:?} was built of {} vectors, of which {} were overwritten or removed since and {} changes wait to be \
         merged; recall@10 {when_built}{checked}; {rebuilt}{trouble}",
        health.built, health.overwritten, health.waiting
    )
}

fn describe(problem: &Problem) -> String {
    let space = problem.space.as_ref().map_or(String::new(), |space| format!("space {space:?}: "));
    let Problem { what, count, .. } = problem;
    // A problem of the gallery itself is there once, so it is not counted.
    if what.starts_with("the ") { format!("{space}{what}") } else { format!("{space}{count} {what}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_that_cannot_be_looked_at_are_one_finding_among_others() {
        let error = rehang_core::Error::conflict("the table docs", "its column \"body\" does not exist");
        let finding = of_one_model("old", Err(error)).unwrap();
        assert_eq!((&finding.code, finding.severity), (&FindingCode::MixedModels, Severity::Problem));
        assert!(finding.seen.contains("\"old\"") && finding.seen.contains("does not exist"), "{finding}");
    }

    #[test]
    fn an_index_says_everything_that_is_known_of_it() {
        let mut health = IndexHealth {
            kind: IndexKind::Graph,
            vectors: 30_000,
            waiting: 12,
            built: 29_000,
            overwritten: 8_000,
            recall_at_build: Some(0.996),
            recall_checked: Some(0.981),
            rebuilt: 2,
            rebuilt_because: Some("its recall@10 fell from 0.995 to 0.970".into()),
            trouble: Some("the disk is full".into()),
            bytes: 1,
            growth: None,
        };
        let text = describe_index("clip", &health);
        for word in [
            "clip",
            "29000",
            "8000",
            "12",
            "0.996",
            "0.981",
            "2 times",
            "from 0.995 to 0.970",
            "disk is full",
        ] {
            assert!(text.contains(word), "{text:?} does not say {word:?}");
        }
        (health.recall_checked, health.rebuilt, health.trouble) = (None, 0, None);
        let text = describe_index("clip", &health);
        assert!(text.contains("not checked since") && text.contains("never made again"), "{text}");
        health.kind = IndexKind::Exact;
        assert!(describe_index("clip", &health).contains("exactly"));
    }

    #[test]
    fn an_index_that_has_grown_is_a_note_with_a_remedy_and_stops_nothing() {
        let mut health = IndexHealth::new(IndexKind::Graph, 30_000);
        let codes = |health: &IndexHealth| -> Vec<(FindingCode, Severity)> {
            let findings = findings_of("clip", 0.99, health).into_iter();
            findings.map(|finding| (finding.code, finding.severity)).collect()
        };
        let sound = [(FindingCode::Recall, Severity::Note), (FindingCode::IndexHealth, Severity::Note)];
        for growth in [None, Some(1.0), Some(1.5)] {
            health.growth = growth;
            assert_eq!(codes(&health), sound);
        }
        health.growth = Some(2.13);
        assert_eq!(codes(&health)[1], (FindingCode::Bloat, Severity::Note));
        let bloat = findings_of("clip", 0.99, &health).remove(1);
        assert_eq!(bloat.next, Some(Remedy::RebuildIndex));
        assert!(bloat.seen.contains("2.1 times"), "{bloat:?}");
        assert_eq!(findings_of("clip", 0.5, &health)[0].severity, Severity::Problem);
    }
}
