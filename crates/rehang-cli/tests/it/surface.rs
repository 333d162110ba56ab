//! The commands that scripts rely on, from pairs to a curve, on the demo's real data.

use rehang_files::{VectorSource, read_f32_column, read_labels, read_matrix, read_order};
use serde_json::Value;

use crate::common::{self, Place, demo, demo_gallery, words};

fn source(path: &str) -> VectorSource {
    VectorSource::parse(path).unwrap()
}

fn fit(place: &Place, method: &str, output: &str) -> Value {
    let rows = format!("{}=0", demo("role.npy"));
    let (old, new, label) = (demo("old.npy"), demo("new.npy"), demo("label.npy"));
    place.json(&[
        "fit", "--old", &old, "--new", &new, "--labels", &label, "--rows", &rows, "--method", method,
        "--seed", "3", "--epochs", "3", "-o", output,
    ])
}

/// Top-1, top-5 and mAP of one state of the gallery, by sorting, in percent.
fn brute_force(new: &rehang_core::Matrix, gallery: &rehang_core::Matrix, labels: &[i64]) -> [f64; 3] {
    let mut sums = [0.0; 3];
    for query in 0..labels.len() {
        let mut ranked: Vec<(f64, usize)> = (0..labels.len())
            .filter(|&item| item != query)
            .map(|item| {
                let pairs = new.row(query).iter().zip(gallery.row(item));
                (pairs.map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum(), item)
            })
            .collect();
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let right: Vec<bool> = ranked.iter().map(|&(_, item)| labels[item] == labels[query]).collect();
        sums[0] += f64::from(u8::from(right[0]));
        sums[1] += f64::from(u8::from(right[..5].contains(&true)));
        let (mut found, mut precision) = (0.0, 0.0);
        for (rank, _) in right.iter().enumerate().filter(|&(_, &right)| right) {
            found += 1.0;
            precision += found / (rank + 1) as f64;
        }
        sums[2] += precision / found;
    }
    sums.map(|sum| 100.0 * sum / labels.len() as f64)
}

#[test]
fn from_pairs_to_a_curve_that_equals_brute_force() {
    let place = Place::new();
    let [old, new, labels] = demo_gallery(&place, usize::MAX);
    let fitted = fit(&place, "ridge", "a.safetensors");
    assert_eq!(fitted["method"], "ridge");
    assert_eq!(fitted["pairs"], 718);

    let made = place.json(&["transform", "a.safetensors", &old, "-o", "adapted.npy", "--sigma", "sigma.npy"]);
    assert_eq!(made["vectors"], 1079);
    let sigma = read_f32_column(&source(&place.text("sigma.npy"))).unwrap();
    assert!(sigma.len() == 1079 && sigma.iter().all(|value| value.is_finite() && *value > 0.0));

    place.json(&["order", "--policy", "sigma", "--sigma", "sigma.npy", "-o", "order.npy"]);
    let order = read_order(&source(&place.text("order.npy"))).unwrap();
    assert!(order.windows(2).all(|pair| sigma[pair[0]] >= sigma[pair[1]]), "the largest σ² comes first");

    let curve = place.json(&words(
        "curve --new {} --adapted adapted.npy --labels {} --order order.npy --old {} --grid 4 \
         --sigma sigma.npy --bootstrap 50",
        &[&new, &labels, &old],
    ));
    assert_eq!(curve["n"], 1079);
    let (native, adapted) =
        (read_matrix(&source(&new)).unwrap(), read_matrix(&source(&place.text("adapted.npy"))).unwrap());
    let tags = read_labels(&source(&labels)).unwrap();
    let cuts = [0, 359, 719, 1079];
    assert_eq!(curve["grid"]["cuts"], serde_json::json!(cuts));
    for (place, cut) in cuts.into_iter().enumerate() {
        let mut mixed = adapted.clone();
        for &item in &order[..cut] {
            mixed.row_mut(item).copy_from_slice(native.row(item));
        }
        let expected = brute_force(&native, &mixed, &tags);
        for (name, expected) in ["top1", "top5", "map"].into_iter().zip(expected) {
            let received = curve["grid"][name][place].as_f64().unwrap();
            assert!((received - expected).abs() < 1e-6, "{name} at {cut}: {received} against {expected}");
        }
    }
    let today =
        brute_force(&read_matrix(&source(&old)).unwrap(), &read_matrix(&source(&old)).unwrap(), &tags);
    assert!((curve["do_nothing"]["map"].as_f64().unwrap() - today[2]).abs() < 1e-6);
    assert_eq!(curve["flips"]["top1"]["positive"][0], 0);
    let (start, area) = (curve["start"]["map"].as_f64().unwrap(), curve["area"]["map"].as_f64().unwrap());
    assert!(area > start, "re-embedding helps: area {area}, start {start}");
}

#[test]
fn every_method_fits_and_its_adapter_transforms() {
    let place = Place::new();
    let [old, _, _] = demo_gallery(&place, usize::MAX);
    for method in [
        "do-nothing",
        "procrustes",
        "low-rank",
        "kernel-ridge",
        "residual-mlp",
        "fct",
        "fastfill",
        "fastfill-reference",
    ] {
        let fitted = fit(&place, method, "m.safetensors");
        assert_eq!(fitted["method"], method);
        // The calibration is measured also where σ² is trained together with its map.
        assert!(fitted["calibration"]["items"].as_u64() > Some(50), "{method}: {}", fitted["calibration"]);
        place.json(&["transform", "m.safetensors", &old, "-o", "m.npy", "--sigma", "s.npy"]);
        let adapted = read_matrix(&source(&place.text("m.npy"))).unwrap();
        assert_eq!((adapted.rows(), adapted.columns()), (1079, 32), "{method}");
        adapted.check_finite(method).unwrap();
        assert_eq!(place.json(&["inspect", "m.safetensors"])["training"]["method"], method);
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes_for_any_number_of_threads() {
    let place = Place::new();
    let rows = format!("{}=0", demo("role.npy"));
    let (old, new, label) = (demo("old.npy"), demo("new.npy"), demo("label.npy"));
    for method in ["auto", "fastfill-reference"] {
        for (threads, output) in [("1", "one.safetensors"), ("2", "two.safetensors")] {
            place.json(&words(
                "fit --old {} --new {} --labels {} --rows {} --method {} --epochs 2 --threads {} -o {}",
                &[&old, &new, &label, &rows, method, threads, output],
            ));
        }
        let bytes = |name: &str| fs_err::read(place.path(name)).unwrap();
        assert!(
            bytes("one.safetensors") == bytes("two.safetensors"),
            "{method} depends on the number of threads"
        );
    }
}

#[test]
fn every_order_is_a_permutation_and_says_what_it_needs() {
    let place = Place::new();
    let [old, new, _] = demo_gallery(&place, usize::MAX);
    fit(&place, "ridge", "a.safetensors");
    place.json(&["transform", "a.safetensors", &old, "-o", "adapted.npy", "--sigma", "sigma.npy"]);
    let (weight, bias) = (demo("head_weight.npy"), demo("head_bias.npy"));
    for policy in ["sigma", "random", "coverage", "least-confidence", "margin", "entropy", "oracle"] {
        place.json(&words(
            "order --policy {} --sigma sigma.npy --adapted adapted.npy --new {} --head-weight {} \
             --head-bias {} -o order.npy",
            &[policy, &new, &weight, &bias],
        ));
        let mut order = read_order(&source(&place.text("order.npy"))).unwrap();
        order.sort_unstable();
        assert!(order.into_iter().eq(0..1079), "{policy}");
    }
    let output = place.run(&["order", "--policy", "entropy", "--adapted", "adapted.npy", "-o", "x.npy"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("head"));
    assert!(!place.names().contains(&"x.npy".to_owned()));
}

#[test]
fn a_report_is_written_in_all_formats() {
    let place = Place::new();
    let [old, new, labels] = demo_gallery(&place, usize::MAX);
    fit(&place, "ridge", "a.safetensors");
    let (pairs, role) = (demo("old.npy"), format!("{}=0", demo("role.npy")));
    let value = place.json(&words(
        "report a.safetensors --old {} --new {} --labels {} --groups {} --pairs-old {} \
         --pairs-rows {} --bootstrap 20 --orders sigma,random -o r.html -o r.md -o r.json",
        &[&old, &new, &labels, &labels, &pairs, &role],
    ));
    assert_eq!(value["report"], "r.html");
    let html = fs_err::read_to_string(place.path("r.html")).unwrap();
    assert!(html.starts_with("<!") && html.contains("<svg") && html.contains("ridge"));
    let json: Value = serde_json::from_str(&fs_err::read_to_string(place.path("r.json")).unwrap()).unwrap();
    assert_eq!(json["curves"].as_array().unwrap().len(), 2);
    assert_eq!(json["groups"]["names"].as_array().unwrap().len(), 10);
    // Three images of the gallery look to the old encoder exactly like one of the pairs.
    assert_eq!(json["measured_on"][0]["overlapping_items"], 3);
    let overlapping = place.run(&words(
        "report a.safetensors --old {} --new {} --labels {} --pairs-old {} --bootstrap 0 --orders \
         sigma -o overlapping.json",
        &[&old, &new, &labels, &pairs],
    ));
    assert_eq!(overlapping.status.code(), Some(1), "numbers that are too good are no success");
    let text = fs_err::read_to_string(place.path("overlapping.json")).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    // The gallery's own items are among the rows that were named as pairs, and that is said.
    assert_eq!(json["warnings"][0]["code"], "overlap");
}

#[test]
fn items_can_be_joined_by_id() {
    let place = Place::new();
    let old = common::waves(60, 3, 1);
    let new = common::waves(60, 4, 1);
    // The new file holds the same items the other way round, and one that nobody knows.
    let backwards: Vec<usize> = (0..60).rev().collect();
    let old = place.write_matrix("old.npy", &old);
    let new = place.write_matrix("new.npy", &new.select(&backwards));
    let ids =
        |range: &mut dyn Iterator<Item = usize>| range.map(|id| format!("item-{id}\n")).collect::<String>();
    let old_ids = place.write_bytes("old.txt", ids(&mut (0..60)).as_bytes());
    let new_ids = place.write_bytes("new.txt", ids(&mut (0..60).rev()).as_bytes());
    let value = place.json(&words(
        "fit --old {} --new {} --old-ids {} --new-ids {} --method ridge -o a.safetensors",
        &[&old, &new, &old_ids, &new_ids],
    ));
    assert_eq!(value["pairs"], 60);
    let other = place.write_bytes("other.txt", ids(&mut (1..61).rev()).as_bytes());
    let arguments = [
        "fit",
        "--old",
        &old,
        "--new",
        &new,
        "--old-ids",
        &old_ids,
        "--new-ids",
        &other,
        "--method",
        "ridge",
        "-o",
        "b.safetensors",
    ];
    let output = place.run(&arguments);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("item-0"), "the id that did not match is named");
    let value = place.json(&[&arguments[..], &["--keep-common"]].concat());
    assert_eq!(value["pairs"], 59);
}

/// Fits two files of vectors; gives what the fit says on stderr, and its exit code.
fn said(place: &Place, old: &str, new: &str, more: &[&str]) -> (String, Option<i32>) {
    let output = place.run(&[&["fit", "--old", old, "--new", new, "-o", "said.safetensors"], more].concat());
    (String::from_utf8_lossy(&output.stderr).into_owned(), output.status.code())
}

#[test]
fn old_and_new_that_are_swapped_are_noticed_by_labels_by_a_head_and_by_neither() {
    let place = Place::new();
    // A rich new space, and an old model that sees three of its eight directions, at the same width.
    let labels: Vec<i64> = (0..400).map(|item| item % 8).collect();
    let noise = common::waves(400, 8, 3);
    let new = rehang_core::Matrix::from_fn(400, 8, |row, column| {
        noise.row(row)[column] * 0.4 + if column == row % 8 { 4.0 } else { 0.0 }
    });
    let other = common::waves(400, 8, 9);
    let old = rehang_core::Matrix::from_fn(400, 8, |row, column| {
        new.row(row)[column % 3] * (column + 1) as f32 + 0.02 * other.row(row)[column]
    });
    let head = rehang_core::Matrix::from_fn(8, 8, |class, column| if class == column { 2.0 } else { 0.0 });
    let (old, new) = (place.write_matrix("old.npy", &old), place.write_matrix("new.npy", &new));
    let (labels, head) = (place.write_labels("labels.npy", &labels), place.write_matrix("head.npy", &head));
    let ridge = ["--method", "ridge"];
    let labelled = [&ridge[..], &["--labels", &labels]].concat();
    let with_head = [&ridge[..], &["--head-weight", &head]].concat();
    for (more, word) in
        [(&labelled, "find their classes better"), (&with_head, "is sure of old vectors better")]
    {
        let (right, code) = said(&place, &old, &new, more);
        assert!(!right.contains("swapped") && code == Some(0), "{right}");
        let (wrong, _) = said(&place, &new, &old, more);
        assert!(wrong.contains("Warning") && wrong.contains("swapped") && wrong.contains(word), "{wrong}");
    }
    // With neither it is asked, and said what cannot be known.
    let (right, code) = said(&place, &old, &new, &ridge);
    assert!(!right.contains("Check that they are not swapped") && code == Some(0), "{right}");
    assert!(right.contains("Note: Without labels nothing here can tell"), "{right}");
    let (wrong, _) = said(&place, &new, &old, &ridge);
    assert!(wrong.contains("Check that they are not swapped"), "{wrong}");
    // A head that fits the old vectors only is refused.
    let narrow = place.write_matrix("narrow.npy", &common::waves(400, 5, 2));
    let (wrong, code) = said(&place, &new, &narrow, &with_head);
    assert!(wrong.contains("seem to be swapped") && code == Some(2), "{wrong}");
}

#[test]
fn a_gain_that_is_not_there_is_said_without_labels() {
    let place = Place::new();
    let (old, new) = (demo("old.npy"), demo("new.npy"));
    // Old and new vectors of the same model: nothing to gain.
    let (same, code) = said(&place, &new, &new, &["--method", "ridge"]);
    assert!(same.contains("agreement@10") && same.contains("Do not upgrade"), "{same}");
    assert_eq!(code, Some(1));
    // A map that takes results farther from the new model's than doing nothing leaves them.
    let nearly = read_matrix(&source(&new)).unwrap();
    let nearly = rehang_core::Matrix::from_fn(nearly.rows(), nearly.columns(), |row, column| {
        nearly.row(row)[column] + 0.2 * ((row * 7 + column) as f32).sin()
    });
    let nearly = place.write_matrix("nearly.npy", &nearly);
    let (worse, _) = said(&place, &new, &nearly, &["--method", "fct", "--epochs", "1"]);
    assert!(worse.contains("agreement@10") && worse.contains("below doing nothing"), "{worse}");
    // Rows that do not belong together: nothing to learn.
    let mixed = read_matrix(&source(&old)).unwrap();
    let rows: Vec<usize> = (0..mixed.rows()).map(|row| (row * 101 + 7) % mixed.rows()).collect();
    let mixed = place.write_matrix("mixed.npy", &mixed.select(&rows));
    let (useless, code) = said(&place, &mixed, &new, &["--method", "ridge"]);
    assert!(useless.contains("Problem: Adapted vectors are no nearer"), "{useless}");
    assert_eq!(code, Some(1));
}

/// Whether the nearest other item of each query's own new vector has its label, by sorting.
fn answered(new: &rehang_core::Matrix, gallery: &rehang_core::Matrix, labels: &[i64]) -> Vec<bool> {
    (0..labels.len())
        .map(|query| {
            let distance = |item: usize| -> f64 {
                let pairs = new.row(query).iter().zip(gallery.row(item));
                pairs.map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum()
            };
            let others = (0..labels.len()).filter(|&item| item != query);
            let nearest = others.min_by(|&a, &b| distance(a).total_cmp(&distance(b)));
            nearest.is_some_and(|item| labels[item] == labels[query])
        })
        .collect()
}

#[test]
fn the_points_of_a_curve_hold_flips_and_groups_at_every_fraction() {
    let place = Place::new();
    let (new, adapted) = (common::waves(70, 4, 1), common::waves(70, 4, 5));
    let labels: Vec<i64> = (0..70).map(|item| item % 7).collect();
    let groups: Vec<i64> = (0..70).map(|item| item % 3).collect();
    let order: Vec<usize> = (0..70).map(|place| place * 11 % 70).collect();
    let paths = [place.write_matrix("new.npy", &new), place.write_matrix("adapted.npy", &adapted)];
    let order_path =
        place.write_labels("order.npy", &order.iter().map(|&item| item as i64).collect::<Vec<_>>());
    let (labels_path, groups_path) =
        (place.write_labels("labels.npy", &labels), place.write_labels("groups.npy", &groups));
    let arguments = [
        "curve",
        "--new",
        &paths[0],
        "--adapted",
        &paths[1],
        "--labels",
        &labels_path,
        "--groups",
        &groups_path,
        "--order",
        &order_path,
        "--old",
        &paths[1],
        "--bootstrap",
        "0",
        "--points",
        "points.npy",
    ];
    let value = place.json(&arguments);
    let names: Vec<&str> =
        value["points"]["columns"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert_eq!(
        names[..6],
        ["top1", "top5", "map", "top1_positive_flips", "top1_negative_flips", "top1_negative_flip_rate"]
    );
    let points = read_matrix(&source(&place.text("points.npy"))).unwrap();
    assert_eq!((points.rows(), points.columns()), (71, names.len()));
    let column = |name: &str| names.iter().position(|other| *other == name).unwrap();

    let start = answered(&new, &adapted, &labels);
    let today = answered(&adapted, &adapted, &labels);
    let percent = |part: usize, whole: usize| (100.0 * part as f64 / whole as f64) as f32;
    let mut gallery = adapted.clone();
    for cut in 0..=70 {
        if cut > 0 {
            gallery.row_mut(order[cut - 1]).copy_from_slice(new.row(order[cut - 1]));
        }
        let now = answered(&new, &gallery, &labels);
        let count = |of: &dyn Fn(usize) -> bool| (0..70).filter(|&query| of(query)).count();
        let at = |name: &str| points.row(cut)[column(name)];
        assert!((at("top1") - percent(count(&|query| now[query]), 70)).abs() < 1e-4);
        for (prefix, before) in [("", &start), ("do_nothing_", &today)] {
            let lost = count(&|query| before[query] && !now[query]);
            let won = count(&|query| !before[query] && now[query]);
            assert_eq!(at(&format!("{prefix}top1_negative_flips")), lost as f32, "cut {cut}");
            assert_eq!(at(&format!("{prefix}top1_positive_flips")), won as f32, "cut {cut}");
            let rate = percent(lost, count(&|query| before[query]).max(1));
            assert!((at(&format!("{prefix}top1_negative_flip_rate")) - rate).abs() < 1e-4);
        }
        for group in 0..3 {
            let members = count(&|query| groups[query] == group);
            let right = count(&|query| groups[query] == group && now[query]);
            assert!((at(&format!("group_{group}_top1")) - percent(right, members)).abs() < 1e-4);
        }
    }
    assert!((points.row(70)[column("gap_top1")] - value["gap"]["end"].as_f64().unwrap() as f32).abs() < 1e-4);
}

#[test]
fn items_that_are_among_the_pairs_are_counted_wherever_an_adapter_meets_a_gallery() {
    let place = Place::new();
    let [old, new, labels] = demo_gallery(&place, usize::MAX);
    fit(&place, "ridge", "a.safetensors");
    let made = place.json(&["transform", "a.safetensors", &old, "-o", "adapted.npy", "--sigma", "sigma.npy"]);
    // Three images of the gallery look to the old encoder exactly like one of the pairs.
    assert_eq!(made["among_pairs"], serde_json::json!({ "rows": 3, "of": 1079, "exact": true }));
    place.json(&["order", "--policy", "sigma", "--sigma", "sigma.npy", "-o", "order.npy"]);
    let curve = |adapted: &str, order: &str, old: &str, new: &str, labels: &str, adapter: &str| {
        place.run(&words(
            "curve --adapted {} --order {} --old {} --new {} --labels {} --adapter {} --bootstrap 0 \
             --json",
            &[adapted, order, old, new, labels, adapter],
        ))
    };
    let clean = curve("adapted.npy", "order.npy", &old, &new, &labels, "a.safetensors");
    assert_eq!(clean.status.code(), Some(0), "{}", String::from_utf8_lossy(&clean.stderr));
    let value: Value = serde_json::from_slice(&clean.stdout).unwrap();
    assert_eq!(value["among_pairs"]["rows"], 3);
    assert_eq!(value["findings"], serde_json::json!([]));

    // The whole demo, pairs and gallery, is measured: its numbers mean nothing, which is said without the
    // pairs being named.
    let (all_old, all_new, all_labels) = (demo("old.npy"), demo("new.npy"), demo("label.npy"));
    place.json(&["transform", "a.safetensors", &all_old, "-o", "all.npy", "--sigma", "all-sigma.npy"]);
    place.json(&["order", "--policy", "sigma", "--sigma", "all-sigma.npy", "-o", "all-order.npy"]);
    let mixed = curve("all.npy", "all-order.npy", &all_old, &all_new, &all_labels, "a.safetensors");
    assert_eq!(mixed.status.code(), Some(1));
    let said = String::from_utf8_lossy(&mixed.stderr).into_owned();
    assert!(said.contains("Problem: 721 of 1797 old vectors are among the pairs"), "{said}");
    let report = |old: &str, new: &str, labels: &str, adapter: &str| {
        let output = place.run(&words(
            "report {} --old {} --new {} --labels {} --bootstrap 0 --orders sigma -o r.json",
            &[adapter, old, new, labels],
        ));
        let text = fs_err::read_to_string(place.path("r.json")).unwrap();
        (output.status.code(), serde_json::from_str::<Value>(&text).unwrap())
    };
    let (code, value) = report(&old, &new, &labels, "a.safetensors");
    assert_eq!((code, &value["measured_on"][0]["overlapping_items"]), (Some(0), &Value::from(3)));
    let ids: Vec<&str> = value["warnings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|warning| warning["code"].as_str().unwrap())
        .collect();
    assert!(ids.contains(&"one-seed"), "one adapter is one seed too: {ids:?}");
    let (code, value) = report(&all_old, &all_new, &all_labels, "a.safetensors");
    assert_eq!((code, &value["measured_on"][0]["overlapping_items"]), (Some(1), &Value::from(721)));
}

#[test]
fn an_adapter_that_was_fitted_the_wrong_way_round_is_noticed_where_both_vectors_are_there() {
    let place = Place::new();
    let old = common::waves(300, 4, 1);
    let by_new = |old: &rehang_core::Matrix| {
        rehang_core::Matrix::from_fn(old.rows(), 4, |row, column| {
            let values = old.row(row);
            3.0 + 2.0 * values[(column + 1) % 4] - values[(column + 2) % 4]
        })
    };
    let new = by_new(&old);
    let (old, new) = (place.write_matrix("old.npy", &old), place.write_matrix("new.npy", &new));
    place.run(&["fit", "--old", &new, "--new", &old, "--method", "ridge", "-o", "swapped.safetensors"]);
    place.run(&["fit", "--old", &old, "--new", &new, "--method", "ridge", "-o", "right.safetensors"]);
    // Other items than those of the fits.
    let gallery = common::waves(200, 4, 5);
    let (old, new) =
        (place.write_matrix("g-old.npy", &gallery), place.write_matrix("g-new.npy", &by_new(&gallery)));
    let labels: Vec<i64> = (0..200).map(|item| item % 7).collect();
    let labels = place.write_labels("g-labels.npy", &labels);
    let order = place.write_labels("g-order.npy", &(0..200).collect::<Vec<i64>>());
    for (adapter, is_wrong) in [("right.safetensors", false), ("swapped.safetensors", true)] {
        let output = place.run(&words(
            "curve --adapted {} --order {} --old {} --new {} --labels {} --adapter {} --bootstrap 0",
            &[&new, &order, &old, &new, &labels, adapter],
        ));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(said.contains("Swap old and new"), is_wrong, "{said}");
        assert_eq!(output.status.code(), Some(i32::from(is_wrong)));
        let output = place.run(&words(
            "report {} --old {} --new {} --labels {} --bootstrap 0 --orders sigma --force -o r.json",
            &[adapter, &old, &new, &labels],
        ));
        let text = fs_err::read_to_string(place.path("r.json")).unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(text.contains("\"wrong-direction\""), is_wrong, "{said}");
    }
}

#[test]
fn galleries_in_several_files_and_in_another_order_give_the_same_numbers() {
    let place = Place::new();
    let [old, new, labels] = demo_gallery(&place, usize::MAX);
    fit(&place, "ridge", "a.safetensors");
    let (old_rows, new_rows) = (read_matrix(&source(&old)).unwrap(), read_matrix(&source(&new)).unwrap());
    let n = old_rows.rows();
    place.json(&["transform", "a.safetensors", &old, "-o", "adapted.npy", "--sigma", "sigma.npy"]);
    let adapted = read_matrix(&source(&place.text("adapted.npy"))).unwrap();
    let sigma = read_f32_column(&source(&place.text("sigma.npy"))).unwrap();

    // The new vectors the other way round, with one more that nobody knows; everything in two files.
    let halves = |name: &str, matrix: &rehang_core::Matrix| -> [String; 2] {
        let rows: Vec<usize> = (0..matrix.rows()).collect();
        let (first, second) = rows.split_at(500);
        [
            place.write_matrix(&format!("{name}-0.npy"), &matrix.select(first)),
            place.write_matrix(&format!("{name}-1.npy"), &matrix.select(second)),
        ]
    };
    let backwards: Vec<usize> = std::iter::once(7).chain((0..n).rev()).collect();
    let [new_0, new_1] = halves("new", &new_rows.select(&backwards));
    let [old_0, old_1] = halves("old", &old_rows);
    let [adapted_0, adapted_1] = halves("adapted", &adapted);
    let (sigma_0, sigma_1) = (place.text("sigma-0.npy"), place.text("sigma-1.npy"));
    rehang_files::write_f32(&sigma_0, &sigma[..500]).unwrap();
    rehang_files::write_f32(&sigma_1, &sigma[500..]).unwrap();
    let ids = |items: &mut dyn Iterator<Item = usize>| items.map(|id| format!("i{id}\n")).collect::<String>();
    let old_ids = place.write_bytes("old.txt", ids(&mut (0..n)).as_bytes());
    let new_ids = format!("stranger\n{}", ids(&mut (0..n).rev()));
    let new_ids = place.write_bytes("new.txt", new_ids.as_bytes());
    let by_id = ["--old-ids", &old_ids, "--new-ids", &new_ids, "--keep-common"];

    for policy in ["sigma", "oracle"] {
        place.json(&words(
            "order --policy {} --sigma sigma.npy --adapted adapted.npy --new {} -o order.npy",
            &[policy, &new],
        ));
        let split = [
            "order",
            "--policy",
            policy,
            "--sigma",
            &sigma_0,
            &sigma_1,
            "--adapted",
            &adapted_0,
            &adapted_1,
            "--new",
            &new_0,
            &new_1,
            "-o",
            "split-order.npy",
        ];
        place.json(&[&split[..], &by_id].concat());
        let read = |name: &str| read_order(&source(&place.text(name))).unwrap();
        assert_eq!(read("order.npy"), read("split-order.npy"), "{policy}");
        let output = place.run(&[&split[..], &by_id[..4]].concat());
        assert_eq!(
            output.status.code(),
            Some(2),
            "an id that did not match is an error unless it may be left out"
        );
    }

    let whole = place.json(&words(
        "curve --new {} --adapted adapted.npy --old {} --labels {} --groups {} --order order.npy \
         --sigma sigma.npy --bootstrap 0",
        &[&new, &old, &labels, &labels],
    ));
    let split = [
        "curve",
        "--new",
        &new_0,
        &new_1,
        "--adapted",
        &adapted_0,
        &adapted_1,
        "--old",
        &old_0,
        &old_1,
        "--labels",
        &labels,
        "--groups",
        &labels,
        "--order",
        "order.npy",
        "--sigma",
        &sigma_0,
        &sigma_1,
        "--bootstrap",
        "0",
    ];
    let joined = place.json(&[&split[..], &by_id].concat());
    for key in ["n", "area", "start", "end", "min", "do_nothing", "flips", "groups", "sigma"] {
        assert_eq!(whole[key], joined[key], "{key}");
    }

    let report = |arguments: &[&str]| {
        let more = ["--labels", &labels, "--bootstrap", "0", "--orders", "sigma", "-o", "r.json"];
        place.json(&[&["report", "a.safetensors"], arguments, &more].concat())["data"].clone()
    };
    let whole = report(&["--old", &old, "--new", &new]);
    let joined =
        report(&[&["--old", &old_0, "--old", &old_1, "--new", &new_0, "--new", &new_1], &by_id[..]].concat());
    for key in ["curves", "do_nothing", "new_model", "calibrations"] {
        assert_eq!(whole[key], joined[key], "{key}");
    }

    // Items that only one side has drop out of everything that goes with them, the order too.
    let few_ids = place.write_bytes("few.txt", ids(&mut (0..n - 80)).as_bytes());
    let few = place.write_matrix("few.npy", &new_rows.select(&(0..n - 80).collect::<Vec<_>>()));
    let value = place.json(&words(
        "curve --new {} --adapted adapted.npy --labels {} --order order.npy --sigma sigma.npy \
         --bootstrap 0 --old-ids {} --new-ids {} --keep-common",
        &[&few, &labels, &old_ids, &few_ids],
    ));
    assert_eq!(value["n"], n - 80);
}

#[test]
fn the_handicap_of_a_fit_is_that_of_its_adapter_and_of_the_curve() {
    let place = Place::new();
    let [old, new, labels] = demo_gallery(&place, usize::MAX);
    let fitted = fit(&place, "procrustes", "a.safetensors");
    let handicap = fitted["handicap"].as_f64().unwrap();
    let choice = &fitted["handicap_choice"];
    let kept = &choice["rows"][choice["kept"].as_u64().unwrap() as usize];
    assert_eq!(kept["handicap"], fitted["handicap"]);
    assert_eq!(choice["criterion"], "mAP");
    assert!(handicap > 0.0, "a rotation of digits leaves some to gain: {choice}");

    let transformed =
        place.json(&["transform", "a.safetensors", &old, "-o", "adapted.npy", "--sigma", "sigma.npy"]);
    assert_eq!(transformed["handicap"], fitted["handicap"]);
    place.json(&["order", "--policy", "random", "--sigma", "sigma.npy", "-o", "order.npy"]);
    let curve = |more: &[&str]| {
        let mut arguments = vec!["curve", "--new", &new, "--adapted", "adapted.npy", "--labels", &labels];
        arguments.extend(["--order", "order.npy", "--bootstrap", "0"]);
        arguments.extend(more);
        place.json(&arguments)
    };
    let text = handicap.to_string();
    let (plain, given, own) =
        (curve(&[]), curve(&["--handicap", &text]), curve(&["--adapter", "a.safetensors"]));
    assert_eq!(plain["handicap"], 0.0);
    assert_eq!(own["handicap"], fitted["handicap"]);
    assert_eq!(given["area"], own["area"]);
    // All adapted and all native rank as ever; in between is what it is for.
    assert_eq!((&plain["start"], &plain["end"]), (&own["start"], &own["end"]));
    assert_ne!(plain["area"], own["area"]);
    let negative =
        ["curve", "--new", &new, "--adapted", "adapted.npy", "--labels", &labels, "--order", "order.npy"];
    // A handicap is in the unit of a distance.
    let (rows, pairs_old, pairs_new) = (format!("{}=0", demo("role.npy")), demo("old.npy"), demo("new.npy"));
    let cosine = place.json(&words(
        "fit --old {} --new {} --rows {} --method procrustes --distance cosine --labels {} -o \
         cosine.safetensors",
        &[&pairs_old, &pairs_new, &rows, &demo("label.npy")],
    ));
    assert!(cosine["handicap"].as_f64().unwrap() > 0.0, "{cosine}");
    let of_cosine = [&negative[..], &["--bootstrap", "0", "--adapter", "cosine.safetensors"]].concat();
    let in_l2 = [&of_cosine[..], &["--distance", "l2"]].concat();
    let output = place.run(&in_l2);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--handicap"));
    assert_eq!(place.json(&[&in_l2[..], &["--handicap", "0.5"]].concat())["handicap"], 0.5);
    // Where nothing is asked for, distances are those of the adapter's space.
    for of_its_space in [place.json(&of_cosine), place.json(&[&of_cosine[..], &["--handicap", "0"]].concat())]
    {
        assert_eq!(of_its_space["distance"], "cosine");
    }
    assert_eq!(place.json(&of_cosine)["handicap"], cosine["handicap"]);
    assert_eq!(place.json(&["inspect", "cosine.safetensors"])["handicap"], cosine["handicap"]);
    let output = place.run(&[&negative[..], &["--handicap=-1"]].concat());
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("handicap"));
}

#[test]
fn a_name_is_the_same_class_in_the_gallery_and_among_the_queries() {
    let place = Place::new();
    let [_, new, labels] = demo_gallery(&place, usize::MAX);
    let (vectors, numbers) = (read_matrix(&source(&new)).unwrap(), read_labels(&source(&labels)).unwrap());
    place.json(&["order", "--policy", "random", "--adapted", &new, "-o", "order.npy"]);
    // The queries come in another order, and so do the first of each class.
    let rows: Vec<usize> = (0..300).rev().collect();
    place.write_matrix("queries.npy", &vectors.select(&rows));
    let names = |numbers: &mut dyn Iterator<Item = i64>| {
        numbers.map(|number| format!("class {number}\n")).collect::<String>().into_bytes()
    };
    place.write_bytes("gallery.txt", &names(&mut numbers.iter().copied()));
    place.write_bytes("queries.txt", &names(&mut rows.iter().map(|&row| numbers[row])));
    place.write_labels("queries-label.npy", &rows.iter().map(|&row| numbers[row]).collect::<Vec<_>>());
    let arguments = |gallery: &'static str, queries: &'static str| {
        words(
            "curve --new {} --adapted {} --order order.npy --queries queries.npy --bootstrap 0 --labels {} --query-labels {}",
            &[&new, &new, gallery, queries],
        )
    };
    let curve = |gallery, queries| place.json(&arguments(gallery, queries));
    let (by_number, by_name) =
        (curve("labels.npy", "queries-label.npy"), curve("gallery.txt", "queries.txt"));
    assert_eq!(by_number["area"], by_name["area"]);
    assert!(by_name["end"]["top1"].as_f64().unwrap() > 99.0, "every query is in the gallery: {by_name}");
    let mixed = arguments("gallery.txt", "queries-label.npy");
    let output = place.run(&mixed);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("whole numbers"));
}

#[test]
fn labels_that_the_head_does_not_know_are_counted() {
    let place = Place::new();
    let [old, new, labels] = demo_gallery(&place, usize::MAX);
    let shifted: Vec<i64> = read_labels(&source(&labels)).unwrap().iter().map(|label| label + 5).collect();
    place.write_labels("shifted.npy", &shifted);
    let (weight, unknown) = (demo("head_weight.npy"), shifted.iter().filter(|&&label| label > 9).count());
    let output = place.run(&words(
        "fit --old {} --new {} --labels shifted.npy --head-weight {} --method procrustes \
         --uncertainty off -o a.safetensors --json",
        &[&old, &new, &weight],
    ));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains(&format!("{unknown} of 1079 pairs have a label that the head does not know")),
        "{said}"
    );
    // The calibration was measured on a σ² that is not in the adapter.
    let fitted: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&fitted["uncertainty"], &fitted["calibration"]), (&Value::from("constant"), &Value::Null));
}

#[test]
fn judgements_and_ids_go_with_the_rows_that_are_selected() {
    let place = Place::new();
    let [old, new, _] = demo_gallery(&place, usize::MAX);
    let vectors = read_matrix(&source(&new)).unwrap();
    place.json(&["fit", "--old", &old, "--new", &new, "--method", "procrustes", "-o", "a.safetensors"]);
    // Every other item is selected; each query is one of them, and its judgement names it.
    let half: Vec<usize> = (0..vectors.rows()).filter(|row| row % 2 == 1).collect();
    place.write_labels("half.npy", &(0..vectors.rows() as i64).map(|row| row % 2).collect::<Vec<_>>());
    place.write_matrix("queries.npy", &vectors.select(&half));
    let lines = |line: &dyn Fn(usize) -> String, rows: &[usize]| -> Vec<u8> {
        rows.iter().map(|&row| line(row)).collect::<String>().into_bytes()
    };
    let all: Vec<usize> = (0..vectors.rows()).collect();
    place.write_bytes("ids.txt", &lines(&|row| format!("item-{row}\n"), &all));
    place.write_bytes("query-ids.txt", &lines(&|row| format!("query-{row}\n"), &half));
    place.write_bytes("qrels.tsv", &lines(&|row| format!("query-{row}\titem-{row}\t1\n"), &half));
    let report = place.run(&words(
        "report a.safetensors --old {} --new {} --rows half.npy=1 --queries queries.npy --qrels \
         qrels.tsv --ids ids.txt --query-ids query-ids.txt --orders random --bootstrap 0 -o \
         r.json --json",
        &[&old, &new],
    ));
    let said = String::from_utf8_lossy(&report.stderr).into_owned();
    let value: Value = serde_json::from_slice(&report.stdout).unwrap_or_else(|_| panic!("{said}"));
    let text = value.to_string();
    let end =
        value["data"]["curves"][0]["metrics"]["top1"]["end"].as_f64().unwrap_or_else(|| panic!("{text}"));
    assert!(end > 99.0, "every native query finds itself: {end}");

    // A curve of the selected rows is the curve of files that hold no others.
    let adapted = rehang_core::Matrix::from_fn(vectors.rows(), vectors.columns(), |row, column| {
        vectors.row(row)[column] * 0.9
    });
    place.write_matrix("adapted.npy", &adapted);
    place.write_matrix("half-adapted.npy", &adapted.select(&half));
    place.write_matrix("half-new.npy", &vectors.select(&half));
    let count = vectors.rows();
    let order: Vec<usize> = (0..count).map(|at| (count + 3 - at) % count).collect();
    rehang_files::write_order(place.path("order.npy"), &order).unwrap();
    let of_half: Vec<usize> = order.iter().filter(|row| *row % 2 == 1).map(|row| row / 2).collect();
    rehang_files::write_order(place.path("half-order.npy"), &of_half).unwrap();
    place.write_bytes("half-ids.txt", &lines(&|row| format!("item-{row}\n"), &half));
    let curve = |new: &str, adapted: &str, order: &str, ids: &str, more: &[&str]| {
        let fixed = [
            "curve",
            "--new",
            new,
            "--adapted",
            adapted,
            "--order",
            order,
            "--queries",
            "queries.npy",
            "--qrels",
            "qrels.tsv",
            "--ids",
            ids,
            "--query-ids",
            "query-ids.txt",
            "--bootstrap",
            "0",
            "--grid",
            "9",
        ];
        let mut value = place.json(&[&fixed[..], more].concat());
        value["inputs"].take();
        value
    };
    let taken = curve(&new, "adapted.npy", "order.npy", "ids.txt", &["--rows", "half.npy=1"]);
    let sliced = curve("half-new.npy", "half-adapted.npy", "half-order.npy", "half-ids.txt", &[]);
    assert_eq!(taken, sliced);
    assert_eq!(curve(&new, "adapted.npy", "half-order.npy", "ids.txt", &["--rows", "half.npy=1"]), sliced);
}

/// A gallery of 16 coordinates whose patterns of means tell old from new, and an adapter between them.
fn patterned(place: &Place) -> (String, String) {
    let pattern = |seed: usize| {
        let waves = common::waves(300, 16, seed);
        rehang_core::Matrix::from_fn(300, 16, |row, column| {
            waves.row(row)[column] + ((column * (seed + 2)) as f32 * 1.3).sin() * 3.0
        })
    };
    let (old, new) = (place.write_matrix("old.npy", &pattern(1)), place.write_matrix("new.npy", &pattern(8)));
    place.run(&["fit", "--old", &old, "--new", &new, "--method", "ridge", "-o", "a.safetensors"]);
    (old, new)
}

#[test]
fn a_foreign_file_is_noticed_in_batches_of_any_size_and_by_a_report() {
    let place = Place::new();
    let (old, new) = patterned(&place);
    for batch in ["16384", "32", "1"] {
        let run = |input: &str, more: &[&str]| {
            let fixed = ["transform", "a.safetensors", input, "-o", "out.npy", "--batch", batch];
            place.run(&[&fixed[..], more].concat())
        };
        assert_eq!(run(&old, &[]).status.code(), Some(0), "{batch}");
        fs_err::remove_file(place.path("out.npy")).unwrap();
        let refused = run(&new, &[]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(2) && said.contains("swapped"), "{batch}: {said}");
        assert!(!place.path("out.npy").exists(), "nothing half-written");
        assert_eq!(run(&new, &["--force"]).status.code(), Some(1), "{batch}");
    }
    let labels = place.write_labels("labels.npy", &(0..300).map(|item| item % 7).collect::<Vec<i64>>());
    let report = place.run(&words(
        "report a.safetensors --old {} --new {} --labels {} --force --orders random --bootstrap 0 \
         -o r.json --json",
        &[&new, &new, &labels],
    ));
    assert_eq!(report.status.code(), Some(1));
    let value: Value = serde_json::from_slice(&report.stdout).unwrap();
    let warnings = value["data"]["warnings"].as_array().unwrap();
    assert!(
        warnings.iter().any(|warning| warning["code"] == "drift" && warning["severity"] == "problem"),
        "{warnings:?}"
    );
}

#[test]
fn a_parquet_file_keeps_its_columns_however_its_name_is_spelled() {
    let place = Place::new();
    let (old, _) = patterned(&place);
    place.json(&["transform", "a.safetensors", &old, "-o", "X.PARQUET"]);
    place.json(&["transform", "a.safetensors", &old, "-o", "x.npy", "--sigma", "s.npy"]);
    place.json(&["order", "--policy", "sigma", "--sigma", "X.PARQUET", "-o", "a.npy"]);
    place.json(&["order", "--policy", "sigma", "--sigma", "s.npy", "-o", "b.npy"]);
    let order = |name: &str| read_order(&source(&place.text(name))).unwrap();
    assert_eq!(order("a.npy"), order("b.npy"));
}

#[test]
fn areas_have_intervals_with_and_without_labels() {
    let place = Place::new();
    let (old, new) = patterned(&place);
    place.write_labels("labels.npy", &(0..300).map(|item| item / 10).collect::<Vec<_>>());
    place.json(&["transform", "a.safetensors", &old, "-o", "adapted.npy"]);
    place.json(&["order", "--policy", "random", "--adapted", "adapted.npy", "-o", "order.npy"]);
    let curve = |samples: &str, more: &[&str]| {
        let common = ["curve", "--new", &new, "--adapted", "adapted.npy", "--order", "order.npy", "-k", "5"];
        place.json(&[&common[..], &["--bootstrap", samples], more].concat())
    };
    let labelled = curve("50", &["--labels", "labels.npy"]);
    let free = curve("50", &[]);
    for (answer, name, area) in [
        (&labelled, "map", &labelled["area"]["map"]),
        (&labelled, "map@5", &labelled["map@5"]["area"]),
        (&free, "agreement@5", &free["agreement@5"]["area"]),
    ] {
        let interval = &answer["area_interval"];
        assert_eq!((&interval["samples"], &interval["level"]), (&50.into(), &0.95.into()));
        let end = |place: usize| interval[name][place].as_f64().unwrap();
        let area = area.as_f64().unwrap();
        assert!(end(0) < area && area < end(1), "{name}: {area} in {interval}");
    }
    assert!(curve("0", &[])["area_interval"].is_null());
}

#[test]
fn options_that_say_nothing_are_named() {
    let place = Place::new();
    let (old, new) = patterned(&place);
    place.write_labels("groups.npy", &[0; 300]);
    let adapted = ["transform", "a.safetensors", &old, "-o", "adapted.npy"];
    place.json(&adapted);
    place.json(&["order", "--policy", "random", "--adapted", "adapted.npy", "-o", "order.npy"]);
    let head = place.write_matrix("head.npy", &common::waves(4, 16, 3));
    for (command, option) in [
        (format!("fit --old {old} --new {new} --method ridge --networks -o b.safetensors"), "--networks"),
        (format!("report a.safetensors --old {old} --new {new} --groups groups.npy -o r.json"), "--groups"),
        (
            format!(
                "order --policy coverage --adapter a.safetensors --adapted adapted.npy --head-weight {head} -o c.npy"
            ),
            "--head-weight",
        ),
    ] {
        let output = place.run(&words(&command, &[]));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(&format!("Warning: {option} has no effect")), "{command}: {said}");
    }
    // Options that need another one say which.
    for (more, needed) in [("--ids order.npy", "--qrels"), ("--old-distance cosine", "--old")] {
        let command = format!("curve --new {new} --adapted adapted.npy --order order.npy {more}");
        let output = place.run(&words(&command, &[]));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains(needed), "{said}");
    }
}

/// The exit code of a command, and what it said on stderr.
fn spoken(place: &Place, command: &str) -> (Option<i32>, String) {
    let output = place.run(&words(command, &[]));
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_curve_says_where_nothing_is_gained_and_names_what_it_is_made_of() {
    let place = Place::new();
    demo_gallery(&place, usize::MAX);
    fit(&place, "ridge", "a.safetensors");
    place.json(&["transform", "a.safetensors", "old.npy", "-o", "adapted.npy", "--sigma", "sigma.npy"]);
    place.json(&["order", "--policy", "random", "--sigma", "sigma.npy", "-o", "order.npy"]);
    place.write_labels("one.npy", &[0; 1079]);
    let command = |new: &str, old: &str, labels: &str| {
        format!(
            "curve --new {new} --adapted {new} --old {old} --labels {labels} --order order.npy --bootstrap 0 --json"
        )
    };
    for (command, code, word) in [
        // The worse model takes the place of the better one.
        (command("old.npy", "new.npy", "labels.npy"), "no-gain", "Do not upgrade"),
        (command("new.npy", "old.npy", "one.npy"), "one-class", "the same label"),
    ] {
        let output = place.run(&words(&command, &[]));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(0) && said.contains("Warning: ") && said.contains(word),
            "{said}"
        );
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(value["warnings"][0]["code"], code);
    }
    let line = "curve --new new.npy --adapted adapted.npy --old old.npy --labels labels.npy --order order.npy --sigma sigma.npy \
                 --adapter a.safetensors --bootstrap 10";
    let value = place.json(&words(line, &[]));
    assert_eq!(value["warnings"], serde_json::json!([]));
    assert_eq!(
        (&value["area_interval"]["seed"], &value["area_interval"]["samples"]),
        (&Value::from(0), &Value::from(10))
    );
    assert_eq!(value["version"], env!("CARGO_PKG_VERSION"));
    let inputs = value["inputs"].as_array().unwrap();
    for role in ["new", "adapted", "old", "order", "sigma", "adapter", "labels"] {
        let input = inputs.iter().find(|input| input["role"] == role);
        assert!(
            input.is_some_and(|input| input["fingerprint"].as_str().unwrap().len() == 16),
            "{role}: {inputs:?}"
        );
    }
}

#[test]
fn a_curve_measures_in_the_space_of_its_adapter() {
    let place = Place::new();
    let (old, mut new) = (common::waves(80, 4, 1), common::waves(80, 4, 2));
    place.write_matrix("raw.npy", &new);
    new.normalise_rows();
    place.write_matrix("old.npy", &old);
    place.write_matrix("new.npy", &new);
    place.write_labels("labels.npy", &(0..80).map(|item| item % 7).collect::<Vec<_>>());
    place.write_labels("order.npy", &(0..80).collect::<Vec<_>>());
    place.run(&["fit", "--old", "old.npy", "--new", "new.npy", "--method", "ridge", "-o", "a.safetensors"]);
    place.json(&["transform", "a.safetensors", "old.npy", "-o", "adapted.npy"]);
    let curve = |new: &str, adapted: &str| {
        let fixed = "--labels labels.npy --order order.npy --bootstrap 0 --adapter a.safetensors";
        spoken(&place, &format!("curve --new {new} --adapted {adapted} {fixed}"))
    };
    let (code, said) = curve("new.npy", "adapted.npy");
    assert_eq!(code, Some(0), "{said}");
    for (new, adapted) in [("raw.npy", "adapted.npy"), ("new.npy", "raw.npy")] {
        let (code, said) = curve(new, adapted);
        assert!(code == Some(2) && said.contains("raw.npy, row 0 has length"), "{said}");
    }
}

#[test]
fn rows_whose_own_ids_contradict_each_other_are_not_paired() {
    let place = Place::new();
    let ids =
        |items: &[usize]| rehang_files::Ids::Texts(items.iter().map(|item| format!("item-{item}")).collect());
    let forth: Vec<usize> = (0..80).collect();
    let mut mixed = forth.clone();
    mixed.swap(3, 7);
    let (old, new) = (common::waves(80, 3, 1), common::waves(80, 4, 2));
    let write = |name: &str, matrix: &rehang_core::Matrix, rows: &[usize]| {
        rehang_files::write_matrix(place.path(name), &matrix.select(rows), Some(&ids(rows))).unwrap();
    };
    write("old.parquet", &old, &forth);
    write("new.parquet", &new, &forth);
    write("mixed.parquet", &new, &mixed);
    let by_id = "--old-ids old.parquet --new-ids mixed.parquet";
    let fit = |new: &str, more: &str| {
        spoken(&place, &format!("fit --old old.parquet --new {new} --method ridge {more} -o a.safetensors"))
    };
    let (code, said) = fit("mixed.parquet", "");
    assert!(code == Some(2) && said.contains("row 3") && said.contains("--old-ids"), "{said}");
    assert!(said.contains("\"item-3\" and \"item-7\""), "{said}");
    for (new, more) in [("new.parquet", ""), ("mixed.parquet", by_id)] {
        let (code, said) = fit(new, more);
        assert_ne!(code, Some(2), "{said}");
    }
    // Adapted vectors keep the ids of the old ones.
    place.json(&["transform", "a.safetensors", "old.parquet", "-o", "adapted.parquet"]);
    place.write_labels("order.npy", &(0..80).collect::<Vec<_>>());
    let curve = |new: &str, more: &str| {
        spoken(&place, &format!("curve --new {new} --adapted adapted.parquet --order order.npy {more}"))
    };
    let (code, said) = curve("mixed.parquet", "");
    assert!(code == Some(2) && said.contains("row 3") && said.contains("adapted.parquet"), "{said}");
    assert_eq!(curve("new.parquet", "").0, Some(0));
    assert_eq!(curve("mixed.parquet", by_id).0, Some(0));
}

#[test]
fn labels_groups_and_ids_may_come_in_several_files_and_groups_keep_their_names() {
    let place = Place::new();
    let (old, new) = (common::waves(80, 3, 1), common::waves(80, 4, 2));
    place.write_matrix("old.npy", &old);
    place.write_matrix("new.npy", &new);
    place.write_labels("order.npy", &(0..80).collect::<Vec<_>>());
    let lines = |range: std::ops::Range<usize>, line: &dyn Fn(usize) -> String| {
        range.map(|item| line(item) + "\n").collect::<String>().into_bytes()
    };
    let class = |item: usize| format!("class {}", item % 7);
    let group = |item: usize| if item.is_multiple_of(3) { "seldom".to_owned() } else { "often".to_owned() };
    let id = |item: usize| format!("i{item}");
    let kinds: [(&str, &dyn Fn(usize) -> String); 3] = [("labels", &class), ("groups", &group), ("ids", &id)];
    for (name, line) in kinds {
        place.write_bytes(&format!("{name}.txt"), &lines(0..80, line));
        place.write_bytes(&format!("{name}-0.txt"), &lines(0..30, line));
        place.write_bytes(&format!("{name}-1.txt"), &lines(30..80, line));
    }
    let curve = |more: &str| {
        let line = format!("curve --new new.npy --adapted new.npy --order order.npy --bootstrap 0 {more}");
        place.json(&words(&line, &[]))
    };
    let whole = curve("--labels labels.txt --groups groups.txt");
    let parts = curve(
        "--labels labels-0.txt --labels labels-1.txt --groups groups-0.txt --groups groups-1.txt --old-ids ids-0.txt --old-ids \
         ids-1.txt --new-ids ids.txt",
    );
    for key in ["area", "groups"] {
        assert_eq!(whole[key], parts[key], "{key}");
    }
    assert_eq!(whole["groups"][0]["name"], "seldom");
    assert_eq!(whole["groups"][1]["name"], "often");
    for (output, labels) in
        [("whole", "--labels labels.txt"), ("parts", "--labels labels-0.txt labels-1.txt")]
    {
        let (code, said) = spoken(
            &place,
            &format!("fit --old old.npy --new new.npy --method ridge {labels} -o {output}.safetensors"),
        );
        assert_ne!(code, Some(2), "{said}");
    }
    let bytes = |name: &str| fs_err::read(place.path(name)).unwrap();
    assert!(bytes("whole.safetensors") == bytes("parts.safetensors"));
    // Names in one file and numbers in another cannot be the same classes.
    let (code, said) = spoken(
        &place,
        "curve --new new.npy --adapted new.npy --order order.npy --labels labels-0.txt --labels order.npy",
    );
    assert!(
        code == Some(2) && said.contains("order.npy") && said.contains("write both in one way"),
        "{said}"
    );
}

#[test]
fn a_fit_is_chosen_by_queries_and_judgements_where_there_are_any() {
    let place = Place::new();
    let [old, new, _] = demo_gallery(&place, usize::MAX);
    let (old, new) = (read_matrix(&source(&old)).unwrap(), read_matrix(&source(&new)).unwrap());
    let rows = |from: usize, to: usize| (from..to).collect::<Vec<_>>();
    let (items, asked) = (rows(0, 300), rows(300, 340));
    place.write_matrix("items_old.npy", &old.select(&items));
    place.write_matrix("items_new.npy", &new.select(&items));
    place.write_matrix("asked_old.npy", &old.select(&asked));
    place.write_matrix("asked_new.npy", &new.select(&asked));
    let lines = |name: &str, text: String| place.write_bytes(name, text.as_bytes());
    lines("ids.txt", (0..300).map(|item| format!("d{item}\n")).collect());
    lines("query_ids.txt", (0..40).map(|query| format!("q{query}\n")).collect());
    // Right is every seventh item, for every query another seventh.
    let judged = (0..40).flat_map(|query| {
        (0..300).filter(move |item| item % 7 == query % 7).map(move |item| format!("q{query}\td{item}\t1\n"))
    });
    lines("qrels.tsv", judged.collect());
    let base = [
        "fit",
        "--old",
        "items_old.npy",
        "--new",
        "items_new.npy",
        "--method",
        "ridge",
        "-o",
        "a.safetensors",
    ];
    let queries = ["--queries-old", "asked_old.npy", "--queries-new", "asked_new.npy"];
    let qrels = ["--qrels", "qrels.tsv", "--ids", "ids.txt", "--query-ids", "query_ids.txt"];
    let fitted = |more: &[&[&str]]| place.json(&[&base[..], &more.concat()].concat())["held_out"].clone();
    assert_eq!(fitted(&[])["queries"], Value::Null);
    let agreeing = fitted(&[&queries]);
    assert_eq!(
        (&agreeing["queries"], &agreeing["criterion"]),
        (&serde_json::json!(40), &serde_json::json!("agreement@10"))
    );
    assert_eq!(fitted(&[&queries, &qrels])["criterion"], "nDCG@10");
    assert_eq!(fitted(&[&queries, &qrels, &["--for", "map"]])["criterion"], "mAP");
    // Options that are missing, and metrics that cannot be measured, are named.
    let refused = |more: &[&[&str]], word: &str| {
        let output = place.run(&[&base[..], &more.concat()].concat());
        assert_eq!(output.status.code(), Some(2));
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains(word), "{error}");
    };
    refused(&[&queries[..2]], "--queries-new");
    refused(&[&queries, &qrels[..2]], "--ids");
    refused(&[&["--for", "map"]], "agreement@10");
    refused(&[&["--for", "best"]], "top1");
    refused(&[&["--queries-old", "asked_new.npy", "--queries-new", "asked_new.npy"]], "--queries-old");
}

#[test]
fn a_mixture_of_two_models_is_told_vector_by_vector() {
    let place = Place::new();
    let [old, new, _] = demo_gallery(&place, 500);
    let (old, new) = (read_matrix(&source(&old)).unwrap(), read_matrix(&source(&new)).unwrap());
    let width = old.columns();
    // One vector of ten is the new model's, cut to the width of the old one's.
    let is_new = |row: usize| row % 10 == 4;
    let mixed = place.write_matrix(
        "mixed.npy",
        &rehang_core::Matrix::from_fn(500, width, |row, column| {
            if is_new(row) { new.row(row)[column] } else { old.row(row)[column] }
        }),
    );
    let (old, new) = (place.write_matrix("a.npy", &old), place.write_matrix("b.npy", &new));
    let models = [format!("old={old}"), format!("new={new}")];
    let line = ["identify", &mixed, "--json", "-o", "others.tsv", "--models", &models[0], &models[1]];
    let output = place.run(&line);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), found["origin"].as_str()), (Some(1), Some("mixed")));
    assert_eq!((&found["models"][0]["made"], &found["models"][1]["made"]), (&450.into(), &50.into()));
    let list = fs_err::read_to_string(place.path("others.tsv")).unwrap();
    let expected: String = (0..500).filter(|&row| is_new(row)).map(|row| format!("{row}\tnew\n")).collect();
    assert_eq!(list, expected);
    // All of one model: nothing to say.
    place.json(&["identify", &old, "--models", &models[0], &models[1]]);
    let text = String::from_utf8(place.run(&["identify", &old, "--models", &models[1]]).stdout).unwrap();
    assert!(text.contains("None of these models made any"), "{text}");
    let refused = place.run(&["identify", &old, "--models", "old"]);
    assert_eq!(refused.status.code(), Some(2));
}
