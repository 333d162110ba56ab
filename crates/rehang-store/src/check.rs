//! What must hold of everything that enters a store, whichever store it is.

use rehang::{Error, ErrorKind, Matrix, NORMALISED_TOLERANCE, Provenance, Result, Space, norm};

use crate::contract::{Epoch, ItemWrite, Priority, VectorWrite};

/// A vector enters only if it is as wide as its space, finite, and of length 1 where the space says so.
pub(crate) fn vector(space: &Space, vector: &[f32], whose: impl Fn() -> String) -> Result<()> {
    let what = || format!("the vector of {} for space {:?}", whose(), space.name);
    if vector.len() != space.dimension {
        return Err(ErrorKind::WidthMismatch {
            what: what(),
            expected: space.dimension,
            received: vector.len(),
        }
        .into());
    }
    if let Some(column) = vector.iter().position(|value| !value.is_finite()) {
        return Err(ErrorKind::NotFinite { what: what(), row: 0, column }.into());
    }
    if space.normalised {
        let norm = norm(vector);
        if (norm - 1.0).abs() > NORMALISED_TOLERANCE {
            return Err(ErrorKind::NotNormalised { what: what(), row: 0, norm }.into());
        }
    }
    Ok(())
}

/// Everything about an application's write that can be said without looking into the store, but for the spaces, which
/// `space` looks up.
pub(crate) fn item_write<'a>(
    write: &ItemWrite,
    mut space: impl FnMut(&str) -> Result<&'a Space>,
) -> Result<()> {
    if write.id.contains(['\n', '\r']) {
        return Err(Error::option(
            "an item's id",
            format!("{:?}", write.id),
            "one line: lists of ids have one a line, and a break would shift all that follow",
        ));
    }
    for (at, new) in write.vectors.iter().enumerate() {
        let whose = || format!("item {:?}", write.id);
        vector(space(&new.space)?, &new.vector, whose)?;
        number("sigma2", new.sigma2.map(f64::from))?;
        priority(new.priority)?;
        if (new.provenance == Provenance::Adapted) != new.epoch.is_some() {
            return Err(Error::option(
                format!("the epoch of {}'s {} vector", whose(), new.provenance),
                new.epoch.map_or("none".to_owned(), |epoch| epoch.to_string()),
                "that of its plan for an adapted vector, and none for any other",
            ));
        }
        if write.vectors[..at].iter().any(|other| other.space == new.space) {
            return Err(ErrorKind::Duplicate {
                what: format!("the write of {}", whose()),
                value: format!("a vector for space {:?}", new.space),
            }
            .into());
        }
    }
    Ok(())
}

/// Everything about an upgrade's write that can be said without looking into the store.
pub(crate) fn vector_write(space: &Space, epoch: Option<Epoch>, write: &VectorWrite) -> Result<()> {
    vector(space, &write.vector, || format!("item {}", write.key))?;
    if write.provenance == Provenance::Old {
        return Err(Error::option("the provenance of an upgrade's write", "old", "adapted or native"));
    }
    if write.provenance == Provenance::Adapted && epoch.is_none() {
        return Err(Error::option("the epoch of an adapted vector", "none", "that of its plan"));
    }
    number("sigma2", write.sigma2.map(f64::from))?;
    priority(write.priority)?;
    number("squared_error", write.squared_error.map(f64::from))
}

/// NaN has no place in an order, so it is refused where orders are made from a number.
pub(crate) fn number(name: &str, value: Option<f64>) -> Result<()> {
    match value {
        Some(value) if value.is_nan() => Err(Error::option(name, "NaN", "a number, or none at all")),
        _ => Ok(()),
    }
}

/// Scores order the queue.
pub(crate) fn priority(priority: Option<Priority>) -> Result<()> {
    number("priority", priority.map(|priority| priority.score))
}

/// Nothing is written for a plan that another one has replaced.
pub(crate) fn epoch(space: &str, carried: Epoch, now: Epoch) -> Result<()> {
    if carried == now {
        return Ok(());
    }
    Err(Error::superseded(
        format!("space {space:?}"),
        format!("it is in epoch {now}, and the write was made for epoch {carried}; nothing was written"),
    ))
}

/// A space can be made if its vectors have coordinates and applications' vectors in it are their models' own.
pub(crate) fn new_space(space: &Space, written_as: Provenance) -> Result<()> {
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

/// Queries must be as wide as the space and finite.
pub(crate) fn queries(space: &Space, queries: &Matrix) -> Result<()> {
    let what = || format!("the queries to space {:?}", space.name);
    if queries.rows() > 0 && queries.columns() != space.dimension {
        return Err(ErrorKind::WidthMismatch {
            what: what(),
            expected: space.dimension,
            received: queries.columns(),
        }
        .into());
    }
    queries.check_finite(&what())
}

/// Widest vector of a gallery; anything wider is taken for a slip.
pub(crate) const DIMENSION_MAX: usize = 1 << 16;
