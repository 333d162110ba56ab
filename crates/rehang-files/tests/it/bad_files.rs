//! Every reader against every kind of malformed input: one clear error that names the file, and never a
//! panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::slice::from_ref;
use std::sync::{Arc, LazyLock};

use parquet::basic::Encoding;
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder};
use proptest::prelude::*;
use rehang_core::{Adapter, Distance, Error, ErrorKind, Matrix, Progress, Result, Space};
use rehang_files::adapter_file::AdapterSource;
use rehang_files::stream::{self, RowBatch};
use rehang_files::transform::{TransformFiles, transform};
use rehang_files::{Ids, VectorSource};

use crate::samples::{self, fvecs, npy, safetensors};

/// Reader that is given a malformed file.
#[derive(Debug, Clone, Copy)]
enum Reader {
    Vectors,
    Labels,
    Numbers,
    Order,
    Ids,
}

impl Reader {
    const ALL: [Self; 5] = [Self::Vectors, Self::Labels, Self::Numbers, Self::Order, Self::Ids];

    fn read(self, source: &VectorSource) -> Result<()> {
        match self {
            Self::Vectors => rehang_files::read_matrix(source).map(|_| ()),
            Self::Labels => rehang_files::read_labels(source).map(|_| ()),
            Self::Numbers => rehang_files::read_f32_column(source).map(|_| ()),
            Self::Order => rehang_files::read_order(source).map(|_| ()),
            Self::Ids => rehang_files::read_ids(source).map(|_| ()),
        }
    }
}

/// Checks that a reader fails, that the sentence names the file, and that it contains `words`.
fn expect(reader: Reader, source: &VectorSource, words: &str) -> Error {
    let error = match reader.read(source) {
        Ok(()) => panic!("{reader:?} accepts {source}, which should fail with {words:?}"),
        Err(error) => error,
    };
    let message = error.to_string();
    let name = source.path.file_name().unwrap().to_string_lossy().into_owned();
    assert!(message.contains(words), "{source}: {message:?} lacks {words:?}");
    assert!(message.contains(&name), "{source}: {message:?} does not name the file");
    assert!(message.lines().count() == 1, "{message:?} is more than one line");
    error
}

fn put(folder: &Path, name: &str, bytes: &[u8]) -> VectorSource {
    let path = folder.join(name);
    samples::write(&path, bytes);
    VectorSource::path(path)
}

#[test]
fn a_path_that_is_no_readable_file_is_named_by_every_reader() {
    let folder = tempfile::tempdir().unwrap();
    for extension in
        ["npy", "parquet", "pq", "fvecs", "bvecs", "ivecs", "safetensors", "txt", "jsonl", "npz", "pickle"]
    {
        let missing = VectorSource::path(folder.path().join(format!("missing.{extension}")));
        let directory = VectorSource::path(folder.path().join(format!("folder.{extension}")));
        fs_err::create_dir(&directory.path).unwrap();
        let empty = put(folder.path(), &format!("empty.{extension}"), b"");
        for reader in Reader::ALL {
            let error = expect(reader, &missing, "No such file");
            assert!(matches!(error.kind(), ErrorKind::Io { .. }));
            expect(reader, &directory, "it is a folder");
            match extension {
                "npz" | "pickle" => expect(reader, &empty, "expected a name that ends in"),
                _ => expect_unless_no_vectors(reader, &empty, extension),
            };
        }
    }
}

/// Expects an error that calls the file empty, except where its extension already rules it out.
fn expect_unless_no_vectors(reader: Reader, source: &VectorSource, extension: &str) -> Error {
    match (reader, extension) {
        (Reader::Vectors, "txt" | "jsonl") => expect(reader, source, "expected a name that ends in"),
        _ => expect(reader, source, "is empty"),
    }
}

#[cfg(unix)]
#[test]
fn a_file_without_permission_and_a_pipe_are_refused() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    let secret = put(folder.path(), "secret.npy", &npy("<f4", "(1, 1)", &[0; 4]));
    fs_err::set_permissions(&secret.path, PermissionsExt::from_mode(0o000)).unwrap();
    // The superuser may read everything, so there is nothing to check.
    if fs_err::read(&secret.path).is_err() {
        expect(Reader::Vectors, &secret, "ermission denied");
    }
    let device = VectorSource::path("/dev/null");
    expect(Reader::Vectors, &device, "device or a pipe");
}

#[test]
fn malformed_vectors_fail_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let numbers = |count: usize| vec![0_u8; count * 4];
    let npy_raw = |header: &str, body: &[u8]| {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(body);
        bytes
    };
    let mut endless = b"\x93NUMPY\x02\x00".to_vec();
    endless.extend(u32::MAX.to_le_bytes());
    let mut version = npy("<f4", "(1, 1)", &numbers(1));
    version[6] = 9;
    let deep = format!("{{'descr': {}", "(".repeat(60_000));
    let mut ragged = fvecs(&[&[1.0, 2.0], &[3.0, 4.0]]);
    ragged[12] = 3;
    let tensor = |json: &str, body: &[u8]| safetensors(json, body);
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        // .npy
        ("magic.npy", b"PK\x03\x04 something else".to_vec(), "no .npy file"),
        ("short.npy", b"\x93NU".to_vec(), "no .npy file"),
        ("headless.npy", b"\x93NUMPY\x01\x00".to_vec(), "ends inside the header"),
        ("cut_header.npy", npy("<f4", "(1, 1)", &[])[..40].to_vec(), "ends inside the header"),
        ("endless.npy", endless, "its header claims"),
        ("version.npy", version, "version 9"),
        ("truncated.npy", npy("<f4", "(4, 2)", &numbers(7)), "truncated"),
        ("longer.npy", npy("<f4", "(4, 2)", &numbers(9)), "there is more in the file"),
        (
            "lies.npy",
            npy("<f4", "(18446744073709551615, 2)", &numbers(2)),
            "truncated or its header is wrong",
        ),
        ("overflow.npy", npy("<f4", "(99999999999999999999, 2)", &numbers(2)), "no .npy header"),
        ("one.npy", npy("<f4", "(8,)", &numbers(8)), "[8]; vectors are two-dimensional"),
        ("three.npy", npy("<f4", "(2, 2, 2)", &numbers(8)), "two-dimensional"),
        ("zero.npy", npy("<f4", "()", &numbers(1)), "two-dimensional"),
        ("no_rows.npy", npy("<f4", "(0, 8)", &[]), "is empty"),
        ("no_columns.npy", npy("<f4", "(8, 0)", &[]), "no coordinates"),
        ("objects.npy", npy("|O", "(1, 1)", &numbers(2)), "Python objects"),
        ("complex.npy", npy("<c8", "(1, 1)", &numbers(2)), "complex numbers"),
        ("dates.npy", npy("<M8[ns]", "(1, 1)", &numbers(2)), "dates"),
        ("void.npy", npy("|V4", "(1, 1)", &numbers(1)), "records"),
        ("quad.npy", npy("<f16", "(1, 1)", &numbers(4)), "<f16"),
        ("text.npy", npy("<U1", "(1, 1)", &numbers(1)), "it holds text"),
        (
            "record.npy",
            npy_raw("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }\n", &[0; 4]),
            "several fields",
        ),
        ("key.npy", npy_raw("{'descr': '<f4', 'shape': (1, 1), }\n", &[0; 4]), "lacks one of"),
        ("unknown_key.npy", npy_raw("{'colour': 'red'}\n", &[]), "unknown key"),
        ("twice.npy", npy_raw("{'descr': '<f4', 'descr': '<f4', }\n", &[]), "twice"),
        ("deep.npy", npy_raw(&deep[..60_000], &[]), "no .npy header"),
        ("negative.npy", npy("<f4", "(-1, 2)", &[]), "no .npy header"),
        // .fvecs and its family
        ("short.fvecs", vec![2, 0], "ends inside the width"),
        ("negative.fvecs", (-2_i32).to_le_bytes().to_vec(), "claims -2 coordinates"),
        ("zero.fvecs", 0_i32.to_le_bytes().to_vec(), "claims 0 coordinates"),
        ("huge.fvecs", i32::MAX.to_le_bytes().to_vec(), "no .fvecs file"),
        ("truncated.fvecs", fvecs(&[&[1.0, 2.0], &[3.0, 4.0]])[..20].to_vec(), "truncated"),
        ("ragged.fvecs", ragged, "row 1 claims 3 coordinates where the first row has 2"),
        ("truncated.bvecs", vec![2, 0, 0, 0, 9, 9, 2, 0], "truncated"),
        ("wide.ivecs", (1_i32 << 21).to_le_bytes().to_vec(), "no .ivecs file"),
        // .safetensors
        ("short.safetensors", vec![1, 2, 3], "shorter than 8 bytes"),
        ("endless.safetensors", [u64::MAX.to_le_bytes().as_slice(), b"{}"].concat(), "its header claims"),
        ("json.safetensors", tensor("{not json", &[]), "no safetensors header"),
        ("deep.safetensors", tensor(&"[".repeat(100_000), &[]), "no safetensors header"),
        ("none.safetensors", tensor("{}", &[]), "it holds no tensors"),
        (
            "vector.safetensors",
            tensor(r#"{"bias":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#, &[0; 8]),
            "bias [2] of F32",
        ),
        (
            "several.safetensors",
            tensor(
                r#"{"a":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1,1],"data_offsets":[4,8]}}"#,
                &[0; 8],
            ),
            "#TENSOR",
        ),
        (
            "cut.safetensors",
            tensor(r#"{"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}"#, &[0; 7]),
            "truncated",
        ),
        (
            "lies.safetensors",
            tensor(r#"{"a":{"dtype":"F32","shape":[9,9],"data_offsets":[0,8]}}"#, &[0; 8]),
            "no safetensors header",
        ),
        (
            "overflow.safetensors",
            tensor(r#"{"a":{"dtype":"F32","shape":[18446744073709551615,9],"data_offsets":[0,8]}}"#, &[0; 8]),
            "no safetensors header",
        ),
        (
            "backwards.safetensors",
            tensor(r#"{"a":{"dtype":"F32","shape":[1,2],"data_offsets":[8,0]}}"#, &[0; 8]),
            "no safetensors header",
        ),
        (
            "dtype.safetensors",
            tensor(r#"{"a":{"dtype":"C64","shape":[1,1],"data_offsets":[0,8]}}"#, &[0; 8]),
            "of type C64",
        ),
        (
            "no_rows.safetensors",
            tensor(r#"{"a":{"dtype":"F32","shape":[0,4],"data_offsets":[0,0]}}"#, &[]),
            "is empty",
        ),
        (
            "longer.safetensors",
            tensor(r#"{"a":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]}}"#, &[0; 8]),
            "there is more in the file",
        ),
        // .parquet
        ("magic.parquet", b"not a parquet file at all".to_vec(), "no Parquet file"),
        ("short.parquet", b"PAR1".to_vec(), "no Parquet file"),
        (
            "footer.parquet",
            [b"PAR1".as_slice(), &[0xff; 100], &u32::MAX.to_le_bytes(), b"PAR1"].concat(),
            "no Parquet file",
        ),
        ("encrypted.parquet", b"PAR1\x00\x01\0\0\0PARE".to_vec(), "it is encrypted"),
        ("cut.parquet", b"PAR1\x15\x02\x02\0\0\0PAR1".to_vec(), "its footer ends too soon"),
        // Two billion truth values in a field of a later format, and in the place of the schema.
        (
            "truths.parquet",
            b"PAR1\x09\x28\xf1\xff\xff\xff\xff\x07\x00\x09\0\0\0PAR1".to_vec(),
            "its footer has a list of values that take no byte",
        ),
        (
            "schema.parquet",
            b"PAR1\x29\xf1\xff\xff\xff\xff\x07\x00\x08\0\0\0PAR1".to_vec(),
            "its footer has a list of values that take no byte",
        ),
    ];
    for (name, bytes, words) in cases {
        let source = put(folder.path(), name, &bytes);
        expect(Reader::Vectors, &source, words);
    }
}

#[test]
fn malformed_columns_of_values_fail_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    // The second label becomes the first one as an `f32`.
    let merged = [16_777_216_i32, 16_777_217].map(|label| (label as f32).to_le_bytes()).concat();
    let tensor = r#"{"y":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}"#;
    let cases: Vec<(Reader, &str, Vec<u8>, &str)> = vec![
        (
            Reader::Labels,
            "merged.npy",
            npy("<f4", "(2,)", &merged),
            "too large for their type (row 0 is 16777216",
        ),
        (
            Reader::Labels,
            "half.npy",
            npy("<f2", "(1,)", &half::f16::from_f32(-2048.0).to_le_bytes()),
            "row 0 is -2048",
        ),
        (
            Reader::Labels,
            "double.npy",
            npy("<f8", "(1,)", &9_007_199_254_740_992_f64.to_le_bytes()),
            "row 0 is 9007199254740992",
        ),
        (Reader::Labels, "merged.fvecs", fvecs(&[&[1.0], &[16_777_216.0]]), "row 1 is 16777216"),
        (
            Reader::Labels,
            "brain.safetensors",
            safetensors(tensor, &half::bf16::from_f32(256.0).to_le_bytes()),
            "row 0 is 256",
        ),
        (Reader::Labels, "float.npy", npy("<f4", "(2,)", &0.5_f32.to_le_bytes().repeat(2)), "row 0 is 0.5"),
        (
            Reader::Labels,
            "gap.npy",
            npy("<f4", "(1,)", &f32::NAN.to_le_bytes()),
            "-1 where a label is not known",
        ),
        (Reader::Labels, "matrix.npy", npy("<i4", "(2, 2)", &[0; 16]), "one value a row"),
        (Reader::Labels, "large.npy", npy("<u8", "(1,)", &[0xff; 8]), "above 9223372036854775807"),
        (Reader::Labels, "gap.txt", b"1\n\n2\n".to_vec(), "line 2 is empty"),
        (Reader::Labels, "latin.txt", b"caf\xe9\n".to_vec(), "byte 3 is not UTF-8"),
        (Reader::Labels, "fractions.txt", b"1.5\n2.5\n".to_vec(), "fractions"),
        (
            Reader::Labels,
            "matrix.ivecs",
            [2_i32, 1, 2, 2, 3, 4].iter().flat_map(|n| n.to_le_bytes()).collect(),
            "one value a row",
        ),
        (Reader::Labels, "words.npy", npy("<U1", "(1,)", &[0xff; 4]), "row 0 is not text"),
        (Reader::Numbers, "words.txt", b"a\nb\n".to_vec(), "text where numbers are needed"),
        (
            Reader::Numbers,
            "several.safetensors",
            safetensors(
                r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#,
                &[0; 8],
            ),
            "#TENSOR",
        ),
        (Reader::Order, "float.npy", npy("<f4", "(2,)", &[0; 8]), "whole numbers"),
        (Reader::Order, "twice.txt", b"0\n1\n1\n".to_vec(), "row 1 more than once"),
        (Reader::Order, "outside.txt", b"0\n3\n1\n".to_vec(), "names row 3, and rows go from 0 to 2"),
        (Reader::Order, "negative.txt", b"0\n-1\n".to_vec(), "names row -1"),
        (Reader::Ids, "float.npy", npy("<f4", "(2,)", &[0; 8]), "ids are whole numbers or text"),
        (Reader::Ids, "gap.txt", b"a\n\nb\n".to_vec(), "row 1 is empty"),
        (
            Reader::Ids,
            "broken.jsonl",
            b"{\"_id\": \"a\"}\n{\"_id\": \n".to_vec(),
            "line 2: it is no JSON object",
        ),
        (Reader::Ids, "list.jsonl", b"[1, 2]\n".to_vec(), "line 1: it is no JSON object"),
        (Reader::Ids, "nameless.jsonl", b"{\"text\": \"a\"}\n".to_vec(), "it has no _id or id"),
        (Reader::Ids, "null.jsonl", b"{\"id\": null}\n".to_vec(), "neither text nor a whole number"),
    ];
    for (reader, name, bytes, words) in cases {
        let source = put(folder.path(), name, &bytes);
        expect(reader, &source, words);
    }
}

#[test]
fn malformed_parquet_columns_fail_with_the_row_and_the_columns_there_are() {
    let folder = tempfile::tempdir().unwrap();
    let source = |name: &str, column: &str| -> VectorSource {
        let path = folder.path().join(name);
        samples::write_parquet(&path, name);
        let column = if column.is_empty() { String::new() } else { format!("#{column}") };
        VectorSource::parse(&format!("{}{column}", path.display())).unwrap()
    };
    let cases = [
        (Reader::Vectors, "ragged.parquet", "", "row 2 has 3 numbers where the first row has 2"),
        (Reader::Vectors, "short_last.parquet", "", "row 2 has 1 numbers where the first row has 2"),
        (Reader::Vectors, "null_row.parquet", "", "row 1 is null"),
        (Reader::Vectors, "null_number.parquet", "", "row 2 is null"),
        (Reader::Vectors, "empty_list.parquet", "", "row 1 is null, empty"),
        (Reader::Vectors, "two_lists.parquet", "", "several columns can be vectors"),
        (Reader::Vectors, "two_lists.parquet", "c", "it has a (list of float32), b (list of float32)"),
        (Reader::Vectors, "scalars.parquet", "", "no column can be vectors"),
        (Reader::Vectors, "scalars.parquet", "label", "cannot be vectors"),
        (Reader::Vectors, "no_rows.parquet", "", "is empty"),
        (Reader::Labels, "scalars.parquet", "score", "cannot be labels"),
        // A column that bears the name is taken, or none: another one is no substitute.
        (Reader::Labels, "label_with_gaps.parquet", "", "column \"label\" cannot be labels"),
        (Reader::Ids, "label_with_gaps.parquet", "", "column \"id\" cannot be ids"),
        (Reader::Labels, "null_label.parquet", "", "row 1 is null"),
        (Reader::Labels, "ragged.parquet", "", "no column can be labels"),
        (Reader::Ids, "scalars.parquet", "nowhere", "there is no column \"nowhere\""),
    ];
    for (reader, name, column, words) in cases {
        expect(reader, &source(name, column), words);
    }
    // A case found by fuzzing: room was made for 270 million values before any was read.
    let found = include_bytes!("../../../../xtask/fuzz/corpus/parquet/a-dictionary-of-270-million");
    let claims = "a dictionary claims more values than it has room for";
    expect(Reader::Ids, &put(folder.path(), "dictionary.parquet", found), claims);
}

/// Three KB that say one text of 2,000 letters 40,000 times, and other ways to make much of a few bytes.
#[test]
fn the_texts_of_a_parquet_file_are_no_more_than_its_size_can_hold() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, texts: Vec<&'static str>, properties: WriterPropertiesBuilder| {
        let path = folder.path().join(name);
        samples::write_columns(&path, &[("label", samples::Column::Texts(texts))], properties.build());
        VectorSource::path(path)
    };
    let change = |source: &VectorSource, pattern: &[u8], last: u8| {
        let mut bytes = fs_err::read(&source.path).unwrap();
        let at = bytes.windows(pattern.len()).position(|window| window == pattern).unwrap();
        bytes[at + pattern.len() - 1] = last;
        fs_err::write(&source.path, bytes).unwrap();
    };
    let usual = WriterProperties::builder;
    let encoded = |encoding| usual().set_dictionary_enabled(false).set_encoding(encoding);

    let long: &'static str = "x".repeat(2000).leak();
    let source = write("long.parquet", vec![long; 40_000], usual());
    expect(Reader::Labels, &source, "its texts have more than the 67108864 bytes");
    let name = |class: usize| -> &'static str { format!("{class:020}").leak() };
    let names: Vec<&'static str> = (0..10).map(name).collect();
    let source = write("short.parquet", (0..200_000).map(|row| names[row % 10]).collect(), usual());
    let labels = rehang_files::read_labels(&source).unwrap();
    assert!(
        labels.len() == 200_000 && labels.iter().zip(0..).all(|(&label, row): (_, i64)| label == row % 10)
    );

    // A dictionary of fifteen bytes, each value behind four bytes of its length.
    let source = write("dictionary.parquet", vec!["a", "b", "c"], usual());
    change(&source, &[0x15, 0x1e, 0x15, 0x1e, 0x4c, 0x15, 0x06], 0x1e);
    expect(Reader::Labels, &source, "a dictionary claims more values than it has room for");

    let source = write("prefixes.parquet", vec!["a", "ab", "abc"], encoded(Encoding::DELTA_BYTE_ARRAY));
    expect(Reader::Labels, &source, "DELTA_BYTE_ARRAY; write the file with snappy");
    let source = write("lengths.parquet", vec!["a", "ab", "abc"], encoded(Encoding::DELTA_LENGTH_BYTE_ARRAY));
    assert_eq!(rehang_files::read_labels(&source).unwrap(), [0, 1, 2]);
    // The encoding's header: blocks of 128 lengths in four parts, and the number of lengths.
    change(&source, &[0x80, 0x01, 0x04, 0x03], 0x7f);
    expect(Reader::Labels, &source, "a page claims more texts than it has values");
}

/// Lines of Python in the errors. `test_conversions.py` of the Python package runs each one, where its
/// libraries are installed.
#[test]
fn what_is_not_read_says_how_python_writes_what_is() {
    let folder = tempfile::tempdir().unwrap();
    for extension in
        ["csv", "tsv", "txt", "jsonl", "json", "npz", "pkl", "pt", "h5", "faiss", "feather", "arrow", "lance"]
    {
        let name = format!("a.{extension}");
        let error = expect(Reader::Vectors, &put(folder.path(), &name, b"some"), "Python writes one: ");
        assert!(error.to_string().contains("\"vectors."), "{error}");
    }
    let dataset = folder.path().join("folder.lance");
    fs_err::create_dir(&dataset).unwrap();
    expect(Reader::Vectors, &VectorSource::path(dataset), "lance.dataset(");
    let unknown = expect(Reader::Vectors, &put(folder.path(), "a.doc", b"some"), "a name that ends in .npy");
    assert!(!unknown.to_string().contains("Python"), "{unknown}");
    let write = |name: &str, columns: &[(&str, samples::Column)]| {
        let path = folder.path().join(name);
        samples::write_columns(&path, columns, WriterProperties::builder().build());
        VectorSource::path(path)
    };
    let texts = samples::Column::Texts(vec!["[1,2]", "[3,4]"]);
    let ids = || ("id", samples::Column::Texts(vec!["a", "b"]));
    expect(
        Reader::Vectors,
        &write("texts.parquet", &[ids(), ("v", texts)]),
        "json.loads(v) for v in t[\"v\"]",
    );
    let number = |name| (name, samples::Column::Doubles(vec![1.0, 2.0]));
    let coordinates = write("coordinates.parquet", &[ids(), number("x0"), number("x1"), number("x2")]);
    expect(Reader::Vectors, &coordinates, "t.column_names.index(\"x0\"):t.column_names.index(\"x2\") + 1");
}

#[test]
fn a_column_id_that_cannot_be_ids_is_not_taken_for_none() {
    for column in ["id", "_id"] {
        expect_no_ids(column);
    }
}

fn expect_no_ids(column: &str) {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, ids: samples::Column| {
        let path = folder.path().join(name);
        let vectors = vec![Some(vec![Some(1.0), Some(2.0)]); 2];
        let columns = [(column, ids), ("v", samples::Column::Lists(samples::Form::Required, vectors))];
        samples::write_columns(&path, &columns, WriterProperties::builder().build());
        VectorSource::path(path)
    };
    let sound = write("sound.parquet", samples::Column::Texts(vec!["a", "b"]));
    let unfit = write("unfit.parquet", samples::Column::Doubles(vec![1.0, 2.0]));
    let words = format!("unfit.parquet: column {column:?} cannot be ids");
    let words = words.as_str();
    assert_eq!(rehang_files::read_matrix(&unfit).unwrap().rows(), 2);
    rehang_files::expect_same_items(&[from_ref(&unfit), &[]]).unwrap();
    let error =
        rehang_files::expect_same_items(&[from_ref(&sound), from_ref(&unfit)]).unwrap_err().to_string();
    assert!(error.contains(words), "{error}");

    let space = |name| Space::new(name, 2, Distance::L2, false);
    let adapter = Arc::new(Adapter::identity(space("v1"), space("v2"), None).unwrap());
    let transformed = |input: &[VectorSource], output: &str| {
        let adapter = AdapterSource::Given("mine".into(), Arc::clone(&adapter));
        let wanted = TransformFiles {
            input: input.to_vec(),
            output: Some(folder.path().join(output)),
            ..TransformFiles::new(adapter, sound.clone())
        };
        transform(&wanted, &Progress::default())
    };
    transformed(from_ref(&sound), "sound-too.parquet").unwrap();
    // A `.npy` has no place for ids.
    transformed(from_ref(&unfit), "unfit.npy").unwrap();
    for input in [from_ref(&unfit), &[sound.clone(), unfit.clone()]] {
        let error = transformed(input, "out.parquet").unwrap_err().to_string();
        assert!(error.contains(words) && !folder.path().join("out.parquet").exists(), "{error}");
    }
}

#[test]
fn a_column_of_a_file_without_columns_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = put(folder.path(), "a.npy", &npy("<f4", "(1, 1)", &[0; 4])).path;
    let mut source = VectorSource::path(path);
    source.column = Some("vector".into());
    expect(Reader::Vectors, &source, "has no columns to name");
    assert!(VectorSource::parse("").is_err() && VectorSource::parse("a.parquet#").is_err());
}

#[test]
fn files_of_different_width_do_not_go_together_and_the_odd_one_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let two = put(folder.path(), "two.npy", &npy("<f4", "(1, 2)", &[0; 8]));
    let three = put(folder.path(), "three.fvecs", &fvecs(&[&[1.0, 2.0, 3.0]]));
    let error = rehang_files::read_matrices(&[two.clone(), two, three]).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::WidthMismatch { what, expected: 2, received: 3 } if what.ends_with("three.fvecs")),
        "{error}"
    );
    assert!(matches!(rehang_files::read_matrices(&[]).unwrap_err().kind(), ErrorKind::Empty { .. }));
}

#[test]
fn a_number_that_is_not_finite_is_named_by_its_row_in_the_whole_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut data = vec![0.0_f32; 20];
    data[15] = f32::NAN;
    let matrix = Matrix::new(2, data).unwrap();
    for name in ["a.npy", "a.parquet", "a.fvecs", "a.safetensors"] {
        let path = folder.path().join(name);
        rehang_files::write_matrix(&path, &matrix, None).unwrap();
        let mut reader = stream::open(&VectorSource::path(path)).unwrap();
        let mut batch = RowBatch::default();
        let found = loop {
            assert!(reader.next_batch(3, &mut batch).unwrap() > 0);
            if let Err(error) = batch.check_finite(name, 2) {
                break error;
            }
        };
        assert_eq!(*found.kind(), ErrorKind::NotFinite { what: name.into(), row: 7, column: 1 });
    }
}

#[test]
fn outputs_that_cannot_be_are_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let matrix = Matrix::zeros(2, 2);
    let ids = Ids::Integers(vec![1, 2]);
    let refused = |name: &str, ids: Option<&Ids>, words: &str| {
        let error =
            rehang_files::write_matrix(folder.path().join(name), &matrix, ids).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains(name), "{error}");
    };
    refused("a.npz", None, "expected a name that ends in");
    refused("a", None, "expected a name that ends in");
    refused("a.bvecs", None, "expected a name that ends in");
    refused("a.npy", Some(&ids), "a .parquet file");
    refused("missing/a.npy", None, "there is no folder");
    for count in [1, 3] {
        let ids = Ids::Integers(vec![0; count]);
        assert!(
            rehang_files::write_matrix(folder.path().join("a.parquet"), &matrix, Some(&ids))
                .unwrap_err()
                .is_mismatch()
        );
    }
    assert!(rehang_files::write_f32(folder.path().join("sigma.parquet"), &[1.0]).is_err());
    assert!(rehang_files::write_order(folder.path().join("order.txt"), &[0]).is_err());
    assert_eq!(fs_err::read_dir(folder.path()).unwrap().count(), 0, "something half-written is left behind");
}

/// Reads `bytes` as every format with every reader. A panic anywhere is reported with the format.
fn survive(folder: &Path, bytes: &[u8], extensions: &[&str]) {
    let outcome = catch_unwind(|| rehang_files::array_from_bytes(bytes, "fuzz").is_ok());
    assert!(outcome.is_ok(), "an array panics: {bytes:?}");
    for extension in extensions {
        let source = put(folder, &format!("fuzz.{extension}"), bytes);
        for reader in Reader::ALL {
            let outcome = catch_unwind(AssertUnwindSafe(|| reader.read(&source).is_ok()));
            assert!(outcome.is_ok(), "{reader:?} panics on .{extension}: {bytes:?}");
        }
    }
}

/// Two thousand bytes that say one number a hundred million times: nothing of that size is allocated.
#[test]
fn a_parquet_file_claims_no_more_than_its_size_can_hold() {
    let bomb = concat!(env!("CARGO_MANIFEST_DIR"), "/../../xtask/fuzz/corpus/parquet/millions-of-one-value");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("label.parquet");
    fs_err::copy(bomb, &path).unwrap();
    let error = rehang_files::read_labels(&VectorSource::path(&path)).map(drop).unwrap_err();
    assert!(error.is_corrupt() && error.to_string().contains("134217727 values"), "{error}");
}

/// A page of a million zeros that claims to hold 120 MiB: no room is made for them. (A claim of more bytes
/// would not fit into the header.)
#[test]
fn a_page_of_a_parquet_file_claims_no_more_than_its_bytes_can_hold() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("zeros.parquet");
    samples::write_zeros(&path, 300_000);
    let source = VectorSource::path(&path);
    assert_eq!(rehang_files::read_matrix(&source).unwrap().rows(), 300_000);
    let mut bytes = fs_err::read(&path).unwrap();
    // The header of the first page: its type, and its size without compression in four bytes.
    assert!(&bytes[..4] == b"PAR1" && bytes[4..7] == [0x15, 0x00, 0x15] && bytes[10] < 0x80);
    let claim = 2 * 120_u32 * 1024 * 1024;
    for (at, shift) in [0, 7, 14, 21].into_iter().enumerate() {
        bytes[7 + at] = (claim >> shift) as u8 & 0x7f | if at < 3 { 0x80 } else { 0 };
    }
    fs_err::write(&path, &bytes).unwrap();
    let error = rehang_files::read_matrix(&source).unwrap_err();
    let text = error.to_string();
    assert!(error.is_corrupt() && text.contains("claims to hold 125829120, more than they can"), "{text}");
}

/// Healthy files of every format, to be damaged. Writing a file waits for the disk, so it is done once.
static HEALTHY: LazyLock<Vec<(&'static str, Vec<u8>)>> = LazyLock::new(healthy);

fn healthy() -> Vec<(&'static str, Vec<u8>)> {
    let folder = tempfile::tempdir().unwrap();
    let matrix = Matrix::from_fn(5, 3, |row, column| row as f32 - column as f32 / 4.0);
    let ids = Ids::Texts((0..5).map(|row| format!("item {row}")).collect());
    let mut all = Vec::new();
    for extension in ["npy", "parquet", "fvecs", "safetensors"] {
        let path: PathBuf = folder.path().join(format!("a.{extension}"));
        rehang_files::write_matrix(&path, &matrix, (extension == "parquet").then_some(&ids)).unwrap();
        all.push((extension, fs_err::read(&path).unwrap()));
    }
    let path = folder.path().join("compressed.parquet");
    samples::write_parquet(&path, "compressed.parquet");
    all.push(("parquet", fs_err::read(&path).unwrap()));
    all.push(("npy", npy("<U3", "(2,)", &[b'a'; 24])));
    all
}

#[test]
fn a_file_cut_short_anywhere_never_panics_and_never_reads_as_whole() {
    let folder = tempfile::tempdir().unwrap();
    for (extension, bytes) in HEALTHY.iter() {
        let step = (bytes.len() / 150).max(1);
        for length in (0..bytes.len()).step_by(step) {
            let source = put(folder.path(), &format!("cut.{extension}"), &bytes[..length]);
            // A file of rows without a header, cut between two rows, is a shorter valid file.
            if *extension != "fvecs" || length % 16 != 0 {
                assert!(
                    Reader::Vectors.read(&source).is_err(),
                    ".{extension} cut at {length} reads as whole"
                );
            }
            survive(folder.path(), &bytes[..length], &[extension]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        magic in 0_usize..4,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let magic: &[u8] = [b"".as_slice(), b"\x93NUMPY\x01\x00", b"PAR1", b"\x10\0\0\0\0\0\0\0{"][magic];
        let mut all = magic.to_vec();
        all.extend(&bytes);
        if magic == b"PAR1" {
            all.extend((bytes.len() as u32).to_le_bytes());
            all.extend(b"PAR1");
        }
        let extensions =
            ["npy", "parquet", "fvecs", "bvecs", "ivecs", "fbin", "u8bin", "safetensors", "txt", "jsonl"];
        survive(folder.path(), &all, &extensions);
    }

    #[test]
    fn flipped_bits_never_panic(
        flips in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let folder = tempfile::tempdir().unwrap();
        for (extension, bytes) in HEALTHY.iter() {
            let mut bytes = bytes.clone();
            for (at, value) in &flips {
                let at = at.index(bytes.len());
                bytes[at] ^= value;
            }
            survive(folder.path(), &bytes, &[extension]);
        }
    }
}
