//! Hot refresh: compatible queries at once, the gallery backfilled behind them.

use rehang_core::curve::{Curve, CurveInput, CurveOptions, DoNothing, Relevance, curve};
use rehang_core::{Distance, Error, ErrorKind, Progress, Result};

use super::model::Model;

/// Input of a hot refresh: both models, right answers, distance and orders.
#[derive(Debug, Clone, Copy)]
pub struct RefreshInput<'a> {
    /// Model that the gallery is still embedded by. Its queries, where there are any, draw the do-nothing
    /// line.
    pub old: Model<'a>,
    /// Compatible model that queries have already moved to.
    pub new: Model<'a>,
    /// Right answers to each query.
    pub relevance: Relevance<'a>,
    /// Distance by which vectors are compared.
    pub distance: Distance,
    /// Orders of backfill to follow, by name; each a permutation of the items.
    pub orders: &'a [(&'a str, &'a [usize])],
}

/// Result of a hot refresh in one order.
#[derive(Debug, Clone, PartialEq)]
pub struct Refresh {
    /// Name of the order.
    pub order: String,
    /// Curve of every metric at every fraction. `flips` hold NFR@1 and NFR@5 (and `flips_at` NFR@k) against
    /// the old gallery with the new queries, as RACT's eq. 12 is used in its figures; `do_nothing.flips`
    /// against the old queries.
    pub curve: Curve,
}

/// Follows mAP, mAP@k, top-k and the negative flip rate along a hot refresh, in every order given (RACT
/// §5.2).
///
/// At fraction α the first `⌊α·n⌋` items of an order carry new vectors and all others old ones, as they are:
/// a compatible model needs no adapter. For different widths see [the module](super).
///
/// ```
/// use rehang_protocols::compatibility::{Model, RefreshInput, hot_refresh};
/// use rehang_core::curve::{CurveOptions, Relevance, TOP1};
/// use rehang_core::{Distance, Matrix, Progress};
///
/// // Four items on a line, two of each class; the old model swaps the ones in the middle.
/// let old = Matrix::new(1, vec![0.0, 5.0, 1.0, 6.0])?;
/// let new = Matrix::new(1, vec![0.0, 1.0, 5.0, 6.0])?;
/// let labels = [0, 0, 1, 1];
/// let input = RefreshInput {
///     old: Model { name: "old", gallery: &old, queries: None },
///     new: Model { name: "new", gallery: &new, queries: None },
///     relevance: Relevance::Labels { gallery: &labels, queries: None },
///     distance: Distance::L2,
///     orders: &[("middle first", &[1, 2, 0, 3]), ("ends first", &[0, 3, 1, 2])],
/// };
/// let refreshes = hot_refresh(&input, &CurveOptions::default(), &Progress::default())?;
/// assert_eq!(refreshes[0].curve.lines[TOP1].values(), [0.0, 50.0, 100.0, 100.0, 100.0]);
/// assert_eq!(refreshes[1].curve.lines[TOP1].values(), [0.0, 0.0, 0.0, 50.0, 100.0]);
/// assert_eq!(refreshes[0].curve.flips[TOP1].rate.values(), [0.0; 5]);
/// # Ok::<(), rehang_core::Error>(())
/// ```
///
/// # Errors
///
/// As [`curve()`]; [`ErrorKind::Empty`] for no orders; [`ErrorKind::MissingInput`] where only one model has
/// queries of its own.
pub fn hot_refresh(
    input: &RefreshInput<'_>,
    options: &CurveOptions,
    progress: &Progress,
) -> Result<Vec<Refresh>> {
    input.relevance.expect_given()?;
    if input.orders.is_empty() {
        return Err(ErrorKind::Empty { what: "the list of orders".into() }.into());
    }
    if let (Some(_), None) | (None, Some(_)) = (input.old.queries, input.new.queries) {
        let without = if input.old.queries.is_none() { &input.old } else { &input.new };
        return Err(Error::missing("query vectors", format!("model {:?}", without.name)));
    }
    // Old vectors stay as narrow as they are: queries are cut for them. A narrower new model is filled up.
    let old = input.old.gallery;
    let width = old.columns().max(input.new.gallery.columns());
    let native = input.new.gallery.at_width(width);
    let queries = input.new.queries.map(|queries| queries.at_width(width));
    input
        .orders
        .iter()
        .map(|&(name, order)| {
            let curve_input = CurveInput {
                queries: queries.as_deref(),
                do_nothing: Some(DoNothing {
                    gallery: input.old.gallery,
                    queries: input.old.queries,
                    distance: input.distance,
                }),
                ..CurveInput::new(&native, old, order, input.relevance, input.distance)
            };
            let curve = curve(&curve_input, options, progress)
                .map_err(|error| error.context(format!("order {name:?}")))?;
            Ok(Refresh { order: name.to_owned(), curve })
        })
        .collect()
}
