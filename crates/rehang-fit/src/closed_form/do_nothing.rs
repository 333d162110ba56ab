//! Doing nothing: old vectors serve as they are, cut or padded with zeros to the new width.

use std::collections::BTreeMap;

use rehang::Matrix;
use rehang::adapter::{Dense, InputScaling, Map};

use super::{ClosedForm, linear_map};

/// The map `o → (o₁, …, o_d_new)`: truncation where the new space is narrower, zero-padding where it is wider, and the
/// identity (no layers) where widths agree.
///
/// It is the right map for a new model that was trained to be compatible with the old one (BCT), and the line that
/// every other map has to pass. Between unrelated models it scores at chance level.
///
/// ```
/// let map = rehang_fit::closed_form::do_nothing::map(2, 3);
/// assert_eq!(map.mixer[0].weight.as_slice(), &[1.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
/// assert!(rehang_fit::closed_form::do_nothing::map(4, 4).mixer.is_empty());
/// ```
pub fn map(d_old: usize, d_new: usize) -> Map {
    let mixer = if d_old == d_new {
        Vec::new()
    } else {
        let weight = Matrix::from_fn(d_new, d_old, |output, input| f32::from(u8::from(output == input)));
        vec![Dense { weight, bias: vec![0.0; d_new], relu: false }]
    };
    linear_map(InputScaling::AsIs, mixer)
}

/// [`map`] as a [`ClosedForm`], with what it does to the width as its one choice.
pub fn fit(d_old: usize, d_new: usize) -> ClosedForm {
    let width = match d_old.cmp(&d_new) {
        std::cmp::Ordering::Less => "zero-padded",
        std::cmp::Ordering::Equal => "identity",
        std::cmp::Ordering::Greater => "truncated",
    };
    ClosedForm { map: map(d_old, d_new), choices: BTreeMap::from([("width".into(), width.into())]) }
}
