//! Searching: candidates from the index, confirmed against the file and measured again.

use std::collections::BTreeSet;

use rayon::prelude::*;
use rehang_core::{Matrix, Result};
use rehang_store::exact::{by_distance, distance};
use rehang_store::{Filter, Found, ItemKey, check};
use rusqlite::{Connection, params_from_iter};

use crate::connection::Database;
use crate::exact::{Flat, Near, RowKey, keep_nearest};
use crate::index;
use crate::items::{ITEM_COLUMNS, read_item};
use crate::keeper::Keeper;
use crate::spaces::{self, SpaceRow};
use crate::trouble::Step;
use crate::values::{int, provenance, read_value};

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
    let shared = keeper.current(&row, change)?;
    if !filter.provenances.is_empty() {
        let few = few_enough(k, shared.read().len());
        let hits = database.read(|transaction| search_few(transaction, &row, queries, k, filter, few))?;
        if let Some(hits) = hits {
            return Ok(hits);
        }
    }
    let nearest = |query: &[f32], k: usize| {
        let index = shared.read();
        Ok((index.nearest(query, k)?, index.len()))
    };
    let hits_of = |at: usize| search_one(database, &row, queries.row(at), k, filter, &nearest);
    if queries.rows() == 1 {
        return Ok(vec![hits_of(0)?]);
    }
    (0..queries.rows()).into_par_iter().map(hits_of).collect()
}

pub(crate) fn recall(
    database: &Database,
    keeper: &Keeper,
    space: &str,
    samples: usize,
    k: usize,
) -> Result<f64> {
    let (row, shared) = keeper.named(space)?;
    if shared.read().graph.is_none() {
        return Ok(1.0);
    }
    let queries = index::sample(database, &row, samples)?;
    index::recall(database, &row, &queries, k, &|query, k| shared.read().nearest(query, k))
}

/// Number of vectors that are compared one by one rather than looked for with the index, in a search for `k`
/// of `vectors`.
///
/// Where `m` vectors pass, the index has to give about `k · vectors / m` candidates before `k` of them pass.
/// A candidate costs a few times what a vector does that is read in the order of the file. So both ways cost
/// the same near `m² = 4 k · vectors`.
fn few_enough(k: usize, vectors: usize) -> usize {
    let even = (4.0 * k as f64 * vectors as f64).sqrt() as usize;
    // All of them are in memory for a moment.
    even.min(FEW_MAX)
}

/// Largest number of vectors that are compared one by one, however many there are.
const FEW_MAX: usize = 20_000;

/// Answers the whole search exactly, where at most `few` vectors have one of the provenances that the filter
/// asks for; `None` where there are more. Reads no other vectors.
fn search_few(
    connection: &Connection,
    row: &SpaceRow,
    queries: &Matrix,
    k: usize,
    filter: &Filter,
    few: usize,
) -> Step<Option<Vec<Vec<Found>>>> {
    let mut few_left = few;
    for provenance in wanted(filter) {
        let mut count = connection.prepare_cached(&format!(
            "SELECT count(*) FROM (SELECT 1 FROM vector_{n} INDEXED BY vector_{n}_{provenance}
             WHERE provenance = '{provenance}' LIMIT ?1)",
            n = row.number
        ))?;
        let vector_count: u64 = count.query_row([int(few_left as u64 + 1)], |line| line.get(0))?;
        match few_left.checked_sub(vector_count as usize) {
            None => return Ok(None),
            Some(remaining) => few_left = remaining,
        }
    }
    let mut passing = Flat::new(row.space.dimension);
    each_of_provenances(connection, row, filter, &mut |key, vector| passing.insert(key, vector))?;
    let kind = row.space.distance;
    let near: Vec<Vec<Near>> = if queries.rows() == 1 {
        vec![passing.nearest(kind, queries.row(0), k, |_| true)]
    } else {
        (0..queries.rows())
            .into_par_iter()
            .map(|at| passing.nearest(kind, queries.row(at), k, |_| true))
            .collect()
    };
    let mut hits = Vec::with_capacity(near.len());
    for (at, near) in near.iter().enumerate() {
        hits.push(confirm(connection, row, queries.row(at), near, filter)?);
    }
    Ok(Some(hits))
}

/// Names of the provenances that the filter asks for, each once.
fn wanted(filter: &Filter) -> BTreeSet<&'static str> {
    filter.provenances.iter().map(|provenance| provenance.name()).collect()
}

/// Candidates that an index finds, and how many vectors it holds.
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
        let candidate_count = candidates.len();
        let mut hits = database.read(|transaction| confirm(transaction, row, query, &candidates, filter))?;
        if hits.len() >= k || candidate_count >= vectors {
            hits.truncate(k);
            return Ok(hits);
        }
        // A graph is good at a few hundred candidates, not at a large part of itself.
        if candidate_count < want.min(vectors) || want >= vectors / 8 {
            break;
        }
        want = want.saturating_mul(4);
    }
    database.read(|transaction| compare_all(transaction, row, query, k, filter))
}

/// Keeps the candidates that are true: the item is there with a vector in the space that can be near to
/// something, and passes.
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
    let mut hits = Vec::with_capacity(candidates.len());
    let mut vector = Vec::with_capacity(row.space.dimension);
    for &(_, key) in candidates {
        let mut rows = select.query([int(key)])?;
        let Some(line) = rows.next()? else { continue };
        let provenance = provenance(line, 7)?;
        if !filter.is_empty() && !filter.passes(&read_item(line)?, provenance) {
            continue;
        }
        vector.clear();
        read_value(line, 8, row.space.dimension, &mut vector)?;
        if !row.space.distance.can_place(&vector) {
            continue;
        }
        let distance = distance(row.space.distance, query, &vector);
        hits.push(Found {
            key: ItemKey::from(key),
            id: line.get(1)?,
            distance,
            provenance,
            revision: line.get(5)?,
        });
    }
    hits.sort_by(|a, b| by_distance(&(a.distance, a.key), &(b.distance, b.key)));
    Ok(hits)
}

/// Searches in the slow way that always finds everything: each vector that passes is read and compared.
fn compare_all(
    connection: &Connection,
    row: &SpaceRow,
    query: &[f32],
    k: usize,
    filter: &Filter,
) -> Step<Vec<Found>> {
    let mut near: Vec<Near> = Vec::new();
    each_passing(connection, row, filter, &mut |key, vector| {
        near.push((distance(row.space.distance, query, vector), key));
        if near.len() >= 4 * k.max(64) {
            keep_nearest(&mut near, k);
        }
    })?;
    keep_nearest(&mut near, k);
    confirm(connection, row, query, &near, filter)
}

/// Reads every vector that passes, through the index of labels or of provenances where the filter names some.
fn each_passing(
    connection: &Connection,
    row: &SpaceRow,
    filter: &Filter,
    take: &mut dyn FnMut(RowKey, &[f32]),
) -> Step<usize> {
    let n = row.number;
    if !filter.labels.is_empty() {
        let places = vec!["?"; filter.labels.len()].join(", ");
        let from =
            format!("vector_{n} AS state JOIN item ON item.key = state.item WHERE item.label IN ({places})");
        return each_of(connection, row, &from, &filter.labels, filter, take);
    }
    if !filter.provenances.is_empty() {
        return each_of_provenances(connection, row, filter, take);
    }
    let from = format!("vector_{n} AS state CROSS JOIN item ON item.key = state.item");
    each_of(connection, row, &from, &[], filter, take)
}

/// Reads every vector that passes and looks at no vector of another provenance. Gives how many rows were
/// looked at.
pub(crate) fn each_of_provenances(
    connection: &Connection,
    row: &SpaceRow,
    filter: &Filter,
    take: &mut dyn FnMut(RowKey, &[f32]),
) -> Step<usize> {
    let n = row.number;
    let mut looked_at = 0;
    for provenance in wanted(filter) {
        let from = format!(
            "vector_{n} AS state INDEXED BY vector_{n}_{provenance} CROSS JOIN item ON item.key = state.item
             WHERE state.provenance = '{provenance}'"
        );
        looked_at += each_of(connection, row, &from, &[], filter, take)?;
    }
    Ok(looked_at)
}

fn each_of(
    connection: &Connection,
    row: &SpaceRow,
    from: &str,
    bound: &[String],
    filter: &Filter,
    take: &mut dyn FnMut(RowKey, &[f32]),
) -> Step<usize> {
    let mut select = connection
        .prepare_cached(&format!("SELECT {ITEM_COLUMNS}, state.provenance, state.value FROM {from}"))?;
    let mut rows = select.query(params_from_iter(bound))?;
    let mut vector = Vec::with_capacity(row.space.dimension);
    // An item is many times dearer to read than a provenance.
    let of_items = !filter.labels.is_empty() || !filter.payload.is_empty();
    let mut looked_at = 0;
    while let Some(line) = rows.next()? {
        looked_at += 1;
        let made_by = provenance(line, 7)?;
        let passes = if of_items {
            filter.passes(&read_item(line)?, made_by)
        } else {
            filter.provenances.is_empty() || filter.provenances.contains(&made_by)
        };
        if !passes {
            continue;
        }
        vector.clear();
        read_value(line, 8, row.space.dimension, &mut vector)?;
        // A vector without a direction, or one that an application wrote around the library's checks, is near
        // to nothing.
        if row.space.distance.can_place(&vector) {
            take(line.get(0)?, &vector);
        }
    }
    Ok(looked_at)
}
