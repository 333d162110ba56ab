//! Power cuts while a file is written whole or not at all: what the machine finds afterwards.

#![cfg(all(target_os = "linux", target_env = "gnu"))]

mod disk;

use std::collections::BTreeSet;

use disk::{Disk, Watch};
use rand::SeedableRng;
use rehang_files::AtomicFile;

const NAME: &str = "out.npy";

/// A call that writes the file: the numbers of operations at which it began and returned, and the content it
/// wrote.
struct Call {
    began: usize,
    returned: usize,
    content: Option<Vec<u8>>,
}

#[test]
fn a_power_cut_leaves_the_old_file_or_the_whole_new_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap().join(NAME);
    let watch = Watch::new(folder.path());
    let mut calls = vec![Call { began: 0, returned: watch.count(), content: None }];
    // Files longer and shorter than the one before, and longer than the bytes that are collected before the
    // system is asked to write.
    for (at, length) in [700, 3_000_000, 1, 90_000, 0, 2_000].into_iter().enumerate() {
        let content: Vec<u8> = (0..length).map(|byte| (byte * 7 + at) as u8).collect();
        let began = watch.count();
        let mut file = AtomicFile::create(&path).unwrap();
        file.put(&content).unwrap();
        if at == 3 {
            // The write is never completed, so the earlier file stays.
            drop(file);
            continue;
        }
        file.overwrite_start(&content[..content.len().min(8)]).unwrap();
        file.commit().unwrap();
        calls.push(Call { began, returned: watch.count(), content: Some(content) });
    }

    let operations = watch.operations();
    let (mut disk, mut seen) = (Disk::default(), BTreeSet::new());
    for (done, operation) in operations.iter().enumerate() {
        disk.replay(operation);
        let done = done + 1;
        let returned = calls.iter().rposition(|call| call.returned <= done).unwrap_or(0);
        let begun = calls.iter().rposition(|call| call.began < done).unwrap_or(0);
        let allowed: Vec<_> =
            calls[returned..=begun.max(returned)].iter().map(|call| &call.content).collect();
        let held = disk.may_hold(NAME).unwrap_or_else(|what| panic!("after {done} operations {what}"));
        for content in &held {
            let length = content.as_ref().map(Vec::len);
            assert!(allowed.contains(&content), "after {done} operations {NAME} may have {length:?} bytes");
            seen.insert((returned, length));
        }
        // Contents after a power cut, drawn at random, as files.
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(done as u64);
        let left = disk.left(&mut random).remove(NAME);
        assert!(held.contains(&left), "what is left is what may be");
    }
    // Each call was cut before and after its file had its name.
    assert_eq!(seen.len(), 2 * calls.len() - 1, "{seen:?}");
    assert_eq!(disk.may_be_named().collect::<Vec<_>>(), [NAME], "no other file stays");
}
