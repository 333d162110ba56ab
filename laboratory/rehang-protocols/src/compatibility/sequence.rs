//! Sequences of upgrades, one after the other, with and without backfills.

use serde::Serialize;

use rehang_core::adapter::{Adapter, apply};
use rehang_core::check::{check_permutation, expect_count, expect_width};
use rehang_core::curve::{
    ByMetric, Curve, CurveInput, CurveOptions, Evaluation, MAP, Metric, Qrels, QueryCount, Relevance, curve,
    evaluate, evaluate_leave_one_out,
};
use rehang_core::{Distance, Error, ErrorKind, Matrix, Progress, Result, Vectors};

use super::model::{Model, check_models};
use rehang_core::gains::gain_up;

/// Step of a sequence: one model, and the backfill that it gets before the next one arrives.
#[derive(Debug, Clone, Copy)]
pub struct UpgradeStep<'a> {
    /// Vectors by the model of ALL items, also of those that join later, and of all queries.
    pub model: Model<'a>,
    /// Order in which this step backfills: a permutation of all n items. Items that have not joined, or
    /// joined in this very step, are passed over. The first step does not use it.
    pub order: &'a [usize],
    /// Share of the items that are not yet by this model that is backfilled before the next step, 0 to 1. The
    /// first step does not use it.
    pub backfilled: f64,
    /// Adapter ψ from the space of the model before to this one's, where there is one. Every older vector
    /// goes through it at the moment when queries move to this model. The first step does not use it.
    pub adapter: Option<&'a Adapter>,
}

/// Input of a sequence: its steps, who joins when, right answers, distance and metrics.
#[derive(Debug, Clone, Copy)]
pub struct SequenceInput<'a> {
    /// Steps, oldest model first. The first model embeds the gallery as it is in the beginning.
    pub steps: &'a [UpgradeStep<'a>],
    /// Number of the step, counted from 0, at which each item joins the gallery, `[n]`; `None` where all are
    /// there from the beginning.
    pub joined_at: Option<&'a [usize]>,
    /// Right answers to each query.
    pub relevance: Relevance<'a>,
    /// Distance by which vectors are compared.
    pub distance: Distance,
    /// Metrics of the first ranks, beside top-1, top-5 and mAP.
    pub metrics: &'a [Metric],
}

/// Results of one step of a sequence.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SequenceStep {
    /// Name of the model of the queries.
    pub model: String,
    /// Number of items in the gallery.
    pub items: usize,
    /// Queries counted and left out, of the gallery as it is at this step.
    pub queries: QueryCount,
    /// Metrics where nothing is ever backfilled: every item keeps the vector with which it joined. In
    /// percent, as all metrics here.
    pub no_refresh: ByMetric<f64>,
    /// Metrics of the backfilled gallery at the moment when queries move to this model.
    pub hot_start: ByMetric<f64>,
    /// Metrics of the backfilled gallery when the step's backfill is done.
    pub hot_end: ByMetric<f64>,
    /// Metrics of the gallery with every item by this model, which is the bound of this step.
    pub full: ByMetric<f64>,
    /// Number of items that the step backfilled.
    pub backfilled: usize,
    /// Number of items by this model when the step is done, those that joined with it included.
    pub native: usize,
    /// Δ↑ of mAP of `no_refresh` over the first step's (DMU table 6), in percent.
    pub no_refresh_gain_up: Option<f64>,
    /// Δ↑ of mAP of `hot_end` over the first step's, in percent.
    pub hot_gain_up: Option<f64>,
    /// Curve of every metric from `hot_start` through `hot_end` and on to `full`; cut
    /// [`SequenceStep::backfilled`] is `hot_end`. `None` where every item is by this model from the start of
    /// the step.
    #[serde(skip)]
    pub curve: Option<Curve>,
}

/// Follows a gallery through several models: no-refresh against hot-refresh (RACT §5.4, DMU table 6).
///
/// Let `φ_0 … φ_T` be the models. At step t all queries are by `φ_t`, and the gallery holds the items that
/// have joined by then. Item x is embedded
///
/// - in the **no-refresh** gallery by the model of the step at which x joined, for ever;
/// - in the **hot-refresh** gallery the same way when it joins; then step t (t ≥ 1) takes the c items that
///   are not by `φ_t`, in its order, and embeds the first `⌊f_t·c⌋` of them by `φ_t`. What it does not reach
///   keeps its older vector, which may be several models old, for the next steps.
///
/// With adapters (DMU table 6) a vector that is by an older model goes through `ψ_t` when step t begins, in
/// both galleries: one of `φ_0` stands at step 2 as `ψ_2(ψ_1(φ_0(x)))`.
///
/// With all fractions 0 the two are the same; with all fractions 1 the hot-refresh gallery ends every step at
/// the bound `M(φ_t, φ_t)`. Where the gallery is its own query set, the queries of a step are the items that
/// have joined. Different widths are brought together as [the module](super) says for mixed galleries, in the
/// widest width of all models.
///
/// ```
/// use rehang_protocols::compatibility::{Model, SequenceInput, UpgradeStep, upgrade_sequence};
/// use rehang_core::curve::{Relevance, TOP1};
/// use rehang_core::{Distance, Matrix, Progress};
///
/// let old = Matrix::new(1, vec![0.0, 5.0, 1.0, 6.0])?;
/// let new = Matrix::new(1, vec![0.0, 1.0, 5.0, 6.0])?;
/// let labels = [0, 0, 1, 1];
/// let step = |name, gallery, backfilled| UpgradeStep {
///     model: Model { name, gallery, queries: None },
///     order: &[1, 2, 0, 3],
///     backfilled,
///     adapter: None,
/// };
/// let input = SequenceInput {
///     steps: &[step("first", &old, 0.0), step("second", &new, 0.5)],
///     joined_at: None,
///     relevance: Relevance::Labels { gallery: &labels, queries: None },
///     distance: Distance::L2,
///     metrics: &[],
/// };
/// let second = &upgrade_sequence(&input, &Progress::default())?[1];
/// // Two of four items backfilled are enough here.
/// assert_eq!((second.backfilled, second.native), (2, 2));
/// assert_eq!((second.no_refresh[TOP1], second.hot_start[TOP1], second.hot_end[TOP1]), (0.0, 0.0, 100.0));
/// assert_eq!(second.full[TOP1], 100.0);
/// # Ok::<(), rehang_core::Error>(())
/// ```
///
/// # Errors
///
/// No steps, or two models of one name; vectors that are empty, hold NaN or differ in number; an order that
/// is no permutation; a fraction outside 0 to 1; an item that joins at a step that does not exist; no item in
/// the first gallery; a step without a query that has a right answer; an adapter that is not as wide as the
/// models on its two sides, and what [`apply`] says; cancelled.
pub fn upgrade_sequence(input: &SequenceInput<'_>, progress: &Progress) -> Result<Vec<SequenceStep>> {
    let ground = Ground::new(input)?;
    let options = CurveOptions { metrics: input.metrics.to_vec(), ..CurveOptions::default() };
    let mut hot = Matrix::zeros(ground.items, ground.width);
    let mut first_seen = Matrix::zeros(ground.items, ground.width);
    let mut hot_model = vec![0; ground.items];
    let mut steps: Vec<SequenceStep> = Vec::with_capacity(input.steps.len());
    for (number, step) in input.steps.iter().enumerate() {
        let by_model = step.model.gallery.at_width(ground.width);
        let members: Vec<usize> = (0..ground.items).filter(|&item| ground.joined(item) <= number).collect();
        if let Some(adapter) = step.adapter.filter(|_| number > 0) {
            let older: Vec<usize> =
                members.iter().copied().filter(|&item| ground.joined(item) < number).collect();
            for gallery in [&mut hot, &mut first_seen] {
                send_through(adapter, gallery, &older, progress)
                    .map_err(|error| error.context(format!("the adapter to {:?}", step.model.name)))?;
            }
        }
        for &item in members.iter().filter(|&&item| ground.joined(item) == number) {
            hot.row_mut(item).copy_from_slice(by_model.row(item));
            first_seen.row_mut(item).copy_from_slice(by_model.row(item));
            hot_model[item] = number;
        }
        let in_step = |error: Error| error.context(format!("step {number} ({})", step.model.name));
        let view = View::new(input, &ground, number, &members).map_err(in_step)?;
        let evaluate_state =
            |gallery: &Matrix| view.evaluate(&gallery.select(&members), &options, progress).map_err(in_step);
        let no_refresh = evaluate_state(&first_seen)?;
        // The items that this step may backfill, in its order, come first; the curve's order goes on with the
        // rest.
        let waiting: Vec<usize> = if number == 0 {
            Vec::new()
        } else {
            let mut place = vec![usize::MAX; ground.items];
            for (at, &item) in members.iter().enumerate() {
                place[item] = at;
            }
            let waits = |item: usize| place[item] != usize::MAX && hot_model[item] != number;
            step.order.iter().filter(|&&item| waits(item)).map(|&item| place[item]).collect()
        };
        // A share that was made as k/c is k items, although k/c·c may come out just below k.
        let backfilled = (step.backfilled * waiting.len() as f64 + 1e-9).floor() as usize;
        let (hot_start, hot_end, full, exact) = if waiting.is_empty() {
            let state = evaluate_state(&hot)?.values;
            (state.clone(), state.clone(), state, None)
        } else {
            let native = by_model.select(&members);
            let mixed = hot.select(&members);
            let mut reached = vec![false; members.len()];
            for &place in &waiting {
                reached[place] = true;
            }
            let rest = (0..members.len()).filter(|&place| !reached[place]);
            let order: Vec<usize> = waiting.iter().copied().chain(rest).collect();
            let exact = curve(
                &CurveInput {
                    queries: (!view.leave_one_out).then_some(&view.queries),
                    ..CurveInput::new(&native, &mixed, &order, view.relevance(), input.distance)
                },
                &options,
                progress,
            )?;
            let at = |cut: usize| exact.lines.map(|line| line.values()[cut]);
            (at(0), at(backfilled), at(waiting.len()), Some(exact))
        };
        for &place in &waiting[..backfilled] {
            let item = members[place];
            hot.row_mut(item).copy_from_slice(by_model.row(item));
            hot_model[item] = number;
        }
        let map = no_refresh.values[MAP];
        let base = steps.first().map_or(map, |first| first.no_refresh[MAP]);
        steps.push(SequenceStep {
            model: step.model.name.to_owned(),
            items: members.len(),
            queries: no_refresh.queries,
            no_refresh_gain_up: gain_up(map, base),
            hot_gain_up: gain_up(hot_end[MAP], base),
            no_refresh: no_refresh.values,
            hot_start,
            hot_end,
            full,
            backfilled,
            native: members.iter().filter(|&&item| hot_model[item] == number).count(),
            curve: exact,
        });
    }
    Ok(steps)
}

/// Sends some rows of a gallery through an adapter.
fn send_through(adapter: &Adapter, gallery: &mut Matrix, rows: &[usize], progress: &Progress) -> Result<()> {
    let old = gallery.select(rows).at_width(adapter.old.dimension).into_owned();
    let old = Vectors::new(adapter.old.clone(), old, "vectors of the model before")?;
    let adapted = apply(adapter, &old, None, progress)?;
    let adapted = adapted.vectors.matrix().at_width(gallery.columns());
    for (place, &row) in rows.iter().enumerate() {
        gallery.row_mut(row).copy_from_slice(adapted.row(place));
    }
    Ok(())
}

/// Sizes of a sequence whose input was checked.
struct Ground<'a> {
    items: usize,
    width: usize,
    joined_at: Option<&'a [usize]>,
}

impl<'a> Ground<'a> {
    fn new(input: &SequenceInput<'a>) -> Result<Self> {
        check_models(input.steps.iter().map(|step| step.model))?;
        let first = input.steps[0].model;
        let items = first.gallery.rows();
        for (before, step) in input.steps.iter().zip(&input.steps[1..]) {
            let name = step.model.name;
            if let Some(adapter) = step.adapter {
                let wide = |model: Model<'_>| model.gallery.columns();
                let sides =
                    [(wide(before.model), adapter.old.dimension), (wide(step.model), adapter.new.dimension)];
                for (model, side) in sides {
                    expect_width(format_args!("the adapter to {name:?}"), model, side)?;
                }
            }
            check_permutation(step.order, items)
                .map_err(|error| error.context(format!("the order of {name:?}")))?;
            if !(0.0..=1.0).contains(&step.backfilled) {
                let option = format!("the fraction backfilled with {name:?}");
                return Err(Error::option(option, step.backfilled, "0 to 1"));
            }
        }
        let width = input.steps.iter().map(|step| step.model.gallery.columns()).max().unwrap_or(0);
        if let Some(joined_at) = input.joined_at {
            expect_count("steps at which items join", joined_at.len(), "items", items)?;
            if let Some(&step) = joined_at.iter().find(|&&step| step >= input.steps.len()) {
                let expected = format!("0 to {}", input.steps.len() - 1);
                return Err(Error::option("the step at which an item joins", step, expected));
            }
            if !joined_at.contains(&0) {
                return Err(ErrorKind::Empty { what: "the gallery of the first model".into() }.into());
            }
        }
        input.relevance.expect_given()?;
        input.relevance.check(items, first.queries.map(Matrix::rows))?;
        Ok(Self { items, width, joined_at: input.joined_at })
    }

    fn joined(&self, item: usize) -> usize {
        self.joined_at.map_or(0, |joined_at| joined_at[item])
    }
}

/// Queries and right answers among the items that have joined.
struct View<'a> {
    distance: Distance,
    leave_one_out: bool,
    /// Vectors of the queries by the step's model, in the gallery's width.
    queries: Matrix,
    right: Right<'a>,
}

/// Right answers among the items that have joined.
enum Right<'a> {
    /// Labels of the items that have joined, and of separate queries.
    Labels(Vec<i64>, Option<&'a [i64]>),
    Judgements(Qrels),
}

impl<'a> View<'a> {
    fn new(input: &SequenceInput<'a>, ground: &Ground<'_>, number: usize, members: &[usize]) -> Result<Self> {
        let model = input.steps[number].model;
        let leave_one_out = model.queries.is_none();
        let queries = match model.queries {
            Some(queries) => queries.at_width(ground.width).into_owned(),
            None => model.gallery.at_width(ground.width).select(members),
        };
        let right = match input.relevance {
            Relevance::Labels { gallery, queries } => {
                Right::Labels(members.iter().map(|&item| gallery[item]).collect(), queries)
            }
            Relevance::Judgements(qrels) => {
                let mut place = vec![None; ground.items];
                for (at, &item) in members.iter().enumerate() {
                    place[item] = Some(at);
                }
                let present = |&(item, gain): &(usize, f64)| place[item].map(|at| (at, gain));
                let among = |query: usize| qrels.query(query).iter().filter_map(present).collect();
                Right::Judgements(Qrels::new(if leave_one_out {
                    members.iter().map(|&query| among(query)).collect()
                } else {
                    (0..qrels.len()).map(among).collect()
                })?)
            }
            Relevance::Nearest(_) => unreachable!("`Ground::new` refuses it"),
        };
        Ok(Self { distance: input.distance, leave_one_out, queries, right })
    }

    fn relevance(&self) -> Relevance<'_> {
        match &self.right {
            Right::Judgements(qrels) => Relevance::Judgements(qrels),
            Right::Labels(gallery, queries) => Relevance::Labels { gallery, queries: *queries },
        }
    }

    fn evaluate(&self, gallery: &Matrix, options: &CurveOptions, progress: &Progress) -> Result<Evaluation> {
        let relevance = self.relevance();
        if self.leave_one_out {
            evaluate_leave_one_out(gallery, &self.queries, relevance, self.distance, options, progress)
        } else {
            evaluate(gallery, Some(&self.queries), relevance, self.distance, options, progress)
        }
    }
}
