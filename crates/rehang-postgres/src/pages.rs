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
        let n = space.number;
        let after = scan.after.map_or(-1, row_of);
        let limit = row_limit(scan.limit);
        let keys = match scan.select {
            Select::WorstFirst => queue(connection, n, "true", scan.limit)?,
            Select::All => {
                let sql = format!("SELECT key FROM rehang.item_{} WHERE key > $1 ORDER BY key LIMIT $2", handle.number);
                keys(connection, &sql, &[&after, &limit])?
            }
            Select::Provenance(provenance) => of_provenance(connection, n, provenance.name(), after, limit)?,
            Select::Lacking => of_provenance(connection, n, "lacking", after, limit)?,
            Select::WithoutSource => {
                let sql = format!(
                    "SELECT item FROM rehang.state_{n} WHERE NOT sourced AND provenance IN ('lacking', 'adapted') AND item > $1
                     ORDER BY item LIMIT $2"
                );
                keys(connection, &sql, &[&after, &limit])?
            }
        };
        records(connection, handle, &keys, &space, vectors_of.as_ref(), scan.contents)
    })
}

fn of_provenance(
    connection: &mut Connection,
    n: i32,
    made_by: &str,
    after: i64,
    limit: i64,
) -> Step<Vec<ItemKey>> {
    let sql = format!(
        "SELECT item FROM rehang.state_{n} WHERE provenance = '{made_by}' AND item > $1 ORDER BY item LIMIT $2"
    );
    keys(connection, &sql, &[&after, &limit])
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
