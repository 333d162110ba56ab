//! One query through the whole backfill: every metric at every cut, in one pass over the gallery.
//!
//! A query has P right answers, each with two distances: adapted and native. These 2P **thresholds** are sorted once.
//! Placing an item's two distances among them (`thresholds.rs`) says everything that the metrics can see of the item:
//! it stands above exactly the thresholds from its place on. Backfilling the item moves it from one place to the
//! other, and the ranks of the right answers in between change by one.
//!
//! Only the P right answers in their present form are kept in `ranks`, ascending, so the i-th of them contributes
//! `(i + 1) / ranks[i]` to average precision; `active[s]` translates a place among all 2P thresholds into a position in
//! `ranks`. When a right answer itself is backfilled, its entry moves, and its new rank is counted in `histogram`,
//! which holds how many items stand at each place.

#[cfg(target_arch = "x86_64")]
use super::registers::x86::{Avx2, Avx512};
use super::registers::{Eight, LANES, Registers, lanes, lanes_mut};
use super::relevance::Positive;
use super::thresholds::Thresholds;
use crate::processor::Processor;

/// Fixed-point unit of average precision and the other means: 2^40, so that a rounding is below 1e-12.
///
/// Sums of integers do not depend on the order of adding, hence neither on the number of threads. Up to
/// [`super::COUNT_MAX`] queries or items fit into `i64`.
pub(crate) const UNIT: f64 = (1_u64 << 40) as f64;
/// Ranks that are updated together: four registers, as many as `u32` has bits.
const GROUP: usize = 4 * LANES;
/// Items that are placed between two looks at the list of moves.
const CHUNK: usize = 512;
/// Depths at which a right answer counts as found: 1, 5, and the one that may be asked for.
pub(crate) const HITS: usize = 3;
/// Metrics of which a query has numbers of its own.
pub(crate) const OWN: usize = 6;

/// Depths of the metrics that look at the first ranks only; 0 leaves a metric out.
#[derive(Debug, Clone, Default)]
pub(crate) struct Depths {
    pub(crate) map: usize,
    pub(crate) ndcg: usize,
    pub(crate) recall: usize,
    /// A right answer at this rank or above counts as found; a depth of 0 finds nothing.
    pub(crate) hits: [f64; HITS],
    /// `1 / log2(rank + 1)` by rank, up to the depth of nDCG.
    discounts: Vec<f64>,
    /// Ranks up to this one can change what the first ranks say.
    touched: f64,
    /// The deepest of the three, 0 where all are left out.
    deepest: f64,
}

impl Depths {
    pub(crate) fn new(
        map: Option<usize>,
        ndcg: Option<usize>,
        recall: Option<usize>,
        flips: Option<usize>,
    ) -> Self {
        let (map, ndcg, recall) = (map.unwrap_or(0), ndcg.unwrap_or(0), recall.unwrap_or(0));
        let hits = [1.0, 5.0, flips.unwrap_or(0) as f64];
        let deepest = map.max(ndcg).max(recall) as f64;
        Self {
            map,
            ndcg,
            recall,
            hits,
            discounts: (0..=ndcg).map(|rank| 1.0 / ((rank + 1) as f64).log2()).collect(),
            touched: hits.iter().copied().fold(deepest, f64::max) + 1.0,
            deepest,
        }
    }
}

/// What the first ranks say at one state.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Head {
    pub(crate) map: f64,
    pub(crate) ndcg: f64,
    pub(crate) recall: f64,
}

/// mAP@k, nDCG@k and recall@k of a ranking, from the ascending ranks of the right answers and their gains.
#[inline(always)]
fn head(ranks: &[f64], gains: &[f64], ideal: f64, depths: &Depths) -> Head {
    let mut head = Head::default();
    for (index, (&rank, &gain)) in ranks.iter().zip(gains).enumerate() {
        if rank > depths.deepest {
            break;
        }
        if rank <= depths.map as f64 {
            head.map += (index + 1) as f64 / rank;
        }
        if rank <= depths.ndcg as f64 {
            head.ndcg += gain * depths.discounts[rank as usize];
        }
        if rank <= depths.recall as f64 {
            head.recall += 1.0;
        }
    }
    head.map /= ranks.len().min(depths.map).max(1) as f64;
    head.ndcg /= ideal;
    head.recall /= ranks.len() as f64;
    head
}

/// The largest discounted gain that a ranking can have; 1 where nDCG is left out.
fn ideal(gains: &mut [f64], depths: &Depths) -> f64 {
    if depths.ndcg == 0 {
        return 1.0;
    }
    gains.sort_unstable_by(|a, b| b.total_cmp(a));
    gains.iter().zip(&depths.discounts[1..]).map(|(gain, discount)| gain * discount).sum()
}

/// Changes of one sum over queries from cut to cut: entry c is what cut c adds to cut c − 1.
pub(crate) type Changes = Vec<i64>;

/// The sums over queries that a curve is made of.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    /// Average precision, in units of 1/[`UNIT`].
    pub(crate) precision: Changes,
    /// Queries answered within each of [`Depths::hits`].
    pub(crate) hits: [Changes; HITS],
    /// Queries answered at the start and no longer.
    pub(crate) lost: [Changes; HITS],
    /// Queries answered by the do-nothing gallery and not here.
    pub(crate) lost_to_baseline: [Changes; HITS],
    pub(crate) map: Changes,
    pub(crate) ndcg: Changes,
    pub(crate) recall: Changes,
    /// Queries of each group answered at rank 1.
    pub(crate) groups: Vec<Changes>,
}

impl Totals {
    pub(crate) fn new(items: usize, depths: &Depths, baseline: bool, groups: usize) -> Self {
        let changes = |wanted: bool| if wanted { vec![0; items + 1] } else { Vec::new() };
        Self {
            precision: changes(true),
            hits: depths.hits.map(|depth| changes(depth > 0.0)),
            lost: depths.hits.map(|depth| changes(depth > 0.0)),
            lost_to_baseline: depths.hits.map(|depth| changes(baseline && depth > 0.0)),
            map: changes(depths.map > 0),
            ndcg: changes(depths.ndcg > 0),
            recall: changes(depths.recall > 0),
            groups: (0..groups).map(|_| changes(true)).collect(),
        }
    }

    /// Adds the sums of other queries.
    pub(crate) fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.all_mut().into_iter().zip(other.all()) {
            for (mine, theirs) in mine.iter_mut().zip(theirs) {
                *mine += theirs;
            }
        }
    }

    fn all(&self) -> Vec<&Changes> {
        let fixed = [&self.precision, &self.map, &self.ndcg, &self.recall];
        let pairs = self.hits.iter().chain(&self.lost).chain(&self.lost_to_baseline);
        fixed.into_iter().chain(pairs).chain(&self.groups).collect()
    }

    fn all_mut(&mut self) -> Vec<&mut Changes> {
        let fixed = [&mut self.precision, &mut self.map, &mut self.ndcg, &mut self.recall];
        let pairs = self.hits.iter_mut().chain(&mut self.lost).chain(&mut self.lost_to_baseline);
        fixed.into_iter().chain(pairs).chain(&mut self.groups).collect()
    }
}

/// One query, as the sweep sees it. Columns are in backfill order.
pub(crate) struct Query<'a> {
    /// Distances to the native vectors, `[n]`.
    pub(crate) native: &'a [f64],
    /// Distances to the adapted vectors, `[n]`.
    pub(crate) adapted: &'a [f64],
    /// Gallery index of every column.
    pub(crate) items: &'a [u32],
    /// Right answers by ascending column, at least one.
    pub(crate) positives: &'a [Positive],
    /// Columns that are not in the ranking, ascending.
    pub(crate) ignored: &'a [u32],
    /// Position of the query's group.
    pub(crate) group: Option<usize>,
    /// Whether the do-nothing gallery answers it within each of [`Depths::hits`].
    pub(crate) baseline: [bool; HITS],
    /// Cuts at which the query's own values are kept, ascending.
    pub(crate) cuts: &'a [usize],
}

/// One query's own numbers.
#[derive(Debug, Clone, Default)]
pub(crate) struct QueryValues {
    /// Mean over all cuts of top-1, top-5, average precision, mAP@k, nDCG@k and recall@k, 0 to 1; 0 for one that is left
    /// out.
    pub(crate) areas: [f64; OWN],
    /// The same at each kept cut.
    pub(crate) at_cuts: Vec<[f32; OWN]>,
}

/// A right answer with the positions of its two thresholds.
#[derive(Debug, Clone, Copy, Default)]
struct Answer {
    time: u32,
    adapted: u32,
    native: u32,
    gain: f64,
}

/// An item that changes its place among the thresholds.
#[derive(Debug, Clone, Copy, Default)]
struct Move {
    time: u32,
    from: u32,
    to: u32,
}

/// Where the sweep has to stop between two items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stop {
    /// The query's values are kept before this column is backfilled.
    Keep,
    /// This column is not in the ranking.
    Ignored,
    /// This column is the right answer with that number.
    Answer(u32),
    /// There are no more columns.
    End,
}

/// Buffers that are used again from query to query.
#[derive(Default)]
pub(crate) struct Workspace {
    thresholds: Thresholds,
    sorted: Vec<(f64, u32, u32)>,
    answers: Vec<Answer>,
    stops: Vec<(u32, Stop)>,
    /// Place of every column's adapted distance.
    adapted: Vec<u32>,
    /// Places of the native distances of one chunk.
    native: Vec<u32>,
    /// The first `found` of these are the moves of one chunk.
    moves: Vec<Move>,
    found: usize,
    /// Items standing at each place.
    histogram: Vec<u32>,
    /// Right answers with a threshold below each place, in their present form.
    active: Vec<u32>,
    /// Ranks of the right answers, ascending, filled up with 1.
    ranks: Registers,
    /// 1, 2, 3, … beside `ranks`, filled up with 0.
    weights: Registers,
    gains: Vec<f64>,
    ideal_gains: Vec<f64>,
}

/// Runs one query through the backfill, adds its part to `totals`, and returns its own numbers.
pub(crate) fn sweep(
    processor: Processor,
    work: &mut Workspace,
    query: &Query<'_>,
    depths: &Depths,
    totals: &mut Totals,
) -> QueryValues {
    match processor {
        // SAFETY: `Processor` names an instruction set only after it was detected.
        #[cfg(target_arch = "x86_64")]
        Processor::Avx512 => unsafe { sweep_avx512(work, query, depths, totals) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Processor::Avx2 => unsafe { sweep_avx2(work, query, depths, totals) },
        Processor::Plain => sweep_here::<[f64; LANES]>(work, query, depths, totals),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2")]
fn sweep_avx512(
    work: &mut Workspace,
    query: &Query<'_>,
    depths: &Depths,
    totals: &mut Totals,
) -> QueryValues {
    sweep_here::<Avx512>(work, query, depths, totals)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi1,bmi2")]
fn sweep_avx2(work: &mut Workspace, query: &Query<'_>, depths: &Depths, totals: &mut Totals) -> QueryValues {
    sweep_here::<Avx2>(work, query, depths, totals)
}

#[inline(always)]
fn sweep_here<E: Eight>(
    work: &mut Workspace,
    query: &Query<'_>,
    depths: &Depths,
    totals: &mut Totals,
) -> QueryValues {
    work.begin::<E>(query);
    let ideal = if depths.ndcg == 0 { 1.0 } else { ideal(&mut work.ideal_gains, depths) };
    let items = query.items.len();
    let mut state = State::new::<E>(work, query, depths, ideal, totals);
    let mut values = QueryValues { at_cuts: Vec::with_capacity(query.cuts.len()), ..QueryValues::default() };
    let mut time = 0;
    let stops = std::mem::take(&mut work.stops);
    for &(stop_time, stop) in &stops {
        let stop_time = stop_time as usize;
        while time < stop_time {
            let end = stop_time.min(time + CHUNK);
            work.find_moves::<E>(query, time, end);
            state.follow_moves::<E>(work, query, depths, totals);
            time = end;
        }
        match stop {
            Stop::Keep => values.at_cuts.push(state.now()),
            Stop::Ignored => time += 1,
            Stop::Answer(number) => {
                let answer = work.answers[number as usize];
                state.move_answer::<E>(work, answer, query, depths, totals);
                time += 1;
            }
            Stop::End => {}
        }
    }
    work.stops = stops;
    values.areas = state.areas(items);
    values
}

impl Workspace {
    /// Sorts the thresholds and finds the state before the backfill.
    #[inline(always)]
    fn begin<E: Eight>(&mut self, query: &Query<'_>) {
        self.sorted.clear();
        for (number, positive) in query.positives.iter().enumerate() {
            let time = positive.time as usize;
            let number = 2 * number as u32;
            self.sorted.push((query.adapted[time], query.items[time], number));
            self.sorted.push((query.native[time], query.items[time], number + 1));
        }
        sort(&mut self.sorted);
        self.answers.clear();
        self.answers.extend(query.positives.iter().map(|positive| Answer {
            time: positive.time,
            gain: positive.gain,
            ..Answer::default()
        }));
        for (threshold, &(_, _, tag)) in self.sorted.iter().enumerate() {
            let answer = &mut self.answers[tag as usize / 2];
            if tag % 2 == 0 {
                answer.adapted = threshold as u32;
            } else {
                answer.native = threshold as u32;
            }
        }
        self.thresholds.build(self.sorted.iter().map(|&(distance, item, _)| (distance, item)));

        let outside = self.thresholds.len() as u32;
        self.adapted.resize(query.items.len(), 0);
        self.thresholds.place::<E>(query.adapted, query.items, &mut self.adapted);
        for &time in query.ignored {
            self.adapted[time as usize] = outside;
        }
        for answer in &self.answers {
            self.adapted[answer.time as usize] = answer.adapted;
        }
        count(&self.adapted, outside as usize, &mut self.histogram);

        // Before the backfill the adapted thresholds are the active ones.
        let positives = query.positives.len();
        // A group may begin at any register, so three more than the last one begins with are there.
        let padded = positives.next_multiple_of(GROUP) + GROUP;
        self.active.clear();
        self.active.push(0);
        self.ranks.fill(padded, 1.0);
        self.gains.clear();
        let mut standing = 0;
        for (threshold, &(_, _, tag)) in self.sorted.iter().enumerate() {
            standing += self.histogram[threshold];
            if tag % 2 == 0 {
                self.ranks[self.gains.len()] = f64::from(standing);
                self.gains.push(self.answers[tag as usize / 2].gain);
            }
            self.active.push(self.gains.len() as u32);
        }
        self.weights.fill(padded, 0.0);
        for (position, weight) in self.weights[..positives].iter_mut().enumerate() {
            *weight = (position + 1) as f64;
        }
        self.ideal_gains.clear();
        self.ideal_gains.extend_from_slice(&self.gains);

        self.stops.clear();
        self.stops.extend(query.ignored.iter().map(|&time| (time, Stop::Ignored)));
        let answers = query.positives.iter().enumerate();
        self.stops.extend(answers.map(|(number, positive)| (positive.time, Stop::Answer(number as u32))));
        self.stops.extend(query.cuts.iter().map(|&cut| (cut as u32, Stop::Keep)));
        self.stops.sort_unstable();
        self.stops.push((query.items.len() as u32, Stop::End));
    }

    /// Lists the columns `start..end` that change their place; none of them is a right answer or ignored.
    #[inline(always)]
    fn find_moves<E: Eight>(&mut self, query: &Query<'_>, start: usize, end: usize) {
        self.native.resize(CHUNK, 0);
        let native = &mut self.native[..end - start];
        self.thresholds.place::<E>(&query.native[start..end], &query.items[start..end], native);
        // Most items change nothing; a list that is written always and grown sometimes needs no jump.
        self.moves.resize(CHUNK + 1, Move::default());
        let (moves, adapted) = (&mut self.moves[..=CHUNK], &self.adapted[start..end]);
        let mut found = 0;
        for (offset, (&from, &to)) in adapted.iter().zip(native.iter()).enumerate() {
            moves[found] = Move { time: (start + offset) as u32, from, to };
            found += usize::from(from != to);
        }
        self.found = found;
    }
}

impl Workspace {
    /// Ranks of the right answers that [`rank`] found last, ascending.
    pub(crate) fn ranks(&self) -> &[f64] {
        &self.ranks[..self.gains.len()]
    }
}

/// Sorts thresholds by (distance, gallery index, adapted before native).
fn sort(thresholds: &mut [(f64, u32, u32)]) {
    thresholds.sort_unstable_by(|a, b| {
        a.0.partial_cmp(&b.0).unwrap_or(std::cmp::Ordering::Equal).then((a.1, a.2).cmp(&(b.1, b.2)))
    });
}

/// Counts how many items stand at each place `0 ..= outside`.
#[inline(always)]
fn count(places: &[u32], outside: usize, histogram: &mut Vec<u32>) {
    histogram.clear();
    histogram.resize(outside + 1, 0);
    for &place in places {
        histogram[place as usize] += 1;
    }
}

/// The state of a query between two items.
struct State {
    positives: usize,
    /// [`UNIT`] over the number of right answers.
    unit: f64,
    ideal: f64,
    /// `Σ (i + 1) / ranks[i]`.
    sum: f64,
    /// Average precision now, in fixed point.
    precision: i64,
    /// Sum of average precision over all cuts, in fixed point.
    precision_area: i64,
    hits: [bool; HITS],
    start_hits: [bool; HITS],
    /// Cuts at which the query is answered.
    hit_area: [i64; HITS],
    map: i64,
    ndcg: i64,
    recall: i64,
    /// Sums of these three over all cuts, in fixed point.
    head_areas: [i64; 3],
}

impl State {
    #[inline(always)]
    fn new<E: Eight>(
        work: &Workspace,
        query: &Query<'_>,
        depths: &Depths,
        ideal: f64,
        totals: &mut Totals,
    ) -> Self {
        let positives = query.positives.len();
        let sum = precision_sum::<E>(&work.ranks, &work.weights);
        let mut state = Self {
            positives,
            unit: UNIT / positives as f64,
            ideal,
            sum,
            precision: 0,
            precision_area: 0,
            hits: [false; HITS],
            start_hits: [false; HITS],
            hit_area: [0; HITS],
            map: 0,
            ndcg: 0,
            recall: 0,
            head_areas: [0; 3],
        };
        let cuts = query.items.len() as i64 + 1;
        state.update_precision(0, cuts, totals);
        // The hits of the start are what later losses are counted against, so they are set before the update.
        for slot in 0..HITS {
            if query.baseline[slot] {
                totals.lost_to_baseline[slot][0] += 1;
            }
        }
        state.update_head(0, cuts, &work.ranks, &work.gains, query, depths, totals);
        for slot in 0..HITS {
            state.start_hits[slot] = state.hits[slot];
        }
        state
    }

    /// Average precision from `sum`; `cuts` is how many cuts the new value holds for, this one included.
    #[inline(always)]
    fn update_precision(&mut self, cut: usize, cuts: i64, totals: &mut Totals) {
        // SAFETY: average precision is finite and lies between 0 and 1.
        let precision: i64 = unsafe { (self.sum * self.unit + 0.5).to_int_unchecked() };
        let change = precision - self.precision;
        self.precision = precision;
        self.precision_area += change * cuts;
        totals.precision[cut] += change;
    }

    /// Everything that depends on the first ranks only.
    #[inline(always)]
    fn update_head(
        &mut self,
        cut: usize,
        cuts: i64,
        ranks: &[f64],
        gains: &[f64],
        query: &Query<'_>,
        depths: &Depths,
        totals: &mut Totals,
    ) {
        for slot in 0..HITS {
            let hit = ranks[0] <= depths.hits[slot];
            if hit == self.hits[slot] {
                continue;
            }
            self.hits[slot] = hit;
            let change = if hit { 1 } else { -1 };
            self.hit_area[slot] += change * cuts;
            totals.hits[slot][cut] += change;
            if self.start_hits[slot] {
                totals.lost[slot][cut] -= change;
            }
            if query.baseline[slot] {
                totals.lost_to_baseline[slot][cut] -= change;
            }
            if let (0, Some(group)) = (slot, query.group) {
                totals.groups[group][cut] += change;
            }
        }
        if depths.deepest > 0.0 {
            let head = head(&ranks[..self.positives], gains, self.ideal, depths);
            let [map_area, ndcg_area, recall_area] = &mut self.head_areas;
            for (old, new, area, changes) in [
                (&mut self.map, head.map, map_area, &mut totals.map),
                (&mut self.ndcg, head.ndcg, ndcg_area, &mut totals.ndcg),
                (&mut self.recall, head.recall, recall_area, &mut totals.recall),
            ] {
                let new = fixed(new);
                if new != *old {
                    *area += (new - *old) * cuts;
                    changes[cut] += new - *old;
                    *old = new;
                }
            }
        }
    }

    /// Backfills the items that were listed.
    #[inline(always)]
    fn follow_moves<E: Eight>(
        &mut self,
        work: &mut Workspace,
        query: &Query<'_>,
        depths: &Depths,
        totals: &mut Totals,
    ) {
        let items = query.items.len();
        let Workspace { moves, found, histogram, active, ranks, weights, gains, .. } = work;
        let (histogram, active) = (&mut histogram[..], &active[..]);
        let (ranks, weights) = (&mut ranks[..], &weights[..]);
        for &Move { time, from, to } in &moves[..*found] {
            histogram[from as usize] -= 1;
            histogram[to as usize] += 1;
            let (from, to) = (active[from as usize] as usize, active[to as usize] as usize);
            if from == to {
                continue;
            }
            // Moving nearer, the item comes to stand above the right answers in between.
            let (first, end, step) = if to < from { (to, from, 1.0) } else { (from, to, -1.0) };
            let touched = ranks[first] <= depths.touched;
            self.sum += shift_ranks::<E>(ranks, weights, first, end, step);
            let cut = time as usize + 1;
            let cuts = (items - time as usize) as i64;
            self.update_precision(cut, cuts, totals);
            if touched {
                self.update_head(cut, cuts, ranks, gains, query, depths, totals);
            }
        }
    }

    /// Backfills a right answer: its entry leaves the adapted threshold's position for the native one's.
    #[inline(always)]
    fn move_answer<E: Eight>(
        &mut self,
        work: &mut Workspace,
        answer: Answer,
        query: &Query<'_>,
        depths: &Depths,
        totals: &mut Totals,
    ) {
        let (old, new) = (answer.adapted as usize, answer.native as usize);
        work.histogram[old] -= 1;
        work.histogram[new] += 1;
        let rank = f64::from(work.histogram[..=new].iter().sum::<u32>());
        let from = work.active[old] as usize;
        let to = if new > old {
            let to = work.active[new] as usize - 1;
            work.ranks.copy_within(from + 1..=to, from);
            for rank in &mut work.ranks[from..to] {
                *rank -= 1.0;
            }
            work.gains.copy_within(from + 1..=to, from);
            for active in &mut work.active[old + 1..=new] {
                *active -= 1;
            }
            to
        } else {
            let to = work.active[new] as usize;
            work.ranks.copy_within(to..from, to + 1);
            for rank in &mut work.ranks[to + 1..=from] {
                *rank += 1.0;
            }
            work.gains.copy_within(to..from, to + 1);
            for active in &mut work.active[new + 1..=old] {
                *active += 1;
            }
            to
        };
        work.ranks[to] = rank;
        work.gains[to] = answer.gain;
        // Summed anew, so that roundings of the moves in between do not pile up.
        self.sum = precision_sum::<E>(&work.ranks, &work.weights);
        let cut = answer.time as usize + 1;
        let cuts = (query.items.len() - answer.time as usize) as i64;
        self.update_precision(cut, cuts, totals);
        self.update_head(cut, cuts, &work.ranks, &work.gains, query, depths, totals);
    }

    /// The metrics of [`QueryValues`] now.
    fn now(&self) -> [f32; OWN] {
        let hit = |slot: usize| if self.hits[slot] { 1.0 } else { 0.0 };
        let value = |units: i64| (units as f64 / UNIT) as f32;
        [hit(0), hit(1), value(self.precision), value(self.map), value(self.ndcg), value(self.recall)]
    }

    /// Their means over all cuts.
    fn areas(&self, items: usize) -> [f64; OWN] {
        let cuts = (items + 1) as f64;
        let [top1, top5, _] = self.hit_area.map(|area| area as f64 / cuts);
        let mean = |area: i64| area as f64 / UNIT / cuts;
        let [map, ndcg, recall] = self.head_areas.map(mean);
        [top1, top5, mean(self.precision_area), map, ndcg, recall]
    }
}

/// A number from 0 to 1 in fixed point, rounded to the nearest.
#[inline(always)]
fn fixed(value: f64) -> i64 {
    // SAFETY: metrics are finite and, but for rounding, lie between 0 and 1. Gains are above 0 and at most `f32::MAX`
    // (`Qrels::new`), so that no sum of them overflows and the ideal gain that they are divided by is above 0.
    unsafe { (value * UNIT + 0.5).to_int_unchecked() }
}

/// `Σ weights[i] / ranks[i]`, with one division for four registers.
#[inline(always)]
fn precision_sum<E: Eight>(ranks: &[f64], weights: &[f64]) -> f64 {
    let mut sums = E::splat(0.0);
    for (weights, ranks) in weights.chunks_exact(GROUP).zip(ranks.chunks_exact(GROUP)) {
        let mut fractions = [(E::splat(0.0), E::splat(1.0)); 4];
        for (register, fraction) in fractions.iter_mut().enumerate() {
            *fraction = (E::load(lanes(weights, register * LANES)), E::load(lanes(ranks, register * LANES)));
        }
        sums = sums.add(sum_fractions(fractions));
    }
    sums.sum()
}

/// Adds `step`, 1 or −1, to the ranks at positions `first..end` and returns by how much `Σ weights[i] / ranks[i]`
/// changes: `w/(r + step) − w/r = −step · w / (r·(r + step))`.
///
/// Four registers at a time are read and written, the ranks outside the range unchanged: a rank that stays has a
/// numerator of 0. Most ranges fit into one such group, so the loop ends where the processor expects it to. The four
/// fractions are put over one denominator, because a division takes as long as all the products.
#[inline(always)]
fn shift_ranks<E: Eight>(ranks: &mut [f64], weights: &[f64], first: usize, end: usize, step: f64) -> f64 {
    let steps = E::splat(step);
    let mut sums = E::splat(0.0);
    for group in (first / LANES * LANES..end).step_by(GROUP) {
        let (weights, ranks) = (&weights[group..group + GROUP], &mut ranks[group..group + GROUP]);
        let inside = below(end - group) & !below(first.saturating_sub(group));
        let mut fractions = [(E::splat(0.0), E::splat(1.0)); 4];
        for (register, fraction) in fractions.iter_mut().enumerate() {
            let mask = (inside >> (register * LANES)) as u8;
            let ranks = lanes_mut(ranks, register * LANES);
            let before = E::load(ranks);
            // Zeros are added outside the range. Stored under the mask instead, these ranks could not be handed to the
            // next move's load before they are in the cache.
            let after = before.add(steps.only(mask));
            after.store(ranks);
            *fraction = (E::load(lanes(weights, register * LANES)).only(mask), before.mul(after));
        }
        sums = sums.add(sum_fractions(fractions));
    }
    -step * sums.sum()
}

/// The positions of a group before `end`, one bit each.
#[inline(always)]
fn below(end: usize) -> u32 {
    if end < GROUP { (1 << end) - 1 } else { u32::MAX }
}

/// The sum of four fractions (numerator, denominator) by one division. Denominators are products of two ranks, ranks
/// stay below 2^23, so the product of all four is far from an overflow.
#[inline(always)]
fn sum_fractions<E: Eight>([a, b, c, d]: [(E, E); 4]) -> E {
    let (low, high) = (add_fractions(a, b), add_fractions(c, d));
    let (numerator, denominator) = add_fractions(low, high);
    numerator.div(denominator)
}

#[inline(always)]
fn add_fractions<E: Eight>(a: (E, E), b: (E, E)) -> (E, E) {
    (a.0.mul(b.1).add(b.0.mul(a.1)), a.1.mul(b.1))
}

/// One ranking of the gallery, as [`super::evaluate`] reports it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ranking {
    pub(crate) first_rank: usize,
    pub(crate) precision: f64,
    pub(crate) head: Head,
}

/// The metrics of one query in a gallery that stays as it is: `query.native` is searched, `query.adapted` is not read.
pub(crate) fn rank(work: &mut Workspace, query: &Query<'_>, depths: &Depths) -> Ranking {
    work.sorted.clear();
    for (number, positive) in query.positives.iter().enumerate() {
        let time = positive.time as usize;
        work.sorted.push((query.native[time], query.items[time], number as u32));
    }
    sort(&mut work.sorted);
    work.thresholds.build(work.sorted.iter().map(|&(distance, item, _)| (distance, item)));
    let outside = work.thresholds.len();
    work.adapted.resize(query.items.len(), 0);
    work.thresholds.place::<[f64; LANES]>(query.native, query.items, &mut work.adapted);
    for &time in query.ignored {
        work.adapted[time as usize] = outside as u32;
    }
    count(&work.adapted, outside, &mut work.histogram);
    let positives = query.positives.len();
    work.ranks.fill(positives, 1.0);
    work.gains.clear();
    let mut standing = 0;
    let mut sum = 0.0;
    for (index, &(_, _, number)) in work.sorted.iter().enumerate() {
        standing += work.histogram[index];
        work.ranks[index] = f64::from(standing);
        work.gains.push(query.positives[number as usize].gain);
        sum += (index + 1) as f64 / f64::from(standing);
    }
    work.ideal_gains.clone_from(&work.gains);
    let ideal = ideal(&mut work.ideal_gains, depths);
    Ranking {
        first_rank: work.ranks[0] as usize,
        precision: sum / positives as f64,
        head: head(&work.ranks[..positives], &work.gains, ideal, depths),
    }
}
