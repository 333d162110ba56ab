//! Orders the items of a gallery for re-embedding, from files.

use std::path::PathBuf;

use rehang_core::check::{expect_count, expect_width};
use rehang_core::finding::{Finding, FindingCode};
use rehang_core::order::{OrderInput, Policy, order as order_items};
use rehang_core::{Error, Matrix, Result};
use rehang_files::adapter_file::AdapterSource;
use rehang_files::{HeadFiles, InputReader, JoinFiles, VectorSource, expect_same_items, joined_names};
use serde::Serialize;

/// Files to order a gallery from, the policy, and the file for the order. Every policy needs `sigma` or
/// `adapted`, which say how many items there are.
#[derive(Debug, Clone)]
pub struct OrderFiles {
    /// Policy that makes the order.
    pub policy: Policy,
    /// σ² of every item, one file below the other.
    pub sigma: Vec<VectorSource>,
    /// Adapted vectors, one file below the other.
    pub adapted: Vec<VectorSource>,
    /// New vectors, for the oracle only.
    pub new: Vec<VectorSource>,
    /// Join of new vectors with adapted ones, by ids or by position.
    pub join: JoinFiles,
    /// An adapter. Its own head serves the coverage order, and every order through a head where no other head
    /// is given.
    pub adapter: Option<AdapterSource>,
    /// The new model's classifier head.
    pub head: HeadFiles,
    /// Seed of the random order.
    pub seed: u64,
    /// File for the order: `int64` `.npy`, the first entry is re-embedded first. Without it nothing is
    /// written.
    pub output: Option<PathBuf>,
}

impl OrderFiles {
    /// Returns the input of an order by `policy`, without any evidence yet and with seed 0; nothing is
    /// written.
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            sigma: Vec::new(),
            adapted: Vec::new(),
            new: Vec::new(),
            join: JoinFiles::default(),
            adapter: None,
            head: HeadFiles::default(),
            seed: 0,
            output: None,
        }
    }
}

/// An order that was made, and where it lies.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Ordered {
    /// Name of the policy.
    pub policy: String,
    /// Number of items in the order.
    pub items: usize,
    /// File of the order, if it was written.
    pub order: Option<PathBuf>,
    /// Rows of the items, the first to be re-embedded in front.
    #[serde(skip)]
    pub permutation: Vec<usize>,
    /// Row of the item that is re-embedded first; `None` without items.
    pub first: Option<usize>,
    /// Seed of the random order.
    pub seed: u64,
    /// Findings that the reader should know.
    #[serde(skip)]
    pub findings: Vec<Finding>,
}

/// Orders a gallery, and writes the permutation where an output is named.
///
/// # Errors
///
/// [`MissingInput`](rehang_core::ErrorKind::MissingInput) for evidence that the policy needs;
/// [`InvalidOption`](rehang_core::ErrorKind::InvalidOption) for an output that is no `.npy` or an input. Errors of
/// a file, or between two files, name them.
pub fn order(files: &OrderFiles) -> Result<Ordered> {
    files.output.as_ref().map_or(Ok(()), rehang_files::check_order_output)?;
    let mut inputs = InputReader::default();
    let is_given = |sources: &[VectorSource]| !sources.is_empty();
    let sigma = is_given(&files.sigma).then(|| inputs.column("sigma", &files.sigma)).transpose()?;
    let adapted = is_given(&files.adapted).then(|| inputs.matrix("adapted", &files.adapted)).transpose()?;
    let new = is_given(&files.new).then(|| inputs.matrix("new", &files.new)).transpose()?;
    let [sigma_name, adapted_name, new_name] =
        [&files.sigma, &files.adapted, &files.new].map(|at| joined_names(at));
    if let (Some(sigma), Some(adapted)) = (&sigma, &adapted) {
        expect_count(&sigma_name, sigma.len(), &adapted_name, adapted.rows())?;
    }
    if files.join.is_by_position() {
        expect_same_items(&[&files.adapted, &files.new])?;
    }
    let new = match (new, &adapted) {
        (Some(new), Some(adapted)) => {
            let join = inputs.join(&files.join, adapted.rows(), new.rows())?;
            join.expect_all_old("an order of all items")?;
            Some(join.new_side(new))
        }
        _ if !files.join.is_by_position() => {
            return Err(Error::missing("`adapted` and `new`", "joining by `old_ids` and `new_ids`"));
        }
        (new, _) => new,
    };
    let adapter = files.adapter.as_ref().map(|path| inputs.adapter(path)).transpose()?;
    let own_head = adapter.as_ref().and_then(|adapter| adapter.uncertainty.head().cloned());
    let given_head = inputs.head(&files.head)?;
    if files.policy.prefers_own_head() && own_head.is_some() && given_head.is_some() {
        inputs.warn(
            FindingCode::IdleParameter,
            "`head_weight` has no effect on the coverage order, which looks through the adapter's own head.",
        );
    }
    let head = files.policy.head(own_head.as_ref(), given_head.as_ref());
    let errors = match (&new, &adapted) {
        (Some(new), Some(adapted)) => {
            expect_count(&new_name, new.rows(), &adapted_name, adapted.rows())?;
            expect_width(format_args!("`adapted` {adapted_name}"), new.columns(), adapted.columns())?;
            Some(rehang_core::adapter::true_errors(new, adapted))
        }
        _ => None,
    };
    if files.policy.is_evaluation_only() && errors.is_none() {
        return Err(Error::missing("`new` and `adapted` (true errors)", "the oracle order"));
    }
    let items =
        sigma.as_ref().map(Vec::len).or_else(|| adapted.as_ref().map(Matrix::rows)).ok_or_else(|| {
            Error::missing("`sigma` or `adapted` (they say how many items there are)", "an order")
        })?;
    inputs.expect_apart(&[("output", files.output.as_ref())])?;
    let evidence = OrderInput {
        items,
        sigma: sigma.as_deref(),
        squared_errors: errors.as_deref(),
        classified: head.zip(adapted.as_ref()),
        vectors: adapted.as_ref(),
        seed: files.seed,
        ..OrderInput::default()
    };
    let order = order_items(files.policy, &evidence)?;
    files.output.as_ref().map_or(Ok(()), |path| rehang_files::write_order(path, &order.permutation))?;
    Ok(Ordered {
        policy: files.policy.name().into(),
        items,
        order: files.output.clone(),
        first: order.permutation.first().copied(),
        permutation: order.permutation,
        seed: files.seed,
        findings: inputs.findings,
    })
}
