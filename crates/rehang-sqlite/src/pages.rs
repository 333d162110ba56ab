//! Pages of items, each from an index and from one snapshot.

use std::collections::{BTreeMap, BTreeSet};

use rehang_core::Result;
use rehang_store::{Drawn, ItemKey, Record, Sample, Scan, Select, VectorRecord};
use rusqlite::{Connection, params_from_iter};

use crate::connection::Database;
use crate::items::{ITEM_COLUMNS, read_item};
use crate::queue;
use crate::spaces::{self, SpaceRow};
use crate::trouble::Step;
use crate::values::{key, row_of};
use crate::vectors::states;

pub(crate) fn scan(database: &Database, scan: &Scan) -> Result<Vec<Record>> {
    database.read(|transaction| {
        let space = spaces::find(transaction, &scan.space)?;
        let vectors_of =
            scan.vectors_of.as_deref().map(|name| spaces::find(transaction, name)).transpose()?;
        let mut page = Page::new(transaction, &space, vectors_of, scan.limit);
        let n = space.number;
        let after = scan.after.map_or(-1, row_of);
        match scan.select {
            Select::All => page.read("item", "item.key > ?1 ORDER BY item.key", after)?,
            Select::Provenance(provenance) => page.read(
                &format!(
                    "vector_{n} AS state INDEXED BY vector_{n}_{provenance} CROSS JOIN item ON item.key = state.item"
                ),
                &format!("state.provenance = '{provenance}' AND state.item > ?1 ORDER BY state.item"),
                after,
            )?,
            Select::Lacking => page.read(
                &format!("lacking_{n} AS lacking CROSS JOIN item ON item.key = lacking.item"),
                "lacking.item > ?1 ORDER BY lacking.item",
                after,
            )?,
            // SQLite reads the two lists side by side, both by key: nothing is sorted.
            Select::WithoutSource => {
                // Only a column of the list itself tells SQLite that it comes in order.
                let columns = |list: &str| ITEM_COLUMNS.replace("item.key", &format!("{list}.item"));
                page.read_except(
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
                    &BTreeSet::new(),
                )?;
            }
            Select::Queued => page.queue(&BTreeSet::new())?,
        }
        page.finish()
    })
}

pub(crate) fn sample(database: &Database, sample: &Sample) -> Result<Drawn> {
    database.read(|transaction| {
        let space = spaces::find(transaction, &sample.space)?;
        let vectors_of =
            sample.vectors_of.as_deref().map(|name| spaces::find(transaction, name)).transpose()?;
        let (keys, drawn_from) =
            queue::draw_first(transaction, &space, sample.among, sample.seed, sample.size)?;
        let mut page = Page::new(transaction, &space, vectors_of, keys.len());
        for key in keys {
            page.read("item", "item.key = ?1", row_of(key))?;
        }
        Ok(Drawn { records: page.finish()?, drawn_from })
    })
}

/// Page of items that are read together.
pub(crate) struct Page<'a> {
    connection: &'a Connection,
    space: &'a SpaceRow,
    vectors_of: Option<SpaceRow>,
    limit: usize,
    records: Vec<Record>,
}

impl<'a> Page<'a> {
    pub(crate) fn new(
        connection: &'a Connection,
        space: &'a SpaceRow,
        vectors_of: Option<SpaceRow>,
        limit: usize,
    ) -> Self {
        Self { connection, space, vectors_of, limit, records: Vec::new() }
    }

    /// Reads the queue of the backfill until the page is full, without the items `except`.
    pub(crate) fn queue(&mut self, except: &BTreeSet<ItemKey>) -> Step<()> {
        for statement in queue::in_order(self.space.number) {
            self.read_except(&statement, None, except)?;
        }
        Ok(())
    }

    /// Reads those of the items `keys` that are not native in the space, without the items `except`, until
    /// the page is full.
    pub(crate) fn waiting(&mut self, keys: &[ItemKey], except: &BTreeSet<ItemKey>) -> Step<()> {
        let native = "provenance = 'native'";
        let n = self.space.number;
        let waits =
            format!("item.key = ?1 AND NOT EXISTS (SELECT 1 FROM vector_{n} WHERE item = ?1 AND {native})");
        for key in keys.iter().filter(|key| !except.contains(key)) {
            self.read("item", &waits, row_of(*key))?;
        }
        Ok(())
    }

    /// Reads items until the page is full: those of `from` that meet `condition`.
    fn read(&mut self, from: &str, condition: &str, bound: i64) -> Step<()> {
        let sql = format!("SELECT {ITEM_COLUMNS} FROM {from} WHERE {condition}");
        self.read_except(&sql, Some(bound), &BTreeSet::new())
    }

    /// Reads items from a statement that gives their columns until the page is full, without the items
    /// `except`.
    ///
    /// These items are passed over here, so that the statement is the same for every page.
    fn read_except(&mut self, sql: &str, bound: Option<i64>, except: &BTreeSet<ItemKey>) -> Step<()> {
        if self.records.len() >= self.limit {
            return Ok(());
        }
        let mut select = self.connection.prepare_cached(sql)?;
        let mut rows = select.query(params_from_iter(bound))?;
        while let Some(row) = rows.next()? {
            if except.contains(&key(row, 0)?) {
                continue;
            }
            self.records.push(Record { item: read_item(row)?, state: None, vector: None });
            if self.records.len() >= self.limit {
                break;
            }
        }
        Ok(())
    }

    /// Adds the vectors and their states, which the spaces hold, to the items of the page.
    pub(crate) fn finish(mut self) -> Step<Vec<Record>> {
        let keys: Vec<ItemKey> = self.records.iter().map(|record| record.item.key).collect();
        let is_same = self.vectors_of.as_ref().is_some_and(|other| other.number == self.space.number);
        let states_by_key = states(self.connection, self.space, &keys, is_same)?;
        let vectors = match &self.vectors_of {
            Some(other) if !is_same => states(self.connection, other, &keys, true)?,
            _ => BTreeMap::new(),
        };
        for record in &mut self.records {
            let state = states_by_key.get(&record.item.key);
            record.vector = if is_same { state.cloned() } else { vectors.get(&record.item.key).cloned() };
            record.state = state.map(|state| VectorRecord { vector: Vec::new(), ..state.clone() });
        }
        Ok(self.records)
    }
}
