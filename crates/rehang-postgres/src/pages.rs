//! Pages of items, each from an index and of one moment; and who works on what.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rehang::{Provenance, Result};
use rehang_store::{Among, AtWork, Claimed, Drawn, ItemKey, Queue, Record, Sample, Scan, Select};

use crate::connection::{Connection, Mode, Parameters, Step};
use crate::items::{self, key, limit as row_limit, row_of, rows_of};
use crate::schema::SpaceRow;
use crate::spaces::find;
use crate::store::Inner;
use crate::vectors;

/// What waits in the queue, of a state `s`.
const WAITS: &str = "sourced AND NOT failed";
/// Its order.
const WORST: &str = "band DESC, score DESC NULLS LAST, item";

pub(crate) fn scan(inner: &Inner, scan: &Scan) -> Result<Vec<Record>> {
    inner.database.run(Mode::Read, |connection| {
        let space = find(connection, inner, &scan.space)?;
        let vectors_of = scan.vectors_of.as_deref().map(|name| find(connection, inner, name)).transpose()?;
        let n = space.number;
        let after = scan.after.map_or(-1, row_of);
        let limit = row_limit(scan.limit);
        let keys = match scan.select {
            Select::WorstFirst => queue(connection, n, "true", scan.limit)?,
            Select::All => {
                let sql = format!("SELECT key FROM rehang.item_{} WHERE key > $1 ORDER BY key LIMIT $2", inner.number);
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
        records(connection, inner, &keys, &space, vectors_of.as_ref(), scan.contents)
    })
}

fn keys(connection: &mut Connection, sql: &str, parameters: Parameters<'_>) -> Step<Vec<ItemKey>> {
    connection.query(sql, parameters)?.iter().map(|row| key(row, 0)).collect()
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

/// The first items of the queue that meet a condition.
fn queue(connection: &mut Connection, n: i32, condition: &str, limit: usize) -> Step<Vec<ItemKey>> {
    let page = |made_by: &str, order: &str| {
        format!(
            "SELECT item FROM rehang.state_{n} AS s WHERE provenance = '{made_by}' AND {WAITS} AND {condition} ORDER BY {order} LIMIT $1"
        )
    };
    let mut found = keys(connection, &page("lacking", "item"), &[&row_limit(limit)])?;
    if found.len() < limit {
        let adapted = keys(connection, &page("adapted", WORST), &[&row_limit(limit - found.len())])?;
        // Each statement of a claim sees what is committed by then: an item that was lacking may have been adapted since.
        let lacking: BTreeSet<ItemKey> = found.iter().copied().collect();
        found.extend(adapted.into_iter().filter(|key| !lacking.contains(key)));
    }
    Ok(found)
}

/// Items by key, in the order of the keys that are given; those that are gone are passed over.
fn records(
    connection: &mut Connection,
    inner: &Inner,
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
        (format!(", {}", vectors::columns(other, "o", true)), vectors::join(other, "o", true))
    });
    let sql = format!(
        "SELECT {}, {}{more} FROM unnest($1::bigint[]) WITH ORDINALITY AS k(key, at), {} {} {join} WHERE i.key = k.key ORDER BY k.at",
        items::columns(inner, contents),
        vectors::columns(space, "s", is_same),
        items::tables(inner),
        vectors::join(space, "s", is_same),
    );
    let rows = connection.query(&sql, &[&rows_of(keys)])?;
    let from = items::COLUMNS;
    rows.iter()
        .map(|row| {
            let state = vectors::read(row, from, is_same)?;
            let vector = match other {
                Some(_) => vectors::read(row, from + vectors::COLUMNS, true)?,
                None => state.clone().filter(|_| is_same),
            };
            let state = state.map(|state| rehang_store::VectorRecord { vector: Vec::new(), ..state });
            Ok(Record { item: items::read(row)?, state, vector })
        })
        .collect()
}

pub(crate) fn sample(inner: &Inner, sample: &Sample) -> Result<Drawn> {
    inner.database.run(Mode::Read, |connection| {
        let space = find(connection, inner, &sample.space)?;
        let vectors_of =
            sample.vectors_of.as_deref().map(|name| find(connection, inner, name)).transpose()?;
        let among = among(space.number, sample.among);
        let of = connection.count(&format!("SELECT count(*) {among}"), &[])?;
        let keys = first(connection, &among, sample.seed, sample.size)?;
        Ok(Drawn { records: records(connection, inner, &keys, &space, vectors_of.as_ref(), true)?, of })
    })
}

/// `FROM … WHERE …` of the items that a sample is drawn from.
fn among(n: i32, among: Among) -> String {
    let which = match among {
        Among::All => "true".to_owned(),
        Among::Adapted => format!("provenance = '{}'", Provenance::Adapted.name()),
        Among::Embeddable => {
            format!("(provenance = 'native' OR (provenance IN ('lacking', 'adapted') AND {WAITS}))")
        }
    };
    format!("FROM rehang.state_{n} AS s WHERE {which}")
}

/// The first items of a shuffle: the server's own hash of key and seed orders them.
fn first(connection: &mut Connection, among: &str, seed: u64, size: usize) -> Step<Vec<ItemKey>> {
    let sql = format!("SELECT item {among} ORDER BY hashint8extended(item, $1), item LIMIT $2");
    keys(connection, &sql, &[&(seed as i64), &row_limit(size)])
}

pub(crate) fn claim(
    inner: &Inner,
    space: &str,
    what: Queue,
    worker: &str,
    limit: usize,
    lease: Duration,
) -> Result<Claimed> {
    inner.database.run(Mode::WriteLightly, |connection| {
        let space = find(connection, inner, space)?;
        let n = space.number;
        // Claims of a space come one after the other, each in a few milliseconds: what one has taken, the next one sees.
        connection.query("SELECT pg_advisory_xact_lock($1, $2)", &[&CLAIMS, &n])?;
        let held_by_others = connection.count(
            &format!("SELECT count(*) FROM rehang.claim_{n} WHERE until > clock_timestamp() AND worker <> $1"),
            &[&worker],
        )?;
        let is_free = format!(
            "NOT EXISTS (SELECT 1 FROM rehang.claim_{n} AS c WHERE c.item = s.item AND c.until > clock_timestamp())"
        );
        let mut next = match what {
            Queue::All => queue(connection, n, &is_free, limit)?,
            Queue::Sample { seed, size } => {
                let drawn = first(connection, &among(n, Among::Embeddable), seed, size)?;
                let sql = format!(
                    "SELECT s.item FROM unnest($1::bigint[]) WITH ORDINALITY AS k(item, at) JOIN rehang.state_{n} AS s ON s.item = k.item
                     WHERE s.provenance <> 'native' AND {is_free} ORDER BY k.at LIMIT $2"
                );
                keys(connection, &sql, &[&rows_of(&drawn), &row_limit(limit)])?
            }
        };
        let mut lost = BTreeMap::new();
        let out = format!("SELECT item, lost FROM rehang.claim_{n} WHERE item = ANY($1) ORDER BY item");
        for row in connection.query(&format!("{out} FOR UPDATE SKIP LOCKED"), &[&rows_of(&next)])? {
            lost.insert(key(&row, 0)?, row.try_get::<_, i32>(1)?.max(0) as u32 + 1);
        }
        // A lease that another open transaction is about to end is left to that transaction: the claim does not wait. The lease counts as
        // held, since its item may be free a moment later.
        let mut busy = BTreeSet::new();
        for row in connection.query(&out, &[&rows_of(&next)])? {
            busy.insert(key(&row, 0)?);
        }
        let found = next.len();
        next.retain(|key| lost.contains_key(key) || !busy.contains(key));
        let left = (found - next.len()) as u64;
        let records = records(connection, inner, &next, &space, Some(&space), true)?;
        let claimed = Claimed::of(records, &lost, held_by_others + left);
        let taken: Vec<ItemKey> = claimed.records.iter().map(|record| record.item.key).collect();
        let losses: Vec<i32> = taken.iter().map(|key| lost.get(key).map_or(0, |lost| *lost as i32)).collect();
        if !taken.is_empty() {
            let sql = format!(
                "INSERT INTO rehang.claim_{n} (item, worker, until, lost)
                 SELECT w.item, $2, clock_timestamp() + make_interval(secs => $3), w.lost FROM unnest($1::bigint[], $4::int[]) AS w(item, lost)
                 ON CONFLICT (item) DO UPDATE SET worker = EXCLUDED.worker, until = EXCLUDED.until, lost = EXCLUDED.lost"
            );
            connection.execute(&sql, &[&rows_of(&taken), &worker, &lease.as_secs_f64(), &losses])?;
        }
        Ok(claimed)
    })
}

/// The class of advisory locks that order claims.
const CLAIMS: i32 = 0x7265_6801;

pub(crate) fn renew(inner: &Inner, space: &str, worker: &str, lease: Duration) -> Result<u64> {
    inner.database.run(Mode::WriteLightly, |connection| {
        let n = find(connection, inner, space)?.number;
        let sql = format!(
            "UPDATE rehang.claim_{n} SET until = clock_timestamp() + make_interval(secs => $2)
             WHERE item IN (SELECT item FROM rehang.claim_{n} WHERE worker = $1 ORDER BY item FOR UPDATE SKIP LOCKED)"
        );
        connection.execute(&sql, &[&worker, &lease.as_secs_f64()])
    })
}

pub(crate) fn release(inner: &Inner, space: &str, worker: &str, keys: Option<&[ItemKey]>) -> Result<u64> {
    let keys = keys.map(rows_of);
    inner.database.run(Mode::WriteLightly, |connection| {
        let n = find(connection, inner, space)?.number;
        let sql = format!(
            "DELETE FROM rehang.claim_{n} WHERE item IN (SELECT item FROM rehang.claim_{n}
                 WHERE worker = $1 AND ($2::bigint[] IS NULL OR item = ANY($2)) ORDER BY item FOR UPDATE SKIP LOCKED)"
        );
        connection.execute(&sql, &[&worker, &keys])
    })
}

pub(crate) fn at_work(inner: &Inner, space: &str) -> Result<Vec<AtWork>> {
    inner.database.run(Mode::Read, |connection| {
        let n = find(connection, inner, space)?.number;
        let sql = format!(
            "SELECT worker, count(*), (extract(epoch FROM max(until) - clock_timestamp()) * 1000)::bigint FROM rehang.claim_{n}
             WHERE until > clock_timestamp() GROUP BY worker ORDER BY worker COLLATE \"C\""
        );
        connection
            .query(&sql, &[])?
            .iter()
            .map(|row| {
                Ok(AtWork {
                    worker: row.try_get(0)?,
                    items: row.try_get::<_, i64>(1)?.max(0) as u64,
                    left_ms: row.try_get::<_, i64>(2)?.max(0) as u64,
                })
            })
            .collect()
    })
}
