//! Speed of the file side of `rehang transform`: makes a file of vectors, and copies one into another.
//!
//! ```text
//! cargo bench -p rehang-files --bench stream -- make /tmp/in.parquet 10000000 128
//! cargo bench -p rehang-files --bench stream -- read /tmp/in.parquet
//! cargo bench -p rehang-files --bench stream -- copy /tmp/in.parquet /tmp/out.parquet
//! ```
//!
//! Each command prints one line: rows, seconds, rows a second, GB a second, and the most memory that the
//! process had.

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a measurement reads clocks and prints")]

use std::time::Instant;

use rehang_core::{Error, Result};
use rehang_files::stream::{self, Columns, RowBatch};
use rehang_files::{IdKind, Ids, VectorSource};

/// Number of rows handed over at once; `rehang transform` uses as many.
const BATCH_ROWS: usize = 8192;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let start = Instant::now();
    let (rows, width) = match words.as_slice() {
        ["make", path, rows, width] => make(path, number(rows)?, number(width)?)?,
        ["read", path] => read(path)?,
        ["copy", source, target] => copy(source, target)?,
        _ => {
            return Err(Error::option(
                "arguments",
                words.join(" "),
                "make PATH ROWS WIDTH, read PATH, or copy FROM TO",
            ));
        }
    };
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{}: {rows} x {width} in {seconds:.2} s, {:.0} rows/s, {:.2} GB/s, peak memory {}",
        words[0],
        rows as f64 / seconds,
        (rows * width as u64 * 4) as f64 / seconds / 1e9,
        peak_memory()
    );
    Ok(())
}

fn number(text: &str) -> Result<usize> {
    text.parse().map_err(|_| Error::option("a number", text, "a whole number"))
}

/// Writes vectors that differ from each other. No random generator is used, so that making them costs little.
fn make(path: &str, rows: usize, width: usize) -> Result<(u64, usize)> {
    let mut writer = stream::create(path, Columns { width, ids: Some(IdKind::Integer), sigma2: false })?;
    let mut state = 1_u32;
    let mut vectors = Vec::new();
    let mut first = 0;
    while first < rows {
        let count = BATCH_ROWS.min(rows - first);
        vectors.clear();
        vectors.extend((0..count * width).map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        }));
        let ids = Ids::Integers((first as i64..(first + count) as i64).collect());
        writer.write(&vectors, Some(&ids), None)?;
        first += count;
    }
    Ok((writer.commit()?, width))
}

fn read(path: &str) -> Result<(u64, usize)> {
    let mut reader = stream::open(&VectorSource::parse(path)?)?;
    let mut batch = RowBatch::default();
    let mut rows = 0;
    loop {
        let count = reader.next_batch(BATCH_ROWS, &mut batch)?;
        if count == 0 {
            return Ok((rows, reader.width()));
        }
        rows += count as u64;
    }
}

fn copy(source: &str, target: &str) -> Result<(u64, usize)> {
    let mut reader = stream::open(&VectorSource::parse(source)?)?;
    let width = reader.width();
    let keeps_ids = target.ends_with(".parquet");
    let ids = reader.id_kind().filter(|_| keeps_ids);
    let mut writer = stream::create(target, Columns { width, ids, sigma2: keeps_ids })?;
    let mut batch = RowBatch::default();
    loop {
        let count = reader.next_batch(BATCH_ROWS, &mut batch)?;
        if count == 0 {
            return Ok((writer.commit()?, width));
        }
        // A column of zeros stands for the σ² that a transform writes beside the vectors.
        let sigma2 = keeps_ids.then(|| vec![0.0; count]);
        writer.write(&batch.vectors, batch.ids.as_ref().filter(|_| ids.is_some()), sigma2.as_deref())?;
    }
}

/// The most memory that this process had so far, in words; Linux only.
fn peak_memory() -> String {
    fs_err::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let line = status.lines().find(|line| line.starts_with("VmHWM:"))?.to_string();
            Some(line.trim_start_matches("VmHWM:").trim().to_string())
        })
        .unwrap_or_else(|| "not known here".into())
}
