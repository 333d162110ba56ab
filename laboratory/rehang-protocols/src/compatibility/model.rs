//! Vectors of one model, and checks of several models together.

use rehang_core::check::expect_count;
use rehang_core::curve::check_vectors;
use rehang_core::{Error, ErrorKind, Matrix, Result};

/// Vectors of the items and of the queries by one model.
#[derive(Debug, Clone, Copy)]
pub struct Model<'a> {
    /// Name of the model.
    pub name: &'a str,
    /// Vectors of the gallery's items, `[n, d]`.
    pub gallery: &'a Matrix,
    /// Vectors of the queries, `[m, d]`; `None` where the gallery is its own query set and each query leaves
    /// itself out.
    pub queries: Option<&'a Matrix>,
}

/// Fails without models, where two have one name, and where not all are of the same items and queries.
pub(super) fn check_models<'a>(models: impl Iterator<Item = Model<'a>> + Clone) -> Result<()> {
    check_names(models.clone().map(|model| model.name))?;
    let mut first = None;
    for model in models {
        let first: &Model<'_> = first.get_or_insert(model);
        check_vectors(model.gallery, None, model.queries)
            .map_err(|error| error.context(format!("model {:?}", model.name)))?;
        let [own, expected] = [&model, first].map(|model| (model.name, model.gallery, model.queries));
        let named = |what: &str, name: &str| format!("{what} by {name:?}");
        expect_count(named("vectors", own.0), own.1.rows(), named("vectors", expected.0), expected.1.rows())?;
        match (expected.2, own.2) {
            (None, None) => {}
            (Some(all), Some(queries)) => {
                expect_count(
                    named("queries", own.0),
                    queries.rows(),
                    named("queries", expected.0),
                    all.rows(),
                )?;
            }
            (all, _) => {
                let without = if all.is_some() { own.0 } else { expected.0 };
                return Err(Error::missing("query vectors", format!("model {without:?}")));
            }
        }
    }
    Ok(())
}

/// Fails without models, and where two have one name.
pub(super) fn check_names<'a>(names: impl Iterator<Item = &'a str>) -> Result<()> {
    let mut sorted: Vec<&str> = names.collect();
    if sorted.is_empty() {
        return Err(ErrorKind::Empty { what: "the list of models".into() }.into());
    }
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Error::duplicate("the list of models", format!("the name {:?}", pair[0]))),
        None => Ok(()),
    }
}
