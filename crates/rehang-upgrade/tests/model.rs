//! Random applications, operators, deaths, full disks and cancelled statements against a small oracle. Two
//! handles on the gallery take turns, as two processes do, and one application writes through plain SQL or
//! plain requests. After every operation a reader looks: it sees no deleted item, no stale vector, and none
//! without knowing who made it; nothing native is ever lost; two workers do no harm; a call that found no
//! room wrote nothing. Whatever happened, in the end all is native.
//!
//! `PROPTEST_CASES` sets how many histories (`cargo xtask race` runs 10,000 in memory, as many on disk, as
//! many on PostgreSQL, and as many on Qdrant where there is one).

#![allow(clippy::print_stdout, reason = "a long run says how far it is")]

#[path = "it/common/mod.rs"]
mod common;
#[path = "../../rehang-qdrant/tests/server/mod.rs"]
mod qdrant;
#[path = "it/common/requests.rs"]
mod requests;
#[cfg(feature = "postgres")]
#[path = "../../rehang-postgres/tests/server/mod.rs"]
mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::thread;
use std::time::Duration;

use common::plain::{Known, Of, Plain, Statement};
use common::room::{NoRoom, is_full};
use common::{DieAt, ManualClock, TestEncoder, World, check, fill, new_model, old_model, other_adapter};
use proptest::prelude::*;
use rehang_core::order::Policy;
use rehang_core::{Adapter, Error, Matrix, Provenance, Result};
use rehang_encode::Encoder as _;
use rehang_fit::refit::{RefitGain, SigmaScale};
use rehang_qdrant::{CollectionOptions, QdrantStore};
use rehang_sqlite::SqliteStore;
use rehang_store::{
    Filter, Found, ItemWrite, ManualLeaseClock, NewVector, Queue, Scan, Select, Store, VectorWrite,
    find_space,
};
use rehang_store_tests::MemoryStore;
use rehang_upgrade::{
    BackfillScope, BackfillSetup, Clock, Gallery, Limits, Observation, Observer, OrderSettings, Phase, Place,
    Recorded, Refit, Request, Serving, Summary, Unobserved, backfill, begin_sampling, finish, put_back,
    refit, request, rollback, start, status, switch,
};
use requests::Requests;
use rusqlite::{Connection, TransactionBehavior};

const OLD: &str = "old-model";
const NEW: &str = "new-model";
/// Number of items that operations speak of.
const NUMBERS: usize = 70;
const BATCH: usize = 3;
const WORKERS: usize = 2;
/// Texts after which the encoder compares itself with itself. Vectors that wait for it lie in documents of
/// the gallery.
const VOUCHES_AFTER: u64 = 7;
/// Number of handles on the gallery, as of as many processes: nothing that one keeps may go stale by what the
/// other does.
const HANDLES: usize = 2;

/// Write of an application.
#[derive(Debug, Clone)]
enum Write {
    /// A new or changed item with an old vector, written through the gallery.
    Put(usize),
    /// A new or changed item with an old vector, written by an application that knows nothing of the upgrade.
    PutPlainly(usize),
    /// An item that the application embedded with the new model.
    PutNative(usize),
    /// An item without any vector.
    PutBare(usize),
    /// The old vector of an item once more, with its source unchanged: through the gallery, or by an
    /// application that knows nothing of it.
    PutOldAgain(usize, bool),
    Delete(usize),
    /// An item is deleted and written again as it was, with its old vector: a nightly refresh.
    Rewrite(usize),
    /// A new id for an item, where no other item has it: an update of a key.
    Rename(usize, usize),
    /// One transaction of plain SQL, which is committed or not; without transactions, as many requests or
    /// none.
    Plainly(Vec<Plain>, bool),
}

/// Verb that an operator calls.
#[derive(Debug, Clone)]
enum Verb {
    /// Start again: catches up, or goes on after a death.
    Start,
    /// Start again with the other adapter.
    Replan,
    /// Start again with another order.
    Reorder(Policy),
    Switch(Serving),
    Rollback,
    /// A finish; `true` drops the old space whatever is left.
    Finish(bool),
    /// Draws pairs: a sample of so many items becomes native, before any adapter is known or later.
    Pairs(usize),
    /// A backfill of so many items, or of all.
    Run(Option<u64>),
    /// A follower that stays until nothing is left to do, and for longer than one that died before it counts
    /// as there.
    Follow,
    Ask(Request),
    /// Natives become adapted again, for another model to embed them.
    PutBack,
    /// A refit: the adapter that is not in use takes the place of the one that is, while the space stays
    /// filled.
    Refit,
}

impl Verb {
    /// Whether a death of the verb may cost what was in hand.
    fn embeds(&self) -> bool {
        matches!(self, Self::Pairs(_) | Self::Run(_) | Self::Follow)
    }
}

#[derive(Debug, Clone)]
enum Operation {
    Write(Write),
    Verb(Verb),
    /// A verb whose process dies at the n-th visit of a place.
    Die(Verb, Place, u64),
    /// Two backfills at once, and meanwhile the application and the operator go on.
    Race(Option<u64>, Vec<Operation>),
    /// A worker claims so many items, embeds them, and freezes with the vectors in hand.
    Freeze(usize),
    /// The frozen worker writes what it has had in hand since.
    Thaw,
    /// A backup: the gallery's state is kept as it is now.
    Keep,
    /// The database is set back to what was kept: all processes end and begin anew, but for the one that is
    /// frozen.
    SetBack,
    /// An operation while the log of the gallery can grow by so many bytes only.
    NoRoom(u64, Box<Operation>),
    /// An operation of which somebody cancels a statement that writes: of those that a look finds at work,
    /// the one after so many.
    Cancelled(u64, Box<Operation>),
}

/// Operation, with the handle through which it is done.
type Step = (usize, Operation);

/// Draws an item's number. Most operations meet few items, so that they meet each other.
fn number() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 0..12_usize, 1 => 0..NUMBERS]
}

fn plain() -> impl Strategy<Value = Plain> {
    let model = || prop_oneof![Just(Of::Old), Just(Of::New)];
    let statement = prop_oneof![
        3 => Just(Statement::Insert),
        2 => Just(Statement::Source),
        2 => Just(Statement::Touch),
        3 => model().prop_map(Statement::Vector),
        2 => model().prop_map(Statement::Update),
        1 => Just(Statement::Label),
        2 => Just(Statement::Delete),
        2 => Just(Statement::Replace),
    ];
    (number(), statement).prop_map(|(number, statement)| Plain { number, statement })
}

fn write() -> impl Strategy<Value = Write> {
    let plainly = (prop::collection::vec(plain(), 1..5), prop::bool::weighted(0.9));
    prop_oneof![
        3 => number().prop_map(Write::Put),
        2 => number().prop_map(Write::PutPlainly),
        1 => number().prop_map(Write::PutNative),
        1 => number().prop_map(Write::PutBare),
        3 => (number(), any::<bool>()).prop_map(|(number, plainly)| Write::PutOldAgain(number, plainly)),
        2 => number().prop_map(Write::Delete),
        2 => number().prop_map(Write::Rewrite),
        2 => (number(), number()).prop_map(|(from, to)| Write::Rename(from, to)),
        4 => plainly.prop_map(|(writes, commits)| Write::Plainly(writes, commits)),
    ]
}

fn verb() -> impl Strategy<Value = Verb> {
    let policy = prop_oneof![Just(Policy::Sigma), Just(Policy::Random), Just(Policy::Coverage)];
    let serving = prop_oneof![Just(Serving::Mixed), Just(Serving::Fused), Just(Serving::Either)];
    let asked = prop_oneof![3 => Just(Request::Run), 1 => Just(Request::Pause), 1 => Just(Request::Stop)];
    prop_oneof![
        6 => Just(Verb::Start),
        3 => Just(Verb::Replan),
        3 => policy.prop_map(Verb::Reorder),
        6 => serving.prop_map(Verb::Switch),
        3 => Just(Verb::Rollback),
        1 => any::<bool>().prop_map(Verb::Finish),
        3 => (1..12_usize).prop_map(Verb::Pairs),
        8 => (1..5_u64).prop_map(|budget| Verb::Run(Some(budget))),
        2 => (20..70_u64).prop_map(|budget| Verb::Run(Some(budget))),
        1 => Just(Verb::Run(None)),
        3 => Just(Verb::Follow),
        4 => asked.prop_map(Verb::Ask),
        2 => Just(Verb::PutBack),
        4 => Just(Verb::Refit),
    ]
}

/// Returns the places that a verb comes by.
fn places(verb: &Verb) -> &'static [Place] {
    match verb {
        Verb::Start | Verb::Replan | Verb::Reorder(_) => &[
            Place::RecordWritten,
            Place::SpaceMade,
            Place::FillRead,
            Place::FillWritten,
            Place::PrioritiesWritten,
            Place::CatchUpRead,
            Place::CatchUpWritten,
            Place::BeforeFilled,
            Place::AfterFilled,
        ],
        Verb::Switch(_) => &[
            Place::CatchUpRead,
            Place::CatchUpWritten,
            Place::BeforeSwitch,
            Place::SwitchRecorded,
            Place::AfterSwitch,
        ],
        Verb::Rollback => &[Place::RolledBack],
        Verb::Finish(_) => &[Place::CatchUpRead, Place::CatchUpWritten, Place::BeforeDrop, Place::AfterDrop],
        Verb::Pairs(_) => &[
            Place::RecordWritten,
            Place::SpaceMade,
            Place::BackfillClaimed,
            Place::BackfillEncoded,
            Place::BackfillWritten,
            Place::FailuresRecorded,
            Place::BackfillEnded,
        ],
        Verb::Run(_) | Verb::Follow => &[
            Place::CatchUpRead,
            Place::CatchUpWritten,
            Place::BackfillClaimed,
            Place::BackfillEncoded,
            Place::BackfillWritten,
            Place::FailuresRecorded,
            Place::BackfillEnded,
        ],
        Verb::PutBack => &[Place::CatchUpRead, Place::CatchUpWritten],
        Verb::Refit => &[
            Place::RefitDecided,
            Place::RefitRecorded,
            Place::FillRead,
            Place::FillWritten,
            Place::PrioritiesWritten,
            Place::CatchUpRead,
            Place::CatchUpWritten,
            Place::BeforeFilled,
            Place::AfterFilled,
        ],
        // One write is there or it is not.
        Verb::Ask(_) => &[],
    }
}

fn death() -> impl Strategy<Value = Operation> {
    (verb(), any::<prop::sample::Index>(), 1..4_u64).prop_map(|(verb, place, visit)| match places(&verb) {
        [] => Operation::Verb(verb),
        places => Operation::Die(verb, places[place.index(places.len())], visit),
    })
}

fn operation() -> impl Strategy<Value = Operation> {
    let simple = || {
        prop_oneof![
            3 => write().prop_map(Operation::Write),
            3 => verb().prop_map(Operation::Verb),
        ]
    };
    let budget = prop::option::of(1..30_u64);
    // A page of the log takes 8 kB; the larger verbs write hundreds.
    let room = prop_oneof![0..100_000_u64, 0..1_000_000_u64];
    prop_oneof![
        6 => simple(),
        2 => death(),
        1 => prop_oneof![
            2 => (1..=BATCH).prop_map(Operation::Freeze),
            2 => Just(Operation::Thaw),
            1 => Just(Operation::Keep),
            1 => Just(Operation::SetBack),
        ],
        2 => (room, simple()).prop_map(|(room, operation)| Operation::NoRoom(room, Box::new(operation))),
        1 => (0..20_u64, simple()).prop_map(|(after, operation)| Operation::Cancelled(after, Box::new(operation))),
        1 => (budget, prop::collection::vec(simple(), 0..6)).prop_map(|(budget, meanwhile)| Operation::Race(budget, meanwhile)),
    ]
}

/// One process: its handle on the gallery, and what its application searches and writes through. Both live as
/// long as the history, with all that they keep in memory.
struct Handle {
    store: Arc<dyn Store>,
    gallery: Gallery,
}

impl Handle {
    fn new(store: Arc<dyn Store>) -> Self {
        Self { gallery: Gallery::new(Arc::clone(&store)), store }
    }
}

/// Application that knows nothing of rehang.
enum Outsider {
    /// Application that writes into the gallery's file.
    Sql(PathBuf, Connection),
    Requests(Requests),
    /// Gallery in memory: there is nothing outside but the state itself.
    Memory(MemoryStore),
    /// Application that writes into its own table.
    #[cfg(feature = "postgres")]
    Table(Box<postgres::Outside>),
}

impl Outsider {
    fn sql(file: PathBuf) -> Self {
        let sql = Connection::open(&file).unwrap();
        sql.busy_timeout(Duration::from_secs(10)).unwrap();
        Self::Sql(file, sql)
    }

    /// Updates a key, and returns whether it could.
    fn rename(&mut self, from: &str, to: &str) -> Result<bool, String> {
        match self {
            Self::Sql(_, sql) => {
                let renamed = sql.execute("UPDATE item SET id = ?2 WHERE id = ?1", [from, to]);
                return renamed.map(|_| true).map_err(|error| error.to_string());
            }
            Self::Memory(store) => store.rename(from, to),
            // The id of a point is its own for ever.
            Self::Requests(_) => return Ok(false),
            #[cfg(feature = "postgres")]
            Self::Table(table) => table.rename(from, to),
        }
        Ok(true)
    }
}

/// Oracle: what the application was told.
#[derive(Clone)]
struct Oracle {
    items: BTreeMap<String, Known>,
    versions: usize,
    /// Items that were seen native, with their sources: they stay so until the source changes.
    native: BTreeSet<(String, String)>,
    /// Count of items that are rightly embedded again: what their source names has changed, or they were put
    /// back.
    embedded_anew: u32,
    serving: String,
    asked: Request,
}

impl Oracle {
    /// Performs a write. A write that fails has not happened.
    fn perform(
        &mut self,
        write: &Write,
        handle: &Handle,
        adapter: &Adapter,
        outsider: &mut Option<Outsider>,
    ) -> Result<(), String> {
        let store = &*handle.store;
        let there = |space| find_space(store, space).unwrap().is_some();
        let mut next = |number: usize| {
            self.versions += 1;
            let mut write = common::item(number, self.versions);
            if !there(OLD) {
                write.vectors = vec![native(&write)];
            }
            write
        };
        let said = |error: Error| error.to_string();
        let (write, revisions) = match *write {
            Write::Delete(number) => {
                let id = common::id(number);
                let deleted = store.delete(&[&id]).map_err(said)?;
                assert_eq!(deleted, usize::from(self.items.remove(&id).is_some()));
                return Ok(());
            }
            Write::Rewrite(number) => {
                let id = common::id(number);
                // A vector that points cannot keep is paid for again.
                let keeps = matches!(outsider, Some(outsider) if !matches!(outsider, Outsider::Requests(_)));
                let Some(known) = self.items.get(&id).filter(|_| keeps).cloned() else { return Ok(()) };
                let was_native = there(NEW) && is_native(store, &id);
                let mut write = ItemWrite::new(id.clone(), Some(known.source.clone()), Vec::new());
                write.vectors.push(if there(OLD) {
                    NewVector::from_model(OLD, old_model(&known.source), Provenance::Old)
                } else {
                    native(&write)
                });
                store.delete(&[&id]).map_err(said)?;
                self.items.remove(&id);
                let revisions = store.put(std::slice::from_ref(&write)).map_err(said)?;
                assert!(!was_native || is_native(store, &id), "{id} was paid for");
                self.embedded_anew += u32::from(!was_native);
                (write, revisions)
            }
            Write::Put(number) => {
                let write = next(number);
                let revisions = handle.gallery.put(std::slice::from_ref(&write)).map_err(said)?;
                if store.serving().unwrap().as_deref() == Some(NEW) {
                    assert!(has_new_vector(store, &write.id), "no search finds {}", write.id);
                }
                (write, revisions)
            }
            Write::PutPlainly(number) => {
                let write = next(number);
                let revisions = store.put(std::slice::from_ref(&write)).map_err(said)?;
                (write, revisions)
            }
            Write::PutNative(number) => {
                let mut write = next(number);
                if there(NEW) {
                    write.vectors = vec![native(&write)];
                }
                let revisions = store.put(std::slice::from_ref(&write)).map_err(said)?;
                (write, revisions)
            }
            Write::PutBare(number) => {
                let mut write = next(number);
                write.vectors.clear();
                let revisions = store.put(std::slice::from_ref(&write)).map_err(said)?;
                (write, revisions)
            }
            Write::PutOldAgain(number, plainly) => {
                let id = common::id(number);
                let Some(known) = self.items.get(&id).filter(|_| there(OLD)) else { return Ok(()) };
                let old = NewVector::from_model(OLD, old_model(&known.source), Provenance::Old);
                let write = ItemWrite::new(id, Some(known.source.clone()), vec![old]);
                let writes = std::slice::from_ref(&write);
                let revisions = if plainly { store.put(writes) } else { handle.gallery.put(writes) };
                (write, revisions.map_err(said)?)
            }
            Write::Rename(from, to) => {
                let (from, to) = (common::id(from), common::id(to));
                let is_free = !self.items.contains_key(&to);
                let (Some(known), Some(outsider)) =
                    (self.items.get(&from).filter(|_| is_free).cloned(), outsider.as_mut())
                else {
                    return Ok(());
                };
                if outsider.rename(&from, &to)? {
                    let now = store.get(&[&to]).map_err(said)?.remove(0).expect("it has another id");
                    self.items.remove(&from);
                    // The native vector that was paid for goes with the item.
                    self.native = std::mem::take(&mut self.native)
                        .into_iter()
                        .map(|(id, source)| (if id == from { to.clone() } else { id }, source))
                        .collect();
                    self.items.insert(to, Known { revision: now.revision, ..known });
                }
                return Ok(());
            }
            Write::Plainly(ref writes, commits) => {
                return match outsider {
                    Some(Outsider::Sql(_, sql)) => {
                        self.perform_plainly(sql, writes, commits).map_err(|error| error.to_string())
                    }
                    Some(Outsider::Requests(requests)) if commits => {
                        for plain in writes {
                            self.versions += 1;
                            let items = &mut self.items;
                            if requests.perform(plain, items, self.versions, there(OLD), store) {
                                self.touch(plain.number);
                            }
                        }
                        Ok(())
                    }
                    Some(Outsider::Requests(_)) => Ok(()),
                    _ if commits => {
                        writes.iter().try_for_each(|plain| self.perform_alike(*plain, handle, adapter))
                    }
                    _ => Ok(()),
                };
            }
        };
        let has_old = write.vectors.iter().any(|vector| vector.space == OLD);
        let source = write.source.unwrap();
        self.items.insert(write.id, Known { source, revision: revisions[0], has_old });
        Ok(())
    }

    /// Performs one transaction of plain SQL.
    fn perform_plainly(
        &mut self,
        sql: &mut Connection,
        writes: &[Plain],
        commits: bool,
    ) -> rusqlite::Result<()> {
        let transaction = sql.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let (mut items, mut touched) = (self.items.clone(), Vec::new());
        for plain in writes {
            self.versions += 1;
            if plain.perform(&transaction, &mut items, self.versions)? {
                touched.push(plain.number);
            }
        }
        if commits {
            transaction.commit()?;
            self.items = items;
            for number in touched {
                self.touch(number);
            }
            return Ok(());
        }
        transaction.rollback()
    }

    /// Notes that what an item's source names has changed.
    fn touch(&mut self, number: usize) {
        let id = common::id(number);
        self.native.retain(|(native, _)| *native != id);
        self.embedded_anew += 1;
    }

    /// Performs what comes nearest to plain SQL where the test has none.
    fn perform_alike(&mut self, plain: Plain, handle: &Handle, adapter: &Adapter) -> Result<(), String> {
        let number = plain.number;
        let mut perform = |write| self.perform(&write, handle, adapter, &mut None);
        match plain.statement {
            Statement::Insert => perform(Write::PutPlainly(number)),
            Statement::Replace => {
                perform(Write::Delete(number))?;
                perform(Write::PutBare(number))
            }
            Statement::Delete => perform(Write::Delete(number)),
            Statement::Source if self.items.contains_key(&common::id(number)) => {
                self.perform(&Write::PutBare(number), handle, adapter, &mut None)
            }
            Statement::Vector(Of::Old) | Statement::Update(Of::Old) => {
                self.perform(&Write::PutOldAgain(number, true), handle, adapter, &mut None)
            }
            _ => Ok(()),
        }
    }

    /// Checks what a reader sees at any moment, also while others are at work: only items that there are,
    /// once, as they are now.
    fn look(&self, handle: &Handle) -> (Vec<String>, Vec<Found>) {
        let source = "what somebody looks for";
        let (old, new) = (old_model(source), new_model(source));
        let rows = |row: &[f32]| Matrix::new(row.len(), row.to_vec()).unwrap();
        let (old_rows, new_rows) = (rows(&old), rows(&new));
        let queries = [(OLD, &old_rows), (NEW, &new_rows)];
        let mut answer = handle.gallery.search(&queries, 2 * NUMBERS, &Filter::default()).unwrap();
        let hits = answer.found.remove(0);
        let ids: BTreeSet<&str> = hits.iter().map(|hit| hit.id.as_str()).collect();
        assert_eq!(ids.len(), hits.len(), "an item twice");
        for hit in &hits {
            let known = self.items.get(&hit.id);
            let known = known.unwrap_or_else(|| panic!("a deleted item returned: {}", hit.id));
            assert_eq!(hit.revision, known.revision, "{} as it was once", hit.id);
            if answer.spaces.len() > 1 {
                // Distances of a fused search are on a scale of their own.
                continue;
            }
            assert_eq!(hit.provenance == Provenance::Old, answer.spaces == [OLD], "{}", hit.id);
            let vectors = match hit.provenance {
                Provenance::Old => vec![old_model(&known.source)],
                Provenance::Native => vec![new_model(&known.source)],
                Provenance::Adapted => adapters().map(|adapter| adapted(&adapter, &known.source)).to_vec(),
            };
            let query = if hit.provenance == Provenance::Old { &old } else { &new };
            let near = |vector: &Vec<f32>| (squared_distance(query, vector) - hit.distance).abs() < 1e-4;
            assert!(vectors.iter().any(near), "a stale vector of {}: {hit:?}", hit.id);
        }
        (answer.spaces, hits)
    }

    /// Checks what holds between two operations.
    fn check(&mut self, handle: &Handle) {
        let store = &*handle.store;
        check(store, &adapters());
        let (spaces, hits) = self.look(handle);
        let found: BTreeSet<&str> = hits.iter().map(|hit| hit.id.as_str()).collect();
        let there: Vec<String> = store.spaces().unwrap().into_iter().map(|space| space.space.name).collect();
        let ids: Vec<&str> = self.items.keys().map(String::as_str).collect();
        let kept = store.get(&ids).unwrap();
        assert_eq!(kept.len(), ids.len());
        for ((id, known), item) in self.items.iter_mut().zip(kept) {
            let item = item.unwrap_or_else(|| panic!("{id} is lost"));
            assert_eq!((item.source.as_ref(), item.revision), (Some(&known.source), known.revision));
            known.has_old &= there.iter().any(|space| space == OLD);
        }
        let with_old = self.items.iter().filter(|(_, known)| known.has_old).map(|(id, _)| id.as_str());
        let mut expected: BTreeSet<&str> = if spaces == [NEW] { BTreeSet::new() } else { with_old.collect() };
        let mut native = BTreeSet::new();
        if there.iter().any(|space| space == NEW) {
            for record in store.scan(&Scan::new(NEW, Select::All, usize::MAX >> 1)).unwrap() {
                let Some(state) = record.state else { continue };
                let (id, known) = self.items.get_key_value(&record.item.id).expect("no item of its own");
                if state.provenance == Provenance::Native {
                    native.insert((id.clone(), known.source.clone()));
                }
                if spaces == [NEW] || (spaces.len() > 1 && state.provenance == Provenance::Native) {
                    expected.insert(id.as_str());
                }
            }
        }
        assert_eq!(found, expected, "searches of {spaces:?} miss an item");
        for (id, source) in &self.native {
            let changed = self.items.get(id).is_none_or(|known| known.source != *source);
            assert!(changed || native.contains(&(id.clone(), source.clone())), "what {id} cost is lost");
        }
        if spaces.len() > 1 && native.is_empty() {
            let old = Matrix::new(common::D_OLD, old_model("what somebody looks for")).unwrap();
            let plain = store.search(OLD, &old, 2 * NUMBERS, &Filter::default()).unwrap().remove(0);
            assert!(plain.iter().map(|hit| &hit.id).eq(hits.iter().map(|hit| &hit.id)), "not the old search");
        }
        self.native = native;
        if let Some(recorded) = Recorded::read(store).unwrap() {
            assert_eq!(recorded.record.request, self.asked);
            let status = status(store, 3).unwrap();
            let counts = status.counts;
            assert_eq!(counts.items, self.items.len() as u64);
            assert_eq!(counts.native + counts.adapted + counts.lacking, counts.items);
            assert_eq!(status.lag + status.without_vector, counts.lacking);
            assert_eq!(counts.native, self.native.len() as u64);
        }
        assert_eq!(store.serving().unwrap().as_ref(), Some(&self.serving), "nobody switched it");
    }
}

/// Whether an item has a vector in the new space, so that searches there find it.
fn has_new_vector(store: &dyn Store, id: &str) -> bool {
    let key = store.get(&[id]).unwrap().remove(0).unwrap_or_else(|| panic!("{id} is lost")).key;
    store.provenances(NEW, &[key]).unwrap()[0].is_some()
}

fn is_native(store: &dyn Store, id: &str) -> bool {
    let key = store.get(&[id]).unwrap().remove(0).unwrap_or_else(|| panic!("{id} is lost")).key;
    store.provenances(NEW, &[key]).unwrap()[0] == Some(Provenance::Native)
}

/// Returns a vector of the new model that an application brings along.
fn native(write: &ItemWrite) -> NewVector {
    NewVector::from_model(NEW, new_model(write.source.as_deref().unwrap()), Provenance::Native)
}

fn adapters() -> [Adapter; 2] {
    [common::adapter(), other_adapter()]
}

/// Returns what the adapters of these tests make of a source.
fn adapted(adapter: &Adapter, source: &str) -> Vec<f32> {
    let mut vector = old_model(source);
    vector.push(adapter.map.mixer[0].bias[3]);
    vector
}

/// Returns a refit that was found to pay.
fn decided(before: String, after: String) -> Refit {
    let gain = RefitGain { items: 100, before: 2.0, after: 1.0, spread: 0.1, spreads: [0.1, 0.1] };
    let [sigma_before, sigma_after] = [SigmaScale { ratio: 1.0, low: 0.9, high: 1.1 }; 2];
    let (asked_at, native, items, pairs, expected, taken) = (None, 0, 0, 0, None, true);
    Refit { asked_at, native, items, pairs, gain, expected, sigma_before, sigma_after, before, after, taken }
}

fn squared_distance(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}

fn run(
    store: &dyn Store,
    encoder: &TestEncoder,
    scope: BackfillScope<'_>,
    budget: Option<u64>,
    worker: &str,
    faults: &dyn Observer,
) -> Result<Summary> {
    let clock = ManualClock::default();
    let limits = Limits { batch: BATCH, workers: WORKERS, budget, ..Limits::default() };
    let setup = BackfillSetup { store, encoder, scope, limits, clock: &clock, worker };
    backfill(&setup, faults)
}

/// Observer that ends a follower that has nothing to do, when it has waited long enough to take the turn of a
/// dead one.
struct UntilItRests<'a> {
    clock: &'a ManualClock,
    rests: AtomicBool,
    faults: &'a dyn Observer,
}

impl Observer for UntilItRests<'_> {
    fn observe(&self, observation: &Observation<'_>) {
        if let Observation::Rests { because } = observation {
            self.rests.store(because.is_some(), Ordering::SeqCst);
        }
    }

    fn wants_stop(&self) -> bool {
        self.rests.load(Ordering::SeqCst) && self.clock.now_ms() >= 10_000
    }

    fn reach(&self, place: Place) -> Result<()> {
        self.faults.reach(place)
    }
}

fn follow(
    store: &dyn Store,
    encoder: &TestEncoder,
    adapter: &Adapter,
    faults: &dyn Observer,
) -> Result<Summary> {
    let clock = ManualClock::default();
    let limits = Limits { batch: BATCH, workers: WORKERS, follow: true, ..Limits::default() };
    let scope = BackfillScope::Gallery(Some(adapter));
    let setup = BackfillSetup { store, encoder, scope, limits, clock: &clock, worker: "follower" };
    let observer = UntilItRests { clock: &clock, rests: AtomicBool::new(false), faults };
    backfill(&setup, &observer)
}

struct Model {
    handles: [Handle; HANDLES],
    /// Index of the handle whose turn it is.
    turn: usize,
    /// Application that knows nothing of rehang; `None` only while the gallery's file is set back.
    outsider: Option<Outsider>,
    /// Whether the disk is full at the moment.
    no_room: bool,
    world: World,
    order: OrderSettings,
    encoder: Arc<TestEncoder>,
    /// Function that lets time pass by which leases run out.
    pass: Box<dyn FnMut(Duration)>,
    /// Writes that a frozen worker has in hand.
    frozen: Vec<VectorWrite>,
    /// Backup that was kept, and what everybody knew then.
    kept: Option<Kept>,
    /// Function that opens the gallery as a process that begins anew, where that is a file.
    reopen: Option<Box<dyn Fn() -> Arc<dyn Store>>>,
    /// Number of runs that ended with a batch in hand.
    deaths: u32,
    oracle: Oracle,
    tally: &'static Tally,
}

/// Backup, and what was known when it was made.
struct Kept {
    backup: Backup,
    /// Number of items that had been embedded.
    embedded: u32,
    oracle: Oracle,
    adapter: Adapter,
    order: OrderSettings,
}

/// Place where a state of a gallery is kept.
enum Backup {
    File(tempfile::TempDir),
    Memory(MemoryStore),
}

/// Lets the gallery know the encoder as an earlier run leaves it, so that none compares natives of the
/// application, which would cost embeddings of its own.
fn remember(store: &dyn Store, encoder: &TestEncoder) -> Result<()> {
    let (name, known) = (format!("encoder of {NEW}"), encoder.fingerprint()?.unwrap_or_default());
    let version = store.document(&name)?.map(|(version, _)| version);
    store.set_document(&name, version, &known).map(drop)
}

impl Model {
    fn new(
        stores: [Arc<dyn Store>; HANDLES],
        outsider: Option<Outsider>,
        pass: Box<dyn FnMut(Duration)>,
        items: usize,
        tally: &'static Tally,
    ) -> Self {
        let handles = stores.map(Handle::new);
        let store = &*handles[0].store;
        fill(store, items);
        let items = (0..items).map(|number| {
            let revision = store.get(&[&common::id(number)]).unwrap().remove(0).unwrap().revision;
            let source = format!("source {number} version 0");
            (common::id(number), Known { source, revision, has_old: true })
        });
        let oracle = Oracle {
            items: items.collect(),
            versions: 0,
            native: BTreeSet::new(),
            embedded_anew: 0,
            serving: OLD.into(),
            asked: Request::Run,
        };
        let order = OrderSettings { policy: Policy::Sigma, seed: 3 };
        let encoder = Arc::new(TestEncoder { vouches_after: VOUCHES_AFTER, ..TestEncoder::new() });
        remember(store, &encoder).unwrap();
        let (world, turn, deaths, no_room) = (World::new(), 0, 0, false);
        let (frozen, kept, reopen) = (Vec::new(), None, None);
        Self {
            handles,
            turn,
            outsider,
            no_room,
            world,
            order,
            encoder,
            pass,
            frozen,
            kept,
            reopen,
            deaths,
            oracle,
            tally,
        }
    }

    fn store(&self) -> &dyn Store {
        &*self.handles[self.turn].store
    }

    fn setup(&self) -> rehang_upgrade::UpgradeSetup<'_> {
        rehang_upgrade::UpgradeSetup { order: self.order, ..self.world.setup() }
    }

    /// Returns the phase of the upgrade, by the gallery's own word.
    fn phase(&self) -> Option<Phase> {
        Recorded::read(self.store()).unwrap().map(|recorded| recorded.record.phase)
    }

    /// Returns the adapter and the order that the gallery's record names.
    fn plan(&self) -> Option<(String, OrderSettings)> {
        let recorded = Recorded::read(self.store()).unwrap();
        recorded.map(|Recorded { record, .. }| (record.adapter, record.order))
    }

    /// Performs a verb. When `alone`, it fails only where it must, where its process dies, or where there is
    /// no room. Returns whether it was cut off by one of the last two.
    fn perform(&mut self, verb: &Verb, faults: &dyn Observer, alone: bool) -> bool {
        let (before, plan) = (self.phase(), self.plan());
        let operator = (self.world.adapter.clone(), self.order);
        let has_old = find_space(self.store(), OLD).unwrap().is_some();
        let (outcome, may) = match *verb {
            Verb::Start | Verb::Replan | Verb::Reorder(_) => {
                match *verb {
                    Verb::Replan if self.world.adapter == common::adapter() => {
                        self.world.adapter = other_adapter();
                    }
                    Verb::Replan => self.world.adapter = common::adapter(),
                    Verb::Reorder(policy) => {
                        self.order = OrderSettings { policy, seed: self.order.seed + 1 };
                    }
                    _ => {}
                }
                let outcome = start(self.store(), &self.setup(), faults);
                if has_old && before == Some(Phase::Finished) && self.phase() != before {
                    // A finish died before it dropped anything, and somebody begins once more.
                    self.oracle.asked = Request::Run;
                }
                if outcome.is_ok() && alone {
                    // The check holds too where a worker with another adapter was at work when the upgrade
                    // was planned anew.
                    check(self.store(), std::slice::from_ref(&self.world.adapter));
                    assert_eq!(status(self.store(), 0).unwrap().lag, 0, "not caught up");
                }
                (outcome.map(drop), has_old)
            }
            Verb::Switch(serving) => {
                let outcome = switch(self.store(), &self.setup(), serving, faults);
                if self.store().serving().unwrap().as_deref() == Some(NEW) {
                    self.oracle.serving = NEW.into();
                }
                if outcome.is_ok() && alone {
                    assert_eq!(status(self.store(), 0).unwrap().lag, 0, "not caught up");
                }
                (outcome.map(drop), matches!(before, Some(Phase::Filled | Phase::RolledBack)))
            }
            Verb::Rollback => {
                let outcome = rollback(self.store(), &self.setup(), faults);
                if self.store().serving().unwrap().as_deref() == Some(OLD) {
                    self.oracle.serving = OLD.into();
                }
                if let Ok(back) = &outcome {
                    let without = self.oracle.items.values().filter(|known| !known.has_old).count();
                    assert_eq!(back.without_old_vector, without as u64);
                }
                let may = !matches!(before, None | Some(Phase::Sampling | Phase::Finished));
                (outcome.map(drop), may)
            }
            Verb::Finish(anyway) => {
                let serves = self.oracle.serving == NEW;
                let may = before == Some(Phase::Finished) || (before == Some(Phase::Filled) && serves);
                // Every item has a source, so one that is not native is one that a run embeds.
                let is_left = has_old && self.oracle.native.len() < self.oracle.items.len();
                let may = may && (anyway || !is_left);
                let outcome = finish(self.store(), &self.setup(), anyway, faults).map(drop);
                let dropped = has_old && find_space(self.store(), OLD).unwrap().is_none();
                for (id, _) in self.oracle.items.iter().filter(|(_, known)| dropped && known.has_old) {
                    assert!(has_new_vector(self.store(), id), "the last vector of {id} was dropped");
                }
                (outcome, may)
            }
            Verb::Pairs(items) => {
                let setup = self.setup();
                let begun = begin_sampling(self.store(), setup.old, setup.new, self.order, faults);
                let (count, asked) = (self.encoder.count(), self.oracle.asked);
                let scope = BackfillScope::Sample(items);
                let outcome =
                    begun.and_then(|()| run(self.store(), &self.encoder, scope, None, "alone", faults));
                let ended = matches!(before, Some(Phase::Filling | Phase::Finished));
                let may = has_old && !ended && asked == Request::Run;
                assert!(may || !alone || self.encoder.count() == count, "it was asked not to draw pairs");
                (outcome.map(drop), may)
            }
            Verb::Run(budget) => {
                let (count, asked) = (self.encoder.count(), self.oracle.asked);
                // After a finish there may be no adapter any more, and none is needed.
                let is_finished = before == Some(Phase::Finished);
                let scope = BackfillScope::Gallery(Some(&self.world.adapter).filter(|_| !is_finished));
                let outcome = run(self.store(), &self.encoder, scope, budget, "alone", faults);
                let may = matches!(before, Some(Phase::Filled | Phase::RolledBack | Phase::Finished))
                    && asked == Request::Run;
                assert!(may || !alone || self.encoder.count() == count, "it was asked not to run");
                (outcome.map(drop), may)
            }
            Verb::Follow => {
                let (count, asked) = (self.encoder.count(), self.oracle.asked);
                let outcome = follow(self.store(), &self.encoder, &self.world.adapter, faults);
                let may = matches!(before, Some(Phase::Filled | Phase::RolledBack | Phase::Finished));
                let is_live = matches!(before, Some(Phase::Filled | Phase::Finished));
                let embeds = is_live && asked == Request::Run;
                assert!(embeds || !alone || self.encoder.count() == count, "it was to wait");
                if outcome.is_ok() && alone && is_live {
                    let status = status(self.store(), 0).unwrap();
                    assert_eq!(status.lag, 0, "no search finds what came");
                    assert!(
                        !embeds || status.counts.adapted + status.counts.lacking == 0,
                        "not all is native"
                    );
                }
                (outcome.map(drop), may)
            }
            Verb::PutBack => {
                let (paid, native) =
                    (self.encoder.count(), self.store().counts(NEW).map_or(0, |counts| counts.native));
                let outcome = put_back(self.store(), &self.setup(), faults);
                let may = has_old && matches!(before, Some(Phase::Filled | Phase::RolledBack));
                if may {
                    // A call that is cut off has put a part of them back, at most all. The two backfills
                    // beside it lose what they hold to another fingerprint, and what they have paid for
                    // meanwhile may be put back too.
                    let held = if alone { 0 } else { (HANDLES * BATCH * WORKERS) as u32 };
                    let all = native as u32 + (self.encoder.count() - paid) + held;
                    self.oracle.embedded_anew += match outcome {
                        Ok(put_back) if alone => put_back as u32,
                        _ => all,
                    };
                    self.oracle.native.clear();
                }
                drop(remember(self.store(), &self.encoder));
                (outcome.map(drop), may)
            }
            Verb::Refit => {
                let is_first = self.world.adapter == common::adapter();
                let next = if is_first { other_adapter() } else { common::adapter() };
                let [used, after] = [&self.world.adapter, &next]
                    .map(|adapter| rehang_files::adapter_file::fingerprint(adapter).unwrap());
                let may = before == Some(Phase::Filled)
                    && plan.as_ref().is_some_and(|(recorded, _)| *recorded == used);
                self.world.adapter = next;
                let outcome = refit(self.store(), &self.setup(), &decided(used, after), faults);
                if outcome.is_ok() && alone {
                    check(self.store(), std::slice::from_ref(&self.world.adapter));
                    assert!(!Recorded::expect(self.store()).unwrap().record.refitting);
                }
                if outcome.is_err() && self.plan() == plan {
                    self.world.adapter = operator.0.clone();
                }
                (outcome.map(drop), may)
            }
            Verb::Ask(asked) => {
                let outcome = request(self.store(), self.setup().old, self.setup().new, asked);
                if outcome.is_ok() {
                    self.oracle.asked = asked;
                }
                (outcome.map(drop), before.is_some())
            }
        };
        let Err(error) = outcome else {
            assert!(may || !alone, "{verb:?} of an upgrade that is {before:?}");
            return false;
        };
        let said = error.to_string();
        let cut_off = said.contains("it died at") || (self.no_room && is_full(&said));
        assert!(cut_off || !may || !alone, "{verb:?} of an upgrade that is {before:?}: {said}");
        if cut_off && self.plan() == plan {
            // The new plan is not in the gallery, and the operator stays with the one before.
            (self.world.adapter, self.order) = operator;
        }
        cut_off
    }

    /// Freezes a worker: it takes items in hand, has them embedded, and is not heard of again until it
    /// [thaws](Self::thaw).
    fn freeze(&mut self, items: usize) {
        if self.phase().is_none() || find_space(self.store(), NEW).unwrap().is_none() {
            return;
        }
        let claimed = self.store().claim(NEW, Queue::All, "frozen", items, Duration::from_secs(30));
        let claimed: Vec<_> = claimed.unwrap().records.into_iter().map(|record| record.item).collect();
        let mut embedded = self.encoder.embedded.lock().unwrap();
        self.frozen = claimed
            .iter()
            .map(|item| {
                let source = item.source.as_deref().expect("it was claimed");
                *embedded.entry(source.to_owned()).or_default() += 1;
                VectorWrite::native(item, new_model(source))
            })
            .collect();
        self.deaths += 1;
    }

    /// Writes vectors that were paid for long ago. Where a vector's item is what it was then, it counts, and
    /// it harms no other.
    fn thaw(&mut self) {
        let late = std::mem::take(&mut self.frozen);
        let outcome = self.store().write_vectors(NEW, None, &late);
        let is_gone = find_space(self.store(), NEW).unwrap().is_none();
        if let Err(error) = outcome {
            assert!(is_gone, "{error}");
        }
    }

    fn keep(&mut self) {
        let backup = match &self.outsider {
            Some(Outsider::Sql(_, sql)) => {
                let folder = tempfile::tempdir().unwrap();
                let copy = folder.path().join("gallery.db");
                sql.execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
                Backup::File(folder)
            }
            Some(Outsider::Memory(store)) => Backup::Memory(store.backup()),
            _ => return,
        };
        let oracle = self.oracle.clone();
        self.kept = Some(Kept {
            backup,
            embedded: self.encoder.count(),
            oracle,
            adapter: self.world.adapter.clone(),
            order: self.order,
        });
    }

    fn set_back(&mut self) {
        let Some(kept) = self.kept.take() else { return };
        // Items that were embedded since may be embedded again, also those that were deleted meanwhile.
        let paid_since = self.encoder.count() - kept.embedded;
        let (versions, embedded_anew) = (self.oracle.versions, self.oracle.embedded_anew + paid_since);
        match (&kept.backup, &mut self.outsider) {
            (Backup::Memory(backup), Some(Outsider::Memory(store))) => {
                store.set_back(backup);
                self.handles = self.handles.each_ref().map(|handle| Handle::new(Arc::clone(&handle.store)));
            }
            (Backup::File(folder), Some(Outsider::Sql(file, _))) => {
                let file = file.clone();
                // The counter of revisions is set back too, so workers are to end before (docs/trust.md).
                self.frozen.clear();
                // Nobody has the file open meanwhile. Search indexes beside it are those of later, as
                // operators leave them.
                self.outsider = None;
                self.handles =
                    [(); HANDLES].map(|()| Handle::new(Arc::new(MemoryStore::new()) as Arc<dyn Store>));
                for beside in ["-wal", "-shm"] {
                    let mut name = file.clone().into_os_string();
                    name.push(beside);
                    drop(fs_err::remove_file(name));
                }
                fs_err::copy(folder.path().join("gallery.db"), &file).unwrap();
                let reopen = self.reopen.as_ref().expect("a file is opened anew");
                self.handles = [(); HANDLES].map(|()| Handle::new(reopen()));
                self.outsider = Some(Outsider::sql(file));
            }
            _ => return,
        }
        (self.world.adapter, self.order) = (kept.adapter, kept.order);
        // No source is ever the same as an earlier one.
        self.oracle = Oracle { versions, embedded_anew, ..kept.oracle };
    }

    fn write(&mut self, write: &Write) {
        let (handle, outsider) = (&self.handles[self.turn], &mut self.outsider);
        let outcome = self.oracle.perform(write, handle, &self.world.adapter, outsider);
        if let Err(said) = outcome {
            assert!(self.no_room && is_full(&said), "{write:?}: {said}");
            self.tally.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn play(&mut self, operation: &Operation) {
        match operation {
            Operation::Write(write) => self.write(write),
            Operation::Verb(verb) => {
                let cut_off = self.perform(verb, &Unobserved, true);
                self.tally.refused.fetch_add(u64::from(cut_off), Ordering::Relaxed);
                self.deaths += u32::from(verb.embeds() && cut_off);
            }
            Operation::Die(verb, place, visit) => {
                let dying = DieAt::new(*place, *visit);
                let died = self.perform(verb, &dying, true);
                self.tally.deaths.fetch_add(u64::from(died), Ordering::Relaxed);
                self.deaths += u32::from(verb.embeds() && dying.died());
            }
            Operation::Race(budget, meanwhile) => self.race(*budget, meanwhile),
            Operation::Freeze(items) => self.freeze(*items),
            Operation::Thaw => self.thaw(),
            Operation::Keep => self.keep(),
            Operation::SetBack => self.set_back(),
            Operation::NoRoom(bytes, operation) => {
                let room = match &self.outsider {
                    Some(Outsider::Sql(file, _)) => Some(NoRoom::beside(file, *bytes)),
                    _ => None,
                };
                self.no_room = room.is_some();
                self.play(operation);
                // Searches go on.
                self.oracle.look(&self.handles[self.turn]);
                self.no_room = false;
            }
            Operation::Cancelled(after, operation) => {
                #[cfg(feature = "postgres")]
                let cancelling = match &self.outsider {
                    Some(Outsider::Table(table)) => Some(table.cancel(*after)),
                    _ => None,
                };
                // A write that was cancelled is tried again: the operation ends as if nobody had cancelled
                // it.
                self.play(operation);
                #[cfg(feature = "postgres")]
                let hit = cancelling.is_some_and(postgres::Cancelling::end);
                #[cfg(not(feature = "postgres"))]
                let (hit, _) = (false, after);
                self.tally.cancelled.fetch_add(u64::from(hit), Ordering::Relaxed);
            }
        }
    }

    /// Runs two backfills, each on a handle of its own, while the application and the operator go on.
    fn race(&mut self, budget: Option<u64>, meanwhile: &[Operation]) {
        let stores = self.handles.each_ref().map(|handle| Arc::clone(&handle.store));
        let (encoder, adapter) = (Arc::clone(&self.encoder), self.world.adapter.clone());
        let work = |store: &dyn Store, worker| {
            drop(run(store, &encoder, BackfillScope::Gallery(Some(&adapter)), budget, worker, &Unobserved));
        };
        thread::scope(|scope| {
            let (work, [first, second]) = (&work, &stores);
            let workers = [(first, "left"), (second, "right")]
                .map(|(store, worker)| scope.spawn(move || work(&**store, worker)));
            for operation in meanwhile {
                match operation {
                    Operation::Verb(verb) => drop(self.perform(verb, &Unobserved, false)),
                    other => self.play(other),
                }
                self.handles.iter().for_each(|handle| drop(self.oracle.look(handle)));
            }
            for worker in workers {
                worker.join().unwrap();
            }
        });
    }

    /// Checks what holds between two operations, whichever process looks.
    fn check(&mut self) {
        for handle in &self.handles {
            self.oracle.check(handle);
        }
        self.check_bill();
    }

    /// Checks that nothing is paid for twice but what was in hand at a death.
    fn check_bill(&self) {
        let embedded = self.encoder.embedded.lock().unwrap();
        let twice: u32 = embedded.values().map(|count| count - 1).sum();
        let batches = BATCH * WORKERS;
        // One item of each batch that waited is embedded again to compare.
        let waited = (VOUCHES_AFTER as usize + batches).div_ceil(BATCH);
        let in_hand = self.deaths * (batches + waited) as u32;
        assert!(
            twice <= in_hand + self.oracle.embedded_anew,
            "{twice} embedded twice after {} deaths: {embedded:?}",
            self.deaths
        );
    }

    /// Brings the upgrade to its end, whatever happened before: every item is native once, also where it was
    /// finished half-way.
    fn end(&mut self) {
        let has_old = find_space(self.store(), OLD).unwrap().is_some();
        if has_old {
            self.perform(&Verb::Start, &Unobserved, true);
        }
        self.perform(&Verb::Ask(Request::Run), &Unobserved, true);
        let verbs = if has_old {
            vec![
                Verb::Run(None),
                Verb::Switch(Serving::Fused),
                Verb::Switch(Serving::Mixed),
                Verb::Finish(false),
            ]
        } else {
            vec![Verb::Run(None), Verb::Finish(false)]
        };
        for verb in verbs {
            self.perform(&verb, &Unobserved, true);
            self.check();
            let counts = self.store().counts(NEW).unwrap();
            assert_eq!(counts.native, self.oracle.items.len() as u64);
            assert_eq!(counts.adapted + counts.lacking, 0);
        }
    }
}

#[cfg(feature = "postgres")]
impl Model {
    /// Ends the history in a table, whatever happened before. A gallery of which at most two more items are
    /// embedded can be finished and released, and the application's table has every vector that searches
    /// found, as they were.
    fn end_in_a_table(mut self, gallery: &postgres::Table) {
        if find_space(self.store(), OLD).unwrap().is_some() {
            self.perform(&Verb::Start, &Unobserved, true);
            self.perform(&Verb::Ask(Request::Run), &Unobserved, true);
            self.perform(&Verb::Run(Some(2)), &Unobserved, true);
            self.perform(&Verb::Switch(Serving::Mixed), &Unobserved, true);
            self.perform(&Verb::Finish(true), &Unobserved, true);
        }
        self.check();
        let all = Scan::new(NEW, Select::All, NUMBERS).with_vectors_of(NEW);
        let found: BTreeMap<String, (Vec<f32>, bool)> = self
            .store()
            .scan(&all)
            .unwrap()
            .into_iter()
            .filter_map(|record| {
                let vector = record.vector?;
                Some((record.item.id, (vector.vector, vector.provenance == Provenance::Adapted)))
            })
            .collect();
        drop(self);
        let adapted = found.values().filter(|(_, is_adapted)| *is_adapted).count();
        let store = gallery.open();
        let released = store.settle_with_adapted("embedding_new", &|_, _| true).unwrap();
        assert_eq!((released.vectors, released.adapted), (found.len() as u64, adapted as u64));
        store.release(Some("embedding_new")).unwrap();
        assert_eq!(gallery.take_rows(), found);
    }
}

/// Counts of what happened in all histories of one kind.
struct Tally {
    kind: &'static str,
    histories: AtomicU64,
    operations: AtomicU64,
    deaths: AtomicU64,
    /// Calls that failed because there was no room.
    refused: AtomicU64,
    /// Statements that somebody cancelled.
    cancelled: AtomicU64,
}

static IN_MEMORY: Tally = Tally::named("in memory");
static ON_DISK: Tally = Tally::named("on disk");
static ON_QDRANT: Tally = Tally::named("on Qdrant");
#[cfg(feature = "postgres")]
static ON_POSTGRES: Tally = Tally::named("on PostgreSQL");

impl Tally {
    const fn named(kind: &'static str) -> Self {
        let [histories, operations, deaths, refused, cancelled] = [const { AtomicU64::new(0) }; 5];
        Self { kind, histories, operations, deaths, refused, cancelled }
    }

    fn ended(&self, operations: usize) {
        self.operations.fetch_add(operations as u64, Ordering::Relaxed);
        let histories = self.histories.fetch_add(1, Ordering::Relaxed) + 1;
        if histories.is_multiple_of(100) {
            let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            let [operations, deaths, refused, cancelled] =
                [&self.operations, &self.deaths, &self.refused, &self.cancelled].map(count);
            println!(
                "{histories} histories {}: {operations} operations, {deaths} deaths, {refused} calls without room, {cancelled} statements cancelled",
                self.kind
            );
        }
    }
}

/// Performs the operations, looks at everything after each, then brings the upgrade to its end.
fn play(mut model: Model, steps: &[Step]) {
    perform_all(&mut model, steps);
    model.end();
    model.check_bill();
}

fn perform_all(model: &mut Model, steps: &[Step]) {
    for (turn, operation) in steps {
        model.turn = *turn;
        model.play(operation);
        model.check();
        // Items that the dead held are anybody's by the next operation.
        (model.pass)(Duration::from_mins(1));
    }
    model.thaw();
    model.check();
    model.tally.ended(steps.len());
}

/// Draws the number of items: few meet each other often, many are more than a batch.
fn items() -> impl Strategy<Value = usize> {
    prop_oneof![3 => Just(8), 1 => Just(60)]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((0..HANDLES, operation()), 1..40)
}

/// Returns a configuration of so many histories, unless `PROPTEST_CASES` says otherwise.
fn histories(cases: u32) -> ProptestConfig {
    let config = ProptestConfig::default();
    if std::env::var_os("PROPTEST_CASES").is_some() { config } else { ProptestConfig { cases, ..config } }
}

proptest! {
    #![proptest_config(histories(200))]

    #[test]
    fn no_order_of_events_harms_a_gallery_in_memory(items in items(), steps in steps()) {
        let clock = ManualLeaseClock::default();
        let store = MemoryStore::new().with_clock(Arc::new(clock.clone()));
        let outsider = Some(Outsider::Memory(store.clone()));
        let stores = [(); HANDLES].map(|()| Arc::new(store.clone()) as Arc<dyn Store>);
        let pass = Box::new(move |time| clock.pass(time));
        play(Model::new(stores, outsider, pass, items, &IN_MEMORY), &steps);
    }
}

/// Starts the servers of the other tests. A full disk is a limit of the whole process, and a server that
/// started under it would inherit it: they start before the first one.
fn start_servers() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        qdrant::server();
        #[cfg(feature = "postgres")]
        server::server();
    });
}

proptest! {
    #![proptest_config(histories(30))]

    #[test]
    fn no_order_of_events_harms_a_gallery_on_disk(items in items(), steps in steps()) {
        start_servers();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gallery.db");
        let clock = ManualLeaseClock::default();
        drop(SqliteStore::create(&path).unwrap());
        let reopen = {
            let (path, clock) = (path.clone(), clock.clone());
            move || {
                let store = SqliteStore::open(&path).unwrap();
                Arc::new(store.with_clock(Arc::new(clock.clone()))) as Arc<dyn Store>
            }
        };
        let stores = [(); HANDLES].map(|()| reopen());
        let pass = Box::new(move |time| clock.pass(time));
        let mut model = Model::new(stores, Some(Outsider::sql(path)), pass, items, &ON_DISK);
        model.reopen = Some(Box::new(reopen));
        play(model, &steps);
    }
}

proptest! {
    #![proptest_config(histories(12))]

    #[test]
    fn no_order_of_events_harms_a_gallery_on_qdrant(items in items(), steps in steps()) {
        if let Some(server) = qdrant::server() {
            let collection = qdrant::fresh("history");
            qdrant::collection(&server.url, &collection, common::D_OLD);
            let clock = ManualLeaseClock::default();
            let options = CollectionOptions {
                collection: collection.clone(),
                source: Some("body".into()),
                label: Some("label".into()),
                payload: Some("more".into()),
                vector: Some("embedding".into()),
            };
            let stores = [(); HANDLES].map(|()| {
                let store = QdrantStore::adopt(&server.address(), &options, Some(OLD), &|_, _| true).unwrap();
                Arc::new(store.with_clock(Arc::new(clock.clone()), &server.address()).unwrap()) as Arc<dyn Store>
            });
            let pass = Box::new(move |time| clock.pass(time));
            let requests = Requests { url: server.url.clone(), collection: collection.clone() };
            play(Model::new(stores, Some(Outsider::Requests(requests)), pass, items, &ON_QDRANT), &steps);
            for name in [collection.clone(), format!("rehang_{collection}")] {
                qdrant::send(&server.url, "DELETE", &format!("/collections/{name}"), &serde_json::Value::Null);
            }
        }
    }
}

#[cfg(feature = "postgres")]
proptest! {
    #![proptest_config(histories(12))]

    #[test]
    fn no_order_of_events_harms_a_gallery_on_postgres(items in items(), steps in steps(), in_a_table in any::<bool>()) {
        if let Some(gallery) = postgres::Table::new() {
            let stores = [(); HANDLES].map(|()| Arc::new(gallery.open()) as Arc<dyn Store>);
            let clock = gallery.clock();
            let outsider = Some(Outsider::Table(Box::new(gallery.outside())));
            let mut model = Model::new(stores, outsider, clock, items, &ON_POSTGRES);
            if in_a_table {
                perform_all(&mut model, &steps);
                model.end_in_a_table(&gallery);
            } else {
                play(model, &steps);
                gallery.remove();
            }
        }
    }
}

/// Tables on a real server, where the galleries of histories lie.
#[cfg(feature = "postgres")]
mod postgres {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::sync::{Arc, OnceLock};
    use std::thread::{self, JoinHandle};
    use std::time::Duration;

    use rehang_postgres::{PostgresStore, TableOptions};

    use super::{OLD, server};

    /// Application of the table, by plain SQL.
    pub struct Outside {
        client: ::postgres::Client,
        address: String,
        name: String,
    }

    /// Watcher of what the server is doing, which cancels one statement.
    pub struct Cancelling {
        ended: Arc<AtomicBool>,
        looks: JoinHandle<bool>,
    }

    impl Cancelling {
        /// Ends the watch, and returns whether a statement was cancelled.
        pub fn end(self) -> bool {
            self.ended.store(true, Ordering::Relaxed);
            self.looks.join().unwrap()
        }
    }

    impl Outside {
        /// Cancels a statement of the galleries that has written something, after so many others were seen.
        /// Statements that only read are left alone: what the test itself reads is among them.
        pub fn cancel(&self, after: u64) -> Cancelling {
            let ended = Arc::new(AtomicBool::new(false));
            let (mut client, told) = (server::client(&self.address), Arc::clone(&ended));
            let looks = thread::spawn(move || {
                let look = client
                    .prepare(
                        "SELECT CASE WHEN $1 THEN pg_cancel_backend(pid) ELSE false END FROM pg_stat_activity
                         WHERE application_name = 'rehang' AND datname = current_database() AND state = 'active'
                         AND backend_xid IS NOT NULL AND query <> 'COMMIT' LIMIT 1",
                    )
                    .unwrap();
                let mut seen = 0;
                while !told.load(Ordering::Relaxed) {
                    if let Some(row) = client.query_opt(&look, &[&(seen >= after)]).unwrap() {
                        if row.get(0) {
                            return true;
                        }
                        seen += 1;
                    }
                }
                false
            });
            Cancelling { ended, looks }
        }

        pub fn rename(&mut self, from: &str, to: &str) {
            let update = format!("UPDATE {} SET id = $2 WHERE id = $1", self.name);
            self.client.execute(&update, &[&from, &to]).unwrap();
        }
    }

    /// Table of one history.
    pub struct Table {
        address: String,
        name: String,
    }

    impl Table {
        pub fn new() -> Option<Self> {
            static DATABASE: OnceLock<String> = OnceLock::new();
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let address =
                DATABASE.get_or_init(|| server::server().map(server::Server::database).unwrap_or_default());
            if address.is_empty() {
                return None;
            }
            let name = format!("history_{}", NEXT.fetch_add(1, Ordering::Relaxed));
            let width = super::common::D_OLD;
            server::client(address)
                .batch_execute(&format!(
                    "CREATE TABLE {name} (id text PRIMARY KEY, body text, label text, more jsonb, embedding vector({width}))"
                ))
                .unwrap();
            Some(Self { address: address.clone(), name })
        }

        pub fn open(&self) -> PostgresStore {
            let options = TableOptions {
                table: self.name.clone(),
                source: Some("body".into()),
                label: Some("label".into()),
                payload: Some("more".into()),
                vector: Some("embedding".into()),
                ..TableOptions::default()
            };
            PostgresStore::adopt(&self.address, &options, Some(OLD), &|_, _| true).unwrap()
        }

        pub fn outside(&self) -> Outside {
            Outside {
                client: server::client(&self.address),
                address: self.address.clone(),
                name: self.name.clone(),
            }
        }

        /// Reads the rows of a table that was released, with the vector of the new model and whether it is
        /// adapted; removes the tables.
        pub fn take_rows(&self) -> BTreeMap<String, (Vec<f32>, bool)> {
            let mut client = server::client(&self.address);
            let adapted = format!("{}_adapted", self.name);
            let has_adapted: bool =
                client.query_one("SELECT to_regclass($1) IS NOT NULL", &[&adapted]).unwrap().get(0);
            let is_adapted =
                if has_adapted { format!("id IN (SELECT id FROM {adapted})") } else { "false".into() };
            let sql = format!(
                "SELECT id, embedding_new, {is_adapted} FROM {} WHERE embedding_new IS NOT NULL",
                self.name
            );
            let rows = client.query(&sql, &[]).unwrap();
            client.batch_execute(&format!("DROP TABLE IF EXISTS {adapted}, {}", self.name)).unwrap();
            rows.iter()
                .map(|row| (row.get(0), (row.get::<_, pgvector::Vector>(1).into(), row.get(2))))
                .collect()
        }

        pub fn remove(&self) {
            self.open().release(None).unwrap();
            server::client(&self.address).batch_execute(&format!("DROP TABLE {}", self.name)).unwrap();
        }

        pub fn clock(&self) -> Box<dyn FnMut(Duration)> {
            let mut client = server::client(&self.address);
            Box::new(move |time| server::pass(&mut client, time))
        }
    }
}
