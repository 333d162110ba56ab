//! Tests all three exporters of one report against committed files, and what must hold for every page.

use std::collections::BTreeMap;

use crate::common::{assert_as_committed, assert_self_contained, assert_well_formed, noise, rounded};
use rehang_core::curve::{MAP, Metric, TOP1, TOP5};
use rehang_core::finding::{Finding, FindingCode};
use rehang_core::report::{
    AdapterCalibration, CreatedBy, CurveBand, CurveSeries, EnoughShare, FittedOn, FlipCurves, Floor, FloorAt,
    Floors, GroupCurves, GroupStudy, InputRecord, KendallTau, MeasuredSet, MetricCurve, NumberWithSpread,
    Report, ShownMetric, Spaces, Spread, WholeGallery, display_points,
};
use rehang_core::statistics::{Calibration, CalibrationBin};
use rehang_core::{Distance, Space};
use rehang_report::{Look, html, json, markdown, metric_chart, svg_curve};

/// Makes a curve over 2,000 items from `start` to `end`: `bend` < 1 rises early, and `dip` is taken off
/// around 15 %.
fn exact_curve(start: f64, end: f64, bend: i32, dip: f64, seed: u64) -> Vec<f64> {
    let mut wander = 0.0;
    (0..=2000)
        .map(|step| {
            let alpha = f64::from(step) / 2000.0;
            wander = 0.985 * wander + 0.05 * noise(seed, step as usize);
            let rise = 1.0 - (1.0 - alpha).powi(bend);
            let hollow = dip * 27.0 / 4.0
                * alpha
                * (1.0 - alpha)
                * (1.0 - alpha)
                * if alpha < 0.3 { 1.0 } else { 0.3 / alpha };
            let inside = 4.0 * alpha * (1.0 - alpha);
            rounded(start + (end - start) * rise - hollow + wander * inside)
        })
        .collect()
}

/// Metric, start, end, bend, dip and the do-nothing line of a curve of the fixture.
type Shape<'a> = (&'a str, f64, f64, i32, f64, Option<f64>);

fn series(method: &str, order: &str, curves: &[Shape<'_>], seed: u64) -> CurveSeries {
    let display = display_points(2001);
    let fractions: Vec<f64> = display.iter().map(|&index| index as f64 / 2000.0).collect();
    let mut metrics = BTreeMap::new();
    for (number, &(id, start, end, bend, dip, nothing)) in curves.iter().enumerate() {
        let exact = exact_curve(start, end, bend, dip, seed * 10 + number as u64);
        let area = NumberWithSpread {
            value: rounded(exact.iter().sum::<f64>() / 2001.0),
            spread: Some(Spread::Deviation { deviation: rounded(0.2 + 0.1 * noise(seed, number)), runs: 3 }),
        };
        let mut curve = MetricCurve::from_exact(&exact, area, nothing, &display);
        if order != "random" || method == "fct" {
            let width = |index: usize| 0.5 + 0.9 * (1.0 - fractions[index]);
            curve.band = Some(CurveBand {
                about: "± 1 sd over 3 seeds".into(),
                low: curve
                    .values
                    .iter()
                    .enumerate()
                    .map(|(index, value)| rounded(value - width(index)))
                    .collect(),
                high: curve
                    .values
                    .iter()
                    .enumerate()
                    .map(|(index, value)| rounded(value + width(index)))
                    .collect(),
            });
        }
        if id == "top1" {
            let along = |scale: f64, bend: i32| -> Vec<f64> {
                fractions.iter().map(|alpha| rounded(scale * (1.0 - (1.0 - alpha).powi(bend)))).collect()
            };
            let lost = 2.0 + seed as f64 * 0.6;
            curve.flips = Some(FlipCurves {
                positive: along(end - start + lost, bend + 1),
                negative: along(lost, 2),
                negative_flip_rate: along(lost * 1.7, 2),
            });
        }
        metrics.insert(id.to_string(), curve);
    }
    let handicap = if method == "fastfill" { 1.25 } else { 0.0 };
    CurveSeries { method: method.into(), order: order.into(), fractions, metrics, handicap }
}

fn scores(values: &[(&str, f64)]) -> BTreeMap<String, f64> {
    values.iter().map(|&(id, value)| (id.to_string(), value)).collect()
}

/// Makes a report with everything in it: five curves, a dip, bands, flips, a group study.
fn fixture() -> Report {
    let spaces = Spaces {
        old: Space::new("resnet18-2019", 128, Distance::L2, false),
        new: Space::new("resnet50-2026", 128, Distance::L2, false),
    };
    let created_by = CreatedBy {
        version: "0.1.0".into(),
        command: "rehang report --old old.npy --new new.npy --labels labels.npy".into(),
        seeds: vec![0, 1, 2],
    };
    let mut report = Report::new("Grocery images, seen classes", created_by, spaces);
    report.metrics =
        [MAP, TOP1, TOP5, Metric::ndcg_at(10), Metric::agreement_at(10)].map(ShownMetric::from).to_vec();
    // A labelled gallery has these two under "further metrics".
    report.metrics[3..].iter_mut().for_each(|metric| metric.primary = false);
    report.do_nothing = scores(&[("map", 34.2), ("top1", 69.5), ("top5", 86.3), ("ndcg@10", 51.4)]);
    report.new_model =
        scores(&[("map", 53.4), ("top1", 87.0), ("top5", 95.1), ("ndcg@10", 70.2), ("agreement@10", 100.0)]);
    let curves = |starts: [f64; 5], bend: i32, dip: f64| {
        [
            ("map", starts[0], 53.4, bend, dip, Some(34.2)),
            ("top1", starts[1], 87.0, bend + 1, dip, Some(69.5)),
            ("top5", starts[2], 95.1, bend + 1, dip * 0.6, Some(86.3)),
            ("ndcg@10", starts[3], 70.2, bend, dip, Some(51.4)),
            ("agreement@10", starts[4], 100.0, bend, dip, None),
        ]
    };
    let learned = [31.6, 66.9, 84.8, 48.9, 38.0];
    let closed = [28.9, 43.0, 71.5, 40.2, 29.5];
    report.curves = vec![
        series("procrustes", "random", &curves(closed, 1, 3.0), 1),
        series("fastfill", "random", &curves(learned, 1, 1.5), 2),
        series("fastfill", "sigma", &curves(learned, 2, -1.0), 3),
        series("fastfill", "oracle", &curves(learned, 3, -1.5), 4),
        series("fct", "random", &curves([30.1, 55.2, 79.0, 44.0, 33.3], 1, 6.5), 5),
    ];
    report.headline = 2;
    report.inputs = [("old", Some(128)), ("new", Some(128)), ("labels", None)]
        .into_iter()
        .map(|(role, dimension)| InputRecord {
            role: role.into(),
            path: format!("shared/data/grocery/eval_{role}.npy"),
            rows: 2016,
            dimension,
            fingerprint: format!(
                "xxh3:{:016x}{:016x}",
                role.len() * 0x1234_5678_9abc,
                role.len() * 0xfedc_ba98
            ),
        })
        .collect();
    report.measured_on = vec![MeasuredSet {
        name: "evaluation".into(),
        pairs: 2358,
        fitted: ["fastfill", "procrustes", "fct"]
            .map(|method| FittedOn { method: method.into(), pairs: 2358 })
            .into(),
        items: 2016,
        queries: 1998,
        leave_one_out: true,
        classes: Some(81),
        left_out_queries: 18,
        overlapping_items: Some(0),
        overlap_is_estimated: false,
    }];
    let calibration = |method: &str, ratio: f64, kendall_tau: KendallTau| AdapterCalibration {
        method: method.into(),
        table: Calibration {
            bins: (0..10)
                .map(|bin| CalibrationBin {
                    predicted: rounded(ratio * 0.045 * 1.55f64.powi(bin)),
                    actual: rounded(0.055 * 1.42f64.powi(bin) * (1.0 + 0.12 * noise(9, bin as usize))),
                    items: 236 - usize::from(bin > 7),
                })
                .collect(),
            ratio,
            items: 2358,
            mean_squared_error: 0.25,
        },
        kendall_tau,
    };
    report.calibrations = vec![
        calibration(
            "fastfill",
            0.87,
            KendallTau { l2: Some(0.316), discriminative: Some(0.208), sum: Some(0.291) },
        ),
        calibration("procrustes", 1.31, KendallTau { l2: Some(0.224), ..KendallTau::default() }),
    ];
    report.groups = Some(group_study());
    let dips = "The curve of fct · random falls 2.3 points below its own start at 10 %.";
    report.warnings = vec![
        Finding::warning(FindingCode::CurveDips, dips)
            .may_mean("Adapted and native vectors are not at the same scale, so the first native items are misplaced.")
            .remedy("Put the adapter's output into the new space's geometry (the default of this version)."),
        Finding::note(FindingCode::FewQueries, "There are 1,998 queries.")
            .may_mean("Differences below about 1 point are within the noise.")
            .remedy("Measure on more queries before deciding between close methods."),
    ];
    report
}

fn group_study() -> GroupStudy {
    let fractions: Vec<f64> = (0..=100).map(|step| f64::from(step) / 100.0).collect();
    let curves = [("sigma", 3, 0.72), ("random", 1, 0.5)];
    let curve = |(order, bend, first): (&str, i32, f64)| {
        let along = |start: f64, end: f64, bend: i32| -> Vec<f64> {
            fractions
                .iter()
                .map(|alpha| rounded(start + (end - start) * (1.0 - (1.0 - alpha).powi(bend))))
                .collect()
        };
        let values = vec![along(58.0, 84.9, bend), along(66.1, 87.0, 1), along(71.3, 89.2, 1)];
        let gap = (0..fractions.len())
            .map(|at| {
                let at = values.iter().map(|group| group[at]);
                rounded(at.clone().fold(0.0, f64::max) - at.fold(100.0, f64::min))
            })
            .collect();
        let share =
            |start: f64, end: f64| -> Vec<f64> {
                fractions
                    .iter()
                    .map(|&alpha| {
                        if alpha == 0.0 { f64::NAN } else { rounded(100.0 * (start + (end - start) * alpha)) }
                    })
                    .collect()
            };
        let rest = 1.0 - first;
        GroupCurves {
            method: "fastfill".into(),
            order: order.into(),
            fractions: fractions.clone(),
            gap,
            share: vec![share(first, 0.5), share(rest * 0.6, 0.3), share(rest * 0.4, 0.2)],
            values,
        }
    };
    GroupStudy {
        names: vec!["refrigerated".into(), "fruit".into(), "packaged".into()],
        metric: "top1".into(),
        gallery_share: vec![50.0, 30.0, 20.0],
        do_nothing: vec![61.2, 70.4, 77.7],
        new_model: vec![84.9, 87.0, 89.2],
        curves: curves.into_iter().map(curve).collect(),
        headline: 0,
    }
}

/// Makes a report without anything that is optional.
fn empty() -> Report {
    let space = Space::new("model", 2, Distance::Dot, false);
    Report::new("", CreatedBy::default(), Spaces { old: space.clone(), new: space })
}

/// Replaces every free text of a value by `attack`.
fn replaced(value: serde_json::Value, key: &str, attack: &str) -> serde_json::Value {
    use serde_json::Value;
    // Fields with a closed set of values, or whose texts are keys of other fields.
    const CLOSED: [&str; 6] = ["distance", "severity", "kind", "id", "code", "metric"];
    match value {
        Value::String(_) if !CLOSED.contains(&key) => attack.into(),
        Value::Array(items) => items.into_iter().map(|item| replaced(item, key, attack)).collect(),
        Value::Object(fields) => {
            let field = |(name, item): (String, Value)| {
                let item = replaced(item, &name, attack);
                (name, item)
            };
            fields.into_iter().map(field).collect()
        }
        other => other,
    }
}

/// Makes the fixture with every text replaced by markup, and many numbers by ones that cannot be drawn.
fn hostile() -> Report {
    let attack = "<script>alert(\"1\")</script>|`*[x](y)\n</svg>'&amp;\u{0}\u{202e}";
    let value: serde_json::Value = serde_json::from_str(&json(&fixture())).unwrap();
    let mut report: Report = serde_json::from_value(replaced(value, "", attack)).unwrap();
    let bad = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e308, -1e308];
    for (number, series) in report.curves.iter_mut().enumerate() {
        for curve in series.metrics.values_mut() {
            for (index, value) in curve.values.iter_mut().enumerate() {
                if number == 0 || index % 7 == 0 {
                    *value = bad[index % bad.len()];
                }
            }
            if let Some(band) = &mut curve.band {
                band.low[3] = f64::NAN;
                band.high[4] = f64::INFINITY;
                band.high.truncate(50);
            }
            curve.start = bad[number];
            curve.minimum.value = bad[number];
            curve.minimum.fraction = bad[number];
            curve.area.value = bad[number];
            curve.passes_do_nothing_at = Some(bad[number]);
        }
        series.fractions[10] = f64::NAN;
    }
    report.do_nothing.insert("top1".into(), f64::NAN);
    report.new_model.insert("top1".into(), f64::INFINITY);
    if let Some(calibration) = report.calibrations.first_mut() {
        calibration.table.ratio = f64::NAN;
        calibration.table.bins[0].predicted = 0.0;
        calibration.table.bins[1].actual = -1.0;
        calibration.table.bins[2].predicted = f64::INFINITY;
        calibration.kendall_tau.l2 = Some(f64::NAN);
    }
    if let Some(groups) = &mut report.groups {
        groups.curves[0].values.truncate(1);
        groups.curves[0].gap = vec![f64::NAN; 3];
        groups.curves[1].share[0][5] = f64::INFINITY;
        groups.gallery_share.truncate(1);
    }
    report.headline = 77;
    report
}

#[test]
fn the_three_exporters_give_what_is_committed() {
    let report = fixture();
    assert_as_committed("report.html", &html(&report));
    assert_as_committed("report.md", &markdown(&report));
    assert_as_committed("report.json", &json(&report));
    assert_as_committed("curve.svg", &svg_curve(&metric_chart(&report, "map").unwrap()));
}

#[test]
fn a_report_without_measurements_is_still_a_report() {
    let report = empty();
    assert_as_committed("empty.md", &markdown(&report));
    let page = html(&report);
    assert_well_formed(&page);
    assert!(page.contains("No curve was measured") && !page.contains("<figure"), "{page}");
}

#[test]
fn every_page_is_well_formed_and_needs_nothing_else() {
    for report in [fixture(), empty()] {
        let page = html(&report);
        assert_well_formed(&page);
        assert_self_contained(&page);
    }
    let picture = svg_curve(&metric_chart(&fixture(), "top1").unwrap());
    assert_well_formed(&picture);
    assert_self_contained(&picture);
}

#[test]
fn text_from_data_stays_text_and_numbers_that_cannot_be_drawn_are_not() {
    let report = hostile();
    let page = html(&report);
    assert!(page.contains("&lt;script&gt;"));
    assert_well_formed(&page);
    assert_self_contained(&page);
    assert!(!page.contains('\0') && !page.contains('\u{202e}'));

    let text = markdown(&report);
    assert!(!text.contains('\0'), "{text}");
    // Fingerprints, paths and commands are code, where markup is text.
    let prose: String = text.lines().filter(|line| !line.contains('`')).collect();
    assert!(!prose.contains("<script") && !prose.replace("\\]", "").contains("]("), "{prose}");
    let picture = svg_curve(&metric_chart(&report, "map").unwrap());
    assert_well_formed(&picture);
    assert_self_contained(&picture);
}

#[test]
fn json_gives_the_same_report_back() {
    let report = fixture();
    let back: Report = serde_json::from_str(&json(&report)).unwrap();
    assert_eq!(json(&back), json(&report));
    assert_eq!(html(&back), html(&report));
    let hostile = hostile();
    let back: Report = serde_json::from_str(&json(&hostile)).unwrap();
    assert_eq!(json(&back), json(&hostile));
}

#[test]
fn many_groups_make_long_tables_and_no_wide_ones() {
    let mut report = fixture();
    let groups = report.groups.as_mut().unwrap();
    let count = 24;
    groups.names = (0..count).map(|group| format!("group {group}")).collect();
    for shares in [&mut groups.gallery_share, &mut groups.do_nothing, &mut groups.new_model] {
        *shares = vec![50.0; count];
    }
    for curve in &mut groups.curves {
        curve.values = vec![curve.values[0].clone(); count];
        curve.share = vec![curve.share[0].clone(); count];
    }
    let text = markdown(&report);
    assert!(text.contains("| fastfill · sigma | group 23 |") && text.contains("| group 23 |"), "{text}");
    // On paper nothing scrolls: a name and eleven short numbers are what a page holds.
    for line in text.lines().filter(|line| line.starts_with('|')) {
        assert!(line.matches('|').count() <= 13, "{line}");
    }
}

#[test]
fn the_verdict_follows_the_curve() {
    let verdict_of = |nothing: Option<f64>, start: f64, passes: Option<f64>| {
        let mut report = fixture();
        report.do_nothing.remove("map");
        if let Some(nothing) = nothing {
            report.do_nothing.insert("map".into(), nothing);
        }
        let curve = report.curves[2].metrics.get_mut("map").unwrap();
        curve.start = start;
        curve.passes_do_nothing_at = passes;
        let text = markdown(&report);
        text.lines().find(|line| line.starts_with("**")).unwrap().replace('\u{a0}', " ")
    };
    let cases = [
        (
            Some(30.0),
            31.0,
            Some(0.0),
            "**Switch now.** Before anything is re-embedded, mAP is 31.0 % against 30.0 %",
        ),
        (
            Some(40.0),
            31.0,
            Some(0.25),
            "**Re-embed first, then switch.** At once, mAP would fall from 40.0 % to 31.0 %",
        ),
        (
            Some(40.0),
            41.0,
            Some(0.25),
            "**Re-embed first, then switch.** mAP starts at 41.0 % against 40.0 %",
        ),
        (
            Some(60.0),
            31.0,
            None,
            "**Do not switch.** Even with everything re-embedded, mAP is 53.4 % against 60.0 %",
        ),
        (None, 31.0, None, "**Compare with today first.** mAP is 31.0 % at the switch and 53.4 %"),
    ];
    for (nothing, start, passes, expected) in cases {
        let verdict = verdict_of(nothing, start, passes);
        assert!(verdict.starts_with(expected), "{verdict}");
    }
}

#[test]
fn a_crossing_is_never_shown_before_it_is_passed() {
    let mut report = fixture();
    report.curves[2].metrics.get_mut("map").unwrap().passes_do_nothing_at = Some(0.0003);
    let text = markdown(&report).replace('\u{a0}', " ");
    assert!(text.contains("than doing nothing from 0.1 % of the gallery on"), "{text}");
    assert!(text.contains("| Beats doing nothing from | **0.1 % by mAP** |"), "{text}");
    let note = metric_chart(&report, "map").unwrap().note.unwrap();
    assert_eq!(note.text.replace('\u{a0}', " "), "better than doing nothing from 0.1 %");
    assert!((note.x - 0.03).abs() < 1e-9, "it stands where the curve passes");
}

#[test]
fn what_was_measured_on_what_is_said_without_a_judgement() {
    let sentence = |change: &dyn Fn(&mut Report)| {
        let mut report = fixture();
        change(&mut report);
        let text = markdown(&report).replace('\u{a0}', " ");
        let after = text.split("## What was measured on what").nth(1).unwrap().trim_start();
        after.lines().next().unwrap().to_owned()
    };
    let whole = sentence(&|_| {});
    assert!(
        whole.starts_with("Evaluation: fitted fastfill on 2,358 pairs, procrustes on 2,358 pairs, fct on")
    );
    let plain = sentence(&|report| {
        let set = &mut report.measured_on[0];
        (set.left_out_queries, set.overlapping_items) = (0, Some(3));
        set.fitted.truncate(1);
    });
    assert!(plain.starts_with("Evaluation: fitted on 2,358 pairs, measured on 2,016 items of 81 classes"));
    assert!(
        plain.ends_with(
            "Every query has a relevant item. 3 items have an old vector that is among the pairs."
        )
    );
    let estimated = sentence(&|report| {
        let set = &mut report.measured_on[0];
        (set.overlapping_items, set.overlap_is_estimated) = (Some(1), true);
    });
    assert!(estimated.ends_with("About 1 item has an old vector that is among the pairs."), "{estimated}");
    // Agreement with the native gallery asks for no right answers.
    let unlabelled = sentence(&|report| {
        report.metrics.retain(|metric| metric.id == "agreement@10");
        report.measured_on[0].left_out_queries = 0;
    });
    assert!(!unlabelled.contains("relevant"), "{unlabelled}");
}

#[test]
fn a_severe_warning_stands_before_the_numbers() {
    let mut report = fixture();
    let overlap = Finding::problem(FindingCode::Overlap, "812 of 2,016 items are also among the pairs.")
        .may_mean("The adapter has seen them, so the curve is too good.")
        .remedy("Measure on items that were not among the pairs.");
    report.warnings.push(overlap);
    for text in [html(&report), markdown(&report)] {
        assert!(text.find("812 of 2,016").unwrap() < text.find("At the switch").unwrap());
    }
}

#[test]
fn the_headline_curve_keeps_its_look_in_every_chart() {
    let report = fixture();
    for metric in &report.metrics {
        let chart = metric_chart(&report, &metric.id).unwrap();
        assert_eq!((chart.lines[0].name.as_str(), chart.lines[0].look), ("fastfill · sigma", Look::Main));
    }
    assert!(metric_chart(&report, "no such metric").is_none());
}

#[test]
fn what_falls_at_the_switch_stands_in_the_first_sentence() {
    let mut report = fixture();
    let seen = "At the switch Top-1 is 71.0, below doing nothing (91.0).";
    report.warnings.push(Finding::warning(FindingCode::AnotherMetricFalls, seen));
    let text = markdown(&report);
    let verdict = text.lines().find(|line| line.contains(seen)).unwrap_or_else(|| panic!("{text}"));
    let (before, after) = verdict.split_once(seen).unwrap();
    assert!(!before.contains("mAP") && after.contains("mAP"), "{verdict}");
}

#[test]
fn a_forecast_of_a_whole_gallery_has_a_range_behind_every_number() {
    let mut report = fixture();
    let today = NumberWithSpread {
        value: 41.0,
        spread: Some(Spread::Interval { low: 40.5, high: 41.5, level: 0.95 }),
    };
    let bridge = NumberWithSpread {
        value: 43.0,
        spread: Some(Spread::Interval { low: 42.1, high: 43.9, level: 0.95 }),
    };
    report.gallery = Some(WholeGallery {
        items: 1_000_000,
        held_out: 500,
        speaks_of: 12_500,
        do_nothing: [("map".to_owned(), today)].into(),
        bridge: [("map".to_owned(), bridge)].into(),
    });
    let at = |floor: f64| Some(FloorAt { floor, low: floor - 0.01, high: floor + 0.01, changed: 0.25 });
    let floor = |today, adapted, native| Floor { today, answers: 12.5, adapted, native };
    report.floors = Some(Floors {
        today: "cosine similarity".into(),
        then: "inner product".into(),
        queries: 500,
        natives: 500,
        rows: vec![floor(0.3, at(0.412), at(0.287)), floor(0.9, at(0.951), None)],
    });
    let headline = report.headline;
    let series = &mut report.curves[headline];
    series.metrics.retain(|id, _| ["map", "top1"].contains(&id.as_str()));
    for curve in series.metrics.values_mut() {
        let edge = |by: f64| curve.values.iter().map(|value| value + by).collect();
        curve.band = Some(CurveBand { about: "95 % interval".into(), low: edge(-1.0), high: edge(2.0) });
    }
    let map = series.metrics.get_mut("map").unwrap();
    map.enough = Some(EnoughShare { fraction: 0.31, low: 0.25, high: 0.38 });
    let start = map.start;
    let text = markdown(&report);
    let section = text.split("## The whole gallery").nth(1).unwrap().split("## ").next().unwrap();
    for said in ["500 of the gallery", "1,000,000", "12,500", "40.5–41.5", "42.1–43.9", "25–38"] {
        assert!(section.contains(said), "{said} in {section}");
    }
    let range = format!("{:.1}–{:.1}", start - 1.0, start + 2.0);
    assert!(section.contains(&range), "{range} in {section}");
    let floors = text.split("## Floors of searches").nth(1).unwrap().split("## ").next().unwrap();
    for said in
        ["500\u{a0}queries", "inner product", "| 0.300", "12.5", "0.412", "0.402–0.422", "0.287", "25"]
    {
        assert!(floors.contains(said), "{said} in {floors}");
    }
    let last = floors.lines().find(|line| line.starts_with("| 0.900")).unwrap();
    assert!(last.contains("0.951") && last.trim_end().ends_with("– | – |"), "{last}");
    // Doing nothing was asked by a sample, so the first sentence has its range too.
    assert!(text.contains("% (40.5–41.5)"), "{text}");
    // Nothing is said of the share of a metric that none is known of.
    assert!(
        section.lines().any(|line| line.starts_with("| Top-1") && line.trim_end().ends_with("– |")),
        "{section}"
    );
    let page = html(&report);
    assert_well_formed(&page);
    assert_self_contained(&page);
    assert!(page.contains("98 % of the end from"));
    let again: Report = serde_json::from_str(&json(&report)).unwrap();
    let enough = |report: &Report| report.curves[headline].metrics["map"].enough;
    assert_eq!((&again.gallery, enough(&again)), (&report.gallery, enough(&report)));
}
