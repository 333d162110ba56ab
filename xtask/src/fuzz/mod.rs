//! `cargo xtask fuzz`: every door of [`doors`] under libFuzzer, guided by coverage, on the stable toolchain.

mod doors;

use std::path::{Path, PathBuf};
use std::process::Command;

use fs_err as fs;
use rehang_core::{Error, Result};

use doors::DOORS;

/// Flags of the compiler, so that libFuzzer sees which edges and comparisons an input reaches. All of them
/// are stable.
const COUNTERS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";
/// Memory of a whole process, in MiB; an input that takes more is a finding.
const MEMORY_MB: u32 = 2048;
/// Seconds that one input may take.
const INPUT_SECONDS_MAX: u32 = 10;
/// Inputs longer than this are not made: what readers do with lengths, they do with small files too.
const INPUT_BYTES_MAX: usize = 4096;
/// Most inputs of a door that are kept in the repository, the smallest ones, and most bytes of each.
const KEPT: usize = 24;
const KEPT_BYTES_MAX: u64 = 1024;

/// Fuzzes each door, or the ones that are named, for so many seconds, and keeps the smallest inputs that
/// reach new edges.
pub fn run(seconds: &str, names: &[&str]) -> Result<()> {
    let seconds: u64 = seconds.parse().map_err(|_| Error::option("SECONDS", seconds, "a whole number"))?;
    let engine = build()?;
    for (name, _) in DOORS.iter().filter(|(name, _)| names.is_empty() || names.contains(name)) {
        println!("{name}");
        let found = Path::new("target/fuzz").join(name);
        create(&found)?;
        let kept = corpus(name);
        create(&kept)?;
        let run = |arguments: &[String]| {
            let status = Command::new(&engine).env("REHANG_DOOR", name).args(arguments).status();
            match status.map_err(|error| Error::io("start", &engine, &error))? {
                status if status.success() => Ok(()),
                status => Err(Error::conflict(
                    format!("the door {name}"),
                    format!("{status}; the input lies in {}", found.display()),
                )),
            }
        };
        let shown = |path: &Path| path.display().to_string();
        run(&[
            format!("-max_total_time={seconds}"),
            format!("-rss_limit_mb={MEMORY_MB}"),
            format!("-timeout={INPUT_SECONDS_MAX}"),
            format!("-max_len={INPUT_BYTES_MAX}"),
            format!("-artifact_prefix={}/finding-", found.display()),
            "-print_final_stats=1".into(),
            "-verbosity=0".into(),
            shown(&found),
            shown(&kept),
        ])?;
        let merged = found.with_extension("merged");
        drop(fs::remove_dir_all(&merged));
        create(&merged)?;
        run(&["-merge=1".into(), "-verbosity=0".into(), shown(&merged), shown(&kept), shown(&found)])?;
        keep(&merged, &kept)?;
    }
    Ok(())
}

fn create(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, &error))
}

/// The inputs of a door that lie in the repository.
fn corpus(door: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(door)
}

fn build() -> Result<PathBuf> {
    let status = Command::new("cargo")
        .args([
            "build",
            "--release",
            "--manifest-path",
            "xtask/fuzz/Cargo.toml",
            "--target-dir",
            "target/fuzz-engine",
        ])
        // With a target, build scripts and macros are compiled without the counters.
        .args(["--target", "x86_64-unknown-linux-gnu"])
        .env("RUSTFLAGS", COUNTERS)
        .status();
    match status.map_err(|error| Error::io("start", "cargo", &error))? {
        status if status.success() => {
            Ok("target/fuzz-engine/x86_64-unknown-linux-gnu/release/fuzz-engine".into())
        }
        status => Err(Error::conflict("the engine of the fuzzing", status)),
    }
}

/// Puts the smallest inputs of a folder beside those that are kept already.
fn keep(merged: &Path, kept: &Path) -> Result<()> {
    let list = |folder: &Path| -> Result<Vec<(u64, PathBuf)>> {
        let failed = |error: std::io::Error| Error::io("read", folder, &error);
        let mut files = Vec::new();
        for entry in fs::read_dir(folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            files.push((fs::metadata(&path).map_err(failed)?.len(), path));
        }
        files.sort();
        Ok(files)
    };
    let room = KEPT.saturating_sub(list(kept)?.len());
    for (_, path) in list(merged)?.into_iter().filter(|(bytes, _)| *bytes <= KEPT_BYTES_MAX).take(room) {
        let place = kept.join(path.file_name().unwrap_or_default());
        fs::copy(&path, &place).map_err(|error| Error::io("copy", &path, &error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_that_were_found_are_values_or_errors() {
        for (name, door) in DOORS {
            let inputs: Vec<PathBuf> =
                fs::read_dir(corpus(name)).unwrap().map(|entry| entry.unwrap().path()).collect();
            assert!(!inputs.is_empty(), "the door {name} has no input");
            for path in inputs {
                door(&fs::read(&path).unwrap());
            }
        }
    }
}
