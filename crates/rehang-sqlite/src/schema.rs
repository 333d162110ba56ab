//! The tables of a gallery and the triggers that keep them right, whichever application writes.
//!
//! `docs/reference/store.md` explains them to applications that write through plain SQL.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use rehang_core::{Distance, Provenance, Space};

use crate::paid;

/// Number in the header of every gallery ("rehg"), so that a foreign database is never taken for one.
pub(crate) const APPLICATION: i64 = 0x7265_6867;

/// Format that this binary reads and writes (`PRAGMA user_version`).
pub(crate) const FORMAT: i64 = 5;

/// Tables and triggers that every gallery has.
///
/// - Revisions and changes come from one counter, so none is ever given twice.
/// - `source_revision` is the revision that an item's source came with, where a later change of the item has
///   left the source as it was; elsewhere it is NULL, and the source came with the revision.
/// - A revision of 0 is what an application writes to say that all content has changed; one of -1 is ours,
///   and leaves the source as it was.
/// - `AUTOINCREMENT` keeps the numbers of deleted items and dropped spaces from being used again.
/// - `replaced` holds at most one key: `INSERT OR REPLACE` removes a row without firing delete triggers, so
///   the key is remembered before and its vectors are removed after.
/// - `DISTANCES` stands for the names of all distances.
const TABLES: [&str; 3] = [
    "
CREATE TABLE gallery (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
INSERT INTO gallery (name, value) VALUES
    ('counter', 0), ('serving', NULL), ('identity', lower(hex(randomblob(16))));

CREATE TABLE space (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    dimension INTEGER NOT NULL CHECK (dimension > 0),
    distance TEXT NOT NULL CHECK (distance IN (DISTANCES)),
    normalised INTEGER NOT NULL CHECK (normalised IN (0, 1)),
    written_as TEXT NOT NULL CHECK (written_as IN ('old', 'native')),
    created INTEGER NOT NULL,
    trimmed INTEGER NOT NULL,
    epoch INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE item (
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    source TEXT,
    label TEXT,
    payload TEXT CHECK (payload IS NULL OR json_valid(payload)),
    revision INTEGER NOT NULL DEFAULT 0,
    source_revision INTEGER
);
CREATE INDEX item_revision ON item (revision);
CREATE INDEX item_unsourced ON item (source) WHERE source IS NULL;
CREATE INDEX item_label ON item (label) WHERE label IS NOT NULL;

CREATE TABLE document (name TEXT PRIMARY KEY, version INTEGER NOT NULL, text TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE replaced (key INTEGER PRIMARY KEY);

CREATE TRIGGER item_key_is_given BEFORE INSERT ON item WHEN NEW.key <> -1 BEGIN
    SELECT RAISE(ABORT, 'the key of an item is given by the gallery; leave it out');
END;
CREATE TRIGGER item_key_stays BEFORE UPDATE OF key ON item WHEN NEW.key <> OLD.key BEGIN
    SELECT RAISE(ABORT, 'the key of an item cannot be changed');
END;
CREATE TRIGGER item_replaced BEFORE INSERT ON item WHEN EXISTS (SELECT 1 FROM item WHERE id = NEW.id) BEGIN
    DELETE FROM replaced;
    INSERT INTO replaced SELECT key FROM item WHERE id = NEW.id;
END;
CREATE TRIGGER item_added AFTER INSERT ON item WHEN NEW.revision <= 0 BEGIN
    UPDATE gallery SET value = value + 1 WHERE name = 'counter';
    UPDATE item SET revision = (SELECT value FROM gallery WHERE name = 'counter') WHERE key = NEW.key;
END;
",
    CHANGES,
    IDS,
];

/// Returns the statements that make the tables and triggers that every gallery has.
pub(crate) fn tables() -> String {
    let names = Distance::ALL.map(|distance| format!("'{distance}'")).join(", ");
    TABLES.concat().replace("DISTANCES", &names)
}

/// Triggers by which plain writes of an item give it another revision.
const CHANGES: &str = "
CREATE TRIGGER item_source_changed AFTER UPDATE OF source ON item
WHEN NEW.source IS NOT OLD.source AND NEW.revision = OLD.revision BEGIN
    UPDATE gallery SET value = value + 1 WHERE name = 'counter';
    UPDATE item SET revision = (SELECT value FROM gallery WHERE name = 'counter'), source_revision = NULL
    WHERE key = NEW.key;
END;
CREATE TRIGGER item_source_replaced AFTER UPDATE OF source ON item
WHEN NEW.source IS NOT OLD.source AND NEW.source_revision IS NOT NULL BEGIN
    UPDATE item SET source_revision = NULL WHERE key = NEW.key;
END;
CREATE TRIGGER item_touched AFTER UPDATE OF revision ON item WHEN NEW.revision <= 0 BEGIN
    UPDATE gallery SET value = value + 1 WHERE name = 'counter';
    UPDATE item SET
        revision = (SELECT value FROM gallery WHERE name = 'counter'),
        source_revision = CASE WHEN NEW.revision = -1 AND NEW.source IS NOT NULL
            THEN ifnull(OLD.source_revision, OLD.revision) END
    WHERE key = NEW.key;
END;
";

/// SQL expression for the revision that the source of an item came with.
pub(crate) const SOURCE_REVISION: &str = "ifnull(item.source_revision, item.revision)";

/// Triggers that keep an id one line, so that lists of ids are files with one a line.
const IDS: &str = "
CREATE TRIGGER item_id_is_given BEFORE INSERT ON item
WHEN instr(NEW.id, char(10)) > 0 OR instr(NEW.id, char(13)) > 0 BEGIN
    SELECT RAISE(ABORT, 'the id of an item is one line');
END;
CREATE TRIGGER item_id_changes BEFORE UPDATE OF id ON item
WHEN NEW.id <> OLD.id AND (instr(NEW.id, char(10)) > 0 OR instr(NEW.id, char(13)) > 0) BEGIN
    SELECT RAISE(ABORT, 'the id of an item is one line');
END;
";

/// Statement that says whether an application has triggers of its own here: there are more than the
/// gallery's. Triggers of a space that is being dropped are gone already.
pub(crate) static HAS_OTHER_TRIGGERS: LazyLock<String> = LazyLock::new(|| {
    let made_by = |sql: &str| sql.matches("CREATE TRIGGER").count();
    let of_the_gallery: usize = TABLES.iter().map(|sql| made_by(sql)).sum();
    let of_a_space = made_by(&space_triggers(0, Provenance::Native));
    format!(
        "SELECT (SELECT count(*) FROM sqlite_schema WHERE type = 'trigger')
             > {of_the_gallery} + {of_a_space} * (SELECT count(*) FROM space)"
    )
});

/// Whether a trigger is one of the gallery's, by its name.
pub(crate) fn is_our_trigger(name: &str) -> bool {
    static NAMES: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
        let statements =
            TABLES.iter().map(|sql| (*sql).to_owned()).chain([space_triggers(0, Provenance::Native)]);
        let names = |sql: String| -> Vec<String> {
            let after = sql.split("CREATE TRIGGER ").skip(1);
            after.filter_map(|text| text.split_whitespace().next()).map(str::to_owned).collect()
        };
        statements.flat_map(names).collect()
    });
    NAMES.contains(&with_space_0(name))
}

/// Whether a table is one of the gallery's, by its name.
pub(crate) fn is_our_table(name: &str) -> bool {
    let name = with_space_0(name);
    ["gallery", "space", "item", "document", "replaced"].contains(&name.as_str())
        || TABLES_OF_SPACE.iter().any(|table| name == format!("{table}_0"))
}

/// Puts the number 0 in the place of a space's own in the name of a table or trigger.
fn with_space_0(name: &str) -> String {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|letter| letter.is_ascii_digit());
    let parts: Vec<&str> = name.split('_').map(|part| if is_number(part) { "0" } else { part }).collect();
    parts.join("_")
}

/// Tables that every space has, without its number.
pub(crate) const TABLES_OF_SPACE: [&str; 6] = ["vector", "lacking", "removed", "failure", "claim", "paid"];

/// Tables, indexes and triggers of the space with a number.
///
/// The items that are there already are all lacking in it, and still have to be [listed](list_lacking):
/// `listed-N` in `gallery` is the last one that was.
///
/// Writers of the library give each row its own `change`. A row without one, or a value that changes while
/// `change` stays, was written by plain SQL, and the triggers do what the library would have done.
pub(crate) fn space_tables(n: i64, space: &Space, written_as: Provenance) -> String {
    let bytes = 4 * space.dimension;
    format!(
        "
CREATE TABLE vector_{n} (
    item INTEGER PRIMARY KEY,
    revision INTEGER NOT NULL DEFAULT 0,
    provenance TEXT NOT NULL DEFAULT '{written_as}' CHECK (provenance IN ('old', 'adapted', 'native')),
    sigma2 REAL,
    band INTEGER NOT NULL DEFAULT 0,
    score REAL,
    squared_error REAL,
    sourced INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    change INTEGER NOT NULL DEFAULT 0,
    value BLOB NOT NULL CHECK (typeof(value) = 'blob' AND length(value) = {bytes})
);
CREATE INDEX vector_{n}_old ON vector_{n} (item) WHERE provenance = 'old';
CREATE INDEX vector_{n}_native ON vector_{n} (item) WHERE provenance = 'native';
CREATE INDEX vector_{n}_adapted ON vector_{n} (item) WHERE provenance = 'adapted';
{worst}
CREATE INDEX vector_{n}_unsourced ON vector_{n} (item) WHERE provenance = 'adapted' AND sourced = 0;
CREATE INDEX vector_{n}_error ON vector_{n} (change)
    WHERE provenance = 'native' AND sigma2 IS NOT NULL AND squared_error IS NOT NULL;
CREATE INDEX vector_{n}_change ON vector_{n} (change);

CREATE TABLE lacking_{n} (item INTEGER PRIMARY KEY, sourced INTEGER NOT NULL, failed INTEGER NOT NULL DEFAULT 0);
CREATE INDEX lacking_{n}_next ON lacking_{n} (item) WHERE sourced = 1 AND failed = 0;
CREATE TABLE removed_{n} (item INTEGER PRIMARY KEY, change INTEGER NOT NULL);
CREATE INDEX removed_{n}_change ON removed_{n} (change);
CREATE TABLE failure_{n} (item INTEGER PRIMARY KEY, revision INTEGER NOT NULL, reason TEXT NOT NULL);
{claim}
{paid}

INSERT INTO gallery (name, value) VALUES ('listed-{n}', 0);
{triggers}",
        worst = worst_index(n),
        claim = claim_table(n),
        paid = paid::table(n),
        triggers = space_triggers(n, written_as),
    )
}

/// Index that the queue is read from.
fn worst_index(n: i64) -> String {
    format!(
        "CREATE INDEX vector_{n}_worst ON vector_{n} (band DESC, score DESC, item)
             WHERE provenance = 'adapted' AND failed = 0 AND sourced = 1;"
    )
}

/// Table of leases: which worker holds an item, and until when by the clock of the processes.
///
/// A row that has run out holds nothing. It says that its worker never reported on the item, and `lost` says
/// how many workers before it did not.
fn claim_table(n: i64) -> String {
    format!(
        "CREATE TABLE claim_{n} (
             item INTEGER PRIMARY KEY, worker TEXT NOT NULL, until INTEGER NOT NULL, lost INTEGER NOT NULL DEFAULT 0
         );"
    )
}

fn space_triggers(n: i64, written_as: Provenance) -> String {
    // A process of format 3 that has the gallery open writes a source without its revision.
    let has_other_source = "(NEW.source_revision IS NULL OR NEW.source IS NOT OLD.source)";
    format!(
        "
CREATE TRIGGER item_added_{n} AFTER INSERT ON item BEGIN
    DELETE FROM vector_{n} WHERE item IN (SELECT key FROM replaced WHERE key NOT IN (SELECT key FROM item));
    DELETE FROM failure_{n} WHERE item IN (SELECT key FROM replaced WHERE key NOT IN (SELECT key FROM item));
    DELETE FROM lacking_{n} WHERE item IN (SELECT key FROM replaced WHERE key NOT IN (SELECT key FROM item));
    DELETE FROM claim_{n} WHERE item IN (SELECT key FROM replaced WHERE key NOT IN (SELECT key FROM item));
    INSERT INTO lacking_{n} (item, sourced) SELECT NEW.key, NEW.source IS NOT NULL
        WHERE NOT EXISTS (SELECT 1 FROM vector_{n} WHERE item = NEW.key);
END;
CREATE TRIGGER item_changed_{n} AFTER UPDATE OF revision ON item
WHEN NEW.revision <> OLD.revision AND NEW.revision > 0 BEGIN
    DELETE FROM failure_{n} WHERE item = NEW.key AND {has_other_source};
    DELETE FROM claim_{n} WHERE item = NEW.key AND {has_other_source};
    DELETE FROM vector_{n} WHERE item = NEW.key AND revision <> NEW.revision
        AND ({has_other_source} OR provenance <> 'native');
    UPDATE vector_{n} SET revision = NEW.revision WHERE item = NEW.key AND revision <> NEW.revision;
    UPDATE lacking_{n} SET sourced = (NEW.source IS NOT NULL) WHERE item = NEW.key;
END;
CREATE TRIGGER item_deleted_{n} AFTER DELETE ON item BEGIN
    {keep_deleted}
    DELETE FROM failure_{n} WHERE item = OLD.key;
    DELETE FROM claim_{n} WHERE item = OLD.key;
    DELETE FROM vector_{n} WHERE item = OLD.key;
    DELETE FROM lacking_{n} WHERE item = OLD.key;
END;
{paid}
CREATE TRIGGER vector_{n}_checked BEFORE INSERT ON vector_{n} WHEN NEW.change = 0 BEGIN
    SELECT RAISE(ABORT, 'there is no item with this key') WHERE NOT EXISTS (SELECT 1 FROM item WHERE key = NEW.item);
    UPDATE item SET revision = -1 WHERE key = NEW.item AND EXISTS (SELECT 1 FROM vector_{n} WHERE item = NEW.item);
    DELETE FROM vector_{n} WHERE item = NEW.item;
END;
CREATE TRIGGER vector_{n}_added AFTER INSERT ON vector_{n} BEGIN
    DELETE FROM lacking_{n} WHERE item = NEW.item;
    DELETE FROM failure_{n} WHERE item = NEW.item AND NEW.provenance <> 'adapted';
    DELETE FROM claim_{n} WHERE item = NEW.item AND NEW.provenance <> 'adapted';
END;
CREATE TRIGGER vector_{n}_added_plainly AFTER INSERT ON vector_{n} WHEN NEW.change = 0 BEGIN
    UPDATE gallery SET value = value + 1 WHERE name = 'counter';
    UPDATE vector_{n} SET
        revision = (SELECT revision FROM item WHERE key = NEW.item),
        sourced = (SELECT source IS NOT NULL FROM item WHERE key = NEW.item),
        failed = EXISTS (SELECT 1 FROM failure_{n} WHERE item = NEW.item),
        change = (SELECT value FROM gallery WHERE name = 'counter')
    WHERE item = NEW.item;
END;
CREATE TRIGGER vector_{n}_changed_plainly AFTER UPDATE OF value ON vector_{n} WHEN NEW.change = OLD.change BEGIN
    UPDATE gallery SET value = value + 1 WHERE name = 'counter';
    UPDATE vector_{n} SET
        revision = (SELECT value FROM gallery WHERE name = 'counter'),
        provenance = CASE WHEN NEW.provenance = OLD.provenance THEN '{written_as}' ELSE NEW.provenance END,
        sigma2 = NULL, band = 0, score = NULL, squared_error = NULL, failed = 0,
        change = (SELECT value FROM gallery WHERE name = 'counter')
    WHERE item = NEW.item;
    UPDATE item SET
        revision = (SELECT value FROM gallery WHERE name = 'counter'),
        source_revision = CASE WHEN source IS NOT NULL THEN ifnull(source_revision, revision) END
    WHERE key = NEW.item;
    DELETE FROM failure_{n} WHERE item IN (SELECT item FROM vector_{n} WHERE item = NEW.item AND provenance <> 'adapted');
    DELETE FROM claim_{n} WHERE item IN (SELECT item FROM vector_{n} WHERE item = NEW.item AND provenance <> 'adapted');
END;
CREATE TRIGGER vector_{n}_item_stays BEFORE UPDATE OF item ON vector_{n} WHEN NEW.item <> OLD.item BEGIN
    SELECT RAISE(ABORT, 'a vector cannot be given to another item');
END;
CREATE TRIGGER vector_{n}_removed AFTER DELETE ON vector_{n} BEGIN
    UPDATE gallery SET value = value + 1 WHERE name = 'counter';
    DELETE FROM removed_{n} WHERE item = OLD.item;
    INSERT INTO removed_{n} (item, change) SELECT OLD.item, value FROM gallery WHERE name = 'counter';
    INSERT INTO lacking_{n} (item, sourced, failed)
        SELECT key, source IS NOT NULL, EXISTS (SELECT 1 FROM failure_{n} WHERE item = key)
        FROM item WHERE key = OLD.item;
END;
CREATE TRIGGER failure_{n}_added AFTER INSERT ON failure_{n} BEGIN
    UPDATE vector_{n} SET failed = 1 WHERE item = NEW.item;
    UPDATE lacking_{n} SET failed = 1 WHERE item = NEW.item;
    DELETE FROM claim_{n} WHERE item = NEW.item;
END;
CREATE TRIGGER failure_{n}_removed AFTER DELETE ON failure_{n} BEGIN
    UPDATE vector_{n} SET failed = 0 WHERE item = OLD.item;
    UPDATE lacking_{n} SET failed = 0 WHERE item = OLD.item;
END;
",
        keep_deleted = paid::keep(n),
        paid = paid::triggers(n),
    )
}

/// Statement that lists the items after a key, up to another one, that lack a vector.
pub(crate) fn list_lacking(n: i64) -> String {
    format!(
        "INSERT OR IGNORE INTO lacking_{n} (item, sourced, failed)
         SELECT key, source IS NOT NULL, EXISTS (SELECT 1 FROM failure_{n} WHERE item = key) FROM item
         WHERE key > ?1 AND key <= ?2 AND NOT EXISTS (SELECT 1 FROM vector_{n} WHERE item = key)"
    )
}

/// Statement that counts the items after a key that lack a vector and are not listed so, and those of them
/// without a source.
pub(crate) fn count_unlisted(n: i64) -> String {
    format!(
        "SELECT count(*), count(*) FILTER (WHERE source IS NULL) FROM item
         WHERE key > ?1 AND NOT EXISTS (SELECT 1 FROM vector_{n} WHERE item = key)
           AND NOT EXISTS (SELECT 1 FROM lacking_{n} WHERE item = key)"
    )
}

/// Statements that take a space out of the gallery: from here on nothing finds its tables or keeps them
/// right, and `left-N` says that they are still there.
pub(crate) fn leave_space(n: i64) -> String {
    format!(
        "{}
         DELETE FROM gallery WHERE name = 'listed-{n}';
         INSERT INTO gallery (name, value) VALUES ('left-{n}', {n});
         DELETE FROM space WHERE number = {n};",
        drop_triggers(n)
    )
}

fn drop_triggers(n: i64) -> String {
    let triggers = [
        format!("item_added_{n}"),
        format!("item_changed_{n}"),
        format!("item_deleted_{n}"),
        format!("item_replaced_{n}"),
        format!("item_touched_{n}"),
        format!("item_came_{n}"),
        format!("vector_{n}_checked"),
        format!("vector_{n}_added"),
        format!("vector_{n}_added_plainly"),
        format!("vector_{n}_changed_plainly"),
        format!("vector_{n}_item_stays"),
        format!("vector_{n}_removed"),
        format!("failure_{n}_added"),
        format!("failure_{n}_removed"),
    ];
    triggers.iter().map(|trigger| format!("DROP TRIGGER IF EXISTS {trigger}; ")).collect()
}

/// Selects the name of one index that is left of a space.
pub(crate) fn an_index(n: i64) -> String {
    let tables = TABLES_OF_SPACE.map(|table| format!("'{table}_{n}'")).join(", ");
    format!(
        "SELECT name FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL AND tbl_name IN ({tables}) LIMIT 1"
    )
}

/// Statements that drop the tables of a space that was [left](leave_space), once they are empty.
pub(crate) fn drop_space_tables(n: i64) -> String {
    let tables: String = TABLES_OF_SPACE.iter().map(|table| format!("DROP TABLE {table}_{n}; ")).collect();
    format!("{tables} DELETE FROM gallery WHERE name = 'left-{n}';")
}
