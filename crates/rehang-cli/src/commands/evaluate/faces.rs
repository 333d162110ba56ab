//! `rehang evaluate verification` and `identification`.

use std::path::Path;

use rehang::compatibility::CrossMatrix;
use rehang::files::{self, VectorSource};
use rehang::protocols::identification::{
    Identification as Found, IdentificationInput, identification as identify,
};
use rehang::protocols::lists::{self, FaceList};
use rehang::protocols::templates::{self, Templates};
use rehang::protocols::verification::verification as verify;
use rehang::{Error, Matrix, Result};
use serde_json::{Value, json};

use super::{Named, table};
use crate::arguments::RowSelection;
use crate::arguments::evaluate::{Faces, Identification, Verification};
use crate::bar::with_bar;
use crate::commands::{Outcome, print, say};
use crate::input::{Inputs, expect_count};

/// The models' templates.
struct Ground {
    inputs: Inputs,
    models: Named,
    faces: FaceList,
    templates: Vec<Templates>,
}

impl Ground {
    fn read(models: &[String], faces: &Faces) -> Result<Self> {
        let mut inputs = Inputs::new(&RowSelection::default())?;
        let names = match &faces.names {
            None => None,
            Some(path) => Some(
                files::read_ids(&VectorSource::parse(path)?)?
                    .ok_or_else(|| Error::missing("a column of file names", path))?,
            ),
        };
        let list = lists::read_faces(&faces.metadata, names.as_deref())?;
        let models = Named::read("--models", "faces", models, &mut inputs)?;
        let said = faces.names.clone().unwrap_or_else(|| paths(&faces.metadata));
        let mut made = Vec::with_capacity(models.names.len());
        for (name, vectors) in models.names.iter().zip(&models.vectors) {
            expect_count(&format!("the vectors of {name}"), vectors.rows(), &said, list.rows)?;
            let of_model = templates::average(vectors, &list.items, list.templates.len())?;
            if of_model.zeros > 0 {
                say(&format!(
                    "Warning: {} templates of {name} are zero vectors; they are like nobody.",
                    of_model.zeros
                ));
            }
            made.push(of_model);
        }
        Ok(Self { inputs, models, faces: list, templates: made })
    }
}

/// TAR@FAR for every pair of models.
pub fn verification(arguments: &Verification, json: bool) -> Result<Outcome> {
    let ground = Ground::read(&arguments.models.models, &arguments.faces)?;
    let best = ground.models.best(arguments.models.best.as_ref())?;
    let pairs = lists::read_pairs(&arguments.pairs, &ground.faces)?;
    let subjects = &ground.faces.subjects;
    let results = with_bar(|_| {
        every_pair(ground.templates.len(), |first, second| {
            verify(
                &ground.templates[first].vectors,
                &ground.templates[second].vectors,
                subjects,
                subjects,
                &pairs,
                &arguments.far,
            )
        })
    })?;
    let any = &results[0][0];
    let mut text = format!(
        "{} templates of {} images, {} pairs: {} genuine, {} impostors\n",
        ground.faces.templates.len(),
        ground.faces.items.len(),
        pairs.len(),
        any.genuine,
        any.impostors
    );
    let mut rates = Vec::new();
    for (place, &far) in arguments.far.iter().enumerate() {
        let title = format!("TAR@FAR={far}");
        if any.points[place].tar.is_none() {
            text += &undefined(&title, any.impostors, "impostor pairs");
        } else {
            let values = CrossMatrix::from_fn(&ground.models.names, |first, second| {
                Ok(results[first][second].points[place].tar.unwrap_or(f64::NAN))
            })?;
            let axes = "first template by row, second by column";
            let (value, shown) = table::matrix(&title, axes, &values, best, &[]);
            text += &format!("\n{shown}");
            rates.push(json!({ "far": far, "tar": value, "points": points(&results, |cell| json!(cell.points[place])) }));
            continue;
        }
        rates.push(json!({ "far": far, "tar": null }));
    }
    let value = json!({
        "models": ground.models.names,
        "templates": ground.faces.templates.len(),
        "images": ground.faces.items.len(),
        "genuine": any.genuine,
        "impostors": any.impostors,
        "rates": rates,
        "inputs": ground.inputs.read,
    });
    print(json, &value, &text)?;
    Ok(Outcome::Done)
}

/// TPIR@FPIR, rank-1 and rank-5 for every pair of models.
pub fn identification(arguments: &Identification, json: bool) -> Result<Outcome> {
    if arguments.candidates == 0 {
        return Err(Error::option("--candidates", 0, "1 or more"));
    }
    let ground = Ground::read(&arguments.models.models, &arguments.faces)?;
    let best = ground.models.best(arguments.models.best.as_ref())?;
    let probes = lists::read_templates(&arguments.probes, &ground.faces)?;
    let galleries = arguments
        .gallery
        .iter()
        .map(|path| lists::read_templates(path, &ground.faces))
        .collect::<Result<Vec<_>>>()?;
    let subjects =
        |places: &[usize]| -> Vec<i64> { places.iter().map(|&place| ground.faces.subjects[place]).collect() };
    let probe_subjects = subjects(&probes);
    let probe_vectors: Vec<Matrix> =
        ground.templates.iter().map(|templates| templates.vectors.select(&probes)).collect();
    let mut by_gallery: Vec<Vec<Vec<Found>>> = Vec::with_capacity(galleries.len());
    with_bar(|progress| -> Result<()> {
        for gallery in &galleries {
            let gallery_subjects = subjects(gallery);
            by_gallery.push(every_pair(ground.templates.len(), |asking, asked| {
                let input = IdentificationInput {
                    gallery: &ground.templates[asked].vectors.select(gallery),
                    gallery_subjects: &gallery_subjects,
                    probes: &probe_vectors[asking],
                    probe_subjects: &probe_subjects,
                    rates: &arguments.fpir,
                    candidates: arguments.candidates,
                };
                identify(&input, progress)
            })?);
        }
        Ok(())
    })?;
    let mut text = String::new();
    for ((path, gallery), results) in arguments.gallery.iter().zip(&galleries).zip(&by_gallery) {
        let any = &results[0][0];
        text += &format!(
            "{}: {} enrolled templates; {} probes, of whom {} are enrolled and {} are not\n",
            path.display(),
            gallery.len(),
            probes.len(),
            any.mated,
            any.non_mated
        );
    }
    let mean = |of: &dyn Fn(&Found) -> Option<f64>| {
        CrossMatrix::from_fn(&ground.models.names, |asking, asked| {
            let values = by_gallery.iter().map(|results| of(&results[asking][asked]));
            let sum: Option<f64> = values.sum();
            Ok(sum.map_or(f64::NAN, |sum| sum / by_gallery.len() as f64))
        })
    };
    let mut metrics = serde_json::Map::new();
    for (place, &fpir) in arguments.fpir.iter().enumerate() {
        let title = format!("TPIR@FPIR={fpir}");
        let values = mean(&|found| found.points[place].tpir)?;
        if values.values[0][0].is_nan() {
            if let Some(place) = by_gallery.iter().position(|results| results[0][0].mated == 0) {
                let path = arguments.gallery[place].display();
                text += &format!("\n{title}: undefined, no probe's subject is enrolled in {path}\n");
            } else {
                let fewest = by_gallery.iter().map(|results| results[0][0].non_mated).min().unwrap_or(0);
                text += &undefined(&title, fewest, "probes who are not enrolled");
            }
            metrics.insert(title, Value::Null);
            continue;
        }
        let (value, shown) = table::matrix(&title, table::SEARCH, &values, best, &[]);
        text += &format!("\n{shown}");
        metrics.insert(title, value);
    }
    for (title, values) in [("rank-1", mean(&|found| found.rank1)?), ("rank-5", mean(&|found| found.rank5)?)]
    {
        let (value, shown) = table::matrix(title, table::SEARCH, &values, best, &[]);
        text += &format!("\n{shown}");
        metrics.insert(title.into(), value);
    }
    let value = json!({
        "models": ground.models.names,
        "templates": ground.faces.templates.len(),
        "probes": probes.len(),
        "candidates": arguments.candidates,
        "metrics": metrics,
        "galleries": arguments.gallery.iter().zip(&by_gallery).map(|(path, results)| json!({
            "path": path.display().to_string(),
            "results": points(results, |cell| json!(cell)),
        })).collect::<Vec<_>>(),
        "inputs": ground.inputs.read,
    });
    print(json, &value, &text)?;
    Ok(Outcome::Done)
}

/// Every model's templates against every model's.
fn every_pair<T>(models: usize, value: impl Fn(usize, usize) -> Result<T>) -> Result<Vec<Vec<T>>> {
    (0..models).map(|asking| (0..models).map(|asked| value(asking, asked)).collect()).collect()
}

fn points<T>(results: &[Vec<T>], value: impl Fn(&T) -> Value) -> Vec<Vec<Value>> {
    results.iter().map(|row| row.iter().map(&value).collect()).collect()
}

fn undefined(title: &str, count: usize, what: &str) -> String {
    if count == 0 {
        return format!("\n{title}: undefined, there are no {what}\n");
    }
    format!("\n{title}: undefined, {count} {what} show no rate below {:.2e}\n", 1.0 / count as f64)
}

fn paths(paths: &[impl AsRef<Path>]) -> String {
    paths.iter().map(|path| path.as_ref().display().to_string()).collect::<Vec<_>>().join(", ")
}
