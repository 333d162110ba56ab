//! Every door through which bytes of others enter. Whatever the bytes are, a door gives a value or an error:
//! it neither panics nor hangs, and its memory is bounded by what the bytes could rightly hold.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rehang_core::{Distance, Space};
use rehang_encode::{EncoderConfig, Input};
use rehang_files::VectorSource;
use rehang_files::qrels::read_qrels;

/// Takes any bytes.
pub type Door = fn(&[u8]);

/// The doors by name; inputs that were worth keeping lie in `corpus/NAME`.
pub const DOORS: &[(&str, Door)] = &[
    ("adapter", |bytes| drop(rehang_files::adapter_file::from_bytes(bytes, "the bytes"))),
    ("column", |bytes| {
        column(bytes, "jsonl");
        column(bytes, "txt");
    }),
    ("command", |bytes| rehang_encode::doors::line_of_a_program(bytes)),
    ("configuration", configuration),
    ("encoder", |bytes| drop(rehang_train::encoder::TrainedEncoder::from_bytes(bytes, "the bytes"))),
    ("faces", |bytes| drop(rehang_files::lists::read_faces(&[file(bytes, "faces", "csv")], None))),
    ("http", |bytes| rehang_encode::doors::answer_of_a_service(bytes)),
    ("image", |bytes| encode(bytes, "image", r#"{"kind": "image", "width": 16, "height": 12}"#, "cnn.onnx")),
    ("landmarks", |bytes| drop(rehang_files::lists::read_revisited(file(bytes, "landmarks", "json")))),
    ("npy", |bytes| {
        drop(rehang_files::array_from_bytes(bytes, "the bytes"));
        vectors(bytes, "npy");
        encode(bytes, "npy-vector", r#"{"kind": "vector"}"#, "mlp.onnx");
    }),
    ("parquet", |bytes| {
        vectors(bytes, "parquet");
        column(bytes, "parquet");
    }),
    ("qrels", |bytes| {
        let ids: Vec<String> = ["1", "a", "q1"].map(String::from).into();
        drop(read_qrels(file(bytes, "qrels", "tsv"), &ids, &ids));
    }),
    ("safetensors", |bytes| vectors(bytes, "safetensors")),
    ("side-file", side_file),
    ("tokenizer", tokenizer),
    ("vecs", |bytes| ["bvecs", "fvecs", "ivecs"].into_iter().for_each(|extension| vectors(bytes, extension))),
];

/// A file of the bytes; each door writes over its own.
fn file(bytes: &[u8], door: &str, extension: &str) -> PathBuf {
    let path = folder().join(format!("{door}.{extension}"));
    fs_err::write(&path, bytes).expect("room for a small file");
    path
}

fn folder() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| tempfile::tempdir().expect("a temporary folder")).path()
}

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .map(|folder| folder.join("crates/rehang-encode/tests/models"))
        .find(|models| models.is_dir())
        .expect("the models of the encoders' tests")
}

fn vectors(bytes: &[u8], extension: &str) {
    drop(rehang_files::read_matrix(&VectorSource::path(file(bytes, extension, extension))));
}

fn column(bytes: &[u8], extension: &str) {
    let source = VectorSource::path(file(bytes, &format!("column-{extension}"), extension));
    drop((
        rehang_files::read_ids(&source),
        rehang_files::read_label_values(&source),
        rehang_files::read_order(&source),
    ));
}

fn configuration(bytes: &[u8]) {
    // With an adapter beside it, so that every part is read.
    static ADAPTER: OnceLock<()> = OnceLock::new();
    ADAPTER.get_or_init(|| {
        let golden =
            models().join("../../../rehang-files/tests/golden/adapter-v1-linear-handicap.safetensors");
        fs_err::copy(golden, folder().join("adapter.safetensors")).expect("a small file");
    });
    drop(rehang_upgrade::Configuration::read(&file(bytes, "rehang", "toml")));
}

/// Encodes the source `name`, a file of the bytes, by a model of the tests.
fn encode(bytes: &[u8], name: &str, input: &str, model: &str) {
    let path = file(bytes, name, "bin");
    let input: serde_json::Value = serde_json::from_str(input).expect("an input");
    let config = serde_json::json!({
        "kind": "onnx", "model": models().join(model), "root": folder(), "threads": 1, "input": input,
    });
    let config: EncoderConfig = serde_json::from_value(config).expect("a configuration");
    let width = if model == "cnn.onnx" { 6 } else { 3 };
    let space = Space::new("new", width, Distance::L2, false);
    let encoder = rehang_encode::open(&config, &space, folder()).expect("a model of the tests");
    let source = path.file_name().expect("a name").to_str().expect("plain letters");
    drop(encoder.encode(&[Input { id: "a", source, payload: &serde_json::Value::Null }]));
}

fn tokenizer(bytes: &[u8]) {
    let tokenizer = file(bytes, "tokenizer", "json");
    let config = serde_json::json!({
        "kind": "onnx", "model": models().join("text.onnx"), "threads": 1,
        "input": {"kind": "text", "tokenizer": tokenizer},
    });
    let config: EncoderConfig = serde_json::from_value(config).expect("a configuration");
    let space = Space::new("new", 8, Distance::L2, false);
    if let Ok(encoder) = rehang_encode::open(&config, &space, folder()) {
        let inputs = ["", "the cat sat", "Ünhappily 🐈"];
        let inputs = inputs.map(|source| Input { id: "a", source, payload: &serde_json::Value::Null });
        drop(encoder.encode(&inputs));
    }
}

/// The index that lies beside a gallery.
fn side_file(bytes: &[u8]) {
    use rehang_core::Provenance;
    use rehang_sqlite::{SearchOptions, SqliteStore};
    use rehang_store::{Filter, Index as _, ItemWrite, Ledger as _, NewVector};

    static GALLERY: OnceLock<(PathBuf, PathBuf)> = OnceLock::new();
    let (gallery, side) = GALLERY.get_or_init(|| {
        let path = folder().join("gallery.db");
        let store = SqliteStore::create(&path).expect("a new gallery");
        store.create_space(&Space::new("old", 2, Distance::L2, false), Provenance::Old).expect("a new space");
        let items: Vec<ItemWrite> = (0..4000_u16)
            .map(|row| {
                ItemWrite::new(
                    row.to_string(),
                    None,
                    vec![NewVector::from_model("old", vec![f32::from(row), 1.0], Provenance::Old)],
                )
            })
            .collect();
        store.put(&items).expect("items of a new gallery");
        let side = store.index_path("old").expect("a space");
        (path, side)
    });
    fs_err::write(side, bytes).expect("room for a small file");
    let store = SqliteStore::open(gallery).expect("the gallery").with_search(SearchOptions::default());
    let query = rehang_core::Matrix::new(2, vec![7.0, 1.0]).expect("a query");
    let found = store.search("old", &query, 3, &Filter::default()).expect("a search");
    assert_eq!(found[0][0].id, "7");
}
