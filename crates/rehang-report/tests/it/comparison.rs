//! Tests a small comparison in all three forms against committed files, and what must hold for every page of
//! one.

use crate::common::{assert_as_committed, assert_self_contained, assert_well_formed, noise, rounded};
use rehang_core::comparison::{Comparison, MethodOutcome, OrderOutcome, ProtocolOutcome, Quality};
use rehang_report::{comparison_html, comparison_json, comparison_markdown};

/// Name, M(new, old), M(new, new) and how early its backfill rises.
const METHODS: [(&str, f64, f64, i32); 9] = [
    ("independent", 0.3, 53.6, 1),
    ("fct", 38.4, 53.6, 1),
    ("fastfill", 39.2, 53.6, 2),
    ("l2", 33.1, 44.2, 1),
    ("bct", 36.5, 51.7, 1),
    ("bct + ψ", 36.5, 51.7, 2),
    ("ract", 37.0, 52.1, 1),
    ("dmu", 40.1, 53.9, 1),
    ("dmu + ψ", 41.3, 53.9, 2),
];

fn backfill(order: &str, start: f64, end: f64, bend: i32, seed: u64) -> OrderOutcome {
    let along = |start: f64, end: f64| -> Vec<f64> {
        (0..=100)
            .map(|step| {
                let alpha = f64::from(step) / 100.0;
                let inside = alpha * (1.0 - alpha);
                let wander = 2.0 * inside * noise(seed, step as usize / 10);
                rounded(start + (end - start) * (1.0 - (1.0 - alpha).powi(bend)) - 6.0 * inside + wander)
            })
            .collect()
    };
    let mean = |values: &[f64]| rounded(values.iter().sum::<f64>() / values.len() as f64);
    let lowest = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
    let (map, top1) = (along(start, end), along(start + 31.0, end + 31.0));
    OrderOutcome {
        order: order.into(),
        area: Quality { top1: mean(&top1), map: mean(&map) },
        min: Quality { top1: lowest(&top1), map: lowest(&map) },
        negative_flips: rounded(2.0 + noise(seed, 3)),
        negative_flips_max: rounded(5.0 + noise(seed, 4)),
        negative_flip_rate: along(0.0, rounded(2.0 + noise(seed, 3))),
        top1,
        map,
        top5: Vec::new(),
        area_top5: None,
    }
}

fn compared(methods: &[(&str, f64, f64, i32)], seeds: u64, parts: &[&str], orders: &[&str]) -> Comparison {
    let mut outcomes = Vec::new();
    for (number, &(method, start, end, bend)) in methods.iter().enumerate() {
        for seed in 0..seeds {
            for (place, part) in parts.iter().enumerate() {
                let less = 4.0 * place as f64;
                let shift = |of: usize| rounded(0.6 * noise(seed * 31 + place as u64, of)) - less;
                let quality = |map: f64| Quality { top1: rounded(map + 31.0), map: rounded(map) };
                let (start, end) = (
                    (start + shift(10 + number)).max(0.2),
                    end + if end == 53.6 { shift(2) } else { shift(20 + number) },
                );
                let backfills = orders.iter().zip(0..).map(|(order, earlier)| {
                    backfill(order, start, end, bend + earlier, seed * 100 + number as u64)
                });
                outcomes.push(MethodOutcome {
                    method: method.into(),
                    seed,
                    part: (*part).into(),
                    encoder: None,
                    old_old: quality(36.6 + shift(1)),
                    new_old: quality(start),
                    new_new: quality(end),
                    best_best: quality(53.6 + shift(2)),
                    backfills: backfills.collect(),
                    protocols: Vec::new(),
                });
            }
        }
    }
    Comparison {
        title: "Compatible training on grocery images".into(),
        setting: vec![
            "ResNet-18 on half of the classes, ResNet-50 on all of them.".into(),
            "30 epochs each; cosine distance, leaving each query itself out.".into(),
        ],
        version: "0.1.0".into(),
        outcomes,
        warnings: vec!["The part unseen holds 38 classes only.".into()],
    }
}

/// Returns a comparison of two methods with three seeds, two parts and two orders.
fn fixture() -> Comparison {
    compared(&[METHODS[4], METHODS[8]], 3, &["test", "unseen"], &["sigma", "random"])
}

/// Returns the cells of a method's row in the table whose caption begins with `caption`.
fn row(markdown: &str, caption: &str, method: &str) -> Vec<String> {
    let table = markdown.split(&format!("*{caption}")).nth(1).expect("a table of that caption");
    let line =
        table.lines().find(|line| line.starts_with(&format!("| {method} |"))).expect("a row of the method");
    line.trim_matches('|').split(" |").skip(1).map(|cell| cell.trim().replace('\u{a0}', " ")).collect()
}

#[test]
fn the_three_forms_give_what_is_committed() {
    let comparison = fixture();
    assert_as_committed("comparison.html", &comparison_html(&comparison));
    assert_as_committed("comparison.md", &comparison_markdown(&comparison));
    assert_as_committed("comparison.json", &comparison_json(&comparison));
}

#[test]
fn every_page_is_well_formed_needs_nothing_else_and_comes_out_the_same_twice() {
    let everything = compared(&METHODS, 1, &["test"], &["random"]);
    let nothing = compared(&[], 0, &[], &[]);
    for comparison in [fixture(), everything, nothing] {
        let page = comparison_html(&comparison);
        assert_well_formed(&page);
        assert_self_contained(&page);
        assert_eq!(page, comparison_html(&comparison.clone()));
        assert_eq!(comparison_markdown(&comparison), comparison_markdown(&comparison.clone()));
        let back: Comparison = serde_json::from_str(&comparison_json(&comparison)).unwrap();
        assert_eq!(back, comparison);
    }
}

#[test]
fn numbers_are_means_over_seeds_and_gains_those_of_the_papers() {
    let quality = |map: f64| Quality { top1: map / 2.0, map };
    let mut comparison = compared(&[METHODS[4], METHODS[8]], 2, &["test"], &[]);
    // M(new, old) of both methods and seeds: the first fails the criterion once.
    for (outcome, new_old) in comparison.outcomes.iter_mut().zip([50.0, 30.0, 60.0, 64.0]) {
        (outcome.old_old, outcome.new_old) = (quality(40.0), quality(new_old));
        (outcome.new_new, outcome.best_best) = (quality(new_old + 20.0), quality(80.0));
    }
    let text = comparison_markdown(&comparison);
    let side_by_side = |method| row(&text, "Methods side by side: mAP", method);
    assert_eq!(
        side_by_side("bct"),
        ["40.0 ± 0.0", "40.0 ± 14.1", "60.0 ± 14.1", "1/2", "25.0 (1 of 2)", "0.0 ± 35.4", "25.0 ± 17.7"]
    );
    assert_eq!(
        side_by_side("dmu + ψ"),
        [
            "40.0 ± 0.0",
            "**62.0 ± 2.8**",
            "**82.0 ± 2.8**",
            "2/2",
            // The whole is dmu's own end, 84, where the independent model has 80.
            "52.3 ± 3.2",
            "**55.0 ± 7.1**",
            "**−2.5 ± 3.5**"
        ]
    );
    assert_eq!(side_by_side("independent new model")[2], "80.0 ± 0.0");
}

#[test]
fn every_protocol_has_a_table_of_its_own() {
    let mut comparison = compared(&[METHODS[4], METHODS[8]], 1, &["test"], &["random"]);
    assert!(!comparison_markdown(&comparison).contains("*Protocol"));
    for (outcome, new_old) in comparison.outcomes.iter_mut().zip([60.0, 30.0]) {
        outcome.protocols = vec![ProtocolOutcome {
            protocol: "tar@0.001".into(),
            old_old: Some(40.0),
            new_old: Some(new_old),
            new_new: None,
            best_best: Some(80.0),
        }];
    }
    let text = comparison_markdown(&comparison);
    assert_eq!(row(&text, "Protocol tar@0.001", "bct"), ["40.0", "**60.0**", "–", "50.0"]);
    assert_eq!(row(&text, "Protocol tar@0.001", "dmu + ψ"), ["40.0", "30.0", "–", "–"]);
}

#[test]
fn a_method_that_is_missing_for_a_seed_says_so_and_does_not_compete() {
    let mut comparison = compared(&[METHODS[4], METHODS[8]], 3, &["test"], &["random"]);
    comparison.outcomes.retain(|outcome| outcome.method == "bct" || outcome.seed != 2);
    let text = comparison_markdown(&comparison);
    let cells = row(&text, "Methods side by side: mAP", "dmu + ψ");
    for cell in [0, 1, 2, 5, 6].map(|cell| &cells[cell]) {
        assert!(cell.contains("2 of 3") && !cell.contains("**"), "{cells:?}");
    }
    assert_eq!(cells[3], "2/3");
    let cells = row(&text, "Backfill in order random", "dmu + ψ");
    assert!(cells.iter().all(|cell| cell.contains("2 of 3") && !cell.contains("**")), "{cells:?}");
    assert!(!row(&text, "Methods side by side: mAP", "bct")[1].contains(" of "), "{text}");
    assert!(text.contains("Part test, order random: bct with ") && !text.contains("then dmu"), "{text}");

    // Where every method misses a seed, none comes first.
    comparison.outcomes.retain(|outcome| outcome.method != "bct" || outcome.seed != 0);
    assert!(comparison_markdown(&comparison).contains("No method has an area of mAP for every seed"));
}

#[test]
fn one_seed_has_no_spread_and_one_order_one_table() {
    let text = comparison_markdown(&compared(&METHODS, 1, &["test"], &["random"]));
    assert!(!text.contains('±'), "{text}");
    let cells = row(&text, "Backfill in order random", "bct");
    assert_eq!(cells.len(), 5);
    assert!(cells[2].contains("(worst "), "{cells:?}");
    // The independent model meets nothing, so Γ has no value.
    let cells = row(&text, "Methods side by side: mAP", "independent");
    assert_eq!(&cells[3..5], ["0/1", "–"]);
}

#[test]
fn what_is_not_a_number_is_a_dash_and_never_drawn_and_text_stays_text() {
    let attack = "<script>alert(\"1\")</script>|`*[x](y)\n</svg>'&amp;\u{0}\u{202e}";
    let mut comparison = fixture();
    (comparison.title, comparison.version) = (attack.into(), attack.into());
    (comparison.setting, comparison.warnings) = (vec![attack.into()], vec![attack.into()]);
    for outcome in &mut comparison.outcomes {
        let bad = [f64::NAN, f64::INFINITY, 1e308][outcome.seed as usize];
        if outcome.method == "bct" {
            (outcome.new_old.map, outcome.best_best.map) = (bad, bad);
            for backfill in &mut outcome.backfills {
                backfill.area.map = bad;
                backfill.negative_flips = bad;
                backfill.negative_flips_max = bad;
                backfill.map[40] = bad;
                backfill.top1.truncate(outcome.seed as usize);
            }
        }
    }
    let text = comparison_markdown(&comparison);
    let cells = row(&text, "Methods side by side: mAP", "bct");
    assert_eq!(cells[1], "–");
    assert_eq!(&cells[3..], ["–", "–", "–", "–"]);
    assert_eq!(row(&text, "Area of mAP by order", "bct"), ["–", "–"]);
    assert_eq!(row(&text, "NFR@1 by order", "bct"), ["–", "–"]);
    assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");

    for outcome in &mut comparison.outcomes {
        (outcome.method, outcome.part) = (format!("{} {attack}", outcome.method), attack.into());
        for backfill in &mut outcome.backfills {
            backfill.order = attack.into();
        }
    }
    let page = comparison_html(&comparison);
    assert!(page.contains("&lt;script&gt;"));
    assert_well_formed(&page);
    assert_self_contained(&page);
    assert!(!page.contains('\0') && !page.contains('\u{202e}'));
    let text = comparison_markdown(&comparison);
    assert!(
        !text.contains('\0') && !text.contains("<script") && !text.replace("\\]", "").contains("]("),
        "{text}"
    );
}

#[test]
fn a_chart_shows_the_random_order_and_ten_methods_at_most() {
    let names: Vec<String> = (0..12).map(|number| format!("method-{number:02}")).collect();
    let methods: Vec<(&str, f64, f64, i32)> = names
        .iter()
        .zip(0..)
        .map(|(name, number): (&String, i32)| (name.as_str(), 30.0 + f64::from(number), 60.0, 1))
        .collect();
    let page = comparison_html(&compared(&methods, 1, &["test"], &["sigma", "random"]));
    assert!(page.contains("in order random"));
    let chart = page.split("<svg class=\"rh wide\"").nth(1).unwrap().split("</svg>").next().unwrap();
    let label = |name: &str| chart.contains(&format!(">{name}</text>"));
    let drawn: Vec<&String> = names.iter().filter(|name| label(name)).collect();
    assert_eq!(drawn, names[2..].iter().collect::<Vec<_>>());

    let mut comparison = compared(&METHODS[4..6], 1, &["test"], &["sigma", "random"]);
    comparison.outcomes[1].backfills.truncate(1);
    assert!(comparison_html(&comparison).contains(">bct + ψ · sigma</text>"));

    // A model that knows nothing of the old gallery starts near 0, where no other line is.
    let page = comparison_html(&compared(&METHODS[..3], 1, &["test"], &["random"]));
    let chart = page.split("<svg class=\"rh wide\"").nth(1).unwrap().split("</svg>").next().unwrap();
    assert!(page.contains("has a gap there") && chart.contains(">independent</text>"));
    assert!(!chart.contains("text-anchor=\"end\">0</text>"), "{chart}");
}
