//! Sweep of one query through the whole backfill: every metric at every cut, in one pass over the gallery.
//!
//! A query has P right answers, each with two distances: adapted and native. These 2P **thresholds** are
//! sorted once. An item's two distances are placed among them (`thresholds.rs`). That says everything that
//! the metrics can see of the item: it stands above exactly the thresholds from its place on. Backfilling the
//! item moves it from one place to the other, and the ranks of the right answers in between change by one.
//!
//! Only the P right answers in their present form are kept in `ranks`, ascending, so the i-th of them
//! contributes `(i + 1) / ranks[i]` to average precision. `active[s]` translates a place among all 2P
//! thresholds into a position in `ranks`. When a right answer itself is backfilled, its entry moves. Its new
//! rank is counted in `histogram`, which holds the number of items at each place.

use super::line::area_states;
use super::metrics::{Head, Metric};
#[cfg(target_arch = "x86_64")]
use super::registers::x86::{Avx2, Avx512};
use super::registers::{Eight, LANES, Registers, lanes, lanes_mut};
use super::relevance::Positive;
use super::thresholds::Thresholds;
use crate::processor::Processor;

/// Fixed-point unit of average precision and the other means: 2^40, so that a rounding is below 1e-12.
///
/// Sums of integers do not depend on the order of adding, hence not on the number of threads. Up to
/// [`super::COUNT_MAX`] queries or items fit into `i64`.
pub(crate) const UNIT: f64 = (1_u64 << 40) as f64;
/// Number of ranks that are updated together: four registers, as many as `u32` has bits.
const GROUP: usize = 4 * LANES;
/// Number of items that are placed between two looks at the list of moves.
const CHUNK: usize = 512;
/// Number of depths at which a right answer counts as found: 1, 5, and one that may be asked for.
pub(crate) const HITS: usize = 3;
/// Number of values that come first among a query's numbers: top-1, top-5 and average precision. The heads
/// follow.
pub(crate) const OWN_FIXED: usize = 3;

/// Depths and heads that are measured besides average precision.
#[derive(Default)]
pub(crate) struct Depths {
    /// Heads: metrics that look at the first ranks only, with their depths.
    heads: Vec<(f64, Box<dyn Head>)>,
    /// Depths at which a right answer counts as found, if its rank is not larger. A depth of 0 finds nothing.
    pub(crate) hits: [f64; HITS],
    /// Largest rank whose change can affect the heads and hits.
    touched: f64,
}

impl Depths {
    pub(crate) fn new(metrics: &[Metric], flips: Option<usize>) -> Self {
        let head = |metric: &Metric| Some((metric.depth()? as f64, metric.head()?));
        let heads: Vec<(f64, Box<dyn Head>)> = metrics.iter().filter_map(head).collect();
        let hits = [1.0, 5.0, flips.unwrap_or(0) as f64];
        let deepest = heads.iter().map(|head| head.0).chain(hits).fold(0.0, f64::max);
        Self { heads, hits, touched: deepest + 1.0 }
    }
}

/// Value of a head: its sum over the right answers within the depth, divided by the largest possible value.
/// `ranks` are those of all right answers, ascending, and `gains` go with them.
fn head_value((depth, head): &(f64, Box<dyn Head>), ranks: &[f64], gains: &[f64], best: f64) -> f64 {
    let within = ranks.iter().take_while(|rank| *rank <= depth).count();
    // An empty sum is −0; adding 0 makes it 0.
    (head.sum(&ranks[..within], &gains[..within]) + 0.0) / best
}

/// Changes of one sum over queries from cut to cut: entry c is the difference between cut c and cut c − 1.
pub(crate) type Changes = Vec<i64>;

/// Sums over queries that a curve is made from.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    /// Sum of average precision, in units of 1/[`UNIT`].
    pub(crate) precision: Changes,
    /// Number of queries answered within each of [`Depths::hits`].
    pub(crate) hits: [Changes; HITS],
    /// Number of queries answered at the start and no longer.
    pub(crate) lost: [Changes; HITS],
    /// Number of queries answered by the do-nothing gallery and not here.
    pub(crate) lost_to_baseline: [Changes; HITS],
    /// Sum of each head, in units of 1/[`UNIT`].
    pub(crate) heads: Vec<Changes>,
    /// Number of queries of each group answered at rank 1.
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
            heads: depths.heads.iter().map(|_| changes(true)).collect(),
            groups: (0..groups).map(|_| changes(true)).collect(),
        }
    }

    /// Adds the sums of other queries.
    pub(crate) fn plus(mut self, mut other: Self) -> Self {
        for (mine, theirs) in self.all().into_iter().zip(other.all()) {
            for (mine, theirs) in mine.iter_mut().zip(theirs) {
                *mine += *theirs;
            }
        }
        self
    }

    fn all(&mut self) -> Vec<&mut Changes> {
        let fixed = std::iter::once(&mut self.precision).chain(&mut self.heads);
        let pairs = self.hits.iter_mut().chain(&mut self.lost).chain(&mut self.lost_to_baseline);
        fixed.chain(pairs).chain(&mut self.groups).collect()
    }
}

/// One query, as the sweep sees it. Columns are in backfill order.
#[derive(Default)]
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
    /// Whether the do-nothing gallery answers the query within each of [`Depths::hits`].
    pub(crate) baseline: [bool; HITS],
    /// Cuts at which the query's own values are kept, ascending.
    pub(crate) cuts: &'a [usize],
}

/// Values of one query.
#[derive(Debug, Clone, Default)]
pub(crate) struct QueryValues {
    /// Mean of top-1, top-5, average precision and each head, 0 to 1, over all cuts but the last.
    pub(crate) areas: Vec<f64>,
    /// Top-1, top-5, average precision and each head at each kept cut, cut after cut.
    pub(crate) at_cuts: Vec<f32>,
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

/// Event at which the sweep has to stop between two items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stop {
    /// The query's values are kept before this column is backfilled.
    Keep,
    /// The column is not in the ranking.
    Ignored,
    /// The column is the right answer of this number.
    Answer(u32),
    /// The last column has been passed.
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
    /// Moves of one chunk; only the first `move_count` of them count.
    moves: Vec<Move>,
    move_count: usize,
    /// Number of items at each place.
    histogram: Vec<u32>,
    /// Number of right answers that have their present threshold below each place.
    active: Vec<u32>,
    /// Ranks of the right answers, ascending, filled up with 1.
    ranks: Registers,
    /// Numbers 1, 2, 3, … beside `ranks`, filled up with 0.
    weights: Registers,
    gains: Vec<f64>,
    /// Gains, descending, where a head is measured.
    best_gains: Vec<f64>,
}

/// Runs one query through the backfill, adds its part to `totals`, and returns its own values.
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
    let items = query.items.len();
    let mut state = State::new::<E>(work, query, depths, totals);
    let mut values = QueryValues::default();
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
            Stop::Keep => state.keep(&mut values.at_cuts),
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

        // Adapted thresholds are the active ones before the backfill.
        let positives = query.positives.len();
        // A group may begin at any register, so there are three registers more than the last group begins
        // with.
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
        self.stops.clear();
        self.stops.extend(query.ignored.iter().map(|&time| (time, Stop::Ignored)));
        let answers = query.positives.iter().enumerate();
        self.stops.extend(answers.map(|(number, positive)| (positive.time, Stop::Answer(number as u32))));
        self.stops.extend(query.cuts.iter().map(|&cut| (cut as u32, Stop::Keep)));
        self.stops.sort_unstable();
        self.stops.push((query.items.len() as u32, Stop::End));
    }

    /// Lists the columns `start..end` that change their place. None of them is a right answer or ignored.
    #[inline(always)]
    fn find_moves<E: Eight>(&mut self, query: &Query<'_>, start: usize, end: usize) {
        self.native.resize(CHUNK, 0);
        let native = &mut self.native[..end - start];
        self.thresholds.place::<E>(&query.native[start..end], &query.items[start..end], native);
        // Most items change nothing. A list that is always written and only sometimes grown needs no jump.
        self.moves.resize(CHUNK + 1, Move::default());
        let (moves, adapted) = (&mut self.moves[..=CHUNK], &self.adapted[start..end]);
        let mut move_count = 0;
        for (offset, (&from, &to)) in adapted.iter().zip(native.iter()).enumerate() {
            moves[move_count] = Move { time: (start + offset) as u32, from, to };
            move_count += usize::from(from != to);
        }
        self.move_count = move_count;
    }
}

impl Workspace {
    /// Computes the largest sum that each head can have for the present gains.
    fn best<'d>(&mut self, depths: &'d Depths) -> impl Iterator<Item = f64> + use<'_, 'd> {
        if !depths.heads.is_empty() {
            self.best_gains.clone_from(&self.gains);
            self.best_gains.sort_unstable_by(|a, b| b.total_cmp(a));
        }
        depths.heads.iter().map(|(_, head)| head.best(&self.best_gains))
    }

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

/// Counts the items at each place `0 ..= outside`.
#[inline(always)]
fn count(places: &[u32], outside: usize, histogram: &mut Vec<u32>) {
    histogram.clear();
    histogram.resize(outside + 1, 0);
    for &place in places {
        histogram[place as usize] += 1;
    }
}

/// State of one head of a query between two items.
struct HeadState {
    /// Largest sum that the query can have.
    best: f64,
    /// Present value of the head, in fixed point.
    now: i64,
    /// Sum of the head's values over all cuts, in fixed point.
    area: i64,
}

/// The state of a query between two items.
struct State {
    positives: usize,
    /// [`UNIT`] over the number of right answers.
    unit: f64,
    /// `Σ (i + 1) / ranks[i]`.
    sum: f64,
    /// Present average precision, in fixed point.
    precision: i64,
    /// Sum of average precision over all cuts, in fixed point.
    precision_area: i64,
    hits: [bool; HITS],
    start_hits: [bool; HITS],
    /// Number of cuts at which the query is answered.
    hit_area: [i64; HITS],
    heads: Vec<HeadState>,
}

impl State {
    #[inline(always)]
    fn new<E: Eight>(work: &mut Workspace, query: &Query<'_>, depths: &Depths, totals: &mut Totals) -> Self {
        let positives = query.positives.len();
        let sum = precision_sum::<E>(&work.ranks, &work.weights);
        let mut state = Self {
            positives,
            unit: UNIT / positives as f64,
            sum,
            precision: 0,
            precision_area: 0,
            hits: [false; HITS],
            start_hits: [false; HITS],
            hit_area: [0; HITS],
            heads: work.best(depths).map(|best| HeadState { best, now: 0, area: 0 }).collect(),
        };
        let cuts = query.items.len() as i64 + 1;
        state.update_precision(0, cuts, totals);
        // A query that the do-nothing gallery answers counts as lost until the first update finds it
        // answered. Losses against the start need the hits of the start, which are known after that update.
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

    /// Updates average precision from `sum`. `cuts` is the number of cuts that the new value holds for, this
    /// one included.
    #[inline(always)]
    fn update_precision(&mut self, cut: usize, cuts: i64, totals: &mut Totals) {
        let precision = nearest(self.sum * self.unit);
        let change = precision - self.precision;
        self.precision = precision;
        self.precision_area += change * cuts;
        totals.precision[cut] += change;
    }

    /// Updates everything that depends on the first ranks only.
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
        for ((head, state), changes) in depths.heads.iter().zip(&mut self.heads).zip(&mut totals.heads) {
            let now = fixed(head_value(head, &ranks[..self.positives], gains, state.best));
            if now != state.now {
                state.area += (now - state.now) * cuts;
                changes[cut] += now - state.now;
                state.now = now;
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
        let Workspace { moves, move_count, histogram, active, ranks, weights, gains, .. } = work;
        let (histogram, active) = (&mut histogram[..], &active[..]);
        let (ranks, weights) = (&mut ranks[..], &weights[..]);
        for &Move { time, from, to } in &moves[..*move_count] {
            histogram[from as usize] -= 1;
            histogram[to as usize] += 1;
            let (from, to) = (active[from as usize] as usize, active[to as usize] as usize);
            if from == to {
                continue;
            }
            // An item that moves nearer comes to stand above the right answers in between.
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
        // The sum is computed anew, so that roundings of the moves in between do not pile up.
        self.sum = precision_sum::<E>(&work.ranks, &work.weights);
        let cut = answer.time as usize + 1;
        let cuts = (query.items.len() - answer.time as usize) as i64;
        self.update_precision(cut, cuts, totals);
        self.update_head(cut, cuts, &work.ranks, &work.gains, query, depths, totals);
    }

    /// Appends the present values of the query to `kept_values`, in the order of [`QueryValues`].
    fn keep(&self, kept_values: &mut Vec<f32>) {
        let hit = |slot: usize| if self.hits[slot] { 1.0 } else { 0.0 };
        let value = |units: i64| (units as f64 / UNIT) as f32;
        kept_values.extend([hit(0), hit(1), value(self.precision)]);
        kept_values.extend(self.heads.iter().map(|head| value(head.now)));
    }

    /// Areas of the query's metrics, as of a [`super::line::Line`]. The sums hold the values at the end,
    /// which have no width and are taken out.
    fn areas(&self, items: usize) -> Vec<f64> {
        let states = area_states(items) as f64;
        let hit = |slot: usize| (self.hit_area[slot] - i64::from(self.hits[slot])) as f64 / states;
        let mean = |area: i64, now: i64| (area - now) as f64 / UNIT / states;
        let heads = self.heads.iter().map(|head| mean(head.area, head.now));
        [hit(0), hit(1), mean(self.precision_area, self.precision)].into_iter().chain(heads).collect()
    }
}

/// Rounds a value from 0 to [`UNIT`] to the nearest whole number. Beside 1.5 · 2^52 the last place of an
/// `f64` is 1, so the sum holds the whole number in its low bits. A cast, which also looks for values that
/// are no numbers, makes a curve 3 % slower (`bench/curve`).
#[inline(always)]
fn nearest(value: f64) -> i64 {
    const ONES: f64 = 1.5 * (1_u64 << 52) as f64;
    (value + ONES).to_bits().cast_signed() - ONES.to_bits().cast_signed()
}

/// Converts a number from 0 to 1 to fixed point, rounded to the nearest.
fn fixed(value: f64) -> i64 {
    nearest(value * UNIT)
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

/// Adds `step`, 1 or −1, to the ranks at positions `first..end`. Returns the change of
/// `Σ weights[i] / ranks[i]`: `w/(r + step) − w/r = −step · w / (r·(r + step))`.
///
/// Four registers at a time are read and written, and the ranks outside the range stay unchanged: a rank that
/// stays has a numerator of 0. Most ranges fit into one such group, so the loop ends where the processor
/// expects it to. The four fractions are put over one denominator, because a division takes as long as all
/// the products.
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
            // Zeros are added outside the range. If the ranks were stored under the mask instead, the next
            // move could not load them before they are in the cache.
            let after = before.add(steps.only(mask));
            after.store(ranks);
            *fraction = (E::load(lanes(weights, register * LANES)).only(mask), before.mul(after));
        }
        sums = sums.add(sum_fractions(fractions));
    }
    -step * sums.sum()
}

/// Positions of a group before `end`, one bit each.
#[inline(always)]
fn below(end: usize) -> u32 {
    if end < GROUP { (1 << end) - 1 } else { u32::MAX }
}

/// Sum of four fractions (numerator, denominator) by one division. Denominators are products of two ranks,
/// and ranks stay below 2^23, so the product of all four is far from an overflow.
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

/// Result of one ranking of the gallery, as [`super::evaluate`] reports it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ranking {
    pub(crate) first_rank: usize,
    pub(crate) precision: f64,
    pub(crate) heads: Vec<f64>,
}

/// Computes the metrics of one query in a gallery that stays as it is. `query.native` is searched;
/// `query.adapted` is not read.
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
    work.thresholds.place_plain(query.native, query.items, &mut work.adapted);
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
    let best: Vec<f64> = work.best(depths).collect();
    let heads = depths.heads.iter().zip(best);
    Ranking {
        first_rank: work.ranks[0] as usize,
        precision: sum / positives as f64,
        heads: heads
            .map(|(head, best)| head_value(head, &work.ranks[..positives], &work.gains, best))
            .collect(),
    }
}
