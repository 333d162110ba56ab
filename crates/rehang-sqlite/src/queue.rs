//! Queue: the order in which a backfill takes items, and the lists that samples are drawn from.

use rehang_store::{Among, FirstKeys, ItemKey};
use rusqlite::Connection;

use crate::items::ITEM_COLUMNS;
use crate::spaces::SpaceRow;
use crate::trouble::Step;
use crate::values::key;

/// Statements of the queue of the space with a number, one after the other: items that lack a vector, then
/// adapted ones. Both give the columns of items.
pub(crate) fn in_order(n: i64) -> [String; 2] {
    [
        format!(
            "SELECT {ITEM_COLUMNS} FROM lacking_{n} AS lacking CROSS JOIN item ON item.key = lacking.item
             WHERE lacking.sourced = 1 AND lacking.failed = 0 ORDER BY lacking.item"
        ),
        format!(
            "SELECT {ITEM_COLUMNS} FROM vector_{n} AS state INDEXED BY vector_{n}_worst
                 CROSS JOIN item ON item.key = state.item
             WHERE state.provenance = 'adapted' AND state.failed = 0 AND state.sourced = 1
             ORDER BY state.band DESC, state.score DESC, state.item"
        ),
    ]
}

/// Draws the first keys of a shuffle, and counts the items that are in it.
pub(crate) fn draw_first(
    connection: &Connection,
    space: &SpaceRow,
    among: Among,
    seed: u64,
    size: usize,
) -> Step<(Vec<ItemKey>, u64)> {
    let n = space.number;
    // Each list is an index that holds no more than the keys.
    let all = "SELECT key FROM item INDEXED BY item_revision".to_owned();
    let items_by = |provenance: &str| {
        format!(
            "SELECT item FROM vector_{n} INDEXED BY vector_{n}_{provenance} WHERE provenance = '{provenance}'"
        )
    };
    let lists = match among {
        Among::All => vec![all],
        Among::Adapted => vec![items_by("adapted")],
        Among::Embeddable => vec![
            items_by("native"),
            format!(
                "SELECT item FROM vector_{n} INDEXED BY vector_{n}_worst
                     WHERE provenance = 'adapted' AND failed = 0 AND sourced = 1"
            ),
            format!(
                "SELECT item FROM lacking_{n} INDEXED BY lacking_{n}_next WHERE sourced = 1 AND failed = 0"
            ),
        ],
    };
    let mut first = FirstKeys::new(seed, size);
    for list in lists {
        let mut select = connection.prepare_cached(&list)?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            first.take(key(row, 0)?);
        }
    }
    Ok(first.keys())
}
