//! Native vectors whose items are gone, kept for items that come back. An application that deletes all items
//! and writes them anew has changed nothing that a native vector was made of.
//!
//! The table `paid_N` keeps the vectors of space N for a day, each with the id and the source that its item
//! had. The triggers put them there, and give them to an item that comes through plain SQL; the library gives
//! them to the items that it writes.
//!
//! **Invariant**: a table holds [`KEPT_MAX`] vectors at most. Each deletion beyond that clears away the
//! vector that has waited longest.

/// Seconds that a vector waits for its item to come back.
const KEPT_S: u32 = 86_400;

/// Largest number of vectors of a space that wait.
const KEPT_MAX: u32 = 1_000_000;

/// SQL expression for the present time in seconds, which every version of SQLite knows.
const NOW: &str = "CAST(strftime('%s', 'now') AS INTEGER)";

/// Makes the table of a space, whose rows are numbered as they come: of items with the same id the later one
/// has the larger number.
///
/// A gallery that an earlier version made has no numbers of rows: its triggers clear away by age alone.
pub(crate) fn table(n: i64) -> String {
    format!(
        "CREATE TABLE paid_{n} (number INTEGER PRIMARY KEY, item INTEGER NOT NULL UNIQUE, id TEXT NOT NULL, source TEXT NOT NULL, kept INTEGER NOT NULL, value BLOB NOT NULL);
CREATE INDEX paid_{n}_id ON paid_{n} (id);
CREATE INDEX paid_{n}_kept ON paid_{n} (kept);"
    )
}

/// Statements for a trigger: they keep the native vector of an item that is about to go, and clear away a few
/// vectors that are too old.
///
/// No statement of them meets a conflict, which would be settled as the application's own statement says.
pub(crate) fn keep(n: i64) -> String {
    format!(
        "DELETE FROM paid_{n} WHERE item = OLD.key
        OR item IN (SELECT item FROM paid_{n} WHERE kept < {NOW} - {KEPT_S} ORDER BY kept LIMIT 2)
        OR number <= (SELECT max(number) FROM paid_{n}) - {KEPT_MAX};
    INSERT INTO paid_{n} (item, id, source, kept, value) SELECT OLD.key, OLD.id, OLD.source, {NOW}, value
        FROM vector_{n} WHERE item = OLD.key AND provenance = 'native' AND OLD.source IS NOT NULL;"
    )
}

/// Triggers of a space, but for that of a deletion, which [keeps](keep) the item's vector.
///
/// `INSERT OR REPLACE` fires no trigger of a deletion for the item that it removes, so its vector is kept
/// before. A plain write may say that all content has changed, as where a path names another file now: the
/// item is given nothing of before then.
pub(crate) fn triggers(n: i64) -> String {
    format!(
        "CREATE TRIGGER item_replaced_{n} BEFORE INSERT ON item WHEN EXISTS (SELECT 1 FROM item WHERE id = NEW.id) BEGIN
    DELETE FROM paid_{n} WHERE item = (SELECT key FROM item WHERE id = NEW.id);
    INSERT INTO paid_{n} (item, id, source, kept, value) SELECT item.key, item.id, item.source, {NOW}, value
        FROM item JOIN vector_{n} AS there ON there.item = item.key
        WHERE item.id = NEW.id AND there.provenance = 'native' AND item.source IS NOT NULL;
END;
CREATE TRIGGER item_touched_{n} BEFORE UPDATE OF revision ON item WHEN NEW.revision = 0 BEGIN
    DELETE FROM paid_{n} WHERE id = NEW.id;
END;
CREATE TRIGGER item_came_{n} AFTER UPDATE OF revision ON item
WHEN OLD.revision = 0 AND NEW.revision > 0 AND NEW.source IS NOT NULL BEGIN
    INSERT INTO vector_{n} (item, provenance, value) SELECT NEW.key, 'native', value FROM paid_{n}
        WHERE id = NEW.id AND source = NEW.source AND kept >= {NOW} - {KEPT_S}
            AND NOT EXISTS (SELECT 1 FROM vector_{n} WHERE item = NEW.key)
        ORDER BY paid_{n}.item DESC LIMIT 1;
END;
"
    )
}

/// Statement that gives an item the vector that is kept for it.
///
/// The item is `?1`, its revision `?2`, its id `?4`, its source `?5`; the number of the change is `?3`.
pub(crate) fn give(n: i64) -> String {
    format!(
        "INSERT INTO vector_{n} (item, revision, provenance, sourced, change, value) SELECT ?1, ?2, 'native', 1, ?3, value FROM paid_{n}
             WHERE id = ?4 AND source = ?5 AND kept >= {NOW} - {KEPT_S} ORDER BY paid_{n}.item DESC LIMIT 1"
    )
}

/// Statement that forgets all kept vectors of a space: what follows was made by another model.
pub(crate) fn forget(n: i64) -> String {
    format!("DELETE FROM paid_{n}")
}
