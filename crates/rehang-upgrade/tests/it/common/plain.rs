//! Application that knows nothing of rehang: it writes what `docs/store.md` lets it write through plain SQL,
//! and knows its items after that.

use std::collections::BTreeMap;

use rehang_store::Revision;
use rusqlite::{OptionalExtension as _, Transaction, params};

use super::{id, new_model, new_space, old_model, old_space};

/// Knowledge of an application about one of its items.
#[derive(Clone)]
pub struct Known {
    pub source: String,
    pub revision: Revision,
    pub has_old: bool,
}

/// Space that a vector is written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    Old,
    New,
}

/// Statement of an application about an item.
#[derive(Debug, Clone, Copy)]
pub enum Statement {
    /// A new item with its vector, or a new source and vector of an item that is there.
    Insert,
    /// A new source: every vector is removed.
    Source,
    /// The file behind the same path has changed.
    Touch,
    /// `INSERT` of a vector: the first one, or in the place of the one that is there.
    Vector(Of),
    /// `UPDATE` of a vector, if there is one.
    Update(Of),
    /// Update of the label, which is no content.
    Label,
    Delete,
    /// `INSERT OR REPLACE`: another item with the same id.
    Replace,
}

#[derive(Debug, Clone, Copy)]
pub struct Plain {
    pub number: usize,
    pub statement: Statement,
}

impl Plain {
    /// Performs the statement, and updates `items` to match. Returns whether the content that its source
    /// names has changed.
    pub fn perform(
        &self,
        sql: &Transaction<'_>,
        items: &mut BTreeMap<String, Known>,
        version: usize,
    ) -> rusqlite::Result<bool> {
        let id = id(self.number);
        let there = items.get(&id).cloned();
        let source = format!("source {} version {version}", self.number);
        let vector_of = |of, source: &str| match of {
            Of::Old => (table(sql, &old_space().name), old_model(source)),
            Of::New => (table(sql, &new_space().name), new_model(source)),
        };
        // The item as it must have become, and whether its revision is another one.
        let (known, changed) = match (self.statement, there.clone()) {
            (Statement::Insert, _) => {
                let upsert = "INSERT INTO item (id, source) VALUES (?1, ?2) ON CONFLICT (id) DO UPDATE SET source = excluded.source";
                sql.execute(upsert, [&id, &source])?;
                let has_old = vector_of(Of::Old, &source).0?.is_some();
                let (table, vector) = vector_of(if has_old { Of::Old } else { Of::New }, &source);
                insert(sql, &table?.expect("one of the spaces is there"), &id, &vector)?;
                (Some(Known { source, revision: 0, has_old }), true)
            }
            (Statement::Replace, _) => {
                sql.execute("INSERT OR REPLACE INTO item (id, source) VALUES (?1, ?2)", [&id, &source])?;
                (Some(Known { source, revision: 0, has_old: false }), true)
            }
            (_, None) => (None, false),
            (Statement::Delete, Some(_)) => {
                sql.execute("DELETE FROM item WHERE id = ?1", [&id])?;
                (None, true)
            }
            (Statement::Source, Some(known)) => {
                sql.execute("UPDATE item SET source = ?2 WHERE id = ?1", [&id, &source])?;
                (Some(Known { source, has_old: false, ..known }), true)
            }
            (Statement::Touch, Some(known)) => {
                sql.execute("UPDATE item SET revision = 0 WHERE id = ?1", [&id])?;
                (Some(Known { has_old: false, ..known }), true)
            }
            (Statement::Label, Some(known)) => {
                let labelled =
                    "UPDATE item SET label = ?2, payload = json_object('version', ?2) WHERE id = ?1";
                sql.execute(labelled, params![id, version])?;
                (Some(known), false)
            }
            (Statement::Vector(of) | Statement::Update(of), Some(known)) => {
                let (table, vector) = vector_of(of, &known.source);
                match table? {
                    None => (Some(known), false),
                    Some(table) => {
                        let had = has(sql, &table, &id)?;
                        assert!(of == Of::New || had == known.has_old, "{id} in {table}");
                        if matches!(self.statement, Statement::Vector(_)) {
                            insert(sql, &table, &id, &vector)?;
                        } else {
                            update(sql, &table, &id, &vector)?;
                        }
                        let first = !had && matches!(self.statement, Statement::Vector(_));
                        // Another vector is another content. It removes the vectors beside it, except those
                        // that were made from the source.
                        let has_old = match of {
                            Of::Old => had || first,
                            Of::New => known.has_old && !had,
                        };
                        (Some(Known { has_old, ..known }), had)
                    }
                }
            }
        };
        let revision = sql
            .query_row("SELECT revision FROM item WHERE id = ?1", [&id], |row| row.get(0))
            .optional()?
            .map(|revision: i64| revision as Revision);
        assert_eq!(revision.is_some(), known.is_some(), "{self:?}");
        let same = there.as_ref().map(|known| known.revision) == revision;
        assert_eq!(changed, !same, "the revision after {self:?}");
        let again = changed && matches!(self.statement, Statement::Touch);
        match known.zip(revision) {
            Some((known, revision)) => drop(items.insert(id, Known { revision, ..known })),
            None => drop(items.remove(&id)),
        }
        Ok(again)
    }
}

/// Returns the table of a space's vectors, if the space is there.
fn table(sql: &Transaction<'_>, space: &str) -> rusqlite::Result<Option<String>> {
    sql.query_row("SELECT number FROM space WHERE name = ?1", [space], |row| row.get(0))
        .optional()
        .map(|number: Option<i64>| number.map(|number| format!("vector_{number}")))
}

fn has(sql: &Transaction<'_>, table: &str, id: &str) -> rusqlite::Result<bool> {
    let select =
        format!("SELECT EXISTS (SELECT 1 FROM {table} WHERE item = (SELECT key FROM item WHERE id = ?1))");
    sql.query_row(&select, [id], |row| row.get(0))
}

fn insert(sql: &Transaction<'_>, table: &str, id: &str, vector: &[f32]) -> rusqlite::Result<usize> {
    let insert = format!("INSERT INTO {table} (item, value) SELECT key, ?2 FROM item WHERE id = ?1");
    sql.execute(&insert, params![id, bytes(vector)])
}

fn update(sql: &Transaction<'_>, table: &str, id: &str, vector: &[f32]) -> rusqlite::Result<usize> {
    let update = format!("UPDATE {table} SET value = ?2 WHERE item = (SELECT key FROM item WHERE id = ?1)");
    sql.execute(&update, params![id, bytes(vector)])
}

fn bytes(vector: &[f32]) -> Vec<u8> {
    vector.iter().flat_map(|value| value.to_le_bytes()).collect()
}
