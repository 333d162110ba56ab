use std::collections::HashMap;

use proptest::prelude::*;
use rehang_core::{Distance, ErrorKind};
use serde_json::{Value as Json, json};

use super::*;
use crate::EncoderConfig;

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models")
}

/// Vectors that ONNX Runtime gave, by `make.py`.
fn expected() -> HashMap<String, Vec<f32>> {
    serde_json::from_str(&fs_err::read_to_string(models().join("expected.json")).unwrap()).unwrap()
}

fn open(config: Json, width: usize) -> Result<Onnx> {
    let config: OnnxConfig = serde_json::from_value(config).unwrap();
    Onnx::open(&config, &Space::new("new", width, Distance::L2, false), &models())
}

fn encode(onnx: &Onnx, sources: &[&str]) -> Result<Vec<Answer>> {
    let inputs: Vec<Input<'_>> =
        sources.iter().map(|source| Input { id: source, source, payload: &Json::Null }).collect();
    onnx.encode(&inputs)
}

fn assert_near(vector: &[f32], expected: &[f32]) {
    assert_eq!(vector.len(), expected.len());
    for (a, b) in vector.iter().zip(expected) {
        assert!((a - b).abs() <= 1e-4, "{vector:?} is not {expected:?}");
    }
}

fn cnn() -> Json {
    json!({
        "model": "cnn.onnx",
        "input": {
            "kind": "image", "width": 16, "height": 12,
            "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225],
        },
    })
}

fn text(pooling: &str) -> Json {
    json!({
        "model": "text.onnx",
        "input": {"kind": "text", "tokenizer": "tokenizer.json", "pooling": pooling},
    })
}

const SENTENCES: [&str; 4] =
    ["The cat sat on the mat", "unhappily", "", "A red dog, a green dog, a blue dog!"];

#[test]
fn images_give_what_onnx_runtime_gives() {
    let expected = expected();
    for (model, batch) in [("cnn.onnx", 16), ("cnn.onnx", 1), ("cnn-fixed-batch.onnx", 16)] {
        let mut config = cnn();
        config["model"] = json!(model);
        config["batch"] = json!(batch);
        config["threads"] = json!(2);
        let onnx = open(config, 6).unwrap();
        // Three images do not fill two runs of a model that was exported for two at a time.
        let sources = ["colours.png", "grey.png", "colours.png"];
        for (source, answer) in sources.iter().zip(encode(&onnx, &sources).unwrap()) {
            assert_near(&answer.unwrap(), &expected[*source]);
        }
        assert_eq!(encode(&onnx, &[]).unwrap(), []);
    }
}

#[test]
fn texts_give_what_onnx_runtime_gives_to_each_alone() {
    let expected = expected();
    for pooling in ["mean", "cls", "last", "none"] {
        let mut config = text(pooling);
        if pooling == "none" {
            config["output"] = json!("sum");
        }
        let onnx = open(config, 8).unwrap();
        let prefix = if pooling == "none" { "sum" } else { pooling };
        for (sentence, answer) in SENTENCES.iter().zip(encode(&onnx, &SENTENCES).unwrap()) {
            assert_near(&answer.unwrap(), &expected[&format!("{prefix}: {sentence}")]);
        }
        assert!(onnx.spent().tokens > 20);
    }
}

#[test]
fn long_texts_are_cut_and_prefixes_are_put_in_front() {
    let mut config = text("mean");
    config["input"]["max_tokens"] = json!(4);
    let cut = encode(&open(config, 8).unwrap(), &["the cat sat on the mat", "the cat"]).unwrap();
    assert_eq!(cut[0], cut[1]);
    let mut config = text("mean");
    config["input"]["prefix"] = json!("The cat ");
    let prefixed = encode(&open(config, 8).unwrap(), &["sat on the mat"]).unwrap();
    assert_near(prefixed[0].as_ref().unwrap(), &expected()["mean: The cat sat on the mat"]);
}

/// Opens the configuration that queries are embedded with.
fn open_for_queries(config: &Json) -> Onnx {
    let items = EncoderConfig::Onnx(serde_json::from_value(config.clone()).unwrap());
    let EncoderConfig::Onnx(queries) = items.for_queries().unwrap() else { panic!("another kind") };
    let width = if matches!(queries.input, OnnxInput::Text(_)) { 8 } else { 6 };
    Onnx::open(&queries, &Space::new("new", width, Distance::L2, false), &models()).unwrap()
}

#[test]
fn queries_have_a_prefix_of_their_own() {
    let by_hand = open(text("mean"), 8).unwrap();
    let in_front = |prefix: &str| encode(&by_hand, &[&format!("{prefix}cat")]).unwrap();
    let mut config = text("mean");
    config["input"]["prefix"] = json!("A red ");
    let items = |config: &Json| open(config.clone(), 8).unwrap();
    assert_eq!(encode(&open_for_queries(&config), &["cat"]).unwrap(), in_front("A red "), "as items are");
    let before = items(&config).fingerprint().unwrap();
    for prefix in ["The green ", ""] {
        config["input"]["query_prefix"] = json!(prefix);
        assert_eq!(encode(&open_for_queries(&config), &["cat"]).unwrap(), in_front(prefix), "{prefix:?}");
        assert_eq!(encode(&items(&config), &["cat"]).unwrap(), in_front("A red "));
        assert_eq!(items(&config).fingerprint().unwrap(), before, "no vector of an item changes");
    }
    assert_ne!(in_front("The green "), in_front("A red "));
    assert_eq!(items(&config).reads(), Reads::Texts);
}

/// Galleries hold fingerprints, so those of configurations that were there before a key stay as they were.
#[test]
fn fingerprints_of_earlier_versions_stay() {
    let mut config = text("mean");
    let fingerprint = |config: &Json| open(config.clone(), 8).unwrap().fingerprint().unwrap().unwrap();
    assert_eq!(fingerprint(&config), "d15d31b9084c1f07e92ca53c6ecc8d5b");
    config["input"]["prefix"] = json!("passage: ");
    assert_eq!(fingerprint(&config), "201cdfdb39a240a1e53f7a7d4ff6e868");
}

#[test]
fn the_image_of_a_query_may_lie_anywhere() {
    let mut config = cnn();
    let elsewhere = tempfile::tempdir().unwrap();
    config["root"] = json!(elsewhere.path());
    let path = models().join("colours.png").display().to_string();
    let item = encode(&open(config.clone(), 6).unwrap(), &[&path]).unwrap();
    assert!(matches!(&item[0], Err(ItemFailure::Permanent(why)) if why.contains("outside_root")));
    let queries = open_for_queries(&config);
    assert_near(encode(&queries, &[&path]).unwrap()[0].as_ref().unwrap(), &expected()["colours.png"]);
    assert_eq!(queries.reads(), Reads::Images);
}

#[test]
fn vectors_give_what_onnx_runtime_gives() {
    let onnx = open(json!({"model": "mlp.onnx", "input": {"kind": "vector"}}), 3).unwrap();
    let sources = ["[0, 0, 0, 0, 0]", "[1, -2, 3.5, 0.25, -1]"];
    for (source, answer) in sources.iter().zip(encode(&onnx, &sources).unwrap()) {
        assert_near(&answer.unwrap(), &expected()[*source]);
    }
    let answers = encode(&onnx, &["[1, 2]", sources[0]]).unwrap();
    assert!(matches!(&answers[0], Err(ItemFailure::Permanent(why)) if why.contains("2 numbers")));
    assert!(answers[1].is_ok());
}

#[test]
fn files_that_are_gone_or_damaged_fail_alone_and_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file_bytes = fs_err::read(models().join("colours.png")).unwrap();
    fs_err::write(folder.path().join("good.png"), &file_bytes).unwrap();
    fs_err::write(folder.path().join("cut.png"), &file_bytes[..file_bytes.len() - 40]).unwrap();
    fs_err::write(folder.path().join("text.png"), "no image").unwrap();
    fs_err::write(folder.path().join("empty.png"), "").unwrap();
    let mut config = cnn();
    config["root"] = json!(folder.path());
    let onnx = open(config, 6).unwrap();
    let sources = ["gone.png", "cut.png", "good.png", "text.png", "empty.png"];
    let answers = encode(&onnx, &sources).unwrap();
    for (source, answer) in sources.iter().zip(answers) {
        match answer {
            Ok(vector) if *source == "good.png" => assert_near(&vector, &expected()["colours.png"]),
            Err(ItemFailure::Permanent(why)) => assert!(why.contains(source), "{why}"),
            other => panic!("{source}: {other:?}"),
        }
    }
}

#[test]
fn what_cannot_be_is_refused_when_it_is_opened() {
    type Change = fn(&mut Json);
    let cases: [(Change, &str); 17] = [
        (|config| config["model"] = json!("gone.onnx"), "gone.onnx"),
        (|config| config["model"] = json!("grey.png"), "grey.png"),
        (|config| config["model"] = json!("mlp.onnx"), "mlp.onnx"),
        (|config| config["model"] = json!("text.onnx"), "input_ids, attention_mask"),
        (|config| config["output"] = json!("nothing"), "vector [batch, 6]"),
        (|config| config["batch"] = json!(0), "batch"),
        (|config| config["threads"] = json!(0), "threads"),
        (|config| config["root"] = json!("gone"), "gone"),
        (|config| config["input"]["width"] = json!(15), "[batch, 3, 12, 15]"),
        (|config| config["input"]["layout"] = json!("nhwc"), "[batch, 12, 16, 3]"),
        (|config| config["input"]["height"] = json!(0), "height"),
        (|config| config["input"]["channels"] = json!(2), "channels"),
        (|config| config["input"]["mean"] = json!([1, 2]), "mean"),
        (|config| config["input"]["std"] = json!([1, 0, 1]), "std"),
        (|config| config["input"]["shorter_side"] = json!(20), "shorter_side"),
        (|config| config["input"] = json!({"kind": "vector"}), "vector"),
        (|config| config["input"] = json!({"kind": "text", "tokenizer": "grey.png"}), "grey.png"),
    ];
    for (change, word) in cases {
        let mut config = cnn();
        change(&mut config);
        let error =
            open(config.clone(), 6).err().unwrap_or_else(|| panic!("{config} was opened")).to_string();
        assert!(error.contains(word), "{word}: {error}");
    }
    for (config, width) in [(cnn(), 7), (text("mean"), 7)] {
        let error = open(config, width).err().unwrap();
        assert!(matches!(error.kind(), ErrorKind::WidthMismatch { expected: 7, .. }), "{error}");
    }
    let mut config = text("mean");
    config["output"] = json!("sum");
    let error = encode(&open(config, 8).unwrap(), &["cat"]).unwrap_err();
    assert!(error.to_string().contains("pooling"), "{error}");
    let error = encode(&open(text("none"), 8).unwrap(), &["cat"]).unwrap_err();
    assert!(error.to_string().contains("sum [batch, 8]"), "{error}");
}

#[test]
fn images_are_fitted() {
    // The columns are 0, 40, 80, … so that a pixel's value says where it came from.
    let picture = ::image::RgbImage::from_fn(6, 2, |x, _| ::image::Rgb([x as u8 * 40; 3]));
    let mut png = std::io::Cursor::new(Vec::new());
    picture.write_to(&mut png, ::image::ImageFormat::Png).unwrap();
    let pixels = |config: Json| {
        let input: ImageInput = serde_json::from_value(config).unwrap();
        input.check(&[], "m").unwrap();
        let (numbers, _) =
            input.pixels(png.get_ref(), Path::new("p"), &Semaphore::new(image::DECODING_BYTES_MAX)).unwrap();
        numbers.into_iter().map(|value| (value * 255.0).round() as i32).collect::<Vec<_>>()
    };
    let grey = |more: Json| {
        let mut config = json!({"width": 2, "height": 2, "channels": 1, "resize": "shorter-side-crop"});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        pixels(config)
    };
    assert_eq!(grey(json!({})), [80, 120, 80, 120]);
    assert_eq!(grey(json!({"invert": true})), [175, 135, 175, 135]);
    assert_eq!(grey(json!({"mean": [0.5], "std": [2]})), [-24, -4, -24, -4]);
    // In an image that is stretched to half the width, a pixel is the mean of a triangle around its two.
    assert_eq!(pixels(json!({"width": 3, "height": 1, "channels": 1, "filter": "nearest"})), [40, 120, 200]);
    // The image is twice as large before the cut: the middle is now half as wide.
    let cut = grey(json!({"shorter_side": 4, "filter": "nearest"}));
    assert_eq!(cut, [80, 120, 80, 120]);
    let colours = |layout: &str| {
        pixels(json!({"width": 6, "height": 2, "layout": layout, "mean": [0, 0, 1], "std": [1, 1, 1]}))
    };
    let (first, last) = (colours("nchw"), colours("nhwc"));
    assert_eq!(first[..6], [0, 40, 80, 120, 160, 200]);
    assert_eq!(last[..6], [0, 0, -255, 40, 40, -215]);
    assert_eq!(first[24..27], [-255, -215, -175]);
}

#[test]
fn photographs_are_read_whole_or_not_at_all() {
    let input: ImageInput = serde_json::from_value(json!({"width": 128, "height": 96})).unwrap();
    let memory = Semaphore::new(image::DECODING_BYTES_MAX);
    let pixels = |bytes: &[u8]| input.pixels(bytes, Path::new("p"), &memory).map(|(pixels, _)| pixels);
    for name in ["photo.jpg", "progressive.jpg", "grey.jpg", "inks.jpg"] {
        let file_bytes = fs_err::read(models().join(name)).unwrap();
        let lenient = ::image::load_from_memory(&file_bytes).unwrap().into_rgb8();
        let mut expected = Vec::new();
        for channel in 0..3 {
            expected.extend(lenient.pixels().map(|pixel| f32::from(pixel.0[channel]) / 255.0));
        }
        assert_eq!(pixels(&file_bytes).unwrap(), expected, "{name}");
        assert_eq!(
            pixels(&[&file_bytes, &b"and more"[..]].concat()).unwrap(),
            expected,
            "{name}, with more behind it"
        );
        let cuts =
            (0..20).map(|part| file_bytes.len() * part / 20).chain(file_bytes.len() - 40..file_bytes.len());
        for cut in cuts {
            let failure = pixels(&file_bytes[..cut]).expect_err(name);
            assert!(matches!(failure, ItemFailure::Permanent(_)), "{name} cut at {cut}: {failure:?}");
        }
    }
}

/// Picture whose red grows to the right and green downwards, so that it says how it lies; blue is its first
/// corner.
fn ramp(width: u32, height: u32, at: impl Fn(u32, u32) -> (u32, u32)) -> Vec<[u8; 3]> {
    (0..height)
        .flat_map(|y| (0..width).map(move |x| (x, y)))
        .map(|(x, y)| {
            let (column, row) = at(x, y);
            [column as u8 * 40, row as u8 * 60, if (column, row) == (0, 0) { 255 } else { 0 }]
        })
        .collect()
}

fn read(config: Json, name: &str) -> (Vec<[u8; 3]>, bool) {
    let input: ImageInput = serde_json::from_value(config).unwrap();
    let bytes = fs_err::read(models().join(name)).unwrap();
    let memory = Semaphore::new(image::DECODING_BYTES_MAX);
    let (numbers, has_tag) = input.pixels(&bytes, Path::new(name), &memory).unwrap();
    let bytes: Vec<u8> = numbers.iter().map(|value| (value * 255.0).round() as u8).collect();
    (bytes.chunks_exact(3).map(|pixel| pixel.try_into().unwrap()).collect(), has_tag)
}

#[test]
fn images_of_other_formats_are_read_as_pillow_reads_them() {
    let config = json!({"width": 6, "height": 4, "layout": "nhwc"});
    let upright = ramp(6, 4, |x, y| (x, y));
    for name in ["lossless.webp", "anim.webp", "two-frames.gif", "colours.tiff", "colours.bmp"] {
        assert_eq!(read(config.clone(), name), (upright.clone(), false), "{name}");
        let file_bytes = fs_err::read(models().join(name)).unwrap();
        let input: ImageInput = serde_json::from_value(config.clone()).unwrap();
        for cut in 0..file_bytes.len() - 1 {
            // Some formats have something behind their pixels; an image that is read must be the whole
            // picture.
            let memory = Semaphore::new(image::DECODING_BYTES_MAX);
            if let Ok((pixels, _)) = input.pixels(&file_bytes[..cut], Path::new("p"), &memory) {
                let full_pixels = input.pixels(&file_bytes, Path::new("p"), &memory).unwrap().0;
                assert_eq!(pixels, full_pixels, "{name} cut at {cut} of {}", upright.len());
            }
        }
    }
    assert_eq!(read(config, "lossy.webp").0.len(), 24);
}

#[test]
fn orientation_tags_are_followed_where_that_is_asked_for() {
    let stored = json!({"width": 6, "height": 4, "layout": "nhwc"});
    let turned = json!({"width": 4, "height": 6, "layout": "nhwc", "exif_orientation": true});
    let clockwise = ramp(4, 6, |x, y| (y, 3 - x));
    for name in ["turned.png", "turned.webp"] {
        assert_eq!(read(stored.clone(), name), (ramp(6, 4, |x, y| (x, y)), true), "{name}");
        assert_eq!(read(turned.clone(), name), (clockwise.clone(), false), "{name}");
    }
    // Pillow turns TIFF files whoever asks.
    let mut unasked = turned.clone();
    unasked["exif_orientation"] = json!(false);
    assert_eq!(read(unasked, "turned.tiff"), (clockwise.clone(), false));
    let mut large = turned;
    large["resize"] = json!("shorter-side-crop");
    let (photo, has_tag) = read(large, "turned.jpg");
    // Blue is one pixel, and spreads.
    let red_and_green =
        |pixels: &[[u8; 3]]| pixels.iter().flat_map(|&[red, green, _]| [red, green]).collect::<Vec<_>>();
    let apart = red_and_green(&photo).iter().zip(red_and_green(&clockwise)).map(|(a, b)| a.abs_diff(b)).max();
    assert!(!has_tag && apart < Some(30), "{apart:?}");
}

#[test]
fn orientation_tags_that_are_not_followed_are_said_and_change_no_fingerprint() {
    let mut config = cnn();
    config["input"]["resize"] = json!("exact");
    let plain = open(config.clone(), 6).unwrap();
    encode(&plain, &["turned.jpg", "colours.png", "turned.png"]).unwrap();
    let finding = plain.findings().remove(0);
    assert!(
        finding.seen.contains("2 of 3 images") && finding.remedy.contains("exif_orientation"),
        "{finding}"
    );
    for (value, is_same) in [(false, true), (true, false)] {
        config["input"]["exif_orientation"] = json!(value);
        let onnx = open(config.clone(), 6).unwrap();
        encode(&onnx, &["turned.jpg"]).unwrap();
        assert_eq!(onnx.findings(), []);
        assert_eq!(onnx.fingerprint().unwrap() == plain.fingerprint().unwrap(), is_same, "{value}");
    }
}

/// Bytes of a model, with the name of its table of 16 places as exporters give it.
fn with_places() -> Vec<u8> {
    let model = fs_err::read(models().join("text.onnx")).unwrap();
    let (from, to) = (b"places.weight", b"tr.wpe.weight");
    let mut renamed = model.clone();
    for at in memchr::memmem::find_iter(&model, from) {
        renamed[at..at + to.len()].copy_from_slice(to);
    }
    assert_ne!(renamed, model);
    renamed
}

#[test]
fn texts_that_are_cut_are_counted_and_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs_err::write(path("places.onnx"), with_places()).unwrap();
    let mut tokenizer: Json =
        serde_json::from_slice(&fs_err::read(models().join("tokenizer.json")).unwrap()).unwrap();
    tokenizer["truncation"] =
        json!({"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0});
    fs_err::write(path("tokenizer.json"), tokenizer.to_string()).unwrap();
    let findings_of = |model: Json, tokenizer: Json, key: Json| {
        let mut config = text("mean");
        config["model"] = model;
        config["input"]["tokenizer"] = tokenizer;
        config["input"]["max_tokens"] = key;
        let onnx = open(config, 8).unwrap();
        encode(&onnx, &["the cat sat on the mat", "the cat", "a dog sat on a red mat"]).unwrap();
        onnx.findings().iter().map(ToString::to_string).collect::<Vec<_>>().concat()
    };
    let cutting = json!(path("tokenizer.json"));
    // The finding says whose setting it is, and what can be done.
    let of_file = findings_of(json!(path("places.onnx")), cutting.clone(), Json::Null);
    for word in ["2 of 3 texts are longer than the 5 tokens", "tokenizer.json says", "max_tokens", "up to 16"]
    {
        assert!(of_file.contains(word), "{word}: {of_file}");
    }
    fs_err::write(path("sentence_bert_config.json"), r#"{"max_seq_length": 12}"#).unwrap();
    let elsewhere = findings_of(json!("text.onnx"), cutting.clone(), Json::Null);
    assert!(elsewhere.contains("sentence-transformers reads 12"), "{elsewhere}");
    // The tokeniser alone, without the model, gives the finding too.
    let mut alone = text("mean");
    alone["input"]["tokenizer"] = cutting.clone();
    let alone = EncoderConfig::Onnx(serde_json::from_value(alone).unwrap());
    let mut lengths = crate::Lengths::open(&alone, &models()).unwrap().unwrap();
    assert_eq!(lengths.findings(), []);
    for source in ["the cat sat on the mat", "the cat", "a dog sat on a red mat", "a"] {
        lengths.count(source);
    }
    let told = lengths.findings().remove(0);
    assert!(told.seen.contains("2 of 4 texts") && told.remedy.contains("reads 12"), "{told}");
    let images = EncoderConfig::Onnx(serde_json::from_value(cnn()).unwrap());
    assert!(crate::Lengths::open(&images, &models()).unwrap().is_none());
    // The key beats the file, and the person's own wish is a note.
    assert_eq!(findings_of(json!("text.onnx"), cutting.clone(), json!(12)), "");
    let of_key = findings_of(json!("text.onnx"), cutting.clone(), json!(4));
    assert!(of_key.contains("the 4 tokens that are read of each, as max_tokens"), "{of_key}");
    assert_eq!(findings_of(json!("text.onnx"), json!("tokenizer.json"), Json::Null), "");
    // No more can be read than the model has places for.
    let refused = |key: Json| {
        let mut config = text("mean");
        config["model"] = json!(path("places.onnx"));
        config["input"]["max_tokens"] = key;
        open(config, 8)
    };
    let error = refused(json!(17)).err().unwrap().to_string();
    assert!(error.contains("max_tokens") && error.contains("at most 16") && error.contains("wpe"), "{error}");
    assert!(refused(json!(16)).is_ok());
    let onnx = refused(Json::Null).unwrap();
    assert!(encode(&onnx, &[&"cat ".repeat(40)]).unwrap()[0].is_ok(), "cut at what the model takes");
    assert!(onnx.findings()[0].remedy.contains("reads no more"));
}

#[test]
fn pointers_of_git_lfs_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935\nsize 90387606\n";
    for name in ["model.onnx", "tokenizer.json", "photo.jpg"] {
        fs_err::write(folder.path().join(name), pointer).unwrap();
    }
    let at = |name: &str| json!(folder.path().join(name));
    let mut model = cnn();
    model["model"] = at("model.onnx");
    let mut tokenizer = text("mean");
    tokenizer["input"]["tokenizer"] = at("tokenizer.json");
    for (config, width, name) in [(model, 6, "model.onnx"), (tokenizer, 8, "tokenizer.json")] {
        let error = open(config, width).err().unwrap().to_string();
        assert!(error.contains(name) && error.contains("git lfs pull"), "{error}");
    }
    let mut images = cnn();
    images["root"] = json!(folder.path());
    let answers = encode(&open(images, 6).unwrap(), &["photo.jpg"]).unwrap();
    assert!(matches!(&answers[0], Err(ItemFailure::Permanent(why)) if why.contains("git lfs pull")));
}

/// Makes the smallest model of one operator, as the format of ONNX has it: each field is its number, its
/// length and its bytes.
fn model_of(domain: &str, operator: &str) -> Vec<u8> {
    let field = |number: u8, bytes: &[u8]| [&[number << 3 | 2, bytes.len() as u8], bytes].concat();
    let value = |name: &str| {
        let sides = [field(1, &[8, 1]), field(1, &[8, 3])].concat();
        let tensor = [vec![8, 1], field(2, &sides)].concat();
        [field(1, name.as_bytes()), field(2, &field(1, &tensor))].concat()
    };
    let node = [
        field(1, b"x"),
        field(2, b"y"),
        field(3, b"n"),
        field(4, operator.as_bytes()),
        field(7, domain.as_bytes()),
    ];
    let graph = [field(1, &node.concat()), field(2, b"g"), field(11, &value("x")), field(12, &value("y"))];
    [vec![8, 8], field(8, &[16, 17]), field(7, &graph.concat())].concat()
}

#[test]
fn operators_of_an_optimiser_are_told_from_broken_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model_O2.onnx");
    let opened = |bytes: Vec<u8>| {
        fs_err::write(&path, bytes).unwrap();
        open(json!({"model": path, "input": {"kind": "vector"}}), 3)
    };
    assert!(opened(model_of("", "Relu")).is_ok());
    assert!(opened(model_of("com.microsoft", "FastGelu")).is_ok());
    let error = opened(model_of("com.microsoft", "Attention")).err().unwrap().to_string();
    for word in ["model_O2.onnx", "com.microsoft/Attention", "take the plain export, model.onnx"] {
        assert!(error.contains(word), "{word}: {error}");
    }
}

#[test]
fn an_image_that_is_too_large_is_refused_before_anything_is_allocated() {
    let input: ImageInput = serde_json::from_value(json!({"width": 4, "height": 4})).unwrap();
    let refused = |bytes: &[u8]| match input.pixels(
        bytes,
        Path::new("p"),
        &Semaphore::new(image::DECODING_BYTES_MAX),
    ) {
        Err(ItemFailure::Permanent(why)) => assert!(why.contains("bytes of memory"), "{why}"),
        other => panic!("{other:?}"),
    };
    // The images are a progressive photograph and a picture, each of which says that it is as large as can
    // be.
    let mut photo = fs_err::read(models().join("progressive.jpg")).unwrap();
    let frame = photo.windows(2).position(|marker| marker == [0xFF, 0xC2]).unwrap();
    photo[frame + 5..frame + 9].copy_from_slice(&[0xFF; 4]);
    refused(&photo);
    let mut picture = fs_err::read(models().join("colours.png")).unwrap();
    picture[16..24].copy_from_slice(&[0, 1, 0, 0, 0, 1, 0, 0]);
    let mut head = crc32(&picture[12..29]).to_be_bytes();
    picture[29..33].swap_with_slice(&mut head);
    refused(&picture);
}

/// Check sum of a part of a PNG file.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |sum, &byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| (sum >> 1) ^ (0xEDB8_8320 & 0_u32.wrapping_sub(sum & 1)))
    })
}

/// A model that pools by itself and keeps the side that it pooled over leaves nothing to pool.
#[test]
fn states_of_fewer_places_than_tokens_are_refused() {
    for pooling in ["mean", "last"] {
        let mut config = text(pooling);
        config["model"] = json!("kept.onnx");
        let error = encode(&open(config, 8).unwrap(), &["the cat", "dog"]).unwrap_err();
        assert!(error.to_string().contains("mean [batch, 1, 8]"), "{error}");
    }
}

/// The runtime's own reader must survive the file that a broken download leaves.
#[test]
fn damaged_models_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let file_bytes = fs_err::read(models().join("cnn.onnx")).unwrap();
    for cut in (0..file_bytes.len()).step_by(97) {
        let path = folder.path().join("cut.onnx");
        fs_err::write(&path, &file_bytes[..cut]).unwrap();
        let mut config = cnn();
        config["model"] = json!(path);
        assert!(open(config, 6).is_err(), "{cut} of {} bytes", file_bytes.len());
    }
    // A byte that is wrong may be a weight, so the model may open and run; it must not take the process down.
    for at in (0..file_bytes.len()).step_by(7) {
        let mut bytes = file_bytes.clone();
        bytes[at] ^= 0x55;
        let path = folder.path().join("wrong.onnx");
        fs_err::write(&path, &bytes).unwrap();
        let mut config = cnn();
        config["model"] = json!(path);
        config["root"] = json!(models());
        if let Ok(onnx) = open(config, 6) {
            let _ = encode(&onnx, &["colours.png"]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// An item's vector does not depend on what else is in its batch.
    #[test]
    fn batches_do_not_change_vectors(
        order in proptest::collection::vec(0usize..4, 1..9), batch in 1usize..5
    ) {
        let mut config = text("mean");
        config["batch"] = json!(batch);
        let onnx = open(config, 8).unwrap();
        let sources: Vec<&str> = order.iter().map(|&at| SENTENCES[at]).collect();
        let expected = expected();
        for (source, answer) in sources.iter().zip(encode(&onnx, &sources).unwrap()) {
            assert_near(&answer.unwrap(), &expected[&format!("mean: {source}")]);
        }
    }

    /// Any bytes of an image file are an image or a failure of their item.
    #[test]
    fn any_bytes_are_an_image_or_a_failure(at in 0usize..124, byte: u8) {
        let input: ImageInput = serde_json::from_value(json!({"width": 4, "height": 4})).unwrap();
        let mut bytes = fs_err::read(models().join("colours.png")).unwrap();
        let at = at % bytes.len();
        bytes[at] = byte;
        match input.pixels(&bytes, Path::new("p"), &Semaphore::new(image::DECODING_BYTES_MAX)) {
            Ok((pixels, _)) => prop_assert_eq!(pixels.len(), 48),
            Err(failure) => prop_assert!(matches!(failure, ItemFailure::Permanent(_))),
        }
    }
}
