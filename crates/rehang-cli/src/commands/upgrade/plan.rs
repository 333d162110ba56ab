//! `rehang upgrade plan`: what the upgrade would do, how long it takes and what it costs.

use rehang_core::Result;
use rehang_upgrade::{Basis, CostEstimate, Forecast, Outlook, Way, WayReason, Ways};

use super::shared::{bytes, duration, open};
use super::steps::remarks_text;
use crate::arguments::upgrade::UpgradePlanArguments;
use crate::commands::{Exit, one_decimal, thresholds, warn};

pub fn plan(arguments: &UpgradePlanArguments, json: bool) -> Result<Exit> {
    let upgrade = open(&arguments.config)?;
    let outlook = upgrade.plan(arguments.probe)?;
    let text = plan_text(&outlook) + &remarks_text(&upgrade)?;
    Exit::Done.print(json, &outlook, &text)?;
    Ok(warn(&outlook.findings()))
}

pub fn plan_text(outlook: &Outlook) -> String {
    let Outlook { plan, estimate, searches, forecast, .. } = outlook;
    let mut text = format!("{}\n  from {}\n  to   {}\n\n", plan.gallery, plan.old, plan.new);
    if let Some(falls) = forecast.as_ref().and_then(Forecast::falls) {
        text += &format!("{falls}\n\n");
    }
    if let Some(ways) = &outlook.ways {
        text += &(ways_text(ways) + "\n");
    }
    text += &if plan.plain {
        format!("start   makes the new space; nothing is mapped\nrun     embeds {} items\n", plan.to_embed)
    } else {
        format!(
            "start   writes {} {} ({} of vectors beside the gallery's own)\n{}run     re-embeds up to {} items, {} first\n",
            plan.to_adapt,
            if plan.as_they_are { "OLD vectors as they are" } else { "adapted vectors" },
            bytes(plan.bytes),
            if plan.as_they_are && plan.to_adapt > 0 { WITHOUT_ADAPTER } else { "" },
            plan.to_embed,
            outlook.order.policy,
        )
    };
    if plan.without_source > 0 {
        let become_of =
            if plan.plain { "no search finds them after the switch" } else { "they stay adapted" };
        text += &format!("        {} items have no source: {become_of}", plan.without_source);
        let of_all = |forecast: &Forecast| forecast.at(1.0) - forecast.start;
        text += &match (outlook.lost_without_source, forecast.as_ref().map(of_all)) {
            (Some(lost), Some(all)) if lost > 0.0 => format!(
                ", about {} of the {} points that the end is above the switch\n",
                one_decimal(lost),
                one_decimal(all)
            ),
            _ => "\n".to_owned(),
        };
    }
    if plan.to_embed > 0 {
        text += &estimate_text(estimate, plan.to_embed);
    }
    text += "switch  one step; rollback undoes it at any time before finish\n";
    text += &searches.as_ref().map_or_else(String::new, |searches| format!("search  {searches}\n"));
    if !plan.plain {
        text += &forecast_text(forecast.as_ref());
    }
    text
}

/// Says what embedding everything takes, and which way `auto` goes for it.
pub fn ways_text(ways: &Ways) -> String {
    let Ways { to_embed, native, estimate, .. } = ways;
    let already = if *native > 0 { format!(" ({native} are native already)") } else { String::new() };
    let mut text = format!("Re-embedding everything: {to_embed} items{already}\n");
    if *to_embed > 0 {
        text += &estimate_text(estimate, *to_embed);
    }
    let shorter = duration(ways.plain_up_to_seconds);
    let why = match ways.because {
        WayReason::Asked | WayReason::Begun => String::new(),
        WayReason::Native => {
            "Everything that can be embedded is native, so nothing is left to map or to forecast: ".into()
        }
        WayReason::NothingToMap => "No item has an old vector, so there is nothing to map: ".into(),
        WayReason::FewPairs => "Too few items have an old vector to measure what a map would buy: ".into(),
        WayReason::WithoutSource => {
            "More than one item in a hundred has no source, and only a map lets searches find them: ".into()
        }
        WayReason::Budget => "A budget ends before everything is embedded: ".into(),
        WayReason::Shorter => format!("That is at most {shorter}, sooner than a map is made and measured: "),
        WayReason::Longer => {
            format!("That is more than {shorter}, and a map serves the new model meanwhile: ")
        }
        WayReason::Unknown => "How long that takes is not known: ".into(),
    };
    text += &why;
    text += match ways.way {
        Way::Plain => {
            "`auto` goes the plain way, everything embedded and then one switch. `--mapped` asks for a map, where the switch has to be proven \
                       first.\n"
        }
        Way::Mapped => "`auto` maps first. `--plain` embeds everything and maps nothing.\n",
    };
    text
}

/// Says what the report on held-out pairs forecasts, or how to get a report.
fn forecast_text(forecast: Option<&Forecast>) -> String {
    let Some(forecast) = forecast else {
        return "\nforecast  none, so nothing is known of the quality. `rehang upgrade report` makes one on pairs of the gallery that the adapter was \
                not fitted on; or [forecast] names the JSON of a `rehang report` on other pairs\n"
            .into();
    };
    let range = |(low, high): (f64, f64)| format!(" ({}–{})", one_decimal(low), one_decimal(high));
    let today = forecast.do_nothing.map_or("not measured".into(), one_decimal)
        + &forecast.do_nothing_range.map_or_else(String::new, range);
    let searched_how = forecast.gallery.map_or_else(
        || "searched among themselves".to_owned(),
        |items| format!("for a gallery of {items}, each number with the range of 95 in 100 samples"),
    );
    let ranged = |share: f64, value: f64| {
        let told = forecast.ranges.iter().find(|range| range.0 == share && range.1 < range.2);
        one_decimal(value) + &told.map_or_else(String::new, |&(_, low, high)| range((low, high)))
    };
    let bridge = forecast.bridge.map_or_else(String::new, |(value, low, high)| {
        format!(", over a bridge {}{}", one_decimal(value), range((low, high)))
    });
    let mut text = format!(
        "\nforecast  {} of {} on {} held-out items, {searched_how} ({})\n          do nothing {today}{bridge}, at the switch {}",
        forecast.metric,
        forecast.curve,
        forecast.items,
        forecast.source,
        ranged(0.0, forecast.start)
    );
    for (share, value) in &forecast.curve_at {
        text += &format!(", {:.0} % native {}", 100.0 * share, ranged(*share, *value));
    }
    for other in &forecast.others {
        let today = other.do_nothing.map_or("not measured".into(), one_decimal);
        let (start, end) = (one_decimal(other.start), one_decimal(other.end));
        text += &format!(
            "\n          {}: do nothing {today}, at the switch {start}, 100 % native {end}",
            other.metric
        );
    }
    if let Some(enough) = forecast.enough {
        let [at, low, high] = [enough.fraction, enough.low, enough.high].map(|share| 100.0 * share);
        text += &format!("\n          98 % of the end from {at:.0} % native on ({low:.0}–{high:.0})");
    }
    text += match (forecast.do_nothing, forecast.passes_at_percent()) {
        (None, _) => "\n".into(),
        (_, Some(percent)) if percent <= 0.0 => "\n          above doing nothing from the switch on\n".into(),
        (_, Some(percent)) => format!(
            "\n          above doing nothing from {} % native on: before it, `switch` refuses, and fused searches help\n",
            one_decimal(percent)
        ),
        (_, None) => "\n          never above doing nothing: this adapter does not pay with mixed searches\n".to_owned(),
    }
    .as_str();
    text + &forecast.floors.as_ref().map_or_else(String::new, thresholds::text)
}

/// Says what embedding takes in time and money, as far as that is known.
fn estimate_text(estimate: &CostEstimate, items: u64) -> String {
    const MEASURES: &str = "--probe 32 embeds some items now to measure it";
    let sent = estimate.sent.unwrap_or(items);
    let mut text = match (estimate.seconds, estimate.basis) {
        (Some(seconds), Some(basis)) => {
            let (about, why) = match basis {
                Basis::Probe => {
                    let embedded = estimate.probed_items.unwrap_or(0) - estimate.failed.unwrap_or(0);
                    ("about", format!("as measured on {embedded} items"))
                }
                Basis::EarlierRun => ("about", "as an earlier run of this gallery had".to_owned()),
                Basis::Limits => ("at least", format!("which the limits allow ({MEASURES})")),
            };
            let rate = if seconds > 0.0 { sent as f64 / seconds } else { 0.0 };
            format!("        {about} {} at {rate:.1} items a second, {why}\n", duration(seconds))
        }
        _ => match estimate.batch_api_items {
            Some(items) => format!(
                "        answers come within a day, in each batch of {items} texts (batch_api = true, batch_api_items): no rate says when\n"
            ),
            None => format!("        how long it takes is not known ({MEASURES})\n"),
        },
    };
    text += &match (estimate.tokens, estimate.money) {
        (Some(tokens), Some(money)) => {
            format!("        about {tokens} tokens, {money:.2} in the unit of the configured price\n")
        }
        (Some(tokens), None) => format!("        about {tokens} tokens; no price is configured\n"),
        (None, Some(money)) => format!("        about {money:.2} in the unit of the configured price\n"),
        (None, None) => String::new(),
    };
    if estimate.batch_api_items.is_some() && estimate.money.is_some() {
        text += "        price_per_million_tokens has to be the price of batches, which is lower\n";
    }
    if sent < items {
        text += &format!("        {sent} of them are paid for: the others have the source of another item\n");
    }
    if let Some(budget) = estimate.budget_items.filter(|budget| *budget < items) {
        text += &format!("        the budget of [encoder] ends a run after about {budget} items\n");
    }
    text
}

/// Warning where nothing maps old vectors into the new space.
pub const WITHOUT_ADAPTER: &str = "        there is no adapter: this is right only for a model that was trained to search old vectors; for any other, `rehang \
                               upgrade pairs` and `rehang upgrade fit` come before `start`\n";
