//! Unvouched vectors: their encoder was not compared with itself since it gave them, and a death costs none
//! of them.
//!
//! Until it is, the vectors lie in documents of the gallery, a batch in each, where no search looks. The run
//! that has an item in hand next takes its vector from there, once the encoder gives some texts of that
//! batch the vectors that lie there. Documents are used again and again: there are as many as batches
//! waited at one moment.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rehang_core::{DIFFERENCE_MAX, Error, NOISE_TIMES, Provenance, Result, difference};
use rehang_encode::{Encoder, Input, ItemFailure};
use rehang_store::{ItemKey, Ledger, Record, Revision};
use serde::{Deserialize, Serialize};

use crate::live::encoding::encode_in_bulk;

/// Number of vectors in a document of which one is compared.
const ONE_COMPARED_IN: usize = 8;

/// Name of the document of this number. Numbers begin at 0, and none is missing between two.
fn document(space: &str, number: usize) -> String {
    format!("held {number} of {space}")
}

/// A batch as it lies in a document.
#[derive(Serialize, Deserialize)]
struct Batch {
    dimension: usize,
    items: Vec<(String, ItemKey, Revision)>,
    /// Vectors of the items in order: little-endian `f32`, in base64.
    vectors: String,
}

impl Batch {
    fn from_vectors(vectors: &[(Record, Vec<f32>)]) -> Self {
        let bytes: Vec<u8> =
            vectors.iter().flat_map(|(_, vector)| vector).flat_map(|x| x.to_le_bytes()).collect();
        let items = vectors
            .iter()
            .map(|(record, _)| (record.item.id.clone(), record.item.key, record.item.source_revision));
        Self {
            dimension: vectors.first().map_or(0, |(_, vector)| vector.len()),
            items: items.collect(),
            vectors: BASE64_STANDARD.encode(bytes),
        }
    }

    /// Reads the vectors in order; `None` where this is no batch of vectors so wide.
    fn vectors(&self, dimension: usize) -> Option<Vec<Vec<f32>>> {
        let bytes = BASE64_STANDARD.decode(&self.vectors).ok()?;
        let (numbers, tail) = bytes.as_chunks::<4>();
        if self.dimension != dimension || !tail.is_empty() || numbers.len() != self.items.len() * dimension {
            return None;
        }
        let numbers: Vec<f32> = numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        Some(numbers.chunks(dimension).map(<[f32]>::to_vec).collect())
    }
}

/// Batch in the document of another worker, or of one that died.
struct Other {
    version: u64,
    vectors: HashMap<ItemKey, (Revision, Vec<f32>)>,
    /// Whether this run has found the encoder to give the vectors that lie there.
    is_compared: bool,
}

/// Vector of an item, found in a document.
pub(crate) struct Found {
    document: usize,
    vector: Vec<f32>,
    is_compared: bool,
}

/// Documents of a space as one run uses them.
pub(crate) struct UnvouchedDocuments<'a> {
    store: &'a dyn Ledger,
    space: &'a str,
    dimension: usize,
    /// Number and version of the documents with this run's batches, by batch.
    own_documents: BTreeMap<u64, (usize, u64)>,
    /// Versions of the documents that another batch may take, by number: nothing waits in them.
    free_documents: BTreeMap<usize, u64>,
    other_batches: BTreeMap<usize, Other>,
    /// First number of which there is no document.
    next: usize,
}

impl<'a> UnvouchedDocuments<'a> {
    /// Opens the documents of a space, and reads what lies in them.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub(crate) fn open(store: &'a dyn Ledger, space: &'a str, dimension: usize) -> Result<Self> {
        let (own_documents, free_documents, other_batches) =
            (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut documents =
            Self { store, space, dimension, own_documents, free_documents, other_batches, next: 0 };
        documents.look()?;
        Ok(documents)
    }

    /// Reads what lies in documents that are not this run's.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub(crate) fn look(&mut self) -> Result<()> {
        let own_numbers: BTreeSet<usize> = self.own_documents.values().map(|(number, _)| *number).collect();
        let compared_versions: BTreeSet<(usize, u64)> = mem::take(&mut self.other_batches)
            .into_iter()
            .filter_map(|(number, batch)| batch.is_compared.then_some((number, batch.version)))
            .collect();
        self.next = 0;
        while let Some((version, text)) = self.store.document(&document(self.space, self.next))? {
            let number = self.next;
            self.next += 1;
            if own_numbers.contains(&number) {
                continue;
            }
            let vectors = self.waiting(&text)?;
            if vectors.is_empty() {
                self.free_documents.insert(number, version);
            } else {
                self.free_documents.remove(&number);
                let is_compared = compared_versions.contains(&(number, version));
                self.other_batches.insert(number, Other { version, vectors, is_compared });
            }
        }
        Ok(())
    }

    /// Reads the vectors in a document whose items are what they were and have none of the new model.
    fn waiting(&self, text: &str) -> Result<HashMap<ItemKey, (Revision, Vec<f32>)>> {
        let batch = serde_json::from_str::<Batch>(text).ok();
        let Some((batch, vectors)) =
            batch.and_then(|batch| batch.vectors(self.dimension).map(|vectors| (batch, vectors)))
        else {
            return Ok(HashMap::new());
        };
        let ids: Vec<&str> = batch.items.iter().map(|(id, ..)| id.as_str()).collect();
        let keys: Vec<ItemKey> = batch.items.iter().map(|(_, key, _)| *key).collect();
        let items_now = self.store.get(&ids)?.into_iter().zip(self.store.provenances(self.space, &keys)?);
        let waits = items_now.zip(&batch.items).map(|((item, made_by), (_, key, revision))| {
            made_by != Some(Provenance::Native)
                && item.is_some_and(|item| item.key == *key && item.source_revision == *revision)
        });
        let of_items = batch.items.iter().map(|(_, key, revision)| (*key, *revision)).zip(vectors).zip(waits);
        Ok(of_items
            .filter(|(_, waits)| *waits)
            .map(|(((key, revision), vector), _)| (key, (revision, vector)))
            .collect())
    }

    /// Lays the vectors of a batch into a document.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub(crate) fn keep(&mut self, batch: u64, vectors: &[(Record, Vec<f32>)]) -> Result<()> {
        let text = serde_json::json!(Batch::from_vectors(vectors)).to_string();
        loop {
            let free_document = self.free_documents.pop_first();
            let number = free_document.map_or(self.next, |(number, _)| number);
            self.next = self.next.max(number + 1);
            let expected = free_document.map(|(_, version)| version);
            match self.store.set_document(&document(self.space, number), expected, &text) {
                // Another worker was faster, and the next one may be free.
                Err(error) if error.is_changed_meanwhile() => {}
                version => {
                    self.own_documents.insert(batch, (number, version?));
                    return Ok(());
                }
            }
        }
    }

    /// Lets another batch take the document of this one: its vectors are in the gallery, or are none.
    pub(crate) fn let_go(&mut self, batch: u64) {
        self.free_documents.extend(self.own_documents.remove(&batch));
    }

    /// Finds the vector of an item as it is now in the documents that are not this run's.
    pub(crate) fn find(&self, record: &Record) -> Option<Found> {
        self.other_batches.iter().find_map(|(document, batch)| {
            let (revision, vector) = batch.vectors.get(&record.item.key)?;
            let unvouched_vector =
                || Found { document: *document, vector: vector.clone(), is_compared: batch.is_compared };
            (*revision == record.item.source_revision).then(unvouched_vector)
        })
    }

    /// Remembers documents whose vectors the encoder was found to give.
    pub(crate) fn compared(&mut self, documents: &[usize]) {
        for number in documents {
            if let Some(batch) = self.other_batches.get_mut(number) {
                batch.is_compared = true;
            }
        }
    }

    /// Forgets vectors that are in the gallery by now.
    pub(crate) fn written(&mut self, keys: impl Iterator<Item = ItemKey>) {
        for key in keys {
            for batch in self.other_batches.values_mut() {
                batch.vectors.remove(&key);
            }
        }
        let empty_batches = self.other_batches.extract_if(.., |_, batch| batch.vectors.is_empty());
        self.free_documents.extend(empty_batches.map(|(number, batch)| (number, batch.version)));
    }

    /// Empties the documents that nothing waits in. A failure here costs no more than their place.
    pub(crate) fn tidy(&mut self) {
        while let Some((number, version)) = self.free_documents.pop_first() {
            let name = document(self.space, number);
            if self.store.document(&name).is_ok_and(|entry| entry.is_some_and(|(_, text)| !text.is_empty())) {
                drop(self.store.set_document(&name, Some(version), ""));
            }
        }
    }
}

/// Answers of an encoder to a batch, and the documents whose vectors it was found to give.
pub(crate) type Answers = (Vec<Result<Vec<f32>, ItemFailure>>, Vec<usize>);

/// Asks the encoder for a batch of which some items have vectors in documents. One in eight vectors of a
/// document is embedded again, its last one among them. Where each of these is what it was, and where the
/// document is compared already, the others are not sent.
///
/// # Errors
///
/// Those of the encoder.
pub(crate) fn encode_rest(
    encoder: &dyn Encoder,
    inputs: &[Input<'_>],
    unvouched_vectors: Vec<Option<Found>>,
) -> Result<Answers> {
    let mut uncompared: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    let mut uncompared_vectors: BTreeMap<usize, Vec<f32>> = BTreeMap::new();
    let mut answers = BTreeMap::new();
    for (place, unvouched_vector) in unvouched_vectors.into_iter().enumerate() {
        match unvouched_vector {
            Some(Found { vector, is_compared: true, .. }) => drop(answers.insert(place, Ok(vector))),
            Some(Found { document, vector, .. }) => {
                uncompared.entry(document).or_default().push(place);
                uncompared_vectors.insert(place, vector);
            }
            None => {}
        }
    }
    let ask = |places: &[usize]| {
        let asked_inputs: Vec<Input<'_>> = places.iter().map(|&place| inputs[place]).collect();
        let answers =
            if asked_inputs.is_empty() { Vec::new() } else { encode_in_bulk(encoder, &asked_inputs)? };
        Ok::<_, Error>(places.iter().copied().zip(answers).collect::<BTreeMap<usize, _>>())
    };
    let witnesses_of = |places: &[usize]| -> BTreeSet<usize> {
        places.iter().rev().step_by(ONE_COMPARED_IN).copied().collect()
    };
    let witnesses: BTreeSet<usize> = uncompared.values().flat_map(|places| witnesses_of(places)).collect();
    let is_asked = |place: &usize| {
        witnesses.contains(place) || !(answers.contains_key(place) || uncompared_vectors.contains_key(place))
    };
    let first_places: Vec<usize> = (0..inputs.len()).filter(is_asked).collect();
    answers.extend(ask(&first_places)?);
    let distance = encoder.space().distance;
    let is_near =
        |place: &usize, now: &[f32], most: f64| difference(distance, &uncompared_vectors[place], now) <= most;
    let differs = |place: &usize| matches!(&answers[place], Ok(now) if !is_near(place, now, DIFFERENCE_MAX));
    let doubtful: Vec<usize> = witnesses.iter().copied().filter(differs).collect();
    // An encoder that gives a source different vectors, or another vector beside other sources, is no
    // other encoder for that.
    let once_more = doubtful.chunks(1).map(ask).collect::<Result<Vec<_>>>()?;
    let with_itself = doubtful.iter().zip(&once_more).filter_map(|(place, once_more)| {
        Some(difference(distance, answers[place].as_ref().ok()?, once_more.get(place)?.as_ref().ok()?))
    });
    let noise = with_itself.fold(0.0, f64::max);
    let is_another =
        |place: &usize| !matches!(&answers[place], Ok(now) if is_near(place, now, NOISE_TIMES * noise));
    let another: BTreeSet<usize> = doubtful.into_iter().filter(is_another).collect();
    let is_same = |places: &Vec<usize>| {
        let witnesses = witnesses_of(places);
        witnesses.iter().any(|place| answers[place].is_ok()) && witnesses.is_disjoint(&another)
    };
    let (same_documents, other_documents): (Vec<_>, Vec<_>) =
        uncompared.into_iter().partition(|(_, places)| is_same(places));
    let places_left: Vec<usize> = other_documents
        .into_iter()
        .flat_map(|(_, places)| places)
        .filter(|place| !witnesses.contains(place))
        .collect();
    for place in same_documents.iter().flat_map(|(_, places)| places) {
        answers.entry(*place).or_insert_with(|| Ok(uncompared_vectors[place].clone()));
    }
    match ask(&places_left) {
        Ok(last_answers) => answers.extend(last_answers),
        // Answers from before are paid for; the next call says what is wrong.
        Err(error) => {
            let untried = || Err(ItemFailure::Untried(error.to_string()));
            answers.extend(places_left.into_iter().map(|place| (place, untried())));
        }
    }
    Ok((answers.into_values().collect(), same_documents.into_iter().map(|(document, _)| document).collect()))
}
