//! The queue of a backfill: which items wait for a vector and in which order, and which items
//! a sample is drawn from.
//!
//! A finished item leaves the queue's index. Its entry stays in the way for as long as some transaction may
//! still see the earlier state: a dump, a forgotten session, a replica that says what it reads. Each claim
//! would walk over everything that was done since. So where a walk took long, its handle remembers where the
//! queue began ([`Front`]) and goes on from there.

use std::collections::BTreeSet;
use std::sync::PoisonError;

use rehang_core::Provenance;
use rehang_store::{Among, ItemKey, PAIRS_SEED};
use tokio_postgres::Row;

use crate::connection::{Connection, Parameters, Step};
use crate::front::{Front, Place, WALK_LONG};
use crate::handle::Handle;
use crate::parameter::Parameter;
use crate::schema::place_in_shuffle;
use crate::values::{key, row_limit, rows_of};

/// Condition that an item waits in the queue, on a state `s`.
const WAITS: &str = "sourced AND NOT failed";
/// Order of adapted items in the queue: the worst first.
const WORST: &str = "band DESC, score DESC NULLS LAST, item";

/// Reads the keys that a statement gives.
pub(crate) fn keys(connection: &mut Connection, sql: &str, parameters: Parameters<'_>) -> Step<Vec<ItemKey>> {
    connection.query(sql, parameters)?.iter().map(|row| key(row, 0)).collect()
}

/// Reads the first items of the queue that meet a condition.
pub(crate) fn queue(
    connection: &mut Connection,
    n: i32,
    condition: &str,
    limit: usize,
) -> Step<Vec<ItemKey>> {
    let page = |made_by: &str, order: &str| {
        format!(
            "SELECT item FROM rehang.state_{n} AS s WHERE provenance = '{made_by}' AND {WAITS} AND {condition} ORDER BY {order} LIMIT $1"
        )
    };
    let mut item_keys = keys(connection, &page("lacking", "item"), &[&row_limit(limit)])?;
    if item_keys.len() < limit {
        let adapted = keys(connection, &page("adapted", WORST), &[&row_limit(limit - item_keys.len())])?;
        // Each statement of a claim sees what is committed when it begins: an item that was lacking may
        // have been adapted since.
        let lacking: BTreeSet<ItemKey> = item_keys.iter().copied().collect();
        item_keys.extend(adapted.into_iter().filter(|key| !lacking.contains(key)));
    }
    Ok(item_keys)
}

fn front_of(handle: &Handle, n: i32) -> Option<Front> {
    handle.fronts.lock().unwrap_or_else(PoisonError::into_inner).get(&n).copied()
}

fn set_front(handle: &Handle, n: i32, front: Option<Front>) {
    let mut fronts = handle.fronts.lock().unwrap_or_else(PoisonError::into_inner);
    match front {
        Some(front) => fronts.insert(n, front),
        None => fronts.remove(&n),
    };
}

/// Looks for the front again where that is due. It does so before a claim has the lock that
/// other claims wait for.
pub(crate) fn look_for_front(
    connection: &mut Connection,
    handle: &Handle,
    n: i32,
    condition: &str,
) -> Step<()> {
    if front_of(handle, n).is_none_or(|front| rehang_clock::now() < front.until) {
        return Ok(());
    }
    let began = rehang_clock::now();
    let (lacking, adapted) =
        (first_lacking(connection, n, condition)?, first_adapted(connection, n, condition)?);
    let before = |place: Place| Place { item: place.item - 1, ..place };
    // Where there is none, all of them have been walked over.
    let front = Front::after(lacking.map_or(i64::MAX, |item| item - 1), adapted.map(before), began.elapsed());
    set_front(handle, n, front);
    Ok(())
}

fn first_lacking(connection: &mut Connection, n: i32, condition: &str) -> Step<Option<i64>> {
    let sql = format!(
        "SELECT item FROM rehang.state_{n} AS s WHERE provenance = 'lacking' AND {WAITS} AND {condition} ORDER BY item LIMIT 1"
    );
    Ok(connection.query_opt(&sql, &[])?.map(|row| row.try_get(0)).transpose()?)
}

fn first_adapted(connection: &mut Connection, n: i32, condition: &str) -> Step<Option<Place>> {
    let sql = format!(
        "SELECT band, score, item FROM rehang.state_{n} AS s WHERE provenance = 'adapted' AND {WAITS} AND {condition} ORDER BY {WORST} LIMIT 1"
    );
    connection.query_opt(&sql, &[])?.map(|row| place(&row)).transpose()
}

fn place(row: &Row) -> Step<Place> {
    Ok(Place { band: row.try_get("band")?, score: row.try_get("score")?, item: row.try_get("item")? })
}

/// Reads the first items of the queue that meet a condition, for a claim, and remembers the front
/// where the walk was long.
pub(crate) fn next(
    connection: &mut Connection,
    handle: &Handle,
    n: i32,
    condition: &str,
    limit: usize,
) -> Step<Vec<ItemKey>> {
    if let Some(front) = front_of(handle, n) {
        let (item_keys, front) = next_behind_front(connection, n, condition, limit, front)?;
        if item_keys.len() == limit {
            set_front(handle, n, Some(front));
            return Ok(item_keys);
        }
        // At the end of the queue a run ends. Nothing may be left before the front then, so
        // the whole queue is read.
    }
    let began = rehang_clock::now();
    let item_keys = queue(connection, n, condition, limit)?;
    let walked = began.elapsed();
    if walked >= WALK_LONG {
        // Items that were found are still in the queue: the next claim may look again from them on, and
        // passes over those that are held.
        let sql = format!(
            "SELECT s.band, s.score, s.item, s.provenance FROM unnest($1::bigint[]) WITH ORDINALITY AS k(item, at)
             JOIN rehang.state_{n} AS s ON s.item = k.item ORDER BY k.at"
        );
        let (mut lacking, mut adapted) = (-1, None);
        for row in connection.query(&sql, &[&rows_of(&item_keys)])? {
            let at = place(&row)?;
            match row.try_get::<_, String>("provenance")?.as_str() {
                "lacking" => lacking = at.item,
                "adapted" => adapted = Some(at),
                _ => {}
            }
        }
        if item_keys.len() < limit || adapted.is_some() {
            lacking = i64::MAX;
        }
        set_front(handle, n, Front::after(lacking, adapted, walked));
    }
    Ok(item_keys)
}

/// Reads the first items behind a front that meet a condition, and returns them with the
/// front behind the last one.
fn next_behind_front(
    connection: &mut Connection,
    n: i32,
    condition: &str,
    limit: usize,
    mut front: Front,
) -> Step<(Vec<ItemKey>, Front)> {
    let mut item_keys = Vec::new();
    let mut page = |front: &mut Front,
                    made_by: &str,
                    after: &str,
                    order: &str,
                    place_of: Parameters<'_>|
     -> Step<()> {
        let limit_left = row_limit(limit - item_keys.len());
        if limit_left == 0 {
            return Ok(());
        }
        let sql = format!(
            "SELECT band, score, item FROM rehang.state_{n} AS s WHERE provenance = '{made_by}' AND {WAITS} AND {condition} AND {after}
             ORDER BY {order} LIMIT $1"
        );
        let mut parameters: Vec<&dyn Parameter> = vec![&limit_left];
        parameters.extend(place_of);
        for row in connection.query(&sql, &parameters)? {
            let at = place(&row)?;
            item_keys.push(key(&row, "item")?);
            match made_by {
                "lacking" => front.lacking = at.item,
                _ => front.adapted = Some(at),
            }
        }
        Ok(())
    };
    let lacking = front.lacking;
    page(&mut front, "lacking", "item > $2", "item", &[&lacking])?;
    match front.adapted {
        None => page(&mut front, "adapted", "true", WORST, &[])?,
        // Each part is a range of the index, and the ranges follow each other.
        Some(Place { band, score, item }) => {
            match score {
                Some(score) => {
                    page(
                        &mut front,
                        "adapted",
                        "band = $2 AND score = $3 AND item > $4",
                        WORST,
                        &[&band, &score, &item],
                    )?;
                    page(&mut front, "adapted", "band = $2 AND score < $3", WORST, &[&band, &score])?;
                    page(&mut front, "adapted", "band = $2 AND score IS NULL", WORST, &[&band])?;
                }
                None => page(
                    &mut front,
                    "adapted",
                    "band = $2 AND score IS NULL AND item > $3",
                    WORST,
                    &[&band, &item],
                )?,
            }
            page(&mut front, "adapted", "band < $2", WORST, &[&band])?;
        }
    }
    Ok((item_keys, front))
}

/// Returns `FROM … WHERE …` for the items that a sample is drawn from.
pub(crate) fn sample_condition(n: i32, among: Among) -> String {
    let condition = match among {
        Among::All => "true".to_owned(),
        Among::Adapted => format!("s.provenance = '{}'", Provenance::Adapted.name()),
        Among::Embeddable => {
            "(s.provenance = 'native' OR (s.provenance IN ('lacking', 'adapted') AND s.sourced AND NOT s.failed))".to_owned()
        }
    };
    format!("FROM rehang.state_{n} AS s WHERE {condition}")
}

/// Reads the first items of a shuffle that a sample is drawn from. Items of the shuffle by which pairs are
/// drawn come from an index, in its order. Any other shuffle is made by a pass over all items.
pub(crate) fn first_of_shuffle(
    connection: &mut Connection,
    (g, n): (i32, i32),
    which: Among,
    seed: u64,
    size: usize,
) -> Step<Vec<ItemKey>> {
    let among = sample_condition(n, which);
    let (key, among) = if seed == PAIRS_SEED {
        ("i.key", among.replacen(" AS s", &format!(" AS s JOIN rehang.item_{g} AS i ON i.key = s.item"), 1))
    } else {
        ("s.item", among)
    };
    let sql = format!("SELECT {key} {among} ORDER BY {}, {key} LIMIT $1", place_in_shuffle(key, seed));
    keys(connection, &sql, &[&row_limit(size)])
}
