//! Bridges as files: a written bridge is read again, an old file is read for ever, a damaged file is refused.

use std::collections::BTreeMap;
use std::path::Path;

use rehang_core::adapter::{Dense, InputScaling, Map, Training};
use rehang_core::{Bridge, Distance, Matrix, Space};
use rehang_files::bridge_file::{fingerprint, from_bytes, load, save, to_bytes};

const GOLDEN: &str = "tests/golden/bridges/bridge-v1.safetensors";

/// A bridge of 2 → 3 coordinates, whose numbers are exact in half precision.
fn bridge() -> Bridge {
    let weight = Matrix::from_fn(3, 2, |row, column| row as f32 - 0.5 * column as f32);
    let layer = Dense { weight, bias: vec![0.5, -0.25, 2.0], relu: false };
    Bridge {
        old: Space::new("v1", 3, Distance::L2, false),
        new: Space::new("v2", 2, Distance::Cosine, true),
        map: Map::from_layers(InputScaling::UnitLength, vec![layer]),
        share: 0.4,
        length: 2.5,
        training: Training {
            method: "ridge".into(),
            seed: 3,
            pairs: 400,
            inputs: BTreeMap::from([("old".into(), "00ff".into())]),
            hyper_parameters: BTreeMap::from([("penalty".into(), "0.1".into())]),
            version: "0.1.0".into(),
            ..Training::default()
        },
    }
}

#[test]
fn a_bridge_survives_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bridge.safetensors");
    save(&bridge(), &path).unwrap();
    assert_eq!(load(&path).unwrap(), bridge());
    assert_eq!(fs_err::read(&path).unwrap(), to_bytes(&bridge()).unwrap(), "the same bridge, the same bytes");
    assert_ne!(fingerprint(&bridge()).unwrap(), fingerprint(&Bridge { share: 0.5, ..bridge() }).unwrap());
    assert!(save(&Bridge { share: 0.0, ..bridge() }, &path).is_err());
    assert_eq!(load(&path).unwrap(), bridge());
}

#[test]
fn a_golden_file_is_read_for_ever() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(GOLDEN);
    if std::env::var_os("REHANG_BLESS").is_some() {
        save(&bridge(), &path).unwrap();
    }
    assert_eq!(load(&path).unwrap(), bridge());
    let queries = Matrix::new(2, vec![0.6, 0.8]).unwrap();
    let old = Matrix::new(3, vec![0.0, 3.0, 4.0]).unwrap();
    // g is (0.1, 0.75, 4.4), scaled to length 1. 0.4 g + 0.6 (0, 0.6, 0.8) is (0.0090, 0.4272, 0.8742), which
    // is scaled to the old query's length, 5.
    let made = load(&path).unwrap().queries(Some(&old), &queries).unwrap();
    for (made, expected) in made.row(0).iter().zip([0.046_04, 2.195_14, 4.492_13]) {
        assert!((made - expected).abs() < 1e-3, "{made} {expected}");
    }
}

#[test]
fn what_is_damaged_is_refused() {
    let bytes = to_bytes(&bridge()).unwrap();
    let refused = |bytes: &[u8]| from_bytes(bytes, "b.safetensors").unwrap_err().to_string();
    assert!(refused(&bytes[..bytes.len() - 1]).contains("b.safetensors"));
    let mut changed = bytes.clone();
    *changed.last_mut().unwrap() ^= 1;
    assert!(refused(&changed).contains("check sum"));
    let space = |name| Space::new(name, 2, Distance::Cosine, false);
    let adapter = rehang_core::Adapter::identity(space("v1"), space("v2"), None).unwrap();
    let of_adapter = rehang_files::adapter_file::to_bytes(&adapter).unwrap();
    assert!(refused(&of_adapter).contains("not a bridge"));
}
