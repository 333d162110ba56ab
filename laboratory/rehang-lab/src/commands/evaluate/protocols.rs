//! `rehang-lab evaluate verification`, `identification` and `landmarks`.

use rehang_cli::options;
use rehang_cli::shared::{Exit, say_findings, with_bar};
use rehang_core::{Error, Result};
use rehang_protocols::landmarks::LandmarkSetup;
use rehang_protocols::{
    IdentificationFiles, LandmarkFiles, LandmarkTruth, MeasuredLandmarks, identify,
    landmarks as retrieve_landmarks, tpir_name, verify,
};

use super::table;
use crate::arguments::evaluate::{IdentificationArguments, LandmarksArguments, VerificationArguments, named};

/// Prints TAR@FAR for every pair of models.
pub fn verification(arguments: &VerificationArguments, json: bool) -> Result<Exit> {
    let files = arguments.faces.files(&arguments.models)?;
    let answer = with_bar(|_| verify(&files, &arguments.pairs, &arguments.far))?;
    say_findings(&answer.findings);
    let mut text = format!(
        "{} templates of {} images, {} pairs: {} genuine, {} impostors\n",
        answer.templates, answer.images, answer.pairs, answer.genuine, answer.impostors
    );
    for rate in &answer.rates {
        let title = format!("TAR@FAR={}", rate.far);
        text += &match &rate.tar {
            Some(of) => format!("\n{}", table::text(&title, "first template by row, second by column", of)),
            None => undefined(&title, answer.impostors, "impostor pairs"),
        };
    }
    Exit::Done.print(json, &answer, &text)
}

/// Prints TPIR@FPIR, rank-1 and rank-5 for every pair of models.
pub fn identification(arguments: &IdentificationArguments, json: bool) -> Result<Exit> {
    let files = arguments.faces.files(&arguments.models)?;
    let how = options!(IdentificationFiles { gallery, probes, fpir, candidates } from arguments);
    let answer = with_bar(|progress| identify(&files, &how, progress))?;
    say_findings(&answer.findings);
    let mut text = String::new();
    for gallery in &answer.galleries {
        let any = &gallery.results[0][0];
        text += &format!(
            "{}: {} enrolled templates; {} probes, of whom {} are enrolled and {} are not\n",
            gallery.path, gallery.enrolled, answer.probes, any.mated, any.non_mated
        );
    }
    let names = arguments.fpir.iter().map(|&fpir| tpir_name(fpir));
    for name in names.chain(["rank-1", "rank-5"].map(String::from)) {
        text += &if let Some(of) = &answer.metrics[&name] {
            format!("\n{}", table::text(&name, table::SEARCH, of))
        } else {
            let without = answer.galleries.iter().find(|gallery| gallery.results[0][0].mated == 0);
            let fewest = answer.galleries.iter().map(|gallery| gallery.results[0][0].non_mated).min();
            match without {
                Some(gallery) => {
                    format!("\n{name}: undefined, no probe's subject is enrolled in {}\n", gallery.path)
                }
                None => undefined(&name, fewest.unwrap_or(0), "probes who are not enrolled"),
            }
        };
    }
    Exit::Done.print(json, &answer, &text)
}

/// Prints landmark retrieval for every pair of models.
pub fn landmarks(arguments: &LandmarksArguments, json: bool) -> Result<Exit> {
    let truth = match (&arguments.solution, &arguments.ground_truth) {
        (Some(file), _) => LandmarkTruth::Solution {
            file: file.clone(),
            usage: arguments.usage.clone(),
            keep_common: arguments.keep_common,
            k: arguments.k,
        },
        (None, Some(file)) => LandmarkTruth::Revisited(file.clone()),
        (None, None) => return Err(Error::missing("`solution` or `ground_truth`", "landmark retrieval")),
    };
    let files = options!(
        LandmarkFiles { ids, query_ids, distance } from arguments,
        models: named("models", &arguments.models.models)?,
        best: arguments.models.best.clone(),
        queries: named("queries", &arguments.queries)?,
        truth: truth
    );
    let answer = with_bar(|progress| retrieve_landmarks(&files, progress))?;
    say_findings(&answer.findings);
    let text = match &answer.measured {
        MeasuredLandmarks::Solution { k, queries, of, metrics } => format!(
            "{} queries of {} counted, {} without a right answer in an index of {}\n\n{}",
            queries.counted,
            of.0,
            queries.without_positives,
            of.1,
            table::text(&format!("mAP@{k}"), table::SEARCH, &metrics["map_at"])
        ),
        MeasuredLandmarks::Revisited { of, setups } => {
            let mut text = format!("{} queries in a gallery of {}\n", of.0, of.1);
            for name in LandmarkSetup::ALL.map(LandmarkSetup::name) {
                let setup = &setups[name];
                text += &match setup.metrics.get("map") {
                    None => format!("\n{name}: no query has a right answer\n"),
                    Some(of) => {
                        let title = format!("{name}, mAP, {} queries", setup.queries.counted);
                        format!("\n{}", table::text(&title, table::SEARCH, of))
                    }
                };
            }
            text
        }
    };
    Exit::Done.print(json, &answer, &text)
}

fn undefined(title: &str, count: usize, what: &str) -> String {
    if count == 0 {
        return format!("\n{title}: undefined, there are no {what}\n");
    }
    format!("\n{title}: undefined, {count} {what} show no rate below {:.2e}\n", 1.0 / count as f64)
}
