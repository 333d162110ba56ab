//! `rehang demo`: a whole upgrade of a small gallery of handwritten digits, offline.
//!
//! The data travels inside the binary: the UCI digits (E. Alpaydin and C. Kaynak, 1998, CC BY 4.0) and what two small
//! encoders made of them (`cargo xtask demo-data`). Everything is written to a folder first and then goes through the
//! same verbs that a user would call, which are printed. Then the gallery is upgraded live ([`super::demo_live`]).

use std::io::ErrorKind;
use std::path::Path;

use rehang::files::AtomicFile;
use rehang::report::percent_rounded_up;
use rehang::{Error, Result};
use serde_json::json;

use super::{Outcome, demo_live, fit, one_decimal, print, report, say};
use crate::arguments::{Demo, Fit, HeadFiles, IdFiles, Relevance, Report, RowSelection, SpaceNames};

/// The files of the demo: name and content.
const FILES: [(&str, &[u8]); 9] = [
    ("images.npy", include_bytes!("../../../../demo/images.npy")),
    ("old_encoder.onnx", include_bytes!("../../../../demo/old_encoder.onnx")),
    ("new_encoder.onnx", include_bytes!("../../../../demo/new_encoder.onnx")),
    ("label.npy", include_bytes!("../../../../demo/label.npy")),
    ("role.npy", include_bytes!("../../../../demo/role.npy")),
    ("old.npy", include_bytes!("../../../../demo/old.npy")),
    ("new.npy", include_bytes!("../../../../demo/new.npy")),
    ("head_weight.npy", include_bytes!("../../../../demo/head_weight.npy")),
    ("head_bias.npy", include_bytes!("../../../../demo/head_bias.npy")),
];

/// Runs the demo.
pub fn run(arguments: &Demo, json: bool) -> Result<Outcome> {
    let folder = &arguments.out;
    expect_own(folder)?;
    fs_err::create_dir_all(folder).map_err(|error| Error::io("create", folder, &error))?;
    for (name, bytes) in FILES {
        let mut file = AtomicFile::create(folder.join(name))?;
        file.put(bytes)?;
        file.commit()?;
    }
    let path = |name: &str| folder.join(name).display().to_string();
    if !json {
        say(
            "An old encoder knows five of the ten digits and sees few pixels; a new one knows all ten. 718 images were",
        );
        say(
            "embedded by both (the pairs). 1,079 others are the gallery, embedded by the old encoder only. What now?",
        );
    }

    let (adapter, ridge) = (folder.join("adapter.safetensors"), folder.join("ridge.safetensors"));
    let mut fitted = None;
    for (method, output) in [("auto", &adapter), ("ridge", &ridge)] {
        step(
            json,
            &format!(
                "rehang fit --method {method} --old {} --new {} --labels {} --rows {}=0 --head-weight {} --head-bias {} \
                 --old-model digits-old --new-model digits-new --seed {} -o {}",
                path("old.npy"),
                path("new.npy"),
                path("label.npy"),
                path("role.npy"),
                path("head_weight.npy"),
                path("head_bias.npy"),
                arguments.seed,
                output.display()
            ),
        );
        let made = fit::make(&fit_arguments(&path, output, method, arguments.seed))?;
        fitted.get_or_insert(made);
    }
    let fitted = fitted.ok_or_else(|| Error::missing("an adapter", "the demo"))?;
    let method = fitted.adapter.training.method.clone();

    let orders = ["coverage", "sigma", "random"];
    let title = "Rehanging a gallery of handwritten digits";
    step(
        json,
        &format!(
            "rehang report {} {} --old {} --new {} --labels {} --rows {}=1 --head-weight {} --head-bias {} --orders {} \
             --pairs-old {} --pairs-rows {}=0 --seed {} --title '{title}' -o {} -o {} -o {}",
            adapter.display(),
            ridge.display(),
            path("old.npy"),
            path("new.npy"),
            path("label.npy"),
            path("role.npy"),
            path("head_weight.npy"),
            path("head_bias.npy"),
            orders.join(","),
            path("old.npy"),
            path("role.npy"),
            arguments.seed,
            path("report.html"),
            path("report.md"),
            path("report.json")
        ),
    );
    let output = folder.join("report.html");
    let made = report::make(&Report {
        adapters: vec![adapter, ridge],
        old: vec![path("old.npy")],
        new: vec![path("new.npy")],
        ids: IdFiles::default(),
        side: None,
        pairs_old: vec![path("old.npy")],
        pairs_rows: Some(format!("{}=0", path("role.npy"))),
        force: false,
        selection: RowSelection { rows: Some(format!("{}=1", path("role.npy"))) },
        relevance: Relevance { labels: vec![path("label.npy")], k: 10, ..Relevance::default() },
        head: head(&path),
        orders: orders.map(str::to_owned).to_vec(),
        random_orders: 3,
        seed: arguments.seed,
        bootstrap: 1000,
        title: title.into(),
        output: vec![output.clone(), folder.join("report.md"), folder.join("report.json")],
    })?;

    let metric = made.headline_metric().map(|metric| (metric.id.clone(), metric.name.clone()));
    let curve = made.headline_curve();
    let (Some((id, name)), Some(curve)) = (metric, curve) else {
        return Err(Error::corrupt("the demo's report", "it has no curve"));
    };
    let line = &curve.metrics[&id];
    let today = made.do_nothing.get(&id).copied().unwrap_or(f64::NAN);
    let (live, live_text, outcome) = demo_live::run(folder, &fitted.adapter, !json)?;
    let value = json!({
        "live": live,
        "report": output.display().to_string(),
        "metric": id,
        "method": method,
        "order": curve.order,
        "do_nothing": today,
        "at_switch": line.start,
        "fully_native": line.end,
        "area": line.area.value,
        "passes_do_nothing_at": line.passes_do_nothing_at,
    });
    let crossing = line.passes_do_nothing_at.map_or_else(
        || "It never passes doing nothing.".to_owned(),
        |fraction| {
            if fraction == 0.0 {
                "The switch pays at once, before a single image is embedded again.".to_owned()
            } else {
                format!(
                    "The switch pays once {} % of the gallery is embedded again.",
                    one_decimal(percent_rounded_up(fraction))
                )
            }
        },
    );
    let text = format!(
        "\n{name} in percent ({}, order {}):\n  {:>5}  do nothing: the old encoder for gallery and queries\n  {:>5}  at the \
         switch: new queries, every gallery vector adapted\n  {:>5}  fully re-embedded\n{crossing}\n{live_text}\nReport: {}\n",
        method,
        curve.order,
        one_decimal(today),
        one_decimal(line.start),
        one_decimal(line.end),
        output.display()
    );
    print(json, &value, &text)?;
    Ok(outcome)
}

/// Fails for a folder that holds other things than an earlier demo's: a demo begins anew and replaces what bears the names of
/// its files, a gallery among them. Its first file tells whose folder it is.
fn expect_own(folder: &Path) -> Result<()> {
    let is_empty = match fs_err::read_dir(folder) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == ErrorKind::NotFound => true,
        Err(error) => return Err(Error::io("read", folder, &error)),
    };
    let (name, bytes) = FILES[0];
    let file = folder.join(name);
    // A file of that name may be of any size, so its length is asked for first.
    let is_own = || {
        fs_err::metadata(&file).is_ok_and(|metadata| metadata.len() == bytes.len() as u64)
            && fs_err::read(&file).is_ok_and(|content| content == bytes)
    };
    if is_empty || is_own() {
        return Ok(());
    }
    Err(Error::option(
        "--out",
        folder.display(),
        "a folder that is new, empty or of an earlier demo: this one holds other files, and the demo would replace them",
    ))
}

fn step(json: bool, command: &str) {
    if !json {
        say(&format!("\n$ {command}"));
    }
}

fn head(path: &dyn Fn(&str) -> String) -> HeadFiles {
    HeadFiles {
        head_weight: Some(path("head_weight.npy")),
        head_bias: Some(path("head_bias.npy")),
        head_kind: "softmax".into(),
    }
}

fn fit_arguments(path: &dyn Fn(&str) -> String, output: &Path, method: &str, seed: u64) -> Fit {
    Fit {
        old: vec![path("old.npy")],
        new: vec![path("new.npy")],
        labels: vec![path("label.npy")],
        side: Vec::new(),
        ids: IdFiles::default(),
        selection: RowSelection { rows: Some(format!("{}=0", path("role.npy"))) },
        head: head(path),
        spaces: SpaceNames {
            old_model: "digits-old".into(),
            new_model: "digits-new".into(),
            distance: "l2".into(),
            old_distance: None,
        },
        method: method.into(),
        loss: None,
        uncertainty: None,
        epochs: None,
        early_stop: None,
        seeds: 1,
        seed,
        device: "cpu".into(),
        checkpoints: None,
        thorough: false,
        evaluation_old: None,
        output: output.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_demo_takes_no_folder_but_its_own() {
        let place = tempfile::tempdir().unwrap();
        let write = |path: &Path, bytes: &[u8]| {
            let mut file = AtomicFile::create(path).unwrap();
            file.put(bytes).unwrap();
            file.commit().unwrap();
        };
        let folder = place.path().join("demo");
        expect_own(&folder).unwrap();
        fs_err::create_dir(&folder).unwrap();
        expect_own(&folder).unwrap();
        write(&folder.join("gallery.db"), b"of a project");
        write(&folder.join("images.npy"), b"of a project");
        let error = expect_own(&folder).unwrap_err().to_string();
        assert!(error.contains("--out") && error.contains("earlier demo"), "{error}");
        write(&folder.join("images.npy"), FILES[0].1);
        expect_own(&folder).unwrap();
        // What is no folder is none for a demo either.
        assert!(expect_own(&folder.join("gallery.db")).is_err());
    }
}
