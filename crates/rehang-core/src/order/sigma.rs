//! The order `sigma`: by predicted squared error σ², the largest first (FastFill §4.2).

use super::policy::{Definition, HeadUse, Order};

pub(super) static SIGMA: Definition = Definition {
    about: "goes by the predicted error σ², the largest first",
    is_evaluation_only: false,
    head: HeadUse::None,
    order: |evidence| {
        let what = "predicted errors σ²";
        Order::by_scores(evidence.values(evidence.input.sigma, what)?, what)
    },
    scores: |page| Ok(page.by_sigma()),
    arrange: None,
};
