//! Right answers of a forecast, where a query may be an item of the gallery.

use super::data::ForecastInput;
use crate::curve::relevance::{QueryCount, Relevance};
use crate::error::{Error, Result};

/// Right answers to the queries of a forecast.
pub(super) struct Right<'a> {
    relevance: Relevance<'a>,
    /// Item that each query is; `None` for separate queries.
    own_items: Option<&'a [usize]>,
    queries: usize,
}

impl<'a> Right<'a> {
    pub(super) fn new(input: &ForecastInput<'a>) -> Self {
        Self {
            relevance: input.relevance,
            own_items: input.queries.is_none().then_some(input.held_out),
            queries: input.queries.map_or(input.held_out.len(), |queries| queries.new.rows()),
        }
    }

    /// Item that a query is; `None` for a separate query.
    pub(super) fn own(&self, query: usize) -> Option<usize> {
        self.own_items.map(|items| items[query])
    }

    /// Gain of an item for a query: above 0 for a right answer, below 0 for an item that is in no ranking.
    pub(super) fn gain(&self, query: usize, item: usize) -> f64 {
        match self.relevance {
            Relevance::Labels { gallery, .. } => {
                let label = self.label(query);
                if label == Some(gallery[item]) && gallery[item] >= 0 { 1.0 } else { 0.0 }
            }
            Relevance::Judgements(qrels) => {
                let judged = qrels.query(query);
                judged.binary_search_by_key(&item, |&(item, _)| item).map_or(0.0, |place| judged[place].1)
            }
            Relevance::Nearest(_) => 0.0,
        }
    }

    /// Whether an item is a right answer. The query's own item is not.
    pub(super) fn is_right(&self, query: usize, item: usize) -> bool {
        self.gain(query, item) > 0.0 && self.own(query) != Some(item)
    }

    /// Whether an item stands in the ranking and is no right answer.
    pub(super) fn is_wrong(&self, query: usize, item: usize) -> bool {
        self.gain(query, item) == 0.0 && self.own(query) != Some(item)
    }

    fn label(&self, query: usize) -> Option<i64> {
        match self.relevance {
            Relevance::Labels { gallery, queries } => match (queries, self.own_items) {
                (Some(labels), _) => labels.get(query).copied(),
                (None, Some(own_items)) => Some(gallery[own_items[query]]),
                (None, None) => None,
            },
            Relevance::Judgements(_) | Relevance::Nearest(_) => None,
        }
    }

    /// Lists the queries with a right answer in the whole gallery of `items`, ascending. Also counts why the
    /// others are left out.
    pub(super) fn counted(&self, items: usize) -> Result<(Vec<usize>, QueryCount)> {
        let mut count = QueryCount { given: self.queries, ..QueryCount::default() };
        let mut counted = Vec::new();
        for query in 0..self.queries {
            if self.label(query).is_some_and(|label| label < 0) {
                count.unlabelled += 1;
            } else if (0..items).any(|item| self.is_right(query, item)) {
                counted.push(query);
            } else {
                count.without_positives += 1;
            }
        }
        count.counted = counted.len();
        if counted.is_empty() { Err(Error::no_right_answers()) } else { Ok((counted, count)) }
    }
}
