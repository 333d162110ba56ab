//! Options of a fit: the method, and by which metric and whose queries methods are compared.

use std::collections::BTreeMap;

use rehang_core::check::{expect_count, expect_width};
use rehang_core::copies::first_copies;
use rehang_core::curve::{Metric, Qrels};
use rehang_core::{Error, Matrix, Pairs, Result};

use crate::geometry::GeometryKind;
use crate::method::Method;
use crate::traits::Trait;
use crate::within::Within;

/// Parameters of a fit of an adapter.
///
/// | Name | Default | Purpose | Range |
/// |---|---|---|---|
/// | `method` | auto | which map | – |
/// | `seed` | 0 | splits, folds, samples | – |
/// | `compare` | true | compare with the closed forms even where the method is named | – |
/// | `geometry` | measured | how outputs conform to a raw new space | – |
/// | `metric` | mAP, nDCG@10 or agreement@10 | what maps are compared by | what the answers allow |
/// | `queries` | the held-out pairs themselves | who asks while maps are compared | – |
/// | `others` | none | what is asked while a bridge and a fusion are chosen | – |
/// | `within` | as long as it takes | how long the choice among methods may take | 0 or more |
/// | `traits` | none | what tells pairs that are another thing from the others | one value a pair |
/// | `sources` | unknown | which pairs are copies of others | one number a pair |
///
/// The default `metric` is mAP by label, nDCG@10 by judgements, else agreement@10. Where held-out pairs ask
/// for each other, [copies](rehang_core::copies) are left out of what is compared.
#[derive(Debug, Clone, PartialEq)]
pub struct FitParameters {
    /// Method that fits the map.
    pub method: Method,
    /// Seed of everything random.
    pub seed: u64,
    /// Whether a named method is compared with the closed forms, so that the table says what it is worth.
    pub compare: bool,
    /// Way in which outputs conform to the new space; `None` measures it on the held-out pairs.
    pub geometry: Option<GeometryKind>,
    /// Metric that maps are compared by, and handicaps chosen by; `None` for mAP by label, nDCG@10 by
    /// judgements, or else agreement@10 with the native gallery.
    pub metric: Option<Metric>,
    /// Queries as people ask them; `None` lets held-out pairs ask for each other.
    pub queries: Option<FitQueries>,
    /// Items of the gallery that are no pairs. A bridge and a fusion are chosen by what held-out pairs find
    /// among them where there are labels, or by what the queries do where there are clicks on them; `None`
    /// asks held-out pairs alone.
    pub others: Option<OtherItems>,
    /// Time that the choice among methods may take. Closed forms come first; a method that would take longer
    /// than is left is left out and named. `None` tries all. With a time, another run may try others and keep
    /// another map.
    pub within: Option<Within>,
    /// Traits of every pair beside its vectors: where some pairs are another thing than the others, a trait
    /// says which.
    pub traits: Vec<Trait>,
    /// Number of the source of every pair, which copies of each other have in common. Empty where the sources
    /// are not known: copies are then the pairs whose vectors by both models are the same.
    pub sources: Vec<u64>,
}

impl Default for FitParameters {
    fn default() -> Self {
        Self {
            method: Method::Auto,
            seed: 0,
            compare: true,
            geometry: None,
            metric: None,
            queries: None,
            others: None,
            within: None,
            traits: Vec::new(),
            sources: Vec::new(),
        }
    }
}

impl FitParameters {
    /// Finds for every pair the first pair that it is a copy of. Where queries ask, none is a copy of another
    /// one, and all stay.
    pub(crate) fn first_copies(&self, pairs: &Pairs) -> Vec<usize> {
        if self.queries.is_some() {
            return (0..pairs.len()).collect();
        }
        // A part of the pairs, on which a network's own σ² is measured, has no numbers of its own.
        let sources = if self.sources.len() == pairs.len() { self.sources.as_slice() } else { &[] };
        first_copies(pairs.old().matrix(), pairs.new_vectors().matrix(), sources)
    }
}

/// Items of a gallery that are no pairs, in random order. Of more than [`OtherItems::ITEMS_MAX`] the first are asked.
#[derive(Debug, Clone, PartialEq)]
pub struct OtherItems {
    /// Old vectors, `[n, d_old]`.
    pub old: Matrix,
    /// Label of every item, numbered as the labels of the pairs are; negative means unknown. They count where
    /// pairs ask for each other, and not where there are queries.
    pub labels: Vec<i64>,
    /// Judgements of the items, by row, for each of the queries.
    pub judged: Option<Qrels>,
}

impl OtherItems {
    /// Largest number of items that are asked.
    pub const ITEMS_MAX: usize = 10_000;

    /// Fails where the items do not go with the pairs.
    pub(crate) fn check(&self, pairs: &Pairs, queries: Option<&FitQueries>) -> Result<()> {
        expect_width("`others`", pairs.old().dimension(), self.old.columns())?;
        if queries.is_none() {
            expect_count("labels of `others`", self.labels.len(), "`others`", self.old.rows())?;
        }
        if let Some((judged, queries)) = self.judged.as_ref().zip(queries) {
            expect_count("judgements of `others`", judged.len(), "`queries_new`", queries.new.rows())?;
        }
        self.old.check_finite("`others`")
    }
}

/// Queries as people ask them, embedded by both models. Maps are compared by what these queries find among
/// held-out pairs.
#[derive(Debug, Clone, PartialEq)]
pub struct FitQueries {
    /// Queries by the old model, `[m, d_old]`.
    pub old: Matrix,
    /// Queries by the new model, `[m, d_new]`.
    pub new: Matrix,
    /// Judgements of the pairs, by row, for each query. Without judgements, the right answers to a query are
    /// those that it finds in the fully native gallery.
    pub qrels: Option<Qrels>,
}

impl FitQueries {
    /// Fails where the queries cannot be asked of the pairs.
    pub(crate) fn check(&self, pairs: &Pairs) -> Result<()> {
        expect_count("`queries_old`", self.old.rows(), "`queries_new`", self.new.rows())?;
        for (what, queries, vectors) in
            [("`queries_old`", &self.old, pairs.old()), ("`queries_new`", &self.new, pairs.new_vectors())]
        {
            expect_width(what, vectors.dimension(), queries.columns())?;
            queries.check_finite(what)?;
        }
        let Some(qrels) = &self.qrels else { return Ok(()) };
        expect_count("`qrels`", qrels.len(), "`queries_new`", self.new.rows())?;
        let outside = |query: usize| qrels.query(query).iter().find(|(item, _)| *item >= pairs.len());
        match (0..qrels.len()).find_map(outside) {
            Some((item, _)) => Err(Error::corrupt(
                "`qrels`",
                format!("pair {item} is judged, and there are {}", pairs.len()),
            )),
            None => Ok(()),
        }
    }

    /// Returns the judgements of the pairs `items`, by their place among these; `None` where they let no
    /// query tell a right ranking from a wrong one.
    pub(crate) fn judged(&self, items: &[usize]) -> Option<Qrels> {
        let qrels = self.qrels.as_ref()?;
        let place: BTreeMap<usize, usize> =
            items.iter().enumerate().map(|(place, &item)| (item, place)).collect();
        let judgements_of = |query: usize| -> Vec<(usize, f64)> {
            let judged = qrels.query(query).iter();
            judged.filter_map(|(item, gain)| Some((*place.get(item)?, *gain))).collect()
        };
        let queries: Vec<Vec<(usize, f64)>> = (0..qrels.len()).map(judgements_of).collect();
        let right = |judged: &Vec<(usize, f64)>| judged.iter().filter(|(_, gain)| *gain > 0.0).count();
        let tells_apart = queries.iter().any(|judged| (1..items.len()).contains(&right(judged)));
        // A part of valid judgements is valid.
        tells_apart.then(|| Qrels::new(queries).ok()).flatten()
    }
}
