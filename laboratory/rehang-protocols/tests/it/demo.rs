//! Models are compared on the demo's real vectors, without a command line.

use std::path::Path;

use rehang_core::Progress;
use rehang_files::{NamedFile, RowSelection, VectorSource};
use rehang_protocols::{ModelFiles, cross};

fn demo(name: &str) -> VectorSource {
    VectorSource::path(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo").join(name))
}

fn role(value: i64) -> RowSelection {
    RowSelection { file: demo("role.npy"), values: vec![value] }
}

#[test]
fn models_are_compared_and_parameters_that_miss_each_other_are_named() {
    let named = |name: &str, file: &str| NamedFile { name: name.into(), file: demo(file) };
    let models = vec![named("old", "old.npy"), named("new", "new.npy")];
    let files = ModelFiles { rows: Some(role(1)), ..ModelFiles::new(models, demo("label.npy")) };
    let answer = cross(&files, None, 0, &Progress::default()).unwrap();
    let table = &answer.metrics["map"];
    assert_eq!((table.matrix.values.len(), table.pairs.len()), (2, 1));
    assert_eq!(format!("{:.1}", table.matrix.values[1][1]), "78.9");

    let said = |files: ModelFiles| cross(&files, None, 0, &Progress::default()).unwrap_err().to_string();
    let twice = vec![named("old", "old.npy"), named("old", "new.npy")];
    assert!(said(ModelFiles { models: twice, ..files.clone() }).contains("`models`"));
    assert!(said(ModelFiles { labels: None, ..files.clone() }).contains("`labels` or `qrels`"));
    assert!(said(ModelFiles { k: 0, ..files.clone() }).contains('k'));
    let qrels = Some("qrels.tsv".into());
    assert!(said(ModelFiles { labels: None, qrels, ..files }).contains("`ids` and `query_ids`"));
}
