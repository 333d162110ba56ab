//! `rehang fit`.

use std::fmt::Write;

use rehang::files::{
    AtomicFile, Inputs, Names, VectorSource, expect_count, expect_same_items, expect_width, said,
};
use rehang::{Distance, Error, Head, Pairs, Result, Vectors};
use rehang_fit::guards::{self, Severity};
use rehang_fit::{FitParameters, Fitted, Method, NetworkOptions, Selection, fit_adapter};
use serde_json::{Value, json};

use super::train::device;
use super::{Outcome, one_decimal, print, say_findings};
use crate::arguments::Fit;
use crate::bar::with_bar;

/// Fits an adapter on pairs and writes it.
pub fn run(arguments: &Fit, json: bool) -> Result<Outcome> {
    let fitted = make(arguments)?;
    let refused = fitted.findings.iter().any(|finding| finding.severity == Severity::Problem);
    print(json, &value(arguments, &fitted), &text(arguments, &fitted))?;
    Ok(if refused { Outcome::WithRefusals } else { Outcome::Done })
}

/// Fits and writes; what was found is in the answer, and said on stderr where it is a warning.
pub fn make(arguments: &Fit) -> Result<Fitted> {
    let method: Method = arguments.method.parse()?;
    let distance: Distance = arguments.spaces.distance.parse()?;
    let old_distance: Distance = match &arguments.spaces.old_distance {
        Some(name) => name.parse()?,
        None => distance,
    };
    expect_classes_of_head(method, arguments)?;
    let options = network_options(arguments)?;
    let parameters = FitParameters { method, seed: arguments.seed, ..FitParameters::default() };
    warn_about_idle_options(method, arguments);
    // A bad output path fails now and not after the fit.
    drop(AtomicFile::create(&arguments.output)?);

    let mut inputs = Inputs::new(arguments.selection.parsed()?.as_ref())?;
    let old = inputs.matrix("old", &arguments.old)?;
    let new = inputs.matrix("new", &arguments.new)?;
    let given = |paths: &[VectorSource]| !paths.is_empty();
    let mut names = Names::default();
    let labels = given(&arguments.labels)
        .then(|| inputs.labels("labels", &arguments.labels, &mut names))
        .transpose()?;
    if names.are_names() && arguments.head.head_weight.is_some() {
        return Err(Error::option(
            "--labels",
            said(&arguments.labels),
            "the numbers of the head's classes beside --head-weight: names do not say which row of the head a class is; or leave \
             the head out, and one is fitted on the new vectors where a method needs it",
        ));
    }
    let side = given(&arguments.side).then(|| inputs.matrix("side", &arguments.side)).transpose()?;
    let join_files = arguments.ids.files();
    let join = inputs.join(&join_files, old.rows(), new.rows())?;
    // Labels and side information go with the old vectors.
    let [old_path, new_path, labels_path, side_path] =
        [&arguments.old, &arguments.new, &arguments.labels, &arguments.side].map(|paths| said(paths));
    let labels = labels.map(|labels| join.old_values(&labels_path, labels)).transpose()?;
    let side = side.map(|side| join.old_side(&side_path, side)).transpose()?;
    let (old, new) = (join.old_side(&old_path, old)?, join.new_side(new));
    expect_count(&old_path, old.rows(), &new_path, new.rows())?;
    if let Some(labels) = &labels {
        expect_count(&old_path, old.rows(), &labels_path, labels.len())?;
        if labels.iter().all(|&label| label < 0) {
            say(&format!(
                "Note: every label in {labels_path} is negative, which means unknown: this is a fit without labels."
            ));
        }
    }
    if let Some(side) = &side {
        expect_count(&old_path, old.rows(), &side_path, side.rows())?;
    }
    let by_position = if join_files.is_by_position() { arguments.new.as_slice() } else { &[] };
    expect_same_items(&[arguments.old.as_slice(), by_position, arguments.side.as_slice()])?;
    let head = inputs.head(&arguments.head.files()?)?;
    let pairs = Pairs::new(
        Vectors::measured(&arguments.spaces.old_model, old_distance, old, &old_path)?,
        Vectors::measured(&arguments.spaces.new_model, distance, new, &new_path)?,
        labels,
        side,
    )?;
    let evaluation = match &arguments.evaluation_old {
        None => None,
        Some(path) => {
            let evaluation = inputs.whole_matrix("evaluation", path)?;
            expect_width(&path.to_string(), pairs.old().dimension(), evaluation.columns())?;
            Some(evaluation)
        }
    };
    inputs.expect_apart(&[("output", Some(&arguments.output))])?;
    say_findings(&inputs.findings);
    let mut fitted =
        with_bar(|progress| fit_adapter(&pairs, head.as_ref(), &parameters, &options, progress))?;
    fitted.findings.extend(guards::overlap(&pairs, evaluation.as_ref(), None));
    for input in &inputs.read {
        fitted.adapter.training.inputs.insert(input.role.clone(), input.fingerprint.clone());
    }
    fitted.adapter.save(&arguments.output)?;
    for finding in &fitted.findings {
        // Whether the two files were swapped, and what nothing here can know, is for a person to say.
        let is_question = ["swapped", "unknown-without-labels"].contains(&finding.code.as_str());
        if finding.severity != Severity::Note || is_question {
            let word = match finding.severity {
                Severity::Problem => "Problem",
                Severity::Warning => "Warning",
                Severity::Note => "Note",
            };
            say(&format!("{word}: {}.", finding.message.trim_end_matches('.')));
        }
    }
    warn_about_head(head.as_ref(), &pairs);
    if pairs.side().is_some() && fitted.adapter.side_dimension().is_none() {
        say(&format!("Warning: {} does not look at side information.", fitted.adapter.training.method));
    }
    if head.is_some() && pairs.labels().is_none() {
        say("Warning: without --labels nothing is trained towards the head; it serves orders only.");
    }
    Ok(fitted)
}

/// Fails where a head is given and nothing says which of its classes a pair is of, and that is all that is to be learned from.
fn expect_classes_of_head(method: Method, arguments: &Fit) -> Result<()> {
    let loss = arguments.loss.as_deref().filter(|loss| ["disc", "both"].contains(loss));
    match (loss, &arguments.head.head_weight, method) {
        (Some(loss), Some(path), Method::Fastfill | Method::FastfillReference)
            if arguments.labels.is_empty() =>
        {
            Err(Error::option(
                "--head-weight",
                path,
                format!(
                    "--labels beside it, which --loss {loss} needs: they say which class of the head a pair is of; or leave the \
                     head out, and groups of similar new vectors stand for classes"
                ),
            ))
        }
        _ => Ok(()),
    }
}

/// Options of the networks say nothing to a closed form; silence there would be a typo that costs a night.
fn warn_about_idle_options(method: Method, arguments: &Fit) {
    let network = matches!(
        method,
        Method::Auto | Method::ResidualMlp | Method::Fct | Method::Fastfill | Method::FastfillReference
    );
    let fastfill = matches!(method, Method::Auto | Method::Fastfill | Method::FastfillReference);
    let given = [
        ("--epochs", arguments.epochs.is_some(), network),
        ("--early-stop", arguments.early_stop.is_some(), network),
        ("--seeds", arguments.seeds > 1, network),
        ("--device", arguments.device != "cpu", network),
        ("--checkpoints", arguments.checkpoints.is_some(), network),
        ("--loss", arguments.loss.is_some(), fastfill),
        ("--thorough", arguments.thorough, method == Method::Auto),
        ("--uncertainty joint", arguments.uncertainty.as_deref() == Some("joint"), fastfill),
    ];
    for (option, _, _) in given.into_iter().filter(|&(_, given, heard)| given && !heard) {
        say(&format!("Warning: {option} has no effect on --method {method}."));
    }
}

/// A head that classifies the new vectors badly belongs to another model or another numbering of the classes.
fn warn_about_head(head: Option<&Head>, pairs: &Pairs) {
    let (Some(head), Some(labels)) = (head, pairs.labels()) else { return };
    if labels.iter().all(|&label| label < 0) {
        return;
    }
    let unknown = labels.iter().filter(|&&label| label >= head.classes() as i64).count();
    if unknown > 0 {
        say(&format!(
            "Warning: {unknown} of {} pairs have a label that the head does not know (it has the classes 0 to {}); nothing \
             trains them towards it.",
            labels.len(),
            head.classes() - 1
        ));
    }
    let right = guards::classified(head, pairs.new_vectors().matrix(), labels);
    if right < 20.0 {
        say(&format!(
            "Warning: the head classifies only {right:.0} % of the new vectors as their labels say; does it belong to \
             this model and this numbering of the classes?"
        ));
    }
}

fn network_options(arguments: &Fit) -> Result<NetworkOptions> {
    let device = device(&arguments.device)?;
    if arguments.epochs == Some(0) {
        return Err(Error::option("--epochs", 0, "1 or more"));
    }
    if arguments.early_stop == Some(0) {
        return Err(Error::option("--early-stop", 0, "1 epoch or more"));
    }
    let mut options = NetworkOptions {
        epochs: arguments.epochs,
        early_stop: arguments.early_stop,
        seeds: arguments.seeds,
        device,
        thorough: arguments.thorough,
        ..NetworkOptions::default()
    };
    if let Some(loss) = &arguments.loss {
        options.loss = loss.parse()?;
    }
    if let Some(uncertainty) = &arguments.uncertainty {
        options.uncertainty = uncertainty.parse()?;
    }
    if let Some(folder) = &arguments.checkpoints {
        fs_err::create_dir_all(folder).map_err(|error| Error::io("create", folder, &error))?;
        options.checkpoints = Some(folder.clone());
    }
    Ok(options)
}

fn value(arguments: &Fit, fitted: &Fitted) -> Value {
    let training = &fitted.adapter.training;
    json!({
        "adapter": arguments.output.display().to_string(),
        "method": training.method,
        "seed": training.seed,
        "pairs": training.pairs,
        "old": fitted.adapter.old,
        "new": fitted.adapter.new,
        "geometry": fitted.adapter.geometry.name(),
        "uncertainty": fitted.adapter.uncertainty.name(),
        "held_out": fitted.selection,
        "calibration": fitted.calibration,
        "handicap": fitted.adapter.handicap,
        "handicap_choice": fitted.handicap,
        "hyper_parameters": training.hyper_parameters,
        "findings": fitted.findings,
    })
}

fn text(arguments: &Fit, fitted: &Fitted) -> String {
    let training = &fitted.adapter.training;
    let mut text = String::new();
    if let Some(selection) = &fitted.selection {
        table(&mut text, selection);
    }
    if let Some(calibration) = &fitted.calibration {
        let _ = writeln!(
            text,
            "σ² against the errors on left-out pairs: Kendall τ-b {:.2}",
            calibration.kendall_tau
        );
    }
    if let Some(choice) = &fitted.handicap {
        let (none, kept) = (&choice.rows[0], &choice.rows[choice.kept]);
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
        let mut gains = format!("{:+.1} {}", mean(&kept.areas) - mean(&none.areas), choice.criterion);
        if !kept.top1.is_empty() {
            let _ = write!(gains, ", {:+.1} top-1", mean(&kept.top1) - mean(&none.top1));
        }
        let _ = writeln!(
            text,
            "Handicap of adapted vectors: {:.4}, {:.0} % of the mean squared error ({gains} over the backfill of left-out pairs)",
            kept.handicap,
            100.0 * kept.part,
        );
    }
    let _ = writeln!(
        text,
        "{} fitted on {} pairs ({} → {}), written to {}",
        training.method,
        training.pairs,
        fitted.adapter.old,
        fitted.adapter.new,
        arguments.output.display()
    );
    text
}

/// The methods on held-out pairs, and the two lines that they are held against.
fn table(text: &mut String, selection: &Selection) {
    let _ = writeln!(
        text,
        "On held-out pairs ({} of known classes, {} of classes left out), {} in percent:\n",
        selection.held_out.0, selection.held_out.1, selection.criterion
    );
    let _ = writeln!(
        text,
        "  {:<16} {:<14} {:>8} {:>8} {:>8} {:>8}",
        "method", "geometry", "start", "area", "error", "seconds"
    );
    for (place, row) in selection.rows.iter().enumerate() {
        let mark = if selection.kept == Some(place) { '*' } else { ' ' };
        let geometry = row.geometry.map_or("raw", rehang_fit::geometry::GeometryKind::name);
        match &row.failure {
            Some(reason) => {
                let _ = writeln!(text, "{mark} {:<16} left out: {reason}", row.method);
            }
            None => {
                let _ = writeln!(
                    text,
                    "{mark} {:<16} {:<14} {:>8} {:>8} {:>8.3} {:>8}",
                    row.method.name(),
                    geometry,
                    one_decimal(row.start),
                    one_decimal(row.area),
                    row.relative_error,
                    one_decimal(row.seconds)
                );
            }
        }
    }
    let _ = writeln!(
        text,
        "\n  do nothing (old queries, old vectors) {}, new model on everything {}\n  start: at the switch; area: \
         mean over the whole backfill in random order; error: as a part of the new vectors' variance\n",
        one_decimal(selection.do_nothing),
        one_decimal(selection.native)
    );
}
