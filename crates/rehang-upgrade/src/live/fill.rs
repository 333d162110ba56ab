//! Filling the new space with adapted vectors: `h(old)`, σ² and a place in the queue for every item.
//!
//! Pages are read and transformed on one thread and written on another, or on as many as the store gains
//! from, since writing is what bounds a fill. Memory is bounded by a few pages. All writes are conditional; a
//! fill that died goes on where the store says something is lacking.

use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

use rehang_core::adapter::{Adapter, Applier};
use rehang_core::order::{self, Arrangement, ITEMS_PER_COVER, OrderInput, Page};
use rehang_core::{Distance, Error, Head, Matrix, Provenance, Result, in_parallel};
use rehang_store::{
    Among, Epoch, ItemKey, Ledger, Priority, QueueBand, Record, Revision, Sample, Scan, Select, VectorWrite,
    WriteOutcome, shuffled,
};

use crate::live::faults::Place;
use crate::observe::{Observation, Observer, expect_going};
use crate::record::OrderSettings;

/// Largest count of numbers in a page, so that wide vectors do not take more memory than narrow ones.
const PAGE_NUMBERS: usize = 1 << 19;
/// Largest number of items of a page: a page is one transaction, and the application's own
/// writes wait for it.
pub(crate) const PAGE_ITEMS_MAX: usize = 2048;
/// Largest number of pages that wait between the thread that transforms and those that write.
const PAGES_AHEAD: usize = 2;
/// Largest number of items that the order `coverage` looks at; a larger gallery is sampled, so that
/// memory stays bounded.
const COVER_SAMPLE_MAX: usize = 20_000;
/// Place of items that came or changed during the upgrade: before everything else, but for a sample that a
/// run measures on, where these items are more than the sample has.
pub(crate) const NEW_OR_CHANGED: Priority = Priority::new(QueueBand::NewOrChanged, 0.0);

/// An adapter made ready for the items of a gallery.
pub struct Filler {
    applier: Applier,
    head: Option<Head>,
    /// Distances of the old space and of the new one.
    distances: [Distance; 2],
    old: String,
    new: String,
    order: OrderSettings,
    since: Option<Revision>,
}

impl Filler {
    /// Makes an adapter ready to fill space `new` from space `old`.
    ///
    /// # Errors
    ///
    /// Missing input where the adapter reads side information (a live gallery has none to give) or the order
    /// needs a head that the adapter does not carry; an invalid option for the order `oracle`, which needs
    /// the true errors, and a live gallery has none.
    pub fn new(adapter: &Adapter, old: &str, new: &str, order: OrderSettings) -> Result<Self> {
        if adapter.side_dimension().is_some() {
            return Err(Error::missing("side information for every item", "this adapter")
                .context("a live upgrade has old vectors only; fit an adapter without side information"));
        }
        let head = adapter.uncertainty.head();
        if order.policy.is_evaluation_only() {
            return Err(Error::option(
                "[order] policy",
                order.policy.name(),
                "an order that can be known before the backfill is done (coverage, sigma, random, …)",
            ));
        }
        if order.policy.needs_head() && head.is_none() {
            return Err(Error::missing(
                "an adapter that carries a classifier head",
                format!("[order] policy {:?}", order.policy.name()),
            ));
        }
        Ok(Self {
            applier: Applier::new(adapter)?,
            head: head.cloned(),
            distances: [adapter.old.distance, adapter.new.distance],
            old: old.into(),
            new: new.into(),
            order,
            since: None,
        })
    }

    /// Puts items with a later revision to the front of the queue: by their revision, they came or changed
    /// during the upgrade. With `None` that is not known, and only [`Filler::catch_up`] puts items there.
    #[must_use]
    pub fn since(mut self, revision: Option<Revision>) -> Self {
        self.since = revision;
        self
    }

    /// Number of items of a page.
    pub fn page(&self) -> usize {
        page_items(self.applier.d_old().max(self.applier.d_new()))
    }

    /// Writes an adapted vector for every item of the selection that has an old one. Gives how
    /// many were written.
    ///
    /// # Errors
    ///
    /// Those of the store and of the adapter; superseded where another plan has begun since the epoch;
    /// cancelled where a stop was asked for. What was written stays.
    pub fn fill(
        &self,
        store: &dyn Ledger,
        epoch: Epoch,
        select: &Select,
        observer: &dyn Observer,
    ) -> Result<u64> {
        let (pages, to_write) = sync_channel(PAGES_AHEAD);
        let to_write = Mutex::new(Some(to_write));
        thread::scope(|scope| {
            let read = move || {
                let mut walk = Some(self.walk(select.clone(), None));
                while let Some(page) = self.next_page(store, &mut walk, None, observer).transpose() {
                    let is_last = page.is_err();
                    // The writer is gone after an error of its own, which it reports.
                    if pages.send(page).is_err() || is_last {
                        break;
                    }
                }
            };
            scope.spawn(move || in_parallel(read));
            let write = || self.write_pages(store, epoch, &to_write, observer);
            let other_writers: Vec<_> =
                (1..store.writers()).map(|_| scope.spawn(move || in_parallel(write))).collect();
            let mut written = write()?;
            for writer in other_writers {
                written += writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            }
            Ok(written)
        })
    }

    /// Writes pages until there are no more; after an error of one writer, the others take none any more.
    fn write_pages(
        &self,
        store: &dyn Ledger,
        epoch: Epoch,
        pages: &Mutex<Option<Receiver<Result<Vec<VectorWrite>>>>>,
        observer: &dyn Observer,
    ) -> Result<u64> {
        let pages = || pages.lock().unwrap_or_else(PoisonError::into_inner);
        let write = |writes: Vec<VectorWrite>| -> Result<u64> {
            expect_going(observer)?;
            let written = written_of(&store.write_vectors(&self.new, Some(epoch), &writes)?);
            observer.observe(&Observation::Advanced { units: writes.len() as u64 });
            observer.reach(Place::FillWritten)?;
            Ok(written)
        };
        let mut written = 0;
        loop {
            let Some(page) = pages().as_ref().and_then(|pages| pages.recv().ok()) else { return Ok(written) };
            match page.and_then(write) {
                Ok(count) => written += count,
                Err(error) => {
                    pages().take();
                    return Err(error);
                }
            }
        }
    }

    /// Gives the first page of a walk over items, with their old vectors.
    fn walk(&self, select: Select, after: Option<ItemKey>) -> Scan {
        Scan::new(&self.new, select, self.page()).after(after).with_vectors_of(&self.old).without_contents()
    }

    /// Makes the writes for the next page of a selection, all with one place in the queue or each with its
    /// score; `None` at the end.
    fn next_page(
        &self,
        store: &dyn Ledger,
        walk: &mut Option<Scan>,
        place: Option<Priority>,
        observer: &dyn Observer,
    ) -> Result<Option<Vec<VectorWrite>>> {
        let Some(scan) = walk.take() else { return Ok(None) };
        let records = store.scan(&scan)?;
        *walk = scan.following(&records);
        if records.is_empty() {
            return Ok(None);
        }
        observer.reach(if place.is_some() { Place::CatchUpRead } else { Place::FillRead })?;
        Ok(Some(self.adapt(&records, place)?))
    }

    /// Adapts old vectors `[n, d_old]` that are not in a store yet: vectors and σ².
    ///
    /// # Errors
    ///
    /// Those of [`Applier::apply_rows`].
    pub fn adapt_rows(&self, old: &[f32]) -> Result<(Matrix, Vec<f32>)> {
        let count = old.len() / self.applier.d_old();
        let mut vectors = Matrix::zeros(count, self.applier.d_new());
        let (mut variance, mut raw_norms) = (vec![0.0; count], vec![0.0; count]);
        self.applier.apply_rows(0, old, None, vectors.as_mut_slice(), &mut variance, &mut raw_norms)?;
        Ok((vectors, variance))
    }

    /// Scores adapted vectors by the order, which gives their items' places in the queue.
    fn places(&self, keys: &[ItemKey], vectors: &Matrix, variance: &[f32]) -> Result<Vec<Priority>> {
        let page = Page {
            drawn: &|row| shuffled(self.order.seed, keys[row]),
            sigma: variance,
            vectors,
            head: self.head.as_ref(),
        };
        let scores = order::scores(self.order.policy, &page)?;
        Ok(scores.into_iter().map(Priority::ordinary).collect())
    }

    /// Whether an adapted vector can be made of an old one.
    pub(crate) fn can_adapt(&self, old: &[f32]) -> bool {
        self.distances[0].can_place(old)
    }

    /// Whether an adapted vector can be placed: whether it is near to some vectors and far from others.
    pub(crate) fn can_place(&self, adapted: &[f32]) -> bool {
        self.distances[1].can_place(adapted)
    }

    /// Makes the writes for those records that came with an old vector, all with one place or
    /// each with its score.
    fn adapt(&self, records: &[Record], place: Option<Priority>) -> Result<Vec<VectorWrite>> {
        let with_old: Vec<(&Record, &[f32])> = records
            .iter()
            .filter_map(|record| Some((record, record.vector.as_ref()?.vector.as_slice())))
            // One damaged vector, or one without a direction, must not stop the others. Its item lacks a
            // vector, so the backfill takes it first.
            .filter(|(_, old)| self.can_adapt(old))
            .collect();
        if with_old.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<ItemKey> = with_old.iter().map(|(record, _)| record.item.key).collect();
        let old: Vec<f32> = with_old.iter().flat_map(|(_, old)| old.iter().copied()).collect();
        let doing =
            |error: Error| error.context(format!("adapting items from {:?} on", with_old[0].0.item.id));
        let (vectors, variance) = self.adapt_rows(&old).map_err(doing)?;
        let places = match place {
            Some(place) => vec![place; keys.len()],
            None => self.places(&keys, &vectors, &variance).map_err(doing)?,
        };
        Ok(with_old
            .iter()
            .enumerate()
            .filter(|(row, _)| self.can_place(vectors.row(*row)))
            .map(|(row, (record, _))| {
                let priority = place.or(self.front(record)).unwrap_or(places[row]);
                VectorWrite::adapted(&record.item, vectors.row(row).to_vec(), variance[row], priority)
            })
            .collect())
    }

    /// Gives the items that cover the gallery their places at the front, where the order arranges a sample
    /// (`coverage`), and all items theirs where it goes by distances to means (`class-mean`).
    ///
    /// # Errors
    ///
    /// Those of the store; superseded where another plan has begun since the epoch.
    pub fn cover(&self, store: &dyn Ledger, epoch: Epoch, observer: &dyn Observer) -> Result<()> {
        if !self.order.policy.is_arranged() {
            return Ok(());
        }
        let sample = Sample {
            space: self.new.clone(),
            among: Among::Adapted,
            seed: !self.order.seed,
            size: COVER_SAMPLE_MAX,
            vectors_of: Some(self.new.clone()),
        };
        let mut drawn = store.sample(&sample)?;
        if drawn.drawn_from < ITEMS_PER_COVER as u64 {
            return Ok(());
        }
        let total = drawn.records.len() as u64;
        let stage = "choosing what covers the gallery";
        observer.observe(&Observation::Began { stage, unit: "items", total });
        // Sorted by key, the order is the same whatever the shuffle, where all are in the sample.
        drawn.records.sort_by_key(|record| record.item.key);
        let mut sampled = Vec::new();
        let mut rows = Vec::new();
        let mut sigma = Vec::new();
        for record in drawn.records {
            expect_going(observer)?;
            observer.observe(&Observation::Advanced { units: 1 });
            if self.front(&record).is_some() {
                continue;
            }
            let Some(vector) = record.vector else { continue };
            rows.extend(vector.vector);
            sigma.push(f64::from(vector.sigma2.unwrap_or(0.0)));
            sampled.push((record.item.key, record.item.revision));
        }
        if sampled.is_empty() {
            return Ok(());
        }
        let vectors = Matrix::new(self.applier.d_new(), rows)?;
        let input = OrderInput {
            items: sampled.len(),
            sigma: Some(&sigma),
            classified: self.head.as_ref().map(|head| (head, &vectors)),
            vectors: Some(&vectors),
            seed: self.order.seed,
            progress: observer.counters(),
            ..OrderInput::default()
        };
        match order::arrange(self.order.policy, &input)? {
            None => Ok(()),
            Some(Arrangement::First(first)) => {
                let covering: Vec<(ItemKey, Revision, Priority)> = first
                    .iter()
                    .enumerate()
                    .map(|(rank, &row)| {
                        let place = Priority::new(QueueBand::Covering, (first.len() - rank) as f64);
                        (sampled[row].0, sampled[row].1, place)
                    })
                    .collect();
                for page in covering.chunks(PAGE_ITEMS_MAX) {
                    store.set_priorities(&self.new, epoch, page)?;
                }
                Ok(())
            }
            Some(Arrangement::FarFrom(centres)) => self.rank_by_distance(store, epoch, &centres, observer),
        }
    }

    /// Ranks every adapted item by its distance to the nearest centre, farthest first.
    fn rank_by_distance(
        &self,
        store: &dyn Ledger,
        epoch: Epoch,
        centres: &Matrix,
        observer: &dyn Observer,
    ) -> Result<()> {
        let adapted = Select::Provenance(Provenance::Adapted);
        let page = Scan::new(&self.new, adapted, self.page()).with_vectors_of(&self.new).without_contents();
        let mut walk = Some(page);
        while let Some(page) = walk {
            expect_going(observer)?;
            let records = store.scan(&page)?;
            walk = page.following(&records);
            let ranked: Vec<(&Record, &[f32])> = records
                .iter()
                .filter(|record| self.front(record).is_none())
                .filter_map(|record| Some((record, record.vector.as_ref()?.vector.as_slice())))
                .collect();
            let rows = ranked.iter().flat_map(|(_, vector)| vector.iter().copied()).collect();
            let distances = order::distances_to_nearest(&Matrix::new(self.applier.d_new(), rows)?, centres);
            let places: Vec<(ItemKey, Revision, Priority)> = ranked
                .iter()
                .zip(distances)
                .map(|((record, _), distance)| {
                    (record.item.key, record.item.revision, Priority::ordinary(distance))
                })
                .collect();
            store.set_priorities(&self.new, epoch, &places)?;
        }
        Ok(())
    }

    /// Place that an item keeps, whatever adapter or order comes next: one that came or changed during the
    /// upgrade, that a run measures on, or that was [put first](crate::put_first()).
    fn front(&self, record: &Record) -> Option<Priority> {
        if self.since.is_some_and(|since| record.item.revision > since) {
            return Some(NEW_OR_CHANGED);
        }
        let priority = record.state.as_ref().and_then(|state| state.priority);
        priority.filter(|priority| priority.band >= QueueBand::Sample)
    }

    /// Adapts items that came or changed since the fill: they lack a vector in the new space and have one in
    /// the old. They go to the front of the queue. Gives how many were written; an item that still lacks a
    /// vector afterwards has no old one either.
    ///
    /// # Errors
    ///
    /// Those of the store and of the adapter; superseded where another plan has begun since the epoch.
    pub fn catch_up(&self, store: &dyn Ledger, epoch: Epoch, observer: &dyn Observer) -> Result<u64> {
        self.catch_up_from(store, epoch, &mut None, &|| true, observer)
    }

    /// Adapts items page by page from behind the item `after` on, while it may go on; otherwise as
    /// [`Filler::catch_up`]. `after` becomes the last item of the walk, or `None` where it came to the end.
    ///
    /// # Errors
    ///
    /// As [`Filler::catch_up`]; pages before the error stay.
    pub fn catch_up_from(
        &self,
        store: &dyn Ledger,
        epoch: Epoch,
        after: &mut Option<ItemKey>,
        may_go_on: &dyn Fn() -> bool,
        observer: &dyn Observer,
    ) -> Result<u64> {
        let (mut written, mut walk) = (0, Some(self.walk(Select::Lacking, *after)));
        let place = Some(NEW_OR_CHANGED);
        while let Some(writes) = self.next_page(store, &mut walk, place, observer)? {
            if !writes.is_empty() {
                written += written_of(&store.write_vectors(&self.new, Some(epoch), &writes)?);
                observer.reach(Place::CatchUpWritten)?;
            }
            // The place is moved after the write: a page that could not be written is read again.
            *after = walk.as_ref().and_then(|next| next.after);
            if !may_go_on() {
                return Ok(written);
            }
        }
        *after = None;
        Ok(written)
    }
}

/// Counts the writes that were applied.
pub(crate) fn written_of(outcomes: &[WriteOutcome]) -> u64 {
    outcomes.iter().filter(|outcome| **outcome == WriteOutcome::Written).count() as u64
}

/// Number of items of a page of vectors of this width.
pub(crate) fn page_items(dimension: usize) -> usize {
    (PAGE_NUMBERS / dimension.max(1)).clamp(64, PAGE_ITEMS_MAX)
}
