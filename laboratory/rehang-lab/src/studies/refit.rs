//! `cargo lab study refit [METHOD [FOLDER [SET…]]]`: what it is worth to fit the map again while a gallery is
//! re-embedded.
//!
//! A part of a set is a gallery whose new vectors are all known. It is re-embedded in an order twice: with
//! the map of its pairs to the end, and with a map that is fitted again at the shares where a run asks, if
//! the rule says so. Items that a run keeps for measuring are re-embedded first. A fifth of all items, these
//! among them, is never fitted on, as of pairs. At every question both maps are followed to the end, so that
//! the rule is held against what it was right or wrong about.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rehang_core::adapter::{self, true_errors};
use rehang_core::curve::{Curve, CurveInput, CurveOptions, MAP, Relevance, TOP1, curve};
use rehang_core::order::{OrderInput, Policy, order};
use rehang_core::statistics::mean_sd;
use rehang_core::{Adapter, Matrix, Pairs, Progress, Result, Vectors};
use rehang_fit::refit::{ASKED_AT, RefitGain, kept_for_measuring};
use rehang_fit::{FitParameters, Method, NetworkOptions, fit_adapter};

use crate::studies::papers::units::{Part, SETS, Set};

const POLICIES: [Policy; 3] = [Policy::Random, Policy::Sigma, Policy::Coverage];
/// Choices of pairs that the first map is fitted on: a name, how many, and 1 for all classes or 2 for every
/// second one.
const FIRST: [(&str, usize, i64); 3] =
    [("2,000 pairs", 2000, 1), ("500 pairs", 500, 1), ("half the classes", 2000, 2)];
/// Points of area below which a decision made no difference.
const NOTHING: f64 = 0.1;

/// mAP and top-1, in points.
type Points = [f64; 2];

/// Question whether to take the map that was fitted again, and what the answer was worth.
struct Asked {
    first: &'static str,
    gain: RefitGain,
    /// Gain of the rest of the area, from the question to the end.
    worth: Points,
    /// Gain of the rest of the area where a fifth more of the natives are fitted on: all that are not kept
    /// for measuring.
    with_all: Option<Points>,
}

/// Areas of one gallery in one order.
struct Way {
    first: &'static str,
    part: &'static str,
    policy: Policy,
    without: Points,
    with: Points,
    /// Area where the items kept for measuring come first, and the map stays.
    kept_first: Points,
    /// Area with refits, but with the handicap of the first map to the end.
    first_handicap: Points,
    /// Area with refits, but in the order of the first map to the end.
    first_order: Points,
    taken: usize,
}

/// Prints the areas, and what the rule decided.
pub fn run(arguments: &[&str]) -> Result<()> {
    let method: Method = arguments.first().copied().unwrap_or("ridge").parse()?;
    let folder = PathBuf::from(arguments.get(1).copied().unwrap_or("../shared/data"));
    let sets: Vec<&str> = if arguments.len() > 2 { arguments[2..].to_vec() } else { SETS.to_vec() };
    let (mut ways, mut questions, mut pages) = (Vec::new(), Vec::new(), Vec::new());
    println!(
        "| gallery | part | first map | order | mAP without | with | top-1 without | with | taken | error falls at 10 %, 40 % |"
    );
    println!("|---|---|---|---|--:|--:|--:|--:|--:|---|");
    for set in sets {
        let data = Set::read(&folder, set)?;
        for (first, pairs, every) in FIRST {
            let drawn = first_pairs(&data.pairs, pairs, every);
            let adapter = fit(&drawn, method)?;
            for part in &data.parts {
                for policy in POLICIES {
                    eprintln!("{set} {} {first} {} …", part.name, policy.name());
                    let study = Study { part, pairs: &drawn, method, policy };
                    let (way, asked) = study.follow(first, &adapter)?;
                    let falls: Vec<String> =
                        asked.iter().map(|one| format!("{:.1} %", 100.0 * one.gain.fall())).collect();
                    println!(
                        "| {set} | {} | {first} | {} | {:.1} | {:.1} | {:.1} | {:.1} | {} | {} |",
                        part.name,
                        policy.name(),
                        way.without[0],
                        way.with[0],
                        way.without[1],
                        way.with[1],
                        way.taken,
                        falls.join(", ")
                    );
                    ways.push(way);
                    questions.extend(asked);
                    if policy == Policy::Random {
                        pages.extend(study.between(&adapter)?);
                    }
                }
            }
        }
    }
    print_ways(&ways);
    print_questions(&questions);
    print_pages(&pages);
    Ok(())
}

/// Draws the first pairs of a random order, of every `every`-th class.
fn first_pairs(pairs: &Pairs, count: usize, every: i64) -> Pairs {
    let is_in = |row: usize| pairs.labels().is_none_or(|labels| labels[row].rem_euclid(every) == 0);
    let rows: Vec<usize> =
        shuffled(pairs.len(), 7).into_iter().filter(|&row| is_in(row)).take(count).collect();
    pairs.select(&rows)
}

pub(crate) fn shuffled(items: usize, seed: u64) -> Vec<usize> {
    let input = OrderInput { items, seed, ..OrderInput::default() };
    order(Policy::Random, &input).map_or_else(|_| (0..items).collect(), |order| order.permutation)
}

pub(crate) fn fit(pairs: &Pairs, method: Method) -> Result<Adapter> {
    let parameters = FitParameters { method, compare: false, ..FitParameters::default() };
    Ok(fit_adapter(pairs, None, &parameters, &NetworkOptions::default(), &Progress::default())?.adapter)
}

/// Gallery, and what its first map was fitted on.
struct Study<'a> {
    part: &'a Part,
    pairs: &'a Pairs,
    method: Method,
    policy: Policy,
}

/// Result of a map on all items of a gallery.
struct Mapped {
    adapted: Matrix,
    sigma: Vec<f64>,
    errors: Vec<f64>,
    handicap: f64,
}

impl Study<'_> {
    fn items(&self) -> usize {
        self.part.labels.len()
    }

    fn map(&self, adapter: &Adapter) -> Result<Mapped> {
        let applied = adapter::apply(adapter, &self.part.old, None, &Progress::default())?;
        let adapted = applied.vectors.matrix().clone();
        Ok(Mapped {
            errors: true_errors(self.part.new.matrix(), &adapted),
            sigma: applied.variance.iter().map(|&value| f64::from(value)).collect(),
            adapted,
            handicap: adapter.handicap,
        })
    }

    /// Orders the gallery: native items first, then the rest in the order that a map gives it.
    fn ordered(&self, natives: &[usize], mapped: &Mapped) -> Result<Vec<usize>> {
        let mut is_native = vec![false; self.items()];
        for &item in natives {
            is_native[item] = true;
        }
        let rest: Vec<usize> = (0..self.items()).filter(|&item| !is_native[item]).collect();
        let sigma: Vec<f64> = rest.iter().map(|&item| mapped.sigma[item]).collect();
        let vectors = mapped.adapted.select(&rest);
        let input = OrderInput {
            items: rest.len(),
            sigma: Some(&sigma),
            vectors: Some(&vectors),
            ..OrderInput::default()
        };
        let places = order(self.policy, &input)?.permutation;
        Ok(natives.iter().copied().chain(places.into_iter().map(|place| rest[place])).collect())
    }

    fn curve(&self, adapted: &Matrix, handicap: f64, order: &[usize]) -> Result<Curve> {
        let relevance = Relevance::Labels { gallery: &self.part.labels, queries: None };
        let distance = self.part.new.space().distance;
        let input = CurveInput::new(self.part.new.matrix(), adapted, order, relevance, distance);
        curve(&CurveInput { handicap, ..input }, &CurveOptions::default(), &Progress::default())
    }

    /// Joins the pairs with those natives that may be fitted on.
    fn pairs_with(&self, natives: &[usize]) -> Result<Pairs> {
        let joined = |first: &Vectors, more: &Vectors| {
            let mut values = first.matrix().as_slice().to_vec();
            values.extend_from_slice(more.matrix().select(natives).as_slice());
            let name = &first.space().name;
            Vectors::measured(name, first.space().distance, Matrix::new(first.dimension(), values)?, name)
        };
        let old = joined(self.pairs.old(), &self.part.old)?;
        let new = joined(self.pairs.new_vectors(), &self.part.new)?;
        let labels = self.pairs.labels().map(|labels| {
            labels.iter().copied().chain(natives.iter().map(|&item| self.part.labels[item])).collect()
        });
        Pairs::new(old, new, labels, None)
    }

    /// Follows the gallery to its end, with and without refits.
    fn follow(&self, first: &'static str, adapter: &Adapter) -> Result<(Way, Vec<Asked>)> {
        let items = self.items();
        let sum_between = |curve: &Curve, from: usize, to: usize| -> Points {
            [MAP, TOP1].map(|metric| curve.lines[metric].values()[from..to].iter().sum::<f64>())
        };
        let random = shuffled(items, 11);
        let kept = &random[..kept_for_measuring(items)];
        // A fifth of all items, with those kept for measuring among them, is never fitted on.
        let mut is_held_out = vec![false; items];
        for &item in &random[..items / 5] {
            is_held_out[item] = true;
        }
        let mut mapped = self.map(adapter)?;
        let plain = self.curve(&mapped.adapted, mapped.handicap, &self.ordered(&[], &mapped)?)?;
        let without = sum_between(&plain, 0, items).map(|sum| sum / items as f64);

        let mut order = self.ordered(kept, &mapped)?;
        let mut line = self.curve(&mapped.adapted, mapped.handicap, &order)?;
        let kept_first = sum_between(&line, 0, items).map(|sum| sum / items as f64);
        let first_order = order.clone();
        // Other lines take the handicap of the first map, or its order.
        let mut others = [line.clone(), line.clone()];
        let (mut sums, mut sums_of_others) = ([0.0; 2], [[0.0; 2]; 2]);
        let (mut from, mut taken, mut asked) = (0, 0, Vec::new());
        for share in ASKED_AT {
            let at = (share * items as f64).ceil() as usize;
            let natives = &order[..at];
            let more: Vec<usize> = natives.iter().copied().filter(|&item| !is_held_out[item]).collect();
            let again = self.map(&fit(&self.pairs_with(&more)?, self.method)?)?;
            let errors = |mapped: &Mapped| kept.iter().map(|&item| mapped.errors[item]).collect::<Vec<_>>();
            let Some(gain) = RefitGain::compared(&errors(&mapped), &errors(&again))? else { continue };
            let next_order = self.ordered(natives, &again)?;
            let next = self.curve(&again.adapted, again.handicap, &next_order)?;
            let rest = |curve: &Curve| sum_between(curve, at, items).map(|sum| sum / (items - at) as f64);
            let less = |a: Points, b: Points| [a[0] - b[0], a[1] - b[1]];
            let with_all = if self.policy == Policy::Random {
                let more: Vec<usize> = natives.iter().copied().filter(|item| !kept.contains(item)).collect();
                let all = self.map(&fit(&self.pairs_with(&more)?, self.method)?)?;
                let of_all = self.curve(&all.adapted, all.handicap, &self.ordered(natives, &all)?)?;
                Some(less(rest(&of_all), rest(&line)))
            } else {
                None
            };
            asked.push(Asked { first, gain, worth: less(rest(&next), rest(&line)), with_all });
            if gain.pays() {
                let plus = |sums: Points, more: Points| [sums[0] + more[0], sums[1] + more[1]];
                sums = plus(sums, sum_between(&line, from, at));
                for (sums, line) in sums_of_others.iter_mut().zip(&others) {
                    *sums = plus(*sums, sum_between(line, from, at));
                }
                others = [
                    self.curve(&again.adapted, adapter.handicap, &next_order)?,
                    self.curve(&again.adapted, again.handicap, &first_order)?,
                ];
                (from, order, mapped, line) = (at, next_order, again, next);
                taken += 1;
            }
        }
        let whole = |sums: Points, line: &Curve| {
            let rest = sum_between(line, from, items);
            [sums[0] + rest[0], sums[1] + rest[1]].map(|sum| sum / items as f64)
        };
        let way = Way {
            first,
            part: self.part.name,
            policy: self.policy,
            without,
            with: whole(sums, &line),
            kept_first,
            first_handicap: whole(sums_of_others[0], &others[0]),
            first_order: whole(sums_of_others[1], &others[1]),
            taken,
        };
        Ok((way, asked))
    }

    /// Measures searches at the first question, by how far the pages of the new map are and by whose
    /// handicap: none is made anew, half is with the old handicap, half with the new one, all is. Nothing
    /// where both maps are served with the same handicap.
    fn between(&self, adapter: &Adapter) -> Result<Option<[Points; 4]>> {
        let mapped = self.map(adapter)?;
        let order = self.ordered(&[], &mapped)?;
        let at = (ASKED_AT[0] * self.items() as f64).ceil() as usize;
        let again = self.map(&fit(&self.pairs_with(&order[..at])?, self.method)?)?;
        let mut half = mapped.adapted.clone();
        for item in shuffled(self.items(), 13).into_iter().take(self.items() / 2) {
            half.row_mut(item).copy_from_slice(again.adapted.row(item));
        }
        let found = |adapted: &Matrix, handicap: f64| -> Result<Points> {
            let curve = self.curve(adapted, handicap, &order)?;
            Ok([MAP, TOP1].map(|metric| curve.lines[metric].values()[at]))
        };
        Ok(Some([
            found(&mapped.adapted, mapped.handicap)?,
            found(&half, mapped.handicap)?,
            found(&half, again.handicap)?,
            found(&again.adapted, again.handicap)?,
        ]))
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    mean_sd(&values.collect::<Vec<_>>()).map_or(f64::NAN, |spread| spread.mean)
}

fn print_ways(ways: &[Way]) {
    println!(
        "\n| first map | part | order | area of mAP gains | worst | of top-1 | worst | refits taken | mAP: what is kept first, no refit | with the first handicap | in the first order |"
    );
    println!("|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|");
    let mut groups: BTreeMap<(&str, &str, &str), Vec<&Way>> = BTreeMap::new();
    for way in ways {
        groups.entry((way.first, way.part, way.policy.name())).or_default().push(way);
    }
    for ((first, part, policy), group) in groups {
        let gains = |metric: usize| group.iter().map(move |way| way.with[metric] - way.without[metric]);
        let worst = |metric: usize| gains(metric).fold(f64::INFINITY, f64::min);
        let other = |of: fn(&Way) -> Points| mean(group.iter().map(|way| of(way)[0] - way.without[0]));
        println!(
            "| {first} | {part} | {policy} | {:+.1} | {:+.1} | {:+.1} | {:+.1} | {} of {} | {:+.2} | {:+.2} | {:+.2} |",
            mean(gains(0)),
            worst(0),
            mean(gains(1)),
            worst(1),
            group.iter().map(|way| way.taken).sum::<usize>(),
            ASKED_AT.len() * group.len(),
            other(|way| way.kept_first),
            other(|way| way.first_handicap),
            other(|way| way.first_order)
        );
    }
}

fn print_questions(questions: &[Asked]) {
    println!(
        "\n| the error falls by | questions | taken | mAP of the rest | lowest | top-1 of the rest | lowest |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|");
    let classes = [
        ("less than 0.5 %", -9.0, 0.005),
        ("0.5 to 2 %", 0.005, 0.02),
        ("2 to 8 %", 0.02, 0.08),
        ("more", 0.08, 9.0),
    ];
    for (name, low, high) in classes {
        let group: Vec<&Asked> =
            questions.iter().filter(|asked| (low..high).contains(&asked.gain.fall())).collect();
        let lowest =
            |metric: usize| group.iter().map(|asked| asked.worth[metric]).fold(f64::INFINITY, f64::min);
        println!(
            "| {name} | {} | {} | {:+.2} | {:+.1} | {:+.2} | {:+.1} |",
            group.len(),
            group.iter().filter(|asked| asked.gain.pays()).count(),
            mean(group.iter().map(|asked| asked.worth[0])),
            lowest(0),
            mean(group.iter().map(|asked| asked.worth[1])),
            lowest(1)
        );
    }
    let taken = || questions.iter().filter(|asked| asked.gain.pays());
    let left = || questions.iter().filter(|asked| !asked.gain.pays());
    for (metric, name) in ["mAP", "top-1"].into_iter().enumerate() {
        println!(
            "\n{name}: of {} refits taken, {} cost more than {NOTHING} points of the rest of the area; of {} not taken, {} would have gained more than that. With all natives but those kept, instead of four fifths of them, a refit is worth {:+.2} points more (random order, {} questions).",
            taken().count(),
            taken().filter(|asked| asked.worth[metric] < -NOTHING).count(),
            left().count(),
            left().filter(|asked| asked.worth[metric] > NOTHING).count(),
            mean(questions.iter().filter_map(|asked| Some(asked.with_all?[metric] - asked.worth[metric]))),
            questions.iter().filter(|asked| asked.with_all.is_some()).count()
        );
    }
    for (first, ..) in FIRST {
        let group = || questions.iter().filter(|asked| asked.first == first);
        println!(
            "\n{first}: the rest of the area gains {:+.2} mAP and {:+.2} top-1 a refit taken.",
            mean(group().filter(|asked| asked.gain.pays()).map(|asked| asked.worth[0])),
            mean(group().filter(|asked| asked.gain.pays()).map(|asked| asked.worth[1]))
        );
    }
}

fn print_pages(pages: &[[Points; 4]]) {
    println!("\n| 10 % native; made anew | mAP | top-1 |\n|---|--:|--:|");
    let rows = ["nothing", "half, with the handicap before", "half, with the handicap of the new map", "all"];
    for (row, name) in rows.into_iter().enumerate() {
        let mean_of = |metric: usize| mean(pages.iter().map(|found| found[row][metric]));
        println!("| {name} | {:.2} | {:.2} |", mean_of(0), mean_of(1));
    }
    let lost = |metric: usize| {
        let below = |found: &[Points; 4]| found[0][metric].min(found[3][metric]) - found[2][metric];
        pages.iter().map(below).fold(f64::NEG_INFINITY, f64::max)
    };
    println!(
        "\nWith half of the pages made and the new handicap, searches are at most {:.1} mAP and {:.1} top-1 below the worse of both ends ({} galleries).",
        lost(0),
        lost(1),
        pages.len()
    );
}
