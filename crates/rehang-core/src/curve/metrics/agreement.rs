//! agreement@k: the share of the k nearest items that are also among the k nearest in the fully native
//! gallery.

use super::definition::{Definition, Depth, Measured, Needs};

pub(super) static AGREEMENT: Definition = Definition {
    id: "agreement",
    name: "Agreement",
    about: |depth| {
        format!(
            "Share of the {depth} nearest items that the fully native gallery would also give; needs no labels."
        )
    },
    needs: Needs::Nothing,
    depth: Depth::Asked,
    place: 0,
    is_primary: true,
    measured: Measured::Agreement,
};
