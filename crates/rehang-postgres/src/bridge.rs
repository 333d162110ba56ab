//! The bridge that is in use, where an application's own SQL can reach it: `rehang.bridge` has a row for it,
//! and its matrix lies among the [matrices].
//!
//! Only the document `upgrade` says which bridge searches use, by its fingerprint. No search reads a bridge
//! that lies here under another fingerprint.

use rehang_core::adapter::InputScaling;
use rehang_core::{Bridge, Error, Result};

use crate::connection::{Connection, Mode, Step};
use crate::handle::Handle;
use crate::matrices;

/// Statement that makes the table of bridges.
pub(crate) const TABLE: &str = "CREATE TABLE IF NOT EXISTS rehang.bridge (
    gallery int NOT NULL REFERENCES rehang.gallery ON DELETE CASCADE,
    fingerprint text NOT NULL,
    model text NOT NULL,
    width int NOT NULL,
    scales boolean NOT NULL,
    share float8 NOT NULL CHECK (share > 0 AND share <= 1),
    length float8 NOT NULL,
    PRIMARY KEY (gallery, fingerprint)
);
";

/// Function that makes the query for the old space, as [`Bridge::queries`] makes it.
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
    turned := rehang.mapped(gallery, fingerprint, 1, b.scales, new_query);
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
    RETURN rehang.rounded(turned)::VECTOR;
END
$rehang$;
";

/// Stores a bridge under its fingerprint where searches by SQL find it, and removes all others
/// except the one in use.
pub(crate) fn keep(handle: &Handle, bridge: Option<(&str, &Bridge)>) -> Result<()> {
    handle.database.run(Mode::Write, |connection| {
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
        matrices::drop_unused(connection, handle)
    })
}

/// Whether searches by SQL lack a bridge, or any of the `rows` rows of its matrix.
pub(crate) fn lacks(handle: &Handle, fingerprint: &str, rows: usize) -> Result<bool> {
    handle.database.run(Mode::Read, |connection| {
        Ok(!is_there(connection, handle, fingerprint)?
            || !matrices::is_whole(connection, handle, fingerprint, rows)?)
    })
}

fn is_there(connection: &mut Connection, handle: &Handle, fingerprint: &str) -> Step<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM rehang.bridge AS b WHERE b.gallery = $1 AND b.fingerprint = $2)";
    Ok(connection.query_one(sql, &[&handle.number, &fingerprint])?.try_get(0)?)
}

fn write(connection: &mut Connection, handle: &Handle, fingerprint: &str, bridge: &Bridge) -> Step<()> {
    let [layer] = &bridge.map.mixer[..] else {
        return Err(Error::corrupt("the bridge", "its map is one layer").into());
    };
    matrices::write(connection, handle, fingerprint, std::slice::from_ref(layer))?;
    let (scales, length) = (
        bridge.map.input == InputScaling::UnitLength,
        if bridge.old.normalised { 1.0 } else { bridge.length },
    );
    connection.execute(
        "INSERT INTO rehang.bridge (gallery, fingerprint, model, width, scales, share, length) VALUES ($1, $2, $3, $4, $5, $6, $7)
         ON CONFLICT DO NOTHING",
        &[
            &handle.number,
            &fingerprint,
            &bridge.new.name,
            &i32::try_from(layer.weight.columns()).unwrap_or(i32::MAX),
            &scales,
            &bridge.share,
            &length,
        ],
    )?;
    Ok(())
}
