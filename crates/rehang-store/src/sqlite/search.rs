//! Searching: candidates from the index, confirmed against the file and measured again.

use rayon::prelude::*;
use rehang::{Matrix, Provenance, Result};
use rusqlite::{Connection, Row, params_from_iter};

use super::connection::{Database, Step};
use super::index::{self, nearest_of_rows};
use super::items::{ITEM_COLUMNS, read_item};
use super::keeper::Keeper;
use super::spaces::{self, SpaceRow, provenance};
use super::vectors::{int, read_value};
use crate::check;
use crate::contract::{Filter, Found, ItemKey};
use crate::exact::{Near, by_distance, distance, keep_nearest};

pub(crate) fn search(
    database: &Database,
    keeper: &Keeper,
    space: &str,
    queries: &Matrix,
    k: usize,
    filter: &Filter,
) -> Result<Vec<Vec<Found>>> {
    let (row, change) = database.read(|transaction| {
        let row = spaces::find(transaction, space)?;
        check::queries(&row.space, queries)?;
        let change = row.change(transaction)?;
        Ok((row, change))
    })?;
    if k == 0 || queries.rows() == 0 {
        return Ok(vec![Vec::new(); queries.rows()]);
    }
    let kept = keeper.current(&row, change)?;
    let nearest = |query: &[f32], k: usize| {
        let index = kept.read();
        Ok((index.nearest(query, k)?, index.len()))
    };
    let one = |at: usize| search_one(database, &row, queries.row(at), k, filter, &nearest);
    if queries.rows() == 1 {
        return Ok(vec![one(0)?]);
    }
    (0..queries.rows()).into_par_iter().map(one).collect()
}

pub(crate) fn recall(
    database: &Database,
    keeper: &Keeper,
    space: &str,
    samples: usize,
    k: usize,
) -> Result<f64> {
    let (row, change) = database.read(|transaction| {
        let row = spaces::find(transaction, space)?;
        let change = row.change(transaction)?;
        Ok((row, change))
    })?;
    let kept = keeper.current(&row, change)?;
    if kept.read().graph.is_none() {
        return Ok(1.0);
    }
    let queries = index::sample(database, &row, samples)?;
    index::recall(database, &row, &queries, k, &|query, k| kept.read().nearest(query, k))
}

/// What an index finds, and how many vectors it holds.
type Candidates = (Vec<Near>, usize);

/// Candidates beyond `k`, for those that were deleted meanwhile.
const SLACK: usize = 4;

fn search_one(
    database: &Database,
    row: &SpaceRow,
    query: &[f32],
    k: usize,
    filter: &Filter,
    nearest: &dyn Fn(&[f32], usize) -> Result<Candidates>,
) -> Result<Vec<Found>> {
    let mut want = k.saturating_add(SLACK);
    loop {
        let (candidates, vectors) = nearest(query, want)?;
        let seen = candidates.len();
        let mut found = database.read(|transaction| confirm(transaction, row, query, &candidates, filter))?;
        if found.len() >= k || seen >= vectors {
            found.truncate(k);
            return Ok(found);
        }
        // A graph is good at a few hundred candidates, not at a large part of itself.
        if seen < want.min(vectors) || want >= vectors / 8 {
            break;
        }
        want = want.saturating_mul(4);
    }
    database.read(|transaction| compare_all(transaction, row, query, k, filter))
}

/// What of the candidates is true: the item is there with a vector in the space, and passes.
fn confirm(
    connection: &Connection,
    row: &SpaceRow,
    query: &[f32],
    candidates: &[Near],
    filter: &Filter,
) -> Step<Vec<Found>> {
    let mut select = connection.prepare_cached(&format!(
        "SELECT {ITEM_COLUMNS}, state.provenance, state.value
         FROM vector_{} AS state JOIN item ON item.key = state.item WHERE state.item = ?1",
        row.number
    ))?;
    let mut found = Vec::with_capacity(candidates.len());
    let mut vector = Vec::with_capacity(row.space.dimension);
    for &(_, key) in candidates {
        let mut rows = select.query([int(key)])?;
        let Some(line) = rows.next()? else { continue };
        let provenance = provenance(line, 6)?;
        if !filter.is_empty() && !filter.passes(&read_item(line)?, provenance) {
            continue;
        }
        vector.clear();
        read_value(line, 7, row.space.dimension, &mut vector)?;
        found.push(hit(line, distance(row.space.distance, query, &vector), provenance)?);
    }
    sort(&mut found);
    Ok(found)
}

/// The slow way that always finds everything: each vector that passes is read and compared.
fn compare_all(
    connection: &Connection,
    row: &SpaceRow,
    query: &[f32],
    k: usize,
    filter: &Filter,
) -> Step<Vec<Found>> {
    // The label has an index, so a rare one costs only what it finds.
    let (from, rest) = if filter.labels.is_empty() {
        ("state CROSS JOIN item ON item.key = state.item", "true".to_owned())
    } else {
        let places = vec!["?"; filter.labels.len()].join(", ");
        ("state JOIN item ON item.key = state.item", format!("item.label IN ({places})"))
    };
    let mut select = connection.prepare(&format!(
        "SELECT {ITEM_COLUMNS}, state.provenance, state.value FROM vector_{} AS {from} WHERE {rest}",
        row.number
    ))?;
    let mut rows = select.query(params_from_iter(&filter.labels))?;
    let mut near: Vec<Near> = Vec::new();
    let mut vector = Vec::with_capacity(row.space.dimension);
    while let Some(line) = rows.next()? {
        if !filter.is_empty() && !filter.passes(&read_item(line)?, provenance(line, 6)?) {
            continue;
        }
        vector.clear();
        read_value(line, 7, row.space.dimension, &mut vector)?;
        if vector.iter().all(|value| value.is_finite()) {
            nearest_of_rows(row.space.distance, query, k, &mut near, line.get::<_, ItemKey>(0)?, &vector);
        }
    }
    keep_nearest(&mut near, k);
    confirm(connection, row, query, &near, filter)
}

fn hit(line: &Row<'_>, distance: f32, provenance: Provenance) -> rusqlite::Result<Found> {
    Ok(Found { key: line.get(0)?, id: line.get(1)?, distance, provenance, revision: line.get(5)? })
}

fn sort(found: &mut [Found]) {
    found.sort_by(|a, b| by_distance(&(a.distance, a.key), &(b.distance, b.key)));
}
