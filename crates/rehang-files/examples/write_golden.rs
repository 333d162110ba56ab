//! Writes the golden files of this version's adapter format: `cargo run --example write_golden -- FOLDER`.
//!
//! The files in `tests/golden` were made by this program and are kept. Whatever later versions write, they
//! must read these files and give the same outputs. So the program is run once for a new kind of adapter, and
//! passes over files that exist.

#[path = "../../rehang-core/tests/adapters/mod.rs"]
mod adapters;

use std::path::PathBuf;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rehang_core::adapter::Applier;
use serde_json::json;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = PathBuf::from(std::env::args().nth(1).ok_or("the folder to write to is missing")?);
    for (name, adapter) in adapters::adapters_of_every_kind() {
        let mut random = ChaCha8Rng::seed_from_u64(99);
        let applier = Applier::new(&adapter)?;
        let rows = 6;
        let old = adapters::matrix(&mut random, rows, applier.d_old());
        let side = applier.d_side().map(|width| adapters::matrix(&mut random, rows, width));
        let mut vectors = vec![0.0; rows * applier.d_new()];
        let (mut variance, mut raw_norms) = (vec![0.0; rows], vec![0.0; rows]);
        let side = side.as_ref().map(rehang_core::Matrix::as_slice);
        applier.apply_rows(0, old.as_slice(), side, &mut vectors, &mut variance, &mut raw_norms)?;
        let version = if adapter.map.per_kind.is_some() { 2 } else { 1 };
        let path = folder.join(format!("adapter-v{version}-{name}.safetensors"));
        // Golden files are never written again.
        if path.exists() {
            continue;
        }
        rehang_files::adapter_file::save(&adapter, &path)?;
        let outputs = json!({
            "old": old.as_slice(), "side": side, "vectors": vectors, "variance": variance, "raw_norms": raw_norms,
            "handicap": adapter.handicap,
        });
        fs_err::write(path.with_extension("json"), serde_json::to_string_pretty(&outputs)? + "\n")?;
    }
    Ok(())
}
