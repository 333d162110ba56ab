//! Forecasts a whole gallery from a study whose items are a sample of it.

use std::collections::{BTreeMap, HashMap, HashSet};

use rehang_core::adapter::{self, Adapted};
use rehang_core::copies::first_equal_rows;
use rehang_core::curve::{
    ForecastInput, ForecastQueries, GalleryForecast, Line, MetricForecast, Relevance, forecast,
};
use rehang_core::order::Policy;
use rehang_core::report::{
    CurveBand, CurveSeries, DISPLAY_POINTS, EnoughShare, Floors, MetricCurve, NumberWithSpread, Report,
    ShownMetric, Spread, WholeGallery,
};
use rehang_core::statistics::Interval;
use rehang_core::{Error, Head, Matrix, Progress, Result};

use crate::floors::{FloorsInput, floors};
use crate::study::{
    LEVEL, StudyAdapter, StudyGallery, StudyInput, StudyOptions, StudyQueries, interpolate, orders,
};

/// A whole gallery, adapted by one adapter.
pub(crate) struct Whole<'a> {
    gallery: StudyGallery<'a>,
    contender: &'a StudyAdapter<'a>,
    adapted: Adapted,
    variance: Vec<f64>,
}

impl<'a> Whole<'a> {
    pub(crate) fn new(
        gallery: StudyGallery<'a>,
        contender: &'a StudyAdapter<'a>,
        side: Option<&Matrix>,
        progress: &Progress,
    ) -> Result<Self> {
        if side.is_some() {
            return Err(Error::option(
                "side",
                "side information",
                "nothing beside `gallery`, of whose items it is not known",
            ));
        }
        let adapted = adapter::apply(contender.adapter, gallery.old, None, progress)
            .map_err(|error| error.context(format!("applying {} to the whole gallery", contender.name)))?;
        let variance = adapted.variance.iter().map(|&value| f64::from(value)).collect();
        Ok(Self { gallery, contender, adapted, variance })
    }

    /// Adds the curve of one order to a report, and the levels that it is held against.
    pub(crate) fn add(
        &self,
        report: &mut Report,
        ground: &StudyInput<'_>,
        (policy, head): (Policy, Option<&Head>),
        options: &StudyOptions,
        progress: &Progress,
    ) -> Result<()> {
        let permutation = match policy {
            Policy::Random => None,
            _ => orders(head, policy, &self.adapted, &self.variance, None, options, progress)?
                .into_iter()
                .next(),
        };
        let input = ForecastInput {
            old: self.gallery.old.matrix(),
            adapted: self.adapted.vectors.matrix(),
            items: self.gallery.items,
            held_out: self.gallery.rows,
            native: ground.new.matrix(),
            order: permutation.as_deref(),
            queries: ground.queries.map(|queries| ForecastQueries { new: queries.new, old: queries.old }),
            relevance: self.gallery.relevance.unwrap_or(Relevance::Nearest(options.k)),
            distance: ground.new.space().distance,
            old_distance: ground.old.space().distance,
            handicap: self.contender.adapter.handicap,
        };
        let gallery_forecast = forecast(&input, options.k, progress)?;
        // Levels depend on no order, and the end of a curve on no adapter: the first curve sets them.
        if report.gallery.is_none() {
            set_levels(report, &gallery_forecast);
            if let Some(gallery) = &mut report.gallery {
                gallery.bridge = self.bridged(ground, options.k, progress)?;
            }
        }
        let metrics = gallery_forecast
            .metrics
            .iter()
            .map(|(metric, of)| (metric.id(), metric_curve(&gallery_forecast.shares, of)));
        report.curves.push(CurveSeries {
            method: self.contender.name.clone(),
            order: policy.name().into(),
            fractions: points().map(|point| point as f64 / (DISPLAY_POINTS - 1) as f64).collect(),
            metrics: metrics.collect(),
            handicap: self.contender.adapter.handicap,
        });
        Ok(())
    }

    /// Carries an application's floors over to the switch and to the end.
    pub(crate) fn floors(&self, ground: &StudyInput<'_>, progress: &Progress) -> Result<Option<Floors>> {
        let input = FloorsInput {
            old: self.gallery.old,
            adapted: &self.adapted.vectors,
            handicap: self.contender.adapter.handicap,
            items: self.gallery.items,
            held_out: self.gallery.rows,
            native: ground.new,
            queries: ground.queries,
        };
        floors(&input, None, progress)
    }

    /// Forecasts what a bridge brings, by metric. Its queries search all old vectors, as new queries search
    /// adapted ones at the switch. Empty without right answers (agreement would hold the old space against
    /// itself), and where the bridge needs old queries that are not there.
    fn bridged(
        &self,
        ground: &StudyInput<'_>,
        depth: usize,
        progress: &Progress,
    ) -> Result<BTreeMap<String, NumberWithSpread>> {
        let (Some(bridge), Some(relevance)) = (self.gallery.bridge, self.gallery.relevance) else {
            return Ok(BTreeMap::new());
        };
        let items = bridge.queries(Some(ground.old.matrix()), ground.new.matrix())?;
        let queries = match ground.queries {
            Some(StudyQueries { old: None, .. }) if bridge.needs_old() => return Ok(BTreeMap::new()),
            queries => queries.map(|queries| bridge.queries(queries.old, queries.new)).transpose()?,
        };
        let old = self.gallery.old.matrix();
        let input = ForecastInput {
            old,
            adapted: old,
            items: self.gallery.items,
            held_out: self.gallery.rows,
            native: &items,
            order: None,
            queries: queries.as_ref().map(|new| ForecastQueries { new, old: None }),
            relevance,
            distance: ground.old.space().distance,
            old_distance: ground.old.space().distance,
            handicap: 0.0,
        };
        let gallery_forecast = forecast(&input, depth, progress)?;
        let at = gallery_forecast
            .metrics
            .iter()
            .filter_map(|(metric, of)| Some((metric.id(), with_spread(*of.at.first()?))));
        Ok(at.collect())
    }
}

fn points() -> std::ops::Range<usize> {
    0..DISPLAY_POINTS
}

fn set_levels(report: &mut Report, gallery_forecast: &GalleryForecast) {
    report.metrics.retain(|shown| gallery_forecast.metrics.metrics().any(|metric| metric.id() == shown.id));
    let today = |of: &MetricForecast| of.do_nothing;
    let do_nothing: BTreeMap<String, Interval> =
        gallery_forecast.metrics.iter().filter_map(|(metric, of)| Some((metric.id(), today(of)?))).collect();
    report.do_nothing = do_nothing.iter().map(|(id, at)| (id.clone(), at.estimate)).collect();
    report.new_model = gallery_forecast
        .metrics
        .iter()
        .filter_map(|(metric, of)| Some((ShownMetric::from(metric).id, of.at.last()?.estimate)))
        .collect();
    if let Some(set) = report.measured_on.first_mut() {
        set.left_out_queries = gallery_forecast.queries.given - gallery_forecast.queries.counted;
    }
    report.gallery = Some(WholeGallery {
        items: gallery_forecast.items,
        held_out: gallery_forecast.held_out,
        speaks_of: gallery_forecast.speaks_of,
        do_nothing: do_nothing.into_iter().map(|(id, at)| (id, with_spread(at))).collect(),
        bridge: BTreeMap::new(),
    });
}

fn with_spread(at: Interval) -> NumberWithSpread {
    let spread = (at.low < at.high).then_some(Spread::Interval { low: at.low, high: at.high, level: LEVEL });
    NumberWithSpread { value: at.estimate, spread }
}

/// Draws a metric at every point that a report shows: linear between the shares of the forecast.
fn metric_curve(shares: &[f64], of: &MetricForecast) -> MetricCurve {
    let last = DISPLAY_POINTS - 1;
    let cuts: Vec<usize> = shares.iter().map(|share| (share * last as f64).round() as usize).collect();
    let all: Vec<usize> = points().collect();
    let along = |value: fn(&Interval) -> f64| interpolate(&cuts, &of.at, &all, value);
    let values = along(|at| at.estimate);
    let area = Line::new(values.clone()).area();
    let do_nothing = of.do_nothing.map(|at| at.estimate);
    MetricCurve {
        band: Some(CurveBand {
            about: format!("{:.0} % interval of the forecast", 100.0 * LEVEL),
            low: along(|at| at.low),
            high: along(|at| at.high),
        }),
        enough: of.enough.map(|share| EnoughShare {
            fraction: share.estimate,
            low: share.low,
            high: share.high,
        }),
        ..MetricCurve::from_exact(&values, area.into(), do_nothing, &all)
    }
}

/// Finds the row in a gallery of every item of a sample, by its old vector; each row serves one item.
///
/// # Errors
///
/// [`Corrupt`](rehang_core::ErrorKind::Corrupt) where an item is not in the gallery; the error names `what` is
/// searched.
pub(crate) fn rows_in(gallery: &Matrix, sample: &Matrix, what: &str) -> Result<Vec<usize>> {
    let bits = |row: &[f32]| row.iter().map(|value| (value + 0.0).to_bits()).collect::<Vec<u32>>();
    let mut waiting: HashMap<Vec<u32>, Vec<usize>> =
        (0..sample.rows()).map(|item| (bits(sample.row(item)), Vec::new())).collect();
    for row in (0..gallery.rows()).rev() {
        if let Some(rows) = waiting.get_mut(&bits(gallery.row(row))) {
            rows.push(row);
        }
    }
    let rows_of_items: Vec<Option<usize>> =
        (0..sample.rows()).map(|item| waiting.get_mut(&bits(sample.row(item))).and_then(Vec::pop)).collect();
    match rows_of_items.iter().position(Option::is_none) {
        None => Ok(rows_of_items.into_iter().flatten().collect()),
        Some(first) => {
            let missing = rows_of_items.iter().filter(|row| row.is_none()).count();
            let detail = format!(
                "{missing} of the {} items of `old` are not among its {} rows (the first is row {first}); give the old vectors of the \
                 whole gallery, as they were made",
                sample.rows(),
                gallery.rows()
            );
            Err(Error::corrupt(what, detail))
        }
    }
}

/// Lists the rows of a whole gallery that are no copies, ascending, where some items of the sample `old` are.
/// The sample stands in `rows` of the gallery, and those of its items that are no copies are `measured`.
///
/// Nobody knows the new vectors of the rest. Equal old vectors are copies there where most items of the
/// sample that repeat an old vector repeat the new one too: an old model that reads the beginning of a text
/// alone gives one vector to many different items. The first row of each stays, unless the sample has one.
pub(crate) fn rows_without_copies(
    gallery: &Matrix,
    old: &Matrix,
    rows: &[usize],
    measured: &[usize],
) -> Vec<usize> {
    let mut stays = vec![true; gallery.rows()];
    let first = first_equal_rows(&[old]);
    let repeated = (0..first.len()).filter(|&item| first[item] != item).count();
    if 2 * (rows.len() - measured.len()) > repeated {
        let first = first_equal_rows(&[gallery]);
        let mut old_vectors: HashSet<usize> = rows.iter().map(|&row| first[row]).collect();
        for (row, &equal) in first.iter().enumerate() {
            stays[row] = old_vectors.insert(equal);
        }
    }
    for (item, &row) in rows.iter().enumerate() {
        stays[row] = measured.binary_search(&item).is_ok();
    }
    (0..gallery.rows()).filter(|&row| stays[row]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_old_vectors_of_a_gallery_are_copies_where_the_new_model_agrees() {
        let gallery = Matrix::new(1, vec![9.0, 2.0, 5.0, 1.0, 1.0, 9.0, 2.0]).unwrap();
        let without_copies = |rows: &[usize], measured: &[usize]| {
            rows_without_copies(&gallery, &gallery.select(rows), rows, measured)
        };
        // The third item of the sample is a copy of the first one.
        assert_eq!(without_copies(&[4, 1, 3], &[0, 1]), [0, 1, 2, 4]);
        // The fourth one has the old vector of the second one, and another new one.
        assert_eq!(without_copies(&[4, 1, 3, 6], &[0, 1, 3]), [0, 1, 2, 4, 5, 6]);
    }

    #[test]
    fn items_are_found_by_their_old_vectors_and_a_row_serves_one() {
        let gallery = Matrix::new(1, vec![5.0, 2.0, 7.0, 2.0, 0.0]).unwrap();
        let sample = Matrix::new(1, vec![2.0, -0.0, 2.0]).unwrap();
        assert_eq!(rows_in(&gallery, &sample, "all.npy").unwrap(), [1, 4, 3]);
        let thrice = Matrix::new(1, vec![2.0, 2.0, 2.0, 9.0]).unwrap();
        let error = rows_in(&gallery, &thrice, "all.npy").unwrap_err().to_string();
        assert!(
            error.contains("all.npy") && error.contains("2 of the 4") && error.contains("row 2"),
            "{error}"
        );
    }
}
