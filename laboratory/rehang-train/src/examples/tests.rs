//! Examples of every kind, good and bad.

use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};

use ::image::{DynamicImage, GrayImage, ImageFormat, Luma, Rgb, RgbImage};
use proptest::prelude::*;
use rehang_core::{ErrorKind, Matrix};
use rehang_files::{write_labels, write_matrix};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::*;

/// Writes a `.npy` file with any claims and any content.
fn npy(description: &str, shape: &str, body: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{description}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.bytes());
    bytes.extend(body);
    bytes
}

fn put(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    fs_err::create_dir_all(path.parent().unwrap()).unwrap();
    rehang_files::AtomicFile::write(&path, bytes).unwrap();
    path
}

fn npz(folder: &Path, name: &str, method: CompressionMethod, entries: &[(&str, &[u8])]) -> PathBuf {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    for (entry, bytes) in entries {
        writer.start_file(*entry, SimpleFileOptions::default().compression_method(method)).unwrap();
        writer.write_all(bytes).unwrap();
    }
    put(folder, name, writer.finish().unwrap().get_ref())
}

fn encoded(image: &DynamicImage, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    image.write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

fn images(examples: &Examples) -> &Images {
    let ExampleInputs::Images(images) = &examples.inputs else { panic!("no images") };
    images
}

fn arrays(images: impl Into<PathBuf>, labels: impl Into<PathBuf>) -> ExamplesSource {
    ExamplesSource::Arrays {
        images: images.into(),
        labels: labels.into(),
        size: None,
        layout: None,
        scale: None,
        invert: false,
    }
}

/// Fails unless the source is refused with a sentence that holds the words.
#[track_caller]
fn refused(source: &ExamplesSource, words: &[&str]) -> rehang_core::Error {
    let error = Examples::read(source).expect_err("the source should be refused");
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text:?} lacks one of {words:?}");
    assert_eq!(text.lines().count(), 1, "{text:?}");
    error
}

/// Makes grey examples with labels of these counts a class, rows of the classes mixed.
fn grey(counts: &[usize]) -> Examples {
    let mut labels: Vec<u32> = Vec::new();
    for turn in 0..counts.iter().copied().max().unwrap_or(0) {
        labels.extend((0..counts.len()).filter(|&class| counts[class] > turn).map(|class| class as u32));
    }
    let pixels = (0..labels.len() * 12).map(|at| (at * 37 % 251) as u8).collect();
    let images = Images { channels: 1, height: 3, width: 4, pixels };
    let classes = (0..counts.len()).map(|class| format!("class {class}")).collect();
    Examples::new(ExampleInputs::Images(images), labels, classes).unwrap()
}

/// Makes batches of so many classes and items of each, the last one kept.
pub(crate) fn balanced(classes: usize, items: usize) -> super::SamplerParameters {
    super::SamplerParameters::Balanced { classes, items, last: super::LastBatch::Keep }
}

mod reading {
    use super::*;

    #[test]
    fn a_folder_of_folders_is_read_by_class_and_name_and_damage_is_listed() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let flat = |red: u8| DynamicImage::ImageRgb8(RgbImage::from_pixel(4, 4, Rgb([red, 2 * red, 7])));
        let png = |red| encoded(&flat(red), ImageFormat::Png);
        put(root, "dog/b.png", &png(20));
        put(root, "dog/a.PNG", &png(10));
        put(root, "dog/deep/c.jpg", &encoded(&flat(30), ImageFormat::Jpeg));
        put(root, "cat/misnamed.jpeg", &png(40));
        put(root, "cat/notes.txt", b"no image");
        put(root, "cat/broken.png", &png(50)[..40]);
        put(root, "cat/empty.jpg", b"");
        put(root, "nothing/readme.md", b"");
        put(root, "ruined/only.png", b"not an image at all");
        put(root, ".hidden/x.png", &png(60));
        put(root, "stray.png", &png(70));
        let source = ExamplesSource::Folder { path: root.into(), size: [4, 4], channels: 3 };
        let examples = Examples::read(&source).unwrap();
        assert_eq!(examples.classes, ["cat", "dog"]);
        assert_eq!(examples.labels, [0, 1, 1, 1]);
        let images = images(&examples);
        assert_eq!(images.image(0), [[40; 16], [80; 16], [7; 16]].concat());
        assert_eq!(images.image(1), [[10; 16], [20; 16], [7; 16]].concat());
        assert!(images.image(3)[0].abs_diff(30) < 4);
        let left_out: Vec<_> =
            examples.refused.iter().map(|refusal| refusal.what.rsplit('/').next().unwrap()).collect();
        assert_eq!(left_out, ["nothing", "broken.png", "empty.jpg", "only.png"]);
        assert!(examples.refused.iter().all(|refusal| !refusal.why.is_empty()));
        let warnings = examples.check_trainable().unwrap();
        assert!(warnings.len() == 1 && warnings[0].contains("(cat)"), "{warnings:?}");
        assert_eq!(examples, Examples::read(&source).unwrap());
    }

    #[test]
    fn an_image_of_another_shape_is_scaled_and_its_middle_cut_out() {
        let folder = tempfile::tempdir().unwrap();
        // Twice as wide as high: the left and the right quarter fall away.
        let wide = GrayImage::from_fn(16, 8, |x, _| Luma([if (4..12).contains(&x) { 200 } else { 0 }]));
        put(folder.path(), "a/wide.png", &encoded(&DynamicImage::ImageLuma8(wide), ImageFormat::Png));
        let thread = GrayImage::from_pixel(1, 3000, Luma([9]));
        put(folder.path(), "b/thread.png", &encoded(&DynamicImage::ImageLuma8(thread), ImageFormat::Png));
        let read = |size| {
            let source = ExamplesSource::Folder { path: folder.path().into(), size, channels: 1 };
            Examples::read(&source).unwrap()
        };
        let same = read([8, 8]);
        assert_eq!(images(&same).image(0), [200; 64]);
        assert_eq!(images(&same).image(1), [9; 64]);
        assert_eq!(images(&read([8, 16])).image(0)[..16], [[0; 4], [200; 4], [200; 4], [0; 4]].concat());
        let small = read([4, 4]);
        assert!(images(&small).image(0).iter().all(|&pixel| pixel > 150));
        assert_eq!(images(&read([12, 5])).image(1), [9; 60]);
    }

    #[test]
    fn photographs_that_are_cut_off_are_listed() {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/rehang-encode/tests/models");
        for name in ["photo.jpg", "progressive.jpg", "grey.jpg", "inks.jpg"] {
            let folder = tempfile::tempdir().unwrap();
            let whole = fs_err::read(models.join(name)).unwrap();
            put(folder.path(), "a/whole.jpg", &whole);
            let cuts = (1..20).map(|part| whole.len() * part / 20).chain(whole.len() - 40..whole.len());
            let mut left_out = Vec::new();
            for cut in cuts {
                let path = put(folder.path(), &format!("a/{cut:05}.jpg"), &whole[..cut]);
                left_out.push(path.display().to_string());
            }
            let source = ExamplesSource::Folder { path: folder.path().into(), size: [96, 128], channels: 3 };
            let examples = Examples::read(&source).unwrap();
            let refused: Vec<_> = examples.refused.iter().map(|refusal| refusal.what.clone()).collect();
            assert_eq!(refused, left_out, "{name}");
            let lenient = ::image::load_from_memory(&whole).unwrap().into_rgb8();
            let expected: Vec<u8> =
                (0..3).flat_map(|channel| lenient.pixels().map(move |pixel| pixel.0[channel])).collect();
            assert_eq!(images(&examples).pixels, expected, "{name}");
        }
    }

    #[test]
    fn an_image_that_takes_too_much_memory_to_scale_is_listed() {
        let folder = tempfile::tempdir().unwrap();
        let line = DynamicImage::ImageLuma8(GrayImage::new(1 << 24, 1));
        put(folder.path(), "a/line.png", &encoded(&line, ImageFormat::Png));
        let small = DynamicImage::ImageLuma8(GrayImage::new(4, 4));
        put(folder.path(), "a/small.png", &encoded(&small, ImageFormat::Png));
        let source = ExamplesSource::Folder { path: folder.path().into(), size: [224, 224], channels: 1 };
        let examples = Examples::read(&source).unwrap();
        let [refusal] = &*examples.refused else { panic!("{:?}", examples.refused) };
        assert!(refusal.what.ends_with("line.png") && refusal.why.contains("bytes of memory"), "{refusal:?}");
        assert_eq!(examples.len(), 1);
    }

    #[test]
    fn bad_folders_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let source =
            |path: &Path, size, channels| ExamplesSource::Folder { path: path.into(), size, channels };
        refused(&source(&root.join("missing"), [2, 2], 3), &["cannot read", "missing"]);
        refused(&source(root, [2, 2], 3), &["one folder a class"]);
        refused(&source(root, [0, 2], 3), &["height", "1 to 16384"]);
        refused(&source(root, [2, 1 << 20], 3), &["width"]);
        refused(&source(root, [2, 2], 4), &["channels", "1 for grey or 3 for colours"]);
        let file = put(root, "a/x.png", b"damage");
        refused(&source(&file, [2, 2], 3), &["it is a file"]);
        refused(&source(root, [2, 2], 3), &["not one of its 1 images", "x.png"]);
    }

    #[test]
    fn arrays_of_every_shape_and_type_are_the_same_images() {
        let folder = tempfile::tempdir().unwrap();
        let labels = put(
            folder.path(),
            "labels.npy",
            &npy("<i8", "(2,)", &[9_i64.to_le_bytes(), 4_i64.to_le_bytes()].concat()),
        );
        // Two images of 2 × 2 pixels and 3 channels, channels first and last.
        let first: Vec<u8> = (0..24).collect();
        let last: Vec<u8> = (0..2)
            .flat_map(|n| (0..4).flat_map(move |at| (0..3).map(move |channel| n * 12 + channel * 4 + at)))
            .collect();
        let read = |bytes: &[u8], scale: Option<f64>, invert| {
            let path = put(folder.path(), "images.npy", bytes);
            let layout = None;
            Examples::read(&ExamplesSource::Arrays {
                images: path,
                labels: labels.clone(),
                size: None,
                layout,
                scale,
                invert,
            })
            .unwrap()
        };
        let examples = read(&npy("|u1", "(2, 3, 2, 2)", &first), None, false);
        assert_eq!(
            (&*examples.labels, &*examples.classes),
            (&[1, 0][..], &["4".to_string(), "9".to_string()][..])
        );
        assert_eq!(images(&examples), &Images { channels: 3, height: 2, width: 2, pixels: first.clone() });
        assert_eq!(examples, read(&npy("|u1", "(2, 2, 2, 3)", &last), None, false));
        let wide: Vec<u8> = last.iter().flat_map(|&value| i32::from(value).to_le_bytes()).collect();
        assert_eq!(examples, read(&npy("<i4", "(2, 2, 2, 3)", &wide), None, false));
        let shares: Vec<u8> =
            last.iter().flat_map(|&value| (f32::from(value) / 255.0).to_le_bytes()).collect();
        assert_eq!(examples, read(&npy("<f4", "(2, 2, 2, 3)", &shares), Some(255.0), false));
        let inverted = read(&npy("|u1", "(2, 3, 2, 2)", &first), None, true);
        assert!(images(&inverted).pixels.iter().zip(&first).all(|(a, b)| a + b == 255));
        let grey = read(&npy("|u1", "(2, 3, 4)", &first), Some(10.0), false);
        assert_eq!((images(&grey).channels, images(&grey).height, images(&grey).width), (1, 3, 4));
        assert_eq!(images(&grey).pixels[23], 230);
    }

    #[test]
    fn archives_stored_and_deflated_are_read_by_name_and_by_habit() {
        let folder = tempfile::tempdir().unwrap();
        let pixels = npy("|u1", "(3, 2, 2)", &[5; 12]);
        let labels = npy("|u1", "(3,)", &[7, 7, 2]);
        for (name, method) in [("a.npz", CompressionMethod::Stored), ("b.npz", CompressionMethod::Deflated)] {
            let entries: [(&str, &[u8]); 3] =
                [("other.npy", b"?"), ("x_train.npy", &pixels), ("y_train.npy", &labels)];
            let path = npz(folder.path(), name, method, &entries);
            let examples = Examples::read(&arrays(&path, &path)).unwrap();
            assert_eq!(examples.labels, [1, 1, 0]);
            assert_eq!(images(&examples).pixels, [5; 12]);
            let named = |entry: &str| PathBuf::from(format!("{}#{entry}", path.display()));
            let again = Examples::read(&arrays(named("x_train"), named("y_train.npy"))).unwrap();
            assert_eq!(examples, again);
            refused(&arrays(named("x_test"), &path), &["x_test", "x_train", name]);
            refused(&arrays(named("other"), &path), &["other"]);
            refused(&arrays(&path, named("x_train")), &["shape is [3, 2, 2]", "one label a row"]);
            let vectors = npy("<f4", "(3, 2)", &[0; 24]);
            let path = npz(folder.path(), name, method, &[("only.npy", &vectors)]);
            let label_file = put(folder.path(), "labels.npy", &labels);
            let source = ExamplesSource::Features { vectors: path, labels: label_file };
            assert_eq!(Examples::read(&source).unwrap().inputs, ExampleInputs::Features(Matrix::zeros(3, 2)));
        }
    }

    #[test]
    fn bad_arrays_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let labels = put(root, "labels.npy", &npy("|u1", "(2,)", &[0, 1]));
        let good = put(root, "good.npy", &npy("|u1", "(2, 2, 2)", &[0; 8]));
        let mut number = 0;
        let mut array = |description: &str, shape: &str, body: &[u8]| {
            number += 1;
            put(root, &format!("{number}.npy"), &npy(description, shape, body))
        };
        let error = refused(&arrays(&good, array("|u1", "(3,)", &[0; 3])), &["good.npy has 2 rows", "has 3"]);
        assert!(error.is_mismatch());
        refused(&arrays(&good, array("|i1", "(2,)", &[0, 0xff])), &["row 1 is -1", "not negative"]);
        refused(&arrays(&good, array("<f4", "(2,)", &[0, 0, 0, 0x3f, 0, 0, 0, 0x3f])), &["whole numbers"]);
        refused(&arrays(&good, array("|u1", "(2, 2)", &[0; 4])), &["one value a row"]);
        refused(&arrays(&good, root.join("missing.npy")), &["missing.npy"]);
        let flat = array("|u1", "(2, 4)", &[0; 8]);
        refused(&arrays(&flat, &labels), &["[2, 4]", "size = [height, width]"]);
        let sized = |images: &PathBuf, size| ExamplesSource::Arrays {
            images: images.clone(),
            labels: labels.clone(),
            size: Some(size),
            layout: None,
            scale: None,
            invert: false,
        };
        let read = Examples::read(&sized(&flat, [1, 4])).unwrap();
        assert_eq!((images(&read).height, images(&read).width, images(&read).channels), (1, 4, 1));
        refused(&sized(&flat, [2, 3]), &["[2, 4]", "size = [2, 3]"]);
        refused(&sized(&flat, [usize::MAX, 2]), &["[2, 4]"]);
        refused(&sized(&good, [2, 2]), &["[2, 2, 2]", "flat rows"]);
        refused(&arrays(array("|u1", "(2, 2, 2, 2)", &[0; 16]), &labels), &["1 or 3 channels"]);
        refused(&arrays(array("|u1", "(2, 3, 2, 1)", &[0; 12]), &labels), &["layout"]);
        refused(&arrays(array("|u1", "(2, 0, 2)", &[]), &labels), &["height"]);
        refused(&arrays(array("|u1", "(0, 2, 2)", &[]), &labels), &["is empty"]);
        refused(&arrays(array("|S2", "(2, 1, 1)", b"abcd"), &labels), &["text"]);
        refused(&arrays(array("<i2", "(2, 1, 1)", &[0, 0, 0, 1]), &labels), &["image 1 holds 256", "scale"]);
        refused(&arrays(array("<c8", "(2, 1, 1)", &[0; 16]), &labels), &["complex"]);
        refused(&arrays(array("|u1", "(2, 2, 9)", &[0; 8]), &labels), &["truncated"]);
        let floats = array("<f4", "(2, 1, 1)", &[1.0_f32.to_le_bytes(), f32::NAN.to_le_bytes()].concat());
        let error = refused(&arrays(&floats, &labels), &["needs scale"]);
        assert!(matches!(error.kind(), ErrorKind::MissingInput { .. }));
        let scaled = |scale| ExamplesSource::Arrays {
            images: floats.clone(),
            labels: labels.clone(),
            size: None,
            layout: None,
            scale: Some(scale),
            invert: false,
        };
        refused(&scaled(255.0), &["image 1 holds NaN"]);
        refused(&scaled(256.0), &["image 0 holds 1, which scaled by 256"]);
        refused(&scaled(-1.0), &["scale", "above 0"]);
        refused(&scaled(f64::NAN), &["scale"]);
        let layout = ExamplesSource::Arrays {
            images: array("|u1", "(2, 2, 2, 3)", &[0; 24]),
            labels: labels.clone(),
            size: None,
            layout: Some(ArrayLayout::Nchw),
            scale: None,
            invert: false,
        };
        refused(&layout, &["channels", "2"]);
        // Archives: no archive, cut, and one whose entry is damaged.
        refused(&arrays(put(root, "no.npz", b"PK nothing"), &labels), &["no.npz", "archive"]);
        let pixels = npy("|u1", "(2, 2, 2)", &[7; 8]);
        let whole =
            fs_err::read(npz(root, "w.npz", CompressionMethod::Stored, &[("x.npy", &pixels)])).unwrap();
        refused(&arrays(put(root, "cut.npz", &whole[..whole.len() - 30]), &labels), &["cut.npz"]);
        let mut flipped = whole;
        let at = flipped.windows(8).position(|bytes| bytes == [7; 8]).unwrap();
        flipped[at] ^= 1;
        refused(&arrays(put(root, "flipped.npz", &flipped), &labels), &["flipped.npz", "damaged"]);
    }

    #[test]
    fn text_labels_are_numbered_by_the_alphabet() {
        let folder = tempfile::tempdir().unwrap();
        let images = put(folder.path(), "images.npy", &npy("|u1", "(3, 1, 1)", &[1, 2, 3]));
        let labels = put(folder.path(), "labels.txt", b"oak\nash\noak\n");
        let examples = Examples::read(&arrays(images, labels)).unwrap();
        assert_eq!((&*examples.labels, examples.classes), (&[1, 0, 1][..], vec!["ash".into(), "oak".into()]));
    }

    #[test]
    fn cifar_files_are_read_and_bad_ones_refused() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let record = |labels: &[u8], value: u8| [labels, &[value; 3072]].concat();
        let ten = put(root, "ten.bin", &[record(&[3], 1), record(&[0], 2)].concat());
        let more = put(root, "more.bin", &record(&[9], 3));
        let cifar = |paths: &[&PathBuf], set| ExamplesSource::Cifar {
            paths: paths.iter().map(|&path| path.clone()).collect(),
            set,
        };
        let examples = Examples::read(&cifar(&[&ten, &more], CifarLabels::Ten)).unwrap();
        assert_eq!((&*examples.labels, &*examples.classes.join(" ")), (&[1, 0, 2][..], "0 3 9"));
        assert_eq!((images(&examples).len(), images(&examples).image(2)), (3, &[3; 3072][..]));
        let hundred = put(root, "hundred.bin", &[record(&[4, 88], 1), record(&[19, 12], 2)].concat());
        let read = |set| Examples::read(&cifar(&[&hundred], set)).unwrap().classes;
        assert_eq!(read(CifarLabels::HundredFine), ["12", "88"]);
        assert_eq!(read(CifarLabels::HundredCoarse), ["group 4", "group 19"]);

        let cut = put(root, "cut.bin", &record(&[3], 1)[..3000]);
        refused(&cifar(&[&cut], CifarLabels::Ten), &["cut.bin", "truncated", "3073"]);
        refused(&cifar(&[&hundred], CifarLabels::Ten), &["other CIFAR set"]);
        let high = put(root, "high.bin", &record(&[10], 1));
        refused(&cifar(&[&high], CifarLabels::Ten), &["image 0 has the label 10", "0 to 9"]);
        refused(&cifar(&[], CifarLabels::Ten), &["paths"]);
        refused(&cifar(&[&put(root, "none.bin", b"")], CifarLabels::Ten), &["is empty"]);
        refused(&cifar(&[&root.to_path_buf()], CifarLabels::Ten), &["no file"]);
        refused(&cifar(&[&root.join("gone.bin")], CifarLabels::Ten), &["gone.bin"]);
    }

    #[test]
    fn vectors_are_read_and_bad_ones_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (vectors, labels) = (folder.path().join("v.npy"), folder.path().join("l.npy"));
        let mut matrix = Matrix::from_fn(3, 2, |row, column| (row * 2 + column) as f32);
        write_matrix(&vectors, &matrix, None).unwrap();
        write_labels(&labels, &[5, 1, 5]).unwrap();
        let source = ExamplesSource::Features { vectors: vectors.clone(), labels: labels.clone() };
        let examples = Examples::read(&source).unwrap();
        assert_eq!(
            (&examples.inputs, &*examples.labels),
            (&ExampleInputs::Features(matrix.clone()), &[1, 0, 1][..])
        );
        assert_eq!(examples.select(&[2, 2]).inputs, ExampleInputs::Features(matrix.select(&[2, 2])));
        write_labels(&labels, &[5, 1]).unwrap();
        refused(&source, &["has 3 rows", "has 2"]);
        matrix.row_mut(1)[0] = f32::NAN;
        write_matrix(&vectors, &matrix, None).unwrap();
        let error = refused(&source, &["v.npy", "row 1, column 0"]);
        assert!(matches!(error.kind(), ErrorKind::NotFinite { .. }));
    }

    #[test]
    fn one_class_is_read_but_not_trained_on() {
        let one = grey(&[4]);
        assert!(one.check_trainable().unwrap_err().to_string().contains("at least two"));
        let parameters = AllocationParameters::new(AllocationKind::Expansion, 0.5);
        assert!(Allocation::draw(&one, &parameters).unwrap_err().to_string().contains("at least two"));
        assert_eq!(grey(&[2, 2]).check_trainable().unwrap(), Vec::<String>::new());
    }

    #[test]
    fn fields_that_contradict_each_other_are_refused() {
        let matrix = || ExampleInputs::Features(Matrix::zeros(2, 2));
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let refuse = |inputs, labels: &[u32], classes: &[&str], words: &str| {
            let error = Examples::new(inputs, labels.to_vec(), names(classes)).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        refuse(matrix(), &[0], &["a"], "has 2 rows");
        refuse(matrix(), &[0, 2], &["a", "b"], "row 1 is of class number 2");
        refuse(matrix(), &[0, 1], &["a", "a"], "more than once");
        refuse(ExampleInputs::Features(Matrix::zeros(0, 0)), &[], &[], "is empty");
        let images = |channels, bytes| {
            ExampleInputs::Images(Images { channels, height: 2, width: 2, pixels: vec![0; bytes] })
        };
        refuse(images(2, 16), &[0, 0], &["a"], "channels");
        refuse(images(1, 7), &[0], &["a"], "whole number of images");
    }

    #[test]
    fn fingerprints_see_pixels_labels_and_names() {
        let examples = grey(&[3, 2]);
        let mut prints = vec![examples.fingerprint(), grey(&[2, 3]).fingerprint()];
        let mut changed = examples.clone();
        if let ExampleInputs::Images(images) = &mut changed.inputs {
            images.pixels[5] ^= 1;
        }
        prints.push(changed.fingerprint());
        let mut changed = examples.clone();
        changed.classes[0] = "other".into();
        prints.push(changed.fingerprint());
        assert_eq!(examples.fingerprint(), examples.clone().fingerprint());
        prints.sort_unstable();
        prints.dedup();
        assert_eq!(prints.len(), 4);
    }

    #[test]
    fn a_selection_keeps_class_numbers() {
        let examples = grey(&[2, 2]);
        let some = examples.select(&[3, 0]);
        assert_eq!((&*some.labels, &some.classes), (&[1, 0][..], &examples.classes));
        let ExampleInputs::Images(images) = &some.inputs else { panic!("no images") };
        assert_eq!(images.image(0), self::images(&examples).image(3));
    }

    #[test]
    fn sources_are_written_as_configuration_says() {
        let read = |text: &str| toml::from_str::<ExamplesSource>(text);
        let cifar = read("kind = 'cifar'\npaths = ['a.bin']\nset = 'cifar-100-coarse'").unwrap();
        assert_eq!(
            cifar,
            ExamplesSource::Cifar { paths: vec!["a.bin".into()], set: CifarLabels::HundredCoarse }
        );
        let folder = read("kind = 'folder'\npath = 'x'\nsize = [8, 9]").unwrap();
        assert_eq!(folder, ExamplesSource::Folder { path: "x".into(), size: [8, 9], channels: 3 });
        for bad in ["kind = 'folder'\npath = 'x'\nsize = [8, 9]\ncolour = 1", "kind = 'film'", "path = 'x'"] {
            assert!(read(bad).is_err(), "{bad}");
        }
        let text = toml::to_string(&arrays("a.npy", "b.npy")).unwrap();
        assert_eq!(read(&text).unwrap(), arrays("a.npy", "b.npy"));
    }
}

mod allocations {
    use super::*;

    const KINDS: [AllocationKind; 4] = [
        AllocationKind::Expansion,
        AllocationKind::OpenData,
        AllocationKind::OpenClass,
        AllocationKind::ExtendedClass,
    ];

    fn contains(all: &[usize], some: &[usize]) -> bool {
        some.iter().all(|row| all.binary_search(row).is_ok())
    }

    fn disjoint(a: &[usize], b: &[usize]) -> bool {
        a.iter().all(|row| b.binary_search(row).is_err())
    }

    fn classes(examples: &Examples, rows: &[usize]) -> Vec<u32> {
        let mut classes: Vec<u32> = rows.iter().map(|&row| examples.labels[row]).collect();
        classes.sort_unstable();
        classes.dedup();
        classes
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_kind_divides_as_it_says(
            counts in proptest::collection::vec(1_usize..12, 4..12),
            share in 0.05_f64..0.95,
            test in 0.0_f64..0.5,
            unseen in 0.0_f64..0.4,
            seed in any::<u64>(),
        ) {
            let examples = grey(&counts);
            let by_class = examples.rows_by_class();
            for kind in KINDS {
                let parameters =
                    AllocationParameters { seed, test, unseen, ..AllocationParameters::new(kind, share) };
                let allocation = match Allocation::draw(&examples, &parameters) {
                    Ok(allocation) => allocation,
                    Err(error) => {
                        // One row of every class left to train on cannot be divided class by class.
                        let empty = matches!(error.kind(), ErrorKind::Empty { .. });
                        let by_class = [AllocationKind::Expansion, AllocationKind::OpenData].contains(&kind);
                        prop_assert!(empty && by_class, "{}", error);
                        continue;
                    }
                };
                prop_assert_eq!(&allocation, &Allocation::draw(&examples, &parameters).unwrap());
                prop_assert_eq!(allocation.check(), Ok(()));
                let Allocation { old, new, test: held_out, unseen: never, .. } = &allocation;
                // No row is forgotten: each is trained on or held out.
                let mut all = [&old[..], new, held_out, never].concat();
                all.sort_unstable();
                all.dedup();
                prop_assert_eq!(all.len(), examples.len());
                let unseen_classes = classes(&examples, never);
                let seen = [&old[..], new, held_out].concat();
                prop_assert!(classes(&examples, &seen).iter().all(|class| !unseen_classes.contains(class)));
                match kind {
                    AllocationKind::Expansion | AllocationKind::ExtendedClass => prop_assert!(contains(new, old)),
                    _ => prop_assert!(disjoint(new, old)),
                }
                match kind {
                    AllocationKind::OpenClass => {
                        let (old, new) = (classes(&examples, old), classes(&examples, new));
                        prop_assert!(old.iter().all(|class| !new.contains(class)));
                    }
                    AllocationKind::ExtendedClass => {
                        let (old, new) = (classes(&examples, old), classes(&examples, new));
                        prop_assert_eq!(&new[..old.len()], &old[..]);
                    }
                    AllocationKind::OpenData => {
                        for class in classes(&examples, &[&old[..], new].concat()) {
                            let count_in_class = |rows: &[usize]| {
                                rows.iter().filter(|&&row| examples.labels[row] == class).count() as f64
                            };
                            prop_assert!((count_in_class(old) - share * (count_in_class(old) + count_in_class(new))).abs() <= 1.0);
                        }
                    }
                    AllocationKind::Expansion => {
                        // RACT table 1: "the expansion and open-data setups share the same old training set".
                        let open = AllocationParameters { kind: AllocationKind::OpenData, ..parameters.clone() };
                        if let Ok(open) = Allocation::draw(&examples, &open) {
                            prop_assert_eq!(old, &open.old);
                        }
                    }
                    AllocationKind::Classes => {}
                }
                for class in classes(&examples, held_out) {
                    let rows = &by_class[class as usize];
                    let tested = rows.iter().filter(|row| held_out.binary_search(row).is_ok()).count();
                    prop_assert!(tested >= 1 && tested < rows.len());
                    prop_assert!((tested as f64 - test * rows.len() as f64).abs() <= 1.0);
                }
            }
        }

        #[test]
        fn a_chain_grows_and_has_one_test(
            counts in proptest::collection::vec(2_usize..12, 6..12),
            seed in any::<u64>(),
        ) {
            let examples = grey(&counts);
            for kind in KINDS {
                let parameters = AllocationParameters { seed, unseen: 0.2, ..AllocationParameters::new(kind, 0.3) };
                let chain = [(0.3, 0.6), (0.6, 0.8), (0.8, 1.0)].map(|(share, new_share)| {
                    let parameters = AllocationParameters { share: Some(share), ..parameters.clone() };
                    Allocation::step(&examples, &parameters, new_share).unwrap()
                });
                for step in &chain {
                    prop_assert!(contains(&step.new, &step.old));
                    prop_assert_eq!((&step.test, &step.unseen), (&chain[0].test, &chain[0].unseen));
                    prop_assert_eq!(step.check(), Ok(()));
                }
                prop_assert_eq!(&chain[0].new, &chain[1].old);
                prop_assert_eq!(&chain[1].new, &chain[2].old);
                let trained = examples.len() - chain[2].test.len() - chain[2].unseen.len();
                prop_assert_eq!(chain[2].new.len(), trained);
                // A single draw of the same seed agrees with the chain about the old model.
                prop_assert_eq!(&Allocation::draw(&examples, &parameters).unwrap().old, &chain[0].old);
            }
        }
    }

    #[test]
    fn listed_classes_are_who_sees_what() {
        let examples = grey(&[4; 6]);
        let lists = |old: &[&str], new: &[&str], unseen: Option<&[&str]>| {
            let texts = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
            AllocationParameters::of_classes(ClassLists {
                old: texts(old),
                new: texts(new),
                unseen: unseen.map(texts),
            })
        };
        let draw = |parameters: &AllocationParameters| Allocation::draw(&examples, parameters);
        let allocation = draw(&lists(&["0..2"], &["0..3", "class 4"], None)).unwrap();
        assert_eq!(classes(&examples, &allocation.old), [0, 1]);
        assert_eq!(classes(&examples, &allocation.new), [0, 1, 2, 4]);
        assert_eq!(classes(&examples, &allocation.test), [0, 1, 2, 4]);
        assert_eq!(classes(&examples, &allocation.unseen), [3, 5]);
        assert_eq!((allocation.old.len(), allocation.test.len(), allocation.unseen.len()), (6, 4, 8));
        // A class in no list is left alone where unseen classes are listed.
        let allocation = draw(&lists(&["0..2"], &["2..4"], Some(&["5..6"]))).unwrap();
        let everyone = [&allocation.old[..], &allocation.new, &allocation.test, &allocation.unseen].concat();
        assert_eq!(classes(&examples, &everyone), [0, 1, 2, 3, 5]);

        let refuse = |parameters: &AllocationParameters, words: &str| {
            let error = draw(parameters).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        // A class in no list cannot be tested either: its rows would be missing without a word. A row of an
        // unseen class is held out already.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("test.npy");
        let tested = |row: usize| {
            write_labels(&path, &[row as i64]).unwrap();
            let parameters = lists(&["0..2"], &["2..4"], Some(&["5..6"]));
            draw(&AllocationParameters { test_rows: Some(path.clone()), ..parameters })
        };
        assert_eq!(tested(0).unwrap().test, [0]);
        assert_eq!(tested(5).unwrap().test, Vec::<usize>::new());
        let error = tested(4).unwrap_err().to_string();
        assert!(error.contains("row 4 of") && error.contains("class 4"), "{error}");
        refuse(&lists(&["0..2"], &["oak"], None), "there is no class \"oak\"");
        refuse(&lists(&["0..2"], &["0..x"], None), "there is no class \"0..x\"");
        refuse(&lists(&["0..7"], &["0..2"], None), "0..6");
        refuse(&lists(&["2..2"], &["0..2"], None), "classes.old");
        refuse(&lists(&[], &["0..2"], None), "old model");
        refuse(&lists(&["0..2"], &["0..2"], Some(&["1..3"])), "class 1");
        refuse(&AllocationParameters { unseen: 0.5, ..lists(&["0..2"], &["0..3"], None) }, "unseen");
        refuse(&AllocationParameters { share: Some(0.5), ..lists(&["0..2"], &["0..3"], None) }, "share");
        refuse(&AllocationParameters { classes: None, ..lists(&[], &[], None) }, "classes");
    }

    #[test]
    fn bad_parameters_are_refused() {
        let examples = grey(&[4; 4]);
        let good = || AllocationParameters::new(AllocationKind::OpenClass, 0.5);
        let lists = ClassLists { old: vec![], new: vec![], unseen: None };
        for (parameters, words) in [
            (AllocationParameters { share: Some(0.0), ..good() }, "share"),
            (AllocationParameters { share: Some(f64::NAN), ..good() }, "share"),
            (AllocationParameters { share: Some(1.5), ..good() }, "share"),
            (AllocationParameters { share: None, ..good() }, "share"),
            (AllocationParameters { share: Some(1.0), ..good() }, "new model"),
            (AllocationParameters { test: 1.0, ..good() }, "test"),
            (AllocationParameters { unseen: -0.1, ..good() }, "unseen"),
            (AllocationParameters { unseen: 0.9, ..good() }, "is empty"),
            (AllocationParameters { classes: Some(lists), ..good() }, "classes"),
            (AllocationParameters { test_rows: Some("gone.npy".into()), ..good() }, "gone.npy"),
        ] {
            let error = Allocation::draw(&examples, &parameters).unwrap_err().to_string();
            assert!(error.contains(words), "{error} lacks {words}");
        }
        for (share, new_share) in [(0.5, 0.5), (0.5, 0.2), (0.5, 1.2), (0.0, 1.0), (0.2, f64::NAN)] {
            let parameters = AllocationParameters { share: Some(share), ..good() };
            assert!(Allocation::step(&examples, &parameters, new_share).is_err(), "{share}, {new_share}");
        }
        assert!(toml::from_str::<AllocationParameters>("kind = 'expansion'\nshares = 0.3").is_err());
        let read: AllocationParameters = toml::from_str("kind = 'open-data'\nshare = 0.3").unwrap();
        assert_eq!(read, AllocationParameters::new(AllocationKind::OpenData, 0.3));
    }

    #[test]
    fn a_file_of_test_rows_is_the_test() {
        let folder = tempfile::tempdir().unwrap();
        let examples = grey(&[3; 4]);
        let path = folder.path().join("test.npy");
        write_labels(&path, &[7, 2, 7]).unwrap();
        let parameters = AllocationParameters {
            test_rows: Some(path.clone()),
            ..AllocationParameters::new(AllocationKind::Expansion, 0.5)
        };
        let allocation = Allocation::draw(&examples, &parameters).unwrap();
        assert_eq!((&*allocation.test, allocation.new.len(), allocation.old.len()), (&[2, 7][..], 10, 6));
        write_labels(&path, &[12]).unwrap();
        let error = Allocation::draw(&examples, &parameters).unwrap_err().to_string();
        assert!(error.contains("row 12") && error.contains("0 to 11"), "{error}");
    }

    #[test]
    fn a_file_is_for_its_own_data_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("allocation.json");
        let examples = grey(&[5; 4]);
        let parameters = AllocationParameters {
            unseen: 0.25,
            ..AllocationParameters::new(AllocationKind::OpenClass, 0.3)
        };
        let allocation = Allocation::draw(&examples, &parameters).unwrap();
        allocation.write(&path).unwrap();
        assert_eq!(Allocation::read(&path, &examples).unwrap(), allocation);

        let shorter = examples.select(&(0..19).collect::<Vec<_>>());
        let error = Allocation::read(&path, &shorter).unwrap_err();
        assert!(error.is_mismatch() && error.to_string().contains("20 rows"), "{error}");
        let mut others = examples.clone();
        others.labels.swap(0, 1);
        let error = Allocation::read(&path, &others).unwrap_err();
        assert!(error.is_conflict() && error.to_string().contains("fingerprint"), "{error}");

        let text = fs_err::read_to_string(&path).unwrap();
        let first = format!("\"old\":[{}", allocation.old[0]);
        assert!(text.contains(&first));
        for (from, to, words) in [
            ("rehang-allocation", "other", "its format is"),
            ("\"version\":1", "\"version\":2", "version 2"),
            ("{", "", "no allocation"),
            ("{\"format", "{\"more\":1,\"format", "unknown field"),
            (first.as_str(), "\"old\":[500000", "increasing"),
            (first.as_str(), &format!("\"old\":[{},{}", allocation.test[0], allocation.old[0]), "n"),
        ] {
            put(folder.path(), "allocation.json", text.replacen(from, to, 1).as_bytes());
            let error = Allocation::read(&path, &examples).unwrap_err();
            assert!(error.is_corrupt() && error.to_string().contains(words), "{error}");
        }
        assert!(Allocation::read(folder.path().join("gone"), &examples).unwrap_err().is_retryable());
    }

    #[test]
    fn lists_that_contradict_an_allocation_are_refused() {
        let examples = grey(&[5; 4]);
        let good =
            Allocation::draw(&examples, &AllocationParameters::new(AllocationKind::Expansion, 0.5)).unwrap();
        let with = |change: fn(&mut Allocation)| {
            let mut changed = good.clone();
            change(&mut changed);
            changed.check().unwrap_err()
        };
        assert!(with(|it| it.old.reverse()).contains("increasing"));
        assert!(with(|it| it.new.push(20)).contains("row 20 of 20"));
        assert!(with(|it| it.unseen = vec![it.old[0]]).contains("held out"));
        assert!(with(|it| it.test.clone_from(&it.new)).contains("held out"));
        assert!(with(|it| it.old.clear()).contains("no row"));
    }
}

mod augmenting {
    use super::*;

    fn coloured(rows: usize, height: usize, width: usize) -> ExampleInputs {
        let pixels = (0..rows * 3 * height * width).map(|at| (at * 89 % 256) as u8).collect();
        ExampleInputs::Images(Images { channels: 3, height, width, pixels })
    }

    fn batch(inputs: &ExampleInputs, augmentation: Augmentation, view: usize) -> Vec<f32> {
        let channels = match inputs {
            ExampleInputs::Images(images) => images.channels,
            ExampleInputs::Features(features) => features.columns(),
        };
        let normalisation = Normalisation { mean: vec![0.0; channels], std: vec![1.0; channels] };
        let augmenter = Augmenter::new(augmentation, normalisation, inputs, 11).unwrap();
        let rows: Vec<usize> = (0..inputs.len()).collect();
        let mut out = vec![9.0; 3];
        augmenter.batch(inputs, &rows, 2, view, &mut out);
        out
    }

    fn plain(inputs: &ExampleInputs) -> Vec<f32> {
        batch(inputs, Augmentation::default(), 0)
    }

    #[test]
    fn parts_that_can_change_nothing_change_nothing() {
        let inputs = coloured(5, 4, 6);
        let ExampleInputs::Images(images) = &inputs else { unreachable!() };
        let expected: Vec<f32> = images.pixels.iter().map(|&pixel| f32::from(pixel) / 255.0).collect();
        assert_eq!(plain(&inputs), expected);
        let nothing = Augmentation {
            crop_padding: 0,
            resized_crop: Some(ResizedCrop { scale: [1.0, 1.0], ratio: [1.0, 1.0] }),
            affine: Some(Affine::default()),
            colour: Some(ColourJitter::default()),
            ..Augmentation::default()
        };
        assert_eq!(batch(&inputs, nothing, 0), expected);
    }

    #[test]
    fn a_mirror_image_of_a_mirror_image_is_the_image() {
        let inputs = coloured(3, 2, 5);
        let flip = Augmentation { flip: 1.0, ..Augmentation::default() };
        let once = batch(&inputs, flip.clone(), 0);
        assert_ne!(once, plain(&inputs));
        let bytes = once.iter().map(|value| (value * 255.0).round() as u8).collect();
        let turned = ExampleInputs::Images(Images { channels: 3, height: 2, width: 5, pixels: bytes });
        assert_eq!(batch(&turned, flip, 0), plain(&inputs));
        let half = batch(&coloured(200, 1, 3), Augmentation { flip: 0.5, ..Augmentation::default() }, 0);
        let flipped =
            half.chunks(9).zip(plain(&coloured(200, 1, 3)).chunks(9)).filter(|(a, b)| a != b).count();
        assert!((70..130).contains(&flipped), "{flipped}");
    }

    #[test]
    fn a_padded_crop_is_a_shifted_window_of_the_padded_image() {
        let inputs = coloured(40, 3, 4);
        let ExampleInputs::Images(images) = &inputs else { unreachable!() };
        for border in [Border::Zero, Border::Reflect, Border::Edge] {
            let out = batch(&inputs, Augmentation { crop_padding: 2, border, ..Augmentation::default() }, 0);
            let mut shifts = Vec::new();
            for (row, varied) in out.chunks(36).enumerate() {
                // The twin: every window of the padded image, until one is the result.
                let at = |channel: usize, y: i64, x: i64| {
                    let inside = |at: i64, side: i64| match border {
                        Border::Edge => at.clamp(0, side - 1),
                        Border::Reflect if at < 0 => -at,
                        Border::Reflect if at >= side => 2 * (side - 1) - at,
                        Border::Zero | Border::Reflect => at,
                    };
                    let (y, x) = (inside(y, 3), inside(x, 4));
                    if !(0..3).contains(&y) || !(0..4).contains(&x) {
                        return 0.0;
                    }
                    f32::from(images.image(row)[channel * 12 + (y * 4 + x) as usize]) / 255.0
                };
                let window = |(down, right): (i64, i64)| -> Vec<f32> {
                    (0..36).map(|i| at(i / 12, (i % 12 / 4) as i64 + down, (i % 4) as i64 + right)).collect()
                };
                let shift = (-2..=2)
                    .flat_map(|down| (-2..=2).map(move |right| (down, right)))
                    .find(|&shift| window(shift) == varied);
                shifts.push(shift.expect("the result is a window of the padded image"));
            }
            shifts.sort_unstable();
            shifts.dedup();
            assert!(shifts.len() > 10, "{shifts:?}");
        }
    }

    #[test]
    fn a_variation_depends_on_seed_epoch_row_and_view_and_on_nothing_else() {
        let inputs = coloured(6, 8, 8);
        let augmentation = Augmentation {
            crop_padding: 2,
            resized_crop: Some(ResizedCrop::default()),
            affine: Some(Affine { rotation: 15.0, translation: 0.1, scale: [0.8, 1.2] }),
            flip: 0.5,
            colour: Some(ColourJitter { brightness: 0.4, contrast: 0.4, saturation: 0.4 }),
            ..Augmentation::default()
        };
        let normalisation = Normalisation::measured(&inputs, &[0, 1, 2]).unwrap();
        let make = |seed| Augmenter::new(augmentation.clone(), normalisation.clone(), &inputs, seed).unwrap();
        let row = |seed, rows: &[usize], epoch, view, at: usize| {
            let mut out = Vec::new();
            make(seed).batch(&inputs, rows, epoch, view, &mut out);
            assert!(out.iter().all(|value| value.is_finite()));
            out[at * 192..(at + 1) * 192].to_vec()
        };
        let reference = row(1, &[0, 4, 5], 3, 0, 1);
        assert_eq!(reference, row(1, &[4], 3, 0, 0));
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        assert_eq!(reference, pool.install(|| row(1, &[5, 3, 2, 4], 3, 0, 3)));
        for other in [row(2, &[4], 3, 0, 0), row(1, &[4], 2, 0, 0), row(1, &[4], 3, 1, 0)] {
            assert_ne!(reference, other);
        }
        // Without variation, epoch and view do not matter.
        let evaluation = make(1).evaluation();
        let (mut first, mut second) = (Vec::new(), Vec::new());
        evaluation.batch(&inputs, &[0, 1, 2], 0, 0, &mut first);
        evaluation.batch(&inputs, &[0, 1, 2], 9, 9, &mut second);
        assert_eq!(first, second);
        for channel in 0..3 {
            let values: Vec<f64> = (0..3)
                .flat_map(|row| first[row * 192 + channel * 64..row * 192 + (channel + 1) * 64].iter())
                .map(|&value| f64::from(value))
                .collect();
            let mean = values.iter().sum::<f64>() / 192.0;
            let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / 192.0;
            assert!(mean.abs() < 1e-5 && (variance - 1.0).abs() < 1e-4);
        }
    }

    #[test]
    fn colours_stay_in_range_and_greys_have_no_saturation() {
        let inputs = coloured(20, 4, 4);
        let jitter = |brightness, contrast, saturation| Augmentation {
            colour: Some(ColourJitter { brightness, contrast, saturation }),
            ..Augmentation::default()
        };
        let before = plain(&inputs);
        for augmentation in
            [jitter(0.5, 0.0, 0.0), jitter(0.0, 0.5, 0.0), jitter(0.0, 0.0, 0.5), jitter(5.0, 5.0, 5.0)]
        {
            let after = batch(&inputs, augmentation, 0);
            assert!(after.iter().all(|value| (0.0..=1.0).contains(value)));
            assert_ne!(after, before);
        }
        // Brightness is one factor for a whole image.
        let after = batch(&inputs, jitter(0.3, 0.0, 0.0), 0);
        for (after, before) in after.chunks(48).zip(before.chunks(48)) {
            let factors: Vec<f32> = after
                .iter()
                .zip(before)
                .filter(|(after, before)| **before > 0.1 && **after < 0.99)
                .map(|(after, before)| after / before)
                .collect();
            assert!(factors.iter().all(|factor| (factor - factors[0]).abs() < 1e-4));
            assert!((0.7..=1.3).contains(&factors[0]));
        }
        let same = ExampleInputs::Images(Images { channels: 3, height: 2, width: 2, pixels: vec![77; 12] });
        let after = batch(&same, jitter(0.0, 0.9, 0.9), 0);
        assert!(after.iter().zip(plain(&same)).all(|(a, b)| (a - b).abs() < 1e-5));
    }

    #[test]
    fn noise_and_dropout_on_vectors_have_their_moments() {
        let inputs = ExampleInputs::Features(Matrix::from_fn(200, 50, |_, _| 2.0));
        let noisy = batch(&inputs, Augmentation { noise: 0.5, ..Augmentation::default() }, 0);
        let count = noisy.len() as f64;
        let mean = noisy.iter().map(|&value| f64::from(value)).sum::<f64>() / count;
        let variance = noisy.iter().map(|&value| (f64::from(value) - mean).powi(2)).sum::<f64>() / count;
        assert!((mean - 2.0).abs() < 0.03 && (variance - 0.25).abs() < 0.02, "{mean} {variance}");
        let dropped = batch(&inputs, Augmentation { dropout: 0.2, ..Augmentation::default() }, 0);
        assert!(dropped.iter().all(|&value| value == 0.0 || value == 2.5));
        let zeros = dropped.iter().filter(|&&value| value == 0.0).count() as f64 / count;
        assert!((zeros - 0.2).abs() < 0.02, "{zeros}");
        assert_eq!(plain(&inputs), vec![2.0; 10_000]);
    }

    #[test]
    fn parts_out_of_range_or_for_other_rows_are_refused() {
        let grey = ExampleInputs::Images(Images { channels: 1, height: 2, width: 2, pixels: vec![0; 4] });
        let colours = coloured(1, 2, 2);
        let vectors = ExampleInputs::Features(Matrix::zeros(1, 2));
        let none = Augmentation::default;
        let colour = |saturation| Some(ColourJitter { saturation, ..ColourJitter::default() });
        let crop = |scale, ratio| Some(ResizedCrop { scale, ratio });
        let cases = [
            (Augmentation { flip: 1.5, ..none() }, &colours, "flip"),
            (Augmentation { flip: f64::NAN, ..none() }, &colours, "flip"),
            (Augmentation { crop_padding: usize::MAX, ..none() }, &colours, "crop_padding"),
            (Augmentation { resized_crop: crop([0.0, 1.0], [1.0, 1.0]), ..none() }, &colours, "scale"),
            (Augmentation { resized_crop: crop([0.5, 1.5], [1.0, 1.0]), ..none() }, &colours, "scale"),
            (Augmentation { resized_crop: crop([0.5, 1.0], [2.0, 1.0]), ..none() }, &colours, "ratio"),
            (Augmentation { colour: colour(-0.1), ..none() }, &colours, "saturation"),
            (Augmentation { colour: colour(0.1), ..none() }, &grey, "grey images"),
            (
                Augmentation { affine: Some(Affine { rotation: 200.0, ..Affine::default() }), ..none() },
                &colours,
                "rotation",
            ),
            (Augmentation { noise: -1.0, ..none() }, &vectors, "noise"),
            (Augmentation { dropout: 1.0, ..none() }, &vectors, "dropout"),
            (Augmentation { noise: 0.1, ..none() }, &colours, "no such part for images"),
            (Augmentation { flip: 0.1, ..none() }, &vectors, "no such part for vectors"),
        ];
        for (augmentation, inputs, words) in cases {
            let error = augmentation.check(inputs).unwrap_err().to_string();
            assert!(error.contains(words), "{error} lacks {words}");
        }
        let wrong = Normalisation { mean: vec![0.0], std: vec![1.0] };
        assert!(Augmenter::new(none(), wrong, &colours, 0).unwrap_err().to_string().contains("mean"));
        let zero = Normalisation { mean: vec![0.0], std: vec![0.0] };
        assert!(Augmenter::new(none(), zero, &grey, 0).unwrap_err().to_string().contains("std"));
        assert!(toml::from_str::<Augmentation>("flips = 0.5").is_err());
        let read: Augmentation = toml::from_str("flip = 0.5\n[colour]\nbrightness = 0.2").unwrap();
        assert_eq!(read.colour.map(|colour| (colour.brightness, colour.contrast)), Some((0.2, 0.0)));
        assert_eq!(toml::from_str::<Augmentation>("").unwrap(), none());
    }

    #[test]
    fn normalisations_are_measured_on_the_rows_named() {
        let inputs = ExampleInputs::Features(Matrix::new(2, vec![1.0, 5.0, 3.0, 5.0, 100.0, 0.0]).unwrap());
        let measured = Normalisation::measured(&inputs, &[0, 1]).unwrap();
        assert_eq!(measured, Normalisation { mean: vec![2.0, 5.0], std: vec![1.0, 1.0] });
        let grey =
            ExampleInputs::Images(Images { channels: 1, height: 1, width: 2, pixels: vec![0, 255, 9, 9] });
        let measured = Normalisation::measured(&grey, &[0]).unwrap();
        assert_eq!(measured, Normalisation { mean: vec![0.5], std: vec![0.5] });
        // The mean of five times 248/255 is not 248/255 to the last bit; the channel is the same everywhere
        // all the same.
        let even = ExampleInputs::Images(Images { channels: 1, height: 1, width: 5, pixels: vec![248; 5] });
        let measured = Normalisation::measured(&even, &[0]).unwrap();
        assert_eq!(measured.std, [1.0]);
        assert!((measured.mean[0] - 248.0 / 255.0).abs() < 1e-6);
        assert!(Normalisation::measured(&grey, &[]).is_err());
        assert!(Normalisation::measured(&grey, &[2]).is_err());
        let bad = ExampleInputs::Features(Matrix::new(1, vec![f32::INFINITY]).unwrap());
        assert!(Normalisation::measured(&bad, &[0]).unwrap_err().is_corrupt());
    }
}

mod sampling {
    use super::*;

    fn sampler(parameters: SamplerParameters, labels: &[u32], rows: &[usize]) -> Sampler {
        Sampler::new(&parameters, labels, rows, 5).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn shuffled_batches_hold_every_row_once(count in 1_usize..60, batch in 1_usize..20, epoch in 0_usize..5) {
            let rows: Vec<usize> = (0..count).map(|row| 3 * row).collect();
            let labels = vec![0; 3 * count];
            let kept = sampler(SamplerParameters::shuffled(batch), &labels, &rows).batches(epoch);
            let mut all = kept.concat();
            all.sort_unstable();
            prop_assert_eq!(&all, &rows);
            prop_assert!(kept[..kept.len() - 1].iter().all(|rows| rows.len() == batch));
            if batch <= count {
                let parameters = SamplerParameters::Shuffled { batch, last: LastBatch::Drop };
                let dropped = sampler(parameters, &labels, &rows).batches(epoch);
                prop_assert_eq!(&dropped[..], &kept[..count / batch]);
            }
        }

        #[test]
        fn balanced_batches_hold_classes_of_items(
            counts in proptest::collection::vec(1_usize..15, 4..9),
            classes in 2_usize..4,
            items in 2_usize..5,
            epoch in 0_usize..3,
        ) {
            let examples = grey(&counts);
            let rows: Vec<usize> = (0..examples.len()).collect();
            let paired: Vec<usize> =
                rows.iter().copied().filter(|&row| counts[examples.labels[row] as usize] > 1).collect();
            prop_assume!(counts.iter().filter(|&&count| count > 1).count() >= classes);
            for last in [LastBatch::Keep, LastBatch::Drop] {
                let parameters = SamplerParameters::Balanced { classes, items, last };
                let sampler = sampler(parameters, &examples.labels, &rows);
                let batches = sampler.batches(epoch);
                prop_assert_eq!(&batches, &sampler.batches(epoch));
                prop_assert!(!batches.is_empty());
                for batch in &batches {
                    prop_assert_eq!(batch.len(), classes * items);
                    let mut there = Vec::new();
                    for group in batch.chunks(items) {
                        let class = examples.labels[group[0]];
                        prop_assert!(group.iter().all(|&row| examples.labels[row] == class));
                        prop_assert!(!there.contains(&class));
                        there.push(class);
                        // A row comes twice in a group only where the class has too few.
                        let mut distinct = group.to_vec();
                        distinct.sort_unstable();
                        distinct.dedup();
                        prop_assert_eq!(distinct.len(), items.min(counts[class as usize]));
                    }
                }
                let mut all = batches.concat();
                all.sort_unstable();
                all.dedup();
                if last == LastBatch::Keep {
                    prop_assert_eq!(&all, &paired);
                }
                let single = rows.len() - paired.len();
                prop_assert_eq!(sampler.left_out().len(), single);
                prop_assert!(sampler.left_out().iter().all(|row| all.binary_search(row).is_err()));
            }
        }
    }

    #[test]
    fn epochs_differ_and_are_repeated_by_their_number() {
        let labels: Vec<u32> = (0..40).map(|row| row % 4).collect();
        let rows: Vec<usize> = (0..40).collect();
        for parameters in [SamplerParameters::shuffled(8), balanced(3, 2)] {
            let one = sampler(parameters, &labels, &rows);
            assert_ne!(one.batches(0), one.batches(1));
            assert_eq!(one.batches(1), sampler(parameters, &labels, &rows).batches(1));
            let other = Sampler::new(&parameters, &labels, &rows, 6).unwrap();
            assert_ne!(one.batches(0), other.batches(0));
        }
    }

    #[test]
    fn bad_samplers_are_refused() {
        let labels = [0, 0, 1, 1, 2];
        let rows = [0, 1, 2, 3, 4];
        let refuse = |parameters, rows: &[usize], words: &str| {
            let error = Sampler::new(&parameters, &labels, rows, 0).unwrap_err().to_string();
            assert!(error.contains(words), "{error} lacks {words}");
        };
        refuse(SamplerParameters::shuffled(0), &rows, "at least 1");
        refuse(SamplerParameters::shuffled(2), &[], "is empty");
        refuse(SamplerParameters::shuffled(2), &[0, 5], "there is no row");
        refuse(SamplerParameters::shuffled(2), &[3, 3], "row 3 more than once");
        refuse(SamplerParameters::Shuffled { batch: 6, last: LastBatch::Drop }, &rows, "5 rows");
        refuse(balanced(1, 2), &rows, "classes");
        refuse(balanced(2, 1), &rows, "items");
        refuse(balanced(3, 2), &rows, "at most the 2 classes");
        assert_eq!(sampler(balanced(2, 2), &labels, &rows).left_out(), [4]);
        assert!(toml::from_str::<SamplerParameters>("kind = 'shuffled'\nbatch = 3\nitems = 2").is_err());
        let read: SamplerParameters =
            toml::from_str("kind = 'balanced'\nclasses = 8\nitems = 4\nlast = 'drop'").unwrap();
        assert_eq!(read, SamplerParameters::Balanced { classes: 8, items: 4, last: LastBatch::Drop });
    }
}

/// Tests on the real galleries of `../shared/data`; skipped with a message where they are absent.
mod real {
    use super::*;

    fn data(name: &str) -> Option<PathBuf> {
        // A worktree lies one folder deeper than the project itself.
        let found = ["../../../shared/data", "../../../../shared/data"]
            .iter()
            .map(|up| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(up).join(name))
            .find(|folder| folder.exists());
        if found.is_none() {
            eprintln!("skipped: {name} is not in ../shared/data");
        }
        found
    }

    #[test]
    fn omniglot_is_allocated_as_its_own_protocol_says() {
        let Some(folder) = data("img_omniglot") else { return };
        let source = arrays(folder.join("raw_u8_28.npy"), folder.join("raw_label.npy"));
        let examples = Examples::read(&source).unwrap();
        assert_eq!((examples.len(), examples.classes.len()), (4840, 242));
        assert_eq!((images(&examples).channels, images(&examples).height), (1, 28));
        assert_eq!(examples.check_trainable().unwrap(), Vec::<String>::new());
        let texts = |list: &str| vec![list.to_string()];
        let lists = ClassLists { old: texts("0..80"), new: texts("0..160"), unseen: None };
        let parameters = AllocationParameters {
            test_rows: Some(folder.join("seen_index.npy")),
            ..AllocationParameters::of_classes(lists)
        };
        let allocation = Allocation::draw(&examples, &parameters).unwrap();
        let file = |name: &str| {
            let mut rows = rehang_files::read_labels(&(&*folder.join(name)).into()).unwrap();
            rows.sort_unstable();
            rows.into_iter().map(|row| row as usize).collect::<Vec<_>>()
        };
        assert_eq!(allocation.new, file("train_index.npy"));
        assert_eq!(allocation.test, file("seen_index.npy"));
        assert_eq!(allocation.unseen, file("unseen_index.npy"));
        assert_eq!(allocation.old.len(), 1120);

        let normalisation = Normalisation::measured(&examples.inputs, &allocation.new).unwrap();
        let augmentation = Augmentation {
            crop_padding: 3,
            affine: Some(Affine { rotation: 10.0, translation: 0.05, scale: [0.9, 1.1] }),
            ..Augmentation::default()
        };
        let augmenter = Augmenter::new(augmentation, normalisation, &examples.inputs, 1).unwrap();
        let sampler = Sampler::new(&balanced(16, 4), &examples.labels, &allocation.new, 1).unwrap();
        let batches = sampler.batches(0);
        let mut out = Vec::new();
        #[allow(clippy::disallowed_methods, reason = "said, not asserted")]
        let start = std::time::Instant::now();
        for rows in &batches {
            augmenter.batch(&examples.inputs, rows, 0, 0, &mut out);
            assert!(out.len() == 64 * 784 && out.iter().all(|value| value.is_finite()));
        }
        let images = batches.len() * 64;
        eprintln!("{images} varied images in {:?}", start.elapsed());
    }

    #[test]
    fn digits_are_read_as_images_and_as_vectors() {
        let Some(folder) = data("toy_digits") else { return };
        let labels = folder.join("label.npy");
        let source = ExamplesSource::Arrays {
            images: folder.join("images.npy"),
            labels: labels.clone(),
            size: None,
            layout: None,
            scale: Some(255.0 / 16.0),
            invert: true,
        };
        let examples = Examples::read(&source).unwrap();
        assert_eq!((examples.len(), examples.classes.len()), (1797, 10));
        let pixels = &images(&examples).pixels;
        assert_eq!((pixels.iter().min(), pixels.iter().max()), (Some(&0), Some(&255)));
        let vectors = ExamplesSource::Features { vectors: folder.join("new.npy"), labels };
        let features = Examples::read(&vectors).unwrap();
        assert_eq!((features.inputs.width(), &features.labels), (32, &examples.labels));
    }
}
