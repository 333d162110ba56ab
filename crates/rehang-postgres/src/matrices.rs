//! Matrices that SQL multiplies vectors by, where they lie: `rehang.matrix_row` has the rows of all layers,
//! by the fingerprint of the map or bridge that they belong to.
//!
//! A layer is `W x + b`, and layers follow each other. The map by which the trigger adapts and the bridge
//! that queries go over each have a table of their own.

use pgvector::Vector;
use rehang_core::adapter::Dense;

use crate::connection::{Connection, Step};
use crate::handle::Handle;
use crate::parameter::{Many, Parameter};
use crate::pgvector::Pgvector;

/// Numbers of a matrix that one statement writes.
const WRITTEN_TOGETHER: usize = 1 << 18;

/// The table. A row of a matrix stays in its table's own page as long as it fits there: beside it, in pieces,
/// it is read several times slower.
pub(crate) fn table(pgvector: &Pgvector) -> String {
    format!(
        "DO $rehang$ BEGIN
    IF to_regclass('rehang.matrix_row') IS NULL THEN
        CREATE TABLE rehang.matrix_row (
            gallery int NOT NULL REFERENCES rehang.gallery ON DELETE CASCADE,
            fingerprint text NOT NULL,
            layer int NOT NULL,
            at int NOT NULL,
            weight {} NOT NULL,
            bias real NOT NULL,
            PRIMARY KEY (gallery, fingerprint, layer, at)
        );
        ALTER TABLE rehang.matrix_row ALTER COLUMN weight SET STORAGE MAIN;
    END IF;
END $rehang$;
",
        pgvector.vector()
    )
}

/// Functions that multiply. `mapped` applies layers to a vector, which is scaled to length 1 first where
/// they were fitted so. `expanded` applies kernels, whose centres and coefficients are layers in turn,
/// block by block. `rounded` turns numbers into single precision, where the server refuses to round those
/// that are nothing there.
pub(crate) const FUNCTIONS: &str = include_str!("sql/matrices.sql");

/// Whether all `rows` of what a fingerprint is of are there.
pub(crate) fn is_whole(
    connection: &mut Connection,
    handle: &Handle,
    fingerprint: &str,
    rows: usize,
) -> Step<bool> {
    let sql = "SELECT count(*) FROM rehang.matrix_row AS w WHERE w.gallery = $1 AND w.fingerprint = $2";
    Ok(connection.count(sql, &[&handle.number, &fingerprint])? == rows as u64)
}

/// Writes layers, where they are not there already. An operator may have deleted some of their rows:
/// then all are written anew.
pub(crate) fn write(
    connection: &mut Connection,
    handle: &Handle,
    fingerprint: &str,
    layers: &[Dense],
) -> Step<()> {
    let rows = layers.iter().map(|layer| layer.weight.rows()).sum();
    if is_whole(connection, handle, fingerprint, rows)? {
        return Ok(());
    }
    let part = "DELETE FROM rehang.matrix_row AS w WHERE w.gallery = $1 AND w.fingerprint = $2";
    connection.execute(part, &[&handle.number, &fingerprint])?;
    let sql = format!(
        "INSERT INTO rehang.matrix_row (gallery, fingerprint, layer, at, weight, bias)
         SELECT $1, $2, $3, $4 + w.at::int, w.weight, w.bias FROM unnest($5::{}[], $6::real[]) WITH ORDINALITY AS w(weight, bias, at)",
        handle.pgvector.vector()
    );
    for (layer, number) in layers.iter().zip(0_i32..) {
        let rows: Vec<usize> = (0..layer.weight.rows()).collect();
        for page in rows.chunks((WRITTEN_TOGETHER / layer.weight.columns().max(1)).max(1)) {
            let values = page.iter().map(|row| Vector::from(layer.weight.row(*row).to_vec())).collect();
            let weights = Many::<Vector>::new(&handle.pgvector.vectors, values);
            let biases: Vec<f32> = page.iter().map(|row| layer.bias[*row]).collect();
            let before = i32::try_from(page[0]).unwrap_or(i32::MAX);
            let parameters: [&dyn Parameter; 6] =
                [&handle.number, &fingerprint, &number, &before, &weights, &biases];
            connection.execute(&sql, &parameters)?;
        }
    }
    Ok(())
}

/// Removes the matrices of the gallery that belong to no bridge and no map any more.
pub(crate) fn drop_unused(connection: &mut Connection, handle: &Handle) -> Step<()> {
    let sql = "DELETE FROM rehang.matrix_row AS w WHERE w.gallery = $1 AND w.fingerprint NOT IN (
        SELECT b.fingerprint FROM rehang.bridge AS b WHERE b.gallery = $1 UNION ALL SELECT m.fingerprint FROM rehang.map AS m WHERE m.gallery = $1)";
    connection.execute(sql, &[&handle.number]).map(drop)
}
