//! `rehang demo`: a whole upgrade of a small gallery of handwritten digits, offline.
//!
//! The data travels inside the binary ([`rehang_demo`]). Everything is written to a folder first and then goes through the
//! same verbs that a user would call, which are printed. Then the gallery is upgraded live.

use rehang::files::{HeadFiles, RowSelection, VectorSource};
use rehang::order::Policy;
use rehang::report::percent_rounded_up;
use rehang::{Error, Result, Verdict};
use rehang_demo::{Live, RATE, Step, unpack};
use rehang_evaluate::{AnswerFiles, ReportFiles};
use rehang_fit::{FitFiles, FitParameters};
use serde_json::json;

use super::{Outcome, fit, one_decimal, print, report, say};
use crate::arguments::Demo;
use crate::bar::with_bar;

/// Runs the demo.
pub fn run(arguments: &Demo, json: bool) -> Result<Outcome> {
    let folder = &arguments.out;
    unpack(folder)?;
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
    let source = |name: &str| VectorSource::path(folder.join(name));
    let rows = |role: i64| RowSelection { file: source("role.npy"), values: vec![role] };
    let head = HeadFiles {
        head_weight: Some(source("head_weight.npy")),
        head_bias: Some(source("head_bias.npy")),
        ..HeadFiles::default()
    };
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
        let made = fit::make(&FitFiles {
            labels: vec![source("label.npy")],
            rows: Some(rows(0)),
            head: head.clone(),
            old_model: "digits-old".into(),
            new_model: "digits-new".into(),
            parameters: FitParameters {
                method: method.parse()?,
                seed: arguments.seed,
                ..FitParameters::default()
            },
            ..FitFiles::new(source("old.npy"), source("new.npy"), output)
        })?;
        fitted.get_or_insert(made.fitted);
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
    let made = report::make(&ReportFiles {
        pairs_old: vec![source("old.npy")],
        pairs_rows: Some(rows(0)),
        rows: Some(rows(1)),
        answers: AnswerFiles { labels: vec![source("label.npy")], ..AnswerFiles::default() },
        head,
        orders: vec![Policy::Coverage, Policy::Sigma, Policy::Random],
        seed: arguments.seed,
        title: title.into(),
        command: report::command(),
        output: vec![output.clone(), folder.join("report.md"), folder.join("report.json")],
        ..ReportFiles::new(vec![adapter, ridge], source("old.npy"), source("new.npy"))
    })?;

    let metric = made.headline_metric().map(|metric| (metric.id.clone(), metric.name.clone()));
    let curve = made.headline_curve();
    let (Some((id, name)), Some(curve)) = (metric, curve) else {
        return Err(Error::corrupt("the demo's report", "it has no curve"));
    };
    let line = &curve.metrics[&id];
    let today = made.do_nothing.get(&id).copied().unwrap_or(f64::NAN);
    let live = with_bar(|progress| {
        rehang_demo::live(folder, &fitted.adapter, &|next| step(json, &command(next)), progress)
    })?;
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
    let crossing = match made.verdict() {
        Verdict::SwitchNow => "The switch pays at once, before a single image is embedded again.".to_owned(),
        Verdict::ReembedFirst { until } => format!(
            "The switch pays once {} % of the gallery is embedded again.",
            one_decimal(percent_rounded_up(until))
        ),
        Verdict::DoNotSwitch | Verdict::NotMeasured => "It never passes doing nothing.".to_owned(),
    };
    let text = format!(
        "\n{name} in percent ({}, order {}):\n  {:>5}  do nothing: the old encoder for gallery and queries\n  {:>5}  at the \
         switch: new queries, every gallery vector adapted\n  {:>5}  fully re-embedded\n{crossing}\n{}\nReport: {}\n",
        method,
        curve.order,
        one_decimal(today),
        one_decimal(line.start),
        one_decimal(line.end),
        live_text(&live),
        output.display()
    );
    print(json, &value, &text)?;
    Ok(Outcome::done_if(live.first_failure.is_none()))
}

/// What a user would type for a step.
fn command(step: &Step) -> String {
    match step {
        Step::Import => "rehang gallery import --gallery gallery.db --space digits-old …".into(),
        Step::Start => "rehang upgrade start --config rehang.toml".into(),
        Step::Switch => "rehang upgrade switch --config rehang.toml".into(),
        Step::Run => format!(
            "rehang upgrade run --config rehang.toml --rate {RATE}/s      # while people search and write"
        ),
    }
}

fn live_text(live: &Live) -> String {
    let mut text = format!(
        "\nLive, in {:.1} s: {} of {} images are native, while {} searches ran and {} items were added, {} changed, {} \
         deleted.\n  {} searches failed; the slowest 1 % took {:.2} ms or more ({:.2} ms before the backfill)\n  \
         the longest write waited {:.1} ms\n  of 10 neighbours {} % are the same digit: {} % before, {} % at the switch\n  \
         every vector was compared with what the new encoder says of its image: all are right\n",
        live.seconds,
        live.native,
        live.items,
        live.searches,
        live.writes.new,
        live.writes.changed,
        live.writes.deleted,
        live.failed_searches,
        live.search_p99_ms.backfill,
        live.search_p99_ms.idle,
        live.longest_write_ms,
        one_decimal(live.precision_at_10.after),
        one_decimal(live.precision_at_10.before),
        one_decimal(live.precision_at_10.at_switch),
    );
    if let Some(reason) = &live.first_failure {
        text += &format!(
            "  A live upgrade must not make a single search fail, so this demo did not succeed. The first failure: {reason}\n"
        );
    }
    text
}

fn step(json: bool, command: &str) {
    if !json {
        say(&format!("\n$ {command}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_search_is_no_success() {
        assert!(!live_text(&Live::default()).contains("did not succeed"));
        let failed = Live { first_failure: Some("3 hits".into()), ..Live::default() };
        assert!(live_text(&failed).contains("did not succeed") && live_text(&failed).contains("3 hits"));
    }
}
