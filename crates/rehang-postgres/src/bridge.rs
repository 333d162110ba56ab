//! The bridge that is in use, where an application's own SQL can reach it: `rehang.bridge` has a row for it, `rehang.bridge_row` its matrix.
//!
//! The document `upgrade` alone says which bridge searches use, by its fingerprint. No search reads what lies here under another one.

use pgvector::Vector;
use rehang::adapter::InputScaling;
use rehang::{Bridge, Error, Remedy, Result};

use crate::connection::{Connection, Mode, Step};
use crate::handle::Handle;
use crate::parameter::{Many, Parameter};
use crate::pgvector::Pgvector;

/// Numbers of a matrix that one statement writes.
const WRITTEN_TOGETHER: usize = 1 << 18;

/// The tables. A row of a matrix stays in its table's own page as long as it fits there: beside it, in pieces, it is read several times slower.
pub(crate) fn tables(pgvector: &Pgvector) -> String {
    format!(
        "CREATE TABLE IF NOT EXISTS rehang.bridge (
    gallery int NOT NULL REFERENCES rehang.gallery ON DELETE CASCADE,
    fingerprint text NOT NULL,
    model text NOT NULL,
    width int NOT NULL,
    scales boolean NOT NULL,
    share float8 NOT NULL CHECK (share > 0 AND share <= 1),
    length float8 NOT NULL,
    PRIMARY KEY (gallery, fingerprint)
);
DO $rehang$ BEGIN
    IF to_regclass('rehang.bridge_row') IS NULL THEN
        CREATE TABLE rehang.bridge_row (
            gallery int NOT NULL,
            fingerprint text NOT NULL,
            at int NOT NULL,
            weight {} NOT NULL,
            bias real NOT NULL,
            PRIMARY KEY (gallery, fingerprint, at),
            FOREIGN KEY (gallery, fingerprint) REFERENCES rehang.bridge ON DELETE CASCADE
        );
        ALTER TABLE rehang.bridge_row ALTER COLUMN weight SET STORAGE MAIN;
    END IF;
END $rehang$;
",
        pgvector.vector()
    )
}

/// The query for the old space, as [`Bridge::queries`] makes it.
pub(crate) const FUNCTIONS: &str = "
CREATE OR REPLACE FUNCTION rehang.bridged(gallery int, fingerprint text, old_query VECTOR, new_query VECTOR) RETURNS VECTOR LANGUAGE plpgsql STABLE AS $rehang$
DECLARE
    b rehang.bridge;
    old_length float8 := coalesce(PGVECTOR.vector_norm(old_query), 0);
    new_length float8 := PGVECTOR.vector_norm(new_query);
    turned float8[];
    mixed float8[];
    length float8;
BEGIN
    SELECT * INTO b FROM rehang.bridge AS one WHERE one.gallery = bridged.gallery AND one.fingerprint = bridged.fingerprint;
    turned := ARRAY(SELECT (w.weight OPERATOR(PGVECTOR.<#>) new_query) / CASE WHEN b.scales AND new_length > 0 THEN -new_length ELSE -1 END + w.bias
        FROM rehang.bridge_row AS w WHERE w.gallery = bridged.gallery AND w.fingerprint = bridged.fingerprint ORDER BY w.at);
    -- A query without a direction is turned into none.
    length := CASE WHEN new_length > 0 THEN (SELECT sqrt(sum(g.value ^ 2)) FROM unnest(turned) AS g(value)) ELSE 0 END;
    turned := ARRAY(SELECT coalesce(g.value / nullif(length, 0), 0) FROM unnest(turned) WITH ORDINALITY AS g(value, at) ORDER BY g.at);
    mixed := ARRAY(SELECT (1 - b.share) * coalesce(m.own / nullif(old_length, 0), 0) + b.share * m.turned
        FROM unnest(old_query::real[], turned) WITH ORDINALITY AS m(own, turned, at) ORDER BY m.at);
    length := (SELECT sqrt(sum(m.value ^ 2)) FROM unnest(mixed) AS m(value));
    -- What is left of two that cancel is rounding, and no direction.
    IF length > EPSILON THEN
        length := CASE WHEN old_length > 0 THEN old_length ELSE b.length END / length;
        turned := ARRAY(SELECT m.value * length FROM unnest(mixed) WITH ORDINALITY AS m(value, at) ORDER BY m.at);
    ELSIF old_length > 0 THEN
        RETURN old_query;
    END IF;
    -- The server refuses to round to single precision what is nothing there.
    RETURN ARRAY(SELECT CASE WHEN abs(m.value) < 1e-37 THEN 0 ELSE m.value END::real FROM unnest(turned) WITH ORDINALITY AS m(value, at) ORDER BY m.at)::VECTOR;
END
$rehang$;
";

/// An earlier version made galleries without them, and its functions know no bridge.
fn has_tables(connection: &mut Connection) -> Step<bool> {
    Ok(connection.query_one("SELECT to_regclass('rehang.bridge') IS NOT NULL", &[])?.try_get(0)?)
}

/// Has a bridge, by its fingerprint, where searches by SQL find it; takes away all others but the one in use.
pub(crate) fn keep(handle: &Handle, bridge: Option<(&str, &Bridge)>) -> Result<()> {
    handle.database.run(Mode::Write, |connection| {
        if !has_tables(connection)? {
            let what = format!("the gallery in {}", handle.table.options.table);
            let now = "without the tables that searches by SQL read a bridge from; adopting it once more makes them";
            return match bridge {
                Some(_) => Err(Error::wrong_phase(what, now).advise(Remedy::AdoptTable).into()),
                None => Ok(()),
            };
        }
        handle.lock(connection)?;
        if let Some((fingerprint, bridge)) = bridge {
            write(connection, handle, fingerprint, bridge)?;
        }
        let kept = bridge.map(|(fingerprint, _)| fingerprint);
        connection.execute(
            "DELETE FROM rehang.bridge AS b WHERE b.gallery = $1 AND b.fingerprint IS DISTINCT FROM $2 AND b.fingerprint IS DISTINCT FROM
                 (SELECT d.text::jsonb #>> '{bridge,fingerprint}' FROM rehang.document AS d WHERE d.gallery = $1 AND d.name = 'upgrade')",
            &[&handle.number, &kept],
        )?;
        Ok(())
    })
}

/// Whether searches by SQL do not find a bridge, or not all `rows` of its matrix.
pub(crate) fn lacks(handle: &Handle, fingerprint: &str, rows: usize) -> Result<bool> {
    handle.database.run(Mode::Read, |connection| {
        Ok(!has_tables(connection)? || !is_whole(connection, handle, fingerprint, rows)?)
    })
}

fn is_whole(connection: &mut Connection, handle: &Handle, fingerprint: &str, rows: usize) -> Step<bool> {
    let sql = "SELECT count(*) = $3 FROM rehang.bridge AS b JOIN rehang.bridge_row AS w ON w.gallery = b.gallery AND w.fingerprint = b.fingerprint
               WHERE b.gallery = $1 AND b.fingerprint = $2";
    let rows = i64::try_from(rows).unwrap_or(i64::MAX);
    Ok(connection.query_one(sql, &[&handle.number, &fingerprint, &rows])?.try_get(0)?)
}

fn write(connection: &mut Connection, handle: &Handle, fingerprint: &str, bridge: &Bridge) -> Step<()> {
    let [layer] = &bridge.map.mixer[..] else {
        return Err(Error::corrupt("the bridge", "its map is one layer").into());
    };
    let (scales, length) = (
        bridge.map.input == InputScaling::UnitLength,
        if bridge.old.normalised { 1.0 } else { bridge.length },
    );
    let width = layer.weight.columns();
    if is_whole(connection, handle, fingerprint, layer.weight.rows())? {
        return Ok(());
    }
    // An operator may have deleted rows of it: the rest goes, and all is written anew.
    let part = "DELETE FROM rehang.bridge AS b WHERE b.gallery = $1 AND b.fingerprint = $2";
    connection.execute(part, &[&handle.number, &fingerprint])?;
    connection.execute(
        "INSERT INTO rehang.bridge (gallery, fingerprint, model, width, scales, share, length) VALUES ($1, $2, $3, $4, $5, $6, $7)",
        &[
            &handle.number,
            &fingerprint,
            &bridge.new.name,
            &i32::try_from(width).unwrap_or(i32::MAX),
            &scales,
            &bridge.share,
            &length,
        ],
    )?;
    let sql = format!(
        "INSERT INTO rehang.bridge_row (gallery, fingerprint, at, weight, bias)
         SELECT $1, $2, $3 + w.at::int, w.weight, w.bias FROM unnest($4::{}[], $5::real[]) WITH ORDINALITY AS w(weight, bias, at)",
        handle.pgvector.vector()
    );
    let rows: Vec<usize> = (0..layer.weight.rows()).collect();
    for page in rows.chunks((WRITTEN_TOGETHER / width.max(1)).max(1)) {
        let values = page.iter().map(|row| Vector::from(layer.weight.row(*row).to_vec())).collect();
        let weights = Many::<Vector>::new(&handle.pgvector.vectors, values);
        let biases: Vec<f32> = page.iter().map(|row| layer.bias[*row]).collect();
        let before = i32::try_from(page[0]).unwrap_or(i32::MAX);
        let given: [&dyn Parameter; 5] = [&handle.number, &fingerprint, &before, &weights, &biases];
        connection.execute(&sql, &given)?;
    }
    Ok(())
}
