//! Rules: what is allowed where. To allow more, add a line here, with its reason.

/// Crates of this repository that each crate may depend on; examples and tests may use more. Arrows point
/// towards the core.
pub const ARROWS: &[(&str, &[&str])] = &[
    ("rehang-core", &[]),
    ("rehang", FACADE),
    ("rehang-files", &["rehang-core"]),
    ("rehang-fit", &["rehang-core", "rehang-clock", "rehang-files"]),
    ("rehang-evaluate", &["rehang-core", "rehang-files", "rehang-fit"]),
    ("rehang-report", &["rehang-core"]),
    ("rehang-clock", &[]),
    ("rehang-connect", &["rehang-core"]),
    ("workspace-hack", &[]),
    ("rehang-store", &["rehang-core", "rehang-clock"]),
    ("rehang-store-tests", &["rehang-core", "rehang-store"]),
    ("rehang-sqlite", &["rehang-core", "rehang-clock", "rehang-files", "rehang-store"]),
    ("rehang-postgres", &["rehang-core", "rehang-clock", "rehang-connect", "rehang-store"]),
    ("rehang-qdrant", &["rehang-core", "rehang-clock", "rehang-connect", "rehang-store"]),
    ("rehang-objects", &["rehang-core", "rehang-connect", "rehang-files"]),
    ("rehang-encode", &["rehang-core", "rehang-clock", "rehang-connect", "rehang-files"]),
    (
        "rehang-upgrade",
        &[
            "rehang-core",
            "rehang-files",
            "rehang-fit",
            "rehang-evaluate",
            "rehang-clock",
            "rehang-store",
            "rehang-sqlite",
            "rehang-postgres",
            "rehang-qdrant",
            "rehang-encode",
        ],
    ),
    (
        "rehang-demo",
        &["rehang-core", "rehang-files", "rehang-store", "rehang-encode", "rehang-upgrade", "workspace-hack"],
    ),
    (
        "rehang-serve",
        &[
            "rehang-core",
            "rehang-fit",
            "rehang-clock",
            "rehang-store",
            "rehang-encode",
            "rehang-upgrade",
            "rehang-report",
        ],
    ),
    ("rehang-cli", CLI),
    // The wheel carries the command line.
    ("rehang-python", PYTHON),
    ("rehang-examples", &["rehang", "rehang-store-tests"]),
    ("rehang-protocols", &["rehang-core", "rehang-files", "rehang-evaluate"]),
    ("rehang-train", &["rehang-core", "rehang-files", "rehang-fit", "rehang-protocols"]),
    ("rehang-lab", LAB),
    ("xtask", XTASK),
];

/// Crates that the one crate for applications passes on.
const FACADE: &[&str] = &[
    "rehang-core",
    "rehang-files",
    "rehang-fit",
    "rehang-evaluate",
    "rehang-store",
    "rehang-sqlite",
    "rehang-postgres",
    "rehang-qdrant",
    "rehang-encode",
    "rehang-upgrade",
];

const CLI: &[&str] = &[
    "rehang-core",
    "rehang-files",
    "rehang-fit",
    "rehang-evaluate",
    "rehang-report",
    "rehang-clock",
    "rehang-store",
    "rehang-sqlite",
    "rehang-postgres",
    "rehang-qdrant",
    "rehang-objects",
    "rehang-encode",
    "rehang-upgrade",
    "rehang-demo",
    "rehang-serve",
];

const PYTHON: &[&str] = &[
    "rehang-core",
    "rehang-files",
    "rehang-fit",
    "rehang-evaluate",
    "rehang-report",
    "rehang-store",
    "rehang-encode",
    "rehang-upgrade",
    "rehang-cli",
];

/// Verbs of the other command line are there as well; studies use the store in memory, and go the road of an
/// application.
const LAB: &[&str] = &[
    "rehang",
    "rehang-core",
    "rehang-files",
    "rehang-fit",
    "rehang-evaluate",
    "rehang-protocols",
    "rehang-train",
    "rehang-report",
    "rehang-store",
    "rehang-store-tests",
    "rehang-upgrade",
    "rehang-cli",
];

/// Crates that `xtask` may use: readers of others' bytes are fuzzed.
const XTASK: &[&str] = &[
    "rehang-core",
    "rehang-files",
    "rehang-train",
    "rehang-report",
    "rehang-store",
    "rehang-sqlite",
    "rehang-encode",
    "rehang-upgrade",
];

/// Faces, which examples and tests must not use; they may use every other crate beside their arrows.
pub const FACES: &[&str] = &["rehang-cli", "rehang-serve", "rehang-lab", "rehang-python", "xtask"];

/// Dependencies that cost a user minutes or megabytes, by the beginning of their names, and the crates that
/// are about them. Behind a feature any crate may have them.
pub const HEAVY: &[(&str, &[&str])] = &[
    ("parquet", &["rehang-files"]),
    ("flatbuffers", &["rehang-files"]),
    ("gemm", &["rehang-fit", "rehang-train"]),
    ("faer", &["rehang-fit", "rehang-train"]),
    ("rusqlite", &["rehang-sqlite"]),
    ("usearch", &["rehang-sqlite"]),
    ("rten", &["rehang-encode"]),
    ("tokenizers", &["rehang-encode"]),
    ("image", &["rehang-encode", "rehang-train", "rehang-demo"]),
    ("ureq", &["rehang-connect", "rehang-encode", "rehang-qdrant"]),
    // A study is an application of a table.
    ("postgres", &["rehang-postgres", "rehang-lab"]),
    ("tokio", &["rehang-postgres", "rehang-objects", "rehang-serve"]),
    ("rustls", &["rehang-connect", "rehang-postgres", "rehang-objects", "rehang-serve"]),
    ("axum", &["rehang-serve"]),
    ("object_store", &["rehang-objects"]),
    ("reqwest", &["rehang-objects"]),
    ("clap", &["rehang-cli", "rehang-lab"]),
    ("pyo3", &["rehang-python"]),
    ("numpy", &["rehang-python"]),
    ("indicatif", &["rehang-cli"]),
    ("ctrlc", &["rehang-cli"]),
];

/// Folders of a crate in the order of their imports: each may import those before it. Files beside the
/// folders stand outside of the order.
pub const FOLDERS: &[(&str, &[&str])] = &[("rehang-upgrade", &["places", "live", "serve", "learn"])];

/// Crates that still have circles of imports among more than three files, and how many files stand in them.
/// The list gets shorter only.
pub const CIRCLES: &[(&str, usize)] = &[];

/// Names that more than one public type has, and why. The list gets shorter only.
pub const NAMES: &[(&str, &str)] = &[];

/// The files through which time enters, and what for.
pub const DOORS: &[(&str, &str)] = &[
    (
        "crates/rehang-clock/src/lib.rs",
        "paces, budgets, deadlines, leases; waiting for a server and for other writers",
    ),
    ("crates/rehang-cli/src/bar.rs", "the progress bar"),
    ("crates/rehang-demo/src/live.rs", "how long searches and writes take during the demo"),
    ("laboratory/rehang-lab/src/studies/papers/units.rs", "seconds of a fit, which are part of the results"),
    ("laboratory/rehang-lab/src/studies/regret.rs", "seconds of a fit, which are part of the results"),
];

/// Crates that talk to people: they print, and they know the words of the command line.
pub const SPEAKERS: &[&str] = &["rehang-cli", "rehang-serve", "rehang-lab", "rehang-python", "xtask"];

/// Words that look like those of the command line in a library and are none: a file, a part of the line, and
/// why it may stay.
pub const SAID: &[(&str, &str, &str)] =
    &[("crates/rehang-core/src/error.rs", "--features", "an option of cargo: who builds has to give it")];
