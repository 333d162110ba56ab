//! A whole upgrade without the command line gives the numbers that the command line prints.

#[allow(dead_code, reason = "the example has a main of its own")]
#[path = "../examples/whole_upgrade.rs"]
mod example;

#[test]
fn from_pairs_to_a_backfilled_gallery_by_library_calls() {
    let folder = tempfile::tempdir().unwrap();
    let (report, live) = example::whole_upgrade(&folder.path().join("demo")).unwrap();
    let metric = &report.headline_metric().unwrap().id;
    let curve = &report.headline_curve().unwrap().metrics[metric];
    let (today, start, end) = (report.do_nothing[metric], curve.start, curve.end);
    // Neither of the two numbers depends on a fit; the map's own number may differ in its last digit between
    // processors.
    assert_eq!((format!("{today:.1}"), format!("{end:.1}")), ("36.7".into(), "78.9".into()), "{metric}");
    assert!((start - 46.9).abs() < 0.5, "{start}");

    assert_eq!((live.failed_searches, live.first_failure), (0, None));
    assert_eq!(live.native, live.items, "every image is embedded again");
    assert!(live.searches > 0 && live.writes.new > 0 && live.writes.deleted > 0, "{:?}", live.writes);
    let precision = live.precision_at_10;
    assert!(precision.before < precision.at_switch && precision.at_switch < precision.after, "{precision:?}");
    assert!(live.index_recall_at_10 > 0.99);
    assert!(folder.path().join("demo/report.html").exists());
}
