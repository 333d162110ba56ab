//! Pages of items, each from an index and from one snapshot.

use std::collections::BTreeMap;

use rehang::Result;
use rusqlite::{Connection, Row, params_from_iter, types};

use super::connection::{Database, Step};
use super::items::{ITEM_COLUMNS, read_item};
use super::spaces::{self, SpaceRow, provenance};
use super::vectors::{int, read_value};
use crate::contract::{Record, Scan, Select, VectorRecord};

pub(crate) fn scan(database: &Database, scan: &Scan) -> Result<Vec<Record>> {
    database.read(|transaction| {
        let space = spaces::find(transaction, &scan.space)?;
        let vectors_of =
            scan.vectors_of.as_deref().map(|name| spaces::find(transaction, name)).transpose()?;
        let mut page = Page { connection: transaction, scan, space: &space, vectors_of, records: Vec::new() };
        let n = space.number;
        let after = scan.after.map_or(-1, int);
        match scan.select {
            Select::All => page.read("item", "item.key > ?1 ORDER BY item.key", Some(after))?,
            Select::Provenance(provenance) => page.read(
                &format!(
                    "vector_{n} AS state INDEXED BY vector_{n}_{provenance} CROSS JOIN item ON item.key = state.item"
                ),
                &format!("state.provenance = '{provenance}' AND state.item > ?1 ORDER BY state.item"),
                Some(after),
            )?,
            Select::Lacking => page.read(
                &format!("lacking_{n} AS lacking CROSS JOIN item ON item.key = lacking.item"),
                "lacking.item > ?1 ORDER BY lacking.item",
                Some(after),
            )?,
            // Two lists by key, which SQLite reads side by side: nothing is sorted.
            Select::WithoutSource => {
                // Only a column of the list itself tells SQLite that it comes in order.
                let columns = |list: &str| ITEM_COLUMNS.replace("item.key", &format!("{list}.item"));
                page.read_all(
                    &format!(
                        "SELECT {} FROM vector_{n} AS state INDEXED BY vector_{n}_unsourced
                             CROSS JOIN item ON item.key = state.item
                         WHERE state.provenance = 'adapted' AND state.sourced = 0 AND state.item > ?1
                         UNION ALL SELECT {} FROM lacking_{n} AS lacking
                             CROSS JOIN item ON item.key = lacking.item
                         WHERE lacking.sourced = 0 AND lacking.item > ?1 ORDER BY 1",
                        columns("state"),
                        columns("lacking")
                    ),
                    Some(after),
                )?;
            }
            Select::WorstFirst => {
                page.read(
                    &format!("lacking_{n} AS lacking CROSS JOIN item ON item.key = lacking.item"),
                    "lacking.sourced = 1 AND lacking.failed = 0 ORDER BY lacking.item",
                    None,
                )?;
                page.read(
                    &format!(
                        "vector_{n} AS state INDEXED BY vector_{n}_worst CROSS JOIN item ON item.key = state.item"
                    ),
                    "state.provenance = 'adapted' AND state.failed = 0 AND state.sourced = 1
                     ORDER BY state.priority DESC, state.item",
                    None,
                )?;
            }
            Select::SigmaDescending => page.read(
                &format!(
                    "vector_{n} AS state INDEXED BY vector_{n}_sigma2 CROSS JOIN item ON item.key = state.item"
                ),
                "state.provenance = 'adapted' ORDER BY state.sigma2 DESC, state.item",
                None,
            )?,
            Select::ChangedSince(revision) => {
                page.read("item", "item.revision > ?1 ORDER BY item.revision", Some(int(revision)))?;
            }
        }
        page.finish()
    })
}

struct Page<'a> {
    connection: &'a Connection,
    scan: &'a Scan,
    space: &'a SpaceRow,
    vectors_of: Option<SpaceRow>,
    records: Vec<Record>,
}

impl Page<'_> {
    /// Reads items until the page is full; those to be left out are passed over here, so that the statement is the same
    /// for every page.
    fn read(&mut self, from: &str, rest: &str, bound: Option<i64>) -> Step<()> {
        self.read_all(&format!("SELECT {ITEM_COLUMNS} FROM {from} WHERE {rest}"), bound)
    }

    /// The same for a statement that gives the columns of items.
    fn read_all(&mut self, sql: &str, bound: Option<i64>) -> Step<()> {
        if self.records.len() >= self.scan.limit {
            return Ok(());
        }
        let mut select = self.connection.prepare_cached(sql)?;
        let mut rows = select.query(params_from_iter(bound.map(types::Value::Integer)))?;
        while let Some(row) = rows.next()? {
            let key: u64 = row.get(0)?;
            if self.scan.except.contains(&key) {
                continue;
            }
            self.records.push(Record { item: read_item(row)?, state: None, vector: None });
            if self.records.len() >= self.scan.limit {
                break;
            }
        }
        Ok(())
    }

    /// Adds what the spaces hold of the items of the page.
    fn finish(mut self) -> Step<Vec<Record>> {
        let both = self.vectors_of.as_ref().is_some_and(|other| other.number == self.space.number);
        let states = states(self.connection, self.space, &self.records, both)?;
        let vectors = match &self.vectors_of {
            Some(other) if !both => self::states(self.connection, other, &self.records, true)?,
            _ => BTreeMap::new(),
        };
        for record in &mut self.records {
            let state = states.get(&record.item.key);
            record.vector = if both { state.cloned() } else { vectors.get(&record.item.key).cloned() };
            record.state = state.map(|state| VectorRecord { vector: Vec::new(), ..state.clone() });
        }
        Ok(self.records)
    }
}

fn states(
    connection: &Connection,
    space: &SpaceRow,
    records: &[Record],
    with_vectors: bool,
) -> Step<BTreeMap<u64, VectorRecord>> {
    let value = if with_vectors { "value" } else { "NULL" };
    let mut select = connection.prepare_cached(&format!(
        "SELECT provenance, revision, sigma2, priority, squared_error, {value} FROM vector_{} WHERE item = ?1",
        space.number
    ))?;
    let mut found = BTreeMap::new();
    for record in records {
        let mut rows = select.query([int(record.item.key)])?;
        if let Some(row) = rows.next()? {
            found.insert(record.item.key, state(row, space, with_vectors)?);
        }
    }
    Ok(found)
}

/// The vector of a row `provenance, revision, sigma2, priority, squared_error, value`.
pub(crate) fn state(row: &Row<'_>, space: &SpaceRow, with_vector: bool) -> Step<VectorRecord> {
    let mut vector = Vec::new();
    if with_vector {
        vector.reserve_exact(space.space.dimension);
        read_value(row, 5, space.space.dimension, &mut vector)?;
    }
    Ok(VectorRecord {
        provenance: provenance(row, 0)?,
        revision: row.get(1)?,
        sigma2: row.get(2)?,
        priority: row.get(3)?,
        squared_error: row.get(4)?,
        vector,
    })
}
