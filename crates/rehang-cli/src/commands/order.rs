//! `rehang order`.

use rehang::files;
use rehang::order::{OrderInput, Policy, order};
use rehang::{ErrorKind, Result};
use serde_json::json;

use super::{Outcome, print};
use crate::arguments::{Order, RowSelection};
use crate::input::{Inputs, expect_count};

/// Orders a gallery and writes the permutation.
pub fn run(arguments: &Order, json: bool) -> Result<Outcome> {
    let policy: Policy = arguments.policy.parse()?;
    let output = files::AtomicFile::create(&arguments.output)?;
    drop(output);
    let mut inputs = Inputs::new(&RowSelection::default())?;
    let sigma = match &arguments.sigma {
        None => None,
        Some(path) => Some(files::read_f32_column(&files::VectorSource::parse(path)?)?),
    };
    let sigma: Option<Vec<f64>> = sigma.map(|values| values.iter().map(|&value| f64::from(value)).collect());
    let adapted = match &arguments.adapted {
        None => None,
        Some(path) => Some(inputs.matrix_as_it_is("adapted", path)?),
    };
    let new = match &arguments.new {
        None => None,
        Some(path) => Some(inputs.matrix_as_it_is("new", path)?),
    };
    let own = match &arguments.adapter {
        Some(path) => rehang::Adapter::load(path)?.uncertainty.head().cloned(),
        None => None,
    };
    let given = inputs.head(&arguments.head)?;
    // The adapter's own head is tempered on left-out pairs, so the coverage order looks through it where it can.
    let head = if policy == Policy::Coverage { own.or(given) } else { given.or(own) };
    let errors = match (&new, &adapted) {
        (Some(new), Some(adapted)) => {
            expect_count("new vectors", new.rows(), "adapted vectors", adapted.rows())?;
            if new.columns() != adapted.columns() {
                return Err(ErrorKind::WidthMismatch {
                    what: "adapted vectors".into(),
                    expected: new.columns(),
                    received: adapted.columns(),
                }
                .into());
            }
            Some(rehang::study::true_errors(new, adapted))
        }
        _ => None,
    };
    if policy == Policy::Oracle && errors.is_none() {
        return Err(rehang::Error::missing("--new and --adapted (true errors)", "--policy oracle"));
    }
    let items = sigma
        .as_ref()
        .map(Vec::len)
        .or_else(|| adapted.as_ref().map(rehang::Matrix::rows))
        .ok_or_else(|| {
            rehang::Error::missing("--sigma or --adapted (they say how many items there are)", "rehang order")
        })?;
    let evidence = OrderInput {
        items,
        sigma: sigma.as_deref(),
        squared_errors: errors.as_deref(),
        classified: head.as_ref().zip(adapted.as_ref()),
        vectors: adapted.as_ref(),
        seed: arguments.seed,
        ..OrderInput::default()
    };
    let order = order(policy, &evidence)?;
    files::write_order(&arguments.output, &order.permutation)?;
    let path = arguments.output.display().to_string();
    let first = order.permutation.first().copied();
    let value = json!({ "policy": policy.name(), "items": items, "order": path, "first": first, "seed": arguments.seed });
    print(json, &value, &format!("Order {policy} of {items} items written to {path}\n"))?;
    Ok(Outcome::Done)
}
