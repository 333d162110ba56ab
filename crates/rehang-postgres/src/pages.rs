//! Pages of items and random samples; each is read from an index, as of one moment.

use rehang_core::Result;
use rehang_store::{Drawn, ItemKey, Record, Sample, Scan, Select};

use crate::connection::{Connection, Mode, Step};
use crate::handle::Handle;
use crate::items;
use crate::queue::{first_of_shuffle, keys, queue, sample_condition};
use crate::schema::SpaceRow;
use crate::spaces::find;
use crate::values::{row_limit, row_of, rows_of};
use crate::vectors;

pub(crate) fn scan(handle: &Handle, scan: &Scan) -> Result<Vec<Record>> {
    handle.database.run(Mode::Read, |connection| {
        let space = find(connection, handle, &scan.space)?;
        let vectors_of = scan.vectors_of.as_deref().map(|name| find(connection, handle, name)).transpose()?;
        let keys = page(connection, handle, scan, &space, |_| "true".to_owned())?;
        let page_records = records(connection, handle, &keys, &space, vectors_of.as_ref(), scan.contents)?;
        if page_records.len() == keys.len() {
            return Ok(page_records);
        }
        // No trigger sees which rows go with a partition. Their items leave their places on the page to those
        // behind them: a walk ends with a page that is not full.
        let keys = page(connection, handle, scan, &space, |key| has_row(handle, key))?;
        records(connection, handle, &keys, &space, vectors_of.as_ref(), scan.contents)
    })
}

/// Reads the keys of a page. `condition` is what its items have to meet besides, made for the column that has
/// their keys.
fn page(
    connection: &mut Connection,
    handle: &Handle,
    scan: &Scan,
    space: &SpaceRow,
    condition: impl Fn(&str) -> String,
) -> Step<Vec<ItemKey>> {
    let n = space.number;
    let of_space = |selected: String| (format!("state_{n}"), "s.item", selected);
    let (table, key, selected) = match scan.select {
        Select::Queued => return queue(connection, n, &condition("s.item"), scan.limit),
        Select::All => (format!("item_{}", handle.number), "s.key", "true".to_owned()),
        Select::Provenance(provenance) => of_space(format!("s.provenance = '{}'", provenance.name())),
        Select::Lacking => of_space("s.provenance = 'lacking'".to_owned()),
        Select::WithoutSource => {
            of_space("NOT s.sourced AND s.provenance IN ('lacking', 'adapted')".to_owned())
        }
    };
    let sql = format!(
        "SELECT {key} FROM rehang.{table} AS s WHERE {selected} AND {key} > $1 AND {} ORDER BY {key} LIMIT $2",
        condition(key)
    );
    keys(connection, &sql, &[&scan.after.map_or(-1, row_of), &row_limit(scan.limit)])
}

/// Returns the condition that the item of a key has a row. The server looks for the row of each key that it
/// meets in its index: by `OFFSET 0` it cannot join whole tables in place of that.
fn has_row(handle: &Handle, key: &str) -> String {
    format!("EXISTS (SELECT 1 FROM {} WHERE i.key = {key} OFFSET 0)", items::tables(handle))
}

/// Reads items by key, in the order of the given keys; those that are gone are passed over.
pub(crate) fn records(
    connection: &mut Connection,
    handle: &Handle,
    keys: &[ItemKey],
    space: &SpaceRow,
    vectors_of: Option<&SpaceRow>,
    contents: bool,
) -> Step<Vec<Record>> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let is_same = vectors_of.is_some_and(|other| other.number == space.number);
    let other = vectors_of.filter(|_| !is_same);
    let (more, join) = other.map_or_else(Default::default, |other| {
        (format!(", {}", vectors::columns(handle, other, "o", true)), vectors::join(other, "o", true))
    });
    let sql = format!(
        "SELECT {}, {}{more} FROM unnest($1::bigint[]) WITH ORDINALITY AS k(key, at), {} {} {join} WHERE i.key = k.key ORDER BY k.at",
        items::columns(handle, contents),
        vectors::columns(handle, space, "s", is_same),
        items::tables(handle),
        vectors::join(space, "s", is_same),
    );
    let rows = connection.query(&sql, &[&rows_of(keys)])?;
    rows.iter()
        .map(|row| {
            let state = vectors::read(row, "s", is_same)?;
            let vector = match other {
                Some(_) => vectors::read(row, "o", true)?,
                None => state.clone().filter(|_| is_same),
            };
            let state = state.map(|state| rehang_store::VectorRecord { vector: Vec::new(), ..state });
            Ok(Record { item: items::read(row)?, state, vector })
        })
        .collect()
}

pub(crate) fn sample(handle: &Handle, sample: &Sample) -> Result<Drawn> {
    handle.database.run(Mode::Read, |connection| {
        let space = find(connection, handle, &sample.space)?;
        let vectors_of =
            sample.vectors_of.as_deref().map(|name| find(connection, handle, name)).transpose()?;
        let drawn_from = connection
            .count(&format!("SELECT count(*) {}", sample_condition(space.number, sample.among)), &[])?;
        let keys = first_of_shuffle(
            connection,
            (handle.number, space.number),
            sample.among,
            sample.seed,
            sample.size,
        )?;
        Ok(Drawn {
            records: records(connection, handle, &keys, &space, vectors_of.as_ref(), true)?,
            drawn_from,
        })
    })
}
