//! `rehang-lab evaluate`: on the demo's real vectors against `rehang curve`, on small files against numbers
//! made by hand, and with bad input of every kind.

use rehang_core::{Adapter, Distance, Matrix, Space};
use rehang_files::{VectorSource, read_matrix};
use serde_json::{Value, json};

use crate::common::{Place, demo, demo_gallery, faults_of_refusal, waves, words};

fn source(path: &str) -> VectorSource {
    VectorSource::parse(path).unwrap()
}

fn near(left: &Value, right: &Value) -> bool {
    (left.as_f64().unwrap() - right.as_f64().unwrap()).abs() < 1e-9
}

fn run(place: &Place, command: &str) -> Value {
    place.json(&words(command, &[]))
}

fn text(place: &Place, command: &str) -> String {
    let output = place.run(&words(command, &[]));
    assert_eq!(output.status.code(), Some(0), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn cross_and_refresh_and_sequence_agree_with_the_curve() {
    let place = Place::new();
    let [old, new, _] = demo_gallery(&place, 400);
    // The new model is wider, and a curve wants one width: a part of it is a model, too.
    let (old, new) = (read_matrix(&source(&old)).unwrap(), read_matrix(&source(&new)).unwrap());
    assert!(old.columns() < new.columns());
    place.write_matrix(
        "new.npy",
        &Matrix::from_fn(new.rows(), old.columns(), |row, column| new.row(row)[column]),
    );
    place.write_labels("order.npy", &(0..400).map(|item| item * 7 % 400).collect::<Vec<_>>());
    let curve = run(
        &place,
        "curve --new new.npy --adapted old.npy --old old.npy --labels labels.npy --order order.npy -k 3 --grid 3",
    );

    let cross = run(&place, "evaluate cross --models o=old.npy n=new.npy --labels labels.npy -k 3 --best n");
    let matrix = |metric: &str| cross["metrics"][metric]["matrix"].clone();
    for (metric, ours) in [("top1", "top1"), ("top5", "top5"), ("map", "map")] {
        assert!(near(&matrix(ours)[0][0], &curve["do_nothing"][metric]), "{metric}");
        assert!(near(&matrix(ours)[1][0], &curve["start"][metric]), "{metric}");
        assert!(near(&matrix(ours)[1][1], &curve["end"][metric]), "{metric}");
    }
    assert!(near(&matrix("map_at")[1][1], &curve["map@3"]["end"]));
    let pair = &cross["metrics"]["map"]["pairs"][0];
    let (today, switched) = (matrix("map")[0][0].as_f64().unwrap(), matrix("map")[1][0].as_f64().unwrap());
    assert_eq!(pair["criterion_met"], switched > today);
    assert!(near(&pair["absolute_gain"], &json!(switched - today)));
    assert_eq!(pair["gain_down"], 0.0);
    let [low, high] = [0, 1].map(|side| pair["absolute_gain_interval"][side].as_f64().unwrap());
    assert!(low <= switched - today && switched - today <= high);

    let refresh = run(
        &place,
        "evaluate refresh --models o=old.npy n=new.npy --labels labels.npy --orders a=order.npy -k 3 --grid 3",
    );
    let metrics = &refresh["orders"][0]["metrics"];
    assert_eq!(refresh["orders"][0]["cuts"], json!([0, 200, 400]));
    for place in 0..3 {
        assert!(near(&metrics["map"]["values"][place], &curve["grid"]["map"][place]));
        assert!(near(&metrics["top1"]["values"][place], &curve["grid"]["top1"][place]));
    }
    assert!(near(&metrics["map_at"]["area"], &curve["map@3"]["area"]));
    let flips = &curve["flips"];
    for (line, depth) in [("nfr1", "top1"), ("nfr5", "top5")] {
        assert!(near(&metrics[line]["area"], &flips[depth]["negative_flip_rate_area"]));
        assert!(near(&metrics[line]["values"][1], &flips[depth]["negative_flip_rate"][2]));
    }

    let sequence = run(
        &place,
        "evaluate sequence --models o=old.npy n=new.npy --labels labels.npy --orders n=order.npy --backfilled 0.5",
    );
    let step = &sequence["steps"][1];
    assert_eq!((&step["backfilled"], &step["native"]), (&json!(200), &json!(200)));
    assert!(near(&step["no_refresh"]["map"], &curve["start"]["map"]));
    assert!(near(&step["hot_end"]["map"], &curve["grid"]["map"][1]));
    assert!(near(&step["full"]["map"], &curve["end"]["map"]));

    // Through an adapter that changes nothing it is the same; into the first model's space there is none.
    let space = |name| Space::new(name, old.columns(), Distance::Cosine, false);
    let psi = Adapter::identity(space("o"), space("n"), None).unwrap();
    rehang_files::adapter_file::save(&psi, place.path("psi.safetensors")).unwrap();
    let through = "evaluate sequence --models o=old.npy n=new.npy --labels labels.npy --orders n=order.npy --backfilled 0.5 --adapters";
    let with = run(&place, &format!("{through} n=psi.safetensors"));
    assert_eq!(with["steps"], sequence["steps"]);
    let refused = format!("{through} o=psi.safetensors");
    let output = place.run(&words(&refused, &[]));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && said.contains("--adapters"), "{said}");
}

#[test]
fn separate_queries_widths_and_judgements() {
    let place = Place::new();
    place.write_matrix("old.npy", &waves(30, 3, 1));
    place.write_matrix("new.npy", &waves(30, 5, 2));
    place.write_matrix("q-old.npy", &waves(8, 3, 3));
    place.write_matrix("q-new.npy", &waves(8, 5, 4));
    place.write_labels("labels.npy", &(0..30).map(|item| item % 4).collect::<Vec<_>>());
    place.write_labels("q-labels.npy", &(0..8).map(|item| item % 5).collect::<Vec<_>>());
    let common = "--models old=old.npy new=new.npy --queries new=q-new.npy old=q-old.npy --bootstrap 0";
    let labelled =
        run(&place, &format!("evaluate cross {common} --labels labels.npy --query-labels q-labels.npy"));
    assert_eq!(labelled["width_rules"], json!([["same", "zero-padded"], ["first-coordinates", "same"]]));
    assert_eq!(labelled["queries"]["without_positives"], 1);
    assert!(labelled["metrics"]["map"]["pairs"][0].get("absolute_gain_interval").is_none());
    // The right answers are given once more as judgements.
    let ids = |count: usize, letter: char| (0..count).map(|id| format!("{letter}{id}\n")).collect::<String>();
    place.write_bytes("ids.txt", ids(30, 'i').as_bytes());
    place.write_bytes("q-ids.txt", ids(8, 'q').as_bytes());
    let judged: String = (0..8_usize)
        .flat_map(|query| (0..30_usize).map(move |item| (query, item)))
        .filter(|(query, item)| query % 5 == item % 4)
        .map(|(query, item)| format!("q{query}\ti{item}\t1\n"))
        .collect();
    place.write_bytes("qrels.tsv", judged.as_bytes());
    let judged = run(
        &place,
        &format!("evaluate cross {common} --qrels qrels.tsv --ids ids.txt --query-ids q-ids.txt"),
    );
    for (metric, values) in labelled["metrics"].as_object().unwrap() {
        assert_eq!(&judged["metrics"][metric], values, "{metric}");
    }
    // Judgements are graded, so gains and recall have a meaning.
    assert!(judged["metrics"]["ndcg_at"].is_object() && judged["metrics"]["recall_at"].is_object());
    let said =
        text(&place, &format!("evaluate cross {common} --labels labels.npy --query-labels q-labels.npy"));
    for word in ["mAP@10", "Widths differ", "old → new", "criterion", "Γ %", "Δ↓ %", "1 without"] {
        assert!(said.contains(word), "{word:?} is missing in:\n{said}");
    }
}

#[test]
fn items_that_join_later_and_one_share_for_each_upgrade() {
    let place = Place::new();
    for (seed, name) in ["a.npy", "b.npy", "c.npy"].into_iter().enumerate() {
        place.write_matrix(name, &waves(40, 4, seed));
    }
    place.write_labels("labels.npy", &(0..40).map(|item| item % 5).collect::<Vec<_>>());
    place.write_labels(
        "joined.npy",
        &(0..40).map(|item| i64::from(item >= 20) + i64::from(item >= 30)).collect::<Vec<_>>(),
    );
    let command = "evaluate sequence --models a=a.npy b=b.npy c=c.npy --labels labels.npy --joined joined.npy \
                   --backfilled 0.5 1";
    let result = run(&place, command);
    let column = |name: &str| -> Vec<Value> {
        result["steps"].as_array().unwrap().iter().map(|step| step[name].clone()).collect()
    };
    assert_eq!(column("items"), [20, 30, 40].map(|count| json!(count)));
    // Half of the first 20, then everything that is not yet by c.
    assert_eq!(column("backfilled"), [0, 10, 30].map(|count| json!(count)));
    assert_eq!(column("native"), [20, 20, 40].map(|count| json!(count)));
    assert_eq!(column("hot_end")[2], column("full")[2]);
    let said = text(&place, command);
    assert!(said.contains("no-refresh") && said.lines().any(|line| line.starts_with('c')), "{said}");
}

const METADATA: &str = "TEMPLATE_ID,SUBJECT_ID,FILENAME,MEDIA_ID\n\
    1,70,a.jpg,\n1,70,b.jpg,\n2,70,c.jpg,\n3,80,d.jpg,\n4,80,e.jpg,\n5,90,f.jpg,\n";

/// Writes three persons: 70 along x, 80 along y, 90 the other way. The old model takes template 2 (person 70)
/// for person 80.
fn faces(place: &Place) {
    let new = [[1.0, 0.1], [1.0, -0.1], [2.0, 0.0], [0.0, 1.0], [0.1, 1.0], [-1.0, 0.3]];
    let old = [[1.0, 0.1], [1.0, -0.1], [0.2, 1.0], [0.0, 1.0], [0.1, 1.0], [-1.0, 0.3]];
    let write = |name: &str, rows: [[f32; 2]; 6]| {
        place.write_matrix(name, &Matrix::new(2, rows.concat()).unwrap());
    };
    write("new.npy", new);
    write("old.npy", old);
    place.write_bytes("faces.csv", METADATA.as_bytes());
    place.write_bytes("pairs.csv", b"1,2\n3,4\n1,3\n1,4\n2,3\n2,4\n1,5\n");
    place.write_bytes("gallery.csv", b"TEMPLATE_ID,SUBJECT_ID\n1,70\n3,80\n");
    place.write_bytes("probes.csv", b"TEMPLATE_ID\n2\n4\n5\n");
}

#[test]
fn verification_gives_the_numbers_made_by_hand() {
    let place = Place::new();
    faces(&place);
    let command = "evaluate verification --models old=old.npy new=new.npy --metadata faces.csv --pairs pairs.csv \
                   --far 0.2 0.01";
    let result = run(&place, command);
    assert_eq!((&result["genuine"], &result["impostors"]), (&json!(2), &json!(5)));
    // One impostor of five may pass, so the second best one decides. To the old model pairs 2,3 and 2,4 look
    // alike (0.98 and 0.995): of its genuine pairs 3,4 (0.995) is above 0.98, and 1,2 (0.196) is not.
    // Elsewhere 0.995 or 0.0995 decides, and both are above.
    let rates = result["rates"].as_array().unwrap();
    assert_eq!(rates[0]["tar"]["matrix"], json!([[50.0, 100.0], [100.0, 100.0]]));
    assert_eq!(rates[0]["tar"]["pairs"][0]["criterion_met"], true);
    assert_eq!(rates[0]["points"][0][0]["far_reached"], 0.2);
    // A hundredth cannot be seen with five impostors.
    assert_eq!(rates[1]["tar"], Value::Null);
    let said = text(&place, command);
    assert!(said.contains("undefined") && said.contains("TAR@FAR=0.2,"), "{said}");

    // By file name the rows may stand in any order.
    let names = ["f.jpg", "e.jpg", "d.jpg", "c.jpg", "b.jpg", "a.jpg"];
    place.write_bytes("names.txt", names.join("\n").as_bytes());
    for name in ["old", "new"] {
        let matrix = read_matrix(&source(&place.text(&format!("{name}.npy")))).unwrap();
        place.write_matrix(&format!("{name}-turned.npy"), &matrix.select(&[5, 4, 3, 2, 1, 0]));
    }
    let turned = run(
        &place,
        "evaluate verification --models old=old-turned.npy new=new-turned.npy --metadata faces.csv --pairs pairs.csv \
         --far 0.2 0.01 --names names.txt",
    );
    assert_eq!(turned["rates"], result["rates"]);
}

#[test]
fn identification_gives_the_numbers_made_by_hand() {
    let place = Place::new();
    faces(&place);
    let command = "evaluate identification --models old=old.npy new=new.npy --metadata faces.csv --gallery gallery.csv \
                   --probes probes.csv --fpir 1 0.1";
    let result = run(&place, command);
    // The persons of probes 2 and 4 are enrolled, that of probe 5 is not. By the old model probe 2 is nearest
    // to person 80, who is somebody else; the new model finds the right person for both.
    for metric in ["rank-1", "TPIR@FPIR=1"] {
        assert_eq!(result["metrics"][metric]["matrix"], json!([[50.0, 50.0], [100.0, 100.0]]), "{metric}");
    }
    assert_eq!(result["metrics"]["rank-5"]["matrix"], json!([[100.0, 100.0], [100.0, 100.0]]));
    assert_eq!(result["metrics"]["TPIR@FPIR=0.1"], Value::Null);
    let pair = &result["metrics"]["rank-1"]["pairs"][0];
    assert_eq!((&pair["criterion_met"], &pair["update_gain"]), (&json!(true), &json!(100.0)));
    assert_eq!(result["galleries"][0]["results"][1][1]["mated"], 2);
    // Two galleries: the mean of both. In the second one only person 80 is enrolled, as template 3.
    place.write_bytes("second.csv", b"3\n");
    let both = run(&place, &command.replace("gallery.csv", "gallery.csv second.csv"));
    assert_eq!(both["metrics"]["rank-1"]["matrix"][0][0], 75.0);
    let said = text(&place, command);
    assert!(said.contains("2 are enrolled and 1 are not") && said.contains("rank-5"), "{said}");
    // Person 90 alone asks, and is enrolled nowhere: that is why, and not that there are too few strangers.
    place.write_bytes("strangers.csv", b"5\n");
    let said = text(&place, &command.replace("probes.csv", "strangers.csv"));
    assert!(said.contains("TPIR@FPIR=1: undefined, no probe's subject is enrolled in gallery.csv"), "{said}");
}

#[test]
fn landmarks_give_the_numbers_made_by_hand() {
    let place = Place::new();
    let line =
        |name: &str, values: &[f32]| place.write_matrix(name, &Matrix::new(1, values.to_vec()).unwrap());
    line("index.npy", &[1.0, 2.0, 3.0, 4.0, 5.0]);
    line("q.npy", &[0.0, 6.0]);
    place.write_bytes("ids.txt", b"a\nb\nc\nd\ne\n");
    place.write_bytes("q-ids.txt", b"q0\nq1\n");
    place.write_bytes("solution.csv", b"id,images,Usage\nq0,a c,Private\nq1,None,Public\n");
    let common = "evaluate landmarks --distance l2 --models m=index.npy --queries m=q.npy --ids ids.txt --query-ids q-ids.txt";
    let result = run(&place, &format!("{common} --solution solution.csv -k 2"));
    // Ranks 1 and 3, looked at to depth 2.
    assert_eq!(result["metrics"]["map_at"]["matrix"], json!([[50.0]]));
    assert_eq!(result["queries"]["without_positives"], 1);
    let private = run(&place, &format!("{common} --solution solution.csv -k 2 --usage private"));
    assert_eq!((&private["queries"]["given"], &private["metrics"]), (&json!(1), &result["metrics"]));

    place.write_bytes(
        "truth.json",
        br#"{"queries": ["q0"], "gallery": ["e", "d", "c", "b", "a"],
             "ground_truth": [{"easy": ["b"], "hard": [1], "junk": ["a"]}]}"#,
    );
    let result = run(&place, &format!("{common} --ground-truth truth.json"));
    let map = |setup: &str| result["setups"][setup]["map"]["matrix"][0][0].as_f64().unwrap();
    assert_eq!((map("easy"), map("hard")), (100.0, 25.0));
    assert!((map("medium") - 100.0 * (1.0 + 7.0 / 12.0) / 2.0).abs() < 1e-9);
    let said = text(&place, &format!("{common} --ground-truth truth.json"));
    assert!(said.contains("medium, mAP, 1 queries") && said.contains("79.17"), "{said}");
}

#[test]
fn bad_input_gets_one_clear_error() {
    let place = Place::new();
    faces(&place);
    place.write_matrix("short.npy", &Matrix::zeros(5, 2));
    place.write_labels("labels.npy", &[0, 0, 1, 1, 2, 2]);
    place.write_labels("short-labels.npy", &[0, 0, 1]);
    place.write_labels("order.npy", &[0, 1, 2, 3, 4, 5]);
    place.write_labels("joined.npy", &[0, 0, 0, 1, 1, 7]);
    place.write_labels("negative.npy", &[0, 0, 0, 1, 1, -1]);
    place.write_bytes("unknown-pairs.csv", b"1,2\n1,99\n");
    place.write_bytes("no-header.csv", b"1,70\n2,70\n");
    place.write_bytes("truth.json", b"{\"queries\": []}");
    place.write_bytes("ids.txt", b"a\nb\nc\nd\ne\nf\n");
    place.write_bytes("solution.csv", b"id,images\na,zz\nb,c\nc,c\nd,c\ne,c\nf,c\n");
    place.write_bytes("good-solution.csv", b"id,images\na,b\nb,c\nc,c\nd,c\ne,c\nf,c\n");
    let before = place.names();
    let both = "--models old=old.npy new=new.npy";
    let cases: &[(&str, &[&str])] = &[
        ("cross --models old.npy new=new.npy --labels labels.npy", &["--models", "NAME=FILE"]),
        ("cross --models a=old.npy a=new.npy --labels labels.npy", &["--models", "\"a\""]),
        ("cross --models old=old.npy new=none.npy --labels labels.npy", &["none.npy"]),
        ("cross --models old=old.npy new=short.npy --labels labels.npy", &["new", "5", "6"]),
        ("cross BOTH --labels short-labels.npy", &["labels", "3", "6"]),
        ("cross BOTH --labels labels.npy --best best", &["--best", "best", "old, new"]),
        ("cross BOTH --labels labels.npy --distance manhattan", &["manhattan"]),
        ("cross BOTH --labels labels.npy -k 0", &["-k"]),
        (
            "cross BOTH --labels labels.npy --queries old=old.npy --query-labels labels.npy",
            &["--queries new="],
        ),
        ("cross BOTH --labels labels.npy --queries old=old.npy new=new.npy", &["--query-labels"]),
        ("refresh BOTH --labels labels.npy --orders a=none.npy", &["none.npy"]),
        ("refresh BOTH --labels labels.npy --grid 1", &["--grid"]),
        ("refresh --models old=old.npy --labels labels.npy", &["--models", "two models"]),
        ("refresh BOTH --labels labels.npy --orders a=labels.npy", &["labels.npy"]),
        ("sequence BOTH --labels labels.npy --backfilled 1.5", &["new", "1.5", "0 to 1"]),
        ("sequence BOTH --labels labels.npy --backfilled 1 1 1", &["--backfilled", "1 upgrades"]),
        ("sequence BOTH --labels labels.npy --joined joined.npy", &["7", "0 to 1"]),
        ("sequence BOTH --labels labels.npy --joined negative.npy", &["--joined", "-1"]),
        ("sequence BOTH --labels labels.npy --orders other=order.npy", &["--orders", "other"]),
        ("verification BOTH --metadata none.csv --pairs pairs.csv", &["none.csv"]),
        (
            "verification BOTH --metadata no-header.csv --pairs pairs.csv",
            &["no-header.csv", "line 1", "TEMPLATE_ID"],
        ),
        (
            "verification BOTH --metadata faces.csv --pairs unknown-pairs.csv",
            &["unknown-pairs.csv", "99", "line 2"],
        ),
        ("verification BOTH --metadata faces.csv --pairs pairs.csv --far 0", &["rate", "0"]),
        ("verification --models a=short.npy --metadata faces.csv --pairs pairs.csv", &["5", "6"]),
        ("verification BOTH --metadata faces.csv --pairs pairs.csv --names ids.txt", &["a.jpg", "line 2"]),
        ("identification BOTH --metadata faces.csv --gallery gallery.csv --probes none.csv", &["none.csv"]),
        (
            "identification BOTH --metadata faces.csv --gallery pairs.csv --probes probes.csv",
            &["pairs.csv", "TEMPLATE_ID"],
        ),
        (
            "identification BOTH --metadata faces.csv --gallery gallery.csv --probes probes.csv --candidates 0",
            &["--candidates"],
        ),
        (
            "identification BOTH --metadata faces.csv --gallery gallery.csv --probes probes.csv --fpir 2",
            &["rate", "2"],
        ),
        (
            "landmarks BOTH --queries old=old.npy new=new.npy --ground-truth truth.json",
            &["truth.json", "gallery"],
        ),
        (
            "landmarks BOTH --queries old=old.npy new=new.npy --solution solution.csv --ids ids.txt --query-ids ids.txt",
            &["solution.csv", "zz", "line 2"],
        ),
        (
            "landmarks BOTH --queries old=old.npy new=new.npy --solution good-solution.csv --ids ids.txt --query-ids ids.txt --usage Private",
            &["--usage", "Private"],
        ),
        (
            "landmarks BOTH --queries old=old.npy new=short.npy --solution good-solution.csv --ids ids.txt --query-ids ids.txt",
            &["queries of new", "5"],
        ),
    ];
    let mut failures = Vec::new();
    for (command, says) in cases {
        let command = format!("evaluate {}", command.replace("BOTH", both));
        let output = place.run(&words(&command, &[]));
        failures.extend(faults_of_refusal(&command, &output, says, (&place, &before)));
        if place.names() != before {
            break;
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn every_verb_explains_itself() {
    let place = Place::new();
    for verb in ["cross", "refresh", "sequence", "verification", "identification", "landmarks"] {
        let said = text(&place, &format!("evaluate {verb} --help"));
        assert!(said.contains("Example: rehang-lab evaluate") && said.contains("NAME=FILE"), "{said}");
    }
}

#[test]
fn rows_take_a_part_of_the_files() {
    let place = Place::new();
    demo_gallery(&place, 400);
    let [old, new, label, role] = ["old.npy", "new.npy", "label.npy", "role.npy"].map(demo);
    let chosen = run(
        &place,
        &format!("evaluate cross --models o={old} n={new} --labels {label} --rows {role}=1 --bootstrap 0"),
    );
    assert_eq!(chosen["queries"]["given"], 1079);
    // All of role 1, where the files of the test have its first 400 only.
    let part = run(&place, "evaluate cross --models o=old.npy n=new.npy --labels labels.npy --bootstrap 0");
    assert_eq!(part["queries"]["given"], 400);
}
