//! Doing nothing: old vectors serve as they are, cut or padded with zeros to the new width.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use rehang_core::Matrix;
use rehang_core::adapter::{Dense, InputScaling, Map};

use super::ClosedForm;

/// Returns the map `o → (o₁, …, o_d_new)`: truncation where the new space is narrower, zero-padding where it
/// is wider, and the identity (no layers) where widths agree.
///
/// The map is right for a new model that was trained to be compatible with the old one (BCT), and it is the
/// line that every other map has to pass. Between unrelated models it scores at chance level.
///
/// ```
/// let map = rehang_fit::closed_form::do_nothing::fit(2, 3).map;
/// assert_eq!(map.mixer[0].weight.as_slice(), &[1.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
/// assert!(rehang_fit::closed_form::do_nothing::fit(4, 4).map.mixer.is_empty());
/// ```
pub fn fit(d_old: usize, d_new: usize) -> ClosedForm {
    let cut = || {
        let weight = Matrix::from_fn(d_new, d_old, |output, input| f32::from(u8::from(output == input)));
        vec![Dense { weight, bias: vec![0.0; d_new], relu: false }]
    };
    let (width, mixer) = match d_old.cmp(&d_new) {
        Ordering::Less => ("zero-padded", cut()),
        Ordering::Equal => ("identity", Vec::new()),
        Ordering::Greater => ("truncated", cut()),
    };
    let map = Map::from_layers(InputScaling::AsIs, mixer);
    ClosedForm { map, choices: BTreeMap::from([("width".into(), width.into())]) }
}
