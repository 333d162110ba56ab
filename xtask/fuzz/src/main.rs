//! One door under libFuzzer: `REHANG_DOOR` names it.

#![no_main]

#[path = "../../src/fuzz/doors.rs"]
mod doors;

use std::sync::OnceLock;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    static DOOR: OnceLock<doors::Door> = OnceLock::new();
    let door = DOOR.get_or_init(|| {
        let wanted = std::env::var("REHANG_DOOR").expect("REHANG_DOOR names a door");
        doors::DOORS.iter().find(|(name, _)| *name == wanted).expect("a door of that name").1
    });
    door(bytes);
});
