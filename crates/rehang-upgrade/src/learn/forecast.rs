//! Forecast of an upgrade by a report on held-out pairs, and whether switching now would serve worse
//! than doing nothing.

use rehang_core::adapter::Training;
use rehang_core::finding::{Finding, FindingCode, Severity};
use rehang_core::report::{
    CurveSeries, EnoughShare, FORMAT_VERSION, Floors, Report, ShownMetric, percent_rounded_up,
};
use rehang_core::verdict::{Verdict, is_below};
use rehang_core::{Error, Remedy, Result};
use rehang_store::{Ledger, find_space};
use serde::Serialize;

use crate::live::estimate::CostEstimate;
use crate::live::until::{ENOUGH, Unit, Until, native_share, reaches};
use crate::record::{Recorded, Serving};
use crate::setup::{UpgradeSetup, as_sentences, expect_of_adapter};

/// Shares of the gallery that a plan shows the curve at.
const SHOWN: [f64; 4] = [0.1, 0.25, 0.5, 1.0];

/// Codes of a report's findings that belong beside its numbers wherever they are shown.
const SAID_AGAIN: [FindingCode; 3] =
    [FindingCode::AnotherMetricFalls, FindingCode::MoreQueries, FindingCode::WideForecast];

/// The curve of an upgrade, as a report measured it on items that the adapter was not fitted on.
///
/// Qualities are in the unit of the report's metric (percent for all of today's), more is better; shares are
/// in `[0, 1]`. A number that was not measured is `None`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Forecast {
    /// Name of the report that the forecast was read from.
    pub source: String,
    /// Name of the metric.
    pub metric: String,
    /// Method and order of the curve.
    pub curve: String,
    /// Number of items that the curve was measured on.
    pub items: usize,
    /// Number of items of the gallery that the curve is a forecast of; `None` where the measured items were
    /// searched among themselves.
    pub gallery: Option<usize>,
    /// Quality without an upgrade: old queries on old vectors.
    pub do_nothing: Option<f64>,
    /// Range of `do_nothing` in 95 of 100 samples, `(low, high)`; `None` where all items were asked.
    pub do_nothing_range: Option<(f64, f64)>,
    /// Quality over a bridge, where old vectors stay and no vector is written, `(quality, low, high)`; `None`
    /// where none was proven to be better than doing nothing.
    pub bridge: Option<(f64, f64, f64)>,
    /// Quality at the switch, with nothing native.
    pub start: f64,
    /// Quality at some shares of native items, `(share, quality)`; the last one is the end.
    pub curve_at: Vec<(f64, f64)>,
    /// Range of the quality in 95 of 100 samples, at the switch and at the shares of `curve_at`:
    /// `(share, low, high)`; none where the quality was measured.
    pub ranges: Vec<(f64, f64, f64)>,
    /// Share of native items that is enough for 98 % of the end, where something can be said of it.
    pub enough: Option<EnoughShare>,
    /// Share of native items from which on the curve stays at or above doing nothing; `None`
    /// where it never does.
    pub passes_do_nothing_at: Option<f64>,
    /// Metrics beside that of the forecast that a report shows first, such as top-1 beside mAP.
    pub others: Vec<OtherMetric>,
    /// Floors of an application, carried over to the new model; `None` in a report of an earlier version, and
    /// of held-out items among themselves.
    pub floors: Option<Floors>,
    /// Findings that a person should know of.
    #[serde(rename = "warnings", serialize_with = "as_sentences")]
    pub findings: Vec<Finding>,
    /// Whether the report found nothing that makes its numbers worthless.
    pub is_reliable: bool,
    /// Every point of the curve, `(share, quality)`, shares ascending from 0 to 1.
    #[serde(skip)]
    points: Vec<(f64, f64)>,
    /// The lower and the upper end of the range at every point.
    #[serde(skip)]
    edges: Option<[Vec<(f64, f64)>; 2]>,
}

/// A metric beside the one that a forecast speaks of.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct OtherMetric {
    /// Name of the metric.
    pub metric: String,
    /// Quality without an upgrade.
    pub do_nothing: Option<f64>,
    /// Quality at the switch, with nothing native.
    pub start: f64,
    /// Quality when everything is native.
    pub end: f64,
    /// Share of native items from which on the metric's range is no longer wholly below doing nothing. 0
    /// where it does not fall, or doing nothing was not measured; `None` where it stays below to the end.
    pub recovers_at: Option<f64>,
}

impl OtherMetric {
    /// Reads a metric of a curve; `None` where the curve has no such metric.
    fn from_curve(report: &Report, curve: &CurveSeries, shown: &ShownMetric) -> Option<Self> {
        let line_of = curve.metrics.get(&shown.id)?;
        let do_nothing = report.do_nothing.get(&shown.id).copied().filter(|value| value.is_finite());
        // A fall that may be chance is none, so the upper end of the range counts.
        let highest = line_of.band.as_ref().map_or(&line_of.values, |band| &band.high);
        let recovers_at = do_nothing.map_or(Some(0.0), |line| {
            let last_below = highest.iter().rposition(|&value| is_below(value, line));
            last_below.map_or(Some(0.0), |place| curve.fractions.get(place + 1).copied())
        });
        let (start, end) = (line_of.start, line_of.end);
        Some(Self { metric: shown.name.clone(), do_nothing, start, end, recovers_at })
    }
}

impl Forecast {
    /// Reads the JSON of a report and finds the curve of this upgrade in it: the one of its order, and of its
    /// adapter's method where several were compared. Where there is none, it takes the curve that the
    /// report's verdict speaks about, and a warning says so.
    ///
    /// # Errors
    ///
    /// Corrupt where the text is no report, or one of a newer rehang, or one without a curve; mismatch where
    /// it is about other spaces.
    pub fn read(text: &str, source: &str, setup: &UpgradeSetup<'_>) -> Result<Self> {
        let report = read_report(text, source)?;
        let of_other_spaces = |error: Error| error.context(format!("the forecast {source}"));
        expect_of_adapter(&report.spaces.old, setup.old, "old").map_err(of_other_spaces)?;
        expect_of_adapter(&report.spaces.new, setup.new, "new").map_err(of_other_spaces)?;
        let without = || Error::corrupt(source, "the report has no curve to forecast with");
        let metric = report.headline_metric().ok_or_else(without)?;
        let Some(adapter) = setup.adapter else {
            return Err(Error::missing("an adapter", "the forecast of an upgrade"));
        };
        let (order, method) = (setup.order.policy.name(), &adapter.training.method);
        // Two adapters of one method are told apart by their files, "ridge (a)" and "ridge (b)": then
        // it is unknown which.
        let is_own = |curve: &&CurveSeries| curve.order == order && curve.method == *method;
        let curve = report.curves.iter().find(is_own).or_else(|| report.headline_curve());
        let curve = curve.ok_or_else(without)?;
        let findings = findings(&report, source, (&adapter.training, order), curve);
        let is_reliable = report.warnings.iter().all(|warning| warning.severity != Severity::Problem);
        let line_of = curve.metrics.get(&metric.id).ok_or_else(without)?;
        let points = points(&curve.fractions, &line_of.values, source)?;
        let band = line_of.band.as_ref().filter(|_| report.gallery.is_some());
        let edges = band.map(|band| {
            [&band.low, &band.high]
                .map(|edge| curve.fractions.iter().copied().zip(edge.iter().copied()).collect::<Vec<_>>())
        });
        let ranges = edges.as_ref().map_or_else(Vec::new, |edges| {
            let shares = std::iter::once(0.0).chain(SHOWN);
            shares
                .map(|share| (share, interpolate(&edges[0], share), interpolate(&edges[1], share)))
                .collect()
        });
        let do_nothing = report.do_nothing.get(&metric.id).copied().filter(|value| value.is_finite());
        let shown = report.metrics.iter().filter(|other| other.primary && other.id != metric.id);
        let other_metrics =
            shown.filter_map(|other| OtherMetric::from_curve(&report, curve, other)).collect();
        let gallery = report.gallery.as_ref();
        Ok(Self {
            source: source.into(),
            metric: metric.name.clone(),
            curve: curve.name(),
            items: report.measured_on.first().map_or(0, |set| set.items),
            gallery: gallery.map(|gallery| gallery.speaks_of),
            ranges,
            enough: line_of.enough,
            do_nothing,
            do_nothing_range: gallery.and_then(|gallery| gallery.do_nothing.get(&metric.id)?.interval()),
            bridge: gallery.and_then(|gallery| gallery.bridge.get(&metric.id)).map(|quality| {
                let (low, high) = quality.interval().unwrap_or((quality.value, quality.value));
                (quality.value, low, high)
            }),
            start: interpolate(&points, 0.0),
            curve_at: SHOWN.iter().map(|&share| (share, interpolate(&points, share))).collect(),
            passes_do_nothing_at: do_nothing.and(line_of.passes_do_nothing_at),
            others: other_metrics,
            floors: report.floors,
            findings,
            is_reliable,
            points,
            edges,
        })
    }

    /// Tells an application with a floor how far a switch moves it, by the first floor of the report. `None`
    /// where no floor is carried over.
    pub fn moved_floors(&self) -> Option<Finding> {
        let floors = self.floors.as_ref()?;
        let (row, floor_now) = floors.rows.iter().find_map(|row| Some((row, row.adapted?)))?;
        let end =
            row.native.map_or_else(String::new, |at| format!(", and at {:.3} when all is native", at.floor));
        let message = format!(
            "Floors move with the model: as many answers as pass a {} of {:.3} today pass at {:.3} after the switch{end}.",
            floors.today, row.today, floor_now.floor
        );
        let finding = Finding::note(FindingCode::FloorsMove, message)
            .remedy("Where an application shows only what is near enough, move its floor with its queries; `thresholds` carries any floor over.");
        Some(finding.evidence(&[
            ("today", row.today),
            ("adapted", floor_now.floor),
            ("changed", floor_now.changed),
        ]))
    }

    /// Forecast quality at a share of native items: linear between the points of the report.
    pub fn at(&self, share: f64) -> f64 {
        interpolate(&self.points, share)
    }

    /// The range of [`Forecast::at`], `(low, high)`; `None` where the curve was measured among its own items.
    pub fn range_at(&self, share: f64) -> Option<(f64, f64)> {
        self.edges.as_ref().map(|[low, high]| (interpolate(low, share), interpolate(high, share)))
    }

    /// Finds the first share of native items from which on the curve `holds`, at every point of the report;
    /// `None` where it never does.
    pub fn stays_from(&self, holds: impl Fn(f64) -> bool) -> Option<f64> {
        let first_point = self.points.iter().rev().take_while(|(_, value)| holds(*value)).last();
        first_point.map(|(share, _)| *share)
    }

    /// Finds the share at which the forecast quality less its price is largest, where all items together have
    /// to bring `points`; the smallest one of equals. A dip on the way to more does not end it.
    fn worth(&self, points: f64) -> f64 {
        let mut best = (f64::NEG_INFINITY, 1.0);
        for (share, quality) in &self.points {
            let net_quality = quality - points * share;
            if net_quality > best.0 {
                best = (net_quality, *share);
            }
        }
        best.1
    }

    /// [`Forecast::passes_do_nothing_at`] in percent with one decimal, rounded up: a run until
    /// that share passes.
    pub fn passes_at_percent(&self) -> Option<f64> {
        self.passes_do_nothing_at.map(percent_rounded_up)
    }

    /// Finds the share of native items from which on a switch makes nothing worse: the curve stays at or
    /// above doing nothing, and no other metric is below it with its whole range. `None` where there is no
    /// such share, or doing nothing was not measured.
    pub fn worthwhile_from(&self) -> Option<f64> {
        let passes = self.passes_do_nothing_at?;
        self.others.iter().try_fold(passes, |from, other| Some(from.max(other.recovers_at?)))
    }

    /// Says in a sentence which metrics fall at the switch beside the one that the forecast speaks of;
    /// `None` where none does.
    pub fn falls(&self) -> Option<&str> {
        let finding = self.findings.iter().find(|finding| finding.code == FindingCode::AnotherMetricFalls);
        finding.map(|finding| finding.seen.as_str())
    }

    /// Gives the verdict of the curve on this upgrade.
    pub fn verdict(&self) -> Verdict {
        self.do_nothing.map_or(Verdict::NotMeasured, |_| Verdict::passing(self.passes_do_nothing_at))
    }

    /// Whether a gallery that is switched at this share of native items is forecast to serve worse than one
    /// that is left alone: at once, or on the way to the end. `false` where doing nothing was not measured.
    pub fn is_below_doing_nothing(&self, share: f64) -> bool {
        self.verdict().is_worse_from(share)
    }
}

/// Reads a report as JSON, of this version or an earlier one.
fn read_report(text: &str, source: &str) -> Result<Report> {
    let report: Report = serde_json::from_str(text).map_err(|error| {
        Error::corrupt(source, format!("it is no report of rehang as JSON ({error})"))
            .advise(Remedy::MakeReport)
    })?;
    if report.format_version > FORMAT_VERSION {
        return Err(Error::corrupt(
            source,
            format!("it has format {}, this rehang knows up to {FORMAT_VERSION}", report.format_version),
        ));
    }
    Ok(report)
}

/// Finds what a person should know of a report whose curve is the forecast of an upgrade, by the adapter of a
/// fit and in an order.
fn findings(
    report: &Report,
    source: &str,
    (training, order): (&Training, &str),
    curve: &CurveSeries,
) -> Vec<Finding> {
    let warnings = report.warnings.iter().filter(|warning| SAID_AGAIN.contains(&warning.code));
    let mut findings: Vec<Finding> = warnings.cloned().collect();
    let method = &training.method;
    if curve.order != order || curve.method != *method {
        let message = format!(
            "the forecast {source} has no curve of {method} · {order}, which this upgrade is; it shows {}",
            curve.name()
        );
        findings.push(Finding::warning(FindingCode::AnotherCurve, message));
    }
    // The report names the pairs of the adapters it compared. One fingerprint alone says little: labels
    // may be shared by several pairs of models, and so may be the old vectors.
    let is_there = |(role, fingerprint): (&String, &String)| {
        report.inputs.iter().any(|input| input.is_of_pairs(role) && input.fingerprint == *fingerprint)
    };
    if !training.inputs.iter().all(is_there) {
        let message =
            format!("the forecast {source} was made with an adapter that was fitted on other pairs");
        findings.push(Finding::warning(FindingCode::OtherPairs, message));
    }
    for warning in report.warnings.iter().filter(|warning| warning.severity == Severity::Problem) {
        let message = format!(
            "the forecast {source} is not to be relied on: {} {}",
            warning.seen,
            warning.may_mean.trim_end_matches('.')
        );
        findings.push(Finding::warning(FindingCode::UnreliableForecast, message));
    }
    findings
}

/// Pairs the shares of a curve with its values, but for those that are no numbers.
fn points(shares: &[f64], values: &[f64], source: &str) -> Result<Vec<(f64, f64)>> {
    let points: Vec<(f64, f64)> = shares
        .iter()
        .copied()
        .zip(values.iter().copied())
        .filter(|(share, value)| share.is_finite() && value.is_finite())
        .collect();
    if points.is_empty() || points.windows(2).any(|two| two[0].0 > two[1].0) {
        return Err(Error::corrupt(source, "the shares of its curve are missing or not ascending"));
    }
    Ok(points)
}

/// Fails where switching now (to mixed searches) is forecast to serve worse than doing nothing, by the metric
/// that the forecast speaks of, or by the whole range of another one that a report shows first. Fused
/// searches are not checked, nor is a gallery whose mixed searches go to the new space already.
///
/// # Errors
///
/// A conflict that says what is forecast and what can be done; not found where there is no upgrade.
pub fn expect_worthwhile(store: &dyn Ledger, forecast: &Forecast) -> Result<()> {
    let record = Recorded::expect(store)?.record;
    if find_space(store, &record.new.name)?.is_none() {
        // The new space is not even there: the switch itself says so.
        return Ok(());
    }
    if record.serving != Serving::Fused && store.serving()?.as_deref() == Some(record.new.name.as_str()) {
        return Ok(());
    }
    let counts = store.counts(&record.new.name)?;
    let share = native_share(&counts);
    let passes = forecast.passes_do_nothing_at.is_some_and(|from| reaches(&counts, from));
    let (false, true, Some(line)) = (passes, forecast.is_below_doing_nothing(share), forecast.do_nothing)
    else {
        return expect_nothing_falls(store, forecast, |from| reaches(&counts, from));
    };
    let quality_now = forecast.at(share);
    let (consequence, prediction) = if is_below(quality_now, line) {
        ("would serve", format!("is forecast at {quality_now:.1} and doing nothing has {line:.1}"))
    } else {
        (
            "would come to serve",
            format!("is forecast at {quality_now:.1}, and to fall below the {line:.1} of doing nothing"),
        )
    };
    Err(Error::conflict(
        format!("switching {} now {consequence} worse than doing nothing", store.name()),
        format!(
            "with {:.1} % native {} {prediction} ({} in {})",
            100.0 * share,
            forecast.metric,
            forecast.curve,
            forecast.source
        ),
    )
    .advise(Remedy::ReconsiderSwitch {
        backfill_percent: forecast.worthwhile_from().map(percent_rounded_up),
    }))
}

/// Fails where another metric than that of the forecast is forecast to fall beyond its range, at the share of
/// native items that `reaches` tells.
fn expect_nothing_falls(
    store: &dyn Ledger,
    forecast: &Forecast,
    reaches: impl Fn(f64) -> bool,
) -> Result<()> {
    let falls = forecast.others.iter().filter(|other| !other.recovers_at.is_some_and(&reaches));
    let falls: Vec<String> = falls
        .map(|other| {
            let line = other.do_nothing.unwrap_or(f64::NAN);
            format!("{} would fall from {line:.1} to {:.1} at the switch", other.metric, other.start)
        })
        .collect();
    if falls.is_empty() {
        return Ok(());
    }
    let today = forecast.do_nothing.map_or_else(String::new, |line| format!(" from {line:.1}"));
    let detail = format!(
        "{}, beyond its range, while {} goes{today} to {:.1} ({} in {})",
        falls.join(", "),
        forecast.metric,
        forecast.start,
        forecast.curve,
        forecast.source
    );
    let what = format!("switching {} now would make searches worse in one way", store.name());
    let backfill_percent = forecast.worthwhile_from().map(percent_rounded_up);
    Err(Error::conflict(what, detail).advise(Remedy::ReconsiderSwitch { backfill_percent }))
}

/// Interpolates linearly between ascending points; beyond them it is the first or last value.
fn interpolate(points: &[(f64, f64)], share: f64) -> f64 {
    let right = points.partition_point(|point| point.0 <= share);
    match (right.checked_sub(1).map(|left| points[left]), points.get(right)) {
        (Some((x0, y0)), Some(&(x1, y1))) => y0 + (y1 - y0) * (share - x0) / (x1 - x0),
        (Some((_, y)), None) => y,
        (None, first) => first.map_or(f64::NAN, |point| point.1),
    }
}

/// Gives the wish until when a run goes on, with the share that a forecast says in place of [`Until::Enough`]
/// and [`Until::Worth`]; `cost` is that of all items.
///
/// # Errors
///
/// Missing input where there is no forecast, or no price or rate; an invalid option where the forecast
/// says no share: it is too wide, the metric gains nothing, or the report is of held-out items among
/// themselves. Those of `cost`.
pub(crate) fn share_of(
    until: Until,
    forecast: Option<&Forecast>,
    cost: impl FnOnce() -> Result<CostEstimate>,
) -> Result<Until> {
    let expect = |wish: &str| {
        forecast.ok_or_else(|| {
            Error::missing("a forecast", format!("`until` {wish:?}")).advise(Remedy::MakeReport)
        })
    };
    match until {
        Until::All | Until::Fraction(_) => Ok(until),
        Until::Enough => {
            let forecast = expect(ENOUGH)?;
            let share = forecast.enough.filter(|_| forecast.is_reliable).ok_or_else(|| {
                let expected = format!(
                    "a share such as 60%: {} does not say from which share on {} stays there. Draw more pairs and report again, or name a \
                     share",
                    forecast.source, forecast.metric
                );
                Error::option("until", ENOUGH, expected)
            })?;
            Ok(Until::Fraction(share.high.clamp(0.0, 1.0)))
        }
        Until::Worth { points, unit } => {
            let wish = format!("worth {points}/{}", unit.sign());
            let forecast = expect(&wish)?;
            if !forecast.is_reliable {
                let expected = format!("a share such as 60%: {} is not to be relied on", forecast.source);
                return Err(Error::option("until", wish, expected));
            }
            let cost = cost()?;
            let (total_cost, lacking_input) = match unit {
                Unit::Money => (cost.money, "price_per_million_tokens"),
                Unit::Hours if cost.batch_api_items.is_some() => (None, "a rate, and `batch_api` has none"),
                Unit::Hours => (cost.seconds.map(|seconds| seconds / 3600.0), "the rate of an earlier run"),
            };
            let total_cost =
                total_cost.ok_or_else(|| Error::missing(lacking_input, format!("`until` {wish:?}")))?;
            Ok(Until::Fraction(forecast.worth(points * total_cost)))
        }
    }
}

#[cfg(test)]
mod tests {
    use rehang_core::report::{CreatedBy, CurveBand, InputRecord, MetricCurve, Spaces, display_points};
    use rehang_core::{Adapter, Distance, Space};

    use super::*;
    use crate::OrderSettings;
    use crate::serve::gallery::padding::padding;

    fn space(name: &str, dimension: usize) -> Space {
        Space::new(name, dimension, Distance::L2, false)
    }

    fn adapter() -> Adapter {
        let mut adapter = padding(space("old", 3), space("new", 4), vec![0.0; 4], 1.0);
        adapter.training.method = "padding".into();
        adapter.training.inputs.insert("old".into(), "f1".into());
        adapter
    }

    fn series(order: &str, exact: &[f64]) -> CurveSeries {
        let points = display_points(exact.len());
        let curve = MetricCurve::from_exact(exact, 0.0.into(), Some(30.0), &points);
        CurveSeries {
            method: "padding".into(),
            order: order.into(),
            fractions: points.iter().map(|&point| point as f64 / (exact.len() - 1) as f64).collect(),
            metrics: [("map".to_owned(), curve)].into(),
            handicap: 0.0,
        }
    }

    fn report() -> Report {
        let spaces = Spaces { old: space("old", 3), new: space("new", 4) };
        let mut report = Report::new("x", CreatedBy::default(), spaces);
        report.metrics = vec![ShownMetric::from(rehang_core::curve::MAP)];
        report.do_nothing = [("map".to_owned(), 30.0)].into();
        report.curves = vec![
            series("random", &[10.0, 10.0, 10.0, 10.0, 40.0]),
            series("coverage", &[20.0, 25.0, 35.0, 45.0, 55.0]),
        ];
        let role = InputRecord::role_of_pairs("A.safetensors", "old");
        report.inputs = vec![InputRecord { role, fingerprint: "f1".into(), ..InputRecord::default() }];
        report
    }

    fn read(report: &Report) -> Result<Forecast> {
        let adapter = adapter();
        let (old, new) = (space("old-model", 3), space("new-model", 4));
        let setup =
            UpgradeSetup { old: &old, new: &new, adapter: Some(&adapter), order: OrderSettings::default() };
        Forecast::read(&serde_json::to_string(report).unwrap(), "report.json", &setup)
    }

    #[test]
    fn the_curve_of_the_upgrade_is_found_and_read_between_its_points() {
        let forecast = read(&report()).unwrap();
        assert_eq!(forecast.curve, "padding · coverage");
        assert_eq!((forecast.do_nothing, forecast.start), (Some(30.0), 20.0));
        assert_eq!(forecast.curve_at, [(0.1, 22.0), (0.25, 25.0), (0.5, 35.0), (1.0, 55.0)]);
        assert_eq!(forecast.passes_do_nothing_at, Some(0.5));
        assert!(forecast.findings.is_empty(), "{:?}", forecast.findings);
        assert_eq!((forecast.at(0.375), forecast.at(7.0)), (30.0, 55.0));
        assert!(forecast.is_below_doing_nothing(0.499) && !forecast.is_below_doing_nothing(0.5));
        assert_eq!(forecast.passes_at_percent(), Some(50.0));
    }

    #[test]
    fn a_switch_says_how_far_an_application_s_floor_moves() {
        use rehang_core::report::{Floor, FloorAt};

        assert_eq!(read(&report()).unwrap().moved_floors(), None, "a report of an earlier version");
        let at = |floor: f64| Some(FloorAt { floor, low: floor, high: floor, changed: 0.25 });
        let row = |today, adapted, native| Floor { today, answers: 9.0, adapted, native };
        let rows = vec![row(0.9, None, None), row(0.3, at(0.4125), at(0.2))];
        let (today, then) = ("cosine similarity".to_owned(), "cosine similarity".to_owned());
        let mut with_floors = report();
        with_floors.floors = Some(Floors { today, then, queries: 99, natives: 99, rows });
        let finding = read(&with_floors).unwrap().moved_floors().unwrap();
        let expected = "Floors move with the model: as many answers as pass a cosine similarity of 0.300 today pass at 0.412 after the switch, and at 0.200 \
                        when all is native.";
        assert_eq!(finding.seen, expected);
    }

    #[test]
    fn that_other_items_ask_than_before_is_said_beside_the_numbers() {
        let mut moved = report();
        moved.warnings.push(Finding::note(FindingCode::MoreQueries, "200 items ask here."));
        assert_eq!(read(&moved).unwrap().findings, moved.warnings);
    }

    #[test]
    fn a_forecast_of_a_whole_gallery_has_ranges_and_a_measured_curve_has_none() {
        use rehang_core::report::{CurveBand, NumberWithSpread, Spread, WholeGallery};

        let mut whole_report = report();
        for series in &mut whole_report.curves {
            let curve = series.metrics.get_mut("map").unwrap();
            let edge = |by: f64| curve.values.iter().map(|value| value + by).collect();
            curve.band = Some(CurveBand { about: String::new(), low: edge(-2.0), high: edge(3.0) });
            curve.enough = Some(EnoughShare { fraction: 0.6, low: 0.5, high: 0.75 });
        }
        // A band around what was measured is no range of a forecast.
        let measured = read(&whole_report).unwrap();
        assert_eq!((measured.gallery, measured.ranges.len(), measured.range_at(0.5)), (None, 0, None));
        let spread = Some(Spread::Interval { low: 30.5, high: 33.5, level: 0.95 });
        let bridge = [("map".to_owned(), NumberWithSpread { value: 32.0, spread })].into();
        let spread = Some(Spread::Interval { low: 28.5, high: 31.0, level: 0.95 });
        let do_nothing = [("map".to_owned(), NumberWithSpread { value: 30.0, spread })].into();
        let gallery = WholeGallery { items: 9000, held_out: 300, speaks_of: 7500, do_nothing, bridge };
        whole_report.gallery = Some(gallery);
        let forecast = read(&whole_report).unwrap();
        assert_eq!((forecast.do_nothing_range, measured.do_nothing_range), (Some((28.5, 31.0)), None));
        assert_eq!(forecast.gallery, Some(7500));
        assert_eq!((forecast.bridge, measured.bridge), (Some((32.0, 30.5, 33.5)), None));
        assert_eq!(forecast.ranges[0], (0.0, 18.0, 23.0));
        assert_eq!(forecast.ranges[2], (0.25, 23.0, 28.0));
        assert_eq!((forecast.at(0.375), forecast.range_at(0.375)), (30.0, Some((28.0, 33.0))));
        assert_eq!(forecast.enough.map(|share| share.high), Some(0.75));
    }

    fn of_gallery(money: Option<f64>, seconds: Option<f64>) -> CostEstimate {
        let unknown = (None, None, None, None, None);
        let (basis, tokens, budget_items, probed_items, failed) = unknown;
        let batch_api_items = None;
        CostEstimate {
            sent: None,
            seconds,
            basis,
            tokens,
            money,
            budget_items,
            probed_items,
            failed,
            batch_api_items,
        }
    }

    #[test]
    fn a_run_ends_where_a_further_unit_buys_less_than_it_has_to() {
        let mut report = report();
        report.curves[1] = series("coverage", &[20.0, 40.0, 50.0, 55.0, 56.0]);
        let forecast = read(&report).unwrap();
        let until = |points: f64, unit, cost: CostEstimate| {
            share_of(Until::Worth { points, unit }, Some(&forecast), || Ok(cost))
                .map_err(|error| error.to_string())
        };
        // All items cost 100: a quarter costs 25.
        let of_money = |points| until(points, Unit::Money, of_gallery(Some(100.0), None));
        for (points, share) in [(0.01, 1.0), (0.1, 0.75), (0.3, 0.5), (0.5, 0.25), (1.0, 0.0)] {
            assert_eq!(of_money(points), Ok(Until::Fraction(share)), "{points}");
        }
        let by_hour = until(3.0, Unit::Hours, of_gallery(None, Some(36_000.0)));
        assert_eq!(by_hour, Ok(Until::Fraction(0.5)), "ten hours, 30 points");
        let lacks = until(1.0, Unit::Money, of_gallery(None, Some(1.0))).unwrap_err();
        assert!(lacks.contains("price_per_million_tokens") && lacks.contains("worth 1/$"), "{lacks}");
        assert!(until(1.0, Unit::Hours, of_gallery(Some(1.0), None)).unwrap_err().contains("rate"));
        // A dip on the way to more does not end it.
        report.curves[1] = series("coverage", &[20.0, 15.0, 50.0, 50.0, 50.0]);
        assert_eq!(read(&report).unwrap().worth(10.0), 0.5);
    }

    #[test]
    fn a_metric_that_falls_beside_the_verdict_is_said_in_the_plan() {
        let mut report = report();
        let falls = Finding::warning(FindingCode::AnotherMetricFalls, "At the switch Top-1 is 60.0.");
        report.warnings.push(falls);
        let forecast = read(&report).unwrap();
        assert_eq!(forecast.findings, report.warnings);
        assert!(forecast.is_reliable);
    }

    #[test]
    fn another_metric_that_falls_beyond_its_range_puts_the_switch_off() {
        let mut report = report();
        report.curves.remove(0);
        report.metrics.push(ShownMetric::from(rehang_core::curve::TOP1));
        report.do_nothing.insert("top1".into(), 50.0);
        // mAP is above doing nothing from 30 % on.
        let exact = [40.0, 45.0, 48.0, 52.0, 60.0];
        let top1 = MetricCurve::from_exact(&exact, 0.0.into(), Some(50.0), &display_points(5));
        report.curves[0].metrics.insert("top1".into(), top1);
        let forecast = read(&report).unwrap();
        assert_eq!(forecast.passes_do_nothing_at, Some(0.5));
        let other = &forecast.others[0];
        assert_eq!(
            (other.metric.as_str(), other.do_nothing, other.start, other.end),
            ("Top-1", Some(50.0), 40.0, 60.0)
        );
        assert_eq!((other.recovers_at, forecast.worthwhile_from()), (Some(0.75), Some(0.75)));
        let store = rehang_store_tests::MemoryStore::new();
        let refused = |share: f64| expect_nothing_falls(&store, &forecast, |from| share >= from);
        assert!(refused(0.75).is_ok());
        let error = refused(0.5).unwrap_err();
        assert!(error.to_string().contains("Top-1 would fall from 50.0 to 40.0"), "{error}");
        assert_eq!(error.remedy(), Some(&Remedy::ReconsiderSwitch { backfill_percent: Some(75.0) }));
        // A fall that may be chance is none: the range reaches doing nothing from one quarter on.
        let line = report.curves[0].metrics.get_mut("top1").unwrap();
        let edge = |by: f64| exact.iter().map(|value| value + by).collect();
        line.band = Some(CurveBand { about: String::new(), low: edge(-5.0), high: edge(5.0) });
        assert_eq!(read(&report).unwrap().others[0].recovers_at, Some(0.25));
        // A metric that never comes back is a person's to decide.
        report.do_nothing.insert("top1".into(), 90.0);
        let never = read(&report).unwrap();
        assert_eq!((never.others[0].recovers_at, never.worthwhile_from()), (None, None));
        // Nothing was measured, so nothing falls.
        report.do_nothing.remove("top1");
        assert_eq!(read(&report).unwrap().others[0].recovers_at, Some(0.0));
    }

    #[test]
    fn enough_is_the_cautious_end_of_the_share_that_a_forecast_says() {
        let mut report = report();
        let share_said = |report: &Report| {
            share_of(Until::Enough, Some(&read(report).unwrap()), || Ok(of_gallery(None, None)))
        };
        let error = share_said(&report).unwrap_err().to_string();
        assert!(
            error.contains("98% of new") && error.contains("report.json") && error.contains("60%"),
            "{error}"
        );
        let curve = report.curves[1].metrics.get_mut("map").unwrap();
        curve.enough = Some(EnoughShare { fraction: 0.6, low: 0.5, high: 0.75 });
        assert_eq!(share_said(&report).unwrap(), Until::Fraction(0.75));
        report.warnings.push(Finding::problem(FindingCode::NoBetterThanTheMean, "x"));
        assert!(share_said(&report).is_err(), "a forecast that is worthless says nothing");
        let error = share_of(Until::Enough, None, || Ok(of_gallery(None, None))).unwrap_err();
        assert_eq!(error.remedy(), Some(&Remedy::MakeReport));
        assert_eq!(
            share_of(Until::Fraction(0.2), None, || Ok(of_gallery(None, None))).unwrap(),
            Until::Fraction(0.2)
        );
    }

    #[test]
    fn a_report_of_something_else_is_refused_or_warned_about() {
        let mut other = report();
        other.curves.truncate(1);
        // The very file, but as the gallery that the report was made on.
        other.inputs[0].role = "old".into();
        let forecast = read(&other).unwrap();
        assert_eq!(forecast.curve, "padding · random");
        assert_eq!(forecast.findings.len(), 2, "{:?}", forecast.findings);
        let mut level = report();
        level.curves = vec![series("coverage", &[30.0 - 1e-12, 40.0, 50.0])];
        let level = read(&level).unwrap();
        assert_eq!(level.passes_do_nothing_at, Some(0.0), "equal but for rounding");
        assert!(!level.is_below_doing_nothing(0.0));
        // A dip that lies ahead counts, also one between two points that the report keeps.
        let mut dips = report();
        let mut exact = vec![50.0; 1001];
        exact[2] = 20.0;
        dips.curves = vec![series("coverage", &exact)];
        let dips = read(&dips).unwrap();
        assert_eq!((dips.at(0.0), dips.passes_at_percent()), (50.0, Some(0.3)));
        assert!(dips.is_below_doing_nothing(0.0) && !dips.is_below_doing_nothing(0.003));
        let mut never = report();
        never.curves = vec![series("coverage", &[50.0, 40.0, 20.0])];
        assert!(read(&never).unwrap().is_below_doing_nothing(0.0), "it ends below");
        let mut unmeasured = report();
        unmeasured.do_nothing.clear();
        assert!(!read(&unmeasured).unwrap().is_below_doing_nothing(0.0));
        let mut narrow = report();
        narrow.spaces.old.dimension = 7;
        assert!(read(&narrow).unwrap_err().is_mismatch());
        let mut newer = report();
        newer.format_version = FORMAT_VERSION + 1;
        let mut empty = report();
        empty.curves.clear();
        let mut ragged = report();
        ragged.curves[1].fractions = vec![f64::NAN; 5];
        for broken in [newer, empty, ragged] {
            assert!(read(&broken).unwrap_err().is_corrupt());
        }
    }
}
