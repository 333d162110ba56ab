//! `rehang-lab train`, `embed` and `export` on the demo's digits, and with bad input of every kind.

use std::collections::BTreeSet;
use std::process::Output;

use rehang_core::{Distance, Matrix, Space};
use rehang_encode::{EncoderConfig, Input};
use rehang_files::VectorSource;
use serde_json::{Value, json};

use crate::common::{Place, demo, faults_of_refusal, waves, words};

/// `[data]` of the demo's digits: 1,797 images of 8 × 8 pixels from 0 to 16.
fn digits() -> String {
    format!(
        "[data]\nkind = 'arrays'\nimages = '{}'\nlabels = '{}'\nsize = [8, 8]\nscale = 15.9375\n",
        demo("images.npy"),
        demo("label.npy")
    )
}

/// Half of the classes for the old model, all for the new one.
const ALLOCATION: &str =
    "[allocation]\nfile = 'split.json'\nkind = 'extended-class'\nshare = 0.5\ntest = 0.2\n";

const ENCODER: &str = "[encoder]\nkind = 'cnn-small'\nwidth = 4\noutputs = 16\n";

fn write(place: &Place, name: &str, text: &str) {
    place.write_bytes(name, text.as_bytes());
}

fn run(place: &Place, command: &str) -> Output {
    place.run(&words(command, &[]))
}

fn json_of(place: &Place, command: &str) -> Value {
    place.json(&words(command, &[]))
}

fn matrix(place: &Place, name: &str) -> Matrix {
    rehang_files::read_matrix(&VectorSource::path(place.path(name))).unwrap()
}

/// The configurations of an old and of a new model on one allocation.
fn place_with_digits() -> Place {
    let place = Place::new();
    let data = digits();
    let old =
        format!("{data}{ALLOCATION}part = 'old'\n{ENCODER}[training]\nepochs = 4\n[output]\nmodel = 'old'\n");
    write(&place, "old.toml", &old);
    let new = format!(
        "{data}{ALLOCATION}part = 'new'\n{ENCODER}[old]\nencoder = 'old.safetensors'\n[training]\nepochs = 4\nseed = 3\n\
         [output]\nmodel = 'new'\n"
    );
    write(&place, "new.toml", &new);
    place
}

#[test]
fn a_compatible_model_from_its_configuration_to_the_gallery() {
    let place = place_with_digits();
    let old = json_of(&place, "train plain old.toml -o old.safetensors");
    assert_eq!((&old["method"], &old["model"]), (&json!("plain"), &json!("old")));
    assert_eq!((&old["dimension"], &old["classes"], &old["seed"]), (&json!(16), &json!(5), &json!(0)));
    assert_eq!((&old["refused"], &old["warnings"], &old["adapter"]), (&json!([]), &json!([]), &Value::Null));
    let history = old["history"].as_array().unwrap();
    assert_eq!(history.len(), 4);
    assert!(history[3]["loss"].as_f64().unwrap() < history[0]["loss"].as_f64().unwrap());
    assert!(history[3]["accuracy"].as_f64().unwrap() > 80.0, "{}", history[3]);
    assert_eq!(history[3]["terms"][0][0], "classification");
    let split: Value = serde_json::from_slice(&fs_err::read(place.path("split.json")).unwrap()).unwrap();
    assert_eq!(split["old"].as_array().unwrap().len() as u64, old["examples"].as_u64().unwrap());

    let bct = json_of(&place, "train bct new.toml -o bct.safetensors");
    assert_eq!((&bct["classes"], &bct["seed"]), (&json!(10), &json!(3)));
    assert_eq!(split["new"].as_array().unwrap().len() as u64, bct["examples"].as_u64().unwrap());
    json_of(&place, "train plain new.toml -o independent.safetensors");
    let text = fs_err::read_to_string(place.path("new.toml")).unwrap();
    write(&place, "dmu.toml", &format!("{text}adapter = 'psi.safetensors'\n[method]\nhidden = 32\n"));
    let dmu = json_of(&place, "train dmu dmu.toml --output dmu.safetensors --epochs 2 --seed 1");
    assert_eq!((&dmu["seed"], dmu["history"].as_array().unwrap().len()), (&json!(1), 2));
    assert!(dmu["adapter"].as_str().unwrap().ends_with("psi.safetensors"));

    // A second training gives an equal file; another seed gives another one.
    let bytes = |name: &str| fs_err::read(place.path(name)).unwrap();
    json_of(&place, "train bct new.toml -o again.safetensors");
    assert!(bytes("again.safetensors") == bytes("bct.safetensors"));
    json_of(&place, "train bct new.toml -o other.safetensors --seed 4 --epochs 1");
    assert!(bytes("other.safetensors") != bytes("bct.safetensors"));

    for model in ["old", "bct", "independent", "dmu"] {
        let said = json_of(
            &place,
            &format!("embed {model}.safetensors new.toml --part test -o {model}.npy --labels labels.npy"),
        );
        assert_eq!(said["items"].as_u64().unwrap() as usize, split["test"].as_array().unwrap().len());
        assert_eq!((&said["dimension"], &said["refused"]), (&json!(16), &json!([])));
    }
    assert_eq!(json_of(&place, "embed old.safetensors new.toml -o all.npy")["items"], 1797);
    let cross = |model: &str| {
        let old_and_new = format!("old=old.npy new={model}.npy");
        json_of(
            &place,
            &format!("evaluate cross --models {old_and_new} --labels labels.npy --distance cosine"),
        )
    };
    let top_1 = |cross: Value| cross["metrics"]["top1"]["matrix"][1][0].as_f64().unwrap();
    let (compatible, independent) = (top_1(cross("bct")), top_1(cross("independent")));
    assert!(compatible > independent + 20.0, "{compatible} against {independent}");

    // ψ is an adapter like any other.
    let psi = rehang_files::adapter_file::load(place.path("psi.safetensors")).unwrap();
    assert_eq!((psi.old.to_string(), psi.new.to_string()), {
        let space = |name: &str| Space::new(name, 16, Distance::Cosine, false).to_string();
        (space("old"), space("new"))
    });
    assert_eq!(json_of(&place, "inspect psi.safetensors")["training"]["method"], "dmu");
    json_of(&place, "transform psi.safetensors old.npy -o adapted.npy --sigma sigma.npy");
    let items = matrix(&place, "old.npy").rows();
    assert_eq!(matrix(&place, "adapted.npy").rows(), items);
    // The encoder starts a live upgrade too, whose backfill ends at the new encoder's own vectors.
    let lines: Vec<String> = (0..items)
        .map(|item| json!({"id": item.to_string(), "source": item.to_string()}).to_string())
        .collect();
    write(&place, "items.jsonl", &lines.join("\n"));
    write(&place, "ids.txt", &(0..items).map(|item| format!("{item}\n")).collect::<String>());
    json_of(
        &place,
        "gallery import --gallery g.db --space old --vectors old.npy --items items.jsonl --distance cosine",
    );
    let side = |name: &str| format!("name = '{name}'\ndimension = 16\ndistance = 'cosine'\n");
    let live = format!(
        "[gallery]\npath = 'g.db'\n[old]\n{}[new]\n{}[adapter]\nfile = 'psi.safetensors'\n[order]\npolicy = 'sigma'\n[encoder]\n\
         kind = 'table'\nvectors = 'dmu.npy'\nids = 'ids.txt'\n",
        side("old"),
        side("new")
    );
    write(&place, "rehang.toml", &live);
    assert_eq!(json_of(&place, "upgrade start --config rehang.toml")["adapted"], items);
    assert_eq!(json_of(&place, "upgrade switch --config rehang.toml")["serving"], "new");
    let found = json_of(&place, "search --gallery g.db --vectors dmu.npy -k 1");
    assert_eq!(found["results"][0][0]["provenance"], "adapted");
    json_of(&place, "upgrade run --config rehang.toml --until all");
    let found = json_of(&place, "search --gallery g.db --vectors dmu.npy -k 1");
    assert_eq!(
        (&found["results"][7][0]["provenance"], &found["results"][7][0]["id"]),
        (&json!("native"), &json!("7"))
    );

    let text = run(&place, "train plain old.toml -o old.safetensors --epochs 1");
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("classification") && text.trim_end().ends_with("old.safetensors"), "{text}");
}

/// A small study: two methods, one adapter, one seed.
const COMPARE: &str = "[training]\nepochs = 3\n[compare]\nseeds = [0]\nold_encoder = { kind = 'cnn-small', width = 4, \
                       outputs = 8 }\nmethods = ['bct', { name = 'dmu', label = 'mine', hidden = 16 }]\nadapters = \
                       ['procrustes']\norders = ['random', 'sigma']\nfolder = 'kept'\n";

#[test]
fn a_study_puts_methods_and_adapters_side_by_side_and_goes_on_where_it_stopped() {
    let place = Place::new();
    write(&place, "study.toml", &format!("{}{ALLOCATION}{ENCODER}{COMPARE}", digits()));
    let said = json_of(&place, "compare study.toml --out report");
    let outcomes = said["comparison"]["outcomes"].as_array().unwrap();
    let methods: Vec<&str> = outcomes.iter().map(|outcome| outcome["method"].as_str().unwrap()).collect();
    assert_eq!(methods, ["independent", "bct", "mine", "mine + ψ", "procrustes"]);
    let orders = |number: usize| outcomes[number]["backfills"].as_array().unwrap().len();
    assert_eq!((orders(0), orders(1), orders(3), orders(4)), (1, 1, 2, 2));
    let map = |number: usize, what: &str| outcomes[number][what]["map"].as_f64().unwrap();
    assert!(map(1, "new_old") > map(0, "new_old") + 10.0, "{} {}", map(1, "new_old"), map(0, "new_old"));
    assert!((map(4, "new_new") - map(0, "new_new")).abs() < 1e-9);
    for file in ["comparison.html", "comparison.md", "comparison.json"] {
        assert!(place.path("report").join(file).metadata().unwrap().len() > 1000, "{file}");
    }
    // The ends are there, and the same, for methods that no order is for.
    let study = format!("{}{ALLOCATION}{ENCODER}{}", digits(), COMPARE.replace("'random', ", ""));
    write(&place, "ends.toml", &study);
    let ends = json_of(&place, "compare ends.toml --out ends");
    let ends = ends["comparison"]["outcomes"].as_array().unwrap();
    for (with, without) in outcomes.iter().zip(ends) {
        assert_eq!((&with["new_old"], &with["new_new"]), (&without["new_old"], &without["new_new"]));
    }
    assert_eq!(ends[0]["backfills"], json!([]));
    // Encoders that were kept are taken up: the same report again, without a training.
    let encoder = fs_err::read(place.path("kept/mine-0.safetensors")).unwrap();
    let again = json_of(&place, "compare study.toml --out report");
    assert_eq!(again["comparison"], said["comparison"]);
    assert!(encoder == fs_err::read(place.path("kept/mine-0.safetensors")).unwrap());

    // An adapter that is gone is made again, with the same encoder.
    fs_err::remove_file(place.path("kept/mine-0-psi.safetensors")).unwrap();
    let again = json_of(&place, "compare study.toml --out report");
    assert_eq!(again["comparison"], said["comparison"]);
    assert!(encoder == fs_err::read(place.path("kept/mine-0.safetensors")).unwrap());
    assert!(place.path("kept/mine-0-psi.safetensors").exists());

    // An encoder that was trained in another way is refused and stays, whether or not its adapter is there.
    fs_err::remove_file(place.path("kept/mine-0-psi.safetensors")).unwrap();
    let longer = COMPARE.replace("epochs = 3", "epochs = 4");
    for (text, expected) in [
        (longer, "trained in another way"),
        (COMPARE.replace("hidden = 16", "hidden = 12"), "mine-0.safetensors: it was trained in another way"),
        (COMPARE.replace("'bct',", "'plain',"), "the independent model takes part"),
        (COMPARE.replace("'bct',", "'mine',"), "mine"),
        (COMPARE.replace("'bct',", "{ name = 'ract', label = 'mine' },"), "every name once"),
        (COMPARE.replace("'bct',", "{ name = 'bct', label = 'independent' },"), "every name once"),
        (COMPARE.replace("'bct',", "{ name = 'bct', label = 'mine + ψ' },"), "every name once"),
        (COMPARE.replace("['procrustes']", "['procrustes', 'procrustes']"), "procrustes"),
        (COMPARE.replace("[0]", "[0, 0]"), "every seed once"),
        (COMPARE.replace("epochs = 3", "epochs = 3\nseed = 1"), "seeds stand in [compare]"),
        (COMPARE.replace("[compare]", "[output]\ncheckpoint = 'c'\n[compare]"), "checkpoint"),
        (COMPARE.replace("[compare]", "[output]\nencoder = 'e'\n[compare]"), "output.encoder"),
        (COMPARE.replace("[compare]", "[output]\nadapter = 'a'\n[compare]"), "output.adapter"),
        (COMPARE.replace("[compare]", "[output]\nmodel = 'm'\n[compare]"), "output.model"),
        (COMPARE.replace("seeds", "seed"), "seed"),
        (COMPARE.replace("[0]", "[0]\ndistance = 'l1'"), "l1"),
        (COMPARE.replace("[0]", "[0]\nprotocols = ['tar@2']"), "tar@2"),
        (COMPARE.replace("[0]", "[]"), "seeds"),
        ("[training]\nepochs = 3\n".to_owned(), "[compare]"),
    ] {
        write(&place, "study.toml", &format!("{}{ALLOCATION}{ENCODER}{text}", digits()));
        let output = run(&place, "compare study.toml --out elsewhere");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.lines().any(|line| line.starts_with("Error: ") && line.contains(expected)), "{error}");
        assert!(!place.path("elsewhere/comparison.html").exists());
    }
    assert!(encoder == fs_err::read(place.path("kept/mine-0.safetensors")).unwrap());
    write(&place, "study.toml", &format!("{}{ALLOCATION}part = 'new'\n{ENCODER}{COMPARE}", digits()));
    let output = run(&place, "compare study.toml --out elsewhere");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && error.contains("allocation.part"), "{error}");

    // A test of one row a class is refused before anything is trained.
    let labels = rehang_files::read_labels(&VectorSource::path(demo("label.npy"))).unwrap();
    let classes: BTreeSet<i64> = labels.iter().copied().collect();
    let first = |class: &i64| labels.iter().position(|label| label == class).unwrap() as i64;
    place.write_labels("first.npy", &classes.iter().map(first).collect::<Vec<_>>());
    let allocation = ALLOCATION.replace("test = 0.2", "test_rows = 'first.npy'").replace("split", "single");
    let compare = COMPARE.replace("'kept'", "'single'");
    write(&place, "study.toml", &format!("{}{allocation}{ENCODER}{compare}", digits()));
    let output = run(&place, "compare study.toml --out elsewhere");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("the part \"test\"") && error.contains("allocation.test"), "{error}");
    assert_eq!(fs_err::read_dir(place.path("single")).unwrap().count(), 0);
}

#[test]
fn an_exported_encoder_serves_as_the_backfills_encoder() {
    let place = place_with_digits();
    json_of(&place, "train plain old.toml -o old.safetensors --epochs 1");
    let said = json_of(&place, "export old.safetensors -o old.onnx");
    assert_eq!(said["bytes"].as_u64().unwrap(), fs_err::metadata(place.path("old.onnx")).unwrap().len());
    let text = String::from_utf8(run(&place, "export old.safetensors -o old.onnx").stdout).unwrap();
    assert!(
        text.contains("\"pixels\" [batch, 1, 8, 8]") && text.contains("\"vector\" [batch, 16]"),
        "{text}"
    );
    json_of(&place, "embed old.safetensors old.toml -o own.npy");
    let own = matrix(&place, "own.npy");

    let images = rehang_files::read_array(demo("images.npy")).unwrap();
    let rehang_files::ArrayNumbers::Bytes(pixels) = images.numbers else {
        panic!("the demo's images are bytes")
    };
    let rows = [0, 7, 1796];
    let sources: Vec<String> = rows
        .iter()
        .map(|row| {
            let scaled = pixels[row * 64..(row + 1) * 64].iter();
            let scaled = scaled.map(|&pixel| (f64::from(pixel) * 15.9375).round() as u8).collect();
            let name = format!("{row}.png");
            image::GrayImage::from_raw(8, 8, scaled).unwrap().save(place.path(&name)).unwrap();
            name
        })
        .collect();
    let config = json!({"kind": "onnx", "model": "old.onnx",
        "input": {"kind": "image", "width": 8, "height": 8, "channels": 1}});
    let config: EncoderConfig = serde_json::from_value(config).unwrap();
    let space = Space::new("old", 16, Distance::Cosine, false);
    let backfill = rehang_encode::open(&config, &space, &place.path("")).unwrap();
    let items: Vec<Input<'_>> =
        sources.iter().map(|source| Input { id: "item", source, payload: &Value::Null }).collect();
    for (row, vector) in rows.into_iter().zip(backfill.encode(&items).unwrap()) {
        let (vector, own) = (vector.unwrap(), own.row(row));
        let size = own.iter().fold(0.0_f32, |size, value| size.max(value.abs()));
        assert!(vector.iter().zip(own).all(|(left, right)| (left - right).abs() <= 1e-4 * size), "row {row}");
    }

    // An encoder of vectors has another input.
    place.write_matrix("features.npy", &waves(40, 6, 1));
    place.write_labels("classes.npy", &(0..40).map(|row| row % 4).collect::<Vec<_>>());
    write(
        &place,
        "features.toml",
        "[data]\nkind = 'features'\nvectors = 'features.npy'\nlabels = 'classes.npy'\n\
         [encoder]\nkind = 'mlp'\noutputs = 3\n[training]\nepochs = 1\n",
    );
    json_of(&place, "train plain features.toml -o features.safetensors");
    let text = String::from_utf8(run(&place, "export features.safetensors -o f.onnx").stdout).unwrap();
    assert!(text.contains("\"features\" [batch, 6]"), "{text}");
}

#[test]
fn images_that_cannot_be_read_are_left_out_listed_and_end_with_code_1() {
    let place = Place::new();
    for class in ["oak", "fir"] {
        fs_err::create_dir_all(place.path("trees").join(class)).unwrap();
        for number in 0..6_u8 {
            let shade = if class == "oak" { 40 } else { 200 };
            let image = image::RgbImage::from_fn(9, 9, |x, y| image::Rgb([shade + number, (x * y) as u8, 7]));
            image.save(place.path("trees").join(class).join(format!("{number}.png"))).unwrap();
        }
    }
    fs_err::write(place.path("trees").join("oak").join("broken.png"), b"\x89PNG\r\n\x1a\nno more").unwrap();
    write(
        &place,
        "trees.toml",
        "[data]\nkind = 'folder'\npath = 'trees'\nsize = [8, 8]\n[encoder]\nkind = 'cnn-small'\nwidth = 2\noutputs = 4\n\
         [training]\nepochs = 1\n",
    );
    for command in
        ["train plain trees.toml -o trees.safetensors", "embed trees.safetensors trees.toml -o trees.npy"]
    {
        let output = run(&place, &format!("{command} --json"));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("broken.png"), "{stderr}");
        let said: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(said["refused"][0]["what"].as_str().unwrap().ends_with("broken.png"), "{said}");
    }
    assert_eq!(matrix(&place, "trees.npy").rows(), 12);

    let text = fs_err::read_to_string(place.path("trees.toml")).unwrap();
    let study = "[allocation]\nfile = 'split.json'\nkind = 'open-data'\nshare = 0.5\ntest = 0.34\n[compare]\nseeds = [0]\n\
                 old_encoder = { kind = 'cnn-small', width = 2, outputs = 4 }\nmethods = ['bct']\norders = ['random']\n";
    write(&place, "study.toml", &format!("{text}{study}"));
    let output = run(&place, "compare study.toml --json");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(said["refused"][0]["what"].as_str().unwrap().ends_with("broken.png"), "{said}");
}

#[test]
fn one_file_for_two_things_is_refused_before_any_work() {
    let place = place_with_files();
    let encoder = "[encoder]\nkind = 'mlp'\noutputs = 3\n[training]\nepochs = 1\n";
    let with = |more: &str| format!("{FEATURES}{encoder}{more}");
    let old = with("[old]\nencoder = 'features.safetensors'\n");
    let vectors = with("[old]\nvectors = 'features.npy'\nhead_weight = 'head.npy'\n");
    let checkpoint = with("[output]\ncheckpoint = 'OUT.safetensors'\n");
    let initial = with("initial = 'features.safetensors'\n");
    let allocation =
        with("[allocation]\nfile = 'split.json'\nkind = 'expansion'\nshare = 0.5\ntest_rows = 'few.npy'\n");
    let copied = ["features.safetensors", "features.npy", "classes.npy", "head.npy"];
    let bytes = || copied.map(|name| fs_err::read(place.path(name)).unwrap());
    let before = (place.names(), bytes());
    for (text, command, says) in [
        (with(""), "train dmu two.toml -o a.safetensors --adapter ./a.safetensors", "--adapter"),
        (checkpoint, "train plain two.toml -o OUT.safetensors", "output.checkpoint"),
        (old.clone(), "train bct two.toml -o features.safetensors", "old.encoder"),
        (old, "train dmu two.toml -o a.safetensors --adapter features.safetensors", "old.encoder"),
        (vectors.clone(), "train bct two.toml -o head.npy", "old.head_weight"),
        (vectors, "train bct two.toml -o classes.npy", "data.labels"),
        (initial, "train plain two.toml -o features.safetensors", "training.initial"),
        (allocation.clone(), "train plain two.toml -o split.json", "allocation.file"),
        (allocation, "train plain two.toml -o few.npy", "allocation.test_rows"),
        (with(""), "train plain two.toml -o ./two.toml", "the configuration"),
        (with(""), "embed features.safetensors two.toml -o x.npy --labels two.toml", "the configuration"),
        (with(""), "embed features.safetensors two.toml -o x.npy --labels ./x.npy", "--labels"),
        (with(""), "embed features.safetensors two.toml -o features.safetensors", "the encoder"),
        (with(""), "embed features.safetensors two.toml -o x.npy --labels classes.npy", "data.labels"),
    ] {
        write(&place, "two.toml", &text);
        let output = run(&place, command);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{command}: {error}");
        assert!(error.contains("another file than") && error.contains(says), "{command}: {error}");
        fs_err::remove_file(place.path("two.toml")).unwrap();
        assert!((place.names(), bytes()) == before, "{command}");
    }
}

#[test]
fn a_training_goes_on_from_its_checkpoint_and_refuses_another_ones() {
    let place = place_with_digits();
    let text = fs_err::read_to_string(place.path("old.toml")).unwrap();
    write(&place, "kept.toml", &format!("{text}checkpoint = 'checkpoint.safetensors'\n"));
    json_of(&place, "train plain kept.toml -o first.safetensors --epochs 2");
    json_of(&place, "train plain kept.toml -o second.safetensors --epochs 2");
    let bytes = |name: &str| fs_err::read(place.path(name)).unwrap();
    assert!(bytes("first.safetensors") == bytes("second.safetensors"));
    let output = run(&place, "train plain kept.toml -o third.safetensors --epochs 2 --seed 9");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr.contains("checkpoint.safetensors") && stderr.contains("remove it"), "{stderr}");
    assert!(!place.path("third.safetensors").exists());
}

#[test]
fn test_rows_are_seen_from_the_folder_of_the_configuration() {
    let place = place_with_digits();
    fs_err::create_dir(place.path("study")).unwrap();
    place.write_labels("study/test.npy", &(0..100).collect::<Vec<_>>());
    let allocation = ALLOCATION.replace("test = 0.2", "test_rows = 'test.npy'");
    let text = format!("{}{allocation}{ENCODER}[training]\nepochs = 1\n", digits());
    write(&place, "study/study.toml", &text);
    json_of(&place, "train plain study/study.toml -o a.safetensors");
    let split: Value =
        serde_json::from_slice(&fs_err::read(place.path("study/split.json")).unwrap()).unwrap();
    assert_eq!(split["test"].as_array().unwrap().len(), 100);
    // Read again from elsewhere, it is still the same allocation.
    let config = place.text("study/study.toml");
    json_of(&place, &format!("train plain {config} -o b.safetensors"));
}

#[test]
fn a_chain_of_upgrades_has_one_allocation_for_each_step() {
    let place = place_with_digits();
    json_of(&place, "train plain old.toml -o old.safetensors --epochs 1");
    let shares = [(0.3, 0.6), (0.6, 0.8)];
    let splits = shares.map(|(old, new)| {
        let name = format!("step-{old}");
        let text = format!(
            "{}[allocation]\nfile = '{name}.json'\nkind = 'open-class'\nshare = {old}\nnew_share = {new}\ntest = 0.2\n\
             {ENCODER}[old]\nencoder = 'old.safetensors'\n[training]\nepochs = 1\n",
            digits()
        );
        write(&place, &format!("{name}.toml"), &text);
        json_of(&place, &format!("train plain {name}.toml -o {name}.safetensors"));
        serde_json::from_slice::<Value>(&fs_err::read(place.path(&format!("{name}.json"))).unwrap()).unwrap()
    });
    // The new model of the first step is the old model of the second one, with all that it saw.
    assert_eq!(splits[0]["new"], splits[1]["old"]);
    assert_eq!(splits[0]["test"], splits[1]["test"]);
    assert!(splits[0]["old"].as_array().unwrap().len() < splits[0]["new"].as_array().unwrap().len());
    // BCT on what the old model saw, which only an allocation can tell.
    let again = fs_err::read_to_string(place.path("step-0.3.toml")).unwrap();
    write(&place, "bct.toml", &format!("{again}[method]\ninfluence_set = 'old'\n"));
    let trained = json_of(&place, "train bct bct.toml -o bct.safetensors");
    assert_eq!(trained["method"], "bct");
    // The file is enough; whoever says more has to mean the same.
    let drawn = "kind = 'open-class'\nshare = 0.3\nnew_share = 0.6\ntest = 0.2\n";
    assert!(again.contains(drawn));
    for said in ["", "new_share = 0.6\n"] {
        write(&place, "brief.toml", &again.replace(drawn, said));
        json_of(&place, "train plain brief.toml -o brief.safetensors");
    }
    for said in ["new_share = 0.9\n".to_owned(), drawn.replace("0.6", "0.9")] {
        write(&place, "other.toml", &again.replace(drawn, &said));
        let refused = run(&place, "train plain other.toml -o other.safetensors");
        assert_eq!(refused.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&refused.stderr).contains("remove it"));
    }
}

/// Bad input: what is wrong, the configuration (after the digits' `[data]`, unless it has its own), the
/// command, and what must be said.
struct Case {
    why: &'static str,
    config: &'static str,
    command: &'static str,
    says: &'static [&'static str],
}

const FEATURES: &str = "[data]\nkind = 'features'\nvectors = 'features.npy'\nlabels = 'classes.npy'\n";

const TRAIN: &str = "train plain bad.toml -o OUT.safetensors";

const CASES: &[Case] = &[
    Case {
        why: "an unknown key",
        config: "[encoder]\nkind = 'mlp'\noutputs = 3\nwidht = 3\n",
        command: TRAIN,
        says: &["bad.toml", "widht"],
    },
    Case { why: "an unknown table", config: "[trainign]\n", command: TRAIN, says: &["bad.toml", "trainign"] },
    Case { why: "no TOML", config: "encoder = = 3\n", command: TRAIN, says: &["bad.toml"] },
    Case {
        why: "an unknown method",
        config: "[encoder]\nkind = 'mlp'\noutputs = 3\n",
        command: "train bcd bad.toml -o OUT.safetensors",
        says: &["bcd", "bct", "ract-on-bct"],
    },
    Case {
        why: "an unknown option of a method",
        config: "[encoder]\nkind = 'mlp'\noutputs = 3\n[method]\nwieght = 1.0\n",
        command: "train bct bad.toml -o OUT.safetensors",
        says: &["bct", "wieght"],
    },
    Case {
        why: "a configuration that is not there",
        config: "",
        command: "train plain none.toml -o OUT.safetensors",
        says: &["none.toml"],
    },
    Case { why: "no encoder", config: "", command: TRAIN, says: &["[encoder]"] },
    Case {
        why: "an unknown encoder",
        config: "[encoder]\nkind = 'vgg'\noutputs = 3\n",
        command: TRAIN,
        says: &["vgg", "resnet18"],
    },
    Case {
        why: "an encoder without outputs",
        config: "[encoder]\nkind = 'mlp'\noutputs = 0\n",
        command: TRAIN,
        says: &["outputs"],
    },
    Case {
        why: "images that are too small",
        config: "[encoder]\nkind = 'resnet18'\nstem = 'imagenet'\noutputs = 3\n",
        command: TRAIN,
        says: &["8 x 8", "32 x 32"],
    },
    Case {
        why: "no output",
        config: "[encoder]\nkind = 'mlp'\noutputs = 3\n",
        command: "train plain bad.toml",
        says: &["--output"],
    },
    Case {
        why: "an output in no folder",
        config: "[encoder]\nkind = 'mlp'\noutputs = 3\n",
        command: "train plain bad.toml -o nowhere/OUT.safetensors",
        says: &["nowhere"],
    },
    Case {
        why: "an adapter in no folder",
        config: "[encoder]\nkind = 'mlp'\noutputs = 3\n",
        command: "train plain bad.toml -o OUT.safetensors --adapter nowhere/psi.safetensors",
        says: &["nowhere"],
    },
    Case {
        why: "no epochs",
        config: "[encoder]\nkind = 'mlp'\noutputs = 3\n",
        command: "train plain bad.toml -o OUT.safetensors --epochs 0",
        says: &["epochs"],
    },
    Case {
        why: "batches of one row",
        config: "[encoder]\nkind = 'mlp'\noutputs = 3\n[sampler]\nkind = 'shuffled'\nbatch = 1\n",
        command: TRAIN,
        says: &["batch", "at least 2"],
    },
    Case {
        why: "a rate that is none",
        config: "[encoder]\nkind = 'mlp'\noutputs = 3\n[training]\nrate = -0.1\n",
        command: TRAIN,
        says: &["rate", "-0.1"],
    },
    Case {
        why: "a loss that leaves the numbers",
        config: "[encoder]\nkind = 'mlp'\noutputs = 3\n[training]\nrate = 1e30\nwarm_up_epochs = 0.0\nepochs = 2\n",
        command: TRAIN,
        says: &["step"],
    },
    Case {
        why: "a method without its old model",
        config: "[encoder]\nkind = 'mlp'\noutputs = 3\n",
        command: "train bct bad.toml -o OUT.safetensors",
        says: &["old model", "bct"],
    },
    Case {
        why: "an old encoder that is not there",
        config: "[encoder]\nkind = 'mlp'\noutputs = 3\n[old]\nencoder = 'none.safetensors'\n",
        command: "train bct bad.toml -o OUT.safetensors",
        says: &["none.safetensors"],
    },
    Case {
        why: "an old encoder that was cut",
        config: "[encoder]\nkind = 'mlp'\noutputs = 3\n[old]\nencoder = 'cut.safetensors'\n",
        command: "train bct bad.toml -o OUT.safetensors",
        says: &["cut.safetensors"],
    },
    Case {
        why: "an old encoder with a changed byte",
        config: "[encoder]\nkind = 'mlp'\noutputs = 3\n[old]\nencoder = 'changed.safetensors'\n",
        command: "train bct bad.toml -o OUT.safetensors",
        says: &["changed.safetensors", "check sum"],
    },
    Case {
        why: "an adapter as the old encoder's file",
        config: "[encoder]\nkind = 'mlp'\noutputs = 3\n[old]\nencoder = 'weights.safetensors'\n",
        command: "train bct bad.toml -o OUT.safetensors",
        says: &["weights.safetensors", "not an encoder"],
    },
    Case {
        why: "an old encoder of other inputs",
        config: "[encoder]\nkind = 'mlp'\noutputs = 3\n[old]\nencoder = 'features.safetensors'\n",
        command: "train bct bad.toml -o OUT.safetensors",
        says: &["1 x 8 x 8", "6 x 1 x 1"],
    },
    Case {
        why: "an old encoder and old vectors",
        config: "[encoder]\nkind = 'mlp'\noutputs = 3\n[old]\nencoder = 'features.safetensors'\nvectors = 'features.npy'\n",
        command: "train bct bad.toml -o OUT.safetensors",
        says: &["[old]", "one of the two"],
    },
    Case {
        why: "old vectors of other items",
        config: "[encoder]\nkind = 'mlp'\noutputs = 3\n[old]\nvectors = 'features.npy'\n",
        command: "train l2 bad.toml -o OUT.safetensors",
        says: &["40", "1797"],
    },
    Case {
        why: "old vectors without the head",
        config: "FEATURES[encoder]\nkind = 'mlp'\noutputs = 3\n[old]\nvectors = 'features.npy'\n",
        command: "train bct bad.toml -o OUT.safetensors",
        says: &["head", "bct"],
    },
    Case {
        why: "what an encoder brings itself",
        config: "[encoder]\nkind = 'mlp'\noutputs = 3\n[old]\nencoder = 'none.safetensors'\nclasses = ['a']\n",
        command: "train bct bad.toml -o OUT.safetensors",
        says: &["old.classes", "old.encoder"],
    },
    Case {
        why: "vectors that are said to be cached",
        config: "FEATURES[encoder]\nkind = 'mlp'\noutputs = 3\n[old]\nvectors = 'features.npy'\ncached = true\n",
        command: "train l2 bad.toml -o OUT.safetensors",
        says: &["old.cached"],
    },
    Case {
        why: "a head's form without the head",
        config: "FEATURES[encoder]\nkind = 'mlp'\noutputs = 3\n[old]\nvectors = 'features.npy'\nhead = { form = 'arcface' }\n",
        command: "train l2 bad.toml -o OUT.safetensors",
        says: &["old.head", "head_weight"],
    },
    Case {
        why: "a bias beside cosines",
        config: "FEATURES[encoder]\nkind = 'mlp'\noutputs = 3\n[old]\nvectors = 'features.npy'\nhead_weight = 'head.npy'\n\
                 head_bias = 'head.npy'\nhead = { form = 'cosface' }\n",
        command: "train bct bad.toml -o OUT.safetensors",
        says: &["old.head_bias", "cosines"],
    },
    Case {
        why: "an old head whose classes are some of the data's",
        config: "[encoder]\nkind = 'mlp'\noutputs = 3\n[old]\nvectors = 'features.npy'\nhead_weight = 'head.npy'\n",
        command: "train bct bad.toml -o OUT.safetensors",
        says: &["old.classes", "4 classes", "10"],
    },
    Case {
        why: "a selection without a head that selects",
        config: "FEATURES[encoder]\nkind = 'mlp'\noutputs = 3\n[old]\nvectors = 'features.npy'\n[method]\nselection = 'even'\n",
        command: "train regression bad.toml -o OUT.safetensors",
        says: &["selection", "old.head_weight"],
    },
    Case {
        why: "units of a ψ that is not trained",
        config: "[encoder]\nkind = 'mlp'\noutputs = 3\n[method]\nforward_weight = 0.0\nhidden = 8\n",
        command: "train dmu bad.toml -o OUT.safetensors",
        says: &["hidden", "forward_weight"],
    },
    Case {
        why: "synthesised classes on the old training set",
        config: "[encoder]\nkind = 'mlp'\noutputs = 3\n[method]\ninfluence_set = 'old'\nnew_classes = 'synthesised'\n",
        command: "train bct bad.toml -o OUT.safetensors",
        says: &["new_classes", "influence_set"],
    },
    Case {
        why: "options that this form does not look at",
        config: "[encoder]\nkind = 'mlp'\noutputs = 3\n[method]\nform = 'triplet'\neta = 0.5\n",
        command: "train ract bad.toml -o OUT.safetensors",
        says: &["eta", "this form"],
    },
    Case {
        why: "an old head of another width",
        config: "FEATURES[encoder]\nkind = 'mlp'\noutputs = 3\n[old]\nvectors = 'features.npy'\nhead_weight = 'head.npy'\n",
        command: "train bct bad.toml -o OUT.safetensors",
        says: &["head", "6", "9"],
    },
    Case {
        why: "a margin in degrees",
        config: "[encoder]\nkind = 'mlp'\noutputs = 3\n[head]\nform = 'arcface'\nmargin = 28.6\n",
        command: TRAIN,
        says: &["head.margin", "28.6", "radians"],
    },
    Case {
        why: "a scale of an old head that turns everything round",
        config: "FEATURES[encoder]\nkind = 'mlp'\noutputs = 3\n[old]\nvectors = 'features.npy'\nhead_weight = 'head.npy'\n\
                 head = { form = 'cosface', scale = -30.0 }\n",
        command: "train bct bad.toml -o OUT.safetensors",
        says: &["old.head.scale", "-30", "above 0"],
    },
    Case {
        why: "a momentum that never dies down",
        config: "[encoder]\nkind = 'mlp'\noutputs = 3\n[training]\noptimiser = { kind = 'sgd', momentum = 1.0 }\n",
        command: TRAIN,
        says: &["optimiser.momentum", "below 1"],
    },
    Case {
        why: "a schedule that turns round",
        config: "[encoder]\nkind = 'mlp'\noutputs = 3\n[training]\nschedule = { kind = 'steps', at = [1], factor = -0.1 }\n",
        command: TRAIN,
        says: &["schedule.factor", "-0.1", "above 0"],
    },
    Case {
        why: "NaN in the old vectors",
        config: "FEATURES[encoder]\nkind = 'mlp'\noutputs = 3\n[old]\nvectors = 'nan.npy'\n",
        command: "train l2 bad.toml -o OUT.safetensors",
        says: &["old vectors", "row 3"],
    },
    Case {
        why: "NaN in the features",
        config: "[data]\nkind = 'features'\nvectors = 'nan.npy'\nlabels = 'classes.npy'\n[encoder]\nkind = 'mlp'\noutputs = 3\n",
        command: TRAIN,
        says: &["nan.npy", "row 3"],
    },
    Case {
        why: "fewer labels than rows",
        config: "[data]\nkind = 'features'\nvectors = 'features.npy'\nlabels = 'few.npy'\n[encoder]\nkind = 'mlp'\noutputs = 3\n",
        command: TRAIN,
        says: &["features.npy", "few.npy", "40", "39"],
    },
    Case {
        why: "one class only",
        config: "[data]\nkind = 'features'\nvectors = 'features.npy'\nlabels = 'one.npy'\n[encoder]\nkind = 'mlp'\noutputs = 3\n",
        command: TRAIN,
        says: &["at least two"],
    },
    Case {
        why: "flat images without their size",
        config: "[data]\nkind = 'arrays'\nimages = 'features.npy'\nlabels = 'classes.npy'\n[encoder]\nkind = 'mlp'\noutputs = 3\n",
        command: TRAIN,
        says: &["features.npy", "size"],
    },
    Case {
        why: "an empty folder of images",
        config: "[data]\nkind = 'folder'\npath = 'empty'\nsize = [8, 8]\n[encoder]\nkind = 'mlp'\noutputs = 3\n",
        command: TRAIN,
        says: &["empty", "one folder a class"],
    },
    Case {
        why: "an encoder of images for features",
        config: "FEATURES[encoder]\nkind = 'cnn-small'\noutputs = 3\n",
        command: TRAIN,
        says: &["cnn-small", "mlp"],
    },
    Case {
        why: "a variation of images for features",
        config: "FEATURES[encoder]\nkind = 'mlp'\noutputs = 3\n[augmentation]\nflip = 0.5\n",
        command: TRAIN,
        says: &["flip"],
    },
    Case {
        why: "an allocation that was never drawn",
        config: "[encoder]\nkind = 'mlp'\noutputs = 3\n[allocation]\nfile = 'none.json'\n",
        command: TRAIN,
        says: &["kind", "[allocation]"],
    },
    Case {
        why: "an unknown key of an allocation",
        config: "[encoder]\nkind = 'mlp'\noutputs = 3\n[allocation]\nfile = 'none.json'\nkind = 'expansion'\nshare = 0.5\nsede = 1\n",
        command: TRAIN,
        says: &["sede"],
    },
    Case {
        why: "an allocation of other data",
        config: "FEATURES[encoder]\nkind = 'mlp'\noutputs = 3\n[allocation]\nfile = 'split.json'\n",
        command: TRAIN,
        says: &["split.json", "40"],
    },
    Case {
        why: "an allocation that was drawn otherwise",
        config: "[encoder]\nkind = 'mlp'\noutputs = 3\n[allocation]\nfile = 'split.json'\nkind = 'expansion'\nshare = 0.25\n",
        command: TRAIN,
        says: &["split.json", "remove it"],
    },
    Case {
        why: "a new share without an old one",
        config: "[encoder]\nkind = 'mlp'\noutputs = 3\n[allocation]\nfile = 'none.json'\nkind = 'classes'\nnew_share = 0.5\n\
                 classes = { old = ['0..4'], new = ['0..8'] }\n",
        command: TRAIN,
        says: &["share"],
    },
    Case {
        why: "a new share that is not larger",
        config: "[encoder]\nkind = 'mlp'\noutputs = 3\n[allocation]\nfile = 'none.json'\nkind = 'expansion'\nshare = 0.5\nnew_share = 0.5\n",
        command: TRAIN,
        says: &["new_share", "above the old one"],
    },
    Case {
        why: "the influence loss on the old training set without an allocation",
        config: "[encoder]\nkind = 'mlp'\noutputs = 3\n[method]\ninfluence_set = 'old'\n[old]\nencoder = 'digits.safetensors'\n",
        command: "train bct bad.toml -o OUT.safetensors",
        says: &["allocation"],
    },
    Case {
        why: "initial weights of another encoder",
        config: "[encoder]\nkind = 'mlp'\noutputs = 3\n[training]\ninitial = 'features.safetensors'\n",
        command: TRAIN,
        says: &["features.safetensors", "fc.weight"],
    },
    Case {
        why: "a part without an allocation",
        config: "",
        command: "embed digits.safetensors bad.toml --part test -o OUT.npy",
        says: &["[allocation]"],
    },
    Case {
        why: "other inputs to embed",
        config: "FEATURES",
        command: "embed digits.safetensors bad.toml -o OUT.npy",
        says: &["6 x 1 x 1", "1 x 8 x 8"],
    },
    Case {
        why: "labels in no folder",
        config: "",
        command: "embed digits.safetensors bad.toml -o OUT.npy --labels nowhere/labels.npy",
        says: &["nowhere"],
    },
    Case {
        why: "embedding by a cut encoder",
        config: "",
        command: "embed cut.safetensors bad.toml -o OUT.npy",
        says: &["cut.safetensors"],
    },
    Case {
        why: "exporting a cut encoder",
        config: "",
        command: "export cut.safetensors -o OUT.onnx",
        says: &["cut.safetensors"],
    },
    Case {
        why: "exporting into no folder",
        config: "",
        command: "export digits.safetensors -o nowhere/OUT.onnx",
        says: &["nowhere"],
    },
];

fn place_with_files() -> Place {
    let place = Place::new();
    let features = waves(40, 6, 1);
    place.write_matrix("features.npy", &features);
    let mut nan = features.clone();
    nan.row_mut(3)[1] = f32::NAN;
    place.write_matrix("nan.npy", &nan);
    place.write_matrix("head.npy", &waves(4, 9, 2));
    place.write_labels("classes.npy", &(0..40).map(|row| row % 4).collect::<Vec<_>>());
    place.write_labels("few.npy", &(0..39).map(|row| row % 4).collect::<Vec<_>>());
    place.write_labels("one.npy", &[7; 40]);
    fs_err::create_dir(place.path("empty")).unwrap();
    let encoder = "[encoder]\nkind = 'mlp'\noutputs = 3\n[training]\nepochs = 1\n";
    write(&place, "features.toml", &format!("{FEATURES}{encoder}"));
    json_of(&place, "train plain features.toml -o features.safetensors");
    write(&place, "digits.toml", &format!("{}{ALLOCATION}{encoder}", digits()));
    json_of(&place, "train plain digits.toml -o digits.safetensors");
    let bytes = fs_err::read(place.path("digits.safetensors")).unwrap();
    place.write_bytes("cut.safetensors", &bytes[..bytes.len() / 2]);
    let mut changed = bytes;
    let last = changed.len() - 3;
    changed[last] ^= 1;
    place.write_bytes("changed.safetensors", &changed);
    rehang_files::write_matrix(place.path("weights.safetensors"), &features, None).unwrap();
    place
}

#[test]
fn bad_input_gets_one_clear_error_and_leaves_nothing_behind() {
    let place = place_with_files();
    let mut failures = Vec::new();
    for Case { why, config, command, says } in CASES {
        let text = match config.strip_prefix("FEATURES") {
            Some(rest) => format!("{FEATURES}{rest}"),
            None if config.contains("[data]") => (*config).to_owned(),
            None => format!("{}{config}", digits()),
        };
        write(&place, "bad.toml", &text);
        let before = place.names();
        let output = run(&place, command);
        failures.extend(faults_of_refusal(why, &output, says, (&place, &before)));
    }
    assert!(failures.is_empty(), "{} of {} cases:\n{}", failures.len(), CASES.len(), failures.join("\n"));
}

#[test]
fn an_encoder_that_was_there_survives_a_failed_training() {
    let place = place_with_files();
    let before = fs_err::read(place.path("digits.safetensors")).unwrap();
    let encoder = "[encoder]\nkind = 'mlp'\noutputs = 3\n[training]\nrate = 1e30\nwarm_up_epochs = 0.0\n";
    write(&place, "bad.toml", &format!("{}{encoder}", digits()));
    let output = run(&place, "train plain bad.toml -o digits.safetensors");
    assert_eq!(output.status.code(), Some(2));
    assert!(fs_err::read(place.path("digits.safetensors")).unwrap() == before);
}

const GUIDE: &str = include_str!("../../../docs/training.md");

/// The old model's configuration of the guide trains, and so does the new one's by every method.
#[test]
fn the_first_session_of_the_guide_works() {
    let place = Place::new();
    let old = GUIDE.split("```toml\n# digits/old.toml\n").nth(1).unwrap().split("```").next().unwrap();
    let folder = demo("images.npy").replace("images.npy", "");
    let old = old
        .replace("../demo/", &folder)
        .replace("epochs = 15", "epochs = 1")
        .replace("width = 16", "width = 2");
    assert!(old.contains(&folder) && old.contains("epochs = 1\n"), "{old}");
    write(&place, "old.toml", &old);
    json_of(&place, "train plain old.toml");
    let new = old.replace("part = \"old\"", "part = \"new\"").replace("digits-v1", "digits-v2");
    let new = new.replace("encoder = \"v1.safetensors\"", "adapter = \"psi.safetensors\"");
    write(&place, "new.toml", &format!("{new}[old]\nencoder = \"v1.safetensors\"\n"));
    for method in rehang_train::compatible::TrainingMethod::NAMES {
        assert!(GUIDE.contains(&format!("| `{method}` | L_cls")), "{method} has no line in the guide");
        let said = json_of(&place, &format!("train {method} new.toml -o {method}.safetensors"));
        assert_eq!((&said["model"], &said["classes"]), (&json!("digits-v2"), &json!(10)));
    }

    // The live hot refresh: `bct` serves the old gallery, and its head says what is re-embedded first.
    json_of(&place, "embed v1.safetensors old.toml --part test -o v1.npy");
    json_of(&place, "embed bct.safetensors new.toml --part test -o bct.npy");
    let items: String =
        (0..719).map(|item| format!("{{\"id\": \"digit-{item}\", \"source\": \"{item}.png\"}}\n")).collect();
    write(&place, "items.jsonl", &items);
    write(&place, "ids.txt", &(0..719).map(|item| format!("digit-{item}\n")).collect::<String>());
    let import = "gallery import --gallery G.db --space digits-v1 --vectors v1.npy --items items.jsonl --distance cosine";
    json_of(&place, import);
    json_of(&place, "init --gallery G.db --new-name digits-v2 --out rehang.toml");
    let written = fs_err::read_to_string(place.path("rehang.toml")).unwrap();
    let own = GUIDE.split("```toml\n# digits/rehang.toml\n").nth(1).unwrap().split("```").next().unwrap();
    write(&place, "rehang.toml", &format!("{written}\n{own}"));
    assert_eq!(json_of(&place, "upgrade start --config rehang.toml")["adapted"], 719);
    assert_eq!(json_of(&place, "upgrade switch --config rehang.toml")["serving"], "digits-v2");
    assert_eq!(json_of(&place, "upgrade run --config rehang.toml --until 0.3")["native"], 216);
}

#[test]
fn the_guide_names_every_key_and_kind() {
    let place = Place::new();
    let tables = [
        "no-such-key = 1",
        "[data]\nkind = 'no-such-key'",
        "[data]\nkind = 'folder'\nno-such-key = 1",
        "[data]\nkind = 'arrays'\nno-such-key = 1",
        "[data]\nkind = 'cifar'\nno-such-key = 1",
        "[data]\nkind = 'features'\nno-such-key = 1",
        "[encoder]\nkind = 'no-such-key'",
        "[encoder]\nkind = 'mlp'\nno-such-key = 1",
        "[encoder]\nkind = 'cnn-small'\nno-such-key = 1",
        "[encoder]\nkind = 'resnet50'\nno-such-key = 1",
        "[head]\nform = 'no-such-key'",
        "[head]\nform = 'arcface'\nno-such-key = 1",
        "[augmentation]\nno-such-key = 1",
        "[augmentation]\naffine = { no-such-key = 1 }",
        "[sampler]\nkind = 'no-such-key'",
        "[sampler]\nkind = 'balanced'\nno-such-key = 1",
        "[old]\nno-such-key = 1",
        "[training]\nno-such-key = 1",
        "[training]\noptimiser = { kind = 'no-such-key' }",
        "[training]\nschedule = { kind = 'no-such-key' }",
        "[output]\nno-such-key = 1",
    ];
    for table in tables {
        write(&place, "keys.toml", table);
        let stderr =
            String::from_utf8(run(&place, "train plain keys.toml -o OUT.safetensors").stderr).unwrap();
        assert!(stderr.contains("no-such-key"), "{table}: {stderr}");
        let keys: Vec<&str> =
            stderr.rsplit("expected").next().unwrap().split('`').skip(1).step_by(2).collect();
        assert!(!keys.is_empty(), "{table}: {stderr}");
        for key in keys {
            let written =
                [format!("`{key}`"), format!("`[{key}]`"), format!("\"{key}\""), format!("{key} = ")];
            assert!(written.iter().any(|written| GUIDE.contains(written)), "{key} of {table}");
        }
    }
}
