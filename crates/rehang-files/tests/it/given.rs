//! Content that a caller holds in memory, in the place of files: the same answers, the same words.

use std::sync::Arc;

use rehang_core::{Adapter, Distance, Matrix, Progress, Result, Space};
use rehang_files::adapter_file::AdapterSource;
use rehang_files::transform::{TransformFiles, transform};
use rehang_files::{Given, GivenRows, InputReader, Scalars, VectorSource};

fn numbers(rows: usize, width: usize) -> Matrix {
    Matrix::from_fn(rows, width, |row, column| ((row * 31 + column * 7) % 97) as f32 / 97.0)
}

#[test]
fn rows_are_read_a_batch_at_a_time_and_as_files_are() {
    struct Asked(Matrix, std::sync::Mutex<Vec<usize>>);
    impl GivenRows for Asked {
        fn rows(&self) -> u64 {
            self.0.rows() as u64
        }
        fn width(&self) -> usize {
            self.0.columns()
        }
        fn read(&self, first: u64, count: usize, out: &mut Vec<f32>) -> Result<()> {
            self.1.lock().unwrap().push(count);
            GivenRows::read(&self.0, first, count, out)
        }
    }
    let space = |name| Space::new(name, 3, Distance::L2, false);
    let adapter = Arc::new(Adapter::identity(space("v1"), space("v2"), None).unwrap());
    let given = Arc::new(Asked(numbers(1000, 3), std::sync::Mutex::default()));
    let source = VectorSource::given("vectors", Given::Rows(Arc::clone(&given) as _));
    let files = TransformFiles {
        batch: 64,
        ..TransformFiles::new(AdapterSource::Given("mine".into(), Arc::clone(&adapter)), source)
    };
    let made = transform(&files, &Progress::default()).unwrap();
    let (vectors, sigma2) = made.made.unwrap();
    assert_eq!((vectors, sigma2.len(), made.adapted), (numbers(1000, 3), 1000, None));
    assert!(given.1.lock().unwrap().iter().all(|&count| count <= 64));

    // Files give the same vectors.
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    rehang_files::write_matrix(place("old.npy"), &numbers(1000, 3), None).unwrap();
    rehang_files::adapter_file::save(&adapter, place("a.safetensors")).unwrap();
    let by_files = TransformFiles::new(place("a.safetensors"), VectorSource::path(place("old.npy")));
    let (vectors, _) = transform(&by_files, &Progress::default()).unwrap().made.unwrap();
    assert_eq!(vectors, numbers(1000, 3));
}

#[test]
fn what_cannot_be_used_is_named_as_the_caller_names_it() {
    let mut inputs = InputReader::default();
    let mut bad = numbers(4, 2);
    bad.row_mut(2)[1] = f32::NAN;
    let said = |error: rehang_core::Error| error.to_string();
    let error = said(inputs.matrix("old", &[VectorSource::given("old", bad)]).unwrap_err());
    assert!(error.starts_with("old, row 2, column 1 is NaN"), "{error}");
    let empty = VectorSource::given("labels", Scalars::Integers(Vec::new()));
    assert_eq!(
        said(rehang_files::read_labels(&empty).unwrap_err()),
        "labels is empty; give a file with at least one row"
    );
    let rows = VectorSource::given("labels", numbers(3, 1));
    assert!(said(rehang_files::read_labels(&rows).unwrap_err()).contains("one value a row is needed"));
    let fractions = VectorSource::given("ids", Scalars::Floats(vec![0.5], 2f64.powi(53)));
    assert!(said(rehang_files::read_ids(&fractions).unwrap_err()).contains("ids are whole numbers or text"));
    // Content in memory is no file, so an output of its name is none of the inputs.
    inputs.matrix("old", &[VectorSource::given("old", numbers(4, 2))]).unwrap();
    assert!(inputs.expect_apart(&[("output", Some(&"old".into()))]).is_ok());
    assert_eq!(inputs.read[0].path, "old");
}

#[test]
fn one_content_is_equal_to_itself_alone() {
    let source = VectorSource::given("old", numbers(2, 2));
    assert_eq!(source.clone(), source);
    assert_ne!(VectorSource::given("old", numbers(2, 2)), source);
    assert_ne!(VectorSource::path("old"), source);
    assert!(!source.is_file() && VectorSource::path("old").is_file());
    assert!(format!("{source:?}").contains("[2, 2]"));
}
