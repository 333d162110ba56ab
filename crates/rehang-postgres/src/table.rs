//! The application's own table: which rows and columns of it are items, and whether it can be a gallery.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rehang_core::{Error, Result};
use serde::{Deserialize, Serialize};
use tokio_postgres::error::SqlState;

use crate::connection::{Connection, Step, StepError};
use crate::guard::{self, EQUALS};

/// Choice of the table, columns and conditions that a gallery is made of.
///
/// | Name | Default | Purpose |
/// |---|---|---|
/// | `table` | | the table, `schema.name` or `name` |
/// | `id` | its primary key | the columns that say which item a row is |
/// | `source` | none | what can be embedded again: a column, or an SQL expression of the table's columns |
/// | `label` | none | a column with a class, tag or group |
/// | `payload` | all other columns | a `jsonb` or `json` column kept beside an item; searches filter by it |
/// | `vector` | none | the column with the vectors of the old model, `vector` or `halfvec` |
/// | `condition` | all rows | SQL condition on the table's columns; rows that do not meet it are no items |
/// | `published` | false | whether this table, or all, may be in a publication of logical replication |
/// | `column` | none | the new vectors move into it at the end ([`Examined::remarks`] tells of it) |
/// | `root_certificates` | none | PEM file of further authorities; the server then has to prove who it is |
/// | `keep_paid_s` | a day | seconds that the native vector of a row that is gone waits for the row |
///
/// [`Examined::remarks`]: rehang_store::Examined::remarks
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableOptions {
    /// The table, `schema.name` or `name`.
    pub table: String,
    /// The columns that say which item a row is; the table's primary key where there are none.
    #[serde(default)]
    pub id: Vec<String>,
    /// Source of an item, which can be embedded again: a column, or an SQL expression of the table's columns.
    pub source: Option<String>,
    /// A column with a class, tag or group.
    pub label: Option<String>,
    /// A column of type `jsonb` or `json`; all other columns where there is none.
    pub payload: Option<String>,
    /// The column with the vectors of the old model.
    pub vector: Option<String>,
    /// Condition on a row: rows that do not meet it are no items.
    pub condition: Option<String>,
    /// Whether the table may be in a publication of logical replication, or all tables may: somebody has
    /// seen to the subscribers.
    #[serde(skip)]
    pub published: bool,
    /// The column that the new vectors are to move into at the end.
    #[serde(skip)]
    pub column: Option<String>,
    /// A file in the PEM format with authorities that are trusted besides the system's.
    #[serde(skip)]
    pub root_certificates: Option<PathBuf>,
    /// How many seconds the native vector of a row that is gone waits for the row to come back. It is a day
    /// where nothing is said, and 0 keeps none.
    #[serde(skip)]
    pub keep_paid_s: Option<u32>,
}

/// Column of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) name: String,
    /// Number of the column in the server's catalogue, which stays whatever the column's name becomes.
    number: i16,
    /// Type of the column as SQL writes it; for a domain, the type that the domain is made of.
    pub(crate) kind: String,
    is_enum: bool,
    pub(crate) is_nullable: bool,
    pub(crate) is_generated: bool,
    /// Whether the column is generated when it is read: a trigger does not see it.
    pub(crate) is_virtual: bool,
    /// Collation of the column, where it is not the usual one of its type.
    pub(crate) collation: Option<String>,
    /// Whether that collation takes different letters for equal.
    pub(crate) has_equals: bool,
}

/// Table that was looked at and can be a gallery.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    pub(crate) oid: u32,
    /// Name of the table as SQL: `"schema"."name"`.
    pub(crate) qualified: String,
    /// The partitioned table that it is a part of, if it is one.
    pub(crate) root: Option<String>,
    /// Whether it is a partitioned table, whose rows lie in its partitions.
    pub(crate) is_partitioned: bool,
    pub(crate) options: TableOptions,
    pub(crate) key: Vec<Column>,
    /// The columns of key, source, label, payload and vector by name, with their numbers in
    /// the server's catalogue.
    pub(crate) numbers: BTreeMap<String, i16>,
    /// All columns with their numbers.
    pub(crate) columns: Vec<(String, i16)>,
    /// Columns that are neither key, source, label nor vector.
    pub(crate) others: Vec<Column>,
    /// Width of the vectors where their column says it.
    pub(crate) dimension: Option<usize>,
    /// Whether the column of vectors is of type `halfvec`.
    pub(crate) is_halfvec: bool,
    /// Whether the source is a column and no expression.
    pub(crate) is_source_column: bool,
    /// Number of rows, as the server estimates it.
    pub(crate) rows: u64,
}

/// Query for the first function in a check that may give something else for the same arguments at another
/// time: a volatile function, or one that is called stable. A stable function of the server's passes where it
/// uses its arguments and the session's settings alone, as most do.
const CHANGES_BY_ITSELF: &str = include_str!("sql/changes_by_itself.sql");

/// Types of key columns: their text is the same in every session, or is [made so](text_of).
const KEY_TYPES: [&str; 13] = [
    "smallint",
    "integer",
    "bigint",
    "uuid",
    "text",
    "numeric",
    "character varying",
    "character",
    "date",
    "timestamp",
    TIMESTAMP,
    TIMESTAMPTZ,
    "bytea",
];
const TIMESTAMP: &str = "timestamp without time zone";
const TIMESTAMPTZ: &str = "timestamp with time zone";

/// Writes a column of a key as text that is the same in every session. Dates and times are in ISO 8601, those
/// with a time zone in UTC, and bytes in hexadecimal digits.
fn text_of(column: &Column, row: &str) -> String {
    let value = format!("{row}.{}", quoted(&column.name));
    let iso = |value: &str| format!("(pg_catalog.to_jsonb({value}) OPERATOR(pg_catalog.#>>) '{{}}')");
    match column.kind.as_str() {
        kind if kind.starts_with("timestamp") && kind.ends_with("with time zone") => format!(
            "pg_catalog.concat({}, CASE WHEN pg_catalog.isfinite({value}) THEN 'Z' END)",
            iso(&format!("pg_catalog.timezone('UTC', {value})"))
        ),
        kind if kind == "date" || kind.starts_with("timestamp") => iso(&value),
        "bytea" => format!("pg_catalog.concat({}, pg_catalog.encode({value}, 'hex'))", literal("\\x")),
        _ => format!("{value}::text"),
    }
}

/// Quotes a name for SQL.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Quotes a text for SQL.
pub(crate) fn literal(text: &str) -> String {
    let doubled = text.replace('\'', "''");
    if doubled.contains('\\') {
        format!(" E'{}'", doubled.replace('\\', "\\\\"))
    } else {
        format!("'{doubled}'")
    }
}

impl Table {
    /// Looks at a table. Reads only.
    pub(crate) fn inspect(connection: &mut Connection, options: &TableOptions) -> Step<Self> {
        let relation = Relation::find(connection, options)?;
        relation.expect_table(connection, options)?;
        let columns = columns(connection, relation.oid)?;
        let column = |option: &str, name: &str| column_named(&columns, options, option, name);
        let key = key(connection, &relation, options, &columns)?;
        expect_safe_names(connection, relation.oid, options, &columns)?;
        if let Some(label) = &options.label {
            column("label", label)?;
        }
        if let Some(payload) = &options.payload {
            expect_json(column("payload", payload)?)?;
        }
        expect_own_types(connection, relation.oid, options)?;
        let vector = options.vector.as_deref().map(|name| column("vector", name)).transpose()?;
        let dimension = vector.map(vector_width).transpose()?.flatten();
        expect_no_quote(&relation, options, &key)?;
        let table = Self {
            oid: relation.oid,
            qualified: format!("{}.{}", quoted(&relation.schema), quoted(&relation.name)),
            is_partitioned: relation.is_partitioned(),
            root: relation.root,
            options: options.clone(),
            numbers: numbers_of(options, &key, &columns),
            columns: columns.iter().map(|column| (column.name.clone(), column.number)).collect(),
            others: others(options, &key, &columns),
            key,
            dimension,
            is_halfvec: vector.is_some_and(|column| type_of(column).starts_with("halfvec")),
            is_source_column: options.source.as_ref().is_some_and(|source| has_column(&columns, source)),
            rows: relation.rows.max(0.0) as u64,
        };
        table.expect_expressions(connection)?;
        Ok(table)
    }

    /// Fails where the source or the condition is no expression of one row. A wrong one fails here, and not
    /// in a trigger.
    fn expect_expressions(&self, connection: &mut Connection) -> Step<()> {
        if let Some(source) = &self.options.source {
            let expected = "a column, or an SQL expression of the table's columns";
            let option = ("source", source.as_str());
            self.expect_expression(connection, option, &self.source_of("t"), expected)?;
        }
        if let Some(condition) = &self.options.condition {
            let expected = "an SQL condition on the table's columns";
            let option = ("condition", condition.as_str());
            self.expect_expression(connection, option, &self.is_item("t"), expected)?;
        }
        Ok(())
    }

    /// Tries an expression on the table, as it stands in statements: `sql`, of the row `t`.
    fn expect_expression(
        &self,
        connection: &mut Connection,
        (option, text): (&str, &str),
        sql: &str,
        expected: &str,
    ) -> Step<()> {
        let refuse = |reason: &str| {
            // A name that is in no schema of the server's is not seen by the triggers either.
            let more = if reason.contains("does not exist") && !reason.starts_with("column") {
                "; what is not the server's own is named with its schema, as in public.unaccent(title) or title OPERATOR(public.||) body"
            } else {
                ""
            };
            Error::option(option, text, format!("{expected} ({reason}{more})"))
        };
        if text.contains("$rehang$") {
            return Err(refuse("$rehang$ is the quote of the triggers' function").into());
        }
        let probe = format!("SELECT {sql} FROM {} AS t LIMIT 0", self.qualified);
        connection.query(&probe, &[]).map_err(|failure| wrong_for_good(failure, refuse))?;
        // An expression has to make one value of a row: several would be an error of the trigger.
        let of_one = format!("SELECT count({sql}) FROM (SELECT (NULL::{}).*) AS t", self.qualified);
        if let Some(error) = refusal_of(connection, &of_one)?
            && error.code() == Some(&SqlState::CARDINALITY_VIOLATION)
        {
            return Err(refuse("it makes several values of a row").into());
        }
        // A function that the expression calls may name something that the gallery's triggers do not see.
        let of_first = format!("SELECT {sql} FROM {} AS t LIMIT 1", self.qualified);
        match refusal_of(connection, &of_first)? {
            Some(error) if error.code().is_some_and(|code| code.code().starts_with("42")) => {
                Err(wrong_for_good(error.into(), refuse))
            }
            _ => Ok(()),
        }
    }

    /// Builds the table of a gallery as the gallery's own tables know it, whatever became of it since. It has
    /// the key and the vectors by their present names, and nothing else of the rows. `columns` and the key
    /// are those of when the gallery was made. `None` where the table, or a column of its key, is gone.
    pub(crate) fn remembered(
        connection: &mut Connection,
        (gallery, key_was): (i32, &[String]),
        options: &TableOptions,
        oid: u32,
        columns: &BTreeMap<String, i16>,
    ) -> Step<Option<Self>> {
        let table_row = connection.query_opt(
            "SELECT format('%I.%I', n.nspname, c.relname), c.relkind = 'p' FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
             WHERE c.oid = $1",
            &[&oid],
        )?;
        let Some(table_row) = table_row else { return Ok(None) };
        let present_columns = self::columns(connection, oid)?;
        let of_now = |was: &String| {
            present_columns
                .iter()
                .find(|column| columns.get(was) == Some(&column.number))
                .map(|column| column.name.clone())
        };
        let names: Vec<String> = key_was.iter().filter_map(of_now).collect();
        let mut key = Vec::new();
        for row in &connection.query(
            "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = to_regclass($1) AND attname ~ '^k[0-9]+$'
             AND NOT attisdropped ORDER BY attnum",
            &[&format!("rehang.item_{gallery}")],
        )? {
            let Some(name) = names.get(key.len()) else { return Ok(None) };
            key.push(Column {
                name: name.clone(),
                number: 0,
                kind: row.try_get(0)?,
                is_enum: false,
                is_nullable: false,
                is_generated: false,
                is_virtual: false,
                collation: None,
                has_equals: false,
            });
        }
        let vector = options.vector.as_ref().and_then(of_now);
        let column = present_columns.iter().find(|column| Some(&column.name) == vector.as_ref());
        let is_halfvec = column.is_some_and(|column| type_of(column).starts_with("halfvec"));
        let dimension = column.and_then(|column| vector_width(column).ok().flatten());
        Ok(Some(Self {
            oid,
            qualified: table_row.try_get(0)?,
            root: None,
            is_partitioned: table_row.try_get(1)?,
            options: TableOptions { table: options.table.clone(), vector, ..TableOptions::default() },
            key,
            numbers: columns.clone(),
            columns: Vec::new(),
            others: Vec::new(),
            dimension,
            is_halfvec,
            is_source_column: false,
            rows: 0,
        }))
    }

    /// Fails where a source or a condition depends on more than its row. No trigger sees a change elsewhere,
    /// so the vector of a source that is no more would stay. The expression is made a check on a scratch
    /// table, which is gone when this returns: the server itself refuses most such expressions. Functions
    /// that a check may call although they change by themselves are found in what the server made of it.
    pub(crate) fn expect_of_its_row(&self, connection: &mut Connection) -> Step<()> {
        let source = self.options.source.as_ref().filter(|_| !self.is_source_column);
        for (option, text) in [("source", source), ("condition", self.options.condition.as_ref())] {
            let Some(text) = text else { continue };
            let refuse = |reason: &str| {
                let expected = format!(
                    "made of its own row alone, since triggers see no other change ({reason}); write what it depends on into a column of the \
                     table, and mark a function of your own IMMUTABLE if its arguments are all that it goes by"
                );
                Error::option(option, text, expected)
            };
            connection.batch("SAVEPOINT scratch")?;
            let tried = connection
                .batch(&format!(
                    "DROP TABLE IF EXISTS pg_temp.this; CREATE TEMPORARY TABLE this (LIKE {});
                     ALTER TABLE pg_temp.this ADD CONSTRAINT of_its_row CHECK (({text}\n) IS NOT NULL)",
                    self.qualified
                ))
                .and_then(|()| connection.query_opt(CHANGES_BY_ITSELF, &[]));
            connection.batch("ROLLBACK TO scratch")?;
            let row = tried.map_err(|failure| wrong_for_good(failure, refuse))?;
            if let Some(row) = row {
                return Err(refuse(&format!("{} changes by itself", row.try_get::<_, String>(0)?)).into());
            }
        }
        Ok(())
    }

    /// Returns the columns that the function of the triggers reads, by their present names.
    pub(crate) fn trigger_columns(&self) -> impl Iterator<Item = &(String, i16)> {
        let is_read = |column: &str| {
            self.key.iter().any(|key| key.name == column)
                || self.options.vector.as_deref() == Some(column)
                || [&self.options.source, &self.options.condition]
                    .into_iter()
                    .flatten()
                    .any(|text| names(text, column))
        };
        self.columns.iter().filter(move |(name, _)| is_read(name) && !name.contains("$rehang$"))
    }

    /// Returns the source of a row, as text. Two sources are the same only letter by letter, whatever the
    /// collation of the column says.
    pub(crate) fn source_of(&self, row: &str) -> String {
        match &self.options.source {
            None => "NULL::text".into(),
            Some(column) if self.is_source_column => {
                format!("{row}.{}::text COLLATE pg_catalog.\"C\"", quoted(column))
            }
            // The expression sees the row's columns alone. It ends with its line, since it
            // may end with a comment.
            Some(expression) => {
                format!(
                    "(SELECT ({expression}\n)::text FROM (SELECT {row}.*) AS this) COLLATE pg_catalog.\"C\""
                )
            }
        }
    }

    /// Returns the condition that a row is an item.
    pub(crate) fn is_item(&self, row: &str) -> String {
        match &self.options.condition {
            None => "true".into(),
            Some(condition) => {
                format!("coalesce((SELECT ({condition}\n) FROM (SELECT {row}.*) AS this), false)")
            }
        }
    }

    pub(crate) fn label_of(&self, row: &str) -> String {
        self.options
            .label
            .as_ref()
            .map_or("NULL::text".into(), |label| format!("{row}.{}::text", quoted(label)))
    }

    /// Returns the payload of an item as the text of JSON: as it was written, since what the server makes of
    /// a `json` may be an error of its own.
    pub(crate) fn payload_of(&self, row: &str) -> String {
        if let Some(payload) = &self.options.payload {
            return format!("{row}.{}::text", quoted(payload));
        }
        if self.others.is_empty() {
            return "NULL::text".into();
        }
        let columns: Vec<String> =
            self.others.iter().map(|column| format!("{row}.{}", quoted(&column.name))).collect();
        format!("(SELECT to_json(this)::text FROM (SELECT {}) AS this)", columns.join(", "))
    }

    /// Returns one field of a payload by its name, which SQL has as `placeholder`, as `jsonb`. No
    /// other field is looked at.
    pub(crate) fn field_of(&self, row: &str, name: &str, placeholder: &str) -> String {
        if let Some(payload) = &self.options.payload {
            return format!("({row}.{}::jsonb -> {placeholder})", quoted(payload));
        }
        let column = self.others.iter().find(|column| column.name == name);
        column.map_or("NULL::jsonb".into(), |column| {
            format!("coalesce(to_jsonb({row}.{}), 'null')", quoted(&column.name))
        })
    }

    /// Returns the id of an item as text: its key, or a JSON list where the key has several columns.
    pub(crate) fn id_of(&self, row: &str) -> String {
        match &self.key[..] {
            [column] => text_of(column, row),
            several => {
                let texts: Vec<String> = several.iter().map(|column| text_of(column, row)).collect();
                format!("jsonb_build_array({})::text", texts.join(", "))
            }
        }
    }

    /// Returns the hash of the old vector of a row, which tells it from another one.
    pub(crate) fn vector_hash(&self, row: &str) -> String {
        let hash_of =
            |column: &String| hash_of_vector(&format!("{row}.{}::pg_catalog.float4[]", quoted(column)));
        self.options.vector.as_ref().map_or("NULL::bigint".into(), hash_of)
    }

    /// Returns the condition that an item has been seen with the old vector that its row has.
    pub(crate) fn has_vector_of(&self, item: &str, row: &str) -> String {
        format!("{item}.vector_hash IS NOT DISTINCT FROM {}", self.vector_hash(row))
    }

    /// Returns the columns of the key in the gallery's own tables: `k1 bigint NOT NULL, …`.
    pub(crate) fn key_columns(&self) -> String {
        self.key_columns_as('k')
    }

    /// Returns the columns of the key as [`Table::key_columns`] has them, with another letter than `k`.
    pub(crate) fn key_columns_as(&self, letter: char) -> String {
        let columns = self.key.iter().zip(1..);
        let definition = |(column, at): (&Column, usize)| {
            let collation =
                column.collation.iter().map(|collation| format!(" COLLATE {collation}")).collect::<String>();
            format!("{letter}{at} {}{collation} NOT NULL, ", column.kind)
        };
        columns.map(definition).collect()
    }

    /// Returns the names of the key's columns in the gallery's own tables: `k1, k2`.
    pub(crate) fn key_names(&self) -> String {
        let names: Vec<String> = (1..=self.key.len()).map(|at| format!("k{at}")).collect();
        names.join(", ")
    }

    /// Returns the columns of the key of a row: `t."id", t."part"`.
    pub(crate) fn key_of(&self, row: &str) -> String {
        let names: Vec<String> =
            self.key.iter().map(|column| format!("{row}.{}", quoted(&column.name))).collect();
        names.join(", ")
    }

    /// Returns the condition that a row belongs to an item: `i.k1 = t."id" AND …`.
    pub(crate) fn is_of(&self, item: &str, row: &str) -> String {
        let columns = self.key.iter().zip(1..);
        let equal: Vec<String> = columns
            .map(|(column, at)| format!("{item}.k{at} {EQUALS} {row}.{}", quoted(&column.name)))
            .collect();
        equal.join(" AND ")
    }

    /// Returns the values of the key's columns from the text of an id.
    pub(crate) fn key_from(&self, id: &str) -> Vec<String> {
        match &self.key[..] {
            [column] => vec![format!("({id})::{}", column.kind)],
            several => {
                let columns = several.iter().enumerate();
                columns.map(|(at, column)| format!("(({id})::jsonb ->> {at})::{}", column.kind)).collect()
            }
        }
    }
}

/// Returns the hash of the source of a row, which tells it from another one. A partitioned table needs it:
/// rows come and go with their partitions, and no trigger sees it.
pub(crate) fn hash_of_source(source: &str) -> String {
    format!("pg_catalog.hashtextextended(({source}) COLLATE pg_catalog.\"C\", 0)")
}

/// Returns the hash of a vector's numbers, which tells the vector from another one.
pub(crate) fn hash_of_vector(numbers: &str) -> String {
    format!(
        "pg_catalog.hashtextextended(pg_catalog.encode(pg_catalog.array_send({numbers}), 'base64') COLLATE pg_catalog.\"C\", 0)"
    )
}

/// Relation of the database that a table's name leads to, as the server's catalogue has it.
struct Relation {
    oid: u32,
    /// Letter of the catalogue for what it is: `r` for a table, `p` for a partitioned one.
    kind: String,
    /// Letter of the catalogue for how it lasts: `t` for temporary, `u` for not logged.
    persistence: String,
    schema: String,
    name: String,
    /// Whether row security hides rows of it from the role of the connection.
    hides_rows: bool,
    /// Number of rows, as the server estimates it.
    rows: f64,
    /// Whether it is a table that others inherit from.
    has_heirs: bool,
    /// The partitioned table that it is a part of, if it is one.
    root: Option<String>,
    /// Role of the connection.
    role: String,
}

impl Relation {
    /// Finds the relation that the application means by the table's name.
    fn find(connection: &mut Connection, options: &TableOptions) -> Step<Self> {
        // The name is looked up as the application would look it up.
        guard::see_as_application(connection)?;
        let oid = connection
            .query_one("SELECT pg_catalog.to_regclass($1)::pg_catalog.oid", &[&options.table])
            .map_err(|failure| {
                let expected = "a name as SQL writes it: schema.name or name, each in double quotes where it is not of small letters";
                wrong_for_good(failure, |message| Error::option("table", &options.table, format!("{expected} ({message})")))
            })?
            .try_get::<_, Option<u32>>(0)?;
        guard::see_as_ours(connection)?;
        let row = connection.query_opt(
            "SELECT c.oid, c.relkind::text, c.relpersistence::text, n.nspname::text, c.relname::text, row_security_active(c.oid) AS hides_rows,
                 coalesce((SELECT sum(greatest(part.reltuples, 0)) FROM pg_partition_tree(c.oid) AS p JOIN pg_class AS part ON part.oid = p.relid), c.reltuples)::float8 AS rows,
                 EXISTS (SELECT 1 FROM pg_inherits WHERE inhparent = c.oid) AND c.relkind = 'r' AS has_heirs,
                 (SELECT format('%I.%I', n.nspname, root.relname) FROM pg_class AS root JOIN pg_namespace AS n ON n.oid = root.relnamespace
                     WHERE root.oid = pg_partition_root(c.oid) AND c.relispartition) AS root, current_user::text AS role
             FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1",
            &[&oid],
        )?;
        let Some(row) = row else { return Err(no_such_table(connection, &options.table)?.into()) };
        Ok(Self {
            oid: row.try_get("oid")?,
            kind: row.try_get("relkind")?,
            persistence: row.try_get("relpersistence")?,
            schema: row.try_get("nspname")?,
            name: row.try_get("relname")?,
            hides_rows: row.try_get("hides_rows")?,
            rows: row.try_get("rows")?,
            has_heirs: row.try_get("has_heirs")?,
            root: row.try_get("root")?,
            role: row.try_get("role")?,
        })
    }

    /// Whether its rows lie in partitions.
    fn is_partitioned(&self) -> bool {
        self.kind == "p"
    }

    /// Fails where it is no table of this server that lasts, or other rows are seen of it than its own.
    fn expect_table(&self, connection: &mut Connection, options: &TableOptions) -> Step<()> {
        let refuse = |why: &str| -> Step<()> { Err(Error::option("table", &options.table, why).into()) };
        match (self.kind.as_str(), &self.root) {
            ("r", _) => {}
            ("p", None) => expect_partitions(connection, options, self.oid)?,
            ("p", Some(root)) => {
                return refuse(&format!(
                    "a whole table or a partition without partitions of its own: name {root}, which this one is a part of, or one of the tables that \
                     its rows lie in"
                ));
            }
            ("v" | "m", _) => return refuse("a table, not a view: name the table that the view reads"),
            ("f", _) => return refuse("a table of this server, not a foreign one"),
            _ => return refuse("a table"),
        }
        match self.persistence.as_str() {
            "t" => return refuse("a table that lasts, not a temporary one"),
            "u" => {
                return refuse(
                    "a table that is logged (ALTER TABLE … SET LOGGED): a crash empties an unlogged one, and its gallery would go on without it",
                );
            }
            _ => {}
        }
        if self.has_heirs {
            return refuse(
                "a table that no other inherits from: rows of the others are seen through it and are not its own",
            );
        }
        if self.hides_rows {
            return refuse(&format!(
                "a table whose row security does not hold for {}, since a gallery has to see every row: connect as the owner of the table, with NO FORCE \
                 ROW LEVEL SECURITY, or as a role with BYPASSRLS. What other roles find by rehang.search is what their policies show them",
                self.role
            ));
        }
        Ok(())
    }
}

/// Returns the error for a name that no table has. Where one is written like it, the error says how: capital
/// letters are lost where a name is not quoted.
fn no_such_table(connection: &mut Connection, table: &str) -> Step<Error> {
    let like = connection.query_opt(
        "SELECT concat(CASE WHEN n.nspname <> 'public' THEN format('%I.', n.nspname) END, format('%I', c.relname)) FROM pg_class AS c
             JOIN pg_namespace AS n ON n.oid = c.relnamespace
         WHERE c.relkind IN ('r', 'p') AND n.nspname !~ '^pg_' AND lower(c.relname) = lower($1) ORDER BY c.relname = $1 DESC, 1 LIMIT 1",
        &[&table.rsplit('.').next().unwrap_or_default().trim_matches('"')],
    )?;
    let place = match like.map(|row| row.try_get::<_, String>(0)).transpose()? {
        Some(like) => format!("the database, where one is written '{like}'"),
        None => "the database".to_owned(),
    };
    Ok(Error::not_found("table", table, place))
}

/// Fails where a partitioned table has partitions that are no table of this server, or
/// that a crash would empty.
fn expect_partitions(connection: &mut Connection, options: &TableOptions, oid: u32) -> Step<()> {
    let other = connection.query_opt(
        "SELECT format('%I.%I', n.nspname, c.relname), c.relkind = 'f' FROM pg_partition_tree($1::oid::regclass) AS p JOIN pg_class AS c ON c.oid = p.relid
             JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE p.isleaf AND (c.relkind <> 'r' OR c.relpersistence <> 'p') ORDER BY 1 LIMIT 1",
        &[&oid],
    )?;
    let Some(other) = other else { return Ok(()) };
    let name: String = other.try_get(0)?;
    let why = if other.try_get(1)? {
        format!("a table whose partitions are all of this server: {name} is a foreign one")
    } else {
        format!("a table whose partitions are all logged: a crash empties {name} (ALTER TABLE … SET LOGGED)")
    };
    Err(Error::option("table", &options.table, why).into())
}

/// Whether an expression may name a column or a schema.
fn names(expression: &str, column: &str) -> bool {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    let (expression, column) = (expression.to_lowercase(), column.to_lowercase());
    expression.match_indices(&column).any(|(at, matched)| {
        !expression[..at].ends_with(is_part) && !expression[at + matched.len()..].starts_with(is_part)
    })
}

/// Turns what the server says of a statement into an invalid option, where the caller's own words in the
/// statement are what is wrong.
fn wrong_for_good(failure: StepError, as_option: impl FnOnce(&str) -> Error) -> StepError {
    let StepError::Server(error) = &failure else { return failure };
    match error.as_db_error() {
        // The statement takes parameters, which the expression does not have.
        Some(report) if *report.code() == SqlState::PROTOCOL_VIOLATION => as_option(report.message()).into(),
        // 42: syntax and names; 22: values; 0A: what cannot be there. A missing right is not
        // the expression's fault.
        Some(report)
            if ["42", "22", "0A"].contains(&&report.code().code()[..2])
                && *report.code() != SqlState::INSUFFICIENT_PRIVILEGE =>
        {
            as_option(report.message().lines().next().unwrap_or_default()).into()
        }
        _ => failure,
    }
}

/// Whether a type is one of pgvector's.
fn is_vector(kind: &str) -> bool {
    let name = kind.rsplit('.').next().unwrap_or(kind);
    ["vector", "halfvec", "sparsevec"]
        .iter()
        .any(|vector_kind| name == *vector_kind || name.starts_with(&format!("{vector_kind}(")))
}

/// Returns the type of a column, without the schema that the type is in.
fn type_of(column: &Column) -> &str {
    column.kind.rsplit('.').next().unwrap_or(&column.kind)
}

/// Returns the width that a column of vectors declares; `None` where it takes any.
fn vector_width(column: &Column) -> Result<Option<usize>> {
    let kind = type_of(column);
    let width = kind.strip_prefix("vector").or_else(|| kind.strip_prefix("halfvec"));
    let wrong = || {
        let (name, kind) = (&column.name, type_of(column));
        let cast = match kind {
            "jsonb" | "json" => Some(format!("(\"{name}\"::text)")),
            kind if kind == "text" || kind.ends_with("[]") => Some(format!("\"{name}\"")),
            _ => None,
        };
        if kind.strip_suffix("[]").is_some_and(is_vector) {
            let way = format!(
                "a column of type vector or halfvec, not {kind}: an item has one vector. A table with a row for each makes items of them: SELECT …, part, \
                 vector FROM …, unnest(\"{name}\") WITH ORDINALITY AS u(vector, part), with a key over yours and part"
            );
            return Error::option("vector", name, way);
        }
        let way = cast.map_or_else(String::new, |cast| {
            format!(
                "; a column that the server keeps makes one of it: ALTER TABLE … ADD COLUMN vectors vector(N) \
                 GENERATED ALWAYS AS ({cast}::vector(N)) STORED, with their width for N"
            )
        });
        Error::option("vector", name, format!("a column of type vector or halfvec, not {kind}{way}"))
    };
    match width.ok_or_else(wrong)? {
        "" => Ok(None),
        width => width.trim_matches(['(', ')']).parse().map(Some).map_err(|_| wrong()),
    }
}

/// Fails where the source or the condition names a schema in which others may make something, or a column
/// that triggers do not see.
fn expect_safe_names(
    connection: &mut Connection,
    oid: u32,
    options: &TableOptions,
    columns: &[Column],
) -> Step<()> {
    let open = guard::open_schemas(connection, oid)?;
    for (option, text) in [("source", &options.source), ("condition", &options.condition)] {
        let Some(text) = text else { continue };
        let is_column = option == "source" && has_column(columns, text);
        if let Some((schema, who)) = open.iter().find(|(schema, _)| names(text, schema))
            && !is_column
        {
            let why = format!(
                "no name of the schema {schema}, in which {who} may make what fits better and would be called with our rights: REVOKE CREATE \
                 ON SCHEMA {} FROM {who}, or name something of another schema",
                quoted(schema)
            );
            return Err(Error::option(option, text, why).into());
        }
        if let Some(column) = columns.iter().find(|column| column.is_virtual && names(text, &column.name)) {
            let why = format!(
                "no virtual column ({:?}), which triggers do not see; give the expression that it is generated by",
                column.name
            );
            return Err(Error::option(option, text, why).into());
        }
    }
    Ok(())
}

/// Fails where a column of payloads is not of JSON.
fn expect_json(payload: &Column) -> Result<()> {
    if ["jsonb", "json"].contains(&payload.kind.as_str()) {
        return Ok(());
    }
    let expected = format!("a column of type jsonb or json, not {}", payload.kind);
    Err(Error::option("payload", &payload.name, expected))
}

/// Fails where a column of the table has a type of another role's.
fn expect_own_types(connection: &mut Connection, oid: u32, options: &TableOptions) -> Step<()> {
    let Some((column, owner)) = guard::strangers_types(connection, oid)?.into_iter().next() else {
        return Ok(());
    };
    let why = format!(
        "one whose types belong to its owner, to the role that adopts it or to a superuser: that of column {column:?} belongs to {owner}, \
         whose casts would run with our rights"
    );
    Err(Error::option("table", &options.table, why).into())
}

/// Fails where a name that stands in our functions would end their quote.
fn expect_no_quote(relation: &Relation, options: &TableOptions, key: &[Column]) -> Result<()> {
    let used = key.iter().map(|column| &column.name).chain(&options.vector);
    let collations = key.iter().filter_map(|column| column.collation.as_ref());
    let of_relation = [&relation.schema, &relation.name].into_iter().chain(&relation.root);
    if !used.chain(collations).chain(of_relation).any(|name| name.contains("$rehang$")) {
        return Ok(());
    }
    let why = "one without $rehang$, the quote of our functions, in its name, in that of a column that is used, or of a collation of its key";
    Err(Error::option("table", &options.table, why))
}

/// Finds the numbers of the columns of key, source, label, payload and vector, by their names.
fn numbers_of(options: &TableOptions, key: &[Column], columns: &[Column]) -> BTreeMap<String, i16> {
    let named = [&options.source, &options.label, &options.payload, &options.vector];
    let named: Vec<&String> =
        key.iter().map(|column| &column.name).chain(named.into_iter().flatten()).collect();
    columns
        .iter()
        .filter(|column| named.contains(&&column.name))
        .map(|column| (column.name.clone(), column.number))
        .collect()
}

/// Lists the columns that are neither key, source, label nor vectors.
fn others(options: &TableOptions, key: &[Column], columns: &[Column]) -> Vec<Column> {
    let named = [&options.source, &options.label, &options.vector];
    let used: Vec<&String> =
        key.iter().map(|column| &column.name).chain(named.into_iter().flatten()).collect();
    columns
        .iter()
        .filter(|column| !used.contains(&&column.name) && !is_vector(&column.kind))
        .cloned()
        .collect()
}

/// Whether a text is the name of a column.
fn has_column(columns: &[Column], name: &str) -> bool {
    columns.iter().any(|column| column.name == name)
}

/// Finds a column that an option names.
fn column_named<'a>(
    columns: &'a [Column],
    options: &TableOptions,
    option: &str,
    name: &str,
) -> Result<&'a Column> {
    columns.iter().find(|column| column.name == name).ok_or_else(|| {
        let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
        Error::option(option, name, format!("a column of {}: {}", options.table, names.join(", ")))
    })
}

/// Tries a statement, and returns the error of the server's where it refuses it. The transaction goes on.
fn refusal_of(connection: &mut Connection, sql: &str) -> Step<Option<tokio_postgres::Error>> {
    connection.batch("SAVEPOINT probe")?;
    let tried = connection.query(sql, &[]);
    connection.batch("ROLLBACK TO probe")?;
    Ok(match tried {
        Err(StepError::Server(error)) => Some(error),
        _ => None,
    })
}

/// Reads the columns of a table.
fn columns(connection: &mut Connection, oid: u32) -> Step<Vec<Column>> {
    let rows = connection.query(
        "SELECT attname::text, CASE typtype WHEN 'd' THEN format_type(typbasetype, typtypmod) ELSE format_type(atttypid, atttypmod) END AS kind,
             NOT attnotnull AS is_nullable, attgenerated <> '' AS is_generated, attgenerated = 'v' AS is_virtual,
             (SELECT format('%I.%I', n.nspname, c.collname) FROM pg_collation c JOIN pg_namespace n ON n.oid = c.collnamespace
                 WHERE c.oid = attcollation AND attcollation <> (SELECT typcollation FROM pg_type WHERE pg_type.oid = atttypid)) AS collation, attnum,
             EXISTS (SELECT 1 FROM pg_collation AS c WHERE c.oid = attcollation AND NOT c.collisdeterministic) AS has_equals, typtype = 'e' AS is_enum
         FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        &[&oid],
    )?;
    rows.iter()
        .map(|row| {
            Ok(Column {
                name: row.try_get("attname")?,
                kind: row.try_get("kind")?,
                is_nullable: row.try_get("is_nullable")?,
                is_generated: row.try_get("is_generated")?,
                is_virtual: row.try_get("is_virtual")?,
                collation: row.try_get("collation")?,
                number: row.try_get("attnum")?,
                has_equals: row.try_get("has_equals")?,
                is_enum: row.try_get("is_enum")?,
            })
        })
        .collect()
}

/// Expected key of a partitioned table, as errors say it.
const OF_A_PARTITIONED: &str = "columns with a primary key or a unique index over them on the whole, which has the columns of the partition key in it; \
     where the server takes none, as over an expression, each partition may be a gallery of its own";

/// Reads the columns that say which item a row is: those that were named, which have to be unique and never
/// NULL, or the primary key.
fn key(
    connection: &mut Connection,
    relation: &Relation,
    options: &TableOptions,
    columns: &[Column],
) -> Step<Vec<Column>> {
    let indexes = unique_indexes(connection, relation.oid)?;
    for name in &options.id {
        column_named(columns, options, "id", name)?;
    }
    let names = if options.id.is_empty() {
        primary_key(&indexes, relation, options)?
    } else {
        expect_unique(&indexes, relation, options)?;
        options.id.clone()
    };
    let mut key = Vec::new();
    for name in &names {
        let column = column_named(columns, options, "id", name)?;
        expect_key_column(column, options)?;
        key.push(column.clone());
    }
    Ok(key)
}

/// Unique index over columns of a table.
struct UniqueIndex {
    is_primary: bool,
    columns: Vec<String>,
    /// Whether no two rows share a key for a while. Where they may, the gallery could not tell which row a
    /// change is about.
    is_immediate: bool,
}

/// Expected key, as errors say it, where two rows may share one for a while.
const NOT_DEFERRABLE: &str = "columns whose primary key or unique index is not deferrable";

/// Reads the unique indexes of a table over columns alone and all of its rows.
fn unique_indexes(connection: &mut Connection, oid: u32) -> Step<Vec<UniqueIndex>> {
    let rows = connection.query(
        "SELECT i.indisprimary, (SELECT array_agg(a.attname::text ORDER BY k.at)
                 FROM unnest(i.indkey[0:i.indnkeyatts - 1]) WITH ORDINALITY AS k(number, at)
                 JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number), i.indimmediate
         FROM pg_index i WHERE i.indrelid = $1 AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL",
        &[&oid],
    )?;
    rows.iter()
        .map(|row| {
            Ok(UniqueIndex {
                is_primary: row.try_get(0)?,
                columns: row.try_get(1)?,
                is_immediate: row.try_get(2)?,
            })
        })
        .collect()
}

/// Returns the columns of the primary key.
fn primary_key(indexes: &[UniqueIndex], relation: &Relation, options: &TableOptions) -> Result<Vec<String>> {
    let primary = indexes.iter().find(|index| index.is_primary).ok_or_else(|| {
        let expected = if relation.is_partitioned() {
            OF_A_PARTITIONED
        } else {
            "a table with a primary key, or `id` with columns that are unique and never NULL"
        };
        Error::option("table", &options.table, expected)
    })?;
    if !primary.is_immediate {
        return Err(Error::option("table", &options.table, format!("a table with {NOT_DEFERRABLE}")));
    }
    Ok(primary.columns.clone())
}

/// Fails where no index says that the columns which were named are unique.
fn expect_unique(indexes: &[UniqueIndex], relation: &Relation, options: &TableOptions) -> Result<()> {
    let sorted = |names: &[String]| {
        let mut names = names.to_vec();
        names.sort();
        names
    };
    let wanted = sorted(&options.id);
    let over_them: Vec<&UniqueIndex> =
        indexes.iter().filter(|index| sorted(&index.columns) == wanted).collect();
    if over_them.iter().any(|index| index.is_immediate) {
        return Ok(());
    }
    let expected = match &over_them[..] {
        [] if relation.is_partitioned() => OF_A_PARTITIONED,
        [] => "columns with a primary key or a unique index over them",
        _ => NOT_DEFERRABLE,
    };
    Err(Error::option("id", options.id.join(", "), expected))
}

/// Fails where a column is none of a key's: its text has to be the same in every session, and never NULL.
fn expect_key_column(column: &Column, options: &TableOptions) -> Result<()> {
    let name = &column.name;
    let base = column.kind.split('(').next().unwrap_or_default().trim_end();
    if !KEY_TYPES.contains(&base) && !column.is_enum {
        let (kind, text) = (type_of(column), quoted(&format!("{name}_text")));
        let expected = format!(
            "a column of one of the types {}, or of an enum, not {kind}; a column that the server keeps may be the id: ALTER TABLE {} ADD COLUMN {text} \
             text NOT NULL UNIQUE GENERATED ALWAYS AS ({}::text) STORED",
            KEY_TYPES.join(", "),
            options.table,
            quoted(name)
        );
        return Err(Error::option("id", name, expected));
    }
    if column.is_nullable {
        return Err(Error::option("id", name, "a column that is never NULL"));
    }
    Ok(())
}
