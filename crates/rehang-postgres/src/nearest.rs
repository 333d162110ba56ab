//! SQL that reaches the vectors of a space, orders them by their distance to a query, and reads their index.

use crate::guard::EQUALS;
use crate::handle::Handle;
use crate::schema::{self, SpaceRow, operator};
use crate::table::quoted;

/// SQL for the vectors of a space: where they are, and how they are ordered.
pub(crate) struct SpaceVectors {
    /// Tables of a query: `FROM … ` with `v`, the state `s` and the item `i`.
    pub(crate) from: String,
    /// Expression for the vector of a row.
    pub(crate) value: String,
    /// Tables that a walk of an index needs and no more: without the item where the vectors are in
    /// a table of the gallery.
    pub(crate) walked: String,
    /// Whether the vectors' column is of type `halfvec`.
    pub(crate) is_halfvec: bool,
    /// Expression that orders vectors by their distance to the query `$1`.
    order: String,
    /// Whether that expression gives the square root of the distance.
    is_root: bool,
}

impl SpaceVectors {
    pub(crate) fn for_space(handle: &Handle, space: &SpaceRow, with_row: bool) -> Self {
        let (n, g) = (space.number, handle.number);
        let has_row = with_row || space.in_column.is_some();
        let row = format!(" JOIN {} AS t ON {}", handle.table.qualified, handle.table.is_of("i", "t"));
        let (vectors, value) = match &space.in_column {
            Some(column) => (String::new(), format!("t.{}", quoted(column))),
            None => (format!(" JOIN rehang.vector_{n} AS v ON v.item {EQUALS} s.item"), "v.value".to_owned()),
        };
        let is_halfvec = match &space.in_column {
            None => schema::column_type(space.record.space.dimension).starts_with("halfvec"),
            Some(_) => handle.table.is_halfvec,
        };
        let pgvector = &handle.pgvector;
        let half = if is_halfvec { format!("::{}", pgvector.named("halfvec")) } else { String::new() };
        let of_distance = operator(space.record.space.distance);
        let order =
            format!("({value} {} $1::{}{half})", pgvector.operator(of_distance.name), pgvector.vector());
        let row = if has_row { row.as_str() } else { "" };
        let item = format!(" JOIN rehang.item_{g} AS i ON i.key {EQUALS} s.item");
        Self {
            walked: format!(
                "rehang.state_{n} AS s{}{vectors}{row}",
                if has_row { item.as_str() } else { "" }
            ),
            from: format!("rehang.state_{n} AS s{item}{vectors}{row}"),
            value,
            is_halfvec,
            order,
            is_root: of_distance.is_root,
        }
    }

    /// Returns the distance by which the server orders.
    pub(crate) fn ordered_by(&self) -> &str {
        &self.order
    }

    /// Returns the distance as [`rehang_core::Distance`] defines it: where the server orders by its root,
    /// squared. The cosine of a vector without direction is NaN, which the server sorts behind all numbers.
    pub(crate) fn distance(&self) -> String {
        let by = self.ordered_by();
        if self.is_root { format!("({by} ^ 2)") } else { by.to_owned() }
    }
}

/// Candidates that an index looks at for each neighbour that is wanted.
const CANDIDATES_PER_NEIGHBOUR: u16 = 4;
/// Candidates that an index looks at in all, at least.
const CANDIDATES_MIN: u16 = 100;
/// Candidates that an index looks at in all, at most: as many as pgvector can.
pub(crate) const CANDIDATES_MAX: u16 = 1_000;

/// Returns how many candidates an index looks at in a search for `k` neighbours (the setting
/// `hnsw.ef_search`), as SQL. The library's searches and the function `rehang.search` use the same.
pub(crate) fn candidates(k: &str) -> String {
    format!(
        "least(greatest({CANDIDATES_PER_NEIGHBOUR} * least({k}, {CANDIDATES_MAX}), {CANDIDATES_MIN}), {CANDIDATES_MAX})::text"
    )
}

/// Lists the settings of the server under which a search reads an index, whatever the planner believes
/// of tables that were filled a moment ago. Where a filter leaves too few of the candidates, a pgvector
/// that can looks for more.
pub(crate) fn index_settings(has_iterative_scan: bool) -> impl Iterator<Item = (&'static str, &'static str)> {
    let more = has_iterative_scan.then_some(("hnsw.iterative_scan", "strict_order"));
    BY_LOOK_UPS.into_iter().chain([("enable_sort", "off")]).chain(more)
}

/// Settings under which some rows of a table are looked up by their keys, and the table
/// is not read as a whole.
pub(crate) const BY_LOOK_UPS: [(&str, &str); 3] =
    [("enable_seqscan", "off"), ("enable_hashjoin", "off"), ("enable_mergejoin", "off")];
