//! The queue of a backfill: which items wait for a vector and in what order, and which ones a sample is drawn from.

use std::collections::BTreeSet;

use rehang::Provenance;
use rehang_store::{Among, ItemKey};

use crate::connection::{Connection, Parameters, Step};
use crate::values::{key, row_limit};

/// What waits in the queue, of a state `s`.
const WAITS: &str = "sourced AND NOT failed";
/// Its order.
const WORST: &str = "band DESC, score DESC NULLS LAST, item";

/// The keys that a statement gives.
pub(crate) fn keys(connection: &mut Connection, sql: &str, parameters: Parameters<'_>) -> Step<Vec<ItemKey>> {
    connection.query(sql, parameters)?.iter().map(|row| key(row, 0)).collect()
}

/// The first items of the queue that meet a condition.
pub(crate) fn queue(
    connection: &mut Connection,
    n: i32,
    condition: &str,
    limit: usize,
) -> Step<Vec<ItemKey>> {
    let page = |made_by: &str, order: &str| {
        format!(
            "SELECT item FROM rehang.state_{n} AS s WHERE provenance = '{made_by}' AND {WAITS} AND {condition} ORDER BY {order} LIMIT $1"
        )
    };
    let mut found = keys(connection, &page("lacking", "item"), &[&row_limit(limit)])?;
    if found.len() < limit {
        let adapted = keys(connection, &page("adapted", WORST), &[&row_limit(limit - found.len())])?;
        // Each statement of a claim sees what is committed by then: an item that was lacking may have been adapted since.
        let lacking: BTreeSet<ItemKey> = found.iter().copied().collect();
        found.extend(adapted.into_iter().filter(|key| !lacking.contains(key)));
    }
    Ok(found)
}

/// `FROM … WHERE …` of the items that a sample is drawn from.
pub(crate) fn among(n: i32, among: Among) -> String {
    let which = match among {
        Among::All => "true".to_owned(),
        Among::Adapted => format!("provenance = '{}'", Provenance::Adapted.name()),
        Among::Embeddable => {
            format!("(provenance = 'native' OR (provenance IN ('lacking', 'adapted') AND {WAITS}))")
        }
    };
    format!("FROM rehang.state_{n} AS s WHERE {which}")
}

/// The first items of a shuffle: the server's own hash of key and seed orders them.
pub(crate) fn first(connection: &mut Connection, among: &str, seed: u64, size: usize) -> Step<Vec<ItemKey>> {
    let sql = format!("SELECT item {among} ORDER BY hashint8extended(item, $1), item LIMIT $2");
    keys(connection, &sql, &[&(seed as i64), &row_limit(size)])
}
