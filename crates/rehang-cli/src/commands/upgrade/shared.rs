//! What the verbs of an upgrade have in common.

use rehang::Result;
use rehang_upgrade::Upgrade;

use crate::arguments::upgrade::UpgradeConfig;

/// The upgrade that a configuration names.
pub fn open(arguments: &UpgradeConfig) -> Result<Upgrade> {
    Upgrade::open(&arguments.config)
}

/// A time in the unit that people read it in.
pub fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 10.0 => format!("{s:.1} s"),
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.1} days", s / 86400.0),
    }
}
