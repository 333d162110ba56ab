//! Identifies which model made which vectors, from vectors and from files.

use std::path::{Path, PathBuf};

use half::{bf16, f16};
use rehang_core::check::expect_count;
use rehang_core::finding::{Finding, FindingCode};
use rehang_core::{
    DIFFERENCE_MAX, Distance, Error, Matrix, NOISE_TIMES, Pairs, Progress, Result, Vectors, difference, norm,
};
use rehang_files::{
    AtomicFile, InputReader, JoinFiles, NamedFile, RowSelection, VectorSource, expect_distinct,
    expect_same_items, joined_names, read_ids, read_labels,
};
use rehang_fit::{KINDS_MIN, KINSHIP_MIN, KINSHIP_WIDTH_MIN, kinds_of_pairs, kinship};
use serde::Serialize;

/// Factor by which a model's vectors stray from another provider's of the same model at most, over how they
/// stray in the middle. An export of MiniLM-L6 in 8 bits strayed from the original by 0.0008 in the middle of
/// 3,000 texts, and by 15 times that at most (`cargo lab study identify`).
const STRAY_TIMES: f64 = 20.0;
/// Number of vectors below which their middle says nothing.
const STRAY_MIN: usize = 20;
/// Number of a model's vectors of other sources that a vector is held against.
const OTHERS: usize = 100;
/// Share of a model's vectors of other sources that may be nearer to a vector than the model's vector of its
/// own source, where the vector is related to the model (*related* in laboratory/bench/runs/identify.md).
const NEARER_MAX: f64 = 0.01;
/// Largest ratio of a vector's distance from a model's vector of its own source to the distance from those of
/// others, at which it is near the model (*near* in laboratory/bench/runs/identify.md).
const NEAR_MAX: f64 = 0.5;
/// Part by which lengths may differ and still be the same: by half precision, or by 8 bits.
const SAME_LENGTH: f64 = 0.01;

/// A model that may have made the vectors.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// Name of the model.
    pub name: String,
    /// The model's vectors of the same items, `[n, d_model]`; a row of zeros where it gives none.
    pub vectors: Matrix,
    /// Distance between two of the model's vectors of one source, as [`difference`] measures; 0 where it
    /// gives a source the same vector each time.
    pub noise: f64,
}

/// Maker of a vector: a candidate, nearly a candidate, none of them, or untold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Maker {
    /// The candidate of this place among the candidates.
    Model(usize),
    /// Nearly the candidate of this place: the vector is none of the candidate's, and far nearer to the
    /// candidate's vector of its source than to those of others.
    Near(usize),
    /// None of the candidates.
    None,
    /// Untold: the vector has no direction, or no candidate has a vector of its item.
    Untold,
}

/// Origin of some vectors as a whole: one model, several, or unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// One candidate made all vectors that were compared.
    OneModel,
    /// More than one model made the vectors.
    Mixed,
    /// No candidate made any vector, and one nearly made half of them or more: with another prompt, or in
    /// another version.
    Near,
    /// No candidate made the vectors, or too few of them could be looked at.
    Unknown,
    /// No sign of two models was seen, without candidates.
    NoSign,
}

impl Origin {
    /// Returns whether nothing speaks against one model.
    pub fn is_sound(self) -> bool {
        matches!(self, Self::OneModel | Self::NoSign)
    }
}

/// A candidate, with how many of the vectors it made and what was done to them.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ModelFound {
    /// Name of the candidate.
    pub model: String,
    /// Number of vectors that the candidate made.
    pub made: usize,
    /// Number of the `made` vectors that another candidate could have made as well: both give nearly the
    /// same.
    pub unclear: usize,
    /// Number of vectors that the candidate nearly made.
    pub near: usize,
    /// Number of vectors that no candidate made, nor nearly made, and that are related to this one: its
    /// vector of their source is nearer to them than those of others.
    pub related: usize,
    /// Number of coordinates of the candidate's own vectors.
    pub width: usize,
    /// Number of the candidate's coordinates that were compared.
    pub compared_width: usize,
    /// Changes that turn the candidate's own vectors into those that it made here, in words.
    pub changes: Vec<String>,
    /// Relative squared difference of the vectors that it made from its own: in the middle and at most.
    /// `None` where it made none.
    pub difference: Option<[f64; 2]>,
    /// Largest difference from the candidate's vector at which a vector counts as made by it.
    pub tolerance: f64,
}

/// Two kinds of vectors, seen without candidates.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct KindsFound {
    /// Number of vectors of the smaller kind, where vectors can be told one by one.
    pub small: Option<usize>,
    /// Measure of what the two kinds have in common. By [`kinship`] of the vectors alone it is 0 for models
    /// trained apart and 1 for one model. By pairs it is the share of all vectors that are nearer than a
    /// neighbour of the other kind, ½ for models that have nothing in common.
    pub across: f64,
    /// Measure of what vectors of one kind have in common, on the scale of `across`.
    pub within: f64,
}

/// Findings about vectors of unknown origin: which model made which of them.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Identified {
    /// Origin of the vectors as a whole.
    pub origin: Origin,
    /// Evidence that the vectors were held against: `models`, `pairs`, or nothing but each other, `vectors`.
    pub by: &'static str,
    /// Number of vectors that were given.
    pub vectors: usize,
    /// Number of vectors of which something can be said.
    pub compared: usize,
    /// The candidates, in the order in which they were given.
    pub models: Vec<ModelFound>,
    /// Number of vectors that no candidate made, nor nearly made.
    pub none: usize,
    /// Two kinds of vectors, where they were seen without candidates.
    pub kinds: Option<KindsFound>,
    /// Share of another model that would have been seen with 95 % certainty if it were larger, where the
    /// vectors are a random sample of more.
    pub unseen_share: Option<f64>,
    /// File of the list that was written.
    pub list: Option<PathBuf>,
    /// Maker of each vector, `[vectors]`; empty without candidates.
    #[serde(skip)]
    pub makers: Vec<Maker>,
    /// Whether each vector is of the smaller kind, `[vectors]`; empty with candidates, or where that cannot
    /// be told.
    #[serde(skip)]
    pub small: Vec<bool>,
    /// Findings that the reader should know.
    #[serde(skip)]
    pub findings: Vec<Finding>,
}

impl Identified {
    /// Returns the candidate that made most vectors, or nearly made most where no candidate made any.
    pub fn main(&self) -> Option<usize> {
        let most = |count: fn(&ModelFound) -> usize| {
            let places = (0..self.models.len()).rev();
            places
                .max_by_key(|&place| count(&self.models[place]))
                .filter(|&place| count(&self.models[place]) > 0)
        };
        most(|model| model.made).or_else(|| most(|model| model.near))
    }

    /// Returns the vectors that are not as most are, each with its row and what it is: another model's name,
    /// `near NAME`, `none`, or `small` for one of the smaller kind.
    pub fn minority(&self) -> Vec<(usize, String)> {
        let main = self.main();
        let near_is_main = main.is_some_and(|main| self.models[main].made == 0);
        let of_maker = |maker: &Maker| match *maker {
            Maker::Model(model) => (Some(model) != main).then(|| self.models[model].model.clone()),
            Maker::Near(model) if near_is_main && Some(model) == main => None,
            Maker::Near(model) => Some(format!("near {}", self.models[model].model)),
            Maker::None => Some("none".to_owned()),
            Maker::Untold => None,
        };
        let by_model = self.makers.iter().map(of_maker);
        let by_kind = self.small.iter().map(|&small| small.then(|| "small".to_owned()));
        let rows = by_model.chain(by_kind).enumerate();
        rows.filter_map(|(row, what)| Some((row, what?))).collect()
    }

    /// Writes [`Identified::minority`], a line each: the row's name by `name`, a tab, and what the vector is.
    ///
    /// # Errors
    ///
    /// I/O errors.
    pub fn write_list<'a>(&mut self, path: &Path, name: impl Fn(usize) -> &'a str) -> Result<()> {
        let line = |(row, what): (usize, String)| format!("{}\t{what}\n", name(row));
        AtomicFile::write(path, self.minority().into_iter().map(line).collect::<String>())?;
        self.list = Some(path.to_owned());
        Ok(())
    }

    /// Notes that the vectors are a random sample of more, and how large a share of another model it would
    /// have shown.
    #[must_use]
    pub fn marked_as_sample(mut self) -> Self {
        if self.compared > 0 {
            self.unseen_share = Some(1.0 - 0.05_f64.powf(1.0 / self.compared as f64));
        }
        self
    }
}

/// Nearness of a vector to a model's vector of its source, beside the model's vectors of other sources.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Nearness {
    /// Share of the model's vectors of other sources that are nearer: about ½ where vector and model are
    /// independent.
    pub nearer: f64,
    /// Ratio of the difference from the model's vector of the own source to that from its vectors of others
    /// in the middle, by [`difference`]: 0 for the same vector, about 1 where vector and model are
    /// independent.
    pub times: f64,
}

/// Measures the [`Nearness`] of vectors, `[n, d]`, to a candidate's; by it [`identify_vectors`] says that
/// they are near or related. `None` where a vector or its counterpart has no direction, or the candidate has
/// no vector of another source.
///
/// # Errors
///
/// [`rehang_core::ErrorKind::CountMismatch`] where the candidate does not have one row for each vector.
pub fn nearness(unknown: &Matrix, candidate: &Candidate) -> Result<Vec<Option<Nearness>>> {
    candidate.expect_rows(unknown.rows())?;
    let compared = Compared::new(unknown, candidate);
    Ok((0..unknown.rows()).map(|row| compared.nearness(row)).collect())
}

impl Candidate {
    fn expect_rows(&self, rows: usize) -> Result<()> {
        expect_count(format!("{:?}", self.name), self.vectors.rows(), "the vectors", rows)
    }
}

/// Says which candidate made which of some vectors, `[n, d]`.
///
/// - A vector and a candidate's of the same source are compared as directions, in the coordinates that both
///   have. What a provider cuts (Matryoshka), scales to length 1 or rounds stays the same vector.
/// - A vector is a candidate's where their [`difference`] is at most 0.01, or 4 times the candidate's noise,
///   or 20 times the middle of the differences below 0.01. Of several candidates the nearest one made it;
///   where two are about as near, whichever made more.
/// - A vector is *near* a candidate where the candidate's vectors of other sources are farther in 99 of 100
///   cases, and twice as far in the middle. The model was then given another prompt, or it is another
///   version.
///
/// Vectors of length 0, and items that no candidate has a vector of, are [`Maker::Untold`].
///
/// ```
/// use rehang_core::Matrix;
/// use rehang_evaluate::{Candidate, Maker, Origin, identify_vectors};
///
/// let vectors_of = |seed: usize| Matrix::from_fn(40, 8, |row, column| ((row * 37 + column * (seed + row)) % 101) as f32 - 50.0);
/// let candidate = |name: &str, vectors| Candidate { name: name.into(), vectors, noise: 0.0 };
/// // The first model's, cut to 6 coordinates; three of them are of the second.
/// let unknown = Matrix::from_fn(40, 6, |row, column| vectors_of(if row < 3 { 13 } else { 5 }).row(row)[column]);
/// let found = identify_vectors(&unknown, &[candidate("a", vectors_of(5)), candidate("b", vectors_of(13))])?;
/// assert_eq!((found.origin, found.models[0].made, found.models[1].made), (Origin::Mixed, 37, 3));
/// assert_eq!((found.makers[2], found.minority()[2].0), (Maker::Model(1), 2));
/// # Ok::<(), rehang_core::Error>(())
/// ```
///
/// # Errors
///
/// [`rehang_core::ErrorKind::CountMismatch`] where a candidate does not have one row for each vector.
pub fn identify_vectors(unknown: &Matrix, candidates: &[Candidate]) -> Result<Identified> {
    let n = unknown.rows();
    for candidate in candidates {
        candidate.expect_rows(n)?;
    }
    let compared: Vec<Compared<'_>> =
        candidates.iter().map(|candidate| Compared::new(unknown, candidate)).collect();
    let mut makers: Vec<Maker> = (0..n).map(|row| nearest(&compared, row)).collect();
    let count =
        |makers: &[Maker], model| makers.iter().filter(|&&maker| maker == Maker::Model(model)).count();
    let clear: Vec<usize> = (0..compared.len()).map(|model| count(&makers, model)).collect();
    let mut unclear = vec![0; compared.len()];
    let mut related = vec![0; compared.len()];
    for (row, maker) in makers.iter_mut().enumerate() {
        let as_near = as_near(&compared, row);
        if as_near.len() > 1 {
            // A tie of counts goes to the candidate that was given first.
            let most = as_near.into_iter().rev().max_by_key(|&model| clear[model]).unwrap_or_default();
            *maker = Maker::Model(most);
            unclear[most] += 1;
        } else if *maker == Maker::None {
            let nearest = compared
                .iter()
                .enumerate()
                .filter_map(|(model, of)| Some((of.times_among_others(row)?, model)))
                .min_by(|a, b| a.0.total_cmp(&b.0));
            if let Some((ratio, model)) = nearest {
                if ratio <= NEAR_MAX {
                    *maker = Maker::Near(model);
                } else {
                    related[model] += 1;
                }
            }
        }
    }
    let models: Vec<ModelFound> = compared
        .iter()
        .enumerate()
        .map(|(model, of)| of.found(&makers, model, (unclear[model], related[model])))
        .collect();
    let none = makers.iter().filter(|&&maker| maker == Maker::None).count();
    let told = makers.iter().filter(|&&maker| maker != Maker::Untold).count();
    let has_made = |model: &&ModelFound| model.made > 0;
    let origin = if models.iter().any(|model| model.made == told && told > 0) {
        Origin::OneModel
    } else if models.iter().any(|model| has_made(&model)) {
        Origin::Mixed
    } else if models.iter().any(|model| 2 * model.near >= told && told > 0) {
        Origin::Near
    } else {
        Origin::Unknown
    };
    let mut identified = Identified {
        origin,
        by: "models",
        vectors: n,
        compared: told,
        models,
        none,
        kinds: None,
        unseen_share: None,
        list: None,
        makers,
        small: Vec::new(),
        findings: Vec::new(),
    };
    identified.findings = findings(&identified, &compared);
    Ok(identified)
}

fn findings(identified: &Identified, compared: &[Compared<'_>]) -> Vec<Finding> {
    let mut findings = Vec::new();
    if identified.compared < identified.vectors {
        let observation = format!(
            "{} vectors were passed over: they have no direction, or no model has a vector of their item.",
            identified.vectors - identified.compared
        );
        findings.push(Finding::note(FindingCode::PassedOver, observation));
    }
    for (model, of) in identified.models.iter().zip(compared) {
        if model.unclear > 0 {
            let observation = format!(
                "{} vectors of {:?} could be another model's as well: both give nearly the same for them.",
                model.unclear, model.model
            );
            findings.push(Finding::note(FindingCode::Unclear, observation));
        }
        let (as_model, other_lengths) = of.lengths;
        if as_model > 0 && other_lengths > 0 {
            let observation = format!(
                "{} of the vectors that {:?} made have the length that it gives, and {} have another one.",
                as_model, model.model, other_lengths
            );
            findings.push(
                Finding::warning(FindingCode::Lengths, observation)
                    .may_mean("Cosines are the same; inner products and l2 distances are not."),
            );
        }
        if model.near > 0 {
            let observation = format!(
                "{} vectors are nearly those of {:?}, farther from them than what providers change.",
                model.near, model.model
            );
            findings.push(
                Finding::warning(FindingCode::Near, observation)
                    .may_mean("The model was given another prompt, or it is another version of it."),
            );
        }
        if model.related > 0 {
            let observation = format!(
                "{} vectors that no model made are not independent of those of {:?}.",
                model.related, model.model
            );
            findings.push(
                Finding::note(FindingCode::Related, observation)
                    .may_mean("Among few that is chance; many of them are of a model of the same family."),
            );
        }
    }
    findings
}

/// A candidate, compared with the vectors of unknown origin row by row.
struct Compared<'a> {
    candidate: &'a Candidate,
    unknown: &'a Matrix,
    /// Number of coordinates that both have.
    width: usize,
    /// Difference of each vector from the candidate's of its item; NaN where one of them has no direction.
    differences: Vec<f64>,
    tolerance: f64,
    /// Rows of the candidate's vectors that a vector is held against as those of other sources.
    other_rows: Vec<usize>,
    /// Numbers of the vectors that the candidate made with its own length, and with another one.
    lengths: (usize, usize),
}

impl<'a> Compared<'a> {
    fn new(unknown: &'a Matrix, candidate: &'a Candidate) -> Self {
        let width = unknown.columns().min(candidate.vectors.columns());
        let has_direction = |row: usize| {
            norm(&unknown.row(row)[..width]) > 0.0 && norm(&candidate.vectors.row(row)[..width]) > 0.0
        };
        let told: Vec<usize> = (0..unknown.rows()).filter(|&row| has_direction(row)).collect();
        let mut of = Self {
            candidate,
            unknown,
            width,
            differences: vec![f64::NAN; unknown.rows()],
            tolerance: 0.0,
            other_rows: told.iter().copied().step_by(told.len().div_ceil(OTHERS).max(1)).collect(),
            lengths: (0, 0),
        };
        for &row in &told {
            of.differences[row] = of.between(row, row);
        }
        let mut same: Vec<f64> =
            of.differences.iter().copied().filter(|&difference| difference <= DIFFERENCE_MAX).collect();
        same.sort_by(f64::total_cmp);
        let stray = if same.len() < STRAY_MIN { 0.0 } else { STRAY_TIMES * same[same.len() / 2] };
        of.tolerance = DIFFERENCE_MAX.max(NOISE_TIMES * candidate.noise).max(stray);
        let lengths = of.ratios(told.iter().copied().filter(|&row| of.is_made(row)));
        let as_model = lengths.iter().filter(|ratio| is_same_length(**ratio)).count();
        of.lengths = (as_model, lengths.len() - as_model);
        of
    }

    /// Returns the difference between a vector and the candidate's vector of an item.
    fn between(&self, row: usize, item: usize) -> f64 {
        let [vector, candidate_vector] =
            [self.unknown.row(row), self.candidate.vectors.row(item)].map(|row| &row[..self.width]);
        difference(Distance::Cosine, vector, candidate_vector)
    }

    fn is_made(&self, row: usize) -> bool {
        self.differences[row] <= self.tolerance
    }

    /// Returns the ratios of the vectors' lengths to those of the candidate's vectors, for some rows.
    fn ratios(&self, rows: impl Iterator<Item = usize>) -> Vec<f64> {
        rows.map(|row| norm(self.unknown.row(row)) / norm(&self.candidate.vectors.row(row)[..self.width]))
            .collect()
    }

    /// Returns [`Nearness::times`]; `None` where the vector is not related to the model.
    fn times_among_others(&self, row: usize) -> Option<f64> {
        let near = self.nearness(row)?;
        (near.nearer <= NEARER_MAX && near.times < 1.0).then_some(near.times)
    }

    fn nearness(&self, row: usize) -> Option<Nearness> {
        let own_difference = self.differences[row];
        if own_difference.is_nan() {
            return None;
        }
        let mut other_differences: Vec<f64> = self
            .other_rows
            .iter()
            .filter(|&&item| item != row)
            .map(|&item| self.between(row, item))
            .collect();
        other_differences.sort_by(f64::total_cmp);
        let nearer = other_differences.partition_point(|&difference| difference < own_difference);
        let middle = *other_differences.get(other_differences.len() / 2)?;
        Some(Nearness {
            nearer: nearer as f64 / other_differences.len() as f64,
            times: own_difference / middle,
        })
    }

    fn found(&self, makers: &[Maker], model: usize, (unclear, related): (usize, usize)) -> ModelFound {
        let rows: Vec<usize> = (0..makers.len()).filter(|&row| makers[row] == Maker::Model(model)).collect();
        let mut differences: Vec<f64> = rows.iter().map(|&row| self.differences[row]).collect();
        differences.sort_by(f64::total_cmp);
        let difference = differences.last().map(|&last| [differences[differences.len() / 2], last]);
        ModelFound {
            model: self.candidate.name.clone(),
            made: rows.len(),
            unclear,
            near: makers.iter().filter(|&&maker| maker == Maker::Near(model)).count(),
            related,
            width: self.candidate.vectors.columns(),
            compared_width: self.width,
            changes: if rows.is_empty() { Vec::new() } else { self.changes(&rows) },
            difference,
            tolerance: self.tolerance,
        }
    }

    /// Names what was done to the candidate's vectors of these rows.
    fn changes(&self, rows: &[usize]) -> Vec<String> {
        let mut changes = Vec::new();
        let (width, whole_width) = (self.width, self.candidate.vectors.columns());
        if width < whole_width {
            changes.push(format!("cut to the first {width} of {whole_width} coordinates"));
        } else if width < self.unknown.columns() {
            changes.push(format!(
                "the model's own are the first {width} of {} coordinates",
                self.unknown.columns()
            ));
        }
        let ratios = self.ratios(rows.iter().copied());
        let is_unit = |row: &usize| is_same_length(norm(self.unknown.row(*row)));
        if width == self.unknown.columns() && !ratios.iter().all(|&ratio| is_same_length(ratio)) {
            let (least, most) =
                ratios.iter().fold((f64::INFINITY, 0.0_f64), |(a, b), &of| (a.min(of), b.max(of)));
            changes.push(if rows.iter().all(is_unit) {
                "scaled to length 1".into()
            } else if most <= least * (1.0 + 2.0 * SAME_LENGTH) {
                format!("multiplied by {:.2}", f64::midpoint(least, most))
            } else {
                "of other lengths".into()
            });
        }
        let candidate_row = |row: usize| &self.candidate.vectors.row(row)[..width];
        let ours: Vec<&[f32]> = rows.iter().map(|&row| self.unknown.row(row)).collect();
        let theirs: Vec<&[f32]> = rows.iter().map(|&row| candidate_row(row)).collect();
        if let Some(of) = rounding(&ours).filter(|of| rounding(&theirs) != Some(*of)) {
            changes.push(format!("rounded to {of}"));
        }
        changes
    }
}

fn is_same_length(ratio: f64) -> bool {
    (ratio - 1.0).abs() <= SAME_LENGTH
}

/// Returns the candidate that is nearest to a vector, within the candidate's tolerance.
fn nearest(compared: &[Compared<'_>], row: usize) -> Maker {
    if compared.iter().all(|of| of.differences[row].is_nan()) {
        return Maker::Untold;
    }
    match as_near(compared, row)[..] {
        [] => Maker::None,
        [model] => Maker::Model(model),
        // Several candidates are as near; the vector is counted once it is known which of them made more.
        [..] => Maker::Untold,
    }
}

/// Returns the candidates whose vectors are about as near to a vector as the nearest one's, each within its
/// tolerance.
fn as_near(compared: &[Compared<'_>], row: usize) -> Vec<usize> {
    /// Largest difference that single precision leaves between equal vectors.
    const EXACT: f64 = 1e-9;
    let makers = || (0..compared.len()).filter(|&model| compared[model].is_made(row));
    let least = makers().map(|model| compared[model].differences[row]).fold(f64::INFINITY, f64::min);
    makers().filter(|&model| compared[model].differences[row] <= (NOISE_TIMES * least).max(EXACT)).collect()
}

/// Names the precision that numbers were rounded to; `None` for single precision.
fn rounding(rows: &[&[f32]]) -> Option<&'static str> {
    let all = |is: &dyn Fn(f32) -> bool| rows.iter().all(|row| row.iter().all(|&value| is(value)));
    let largest = |row: &[f32]| row.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    let of_all = rows.iter().map(|row| largest(row)).fold(0.0, f32::max);
    // One step is a 127th of the largest number, of each vector or of all.
    let is_step = |value: f32, largest: f32| {
        let steps = f64::from(value) * 127.0 / f64::from(largest).max(f64::MIN_POSITIVE);
        (steps - steps.round()).abs() < 1e-3
    };
    let by_row = rows.iter().all(|row| row.iter().all(|&value| is_step(value, largest(row))));
    if by_row || all(&|value| is_step(value, of_all)) {
        return Some("8 bits");
    }
    if all(&|value| bf16::from_f32(value).to_f32().to_bits() == value.to_bits()) {
        return Some("bfloat16");
    }
    all(&|value| f16::from_f32(value).to_f32().to_bits() == value.to_bits()).then_some("float16")
}

/// Files of vectors of unknown origin, and of what they are held against.
#[derive(Debug, Clone)]
pub struct IdentifyFiles {
    /// The vectors of unknown origin, one file below the other.
    pub vectors: Vec<VectorSource>,
    /// Vectors of the same items by models that may have made the unknown ones.
    pub models: Vec<NamedFile>,
    /// Vectors of the same items by one model, whose origin is known. They take the place of `models` where
    /// no model that may have made the vectors is at hand.
    pub new: Vec<VectorSource>,
    /// Join of the vectors (the old side) with those of the models.
    pub join: JoinFiles,
    /// Rows that take part.
    pub rows: Option<RowSelection>,
    /// Seed of the samples that are drawn without models.
    pub seed: u64,
    /// List to write of each vector that is not as most are: its id, or its row from 0 on, a tab, and what it
    /// is.
    pub output: Option<PathBuf>,
}

impl IdentifyFiles {
    /// Returns the input for vectors of unknown origin, with nothing to hold them against yet.
    pub fn new(vectors: Vec<VectorSource>) -> Self {
        Self {
            vectors,
            models: Vec::new(),
            new: Vec::new(),
            join: JoinFiles::default(),
            rows: None,
            seed: 0,
            output: None,
        }
    }
}

/// Says which model made which vectors of a file. They are held against models' vectors of the same items
/// ([`identify_vectors`]), else against one model's vectors of these items, by neighbours
/// ([`kinds_of_pairs`]), else against each other ([`kinship`]).
///
/// # Errors
///
/// Errors of a file, or between two files, name them. [`InvalidOption`](rehang_core::ErrorKind::InvalidOption) for
/// `models` beside `new`, and for an output that is an input. Others as [`kinds_of_pairs`] and [`kinship`].
pub fn identify(files: &IdentifyFiles, progress: &Progress) -> Result<Identified> {
    if !files.models.is_empty() && !files.new.is_empty() {
        return Err(Error::option("new", "given", "nothing beside `models`, which say more"));
    }
    expect_distinct("models", &files.models)?;
    let mut inputs = InputReader::new(files.rows.as_ref())?;
    let unknown = inputs.matrix("vectors", &files.vectors)?;
    let mut named_sources = Vec::new();
    for NamedFile { name, file } in &files.models {
        named_sources.push((name.clone(), vec![file.clone()]));
    }
    if !files.new.is_empty() {
        named_sources.push((String::new(), files.new.clone()));
    }
    let mut matrices = Vec::new();
    for (_, sources) in &named_sources {
        let role = if files.new.is_empty() { "models" } else { "new" };
        matrices.push(inputs.matrix(role, sources)?);
        if files.join.is_by_position() {
            expect_same_items(&[&files.vectors, sources])?;
        }
    }
    let places = files.places(unknown.rows())?;
    let rows = matrices.first().map_or(unknown.rows(), Matrix::rows);
    let join = inputs.join(&files.join, unknown.rows(), rows)?;
    let names = join.old_values("the rows", places)?;
    let unknown = join.old_side("the vectors", unknown)?;
    let outputs = [("output", files.output.as_ref())];
    inputs.expect_apart(&outputs)?;
    let mut candidates = Vec::new();
    for ((name, sources), vectors) in named_sources.into_iter().zip(matrices) {
        expect_count(joined_names(&sources), vectors.rows(), "the first model's vectors", rows)?;
        let vectors = join.new_side(vectors);
        expect_count(joined_names(&files.vectors), unknown.rows(), joined_names(&sources), vectors.rows())?;
        candidates.push(Candidate { name, vectors, noise: 0.0 });
    }
    let mut identified = if !files.models.is_empty() {
        identify_vectors(&unknown, &candidates)?
    } else if let Some(new) = candidates.pop() {
        by_pairs(unknown, new.vectors, files, progress)?
    } else {
        identify_alone(&unknown, files.seed, progress)?
    };
    if let Some(path) = &files.output {
        identified.write_list(path, |row| names[row].as_str())?;
    }
    inputs.findings.append(&mut identified.findings);
    identified.findings = inputs.findings;
    Ok(identified)
}

impl IdentifyFiles {
    /// Names every row that takes part, for the list: its id, or its place in the files.
    fn places(&self, rows: usize) -> Result<Vec<String>> {
        if !self.join.is_by_position() {
            let mut ids = Vec::new();
            for source in &self.join.old_ids {
                ids.extend(read_ids(source)?.unwrap_or_default());
            }
            return Ok(ids);
        }
        let number = |row: usize| row.to_string();
        let Some(selection) = &self.rows else { return Ok((0..rows).map(number).collect()) };
        let all = read_labels(&selection.file)?.len();
        Ok(selection.read()?.places(0..all).into_iter().map(number).collect())
    }
}

fn by_pairs(old: Matrix, new: Matrix, files: &IdentifyFiles, progress: &Progress) -> Result<Identified> {
    let measured = |name: &str, rows, sources: &[VectorSource]| {
        Vectors::measured(name, Distance::Cosine, rows, &joined_names(sources))
    };
    let pairs =
        Pairs::new(measured("unknown", old, &files.vectors)?, measured("new", new, &files.new)?, None, None)?;
    let pair_kinds = kinds_of_pairs(&pairs, files.seed, progress)?;
    let too_little = (pairs.len() < KINDS_MIN).then(|| few("vectors to look at", pairs.len(), KINDS_MIN));
    let mut small = Vec::new();
    let kinds = pair_kinds.map(|kinds| {
        small = kinds.small.unwrap_or_default();
        let count = (!small.is_empty()).then(|| small.iter().filter(|&&of| of).count());
        KindsFound { small: count, across: kinds.across, within: kinds.within }
    });
    Ok(without_models("pairs", pairs.len(), too_little, kinds, small))
}

/// Says whether vectors are of one model, by the vectors alone ([`kinship`]).
///
/// # Errors
///
/// As [`kinship`].
pub fn identify_alone(vectors: &Matrix, seed: u64, progress: &Progress) -> Result<Identified> {
    let vector_kinds = kinship(vectors, seed, progress)?;
    let directed = vectors.norms().iter().filter(|&&length| length > 0.0).count();
    let mut small = Vec::new();
    let kinds = vector_kinds.map(|kinds| {
        small = kinds.small;
        let count = small.iter().filter(|&&of| of).count();
        KindsFound { small: Some(count), across: kinds.across, within: kinds.within }
    });
    let too_little = if directed < KINSHIP_MIN {
        Some(few("vectors to look at", vectors.rows(), KINSHIP_MIN))
    } else {
        let width = vectors.columns();
        (width < KINSHIP_WIDTH_MIN).then(|| few("coordinates in each vector", width, KINSHIP_WIDTH_MIN))
    };
    Ok(without_models("vectors", vectors.rows(), too_little, kinds, small))
}

/// Says why nothing can be told without models.
fn few(what: &str, count: usize, least: usize) -> String {
    format!("There are {count} {what}; fewer than {least} say nothing without models.")
}

fn without_models(
    by: &'static str,
    vectors: usize,
    too_little: Option<String>,
    kinds: Option<KindsFound>,
    small: Vec<bool>,
) -> Identified {
    let is_enough = too_little.is_none();
    let origin = match (&kinds, is_enough) {
        (Some(_), _) => Origin::Mixed,
        (None, true) => Origin::NoSign,
        (None, false) => Origin::Unknown,
    };
    let mut findings = Vec::new();
    if let Some(observation) = too_little {
        findings.push(
            Finding::warning(FindingCode::FewVectors, observation)
                .remedy("Embed some of the items again by each model that may have made them."),
        );
    }
    Identified {
        origin,
        by,
        vectors,
        compared: if is_enough { vectors } else { 0 },
        models: Vec::new(),
        none: 0,
        kinds,
        unseen_share: None,
        list: None,
        makers: Vec::new(),
        small,
        findings,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Draws random directions about a common one, as encoders give them: `[n, d]`.
    fn model(n: usize, d: usize, seed: u32) -> Matrix {
        let value = |row: usize, column: usize| {
            let mixed =
                (row as u32 * 131 + column as u32 + 1).wrapping_mul(0x9e37_79b1 ^ seed).rotate_left(13);
            (mixed.wrapping_mul(2_246_822_519) >> 8) as f32 / 8_388_608.0 - 1.0
        };
        Matrix::from_fn(n, d, |row, column| value(row, column) + 0.3 * value(7_777, column))
    }

    fn candidate(name: &str, vectors: Matrix) -> Candidate {
        Candidate { name: name.into(), vectors, noise: 0.0 }
    }

    fn changed(matrix: &Matrix, width: usize, change: impl Fn(f32) -> f32) -> Matrix {
        Matrix::from_fn(matrix.rows(), width, |row, column| change(matrix.row(row)[column]))
    }

    #[test]
    fn what_providers_do_is_undone_and_named() {
        let model_vectors = model(60, 32, 3);
        let [a, b] = [candidate("a", model_vectors.clone()), candidate("b", model(60, 32, 9))];
        let mut unit = model_vectors.clone();
        unit.normalise_rows();
        let mut cut_unit = changed(&model_vectors, 20, |value| value);
        cut_unit.normalise_rows();
        let step = model_vectors.as_slice().iter().fold(0.0_f32, |most, value| most.max(value.abs())) / 127.0;
        let cases: [(Matrix, &[&str]); 7] = [
            (model_vectors.clone(), &[]),
            (unit, &["scaled to length 1"]),
            (changed(&model_vectors, 20, |value| value), &["cut to the first 20 of 32 coordinates"]),
            (cut_unit, &["cut to the first 20 of 32 coordinates", "scaled to length 1"]),
            (changed(&model_vectors, 32, |value| f16::from_f32(value).to_f32()), &["rounded to float16"]),
            (changed(&model_vectors, 32, |value| bf16::from_f32(value).to_f32()), &["rounded to bfloat16"]),
            (
                changed(&model_vectors, 32, |value| (value / step).round() * step * 2.5),
                &["multiplied by 2.50", "rounded to 8 bits"],
            ),
        ];
        for (unknown, changes) in cases {
            let identified = identify_vectors(&unknown, &[b.clone(), a.clone()]).unwrap();
            assert_eq!(identified.origin, Origin::OneModel, "{changes:?}");
            assert_eq!((identified.models[1].made, identified.models[0].made), (60, 0));
            assert_eq!(identified.models[1].changes, changes);
            assert!(identified.minority().is_empty());
        }
    }

    #[test]
    fn every_vector_goes_to_the_model_that_a_slow_comparison_says() {
        let models = [model(200, 24, 5), model(200, 24, 6), model(200, 24, 7)];
        let maker = |row: usize| row * row % 3;
        // The third model is not among the candidates.
        let unknown = Matrix::from_fn(200, 24, |row, column| models[maker(row)].row(row)[column]);
        let candidates = [candidate("a", models[0].clone()), candidate("b", models[1].clone())];
        let identified = identify_vectors(&unknown, &candidates).unwrap();
        let cosine = |a: &[f32], b: &[f32]| {
            a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>() / norm(a) / norm(b)
        };
        for row in 0..200 {
            let slow = candidates.iter().position(|of| cosine(unknown.row(row), of.vectors.row(row)) > 0.999);
            assert_eq!(identified.makers[row], slow.map_or(Maker::None, Maker::Model));
        }
        assert_eq!(identified.origin, Origin::Mixed);
        let told: usize = identified.models.iter().map(|model| model.made).sum();
        assert_eq!(told + identified.none, 200);
        // One model alone is known, and made none of the others.
        let only = identify_vectors(&models[2], &candidates[..1]).unwrap();
        assert_eq!((only.origin, only.none), (Origin::Unknown, 200));
    }

    #[test]
    fn a_prompt_is_near_and_another_model_is_not() {
        let (model_vectors, other_vectors) = (model(150, 64, 1), model(150, 64, 2));
        let prompt = Matrix::from_fn(150, 64, |row, column| {
            model_vectors.row(row)[column]
                + 0.3 * other_vectors.row(row)[column]
                + 0.2 * other_vectors.row(3)[column]
        });
        let identified = identify_vectors(&prompt, &[candidate("a", model_vectors.clone())]).unwrap();
        assert_eq!((identified.origin, identified.models[0].near), (Origin::Near, 150));
        assert!(identified.minority().is_empty());
        // Some of the vectors were made behind a prompt.
        let mixed = Matrix::from_fn(150, 64, |row, column| {
            if row < 10 { prompt.row(row)[column] } else { model_vectors.row(row)[column] }
        });
        let identified = identify_vectors(&mixed, &[candidate("a", model_vectors.clone())]).unwrap();
        assert_eq!(
            (identified.origin, identified.models[0].made, identified.models[0].near),
            (Origin::Mixed, 140, 10)
        );
        assert_eq!(identified.minority()[0], (0, "near a".to_owned()));
        let identified = identify_vectors(&other_vectors, &[candidate("a", model_vectors)]).unwrap();
        assert_eq!((identified.origin, identified.models[0].near), (Origin::Unknown, 0));
    }

    #[test]
    fn noise_zero_vectors_and_two_names_of_one_model() {
        let model_vectors = model(50, 16, 1);
        let jitter = model(50, 16, 8);
        let noisy = Matrix::from_fn(50, 16, |row, column| {
            model_vectors.row(row)[column] + 0.3 * jitter.row(row)[column]
        });
        let identified = identify_vectors(&noisy, &[candidate("a", model_vectors.clone())]).unwrap();
        assert_ne!(identified.origin, Origin::OneModel);
        let loud = Candidate { noise: 0.1, ..candidate("a", model_vectors.clone()) };
        assert_eq!(identify_vectors(&noisy, &[loud]).unwrap().origin, Origin::OneModel);
        // Vectors without a direction are told nothing of, and do not make the others mixed.
        let gaps =
            Matrix::from_fn(50, 16, |row, column| if row < 4 { 0.0 } else { model_vectors.row(row)[column] });
        let identified = identify_vectors(&gaps, &[candidate("a", model_vectors.clone())]).unwrap();
        assert_eq!(
            (identified.origin, identified.compared, identified.makers[0]),
            (Origin::OneModel, 46, Maker::Untold)
        );
        let identified = identify_vectors(&model_vectors, &[candidate("a", gaps.clone())]).unwrap();
        assert_eq!((identified.origin, identified.compared), (Origin::OneModel, 46));
        // Vectors that could be either model's go to the one that made more.
        let twice =
            identify_vectors(&model_vectors, &[candidate("a", gaps), candidate("b", model_vectors.clone())])
                .unwrap();
        assert_eq!((twice.origin, twice.models[1].made, twice.models[1].unclear), (Origin::OneModel, 50, 46));
        // No vectors have no origin.
        let none = identify_vectors(&Matrix::zeros(0, 16), &[candidate("a", Matrix::zeros(0, 16))]).unwrap();
        assert_eq!((none.origin, none.compared), (Origin::Unknown, 0));
        assert!(identify_vectors(&model_vectors, &[candidate("a", model(49, 16, 1))]).is_err());
    }

    #[test]
    fn of_a_sample_it_is_said_what_it_would_not_show() {
        let model_vectors = model(300, 16, 1);
        let identified = identify_vectors(&model_vectors, &[candidate("a", model_vectors.clone())])
            .unwrap()
            .marked_as_sample();
        // (1 − p)³⁰⁰ = 0.05
        assert!((identified.unseen_share.unwrap() - 0.009_936).abs() < 1e-5);
    }

    #[test]
    fn files_go_by_id_and_the_list_names_the_minority() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let write = |name: &str, matrix: &Matrix| {
            rehang_files::write_matrix(at(name), matrix, None).unwrap();
            VectorSource::path(at(name))
        };
        let (a, b) = (model(60, 12, 1), model(60, 12, 2));
        let mixed =
            Matrix::from_fn(
                60,
                12,
                |row, column| {
                    if row % 20 == 7 { b.row(row)[column] } else { a.row(row)[column] }
                },
            );
        let turned: Vec<usize> = (0..60).rev().collect();
        let ids = |name: &str, rows: &[usize]| {
            let lines: String = rows.iter().map(|row| format!("item-{row}\n")).collect();
            AtomicFile::write(at(name), lines).unwrap();
            vec![VectorSource::path(at(name))]
        };
        let named = |name: &str, file| NamedFile { name: name.into(), file };
        let mut files = IdentifyFiles::new(vec![write("mixed.npy", &mixed)]);
        files.models = vec![
            named("a", write("a.npy", &a.select(&turned))),
            named("b", write("b.npy", &b.select(&turned))),
        ];
        files.join = JoinFiles {
            old_ids: ids("ids.txt", &(0..60).collect::<Vec<_>>()),
            new_ids: ids("model-ids.txt", &turned),
            keep_common: false,
        };
        files.output = Some(at("list.tsv"));
        let identified = identify(&files, &Progress::default()).unwrap();
        assert_eq!((identified.origin, identified.models[1].made), (Origin::Mixed, 3));
        let list = rehang_files::read_lines(at("list.tsv")).unwrap();
        assert_eq!(list, ["item-7\tb", "item-27\tb", "item-47\tb"]);
        files.output = Some(at("a.npy"));
        assert!(identify(&files, &Progress::default()).unwrap_err().to_string().contains("a.npy"));
        // Without models there are too few to say.
        let alone = IdentifyFiles::new(files.vectors.clone());
        let identified = identify(&alone, &Progress::default()).unwrap();
        assert_eq!(
            (identified.origin, identified.by, identified.findings.len()),
            (Origin::Unknown, "vectors", 1)
        );
        let models_and_new = IdentifyFiles { new: files.vectors.clone(), ..files };
        assert!(
            identify(&models_and_new, &Progress::default()).unwrap_err().to_string().contains("`models`")
        );
    }
}
