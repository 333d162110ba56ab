//! Dashboard: one page, its looks and its script, and the words and the chart that it shows.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use rehang_report::{Axis, Chart, ChartLine, Level, Note, svg_curve};
use rehang_upgrade::{Forecast, Status};

const HTML: &str = include_str!("page/index.html");
const SCRIPT: &str = include_str!("page/page.js");
const STYLE: &str = include_str!("page/page.css");

/// Rule for what a browser may load for the page: this service's own files and nothing else.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

pub fn html() -> Response {
    file(HTML, "text/html; charset=utf-8")
}

pub fn script() -> Response {
    file(SCRIPT, "text/javascript; charset=utf-8")
}

pub fn style() -> Response {
    file(STYLE, "text/css; charset=utf-8")
}

fn file(text: &'static str, kind: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_SECURITY_POLICY)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (headers, text).into_response()
}

/// Says in one sentence where searches go and what they find there.
pub fn verdict(status: &Status, is_new: bool, forecast: Option<&Forecast>) -> String {
    let serving = status.serving.as_deref().unwrap_or("nothing");
    let at = format!("Searches go to {serving:?}");
    let Some(forecast) = forecast else { return format!("{at}; nothing is forecast yet.") };
    let now = if is_new { Some(forecast.at(status.fraction)) } else { forecast.do_nothing };
    let end = forecast.at(1.0);
    match (now, forecast.do_nothing) {
        (Some(now), Some(nothing)) if is_new => format!(
            "{at}: {} is forecast at {now:.1} by now, {nothing:.1} without the upgrade and {end:.1} at its end.",
            forecast.metric
        ),
        (Some(now), _) => format!(
            "{at}: {} is {now:.1} there; the new model begins at {:.1} and ends at {end:.1}.",
            forecast.metric, forecast.start
        ),
        (None, _) => format!("{at}: {} ends at {end:.1}.", forecast.metric),
    }
}

/// Draws the forecast with its band, doing nothing, the bridge and where the upgrade is.
pub fn chart(status: &Status, forecast: &Forecast) -> String {
    let points = |of: &[(f64, f64)]| of.iter().map(|&(share, value)| (100.0 * share, value)).collect();
    let mut all = vec![(0.0, forecast.start)];
    all.extend(forecast.curve_at.iter().filter(|(share, _)| *share > 0.0));
    let mut line = ChartLine::new("forecast", points(&all));
    line.band = forecast.ranges.iter().map(|&(share, low, high)| (100.0 * share, low, high)).collect();
    let level = |name: &str, value, dotted| Level { name: name.into(), value, dotted };
    let nothing = forecast.do_nothing.map(|value| level("do nothing", value, false));
    let bridge = forecast.bridge.map(|(value, ..)| level("over a bridge", value, true));
    let share = status.fraction.clamp(0.0, 1.0);
    svg_curve(&Chart {
        title: format!("{} while the gallery is re-embedded", forecast.metric),
        x: Axis::percent("re-embedded, %"),
        y: Axis::percent(format!("{}, %", forecast.metric)),
        lines: vec![line],
        levels: nothing.into_iter().chain(bridge).collect(),
        note: Some(Note { x: 100.0 * share, y: forecast.at(share), text: "now".into() }),
        ..Chart::default()
    })
}
