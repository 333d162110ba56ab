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
pub(crate) const TABLE: &str = include_str!("sql/bridge_table.sql");

/// Function that makes the query for the old space, as [`Bridge::queries`] makes it.
pub(crate) const FUNCTIONS: &str = include_str!("sql/bridge.sql");

/// Stores a bridge under its fingerprint where searches by SQL find it, and removes all others
/// except the one in use.
pub(crate) fn keep(handle: &Handle, bridge: Option<(&str, &Bridge)>) -> Result<()> {
    handle.database.run(Mode::Write, |connection| {
        handle.lock(connection)?;
        if let Some((fingerprint, bridge)) = bridge {
            write(connection, handle, fingerprint, bridge)?;
        }
        let fingerprint = bridge.map(|(fingerprint, _)| fingerprint);
        connection.execute(
            "DELETE FROM rehang.bridge AS b WHERE b.gallery = $1 AND b.fingerprint IS DISTINCT FROM $2 AND b.fingerprint IS DISTINCT FROM
                 (SELECT d.text::jsonb #>> '{bridge,fingerprint}' FROM rehang.document AS d WHERE d.gallery = $1 AND d.name = 'upgrade')",
            &[&handle.number, &fingerprint],
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
