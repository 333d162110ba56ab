//! Checks of everything that enters a store, whichever store it is, and the words of each refusal: for those
//! who write a store.

#![allow(clippy::missing_errors_doc, reason = "each function says what it refuses; that is its error")]

use std::fmt;

use rehang_core::check::{expect_finite, expect_width, is_finite};
use rehang_core::{Error, ErrorKind, Matrix, NORMALISED_TOLERANCE, Provenance, Result, Space, norm};

use crate::contract::{Epoch, ItemWrite, Ledger, Priority, SpaceRecord, VectorWrite};

/// Checks a vector: it is as wide as its space, finite, and of length 1 where the space says so.
///
/// A vector that is made for the upgrade, or by the new model, also needs a direction where cosines are
/// compared. An old one may be without: the application has it as it is.
pub fn vector(
    space: &Space,
    provenance: Provenance,
    vector: &[f32],
    whose: impl Fn() -> String,
) -> Result<()> {
    let what = fmt::from_fn(|f| write!(f, "the vector of {} for space {:?}", whose(), space.name));
    expect_width(&what, space.dimension, vector.len())?;
    if !is_finite(vector) {
        expect_finite(&what.to_string(), vector)?;
    }
    if space.normalised {
        let norm = norm(vector);
        if (norm - 1.0).abs() > NORMALISED_TOLERANCE {
            return Err(ErrorKind::NotNormalised { what: what.to_string(), row: 0, norm }.into());
        }
    }
    if provenance != Provenance::Old && !space.distance.can_place(vector) {
        return Err(ErrorKind::NoDirection { what: what.to_string() }.into());
    }
    Ok(())
}

/// Checks everything of an application's write that can be checked without the store's content; `space` looks
/// up its spaces.
pub fn item_write<'a>(write: &ItemWrite, mut space: impl FnMut(&str) -> Result<&'a Space>) -> Result<()> {
    if write.id.contains(['\n', '\r']) {
        return Err(Error::option(
            "an item's id",
            format!("{:?}", write.id),
            "one line: lists of ids have one a line, and a break would shift all that follow",
        ));
    }
    for (at, new) in write.vectors.iter().enumerate() {
        let whose = || format!("item {:?}", write.id);
        vector(space(&new.space)?, new.provenance, &new.vector, whose)?;
        expect_not_nan("sigma2", new.sigma2.map(f64::from))?;
        priority(new.priority)?;
        if (new.provenance == Provenance::Adapted) != new.epoch.is_some() {
            return Err(Error::option(
                format!("the epoch of {}'s {} vector", whose(), new.provenance),
                new.epoch.map_or("none".to_owned(), |epoch| epoch.to_string()),
                "that of its plan for an adapted vector, and none for any other",
            ));
        }
        if write.vectors[..at].iter().any(|other| other.space == new.space) {
            let value = format_args!("a vector for space {:?}", new.space);
            return Err(Error::duplicate(format_args!("the write of {}", whose()), value));
        }
    }
    Ok(())
}

/// Checks everything of an upgrade's write that can be checked without the store's content.
pub fn vector_write(space: &Space, epoch: Option<Epoch>, write: &VectorWrite) -> Result<()> {
    vector(space, write.provenance, &write.vector, || format!("item {}", write.key))?;
    if write.provenance == Provenance::Old {
        return Err(Error::option("the provenance of an upgrade's write", "old", "adapted or native"));
    }
    if write.provenance == Provenance::Adapted && epoch.is_none() {
        return Err(Error::option("the epoch of an adapted vector", "none", "that of its plan"));
    }
    expect_not_nan("sigma2", write.sigma2.map(f64::from))?;
    priority(write.priority)?;
    expect_not_nan("squared_error", write.squared_error.map(f64::from))
}

/// Refuses NaN where an order is made from a number: it has no place in one.
pub fn expect_not_nan(name: &str, value: Option<f64>) -> Result<()> {
    match value {
        Some(value) if value.is_nan() => Err(Error::option(name, "NaN", "a number, or none at all")),
        _ => Ok(()),
    }
}

/// Refuses a priority whose score is NaN, since scores order the queue.
pub fn priority(priority: Option<Priority>) -> Result<()> {
    expect_not_nan("priority", priority.map(|priority| priority.score))
}

/// Refuses a write of a plan that another plan has replaced: `carried` is the write's epoch, `now` the
/// space's.
pub fn epoch(space: &str, carried: Epoch, now: Epoch) -> Result<()> {
    if carried == now {
        return Ok(());
    }
    Err(Error::superseded(
        format!("space {space:?}"),
        format!("it is in epoch {now}, and the write was made for epoch {carried}; nothing was written"),
    ))
}

/// Checks that a space can be made: it has a name, its dimension is in range, and applications' vectors in it
/// are not adapted.
pub fn new_space(space: &Space, written_as: Provenance) -> Result<()> {
    if space.name.is_empty() {
        return Err(Error::option("the name of a space", "", "the name of the model that makes its vectors"));
    }
    if space.dimension == 0 || space.dimension > DIMENSION_MAX {
        return Err(Error::option(
            format!("the dimension of space {:?}", space.name),
            space.dimension,
            format!("1 to {DIMENSION_MAX}"),
        ));
    }
    if written_as == Provenance::Adapted {
        return Err(Error::option(
            format!("the provenance that applications' vectors get in space {:?}", space.name),
            "adapted",
            "old or native: an adapter's vectors are never an application's own",
        ));
    }
    Ok(())
}

/// Checks that queries are as wide as the space and finite.
pub fn queries(space: &Space, queries: &Matrix) -> Result<()> {
    let what = format!("the queries to space {:?}", space.name);
    if queries.rows() > 0 {
        expect_width(&what, space.dimension, queries.columns())?;
    }
    queries.check_finite(&what)
}

/// Widest vector of a gallery; anything wider is taken for a slip.
pub const DIMENSION_MAX: usize = 1 << 16;

/// Checks that a space that is there already has the very properties that are wanted.
pub fn same_space(existing: &SpaceRecord, space: &Space, written_as: Provenance) -> Result<()> {
    if existing.space == *space && existing.written_as == written_as {
        return Ok(());
    }
    Err(Error::conflict(
        format!("space {:?}", space.name),
        format!(
            "the gallery has it as {} written as {}, not as {space} written as {written_as}; \
             give the new space a name of its own",
            existing.space, existing.written_as
        ),
    ))
}

/// Refusal to drop the serving space.
pub fn serving_space_stays(space: &str) -> Error {
    Error::conflict(
        format!("space {space:?}"),
        "it is the serving space; switch searches to another space before it is dropped",
    )
}

/// Refusal of a switch of searches that another switch overtook.
pub fn another_serves(from: &str, to: &str, serving: &str) -> Error {
    Error::conflict(
        format!("switching searches from space {from:?} to {to:?}"),
        format!("space {serving:?} serves now; look at the state of the gallery, then decide again"),
    )
}

/// Refusal where a store has no space of this name; it lists the spaces that the store has.
pub fn no_such_space<'a>(name: &str, store: &str, names: impl Iterator<Item = &'a str>) -> Error {
    let names: Vec<&str> = names.collect();
    let place = if names.is_empty() {
        format!("{store}, which has no spaces")
    } else {
        format!("{store}, which has {}", names.join(", "))
    };
    Error::not_found("space", name, place)
}

/// Looks up a space of a gallery by name.
///
/// # Errors
///
/// Not found where there is none, naming those there are; those of [`Ledger::spaces`].
pub fn expect_space(ledger: &dyn Ledger, name: &str) -> Result<SpaceRecord> {
    expect_listed(ledger, &ledger.spaces()?, name).cloned()
}

/// Looks up a space by name among those of a gallery as they were read.
///
/// # Errors
///
/// Not found where there is none, naming those there are.
pub fn expect_listed<'a>(
    ledger: &dyn Ledger,
    spaces: &'a [SpaceRecord],
    name: &str,
) -> Result<&'a SpaceRecord> {
    spaces.iter().find(|record| record.space.name == name).ok_or_else(|| {
        no_such_space(name, &ledger.name(), spaces.iter().map(|record| record.space.name.as_str()))
    })
}

/// Checks that a space still is in epoch `from`, so that no other process has begun the next one.
pub fn same_epoch(space: &str, from: Epoch, now: Epoch) -> Result<()> {
    if from == now {
        return Ok(());
    }
    Err(Error::changed_meanwhile(
        format!("the epoch of space {space:?}"),
        format!("{from} was expected and {now} is there"),
    ))
}

/// Returns the version of a document that replaces the one that is there, unless another process has changed
/// it.
pub fn next_version(name: &str, expected: Option<u64>, current: Option<u64>) -> Result<u64> {
    if current == expected {
        let next = current.unwrap_or(0).checked_add(1);
        return next.ok_or_else(|| {
            Error::corrupt(format!("document {name:?}"), "there is no version after its own")
        });
    }
    let words = |version: Option<u64>| {
        version.map_or_else(|| "none".to_owned(), |version| format!("version {version}"))
    };
    Err(Error::changed_meanwhile(
        format!("document {name:?}"),
        format!(
            "another writer was faster: {} was expected and {} is there; read it again, then decide",
            words(expected),
            words(current)
        ),
    ))
}
