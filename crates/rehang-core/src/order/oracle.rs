//! The order `oracle`: by the true squared error, which is not known before the backfill is done.

use super::policy::{Definition, HeadUse, Order};

pub(super) static ORACLE: Definition = Definition {
    about: "goes by the true error, which is unknown beforehand: it is there to compare with, and is not the best order \
            there can be",
    is_evaluation_only: true,
    head: HeadUse::None,
    order: |evidence| {
        let what = "true squared errors";
        Order::by_scores(evidence.values(evidence.input.squared_errors, what)?, what)
    },
    scores: |page| Ok(page.by_sigma()),
    arrange: None,
};
