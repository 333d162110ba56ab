//! The map of an upgrade, where the trigger can reach it. With it, a row that an application writes with an
//! old vector alone is found by searches of the new space from the transaction on that writes it.
//! `rehang.map` has a row for the map, and its layers lie among the [matrices].
//!
//! The map holds for one epoch of its space. Once an upgrade is planned anew or rolled back, the trigger
//! adapts nothing until another map is kept. A transaction that was open in that moment may commit an
//! adapted vector of the earlier map. That vector is an estimate of the same native vector, and stands at
//! the front of the queue.

use std::borrow::Cow;

use rehang_core::adapter::{Adapter, Dense, Geometry, InputScaling, KernelExpansion, Uncertainty};
use rehang_core::{Matrix, Result};
use rehang_store::Epoch;

use crate::connection::{Connection, Mode, Step};
use crate::handle::Handle;
use crate::matrices;
use crate::spaces::find;
use crate::values::int;

/// Numbers of matrices that each row of an application is multiplied by at most: 4,096 kernels from
/// 384 to 384 coordinates.
const NUMBERS_MAX: usize = 3 << 20;
/// Centres of kernels whose coefficients for a coordinate lie in one row: two such rows fill a page.
const BLOCK: usize = 960;

/// Statement that makes the table of maps.
pub(crate) const TABLE: &str = include_str!("sql/map_table.sql");

/// Function that applies the map in use to an old vector, as `rehang_core::adapter::apply` does, and gives the
/// space, the vector and σ². It gives nothing where there is no map of the epoch of its space, or the vector
/// has another width or no direction. A raw output of length 0, which has no direction either, is left to
/// those that have the adapter.
pub(crate) const FUNCTIONS: &str = include_str!("sql/map.sql");

/// Returns the layers of a map that SQL can apply: those of the closed forms, ridge, Procrustes, low rank and
/// kernel ridge. `None` for any other map.
fn layers(adapter: &Adapter) -> Option<Cow<'_, [Dense]>> {
    let map = &adapter.map;
    let is_of_layers = map.branch.is_empty()
        && map.second.is_none()
        && map.skip.is_none()
        && map.per_kind.is_none()
        && map.mixer.iter().all(|layer| !layer.relu);
    match (&map.kernel, &map.mixer[..]) {
        (None, [_, ..]) if is_of_layers => Some(Cow::Borrowed(&map.mixer)),
        // Kernels are added to the mean new vector.
        (Some(kernel), [mean]) if is_of_layers && mean.weight.as_slice().iter().all(|it| *it == 0.0) => {
            Some(Cow::Owned(blocks(kernel, &mean.bias)))
        }
        _ => None,
    }
}

/// Writes kernels as layers in turn: the centres of a block, then their coefficients for each
/// coordinate of the output.
///
/// Single precision loses digits where large terms cancel. So the kernel of the centres' mean distance,
/// which most kernels are near to, is subtracted from each kernel before it is multiplied. The bias adds to
/// the sum what this takes away.
fn blocks(kernel: &KernelExpansion, mean: &[f32]) -> Vec<Dense> {
    let layer = |weight: Matrix, bias: Vec<f32>| Dense { weight, bias, relu: false };
    let KernelExpansion { centres, coefficients, gamma } = kernel;
    let (rows, count): (Vec<usize>, f64) = ((0..centres.rows()).collect(), centres.rows() as f64);
    let mean_of = |column: usize, value: fn(f64) -> f64| {
        rows.iter().map(|&row| value(f64::from(centres.row(row)[column]))).sum::<f64>() / count
    };
    let variance: f64 = (0..centres.columns())
        .map(|column| mean_of(column, |value| value * value) - mean_of(column, |value| value).powi(2))
        .sum();
    let usual = (-2.0 * f64::from(*gamma) * variance).exp() as f32;
    let bias_of = |output: usize| {
        let sum: f64 = rows.iter().map(|&row| f64::from(coefficients.row(row)[output])).sum();
        (f64::from(mean[output]) + f64::from(usual) * sum) as f32
    };
    rows.chunks(BLOCK)
        .flat_map(|block| {
            let weights = Matrix::from_fn(mean.len(), block.len(), |output, centre| {
                coefficients.row(block[centre])[output]
            });
            let bias = (0..mean.len()).map(|output| if block[0] == 0 { bias_of(output) } else { 0.0 });
            [layer(centres.select(block), vec![usual; block.len()]), layer(weights, bias.collect())]
        })
        .collect()
}

/// Keeps a map with its fingerprint, by which the trigger adapts what the application writes into its column,
/// from now on and in this epoch of the space. With `None` the trigger adapts nothing. Returns the reason
/// where the trigger cannot use the map.
pub(crate) fn keep(
    handle: &Handle,
    space: &str,
    map: Option<(Epoch, &str, &Adapter)>,
) -> Result<Option<String>> {
    let reads_column = map.is_some_and(|(.., adapter)| handle.column_of(&adapter.old.name).is_some());
    if map.is_some() && !reads_column {
        // The application's column has the vectors that another upgrade began with, if any.
        return Ok(None);
    }
    let with_layers = map.map(|(epoch, fingerprint, adapter)| (epoch, fingerprint, adapter, layers(adapter)));
    handle.database.run(Mode::Write, |connection| {
        handle.lock(connection)?;
        let row = find(connection, handle, space)?;
        let why = match &with_layers {
            Some((epoch, ..)) if *epoch != row.record.epoch => return Ok(None),
            Some((epoch, fingerprint, adapter, Some(layers))) => {
                let numbers: usize = layers.iter().map(|layer| layer.weight.as_slice().len()).sum();
                if numbers <= NUMBERS_MAX {
                    write(connection, handle, row.number, (*epoch, *fingerprint, *adapter), layers)?;
                    return Ok(None);
                }
                Some(format!("its {numbers} numbers are too many to multiply each row by"))
            }
            Some((.., adapter, None)) => {
                Some(format!("it is neither matrices nor kernels ({})", adapter.training.method))
            }
            None => None,
        };
        let sql = "DELETE FROM rehang.map AS m WHERE m.gallery = $1 AND m.space = $2";
        connection.execute(sql, &[&handle.number, &row.number])?;
        matrices::drop_unused(connection, handle)?;
        Ok(why)
    })
}

/// Tells where an upgrade is filled and the application writes its old vectors, and the
/// trigger adapts none of them.
pub(crate) fn remarks(handle: &Handle) -> Result<Option<String>> {
    handle.database.run(Mode::Read, |connection| {
        let sql = "SELECT EXISTS (SELECT 1 FROM rehang.document AS d, rehang.space AS o
                WHERE d.gallery = $1 AND d.name = 'upgrade' AND d.text::jsonb ->> 'phase' = 'filled' AND d.text::jsonb ->> 'adapter' <> '' AND o.gallery = $1
                    AND o.name = d.text::jsonb #>> '{old,model}' AND o.in_column IS NOT NULL)
            AND NOT EXISTS (SELECT 1 FROM rehang.map AS m JOIN rehang.space AS s ON s.number = m.space AND s.epoch = m.epoch WHERE m.gallery = $1)";
        let adapts_none: bool = connection.query_one(sql, &[&handle.number])?.try_get(0)?;
        Ok(adapts_none.then(|| {
            "the trigger does not adapt what the application writes with an old vector alone, since the map is neither matrices nor kernels, or a large one: searches \
             find such a row once a run has caught up with it, a follower within a second"
                .to_owned()
        }))
    })
}

fn write(
    connection: &mut Connection,
    handle: &Handle,
    space: i32,
    (epoch, fingerprint, adapter): (Epoch, &str, &Adapter),
    layers: &[Dense],
) -> Step<()> {
    matrices::write(connection, handle, fingerprint, layers)?;
    let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    let (raw_lengths, lengths) = match &adapter.geometry {
        Geometry::MatchedNorms { raw, native } => (Some(&raw[..]), Some(&native[..])),
        Geometry::Raw | Geometry::Sphere { .. } => (None, None),
    };
    let sigma2 = match adapter.uncertainty {
        Uncertainty::Constant { variance } => Some(variance),
        Uncertainty::Linear { .. } | Uncertainty::OutOfFold(_) => None,
    };
    connection.execute(
        "INSERT INTO rehang.map (gallery, space, epoch, fingerprint, width, layers, scales, gamma, from_direction, has_length_one, raw_lengths, lengths, sigma2)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
         ON CONFLICT (gallery) DO UPDATE SET space = EXCLUDED.space, epoch = EXCLUDED.epoch, fingerprint = EXCLUDED.fingerprint, width = EXCLUDED.width,
             layers = EXCLUDED.layers, scales = EXCLUDED.scales, gamma = EXCLUDED.gamma, from_direction = EXCLUDED.from_direction, has_length_one = EXCLUDED.has_length_one,
             raw_lengths = EXCLUDED.raw_lengths, lengths = EXCLUDED.lengths, sigma2 = EXCLUDED.sigma2",
        &[
            &handle.number,
            &space,
            &int(epoch.number()),
            &fingerprint,
            &count(adapter.old.dimension),
            &count(layers.len()),
            &(adapter.map.input == InputScaling::UnitLength),
            &adapter.map.kernel.as_ref().map(|kernel| kernel.gamma),
            &!adapter.old.distance.heeds_lengths(),
            &matches!(adapter.geometry, Geometry::Sphere { .. }),
            &raw_lengths,
            &lengths,
            &sigma2,
        ],
    )?;
    matrices::drop_unused(connection, handle)
}
