//! A gallery and everything that its upgrade needs.

#[path = "../../../rehang-upgrade/tests/common/padding.rs"]
mod padding;

pub use padding::padding;

use std::fmt::Write as _;

use rehang::{Distance, Matrix, Space};

use super::Place;

/// Imports the gallery.
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

/// A verb of its upgrade.
pub fn upgrade(verb: &str) -> [&str; 4] {
    ["upgrade", verb, "--config", "rehang.toml"]
}

/// A folder with items `i0`, `i1`, … to import, each with a source and its old vector; an adapter that copies coordinates; and an upgrade
/// from the space `first` to `second` whose encoder looks vectors up, also of items that come later.
pub fn place(old: &Matrix, new: &Matrix) -> Place {
    let place = Place::new();
    place.write_matrix("old.npy", old);
    place.write_matrix("new.npy", new);
    let (mut items, mut ids) = (String::new(), String::new());
    for row in 0..old.rows() {
        writeln!(items, r#"{{"id": "i{row}", "source": "text {row}"}}"#).unwrap();
    }
    for row in 0..new.rows() {
        writeln!(ids, "i{row}").unwrap();
    }
    place.write_bytes("items.jsonl", items.as_bytes());
    place.write_bytes("ids.txt", ids.as_bytes());
    let space = |name, matrix: &Matrix| Space::new(name, matrix.columns(), Distance::L2, false);
    let adapter = padding(space("old", old), space("new", new), vec![0.1; new.columns()], 0.0);
    adapter.save(place.path("adapter.safetensors")).unwrap();
    let config = format!(
        "[gallery]\npath = \"G.db\"\n[old]\nname = \"first\"\ndimension = {}\ndistance = \"l2\"\n[new]\nname = \"second\"\ndimension = \
         {}\ndistance = \"l2\"\n[adapter]\nfile = \"adapter.safetensors\"\n[order]\npolicy = \"sigma\"\n",
        old.columns(),
        new.columns()
    );
    place.write_bytes("rehang.toml", config.as_bytes());
    configure(&place, "[encoder]\nkind = \"table\"\nvectors = \"new.npy\"\nids = \"ids.txt\"\n");
    place
}

/// Gives the upgrade another encoder and other sections after it.
pub fn configure(place: &Place, encoder: &str) {
    let config = fs_err::read_to_string(place.path("rehang.toml")).unwrap();
    let before = config.split("[encoder]").next().unwrap();
    place.write_bytes("rehang.toml", format!("{before}{encoder}").as_bytes());
}
