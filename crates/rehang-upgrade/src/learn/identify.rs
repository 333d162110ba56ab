//! Identification of the model that made the vectors of a gallery's space.

use std::path::PathBuf;

use rehang_core::{DIFFERENCE_MAX, Error, Matrix, Progress, Provenance, Result, Space, difference};
use rehang_encode::{Encoder, Input, Spent};
use rehang_evaluate::{Candidate, Identified, identify_alone, identify_vectors};
use rehang_store::{Ledger, Record, Scan, Select, expect_space, find_space};
use serde::Serialize;

use crate::configuration::Configuration;
use crate::live::encoding::{encode, input_of};
use crate::live::manners;
use crate::live::sample;
use crate::live::spending;
use crate::observe::{Observation, Observer, Unobserved, expect_going};
use crate::record::Recorded;
use crate::upgrade::Upgrade;

/// Vectors that are looked at without asking a model.
const LOOKED_AT_MAX: usize = 1_500;
/// Items that a model which cannot vouch for itself embeds once more, to be compared with itself.
const EMBEDDED_TWICE: usize = 4;
/// Items that are drawn for each one that is wanted: those without a source or with an
/// adapted vector drop out.
const DRAWN_TIMES: usize = 4;

/// Options of [`Upgrade::identify`].
///
/// | Field | Default | Range |
/// |---|---|---|
/// | `space` | the one that serves | a space of the gallery |
/// | `items` | 300 | 0: no model is asked |
/// | `output` | none | |
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentifyOptions {
    /// Name of the space; `None` for the one that serves.
    pub space: Option<String>,
    /// Random items that each configured model embeds, at most. With 300, a share of another model of 1 % is
    /// missed by one sample in 20.
    pub items: usize,
    /// File for a list of the items whose vectors are not as most are: id, a tab, and what it is.
    pub output: Option<PathBuf>,
}

impl Default for IdentifyOptions {
    fn default() -> Self {
        Self { space: None, items: 300, output: None }
    }
}

/// Vectors of a space, by the model that made them.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct IdentifiedSpace {
    /// Name of the space.
    pub space: String,
    /// Findings about the vectors of the space; `vectors` counts those that were looked at.
    #[serde(flatten)]
    pub found: Identified,
    /// Items whose vectors are not as most are, with what each is: another model's name, `near NAME`,
    /// `none` or `small`.
    pub others: Vec<(String, String)>,
    /// Number of vectors of the space that an adapter made: they are no model's, and are not looked at.
    pub adapted: u64,
    /// Items, tokens and money that the models used, all together.
    pub spent: Spent,
}

impl Upgrade {
    /// Says which of the configured models made the vectors of a space. Some random items are embedded again
    /// by each model that has an encoder, and compared as [`identify_vectors`] does. Where there is no
    /// encoder, or `items` is 0, the vectors are looked at alone, as [`identify_alone`] does, and nothing is
    /// paid for. Adapted vectors are no model's and are left out. Nothing is written but, where there is an
    /// upgrade, what was spent: it counts for its budget.
    ///
    /// # Errors
    ///
    /// Not found for a space that is not there; missing input where no space serves and none is named; what
    /// the encoders say, a budget that is spent among it; [`rehang_core::ErrorKind::Cancelled`].
    pub fn identify(&self, options: &IdentifyOptions, observer: &dyn Observer) -> Result<IdentifiedSpace> {
        let (store, configuration) = (self.store(), self.configuration());
        let space = match &options.space {
            Some(name) => name.clone(),
            None => {
                store.serving()?.ok_or_else(|| Error::missing("`space`", "a gallery in which none serves"))?
            }
        };
        expect_space(store, &space)?;
        let adapted = store.counts(&space)?.adapted;
        let models: Vec<Space> = models(configuration, store)?;
        let mut spent = Spent::default();
        if models.is_empty() || options.items == 0 {
            let records = of_a_model(store, &space, LOOKED_AT_MAX)?;
            let progress = Progress::default();
            let identification =
                identify_alone(&vectors(&records), 0, observer.counters().unwrap_or(&progress))?;
            return identified((space, adapted), identification, &records, spent, options);
        }
        let mut records = of_a_model(store, &space, DRAWN_TIMES * options.items)?;
        records.retain(|record| record.item.source.is_some());
        records.truncate(options.items);
        let total = (models.len() * records.len()) as u64;
        observer.observe(&Observation::Began { stage: "asking models", unit: "items", total });
        let (old, new) = (&configuration.old, &configuration.new);
        let upgrade = Recorded::read(store)?
            .map(|recorded| recorded.record)
            .filter(|record| record.is_between(&old.name, &new.name));
        let mut candidates = Vec::new();
        for model in &models {
            let encoder = configuration.open_item_encoder(model)?;
            manners::recall(store, &model.name, encoder.as_ref())?;
            let book = |booked: Spent| match &upgrade {
                Some(upgrade) => spending::share(store, upgrade, encoder.as_ref(), booked),
                None => Ok(booked),
            };
            let booked = book(encoder.spent())?;
            let outcome = candidate(encoder.as_ref(), &records, observer);
            // The cost is booked whatever came of the comparison.
            book(booked)?;
            candidates.push(outcome?);
            spent = spent + encoder.spent();
        }
        let identification = identify_vectors(&vectors(&records), &candidates)?.marked_as_sample();
        identified((space, adapted), identification, &records, spent, options)
    }
}

/// Lists the spaces whose models the configuration can ask, the new one first.
fn models(configuration: &Configuration, store: &dyn Ledger) -> Result<Vec<Space>> {
    let configured = [&configuration.new, &configuration.old].into_iter();
    let askable = configured.filter(|space| configuration.has_encoder(space));
    askable
        .map(|space| Ok(find_space(store, &space.name)?.map_or_else(|| space.clone(), |stored| stored.space)))
        .collect()
}

/// Draws random items with a vector that a model made.
fn of_a_model(store: &dyn Ledger, space: &str, items: usize) -> Result<Vec<Record>> {
    let mut records = sample::draw(store, space, items, Some(space))?;
    records.retain(|record| {
        record.vector.as_ref().is_some_and(|vector| vector.provenance != Provenance::Adapted)
    });
    Ok(records)
}

fn vectors(records: &[Record]) -> Matrix {
    let values =
        |record: &Record| record.vector.as_ref().map(|vector| vector.vector.clone()).unwrap_or_default();
    let rows: Vec<Vec<f32>> = records.iter().map(values).collect();
    let width = rows.first().map_or(0, Vec::len);
    Matrix::from_fn(rows.len(), width, |row, column| rows[row][column])
}

fn candidate(encoder: &dyn Encoder, records: &[Record], observer: &dyn Observer) -> Result<Candidate> {
    let inputs: Vec<Input<'_>> = records.iter().filter_map(input_of).collect();
    let space = encoder.space();
    let mut vectors = Matrix::zeros(inputs.len(), space.dimension);
    let mut row = 0;
    for batch in inputs.chunks(encoder.batch_max()) {
        expect_going(observer)?;
        for answer in encode(encoder, batch)? {
            // An item that the encoder cannot embed stays a row of zeros.
            if let Ok(vector) = answer {
                vectors.row_mut(row).copy_from_slice(&vector);
            }
            row += 1;
        }
        observer.observe(&Observation::Advanced { units: batch.len() as u64 });
    }
    let mut noise = 0.0_f64;
    if encoder.fingerprint()?.is_none() {
        let few = &inputs[..inputs.len().min(EMBEDDED_TWICE)];
        for (row, second_vector) in encode(encoder, few)?.into_iter().enumerate() {
            let Ok(second_vector) = second_vector else { continue };
            let distance = difference(space.distance, vectors.row(row), &second_vector);
            noise = noise.max(if distance.is_finite() { distance } else { 0.0 });
        }
    }
    Ok(Candidate { name: space.name.clone(), vectors, noise })
}

fn identified(
    (space, adapted): (String, u64),
    mut identification: Identified,
    records: &[Record],
    spent: Spent,
    options: &IdentifyOptions,
) -> Result<IdentifiedSpace> {
    if let Some(path) = &options.output {
        identification.write_list(path, |row| records[row].item.id.as_str())?;
    }
    let id = |(row, what): (usize, String)| (records[row].item.id.clone(), what);
    let minority = identification.minority().into_iter().map(id).collect();
    Ok(IdentifiedSpace { space, found: identification, others: minority, adapted, spent })
}

/// Tells by the vectors of a space alone whether they are of one model or of two. Reads some,
/// and asks no model.
///
/// # Errors
///
/// Those of the store, and of [`identify_alone`].
pub(crate) fn look_alone(store: &dyn Ledger, space: &str) -> Result<Identified> {
    let records = of_a_model(store, space, LOOKED_AT_MAX)?;
    identify_alone(&vectors(&records), 0, &Progress::default())
}

/// Embeds a few items of a space again. Gives how many vectors came out as they are there, and of how many;
/// none where no item has a source.
///
/// # Errors
///
/// Those of the store and of the encoder.
pub(crate) fn gives_again(store: &dyn Ledger, space: &str, encoder: &dyn Encoder) -> Result<(usize, usize)> {
    /// Items that are embedded again: a doctor pays for a few only.
    const FEW: usize = 8;
    /// Items at the beginning of the space that are looked at, so that few natives are found too.
    const LOOKED_AT: usize = 256;
    let written_as = expect_space(store, space)?.written_as;
    let scan = Scan::new(space, Select::Provenance(written_as), LOOKED_AT).with_vectors_of(space);
    let mut records = store.scan(&scan)?;
    records.retain(|record| record.item.source.is_some() && record.vector.is_some());
    let step = records.len().div_ceil(FEW).max(1);
    let records: Vec<Record> = records.into_iter().step_by(step).collect();
    let candidate = candidate(encoder, &records, &Unobserved)?;
    let stored_vectors = vectors(&records);
    let embedded_rows = (0..stored_vectors.rows())
        .filter(|&row| candidate.vectors.row(row).iter().any(|&value| value != 0.0));
    let differences = embedded_rows
        .map(|row| difference(encoder.space().distance, stored_vectors.row(row), candidate.vectors.row(row)));
    let differences: Vec<f64> = differences.collect();
    let same = differences.iter().filter(|&&difference| difference <= DIFFERENCE_MAX).count();
    Ok((same, differences.len()))
}
