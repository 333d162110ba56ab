//! `rehang upgrade status`: how the upgrade stands, once or again and again.

use std::io::Write as _;
use std::time::Duration;

use rehang_core::{Remedy, Result};
use rehang_store::Store;
use rehang_upgrade::{
    AutoOptions, Clock, Forecast, Halt, Left, Next, Phase, Request, SigmaHealth, Status, Step, SystemClock,
    Upgrade, left,
};
use serde::ser::{Error as _, Serialize, SerializeSeq, Serializer};

use super::backfill::spent_text;
use super::learn::refit_text;
use super::shared::{duration, open};
use super::steps::remarks_text;
use crate::arguments::upgrade::UpgradeStatusArguments;
use crate::commands::{Exit, written};
use crate::wording;

/// Number of steps of the curve that a status draws.
const DRAWN: i32 = 40;
/// Heights of the drawn curve, from the lowest of its values and of doing nothing to the highest.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Time between two lines of `status --watch`.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// Items that a status lists for people.
const LISTED: usize = 20;
/// Items that are read at a time where all are listed.
const LIST_PAGE: usize = 1000;

pub fn status(arguments: &UpgradeStatusArguments, json: bool) -> Result<Exit> {
    let upgrade = open(&arguments.config)?;
    let clock = SystemClock::start();
    let mut before: Option<(u64, u64)> = None;
    loop {
        let status = upgrade.status(arguments.failures)?;
        // A fault of the configuration is for the next verb to report.
        let forecast = upgrade.forecast().ok().flatten();
        let next = upgrade.next(&AutoOptions::default(), false).ok();
        let stands = Stands { status: &status, next, forecast: forecast.as_ref() };
        let now = clock.now_ms();
        let rate = before.map(|(time, native)| {
            status.counts.native.saturating_sub(native) as f64 * 1000.0 / (now - time).max(1) as f64
        });
        before = Some((now, status.counts.native));
        let over = !arguments.watch || status.phase == Phase::Finished || status.fraction >= 1.0;
        if json && over {
            // Every item that is left is printed while it is read, since there may be millions.
            print_with_lists(upgrade.store(), &stands)?;
        } else {
            let mut text = status_text(&stands, rate);
            if over {
                text += &lists_text(&upgrade, &status)?;
                text += &remarks_text(&upgrade)?;
            }
            Exit::Done.print(json, &stands, &text)?;
        }
        if over {
            let alarm = status.sigma.is_some_and(|sigma| sigma.alarm);
            let doubtful = alarm || status.counts.failed > 0;
            return Ok(Exit::done_if(!doubtful));
        }
        clock.wait(WATCH_EVERY);
    }
}

/// Lists the first few items that lack a source or a vector, for people.
fn lists_text(upgrade: &Upgrade, status: &Status) -> Result<String> {
    let mut text = String::new();
    // A rollback is recorded before searches go back, so the record alone does not say that they did.
    let is_taken_back = matches!(status.phase, Phase::RolledBack | Phase::Abandoned)
        && status.serving.as_ref() == Some(&upgrade.configuration().old.name);
    let mut lists = vec![
        (Left::WithoutSource, Some(status.counts.without_source), "without a source"),
        (Left::WithoutVector, Some(status.without_vector), "without any vector; no search finds them"),
    ];
    if is_taken_back {
        // How many is not known: counting reads all of the old space.
        let words = "without an old vector; no search finds them until the application writes one";
        lists.push((Left::WithoutOldVector, None, words));
    }
    for (what, count, words) in lists {
        if count == Some(0) {
            continue;
        }
        let (ids, next) = left(upgrade.store(), what, None, LISTED)?;
        if ids.is_empty() {
            continue;
        }
        text += &format!("  {words}:\n");
        for id in &ids {
            text += &format!("    {id}\n");
        }
        let more = count.map(|count| count.saturating_sub(ids.len() as u64));
        if next.is_some() && more != Some(0) {
            let more = more.map_or_else(|| "more".to_owned(), |more| format!("{more} more"));
            text += &format!("    … and {more}; --json lists all\n");
        }
    }
    Ok(text)
}

/// Status with the step that is next and the forecast.
#[derive(serde::Serialize)]
struct Stands<'a> {
    #[serde(flatten)]
    status: &'a Status,
    next: Option<Next>,
    forecast: Option<&'a Forecast>,
}

/// Status with the ids of all items that lack a source, a vector or an old vector. One page of ids is in
/// memory at a time.
#[derive(serde::Serialize)]
struct WithLists<'a> {
    #[serde(flatten)]
    stands: &'a Stands<'a>,
    items_without_source: Ids<'a>,
    items_without_vector: Ids<'a>,
    items_without_old_vector: Ids<'a>,
}

/// List of ids that is read from the store while it is written as JSON.
struct Ids<'a> {
    store: &'a dyn Store,
    what: Left,
}

impl Serialize for Ids<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        let mut after = None;
        loop {
            let (ids, next) = left(self.store, self.what, after, LIST_PAGE).map_err(S::Error::custom)?;
            for id in &ids {
                list.serialize_element(id)?;
            }
            if next.is_none() {
                return list.end();
            }
            after = next;
        }
    }
}

fn print_with_lists(store: &dyn Store, stands: &Stands<'_>) -> Result<()> {
    let ids = |what| Ids { store, what };
    let with_lists = WithLists {
        stands,
        items_without_source: ids(Left::WithoutSource),
        items_without_vector: ids(Left::WithoutVector),
        items_without_old_vector: ids(Left::WithoutOldVector),
    };
    let mut stdout = std::io::BufWriter::new(std::io::stdout().lock());
    let outcome = serde_json::to_writer(&mut stdout, &with_lists)
        .map_err(|error| match error.io_error_kind() {
            Some(kind) => std::io::Error::from(kind),
            None => std::io::Error::other(error.to_string()),
        })
        .and_then(|()| writeln!(stdout).and_then(|()| stdout.flush()));
    written(outcome)
}

fn status_text(stands: &Stands<'_>, rate: Option<f64>) -> String {
    let status = stands.status;
    let counts = &status.counts;
    let mut text = format!(
        "{}: {}\n  from {}\n  to   {}\n  searches go to {:?}\n  {} of {} items are native ({:.1} %), {} adapted, {} wait to be \
         caught up with\n",
        status.gallery,
        status.phase.name(),
        status.old,
        status.new,
        status.serving.as_deref().unwrap_or("nothing"),
        counts.native,
        counts.items,
        100.0 * status.fraction,
        counts.adapted,
        status.lag,
    );
    if let Some(not_found) = status.not_found.filter(|count| *count > 0) {
        let since = status.follower.as_ref().and_then(|follower| follower.lacking_since_ms);
        let since = since.map_or_else(String::new, |since| {
            let waited = rehang_clock::unix_ms().saturating_sub(since) as f64 / 1000.0;
            format!(", some for {} now", duration(waited))
        });
        text += &if counts.to_embed() + status.lag > 0 {
            format!(
                "  no search finds {not_found} items yet{since}: `rehang upgrade run --follow` adapts or embeds them\n"
            )
        } else {
            format!("  no search finds {not_found} items: they have neither a source nor an old vector\n")
        };
    }
    if let Some(follower) = &status.follower {
        let ago = rehang_clock::unix_ms().saturating_sub(follower.at_ms) as f64 / 1000.0;
        text += &format!("  follower {} was last here {} ago\n", follower.worker, duration(ago));
    }
    text += &match stands.next {
        Some(Next::Step(Step::Run)) if status.phase == Phase::Finished => {
            "  next: run, which embeds what the finish has left and what came since\n".into()
        }
        Some(Next::Step(Step::Resume)) => "  next: resume\n".into(),
        next => way_text(next, status.plain),
    };
    if let Some(weight) = status.fusion_weight {
        text += &format!(
            "  searches are fused: what is not native is judged {:.0} % by its adapted vector, the rest by the old one\n",
            100.0 * weight
        );
    }
    if let Some(bridge) = &status.bridge {
        text += &format!(
            "  queries go there over a bridge: {:.0} % of each is the new model's\n",
            100.0 * bridge.share
        );
    }
    if let Some(forecast) = stands.forecast {
        text += &forecast_text(forecast, status.fraction);
    }
    match status.request {
        Request::Run => {}
        Request::Pause => text += "  paused: `rehang upgrade resume` lets backfills go on\n",
        Request::Stop => text += "  stopped: `rehang upgrade resume` lets backfills go on\n",
    }
    if let Some(rate) = rate
        && rate > 0.0
    {
        let items_left = (counts.items - counts.native).saturating_sub(counts.without_source + counts.failed);
        text += &format!("  {rate:.1} items a second, {} left\n", duration(items_left as f64 / rate));
    }
    text += &spent_text("  spent by all runs", status.spent.money, status.spent.tokens);
    for worker in &status.at_work {
        let time_left = duration(worker.left_ms as f64 / 1000.0);
        text += &format!("  {} works on {} items, leased for {time_left}\n", worker.worker, worker.items);
    }
    if counts.without_source > 0 {
        text += &format!("  {} items have no source: they stay adapted\n", counts.without_source);
    }
    if status.unvouched > 0 {
        text += &format!(
            "  after {} native items the encoder could not be compared with itself; the next `rehang upgrade run` compares them first\n",
            status.unvouched
        );
    }
    if let Some(sigma) = &status.sigma {
        text += &format!("  {}\n", sigma_text(sigma));
        if sigma.alarm {
            text += &format!("  {}\n", alarm());
        }
    }
    for refit in &status.refits {
        text += &format!("  {}", refit_text(refit));
    }
    if let Some(refit) = &status.refitting {
        text += &format!("  refitting: {refit}\n");
    }
    for finding in &status.findings {
        text += &format!("  {finding}\n");
    }
    if counts.failed > 0 {
        text += &format!("  {} items could not be embedded:\n", counts.failed);
        for failure in &status.failures {
            text += &format!("    {}: {}\n", failure.id, failure.reason);
        }
    }
    text
}

/// Says what is forecast by now and at the end, and draws the curve with the place on it.
fn forecast_text(forecast: &Forecast, share: f64) -> String {
    let ranged = |value: f64, range: Option<(f64, f64)>| {
        let range = range.map(|(low, high)| format!(" ({low:.1}–{high:.1})"));
        format!("{value:.1}{}", range.unwrap_or_default())
    };
    let with_range = |share: f64| ranged(forecast.at(share), forecast.range_at(share));
    let shares: Vec<f64> = (0..=DRAWN).map(|cell| f64::from(cell) / f64::from(DRAWN)).collect();
    let values: Vec<f64> = shares.iter().map(|&share| forecast.at(share)).collect();
    let (low, high) = values
        .iter()
        .chain(&forecast.do_nothing)
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), &value| (low.min(value), high.max(value)));
    let here = (share.clamp(0.0, 1.0) * f64::from(DRAWN)).floor();
    let bars = values.iter().zip(0..).map(|(value, cell)| {
        let height = (value - low) / (high - low).max(f64::MIN_POSITIVE) * (BARS.len() - 1) as f64;
        let bar = BARS[height.round() as usize];
        if f64::from(cell) == here { format!("[{bar}]") } else { bar.to_string() }
    });
    let nothing = forecast
        .do_nothing
        .map(|value| format!(", {} by doing nothing", ranged(value, forecast.do_nothing_range)));
    format!(
        "  {} is forecast at {} by now, {} at the end{}\n  {}\n",
        forecast.metric,
        with_range(share),
        with_range(1.0),
        nothing.unwrap_or_default(),
        bars.collect::<String>()
    )
}

/// Lists the steps of the upgrade, the next one in brackets.
fn way_text(next: Option<Next>, plain: bool) -> String {
    let at = match next {
        Some(Next::Step(Step::Pairs)) => "pairs",
        Some(Next::Step(Step::Fit)) => "fit",
        Some(Next::Step(Step::Order | Step::Report)) => "report",
        Some(Next::Step(Step::Start)) => "start",
        Some(Next::Step(Step::Backfill)) if plain => "run",
        Some(
            Next::Step(Step::Switch | Step::Backfill)
            | Next::Halt(Halt::TooManyMissing | Halt::NotWorthwhile | Halt::NotMeasured),
        ) => "switch",
        Some(Next::Step(Step::Run) | Next::Halt(Halt::Reached)) => "run",
        Some(Next::Halt(Halt::NothingToEmbed)) => "finish",
        _ => return String::new(),
    };
    let mapped = ["pairs", "fit", "report", "start", "switch", "run", "finish"];
    let steps = if plain { &["start", "run", "switch", "finish"][..] } else { &mapped };
    let mark = |step: &&str| if *step == at { format!("[{step}]") } else { (*step).to_owned() };
    format!("  next: {}\n", steps.iter().map(mark).collect::<Vec<_>>().join(" → "))
}

/// Says that σ² and the true errors disagree, and what to do.
pub fn alarm() -> String {
    format!(
        "ALARM: σ² and the true errors disagree, in scale or in order. The worst may not go first: {}.",
        wording::remedy(&Remedy::FitAgain)
    )
}

/// Puts σ² beside the true errors of the same items.
pub fn sigma_text(sigma: &SigmaHealth) -> String {
    format!(
        "σ² of the last {} backfilled items: mean {:.4}, true squared error {:.4}, τ {}",
        sigma.items,
        sigma.mean_sigma2,
        sigma.mean_squared_error,
        sigma.tau.map_or("–".into(), |tau| format!("{tau:.2}"))
    )
}
