//! Which method serves best: every candidate is fitted on a part of the pairs, several times over, and what it makes of the rest
//! is measured as it would be served: with its own handicap, in the default order.

use std::time::Instant;

use rehang::finding::Finding;
use rehang::statistics::{SigmaQuality, mean_sd};
use rehang::study::true_errors;
use rehang::{Adapter, Head, Matrix, Pairs, Progress, Result};
use serde::{Deserialize, Serialize};

use crate::auto::{Candidate, FitParameters, FittedMap, Task};
use crate::folds::{folds, hold_out, parted, shuffled};
use crate::geometry::{self, GeometryKind};
use crate::guards;
use crate::handicap;
use crate::head_fit::known_labels;
use crate::method::Method;
use crate::outputs::{conformed, raw_outputs, relative_error};
use crate::pseudo_classes::centroid_head;
use crate::retrieval::{Criterion, Gallery, Quality};
use crate::uncertainty_fit::sharpened;

/// The part of the pairs (and of the classes) that is held out while methods are compared; the map that is kept is fitted on
/// all.
const HELD_OUT: f64 = 0.2;
/// How often another part is held out.
const SPLITS: u64 = 5;
/// Items of a part that are measured at most; more change no choice and cost time by their square.
const PART_ITEMS_MAX: usize = 1000;
/// Held-out items below which nothing is compared.
const PART_ITEMS_MIN: usize = 20;

/// One method in the table of a selection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SelectionRow {
    /// The method.
    pub method: Method,
    /// How its outputs conform to the new space.
    pub geometry: Option<GeometryKind>,
    /// Squared error on held-out pairs as a part of the new vectors' variance.
    pub relative_error: f64,
    /// The criterion with every held-out vector adapted, percent.
    pub start: f64,
    /// The criterion as the mean over a growing native part, percent, with the row's own handicap and in the default order.
    pub area: f64,
    /// That handicap, as a part of the mean squared error.
    pub handicap: f64,
    /// How far its area is behind that of the best row, percent: the mean over the splits that both took part in.
    pub behind: f64,
    /// The standard error of that mean; `None` for a single split.
    pub spread: Option<f64>,
    /// Splits that it took part in: a network that is slow to fit and does not lead on the first one is fitted on that alone.
    pub splits: usize,
    /// How long its fit on the first split took. The only number here that differs from run to run.
    pub seconds: f64,
    /// Why it could not be fitted; the numbers are 0 then.
    pub failure: Option<String>,
}

/// How methods did on held-out pairs.
///
/// The row with the largest mean area is the best one; kept is the first row, which is the simplest, that is no farther behind
/// it than one standard error of the difference.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Selection {
    /// What `start` and `area` are: `"mAP"` where there are labels, `"nDCG@10"` where queries have judgements, else
    /// `"agreement@10"` with the native gallery; or the metric that was asked for.
    pub criterion: String,
    /// Queries that asked; `None` where held-out items asked for each other.
    pub queries: Option<usize>,
    /// How often another part was held out.
    pub splits: usize,
    /// Held-out items of the first split: of classes that have pairs, and of classes that have none.
    pub held_out: (usize, usize),
    /// Old queries in the old gallery, percent: what the gallery gives without any work.
    pub do_nothing: f64,
    /// New queries in the new gallery, percent: what the end of the upgrade reaches.
    pub native: f64,
    /// One row a method and geometry, in the order they were tried, the simplest first.
    pub rows: Vec<SelectionRow>,
    /// The row with the largest area of those that could be kept.
    pub best: Option<usize>,
    /// The row that was kept.
    pub kept: Option<usize>,
}

/// What [`Task::compare`] found.
#[derive(Default)]
pub(crate) struct Compared {
    /// The table; `None` where there are too few pairs for one.
    pub selection: Option<Selection>,
    /// The relative error of every learned map on the held-out items of classes that it has seen: items of left-out classes lie so
    /// close together that a map may well be farther from them than their own mean is.
    pub seen_errors: Vec<f64>,
    /// How good a σ² is that the named method trains itself, with its map, on the held-out items.
    pub calibration: Option<SigmaQuality>,
}

/// One held-out part made ready for measuring.
struct Part<'a> {
    pairs: Pairs,
    /// What counts as found; `None` where nothing says so of these items while it does of others.
    criterion: Option<Criterion<'a>>,
}

/// Some pairs to fit on, and others to measure on.
///
/// Galleries grow by classes that no pair knew, so there are two parts: of classes that were fitted on (or of all, without
/// labels), and of classes that were left out.
struct Split<'a> {
    fitted: Vec<usize>,
    held_out: (usize, usize),
    seen: Option<Part<'a>>,
    unseen: Option<Part<'a>>,
    /// What the default order looks through: the head that was given, or one of the classes that were fitted on.
    head: Head,
}

impl<'a> Split<'a> {
    fn parts(&self) -> impl Iterator<Item = &Part<'a>> {
        self.seen.iter().chain(&self.unseen)
    }

    fn parts_mut(&mut self) -> impl Iterator<Item = &mut Part<'a>> {
        self.seen.iter_mut().chain(&mut self.unseen)
    }

    fn is_measured(&self) -> bool {
        self.parts().any(|part| part.criterion.is_some())
    }
}

/// A held-out part as a gallery, and the orders that it is measured in.
struct Measurable<'s> {
    gallery: Gallery<'s>,
    /// For the handicap, which serves every order.
    shuffled: Vec<usize>,
    /// The default one.
    order: Vec<usize>,
}

/// What one geometry makes of the held-out parts of one split.
struct Served<'s> {
    kind: Option<GeometryKind>,
    /// Relative errors, of every part.
    errors: Vec<f64>,
    /// The mean squared error in the unit of the distance, which handicaps are parts of.
    whole: f64,
    seen: Option<Measurable<'s>>,
    unseen: Option<Measurable<'s>>,
}

/// A row with its areas, split by split.
struct Measured {
    row: SelectionRow,
    areas: Vec<f64>,
}

impl Task<'_> {
    /// Fits every candidate on a part of the pairs and measures it on the rest.
    pub(crate) fn compare(&self, candidates: &[&Candidate<'_>]) -> Result<Compared> {
        let parameters = self.parameters;
        let splits = self.splits()?;
        let Some(first) = splits.first() else { return Ok(Compared::default()) };
        let criterion = first.parts().find_map(|part| part.criterion.as_ref());
        let line = |quality: &dyn Fn(&Criterion<'_>, &Pairs) -> Result<f64>| -> Result<f64> {
            let of_split = |split: &Split<'_>| {
                let parts = split.parts().filter_map(|part| Some((part, part.criterion.as_ref()?)));
                let values = parts.map(|(part, criterion)| quality(criterion, &part.pairs));
                Ok(mean(&values.collect::<Result<Vec<f64>>>()?))
            };
            Ok(mean(&splits.iter().map(of_split).collect::<Result<Vec<f64>>>()?))
        };
        let mut compared = Compared::default();
        let mut measured: Vec<Measured> = Vec::new();
        for candidate in candidates {
            self.progress.check()?;
            #[allow(
                clippy::disallowed_methods,
                reason = "the seconds of a fit are shown; nothing is chosen by them"
            )]
            let started = Instant::now();
            let fitted = self.fit_split(candidate, first);
            let seconds = started.elapsed().as_secs_f64();
            let rows = fitted.and_then(|fitted| {
                let mut served = vec![serve(&fitted, self.pairs, first, parameters)?];
                if first.seen.is_some() && candidate.method != Method::DoNothing {
                    compared.seen_errors.extend(served[0].first().and_then(|served| served.errors.first()));
                }
                // A σ² that is trained with its map is measured here, since no out-of-fold residuals are made for it.
                if let (true, Some(_), Some(_)) =
                    (candidate.method == parameters.method, &fitted.uncertainty, &fitted.geometry)
                {
                    compared.calibration = Some(self.calibration(candidate, fitted, first)?);
                }
                let mut rows = rows(&served, candidate.method, seconds)?;
                let lead = |rows: &[Measured]| {
                    rows.iter().filter_map(|row| row.areas.first()).copied().fold(f64::NEG_INFINITY, f64::max)
                };
                if !candidate.slow || lead(&rows) > lead(&measured) {
                    for split in &splits[1..] {
                        self.progress.check()?;
                        let fitted = self.fit_split(candidate, split)?;
                        served.push(serve(&fitted, self.pairs, split, parameters)?);
                    }
                    rows = self::rows(&served, candidate.method, seconds)?;
                }
                Ok(rows)
            });
            match rows {
                Ok(rows) => measured.extend(rows),
                Err(error) if error.is_cancelled() => return Err(error),
                Err(error) => {
                    let failure = Some(error.to_string());
                    let row = SelectionRow { seconds, failure, ..empty(candidate.method) };
                    measured.push(Measured { row, areas: Vec::new() });
                }
            }
        }
        let (best, kept) = choose(&mut measured, parameters.method);
        compared.selection = Some(Selection {
            criterion: criterion.map(Criterion::name).unwrap_or_default(),
            queries: parameters.queries.as_ref().map(|queries| queries.new.rows()),
            splits: splits.len(),
            held_out: first.held_out,
            do_nothing: line(&|criterion, pairs| criterion.old(pairs))?,
            native: line(&|criterion, pairs| criterion.native(pairs))?,
            rows: measured.into_iter().map(|measured| measured.row).collect(),
            best,
            kept,
        });
        Ok(compared)
    }

    /// The parts that are held out, each time others. All are measured alike, so that their mean means one thing: by label or
    /// judgement where any of them can be, and a part that cannot (small classes leave one item of each in the seen part) has its
    /// errors measured only; by agreement where none can.
    fn splits(&self) -> Result<Vec<Split<'_>>> {
        let Self { pairs, parameters, .. } = *self;
        let mut splits = Vec::new();
        for number in 0..SPLITS {
            let seed = parameters.seed.wrapping_add(number);
            let held_out = hold_out(pairs.len(), known_labels(pairs), HELD_OUT, seed);
            let part = |items: &[usize]| {
                let items = sampled(items, seed)?;
                let criterion = Criterion::by_answers(parameters, pairs, &items);
                Some(Part { pairs: pairs.select(&items), criterion })
            };
            let (seen, unseen) = (part(&held_out.seen), part(&held_out.unseen));
            if held_out.fitted.len() < PART_ITEMS_MIN || (seen.is_none() && unseen.is_none()) {
                continue;
            }
            let head = match self.head {
                Some(head) => head.clone(),
                None => {
                    let groups: Vec<i64> = held_out.fitted.iter().map(|&item| self.groups[item]).collect();
                    centroid_head(&pairs.new_vectors().matrix().select(&held_out.fitted), &groups)?
                }
            };
            let counts = (held_out.seen.len(), held_out.unseen.len());
            splits.push(Split { fitted: held_out.fitted, held_out: counts, seen, unseen, head });
        }
        if splits.iter().any(Split::is_measured) {
            splits.retain(Split::is_measured);
        } else {
            let queries = parameters.queries.as_ref();
            for part in splits.iter_mut().flat_map(Split::parts_mut) {
                part.criterion = Some(Criterion::by_agreement(queries));
            }
        }
        Ok(splits)
    }

    fn fit_split(&self, candidate: &Candidate<'_>, split: &Split<'_>) -> Result<FittedMap> {
        let groups: Vec<i64> = split.fitted.iter().map(|&item| self.groups[item]).collect();
        (candidate.fit)(&self.pairs.select(&split.fitted), &groups, self.progress)
    }

    /// How good a map's own σ² is on held-out items.
    fn calibration(
        &self,
        candidate: &Candidate<'_>,
        fitted: FittedMap,
        split: &Split<'_>,
    ) -> Result<SigmaQuality> {
        let pairs = self.pairs.select(&split.fitted);
        let groups: Vec<i64> = split.fitted.iter().map(|&item| self.groups[item]).collect();
        let part = Task { pairs: &pairs, groups: &groups, ..*self };
        let kind = GeometryKind::options(pairs.new_vectors().space())[0];
        let (adapter, ..) = part.finish(candidate, fitted, kind)?;
        calibration_of(&adapter, split)
    }
}

/// The items of a part that are measured; `None` where there are too few.
fn sampled(items: &[usize], seed: u64) -> Option<Vec<usize>> {
    if items.len() < PART_ITEMS_MIN {
        return None;
    }
    let (sample, _) = parted(&folds(items.len(), items.len().div_ceil(PART_ITEMS_MAX), seed), 0);
    Some(sample.into_iter().map(|place| items[place]).collect())
}

/// An adapter's own σ² against its errors on the held-out items.
fn calibration_of(adapter: &Adapter, split: &Split<'_>) -> Result<SigmaQuality> {
    let (mut predicted, mut actual) = (Vec::new(), Vec::new());
    for part in split.parts() {
        let side = part.pairs.side().filter(|_| adapter.side_dimension().is_some());
        let adapted = rehang::adapter::apply(adapter, part.pairs.old(), side, &Progress::default())?;
        predicted.extend(adapted.variance.iter().map(|&variance| f64::from(variance)));
        actual.extend(true_errors(part.pairs.new_vectors().matrix(), adapted.vectors.matrix()));
    }
    SigmaQuality::of(&predicted, &actual)
}

/// What a map that was fitted on a split makes of its held-out parts, with every geometry that is open to it.
fn serve<'s>(
    fitted: &FittedMap,
    pairs: &Pairs,
    split: &'s Split<'_>,
    parameters: &FitParameters,
) -> Result<Vec<Served<'s>>> {
    let raw = |part: &Part<'_>| raw_outputs(&fitted.map, part.pairs.old().matrix(), part.pairs.side());
    let raw_of: Vec<Matrix> = split.parts().map(raw).collect::<Result<_>>()?;
    // Lengths come from the vectors that were fitted on, since the fit does not know those of what is held out.
    let known = pairs.select(&split.fitted);
    let known = known.new_vectors();
    let kinds: Vec<Option<GeometryKind>> = match (&fitted.geometry, parameters.geometry) {
        (Some(_), _) => vec![None],
        (None, Some(kind)) => vec![Some(kind)],
        (None, None) => GeometryKind::options(known.space()).iter().copied().map(Some).collect(),
    };
    let mut all = Vec::new();
    for kind in kinds {
        let mut served = Served { kind, errors: Vec::new(), whole: 0.0, seen: None, unseen: None };
        let mut head = None;
        for (place, (part, raw)) in split.parts().zip(&raw_of).enumerate() {
            let own = kind.map(|kind| geometry::fit(kind, raw, known));
            let Some(geometry) = own.as_ref().or(fitted.geometry.as_ref()) else { continue };
            let outputs = conformed(geometry, raw.clone());
            outputs.check_finite("adapted vectors")?;
            served.errors.push(relative_error(&outputs, &part.pairs));
            let native = part.pairs.new_vectors();
            if place == 0 {
                // As an adapter does: what is known of errors is what happens to items of known classes.
                let error = mean(&true_errors(native.matrix(), &outputs));
                served.whole = handicap::whole(native.matrix(), native.space().distance, error);
                head = Some(sharpened(&split.head, &outputs, native.matrix())?);
            }
            let (Some(criterion), Some(head)) = (&part.criterion, &head) else { continue };
            let gallery = Gallery { criterion, native, adapted: outputs };
            let order = gallery.default_order(head, parameters.seed)?;
            let shuffled = shuffled(native.len(), parameters.seed);
            let is_seen = split.seen.as_ref().is_some_and(|seen| std::ptr::eq(seen, part));
            *(if is_seen { &mut served.seen } else { &mut served.unseen }) =
                Some(Measurable { gallery, shuffled, order });
        }
        all.push(served);
    }
    Ok(all)
}

/// The rows of a method, one a geometry, from what it made of each split.
fn rows(splits: &[Vec<Served<'_>>], method: Method, seconds: f64) -> Result<Vec<Measured>> {
    let row = |place: usize| {
        let served: Vec<&Served<'_>> = splits.iter().map(|split| &split[place]).collect();
        // As many splits as make it sure; it costs more than all the rest.
        let items: usize = served[0].parts().into_iter().flatten().map(|part| part.order.len()).sum();
        let sure = PART_ITEMS_MAX.div_ceil(items.max(1)).min(served.len());
        let areas_at = |part: f64| Ok((part, random_areas(&served[..sure], part)?));
        let (tried, kept) = handicap::search(areas_at, |(_, areas)| areas)?;
        let part = tried[kept].0;
        let of_split =
            served.iter().map(|served| quality(served, part)).collect::<Result<Vec<Quality>>>()?;
        let areas: Vec<f64> = of_split.iter().map(|quality| quality.area).collect();
        let errors: Vec<f64> = served.iter().map(|served| mean(&served.errors)).collect();
        let row = SelectionRow {
            geometry: served[0].kind,
            relative_error: mean(&errors),
            start: mean(&of_split.iter().map(|quality| quality.start).collect::<Vec<_>>()),
            area: mean(&areas),
            handicap: part,
            splits: areas.len(),
            seconds,
            ..empty(method)
        };
        Ok(Measured { row, areas })
    };
    (0..splits[0].len()).map(row).collect()
}

impl<'s> Served<'s> {
    fn parts(&self) -> [&Option<Measurable<'s>>; 2] {
        [&self.seen, &self.unseen]
    }
}

/// What a part of the mean squared error is worth as the handicap: areas of known and of left-out classes over the splits.
fn random_areas(splits: &[&Served<'_>], part: f64) -> Result<Vec<f64>> {
    let mut areas = [Vec::new(), Vec::new()];
    for served in splits {
        for (at, areas) in served.parts().into_iter().zip(&mut areas) {
            let Some(Measurable { gallery, shuffled, .. }) = at else { continue };
            areas.push(gallery.lines(shuffled, part * served.whole)?.0.area());
        }
    }
    Ok(areas.iter().filter(|areas| !areas.is_empty()).map(|areas| mean(areas)).collect())
}

/// What searches find on one split with a handicap, in the default order. Known and left-out classes count the same.
fn quality(served: &Served<'_>, part: f64) -> Result<Quality> {
    let (mut starts, mut areas) = (Vec::new(), Vec::new());
    for Measurable { gallery, order, .. } in served.parts().into_iter().flatten() {
        let (line, _) = gallery.lines(order, part * served.whole)?;
        starts.push(line.start());
        areas.push(line.area());
    }
    Ok(Quality { start: mean(&starts), area: mean(&areas) })
}

/// The best row and the one to keep of those that could be, with how far every row is behind the best of all.
fn choose(measured: &mut [Measured], asked: Method) -> (Option<usize>, Option<usize>) {
    let behind = |row: &Measured, best: &Measured| {
        let differences: Vec<f64> =
            row.areas.iter().zip(&best.areas).map(|(own, best)| best - own).collect();
        let spread = mean_sd(&differences);
        let error = spread.filter(|spread| spread.count > 1).map(|spread| spread.sd / (spread.count as f64).sqrt());
        (spread.map_or(0.0, |spread| spread.mean), error)
    };
    // A row of fewer splits lost on the first: it is kept only where its method is asked for.
    let best_of = |wanted: &dyn Fn(&Measured) -> bool| {
        let of = |row: &Measured| if wanted(row) { row.areas.len() } else { 0 };
        let most = measured.iter().map(of).max().unwrap_or(0);
        let full: Vec<usize> =
            (0..measured.len()).filter(|&row| most > 0 && of(&measured[row]) == most).collect();
        // The first of equals is the simplest.
        let best = full.iter().copied().reduce(|best, row| {
            if measured[row].row.area > measured[best].row.area { row } else { best }
        });
        (best, full)
    };
    let (best_of_all, _) = best_of(&|_| true);
    let (best, open) = best_of(&|row| asked == Method::Auto || row.row.method == asked);
    let within = |row: usize, best: usize| {
        let (behind, spread) = behind(&measured[row], &measured[best]);
        row == best || behind <= spread.unwrap_or(0.0)
    };
    let kept = best.and_then(|best| open.into_iter().find(|&row| within(row, best)));
    if let Some(best) = best_of_all {
        let all: Vec<(f64, Option<f64>)> = measured.iter().map(|row| behind(row, &measured[best])).collect();
        for (measured, (behind, spread)) in measured.iter_mut().zip(all) {
            (measured.row.behind, measured.row.spread) = (behind, spread);
        }
    }
    (best, kept)
}

fn empty(method: Method) -> SelectionRow {
    SelectionRow {
        method,
        geometry: None,
        relative_error: 0.0,
        start: 0.0,
        area: 0.0,
        handicap: 0.0,
        behind: 0.0,
        spread: None,
        splits: 0,
        seconds: 0.0,
        failure: None,
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// What the table says in words: a named method that loses, a switch that has to wait, lengths that were left alone.
pub(crate) fn selection_findings(selection: &Selection, asked: Method) -> Vec<Finding> {
    let mut findings = Vec::new();
    let Some(kept) = selection.kept.map(|kept| &selection.rows[kept]) else { return findings };
    let criterion = &selection.criterion;
    let best = selection
        .rows
        .iter()
        .filter(|row| row.failure.is_none() && row.splits >= kept.splits)
        .reduce(|best, row| if row.area > best.area { row } else { best });
    if let Some(best) = best
        && asked != Method::Auto
        && best.area > kept.area
        && best.method != kept.method
    {
        let seen = format!(
            "{} does better than {} on held-out pairs ({criterion} {:.1} against {:.1} over the upgrade).",
            best.method, kept.method, best.area, kept.area
        );
        let evidence = [("best", best.area), ("kept", kept.area)];
        findings.push(Finding::warning("better-method", seen).evidence(&evidence));
    }
    let learned = |row: &&SelectionRow| row.method != Method::DoNothing && row.failure.is_none();
    if asked == Method::Auto
        && kept.method == Method::DoNothing
        && selection.rows.iter().any(|row| learned(&row))
    {
        let seen = "No learned map does better than the old vectors as they are; old vectors are kept.";
        findings.push(Finding::warning("do-nothing-wins", seen).evidence(&[("kept", kept.area)]));
    }
    findings.extend(guards::gain(&guards::CurveSummary {
        measure: format!("{criterion} on held-out pairs"),
        do_nothing: selection.do_nothing,
        start: kept.start,
        area: kept.area,
        minimum: kept.start,
        end: selection.native,
    }));
    findings
}
