//! Function of the triggers on an application's table, as SQL.
//!
//! Its text is in `sql/trigger_function.sql`. The pieces of it that a space, a row or a partitioned table
//! needs are beside it. They are filled in one pass: names and expressions of an application stand in them
//! afterwards, whatever words these have.

use rehang_store::QueueBand;

use crate::guard::{EQUALS, SAME_TEXT, SEARCH_PATH};
use crate::paid;
use crate::schema::{NEXT_REVISION, SpaceRow, UNREAD, function_comment, source_revision};
use crate::table::{Table, hash_of_source, hash_of_vector, literal, quoted};

/// Condition that an update leaves the source as it is, in the variables that [`read_row`] fills.
const SAME_SOURCE: &str = "old_source IS NOT DISTINCT FROM new_source";
/// Condition that an update leaves the vector as it is: the bytes are compared, which no
/// operator can redefine.
const SAME_VECTOR: &str = "pg_catalog.record_image_eq(ROW(old_vector), ROW(new_vector))";

/// Returns the function of the triggers, which keeps the items and every space right, whoever writes the
/// table. It runs with its owner's rights, so that the application's role needs none on the gallery's schema.
/// So nobody else may call it, and it works for its gallery's table alone, whoever made a trigger of it.
/// Every name in it is the server's: where an operator cannot be named in full (`IN`, `IS DISTINCT FROM`),
/// its operands are of the server's own types.
///
/// Nothing of pgvector's is named: an extension moves to another schema (`ALTER EXTENSION vector SET
/// SCHEMA`), and the application writes on.
pub(crate) fn trigger_function(g: i32, table: &Table, spaces: &[SpaceRow]) -> String {
    let key = KeyColumns::of(table);
    let parts = Parts::for_table(g, table, spaces);
    let function = format!(
        include_str!("sql/trigger_function.sql"),
        g = g,
        search_path = SEARCH_PATH,
        settings = parts.settings,
        variables = variables(table) + parts.variables,
        whole_table = parts.whole_table,
        is_other = parts.is_other,
        detached = parts.detached,
        truncated = parts.truncated + &truncated(g, table, spaces),
        this_table = parts.this_table,
        oid = table.oid,
        is_renamed = is_renamed(table),
        read_old = read_row(table, "old"),
        read_new = read_row(table, "new"),
        before_move = parts.before_move,
        unread = UNREAD,
        moved = parts.moved,
        stale = stale(g, table, spaces),
        same_key = key.is_same(),
        set_key = key.each(", ", |at| format!("k{at} = new_{at}")),
        of_old = key.is_of("old"),
        of_new = key.is_of("new"),
        key_names = table.key_names(),
        old_key = key.of_row("old"),
        new_key = key.of_row("new"),
        gone = gone(table, spaces),
        same = is_same_content(table),
        next_revision = NEXT_REVISION,
        same_source = SAME_SOURCE,
        hash_names = parts.hash_names,
        hashes = parts.hashes,
        hash_updates = parts.hash_updates,
        source_revision = source_revision("i"),
        adapt = adapt(g, table),
        came = came(table, spaces),
    );
    let what = format!("keeps the gallery of {} right, whoever writes the table", table.options.table);
    function + &function_comment(&format!("rehang.changed_{g}()"), &what)
}

/// Columns of a table's key, by their numbers: `k1` is the first one of an item, `old_1` and `new_1` are the
/// function's variables for that of a row.
#[derive(Clone, Copy)]
struct KeyColumns(usize);

impl KeyColumns {
    /// Numbers the columns of a table's key.
    fn of(table: &Table) -> Self {
        Self(table.key.len())
    }

    /// Writes a text for each column, by its number, with `between` in between.
    fn each(self, between: &str, text: impl Fn(usize) -> String) -> String {
        (1..=self.0).map(text).collect::<Vec<_>>().join(between)
    }

    /// Lists the variables of a row's key: `new_1, new_2`.
    fn of_row(self, row: &str) -> String {
        self.each(", ", |at| format!("{row}_{at}"))
    }

    /// Returns the condition that an item has the key of a row: `k1 = new_1 AND …`.
    fn is_of(self, row: &str) -> String {
        self.each(" AND ", |at| format!("k{at} {EQUALS} {row}_{at}"))
    }

    /// Returns the condition that an update leaves the key as it is.
    fn is_same(self) -> String {
        self.each(" AND ", |at| format!("old_{at} IS NOT DISTINCT FROM new_{at}"))
    }
}

/// Returns the variables of the function that hold the columns of a row.
fn variables(table: &Table) -> String {
    let of_row = |row: &str| {
        let key = table.key.iter().zip(1..).map(|(column, at)| {
            // A collation may get another name, and most collations take the same letters for equal.
            let collation = column.collation.iter().filter(|_| column.has_equals);
            let collation = collation.map(|collation| format!(" COLLATE {collation}")).collect::<String>();
            format!("    {row}_{at} {}{collation};\n", column.kind)
        });
        let key: String = key.collect();
        format!("{key}    {row}_vector pg_catalog.float4[];\n")
    };
    of_row("old") + &of_row("new")
}

/// Returns the condition that a column which the function reads, as `a` of the catalogue, has another name
/// by now.
fn is_renamed(table: &Table) -> String {
    let columns = table.trigger_columns();
    let renamed =
        columns.map(|(name, number)| format!("a.attnum = {number} AND a.attname <> {}", literal(name)));
    renamed.collect::<Vec<_>>().join(" OR ")
}

/// Returns the condition that an update changes nothing that vectors are made of.
fn is_same_content(table: &Table) -> String {
    if table.options.vector.is_some() {
        format!("{SAME_SOURCE} AND {SAME_VECTOR}")
    } else {
        SAME_SOURCE.to_owned()
    }
}

/// Returns the code that reads what matters of `OLD` or `NEW` into variables.
///
/// **Invariant**: no write of the application fails by it. A column that has another name by now is found by
/// its number. A source that cannot be made of the row counts as none. Where even the condition fails, a row
/// that is deleted is taken for an item, and any other is passed over. Both are told by the document
/// [`UNREAD`]. The blocks read only, so none of them takes a number of a transaction.
fn read_row(table: &Table, row: &str) -> String {
    let record = row.to_uppercase();
    let (condition, source) = (table.is_item(&record), table.source_of(&record));
    let by_name: String = values_of_row(table, row, &record, &condition, &source)
        .iter()
        .map(|(variable, value)| format!("            {variable} := {value};\n"))
        .collect();
    // A partition has the columns of the whole by name, and by numbers of its own.
    let number = if table.is_partitioned {
        "(SELECT w.attnum FROM pg_catalog.pg_attribute AS w WHERE w.attrelid = whole AND w.attname = a.attname)"
    } else {
        "a.attnum"
    };
    format!(
        include_str!("sql/trigger_read.sql"),
        by_name = by_name,
        this_table = this_table(table),
        oid = table.oid,
        names = literal(&names_by_number(table)),
        number = number,
        in_full = read_by_number(table, row, &table.is_item("r"), &table.source_of("r")),
        without_source = read_by_number(table, row, &table.is_item("r"), "NULL::text"),
        key_alone = read_by_number(table, row, "NULL::boolean", "NULL::text"),
    )
}

/// Lists the variables that a row is read into, each with its value as SQL of the record `of`: first those
/// that can always be read, then those that the application's expressions decide.
fn values_of_row(table: &Table, row: &str, of: &str, condition: &str, source: &str) -> Vec<(String, String)> {
    let key = table.key.iter().zip(1..);
    let mut values: Vec<(String, String)> =
        key.map(|(column, at)| (format!("{row}_{at}"), format!("{of}.{}", quoted(&column.name)))).collect();
    let meets = if row == "old" { "was" } else { "meets" };
    values.push((format!("{row}_id"), table.id_of(of)));
    values.push((meets.to_owned(), condition.to_owned()));
    values.push((format!("{row}_source"), source.to_owned()));
    values.extend(table.options.vector.iter().map(|column| {
        let numbers = format!("(SELECT t.{}::pg_catalog.float4[] FROM (SELECT {of}.*) AS t)", quoted(column));
        (format!("{row}_vector"), numbers)
    }));
    values
}

/// Returns the statement that reads a row whose columns are called as `names` says when it runs.
fn read_by_number(table: &Table, row: &str, condition: &str, source: &str) -> String {
    let (variables, values): (Vec<String>, Vec<String>) =
        values_of_row(table, row, "r", condition, source).into_iter().unzip();
    let sql = format!("SELECT {} FROM (SELECT ($1).*) AS r(", values.join(", ")).replace('%', "%%");
    format!(
        "EXECUTE pg_catalog.format({}, names) INTO {} USING {};",
        literal(&(sql + "%s)")),
        variables.join(", "),
        row.to_uppercase()
    )
}

/// Writes the names of a table's columns by their numbers, as JSON.
fn names_by_number(table: &Table) -> String {
    let columns: serde_json::Map<String, serde_json::Value> = table
        .columns
        .iter()
        .filter(|(name, _)| !name.contains("$rehang$"))
        .map(|(name, number)| (number.to_string(), serde_json::Value::from(name.as_str())))
        .collect();
    serde_json::Value::Object(columns).to_string()
}

/// Returns the number of the gallery's table that a trigger is about, as the function has it.
fn this_table(table: &Table) -> &'static str {
    if table.is_partitioned { "whole" } else { "TG_RELID" }
}

/// Names the tables of a space, beside that of its states, which have rows of items.
fn beside_states(space: &SpaceRow) -> Vec<String> {
    let vectors = space.in_column.is_none().then_some("vector");
    let names = ["failure", "claim"].into_iter().chain(vectors);
    names.map(|name| format!("rehang.{name}_{}", space.number)).collect()
}

/// Returns the statements before a `TRUNCATE` of the whole table: native vectors are kept, and all items go.
fn truncated(g: i32, table: &Table, spaces: &[SpaceRow]) -> String {
    let tables: String = spaces
        .iter()
        .map(|space| format!(", rehang.state_{}, {}", space.number, beside_states(space).join(", ")))
        .collect();
    format!("{}        TRUNCATE rehang.item_{g}{tables};\n", paid::keep_all(g, table, spaces))
}

/// Returns the statements that take the item `this` out of tables.
fn forget(tables: &[String]) -> String {
    tables.iter().map(|table| format!("            DELETE FROM {table} WHERE item = this;\n")).collect()
}

/// Returns the statements that take the item `this`, which is gone, out of every space.
fn gone(table: &Table, spaces: &[SpaceRow]) -> String {
    let of_space = |space: &SpaceRow| {
        let n = space.number;
        let keep = if space.in_column.is_none() { paid::keep(n, table) } else { String::new() };
        let delete = format!(include_str!("sql/trigger_gone.sql"), n = n);
        keep + &delete + &forget(&beside_states(space))
    };
    spaces.iter().map(of_space).collect()
}

/// Returns the code that says whether the old vector of a row is of earlier content: it does not become one
/// of the new content by another key, or by coming to meet the condition.
fn stale(g: i32, table: &Table, spaces: &[SpaceRow]) -> String {
    if table.options.vector.is_none() {
        return String::new();
    }
    let key = KeyColumns::of(table);
    let in_column = spaces.iter().find(|space| space.in_column.is_some());
    let by_key = in_column.map_or_else(String::new, |space| {
        format!(
            "
            OR was AND NOT ({}) AND EXISTS (SELECT 1 FROM rehang.item_{g} AS i JOIN rehang.state_{} AS s ON s.item = i.key
                WHERE {} AND s.provenance = 'lacking')",
            key.is_same(),
            space.number,
            key.is_of("old"),
        )
    });
    format!(
        "    IF is_update THEN
        stale := {SAME_VECTOR} AND (NOT ({SAME_SOURCE}){by_key});
    END IF;
"
    )
}

/// Setting of a transaction that names the item which the library is about to write with all its vectors: the
/// number of its gallery, a blank, and its id. An adapted vector that the trigger made of the old one would
/// be replaced or taken away a moment later. Triggers of an earlier version make it all the same.
pub(crate) const WRITTEN_ITEM: &str = "rehang.written_item";

/// Returns the code that asks for an adapted vector of a new old one. What it asks only reads, and takes no
/// number of a transaction. Where it cannot be asked, the item lacks a vector until somebody catches up
/// with it.
fn adapt(g: i32, table: &Table) -> String {
    if table.options.vector.is_none() {
        return String::new();
    }
    format!(include_str!("sql/trigger_adapt.sql"), g = g, same_vector = SAME_VECTOR, written = WRITTEN_ITEM)
}

/// Returns the statements that give the item `this`, which came or changed, its state and its vector in
/// every space.
fn came(table: &Table, spaces: &[SpaceRow]) -> String {
    let of_space = |space: &SpaceRow| {
        if space.in_column.is_some() {
            came_in_column(space)
        } else {
            came_beside(space) + &paid::give_back_sql(space.number, table)
        }
    };
    spaces.iter().map(of_space).collect()
}

/// Uncertainty and place in the queue of a state that has neither.
const NO_PLACE: [&str; 3] = ["NULL", "0", "NULL"];

/// Returns the statements for a space whose vectors are a column of the application's table.
fn came_in_column(space: &SpaceRow) -> String {
    // A vector in a column is of this content only if it came with it.
    let provenance = format!(
        "CASE WHEN new_vector IS NULL OR stale OR pg_catalog.cardinality(new_vector) <> {} OR (is_update AND {SAME_VECTOR})
                         THEN 'lacking' ELSE '{}' END",
        space.record.space.dimension,
        space.record.written_as.name(),
    );
    format!(
        "    {}    IF is_update THEN\n{}    END IF;\n",
        state(space.number, "false", &provenance, NO_PLACE),
        forget_of_source(space)
    )
}

/// Returns the statements for a space whose vectors are in a table of the gallery.
fn came_beside(space: &SpaceRow) -> String {
    let n = space.number;
    let stays = "keeps AND s.provenance = 'native'";
    let front = (QueueBand::NewOrChanged as i16).to_string();
    format!(
        include_str!("sql/trigger_vector.sql"),
        n = n,
        adapted = state(n, stays, "'adapted'", ["made_sigma2", &front, "0"]),
        lacking = state(n, stays, "'lacking'", NO_PLACE),
        of_source = forget_of_source(space),
    )
}

/// Returns the statement that writes the state of the item `this` in a space. Where the condition `stays`
/// holds, what was made before stays; else the state is of `provenance`.
fn state(n: i32, stays: &str, provenance: &str, [sigma2, band, score]: [&str; 3]) -> String {
    format!(
        include_str!("sql/trigger_state.sql"),
        n = n,
        stays = stays,
        provenance = provenance,
        sigma2 = sigma2,
        band = band,
        score = score,
    )
}

/// Returns the statements that forget what was made of an earlier source of the item `this`: its failure and
/// its claim.
fn forget_of_source(space: &SpaceRow) -> String {
    let or_has_vector = space.in_column.as_ref().map_or_else(String::new, |_| {
        format!(
            " OR EXISTS (SELECT 1 FROM rehang.state_{} AS s WHERE s.item = this AND s.provenance <> 'lacking')",
            space.number
        )
    });
    format!(
        "        IF NOT keeps{or_has_vector} THEN\n{}        END IF;\n",
        forget(&beside_states(space)[..2])
    )
}

/// Parts of the function that are others for a partitioned table: there it fires for the tables that the rows
/// lie in.
#[derive(Default)]
struct Parts {
    settings: String,
    variables: &'static str,
    /// Code that finds which table of the gallery the trigger is about.
    whole_table: String,
    /// Number of that table.
    this_table: &'static str,
    /// Condition that the trigger is about no table of the gallery.
    is_other: String,
    /// Code for a table that is no partition any more.
    detached: &'static str,
    /// Code for a `TRUNCATE` of a partition.
    truncated: String,
    /// Code for a row that may be about to move to another partition.
    before_move: String,
    /// Code for a row that went by such a move, or came by one.
    moved: String,
    hash_names: &'static str,
    hashes: String,
    hash_updates: &'static str,
}

impl Parts {
    /// Writes the parts for a table, partitioned or not.
    fn for_table(g: i32, table: &Table, spaces: &[SpaceRow]) -> Self {
        let this_table = this_table(table);
        if !table.is_partitioned {
            let is_other = format!(
                "TG_RELID <> {} AND NOT EXISTS (SELECT 1 FROM rehang.gallery AS ours WHERE ours.number = {g} AND ours.relation = TG_RELID)",
                table.oid
            );
            return Self { this_table, is_other, ..Self::default() };
        }
        let vector_hash =
            if table.options.vector.is_some() { hash_of_vector("new_vector") } else { "NULL::bigint".into() };
        Self {
            // The table of moving rows was empty when its plan was made, and may be full a moment later. A
            // partition that has another owner has no policy that would be asked with our rights.
            settings: SAME_TEXT.map(|(name, value)| format!(" SET {name} = {value}")).concat()
                + " SET enable_seqscan = off SET row_security = off",
            variables: "    whole oid;\n    these bigint[];\n    moving record;\n",
            whole_table: format!(
                "    whole := (SELECT a.relid FROM pg_catalog.pg_partition_ancestors(TG_RELID) AS a
        WHERE a.relid = {0} OR a.relid = (SELECT ours.relation FROM rehang.gallery AS ours WHERE ours.number = {g}) ORDER BY a.relid <> {0} LIMIT 1);\n",
                table.oid
            ),
            this_table,
            is_other: "whole IS NULL".to_owned(),
            // A trigger before an update that returned no row would hold the update back.
            detached: "        IF TG_WHEN = 'BEFORE' AND TG_OP = 'UPDATE' THEN
            RETURN NEW;
        END IF;\n",
            truncated: truncated_partition(g, table, spaces),
            before_move: before_move(g, table),
            moved: moved(g, table),
            hash_names: ", source_hash, vector_hash",
            hashes: format!(", {}, {}", hash_of_source("new_source"), vector_hash),
            hash_updates: " source_hash = EXCLUDED.source_hash, vector_hash = EXCLUDED.vector_hash,",
        }
    }
}

/// Returns the code for a `TRUNCATE` of a partition. The rows that go are read by their own table's name,
/// since nobody else uses them and they are still there.
fn truncated_partition(g: i32, table: &Table, spaces: &[SpaceRow]) -> String {
    let delete_items = format!(
        "WITH gone AS (DELETE FROM rehang.item_{g} AS i USING ONLY %s AS t WHERE {} RETURNING i.key) SELECT pg_catalog.array_agg(gone.key) FROM gone",
        table.is_of("i", "t").replace('%', "%%")
    );
    let of_space = |space: &SpaceRow| -> String {
        let vectors = space.in_column.is_none().then_some("vector");
        let names = ["state", "failure", "claim"].into_iter().chain(vectors);
        names
            .map(|name| {
                format!(
                    "                DELETE FROM rehang.{name}_{} AS s WHERE s.item = ANY (these);\n",
                    space.number
                )
            })
            .collect()
    };
    format!(
        include_str!("sql/trigger_truncate.sql"),
        g = g,
        delete_items = literal(&delete_items),
        of_spaces = spaces.iter().map(of_space).collect::<String>(),
        unread = UNREAD,
    )
}

/// Returns the condition that a note of a moving row, as `m`, is of a row by its earlier key, `o`, or by the
/// one to come, `n`.
fn is_noted(key: KeyColumns, letter: char, row: &str) -> String {
    key.each(" AND ", |at| format!("m.{letter}{at} {EQUALS} {row}_{at}"))
}

/// Returns the code that notes a row which may be about to move to another partition. The statement's effect
/// on the row is seen when it is over. Moves that an earlier statement did not make are forgotten here.
fn before_move(g: i32, table: &Table) -> String {
    let key = KeyColumns::of(table);
    format!(
        include_str!("sql/trigger_move.sql"),
        g = g,
        of_old = is_noted(key, 'o', "old"),
        old_names = key.each(", ", |at| format!("o{at}")),
        new_names = key.each(", ", |at| format!("n{at}")),
        old_key = key.of_row("old"),
        new_key = key.of_row("new"),
    )
}

/// Returns the code for a row that went to another partition, or came from one.
fn moved(g: i32, table: &Table) -> String {
    let key = KeyColumns::of(table);
    let columns = table.key.iter().zip(1..);
    let has_key = columns
        .map(|(column, at)| format!("t.{} {EQUALS} ${at}", quoted(&column.name)).replace('%', "%%"))
        .collect::<Vec<_>>()
        .join(" AND ");
    let arrived = format!(
        "SELECT pg_catalog.count(*) > 0 FROM %s AS t WHERE {has_key} AND {} AND {} IS NOT DISTINCT FROM ${}",
        table.is_item("t").replace('%', "%%"),
        table.source_of("t").replace('%', "%%"),
        table.key.len() + 1
    );
    format!(
        include_str!("sql/trigger_moved.sql"),
        g = g,
        old = is_noted(key, 'o', "old"),
        new = is_noted(key, 'n', "new"),
        arrived = literal(&arrived),
        moving_key = key.each(", ", |at| format!("moving.n{at}")),
        set_key = key.each(", ", |at| format!("k{at} = moving.n{at}")),
        of_old = key.is_of("old"),
        of_new = key.each(" AND ", |at| format!("k{at} {EQUALS} moving.n{at}")),
        old_is_new = key.each(" ", |at| format!("old_{at} := new_{at};")),
        same_key = key.is_same(),
    )
}
