//! Helpers that the verbs of an upgrade share.

use rehang_core::Result;
use rehang_upgrade::Upgrade;

use crate::arguments::upgrade::UpgradeConfig;

/// Opens the upgrade that a configuration names.
pub fn open(arguments: &UpgradeConfig) -> Result<Upgrade> {
    Upgrade::open(&arguments.config)
}

/// Writes a time in the unit that people read it in.
pub fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 10.0 => format!("{s:.1} s"),
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.1} days", s / 86400.0),
    }
}

/// Writes a size in the unit that suits it.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["B", "KiB", "MiB", "GiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}
