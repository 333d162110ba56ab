//! Tests that folders of partitions must pass wherever they lie. Every kind of place runs them.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use rehang_core::{Adapter, Distance, Matrix, Progress, Space};
use rehang_files::adapter_file::AdapterSource;
use rehang_files::folders::{Folder, LocalFolder};
use rehang_files::partitions::{Share, TransformFolder, transform_folder};
use rehang_files::thresholds::{SigmaSource, ThresholdFiles, find_thresholds};
use rehang_files::transform::{TransformFiles, transform};
use rehang_files::{Ids, VectorSource};

/// A place where folders can be made.
pub trait Place {
    /// Opens the folder of a name, which need not exist yet.
    fn folder(&self, name: &str) -> Arc<dyn Folder>;

    /// Removes a file of a folder.
    fn remove(&self, folder: &str, name: &str);
}

/// Runs all tests.
pub fn run(place: &dyn Place) {
    files_are_whole_or_not_there(place);
    listed_are_partitions_in_the_order_of_their_names(place);
    each_partition_is_the_file_that_transform_makes_of_it(place);
    what_is_made_is_passed_over_until_something_changes(place);
    notes_of_any_bytes_lead_to_making_it_again(place);
    partitions_without_a_row_have_no_output(place);
    shares_are_all_of_it_and_each_once(place);
    a_bad_partition_is_named_and_the_others_stay(place);
    folders_that_hold_each_other_and_empty_ones_are_refused(place);
    cuts_are_those_of_the_same_numbers_in_one_file(place);
}

fn files_are_whole_or_not_there(place: &dyn Place) {
    let folder = place.folder("files");
    let name = Path::new("deep/a name, with % and =.npy");
    assert!(folder.stamp(name).unwrap().is_none() && folder.read(name).unwrap().is_none());
    let error = folder.fetch(name).unwrap_err().to_string();
    assert!(error.contains("a name, with"), "{error}");
    // Contents of several sizes: object stores begin a second part at 16 MiB.
    let mut before = None;
    for bytes in [0, 1, 1000, (16 << 20) + 1] {
        let content: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
        let stamp = folder
            .put(name, &mut |path| {
                assert_eq!(path.extension().unwrap(), "npy", "the name says the format");
                rehang_files::AtomicFile::write(path, &content)
            })
            .unwrap();
        assert_eq!(stamp.bytes, bytes as u64);
        assert_eq!(folder.stamp(name).unwrap().as_ref(), Some(&stamp));
        assert_ne!(before.replace(stamp.clone()), Some(stamp.clone()));
        let fetched = folder.fetch(name).unwrap();
        assert_eq!(fetched.stamp(), &stamp);
        assert!(fs_err::read(fetched.path()).unwrap() == content);
    }
    // A write that fails on the way leaves the earlier file.
    let made = folder.put(name, &mut |_| Err(rehang_core::Error::empty("this")));
    assert!(made.is_err());
    assert_eq!(folder.stamp(name).unwrap(), before);
    folder.write(name, b"small").unwrap();
    assert_eq!(folder.read(name).unwrap().as_deref(), Some(&b"small"[..]));
    place.remove("files", "deep/a name, with % and =.npy");
    assert!(folder.stamp(name).unwrap().is_none());
}

fn listed_are_partitions_in_the_order_of_their_names(place: &dyn Place) {
    let folder = place.folder("listed");
    let mut partitions: Vec<_> =
        ["b.npy", "a.b/z.parquet", "a/b.PQ", "a-b.fvecs", "_k=v/c.safetensors", "x/y/z=1/d.npy"]
            .map(Path::new)
            .into();
    for name in &partitions {
        folder.write(name, b"").unwrap();
    }
    for other in ["_SUCCESS", "_a.npy", ".a.npy", "_temporary/a.npy", "a/.b/c.npy", "a/b.txt", "no-extension"]
    {
        folder.write(Path::new(other), b"").unwrap();
    }
    // A neighbour whose name begins alike is another folder.
    place.folder("listed-too").write(Path::new("e.npy"), b"").unwrap();
    partitions.sort();
    assert_eq!(folder.list().unwrap(), partitions);
}

fn plant(folder: &dyn Folder, name: &str, matrix: &Matrix) {
    let ids = Ids::Texts((0..matrix.rows()).map(|row| format!("{name} {row}")).collect());
    let ids = name.ends_with(".parquet").then_some(&ids);
    folder.put(Path::new(name), &mut |path| rehang_files::write_matrix(path, matrix, ids)).unwrap();
}

fn rows(rows: usize) -> Matrix {
    Matrix::from_fn(rows, 3, |row, column| (row * 3 + column) as f32)
}

fn adapter(new: &str) -> AdapterSource {
    let space = |name| Space::new(name, 3, Distance::L2, false);
    AdapterSource::Given(new.into(), Adapter::identity(space("v1"), space(new), None).unwrap().into())
}

/// Three partitions of 14 rows.
fn case(place: &dyn Place, name: &str) -> TransformFolder {
    let input = place.folder(&format!("{name}/old"));
    for (name, count) in
        [("a.parquet", 5), ("deep/b=1/c.npy", 7), ("deep/b=2/c.npy", 2), ("_hidden/d.npy", 1)]
    {
        plant(&*input, name, &rows(count));
    }
    input.write(Path::new("_SUCCESS"), b"").unwrap();
    input.write(Path::new("read me.txt"), b"").unwrap();
    TransformFolder {
        adapter: adapter("v2"),
        input,
        column: None,
        output: place.folder(&format!("{name}/new")),
        share: Share::ALL,
        force: false,
        batch: 4,
    }
}

fn made(files: &TransformFolder) -> (usize, usize, u64) {
    let done = transform_folder(files, &Progress::default()).unwrap();
    (done.partitions, done.made, done.vectors)
}

fn bytes(folder: &dyn Folder, name: &Path) -> Vec<u8> {
    fs_err::read(folder.fetch(name).unwrap().path()).unwrap()
}

fn each_partition_is_the_file_that_transform_makes_of_it(place: &dyn Place) {
    let files = case(place, "each");
    assert_eq!(made(&files), (3, 3, 14));
    let alone = tempfile::tempdir().unwrap();
    for name in files.input.list().unwrap() {
        let output = alone.path().join("alone").with_extension(name.extension().unwrap());
        let input = files.input.fetch(&name).unwrap();
        let wanted = TransformFiles {
            output: Some(output.clone()),
            ..TransformFiles::new(files.adapter.clone(), VectorSource::path(input.path()))
        };
        transform(&wanted, &Progress::default()).unwrap();
        assert!(fs_err::read(&output).unwrap() == bytes(&*files.output, &name));
    }
    let names = files.output.list().unwrap();
    assert_eq!(names, files.input.list().unwrap(), "notes are no partitions");
}

fn what_is_made_is_passed_over_until_something_changes(place: &dyn Place) {
    let mut files = case(place, "passed");
    assert_eq!(made(&files), (3, 3, 14));
    assert_eq!(made(&files), (3, 0, 0));
    // An output that is gone, an output that was written over, an input that was replaced.
    place.remove("passed/new", "a.parquet");
    assert_eq!(made(&files), (3, 1, 5));
    files.output.write(Path::new("a.parquet"), b"other bytes").unwrap();
    assert_eq!(made(&files), (3, 1, 5));
    plant(&*files.input, "a.parquet", &rows(6));
    assert_eq!(made(&files), (3, 1, 6));
    // Another column and another adapter make all partitions anew.
    place.remove("passed/old", "deep/b=1/c.npy");
    place.remove("passed/old", "deep/b=2/c.npy");
    files.column = Some("embedding".into());
    let error = transform_folder(&files, &Progress::default()).unwrap_err().to_string();
    assert!(error.contains("a.parquet") && error.contains("embedding"), "{error}");
    files.column = None;
    assert_eq!(made(&files), (1, 0, 0));
    files.adapter = adapter("v3");
    assert_eq!(made(&files), (1, 1, 6));
}

fn notes_of_any_bytes_lead_to_making_it_again(place: &dyn Place) {
    let files = case(place, "notes");
    assert_eq!(made(&files), (3, 3, 14));
    let name = Path::new("_rehang/deep/b=1/c.npy.json");
    let note = files.output.read(name).unwrap().unwrap();
    // Notes that were cut off anywhere, some that are of another thing, and those of the first releases.
    let mut damaged: Vec<Vec<u8>> = (0..note.len()).step_by(7).map(|end| note[..end].to_vec()).collect();
    damaged.push(files.output.read(Path::new("_rehang/a.parquet.json")).unwrap().unwrap());
    let first =
        r#"{"adapter":"x","column":null,"input":{"bytes":1,"written":2},"output":{"bytes":3,"written":4}}"#;
    damaged.push(first.into());
    damaged.extend([b"[]".to_vec(), b"\xff\xfe".to_vec(), b"{\"adapter\":1}".to_vec()]);
    for bytes in damaged {
        files.output.write(name, &bytes).unwrap();
        assert_eq!(made(&files), (3, 1, 7));
    }
    place.remove("notes/new", name.to_str().unwrap());
    assert_eq!(made(&files), (3, 1, 7));
    assert_eq!(made(&files), (3, 0, 0));
}

/// An array of no rows, as NumPy writes it.
fn empty_array(shape: &str) -> Vec<u8> {
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.bytes());
    bytes
}

fn partitions_without_a_row_have_no_output(place: &dyn Place) {
    let files = case(place, "empty");
    files.input.write(Path::new("empty.npy"), &empty_array("(0, 3)")).unwrap();
    files.input.write(Path::new("nothing.parquet"), b"").unwrap();
    let done = transform_folder(&files, &Progress::default()).unwrap();
    assert_eq!((done.partitions, done.made, done.empty), (5, 3, 2));
    assert_eq!(files.output.list().unwrap().len(), 3);
}

fn shares_are_all_of_it_and_each_once(place: &dyn Place) {
    let mut files = case(place, "shares");
    files.share = "1/2".parse().unwrap();
    assert_eq!(made(&files), (2, 2, 7));
    files.share = "2/2".parse().unwrap();
    assert_eq!(made(&files), (1, 1, 7));
    files.share = Share::ALL;
    assert_eq!(made(&files), (3, 0, 0));
}

fn a_bad_partition_is_named_and_the_others_stay(place: &dyn Place) {
    let files = case(place, "bad");
    files.input.write(Path::new("deep/b=1/c.npy"), b"no array").unwrap();
    let error = transform_folder(&files, &Progress::default()).unwrap_err().to_string();
    assert!(error.contains("b=1") && !error.contains("b=2"), "{error}");
    assert_eq!(files.output.list().unwrap(), [Path::new("a.parquet")]);
    place.remove("bad/old", "deep/b=1/c.npy");
    assert_eq!(made(&files), (2, 1, 2));
}

fn folders_that_hold_each_other_and_empty_ones_are_refused(place: &dyn Place) {
    let files = case(place, "apart");
    for output in ["apart/old", "apart/old/new", "apart"] {
        let wrong = TransformFolder { output: place.folder(output), ..files.clone() };
        let error = transform_folder(&wrong, &Progress::default()).unwrap_err().to_string();
        assert!(error.contains("neither may lie in the other"), "{error}");
    }
    assert_eq!(files.input.list().unwrap().len(), 3);
    // A folder whose name begins alike does not lie within the other one.
    let beside = TransformFolder { output: place.folder("apart/old-new"), ..files.clone() };
    assert_eq!(made(&beside), (3, 3, 14));
    let nothing = place.folder("apart/nothing");
    nothing.write(Path::new("read me.txt"), b"").unwrap();
    let error = transform_folder(&TransformFolder { input: nothing, ..files }, &Progress::default());
    assert!(error.unwrap_err().to_string().contains("no file that ends in"));
}

fn cuts_are_those_of_the_same_numbers_in_one_file(place: &dyn Place) {
    let here = tempfile::tempdir().unwrap();
    let folder = place.folder("cuts");
    let (mut all, mut said) = (Vec::new(), String::new());
    for part in 0..7 {
        let values: Vec<f32> =
            (0..part * 40).map(|row| ((row * 31 + part * 7) % 97) as f32 * 0.25 - 3.0).collect();
        let name = format!("day={}/part-{part}.npy", part % 3);
        if values.is_empty() {
            folder.write(Path::new(&name), &empty_array("(0,)")).unwrap();
        } else {
            folder.put(Path::new(&name), &mut |path| rehang_files::write_f32(path, &values)).unwrap();
        }
        all.push((name, values));
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    let all: Vec<f32> = all.into_iter().flat_map(|(_, values)| values).collect();
    rehang_files::write_f32(here.path().join("all.npy"), &all).unwrap();
    let whole = SigmaSource::File(VectorSource::path(here.path().join("all.npy")));
    for sigma in [SigmaSource::Folder(folder, None), whole] {
        let files = ThresholdFiles {
            sigma: vec![sigma],
            first: vec!["10%".parse().unwrap(), "300".parse().unwrap()],
            output: here.path().join("cuts.json"),
        };
        let cuts = find_thresholds(&files, &Progress::default()).unwrap();
        let mut now = String::new();
        write!(now, "{} {:?}", cuts.items, cuts.cuts).unwrap();
        assert!(said.is_empty() || said == now, "{said}\n{now}");
        said = now;
    }
}

/// Folders of this machine, within a temporary folder.
pub struct Here(pub tempfile::TempDir);

impl Place for Here {
    fn folder(&self, name: &str) -> Arc<dyn Folder> {
        Arc::new(LocalFolder::new(self.0.path().join(name)))
    }

    fn remove(&self, folder: &str, name: &str) {
        fs_err::remove_file(self.0.path().join(folder).join(name)).unwrap();
    }
}
