//! Adapters as files: a written adapter is read again, an old file is read for ever, a damaged file is
//! refused.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::adapters::{adapters_of_every_kind, broken, fitted_on};
use rehang_core::adapter::{Applier, input_drift};
use rehang_core::{ErrorKind, Matrix};
use rehang_files::{VectorSource, adapter_file, read_matrix};
use serde::Deserialize;
use serde_json::Value;

fn golden_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

#[test]
fn every_kind_of_adapter_survives_its_file() {
    let folder = tempfile::tempdir().unwrap();
    for (name, adapter) in adapters_of_every_kind() {
        let bytes = adapter_file::to_bytes(&adapter).unwrap();
        assert_eq!(
            bytes,
            adapter_file::to_bytes(&adapter).unwrap(),
            "{name}: the same adapter, the same bytes"
        );
        assert_eq!(adapter_file::from_bytes(&bytes, name).unwrap(), adapter, "{name}");
        let path = folder.path().join(name);
        adapter_file::save(&adapter, &path).unwrap();
        assert_eq!(adapter_file::load(&path).unwrap(), adapter, "{name}");
    }
    let files = fs_err::read_dir(folder.path()).unwrap().count();
    assert_eq!(files, adapters_of_every_kind().len(), "nothing but the adapters is left in the folder");
}

#[test]
fn a_file_is_replaced_as_a_whole_or_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("adapter.safetensors");
    let kinds = adapters_of_every_kind();
    adapter_file::save(&kinds[0].1, &path).unwrap();
    adapter_file::save(&kinds[1].1, &path).unwrap();
    assert_eq!(adapter_file::load(&path).unwrap(), kinds[1].1);
    let mut broken = kinds[2].1.clone();
    broken.map.mixer[0].bias[0] = f32::NAN;
    assert!(adapter_file::save(&broken, &path).unwrap_err().is_corrupt());
    assert_eq!(adapter_file::load(&path).unwrap(), kinds[1].1);
    let error = adapter_file::save(&kinds[0].1, folder.path().join("no/such/folder/a")).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Io { .. }) && error.to_string().contains("no/such/folder"),
        "{error}"
    );
    let error = adapter_file::load(folder.path().join("nothing")).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Io { action: "read", .. }), "{error}");
}

/// Inputs and outputs of a golden adapter, from when it was written. They stand in a file beside it.
#[derive(Deserialize)]
struct Outputs {
    old: Vec<f32>,
    side: Option<Vec<f32>>,
    vectors: Vec<f32>,
    variance: Vec<f32>,
    raw_norms: Vec<f32>,
    /// Handicap of the adapter; files from before there were handicaps have none.
    #[serde(default)]
    handicap: f64,
}

#[test]
fn golden_files_load_and_give_what_they_gave_for_ever() {
    let close = |received: &[f32], expected: &[f32], what: &str| {
        assert_eq!(received.len(), expected.len(), "{what}");
        for (received, expected) in received.iter().zip(expected) {
            let tolerance = 1e-5 * expected.abs().max(1.0);
            assert!((received - expected).abs() <= tolerance, "{what}: {received} for {expected}");
        }
    };
    let mut seen = 0;
    let mut paths: Vec<PathBuf> =
        fs_err::read_dir(golden_folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in
        paths.iter().filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"))
    {
        let outputs: Outputs =
            serde_json::from_str(&fs_err::read_to_string(path.with_extension("json")).unwrap()).unwrap();
        let adapter = adapter_file::load(path).unwrap();
        assert_eq!(adapter.handicap, outputs.handicap);
        let applier = Applier::new(&adapter).unwrap();
        let rows = outputs.variance.len();
        let mut vectors = vec![0.0; rows * applier.d_new()];
        let (mut variance, mut raw_norms) = (vec![0.0; rows], vec![0.0; rows]);
        let side = outputs.side.as_deref();
        applier.apply_rows(0, &outputs.old, side, &mut vectors, &mut variance, &mut raw_norms).unwrap();
        let what = path.display().to_string();
        close(&vectors, &outputs.vectors, &what);
        close(&variance, &outputs.variance, &what);
        close(&raw_norms, &outputs.raw_norms, &what);
        seen += 1;
    }
    assert!(seen >= adapters_of_every_kind().len(), "a golden file of every kind is kept");
}

#[test]
fn halves_are_rounded_once_and_kept_in_two_bytes() {
    for (name, adapter) in adapters_of_every_kind() {
        let halves = adapter_file::halved(&adapter).unwrap();
        assert_eq!(adapter_file::halved(&halves).unwrap(), halves, "{name}: rounding what is rounded");
        let bytes = adapter_file::to_bytes(&halves).unwrap();
        assert_eq!(adapter_file::from_bytes(&bytes, name).unwrap(), halves, "{name}");
        let (header, numbers) = split(&bytes);
        assert_eq!(header["__metadata__"]["format_version"], "2", "{name}");
        let (whole, all_numbers) = split(&adapter_file::to_bytes(&adapter).unwrap());
        let older = if adapter.map.per_kind.is_some() { "2" } else { "1" };
        assert_eq!(whole["__metadata__"]["format_version"], older, "{name}: others are for every version");
        let mut spared = 0;
        for (tensor, entry) in header.as_object().unwrap() {
            let Some(shape) = entry["shape"].as_array() else { continue };
            let count: u64 = shape.iter().map(|size| size.as_u64().unwrap()).product();
            assert_eq!(entry["dtype"], if shape.len() == 2 { "F16" } else { "F32" }, "{name} {tensor}");
            spared += if shape.len() == 2 { 2 * count as usize } else { 0 };
        }
        assert_eq!(numbers.len() + spared, all_numbers.len(), "{name}");
        // A weight of 11 bits and more is rounded to another number; a weight of few bits stays the same.
        for (layer, rounded) in adapter.map.mixer.iter().zip(&halves.map.mixer) {
            for (&weight, &rounded) in layer.weight.as_slice().iter().zip(rounded.weight.as_slice()) {
                assert!((weight - rounded).abs() <= weight.abs() / 2048.0 + 2.0_f32.powi(-25), "{name}");
            }
            assert_eq!(layer.bias, rounded.bias, "{name}: vectors are left alone");
        }
    }
}

#[test]
fn what_half_precision_cannot_hold_is_refused() {
    let mut adapter = adapters_of_every_kind().remove(0).1;
    adapter.map.mixer[0].weight.as_mut_slice()[0] = 70_000.0;
    let error = adapter_file::halved(&adapter).unwrap_err().to_string();
    assert!(error.contains("70000") && error.contains("65504"), "{error}");
    // An adapter that falsely claims to be of halves gets a file whose check sum does not match.
    let mut claims = adapters_of_every_kind().remove(0).1;
    claims.map.mixer[0].weight.as_mut_slice()[0] = 0.1;
    claims.training.halves = true;
    let bytes = adapter_file::to_bytes(&claims).unwrap();
    assert!(adapter_file::from_bytes(&bytes, "a").unwrap_err().to_string().contains("check sum"));
}

/// Splits a file into its header as JSON and the numbers behind it.
fn split(bytes: &[u8]) -> (Value, Vec<u8>) {
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&bytes[8..8 + length]).unwrap(), bytes[8 + length..].to_vec())
}

fn join(header: &Value, data: &[u8]) -> Vec<u8> {
    let header = header.to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

#[test]
fn a_damaged_file_is_refused_with_its_reason() {
    type Damage = fn(&mut Value, &mut Vec<u8>);
    let kinds = adapters_of_every_kind();
    let (_, sound) = &kinds[1];
    let bytes = adapter_file::to_bytes(sound).unwrap();
    let damages: &[(&str, Damage)] = &[
        ("not an adapter", |header, _| {
            header.as_object_mut().unwrap().remove("__metadata__");
        }),
        ("not an adapter", |header, _| header["__metadata__"]["format"] = "pt".into()),
        ("update rehang", |header, _| header["__metadata__"]["format_version"] = "3".into()),
        ("format version 0", |header, _| header["__metadata__"]["format_version"] = "0".into()),
        ("cannot be \"one\"", |header, _| header["__metadata__"]["format_version"] = "one".into()),
        ("\"checksum\" is missing", |header, _| {
            header["__metadata__"].as_object_mut().unwrap().remove("checksum");
        }),
        ("check sum", |_, data| data[5] ^= 1),
        ("check sum", |header, _| header["__metadata__"]["seed"] = "8".into()),
        ("check sum", |header, _| {
            header["mixer.0.weight"]["shape"] = serde_json::json!([5, 7]);
        }),
        ("check sum", |header, _| {
            let tensor = header.as_object_mut().unwrap().remove("mixer.0.bias").unwrap();
            header["mixer.9.bias"] = tensor;
        }),
        ("type I32", |header, _| header["mixer.0.bias"]["dtype"] = "I32".into()),
        ("truncated", |_, data| data.truncate(40)),
        ("truncated", |_, data| data.push(0)),
        ("truncated", |header, _| header["mixer.0.bias"]["data_offsets"] = serde_json::json!([0, 1])),
    ];
    for (reason, damage) in damages {
        let (mut header, mut data) = split(&bytes);
        damage(&mut header, &mut data);
        let error = adapter_file::from_bytes(&join(&header, &data), "a.safetensors").unwrap_err();
        assert!(error.is_corrupt() && error.to_string().contains(reason), "{error} should say {reason:?}");
        assert!(error.to_string().contains("a.safetensors"), "{error} should name the file");
    }
    let mut long_header = bytes.clone();
    long_header[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    for bytes in
        [&b""[..], b"short", b"\x93NUMPY\x01\x00 some other format", &bytes[..bytes.len() / 3], &long_header]
    {
        assert!(adapter_file::from_bytes(bytes, "a.safetensors").unwrap_err().is_corrupt());
    }
}

#[test]
fn any_flipped_bit_is_noticed() {
    let (_, adapter) = adapters_of_every_kind().swap_remove(0);
    let bytes = adapter_file::to_bytes(&adapter).unwrap();
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        // White space and equal spellings in the header may change without changing anything that is read.
        if let Ok(read) = adapter_file::from_bytes(&flipped, "flipped") {
            assert_eq!(read, adapter, "byte {at}");
        }
    }
}

/// Makes a file whose check sum is right and whose content is wrong, as another program or a defect would.
fn with_right_checksum(mut header: Value, data: &[u8]) -> Vec<u8> {
    header["__metadata__"]["checksum"] = "xxh3:0000000000000000".into();
    let complaint = adapter_file::from_bytes(&join(&header, data), "x").unwrap_err().to_string();
    let computed = complaint.split("its check sum is ").nth(1).unwrap().split(' ').next().unwrap();
    header["__metadata__"]["checksum"] = computed.into();
    join(&header, data)
}

#[test]
fn a_file_whose_parts_do_not_make_an_adapter_is_refused() {
    type Damage = fn(&mut Value, &mut Vec<u8>);
    let kinds = adapters_of_every_kind();
    let bytes = adapter_file::to_bytes(&kinds[1].1).unwrap();
    let damages: &[(&str, Damage)] = &[
        ("\"mixer.0.bias\" is missing", |header, _| {
            let tensor = header.as_object_mut().unwrap().remove("mixer.0.bias").unwrap();
            header["extra"] = tensor;
        }),
        ("belongs to no part", |header, data| {
            let end = data.len();
            data.extend([0; 4]);
            header["extra"] =
                serde_json::json!({"dtype": "F32", "shape": [1], "data_offsets": [end, end + 4]});
        }),
        ("input of mixer layer 0", |header, _| header["mixer.0.weight"]["shape"] = serde_json::json!([5, 7])),
        ("2 axes", |header, _| header["mixer.0.weight"]["shape"] = serde_json::json!([35])),
        ("NaN", |_, data| data[..4].copy_from_slice(&f32::NAN.to_le_bytes())),
        ("geometry \"flat\"", |header, _| header["__metadata__"]["geometry"] = "flat".into()),
        ("uncertainty \"none\"", |header, _| header["__metadata__"]["uncertainty"] = "none".into()),
        ("\"map\" is damaged", |header, _| header["__metadata__"]["map"] = "{}".into()),
        ("\"old_space\" is missing", |header, _| {
            header["__metadata__"].as_object_mut().unwrap().remove("old_space");
        }),
        ("\"seed\" cannot be", |header, _| header["__metadata__"]["seed"] = "-1".into()),
        ("coordinates a row", |header, _| {
            let space = header["__metadata__"]["new_space"].as_str().unwrap();
            let space = space.replace("\"dimension\":4", "\"dimension\":40");
            header["__metadata__"]["new_space"] = space.into();
        }),
    ];
    for (reason, damage) in damages {
        let (mut header, mut data) = split(&bytes);
        damage(&mut header, &mut data);
        let error =
            adapter_file::from_bytes(&with_right_checksum(header, &data), "a.safetensors").unwrap_err();
        assert!(error.to_string().contains(reason), "{error} should say {reason:?}");
        assert!(error.to_string().contains("a.safetensors"), "{error} should name the file");
    }
}

#[test]
fn a_sketch_of_the_pairs_survives_and_a_damaged_one_is_refused() {
    let kinds = adapters_of_every_kind();
    let (_, sketched) = kinds.iter().find(|(name, _)| *name == "linear-sketched-pairs").unwrap();
    let bytes = adapter_file::to_bytes(sketched).unwrap();
    let read = adapter_file::from_bytes(&bytes, "a.safetensors").unwrap();
    assert_eq!(read.training.pairs_sketch.unwrap().rows(), 40);
    // The description of an adapter for people leaves out the thousands of hashes.
    assert!(!serde_json::to_string(&sketched.training).unwrap().contains("sketch"));
    for damaged in [
        r#"{"rows":2,"hashes":"0000000000000002000000000000000"}"#,
        r#"{"rows":2,"hashes":"00000000000000020000000000000001"}"#,
        r#"{"rows":1,"hashes":"00000000000000010000000000000002"}"#,
        r#"{"rows":2,"hashes":"000000000000000100000000000000ü"}"#,
        r#"{"rows":2}"#,
    ] {
        let (mut header, data) = split(&bytes);
        header["__metadata__"]["pairs_sketch"] = damaged.into();
        let error =
            adapter_file::from_bytes(&with_right_checksum(header, &data), "a.safetensors").unwrap_err();
        assert!(error.is_corrupt() && error.to_string().contains("pairs_sketch"), "{damaged}: {error}");
    }
}

/// Python program that prints metadata, and each tensor's type, shape and numbers, by the stock package.
const PYTHON_READER: &str = r#"
import json, sys
from safetensors import safe_open
with safe_open(sys.argv[1], framework="numpy") as file:
    tensors = {name: file.get_tensor(name) for name in file.keys()}
    print(json.dumps({
        "metadata": file.metadata(),
        "tensors": {name: [str(t.dtype), list(t.shape), t.reshape(-1).tolist()] for name, t in tensors.items()},
    }))
"#;

#[test]
fn python_reads_an_adapter_with_the_stock_package() {
    let python = std::env::var("REHANG_PYTHON").unwrap_or_else(|_| "python3".into());
    let usable = Command::new(&python).args(["-c", "import safetensors, numpy"]).output();
    if !usable.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: {python} cannot import safetensors and numpy; set REHANG_PYTHON to one that can");
        return;
    }
    let (_, adapter) = adapters_of_every_kind().swap_remove(1);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("adapter.safetensors");
    adapter_file::save(&adapter, &path).unwrap();
    let output = Command::new(&python).args(["-c", PYTHON_READER]).arg(&path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(read["metadata"]["format"], "rehang-adapter");
    assert_eq!(read["metadata"]["method"], "fixture");
    assert_eq!(read["metadata"]["geometry"], "sphere");
    let old: rehang_core::Space =
        serde_json::from_str(read["metadata"]["old_space"].as_str().unwrap()).unwrap();
    assert_eq!(old, adapter.old);
    let layer = &adapter.map.mixer[0];
    let [dtype, shape, values] = read["tensors"]["mixer.0.weight"].as_array().unwrap().as_slice() else {
        panic!("three things were printed");
    };
    assert_eq!(dtype, "float32");
    assert_eq!(*shape, serde_json::json!([layer.weight.rows(), layer.weight.columns()]));
    let values: Vec<f32> =
        values.as_array().unwrap().iter().map(|value| value.as_f64().unwrap() as f32).collect();
    assert_eq!(values, layer.weight.as_slice());
}

#[test]
fn an_adapter_whose_parts_do_not_agree_is_not_written() {
    for (part, adapter) in broken() {
        assert!(adapter_file::to_bytes(&adapter).is_err(), "{part}");
    }
}

#[test]
fn real_vectors_of_the_new_model_are_told_from_old_ones() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/img_omniglot");
    if !folder.exists() {
        eprintln!("skipped: {} is not there", folder.display());
        return;
    }
    let read = |name: &str| read_matrix(&VectorSource::path(folder.join(name))).unwrap();
    let (fitted, seen, unseen, new) =
        (read("train_old.npy"), read("seen_old.npy"), read("unseen_old.npy"), read("seen_new.npy"));
    let width = fitted.columns();
    let adapter = fitted_on(&fitted);
    let suspicious = |rows: &Matrix| input_drift(&adapter, rows).unwrap().unwrap().is_suspicious();
    assert!(
        !suspicious(&seen) && !suspicious(&unseen),
        "items of the old model, classes it never saw included"
    );
    let part = |source: &Matrix, first: usize| {
        Matrix::from_fn(source.rows(), width, |row, column| {
            source.row(row)[(first + column) % source.columns()]
        })
    };
    assert!(
        suspicious(&part(&new, 0)) && suspicious(&part(&new, width)),
        "halves of the new model's vectors"
    );
    assert!(suspicious(&part(&seen, 1)), "old vectors with their coordinates moved by one");
}
