//! `rehang doctor`.

use std::path::Path;

use rehang::{Error, Provenance, Result};
use rehang_store::{IndexHealth, IndexKind, Problem, SqliteStore, Store};
use rehang_upgrade::{Phase, Recorded, UpgradeRecord, expect_same, plan, status};
use serde_json::{Value, json};

use super::{Outcome, is_same_file, print};
use crate::arguments::Doctor;
use crate::configuration::Configuration;
use crate::wording;

/// Stored vectors that stand in as queries when an index is checked.
const RECALL_SAMPLES: usize = 100;
/// Neighbours of each.
const RECALL_DEPTH: usize = 10;
/// Below this an index is said to be ill.
const RECALL_MIN: f64 = 0.95;

/// One finding.
struct Finding {
    /// Whether something has to be done.
    bad: bool,
    what: &'static str,
    text: String,
}

/// Examines a gallery.
pub fn run(arguments: &Doctor, json: bool) -> Result<Outcome> {
    let configuration = arguments.config.as_deref().map(Configuration::read).transpose()?;
    let path = arguments
        .gallery
        .as_ref()
        .or(configuration.as_ref().map(|configuration| &configuration.gallery))
        .ok_or_else(|| Error::missing("--gallery or --config", "`rehang doctor`"))?;
    let store = SqliteStore::open(path)?;
    let (mut findings, mut indexes) = (Vec::new(), Vec::new());
    for problem in store.check()? {
        findings.push(Finding { bad: true, what: "store", text: describe(&problem) });
    }
    let recorded = Recorded::read(&store)?.map(|recorded| recorded.record);
    let serving = store.serving()?;
    for record in store.spaces()? {
        let name = &record.space.model;
        let counts = store.counts(name)?;
        let serves = serving.as_deref() == Some(name.as_str());
        let of_upgrade = recorded.as_ref().is_some_and(|record| {
            record.phase != Phase::Finished && [&record.old.model, &record.new.model].contains(&name)
        });
        if !serves && !of_upgrade {
            findings.push(Finding {
                bad: true,
                what: "forgotten-space",
                text: format!(
                    "space {name:?} neither serves nor takes part in an upgrade; `rehang gallery drop-space` removes it"
                ),
            });
        }
        // A space holds vectors of one model; those of the other kind were put there by mistake.
        let foreign = match record.written_as {
            Provenance::Native => counts.old,
            Provenance::Old | Provenance::Adapted => counts.native + counts.adapted,
        };
        if foreign > 0 {
            findings.push(Finding {
                bad: true,
                what: "mixed-models",
                text: format!(
                    "space {name:?} holds {foreign} vectors that are not {:?}: another model's, by their provenance",
                    record.written_as.name()
                ),
            });
        }
        if serves && counts.lacking > 0 {
            findings.push(Finding {
                bad: true,
                what: "not-found",
                text: format!(
                    "{} items have no vector in {name:?}, which serves: no search finds them",
                    counts.lacking
                ),
            });
        }
        if serves && counts.adapted > 0 && !of_upgrade {
            findings.push(Finding {
                bad: false,
                what: "adapted",
                text: format!(
                    "{} vectors of {name:?} are adapted and no upgrade is under way",
                    counts.adapted
                ),
            });
        }
        if counts.failed > 0 {
            findings.push(Finding {
                bad: false,
                what: "failed",
                text: format!("{} items of {name:?} could not be embedded", counts.failed),
            });
        }
        let mut recall = store.recall(name, RECALL_SAMPLES, RECALL_DEPTH)?;
        if recall < RECALL_MIN && arguments.repair {
            store.rebuild(name)?;
            store.flush()?;
            let before = recall;
            recall = store.recall(name, RECALL_SAMPLES, RECALL_DEPTH)?;
            findings.push(Finding {
                bad: false,
                what: "index",
                text: format!("index of {name:?} was made again: recall@10 {before:.3}, now {recall:.3}"),
            });
        }
        let ill = recall < RECALL_MIN;
        let advice = if ill { "; `rehang doctor --repair` makes it again" } else { "" };
        findings.push(Finding {
            bad: ill,
            what: "recall",
            text: format!("searches of {name:?} find {:.1} % of the true nearest 10{advice}", 100.0 * recall),
        });
        let health = store.index_health(name)?;
        findings.push(Finding {
            bad: health.trouble.is_some(),
            what: "index-health",
            text: describe_index(name, &health),
        });
        indexes.push(json!({ "space": name, "health": health }));
    }
    if let Some(configuration) = &configuration {
        findings.extend(check_configuration(configuration, path, &store, recorded.as_ref()));
    }
    if let Some(record) = recorded.filter(|record| record.phase != Phase::Finished) {
        let status = status(&store, 0)?;
        findings.push(Finding {
            bad: false,
            what: "upgrade",
            text: format!(
                "an upgrade from {:?} to {:?} is {}, {:.1} % native",
                record.old.model,
                record.new.model,
                record.phase.name(),
                100.0 * status.fraction
            ),
        });
        if status.sigma.is_some_and(|sigma| sigma.alarm) {
            findings.push(Finding {
                bad: true,
                what: "sigma",
                text: "σ² and the true errors of backfilled items disagree: fit the adapter again".into(),
            });
        }
    }
    let bad = findings.iter().filter(|finding| finding.bad).count();
    let mut text = String::new();
    for finding in &findings {
        text += &format!("{} {}\n", if finding.bad { "✗" } else { "·" }, finding.text);
    }
    text += &if bad == 0 {
        "Nothing is wrong.\n".to_owned()
    } else {
        format!("{bad} findings need attention.\n")
    };
    let listed: Vec<Value> = findings
        .iter()
        .map(|finding| json!({ "bad": finding.bad, "what": finding.what, "text": finding.text }))
        .collect();
    let value = json!({ "gallery": store.name(), "bad": bad, "findings": listed, "indexes": indexes });
    print(json, &value, &text)?;
    Ok(if bad == 0 { Outcome::Done } else { Outcome::WithRefusals })
}

/// What the next verb would say of a configuration: of an upgrade that is live or finished it has to be the one, and otherwise
/// it has to be one that could begin.
fn check_configuration(
    configuration: &Configuration,
    gallery: &Path,
    store: &dyn Store,
    record: Option<&UpgradeRecord>,
) -> Vec<Finding> {
    let name = configuration.path.display();
    let finding =
        |text: String| Finding { bad: true, what: "configuration", text: format!("{name}: {text}") };
    if !is_same_file(gallery, &configuration.gallery) {
        return vec![finding(format!(
            "it is about {}, not about {}",
            configuration.gallery.display(),
            gallery.display()
        ))];
    }
    let setup = configuration.setup();
    let same = expect_same(store, &setup);
    let checked = match (record, same) {
        // Its old space is gone, so nothing could be planned with it any more.
        (Some(record), Ok(())) if record.phase == Phase::Finished => return Vec::new(),
        (Some(record), Err(error)) if record.is_live() => Err(error),
        _ => plan(store, &setup),
    };
    match checked {
        Ok(plan) => plan.warnings.into_iter().map(finding).collect(),
        Err(error) => vec![finding(wording::said(&error))],
    }
}

/// How the search index of a space is, in one sentence.
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
    let rebuilt = match (health.rebuilt, &health.rebuilt_because) {
        (0, _) => "never made again".to_owned(),
        (times, None) => format!("made again {times} times"),
        (times, Some(why)) => format!("made again {times} times, last because {why}"),
    };
    format!(
        "the graph of {space:?} was built of {} vectors, of which {} were overwritten or removed since and {} changes wait to be \
         merged; recall@10 {:.3} when built, {checked}; {rebuilt}{trouble}",
        health.built, health.overwritten, health.waiting, health.recall_at_build
    )
}

fn describe(problem: &Problem) -> String {
    let space = problem.space.as_ref().map_or(String::new(), |space| format!("space {space:?}: "));
    format!("{space}{} ({})", problem.what, problem.count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_says_everything_that_is_known_of_it() {
        let mut health = IndexHealth {
            kind: IndexKind::Graph,
            vectors: 30_000,
            waiting: 12,
            built: 29_000,
            overwritten: 8_000,
            recall_at_build: 0.996,
            recall_checked: Some(0.981),
            rebuilt: 2,
            rebuilt_because: Some("its recall@10 fell from 0.995 to 0.970".into()),
            trouble: Some("the disk is full".into()),
            bytes: 1,
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
}
