//! `rehang order`.

use rehang::Result;
use rehang::files;
use rehang::order::{OrderInput, Policy, order};
use serde_json::json;

use super::{Outcome, expect_apart, print, say};
use crate::arguments::{Order, RowSelection};
use crate::input::{Inputs, Join, expect_count, expect_same_items, expect_width, files_of};

/// Orders a gallery and writes the permutation.
pub fn run(arguments: &Order, json: bool) -> Result<Outcome> {
    let policy: Policy = arguments.policy.parse()?;
    expect_other_inputs(arguments)?;
    files::check_order_output(&arguments.output)?;
    let mut inputs = Inputs::new(&RowSelection::default())?;
    let given = |paths: &[String]| !paths.is_empty();
    let sigma = given(&arguments.sigma).then(|| inputs.column("sigma", &arguments.sigma)).transpose()?;
    let mut matrix = |role, paths: &[String]| given(paths).then(|| inputs.matrix(role, paths)).transpose();
    let (adapted, new) = (matrix("adapted", &arguments.adapted)?, matrix("new", &arguments.new)?);
    let [sigma_path, adapted_path, new_path] =
        [&arguments.sigma, &arguments.adapted, &arguments.new].map(|paths| paths.join(", "));
    if let (Some(sigma), Some(adapted)) = (&sigma, &adapted) {
        expect_count(&sigma_path, sigma.len(), &adapted_path, adapted.rows())?;
    }
    if arguments.ids.old_ids.is_empty() {
        expect_same_items(&[arguments.adapted.as_slice(), arguments.new.as_slice()])?;
    }
    let new = match (new, &adapted) {
        (Some(new), Some(adapted)) => {
            let join = Join::read(&arguments.ids, adapted.rows(), new.rows(), &RowSelection::default())?;
            join.expect_all_old("an order of all items")?;
            Some(join.new_side(new))
        }
        _ if !arguments.ids.old_ids.is_empty() => {
            return Err(rehang::Error::missing("--adapted and --new", "joining by --old-ids and --new-ids"));
        }
        (new, _) => new,
    };
    let own = match &arguments.adapter {
        Some(path) => rehang::Adapter::load(path)?.uncertainty.head().cloned(),
        None => None,
    };
    let given = inputs.head(&arguments.head)?;
    if policy == Policy::Coverage && own.is_some() && given.is_some() {
        say(
            "Warning: --head-weight has no effect on the coverage order, which looks through the adapter's own head.",
        );
    }
    // The adapter's own head is tempered on left-out pairs, so the coverage order looks through it where it can.
    let head = if policy == Policy::Coverage { own.or(given) } else { given.or(own) };
    let errors = match (&new, &adapted) {
        (Some(new), Some(adapted)) => {
            expect_count(&new_path, new.rows(), &adapted_path, adapted.rows())?;
            expect_width(&format!("--adapted {adapted_path}"), new.columns(), adapted.columns())?;
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

/// Fails where the order would be written over a file that it is made from.
fn expect_other_inputs(arguments: &Order) -> Result<()> {
    let mut named = vec![
        ("--sigma", arguments.sigma.as_slice()),
        ("--adapted", arguments.adapted.as_slice()),
        ("--new", arguments.new.as_slice()),
    ];
    named.extend(arguments.ids.files());
    named.extend(arguments.head.files());
    let mut inputs = files_of(&named)?;
    inputs.extend(arguments.adapter.iter().map(|path| ("--adapter", path.clone())));
    expect_apart(&[("-o", Some(&arguments.output))], &inputs)
}
