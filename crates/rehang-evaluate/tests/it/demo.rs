//! Tests the whole story of an evaluation on the demo's real vectors, without a command line.

use std::path::{Path, PathBuf};

use rehang_core::curve::MAP;
use rehang_core::finding::FindingCode;
use rehang_core::order::Policy;
use rehang_core::report::Report;
use rehang_core::{Distance, Pairs, Progress, Vectors};
use rehang_evaluate::{AnswerFiles, CurveFiles, OrderFiles, ReportFiles, curve, order, report};
use rehang_files::transform::{TransformFiles, transform};
use rehang_files::{InputReader, Names, RowSelection, VectorSource};
use rehang_fit::{FitParameters, Method, NetworkOptions, fit_adapter, fit_bridge_of};

fn demo(name: &str) -> VectorSource {
    VectorSource::path(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo").join(name))
}

fn role(value: i64) -> RowSelection {
    RowSelection { file: demo("role.npy"), values: vec![value] }
}

/// Reads the demo's pairs.
fn pairs() -> Pairs {
    let mut inputs = InputReader::new(Some(&role(0))).unwrap();
    let old = inputs.matrix("old", &[demo("old.npy")]).unwrap();
    let new = inputs.matrix("new", &[demo("new.npy")]).unwrap();
    Pairs::new(
        Vectors::measured("digits-old", Distance::L2, old, "old.npy").unwrap(),
        Vectors::measured("digits-new", Distance::L2, new, "new.npy").unwrap(),
        None,
        None,
    )
    .unwrap()
}

/// Fits a ridge adapter on the demo's pairs, into a file.
fn ridge(folder: &Path) -> PathBuf {
    let pairs = pairs();
    let parameters = FitParameters { method: Method::Ridge, ..FitParameters::default() };
    let progress = Progress::default();
    let fitted = fit_adapter(&pairs, None, &parameters, &NetworkOptions::default(), &progress).unwrap();
    let path = folder.join("ridge.safetensors");
    rehang_files::adapter_file::save(&fitted.adapter, &path).unwrap();
    path
}

#[test]
fn an_upgrade_is_transformed_ordered_measured_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    let made = |name: &str| VectorSource::path(place(name));
    let progress = Progress::default();
    let adapter = ridge(folder.path());

    let written = transform(
        &TransformFiles {
            rows: Some(role(1)),
            sigma: Some(place("sigma.npy")),
            output: Some(place("adapted.npy")),
            ..TransformFiles::new(&adapter, demo("old.npy"))
        },
        &progress,
    )
    .unwrap();
    assert_eq!((written.vectors, written.space.name.as_str()), (1079, "digits-new"));
    // Three images have the old vector of one of the pairs.
    assert_eq!(written.among_pairs.map(|overlap| overlap.among_pairs()), Some(3));

    let ordered = order(&OrderFiles {
        sigma: vec![made("sigma.npy")],
        output: Some(place("order.npy")),
        ..OrderFiles::new(Policy::Sigma)
    })
    .unwrap();
    assert_eq!(ordered.items, 1079);

    // A curve takes whole files, so the gallery's rows are written first.
    let mut gallery = InputReader::new(Some(&role(1))).unwrap();
    for name in ["old.npy", "new.npy"] {
        let rows = gallery.matrix("rows", &[demo(name)]).unwrap();
        rehang_files::write_matrix(place(name), &rows, None).unwrap();
    }
    let labels = gallery.labels("labels", &[demo("label.npy")], &mut Names::default()).unwrap();
    rehang_files::write_labels(place("label.npy"), &labels).unwrap();
    let answers = AnswerFiles { labels: vec![made("label.npy")], ..AnswerFiles::default() };
    let answer = curve(
        &CurveFiles {
            old: vec![made("old.npy")],
            adapter: Some(adapter.clone().into()),
            answers,
            points: Some(place("points.npy")),
            ..CurveFiles::new(made("new.npy"), made("adapted.npy"), made("order.npy"))
        },
        &progress,
    )
    .unwrap();
    let curve = &answer.curve;
    let today = curve.do_nothing.as_ref().unwrap().evaluation.values[MAP];
    let codes: Vec<&FindingCode> = answer.findings.iter().map(|finding| &finding.code).collect();
    assert_eq!((answer.is_refused, codes), (false, vec![&FindingCode::AmongPairs]));
    assert!(today < curve.lines[MAP].start() && curve.lines[MAP].start() < curve.lines[MAP].end());
    assert_eq!(format!("{today:.1} {:.1}", curve.lines[MAP].end()), "36.7 78.9");
    assert_eq!(answer.points.as_ref().unwrap().columns[2], "map");
    assert_eq!(answer.to_json()["end"]["map"], curve.lines[MAP].end());

    let wanted = ReportFiles {
        rows: Some(role(1)),
        answers: AnswerFiles { labels: vec![demo("label.npy")], ..AnswerFiles::default() },
        orders: vec![Policy::Sigma],
        output: vec![place("report.md")],
        ..ReportFiles::new(vec![adapter.into()], demo("old.npy"), demo("new.npy"))
    };
    let reported = report(&wanted, &progress).unwrap();
    let line = &reported.report.headline_curve().unwrap().metrics["map"];
    assert_eq!((line.start, line.end), (curve.lines[MAP].start(), curve.lines[MAP].end()));
    let roles: Vec<&str> = reported.report.inputs.iter().map(|input| input.role.as_str()).collect();
    assert_eq!(roles[..4], ["old", "new", "labels", "rows"]);
    let error = report(&ReportFiles { output: vec![demo("old.npy").path], ..wanted }, &progress).unwrap_err();
    assert!(error.to_string().contains("another file than `old`"), "{error}");
}

/// Judgements go by id over the whole gallery; a part of the gallery has the judgements of its own items.
#[test]
fn judgements_of_items_that_do_not_take_part_are_left_out_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    let made = |name: &str| VectorSource::path(place(name));
    let ids: Vec<String> = (0..1797).map(|row| format!("item-{row}")).collect();
    rehang_files::AtomicFile::write(place("ids.txt"), ids.join("\n")).unwrap();
    let mut inputs = InputReader::default();
    let labels = inputs.labels("labels", &[demo("label.npy")], &mut Names::default()).unwrap();
    let roles = inputs.labels("roles", &[demo("role.npy")], &mut Names::default()).unwrap();
    // The first rows ask; every judged item is of their class.
    let asking: Vec<usize> = (0..20).collect();
    let mut lines = String::new();
    let (mut taken, mut others) = (0, 0);
    for &query in &asking {
        for item in (0..1797).filter(|&item| labels[item] == labels[query]).take(30) {
            lines += &format!("query-{query}\titem-{item}\t1\n");
            *(if roles[item] == 1 { &mut taken } else { &mut others }) += 1;
        }
    }
    rehang_files::AtomicFile::write(place("qrels.tsv"), &lines).unwrap();
    let query_ids: Vec<String> = asking.iter().map(|query| format!("query-{query}")).collect();
    rehang_files::AtomicFile::write(place("query-ids.txt"), query_ids.join("\n")).unwrap();
    let new = inputs.matrix("new", &[demo("new.npy")]).unwrap();
    rehang_files::write_matrix(place("queries.npy"), &new.select(&asking), None).unwrap();
    let reported = report(
        &ReportFiles {
            rows: Some(role(1)),
            answers: AnswerFiles {
                queries: Some(made("queries.npy")),
                qrels: Some(place("qrels.tsv")),
                ids: vec![made("ids.txt")],
                query_ids: Some(made("query-ids.txt")),
                ..AnswerFiles::default()
            },
            orders: vec![Policy::Random],
            random_orders: 1,
            bootstrap: 0,
            ..ReportFiles::new(vec![ridge(folder.path()).into()], demo("old.npy"), demo("new.npy"))
        },
        &Progress::default(),
    )
    .unwrap();
    assert!(taken > 0 && others > 0);
    let seen = format!("{others} of {} judgements are of items that do not take part.", taken + others);
    assert!(reported.findings.iter().any(|finding| finding.seen == seen), "{:?}", reported.findings);
}

#[test]
fn a_sample_forecasts_the_gallery_that_it_was_drawn_from() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    let made = |name: &str| VectorSource::path(place(name));
    let progress = Progress::default();
    let adapter = ridge(folder.path());
    let mut gallery = InputReader::new(Some(&role(1))).unwrap();
    let [old, new] = ["old.npy", "new.npy"].map(|name| gallery.matrix("rows", &[demo(name)]).unwrap());
    let labels = gallery.labels("labels", &[demo("label.npy")], &mut Names::default()).unwrap();
    let sample: Vec<usize> = (0..old.rows()).filter(|row| row % 4 == 1).collect();
    rehang_files::write_matrix(place("all-old.npy"), &old, None).unwrap();
    rehang_files::write_labels(place("all-labels.npy"), &labels).unwrap();
    rehang_files::write_matrix(place("old.npy"), &old.select(&sample), None).unwrap();
    rehang_files::write_matrix(place("new.npy"), &new.select(&sample), None).unwrap();

    let orders = vec![Policy::Coverage, Policy::Random, Policy::Oracle];
    let whole = ReportFiles {
        rows: Some(role(1)),
        orders: orders.clone(),
        answers: AnswerFiles { labels: vec![demo("label.npy")], ..AnswerFiles::default() },
        bootstrap: 0,
        ..ReportFiles::new(vec![adapter.as_path().into()], demo("old.npy"), demo("new.npy"))
    };
    let truth = report(&whole, &progress).unwrap().report;
    let of_sample = ReportFiles {
        orders,
        gallery: vec![made("all-old.npy")],
        gallery_labels: vec![made("all-labels.npy")],
        bridge: Some(fit_bridge_of(&pairs(), Method::Ridge, 0.5, 0, &progress).unwrap()),
        ..ReportFiles::new(vec![adapter.as_path().into()], made("old.npy"), made("new.npy"))
    };
    let forecast = report(&of_sample, &progress).unwrap().report;
    let about = forecast.gallery.as_ref().unwrap();
    assert_eq!((about.items, about.held_out, about.speaks_of), (1079, sample.len(), 1079));
    // The bridge's queries of the sample search all old vectors, each leaving itself out.
    let bridge = of_sample.bridge.as_ref().unwrap();
    let queries = bridge.queries(Some(&old.select(&sample)), &new.select(&sample)).unwrap();
    let is_right = |row: usize, item: usize| labels[row] == labels[item];
    let mut precisions = 0.0;
    for (query, &row) in sample.iter().enumerate() {
        let apart = |item: usize| rehang_core::squared_distance(queries.row(query), old.row(item));
        let mut ranked: Vec<usize> = (0..old.rows()).filter(|&item| item != row).collect();
        ranked.sort_by(|&a, &b| apart(a).total_cmp(&apart(b)));
        let places =
            ranked.iter().enumerate().filter(|(_, item)| is_right(row, **item)).map(|(place, _)| place + 1);
        let at: Vec<f64> = places.enumerate().map(|(hits, place)| (hits + 1) as f64 / place as f64).collect();
        precisions += at.iter().sum::<f64>() / at.len() as f64;
    }
    let (said, is) = (about.bridge["map"].value, 100.0 * precisions / sample.len() as f64);
    assert!((said - is).abs() < 1e-6 && about.bridge["map"].spread.is_some(), "{said} {is}");
    // An order by true errors cannot be followed, and is not forecast.
    let orders: Vec<&str> = forecast.curves.iter().map(|series| series.order.as_str()).collect();
    assert_eq!((orders, forecast.headline), (vec!["coverage", "random"], 0));
    let mut inside = 0;
    for id in ["map", "top1"] {
        let (said, is) = (forecast.do_nothing[id], truth.do_nothing[id]);
        assert!((said - is).abs() < 1e-9 && about.do_nothing[id].spread.is_none(), "{id} {said} {is}");
        for (series, true_series) in forecast.curves.iter().zip(&truth.curves) {
            let (said, is) = (&series.metrics[id], &true_series.metrics[id]);
            let band = said.band.as_ref().unwrap();
            for place in [0, 50, 100, 150, 200] {
                assert!((series.fractions[place] - true_series.fractions[place]).abs() < 1e-3);
                let (low, high) = (band.low[place], band.high[place]);
                inside += usize::from((low..=high).contains(&is.values[place]));
            }
        }
    }
    assert!(inside >= 19, "{inside} of 20 intervals hold the truth");
    let enough = forecast.curves[1].metrics["map"].enough.unwrap();
    assert!(
        enough.low <= enough.fraction && enough.fraction <= enough.high && enough.low > 0.5,
        "{enough:?}"
    );

    // Without right answers agreement is forecast; labels of the sample alone say nothing of the gallery.
    let mut agreement = of_sample.clone();
    agreement.gallery_labels.clear();
    let forecast = report(&agreement, &progress).unwrap().report;
    assert!(
        forecast.gallery.as_ref().unwrap().bridge.is_empty(),
        "agreement is with the new model, and a bridge stays in the old space"
    );
    let curve = &forecast.headline_curve().unwrap().metrics["agreement@10"];
    assert_eq!((curve.end, forecast.new_model["agreement@10"]), (100.0, 100.0));
    // A forecast can speak of the gallery as large as it is, with the range that it then has.
    let width = |report: &Report| {
        let band = report.headline_curve().unwrap().metrics["agreement@10"].band.clone().unwrap();
        band.high[0] - band.low[0]
    };
    agreement.gallery_items = Some(100_000);
    let large = report(&agreement, &progress).unwrap().report;
    assert_eq!(large.gallery.as_ref().unwrap().speaks_of, 100_000);
    assert!(width(&large) > 1.5 * width(&forecast), "{} {}", width(&large), width(&forecast));
    agreement.answers.labels = vec![made("all-labels.npy")];
    assert!(report(&agreement, &progress).is_err());
    let mut elsewhere = of_sample;
    elsewhere.gallery = vec![demo("new.npy")];
    assert!(report(&elsewhere, &progress).is_err());
}
