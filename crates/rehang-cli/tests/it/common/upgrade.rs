//! A gallery and everything that its upgrade needs.

#[path = "../../../../rehang-upgrade/tests/it/common/padding.rs"]
mod padding;

pub use padding::padding;

use std::collections::BTreeMap;

use rehang_core::{Distance, Matrix, Space};
use serde_json::{Value, json};

use super::Place;

/// Arguments that import the gallery.
pub const IMPORT: [&str; 12] = [
    "gallery",
    "import",
    "--gallery",
    "G.db",
    "--space",
    "first",
    "--vectors",
    "old.npy",
    "--items",
    "items.jsonl",
    "--distance",
    "l2",
];

/// Gives the arguments of a verb of its upgrade.
pub fn upgrade(verb: &str) -> [&str; 4] {
    ["upgrade", verb, "--config", "rehang.toml"]
}

/// Makes a folder with items to import, one a row of their old vectors; an adapter that copies coordinates;
/// and an upgrade from the space `first` to `second`, which has no encoder yet.
pub fn gallery(old: &Matrix, items: &[Value], d_new: usize) -> Place {
    let place = Place::new();
    place.write_matrix("old.npy", old);
    let lines: String = items.iter().map(|item| format!("{item}\n")).collect();
    place.write_bytes("items.jsonl", lines.as_bytes());
    let space = |name, dimension| Space::new(name, dimension, Distance::L2, false);
    let adapter = padding(space("old", old.columns()), space("new", d_new), vec![0.1; d_new], 0.0);
    rehang_files::adapter_file::save(&adapter, place.path("adapter.safetensors")).unwrap();
    let config = format!(
        "[gallery]\npath = \"G.db\"\n[old]\nname = \"first\"\ndimension = {}\ndistance = \"l2\"\n[new]\nname = \"second\"\ndimension = \
         {d_new}\ndistance = \"l2\"\n[adapter]\nfile = \"adapter.safetensors\"\n[order]\npolicy = \"sigma\"\n",
        old.columns()
    );
    place.write_bytes("rehang.toml", config.as_bytes());
    place
}

/// Makes a gallery of items `i0`, `i1`, …, each with a source, and an encoder that looks vectors up, also of
/// items that come later.
pub fn place(old: &Matrix, new: &Matrix) -> Place {
    let item = |row| json!({"id": format!("i{row}"), "source": format!("text {row}")});
    let items: Vec<Value> = (0..old.rows()).map(item).collect();
    let place = gallery(old, &items, new.columns());
    place.write_matrix("new.npy", new);
    let ids: String = (0..new.rows()).map(|row| format!("i{row}\n")).collect();
    place.write_bytes("ids.txt", ids.as_bytes());
    configure(&place, "[encoder]\nkind = \"table\"\nvectors = \"new.npy\"\nids = \"ids.txt\"\n");
    place
}

/// Gives the upgrade other encoders, and other sections after them.
pub fn configure(place: &Place, encoders: &str) {
    let config = fs_err::read_to_string(place.path("rehang.toml")).unwrap();
    let (before, order) = config.split_once("[order]\n").unwrap();
    let policy = order.lines().next().unwrap();
    place.write_bytes("rehang.toml", format!("{before}[order]\n{policy}\n{encoders}").as_bytes());
}

/// Gives a program as a user would write one, in the shell. It embeds in as many coordinates as its argument
/// says, without starting another process, and keeps a log of what it was asked for. `cut` finds a `number`
/// and a `version` in the `text`.
pub fn encoder(cut: &str) -> String {
    let program = r#"
    while IFS= read -r line; do
        id=${line#*\"id\":\"}; id=${id%%\"*}; text=${line#*\"source\":\"}; text=${text%%\"*}
        CUT; echo "$text by $1" >> log.txt
        vector=; column=0
        while [ $column -lt $1 ]; do
            eighths=$(( (number * 7 + version * 31 + column * 13) % 101 ))
            case $(( eighths % 8 )) in
                0) rest=000;; 1) rest=125;; 2) rest=250;; 3) rest=375;; 4) rest=500;; 5) rest=625;; 6) rest=750;; *) rest=875;;
            esac
            vector="$vector,$(( eighths / 8 )).$rest"; column=$(( column + 1 ))
        done
        printf '{"id":"%s","vector":[%s]}\n' "$id" "${vector#,}"
    done
"#;
    program.replace("CUT", cut)
}

/// Reads the log of the program.
pub fn embedded(place: &Place) -> String {
    fs_err::read_to_string(place.path("log.txt")).unwrap_or_default()
}

/// Counts texts that the program was asked for more than once, each time beyond the first.
pub fn embedded_again(place: &Place) -> u32 {
    let log = fs_err::read_to_string(place.path("log.txt")).unwrap();
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for line in log.lines() {
        *counts.entry(line).or_default() += 1;
    }
    counts.values().map(|count| count - 1).sum()
}
