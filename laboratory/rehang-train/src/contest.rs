//! A whole study: compatible training and adapters side by side, over seeds, parts of the data and orders.
//!
//! For every seed the old model is trained on its rows. Then the new model is trained with no regard to it
//! (`plain`, the independent model that everything is held against), and then by every compatible method on
//! the same rows. Adapters are fitted on the old and the independent model's vectors of those rows. Every
//! gallery is then searched by its new model while it is backfilled in every order. The result is a
//! [`Comparison`].

use std::collections::BTreeSet;
use std::path::PathBuf;

use rehang_core::adapter::{self, Adapter, true_errors};
use rehang_core::comparison::{Comparison, MethodOutcome, OrderOutcome, ProtocolOutcome, Quality};
use rehang_core::curve::{
    Curve, CurveInput, CurveOptions, Distances, Line, MAP, Relevance, TOP1, TOP5, curve, evaluate,
};
use rehang_core::order::{OrderInput, Policy, order};
use rehang_core::{Distance, Error, Head, Matrix, Pairs, Progress, Result, Space, Vectors};
use rehang_fit::{FitParameters, Method, NetworkOptions, fit_adapter, fit_map_only};

use crate::compatible::{
    OldModel, OptimiserKind, TrainingParameters, TrainingSet, train, training_warnings, unless_diverged,
};
use crate::encoder::TrainedEncoder;
use crate::examples::Examples;
use crate::protocols::Protocol;

/// Number of points of a curve that are kept, from 0 % to 100 %.
const POINTS: usize = 101;
/// Name of the old model in the names of files.
const OLD: &str = "old";
/// Name of the new model that knows nothing of the old one.
const INDEPENDENT: &str = "independent";
/// Handicaps that are tried for ψ, as parts of its mean squared error. Below 0 it is native vectors that have
/// one: what a classifier has shaped may be farther from every query than they are.
const HANDICAPS: [f64; 14] = [0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.8, -0.1, -0.2, -0.3, -0.4, -0.6, -0.8];
/// Difference of the old model's seed from that of the new models.
const OLD_SEED: u64 = 0x6f6c_6420_6d6f_6465;

/// Compatible method that takes part in a study.
#[derive(Debug, Clone, PartialEq)]
pub struct ContenderTraining {
    /// Name in the report.
    pub label: String,
    /// Parameters of its training; its seed and model name are set by the study.
    pub parameters: TrainingParameters,
}

/// Parameters of a study: what is compared.
#[derive(Debug, Clone, PartialEq)]
pub struct ComparisonParameters {
    /// Title of the report.
    pub title: String,
    /// Seeds, each of which trains everything anew.
    pub seeds: Vec<u64>,
    /// Parameters of the old model's training, by the method `plain`.
    pub old: TrainingParameters,
    /// Parameters of the independent new model's training, by the method `plain`.
    pub independent: TrainingParameters,
    /// Compatible methods.
    pub contenders: Vec<ContenderTraining>,
    /// Adapters from the old model to the independent new one.
    pub adapters: Vec<Method>,
    /// Orders of the backfill; an order that a method has no evidence for is left out for it.
    pub orders: Vec<Policy>,
    /// Distance of vectors: the cosine as RACT and DMU have it, or L2 as FastFill has it (§5.2).
    pub distance: Distance,
    /// Protocols of the papers that every method is measured by besides.
    pub protocols: Vec<Protocol>,
    /// Whether each ψ is searched with a handicap as well, in a line of its own: for each part, the one that
    /// serves the other parts best. The papers have none.
    pub psi_handicap: bool,
    /// Folder in which trained encoders are kept, so that a study goes on where it stopped.
    pub folder: Option<PathBuf>,
}

/// Data that a study is made on.
#[derive(Debug, Clone)]
pub struct ComparisonData<'a> {
    /// All examples.
    pub examples: &'a Examples,
    /// Rows that the old model is trained on.
    pub old_rows: &'a [usize],
    /// Rows that new models are trained on.
    pub new_rows: &'a [usize],
    /// Parts that are searched, each query leaving itself out: a name and its rows, which no encoder was
    /// trained on.
    pub parts: Vec<(String, Vec<usize>)>,
}

impl ComparisonData<'_> {
    /// Gives the labels of rows, as a search takes them.
    fn labels_of(&self, rows: &[usize]) -> Vec<i64> {
        rows.iter().map(|&row| i64::from(self.examples.labels[row])).collect()
    }
}

/// Runs a study. A contender, its ψ or an adapter that leaves the finite numbers is left out for that seed,
/// with a warning.
///
/// # Errors
///
/// [`rehang_core::ErrorKind::Empty`] without seeds, parts or orders; [`rehang_core::ErrorKind::InvalidOption`] for
/// labels, adapters, orders or seeds that come twice, and for a part in which no class has two rows;
/// [`rehang_core::ErrorKind::Conflict`] for a kept encoder that was trained in another way;
/// [`rehang_core::ErrorKind::Diverged`] and [`rehang_core::ErrorKind::NotFinite`] where the old or the independent
/// model leaves the finite numbers; as [`train`], [`fit_adapter`] and [`curve`].
pub fn compare(
    data: &ComparisonData<'_>,
    parameters: &ComparisonParameters,
    progress: &Progress,
) -> Result<Comparison> {
    for (what, is_empty) in [
        ("the list of seeds", parameters.seeds.is_empty()),
        ("the list of parts", data.parts.is_empty()),
        ("the list of orders", parameters.orders.is_empty()),
    ] {
        if is_empty {
            return Err(Error::empty(what));
        }
    }
    if parameters.psi_handicap && data.parts.len() < 2 {
        let expected = "two parts or more: the handicap of each is chosen on the others";
        return Err(Error::option("compare.psi_handicap", true, expected));
    }
    expect_names_once(parameters)?;
    expect_searchable(data)?;
    let mut outcomes = Vec::new();
    let mut warnings = Vec::new();
    for &seed in &parameters.seeds {
        outcomes.extend(Study { data, parameters, seed, progress, warnings: &mut warnings }.outcomes()?);
    }
    if parameters.seeds.len() < 3 {
        warnings
            .push(format!("{} seed(s): spreads over fewer than three say little", parameters.seeds.len()));
    }
    Ok(Comparison {
        title: parameters.title.clone(),
        setting: setting(data, parameters),
        version: env!("CARGO_PKG_VERSION").into(),
        outcomes,
        warnings,
    })
}

fn setting(data: &ComparisonData<'_>, parameters: &ComparisonParameters) -> Vec<String> {
    let encoder = |name: &str, parameters: &TrainingParameters, rows: &[usize]| {
        let optimiser = match parameters.optimiser {
            OptimiserKind::Sgd { momentum } => format!("SGD with momentum {momentum}"),
            OptimiserKind::Adam {} => "Adam".into(),
        };
        format!(
            "{name}: {}, {} coordinates, {} rows, {} epochs, {optimiser} at rate {}.",
            parameters.architecture.name(),
            parameters.architecture.outputs(),
            rows.len(),
            parameters.epochs,
            parameters.rate
        )
    };
    let parts: Vec<String> = data.parts.iter().map(|(name, rows)| format!("{name} {}", rows.len())).collect();
    vec![
        encoder("Old model", &parameters.old, data.old_rows),
        encoder("New models", &parameters.independent, data.new_rows),
        format!(
            "Searched parts and their items: {}; {}, leave one out, by plain distances, but for `auto`: with the handicap that it \
             recommends. Where old vectors have fewer coordinates, queries are cut to them and have a length of their own there.",
            parts.join(", "),
            parameters.distance
        ),
        format!("Seeds: {}.", parameters.seeds.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")),
    ]
}

/// Writes a label as a part of a file's name.
fn file_name(label: &str) -> String {
    label.replace(|c: char| !c.is_ascii_alphanumeric(), "-")
}

/// Fails where two lines of the report, or two files, would have one name.
fn expect_names_once(parameters: &ComparisonParameters) -> Result<()> {
    let mut lines = BTreeSet::from([INDEPENDENT.to_owned()]);
    let mut files = BTreeSet::from([OLD.to_owned(), INDEPENDENT.to_owned()]);
    let twice = |what: &str, name: &str| {
        Err(Error::option(what, name, "every name once, also as a file's name: give each a label of its own"))
    };
    for ContenderTraining { label, parameters: training } in &parameters.contenders {
        let mut own = vec![label.clone()];
        if training.method.adapter_hidden().is_some() {
            own.push(format!("{label} + ψ"));
            own.extend(parameters.psi_handicap.then(|| format!("{label} + ψ, handicap")));
        }
        if !own.into_iter().all(|line| lines.insert(line)) || !files.insert(file_name(label)) {
            return twice("compare.methods", label);
        }
    }
    if let Some(method) = parameters.adapters.iter().find(|method| !lines.insert(method.name().to_owned())) {
        return twice("compare.adapters", method.name());
    }
    let mut seeds = BTreeSet::new();
    if let Some(seed) = parameters.seeds.iter().find(|seed| !seeds.insert(**seed)) {
        let expected = "every seed once: a second time says nothing new";
        return Err(Error::option("compare.seeds", seed, expected));
    }
    let mut orders = BTreeSet::new();
    if let Some(order) = parameters.orders.iter().find(|order| !orders.insert(order.name())) {
        return twice("compare.orders", order.name());
    }
    Ok(())
}

/// Fails where a part has no query that could find anything, so that this is known now and not after a night
/// of training.
fn expect_searchable(data: &ComparisonData<'_>) -> Result<()> {
    for (part, rows) in &data.parts {
        let mut classes = BTreeSet::new();
        if rows.iter().all(|&row| classes.insert(data.examples.labels[row])) {
            return Err(Error::option(
                format!("the part {part:?}"),
                format!("{} rows, no two of one class", rows.len()),
                "a class with at least two rows, since a query leaves itself out and finds the others: set a larger \
                 allocation.test, or leave classes with more rows unseen",
            ));
        }
    }
    Ok(())
}

/// Vectors of every part by one model.
type Galleries = Vec<Matrix>;

/// Gives a number of both lines of a curve.
fn both(curve: &Curve, of: &dyn Fn(&Line) -> f64) -> Quality {
    Quality { top1: of(&curve.lines[TOP1]), map: of(&curve.lines[MAP]) }
}

fn backfill(order: &str, curve: &Curve) -> OrderOutcome {
    // Charts and tables show no more than this.
    let points = |line: &Line| -> Vec<f64> {
        line.grid(POINTS).values.into_iter().map(|value| (1e3 * value).round() / 1e3).collect()
    };
    let rate = &curve.flips[TOP1].rate;
    OrderOutcome {
        order: order.to_owned(),
        area: both(curve, &Line::area),
        min: both(curve, &Line::min),
        negative_flips: rate.area(),
        negative_flips_max: rate.values().iter().copied().fold(0.0, f64::max),
        top1: points(&curve.lines[TOP1]),
        map: points(&curve.lines[MAP]),
        top5: points(&curve.lines[TOP5]),
        area_top5: Some(curve.lines[TOP5].area()),
        negative_flip_rate: points(rate),
    }
}

/// Side of a study, which is one way to upgrade: what the gallery holds before and after the backfill, part
/// by part.
#[derive(Clone)]
struct Side {
    label: String,
    /// Name of the new encoder, where it is not the independent model's.
    encoder: Option<String>,
    native: Galleries,
    adapted: Galleries,
    /// Expected squared error σ² of every item, where there is an adapter.
    sigma: Option<Vec<Vec<f64>>>,
    /// Handicap that a search of each part adds to the distances of adapted vectors; below 0 it is taken from
    /// these, or added to those of native ones, which is the same.
    handicaps: Vec<f64>,
    head: Head,
}

impl Side {
    /// Makes the side of a model whose queries search the old vectors as they are.
    fn plain(label: &str, native: Galleries, old_parts: &Galleries, encoder: &TrainedEncoder) -> Self {
        let (adapted, head) = (old_parts.clone(), encoder.head.clone());
        let handicaps = vec![0.0; adapted.len()];
        Self { label: label.into(), encoder: None, native, adapted, sigma: None, handicaps, head }
    }

    fn adapted(
        label: &str,
        native: Galleries,
        old_parts: &Galleries,
        adapter: &Adapter,
        head: &Head,
        progress: &Progress,
    ) -> Result<Self> {
        let (mut adapted, mut sigma) = (Vec::new(), Vec::new());
        for old in old_parts {
            let old = Vectors::new(adapter.old.clone(), old.clone(), "old vectors")?;
            let out = adapter::apply(adapter, &old, None, progress)?;
            sigma.push(out.variance.iter().map(|&value| f64::from(value)).collect());
            adapted.push(out.vectors.matrix().clone());
        }
        Ok(Self {
            label: label.into(),
            encoder: None,
            native,
            handicaps: vec![0.0; adapted.len()],
            adapted,
            sigma: Some(sigma),
            head: head.clone(),
        })
    }

    /// Orders a part as it is re-embedded; `None` where there is no evidence for the order.
    fn order(&self, part: usize, policy: Policy, seed: u64) -> Result<Option<Vec<usize>>> {
        let sigma = self.sigma.as_ref().map(|sigma| &sigma[part][..]);
        if policy == Policy::Sigma && sigma.is_none() {
            return Ok(None);
        }
        let adapted = &self.adapted[part];
        let width = adapted.columns().max(self.native[part].columns());
        let (native, wide) = (self.native[part].at_width(width), adapted.at_width(width));
        let errors = true_errors(&native, &wide);
        let seen = adapted.at_width(self.head.dimension());
        let input = OrderInput {
            items: adapted.rows(),
            sigma,
            squared_errors: Some(&errors),
            classified: Some((&self.head, &seen)),
            vectors: Some(adapted),
            seed,
            ..OrderInput::default()
        };
        Ok(Some(order(policy, &input)?.permutation))
    }

    /// Computes the backfill of a part in an order.
    fn curve(
        &self,
        part: usize,
        permutation: &[usize],
        relevance: Relevance<'_>,
        distance: Distance,
        progress: &Progress,
    ) -> Result<Curve> {
        let adapted = &self.adapted[part];
        // A narrower old gallery stays as it is: queries are cut for it.
        let native = &self.native[part].at_width(adapted.columns().max(self.native[part].columns()));
        let input = CurveInput::new(native, adapted, permutation, relevance, distance);
        let handicap = self.handicaps[part];
        if handicap >= 0.0 {
            return curve(&CurveInput { handicap, ..input }, &CurveOptions::default(), progress);
        }
        let distances = |gallery: &Matrix| Distances::new(native, gallery, None, distance);
        let (to_native, to_adapted) = (distances(native)?, distances(adapted)?);
        let to_native = to_native.combined(&to_native, |near, _| near - handicap)?;
        let known = Some([&to_native, &to_adapted]);
        curve(&CurveInput { known, ..input }, &CurveOptions::default(), progress)
    }
}

/// Study of one seed.
struct Study<'a> {
    data: &'a ComparisonData<'a>,
    parameters: &'a ComparisonParameters,
    seed: u64,
    progress: &'a Progress,
    warnings: &'a mut Vec<String>,
}

impl Study<'_> {
    /// Measures what every method reaches on every part.
    fn outcomes(&mut self) -> Result<Vec<MethodOutcome>> {
        let Self { data, parameters, seed, progress, .. } = *self;
        let distance = parameters.distance;
        let (old, _) = self.trained(OLD, &parameters.old, data.old_rows, None)?;
        let (independent, _) = self.trained(INDEPENDENT, &parameters.independent, data.new_rows, None)?;
        let (old_parts, best_parts) = (self.galleries(&old)?, self.galleries(&independent)?);
        let mut sides = vec![Side::plain(INDEPENDENT, best_parts.clone(), &old_parts, &independent)];
        sides.extend(self.contenders(&old, &old_parts)?);
        if !parameters.adapters.is_empty() {
            sides.extend(self.adapters(&old, &independent, &old_parts, &best_parts)?);
        }
        let mut outcomes = Vec::new();
        for (number, (part, rows)) in data.parts.iter().enumerate() {
            let labels = data.labels_of(rows);
            let relevance = Relevance::Labels { gallery: &labels, queries: None };
            let quality = |gallery: &Matrix| -> Result<Quality> {
                let options = CurveOptions::default();
                let found = evaluate(gallery, None, relevance, distance, &options, progress)?;
                Ok(Quality { top1: found.values[TOP1], map: found.values[MAP] })
            };
            let (old_old, best_best) = (quality(&old_parts[number])?, quality(&best_parts[number])?);
            let protocol = |protocol: &Protocol, gallery: &Matrix, queries: &Matrix| {
                protocol.measure(gallery, queries, &labels, distance, progress)
            };
            let of_itself = |gallery: &Matrix| -> Result<Vec<Option<f64>>> {
                parameters.protocols.iter().map(|asked| protocol(asked, gallery, gallery)).collect()
            };
            let (olds, bests) = (of_itself(&old_parts[number])?, of_itself(&best_parts[number])?);
            for side in &sides {
                // Every order has the same ends, and they are there for methods that none of the orders is
                // for.
                let in_place = (0..rows.len()).collect::<Vec<usize>>();
                let whole = side.curve(number, &in_place, relevance, distance, progress)?;
                let mut backfills = Vec::new();
                for &policy in &parameters.orders {
                    if let Some(permutation) = side.order(number, policy, seed)? {
                        let curve = side.curve(number, &permutation, relevance, distance, progress)?;
                        backfills.push(backfill(policy.name(), &curve));
                    }
                }
                let (native, adapted) = (&side.native[number], &side.adapted[number]);
                let ends = parameters.protocols.iter().zip(olds.iter().zip(&bests));
                let protocols = ends.map(|(asked, (&old_old, &best_best))| {
                    Ok(ProtocolOutcome {
                        protocol: asked.to_string(),
                        old_old,
                        new_old: protocol(asked, adapted, native)?,
                        new_new: protocol(asked, native, native)?,
                        best_best,
                    })
                });
                outcomes.push(MethodOutcome {
                    method: side.label.clone(),
                    seed,
                    part: part.clone(),
                    encoder: side.encoder.clone(),
                    old_old,
                    new_old: both(&whole, &Line::start),
                    new_new: both(&whole, &Line::end),
                    best_best,
                    backfills,
                    protocols: protocols.collect::<Result<_>>()?,
                });
            }
        }
        Ok(outcomes)
    }

    /// Trains the compatible models: a side for each by itself, and one with the ψ that was trained beside
    /// it.
    fn contenders(&mut self, old: &TrainedEncoder, old_parts: &Galleries) -> Result<Vec<Side>> {
        let Self { data, parameters, progress, .. } = *self;
        let usual = &parameters.independent.architecture;
        let old_model = OldModel::from_encoder(old.clone(), false);
        let mut sides = Vec::new();
        for ContenderTraining { label, parameters } in &parameters.contenders {
            let architecture = &parameters.architecture;
            let encoder_name = (architecture != usual)
                .then(|| format!("{}, {} coordinates", architecture.name(), architecture.outputs()));
            let trained = self.trained(label, parameters, data.new_rows, Some(&old_model));
            let trained = trained.and_then(|(encoder, psi)| Ok((self.galleries(&encoder)?, encoder, psi)));
            let Some((native, encoder, psi)) = self.unless_diverged(trained, label)? else { continue };
            let mut own = vec![Side::plain(label, native.clone(), old_parts, &encoder)];
            if let Some(psi) = psi {
                let label = format!("{label} + ψ");
                let side = Side::adapted(&label, native, old_parts, &psi, &encoder.head, progress);
                let side = self.unless_diverged(side, &label)?;
                let asked = side.as_ref().filter(|_| self.parameters.psi_handicap);
                let with_handicap = asked.map(|side| self.with_handicap(side)).transpose()?;
                own.extend(side.into_iter().chain(with_handicap));
            }
            sides.extend(own.into_iter().map(|side| Side { encoder: encoder_name.clone(), ..side }));
        }
        Ok(sides)
    }

    /// Gives a side the handicaps that serve it best, each part the one that its other parts are served by best
    /// in random order, in top-1 and mAP together.
    fn with_handicap(&self, side: &Side) -> Result<Side> {
        let Self { data, parameters, progress, .. } = *self;
        let distance = parameters.distance;
        let mut side = side.clone();
        let mut best = Vec::new();
        for (number, (_, rows)) in data.parts.iter().enumerate() {
            let labels = data.labels_of(rows);
            let relevance = Relevance::Labels { gallery: &labels, queries: None };
            let input = OrderInput { items: rows.len(), seed: self.seed, ..OrderInput::default() };
            let permutation = order(Policy::Random, &input)?.permutation;
            let native = &side.native[number];
            let errors = true_errors(native, &side.adapted[number]);
            let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
            let squares: Vec<f64> = native.norms().iter().map(|norm| norm * norm).collect();
            let error = distance.of_squared_error(mean(&errors), mean(&squares));
            let mut tried = (f64::NEG_INFINITY, 0.0);
            for part in HANDICAPS {
                side.handicaps[number] = part * error;
                let curve = side.curve(number, &permutation, relevance, distance, progress)?;
                let areas = both(&curve, &Line::area);
                if areas.top1 + areas.map > tried.0 {
                    tried = (areas.top1 + areas.map, part * error);
                }
            }
            best.push(tried.1);
        }
        let others = |number: usize| {
            let others = best.iter().enumerate().filter(|(other, _)| *other != number);
            others.map(|(_, handicap)| handicap).sum::<f64>() / (best.len() - 1).max(1) as f64
        };
        side.handicaps = (0..data.parts.len()).map(others).collect();
        side.label += ", handicap";
        Ok(side)
    }

    /// Fits the adapters from the old model to the independent one.
    fn adapters(
        &mut self,
        old: &TrainedEncoder,
        independent: &TrainedEncoder,
        old_parts: &Galleries,
        best_parts: &Galleries,
    ) -> Result<Vec<Side>> {
        let Self { data, parameters, seed, progress, .. } = *self;
        let chosen = data.examples.select(data.new_rows);
        // Adapters are fitted, their handicap above all, for the distance of the searches.
        let embed = |encoder: &TrainedEncoder| {
            let vectors = encoder.embed(&chosen.inputs, progress)?.matrix().clone();
            let space = Space { distance: parameters.distance, ..encoder.space() };
            Vectors::new(space, vectors, &encoder.model)
        };
        // The head numbers its classes by name.
        let number = |label: u32| -> i64 {
            let name = &data.examples.classes[label as usize];
            independent.classes.iter().position(|class| class == name).map_or(-1, |class| class as i64)
        };
        let labels = chosen.labels.iter().map(|&label| number(label)).collect();
        let pairs = Pairs::new(embed(old)?, embed(independent)?, Some(labels), None)?;
        let (options, head) = (NetworkOptions::default(), &independent.head);
        let mut sides = Vec::new();
        for &method in &parameters.adapters {
            let fit = FitParameters { method, seed, compare: false, ..FitParameters::default() };
            // FCT is the map alone; everything else has a σ² to order by.
            let adapter = if method == Method::Fct {
                fit_map_only(&pairs, Some(head), &fit, &options, progress)
            } else {
                fit_adapter(&pairs, Some(head), &fit, &options, progress).map(|fitted| fitted.adapter)
            };
            let label = method.name();
            let side = adapter.and_then(|adapter| {
                let side = Side::adapted(label, best_parts.clone(), old_parts, &adapter, head, progress)?;
                // The default is measured as it is served, with its handicap; methods that others published
                // by their plain distances, without.
                let handicap = if method == Method::Auto { adapter.handicap } else { 0.0 };
                Ok(Side { handicaps: vec![handicap; old_parts.len()], ..side })
            });
            let Some(mut side) = self.unless_diverged(side, label)? else { continue };
            side.sigma = side.sigma.filter(|_| method != Method::Fct);
            sides.push(side);
        }
        Ok(sides)
    }

    /// Gives the result of a method, or nothing where it left the finite numbers: that must not cost a night
    /// of the others.
    fn unless_diverged<T>(&mut self, result: Result<T>, label: &str) -> Result<Option<T>> {
        let seed = self.seed;
        unless_diverged(result, self.warnings, |error| {
            format!("{label} is left out for seed {seed}: {error}")
        })
    }

    /// Gives an encoder, trained or taken from the study's folder.
    fn trained(
        &mut self,
        label: &str,
        parameters: &TrainingParameters,
        rows: &[usize],
        old: Option<&OldModel>,
    ) -> Result<(TrainedEncoder, Option<Adapter>)> {
        let name = format!("{}-{}", file_name(label), self.seed);
        // Layers of one shape start from the same weights for the same seed; an old model that started where
        // the new ones do would be nearer to them than any two real models are. All new encoders start alike,
        // which compares methods.
        let seed = if label == OLD { self.seed ^ OLD_SEED } else { self.seed };
        let parameters = TrainingParameters { model: name.clone(), seed, ..parameters.clone() };
        let places = self.parameters.folder.as_ref().map(|folder| {
            (folder.join(format!("{name}.safetensors")), folder.join(format!("{name}-psi.safetensors")))
        });
        let set = TrainingSet { examples: self.data.examples, rows, old_rows: Some(self.data.old_rows) };
        let mut note = |sentences: Vec<String>| {
            for sentence in sentences.into_iter().map(|sentence| format!("{label}: {sentence}")) {
                if !self.warnings.contains(&sentence) {
                    self.warnings.push(sentence);
                }
            }
        };
        let wants_psi = parameters.method.adapter_hidden().is_some();
        if let Some((encoder, psi)) = places.as_ref().filter(|(encoder, _)| encoder.exists()) {
            let kept = TrainedEncoder::load(encoder)?;
            if !kept.is_of(&parameters, &self.data.examples.select(rows), old)? {
                return Err(Error::conflict(
                    encoder.display(),
                    "it was trained in another way, or with another old model, than this study says; name another folder, or \
                     remove it",
                ));
            }
            // An encoder without its ψ is trained again, and comes out the same.
            if !wants_psi || psi.exists() {
                note(training_warnings(set, old, &parameters)?);
                return Ok((
                    kept,
                    if wants_psi { Some(rehang_files::adapter_file::load(psi)?) } else { None },
                ));
            }
        }
        let trained = train(set, old, &parameters, self.progress)?;
        note(trained.warnings);
        if let Some((encoder, psi)) = places {
            // The file of ψ is written first: an encoder that is there says that all of its training is.
            if let Some(adapter) = &trained.adapter {
                rehang_files::adapter_file::save(adapter, psi)?;
            }
            trained.encoder.save(encoder)?;
        }
        Ok((trained.encoder, trained.adapter))
    }

    fn galleries(&self, encoder: &TrainedEncoder) -> Result<Galleries> {
        self.data
            .parts
            .iter()
            .map(|(_, rows)| {
                let chosen = self.data.examples.select(rows);
                Ok(encoder.embed(&chosen.inputs, self.progress)?.matrix().clone())
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::encoder::EncoderArchitecture;
    use crate::examples::{ExampleInputs, SamplerParameters};
    use crate::finite_differences::numbers;

    /// Makes four classes of ten rows, each with a coordinate of its own.
    fn examples() -> Examples {
        let noise = numbers(40 * 6, 3);
        let features = Matrix::from_fn(40, 6, |row, column| {
            0.5 * noise[6 * row + column] + if column == row % 4 { 3.0 } else { 0.0 }
        });
        let classes = (0..4).map(|class| format!("class {class}")).collect();
        Examples::new(ExampleInputs::Features(features), (0..40).map(|row| row % 4).collect(), classes)
            .unwrap()
    }

    /// Runs a study. The old model sees the first two classes; the rows `searched` are searched.
    fn run(parameters: &ComparisonParameters, searched: std::ops::Range<usize>) -> Result<Comparison> {
        let examples = examples();
        let new_rows: Vec<usize> = (0..32).collect();
        let old_rows: Vec<usize> = (0..32).filter(|row| row % 4 < 2).collect();
        let parts = vec![("test".to_owned(), searched.collect())];
        let data = ComparisonData { examples: &examples, old_rows: &old_rows, new_rows: &new_rows, parts };
        compare(&data, parameters, &Progress::default())
    }

    /// Makes a study of one seed, one contender, and a folder that keeps what is trained.
    fn study(folder: &Path, label: &str, method: &str, options: &str) -> ComparisonParameters {
        let quick = |method: &str, options: &str| TrainingParameters {
            epochs: 2,
            rate: 0.02,
            warm_up_epochs: 0.0,
            sampler: SamplerParameters::shuffled(8),
            ..TrainingParameters::new(
                "new",
                EncoderArchitecture::Mlp { hidden: Vec::new(), outputs: 6 },
                crate::compatible::TrainingMethod::named(method, options).unwrap(),
            )
        };
        ComparisonParameters {
            title: "a study".into(),
            seeds: vec![0],
            old: quick("plain", ""),
            independent: quick("plain", ""),
            contenders: vec![ContenderTraining { label: label.into(), parameters: quick(method, options) }],
            adapters: Vec::new(),
            orders: vec![Policy::Random],
            distance: Distance::Cosine,
            protocols: Vec::new(),
            psi_handicap: false,
            folder: Some(folder.into()),
        }
    }

    #[test]
    fn a_handicap_of_psi_is_chosen_on_the_other_parts() {
        let folder = tempfile::tempdir().unwrap();
        let parameters =
            ComparisonParameters { psi_handicap: true, ..study(folder.path(), "dmu", "dmu", "") };
        let error = run(&parameters, 32..40).unwrap_err();
        assert!(error.to_string().contains("two parts or more"), "{error}");
        let examples = examples();
        let new_rows: Vec<usize> = (0..16).collect();
        let compared = |second: std::ops::Range<usize>| {
            let parts =
                vec![("test".to_owned(), (16..28).collect()), ("unseen".to_owned(), second.collect())];
            let data =
                ComparisonData { examples: &examples, old_rows: &new_rows, new_rows: &new_rows, parts };
            let comparison = compare(&data, &parameters, &Progress::default()).unwrap();
            assert_eq!(comparison.methods(), ["independent", "dmu", "dmu + ψ", "dmu + ψ, handicap"]);
            comparison.outcomes("dmu + ψ, handicap", "test").next().unwrap().clone()
        };
        // The first part's handicap does not depend on the first part: with the first part as the second, too,
        // it is the best one of its own, and no area is larger.
        let (other, own) = (compared(28..40), compared(16..28));
        let area = |outcome: &MethodOutcome| outcome.backfills[0].area.top1 + outcome.backfills[0].area.map;
        assert!(area(&own) >= area(&other));
    }

    /// Changes the numbers of a kept encoder; how it was trained stays written in it.
    fn change(path: &Path, change: impl Fn(&mut f32)) {
        let mut encoder = TrainedEncoder::load(path).unwrap();
        encoder.state.parameters.iter_mut().for_each(change);
        encoder.save(path).unwrap();
    }

    #[test]
    fn a_method_that_leaves_the_finite_numbers_is_left_out_and_the_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let mut parameters = study(folder.path(), "bct", "bct", "");
        assert_eq!(run(&parameters, 32..40).unwrap().methods(), ["independent", "bct"]);
        // A contender whose vectors overflow.
        change(&folder.path().join("bct-0.safetensors"), |value| *value = f32::MAX);
        let comparison = run(&parameters, 32..40).unwrap();
        assert_eq!(comparison.methods(), ["independent"]);
        assert!(comparison.warnings[0].starts_with("bct is left out for seed 0: "), "{comparison:?}");
        // An adapter: the variance of such old vectors is beyond single precision.
        parameters.contenders.clear();
        parameters.adapters = vec![Method::Fct];
        change(&folder.path().join("old-0.safetensors"), |value| *value *= 1e30);
        let comparison = run(&parameters, 32..40).unwrap();
        assert_eq!(comparison.methods(), ["independent"]);
        assert!(comparison.warnings[0].starts_with("fct is left out for seed 0: "), "{comparison:?}");
    }

    #[test]
    fn a_kept_encoder_without_its_psi_is_trained_again_only_where_it_is_the_same_training() {
        let folder = tempfile::tempdir().unwrap();
        let encoder = || fs_err::read(folder.path().join("mine-0.safetensors")).unwrap();
        let psi = folder.path().join("mine-0-psi.safetensors");
        for (method, options) in [("dmu", "forward_weight = 0.0"), ("bct", "")] {
            let without = study(folder.path(), "mine", method, options);
            let first = run(&without, 32..40).unwrap();
            let before = encoder();
            let error = run(&study(folder.path(), "mine", "dmu", "hidden = 8"), 32..40).unwrap_err();
            assert!(matches!(error.kind(), rehang_core::ErrorKind::Conflict { .. }), "{error}");
            assert!(encoder() == before && !psi.exists());
            assert_eq!(run(&without, 32..40).unwrap(), first);
            fs_err::remove_file(folder.path().join("mine-0.safetensors")).unwrap();
        }
        let with = study(folder.path(), "mine", "dmu", "hidden = 8");
        let first = run(&with, 32..40).unwrap();
        assert_eq!(first.methods(), ["independent", "mine", "mine + ψ"]);
        let before = (encoder(), fs_err::read(&psi).unwrap());
        fs_err::remove_file(&psi).unwrap();
        assert_eq!(run(&with, 32..40).unwrap(), first);
        assert!((encoder(), fs_err::read(&psi).unwrap()) == before);
    }

    /// FastFill compares by L2 (§5.2). The length of a vector counts there, and not under cosine.
    #[test]
    fn a_study_by_l2_is_searched_and_fitted_by_l2() {
        let folder = tempfile::tempdir().unwrap();
        let mut parameters = study(folder.path(), "bct", "bct", "");
        parameters.adapters = vec![Method::Procrustes];
        let by_cosine = run(&parameters, 32..40).unwrap();
        parameters.distance = Distance::L2;
        let by_l2 = run(&parameters, 32..40).unwrap();
        assert!(by_l2.setting.iter().any(|line| line.contains("; l2, leave one out")), "{by_l2:?}");
        let ends = |of: &Comparison| -> Vec<Quality> { of.outcomes.iter().map(|one| one.new_old).collect() };
        assert!(ends(&by_cosine) != ends(&by_l2));
        // By hand: the old model's own search, of the kept encoder's vectors.
        let (examples, rows) = (examples(), (32..40).collect::<Vec<usize>>());
        let old = TrainedEncoder::load(folder.path().join("old-0.safetensors")).unwrap();
        let vectors = old.embed(&examples.select(&rows).inputs, &Progress::default()).unwrap();
        let far = |a: usize, b: usize| Distance::L2.between(vectors.matrix().row(a), vectors.matrix().row(b));
        let nearest =
            |a: usize| (0..8).filter(|&b| b != a).min_by(|&b, &c| far(a, b).total_cmp(&far(a, c))).unwrap();
        let right = (0..8).filter(|&a| nearest(a) % 4 == a % 4).count();
        assert_eq!(by_l2.outcomes[0].old_old.top1, 12.5 * right as f64);
    }

    #[test]
    fn protocols_are_measured_at_both_ends_of_every_method() {
        let folder = tempfile::tempdir().unwrap();
        let mut parameters = study(folder.path(), "bct", "bct", "");
        parameters.protocols = ["tar@0.5", "tpir@0.5", "map@1"].map(|name| name.parse().unwrap()).to_vec();
        let comparison = run(&parameters, 32..40).unwrap();
        assert_eq!(comparison.protocols(), ["tar@0.5", "tpir@0.5", "map@1"]);
        for outcome in &comparison.outcomes {
            // With one right answer in sight, mAP@1 is top-1.
            let map = outcome.protocol("map@1").unwrap();
            let top1 = [outcome.old_old, outcome.new_old, outcome.new_new, outcome.best_best];
            let by_protocol = [map.old_old, map.new_old, map.new_new, map.best_best];
            let same = |(made, of): (Option<f64>, Quality)| (made.unwrap() - of.top1).abs() < 1e-9;
            assert!(by_protocol.into_iter().zip(top1).all(same), "{outcome:?}");
            for backfill in &outcome.backfills {
                assert_eq!((backfill.top5.len(), backfill.top5.len()), (backfill.top1.len(), POINTS));
                assert!(backfill.top5.iter().zip(&backfill.top1).all(|(five, one)| five >= one));
                assert!(backfill.area_top5.is_some_and(|area| area >= backfill.area.top1));
            }
            for name in ["tar@0.5", "tpir@0.5"] {
                let made = outcome.protocol(name).unwrap();
                let ends = [made.old_old, made.new_old, made.new_new, made.best_best];
                assert!(
                    ends.iter().all(|end| end.is_some_and(|end| (0.0..=100.0).contains(&end))),
                    "{made:?}"
                );
            }
        }
        assert!(run(&study(folder.path(), "bct", "bct", ""), 32..40).unwrap().protocols().is_empty());
    }

    #[test]
    fn a_contender_with_another_encoder_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut parameters = study(folder.path(), "bct", "bct", "");
        let mut wider = parameters.contenders[0].clone();
        wider.label = "wider".into();
        wider.parameters.architecture = EncoderArchitecture::Mlp { hidden: Vec::new(), outputs: 7 };
        parameters.contenders.push(wider);
        let outcomes = run(&parameters, 32..40).unwrap().outcomes;
        let encoders: Vec<Option<&str>> = outcomes.iter().map(|outcome| outcome.encoder.as_deref()).collect();
        assert_eq!(encoders, [None, None, Some("a linear map, 7 coordinates")]);
    }

    #[test]
    fn only_the_default_of_fit_is_searched_with_its_handicap() {
        let folder = tempfile::tempdir().unwrap();
        let mut parameters = study(folder.path(), "bct", "bct", "");
        parameters.adapters = vec![Method::Auto, Method::Procrustes];
        let made = run(&parameters, 32..40).unwrap();
        assert!(made.setting.iter().any(|line| line.contains("but for `auto`")), "{made:?}");
        assert_eq!(made.methods(), ["independent", "bct", "auto", "procrustes"]);
    }

    #[test]
    fn a_part_in_which_no_query_finds_anything_fails_before_anything_is_trained() {
        let folder = tempfile::tempdir().unwrap();
        for searched in [32..36, 32..32] {
            let error = run(&study(folder.path(), "bct", "bct", ""), searched).unwrap_err();
            assert!(matches!(error.kind(), rehang_core::ErrorKind::InvalidOption { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains("\"test\"") && text.contains("allocation.test"), "{text}");
        }
        assert_eq!(fs_err::read_dir(folder.path()).unwrap().count(), 0);
    }
}
