//! `rehang demo`: a whole upgrade of a small gallery of handwritten digits, offline.
//!
//! The data travels inside the binary ([`rehang_demo`]). First everything is written to a folder. Then it
//! goes through the same verbs that a user would call, and these calls are printed. At last the gallery is
//! upgraded live.

#[cfg(feature = "serve")]
mod dashboard;

use clap::Args;
use rehang_core::report::percent_rounded_up;
use rehang_core::{Error, Result, Verdict};
use rehang_demo::{DemoStep, Live, LiveOptions, unpack};
use serde_json::json;

use super::{Exit, fit, one_decimal, report, say};
use crate::arguments::DemoArguments;
use crate::bar::with_bar;

/// Runs the demo, beside a dashboard where one is asked for.
pub fn run(arguments: &DemoArguments, json: bool) -> Result<Exit> {
    #[cfg(feature = "serve")]
    if let Some(listen) = arguments.serve {
        return dashboard::run(arguments, listen, json);
    }
    upgrade(arguments, &LiveOptions::default(), &|_| Ok(()), json)
}

/// Upgrades the demo's gallery; `steps` is told each step of the live part before it is taken.
fn upgrade(
    arguments: &DemoArguments,
    options: &LiveOptions,
    steps: &dyn Fn(&DemoStep) -> Result<()>,
    json: bool,
) -> Result<Exit> {
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

    let (adapter, ridge) = (path("adapter.safetensors"), path("ridge.safetensors"));
    let (old, new, labels) = (path("old.npy"), path("new.npy"), path("label.npy"));
    let vectors = ["--old", &old, "--new", &new, "--labels", &labels];
    let [pairs, held_out] = [0, 1].map(|role| format!("{}={role}", path("role.npy")));
    let (weight, bias) = (path("head_weight.npy"), path("head_bias.npy"));
    let head = ["--head-weight", &weight, "--head-bias", &bias];
    let names = ["--old-model", "digits-old", "--new-model", "digits-new"];
    let seed = arguments.seed.to_string();
    let mut fitted = None;
    for (method, output) in [("auto", &adapter), ("ridge", &ridge)] {
        let method = ["fit", "--method", method];
        let fit_words =
            [&method[..], &vectors, &["--rows", &pairs], &head, &names, &["--seed", &seed, "-o", output]];
        fitted.get_or_insert(fit::make(&typed(json, &fit_words.concat())?)?.fitted);
    }
    let fitted = fitted.ok_or_else(|| Error::missing("an adapter", "the demo"))?;
    let method = fitted.adapter.training.method.clone();

    let adapters = ["report", &adapter, &ridge];
    let orders = ["--orders", "coverage,sigma,random", "--pairs-old", &old, "--pairs-rows", &pairs];
    let title = ["--seed", &seed, "--title", "Rehanging a gallery of handwritten digits"];
    let output = path("report.html");
    let outputs = ["-o", &output, "-o", &path("report.md"), "-o", &path("report.json")];
    let report = [&adapters[..], &vectors, &["--rows", &held_out], &head, &orders, &title, &outputs];
    let demo_report = report::make(&typed(json, &report.concat())?)?;

    let metric = demo_report.headline_metric().map(|metric| (metric.id.clone(), metric.name.clone()));
    let curve = demo_report.headline_curve();
    let (Some((id, name)), Some(curve)) = (metric, curve) else {
        return Err(Error::corrupt("the demo's report", "it has no curve"));
    };
    let line = &curve.metrics[&id];
    let today = demo_report.do_nothing.get(&id).copied().unwrap_or(f64::NAN);
    let told = |next: &DemoStep| -> Result<()> {
        steps(next)?;
        step(json, &command(next, options.rate));
        Ok(())
    };
    let live = with_bar(|progress| rehang_demo::live(folder, &fitted.adapter, options, &told, progress))?;
    let value = json!({
        "live": live,
        "report": output,
        "metric": id,
        "method": method,
        "order": curve.order,
        "do_nothing": today,
        "at_switch": line.start,
        "fully_native": line.end,
        "area": line.area.value,
        "passes_do_nothing_at": line.passes_do_nothing_at,
    });
    let crossing = match demo_report.verdict() {
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
        output
    );
    Exit::done_if(live.first_failure.is_none()).print(json, &value, &text)
}

/// Gives the command that a user would type for a step of the live upgrade, at a rate of items a second.
fn command(step: &DemoStep, rate: f64) -> String {
    match step {
        DemoStep::Import => "rehang gallery import --gallery gallery.db --space digits-old …".into(),
        DemoStep::Start => "rehang upgrade start --config rehang.toml".into(),
        DemoStep::Switch => "rehang upgrade switch --config rehang.toml".into(),
        DemoStep::Run => format!(
            "rehang upgrade run --config rehang.toml --rate {rate}/s      # while people search and write"
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

/// Prints a call of rehang and parses its options, so that what is shown is what is done.
fn typed<T: Args>(json: bool, words: &[&str]) -> Result<T> {
    step(json, &report::shell_line(words));
    let command = T::augment_args(clap::Command::new("rehang"));
    let options = command.try_get_matches_from(words).and_then(|matches| T::from_arg_matches(&matches));
    options.map_err(|error| Error::option("the demo's command", words.join(" "), error))
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
