//! The search index of one space: a graph, the vectors that wait to be merged into it, and the items whose
//! vector in it is out of date.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;
use rehang_core::{Result, Space};
use rusqlite::Connection;

use crate::connection::Database;
use crate::exact::{Flat, Near, RowKey, keep_nearest};
use crate::graph::Graph;
use crate::options::SearchOptions;
use crate::spaces::{self, SpaceRow};
use crate::trouble::{Step, Trouble};
use crate::values::{int, read_value};

/// Search index of a space in memory, up to the change `applied`.
///
/// A vector is either in `fresh`, or in the graph and not in `stale`.
#[derive(Debug)]
pub(crate) struct SpaceIndex {
    pub(crate) space: Space,
    pub(crate) options: SearchOptions,
    /// Change up to which all changes are in the index.
    pub(crate) applied: u64,
    /// Change up to which all changes are in the graph itself.
    pub(crate) settled: u64,
    /// The graph. A thread that saves it holds it too; only a thread that holds `work` of the keeper saves or
    /// changes it.
    pub(crate) graph: Option<Arc<Graph>>,
    /// Vectors that are not in the graph (yet): all of them in small galleries.
    pub(crate) fresh: Flat,
    /// Items whose vector in the graph is not theirs any more.
    stale: HashSet<RowKey>,
}

/// Part of the feed of changes of a space.
#[derive(Debug)]
pub(crate) struct Changes {
    removed: Vec<RowKey>,
    vectors: Flat,
    up_to: u64,
}

impl SpaceIndex {
    /// Makes an index that knows nothing yet.
    pub(crate) fn new(space: &Space, options: SearchOptions) -> Self {
        Self {
            space: space.clone(),
            options,
            applied: 0,
            settled: 0,
            graph: None,
            fresh: Flat::new(space.dimension),
            stale: HashSet::new(),
        }
    }

    /// Makes an index around a graph that is whole up to the change `settled`.
    pub(crate) fn around(space: &Space, options: SearchOptions, graph: Graph, settled: u64) -> Self {
        Self { applied: settled, settled, graph: Some(Arc::new(graph)), ..Self::new(space, options) }
    }

    /// Number of vectors that searches see.
    pub(crate) fn len(&self) -> usize {
        self.graph.as_deref().map_or(0, Graph::len) + self.fresh.len() - self.stale.len()
    }

    /// Bytes that the index takes in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.graph.as_deref().map_or(0, Graph::bytes) + self.fresh.bytes() + self.stale.capacity() * 9
    }

    /// Whether everything is in the graph.
    pub(crate) fn is_settled(&self) -> bool {
        self.fresh.len() == 0 && self.stale.is_empty()
    }

    /// Number of vectors and removals that wait to be merged.
    pub(crate) fn waiting(&self) -> usize {
        self.fresh.len() + self.stale.len()
    }

    /// Finds about the `k` nearest vectors, nearest first; exactly the nearest where there is no graph.
    pub(crate) fn nearest(&self, query: &[f32], k: usize) -> Result<Vec<Near>> {
        let mut near = self.fresh.nearest(self.space.distance, query, k, |_| true);
        if let Some(graph) = &self.graph {
            let passes = |key: RowKey| !self.stale.contains(&key);
            let passes: Option<&dyn Fn(RowKey) -> bool> =
                if self.stale.is_empty() { None } else { Some(&passes) };
            near.extend(graph.nearest(query, k, passes)?);
            keep_nearest(&mut near, k);
        }
        Ok(near)
    }

    /// Takes changes in. This is cheap: nothing is merged into the graph.
    pub(crate) fn apply(&mut self, changes: &Changes) {
        let Self { graph, fresh, stale, .. } = self;
        let mut outdate = |key: RowKey| {
            if graph.as_ref().is_some_and(|graph| graph.contains(key)) {
                stale.insert(key);
            }
        };
        for &key in &changes.removed {
            fresh.remove(key);
            outdate(key);
        }
        for (key, vector) in changes.vectors.iter() {
            fresh.insert(key, vector);
            outdate(key);
        }
        self.applied = self.applied.max(changes.up_to);
        if self.is_settled() {
            self.settled = self.applied;
        }
    }

    /// Merges a few waiting vectors and removals into the graph, and says whether there is more to do.
    pub(crate) fn merge(&mut self, count: usize) -> Result<bool> {
        let Some(graph) = self.graph.as_mut().and_then(Arc::get_mut) else { return Ok(false) };
        let keys: Vec<RowKey> = match self.fresh.keys() {
            [] => {
                let mut stale_keys = BTreeSet::new();
                #[allow(clippy::iter_over_hash_type, reason = "which removals come first changes no answer")]
                for &key in self.stale.iter().take(count) {
                    stale_keys.insert(key);
                }
                stale_keys.into_iter().collect()
            }
            keys => keys[keys.len().saturating_sub(count)..].to_vec(),
        };
        graph.reserve(keys.len())?;
        for key in keys {
            if self.stale.remove(&key) {
                graph.remove(key)?;
            }
            if let Some(vector) = self.fresh.get(key) {
                graph.add(key, vector)?;
                self.fresh.remove(key);
            }
        }
        if self.is_settled() {
            self.settled = self.applied;
        }
        Ok(!self.is_settled())
    }

    /// Whether so much waits, or was overwritten, that the keeper has to look after the index.
    pub(crate) fn needs_work(&self) -> bool {
        match &self.graph {
            None => self.fresh.len() > self.options.exact_max,
            Some(graph) => self.waiting() > self.options.merge_at || graph.is_check_due(),
        }
    }
}

/// Reads the changes after a count, as one snapshot has them; for 0, all vectors there are. The feed does not
/// remember removals up to `trimmed`.
pub(crate) fn changes_since(connection: &Connection, row: &SpaceRow, after: u64) -> Step<Changes> {
    let n = row.number;
    let up_to = row.change(connection)?;
    // For 0 the table is read in its own order, which is many times faster than that of the changes.
    let sql = if after == 0 {
        format!("SELECT item, value FROM vector_{n} WHERE ?1 = 0")
    } else {
        format!("SELECT item, value FROM vector_{n} INDEXED BY vector_{n}_change WHERE change > ?1")
    };
    let (vectors, mut removed) = read_vectors(connection, row, &sql, int(after))?;
    if after > 0 {
        let mut select =
            connection.prepare_cached(&format!("SELECT item FROM removed_{n} WHERE change > ?1"))?;
        let mut rows = select.query([int(after)])?;
        while let Some(line) = rows.next()? {
            removed.push(line.get(0)?);
        }
    }
    Ok(Changes { removed, vectors, up_to })
}

/// Builds a graph over all vectors of a space, page by page, so that neither memory nor the log of the file
/// grows.
///
/// Vectors that change meanwhile are in the feed after the change up to which the graph is whole. `None`
/// where the build was called off.
pub(crate) fn build(
    database: &Database,
    number: i64,
    options: SearchOptions,
    threads: usize,
    stop: &AtomicBool,
    advance: &dyn Fn(u64, u64) -> bool,
) -> Result<Option<SpaceIndex>> {
    let (row, settled, count) = database.read(|transaction| {
        let row = numbered(transaction, number)?;
        let settled = row.change(transaction)?;
        let count: usize = row.count(transaction, "vector")?;
        Ok((row, settled, count))
    })?;
    let mut graph = Graph::new(&row.space, options, count + 1024)?;
    // Several threads leave some vectors unlinked. Where a vector is not its own nearest, these could not be
    // told from the others.
    let threads = if row.space.finds_itself() { threads } else { 1 };
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .map_err(|error| rehang_core::Error::corrupt("the search index", error))?;
    let go_on = |done: usize| -> Result<()> {
        if advance(done as u64, count as u64) {
            Ok(())
        } else {
            Err(rehang_core::ErrorKind::Cancelled.into())
        }
    };
    let is_whole = each_page(database, &row, stop, &mut |page| {
        graph.reserve(page.len())?;
        let items: Vec<(RowKey, &[f32])> = page.iter().collect();
        for items in items.chunks(HEARD_AFTER) {
            pool.install(|| items.par_iter().try_for_each(|(key, vector)| graph.add(*key, vector)))?;
            go_on(graph.len())?;
        }
        Ok(())
    })?;
    if !is_whole {
        return Ok(None);
    }
    let mut unlinked_vectors = Flat::new(row.space.dimension);
    // A vector that is added again may push another one off its only link, so all are looked at until none is
    // left.
    for _ in 0..if threads > 1 { LINKED_AGAIN_MAX } else { 0 } {
        unlinked_vectors = Flat::new(row.space.dimension);
        graph.set_search_candidates(LOOKED_AT);
        let is_whole = each_page(database, &row, stop, &mut |page| {
            for (key, vector) in pool.install(|| unlinked(&graph, page))?.iter() {
                unlinked_vectors.insert(key, vector);
            }
            go_on(graph.len())
        })?;
        if !is_whole {
            return Ok(None);
        }
        // Few vectors need more than that short look; these get a longer one.
        graph.set_search_candidates(options.expansion_search);
        unlinked_vectors = unlinked(&graph, &unlinked_vectors)?;
        if unlinked_vectors.keys().is_empty() {
            break;
        }
        for (key, vector) in unlinked_vectors.iter() {
            graph.remove(key)?;
            graph.add(key, vector)?;
        }
        unlinked_vectors = unlinked(&graph, &unlinked_vectors)?;
    }
    graph.built = graph.len();
    graph.overwritten = 0;
    let mut index = SpaceIndex::around(&row.space, options, graph, settled);
    for (key, vector) in unlinked_vectors.iter() {
        index.fresh.insert(key, vector);
        index.stale.insert(key);
    }
    let samples = sample(database, &row, RECALL_SAMPLES)?;
    let recall = recall(database, &row, &samples, RECALL_K, &|query, k| index.nearest(query, k))?;
    if let Some(graph) = index.graph.as_mut().and_then(Arc::get_mut) {
        graph.recall_at_build = recall;
    }
    Ok(Some(index))
}

/// Finds the vectors in the graph that a search for themselves does not find.
///
/// A vector that is added while another thread is still linking its only neighbour so far loses that link,
/// and with it all searches. A vector is hidden rightly where many others are as near to it as itself.
fn unlinked(graph: &Graph, vectors: &Flat) -> Result<Flat> {
    let items: Vec<(RowKey, &[f32])> = vectors.iter().collect();
    let is_unlinked = |&(key, vector): &(RowKey, &[f32])| {
        if !graph.contains(key) {
            return Ok(false);
        }
        let near = graph.nearest(vector, LOOKED_AT, None)?;
        let is_found = near.iter().any(|&(_, other)| other == key);
        let hidden = near.len() == LOOKED_AT && near.iter().all(|&(distance, _)| distance <= near[0].0);
        Ok(!is_found && !hidden)
    };
    let marks: Vec<bool> = items.par_iter().map(is_unlinked).collect::<Result<_>>()?;
    let mut unlinked_vectors = Flat::new(graph.dimension());
    for ((key, vector), _) in items.into_iter().zip(marks).filter(|(_, unlinked)| *unlinked) {
        unlinked_vectors.insert(key, vector);
    }
    Ok(unlinked_vectors)
}

/// Largest number of times that the vectors that nothing links to are added again.
const LINKED_AGAIN_MAX: usize = 4;

/// Candidates of a search of a vector for itself.
const LOOKED_AT: usize = 16;

/// Hands all vectors of a space on, page by page in the order of their keys. `false` where it was called off.
fn each_page(
    database: &Database,
    row: &SpaceRow,
    stop: &AtomicBool,
    take: &mut dyn FnMut(&Flat) -> Result<()>,
) -> Result<bool> {
    let mut after = -1;
    loop {
        let (page, unplaced) = database.read(|transaction| read_page(transaction, row, after))?;
        let Some(&last) = page.keys().last().max(unplaced.last()) else { return Ok(true) };
        if stop.load(Ordering::Relaxed) {
            return Ok(false);
        }
        after = int(last);
        take(&page)?;
    }
}

/// Vectors that the recall of a graph is measured with. `RECALL_K` is the number of neighbours of each.
pub(crate) const RECALL_SAMPLES: usize = 64;
pub(crate) const RECALL_K: usize = 10;

/// Vectors after which the build of a graph hears whether it is called off: some tenths of a second.
const HEARD_AFTER: usize = 512;

/// Rows that are read in one snapshot while a graph is built.
const PAGE_ROWS: usize = 4096;

/// Reads a page of vectors after a key, as [`read_vectors`] does.
fn read_page(connection: &Connection, row: &SpaceRow, after: i64) -> Step<(Flat, Vec<RowKey>)> {
    let sql = format!(
        "SELECT item, value FROM vector_{} WHERE item > ?1 ORDER BY item LIMIT {PAGE_ROWS}",
        row.number
    );
    read_vectors(connection, row, &sql, after)
}

/// Reads the vectors of a statement that gives items and values, and the items whose vector is near to
/// nothing. Such a vector has no direction, or an application wrote it around the library's checks.
fn read_vectors(connection: &Connection, row: &SpaceRow, sql: &str, bound: i64) -> Step<(Flat, Vec<RowKey>)> {
    let mut select = connection.prepare_cached(sql)?;
    let mut rows = select.query([bound])?;
    let (mut vectors, mut unplaced) = (Flat::new(row.space.dimension), Vec::new());
    let mut vector = Vec::with_capacity(row.space.dimension);
    while let Some(line) = rows.next()? {
        vector.clear();
        read_value(line, 1, row.space.dimension, &mut vector)?;
        if row.space.distance.can_place(&vector) {
            vectors.insert(line.get(0)?, &vector);
        } else {
            unplaced.push(line.get(0)?);
        }
    }
    Ok((vectors, unplaced))
}

/// Looks up the space with a number; a conflict where it has been dropped.
pub(crate) fn numbered(connection: &Connection, number: i64) -> Step<SpaceRow> {
    spaces::list(connection)?.into_iter().find(|row| row.number == number).ok_or_else(|| {
        Trouble::Ours(rehang_core::Error::conflict(
            "the search index",
            "its space was dropped in the meantime",
        ))
    })
}

/// Reads stored vectors that are evenly spread over the keys: the same ones for the same gallery.
pub(crate) fn sample(database: &Database, row: &SpaceRow, count: usize) -> Result<Vec<Vec<f32>>> {
    database.read(|transaction| {
        let n = row.number;
        let (first, last): (Option<i64>, Option<i64>) = transaction.query_row(
            &format!("SELECT (SELECT min(item) FROM vector_{n}), (SELECT max(item) FROM vector_{n})"),
            [],
            |line| Ok((line.get(0)?, line.get(1)?)),
        )?;
        let (Some(first), Some(last)) = (first, last) else { return Ok(Vec::new()) };
        let mut select = transaction.prepare_cached(&format!(
            "SELECT value FROM vector_{n} WHERE item >= ?1 ORDER BY item LIMIT 1"
        ))?;
        let mut vectors = Vec::with_capacity(count);
        for at in 0..count as i128 {
            let key = i128::from(first) + i128::from(last - first) * at / count as i128;
            let mut rows = select.query([key as i64])?;
            if let Some(line) = rows.next()? {
                let mut vector = Vec::with_capacity(row.space.dimension);
                read_value(line, 0, row.space.dimension, &mut vector)?;
                if row.space.distance.can_place(&vector) {
                    vectors.push(vector);
                }
            }
        }
        Ok(vectors)
    })
}

/// Function that finds about the `k` nearest vectors to a query.
pub(crate) type Nearest<'a> = &'a dyn Fn(&[f32], usize) -> Result<Vec<Near>>;

/// Measures the share of the true `k` nearest that `nearest` finds; 1 where there is nothing to find.
///
/// A hit that is as near as the true `k`th counts, so ties do not lower it. The truth is read page by page.
pub(crate) fn recall(
    database: &Database,
    row: &SpaceRow,
    queries: &[Vec<f32>],
    k: usize,
    nearest: Nearest<'_>,
) -> Result<f64> {
    if queries.is_empty() || k == 0 {
        return Ok(1.0);
    }
    let kind = row.space.distance;
    let mut truth: Vec<Vec<Near>> = vec![Vec::new(); queries.len()];
    each_page(database, row, &AtomicBool::new(false), &mut |page| {
        truth.par_iter_mut().zip(queries).for_each(|(truth, query)| {
            truth.extend(page.nearest(kind, query, k, |_| true));
            keep_nearest(truth, k);
        });
        Ok(())
    })?;
    let (mut hits, mut wanted) = (0, 0);
    for (truth, query) in truth.iter().zip(queries) {
        let Some(&(kth, _)) = truth.last() else { continue };
        let border = kth + kth.abs() * 1e-5 + 1e-6;
        let near = nearest(query, truth.len())?;
        hits += near.iter().filter(|(distance, _)| *distance <= border).count().min(truth.len());
        wanted += truth.len();
    }
    Ok(if wanted == 0 { 1.0 } else { f64::from(hits as u32) / f64::from(wanted as u32) })
}
