//! Cross matrix of retrieval metrics: every model's queries in every model's gallery.

use serde::Serialize;

use rehang_core::curve::{
    CurveOptions, Evaluation, Metric, QueryCount, Relevance, evaluate, evaluate_leave_one_out,
};
use rehang_core::{Distance, Progress, Result};

use super::matrix::CrossMatrix;
use super::model::{Model, check_models};

/// Input of a cross matrix: models, right answers, distance and metrics.
#[derive(Debug, Clone, Copy)]
pub struct CrossInput<'a> {
    /// Models, oldest first; all of the same items and queries in the same order.
    pub models: &'a [Model<'a>],
    /// Right answers to each query.
    pub relevance: Relevance<'a>,
    /// Distance by which vectors are compared, in every gallery.
    pub distance: Distance,
    /// Metrics of the first ranks, beside top-1, top-5 and mAP.
    pub metrics: &'a [Metric],
}

/// Way in which queries were made to fit a gallery of another width.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WidthRule {
    /// The widths are equal.
    Same,
    /// The query is wider: its first coordinates count.
    FirstCoordinates,
    /// The query is narrower: it is filled up with zeros.
    ZeroPadded,
}

impl WidthRule {
    /// Finds the rule for queries and a gallery of these widths.
    pub fn for_widths(query_width: usize, gallery_width: usize) -> Self {
        match query_width.cmp(&gallery_width) {
            std::cmp::Ordering::Equal => Self::Same,
            std::cmp::Ordering::Greater => Self::FirstCoordinates,
            std::cmp::Ordering::Less => Self::ZeroPadded,
        }
    }
}

/// Result of one model's queries in one model's gallery.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    /// The metrics.
    pub evaluation: Evaluation,
    /// Way in which the widths were brought together.
    pub width_rule: WidthRule,
}

/// Results of every model's queries in every model's gallery.
#[derive(Debug, Clone, PartialEq)]
pub struct CrossEvaluation {
    /// The models' names.
    pub names: Vec<String>,
    /// Queries counted and left out; equal in every cell, since the right answers are.
    pub queries: QueryCount,
    /// `cells[i][j]`: queries by model i, gallery by model j.
    pub cells: Vec<Vec<Cell>>,
}

impl CrossEvaluation {
    /// Makes the cross matrix of one metric; NaN where it was not measured.
    pub fn matrix(&self, metric: Metric) -> CrossMatrix {
        let value = |cell: &Cell| cell.evaluation.values.get(metric).copied().unwrap_or(f64::NAN);
        CrossMatrix {
            names: self.names.clone(),
            values: self.cells.iter().map(|row| row.iter().map(value).collect()).collect(),
        }
    }

    /// Lists the metrics that were measured.
    pub fn metrics(&self) -> impl Iterator<Item = Metric> {
        self.cells.iter().flatten().take(1).flat_map(|cell| cell.evaluation.values.metrics())
    }

    /// Gives one metric of every counted query, in percent, as [`super::paired_difference`] compares them.
    /// Empty where it was not measured.
    pub fn per_query(&self, query: usize, gallery: usize, metric: Metric) -> &[f64] {
        self.cells[query][gallery].evaluation.per_query.values.get(metric).map_or(&[], Vec::as_slice)
    }
}

/// Evaluates every model's queries in every model's gallery; metrics and ties as in [`rehang_core::curve`].
///
/// Queries and galleries of different widths are brought together as [the module](super) says.
///
/// ```
/// use rehang_protocols::compatibility::{CrossInput, Model, WidthRule, cross_evaluate};
/// use rehang_core::curve::{MAP, Relevance, TOP1};
/// use rehang_core::{Distance, Matrix, Progress};
///
/// // The old model puts items 1 and 2 the wrong way round; the new one, which has one more coordinate, does not.
/// let old = Matrix::new(1, vec![0.0, 5.0, 1.0, 6.0])?;
/// let new = Matrix::new(2, vec![0.0, 0.1, 1.0, 0.2, 5.0, 0.3, 6.0, 0.4])?;
/// let labels = [0, 0, 1, 1];
/// let input = CrossInput {
///     models: &[
///         Model { name: "old", gallery: &old, queries: None },
///         Model { name: "new", gallery: &new, queries: None },
///     ],
///     relevance: Relevance::Labels { gallery: &labels, queries: None },
///     distance: Distance::L2,
///     metrics: &[],
/// };
/// let cross = cross_evaluate(&input, &Progress::default())?;
/// assert_eq!(cross.cells[1][0].width_rule, WidthRule::FirstCoordinates);
/// // By the old model the right answers stand at ranks 2, 3, 3 and 2; by the new one all stand first.
/// let map = cross.matrix(MAP);
/// assert!((map.values[0][0] - 100.0 * (0.5 + 1.0 / 3.0) / 2.0).abs() < 1e-9);
/// assert_eq!(map.values[1][1], 100.0);
/// // New queries in the old gallery find the wrong item first, all four: query 1 stands at 1, where old item 2 is. Old
/// // queries in the new gallery: the two ends find their class, the two in the middle each other.
/// let top1 = cross.matrix(TOP1);
/// assert_eq!(top1.values, [[0.0, 50.0], [0.0, 100.0]]);
/// # Ok::<(), rehang_core::Error>(())
/// ```
///
/// # Errors
///
/// No models, or two of one name; vectors that are empty, hold NaN or differ in number; some models with
/// queries of their own and some without; labels or judgements that do not fit; no query with a right answer;
/// cancelled.
pub fn cross_evaluate(input: &CrossInput<'_>, progress: &Progress) -> Result<CrossEvaluation> {
    check_models(input.models.iter().copied())?;
    let options = CurveOptions { metrics: input.metrics.to_vec(), ..CurveOptions::default() };
    let cells: Vec<Vec<Cell>> = input
        .models
        .iter()
        .map(|asking| {
            input.models.iter().map(|asked| cell(asking, asked, input, &options, progress)).collect()
        })
        .collect::<Result<_>>()?;
    Ok(CrossEvaluation {
        names: input.models.iter().map(|model| model.name.to_owned()).collect(),
        queries: cells[0][0].evaluation.queries,
        cells,
    })
}

fn cell(
    asking: &Model<'_>,
    asked: &Model<'_>,
    input: &CrossInput<'_>,
    options: &CurveOptions,
    progress: &Progress,
) -> Result<Cell> {
    let CrossInput { relevance, distance, .. } = *input;
    let own = asking.queries.unwrap_or(asking.gallery);
    let (gallery, width) = (asked.gallery, asked.gallery.columns());
    let queries = own.at_width(width);
    let evaluation = match asking.queries {
        Some(_) => evaluate(gallery, Some(&queries), relevance, distance, options, progress)?,
        None => evaluate_leave_one_out(gallery, &queries, relevance, distance, options, progress)?,
    };
    Ok(Cell { evaluation, width_rule: WidthRule::for_widths(own.columns(), width) })
}
