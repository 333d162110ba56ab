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

/// Says in one sentence what searches find now, and what they would find.
pub fn verdict(is_new: bool, status: &Status, forecast: Option<&Forecast>) -> String {
    let Some(forecast) = forecast else { return "Nothing is forecast yet.".into() };
    let (metric, start, end) = (&forecast.metric, forecast.start, forecast.at(1.0));
    let by_old = forecast.do_nothing.map(|value| format!("{value:.1}"));
    let by_old = by_old.as_deref().unwrap_or("not measured");
    if is_new {
        let now = forecast.at(status.fraction);
        format!(
            "{metric} is forecast at {now:.1} by now and {end:.1} at the end; without the upgrade it is {by_old}."
        )
    } else {
        format!("{metric} is {by_old}; after a switch it would begin at {start:.1} and end at {end:.1}.")
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
