//! Random histories of calls, and everything that can be seen of a gallery after them: two stores that are
//! given the same history look alike.
//!
//! Keys, revisions and versions are each store's own numbers, so the comparison goes by their order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use rehang_core::{Distance, Matrix, Provenance, Space};
use rehang_store::{
    Among, Epoch, Filter, ItemKey, ItemWrite, NewVector, Priority, Queue, QueueBand, Record, Revision,
    Sample, Scan, Select, Store, VectorWrite,
};
use serde_json::json;

/// Ids of the items: numbers, since the points of Qdrant have numbers for ids.
pub const IDS: [&str; 7] = ["1", "2", "3", "4", "5", "6", "7"];
const SPACES: [&str; 2] = ["old", "new"];
const WORKERS: [&str; 2] = ["left", "right"];
/// Seconds of a lease: so long that a test's own time does not count.
pub const LEASE_S: u64 = 1000;

/// Call on a store. Items are numbers of [`IDS`]; spaces and workers are numbered too, two of each.
#[derive(Debug, Clone)]
pub enum Call {
    /// An application writes items.
    Put {
        /// Numbers of the items.
        ids: Vec<usize>,
        /// Whether the items have a source.
        sourced: bool,
        /// Whether the source of an item that is there stays what it is, if it has one.
        keeps_source: bool,
        /// Spaces that get a vector, `true` for each.
        with: [bool; 2],
        /// Value that the vectors and the source are made of.
        value: i8,
    },
    /// An application deletes items.
    Delete(Vec<usize>),
    /// An upgrade writes vectors.
    Write {
        /// The space.
        space: usize,
        /// The items.
        ids: Vec<usize>,
        /// Whether the vectors are native; else they are adapted.
        native: bool,
        /// Whether the writes name a revision that the items do not have.
        stale: bool,
        /// Whether the writes are of an earlier epoch.
        late: bool,
        /// Value that the vectors are made of.
        value: i8,
        /// Predicted squared error of the vectors.
        sigma2: Option<u8>,
    },
    /// An item gets another place in the queue.
    Priority {
        /// The space.
        space: usize,
        /// The item.
        id: usize,
        /// A number of [`QueueBand::ALL`].
        band: usize,
        /// The place in the band.
        score: i8,
        /// Whether the change is of an earlier epoch.
        late: bool,
    },
    /// Native vectors are taken out again.
    ForgetNatives {
        /// The space.
        space: usize,
        /// Largest number of vectors that are taken out.
        limit: usize,
        /// Whether the call is of an earlier epoch.
        late: bool,
    },
    /// The next epoch begins.
    Advance {
        /// The space.
        space: usize,
        /// Whether the call is to follow an earlier epoch.
        late: bool,
    },
    /// A worker claims items.
    Claim {
        /// The space.
        space: usize,
        /// Seed and size of the sample that the claim is from.
        sample: Option<(u64, usize)>,
        /// The worker.
        worker: usize,
        /// Largest number of items that are claimed.
        limit: usize,
    },
    /// A worker renews its leases.
    Renew {
        /// The space.
        space: usize,
        /// The worker.
        worker: usize,
    },
    /// A worker gives items back.
    Release {
        /// The space.
        space: usize,
        /// The worker.
        worker: usize,
        /// The items; `None` for all that the worker holds.
        ids: Option<Vec<usize>>,
    },
    /// An item could not be embedded.
    Fail {
        /// The space.
        space: usize,
        /// The item.
        id: usize,
        /// Whether the failure names a revision that the item does not have.
        stale: bool,
    },
    /// All failures of a space are forgotten.
    ClearFailures(usize),
    /// Searches move to a space from the other one.
    Switch(usize),
    /// A document is replaced. The number says which version is expected: none, the present one, or another.
    Document(usize),
    /// The space that does not serve is dropped, and made again.
    Drop,
}

/// Strategy of any call. Claims may be from a sample if `has_samples`, where the stores that are compared
/// draw the same one.
pub fn call(has_samples: bool) -> impl Strategy<Value = Call> {
    let id = 0..IDS.len();
    let ids = prop::collection::vec(id.clone(), 1..5);
    let space = 0..SPACES.len();
    let value = -3_i8..4;
    let late = || prop::bool::weighted(0.1);
    let sample = prop::option::weighted(0.3, (0_u64..2, 0_usize..6))
        .prop_map(move |sample| sample.filter(|_| has_samples));
    prop_oneof![
        6 => (ids.clone(), any::<bool>(), prop::bool::weighted(0.4), any::<[bool; 2]>(), value.clone()).prop_map(
            |(ids, sourced, keeps_source, with, value)| Call::Put { ids, sourced, keeps_source, with, value }
        ),
        1 => ids.clone().prop_map(Call::Delete),
        8 => (space.clone(), ids.clone(), any::<bool>(), late(), late(), value, prop::option::of(0_u8..4)).prop_map(
            |(space, ids, native, stale, late, value, sigma2)| Call::Write { space, ids, native, stale, late, value, sigma2 }
        ),
        2 => (space.clone(), id.clone(), 0..QueueBand::ALL.len(), -3_i8..4, late())
            .prop_map(|(space, id, band, score, late)| Call::Priority { space, id, band, score, late }),
        1 => (space.clone(), 0_usize..4, late()).prop_map(|(space, limit, late)| Call::ForgetNatives { space, limit, late }),
        1 => (space.clone(), late()).prop_map(|(space, late)| Call::Advance { space, late }),
        4 => (space.clone(), sample, 0..WORKERS.len(), 0_usize..4)
            .prop_map(|(space, sample, worker, limit)| Call::Claim { space, sample, worker, limit }),
        1 => (space.clone(), 0..WORKERS.len()).prop_map(|(space, worker)| Call::Renew { space, worker }),
        1 => (space.clone(), 0..WORKERS.len(), prop::option::of(ids))
            .prop_map(|(space, worker, ids)| Call::Release { space, worker, ids }),
        2 => (space.clone(), id, late()).prop_map(|(space, id, stale)| Call::Fail { space, id, stale }),
        1 => space.clone().prop_map(Call::ClearFailures),
        1 => space.prop_map(Call::Switch),
        1 => (0_usize..3).prop_map(Call::Document),
        1 => Just(Call::Drop),
    ]
}

/// Configuration of proptest: as many histories as `PROPTEST_CASES` says, or a few, and the same ones in each
/// run.
pub fn config(few: u32) -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(few);
    let seed = std::env::var("PROPTEST_RNG_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20);
    ProptestConfig {
        cases,
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        // Each try of a shrink makes a gallery.
        max_shrink_iters: 200,
        ..ProptestConfig::default()
    }
}

/// Makes the two spaces that calls are about.
pub fn make_spaces(store: &dyn Store) {
    for (name, written_as) in SPACES.into_iter().zip([Provenance::Old, Provenance::Native]) {
        store.create_space(&Space::new(name, 2, Distance::L2, false), written_as).unwrap();
    }
}

/// Returns the label of the item with a number: every second item has one.
pub fn label_of(id: usize) -> Option<String> {
    id.is_multiple_of(2).then(|| "even".into())
}

/// Reduces an answer to what two stores must say alike: "done", or the first three words of the error.
fn said<T>(answer: rehang_core::Result<T>) -> String {
    match answer {
        Ok(_) => "done".into(),
        Err(error) => format!("{error:?}")
            .split([' ', '{', '('])
            .filter(|word| !word.is_empty())
            .take(3)
            .collect::<Vec<_>>()
            .join(" "),
    }
}

/// Makes the call, and returns the store's answer without numbers that two stores may give differently.
pub fn apply(store: &dyn Store, call: &Call) -> String {
    let item = |id: usize| store.get(&[IDS[id]]).unwrap().remove(0);
    // A write that is made of the source alone, native or a failure, names the source revision.
    let key_and_revision = |id: usize, of_source: bool, stale: bool| -> (ItemKey, Revision) {
        item(id).map_or((ItemKey::from(1_000_000), 1), |item| {
            let revision = if of_source { item.source_revision } else { item.revision };
            (item.key, revision + 1_000_000 * Revision::from(stale))
        })
    };
    let epoch = |space: usize, late: bool| {
        let epoch =
            store.spaces().unwrap().iter().find(|record| record.space.name == SPACES[space]).unwrap().epoch;
        if late { Epoch::new(epoch.number().wrapping_sub(1)) } else { epoch }
    };
    let version = || store.document("plan").unwrap().map(|(version, _)| version);
    match call {
        Call::Put { ids, sourced, keeps_source, with, value } => {
            let write = |(at, &id): (usize, &usize)| ItemWrite {
                id: IDS[id].into(),
                source: Some(id)
                    .filter(|_| *keeps_source)
                    .and_then(item)
                    .and_then(|stored| stored.source)
                    .or_else(|| sourced.then(|| format!("source {value}"))),
                label: label_of(id),
                payload: json!({"value": value, "at": at}),
                vectors: SPACES
                    .iter()
                    .zip(with)
                    .filter(|(_, with)| **with)
                    .map(|(space, _)| {
                        let made_by = if *space == "old" { Provenance::Old } else { Provenance::Native };
                        NewVector::from_model(*space, vector(*value, id), made_by)
                    })
                    .collect(),
            };
            let writes: Vec<ItemWrite> = ids.iter().enumerate().map(write).collect();
            let revisions = store.put(&writes).unwrap();
            assert!(revisions.is_sorted_by(|a, b| a < b), "revisions grow");
            revisions.len().to_string()
        }
        Call::Delete(ids) => {
            store.delete(&ids.iter().map(|&id| IDS[id]).collect::<Vec<_>>()).unwrap().to_string()
        }
        Call::Write { space, ids, native, stale, late, value, sigma2 } => {
            let write = |&id: &usize| {
                let (key, revision) = key_and_revision(id, *native, *stale);
                let score = |sigma2: u8| f64::from(sigma2) * f64::from(*value) + 0.0;
                VectorWrite {
                    key,
                    revision,
                    provenance: if *native { Provenance::Native } else { Provenance::Adapted },
                    sigma2: sigma2.map(f32::from),
                    priority: sigma2
                        .map(|sigma2| Priority::new(QueueBand::ALL[usize::from(sigma2)], score(sigma2))),
                    squared_error: native.then(|| f32::from(*value).abs()),
                    vector: vector(*value, id),
                }
            };
            let writes: Vec<VectorWrite> = ids.iter().map(write).collect();
            format!("{:?}", store.write_vectors(SPACES[*space], Some(epoch(*space, *late)), &writes))
        }
        Call::Priority { space, id, band, score, late } => {
            let (key, revision) = key_and_revision(*id, false, false);
            let places = [(key, revision, Priority::new(QueueBand::ALL[*band], f64::from(*score)))];
            format!("{:?}", store.set_priorities(SPACES[*space], epoch(*space, *late), &places))
        }
        Call::ForgetNatives { space, limit, late } => {
            format!("{:?}", store.forget_natives(SPACES[*space], epoch(*space, *late), *limit))
        }
        Call::Advance { space, late } => said(store.advance(
            SPACES[*space],
            epoch(*space, *late),
            "plan",
            version(),
            &format!("epoch of {space}"),
        )),
        Call::Claim { space, sample, worker, limit } => {
            let queue = sample.map_or(Queue::All, |(seed, size)| Queue::Sample { seed, size });
            let lease = Duration::from_secs(LEASE_S);
            let claimed = store.claim(SPACES[*space], queue, WORKERS[*worker], *limit, lease).unwrap();
            let of = |record: &Record| {
                (record.item.id.clone(), record.vector.as_ref().map(|vector| vector.vector.clone()))
            };
            let records: Vec<_> = claimed.records.iter().map(of).collect();
            format!("{records:?} {} {}", claimed.held_by_others, claimed.lost)
        }
        Call::Renew { space, worker } => {
            format!("{:?}", store.renew(SPACES[*space], WORKERS[*worker], Duration::from_secs(LEASE_S)))
        }
        Call::Release { space, worker, ids } => {
            let keys: Option<Vec<ItemKey>> =
                ids.as_ref().map(|ids| ids.iter().map(|&id| key_and_revision(id, false, false).0).collect());
            format!("{:?}", store.release(SPACES[*space], WORKERS[*worker], keys.as_deref()))
        }
        Call::Fail { space, id, stale } => {
            let (key, revision) = key_and_revision(*id, true, *stale);
            format!("{:?}", store.record_failures(SPACES[*space], &[(key, revision, format!("no {id}"))]))
        }
        Call::ClearFailures(space) => format!("{:?}", store.clear_failures(SPACES[*space])),
        Call::Switch(to) => format!("{:?}", store.switch_serving(SPACES[1 - to], SPACES[*to])),
        Call::Document(which) => {
            let expected = [None, version(), version().map(|version| version + 1000)][*which];
            said(store.set_document("plan", expected, "text"))
        }
        Call::Drop => {
            let serving = store.serving().unwrap().unwrap();
            store.drop_space(if serving == "old" { "new" } else { "old" }).unwrap();
            make_spaces(store);
            String::new()
        }
    }
}

/// Returns the vector of an item that is made of a value.
pub fn vector(value: i8, id: usize) -> Vec<f32> {
    vec![f32::from(value), id as f32 / 2.0]
}

/// Describes everything that can be seen of a gallery, with keys and revisions replaced by their ranks.
pub fn seen(store: &dyn Store) -> String {
    seen_with(store, |distance| distance)
}

/// Describes a gallery as [`seen`] does, with distances as `rounded`: a server rounds distances in its own
/// way.
pub fn seen_with(store: &dyn Store, rounded: fn(f32) -> f32) -> String {
    let all = store.scan(&Scan::new("old", Select::All, 100)).unwrap();
    let keys: Vec<ItemKey> = all.iter().map(|record| record.item.key).collect();
    assert!(keys.is_sorted());
    let revisions: BTreeSet<Revision> = all.iter().map(|record| record.item.revision).collect();
    assert_eq!(revisions.len(), all.len(), "no revision twice");
    assert_eq!(store.newest_revision().unwrap(), revisions.last().copied().unwrap_or(0));
    let of_sources = all.iter().map(|record| record.item.source_revision);
    let ranks: BTreeMap<Revision, usize> =
        revisions.into_iter().chain(of_sources).collect::<BTreeSet<_>>().into_iter().zip(0..).collect();
    let place = |key: ItemKey| ItemKey::from(keys.iter().position(|other| *other == key).unwrap() as u64);
    let document = store.document("plan").unwrap().map(|(_, text)| text);
    let mut lines = vec![format!("{:?} {document:?} {:?}", store.serving(), store.count_without_source())];
    for record in store.spaces().unwrap() {
        let name = record.space.name.clone();
        lines.push(format!("{} {} {}", record.space, record.written_as, record.epoch));
        let vectors = store.vectors(&name, &keys).unwrap();
        let provenances = store.provenances(&name, &keys).unwrap();
        assert_eq!(
            vectors.iter().map(|vector| vector.as_ref().map(|vector| vector.provenance)).collect::<Vec<_>>(),
            provenances
        );
    }
    // The order in which spaces were made is each store's to say, also after one was dropped and made again.
    for space in SPACES {
        let other = if space == "old" { "new" } else { "old" };
        let mut errors: Vec<String> =
            store.errors(space, 100).unwrap().iter().map(|pair| format!("{pair:?}")).collect();
        // Errors of one call are in no order.
        errors.sort();
        lines.push(format!("{space} {:?} {errors:?}", store.counts(space).unwrap()));
        let at_work: Vec<_> =
            store.at_work(space).unwrap().into_iter().map(|at| (at.worker, at.items)).collect();
        lines.push(format!("{at_work:?} {:?}", store.count_lag(space, other)));
        for among in [Among::All, Among::Adapted, Among::Embeddable] {
            let sample =
                Sample { space: space.into(), among, seed: 5, size: 100, vectors_of: Some(other.into()) };
            let drawn = store.sample(&sample).unwrap();
            let order: Vec<&str> = drawn.records.iter().map(|record| record.item.id.as_str()).collect();
            let few = store.sample(&Sample { size: 2, ..sample }).unwrap();
            let first: Vec<&str> = few.records.iter().map(|record| record.item.id.as_str()).collect();
            assert_eq!(
                first,
                order[..order.len().min(2)],
                "a smaller sample is the beginning of a larger one"
            );
            // The shuffle is each store's own.
            let ids: BTreeSet<&str> = order.into_iter().collect();
            lines.push(format!("{among:?} of {}: {ids:?}", drawn.drawn_from));
        }
        for failure in store.failures(space, None, 100).unwrap() {
            let rank = ranks[&failure.revision];
            lines.push(format!("{} {} {} {rank}", place(failure.key), failure.id, failure.reason));
        }
        let mut selects = vec![Select::All, Select::Lacking, Select::Queued, Select::WithoutSource];
        selects.extend(Provenance::ALL.map(Select::Provenance));
        for select in selects {
            for (limit, after) in [(100, None), (2, keys.get(1).copied())] {
                let scan = Scan::new(space, select.clone(), limit).after(after).with_vectors_of(other);
                for mut record in store.scan(&scan).unwrap() {
                    for vector in [&mut record.state, &mut record.vector].into_iter().flatten() {
                        assert_eq!(vector.revision, record.item.revision, "no vector of another revision");
                        vector.revision = 0;
                    }
                    let rank = ranks[&record.item.revision];
                    record.item.revision = 0;
                    record.item.source_revision = ranks[&record.item.source_revision] as Revision;
                    record.item.key = place(record.item.key);
                    lines.push(format!("{select:?} {limit}: {rank} {record:?}"));
                }
            }
        }
        let queries = Matrix::new(2, vec![0.0, 0.0, 1.5, -2.0]).unwrap();
        let filters = [
            Filter::default(),
            Filter { labels: vec!["even".into()], ..Filter::default() },
            Filter { provenances: vec![Provenance::Native, Provenance::Old], ..Filter::default() },
            Filter { provenances: vec![Provenance::Adapted], ..Filter::default() },
            Filter {
                labels: vec!["even".into()],
                provenances: vec![Provenance::Native],
                ..Filter::default()
            },
            Filter { payload: vec![("at".into(), json!(0))], ..Filter::default() },
            Filter {
                labels: vec!["even".into()],
                provenances: vec![Provenance::Adapted],
                payload: vec![("at".into(), json!(0))],
            },
        ];
        for filter in filters {
            for (row, hits) in store.search(space, &queries, 4, &filter).unwrap().into_iter().enumerate() {
                for hit in hits {
                    let rank = ranks[&hit.revision];
                    lines.push(format!(
                        "{row} {} {} {} {} {rank}",
                        place(hit.key),
                        hit.id,
                        rounded(hit.distance),
                        hit.provenance
                    ));
                }
            }
        }
    }
    lines.join("\n")
}
