//! Files come back as they were written, in every format, and mean the same to NumPy and Arrow as here.

use std::path::Path;
use std::process::Command;

use parquet::file::properties::WriterProperties;
use proptest::prelude::*;
use rehang_core::Matrix;
use rehang_files::join::{MissingPolicy, by_id};
use rehang_files::qrels::read_qrels;
use rehang_files::stream::{self, Columns, RowBatch};
use rehang_files::{ArrayNumbers, IdKind, Ids, LabelValues, VectorSource};

use crate::samples::{self, fvecs, npy, npy_with, safetensors};

fn put(folder: &Path, name: &str, bytes: &[u8]) -> VectorSource {
    let path = folder.join(name);
    samples::write(&path, bytes);
    VectorSource::path(path)
}

fn little(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn a_npy_file_is_written_byte_for_byte_as_numpy_writes_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npy");
    rehang_files::write_matrix(&path, &Matrix::new(2, vec![1.0, -2.0, 0.5, 0.0, 3.0, 4.0]).unwrap(), None)
        .unwrap();
    // numpy.save(…, numpy.array([[1, -2], [.5, 0], [3, 4]], dtype="<f4"))
    let mut expected =
        b"\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }".to_vec();
    expected.resize(127, b' ');
    expected.push(b'\n');
    expected.extend(
        b"\x00\x00\x80\x3f\x00\x00\x00\xc0\x00\x00\x00\x3f\x00\x00\x00\x00\x00\x00\x40\x40\x00\x00\x80\x40",
    );
    assert_eq!(fs_err::read(&path).unwrap(), expected);
    let path = folder.path().join("order.npy");
    rehang_files::write_order(&path, &[1, 0]).unwrap();
    let bytes = fs_err::read(&path).unwrap();
    assert!(
        bytes.starts_with(
            b"\x93NUMPY\x01\x00\x76\x00{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }"
        )
    );
    assert_eq!(bytes[128..], [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn a_fvecs_file_is_written_byte_for_byte_as_it_is_defined() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.fvecs");
    rehang_files::write_matrix(&path, &Matrix::new(2, vec![1.0, -2.0, 0.5, 0.0]).unwrap(), None).unwrap();
    let expected =
        b"\x02\x00\x00\x00\x00\x00\x80\x3f\x00\x00\x00\xc0\x02\x00\x00\x00\x00\x00\x00\x3f\x00\x00\x00\x00";
    assert_eq!(fs_err::read(&path).unwrap(), expected);
}

#[test]
fn a_file_that_says_its_rows_and_coordinates_in_front_is_read_whole_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let with_header = |rows: u32, width: u32, numbers: &[u8]| {
        [&rows.to_le_bytes()[..], &width.to_le_bytes()[..], numbers].concat()
    };
    let read = |name: &str, bytes: &[u8]| rehang_files::read_matrix(&put(folder.path(), name, bytes));
    let numbers = [1.0, -2.0, 3.5, 4.0, 5.0, 6.0];
    let matrix = read("a.fbin", &with_header(2, 3, &little(&numbers))).unwrap();
    assert_eq!((matrix.rows(), matrix.as_slice()), (2, &numbers[..]));
    assert_eq!(read("a.u8bin", &with_header(1, 2, &[7, 255])).unwrap().as_slice(), [7.0, 255.0]);
    assert_eq!(read("a.i8bin", &with_header(1, 2, &[7, 255])).unwrap().as_slice(), [7.0, -1.0]);
    let labels = put(folder.path(), "label.i8bin", &with_header(3, 1, &[1, 2, 255]));
    assert_eq!(rehang_files::read_labels(&labels).unwrap(), [1, 2, -1]);
    for (bytes, words) in [
        (with_header(2, 3, &little(&numbers[1..])), "claims 2 rows of 3 coordinates (32 bytes) and has 28"),
        (with_header(u32::MAX, u32::MAX, &little(&numbers)), "no .fbin file"),
        (with_header(2, 0, &[]), "claims 2 rows of 0"),
        (vec![1, 0, 0, 0, 3], "ends inside the numbers"),
        (with_header(0, 3, &[]), "is empty"),
    ] {
        let error = read("bad.fbin", &bytes).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("bad.fbin"), "{error}");
    }
}

#[test]
fn a_npy_file_of_every_number_type_and_order_is_the_same_matrix() {
    let folder = tempfile::tempdir().unwrap();
    let values = [0.0_f32, 1.0, 2.0, 3.0, 4.0, 5.0];
    let mut cases: Vec<(String, Vec<u8>)> = Vec::new();
    macro_rules! number {
        ($kind:literal, $type:ty) => {
            let little: Vec<u8> = values.iter().flat_map(|&value| (value as $type).to_le_bytes()).collect();
            let big: Vec<u8> = values.iter().flat_map(|&value| (value as $type).to_be_bytes()).collect();
            cases.push((concat!("<", $kind).into(), little));
            cases.push((concat!(">", $kind).into(), big));
        };
    }
    number!("f4", f32);
    number!("f8", f64);
    number!("i1", i8);
    number!("i2", i16);
    number!("i4", i32);
    number!("i8", i64);
    number!("u1", u8);
    number!("u2", u16);
    number!("u4", u32);
    number!("u8", u64);
    cases.push(("<f2".into(), values.iter().flat_map(|&v| half::f16::from_f32(v).to_le_bytes()).collect()));
    cases.push((">f2".into(), values.iter().flat_map(|&v| half::f16::from_f32(v).to_be_bytes()).collect()));
    cases.push(("|u1".into(), vec![0, 1, 2, 3, 4, 5]));
    for (description, body) in cases {
        let source = put(folder.path(), "a.npy", &npy(&description, "(2, 3)", &body));
        let matrix = rehang_files::read_matrix(&source).unwrap();
        assert_eq!((matrix.columns(), matrix.as_slice()), (3, values.as_slice()), "{description}");
        for version in [1, 2, 3] {
            let header = format!("{{'shape': (3L, 2L), 'fortran_order': True, \"descr\": '{description}'}}");
            let source = put(folder.path(), "b.npy", &npy_with(version, &header, &body));
            let matrix = rehang_files::read_matrix(&source).unwrap();
            assert_eq!(matrix.as_slice(), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0], "{description} in Fortran order");
        }
    }
    let source = put(folder.path(), "bool.npy", &npy("|b1", "(1, 3)", &[0, 1, 1]));
    assert_eq!(rehang_files::read_matrix(&source).unwrap().as_slice(), [0.0, 1.0, 1.0]);
}

#[test]
fn an_array_of_any_shape_keeps_bytes_integers_and_floats_apart() {
    let folder = tempfile::tempdir().unwrap();
    let read = |bytes: &[u8]| {
        let path = folder.path().join("a.npy");
        samples::write(&path, bytes);
        let array = rehang_files::read_array(&path).unwrap();
        assert_eq!(rehang_files::array_from_bytes(bytes, "a.npy").unwrap(), array);
        (array.shape, array.numbers)
    };
    let bytes: Vec<u8> = (0..24).collect();
    let (shape, numbers) = read(&npy("|u1", "(2, 3, 4)", &bytes));
    assert_eq!((shape, numbers), (vec![2, 3, 4], ArrayNumbers::Bytes(bytes.clone())));
    // The number at [i, j, k] stands at i + 2 j + 6 k in Fortran order.
    let header = "{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3, 4), }";
    let (_, numbers) = read(&npy_with(1, header, &bytes));
    let expected = (0..2).flat_map(|i| (0..3).flat_map(move |j| (0..4).map(move |k| i + 2 * j + 6 * k)));
    assert_eq!(numbers, ArrayNumbers::Bytes(expected.collect()));
    let wide: Vec<u8> = [-1_i16, 300].into_iter().flat_map(i16::to_be_bytes).collect();
    assert_eq!(read(&npy(">i2", "(2, 1, 1)", &wide)).1, ArrayNumbers::Integers(vec![-1, 300]));
    assert_eq!(read(&npy("|b1", "(2,)", &[0, 1])).1, ArrayNumbers::Integers(vec![0, 1]));
    let half = 0.5_f64.to_le_bytes();
    assert_eq!(read(&npy("<f8", "()", &half)), (vec![], ArrayNumbers::Floats(vec![0.5])));
    assert_eq!(read(&npy("<f4", "(0, 5)", &[])), (vec![0, 5], ArrayNumbers::Floats(vec![])));

    let text = rehang_files::array_from_bytes(&npy("|S1", "(2,)", b"ab"), "labels").unwrap_err();
    assert!(text.to_string().contains("labels") && text.to_string().contains("text"), "{text}");
    assert!(
        rehang_files::array_from_bytes(&[], "nothing").unwrap_err().to_string().contains("nothing is empty")
    );
    let huge = npy("<u8", "(1,)", &u64::MAX.to_le_bytes());
    assert!(rehang_files::array_from_bytes(&huge, "huge").unwrap_err().is_corrupt());
    let truncated = npy("<f4", "(2, 2, 2)", &[0; 31]);
    assert!(rehang_files::array_from_bytes(&truncated, "cut").unwrap_err().to_string().contains("truncated"));
}

#[test]
fn labels_are_read_with_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let source = put(folder.path(), "a.npy", &npy("|S2", "(3,)", b"b\0ccb\0"));
    let names = ["b", "cc", "b"].map(str::to_string).to_vec();
    assert_eq!(rehang_files::read_label_values(&source).unwrap(), LabelValues::Texts(names));
    let source = put(folder.path(), "b.npy", &npy("|u1", "(2,)", &[7, 3]));
    assert_eq!(rehang_files::read_label_values(&source).unwrap(), LabelValues::Numbers(vec![7, 3]));
}

#[test]
fn labels_come_from_integers_text_and_lines() {
    let folder = tempfile::tempdir().unwrap();
    let read =
        |name: &str, bytes: &[u8]| rehang_files::read_labels(&put(folder.path(), name, bytes)).unwrap();
    assert_eq!(read("a.npy", &npy("|u1", "(3,)", &[5, 0, 255])), [5, 0, 255]);
    assert_eq!(read("a.npy", &npy("|b1", "(2, 1)", &[1, 0])), [1, 0]);
    assert_eq!(read("a.npy", &npy(">i2", "(2,)", &[0xff, 0xff, 0, 7])), [-1, 7]);
    assert_eq!(read("a.npy", &npy("<i8", "(1,)", &(-5_i64).to_le_bytes())), [-5]);
    assert_eq!(read("a.npy", &npy("|S2", "(3,)", b"b\0ccb\0")), [0, 1, 0]);
    assert_eq!(read("a.npy", &npy("<U1", "(2,)", &[b'x', 0, 0, 0, b'y', 0, 0, 0])), [0, 1]);
    assert_eq!(read("a.txt", b"\xef\xbb\xbf3\r\n-1\r\n3\r\n"), [3, -1, 3]);
    assert_eq!(read("a.txt", b"dog\ncat\ndog"), [0, 1, 0]);
    // A column with a gap somewhere is often written with 2.0 for 2.
    assert_eq!(read("a.txt", b"1.0\n-1.0\n2\n"), [1, -1, 2]);
    assert_eq!(read("a.npy", &npy("<f8", "(1,)", &7_f64.to_le_bytes())), [7]);
    assert_eq!(read("a.npy", &npy("<f4", "(1,)", &16_777_215_f32.to_le_bytes())), [16_777_215]);
    assert_eq!(read("a.npy", &npy("<f2", "(1,)", &half::f16::from_f32(-2047.0).to_le_bytes())), [-2047]);
    assert_eq!(read("a.ivecs", &[3, 0, 0, 0, 9, 0, 0, 0, 8, 0, 0, 0, 7, 0, 0, 0]), [9, 8, 7]);
    assert_eq!(read("b.ivecs", &[1, 0, 0, 0, 9, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0]), [9, 7]);
    let header = r#"{"y":{"dtype":"I64","shape":[2],"data_offsets":[0,16]}}"#;
    assert_eq!(
        read("a.safetensors", &safetensors(header, &[[1; 8], [0; 8]].concat())),
        [0x0101_0101_0101_0101, 0]
    );
    let scalars = folder.path().join("scalars.parquet");
    samples::write_parquet(&scalars, "scalars.parquet");
    assert_eq!(rehang_files::read_labels(&VectorSource::path(&scalars)).unwrap(), [7, 8]);
    let ids: VectorSource = format!("{}#id", scalars.display()).parse().unwrap();
    assert_eq!(rehang_files::read_labels(&ids).unwrap(), [0, 1]);
    assert_eq!(
        rehang_files::read_f32_column(&VectorSource::path(&scalars)).unwrap_err().to_string().lines().count(),
        1
    );
    let score: VectorSource = format!("{}#score", scalars.display()).parse().unwrap();
    assert_eq!(rehang_files::read_f32_column(&score).unwrap(), [0.5, 1.5]);
}

#[test]
fn ids_come_from_columns_lines_and_json() {
    let folder = tempfile::tempdir().unwrap();
    let read =
        |name: &str, bytes: &[u8]| rehang_files::read_ids(&put(folder.path(), name, bytes)).unwrap().unwrap();
    assert_eq!(read("a.txt", b"007\n8\n"), ["007", "8"]);
    assert_eq!(read("a.npy", &npy("<i4", "(2,)", &[1, 0, 0, 0, 2, 0, 0, 0])), ["1", "2"]);
    assert_eq!(read("a.jsonl", b"{\"_id\": \"d1\", \"id\": 4}\n{\"id\": 5}\n"), ["d1", "5"]);
    // Labels of JSON lines are numbers where all of them are, as in any other file.
    let labels = |bytes: &[u8]| rehang_files::read_labels(&put(folder.path(), "l.jsonl", bytes)).unwrap();
    assert_eq!(labels(b"{\"label\": 4}\n{\"label\": -1}\n"), [4, -1]);
    assert_eq!(labels(b"{\"label\": \"b\"}\n{\"label\": \"a\"}\n{\"label\": \"b\"}\n"), [0, 1, 0]);
    let scalars = folder.path().join("scalars.parquet");
    samples::write_parquet(&scalars, "scalars.parquet");
    assert_eq!(rehang_files::read_ids(&VectorSource::path(scalars)).unwrap().unwrap(), ["a", "b"]);
    let without = folder.path().join("without.parquet");
    samples::write_parquet(&without, "two_lists.parquet");
    assert_eq!(rehang_files::read_ids(&VectorSource::path(without)).unwrap(), None);
}

#[test]
fn every_form_of_list_in_every_compression_is_the_same_matrix() {
    use parquet::basic::{Compression, ZstdLevel};
    use parquet::file::properties::WriterVersion;

    let folder = tempfile::tempdir().unwrap();
    let rows: Vec<Vec<f32>> =
        (0..500).map(|row| (0..7).map(|column| ((row * 7 + column) % 90) as f32).collect()).collect();
    let path = folder.path().join("a.parquet");
    for compression in [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::LZ4_RAW,
        Compression::ZSTD(ZstdLevel::default()),
    ] {
        for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
            // Dictionaries are what pandas and pyarrow write by default, and pages end in the middle of
            // batches.
            let properties = WriterProperties::builder()
                .set_compression(compression)
                .set_writer_version(version)
                .set_data_page_row_count_limit(23)
                .set_write_batch_size(23)
                .set_max_row_group_row_count(Some(111))
                .build();
            let lists: Vec<samples::Row> =
                rows.iter().map(|row| Some(row.iter().copied().map(Some).collect())).collect();
            let columns = ["optional", "required", "two_levels", "bare"].into_iter().zip(samples::Form::ALL);
            let columns: Vec<(&str, samples::Column)> =
                columns.map(|(name, form)| (name, samples::Column::Lists(form, lists.clone()))).collect();
            samples::write_columns(&path, &columns, properties);
            for (column, _) in columns {
                let source: VectorSource = format!("{}#{column}", path.display()).parse().unwrap();
                let matrix = rehang_files::read_matrix(&source).unwrap();
                assert_eq!(
                    (matrix.columns(), matrix.into_data()),
                    (7, rows.concat()),
                    "{column} {compression}"
                );
            }
        }
    }
}

#[test]
fn a_stream_keeps_ids_in_their_type_and_writes_sigma_beside_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let rows = 1000;
    for kind in [IdKind::Integer, IdKind::Text] {
        let ids = match kind {
            IdKind::Integer => Ids::Integers((0..rows as i64).map(|row| row * row).collect()),
            IdKind::Text => Ids::Texts((0..rows).map(|row| format!("ä{row}")).collect()),
        };
        let vectors: Vec<f32> = (0..rows * 3).map(|at| at as f32).collect();
        let sigma2: Vec<f32> = (0..rows).map(|row| row as f32 / 8.0).collect();
        let mut writer = stream::create(&path, Columns { width: 3, ids: Some(kind), sigma2: true }).unwrap();
        writer.write(&vectors, Some(&ids), Some(&sigma2)).unwrap();
        assert!(writer.write(&vectors, None, Some(&sigma2)).is_err());
        assert_eq!(writer.commit().unwrap(), rows as u64);
        assert_eq!(rehang_files::read_f32_column(&VectorSource::path(&path)).unwrap(), sigma2);
        let mut reader = stream::open(&VectorSource::path(&path)).unwrap();
        assert_eq!((reader.id_kind(), reader.rows_total(), reader.width()), (Some(kind), rows as u64, 3));
        let (mut batch, mut all) = (RowBatch::default(), Ids::none(kind));
        let mut read = Vec::new();
        while reader.next_batch(77, &mut batch).unwrap() > 0 {
            assert_eq!(batch.first_row as usize, read.len() / 3);
            read.extend_from_slice(&batch.vectors);
            all.append(batch.ids.take().unwrap());
        }
        assert_eq!((read, all), (vectors, ids));
        assert_eq!(reader.next_batch(77, &mut batch).unwrap(), 0);
    }
}

#[test]
fn a_file_that_another_one_replaces_is_read_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let [path, other] = ["a.parquet", "b.parquet"].map(|name| folder.path().join(name));
    let write = |path: &Path, number: i64| {
        let vectors = vec![Some(vec![Some(number as f32)]); 20];
        let columns = [
            ("id", samples::Column::Integers(vec![Some(number); 20])),
            ("v", samples::Column::Lists(samples::Form::Required, vectors)),
        ];
        let properties = WriterProperties::builder().set_max_row_group_row_count(Some(10)).build();
        samples::write_columns(path, &columns, properties);
    };
    write(&path, 1);
    write(&other, 2);
    let mut reader = stream::open(&VectorSource::path(&path)).unwrap();
    let mut batch = RowBatch::default();
    for _ in 0..2 {
        assert_eq!(reader.next_batch(10, &mut batch).unwrap(), 10);
        assert_eq!((&batch.vectors[..], &batch.ids), (&[1.0; 10][..], &Some(Ids::Integers(vec![1; 10]))));
        if other.exists() {
            fs_err::rename(&other, &path).unwrap();
        }
    }
}

#[test]
fn several_files_are_read_as_one_in_the_order_given() {
    let folder = tempfile::tempdir().unwrap();
    let first = folder.path().join("first.parquet");
    let matrix = Matrix::new(2, vec![1.0, 2.0, 3.0, 4.0]).unwrap();
    rehang_files::write_matrix(&first, &matrix, Some(&Ids::Integers(vec![10, 11]))).unwrap();
    let second = put(folder.path(), "second.fvecs", &fvecs(&[&[5.0, 6.0]]));
    let sources = [VectorSource::path(&first), second, VectorSource::path(&first)];
    let all = rehang_files::read_matrices(&sources).unwrap();
    assert_eq!(all.as_slice(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1.0, 2.0, 3.0, 4.0]);
    // One of the three has no ids, so the whole has none.
    assert_eq!(stream::open_all(&sources).unwrap().id_kind(), None);
    let mut reader = stream::open_all(&[sources[0].clone(), sources[2].clone()]).unwrap();
    let mut batch = RowBatch::default();
    assert_eq!(reader.next_batch(9, &mut batch).unwrap(), 2);
    assert_eq!(reader.next_batch(9, &mut batch).unwrap(), 2);
    assert_eq!((batch.first_row, batch.ids), (2, Some(Ids::Integers(vec![10, 11]))));
}

#[test]
fn tensors_of_every_floating_type_are_read_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let header = concat!(
        r#"{"h":{"dtype":"F16","shape":[1,2],"data_offsets":[0,4]},"b":{"dtype":"BF16","shape":[1,2],"#,
        r#""data_offsets":[4,8]},"s":{"dtype":"F32","shape":[1,2],"data_offsets":[8,16]},"#,
        r#""d":{"dtype":"F64","shape":[1,2],"data_offsets":[16,32]},"__metadata__":{"k":"v"}}"#
    );
    let mut body = Vec::new();
    body.extend([1.5, -2.0].map(half::f16::from_f32).iter().flat_map(|value| value.to_le_bytes()));
    body.extend([1.5, -2.0].map(half::bf16::from_f32).iter().flat_map(|value| value.to_le_bytes()));
    body.extend(little(&[1.5, -2.0]));
    body.extend([1.5_f64, -2.0].iter().flat_map(|value| value.to_le_bytes()));
    let path = put(folder.path(), "a.safetensors", &safetensors(header, &body)).path;
    for name in ["h", "b", "s", "d"] {
        let source: VectorSource = format!("{}#{name}", path.display()).parse().unwrap();
        assert_eq!(rehang_files::read_matrix(&source).unwrap().as_slice(), [1.5, -2.0], "{name}");
    }
}

#[test]
fn an_order_comes_back_as_it_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("order.npy");
    let order = [3, 0, 2, 1];
    rehang_files::write_order(&path, &order).unwrap();
    assert_eq!(rehang_files::read_order(&VectorSource::path(&path)).unwrap(), order);
    rehang_files::write_f32(folder.path().join("sigma.npy"), &[0.5, f32::INFINITY]).unwrap();
    let sigma = rehang_files::read_f32_column(&VectorSource::path(folder.path().join("sigma.npy"))).unwrap();
    assert_eq!(sigma, [0.5, f32::INFINITY]);
}

#[test]
fn judgements_are_read_with_and_without_a_header_and_in_both_dialects() {
    let folder = tempfile::tempdir().unwrap();
    let ids = |text: &str| text.split(' ').map(str::to_string).collect::<Vec<_>>();
    let (queries, items) = (ids("q1 q2"), ids("a b c"));
    let expected = |second: f64| [vec![(0, 1.0), (2, 2.0)], vec![(1, second)]];
    for (name, text, second) in [
        ("beir.tsv", "query-id\tcorpus-id\tscore\nq1\ta\t1\nq1\tc\t2\nq2\tb\t0\n", 0.0),
        ("bare.tsv", "q1\ta\t1\nq1\tc\t2\nq2\tb\t0\n", 0.0),
        // Junk is taken out of the ranking of its query.
        ("trec.txt", "q1 0 a 1\nq1 0 c 2\nq2 0 b -2\n", -2.0),
    ] {
        let path = put(folder.path(), name, text.as_bytes()).path;
        assert_eq!(read_qrels(&path, &queries, &items).unwrap(), expected(second), "{name}");
    }
    let unknown = "q1\ta\t1\nq9\ta\t1\nq1\tz\t1\n";
    for (text, words) in [
        (unknown, "query \"q9\" (line 2)"),
        (unknown, "item \"z\" (line 3)"),
        ("q1\ta\n", "it has 2 fields"),
        ("q1\ta\t1\nq1\tb\tmuch\n", "line 2: its score \"much\""),
        ("q1\ta\t1\nq1\ta\t2\n", "more than once"),
        ("q9\ta\t1\n", "did not match"),
        ("query-id\tcorpus-id\tscore\n", "is empty"),
        ("", "is empty"),
    ] {
        let path = put(folder.path(), "bad.tsv", text.as_bytes()).path;
        let error = read_qrels(&path, &queries, &items).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn the_judgements_of_a_real_collection_are_read() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/ir_cisi");
    if !data.is_dir() {
        eprintln!("skipped: {} is not here", data.display());
        return;
    }
    let ids = |name: &str| rehang_files::read_ids(&VectorSource::path(data.join(name))).unwrap().unwrap();
    let (queries, items) = (ids("queries.jsonl"), ids("corpus.jsonl"));
    let qrels = read_qrels(data.join("qrels.tsv"), &queries, &items).unwrap();
    let answered = qrels.iter().filter(|items| items.iter().any(|&(_, gain)| gain > 0.0)).count();
    assert_eq!((queries.len(), items.len(), answered), (76, 1460, 76));
    let vectors = rehang_files::read_matrix(&VectorSource::path(data.join("docs_old.npy"))).unwrap();
    assert_eq!(vectors.rows(), items.len());
    let joined = by_id(("corpus", &items), ("corpus", &items), MissingPolicy::Error).unwrap();
    assert_eq!(joined.rows.len(), items.len());
}

/// Python program: files that NumPy, pyarrow and safetensors write are read here, and files that are written
/// here are read there.
const PYTHON: &str = r#"
import sys, pathlib, numpy as np, pyarrow as pa, pyarrow.parquet as pq
folder, step = pathlib.Path(sys.argv[1]), sys.argv[2]
rows = (np.arange(600 * 5, dtype=np.float32).reshape(600, 5) % 17 - 8) / 4
if step == "write":
    np.save(folder / "f4.npy", rows)
    np.save(folder / "f2.npy", rows.astype(np.float16))
    np.save(folder / "f8_fortran.npy", np.asfortranarray(rows.astype(">f8")))
    np.save(folder / "labels.npy", (np.arange(600) % 7).astype(np.uint8))
    np.save(folder / "words.npy", np.array(["b", "äé", "b"]))
    for name, kind, dtype in [("list", pa.list_(pa.float32()), "f4"), ("fixed", pa.list_(pa.float32(), 5), "f4"),
                              ("large", pa.large_list(pa.float64()), "f8"), ("half", pa.list_(pa.float16()), "f2"),
                              ("int8", pa.list_(pa.int8()), "i1")]:
        data = (rows * 4 if dtype == "i1" else rows).astype(dtype)
        table = pa.table({"id": [f"item {i}" for i in range(600)], "class": pa.array(["x", "y", "z"] * 200),
                          "vector": pa.array(list(data), type=kind)})
        for compression in ["snappy", "zstd", "lz4", "none"]:
            pq.write_table(table, folder / f"{name}_{compression}.parquet", compression=compression,
                           row_group_size=250, data_page_size=1000)
    # Dictionary pages of text with nulls allowed are what pandas writes.
else:
    for ids in ["text", "integer", "none"]:
        for sigma2 in [False, True]:
            table = pq.read_table(folder / f"ours_{ids}_{str(sigma2).lower()}.parquet")
            vector = pa.list_(pa.field("element", pa.float32(), nullable=False), 5)
            fields = {"text": [("id", pa.string())], "integer": [("id", pa.int64())], "none": []}[ids]
            fields = fields + [("vector", vector)] + [("sigma2", pa.float32())] * sigma2
            assert table.schema == pa.schema([pa.field(*field, nullable=False) for field in fields]), table.schema
            assert np.array_equal(np.array(table["vector"].to_pylist(), dtype=np.float32), rows)
            if ids != "none":
                expected = [f"item {i}" for i in range(600)] if ids == "text" else list(range(600))
                assert table["id"].to_pylist() == expected
            assert not sigma2 or table["sigma2"].to_pylist() == [i / 8 for i in range(600)]
    for name in ["ours.npy"]:
        read = np.load(folder / name)
        assert read.dtype == np.dtype("<f4") and np.array_equal(read, rows)
    order = np.load(folder / "order.npy")
    assert order.dtype == np.int64 and order.tolist() == list(range(599, -1, -1))
    np.save(folder / "theirs.npy", rows)
    assert (folder / "theirs.npy").read_bytes() == (folder / "ours.npy").read_bytes()
    try:
        from safetensors.numpy import load_file
    except ImportError:
        pass
    else:
        assert np.array_equal(load_file(folder / "ours.safetensors")["vectors"], rows)
print("done")
"#;

#[test]
fn numpy_and_pyarrow_read_what_is_written_here_and_the_other_way_round() {
    let python = std::env::var("REHANG_PYTHON").unwrap_or_else(|_| "python3".into());
    let available = Command::new(&python).args(["-c", "import numpy, pyarrow.parquet"]).output();
    if !available.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: {python} has no numpy or no pyarrow (set REHANG_PYTHON)");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let run = |step: &str| {
        let output =
            Command::new(&python).arg("-c").arg(PYTHON).arg(folder.path()).arg(step).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    run("write");
    let source = |name: &str| VectorSource::path(folder.path().join(name));
    let expected = Matrix::from_fn(600, 5, |row, column| (((row * 5 + column) % 17) as f32 - 8.0) / 4.0);
    for name in ["f4.npy", "f2.npy", "f8_fortran.npy"] {
        assert_eq!(rehang_files::read_matrix(&source(name)).unwrap(), expected, "{name}");
    }
    assert_eq!(rehang_files::read_labels(&source("labels.npy")).unwrap()[..8], [0, 1, 2, 3, 4, 5, 6, 0]);
    assert_eq!(rehang_files::read_ids(&source("words.npy")).unwrap().unwrap(), ["b", "äé", "b"]);
    for kind in ["list", "fixed", "large", "half", "int8"] {
        for compression in ["snappy", "zstd", "lz4", "none"] {
            let name = format!("{kind}_{compression}.parquet");
            let mut matrix = rehang_files::read_matrix(&source(&name)).unwrap();
            if kind == "int8" {
                matrix.as_mut_slice().iter_mut().for_each(|value| *value /= 4.0);
            }
            assert_eq!(matrix, expected, "{name}");
            assert_eq!(rehang_files::read_labels(&source(&name)).unwrap()[..4], [0, 1, 2, 0], "{name}");
            assert_eq!(rehang_files::read_ids(&source(&name)).unwrap().unwrap()[599], "item 599", "{name}");
        }
    }
    let sigma2: Vec<f32> = (0..600).map(|row| row as f32 / 8.0).collect();
    for (name, ids) in [
        ("text", Some(Ids::Texts((0..600).map(|row| format!("item {row}")).collect()))),
        ("integer", Some(Ids::Integers((0..600).collect()))),
        ("none", None),
    ] {
        for with_sigma2 in [false, true] {
            let path = folder.path().join(format!("ours_{name}_{with_sigma2}.parquet"));
            let columns = Columns { width: 5, ids: ids.as_ref().map(Ids::kind), sigma2: with_sigma2 };
            let mut writer = stream::create(&path, columns).unwrap();
            writer.write(expected.as_slice(), ids.as_ref(), with_sigma2.then_some(&sigma2[..])).unwrap();
            writer.commit().unwrap();
        }
    }
    rehang_files::write_matrix(folder.path().join("ours.npy"), &expected, None).unwrap();
    rehang_files::write_matrix(folder.path().join("ours.safetensors"), &expected, None).unwrap();
    rehang_files::write_order(folder.path().join("order.npy"), &(0..600).rev().collect::<Vec<_>>()).unwrap();
    run("read");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn vectors_come_back_bit_for_bit_in_every_format_and_batch_size(
        rows in 1_usize..200,
        width in 1_usize..40,
        seed in any::<u32>(),
        written in 1_usize..90,
        read in 1_usize..90,
    ) {
        let folder = tempfile::tempdir().unwrap();
        // Numbers of any bits: NaN, infinities and denormal numbers pass through as they are.
        let mut state = seed | 1;
        let vectors: Vec<f32> = (0..rows * width)
            .map(|_| {
                state = state.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
                f32::from_bits(state ^ (state >> 15))
            })
            .collect();
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        for extension in ["npy", "parquet", "pq", "fvecs", "safetensors"] {
            let path = folder.path().join(format!("a.{extension}"));
            let mut writer = stream::create(&path, Columns::vectors(width)).unwrap();
            for chunk in vectors.chunks(written * width) {
                writer.write(chunk, None, None).unwrap();
            }
            prop_assert_eq!(writer.commit().unwrap(), rows as u64);
            let mut reader = stream::open(&VectorSource::path(&path)).unwrap();
            prop_assert_eq!((reader.width(), reader.rows_total()), (width, rows as u64));
            let (mut batch, mut all) = (RowBatch::default(), Vec::new());
            loop {
                let count = reader.next_batch(read, &mut batch).unwrap();
                prop_assert_eq!(count, read.min(rows - all.len() / width));
                if count == 0 {
                    break;
                }
                all.extend_from_slice(&batch.vectors);
            }
            prop_assert_eq!(bits(&all), bits(&vectors), "{}", extension);
            prop_assert_eq!(bits(rehang_files::read_matrix(&VectorSource::path(&path)).unwrap().as_slice()), bits(&vectors));
        }
    }
}
