//! The whole story of an evaluation on the demo's real vectors, without a command line.

use std::path::{Path, PathBuf};

use rehang::curve::MAP;
use rehang::order::Policy;
use rehang::{Distance, Pairs, Progress, Vectors};
use rehang_evaluate::{AnswerFiles, CurveFiles, OrderFiles, ReportFiles, curve, order, report};
use rehang_files::transform::{TransformFiles, transform};
use rehang_files::{InputReader, Names, RowSelection, VectorSource};
use rehang_fit::{FitParameters, Method, NetworkOptions, fit_adapter};

fn demo(name: &str) -> VectorSource {
    VectorSource::path(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo").join(name))
}

fn role(value: i64) -> RowSelection {
    RowSelection { file: demo("role.npy"), values: vec![value] }
}

/// A ridge adapter on the demo's pairs, in a file.
fn ridge(folder: &Path) -> PathBuf {
    let mut inputs = InputReader::new(Some(&role(0))).unwrap();
    let old = inputs.matrix("old", &[demo("old.npy")]).unwrap();
    let new = inputs.matrix("new", &[demo("new.npy")]).unwrap();
    let pairs = Pairs::new(
        Vectors::measured("digits-old", Distance::L2, old, "old.npy").unwrap(),
        Vectors::measured("digits-new", Distance::L2, new, "new.npy").unwrap(),
        None,
        None,
    )
    .unwrap();
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
    let codes: Vec<&str> = answer.findings.iter().map(|finding| finding.code.as_str()).collect();
    assert_eq!((answer.is_refused, codes), (false, vec!["among-pairs"]));
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

/// Judgements go by id over the whole gallery; of a part of it they are the part's.
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
