//! Upgrade that goes by what people took from the answers, as ten lines compute it; and floors, as counting
//! pair by pair does.

use std::fmt::Write as _;

use rehang_core::{Distance, Matrix};
use rehang_files::{VectorSource, read_matrix};
use serde_json::Value;

use crate::auto::{Made, noisy, place, read};
use crate::common::{Place, demo};
use crate::stub::{Reply, Seen, Stub, good_of};

/// Number of items of the gallery, and the rows of the demo that ask.
pub const ITEMS: usize = 1000;
pub const ASKED: std::ops::Range<usize> = 1000..1200;
/// Number of an item that no gallery has.
const GONE: usize = 5000;

/// Starts a service with both models: a text `row:N` is row N of the demo, of which the old model has no two
/// alike.
pub fn service() -> Stub {
    service_beside(|_| None)
}

/// Starts a service with both models. A reply of `other`, where it has one, comes before theirs.
pub fn service_beside(other: impl Fn(&Seen) -> Option<Reply> + Send + Sync + 'static) -> Stub {
    let vectors = [("first", noisy()), ("second", read("new.npy"))];
    Stub::start(move |_, seen| {
        if let Some(reply) = other(seen) {
            return reply;
        }
        let (_, rows) = vectors.iter().find(|(model, _)| seen.body["model"] == *model).unwrap();
        // Any other text asks whether the service is well.
        let row = |text: &str| text.strip_prefix("row:").map_or(0, |row| row.parse().unwrap());
        Reply::Body(good_of(seen, |text| rows.row(row(text)).to_vec(), |_| {}))
    })
}

fn gallery(url: &str) -> Place {
    let place = place(&Made { encoder: "", old: noisy, ..Made::with_items(ITEMS) });
    let config = fs_err::read_to_string(place.path("rehang.toml")).unwrap();
    let service = |model: &str| {
        format!("kind = \"http\"\nurl = \"{url}\"\nmodel = \"{model}\"\nrevision = \"1\"\nbatch = 64\n")
    };
    let config = format!("{config}\n{}[old.encoder]\n{}", service("second"), service("first"));
    place.write_bytes("rehang.toml", config.as_bytes());
    place
}

/// Clicks, by query, item and position: thirty items of the query's class at most, and one that is gone.
pub fn clicked() -> Vec<(usize, usize, u32)> {
    let classes = rehang_files::read_labels(&VectorSource::path(demo("label.npy"))).unwrap();
    let mut clicks = Vec::new();
    for query in ASKED {
        let alike: Vec<usize> = (0..ITEMS).filter(|&item| classes[item] == classes[query]).collect();
        let taken = (0..30).map(|take| alike[(7 * query + 13 * take) % alike.len()]);
        let mut taken: Vec<usize> = taken.collect();
        taken.sort_unstable();
        taken.dedup();
        clicks.extend(
            taken.into_iter().enumerate().map(|(at, item)| (query, item, 1 + (at as u32 * query as u32) % 9)),
        );
        clicks.push((query, GONE, 1));
    }
    clicks
}

/// Computes nDCG@10 of the clicks in percent, by sorting; queries without a click in the gallery do not
/// count.
pub fn twin(gallery: &Matrix, queries: &Matrix, clicks: &[(usize, usize, u32)]) -> f64 {
    let discounted = |gains: &[f64]| -> f64 {
        (1..=10).zip(gains).map(|(rank, gain)| gain / (1.0 + f64::from(rank)).log2()).sum()
    };
    let (mut sum, mut counted) = (0.0, 0.0);
    for (row, query) in ASKED.enumerate() {
        let mut gains = vec![0.0; ITEMS];
        for (_, item, position) in clicks.iter().filter(|click| click.0 == query && click.1 < ITEMS) {
            gains[*item] += (1.0 + f64::from(*position)).log2();
        }
        let mut ranked: Vec<(f64, f64)> = (0..ITEMS)
            .map(|item| (Distance::Cosine.between(queries.row(row), gallery.row(item)), gains[item]))
            .collect();
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
        gains.sort_by(|a, b| b.total_cmp(a));
        if gains[0] > 0.0 {
            sum += discounted(&ranked.iter().map(|one| one.1).collect::<Vec<_>>()) / discounted(&gains);
            counted += 1.0;
        }
    }
    100.0 * sum / counted
}

pub fn csv(clicks: &[(usize, usize, u32)]) -> String {
    clicks.iter().fold("query,item,position\n".to_owned(), |text, (query, item, position)| {
        text + &format!("row:{query},i{item},{position}\n")
    })
}

#[test]
fn an_upgrade_speaks_by_ndcg_of_what_people_took_as_ten_lines_compute_it() {
    let stub = service();
    let place = gallery(&stub.url);
    let clicks = clicked();
    place.write_bytes("clicks.csv", csv(&clicks).as_bytes());
    let pairs = ["upgrade", "pairs", "--items", "600", "--worth", "0", "--clicks", "clicks.csv"];
    let drawn = place.json(&pairs);
    assert_eq!(drawn["queries"], ASKED.len());
    let of_gallery = clicks.iter().filter(|click| click.1 != GONE).count();
    assert_eq!(
        (&drawn["clicks"]["kept"], &drawn["clicks"]["unknown_items"]),
        (&of_gallery.into(), &ASKED.len().into())
    );
    let fitted = place.json(&["upgrade", "fit", "--method", "ridge", "-o", "map.safetensors"]);
    let selection = &fitted["held_out"];
    assert_eq!((&selection["criterion"], &selection["queries"]), (&"nDCG@10".into(), &ASKED.len().into()));
    assert_eq!(place.json(&["upgrade", "order", "--for", "ndcg@10"])["choice"]["criterion"], "nDCG@10");
    assert_eq!(place.json(&["upgrade", "bridge"])["choice"]["criterion"], "nDCG@10");

    let made = place.json(&["upgrade", "report"]);
    let report = &made["data"];
    assert_eq!(report["metrics"][0]["id"], "ndcg@10", "it carries the verdict");
    let rows: Vec<usize> = ASKED.collect();
    let items: Vec<usize> = (0..ITEMS).collect();
    let (old, new) = (noisy().select(&rows), read("new.npy").select(&rows));
    let today = twin(&noisy().select(&items), &old, &clicks);
    let number = |value: &Value| value.as_f64().unwrap();
    assert!(
        (number(&report["do_nothing"]["ndcg@10"]) - today).abs() < 1e-6,
        "{today} {}",
        report["do_nothing"]
    );
    let adapter = fitted["adapter"].as_str().unwrap();
    place.json(&["transform", adapter, "old.npy", "-o", "adapted.npy"]);
    let adapted = read_matrix(&VectorSource::path(place.path("adapted.npy"))).unwrap();
    let switch = twin(&adapted, &new, &clicks);
    let curve = &report["curves"][report["headline"].as_u64().unwrap() as usize]["metrics"]["ndcg@10"];
    assert!((number(&curve["start"]) - switch).abs() < 1e-3, "{switch} {}", curve["start"]);
    // The end is an estimate from the held-out items, and its range holds what all items would give.
    let end = twin(&read("new.npy").select(&items), &new, &clicks);
    let last = |edge: &str| number(curve["band"][edge].as_array().unwrap().last().unwrap());
    assert!(last("low") <= end && end <= last("high"), "{end} {} {}", last("low"), last("high"));

    // Report, plan and status say it first.
    let said = String::from_utf8(place.run(&["upgrade", "report"]).stdout).unwrap();
    assert!(said.contains("nDCG@10 of ridge · ") && said.contains("\nmAP: do nothing "), "{said}");
    let plan = place.json(&["upgrade", "plan"]);
    for forecast in [&plan["forecast"], &place.json(&["upgrade", "status"])["forecast"]] {
        assert_eq!(forecast["metric"], "nDCG@10");
        assert!((number(&forecast["do_nothing"]) - today).abs() < 1e-6);
        let others: Vec<&str> = forecast["others"]
            .as_array()
            .unwrap()
            .iter()
            .map(|other| other["metric"].as_str().unwrap())
            .collect();
        assert_eq!(others, ["mAP", "Top-1"]);
    }

    // Queries that are known cost nothing with other clicks; `auto` fits by the clicks.
    let texts = || stub.seen().iter().flat_map(Seen::texts).filter(|text| text.starts_with("row:1")).count();
    let before = texts();
    let half: Vec<_> = clicks.iter().copied().filter(|click| click.1 % 2 == 0).collect();
    let mut json = String::new();
    for (query, item, position) in &half {
        writeln!(json, "{{\"query\": \"row:{query}\", \"item\": \"i{item}\", \"position\": {position}}}")
            .unwrap();
    }
    place.write_bytes("half.jsonl", json.as_bytes());
    let again = place.json(&["upgrade", "report", "--clicks", "half.jsonl"]);
    let today = twin(&noisy().select(&items), &old, &half);
    assert!((number(&again["data"]["do_nothing"]["ndcg@10"]) - today).abs() < 1e-6, "{today}");
    assert_eq!(texts(), before, "nothing is embedded twice");
    let auto = place.json(&["upgrade", "auto", "--method", "ridge", "--clicks", "half.jsonl"]);
    let steps: Vec<&Value> = auto["steps"].as_array().unwrap().iter().map(|step| &step["step"]).collect();
    assert_eq!(steps, ["fit", "report", "plan"]);
    assert_eq!(texts(), before);
}

#[test]
fn clicks_may_name_queries_by_id_and_what_names_nothing_is_refused_before_it_costs() {
    let stub = service();
    let place = gallery(&stub.url);
    let queries = ASKED.fold(String::new(), |text, row| {
        text + &format!("{{\"id\": \"q{row}\", \"text\": \"row:{row}\"}}\n")
    });
    place.write_bytes("queries.jsonl", queries.as_bytes());
    let by_id = |name: &str| {
        let text = csv(&clicked()).replace("row:", "q");
        place.write_bytes(name, (text + "q1,i5,1\n").as_bytes());
    };
    by_id("clicks.csv");
    for (file, text, said) in [
        ("empty.csv", "", "empty"),
        ("headless.csv", "q1000,i3,1\n", "either weight or position"),
        ("nan.csv", "query,item,weight\nq1000,i3,NaN\n", "line 2: its weight \"NaN\""),
        ("items.csv", "query,item,weight\nq1000,x3,1\n", "none of its 1 clicks is of an item"),
        ("queries.csv", "query,item,weight\nz,i3,1\n", "none of its 1 clicks is of a query"),
    ] {
        place.write_bytes(file, text.as_bytes());
        let output = place.run(&["upgrade", "pairs", "--queries", "queries.jsonl", "--clicks", file]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(said), "{file}: {error}");
    }
    assert!(stub.seen().is_empty(), "nothing was paid for");
    let asked = ["--queries", "queries.jsonl", "--clicks", "clicks.csv"];
    let drawn = place.json(&[&["upgrade", "pairs", "--items", "300", "--worth", "0"], &asked[..]].concat());
    assert_eq!((&drawn["queries"], &drawn["clicks"]["unknown_queries"]), (&ASKED.len().into(), &1.into()));
    place.json(&["upgrade", "fit", "--method", "ridge"]);
    let report = place.json(&["upgrade", "report"]);
    assert_eq!(report["data"]["metrics"][0]["id"], "ndcg@10");
    // Queries come alone again: what was clicked says nothing any more.
    place.json(&["upgrade", "pairs", "--items", "300", "--worth", "0", "--queries", "queries.jsonl"]);
    assert_eq!(place.json(&["upgrade", "report"])["data"]["metrics"][0]["id"], "agreement@10");
}

/// Gives the floor that lets as many answers through as `floor` does today, and the part of today's answers
/// that does not come through, pair by pair.
fn carried(today: &[f64], then: &[f64], floor: f64) -> (f64, f64) {
    let passes = |distance: f64| distance <= 1.0 - floor;
    let answers = today.iter().filter(|&&distance| passes(distance)).count();
    let mut sorted = then.to_vec();
    sorted.sort_by(f64::total_cmp);
    let limit = sorted[answers - 1];
    let kept = today.iter().zip(then).filter(|&(&today, &then)| passes(today) && then <= limit).count();
    (1.0 - limit, 1.0 - kept as f64 / answers as f64)
}

#[test]
fn thresholds_are_those_of_counting_pair_by_pair() {
    let place = place(&Made { old: noisy, ..Made::with_items(ITEMS) });
    place.finish(&["upgrade", "pairs", "--items", "400", "--worth", "0", "--out", "pairs"]);
    let fitted = place.json(&["upgrade", "fit", "--method", "ridge", "-o", "map.safetensors"]);
    place.json(&["transform", "map.safetensors", "old.npy", "-o", "adapted.npy"]);
    let file = |name: &str| read_matrix(&VectorSource::path(place.path(name))).unwrap();
    let (old, adapted, new) = (file("old.npy"), file("adapted.npy"), file("new.npy"));
    let ids = fs_err::read_to_string(place.path("pairs/ids.txt")).unwrap();
    let held_out = rehang_files::read_labels(&VectorSource::path(place.path("pairs/held-out.npy"))).unwrap();
    let asking: Vec<usize> = ids
        .lines()
        .zip(held_out)
        .filter(|(_, held_out)| *held_out == 1)
        .map(|(id, _)| id[1..].parse().unwrap())
        .collect();
    let distances = |queries: &Matrix, gallery: &Matrix, items: &[usize], more: f64| -> Vec<f64> {
        let pairs = asking.iter().flat_map(|&query| items.iter().map(move |&item| (query, item)));
        let others = pairs.filter(|(query, item)| query != item);
        others.map(|(a, b)| more + Distance::Cosine.between(queries.row(a), gallery.row(b))).collect()
    };
    let all: Vec<usize> = (0..ITEMS).collect();
    let number = |value: &Value| value.as_f64().unwrap();
    let handicap = number(&fitted["handicap"]);
    // Floors that let 2 and 10 of 100 answers through.
    let mut today = distances(&old, &old, &all, 0.0);
    today.sort_by(f64::total_cmp);
    let floors = [50, 10].map(|part| format!("{:.4}", 1.0 - today[today.len() / part]));
    let made = place.json(&["thresholds", &floors.join(",")]);
    assert_eq!((&made["queries"], &made["natives"]), (&asking.len().into(), &asking.len().into()));
    for (row, floor) in made["rows"].as_array().unwrap().iter().zip(&floors) {
        let floor: f64 = floor.parse().unwrap();
        assert_eq!(number(&row["today"]), floor);
        let (switch, end) = (
            carried(&distances(&old, &old, &all, 0.0), &distances(&new, &adapted, &all, handicap), floor),
            carried(&distances(&old, &old, &asking, 0.0), &distances(&new, &new, &asking, 0.0), floor),
        );
        for (stage, (limit, changed)) in [("adapted", switch), ("native", end)] {
            let at = &row[stage];
            assert!((number(&at["floor"]) - limit).abs() < 1e-4, "{stage} {at} {limit}");
            assert!((number(&at["changed"]) - changed).abs() < 1e-3, "{stage} {at} {changed}");
        }
    }
    let text = String::from_utf8(place.run(&["thresholds", &floors[0]]).stdout).unwrap();
    let said = format!("{:.3}", number(&made["rows"][0]["adapted"]["floor"]));
    assert!(text.contains(&said) && text.contains("at the switch"), "{said}: {text}");
    let refused = place.run(&["thresholds", "NaN"]);
    assert_eq!(refused.status.code(), Some(2));
}
